package stdio

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

func TestVersionsAreNegotiated(t *testing.T) { // A5
	for _, isolation := range []Isolation{Shared, PerSession} {
		p := newPool(t, "", func(c *Config) { c.Isolation = isolation })
		for asked, want := range map[string]string{
			"2024-11-05": "2024-11-05",
			"2025-03-26": "2025-03-26",
			"2025-11-25": "2025-11-25",
			"1999-01-01": "2025-11-25",
			"":           "2025-11-25",
		} {
			r := p.client().
				post(request(`"i"`, "initialize", `{"protocolVersion":"`+asked+
					`","capabilities":{},"clientInfo":{"name":"x","version":"1"}}`))
			equal(t, "status", r.StatusCode, http.StatusOK)
			if id := r.Header.Get("Mcp-Session-Id"); len(id) < 20 {
				t.Errorf("session id %q can be guessed", id)
			}
			equal(t, "response to "+asked, r.whole(), `{"jsonrpc":"2.0","id":"i","result":{"protocolVersion":"`+want+
				`","capabilities":{"tools":{"listChanged":true},"prompts":{},"resources":{"subscribe":true,"listChanged":true},`+
				`"logging":{},"completions":{}},"serverInfo":{"name":"alpha","version":"0.1.0"}}}`)
		}
	}
}

// A session uses the version of its own child. The version of a shared child does not change those
// of its sessions.
func TestVersionChosenByTheChild(t *testing.T) {
	script := `read -r l; printf '%s\n' '{"id":1,"result":{"protocolVersion":"2025-06-18","capabilities":{}}}'; cat ` +
		`>/dev/null`
	for isolation, want := range map[Isolation]string{PerSession: "2025-06-18", Shared: "2024-11-05"} {
		p := newPoolOf(t, []string{"sh", "-c", script}, func(c *Config) { c.Isolation = isolation })
		r := p.client().post(request(`1`, "initialize", `{"protocolVersion":"2024-11-05","capabilities":{}}`))
		contains(t, string(isolation), r.whole(), `"protocolVersion":"`+want+`"`)
	}
}

func TestSessionsEnd(t *testing.T) {
	p := newPool(t, "")
	c := p.client().initialize(`{}`)
	stream := c.listen()
	equal(t, "echo", c.call("echo", `{}`), `{"name":"echo","arguments":{}}`)
	for _, status := range []int{http.StatusNoContent, http.StatusNotFound} {
		res, err := c.do(http.MethodDelete, "")
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "DELETE", res.StatusCode, status)
	}
	equal(t, "end of the stream", stream.next(), "")
	equal(t, "POST", c.post(toolCall(`1`, "echo", `{}`)).StatusCode, http.StatusNotFound)
	res, err := c.do(http.MethodGet, "")
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "GET", res.StatusCode, http.StatusNotFound)
	equal(t, "sessions", len(p.sessions.byID), 0)
}

func TestSessionsEndWithCallsInFlight(t *testing.T) {
	for _, change := range []func(*Config){perSession, func(*Config) {}} {
		p := newPool(t, "", change)
		c := p.client().initialize(`{"elicitation":{}}`)
		r := c.post(toolCall(`1`, "ask", `{"method":"elicitation/create"}`))
		contains(t, "server request", r.next(), "elicitation/create")
		if _, err := c.do(http.MethodDelete, ""); err != nil {
			t.Fatal(err)
		}
		if last := r.last(); last == "" {
			t.Error("the call has no response")
		}
		r.Body.Close()
		equal(t, "in flight", len(p.inFlight.byHost), 0)
	}
}

func TestSessionsExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(Config{SessionTTL: time.Minute, MaxSessions: 10}, nil)
		s := p.sessions.open(new(jsonrpc.Message), "alpha:1", "")
		if s == nil {
			t.Fatal("no room for the session")
		}
		time.Sleep(time.Hour) // in use
		s.release()
		time.Sleep(59 * time.Second)
		if p.sessions.get(s.id, "alpha") == nil {
			t.Fatal("ended too early")
		}
		s.release()
		time.Sleep(59 * time.Second)
		if p.sessions.get(s.id, "alpha") == nil {
			t.Fatal("use does not extend the session")
		}
		s.release()
		time.Sleep(61 * time.Second)
		if p.sessions.get(s.id, "alpha") != nil || len(p.sessions.byID) != 0 {
			t.Error("the session has not expired")
		}
		p.Close()
	})
}

