package replicas

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Peers are the connections of this replica to others for one purpose. Each replica has a topic for them.
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
	// ErrLost reports that a connection has ended early. The other replica may have received everything.
	ErrLost = errors.New("the connection with the other replica is lost")

	errSilent = fmt.Errorf("%w: the other replica never responded", ErrLost)
	errClosed = errors.New("the connection was closed")
)

// Peers returns the connections with a name. It calls accept with those that other replicas open. They
// end when accept returns. The caller must close the result.
func (s *Space) Peers(name string, accept func(*Conn)) *Peers {
	return &Peers{
		space: s, name: name, accept: accept, conns: map[string]*Conn{},
		closed: make(chan struct{}), resets: make(chan struct{}, 16),
	}
}

// Listen accepts connections of other replicas: now or, if the store is unavailable, as soon as possible.
func (l *Peers) Listen() {
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

// subscribe reports whether this replica now receives messages of others.
func (l *Peers) subscribe() bool {
	stop, err := l.space.Subscribe(context.Background(), l.topic(l.space.Replica), l.receive)
	if err != nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stop = stop
	return true
}

func (l *Peers) topic(replica string) string { return "line\x00" + l.name + "\x00" + replica }

// Dial opens a connection to another replica. It does not wait for the other replica; Read reports
// whether that exists. The caller must close the connection.
func (l *Peers) Dial(replica string) *Conn {
	l.Listen()
	l.mu.Lock()
	defer l.mu.Unlock()
	c := newConn(l, rand.Text(), replica)
	c.dialed = true
	l.start(c)
	return c
}

// start starts a connection. The caller holds the lock.
func (l *Peers) start(c *Conn) {
	if l.closing {
		c.fail(errClosed)
		return
	}
	l.conns[c.id] = c
	l.running.Go(c.run)
}

// remove removes a connection that has ended.
func (l *Peers) remove(c *Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c.id)
}

// receive handles a message of another replica.
func (l *Peers) receive(message []byte) {
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
	case s.flags&flagBegin == 0 || s.offset != 0 || len(l.conns) >= maxConns:
		l.refuse(&s)
		return
	default:
		c = newConn(l, s.conn, s.from)
		l.start(c)
		l.running.Go(func() {
			l.accept(c)
			c.finish()
		})
	}
	c.receive(&s)
}

// refuse tells another replica that there is no such connection, or no room for it. If that is lost, the
// other replica tries again. The caller holds the lock.
func (l *Peers) refuse(s *segment) {
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

// send sends a segment to a replica, and reports whether it is listening.
func (l *Peers) send(to string, s *segment) (listening bool, err error) {
	return l.space.Publish(context.Background(), l.topic(to), s.append(nil))
}

// Close ends all connections.
func (l *Peers) Close() {
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
