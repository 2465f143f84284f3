package jsonspan

import (
	"bytes"
	"fmt"
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
