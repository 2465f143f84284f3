package mcp

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

func message(t *testing.T, data string) *jsonrpc.Message {
	t.Helper()
	m := new(jsonrpc.Message)
	if failure := m.Read([]byte(data)); failure != nil {
		t.Fatal(failure)
	}
	return m
}

func header(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

const (
	versionKey      = `"io.modelcontextprotocol/protocolVersion":`
	capabilitiesKey = `"io.modelcontextprotocol/clientCapabilities":{}`
	meta            = `"_meta":{` + versionKey + `"2026-07-28",` + capabilitiesKey + `}`
)

func TestEras(t *testing.T) {
	tests := []struct {
		name   string
		header string
		data   string
		want   Era
	}{
		{"no version", "", `{"id":1,"method":"tools/list"}`, Legacy},
		{"an old version in the header", "2025-06-18", `{"id":1,"method":"tools/list"}`, Legacy},
		{"the oldest", "2024-11-05", `{"id":1,"method":"tools/list"}`, Legacy},
		{"the new version in the header", "2026-07-28", `{"id":1,"method":"tools/list"}`, Modern},
		{"an unknown version", "2099-01-01", `{"id":1,"method":"initialize"}`, Modern},
		{"a version in _meta", "", `{"id":1,"method":"initialize","params":{` + meta + `}}`, Modern},
		{"other versions in _meta and header", "2025-06-18", `{"id":1,"method":"x","params":{` + meta + `}}`, Modern},
		{"a modern method without a version", "", `{"id":1,"method":"server/discover"}`, Legacy},
		{"a version in initialize", "",
			`{"id":1,"method":"initialize","params":{"protocolVersion":"2026-07-28"}}`, Legacy},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := EraOf(tt.header, message(t, tt.data)); got != tt.want {
				t.Errorf("got %d", got)
			}
		})
	}
}

func TestNegotiate(t *testing.T) { // A5
	tests := []struct{ requested, server, want string }{
		{"2025-06-18", "2025-11-25", "2025-06-18"},
		{"2025-11-25", "2025-11-25", "2025-11-25"},
		{"2025-11-25", "2025-03-26", "2025-03-26"},
		{"2099-01-01", "2025-11-25", "2025-11-25"},
		{"", "2025-11-25", "2025-11-25"},
		{"2025-06-18", "2099-01-01", "2025-06-18"},
		{"2026-07-28", "2025-11-25", "2025-11-25"},
	}
	for _, tt := range tests {
		if got := Negotiate(tt.requested, tt.server); got != tt.want {
			t.Errorf("%s at a server with %s: got %s, want %s", tt.requested, tt.server, got, tt.want)
		}
	}
}

