package recovery

// ToolName is the name of the tool.
const ToolName = "recover_observation"

// Tool is the descriptor of the tool, as tools/list has it.
var Tool = []byte(`{"name":"recover_observation",` +
	`"title":"Recover a cut tool result",` +
	`"description":"Reads back text that was cut out of an earlier tool result. The middle of a long one became a ` +
	`marker such as \"... [KIMI_PROXY_OBSERVATION_MASKED original_chars=52310 head=2000 tail=2000 id=obs_4kXbZ0aQe7] ` +
	`...\". Placeholders of old results may have an id, too. ` +
	`Call this with that id and one of\n` +
	`- goal: what you look for, in words. Returns the lines that matter for it, numbered, and says which lines were ` +
	`left out. Prefer this.\n` +
	`- query: a jq expression, if the original is JSON.\n` +
	`- pattern: a regular expression. Returns the lines that match, with those around them.\n` +
	`- a range, to read it unchanged: start_line and end_line, or start_char and end_char. The marker left out the ` +
	`characters from head to original_chars-tail.\n` +
	`With a range, goal and pattern search only that. An answer that is cut says how to continue. ` +
	`Originals are kept for a limited time. If one is gone, call its tool again.",` +
	`"inputSchema":{"type":"object","properties":{` +
	`"id":{"type":"string","description":"Such as: obs_4kXbZ0aQe7."},` +
	`"goal":{"type":"string","maxLength":1000,"description":"Such as: why the login test fails."},` +
	`"ratio":{"type":"number","minimum":0,"maximum":1,"description":"With goal: minimum share of lines to ` +
	`leave out."},` +
	`"max_chars":{"type":"integer","minimum":1,"description":"Maximum length of the answer."},` +
	`"query":{"type":"string","maxLength":1000,"description":"Such as: .items[] | select(.state==\"open\") | ` +
	`{id,title}. It cannot define functions or assign. JSON lines are read as one array."},` +
	`"pattern":{"type":"string","maxLength":1000,"description":"RE2 syntax, for each line: (?i) ignores case; no ` +
	`lookarounds, no backreferences."},` +
	`"context_lines":{"type":"integer","minimum":0,"maximum":20,"default":2,"description":"With pattern: lines to ` +
	`show before and after each match."},` +
	`"max_matches":{"type":"integer","minimum":1,"maximum":200,"default":20,"description":"With pattern: maximum ` +
	`number of matching lines."},` +
	`"start_line":{"type":"integer","minimum":1,"description":"First line, from 1."},` +
	`"end_line":{"type":"integer","minimum":1,"description":"Last line, included."},` +
	`"start_char":{"type":"integer","minimum":0,"default":0,"description":"First character, from 0."},` +
	`"end_char":{"type":"integer","minimum":0,"description":"The character to stop before."}` +
	`},"required":["id"],"additionalProperties":false},` +
	`"annotations":{"title":"Recover a cut tool ` +
	`result","readOnlyHint":true,"destructiveHint":false,"idempotentHint":true,"openWorldHint":false}}`)

// Template is the descriptor of the resource, as resources/templates/list has it.
var Template = []byte(`{"uriTemplate":"proxy://observation/{id}",` +
	`"name":"observation",` +
	`"title":"Cut tool result",` +
	`"description":"The whole of a text that was cut out of a tool result, by the id in the marker that was left in ` +
	`its place.",` +
	`"mimeType":"text/plain"}`)