func TestSessionsAreLimited(t *testing.T) {
	p := newPool(t, "", func(c *Config) { c.MaxSessions = 2 })
	listening, unused := p.client().initialize(`{}`), p.client().initialize(`{}`)
	defer listening.listen().Body.Close()
	third := p.client().initialize(`{}`)
	stream := third.listen()
	defer stream.Body.Close()
	equal(t, "an unused session is replaced", unused.post(toolCall(`1`, "pid", `{}`)).StatusCode, http.StatusNotFound)
	r := p.client().post(request(`3`, "initialize", `{"protocolVersion":"2025-06-18","capabilities":{}}`))
	equal(t, "status when all are used", r.StatusCode, http.StatusServiceUnavailable)
	contains(t, "body", r.whole(), `"data":{"code":"too_many_sessions"}},"id":3}`)
	equal(t, "without a session", p.client().call("echo", `{}`), `{"name":"echo","arguments":{}}`)
	if _, err := third.do(http.MethodDelete, ""); err != nil {
		t.Fatal(err)
	}
	p.client().initialize(`{}`)
}

// A new session replaces one of its owner, not one of another owner.
func TestSessionsOfOthersStay(t *testing.T) {
	p := newPool(t, "", perSession, func(c *Config) { c.MaxSessions = 4 })
	as := func(owner string) *client {
		c := p.client()
		return c.with(WithOwner(c.ctx, owner))
	}
	there := func(c *client) bool { return c.post(toolCall(`1`, "pid", `{}`)).StatusCode == http.StatusOK }
	bob := as("bob").initialize(`{}`)
	pid := bob.pid()
	var first *client
	for range 8 {
		alice := as("alice").initialize(`{}`)
		if first == nil {
			first = alice
		}
		alice.pid()
	}
	equal(t, "child of the other owner", bob.pid(), pid)
	equal(t, "oldest session of the owner", there(first), false)

	// An owner that uses all sessions loses some to owners that have fewer.
	for range 3 {
		alice := as("alice").initialize(`{}`)
		stream := alice.listen()
		t.Cleanup(func() { stream.Body.Close() })
	}
	r := as("alice").post(request(`1`, "initialize", `{"protocolVersion":"2025-06-18","capabilities":{}}`))
	equal(t, "status of one more session", r.StatusCode, http.StatusServiceUnavailable)
	equal(t, "Retry-After", r.Header.Get("Retry-After"), "1")
	carol := as("carol").initialize(`{}`)
	equal(t, "sessions of others", there(carol) && there(bob), true)
	equal(t, "sessions", len(p.sessions.byID), 4)
}

// A new session may need the place of another one. The rows name the session that ends.
func TestRoomForSessions(t *testing.T) {
	for name, test := range map[string]struct {
		is   string // sessions as owner:activity, the oldest first; those before ! are abandoned
		by   string // owner of the new session
		want string // session that ends
	}{
		"idle, of its owner":                         {"a:idle b:idle a:idle b:idle", "a", "a:idle"},
		"idle, of the owner with most idle sessions": {"a:busy a:busy a:busy b:idle b:idle", "c", "b:idle"},
		"idle, not its own busy":                     {"a:busy a:busy a:busy b:idle b:idle !", "a", "b:idle"},
		"none of other owners that was just used":    {"a:busy a:busy a:busy ! b:idle b:idle", "a", ""},
		"listening, not the only one of another":     {"b:idle a:listening a:listening a:listening !", "c", "a:listening"},
		"the only one of another, not a busy one":    {"b:idle a:busy a:busy a:busy !", "c", "b:idle"},
		"listening, of an owner with most":           {"a:listening a:listening b:listening b:busy !", "c", "a:listening"},
		"none that listens and was just used":        {"! a:listening a:listening b:listening b:busy", "c", ""},
		"busy, of an owner with more than half":      {"a:busy a:busy a:busy b:busy", "c", "a:busy"},
		"none of an owner with half":                 {"a:busy a:busy b:busy b:busy", "c", ""},
		"none of its own that is busy":               {"a:busy a:busy a:busy b:busy", "a", ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				names := strings.Fields(strings.ReplaceAll(test.is, "!", ""))
				p := NewPool(Config{SessionTTL: time.Hour, MaxSessions: len(names)}, nil)
				defer p.Close()
				open := func(owner string) *session {
					return p.sessions.open(new(jsonrpc.Message), "alpha:1", owner)
				}
				of := map[string]string{}
				for _, name := range strings.Fields(test.is) {
					owner, use, found := strings.Cut(name, ":")
					if !found {
						time.Sleep(2 * abandonedTime)
						continue
					}
					s := open(owner)
					if s == nil {
						t.Fatal("no room for the session")
					}
					of[s.id] = name
					time.Sleep(time.Second) // so that each is older than the next
					switch use {
					case "idle":
						s.release()
					case "listening":
						s.setStream(newStream(t.Context(), s.streamInbox, func() bool { return false }))
					}
				}
				equal(t, "refused", open(test.by) == nil, test.want == "")
				var ended []string
				for id, name := range of {
					if p.sessions.byID[id] == nil {
						ended = append(ended, name)
					}
				}
				equal(t, "ended", strings.Join(ended, " "), test.want)
			})
		})
	}
}

