package redact

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

const key = `sk-[a-z0-9]+`

func newRedactor(t testing.TB, patterns, fields []string) *Redactor {
	t.Helper()
	r, err := New(patterns, fields)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestA56PatternsAreReplaced(t *testing.T) {
	for _, test := range []struct {
		name, in, want string
		n              int
	}{
		{"in text", `{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"the key is sk-abc123, keep it"}]}}`,
			`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"the key is [redacted], keep it"}]}}`, 1},
		{"at any depth", `{"result":{"a":[[{"b":{"c":["sk-a"]}}]]}}`, `{"result":{"a":[[{"b":{"c":["[redacted]"]}}]]}}`, 1},
		{"in structured content", `{"id":1,"result":{"content":[],"structuredContent":{"keys":["sk-1","other","sk-2"]}}}`,
			`{"id":1,"result":{"content":[],"structuredContent":{"keys":["[redacted]","other","[redacted]"]}}}`, 2},
		{"several in a text", `{"result":"sk-a sk-b\nsk-c"}`, `{"result":"[redacted] [redacted]\n[redacted]"}`, 3},
		{"in a result that is a text", `{"id":1,"result":"sk-a"}`, `{"id":1,"result":"[redacted]"}`, 1},
		{"in the message of an error", `{"id":1,"error":{"code":-32000,"message":"bad key sk-a"}}`,
			`{"id":1,"error":{"code":-32000,"message":"bad key [redacted]"}}`, 1},
		{"in the data of an error", `{"id":1,"error":{"code":1,"message":"m","data":{"k":["sk-a"]}}}`,
			`{"id":1,"error":{"code":1,"message":"m","data":{"k":["[redacted]"]}}}`, 1},
		{"in an error that is a text", `{"error":"sk-a"}`, `{"error":"[redacted]"}`, 1},
		{"in a notification", `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"sk-a"}}`,
			`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"[redacted]"}}`, 1},
		{"in a sampling request", `{"jsonrpc":"2.0","id":7,"method":"sampling/createMessage",` +
			`"params":{"messages":[{"role":"user","content":{"type":"text","text":"sk-a?"}}],"systemPrompt":"sk-b"}}`,
			`{"jsonrpc":"2.0","id":7,"method":"sampling/createMessage","params":{"messages":[{"role":"user",` +
				`"content":{"type":"text","text":"[redacted]?"}}],"systemPrompt":"[redacted]"}}`, 2},
		{"in unknown members", `{"id":1,"extra":"sk-a","Result":{"x":"sk-b"}}`,
			`{"id":1,"extra":"[redacted]","Result":{"x":"[redacted]"}}`, 2},
		{"in each message of a batch", `[{"id":"sk-a","result":"sk-b"},{"id":"sk-c","result":"sk-d"}]`,
			`[{"id":"sk-a","result":"[redacted]"},{"id":"sk-c","result":"[redacted]"}]`, 2},
		{"in JSON that is not a message", `["sk-a",["sk-b",{"id":"sk-c"}]]`,
			`["[redacted]",["[redacted]",{"id":"[redacted]"}]]`, 3},
		{"in a JSON text", `"sk-a"`, `"[redacted]"`, 1},
		{"not in jsonrpc, id and method", `{"jsonrpc":"sk-a","id":"sk-b","method":"sk-c","params":{"id":"sk-d"}}`,
			`{"jsonrpc":"sk-a","id":"sk-b","method":"sk-c","params":{"id":"[redacted]"}}`, 1},
		{"not in members that clients send back",
			`{"id":1,"result":{"nextCursor":"sk-a","requestState":"sk-b","taskId":"sk-c",` +
				`"tools":["sk-d"]}}`, `{"id":1,"result":{"nextCursor":"sk-a","requestState":"sk-b","taskId":"sk-c",` +
				`"tools":["[redacted]"]}}`, 1},
		{"not in references to requests",
			`{"method":"m","params":{"requestId":"sk-a","progressToken":"sk-b","reason":"sk-c"}}`,
			`{"method":"m","params":{"requestId":"sk-a","progressToken":"sk-b","reason":"[redacted]"}}`, 1},
		{"in members of these names elsewhere",
			`{"nextCursor":"sk-a","result":{"x":{"requestState":"sk-b"},"taskId":["sk-c"]},` +
				`"error":{"data":{"nextCursor":"sk-d"}}}`,
			`{"nextCursor":"[redacted]","result":{"x":{"requestState":"[redacted]"},"taskId":["[redacted]"]},` +
				`"error":{"data":{"nextCursor":"[redacted]"}}}`, 4},
		{"not in an id whose key has escapes", `{"i\u0064":"sk-b","ID":"sk-c"}`,
			`{"i\u0064":"sk-b","ID":"[redacted]"}`, 1},
		{"not in an id of another type", `{"id":{"x":"sk-a"},"method":["sk-b"]}`,
			`{"id":{"x":"[redacted]"},"method":["[redacted]"]}`, 2},
		{"in keys", `{"result":{"sk-a":"b","c":{"the sk-d":{"sk-e":["sk-f"]}}}}`,
			`{"result":{"[redacted]":"b","c":{"the [redacted] 2":{"[redacted] 3":["[redacted]"]}}}}`, 4},
		{"in keys that stay different", `{"result":{"sk-a":1,"sk-b":"{\"sk-c\":1,\"\u005cu0073k-d\":2}","of sk-d":3}}`,
			`{"result":{"[redacted]":1,"[redacted] 2":"{\"[redacted]\":1,\"[redacted] 2\":2}","of [redacted] 3":3}}`, 5},
		{"in keys with escapes", `{"result":{"\u0073k-a":{"\u0073k\u002da":1}}}`,
			`{"result":{"[redacted]":{"[redacted] 2":1}}}`, 2},
		{"in keys next to those of a message", `{"sk-a":1,"id":2}`, `{"[redacted]":1,"id":2}`, 1},
		{"in keys of errors and batches", `[{"error":{"data":{"sk-a":1}}},{"params":{"sk-b":2}}]`,
			`[{"error":{"data":{"[redacted]":1}}},{"params":{"[redacted] 2":2}}]`, 2},
		{"in keys of JSON in a text", `{"result":"{\"\\u0073k-a\":{\"sk-b\":1}}"}`,
			`{"result":"{\"[redacted]\":{\"[redacted] 2\":1}}"}`, 2},
		{"not in numbers", `{"result":[1.50,-0,1e5,true,null]}`, `{"result":[1.50,-0,1e5,true,null]}`, 0},
		{"all other bytes stay unchanged", "{ \"z\" :1.0e+0 ,\r\n\t\"result\" : [ \"a\\/b\\u00e9\" , \"\\u0041 sk-a \\/ " +
			"\\u00e9\",0.10 ] , \"a\":{}}\n",
			"{ \"z\" :1.0e+0 ,\r\n\t\"result\" : [ \"a\\/b\\u00e9\" , \"\\u0041 [redacted] \\/ \\u00e9\",0.10 ] , \"a\":{}}\n",
			1},
		{"with an escape", `{"result":"\u0073k-\u0061b"}`, `{"result":"[redacted]"}`, 1},
		{"with escapes before and after it", `{"result":"\n\"sk-a\"\u0020\\"}`,
			`{"result":"\n\"[redacted]\"\u0020\\"}`, 1},
		{"next to surrogate pairs and lone surrogates", `{"result":"\ud83d\ude00😀\ud83dé sk-a\ude00\ud83d\ude00 sk-b"}`,
			`{"result":"\ud83d\ude00😀\ud83dé [redacted]\ude00\ud83d\ude00 [redacted]"}`, 2},
		{"in each repeated member", `{"result":"sk-a","result":{"x":"sk-b","x":"sk-c","x":1}}`,
			`{"result":"[redacted]","result":{"x":"[redacted]","x":"[redacted]","x":1}}`, 3},
		{"in JSON in a text", `{"result":{"text":"{\"k\":\"sk-a\",\"n\": 1}"}}`,
			`{"result":{"text":"{\"k\":\"[redacted]\",\"n\": 1}"}}`, 1},
		{"with an escape in JSON in a text", `{"result":{"text":" [\"\\u0073k-a \\n sk-b\", \"x\\\\sk-c\"]"}}`,
			`{"result":{"text":" [\"[redacted] \\n [redacted]\", \"x\\\\[redacted]\"]"}}`, 3},
		{"in a message that is not JSON", `oh no: sk-a`, `oh no: [redacted]`, 1},
		{"in a truncated message", `{"id":"sk-a","result":{"a":"\u0073k-b","b":"sk-c`,
			`{"id":"[redacted]","result":{"a":"[redacted]","b":"[redacted]`, 3},
		{"in several messages in a row", "{\"id\":1,\"result\":\"\\u0073k-a\"}\n{\"id\":1,\"result\":\"\\u0073k-b\"}",
			"{\"id\":1,\"result\":\"[redacted]\"}\n{\"id\":1,\"result\":\"[redacted]\"}", 2},
		{"after a byte order mark", "\uFEFF" + `{"id":"sk-a","result":"\u0073k-b"}`,
			"\uFEFF" + `{"id":"sk-a","result":"[redacted]"}`, 1},
		{"in an empty message", ``, ``, 0},
		{"at a great depth", `{"result":` + strings.Repeat("[", 2000) + `"\u0073k-a"` + strings.Repeat("]",
			2000) + `}`, `{"result":` + strings.Repeat("[", 2000) + `"[redacted]"` + strings.Repeat("]", 2000) + `}`, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			check(t, newRedactor(t, []string{key}, nil), test.in, test.want, test.n)
			check(t, newRedactor(t, []string{key}, []string{"unused"}), test.in, test.want, test.n)
			check(t, newRedactor(t, []string{`(?:sk)-[a-z0-9]+`, `\bsk-[0-9]+x`}, nil), test.in, test.want, test.n)
		})
	}
}

