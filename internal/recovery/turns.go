package recovery

import (
	"context"
	"sync"
)

// queries has queries run one at a time, as each may take up to some 400 MB: those of an
// original that is as large as can be and was made for it, that is. Most take a few.
var queries = newTurns()

// turns has calls go one at a time. Of each client only the first waits among those of others,
// so that a client that makes many holds up others by one.
type turns struct {
	one chan struct{}

	mu sync.Mutex
	of map[string]*clientTurns
}

type clientTurns struct {
	first chan struct{}
	calls int // that wait or go on
}

func newTurns() *turns {
	return &turns{one: make(chan struct{}, 1), of: map[string]*clientTurns{}}
}

// wait waits for the turn of a call, and returns what ends it. It returns nil if that takes too long.
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

// enter notes that a client has one call more. It returns what the first of them holds.
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

// leave notes that a client has one call less.
func (t *turns) leave(client string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.of[client]
	if c.calls--; c.calls == 0 {
		delete(t.of, client)
	}
}
