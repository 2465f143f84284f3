package replicas

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Lines are the connections of this replica with others, for one purpose. They use a topic of each replica.
type Lines struct {
	space  *Space
	name   string
	accept func(*Conn)

	mu        sync.Mutex
	conns     map[string]*Conn // by their ids
	listening bool
	stop      func() // of the subscription; nil if there is none
	closing   bool
	closed    chan struct{}
	running   sync.WaitGroup
	resets    chan struct{} // has a token for each that is being sent
}

// maxConns is how many connections there can be at once, besides those that this replica has opened.
const maxConns = 1_000

var (
	// ErrNoReplica says that no replica of this name has listened for some seconds: it has got nothing.
	ErrNoReplica = errors.New("no such replica listens")
	// ErrLost says that a connection has ended before its time. The other replica may have got what was sent.
	ErrLost = errors.New("the connection with the other replica is lost")

	errSilent = fmt.Errorf("%w: it has never answered", ErrLost)
	errClosed = errors.New("the connection was closed")
)

// Lines returns connections of a name. Those that other replicas open are given to accept, which must read
// and write them while it runs: they end when it returns. They have to be closed.
func (s *Space) Lines(name string, accept func(*Conn)) *Lines {
	return &Lines{
		space: s, name: name, accept: accept, conns: map[string]*Conn{},
		closed: make(chan struct{}), resets: make(chan struct{}, 16),
	}
}

// Listen has other replicas reach this one: now or, if the store is unavailable, as soon as it is not.
func (l *Lines) Listen() {
	l.mu.Lock()
	first := !l.listening && !l.closing
	if first {
		l.listening = true
		l.running.Add(1)
	}
	l.mu.Unlock()
	if !first {
		return
	}
	if l.subscribe() {
		l.running.Done()
		return
	}
	go func() {
		defer l.running.Done()
		for {
			select {
			case <-l.closed:
				return
			case <-time.After(tickTime):
				if l.subscribe() {
					return
				}
			}
		}
	}()
}

// subscribe reports whether this replica hears what others say.
func (l *Lines) subscribe() bool {
	stop, err := l.space.Subscribe(context.Background(), l.topic(l.space.Replica), l.receive)
	if err != nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stop = stop
	return true
}

func (l *Lines) topic(replica string) string { return "line\x00" + l.name + "\x00" + replica }

// Dial opens a connection with another replica. Whether that is there turns out when the connection is
// read from. It has to be closed.
func (l *Lines) Dial(replica string) *Conn {
	l.Listen()
	l.mu.Lock()
	defer l.mu.Unlock()
	c := newConn(l, rand.Text(), replica)
	c.dialed = true
	l.begin(c)
	return c
}

// begin begins a connection. The caller holds the lock.
func (l *Lines) begin(c *Conn) {
	if l.closing {
		c.fail(errClosed)
		return
	}
	l.conns[c.id] = c
	l.running.Go(c.run)
}

// remove forgets a connection that has ended.
func (l *Lines) remove(c *Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c.id)
}

// receive takes what another replica has sent.
func (l *Lines) receive(message []byte) {
	s, ok := readSegment(message)
	if !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.conns[s.conn]
	switch {
	case c != nil:
	case s.flags&flagReset != 0 || l.closing:
		return
	case s.flags&flagBegin == 0 || s.at != 0 || len(l.conns) >= maxConns:
		l.refuse(&s)
		return
	default:
		c = newConn(l, s.conn, s.from)
		l.begin(c)
		l.running.Go(func() {
			l.accept(c)
			c.finish()
		})
	}
	c.receive(&s)
}

// refuse tells another replica that there is no such connection, or no room for it. If that does not arrive,
// it asks again. The caller holds the lock.
func (l *Lines) refuse(s *segment) {
	select {
	case l.resets <- struct{}{}:
	default:
		return
	}
	to, reset := s.from, segment{flags: flagReset, from: l.space.Replica, conn: s.conn}
	l.running.Go(func() {
		defer func() { <-l.resets }()
		_, _ = l.send(to, &reset)
	})
}

// send sends a replica a segment, and reports whether it listens.
func (l *Lines) send(to string, s *segment) (heard bool, err error) {
	return l.space.Publish(context.Background(), l.topic(to), s.append(nil))
}

// Close ends all connections.
func (l *Lines) Close() {
	l.mu.Lock()
	if l.closing {
		l.mu.Unlock()
		return
	}
	l.closing = true
	close(l.closed)
	for _, c := range l.conns {
		c.fail(errClosed)
	}
	l.mu.Unlock()
	l.running.Wait()
	if l.stop != nil {
		l.stop()
	}
}
