// Package mask shortens huge strings in tool results to head + marker + tail.
//
// An observation is what a tool returns: result and error.data of a JSON-RPC response. There every
// string with more than [Policy.MaxChars] characters keeps its head and its tail; a marker replaces
// the middle and says how long the string was. All other bytes stay unchanged: texts are spliced,
// not decoded and encoded again (see package jsonspan).
//
// A [Masker] works as bytes arrive. Its memory is bounded by the policy, not by the text: of a
// string that is being cut it keeps only the tail.
package mask

import (
	"bytes"
	"slices"
	"strconv"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// Defaults, as O1 specifies.
const (
	DefaultMaxChars  = 4000
	DefaultHeadChars = 2000
	DefaultTailChars = 2000
)

// A Policy says which strings are masked and how.
type Policy struct {
	// MaxChars is the length of the longest string that is not masked.
	MaxChars int

	// HeadChars and TailChars are how many characters of the beginning and the end are kept. Their sum
	// is at most MaxChars.
	HeadChars, TailChars int

	// KeepMedia keeps the data of image and audio content, the blob of resources and the text of UIs
	// (after a mimeType that says so) whole: half an image is invalid.
	KeepMedia bool

	// AnyMethod says that the method of the request is unknown, and may be that of a list. Then a
	// result with members of a list or a handshake stays whole. Otherwise all results are
	// observations.
	AnyMethod bool

	// Limit is the size in bytes up to which texts are masked. Texts are held back until they are
	// complete; longer ones pass unmasked. 0 masks texts of any length as they stream.
	Limit int

	// IsReply, if set, reports whether the text responds to a JSON-RPC request. It is called for long
	// texts that have a result but no jsonrpc member yet. If it returns true, the text is treated as
	// JSON-RPC, otherwise it is held back.
	IsReply func() bool

	// Save, if set, gets the body of every masked string, without its quotes. It returns a handle for
	// the marker, or "" if it did not keep the body. It must not retain body.
	Save func(body []byte) (handle string)

	// Hint, if set, follows the handle in a marker and says how to use it. It is the body of a JSON
	// string without line breaks, with at most MaxHint characters.
	Hint string

	// Shorten, if set, shortens strings by their content. Messages are held back for it until they are
	// complete.
	Shorten Shortener

	// HoldLimit is the size in bytes up to which strings are passed to Save, and messages to Shorten.
	HoldLimit int
}

// A Shortener shortens values by their content. It must not retain its arguments.
type Shortener interface {
	// Text returns the body of a shorter string, or nil for head, marker and tail. handle is the
	// handle of the original, if it is kept. structured says that the string is the structured content
	// as text. Both are then shortened alike, so the text must match the schema of the content.
	Text(body []byte, handle string, structured bool) []byte

	// Structured returns shorter structured content, or nil to keep it.
	Structured(value []byte) []byte

	// Note returns a text to add to a result whose structured content was shortened.
	Note(value []byte, handle string) string
}

// MaxHint is the longest hint in characters.
const MaxHint = 200

// DefaultHint says how to use a handle.
const DefaultHint = "To see more, call recover_observation with this id and a goal."

// Stats counts what was masked.
type Stats struct {
	Strings int // strings cut
	Chars   int // characters removed
}

func (s *Stats) add(chars int) {
	s.Strings++
	s.Chars += chars
}

// A Report says what was masked in the responses to a request.
type Report struct {
	Stats
	Originals []string // handles of kept originals, up to MaxReported
}

// MaxReported bounds the handles of a Report.
const MaxReported = 20

// AddOriginal adds the handle of a kept original.
func (r *Report) AddOriginal(handle string) {
	if len(r.Originals) < MaxReported && !slices.Contains(r.Originals, handle) {
		r.Originals = append(r.Originals, handle)
	}
}

// Add adds the report of another response.
func (r *Report) Add(other *Report) {
	r.Strings += other.Strings
	r.Chars += other.Chars
	for _, handle := range other.Originals {
		r.AddOriginal(handle)
	}
}

// HandlePrefix begins every handle. A marker whose handle has another prefix is not recognized.
const HandlePrefix = "obs_"

// The marker in JSON, where its line breaks are two-byte escapes. The hint is between the closing
// bracket and the end.
const (
	markerOriginal = `\n... [KIMI_PROXY_OBSERVATION_MASKED original_chars=`
	markerHead     = ` head=`
	markerTail     = ` tail=`
	markerHandle   = ` id=`
	markerClose    = `]`
	markerEnd      = ` ...\n`

	// maxMarker is more than the length of any marker in characters.
	maxMarker = 256 + MaxHint
)

// appendMarker appends a marker. The hint needs a handle.
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

// isMasked reports whether an earlier proxy has masked the body of a string: it is head + marker +
// tail within this policy. Masking it again would destroy the marker.
func (p *Policy) isMasked(body []byte, chars int) bool {
	if chars > p.MaxChars+maxMarker {
		return false
	}
	before, counted := 0, 0 // characters before body[counted:]
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
		// If the sum and the head are right, so is the tail.
		if head+jsonspan.Count(body[at:end])+tail != chars {
			continue
		}
		before, counted = before+jsonspan.Count(body[counted:at]), at
		if before == head {
			return true
		}
	}
}

// parseMarker reads the marker at body[at:] and returns its end.
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

// cutHint returns text without the hint at its beginning, if there is one.
func cutHint(text []byte) []byte {
	const longest = 6 * MaxHint // as escapes
	at := bytes.Index(text[:min(len(text), longest+len(markerEnd)+1)], []byte(markerEnd))
	if at <= 0 || text[0] != ' ' || jsonspan.Count(text[1:at]) > MaxHint {
		return text
	}
	return text[at:]
}

// A resultMember says what a member of a result holds.
type resultMember uint8

const (
	observed    resultMember = iota
	clientInput              // for the client, which needs it whole and returns parts of it
	descriptor               // describes the server or what it offers
	metadata                 // of any result
)

var resultMembers = map[string]resultMember{
	"inputRequests": clientInput,
	"requestState":  clientInput,

	"tools":             descriptor,
	"prompts":           descriptor,
	"resources":         descriptor,
	"resourceTemplates": descriptor,
	"tasks":             descriptor,
	"skills":            descriptor,
	"nextCursor":        descriptor,

	"protocolVersion":   descriptor,
	"supportedVersions": descriptor,
	"capabilities":      descriptor,
	"serverInfo":        descriptor,
	"instructions":      descriptor,

	"_meta": metadata,
}

// classifyMember records whether the next member of a result is an observation. If the method is
// unknown, a result with a descriptor is a list or a handshake, so nothing after it is an
// observation. Metadata is none either then, because it often precedes the descriptor.
func (m *Masker) classifyMember(name []byte) {
	kind := resultMembers[string(name)]
	if m.policy.AnyMethod && kind == descriptor {
		m.msg.describe = true
	}
	m.msg.maskable = !m.msg.describe && kind != clientInput && !(m.policy.AnyMethod && kind == metadata)
}
