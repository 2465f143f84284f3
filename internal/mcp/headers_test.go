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
