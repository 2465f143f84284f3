package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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
	if got := namesIn(t, u.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::x", "c::x"}) {
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
				if got := namesIn(t, u.ask("tools/list", ""), "tools", "name"); !slices.Contains(got, "a::x") ||
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

// A hookedAuth calls a function when its fingerprint is read.
type hookedAuth struct {
	headerAuth
	onFingerprint func()
}

func (a hookedAuth) Fingerprint() string {
	a.onFingerprint()
	return a.headerAuth.Fingerprint()
}

// A configuration that is replaced while it takes over streams passes on all of them.
func TestConfigurationsReplacedAtTheSameTime(t *testing.T) {
	a := legacyPeer("a")
	a.keepStreams()
	g := newGateway(t, func(c *Config) { c.Auth = headerAuth{} }, a)
	for range 3 {
		u := g.user(t, mcp.Legacy)
		u.identity = "ann"
		u.connect().listen()
	}
	first, closed := g.Gateway, make(chan struct{})
	var second *Gateway
	closeSecond := sync.OnceFunc(func() {
		go func() {
			defer close(closed)
			second.Close()
		}()
		select { // the other streams have not been moved yet
		case <-closed:
		case <-time.After(time.Second / 10):
		}
	})
	second = New(testConfig(func(c *Config) { c.Auth = hookedAuth{onFingerprint: closeSecond} }, a), g.State, g.Retained)
	g.Gateway = New(testConfig(func(c *Config) { c.Auth = headerAuth{} }, a), g.State, g.Retained)
	g.serving.Store(g.Gateway)
	first.Close()
	<-closed
	if n := g.Refresh("a"); n != 3 {
		t.Errorf("%d streams notified, want 3", n)
	}
}

// A client that is evicted while it is in use is served to the end, and remembered afterwards.
func TestBusyClientsAreNotEvicted(t *testing.T) {
	s := NewState(nil)
	defer func() { _ = s.Destruct() }()
	s.clients.setLimits(1)
	serve := func(key string) (c *client, made bool) {
		c = s.clients.get(key, func() *client {
			made = true
			c := newClient(mcp.Legacy, mcp.Latest, "", "@owner", introduction{}.complete())
			c.level = "info" // not carried by its id
			return c
		})
		return c, made
	}
	first, _ := serve("first")
	s.clients.release(first)
	serve("first")
	if all := s.clients.all(); len(all) != 1 {
		t.Errorf("%d clients are known, want 1", len(all))
	}
	second, _ := serve("second")
	s.clients.release(second) // then the first does not fit
	if again, made := serve("first"); made || again != first {
		t.Error("a busy client was forgotten")
	}
	if all := s.clients.all(); len(all) != 2 {
		t.Errorf("%d clients are known, want 2", len(all))
	}
	s.clients.release(first)
	s.clients.release(first)
	if again, made := serve("first"); made || again != first {
		t.Error("a client that was just served was forgotten")
	}
	s.clients.release(first)
}

// Servers may identify clients by their own headers. Another key means another client. Another
// trace id does not.
func TestCredentialsInOtherHeaders(t *testing.T) {
	for _, header := range []string{"Authorization", "Cookie", "X-Api-Key", "X-Goog-Api-Key", "X-Auth-Token", "Api-Key",
		"X-Tenant"} {
		t.Run(header, func(t *testing.T) {
			p := legacyPeer("a")
			p.capabilities = `{"tools":{}}` // so that lists are cached
			p.handle("tools/list", func(w http.ResponseWriter, a *incoming) {
				a.reply(w, `{"tools":[{"name":"of_`+a.Header.Get(header)+`","inputSchema":{}}]}`)
			})
			g := newGateway(t, nil, p)
			for _, key := range []string{"alice", "bob", "alice"} {
				u := g.modern(t)
				u.header = http.Header{header: {key}}
				if got := namesIn(t, u.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::of_" + key}) {
					t.Errorf("%s sees %v", key, got)
				}
			}
			if n := p.count("initialize"); n != 2 {
				t.Errorf("initialized %d times, want 2", n)
			}
			sessions := map[string]string{}
			for _, list := range p.requests("tools/list") {
				if other, ok := sessions[list.session]; ok && other != list.Header.Get(header) {
					t.Errorf("two keys in session %s", list.session)
				}
				sessions[list.session] = list.Header.Get(header)
			}
		})
	}
	t.Run("headers that do not identify a client", func(t *testing.T) {
		p := legacyPeer("a")
		g := newGateway(t, nil, p)
		for i := range 3 {
			u := g.modern(t)
			for _, name := range []string{"User-Agent", "Traceparent", "X-Request-Id", "X-Forwarded-For", "Accept-Language",
				"Cache-Control"} {
				u.header.Set(name, fmt.Sprint(i))
			}
			u.call("a::x")
		}
		if n := p.count("initialize"); n != 1 {
			t.Errorf("initialized %d times, want 1", n)
		}
	})
}

// newSharingGateway returns a Gateway that shares a State with others, like gateways without a name
// on two sites.
func newSharingGateway(state *State, retained *Retained, generation any, peers ...*fakeServer) *Gateway {
	return New(testConfig(func(c *Config) { c.Generation = generation }, peers...), state, retained)
}

// A reload that replaces two gateways, in any order, keeps each stream at its own gateway. Streams
// without a clear successor end.
func TestStreamsMoveToTheirOwnGatewayOnly(t *testing.T) {
	for _, firstComes := range []bool{true, false} {
		for _, firstGoes := range []bool{true, false} {
			for _, changed := range []bool{false, true} {
				t.Run(fmt.Sprint("starts first ", firstComes, ", closes first ", firstGoes, ", changed ", changed),
					func(t *testing.T) {
						a, b, c := legacyPeer("a"), legacyPeer("b"), legacyPeer("c")
						say := a.keepStreams()
						b.keepStreams()
						before, after := new(int), new(int)
						g := newGateway(t, func(c *Config) { c.Generation = before }, a)
						other := newSharingGateway(g.State, g.Retained, before, b)
						u := g.legacy(t)
						u.header = http.Header{"Authorization": {"Bearer for a only"}}
						stream := u.listen()
						a.waitFor(t, "GET", 1)

						peers := []*fakeServer{a}
						if changed {
							peers = append(peers, c)
						}
						var next, otherNext *Gateway
						if firstComes {
							next = newSharingGateway(g.State, g.Retained, after, peers...)
							otherNext = newSharingGateway(g.State, g.Retained, after, b)
						} else {
							otherNext = newSharingGateway(g.State, g.Retained, after, b)
							next = newSharingGateway(g.State, g.Retained, after, peers...)
						}
						old := g.Gateway
						g.Gateway = next
						g.serving.Store(next)
						if firstGoes {
							old.Close()
							other.Close()
						} else {
							other.Close()
							old.Close()
						}
						defer otherNext.Close()
						if changed {
							stream.waitEnd()
							stream = u.listen()
							a.waitFor(t, "GET", 2)
						}
						await.Until(t, "the message arrives", func() bool {
							say(`{"jsonrpc":"2.0","method":"vendor/a"}`)
							select {
							case e := <-stream.events:
								return e.method() == "vendor/a"
							default:
								return false
							}
						})
						if n := b.count("GET") + b.count("initialize"); n > 0 {
							t.Errorf("a server of the other gateway got %d requests", n)
						}
					})
			}
		}
	}
}

// Streams end with their gateway instead of staying silent.
func TestStreamsEndWithTheirGateway(t *testing.T) {
	p := legacyPeer("a")
	p.keepStreams()
	g := newGateway(t, nil, p)
	m := g.modern(t)
	streams := []*liveReply{g.legacy(t).listen(),
		m.open(http.MethodPost, m.request("1", mcp.MethodListen, `{"notifications":{"toolsListChanged":true}}`))}
	streams[1].nextOf("notifications/subscriptions/acknowledged")
	g.Close()
	for _, stream := range streams {
		stream.waitEnd()
	}
}

// A gateway that replaces another one of its generation takes over its streams. This also holds if
// there are others with the same name, or an earlier replacement failed. A later reload finds it.
func TestStreamsMoveWithinAGeneration(t *testing.T) {
	for _, sibling := range []bool{false, true} {
		t.Run(fmt.Sprint("with a sibling ", sibling), func(t *testing.T) {
			a, b, c := legacyPeer("a"), legacyPeer("b"), legacyPeer("c")
			say := a.keepStreams()
			b.keepStreams()
			generation := new(int)
			g := newGateway(t, func(c *Config) { c.Generation = generation }, a)
			if sibling {
				defer newSharingGateway(g.State, g.Retained, generation, b).Close()
			}
			stream := g.legacy(t).listen()
			a.waitFor(t, "GET", 1)
			replacing := func(generation any, peers ...*fakeServer) *Gateway {
				return New(testConfig(func(c *Config) { c.Generation, c.Replaces = generation, g.Gateway }, peers...), g.State,
					g.Retained)
			}
			replacing(generation, a, b, c).Close() // failed to start
			swap := func(next *Gateway) {
				old := g.Gateway
				g.Gateway = next
				g.serving.Store(next)
				old.Close()
			}
			heard := func(what string) {
				t.Helper()
				say(`{"jsonrpc":"2.0","method":"vendor/` + what + `"}`)
				stream.nextOf("vendor/" + what)
			}
			swap(replacing(generation, a, c))
			heard("replaced")
			swap(replacing(generation, a))
			heard("replaced again")
			if !sibling {
				swap(newSharingGateway(g.State, g.Retained, new(int), a, c))
				heard("reloaded")
			}
			if n := a.count("GET"); n != 1 {
				t.Errorf("the server was listened to %d times", n)
			}
		})
	}
}

// A stream that is requested during a reload is opened at the new gateway.
func TestStreamsThatOpenDuringAReload(t *testing.T) {
	p := legacyPeer("a")
	say := p.keepStreams()
	met, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	p.handle("initialize", func(w http.ResponseWriter, a *incoming) {
		once.Do(func() { close(met); <-goOn })
		p.initialize(w, a)
	})
	g := newGateway(t, nil, p)
	u := g.modern(t)
	stream := u.start(http.MethodPost, u.request("1", mcp.MethodListen, `{"notifications":{"toolsListChanged":true}}`))
	<-met
	old := g.Gateway
	g.replace(nil, p)
	close(goOn)
	stream.nextOf("notifications/subscriptions/acknowledged")
	if len(g.streams.of(old)) > 0 {
		t.Error("a stream listens to servers of a removed configuration")
	}
	await.Until(t, "the message arrives", func() bool {
		say(toolsChanged)
		select {
		case e := <-stream.events:
			return e.method() == "notifications/tools/list_changed"
		default:
			return false
		}
	})
}

// In memory: a client that does not read does not block a reload. Otherwise this test would hang.
func TestReloadDoesNotWaitForSlowClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := legacyPeer("a")
		say := p.keepStreams()
		g := newInMemory(t, nil, p)
		defer g.close()
		u := g.legacy(t)
		response, err := u.do(t.Context(), http.MethodGet, "")
		if err != nil {
			t.Fatal(err)
		}
		go say(`{"jsonrpc":"2.0","method":"vendor/x"}`)
		synctest.Wait() // the write blocks
		began := time.Now()
		g.replace(nil, p, legacyPeer("b"))
		if took := time.Since(began); took > time.Second {
			t.Errorf("took %v", took)
		}
		if s := g.legacy(t).call("b::x"); s.code() != 0 {
			t.Errorf("got %s", s.body)
		}
		response.Body.Close()
	})
}

