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
