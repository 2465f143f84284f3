package stdio

import (
	"iter"
	"slices"
	"strconv"
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
