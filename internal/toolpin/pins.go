// Package toolpin notices when the definition of a tool changes, and removes characters from
// definitions that only a model sees.
//
// A user who lets a model use a tool trusts the definition that was shown. A server can show
// another one later. So the first definition of a tool is pinned, and each later one with another
// content is a change until an operator accepts it.
package toolpin

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// maxTools is the maximum number of pinned tools.
	maxTools = 10_000
	// maxNames is the maximum number of bytes of their names together.
	maxNames = 1_000_000
	// maxChanges is the maximum number of changed definitions kept per tool. A further one replaces
	// the last.
	maxChanges = 16
	// maxText is the longest definition, in bytes, that is kept for display.
	maxText = 64 << 10
	// maxTexts is the maximum number of bytes of these definitions together.
	maxTexts = 8 << 20
)

// Pins records how the tools of a server were defined when they were first seen. The zero value is
// empty and ready for use. It is safe for concurrent use.
//
// Its memory is bounded to 10,000 tools and a million bytes of names for a server. Tools beyond
// that count as changed, because a change could not be noticed. Together they are one [Change]
// without a tool; accepting it accepts the whole server.
type Pins struct {
	mu         sync.RWMutex
	tools      map[string]*pin
	nameBytes  int       // bytes of tool names
	textBytes  int       // bytes of kept definitions
	fullSince  time.Time // when a tool found no room for the first time; zero if none did
	lost       bool      // the pins could not be read, so every tool counts as changed
	acceptedAt time.Time // when the whole server was last accepted; earlier pins do not count
	version    uint64
}

// A pin holds the known definitions of a tool, the pinned one first. When the maximum is reached, a
// new definition replaces the last one.
type pin struct {
	seen   []definition
	latest int
	// The digest of the pinned definition ignores _meta: it comes from a file of the first format.
	withoutMeta bool
	accepted    bool // an operator has accepted the pinned definition
	// The pinned definition and, if it is another one, the latest, as they were sent. Each is empty
	// if it is unknown or too long.
	before, after json.RawMessage
}

type definition struct {
	sum digest
	raw digest // digest of the bytes when last seen; zero if not seen since a restart
	at  time.Time
}

// A Change is a tool whose latest definition is not the pinned one.
type Change struct {
	Tool   string    `json:"tool"`           // empty for all tools that could not be pinned
	Pinned string    `json:"pinned"`         // beginning of the pinned digest
	Seen   string    `json:"seen"`           // beginning of the latest digest
	At     time.Time `json:"at"`             // when the latest definition was first seen
	Lost   bool      `json:"lost,omitempty"` // the pins could not be read

	// Both definitions. The caller must not change them. They are empty if they come from before a
	// restart, are longer than 64 KiB, or exceed 8 MiB for the server.
	Before json.RawMessage `json:"before,omitempty"`
	After  json.RawMessage `json:"after,omitempty"`
}

// ErrChangedAgain reports that the latest definition is not the one to be accepted.
var ErrChangedAgain = errors.New("the definition has changed again")

// Observe notes the definition of a tool. It reports whether it differs from the pinned one, and
// whether this change is new. A change is new once, even if the server alternates between
// definitions, until the tool is accepted. After sixteen changes of a tool, no more are new.
//
// A definition with the same bytes as the latest costs one hash and no allocation.
func (p *Pins) Observe(tool string, descriptor []byte) (changed, isNew bool) {
	raw := digest(sha256.Sum256(descriptor))
	p.mu.RLock()
	sum, known, latest := p.tools[tool].find(raw)
	p.mu.RUnlock()
	if latest {
		return known != 0, false
	}
	if known < 0 {
		sum = digestOf(descriptor)
	}

	d := definition{sum: sum, raw: raw, at: now()}
	p.mu.Lock()
	defer p.mu.Unlock()
	if t := p.tools[tool]; t != nil {
		if t.withoutMeta && digestWithoutMeta(descriptor) == t.seen[0].sum {
			t.seen[0].sum, t.withoutMeta = d.sum, false
			p.version++
		}
		changed, isNew = t.setLatest(d)
		p.keepText(t, descriptor)
		return changed, isNew
	}
	if d.at.Before(p.acceptedAt) {
		d.at = p.acceptedAt
	}
	if t := p.pin(tool, d); t != nil {
		p.keepText(t, descriptor)
		p.version++
		return false, false
	}
	isNew = p.fullSince.IsZero()
	if isNew {
		p.fullSince = d.at
	}
	return true, isNew
}

