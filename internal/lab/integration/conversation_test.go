package integration

import (
	bits "encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// conversationMask returns tool_result_mask with subdirectives.
func conversationMask(lines ...string) string { return block("tool_result_mask", lines...) }

// windowOfOne is the mask of most tests here.
var windowOfOne = conversationMask("window_turns 1")

// chatMessage returns a message without tool calls.
func chatMessage(role, text string) string {
	return `{"role":"` + role + `","content":` + quote(text) + `}`
}

// callsMessage returns a message of the model with tool calls, each given as "id tool".
func callsMessage(each ...string) string {
	for i, call := range each {
		id, tool, _ := strings.Cut(call, " ")
		each[i] = `{"id":"` + id + `","type":"function","function":{"name":"` + tool + `","arguments":"{}"}}`
	}
	return `{"role":"assistant","content":null,"tool_calls":[` + strings.Join(each, ",") + `]}`
}

// resultMessage returns the message with the result of a call.
func resultMessage(id, text string) string { return resultMessageOf(id, quote(text)) }

// resultMessageOf is resultMessage with any JSON as content.
func resultMessageOf(id, content string) string {
	return `{"role":"tool","tool_call_id":"` + id + `","content":` + content + `}`
}

// conversation returns a request with these messages.
func conversation(messages ...string) string {
	return `{"model":"m","messages":[` + strings.Join(messages, ",") + `]}`
}

// oneTurnLater returns a conversation with one more turn after these messages.
func oneTurnLater(messages ...string) string {
	return conversation(append(messages, callsMessage("call_last read"), resultMessage("call_last", "OK"),
		chatMessage("user", "go on"))...)
}

// turns returns a conversation of n turns, the first of them masked. Each result has size
// characters. Every second turn calls grep, the others read.
func turns(n, masked, size int) string {
	messages := []string{chatMessage("system", "be brief")}
	for i := range n {
		id, tool, text := turn(i, masked, size)
		messages = append(messages, callsMessage(id+" "+tool), resultMessage(id, text))
	}
	return conversation(messages...)
}

// turn returns the id, tool and result of turn i.
func turn(i, masked, size int) (id, tool, text string) {
	id, tool, text = fmt.Sprintf("call_%d", i+1), "read", strings.Repeat("A", size)
	if i%2 == 1 {
		tool = "grep"
	}
	if i < masked {
		text = placeholder(id, tool, size)
	}
	return id, tool, text
}

// anthropicTurns is turns in Anthropic's format, and responsesTurns in that of OpenAI's Responses
// API.
func anthropicTurns(n, masked, size int) string {
	messages := []string{chatMessage("user", "go")}
	for i := range n {
		id, tool, text := turn(i, masked, size)
		messages = append(messages, `{"role":"assistant","content":[{"type":"tool_use","id":"`+id+`","name":"`+tool+
			`","input":{}}]}`,
			`{"role":"user","content":[{"type":"tool_result","tool_use_id":"`+id+`","content":[{"type":"text","text":"`+text+
				`"}]}]}`)
	}
	return conversation(messages...)
}

func responsesTurns(n, masked, size int) string {
	items := []string{chatMessage("user", "go")}
	for i := range n {
		id, tool, text := turn(i, masked, size)
		items = append(items, `{"type":"function_call","call_id":"`+id+`","name":"`+tool+`","arguments":"{}"}`,
			`{"type":"function_call_output","call_id":"`+id+`","output":"`+text+`"}`)
	}
	return `{"input":[` + strings.Join(items, ",") + `]}`
}

// placeholder returns the text of T10.
func placeholder(id, tool string, chars int) string {
	return fmt.Sprintf("[Observation masqu\u00e9e: r\u00e9sultat d\u2019outil ancien (tool_call_id=%s, outil=%s, "+
		"chars=%d)]", id, tool, chars)
}

// twoTurns returns a conversation of two turns with this content of the first result, which is old.
func twoTurns(old string) string {
	return conversation(chatMessage("system", "be brief"), callsMessage("call_1 fast_read_file"),
		resultMessage("call_1", old), chatMessage("user", "and now?"),
		callsMessage("call_2 fast_read_file"), resultMessage("call_2", "OK"), chatMessage("user", "go on"))
}

var (
	thousand = strings.Repeat("A", 1000)
	b2Sent   = twoTurns(thousand)
	b2Masked = twoTurns(placeholder("call_1", "fast_read_file", 1000))
)

// receivedByModel sends a request and returns what the model API received.
func receivedByModel(t *testing.T, chat *mcptest.Chat, req *http.Request) mcptest.Request {
	t.Helper()
	before := chat.Count()
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if got := chat.Count() - before; res.StatusCode != http.StatusOK || got != 1 {
		t.Fatalf("got response %s, and %d requests arrived", res.Status, got)
	}
	return chat.Last()
}

// expectSent checks the body and the length that the model receives for a request (T25).
func expectSent(t *testing.T, chat *mcptest.Chat, url, sent, want string, headers ...string) {
	t.Helper()
	got := receivedByModel(t, chat, request(t, t.Context(), "POST", url, sent, headers...))
	same(t, got.Body, want)
	if length := got.Headers.Get("Content-Length"); length != strconv.Itoa(len(got.Body)) ||
		got.Headers.Get("Transfer-Encoding") != "" {
		t.Errorf("Content-Length %s, Transfer-Encoding %q of %d bytes", length, got.Headers.Get("Transfer-Encoding"),
			len(got.Body))
	}
}

// One request is masked as expected, compared byte by byte.
func TestConversation(t *testing.T) {
	isolate(t)
	long := strings.Repeat("A", 500)
	masked := func(id string) string { return placeholder(id, "read", 500) }
	read := callsMessage("call_1 read")
	defaults := []string{}
	rawCall := func(call string) string { return `{"role":"assistant","tool_calls":[` + call + `]}` }
	named := func(name string) string { return rawCall(`{"id":"call_1","function":{"name":` + name + `}}`) }

	type row struct {
		name  string
		lines []string // default: a window of one turn
		sent  string
		want  string
	}
	same := func(name string, lines []string, sent string) row { return row{name, lines, sent, sent} }
	// old returns a row with one old result of n characters, which must be masked.
	old := func(name string, lines []string, content string, n int) row {
		return row{name, lines, oneTurnLater(read, resultMessageOf("call_1", content)),
			oneTurnLater(read, resultMessage("call_1", placeholder("call_1", "read", n)))}
	}
	kept := func(name string, lines []string, content string) row {
		return same(name, lines, oneTurnLater(read, resultMessageOf("call_1", content)))
	}
	keepNoErrors := []string{"window_turns 1", "keep_errors false"}
	precisely := []string{"window_turns 1", "keep_errors precise"}
	keepLast := func(k string) []string { return []string{"window_turns 1", "keep_last_k_per_tool " + k} }
	template := func(text string) []string { return []string{"window_turns 1", "placeholder_template " + text} }
	odd := " {\n\t\"messages\" : [ " + strings.TrimPrefix(strings.TrimSuffix(b2Sent, "]}"), `{"model":"m","messages":[`) +
		" ] ,\r\n \"model\":\"m\" }\n"

	tests := []row{
		{"T1 T10 the old result becomes a placeholder", nil, b2Sent, b2Masked},
		same("T2 off with odd white space", []string{"enabled false", "window_turns 1"}, odd),
		same("T2 enabled off", []string{"enabled off", "window_turns 1"}, b2Sent),
		{"T2 enabled true", []string{"enabled true", "window_turns 1"}, b2Sent, b2Masked},
		same("T3 a window of 0 masks nothing", []string{"window_turns 0"}, b2Sent),
		same("T3 a negative window masks nothing", []string{"window_turns -1"}, b2Sent),
		{"T3 nine turns in the default window", defaults, turns(9, 0, 500), turns(9, 1, 500)},
		same("T3 eight turns in the default window", defaults, turns(8, 0, 500)),
		{"T4 messages do not count", nil,
			conversation(read, resultMessage("call_1", long), callsMessage("call_2 read"), resultMessage("call_2", long),
				chatMessage("user", "a"), chatMessage("assistant", "b"), chatMessage("user", "c")),
			conversation(read, resultMessage("call_1", masked("call_1")), callsMessage("call_2 read"),
				resultMessage("call_2", long), chatMessage("user", "a"), chatMessage("assistant", "b"), chatMessage("user", "c"))},
		same("T4 an empty list of calls is not a turn", nil, conversation(read, resultMessage("call_1", long),
			`{"role":"assistant","tool_calls":[]}`)),
		same("T4 calls without an id or name are not a turn", nil, conversation(read, resultMessage("call_1", long),
			`{"role":"assistant","tool_calls":[{"function":{"name":""}},{"id":""},{"id":5},{"id":null},null,"x"]}`)),
		same("T4 calls that are not a list are not a turn", nil, conversation(read, resultMessage("call_1", long),
			`{"role":"assistant","tool_calls":{"id":"call_2"}}`)),
		same("T4 calls of the user are not a turn", nil, conversation(read, resultMessage("call_1", long),
			`{"role":"user","content":"x","tool_calls":[{"id":"call_2"}]}`)),
		{"T4 one id among calls without one is a turn", nil, conversation(read, resultMessage("call_1", long),
			rawCall(`{"id":""},{"id":"call_2"},7`)),
			conversation(read, resultMessage("call_1", masked("call_1")), rawCall(`{"id":""},{"id":"call_2"},7`))},
		same("T5 fewer turns than the window", []string{"window_turns 10"}, b2Sent),
		same("T5 as many turns as the window", []string{"window_turns 2"}, b2Sent),
		{"T5 results of the window stay at any position", nil,
			conversation(resultMessage("call_2", long), read, resultMessage("call_1", long), callsMessage("call_2 read")),
			conversation(resultMessage("call_2", long), read, resultMessage("call_1", masked("call_1")),
				callsMessage("call_2 read"))},
		{"T5 a late result of an old turn is old", nil,
			conversation(read, callsMessage("call_2 read"), resultMessage("call_2", long), resultMessage("call_1", long)),
			conversation(read, callsMessage("call_2 read"), resultMessage("call_2", long),
				resultMessage("call_1", masked("call_1")))},
		{"T6 parallel calls are masked together", nil,
			conversation(callsMessage("call_1 read", "call_2 read"), resultMessage("call_1", long),
				resultMessage("call_2", long), callsMessage("call_3 read"), resultMessage("call_3", long)),
			conversation(callsMessage("call_1 read", "call_2 read"), resultMessage("call_1", masked("call_1")),
				resultMessage("call_2", masked("call_2")), callsMessage("call_3 read"), resultMessage("call_3", long))},
		same("T6 parallel calls of the window stay together", nil,
			conversation(callsMessage("call_1 read", "call_2 read", "call_3 read"), resultMessage("call_1", long),
				resultMessage("call_2", long), resultMessage("call_3", long))),
		{"T8 arguments with odd escapes", nil,
			oneTurnLater(rawCall(`{"id":"call_1","type":"function","function":{"name":"read",`+
				`"arguments":"{\"a\":\"\u00e9\\n\"}"}, "index" : 0}`), resultMessage("call_1", long)),
			oneTurnLater(rawCall(`{"id":"call_1","type":"function","function":{"name":"read",`+
				`"arguments":"{\"a\":\"\u00e9\\n\"}"}, "index" : 0}`), resultMessage("call_1", masked("call_1")))},
		{"T9 the other members of the message", nil,
			oneTurnLater(read, `{"name":"read","role":"tool","content":"`+long+
				`","x_vendor":{"content":"kept"},"tool_call_id":"call_1"}`),
			oneTurnLater(read, `{"name":"read","role":"tool","content":"`+masked("call_1")+
				`","x_vendor":{"content":"kept"},"tool_call_id":"call_1"}`)},
		{"T11 a call without a function", nil, oneTurnLater(rawCall(`{"id":"call_1"}`), resultMessage("call_1", long)),
			oneTurnLater(rawCall(`{"id":"call_1"}`), resultMessage("call_1", placeholder("call_1", "inconnu", 500)))},
		{"T11 a call with an empty name", nil, oneTurnLater(named(`""`), resultMessage("call_1", long)),
			oneTurnLater(named(`""`), resultMessage("call_1", placeholder("call_1", "inconnu", 500)))},
		{"T11 a name that is not a string", nil, oneTurnLater(named(`5`), resultMessage("call_1", long)),
			oneTurnLater(named(`5`), resultMessage("call_1", placeholder("call_1", "inconnu", 500)))},
		{"T11 a function that is not an object", nil, oneTurnLater(rawCall(`{"id":"call_1","function":"read"}`),
			resultMessage("call_1", long)),
			oneTurnLater(rawCall(`{"id":"call_1","function":"read"}`), resultMessage("call_1", placeholder("call_1", "inconnu",
				500)))},
		old("T12 characters of two bytes", nil, `"`+strings.Repeat("é", 300)+`"`, 300),
		old("T12 characters beyond the BMP", nil, `"`+strings.Repeat("😀", 300)+`"`, 300),
		old("T12 escaped characters", nil, `"`+strings.Repeat(`\u00e9\n\"`, 100)+`"`, 300),
		old("T12 escaped surrogate pairs", nil, `"`+strings.Repeat(`\ud83d\ude00`, 300)+`"`, 300),
		old("T12 lone surrogates", nil, `"`+strings.Repeat(`\ud800`, 300)+`"`, 300),
		old("T12 empty text", nil, `""`, 0),
		{"T13 a custom template", template("<{tool_call_id}|{tool_name}|{original_chars}>"), b2Sent,
			strings.Replace(b2Sent, thousand, "<call_1|fast_read_file|1000>", 1)},
		{"T13 a template in quotes", template(`"{original_chars}: {tool_name}, {tool_name}"`), b2Sent,
			strings.Replace(b2Sent, thousand, "1000: fast_read_file, fast_read_file", 1)},
		{"T13 a template that JSON must escape", template("`say \"{tool_call_id}\" \\ \t`"), b2Sent,
			strings.Replace(b2Sent, thousand, `say \"call_1\" \\ \t`, 1)},
		{"T13 a template without variables", template("gone"), b2Sent, strings.Replace(b2Sent, thousand, "gone", 1)},
		{"T13 the default template, given", template(`"[Observation masquée: résultat d’outil ancien ` +
			`(tool_call_id={tool_call_id}, outil={tool_name}, chars={original_chars})]"`), b2Sent, b2Masked},
		same("T14 an orphan", nil, oneTurnLater(read, resultMessage("call_0", long))),
		same("T14 an orphan result of a user's call", nil, oneTurnLater(`{"role":"user","tool_calls":[{"id":"call_1"}]}`,
			resultMessage("call_1", long))),
		same("T15 no tool_call_id", nil, oneTurnLater(read, `{"role":"tool","content":"`+long+`"}`)),
		same("T15 an empty tool_call_id", nil, oneTurnLater(rawCall(`{"id":""},{"id":"call_1"}`), resultMessage("", long))),
		same("T15 a tool_call_id that is not a string", nil, oneTurnLater(rawCall(`{"id":5},{"id":"call_1"}`),
			`{"role":"tool","tool_call_id":5,"content":"`+long+`"}`)),
		kept("T16 a list with an image", nil, `[{"type":"text","text":"`+long+
			`"},{"type":"image_url","image_url":{"url":"data:"}}]`),
		{"T16 a list of texts", nil, oneTurnLater(read, resultMessageOf("call_1", `[{"type":"text","text":"`+long+
			`"},{"type":"text","text":"more"}]`)),
			oneTurnLater(read, resultMessageOf("call_1", `[{"type":"text","text":"`+placeholder("call_1", "read", 504)+
				`"},{"type":"text","text":"…"}]`))},
		kept("T16 null", nil, `null`),
		kept("T16 an object", nil, `{"text":"`+long+`"}`),
		kept("T16 a number", nil, `12345678901234567890`),
		same("T16 no content", nil, oneTurnLater(read, `{"role":"tool","tool_call_id":"call_1"}`)),
		kept("T17 an error", nil, `"Traceback (most recent call last): x"`),
		kept("T17 an error by default", []string{"window_turns 1"}, `"Traceback (most recent call last): x"`),
		old("T17 an error with keep_errors false", keepNoErrors, `"Traceback (most recent call last): x"`, 36),
		old("T17 an error with keep_errors off", []string{"window_turns 1", "keep_errors off"},
			`"Traceback (most recent call last): x"`, 36),
		old("T17 JSON that says error with keep_errors false", keepNoErrors, `"{\"error\":1}"`, 11),
		kept("T17 a failure with keep_errors precise", precisely,
			`"Traceback (most recent call last):\n  File \"a\", line 1\nValueError: x"`),
		kept("T17 an exit code with keep_errors precise", precisely, `"`+long+`\nexit code: 2"`),
		kept("T17 JSON that says error with keep_errors precise", precisely, `"{\"error\":1}"`),
		old("T17 JSON without an error with keep_errors precise", precisely, `"{\"error\":null}"`, 14),
		old("T17 a mention with keep_errors precise", precisely, `"def f():\n    raise Exception(1)\n\nf()"`, 36),
		kept("T18 traceback", nil, `"… a TRACEBACK …"`),
		kept("T18 exception", nil, `"java.lang.RuntimeException"`),
		kept("T18 timeout", nil, `"Timeout!"`),
		kept("T18 connect_error", nil, `"E_CONNECT_ERROR"`),
		kept("T18 connection refused", nil, `"dial: Connection Refused"`),
		kept("T18 error at the start", nil, `"Error: no such file"`),
		kept("T18 error at the start of a line", nil, `"reading\nERROR no such file"`),
		kept("T18 error after CRLF", nil, `"reading\r\nerrors: 1"`),
		kept("T18 error after leading blanks", nil, `"reading\n \t error: 1"`),
		kept("T18 an error in escapes", nil, `"reading\u000a\u0045rr\u006fr: 1"`),
		kept("T18 a timeout in escapes", nil, `"\u0054ime\u006fut"`),
		old("T18 error within a line", nil, `"no error: 0 errors"`, 18),
		old("T18 error within a word", nil, `"terror\nmirror"`, 13),
		old("T18 the words apart", nil, `"time out, connection was refused, connect error"`, 47),
		old("T18 an escaped backslash before n", nil, `"a\\nerror"`, 8),
		kept("T19 error null", nil, `"{\"error\":null}"`),
		kept("T19 status ERROR after blanks", nil, `"  {\"status\":\"ERROR\"}"`),
		kept("T19 an error after white space", nil, `"\r\n\t {\"a\":[1],\"error\":{}}"`),
		kept("T19 broken JSON that says error", nil, `"{\"error\": broken"`),
		kept("T19 a broken list that says error", nil, `"[{\"error\": 1}, broken"`),
		kept("T19 a key in escapes", nil, `"{\"\\u0065rror\":1}"`),
		kept("T19 the last of two statuses", nil, `"{\"status\":\"ok\",\"status\":\"ERROR\"}"`),
		old("T19 another object", nil, `"{\"result\":1}"`, 12),
		old("T19 a list", nil, `"[1,2]"`, 5),
		old("T19 a list with an error in it", nil, `"[{\"error\":1}]"`, 13),
		old("T19 an error further inside", nil, `"{\"a\":{\"error\":1}}"`, 17),
		old("T19 another status", nil, `"{\"status\":\"errors\"}"`, 19),
		old("T19 a status that is not a string", nil, `"{\"status\":[\"error\"]}"`, 20),
		old("T19 error as a value", nil, `"{\"kind\":\"error\"}"`, 16),
		old("T19 a text that says error", nil, `"he said \"error\""`, 15),
		old("T19 broken JSON that says nothing", nil, `"{\"result\": broken"`, 17),
		{"T20 off by default", nil, turns(4, 0, 500), turns(4, 3, 500)},
		{"T20 zero is off", keepLast("0"), turns(4, 0, 500), turns(4, 3, 500)},
		{"T20 negative is off", keepLast("-1"), turns(4, 0, 500), turns(4, 3, 500)},
		{"T20 the last of each tool, including the window", keepLast("1"), turns(4, 0, 500), turns(4, 2, 500)},
		{"T20 the last two of each tool", keepLast("2"), turns(7, 0, 500), turns(7, 3, 500)},
		{"T20 in addition to the window", []string{"window_turns 3", "keep_last_k_per_tool 1"}, turns(6, 0, 500),
			turns(6, 3, 500)},
		{"T20 errors count", keepLast("1"),
			conversation(read, resultMessage("call_1", long), callsMessage("call_2 read"), resultMessage("call_2", "Traceback"),
				callsMessage("call_3 grep"), resultMessage("call_3", long)),
			conversation(read, resultMessage("call_1", masked("call_1")), callsMessage("call_2 read"),
				resultMessage("call_2", "Traceback"), callsMessage("call_3 grep"), resultMessage("call_3", long))},
		{"T20 results that are not text count", keepLast("1"),
			conversation(read, resultMessage("call_1", long), callsMessage("call_2 read"), resultMessageOf("call_2", "[]"),
				callsMessage("call_3 grep"), resultMessage("call_3", long)),
			conversation(read, resultMessage("call_1", masked("call_1")), callsMessage("call_2 read"),
				resultMessageOf("call_2", "[]"), callsMessage("call_3 grep"), resultMessage("call_3", long))},
		{"T21 a tool without a name", keepLast("5"), oneTurnLater(rawCall(`{"id":"call_1"}`), resultMessage("call_1", long)),
			oneTurnLater(rawCall(`{"id":"call_1"}`), resultMessage("call_1", placeholder("call_1", "inconnu", 500)))},
		same("T22 an id reused in the window", nil,
			conversation(read, resultMessage("call_1", long), read, resultMessage("call_1", "another"))),
		{"T22 an id used twice before the window", nil,
			oneTurnLater(read, resultMessage("call_1", long), callsMessage("call_1 grep"), resultMessage("call_1", "another")),
			oneTurnLater(read, resultMessage("call_1", placeholder("call_1", "grep", 500)), callsMessage("call_1 grep"),
				resultMessage("call_1", placeholder("call_1", "grep", 7)))},
		{"T22 two results of one call", nil, oneTurnLater(read, resultMessage("call_1", long),
			resultMessage("call_1", "more")),
			oneTurnLater(read, resultMessage("call_1", masked("call_1")),
				resultMessage("call_1", placeholder("call_1", "read", 4)))},
		{"T23 nothing else changes", nil,
			"\t{ \"model\" : \"m\\u006f\\/\" ,\n\"temperature\":1.0,\"seed\":12345678901234567890,\"top_p\":1E-0," +
				"\"logit_bias\":{\"b\":-0,\"a\":1e+2}," +
				`"tools":[{"function":{"parameters":{"z":1,"a":[],"é":"\u00e9","a":2}}}],"x":null,"messages"  :[` + read +
				` , { "content"   :  "` + long + `"  ,"role":"tool","tool_call_id":"call_1" , "n":1.50}` + "\r\n," +
				callsMessage("call_2 read") + `],"stream":false,"metadata":{"messages":[1]}}` + "\n\n",
			"\t{ \"model\" : \"m\\u006f\\/\" ,\n\"temperature\":1.0,\"seed\":12345678901234567890,\"top_p\":1E-0," +
				"\"logit_bias\":{\"b\":-0,\"a\":1e+2}," +
				`"tools":[{"function":{"parameters":{"z":1,"a":[],"é":"\u00e9","a":2}}}],"x":null,"messages"  :[` + read +
				` , { "content"   :  "` + masked("call_1") + `"  ,"role":"tool","tool_call_id":"call_1" , "n":1.50}` + "\r\n," +
				callsMessage("call_2 read") + `],"stream":false,"metadata":{"messages":[1]}}` + "\n\n"},
		{"T23 names in escapes", nil,
			strings.Replace(oneTurnLater(read, resultMessage("call_1", long)), `"role":"tool","tool_call_id"`,
				`"\u0072ole":"t\u006fol","tool\u005fcall_id"`, 1),
			strings.Replace(oneTurnLater(read, resultMessage("call_1", masked("call_1"))), `"role":"tool","tool_call_id"`,
				`"\u0072ole":"t\u006fol","tool\u005fcall_id"`, 1)},
		same("T23 names are case-sensitive", nil, strings.ReplaceAll(oneTurnLater(read, resultMessage("call_1", long)),
			`"role":"tool"`, `"Role":"tool"`)),
		{"T26 a request for a stream", nil, streamRequest(b2Sent), streamRequest(b2Masked)},
		same("T28 a placeholder stays", nil, b2Masked),
		same("T28 a placeholder stays under another template", template("<{tool_call_id}>"), b2Masked),
		same("T29 a body of another shape", nil, `{"prompt":"`+long+`","tool_call_id":"call_1"}`),
		same("T29 no messages", nil, `{"messages":[]}`),
		same("T31 no tools and odd white space", nil, " { \"messages\":[ "+chatMessage("user", long)+"\t,"+
			chatMessage("assistant", long)+" ] } \n"),

		{"T35 results shorter than min_mask_chars", []string{"window_turns 1", "min_mask_chars 800"},
			oneTurnLater(callsMessage("call_1 read", "call_2 read"), resultMessage("call_1", strings.Repeat("é", 799)),
				resultMessage("call_2", strings.Repeat("é", 800))),
			oneTurnLater(callsMessage("call_1 read", "call_2 read"), resultMessage("call_1", strings.Repeat("é", 799)),
				resultMessage("call_2", placeholder("call_2", "read", 800)))},
		{"T37 tools that are excluded", []string{"window_turns 1", "exclude_tools plan read*", "exclude_tools *_todo"},
			oneTurnLater(callsMessage("a plan", "b planner", "c read", "d read_file", "e get_todo", "f grep"),
				resultMessage("a", long), resultMessage("b", long), resultMessage("c", long), resultMessage("d", long),
				resultMessage("e", long), resultMessage("f", long)),
			oneTurnLater(callsMessage("a plan", "b planner", "c read", "d read_file", "e get_todo", "f grep"),
				resultMessage("a", long), resultMessage("b", placeholder("b", "planner", 500)),
				resultMessage("c", long), resultMessage("d", long), resultMessage("e", long),
				resultMessage("f", placeholder("f", "grep", 500)))},
		{"T37 excluded tools with keep_last_k_per_tool", []string{"window_turns 1", "exclude_tools read",
			"keep_last_k_per_tool 1"}, turns(5, 0, 500),
			strings.Replace(turns(5, 0, 500), resultMessage("call_2", long),
				resultMessage("call_2", placeholder("call_2", "grep", 500)), 1)},
	}
	chat := new(mcptest.Chat)
	address := upstream(t, chat)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.lines == nil {
				tt.lines = []string{"window_turns 1", "keep_errors on"}
			}
			url := serve(t, block("tool_result_mask /chat/completions", tt.lines...), proxy(address))
			expectSent(t, chat, url+"/chat/completions", tt.sent, tt.want)
		})
	}
}

