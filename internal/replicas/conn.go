package replicas

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// Messages between replicas may be lost: while the engine is unavailable, and when a connection to
// it breaks. So both sides of a Conn number the bytes that they send, acknowledge those that they
// have received, and resend those that the other side has not acknowledged.

const (
	segmentSize     = 64 << 10
	windowSize      = 4 * segmentSize // limit of unacknowledged and of unread bytes
	tickTime        = time.Second
	idleTicks       = 5  // without a message before the other side is probed
	maxSilentTicks  = 15 // without a sign of the other side before the connection is lost
	noListenerTicks = 4  // added for a message that had no listener
)

// ConnBytes is the maximum memory of a Conn in bytes.
const ConnBytes = 2 * windowSize

// A Conn is a connection to another replica. Bytes arrive in order. One goroutine may read while
// another one writes.
type Conn struct {
	peers  *Peers
	id     string
	peer   string // other replica
	dialed bool   // this replica has opened it

	ctx  context.Context // done at the end of the connection; its cause says why
	end  context.CancelCauseFunc
	wake chan struct{} // holds a token if run has something to do

	mu      sync.Mutex
	changed sync.Cond // signals Read, Write and finish

	unread    []byte // received bytes
	received  uint64 // bytes in all
	inEnded   bool
	sentLimit uint64 // latest receive limit that was sent

	unacked   []byte // bytes that the other side has not acknowledged
	acked     uint64 // bytes before these
	sent      uint64 // bytes sent in all
	peerLimit uint64 // bytes that the other side accepts in all
	outEnded  bool
	endSent   bool
	finished  bool // the other side has acknowledged everything and the end

	peerListened bool  // a message was sent while the other side was listening
	peerSeen     bool  // a message of the other side has arrived
	ackDue       bool  // an acknowledgment must be sent
	probeDue     bool  // a probe must be sent
	paused       bool  // nothing is sent before the next tick
	quietTicks   int   // ticks without a message of the other side
	silentTicks  int   // ticks without a message that was expected
	sendErr      error // error of the last attempt to send
}

func newConn(peers *Peers, id, peer string) *Conn {
	c := &Conn{peers: peers, id: id, peer: peer, wake: make(chan struct{}, 1), peerLimit: segmentSize}
	c.changed.L = &c.mu
	c.ctx, c.end = context.WithCancelCause(context.Background())
	return c
}

// Context returns a context that is done at the end of the connection.
func (c *Conn) Context() context.Context { return c.ctx }

// Read implements io.Reader. If the connection fails, it returns [ErrNoReplica], [ErrLost] or
// [ErrUnavailable].
func (c *Conn) Read(p []byte) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.unread) == 0 && !c.inEnded && c.ctx.Err() == nil {
		c.changed.Wait()
	}
	switch {
	case len(c.unread) > 0:
		n = copy(p, c.unread)
		c.unread = c.unread[n:]
		if c.receiveLimit()-c.sentLimit >= windowSize/2 {
			c.ackDue = true
			c.wakeRun()
		}
		return n, nil
	case c.inEnded:
		return 0, io.EOF
	}
	return 0, context.Cause(c.ctx)
}

// receiveLimit returns how many bytes the other side may send in all.
func (c *Conn) receiveLimit() uint64 { return c.received - uint64(len(c.unread)) + windowSize }

// Write implements io.Writer. It waits while the other side does not read.
func (c *Conn) Write(p []byte) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n < len(p) {
		for len(c.unacked) >= windowSize && c.ctx.Err() == nil {
			c.changed.Wait()
		}
		if c.ctx.Err() != nil {
			return n, context.Cause(c.ctx)
		}
		part := p[n:min(len(p), n+windowSize-len(c.unacked))]
		c.unacked = append(c.unacked, part...)
		n += len(part)
		c.wakeRun()
	}
	return n, nil
}

// finish ends the output, and waits until the other side has acknowledged everything.
func (c *Conn) finish() {
	c.mu.Lock()
	c.outEnded = true
	c.wakeRun()
	for !c.finished && c.ctx.Err() == nil {
		c.changed.Wait()
	}
	c.mu.Unlock()
	c.fail(io.EOF)
}

// Close ends the connection and notifies the other side.
func (c *Conn) Close() error {
	c.fail(errClosed)
	return nil
}

// fail ends the connection with an error, unless it has ended.
func (c *Conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked(err)
}

// endLocked is fail for callers that hold the lock.
func (c *Conn) endLocked(err error) {
	c.end(err)
	c.changed.Broadcast()
}

