package http1

import (
	"bufio"
	"errors"
	"math"
	"net"
	"syscall"
	"time"
)

const noLimit = math.MaxInt64

// A conn is a connection to a server. One request uses it at a time.
type conn struct {
	net.Conn
	host   string // of the URLs that it serves
	reader *bufio.Reader
	limit  int64  // of bytes that can be read
	abort  func() // closes it

	announced bool          // whether the server has said how long it keeps the connection when idle
	lives     time.Duration // how long it can be idle then

	reused    bool
	takenAt   time.Time // when a request got it
	idleUntil time.Time // when it is closed, in a pool

	raw   syscall.RawConn // nil if its socket cannot be reached
	peek  func(fd uintptr)
	quiet bool // what peek found
}

func newConn(netConn net.Conn, host string, bufferSize int) *conn {
	if bufferSize <= 0 {
		bufferSize = 4 << 10 // as net/http has it
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

// silent reports whether the connection is open and its server has sent nothing. Anything
// that arrives while no request is under way must not be taken for the next response.
func (c *conn) silent() bool {
	c.quiet = false
	return c.raw != nil && c.raw.Control(c.peek) == nil && c.quiet
}

// keepAlive takes note of a Keep-Alive header. Node.js closes connections that are idle for
// five seconds, and says so: a request that is sent at that moment is lost.
func (c *conn) keepAlive(values []string) {
	if seconds, ok := keepAliveTimeout(values); ok {
		// A second less: the server counts from when it sent its response.
		c.announced, c.lives = true, time.Duration(min(seconds-1, 1<<20))*time.Second
	}
}