func check(t *testing.T, r *Redactor, message, want string, n int) {
	t.Helper()
	raw := []byte(message)
	got, count, err := r.Message(raw)
	if string(got) != want || count != n || err != nil {
		t.Errorf("%d replacements, %v:\n got %s\nwant %s", count, err, got, want)
	}
	if n == 0 && len(message) > 0 && &got[0] != &raw[0] {
		t.Error("copied without a replacement")
	}
	if string(raw) != message {
		t.Errorf("changed the message in place: %s", raw)
	}
}

func TestA56FieldsAreReplaced(t *testing.T) {
	for _, test := range []struct {
		name, in, want string
		n              int
	}{
		{"a string", `{"result":{"password":"x\"y","b":"x"}}`, `{"result":{"password":"[redacted]","b":"x"}}`, 1},
		{"an empty string", `{"result":{"password":""}}`, `{"result":{"password":"[redacted]"}}`, 1},
		{"a number", `{"result":{"password" : -1.5e7 }}`, `{"result":{"password" : "[redacted]" }}`, 1},
		{"true", `{"result":{"password":true}}`, `{"result":{"password":"[redacted]"}}`, 1},
		{"false", `{"result":{"password":false}}`, `{"result":{"password":"[redacted]"}}`, 1},
		{"null", `{"result":{"password":null}}`, `{"result":{"password":"[redacted]"}}`, 1},
		{"an object", `{"result":{"password":{"password":{"a":"b"}},"b":1}}`, `{"result":{"password":"[redacted]","b":1}}`,
			1},
		{"an array", `{"result":{"password":[1,[2],"sk-a"], "b":["sk-b"]}}`,
			`{"result":{"password":"[redacted]", "b":["[redacted]"]}}`, 2},
		{"not values that are already replaced", `{"result":{"password":"[redacted]","t":"{\"password\":\"[redacted]\"}"}}`,
			`{"result":{"password":"[redacted]","t":"{\"password\":\"[redacted]\"}"}}`, 0},
		{"an empty object", `{"result":{"password":{}}}`, `{"result":{"password":"[redacted]"}}`, 1},
		{"at any depth", `{"result":[{"a":[{"password":1}]},{"password":2}]}`,
			`{"result":[{"a":[{"password":"[redacted]"}]},{"password":"[redacted]"}]}`, 2},
		{"each repeated member", `{"result":{"password":1,"password":2}}`,
			`{"result":{"password":"[redacted]","password":"[redacted]"}}`, 2},
		{"by a name with escapes", `{"result":{"p\u0061ssword":1,"\u0070assword":2}}`,
			`{"result":{"p\u0061ssword":"[redacted]","\u0070assword":"[redacted]"}}`, 2},
		{"not by a similar name", `{"result":{"Password":1,"passwords":2,"pass":"password"}}`,
			`{"result":{"Password":1,"passwords":2,"pass":"password"}}`, 0},
		{"in params", `{"method":"m","params":{"password":1}}`, `{"method":"m","params":{"password":"[redacted]"}}`, 1},
		{"in the data of an error", `{"error":{"code":1,"message":"m","data":{"code":2,"message":"n"}}}`,
			`{"error":{"code":1,"message":"m","data":{"code":"[redacted]","message":"[redacted]"}}}`, 2},
		{"next to the members of a message", `{"jsonrpc":"2.0","id":1,"password":1,"result":{"id":2,"result":3}}`,
			`{"jsonrpc":"2.0","id":1,"password":"[redacted]","result":{"id":"[redacted]","result":"[redacted]"}}`, 3},
		{"in a batch", `[{"id":1,"result":{"id":2}},{"id":3,"error":{"code":4}}]`,
			`[{"id":1,"result":{"id":"[redacted]"}},{"id":3,"error":{"code":4}}]`, 1},
		{"in JSON in a text", `{"result":{"content":[{"text":"{\"password\":\"x\", \"n\":{\"password\": [1]}}"}]}}`,
			`{"result":{"content":[{"text":"{\"password\":\"[redacted]\", \"n\":{\"password\": \"[redacted]\"}}"}]}}`, 2},
		{"in JSON in a text, with white space", `{"result":" \n\t{\n  \"password\": 1\n}\r\n"}`,
			`{"result":" \n\t{\n  \"password\": \"[redacted]\"\n}\r\n"}`, 1},
		{"in JSON in a text, with unusual escapes", `{"result":"\u007b\u0022p\\u0061ssword\u0022\u003a1}"}`,
			`{"result":"\u007b\u0022p\\u0061ssword\u0022\u003a\"[redacted]\"}"}`, 1},
		{"in JSON in a text, with its patterns", `{"result":"[{\"a\":\"sk-a\",\"password\":\"sk-b\"}]"}`,
			`{"result":"[{\"a\":\"[redacted]\",\"password\":\"[redacted]\"}]"}`, 2},
		{"in lines of JSON in a text", `{"result":"{\"password\":1}\n{\"password\":2}\n"}`,
			`{"result":"{\"password\":\"[redacted]\"}\n{\"password\":\"[redacted]\"}\n"}`, 2},
		{"in JSON in a text, around other text", `{"result":"{\"password\":1} and {\"password\":2}"}`,
			`{"result":"{\"password\":\"[redacted]\"} and {\"password\":\"[redacted]\"}"}`, 2},
		{"in JSON in a text, after other text", `{"result":"Found [1] user, \"ann\":\n{\"a\":1, \"password\":2}"}`,
			`{"result":"Found [1] user, \"ann\":\n{\"a\":1, \"password\":\"[redacted]\"}"}`, 1},
		{"in JSON in a text, in a fence", `{"result":"` + "```json\\n" + `{\"password\":1}\n` + "```" + `"}`,
			`{"result":"` + "```json\\n" + `{\"password\":\"[redacted]\"}\n` + "```" + `"}`, 1},
		{"in JSON in a text, after a byte order mark", `{"result":"` + "\uFEFF" + `{\"password\":1}"}`,
			`{"result":"` + "\uFEFF" + `{\"password\":\"[redacted]\"}"}`, 1},
		{"in lines of JSON in a text, with other lines", `{"result":"{\"a\":1}\n-- 2 rows\n{\"password\":2}"}`,
			`{"result":"{\"a\":1}\n-- 2 rows\n{\"password\":\"[redacted]\"}"}`, 1},
		{"in JSON in a text, after an invalid value", `{"result":"{\"a\":[NaN, Infinity] , \"password\":2}"}`,
			`{"result":"{\"a\":[NaN, Infinity] , \"password\":\"[redacted]\"}"}`, 1},
		{"in JSON in a text, after a trailing comma", `{"result":"{\"a\":[\"b\",],\"password\":{\"c\":2},}"}`,
			`{"result":"{\"a\":[\"b\",],\"password\":\"[redacted]\",}"}`, 1},
		{"in JSON in a text, an invalid value", `{"result":"{\"password\": NaN, \"a\":1}\nb\n{\"password\":1}"}`,
			`{"result":"{\"password\"\"[redacted]\"\nb\n{\"password\":\"[redacted]\"}"}`, 2},
		{"in JSON in a text, an invalid part of a value", `{"result":"{\"password\": {\"b\":NaN,\n\"c\":1}}\nb"}`,
			`{"result":"{\"password\": \"[redacted]\""}`, 1},
		{"in JSON in a text, a string with a line break", `{"result":"{\"password\":\"a\nb\"}"}`,
			`{"result":"{\"password\"\"[redacted]\""}`, 1},
		{"in truncated JSON in a text", `{"result":"{\"a\":1,\"password\":\"secr"}`,
			`{"result":"{\"a\":1,\"password\"\"[redacted]\""}`, 1},
		{"not in JSON in a text that is itself in JSON in a text", `{"result":"{\"a\":\"{\\\"password\\\":1}\"}"}`,
			`{"result":"{\"a\":\"{\\\"password\\\":1}\"}"}`, 0},
		{"in a text that is not JSON", `{"result":"password: 1"}`, `{"result":"password: 1"}`, 0},
		{"in a truncated message", `{"result":{"password":{"a":"b`, `{"result":{"password":"[redacted]"`, 1},
		{"not in the schemas of tools", `{"result":{"tools":[{"name":"a","password":1,` +
			`"inputSchema":{"properties":{"password":{"type":"string"},"b":{"default":"sk-a"}}},"code":1},{"password":2,` +
			`"outputSchema":{"password":{}}}],"password":3}}`,
			`{"result":{"tools":[{"name":"a","password":"[redacted]",` +
				`"inputSchema":{"properties":{"password":{"type":"string"},"b":{"default":"[redacted]"}}},"code":"[redacted]"},` +
				`{"password":"[redacted]","outputSchema":{"password":{}}}],"password":"[redacted]"}}`, 5},
		{"not in the schema of an elicitation",
			`{"method":"elicitation/create","params":{"requestedSchema":{"properties":{"password":{}}},"password":1}}`,
			`{"method":"elicitation/create","params":{"requestedSchema":{"properties":{"password":{}}},` +
				`"password":"[redacted]"}}`, 1},
		{"in members that only have the name of a schema",
			`{"result":{"inputSchema":{"password":1},"a":[{"inputSchema":{"password":2}}]}}`,
			`{"result":{"inputSchema":{"password":"[redacted]"},"a":[{"inputSchema":{"password":"[redacted]"}}]}}`, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			check(t, newRedactor(t, []string{key}, []string{"password", "code", "message", "id", "jsonrpc", "result"}), test.in,
				test.want, test.n)
		})
	}
}

