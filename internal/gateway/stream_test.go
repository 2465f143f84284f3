package gateway

import (
	"context"
	"encoding/json"
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
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// acceptListen makes a modern server keep listen streams open and acknowledge the notifications
// that they request. say sends a message to all of them.
func (p *fakeServer) acceptListen() (say func(message string)) {
	var mu sync.Mutex
	streams := map[http.ResponseWriter]*incoming{}
	p.handle(mcp.MethodListen, func(w http.ResponseWriter, a *incoming) {
		mu.Lock()
		a.send(w, fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged",`+
			`"params":{"notifications":%s,"_meta":{"io.modelcontextprotocol/subscriptionId":%s}}}`,
			a.message.Literal(jsonrpc.Notifications), a.id()))
		streams[w] = a
		mu.Unlock()
		<-a.Context().Done()
		mu.Lock()
		delete(streams, w)
		mu.Unlock()
	})
	return func(message string) {
		mu.Lock()
		defer mu.Unlock()
		for w, a := range streams {
			var m jsonrpc.Message
			_ = m.Read([]byte(message))
			tag := []byte(`"_meta":{"io.modelcontextprotocol/subscriptionId":` + a.id() + `}`)
			a.send(w, string(jsonspan.Spliced([]byte(message), m.Insert(tag))))
		}
	}
}

const (
	toolsChanged = `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`
	updated      = `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"x://a"}}`
)

// Messages of servers of both eras reach a client with a GET stream (A26).
func TestLegacyStreams(t *testing.T) {
	a, b := legacyPeer("a"), modernPeer("b")
	sayA, sayB := a.keepStreams(), b.acceptListen()
	u := newGateway(t, nil, a, b, legacyPeer("c")).legacy(t)
	stream := u.listen()
	sayA(toolsChanged)
	if e := stream.next(); !strings.Contains(e.data, `"proxy":{"server":"a"}`) ||
		e.method() != "notifications/tools/list_changed" {
		t.Errorf("got %s", e.data)
	}
	sayB(toolsChanged)
	if e := stream.next(); !strings.Contains(e.data, `"proxy":{"server":"b"}`) ||
		e.method() != "notifications/tools/list_changed" {
		t.Errorf("got %s", e.data)
	}
	sayA(`{"jsonrpc":"2.0","method":"vendor/x","params":{` + oddJSON + `}}`)
	if e := stream.next(); !strings.Contains(e.data, oddJSON) {
		t.Errorf("got %s", e.data)
	}
	// A server can send requests and gets the responses (A23).
	answer := a.expect("a-session-1", "7")
	sayA(`{"jsonrpc":"2.0","id":7,"method":"roots/list"}`)
	q := stream.next()
	if q.method() != "roots/list" || q.id() == "7" {
		t.Errorf("got %s", q.data)
	}
	u.respond(q, `{"roots":[]}`)
	if got := <-answer; got != `{"jsonrpc":"2.0","id":7,"result":{"roots":[]}}` {
		t.Errorf("got %s", got)
	}
	if got := a.requests("GET")[0]; got.session != "a-session-1" || got.Header.Get("Accept") != "text/event-stream" ||
		got.body != "" {
		t.Errorf("got %v", got.Header)
	}
}

func TestUnsupportedServerRequestsOnStreams(t *testing.T) {
	p := legacyPeer("a")
	say := p.keepStreams()
	u := newGateway(t, nil, p).user(t, mcp.Legacy)
	u.capabilities = "{}"
	u.connect()
	stream := u.listen()
	answer := p.expect("a-session-1", "7")
	say(`{"jsonrpc":"2.0","id":7,"method":"roots/list"}`)
	if got := <-answer; !strings.Contains(got, `"error"`) {
		t.Errorf("got %s", got)
	}
	say(toolsChanged)
	if e := stream.next(); e.method() != "notifications/tools/list_changed" {
		t.Errorf("got %s", e.data)
	}
}

// Each client gets its own messages only.
func TestStreamsOfSeveralClients(t *testing.T) {
	p := legacyPeer("a")
	p.handle("GET", func(w http.ResponseWriter, a *incoming) {
		a.send(w, `{"jsonrpc":"2.0","method":"vendor/x","params":{"session":"`+a.session+`"}}`)
		<-a.Context().Done()
	})
	g := newGateway(t, nil, p)
	for i := range 5 {
		u := g.legacy(t)
		u.call("a::x") // in its own session
		stream := u.listen()
		if e := stream.next(); !strings.Contains(e.data, fmt.Sprintf(`"session":"a-session-%d"`, i+1)) {
			t.Errorf("client %d: got %s", i, e.data)
		}
	}
}

