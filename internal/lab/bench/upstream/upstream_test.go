package upstream

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// TestPathsSayWhatAServerIsLike asks servers over HTTP.
func TestPathsSayWhatAServerIsLike(t *testing.T) {
	const call, list, discover = `{"jsonrpc":"2.0","id":1,"method":"tools/call"}`, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`,
		`{"jsonrpc":"2.0","id":1,"method":"server/discover"}`
	const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`
	for _, c := range []struct{ name, path, message, contentType, body string }{
		{"a call is answered with so many characters", CallPath + "10", call, "application/json", `{"type":"text","text":"An observa"}`},
		{"a call is answered with an event", EventsPath + "10", call, "text/event-stream", "event: message\ndata: {\"jsonrpc\""},
		{"the event ends", EventsPath + "10", call, "text/event-stream", "}]}}\n\n"},
		{"only calls are answered with events", EventsPath + "10", initialize, "application/json", `"protocolVersion":"2025-11-25"`},
		{"a server has so many tools", FixedPath + "3/7", list, "application/json", `"name":"tool_2"`},
		{"a server that is listened to sends notifications", ListenPath + "3", initialize, "application/json", `"listChanged":true`},
		{"a server of the legacy era knows no discovery", CallPath + "10", discover, "application/json", `"code":-32601`},
		{"a server of the modern era does", ModernPath + "10", discover, "application/json", mcp.Stateless},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := httptest.NewRecorder()
			new(handler).ServeHTTP(w, httptest.NewRequest("POST", c.path, strings.NewReader(c.message)))
			if got := w.Header().Get("Content-Type"); got != c.contentType {
				t.Errorf("content type %s", got)
			}
			if !strings.Contains(w.Body.String(), c.body) {
				t.Errorf("%s has no %s", w.Body, c.body)
			}
		})
	}
}
