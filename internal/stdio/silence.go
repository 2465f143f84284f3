package stdio

import (
	"context"
	"time"

	"go.uber.org/zap"
)

// A child that does not answer is found out by health checks, if there are any. Without
// them its calls tell: when several in a row have been given up after a while, and it has
// said nothing in the meantime, it is asked whether it is alive, and started again if not.

const (
	maxUnheard  = 3                // calls
	unheardTime = 5 * time.Second  // that a call waits at least, so that it counts
	aliveTime   = 10 * time.Second // in which a ping is answered
)

// heard notes that the child has said something.
func (c *child) heard() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unheard = 0
}

// silent reports whether the child is suspected not to answer any more.
func (c *child) silent() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unheard >= maxUnheard
}

// noteUnheard counts a call that was given up. If it is one too many, the child is asked
// whether it is alive.
func (c *child) noteUnheard(call *call) {
	pool := c.server.pool
	c.mu.Lock()
	defer c.mu.Unlock()
	if !call.sent || call.listens() || time.Since(call.begun) < pool.unheardTime {
		return
	}
	if c.unheard++; c.unheard < maxUnheard || c.asked || c.dead != nil {
		return
	}
	c.asked = true
	pool.running.Go(func() { c.server.checkSilent(c) })
}

// checkSilent asks a silent child until it has answered or was ended.
func (s *server) checkSilent(c *child) {
	s.log().Warn("calls were not answered, asking whether the server is alive", zap.Int("pid", c.cmd.Process.Pid), zap.Int("calls", maxUnheard))
	for c.silent() && c.death() == nil && s.current() == c && !s.ending() {
		ctx, cancel := context.WithTimeout(context.Background(), s.pool.aliveTime)
		_ = s.check(ctx) // which logs what it finds
		cancel()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = false
}
