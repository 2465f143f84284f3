package mcpgateway

import (
	"net/http"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/trace"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// spanned is a request that belongs to a trace.
func spanned(r *http.Request) *http.Request {
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2},
		TraceFlags: trace.FlagsSampled})
	return r.WithContext(trace.ContextWithSpanContext(r.Context(), span))
}

// A trace does not change the meaning of a message, however odd it is.
func TestTracesOfOddMessages(t *testing.T) { // A54
	server := newWitness(t, func(w http.ResponseWriter, _ *http.Request, got witnessed) {
		if got.is("initialize") {
			says(w, got, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}`)
			return
		}
		says(w, got, `{"tools":[{"name":"ok","inputSchema":{}},{"name":"secret","inputSchema":{}}]}`)
	})
	h := adaptGateway(t,
		`{`+denies("a::secret")+`"servers":[`+server.line("a")+`,`+serverOf("dead", proxyTo("", "127.0.0.1:1"))+`]}`)
	for _, tt := range []struct {
		name, params string
		told         bool // the server gets the trace
	}{
		{"no params", ``, true},
		{"params", `,"params":{}`, true},
		{"params that are null", `,"params":null`, true},
		{"params in a list", `,"params":[1]`, false},
		{"params that are a text", `,"params":"x"`, false},
		{"meta", `,"params":{"_meta":{}}`, true},
		{"meta of something else", `,"params":{"_meta":{"x":1}}`, true},
		{"meta that is null", `,"params":{"_meta":null}`, true},
		{"meta in a list", `,"params":{"_meta":[]}`, true},
		{"a trace that is null", `,"params":{"_meta":{"traceparent":null}}`, false},
	} {
		message := `{"jsonrpc":"2.0","id":7,"method":"tools/list"` + tt.params + `}`
		for _, path := range append([]string{"/mcp"}, single...) {
			t.Run(tt.name+" at "+path, func(t *testing.T) {
				var headers []string
				if path == "/mcp" {
					headers = []string{mcp.SessionHeader, session(t, h)}
				}
				before := len(server.saw())
				w := serves(t, h, spanned(posting(path, message, headers...)))
				if got := w.Body.String(); strings.Contains(got, "secret") || !strings.Contains(got, `"id":7`) {
					t.Errorf("got %s", got)
				}
				if path == "/mcp" {
					return // which asks as it likes
				}
				var m jsonrpc.Message
				all := server.saw()[before:]
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
				if w := serves(t, h, spanned(posting(path, message))); !strings.Contains(w.Body.String(), `"id":7`) {
					t.Errorf("%d %s", w.Code, w.Body)
				}
			})
		}
	}
}
