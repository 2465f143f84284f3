// Package focus shortens large texts to what a client looks for.
//
// Package prune selects lines, package jsoncut items and members of JSON. Only the goal is needed:
// the type of the text is detected.
package focus

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsoncut"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
)

// A Cutter shortens texts. Its fields say how.
type Cutter struct {
	Goal     string  // what the client looks for, or empty
	MaxChars int     // limit of the result, markers included
	Ratio    float64 // minimum share of lines to remove; 0 for none

	FirstLine int // number of the first line; 0 means 1

	// Handle is the handle of the original, and Hint a sentence that says how to recover it. Both may
	// be empty.
	Handle, Hint string

	// Bare keeps the types of values in JSON: no markers are inserted.
	Bare bool
}

// A Form says how a text was shortened.
type Form uint8

// Forms of a shortened text.
const (
	Uncut Form = iota // not shortened: head and tail would be as good
	Lines             // some of its lines
	JSON              // JSON with fewer items and members
)

// Cut shortens a text. Without a goal it shortens only JSON.
func (c *Cutter) Cut(ctx context.Context, text string) (short string, form Form) {
	if jsoncut.IsJSON([]byte(text)) {
		if short, ok := c.Value(ctx, []byte(text)); ok {
			return string(short), JSON
		}
	}
	if c.Goal == "" {
		return "", Uncut
	}
	return c.lines(ctx, text)
}

// Value shortens a JSON object or array.
func (c *Cutter) Value(ctx context.Context, value []byte) (short []byte, ok bool) {
	done, ok := acquireSlot(ctx, len(value))
	if !ok {
		return nil, false
	}
	defer done()
	cutter := jsoncut.Cutter{MaxChars: c.MaxChars, Goal: c.Goal, Bare: c.Bare}
	if c.Handle != "" && !c.Bare {
		cutter.Note = " id=" + c.Handle
	}
	return cutter.Cut(value)
}

// lines shortens a text to some of its lines, after a header line.
func (c *Cutter) lines(ctx context.Context, text string) (string, Form) {
	total := prune.CountLines(text)
	body := *c // leaves room for the header line
	body.MaxChars -= utf8.RuneCountInString(c.head(text, total, total))
	short, kept, ok := body.Lines(ctx, text)
	if !ok {
		return "", Uncut
	}
	return c.head(text, kept, total) + short, Lines
}

// Lines returns the lines of a text relevant to the goal, with their numbers, and how many they
// are.
func (c *Cutter) Lines(ctx context.Context, text string) (short string, kept int, ok bool) {
	done, ok := acquireSlot(ctx, len(text))
	if !ok {
		return "", 0, false
	}
	defer done()
	f := prune.FocusOptions{Goal: c.Goal, MaxChars: c.MaxChars, Ratio: c.Ratio, FirstLine: c.FirstLine}
	return prune.Focus(ctx, text, f)
}

// acquireSlot waits for a slot to shorten a text of this size. It returns false if that takes too
// long. done releases the slot.
func acquireSlot(ctx context.Context, bytes int) (done func(), ok bool) {
	if bytes <= maxUnqueued {
		return func() {}, true
	}
	slotCtx, cancel := context.WithTimeout(ctx, slotTimeout)
	defer cancel()
	select {
	case slots <- struct{}{}:
		return func() { <-slots }, true
	case <-slotCtx.Done():
		return nil, false
	}
}

// slots bounds how many large texts are shortened concurrently, because each takes up to some 400
// MB of memory.
var slots = make(chan struct{}, runtime.GOMAXPROCS(0))

// maxUnqueued is the size in bytes above which a text needs a slot.
const maxUnqueued = 256 << 10

// slotTimeout is how long a text waits for a slot. It is a variable for tests.
var slotTimeout = 2 * time.Second

// head returns the header line of a shortened text. With fewer kept lines it is never longer.
func (c *Cutter) head(text string, kept, total int) string {
	var b strings.Builder
	chars := utf8.RuneCountInString(text)
	fmt.Fprintf(&b, "[KIMI_PROXY_OBSERVATION_MASKED original_chars=%d lines=%d/%d", chars, kept, total)
	if c.Handle != "" {
		b.WriteString(" id=" + c.Handle)
	}
	b.WriteByte(']')
	if c.Handle != "" && c.Hint != "" {
		b.WriteString(" " + c.Hint)
	}
	b.WriteByte('\n')
	return b.String()
}

// Note returns a note about shortened JSON that has no markers itself.
func (c *Cutter) Note(value []byte) string {
	note := fmt.Sprintf("[KIMI_PROXY_OBSERVATION_MASKED original_chars=%d", utf8.RuneCount(value))
	if c.Handle != "" {
		note += " id=" + c.Handle
	}
	note += "] Parts of this JSON are left out: items of lists, and the middle of long texts."
	if c.Handle != "" && c.Hint != "" {
		note += " " + c.Hint
	}
	return note
}
