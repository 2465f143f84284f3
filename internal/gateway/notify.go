package gateway

import (
	"encoding/json"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// A clientNotice is a message of a client that wants no answer: a notification, or its answer to a
// question.
type clientNotice struct{ *visit }

// reply passes the client's answer on to the server that has asked (A23, A24).
func (n clientNotice) reply() {
	id := n.message.Literal(jsonrpc.ID)
	if n.client.takeReply(id, &n.message) {
		return
	}
	s := n.g.config.Servers[0]
	var edits []jsonspan.Edit
	if !n.g.transparent() {
		server, text, ok := strings.Cut(n.message.Text(jsonrpc.ID), mcp.Separator)
		literal, valid := literalOf(text)
		if s = n.g.servers[server]; !ok || !valid || s == nil || !n.sees(s) {
			return // no server has asked
		}
		edits = append(n.g.relatedTask(n.message.Raw, s.Name), n.message.Replace(jsonrpc.ID, literal))
	}
	n.server = s
	l := n.client.linked(s)
	if l == nil {
		return // it has not asked
	}
	if failure := l.tell(n.behalf(), jsonspan.Spliced(n.message.Raw, edits...)); failure != nil {
		n.g.config.Logger.Warn("answer of client not delivered", zap.String("mcp_server", s.Name), zap.Error(failure))
	}
}

// pass passes a notification of the client on to the servers that it concerns.
func (n clientNotice) pass() {
	switch method := n.message.Text(jsonrpc.Method); method {
	case "notifications/initialized":
		n.linked(func(_ *Server, l *link) { l.sendInitialized(n.behalf()) })
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
		n.all(func(s *Server) {
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
func (n clientNotice) mayTell(s *Server, method string) bool {
	return strings.HasPrefix(method, "notifications/") || n.g.rules.allowsUnknown(n.caller.identity, s)
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
	call := n.client.inFlight(n.message.Literal(jsonrpc.RequestID))
	if call == nil {
		return // it has been answered
	}
	n.server = n.g.of(call.link)
	if era, _ := call.link.state(); era == mcp.Modern || call.held.Load() {
		call.cancel(nil) // to hang up is to cancel
		return
	}
	call.drop()
	var edits []jsonspan.Edit
	if id := call.id.Load(); id != nil {
		edits = append(edits, n.message.Replace(jsonrpc.RequestID, *id))
	}
	if failure := n.tell(call.link, edits...); failure != nil {
		n.g.config.Logger.Warn("cancellation not delivered", zap.String("mcp_server", call.link.server), zap.Error(failure))
	}
}

// progress takes the client's progress with an answer to the server that waits for it.
func (n clientNotice) progress() {
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
	if l := n.client.linked(s); l != nil {
		_ = n.tell(l, edits...) // progress may be lost
	}
}

// literalOf returns an id that a text stands for, as a server wrote it.
func literalOf(text string) ([]byte, bool) {
	literal := []byte(text)
	if !json.Valid(literal) || strings.ContainsAny(text[:1], "{[tfn \t\r\n") {
		return nil, false
	}
	return literal, true
}
