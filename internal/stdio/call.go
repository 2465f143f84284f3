package stdio

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
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

	// Guarded by the lock of the table.
	queued       bool // it is in the queue to the child, or already written
	sentAt       time.Time
	cancellation []byte // the notification that it was canceled
}

// fail ends a call that gets no response. The client gets the failure, not the cause.
func (call *call) fail(f *jsonrpc.Failure, cause error) {
	call.err = fmt.Errorf("%w: %w", f, cause)
	call.inbox.End(letter{message: frame{f.Append(nil, call.request.Literal(jsonrpc.ID))}})
}

// isList reports whether the call requests a list. Lists say nothing about the client, so
// they do not make a child shared.
func (call *call) isList() bool {
	return bytes.HasSuffix(call.request.Literal(jsonrpc.Method), []byte(`/list"`))
}

// isListen reports whether the call gets only messages that carry its id.
func (call *call) isListen() bool { return call.request.Is(jsonrpc.Method, mcp.MethodListen) }

// sameClient reports whether two calls have the same session.
func (call *call) sameClient(other *call) bool {
	return call.session != nil && call.session == other.session
}

// first waits for the first message that the client accepts. That is the response if the client
// does not accept event streams.
func (call *call) first(ctx context.Context, header http.Header) (l letter, last bool, err error) {
	for {
		select {
		case <-call.inbox.More():
		case <-ctx.Done():
			return letter{}, false, context.Cause(ctx)
		}
		l, _, last = call.inbox.Take()
		if last || acceptsStream(header) {
			return l, last, nil
		}
		if l.serverRequest != nil {
			l.serverRequest.refuse("the client does not accept event streams")
		}
	}
}

// discard refuses the server requests on the stream of a call that the client will not read, and
// all later ones.
func (call *call) discard() {
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

// sendCall registers a call under a new id and queues it. The id, which is also its progress
// token, counts from 1, because some servers treat 0 as missing.
func (c *child) sendCall(ctx context.Context, call *call) error {
	call.inbox = newInbox(ownerOf(ctx), maxUnread)
	if err := c.calls.register(call); err != nil {
		return err
	}
	number := strconv.AppendUint(call.digits[:0], call.id, 10)
	edits := call.request.ReplaceAll(number, jsonrpc.ID, jsonrpc.ProgressToken)
	if err := c.input.sendEdited(ctx, call.request.Raw, edits); err != nil {
		c.unregister(call)
		c.calls.abandoned.forget(call)
		call.discard()
		return err
	}
	if cancellation := c.calls.markQueued(call); cancellation != nil {
		c.calls.abandoned.sendCancellation(call, cancellation)
	}
	return nil
}

// unregister stops waiting for a response. It reports whether the call was still waiting.
func (c *child) unregister(call *call) bool {
	defer c.stopIfDedicated()
	return c.calls.abandon(call)
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
		if c.calls.noteCancellation(call, cancellation) {
			c.calls.abandoned.sendCancellation(call, cancellation)
		}
	}
	call.discard()
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
		if err := c.calls.death(); err != nil {
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
	call := c.calls.take(jsonrpc.NumberOf(id))
	if call != nil && call.session != nil {
		call.session.serverRequests.detach(call)
	}
	c.stopIfDedicated()
	return call
}

// A callTable has the calls that wait for a child, and knows which clients had calls.
type callTable struct {
	mu        sync.Mutex
	lastID    uint64
	lastKnown uint64 // latest call that the child can have seen when it wrote the last bytes read
	waiting   map[uint64]*call
	abandoned abandonedCalls
	served    bool  // the child has answered a call of a client
	dead      error // why the child takes no more calls; nil while it does

	lastClient  *session // client of the latest call
	servedMany  bool     // there were also calls of other clients, or of one without a session
	dedicatedTo *session // client whose calls the child finishes; it takes no others

	timeouts    int       // calls that have timed out since the last output
	lastTimeout time.Time // time of the latest of them
	checking    bool      // a ping is in flight because of them
}

// register gives a call its id.
func (t *callTable) register(call *call) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.dead != nil:
		return t.dead
	case t.dedicatedTo != nil:
		return errDedicated
	case len(t.waiting) >= maxCalls:
		return errBusy
	}
	t.lastID++
	call.id = t.lastID
	t.waiting[call.id] = call
	if !call.internal && !call.isList() {
		t.servedMany = t.servedMany || call.session == nil || t.lastClient != nil && t.lastClient != call.session
		t.lastClient = call.session
	}
	return nil
}

