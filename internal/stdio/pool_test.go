package stdio

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

func TestASessionIsWithOneServer(t *testing.T) {
	p := newPool(t, "")
	a, b := p.client().initialize(`{}`), p.client()
	b.host, b.session = "beta:1", a.session
	equal(t, "at another server", b.post(toolCall(`1`, "pid", `{}`)).StatusCode, http.StatusNotFound)

	stream := a.listen()
	defer stream.Body.Close()
	a.post(request(`1`, "resources/subscribe", `{"uri":"x:1"}`)).whole()
	b.session = ""
	b.initialize(`{}`).call("touch", `{"uri":"x:1"}`)
	a.call("add-tool", `{"name":"t"}`)
	contains(t, "first message", stream.next(), "tools/list_changed")
}

// Messages outside of calls go to the client if it is the only one that the child has served. After
// it has served two, its messages may be about either.
func TestMessagesOutsideOfCalls(t *testing.T) {
	const log = `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"%s"}}` + "\n"
	changed := notification("notifications/tools/list_changed", `{}`) + "\n"
	p := newPuppets(t)
	a := p.client().initialize(`{"sampling":{}}`)
	first := a.listen()
	defer first.Body.Close()
	writeBetweenCalls(a, fmt.Sprintf(log, "to the only one"))
	contains(t, "message to the only client", first.next(), "to the only one")

	b := p.client().initialize(`{"sampling":{}}`)
	second := b.listen()
	defer second.Body.Close()
	writeBetweenCalls(a, fmt.Sprintf(log, "of one of two")+changed)
	contains(t, "first client", first.next(), "list_changed")
	contains(t, "second client", second.next(), "list_changed")

	writeBetweenCalls(b, changed)
	contains(t, "first client", first.next(), "list_changed")
	if _, err := b.do(http.MethodDelete, ""); err != nil {
		t.Fatal(err)
	}
	writeBetweenCalls(a, fmt.Sprintf(log, "of one that has left")+changed)
	contains(t, "remaining client", first.next(), "list_changed")
}

// A shared child cannot name the client of a server request outside of calls, and may use the
// response for all clients. So these requests are refused.
func TestServerRequestsOutsideOfCallsAreRefused(t *testing.T) {
	p := newPuppets(t)
	c := p.client().initialize(`{"sampling":{}}`)
	stream := c.listen()
	defer stream.Body.Close()
	writeBetweenCalls(c, samplingRequest)
	p.eventually("the server request is refused", func() bool {
		return strings.Contains(c.post(request(`1`, "heard", `{}`)).whole(), `\"id\":\"theirs\",\"error\":{\"code\":-32601`)
	})
	equal(t, "open server requests", len(c.poolSession(p).serverRequests.open), 0)
}

