package gateway

import (
	"errors"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
)

// newReplica returns a gateway that shares an engine with others.
func newReplica(t testing.TB, engine *replicastest.Engine, configure func(*Config), peers ...*fakeServer) *testGateway {
	return serveHTTP(t, newBareGatewayIn(replicastest.Replica(t, engine).Space("gateway"), configure, peers...))
}

// newReplicas returns two replicas with the same servers.
func newReplicas(t testing.TB, peers ...*fakeServer) (one, other *testGateway, engine *replicastest.Engine) {
	engine = replicastest.New()
	return newReplica(t, engine, nil, peers...), newReplica(t, engine, nil, peers...), engine
}

// resumable makes session ids carry all sessions with servers.
func resumable(c *Config) { c.Resumable = true }

// asChildren turns all servers into child processes. Each replica has its own.
func asChildren(c *Config) {
	for _, s := range c.Servers {
		s.ChildrenOnly = true
	}
}

func TestSessionsEndedElsewhere(t *testing.T) {
	p := legacyPeer("a")
	p.keepStreams()
	one, other, engine := newReplicas(t, p)
	u := one.legacy(t)
	there := u.atGateway(other)
	if s := there.call("a::x"); s.code() != 0 {
		t.Fatalf("got %s", s.body)
	}
	stream := there.listen()
	u.end()
	stream.waitEnd()
	if s := there.call("a::x"); s.status != http.StatusNotFound {
		t.Errorf("at a replica that knew the session: got %d %s", s.status, s.body)
	}
	// A replica that starts later finds the end in the store.
	if s := u.atGateway(newReplica(t, engine, nil, p)).call("a::x"); s.status != http.StatusNotFound {
		t.Errorf("at a new replica: got %d %s", s.status, s.body)
	}
	// Without the store, the session id is valid.
	third := newReplica(t, engine, nil, p)
	engine.Down.Store(true)
	if s := u.atGateway(third).call("a::x"); s.status != http.StatusOK {
		t.Errorf("without the store: got %d %s", s.status, s.body)
	}
	engine.Down.Store(false)
	await.Until(t, "the end is read from the available store", func() bool {
		return u.atGateway(third).call("a::x").status == http.StatusNotFound
	})
}

// Sessions that end during an outage of the store end at other replicas after the outage.
func TestSessionsEndedWithoutTheStore(t *testing.T) {
	p := legacyPeer("a")
	one, other, engine := newReplicas(t, p)
	var users []*testClient
	for range 3 {
		u := one.legacy(t)
		if s := u.atGateway(other).call("a::x"); s.code() != 0 {
			t.Fatalf("got %s", s.body)
		}
		users = append(users, u)
	}
	engine.Down.Store(true)
	for _, u := range users {
		u.end()
		if s := u.atGateway(other).call("a::x"); s.status != http.StatusOK {
			t.Errorf("without the store: got %d %s", s.status, s.body)
		}
	}
	engine.Down.Store(false)
	await.Until(t, "all changes are sent", func() bool {
		ends := one.replicaSync.ends
		ends.mu.Lock()
		defer ends.mu.Unlock()
		return !ends.sending
	})
	third := newReplica(t, engine, nil, p)
	for _, u := range users {
		for _, at := range []*testGateway{other, third} {
			if s := u.atGateway(at).call("a::x"); s.status != http.StatusNotFound {
				t.Errorf("got %d %s", s.status, s.body)
			}
		}
	}
}

// The same applies if the replica stops before the store is available again.
func TestSessionsEndedBeforeAReplicaStops(t *testing.T) {
	p := legacyPeer("a")
	engine := replicastest.New()
	one := serveInMemory(t, newBareGatewayIn(replicastest.Replica(t, engine).Space("gateway"), nil, p))
	u := one.legacy(t)
	engine.Down.Store(true)
	u.end()
	one.close()
	engine.Down.Store(false)
	third := newReplica(t, engine, nil, p)
	await.Until(t, "the end of the session is sent", func() bool { return len(engine.Values()) > 0 })
	if s := u.atGateway(third).call("a::x"); s.status != http.StatusNotFound {
		t.Errorf("got %d %s", s.status, s.body)
	}
}

// A replica that continues a session reads its record once. The replica that started it never does.
func TestSessionsAreLookedUpOnce(t *testing.T) {
	one, other, engine := newReplicas(t, legacyPeer("a").hasTools("x"))
	u := one.legacy(t)
	before := engine.Operations.Load()
	for range 5 {
		u.call("a::x")
		u.ask("tools/list", "")
	}
	if n := engine.Operations.Load() - before; n != 0 {
		t.Errorf("%d operations at the replica that started the session", n)
	}
	for range 5 {
		u.atGateway(other).call("a::x")
	}
	if n := engine.Operations.Load() - before; n != 1 {
		t.Errorf("%d operations at the other replica", n)
	}
}

