package jsoncut

import (
	"bytes"
	"iter"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

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
