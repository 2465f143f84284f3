package stdio

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// idOf returns the literal of a message's id.
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

func TestQuestionsOnTheStreamOfACall(t *testing.T) { // A23, A24
	p := newPool(t, "", perSession)
	c := p.client().initialize(`{"roots":{},"sampling":{},"elicitation":{}}`)
	for _, method := range []string{"roots/list", "sampling/createMessage", "elicitation/create", "their/own"} {
		t.Run(method, func(t *testing.T) {
			r := c.post(toolCall(`1`, "ask", `{"method":"`+method+`","params":{"x":1.0}}`))
			question := r.next()
			contains(t, "question", question, `"method":"`+method+`","params":{"x":1.0}}`)
			answer := c.post(result(idOf(t, question), `{"secret" : 1.0}`))
			equal(t, "status", answer.StatusCode, http.StatusAccepted)
			equal(t, "their text", r.text(), `{"secret" : 1.0}`)
			equal(t, "again", c.post(result(idOf(t, question), `{}`)).StatusCode, http.StatusBadRequest)
		})
	}
	t.Run("an error is an answer", func(t *testing.T) {
		r := c.post(toolCall(`1`, "ask-roots", `{}`))
		c.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-1,"message":"no"}}`, idOf(t, r.next())))
		equal(t, "their text", r.text(), `{"code":-1,"message":"no"}`)
	})
	t.Run("the latest call of a client is asked on", func(t *testing.T) {
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
		equal(t, "their text", r.text(), `{"x":[]}`)
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
			r := c.post(toolCall(`1`, "ask", `{"method":"sampling/createMessage"}`)) // the first question of both
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

func TestQuestionsThatNoClientAnswers(t *testing.T) { // A25, A59
	withRoots := func(c *Config) { c.Roots = []string{"file:///a b", "file:///c"} }
	const roots = `{"roots":[{"uri":"file:///a b"},{"uri":"file:///c"}]}`
	tests := []struct {
		name         string
		change       func(*Config)
		capabilities string // "" is no session
		method       string
		want         string
	}{
		{"roots without a session are configured", withRoots, "", "roots/list", roots},
		{"roots of a client that has none are configured", withRoots, `{"sampling":{}}`, "roots/list", roots},
		{"roots are empty by default", func(*Config) {}, "", "roots/list", `{"roots":[]}`},
		{
			"roots of a client that has none are refused if none are configured",
			func(*Config) {},
			`{}`,
			"roots/list",
			`"code":-32601`,
		},
		{"roots of a client are not those of all if some are configured", withRoots, `{"roots":{}}`, "roots/list", roots},
		{"a capability that is no object is none", func(*Config) {}, `{"roots":true}`, "roots/list", `"code":-32601`},
		{"sampling without a session is refused", withRoots, "", "sampling/createMessage", `"code":-32601`},
		{"sampling without the capability is refused", withRoots, `{"roots":{}}`, "sampling/createMessage", `"code":-32601`},
		{"an unknown question without a session is refused", withRoots, "", "their/own", `"code":-32601`},
		{"a ping is answered", withRoots, "", "ping", `{}`},
		{"a ping is answered here", withRoots, `{}`, "ping", `{}`},
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

// A shared child that received the roots of a client may keep them. It serves no other
// client, and ends when it has answered that one.
func TestRootsOfOneClient(t *testing.T) { // A23
	p := newPool(t, "")
	c, other := p.client().initialize(`{"roots":{}}`), p.client().initialize(`{"roots":{}}`)
	shared := other.call("pid", `{}`)
	r := c.post(toolCall(`1`, "ask-roots", `{}`))
	question := r.next()
	contains(t, "question", question, `"roots/list"`)
	another := other.call("pid", `{}`)
	if another == shared {
		t.Error("the other client is served by the child that received the roots")
	}
	equal(t, "without a session", p.client().call("pid", `{}`), another)
	equal(t, "the client itself", c.call("pid", `{}`), another)
	equal(
		t,
		"status",
		c.post(result(idOf(t, question), `{"roots":[{"uri":"file:///mine"}]}`)).StatusCode,
		http.StatusAccepted,
	)
	equal(t, "their text", r.text(), `{"roots":[{"uri":"file:///mine"}]}`)
	pid, err := strconv.Atoi(shared)
	if err != nil {
		t.Fatal(err)
	}
	p.eventually("the child that received them has ended", func() bool { return !exists(pid) })

	t.Run("not while another has a call there", func(t *testing.T) {
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
	t.Run("a call that is cancelled", func(t *testing.T) {
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
			t.Error("the same child serves")
		}
	})
}

func TestQuestionsInDoubtAreRefused(t *testing.T) {
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
	equal(t, "asked on the other's stream", len(other.known(p).serverRequests), 0)
}

// known returns what the pool knows of a client.
func (c *client) known(p *testPool) *session {
	p.Pool.mu.Lock()
	defer p.Pool.mu.Unlock()
	return p.sessions[c.session]
}

const askedBetweenCalls = `{"jsonrpc":"2.0","id":"theirs","method":"sampling/createMessage","params":{}}` + "\n"

// untold has a puppet ask something after the answer to the call has gone out, and
// so with no call in flight.
func untold(c *client, raw string) {
	c.post(say(`1`, `{"id":$ID,"result":1}`+"\n"+raw)).whole()
}

func TestQuestionsOnTheStreamOfASession(t *testing.T) {
	p := newPuppets(t, perSession)
	c := p.client().initialize(`{"sampling":{}}`)
	heard := func() string { return c.post(request(`1`, "heard", `{}`)).whole() }
	stream := c.listen()

	untold(c, askedBetweenCalls)
	question := stream.next()
	contains(t, "question", question, `"method":"sampling/createMessage","params":{}}`)
	equal(t, "without a session", p.client().post(result(idOf(t, question), `1`)).StatusCode, http.StatusBadRequest)
	equal(t, "status", c.post(result(idOf(t, question), `{"x":1}`)).StatusCode, http.StatusAccepted)
	contains(t, "heard", heard(), `\"id\":\"theirs\",\"result\":{\"x\":1}`)

	t.Run("that are long", func(t *testing.T) {
		long := strings.Repeat("x", 100_000)
		untold(c, `{"id":5,"method":"sampling/createMessage","params":"`+long+`"}`+"\n")
		contains(t, "question", stream.next(), long)
	})
	t.Run("that are taken back", func(t *testing.T) {
		untold(c, strings.ReplaceAll(askedBetweenCalls, "theirs", "regretted"))
		question := stream.next()
		untold(c, notification("notifications/cancelled", `{"requestId":"regretted","reason":"x"}`)+"\n")
		equal(
			t,
			"taken back",
			stream.next(),
			notification("notifications/cancelled", `{"requestId":`+idOf(t, question)+
				`,"reason":"x"}`),
		)
		equal(t, "too late", c.post(result(idOf(t, question), `1`)).StatusCode, http.StatusBadRequest)
		if strings.Contains(heard(), `\"id\":\"regretted\",\"result`) {
			t.Error("answered nevertheless")
		}
	})
	t.Run("that the client does not support are refused", func(t *testing.T) {
		untold(c, `{"id":"e","method":"elicitation/create"}`+"\n")
		p.eventually(
			"it is refused",
			func() bool {
				return strings.Contains(heard(), `\"id\":\"e\",`+
					`\"error\":{\"code\":-32601`)
			},
		)
	})
	t.Run("that wait for a stream", func(t *testing.T) {
		stream.Body.Close()
		untold(c, strings.ReplaceAll(askedBetweenCalls, "theirs", "lonely"))
		stream = c.listen()
		contains(t, "question", stream.next(), "sampling/createMessage")
	})
	stream.Body.Close()
}