// The memory of sessions is counted and limited.
func TestBytesOfSessions(t *testing.T) {
	kept := func() int64 { return sessionQuota.Usage().Bytes }
	before := kept()
	hello := func(info int) string {
		return request(
			`1`,
			"initialize",
			`{"protocolVersion":"2025-06-18","capabilities":{"roots":{}},`+
				`"clientInfo":{"name":"`+strings.Repeat("x", info)+`"}}`,
		)
	}
	p := newPool(t, "")
	equal(t, "status of a large initialize", p.client().post(hello(20<<10)).StatusCode, http.StatusRequestEntityTooLarge)
	c := p.client()
	c.session = c.post(hello(15 << 10)).Header.Get("Mcp-Session-Id")
	equal(t, "bytes of a session with a shared child", kept()-before, int64(len(`{"roots":{}}`)))

	uri := func(n int) string { return fmt.Sprintf(`{"uri":"x:%d%s"}`, n, strings.Repeat("x", 8000)) }
	for n := range maxSubscriptions {
		if !c.poolSession(p).subscriptions.add(uri(n)) {
			t.Fatalf("subscription %d was refused", n)
		}
	}
	one := kept()
	answer := c.post(request(`1`, "resources/subscribe", uri(maxSubscriptions)))
	equal(t, "status", answer.StatusCode, http.StatusOK)
	contains(t, "one more subscription", answer.whole(), `"data":{"code":"too_many_subscriptions"}},"id":1}`)
	other := p.client().initialize(`{}`)
	n := 0
	for other.poolSession(p).subscriptions.add(uri(n)) {
		n++
	}
	equal(t, "owner's quota is used", n < maxSubscriptions && kept()-before <= maxOwnerBytes, true)
	other.poolSession(p).subscriptions.remove(uri(0))
	equal(t, "subscribe after an unsubscribe", other.poolSession(p).subscriptions.add(uri(0)), true)
	equal(
		t,
		"subscribe for another owner",
		p.client().with(WithOwner(t.Context(), "bob")).initialize(`{}`).poolSession(p).subscriptions.add(uri(0)),
		true,
	)
	for _, c := range []*client{c, other} {
		if _, err := c.do(http.MethodDelete, ""); err != nil {
			t.Fatal(err)
		}
	}
	equal(t, "bytes are freed with sessions", kept() < one, true)
	p.Close()
	equal(t, "bytes after Close", kept(), before)
}

// A new session that exceeds the quota of its owner replaces sessions of that owner.
func TestBytesOfSessionsWithChildren(t *testing.T) {
	before := sessionQuota.Usage().Bytes
	p := NewPool(Config{Isolation: PerSession, SessionTTL: time.Hour, MaxSessions: 10_000}, nil)
	defer p.Close()
	hello := message(
		t,
		request(`1`, "initialize", `{"capabilities":{},"clientInfo":{"name":"`+strings.Repeat("x",
			16_000)+`"}}`),
	)
	open := func(owner string) bool {
		s := p.sessions.open(hello, "alpha:1", owner)
		if s != nil {
			s.release()
		}
		return s != nil
	}
	equal(t, "session of another owner", open("bob"), true)
	for range 1_000 {
		if !open("alice") {
			t.Fatal("no room for the session")
		}
	}
	equal(t, "bytes", sessionQuota.Usage().Bytes-before <= maxOwnerBytes+(17<<10), true)
	held := map[string]int{}
	p.sessions.each(func(s *session) { held[s.owner]++ })
	equal(t, "sessions of the other owner", held["bob"], 1)
	equal(t, "number of the owner's sessions is limited", held["alice"] > 400 && held["alice"] < 600, true)
}

