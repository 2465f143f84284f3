package quota

import (
	"container/heap"
	"iter"
	"slices"
	"time"
)

// A Cache holds values for a limited time. When it is full, the owner with the largest share loses
// its oldest entry, so no owner can evict entries of others. It is not safe for concurrent use.
type Cache[K comparable, V any] struct {
	kind   *Kind
	limits Limits
	ttl    time.Duration
	onDrop func(K, V)
	closed bool

	total   amount
	entries map[K]*entry[K, V]
	age     queue[K, V]
	owners  map[string]*owner[K, V]
	byShare shares[K, V]
}

type entry[K comparable, V any] struct {
	key   K
	value V
	bytes int64
	put   time.Time
	owner *owner[K, V]
	links [2]links[K, V]
}

// An owner is the owner of entries.
type owner[K comparable, V any] struct {
	name    string
	amount  amount
	share   float64
	entries queue[K, V]
	oldest  time.Time // when its oldest entry was put
	index   int       // in byShare
}

// NewCache returns an empty cache that counts as part of a kind until it is closed. Entries live
// for ttl, or until they are removed if ttl is 0. onDrop, if not nil, is called with each entry
// that expires or is evicted.
func NewCache[K comparable, V any](kind *Kind, limits Limits, ttl time.Duration, onDrop func(K, V)) *Cache[K, V] {
	kind.open(limits)
	return &Cache[K, V]{
		kind: kind, limits: limits, ttl: ttl, onDrop: onDrop,
		entries: map[K]*entry[K, V]{}, owners: map[string]*owner[K, V]{},
	}
}

// Len returns the number of entries, including expired ones.
func (c *Cache[K, V]) Len() int { return len(c.entries) }

// Get returns the value of a key. It does not extend its lifetime.
func (c *Cache[K, V]) Get(key K) (value V, ok bool) {
	c.Expire()
	e, ok := c.entries[key]
	if ok {
		value = e.value
	}
	return value, ok
}

// Put stores a value of a number of bytes for an owner, replaces the value of the key, and evicts
// others as needed. It reports whether the value is stored. A value larger than the limits is not
// stored, nor one that would itself be evicted.
func (c *Cache[K, V]) Put(ownerName string, key K, value V, bytes int64) bool {
	if c.closed {
		return false
	}
	e := c.entries[key]
	one := amount{1, bytes}
	fits := !one.exceeds(c.limits.Entries, c.limits.Bytes) && !one.exceeds(c.limits.OwnerEntries, c.limits.OwnerBytes)
	if e != nil && (!fits || e.owner.name != ownerName) {
		c.remove(e)
		e = nil
	}
	switch {
	case !fits:
		c.kind.refused.Add(1)
		return false
	case e != nil:
		c.replace(e, value, bytes)
	default:
		e = c.add(ownerName, key, value, bytes)
	}
	o := e.owner
	c.expire(e.put)
	for o.amount.exceeds(c.limits.OwnerEntries, c.limits.OwnerBytes) {
		c.drop(o)
	}
	for c.total.exceeds(c.limits.Entries, c.limits.Bytes) {
		c.drop(c.byShare[0])
	}
	return c.entries[key] == e
}

// add adds an entry.
func (c *Cache[K, V]) add(ownerName string, key K, value V, bytes int64) *entry[K, V] {
	o := c.owners[ownerName]
	if o == nil {
		o = &owner[K, V]{name: ownerName, entries: queue[K, V]{which: ofOwner}}
		c.owners[ownerName] = o
		heap.Push(&c.byShare, o)
	}
	e := &entry[K, V]{key: key, value: value, bytes: bytes, put: time.Now(), owner: o}
	c.age.push(e)
	o.entries.push(e)
	c.entries[key] = e
	c.count(o, 1, bytes)
	return e
}

// replace replaces the value of an entry, as if it was put now.
func (c *Cache[K, V]) replace(e *entry[K, V], value V, bytes int64) {
	grown := bytes - e.bytes
	e.value, e.bytes, e.put = value, bytes, time.Now()
	for _, q := range [...]*queue[K, V]{&c.age, &e.owner.entries} {
		q.remove(e)
		q.push(e)
	}
	c.count(e.owner, 0, grown)
}

// Remove removes the entry of a key, if any, and returns its value.
func (c *Cache[K, V]) Remove(key K) (value V, ok bool) {
	e, ok := c.entries[key]
	if !ok {
		return value, false
	}
	c.remove(e)
	return e.value, true
}

// Expire drops expired entries. It returns the time until the next one expires; 0 if there is none.
func (c *Cache[K, V]) Expire() time.Duration { return c.expire(time.Now()) }

func (c *Cache[K, V]) expire(now time.Time) time.Duration {
	for c.ttl > 0 && c.age.oldest != nil {
		e := c.age.oldest
		if left := c.ttl - now.Sub(e.put); left > 0 {
			return left
		}
		c.remove(e)
		if c.onDrop != nil {
			c.onDrop(e.key, e.value)
		}
	}
	return 0
}