// The log level and subscriptions of a session apply at all replicas.
func TestSessionsContinueElsewhere(t *testing.T) {
	a, b := legacyPeer("a"), modernPeer("b")
	b.capabilities = `{"tools":{},"resources":{"subscribe":true},"logging":{}}`
	sayB := b.acceptListen()
	one, other, engine := newReplicas(t, a, b)
	u := one.legacy(t)
	there := u.atGateway(other)
	there.call("b::x") // lets that replica know the session
	if s := u.ask("logging/setLevel", `{"level":"warning"}`); s.code() != 0 {
		t.Fatalf("got %s", s.body)
	}
	u.ask("resources/subscribe", `{"uri":"`+mcp.ResourceURI("b", "x://a")+`"}`)
	u.ask("resources/subscribe", `{"uri":"`+mcp.ResourceURI("b", "x://b")+`"}`)
	u.ask("resources/unsubscribe", `{"uri":"`+mcp.ResourceURI("b", "x://b")+`"}`)
	for name, at := range map[string]*testGateway{"known": other, "restored": newReplica(t, engine, nil, a, b)} {
		u := u.atGateway(at)
		await.Until(t, name+": the message arrives", func() bool {
			u.call("b::x")
			calls := b.requests("tools/call")
			return strings.Contains(calls[len(calls)-1].body, `"io.modelcontextprotocol/logLevel":"warning"`)
		})
		before := b.count(mcp.MethodListen)
		stream := u.listen()
		b.waitFor(t, mcp.MethodListen, before+1)
		await.Until(t, name+": it listens", func() bool {
			sayB(updated)
			select {
			case e := <-stream.events:
				return strings.Contains(e.data, mcp.ResourceURI("b", "x://a"))
			default:
				return false
			}
		})
		for _, c := range at.known() {
			for _, l := range c.allLinks() {
				if l.serverName == "b" && !slices.Equal(l.subscriptions.all(), []string{"x://a"}) {
					t.Errorf("%s: subscribed to %v", name, l.subscriptions.all())
				}
			}
		}
		stream.disconnect()
	}
}

// Two replicas change a session concurrently.
func TestSessionsThatChangeAtTwoReplicas(t *testing.T) {
	p := modernPeer("a")
	one, other, engine := newReplicas(t, p)
	u := one.legacy(t)
	var all sync.WaitGroup
	for i, at := range []*testGateway{one, other} {
		for k := range 20 {
			all.Go(func() {
				uri := mcp.ResourceURI("a", "x://"+string(rune('a'+i))+string(rune('a'+k)))
				if s := u.atGateway(at).ask("resources/subscribe", `{"uri":"`+uri+`"}`); s.code() != 0 {
					t.Errorf("got %s", s.body)
				}
			})
		}
	}
	all.Wait()
	third := newReplica(t, engine, nil, p)
	u.atGateway(third).call("a::x")
	for _, l := range third.known()[0].allLinks() {
		if n := len(l.subscriptions.all()); n != 40 {
			t.Errorf("%d subscriptions", n)
		}
	}
}

// Changes during an outage of the store are shared when it is back.
func TestSessionsThatChangeWithoutTheStore(t *testing.T) {
	p := modernPeer("a")
	one, _, engine := newReplicas(t, p)
	u := one.legacy(t)
	engine.Down.Store(true)
	if s := u.ask("resources/subscribe", `{"uri":"`+mcp.ResourceURI("a", "x://a")+`"}`); s.code() != 0 {
		t.Fatalf("got %s", s.body)
	}
	engine.Down.Store(false)
	await.Until(t, "the store is available", one.continuations.space.Up)
	u.call("a::x")
	third := newReplica(t, engine, nil, p)
	u.atGateway(third).call("a::x")
	if l := third.known()[0].allLinks()[0]; !l.subscriptions.has("x://a") {
		t.Error("the subscription is lost")
	}
}

// A client with a stream at one replica receives updates of subscriptions made at another replica
// as soon as these have a response.
func TestSubscriptionsMadeElsewhere(t *testing.T) {
	p := modernPeer("a")
	say := p.acceptListen()
	one, other, _ := newReplicas(t, p)
	u := one.legacy(t)
	stream := u.atGateway(other).listen()
	uri := `{"uri":"` + mcp.ResourceURI("a", "x://a") + `"}`
	if s := u.ask("resources/subscribe", uri); s.code() != 0 {
		t.Fatalf("got %s", s.body)
	}
	say(updated)
	if e := stream.nextOf(mcp.MethodUpdated); !strings.Contains(e.data, mcp.ResourceURI("a", "x://a")) {
		t.Errorf("got %s", e.data)
	}
	another := mcp.ResourceURI("a", "x://b")
	for _, method := range []string{"resources/subscribe", "resources/unsubscribe"} {
		u.ask(method, `{"uri":"`+another+`"}`)
	}
	say(strings.ReplaceAll(updated, "x://a", "x://b"))
	say(toolsChanged)
	for e := stream.next(); e.method() != "notifications/tools/list_changed"; e = stream.next() {
		if strings.Contains(e.data, another) {
			t.Errorf("got %s", e.data)
		}
	}
}

