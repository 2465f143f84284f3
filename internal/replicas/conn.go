package replicas

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"sync"
	"time"
)

// What replicas say to each other may be lost on the way: while the engine is unavailable, and when a
// connection to it breaks. So both sides of a Conn number the bytes that they send, tell which ones they have
// got, and send those again that the other side has not got.

const (
	segmentSize = 64 << 10
	windowSize  = 4 * segmentSize // what the other side has not got, and what was not read yet
	tickTime    = time.Second
	idleTicks   = 5  // after which the other side is asked whether it is there
	patience    = 15 // ticks without a sign of the other side
	unheardIs   = 4  // as many ticks, if the topic of the other side has no listeners
)

// ConnBytes is how much memory a Conn may need.
const ConnBytes = 2 * windowSize

// A Conn is a connection with another replica. Bytes arrive in the order in which they were written, and are
// read while the connection lasts. One goroutine may read it while another one writes it.
type Conn struct {
	lines  *Lines
	id     string
	peer   string // the other replica
	dialed bool   // by this one

	ctx  context.Context // ends with the connection. Its cause says why
	end  context.CancelCauseFunc
	wake chan struct{} // has a token if there is something to do for run

	mu      sync.Mutex
	changed sync.Cond // what Read, Write and finish wait for

	in       []byte // was not read yet
	received uint64 // bytes in all
	inEnded  bool
	promised uint64 // how many bytes the other side knows that it may send

	out      []byte // the other side has not got it
	got      uint64 // bytes that it has got, before out
	sent     uint64 // bytes that are on the way, or have arrived
	limit    uint64 // how many it takes
	outEnded bool
	endSent  bool
	finished bool // the other side has got everything, and its end

	heard  bool  // something was sent while the other side was listening
	known  bool  // the other side has said something
	owes   bool  // the other side is to be told what has arrived
	asks   bool  // the other side is to say whether it is there
	stuck  bool  // nothing can be sent before the next tick
	quiet  int   // ticks in which nothing came
	silent int   // those in which something should have come
	failed error // of the last attempt to send something
}

func newConn(l *Lines, id, peer string) *Conn {
	c := &Conn{lines: l, id: id, peer: peer, wake: make(chan struct{}, 1), limit: segmentSize}
	c.changed.L = &c.mu
	c.ctx, c.end = context.WithCancelCause(context.Background())
	return c
}

// Context returns a context that ends with the connection.
func (c *Conn) Context() context.Context { return c.ctx }

// Read implements io.Reader. It fails with [ErrNoReplica], [ErrLost] or [ErrUnavailable] if the connection
// does.
func (c *Conn) Read(p []byte) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.in) == 0 && !c.inEnded && c.ctx.Err() == nil {
		c.changed.Wait()
	}
	switch {
	case len(c.in) > 0:
		n = copy(p, c.in)
		c.in = c.in[n:]
		if c.takes()-c.promised >= windowSize/2 {
			c.owes = true
			c.rouse()
		}
		return n, nil
	case c.inEnded:
		return 0, io.EOF
	}
	return 0, context.Cause(c.ctx)
}

// takes returns how many bytes the other side may send in all.
func (c *Conn) takes() uint64 { return c.received - uint64(len(c.in)) + windowSize }

// Write implements io.Writer. It waits while the other side does not read.
func (c *Conn) Write(p []byte) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n < len(p) {
		for len(c.out) >= windowSize && c.ctx.Err() == nil {
			c.changed.Wait()
		}
		if c.ctx.Err() != nil {
			return n, context.Cause(c.ctx)
		}
		part := p[n:min(len(p), n+windowSize-len(c.out))]
		c.out = append(c.out, part...)
		n += len(part)
		c.rouse()
	}
	return n, nil
}

// finish says that nothing more is written, and waits until the other side has got everything.
func (c *Conn) finish() {
	c.mu.Lock()
	c.outEnded = true
	c.rouse()
	for !c.finished && c.ctx.Err() == nil {
		c.changed.Wait()
	}
	c.mu.Unlock()
	c.fail(io.EOF)
}

// Close ends the connection. The other side is told.
func (c *Conn) Close() error {
	c.fail(errClosed)
	return nil
}

// fail ends the connection, if it has not ended.
func (c *Conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over(err)
}

// over is fail for callers that hold the lock.
func (c *Conn) over(err error) {
	c.end(err)
	c.changed.Broadcast()
}

// rouse has run look at what there is to do.
func (c *Conn) rouse() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// run sends what there is to send, until the connection ends.
func (c *Conn) run() {
	defer c.lines.remove(c)
	ticker := time.NewTicker(tickTime)
	defer ticker.Stop()
	for c.ctx.Err() == nil {
		if s, ok := c.next(); ok {
			c.noteSent(c.lines.send(c.peer, &s))
			continue
		}
		select {
		case <-c.wake:
		case <-ticker.C:
			c.tick()
		case <-c.ctx.Done():
		}
	}
	if context.Cause(c.ctx) == errClosed {
		_, _ = c.lines.send(c.peer, &segment{flags: flagReset, from: c.lines.space.Replica, conn: c.id})
	}
}

