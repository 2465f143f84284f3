package stdio

import (
	"iter"
	"slices"
	"strconv"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

// A doubt is a call that was given up. Messages of the child may belong to it until the
// child has read that it was canceled. An answer to a ping that was sent after that shows
// it: what was written because of the call before is read before the answer. Children that
// do not answer pings are given some time, or until they answer the call nevertheless.
type doubt struct {
	id      uint64
	session *session
	until   time.Time
	told    bool   // the cancellation is in the queue, ahead of what is sent from now on
	ping    uint64 // the id of the ping that was sent after it, if one was
	over    bool   // that was answered
}

const (
	doubtTime = 10 * time.Second // servers that heed cancellations do so at once
	maxDoubts = 1_000
)

// doubt adds a call to the doubts. The caller holds the lock.
func (c *child) doubt(call *call) {
	now := time.Now()
	c.doubts = slices.DeleteFunc(c.doubts, func(d doubt) bool { return d.until.Before(now) })
	if len(c.doubts) == maxDoubts {
		c.doubts = slices.Delete(c.doubts, 0, 1)
	}
	c.doubts = append(c.doubts, doubt{id: call.id, session: call.session, until: now.Add(doubtTime)})
}

// noteUnseen notes that the child will never see a call that was given up.
func (c *child) noteUnseen(call *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endDoubt(call.id)
}

// endDoubt ends the doubt about a call. The caller holds the lock.
func (c *child) endDoubt(id uint64) {
	c.doubts = slices.DeleteFunc(c.doubts, func(d doubt) bool { return d.id == id })
}

// recentDoubts yields the calls given up of late that the child can have seen when it wrote the
// bytes read last. The caller holds the lock.
func (c *child) recentDoubts() iter.Seq[doubt] {
	now := time.Now()
	return func(yield func(doubt) bool) {
		for _, d := range c.doubts {
			if d.id <= c.lastKnown && now.Before(d.until) && !yield(d) {
				return
			}
		}
	}
}

// tellCanceled tells the child that a call was canceled, and asks for a sign that it has
// read that.
func (c *child) tellCanceled(call *call, cancellation []byte) {
	if !c.tell(cancellation) {
		return // it may come before the call itself
	}
	c.mu.Lock()
	for i := range c.doubts {
		c.doubts[i].told = c.doubts[i].told || c.doubts[i].id == call.id
	}
	c.mu.Unlock()
	c.pingForDoubts()
}

// pingForDoubts sends a ping for the doubts that have none yet, unless another is under way.
func (c *child) pingForDoubts() {
	ping := c.nextPing()
	if ping == 0 || c.tell(jsonrpc.Request(ping, "ping", nil)) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ping = 0 // it may come before the cancellations
}

// nextPing returns the id of a ping that is to be sent, or 0 if there is no need for one.
func (c *child) nextPing() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ping != 0 {
		return 0
	}
	for i := range c.doubts {
		if d := &c.doubts[i]; d.told && d.ping == 0 {
			if c.ping == 0 {
				c.lastID++
				c.ping = c.lastID
			}
			d.ping = c.ping
		}
	}
	return c.ping
}

// takePong takes an answer, if it is that to the ping. Calls that were canceled before
// the ping are over then.
func (c *child) takePong(id []byte) bool {
	number, err := strconv.ParseUint(string(id), 10, 64)
	if err != nil {
		return false
	}
	c.mu.Lock()
	ours := c.ping != 0 && c.ping == number
	if ours {
		c.ping = 0
		for i := range c.doubts {
			c.doubts[i].over = c.doubts[i].over || c.doubts[i].ping == number
		}
	}
	c.mu.Unlock()
	if ours {
		c.pingForDoubts() // calls may have been canceled since
	}
	return ours
}

// noteLate notes a question that came while no call was in flight. If calls were canceled
// just before, it is most likely one of them that asks: the child does not heed
// cancellations, and the answer to a ping shows nothing.
func (c *child) noteLate() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range c.recentDoubts() {
		c.heedless = true
	}
}
