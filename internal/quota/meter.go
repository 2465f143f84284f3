package quota

import "sync"

// A Meter counts what owners hold and refuses what exceeds its limits. It is safe
// for concurrent use.
type Meter struct {
	kind   *Kind
	limits Limits

	mu     sync.Mutex
	total  amount
	each   map[string]amount
	closed bool
}

// NewMeter returns a meter that counts as part of a kind until it is closed.
func NewMeter(kind *Kind, limits Limits) *Meter {
	kind.open(limits)
	return &Meter{kind: kind, limits: limits, each: map[string]amount{}}
}

// Take reports whether owner may hold one entry more, of so many bytes, and
// counts it.
func (m *Meter) Take(owner string, bytes int64) bool { return m.take(owner, amount{1, bytes}) }

// Fits reports whether owner may hold one entry more, of so many bytes. It counts
// nothing.
func (m *Meter) Fits(owner string, bytes int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fits(m.each[owner].plus(amount{1, bytes}), m.total.plus(amount{1, bytes}))
}

// fits reports whether an owner may hold own, if all hold all. The caller holds the lock.
func (m *Meter) fits(own, all amount) bool {
	return !all.exceeds(m.limits.Entries, m.limits.Bytes) && !own.exceeds(m.limits.OwnerEntries, m.limits.OwnerBytes)
}

// Grow reports whether an entry that owner holds may have so many bytes more, and
// counts them.
func (m *Meter) Grow(owner string, bytes int64) bool { return m.take(owner, amount{0, bytes}) }

func (m *Meter) take(owner string, more amount) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	own, all := m.each[owner].plus(more), m.total.plus(more)
	if !m.fits(own, all) {
		m.kind.refused.Add(1)
		return false
	}
	m.each[owner], m.total = own, all
	if !m.closed {
		m.kind.add(more.entries, more.bytes)
	}
	return true
}

// Give gives back an entry, with all bytes that were taken for it.
func (m *Meter) Give(owner string, bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	less := amount{-1, -bytes}
	m.each[owner], m.total = m.each[owner].plus(less), m.total.plus(less)
	if m.each[owner].entries == 0 {
		delete(m.each, owner)
	}
	if !m.closed {
		m.kind.add(-1, -bytes)
	}
}

// Close says that the meter is no longer used. What is still held does not
// count from now on. A meter that is nil may be closed, too.
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
