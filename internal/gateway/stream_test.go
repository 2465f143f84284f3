package gateway

import (
	"context"
	"encoding/json"
	"fmt"
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
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
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

// An empty URI does not name a resource: unsubscribing from it does not end the listener for all
// messages of the server.
func TestSubscriptionsNeedAURI(t *testing.T) {
	p := modernPeer("b")
	p.capabilities = `{"tools":{"listChanged":true},"resources":{"subscribe":true}}`
	say := p.acceptListen()
	u := newGateway(t, func(c *Config) { c.Naming = mcp.Naming{} }, p).legacy(t)
	stream := u.listen()
	p.waitFor(t, mcp.MethodListen, 1)
	for _, method := range []string{"resources/subscribe", "resources/unsubscribe"} {
		for _, params := range []string{`{"uri":""}`, "{}"} {
			if s := u.ask(method, params); s.code() != jsonrpc.CodeInvalidParams {
				t.Errorf("%s %s: got %s", method, params, s.body)
			}
		}
	}
	say(toolsChanged)
	if e := stream.next(); e.method() != "notifications/tools/list_changed" {
		t.Errorf("got %s", e.data)
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

// acknowledged is the first message of a modern stream.
const acknowledged = "notifications/subscriptions/acknowledged"

// A stream is complete before other goroutines can find it. A subscription that finds an incomplete
// stream would panic.
func TestStreamsAreCompleteBeforeTheyAreFound(t *testing.T) {
	p := modernPeer("a")
	p.acceptListen()
	g := newInMemory(t, nil, p)
	defer g.close()
	u := g.legacy(t)
	c := g.known()[0]
	ctx, cancel := context.WithCancel(t.Context())
	var listening, others sync.WaitGroup
	others.Go(func() { // keeps the State locked most of the time
		for ctx.Err() == nil {
			g.mu.Lock()
			runtime.Gosched()
			g.mu.Unlock()
		}
	})
	others.Go(func() {
		for ctx.Err() == nil {
			for _, s := range c.openStreams() {
				if s.g.Load() == nil {
					t.Error("the stream has no servers")
					return
				}
			}
			runtime.Gosched()
		}
	})
	others.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			params := `{"uri":"` + mcp.ResourceURI("a", fmt.Sprint("x://", i%3)) + `"}`
			if s := u.ask("resources/subscribe", params); s.code() != 0 {
				t.Errorf("got %s", s.body)
				return
			}
			u.ask("resources/unsubscribe", params)
		}
	})
	for range 2 {
		listening.Go(func() {
			for range 100 {
				stream := u.start(http.MethodGet, "")
				<-stream.begun
				stream.disconnect()
			}
		})
	}
	listening.Wait()
	cancel()
	others.Wait()
}

// A recordedWriter is a response writer that records its use.
type recordedWriter struct {
	mu       sync.Mutex
	header   http.Header
	deadline time.Time
	touched  int    // number of uses
	written  string // written so far
	late     bool   // something was written without a deadline
}

func (w *recordedWriter) Header() http.Header { return w.header }

func (w *recordedWriter) WriteHeader(int) { w.touch(func() {}) }

func (w *recordedWriter) FlushError() error { w.touch(func() {}); return nil }

func (w *recordedWriter) SetWriteDeadline(at time.Time) error {
	w.touch(func() { w.deadline = at })
	return nil
}

func (w *recordedWriter) Write(p []byte) (int, error) {
	w.touch(func() {
		w.written += string(p)
		w.late = w.late || w.deadline.IsZero()
	})
	return len(p), nil
}

func (w *recordedWriter) touch(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.touched++
	f()
}

// state returns the number of uses, the text written so far, and whether a deadline is set.
func (w *recordedWriter) state() (touched int, written string, pressed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.touched, w.written, !w.deadline.IsZero()
}

// recordedTransport calls a gateway with a recordedWriter.
type recordedTransport struct {
	*recordedWriter
	http.Handler
}

func (w recordedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	w.ServeHTTP(w.recordedWriter, r)
	return &http.Response{StatusCode: http.StatusOK, Header: w.header, Body: http.NoBody}, nil
}

