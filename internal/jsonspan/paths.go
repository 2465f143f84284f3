package jsonspan

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Paths is a set of places in a JSON text. It is made once and used at will,
// also concurrently.
type Paths struct {
	root node
}

// A node is a place that paths lead to or through.
type node struct {
	path int // the path that ends here, or -1
	keys []edge
	each *node // every element of an array, every other member of an object
}

// maxKeys is how many keys of one object paths may name: a bit each in finder.object.
const maxKeys = 64

type edge struct {
	key string
	to  *node
}

// A Value is a place in a text, from Start up to End.
type Value struct {
	Kind       Kind // String, Number, True, False, Null, BeginObject or BeginArray
	Start, End int
	Chars      int  // of a string: how many characters it has
	Numbered   bool // of a string: it has characters spelled by their numbers, as \u0065
}

// Body returns what stands between the quotes of a string in data.
func (v Value) Body(data []byte) []byte { return data[v.Start+1 : v.End-1] }

// CompilePaths makes Paths of places such as "params.name" or
// "result.tools.*.name": keys divided by dots, * for every element of an array
// or member of an object but those that another path names in its place. A dot that
// is part of a key is written \. there. It panics on an empty or repeated path, for
// paths are written by programmers.
func CompilePaths(paths ...string) *Paths {
	p := &Paths{root: node{path: -1}}
	for i, path := range paths {
		n := &p.root
		for key, rest, more := "", path, true; more; {
			key, rest, more = cutKey(rest)
			n = n.grow(path, key)
		}
		if n.path >= 0 {
			panic(fmt.Sprintf("jsonspan: path %q repeated", path))
		}
		n.path = i
	}
	return p
}

// cutKey takes the first key off a path.
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

func (n *node) grow(path, key string) *node {
	switch {
	case key == "", len(n.keys) == maxKeys:
		panic(fmt.Sprintf("jsonspan: cannot follow path %q", path))
	case key == "*" && n.each == nil:
		n.each = &node{path: -1}
		return n.each
	case key == "*":
		return n.each
	}
	for _, e := range n.keys {
		if e.key == key {
			return e.to
		}
	}
	to := &node{path: -1}
	n.keys = append(n.keys, edge{key, to})
	return to
}

// index returns which of the keys of n this is, or -1.
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

// folded returns which of the keys of n a reader takes this one for that ignores case, or
// null characters at the end, or -1.
func (n *node) folded(key []byte) int {
	if len(n.keys) == 0 {
		return -1
	}
	if bytes.IndexByte(key, '\\') >= 0 {
		key = bytes.TrimRight(AppendText(nil, key), "\x00")
	}
	for i := range n.keys {
		// Only letters beyond ASCII fold to some of another length, which is shorter.
		name := n.keys[i].key
		if len(key) >= len(name) && (key[0]|0x20 == name[0]|0x20 || key[0] >= utf8.RuneSelf) && strings.EqualFold(string(key), name) {
			return i
		}
	}
	return -1
}
