package stdio

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// A legacy client that loses its connection during a call has not canceled the call. The events of
// a call have IDs, and the client can resume after the last one that it received.

const (
	// resumeTime is how long a client may take to resume a call.
	resumeTime = time.Minute
	// maxReplayed is how many bytes of sent events are kept for each call, in case they were lost.
	maxReplayed = 64 << 10
	// maxDetached is how many calls of a session are kept without a connection.
	maxDetached = 8
)

// keepsCalls reports whether calls of a client go on while it is disconnected. They do not if the
// child may send requests to clients: with a call of a disconnected client in flight, it would be
// ambiguous which call a request belongs to.
func (s *session) keepsCalls() bool {
	config := &s.pool.config
	return s.server != nil || config.SoleClient ||
		config.Isolation == Shared && !s.canBeAsked("sampling/createMessage") && !s.canBeAsked("elicitation/create")
}

// callEvents are the events of a call. They outlive the responses that carry them.
type callEvents struct {
	child  *child
	call   *call
	number uint64 // number of the call in the session

	mu          sync.Mutex
	reader      *stream  // current response; nil while the client is disconnected
	sent        []letter // latest sent events
	size        int      // bytes in sent
	first       uint64   // number of sent[0]
	over        bool     // the last event was sent
	unavailable bool     // the client can no longer resume
	expires     *time.Timer
}

// eventID returns the ID of an event.
func (e *callEvents) eventID(n uint64) string {
	return fmt.Sprintf("%s%d-%d", eventPrefix, e.number, n)
}

const eventPrefix = "call-"

// parseEventID parses the ID of an event of a call.
func parseEventID(id string) (call, event uint64, ok bool) {
	rest, ok := strings.CutPrefix(id, eventPrefix)
	first, second, both := strings.Cut(rest, "-")
	call, err := strconv.ParseUint(first, 10, 64)
	event, err2 := strconv.ParseUint(second, 10, 64)
	return call, event, ok && both && err == nil && err2 == nil
}

// startStream begins to send the events in a response, after the first letter.
func (e *callEvents) startStream(st *stream, l letter) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reader, st.events = st, e
	e.record(l)
}

// take takes the next message for a response. It reports whether that response is still the
// current one.
func (e *callEvents) take(st *stream) (l letter, ok, last, current bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.reader != st {
		return letter{}, false, false, false
	}
	l, ok, last = e.call.inbox.Take()
	if ok {
		e.record(l)
	}
	e.over = e.over || last
	return l, ok, last, true
}

// isOver reports whether the last event was sent.
func (e *callEvents) isOver() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.over
}

// record keeps an event that is being sent, because the client may need it again.
func (e *callEvents) record(l letter) {
	e.sent = append(e.sent, l)
	for e.size += l.Len(); e.size > maxReplayed; e.first++ {
		e.size -= e.sent[0].Len()
		e.sent = slices.Delete(e.sent, 0, 1)
	}
}

// resume sends the events after the given one in another response. It reports whether all of them
// are available.
func (e *callEvents) resume(st *stream, after uint64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.unavailable || after+1 < e.first || after >= e.first+uint64(len(e.sent)) {
		return false
	}
	if e.reader != nil {
		e.reader.stop() // the client has noticed before the pool that it is broken
	}
	e.expires.Stop()
	e.reader, st.events, st.sent = st, e, after
	st.replay = slices.Clone(e.sent[after+1-e.first:])
	st.last = e.over && len(st.replay) == 0
	return true
}

// detach keeps the events after the end of a response, so that the client can resume. It reports
// whether they are kept, or another response sends them. The request of a client that has left may
// not be canceled yet: a write can fail before the closed connection is noticed.
func (e *callEvents) detach(st *stream, cause error) bool {
	left := cause == nil || cause == context.Canceled
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.reader != st:
		return true // another response goes on
	case e.unavailable, !e.over && !left, !e.call.session.events.tryDetach(e, e.over, int64(e.size)):
		e.reader = nil
		return false
	}
	e.reader = nil
	e.expires.Reset(resumeTime)
	return true
}

// expire discards the events, unless the client has resumed. A call that is not over is canceled.
func (e *callEvents) expire() {
	e.mu.Lock()
	away := e.reader == nil && !e.unavailable
	if away {
		e.unavailable = true
	}
	e.mu.Unlock()
	if away {
		e.call.session.events.forget(e)
		e.child.giveUp(e.call, nil)
	}
}