// The rate at which an owner starts processes is limited. A burst waits.
func TestStartsOfSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startLimiter{limiters: map[string]*rate.Limiter{}}
		start := time.Now()
		var can, cannot atomic.Int32
		var asked sync.WaitGroup
		for range 10 * startBurst {
			asked.Go(func() {
				if ok, _ := s.wait(t.Context(), "alice", startWait); ok {
					can.Add(1)
				} else {
					cannot.Add(1)
				}
			})
		}
		synctest.Wait()
		equal(t, "at once", can.Load(), startBurst)
		equal(t, "refused", cannot.Load(), 9*startBurst-startRate*int32(startWait/time.Second))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		ok, err := s.wait(ctx, "bob", startWait)
		equal(t, "another owner starts", ok && err == nil, true)
		asked.Wait()
		equal(t, "total", can.Load(), startBurst+startRate*int32(startWait/time.Second))
		equal(t, "time waited", time.Since(start).Round(time.Second), startWait)
		ok, err = s.wait(ctx, "alice", startWait)
		equal(t, "start of a disconnected client", ok || err != context.Canceled, false)
		for i := range 10_010 {
			_, _ = s.wait(ctx, fmt.Sprint(i), 0)
		}
		equal(t, "owners are limited", len(s.limiters) <= 10_000, true)
	})
}

func TestASecondStreamTakesOver(t *testing.T) {
	p := newPool(t, "")
	c := p.client().initialize(`{}`)
	first := c.listen()
	second := c.listen()
	equal(t, "end of the first stream", first.next(), "")
	c.call("add-tool", `{"name":"new"}`)
	contains(t, "message on the second stream", second.next(), "notifications/tools/list_changed")
	second.Body.Close()

	t.Run("without loss of messages", func(t *testing.T) {
		messages := make(chan string, 1)
		var streams sync.WaitGroup
		listen := func() {
			stream := c.listen()
			streams.Go(func() {
				for m := stream.next(); m != ""; m = stream.next() {
					messages <- m
				}
			})
		}
		listen()
		for n := range 200 {
			go c.poolSession(p).streamInbox.Put(letter{message: frame{fmt.Append(nil, n)}})
			listen() // at the same time
			select {
			case m := <-messages:
				equal(t, "message", m, fmt.Sprint(n))
			case <-c.ctx.Done():
				t.Fatal("a message is not delivered")
			}
		}
		if _, err := c.do(http.MethodDelete, ""); err != nil {
			t.Error(err)
		}
		streams.Wait()
	})
}

// Both streams wait for the same inbox. If the old stream is woken, it must wake the new one.
func TestReplacedStreamWakesTheNewOne(t *testing.T) {
	mail := newInbox("", maxStreamInbox)
	old := newStream(t.Context(), mail, func() bool { return false })
	mail.Put(letter{message: frame{[]byte("x")}})
	<-mail.More() // wakes it
	old.stop()    // another stream takes over
	if err := old.next(); err != io.EOF {
		t.Errorf("got %v", err)
	}
	select {
	case <-mail.More():
	default:
		t.Error("the new stream is not woken")
	}
}

// The children of sessions that end while the pool closes are stopped.
func TestSessionsThatEndWhileThePoolIsClosed(t *testing.T) {
	for range 200 {
		p := NewPool(Config{Isolation: PerSession, SessionTTL: time.Hour, MaxSessions: 100}, nil)
		var sessions []*session
		var ended sync.WaitGroup
		begin := make(chan struct{})
		for i := range 100 {
			s := p.sessions.open(new(jsonrpc.Message), "alpha:1", strconv.Itoa(i))
			if s == nil {
				t.Fatal("no room for the session")
			}
			sessions = append(sessions, s)
			ended.Go(func() {
				<-begin
				s.end()
			})
		}
		close(begin)
		p.Close()
		ended.Wait()
		for _, s := range sessions {
			if !s.server.isStopping() {
				t.Fatal("the child of the session was not stopped")
			}
		}
	}
}

func TestResourceUpdatesReachSubscribers(t *testing.T) { // A68
	p := newPool(t, "")
	const uri = `{"uri":"file://alpha/data.txt"}`
	var clients []*client
	var streams []*reply
	for range 3 {
		c := p.client().initialize(`{}`)
		clients, streams = append(clients, c), append(streams, c.listen())
	}
	subscribe := func(c *client, method string) {
		t.Helper()
		equal(t, method, c.post(request(`"s"`, method, uri)).whole(), result(`"s"`, `{}`))
	}
	told := func(want ...int) {
		t.Helper()
		clients[0].call("touch", uri)
		clients[0].call("add-tool", `{"name":"x"}`) // all clients are notified, after the update
		for i, stream := range streams {
			for _, w := range want {
				if w == i {
					contains(t, fmt.Sprintf("client %d", i), stream.next(), "notifications/resources/updated")
				}
			}
			contains(t, fmt.Sprintf("client %d", i), stream.next(), "notifications/tools/list_changed")
		}
	}
	told()
	subscribe(clients[0], "resources/subscribe")
	told(0)
	subscribe(clients[1], "resources/subscribe")
	told(0, 1)
	subscribe(clients[0], "resources/unsubscribe")
	equal(t, "unsubscribe requests to the child", len(p.received("resources/unsubscribe")), 0)
	told(1)
	subscribe(clients[1], "resources/unsubscribe")
	equal(t, "unsubscribe requests to the child", len(p.received("resources/unsubscribe")), 1)
	told()
	for _, s := range streams {
		s.Body.Close()
	}
}