func TestInvalidStreamRequests(t *testing.T) {
	p := legacyPeer("a")
	g := newGateway(t, nil, p)
	u := g.legacy(t)
	u.accept = "application/json"
	if stream := u.listen(); stream.status != http.StatusNotAcceptable {
		t.Errorf("GET: got %d", stream.status)
	}
	m := g.modern(t)
	m.accept = "application/json"
	if s := m.ask(mcp.MethodListen, `{"notifications":{"toolsListChanged":true}}`); s.status != http.StatusNotAcceptable {
		t.Errorf("listen: got %d", s.status)
	}
	m.accept = "text/event-stream"
	for _, params := range []string{`{}`, `{"notifications":[]}`, `{"notifications":{"toolsListChanged":"x"}}`} {
		if s := m.ask(mcp.MethodListen, params); s.code() != jsonrpc.CodeInvalidParams {
			t.Errorf("%s: got %d %s", params, s.status, s.body)
		}
	}
	m.header = http.Header{"Mcp-Protocol-Version": {mcp.Stateless}}
	if stream := m.listen(); stream.status != http.StatusMethodNotAllowed {
		t.Errorf("modern GET: got %d", stream.status)
	}
}

// Events of a call have ids for resuming that name the server.
func TestResumedCalls(t *testing.T) {
	p := legacyPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
		a.sendAs(w, "id: 1/x\nretry: 500\n", "")
	})
	p.handle("GET", func(w http.ResponseWriter, a *incoming) {
		if a.Header.Get("Last-Event-Id") != "1/x" {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		a.sendAs(w, "id: 2\n", `{"jsonrpc":"2.0","id":2,"result":{"contents":[{"uri":"x://a"}]}}`)
	})
	g := newGateway(t, nil, legacyPeer("b"), p)
	u := g.legacy(t)
	s := u.call("a::x")
	if len(s.events) != 2 || s.events[0].retry != "500" || s.events[0].data != "" || s.broken != nil {
		t.Fatalf("got %q", s.body)
	}
	u.header = http.Header{"Last-Event-Id": {s.events[0].last}}
	stream := u.listen()
	if e := stream.next(); e.id() != "2" || !strings.Contains(e.data, mcp.ResourceURI("a", "x://a")) {
		t.Errorf("got %s", e.data)
	}
	stream.waitEnd()
	for _, id := range []string{
		"call:MQ/c/1", "call:MQ/", "call", "call:MQ/a/1",
		u.event("call:MQ/c/1"), u.event("call:MQ/"), u.event("call/a/1"), u.event("call:!/a/1"),
		g.sealer.Bind("call:MQ/a/1", eventOfSession, g.legacy(t).session),
	} {
		u.header = http.Header{"Last-Event-Id": {id}}
		if stream := u.listen(); stream.status != http.StatusBadRequest {
			t.Errorf("%s: got %d", id, stream.status)
		}
	}
}

// Fake time: the gateway resumes a stream that a server ended.
func TestStreamsAreResumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := legacyPeer("a")
		p.handle("GET", func(w http.ResponseWriter, a *incoming) {
			switch a.Header.Get("Last-Event-Id") {
			case "old":
				a.sendAs(w, "id: 1\n", `{"jsonrpc":"2.0","method":"vendor/one"}`)
			case "1":
				a.sendAs(w, "id: 2\n", "")
			case "2":
				a.sendAs(w, "id: 3\n", `{"jsonrpc":"2.0","method":"vendor/two"}`)
				<-a.Context().Done()
			default:
				a.send(w, `{"jsonrpc":"2.0","method":"vendor/wrong"}`)
				<-a.Context().Done()
			}
		})
		b := legacyPeer("b")
		b.handle("GET", func(w http.ResponseWriter, a *incoming) {
			if a.Header.Get("Last-Event-Id") != "" {
				a.send(w, `{"jsonrpc":"2.0","method":"vendor/wrong"}`)
			}
			w.WriteHeader(200)
			<-a.Context().Done()
		})
		g := newInMemory(t, nil, p, b)
		defer g.close()
		u := g.legacy(t)
		u.header = http.Header{"Last-Event-Id": {u.event("listen/a/old")}}
		stream := u.listen()
		var got []string
		timer := time.AfterFunc(5*time.Minute, stream.cancel)
		for e := range stream.events {
			got = append(got, e.last+" "+e.method())
			if e.method() == "vendor/two" || e.method() == "vendor/wrong" {
				break
			}
		}
		timer.Stop()
		if want := []string{u.event("listen/a/1") + " vendor/one", u.event("listen/a/3") + " vendor/two"}; !slices.Equal(got,
			want) {
			t.Errorf("got %q, want %q", got, want)
		}
		stream.disconnect()
	})
}

