package stdio

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// idOf returns the id of a message.
func idOf(t *testing.T, message string) string {
	t.Helper()
	var m struct{ ID json.RawMessage }
	if err := json.Unmarshal([]byte(message), &m); err != nil {
		t.Fatalf("%v: %s", err, message)
	}
	return string(m.ID)
}

func result(id, result string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, id, result)
}

func TestServerRequestsOnCallStreams(t *testing.T) { // A23, A24
	p := newPool(t, "", perSession)
	c := p.client().initialize(`{"roots":{},"sampling":{},"elicitation":{}}`)
	for _, method := range []string{"roots/list", "sampling/createMessage", "elicitation/create", "their/own"} {
		t.Run(method, func(t *testing.T) {
			r := c.post(toolCall(`1`, "ask", `{"method":"`+method+`","params":{"x":1.0}}`))
			req := r.next()
			contains(t, "server request", req, `"method":"`+method+`","params":{"x":1.0}}`)
			answer := c.post(result(idOf(t, req), `{"secret" : 1.0}`))
			equal(t, "status", answer.StatusCode, http.StatusAccepted)
			equal(t, "result", r.text(), `{"secret" : 1.0}`)
			equal(t, "status of a second response", c.post(result(idOf(t, req), `{}`)).StatusCode, http.StatusBadRequest)
		})
	}
	t.Run("an error is a response", func(t *testing.T) {
		r := c.post(toolCall(`1`, "ask-roots", `{}`))
		c.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-1,"message":"no"}}`, idOf(t, r.next())))
		equal(t, "result", r.text(), `{"code":-1,"message":"no"}`)
	})
	t.Run("a server request is sent on the latest call of a client", func(t *testing.T) {
		p := newPool(t, "")
		c := p.client().initialize(`{"sampling":{}}`)
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan struct{})
		go func() {
			defer close(left)
			_, _ = c.with(ctx).do(http.MethodPost, toolCall(`1`, "hang", `{}`))
		}()
		p.inFlightIs(1)
		r := c.post(toolCall(`2`, "ask", `{"method":"sampling/createMessage"}`))
		c.post(result(idOf(t, r.next()), `{"x":[]}`))
		equal(t, "result", r.text(), `{"x":[]}`)
		leave()
		<-left
	})
}

func TestEqualIdsOfTwoChildren(t *testing.T) { // A24
	for _, change := range []func(*Config){perSession, func(*Config) {}} {
		p := newPool(t, "", change)
		clients := []*client{p.client(), p.client()}
		clients[1].host = "alpha:2"
		var replies []*reply
		var questions []string
		for _, c := range clients {
			c.initialize(`{"sampling":{}}`)
			r := c.post(toolCall(`1`, "ask", `{"method":"sampling/createMessage"}`)) // the first server request of both children
			replies, questions = append(replies, r), append(questions, r.next())
		}
		for i := range clients {
			c := clients[1-i]
			equal(
				t,
				"status",
				c.post(result(idOf(t, questions[1-i]), fmt.Sprintf(`{"answer":[%d]}`, 1-i))).StatusCode,
				http.StatusAccepted,
			)
		}
		for i, r := range replies {
			equal(t, "answer", r.text(), fmt.Sprintf(`{"answer":[%d]}`, i))
		}
	}
}

func TestServerRequestsWithoutAClient(t *testing.T) { // A25, A59
	withRoots := func(c *Config) { c.Roots = []string{"file:///a b", "file:///c"} }
	const roots = `{"roots":[{"uri":"file:///a b"},{"uri":"file:///c"}]}`
	tests := []struct {
		name         string
		change       func(*Config)
		capabilities string // "" without a session
		method       string
		want         string
	}{
		{"configured roots without a session", withRoots, "", "roots/list", roots},
		{"configured roots for a client without roots", withRoots, `{"sampling":{}}`, "roots/list", roots},
		{"empty roots by default", func(*Config) {}, "", "roots/list", `{"roots":[]}`},
		{
			"refused roots for a client without roots",
			func(*Config) {},
			`{}`,
			"roots/list",
			`"code":-32601`,
		},
		{"configured roots before those of a client", withRoots, `{"roots":{}}`, "roots/list", roots},
		{"an invalid capability", func(*Config) {}, `{"roots":true}`, "roots/list", `"code":-32601`},
		{"sampling without a session is refused", withRoots, "", "sampling/createMessage", `"code":-32601`},
		{"sampling without the capability is refused", withRoots, `{"roots":{}}`, "sampling/createMessage", `"code":-32601`},
		{"an unknown request without a session is refused", withRoots, "", "their/own", `"code":-32601`},
		{"a ping without a session is answered", withRoots, "", "ping", `{}`},
		{"a ping in a session is answered", withRoots, `{}`, "ping", `{}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := newPool(t, "", tt.change)
			c := p.client()
			if tt.capabilities != "" {
				c.initialize(tt.capabilities)
			}
			contains(t, "answer", c.call("ask", `{"method":"`+tt.method+`"}`), tt.want)
		})
	}
}

