package stdio

import (
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// receive passes on a message of the child, which is in a block if it is long. Its bytes do not
// change before the block is freed.
func (c *child) receive(m *jsonrpc.Message, in *block) {
	switch {
	case m.IsRequest():
		c.ask(m)
	case m.IsNotification():
		c.notify(m)
	default:
		c.answer(m, in)
	}
}

// answer gives an answer to the call that waits for it, with the id that its
// client gave it.
func (c *child) answer(m *jsonrpc.Message, in *block) {
	says := m.Has(jsonrpc.Result) || m.Has(jsonrpc.Error) // some servers write "error":null into results
	if !says && !m.Has(jsonrpc.Version) {                 // most likely a log line in JSON
		c.server.pool.observe.Noise(c.server.name)
		return
	}
	if c.takePong(m.Literal(jsonrpc.ID)) {
		return
	}
	call := c.take(m.Literal(jsonrpc.ID))
	if call == nil { // too late, repeated, or of an unknown id
		c.server.pool.observe.Dropped(c.server.name)
		return
	}
	id := call.request.Literal(jsonrpc.ID)
	if !says {
		call.fail(jsonrpc.InvalidResponse(c.server.name), errNoise)
		return
	}
	if !call.inbox.End(letter{message: replaced(m, id, jsonrpc.ID, jsonrpc.ListenID), in: in, code: m.ErrorNumber()}) {
		in.free()
		call.fail(jsonrpc.TooMuchUnread(), errUnread)
	}
}

// notify passes on a notification to the clients that it concerns.
func (c *child) notify(m *jsonrpc.Message) {
	method := m.Text(jsonrpc.Method)
	if method == "notifications/tools/list_changed" {
		c.params.Store(nil)
	}
	switch {
	case method == "notifications/progress":
		call := c.numbered(m.Literal(jsonrpc.Progress))
		if call != nil && !call.request.Has(jsonrpc.ProgressToken) {
			call = nil // it was not asked for
		}
		c.deliver(call, m, jsonrpc.Progress, jsonrpc.ProgressToken)
	case m.Has(jsonrpc.SubscriptionID):
		call := c.numbered(m.Literal(jsonrpc.SubscriptionID))
		c.deliver(call, m, jsonrpc.SubscriptionID, jsonrpc.ID)
	case method == "notifications/cancelled":
		c.server.withdraw(c, m)
	case method == mcp.MethodUpdated:
		uri := m.Text(jsonrpc.URI)
		c.server.broadcast(m, func(s *session) bool { return s.subscribed(uri) })
	case strings.HasSuffix(method, "/list_changed"):
		c.server.listChanged(m)
	default:
		call, doubtful := c.caller()
		switch {
		case call != nil && !c.loud(m, call.session):
		case call != nil || doubtful:
			c.deliver(call, m)
		default:
			sole := c.server.sole(c)
			if sole == nil {
				c.server.pool.observe.Dropped(c.server.name)
			}
			c.server.broadcast(m, func(s *session) bool { return s == sole && c.loud(m, s) })
		}
	}
}

func everybody(*session) bool { return true }

// deliver puts a notification into the inbox of a call. Of two fields, the first one gets
// the value that the second one has in the client's request.
func (c *child) deliver(call *call, m *jsonrpc.Message, fields ...jsonrpc.Field) {
	if call != nil {
		message := frame{m.Raw}
		if len(fields) == 2 {
			message = replaced(m, call.request.Literal(fields[1]), fields[0])
		}
		if call.inbox.Put(letter{message: message}) {
			return
		}
	}
	c.server.pool.observe.Dropped(c.server.name)
}

// replaced returns a message with a literal in place of those of the fields that it has.
// It shares the bytes of the message and of the literal.
func replaced(m *jsonrpc.Message, literal []byte, fields ...jsonrpc.Field) frame {
	return edited(m.Raw, m.ReplaceAll(literal, fields...))
}