// A match of one pattern does not protect text that another pattern matches.
func TestA56PatternsThatOverlap(t *testing.T) {
	for _, test := range []struct {
		patterns       []string
		in, want       string
		n              int
		fieldsAndTexts bool
	}{
		{patterns: []string{`abc`, `cde`}, in: `["abcde abc"]`, want: `["[redacted] [redacted]"]`, n: 2},
		{patterns: []string{`cde`, `abc`}, in: `["abcde"]`, want: `["[redacted]"]`, n: 1},
		{patterns: []string{`b`, `abc`}, in: `["abc"]`, want: `["[redacted]"]`, n: 1},
		{patterns: []string{`a`, `b`}, in: `["ab"]`, want: `["[redacted][redacted]"]`, n: 2},
		{patterns: []string{`"x"`}, in: `["{\"password\":\"x\"}"]`, want: `["{\"password\":\"[redacted]\"}"]`, n: 1,
			fieldsAndTexts: true},
		{patterns: []string{`"password":"x"`}, in: `["{\"password\":\"x\"}"]`, want: `["{[redacted]}"]`, n: 1,
			fieldsAndTexts: true},
	} {
		var fields []string
		if test.fieldsAndTexts {
			fields = []string{"password"}
		}
		check(t, newRedactor(t, test.patterns, fields), test.in, test.want, test.n)
	}
}

