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

// acknowledged is what a stream of the modern era begins with.
const acknowledged = "notifications/subscriptions/acknowledged"

// Whoever looks for the streams of a client finds none that is not complete yet: who
// subscribes would listen to servers of nobody, and the whole process would die of it.
func TestStreamsAreCompleteBeforeTheyAreFound(t *testing.T) {
	p := modernPeer("a")
	p.tells()
	g := newMemory(t, nil, p)
	defer g.close()
	u := g.legacy(t)
	c := g.known()[0]
	ctx, cancel := context.WithCancel(t.Context())
	var listening, others sync.WaitGroup
	others.Go(func() { // keeps the State busy, so that whoever needs it has to wait
		for ctx.Err() == nil {
			g.mu.Lock()
			runtime.Gosched()
			g.mu.Unlock()
		}
	})
	others.Go(func() {
		for ctx.Err() == nil {
			for _, s := range c.listening() {
				if s.g.Load() == nil {
					t.Error("a stream without servers")
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
				stream.hangUp()
			}
		})
	}
	listening.Wait()
	cancel()
	others.Wait()
}

// A witness is a response of which all is known that is done with it.
type witness struct {
	mu       sync.Mutex
	header   http.Header
	deadline time.Time
	touched  int    // how often
	written  string // so far
	late     bool   // something was written without a deadline
}

func (w *witness) Header() http.Header { return w.header }

func (w *witness) WriteHeader(int) { w.touch(func() {}) }

func (w *witness) FlushError() error { w.touch(func() {}); return nil }

func (w *witness) SetWriteDeadline(at time.Time) error {
	w.touch(func() { w.deadline = at })
	return nil
}

func (w *witness) Write(p []byte) (int, error) {
	w.touch(func() {
		w.written += string(p)
		w.late = w.late || w.deadline.IsZero()
	})
	return len(p), nil
}

func (w *witness) touch(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.touched++
	f()
}

// look returns how often the response was touched, what was written to it, and whether
// it has a deadline.
func (w *witness) look() (touched int, written string, pressed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.touched, w.written, !w.deadline.IsZero()
}

// witnessed is a way to a gateway whose response is a witness.
type witnessed struct {
	*witness
	http.Handler
}

func (w witnessed) RoundTrip(r *http.Request) (*http.Response, error) {
	w.ServeHTTP(w.witness, r)
	return &http.Response{StatusCode: http.StatusOK, Header: w.header, Body: http.NoBody}, nil
}

// Over HTTP/2 a deadline ends a stream also while nobody writes. So there is one only
// while something is being written: else each call that is silent for a while after its
// first event would be lost, as one whose user thinks about a question.
func TestSilenceHasNoDeadline(t *testing.T) {
	t.Run("whatever is written", func(t *testing.T) {
		w := &witness{header: http.Header{}}
		o := streamable.NewWriter(w, http.Header{"Accept": {"text/event-stream"}})
		e := &streamable.Event{ID: "1", Data: []byte("{}")}
		for _, step := range []struct {
			name string
			do   func()
		}{
			{"the beginning", o.Begin},
			{"an event", func() { o.Event(e) }},
			{"a comment", o.KeepAlive},
			{"a large answer", func() {
				large := o.Large(e, true)
				_, _ = large.Write([]byte("{}"))
				_ = large.Close()
			}},
			{"an answer", func() { o.Answer(http.StatusOK, e) }},
			{"the end", o.Close},
		} {
			step.do()
			if _, _, pressed := w.look(); pressed {
				t.Errorf("%s leaves a deadline", step.name)
			}
		}
		if w.late {
			t.Error("something was written without a deadline")
		}
	})
	for _, client := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		for _, server := range []mcp.Era{mcp.Legacy, mcp.Modern} {
			t.Run(fmt.Sprint("a call of a client of era ", client, " to a server of ", server), func(t *testing.T) {
				w := &witness{header: http.Header{}}
				p := newPeer("a").does("tools/call", func(up http.ResponseWriter, a *incoming) {
					a.send(up, fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1}}`, a.message.Literal(jsonrpc.ProgressToken)))
					await.Until(t, "the client has it, and all the time to wait for more", func() bool {
						_, written, pressed := w.look()
						return strings.HasSuffix(written, "\n\n") && !pressed
					})
					a.finish(up, `{"resultType":"complete","done":true}`)
				})
				p.speaks[server] = true
				g := newMemory(t, nil, p)
				defer g.close()
				u := g.user(t, client)
				meta := `{"progressToken":"t"}`
				if client == mcp.Legacy {
					u.connect()
				} else {
					meta = string(u.meta(`,"progressToken":"t"`))
				}
				g.transport = witnessed{w, g}
				u.post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a::x","_meta":` + meta + `}}`)
				if _, written, pressed := w.look(); pressed || !strings.Contains(written, `"done":true`) {
					t.Errorf("got %s, with a deadline: %t", written, pressed)
				}
			})
		}
	}
}

