package stdio

import (
	"context"
	"fmt"
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

// A client of the legacy era that loses its connection in a call has not canceled the call. The events
// of a call have ids, and by the last one that it has got the client can ask for the rest.

const (
	// resumeTime is how long a client may take to ask for the rest of a call.
	resumeTime = time.Minute
	// maxReplayed is how many bytes of events of a call are kept that may have been lost on their way.
	maxReplayed = 64 << 10
	// maxDetached is how many calls of a session are kept without a connection.
	maxDetached = 8
)

// keepsCalls reports whether calls of a client go on while it is away. They do not where the child could
// ask another client meanwhile: it would not be known whose call the question belongs to.
func (c *child) keepsCalls(s *session) bool {
	config := &c.server.pool.config
	return c.server.owner != nil || config.SoleClient ||
		config.Isolation == Shared && !s.canBeAsked("sampling/createMessage") && !s.canBeAsked("elicitation/create")
}

// callEvents are the events of a call. They outlive the responses that they are sent in.
type callEvents struct {
	child  *child
	call   *call
	number uint64 // in the session

	mu      sync.Mutex
	reader  *stream  // that sends them; nil while the client is away
	sent    []letter // the last ones
	size    int      // bytes in sent
	first   uint64   // number of sent[0]
	over    bool     // the last one was sent
	gone    bool     // the rest cannot be asked for anymore
	expires *time.Timer
}

// eventID returns the id of an event.
func (e *callEvents) eventID(n uint64) string {
	return fmt.Sprintf("%s%d-%d", eventPrefix, e.number, n)
}

const eventPrefix = "call-"

// parseEventID reads the id of an event of a call.
func parseEventID(id string) (number, n uint64, ok bool) {
	rest, ok := strings.CutPrefix(id, eventPrefix)
	first, second, both := strings.Cut(rest, "-")
	number, err := strconv.ParseUint(first, 10, 64)
	n, err2 := strconv.ParseUint(second, 10, 64)
	return number, n, ok && both && err == nil && err2 == nil
}

// begin has the events sent in a response, of which this is the first.
func (e *callEvents) begin(by *stream, l letter) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reader, by.events = by, e
	e.keep(l)
}

// take takes the next message for a response. It reports whether that is still the one that they are
// sent in.
func (e *callEvents) take(by *stream) (l letter, ok, last, current bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.reader != by {
		return letter{}, false, false, false
	}
	l, ok, last = e.call.inbox.Take()
	if ok {
		e.keep(l)
	}
	e.over = e.over || last
	return l, ok, last, true
}

// isOver reports whether the last one was sent.
func (e *callEvents) isOver() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.over
}

// keep keeps an event that is sent now.
func (e *callEvents) keep(l letter) {
	e.sent = append(e.sent, l)
	for e.size += l.Len(); e.size > maxReplayed; e.first++ {
		e.size -= e.sent[0].Len()
		e.sent = slices.Delete(e.sent, 0, 1)
	}
}

// resume has the events after one of them sent in another response. It reports whether all of them are
// there.
func (e *callEvents) resume(by *stream, after uint64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gone || after+1 < e.first || after >= e.first+uint64(len(e.sent)) {
		return false
	}
	if e.reader != nil {
		e.reader.stop() // the client knows better that it is broken
	}
	e.expires.Stop()
	e.reader, by.events, by.sent = by, e, after
	by.missed = slices.Clone(e.sent[after+1-e.first:])
	by.last = e.over && len(by.missed) == 0
	return true
}

// detach keeps the events after the end of a response, so that the rest can be asked for. It reports
// whether there is nothing else to be done about the call. The request of a client that has left may
// not be canceled yet: a write can fail before its connection is seen to be closed.
func (e *callEvents) detach(by *stream, cause error) bool {
	left := cause == nil || cause == context.Canceled
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.reader != by:
		return true // another response goes on
	case e.gone, !e.over && !left, !e.call.session.mayDetach(e, e.over, int64(e.size)):
		e.reader = nil
		return false
	}
	e.reader = nil
	e.expires.Reset(resumeTime)
	return true
}

