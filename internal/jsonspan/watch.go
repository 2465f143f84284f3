package jsonspan

import "math"

// A Watcher finds values in a text as it arrives, without holding it: strings,
// numbers and literals of up to 256 bytes; of others, that they are there. Unlike [Paths.Find] it does not mind
// repeated keys. What it finds before the end of a text that turns out to be no
// JSON has been found nevertheless.
type Watcher struct {
	walk  walk
	found func(path int, k Kind, literal []byte)
}

const maxWatched = 256

// Watch returns a Watcher that calls found for each value that stands at one of
// the paths, with the bytes of the value. They are good until found returns. For a
// member it is called before that, when its key has come, with [Key] and no bytes.
func (p *Paths) Watch(found func(path int, k Kind, literal []byte)) *Watcher {
	w := &Watcher{walk: walk{root: &p.root, limit: maxWatched}, found: found}
	w.Reset()
	return w
}

// Reset makes w ready for another text.
func (w *Watcher) Reset() { w.walk.reset() }

// Write takes the next piece of the text. It never fails: a text that is no JSON
// has nothing more to find.
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

// Gap tells w that n bytes follow which belong to no value, as [Scanner.Gap] does.
func (w *Watcher) Gap(n int) {
	w.walk.scanner.Gap(n)
	w.walk.read += int64(n)
}

// End tells w that the text is complete, and reports whether it was JSON.
func (w *Watcher) End() bool { return w.walk.end() == nil }

// A walk follows a text along paths as it arrives. Of the text it keeps only the
// token that a piece ended in, and of that no more than a limit.
type walk struct {
	root    *node
	limit   int
	scanner Scanner
	nodes   []*node // those of the open containers that paths lead through
	at      *node   // where the next value stands, nil if nobody asks
	read    int64   // where the piece being read begins
	token   []byte  // what came before it of the token it begins in, as far as it is kept
}

func (w *walk) reset() {
	w.scanner.Uncounted = true
	w.scanner.Reset()
	w.nodes, w.at = w.nodes[:0], w.root
	w.read, w.token = 0, w.token[:0]
}

// next reads on in the piece that the scanner was fed, up to a value that stands at
// one of the paths, or the key of a member that does, or [More], [Done] or
// [Invalid]. It returns the bytes of a value, of a container just the first, or nil
// if they are too many.
func (w *walk) next(piece []byte) (path int, k Kind, literal []byte) {
	s := &w.scanner
	for {
		k = s.Next()
		switch k {
		case More:
			w.keep(piece)
			w.read += int64(len(piece))
			return -1, k, nil
		case Done, Invalid:
			return -1, k, nil
		case Key:
			w.pass()
			if key := w.literal(piece); len(key) > 2 {
				top := w.nodes[len(w.nodes)-1]
				if i := top.index(key[1 : len(key)-1]); i >= 0 {
					w.at = top.keys[i].to
					if w.at.path >= 0 {
						return w.at.path, k, nil
					}
				}
			}
		case BeginObject, BeginArray:
			at := w.at
			if at == nil || at.each == nil && (k == BeginArray || len(at.keys) == 0) {
				s.Report(s.Depth(), math.MaxInt) // straight to its end
				w.at = nil
			} else {
				w.nodes = append(w.nodes, at)
				w.pass()
			}
			if at != nil && at.path >= 0 {
				return at.path, k, w.literal(piece)
			}
		case EndObject, EndArray:
			s.ReportAll()
			w.nodes = w.nodes[:min(len(w.nodes), s.Depth())]
			w.pass()
		default:
			at := w.at
			w.pass()
			if at != nil && at.path >= 0 {
				return at.path, k, w.literal(piece)
			}
		}
	}
}

// pass moves behind a value: to where the next one stands if it is an element.
func (w *walk) pass() {
	w.at = nil
	if len(w.nodes) > 0 {
		w.at = w.nodes[len(w.nodes)-1].each
	}
}

// end tells w that the text is complete.
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

// literal returns the bytes of the latest token, which ends in this piece, or nil
// if they are too many.
func (w *walk) literal(piece []byte) []byte {
	start, end := w.scanner.Span()
	switch {
	case end-start > int64(w.limit):
		return nil
	case start >= w.read:
		return piece[start-w.read : end-w.read : end-w.read]
	case end <= w.read: // a number that a gap or the end of a piece has ended
		return w.token
	}
	w.token = append(w.token, piece[:end-w.read]...)
	return w.token
}

// keep keeps what has come of an unfinished token, if somebody will ask for it.
func (w *walk) keep(piece []byte) {
	if w.scanner.state != inKey && !w.inValue() {
		return
	}
	start, _ := w.scanner.Span()
	if start >= w.read {
		w.token = w.token[:0]
	}
	part := piece[max(start-w.read, 0):]
	w.token = append(w.token, part[:min(len(part), w.limit-len(w.token))]...)
}

// inValue reports whether the bytes fed so far end in a value that stands at one of
// the paths.
func (w *walk) inValue() bool {
	return w.at != nil && w.at.path >= 0 && w.scanner.InToken() && w.scanner.state != inKey
}
