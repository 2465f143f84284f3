package gateway

import (
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// replace replaces the Gateway by another one with the same State and Retained.
func (g *testGateway) replace(configure func(*Config), peers ...*fakeServer) {
	old := g.Gateway
	g.Gateway = New(testConfig(configure, peers...), old.State, old.Retained)
	g.serving.Store(g.Gateway)
	old.Close()
}

// A client does not notice that another configuration serves it.
func TestClientsOutliveConfigurations(t *testing.T) {
	a, b, c := legacyPeer("a").hasTools("x"), legacyPeer("b").hasTools("x"), legacyPeer("c").hasTools("x")
	sayA, _, sayC := a.keepStreams(), b.keepStreams(), c.keepStreams()
	g := newGateway(t, nil, a, b)
	u := g.legacy(t)
	stream := u.listen()
	b.waitFor(t, "GET", 1)
	u.ask("tools/list", "")
	g.replace(nil, a, c)
	for _, method := range []string{"notifications/tools/list_changed", "notifications/prompts/list_changed",
		"notifications/resources/list_changed"} {
		if e := stream.next(); e.method() != method {
			t.Errorf("got %s, want %s", e.data, method)
		}
	}
	if got := names(t, u.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::x", "c::x"}) {
		t.Errorf("got %v", got)
	}
	c.waitFor(t, "GET", 1)
	await.Until(t, "the gateway listens to the new server", func() bool {
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
		t.Errorf("a got %d initialize and %d GET requests", a.count("initialize"), a.count("GET"))
	}
	if got := b.requests("GET")[0]; got.Context().Err() == nil {
		t.Error("the gateway still listens to the old server")
	}
}

// A reload without changes does not notify clients.
func TestReloadWithoutChanges(t *testing.T) {
	a := legacyPeer("a").hasTools("x")
	say := a.keepStreams()
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
		t.Errorf("got %d GET requests", n)
	}
}

// A stream does not keep old configurations in memory.
func TestStreamsDoNotHoldConfigurations(t *testing.T) {
	a := legacyPeer("a")
	a.keepStreams()
	g := newGateway(t, nil, a)
	stream := g.legacy(t).listen()
	a.waitFor(t, "GET", 1)
	var gone []weak.Pointer[Gateway]
	for range 5 {
		g.replace(nil, a)
		gone = append(gone, weak.Make(g.Gateway))
	}
	g.replace(nil, a)
	await.Until(t, "intermediate configurations are freed", func() bool {
		runtime.GC()
		return !slices.ContainsFunc(gone, func(p weak.Pointer[Gateway]) bool { return p.Value() != nil })
	})
	select {
	case e := <-stream.events:
		t.Errorf("the stream has ended, or received %s", e.data)
	default:
	}
}

// Held calls continue after a reload.
func TestHeldCallsOutliveConfigurations(t *testing.T) {
	a := legacyPeer("a").handle("tools/call", askingTool(1))
	g := newGateway(t, nil, a)
	u := g.modern(t)
	in, key := readInput(t, u.call("a::x"))
	g.replace(nil, a)
	if s := u.retry("a::x", in, key, `{"mine":1}`); !strings.Contains(s.answer, `"mine":1`) {
		t.Errorf("got %s", s.body)
	}
}

// Fake time: modern clients do not announce that they are done. Their sessions with legacy servers
// end after a while.
func TestAbandonedClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := legacyPeer("a")
		g := newInMemory(t, nil, p)
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
		// A client that returns gets a new session.
		u := g.modern(t)
		u.info = `{"name":"0","version":"1"}`
		if s := u.call("a::x"); s.code() != 0 || p.count("initialize") != 5 {
			t.Errorf("got %s", s.body)
		}
	})
}