// Log levels and subscriptions of one client of a shared child do not change those of others.
func TestClientStateIsNotShared(t *testing.T) {
	p := newPool(t, "")
	a, b := p.client().initialize(`{}`), p.client().initialize(`{}`)
	levels := func() (levels string) {
		for _, m := range p.received("logging/setLevel") {
			_, level, _ := strings.Cut(m, `"level":"`)
			level, _, _ = strings.Cut(level, `"`)
			levels += " " + level
		}
		return levels
	}
	set := func(c *client, level string) string {
		return c.post(request(`"l"`, "logging/setLevel", `{"level":"`+level+`"}`)).whole()
	}
	logged := func(c *client, level string) bool {
		r := c.post(toolCall(`1`, "emit", `{"method":"notifications/message","params":{"level":"`+level+`","data":"x"}}`))
		return r.events != nil && strings.Contains(r.next(), "notifications/message")
	}
	equal(t, "before any client sets a level", logged(b, "debug"), true)
	equal(t, "answer", set(a, "warning"), `{"jsonrpc":"2.0","id":"l","result":{}}`)
	set(b, "error")
	equal(t, "levels after a client sets a higher level", levels(), " warning")
	set(b, "debug")
	equal(t, "levels after a client sets a lower level", levels(), " warning debug")
	equal(t, "debug message to the client with level debug", logged(b, "debug"), true)
	equal(t, "info message to the client with level warning", logged(a, "info"), false)
	equal(t, "debug message to a client without a level", logged(p.client(), "debug"), false)
	contains(t, "invalid level", set(a, "loud"), `"code":-32602`)
	contains(t, "without a session", set(p.client(), "emergency"), `"code":-32600`)
	equal(t, "levels sent to the child", levels(), " warning debug")

	p.restartSoon("alpha:1", mcp.Legacy)
	_ = syscall.Kill(a.pid(), syscall.SIGKILL)
	p.eventually("the level is set after a restart", func() bool { return levels() == " warning debug debug" })
	if _, err := b.do(http.MethodDelete, ""); err != nil {
		t.Fatal(err)
	}
	p.eventually(
		"the level of a closed session is removed",
		func() bool { return levels() == " warning debug debug warning" },
	)

	a.post(request(`1`, "resources/subscribe", `{"uri":"x:1"}`)).whole()
	stream := a.listen()
	defer stream.Body.Close()
	p.client().post(request(`1`, "resources/unsubscribe", `{"uri":"x:1"}`)).whole()
	p.client().call("touch", `{"uri":"x:1"}`)
	for message := stream.next(); !strings.Contains(message, "resources/updated"); message = stream.next() {
		contains(t, "after the restart", message, "list_changed")
	}
	equal(t, "unsubscribed", len(p.received("resources/unsubscribe")), 0)
}

// Only the client that received a server request can report its progress.
func TestProgressOfServerRequests(t *testing.T) {
	p := newPuppets(t)
	a, b := p.client().initialize(`{"sampling":{}}`), p.client().initialize(`{"sampling":{}}`)
	r := a.post(
		say(`1`, `{"id":"q","method":"sampling/createMessage","params":{"_meta":{"progressToken":"theirs"}}}`+
			"\n"),
	)
	defer r.Body.Close()
	contains(t, "server request", r.next(), "sampling")
	for who, c := range map[string]*client{"a": a, "b": b, "unknown": p.client()} {
		c.post(notification("notifications/progress", `{"progressToken":"theirs","message":"of `+who+`"}`))
	}
	heard := p.client().post(request(`1`, "heard", `{}`)).whole()
	contains(t, "received", heard, "of a")
	equal(t, "from other clients", strings.Contains(heard, "of b") || strings.Contains(heard, "of unknown"), false)
}

// The gateway has read a log message and a server request, and a call begins before it handles
// them. They cannot belong to that call, because the child wrote them earlier.
func TestCallsGetNoEarlierMessages(t *testing.T) {
	p := newPuppets(t)
	a, b := p.client().initialize(`{"sampling":{}}`), p.client().initialize(`{"sampling":{}}`)
	stream := a.listen()
	defer stream.Body.Close()
	s, err := p.sharedServer("alpha:1", nil, "")
	if err != nil {
		t.Fatal(err)
	}
	later := &call{session: b.poolSession(p), inbox: newInbox("", maxUnread)}
	p.onNoise = func() {
		if err := s.current().calls.register(later); err != nil {
			t.Error(err)
		}
	}
	writeBetweenCalls(a, "this line is not a message\n"+
		notification("notifications/message", `{"level":"info","data":"private"}`)+"\n"+
		samplingRequest+
		notification("notifications/tools/list_changed", `{}`)+"\n")
	contains(t, "last message", stream.next(), "list_changed")
	if l, ok, _ := later.inbox.Take(); ok {
		t.Errorf("the later call got %s", l.message)
	}
	contains(t, "refused", a.post(request(`1`, "heard", `{}`)).whole(), `\"id\":\"theirs\",\"error\":{\"code\":-32601`)
}