// A replica that missed messages reads the state from the store. Streams end and get subscriptions
// without another request of their clients.
func TestMissedMessages(t *testing.T) {
	p := modernPeer("a")
	say := p.acceptListen()
	one, other, engine := newReplicas(t, p)
	u, ends := one.legacy(t), one.legacy(t)
	stream, ending := u.atGateway(other).listen(), ends.atGateway(other).listen()
	engine.Deaf.Store(true)
	if s := u.ask("resources/subscribe", `{"uri":"`+mcp.ResourceURI("a", "x://a")+`"}`); s.code() != 0 {
		t.Fatalf("got %s", s.body)
	}
	ends.end()
	listens := func() bool {
		return slices.ContainsFunc(p.requests("subscriptions/listen"),
			func(a *incoming) bool { return strings.Contains(a.body, "x://a") })
	}
	if listens() {
		t.Fatal("the replica received it")
	}
	engine.Reconnect()
	ending.waitEnd()
	await.Until(t, "the stream listens to the resource", listens)
	say(updated)
	if e := stream.nextOf(mcp.MethodUpdated); !strings.Contains(e.data, mcp.ResourceURI("a", "x://a")) {
		t.Errorf("got %s", e.data)
	}
}

// Each replica has its own child processes. The child of the replica with the client's stream gets
// the subscription.
func TestSubscriptionsAtChildrenElsewhere(t *testing.T) {
	mine, others := legacyPeer("a"), legacyPeer("a")
	mine.keepStreams()
	say := others.keepStreams()
	engine := replicastest.New()
	one, other := newReplica(t, engine, asChildren, mine), newReplica(t, engine, asChildren, others)
	u := one.legacy(t)
	there := u.atGateway(other)
	there.call("a::x")
	stream := there.listen()
	uri := `{"uri":"` + mcp.ResourceURI("a", "x://a") + `"}`
	if s := u.ask("resources/subscribe", uri); s.code() != 0 {
		t.Fatalf("got %s", s.body)
	}
	if n := others.count("resources/subscribe"); n != 1 {
		t.Errorf("got %d subscriptions at the child with the stream before the response", n)
	}
	say(updated)
	stream.nextOf(mcp.MethodUpdated)
	u.ask("resources/unsubscribe", uri)
	if n := others.count("resources/unsubscribe"); n != 1 {
		t.Errorf("got %d unsubscribe requests", n)
	}
	// Without a stream, a child gets the change with the next request to it.
	there.ask("logging/setLevel", `{"level":"error"}`)
	await.Until(t, "the other child gets the change", func() bool {
		u.call("a::x")
		return mine.count("logging/setLevel") > 0
	})
	if n := mine.count("notifications/initialized"); n != 1 {
		t.Errorf("got notifications/initialized %d times", n)
	}
}

// Messages of a server reach the client's stream at another replica.
func TestMessagesForStreamsElsewhere(t *testing.T) {
	p := legacyPeer("a")
	p.handle("GET", func(w http.ResponseWriter, _ *incoming) { w.WriteHeader(http.StatusMethodNotAllowed) })
	answered := make(chan string, 1)
	p.handle("tools/list", func(w http.ResponseWriter, a *incoming) {
		answer := a.at.expect(a.session, "7")
		a.send(w, `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":"x"}}`)
		a.send(w, `{"jsonrpc":"2.0","id":7,"method":"roots/list"}`)
		answered <- <-answer
		a.finish(w, `{"tools":[]}`)
	})
	engine := replicastest.New()
	one, other := newReplica(t, engine, resumable, p), newReplica(t, engine, resumable, p)
	u := one.legacy(t)
	stream := u.atGateway(other).listen()
	list := func() *liveReply { return u.start(http.MethodPost, u.request(u.nextID(), "tools/list", "")) }
	listing := list()
	stream.nextOf("notifications/message")
	u.atGateway(other).respond(stream.nextOf("roots/list"), `{"roots":[]}`)
	if got := <-answered; got != `{"jsonrpc":"2.0","id":7,"result":{"roots":[]}}` {
		t.Errorf("got %s", got)
	}
	listing.waitEnd()
	// Without a stream, the server gets an error.
	stream.disconnect()
	await.Until(t, "the stream has ended", func() bool { return len(other.streams.audiences()) == 0 })
	listing = list()
	if got := <-answered; !strings.Contains(got, `"error"`) {
		t.Errorf("got %s", got)
	}
	listing.waitEnd()
}

