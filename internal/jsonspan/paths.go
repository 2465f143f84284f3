// Package jsonspan finds values in raw JSON and replaces them in place.
//
// It never builds a tree and never re-encodes. It reports the offsets of values,
// and [Splice] copies all bytes around them unchanged. Number literals, key order,
// escapes, white space and unknown members therefore cannot change.
//
// A [Scanner] validates in one pass. It reads whole buffers as well as bytes as
// they arrive, in pieces of any size, and its memory does not grow with the text.
// [Paths] selects values by the keys that lead to them: Find in a complete text,
// Watch in a text that arrives in pieces.
//
// # Guarantees
//
//   - A text is accepted if and only if encoding/json accepts it, with two
//     exceptions: nesting deeper than MaxDepth (1,000 by default) is [ErrDepth],
//     and an object that repeats a key of a path is [ErrDuplicate]. An accepted
//     text has been read to its end.
//   - Keys are compared exactly, after decoding: "result" and "resul\u0074" are the
//     same key, "Result" is a different one.
//   - A character is a Unicode code point of the decoded string. An escaped
//     surrogate pair is one character. So is a lone surrogate, and so is each byte
//     that is not part of valid UTF-8: encoding/json decodes these to U+FFFD. A
//     reported character offset never lies inside a character.
//   - No allocation per token or per byte, no reflection. Recursion is only as deep
//     as the longest path. Time is linear in the text.
//
// A text is read once, from front to back. What a [Scanner] reports before an
// error does not prove that the rest is well-formed. Callers that must not act on
// an invalid text wait for [Done].
package jsonspan

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/bits"
	"strings"
	"unicode/utf8"
)

// Paths selects values of a JSON text by their keys. It is immutable and safe for concurrent use.
type Paths struct {
	root node
}

// A node is a value that a path selects, or through which a path leads.
type node struct {
	path int // index of the path that ends here, or -1
	keys []edge
	each *node // all elements of an array, or all members of an object that are not in keys
}

// maxKeys is how many keys of one object paths may name: finder.object has one bit for each.
const maxKeys = 64

type edge struct {
	key  string
	node *node
}

// A Value is the position of a value in a text, from offset Start up to End.
type Value struct {
	Kind              Kind // String, Number, True, False, Null, BeginObject or BeginArray
	Start, End        int
	Chars             int  // number of characters of a string
	HasUnicodeEscapes bool // whether a string has \uXXXX escapes
}

// Body returns the bytes between the quotes of the string v in data.
func (v Value) Body(data []byte) []byte { return data[v.Start+1 : v.End-1] }

// CompilePaths parses paths such as "params.name" or "result.tools.*.name": keys
// separated by dots. * stands for every element of an array, and for every member
// of an object that no other path names there. A backslash makes the dot in a\.b a
// part of the key. CompilePaths panics on empty or repeated paths, because paths are
// constants of the program.
func CompilePaths(paths ...string) *Paths {
	p := &Paths{root: node{path: -1}}
	for i, path := range paths {
		n := &p.root
		for key, rest, more := "", path, true; more; {
			key, rest, more = cutKey(rest)
			n = n.child(path, key)
		}
		if n.path >= 0 {
			panic(fmt.Sprintf("jsonspan: path %q repeated", path))
		}
		n.path = i
	}
	return p
}

// cutKey cuts the first key off a path. more reports whether others follow.
func cutKey(path string) (key, rest string, more bool) {
	end := 0
	for end < len(path) && path[end] != '.' {
		if strings.HasPrefix(path[end:], `\.`) {
			end++
		}
		end++
	}
	rest, more = strings.CutPrefix(path[end:], ".")
	return strings.ReplaceAll(path[:end], `\.`, "."), rest, more
}

// child returns the node below n for key, and creates it if necessary.
func (n *node) child(path, key string) *node {
	switch {
	case key == "":
		panic(fmt.Sprintf("jsonspan: path %q has an empty key", path))
	case len(n.keys) == maxKeys:
		panic(fmt.Sprintf("jsonspan: path %q: more than %d keys in one object", path, maxKeys))
	case key == "*" && n.each == nil:
		n.each = &node{path: -1}
		return n.each
	case key == "*":
		return n.each
	}
	for _, e := range n.keys {
		if e.key == key {
			return e.node
		}
	}
	child := &node{path: -1}
	n.keys = append(n.keys, edge{key, child})
	return child
}

// index returns the index of key in n.keys, or -1.
func (n *node) index(key []byte) int {
	for i := range n.keys {
		if string(key) == n.keys[i].key {
			return i
		}
	}
	if len(n.keys) > 0 && bytes.IndexByte(key, '\\') >= 0 {
		for i := range n.keys {
			if TextIs(key, n.keys[i].key) {
				return i
			}
		}
	}
	return -1
}

