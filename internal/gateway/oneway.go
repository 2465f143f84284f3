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

// A oneWayMessage is a message of a client that gets no response: a notification, or the response
// to a server request.
type oneWayMessage struct{ *aggregateRequest }

// forwardResponse forwards the client's response to the server that sent the request (A23, A24).
func (n oneWayMessage) forwardResponse() *jsonrpc.Failure {
	known, own := n.client.serverRequests.take(n.Message.Literal(jsonrpc.ID), &n.Message)
	if own {
		return nil
	}
	origin, fromServer := n.parseOrigin(jsonrpc.ID)
	switch {
	case !known && n.mayAnswerGateway(): // another replica of the gateway may have sent the request
		return n.sendResponseToReplica("")
	case !fromServer:
		return nil // unknown request
	case n.isAtOtherReplica(origin):
		return n.sendResponseToReplica(origin.replica)
	}
	s := origin.server
	var edits []jsonspan.Edit
	if !n.g.names.areUnchanged() {
		edits = append(n.g.names.relatedTaskEdits(n.Message.Raw, s.Name), n.Message.Replace(jsonrpc.ID, origin.literal))
	}
	n.Server = s
	l := n.client.existingLink(s)
	if !known && origin.replica == "" {
		if n.fromReplica {
			return nil // the replica that got it first has sent it to the server
		}
		if l != nil {
			n.sendToReplica("", !l.isLocal(s)) // the server gets the response in any case
		} else if failure := n.sendResponseToReplica(""); failure != nil {
			return failure
		}
	}
	if l == nil {
		return nil // this server did not send the request to this replica
	}
	if failure := l.send(n.scope(), jsonspan.Spliced(n.Message.Raw, edits...)); failure != nil {
		n.g.config.Logger.Warn("response of client not delivered", zap.String("mcp_server", s.Name), zap.Error(failure))
	}
	return nil
}

// forwardNotification forwards a notification to the servers that it is for.
func (n oneWayMessage) forwardNotification() {
	switch method := n.Message.Text(jsonrpc.Method); method {
	case "notifications/initialized":
		n.announceReady()
		n.forEachOpenLink(func(_ *upstream.Server, l *link) { l.sendInitialized(n.scope()) })
	case "notifications/cancelled":
		n.cancel()
	case "notifications/progress":
		n.progress()
	default: // all others have no ids (A27, R23)
		_, known := mcp.KnownMethod(method)
		if known && !strings.HasPrefix(method, "notifications/") {
			return // a request without an id
		}
		message, failure := n.messageForServer()
		if failure != nil {
			return
		}
		servers, restricted := n.routedServers(method)
		n.forEachServer(func(s *upstream.Server) {
			if restricted && !slices.Contains(servers, s.Name) || !n.mayNotify(s, method) {
				return
			}
			l := n.client.existingLink(s)
			if !known { // servers without a session get it, too
				l = n.client.linkTo(s)
				_ = l.open(n.scope()) // open logs failures
			}
			if l == nil || !l.session.isOpen() {
				return // the server requests the client's state when it needs it
			}
			if l.session.current().Era == mcp.Legacy {
				l.session.markUsed()
				l.sendInitialized(n.scope())
				if failure := l.send(n.scope(), message.Raw); failure != nil {
					n.g.config.Logger.Warn("notification of client not delivered", zap.String("mcp_server", s.Name),
						zap.String("mcp_method", mcp.Shortened(method)), zap.Error(failure))
				}
			}
		})
	}
}

// mayNotify reports whether the client may send a notification to a server.
func (n oneWayMessage) mayNotify(s *upstream.Server, method string) bool {
	return strings.HasPrefix(method, "notifications/") || n.g.rules.AllowsUnknown(n.Caller.Identity, s.Name)
}

// routedServers returns the servers that get a notification, if a route restricts them (A58). The
// first matching route decides.
func (n oneWayMessage) routedServers(method string) (servers []string, restricted bool) {
	routes := n.g.config.NotificationRoutes
	i := slices.IndexFunc(routes, func(route NotificationRoute) bool { return mcp.MatchName(route.Method, method) })
	if i < 0 {
		return nil, false
	}
	return routes[i].Servers, true
}