// A message that is not UTF-8 is refused, because programs may read it differently.
func TestA56Encodings(t *testing.T) {
	const message = `{"id":1,"result":"sk-a"}`
	utf16LE, utf16BE, utf32LE, utf32BE := []byte{}, []byte{}, []byte{}, []byte{}
	for _, c := range []byte(message) {
		utf16LE, utf16BE = append(utf16LE, c, 0), append(utf16BE, 0, c)
		utf32LE, utf32BE = append(utf32LE, c, 0, 0, 0), append(utf32BE, 0, 0, 0, c)
	}
	for name, raw := range map[string][]byte{
		"UTF-16LE": utf16LE, "UTF-16BE": utf16BE, "UTF-32LE": utf32LE, "UTF-32BE": utf32BE,
		"UTF-16LE with a mark": append([]byte{0xFF, 0xFE}, utf16LE...), "UTF-16BE with a mark": append([]byte{0xFE, 0xFF},
			utf16BE...),
		"UTF-32LE with a mark": append([]byte{0xFF, 0xFE, 0, 0}, utf32LE...),
		"UTF-32BE with a mark": append([]byte{0, 0, 0xFE, 0xFF}, utf32BE...),
		"Latin-1":              []byte("{\"id\":1,\"result\":\"\xe9\"}"),
		"an overlong encoding": []byte("{\"id\":1,\"result\":\"\xc1\xb3k-a\"}"),
		"a surrogate":          []byte("{\"id\":1,\"result\":\"\xed\xa0\x80\"}"),
		"a null byte":          []byte("{\"id\":1,\"result\":\"\x00\"}"),
	} {
		for _, r := range []*Redactor{newRedactor(t, []string{key}, nil), newRedactor(t, nil, []string{"password"})} {
			if got, n, err := r.Message(raw); got != nil || n != 0 || err == nil {
				t.Errorf("%s: %q, %d, %v", name, got, n, err)
			}
		}
		if got, n, err := (*Redactor)(nil).Message(raw); !bytes.Equal(got, raw) || n != 0 || err != nil {
			t.Errorf("%s, with nothing to redact: %q, %v", name, got, err)
		}
	}
}