// Who finds a stream may be slow to write to it. What is behind a response that has
// ended belongs to the response of somebody else.
func TestNothingIsWrittenToResponsesThatHaveEnded(t *testing.T) {
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		t.Run(fmt.Sprint("a client of era ", era), func(t *testing.T) {
			p := legacyPeer("a")
			p.listens()
			g := newMemory(t, nil, p)
			defer g.close()
			u := g.user(t, era)
			method, body := http.MethodGet, ""
			if era == mcp.Legacy {
				u.connect()
			} else {
				method, body = http.MethodPost, u.request("1", mcp.MethodListen, `{"notifications":{"toolsListChanged":true}}`)
			}
			w := &witness{header: http.Header{}}
			g.transport = witnessed{w, g}
			ctx, hangUp := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_, _ = u.do(ctx, method, body)
			}()
			await.Until(t, "it has begun", func() bool { touched, _, _ := w.look(); return touched > 0 })
			c := g.known()[0]
			streams := c.listening() // one may take one's time from here on
			l := c.link(g.config.Servers[0])
			var m jsonrpc.Message
			_ = m.Read([]byte(toolsChanged))
			if len(streams) != 1 || !streams[0].deliver(g.Gateway, l, &m, "") {
				t.Fatal("nobody listens")
			}
			hangUp()
			<-ended
			before, _, _ := w.look()
			if streams[0].deliver(g.Gateway, l, &m, "") {
				t.Error("it was delivered to nobody")
			}
			streams[0].announce(mcp.Tools)
			out := streams[0].visit.out
			out.Begin()
			out.KeepAlive()
			out.Flush()
			out.Answer(http.StatusOK, &streamable.Event{Data: m.Raw})
			out.Close()
			if after, written, _ := w.look(); after != before {
				t.Errorf("it was used %d times after its end: %s", after-before, written)
			}
		})
	}
}

// Each subscription to a resource of a server of the modern era takes a stream. There
// are only so many, and who wants more is told.
func TestTooManySubscriptions(t *testing.T) {
	for era, most := range map[mcp.Era]int{mcp.Legacy: maxSubscriptions, mcp.Modern: maxListeners} {
		t.Run(fmt.Sprint("a server of era ", era), func(t *testing.T) {
			p := newPeer("a")
			p.speaks[era] = true
			p.tells()
			g := newMemory(t, nil, p)
			defer g.close()
			u := g.legacy(t)
			stream := u.listen()
			defer stream.hangUp()
			subscribe := func(method string, i int) said {
				return u.ask(method, `{"uri":"`+mcp.ResourceURI("a", fmt.Sprint("x://", i))+`"}`)
			}
			for i := range most + 10 {
				if s := subscribe("resources/subscribe", i); i < most && s.code() != 0 || i >= most && s.code() != jsonrpc.CodeInvalidParams {
					t.Fatalf("%d: got %s", i, s.body)
				}
			}
			if n := max(p.count(mcp.MethodListen)-1, p.count("resources/subscribe")); n > most {
				t.Errorf("the server was asked %d times", n)
			}
			if s := subscribe("resources/subscribe", 0); s.code() != 0 {
				t.Errorf("one that is there already: got %s", s.body)
			}
			subscribe("resources/unsubscribe", 0)
			if s := subscribe("resources/subscribe", most); s.code() != 0 {
				t.Errorf("in the place of another one: got %s", s.body)
			}
		})
	}
}

