package aggregate

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// replace puts another Aggregate with the same State in the place of that of a gateway.
func (g *gateway) replace(configure func(*Config), peers ...*peer) {
	old := g.Aggregate
	next := joining(configure, peers...)
	config := next.config
	next.Close()
	config.Generation = new(int)
	g.Aggregate = New(config, old.State)
	g.serving.Store(g.Aggregate)
	old.Close()
}

// A client goes on with another configuration as if nothing had happened.
func TestClientsOutliveConfigurations(t *testing.T) {
	a, b, c := legacyPeer("a").hasTools("x"), legacyPeer("b").hasTools("x"), legacyPeer("c").hasTools("x")
	sayA, _, sayC := a.listens(), b.listens(), c.listens()
	g := newGateway(t, nil, a, b)
	u := g.legacy(t)
	stream := u.listen()
	b.await(t, "GET", 1)
	u.ask("tools/list", "")
	g.replace(nil, a, c)
	for _, method := range []string{"notifications/tools/list_changed", "notifications/prompts/list_changed", "notifications/resources/list_changed"} {
		if e := stream.next(); e.method() != method {
			t.Errorf("got %s, want %s", e.data, method)
		}
	}
	if got := names(t, u.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::x", "c::x"}) {
		t.Errorf("got %v", got)
	}
	c.await(t, "GET", 1)
	await.Until(t, "the new server is listened to", func() bool {
		sayC(`{"jsonrpc":"2.0","method":"vendor/c"}`)
		select {
		case e := <-stream.events:
			return e.method() == "vendor/c"
		default:
			return false
		}
	})
	sayA(`{"jsonrpc":"2.0","method":"vendor/a"}`)
	stream.nextOf("vendor/a")
	if s := u.call("a::x"); s.code() != 0 {
		t.Errorf("got %s", s.body)
	}
	if s := u.call("b::x"); s.code() != jsonrpc.CodeInvalidParams {
		t.Errorf("got %s", s.body)
	}
	if a.count("initialize") != 1 || a.count("GET") != 1 {
		t.Errorf("a was met %d times and listened to %d times", a.count("initialize"), a.count("GET"))
	}
	if got := b.heard("GET")[0]; got.Context().Err() == nil {
		t.Error("the old server is still listened to")
	}
}

// If nothing has changed, clients are told nothing.
func TestTheSameConfigurationAgain(t *testing.T) {
	a := legacyPeer("a").hasTools("x")
	say := a.listens()
	g := newGateway(t, nil, a)
	u := g.legacy(t)
	stream := u.listen()
	for range 3 {
		g.replace(nil, a)
	}
	say(`{"jsonrpc":"2.0","method":"vendor/a"}`)
	if e := stream.next(); e.method() != "vendor/a" {
		t.Errorf("got %s", e.data)
	}
	if n := a.count("GET"); n != 1 {
		t.Errorf("listened to %d times", n)
	}
}

// A call that waits for its client goes on, too.
func TestHeldCallsOutliveConfigurations(t *testing.T) {
	a := legacyPeer("a").does("tools/call", asking(1))
	g := newGateway(t, nil, a)
	u := g.modern(t)
	in, key := wanted(t, u.call("a::x"))
	g.replace(nil, a)
	if s := u.retry("a::x", in, key, `{"mine":1}`); !strings.Contains(s.answer, `"mine":1`) {
		t.Errorf("got %s", s.body)
	}
}

// In time that is not real: clients of the modern era never say that they leave. Their
// sessions with servers of the other era are ended when they were not seen for long.
func TestClientsThatAreNotSeenAnyMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := legacyPeer("a")
		g := newMemory(t, nil, p)
		defer g.close()
		for i := range 3 {
			u := g.modern(t)
			u.info = fmt.Sprintf(`{"name":"%d","version":"1"}`, i)
			u.call("a::x")
		}
		still := g.user(t, mcp.Modern)
		for range 10 {
			still.call("a::x")
			time.Sleep(10 * time.Minute)
		}
		synctest.Wait()
		if n := p.count("DELETE"); n != 3 {
			t.Errorf("%d sessions were ended, want 3", n)
		}
		if n := len(g.known()); n != 1 {
			t.Errorf("%d clients are known, want 1", n)
		}
		if n := p.count("initialize"); n != 4 {
			t.Errorf("initialized %d times, want 4", n)
		}
		// One that comes back begins anew.
		u := g.modern(t)
		u.info = `{"name":"0","version":"1"}`
		if s := u.call("a::x"); s.code() != 0 || p.count("initialize") != 5 {
			t.Errorf("got %s", s.body)
		}
	})
}

// Under the race detector: configurations change while clients call and listen. No
// call fails.
func TestConfigurationsThatChangeUnderLoad(t *testing.T) {
	a, b, c := legacyPeer("a").hasTools("x"), modernPeer("b").hasTools("x"), legacyPeer("c").hasTools("x")
	a.listens()
	b.tells()
	g := newGateway(t, nil, a, b, c)
	done := make(chan struct{})
	var all sync.WaitGroup
	for i := range 6 {
		u := g.user(t, mcp.Era(i%2))
		u.info = fmt.Sprintf(`{"name":"%d","version":"1"}`, i)
		var stream *talk
		if u.era == mcp.Legacy {
			stream = u.connect().listen()
		} else {
			stream = u.open(http.MethodPost, u.request(`"l"`, mcp.MethodListen, `{"notifications":{"toolsListChanged":true}}`))
		}
		go func() {
			for range stream.events {
			}
		}()
		all.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				for _, name := range []string{"a::x", "b::x"} {
					if s := u.call(name); s.code() != 0 {
						t.Errorf("%s: got %s", name, s.body)
						return
					}
				}
				if got := names(t, u.ask("tools/list", ""), "tools", "name"); !slices.Contains(got, "a::x") || !slices.Contains(got, "b::x") {
					t.Errorf("got %v", got)
					return
				}
			}
		})
	}
	for i := range 20 {
		if i%2 == 0 {
			g.replace(nil, a, b)
		} else {
			g.replace(nil, a, b, c)
		}
	}
	close(done)
	all.Wait()
	if n := a.count("initialize"); n > 6*3 {
		t.Errorf("initialized %d times", n)
	}
}