// wakeRun wakes up run.
func (c *Conn) wakeRun() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// run sends segments until the connection ends.
func (c *Conn) run() {
	defer c.peers.remove(c)
	ticker := time.NewTicker(tickTime)
	defer ticker.Stop()
	for c.ctx.Err() == nil {
		if s, ok := c.next(); ok {
			c.noteSent(c.peers.send(c.peer, &s))
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
		_, _ = c.peers.send(c.peer, &segment{flags: flagReset, from: c.peers.space.Replica, conn: c.id})
	}
}

// next returns the next segment to send, if there is one.
func (c *Conn) next() (s segment, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.paused {
		return s, false
	}
	begins := c.dialed && !c.peerSeen
	rest := c.unacked[c.sent-c.acked:]
	room := min(segmentSize, c.peerLimit-min(c.peerLimit, c.sent))
	if begins && c.sent > 0 {
		room = 0 // without the first segment, the other side would refuse later ones
	}
	s = segment{
		from: c.peers.space.Replica, conn: c.id, offset: c.sent,
		acked: c.received, limit: c.receiveLimit(), data: rest[:min(room, uint64(len(rest)))],
	}
	if c.inEnded {
		s.acked++
	}
	ends := c.outEnded && !c.endSent && len(s.data) == len(rest)
	if len(s.data) == 0 && !ends && !c.ackDue && !c.probeDue {
		return s, false
	}
	if begins {
		s.flags |= flagBegin
	}
	if ends {
		s.flags |= flagEnd
	}
	if c.probeDue {
		s.flags |= flagProbe
	}
	c.sent += uint64(len(s.data))
	c.endSent, c.sentLimit, c.ackDue, c.probeDue = c.endSent || ends, s.limit, false, false
	return s, true
}

// noteSent handles the outcome of sending a segment.
func (c *Conn) noteSent(listened bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sendErr = err
	if err == nil && listened {
		c.peerListened = true
		return
	}
	c.paused = true
	c.resendUnacked()
	if err == nil {
		c.silentTicks += noListenerTicks
	}
}

// resendUnacked resends everything that the other side has not acknowledged.
func (c *Conn) resendUnacked() { c.sent, c.endSent = c.acked, c.finished }

// tick checks whether the other side still responds.
func (c *Conn) tick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paused = false
	c.quietTicks++
	if len(c.unacked) == 0 && c.outEnded == c.finished && c.quietTicks <= idleTicks {
		return // no message is expected
	}
	if c.quietTicks > 1 {
		c.resendUnacked()
		c.probeDue = true
	}
	c.silentTicks++
	if c.silentTicks <= maxSilentTicks {
		return
	}
	switch {
	case c.sendErr != nil:
		c.endLocked(fmt.Errorf("%w: %w", ErrUnavailable, c.sendErr))
	case c.peerSeen:
		c.endLocked(ErrLost)
	case c.peerListened:
		c.endLocked(errSilent)
	default:
		c.endLocked(ErrNoReplica)
	}
}

// receive handles a segment of the other side.
func (c *Conn) receive(s *segment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.wakeRun()
	defer c.changed.Broadcast()
	c.peerSeen, c.quietTicks, c.silentTicks = true, 0, 0
	if s.flags&flagReset != 0 {
		c.endLocked(ErrLost)
		return
	}
	c.peerLimit = max(c.peerLimit, s.limit)
	all := c.acked + uint64(len(c.unacked))
	if c.outEnded && s.acked == all+1 {
		c.finished, c.endSent = true, true
		s.acked = all
	}
	if s.acked > c.acked && s.acked <= all {
		c.unacked = c.unacked[s.acked-c.acked:]
		c.acked = s.acked
		c.sent = max(c.sent, c.acked)
	}
	ends := s.offset + uint64(len(s.data))
	if s.offset <= c.received && ends > c.received && !c.inEnded {
		if added := s.data[c.received-s.offset:]; len(c.unread)+len(added) <= windowSize {
			c.unread = append(c.unread, added...)
			c.received = ends
		}
	}
	if s.flags&flagEnd != 0 && ends == c.received {
		c.inEnded = true
	}
	c.ackDue = c.ackDue || len(s.data) > 0 || s.flags&(flagEnd|flagProbe) != 0
}

// A segment is a message between replicas.
type segment struct {
	flags        byte
	from         string // name of the replica
	conn         string
	offset       uint64 // bytes before data
	acked, limit uint64 // bytes received from the other side, plus 1 for its end, and bytes that it may send
	data         []byte
}

const (
	flagBegin = 1 << iota // first segment of a connection
	flagEnd               // no data follows
	flagProbe             // requests an acknowledgment
	flagReset             // no such connection
)

// append appends the encoded segment.
func (s *segment) append(dst []byte) []byte {
	dst = append(dst, s.flags)
	for _, text := range [...]string{s.from, s.conn} {
		dst = append(binary.AppendUvarint(dst, uint64(len(text))), text...)
	}
	for _, n := range [...]uint64{s.offset, s.acked, s.limit} {
		dst = binary.AppendUvarint(dst, n)
	}
	return append(dst, s.data...)
}