// The stream of a resumed call is not affected by new servers.
func TestResumedCallsOutliveConfigurations(t *testing.T) {
	p, other := legacyPeer("a"), legacyPeer("b")
	goOn := make(chan struct{})
	p.handle("GET", func(w http.ResponseWriter, a *incoming) {
		a.sendAs(w, "id: 6\n",
			`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`)
		<-goOn
		a.sendAs(w, "id: 7\n", `{"jsonrpc":"2.0","id":1,"result":{}}`)
	})
	other.handle("GET", func(w http.ResponseWriter, a *incoming) {
		a.sendAs(w, "id: 1\n", `{"jsonrpc":"2.0","method":"vendor/wrong"}`)
		<-a.Context().Done()
	})
	g := newGateway(t, nil, p)
	u := g.legacy(t)
	u.header = http.Header{"Last-Event-Id": {u.event("call:MQ/a/5")}}
	stream := u.listen()
	if e := stream.next(); e.last != u.event("call:MQ/a/6") {
		t.Errorf("got %+v", e)
	}
	g.replace(nil, p, other)
	close(goOn)
	if e := stream.next(); e.last != u.event("call:MQ/a/7") || !e.isAnswer() {
		t.Errorf("got %+v", e)
	}
	stream.waitEnd()
	if n := other.count("GET"); n > 0 {
		t.Errorf("another server was listened to %d times", n)
	}
}