// Over HTTP/2, a deadline ends a stream even while nothing is written, so it is set only during
// writes. Otherwise calls that are silent for a while would be lost, for example while a person
// decides.
func TestDeadlinesOnlyDuringWrites(t *testing.T) {
	t.Run("all kinds of writes", func(t *testing.T) {
		w := &recordedWriter{header: http.Header{}}
		o := streamable.NewWriter(w, http.Header{"Accept": {"text/event-stream"}})
		e := &streamable.Event{ID: "1", Data: []byte("{}")}
		for _, step := range []struct {
			name string
			do   func()
		}{
			{"the start", o.Begin},
			{"an event", func() { o.Event(e) }},
			{"a comment", o.KeepAlive},
			{"a large response", func() {
				large := o.Large(e, true)
				_, _ = large.Write([]byte("{}"))
				_ = large.Close()
			}},
			{"a response", func() { o.Answer(http.StatusOK, e) }},
			{"the end", o.Close},
		} {
			step.do()
			if _, _, pressed := w.state(); pressed {
				t.Errorf("after %s, a deadline is still set", step.name)
			}
		}
		if w.late {
			t.Error("a write had no deadline")
		}
	})
	for _, client := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		for _, server := range []mcp.Era{mcp.Legacy, mcp.Modern} {
			t.Run(fmt.Sprint("a call of a client of era ", client, " to a server of ", server), func(t *testing.T) {
				w := &recordedWriter{header: http.Header{}}
				p := newPeer("a").handle("tools/call", func(up http.ResponseWriter, a *incoming) {
					a.send(up, fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,`+
						`"progress":1}}`, a.message.Literal(jsonrpc.ProgressToken)))
					await.Until(t, "the client has received the event, without a deadline", func() bool {
						_, written, pressed := w.state()
						return strings.HasSuffix(written, "\n\n") && !pressed
					})
					a.finish(up, `{"resultType":"complete","done":true}`)
				})
				p.eras[server] = true
				g := newInMemory(t, nil, p)
				defer g.close()
				u := g.user(t, client)
				meta := `{"progressToken":"t"}`
				if client == mcp.Legacy {
					u.connect()
				} else {
					meta = string(u.meta(`,"progressToken":"t"`))
				}
				g.transport = recordedTransport{w, g}
				u.post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a::x","_meta":` + meta + `}}`)
				if _, written, pressed := w.state(); pressed || !strings.Contains(written, `"done":true`) {
					t.Errorf("got %s, with a deadline: %t", written, pressed)
				}
			})
		}
	}
}

// A goroutine that found a stream may write late. After the end of a response, its writer may
// belong to another response.
func TestNoWritesAfterTheEndOfAResponse(t *testing.T) {
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		t.Run(fmt.Sprint("a client of era ", era), func(t *testing.T) {
			p := legacyPeer("a")
			p.keepStreams()
			g := newInMemory(t, nil, p)
			defer g.close()
			u := g.user(t, era)
			method, body := http.MethodGet, ""
			if era == mcp.Legacy {
				u.connect()
			} else {
				method, body = http.MethodPost, u.request("1", mcp.MethodListen, `{"notifications":{"toolsListChanged":true}}`)
			}
			w := &recordedWriter{header: http.Header{}}
			g.transport = recordedTransport{w, g}
			ctx, hangUp := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_, _ = u.do(ctx, method, body)
			}()
			await.Until(t, "the response has begun", func() bool { touched, _, _ := w.state(); return touched > 0 })
			c := g.known()[0]
			streams := c.openStreams() // later writes may be late
			l := c.linkTo(g.config.Servers[0])
			var m jsonrpc.Message
			_ = m.Read([]byte(toolsChanged))
			if len(streams) != 1 || !streams[0].deliver(g.Gateway, l, &m, "") {
				t.Fatal("there is no open stream")
			}
			hangUp()
			<-ended
			before, _, _ := w.state()
			if streams[0].deliver(g.Gateway, l, &m, "") {
				t.Error("the message was not delivered")
			}
			streams[0].announce(mcp.Tools)
			out := streams[0].req.out
			out.Begin()
			out.KeepAlive()
			out.Flush()
			out.Answer(http.StatusOK, &streamable.Event{Data: m.Raw})
			out.Close()
			if after, written, _ := w.state(); after != before {
				t.Errorf("the writer was used %d times after the response ended: %s", after-before, written)
			}
		})
	}
}