// find returns the digest and index of the known definition with these bytes, or -1, and whether it
// is the latest.
func (t *pin) find(raw digest) (sum digest, i int, latest bool) {
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

// setLatest makes d the latest definition.
func (t *pin) setLatest(d definition) (changed, isNew bool) {
	t.latest = slices.IndexFunc(t.seen, func(known definition) bool { return known.sum == d.sum })
	switch {
	case t.latest >= 0:
		t.seen[t.latest].raw = d.raw
	case len(t.seen) <= maxChanges:
		t.seen = append(t.seen, d)
		t.latest, isNew = len(t.seen)-1, true
	default:
		t.latest = maxChanges
		t.seen[t.latest] = d
	}
	return t.latest != 0, isNew
}

// keepText keeps the text of the latest definition of a tool, if it can be displayed and there is
// room.
func (p *Pins) keepText(t *pin, descriptor []byte) {
	p.textBytes -= len(t.after)
	t.after = nil
	text := &t.after
	if t.latest == 0 {
		text = &t.before
		if *text != nil {
			return
		}
	}
	if len(descriptor) > maxText || !json.Valid(descriptor) {
		return
	}
	shown := bytes.ToValidUTF8(descriptor, []byte("\ufffd"))
	if p.textBytes+len(shown) <= maxTexts {
		*text = shown
		p.textBytes += len(shown)
	}
}

// Changed reports whether the latest definition of a tool differs from the pinned one. A tool that
// was never seen has not changed.
func (p *Pins) Changed(tool string) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if t := p.tools[tool]; t != nil {
		return t.latest != 0
	}
	return !p.hasRoom(tool)
}

// Changes returns the changes that were not accepted, sorted by tool.
func (p *Pins) Changes() []Change {
	p.mu.RLock()
	defer p.mu.RUnlock()
	var changes []Change
	if !p.fullSince.IsZero() {
		changes = append(changes, Change{At: p.fullSince, Lost: p.lost})
	}
	for tool, t := range p.tools {
		if t.latest != 0 {
			pinned, seen := t.seen[0], t.seen[t.latest]
			changes = append(changes, Change{
				Tool: tool, Pinned: pinned.sum.short(), Seen: seen.sum.short(), At: seen.at,
				Before: t.before, After: t.after,
			})
		}
	}
	slices.SortFunc(changes, func(a, b Change) int { return cmp.Compare(a.Tool, b.Tool) })
	return changes
}

// Accept pins the latest definition of a tool, or of all tools if tool is empty. It returns how
// many [Pins.Changes] it has accepted. If seen is not empty, it must be the Seen of the [Change];
// if the definition has changed since, the error is [ErrChangedAgain].
//
// If the server has more tools than can be pinned, accepting all of them drops the pins: each tool
// is pinned when it is seen next.
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
	if !p.fullSince.IsZero() {
		accepted++
		p.acceptedAt = now()
		for _, t := range p.tools {
			p.acceptedAt = later(p.acceptedAt, t.seen[0].at)
		}
		p.tools, p.nameBytes, p.textBytes, p.fullSince, p.lost = nil, 0, 0, time.Time{}, false
	}
	return accepted
}

// MarkLost notes that the pins could not be read. Every tool counts as changed until all are
// accepted.
func (p *Pins) MarkLost() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tools, p.nameBytes, p.textBytes, p.fullSince, p.lost = nil, 0, 0, now(), true
}

// ClearLost undoes MarkLost, because there were no pins to read.
func (p *Pins) ClearLost() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost {
		p.lost, p.fullSince = false, time.Time{}
	}
}

func (p *Pins) accept(t *pin) int {
	if t.latest == 0 {
		return 0
	}
	d := t.seen[t.latest]
	d.at = now()
	if t.accepted {
		d.at = later(d.at, t.seen[0].at)
	}
	t.seen, t.latest, t.withoutMeta, t.accepted = []definition{d}, 0, false, true
	p.textBytes -= len(t.before)
	t.before, t.after = t.after, nil
	return 1
}

