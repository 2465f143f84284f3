// Package mailbox holds messages of a server for a client until a response takes them.
package mailbox

import (
	"slices"
	"sync"
)

// A Letter is a message in a Box.
type Letter interface {
	Len() int // in bytes
}

// A Box holds letters in the order in which they came. It is safe for concurrent use.
type Box[L Letter] struct {
	more chan struct{}

	mu      sync.Mutex
	letters []L
	first   [1]L // room for letters, of which there is often but one
	size    int  // bytes in letters
	limit   int  // bytes that wait for a client that does not read, the last letter aside
	readers int  // responses that take letters
	closed  bool // nothing more will come
}

// New returns a Box for letters of up to limit bytes together. A response takes them.
func New[L Letter](limit int) *Box[L] {
	return &Box[L]{more: make(chan struct{}, 1), limit: limit, readers: 1}
}

// NewUnread returns a Box like New, for responses that may never come. They call Join and Leave.
func NewUnread[L Letter](limit int) *Box[L] {
	return &Box[L]{more: make(chan struct{}, 1), limit: limit}
}

// Join says that another response takes letters.
func (b *Box[L]) Join() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.readers++
	if len(b.letters) > 0 {
		b.Wake()
	}
}

// Leave says that such a response has ended. It returns the letters that it has left and that are
// too large to be kept until there is another one.
func (b *Box[L]) Leave() (dropped []L) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.readers--
	if b.readers == 0 && b.size > b.limit && !b.closed {
		dropped, b.letters, b.size = b.letters, nil, 0
	}
	if len(b.letters) > 0 {
		b.Wake() // another one
	}
	return dropped
}

// HasReaders reports whether there are responses that take letters.
func (b *Box[L]) HasReaders() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.readers > 0
}

// More returns a channel that has a value whenever there is something to take, or the Box has ended.
func (b *Box[L]) More() <-chan struct{} { return b.more }

// Put adds a letter and reports whether there was room for it. For one that is taken at once there
// always is, of whatever size.
func (b *Box[L]) Put(l L) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	isNext := b.size == 0 && b.readers > 0
	if b.closed || !isNext && b.size+l.Len() > b.limit {
		return false
	}
	b.add(l)
	return true
}

// End adds the last letter, for which there always is room.
func (b *Box[L]) End(last L) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	b.closed = true
	b.add(last)
}

func (b *Box[L]) add(l L) {
	if b.letters == nil {
		b.letters = b.first[:0]
	}
	b.letters = append(b.letters, l)
	b.size += l.Len()
	b.Wake()
}

// Wake puts a value into More, for another reader than the one that took it from there.
func (b *Box[L]) Wake() {
	select {
	case b.more <- struct{}{}:
	default:
	}
}

// Take returns the next letter, if there is one, and whether it or nothing was the last.
func (b *Box[L]) Take() (l L, ok, last bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.letters) > 0 {
		l, ok = b.letters[0], true
		var none L
		b.letters[0] = none // its bytes are no longer kept
		b.letters = b.letters[1:]
		b.size -= l.Len()
	}
	if len(b.letters) > 0 {
		b.Wake()
	}
	return l, ok, b.closed && len(b.letters) == 0
}

// Withdraw takes the first letter back that is the one, if it was not taken. It reports whether
// there was one.
func (b *Box[L]) Withdraw(is func(L) bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.IndexFunc(b.letters, is)
	if i < 0 {
		return false
	}
	b.size -= b.letters[i].Len()
	b.letters = slices.Delete(b.letters, i, i+1)
	return true
}

// Discard ends the Box without a last letter. It returns the letters that were not taken.
func (b *Box[L]) Discard() []L {
	b.mu.Lock()
	defer b.mu.Unlock()
	left := b.letters
	b.letters, b.size, b.closed = nil, 0, true
	b.Wake()
	return left
}
