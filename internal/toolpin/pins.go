// Package toolpin notices when a tool becomes another one behind its name, and takes
// out of what servers say of themselves the characters that only a model sees.
//
// A person who has looked at a tool and let a model use it trusts the definition that
// was shown. A server can show another one later. So the first definition of a tool
// is pinned, and each later one that says something else is a change, until
// somebody accepts it.
package toolpin

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// maxTools is how many tools are pinned.
	maxTools = 10_000
	// maxNames is how many bytes their names may have together.
	maxNames = 1_000_000
	// maxChanges is how many definitions of one tool are told apart.
	maxChanges = 16
	// maxText is the longest definition that is kept to be looked at.
	maxText = 64 << 10
	// maxTexts is how many bytes those of all tools may have together.
	maxTexts = 8 << 20
)

// Pins remembers how the tools of a server were defined when they were first seen. The
// zero value is empty and ready for use. It is safe for concurrent use.
//
// Its memory is bounded: a server that has 10,000 tools pinned, or a million bytes of
// names, gets no more. Any other tool of it counts as changed from then on, since nobody
// could tell if it were, and as one change that has no tool. To accept it is to accept
// the whole server.
type Pins struct {
	mu      sync.RWMutex
	tools   map[string]*pin
	names   int       // how many bytes the names of tools have
	texts   int       // how many bytes the texts of tools have
	full    time.Time // when there was first no room for a tool, if ever
	lost    bool      // what was pinned is not known, so there is no room for any
	began   time.Time // when the whole server was last accepted: what was pinned before does not count
	version uint64
}

// A pin has the definitions of a tool that were seen, the pinned one first. When
// there are as many as are told apart, the last is whichever came last.
type pin struct {
	seen   []definition
	latest int
	// The digest of the pinned definition is without its _meta: it comes from a file of
	// the first format.
	withoutMeta bool
	accepted    bool // the pinned definition, by an operator
	// The pinned definition and, if it is another one, the latest, as they were written.
	// Each is empty if it is not known, or too long.
	before, after json.RawMessage
}

type definition struct {
	sum digest
	raw digest // of the bytes that said it last, zero if it comes from before a restart
	at  time.Time
}

// A Change is a tool whose latest definition is not the pinned one.
type Change struct {
	Tool   string    `json:"tool"`           // empty for all those that could not be pinned
	Pinned string    `json:"pinned"`         // the beginning of the digest
	Seen   string    `json:"seen"`           // that of the latest definition
	At     time.Time `json:"at"`             // when that was first seen
	Lost   bool      `json:"lost,omitempty"` // what was pinned could not be read

	// Both definitions, which must not be changed. That from before a restart is not
	// known, nor is one longer than 64 KiB, or of a server that has more than 8 MiB.
	Before json.RawMessage `json:"before,omitempty"`
	After  json.RawMessage `json:"after,omitempty"`
}

// ErrChangedAgain is that the latest definition is not the one that is to be accepted.
var ErrChangedAgain = errors.New("the definition has changed again")

// See notes the definition of a tool. It reports whether that is another than the one
// that was first seen or accepted last, and whether this very change is news. It is so
// once, however often a server goes back and forth, until the tool is accepted. A
// server that goes on to invent definitions is no news after the sixteenth.
//
// A definition written just like the latest costs its hash and no allocation.
func (p *Pins) See(tool string, descriptor []byte) (changed, news bool) {
	raw := digest(sha256.Sum256(descriptor))
	p.mu.RLock()
	sum, known, latest := p.tools[tool].written(raw)
	p.mu.RUnlock()
	if latest {
		return known != 0, false
	}
	if known < 0 {
		sum = define(descriptor)
	}

	d := definition{sum: sum, raw: raw, at: now()}
	p.mu.Lock()
	defer p.mu.Unlock()
	if t := p.tools[tool]; t != nil {
		if t.withoutMeta && defineWithoutMeta(descriptor) == t.seen[0].sum {
			t.seen[0].sum, t.withoutMeta = d.sum, false
			p.version++
		}
		changed, news = t.see(d)
		p.keep(t, descriptor)
		return changed, news
	}
	if d.at.Before(p.began) {
		d.at = p.began
	}
	if t := p.pin(tool, d); t != nil {
		p.keep(t, descriptor)
		p.version++
		return false, false
	}
	if news = p.full.IsZero(); news {
		p.full = d.at
	}
	return true, news
}

// written returns the digest and the index of the definition that these bytes are
// known to say, or -1, and whether it is the latest.
func (t *pin) written(raw digest) (sum digest, i int, latest bool) {
	if t == nil {
		return digest{}, -1, false
	}
	for i := range t.seen {
		if t.seen[i].raw == raw {
			return t.seen[i].sum, i, i == t.latest
		}
	}
	return digest{}, -1, false
}

