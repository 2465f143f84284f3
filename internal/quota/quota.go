// Package quota limits what is stored for clients and servers: in total, for each owner, and in
// time. It counts how full every store is.
//
// A [Cache] evicts entries to make room, a [Meter] refuses what does not fit.
package quota

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// A Kind is a kind of stored thing, such as sessions or originals. All stores of a kind in the
// process are counted together.
type Kind struct {
	Name string

	entries, bytes       atomic.Int64
	maxEntries, maxBytes atomic.Int64
	dropped, refused     atomic.Int64
}

// Usage is how full the stores of a [Kind] are. A limit of 0 means no limit.
type Usage struct {
	Entries, MaxEntries int64
	Bytes, MaxBytes     int64
	Dropped             int64 // entries evicted to make room
	Refused             int64 // entries refused because there was no room
}

// Usage returns how full all stores of the kind are.
func (k *Kind) Usage() Usage {
	return Usage{
		Entries: k.entries.Load(), MaxEntries: k.maxEntries.Load(),
		Bytes: k.bytes.Load(), MaxBytes: k.maxBytes.Load(),
		Dropped: k.dropped.Load(), Refused: k.refused.Load(),
	}
}

// open adds the limits of a store to those of the kind.
func (k *Kind) open(l Limits) {
	k.maxEntries.Add(int64(l.Entries))
	k.maxBytes.Add(l.Bytes)
}

// close subtracts the limits of a store.
func (k *Kind) close(l Limits) {
	k.maxEntries.Add(-int64(l.Entries))
	k.maxBytes.Add(-l.Bytes)
}

func (k *Kind) add(entries int, bytes int64) {
	k.entries.Add(int64(entries))
	k.bytes.Add(bytes)
}

var kinds struct {
	sync.Mutex
	all []*Kind
}

// NewKind registers a kind under a name. It is for package variables.
func NewKind(name string) *Kind {
	kinds.Lock()
	defer kinds.Unlock()
	k := &Kind{Name: name}
	kinds.all = append(kinds.all, k)
	slices.SortFunc(kinds.all, func(a, b *Kind) int { return strings.Compare(a.Name, b.Name) })
	return k
}

// Kinds returns all kinds, sorted by name.
func Kinds() []*Kind {
	kinds.Lock()
	defer kinds.Unlock()
	return slices.Clone(kinds.all)
}

// Limits limit a store. A limit of 0 means no limit.
type Limits struct {
	Entries int
	Bytes   int64

	// Limits of a single owner. A Cache is fair without them: when it is full, it evicts entries of
	// the owner with the largest share.
	OwnerEntries int
	OwnerBytes   int64
}

// An amount is a number of entries, and their bytes.
type amount struct {
	entries int
	bytes   int64
}

func (a amount) plus(b amount) amount { return amount{a.entries + b.entries, a.bytes + b.bytes} }

// exceeds reports whether an amount is over a limit of entries or bytes.
func (a amount) exceeds(entries int, bytes int64) bool {
	return entries > 0 && a.entries > entries || bytes > 0 && a.bytes > bytes
}

// share returns the share of an amount in a store: the larger of its shares of entries and bytes.
func (a amount) share(l Limits) float64 {
	var share float64
	if l.Entries > 0 {
		share = float64(a.entries) / float64(l.Entries)
	}
	if l.Bytes > 0 {
		share = max(share, float64(a.bytes)/float64(l.Bytes))
	}
	return share
}

// A Meter counts what owners hold, and refuses what exceeds its limits. It is safe for concurrent
// use.
type Meter struct {
	kind   *Kind
	limits Limits

	mu     sync.Mutex
	total  amount
	owners map[string]amount
	closed bool
}

// NewMeter returns a meter that counts as part of a kind until it is closed.
func NewMeter(kind *Kind, limits Limits) *Meter {
	kind.open(limits)
	return &Meter{kind: kind, limits: limits, owners: map[string]amount{}}
}

// Take counts one more entry of an owner. It reports false if that exceeds a limit.
func (m *Meter) Take(owner string, bytes int64) bool { return m.take(owner, amount{1, bytes}) }

// Fits reports whether Take would succeed. It counts nothing.
func (m *Meter) Fits(owner string, bytes int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fits(m.owners[owner].plus(amount{1, bytes}), m.total.plus(amount{1, bytes}))
}

// fits reports whether the amounts of an owner and of all owners are within the limits. The caller
// holds the lock.
func (m *Meter) fits(own, all amount) bool {
	return !all.exceeds(m.limits.Entries, m.limits.Bytes) && !own.exceeds(m.limits.OwnerEntries, m.limits.OwnerBytes)
}

// Grow adds bytes to an entry of an owner. It reports false if that exceeds a limit.
func (m *Meter) Grow(owner string, bytes int64) bool { return m.take(owner, amount{0, bytes}) }

func (m *Meter) take(owner string, more amount) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	own, all := m.owners[owner].plus(more), m.total.plus(more)
	if !m.fits(own, all) {
		m.kind.refused.Add(1)
		return false
	}
	m.owners[owner], m.total = own, all
	if !m.closed {
		m.kind.add(more.entries, more.bytes)
	}
	return true
}

// Give removes an entry with all its bytes.
func (m *Meter) Give(owner string, bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	less := amount{-1, -bytes}
	m.owners[owner], m.total = m.owners[owner].plus(less), m.total.plus(less)
	if m.owners[owner].entries == 0 {
		delete(m.owners, owner)
	}
	if !m.closed {
		m.kind.add(-1, -bytes)
	}
}

// Close ends the use of the meter. Entries that were not given back no longer count in its kind. m
// may be nil.
func (m *Meter) Close() {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	m.closed = true
	m.kind.close(m.limits)
	m.kind.add(-m.total.entries, -m.total.bytes)
}
