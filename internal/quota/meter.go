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
func (m *Meter) Take(owner string, bytes int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	of := m.each[owner]
	of = amount{of.entries + 1, of.bytes + bytes}
	all := amount{m.total.entries + 1, m.total.bytes + bytes}
	if all.exceeds(m.limits.Entries, m.limits.Bytes) || of.exceeds(m.limits.OwnerEntries, m.limits.OwnerBytes) {
		m.kind.refused.Add(1)
		return false
	}
	m.total, m.each[owner] = all, of
	if !m.closed {
		m.kind.add(1, bytes)
	}
	return true
}

// Give gives back what was taken.
func (m *Meter) Give(owner string, bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	of := m.each[owner]
	if of = (amount{of.entries - 1, of.bytes - bytes}); of.entries > 0 {
		m.each[owner] = of
	} else {
		delete(m.each, owner)
	}
	m.total.entries--
	m.total.bytes -= bytes
	if !m.closed {
		m.kind.add(-1, -bytes)
	}
}

// Close says that the meter is not used any more. What is still held does not
// count from now on.
func (m *Meter) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.kind.close(m.limits, m.total)
}
