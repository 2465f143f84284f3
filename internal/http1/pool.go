package http1

import (
	"slices"
	"sync"
	"time"
)

// sweepEvery is how long the file of a connection that its server has closed stays open at
// most.
const sweepEvery = 5 * time.Second

// A pool has the connections that are idle.
type pool struct {
	perHost int
	timeout time.Duration

	mu      sync.Mutex
	idle    map[string][]*conn // by host; the last one was used last
	closed  bool
	sweeper *time.Timer
	sweepAt time.Time // zero if no connection is idle
}

// take returns the connection to a host that was used last, or nil. Those that are not
// silent are closed.
func (p *pool) take(host string) *conn {
	for {
		c := p.pop(host)
		if c == nil {
			return nil
		}
		if c.silent() {
			c.takenAt, c.reused = time.Now(), true
			return c
		}
		c.Close()
	}
}

func (p *pool) pop(host string) *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	conns := p.idle[host]
	if len(conns) == 0 {
		return nil
	}
	last := len(conns) - 1
	c := conns[last]
	conns[last] = nil
	p.idle[host] = conns[:last]
	return c
}

// put takes a connection back. It is closed if it cannot be used again.
func (p *pool) put(c *conn) {
	if !p.keep(c) {
		c.Close()
	}
}

func (p *pool) keep(c *conn) bool {
	lives := p.timeout
	if c.announced {
		lives = min(lives, c.lives)
	}
	if lives <= 0 || c.raw == nil || c.reader.Buffered() > 0 {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.idle[c.host]) >= p.perHost {
		return false
	}
	if p.idle == nil {
		p.idle = make(map[string][]*conn)
	}
	now := time.Now()
	c.idleUntil = now.Add(lives)
	p.idle[c.host] = append(p.idle[c.host], c)
	p.watch(c, now)
	return true
}

// watch has a connection looked at when its time is up, and from time to time until then.
func (p *pool) watch(c *conn, now time.Time) {
	next := now.Add(sweepEvery)
	if c.idleUntil.Before(next) {
		next = c.idleUntil
	}
	if !p.sweepAt.IsZero() && !next.Before(p.sweepAt) {
		return
	}
	p.sweepAt = next
	if p.sweeper == nil {
		p.sweeper = time.AfterFunc(next.Sub(now), p.sweep)
	} else {
		p.sweeper.Reset(next.Sub(now))
	}
}

// sweep closes connections that were idle for long enough, or that their servers closed.
func (p *pool) sweep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	now := time.Now()
	p.sweepAt = time.Time{}
	for host, conns := range p.idle {
		conns = slices.DeleteFunc(conns, func(c *conn) bool {
			if now.Before(c.idleUntil) && c.silent() {
				p.watch(c, now)
				return false
			}
			c.Close()
			return true
		})
		if p.idle[host] = conns; len(conns) == 0 {
			delete(p.idle, host)
		}
	}
}

// close closes all idle connections. The pool takes no other.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.sweeper != nil {
		p.sweeper.Stop()
	}
	for _, conns := range p.idle {
		for _, c := range conns {
			c.Close()
		}
	}
	p.idle = nil
}
