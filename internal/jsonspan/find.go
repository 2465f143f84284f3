package jsonspan

import (
	"encoding/binary"
	"io"
	"math"
	"math/bits"
)

// Find reads data and calls found for each value that stands at one of the
// paths, with the index of that path, in the order in which the values end.
//
// An object that repeats a key which a path names is refused with [ErrDuplicate]:
// two readers of it could disagree about what it says. A text cut short gives
// io.ErrUnexpectedEOF after what was found in it. So until Find returns nil the
// values found are those of a text that may yet turn out to be invalid.
func (p *Paths) Find(data []byte, found func(path int, v Value)) error {
	return p.find(finder{data: data}, &Search{Found: found})
}

// FindExact is Find for a text that others read, too, and decide upon. Many readers take
// Name for name, and some take name\u0000 for it. So it refuses keys that differ from those
// of the paths in nothing else, with [ErrFolded].
func (p *Paths) FindExact(data []byte, found func(path int, v Value)) error {
	return p.find(finder{data: data, exact: true}, &Search{Found: found})
}

// A Search is a [Paths.Find] with further options. Only Found is required.
type Search struct {
	// Found is called for each value at one of the paths.
	Found func(path int, v Value)

	// Folded is called for each key that [Paths.FindExact] refuses, with the path that
	// the look-alike leads to, -1 if paths only lead through there.
	Folded func(path int)

	// Known returns the end of the object or array that begins at start and stands at
	// path, if the caller knows it to be valid, else 0. It is then skipped: neither it
	// nor a value in it is reported.
	Known func(path, start int) (end int)

	// Elements returns the end of an element of the array that begins at start and stands
	// at path, if the caller knows the array to be valid up to there, else 0. The search
	// goes on behind it: neither it nor an element before it is reported.
	Elements func(path, start int) (end int)
}

// Search is Find with the options of s.
func (p *Paths) Search(data []byte, s *Search) error {
	return p.find(finder{data: data}, s)
}

func (p *Paths) find(f finder, s *Search) error {
	data := f.data
	i := f.value(f.space(0), &p.root, 0, s)
	if i >= 0 && f.space(i) < len(data) {
		f.fail(ErrSyntax, f.space(i))
	}
	if f.err.Err == nil {
		return nil
	}
	err := f.err // not that of f, which would then have to outlive this
	return &err
}

// A finder goes through a text that is there as a whole, which takes a fraction
// of what it takes a [Scanner] to go from token to token. Where no path leads, it
// leaves the text to one. So its recursion is as deep as paths are long.
//
// Its methods take where something begins and return where it ends, or -1 when
// they have failed. The search is not a part of it, so that its functions need not be
// allocated.
type finder struct {
	data    []byte
	exact   bool // look-alikes are an error
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

func (f *finder) space(i int) int {
	for i < len(f.data) && f.data[i] <= ' ' && (f.data[i] == ' ' || f.data[i] == '\n' || f.data[i] == '\t' || f.data[i] == '\r') {
		i++
	}
	return i
}

// value reads the value at i, which stands at n, or nowhere if that is nil.
func (f *finder) value(i int, n *node, depth int, s *Search) int {
	if i >= len(f.data) {
		return f.fail(io.ErrUnexpectedEOF, i)
	}
	v := Value{Start: i}
	if s.Known != nil && n != nil && n.path >= 0 && (f.data[i] == '{' || f.data[i] == '[') {
		if end := s.Known(n.path, i); end > 0 {
			return end
		}
	}
	switch f.data[i] {
	case '"':
		v.Kind = String
		if n != nil && n.path >= 0 {
			v.End, v.Chars, v.Numbered = f.text(i)
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
	i = f.space(i + 1)
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
		at := n.each
		if k := n.index(f.data[key+1 : i-1]); k >= 0 {
			if seen&(1<<k) != 0 {
				return f.fail(ErrDuplicate, key)
			}
			seen |= 1 << k
			at = n.keys[k].to
		} else if f.exact || s.Folded != nil {
			if k := n.folded(f.data[key+1 : i-1]); k >= 0 && f.exact {
				return f.fail(ErrFolded, key)
			} else if k >= 0 {
				s.Folded(n.keys[k].to.path)
			}
		}
		if i = f.space(i); i >= len(f.data) || f.data[i] != ':' {
			return f.fail(ErrSyntax, i)
		}
		if i = f.value(f.space(i+1), at, depth+1, s); i < 0 {
			return -1
		}
		if i = f.space(i); i < len(f.data) && f.data[i] == ',' {
			i = f.space(i + 1)
			continue
		}
		return f.end(i, '}')
	}
}

func (f *finder) array(i int, n *node, depth int, s *Search) int {
	known := 0
	if s.Elements != nil && n.path >= 0 {
		known = s.Elements(n.path, i)
	}
	i = f.space(i + 1)
	if i < len(f.data) && f.data[i] == ']' {
		return i + 1
	}
	for {
		if known > 0 {
			i, known = known, 0
		} else if i = f.value(i, n.each, depth+1, s); i < 0 {
			return -1
		}
		if i = f.space(i); i < len(f.data) && f.data[i] == ',' {
			i = f.space(i + 1)
			continue
		}
		return f.end(i, ']')
	}
}

// end reads the end of a container.
func (f *finder) end(i int, c byte) int {
	if i >= len(f.data) || f.data[i] != c {
		return f.fail(ErrSyntax, i)
	}
	return i + 1
}

// skip reads a container that nobody asks about, in so many others.
func (f *finder) skip(i, depth int) int {
	s := &f.scanner
	s.MaxDepth, s.Uncounted = DefaultMaxDepth-depth, true
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

// text reads a string or key. It says how many characters it has, and whether some
// are spelled by their numbers.
func (f *finder) text(i int) (end, chars int, numbered bool) {
	// Keys and words, in other words nearly all strings, are short and plain.
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
	i, chars, numbered, stopped := readText(f.data, i, chars)
	return f.endText(i, stopped), chars, numbered
}

// skipText reads a string or key of which nothing is to be said.
func (f *finder) skipText(i int) int {
	i, stopped := skipText(f.data, i+1)
	return f.endText(i, stopped)
}

// endText returns the end of a string or key that was read up to i.
func (f *finder) endText(i int, stopped stop) int {
	switch stopped {
	case atQuote:
		return i + 1
	case atFault:
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
		next := st.digit(f.data[i])
		if next == wantNothing {
			break
		}
		st = next
	}
	if !st.openNumber() {
		return f.fail(ErrSyntax, i)
	}
	return i
}
