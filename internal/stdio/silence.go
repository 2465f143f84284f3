package stdio

import (
	"context"
	"errors"
	"net"
	"time"

	"go.uber.org/zap"
)

// A child that does not answer is found out by health checks, if there are any. Without
// them its calls tell: when several have timed out, one after the other, and it has
// said nothing in the meantime, it gets a ping, and all the time that slow work may take.
// One that is still at work on a call, even on one that was given up, says something by
// then. The ping is ahead of later calls, so a child cannot be at work on these instead.

const (
	maxUnheard = 3               // calls
	aliveTime  = 5 * time.Minute // in which it says something
)

// silent reports whether the child seems to have stopped answering.
func (c *child) silent() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unheard >= maxUnheard
}

// noteUnheard counts a call that was given up because of its timeout. Calls that waited
// at the same time count once. A client that leaves says nothing about the child.
func (c *child) noteUnheard(call *call, cause error) {
	var timeout net.Error
	if !errors.As(cause, &timeout) || !timeout.Timeout() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls[call.id] == nil || !call.sent || call.listens() || call.begun.Before(c.lastUnheard) {
		return
	}
	c.lastUnheard = time.Now()
	if c.unheard++; c.unheard < maxUnheard || c.asked || c.dead != nil {
		return
	}
	c.asked = true
	c.server.pool.running.Go(c.checkSilent)
}

// checkSilent asks a silent child whether it is alive, and stops one that says nothing.
func (c *child) checkSilent() {
	pool := c.server.pool
	c.log().Warn("calls were not answered, asking whether the server is alive", zap.Int("calls", maxUnheard), zap.Duration("within", pool.aliveTime))
	ctx, cancel := context.WithTimeout(context.Background(), pool.aliveTime)
	defer cancel()
	if _, err := c.request(ctx, "ping", nil); errors.Is(err, context.DeadlineExceeded) && c.silent() {
		c.log().Warn("no answer to ping")
		c.stop(pool.config.StopGrace)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = false
}
