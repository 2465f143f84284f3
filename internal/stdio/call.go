package stdio

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// A call is a request that waits for its response.
type call struct {
	id       uint64
	digits   [20]byte        // buffer for the decimal id
	request  jsonrpc.Message // as the client sent it
	session  *session        // session of the client; nil without one
	internal bool            // made by the pool itself
	inbox    *inbox
	err      error // error instead of a response; set before the inbox ends

	// Guarded by the lock of the child.
	queued       bool // it is in the queue to the child, or already written
	sentAt       time.Time
	cancellation []byte // the notification that it was canceled
}

// fail ends a call that gets no response. The client gets the failure, not the cause.
func (call *call) fail(f *jsonrpc.Failure, cause error) {
	call.err = fmt.Errorf("%w: %w", f, cause)
	call.inbox.End(letter{message: frame{f.Append(nil, call.request.Literal(jsonrpc.ID))}})
}

// sendCall registers a call under a new id and queues it. The id, which is also its progress
// token, counts from 1, because some servers treat 0 as missing.
func (c *child) sendCall(ctx context.Context, call *call) error {
	call.inbox = newInbox(ownerOf(ctx), maxUnread)
	if err := c.register(call); err != nil {
		return err
	}
	number := strconv.AppendUint(call.digits[:0], call.id, 10)
	edits := call.request.ReplaceAll(number, jsonrpc.ID, jsonrpc.ProgressToken)
	if err := c.sendEdited(ctx, call.request.Raw, edits); err != nil {
		c.unregister(call)
		c.noteUnseen(call)
		c.discardCall(call)
		return err
	}
	if cancellation := c.markQueued(call); cancellation != nil {
		c.sendCancellation(call, cancellation)
	}
	return nil
}

// markQueued notes that a call is in the queue. It returns the notification to send next
// if the call was canceled before.
func (c *child) markQueued(call *call) (cancellation []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	call.queued, call.sentAt = true, time.Now()
	return call.cancellation
}

func (c *child) register(call *call) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.dead != nil:
		return c.dead
	case c.dedicatedTo != nil:
		return errDedicated
	case len(c.calls) >= maxCalls:
		return errBusy
	}
	c.lastID++
	call.id = c.lastID
	c.calls[call.id] = call
	if !call.internal && !call.isList() {
		c.servedMany = c.servedMany || call.session == nil || c.lastClient != nil && c.lastClient != call.session
		c.lastClient = call.session
	}
	return nil
}

// isList reports whether the call requests a list. Lists say nothing about the client, so
// they do not make a child shared.
func (call *call) isList() bool {
	return bytes.HasSuffix(call.request.Literal(jsonrpc.Method), []byte(`/list"`))
}

// unregister stops waiting for a response. It reports whether the call was still waiting.
func (c *child) unregister(call *call) bool {
	defer c.stopIfDedicated()
	c.mu.Lock()
	defer c.mu.Unlock()
	_, waiting := c.calls[call.id]
	delete(c.calls, call.id)
	if waiting && !call.internal && !call.isListen() {
		c.addAbandoned(call)
	}
	return waiting
}

// discardCall refuses the server requests on the stream of a call that the client will not
// read, and all later ones.
func (c *child) discardCall(call *call) {
	for _, l := range call.inbox.Discard() {
		if q := l.serverRequest; q != nil {
			q.refuse("the client has left")
		}
	}
	if call.session != nil {
		call.session.serverRequests.refuseMatching(func(q *serverRequest) bool { return q.call == call })
		call.session.events.endOf(call)
	}
}

// giveUp cancels a call because its HTTP request has ended, with this cause.
func (c *child) giveUp(call *call, cause error) {
	c.noteTimeout(call, cause)
	c.cancel(call, "the client has left")
}

