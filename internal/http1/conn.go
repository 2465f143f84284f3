package http1

import (
	"bufio"
	"errors"
	"math"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"
)

const noLimit = math.MaxInt64

// A conn is a connection to a server. One request uses it at a time.
type conn struct {
	net.Conn
	host   string // host of its URLs
	reader *bufio.Reader
	limit  int64  // bytes that can still be read
	abort  func() // closes the connection

	announced   bool          // the server has announced idleTimeout
	idleTimeout time.Duration // idle timeout of the server

	reused    bool
	takenAt   time.Time // when a request got the connection
	idleUntil time.Time // when the pool closes it

	raw   syscall.RawConn // nil if the socket is not accessible
	peek  func(fd uintptr)
	quiet bool // set by peek
}

func newConn(netConn net.Conn, host string, bufferSize int) *conn {
	if bufferSize <= 0 {
		bufferSize = 4 << 10 // default of net/http
	}
	c := &conn{Conn: netConn, host: host, limit: noLimit, takenAt: time.Now()}
	c.reader = bufio.NewReaderSize(c, bufferSize)
	c.abort = func() { c.Close() }
	c.peek = c.peekAt
	if socket, ok := netConn.(syscall.Conn); ok {
		c.raw, _ = socket.SyscallConn()
	}
	return c
}

var errLimit = errors.New("http1: read limit reached")

// Read implements io.Reader, for the buffer.
func (c *conn) Read(p []byte) (int, error) {
	if c.limit <= 0 {
		return 0, errLimit
	}
	if int64(len(p)) > c.limit {
		p = p[:c.limit]
	}
	n, err := c.Conn.Read(p)
	if c.limit != noLimit {
		c.limit -= int64(n)
	}
	return n, err
}

// isQuiet reports whether the connection is open and the server has sent nothing. Bytes that arrive
// between requests must not be taken for the next response.
func (c *conn) isQuiet() bool {
	c.quiet = false
	return c.raw != nil && c.raw.Control(c.peek) == nil && c.quiet
}

// keepAlive reads a Keep-Alive header. Node.js closes connections that are idle for five seconds,
// and announces that. A request sent at that moment is lost.
func (c *conn) keepAlive(values []string) {
	if seconds, ok := keepAliveTimeout(values); ok {
		// One second less: the server counts from when it sent its response.
		c.announced, c.idleTimeout = true, time.Duration(min(seconds-1, 1<<20))*time.Second
	}
}

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
