package mcphttp

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// BenchmarkProxy sends a small call through reverse_proxy, with Caddy's transport http and with
// mcp_http.
func BenchmarkProxy(b *testing.B) {
	result := []byte(strings.Repeat("x", 1024))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(result) }))
	defer server.Close()
	for _, protocol := range []string{standard, Name} {
		b.Run(protocol, func(b *testing.B) {
			p := newProxy(b, protocol, "", "", server.Listener.Addr().String())
			defer p.cancel()
			b.ReportAllocs()
			for b.Loop() {
				if w, err := p.serve(post(b, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)); err != nil ||
					w.Body.Len() != len(result) {
					b.Fatal(err)
				}
			}
		})
	}
}