// askingRoutes respond to each response of a client with two more requests.
type askingRoutes struct {
	fakeRoutes
	answers *atomic.Int32
	hold    chan struct{} // if set, responses wait until it is closed
}

func (q askingRoutes) Serve(w http.ResponseWriter, r *http.Request, account string) error {
	if !isPosted(r, (*jsonrpc.Message).IsResponse) {
		return q.fakeRoutes.Serve(w, r, account)
	}
	q.answers.Add(1)
	if q.hold != nil {
		<-q.hold
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for i := range 2 {
		_, _ = fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":\"more "+
			"%d\",\"method\":\"elicitation/create\",\"params\":{}}\n\n", i)
	}
	return nil
}

// isPosted reports whether a request posts a message that matches.
func isPosted(r *http.Request, is func(*jsonrpc.Message) bool) bool {
	if r.Method != http.MethodPost || r.GetBody == nil {
		return false
	}
	body, err := r.GetBody()
	if err != nil {
		return false
	}
	raw, err := io.ReadAll(body)
	var m jsonrpc.Message
	return err == nil && m.Read(raw) == nil && is(&m)
}

// A refusal ends the exchange: requests in the response to it are not refused in turn.
func TestRefusalsEndTheExchange(t *testing.T) {
	const questions = 3
	ask := func(n int) script {
		return func(w http.ResponseWriter, a *incoming) {
			for i := range n {
				a.send(w, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"elicitation/create","params":{}}`, i))
			}
			a.finish(w, `{"done":true}`)
		}
	}
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		t.Run(fmt.Sprint("a call of a client of era ", era), func(t *testing.T) {
			p := legacyPeer("a").handle("tools/call", ask(questions))
			answers := new(atomic.Int32)
			g := newGateway(t, func(c *Config) { c.Servers[0].Routes = askingRoutes{fakeRoutes{p}, answers, nil} }, p)
			u := g.user(t, era)
			u.capabilities = `{}`
			if era == mcp.Legacy {
				u.connect()
			}
			if s := u.call("a::x"); !strings.Contains(s.answer, `"done":true`) {
				t.Errorf("got %s", s.body)
			}
			await.Until(t, "the server gets its refusals", func() bool { return answers.Load() >= questions })
			g.passTime(t)
			if n := answers.Load(); n != questions {
				t.Errorf("%d refusals of %d server requests", n, questions)
			}
		})
	}
	t.Run("a list", func(t *testing.T) {
		p := legacyPeer("a").handle("tools/list", func(w http.ResponseWriter, a *incoming) {
			a.send(w, `{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{}}`)
			a.finish(w, `{"tools":[{"name":"x"}]}`)
		})
		answers := new(atomic.Int32)
		g := newGateway(t, func(c *Config) { c.Servers[0].Routes = askingRoutes{fakeRoutes{p}, answers, nil} }, p)
		u := g.user(t, mcp.Legacy)
		u.capabilities = `{}`
		u.connect()
		u.ask("tools/list", "")
		g.passTime(t)
		if n := answers.Load(); n > 1 {
			t.Errorf("%d refusals of one server request", n)
		}
	})
	t.Run("too many server requests", func(t *testing.T) {
		p := legacyPeer("a").handle("tools/call", ask(640))
		answers, hold := new(atomic.Int32), make(chan struct{})
		g := newGateway(t, func(c *Config) { c.Servers[0].Routes = askingRoutes{fakeRoutes{p}, answers, hold} }, p)
		u := g.user(t, mcp.Legacy)
		u.capabilities = `{}`
		u.connect()
		call := u.start(http.MethodPost, u.request("1", "tools/call", `{"name":"a::x"}`))
		await.Until(t, "all places are taken", func() bool { return answers.Load() == 64 })
		g.passTime(t)
		if n := answers.Load(); n != 64 {
			t.Errorf("%d refusals at the same time", n)
		}
		close(hold)
		if e := call.nextOf(""); !strings.Contains(e.data, `"done":true`) {
			t.Errorf("got %s", e.data)
		}
	})
}

// passTime gives unwanted messages time to arrive. It sends requests of another client, which reach
// no server.
func (g *testGateway) passTime(t *testing.T) {
	t.Helper()
	for range 20 {
		if s := g.modern(t).ask("vendor/unknown", ""); s.code() != jsonrpc.CodeMethodNotFound {
			t.Errorf("got %s", s.body)
		}
	}
}

// A client with an open request is remembered, even if many other clients connect.
func TestClientsInUseAreNotForgotten(t *testing.T) {
	crowd := func(g *testGateway) {
		for i := range 5 {
			g.legacy(t)
			m := g.modern(t)
			m.info = fmt.Sprintf(`{"name":"%d","version":"1"}`, i)
			m.ask("server/discover", "")
		}
	}
	few := func(c *Config) { c.MaxClients = 1 }
	t.Run("a server request to it", func(t *testing.T) {
		for name, p := range map[string]*fakeServer{"legacy server": legacyPeer("a").handle("tools/call", askingTool(1)),
			"modern server": modernPeer("a").handle("tools/call", inputTool(1))} {
			g := newGateway(t, few, p)
			u := g.legacy(t)
			call := u.startRequest("tools/call", `{"name":"a::x"}`)
			question := call.nextOf("elicitation/create")
			crowd(g)
			u.respond(question, `{"action":"mine"}`)
			if e := call.nextOf(""); !strings.Contains(e.data, `"mine"`) {
				t.Errorf("%s: got %s", name, e.data)
			}
		}
	})
	t.Run("a call that it cancels", func(t *testing.T) {
		p := legacyPeer("a")
		canceled, release := p.addWaitingTool()
		defer release()
		g := newGateway(t, few, p)
		u := g.legacy(t)
		u.start(http.MethodPost, u.request("7", "tools/call", `{"name":"a::wait","arguments":{"who":"me"}}`))
		p.waitFor(t, "tools/call", 1)
		crowd(g)
		u.notify("notifications/cancelled", `{"requestId":7}`)
		await.Until(t, "the call is canceled", func() bool { return canceled()["me"] })
	})
	t.Run("a stream", func(t *testing.T) {
		p := legacyPeer("a")
		p.keepStreams()
		p.handle("tools/list", func(w http.ResponseWriter, a *incoming) {
			a.send(w, `{"jsonrpc":"2.0","method":"vendor/aside"}`)
			a.finish(w, `{"tools":[]}`)
		})
		g := newGateway(t, few, p)
		u := g.legacy(t)
		stream := u.listen()
		crowd(g)
		u.ask("tools/list", "")
		stream.nextOf("vendor/aside")
	})
	t.Run("a call that waits for it", func(t *testing.T) {
		g := newGateway(t, few, legacyPeer("a").handle("tools/call", askingTool(1)))
		u := g.modern(t)
		in, key := readInput(t, u.call("a::x"))
		crowd(g)
		if s := u.retry("a::x", in, key, `{"mine":1}`); !strings.Contains(s.answer, `"mine":1`) {
			t.Errorf("got %s", s.body)
		}
	})
}

// Fake time: a stream that a server refuses temporarily is retried. A stream that the server does
// not support is not. Neither loses its session.
func TestStreamsThatAreRefused(t *testing.T) {
	for status, again := range map[int]bool{409: true, 429: true, 408: true, 503: true, 405: false, 404: false,
		501: false} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := legacyPeer("a")
				p.handle("GET", func(w http.ResponseWriter, a *incoming) {
					if p.count("GET") < 3 {
						w.WriteHeader(status)
						return
					}
					a.send(w, `{"jsonrpc":"2.0","method":"vendor/x"}`)
					<-a.Context().Done()
				})
				g := newInMemory(t, nil, p)
				defer g.close()
				stream := g.legacy(t).listen()
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				switch n := p.count("GET"); {
				case again && n < 3:
					t.Errorf("tried %d times", n)
				case !again && n > 2:
					t.Errorf("a server without streams got %d requests", n)
				}
				if n := p.count("initialize"); n != 1 {
					t.Errorf("initialized %d times", n)
				}
				if again {
					stream.nextOf("vendor/x")
				}
				stream.disconnect()
			})
		})
	}
}

// The age of a cached list is subtracted from its TTL. Servers without such a list do not affect
// it.
func TestAgeOfListsIsCounted(t *testing.T) {
	type freshness struct {
		TTL        *int64 `json:"ttlMs"`
		CacheScope string
	}
	of := func(t *testing.T, s reply) (f freshness) {
		t.Helper()
		if json.Unmarshal(s.Result, &f) != nil || f.TTL == nil {
			t.Fatalf("got %s", s.body)
		}
		return f
	}
	synctest.Test(t, func(t *testing.T) {
		p := modernPeer("a").handle("tools/list", func(w http.ResponseWriter, a *incoming) {
			a.reply(w, `{"resultType":"complete","tools":[{"name":"x","inputSchema":{}}],"ttlMs":60000,"cacheScope":"public"}`)
		})
		p.capabilities = `{"tools":{}}`
		g := newInMemory(t, nil, p)
		defer g.close()
		u := g.modern(t)
		began := time.Now()
		for range 3 {
			left := 60_000 - time.Since(began).Milliseconds()
			if f := of(t, u.ask("tools/list", "")); *f.TTL > left || *f.TTL < 0 {
				t.Errorf("TTL is %d ms, want at most %d", *f.TTL, left)
			}
			time.Sleep(25 * time.Second)
		}
		if n := p.count("tools/list"); n != 1 {
			t.Errorf("requested %d times", n)
		}
		if f := of(t, u.ask("prompts/list", "")); *f.TTL != 0 || f.CacheScope != "private" {
			t.Errorf("an empty list has TTL %d ms, %s", *f.TTL, f.CacheScope)
		}
	})
	t.Run("the shortest TTL of several pages", func(t *testing.T) {
		p := modernPeer("a").handle("tools/list", func(w http.ResponseWriter, a *incoming) {
			if a.message.Text(jsonrpc.Cursor) == "" {
				a.reply(w, `{"resultType":"complete","tools":[{"name":"x"}],"nextCursor":"2","ttlMs":1000,"cacheScope":"private"}`)
				return
			}
			a.reply(w, `{"resultType":"complete","tools":[{"name":"y"}],"ttlMs":600000,"cacheScope":"public"}`)
		})
		if f := of(t, newGateway(t, nil, p).modern(t).ask("tools/list", "")); *f.TTL > 1000 || f.CacheScope != "private" {
			t.Errorf("TTL is %d ms, %s", *f.TTL, f.CacheScope)
		}
	})
}

// Clients may change the escapes in an id when they send it back.
func TestServerRequestIDsInAnySpelling(t *testing.T) {
	spellings := map[string]func(id string) string{
		"unchanged": func(id string) string { return id },
		"unescaped": func(id string) string { return strings.ReplaceAll(id, `\u0026`, "&") },
		"with \\u0026": func(id string) string {
			return strings.ReplaceAll(strings.ReplaceAll(id, `\u0026`, "&"), "&", `\u0026`)
		},
		"in ASCII": func(id string) string { return strings.ReplaceAll(id, "é", `\u00E9`) },
	}
	for name, spell := range spellings {
		for _, p := range []*fakeServer{legacyPeer("r&d é").handle("tools/call", askingTool(1)),
			modernPeer("r&d é").handle("tools/call", inputTool(1))} {
			t.Run(fmt.Sprint(name, ", server of era ", p.eras), func(t *testing.T) {
				u := newGateway(t, nil, p).legacy(t)
				call := u.startRequest("tools/call", `{"name":"r&d é::x"}`)
				question := call.nextOf("elicitation/create")
				u.post(`{"jsonrpc":"2.0","id":` + spell(question.id()) + `,"result":{"action":"mine"}}`)
				if e := call.nextOf(""); !strings.Contains(e.data, `"mine"`) {
					t.Errorf("got %s", e.data)
				}
			})
		}
	}
}

// No message is sent before notifications/initialized, because some servers refuse it.
func TestInitializedComesBeforeCalls(t *testing.T) {
	p := legacyPeer("a")
	telling, goOn := make(chan struct{}), make(chan struct{})
	var notified, early atomic.Bool
	p.handle("notifications/initialized", func(w http.ResponseWriter, _ *incoming) {
		close(telling)
		<-goOn
		notified.Store(true)
		w.WriteHeader(http.StatusAccepted)
	})
	p.handle("tools/call", func(w http.ResponseWriter, a *incoming) {
		if !notified.Load() {
			early.Store(true)
		}
		a.reply(w, "{}")
	})
	g := newGateway(t, nil, p)
	u := g.modern(t)
	var calls []*liveReply
	begin := func(id string) {
		calls = append(calls, u.start(http.MethodPost, u.request(id, "tools/call", `{"name":"a::x"}`)))
	}
	begin("1")
	<-telling
	begin("2")
	begin("3")
	g.passTime(t)
	close(goOn)
	for _, live := range calls {
		live.nextOf("")
	}
	if early.Load() {
		t.Error("a call arrived before notifications/initialized")
	}
	if n := p.count("notifications/initialized"); n != 1 {
		t.Errorf("sent %d times", n)
	}
}

// notifications/initialized is sent even if the client disconnects during the handshake.
func TestInitializedIsSentAfterADisconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := legacyPeer("a")
		telling := make(chan struct{})
		var once sync.Once
		var notified, early atomic.Bool
		p.handle("notifications/initialized", func(w http.ResponseWriter, a *incoming) {
			first := false
			once.Do(func() { first = true; close(telling) })
			if first {
				select {
				case <-a.Context().Done(): // canceled with the client
					panic(http.ErrAbortHandler)
				case <-time.After(time.Second): // may also outlive the client
				}
			}
			notified.Store(true)
			w.WriteHeader(http.StatusAccepted)
		})
		p.handle("tools/call", func(w http.ResponseWriter, a *incoming) {
			if !notified.Load() {
				early.Store(true)
			}
			a.reply(w, "{}")
		})
		g := newInMemory(t, nil, p)
		defer g.close()
		u := g.modern(t)
		leaving := u.start(http.MethodPost, u.request("1", "tools/call", `{"name":"a::x"}`))
		<-telling
		leaving.disconnect()
		if s := u.call("a::x"); s.code() != 0 {
			t.Errorf("got %s", s.body)
		}
		if early.Load() || !notified.Load() {
			t.Error("a call reached a server before notifications/initialized")
		}
	})
}

// A response 401 to one client does not determine the era of a server.
func TestRefusalsDoNotDetermineEras(t *testing.T) {
	p := newPeer("a")
	p.eras = [2]bool{true, true}
	configure := func(c *Config) { c.Servers[0].Routes = keyRoutes{fakeRoutes{p}} }
	g := newGateway(t, configure, p)
	good := http.Header{"Authorization": {"Bearer good"}}
	legacy := g.user(t, mcp.Legacy)
	legacy.header = good
	legacy.connect()
	before := p.count("initialize")
	if s := g.modern(t).call("a::x"); s.code() == 0 {
		t.Errorf("unauthorized client: got %s", s.body)
	}
	u := g.modern(t)
	u.header = good
	if s := u.call("a::x"); s.code() != 0 {
		t.Errorf("got %s", s.body)
	}
	if n := p.count("initialize") - before; n > 0 {
		t.Error("a modern server got legacy requests")
	}
}

// keyRoutes require a key.
type keyRoutes struct{ fakeRoutes }

func (g keyRoutes) Serve(w http.ResponseWriter, r *http.Request, account string) error {
	if r.Header.Get("Authorization") == "Bearer good" {
		return g.fakeRoutes.Serve(w, r, account)
	}
	_, _ = io.Copy(io.Discard, r.Body)
	w.WriteHeader(http.StatusUnauthorized)
	return nil
}

// Links to removed servers are dropped.
func TestLinksOfRemovedServers(t *testing.T) {
	p := legacyPeer("a").hasTools("x")
	g := newGateway(t, nil, p)
	u, m := g.legacy(t), g.modern(t)
	for i := range 10 {
		g.replace(func(c *Config) { c.Servers[0].ID = fmt.Sprint("a", i) }, p)
		for _, u := range []*testClient{u, m} {
			if s := u.call("a::x"); s.code() != 0 {
				t.Errorf("got %s", s.body)
			}
		}
	}
	for _, c := range g.known() {
		if n := len(c.allLinks()); n > 2 {
			t.Errorf("the client has %d links to the server", n)
		}
	}
}

// A running call does not block the reload that removes its gateway.
func TestCloseDoesNotWaitForCalls(t *testing.T) {
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		p := legacyPeer("a")
		goOn := make(chan struct{})
		p.handle("tools/call", func(w http.ResponseWriter, a *incoming) {
			<-goOn
			a.reply(w, `{"done":true}`)
		})
		g := newGateway(t, nil, p)
		u := g.user(t, era)
		if era == mcp.Legacy {
			u.connect()
		}
		call := u.start(http.MethodPost, u.request("1", "tools/call", `{"name":"a::x"}`))
		p.waitFor(t, "tools/call", 1)
		ended := make(chan struct{})
		go func() {
			g.close()
			close(ended)
		}()
		select {
		case <-ended:
		case <-time.After(await.Patience):
			t.Errorf("era %d: Close waits for a running call", era)
		}
		close(goOn)
		if e := call.nextOf(""); !strings.Contains(e.data, `"done":true`) {
			t.Errorf("era %d: got %s", era, e.data)
		}
		<-ended
	}
}

// One request has a limited number of subscriptions.
func TestSubscriptionsOfOneRequest(t *testing.T) {
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		p := newPeer("a")
		p.eras[era] = true
		p.acceptListen()
		u := newGateway(t, nil, p).modern(t)
		var uris []string
		for i := range 3 * maxSubscriptions {
			uris = append(uris, string(jsonrpc.Quote(mcp.ResourceURI("a", fmt.Sprint("x://", i)))))
		}
		stream := u.start(http.MethodPost, u.request("1", mcp.MethodListen,
			`{"notifications":{"resourceSubscriptions":[`+strings.Join(uris, ",")+`]}}`))
		stream.next() // acknowledged or refused
		stream.disconnect()
		if n := p.count("resources/subscribe"); n > maxSubscriptions {
			t.Errorf("era %d: %d requests to the server", era, n)
		}
		for _, a := range p.requests(mcp.MethodListen) {
			if n := strings.Count(a.body, "x://"); n > maxSubscriptions {
				t.Errorf("era %d: %d subscriptions", era, n)
			}
		}
	}
}

// For the race detector: a session ends while its calls detect a lost session and connect again.
func TestSessionsThatEndDuringCalls(t *testing.T) {
	p := legacyPeer("a")
	p.handle("tools/call", func(w http.ResponseWriter, a *incoming) {
		p.mu.Lock()
		delete(p.alive, a.session)
		p.mu.Unlock()
		p.onUnknownSession(w, a)
	})
	g := newGateway(t, nil, p)
	for range 20 {
		u := g.legacy(t)
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() { u.post(u.request(fmt.Sprint(100+i), "tools/call", `{"name":"a::x"}`)) })
		}
		response, err := u.do(context.Background(), http.MethodDelete, "")
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		all.Wait()
	}
	await.Until(t, "no session remains at the server", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.alive) == 0
	})
}

// A call that is open when its session ends does not start another session, which would never end.
func TestEndedSessionsAreNotRestarted(t *testing.T) {
	p := legacyPeer("a")
	p.handle("tools/call", func(w http.ResponseWriter, a *incoming) {
		p.waitFor(t, "DELETE", 1)
		p.onUnknownSession(w, a)
	})
	u := newGateway(t, nil, p).legacy(t)
	call := u.start(http.MethodPost, u.request("1", "tools/call", `{"name":"a::x"}`))
	p.waitFor(t, "tools/call", 1)
	response, err := u.do(context.Background(), http.MethodDelete, "")
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	call.waitEnd()
	if n := p.count("initialize"); n != 1 {
		t.Errorf("initialized %d times", n)
	}
}
