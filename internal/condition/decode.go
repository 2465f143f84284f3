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
	maxDepth     = 64      // nested objects and lists
	maxValues    = 1 << 16
)

// decode decodes arguments for an expression that names these members. The server must read the
// same values, so decode refuses JSON that programs read in different ways: repeated keys, keys
// that differ only in case from each other or from a name in the expression, strings that are not
// valid Unicode, and numbers that do not fit in 64 bits.
func decode(data []byte, members *memberTree) (map[string]any, error) {
	switch {
	case len(data) == 0:
		return map[string]any{}, nil
	case len(data) > maxArguments:
		return nil, fmt.Errorf("%d bytes, the limit is %d", len(data), maxArguments)
	case !utf8.Valid(data):
		return nil, errors.New("not UTF-8")
	}
	d := decoder{data: data, text: string(data)}
	d.scanner.MaxDepth, d.scanner.SkipCounting = maxDepth, true
	d.scanner.Feed(data)
	d.scanner.Finish()
	switch d.scanner.Next() {
	case jsonspan.BeginObject:
	case jsonspan.Invalid:
		return nil, d.scanner.Err()
	default:
		return nil, errors.New("not an object")
	}
	object, err := d.object(members)
	if err == nil && d.scanner.Next() != jsonspan.Done {
		err = d.scanner.Err()
	}
	return object, err
}

type decoder struct {
	scanner jsonspan.Scanner
	data    []byte
	text    string // data; decoded strings are parts of it
	values  int    // read so far
}

// object decodes an object after its opening brace.
func (d *decoder) object(tree *memberTree) (map[string]any, error) {
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
			return nil, fmt.Errorf("key %.40q is repeated, or differs only in case", name)
		}
		if other, ok := tree.similar(name, folded); ok {
			return nil, fmt.Errorf("key %.40q can be mistaken for %q", name, other)
		}
		if object[name], err = d.value(d.scanner.Next(), tree.member(name)); err != nil {
			return nil, err
		}
	}
}

// list decodes a list after its opening bracket.
func (d *decoder) list(tree *memberTree) ([]any, error) {
	list := []any{}
	for {
		kind := d.scanner.Next()
		if kind == jsonspan.EndArray {
			return list, nil
		}
		value, err := d.value(kind, tree.element())
		if err != nil {
			return nil, err
		}
		list = append(list, value)
	}
}

// value decodes a value, after the scanner has returned its kind.
func (d *decoder) value(kind jsonspan.Kind, tree *memberTree) (any, error) {
	d.values++
	if d.values > maxValues {
		return nil, fmt.Errorf("more than %d values", maxValues)
	}
	switch kind {
	case jsonspan.BeginObject:
		return d.object(tree)
	case jsonspan.BeginArray:
		return d.list(tree)
	case jsonspan.String:
		return d.string()
	case jsonspan.Number:
		start, end := d.scanner.Span()
		n, ok := parseNumber(d.text[start:end])
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

// string returns the string or key at the scanner.
func (d *decoder) string() (string, error) {
	start, end := d.scanner.Span()
	body := d.data[start+1 : end-1]
	if bytes.IndexByte(body, '\\') < 0 {
		return d.text[start+1 : end-1], nil
	}
	if bytes.Contains(body, []byte(`\u`)) && loneSurrogate(body) {
		return "", fmt.Errorf("invalid surrogate pair at byte %d", start)
	}
	return string(jsonspan.AppendText(make([]byte, 0, len(body)), body)), nil
}

// loneSurrogate reports whether the body of a string has an escaped surrogate without its pair.
func loneSurrogate(body []byte) bool {
	high := false // the previous escape is a high surrogate
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

// parseNumber returns a whole number as an integer, which CEL compares exactly, and any other as a
// float. It reports whether the number fits in 64 bits.
func parseNumber(literal string) (n any, ok bool) {
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

// A keySet is a set of folded keys of an object.
type keySet struct {
	few  [16]string // the first keys, without an allocation
	n    int
	many map[string]struct{} // the other keys
}

// add adds a key, and reports whether it is new.
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

// fold returns the same text for all strings that are equal under [strings.EqualFold]. It ignores
// null characters at the end, because some programs stop reading there.
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

// A memberTree is the tree of members that an expression names in the arguments, or a part of it. A
// nil tree is valid and empty.
type memberTree struct {
	members  map[string]*memberTree
	folded   map[string]string // names of members by their folded form
	elements *memberTree       // elements of a list
}

// add returns the tree of a member, and adds it if needed.
func (t *memberTree) add(name string) *memberTree {
	if t == nil {
		return nil
	}
	if t.members == nil {
		t.members, t.folded = map[string]*memberTree{}, map[string]string{}
	}
	if t.members[name] == nil {
		t.members[name], t.folded[fold(name)] = &memberTree{}, name
	}
	return t.members[name]
}

// addElement returns the tree of all elements of a list, and adds it if needed.
func (t *memberTree) addElement() *memberTree {
	if t == nil {
		return nil
	}
	if t.elements == nil {
		t.elements = &memberTree{}
	}
	return t.elements
}

// member returns the tree of a member, or nil if the expression does not name it.
func (t *memberTree) member(name string) *memberTree {
	if t == nil {
		return nil
	}
	return t.members[name]
}

// element returns the tree of all elements, or nil if the expression names nothing in them.
func (t *memberTree) element() *memberTree {
	if t == nil {
		return nil
	}
	return t.elements
}

// similar returns the name of another member for which some programs would take a key.
func (t *memberTree) similar(key, folded string) (name string, ok bool) {
	if t == nil || t.members[key] != nil {
		return "", false
	}
	name, ok = t.folded[folded]
	return name, ok
}