func TestCheckModern(t *testing.T) {
	request := func(method, members string) string {
		if members != "" {
			members += ","
		}
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{%s%s}}`, method, members, meta)
	}
	const version = "2026-07-28"
	tests := []struct {
		name    string
		data    string
		headers []string
		code    int // 0 for none
	}{
		{"a list", request("tools/list", ""), []string{"MCP-Protocol-Version", version, "Mcp-Method", "tools/list"}, 0},
		{"a name that is not required", request("tools/list", ""), []string{"MCP-Protocol-Version", version,
			"Mcp-Method", "tools/list", "Mcp-Name", "x"}, 0},
		{"a call", request("tools/call", `"name":"echo"`), []string{"MCP-Protocol-Version", version, "Mcp-Method",
			"tools/call", "Mcp-Name", "echo"}, 0},
		{"a prompt", request("prompts/get", `"name":"p"`), []string{"MCP-Protocol-Version", version, "Mcp-Method",
			"prompts/get", "Mcp-Name", "p"}, 0},
		{"a resource", request("resources/read", `"uri":"a:b"`), []string{"MCP-Protocol-Version", version, "Mcp-Method",
			"resources/read", "Mcp-Name", "a:b"}, 0},
		{"a task", request("tasks/get", `"taskId":"t"`), []string{"MCP-Protocol-Version", version, "Mcp-Method", "tasks/get",
			"Mcp-Name", "t"}, 0},
		{"another task", request("tasks/cancel", `"taskId":"t"`), []string{"MCP-Protocol-Version", version, "Mcp-Method",
			"tasks/cancel", "Mcp-Name", "u"}, -32020},
		{"a list of tasks", request("tasks/list", ""), []string{"MCP-Protocol-Version", version, "Mcp-Method",
			"tasks/list"}, 0},
		{"a skill, which has no name header", request("skills/get", `"uri":"a:b"`), []string{"MCP-Protocol-Version",
			version, "Mcp-Method", "skills/get"}, 0},
		{"a name with an escape", request("tools/call", `"name":"\u0065cho"`), []string{"MCP-Protocol-Version", version,
			"Mcp-Method", "tools/call", "Mcp-Name", "echo"}, 0},
		{"a name in base64", request("tools/call", `"name":"é"`), []string{"MCP-Protocol-Version", version, "Mcp-Method",
			"tools/call", "Mcp-Name", "=?base64?w6k=?="}, 0},
		{"no header", request("tools/list", ""), nil, -32020},
		{"another version in the header", request("tools/list", ""), []string{"MCP-Protocol-Version", "2025-11-25",
			"Mcp-Method", "tools/list"}, -32020},
		{"no _meta", `{"id":1,"method":"tools/list"}`, []string{"MCP-Protocol-Version", version, "Mcp-Method", "tools/list"},
			-32602},
		{"an empty _meta", `{"id":1,"method":"tools/list","params":{"_meta":{}}}`, []string{"MCP-Protocol-Version", version,
			"Mcp-Method", "tools/list"}, -32602},
		{"no capabilities", `{"id":1,"method":"tools/list","params":{"_meta":{` + versionKey + `"2026-07-28"}}}`,
			[]string{"MCP-Protocol-Version", version, "Mcp-Method", "tools/list"}, -32602},
		{"a version that is not a string", `{"id":1,"method":"tools/list","params":{"_meta":{` + versionKey + `1,` +
			capabilitiesKey + `}}}`, []string{"MCP-Protocol-Version", "1", "Mcp-Method", "tools/list"}, -32020},
		{"no method", request("tools/list", ""), []string{"MCP-Protocol-Version", version}, -32020},
		{"another method", request("tools/list", ""), []string{"MCP-Protocol-Version", version, "Mcp-Method", "tools/call"},
			-32020},
		{"a method in another case", request("tools/list", ""), []string{"MCP-Protocol-Version", version, "Mcp-Method",
			"Tools/list"}, -32020},
		{"two methods", request("tools/list", ""), []string{"MCP-Protocol-Version", version, "Mcp-Method", "tools/list",
			"Mcp-Method", "tools/call"}, -32020},
		{"two names", request("tools/call", `"name":"echo"`), []string{"MCP-Protocol-Version", version, "Mcp-Method",
			"tools/call", "Mcp-Name", "echo", "Mcp-Name", "rm"}, -32020},
		{"no name", request("tools/call", `"name":"echo"`), []string{"MCP-Protocol-Version", version, "Mcp-Method",
			"tools/call"}, -32020},
		{"another name", request("tools/call", `"name":"echo"`), []string{"MCP-Protocol-Version", version, "Mcp-Method",
			"tools/call", "Mcp-Name", "rm"}, -32020},
		{"a name that is not in the body", request("tools/call", ""), []string{"MCP-Protocol-Version", version, "Mcp-Method",
			"tools/call", "Mcp-Name", "echo"}, -32020},
		{"a name that is empty on both sides", request("tools/call", `"name":""`), []string{"MCP-Protocol-Version", version,
			"Mcp-Method", "tools/call", "Mcp-Name", ""}, -32020},
		{"invalid base64", request("tools/call", `"name":"x"`), []string{"MCP-Protocol-Version", version, "Mcp-Method",
			"tools/call", "Mcp-Name", "=?base64?*?="}, -32020},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			failure := CheckModern(header(tt.headers...), message(t, tt.data))
			switch {
			case failure == nil && tt.code != 0:
				t.Error("no error")
			case failure != nil && (failure.Code != tt.code || failure.Status != http.StatusBadRequest):
				t.Errorf("got %d %s", failure.Code, failure.Message)
			}
		})
	}
}

func TestCheckHeaders(t *testing.T) {
	const call, list = `{"id":1,"method":"tools/call","params":{"name":"echo"}}`, `{"id":1,"method":"tools/list"}`
	for _, tt := range []struct {
		name, data string
		headers    []string
		right      bool
	}{
		{"no headers", call, nil, true},
		{"matching headers", call, []string{"Mcp-Method", "tools/call", "Mcp-Name", "echo"}, true},
		{"only the method", call, []string{"Mcp-Method", "tools/call"}, true},
		{"only the name", call, []string{"Mcp-Name", "echo"}, true},
		{"a name header without a name", list, []string{"Mcp-Name", "echo"}, true},
		{"another method", list, []string{"Mcp-Method", "tools/call"}, false},
		{"another name", call, []string{"Mcp-Name", "rm"}, false},
		{"an empty name", call, []string{"Mcp-Name", ""}, false},
		{"two names", call, []string{"Mcp-Name", "echo", "Mcp-Name", "rm"}, false},
		{"two versions", call, []string{"MCP-Protocol-Version", "2025-11-25", "MCP-Protocol-Version", "2026-07-28"}, false},
	} {
		if failure := CheckHeaders(header(tt.headers...), message(t, tt.data)); (failure == nil) != tt.right {
			t.Errorf("%s: got %v", tt.name, failure)
		}
	}
}

func TestKnownMethods(t *testing.T) {
	for method, want := range map[string]bool{"tools/call": true, "subscriptions/listen": true,
		"notifications/progress": true, "tools/Call": false, "made/up": false, "": false} {
		if name, ok := KnownMethod(method); ok != want || ok && name != method {
			t.Errorf("%q: got %q, %t", method, name, ok)
		}
	}
}

func TestHeaderText(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"a name", "read_file", "read_file"},
		{"a URI", `x://a/b?c=d&e="f"`, `x://a/b?c=d&e="f"`},
		{"an inner space", "a b", "a b"},
		{"empty", "", ""},
		{"a leading space", " a", "=?base64?IGE=?="},
		{"a trailing space", "a ", "=?base64?YSA=?="},
		{"only a space", " ", "=?base64?IA==?="},
		{"beyond ASCII", "é", "=?base64?w6k=?="},
		{"a line break", "a\r\nb", "=?base64?YQ0KYg==?="},
		{"a tab", "a\tb", "=?base64?YQli?="},
		{"a delete character", "a\x7f", "=?base64?YX8=?="},
		{"a value like base64", "=?base64?w6k=?=", "=?base64?PT9iYXNlNjQ/dzZrPT89?="},
		{"a value like base64 in capitals", "=?BASE64?w6k=?=", "=?base64?PT9CQVNFNjQ/dzZrPT89?="},
		{"a prefix that is also the suffix", "=?base64?=", "=?base64?PT9iYXNlNjQ/PQ==?="},
		{"only the prefix of base64", "=?base64?x", "=?base64?x"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := HeaderText(tt.text)
			if got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			if text, ok := decodeHeaderText(got); text != tt.text || !ok {
				t.Errorf("read back as %q, %t", text, ok)
			}
		})
	}
}