// next returns what is to be sent next, if there is anything.
func (c *Conn) next() (s segment, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stuck {
		return s, false
	}
	begins := c.dialed && !c.known
	rest := c.out[c.sent-c.got:]
	room := min(segmentSize, c.limit-min(c.limit, c.sent))
	if begins && c.sent > 0 {
		room = 0 // what follows the first segment would be refused without it
	}
	s = segment{
		from: c.lines.space.Replica, conn: c.id, at: c.sent,
		got: c.received, limit: c.takes(), data: rest[:min(room, uint64(len(rest)))],
	}
	if c.inEnded {
		s.got++
	}
	ends := c.outEnded && !c.endSent && len(s.data) == len(rest)
	if len(s.data) == 0 && !ends && !c.owes && !c.asks {
		return s, false
	}
	if begins {
		s.flags |= flagBegin
	}
	if ends {
		s.flags |= flagEnd
	}
	if c.asks {
		s.flags |= flagAsk
	}
	c.sent += uint64(len(s.data))
	c.endSent, c.promised, c.owes, c.asks = c.endSent || ends, s.limit, false, false
	return s, true
}

// noteSent notes what became of a segment.
func (c *Conn) noteSent(heard bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed = err; err == nil && heard {
		c.heard = true
		return
	}
	c.stuck = true
	c.sendAgain()
	if err == nil {
		c.silent += unheardIs
	}
}

// sendAgain has everything sent again that the other side has not got.
func (c *Conn) sendAgain() { c.sent, c.endSent = c.got, c.finished }

// tick looks for signs of the other side.
func (c *Conn) tick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stuck = false
	c.quiet++
	if len(c.out) == 0 && c.outEnded == c.finished && c.quiet <= idleTicks {
		return // nothing has to come
	}
	if c.quiet > 1 {
		c.sendAgain()
		c.asks = true
	}
	if c.silent++; c.silent <= patience {
		return
	}
	switch {
	case c.failed != nil:
		c.over(fmt.Errorf("%w: %w", ErrUnavailable, c.failed))
	case c.known:
		c.over(ErrLost)
	case c.heard:
		c.over(errSilent)
	default:
		c.over(ErrNoReplica)
	}
}

// receive takes a segment of the other side.
func (c *Conn) receive(s *segment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.rouse()
	defer c.changed.Broadcast()
	c.known, c.quiet, c.silent = true, 0, 0
	if s.flags&flagReset != 0 {
		c.over(ErrLost)
		return
	}
	c.limit = max(c.limit, s.limit)
	all := c.got + uint64(len(c.out))
	if c.outEnded && s.got == all+1 {
		c.finished, c.endSent = true, true
		s.got = all
	}
	if s.got > c.got && s.got <= all {
		c.out = c.out[s.got-c.got:]
		c.got = s.got
		c.sent = max(c.sent, c.got)
	}
	ends := s.at + uint64(len(s.data))
	if s.at <= c.received && ends > c.received && !c.inEnded {
		if added := s.data[c.received-s.at:]; len(c.in)+len(added) <= windowSize {
			c.in = append(c.in, added...)
			c.received = ends
		}
	}
	if s.flags&flagEnd != 0 && ends == c.received {
		c.inEnded = true
	}
	c.owes = c.owes || len(s.data) > 0 || s.flags&(flagEnd|flagAsk) != 0
}

// A segment is what replicas send each other.
type segment struct {
	flags      byte
	from       string // replica
	conn       string
	at         uint64 // how many bytes come before data
	got, limit uint64 // bytes of the other side that have arrived, and that it may send; one more for the end
	data       []byte
}

const (
	flagBegin = 1 << iota // of a connection
	flagEnd               // nothing follows
	flagAsk               // answer, even if there is nothing to say
	flagReset             // there is no such connection
)

// append appends the segment as it is sent.
func (s *segment) append(dst []byte) []byte {
	dst = append(dst, s.flags)
	for _, text := range [...]string{s.from, s.conn} {
		dst = append(binary.AppendUvarint(dst, uint64(len(text))), text...)
	}
	for _, n := range [...]uint64{s.at, s.got, s.limit} {
		dst = binary.AppendUvarint(dst, n)
	}
	return append(dst, s.data...)
}

// readSegment reads what append has written.
func readSegment(p []byte) (s segment, ok bool) {
	if len(p) == 0 {
		return s, false
	}
	s.flags, p = p[0], p[1:]
	ok = true
	number := func() (n uint64) {
		n, size := binary.Uvarint(p)
		if size <= 0 {
			ok, p = false, nil
			return 0
		}
		p = p[size:]
		return n
	}
	for _, text := range [...]*string{&s.from, &s.conn} {
		n := number()
		if n > uint64(len(p)) {
			return s, false
		}
		*text, p = string(p[:n]), p[n:]
	}
	s.at, s.got, s.limit = number(), number(), number()
	s.data = p
	return s, ok
}
