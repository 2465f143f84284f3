package gateway

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
)

// newReplica returns a gateway that shares what an engine keeps.
func newReplica(t testing.TB, engine *replicastest.Engine, configure func(*Config), peers ...*peer) *front {
	return onNetwork(t, joiningIn(replicastest.Replica(t, engine).Space("gateway"), configure, peers...))
}

// newReplicas returns two gateways that share everything, with the same servers.
func newReplicas(t testing.TB, peers ...*peer) (one, other *front, engine *replicastest.Engine) {
	engine = replicastest.New()
	return newReplica(t, engine, nil, peers...), newReplica(t, engine, nil, peers...), engine
}

// resumable has session ids carry all sessions with servers.
func resumable(c *Config) { c.Resumable = true }

// childrenOf makes all servers child processes: each replica has its own.
func childrenOf(c *Config) {
	for _, s := range c.Servers {
		s.ChildrenOnly = true
	}
}

func TestSessionsEndedElsewhere(t *testing.T) {
	p := legacyPeer("a")
	p.listens()
	one, other, engine := newReplicas(t, p)
	u := one.legacy(t)
	there := u.at(other)
	if s := there.call("a::x"); s.code() != 0 {
		t.Fatalf("got %s", s.body)
	}
	stream := there.listen()
	u.end()
	stream.ended()
	if s := there.call("a::x"); s.status != http.StatusNotFound {
		t.Errorf("where the session was known: got %d %s", s.status, s.body)
	}
	// A replica that begins later finds it in the store.
	if s := u.at(newReplica(t, engine, nil, p)).call("a::x"); s.status != http.StatusNotFound {
		t.Errorf("where it was not: got %d %s", s.status, s.body)
	}
	// If the store is unavailable, the id is all that there is.
	third := newReplica(t, engine, nil, p)
	engine.Down.Store(true)
	if s := u.at(third).call("a::x"); s.status != http.StatusOK {
		t.Errorf("without the store: got %d %s", s.status, s.body)
	}
	engine.Down.Store(false)
	await.Until(t, "the store is looked at when it is available", func() bool {
		return u.at(third).call("a::x").status == http.StatusNotFound
	})
}

// Sessions that end while the store is unavailable end elsewhere when it is back.
func TestSessionsEndedWithoutTheStore(t *testing.T) {
	p := legacyPeer("a")
	one, other, engine := newReplicas(t, p)
	var users []*user
	for range 3 {
		u := one.legacy(t)
		if s := u.at(other).call("a::x"); s.code() != 0 {
			t.Fatalf("got %s", s.body)
		}
		users = append(users, u)
	}
	engine.Down.Store(true)
	for _, u := range users {
		u.end()
		if s := u.at(other).call("a::x"); s.status != http.StatusOK {
			t.Errorf("without the store: got %d %s", s.status, s.body)
		}
	}
	engine.Down.Store(false)
	await.Until(t, "all is told", func() bool {
		one.elsewhere.mu.Lock()
		defer one.elsewhere.mu.Unlock()
		return !one.elsewhere.telling
	})
	third := newReplica(t, engine, nil, p)
	for _, u := range users {
		for _, at := range []*front{other, third} {
			if s := u.at(at).call("a::x"); s.status != http.StatusNotFound {
				t.Errorf("got %d %s", s.status, s.body)
			}
		}
	}
}

// Sessions that have ended while the store was unavailable end elsewhere also if the replica ends before it is back.
func TestSessionsEndedAtTheEndOfAReplica(t *testing.T) {
	p := legacyPeer("a")
	engine := replicastest.New()
	one := inMemory(t, joiningIn(replicastest.Replica(t, engine).Space("gateway"), nil, p))
	u := one.legacy(t)
	engine.Down.Store(true)
	u.end()
	one.close()
	engine.Down.Store(false)
	third := newReplica(t, engine, nil, p)
	await.Until(t, "it is told", func() bool { return len(engine.Values()) > 0 })
	if s := u.at(third).call("a::x"); s.status != http.StatusNotFound {
		t.Errorf("got %d %s", s.status, s.body)
	}
}

