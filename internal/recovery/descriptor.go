package recovery

// ToolName is the name of the tool.
const ToolName = "recover_observation"

// Tool is the descriptor of the tool, as tools/list has it.
var Tool = []byte(`{"name":"recover_observation",` +
	`"title":"Recover a cut tool result",` +
	`"description":"Reads back text that was cut out of an earlier tool result. Where a result was too long, its middle was replaced by a marker such as \"... [KIMI_PROXY_OBSERVATION_MASKED original_chars=52310 head=2000 tail=2000 id=obs_4kXbZ0aQe7] ...\". ` +
	`Call this with that id, and either\n` +
	`- start_char and end_char to read a part of the original. Characters count from 0 and end_char is not included. What you have not seen is from start_char=head to end_char=original_chars-tail. An answer that is cut says with which start_char to go on.\n` +
	`- pattern to find lines by a regular expression, with the lines around them. Prefer this if you look for something.\n` +
	`Originals are kept for a limited time. If one is gone, run the tool that gave it again.",` +
	`"inputSchema":{"type":"object","properties":{` +
	`"id":{"type":"string","description":"The id in the marker: obs_ and letters and digits."},` +
	`"start_char":{"type":"integer","minimum":0,"default":0,"description":"The first character to read, or to search from."},` +
	`"end_char":{"type":"integer","minimum":0,"description":"The character to stop before. The end of the original unless given."},` +
	`"pattern":{"type":"string","maxLength":1000,"description":"A regular expression in RE2 syntax, matched against each line: (?i) ignores case; there are no lookarounds and no backreferences."},` +
	`"context_lines":{"type":"integer","minimum":0,"maximum":20,"default":2,"description":"With pattern: how many lines to show before and after each line that matches."},` +
	`"max_matches":{"type":"integer","minimum":1,"maximum":200,"default":20,"description":"With pattern: after how many lines that match to stop."}` +
	`},"required":["id"],"additionalProperties":false},` +
	`"annotations":{"title":"Recover a cut tool result","readOnlyHint":true,"destructiveHint":false,"idempotentHint":true,"openWorldHint":false}}`)

// Template is the descriptor of the resource, as resources/templates/list has it.
var Template = []byte(`{"uriTemplate":"proxy://observation/{id}",` +
	`"name":"observation",` +
	`"title":"Cut tool result",` +
	`"description":"The whole of a text that was cut out of a tool result, by the id in the marker that was left in its place.",` +
	`"mimeType":"text/plain"}`)