// A shared child that received the roots of a client may keep them. So it serves no other client,
// and ends after its response to that client.
func TestRootsOfOneClient(t *testing.T) { // A23
	p := newPool(t, "")
	c, other := p.client().initialize(`{"roots":{}}`), p.client().initialize(`{"roots":{}}`)
	shared := other.call("pid", `{}`)
	r := c.post(toolCall(`1`, "ask-roots", `{}`))
	req := r.next()
	contains(t, "server request", req, `"roots/list"`)
	another := other.call("pid", `{}`)
	if another == shared {
		t.Error("the other client is served by the child that received the roots")
	}
	equal(t, "child without a session", p.client().call("pid", `{}`), another)
	equal(t, "child of the client itself", c.call("pid", `{}`), another)
	equal(
		t,
		"status",
		c.post(result(idOf(t, req), `{"roots":[{"uri":"file:///mine"}]}`)).StatusCode,
		http.StatusAccepted,
	)
	equal(t, "result", r.text(), `{"roots":[{"uri":"file:///mine"}]}`)
	pid, err := strconv.Atoi(shared)
	if err != nil {
		t.Fatal(err)
	}
	p.eventually("the child that received them has ended", func() bool { return !exists(pid) })

	t.Run("during a call of another client", func(t *testing.T) {
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan struct{})
		go func() {
			defer close(left)
			_, _ = other.with(ctx).do(http.MethodPost, toolCall(`1`, "hang", `{}`))
		}()
		p.inFlightIs(1)
		contains(t, "answer", c.call("ask-roots", `{}`), `"roots":[]`)
		leave()
		<-left
	})
	t.Run("during a canceled call", func(t *testing.T) {
		p := newPool(t, "")
		c := p.client().initialize(`{"roots":{}}`)
		shared, err := strconv.Atoi(c.call("pid", `{}`))
		if err != nil {
			t.Fatal(err)
		}
		r := c.post(toolCall(`7`, "ask-roots", `{}`))
		r.next()
		c.post(notification("notifications/cancelled", `{"requestId":7}`))
		p.eventually("the child has ended", func() bool { return !exists(shared) })
		if now := c.call("pid", `{}`); now == strconv.Itoa(shared) {
			t.Error("the same child is used")
		}
	})
}

func TestAmbiguousServerRequestsAreRefused(t *testing.T) {
	p := newPool(t, "", func(c *Config) { c.Roots = []string{"file:///r"} })
	c := p.client().initialize(`{"sampling":{},"roots":{}}`)
	other := p.client().initialize(`{"sampling":{},"roots":{}}`)
	stream := other.listen()
	defer stream.Body.Close()
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan struct{})
	go func() {
		defer close(left)
		_, _ = other.with(ctx).do(http.MethodPost, toolCall(`1`, "hang", `{}`))
	}()
	p.inFlightIs(1)
	contains(t, "sampling", c.call("ask", `{"method":"sampling/createMessage"}`), `"code":-32601`)
	equal(t, "roots", c.call("ask-roots", `{}`), `{"roots":[{"uri":"file:///r"}]}`)
	leave()
	<-left
	equal(t, "server requests to the other client", len(other.poolSession(p).serverRequests.open), 0)
}

// poolSession returns the session of a client.
func (c *client) poolSession(p *testPool) *session {
	p.Pool.mu.Lock()
	defer p.Pool.mu.Unlock()
	return p.sessions.byID[c.session]
}

const samplingRequest = `{"jsonrpc":"2.0","id":"theirs","method":"sampling/createMessage","params":{}}` + "\n"

// writeBetweenCalls makes a puppet write raw after its response, when no call is in flight.
func writeBetweenCalls(c *client, raw string) {
	c.post(say(`1`, `{"id":$ID,"result":1}`+"\n"+raw)).whole()
}

