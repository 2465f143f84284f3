package jsonspan

import "math"

// A Watcher finds values in a text as it arrives, without holding it: strings,
// numbers and literals of up to 256 bytes; of others, that they are there. Unlike [Paths.Find] it does not mind
// repeated keys. What it finds before the end of a text that turns out to be no
// JSON has been found nevertheless.
type Watcher struct {
	paths   *Paths
	found   func(path int, k Kind, literal []byte)
	scanner Scanner
	nodes   []*node // those of the open containers that paths lead through
	at      *node   // where the next value stands, nil if nobody asks
	read    int64   // where the piece being read begins
	token   []byte  // what came before it of an unfinished token, as far as it is kept
}

const maxWatched = 256

// Watch returns a Watcher that calls found for each value that stands at one of
// the paths, with the bytes of the value. They are good until found returns. For a
// member it is called before that, when its key has come, with [Key] and no bytes.
func (p *Paths) Watch(found func(path int, k Kind, literal []byte)) *Watcher {
	w := &Watcher{paths: p, found: found}
	w.Reset()
	return w
}

// Reset makes w ready for another text.
func (w *Watcher) Reset() {
	w.scanner.Reset()
	w.nodes, w.at = w.nodes[:0], &w.paths.root
	w.read, w.token = 0, w.token[:0]
}

// Write takes the next piece of the text. It never fails: a text that is no JSON
// has nothing more to find.
func (w *Watcher) Write(piece []byte) (int, error) {
	s := &w.scanner
	s.Feed(piece)
	for {
		k := s.Next()
		switch k {
		case More:
			w.keep(piece)
			w.read += int64(len(piece))
			return len(piece), nil
		case Done, Invalid:
			return len(piece), nil
		case Key:
			w.next()
			if key := w.literal(piece); len(key) > 2 {
				top := w.nodes[len(w.nodes)-1]
				if i := top.index(key[1 : len(key)-1]); i >= 0 {
					w.at = top.keys[i].to
					if w.at.path >= 0 {
						w.found(w.at.path, Key, nil)
					}
				}
			}
		case BeginObject, BeginArray:
			if w.at == nil {
				s.Report(s.Depth(), math.MaxInt) // straight to its end
				break
			}
			w.nodes = append(w.nodes, w.at)
			w.next()
		case EndObject, EndArray:
			s.ReportAll()
			w.nodes = w.nodes[:min(len(w.nodes), s.Depth())]
			w.next()
		default:
			if w.at != nil && w.at.path >= 0 {
				if literal := w.literal(piece); literal != nil {
					w.found(w.at.path, k, literal)
				}
			}
			w.next()
		}
		w.token = w.token[:0]
	}
}

// next moves behind a value: to where the next one stands if it is an element.
func (w *Watcher) next() {
	w.at = nil
	if len(w.nodes) > 0 {
		w.at = w.nodes[len(w.nodes)-1].each
	}
}

// Gap tells w that n bytes follow which belong to no value, as [Scanner.Gap] does.
func (w *Watcher) Gap(n int) {
	w.scanner.Gap(n)
	w.read += int64(n)
}

// End tells w that the text is complete, and reports whether it was JSON.
func (w *Watcher) End() bool {
	w.scanner.Feed(nil)
	w.scanner.Finish()
	for {
		switch w.scanner.Next() {
		case Done:
			return true
		case Invalid, More:
			return false
		}
	}
}

// literal returns the bytes of the latest token, which ends in this piece, or nil
// if they are too many.
func (w *Watcher) literal(piece []byte) []byte {
	start, end := w.scanner.Span()
	switch {
	case end-start > maxWatched:
		return nil
	case end <= w.read: // a number that a gap has ended
		return w.token
	case start >= w.read:
		return piece[start-w.read : end-w.read]
	}
	w.token = append(w.token, piece[:end-w.read]...)
	return w.token
}

// keep keeps what has come of an unfinished token.
func (w *Watcher) keep(piece []byte) {
	if !w.scanner.InToken() {
		return
	}
	start, _ := w.scanner.Span()
	part := piece[max(start-w.read, 0):]
	w.token = append(w.token, part[:min(len(part), maxWatched-len(w.token))]...)
}
