package gateway

import (
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
)

// A confirmed call can be made at any replica, once.
func TestConfirmationAtAnotherReplica(t *testing.T) {
	engine, p := replicastest.New(), modernPeer("a").hasTools("x")
	a, b := newReplica(t, engine, confirmRule, p), newReplica(t, engine, confirmRule, p)
	asked := a.modern(t).askConfirmation(callX)
	if n := len(engine.Values()); n != 0 {
		t.Errorf("%d values are stored for a confirmation", n)
	}
	atB := *asked
	atB.u = asked.u.atGateway(b)
	engine.Down.Store(true)
	if s := atB.answer(agreed); s.symbol() != "store_unavailable" || p.count("tools/call") != 0 {
		t.Errorf("while the store is unavailable, after %d calls: %s", p.count("tools/call"), s.body)
	}
	engine.Down.Store(false)
	await.Until(t, "the store is available", b.State.space.Up)
	if s := atB.answer(agreed); !strings.Contains(s.answer, `"text":"a"`) || p.count("tools/call") != 1 {
		t.Errorf("at the other replica: %s", s.body)
	}
	for _, again := range []interface{ answer(string) reply }{asked, &atB} {
		if s := again.answer(agreed); !strings.Contains(s.body, "already used") || p.count("tools/call") != 1 {
			t.Errorf("again: %s", s.body)
		}
	}
}
