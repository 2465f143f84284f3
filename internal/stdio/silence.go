package stdio

import (
	"context"
	"errors"
	"net"
	"time"

	"go.uber.org/zap"
)

// Health checks find a child that does not respond. Without them, timeouts of calls do: after
// several in a row without any output, the child gets a ping, and aliveTime to respond, because
// work may be slow. A child that still works on a call, even an abandoned one, writes something by
// then. The ping precedes later calls, so the child cannot be working on those instead.

const (
	maxTimeouts = 3               // calls that time out before the ping
	aliveTime   = 5 * time.Minute // for any output after the ping
)

// silent reports whether the child seems to have stopped responding.
func (c *child) silent() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.timeouts >= maxTimeouts
}

// noteTimeout counts a call that has timed out. Calls that waited at the same time count once. A
// client that leaves says nothing about the child.
func (c *child) noteTimeout(call *call, cause error) {
	var timeout net.Error
	if !errors.As(cause, &timeout) || !timeout.Timeout() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls[call.id] == nil || !call.queued || call.isListen() || call.sentAt.Before(c.lastTimeout) {
		return
	}
	c.lastTimeout = time.Now()
	c.timeouts++
	if c.timeouts < maxTimeouts || c.checking || c.dead != nil {
		return
	}
	c.checking = true
	c.server.pool.running.Go(c.checkSilent)
}

// checkSilent pings a silent child, and stops it if it writes nothing.
func (c *child) checkSilent() {
	pool := c.server.pool
	c.log().Warn("calls timed out, checking whether the server is alive", zap.Int("calls", maxTimeouts),
		zap.Duration("within", pool.aliveTime))
	ctx, cancel := context.WithTimeout(context.Background(), pool.aliveTime)
	defer cancel()
	if _, err := c.request(ctx, "ping", nil); errors.Is(err, context.DeadlineExceeded) && c.silent() {
		c.log().Warn("no response to ping")
		c.stop(pool.config.StopGrace)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.checking = false
}
