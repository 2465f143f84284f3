// Package redact removes secrets from messages of servers: it replaces text that matches a pattern,
// and the values of members with certain names.
//
// It reads a message once and splices it. Everything else stays unchanged, byte for byte, even in a
// string in which a part is replaced.
package redact

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"sync"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// mark replaces redacted text.
const mark = "[redacted]"

// A Redactor holds compiled patterns and field names. It is safe for concurrent use. A nil Redactor
// changes nothing.
type Redactor struct {
	patterns []pattern
	fields   map[string]struct{}

	// A message without any of the clues has nothing to redact. Without clues, every message must
	// be read.
	clues   []literal
	longest int // length of the longest clue
}

type pattern struct {
	*regexp.Regexp
	prefix literal // common prefix of all matches; empty if unknown
}

// mayMatchIn reports whether a text contains the prefix, and so may contain a match.
func (p *pattern) mayMatchIn(text []byte) bool { return p.prefix.isContainedIn(text) }

// A literal is ASCII text that JSON can write in only two ways: unescaped, or with \u00 escapes.
type literal []byte

// literalOf returns text as a literal, or an empty literal if it has other characters.
func literalOf(text string) literal {
	for _, c := range []byte(text) {
		if c < ' ' || c > '~' || c == '"' || c == '\\' || c == '/' {
			return nil
		}
	}
	return literal(text)
}

// escapePrefix is the beginning of the escape of any character of a literal.
const escapePrefix = `\u00`

// isContainedIn reports whether a text contains l unescaped. Every text contains the empty literal.
func (l literal) isContainedIn(text []byte) bool {
	if len(l) == 0 {
		return true
	}
	rare := l.rarestIn(text)
	for at := rare; at < len(text); at++ {
		i := bytes.IndexByte(text[at:], l[rare])
		if i < 0 {
			return false
		}
		if at += i; bytes.HasPrefix(text[at-rare:], l) {
			return true
		}
	}
	return false
}

// rarestIn returns the index of the byte of l that is rarest in a sample of a text. Prose, code and
// tables differ in that.
func (l literal) rarestIn(text []byte) (at int) {
	const step, most = 61, 128
	var counts [256]uint8
	for i := 0; i < min(len(text), step*most); i += step {
		counts[text[i]]++
	}
	for i, c := range l {
		if counts[c] < counts[l[at]] {
			at = i
		}
	}
	return at
}

// New compiles a Redactor. It replaces matches of the patterns in all strings of a message, and the
// values of members whose names are in fields. Patterns use the syntax of [regexp], and match
// within one string. Names are compared exactly.
func New(patterns, fields []string) (*Redactor, error) {
	r := &Redactor{fields: make(map[string]struct{}, len(fields))}
	for _, expr := range patterns {
		re, err := regexp.Compile(expr)
		if err != nil {
			return nil, fmt.Errorf("redact: pattern %q: %w", expr, err)
		}
		for _, text := range []string{"", "a"} { // "a" finds patterns of a word boundary
			if at := re.FindStringIndex(text); at != nil && at[0] == at[1] {
				return nil, fmt.Errorf("redact: pattern %q matches the empty string", expr)
			}
		}
		prefix, _ := re.LiteralPrefix()
		r.patterns = append(r.patterns, pattern{re, literalOf(prefix)})
		r.clues = append(r.clues, literalOf(prefix))
	}
	for _, name := range fields {
		if name == "" {
			return nil, errors.New("redact_fields: empty name")
		}
		r.fields[name] = struct{}{}
		r.clues = append(r.clues, literalOf(name))
	}
	if slices.ContainsFunc(r.clues, func(l literal) bool { return len(l) == 0 }) {
		r.clues = nil
		return r, nil
	}
	r.clues = append(r.clues, literal(escapePrefix))
	for _, clue := range r.clues {
		r.longest = max(r.longest, len(clue))
	}
	return r, nil
}

// Message redacts a JSON-RPC message of a server, or a batch, and returns the number of
// replacements. Without replacements it returns the same slice.
//
// Patterns match the unescaped value of every string and key, at any depth. They do not match
// numbers, the keys of the JSON-RPC envelope, or the values of jsonrpc, id and method. Redacted
// keys are numbered, so that the keys of an object stay distinct. A field's value, of any type, is
// replaced by a string. The members of the envelope, the code and message of an error, and the
// properties in the schemas of tools and elicitations are not fields. Repeated members are all
// redacted.
//
// A string that contains JSON (objects or arrays) is redacted both as text and as JSON. Strings
// inside it are redacted only as text.
//
// Data that is not JSON is not a message. Message redacts the part that is valid JSON, and matches
// patterns with the bytes of the rest.
//
// Message fails if the encoding is not UTF-8, and if the replacements make the message more than
// three times as long, as a pattern that matches single characters can.
func (r *Redactor) Message(raw []byte) ([]byte, int, error) {
	edits, err := r.Edits(raw)
	if err != nil {
		return nil, 0, err
	}
	return jsonspan.Spliced(raw, edits...), len(edits), nil
}