// foldedIndex returns the index of the key in n.keys that equals key if case and
// trailing null characters are ignored, or -1.
func (n *node) foldedIndex(key []byte) int {
	if len(n.keys) == 0 {
		return -1
	}
	if bytes.IndexByte(key, '\\') >= 0 {
		key = bytes.TrimRight(AppendText(nil, key), "\x00")
	}
	for i := range n.keys {
		// Only non-ASCII letters fold to letters of another length, and those are shorter.
		name := n.keys[i].key
		if len(key) >= len(name) && (key[0]|0x20 == name[0]|0x20 || key[0] >= utf8.RuneSelf) &&
			strings.EqualFold(string(key), name) {
			return i
		}
	}
	return -1
}

// Find reads data and calls found for each value at one of the paths, with the
// index of that path. Values are reported in the order in which they end.
//
// An object that repeats a key of a path is refused with [ErrDuplicate], because
// programs read it in different ways. A truncated text returns
// io.ErrUnexpectedEOF, after its values were reported. Until Find returns nil, the
// text may still be invalid.
func (p *Paths) Find(data []byte, found func(path int, v Value)) error {
	return p.find(finder{data: data}, &Search{Found: found})
}

// FindExact is Find for a text that other programs interpret, too. Many of them
// read Name as name, and some read name\u0000 as name. FindExact therefore refuses,
// with [ErrFolded], keys that differ from those of the paths only in this way.
func (p *Paths) FindExact(data []byte, found func(path int, v Value)) error {
	return p.find(finder{data: data, exact: true}, &Search{Found: found})
}

// A Search is a [Paths.Find] with more options. Only Found is required.
type Search struct {
	// Found is called for each value at one of the paths.
	Found func(path int, v Value)

	// Folded is called for each key that [Paths.FindExact] refuses, with the path of
	// the key that it resembles, or -1 if no path ends there.
	Folded func(path int)

	// KnownEnd may know the end of an object or array that begins at start, at path.
	// If the caller knows that the value is valid, KnownEnd returns its end, and the
	// search skips it: neither it nor the values in it are reported. Else it returns 0.
	KnownEnd func(path, start int) (end int)

	// KnownElementsEnd is the same for the first elements of an array that begins at
	// start, at path. If the caller knows that the array is valid up to the end of an
	// element, it returns that end, and the search continues there: the elements before
	// it are not reported. Else it returns 0.
	KnownElementsEnd func(path, start int) (end int)
}

// Search is Find with the options in s.
func (p *Paths) Search(data []byte, s *Search) error {
	return p.find(finder{data: data}, s)
}

func (p *Paths) find(f finder, s *Search) error {
	data := f.data
	i := f.value(f.skipSpace(0), &p.root, 0, s)
	if i >= 0 && f.skipSpace(i) < len(data) {
		f.fail(ErrSyntax, f.skipSpace(i))
	}
	if f.err.Err == nil {
		return nil
	}
	err := f.err // a copy, so that f stays on the stack
	return &err
}

// A finder searches a complete text, which is much faster than reading its tokens
// with a [Scanner]. Containers without a path are left to a Scanner, so the
// recursion is only as deep as the longest path.
//
// Its methods take the offset where something begins and return the offset where
// it ends, or -1 on failure. The Search is a parameter instead of a field, so that
// its functions need not be allocated.
type finder struct {
	data    []byte
	exact   bool // refuse keys that differ only in case or trailing null characters
	scanner Scanner
	err     Error
}

func (f *finder) fail(err error, i int) int {
	if i >= len(f.data) {
		err = io.ErrUnexpectedEOF
	}
	f.err = Error{Offset: int64(i), Err: err}
	return -1
}

func (f *finder) skipSpace(i int) int {
	for i < len(f.data) && f.data[i] <= ' ' &&
		(f.data[i] == ' ' || f.data[i] == '\n' || f.data[i] == '\t' ||
			f.data[i] == '\r') {
		i++
	}
	return i
}

// value reads the value at offset i. n is its node, or nil if no path leads to it.
func (f *finder) value(i int, n *node, depth int, s *Search) int {
	if i >= len(f.data) {
		return f.fail(io.ErrUnexpectedEOF, i)
	}
	v := Value{Start: i}
	if s.KnownEnd != nil && n != nil && n.path >= 0 && (f.data[i] == '{' || f.data[i] == '[') {
		if end := s.KnownEnd(n.path, i); end > 0 {
			return end
		}
	}
	switch f.data[i] {
	case '"':
		v.Kind = String
		if n != nil && n.path >= 0 {
			v.End, v.Chars, v.HasUnicodeEscapes = f.text(i)
		} else {
			v.End = f.skipText(i)
		}
	case '{':
		v.Kind = BeginObject
		if n != nil && (len(n.keys) > 0 || n.each != nil) {
			v.End = f.object(i, n, depth, s)
		} else {
			v.End = f.skip(i, depth)
		}
	case '[':
		v.Kind = BeginArray
		if n != nil && n.each != nil {
			v.End = f.array(i, n, depth, s)
		} else {
			v.End = f.skip(i, depth)
		}
	case 't':
		v.Kind, v.End = True, f.literal(i, "true")
	case 'f':
		v.Kind, v.End = False, f.literal(i, "false")
	case 'n':
		v.Kind, v.End = Null, f.literal(i, "null")
	default:
		v.Kind, v.End = Number, f.number(i)
	}
	if n != nil && n.path >= 0 && v.End >= 0 {
		s.Found(n.path, v)
	}
	return v.End
}

