package httpsse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

func TestCall(t *testing.T) {
	s := newServer(t)
	c := newClient(t, openPool(t), s)
	res := c.call(`"mine"`, "tools/call", `{"_meta":{"progressToken":"token"}}`)
	got := s.posted()
	if string(got.ID) != "1" || string(got.Params.Meta.ProgressToken) != "1" {
		t.Errorf("posted %s", got.text)
	}
	c.at.say(`{"jsonrpc":"2.0","id":1,"result":{"answer":42}}`)
	res.is(`{"jsonrpc":"2.0","id":"mine","result":{"answer":42}}`)
	res.ends(200, "")
	if got := res.header.Get("Content-Type"); got != "application/json" {
		t.Errorf("Content-Type: %s", got)
	}
}

// Servers spell ids and results in several ways.
func TestFormsOfResponses(t *testing.T) {
	s := newServer(t)
	c := newClient(t, openPool(t), s)
	for _, tt := range []struct{ said, want string }{
		{`{"id":$ID.0,"result":1}`, `{"id":7,"result":1}`},
		{`{"id":"$ID","result":2}`, `{"id":7,"result":2}`},
		{`{"id":$ID,"error":null,"result":3}`, `{"id":7,"error":null,"result":3}`},
		{`{"id":$ID,"error":{"code":4},"result":null}`, `{"id":7,"error":{"code":4},"result":null}`},
	} {
		res := c.call("7", "tools/call", `{}`)
		c.at.say(strings.ReplaceAll(tt.said, "$ID", string(s.posted().ID)))
		res.is(tt.want)
		res.ends(200, "")
	}
}

// Messages before the response make it an event stream.
func TestMessagesBeforeTheResponse(t *testing.T) {
	s := newServer(t)
	c := newClient(t, openPool(t), s)
	res := c.call("7", "tools/call", `{"_meta":{"progressToken":"token"}}`)
	s.posted()
	c.at.say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`)
	res.is(`"progressToken":"token"`)
	c.at.say(`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"log"}}`)
	res.is(`"log"`)
	c.at.say(`{"jsonrpc":"2.0","id":"q","method":"sampling/createMessage","params":{}}`)
	res.is(`"id":"q"`)
	reply := c.post(`{"jsonrpc":"2.0","id":"q","result":{}}`)
	if got := s.posted(); got.text != `{"jsonrpc":"2.0","id":"q","result":{}}` {
		t.Errorf("posted %s", got.text)
	}
	reply.ends(202, "")
	c.at.say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
	res.is(`list_changed`) // the only stream
	c.at.say(`{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no"}}`)
	res.is(`"id":7,"error"`)
	res.ends(200, "")
	if got := res.header.Get("Content-Type"); got != "text/event-stream" {
		t.Errorf("Content-Type: %s", got)
	}
}

// Two calls with the same id do not receive each other's responses.
func TestEqualIDs(t *testing.T) {
	s := newServer(t)
	c := newClient(t, openPool(t), s)
	one := c.call("1", "tools/call", `{"_meta":{"progressToken":1}}`)
	first := s.posted()
	two := c.call("1", "tools/call", `{"_meta":{"progressToken":1}}`)
	second := s.posted()
	c.at.say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":` + string(second.ID) +
		`,"progress":2}}`)
	two.is(`"progress":2`)
	c.at.say(`{"jsonrpc":"2.0","id":` + string(second.ID) + `,"result":{"of":"two"}}`)
	two.is(`"two"`)
	c.at.say(`{"jsonrpc":"2.0","id":` + string(first.ID) + `,"result":{"of":"one"}}`)
	one.is(`"one"`)
}