// cancel abandons a call, notifies the child and refuses its server requests. If the call is
// not queued yet, sendCall sends the notification after it.
func (c *child) cancel(call *call, reason string) {
	if c.unregister(call) {
		params := fmt.Appendf(nil, `{"requestId":%d`, call.id)
		if reason != "" {
			params = fmt.Appendf(params, `,"reason":%s`, jsonrpc.Quote(reason))
		}
		cancellation := jsonrpc.Notification("notifications/cancelled", append(params, '}'))
		if c.noteCancellation(call, cancellation) {
			c.sendCancellation(call, cancellation)
		}
	}
	c.discardCall(call)
}

// noteCancellation stores the notification and reports whether it can be sent now. If not,
// sendCall sends it.
func (c *child) noteCancellation(call *call, cancellation []byte) (queued bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	call.cancellation = cancellation
	return call.queued
}

// request sends a request of the pool itself and waits for the response.
func (c *child) request(ctx context.Context, method string, params []byte) (*jsonrpc.Message, error) {
	call := &call{internal: true}
	if failure := call.request.Read(jsonrpc.Request(0, method, params)); failure != nil {
		return nil, failure
	}
	if err := c.sendCall(ctx, call); err != nil {
		return nil, err
	}
	defer call.inbox.Discard()
	for {
		select {
		case <-call.inbox.More():
		case <-ctx.Done():
			c.unregister(call)
			return nil, ctx.Err()
		}
		l, _, last := call.inbox.Take()
		if !last {
			continue // progress that a client's initialize has requested
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

// takeCall returns the call with this id and stops waiting for its response.
func (c *child) takeCall(id []byte) *call {
	number, err := strconv.ParseUint(string(id), 10, 64)
	if err != nil {
		return nil
	}
	c.mu.Lock()
	call := c.calls[number]
	delete(c.calls, number)
	c.served = c.served || call != nil && !call.internal
	c.removeAbandoned(number)
	c.mu.Unlock()
	if call != nil && call.session != nil {
		call.session.serverRequests.detach(call)
	}
	c.stopIfDedicated()
	return call
}

// inferCall returns the call that a message of the child belongs to. The message does not
// name it: it is the latest call of the only client that has calls. The result is ambiguous
// if several clients have calls, or if another client abandoned one that the child may still
// work on. Calls that the child had not seen when it wrote the message do not count.
func (c *child) inferCall() (found *call, ambiguous bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, call := range c.calls {
		switch {
		case call.internal, call.isListen(), call.id > c.lastKnown:
		case found == nil:
			found = call
		case !call.sameClient(found):
			return nil, true
		case call.id > found.id:
			found = call
		}
	}
	for d := range c.recentlyAbandoned() {
		if (!d.acknowledged || c.ignoresCancellation) && (found == nil || d.session == nil || d.session != found.session) {
			return nil, true
		}
	}
	return found, false
}

// isListen reports whether the call gets only messages that carry its id.
func (call *call) isListen() bool { return call.request.Is(jsonrpc.Method, mcp.MethodListen) }

// sameClient reports whether two calls have the same session.
func (call *call) sameClient(other *call) bool {
	return call.session != nil && call.session == other.session
}

// callByID returns the call with an id that the pool gave it.
func (c *child) callByID(literal []byte) *call {
	number, err := strconv.ParseUint(string(literal), 10, 64)
	if err != nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[number]
}

// callByClientID returns the call with an id that its client gave it.
func (c *child) callByClientID(s *session, id []byte) *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, call := range c.calls {
		if call.session == s && bytes.Equal(call.request.Literal(jsonrpc.ID), id) {
			return call
		}
	}
	return nil
}

// An abandonedCall is a call whose response is not wanted anymore. Messages of the child may
// belong to it until the child has read the cancellation. A response to a ping sent after
// the cancellation proves that: everything the child wrote for the call precedes it. For
// children that do not answer pings, an abandoned call counts for abandonedCallTime, or until
// they respond to it.
type abandonedCall struct {
	id           uint64
	session      *session
	until        time.Time
	cancelSent   bool   // the cancellation is in the queue, ahead of later messages
	ping         uint64 // id of the ping sent after it; 0 for none
	acknowledged bool   // the ping was answered
}

const (
	abandonedCallTime = 10 * time.Second // servers that handle cancellations do so at once
	maxAbandonedCalls = 1_000
)

// addAbandoned adds a call to the abandoned ones. The caller holds the lock.
func (c *child) addAbandoned(call *call) {
	now := time.Now()
	c.abandoned = slices.DeleteFunc(c.abandoned, func(d abandonedCall) bool { return d.until.Before(now) })
	if len(c.abandoned) == maxAbandonedCalls {
		c.abandoned = slices.Delete(c.abandoned, 0, 1)
	}
	c.abandoned = append(c.abandoned, abandonedCall{id: call.id, session: call.session, until: now.Add(abandonedCallTime)})
}

// noteUnseen removes an abandoned call that the child will never see.
func (c *child) noteUnseen(call *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeAbandoned(call.id)
}

// removeAbandoned removes a call from the abandoned ones. The caller holds the lock.
func (c *child) removeAbandoned(id uint64) {
	c.abandoned = slices.DeleteFunc(c.abandoned, func(d abandonedCall) bool { return d.id == id })
}

// recentlyAbandoned yields the abandoned calls that the child can have seen when it wrote the
// last bytes read. The caller holds the lock.
func (c *child) recentlyAbandoned() iter.Seq[abandonedCall] {
	now := time.Now()
	return func(yield func(abandonedCall) bool) {
		for _, d := range c.abandoned {
			if d.id <= c.lastKnown && now.Before(d.until) && !yield(d) {
				return
			}
		}
	}
}

// sendCancellation sends the child a cancellation, and a ping to learn when it has read it.
func (c *child) sendCancellation(call *call, cancellation []byte) {
	if !c.trySend(cancellation) {
		return // the child may read it before the call itself
	}
	c.mu.Lock()
	for i := range c.abandoned {
		c.abandoned[i].cancelSent = c.abandoned[i].cancelSent || c.abandoned[i].id == call.id
	}
	c.mu.Unlock()
	c.pingForAbandoned()
}

// pingForAbandoned sends a ping for abandoned calls without one, unless a ping is in flight.
func (c *child) pingForAbandoned() {
	ping := c.nextPing()
	if ping == 0 || c.trySend(jsonrpc.Request(ping, "ping", nil)) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ping = 0 // the child may read it before the cancellations
}

// nextPing returns the id of the next ping to send, or 0 if none is needed.
func (c *child) nextPing() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ping != 0 {
		return 0
	}
	for i := range c.abandoned {
		if d := &c.abandoned[i]; d.cancelSent && d.ping == 0 {
			if c.ping == 0 {
				c.lastID++
				c.ping = c.lastID
			}
			d.ping = c.ping
		}
	}
	return c.ping
}

// takePong handles a response if it answers the ping. Calls canceled before the ping are
// acknowledged then.
func (c *child) takePong(id []byte) bool {
	number, err := strconv.ParseUint(string(id), 10, 64)
	if err != nil {
		return false
	}
	c.mu.Lock()
	ours := c.ping != 0 && c.ping == number
	if ours {
		c.ping = 0
		for i := range c.abandoned {
			c.abandoned[i].acknowledged = c.abandoned[i].acknowledged || c.abandoned[i].ping == number
		}
	}
	c.mu.Unlock()
	if ours {
		c.pingForAbandoned() // for calls canceled since then
	}
	return ours
}

// noteLateRequest notes a server request that came while no call was in flight. If calls were
// canceled just before, it most likely belongs to one of them: the child ignores
// cancellations, and its answers to pings prove nothing.
func (c *child) noteLateRequest() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range c.recentlyAbandoned() {
		c.ignoresCancellation = true
	}
}