// A client responds at another replica than the one that sent the request.
func TestResponsesAtAnotherReplica(t *testing.T) {
	elicits := func(w http.ResponseWriter, a *incoming) {
		a.finish(w, `{"content":[{"type":"text","text":`+
			string(jsonrpc.Quote(a.ask(w, "7", "elicitation/create", `{"message":"?"}`)))+`}]}`)
	}
	for name, world := range map[string]func() (one, other *testGateway, p *fakeServer){
		"server": func() (*testGateway, *testGateway, *fakeServer) {
			p := legacyPeer("a").handle("tools/call", elicits)
			engine := replicastest.New()
			return newReplica(t, engine, resumable, p), newReplica(t, engine, resumable, p), p
		},
		"server with a session that the id does not carry": func() (*testGateway, *testGateway, *fakeServer) {
			p := legacyPeer("a").handle("tools/call", elicits)
			one, other, _ := newReplicas(t, p)
			return one, other, p
		},
		"child process": func() (*testGateway, *testGateway, *fakeServer) {
			p, q := legacyPeer("a").handle("tools/call", elicits), legacyPeer("a").handle("tools/call", elicits)
			engine := replicastest.New()
			return newReplica(t, engine, asChildren, p), newReplica(t, engine, asChildren, q), p
		},
		"child process as the only server": func() (*testGateway, *testGateway, *fakeServer) {
			p, q := legacyPeer("a").handle("tools/call", elicits), legacyPeer("a").handle("tools/call", elicits)
			alone := func(c *Config) {
				asChildren(c)
				c.Naming = mcp.Naming{}
			}
			engine := replicastest.New()
			return newReplica(t, engine, alone, p), newReplica(t, engine, alone, q), p
		},
		"modern server": func() (*testGateway, *testGateway, *fakeServer) {
			p := modernPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
				if !a.message.Has(jsonrpc.InputResponses) {
					a.reply(w, `{"resultType":"input_required","inputRequests":{"q":{"method":"elicitation/create",`+
						`"params":{"message":"?"}}},"requestState":"s"}`)
					return
				}
				a.reply(w, `{"resultType":"complete","content":[{"type":"text","text":`+
					string(jsonrpc.Quote(string(a.message.Literal(jsonrpc.InputResponses))))+`}]}`)
			})
			one, other, _ := newReplicas(t, p)
			return one, other, p
		},
	} {
		t.Run(name, func(t *testing.T) {
			one, other, p := world()
			u := one.legacy(t)
			call := u.startRequest("tools/call", `{"name":"`+one.names.shown("a", mcp.Tools, "x")+`","arguments":{}}`)
			q := call.nextOf("elicitation/create")
			c := one.known()[0]
			if s := u.atGateway(other).respond(q, `{"action":"accept","content":{"n":1}}`); s.status != http.StatusAccepted {
				t.Errorf("got %d %s", s.status, s.body)
			}
			if e := call.nextOf(""); !strings.Contains(e.data, `\"action\":\"accept\"`) {
				t.Errorf("got %s", e.data)
			}
			call.waitEnd()
			if c.hasServerRequest() {
				t.Error("requests still pending")
			}
			if n := p.count(""); n > 1 {
				t.Errorf("the server got %d responses", n)
			}
		})
	}
}

// A client cancels a call at another replica.
func TestCallsCanceledElsewhere(t *testing.T) {
	for name, p := range map[string]*fakeServer{"legacy": legacyPeer("a"), "modern": modernPeer("a")} {
		t.Run(name, func(t *testing.T) {
			canceled := make(chan struct{})
			p.handle("tools/call", func(w http.ResponseWriter, a *incoming) {
				select {
				case <-a.Context().Done():
				case <-canceled:
				}
			})
			p.handle("notifications/cancelled", func(w http.ResponseWriter, a *incoming) {
				w.WriteHeader(http.StatusAccepted)
				close(canceled)
			})
			one, other, _ := newReplicas(t, p)
			u := one.legacy(t)
			call := u.start(http.MethodPost, u.request("77", "tools/call", `{"name":"a::x"}`))
			p.waitFor(t, "tools/call", 1)
			intruder := other.user(t, mcp.Legacy)
			intruder.identity = "stranger"
			intruder.connect().notify("notifications/cancelled", `{"requestId":77}`)
			select {
			case <-call.begun:
				t.Error("another client canceled the call")
			default:
			}
			// A replica trusts another one about the sender of a message, but checks its rights itself.
			c := one.known()[0]
			one.replicaSync.handleClientMessage(c, &clientMessage{Identity: "stranger",
				Request: wireRequest{Method: http.MethodPost},
				Message: jsonrpc.Notification("notifications/cancelled", []byte(`{"requestId":77}`))})
			if c.calls.get([]byte("77")).active.Context.Err() != nil || p.count("notifications/cancelled") > 0 {
				t.Error("another identity canceled the call")
			}
			u.atGateway(other).notify("notifications/cancelled", `{"requestId":77}`)
			<-call.begun
			call.waitEnd()
		})
	}
}

// Servers get notifications/initialized once, at whichever replica the client sends it.
func TestInitializedAtAnotherReplica(t *testing.T) {
	p := legacyPeer("a")
	engine := replicastest.New()
	one, other := newReplica(t, engine, resumable, p), newReplica(t, engine, resumable, p)
	u := one.user(t, mcp.Legacy)
	u.session = u.ask("initialize", `{"protocolVersion":"`+u.version+`","capabilities":{},"clientInfo":`+u.info+`}`).
		header.Get(mcp.SessionHeader)
	u.atGateway(other).notify("notifications/initialized", "")
	if n := p.count("notifications/initialized"); n != 1 {
		t.Errorf("got notifications/initialized %d times", n)
	}
	for _, at := range []*testGateway{other, one, newReplica(t, engine, resumable, p)} {
		u.atGateway(at).call("a::x")
	}
	if n := p.count("notifications/initialized"); n != 1 {
		t.Errorf("got notifications/initialized %d times in total", n)
	}
}

// sessionWith calls a tool of a server and returns the session of that call.
func (u *testClient) sessionWith(p *fakeServer) string {
	u.t.Helper()
	if s := u.call(p.name + "::x"); s.code() != 0 {
		u.t.Fatalf("got %s", s.body)
	}
	calls := p.requests("tools/call")
	return calls[len(calls)-1].session
}

