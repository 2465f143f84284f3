package redis

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync"
)

// The client trusts the server: it panics in a goroutine of its own, and so ends the process, at a
// response that it does not expect, and allocates as much as a length in a response says. Such
// responses also come from servers that are in order, as to UNSUBSCRIBE while a script blocks them.
// A checkedConn fails before the client reads them.
type checkedConn struct {
	net.Conn

	mu        sync.Mutex
	err       error // permanent
	sent      messageReader
	received  messageReader
	awaited   []response
	confirmed int  // confirmations that follow the first one of a SUBSCRIBE
	isPing    bool // the next request is the PING that the client sends after an UNSUBSCRIBE
}

// A response is one that the client awaits.
type response struct {
	kind   responseKind
	topics int // of a SUBSCRIBE
}

type responseKind uint8

const (
	anyResponse  responseKind = iota
	confirmation              // of SUBSCRIBE: a push message for each topic, or an error
	otherOrPong               // of UNSUBSCRIBE and PING: maybe another response, and PONG
	pong
)

var (
	errUnexpected = errors.New("redis sent a response that was not expected")
	errMalformed  = errors.New("redis sent a malformed response")
)

// checked returns a function that dials with another one, or like the client if that is nil.
func checked(dial dialer) dialer {
	return func(ctx context.Context, address string, d *net.Dialer, config *tls.Config) (conn net.Conn, err error) {
		switch {
		case dial != nil:
			conn, err = dial(ctx, address, d, config)
		case config != nil:
			conn, err = (&tls.Dialer{NetDialer: d, Config: config}).DialContext(ctx, "tcp", address)
		default:
			conn, err = d.DialContext(ctx, "tcp", address)
		}
		if err != nil {
			return nil, err
		}
		return &checkedConn{Conn: conn}, nil
	}
}

// Write notes the requests before the server can respond to them.
func (c *checkedConn) Write(p []byte) (int, error) {
	if err := c.check(&c.sent, p, c.noteRequest); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// Read fails at the first response that the client must not read.
func (c *checkedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err := c.check(&c.received, p[:n], c.noteResponse); err != nil {
		return 0, err
	}
	return n, err
}

func (c *checkedConn) check(r *messageReader, p []byte, note func(*message) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = r.read(p, note)
	}
	return c.err
}

func (c *checkedConn) noteRequest(m *message) error {
	var next response
	switch name := string(m.text); {
	case c.isPing:
		c.isPing = false
		return nil
	case strings.HasSuffix(name, "UNSUBSCRIBE"):
		next.kind, c.isPing = otherOrPong, true
	case strings.HasSuffix(name, "SUBSCRIBE"):
		next = response{kind: confirmation, topics: m.values - 1}
	}
	c.awaited = append(c.awaited, next)
	return nil
}

func (c *checkedConn) noteResponse(m *message) error {
	if m.kind == '>' {
		return c.notePush(m)
	}
	if len(c.awaited) == 0 {
		return errUnexpected
	}
	next := &c.awaited[0]
	switch {
	case next.kind == confirmation && !m.isError(), next.kind == pong && !m.isPong():
		return errUnexpected
	case next.kind == otherOrPong && !m.isPong():
		next.kind = pong
		return nil
	}
	c.awaited = c.awaited[1:]
	return nil
}

func (c *checkedConn) notePush(m *message) error {
	if m.values < 2 {
		return nil // ignored
	}
	switch name := string(m.text); name {
	case "subscribe", "psubscribe", "ssubscribe", "unsubscribe", "punsubscribe", "sunsubscribe":
		switch {
		case c.confirmed > 0:
			c.confirmed--
		case strings.HasSuffix(name, "unsubscribe"):
		case len(c.awaited) == 0 || c.awaited[0].kind != confirmation:
			return errUnexpected
		default:
			c.confirmed = c.awaited[0].topics - 1
			c.awaited = c.awaited[1:]
		}
	}
	return nil
}

const (
	maxLine   = 64 << 10  // bytes of a line
	maxString = 512 << 20 // bytes of a string, as in Redis
	maxValues = 1 << 20   // values in a message
	maxNested = 16        // arrays around a value
	keptText  = 32        // bytes of a string that a message has
)

// A messageReader splits a stream of requests or responses into messages. It refuses types that
// Redis does not send, such as attributes and strings of unknown length.
type messageReader struct {
	message message
	line    []byte // beginning of a line
	skip    int    // bytes left of a value
	keep    int    // bytes of them to keep as text
	open    []int  // values left in each array that has begun
	total   int    // values in the message so far
}

