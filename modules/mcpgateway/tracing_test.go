package mcpgateway

import (
	"net/http"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/trace"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// withSpan returns a request that belongs to a trace.
func withSpan(r *http.Request) *http.Request {
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2},
		TraceFlags: trace.FlagsSampled})
	return r.WithContext(trace.ContextWithSpanContext(r.Context(), span))
}

// A trace does not change the meaning of a message, not even of an odd one.
func TestTracesOfOddMessages(t *testing.T) { // A54
	server := newRecordingServer(t, func(w http.ResponseWriter, _ *http.Request, got receivedRequest) {
		if got.is("initialize") {
			respond(w, got, toolsHandshake)
			return
		}
		respond(w, got, `{"tools":[{"name":"ok","inputSchema":{}},{"name":"secret","inputSchema":{}}]}`)
	})
	h := adaptGateway(t,
		`{`+denyRules("a::secret")+`"servers":[`+server.config("a")+`,`+serverOf("dead", proxyTo("", "127.0.0.1:1"))+`]}`)
	for _, tt := range []struct {
		name, params string
		told         bool // the server gets the trace
	}{
		{"no params", ``, true},
		{"params", `,"params":{}`, true},
		{"params that are null", `,"params":null`, true},
		{"params that are a list", `,"params":[1]`, false},
		{"params that are a string", `,"params":"x"`, false},
		{"meta", `,"params":{"_meta":{}}`, true},
		{"meta with another member", `,"params":{"_meta":{"x":1}}`, true},
		{"meta that is null", `,"params":{"_meta":null}`, true},
		{"meta that is a list", `,"params":{"_meta":[]}`, true},
		{"a trace that is null", `,"params":{"_meta":{"traceparent":null}}`, false},
	} {
		message := `{"jsonrpc":"2.0","id":7,"method":"tools/list"` + tt.params + `}`
		for _, path := range append([]string{"/mcp"}, single...) {
			t.Run(tt.name+" at "+path, func(t *testing.T) {
				var headers []string
				if path == "/mcp" {
					headers = []string{mcp.SessionHeader, startSession(t, h)}
				}
				before := len(server.requests())
				w := serve(t, h, withSpan(newPost(path, message, headers...)))
				if got := w.Body.String(); strings.Contains(got, "secret") || !strings.Contains(got, `"id":7`) {
					t.Errorf("got %s", got)
				}
				if path == "/mcp" {
					return // the gateway sends its own requests
				}
				var m jsonrpc.Message
				all := server.requests()[before:]
				if len(all) != 1 || m.ReadRequest([]byte(all[0].body)) != nil {
					t.Fatalf("the server got %+v", all)
				}
				if told := strings.HasPrefix(m.Text(jsonrpc.Traceparent), "00-01"); told != tt.told ||
					!m.Is(jsonrpc.Method, "tools/list") {
					t.Errorf("the server got %s", all[0].body)
				}
			})
		}
		for _, path := range []string{"/mcp/dead", "/api/mcp-gateway/dead/rpc"} {
			t.Run(tt.name+" at "+path, func(t *testing.T) {
				if w := serve(t, h, withSpan(newPost(path, message))); !strings.Contains(w.Body.String(), `"id":7`) {
					t.Errorf("%d %s", w.Code, w.Body)
				}
			})
		}
	}
}