// TestQuestionsDoNotWaitForEver: a client that never opens its stream is answered
// for.
// loose returns a session and a child without a process: its queue shows what would be sent to it.
func loose(t *testing.T) (*session, *child) {
	t.Helper()
	p := NewPool(Config{SessionTTL: 24 * time.Hour, MaxSessions: 1, Framing: Newline, Roots: []string{"file:///r"}}, nil)
	s := p.open(new(jsonrpc.Message), "alpha:1", "")
	if s == nil {
		t.Fatal("there is no room")
	}
	s.release() // what has opened it
	t.Cleanup(p.Close)
	return s, &child{
		process: &process{exited: make(chan struct{})},
		server:  newServer(p, address{"alpha:1", mcp.Legacy, s.group}, nil),
		queue:   make(chan frame, 4),
		calls:   map[uint64]*call{},
	}
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

// answers reports whether the client's response to its nth server request is accepted.
func (s *session) answers(t *testing.T, n int) bool {
	t.Helper()
	return s.answerServerRequest(t.Context(), message(t, result(fmt.Sprint(n), `1`)))
}

// askOnCall asks on the stream of a call whose answer comes right after it.
func askOnCall(t *testing.T, s *session, c *child, method string) {
	t.Helper()
	asked := &call{session: s, inbox: newInbox("", maxUnread)}
	if err := c.register(asked); err != nil {
		t.Fatal(err)
	}
	s.forwardServerRequest(c, asked, asks(t, method))
	asked.inbox.Take() // and so the client has it
	c.takeCall(fmt.Append(nil, asked.id))
}

func TestQuestionsDoNotWaitForEver(t *testing.T) { // A25
	for _, tt := range []struct {
		name, method string
		ask          func(t *testing.T, s *session, c *child, method string)
		want         string
	}{
		{"roots, with no stream", "roots/list", func(t *testing.T, s *session, c *child, method string) {
			s.forwardServerRequest(c, nil, asks(t, method))
		}, `"result":{"roots":[{"uri":"file:///r"}]}}`},
		{"a sample, with no stream", "sampling/createMessage", func(t *testing.T, s *session, c *child, method string) {
			s.forwardServerRequest(c, nil, asks(t, method))
		}, `"error":{"code":-32603,"message":"the client has no open stream"}}`},
		{"a sample, after the end of its stream", "sampling/createMessage", func(t *testing.T, s *session, c *child,
			method string) {
			s.use()
			s.forwardServerRequest(c, nil, asks(t, method))
			s.streamInbox.Take()
			time.Sleep(time.Hour) // as people may
			equal(t, "while the stream is open", len(c.queue), 0)
			s.release()
		}, `"error":{"code":-32603,"message":"the client has left"}}`},
		{"a sample, after the end of its call", "sampling/createMessage", askOnCall,
			`"error":{"code":-32603,"message":"the client has left"}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, c := loose(t)
				tt.ask(t, s, c, tt.method)
				time.Sleep(serverRequestTime - time.Second)
				equal(t, "at once", len(c.queue), 0)
				time.Sleep(2 * time.Second)
				equal(t, "answer", strings.TrimSpace((<-c.queue).text()), `{"jsonrpc":"2.0","id":"q",`+tt.want)
				equal(t, "open questions", len(s.serverRequests), 0)
			})
		})
	}
}

func TestQuestionsWaitForWhoIsThere(t *testing.T) {
	t.Run("each for its own time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, c := loose(t)
			askOnCall(t, s, c, "sampling/createMessage")
			equal(t, "the first", s.answers(t, 1), true)
			time.Sleep(serverRequestTime - time.Second)
			askOnCall(t, s, c, "sampling/createMessage")
			time.Sleep(serverRequestTime - time.Second)
			equal(t, "the second", s.answers(t, 2), true)
		})
	})
	t.Run("a client with another call in flight", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, c := loose(t)
			s.use()
			askOnCall(t, s, c, "elicitation/create")
			time.Sleep(time.Hour)
			equal(t, "an answer", s.answers(t, 1), true)
			s.release()
		})
	})
}

// TestQuestionsThatNobodyHasRead: the client leaves while the answer to its call is on
// its way. It still has another stream, on which these questions are not.
func TestQuestionsThatNobodyHasRead(t *testing.T) {
	t.Run("in the inbox", func(t *testing.T) {
		s, c := loose(t)
		s.use()
		asked := &call{session: s, inbox: newInbox("", maxUnread)}
		if err := c.register(asked); err != nil {
			t.Fatal(err)
		}
		s.forwardServerRequest(c, asked, asks(t, "sampling/createMessage"))
		c.takeCall([]byte("1"))
		c.cancel(asked, "it has left")
		asked.inbox.End(letter{message: frame{[]byte("{}")}})
		contains(t, "told", (<-c.queue).text(), `"id":"q","error":{"code":-32603`)
		equal(t, "open questions", len(s.serverRequests), 0)
	})
	t.Run("in the buffer of the stream", func(t *testing.T) {
		p := newPuppets(t)
		c := p.client().initialize(`{"sampling":{}}`)
		stream := c.listen()
		defer stream.Body.Close()
		r := c.post(say(`1`, `{"id":"b","method":"sampling/createMessage"}`+"\n"+`{"id":$ID,"result":1}`+"\n"))
		p.inFlightIs(0)
		r.Body.Close()
		contains(t, "told", p.client().post(request(`1`, "heard", `{}`)).whole(), `\"id\":\"b\",\"error\"`)
		equal(t, "open questions", len(c.known(p).serverRequests), 0)
	})
}

// TestAnAnswerThatCannotBeSent: the child gets one nevertheless.
func TestAnAnswerThatCannotBeSent(t *testing.T) {
	s, c := loose(t)
	c.queue, c.overflow = make(chan frame), make(chan frame, 1) // the queue is full
	s.forwardServerRequest(c, nil, asks(t, "sampling/createMessage"))
	ctx, leave := context.WithCancel(t.Context())
	leave()
	equal(t, "it was asked", s.answerServerRequest(ctx, message(t, result(`1`, `"mine"`))), true)
	contains(t, "told", (<-c.overflow).text(), `"id":"q","error":{"code":-32603`)
}

// TestACallThatWasGivenUpRaisesDoubts: the child may not have heard yet that its
// client has left, and what it asks may be that one's business. The puppet answers no
// pings.
func TestACallThatWasGivenUpRaisesDoubts(t *testing.T) {
	p := newPuppets(t)
	gone := p.client().initialize(`{"sampling":{}}`)
	c := p.client().initialize(`{"sampling":{}}`)
	r := gone.post(say(`1`, `{"id":"a","method":"sampling/createMessage","params":"$ID"}`+"\n"))
	number := r.next() // which tells the id that the child knows
	number = number[strings.Index(number, `"params":"`)+len(`"params":"`):]
	number = number[:strings.Index(number, `"`)]
	r.Body.Close()

	ask := `{"id":"b","method":"sampling/createMessage"}` + "\n"
	equal(t, "alone", c.post(say(`1`, ask+`{"id":$ID,"result":1}`+"\n")).whole(), `{"id":1,"result":1}`)
	contains(t, "refused", c.post(request(`1`, "heard", `{}`)).whole(), `\"id\":\"b\",\"error\":{\"code\":-32601`)

	// Its late answer puts an end to that.
	r = c.post(say(`1`, `{"id":`+number+`,"result":0}`+"\n"+ask+`{"id":$ID,"result":1}`+"\n"))
	contains(t, "question", r.next(), "sampling/createMessage")
	r.Body.Close()
}

// TestDoubtsEndWithAPing: when the child answers a ping that was sent after a
// cancellation, it has read that, and the call is over.
func TestDoubtsEndWithAPing(t *testing.T) {
	for name, end := range map[string]func(c *child, call *call){
		"canceled":        func(c *child, call *call) { c.cancel(call, "x") },
		"the client left": func(c *child, call *call) { c.giveUp(call, context.Canceled) },
	} {
		t.Run(name, func(t *testing.T) {
			s, c := loose(t)
			other := &call{session: new(session), inbox: newInbox("", maxUnread)}
			begin := func(call *call) *call {
				call.queued = true
				if err := c.register(call); err != nil {
					t.Fatal(err)
				}
				c.noteRead()
				return call
			}
			// pinged returns the id of the ping that is in the queue.
			pinged := func(cancellations int) string {
				for range cancellations {
					contains(t, "queue", (<-c.queue).text(), "notifications/cancelled")
				}
				ping := (<-c.queue).text()
				contains(t, "queue", ping, `"method":"ping"`)
				equal(t, "more", len(c.queue), 0)
				return idOf(t, ping)
			}
			answer := func(id string) {
				c.deliverResponse(message(t, `{"jsonrpc":"2.0","id":`+id+`,"error":{"code":-32601,"message":"no"}}`), nil)
			}
			doubtful := func(want bool) {
				t.Helper()
				c.noteRead()
				found, doubtful := c.inferCall()
				equal(t, "doubtful", doubtful, want)
				equal(t, "found", found == other, !want)
			}
			first := begin(&call{session: s, inbox: newInbox("", maxUnread)})
			begin(other)
			end(c, first)
			doubtful(true)
			ping := pinged(1)
			end(c, begin(&call{session: s, inbox: newInbox("", maxUnread)})) // while the ping is under way
			contains(t, "queue", (<-c.queue).text(), "notifications/cancelled")
			equal(t, "more", len(c.queue), 0)
			answer(ping)
			doubtful(true) // of the second one
			answer(pinged(0))
			doubtful(false)
			equal(t, "more", len(c.queue), 0)
		})
	}
}

// TestPingsThatOvertakeShowNothing: what does not fit into the queue may reach the child
// before the call that it cancels.
func TestPingsThatOvertakeShowNothing(t *testing.T) {
	s, c := loose(t)
	c.overflow = make(chan frame, 4)
	canceled, other := &call{
		session: s,
		inbox:   newInbox("", 1),
		queued:  true,
	}, &call{
		session: new(session),
		inbox:   newInbox("", 1),
	}
	for _, call := range []*call{canceled, other} {
		if err := c.register(call); err != nil {
			t.Fatal(err)
		}
	}
	c.noteRead()
	c.queue = make(chan frame, 1) // there is room for the cancellation alone
	c.cancel(canceled, "x")
	equal(t, "aside", len(c.overflow), 1)
	equal(t, "an answer to it", c.takePong([]byte(idOf(t, (<-c.overflow).text()))), false)
	_, doubtful := c.inferCall()
	equal(t, "doubtful", doubtful, true)
}

// TestAChildThatAsksInCanceledCalls: it is found out if it does while there is no other
// call, and then doubts last their time.
func TestAChildThatAsksInCanceledCalls(t *testing.T) {
	for _, late := range []bool{false, true} {
		s, c := loose(t)
		end := func() {
			canceled := &call{session: s, inbox: newInbox("", 1), queued: true}
			if err := c.register(canceled); err != nil {
				t.Fatal(err)
			}
			c.noteRead()
			c.cancel(canceled, "x")
			contains(t, "queue", (<-c.queue).text(), "notifications/cancelled")
			c.deliverResponse(message(t, `{"jsonrpc":"2.0","id":`+idOf(t, (<-c.queue).text())+`,"result":{}}`), nil)
		}
		end()
		if late {
			c.handleServerRequest(asks(t, "sampling/createMessage"))
			contains(t, "refused", (<-c.queue).text(), `"error"`)
		}
		end()
		other := &call{session: new(session), inbox: newInbox("", 1)}
		if err := c.register(other); err != nil {
			t.Fatal(err)
		}
		c.noteRead()
		_, doubtful := c.inferCall()
		equal(t, "doubtful", doubtful, late)
	}
}

func TestRootsAskedForBeforeTheClientIsReady(t *testing.T) { // A25
	t.Run("are held for the stream of a session", func(t *testing.T) {
		p := newPool(t, "--roots-at-init", perSession)
		c := p.client().initialize(`{"roots":{}}`)
		stream := c.listen()
		defer stream.Body.Close()
		question := stream.next()
		contains(t, "question", question, `"roots/list"`)
		c.post(result(idOf(t, question), `{"roots":[]}`))
		c.call("echo", `{}`)
		contains(t, "the child has them", p.messages(), `"id":0,"result":{"roots":[]}`)
	})
	t.Run("are answered at once if there is no session", func(t *testing.T) {
		p := newPool(t, "--roots-at-init", func(c *Config) { c.Roots = []string{"file:///r"} })
		p.client().call("echo", `{}`)
		p.eventually(
			"the child has its roots",
			func() bool { return strings.Contains(p.messages(), `"result":{"roots":[{"uri":"file:///r"}]}`) },
		)
	})
}

// messages returns all that children have received by now.
func (p *testPool) messages() string {
	var all strings.Builder
	for _, e := range p.read() {
		all.Write(e.Message)
	}
	return all.String()
}

func TestClientsLeaveWhileAsked(t *testing.T) {
	p := newPuppets(t)
	c := p.client().initialize(`{"sampling":{}}`)
	stay := p.client()
	heard := func() string { return stay.post(request(`1`, "heard", `{}`)).whole() }

	r := c.post(say(`1`, `{"id":"a","method":"sampling/createMessage"}`+"\n"))
	question := r.next()
	r.Body.Close()
	contains(t, "after a hang-up", heard(), `\"id\":\"a\",\"error\":{\"code\":-32603`)
	equal(t, "too late", c.post(result(idOf(t, question), `1`)).StatusCode, http.StatusBadRequest)

	r = c.post(say(`1`, `{"id":"c","method":"sampling/createMessage"}`+"\n"))
	contains(t, "question", r.next(), "sampling")
	if _, err := c.do(http.MethodDelete, ""); err != nil {
		t.Fatal(err)
	}
	contains(t, "after the end of the session", heard(), `\"id\":\"c\",\"error\":{\"code\":-32603`)
	r.Body.Close()

	p = newPuppets(t)
	stay = p.client()
	c = p.client().initialize(`{"sampling":{}}`)
	r = c.post(say(`"d"`, `{"id":"d","method":"sampling/createMessage"}`+"\n"+`{"id":$ID,"result":1}`+"\n"))
	question = r.next()
	contains(t, "question", question, "sampling")
	equal(t, "answer", r.next(), `{"id":"d","result":1}`)
	r.Body.Close()
	equal(
		t,
		"a reply after the end of the call",
		c.post(result(idOf(t, question), `"still"`)).StatusCode,
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
	p.eventually("a question that was never read is refused", func() bool {
		return strings.Contains(heard(), `\"id\":\"e\",\"error\":{\"code\":-32603`)
	})
	equal(t, "open questions", len(c.known(p).serverRequests), 0)
}

func TestQuestionsAreBounded(t *testing.T) {
	p := newPuppets(t)
	c := p.client().initialize(`{"sampling":{}}`)
	asked := strings.Repeat(`{"id":"q","method":"sampling/createMessage"}`+"\n", maxServerRequests+1)
	r := c.post(say(`1`, asked+`{"id":$ID,"result":1}`+"\n"))
	for range maxServerRequests {
		contains(t, "question", r.next(), "sampling")
	}
	equal(t, "then", r.next(), `{"id":1,"result":1}`)
	contains(t, "one too many", c.post(request(`1`, "heard", `{}`)).whole(), "too many open requests")
}

// TestAQuestionIsAnsweredHoweverBusyTheChildIs: calls fill the queue to a child
// that does not read, and the answer to what it asks must get through.
func TestAQuestionIsAnsweredHoweverBusyTheChildIs(t *testing.T) {
	p := newPuppets(t)
	p.client().post(request(`1`, "heard", `{}`)).whole()
	s, err := p.sharedServer("alpha:1", nil, "")
	if err != nil {
		t.Fatal(err)
	}
	c := &child{process: s.child.process, server: s, queue: make(chan frame, 1), overflow: make(chan frame, 1)}
	c.trySend([]byte("{}"))
	c.trySend([]byte("{}"))
	equal(t, "queue", len(c.queue)+len(c.overflow), 2)
	equal(t, "dropped", p.dropped, 0)
	c.trySend([]byte("{}"))
	equal(t, "dropped", p.dropped, 1)
}

// TestNothingIsAskedOnACallThatWasGivenUp: the client leaves between the moment in
// which its call is found to be asked on and the question.
func TestNothingIsAskedOnACallThatWasGivenUp(t *testing.T) {
	s, c := loose(t)
	asked := &call{session: s, inbox: newInbox("", maxUnread), queued: true}
	if err := c.register(asked); err != nil {
		t.Fatal(err)
	}
	c.noteRead()
	found, _ := c.inferCall()
	equal(t, "found", found, asked)
	c.cancel(asked, "x")
	s.forwardServerRequest(c, found, asks(t, "sampling/createMessage"))
	contains(t, "first", (<-c.queue).text(), "notifications/cancelled")
	contains(t, "then", (<-c.queue).text(), `"method":"ping"`)
	contains(t, "at last", (<-c.queue).text(), `"id":"q","error":{"code":-32603`)
	equal(t, "open questions", len(s.serverRequests), 0)
}

// TestASoleClientInitializesAgain: all sessions are its own, and it listens with the
// latest.
func TestASoleClientInitializesAgain(t *testing.T) {
	p := newPuppets(t, func(c *Config) { c.SoleClient = true })
	before := p.client().initialize(`{"roots":{}}`)
	untold(before, "\n")
	c := p.client().initialize(`{"roots":{}}`)
	stream := c.listen()
	defer stream.Body.Close()
	untold(c, `{"jsonrpc":"2.0","id":"theirs","method":"roots/list"}`+"\n")
	contains(t, "between calls", stream.next(), "roots/list")
	r := c.post(say(`1`, `{"jsonrpc":"2.0","id":"more","method":"roots/list"}`+"\n"))
	defer r.Body.Close()
	contains(t, "within a call", r.next(), "roots/list")
	equal(t, "started", len(p.started), 1)
}
