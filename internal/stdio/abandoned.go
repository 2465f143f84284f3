package stdio

import (
	"iter"
	"slices"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

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

// abandonedCalls are the abandoned calls of a child. The lock of the table guards them as well: a
// call moves here when it stops waiting, and infer must find it in one place or the other.
type abandonedCalls struct {
	table *callTable
	input *inputQueue

	calls   []abandonedCall
	dropped time.Time // when the last call would have ended that was dropped to make room
	ping    uint64    // id of the open ping; 0 for none
	ignored bool      // the child sends requests for canceled calls
}

// add adds a call. The caller holds the lock.
func (a *abandonedCalls) add(call *call) {
	now := time.Now()
	a.calls = slices.DeleteFunc(a.calls, func(d abandonedCall) bool { return d.until.Before(now) })
	if len(a.calls) == maxAbandonedCalls {
		a.dropped = a.calls[0].until
		a.calls = slices.Delete(a.calls, 0, 1)
	}
	a.calls = append(a.calls, abandonedCall{id: call.id, session: call.session, until: now.Add(abandonedCallTime)})
}

// remove removes a call. The caller holds the lock.
func (a *abandonedCalls) remove(id uint64) {
	a.calls = slices.DeleteFunc(a.calls, func(d abandonedCall) bool { return d.id == id })
}

// forget removes a call that the child will never see.
func (a *abandonedCalls) forget(call *call) {
	a.table.mu.Lock()
	defer a.table.mu.Unlock()
	a.remove(call.id)
}

// recent yields the calls that the child can have seen when it wrote the last bytes read. The
// caller holds the lock.
func (a *abandonedCalls) recent() iter.Seq[abandonedCall] {
	now := time.Now()
	return func(yield func(abandonedCall) bool) {
		for _, d := range a.calls {
			if d.id <= a.table.lastKnown && now.Before(d.until) && !yield(d) {
				return
			}
		}
	}
}

// mayCause reports whether the child may still work on a call of another client than that of a
// call, or of any client if that is nil. The caller holds the lock.
func (a *abandonedCalls) mayCause(found *call) bool {
	if time.Now().Before(a.dropped) {
		return true
	}
	for d := range a.recent() {
		if (!d.acknowledged || a.ignored) && (found == nil || d.session == nil || d.session != found.session) {
			return true
		}
	}
	return false
}

// sendCancellation sends the child a cancellation, and a ping to learn when it has read it.
func (a *abandonedCalls) sendCancellation(call *call, cancellation []byte) {
	if !a.input.trySend(cancellation) {
		return // the child may read it before the call itself
	}
	a.table.mu.Lock()
	for i := range a.calls {
		a.calls[i].cancelSent = a.calls[i].cancelSent || a.calls[i].id == call.id
	}
	a.table.mu.Unlock()
	a.sendPing()
}

// sendPing sends a ping for calls without one, unless a ping is in flight.
func (a *abandonedCalls) sendPing() {
	ping := a.nextPing()
	if ping == 0 || a.input.trySend(jsonrpc.Request(ping, "ping", nil)) {
		return
	}
	a.table.mu.Lock()
	defer a.table.mu.Unlock()
	a.ping = 0 // the child may read it before the cancellations
}

// nextPing returns the id of the next ping to send, or 0 if none is needed.
func (a *abandonedCalls) nextPing() uint64 {
	a.table.mu.Lock()
	defer a.table.mu.Unlock()
	if a.ping != 0 {
		return 0
	}
	for i := range a.calls {
		if d := &a.calls[i]; d.cancelSent && d.ping == 0 {
			if a.ping == 0 {
				a.table.lastID++
				a.ping = a.table.lastID
			}
			d.ping = a.ping
		}
	}
	return a.ping
}

// takePong handles a response if it answers the ping. Calls canceled before the ping are
// acknowledged then.
func (a *abandonedCalls) takePong(id []byte) bool {
	number := jsonrpc.NumberOf(id)
	a.table.mu.Lock()
	ours := a.ping != 0 && a.ping == number
	if ours {
		a.ping = 0
		for i := range a.calls {
			a.calls[i].acknowledged = a.calls[i].acknowledged || a.calls[i].ping == number
		}
	}
	a.table.mu.Unlock()
	if ours {
		a.sendPing() // for calls canceled since then
	}
	return ours
}

// noteLateRequest notes a server request that came while no call was in flight. If calls were
// canceled just before, it most likely belongs to one of them: the child ignores
// cancellations, and its answers to pings prove nothing.
func (a *abandonedCalls) noteLateRequest() {
	a.table.mu.Lock()
	defer a.table.mu.Unlock()
	for range a.recent() {
		a.ignored = true
	}
}