// All replicas share a session with a server that began later than the client's session.
func TestSessionsWithServersThatBeginElsewhere(t *testing.T) {
	p := legacyPeer("a")
	one, other, engine := newReplicas(t, p)
	u := one.legacy(t)
	in := func(g *testGateway) string { return u.atGateway(g).sessionWith(p) }
	u.atGateway(other).ask("logging/setLevel", `{"level":"error"}`)
	for i := range 3 {
		p.forget() // forgets all sessions
		want := in(other)
		for _, g := range []*testGateway{one, newReplica(t, engine, nil, p), other} {
			if got := in(g); got != want {
				t.Errorf("call %d in session %s, want %s", i, got, want)
			}
		}
	}
	if n := p.count("initialize"); n != 4 {
		t.Errorf("%d sessions", n)
	}
	if n := len(p.requests("ping")); n != 3 { // from replicas with the lost session, not those without the client
		t.Errorf("%d pings", n)
	}
	// Without the store, a replica does not learn about the loss, so it starts another session.
	p.forget()
	in(one)
	engine.Down.Store(true)
	in(other)
	if n := p.count("initialize"); n != 6 {
		t.Errorf("%d sessions in total", n)
	}
}

// If two replicas start sessions at the same time, one session is kept.
func TestSessionsWithServersThatBeginAtTwoReplicas(t *testing.T) {
	p := legacyPeer("a")
	one, other, _ := newReplicas(t, p)
	u := one.legacy(t)
	u.atGateway(other).call("a::x")
	for range 10 {
		p.forget()
		var all sync.WaitGroup
		for _, at := range []*testGateway{one, other} {
			all.Go(func() {
				if s := u.atGateway(at).call("a::x"); s.code() != 0 {
					t.Errorf("got %s", s.body)
				}
			})
		}
		all.Wait()
		u.call("a::x")
		u.atGateway(other).call("a::x")
		calls := p.requests("tools/call")
		if a, b := calls[len(calls)-1].session, calls[len(calls)-2].session; a != b {
			t.Fatalf("calls in sessions %s and %s", a, b)
		}
		p.mu.Lock()
		if len(p.alive) != 1 {
			t.Errorf("%d sessions remain", len(p.alive))
		}
		p.mu.Unlock()
	}
}

// A list change that one replica receives applies to all. Clients are notified once.
func TestListsChangedElsewhere(t *testing.T) {
	p := legacyPeer("a").hasTools("x")
	say := p.keepStreams()
	one, other, _ := newReplicas(t, p)
	u, v := one.legacy(t), other.legacy(t)
	mine, others := u.listen(), v.listen()
	p.waitFor(t, "GET", 2)
	v.ask("tools/list", "")
	p.hasTools("x", "y")
	say(toolsChanged)
	mine.nextOf("notifications/tools/list_changed")
	others.nextOf("notifications/tools/list_changed")
	say(updated)
	for _, stream := range []*liveReply{mine, others} {
		if e := stream.next(); e.method() != mcp.MethodUpdated {
			t.Errorf("notified again: %s", e.data)
		}
	}
	if got := namesIn(t, v.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::x", "a::y"}) {
		t.Errorf("got %v", got)
	}
}

// A child process notifies one replica, which tells the others.
func TestListsOfChildrenChangedElsewhere(t *testing.T) {
	mine, others := legacyPeer("a").hasTools("x"), legacyPeer("a").hasTools("x")
	say := mine.keepStreams()
	others.keepStreams()
	engine := replicastest.New()
	one, other := newReplica(t, engine, asChildren, mine), newReplica(t, engine, asChildren, others)
	u, v := one.legacy(t), other.legacy(t)
	u.listen()
	stream := v.listen()
	mine.waitFor(t, "GET", 1)
	others.waitFor(t, "GET", 1)
	v.ask("tools/list", "")
	others.hasTools("y")
	say(toolsChanged)
	if e := stream.next(); e.method() != "notifications/tools/list_changed" ||
		!strings.Contains(e.data, `"proxy":{"server":"a"}`) {
		t.Errorf("got %s", e.data)
	}
	if got := namesIn(t, v.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::y"}) {
		t.Errorf("got %v", got)
	}
}

// A child process notifies one replica about a change without an open stream.
func TestListsOfChildrenWithoutAStream(t *testing.T) {
	mine, others := legacyPeer("a").hasTools("x"), legacyPeer("a").hasTools("x")
	others.keepStreams()
	engine := replicastest.New()
	one, other := newReplica(t, engine, asChildren, mine), newReplica(t, engine, asChildren, others)
	u, v := one.legacy(t), other.legacy(t)
	u.call("a::x")
	stream := v.listen()
	others.waitFor(t, "GET", 1)
	v.ask("tools/list", "")
	others.hasTools("y")
	calls := mine.requests("tools/call")
	one.ChildListChanged("a", "notifications/tools/list_changed", []string{"of another client"})
	one.ChildListChanged("a", "notifications/prompts/list_changed", []string{calls[0].session})
	one.ChildListChanged("a", "notifications/tools/list_changed", []string{calls[0].session})
	got := map[string]int{}
	for range 2 {
		got[stream.next().method()]++
	}
	if got["notifications/tools/list_changed"] != 1 || got["notifications/prompts/list_changed"] != 1 {
		t.Errorf("got %v", got)
	}
	if got := namesIn(t, v.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::y"}) {
		t.Errorf("got %v", got)
	}
}