// end discards the events.
func (e *callEvents) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unavailable, e.sent, e.size = true, nil, 0
	e.expires.Stop()
}

// keptEvents are the events of the calls of a session that the client can resume.
type keptEvents struct {
	memory *account

	mu       sync.Mutex
	last     uint64 // latest number
	byNumber map[uint64]*callEvents
	detached map[*callEvents]detachment // those of calls without a connection
}

// add returns the events of a call, whose first message is about to be sent.
func (k *keptEvents) add(c *child, call *call) *callEvents {
	e := &callEvents{child: c, call: call, first: 1}
	e.expires = time.AfterFunc(resumeTime, e.expire)
	e.expires.Stop()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.last++
	e.number = k.last
	k.byNumber[e.number] = e
	return e
}

// get returns the events of the call with a number.
func (k *keptEvents) get(number uint64) *callEvents {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.byNumber[number]
}

// forget removes the events of a call.
func (k *keptEvents) forget(e *callEvents) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.byNumber, e.number)
	k.removeDetached(e)
}

// A detachment describes the events of a call that are kept for a disconnected client.
type detachment struct {
	over  bool // the call is over
	bytes int64
}

// tryDetach keeps the events of a call while the client is disconnected, and reports whether there
// is room. It drops events of calls that are over to make room. The bytes of events count toward
// the quota of the owner.
func (k *keptEvents) tryDetach(e *callEvents, over bool, bytes int64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for other, kept := range k.detached {
		if kept.over && len(k.detached) >= maxDetached {
			k.removeDetached(other)
			delete(k.byNumber, other.number)
			other.expires.Reset(0) // frees them, unless the client is about to resume
		}
	}
	if len(k.detached) >= maxDetached || !k.memory.grow(bytes) {
		return false
	}
	k.detached[e] = detachment{over, bytes}
	return true
}

// removeDetached notes that events are no longer kept for a disconnected client. The caller holds
// the lock.
func (k *keptEvents) removeDetached(e *callEvents) {
	k.memory.grow(-k.detached[e].bytes)
	delete(k.detached, e)
}

// attach notes that the client has resumed a call.
func (k *keptEvents) attach(e *callEvents) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.removeDetached(e)
}

// endOf discards the events of a call.
func (k *keptEvents) endOf(call *call) {
	k.mu.Lock()
	var events *callEvents
	for _, e := range k.byNumber {
		if e.call == call {
			events = e
			delete(k.byNumber, e.number)
			k.removeDetached(e)
		}
	}
	k.mu.Unlock()
	if events != nil {
		events.end()
	}
}

// end discards all events, and cancels the calls of a disconnected client.
func (k *keptEvents) end() {
	k.mu.Lock()
	all := slices.Collect(maps.Values(k.byNumber))
	clear(k.byNumber)
	clear(k.detached)
	k.mu.Unlock()
	for _, e := range all {
		e.expire()
		e.end()
	}
}

// resume resumes the stream of a call. It returns nil if the request is for another stream.
func (rt *roundTrip) resume() *http.Response {
	number, after, ok := parseEventID(rt.req.Header.Get("Last-Event-Id"))
	if !ok {
		return nil
	}
	events := rt.session.events.get(number)
	if events == nil {
		return rt.fail(lostEvents())
	}
	st := rt.callStream(events)
	if !events.resume(st, after) {
		return rt.fail(lostEvents())
	}
	rt.session.events.attach(events)
	st.buf = net.Buffers{streamable.Comment} // sends the header
	return respondStream(rt.req, st)
}

func lostEvents() *jsonrpc.Failure {
	return jsonrpc.InvalidRequest("Last-Event-ID: the rest of this stream is not available")
}

// callStream returns a stream for the events of a call.
func (rt *roundTrip) callStream(events *callEvents) *stream {
	ctx := rt.req.Context()
	var st *stream
	st = newStream(ctx, events.call.inbox, func() (kept bool) {
		kept = events.detach(st, context.Cause(ctx))
		if !kept {
			events.child.giveUp(events.call, context.Cause(ctx))
		}
		rt.finish()
		return kept
	})
	return st
}