// streamRequest returns a request for a streamed response.
func streamRequest(body string) string { return strings.Replace(body, "{", `{"stream":true,`, 1) }

// Ids and names with other characters than plain letters appear correctly in the placeholder.
func TestConversationNames(t *testing.T) {
	isolate(t)
	chat := new(mcptest.Chat)
	url := serve(t, windowOfOne, proxy(upstream(t, chat)))
	for _, tt := range []struct {
		name             string
		call, answer     string // ids as JSON
		tool             string // name as JSON
		wantID, wantTool string
	}{
		{"T11 quotes and backslashes", `"a\"b\\c"`, `"a\"b\\c"`, `"r\"\\d"`, `a"b\c`, `r"\d`},
		{"T11 control characters", `"a\n\u0001"`, `"a\n\u0001"`, `"r\t"`, "a\n\x01", "r\t"},
		{"T11 an id with two spellings", `"call_1"`, `"c\u0061ll\u005f1"`, `"read"`, "call_1", "read"},
		{"T11 a name in escapes", `"call_1"`, `"call_1"`, `"\u006c\u00e9s"`, "call_1", "lés"},
		{"T11 names that look like variables", `"{tool_name}"`, `"{tool_name}"`, `"{original_chars}"`, "{tool_name}",
			"{original_chars}"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			call := `{"role":"assistant","tool_calls":[{"id":` + tt.call + `,"function":{"name":` + tt.tool + `}}]}`
			sent := oneTurnLater(call, `{"role":"tool","tool_call_id":`+tt.answer+`,"content":"`+thousand+`"}`)
			got := receivedByModel(t, chat, request(t, t.Context(), "POST", url, sent)).Body
			var body struct {
				Messages []struct{ Content *string }
			}
			if err := json.Unmarshal([]byte(got), &body); err != nil {
				t.Fatalf("%v: %s", err, got)
			}
			same(t, *body.Messages[1].Content, placeholder(tt.wantID, tt.wantTool, 1000))
			if call, rest, _ := strings.Cut(got, thousand); rest != "" || !strings.HasPrefix(sent,
				call[:strings.Index(call, "[Observation")]) {
				t.Errorf("changed elsewhere: %s", got)
			}
		})
	}
}

