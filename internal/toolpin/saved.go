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