// Each subscription at a modern server takes a stream, so their number is limited. Beyond the
// limit, clients get an error.
func TestTooManySubscriptions(t *testing.T) {
	for era, most := range map[mcp.Era]int{mcp.Legacy: maxSubscriptions, mcp.Modern: maxListeners} {
		t.Run(fmt.Sprint("a server of era ", era), func(t *testing.T) {
			p := newPeer("a")
			p.eras[era] = true
			p.acceptListen()
			g := newInMemory(t, nil, p)
			defer g.close()
			u := g.legacy(t)
			stream := u.listen()
			defer stream.disconnect()
			subscribe := func(method string, i int) reply {
				return u.ask(method, `{"uri":"`+mcp.ResourceURI("a", fmt.Sprint("x://", i))+`"}`)
			}
			for i := range most + 10 {
				if s := subscribe("resources/subscribe", i); i < most && s.code() != 0 ||
					i >= most && s.code() != jsonrpc.CodeInvalidParams {
					t.Fatalf("%d: got %s", i, s.body)
				}
			}
			if n := max(p.count(mcp.MethodListen)-1, p.count("resources/subscribe")); n > most {
				t.Errorf("the server got %d requests", n)
			}
			if s := subscribe("resources/subscribe", 0); s.code() != 0 {
				t.Errorf("an existing subscription: got %s", s.body)
			}
			subscribe("resources/unsubscribe", 0)
			if s := subscribe("resources/subscribe", most); s.code() != 0 {
				t.Errorf("after an unsubscribe: got %s", s.body)
			}
		})
	}
}

// Fake time: many servers allow one stream per session. The subscriptions of a second stream
// remain, and it receives what the first stream receives.
func TestSubscriptionsOfStreamsThatAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := legacyPeer("a")
		say := p.keepStreams()
		hear := p.on["GET"]
		var mu sync.Mutex
		taken, subscribed := false, false
		p.handle("GET", func(w http.ResponseWriter, a *incoming) {
			mu.Lock()
			refused := taken
			taken = true
			mu.Unlock()
			if refused {
				w.WriteHeader(http.StatusConflict)
				return
			}
			hear(w, a)
		})
		for method, on := range map[string]bool{"resources/subscribe": true, "resources/unsubscribe": false} {
			p.handle(method, func(w http.ResponseWriter, a *incoming) {
				mu.Lock()
				subscribed = on
				mu.Unlock()
				a.reply(w, "{}")
			})
		}
		check := func(when string, want bool) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if subscribed != want {
				t.Errorf("%s: subscribed %t", when, subscribed)
			}
		}
		g := newInMemory(t, nil, p)
		defer g.close()
		u := g.modern(t)
		listen := func(to string) *liveReply {
			stream := u.startRequest(mcp.MethodListen, `{"notifications":{`+to+`}}`)
			stream.nextOf(acknowledged)
			return stream
		}
		uri := `"resourceSubscriptions":["` + mcp.ResourceURI("a", "x://a") + `"]`
		one, two, three := listen(`"toolsListChanged":true`), listen(uri), listen(uri)
		check("at the beginning", true)
		time.Sleep(10 * time.Minute)
		check("after a while", true)
		if n := p.count("resources/unsubscribe"); n > 0 {
			t.Errorf("got %d unsubscribe requests in between", n)
		}
		say(updated)
		two.nextOf("notifications/resources/updated")
		three.nextOf("notifications/resources/updated")
		two.disconnect()
		check("while another client listens", true)
		three.disconnect()
		check("at the end", false)
		one.disconnect()
	})
}

// Unsolicited messages of a server go to all streams of a modern client, whether they arrive with a
// list or during a call. A tool that enables other tools sends such messages.
func TestUnsolicitedMessagesReachAllStreams(t *testing.T) {
	changing := func(result string) script {
		return func(w http.ResponseWriter, a *incoming) {
			a.send(w, toolsChanged)
			a.finish(w, result)
		}
	}
	p := legacyPeer("a").handle("prompts/list", changing(`{"prompts":[]}`)).
		handle("tools/call", changing(`{"content":[]}`))
	p.keepStreams()
	g := newInMemory(t, nil, p)
	defer g.close()
	u := g.modern(t)
	var streams []*liveReply
	for range 3 {
		stream := u.startRequest(mcp.MethodListen, `{"notifications":{"toolsListChanged":true}}`)
		defer stream.disconnect()
		stream.nextOf(acknowledged)
		streams = append(streams, stream)
	}
	for name, ask := range map[string]func() reply{
		"with a list": func() reply { return u.ask("prompts/list", "") },
		"in a call":   func() reply { return u.call("a::x") },
	} {
		if s := ask(); s.code() != 0 {
			t.Errorf("%s: got %s", name, s.body)
		}
		for _, stream := range streams {
			stream.nextOf("notifications/tools/list_changed")
		}
	}
}

// Updates have the URI as the client spelled it.
func TestSubscriptionsKeepTheSpelling(t *testing.T) {
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		t.Run(fmt.Sprint("a server of era ", era), func(t *testing.T) {
			p := newPeer("a")
			p.eras[era] = true
			say := p.keepStreams()
			if era == mcp.Modern {
				say = p.acceptListen()
			}
			g := newInMemory(t, nil, p)
			defer g.close()
			uri := mcp.TemplateURI("a", "x://a")
			stream := g.modern(t).startRequest(mcp.MethodListen, `{"notifications":{"resourceSubscriptions":["`+uri+`"]}}`)
			defer stream.disconnect()
			if e := stream.nextOf(acknowledged); !strings.Contains(e.data, `"resourceSubscriptions":["`+uri+`"]`) {
				t.Errorf("agreed to %s", e.data)
			}
			say(updated)
			if e := stream.nextOf("notifications/resources/updated"); !strings.Contains(e.data, `"uri":"`+uri+`"`) {
				t.Errorf("got %s", e.data)
			}
		})
	}
}