// expire forgets the events, unless the client has come back for the rest. A call that is not over
// is canceled.
func (e *callEvents) expire() {
	e.mu.Lock()
	away := e.reader == nil && !e.gone
	if away {
		e.gone = true
	}
	e.mu.Unlock()
	if away {
		e.call.session.forgetEvents(e)
		e.child.giveUp(e.call, nil)
	}
}

// end says that the rest cannot be asked for anymore.
func (e *callEvents) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.gone, e.sent, e.size = true, nil, 0
	e.expires.Stop()
}

// newEvents returns the events of a call of the client, which begins to be sent.
func (s *session) newEvents(c *child, call *call) *callEvents {
	e := &callEvents{child: c, call: call, first: 1}
	e.expires = time.AfterFunc(resumeTime, e.expire)
	e.expires.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastEvents++
	e.number = s.lastEvents
	s.events[e.number] = e
	return e
}

// forgetEvents forgets the events of a call.
func (s *session) forgetEvents(e *callEvents) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.events, e.number)
	s.uncount(e)
}

// A detachment is what events cost that are kept while their client is away.
type detachment struct {
	over  bool // their call is over
	bytes int64
}

// mayDetach reports whether the events of a call are kept while the client is away. Those of calls that
// are over make room. They count as what is kept for the client otherwise.
func (s *session) mayDetach(e *callEvents, over bool, bytes int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for other, kept := range s.detached {
		if kept.over && len(s.detached) >= maxDetached {
			s.uncount(other)
			delete(s.events, other.number)
		}
	}
	if s.ended || len(s.detached) >= maxDetached || !s.pool.kept.Grow(s.owner, bytes) {
		return false
	}
	s.bytes += bytes
	s.detached[e] = detachment{over, bytes}
	return true
}

// uncount notes that events are no longer kept while their client is away. The caller holds the lock.
func (s *session) uncount(e *callEvents) {
	if kept := s.detached[e].bytes; !s.ended {
		s.pool.kept.Grow(s.owner, -kept)
		s.bytes -= kept
	}
	delete(s.detached, e)
}

// attach notes that the client has come back for the events of a call.
func (s *session) attach(e *callEvents) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uncount(e)
}

// endEventsOf says that the rest of a call cannot be asked for anymore.
func (s *session) endEventsOf(call *call) {
	s.mu.Lock()
	var events *callEvents
	for _, e := range s.events {
		if e.call == call {
			events = e
			delete(s.events, e.number)
			s.uncount(e)
		}
	}
	s.mu.Unlock()
	if events != nil {
		events.end()
	}
}

// endEvents forgets all events, and gives up the calls whose client is away.
func (s *session) endEvents() {
	s.mu.Lock()
	all := make([]*callEvents, 0, len(s.events))
	for _, e := range s.events {
		all = append(all, e)
	}
	clear(s.events)
	clear(s.detached)
	s.mu.Unlock()
	for _, e := range all {
		e.expire()
		e.end()
	}
}

// resume goes on with the stream of a call. It returns nil if the request is for another stream.
func (rt *roundTrip) resume() *http.Response {
	number, after, ok := parseEventID(rt.req.Header.Get("Last-Event-Id"))
	if !ok {
		return nil
	}
	rt.session.mu.Lock()
	events := rt.session.events[number]
	rt.session.mu.Unlock()
	if events == nil {
		return rt.fail(lostEvents())
	}
	st := rt.callStream(events)
	if !events.resume(st, after) {
		return rt.fail(lostEvents())
	}
	rt.session.attach(events)
	st.buf = net.Buffers{streamable.Comment} // so that the header goes out
	return respondStream(rt.req, st)
}

func lostEvents() *jsonrpc.Failure {
	return jsonrpc.InvalidRequest("Last-Event-ID: the rest of this stream is not kept, or not anymore")
}

// callStream returns the stream of a call, to be sent in the response.
func (rt *roundTrip) callStream(events *callEvents) *stream {
	ctx := rt.req.Context()
	var st *stream
	st = newStream(ctx, events.call.inbox, func() (kept bool) {
		if kept = events.detach(st, context.Cause(ctx)); !kept {
			events.child.giveUp(events.call, context.Cause(ctx))
		}
		rt.done()
		return kept
	})
	return st
}