// A child wrote a server request before it received a later call, so the end of that call leaves no
// doubt about the client.
func TestAbandonedLaterCallsAreNotAmbiguous(t *testing.T) {
	s, c := newTestChild(t)
	asking, later := &call{session: s, inbox: newInbox("", 1)}, &call{inbox: newInbox("", 1)}
	for _, call := range []*call{asking, later} {
		if err := c.calls.register(call); err != nil {
			t.Fatal(err)
		}
		if call == asking {
			c.calls.noteRead()
		}
	}
	c.unregister(later)
	found, doubtful := c.calls.infer()
	equal(t, "found", found, asking)
	equal(t, "doubtful", doubtful, false)
}

func TestMessagesAfterCallsWithoutASession(t *testing.T) {
	p := newPuppets(t)
	c := p.client().initialize(`{"sampling":{}}`)
	stream := c.listen()
	defer stream.Body.Close()
	writeBetweenCalls(p.client(), samplingRequest)
	p.eventually("the server request is refused", func() bool {
		return strings.Contains(c.post(request(`1`, "heard", `{}`)).whole(), `\"id\":\"theirs\",\"error\"`)
	})
}

func TestUnrequestedProgressIsDropped(t *testing.T) {
	p := newPuppets(t)
	r := p.client().
		post(say(`1`, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":$ID,`+
			`"progress":1}}`+"\n"+`{"id":$ID,"result":1}`+"\n"))
	equal(t, "answer", r.whole(), `{"id":1,"result":1}`)
	equal(t, "dropped", p.dropped, 1)
}

// Invalid messages of clients must not reach a shared child, because they could end it.
func TestInvalidMessagesDoNotReachChildren(t *testing.T) {
	p := newPool(t, "")
	c := p.client().initialize(`{"sampling":{}}`)
	for _, body := range []string{
		`{"method":"ping","id":1}`,
		`{"jsonrpc":"1.0","id":1,"method":"ping"}`,
		`{"jsonrpc":"2.0","id":1,"method":5}`,
		`{"jsonrpc":"2.0","id":1}`,
		`{"jsonrpc":"2.0","id":1,"method":"x","params":5}`,
		`{"jsonrpc":"2.0","id":1,"method":"x","result":1}`,
		`{"jsonrpc":"2.0","id":1,"result":1,"error":{"code":1,"message":""}}`,
		`{"jsonrpc":"2.0","result":1}`,
		`{"jsonrpc":"2.0","method":7}`,
	} {
		equal(t, body, c.post(body).StatusCode, http.StatusBadRequest)
	}
	r := c.post(toolCall(`1`, "ask", `{"method":"sampling/createMessage"}`))
	id := idOf(t, r.next())
	for _, answer := range []string{`{"code":1.5,"message":"x"}`, `{"code":99999999999999999999,"message":"x"}`,
		`{"code":1,"message":5}`, `{"code":1}`, `5`, `null`} {
		body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":%s}`, id, answer)
		equal(t, answer, c.post(body).StatusCode, http.StatusBadRequest)
	}
	c.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-1,"message":"no model"}}`, id))
	contains(t, "response", r.next(), "no model")
	for _, method := range []string{"ping", "x"} {
		equal(t, "received "+method, len(p.received(method)), 0)
	}
}

func TestServerRequestsOnClosedStreams(t *testing.T) { // A25
	p := newPuppets(t, perSession)
	c := p.client().initialize(`{"sampling":{}}`)
	stream := c.listen()
	writeBetweenCalls(c, samplingRequest)
	contains(t, "server request", stream.next(), "sampling")
	stream.Body.Close()
	p.eventually("the server request is refused", func() bool {
		s := c.poolSession(p)
		s.serverRequests.mu.Lock()
		defer s.serverRequests.mu.Unlock()
		return len(s.serverRequests.open) == 0
	})
	p.eventually("the child receives an error", func() bool {
		return strings.Contains(c.post(request(`1`, "heard", `{}`)).whole(), `\"id\":\"theirs\",\"error\"`)
	})
}

