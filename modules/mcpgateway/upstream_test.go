package mcpgateway

import (
	"context"
	"net/http/httptest"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/gateway"
)

// The session of a client that has gone is ended in a context of its own. reverse_proxy needs
// the HTTP server there, too.
func TestRequestsOfClientsThatHaveGone(t *testing.T) {
	server := new(caddyhttp.Server)
	repl := caddy.NewReplacer()
	repl.Set("http.auth.user.id", "ann")
	r := caddyhttp.PrepareRequest(httptest.NewRequest("POST", "/mcp", nil), repl, httptest.NewRecorder(), server)
	r = r.WithContext(context.WithValue(r.Context(), gateway.InheritedKey{}, inherit(r)))
	kept := route{}.Derive(context.WithoutCancel(r.Context()), r, false)
	derived := route{}.Derive(context.Background(), kept, false)
	if got, _ := derived.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server); got != server {
		t.Errorf("got the server %p, want %p", got, server)
	}
	own, _ := derived.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if user, _ := own.GetString("http.auth.user.id"); user != "ann" {
		t.Errorf("got the user %q, want ann", user)
	}
	bare := route{}.Derive(context.Background(), httptest.NewRequest("POST", "/mcp", nil), false)
	if got, _ := bare.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server); got == nil {
		t.Error("a request without a server has none")
	}
}