func TestServerRequestsOnSessionStreams(t *testing.T) {
	p := newPuppets(t, perSession)
	c := p.client().initialize(`{"sampling":{}}`)
	heard := func() string { return c.post(request(`1`, "heard", `{}`)).whole() }
	stream := c.listen()

	writeBetweenCalls(c, samplingRequest)
	req := stream.next()
	contains(t, "server request", req, `"method":"sampling/createMessage","params":{}}`)
	equal(t, "without a session", p.client().post(result(idOf(t, req), `1`)).StatusCode, http.StatusBadRequest)
	equal(t, "status", c.post(result(idOf(t, req), `{"x":1}`)).StatusCode, http.StatusAccepted)
	contains(t, "received", heard(), `\"id\":\"theirs\",\"result\":{\"x\":1}`)

	t.Run("long", func(t *testing.T) {
		long := strings.Repeat("x", 100_000)
		writeBetweenCalls(c, `{"id":5,"method":"sampling/createMessage","params":"`+long+`"}`+"\n")
		contains(t, "server request", stream.next(), long)
	})
	t.Run("canceled", func(t *testing.T) {
		writeBetweenCalls(c, strings.ReplaceAll(samplingRequest, "theirs", "regretted"))
		req := stream.next()
		writeBetweenCalls(c, notification("notifications/cancelled", `{"requestId":"regretted","reason":"x"}`)+"\n")
		equal(
			t,
			"cancellation",
			stream.next(),
			notification("notifications/cancelled", `{"requestId":`+idOf(t, req)+
				`,"reason":"x"}`),
		)
		equal(t, "late response", c.post(result(idOf(t, req), `1`)).StatusCode, http.StatusBadRequest)
		if strings.Contains(heard(), `\"id\":\"regretted\",\"result`) {
			t.Error("the child received the late response")
		}
	})
	t.Run("not supported by the client", func(t *testing.T) {
		writeBetweenCalls(c, `{"id":"e","method":"elicitation/create"}`+"\n")
		p.eventually(
			"the server request is refused",
			func() bool {
				return strings.Contains(heard(), `\"id\":\"e\",`+
					`\"error\":{\"code\":-32601`)
			},
		)
	})
	t.Run("without a stream at first", func(t *testing.T) {
		stream.Body.Close()
		writeBetweenCalls(c, strings.ReplaceAll(samplingRequest, "theirs", "lonely"))
		stream = c.listen()
		contains(t, "server request", stream.next(), "sampling/createMessage")
	})
	stream.Body.Close()
}

// newTestChild returns a session and a child without a process. The queue of the child has what
// would be sent to it.
func newTestChild(t *testing.T) (*session, *child) {
	t.Helper()
	p := NewPool(Config{SessionTTL: 24 * time.Hour, MaxSessions: 1, Framing: Newline, Roots: []string{"file:///r"}}, nil)
	s := p.sessions.open(new(jsonrpc.Message), "alpha:1", "")
	if s == nil {
		t.Fatal("no room for the session")
	}
	s.release() // the use by open
	t.Cleanup(p.Close)
	c := newChild(newServer(p, address{"alpha:1", mcp.Legacy, s.group}, nil), &process{exited: make(chan struct{})})
	c.input.messages, c.input.overflow = make(chan frame, 4), nil
	return s, c
}

func message(t *testing.T, text string) *jsonrpc.Message {
	t.Helper()
	m := new(jsonrpc.Message)
	if failure := m.Read([]byte(text)); failure != nil {
		t.Fatal(failure)
	}
	return m
}

func asks(t *testing.T, method string) *jsonrpc.Message {
	t.Helper()
	return message(t, `{"jsonrpc":"2.0","id":"q","method":"`+method+`"}`)
}

// answers reports whether the session accepts the client's response to its nth server request.
func (s *session) answers(t *testing.T, n int) bool {
	t.Helper()
	return s.serverRequests.answer(t.Context(), message(t, result(fmt.Sprint(n), `1`)))
}

// askOnCall sends a server request on the stream of a call, and then the response to the call.
func askOnCall(t *testing.T, s *session, c *child, method string) {
	t.Helper()
	asked := &call{session: s, inbox: newInbox("", maxUnread)}
	if err := c.calls.register(asked); err != nil {
		t.Fatal(err)
	}
	s.serverRequests.forward(c, asked, asks(t, method))
	asked.inbox.Take() // the client reads it
	c.takeCall(fmt.Append(nil, asked.id))
}