// A message that only lenient parsers accept is refused, because its rest cannot be redacted.
func TestA56LenientMessages(t *testing.T) {
	r := newRedactor(t, []string{key}, []string{"password"})
	for name, message := range map[string]string{
		"NaN before a field":              `{"id":1,"result":{"score":NaN,"password":"x"}}`,
		"NaN before an escape":            `{"id":1,"result":{"score":NaN,"k":"\u0073k-a"}}`,
		"an infinite number":              `{"id":1,"result":{"score":-Infinity,"password":"x"}}`,
		"a tab in a string":               "{\"id\":1,\"result\":{\"log\":\"\t\",\"password\":\"x\"}}",
		"a trailing comma in a batch":     `[{"id":1,"result":{"a":[1,],"password":"x"}}]`,
		"after a byte order mark":         "\uFEFF \n" + `{"result":{"score":NaN,"password":"x"}}`,
		"before a byte order mark":        " \uFEFF" + `{"result":{"password":"x"}}`,
		"after a message":                 `{"id":1,"result":1}` + "\n" + `{"result":{"score":NaN,"password":"x"}}`,
		"in a comment":                    `{/**/"result":{"password":"x"}}`,
		"unquoted keys":                   `{result:{password:"x"}}`,
		"a cut off message with a defect": `{"result":{"score":NaN,"password":"x`,
	} {
		if got, n, err := r.Message([]byte(message)); got != nil || n != 0 || err == nil {
			t.Errorf("%s: %s, %d, %v", name, got, n, err)
		}
	}
	harmless := `{"id":1,"result":{"score":NaN}}`
	if got, n, err := r.Message([]byte(harmless)); string(got) != harmless || n != 0 || err != nil {
		t.Errorf("%s, %d, %v", got, n, err)
	}
}

// A message never becomes longer than three times its length plus maxGrowth.
func TestA56Growth(t *testing.T) {
	all := newRedactor(t, []string{"[a-z]"}, nil)
	for name, test := range map[string]struct {
		r       *Redactor
		raw     string
		refused bool
	}{
		"a text of single letters": {all, `{"result":"` + strings.Repeat("x1", 10_000) + `"}`, true},
		"fields of one digit": {newRedactor(t, nil, []string{"k"}), `{"result":[` + strings.Repeat(`{"k":1},`, 10_000) +
			`1]}`, false},
	} {
		if got, _, err := test.r.Message([]byte(test.raw)); (err != nil) != test.refused || len(got) > 3*len(test.raw)+
			maxGrowth {
			t.Errorf("%s: %d bytes became %d, %v", name, len(test.raw), len(got), err)
		}
	}
	short := `{"result":"x"}`
	if got, n, err := all.Message([]byte(short)); string(got) != `{"result":"[redacted]"}` || n != 1 || err != nil {
		t.Errorf("%s, %v", got, err)
	}
}