// If there are several calls, a message that does not name its call goes to a GET stream, or to the
// latest call if there is none. A message about the session always goes to the stream.
func TestRecipients(t *testing.T) {
	s := newServer(t)
	c := newClient(t, openPool(t), s)
	one := c.call("1", "tools/call", `{}`)
	s.posted()
	lists := c.call("2", "tools/list", `{}`)
	s.posted()
	c.at.say(`{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"to":"the only one at work"}}`)
	one.is("the only one")
	two := c.call("3", "tools/call", `{}`)
	s.posted()
	c.at.say(`{"jsonrpc":"2.0","id":2,"method":"elicitation/create","params":{"to":"the latest"}}`)
	two.is("the latest")

	stream := c.do(http.MethodGet, "")
	if status := next(t, stream.begun); status != 200 {
		t.Errorf("status %d", status)
	}
	c.at.say(`{"jsonrpc":"2.0","id":3,"method":"elicitation/create","params":{"to":"the stream"}}`)
	stream.is("the stream")
	c.at.say(`{"jsonrpc":"2.0","id":3,"result":{"of":"two"}}`)
	two.is(`"two"`)
	c.at.say(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"x"}}`)
	stream.is("updated")
	c.at.say(`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"to the only one"}}`)
	one.is("to the only one")
	c.at.say(`{"jsonrpc":"2.0","id":1,"result":{}}`)
	one.is("result")
	c.at.say(`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"to none"}}`)
	stream.is("to none")
	c.at.say(`{"jsonrpc":"2.0","id":2,"result":{"tools":[]}}`)
	lists.is("tools")
	close(c.at.send)
	stream.ends(0, "")
}

// Messages wait until the client opens a stream. Pings are answered without a client.
func TestMessagesWaitForAStream(t *testing.T) {
	s := newServer(t)
	c := newClient(t, openPool(t), s)
	c.at.say(`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"early"}}`)
	c.at.say(`{"jsonrpc":"2.0","id":"p","method":"ping"}`)
	if got := s.posted(); got.text != `{"jsonrpc":"2.0","id":"p","result":{}}` {
		t.Errorf("posted %s", got.text)
	}
	stream := c.do(http.MethodGet, "")
	stream.is("early")
	stream.cancel()
	stream.ends(200, "context canceled")
}

// Without a stream, only small messages are kept.
func TestLargeMessagesAreNotKept(t *testing.T) {
	s := newServer(t)
	c := newClient(t, openPool(t), s)
	large := `{"jsonrpc":"2.0","id":"q","method":"sampling/createMessage","params":{"text":"` + strings.Repeat("x",
		maxMail) + `"}}`
	c.at.say(large)
	if got := s.posted(); !strings.Contains(got.text, `"id":"q","error":{"code":-32601`) {
		t.Errorf("posted %s", got.text)
	}
}

// A server request is refused if the client does not receive it.
func TestRefusedServerRequests(t *testing.T) {
	s := newServer(t)
	c := newClient(t, openPool(t), s)
	big := strings.Repeat("x", maxMail-100)
	c.at.say(`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"` + big + `"}}`)
	c.at.say(`{"jsonrpc":"2.0","id":"q","method":"roots/list"}`)
	if got := s.posted(); !strings.Contains(got.text, `"id":"q","error":{"code":-32601`) {
		t.Errorf("posted %s", got.text)
	}
}

// A server request waits for a stream for a limited time.
func TestServerRequestsWaitForAStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		posts := make(chan string, 1)
		p := NewPool()
		defer p.Close()
		s := newSession(p, Upstream{
			Request: func(ctx context.Context) *http.Request {
				r, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://old.test/sse", http.NoBody)
				return r
			},
			Serve: func(_ http.ResponseWriter, r *http.Request) error {
				body, err := io.ReadAll(r.Body)
				posts <- string(body)
				return err
			},
		})
		s.endpoint = &url.URL{Path: "/message"}
		var question jsonrpc.Message
		if failure := question.Read([]byte(`{"jsonrpc":"2.0","id":"q","method":"roots/list"}`)); failure != nil {
			t.Fatal(failure)
		}
		s.receive(&question)
		time.Sleep(requestWait - 1)
		synctest.Wait()
		if len(posts) > 0 {
			t.Errorf("posted %s too early", <-posts)
		}
		if got := <-posts; !strings.Contains(got, `"id":"q","error":{"code":-32601`) {
			t.Errorf("posted %s", got)
		}
	})
}