// In time that is not real: many servers let each session listen but once. What a second
// stream of a client has subscribed to stays subscribed, and it gets what the first hears.
func TestSubscriptionsOfStreamsThatAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := legacyPeer("a")
		say := p.listens()
		hear := p.on["GET"]
		var mu sync.Mutex
		taken, subscribed := false, false
		p.does("GET", func(w http.ResponseWriter, a *incoming) {
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
			p.does(method, func(w http.ResponseWriter, a *incoming) {
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
		g := newMemory(t, nil, p)
		defer g.close()
		u := g.modern(t)
		listen := func(to string) *talk {
			stream := u.begin(mcp.MethodListen, `{"notifications":{`+to+`}}`)
			stream.nextOf(acknowledged)
			return stream
		}
		uri := `"resourceSubscriptions":["` + mcp.ResourceURI("a", "x://a") + `"]`
		one, two, three := listen(`"toolsListChanged":true`), listen(uri), listen(uri)
		check("at the beginning", true)
		time.Sleep(10 * time.Minute)
		check("after a while", true)
		if n := p.count("resources/unsubscribe"); n > 0 {
			t.Errorf("it was unsubscribed %d times in between", n)
		}
		say(updated)
		two.nextOf("notifications/resources/updated")
		three.nextOf("notifications/resources/updated")
		two.hangUp()
		check("while somebody else listens", true)
		three.hangUp()
		check("at the end", false)
		one.hangUp()
	})
}

// What a server says beside its answers is for all streams of a client of the modern
// era, whether it comes with a list or in mid-call. Tools that enable others do so.
func TestWhatIsSaidBesidesIsForAllStreams(t *testing.T) {
	changing := func(result string) script {
		return func(w http.ResponseWriter, a *incoming) {
			a.send(w, toolsChanged)
			a.finish(w, result)
		}
	}
	p := legacyPeer("a").does("prompts/list", changing(`{"prompts":[]}`)).does("tools/call", changing(`{"content":[]}`))
	p.listens()
	g := newMemory(t, nil, p)
	defer g.close()
	u := g.modern(t)
	var streams []*talk
	for range 3 {
		stream := u.begin(mcp.MethodListen, `{"notifications":{"toolsListChanged":true}}`)
		defer stream.hangUp()
		stream.nextOf(acknowledged)
		streams = append(streams, stream)
	}
	for name, ask := range map[string]func() said{
		"with a list": func() said { return u.ask("prompts/list", "") },
		"in a call":   func() said { return u.call("a::x") },
	} {
		if s := ask(); s.code() != 0 {
			t.Errorf("%s: got %s", name, s.body)
		}
		for _, stream := range streams {
			stream.nextOf("notifications/tools/list_changed")
		}
	}
}

// Resources are called what the client calls them, however that is spelled: it may
// compare.
func TestSubscriptionsAsTheClientSpellsThem(t *testing.T) {
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		t.Run(fmt.Sprint("a server of era ", era), func(t *testing.T) {
			p := newPeer("a")
			p.speaks[era] = true
			say := p.listens()
			if era == mcp.Modern {
				say = p.tells()
			}
			g := newMemory(t, nil, p)
			defer g.close()
			uri := mcp.TemplateURI("a", "x://a")
			stream := g.modern(t).begin(mcp.MethodListen, `{"notifications":{"resourceSubscriptions":["`+uri+`"]}}`)
			defer stream.hangUp()
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

// In time that is not real: a server that was restarted is heard again. It knows neither
// the session any more, which many say with 400, nor the events in it.
func TestStreamsOfServersThatWereRestarted(t *testing.T) {
	for _, unknownSession := range []int{http.StatusNotFound, http.StatusBadRequest} {
		for _, unknownEvent := range []int{0, http.StatusNotFound, http.StatusBadRequest} {
			for _, calls := range []bool{false, true} {
				t.Run(fmt.Sprint("sessions ", unknownSession, ", events ", unknownEvent, ", calls ", calls), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						p := legacyPeer("a")
						p.forgotten = func(w http.ResponseWriter, a *incoming) {
							a.write(w, unknownSession, `{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: No valid session ID provided"},"id":null}`)
						}
						restarted := make(chan struct{})
						p.does("GET", func(w http.ResponseWriter, a *incoming) {
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
						g := newMemory(t, nil, p)
						defer g.close()
						u := g.legacy(t)
						stream := u.listen()
						defer stream.hangUp()
						stream.nextOf("vendor/a-session-1")
						p.forget()
						close(restarted)
						if calls { // by which another session begins
							u.call("a::x")
						}
						stream.nextOf("vendor/a-session-2")
						if n := p.count("initialize"); n != 2 {
							t.Errorf("initialized %d times", n)
						}
						for _, get := range p.heard("GET") {
							if last := get.Header.Get("Last-Event-Id"); last != "" && !strings.HasPrefix(last, get.session) {
								t.Errorf("%s was told of %s", get.session, last)
							}
						}
					})
				})
			}
		}
	}
}

// A client that comes back with an event that its server does not know any more listens
// from then on.
func TestStreamsResumedAtAServerThatForgot(t *testing.T) {
	for _, status := range []int{http.StatusNotFound, http.StatusBadRequest} {
		p := legacyPeer("a").does("GET", func(w http.ResponseWriter, a *incoming) {
			if a.Header.Get("Last-Event-Id") != "" {
				w.WriteHeader(status)
				return
			}
			a.send(w, `{"jsonrpc":"2.0","method":"vendor/x"}`)
			<-a.Context().Done()
		})
		g := newMemory(t, nil, p)
		u := g.legacy(t)
		u.header.Set("Last-Event-Id", u.event("listen/a/1"))
		stream := u.listen()
		stream.nextOf("vendor/x")
		stream.hangUp()
		g.close()
	}
}

// A stream that has moved to another configuration ends when that one exits.
func TestStreamsThatHaveMovedEndAtTheExit(t *testing.T) {
	p := legacyPeer("a")
	p.listens()
	g := newGateway(t, nil, p)
	stream := g.modern(t).begin(mcp.MethodListen, `{"notifications":{"toolsListChanged":true}}`)
	stream.nextOf(acknowledged)
	get := g.legacy(t).listen()
	exiting, exit := context.WithCancel(t.Context())
	g.replace(func(c *Config) { c.Exiting = exiting }, p)
	exit()
	for _, s := range []*talk{stream, get} {
		for range s.events { // until it ends
		}
	}
}

// A configuration that came and went leaves no bounds behind.
func TestBoundsOfConfigurationsThatAreGone(t *testing.T) {
	g := newMemory(t, nil, legacyPeer("a"))
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
