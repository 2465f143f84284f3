package jsoncut

import (
	"bytes"
	"iter"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// A node is an object or array that is long enough to be cut.
type node struct {
	start, end uint32 // offsets in work.text
	next       uint32 // index of the first node after its end
	count      uint32 // number of items or members
	chars      uint32
	most       uint32 // see [value]
	good, soft uint32 // see [least]
}

// maxSmall is the maximum size in bytes of an object or array that is never cut. A marker
// would be about as long.
const maxSmall = 32

// read sets w.text to text in compact form with canonical escapes, and collects its
// nodes. It returns the root value, and false if text is not valid.
func (w *work) read(text []byte) (root value, ok bool) {
	w.text = make([]byte, 0, len(text))
	r := reader{work: w, in: text, valid: utf8.Valid(text)}
	var s jsonspan.Scanner
	s.Feed(text)
	s.Finish()
	for {
		kind := s.Next()
		start, end := s.Span()
		switch kind {
		case jsonspan.Done:
			r.flush()
			if root = r.last; root.node >= 0 {
				root = w.nodeValue(root.node)
			}
			return root, true
		case jsonspan.Invalid:
			return value{}, false
		case jsonspan.BeginObject, jsonspan.BeginArray:
			r.beginNode(int(start), int(end))
		case jsonspan.EndObject, jsonspan.EndArray:
			r.separator = 0
			r.addToken(int(start), int(end))
			r.addValue(r.endNode())
		case jsonspan.Key:
			_, chars := r.addString(int(start), int(end), s.Chars())
			r.addKey(chars)
		case jsonspan.String:
			literal, chars := r.addString(int(start), int(end), s.Chars())
			r.addValue(w.measureString(value{node: -1, chars: chars}, literal, s.Chars()))
		default:
			r.addToken(int(start), int(end))
			r.addValue(whole(value{node: -1, chars: int(end - start)}))
		}
	}
}

// A reader makes a text compact. It copies as late as possible, because most texts have
// little or no white space.
type reader struct {
	*work
	in    []byte
	valid bool // in is valid UTF-8

	from, end  int  // in[from:end] is compact and not yet copied
	separator  byte // to write before the next token, or 0
	extraBytes int  // how many more bytes than characters the compact text has

	open []openNode
	last value // the latest value
}

// An openNode is a node whose end has not been read.
type openNode struct {
	node  int
	chars int // number of characters before it
}

// addToken adds in[start:end] to the compact text, after the separator that is due, and
// returns its offset there.
func (r *reader) addToken(start, end int) (at int) {
	between := start - r.end
	switch {
	case r.separator == 0 && between == 0, r.separator != 0 && between == 1:
	default: // white space
		r.flush()
		if r.separator != 0 {
			r.text = append(r.text, r.separator)
		}
		r.from = start
	}
	r.end = end
	return len(r.text) + start - r.from
}

// flush copies in[from:end] to the compact text.
func (r *reader) flush() {
	r.text = append(r.text, r.in[r.from:r.end]...)
	r.from = r.end
}

// size returns how many bytes the compact text has.
func (r *reader) size() int { return len(r.text) + r.end - r.from }

// addString adds a string or key that has n characters when decoded. It returns the
// string in the compact text, and how many characters it has there.
func (r *reader) addString(start, end, n int) (literal []byte, chars int) {
	at := r.addToken(start, end)
	literal = r.in[start:end]
	if r.valid {
		if len(literal) == n+len(`""`) {
			return literal, len(literal)
		}
		if escapes, ok := canonical(literal); ok {
			chars = n + escapes + len(`""`)
			r.extraBytes += len(literal) - chars
			return literal, chars
		}
	}
	r.end = start
	r.flush()
	r.text = append(r.text, '"')
	r.text = appendCanonical(r.text, literal[1:len(literal)-1])
	r.text = append(r.text, '"')
	r.from, r.end = end, end
	literal = r.text[at:]
	chars = utf8.RuneCount(literal)
	r.extraBytes += len(literal) - chars
	return literal, chars
}

// beginNode adds the opening brace or bracket of a node.
func (r *reader) beginNode(start, end int) {
	at := r.addToken(start, end)
	r.separator = 0
	r.open = append(r.open, openNode{node: len(r.nodes), chars: at - r.extraBytes})
	r.nodes = append(r.nodes, node{start: uint32(at)})
}

// endNode ends the innermost open node, and removes it if it is too small to be cut.
func (r *reader) endNode() value {
	last := len(r.open) - 1
	i, end := r.open[last].node, r.size()
	chars := end - r.extraBytes - r.open[last].chars
	r.open = r.open[:last]
	n := &r.nodes[i]
	n.end, n.next, n.chars = uint32(end), uint32(len(r.nodes)), uint32(chars)
	if n.end-n.start <= maxSmall {
		r.nodes = r.nodes[:i] // the nodes in it are smaller and already removed
		return whole(value{node: -1, chars: chars})
	}
	n.most += uint32(len("{}") - len(","))
	if r.in[r.end-1] == ']' {
		n.soft = min(n.chars, uint32(len("[]")+r.gapChars(itemForm, int(n.count))))
		n.good = n.soft
	} else {
		n.soft += uint32(len("{}") - len(","))
		n.good += uint32(len("{}") - len(","))
	}
	return value{node: i, most: int(n.most), least: least{good: int(n.good), soft: int(n.soft)}}
}

// addKey adds the characters of a key to the sizes of the open node.
func (r *reader) addKey(chars int) {
	n := &r.nodes[r.open[len(r.open)-1].node]
	n.most += uint32(chars + len(":"))
	n.good += uint32(chars + len(":"))
	n.soft += uint32(chars + len(":"))
	r.separator = ':'
}

// addValue adds a value to the sizes of the open node.
func (r *reader) addValue(v value) {
	r.last, r.separator = v, ','
	if len(r.open) > 0 {
		n := &r.nodes[r.open[len(r.open)-1].node]
		n.count++
		n.most += uint32(v.most + len(","))
		n.good += uint32(v.good + len(","))
		n.soft += uint32(v.soft + len(","))
	}
}

// canonical returns how many escapes a string has, and whether all are canonical.
func canonical(literal []byte) (escapes int, ok bool) {
	for {
		i := bytes.IndexByte(literal, '\\')
		if i < 0 {
			return escapes, true
		}
		if c := literal[i+1]; c == 'u' || c == '/' {
			return 0, false
		}
		escapes++
		literal = literal[i+2:]
	}
}

// appendCanonical appends the body of a string with canonical escapes: only what JSON
// requires is escaped, with the shortest escapes.
func appendCanonical(dst, body []byte) []byte {
	for len(body) > 0 {
		plain := 0
		for plain < len(body) && body[plain] != '\\' && body[plain] < utf8.RuneSelf {
			plain++
		}
		dst = append(dst, body[:plain]...)
		body = body[plain:]
		if len(body) == 0 {
			break
		}
		size := jsonspan.Advance(body, 1)
		if size == 2 && body[0] == '\\' && body[1] != '/' {
			dst = append(dst, body[:size]...)
		} else {
			var room [utf8.UTFMax]byte
			dst = jsonspan.AppendBody(dst, string(jsonspan.AppendText(room[:0], body[:size])))
		}
		body = body[size:]
	}
	return dst
}

// A value is a part of the text that is kept or cut: a JSON value, or a line of a string.
type value struct {
	start, end int
	node       int  // index of its node, or -1
	isLine     bool // it is a line of a string
	media      bool // it is a string that is kept or left out, but never cut

	chars int // its length in characters
	most  int // its maximum length if it is cut
	least     // its minimum lengths if it is cut
}

// A least has the minimum lengths of a value in characters, for three degrees of cutting.
type least struct {
	good int // it keeps its keys, and strings that are not much longer than a marker
	soft int // it keeps its keys
	hard int // it may lose its keys
}

// within returns a function that selects good, soft or hard: the first of them that fits
// into room for l, or hard if none does. The function is then used for the values inside.
func (l least) within(room int) func(least) int {
	switch {
	case l.good <= room:
		return func(l least) int { return l.good }
	case l.soft <= room:
		return func(l least) int { return l.soft }
	}
	return func(l least) int { return l.hard }
}

// nodeValue returns node i as a value.
func (w *work) nodeValue(i int) value {
	n := &w.nodes[i]
	v := value{start: int(n.start), end: int(n.end), node: i, chars: int(n.chars), most: int(n.most)}
	v.least = least{good: int(n.good), soft: int(n.soft), hard: int(n.soft)}
	if w.text[v.start] == '{' {
		v.hard = min(v.hard, len("{}")+w.gapChars(memberForm, int(n.count)))
	}
	return v
}

// A span is the position of a part of a node or string.
type span struct {
	index      int // among its siblings
	key        int // offset of its key if it is a member, else start
	start, end int
	node       int // see [value]
	isLine     bool
}

// measure returns v with its lengths set.
func (w *work) measure(v value) value {
	if v.node >= 0 {
		return w.nodeValue(v.node)
	}
	literal := w.text[v.start:v.end]
	v.chars = utf8.RuneCount(literal)
	switch {
	case v.isLine:
		return measureText(v, literal, w.textMarkerChars(jsonspan.Count(literal)))
	case literal[0] == '"':
		return w.measureString(v, literal, jsonspan.Count(literal[1:len(literal)-1]))
	}
	return whole(v)
}

// whole returns v with the lengths of a value that cannot be cut.
func whole(v value) value {
	v.most, v.least = v.chars, least{v.chars, v.chars, v.chars}
	return v
}

// measureString returns v with the lengths of a string that has n characters when decoded.
func (w *work) measureString(v value, literal []byte, n int) value {
	if v.chars < len(markerStart+textUnit+markerWord+markerEnd) { // most strings are short
		return whole(v)
	}
	return measureText(v, literal[1:len(literal)-1], len(`""`)+w.textMarkerChars(n))
}

// measureText returns v with the lengths of a string or line that can be cut down to a
// marker with this number of characters.
func measureText(v value, body []byte, marker int) value {
	v = whole(v)
	if v.chars <= marker {
		return v
	}
	v.soft, v.hard = marker, marker
	v.media = !v.isLine && isMedia(body)
	if v.media {
		v.most = marker
	}
	if v.media || v.chars > 2*marker {
		v.good = marker
	}
	return v
}

// parts iterates over the items or members of node i.
func (w *work) parts(i int) iter.Seq[span] {
	return func(yield func(span) bool) {
		n := &w.nodes[i]
		object := w.text[n.start] == '{'
		at, next := int(n.start)+1, i+1
		for index := range int(n.count) {
			s := span{index: index, key: at, node: -1}
			if object {
				at = endOfString(w.text, at) + len(":")
			}
			s.start = at
			switch w.text[at] {
			case '"':
				at = endOfString(w.text, at)
			case '{', '[':
				if next < len(w.nodes) && int(w.nodes[next].start) == at {
					s.node, at, next = next, int(w.nodes[next].end), int(w.nodes[next].next)
				} else {
					at = endOfContainer(w.text, at)
				}
			default:
				for w.text[at] != ',' && w.text[at] != ']' && w.text[at] != '}' {
					at++
				}
			}
			s.end = at
			if !yield(s) {
				return
			}
			at++ // the comma
		}
	}
}

// endOfString returns the end of the string that begins at offset i.
func endOfString(text []byte, i int) int {
	for from := i + 1; ; {
		from += bytes.IndexByte(text[from:], '"') + 1
		escapes := from - 1
		for text[escapes-1] == '\\' {
			escapes--
		}
		if (from-1-escapes)%2 == 0 {
			return from
		}
	}
}

// endOfContainer returns the end of the object or array that begins at offset i.
func endOfContainer(text []byte, i int) int {
	for depth := 0; ; {
		switch text[i] {
		case '"':
			i = endOfString(text, i)
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
		i++
	}
}

// lines iterates over the lines of the body of a string.
func (w *work) lines(start, end int) iter.Seq[span] {
	return func(yield func(span) bool) {
		s := span{key: start, start: start, node: -1, isLine: true}
		for at := start; at < end; {
			escape := bytes.IndexByte(w.text[at:end], '\\')
			if escape < 0 {
				break
			}
			at += escape + len(`\n`)
			if w.text[at-1] != 'n' {
				continue
			}
			s.end = at - len(`\n`)
			if !yield(s) {
				return
			}
			s.index++
			s.key, s.start = at, at
		}
		s.end = end
		yield(s)
	}
}

// minMedia is the minimum length in bytes of a string that counts as media.
const minMedia = 128

// isMedia reports whether the body of a string is a data URI or looks like base64.
func isMedia(body []byte) bool {
	if len(body) < minMedia {
		return false
	}
	if bytes.HasPrefix(body, []byte("data:")) {
		return !bytes.ContainsAny(body, ` \<`) && bytes.IndexByte(body, ',') > 0
	}
	// Long words and identifiers use the same alphabet, but rarely have upper case
	// letters, lower case letters and digits.
	var upper, lower, digit bool
	for _, c := range bytes.TrimRight(body, "=") {
		switch {
		case 'A' <= c && c <= 'Z':
			upper = true
		case 'a' <= c && c <= 'z':
			lower = true
		case '0' <= c && c <= '9':
			digit = true
		case c != '+' && c != '/' && c != '-' && c != '_':
			return false
		}
	}
	return upper && lower && digit
}

// mediaKey returns the key, with quotes, of the member that holds media: data if the
// object is image or audio content, blob if it is a resource, else "".
func (w *work) mediaKey(members iter.Seq[span]) string {
	found := ""
	for s := range members {
		switch string(w.text[s.key : s.start-len(":")]) {
		case `"type"`:
			if kind := string(w.text[s.start:s.end]); kind == `"image"` || kind == `"audio"` {
				return `"data"`
			}
		case `"uri"`:
			found = `"blob"`
		}
	}
	return found
}
