package stdio

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// A call is a request that waits for its answer.
type call struct {
	id      uint64
	digits  [20]byte        // room for those of the id
	request jsonrpc.Message // as the client sent it
	session *session        // of the client, if it has one
	own     bool            // it is not a client's
	inbox   *inbox
	err     error // in place of an answer; set before the inbox ends

	// Guarded by the lock of the child.
	sent         bool // it is in the queue to the child, or beyond
	begun        time.Time
	cancellation []byte // the notification that it was canceled
}

// fail ends a call that will not be answered. The client gets the failure, never the cause.
func (call *call) fail(f *jsonrpc.Failure, cause error) {
	call.err = fmt.Errorf("%w: %w", f, cause)
	call.inbox.End(letter{message: frame{f.Append(nil, call.request.Literal(jsonrpc.ID))}})
}

// begin sends a request with an id of ours, and the same as progress token: a number from 1
// on, because some servers take 0 for none.
func (c *child) begin(ctx context.Context, call *call) error {
	call.inbox = newInbox(ownerOf(ctx), maxUnread)
	if err := c.register(call); err != nil {
		return err
	}
	number := strconv.AppendUint(call.digits[:0], call.id, 10)
	edits := call.request.ReplaceAll(number, jsonrpc.ID, jsonrpc.ProgressToken)
	if err := c.sendEdited(ctx, call.request.Raw, edits); err != nil {
		c.forget(call)
		c.noteUnseen(call)
		c.abandon(call)
		return err
	}
	if cancellation := c.markSent(call); cancellation != nil {
		c.tellCanceled(call, cancellation)
	}
	return nil
}

// markSent notes that a call is in the queue. It returns the notification that has to
// follow if the call has been canceled meanwhile.
func (c *child) markSent(call *call) (cancellation []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	call.sent, call.begun = true, time.Now()
	return call.cancellation
}

func (c *child) register(call *call) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.dead != nil:
		return c.dead
	case c.lent != nil:
		return errLent
	case len(c.calls) >= maxCalls:
		return errBusy
	}
	c.lastID++
	call.id = c.lastID
	c.calls[call.id] = call
	if !call.own && !call.lists() {
		c.several = c.several || call.session == nil || c.client != nil && c.client != call.session
		c.client = call.session
	}
	return nil
}

// lists reports whether the call asks for a list, which tells the child nothing of its
// client.
func (call *call) lists() bool {
	return bytes.HasSuffix(call.request.Literal(jsonrpc.Method), []byte(`/list"`))
}

// forget ends the wait for an answer. It reports whether the call was still waiting.
func (c *child) forget(call *call) bool {
	defer c.stopIfLent()
	c.mu.Lock()
	defer c.mu.Unlock()
	_, waiting := c.calls[call.id]
	delete(c.calls, call.id)
	if waiting && !call.own && !call.listens() {
		c.doubt(call)
	}
	return waiting
}

// abandon refuses questions on the stream of a call that the client will not read, and all
// later ones.
func (c *child) abandon(call *call) {
	for _, l := range call.inbox.Discard() {
		if q := l.question; q != nil {
			q.session.refuse(q, "the client has left")
		}
	}
	if call.session != nil {
		call.session.drop(func(q *question) bool { return q.call == call })
		call.session.endEventsOf(call)
	}
}

// giveUp cancels a call whose HTTP request has ended with this cause.
func (c *child) giveUp(call *call, cause error) {
	c.noteUnheard(call, cause)
	c.cancel(call, "the client has left")
}

// cancel gives up a call, notifies the child and refuses its questions. The notification of
// a call that still waits for room in the queue is sent by begin, after the call.
func (c *child) cancel(call *call, reason string) {
	if c.forget(call) {
		params := fmt.Appendf(nil, `{"requestId":%d`, call.id)
		if reason != "" {
			params = fmt.Appendf(params, `,"reason":%s`, jsonrpc.Quote(reason))
		}
		cancellation := jsonrpc.Notification("notifications/cancelled", append(params, '}'))
		if c.noteCancellation(call, cancellation) {
			c.tellCanceled(call, cancellation)
		}
	}
	c.abandon(call)
}

// noteCancellation reports whether the child can be notified of a cancellation now. If not,
// begin does it later.
func (c *child) noteCancellation(call *call, cancellation []byte) (sent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	call.cancellation = cancellation
	return call.sent
}

// request makes a request of our own and waits for the answer.
func (c *child) request(ctx context.Context, method string, params []byte) (*jsonrpc.Message, error) {
	call := &call{own: true}
	if failure := call.request.Read(jsonrpc.Request(0, method, params)); failure != nil {
		return nil, failure
	}
	if err := c.begin(ctx, call); err != nil {
		return nil, err
	}
	defer call.inbox.Discard()
	for {
		select {
		case <-call.inbox.More():
		case <-ctx.Done():
			c.forget(call)
			return nil, ctx.Err()
		}
		l, _, last := call.inbox.Take()
		if !last {
			continue // progress, if a client's initialize has asked for it
		}
		if err := c.death(); err != nil {
			return nil, err
		}
		if call.err != nil {
			return nil, call.err
		}
		answer := new(jsonrpc.Message)
		if failure := answer.Read(bytes.Join(l.message, nil)); failure != nil {
			return nil, failure
		}
		return answer, nil
	}
}

// take returns the call that waits for an answer with this id, and ends the wait.
func (c *child) take(id []byte) *call {
	number, err := strconv.ParseUint(string(id), 10, 64)
	if err != nil {
		return nil
	}
	c.mu.Lock()
	call := c.calls[number]
	delete(c.calls, number)
	c.served = c.served || call != nil && !call.own
	c.endDoubt(number)
	c.mu.Unlock()
	if call != nil && call.session != nil {
		call.session.outlive(call)
	}
	c.stopIfLent()
	return call
}

// caller returns the call that a message of the child belongs to. The message does not say
// so: it is the latest call of the only client that has calls. If several clients have
// some, or another has just given one up that the child may still work on, the caller is
// in doubt. Calls that the child had not seen when it wrote the message do not count.
func (c *child) caller() (found *call, doubtful bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, call := range c.calls {
		switch {
		case call.own, call.listens(), call.id > c.lastKnown:
		case found == nil:
			found = call
		case !call.sameClient(found):
			return nil, true
		case call.id > found.id:
			found = call
		}
	}
	for d := range c.recentDoubts() {
		if (!d.over || c.heedless) && (found == nil || d.session == nil || d.session != found.session) {
			return nil, true
		}
	}
	return found, false
}

// listens reports whether the call gets only messages that name it.
func (call *call) listens() bool { return call.request.Is(jsonrpc.Method, mcp.MethodListen) }

// sameClient reports whether two calls are known to be of one client.
func (call *call) sameClient(other *call) bool {
	return call.session != nil && call.session == other.session
}

// numbered returns the call to which we have given this id.
func (c *child) numbered(literal []byte) *call {
	number, err := strconv.ParseUint(string(literal), 10, 64)
	if err != nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[number]
}

// called returns the call to which a client has given this id.
func (c *child) called(s *session, id []byte) *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, call := range c.calls {
		if call.session == s && bytes.Equal(call.request.Literal(jsonrpc.ID), id) {
			return call
		}
	}
	return nil
}
