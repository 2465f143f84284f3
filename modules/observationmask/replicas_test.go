package observationmask

import (
	"regexp"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/storepool"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/storetest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstore"
)

// replica provisions a handler that shares an engine with other replicas.
func replica(t *testing.T, engine *replicastest.Engine, config string) *Handler {
	t.Helper()
	h := new(Handler)
	if err := caddy.StrictUnmarshalJSON([]byte(config), h); err != nil {
		t.Fatal(err)
	}
	if err := h.Provision(storetest.Replica(t, engine, mcpstore.App{})); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Cleanup(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// Replicas mask a text alike, and recover originals of each other. Unmasked results use no store.
func TestReplicas(t *testing.T) {
	engine := replicastest.New()
	text := strings.Repeat("text ", 5000)
	var bodies []string
	for range 2 {
		h := replica(t, engine, `{"recover":{},"server":"s"}`)
		_, body := post(t, proxy(t, h, serveJSON(message(text))))
		bodies = append(bodies, body)
	}
	if bodies[0] != bodies[1] {
		t.Errorf("masked differently: %.3000q, %.3000q", bodies[0], bodies[1])
	}
	id := regexp.MustCompile(`obs_[A-Za-z0-9]{10}`).FindString(bodies[0])
	third := replica(t, engine, `{"recover":{"ttl":"2m"},"server":"s"}`)
	other := replica(t, engine, `{"recover":{},"server":"other"}`)
	for h, want := range map[*Handler]bool{third: true, other: false} {
		if err := storepool.Fetch(t.Context(), id, h.Place("")); err != nil {
			t.Fatal(err)
		}
		if got, _, ok := h.Original("", id); ok != want || ok && string(got) != text {
			t.Errorf("%s: found %t, %d bytes", h.Server, ok, len(got))
		}
	}
	before := engine.Operations.Load()
	server := proxy(t, third, serveJSON(message("short")))
	for range 10 {
		if _, body := post(t, server); isMasked(body) {
			t.Fatal("a short text was masked")
		}
	}
	if _, _, ok := third.Original("", id); !ok {
		t.Error("the original is gone")
	}
	if n := engine.Operations.Load() - before; n != 0 {
		t.Errorf("%d operations, want 0", n)
	}
}
