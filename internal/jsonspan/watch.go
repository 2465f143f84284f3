package jsonspan

import "math"

// A Watcher finds values in a text as it arrives, without holding the text. It reports
// strings, numbers and literals of up to 256 bytes, and the keys of all members at
// its paths. Unlike [Paths.Find] it accepts repeated keys. It may report values of a
// text that later turns out not to be JSON.
type Watcher struct {
	walk  walk
	found func(path int, k Kind, literal []byte)
}

// maxWatched is the largest value, in bytes, that a Watcher reports.
const maxWatched = 256

// Watch returns a Watcher that calls found for each value at one of the paths, with
// the bytes of the value, which are valid until found returns. For a member, found
// is first called with [Key] and no bytes, when the key is complete.
func (p *Paths) Watch(found func(path int, k Kind, literal []byte)) *Watcher {
	w := &Watcher{walk: walk{root: &p.root, limit: maxWatched}, found: found}
	w.Reset()
	return w
}

// Reset prepares w for another text.
func (w *Watcher) Reset() { w.walk.reset() }

// Write reads the next piece of the text. It never fails: nothing more is found after
// an error in the text.
func (w *Watcher) Write(piece []byte) (int, error) {
	w.walk.scanner.Feed(piece)
	for {
		path, k, literal := w.walk.next(piece)
		switch k {
		case More, Done, Invalid:
			return len(piece), nil
		case Key:
			w.found(path, Key, nil)
		case BeginObject, BeginArray:
		default:
			if literal != nil {
				w.found(path, k, literal)
			}
		}
	}
}

// Gap announces n bytes that are not part of the text, see [Scanner.Gap].
func (w *Watcher) Gap(n int) {
	w.walk.scanner.Gap(n)
	w.walk.pieceStart += int64(n)
}

// End marks the end of the text and reports whether it was valid JSON.
func (w *Watcher) End() bool { return w.walk.end() == nil }

// A walk follows paths through a text as it arrives. It keeps only the token in which a
// piece ended, up to limit bytes.
type walk struct {
	root       *node
	limit      int
	scanner    Scanner
	nodes      []*node // nodes of the open containers that paths lead through
	current    *node   // node of the next value, nil if no path leads there
	pieceStart int64   // offset of the current piece
	token      []byte  // bytes of an unfinished token from earlier pieces
}

func (w *walk) reset() {
	w.scanner.SkipCounting = true
	w.scanner.Reset()
	w.nodes, w.current = w.nodes[:0], w.root
	w.pieceStart, w.token = 0, w.token[:0]
}

// next reads on in the piece that the scanner was fed, up to a value at one of the
// paths, the key of such a value, or [More], [Done] or [Invalid]. It returns the bytes
// of the value (only the first one of a container), or nil if they exceed the limit.
func (w *walk) next(piece []byte) (path int, k Kind, literal []byte) {
	s := &w.scanner
	for {
		k = s.Next()
		switch k {
		case More:
			w.keepToken(piece)
			w.pieceStart += int64(len(piece))
			return -1, k, nil
		case Done, Invalid:
			return -1, k, nil
		case Key:
			w.leaveValue()
			if key := w.literal(piece); len(key) > 2 {
				top := w.nodes[len(w.nodes)-1]
				if i := top.index(key[1 : len(key)-1]); i >= 0 {
					w.current = top.keys[i].node
					if w.current.path >= 0 {
						return w.current.path, k, nil
					}
				}
			}
		case BeginObject, BeginArray:
			n := w.current
			if n == nil || n.each == nil && (k == BeginArray || len(n.keys) == 0) {
				s.Report(s.Depth(), math.MaxInt) // skip to its end
				w.current = nil
			} else {
				w.nodes = append(w.nodes, n)
				w.leaveValue()
			}
			if n != nil && n.path >= 0 {
				return n.path, k, w.literal(piece)
			}
		case EndObject, EndArray:
			s.ReportAll()
			w.nodes = w.nodes[:min(len(w.nodes), s.Depth())]
			w.leaveValue()
		default:
			n := w.current
			w.leaveValue()
			if n != nil && n.path >= 0 {
				return n.path, k, w.literal(piece)
			}
		}
	}
}

// leaveValue sets current for the next element or member. The key of a member may change it.
func (w *walk) leaveValue() {
	w.current = nil
	if len(w.nodes) > 0 {
		w.current = w.nodes[len(w.nodes)-1].each
	}
}

// end marks the end of the text and returns its error, if any.
func (w *walk) end() error {
	w.scanner.Feed(nil)
	w.scanner.Finish()
	for {
		switch w.scanner.Next() {
		case Done:
			return nil
		case Invalid:
			return w.scanner.Err()
		}
	}
}

// literal returns the bytes of the latest token, which ends in this piece, or nil if
// they exceed the limit.
func (w *walk) literal(piece []byte) []byte {
	start, end := w.scanner.Span()
	switch {
	case end-start > int64(w.limit):
		return nil
	case start >= w.pieceStart:
		return piece[start-w.pieceStart : end-w.pieceStart : end-w.pieceStart]
	case end <= w.pieceStart: // a number that ended with a gap or an earlier piece
		return w.token
	}
	w.token = append(w.token, piece[:end-w.pieceStart]...)
	return w.token
}

// keepToken keeps the bytes of an unfinished key, or of an unfinished value at one of the paths.
func (w *walk) keepToken(piece []byte) {
	if w.scanner.state != inKey && !w.inValue() {
		return
	}
	start, _ := w.scanner.Span()
	if start >= w.pieceStart {
		w.token = w.token[:0]
	}
	part := piece[max(start-w.pieceStart, 0):]
	w.token = append(w.token, part[:min(len(part), w.limit-len(w.token))]...)
}

// inValue reports whether the bytes fed so far end inside a value at one of the paths.
func (w *walk) inValue() bool {
	return w.current != nil && w.current.path >= 0 && w.scanner.InToken() && w.scanner.state != inKey
}
