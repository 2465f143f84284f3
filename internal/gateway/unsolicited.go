package gateway

import (
	"strings"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// unsolicited handles the messages of a server that answer no request.
type unsolicited struct {
	behalf
	link *link
}

func (l *link) unsolicited(o behalf) unsolicited { return unsolicited{o, l} }

// take takes a message that came with the answer to a request of our own. The client gets it
// if it listens.
func (u unsolicited) take(e *streamable.Event, asides *upstream.Asides) {
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
	case isListChange(m):
		u.link.listsChanged(u.g, m)
	case method == "notifications/cancelled" && m.Has(jsonrpc.RequestID):
		u.link.client.questionSettled(u.link.translator(u.g).id(m.Literal(jsonrpc.RequestID)))
	}
}

// broadcast gives the client a message by each of its streams of the modern era that wants
// it, or by one of the legacy era, which may be at another replica.
func (u unsolicited) broadcast(m *jsonrpc.Message) (delivered bool) {
	changed := isListChange(m)
	for _, s := range u.link.client.listening() {
		if changed && !s.listensTo(u.link.id) {
			continue // which note has told
		}
		if s.g.Load().of(u.link) == nil || !s.deliver(u.g, u.link, m, "") {
			continue
		}
		delivered = true
		if s.wants == nil {
			break
		}
	}
	return delivered || u.forward(m)
}

// isListChange reports whether a message tells that a list has changed.
func isListChange(m *jsonrpc.Message) bool {
	return strings.HasSuffix(m.Text(jsonrpc.Method), "/list_changed")
}

// refuse answers a question of the server in place of the client. It does not wait for that:
// the server may have more to say before it listens.
func (u unsolicited) refuse(asides *upstream.Asides, m *jsonrpc.Message, why string) {
	refusal := jsonrpc.Refusal(m.Literal(jsonrpc.ID), jsonrpc.CodeMethodNotFound, why)
	if m.Is(jsonrpc.Method, "ping") {
		refusal = jsonrpc.Answer(m.Literal(jsonrpc.ID), []byte("{}")) // which needs no client
	}
	asides.Go(func() {
		if failure := u.link.tell(u.behalf, refusal); failure != nil {
			u.g.config.Logger.Debug("refusal not delivered", zap.String("mcp_server", u.link.server), zap.Error(failure))
		}
	})
}
