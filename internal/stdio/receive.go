package stdio

import (
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// receive handles a message of the child. A long message is in a block; its bytes do not change
// before the block is freed.
func (c *child) receive(m *jsonrpc.Message, b *block) {
	switch {
	case m.IsRequest():
		c.handleServerRequest(m)
	case m.IsNotification():
		c.forwardNotification(m)
	default:
		c.deliverResponse(m, b)
	}
}

// deliverResponse delivers a response to the call that waits for it, with the id of the client.
func (c *child) deliverResponse(m *jsonrpc.Message, b *block) {
	complete := m.Has(jsonrpc.Result) || m.Has(jsonrpc.Error) // some servers write "error":null into results
	if !complete && !m.Has(jsonrpc.Version) {                 // most likely a log line in JSON
		c.server.pool.observe.Noise(c.server.name)
		return
	}
	if c.takePong(m.Literal(jsonrpc.ID)) {
		return
	}
	call := c.takeCall(m.Literal(jsonrpc.ID))
	if call == nil { // late, repeated, or with an unknown id
		c.server.pool.observe.Dropped(c.server.name)
		return
	}
	id := call.request.Literal(jsonrpc.ID)
	if !complete {
		call.fail(jsonrpc.InvalidResponse(c.server.name), errNoise)
		return
	}
	response := letter{message: replaceFields(m, id, jsonrpc.ID, jsonrpc.ListenID), block: b, code: m.ErrorNumber()}
	if !call.inbox.End(response) {
		b.free()
		call.fail(jsonrpc.TooMuchUnread(), errUnread)
	}
}

// forwardNotification forwards a notification to the clients that it concerns.
func (c *child) forwardNotification(m *jsonrpc.Message) {
	method := m.Text(jsonrpc.Method)
	if method == "notifications/tools/list_changed" {
		c.params.Store(nil)
	}
	switch {
	case method == "notifications/progress":
		call := c.callByID(m.Literal(jsonrpc.Progress))
		if call != nil && !call.request.Has(jsonrpc.ProgressToken) {
			call = nil // the client did not request progress
		}
		c.deliverNotification(call, m, jsonrpc.Progress, jsonrpc.ProgressToken)
	case m.Has(jsonrpc.SubscriptionID):
		call := c.callByID(m.Literal(jsonrpc.SubscriptionID))
		c.deliverNotification(call, m, jsonrpc.SubscriptionID, jsonrpc.ID)
	case method == "notifications/cancelled":
		c.server.forwardWithdrawal(c, m)
	case method == mcp.MethodUpdated:
		uri := m.Text(jsonrpc.URI)
		c.server.broadcast(m, func(s *session) bool { return s.isSubscribed(uri) })
	case strings.HasSuffix(method, "/list_changed"):
		c.server.listChanged(m)
	default:
		call, ambiguous := c.inferCall()
		switch {
		case call != nil && !c.passesLevel(m, call.session):
		case call != nil || ambiguous:
			c.deliverNotification(call, m)
		default:
			sole := c.server.soleSession(c)
			if sole == nil {
				c.server.pool.observe.Dropped(c.server.name)
			}
			c.server.broadcast(m, func(s *session) bool { return s == sole && c.passesLevel(m, s) })
		}
	}
}

func allSessions(*session) bool { return true }

// deliverNotification puts a notification into the inbox of a call. With two fields, the first
// one gets the value that the second one has in the client's request.
func (c *child) deliverNotification(call *call, m *jsonrpc.Message, fields ...jsonrpc.Field) {
	if call != nil {
		message := frame{m.Raw}
		if len(fields) == 2 {
			message = replaceFields(m, call.request.Literal(fields[1]), fields[0])
		}
		if call.inbox.Put(letter{message: message}) {
			return
		}
	}
	c.server.pool.observe.Dropped(c.server.name)
}

// replaceFields returns a message in which the fields have another literal. It shares the bytes of
// the message and of the literal.
func replaceFields(m *jsonrpc.Message, literal []byte, fields ...jsonrpc.Field) frame {
	return applyEdits(m.Raw, m.ReplaceAll(literal, fields...))
}
