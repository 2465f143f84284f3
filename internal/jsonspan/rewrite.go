package jsonspan

import (
	"bufio"
	"bytes"
	"io"
)

// A Rewriter passes a JSON text on as it arrives, with the values at some paths
// replaced. It holds nothing but an unfinished token at one of the paths. Like a
// [Watcher] it does not mind repeated keys: each of their values is replaced.
//
// A text that turns out to be no JSON passes on unchanged from where it goes wrong.
type Rewriter struct {
	walk    walk
	replace func(path int, k Kind, literal []byte) []byte
	out     bufio.Writer // gathers what is short, and is empty between pieces
	held    int          // how many of the bytes that walk keeps are still to be given out
	comma   bool         // is due, if the object that was begun has members
	err     error        // of out
}

// maxRewritten is the most bytes a value may have to be replaced, and so the most
// that is held.
const maxRewritten = 64 << 10

// Rewrite returns a Rewriter that writes to w. It calls replace for each string,
// number or literal that stands at one of the paths, with the bytes of the value,
// and puts in its place what that returns, or leaves it as it is if that is nil. The
// bytes of the value are good until replace returns, and those it returns must be
// until it is called again.
//
// For an object or array replace is called with [BeginObject] or [BeginArray] and
// the opening brace or bracket, which is all that is replaced: members can be put
// behind the brace, with a comma at the end, which is left out if none follow. The
// values in it are next. A value of more than 64 KiB passes unchanged,
// without a call.
func (p *Paths) Rewrite(w io.Writer, replace func(path int, k Kind, literal []byte) []byte) *Rewriter {
	r := &Rewriter{walk: walk{root: &p.root, limit: maxRewritten}, replace: replace}
	r.Reset(w)
	return r
}

// Reset makes r ready for another text, which goes to w.
func (r *Rewriter) Reset(w io.Writer) {
	r.walk.reset()
	r.out.Reset(w)
	r.held, r.comma, r.err = 0, false, nil
}

// Write takes the next piece of the text and gives it out, but for a value at its
// end that may go on in the next one. Its error is that of the writer behind it, and
// stays.
func (r *Rewriter) Write(piece []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	w := &r.walk
	begin, rest := w.read, 0 // of piece, rest and on are to be given out
	w.scanner.Feed(piece)
	for {
		path, k, literal := w.next(piece)
		switch k {
		case More, Done, Invalid:
			r.suspend(piece, rest)
			if r.err = r.out.Flush(); r.err != nil {
				return 0, r.err
			}
			return len(piece), nil
		case Key:
			continue
		}
		var value []byte
		if literal != nil {
			value = r.replace(path, k, literal)
		}
		if value == nil {
			r.release()
			continue
		}
		start, end := w.scanner.Span()
		r.give(piece[rest:max(int(start-begin), rest)])
		if k == BeginObject {
			value, r.comma = bytes.CutSuffix(value, []byte{','})
		}
		_, _ = r.out.Write(value)
		rest, r.held = int(end-begin), 0
	}
}

// suspend gives out a piece from rest on, up to a value that is to be held.
func (r *Rewriter) suspend(piece []byte, rest int) {
	if r.walk.inValue() && r.walk.scanner.Err() == nil {
		if start, end := r.walk.scanner.Span(); end-start <= maxRewritten {
			length := int(end - start)
			r.give(piece[rest : len(piece)-(length-r.held)])
			r.held = length
			return
		}
	}
	r.release()
	r.give(piece[rest:])
}

// release gives out what is held, as it is.
func (r *Rewriter) release() {
	r.give(r.walk.token[:r.held])
	r.held = 0
}

func (r *Rewriter) give(b []byte) {
	if r.comma {
		next := bytes.TrimLeft(b, " \t\r\n")
		_, _ = r.out.Write(b[:len(b)-len(next)])
		if b = next; len(b) > 0 {
			if r.comma = false; b[0] != '}' {
				_ = r.out.WriteByte(',')
			}
		}
	}
	_, _ = r.out.Write(b) // the error comes again from Flush
}

// Close tells r that the text is complete and gives out what is held. Its error is
// that of the writer or says what is wrong with the text.
func (r *Rewriter) Close() error {
	if r.err != nil {
		return r.err
	}
	invalid := r.walk.end()
	r.release()
	if r.err = r.out.Flush(); r.err != nil {
		return r.err
	}
	return invalid
}