func TestCancellationsReachAllChildrenOfAServer(t *testing.T) {
	p := newPool(t, "")
	c := p.client().initialize(`{}`)
	other := *c
	other.host = "alpha:2" // a load balancer may choose it
	r := make(chan string)
	go func() { r <- c.post(toolCall(`7`, "hang", `{}`)).whole() }()
	p.inFlightIs(1)
	p.eventually("the child receives the call", func() bool { return len(p.received("tools/call")) == 1 })
	other.post(notification("notifications/cancelled", `{"requestId":7}`))
	equal(t, "answer", <-r, "")
	p.eventually("the child receives the cancellation", func() bool { return p.events("cancelled") == 1 })
}

func TestSubscriptionsEndWithTheirSession(t *testing.T) {
	p := newPool(t, "")
	a, b := p.client().initialize(`{}`), p.client().initialize(`{}`)
	for _, c := range []*client{a, b} {
		c.post(request(`1`, "resources/subscribe", `{"uri":"x:1"}`)).whole()
	}
	for n, c := range []*client{a, b} {
		if _, err := c.do(http.MethodDelete, ""); err != nil {
			t.Fatal(err)
		}
		p.client().pid()
		p.eventually("the last session ends it", func() bool { return len(p.received("resources/unsubscribe")) == n })
	}
}

func TestEndStreams(t *testing.T) {
	p := newPool(t, "--modern")
	legacy := p.client().initialize(`{}`).listen()
	modern := p.client().modern(`1`, "subscriptions/listen", `"notifications":{"toolsListChanged":true}`, "")
	modern.next()
	p.EndStreams()
	equal(t, "session stream", legacy.next(), "")
	equal(t, "subscriptions/listen", modern.next(), "")
	equal(t, "late session stream", p.client().initialize(`{}`).listen().next(), "")
	equal(t, "call", p.client().call("slow", `{"ms":1}`), "slept")
}

func TestOneFailureDoesNotMakeAServerLegacy(t *testing.T) {
	p := newPoolOf(
		t,
		[]string{
			"sh",
			"-c",
			`[ -e "$DS_LOG.once" ] || { touch "$DS_LOG.once"; exit 1; }; exec "$0" ds ` +
				`alpha --modern`,
			os.Args[0],
		},
	)
	p.client().modern(`1`, "tools/list", "", "").whole() // starts the legacy child
	p.eventually("the server is known to be modern", func() bool {
		return strings.Contains(p.client().modern(`1`, "tools/list", "", "").whole(), `"resultType"`)
	})
}

func TestServersThatExitWithoutInitializeAreLegacy(t *testing.T) {
	script := `read -r first; case "$first" in *initialize*) ;; *) exit 1;; esac
		printf '%s\n' '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}'
		while read -r line; do case "$line" in *tools/list*) id=${line#*'"id":'}; printf '{"jsonrpc":"2.0","id":%s,"result":{"tools":[]}}\n' "${id%%,*}";; esac; done`
	p := newPoolOf(t, []string{"sh", "-c", script})
	for range 3 {
		contains(t, "answer", p.client().modern(`"m"`, "tools/list", "", "").whole(), `"id":"m","result"`)
	}
}

func TestAbandonedCallsAreLimited(t *testing.T) {
	c := newChild(newServer(NewPool(Config{}, nil), address{}, nil), &process{})
	var m jsonrpc.Message
	if failure := m.Read([]byte(toolCall(`1`, "x", `{}`))); failure != nil {
		t.Fatal(failure)
	}
	for range maxAbandonedCalls + 10 {
		call := &call{request: m, inbox: newInbox("", 1)}
		if err := c.calls.register(call); err != nil {
			t.Fatal(err)
		}
		c.unregister(call)
	}
	equal(t, "abandoned calls", len(c.calls.abandoned.calls), maxAbandonedCalls)
	c.calls.noteRead()
	_, doubtful := c.calls.infer()
	equal(t, "doubtful", doubtful, true)
}