func TestPlaceholderIsShort(t *testing.T) {
	isolate(t)
	chat := new(mcptest.Chat)
	url := serve(t, windowOfOne, proxy(upstream(t, chat)))
	id, tool := strings.Repeat("i", 30), strings.Repeat("t", 30)
	got := receivedByModel(t, chat, request(t, t.Context(), "POST", url, oneTurnLater(callsMessage(id+" "+tool),
		resultMessage(id, thousand)))).Body
	_, rest, _ := strings.Cut(got, "[Observation")
	text, _, _ := strings.Cut(rest, "]")
	if n := utf8.RuneCountInString("[Observation" + text + "]"); n > 160 || !strings.Contains(text, id) ||
		!strings.Contains(text, tool) {
		t.Errorf("T30 got %d characters: %s", n, text)
	}
}

// Other requests with bodies that look like model requests are unchanged (T29).
func TestOtherRequests(t *testing.T) {
	isolate(t)
	chat := new(mcptest.Chat)
	url := serve(t, block("tool_result_mask /chat/completions", "window_turns 1"), proxy(upstream(t, chat)))
	for _, tt := range []struct {
		name, method, path, contentType string
		want                            string
	}{
		{"T29 GET", "GET", "/chat/completions", "application/json", b2Sent},
		{"T29 PUT", "PUT", "/chat/completions", "application/json", b2Sent},
		{"T29 another path", "POST", "/v2/chat/completions", "application/json", b2Sent},
		{"T29 text", "POST", "/chat/completions", "text/plain", b2Sent},
		{"T29 a form", "POST", "/chat/completions", "multipart/form-data; boundary=x", b2Sent},
		{"T29 JSON with parameters", "POST", "/chat/completions", "Application/JSON; charset=utf-8", b2Masked},
		{"T29 a kind of JSON", "POST", "/chat/completions", "application/vnd.x+json", b2Masked},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req := request(t, t.Context(), tt.method, url+tt.path, b2Sent, "Content-Type: "+tt.contentType)
			same(t, receivedByModel(t, chat, req).Body, tt.want)
		})
	}
}

