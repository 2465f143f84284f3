package toolresultmask

import (
	"regexp"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/storepool"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/storetest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstore"
)

// Replicas recover originals of each other, for the user or address that sent them.
func TestReplicas(t *testing.T) {
	engine := replicastest.New()
	replica := func() *Handler {
		h := new(Handler)
		if err := caddy.StrictUnmarshalJSON([]byte(`{"window_turns":1,"recover":{}}`), h); err != nil {
			t.Fatal(err)
		}
		if err := h.Provision(storetest.Replica(t, engine, mcpstore.App{})); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = h.Cleanup() })
		return h
	}
	a, b := replica(), replica()
	got, _ := send(t, a, post(turns("AAAA", "BBBB")), nil)
	id := regexp.MustCompile(`obs_\w{10}`).FindString(got.body)
	owner := "address " + address
	if _, ok := b.originals.Get(owner, id); ok || id == "" {
		t.Fatalf("%q is in the local store before Fetch", id)
	}
	places := []storepool.Place{{Store: b.originals, Owner: "user ann"}, {Store: b.originals, Owner: owner}}
	if err := storepool.Fetch(t.Context(), id, places...); err != nil {
		t.Fatal(err)
	}
	if original, ok := b.originals.Get(owner, id); !ok || string(original) != "AAAA" {
		t.Errorf("found %q, %t", original, ok)
	}
}
