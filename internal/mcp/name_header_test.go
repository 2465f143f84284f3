package mcp

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

func TestHeaderText(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"a name", "read_file", "read_file"},
		{"a URI", `x://a/b?c=d&e="f"`, `x://a/b?c=d&e="f"`},
		{"a space within", "a b", "a b"},
		{"nothing", "", ""},
		{"a space before", " a", "=?base64?IGE=?="},
		{"a space after", "a ", "=?base64?YSA=?="},
		{"only a space", " ", "=?base64?IA==?="},
		{"beyond ASCII", "é", "=?base64?w6k=?="},
		{"a line break", "a\r\nb", "=?base64?YQ0KYg==?="},
		{"a tab", "a\tb", "=?base64?YQli?="},
		{"a character for deletion", "a\x7f", "=?base64?YX8=?="},
		{"what looks like base64", "=?base64?w6k=?=", "=?base64?PT9iYXNlNjQ/dzZrPT89?="},
		{"what does so in capitals", "=?BASE64?w6k=?=", "=?base64?PT9CQVNFNjQ/dzZrPT89?="},
		{"what does so and is none", "=?base64?=", "=?base64?PT9iYXNlNjQ/PQ==?="},
		{"half of what does so", "=?base64?x", "=?base64?x"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := HeaderText(tt.text)
			if got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			if text, ok := headerText(got); text != tt.text || !ok {
				t.Errorf("it is read as %q, %t", text, ok)
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
				h := header("Mcp-Name", "old", "Mcp-Method", "old", "Mcp-Method", "older", "MCP-Protocol-Version", "old", "Accept", "*/*")
				SetModern(h, m, Stateless)
				if failure := CheckModern(h, m); failure != nil {
					t.Errorf("got %v of %v", failure, h)
				}
				if len(h.Values("Mcp-Name")) == 1 != (member != "") || len(h.Values("Mcp-Method")) != 1 || h.Get("Accept") != "*/*" {
					t.Errorf("got %v", h)
				}
				if strings.ContainsAny(h.Get("Mcp-Name"), "\r\n\x00") {
					t.Errorf("got %q", h.Get("Mcp-Name"))
				}
			})
		}
	}
}

func TestSetModernOfNoName(t *testing.T) {
	for _, params := range []string{`{}`, `{"name":""}`, `{"name":1}`, `[]`} {
		h := header("Mcp-Name", "old")
		SetModern(h, message(t, `{"id":1,"method":"tools/call","params":`+params+`}`), Stateless)
		if h.Values("Mcp-Name") != nil {
			t.Errorf("%s: got %v", params, h)
		}
	}
}

func TestSetModernOfAMethodThatNoHeaderHas(t *testing.T) {
	h := http.Header{}
	SetModern(h, message(t, `{"id":1,"method":"a\r\nX-Evil: 1"}`), Stateless)
	if strings.ContainsAny(h.Get("Mcp-Method"), "\r\n") {
		t.Errorf("got %q", h.Get("Mcp-Method"))
	}
}
