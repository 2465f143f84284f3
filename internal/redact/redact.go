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
	"io"
	"math"
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
// A string that contains JSON (objects or arrays) is redacted both as text and as JSON. There may
// be other text around the JSON, and invalid parts in it. Strings inside it are redacted only as
// text.
//
// Data that is not JSON is not a message. Message redacts the part that is valid JSON, and matches
// patterns with the bytes of the rest.
//
// Message fails if the encoding is not UTF-8, if the data begins like JSON and is invalid other
// than by being cut off, as lenient clients may read it, and if the replacements make the message
// more than three times as long, as a pattern that matches single characters can.
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
		if messages && isLenient(raw, p.scanner.Err()) {
			return nil, errLenient
		}
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

// isLenient reports whether data that is not JSON for this reason may be JSON for a lenient parser,
// such as one that accepts NaN.
func isLenient(data []byte, err error) bool {
	first := bytes.TrimLeft(data, byteOrderMark+" \t\r\n\v\f")
	return len(first) > 0 && (first[0] == '{' || first[0] == '[') &&
		err != nil && !errors.Is(err, io.ErrUnexpectedEOF)
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
	errLenient  = errors.New("redact: the message is not valid JSON")
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

// A pass reads one text and collects the replacements.
type pass struct {
	*Redactor
	scanner jsonspan.Scanner
	edits   []jsonspan.Edit
	quoted  []byte // replacement for the value of a field
	keys    int    // redacted keys so far

	text  []byte          // unescaped value of the current string
	found []jsonspan.Edit // replacements in it
	inner *pass           // for strings that contain JSON; nil in the inner pass
}

// values redacts a sequence of JSON values, up to the first invalid one. It reports whether data is
// a single valid value.
func (p *pass) values(data []byte, messages bool) bool {
	at := 0
	if bytes.HasPrefix(data, []byte(byteOrderMark)) {
		at = len(byteOrderMark) // invalid in JSON, but some parsers accept it
	}
	for n := 0; ; n++ {
		var ok bool
		if at, ok = p.value(data, at, messages); !ok {
			return false
		}
		at += len(data[at:]) - len(bytes.TrimLeft(data[at:], " \t\r\n"))
		if at == len(data) {
			return n == 0
		}
	}
}

const byteOrderMark = "\xEF\xBB\xBF"

// valuesIn redacts the JSON in a text, from the first object or array on. After an invalid part it
// continues at the next value or comma, and so in linear time.
func (p *pass) valuesIn(text []byte) {
	next := bytes.IndexAny(text, "{[")
	for at := 0; next >= 0; next = bytes.IndexAny(text[at:], "{[,") {
		at += next
		if first := bytes.TrimLeft(text[at+1:], " \t\r\n"); text[at] == ',' && (len(first) == 0 || first[0] != '"') {
			at++ // no member follows
			continue
		}
		end, _ := p.value(text, at, false)
		at = max(at+1, end)
	}
}

// value redacts the value at an offset. At a comma, it redacts the rest of an object. It returns
// the offset of the end; for an invalid value, that of the first invalid byte that is not replaced,
// and false.
func (p *pass) value(data []byte, offset int, messages bool) (end int, ok bool) {
	s := &p.scanner
	s.MaxDepth = math.MaxInt // the code here is not recursive
	s.SkipCounting = true
	s.Reset()
	if rest := data[offset:]; len(rest) > 0 && rest[0] == ',' && p.inner == nil {
		s.Feed([]byte("{"))
		s.Next()
		s.Feed(rest[1:])
	} else {
		s.Feed(rest)
	}
	s.Finish()
	var (
		pos     position
		hide    bool // the next or open value is a field
		keep    bool // the next value must stay unchanged
		from    int  // offset of the value of a field
		isFirst = true
	)
	for {
		k := s.Next()
		if k == jsonspan.Done || k == jsonspan.Invalid {
			invalid := len(data)
			if err, ok := errors.AsType[*jsonspan.Error](s.Err()); ok {
				invalid = offset + int(err.Offset)
			}
			if hide {
				invalid = p.endOfInvalid(data, from, invalid)
				p.hide(data, from, invalid)
			}
			return invalid, false
		}
		first, last := s.Span()
		start, end := offset+int(first), offset+int(last)
		if isFirst {
			pos = newPosition(k, messages)
			isFirst = false
		}
		switch k {
		case jsonspan.Key:
			name := p.read(data[start+1 : end-1])
			var mayHide bool
			if mayHide, keep = pos.enter(name, s.Depth()); mayHide {
				_, hide = p.fields[string(name)]
				from = end
			}
			if !pos.isEnvelope(s.Depth()) {
				p.redactKey(data[start+1:end-1], start+1)
			}
			continue
		case jsonspan.BeginObject, jsonspan.BeginArray:
			from, keep = start, false
			if hide {
				s.Report(s.Depth(), math.MaxInt) // skip to its end
			}
			continue
		case jsonspan.EndObject, jsonspan.EndArray:
			if hide {
				s.ReportAll()
				start = from
			}
		}
		switch {
		case hide:
			p.hide(data, start, end)
		case k == jsonspan.String && !keep:
			p.redactString(data[start+1:end-1], start+1)
		}
		hide, keep = false, false
		if s.Depth() == 0 {
			return end, true
		}
	}
}

// endOfInvalid returns the end of the value of a field that begins at an offset, after its colon if
// any, and has an invalid byte. That is the end of the data, which may be cut off, unless something
// other than JSON begins there in a text, such as a variable in code: then it is the end of the
// line.
func (p *pass) endOfInvalid(data []byte, from, invalid int) int {
	if between := bytes.Trim(data[from:invalid], ": \t\r\n"); p.inner == nil && len(between) == 0 {
		if i := bytes.IndexByte(data[invalid:], '\n'); i >= 0 {
			return invalid + i
		}
	}
	return len(data)
}

// hide replaces the value of a field, unless it is already replaced.
func (p *pass) hide(data []byte, start, end int) {
	if !bytes.Equal(data[start:end], quoted) {
		p.edits = append(p.edits, jsonspan.Edit{Start: start, End: end, New: p.quoted})
	}
}

// read returns the unescaped value of a string. It is valid until the next call.
func (p *pass) read(body []byte) []byte {
	if isPlain(body) {
		return body
	}
	return p.unescaped(body)
}

func (p *pass) unescaped(body []byte) []byte {
	p.text = jsonspan.AppendText(p.text[:0], body)
	return p.text
}

// isPlain reports whether a string has no escapes.
func isPlain(body []byte) bool { return bytes.IndexByte(body, '\\') < 0 }

// redactString redacts a string, of which the body begins at an offset.
func (p *pass) redactString(body []byte, offset int) {
	plain, text := isPlain(body), body
	if !plain {
		if p.isHarmless(body) {
			return
		}
		text = p.unescaped(body)
	}
	p.found = p.appendMatches(p.found[:0], text)
	if p.inner != nil && !plain && p.mayContainJSON(text) {
		p.inner.edits = p.inner.edits[:0]
		p.inner.valuesIn(text)
		p.found = append(p.found, p.inner.edits...)
	}
	if len(p.found) == 0 {
		return
	}
	// The text and the string have the same number of characters, so counting characters converts
	// an index of the text to an index of the string.
	read, done := 0, 0
	position := func(i int) int {
		if plain {
			return offset + i
		}
		read += jsonspan.Advance(body[read:], utf8.RuneCount(text[done:i]))
		done = i
		return offset + read
	}
	for _, e := range merge(p.found) {
		start := position(e.Start)
		p.edits = append(p.edits, jsonspan.Edit{Start: start, End: position(e.End), New: e.New})
	}
}

// redactKey redacts a key. It numbers redacted keys from the second on, so that the keys of an
// object stay distinct.
func (p *pass) redactKey(body []byte, offset int) {
	before := len(p.edits)
	p.redactString(body, offset)
	if len(p.edits) == before {
		return
	}
	p.keys++
	if p.keys > 1 {
		last := &p.edits[len(p.edits)-1]
		last.New = fmt.Appendf(nil, "%s %d", last.New, p.keys)
	}
}

// isHarmless reports whether a string with escapes certainly contains nothing to redact, so that it
// need not be unescaped.
func (p *pass) isHarmless(body []byte) bool {
	if bytes.Contains(body, []byte(`\u`)) {
		return false
	}
	if p.inner != nil && bytes.ContainsAny(body, "{[") {
		return false // it may contain JSON
	}
	for i := range p.patterns {
		if p.patterns[i].mayMatchIn(body) {
			return false
		}
	}
	return true
}

// mayContainJSON reports whether a text may contain JSON with fields or escapes.
func (p *pass) mayContainJSON(text []byte) bool {
	return bytes.ContainsAny(text, "{[") && (len(p.fields) > 0 || !isPlain(text))
}

// appendMatches appends edits for the matches of all patterns in text.
func (r *Redactor) appendMatches(edits []jsonspan.Edit, text []byte) []jsonspan.Edit {
	for i := range r.patterns {
		re := &r.patterns[i]
		if !re.mayMatchIn(text) || !re.Match(text) { // Match is faster than FindAllIndex
			continue
		}
		for _, at := range re.FindAllIndex(text, -1) {
			if at[0] < at[1] {
				edits = append(edits, jsonspan.Edit{Start: at[0], End: at[1], New: replacement})
			}
		}
	}
	return edits
}

// merge sorts edits and joins those that overlap, so that the whole of every match is replaced.
func merge(edits []jsonspan.Edit) []jsonspan.Edit {
	slices.SortFunc(edits, func(a, b jsonspan.Edit) int {
		switch {
		case a.Start != b.Start:
			return a.Start - b.Start
		case a.End != b.End:
			return b.End - a.End
		}
		return len(b.New) - len(a.New) // fields first
	})
	merged := edits[:0]
	for _, e := range edits {
		if n := len(merged); n > 0 && e.Start < merged[n-1].End {
			merged[n-1].End = max(merged[n-1].End, e.End)
			continue
		}
		merged = append(merged, e)
	}
	return merged
}

// A position tells which part of a message a pass has reached.
type position struct {
	messages bool // the text is a message or a batch, not other JSON
	around   int  // containers around each message: 1 in a batch
	member   member
	tools    bool // in a list of tools
	schema   int  // depth of the schema around the position, or 0
}

// A member is a kind of member of a message.
type member uint8

const (
	otherMember member = iota
	nameMember         // jsonrpc, id, method
	dataMember         // result, params
	errorMember
)

// newPosition returns the position at the beginning of a text that begins with this token.
func newPosition(k jsonspan.Kind, messages bool) position {
	pos := position{messages: messages}
	if k == jsonspan.BeginArray {
		pos.around = 1
	}
	return pos
}

// enter moves to the member with this name at this depth. It reports whether the member may be a
// field, and whether a string value must stay unchanged.
func (pos *position) enter(name []byte, depth int) (mayHide, keep bool) {
	if !pos.messages {
		return true, false
	}
	if depth <= pos.schema {
		pos.schema = 0
	}
	switch depth - pos.around {
	case 1:
		pos.member, pos.tools = memberOf(name), false
		return pos.member == otherMember, pos.member == nameMember
	case 2:
		pos.tools = pos.member == dataMember && string(name) == "tools"
		if pos.member == errorMember && (string(name) == "code" || string(name) == "message") {
			return false, false
		}
		if pos.member == dataMember && sentBack[string(name)] {
			return false, true
		}
		if pos.member == dataMember && string(name) == "requestedSchema" {
			pos.schema = depth
			return true, false
		}
	case 4:
		if pos.tools && pos.schema == 0 && (string(name) == "inputSchema" || string(name) == "outputSchema") {
			pos.schema = depth
			return true, false
		}
	}
	return pos.schema == 0, false
}

// isEnvelope reports whether the current member, at this depth, is part of the JSON-RPC envelope.
func (pos *position) isEnvelope(depth int) bool {
	return pos.messages && depth-pos.around == 1 && pos.member != otherMember
}

// sentBack are the members that a client must send back unchanged.
var sentBack = map[string]bool{
	"nextCursor": true, "requestState": true, "taskId": true, "requestId": true, "progressToken": true,
}

func memberOf(name []byte) member {
	switch string(name) {
	case "jsonrpc", "id", "method":
		return nameMember
	case "result", "params":
		return dataMember
	case "error":
		return errorMember
	}
	return otherMember
}