// A silent stream is kept open. A server without streams is not asked again.
func TestSilentStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := legacyPeer("a")
		g := newInMemory(t, nil, p)
		defer g.close()
		u := g.legacy(t)
		response, err := u.do(t.Context(), http.MethodGet, "")
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		buffer := make([]byte, 100)
		n, err := response.Body.Read(buffer)
		if took := time.Since(began); err != nil || buffer[0] != ':' || took > 30*time.Second {
			t.Errorf("got %q after %v: %v", buffer[:n], took, err)
		}
		response.Body.Close()
		synctest.Wait()
		if n := p.count("GET"); n != 1 {
			t.Errorf("requested %d times", n)
		}
	})
}

// After a server lost the session of a stream, the gateway reconnects.
func TestStreamsOfForgottenSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := legacyPeer("a")
		say := p.keepStreams()
		g := newInMemory(t, nil, p)
		defer g.close()
		u := g.legacy(t)
		p.forget()
		stream := u.listen()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		say(`{"jsonrpc":"2.0","method":"vendor/x"}`)
		timer := time.AfterFunc(5*time.Minute, stream.cancel)
		found := false
		for e := range stream.events {
			if found = e.method() == "vendor/x"; found {
				break
			}
		}
		timer.Stop()
		if !found || p.count("initialize") != 2 {
			t.Errorf("received: %t, initialized %d times", found, p.count("initialize"))
		}
		stream.disconnect()
	})
}

// Modern clients receive what they subscribed to, from servers of both eras, with their own
// subscription id.
func TestModernStreams(t *testing.T) {
	a, b, c := legacyPeer("a"), modernPeer("b"), legacyPeer("c")
	b.capabilities = `{"tools":{"listChanged":true},"resources":{"subscribe":true}}`
	c.capabilities = `{"tools":{}}`
	sayA, sayB := a.keepStreams(), b.acceptListen()
	g := newGateway(t, nil, a, b, c)
	u := g.modern(t)
	uriA, uriB := mcp.ResourceURI("a", "x://a"), mcp.ResourceURI("b", "x://a")
	stream := u.open(http.MethodPost, u.request(`"listen:0"`, mcp.MethodListen,
		`{"notifications":{"toolsListChanged":true,"resourceSubscriptions":["`+uriA+`","`+uriB+`","`+
			mcp.ResourceURI("c", "x://a")+`","x://foreign"]}}`))
	const tag = `"io.modelcontextprotocol/subscriptionId":"listen:0"`
	first := stream.next()
	var ack struct {
		Params struct{ Notifications interests }
	}
	if json.Unmarshal([]byte(first.data), &ack) != nil || first.method() != "notifications/subscriptions/acknowledged" ||
		!strings.Contains(first.data, tag) {
		t.Fatalf("got %s", first.data)
	}
	if got := ack.Params.Notifications; !got.Tools || got.Prompts || got.Resources ||
		!slices.Equal(got.URIs, []string{uriA, uriB}) {
		t.Errorf("got %s", first.data)
	}
	for i, say := range []func(string){sayA, sayB} {
		name, uri := []string{"a", "b"}[i], []string{uriA, uriB}[i]
		say(`{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}`)
		say(`{"jsonrpc":"2.0","method":"notifications/message","params":{}}`)
		say(strings.Replace(updated, "x://a", "x://b", 1))
		say(toolsChanged)
		if e := stream.next(); e.method() != "notifications/tools/list_changed" || !strings.Contains(e.data, tag) ||
			strings.Count(e.data, "subscriptionId") != 1 || !strings.Contains(e.data, `"server":"`+name+`"`) {
			t.Errorf("%s: got %s", name, e.data)
		}
		say(updated)
		if e := stream.next(); e.method() != "notifications/resources/updated" ||
			!strings.Contains(e.data, `"uri":"`+uri+`"`) || !strings.Contains(e.data, tag) {
			t.Errorf("%s: got %s", name, e.data)
		}
	}
	if got := a.waitFor(t, "resources/subscribe", 1); got.message.Text(jsonrpc.URI) != "x://a" {
		t.Errorf("got %s", got.body)
	}
	stream.disconnect()
	if got := a.waitFor(t, "resources/unsubscribe", 1); got.message.Text(jsonrpc.URI) != "x://a" {
		t.Errorf("got %s", got.body)
	}
}