// A value that is not a message has no members that stay because messages need them.
func TestA56Values(t *testing.T) {
	r, err := New([]string{"secret"}, []string{"id", "error", "nextCursor"})
	if err != nil {
		t.Fatal(err)
	}
	for value, want := range map[string]string{
		`{"id":1,"method":"secret","error":{"code":1}}`: `{"id":"[redacted]","method":"[redacted]","error":"[redacted]"}`,
		`{"result":{"nextCursor":"x"}}`:                 `{"result":{"nextCursor":"[redacted]"}}`,
		`"a secret"`:                                    `"a [redacted]"`,
		`[1]`:                                           `[1]`,
	} {
		if got, err := r.Value([]byte(value)); err != nil || string(got) != want {
			t.Errorf("%s: got %s, %v", value, got, err)
		}
	}
	if got, err := r.Value([]byte("\"\xff\"")); err == nil {
		t.Errorf("got %s for bytes that are not UTF-8", got)
	}
	if got, err := (*Redactor)(nil).Value([]byte(`"secret"`)); err != nil || string(got) != `"secret"` {
		t.Errorf("got %s, %v without a redactor", got, err)
	}
}

// Lines of event streams that are not data are redacted like texts.
func TestA56Lines(t *testing.T) {
	r := newRedactor(t, []string{key}, []string{"id"})
	for line, want := range map[string]string{
		": the sk-a": ": the [redacted]", "id: sk-a": "id: [redacted]", "event:sk-a": "event:[redacted]",
		"sk-a": "[redacted]", ":": ":", "": "", "retry: 5": "retry: 5",
	} {
		if got, n := r.Line([]byte(line)); string(got) != want || (n > 0) != (want != line) {
			t.Errorf("%q became %q, %d", line, got, n)
		}
	}
	if got, n := (*Redactor)(nil).Line([]byte("id: sk-a")); string(got) != "id: sk-a" || n != 0 {
		t.Errorf("%q, %d", got, n)
	}
}

func TestA56NewRefuses(t *testing.T) {
	for _, test := range []struct {
		name             string
		patterns, fields []string
		want             string
	}{
		{"an invalid pattern", []string{"ok", "(x"}, nil, `"(x"`},
		{"a pattern that matches an empty text", []string{"x*"}, nil, `"x*"`},
		{"a pattern that matches between characters", []string{`\b`}, nil, `"\\b"`},
		{"a field without a name", nil, []string{"a", ""}, "empty"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r, err := New(test.patterns, test.fields)
			if r != nil || err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, %v", r, err)
			}
		})
	}
}

func TestA56NothingToRedact(t *testing.T) {
	check(t, nil, `{"result":"sk-a"}`, `{"result":"sk-a"}`, 0)
	check(t, newRedactor(t, nil, nil), `{"result":"sk-a"}`, `{"result":"sk-a"}`, 0)
}

// stringsIn returns all strings and keys in v.
func stringsIn(v any) (all []string) {
	switch v := v.(type) {
	case string:
		all = append(all, v)
	case []any:
		for _, e := range v {
			all = append(all, stringsIn(e)...)
		}
	case map[string]any:
		for name, e := range v {
			all = append(append(all, name), stringsIn(e)...)
		}
	}
	return all
}

func FuzzA56Message(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":"sk-a","result":{"content":[{"text":"\u0073k-a sk-b\ud83d\ude00"}]}}`))
	f.Add([]byte(`{"result":"{\"password\":\"\\u0073k-a\",\"b\":\"sk-b\"}"}`))
	f.Add([]byte(`[{"error":{"message":"sk-a","data":{"password":{"a":[1]}}}}]`))
	f.Add([]byte("{\"result\":\"\xffsk-a\\n\xe2\x82sk-b\"} "))
	f.Add([]byte(`{"result":{"tools":[{"inputSchema":{"password":"sk-a"}}],"result":{"password":`))
	f.Add([]byte(`{"other":{"password":"sk-a"}}`))
	f.Add([]byte(`{"result":{"p\u0061ssword":"a","b":"s\u006b-a \ud83d\ude00 \/ \n"}}`))
	f.Add([]byte(`{"result":"{\"b\":\"\\u\u0030073k\u005cu002da\",\"pass\\u0077ord\":1}"}`))
	f.Add([]byte(`{"result":{"task":"a disk-drive","pass":"word"}}`))
	re := regexp.MustCompile(key)
	onlyPatterns, both := newRedactor(f, []string{key}, nil), newRedactor(f, []string{key}, []string{"password"})
	f.Fuzz(func(t *testing.T, raw []byte) {
		before := bytes.Clone(raw)
		for _, r := range []*Redactor{onlyPatterns, both} {
			out, n, err := r.Message(raw)
			all, allN, allErr := withoutClues(r).Message(raw)
			if allErr == errLenient && err == nil { // without a clue it is not read
				all, allErr = raw, nil
			}
			if n != allN || !bytes.Equal(out, all) || err != allErr {
				t.Fatalf("%q became %q, %v without clues, %q, %v with them", raw, all, allErr, out, err)
			}
			if (err != nil) != (!utf8.Valid(raw) || bytes.IndexByte(raw, 0) >= 0) && err != errGrowth && err != errLenient {
				t.Fatalf("%v", err)
			}
			if err != nil {
				continue
			}
			if len(out) > 3*len(raw)+maxGrowth {
				t.Fatalf("%d bytes became %d", len(raw), len(out))
			}
			if !bytes.Equal(raw, before) {
				t.Fatal("changed in place")
			}
			if (n == 0) != bytes.Equal(out, raw) {
				t.Fatalf("%d replacements: %q from %q", n, out, raw)
			}
			if again, n, _ := onlyPatterns.Message(out); n != 0 {
				t.Fatalf("%q still has something to replace: %q", out, again)
			}
			if !json.Valid(raw) {
				if re.Match(out) {
					t.Fatalf("%q is left in %q", re.Find(out), out)
				}
				continue
			}
			var m struct{ Result, Error, Params any }
			if !json.Valid(out) {
				t.Fatalf("%q became %q", raw, out)
			}
			if r == onlyPatterns && !sameExcept(raw, out, func(text string) bool {
				isJSON := strings.HasPrefix(strings.TrimLeft(text, " \t\r\n"), "{") ||
					strings.HasPrefix(strings.TrimLeft(text, " \t\r\n"), "[")
				return re.MatchString(text) || isJSON
			}) {
				t.Fatalf("%q became %q", raw, out)
			}
			if json.Unmarshal(out, &m) != nil {
				continue // not an object
			}
			// encoding/json ignores the case of keys. Members in another case are redacted, too.
			for _, s := range stringsIn([]any{m.Result, m.Error, m.Params}) {
				if re.MatchString(s) {
					t.Fatalf("%q is left of %q", s, raw)
				}
				var inner any
				if json.Unmarshal([]byte(s), &inner) != nil {
					continue
				}
				if _, isText := inner.(string); isText {
					continue
				}
				for _, s := range stringsIn(inner) {
					if re.MatchString(s) {
						t.Fatalf("%q is left in JSON in a text of %q", s, raw)
					}
				}
			}
		}
	})
}