func TestEachSessionHasAChildOfItsOwn(t *testing.T) {
	p := newPool(t, "", perSession)
	a := p.client().initialize(`{"roots":{"listChanged":true},"x":1.0}`)
	b := p.client().initialize(`{}`)
	none := p.client()
	pids := map[int]bool{}
	for _, c := range []*client{a, b, none} {
		pids[c.pid()] = true
	}
	equal(t, "processes", len(pids), 3)
	equal(t, "process is reused", pids[a.pid()], true)
	contains(
		t,
		"initialize of its client",
		p.received("initialize")[0],
		`"params":{"protocolVersion":"2025-06-18","capabilities":{"roots":{"listChanged":true},"x":1.0},`+
			`"clientInfo":{"name":"test","version":"1"}}`,
	)

	t.Run("server requests during calls of several sessions", func(t *testing.T) {
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan struct{})
		go func() {
			defer close(left)
			_, _ = b.with(ctx).do(http.MethodPost, toolCall(`1`, "hang", `{}`))
		}()
		r := a.post(toolCall(`1`, "ask-roots", `{}`))
		a.post(result(idOf(t, r.next()), `{"roots":[1]}`))
		equal(t, "roots", r.text(), `{"roots":[1]}`)
		leave()
		<-left
	})
	t.Run("restart at the next call, with the same initialize", func(t *testing.T) { // A37
		own := a.poolSession(p).server
		own.mu.Lock()
		own.backoff.First = 2 * time.Millisecond
		own.mu.Unlock()
		before := a.pid()
		if _, err := a.do(http.MethodPost, toolCall(`1`, "die", `{}`)); err == nil {
			t.Error("no error")
		}
		p.until("the child has ended", func() bool { return len(p.exited) == 1 })
		p.eventually("the server has noticed", func() bool { return own.current() == nil })
		equal(t, "starts before the next call", p.events("start"), 3)
		if a.pid() == before {
			t.Error("the same process")
		}
		handshakes := p.received("initialize")
		equal(t, "number of initialize requests", len(handshakes), 4)
		equal(t, "last initialize", handshakes[3], handshakes[0])
	})
	t.Run("end with the session", func(t *testing.T) {
		pid := a.pid()
		if _, err := a.do(http.MethodDelete, ""); err != nil {
			t.Fatal(err)
		}
		p.until("the child has ended", func() bool { return len(p.exited) == 2 })
		equal(t, "process", exists(pid), false)
		equal(t, "call of the other session", b.call("echo", `{}`), `{"name":"echo","arguments":{}}`)
	})
	t.Run("refused initialize", func(t *testing.T) {
		r := p.client().post(request(`"i"`, "initialize", `{"protocolVersion":5}`))
		equal(t, "session", r.Header.Get("Mcp-Session-Id"), "")
		contains(t, "error", r.whole(), `{"jsonrpc":"2.0","id":"i","error":{"code":-32602`)
		p.until("the child has ended", func() bool { return len(p.exited) == 3 })
	})
}

func TestTheStreamOfASessionNeedsItsHeader(t *testing.T) {
	p := newPool(t, "")
	c := p.client().initialize(`{}`)
	res, err := c.do(http.MethodGet, "", "Accept", "application/json")
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "status", res.StatusCode, http.StatusMethodNotAllowed)
	stream := c.listen()
	defer stream.Body.Close()
	first := make([]byte, 10)
	n, err := stream.Body.Read(first)
	if err != nil || !strings.HasPrefix(string(first[:n]), ":") {
		t.Errorf("the stream does not start with a comment: %q, %v", first[:n], err)
	}
}

func TestAcceptOnTwoLines(t *testing.T) {
	p := newPool(t, "")
	c := p.client().initialize(`{}`)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://alpha:1/mcp", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Accept": {"application/json", "text/event-stream"}, mcp.SessionHeader: {c.session}}
	res, err := p.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	equal(t, "status", res.StatusCode, http.StatusOK)
}