// Value redacts a JSON value that is not a message, such as the arguments of a call. It follows the
// rules for the result of a message.
func (r *Redactor) Value(raw []byte) ([]byte, error) {
	edits, err := r.edits(raw, false)
	if err != nil {
		return nil, err
	}
	return jsonspan.Spliced(raw, edits...), nil
}

// Edits returns the replacements that [Redactor.Message] makes, in order.
func (r *Redactor) Edits(raw []byte) ([]jsonspan.Edit, error) { return r.edits(raw, true) }

func (r *Redactor) edits(raw []byte, messages bool) ([]jsonspan.Edit, error) {
	if r == nil || len(r.patterns) == 0 && len(r.fields) == 0 {
		return nil, nil
	}
	mayMatch, err := r.mayMatch(raw)
	if err != nil || !mayMatch {
		return nil, err
	}
	p := passes.Get().(*pass)
	defer p.release()
	p.begin(r)
	isJSON := p.values(raw, messages)
	edits := p.edits
	if !isJSON {
		edits = merge(r.appendMatches(edits, raw))
	}
	growth := 0
	for _, e := range edits {
		growth += len(e.New) - (e.End - e.Start)
	}
	if growth > 2*len(raw)+maxGrowth {
		return nil, errGrowth
	}
	return slices.Clone(edits), nil
}

// mayMatch reports whether a message may contain something to redact. Most messages do not, and
// need not be read as JSON. It fails if the encoding is not UTF-8. It searches a block for all
// clues before it goes on to the next, while the block is in the processor's cache.
func (r *Redactor) mayMatch(raw []byte) (found bool, err error) {
	const blockSize = 32 << 10
	found = len(r.clues) == 0
	for at := 0; at < len(raw); {
		end := min(at+blockSize, len(raw))
		for end < len(raw) && !utf8.RuneStart(raw[end]) {
			end++
		}
		block := raw[at:end]
		if !utf8.Valid(block) || bytes.IndexByte(block, 0) >= 0 { // UTF-16 and UTF-32 have zeros
			return false, errEncoding
		}
		part := raw[at:min(end+r.longest, len(raw))] // includes a clue that ends in the next block
		found = found || slices.ContainsFunc(r.clues, func(l literal) bool { return l.isContainedIn(part) })
		at = end
	}
	return found, nil
}

// maxGrowth is the number of bytes that a message may grow beyond three times its length.
const maxGrowth = 4 << 10

var (
	errEncoding = errors.New("redact: the message is not UTF-8")
	errGrowth   = errors.New("redact: the message would become too long")
)

// Line redacts a line of an event stream other than data, by the patterns only. It returns the
// number of replacements.
func (r *Redactor) Line(line []byte) ([]byte, int) {
	if r == nil {
		return line, 0
	}
	edits := merge(r.appendMatches(nil, line))
	if len(edits) == 0 {
		return line, 0
	}
	return jsonspan.Spliced(line, edits...), len(edits)
}

// passes are reused between messages.
var passes = sync.Pool{New: func() any { return &pass{quoted: quoted, inner: &pass{quoted: quotedInText}} }}

var (
	replacement  = []byte(mark)
	quoted       = []byte(`"` + mark + `"`)
	quotedInText = []byte(`\"` + mark + `\"`)
)

// maxPooled limits the buffers that are reused between messages, in bytes.
const maxPooled = 4 << 20

func (p *pass) begin(r *Redactor) {
	p.Redactor, p.edits, p.keys = r, p.edits[:0], 0
	if p.inner != nil {
		p.inner.Redactor, p.inner.keys = r, 0
	}
}

func (p *pass) release() {
	if cap(p.text)+cap(p.inner.text) <= maxPooled {
		p.Redactor, p.inner.Redactor = nil, nil
		passes.Put(p)
	}
}

// Body redacts the body of a JSON string, without its quotes. It is for stored text, which may be
// older than the current configuration.
func (r *Redactor) Body(body []byte) []byte {
	if r == nil {
		return body
	}
	const before, after = `{"result":"`, `"}`
	redacted, n, err := r.Message(slices.Concat([]byte(before), body, []byte(after)))
	switch {
	case err != nil:
		return replacement
	case n == 0:
		return body
	}
	return redacted[len(before) : len(redacted)-len(after)]
}