// A list change in a client's session applies to that session at all replicas.
func TestListsOfASessionChangedElsewhere(t *testing.T) {
	p := legacyPeer("a").hasTools("x")
	p.keepStreams()
	p.handle("tools/call", func(w http.ResponseWriter, a *incoming) {
		p.hasTools("x", "y")
		a.send(w, toolsChanged)
		a.finish(w, `{"content":[]}`)
	})
	engine := replicastest.New()
	one, other := newReplica(t, engine, resumable, p), newReplica(t, engine, resumable, p)
	u := one.legacy(t)
	there := u.atGateway(other)
	there.listen()
	p.waitFor(t, "GET", 1)
	if got := namesIn(t, there.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::x"}) {
		t.Errorf("got %v", got)
	}
	u.call("a::x")
	if got := namesIn(t, there.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::x", "a::y"}) {
		t.Errorf("got %v", got)
	}
}

// Concurrent changes are sent together.
func TestManyListsChangeElsewhere(t *testing.T) {
	p := legacyPeer("a")
	say := p.keepStreams()
	one, _, engine := newReplicas(t, p)
	const clients = 20
	var streams []*liveReply
	for range clients {
		u := one.legacy(t)
		u.call("a::x")
		streams = append(streams, u.listen())
	}
	p.waitFor(t, "GET", clients)
	before := engine.Operations.Load()
	say(toolsChanged)
	for _, stream := range streams {
		stream.nextOf("notifications/tools/list_changed")
	}
	await.Until(t, "all changes are sent", func() bool {
		lists := one.replicaSync.lists
		lists.mu.Lock()
		defer lists.mu.Unlock()
		return lists.timer == nil
	})
	if n := engine.Operations.Load() - before; n == 0 || n > clients/2 {
		t.Errorf("sent in %d operations", n)
	}
}

// A refresh applies to all replicas.
func TestRefreshedElsewhere(t *testing.T) {
	p := legacyPeer("a").hasTools("x")
	p.keepStreams()
	one, other, _ := newReplicas(t, p)
	u := other.legacy(t)
	stream := u.listen()
	p.waitFor(t, "GET", 1)
	u.ask("tools/list", "")
	p.hasTools("y")
	one.Refresh("a")
	stream.nextOf("notifications/resources/list_changed")
	if got := namesIn(t, u.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::y"}) {
		t.Errorf("got %v", got)
	}
}

// A client resumes the stream of a call at another replica.
func TestCallsResumedElsewhere(t *testing.T) {
	p := legacyPeer("a")
	gone := make(chan struct{})
	p.handle("tools/call", func(w http.ResponseWriter, a *incoming) {
		a.sendAs(w, "id: 1\n", `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":"x"}}`)
		<-a.Context().Done()
		close(gone)
	})
	p.handle("GET", func(w http.ResponseWriter, a *incoming) {
		if a.Header.Get("Last-Event-Id") != "1" {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		<-gone
		a.send(w, `{"jsonrpc":"2.0","id":77,"result":{"content":[]}}`)
	})
	engine := replicastest.New()
	one, other := newReplica(t, engine, resumable, p), newReplica(t, engine, resumable, p)
	u := one.legacy(t)
	call := u.start(http.MethodPost, u.request("77", "tools/call", `{"name":"a::x"}`))
	last := call.next()
	there := u.atGateway(other)
	there.header = http.Header{"Last-Event-Id": {last.last}}
	if e := there.listen().nextOf(""); !strings.Contains(e.data, `"content":[]`) {
		t.Errorf("got %s", e.data)
	}
}

// Without the store, each replica works independently.
func TestReplicasWithoutTheStore(t *testing.T) {
	for name, breaks := range map[string]func(*replicastest.Engine){
		"down":    func(e *replicastest.Engine) { e.Down.Store(true) },
		"stalled": func(e *replicastest.Engine) { e.Stalled.Store(true) },
		"full":    func(e *replicastest.Engine) { e.Full.Store(true) },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := legacyPeer("a").hasTools("x"), modernPeer("b")
			say := a.keepStreams()
			b.acceptListen()
			engine := replicastest.New()
			breaks(engine)
			g := newReplica(t, engine, nil, a, b)
			u := g.legacy(t)
			u.call("a::x")
			stream := u.listen()
			for method, params := range map[string]string{
				"tools/call": `{"name":"a::x"}`, "tools/list": "", "logging/setLevel": `{"level":"error"}`,
				"resources/subscribe": `{"uri":"` + mcp.ResourceURI("b", "x://a") + `"}`,
			} {
				if s := u.ask(method, params); s.code() != 0 {
					t.Errorf("%s: got %s", method, s.body)
				}
			}
			say(toolsChanged)
			stream.nextOf("notifications/tools/list_changed")
			answer := a.expect("a-session-1", "7")
			say(`{"jsonrpc":"2.0","id":7,"method":"roots/list"}`)
			u.respond(stream.nextOf("roots/list"), `{"roots":[]}`)
			<-answer
			u.notify("notifications/cancelled", `{"requestId":999}`)
			u.end()
			if s := u.call("a::x"); s.status != http.StatusNotFound {
				t.Errorf("got %d", s.status)
			}
		})
	}
}

