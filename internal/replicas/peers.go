package replicas

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"
)

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