// A stream that requests no notifications ends at once with a result.
func TestStreamsWithoutNotifications(t *testing.T) {
	u := newGateway(t, nil, modernPeer("a")).modern(t)
	s := u.ask(mcp.MethodListen, `{"notifications":{}}`)
	if len(s.events) != 2 || s.events[0].method() != "notifications/subscriptions/acknowledged" ||
		!strings.Contains(s.answer, `"resultType":"complete"`) {
		t.Errorf("got %s", s.body)
	}
}

// Streams end with the gateway, modern ones with a result.
func TestStreamsEndAtExit(t *testing.T) {
	exiting, exit := context.WithCancel(context.Background())
	p := legacyPeer("a")
	p.keepStreams()
	g := newGateway(t, func(c *Config) { c.Exiting = exiting }, p)
	m := g.modern(t)
	stream := m.open(http.MethodPost, m.request("1", mcp.MethodListen, `{"notifications":{"toolsListChanged":true}}`))
	stream.next()
	get := g.legacy(t).listen()
	exit()
	get.waitEnd()
	if e := stream.next(); !e.isAnswer() || !strings.Contains(e.data, `"result"`) {
		t.Errorf("got %s", e.data)
	}
	stream.waitEnd()
}

// Subscriptions reach the server of the resource, and updates reach the subscribers (A68).
func TestSubscriptions(t *testing.T) {
	a, b := legacyPeer("a"), modernPeer("b")
	b.capabilities = `{"resources":{"subscribe":true}}`
	a.keepStreams()
	sayB := b.acceptListen()
	g := newGateway(t, nil, a, b)
	u, other := g.legacy(t), g.legacy(t)
	stream, others := u.listen(), other.listen()
	if s := u.ask("resources/subscribe", `{"uri":"`+mcp.ResourceURI("a", "x://a")+`"}`); string(s.Result) != "{}" {
		t.Errorf("got %s", s.body)
	}
	if got := a.waitFor(t, "resources/subscribe", 1); got.message.Text(jsonrpc.URI) != "x://a" ||
		got.session != "a-session-1" {
		t.Errorf("got %s in %s", got.body, got.session)
	}
	if s := u.ask("resources/subscribe", `{"uri":"`+mcp.ResourceURI("b", "x://a")+`"}`); string(s.Result) != "{}" {
		t.Errorf("got %s", s.body)
	}
	listen := b.waitFor(t, mcp.MethodListen, 1)
	if !strings.Contains(listen.body, `"resourceSubscriptions":["x://a"]`) {
		t.Errorf("got %s", listen.body)
	}
	await.Until(t, "the gateway listens", func() bool {
		sayB(updated)
		select {
		case e := <-stream.events:
			if !strings.Contains(e.data, `"uri":"`+mcp.ResourceURI("b", "x://a")+`"`) {
				t.Errorf("got %s", e.data)
			}
			return true
		default:
			return false
		}
	})
	u.ask("resources/unsubscribe", `{"uri":"`+mcp.ResourceURI("b", "x://a")+`"}`)
	select {
	case e := <-others.events:
		t.Errorf("the other client got %s", e.data)
	default:
	}
	for _, uri := range []string{"x://a", mcp.ResourceURI("c", "x://a")} {
		if s := u.ask("resources/subscribe", `{"uri":"`+uri+`"}`); s.code() != jsonrpc.CodeInvalidParams {
			t.Errorf("%s: got %s", uri, s.body)
		}
	}
}

// Messages go to the newest stream, because a client may have lost the older one without a way to
// report it.
func TestLatestStreamGetsMessages(t *testing.T) {
	p := legacyPeer("a")
	p.handle("GET", func(w http.ResponseWriter, _ *incoming) { w.WriteHeader(http.StatusMethodNotAllowed) })
	p.handle("tools/list", func(w http.ResponseWriter, a *incoming) {
		a.send(w, `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":"x"}}`)
		a.finish(w, `{"tools":[]}`)
	})
	u := newGateway(t, nil, p).legacy(t)
	for range 3 {
		u.listen()
	}
	latest := u.listen()
	u.ask("tools/list", "")
	latest.nextOf("notifications/message")
}
