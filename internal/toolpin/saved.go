package toolpin

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// format is that of saved pins. In the first, the _meta of tools did not count. Its digests
// are good until a definition is seen that has one of them.
const format = 2

type saved struct {
	Format int         `json:"format"`
	Tools  []savedTool `json:"tools"`
	Began  time.Time   `json:"began,omitzero"`
}

type savedTool struct {
	Tool      string    `json:"tool"`
	Hash      string    `json:"hash"`
	FirstSeen time.Time `json:"first_seen"`

	WithoutMeta bool `json:"without_meta,omitempty"` // the hash is one of the first format
	Accepted    bool `json:"accepted,omitempty"`
}

// MarshalJSON returns what is pinned, in an order that is always the same. Changes
// that were not accepted are not part of it: they are seen again.
func (p *Pins) MarshalJSON() ([]byte, error) {
	p.mu.RLock()
	file := saved{Format: format, Tools: []savedTool{}, Began: p.began}
	for tool, t := range p.tools {
		file.Tools = append(file.Tools, savedTool{tool, t.seen[0].sum.String(), t.seen[0].at, t.withoutMeta, t.accepted})
	}
	p.mu.RUnlock()
	slices.SortFunc(file.Tools, func(a, b savedTool) int { return cmp.Compare(a.Tool, b.Tool) })
	return json.Marshal(file)
}

// UnmarshalJSON takes what [Pins.MarshalJSON] returned in the place of all that p has.
// If it cannot, p stays as it is.
func (p *Pins) UnmarshalJSON(data []byte) error {
	loaded, err := read(data)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tools, p.names, p.texts, p.full, p.lost, p.began = loaded.tools, loaded.names, 0, time.Time{}, false, loaded.began
	p.version++
	return nil
}

// read returns saved pins.
func read(data []byte) (*Pins, error) {
	var file saved
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, fmt.Errorf("read pinned tools: %w", err)
	}
	if file.Format != 1 && file.Format != format {
		return nil, fmt.Errorf("read pinned tools: format is %d, not %d", file.Format, format)
	}
	loaded := &Pins{began: file.Began}
	for _, tool := range file.Tools {
		sum, err := hex.DecodeString(tool.Hash)
		if err != nil || len(sum) != sha256.Size {
			return nil, fmt.Errorf("read pinned tools: hash of %q is not one of SHA-256", tool.Tool)
		}
		d := definition{sum: digest(sum), at: tool.FirstSeen}
		// What there is no room for is not pinned, and counts as changed.
		if loaded.tools[tool.Tool] == nil {
			if t := loaded.pin(tool.Tool, d); t != nil {
				t.withoutMeta, t.accepted = tool.WithoutMeta || file.Format == 1, tool.Accepted
			}
		}
	}
	return loaded, nil
}