// A session is looked up once by each replica that goes on with it. Where it has begun, it is never.
func TestSessionsAreLookedUpOnce(t *testing.T) {
	one, other, engine := newReplicas(t, legacyPeer("a").hasTools("x"))
	u := one.legacy(t)
	before := engine.Operations.Load()
	for range 5 {
		u.call("a::x")
		u.ask("tools/list", "")
	}
	if n := engine.Operations.Load() - before; n != 0 {
		t.Errorf("%d operations where the session has begun", n)
	}
	for range 5 {
		u.at(other).call("a::x")
	}
	if n := engine.Operations.Load() - before; n != 1 {
		t.Errorf("%d operations elsewhere", n)
	}
}

// What a client has asked for in its session holds at all replicas.
func TestSessionsGoOnElsewhere(t *testing.T) {
	a, b := legacyPeer("a"), modernPeer("b")
	b.capabilities = `{"tools":{},"resources":{"subscribe":true},"logging":{}}`
	sayB := b.tells()
	one, other, engine := newReplicas(t, a, b)
	u := one.legacy(t)
	there := u.at(other)
	there.call("b::x") // the session is known there
	if s := u.ask("logging/setLevel", `{"level":"warning"}`); s.code() != 0 {
		t.Fatalf("got %s", s.body)
	}
	u.ask("resources/subscribe", `{"uri":"`+mcp.ResourceURI("b", "x://a")+`"}`)
	u.ask("resources/subscribe", `{"uri":"`+mcp.ResourceURI("b", "x://b")+`"}`)
	u.ask("resources/unsubscribe", `{"uri":"`+mcp.ResourceURI("b", "x://b")+`"}`)
	for name, at := range map[string]*front{"known": other, "restored": newReplica(t, engine, nil, a, b)} {
		u := u.at(at)
		await.Until(t, name+": it has heard", func() bool {
			u.call("b::x")
			calls := b.heard("tools/call")
			return strings.Contains(calls[len(calls)-1].body, `"io.modelcontextprotocol/logLevel":"warning"`)
		})
		before := b.count(mcp.MethodListen)
		stream := u.listen()
		b.await(t, mcp.MethodListen, before+1)
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
				if l.server == "b" && !slices.Equal(l.subscriptions.all(), []string{"x://a"}) {
					t.Errorf("%s: subscribed to %v", name, l.subscriptions.all())
				}
			}
		}
		stream.hangUp()
	}
}

// Two replicas change a session at the same time.
func TestSessionsThatChangeEverywhere(t *testing.T) {
	p := modernPeer("a")
	one, other, engine := newReplicas(t, p)
	u := one.legacy(t)
	var all sync.WaitGroup
	for i, at := range []*front{one, other} {
		for k := range 20 {
			all.Go(func() {
				uri := mcp.ResourceURI("a", "x://"+string(rune('a'+i))+string(rune('a'+k)))
				if s := u.at(at).ask("resources/subscribe", `{"uri":"`+uri+`"}`); s.code() != 0 {
					t.Errorf("got %s", s.body)
				}
			})
		}
	}
	all.Wait()
	third := newReplica(t, engine, nil, p)
	u.at(third).call("a::x")
	for _, l := range third.known()[0].allLinks() {
		if n := len(l.subscriptions.all()); n != 40 {
			t.Errorf("%d subscriptions", n)
		}
	}
}

// What a client asks for while the store is unavailable is shared when it is back.
func TestSessionsThatChangeWithoutTheStore(t *testing.T) {
	p := modernPeer("a")
	one, _, engine := newReplicas(t, p)
	u := one.legacy(t)
	engine.Down.Store(true)
	if s := u.ask("resources/subscribe", `{"uri":"`+mcp.ResourceURI("a", "x://a")+`"}`); s.code() != 0 {
		t.Fatalf("got %s", s.body)
	}
	engine.Down.Store(false)
	await.Until(t, "the store is available", one.State.common.Up)
	u.call("a::x")
	third := newReplica(t, engine, nil, p)
	u.at(third).call("a::x")
	if l := third.known()[0].allLinks()[0]; !l.subscriptions.has("x://a") {
		t.Error("it is lost")
	}
}