// Messages about a client do not deadlock with code that locks the State or its clients, and waits
// for a client.
func TestMessagesWhileLinksAreDropped(t *testing.T) {
	one, _, _ := newReplicas(t, legacyPeer("a"))
	one.legacy(t)
	c, work := one.known()[0], one.replicaSync.work
	one.clients.addRef(c)
	defer one.clients.release(c)
	one.clients.mu.Lock()
	var first sync.WaitGroup
	first.Go(func() { work.add(c, 0, func() {}) })
	free := false
	for deadline := time.Now().Add(5 * time.Second); !free && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if work.mu.TryLock() {
			free = work.queues[c] != nil // waits for the clients
			work.mu.Unlock()
		}
		if free = free && c.mu.TryLock(); free {
			c.mu.Unlock()
		}
	}
	one.clients.mu.Unlock()
	first.Wait()
	if !free {
		t.Fatal("the message blocks the queue of the client")
	}
	const times = 2_000
	done := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for range times {
			work.add(c, 0, func() {})
		}
	})
	all.Go(func() {
		for range times {
			one.State.mu.Lock()
			one.dropRemovedLinks()
			one.State.mu.Unlock()
		}
	})
	go func() {
		all.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("deadlock")
	}
}

// Responses do not wait for the store if this replica is connected to the server, or if there was
// no request.
func TestResponsesWithoutTheStore(t *testing.T) {
	for name, configure := range map[string]func(*Config){
		"many servers": asChildren,
		"one server":   func(c *Config) { asChildren(c); c.Naming = mcp.Naming{} },
	} {
		t.Run(name, func(t *testing.T) {
			p := legacyPeer("a")
			engine := replicastest.New()
			g := newReplica(t, engine, configure, p)
			u := g.legacy(t)
			u.call(g.names.shown("a", mcp.Tools, "x"))
			engine.Down.Store(true)
			began := time.Now()
			for _, id := range []string{`7`, `"a::7"`, `"a::x"`, `"x"`, `""`} {
				if s := u.post(`{"jsonrpc":"2.0","id":` + id + `,"result":{}}`); s.status != http.StatusAccepted {
					t.Errorf("%s: got %d %s", id, s.status, s.body)
				}
			}
			if time.Since(began) > responseTimeout/2 {
				t.Error("the responses waited for the store")
			}
		})
	}
}

// A record that exceeds the owner's quota uses none of it.
func TestRecordsOverTheQuota(t *testing.T) {
	one, _, engine := newReplicas(t, legacyPeer("a"))
	one.legacy(t)
	c, store := one.known()[0], one.replicaSync.records
	has := func(bytes int, want bool) {
		t.Helper()
		if got, err := store.hasRoom(t.Context(), c, bytes); got != want || err != nil {
			t.Errorf("stored %d bytes: %t, %v", bytes, got, err)
		}
	}
	has(recordBytes, false)
	has(recordBytes/2, true)
	has(recordBytes, false)
	has(recordBytes/4, true)
	engine.Down.Store(true)
	if _, err := store.hasRoom(t.Context(), c, 1); !errors.Is(err, replicas.ErrUnavailable) {
		t.Errorf("without the store: %v", err)
	}
}

// The ends of an owner's sessions that exceed its quota are not stored, but still sent to the
// replicas that run.
func TestSessionsEndedOverTheQuota(t *testing.T) {
	p := legacyPeer("a")
	one, other, engine := newReplicas(t, p)
	connect := func(identity string) *testClient {
		u := one.user(t, mcp.Legacy)
		u.identity = identity
		return u.connect()
	}
	end := func(u *testClient, stored int) {
		t.Helper()
		before := len(engine.Values())
		u.end()
		if n := len(engine.Values()) - before; n != stored {
			t.Errorf("%s: stored %d values, want %d", u.identity, n, stored)
		}
		if s := u.atGateway(other).call("a::x"); s.status != http.StatusNotFound {
			t.Errorf("%s: got %d %s", u.identity, s.status, s.body)
		}
	}
	end(connect("x"), 1)
	all := replicas.Bucket{Key: "session ends", Rate: 1, Burst: maxStoredEnds, Want: maxStoredEnds}
	if _, _, err := one.replicaSync.bus.space.Spend(t.Context(), "x", []replicas.Bucket{all}); err != nil {
		t.Fatal(err)
	}
	end(connect("x"), 0)
	end(connect("y"), 1)
}

// A client does not wait for the servers that get its messages from another replica. So it can
// forward only a limited number at once, and does not affect other clients.
func TestForwardedMessagesAreBounded(t *testing.T) {
	answered := make(chan struct{})
	defer close(answered)
	wait := func(http.ResponseWriter, *incoming) { <-answered }
	p := legacyPeer("a").handle("tools/call", wait).handle("notifications/cancelled", wait)
	one, other, _ := newReplicas(t, p)
	start := func(identity string) (there *testClient) {
		u := one.user(t, mcp.Legacy)
		u.identity = identity
		u.connect().start(http.MethodPost, u.request("77", "tools/call", `{"name":"a::x"}`))
		return u.atGateway(other)
	}
	x, y := start("x"), start("y")
	p.waitFor(t, "tools/call", 2)
	for range 3 * noticeLimits.OwnerEntries {
		x.notify("notifications/cancelled", `{"requestId":77}`)
	}
	y.notify("notifications/cancelled", `{"requestId":77}`)
	p.waitFor(t, "notifications/cancelled", noticeLimits.OwnerEntries+1)
	if n := p.count("notifications/cancelled"); n != noticeLimits.OwnerEntries+1 {
		t.Errorf("the server got %d messages at once", n)
	}
	notices := other.replicaSync.notices
	if !notices.Take("x", noticeLimits.OwnerBytes-10) {
		t.Fatal("the quota is already used")
	}
	defer notices.Give("x", noticeLimits.OwnerBytes-10)
	response := `{"jsonrpc":"2.0","id":"a::ABCDEFGHIJKLMNOPQRSTUVWXYZ","result":{}}`
	if s := x.post(response); s.symbol() != "busy" {
		t.Errorf("over the quota: got %d %s", s.status, s.body)
	}
	if s := y.post(response); s.status != http.StatusAccepted {
		t.Errorf("another client: got %d %s", s.status, s.body)
	}
}

