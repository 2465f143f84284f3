// Package redact replaces what a server must not tell: parts of texts that match a
// pattern, and the values of members with certain names.
//
// A message is read once and spliced. What is not replaced stays as it came, byte for
// byte, even in a text of which a part is replaced.
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

// mark stands where something was replaced.
const mark = "[redacted]"

// A Redactor knows what must not be told. It can be used concurrently. A nil Redactor
// changes nothing.
type Redactor struct {
	patterns []pattern
	fields   map[string]struct{}

	// clues are texts of which a message has one if something is to be replaced in it.
	// Without clues that cannot be told of any message.
	clues   []literal
	longest int // of the clues
}

type pattern struct {
	*regexp.Regexp
	prefix literal // what each match begins with; empty if that is not known
}

// isIn reports whether a text has the prefix, and so may have a match.
func (p *pattern) isIn(text []byte) bool { return p.prefix.isIn(text) }

// A literal is a text that JSON can spell in one other way only: by the numbers of its
// characters.
type literal []byte

// literalOf returns a text as a literal, an empty one if it is not.
func literalOf(text string) literal {
	for _, c := range []byte(text) {
		if c < ' ' || c > '~' || c == '"' || c == '\\' || c == '/' {
			return nil
		}
	}
	return literal(text)
}

// numbered is how the number of a character begins that a literal can have.
const numbered = `\u00`

// isIn reports whether a text has l, spelled as it is. Every text has an empty one.
func (l literal) isIn(text []byte) bool {
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

// rarestIn returns which byte of l a sample of a text has least often: prose, code and tables
// differ in that.
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

// New compiles a Redactor: matches of the patterns in any text of a message, and the
// values of members with the names that fields has, are replaced. Patterns are those
// of [regexp] and see one text at a time. Names are compared exactly.
func New(patterns, fields []string) (*Redactor, error) {
	r := &Redactor{fields: make(map[string]struct{}, len(fields))}
	for _, expr := range patterns {
		re, err := regexp.Compile(expr)
		if err != nil {
			return nil, fmt.Errorf("redact: pattern %q: %w", expr, err)
		}
		for _, text := range []string{"", "a"} { // the edge of a word is empty, too
			if at := re.FindStringIndex(text); at != nil && at[0] == at[1] {
				return nil, fmt.Errorf("redact: pattern %q matches the empty text", expr)
			}
		}
		prefix, _ := re.LiteralPrefix()
		r.patterns = append(r.patterns, pattern{re, literalOf(prefix)})
		r.clues = append(r.clues, literalOf(prefix))
	}
	for _, name := range fields {
		if name == "" {
			return nil, errors.New("redact_fields: a name is empty")
		}
		r.fields[name] = struct{}{}
		r.clues = append(r.clues, literalOf(name))
	}
	if slices.ContainsFunc(r.clues, func(l literal) bool { return len(l) == 0 }) {
		r.clues = nil
		return r, nil
	}
	r.clues = append(r.clues, literal(numbered))
	for _, clue := range r.clues {
		r.longest = max(r.longest, len(clue))
	}
	return r, nil
}

// Message returns a JSON-RPC message of a server, or a batch of them, with what must
// not be told replaced, and how many replacements were made. If there were none, it is
// the same slice.
//
// Patterns see what each string and each key stands for, whatever its escapes, at any
// depth; not numbers, not the keys that make a message one, and of the message itself
// neither jsonrpc nor id nor method. Keys that would become the same are numbered.
// The value of a field is replaced by a string, whatever it was. The members that
// make a message one are no fields, nor are the code and the message of an error, nor
// what the schemas of listed tools and of elicitation describe. Of repeated members
// each is looked at.
//
// A string that is JSON itself, an object or array or several in a row, is looked at
// as a text and as JSON; strings in it are texts only.
//
// What is not JSON is no message, and no reader should make one of it. Nevertheless
// it is looked at as JSON as far as it is, and patterns see its bytes.
//
// A message in another encoding than UTF-8 cannot be looked at. That is an error, and
// so are replacements that make a message more than three times as long, as of a
// pattern that matches single characters. Values of fields cannot.
func (r *Redactor) Message(raw []byte) ([]byte, int, error) {
	edits, err := r.Edits(raw)
	if err != nil {
		return nil, 0, err
	}
	return jsonspan.Spliced(raw, edits...), len(edits), nil
}

// Value returns a JSON value that is not a message, such as the arguments of a call, with what
// must not be told replaced as in the result of a message.
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
	suspicious, err := r.survey(raw)
	if err != nil || !suspicious {
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

// survey reports whether something may have to be replaced in a message, which spares most
// messages from being read as JSON. It fails if it cannot be looked at. Each block is searched
// for all that matters before the next, while it is in the cache of the processor.
func (r *Redactor) survey(raw []byte) (suspicious bool, err error) {
	const blockSize = 32 << 10
	suspicious = len(r.clues) == 0
	for at := 0; at < len(raw); {
		end := min(at+blockSize, len(raw))
		for end < len(raw) && !utf8.RuneStart(raw[end]) {
			end++
		}
		block := raw[at:end]
		if !utf8.Valid(block) || bytes.IndexByte(block, 0) >= 0 { // UTF-16 and UTF-32 have zeros
			return false, errEncoding
		}
		part := raw[at:min(end+r.longest, len(raw))] // with a clue that goes on in the next block
		suspicious = suspicious || slices.ContainsFunc(r.clues, func(l literal) bool { return l.isIn(part) })
		at = end
	}
	return suspicious, nil
}

// maxGrowth is by how many bytes a message may become more than three times as long.
const maxGrowth = 4 << 10

var (
	errEncoding = errors.New("redact: the message is not UTF-8")
	errGrowth   = errors.New("redact: the message would become too long")
)

// Line returns a line of an event stream that is not data, with matches of the patterns
// replaced, and how many there were.
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

// passes are kept between messages.
var passes = sync.Pool{New: func() any { return &pass{quoted: quoted, inner: &pass{quoted: quotedInText}} }}

var (
	replacement  = []byte(mark)
	quoted       = []byte(`"` + mark + `"`)
	quotedInText = []byte(`\"` + mark + `\"`)
)

// maxKept is how much room for texts is kept between messages.
const maxKept = 4 << 20

func (p *pass) begin(r *Redactor) {
	p.Redactor, p.edits, p.keys = r, p.edits[:0], 0
	if p.inner != nil {
		p.inner.Redactor, p.inner.keys = r, 0
	}
}

func (p *pass) release() {
	if cap(p.text)+cap(p.inner.text) <= maxKept {
		p.Redactor, p.inner.Redactor = nil, nil
		passes.Put(p)
	}
}

// Body returns the body of a JSON string, as it stands between its quotes, with what it
// must not tell replaced. What was kept of a message may be older than what is redacted
// now.
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