// Fake time: the gateway listens again after a server restarts. The server no longer knows the
// session, which many servers report with status 400, nor its events.
func TestStreamsOfRestartedServers(t *testing.T) {
	for _, unknownSession := range []int{http.StatusNotFound, http.StatusBadRequest} {
		for _, unknownEvent := range []int{0, http.StatusNotFound, http.StatusBadRequest} {
			for _, calls := range []bool{false, true} {
				t.Run(fmt.Sprint("sessions ", unknownSession, ", events ", unknownEvent, ", calls ", calls), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						p := legacyPeer("a")
						p.onUnknownSession = func(w http.ResponseWriter, a *incoming) {
							a.write(w, unknownSession, `{"jsonrpc":"2.0","error":{"code":-32000,`+
								`"message":"Bad Request: No valid session ID provided"},"id":null}`)
						}
						restarted := make(chan struct{})
						p.handle("GET", func(w http.ResponseWriter, a *incoming) {
							head := ""
							if unknownEvent != 0 {
								head = "id: " + a.session + "/1\n"
							}
							if last := a.Header.Get("Last-Event-Id"); last != "" && !strings.HasPrefix(last, a.session) {
								w.WriteHeader(unknownEvent)
								return
							}
							a.sendAs(w, head, `{"jsonrpc":"2.0","method":"vendor/`+a.session+`"}`)
							if a.session == "a-session-1" {
								<-restarted
								return
							}
							<-a.Context().Done()
						})
						g := newInMemory(t, nil, p)
						defer g.close()
						u := g.legacy(t)
						stream := u.listen()
						defer stream.disconnect()
						stream.nextOf("vendor/a-session-1")
						p.forget()
						close(restarted)
						if calls { // begins a new session
							u.call("a::x")
						}
						stream.nextOf("vendor/a-session-2")
						if n := p.count("initialize"); n != 2 {
							t.Errorf("initialized %d times", n)
						}
						for _, get := range p.requests("GET") {
							if last := get.Header.Get("Last-Event-Id"); last != "" && !strings.HasPrefix(last, get.session) {
								t.Errorf("%s received %s", get.session, last)
							}
						}
					})
				})
			}
		}
	}
}

// A client that resumes after an unknown event gets a new stream.
func TestStreamsResumedAfterALostSession(t *testing.T) {
	for _, status := range []int{http.StatusNotFound, http.StatusBadRequest} {
		p := legacyPeer("a").handle("GET", func(w http.ResponseWriter, a *incoming) {
			if a.Header.Get("Last-Event-Id") != "" {
				w.WriteHeader(status)
				return
			}
			a.send(w, `{"jsonrpc":"2.0","method":"vendor/x"}`)
			<-a.Context().Done()
		})
		g := newInMemory(t, nil, p)
		u := g.legacy(t)
		u.header.Set("Last-Event-Id", u.event("listen/a/1"))
		stream := u.listen()
		stream.nextOf("vendor/x")
		stream.disconnect()
		g.close()
	}
}

// A stream that was moved to another configuration ends when Caddy exits.
func TestMovedStreamsEndAtExit(t *testing.T) {
	p := legacyPeer("a")
	p.keepStreams()
	g := newGateway(t, nil, p)
	stream := g.modern(t).startRequest(mcp.MethodListen, `{"notifications":{"toolsListChanged":true}}`)
	stream.nextOf(acknowledged)
	get := g.legacy(t).listen()
	exiting, exit := context.WithCancel(t.Context())
	g.replace(func(c *Config) { c.Exiting = exiting }, p)
	exit()
	for _, s := range []*liveReply{stream, get} {
		for range s.events { // until the end
		}
	}
}

// A removed configuration leaves no limits behind.
func TestLimitsOfRemovedConfigurations(t *testing.T) {
	g := newInMemory(t, nil, legacyPeer("a"))
	defer g.close()
	config := g.config
	config.MaxClients, config.Generation = 1, new(int)
	New(config, g.State, g.Retained).Close()
	for range 3 {
		g.legacy(t)
	}
	if n := len(g.known()); n != 3 {
		t.Errorf("%d clients are remembered, not 3", n)
	}
}
