package gateway

import (
	"maps"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// A question is one that a client has been asked.
type question struct {
	hearing *streamable.Reader      // the call that waits for the answer; or
	answer  chan<- *jsonrpc.Message // where the answer is wanted
}

// question puts a question of the server to the client, in the response to the call (A23). If
// the client cannot be asked, the server is told so: it must not wait in vain (A25).
func (rl *relay) question(m *jsonrpc.Message, out *streamable.Event) {
	l, method := rl.link, mcp.Shortened(m.Text(jsonrpc.Method))
	if !l.client.can(method) {
		l.unsolicited(rl.origin()).refuse(&rl.asides, m, "the client has not declared that it can be asked "+method)
		return
	}
	id := l.translator(rl.g).id(m.Literal(jsonrpc.ID))
	out.Data = l.translator(rl.g).message(m)
	l.client.asked(id, &rl.h)
	if !rl.out.Event(out) {
		l.client.settled(id)
		l.unsolicited(rl.origin()).refuse(&rl.asides, m, "the client cannot be asked: it takes no event streams")
	}
}

// maxQuestions is how many questions of its calls a client is known to have open.
const maxQuestions = 1_000

// asked notes that the client has been asked something.
func (c *client) asked(id []byte, h *streamable.Reader) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, there := c.questions[keyOf(id)]; !there && len(c.questions) < maxQuestions {
		c.questions[keyOf(id)] = question{hearing: h}
		h.QuestionAsked()
	}
}

// settled notes that a question needs no answer any more.
func (c *client) settled(id []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if q := c.questions[keyOf(id)]; q.hearing != nil {
		q.hearing.QuestionAnswered()
		delete(c.questions, keyOf(id))
	}
}

// unasked forgets the questions of a call that has ended.
func (c *client) unasked(h *streamable.Reader) {
	if !h.HasQuestions() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.questions, func(_ string, q question) bool { return q.hearing == h })
}

// unsolicited handles the messages of a server that answer no request.
type unsolicited struct {
	origin
	link *link
}

func (l *link) unsolicited(o origin) unsolicited { return unsolicited{o, l} }

// take takes a message that came with the answer to a request of our own. The client gets it
// if it listens.
func (u unsolicited) take(e *streamable.Event, asides *Asides) {
	m := e.Message
	if len(e.Data) == 0 || m.IsAnswer() {
		return
	}
	u.note(m)
	if !u.broadcast(m) && m.IsRequest() {
		u.refuse(asides, m, "the client cannot be asked: it does not listen")
	}
}

// note updates what is known of the server.
func (u unsolicited) note(m *jsonrpc.Message) {
	switch method := m.Text(jsonrpc.Method); {
	case strings.HasSuffix(method, "/list_changed"):
		u.link.lists.changed(method)
	case method == "notifications/cancelled" && m.Has(jsonrpc.RequestID):
		u.link.client.settled(u.link.translator(u.g).id(m.Literal(jsonrpc.RequestID)))
	}
}

// broadcast gives the client a message by each of its streams of the modern era that wants
// it, or by one of the legacy era.
func (u unsolicited) broadcast(m *jsonrpc.Message) (delivered bool) {
	for _, s := range u.link.client.listening() {
		if s.g.Load().of(u.link) == nil || !s.deliver(u.g, u.link, m, "") {
			continue
		}
		delivered = true
		if s.wants == nil {
			break
		}
	}
	return delivered
}

// refuse answers a question of the server in place of the client. It does not wait for that:
// the server may have more to say before it listens.
func (u unsolicited) refuse(asides *Asides, m *jsonrpc.Message, why string) {
	refusal := jsonrpc.Refusal(m.Literal(jsonrpc.ID), jsonrpc.CodeMethodNotFound, why)
	if m.Is(jsonrpc.Method, "ping") {
		refusal = jsonrpc.Answer(m.Literal(jsonrpc.ID), []byte("{}")) // which needs no client
	}
	asides.Go(func() {
		if failure := u.link.tell(u.origin, refusal); failure != nil {
			u.g.config.Logger.Debug("refusal not delivered", zap.String("mcp_server", u.link.server), zap.Error(failure))
		}
	})
}

// A notice is a message of a client that wants no answer: a notification, or its answer to a
// question.
type notice struct{ *visit }

