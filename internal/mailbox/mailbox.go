// Package mailbox holds messages of a server for a client until a response takes them.
package mailbox

import (
	"runtime/debug"
	"slices"
	"sync"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

// A server does not wait for clients that do not read: it may serve others as well. So its messages
// are held for them, and count for their owners from uncounted bytes on in a Box.
const uncounted = 64 << 10

// MaxUnread is how many bytes are held for all clients together, or a quarter of Go's memory limit
// if that is less. Half of them can be for one owner. It is a constant, but for tests.
var MaxUnread int64 = 512 << 20

var unread = quota.NewKind("unread_answers")

// A budget limits how much is held.
type budget struct {
	*quota.Meter
	owner int64 // bytes for one owner
}

func newBudget(bytes int64) budget {
	return budget{quota.NewMeter(unread, quota.Limits{Bytes: bytes, OwnerBytes: bytes / 2}), bytes / 2}
}

// common is the budget of all boxes. It is made when the first one is, because Caddy has set Go's
// memory limit to that of its container by then.
var common = sync.OnceValue(func() budget { return newBudget(min(MaxUnread, debug.SetMemoryLimit(-1)/4)) })

// A Letter is a message in a Box.
type Letter interface {
	Len() int // in bytes
}

// A Box holds letters in the order in which they came. It is safe for concurrent use.
type Box[L Letter] struct {
	more   chan struct{}
	owner  string
	budget budget

	mu      sync.Mutex
	letters []L
	first   [1]L  // room for letters: most boxes hold one at a time
	size    int   // bytes in letters
	taken   int   // bytes of the letter that was taken last, which may still be in use
	counted int64 // bytes that count for the owner
	limit   int   // bytes that wait for a client that does not read, the last letter aside
	readers int   // responses that take letters
	closed  bool  // nothing more will come
}

// New returns a Box for letters to clients of an owner, of up to limit bytes together. A response
// takes them. A Box has to be discarded in the end, unless all letters were taken and are Done.
func New[L Letter](owner string, limit int) *Box[L] {
	b := NewUnread[L](owner, limit)
	b.readers = 1
	return b
}

// NewUnread returns a Box like New, for responses that may never come. They call Join and Leave.
func NewUnread[L Letter](owner string, limit int) *Box[L] {
	return &Box[L]{more: make(chan struct{}, 1), owner: owner, budget: common(), limit: limit}
}

// excess returns how many bytes count if so many are in letters. A single letter may be of any size.
func (b *Box[L]) excess(size int) int64 {
	return min(max(0, int64(size+b.taken-uncounted)), b.budget.owner)
}

// grow makes room for a letter, if the owner may have it. The caller holds the lock.
func (b *Box[L]) grow(l L) bool {
	count := b.excess(b.size + l.Len())
	switch {
	case count <= b.counted:
	case b.counted == 0 && !b.budget.Take(b.owner, count), b.counted > 0 && !b.budget.Grow(b.owner, count-b.counted):
		return false
	default:
		b.counted = count
	}
	b.size += l.Len()
	return true
}

// shrink notes that only so many bytes are in letters, and in the one that was taken last. The
// caller holds the lock.
func (b *Box[L]) shrink(size, taken int) {
	b.size, b.taken = size, taken
	count := b.excess(size)
	switch {
	case count >= b.counted:
		return
	case count == 0:
		b.budget.Give(b.owner, b.counted)
	default:
		b.budget.Grow(b.owner, count-b.counted)
	}
	b.counted = count
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
		dropped, b.letters = b.letters, nil
		b.shrink(0, b.taken)
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

// Put adds a letter and reports whether there was room for it. One that is taken at once may be of
// any size, unless the owner has too much unread.
func (b *Box[L]) Put(l L) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	isNext := b.size == 0 && b.readers > 0
	if b.closed || !isNext && b.size+l.Len() > b.limit || !b.grow(l) {
		return false
	}
	b.add(l)
	return true
}

// End adds the last letter, unless the Box has ended. It reports false if the owner has too much
// unread to get this letter, too. For a small one there always is room.
func (b *Box[L]) End(last L) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return true
	}
	if !b.grow(last) {
		if last.Len() > uncounted {
			return false
		}
		b.size += last.Len()
	}
	b.closed = true
	b.add(last)
	return true
}

func (b *Box[L]) add(l L) {
	if b.letters == nil {
		b.letters = b.first[:0]
	}
	b.letters = append(b.letters, l)
	b.Wake()
}

// Wake puts a value into More, for another reader than the one that took it from there.
func (b *Box[L]) Wake() {
	select {
	case b.more <- struct{}{}:
	default:
	}
}

// Take returns the next letter, if there is one, and whether it or nothing was the last. The one
// before is not used from now on.
func (b *Box[L]) Take() (l L, ok, last bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.letters) > 0 {
		l, ok = b.letters[0], true
		var none L
		b.letters[0] = none // its bytes are no longer kept
		b.letters = b.letters[1:]
		b.shrink(b.size-l.Len(), l.Len())
	} else {
		b.shrink(b.size, 0)
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
	b.shrink(b.size-b.letters[i].Len(), b.taken)
	b.letters = slices.Delete(b.letters, i, i+1)
	return true
}

// Done says that the letter which was taken last is no longer used.
func (b *Box[L]) Done() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shrink(b.size, 0)
}

// Discard ends the Box without a last letter, and says that no letter is in use. It returns those
// that were not taken.
func (b *Box[L]) Discard() []L {
	b.mu.Lock()
	defer b.mu.Unlock()
	left := b.letters
	b.letters, b.closed = nil, true
	b.shrink(0, 0)
	b.Wake()
	return left
}
