package toolpin

import "time"

// Merge brings p together with what other replicas have saved. Each tool has one pin then: one that an
// operator has accepted is better than one that was seen first, of two accepted ones it is the later, and
// of two that were seen first it is theirs. A definition that a server shows here is a change from then
// on if it is not that one. Tools that only one side has stay, unless the whole server was accepted since.
//
// It reports whether tools may be shown or withheld now that were not before. What p is to be saved as
// afterwards is what both sides have: others that merge it get the same. If the pins were lost, they are
// found again. If there is an error, p stays as it is.
func (p *Pins) Merge(data []byte) (news bool, err error) {
	theirs, err := read(data)
	if err != nil {
		return false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost {
		p.lost, p.full, news = false, time.Time{}, true
		p.version++
	}
	if theirs.began.After(p.began) {
		p.begin(theirs.began)
		news = true
	}
	for tool, their := range theirs.tools {
		if their.seen[0].at.Before(p.began) {
			continue
		}
		t := p.tools[tool]
		switch {
		case t == nil:
			if t = p.pin(tool, their.seen[0]); t == nil {
				continue // it counts as changed
			}
			t.accepted, t.withoutMeta = their.accepted, their.withoutMeta
		case t.beats(their) || t.same(their):
			continue
		default:
			news = p.repin(t, their) || news
		}
		p.version++
	}
	return news, nil
}

// Nothing reports whether there is nothing that others could merge: nothing is pinned, or what was is lost.
func (p *Pins) Nothing() bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.lost || len(p.tools) == 0 && p.began.IsZero()
}

// begin forgets what was pinned before the whole server was accepted. The caller holds the lock.
func (p *Pins) begin(at time.Time) {
	p.began, p.full = at, time.Time{}
	for tool, t := range p.tools {
		if t.seen[0].at.Before(at) {
			p.names -= len(tool)
			p.texts -= len(t.before) + len(t.after)
			delete(p.tools, tool)
		}
	}
	p.version++
}

// beats reports whether a pin is better than another one of the same tool.
func (t *pin) beats(other *pin) bool {
	at, otherAt := t.seen[0].at, other.seen[0].at
	switch {
	case t.accepted != other.accepted:
		return t.accepted
	case t.accepted:
		return at.After(otherAt)
	}
	return other.withoutMeta && !t.withoutMeta && at.Equal(otherAt) // it is the same, and was seen since
}

// same reports whether a pin is saved as another one is.
func (t *pin) same(other *pin) bool {
	return t.seen[0].sum == other.seen[0].sum && t.seen[0].at.Equal(other.seen[0].at) &&
		t.accepted == other.accepted && t.withoutMeta == other.withoutMeta
}

// repin has a tool pinned as another pin has it. It reports whether the tool may count as changed now and
// not before, or the other way round. The caller holds the lock.
func (p *Pins) repin(t, other *pin) (news bool) {
	pinned, latest, text := other.seen[0], t.seen[t.latest], t.after
	if t.latest == 0 {
		text = t.before
	}
	t.accepted, t.withoutMeta = other.accepted, other.withoutMeta
	if t.seen[0].sum == pinned.sum {
		t.seen[0].at = pinned.at
		return false
	}
	p.texts -= len(t.before) + len(t.after)
	t.seen, t.latest, t.before, t.after = []definition{pinned}, 0, nil, nil
	switch {
	case latest.raw == digest{}: // it has not been seen here yet
		return false
	case latest.sum == pinned.sum:
		t.seen[0].raw, t.before = latest.raw, text
	default:
		if t.withoutMeta {
			latest.raw = digest{} // whether it is the same is to be found out
		}
		t.seen, t.latest, t.after = append(t.seen, latest), 1, text
	}
	p.texts += len(text)
	return true
}