// A client that listens at one replica gets what it has subscribed to at another, from the answer on.
func TestSubscriptionsMadeElsewhere(t *testing.T) {
	p := modernPeer("a")
	say := p.tells()
	one, other, _ := newReplicas(t, p)
	u := one.legacy(t)
	stream := u.at(other).listen()
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

// What a replica has not heard, it finds in the store when it hears again: streams end, and hear of
// subscriptions, without another request of their clients.
func TestWhatWasNotHeard(t *testing.T) {
	p := modernPeer("a")
	say := p.tells()
	one, other, engine := newReplicas(t, p)
	u, ends := one.legacy(t), one.legacy(t)
	stream, ending := u.at(other).listen(), ends.at(other).listen()
	engine.Deaf.Store(true)
	if s := u.ask("resources/subscribe", `{"uri":"`+mcp.ResourceURI("a", "x://a")+`"}`); s.code() != 0 {
		t.Fatalf("got %s", s.body)
	}
	ends.end()
	listens := func() bool {
		return slices.ContainsFunc(p.heard("subscriptions/listen"), func(a *incoming) bool { return strings.Contains(a.body, "x://a") })
	}
	if listens() {
		t.Fatal("the replica has heard it")
	}
	engine.Reconnect()
	ending.ended()
	await.Until(t, "the stream listens to the resource", listens)
	say(updated)
	if e := stream.nextOf(mcp.MethodUpdated); !strings.Contains(e.data, mcp.ResourceURI("a", "x://a")) {
		t.Errorf("got %s", e.data)
	}
}

// Each replica has child processes of its own. The one where the client listens is asked.
func TestSubscriptionsAtChildrenElsewhere(t *testing.T) {
	mine, others := legacyPeer("a"), legacyPeer("a")
	mine.listens()
	say := others.listens()
	engine := replicastest.New()
	one, other := newReplica(t, engine, childrenOf, mine), newReplica(t, engine, childrenOf, others)
	u := one.legacy(t)
	there := u.at(other)
	there.call("a::x")
	stream := there.listen()
	uri := `{"uri":"` + mcp.ResourceURI("a", "x://a") + `"}`
	if s := u.ask("resources/subscribe", uri); s.code() != 0 {
		t.Fatalf("got %s", s.body)
	}
	if n := others.count("resources/subscribe"); n != 1 {
		t.Errorf("the child where the client listens was asked %d times before the answer", n)
	}
	say(updated)
	stream.nextOf(mcp.MethodUpdated)
	u.ask("resources/unsubscribe", uri)
	if n := others.count("resources/unsubscribe"); n != 1 {
		t.Errorf("and %d times to stop", n)
	}
	// Where it does not listen, a child gets to know when it is used.
	there.ask("logging/setLevel", `{"level":"error"}`)
	await.Until(t, "the other child is told", func() bool {
		u.call("a::x")
		return mine.count("logging/setLevel") > 0
	})
	if n := mine.count("notifications/initialized"); n != 1 {
		t.Errorf("greeted %d times", n)
	}
}

// What a server says where the client does not listen reaches it where it does.
func TestMessagesForStreamsElsewhere(t *testing.T) {
	p := legacyPeer("a")
	p.does("GET", func(w http.ResponseWriter, _ *incoming) { w.WriteHeader(http.StatusMethodNotAllowed) })
	answered := make(chan string, 1)
	p.does("tools/list", func(w http.ResponseWriter, a *incoming) {
		answer := a.at.expect(a.session, "7")
		a.send(w, `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":"x"}}`)
		a.send(w, `{"jsonrpc":"2.0","id":7,"method":"roots/list"}`)
		answered <- <-answer
		a.finish(w, `{"tools":[]}`)
	})
	engine := replicastest.New()
	one, other := newReplica(t, engine, resumable, p), newReplica(t, engine, resumable, p)
	u := one.legacy(t)
	stream := u.at(other).listen()
	list := func() *talk { return u.start(http.MethodPost, u.request(u.nextID(), "tools/list", "")) }
	listing := list()
	stream.nextOf("notifications/message")
	u.at(other).answer(stream.nextOf("roots/list"), `{"roots":[]}`)
	if got := <-answered; got != `{"jsonrpc":"2.0","id":7,"result":{"roots":[]}}` {
		t.Errorf("got %s", got)
	}
	listing.ended()
	// If it listens nowhere, the server is told so.
	stream.hangUp()
	await.Until(t, "the stream is gone", func() bool {
		other.mu.Lock()
		defer other.mu.Unlock()
		return len(other.streams) == 0
	})
	listing = list()
	if got := <-answered; !strings.Contains(got, `"error"`) {
		t.Errorf("got %s", got)
	}
	listing.ended()
}

// A client answers at another replica than it was asked by.
func TestAnswersThatComeElsewhere(t *testing.T) {
	elicits := func(w http.ResponseWriter, a *incoming) {
		a.finish(w, `{"content":[{"type":"text","text":`+string(jsonrpc.Quote(a.ask(w, "7", "elicitation/create", `{"message":"?"}`)))+`}]}`)
	}
	for name, world := range map[string]func() (one, other *front, p *peer){
		"server": func() (*front, *front, *peer) {
			p := legacyPeer("a").does("tools/call", elicits)
			engine := replicastest.New()
			return newReplica(t, engine, resumable, p), newReplica(t, engine, resumable, p), p
		},
		"server whose session the id does not carry": func() (*front, *front, *peer) {
			p := legacyPeer("a").does("tools/call", elicits)
			one, other, _ := newReplicas(t, p)
			return one, other, p
		},
		"child process": func() (*front, *front, *peer) {
			p, q := legacyPeer("a").does("tools/call", elicits), legacyPeer("a").does("tools/call", elicits)
			engine := replicastest.New()
			return newReplica(t, engine, childrenOf, p), newReplica(t, engine, childrenOf, q), p
		},
		"child process, which is all there is": func() (*front, *front, *peer) {
			p, q := legacyPeer("a").does("tools/call", elicits), legacyPeer("a").does("tools/call", elicits)
			alone := func(c *Config) {
				childrenOf(c)
				c.Naming = mcp.Naming{}
			}
			engine := replicastest.New()
			return newReplica(t, engine, alone, p), newReplica(t, engine, alone, q), p
		},
		"modern server": func() (*front, *front, *peer) {
			p := modernPeer("a").does("tools/call", func(w http.ResponseWriter, a *incoming) {
				if !a.message.Has(jsonrpc.InputResponses) {
					a.reply(w, `{"resultType":"input_required","inputRequests":{"q":{"method":"elicitation/create","params":{"message":"?"}}},"requestState":"s"}`)
					return
				}
				a.reply(w, `{"resultType":"complete","content":[{"type":"text","text":`+string(jsonrpc.Quote(string(a.message.Literal(jsonrpc.InputResponses))))+`}]}`)
			})
			one, other, _ := newReplicas(t, p)
			return one, other, p
		},
	} {
		t.Run(name, func(t *testing.T) {
			one, other, p := world()
			u := one.legacy(t)
			call := u.begin("tools/call", `{"name":"`+one.shown("a", mcp.Tools, "x")+`","arguments":{}}`)
			q := call.nextOf("elicitation/create")
			c := one.known()[0]
			if s := u.at(other).answer(q, `{"action":"accept","content":{"n":1}}`); s.status != http.StatusAccepted {
				t.Errorf("got %d %s", s.status, s.body)
			}
			if e := call.nextOf(""); !strings.Contains(e.data, `\"action\":\"accept\"`) {
				t.Errorf("got %s", e.data)
			}
			call.ended()
			c.mu.Lock()
			defer c.mu.Unlock()
			if len(c.questions) > 0 {
				t.Errorf("it waits for %v", c.questions)
			}
			if n := p.count(""); n > 1 {
				t.Errorf("the server has got %d answers", n)
			}
		})
	}
}

// A client cancels a call at another replica than it has made it at.
func TestCallsCanceledElsewhere(t *testing.T) {
	for name, p := range map[string]*peer{"legacy": legacyPeer("a"), "modern": modernPeer("a")} {
		t.Run(name, func(t *testing.T) {
			canceled := make(chan struct{})
			p.does("tools/call", func(w http.ResponseWriter, a *incoming) {
				select {
				case <-a.Context().Done():
				case <-canceled:
				}
			})
			p.does("notifications/cancelled", func(w http.ResponseWriter, a *incoming) {
				w.WriteHeader(http.StatusAccepted)
				close(canceled)
			})
			one, other, _ := newReplicas(t, p)
			u := one.legacy(t)
			call := u.start(http.MethodPost, u.request("77", "tools/call", `{"name":"a::x"}`))
			p.await(t, "tools/call", 1)
			stranger := other.user(t, mcp.Legacy)
			stranger.identity = "stranger"
			stranger.connect().tell("notifications/cancelled", `{"requestId":77}`)
			select {
			case <-call.begun:
				t.Error("a stranger has canceled it")
			default:
			}
			// Another replica is believed what it says of who has sent the message, but not that this one may.
			c := one.known()[0]
			one.elsewhere.notice(c, &clientMessage{Identity: "stranger", Request: sentRequest{Method: http.MethodPost},
				Message: jsonrpc.Notification("notifications/cancelled", []byte(`{"requestId":77}`))})
			if c.inFlight([]byte("77")).Context.Err() != nil || p.count("notifications/cancelled") > 0 {
				t.Error("another client has canceled it")
			}
			u.at(other).tell("notifications/cancelled", `{"requestId":77}`)
			<-call.begun
			call.ended()
		})
	}
}

// Servers get to know once that a client is ready, wherever it says so.
func TestClientsThatAreReadyElsewhere(t *testing.T) {
	p := legacyPeer("a")
	engine := replicastest.New()
	one, other := newReplica(t, engine, resumable, p), newReplica(t, engine, resumable, p)
	u := one.user(t, mcp.Legacy)
	u.session = u.ask("initialize", `{"protocolVersion":"`+u.version+`","capabilities":{},"clientInfo":`+u.info+`}`).header.Get(mcp.SessionHeader)
	u.at(other).tell("notifications/initialized", "")
	if n := p.count("notifications/initialized"); n != 1 {
		t.Errorf("greeted %d times", n)
	}
	for _, at := range []*front{other, one, newReplica(t, engine, resumable, p)} {
		u.at(at).call("a::x")
	}
	if n := p.count("notifications/initialized"); n != 1 {
		t.Errorf("greeted %d times in the end", n)
	}
}

// sessionWith calls a tool of a server, and returns the session that the server was called in.
func (u *user) sessionWith(p *peer) string {
	u.t.Helper()
	if s := u.call(p.name + "::x"); s.code() != 0 {
		u.t.Fatalf("got %s", s.body)
	}
	calls := p.heard("tools/call")
	return calls[len(calls)-1].session
}

// A session with a server that begins later than that of the client is that of all replicas, too.
func TestSessionsWithServersThatBeginElsewhere(t *testing.T) {
	p := legacyPeer("a")
	one, other, engine := newReplicas(t, p)
	u := one.legacy(t)
	in := func(at *front) string { return u.at(at).sessionWith(p) }
	u.at(other).ask("logging/setLevel", `{"level":"error"}`)
	for i := range 3 {
		p.forget() // its sessions
		want := in(other)
		for _, at := range []*front{one, newReplica(t, engine, nil, p), other} {
			if got := in(at); got != want {
				t.Errorf("%d: called in %s, want %s", i, got, want)
			}
		}
	}
	if n := p.count("initialize"); n != 4 {
		t.Errorf("%d sessions", n)
	}
	if n := len(p.heard("ping")); n != 3 { // where a session was lost, and not where the client was not known
		t.Errorf("%d pings", n)
	}
	// Where it is not known yet that it is lost, another one begins only without the store.
	p.forget()
	in(one)
	engine.Down.Store(true)
	in(other)
	if n := p.count("initialize"); n != 6 {
		t.Errorf("%d sessions in the end", n)
	}
}

// Of sessions that begin at the same time, one is left.
func TestSessionsWithServersThatBeginEverywhere(t *testing.T) {
	p := legacyPeer("a")
	one, other, _ := newReplicas(t, p)
	u := one.legacy(t)
	u.at(other).call("a::x")
	for range 10 {
		p.forget()
		var all sync.WaitGroup
		for _, at := range []*front{one, other} {
			all.Go(func() {
				if s := u.at(at).call("a::x"); s.code() != 0 {
					t.Errorf("got %s", s.body)
				}
			})
		}
		all.Wait()
		u.call("a::x")
		u.at(other).call("a::x")
		calls := p.heard("tools/call")
		if a, b := calls[len(calls)-1].session, calls[len(calls)-2].session; a != b {
			t.Fatalf("called in %s and in %s", a, b)
		}
		p.mu.Lock()
		if len(p.alive) != 1 {
			t.Errorf("%d sessions are left", len(p.alive))
		}
		p.mu.Unlock()
	}
}

// A change of lists that one replica sees is one for all, and is told once.
func TestListsChangedElsewhere(t *testing.T) {
	p := legacyPeer("a").hasTools("x")
	say := p.listens()
	one, other, _ := newReplicas(t, p)
	u, v := one.legacy(t), other.legacy(t)
	mine, others := u.listen(), v.listen()
	p.await(t, "GET", 2)
	v.ask("tools/list", "")
	p.hasTools("x", "y")
	say(toolsChanged)
	mine.nextOf("notifications/tools/list_changed")
	others.nextOf("notifications/tools/list_changed")
	say(updated)
	for _, stream := range []*talk{mine, others} {
		if e := stream.next(); e.method() != mcp.MethodUpdated {
			t.Errorf("told again: %s", e.data)
		}
	}
	if got := names(t, v.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::x", "a::y"}) {
		t.Errorf("got %v", got)
	}
}

// A child process tells one replica, which tells the others.
func TestListsOfChildrenChangedElsewhere(t *testing.T) {
	mine, others := legacyPeer("a").hasTools("x"), legacyPeer("a").hasTools("x")
	say := mine.listens()
	others.listens()
	engine := replicastest.New()
	one, other := newReplica(t, engine, childrenOf, mine), newReplica(t, engine, childrenOf, others)
	u, v := one.legacy(t), other.legacy(t)
	u.listen()
	stream := v.listen()
	mine.await(t, "GET", 1)
	others.await(t, "GET", 1)
	v.ask("tools/list", "")
	others.hasTools("y")
	say(toolsChanged)
	if e := stream.next(); e.method() != "notifications/tools/list_changed" || !strings.Contains(e.data, `"proxy":{"server":"a"}`) {
		t.Errorf("got %s", e.data)
	}
	if got := names(t, v.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::y"}) {
		t.Errorf("got %v", got)
	}
}

// A child process tells one replica, where no stream is open.
func TestListsOfChildrenWithoutAStream(t *testing.T) {
	mine, others := legacyPeer("a").hasTools("x"), legacyPeer("a").hasTools("x")
	others.listens()
	engine := replicastest.New()
	one, other := newReplica(t, engine, childrenOf, mine), newReplica(t, engine, childrenOf, others)
	u, v := one.legacy(t), other.legacy(t)
	u.call("a::x")
	stream := v.listen()
	others.await(t, "GET", 1)
	v.ask("tools/list", "")
	others.hasTools("y")
	calls := mine.heard("tools/call")
	one.ChildChanged("a", "notifications/tools/list_changed", []string{"of another client"})
	one.ChildChanged("a", "notifications/prompts/list_changed", []string{calls[0].session})
	one.ChildChanged("a", "notifications/tools/list_changed", []string{calls[0].session})
	got := map[string]int{}
	for range 2 {
		got[stream.next().method()]++
	}
	if got["notifications/tools/list_changed"] != 1 || got["notifications/prompts/list_changed"] != 1 {
		t.Errorf("got %v", got)
	}
	if got := names(t, v.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::y"}) {
		t.Errorf("got %v", got)
	}
}

// A client that changes what a server shows in its session sees that at all replicas.
func TestListsOfASessionChangedElsewhere(t *testing.T) {
	p := legacyPeer("a").hasTools("x")
	p.listens()
	p.does("tools/call", func(w http.ResponseWriter, a *incoming) {
		p.hasTools("x", "y")
		a.send(w, toolsChanged)
		a.finish(w, `{"content":[]}`)
	})
	engine := replicastest.New()
	one, other := newReplica(t, engine, resumable, p), newReplica(t, engine, resumable, p)
	u := one.legacy(t)
	there := u.at(other)
	there.listen()
	p.await(t, "GET", 1)
	if got := names(t, there.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::x"}) {
		t.Errorf("got %v", got)
	}
	u.call("a::x")
	if got := names(t, there.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::x", "a::y"}) {
		t.Errorf("got %v", got)
	}
}

// Many changes at once are told together.
func TestManyListsChangeElsewhere(t *testing.T) {
	p := legacyPeer("a")
	say := p.listens()
	one, _, engine := newReplicas(t, p)
	const clients = 20
	var streams []*talk
	for range clients {
		u := one.legacy(t)
		u.call("a::x")
		streams = append(streams, u.listen())
	}
	p.await(t, "GET", clients)
	before := engine.Operations.Load()
	say(toolsChanged)
	for _, stream := range streams {
		stream.nextOf("notifications/tools/list_changed")
	}
	await.Until(t, "there is no more to tell", func() bool {
		one.elsewhere.mu.Lock()
		defer one.elsewhere.mu.Unlock()
		return one.elsewhere.told == nil
	})
	if n := engine.Operations.Load() - before; n == 0 || n > clients/2 {
		t.Errorf("told in %d operations", n)
	}
}

// What an operator has asked for anew concerns all replicas.
func TestRefreshedElsewhere(t *testing.T) {
	p := legacyPeer("a").hasTools("x")
	p.listens()
	one, other, _ := newReplicas(t, p)
	u := other.legacy(t)
	stream := u.listen()
	p.await(t, "GET", 1)
	u.ask("tools/list", "")
	p.hasTools("y")
	one.Refresh("a")
	stream.nextOf("notifications/resources/list_changed")
	if got := names(t, u.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::y"}) {
		t.Errorf("got %v", got)
	}
}

// A client reads on the stream of a call at another replica.
func TestCallsResumedElsewhere(t *testing.T) {
	p := legacyPeer("a")
	gone := make(chan struct{})
	p.does("tools/call", func(w http.ResponseWriter, a *incoming) {
		a.sendAs(w, "id: 1\n", `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":"x"}}`)
		<-a.Context().Done()
		close(gone)
	})
	p.does("GET", func(w http.ResponseWriter, a *incoming) {
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
	there := u.at(other)
	there.header = http.Header{"Last-Event-Id": {last.last}}
	if e := there.listen().nextOf(""); !strings.Contains(e.data, `"content":[]`) {
		t.Errorf("got %s", e.data)
	}
}

// Without the store, each replica does what it does without others.
func TestReplicasWithoutTheStore(t *testing.T) {
	for name, breaks := range map[string]func(*replicastest.Engine){
		"down":    func(e *replicastest.Engine) { e.Down.Store(true) },
		"stalled": func(e *replicastest.Engine) { e.Stalled.Store(true) },
		"full":    func(e *replicastest.Engine) { e.Full.Store(true) },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := legacyPeer("a").hasTools("x"), modernPeer("b")
			say := a.listens()
			b.tells()
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
			u.answer(stream.nextOf("roots/list"), `{"roots":[]}`)
			<-answer
			u.tell("notifications/cancelled", `{"requestId":999}`)
			u.end()
			if s := u.call("a::x"); s.status != http.StatusNotFound {
				t.Errorf("got %d", s.status)
			}
		})
	}
}

// What others tell of a client does not wait for who looks through all clients, who waits for it.
func TestOrdersWhileLinksAreDropped(t *testing.T) {
	one, _, _ := newReplicas(t, legacyPeer("a"))
	one.legacy(t)
	c := one.known()[0]
	one.keep(c)
	defer one.release(c)
	one.State.mu.Lock()
	var first sync.WaitGroup
	first.Go(func() { one.elsewhere.inOrder(c, order{run: func() {}}) })
	free := false
	for deadline := time.Now().Add(5 * time.Second); !free && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if c.mu.TryLock() {
			free = len(c.orders) == 1 // it waits for the State
			c.mu.Unlock()
		}
	}
	one.State.mu.Unlock()
	first.Wait()
	if !free {
		t.Fatal("it has the client wait for the State")
	}
	const times = 2_000
	done := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for range times {
			one.elsewhere.inOrder(c, order{run: func() {}})
		}
	})
	all.Go(func() {
		for range times {
			one.State.mu.Lock()
			one.dropLinks()
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
		t.Fatal("they wait for each other")
	}
}

// Answers do not wait for the store if they are for a server that is connected here, or if there was no question.
func TestAnswersWithoutTheStore(t *testing.T) {
	for name, configure := range map[string]func(*Config){
		"many servers": childrenOf,
		"one server":   func(c *Config) { childrenOf(c); c.Naming = mcp.Naming{} },
	} {
		t.Run(name, func(t *testing.T) {
			p := legacyPeer("a")
			engine := replicastest.New()
			g := newReplica(t, engine, configure, p)
			u := g.legacy(t)
			u.call(g.shown("a", mcp.Tools, "x"))
			engine.Down.Store(true)
			began := time.Now()
			for _, id := range []string{`7`, `"a::7"`, `"a::x"`, `"x"`, `""`} {
				if s := u.post(`{"jsonrpc":"2.0","id":` + id + `,"result":{}}`); s.status != http.StatusAccepted {
					t.Errorf("%s: got %d %s", id, s.status, s.body)
				}
			}
			if time.Since(began) > answerTime/2 {
				t.Error("they have waited")
			}
		})
	}
}

// What is too much for its owner's share of the store takes nothing of it.
func TestRecordsThatHaveNoRoom(t *testing.T) {
	one, _, engine := newReplicas(t, legacyPeer("a"))
	one.legacy(t)
	c, e := one.known()[0], one.elsewhere
	has := func(bytes int, want bool) {
		t.Helper()
		if got, err := e.hasRoom(t.Context(), c, bytes); got != want || err != nil {
			t.Errorf("room for %d bytes: %t, %v", bytes, got, err)
		}
	}
	has(recordBytes, false)
	has(recordBytes/2, true)
	has(recordBytes, false)
	has(recordBytes/4, true)
	engine.Down.Store(true)
	if _, err := e.hasRoom(t.Context(), c, 1); !errors.Is(err, replicas.ErrUnavailable) {
		t.Errorf("without the store: %v", err)
	}
}

// A session with a server that this replica has begun while the store was unavailable is in use when it is back.
func TestSessionsWithServersThatAreOpenMeanwhile(t *testing.T) {
	p := legacyPeer("a")
	one, other, engine := newReplicas(t, p)
	u := one.legacy(t)
	in := func(at *front) string { return u.at(at).sessionWith(p) }
	p.forget() // the session that the id carries
	recorded := in(one)
	engine.Down.Store(true)
	own := in(other)
	engine.Down.Store(false)
	await.Until(t, "the store is available", other.State.common.Up)
	if got := in(other); got != own || own == recorded {
		t.Errorf("called in %s, which was begun in %s; the record has %s", got, own, recorded)
	}
}

// A server that does not answer holds up nothing but what it is told itself, and that not for ever.
func TestSubscriptionsAtSlowChildrenElsewhere(t *testing.T) {
	mine, others := legacyPeer("a"), legacyPeer("a")
	others.listens()
	others.does("resources/subscribe", func(_ http.ResponseWriter, a *incoming) { <-a.Context().Done() })
	engine := replicastest.New()
	one := newReplica(t, engine, childrenOf, mine)
	other := newReplica(t, engine, func(c *Config) { childrenOf(c); c.JoinTimeout = 2 * time.Second }, others)
	u := one.legacy(t)
	there := u.at(other)
	there.call("a::x")
	there.listen()
	subscribed := u.start(http.MethodPost, u.request(u.nextID(), "resources/subscribe", `{"uri":"`+mcp.ResourceURI("a", "x://a")+`"}`))
	others.await(t, "resources/subscribe", 1)
	if s := there.ask("logging/setLevel", `{"level":"error"}`); s.code() != 0 || others.count("resources/subscribe") != 1 {
		t.Errorf("while it waits: got %s", s.body)
	}
	subscribed.ended()
	c := other.known()[0]
	await.Until(t, "it is given up", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.orders) == 0
	})
	others.does("resources/subscribe", func(w http.ResponseWriter, a *incoming) { a.reply(w, "{}") })
	there.call("a::x")
	if n := others.count("resources/subscribe"); n != 2 {
		t.Errorf("told %d times by when it is used next", n)
	}
}