// send sends the message to a server, with edits.
func (n oneWayMessage) send(l *link, edits ...jsonspan.Edit) *jsonrpc.Failure {
	m, failure := n.messageForServer(edits...)
	if failure != nil {
		return failure
	}
	return l.send(n.scope(), m.Raw)
}

// cancel forwards a cancellation to the server that has the call (A28).
func (n oneWayMessage) cancel() {
	call := n.client.calls.get(n.Message.Literal(jsonrpc.RequestID))
	if call == nil {
		n.sendToReplica("", false) // the call may run at another replica
		return
	}
	n.Server = n.g.linkServer(call.link)
	if call.link.session.current().Era == mcp.Modern || call.held.Load() {
		call.active.Cancel(nil) // closing the connection cancels the call
		return
	}
	call.active.NoteCanceled()
	var edits []jsonspan.Edit
	if id := call.repeatedID.Load(); id != nil {
		edits = append(edits, n.Message.Replace(jsonrpc.RequestID, *id))
	}
	if failure := n.send(call.link, edits...); failure != nil {
		n.g.config.Logger.Warn("cancellation not delivered",
			zap.String("mcp_server", call.link.serverName), zap.Error(failure))
	}
}

// progress forwards a progress notification to the server that waits for the response.
func (n oneWayMessage) progress() {
	origin, ok := n.parseOrigin(jsonrpc.Progress)
	switch {
	case !ok:
		return
	case n.isAtOtherReplica(origin):
		n.sendToReplica(origin.replica, false)
		return
	}
	var edits []jsonspan.Edit
	if !n.g.names.areUnchanged() {
		edits = append(edits, n.Message.Replace(jsonrpc.Progress, origin.literal))
	}
	n.Server = origin.server
	if l := n.client.existingLink(origin.server); l != nil {
		_ = n.send(l, edits...) // losing progress is harmless
	}
}

// An idOrigin is the origin of an id that a client sends back.
type idOrigin struct {
	server  *upstream.Server
	literal []byte // the server's JSON literal
	replica string // replica with the child process that sent the id; "" if all replicas reach the server
}

// parseOrigin returns the origin of the id in field f. It reports false if the client may not see
// that server.
func (n oneWayMessage) parseOrigin(f jsonrpc.Field) (idOrigin, bool) {
	if n.g.names.areUnchanged() {
		return idOrigin{n.g.names.only, n.Message.Literal(f), ""}, true
	}
	server, text, ok := strings.Cut(n.Message.Text(f), mcp.Separator)
	replica := ""
	if rest, marked := strings.CutPrefix(text, "@"); marked {
		replica, text, _ = strings.Cut(rest, "@")
	}
	literal, valid := literalOf(text)
	s := n.g.servers[server]
	return idOrigin{s, literal, replica}, ok && valid && s != nil && n.sees(s)
}

// mayAnswerGateway reports whether the message may answer a request that the gateway sent at
// another replica: its id has the form of serverRequests.expect.
func (n oneWayMessage) mayAnswerGateway() bool {
	server, text, ok := strings.Cut(n.Message.Text(jsonrpc.ID), mcp.Separator)
	isOther := func(c rune) bool { // than the alphabet of rand.Text
		return (c < 'A' || c > 'Z') && (c < '2' || c > '7')
	}
	return n.g.replicaSync != nil && ok && n.g.servers[server] != nil &&
		len(text) == 26 && !strings.ContainsFunc(text, isOther)
}

// isAtOtherReplica reports whether an id comes from a child process of another replica.
func (n oneWayMessage) isAtOtherReplica(origin idOrigin) bool {
	rs := n.g.replicaSync
	return rs != nil && origin.replica != "" && origin.replica != rs.bus.space.Replica
}

// literalOf returns text as a JSON literal, if it is a valid id.
func literalOf(text string) ([]byte, bool) {
	literal := []byte(text)
	if !json.Valid(literal) || strings.ContainsAny(text[:1], "{[tfn \t\r\n") {
		return nil, false
	}
	return literal, true
}
