package http1

import (
	"slices"
	"sync"
	"time"
)

// sweepEvery is the maximum time after which a connection is closed that its server has closed.
const sweepEvery = 5 * time.Second

// A pool holds idle connections.
type pool struct {
	perHost int
	timeout time.Duration

	mu      sync.Mutex
	idle    map[string][]*conn // by host, least recently used first
	closed  bool
	sweeper *time.Timer
	sweepAt time.Time // zero if no connection is idle
}

// take returns the most recently used connection to a host, or nil. It closes connections that are
// not silent.
func (p *pool) take(host string) *conn {
	for {
		c := p.pop(host)
		if c == nil {
			return nil
		}
		if c.isQuiet() {
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

// put returns a connection to the pool, or closes it if it cannot be used again.
func (p *pool) put(c *conn) {
	if !p.tryKeep(c) {
		c.Close()
	}
}

func (p *pool) tryKeep(c *conn) bool {
	lives := p.timeout
	if c.announced {
		lives = min(lives, c.idleTimeout)
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
	p.scheduleSweep(c, now)
	return true
}

// scheduleSweep schedules the next sweep for a connection: at its timeout, or in sweepEvery.
func (p *pool) scheduleSweep(c *conn, now time.Time) {
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

// sweep closes connections that have reached their idle timeout, or that their servers closed.
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
			if now.Before(c.idleUntil) && c.isQuiet() {
				p.scheduleSweep(c, now)
				return false
			}
			c.Close()
			return true
		})
		p.idle[host] = conns
		if len(conns) == 0 {
			delete(p.idle, host)
		}
	}
}

// close closes all idle connections. The pool accepts no others from then on.
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
