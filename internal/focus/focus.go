// Package focus cuts large texts to what a client looks for.
//
// Lines are chosen by package prune, items and members of JSON by package jsoncut. Nothing but
// the goal is needed: what a text is, is found out.
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

// A Cutter says how texts are cut.
type Cutter struct {
	Goal     string  // what the client looks for; "" if it does not say
	MaxChars int     // of what is left, markers included
	Ratio    float64 // share of the lines that is left out at least; 0 for none

	FirstLine int // number of the first line; 1 if it is 0

	// Handle is what the original is kept under, and Hint a sentence that says how it can be had. Both
	// may be "".
	Handle, Hint string

	// Bare has JSON keep the types of its values: nothing is put in place of what is left out.
	Bare bool
}

// A Form is how a text was cut.
type Form uint8

const (
	Uncut Form = iota // it cannot be cut in a way that leaves more than its ends would
	Lines
	JSON
)

// Cut cuts a text. Without a goal it cuts JSON only.
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

// Value cuts a JSON object or array.
func (c *Cutter) Value(ctx context.Context, value []byte) (short []byte, ok bool) {
	done, ok := turn(ctx, len(value))
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

// lines cuts a text to some of its lines, after one that says so.
func (c *Cutter) lines(ctx context.Context, text string) (string, Form) {
	total := prune.CountLines(text)
	room := *c
	room.MaxChars -= utf8.RuneCountInString(c.head(text, total, total))
	short, kept, ok := room.Lines(ctx, text)
	if !ok {
		return "", Uncut
	}
	return c.head(text, kept, total) + short, Lines
}

// Lines returns the lines of a text that bear on the goal, with their numbers, and how many these
// are.
func (c *Cutter) Lines(ctx context.Context, text string) (short string, kept int, ok bool) {
	done, ok := turn(ctx, len(text))
	if !ok {
		return "", 0, false
	}
	defer done()
	f := prune.Focusing{Goal: c.Goal, MaxChars: c.MaxChars, Ratio: c.Ratio, FirstLine: c.FirstLine}
	return prune.Focus(ctx, text, f)
}

// turn waits until a text of so many bytes can be cut. It reports false if that takes too long.
func turn(ctx context.Context, bytes int) (done func(), ok bool) {
	if bytes <= large {
		return func() {}, true
	}
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case turns <- struct{}{}:
		return func() { <-turns }, true
	case <-waiting.Done():
		return nil, false
	}
}

// turns bounds how many large texts are cut at once: each takes up to some 400 MB for a moment.
var turns = make(chan struct{}, runtime.GOMAXPROCS(0))

// large is how many bytes a text has that waits for its turn.
const large = 256 << 10

// patience is how long it waits. It is a variable only so that tests can make it short.
var patience = 2 * time.Second

// head returns the line before those that are kept of a text. It is no longer for fewer of them.
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

// Note returns what is said of JSON of which nothing tells that it was cut.
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