// A chatFormat is a format of requests to models. Its conversations have two turns, each with one
// call of fast_read_file. The first result has 1000 characters, and is masked in a window of one
// turn.
type chatFormat struct {
	name, path   string
	sent, masked string
	writesCache  bool // its usage includes cache writes
}

// anthropicConversation returns a conversation of two turns in Anthropic's format, with this
// content of the first result.
func anthropicConversation(content string, members ...string) string {
	old := strings.Join(append([]string{`"type":"tool_result"`, `"tool_use_id":"call_1"`, `"content":` + content},
		members...), ",")
	return `{"model":"m","max_tokens":1024,"system":[{"type":"text","text":"be brief",` +
		`"cache_control":{"type":"ephemeral"}}],"messages":[` +
		`{"role":"user","content":"go"},` +
		`{"role":"assistant","content":[{"type":"text","text":"reading"},{"type":"tool_use","id":"call_1",` +
		`"name":"fast_read_file","input":{"n":1.0,"content":"kept"}}]},` +
		`{"role":"user","content":[{"type":"text","text":"first"},{` + old + `},{"type":"text","text":"and now?"}]},` +
		`{"role":"assistant","content":[{"type":"tool_use","id":"call_2","name":"fast_read_file","input":{}}]},` +
		`{"role":"user","content":[{"type":"tool_result","tool_use_id":"call_2","content":"OK",` +
		`"cache_control":{"type":"ephemeral"}}]}]}`
}

// responsesConversation is the same in the format of OpenAI's Responses API.
func responsesConversation(output string) string {
	return `{"model":"m","prompt_cache_key":"k","input":[{"role":"user","content":"go"},` +
		`{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"x"},` +
		`{"type":"function_call","id":"fc_1","call_id":"call_1","name":"fast_read_file","arguments":"{\"n\":1.0}"},` +
		`{"type":"function_call_output","call_id":"call_1","output":` + output + `,"status":"completed"},` +
		`{"type":"message","role":"assistant","content":[{"type":"output_text","text":"reading on"}]},` +
		`{"type":"function_call","call_id":"call_2","name":"fast_read_file","arguments":"{}"},` +
		`{"type":"function_call_output","call_id":"call_2","output":"OK"}]}`
}

var chatFormats = func() []chatFormat {
	old, gone := quote(thousand), quote(placeholder("call_1", "fast_read_file", 1000))
	return []chatFormat{
		{"chat completions", "/v1/chat/completions", b2Sent, b2Masked, false},
		{"messages", "/v1/messages", anthropicConversation(old), anthropicConversation(gone), true},
		{"responses", "/v1/responses", responsesConversation(old), responsesConversation(gone), false},
	}
}()

// The two formats besides chat completions are masked (T36).
func TestFormats(t *testing.T) {
	isolate(t)
	text := func(kind, text, more string) string {
		return `{"type":"` + kind + `","text":"` + text + `"` + more + `}`
	}
	gone := placeholder("call_1", "fast_read_file", 1000)
	half := strings.Repeat("é", 500)
	const cache = `,"cache_control":{"type":"ephemeral"}`
	image := `{"type":"image","source":{"type":"base64","media_type":"image/png","data":"` + thousand + `"}}`
	use := func(id string) string { return `{"type":"tool_use","id":"` + id + `","name":"read","input":{}}` }
	result := func(id, text string) string {
		return `{"type":"tool_result","tool_use_id":"` + id + `","content":"` + text + `"}`
	}
	say := func(role string, blocks ...string) string {
		return `{"role":"` + role + `","content":[` + strings.Join(blocks, ",") + `]}`
	}
	call := func(id string) string {
		return `{"type":"function_call","call_id":"` + id + `","name":"read","arguments":"{}"}`
	}
	output := func(id, text string) string {
		return `{"type":"function_call_output","call_id":"` + id + `","output":"` + text + `"}`
	}
	input := func(items ...string) string { return `{"input":[` + strings.Join(items, ",") + `]}` }

	type row struct{ name, lines, sent, want string }
	same := func(name, lines, sent string) row { return row{name, lines, sent, sent} }
	tests := []row{
		same("T36 messages in the window", "window_turns 2", anthropicConversation(`"`+thousand+`"`)),
		{"T36 messages, a list of one text", "", anthropicConversation(`[` + text("text", thousand, cache) + `]`),
			anthropicConversation(`[` + text("text", gone, cache) + `]`)},
		{"T36 messages, a list of several texts", "", anthropicConversation(`[`+text("text", half, "")+` , `+
			text("text", half, cache)+`]`, `"is_error":false`),
			anthropicConversation(`[`+text("text", gone, "")+` , `+text("text", "…", cache)+`]`, `"is_error":false`)},
		same("T36 messages, an image", "", anthropicConversation(`[`+text("text", thousand, "")+`,`+image+`]`)),
		same("T36 messages, an image first", "", anthropicConversation(`[`+image+`,`+text("text", thousand, "")+`]`)),
		same("T36 messages, an empty list", "", anthropicConversation(`[]`)),
		same("T36 messages, null", "", anthropicConversation(`null`)),
		same("T36 messages, a result that is an error", "", anthropicConversation(`"`+thousand+`"`, `"is_error":true`)),
		same("T36 messages, a result with is_error first", "", strings.Replace(anthropicConversation(`"`+thousand+`"`),
			`{"type":"tool_result",`, `{"is_error":true,"type":"tool_result",`, 1)),
		{"T36 messages, an error with keep_errors off", "keep_errors off", anthropicConversation(`"`+thousand+`"`,
			`"is_error":true`), anthropicConversation(`"`+gone+`"`, `"is_error":true`)},
		same("T36 messages, a text that looks like an error", "", anthropicConversation(`[`+text("text", thousand, "")+`,`+
			text("text", "Traceback", "")+`]`)),
		{"T36 messages, parallel calls", "",
			conversation(say("assistant", use("a"), use("b")), say("user", result("a", thousand), result("b", thousand)),
				say("assistant", use("c")), say("user", result("c", thousand))),
			conversation(say("assistant", use("a"), use("b")), say("user", result("a", placeholder("a", "read", 1000)),
				result("b", placeholder("b", "read", 1000))), say("assistant", use("c")), say("user", result("c", thousand)))},
		same("T36 messages, an orphan", "", conversation(say("assistant", use("a")), say("user", result("x", thousand)),
			say("assistant", use("c")), say("user", result("c", thousand)))),
		same("T36 messages, a result that the model wrote", "",
			conversation(say("assistant", use("a"), result("a", thousand)), say("assistant", use("c")),
				say("user", result("c", thousand)))),
		same("T36 responses in the window", "window_turns 2", responsesConversation(`"`+thousand+`"`)),
		{"T36 responses, a list of one text", "", responsesConversation(`[` + text("input_text", thousand, "") + `]`),
			responsesConversation(`[` + text("input_text", gone, "") + `]`)},
		{"T36 responses, a list of several texts", "", responsesConversation(`[` + text("input_text", half, "") + `,` +
			text("input_text", half, "") + `]`),
			responsesConversation(`[` + text("input_text", gone, "") + `,` + text("input_text", "…", "") + `]`)},
		same("T36 responses, an image", "", responsesConversation(`[`+text("input_text", thousand, "")+
			`,{"type":"input_image","image_url":"data:`+thousand+`"}]`)),
		same("T36 responses, a text that looks like an error", "", responsesConversation(`"Error: `+thousand+`"`)),
		{"T36 responses, parallel calls", "",
			input(call("a"), call("b"), output("a", thousand), output("b", thousand), call("c"), output("c", thousand)),
			input(call("a"), call("b"), output("a", placeholder("a", "read", 1000)),
				output("b", placeholder("b", "read", 1000)), call("c"), output("c", thousand))},
		same("T36 responses, parallel calls with text between them", "",
			input(call("a"), `{"type":"message","role":"assistant","content":[]}`, `{"type":"reasoning","summary":[]}`,
				call("b"), output("a", thousand), output("b", thousand))),
		{"T36 responses, calls one after the other", "",
			input(call("a"), output("a", thousand), call("b"), output("b", thousand)),
			input(call("a"), output("a", placeholder("a", "read", 1000)), call("b"), output("b", thousand))},
		same("T36 responses, an orphan", "", input(output("x", thousand), call("b"), output("b", thousand))),
		same("T36 responses, a text", "", `{"model":"m","input":"`+thousand+`"}`),
	}
	for _, f := range chatFormats {
		tests = append(tests, row{"T36 " + f.name, "", f.sent, f.masked},
			row{"T36 " + f.name + " detected by the body", "", streamRequest(f.sent), streamRequest(f.masked)},
			same("T28 "+f.name+", a placeholder stays", "", f.masked),
			same("T35 "+f.name+", too short to be masked", "min_mask_chars 1001", f.sent),
			same("T37 "+f.name+", an excluded tool", "exclude_tools fast_*", f.sent),
			same("T20 "+f.name+", one of the last two", "keep_last_k_per_tool 2", f.sent),
			row{"T20 " + f.name + ", not the last one", "keep_last_k_per_tool 1", f.sent, f.masked},
			row{"T32 " + f.name + ", a step of one turn", "step_turns 1", f.sent, f.masked},
			same("T32 "+f.name+", a step of two turns", "step_turns 2", f.sent),
			row{"T33 " + f.name + ", exactly clear_at_least", "clear_at_least 250", f.sent, f.masked},
			same("T33 "+f.name+", less than clear_at_least", "clear_at_least 251", f.sent),
		)
	}
	chat := new(mcptest.Chat)
	address := upstream(t, chat)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			window := "window_turns 1"
			if strings.HasPrefix(tt.lines, "window_turns") {
				window = ""
			}
			url := serve(t, conversationMask(window, tt.lines), proxy(address))
			expectSent(t, chat, url+"/v1/any", tt.sent, tt.want)
		})
	}
}