func (f *finder) object(i int, n *node, depth int, s *Search) int {
	var seen uint64
	i = f.skipSpace(i + 1)
	if i < len(f.data) && f.data[i] == '}' {
		return i + 1
	}
	for {
		if i >= len(f.data) || f.data[i] != '"' {
			return f.fail(ErrSyntax, i)
		}
		key := i
		if i = f.skipText(i); i < 0 {
			return -1
		}
		child := n.each
		if k := n.index(f.data[key+1 : i-1]); k >= 0 {
			if seen&(1<<k) != 0 {
				return f.fail(ErrDuplicate, key)
			}
			seen |= 1 << k
			child = n.keys[k].node
		} else if f.exact || s.Folded != nil {
			if k := n.foldedIndex(f.data[key+1 : i-1]); k >= 0 && f.exact {
				return f.fail(ErrFolded, key)
			} else if k >= 0 {
				s.Folded(n.keys[k].node.path)
			}
		}
		if i = f.skipSpace(i); i >= len(f.data) || f.data[i] != ':' {
			return f.fail(ErrSyntax, i)
		}
		if i = f.value(f.skipSpace(i+1), child, depth+1, s); i < 0 {
			return -1
		}
		if i = f.skipSpace(i); i < len(f.data) && f.data[i] == ',' {
			i = f.skipSpace(i + 1)
			continue
		}
		return f.closeContainer(i, '}')
	}
}

func (f *finder) array(i int, n *node, depth int, s *Search) int {
	known := 0
	if s.KnownElementsEnd != nil && n.path >= 0 {
		known = s.KnownElementsEnd(n.path, i)
	}
	i = f.skipSpace(i + 1)
	if i < len(f.data) && f.data[i] == ']' {
		return i + 1
	}
	for {
		if known > 0 {
			i, known = known, 0
		} else if i = f.value(i, n.each, depth+1, s); i < 0 {
			return -1
		}
		if i = f.skipSpace(i); i < len(f.data) && f.data[i] == ',' {
			i = f.skipSpace(i + 1)
			continue
		}
		return f.closeContainer(i, ']')
	}
}

// closeContainer reads c, the closing brace or bracket of a container.
func (f *finder) closeContainer(i int, c byte) int {
	if i >= len(f.data) || f.data[i] != c {
		return f.fail(ErrSyntax, i)
	}
	return i + 1
}

// skip validates a container that no path leads into. depth is the number of containers around it.
func (f *finder) skip(i, depth int) int {
	s := &f.scanner
	s.MaxDepth, s.SkipCounting = DefaultMaxDepth-depth, true
	s.Reset()
	s.Report(0, math.MaxInt)
	s.Feed(f.data[i:])
	for {
		switch s.Next() {
		case EndObject, EndArray:
			_, end := s.Span()
			return i + int(end)
		case More:
			return f.fail(io.ErrUnexpectedEOF, len(f.data))
		case Invalid:
			f.err = *s.err.(*Error)
			f.err.Offset += int64(i)
			return -1
		}
	}
}

// text reads a string or key. It returns its end, the number of its characters, and
// whether it has \uXXXX escapes.
func (f *finder) text(i int) (end, chars int, hasUnicode bool) {
	// Fast path: nearly all strings are short and plain ASCII.
	for i++; chars < 32 && i+8 <= len(f.data); i, chars = i+8, chars+8 {
		if m := special(binary.LittleEndian.Uint64(f.data[i:])) & highBits; m != 0 {
			n := bits.TrailingZeros64(m) >> 3
			i, chars = i+n, chars+n
			if f.data[i] == '"' {
				return i + 1, chars, false
			}
			break
		}
	}
	i, chars, hasUnicode, stopped := readText(f.data, i, chars)
	return f.endText(i, stopped), chars, hasUnicode
}

// skipText reads a string or key without counting its characters.
func (f *finder) skipText(i int) int {
	i, stopped := skipText(f.data, i+1)
	return f.endText(i, stopped)
}

// endText returns the end of a string or key that was read up to i.
func (f *finder) endText(i int, stopped stop) int {
	switch stopped {
	case atQuote:
		return i + 1
	case atInvalid:
		return f.fail(ErrSyntax, i)
	}
	return f.fail(io.ErrUnexpectedEOF, len(f.data))
}

func (f *finder) literal(i int, literal string) int {
	for _, c := range []byte(literal) {
		if i >= len(f.data) || f.data[i] != c {
			return f.fail(ErrSyntax, i)
		}
		i++
	}
	return i
}

func (f *finder) number(i int) int {
	var st state
	switch c := f.data[i]; {
	case c == '-':
		st = inMinus
	case c == '0':
		st = inZero
	case '1' <= c && c <= '9':
		st = inInteger
	default:
		return f.fail(ErrSyntax, i)
	}
	for i++; i < len(f.data); i++ {
		next := st.nextInNumber(f.data[i])
		if next == wantNothing {
			break
		}
		st = next
	}
	if !st.mayEndNumber() {
		return f.fail(ErrSyntax, i)
	}
	return i
}
