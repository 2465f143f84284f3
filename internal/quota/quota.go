// Package quota bounds what is kept for clients and servers: so much in all, so
// much for each owner, and for so long. It counts how full every store is.
//
// A [Cache] makes room by dropping entries, a [Meter] refuses what does not fit.
package quota

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// A Kind is one sort of thing that is kept, such as sessions or original results.
// All stores of a kind in the process count together.
type Kind struct {
	Name string

	entries, bytes       atomic.Int64
	maxEntries, maxBytes atomic.Int64
	dropped, refused     atomic.Int64
}

// Usage is how full the stores of a [Kind] are. A limit of 0 means that there is
// none.
type Usage struct {
	Entries, MaxEntries int64
	Bytes, MaxBytes     int64
	Dropped             int64 // entries, to make room for others
	Refused             int64 // entries, because there was no room
}

// Usage returns how full the stores of the kind are together.
func (k *Kind) Usage() Usage {
	return Usage{
		Entries: k.entries.Load(), MaxEntries: k.maxEntries.Load(),
		Bytes: k.bytes.Load(), MaxBytes: k.maxBytes.Load(),
		Dropped: k.dropped.Load(), Refused: k.refused.Load(),
	}
}

// open and close count the limits of a store.
func (k *Kind) open(l Limits) {
	k.maxEntries.Add(int64(l.Entries))
	k.maxBytes.Add(l.Bytes)
}

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

// NewKind makes a kind known under a name. It is for variables of packages.
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

// Limits bound a store. A limit of 0 does not bound it.
type Limits struct {
	Entries int
	Bytes   int64

	// What a single owner may hold of it. A Cache needs no such limit to be fair:
	// when it is full, the owner of the largest share makes room.
	OwnerEntries int
	OwnerBytes   int64
}

// An amount is what an owner holds.
type amount struct {
	entries int
	bytes   int64
}

func (a amount) plus(b amount) amount { return amount{a.entries + b.entries, a.bytes + b.bytes} }

// exceeds reports whether an amount is more than so many entries or bytes.
func (a amount) exceeds(entries int, bytes int64) bool {
	return entries > 0 && a.entries > entries || bytes > 0 && a.bytes > bytes
}

// share returns how much of a store an amount is: the larger of its shares of
// entries and bytes.
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