// Version returns a number that grows whenever there is something new to save. Read it before
// saving, so that changes during the save are saved the next time.
func (p *Pins) Version() uint64 {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.version
}

// hasRoom reports whether one more tool can be pinned.
func (p *Pins) hasRoom(tool string) bool {
	return !p.lost && len(p.tools) < maxTools && p.nameBytes+len(tool) <= maxNames
}

// pin pins a tool that is not pinned yet. It returns nil if there is no room.
func (p *Pins) pin(tool string, d definition) *pin {
	if !p.hasRoom(tool) {
		return nil
	}
	if p.tools == nil {
		p.tools = make(map[string]*pin)
	}
	t := &pin{seen: []definition{d}}
	p.tools[strings.Clone(tool)] = t
	p.nameBytes += len(tool)
	return t
}

// now returns the time in whole seconds, because pins are saved like that.
func now() time.Time { return time.Now().UTC().Truncate(time.Second) }

// later returns at, or the second following after if at is not later than that.
func later(at, after time.Time) time.Time {
	if at.After(after) {
		return at
	}
	return after.Add(time.Second)
}

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

// format is the version of saved pins. The first format ignored the _meta of tools. Its digests are
// used until a definition is seen that matches one.
const format = 2

type saved struct {
	Format     int         `json:"format"`
	Tools      []savedTool `json:"tools"`
	AcceptedAt time.Time   `json:"began,omitzero"`
}

type savedTool struct {
	Tool      string    `json:"tool"`
	Hash      string    `json:"hash"`
	FirstSeen time.Time `json:"first_seen"`

	WithoutMeta bool `json:"without_meta,omitempty"` // the hash has the first format
	Accepted    bool `json:"accepted,omitempty"`
}

// MarshalJSON returns the pins in a stable order. Changes that were not accepted are not saved,
// because they will be seen again.
func (p *Pins) MarshalJSON() ([]byte, error) {
	p.mu.RLock()
	file := saved{Format: format, Tools: []savedTool{}, AcceptedAt: p.acceptedAt}
	for tool, t := range p.tools {
		file.Tools = append(file.Tools, savedTool{tool, t.seen[0].sum.String(), t.seen[0].at, t.withoutMeta, t.accepted})
	}
	p.mu.RUnlock()
	slices.SortFunc(file.Tools, func(a, b savedTool) int { return cmp.Compare(a.Tool, b.Tool) })
	return json.Marshal(file)
}

// UnmarshalJSON replaces all pins with those that [Pins.MarshalJSON] returned. With an error, p
// stays unchanged.
func (p *Pins) UnmarshalJSON(data []byte) error {
	loaded, err := decodePins(data)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tools, p.nameBytes, p.textBytes = loaded.tools, loaded.nameBytes, 0
	p.fullSince, p.lost, p.acceptedAt = time.Time{}, false, loaded.acceptedAt
	p.version++
	return nil
}

// decodePins decodes saved pins.
func decodePins(data []byte) (*Pins, error) {
	var file saved
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, fmt.Errorf("read pinned tools: %w", err)
	}
	if file.Format != 1 && file.Format != format {
		return nil, fmt.Errorf("read pinned tools: format is %d, but this version reads only 1 to %d", file.Format, format)
	}
	loaded := &Pins{acceptedAt: file.AcceptedAt}
	for _, tool := range file.Tools {
		sum, err := hex.DecodeString(tool.Hash)
		if err != nil || len(sum) != sha256.Size {
			return nil, fmt.Errorf("read pinned tools: hash of %q is not a SHA-256 hash", tool.Tool)
		}
		d := definition{sum: digest(sum), at: tool.FirstSeen}
		// Tools beyond the limits are not pinned and count as changed.
		if loaded.tools[tool.Tool] == nil {
			if t := loaded.pin(tool.Tool, d); t != nil {
				t.withoutMeta, t.accepted = tool.WithoutMeta || file.Format == 1, tool.Accepted
			}
		}
	}
	return loaded, nil
}
