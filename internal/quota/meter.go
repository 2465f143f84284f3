package quota

import "sync"

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