// Fake time: legacy sessions are not remembered for long either. They continue from their ids.
// Subscriptions are kept for a day.
func TestUnusedSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := legacyPeer("a")
		g := newInMemory(t, nil, p)
		defer g.close()
		decodeURIs, subscriber := g.legacy(t), g.legacy(t)
		if s := subscriber.ask("resources/subscribe", `{"uri":"`+mcp.ResourceURI("a", "file:///x")+`"}`); s.code() != 0 {
			t.Fatalf("got %s", s.body)
		}
		for _, after := range []struct {
			pause time.Duration
			known int
		}{{idleTime + idleTime/2, 1}, {restTime, 0}} {
			time.Sleep(after.pause)
			synctest.Wait()
			if n := len(g.known()); n != after.known {
				t.Errorf("%d clients are known after %v, want %d", n, after.pause, after.known)
			}
		}
		if s := decodeURIs.call("a::x"); s.code() != 0 {
			t.Errorf("got %s", s.body)
		}
		if n := p.count("initialize"); n != 2 {
			t.Errorf("initialized %d times, want 2", n)
		}
	})
}

// A client that always uses new names evicts its own entries, not those of others.
func TestClientsEvictTheirOwnEntries(t *testing.T) {
	p := legacyPeer("a")
	g := newInMemory(t, func(c *Config) { c.MaxClients = 8 }, p)
	defer g.close()
	quiet := g.modern(t)
	quiet.identity = "quiet"
	quiet.call("a::x")
	for i := range 40 {
		loud := g.modern(t)
		loud.identity, loud.info = "loud", fmt.Sprintf(`{"name":"%d","version":"1"}`, i)
		loud.call("a::x")
	}
	await.Until(t, "8 clients are remembered", func() bool { return len(g.known()) == 8 })
	met := p.count("initialize")
	quiet.call("a::x")
	if p.count("initialize") != met {
		t.Error("the quiet client was forgotten")
	}
}

// The size of a client's introduction is limited, because it is stored.
func TestLargeIntroductions(t *testing.T) {
	g := newInMemory(t, nil, legacyPeer("a"))
	defer g.close()
	long := strings.Repeat("x", maxIntroduction)
	for name, u := range map[string]*testClient{
		"info":         {info: `{"name":"` + long + `","version":"1"}`, capabilities: `{}`},
		"capabilities": {info: `{"name":"x","version":"1"}`, capabilities: `{"` + long + `":{}}`},
		"both": {info: `{"name":"` + long[:maxIntroduction/2] + `","version":"1"}`,
			capabilities: `{"` + long[:maxIntroduction/2] + `":{}}`},
	} {
		modern := g.modern(t)
		modern.info, modern.capabilities = u.info, u.capabilities
		if s := modern.ask("tools/list", ""); s.status != http.StatusRequestEntityTooLarge ||
			s.symbol() != "payload_too_large" || !strings.Contains(s.body, "clientInfo") {
			t.Errorf("%s: got %d %.200s", name, s.status, s.body)
		}
		legacy := g.user(t, mcp.Legacy)
		if s := legacy.ask("initialize", `{"protocolVersion":"`+mcp.Latest+`","capabilities":`+u.capabilities+
			`,"clientInfo":`+u.info+`}`); s.status != http.StatusRequestEntityTooLarge ||
			!strings.Contains(s.body, "clientInfo") {
			t.Errorf("%s in initialize: got %d %.200s", name, s.status, s.body)
		}
	}
	if n := len(g.known()); n > 0 {
		t.Errorf("%d clients are known", n)
	}
}