// The boundary moves at the expected turns of a growing conversation. Results have 20000
// characters, so that all else is negligible.
func TestSteps(t *testing.T) {
	isolate(t)
	const size = 20000
	for _, tt := range []struct {
		name  string
		lines []string
		steps []int // turns at which the boundary moves
		last  int
	}{
		{"T5 a sliding window", []string{"window_turns 2"}, []int{3, 4, 5, 6}, 6},
		{"T32 steps of one turn", []string{"window_turns 2", "step_turns 1"}, []int{3, 4, 5, 6}, 6},
		{"T32 steps of four turns", []string{"window_turns 1", "step_turns 4"}, []int{5, 9, 13}, 14},
		{"T32 steps of four turns behind a window of three", []string{"window_turns 3", "step_turns 4"}, []int{7, 11}, 14},
		{"T33 two results at once", []string{"window_turns 1", "clear_at_least 10000"}, []int{3, 5, 7}, 8},
		{"T33 a little more than two results at once", []string{"window_turns 1", "clear_at_least 10001"}, []int{4, 7}, 8},
		{"T33 two results at once, in steps of three turns", []string{"window_turns 1", "clear_at_least 10000",
			"step_turns 3"}, []int{4, 7}, 9},
		{"T33 four results at once, in steps of three turns", []string{"window_turns 1", "clear_at_least 20000",
			"step_turns 3"}, []int{7, 13}, 14},
		// With a window of one there is nothing between the masked and the new results: masking costs
		// less than reading them once more.
		{"T33 auto behind a window of one", []string{"window_turns 1", "clear_at_least auto"}, []int{2, 3, 4, 5, 6}, 6},
		{"T33 auto at prices ten times as high", []string{"window_turns 1", "clear_at_least auto", "cache_prices 1 12.5"},
			[]int{2, 3, 4, 5, 6}, 6},
		{"T33 auto behind a window of four", []string{"window_turns 4", "clear_at_least auto"}, []int{20}, 21},
		{"T33 auto that may lose more", []string{"window_turns 4", "clear_at_least auto", "max_loss 100%"}, []int{14}, 21},
		{"T33 auto where the cache saves half", []string{"window_turns 4", "clear_at_least auto", "cache_prices 0.5 1"},
			[]int{6, 8, 10, 11, 12}, 12},
	} {
		for format, turns := range map[string]func(n, masked, size int) string{"": turns, " in messages": anthropicTurns,
			" in responses": responsesTurns} {
			if strings.HasPrefix(tt.name, "T33 auto") && format == " in messages" {
				continue // they mark nothing for caching, and slide: TestRequestsWithoutMarks
			}
			t.Run(tt.name+format, func(t *testing.T) {
				chat := new(mcptest.Chat)
				url := serve(t, conversationMask(tt.lines...), proxy(upstream(t, chat)))
				var bodies []string
				for n := range tt.last + 1 {
					bodies = append(bodies, turns(n, 0, size))
				}
				stepped := sendGrowing(t, chat, url, bodies)
				if !slices.Equal(stepped, tt.steps) {
					t.Fatalf("got steps at turns %v, want %v", stepped, tt.steps)
				}
				// The last step has masked everything outside of its window.
				window, every, last := 0, 1, stepped[len(stepped)-1]
				for _, line := range tt.lines {
					_, _ = fmt.Sscanf(line, "window_turns %d", &window)
					_, _ = fmt.Sscanf(line, "step_turns %d", &every)
				}
				same(t, chat.Last().Body, turns(tt.last, (last-window)/every*every, size))
			})
		}
	}
}

// sendGrowing sends the requests of a growing conversation and returns at which of them the bytes
// sent before changed. These must be the ones counted as breaks (T34, T38).
func sendGrowing(t *testing.T, chat *mcptest.Chat, url string, bodies []string) (stepped []int) {
	t.Helper()
	before := ""
	for n, body := range bodies {
		grown := growth(t)
		got := receivedByModel(t, chat, request(t, t.Context(), "POST", url, body)).Body
		broken := !strings.HasPrefix(got, before)
		if broken {
			stepped = append(stepped, n)
		}
		if counted := grown()["prompt_prefix_breaks_total"]; counted != map[bool]float64{true: 1}[broken] {
			t.Errorf("request %d: broken %t, but %v breaks counted", n, broken, counted)
		}
		if again := receivedByModel(t, chat, request(t, t.Context(), "POST", url, body)).Body; again != got {
			t.Errorf("request %d: the masked request differs", n)
		}
		before = strings.TrimSuffix(got, "]}")
	}
	return stepped
}

// irregularConversation returns the requests of a conversation of n turns, in which later turns
// could change earlier decisions: results differ in size and tool, some are errors, some come late,
// ids are reused, and every third turn makes two calls.
func irregularConversation(n int) (bodies []string) {
	messages := []string{chatMessage("system", "be brief"), chatMessage("user", "go")}
	for i := 1; i <= n; i++ {
		bodies = append(bodies, conversation(messages...))
		if i%2 == 1 {
			messages = append(messages, chatMessage("assistant", "done"), chatMessage("user", "go on"))
			bodies = append(bodies, conversation(messages...))
		}
		id, tool := fmt.Sprintf("call_%d", i%17), fmt.Sprintf("tool_%d", i*i%5)
		text := strings.Repeat("é\n", i*37%400)
		if i%7 == 3 {
			text = "Traceback: " + text
		}
		if i%3 == 0 {
			messages = append(messages, callsMessage(id+" "+tool, id+"b read"), resultMessage(id+"b", text))
		} else {
			messages = append(messages, callsMessage(id+" "+tool))
		}
		messages = append(messages, resultMessage(id, text))
		if i%6 == 5 {
			messages = append(messages, resultMessage(fmt.Sprintf("call_%d", i-4), "late "+text))
		}
	}
	return append(bodies, conversation(messages...))
}

// Except at a step, the bytes of one turn begin with the bytes of the turn before (T34).
func TestGrowingConversation(t *testing.T) {
	isolate(t)
	const last = 40
	for _, tt := range []struct {
		name  string
		lines []string
		most  int // maximum number of steps
	}{
		{"T34 step_turns", []string{"step_turns 8"}, last / 8},
		{"T34 step_turns and keep_last_k_per_tool", []string{"step_turns 8", "keep_last_k_per_tool 2"}, last / 8},
		{"T34 step_turns, min_mask_chars and exclude_tools", []string{"step_turns 8", "min_mask_chars 300",
			"exclude_tools tool_1"}, last / 8},
		{"T34 clear_at_least", []string{"clear_at_least 1000"}, last / 4},
		{"T34 clear_at_least and keep_last_k_per_tool", []string{"clear_at_least 1000", "keep_last_k_per_tool 2"}, last / 4},
		{"T34 clear_at_least auto and everything else", []string{"clear_at_least auto", "max_loss 100%",
			"cache_prices 0.5 1", "step_turns 2", "keep_last_k_per_tool 1", "min_mask_chars 100", "keep_errors off"}, last / 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			chat := new(mcptest.Chat)
			url := serve(t, conversationMask(append(tt.lines, "window_turns 4")...), proxy(upstream(t, chat)))
			stepped := sendGrowing(t, chat, url, irregularConversation(last))
			if len(stepped) == 0 || len(stepped) > tt.most {
				t.Errorf("got steps at turns %v", stepped)
			}
		})
	}
}

// If a request passes two masks, the second changes nothing (T28).
func TestConversationsInChains(t *testing.T) {
	isolate(t)
	for _, tt := range []struct {
		name  string
		lines []string
	}{
		{"T28 defaults", []string{"window_turns 1"}},
		{"T28 errors are masked, too", []string{"window_turns 2", "keep_errors off"}},
		{"T28 a custom template", []string{"window_turns 1", `placeholder_template "<{tool_call_id} {original_chars}>"`}},
		{"T28 a template with the word error", []string{"window_turns 1", `placeholder_template "error {tool_call_id}"`}},
		{"T28 keep_last_k_per_tool", []string{"window_turns 1", "keep_last_k_per_tool 1"}},
		{"T28 steps", []string{"window_turns 1", "step_turns 4"}},
		{"T28 clear_at_least", []string{"window_turns 1", "clear_at_least 400"}},
		{"T28 auto", []string{"window_turns 2", "clear_at_least auto"}},
		{"T28 min_mask_chars", []string{"window_turns 1", "min_mask_chars 200"}},
		{"T28 recover", []string{"window_turns 1", "recover on"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			chat := new(mcptest.Chat)
			once, twice := freeAddress(t), freeAddress(t)
			hop := site(once, conversationMask(tt.lines...), proxy(upstream(t, chat)))
			for _, chain := range []struct{ name, caddyfile string }{
				{"two hops", site(twice, conversationMask(tt.lines...), proxy(once))},
				{"twice in a row", site(twice, block("route", conversationMask(tt.lines...), conversationMask(tt.lines...),
					proxy(upstream(t, chat))))},
			} {
				load(t, hop+chain.caddyfile)
				for n, sent := range irregularConversation(30) {
					want := receivedByModel(t, chat, request(t, t.Context(), "POST", "http://"+once, sent)).Body
					if got := receivedByModel(t, chat, request(t, t.Context(), "POST", "http://"+twice, sent)).Body; got != want {
						t.Errorf("%s, request %d:", chain.name, n)
						same(t, got, want)
					}
				}
			}
		})
	}
}