// markQueued notes that a call is in the queue. It returns the notification to send next
// if the call was canceled before.
func (t *callTable) markQueued(call *call) (cancellation []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	call.queued, call.sentAt = true, time.Now()
	return call.cancellation
}

// noteCancellation stores the notification and reports whether it can be sent now. If not,
// sendCall sends it.
func (t *callTable) noteCancellation(call *call, cancellation []byte) (queued bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	call.cancellation = cancellation
	return call.queued
}

// abandon stops waiting for a response. It reports whether the call was still waiting.
func (t *callTable) abandon(call *call) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, waiting := t.waiting[call.id]
	delete(t.waiting, call.id)
	if waiting && !call.internal && !call.isListen() {
		t.abandoned.add(call)
	}
	return waiting
}

// take returns the call with an id, which has a response now. It returns nil if none waits.
func (t *callTable) take(id uint64) *call {
	t.mu.Lock()
	defer t.mu.Unlock()
	call := t.waiting[id]
	delete(t.waiting, id)
	t.served = t.served || call != nil && !call.internal
	t.abandoned.remove(id)
	return call
}

// infer returns the call that a message of the child belongs to. The message does not
// name it: it is the latest call of the only client that has calls. The result is ambiguous
// if several clients have calls, or if another client abandoned one that the child may still
// work on. Calls that the child had not seen when it wrote the message do not count.
func (t *callTable) infer() (found *call, ambiguous bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, call := range t.waiting {
		switch {
		case call.internal, call.isListen(), call.id > t.lastKnown:
		case found == nil:
			found = call
		case !call.sameClient(found):
			return nil, true
		case call.id > found.id:
			found = call
		}
	}
	if t.abandoned.mayCause(found) {
		return nil, true
	}
	return found, false
}

// byID returns the call with an id that the pool gave it.
func (t *callTable) byID(literal []byte) *call {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.waiting[jsonrpc.NumberOf(literal)]
}

// byClientID returns the call with an id that its client gave it.
func (t *callTable) byClientID(s *session, id []byte) *call {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, call := range t.waiting {
		if call.session == s && bytes.Equal(call.request.Literal(jsonrpc.ID), id) {
			return call
		}
	}
	return nil
}

// busy reports whether calls wait for the child.
func (t *callTable) busy() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.waiting) > 0
}

// end takes no more calls, because of an error, and returns those that the child will not answer.
func (t *callTable) end(err error) map[uint64]*call {
	t.mu.Lock()
	defer t.mu.Unlock()
	calls := t.waiting
	t.waiting, t.dead = nil, err
	return calls
}

// death returns why the child is dead, or nil.
func (t *callTable) death() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.dead
}

func (t *callTable) hasServed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.served
}

// workedOnlyFor reports whether no other client had a call.
func (t *callTable) workedOnlyFor(s *session) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.servedMany && (t.lastClient == nil || t.lastClient == s)
}

// dedicate leaves the child to one client, to finish that client's calls. It fails if other
// clients have calls.
func (t *callTable) dedicate(to *session) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, call := range t.waiting {
		if !call.internal && call.session != to {
			return false
		}
	}
	t.dedicatedTo = to
	return true
}

// isDedicatedTo reports whether the child is left to a client.
func (t *callTable) isDedicatedTo(client *session) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.dedicatedTo != nil && t.dedicatedTo == client
}

// isFinished reports whether the child is left to a client whose calls have ended.
func (t *callTable) isFinished() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.dedicatedTo != nil && len(t.waiting) == 0
}

// noteRead records the latest call that the child can have seen when it wrote the bytes
// just read. Later calls cannot be their cause.
func (t *callTable) noteRead() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lastKnown = t.lastID
	t.timeouts = 0
}

// silent reports whether the child seems to have stopped responding.
func (t *callTable) silent() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.timeouts >= maxTimeouts
}

// countTimeout counts a call that has timed out. Calls that waited at the same time count once.
// After several it calls check, unless a check is under way or the child is dead. It holds the
// lock meanwhile, so the child cannot end before check returns.
func (t *callTable) countTimeout(call *call, check func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.waiting[call.id] == nil || !call.queued || call.isListen() || call.sentAt.Before(t.lastTimeout) {
		return
	}
	t.lastTimeout = time.Now()
	t.timeouts++
	if t.timeouts >= maxTimeouts && !t.checking && t.dead == nil {
		t.checking = true
		check()
	}
}

// endCheck notes the end of a check.
func (t *callTable) endCheck() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.checking = false
}
