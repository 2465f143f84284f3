package toolpin

import "time"

// Merge merges the pins that other replicas have saved into p. Each tool then has one pin: an
// accepted pin replaces one that was only seen, the later of two accepted pins wins, and of two
// that were only seen the saved one wins. A definition that the server shows to this replica counts
// as a change if it is not the pinned one. Tools that only one side has stay, unless the whole
// server was accepted later.
//
// Merge reports whether tools may now be shown or withheld that were not before. Afterwards p saves
// the union of both sides, so that replicas that merge it get the same. Pins that were lost are
// restored. With an error, p stays unchanged.
func (p *Pins) Merge(data []byte) (changed bool, err error) {
	theirs, err := decodePins(data)
	if err != nil {
		return false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost {
		p.lost, p.fullSince, changed = false, time.Time{}, true
		p.version++
	}
	if theirs.acceptedAt.After(p.acceptedAt) {
		p.dropBefore(theirs.acceptedAt)
		changed = true
	}
	for tool, their := range theirs.tools {
		if their.seen[0].at.Before(p.acceptedAt) {
			continue
		}
		t := p.tools[tool]
		switch {
		case t == nil:
			t = p.pin(tool, their.seen[0])
			if t == nil {
				continue // it counts as changed
			}
			t.accepted, t.withoutMeta = their.accepted, their.withoutMeta
		case t.isBetterThan(their) || t.equals(their):
			continue
		default:
			changed = p.repin(t, their) || changed
		}
		p.version++
	}
	return changed, nil
}

// IsEmpty reports whether p has nothing that others could merge: nothing is pinned, or the pins are
// lost.
func (p *Pins) IsEmpty() bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.lost || len(p.tools) == 0 && p.acceptedAt.IsZero()
}

// dropBefore drops pins from before the whole server was accepted. The caller holds the lock.
func (p *Pins) dropBefore(at time.Time) {
	p.acceptedAt, p.fullSince = at, time.Time{}
	for tool, t := range p.tools {
		if t.seen[0].at.Before(at) {
			p.nameBytes -= len(tool)
			p.textBytes -= len(t.before) + len(t.after)
			delete(p.tools, tool)
		}
	}
	p.version++
}

// isBetterThan reports whether a pin wins over another one of the same tool.
func (t *pin) isBetterThan(other *pin) bool {
	at, otherAt := t.seen[0].at, other.seen[0].at
	switch {
	case t.accepted != other.accepted:
		return t.accepted
	case t.accepted:
		return at.After(otherAt)
	}
	return other.withoutMeta && !t.withoutMeta && at.Equal(otherAt) // the same pin, updated to the new format
}

// equals reports whether two pins are the same once they are saved.
func (t *pin) equals(other *pin) bool {
	return t.seen[0].sum == other.seen[0].sum && t.seen[0].at.Equal(other.seen[0].at) &&
		t.accepted == other.accepted && t.withoutMeta == other.withoutMeta
}

// repin replaces the pinned definition of a tool by that of another pin. It reports whether that
// may change whether the tool counts as changed. The caller holds the lock.
func (p *Pins) repin(t, other *pin) (changed bool) {
	pinned, latest, text := other.seen[0], t.seen[t.latest], t.after
	if t.latest == 0 {
		text = t.before
	}
	t.accepted, t.withoutMeta = other.accepted, other.withoutMeta
	if t.seen[0].sum == pinned.sum {
		t.seen[0].at = pinned.at
		return false
	}
	p.textBytes -= len(t.before) + len(t.after)
	t.seen, t.latest, t.before, t.after = []definition{pinned}, 0, nil, nil
	switch {
	case latest.raw == digest{}: // not seen on this replica yet
		return false
	case latest.sum == pinned.sum:
		t.seen[0].raw, t.before = latest.raw, text
	default:
		if t.withoutMeta {
			latest.raw = digest{} // forces Observe to compare it again
		}
		t.seen, t.latest, t.after = append(t.seen, latest), 1, text
	}
	p.textBytes += len(text)
	return true
}