// All matches in a text are replaced, even if they overlap, and nothing else.
func FuzzBody(f *testing.F) { // A56
	for _, text := range []string{"sk-a sk-b", "sk-abc-def", "ab-sk-\n\u00e9sk-a", "a-b-c", "", "sk-",
		"\u2028sk-1\x00<&>", "a-sk-x-sk-y", "\t"} {
		f.Add(text)
	}
	patterns := []*regexp.Regexp{regexp.MustCompile(key), regexp.MustCompile(`[a-z]-[a-z]+-`)}
	r := newRedactor(f, []string{patterns[0].String(), patterns[1].String()}, nil)
	f.Fuzz(func(t *testing.T, text string) {
		if !utf8.ValidString(text) || strings.HasPrefix(strings.TrimSpace(text), "{") ||
			strings.HasPrefix(strings.TrimSpace(text), "[") {
			return // redacted as JSON
		}
		hidden := make([]bool, len(text))
		for _, re := range patterns {
			for _, at := range re.FindAllStringIndex(text, -1) {
				for i := at[0]; i < at[1]; i++ {
					hidden[i] = true
				}
			}
		}
		literal, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		got := r.Body(literal[1 : len(literal)-1])
		var said string
		if err := json.Unmarshal(slices.Concat([]byte{'"'}, got, []byte{'"'}), &said); err != nil {
			t.Fatalf("%q became %q: %v", text, got, err)
		}
		// Matches that touch may be replaced one by one or as one.
		var want strings.Builder
		for i := range len(text) {
			switch {
			case !hidden[i]:
				want.WriteByte(text[i])
			case i == 0 || !hidden[i-1]:
				want.WriteString(mark)
			}
		}
		joined := said
		for strings.Contains(joined, mark+mark) {
			joined = strings.ReplaceAll(joined, mark+mark, mark)
		}
		if joined != want.String() && !strings.Contains(text, mark) {
			t.Fatalf("%q became %q, want %q", text, said, want.String())
		}
	})
}

// sameExcept reports whether two texts have the same tokens, except for strings that mayChange.
func sameExcept(a, b []byte, mayChange func(text string) bool) bool {
	x, y := json.NewDecoder(bytes.NewReader(a)), json.NewDecoder(bytes.NewReader(b))
	x.UseNumber()
	y.UseNumber()
	for {
		token, err := x.Token()
		other, errOther := y.Token()
		if err != nil || errOther != nil {
			return err == errOther
		}
		text, isText := token.(string)
		_, isTextToo := other.(string)
		if token != other && !(isText && isTextToo && mayChange(text)) {
			return false
		}
	}
}

// withoutClues returns a Redactor that reads every message as JSON.
func withoutClues(r *Redactor) *Redactor { return &Redactor{patterns: r.patterns, fields: r.fields} }