func TestCancel(t *testing.T) {
	s := newServer(t)
	c := newClient(t, openPool(t), s)
	t.Run("by a notification", func(t *testing.T) {
		res := c.call("5", "tools/call", `{}`)
		call := s.posted()
		canceled := c.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5}}`)
		if got := s.posted(); got.Method != "notifications/cancelled" || string(got.Params.RequestID) != string(call.ID) {
			t.Errorf("posted %s", got.text)
		}
		canceled.ends(202, "")
		res.ends(202, "")
		c.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5}}`).ends(202, "")
	})
	t.Run("by disconnecting", func(t *testing.T) {
		res := c.call("5", "tools/call", `{}`)
		call := s.posted()
		res.cancel()
		if got := s.posted(); got.Method != "notifications/cancelled" || string(got.Params.RequestID) != string(call.ID) {
			t.Errorf("posted %s", got.text)
		}
		res.ends(0, "context canceled")
	})
}

// A fullWriter accepts only a part of a response.
type fullWriter struct {
	header http.Header
	room   int
}

func (w *fullWriter) Header() http.Header { return w.header }
func (w *fullWriter) WriteHeader(int)     {}
func (w *fullWriter) FlushError() error   { return nil }
func (w *fullWriter) Write(p []byte) (int, error) {
	if w.room -= len(p); w.room < 0 {
		return 0, errNotRead
	}
	return len(p), nil
}

// A response that cannot be written ends with the error of the write.
func TestResponseNotWritten(t *testing.T) {
	s := newServer(t)
	c := newClient(t, openPool(t), s)
	serve := func(method, message string) <-chan error {
		r, _ := http.NewRequestWithContext(t.Context(), method, s.url.String(), strings.NewReader(message))
		r.Header.Set(mcp.SessionHeader, c.session)
		r.Header.Set("Accept", "application/json, text/event-stream")
		served := make(chan error, 1)
		go func() {
			served <- c.pool.Serve(&fullWriter{header: http.Header{}, room: 40}, r, Upstream{Server: "id", Serve: s.pass})
		}()
		return served
	}
	ends := func(t *testing.T, served <-chan error) {
		t.Helper()
		if err := next(t, served); !errors.Is(err, errNotRead) {
			t.Errorf("ended with %v", err)
		}
	}
	const call, log = `{"jsonrpc":"2.0","id":1,"method":"tools/call"}`,
		`{"jsonrpc":"2.0","method":"notifications/message"}`
	t.Run("a response", func(t *testing.T) {
		served := serve(http.MethodPost, call)
		c.at.say(`{"jsonrpc":"2.0","id":` + string(s.posted().ID) + `,"result":{"text":"more than there is room for"}}`)
		ends(t, served)
	})
	t.Run("a message before the response", func(t *testing.T) {
		served := serve(http.MethodPost, call)
		id := s.posted().ID
		c.at.say(log)
		ends(t, served)
		if got := s.posted(); got.Method != "notifications/cancelled" || string(got.Params.RequestID) != string(id) {
			t.Errorf("posted %s", got.text)
		}
	})
	t.Run("a stream", func(t *testing.T) {
		served := serve(http.MethodGet, "")
		c.at.say(log)
		ends(t, served)
	})
}

// A floodedWriter accepts everything. Each write makes the server send more.
type floodedWriter struct {
	fullWriter
	more func()
}

func (w *floodedWriter) Write(p []byte) (int, error) {
	w.more()
	return len(p), nil
}

