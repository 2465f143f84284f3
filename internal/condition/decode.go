package condition

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

const (
	maxArguments = 1 << 20 // bytes
	maxDepth     = 64      // objects and lists in each other
	maxValues    = 1 << 16
)

// decode reads arguments that an expression with these names is going to decide by. The server that gets them has to
// read the same, so it refuses what programs read in different ways: keys that differ in case only or not at all, from
// each other or from those the expression names, texts that are not Unicode, and numbers that do not fit in 64 bits.
func decode(data []byte, named *place) (map[string]any, error) {
	switch {
	case len(data) == 0:
		return map[string]any{}, nil
	case len(data) > maxArguments:
		return nil, fmt.Errorf("%d bytes, at most %d can be read", len(data), maxArguments)
	case !utf8.Valid(data):
		return nil, errors.New("not UTF-8")
	}
	d := decoder{data: data, text: string(data)}
	d.scanner.MaxDepth, d.scanner.Uncounted = maxDepth, true
	d.scanner.Feed(data)
	d.scanner.Finish()
	switch d.scanner.Next() {
	case jsonspan.BeginObject:
	case jsonspan.Invalid:
		return nil, d.scanner.Err()
	default:
		return nil, errors.New("not an object")
	}
	object, err := d.object(named)
	if err == nil && d.scanner.Next() != jsonspan.Done {
		err = d.scanner.Err()
	}
	return object, err
}

type decoder struct {
	scanner jsonspan.Scanner
	data    []byte
	text    string // data, of which strings are parts
	values  int    // read so far
}

// object reads on behind the opening brace of an object.
func (d *decoder) object(at *place) (map[string]any, error) {
	object, keys := map[string]any{}, keySet{}
	for {
		kind := d.scanner.Next()
		if kind == jsonspan.EndObject {
			return object, nil
		}
		if kind != jsonspan.Key {
			return nil, d.scanner.Err()
		}
		name, err := d.string()
		if err != nil {
			return nil, err
		}
		folded := fold(name)
		if !keys.add(folded) {
			return nil, fmt.Errorf("key %.40q is there twice, or in another case", name)
		}
		if other, ok := at.alike(name, folded); ok {
			return nil, fmt.Errorf("key %.40q can be taken for %q", name, other)
		}
		if object[name], err = d.value(d.scanner.Next(), at.member(name)); err != nil {
			return nil, err
		}
	}
}

// list reads on behind the opening bracket of a list.
func (d *decoder) list(at *place) ([]any, error) {
	list := []any{}
	for {
		kind := d.scanner.Next()
		if kind == jsonspan.EndArray {
			return list, nil
		}
		value, err := d.value(kind, at.element())
		if err != nil {
			return nil, err
		}
		list = append(list, value)
	}
}

// value reads the value of which the scanner returned the kind.
func (d *decoder) value(kind jsonspan.Kind, at *place) (any, error) {
	if d.values++; d.values > maxValues {
		return nil, fmt.Errorf("more than %d values", maxValues)
	}
	switch kind {
	case jsonspan.BeginObject:
		return d.object(at)
	case jsonspan.BeginArray:
		return d.list(at)
	case jsonspan.String:
		return d.string()
	case jsonspan.Number:
		start, end := d.scanner.Span()
		n, ok := number(d.text[start:end])
		if !ok {
			return nil, fmt.Errorf("the number at byte %d does not fit in 64 bits", start)
		}
		return n, nil
	case jsonspan.True:
		return true, nil
	case jsonspan.False:
		return false, nil
	case jsonspan.Null:
		return nil, nil
	}
	return nil, d.scanner.Err()
}

// string returns the string or key that the scanner is at.
func (d *decoder) string() (string, error) {
	start, end := d.scanner.Span()
	body := d.data[start+1 : end-1]
	if bytes.IndexByte(body, '\\') < 0 {
		return d.text[start+1 : end-1], nil
	}
	if bytes.Contains(body, []byte(`\u`)) && loneSurrogate(body) {
		return "", fmt.Errorf("half a character at byte %d", start)
	}
	return string(jsonspan.AppendText(make([]byte, 0, len(body)), body)), nil
}

// loneSurrogate reports whether the body of a string has one of the two escapes that make a character together, but
// not the other.
func loneSurrogate(body []byte) bool {
	high := false // just before
	for i := 0; i < len(body); i++ {
		r := rune(0)
		if body[i] == '\\' {
			if i++; body[i] == 'u' {
				n, _ := strconv.ParseUint(string(body[i+1:i+5]), 16, 16)
				r, i = rune(n), i+4
			}
		}
		low := 0xDC00 <= r && r < 0xE000
		if high != low {
			return true
		}
		high = 0xD800 <= r && r < 0xDC00
	}
	return high
}

// number returns a whole number as an integer, however it is written, for those are compared exactly. It reports
// whether the number fits.
func number(literal string) (n any, ok bool) {
	if n, err := strconv.ParseInt(literal, 10, 64); err == nil {
		return n, true
	}
	if n, err := strconv.ParseUint(literal, 10, 64); err == nil {
		return n, true
	}
	f, err := strconv.ParseFloat(literal, 64)
	if err != nil || !strings.ContainsAny(literal, ".eE") {
		return nil, false
	}
	if math.Trunc(f) == f && math.Abs(f) < 1<<63 {
		return int64(f), true
	}
	return f, true
}

// A keySet is a set of keys of an object, as fold returns them.
type keySet struct {
	few  [16]string // which most objects have
	n    int
	many map[string]struct{} // the others
}

// add adds a key and reports whether it was not there.
func (s *keySet) add(key string) bool {
	if slices.Contains(s.few[:s.n], key) {
		return false
	}
	if s.n < len(s.few) {
		s.few[s.n] = key
		s.n++
		return true
	}
	if s.many == nil {
		s.many = map[string]struct{}{}
	}
	before := len(s.many)
	s.many[key] = struct{}{}
	return len(s.many) > before
}

// fold returns a text that is the same for all that [strings.EqualFold] takes for equal to s. Null characters at the
// end do not count, because some programs take them for the end.
func fold(s string) string {
	return strings.Map(func(r rune) rune {
		for next := unicode.SimpleFold(r); ; r, next = next, unicode.SimpleFold(next) {
			if next > r {
				continue
			}
			if 'A' <= next && next <= 'Z' {
				next += 'a' - 'A'
			}
			return next
		}
	}, strings.TrimRight(s, "\x00"))
}
