package mcpgateway

import (
	"context"
	"net/http/httptest"
	"runtime"
	"testing"
	"weak"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/login"
)

// Requests that end the session of a disconnected client have a new context. reverse_proxy needs
// the HTTP server in it.
func TestRequestsAfterDisconnect(t *testing.T) {
	server := new(caddyhttp.Server)
	repl := caddy.NewReplacer()
	repl.Set("http.auth.user.id", "ann")
	r := caddyhttp.PrepareRequest(httptest.NewRequest("POST", "/mcp", nil), repl, httptest.NewRecorder(), server)
	r = r.WithContext(context.WithValue(r.Context(), inbound.InheritedKey{}, inherit(r)))
	kept := route{}.Derive(context.WithoutCancel(r.Context()), r, false)
	derived := route{}.Derive(context.Background(), kept, false)
	if got, _ := derived.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server); got != server {
		t.Errorf("got server %p, want %p", got, server)
	}
	own, _ := derived.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if user, _ := own.GetString("http.auth.user.id"); user != "ann" {
		t.Errorf("got user %q, want ann", user)
	}
	bare := route{}.Derive(context.Background(), httptest.NewRequest("POST", "/mcp", nil), false)
	if got, _ := bare.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server); got == nil {
		t.Error("a request without a server got none")
	}
}

// Requests of a stream that outlives its handler inherit the values that the routes use. Nothing
// else of the original request stays in memory.
func TestRequestsOfDetachedStreams(t *testing.T) {
	server := new(caddyhttp.Server)
	writer := httptest.NewRecorder()
	gone := weak.Make(writer)
	detachedContext := func() context.Context {
		repl := caddy.NewReplacer()
		repl.Set("http.auth.user.id", "ann")
		repl.Set("http.asked", "asked")
		repl.Set("http.other", "other")
		r := caddyhttp.PrepareRequest(httptest.NewRequest("GET", "/mcp", nil), repl, writer, server)
		caddyhttp.SetVar(r.Context(), "color", "blue")
		i := inherit(r)
		i.names = newPlaceholderNames([]byte(`[{"routes":[{"x":["{http.auth.user.id} {env.HOME} {http.vars.color}"]}]}]`))
		r = r.WithContext(context.WithValue(login.WithSubject(r.Context(), "token"), inbound.InheritedKey{}, i))
		early := route{}.Derive(r.Context(), r, false)
		own, _ := early.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
		if value, _ := own.GetString("http.asked"); value != "asked" {
			t.Errorf("got %q", value)
		}
		return detached(r.Context())
	}
	ctx := detachedContext()
	writer = nil
	await.Until(t, "the response writer is collected", func() bool {
		runtime.GC()
		return gone.Value() == nil
	})
	derived := route{}.Derive(ctx, httptest.NewRequest("GET", "/mcp", nil).WithContext(ctx), false)
	if got, _ := derived.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server); got != server {
		t.Errorf("got server %p, want %p", got, server)
	}
	if got := login.Subject(derived.Context()); got != "token" {
		t.Errorf("got token %q", got)
	}
	own, _ := derived.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	for name, want := range map[string]string{
		"http.auth.user.id": "ann", "http.asked": "asked", "http.vars.color": "blue", "http.other": "",
	} {
		if got, _ := own.GetString(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func TestAnnouncementIsReleasedOnce(t *testing.T) {
	place := &placement{site: &caddyhttp.Server{Listen: []string{":8080"}}}
	before, after := &Handler{place: place, logger: zap.NewNop()}, &Handler{place: place, logger: zap.NewNop()}
	before.announcer.announce(before)
	after.announcer.announce(after)
	key := after.announcer.key
	defer after.announcer.stop()
	before.announcer.stop()
	before.announcer.stop()
	if n, _ := announcements.References(key); n != 1 {
		t.Errorf("%d references, want that of the other gateway", n)
	}
}