// The request of a disconnected client ends, even if the server never stops sending.
func TestFlood(t *testing.T) {
	for _, method := range []string{http.MethodPost, http.MethodGet} {
		t.Run(method, func(t *testing.T) {
			s := newServer(t)
			c := newClient(t, openPool(t), s)
			c.pool.mu.Lock()
			session := c.pool.sessions[c.session]
			c.pool.mu.Unlock()
			ctx, leave := context.WithCancel(t.Context())
			r, _ := http.NewRequestWithContext(ctx, method, s.url.String(),
				strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/call"}`))
			r.Header.Set(mcp.SessionHeader, c.session)
			r.Header.Set("Accept", "application/json, text/event-stream")
			const log = `{"jsonrpc":"2.0","method":"notifications/message"}`
			w := &floodedWriter{fullWriter{header: http.Header{}}, func() {
				leave()
				var m jsonrpc.Message
				if m.Read([]byte(log)) == nil {
					session.receive(&m)
				}
			}}
			served := make(chan error, 1)
			go func() { served <- c.pool.Serve(w, r, Upstream{Server: "id", Serve: s.pass}) }()
			if method == http.MethodPost {
				s.posted()
			}
			c.at.say(log)
			if err := next(t, served); !errors.Is(err, context.Canceled) {
				t.Errorf("ended with %v", err)
			}
		})
	}
}

// The end of the stream ends calls at once. After that, the session is unknown.
func TestEndOfStream(t *testing.T) {
	s := newServer(t)
	c := newClient(t, openPool(t), s)
	res := c.call("1", "tools/call", `{}`)
	s.posted()
	c.at.say(`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"log"}}`)
	res.is("log") // the call was accepted
	close(c.at.send)
	res.ends(200, "MCP server old is unavailable: connection lost: the MCP server has closed its event stream")
	next := c.call("2", "tools/call", `{}`)
	next.is("unknown_session")
	next.ends(404, "")
	if len(s.posts) > 0 {
		t.Errorf("posted %s", <-s.posts)
	}
}

// A request that was refused because of an unknown session was not executed.
func TestLostSession(t *testing.T) {
	s := newServer(t)
	s.refuse = func(w http.ResponseWriter) bool { http.Error(w, "Session not found", http.StatusNotFound); return true }
	c := newClient(t, openPool(t), s)
	c.call("1", "tools/call", `{}`).ends(404, "")
	next(t, c.at.closed)
}

func TestRefusedPost(t *testing.T) {
	s := newServer(t)
	s.refuse = func(w http.ResponseWriter) bool {
		w.Header().Set("Retry-After", "7")
		http.Error(w, "{}", http.StatusTooManyRequests)
		return true
	}
	c := newClient(t, openPool(t), s)
	res := c.call("1", "tools/call", `{}`)
	res.ends(429, "")
	if res.header.Get("Retry-After") != "7" {
		t.Errorf("%v", res.header)
	}
	c.post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`).ends(429, "")
}

func TestDelete(t *testing.T) {
	s := newServer(t)
	c := newClient(t, openPool(t), s)
	c.do(http.MethodDelete, "").ends(204, "")
	next(t, c.at.closed)
	c.do(http.MethodDelete, "").ends(404, "")
}

// A session is valid for its server only.
func TestSessionOfAnotherServer(t *testing.T) {
	s := newServer(t)
	c := newClient(t, openPool(t), s)
	c.pool.sessions[c.session].upstream.Server = "another"
	c.call("1", "tools/call", `{}`).ends(404, "")
}

func TestPoolEnds(t *testing.T) {
	s := newServer(t)
	p := openPoolWith(t, quota.Limits{Entries: 10, OwnerEntries: 1}, idleTime)
	one := newClient(t, p, s)
	two := newClient(t, p, s)
	next(t, one.at.closed) // one idle session is allowed
	p.Keep(func(string) bool { return true })
	stream := two.do(http.MethodGet, "")
	next(t, stream.begun)
	three := newClient(t, p, s) // the other session is not idle
	p.End(three.session)
	next(t, three.at.closed)
	p.Keep(func(server string) bool { return server != "id" })
	next(t, two.at.closed)
	next(t, stream.done)
	four := newClient(t, p, s)
	p.Close()
	next(t, four.at.closed)
	if _, err := p.Open(t.Context(), s.upstream()); !errors.Is(err, errStopped) {
		t.Error(err)
	}
}

func TestInvalidStreams(t *testing.T) {
	for name, tt := range map[string]struct {
		first, want string
	}{
		"another host":    {"event: endpoint\ndata: http://elsewhere.test/message\n\n", errEndpointHost.Error()},
		"no scheme":       {"event: endpoint\ndata: //elsewhere.test/message\n\n", errEndpointHost.Error()},
		"another scheme":  {"event: endpoint\ndata: file:///etc/passwd\n\n", errEndpointInvalid.Error()},
		"not a URL":       {"event: endpoint\ndata: :\n\n", errEndpointInvalid.Error()},
		"empty":           {"event: endpoint\ndata:\n\n", errEndpointInvalid.Error()},
		"an endless line": {"event: endpoint\ndata: " + strings.Repeat("x", maxEndpoint+1), ErrNotSupported.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			s.first = tt.first
			if _, err := openPool(t).Open(t.Context(), s.upstream()); fmt.Sprint(err) != tt.want {
				t.Errorf("got %v, want %s", err, tt.want)
			}
			next(t, next(t, s.opened).closed)
		})
	}
	t.Run("no endpoint", func(t *testing.T) {
		s := newServer(t)
		s.first = ": hello\n\ndata: {}\n\n"
		ctx, cancel := context.WithCancelCause(t.Context())
		at := make(chan *opened, 1)
		go func() {
			at <- <-s.opened
			cancel(errNotRead)
		}()
		if _, err := openPool(t).Open(ctx, s.upstream()); !errors.Is(err, errNotRead) {
			t.Error(err)
		}
		next(t, next(t, at).closed)
	})
	t.Run("another endpoint later", func(t *testing.T) {
		s := newServer(t)
		s.first += "event: endpoint\ndata: /elsewhere\n\n"
		c := newClient(t, openPool(t), s)
		c.call("1", "tools/call", `{}`)
		s.posted() // at the first stream
	})
	t.Run("noise", func(t *testing.T) {
		s := newServer(t)
		c := newClient(t, openPool(t), s)
		res := c.call("1", "tools/call", `{}`)
		s.posted()
		for _, noise := range []string{"x", "[]", "{}", `{"jsonrpc":"2.0","id":99,"result":{}}`,
			`{"jsonrpc":"2.0","id":"1","result":{}}`, `{"jsonrpc":"2.0","id":1}`,
			`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1}}`} {
			c.at.say(noise)
		}
		c.at.say("{\"jsonrpc\":\"2.0\",\ndata: \"id\":1,\ndata: \"result\":{}}")
		next(t, res.done)
		if got := next(t, res.lines); !strings.HasPrefix(got, `{"jsonrpc":"2.0",`) {
			t.Errorf("got %s", got)
		}
	})
}

// A server that responds in another way does not support HTTP+SSE, unless its status has another
// cause.
func TestNotSupported(t *testing.T) {
	for name, tt := range map[string]struct {
		answer http.HandlerFunc
		want   bool
	}{
		"not found": {http.NotFound, true},
		"JSON": {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Type", "application/json") },
			true},
		"no event": {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Type", "text/event-stream") },
			true},
		"unauthorized": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }, false},
		"down":         {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			u := newServer(t).upstream()
			u.Serve = func(w http.ResponseWriter, r *http.Request) error {
				tt.answer(w, r)
				if _, err := io.WriteString(w, ""); err != nil {
					t.Errorf("aborted: %v", err) // reverse_proxy would log it
				}
				return nil
			}
			if _, err := openPool(t).Open(t.Context(), u); err == nil || errors.Is(err, ErrNotSupported) != tt.want {
				t.Errorf("got %v", err)
			}
		})
	}
}

// A response that is not a stream is aborted if it is long or does not end.
func TestOtherResponses(t *testing.T) {
	u := newServer(t).upstream()
	u.Serve = func(w http.ResponseWriter, _ *http.Request) error {
		w.WriteHeader(http.StatusNotFound)
		if _, err := w.Write(make([]byte, maxRefusedBody)); err != nil {
			t.Errorf("aborted: %v", err)
		}
		_, err := w.Write(make([]byte, 1))
		return err
	}
	if _, err := openPool(t).Open(t.Context(), u); !errors.Is(err, ErrNotSupported) {
		t.Errorf("long page: %v", err)
	}
	u.Serve = func(w http.ResponseWriter, r *http.Request) error {
		w.WriteHeader(http.StatusNotFound)
		<-r.Context().Done()
		return nil
	}
	if _, err := openPool(t).Open(t.Context(), u); !errors.Is(err, ErrNotSupported) {
		t.Errorf("endless page: %v", err)
	}
}

func TestResolve(t *testing.T) {
	target, _ := url.Parse("/base/sse?key=1")
	u := Upstream{Target: target, Hosts: []string{"127.0.0.1:3001", "mcp.example.com:443"}}
	for address, want := range map[string]string{
		"/message?sessionId=a%26b":                 "/message?sessionId=a%26b",
		"message":                                  "/base/message",
		"?session=1":                               "/base/sse?session=1",
		"http://localhost:3001/m":                  "/m",
		"http://0.0.0.0:3001/m%2Fn":                "/m%2Fn",
		"https://MCP.example.com/m":                "/m",
		"http://gateway.test:8080/m":               "/m",
		"http://gateway.test/m":                    "",
		"http://mcp.example.com/m":                 "",
		"http://localhost:3002/m":                  "",
		"https://mcp.example.com.evil.test/m":      "",
		"http://127.0.0.1:3001@evil.test/m":        "",
		"javascript:alert(1)":                      "",
		"http://user:password@localhost:3001/path": "",
	} {
		got, err := u.resolve(address, "gateway.test:8080")
		if err == nil != (want != "") || err == nil && got.RequestURI() != want {
			t.Errorf("%s: %v %v, want %q", address, got, err, want)
		}
	}
}

// The unread responses of a client are limited.
func TestUnreadAnswersAreLimited(t *testing.T) {
	p := openPool(t)
	s := newSession(p, Upstream{Owner: "owner"})
	read := func(text string) *jsonrpc.Message {
		m := new(jsonrpc.Message)
		if failure := m.Read([]byte(text)); failure != nil {
			t.Fatal(failure)
		}
		return m
	}
	const size, fit = 10 << 20, 3 // fit in half of the 64 MiB that TestMain sets
	answered := func() (*call, letter) {
		c := s.addCall(read(`{"jsonrpc":"2.0","id":"theirs","method":"tools/call"}`))
		s.deliverResponse(read(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":%q}`, c.number, strings.Repeat("x", size))))
		l, _, _ := c.mail.Take()
		return c, l
	}
	var calls []*call
	for range fit {
		c, l := answered()
		calls = append(calls, c)
		if len(l.message) < size || l.failure != nil {
			t.Errorf("%d bytes, %v", len(l.message), l.failure)
		}
	}
	c, l := answered()
	if l.failure == nil || l.failure.Status != http.StatusServiceUnavailable {
		t.Errorf("one response too many: %d bytes, %v", len(l.message), l.failure)
	}
	for _, c := range append(calls, c) {
		s.discardCall(c)
	}
	if c, l = answered(); l.failure != nil {
		t.Errorf("after the responses were read: %v", l.failure)
	}
	s.discardCall(c)
	s.end(nil)
}

