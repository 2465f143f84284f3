package gateway

import (
	"encoding/json"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A clientNotice is a message of a client that wants no answer: a notification, or its answer to a
// question.
type clientNotice struct{ *visit }

// reply passes the client's answer on to the server that has asked (A23, A24).
func (n clientNotice) reply() *jsonrpc.Failure {
	asked, ours := n.client.takeReply(n.Message.Literal(jsonrpc.ID), &n.Message)
	if ours {
		return nil
	}
	q, isServers := n.origin(jsonrpc.ID)
	switch {
	case !asked && n.mayBeOurs(): // no server has asked, but another replica may have
		return n.forwardAnswer("")
	case !isServers:
		return nil // there was no such question
	case n.isElsewhere(q):
		return n.forwardAnswer(q.replica)
	}
	s := q.server
	var edits []jsonspan.Edit
	if !n.g.transparent() {
		edits = append(n.g.relatedTask(n.Message.Raw, s.Name), n.Message.Replace(jsonrpc.ID, q.literal))
	}
	n.Server = s
	l := n.client.linked(s)
	if !asked && q.replica == "" {
		if n.forwarded {
			return nil // who has got it first has told the server
		}
		if l != nil {
			_ = n.forward("", !l.isLocal(s)) // the server gets it in any case
		} else if failure := n.forwardAnswer(""); failure != nil {
			return failure
		}
	}
	if l == nil {
		return nil // it has not asked here
	}
	if failure := l.tell(n.behalf(), jsonspan.Spliced(n.Message.Raw, edits...)); failure != nil {
		n.g.config.Logger.Warn("answer of client not delivered", zap.String("mcp_server", s.Name), zap.Error(failure))
	}
	return nil
}

// pass passes a notification of the client on to the servers that it concerns.
func (n clientNotice) pass() {
	switch method := n.Message.Text(jsonrpc.Method); method {
	case "notifications/initialized":
		n.greet()
		n.linked(func(_ *upstream.Server, l *link) { l.sendInitialized(n.behalf()) })
	case "notifications/cancelled":
		n.cancel()
	case "notifications/progress":
		n.progress()
	default: // all others carry no ids (A27, R23)
		_, known := mcp.KnownMethod(method)
		if known && !strings.HasPrefix(method, "notifications/") {
			return // requests need an id
		}
		message, failure := n.forwardable()
		if failure != nil {
			return
		}
		servers, some := n.g.concerned(method)
		n.all(func(s *upstream.Server) {
			if some && !slices.Contains(servers, s.Name) || !n.mayTell(s, method) {
				return
			}
			l := n.client.linked(s)
			if !known { // it may be about anything
				l = n.client.link(s)
				_ = l.open(n.behalf()) // which is logged
			}
			if l == nil || !l.isOpen() {
				return // what it says of the client, the server asks for when it needs it
			}
			if era, _ := l.state(); era == mcp.Legacy {
				l.use()
				l.sendInitialized(n.behalf())
				if failure := l.tell(n.behalf(), message.Raw); failure != nil {
					n.g.config.Logger.Warn("notification of client not delivered", zap.String("mcp_server", s.Name),
						zap.String("mcp_method", mcp.Shortened(method)), zap.Error(failure))
				}
			}
		})
	}
}

// mayTell reports whether the client may send a server a notification.
func (n clientNotice) mayTell(s *upstream.Server, method string) bool {
	return strings.HasPrefix(method, "notifications/") || n.g.rules.AllowsUnknown(n.Caller.Identity, s.Name)
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
func (n clientNotice) tell(l *link, edits ...jsonspan.Edit) *jsonrpc.Failure {
	m, failure := n.forwardable(edits...)
	if failure != nil {
		return failure
	}
	return l.tell(n.behalf(), m.Raw)
}

// cancel cancels a call, at the one server that has it (A28).
func (n clientNotice) cancel() {
	call := n.client.inFlight(n.Message.Literal(jsonrpc.RequestID))
	if call == nil {
		_ = n.forward("", false) // unless it has been answered
		return
	}
	n.Server = n.g.of(call.link)
	if era, _ := call.link.state(); era == mcp.Modern || call.held.Load() {
		call.Cancel(nil) // to hang up is to cancel
		return
	}
	call.Drop()
	var edits []jsonspan.Edit
	if id := call.id.Load(); id != nil {
		edits = append(edits, n.Message.Replace(jsonrpc.RequestID, *id))
	}
	if failure := n.tell(call.link, edits...); failure != nil {
		n.g.config.Logger.Warn("cancellation not delivered", zap.String("mcp_server", call.link.server), zap.Error(failure))
	}
}

// progress takes the client's progress with an answer to the server that waits for it.
func (n clientNotice) progress() {
	q, ok := n.origin(jsonrpc.Progress)
	switch {
	case !ok:
		return
	case n.isElsewhere(q):
		_ = n.forward(q.replica, false)
		return
	}
	var edits []jsonspan.Edit
	if !n.g.transparent() {
		edits = append(edits, n.Message.Replace(jsonrpc.Progress, q.literal))
	}
	n.Server = q.server
	if l := n.client.linked(q.server); l != nil {
		_ = n.tell(l, edits...) // progress may be lost
	}
}

// An origin is where an id comes from that a client sends back.
type origin struct {
	server  *upstream.Server
	literal []byte // as the server wrote it
	replica string // whose child process it is; "" if all replicas reach the same server
}

// origin returns where an id in a field comes from. It reports whether it is that of a server which the client may
// know of.
func (n clientNotice) origin(f jsonrpc.Field) (origin, bool) {
	if n.g.transparent() {
		return origin{n.g.config.Servers[0], n.Message.Literal(f), ""}, true
	}
	server, text, ok := strings.Cut(n.Message.Text(f), mcp.Separator)
	replica := ""
	if rest, marked := strings.CutPrefix(text, "@"); marked {
		replica, text, _ = strings.Cut(rest, "@")
	}
	literal, valid := literalOf(text)
	s := n.g.servers[server]
	return origin{s, literal, replica}, ok && valid && s != nil && n.sees(s)
}

// mayBeOurs reports whether the message answers a question that the gateway may have asked at another replica: its id
// has the form of client.expectAnswer.
func (n clientNotice) mayBeOurs() bool {
	server, text, ok := strings.Cut(n.Message.Text(jsonrpc.ID), mcp.Separator)
	isOther := func(c rune) bool { return (c < 'A' || c > 'Z') && (c < '2' || c > '7') } // than those of rand.Text
	return n.g.elsewhere != nil && ok && n.g.servers[server] != nil &&
		len(text) == 26 && !strings.ContainsFunc(text, isOther)
}

// isElsewhere reports whether an id comes from a child process of another replica.
func (n clientNotice) isElsewhere(q origin) bool {
	e := n.g.elsewhere
	return e != nil && q.replica != "" && q.replica != e.space.Replica
}

// literalOf returns an id that a text stands for, as a server wrote it.
func literalOf(text string) ([]byte, bool) {
	literal := []byte(text)
	if !json.Valid(literal) || strings.ContainsAny(text[:1], "{[tfn \t\r\n") {
		return nil, false
	}
	return literal, true
}
