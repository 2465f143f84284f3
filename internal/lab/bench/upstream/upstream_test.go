package upstream

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// TestPathsSelectBehavior sends requests to servers over HTTP.
func TestPathsSelectBehavior(t *testing.T) {
	request := func(method string) string { return `{"jsonrpc":"2.0","id":1,"method":"` + method + `"}` }
	const json, events = "application/json", "text/event-stream"
	for _, c := range []struct{ name, path, method, contentType, body string }{
		{"a result has the requested length", CallPath + "10", "tools/call", json, `"text":"An observa"`},
		{"a call returns an event", EventsPath + "10", "tools/call", events, "event: message\ndata: {"},
		{"the event is terminated", EventsPath + "10", "tools/call", events, "}]}}\n\n"},
		{"only calls return events", EventsPath + "10", "initialize", json, `"protocolVersion":`},
		{"a server has the requested number of tools", FixedPath + "3/7", "tools/list", json, `"name":"tool_2"`},
		{"a server with a stream sends notifications", ListenPath + "3", "initialize", json, `"listChanged":true`},
		{"a legacy server does not support discovery", CallPath + "10", "server/discover", json, `"code":-32601`},
		{"a modern server supports discovery", ModernPath + "10", "server/discover", json, mcp.Stateless},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := httptest.NewRecorder()
			new(handler).ServeHTTP(w, httptest.NewRequest("POST", c.path, strings.NewReader(request(c.method))))
			if got := w.Header().Get("Content-Type"); got != c.contentType {
				t.Errorf("content type %s, want %s", got, c.contentType)
			}
			if !strings.Contains(w.Body.String(), c.body) {
				t.Errorf("%s does not contain %s", w.Body, c.body)
			}
		})
	}
}