func TestSetModern(t *testing.T) {
	names := []string{
		"echo", "a b", " a", "é", "世界😀", `say "hi"`, `back\slash`, "=?base64?w6k=?=", "a\r\nX-Evil: 1", "\x00", "alpha::echo",
	}
	for method, member := range map[string]string{
		"tools/call": "name", "prompts/get": "name", "resources/read": "uri", "tasks/get": "taskId",
		"tools/list": "", "server/discover": "",
	} {
		for _, name := range names {
			t.Run(fmt.Sprintf("%s of %q", method, name), func(t *testing.T) {
				named := ""
				if member != "" {
					named = fmt.Sprintf("%q:%s,", member, jsonrpc.Quote(name))
				}
				m := message(t, fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{%s%s}}`, method, named, meta))
				h := header("Mcp-Name", "old", "Mcp-Method", "old", "Mcp-Method", "older", "MCP-Protocol-Version", "old", "Accept",
					"*/*")
				SetModern(h, m, Stateless)
				if failure := CheckModern(h, m); failure != nil {
					t.Errorf("got %v of %v", failure, h)
				}
				if len(h.Values("Mcp-Name")) == 1 != (member != "") || len(h.Values("Mcp-Method")) != 1 ||
					h.Get("Accept") != "*/*" {
					t.Errorf("got %v", h)
				}
				if strings.ContainsAny(h.Get("Mcp-Name"), "\r\n\x00") {
					t.Errorf("got %q", h.Get("Mcp-Name"))
				}
			})
		}
	}
}

func TestSetModernWithoutName(t *testing.T) {
	for _, params := range []string{`{}`, `{"name":""}`, `{"name":1}`, `[]`} {
		h := header("Mcp-Name", "old")
		SetModern(h, message(t, `{"id":1,"method":"tools/call","params":`+params+`}`), Stateless)
		if h.Values("Mcp-Name") != nil {
			t.Errorf("%s: got %v", params, h)
		}
	}
}

func TestSetModernOfInvalidMethod(t *testing.T) {
	h := http.Header{}
	SetModern(h, message(t, `{"id":1,"method":"a\r\nX-Evil: 1"}`), Stateless)
	if strings.ContainsAny(h.Get("Mcp-Method"), "\r\n") {
		t.Errorf("got %q", h.Get("Mcp-Method"))
	}
}

func TestParamHeaders(t *testing.T) {
	headers := ParamHeaders{}
	cursor, err := headers.Add([]byte(`{"nextCursor":"more","tools":[
		{"name":"plain","inputSchema":{"type":"object","properties":{"x":{"type":"string"}}}},
		{"name":"broken","inputSchema":{"properties":["x-mcp-header"]}},
		{"name":"query","inputSchema":{"type":"object","properties":{
			"region":{"type":"string","x-mcp-header":"Region"},
			"n":{"type":"integer","x-mcp-header":"N"},
			"on":{"type":"boolean","x-mcp-header":"On"},
			"at":{"type":"object","properties":{"zone":{"type":"string","x-mcp-header":"Zone"}}}}}}]}`))
	if err != nil || cursor == nil || *cursor != "more" || len(headers) != 1 {
		t.Fatalf("got %v, %v, %v", headers, cursor, err)
	}
	for _, bad := range []string{``, `[]`, `{"tools":1}`} {
		if _, err := headers.Add([]byte(bad)); err == nil {
			t.Errorf("%q was read as a list", bad)
		}
	}
	tests := []struct {
		name      string
		tool      string
		arguments string
		headers   []string
		ok        bool
	}{
		{"a tool without headers", "plain", `{"x":"y"}`, nil, true},
		{"an unknown tool", "zz", `{"region":"eu"}`, nil, true},
		{"neither argument nor header", "query", `{}`, nil, true},
		{"no arguments", "query", `null`, nil, true},
		{"a string", "query", `{"region":"eu"}`, []string{"Mcp-Param-Region", "eu"}, true},
		{"a string with an escape", "query", `{"r\u0065gion":"\u0065u"}`, []string{"Mcp-Param-Region", "eu"}, true},
		{"a string in base64", "query", `{"region":"é"}`, []string{"Mcp-Param-Region", "=?base64?w6k=?="}, true},
		{"a number", "query", `{"n":12345678901234567890}`, []string{"Mcp-Param-N", "12345678901234567890"}, true},
		{"a boolean", "query", `{"on":true}`, []string{"Mcp-Param-On", "true"}, true},
		{"a nested argument", "query", `{"at":{"zone":"a"}}`, []string{"Mcp-Param-Zone", "a"}, true},
		{"null counts as absent", "query", `{"region":null}`, nil, true},
		{"a number in another form", "query", `{"n":42}`, []string{"Mcp-Param-N", "42.0"}, true},
		{"a string that looks like a number", "query", `{"region":"42"}`, []string{"Mcp-Param-Region", "42.0"}, false},
		{"no header", "query", `{"region":"eu"}`, nil, false},
		{"no argument", "query", `{}`, []string{"Mcp-Param-Region", "eu"}, false},
		{"another value", "query", `{"region":"eu"}`, []string{"Mcp-Param-Region", "us"}, false},
		{"two values", "query", `{"region":"eu"}`, []string{"Mcp-Param-Region", "eu", "Mcp-Param-Region", "us"}, false},
		{"invalid base64", "query", `{"region":"eu"}`, []string{"Mcp-Param-Region", "=?base64?*?="}, false},
		{"an object as argument", "query", `{"region":{}}`, []string{"Mcp-Param-Region", "{}"}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := message(t, fmt.Sprintf(`{"id":1,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, tt.tool,
				tt.arguments))
			failure := headers.Check(header(tt.headers...), m)
			if (failure == nil) != tt.ok {
				t.Errorf("got %v", failure)
			}
			if failure != nil && (failure.Code != -32020 || !strings.Contains(failure.Message, "Mcp-Param-")) {
				t.Errorf("got %d %s", failure.Code, failure.Message)
			}
		})
	}
}