// FuzzStream checks that a stream gives the same messages in pieces of any size, and that they
// reach their inboxes.
func FuzzStream(f *testing.F) {
	for _, seed := range []string{
		"event: endpoint\ndata: /message\n\nevent: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"x\"}\n\n",
		"\ufeffevent: endpoint\r\ndata: http://elsewhere.test/\r\n\r\n",
		"event: endpoint\rdata: ?a\r\rdata: {\ndata: \"id\":1,\"method\":\"x\"}\n\n: comment\n\n",
		"event: endpoint\ndata: a\n\nevent: endpoint\ndata: b\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n",
	} {
		f.Add([]byte(seed), uint8(1))
	}
	f.Fuzz(func(t *testing.T, data []byte, size uint8) {
		read := func(size int) (endpoint string, messages []string, err error) {
			p := NewPool()
			defer p.Close()
			s := newSession(p, Upstream{Name: "old", Target: &url.URL{Path: "/sse"}})
			for range maxSending {
				s.sending <- struct{}{} // sends nothing in the background
			}
			s.opening = &http.Request{Host: "gateway.test"}
			w := &stream{session: s, header: http.Header{"Content-Type": {"text/event-stream"}}}
			for part := range slices.Chunk(data, size) {
				_, _ = w.Write(part)
			}
			if s.endpoint != nil {
				endpoint = s.endpoint.RequestURI()
			}
			for l, ok, _ := s.mail.Take(); ok; l, ok, _ = s.mail.Take() {
				messages = append(messages, string(l.message))
			}
			return endpoint, messages, w.err
		}
		endpoint, messages, err := read(len(data) + 1)
		inPieces, messagesInPieces, errInPieces := read(int(size) + 1)
		if endpoint != inPieces || (err == nil) != (errInPieces == nil) || !slices.Equal(messages, messagesInPieces) {
			t.Errorf("whole: %q %v %q, in pieces: %q %v %q", endpoint, err, messages, inPieces, errInPieces, messagesInPieces)
		}
	})
}