// Concurrent requests do not mix (T27).
func TestManyConversationsAtOnce(t *testing.T) {
	isolate(t)
	chat := new(mcptest.Chat)
	url := serve(t, windowOfOne, proxy(upstream(t, chat)))
	const clients = 200
	var want []string
	done := make(chan error, clients)
	for i := range clients {
		id, text := fmt.Sprintf("call_of_%d", i), strings.Repeat(string(rune('A'+i%26)), 1+i*i)
		body := func(old string) string {
			return oneTurnLater(chatMessage("user", id), callsMessage(id+" tool_"+id), resultMessage(id, old))
		}
		want = append(want, body(placeholder(id, "tool_"+id, len(text))))
		go func() {
			res, err := client.Post(url, "application/json", strings.NewReader(body(text)))
			if err == nil {
				res.Body.Close()
				if res.StatusCode != http.StatusOK {
					err = fmt.Errorf("request %d: %s", i, res.Status)
				}
			}
			done <- err
		}()
	}
	for range clients {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	var got []string
	for _, r := range chat.Requests() {
		got = append(got, r.Body)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		for i := range min(len(got), len(want)) {
			same(t, got[i], want[i])
		}
		t.Errorf("T27 %d requests arrived", len(got))
	}
}

// A wireFormat is a format that mcptest.Chat does not support. sent and masked are as in
// chatFormat; answer and stream are the responses of the model.
type wireFormat struct {
	name           string
	path, streamed string
	sent, masked   string
	answer, stream string
	streamType     string
	usage          map[string]int
}

// geminiConversation returns a conversation of two turns in Gemini's format.
func geminiConversation(response string, wrap bool) string {
	call := `{"role":"model","parts":[{"text":"reading"},{"functionCall":{"name":"fast_read_file","args":{"n":1.0}},` +
		`"thoughtSignature":"x"}]}`
	answer := func(id, response string) string {
		return `{"role":"user","parts":[{"functionResponse":{"id":"` + id + `","name":"fast_read_file","response":` +
			response + `}}]}`
	}
	contents := `{"contents":[{"role":"user","parts":[{"text":"go"}]},` + call + `,` + answer("made_1", response) + `,` +
		call + `,` +
		answer("made_2", `{"output":"OK"}`) + `],"generationConfig":{"temperature":1.0}}`
	if wrap {
		return `{"model":"m","project":"p","request":` + contents + `}`
	}
	return contents
}

// ollamaConversation is the same in Ollama's format, and bedrockConversation in that of Bedrock.
func ollamaConversation(text string) string {
	call := `{"role":"assistant","content":"","tool_calls":[{"function":{"name":"fast_read_file","arguments":{"n":1.0}}}]}`
	answer := func(text string) string {
		return `{"role":"tool","tool_name":"fast_read_file","content":"` + text + `"}`
	}
	return `{"model":"m","messages":[{"role":"user","content":"go"},` + call + `,` + answer(text) + `,` + call + `,` +
		answer("OK") + `],"keep_alive":"5m"}`
}

func bedrockConversation(content string, members ...string) string {
	call := func(id string) string {
		return `{"role":"assistant","content":[{"text":"reading"},{"toolUse":{"toolUseId":"` + id +
			`","name":"fast_read_file","input":{"n":1.0}}}]}`
	}
	answer := func(id, content string, members ...string) string {
		result := strings.Join(append([]string{`"toolUseId":"` + id + `"`, `"content":` + content}, members...), ",")
		return `{"role":"user","content":[{"toolResult":{` + result + `}},{"cachePoint":{"type":"default"}}]}`
	}
	return `{"messages":[{"role":"user","content":[{"text":"go"}]},` + call("call_1") + `,` + answer("call_1", content,
		members...) + `,` + call("call_2") + `,` +
		answer("call_2", `[{"text":"OK"}]`) + `],"inferenceConfig":{"maxTokens":10}}`
}

// awsEvent returns an AWS event without headers.
func awsEvent(text string) string {
	b := bits.BigEndian.AppendUint32(nil, uint32(16+len(text)))
	b = bits.BigEndian.AppendUint32(b, 0)
	b = bits.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	b = append(b, text...)
	return string(bits.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b)))
}

var wireFormats = func() []wireFormat {
	numbered := placeholder("fast_read_file#1", "fast_read_file", 1000)
	output := func(text string) string { return `{"output":"` + text + `"}` }
	texts := func(text string) string { return `[{"text":"` + text + `"}]` }
	const (
		metadata = `"usageMetadata":{"promptTokenCount":1000,"cachedContentTokenCount":800,"candidatesTokenCount":15,` +
			`"thoughtsTokenCount":5}`
		done       = `{"message":{"role":"assistant","content":"ok"},"done":true,"prompt_eval_count":1000,"eval_count":20}`
		tokens     = `"usage":{"inputTokens":100,"outputTokens":20,"cacheReadInputTokens":800,"cacheWriteInputTokens":100}`
		said       = `"candidates":[{"content":{"role":"model","parts":[{"text":"ok"}]}}]`
		events     = "text/event-stream"
		codeAssist = "/v1internal"
	)
	cached := map[string]int{"input": 1000, "cached": 800, "output": 20}
	return []wireFormat{
		{"Gemini", "/v1beta/models/m:generateContent", "/v1beta/models/m:streamGenerateContent?alt=sse",
			geminiConversation(output(thousand), false), geminiConversation(output(numbered), false),
			`{` + said + `,` + metadata + `}`, "data: {" + said + "}\r\n\r\ndata: {" + metadata + "}\r\n\r\n", events, cached},
		{"Gemini in a list", "/v1beta/models/m:generateContent", "/v1beta/models/m:streamGenerateContent",
			geminiConversation(output(thousand), false), geminiConversation(output(numbered), false),
			`{` + metadata + `}`, "[{" + said + "}\r\n,\r\n{" + metadata + "}]", "application/json", cached},
		{"Code Assist", codeAssist + ":generateContent", codeAssist + ":streamGenerateContent?alt=sse",
			geminiConversation(output(thousand), true), geminiConversation(output(numbered), true),
			`{"response":{` + metadata + `}}`, "data: {\"response\":{" + metadata + "}}\n\n", events, cached},
		{"Ollama", "/api/chat", "/api/chat", ollamaConversation(thousand), ollamaConversation(numbered),
			done, `{"message":{"content":"o"},"done":false}` + "\n" + done + "\n", "application/x-ndjson",
			map[string]int{"input": 1000, "output": 20}},
		{"Converse", "/model/m/converse", "/model/m/converse-stream", bedrockConversation(texts(thousand)),
			bedrockConversation(texts(placeholder("call_1", "fast_read_file", 1000))),
			`{"output":{"message":{"role":"assistant","content":[{"text":"ok"}]}},` + tokens + `}`,
			awsEvent(`{"delta":{"text":"ok"}}`) + awsEvent(`{`+tokens+`}`),
			"application/vnd.amazon.eventstream", map[string]int{"input": 1000, "cached": 800, "cache_write": 100,
				"output": 20}},
	}
}()

// Formats that only their own clients use are masked and counted, streaming or not (T36, T38).
func TestWires(t *testing.T) {
	isolate(t)
	for _, tt := range wireFormats {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("T36 %s, stream %t", tt.name, stream), func(t *testing.T) {
				path, answer, contentType := tt.path, tt.answer, "application/json"
				if stream {
					path, answer, contentType = tt.streamed, tt.stream, tt.streamType
				}
				got := make(chan string, 2)
				address := upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					body, _ := io.ReadAll(r.Body)
					got <- string(body)
					w.Header().Set("Content-Type", contentType)
					_, _ = io.WriteString(w, answer)
				}))
				url := serve(t, conversationMask("window_turns 1", "route wires"), proxy(address))
				client := sequentialClient(t)
				for _, sent := range []string{tt.sent, tt.masked} {
					grown := growth(t)
					if response := send(t, client, "POST", url+path, sent).body; response != answer {
						t.Errorf("got response %q", response)
					}
					same(t, <-got, tt.masked)
					send(t, client, "GET", url, "") // so that the request is counted
					<-got
					want := map[string]float64{}
					for kind, n := range tt.usage {
						want[fmt.Sprintf(`usage_tokens_total{route="wires",type=%q}`, kind)] = float64(n)
					}
					counted := grown()
					if sent == tt.sent && counted["tool_results_masked_total"] != 1 {
						t.Errorf("counted %v", counted)
					}
					maps.DeleteFunc(counted, func(sample string, _ float64) bool { return !strings.HasPrefix(sample, "usage_tokens") })
					if !maps.Equal(counted, want) {
						t.Errorf("counted %v, want %v", counted, want)
					}
				}
			})
		}
	}
}