// A message is a request or a response.
type message struct {
	kind   byte
	text   []byte // text, or the text of its first value; at least the beginning
	values int
}

func (m *message) isError() bool { return m.kind == '-' || m.kind == '!' }

// isPong reports whether the client takes a response for one to PING.
func (m *message) isPong() bool {
	text := string(m.text)
	if strings.IndexByte("*~%", m.kind) >= 0 {
		return text == "pong"
	}
	return text == "PONG" || m.kind == '-' &&
		(strings.HasPrefix(text, "LOADING") || strings.HasPrefix(text, "BUSY") || strings.Contains(text, "'ping'"))
}

// read reads the next bytes, and calls note at the end of each message.
func (r *messageReader) read(p []byte, note func(*message) error) (err error) {
	for len(p) > 0 && err == nil {
		var n int
		if r.skip == 0 {
			n, err = r.readLine(p, note)
		} else {
			n, err = r.readString(p, note)
		}
		p = p[n:]
	}
	return err
}

// readString reads bytes of a value of known length.
func (r *messageReader) readString(p []byte, note func(*message) error) (n int, err error) {
	n = min(r.skip, len(p))
	kept := min(r.keep, n)
	r.keepText(p[:kept])
	r.keep -= kept
	r.skip -= n
	if r.skip == 0 {
		err = r.endValue(note)
	}
	return n, err
}

// readLine reads bytes of a line: a value, or the length of one.
func (r *messageReader) readLine(p []byte, note func(*message) error) (n int, err error) {
	if len(r.line) == 0 {
		if len(r.open) == 0 {
			r.message.kind = p[0]
		}
		switch p[0] { // the client does not search for the end of the line
		case '_':
			r.skip = len("\r\n")
			return 1, nil
		case '#':
			r.skip = len("t\r\n")
			return 1, nil
		}
	}
	n = 1 + bytes.IndexByte(p, '\n')
	isComplete := n > 0
	if !isComplete {
		n = len(p)
	}
	r.line = append(r.line, p[:n]...)
	if len(r.line) > maxLine {
		return n, errMalformed
	}
	if isComplete {
		err = r.endLine(note)
		r.line = r.line[:0]
	}
	return n, err
}

// endLine handles a complete line.
func (r *messageReader) endLine(note func(*message) error) error {
	kind, text := r.line[0], r.line[1:]
	text, ok := bytes.CutSuffix(text, []byte("\r\n"))
	if !ok {
		return errMalformed
	}
	switch kind {
	case '+', '-', ',', '(':
		r.keepText(text)
		return r.endValue(note)
	case ':':
		return r.endValue(note)
	}
	n, err := strconv.Atoi(string(text))
	switch {
	case err != nil || n < -1 || strings.IndexByte("$=!*~>%", kind) < 0:
		return errMalformed
	case n == -1 && kind != '%': // null
		return r.endValue(note)
	case kind == '$' || kind == '=' || kind == '!':
		if n > maxString {
			return errMalformed
		}
		r.skip, r.keep = n+len("\r\n"), min(n, keptText)
		return nil
	}
	return r.beginArray(kind, n, note)
}

// beginArray begins an array of values, or a map of pairs.
func (r *messageReader) beginArray(kind byte, n int, note func(*message) error) error {
	if n < 0 || n > maxValues || kind == '>' && len(r.open) > 0 {
		return errMalformed
	}
	if kind == '%' {
		n *= 2
	}
	if len(r.open) == 0 {
		r.message.values = n
	}
	r.total += n
	if r.total > maxValues || len(r.open) == maxNested {
		return errMalformed
	}
	if n == 0 {
		return r.endValue(note)
	}
	r.open = append(r.open, n)
	return nil
}

// keepText keeps text of the message or of its first value.
func (r *messageReader) keepText(text []byte) {
	if len(r.open) == 0 || len(r.open) == 1 && r.open[0] == r.message.values {
		r.message.text = append(r.message.text, text...)
	}
}

// endValue ends a value, the arrays that end with it, and the message if it ends, too.
func (r *messageReader) endValue(note func(*message) error) error {
	for i := len(r.open) - 1; i >= 0; i-- {
		if r.open[i]--; r.open[i] > 0 {
			return nil
		}
		r.open = r.open[:i]
	}
	err := note(&r.message)
	r.message = message{text: r.message.text[:0]}
	r.total = 0
	return err
}
