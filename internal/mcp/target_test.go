package mcp

import (
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

func TestTargetOf(t *testing.T) { // A53, A54, A55
	tool := func(name string) Target { return Target{"s", Tool, name} }
	prompt := func(name string) Target { return Target{"s", Prompt, name} }
	resource := func(uri string) Target { return Target{"s", Resource, uri} }
	anything, other := Target{Server: "s"}, Target{Server: "s", Kind: Other}
	for _, tt := range []struct {
		name, message string
		want          Target
		known         bool
	}{
		{"a tool", `"method":"tools/call","params":{"name":"x"}`, tool("x"), true},
		{"a tool with escapes", `"m\u0065thod":"tools\/call","params":{"n\u0061me":"\u0078"}`, tool("x"),
			true},
		{"a tool without a name", `"method":"tools/call","params":{}`, tool(""), false},
		{"a tool without params", `"method":"tools/call"`, tool(""), false},
		{"a tool whose name is a list", `"method":"tools/call","params":{"name":["x"]}`, tool(""), false},
		{"a tool whose name is a number", `"method":"tools/call","params":{"name":1}`, tool(""), false},
		{"params as an array", `"method":"tools/call","params":["x"]`, tool(""), false},
		{"a prompt", `"method":"prompts/get","params":{"name":"x"}`, prompt("x"), true},
		{"a prompt whose name is an object", `"method":"prompts/get","params":{"name":{}}`, prompt(""), false},
		{"a resource", `"method":"resources/read","params":{"uri":"x://a"}`, resource("x://a"), true},
		{"a subscription", `"method":"resources/subscribe","params":{"uri":"x://a"}`, resource("x://a"), true},
		{"the end of a subscription", `"method":"resources/unsubscribe","params":{"uri":"x://a"}`, resource("x://a"), true},
		{"a resource whose URI is null", `"method":"resources/read","params":{"uri":null}`, resource(""), false},
		{"a prompt argument", `"method":"completion/complete","params":{"ref":{"type":"ref/prompt","name":"x"}}`,
			prompt("x"), true},
		{"a template argument",
			`"method":"completion/complete","params":{"ref":{"type":"ref/resource","uri":"x://{a}"}}`, resource("x://{a}"),
			true},
		{"a reference to a prompt and a resource",
			`"method":"completion/complete","params":{"ref":{"type":"ref/prompt","name":"x","uri":"x://a"}}`, anything, false},
		{"a prompt and an empty URI",
			`"method":"completion/complete","params":{"ref":{"type":"ref/prompt","name":"x","uri":null}}`, anything, false},
		{"a prompt without a name", `"method":"completion/complete","params":{"ref":{"type":"ref/prompt"}}`, prompt(""),
			false},
		{"a prompt with a list as name", `"method":"completion/complete","params":{"ref":{"name":["x"]}}`, prompt(""),
			false},
		{"a task", `"method":"tasks/result","params":{"taskId":"1"}`, other, true},
		{"all tasks", `"method":"tasks/list"`, other, true},
		{"a skill", `"method":"skills/get","params":{"uri":"a:b"}`, resource("a:b"), true},
		{"a directory", `"method":"resources/directory/read","params":{"uri":"a:b"}`, resource("a:b"), true},
		{"a directory of a list", `"method":"resources/directory/read","params":{"uri":["a:b"]}`, resource(""), false},
		{"all skills", `"method":"skills/list"`, anything, true},
		{"an unknown method", `"method":"admin/deleteEverything"`, other, true},
		{"an empty method", `"method":""`, other, true},
		{"a list", `"method":"tools/list"`, anything, true},
		{"initialize", `"method":"initialize"`, anything, true},
		{"a notification", `"method":"notifications/initialized"`, anything, true},
		{"an unknown notification", `"method":"notifications/vendor"`, anything, true},
		{"a response", `"result":{}`, anything, true},
	} {
		for _, id := range []string{``, `"id":1,`} {
			if id == "" && tt.name == "a response" {
				continue
			}
			if id != "" && tt.name == "an unknown notification" {
				tt.want = other // with an id, it is not a notification
			}
			t.Run(tt.name+" "+id, func(t *testing.T) {
				var m jsonrpc.Message
				if failure := m.ReadRequest([]byte(`{"jsonrpc":"2.0",` + id + tt.message + `}`)); failure != nil {
					t.Fatal(failure)
				}
				if got, known := TargetOf("s", &m); got != tt.want || known != tt.known {
					t.Errorf("got %+v, %t", got, known)
				}
			})
		}
	}
}