func TestQueuedLargeMessagesAreLimited(t *testing.T) {
	p := newPoolOf(
		t,
		[]string{
			"sh",
			"-c",
			`read -r hello; printf '%s\n' '{"jsonrpc":"2.0","id":1,` +
				`"result":{"protocolVersion":"2025-11-25","capabilities":{}}}'; sleep 300`,
		},
		func(c *Config) { c.StopGrace = 1 },
	)
	c := p.client()
	s, _ := p.sharedServer(c.host, nil, "")
	if _, err := s.ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	body := request(`1`, "x", `{"x":"`+strings.Repeat("x", 1<<20)+`"}`)
	done := make(chan struct{}, 50)
	for range 50 {
		go func() {
			_, _ = c.with(ctx).do(http.MethodPost, body)
			done <- struct{}{}
		}()
	}
	p.eventually("all slots are in use", func() bool { return len(s.current().input.largeSlots) == maxLarge })
	equal(t, "waiting", len(s.current().input.messages) <= maxLarge+1, true)
	cancel()
	for range 50 {
		<-done
	}
}

// A Watcher receives the sessions without an open stream for a list change.
func TestWatch(t *testing.T) {
	for name, change := range map[string]func(*Config){"shared child": func(*Config) {},
		"child of a session": perSession} {
		t.Run(name, func(t *testing.T) {
			p := newPool(t, "", change)
			var told [][]string
			release := p.Watch("alpha:1", func(notice string, unread []string) {
				equal(t, "notice", notice, "notifications/tools/list_changed")
				p.note(func() { told = append(told, unread) })
			})
			p.Watch("beta:1", func(string, []string) { t.Error("notified of another host") })
			a, b := p.client().initialize("{}"), p.client().initialize("{}")
			tells := func(what string, want ...string) {
				t.Helper()
				before := len(told)
				a.call("add-tool", `{"name":"t"}`)
				p.until("the watcher is notified", func() bool { return len(told) > before })
				slices.Sort(told[before])
				slices.Sort(want)
				if !slices.Equal(told[before], want) {
					t.Errorf("%s: notified with %v, want %v", what, told[before], want)
				}
			}
			shared := name == "shared child"
			if tells("without streams", others(shared, a.session, b.session)...); t.Failed() {
				return
			}
			stream := a.listen()
			defer stream.Body.Close()
			tells("with a stream", others(shared, "", b.session)...)
			release()
			a.call("add-tool", `{"name":"t"}`)
			p.note(func() {
				if len(told) != 2 {
					t.Errorf("notified %d times, want 2", len(told))
				}
			})
		})
	}
}

// others returns session, unless it is empty, and other if they share a child.
func others(shared bool, session, other string) (all []string) {
	if session != "" {
		all = append(all, session)
	}
	if shared {
		all = append(all, other)
	}
	return all
}

// unread returns the number of responses that hold long messages that were not read.
func unread() int64 {
	for _, kind := range quota.Kinds() {
		if kind.Name == "unread_answers" {
			return kind.Usage().Entries
		}
	}
	return -1
}

