// Package mailbox holds messages of a server for a client until a response takes them.
package mailbox

import (
	"runtime/debug"
	"slices"
	"sync"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

// uncounted is how many bytes in a Box do not count for its owner. A server with several clients
// must not wait for those that do not read, so some of their messages are held in any case.
const uncounted = 64 << 10

// MaxUnread is how many bytes are held for all clients together, or a quarter of Go's memory limit
// if that is less. Half of them can be for one owner. Only tests change it.
var MaxUnread int64 = 512 << 20

var unread = quota.NewKind("unread_answers")

// A budget limits how many bytes are held.
type budget struct {
	*quota.Meter
	owner int64 // bytes for one owner
}

func newBudget(bytes int64) budget {
	return budget{quota.NewMeter(unread, quota.Limits{Bytes: bytes, OwnerBytes: bytes / 2}), bytes / 2}
}

// common is the budget of all boxes. It is created with the first box, after Caddy has set Go's
// memory limit to that of its container.
var common = sync.OnceValue(func() budget { return newBudget(min(MaxUnread, debug.SetMemoryLimit(-1)/4)) })

// A Letter is a message in a Box.
type Letter interface {
	Len() int // in bytes
}

// A Box holds letters in order of arrival. It is safe for concurrent use.
type Box[L Letter] struct {
	more   chan struct{}
	owner  string
	budget budget

	mu      sync.Mutex
	letters []L
	first   [1]L  // initial memory of letters: most boxes hold one at a time
	size    int   // bytes in letters
	taken   int   // bytes of the last letter taken, which may still be in use
	counted int64 // bytes that count for the owner
	limit   int   // bytes held for a client that does not read, besides the last letter
	readers int   // responses that take letters
	closed  bool  // no more letters will come
}

// New returns a Box for letters to clients of an owner, of up to limit bytes together, with one
// response that takes them. A Box must be discarded, unless all letters were taken and are Done.
func New[L Letter](owner string, limit int) *Box[L] {
	b := NewUnread[L](owner, limit)
	b.readers = 1
	return b
}

// NewUnread returns a Box like New, without a response that takes letters. Responses call Join and
// Leave.
func NewUnread[L Letter](owner string, limit int) *Box[L] {
	return &Box[L]{more: make(chan struct{}, 1), owner: owner, budget: common(), limit: limit}
}

// excess returns how many bytes count if letters have size bytes. A single letter may have any
// size.
func (b *Box[L]) excess(size int) int64 {
	return min(max(0, int64(size+b.taken-uncounted)), b.budget.owner)
}

// grow makes room for a letter. It reports whether the owner's budget allows it. The caller holds
// the lock.
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

// shrink sets the bytes in letters, and in the last letter taken. The caller holds the lock.
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

// Join adds a response that takes letters.
func (b *Box[L]) Join() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.readers++
	if len(b.letters) > 0 {
		b.Wake()
	}
}

// Leave removes a response that takes letters. It returns letters that are dropped because they are
// too large to wait for another response.
func (b *Box[L]) Leave() (dropped []L) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.readers--
	if b.readers == 0 && b.size > b.limit && !b.closed {
		dropped, b.letters = b.letters, nil
		b.shrink(0, b.taken)
	}
	if len(b.letters) > 0 {
		b.Wake() // another response
	}
	return dropped
}

// HasReaders reports whether any response takes letters.
func (b *Box[L]) HasReaders() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.readers > 0
}

// More returns a channel that has a value whenever there is a letter to take, or the Box has ended.
func (b *Box[L]) More() <-chan struct{} { return b.more }

// Put adds a letter, and reports whether there was room. A letter that can be taken at once may
// have any size, unless the owner has too many unread bytes.
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

// End adds the last letter, unless the Box has ended. It reports false if the owner has too many
// unread bytes. A small letter always fits.
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

// Wake puts a value into More, for another reader than the one that took the last value.
func (b *Box[L]) Wake() {
	select {
	case b.more <- struct{}{}:
	default:
	}
}

// Take returns the next letter, if there is one, and whether the Box is at its end. The letter
// taken before must not be used anymore.
func (b *Box[L]) Take() (l L, ok, last bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.letters) > 0 {
		l, ok = b.letters[0], true
		var none L
		b.letters[0] = none // frees its bytes
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

// Withdraw removes the first letter for which match returns true, if it was not taken. It reports
// whether there was one.
func (b *Box[L]) Withdraw(match func(L) bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.IndexFunc(b.letters, match)
	if i < 0 {
		return false
	}
	b.shrink(b.size-b.letters[i].Len(), b.taken)
	b.letters = slices.Delete(b.letters, i, i+1)
	return true
}

// Done notes that the last letter taken is no longer in use.
func (b *Box[L]) Done() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shrink(b.size, 0)
}

// Discard ends the Box without a last letter, and notes that no letter is in use. It returns the
// letters that were not taken.
func (b *Box[L]) Discard() []L {
	b.mu.Lock()
	defer b.mu.Unlock()
	left := b.letters
	b.letters, b.closed = nil, true
	b.shrink(0, 0)
	b.Wake()
	return left
}