// Server requests that a client does not answer get a response of the gateway.
func TestServerRequestsTimeOut(t *testing.T) { // A25
	for _, tt := range []struct {
		name, method string
		ask          func(t *testing.T, s *session, c *child, method string)
		want         string
	}{
		{"roots, with no stream", "roots/list", func(t *testing.T, s *session, c *child, method string) {
			s.serverRequests.forward(c, nil, asks(t, method))
		}, `"result":{"roots":[{"uri":"file:///r"}]}}`},
		{"sampling, with no stream", "sampling/createMessage", func(t *testing.T, s *session, c *child, method string) {
			s.serverRequests.forward(c, nil, asks(t, method))
		}, `"error":{"code":-32603,"message":"the client has no open stream"}}`},
		{"sampling, after the end of its stream", "sampling/createMessage", func(t *testing.T, s *session, c *child,
			method string) {
			s.use()
			s.serverRequests.forward(c, nil, asks(t, method))
			s.streamInbox.Take()
			time.Sleep(time.Hour) // people may take long
			equal(t, "while the stream is open", len(c.input.messages), 0)
			s.release()
		}, `"error":{"code":-32603,"message":"the client has left"}}`},
		{"sampling, after the end of its call", "sampling/createMessage", askOnCall,
			`"error":{"code":-32603,"message":"the client has left"}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, c := newTestChild(t)
				tt.ask(t, s, c, tt.method)
				time.Sleep(serverRequestTime - time.Second)
				equal(t, "messages before the timeout", len(c.input.messages), 0)
				time.Sleep(2 * time.Second)
				equal(t, "response", strings.TrimSpace((<-c.input.messages).text()), `{"jsonrpc":"2.0","id":"q",`+tt.want)
				equal(t, "open server requests", len(s.serverRequests.open), 0)
			})
		})
	}
}

func TestServerRequestsWaitForConnectedClients(t *testing.T) {
	t.Run("each with its own timeout", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, c := newTestChild(t)
			askOnCall(t, s, c, "sampling/createMessage")
			equal(t, "first response accepted", s.answers(t, 1), true)
			time.Sleep(serverRequestTime - time.Second)
			askOnCall(t, s, c, "sampling/createMessage")
			time.Sleep(serverRequestTime - time.Second)
			equal(t, "second response accepted", s.answers(t, 2), true)
		})
	})
	t.Run("a client with another call in flight", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, c := newTestChild(t)
			s.use()
			askOnCall(t, s, c, "elicitation/create")
			time.Sleep(time.Hour)
			equal(t, "response accepted", s.answers(t, 1), true)
			s.release()
		})
	})
}

// The client leaves before it has received the response to its call. It still has another stream,
// but these server requests are not on it.
func TestUnreadServerRequestsAreRefused(t *testing.T) {
	t.Run("in the inbox", func(t *testing.T) {
		s, c := newTestChild(t)
		s.use()
		asked := &call{session: s, inbox: newInbox("", maxUnread)}
		if err := c.calls.register(asked); err != nil {
			t.Fatal(err)
		}
		s.serverRequests.forward(c, asked, asks(t, "sampling/createMessage"))
		c.takeCall([]byte("1"))
		c.cancel(asked, "it has left")
		asked.inbox.End(letter{message: frame{[]byte("{}")}})
		contains(t, "sent to the child", (<-c.input.messages).text(), `"id":"q","error":{"code":-32603`)
		equal(t, "open server requests", len(s.serverRequests.open), 0)
	})
	t.Run("in the buffer of the stream", func(t *testing.T) {
		p := newPuppets(t)
		c := p.client().initialize(`{"sampling":{}}`)
		stream := c.listen()
		defer stream.Body.Close()
		r := c.post(say(`1`, `{"id":"b","method":"sampling/createMessage"}`+"\n"+`{"id":$ID,"result":1}`+"\n"))
		p.inFlightIs(0)
		r.Body.Close()
		contains(t, "received by the child", p.client().post(request(`1`, "heard", `{}`)).whole(), `\"id\":\"b\",\"error\"`)
		equal(t, "open server requests", len(c.poolSession(p).serverRequests.open), 0)
	})
}

// If the response of a client cannot be sent, the child gets an error instead.
func TestClientResponseThatCannotBeSent(t *testing.T) {
	s, c := newTestChild(t)
	c.input.messages, c.input.overflow = make(chan frame), make(chan frame, 1) // the queue is full
	s.serverRequests.forward(c, nil, asks(t, "sampling/createMessage"))
	ctx, leave := context.WithCancel(t.Context())
	leave()
	equal(t, "response accepted", s.serverRequests.answer(ctx, message(t, result(`1`, `"mine"`))), true)
	contains(t, "sent to the child", (<-c.input.overflow).text(), `"id":"q","error":{"code":-32603`)
}

// The child may not know yet that the client of an abandoned call has left, and its server request
// may be for that client. The puppet does not answer pings.
func TestAbandonedCallsMakeServerRequestsAmbiguous(t *testing.T) {
	p := newPuppets(t)
	gone := p.client().initialize(`{"sampling":{}}`)
	c := p.client().initialize(`{"sampling":{}}`)
	r := gone.post(say(`1`, `{"id":"a","method":"sampling/createMessage","params":"$ID"}`+"\n"))
	number := r.next() // contains the id that the child received
	number = number[strings.Index(number, `"params":"`)+len(`"params":"`):]
	number = number[:strings.Index(number, `"`)]
	r.Body.Close()

	ask := `{"id":"b","method":"sampling/createMessage"}` + "\n"
	equal(t, "response", c.post(say(`1`, ask+`{"id":$ID,"result":1}`+"\n")).whole(), `{"id":1,"result":1}`)
	contains(t, "refused", c.post(request(`1`, "heard", `{}`)).whole(), `\"id\":\"b\",\"error\":{\"code\":-32601`)

	// The late response to the abandoned call ends the doubt.
	r = c.post(say(`1`, `{"id":`+number+`,"result":0}`+"\n"+ask+`{"id":$ID,"result":1}`+"\n"))
	contains(t, "server request", r.next(), "sampling/createMessage")
	r.Body.Close()
}

// A child that answers a ping has read the cancellation sent before it. The canceled call is then
// over.
func TestPongsEndAbandonedCalls(t *testing.T) {
	for name, end := range map[string]func(c *child, call *call){
		"canceled":        func(c *child, call *call) { c.cancel(call, "x") },
		"the client left": func(c *child, call *call) { c.giveUp(call, context.Canceled) },
	} {
		t.Run(name, func(t *testing.T) {
			s, c := newTestChild(t)
			other := &call{session: new(session), inbox: newInbox("", maxUnread)}
			begin := func(call *call) *call {
				call.queued = true
				if err := c.calls.register(call); err != nil {
					t.Fatal(err)
				}
				c.calls.noteRead()
				return call
			}
			// pinged returns the id of the ping in the queue.
			pinged := func(cancellations int) string {
				for range cancellations {
					contains(t, "queue", (<-c.input.messages).text(), "notifications/cancelled")
				}
				ping := (<-c.input.messages).text()
				contains(t, "queue", ping, `"method":"ping"`)
				equal(t, "further messages", len(c.input.messages), 0)
				return idOf(t, ping)
			}
			answer := func(id string) {
				answer := `{"jsonrpc":"2.0","id":` + id + `,"error":{"code":-32601,"message":"no"}}`
				newReceiver(c).deliverResponse(message(t, answer), nil)
			}
			doubtful := func(want bool) {
				t.Helper()
				c.calls.noteRead()
				found, doubtful := c.calls.infer()
				equal(t, "doubtful", doubtful, want)
				equal(t, "found", found == other, !want)
			}
			first := begin(&call{session: s, inbox: newInbox("", maxUnread)})
			begin(other)
			end(c, first)
			doubtful(true)
			ping := pinged(1)
			end(c, begin(&call{session: s, inbox: newInbox("", maxUnread)})) // before the response to the ping
			contains(t, "queue", (<-c.input.messages).text(), "notifications/cancelled")
			equal(t, "further messages", len(c.input.messages), 0)
			answer(ping)
			doubtful(true) // because of the second call
			answer(pinged(0))
			doubtful(false)
			equal(t, "further messages", len(c.input.messages), 0)
		})
	}
}

// A ping that does not fit in the queue may reach the child before the canceled call. The response
// to it proves nothing.
func TestOverflowPingsAreIgnored(t *testing.T) {
	s, c := newTestChild(t)
	c.input.overflow = make(chan frame, 4)
	canceled, other := &call{
		session: s,
		inbox:   newInbox("", 1),
		queued:  true,
	}, &call{
		session: new(session),
		inbox:   newInbox("", 1),
	}
	for _, call := range []*call{canceled, other} {
		if err := c.calls.register(call); err != nil {
			t.Fatal(err)
		}
	}
	c.calls.noteRead()
	c.input.messages = make(chan frame, 1) // has room for the cancellation only
	c.cancel(canceled, "x")
	equal(t, "overflow", len(c.input.overflow), 1)
	ping := []byte(idOf(t, (<-c.input.overflow).text()))
	equal(t, "response to the ping accepted", c.calls.abandoned.takePong(ping), false)
	_, doubtful := c.calls.infer()
	equal(t, "doubtful", doubtful, true)
}

// A child that sends server requests in canceled calls is detected if it has no other call at that
// time. Then a response to a ping does not end doubts.
func TestServerRequestsInCanceledCalls(t *testing.T) {
	for _, late := range []bool{false, true} {
		s, c := newTestChild(t)
		end := func() {
			canceled := &call{session: s, inbox: newInbox("", 1), queued: true}
			if err := c.calls.register(canceled); err != nil {
				t.Fatal(err)
			}
			c.calls.noteRead()
			c.cancel(canceled, "x")
			contains(t, "queue", (<-c.input.messages).text(), "notifications/cancelled")
			ping := idOf(t, (<-c.input.messages).text())
			newReceiver(c).deliverResponse(message(t, `{"jsonrpc":"2.0","id":`+ping+`,"result":{}}`), nil)
		}
		end()
		if late {
			newReceiver(c).handleServerRequest(asks(t, "sampling/createMessage"))
			contains(t, "refused", (<-c.input.messages).text(), `"error"`)
		}
		end()
		other := &call{session: new(session), inbox: newInbox("", 1)}
		if err := c.calls.register(other); err != nil {
			t.Fatal(err)
		}
		c.calls.noteRead()
		_, doubtful := c.calls.infer()
		equal(t, "doubtful", doubtful, late)
	}
}

func TestRootsRequestedDuringInitialize(t *testing.T) { // A25
	t.Run("wait for the stream of a session", func(t *testing.T) {
		p := newPool(t, "--roots-at-init", perSession)
		c := p.client().initialize(`{"roots":{}}`)
		stream := c.listen()
		defer stream.Body.Close()
		req := stream.next()
		contains(t, "server request", req, `"roots/list"`)
		c.post(result(idOf(t, req), `{"roots":[]}`))
		c.call("echo", `{}`)
		contains(t, "messages to the child", p.messages(), `"id":0,"result":{"roots":[]}`)
	})
	t.Run("are answered at once without a session", func(t *testing.T) {
		p := newPool(t, "--roots-at-init", func(c *Config) { c.Roots = []string{"file:///r"} })
		p.client().call("echo", `{}`)
		p.eventually(
			"the child receives roots",
			func() bool { return strings.Contains(p.messages(), `"result":{"roots":[{"uri":"file:///r"}]}`) },
		)
	})
}

// messages returns all messages that children have received so far.
func (p *testPool) messages() string {
	var all strings.Builder
	for _, e := range p.read() {
		all.Write(e.Message)
	}
	return all.String()
}

func TestClientsLeaveDuringServerRequests(t *testing.T) {
	p := newPuppets(t)
	c := p.client().initialize(`{"sampling":{}}`)
	stay := p.client()
	heard := func() string { return stay.post(request(`1`, "heard", `{}`)).whole() }

	r := c.post(say(`1`, `{"id":"a","method":"sampling/createMessage"}`+"\n"))
	req := r.next()
	r.Body.Close()
	contains(t, "after a disconnect", heard(), `\"id\":\"a\",\"error\":{\"code\":-32603`)
	equal(t, "late response", c.post(result(idOf(t, req), `1`)).StatusCode, http.StatusBadRequest)

	r = c.post(say(`1`, `{"id":"c","method":"sampling/createMessage"}`+"\n"))
	contains(t, "server request", r.next(), "sampling")
	if _, err := c.do(http.MethodDelete, ""); err != nil {
		t.Fatal(err)
	}
	contains(t, "after the end of the session", heard(), `\"id\":\"c\",\"error\":{\"code\":-32603`)
	r.Body.Close()

	p = newPuppets(t)
	stay = p.client()
	c = p.client().initialize(`{"sampling":{}}`)
	r = c.post(say(`"d"`, `{"id":"d","method":"sampling/createMessage"}`+"\n"+`{"id":$ID,"result":1}`+"\n"))
	req = r.next()
	contains(t, "server request", req, "sampling")
	equal(t, "answer", r.next(), `{"id":"d","result":1}`)
	r.Body.Close()
	equal(
		t,
		"client's response after the end of the call",
		c.post(result(idOf(t, req), `"still"`)).StatusCode,
		http.StatusAccepted,
	)
	contains(t, "after the end of the call", heard(), `\"id\":\"d\",\"result\":\"still\"`)

	c.post(
		say(
			`"e"`,
			`{"method":"notifications/message","params":{}}`+"\n"+
				`{"id":"e","method":"sampling/createMessage"}`+"\n"+`{"id":$ID,"result":1}`+"\n",
		),
	).Body.Close()
	p.eventually("an unread server request is refused", func() bool {
		return strings.Contains(heard(), `\"id\":\"e\",\"error\":{\"code\":-32603`)
	})
	equal(t, "open server requests", len(c.poolSession(p).serverRequests.open), 0)
}

func TestServerRequestsAreLimited(t *testing.T) {
	p := newPuppets(t)
	c := p.client().initialize(`{"sampling":{}}`)
	asked := strings.Repeat(`{"id":"q","method":"sampling/createMessage"}`+"\n", maxServerRequests+1)
	r := c.post(say(`1`, asked+`{"id":$ID,"result":1}`+"\n"))
	for range maxServerRequests {
		contains(t, "server request", r.next(), "sampling")
	}
	equal(t, "response", r.next(), `{"id":1,"result":1}`)
	contains(t, "server request beyond the limit", c.post(request(`1`, "heard", `{}`)).whole(), "too many open requests")
}

// Calls fill the queue of a child that does not read. The response to a server request must still
// reach it.
func TestResponsesReachBusyChildren(t *testing.T) {
	p := newPuppets(t)
	p.client().post(request(`1`, "heard", `{}`)).whole()
	s, err := p.sharedServer("alpha:1", nil, "")
	if err != nil {
		t.Fatal(err)
	}
	c := newChild(s, s.child.process)
	c.input.messages, c.input.overflow = make(chan frame, 1), make(chan frame, 1)
	c.input.trySend([]byte("{}"))
	c.input.trySend([]byte("{}"))
	equal(t, "queue", len(c.input.messages)+len(c.input.overflow), 2)
	equal(t, "dropped", p.dropped, 0)
	c.input.trySend([]byte("{}"))
	equal(t, "dropped", p.dropped, 1)
}

// The client leaves after the gateway has chosen its call for a server request, and before the
// request is sent.
func TestNoServerRequestsOnAbandonedCalls(t *testing.T) {
	s, c := newTestChild(t)
	asked := &call{session: s, inbox: newInbox("", maxUnread), queued: true}
	if err := c.calls.register(asked); err != nil {
		t.Fatal(err)
	}
	c.calls.noteRead()
	found, _ := c.calls.infer()
	equal(t, "found", found, asked)
	c.cancel(asked, "x")
	s.serverRequests.forward(c, found, asks(t, "sampling/createMessage"))
	contains(t, "first", (<-c.input.messages).text(), "notifications/cancelled")
	contains(t, "then", (<-c.input.messages).text(), `"method":"ping"`)
	contains(t, "last", (<-c.input.messages).text(), `"id":"q","error":{"code":-32603`)
	equal(t, "open server requests", len(s.serverRequests.open), 0)
}

// A sole client that initializes again listens with its latest session.
func TestASoleClientInitializesAgain(t *testing.T) {
	p := newPuppets(t, func(c *Config) { c.SoleClient = true })
	before := p.client().initialize(`{"roots":{}}`)
	writeBetweenCalls(before, "\n")
	c := p.client().initialize(`{"roots":{}}`)
	stream := c.listen()
	defer stream.Body.Close()
	writeBetweenCalls(c, `{"jsonrpc":"2.0","id":"theirs","method":"roots/list"}`+"\n")
	contains(t, "between calls", stream.next(), "roots/list")
	r := c.post(say(`1`, `{"jsonrpc":"2.0","id":"more","method":"roots/list"}`+"\n"))
	defer r.Body.Close()
	contains(t, "within a call", r.next(), "roots/list")
	equal(t, "started", len(p.started), 1)
}

// answering answers roots/list and drops sampling/createMessage.
func answering(method string) (result []byte, ours bool) {
	switch method {
	case "roots/list":
		return RootsResult([]string{"file:///w"}), true
	case "sampling/createMessage":
		return nil, true
	}
	return nil, false
}

func TestServerRequestsAreAnsweredLocally(t *testing.T) { // A59
	const roots = `{"roots":[{"uri":"file:///w"}]}`
	for _, tt := range []struct{ name, capabilities, method, want string }{
		{"roots without a session", "", "roots/list", roots},
		{"roots in a session", `{}`, "roots/list", roots},
		{"roots in the session of a client with roots", `{"roots":{}}`, "roots/list", roots},
		{"a dropped method without a session", "", "sampling/createMessage", `"code":-32601`},
		{"a dropped method that the client supports", `{"sampling":{}}`, "sampling/createMessage",
			`"code":-32601`},
		{"a method that is not answered here", "", "elicitation/create", `"code":-32601`},
	} {
		for name, change := range map[string]func(*Config){"": func(*Config) {}, ", with its own child": perSession} {
			t.Run(tt.name+name, func(t *testing.T) {
				p := newPool(t, "", change, func(c *Config) { c.Roots = []string{"file:///other"} })
				p.AnswerWith("alpha:1", answering)
				c := p.client()
				if tt.capabilities != "" {
					c.initialize(tt.capabilities)
				}
				contains(t, "answer", c.call("ask", `{"method":"`+tt.method+`"}`), tt.want)
			})
		}
	}
	t.Run("a server request for the client", func(t *testing.T) {
		p := newPool(t, "")
		p.AnswerWith("alpha:1", answering)
		c := p.client().initialize(`{"elicitation":{}}`)
		r := c.post(toolCall(`1`, "ask", `{"method":"elicitation/create"}`))
		req := r.next()
		contains(t, "server request", req, `"elicitation/create"`)
		c.post(result(idOf(t, req), `{"action":"decline"}`))
		contains(t, "answer", r.last(), "decline")
	})
	t.Run("roots requested during the handshake", func(t *testing.T) {
		p := newPool(t, "--roots-at-init", perSession)
		p.AnswerWith("alpha:1", answering)
		p.client().initialize(`{"roots":{}}`).call("echo", `{}`)
		p.eventually("the child receives roots", func() bool { return strings.Contains(p.messages(), `"result":`+roots) })
	})
	t.Run("another host", func(t *testing.T) {
		p := newPool(t, "")
		p.AnswerWith("beta:1", answering)
		contains(t, "answer", p.client().call("ask", `{"method":"roots/list"}`), `{"roots":[]}`)
	})
	t.Run("after the last release", func(t *testing.T) {
		p := newPool(t, "")
		release, other := p.AnswerWith("alpha:1", answering), p.AnswerWith("alpha:1", answering)
		release()
		release()
		contains(t, "answer", p.client().call("ask", `{"method":"roots/list"}`), roots)
		other()
		contains(t, "answer", p.client().call("ask", `{"method":"roots/list"}`), `{"roots":[]}`)
	})
	t.Run("during concurrent changes", func(t *testing.T) {
		p := newPool(t, "")
		c := p.client()
		var changes sync.WaitGroup
		changes.Go(func() {
			for range 100 {
				p.AnswerWith("alpha:1", answering)()
			}
		})
		c.call("ask", `{"method":"roots/list"}`)
		changes.Wait()
	})
}

// A large response allocates twice its size: once in the buffer of an unfinished line, once for the
// complete line.
func TestMemoryOfLargeResponses(t *testing.T) {
	const size = 32 << 20
	for name, raw := range map[string]string{
		"JSON":     "",
		"an event": `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}` + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			p := newPuppets(t, func(config *Config) { config.MaxMessage = 2 * size })
			c := p.client().initialize("{}")
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			r := c.post(request(`"theirs"`, "fill", fmt.Sprintf(`{"code":%d,"raw":%s}`, size, quote(raw))))
			n, err := io.Copy(io.Discard, r.Body)
			runtime.ReadMemStats(&after)
			r.Body.Close()
			if err != nil || n < size {
				t.Fatalf("got %d bytes, %v", n, err)
			}
			if times := float64(after.TotalAlloc-before.TotalAlloc) / size; times > 2.2 {
				t.Errorf("allocated %.1f times the size of the response", times)
			}
		})
	}
}