func TestSetParamHeaders(t *testing.T) {
	headers := ParamHeaders{}
	if _, err := headers.Add([]byte(`{"tools":[
		{"name":"bad","inputSchema":{"properties":{"x":{"type":"string","x-mcp-header":"a b"},"z":{"type":"string","x-mcp-header":"Z"}}}},
		{"name":"query","inputSchema":{"properties":{
			"region":{"type":"string","x-mcp-header":"Region"},
			"n":{"type":"integer","x-mcp-header":"x-N"},
			"on":{"type":"boolean","x-mcp-header":"On"},
			"at":{"properties":{"zone":{"type":"string","x-mcp-header":"Zone"}}}}}}]}`)); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name      string
		method    string
		tool      string
		arguments string
		want      map[string]string
	}{
		{"all kinds", "tools/call", "query", `{"region":"eu","n":4.2e1,"on":false,"at":{"zone":"a"}}`,
			map[string]string{"Mcp-Param-Region": "eu", "Mcp-Param-X-N": "42", "Mcp-Param-On": "false", "Mcp-Param-Zone": "a"}},
		{"beyond ASCII", "tools/call", "query", `{"region":"é"}`, map[string]string{"Mcp-Param-Region": "=?base64?w6k=?="}},
		{"an injected header", "tools/call", "query", `{"region":"a\r\nX-Evil: 1"}`,
			map[string]string{"Mcp-Param-Region": "=?base64?YQ0KWC1FdmlsOiAx?="}},
		{"quotes", "tools/call", "query", `{"region":"\"eu\""}`, map[string]string{"Mcp-Param-Region": `"eu"`}},
		{"an empty string", "tools/call", "query", `{"region":""}`, map[string]string{"Mcp-Param-Region": ""}},
		{"null and an object", "tools/call", "query", `{"region":null,"n":{},"on":[]}`, nil},
		{"no arguments", "tools/call", "query", `null`, nil},
		{"an unknown tool", "tools/call", "zz", `{"region":"eu"}`, nil},
		{"a tool whose annotations are invalid", "tools/call", "bad", `{"x":"1","z":"2"}`, nil},
		{"a prompt of the same name", "prompts/get", "query", `{"region":"eu"}`, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := message(t, fmt.Sprintf(`{"id":1,"method":%q,"params":{"name":%q,"arguments":%s}}`, tt.method, tt.tool,
				tt.arguments))
			h := header("Mcp-Param-Region", "old", "Mcp-Param-Region", "older", "Mcp-Param-Other", "x", "Mcp-Params", "stays",
				"Accept", "*/*")
			h["mcp-param-raw"] = []string{"x"}
			headers.Set(h, m)
			if h.Get("Accept") != "*/*" || h.Get("Mcp-Params") != "stays" || len(h) != 2+len(tt.want) {
				t.Errorf("got %v", h)
			}
			for name, value := range tt.want {
				if got := h.Values(name); len(got) != 1 || got[0] != value {
					t.Errorf("%s: got %q, want %q", name, got, value)
				}
			}
			if failure := headers.Check(h, m); tt.method == "tools/call" && failure != nil {
				t.Errorf("got %v", failure)
			}
		})
	}
}