// Subscriptions count while the server has agreed and the client has a session. Their number per
// client is limited.
func TestSubscriptionsAreCounted(t *testing.T) {
	p := legacyPeer("a")
	p.handle("resources/subscribe", func(w http.ResponseWriter, a *incoming) {
		if strings.Contains(a.message.Text(jsonrpc.URI), "refused") {
			a.refuse(w, http.StatusOK, jsonrpc.CodeInvalidParams, "no")
			return
		}
		a.reply(w, "{}")
	})
	g := newInMemory(t, nil, p)
	defer g.close()
	before := subscriptionsQuota.Usage()
	counted := func(when string, entries, bytes int) {
		t.Helper()
		// The client receives the response before the request has ended.
		await.Until(t, fmt.Sprintf("%s: %d subscriptions of %d bytes", when, entries, bytes), func() bool {
			now := subscriptionsQuota.Usage()
			return now.Entries-before.Entries == int64(entries) && now.Bytes-before.Bytes == int64(bytes)
		})
	}
	subscribe := func(u *testClient, method, uri string) reply {
		t.Helper()
		return u.ask("resources/"+method, `{"uri":"`+mcp.ResourceURI("a", uri)+`"}`)
	}
	ann := g.user(t, mcp.Legacy)
	ann.identity = "ann"
	ann.connect()
	subscribe(ann, "subscribe", "x://1")
	subscribe(ann, "subscribe", "x://1")
	subscribe(ann, "subscribe", "x://2")
	counted("two", 2, 10)
	subscribe(ann, "subscribe", "x://refused")
	counted("one that the server refuses", 2, 10)
	if s := subscribe(ann, "subscribe", "x://"+strings.Repeat("y",
		mcp.LongestURI)); s.code() != jsonrpc.CodeInvalidParams || p.count("resources/subscribe") != 4 {
		t.Errorf("a long URI: got %s", s.body)
	}
	subscribe(ann, "unsubscribe", "x://1")
	counted("one that has ended", 1, 5)
	modern := g.modern(t)
	if s := modern.ask(mcp.MethodListen, `{"notifications":{"resourceSubscriptions":["x://`+
		strings.Repeat("y", mcp.LongestURI)+`"]}}`); s.code() != jsonrpc.CodeInvalidParams {
		t.Errorf("listen with a long URI: got %s", s.body)
	}
	counted("a client of the other era", 1, 5)

	long := "x://" + strings.Repeat("y", mcp.LongestURI-10)
	refused, all := false, []*testClient{ann}
	for range 2 { // sessions
		again := g.user(t, mcp.Legacy)
		again.identity = "ann"
		again.connect()
		for i := range maxSubscriptions {
			s := subscribe(again, "subscribe", fmt.Sprint(long, i))
			refused = refused || s.code() != 0
		}
		all = append(all, again)
	}
	if !refused || subscriptionsQuota.Usage().Bytes-before.Bytes > subscriptionLimits.OwnerBytes {
		t.Errorf("%+v", subscriptionsQuota.Usage())
	}
	bob := g.user(t, mcp.Legacy)
	bob.identity = "bob"
	bob.connect()
	if s := subscribe(bob, "subscribe", "x://1"); s.code() != 0 {
		t.Errorf("another client: got %s", s.body)
	}
	for _, u := range append(all, bob) {
		u.end()
	}
	counted("all sessions have ended", 0, 0)
}

// For the race detector: configurations change while clients call and listen. No call may fail.
func TestConfigurationsThatChangeUnderLoad(t *testing.T) {
	a, b, c := legacyPeer("a").hasTools("x"), modernPeer("b").hasTools("x"), legacyPeer("c").hasTools("x")
	a.keepStreams()
	b.acceptListen()
	g := newGateway(t, nil, a, b, c)
	done := make(chan struct{})
	var all sync.WaitGroup
	for i := range 6 {
		u := g.user(t, mcp.Era(i%2))
		u.info = fmt.Sprintf(`{"name":"%d","version":"1"}`, i)
		var stream *liveReply
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
				if got := names(t, u.ask("tools/list", ""), "tools", "name"); !slices.Contains(got, "a::x") ||
					!slices.Contains(got, "b::x") {
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

// A client that is evicted while it is in use is served to the end, and remembered afterwards.
func TestBusyClientsAreNotEvicted(t *testing.T) {
	s := NewState(nil)
	defer func() { _ = s.Destruct() }()
	s.setLimits(1)
	serve := func(key string) (c *client, made bool) {
		c = s.client(key, func() *client {
			made = true
			c := newClient(mcp.Legacy, mcp.Latest, "", "@owner", introduction{}.complete())
			c.level = "info" // not carried by its id
			return c
		})
		return c, made
	}
	first, _ := serve("first")
	s.release(first)
	serve("first")
	if all := s.clients(); len(all) != 1 {
		t.Errorf("%d clients are known, want 1", len(all))
	}
	second, _ := serve("second")
	s.release(second) // then the first does not fit
	if again, made := serve("first"); made || again != first {
		t.Error("a busy client was forgotten")
	}
	if all := s.clients(); len(all) != 2 {
		t.Errorf("%d clients are known, want 2", len(all))
	}
	s.release(first)
	s.release(first)
	if again, made := serve("first"); made || again != first {
		t.Error("a client that was just served was forgotten")
	}
	s.release(first)
}