// A large response that waits for the store is not encoded again and again.
func TestLargeResponsesWithoutTheStore(t *testing.T) {
	const size = 1 << 20
	synctest.Test(t, func(t *testing.T) {
		engine := replicastest.New()
		u := newMemoryReplica(t, engine, nil, legacyPeer("a")).legacy(t)
		engine.Down.Store(true)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		s := u.post(`{"jsonrpc":"2.0","id":"a::ABCDEFGHIJKLMNOPQRSTUVWXYZ","result":{"x":"` +
			strings.Repeat("x", size) + `"}}`)
		runtime.ReadMemStats(&after)
		if s.symbol() != "store_unavailable" {
			t.Errorf("got %d %s", s.status, s.body)
		}
		if n := (after.TotalAlloc - before.TotalAlloc) / size; n > 25 {
			t.Errorf("used %d times the memory of the response", n)
		}
		engine.Down.Store(false)
	})
}

// A session with a server that began during an outage of the store is kept after it.
func TestSessionsStartedDuringAnOutage(t *testing.T) {
	p := legacyPeer("a")
	one, other, engine := newReplicas(t, p)
	u := one.legacy(t)
	in := func(g *testGateway) string { return u.atGateway(g).sessionWith(p) }
	p.forget() // forgets the session that the id carries
	recorded := in(one)
	engine.Down.Store(true)
	own := in(other)
	engine.Down.Store(false)
	await.Until(t, "the store is available", other.continuations.space.Up)
	if got := in(other); got != own || own == recorded {
		t.Errorf("call in session %s, began in %s, recorded %s", got, own, recorded)
	}
}

// A slow server delays only messages to itself, for a limited time.
func TestSubscriptionsAtSlowChildrenElsewhere(t *testing.T) {
	mine, others := legacyPeer("a"), legacyPeer("a")
	others.keepStreams()
	others.handle("resources/subscribe", func(_ http.ResponseWriter, a *incoming) { <-a.Context().Done() })
	engine := replicastest.New()
	one := newReplica(t, engine, asChildren, mine)
	other := newReplica(t, engine, func(c *Config) { asChildren(c); c.JoinTimeout = 2 * time.Second }, others)
	u := one.legacy(t)
	there := u.atGateway(other)
	there.call("a::x")
	there.listen()
	subscribed := u.start(http.MethodPost, u.request(u.nextID(), "resources/subscribe",
		`{"uri":"`+mcp.ResourceURI("a", "x://a")+`"}`))
	others.waitFor(t, "resources/subscribe", 1)
	if s := there.ask("logging/setLevel", `{"level":"error"}`); s.code() != 0 || others.count("resources/subscribe") != 1 {
		t.Errorf("during the delay: got %s", s.body)
	}
	subscribed.waitEnd()
	work := other.replicaSync.work
	await.Until(t, "the queue is empty", func() bool {
		work.mu.Lock()
		defer work.mu.Unlock()
		return len(work.queues) == 0
	})
	others.handle("resources/subscribe", func(w http.ResponseWriter, a *incoming) { a.reply(w, "{}") })
	there.call("a::x")
	if n := others.count("resources/subscribe"); n != 2 {
		t.Errorf("notified %d times at its next use", n)
	}
}

// For the race detector: servers are connected in the background while a session begins.
func TestSessionsThatBeginWhileServersConnect(t *testing.T) {
	space := replicastest.Replica(t, replicastest.New()).Space("gateway")
	g := serveInMemory(t, newBareGatewayIn(space, nil, legacyPeer("a")))
	defer g.close()
	c := newClient(mcp.Legacy, mcp.Latest, "", "@owner", introduction{}.complete())
	server := g.config.Servers[0]
	l, sc := c.linkTo(server), scope{g: g.Gateway}
	var m jsonrpc.Message
	if m.Read([]byte(toolsChanged)) != nil {
		t.Fatal("invalid message")
	}
	var background sync.WaitGroup
	background.Go(func() {
		connectAttempt{sc, l, server}.sharesSession()
		g.replicaSync.listsChanged(m.Text(jsonrpc.Method), l)
		unsolicited{sc, l}.sendToReplica(&m)
	})
	g.clients.release(g.clients.get("session", func() *client { return c }))
	background.Wait()
	if c.keyHash() != hashKey("session") {
		t.Error("the session does not have the hash of its id")
	}
}