// Results that are not just a text are masked.
func TestResultsOfWires(t *testing.T) {
	isolate(t)
	numbered := func(n int) string { return placeholder("fast_read_file#1", "fast_read_file", n) }
	gone := func(n int) string { return placeholder("call_1", "fast_read_file", n) }
	object := `{"stdout":"` + thousand + `" , "code":0}`
	item := func(call, output string) string {
		return `{"input":[{"role":"user","content":"go"},` + call + `,` + output +
			`,{"type":"function_call","call_id":"call_2","name":"read"},` +
			`{"type":"function_call_output","call_id":"call_2","output":"OK"}]}`
	}
	shell := func(streams string) string {
		return item(`{"type":"shell_call","call_id":"call_1","action":{"commands":["ls"]}}`,
			`{"type":"shell_call_output","call_id":"call_1","output":[`+streams+`]}`)
	}
	patch := func(output, status string) string {
		return item(`{"type":"apply_patch_call","call_id":"call_1","operation":{}}`,
			`{"type":"apply_patch_call_output","call_id":"call_1","status":"`+status+`","output":"`+output+`"}`)
	}
	local := func(output string) string {
		return item(`{"type":"local_shell_call","id":"l_1","call_id":"call_1","action":{}}`,
			`{"type":"local_shell_call_output","id":"call_1","output":"`+output+`"}`)
	}
	wrapped := func(output string) string {
		return item(`{"type":"function_call","call_id":"call_1","name":"fast_read_file"}`,
			`{"type":"function_call_output","call_id":"call_1","output":`+output+`}`)
	}
	unknown := item(`{"type":"function_call","call_id":"call_1","name":"fast_read_file"}`,
		`{"type":"new_call_output","call_id":"call_1","output":"`+thousand+`"}`)
	orphan := wrapped(`"` + thousand + `"`)
	orphan = strings.Replace(orphan, `_output","call_id":"call_1"`, `_output","call_id":"call_0"`, 1)
	exit := func(code string) string { return `"outcome":{"type":"exit","exit_code":` + code + `}` }

	type row struct{ name, lines, sent, want, unread string }
	same := func(name, sent, unread string) row { return row{name, "", sent, sent, unread} }
	for _, tt := range []row{
		{"T36 Gemini, an object", "", geminiConversation(object, false),
			geminiConversation(`{"output":"`+numbered(len(object))+`"}`, false), ""},
		same("T36 Gemini, an error", geminiConversation(`{"error":"no such file"}`, false), ""),
		{"T36 Gemini, an error with keep_errors off", "keep_errors off", geminiConversation(`{"error":"no such file"}`,
			false), geminiConversation(`{"error":"`+numbered(12)+`"}`, false), ""},
		same("T36 Gemini, an object with an error in its text", geminiConversation(`{"output":"Traceback","code":1}`, false),
			""),
		same("T36 Gemini, an image", strings.Replace(geminiConversation(`{"output":"x"}`, false),
			`"response":{"output":"x"}`, `"response":{"output":"x"},"parts":[{"inlineData":{"data":"AAAA"}}]`, 1), "not_text"),
		{"T36 Converse, JSON", "", bedrockConversation(`[{"json":` + object + `},{"text":"more"}]`),
			bedrockConversation(`[{"json":{"output":"` + gone(len(object)+4) + `"}},{"text":"…"}]`), ""},
		same("T36 Converse, an error", bedrockConversation(`[{"text":"`+thousand+`"}]`, `"status":"error"`), ""),
		same("T36 Converse, an image", bedrockConversation(`[{"text":"x"},{"image":{"format":"png",`+
			`"source":{"bytes":"AAAA"}}}]`), "not_text"),
		{"T36 Ollama, matched by order", "", strings.ReplaceAll(ollamaConversation(thousand),
			`"tool_name":"fast_read_file",`, ""), strings.ReplaceAll(ollamaConversation(numbered(1000)),
			`"tool_name":"fast_read_file",`, ""), ""},
		same("T36 Ollama, another tool", strings.ReplaceAll(ollamaConversation(thousand), `"tool_name":"fast_read_file",`,
			`"tool_name":"other",`), "no_call"),
		{"T36 responses, a shell", "", shell(`{"stderr":"b","stdout":"` + thousand + `",` + exit("0") + `}`),
			shell(`{"stderr":"…","stdout":"` + placeholder("call_1", "shell", 1001) + `",` + exit("0") + `}`), ""},
		same("T36 responses, a shell that failed", shell(`{"stdout":"`+thousand+`","stderr":"",`+exit("2")+`}`), ""),
		{"T36 responses, a local shell", "", local(thousand), local(placeholder("call_1", "local_shell", 1000)), ""},
		{"T36 responses, a patch", "", patch(thousand, "completed"), patch(placeholder("call_1", "apply_patch", 1000),
			"completed"), ""},
		same("T36 responses, a patch that failed", patch(thousand, "failed"), ""),
		{"T36 responses, an object", "", wrapped(`{"content":"` + thousand + `","success":true}`),
			wrapped(`{"content":"` + gone(1000) + `","success":true}`), ""},
		same("T36 responses, an object without success", wrapped(`{"content":"`+thousand+`","success":false}`), ""),
		same("T36 responses, an image", wrapped(`[{"type":"input_image","image_url":"data:"}]`), "not_text"),
		same("T36 responses, an unknown kind", unknown, "unknown_kind"),
		same("T36 responses, an orphan", orphan, "no_call"),
	} {
		t.Run(tt.name, func(t *testing.T) {
			chat := new(mcptest.Chat)
			url := serve(t, conversationMask("window_turns 1", tt.lines), proxy(upstream(t, chat)))
			grown := growth(t)
			expectSent(t, chat, url, tt.sent, tt.want)
			want := map[string]float64{}
			if tt.unread != "" {
				want[`tool_results_unread_total{reason="`+tt.unread+`"}`] = 1
			}
			unread := grown()
			maps.DeleteFunc(unread, func(sample string, _ float64) bool {
				return !strings.HasPrefix(sample, "tool_results_unread")
			})
			if !maps.Equal(unread, want) {
				t.Errorf("counted %v, want %v", unread, want)
			}
		})
	}
}

// Signed requests are unchanged, because the signature covers the body.
func TestSignedConversations(t *testing.T) {
	isolate(t)
	chat := new(mcptest.Chat)
	url := serve(t, windowOfOne, proxy(upstream(t, chat)))
	const signature = "Authorization: AWS4-HMAC-SHA256 Credential=x/20261117/us-east-1/bedrock/aws4_request, " +
		"SignedHeaders=host, Signature=x"
	sent := wireFormats[len(wireFormats)-1].sent
	for name, req := range map[string]struct{ query, header string }{
		"T24 signed in a header":                    {"", signature},
		"T24 signed in the query":                   {"?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Signature=x", ""},
		"T24 signed in the query, second parameter": {"?x=1&X-Amz-Signature=x", ""},
	} {
		t.Run(name, func(t *testing.T) {
			grown := growth(t)
			expectSent(t, chat, url+"/model/m/converse"+req.query, sent, sent, req.header)
			if n := grown()[`conversations_passed_total{reason="signed"}`]; n != 1 {
				t.Errorf("counted %v times", n)
			}
		})
	}
	expectSent(t, chat, url+"/model/m/converse", sent, wireFormats[len(wireFormats)-1].masked, "Authorization: Bearer x")
}

// An agent sends conversations to a model, and recovers masked results through a gateway.
type agent struct {
	model   *mcptest.Chat
	url     string // of the site
	http    *http.Client
	headers []string
}

// withModel returns the directives of a site with a gateway and, at /v1/, a model whose mask has
// this recover line.
func withModel(model, recover string, lines ...string) string {
	return gateway(append(lines, "separator __", child("alpha"))...) + "\n" +
		block("handle /v1/*", conversationMask("window_turns 1", recover), proxy(model))
}

// send sends a conversation and returns the id in the placeholder that the model got.
func (a *agent) send(t *testing.T, body string) (id string) {
	t.Helper()
	if got := send(t, a.http, "POST", a.url+"/v1/chat/completions", body,
		append(a.headers, "Content-Type: application/json")...); got.StatusCode != 200 {
		t.Fatalf("got %d %s", got.StatusCode, got.body)
	}
	found := idInPlaceholder.FindStringSubmatch(a.model.Last().Body)
	if found == nil {
		t.Fatalf("no id in %.500s", a.model.Last().Body)
	}
	return found[1]
}

var idInPlaceholder = regexp.MustCompile(`chars=\d+, id=(obs_[A-Za-z0-9]{10})\)\]`)

// canRecover reports whether the agent can recover the original with an id.
func (a *agent) canRecover(t *testing.T, id string) bool {
	t.Helper()
	c := newTestClient(t, joinedAt(a.url), true, `{}`, a.headers...)
	c.HTTP = a.http
	got := recoverObservation(t, c, `{"id":"`+id+`"}`)
	if got.IsError && !strings.HasPrefix(got.Content[0].Text, "Nothing is kept under the id") {
		t.Errorf("got %s", got.Content[0].Text)
	}
	return !got.IsError
}

// withOldResult returns a conversation with an old result.
func withOldResult(text string) string {
	return oneTurnLater(chatMessage("user", "hi"), callsMessage("call_1 read"), resultMessage("call_1", text))
}

