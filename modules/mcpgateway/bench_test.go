package mcpgateway

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
)

// BenchmarkServeHTTP compares a call through the gateway, masked and counted, with
// the same call through a bare reverse_proxy.
func BenchmarkServeHTTP(b *testing.B) {
	const request = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read_file","arguments":{"path":"/etc/hosts"}}}`
	answer := `{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"` + strings.Repeat("x", 1000) + `"}]}}`
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, answer)
	}))
	defer upstream.Close()
	proxy := `{"handler":"reverse_proxy","upstreams":[{"dial":"` + upstream.Listener.Addr().String() + `"}]}`

	for _, bench := range []struct{ name, path, config string }{
		{"reverse_proxy", "/mcp/files", proxy},
		{"canned upstream", "/mcp/files", ""},
		{"mcp", "/mcp/files", `{"handler":"mcp_gateway","servers":[{"name":"files","routes":[{"handle":[` + proxy + `]}]}]}`},
		{"mcp, mask off", "/mcp/files", `{"handler":"mcp_gateway","servers":[{"name":"files","mask":{"max_chars":0},"routes":[{"handle":[` + proxy + `]}]}]}`},
		{"rpc", "/api/mcp-gateway/files/rpc", `{"handler":"mcp_gateway","servers":[{"name":"files","routes":[{"handle":[` + proxy + `]}]}]}`},
		{"mcp, canned upstream", "/mcp/files", `{"handler":"mcp_gateway","servers":[{"name":"files"}]}`},
	} {
		b.Run(bench.name, func(b *testing.B) {
			handler := provisioned(b, bench.config)
			canned := caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
				_, _ = io.Copy(io.Discard, r.Body)
				w.Header().Set("Content-Type", "application/json")
				_, err := io.WriteString(w, answer)
				return err
			})
			if gateway, ok := handler.(*Handler); ok && len(gateway.Servers[0].Routes) == 0 {
				gateway.Servers[0].routes = canned
			}
			b.ReportAllocs()
			for b.Loop() {
				w := &discard{header: http.Header{}}
				r, _ := http.NewRequest(http.MethodPost, "http://localhost"+bench.path, strings.NewReader(request))
				r.Header.Set("Content-Type", "application/json")
				r.Header.Set("Accept", "application/json, text/event-stream")
				r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, new(caddyhttp.Server))
				caddyhttp.SetVar(r.Context(), caddyhttp.ClientIPVarKey, "127.0.0.1")
				r.RemoteAddr = "127.0.0.1:1234"
				var err error
				if handler == nil {
					err = canned.ServeHTTP(w, r)
				} else {
					err = handler.ServeHTTP(w, r, nil)
				}
				if err != nil || w.size < 1000 {
					b.Fatal(err, w.size)
				}
			}
		})
	}
}

// provisioned returns the handler of a configuration, ready to serve.
func provisioned(t testing.TB, config string) caddyhttp.MiddlewareHandler {
	t.Helper()
	if config == "" {
		return nil
	}
	ctx, err := caddy.ProvisionContext(new(caddy.Config))
	if err != nil {
		t.Fatal(err)
	}
	var id struct{ Handler string }
	var fields map[string]json.RawMessage
	if err := json.Unmarshal([]byte(config), &id); err != nil {
		t.Fatal(err)
	}
	_ = json.Unmarshal([]byte(config), &fields)
	delete(fields, "handler")
	raw, _ := json.Marshal(fields)
	module, err := ctx.LoadModuleByID(fmt.Sprintf("http.handlers.%s", id.Handler), raw)
	if err != nil {
		t.Fatal(err)
	}
	return module.(caddyhttp.MiddlewareHandler)
}

// discard is a client that counts what it gets.
type discard struct {
	header http.Header
	size   int
}

func (d *discard) Header() http.Header { return d.header }
func (d *discard) WriteHeader(int)     {}
func (d *discard) Write(p []byte) (int, error) {
	d.size += len(p)
	return len(p), nil
}