// The memory of responses that a client does not read is limited, and leaves room for other
// clients. A client that does not read does not block the child.
func TestUnreadAnswersAreLimited(t *testing.T) {
	const size, fit = 10 << 20, 3 // fit in half of the 64 MiB that TestMain sets
	progress := `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}` + "\n"
	for name, raw := range map[string]string{"JSON": "", "events": progress} {
		t.Run(name, func(t *testing.T) {
			p := newPuppets(t)
			answer := func(owner string, size int) (*http.Response, error) {
				c := p.client()
				return c.with(WithOwner(c.ctx, owner)).
					do(http.MethodPost, request(`1`, "fill", fmt.Sprintf(`{"code":%d,"raw":%s}`,
						size, quote(raw))))
			}
			var open []io.Closer
			hold := func(owner string, size int) {
				t.Helper()
				before := unread()
				res, err := answer(owner, size)
				if err != nil {
					t.Fatal(err)
				}
				open = append(open, res.Body)
				p.eventually("the response is complete", func() bool { return unread() == before+1 })
			}
			for range fit {
				hold("alice", size)
			}
			res, err := answer("alice", size)
			if raw == "" {
				if failure, ok := errors.AsType[*jsonrpc.Failure](err); !ok || failure.Status != http.StatusServiceUnavailable ||
					failure.RetryAfter == 0 {
					t.Errorf("one response too many: %v", err)
				}
			} else {
				contains(t, "one response too many", newReply(t, res).last(), `"code":"busy"`)
			}
			res, err = answer("alice", 1000)
			if err != nil {
				t.Fatal(err)
			}
			contains(t, "small response", newReply(t, res).last(), `"result":"xxx`)
			hold("bob", size)
			equal(t, "unread", unread(), fit+1)
			open[0].Close()
			open[0].Close()
			equal(t, "unread after one was closed", unread(), fit)
			hold("alice", size)
			for _, body := range open {
				body.Close()
			}
			equal(t, "unread after all were closed", unread(), 0)
		})
	}
}

// Responses count until they are read or their session ends.
func TestResponsesCountUntilRead(t *testing.T) {
	p := newPuppets(t)
	long := `{"code":200000}`
	for range 3 {
		p.client().post(request(`1`, "fill", long)).whole()
	}
	c := p.client().initialize("{}")
	ctx, leave := context.WithCancel(c.ctx)
	res, err := c.with(ctx).do(http.MethodPost, request(`1`, "fill", `{"code":200000,"raw":`+
		quote(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}`+"\n")+`}`))
	if err != nil {
		t.Fatal(err)
	}
	p.eventually("the response is complete", func() bool { return unread() == 1 })
	leave()
	res.Body.Close()
	equal(t, "kept while the client is away", unread(), 1)
	if _, err := c.do(http.MethodDelete, ""); err != nil {
		t.Fatal(err)
	}
	equal(t, "unread after the session", unread(), 0)
}

// A host that is used again while its children are stopped keeps its sessions only if it keeps
// their children: new ones would not have the subscriptions of the sessions.
func TestUseWhileAHostIsStopped(t *testing.T) {
	const sessions = 5_000
	for range 5 {
		p := newPool(t, "")
		p.Use("alpha:1")
		p.client().initialize(`{}`)
		for i := range sessions - 1 {
			if p.sessions.open(message(t, request(`1`, "initialize", `{}`)), "alpha:1", fmt.Sprint(i)) == nil {
				t.Fatal("no room for a session")
			}
		}
		p.hosts.remove([]string{"alpha:1"})

		p.hosts.mu.Lock() // so that stopHost and Use go on at the same time
		stopped, used := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			p.stopHost(t.Context(), 0, "alpha:1")
		}()
		time.Sleep(10 * time.Millisecond)
		go func() {
			defer close(used)
			p.Use("alpha:1")
		}()
		time.Sleep(10 * time.Millisecond)
		p.hosts.mu.Unlock()
		<-stopped
		<-used
		want := 0
		if len(p.servers) > 0 {
			want = sessions
		}
		equal(t, "sessions", len(p.sessions.byID), want)
	}
}

// A host is released while a session waits until its owner can begin another one.
func TestReleaseBeforeASessionBegins(t *testing.T) {
	p := newPool(t, "", perSession)
	p.Use("alpha:1")
	limiter := rate.NewLimiter(1, 1)
	limiter.Allow()
	p.sessions.starts.limiters[""] = limiter
	opened := make(chan *reply)
	go func() {
		opened <- p.client().post(request(`1`, "initialize", `{"protocolVersion":"2025-06-18","capabilities":{}}`))
	}()
	await.Until(t, "the session waits", func() bool { return limiter.Tokens() < 0 })
	p.Release(t.Context(), 0, "alpha:1")
	equal(t, "status", (<-opened).StatusCode, http.StatusServiceUnavailable)
	equal(t, "started", p.events("start"), 0)
}
