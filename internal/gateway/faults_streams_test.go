package gateway

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

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