// readSegment decodes a segment.
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
	s.offset, s.acked, s.limit = number(), number(), number()
	s.data = p
	return s, ok
}

// Peers are the connections of this replica to others for one purpose. Each replica has a topic for
// them.
type Peers struct {
	space  *Space
	name   string
	accept func(*Conn)

	mu        sync.Mutex
	conns     map[string]*Conn // by ID
	listening bool
	stop      func() // ends the subscription; nil without one
	closing   bool
	closed    chan struct{}
	running   sync.WaitGroup
	resets    chan struct{} // holds a token for each reset that is being sent
}

// maxConns is the number of connections beyond which those of other replicas are refused.
const maxConns = 1_000

var (
	// ErrNoReplica reports that the other replica did not listen for some seconds. It has received
	// nothing.
	ErrNoReplica = errors.New("the other replica is not listening")
	// ErrLost reports that a connection has ended early. The other replica may have received
	// everything.
	ErrLost = errors.New("the connection with the other replica is lost")

	errSilent = fmt.Errorf("%w: the other replica never responded", ErrLost)
	errClosed = errors.New("the connection was closed")
)

// Peers returns the connections with a name. It calls accept with those that other replicas open.
// They end when accept returns. The caller must close the result.
func (s *Space) Peers(name string, accept func(*Conn)) *Peers {
	return &Peers{
		space: s, name: name, accept: accept, conns: map[string]*Conn{},
		closed: make(chan struct{}), resets: make(chan struct{}, 16),
	}
}

// Listen accepts connections of other replicas: now or, if the store is unavailable, as soon as
// possible.
func (p *Peers) Listen() {
	p.mu.Lock()
	first := !p.listening && !p.closing
	if first {
		p.listening = true
		p.running.Add(1)
	}
	p.mu.Unlock()
	if !first {
		return
	}
	if p.subscribe() {
		p.running.Done()
		return
	}
	go func() {
		defer p.running.Done()
		for {
			select {
			case <-p.closed:
				return
			case <-time.After(tickTime):
				if p.subscribe() {
					return
				}
			}
		}
	}()
}

// subscribe reports whether this replica now receives messages of others.
func (p *Peers) subscribe() bool {
	stop, err := p.space.Subscribe(context.Background(), p.topic(p.space.Replica), p.receive)
	if err != nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stop = stop
	return true
}

func (p *Peers) topic(replica string) string { return "line\x00" + p.name + "\x00" + replica }

// Dial opens a connection to another replica. It does not wait for the other replica; Read reports
// whether that exists. The caller must close the connection.
func (p *Peers) Dial(replica string) *Conn {
	p.Listen()
	p.mu.Lock()
	defer p.mu.Unlock()
	c := newConn(p, rand.Text(), replica)
	c.dialed = true
	p.start(c)
	return c
}

// start starts a connection. The caller holds the lock.
func (p *Peers) start(c *Conn) {
	if p.closing {
		c.fail(errClosed)
		return
	}
	p.conns[c.id] = c
	p.running.Go(c.run)
}

// remove removes a connection that has ended.
func (p *Peers) remove(c *Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c.id)
}

// receive handles a message of another replica.
func (p *Peers) receive(message []byte) {
	s, ok := readSegment(message)
	if !ok {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.conns[s.conn]
	switch {
	case c != nil:
	case s.flags&flagReset != 0 || p.closing:
		return
	case s.flags&flagBegin == 0 || s.offset != 0 || len(p.conns) >= maxConns:
		p.refuse(&s)
		return
	default:
		c = newConn(p, s.conn, s.from)
		p.start(c)
		p.running.Go(func() {
			p.accept(c)
			c.finish()
		})
	}
	c.receive(&s)
}

// refuse tells another replica that there is no such connection, or no room for it. If that is
// lost, the other replica tries again. The caller holds the lock.
func (p *Peers) refuse(s *segment) {
	select {
	case p.resets <- struct{}{}:
	default:
		return
	}
	to, reset := s.from, segment{flags: flagReset, from: p.space.Replica, conn: s.conn}
	p.running.Go(func() {
		defer func() { <-p.resets }()
		_, _ = p.send(to, &reset)
	})
}

// send sends a segment to a replica, and reports whether it is listening.
func (p *Peers) send(to string, s *segment) (listening bool, err error) {
	return p.space.Publish(context.Background(), p.topic(to), s.append(nil))
}

// Close ends all connections.
func (p *Peers) Close() {
	p.mu.Lock()
	if p.closing {
		p.mu.Unlock()
		return
	}
	p.closing = true
	close(p.closed)
	for _, c := range p.conns {
		c.fail(errClosed)
	}
	p.mu.Unlock()
	p.running.Wait()
	if p.stop != nil {
		p.stop()
	}
}