// see makes d the latest definition.
func (t *pin) see(d definition) (changed, news bool) {
	t.latest = slices.IndexFunc(t.seen, func(known definition) bool { return known.sum == d.sum })
	switch {
	case t.latest >= 0:
		t.seen[t.latest].raw = d.raw
	case len(t.seen) <= maxChanges:
		t.seen = append(t.seen, d)
		t.latest, news = len(t.seen)-1, true
	default:
		t.latest = maxChanges
		t.seen[t.latest] = d
	}
	return t.latest != 0, news
}

// keep keeps how the latest definition of a tool is written, if it can be shown and there
// is room.
func (p *Pins) keep(t *pin, descriptor []byte) {
	p.texts -= len(t.after)
	t.after = nil
	text := &t.after
	if t.latest == 0 {
		if text = &t.before; *text != nil {
			return
		}
	}
	if len(descriptor) > maxText || !json.Valid(descriptor) {
		return
	}
	shown := bytes.ToValidUTF8(descriptor, []byte("\ufffd"))
	if p.texts+len(shown) <= maxTexts {
		*text = shown
		p.texts += len(shown)
	}
}

// Changed reports whether the latest definition of a tool is another than the pinned
// one. A tool that was never seen has not changed.
func (p *Pins) Changed(tool string) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if t := p.tools[tool]; t != nil {
		return t.latest != 0
	}
	return !p.room(tool)
}

// Changes returns what has changed and was not accepted, in order.
func (p *Pins) Changes() []Change {
	p.mu.RLock()
	defer p.mu.RUnlock()
	var changes []Change
	if !p.full.IsZero() {
		changes = append(changes, Change{At: p.full, Lost: p.lost})
	}
	for tool, t := range p.tools {
		if t.latest != 0 {
			pinned, seen := t.seen[0], t.seen[t.latest]
			changes = append(changes, Change{Tool: tool, Pinned: pinned.sum.short(), Seen: seen.sum.short(), At: seen.at, Before: t.before, After: t.after})
		}
	}
	slices.SortFunc(changes, func(a, b Change) int { return cmp.Compare(a.Tool, b.Tool) })
	return changes
}

// Accept pins the latest definition of a tool, or of all tools if tool is empty. It
// returns how many of the [Pins.Changes] are none any more. If seen is not empty it is
// what [Change] told of the tool, and a change to any other definition is not accepted:
// the error is [ErrChangedAgain].
//
// If the server has more tools than could be pinned, to accept all of them is to
// begin anew with it: each is pinned when it is seen next.
func (p *Pins) Accept(tool, seen string) (accepted int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if tool == "" {
		accepted = p.acceptAll()
	} else if t := p.tools[tool]; t != nil && t.latest != 0 {
		if seen != "" && seen != t.seen[t.latest].sum.short() {
			return 0, ErrChangedAgain
		}
		accepted = p.accept(t)
	}
	if accepted > 0 {
		p.version++
	}
	return accepted, nil
}

func (p *Pins) acceptAll() (accepted int) {
	for _, t := range p.tools {
		accepted += p.accept(t)
	}
	if !p.full.IsZero() {
		accepted++
		p.began = now()
		for _, t := range p.tools {
			p.began = later(p.began, t.seen[0].at)
		}
		p.tools, p.names, p.texts, p.full, p.lost = nil, 0, 0, time.Time{}, false
	}
	return accepted
}

// Lose notes that the pins are lost. Until all is accepted, every tool
// counts as changed.
func (p *Pins) Lose() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tools, p.names, p.texts, p.full, p.lost = nil, 0, 0, now(), true
}

// Find notes that nothing was lost after all: there was nothing.
func (p *Pins) Find() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost {
		p.lost, p.full = false, time.Time{}
	}
}

func (p *Pins) accept(t *pin) int {
	if t.latest == 0 {
		return 0
	}
	d := t.seen[t.latest]
	if d.at = now(); t.accepted {
		d.at = later(d.at, t.seen[0].at)
	}
	t.seen, t.latest, t.withoutMeta, t.accepted = []definition{d}, 0, false, true
	p.texts -= len(t.before)
	t.before, t.after = t.after, nil
	return 1
}

// Version returns a number that grows whenever there is something else to save. Ask
// for it before you save, and what changes meanwhile is saved the next time.
func (p *Pins) Version() uint64 {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.version
}

// room reports whether one more tool can be pinned.
func (p *Pins) room(tool string) bool {
	return !p.lost && len(p.tools) < maxTools && p.names+len(tool) <= maxNames
}

// pin pins a tool that is not pinned yet. It returns nil if there is no room.
func (p *Pins) pin(tool string, d definition) *pin {
	if !p.room(tool) {
		return nil
	}
	if p.tools == nil {
		p.tools = make(map[string]*pin)
	}
	t := &pin{seen: []definition{d}}
	p.tools[strings.Clone(tool)] = t
	p.names += len(tool)
	return t
}

// now is good to the second, as that is how it is saved.
func now() time.Time { return time.Now().UTC().Truncate(time.Second) }

// later returns a time, or the next one after another if it is not after that.
func later(at, after time.Time) time.Time {
	if at.After(after) {
		return at
	}
	return after.Add(time.Second)
}
