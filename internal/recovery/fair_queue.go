package recovery

import (
	"context"
	"sync"
)

// queries runs queries one at a time, because each may take up to some 400 MB for the largest
// originals. Most take a few MB.
var queries = newFairQueue()

// A fairQueue runs one call at a time. Only the first call of each client waits for those of other
// clients, so a client with many calls delays others by one call only.
type fairQueue struct {
	running chan struct{} // holds a value while a call runs

	mu      sync.Mutex
	clients map[string]*clientQueue
}

type clientQueue struct {
	first chan struct{} // holds a value while a call of the client is the first one
	calls int           // waiting or running
}

func newFairQueue() *fairQueue {
	return &fairQueue{running: make(chan struct{}, 1), clients: map[string]*clientQueue{}}
}

// wait waits for the turn of a call, and returns a function that ends it. It returns nil on
// timeout.
func (q *fairQueue) wait(ctx context.Context, client string) (done func()) {
	ctx, cancel := context.WithTimeout(ctx, 3*queryTime)
	defer cancel()
	first := q.enter(client)
	select {
	case first <- struct{}{}:
	case <-ctx.Done():
		q.leave(client)
		return nil
	}
	select {
	case q.running <- struct{}{}:
	case <-ctx.Done():
		<-first
		q.leave(client)
		return nil
	}
	return func() {
		<-q.running
		<-first
		q.leave(client)
	}
}

// enter adds a call of a client. It returns the channel that its first call holds.
func (q *fairQueue) enter(client string) chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	c := q.clients[client]
	if c == nil {
		c = &clientQueue{first: make(chan struct{}, 1)}
		q.clients[client] = c
	}
	c.calls++
	return c.first
}

// leave removes a call of a client.
func (q *fairQueue) leave(client string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	c := q.clients[client]
	if c.calls--; c.calls == 0 {
		delete(q.clients, client)
	}
}