// Oldest returns the entry that was put first, if any.
func (c *Cache[K, V]) Oldest() (key K, value V, ok bool) {
	c.Expire()
	e := c.age.oldest
	if e == nil {
		return key, value, false
	}
	return e.key, e.value, true
}

// All calls yield for each entry, newest first, until it returns false. The cache must not be
// changed during the call.
func (c *Cache[K, V]) All(yield func(K, V) bool) { c.age.each(yield) }

// Owned iterates over the entries of an owner, like All.
func (c *Cache[K, V]) Owned(ownerName string) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		c.Expire()
		if o := c.owners[ownerName]; o != nil {
			o.entries.each(yield)
		}
	}
}

// SetLimits changes the limits, and evicts entries as needed.
func (c *Cache[K, V]) SetLimits(limits Limits) {
	if !c.closed {
		c.kind.close(c.limits)
		c.kind.open(limits)
	}
	c.limits = limits
	for _, o := range c.byShare {
		o.share = o.amount.share(limits)
	}
	heap.Init(&c.byShare)
	for _, o := range slices.Clone(c.byShare) {
		for o.amount.exceeds(limits.OwnerEntries, limits.OwnerBytes) {
			c.drop(o)
		}
	}
	for c.total.exceeds(limits.Entries, limits.Bytes) {
		c.drop(c.byShare[0])
	}
}

// Close drops all entries. The cache stores nothing afterwards.
func (c *Cache[K, V]) Close() {
	if c.closed {
		return
	}
	c.closed = true
	for _, e := range c.entries {
		c.remove(e)
	}
	c.kind.close(c.limits)
}

// drop evicts the oldest entry of an owner.
func (c *Cache[K, V]) drop(o *owner[K, V]) {
	e := o.entries.oldest
	c.remove(e)
	c.kind.dropped.Add(1)
	if c.onDrop != nil {
		c.onDrop(e.key, e.value)
	}
}

func (c *Cache[K, V]) remove(e *entry[K, V]) {
	delete(c.entries, e.key)
	c.age.remove(e)
	e.owner.entries.remove(e)
	c.count(e.owner, -1, -e.bytes)
}

// count adds to the amount of an owner. An owner without entries is removed.
func (c *Cache[K, V]) count(o *owner[K, V], entries int, bytes int64) {
	c.kind.add(entries, bytes)
	c.total.entries += entries
	c.total.bytes += bytes
	o.amount.entries += entries
	o.amount.bytes += bytes
	if o.amount.entries == 0 {
		delete(c.owners, o.name)
		heap.Remove(&c.byShare, o.index)
		return
	}
	o.share = o.amount.share(c.limits)
	o.oldest = o.entries.oldest.put
	heap.Fix(&c.byShare, o.index)
}

// shares is a heap of owners. On top is the one with the largest share and, among equals, with the
// oldest entry.
type shares[K comparable, V any] []*owner[K, V]

func (s shares[K, V]) Len() int { return len(s) }
func (s shares[K, V]) Less(i, j int) bool {
	if s[i].share != s[j].share {
		return s[i].share > s[j].share
	}
	return s[i].oldest.Before(s[j].oldest)
}
func (s shares[K, V]) Swap(i, j int) { s[i], s[j] = s[j], s[i]; s[i].index, s[j].index = i, j }
func (s *shares[K, V]) Push(o any) {
	o.(*owner[K, V]).index = len(*s)
	*s = append(*s, o.(*owner[K, V]))
}
func (s *shares[K, V]) Pop() any {
	last := (*s)[len(*s)-1]
	(*s)[len(*s)-1] = nil
	*s = (*s)[:len(*s)-1]
	return last
}

// A queue holds entries in the order in which they were put. Each entry is in two queues: that of
// all entries, and that of its owner. The links are in the entry, which needs less memory than
// container/list.
type queue[K comparable, V any] struct {
	which          int // index of the links in an entry
	newest, oldest *entry[K, V]
}

// Queues of an entry.
const (
	ofAll = iota
	ofOwner
)

// links are the neighbors of an entry in a queue.
type links[K comparable, V any] struct{ newer, older *entry[K, V] }

// push adds an entry as the newest one.
func (q *queue[K, V]) push(e *entry[K, V]) {
	e.links[q.which] = links[K, V]{older: q.newest}
	if q.newest != nil {
		q.newest.links[q.which].newer = e
	} else {
		q.oldest = e
	}
	q.newest = e
}

// remove removes an entry.
func (q *queue[K, V]) remove(e *entry[K, V]) {
	at := &e.links[q.which]
	if at.newer != nil {
		at.newer.links[q.which].older = at.older
	} else {
		q.newest = at.older
	}
	if at.older != nil {
		at.older.links[q.which].newer = at.newer
	} else {
		q.oldest = at.newer
	}
	*at = links[K, V]{}
}

// each calls yield for each entry, newest first, until it returns false.
func (q *queue[K, V]) each(yield func(K, V) bool) {
	for e := q.newest; e != nil; e = e.links[q.which].older {
		if !yield(e.key, e.value) {
			return
		}
	}
}
