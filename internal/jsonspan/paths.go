package jsonspan

import (
	"fmt"
	"math"
	"strings"
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
	each *node // every element of an array, every member of an object
}

// maxKeys is how many keys of one object paths may name: a bit each in frame.seen.
const maxKeys = 64

type edge struct {
	key string
	to  *node
}

// A Value is a place in a text, from Start up to End.
type Value struct {
	Kind       Kind // String, Number, True, False, Null, BeginObject or BeginArray
	Start, End int
	Chars      int // of a string: how many characters it has
}

// Body returns what stands between the quotes of a string in data.
func (v Value) Body(data []byte) []byte { return data[v.Start+1 : v.End-1] }

// CompilePaths makes Paths of places such as "params.name" or
// "result.tools.*.name": keys divided by dots, * for every element of an array
// or member of an object. It panics on an empty or repeated path and on a key
// beside *, for paths are written by programmers.
func CompilePaths(paths ...string) *Paths {
	p := &Paths{root: node{path: -1}}
	for i, path := range paths {
		n := &p.root
		for _, key := range strings.Split(path, ".") {
			n = n.grow(path, key)
		}
		if n.path >= 0 {
			panic(fmt.Sprintf("jsonspan: path %q repeated", path))
		}
		n.path = i
	}
	return p
}

func (n *node) grow(path, key string) *node {
	switch {
	case key == "", key == "*" && len(n.keys) > 0, key != "*" && n.each != nil, len(n.keys) == maxKeys:
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

// A frame is an open container on the way of some path.
type frame struct {
	node  *node
	start int
	seen  uint64 // which of node.keys this object has had
}

// Find reads data and calls found for each value that stands at one of the
// paths, with the index of that path, in the order in which the values end.
//
// An object that repeats a key which a path names is refused with [ErrDuplicate]:
// two readers of it could disagree about what it says. A text cut short gives
// io.ErrUnexpectedEOF after what was found in it. So until Find returns nil the
// values found are those of a text that may yet turn out to be invalid.
func (p *Paths) Find(data []byte, found func(path int, v Value)) error {
	var s Scanner
	s.Feed(data)
	s.Finish()
	var room [8]frame
	frames := room[:0]
	at := &p.root // where the next value stands, nil if nobody asks
	next := func() {
		at = nil
		if len(frames) > 0 {
			at = frames[len(frames)-1].node.each
		}
	}
	for {
		k := s.Next()
		start, end := s.Span()
		switch k {
		case Done:
			return nil
		case Invalid:
			return s.Err()
		case Key:
			top := &frames[len(frames)-1]
			next()
			for i, e := range top.node.keys {
				if !TextIs(data[start+1:end-1], e.key) {
					continue
				}
				if top.seen&(1<<i) != 0 {
					return &Error{Offset: start, Err: ErrDuplicate}
				}
				top.seen |= 1 << i
				at = e.to
				break
			}
		case BeginObject, BeginArray:
			if at == nil {
				s.Report(s.Depth(), math.MaxInt) // straight to its end
				continue
			}
			frames = append(frames, frame{node: at, start: int(start)})
			next()
			if at == nil && (k == BeginArray || len(frames[len(frames)-1].node.keys) == 0) {
				s.Report(s.Depth(), math.MaxInt)
			}
		case EndObject, EndArray:
			s.ReportAll()
			if len(frames) > s.Depth() {
				f := frames[len(frames)-1]
				frames = frames[:len(frames)-1]
				if f.node.path >= 0 {
					found(f.node.path, Value{Kind: begin(k), Start: f.start, End: int(end)})
				}
			}
			next()
		default:
			if at != nil && at.path >= 0 {
				found(at.path, Value{k, int(start), int(end), s.Chars()})
			}
			next()
		}
	}
}

func begin(end Kind) Kind {
	if end == EndObject {
		return BeginObject
	}
	return BeginArray
}
