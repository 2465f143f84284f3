package gateway

import (
	"cmp"
	"sync"
)

// Asides are what is said to a server beside the answer to a request.
type Asides struct {
	// Max is how many there may be at the same time; 64 if it is 0.
	Max int

	mu     sync.Mutex
	open   int
	silent chan struct{} // closed when nothing is said any more; nil if nothing is
	closed bool
}

// maxAsides is how many there may be of one request. A server that asks more at once of a
// client that cannot answer gets no more than that.
const maxAsides = 64

// Go says something, unless there is too much of it or nothing is to be said any more. It
// reports whether it does.
func (a *Asides) Go(say func()) (begun bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || a.open >= cmp.Or(a.Max, maxAsides) {
		return false
	}
	if a.open++; a.open == 1 {
		a.silent = make(chan struct{})
	}
	go func() {
		defer a.end()
		say()
	}()
	return true
}

func (a *Asides) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open--; a.open == 0 {
		close(a.silent)
		a.silent = nil
	}
}

// Wait waits until all that has begun is said.
func (a *Asides) Wait() {
	a.mu.Lock()
	silent := a.silent
	a.mu.Unlock()
	if silent != nil {
		<-silent
	}
}

// Close waits for what has begun. Nothing more is said.
func (a *Asides) Close() {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.Wait()
}