// A server may require many headers of a large call. The cost to set them does not grow with the
// product of both.
func TestSetManyParamHeaders(t *testing.T) {
	const n = 500
	var properties, values []string
	for i := range n {
		properties = append(properties, fmt.Sprintf(`"p%d":{"type":"integer","x-mcp-header":"H%d"}`, i, i))
		values = append(values, fmt.Sprintf(`"p%d":%d`, i, i))
	}
	headers := ParamHeaders{}
	object := `{"type":"object","properties":{"at":{"properties":{` + strings.Join(properties, ",") + `}}}}`
	if err := headers.AddTool("many", []byte(`{"name":"many","inputSchema":`+object+`}`)); err != nil {
		t.Fatal(err)
	}
	m := message(t, `{"id":1,"method":"tools/call","params":{"name":"many","arguments":{"at":{`+strings.Join(values,
		",")+`}}}}`)
	var h http.Header
	allocations := testing.AllocsPerRun(1, func() {
		h = http.Header{}
		headers.Set(h, m)
	})
	if len(h) != n || h.Get("Mcp-Param-H7") != "7" || allocations > 100*n {
		t.Errorf("%d headers by %v allocations", len(h), allocations)
	}
}

// Clients must leave out tools with invalid annotations.
func TestInvalidParamHeaders(t *testing.T) {
	deep := strings.Repeat(`{"properties":{"a":`, 70) + `{"type":"string","x-mcp-header":"A"}` + strings.Repeat(`}}`, 70)
	tests := []struct {
		name, schema string
		want         string // part of the error, "" if valid
	}{
		{"valid", `{"properties":{"a":{"type":"string","x-mcp-header":"A"},"b":{"properties":{"c":{"type":"integer",` +
			`"x-mcp-header":"B-c"}}}}}`, ""},
		{"a property with that name", `{"properties":{"x-mcp-header":{"type":"object"}}}`, ""},
		{"a default with that name", `{"properties":{"a":{"type":"object","default":{"x-mcp-header":""}}}}`, ""},
		{"empty", `{"properties":{"a":{"type":"string","x-mcp-header":""}}}`, "x-mcp-header of a: not a valid header name"},
		{"not a string", `{"properties":{"a":{"type":"string","x-mcp-header":true}}}`, "not a valid header name"},
		{"a space", `{"properties":{"a":{"type":"string","x-mcp-header":"My Region"}}}`, "not a valid header name"},
		{"a colon", `{"properties":{"a":{"type":"string","x-mcp-header":"A:B"}}}`, "not a valid header name"},
		{"beyond ASCII", `{"properties":{"a":{"type":"string","x-mcp-header":"Région"}}}`, "not a valid header name"},
		{"a control character", `{"properties":{"a":{"type":"string","x-mcp-header":"A\t1"}}}`, "not a valid header name"},
		{"an object", `{"properties":{"a":{"type":"object","x-mcp-header":"A"}}}`, "the type of the property"},
		{"a number", `{"properties":{"a":{"type":"number","x-mcp-header":"A"}}}`, "the type of the property"},
		{"no type", `{"properties":{"a":{"x-mcp-header":"A"}}}`, "the type of the property"},
		{"several types", `{"properties":{"a":{"type":["string","null"],"x-mcp-header":"A"}}}`, "the type of the property"},
		{"twice", `{"properties":{"a":{"type":"string","x-mcp-header":"A"},"b":{"type":"string","x-mcp-header":"a"}}}`,
			"is on two properties"},
		{"on the schema itself", `{"type":"string","x-mcp-header":"A"}`, "of the schema itself: only properties below"},
		{"in a list", `{"properties":{"a":{"type":"array","items":{"type":"string","x-mcp-header":"A"}}}}`,
			"of a.items: only properties below"},
		{"in an alternative", `{"anyOf":[true,{"properties":{"a":{"type":"string","x-mcp-header":"A"}}}]}`,
			"only properties below"},
		{"in a definition", `{"$defs":{"a":{"type":"string","x-mcp-header":"A"}}}`, "only properties below"},
		{"too deep", deep, "more than 64 levels"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := ParamHeaders{}.AddTool("t", []byte(`{"name":"t","inputSchema":`+tt.schema+`}`))
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}