// recover_observation returns results masked by tool_result_mask (T39).
func TestConversationRecovery(t *testing.T) {
	isolate(t)
	model := new(mcptest.Chat)
	a := &agent{model: model, http: client, url: serve(t, withModel(upstream(t, model), "recover on"))}
	original := unicodeText(300)
	for _, era := range clientEras {
		c := newTestClient(t, joinedAt(a.url), era.modern, `{}`)
		t.Run("T39 "+era.name+" sees the tool", func(t *testing.T) {
			if got := c.ask(t, "tools/list", `{}`); !strings.Contains(got.answer.Raw, `"name":"recover_observation"`) {
				t.Errorf("not listed: %.500s", got.answer.Raw)
			}
			if got := c.ask(t, "resources/templates/list", `{}`); !strings.Contains(got.answer.Raw,
				`"uriTemplate":"proxy://observation/{id}"`) {
				t.Errorf("not listed: %.500s", got.answer.Raw)
			}
		})
		t.Run("T39 "+era.name+" reads a text", func(t *testing.T) {
			id := a.send(t, withOldResult(original))
			if again := a.send(t, withOldResult(original)); again != id {
				t.Errorf("%s became %s", id, again)
			}
			part := recoverObservation(t, c, `{"id":"`+id+`","start_char":1999,"end_char":2500}`)
			same(t, part.Content[0].Text, string([]rune(original)[1999:2500]))
			lines := recoverObservation(t, c, `{"id":"`+id+`","start_line":124,"end_line":125}`)
			same(t, lines.Content[0].Text, strings.Join(strings.SplitAfter(original, "\n")[123:125], ""))
			found := recoverObservation(t, c, `{"id":"`+id+`","pattern":"^123\\t.*ERROR3$","context_lines":0}`)
			if line := strings.Split(original, "\n")[123]; found.Meta.Matches != 1 || !strings.Contains(found.Content[0].Text,
				line) {
				t.Errorf("got %+v\nwant %q", found, line)
			}
			goal := recoverObservation(t, c, `{"id":"`+id+`","goal":"what is in the line of 217"}`)
			if goal.IsError || !strings.Contains(goal.Content[0].Text, "217\t") {
				t.Errorf("got %+v", goal)
			}
			got := c.ask(t, "resources/read", `{"uri":"proxy://observation/`+id+`"}`)
			if !strings.Contains(got.answer.Raw, `"proxy://observation/`+id+`"`) || got.answer.Error != nil {
				t.Errorf("got %.500s", got.answer.Raw)
			}
			if whole := recoverObservation(t, c, `{"id":"`+id+`"}`); len([]rune(whole.Content[0].Text)) != 4000 ||
				whole.Meta.Next == nil {
				t.Errorf("without a mask in the gateway: got a part of %d characters", len([]rune(whole.Content[0].Text)))
			}
		})
		t.Run("T39 "+era.name+" queries JSON", func(t *testing.T) {
			id := a.send(t, withOldResult(`{"items":[{"id":1,"name":"one"},{"id":2,"name":"two"}]}`))
			if got := recoverObservation(t, c, `{"id":"`+id+`","query":".items[] | select(.id == 2) | .name"}`); got.IsError ||
				got.Content[0].Text != `"two"` {
				t.Errorf("got %+v", got)
			}
		})
		t.Run("T39 "+era.name+" reads several texts as one", func(t *testing.T) {
			id := a.send(t, strings.ReplaceAll(anthropicConversation(`[{"type":"text","text":"one\n"},{"type":"text",`+
				`"text":"two"}]`), "be brief", era.name))
			if got := recoverObservation(t, c, `{"id":"`+id+`"}`); got.IsError || got.Content[0].Text != "one\n\ntwo" {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// Originals are only returned to the client that sent them (T39).
func TestConversationRecoveryIsTheClientsOwn(t *testing.T) {
	isolate(t)
	model := new(mcptest.Chat)
	endpoint := upstream(t, model)
	for _, tt := range []struct {
		name         string
		site         string
		owner, other agent
		found        bool
	}{
		{"T39 another address", withModel(endpoint, "recover on"), agent{http: client},
			agent{http: clientFrom(t, "127.0.0.2")}, false},
		{"T39 another user", basicAuthAccounts + "\n" + withModel(endpoint, "recover on"),
			agent{http: client, headers: []string{basicAuthHeader("alice")}},
			agent{http: client, headers: []string{basicAuthHeader("bob")}}, false},
		{"T39 the same user at another address", basicAuthAccounts + "\n" + withModel(endpoint, "recover on"),
			agent{http: client, headers: []string{basicAuthHeader("alice")}}, agent{http: clientFrom(t, "127.0.0.2"),
				headers: []string{basicAuthHeader("alice")}}, true},
		{"T39 a client of the gateway at another address", withModel(endpoint, "recover on", twoTokens()),
			agent{http: client, headers: []string{bearer(victimToken)}}, agent{http: clientFrom(t, "127.0.0.2"),
				headers: []string{bearer(victimToken)}}, false},
		{"T39 another client of the gateway at the same address", withModel(endpoint, "recover on", twoTokens()),
			agent{http: client, headers: []string{bearer(victimToken)}},
			agent{http: client, headers: []string{bearer(thiefToken)}}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			url := serve(t, tt.site)
			owner, other := tt.owner, tt.other
			owner.model, owner.url, other.model, other.url = model, url, model, url
			id := owner.send(t, withOldResult(tt.name)) // no other row sends this text
			if !owner.canRecover(t, id) {
				t.Error("the owner cannot recover it")
			}
			if other.canRecover(t, id) != tt.found {
				t.Errorf("the other client can recover it: %t", !tt.found)
			}
		})
	}
}

// Originals survive reloads, but expire after their TTL, and are evicted when the store is full
// (T39).
func TestConversationRecoveryIsBounded(t *testing.T) {
	isolate(t)
	model := new(mcptest.Chat)
	address, endpoint := freeAddress(t), upstream(t, model)
	a := &agent{model: model, http: client, url: "http://" + address}
	load(t, site(address, withModel(endpoint, "recover on")))
	id := a.send(t, withOldResult(thousand))
	t.Run("T39 a reload", func(t *testing.T) {
		load(t, site(address, withModel(endpoint, "recover on\nmin_mask_chars 10")))
		if !a.canRecover(t, id) {
			t.Error("the original is lost after a reload")
		}
	})
	t.Run("T39 a mask without recover", func(t *testing.T) {
		load(t, site(address, gateway("separator __", child("alpha")),
			block("handle /v1/*", conversationMask("window_turns 1"), proxy(endpoint))))
		if got := newTestClient(t, joinedAt(a.url), true, `{}`).ask(t, "tools/list", `{}`); strings.Contains(got.answer.Raw,
			"recover_observation") {
			t.Error("the tool is listed")
		}
	})
	t.Run("T39 the time to live", func(t *testing.T) {
		load(t, site(address, withModel(endpoint, block("recover", "ttl 200ms"))))
		id := a.send(t, withOldResult(thousand))
		await.Until(t, "the end of its TTL", func() bool { return !a.canRecover(t, id) })
	})
	t.Run("T39 max_entries", func(t *testing.T) {
		load(t, site(address, withModel(endpoint, block("recover", "max_entries 2"))))
		var ids []string
		for i := range 3 {
			ids = append(ids, a.send(t, withOldResult(fmt.Sprint("result ", i))))
		}
		if a.canRecover(t, ids[0]) || !a.canRecover(t, ids[1]) || !a.canRecover(t, ids[2]) {
			t.Errorf("want only the last two of %v", ids)
		}
		before := metrics(t)["tool_results_recovered_total"]
		a.canRecover(t, ids[2])
		a.canRecover(t, a.send(t, withOldResult("another")))
		if n := metrics(t)["tool_results_recovered_total"] - before; n != 1 {
			t.Errorf("counted %v more results, want only the new one", n)
		}
	})
}

// The id of a result is the same in all processes. Otherwise each replica would send another prompt
// (T39).
func TestConversationRecoveryIDs(t *testing.T) {
	isolate(t)
	var ids []string
	for range 2 {
		model := new(mcptest.Chat)
		caddy := run(t, writeCaddyfile(t, block(":8080", "bind 127.0.0.1", withModel(upstream(t, model), "recover on"))))
		a := &agent{model: model, http: client, url: "http://" + caddy.address}
		ids = append(ids, a.send(t, withOldResult(thousand)))
	}
	if ids[0] != ids[1] {
		t.Errorf("got ids %v", ids)
	}
}

// reportedRoute is a route to a model in the admin API.
type reportedRoute struct {
	Route          string
	Requests       int
	MaskedRequests int     `json:"masked_requests"`
	MaskedResults  int     `json:"masked_results"`
	SavedChars     int     `json:"saved_chars"`
	BytesBefore    int     `json:"bytes_before"`
	BytesAfter     int     `json:"bytes_after"`
	TokensBefore   int     `json:"tokens_before"`
	TokensAfter    int     `json:"tokens_after"`
	Cost           float64 `json:"cost_tokens"`
	CostUnmasked   float64 `json:"cost_tokens_unmasked"`
	Usage          map[string]int
	Moves          []struct {
		At            time.Time
		MaskedResults int `json:"masked_results"`
		Cached, Input int
		CacheWrite    int     `json:"cache_write"`
		Cost          float64 `json:"cost_tokens"`
		CostUnmasked  float64 `json:"cost_tokens_unmasked"`
	}
}

// The admin API reports a conversation whose boundary moves twice, by two turns each.
func TestReportedConversations(t *testing.T) {
	isolate(t)
	chat := &mcptest.Chat{Usage: mcptest.Usage{Input: 5000, Cached: 2000, CacheWrite: 1000, Output: 10}}
	address := freeAddress(t)
	config := site(address, conversationMask("window_turns 1", "step_turns 2", "route kimi"), proxy(upstream(t, chat)))
	load(t, config)
	client, url := sequentialClient(t), "http://"+address+"/v1/chat/completions"
	before, after, masked := 0, 0, 0
	for n := range 6 {
		body := turns(n+1, 0, 1000)
		send(t, client, "POST", url, body)
		before, after, masked = before+len(body), after+len(chat.Last().Body), masked+n/2*2
	}
	send(t, client, "GET", url, "") // so that the last request is counted
	load(t, config+site(freeAddress(t), "respond x"))

	var routes []reportedRoute
	got := admin(t, "GET", "/mcp_gateway/conversations", "")
	if err := json.Unmarshal([]byte(got.body), &routes); err != nil || len(routes) != 1 {
		t.Fatalf("%v: %s", err, got.body)
	}
	r := routes[0]
	if r.Route != "kimi" || r.Requests != 6 || r.MaskedRequests != 4 || r.MaskedResults != masked ||
		r.SavedChars < masked*800 {
		t.Errorf("got %s", got.body)
	}
	if r.BytesBefore != before || r.BytesAfter != after || after >= before {
		t.Errorf("%d bytes, %d of them sent: got %s", before, after, got.body)
	}
	if r.TokensAfter != 6*5000 || r.TokensBefore <= r.TokensAfter || r.Usage["input"] != 6*5000 ||
		r.Usage["cached"] != 6*2000 || r.Usage["output"] != 60 {
		t.Errorf("got %s", got.body)
	}
	if len(r.Moves) != 2 || r.Moves[0].MaskedResults != 4 || r.Moves[1].MaskedResults != 2 ||
		r.Moves[0].At.Before(r.Moves[1].At) {
		t.Fatalf("got %s", got.body)
	}
	for _, move := range r.Moves {
		if move.Cached != 2000 || move.Input != 5000 || move.Cost == 0 || move.CostUnmasked == 0 ||
			move.Cost == move.CostUnmasked {
			t.Errorf("got %+v", move)
		}
	}
	if r.Cost <= r.Moves[0].Cost+r.Moves[1].Cost || r.CostUnmasked == 0 {
		t.Errorf("got %s", got.body)
	}
}
