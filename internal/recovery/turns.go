package recovery

import (
	"context"
	"sync"
)

// queries runs queries one at a time, because each may take up to some 400 MB for the largest
// originals. Most take a few MB.
var queries = newTurns()

// turns is a queue that runs one call at a time. Only the first call of each client waits among those
// of other clients, so a client with many calls delays others by one call only.
type turns struct {
	one chan struct{}

	mu sync.Mutex
	of map[string]*clientTurns
}

type clientTurns struct {
	first chan struct{}
	calls int // waiting or running
}

func newTurns() *turns {
	return &turns{one: make(chan struct{}, 1), of: map[string]*clientTurns{}}
}

// wait waits for the turn of a call, and returns a function that ends it. It returns nil on timeout.
func (t *turns) wait(ctx context.Context, client string) (done func()) {
	ctx, cancel := context.WithTimeout(ctx, 3*queryTime)
	defer cancel()
	first := t.enter(client)
	select {
	case first <- struct{}{}:
	case <-ctx.Done():
		t.leave(client)
		return nil
	}
	select {
	case t.one <- struct{}{}:
	case <-ctx.Done():
		<-first
		t.leave(client)
		return nil
	}
	return func() {
		<-t.one
		<-first
		t.leave(client)
	}
}

// enter adds a call of a client. It returns the channel that its first call holds.
func (t *turns) enter(client string) chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.of[client]
	if c == nil {
		c = &clientTurns{first: make(chan struct{}, 1)}
		t.of[client] = c
	}
	c.calls++
	return c.first
}

// leave removes a call of a client.
func (t *turns) leave(client string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.of[client]
	if c.calls--; c.calls == 0 {
		delete(t.of, client)
	}
}