// reply takes the client's answer to a question, to whoever asked (A23, A24).
func (n notice) reply() {
	id := n.message.Literal(jsonrpc.ID)
	if n.client.replied(id, &n.message) {
		return
	}
	s := n.g.config.Servers[0]
	var edits []jsonspan.Edit
	if !n.g.transparent() {
		server, text, ok := strings.Cut(n.message.Text(jsonrpc.ID), mcp.Separator)
		literal, valid := literalOf(text)
		if s = n.g.servers[server]; !ok || !valid || s == nil || !n.sees(s) {
			return // nobody has asked
		}
		edits = append(edits, n.message.Replace(jsonrpc.ID, literal))
	}
	n.server = s
	l := n.client.link(s)
	if failure := l.tell(n.origin(), jsonspan.Spliced(n.message.Raw, edits...)); failure != nil {
		n.g.config.Logger.Warn("answer of client not delivered", zap.String("mcp_server", s.Name), zap.Error(failure))
	}
}

// replied hands the answer to a question of ours to whoever waits for it.
func (c *client) replied(id []byte, m *jsonrpc.Message) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, ok := c.questions[keyOf(id)]
	delete(c.questions, keyOf(id))
	switch {
	case n.hearing != nil:
		n.hearing.QuestionAnswered()
		return false // it is the server's
	case ok:
		answer := *m
		answer.Raw = append([]byte(nil), m.Raw...)
		n.answer <- &answer // there is room for it
	}
	return ok
}

// pass passes a notification of the client on to the servers that it concerns.
func (n notice) pass() {
	switch method := n.message.Text(jsonrpc.Method); method {
	case "notifications/initialized":
		n.all(func(_ *Server, l *link) { l.sendInitialized(n.origin()) })
	case "notifications/cancelled":
		n.cancel()
	case "notifications/progress":
		n.progress()
	default: // all others carry no ids (A27, R23)
		if _, known := mcp.KnownMethod(method); known && !strings.HasPrefix(method, "notifications/") {
			return // a request that wants no answer is none
		}
		message, failure := n.forwardable()
		if failure != nil {
			return
		}
		servers, some := n.g.concerned(method)
		n.all(func(s *Server, l *link) {
			if some && !slices.Contains(servers, s.Name) || !n.mayTell(s, method) {
				return
			}
			if ticket, ready := l.ticket(); ready && ticket.Era == mcp.Legacy {
				l.sendInitialized(n.origin())
				if failure := l.tell(n.origin(), message.Raw); failure != nil {
					n.g.config.Logger.Warn("notification of client not delivered", zap.String("mcp_server", s.Name),
						zap.String("mcp_method", mcp.Shortened(method)), zap.Error(failure))
				}
			}
		})
	}
}

// mayTell reports whether the client may send a server a notification.
func (n notice) mayTell(s *Server, method string) bool {
	return strings.HasPrefix(method, "notifications/") || n.g.rules.allowsUnknown(n.caller.identity, s)
}

// A NotificationRoute says to which servers a notification of a client is passed on.
type NotificationRoute struct {
	Method  string // in which * stands for any characters
	Servers []string
}

// concerned returns the servers that a notification is for, if it is not for all (A58). The
// first route that fits decides.
func (g *Gateway) concerned(method string) (servers []string, some bool) {
	routes := g.config.NotificationRoutes
	i := slices.IndexFunc(routes, func(route NotificationRoute) bool { return mcp.MatchName(route.Method, method) })
	if i < 0 {
		return nil, false
	}
	return routes[i].Servers, true
}

// tell passes the message on to a server, with edits. It wants no answer.
func (n notice) tell(l *link, edits ...jsonspan.Edit) *jsonrpc.Failure {
	m, failure := n.forwardable(edits...)
	if failure != nil {
		return failure
	}
	return l.tell(n.origin(), m.Raw)
}

// cancel cancels a call, at the one server that has it (A28).
func (n notice) cancel() {
	call := n.client.inFlight(n.message.Literal(jsonrpc.RequestID))
	if call == nil {
		return // it has been answered
	}
	n.server = n.g.of(call.link)
	if era, _ := call.link.state(); era == mcp.Modern {
		call.cancel() // to hang up is to cancel
		return
	}
	if failure := n.tell(call.link); failure != nil {
		n.g.config.Logger.Warn("cancellation not delivered", zap.String("mcp_server", call.link.server), zap.Error(failure))
	}
}

// progress takes the client's progress with an answer to the server that waits for it.
func (n notice) progress() {
	s := n.g.config.Servers[0]
	var edits []jsonspan.Edit
	if !n.g.transparent() {
		server, text, ok := strings.Cut(n.message.Text(jsonrpc.Progress), mcp.Separator)
		literal, valid := literalOf(text)
		if s = n.g.servers[server]; !ok || !valid || s == nil || !n.sees(s) {
			return
		}
		edits = append(edits, n.message.Replace(jsonrpc.Progress, literal))
	}
	n.server = s
	_ = n.tell(n.client.link(s), edits...) // who does not want it loses nothing
}
