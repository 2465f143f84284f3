// Package mask shortens huge strings in tool results to head + marker + tail.
//
// What a tool returns is an observation, and in JSON-RPC it stands in result and
// error.data. There every string of more than [Policy.MaxChars] characters keeps
// its beginning and its end; what stood between them is replaced by a marker
// that says how much there was. Nothing else changes by a byte: the texts are
// spliced, not decoded and encoded again (see package jsonspan).
//
// A [Masker] works as bytes arrive. Its memory is bounded by the policy, not by
// the text: of a string that is being cut it keeps no more than its end.
package mask

import (
	"bytes"
	"slices"
	"strconv"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// The defaults (O1).
const (
	DefaultMaxChars  = 4000
	DefaultHeadChars = 2000
	DefaultTailChars = 2000
)

// A Policy says which strings are masked and what is left of them.
type Policy struct {
	// Strings of more characters are masked.
	MaxChars int

	// How many characters are kept of the beginning and of the end. Together
	// they are at most MaxChars.
	HeadChars, TailChars int

	// KeepMedia leaves the data of image and audio content, the blob of resources and the
	// text of UIs, after a mimeType that says so, whole: half an image is an error, not a
	// shorter image.
	KeepMedia bool

	// AnyMethod says that texts may answer requests of any method, those for lists included.
	// A result is then told by its members: one that has those of a list or a handshake stays
	// whole. Without it, all results are observations.
	AnyMethod bool

	// Texts of more bytes pass as they are, and up to that many bytes are held
	// back to find out. 0 masks texts of any length as they stream.
	Limit int

	// Reply, if set, tells whether the text answers a JSON-RPC request. It is
	// asked about long texts that have a result and have not said jsonrpc yet:
	// those that answer one are then taken for JSON-RPC, the others are held.
	Reply func() bool

	// Save, if set, is given the body of every masked string, as it stood
	// between its quotes, and returns a handle for the marker, or "" if it did
	// not keep it. It must not hold on to body.
	Save func(body []byte) (handle string)

	// Hint, if set, follows the handle in a marker and says how to use it: the body
	// of a JSON string without line breaks, of at most MaxHint characters.
	Hint string

	// Shorten, if set, cuts strings better than to head and tail. Messages are held back for it
	// until they are complete.
	Shorten Shortener

	// Strings of more bytes are not offered to Save, and messages of more not to Shorten.
	HoldLimit int
}

// A Shortener cuts what is too long by what it says. It must not hold on to what it is given.
type Shortener interface {
	// Text returns the body of a string that takes the place of another, or nil for head, marker
	// and tail. handle is the one under which the original is kept, if it is. With structured, the
	// string is the text of the structured content, which is cut as well: nothing may be added to
	// it that would not match its schema.
	Text(body []byte, handle string, structured bool) []byte

	// Structured returns structured content that takes the place of another, or nil if that stays.
	Structured(value []byte) []byte

	// Note returns a text to be added to a result whose structured content was cut.
	Note(value []byte, handle string) string
}

// MaxHint is how many characters a hint may have.
const MaxHint = 200

// DefaultHint says how to use a handle.
const DefaultHint = "To see more, call recover_observation with this id and a goal."

// Stats counts what was masked.
type Stats struct {
	Strings int // strings cut
	Chars   int // characters taken out of them
}

func (s *Stats) add(chars int) {
	s.Strings++
	s.Chars += chars
}

// A Report is what was masked in the answers to a request.
type Report struct {
	Stats
	Originals []string // handles of those that are kept, up to MaxReported
}

// MaxReported is how many handles a Report has.
const MaxReported = 20

// AddOriginal adds the handle of an original that is kept.
func (r *Report) AddOriginal(handle string) {
	if len(r.Originals) < MaxReported && !slices.Contains(r.Originals, handle) {
		r.Originals = append(r.Originals, handle)
	}
}

// Add adds what was masked in another answer.
func (r *Report) Add(other *Report) {
	r.Strings += other.Strings
	r.Chars += other.Chars
	for _, handle := range other.Originals {
		r.AddOriginal(handle)
	}
}

// HandlePrefix begins every handle. A marker with any other is not taken for one.
const HandlePrefix = "obs_"

// The marker, in JSON: its line breaks are escapes of two bytes there. A hint stands
// inside its end, where the bracket is closed.
const (
	markerOriginal = `\n... [KIMI_PROXY_OBSERVATION_MASKED original_chars=`
	markerHead     = ` head=`
	markerTail     = ` tail=`
	markerHandle   = ` id=`
	markerClose    = `]`
	markerEnd      = ` ...\n`

	// maxMarker is more than any marker has characters.
	maxMarker = 256 + MaxHint
)

// appendMarker appends a marker, with a hint only if there is a handle to use.
func appendMarker(dst []byte, original, head, tail int, handle, hint string) []byte {
	dst = append(dst, markerOriginal...)
	dst = strconv.AppendInt(dst, int64(original), 10)
	dst = append(dst, markerHead...)
	dst = strconv.AppendInt(dst, int64(head), 10)
	dst = append(dst, markerTail...)
	dst = strconv.AppendInt(dst, int64(tail), 10)
	if handle != "" {
		dst = append(dst, markerHandle...)
		dst = append(dst, handle...)
	}
	dst = append(dst, markerClose...)
	if handle != "" && hint != "" {
		dst = append(dst, ' ')
		dst = append(dst, hint...)
	}
	return append(dst, markerEnd...)
}

// masked reports whether the body of a string of so many characters already is
// head + marker + tail within this policy: it was masked on an earlier hop, and
// masking it again would only destroy the marker.
func (p *Policy) masked(body []byte, chars int) bool {
	if chars > p.MaxChars+maxMarker {
		return false
	}
	before, counted := 0, 0 // so many characters before body[counted:]
	for from := 0; ; {
		at := bytes.Index(body[from:], []byte(markerOriginal))
		if at < 0 {
			return false
		}
		at += from
		from = at + len(markerOriginal)
		original, head, tail, end, ok := parseMarker(body, at)
		if !ok || head+tail > p.MaxChars || original <= head+tail {
			continue
		}
		// With the sum and the head, the tail is right as well.
		if head+jsonspan.Count(body[at:end])+tail != chars {
			continue
		}
		before, counted = before+jsonspan.Count(body[counted:at]), at
		if before == head {
			return true
		}
	}
}

// parseMarker reads the marker at body[at:] and returns where it ends.
func parseMarker(body []byte, at int) (original, head, tail, end int, ok bool) {
	rest := body[at:]
	number := func(before string) (n int) {
		after, found := bytes.CutPrefix(rest, []byte(before))
		digits := 0
		for digits < len(after) && digits < 18 && '0' <= after[digits] && after[digits] <= '9' {
			n = n*10 + int(after[digits]-'0')
			digits++
		}
		ok = ok && found && digits > 0
		rest = after[digits:]
		return n
	}
	ok = true
	original, head, tail = number(markerOriginal), number(markerHead), number(markerTail)
	rest, handle := bytes.CutPrefix(rest, []byte(markerHandle+HandlePrefix))
	if handle {
		rest = bytes.TrimLeft(rest, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
	}
	rest, found := bytes.CutPrefix(rest, []byte(markerClose))
	if handle {
		rest = cutHint(rest)
	}
	rest, complete := bytes.CutPrefix(rest, []byte(markerEnd))
	return original, head, tail, len(body) - len(rest), ok && found && complete
}

// cutHint returns what follows the hint at the beginning of a text, or the text if there
// is none.
func cutHint(text []byte) []byte {
	const longest = 6 * MaxHint // as escapes
	at := bytes.Index(text[:min(len(text), longest+len(markerEnd)+1)], []byte(markerEnd))
	if at <= 0 || text[0] != ' ' || jsonspan.Count(text[1:at]) > MaxHint {
		return text
	}
	return text[at:]
}