// TestA56Clues checks that a message without anything to replace is not read as JSON, and that
// secrets are found at every position.
func TestA56Clues(t *testing.T) {
	r := newRedactor(t, []string{key, "ghp_[a-z]+"}, []string{"password"})
	for _, plain := range []string{
		`{"result":"a text \"with\" quotes,\nlines, \u20ac, \ud83d\ude00 and \\under"}`,
		`{"result":{"pass":"word","ghp":"_a","sk":"-a"}}`,
		`no JSON {"result":[`,
	} {
		if suspicious, err := r.mayMatch([]byte(plain)); suspicious || err != nil {
			t.Errorf("%s: suspicious %v, %v", plain, suspicious, err)
		}
	}
	const block = 32 << 10 // as in mayMatch
	for _, secret := range []string{
		`"sk-a"`, `"\u0073k-a"`, `"s\u006B\u002da"`, `"ghp_a"`, `"gh\u0070_a"`, `"\ud83d\ude00sk-a"`, `"\n\tsk-a"`,
		`"\u20acsk-a"`, `"€sk-a"`,
		`{"password":1}`, `{"p\u0061ssword":[1]}`, `{"\u0070\u0061\u0073\u0073\u0077\u006f\u0072\u0064":""}`,
		`"{\"password\":1}"`, `"{\"pass\\u0077ord\":1}"`, `"{\u0022password\u0022:1}"`, `"{\"a\":\"\\u0073k-a\"}"`,
		`"[\"\\u\u0030073k-a\"]"`,
	} {
		for _, filler := range []string{"x", "é", "€", "😀"} {
			for shift := range len(secret) + 8 {
				before := `{"result":["` + strings.Repeat("x", shift) + strings.Repeat(filler,
					(block-len(secret)-16)/len(filler)) + `",`
				in := []byte(before + secret + `,"` + strings.Repeat(filler, block/len(filler)) + `"]}`)
				want, n, err := withoutClues(r).Message(in)
				if err != nil || n == 0 {
					t.Fatalf("%s: %d replaced, %v", secret, n, err)
				}
				if got, _, err := r.Message(in); err != nil || !bytes.Equal(got, want) {
					t.Fatalf("%s after %d bytes is left, %v", secret, len(before), err)
				}
			}
		}
	}
	for _, end := range []string{"\xff", "\xe2\x82", "\x00"} { // at positions around the end of a block
		for n := block - 4; n < block+4; n++ {
			if _, err := r.mayMatch([]byte(strings.Repeat("x", n) + end)); err != errEncoding {
				t.Errorf("%q after %d bytes: %v", end, n, err)
			}
		}
	}
	// These patterns have no literal prefix.
	for _, patterns := range [][]string{{"(?i)sk-"}, {`a"b`}, {"[0-9]{16}"}, {"é+"}} {
		if r := newRedactor(t, append(patterns, key), nil); r.clues != nil {
			t.Errorf("%q has clues", patterns)
		}
	}
}

// result returns a tool result of about a megabyte with a number of secrets.
func result(line string, secrets int) []byte {
	const size = 1 << 20
	var text strings.Builder
	for i, n := 0, size/len(line); i < n; i++ {
		text.WriteString(line)
		if secrets > 0 && i%(n/secrets) == 1 {
			text.WriteString(" sk-abcdef0123456789 ")
		}
	}
	literal, err := json.Marshal(text.String())
	if err != nil {
		panic(err)
	}
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":%s}],"isError":false}}`,
		literal)
}

func BenchmarkMessage(b *testing.B) {
	records := []byte(`{"id":1,"result":{"structuredContent":{"rows":[` +
		strings.Repeat(`{"name":"someone","age":41,"tags":["a","bc"],"mail":"x@example.org"},`, 15_000) + `null]}}}`)
	for _, bench := range []struct {
		name             string
		message          []byte
		patterns, fields []string
	}{
		{"text, no match", result("a line of plain text that says nothing of interest. ", 0), []string{key}, nil},
		{"lines, no match", result("a line of text, \"quoted\", that says nothing\n", 0), []string{key}, nil},
		{"lines, 10 matches", result("a line of text, \"quoted\", that says nothing\n", 10), []string{key}, nil},
		{"lines, no literal prefix", result("a line of text, \"quoted\", that says nothing\n", 0),
			[]string{`\b(?i)bearer [a-z0-9]+`}, nil},
		{"records, pattern", records, []string{key}, nil},
		{"records, pattern and field", records, []string{key}, []string{"password"}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			r := newRedactor(b, bench.patterns, bench.fields)
			b.SetBytes(int64(len(bench.message)))
			b.ReportAllocs()
			for b.Loop() {
				r.Message(bench.message)
			}
		})
	}
}

// The common prefix of all matches tells which texts may contain one.
func TestPrefixes(t *testing.T) {
	for expr, texts := range map[string][]string{
		"sk-[a-z]+": {"sk-", "xsk-", "s-sk-", "--sk-x", "ssk-k-"},
		"AKIA":      {"AKIA", "AAKIA", "AKAKIA"},
		"aab[0-9]":  {"aab", "aaab", "abaab"},
		"[a-z]+":    {"", "x"},
	} {
		p := newRedactor(t, []string{expr}, nil).patterns[0]
		for _, text := range texts {
			if !p.mayMatchIn([]byte(text)) {
				t.Errorf("%s may be in %q", expr, text)
			}
			for i := range len(text) {
				if part := text[:i]; p.mayMatchIn([]byte(part)) != strings.Contains(part, string(p.prefix)) {
					t.Errorf("%s in %q: %t", expr, part, p.mayMatchIn([]byte(part)))
				}
			}
		}
	}
}
