package gateway

import (
	"strings"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// unsolicited handles messages of a server that do not answer a request.
type unsolicited struct {
	scope
	link *link
}

func (l *link) unsolicited(sc scope) unsolicited { return unsolicited{sc, l} }

// handle handles a message in the response to a request of the gateway. The client gets it if it
// has a stream.
func (u unsolicited) handle(e *streamable.Event, sideRequests *upstream.SideRequests) {
	m := e.Message
	if len(e.Data) == 0 || m.IsResponse() {
		return
	}
	u.note(m)
	if !u.broadcast(m) && m.IsRequest() {
		u.refuse(sideRequests, m, "the client has no open stream")
	}
}

// note updates the state of the gateway from a message.
func (u unsolicited) note(m *jsonrpc.Message) {
	switch method := m.Text(jsonrpc.Method); {
	case isListChange(m):
		u.link.listsChanged(u.g, m)
	case method == "notifications/cancelled" && m.Has(jsonrpc.RequestID):
		u.link.client.settleServerRequest(u.link.translator(u.g).id(m.Literal(jsonrpc.RequestID)))
	}
}

// broadcast sends a message to all streams of a modern client that want it, or to one stream of a
// legacy client, which may be at another replica. It reports whether it was sent.
func (u unsolicited) broadcast(m *jsonrpc.Message) (delivered bool) {
	changed := isListChange(m)
	for _, s := range u.link.client.openStreams() {
		if changed && !s.listensTo(u.link.serverID) {
			continue // note has notified these
		}
		if s.g.Load().linkServer(u.link) == nil || !s.deliver(u.g, u.link, m, "") {
			continue
		}
		delivered = true
		if s.wants == nil {
			break
		}
	}
	return delivered || u.sendToReplica(m)
}

// isListChange reports whether a message is a list-changed notification.
func isListChange(m *jsonrpc.Message) bool {
	return strings.HasSuffix(m.Text(jsonrpc.Method), "/list_changed")
}

// refuse answers a server request with an error on behalf of the client. It does not wait: the
// server may not read before it has sent more.
func (u unsolicited) refuse(sideRequests *upstream.SideRequests, m *jsonrpc.Message, why string) {
	refusal := jsonrpc.ErrorResponse(m.Literal(jsonrpc.ID), jsonrpc.CodeMethodNotFound, why)
	if m.Is(jsonrpc.Method, "ping") {
		refusal = jsonrpc.ResultResponse(m.Literal(jsonrpc.ID), []byte("{}")) // needs no client
	}
	sideRequests.Go(func() {
		if failure := u.link.send(u.scope, refusal); failure != nil {
			u.g.config.Logger.Debug("refusal of a server request not delivered",
				zap.String("mcp_server", u.link.serverName), zap.Error(failure))
		}
	})
}
