package jsonspan

import (
	"bufio"
	"bytes"
	"io"
	"slices"
)

// An Edit replaces the bytes from Start to End with New.
type Edit struct {
	Start, End int
	New        []byte
}

// Splice writes src to w with the edits applied. The edits must be in ascending
// order and must not overlap, else Splice panics.
func Splice(w io.Writer, src []byte, edits []Edit) error {
	_, err := NewReader(src, edits).WriteTo(w)
	return err
}

// A Reader reads a text with edits applied, without building the edited text in
// memory.
type Reader struct {
	src   []byte
	edits []Edit
	next  []byte // bytes to read before the rest
	pos   int    // offset in src after next
}

// NewReader returns a Reader of src. The edits are as for [Splice]. Neither they nor
// src may change while the Reader is in use.
func NewReader(src []byte, edits []Edit) *Reader { return &Reader{src: src, edits: edits} }

// Len returns how many bytes are left to read.
func (r *Reader) Len() int {
	n := len(r.next) + len(r.src) - r.pos
	for _, e := range r.edits {
		n += len(e.New) - (e.End - e.Start)
	}
	return n
}

// advance sets next to the next bytes and reports whether there are any.
func (r *Reader) advance() bool {
	for len(r.next) == 0 {
		switch {
		case len(r.edits) == 0 && r.pos == len(r.src):
			return false
		case len(r.edits) == 0:
			r.next, r.pos = r.src[r.pos:], len(r.src)
		case r.edits[0].Start != r.pos:
			r.next, r.pos = r.src[r.pos:r.edits[0].Start], r.edits[0].Start
		default:
			r.next, r.pos, r.edits = r.edits[0].New, r.edits[0].End, r.edits[1:]
		}
	}
	return true
}

// Read implements [io.Reader].
func (r *Reader) Read(p []byte) (n int, err error) {
	for n < len(p) && r.advance() {
		copied := copy(p[n:], r.next)
		r.next = r.next[copied:]
		n += copied
	}
	if n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// WriteTo implements [io.WriterTo].
func (r *Reader) WriteTo(w io.Writer) (written int64, err error) {
	for r.advance() {
		n, err := w.Write(r.next)
		r.next = r.next[n:]
		written += int64(n)
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// Spliced returns text with the edits applied, or text itself if there are none. It
// sorts the edits. It panics if they overlap.
func Spliced(text []byte, edits ...Edit) []byte {
	if len(edits) == 0 {
		return text
	}
	slices.SortStableFunc(edits, func(a, b Edit) int { return a.Start - b.Start })
	size := len(text)
	for _, e := range edits {
		size += len(e.New) - (e.End - e.Start)
	}
	spliced, at := make([]byte, 0, size), 0
	for _, e := range edits {
		spliced = append(append(spliced, text[at:e.Start]...), e.New...)
		at = e.End
	}
	return append(spliced, text[at:]...)
}

// Moved returns e shifted by offset: an edit of a part of a text becomes an edit of the whole.
func (e Edit) Moved(offset int) Edit {
	e.Start += offset
	e.End += offset
	return e
}

// A Rewriter forwards a JSON text as it arrives and replaces the values at some
// paths. It holds only an unfinished token at one of the paths. Like a [Watcher] it
// accepts repeated keys and replaces each of their values.
//
// If the text turns out not to be JSON, it is forwarded unchanged from the error on.
type Rewriter struct {
	walk     walk
	replace  func(path int, k Kind, literal []byte) []byte
	out      bufio.Writer // collects short writes; empty after each Write
	held     int          // how many bytes of walk.token are not yet written
	commaDue bool         // a comma must be written if the object that began has members
	err      error        // error of out
}

// maxRewritten is the largest value, in bytes, that can be replaced, and so the most
// that is held.
const maxRewritten = 64 << 10

// Rewrite returns a Rewriter that writes to w. It calls replace for each string,
// number or literal at one of the paths, with the bytes of the value, and writes
// the result of replace instead, or the value unchanged if that is nil. The bytes
// of the value are valid until replace returns. The result must stay valid until
// replace is called again.
//
// For an object or array, replace is called with [BeginObject] or [BeginArray] and
// the opening brace or bracket, and only that is replaced. To insert members,
// replace returns the brace and the members with a comma at the end, which is
// dropped if no members follow. The values in it come next. Values of more than
// 64 KiB are forwarded unchanged, without a call.
func (p *Paths) Rewrite(w io.Writer, replace func(path int, k Kind, literal []byte) []byte) *Rewriter {
	r := &Rewriter{walk: walk{root: &p.root, limit: maxRewritten}, replace: replace}
	r.Reset(w)
	return r
}

// Reset prepares r for another text, which it writes to w.
func (r *Rewriter) Reset(w io.Writer) {
	r.walk.reset()
	r.out.Reset(w)
	r.held, r.commaDue, r.err = 0, false, nil
}

// Write reads the next piece of the text and writes it, except a value at its end
// that may continue in the next piece. An error is the error of the underlying
// writer. Later calls return it again.
func (r *Rewriter) Write(piece []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	w := &r.walk
	begin, rest := w.pieceStart, 0 // piece[rest:] is not yet written
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
		r.emit(piece[rest:max(int(start-begin), rest)])
		if k == BeginObject {
			value, r.commaDue = bytes.CutSuffix(value, []byte{','})
		}
		_, _ = r.out.Write(value)
		rest, r.held = int(end-begin), 0
	}
}

// suspend writes piece[rest:] up to an unfinished value, which it holds.
func (r *Rewriter) suspend(piece []byte, rest int) {
	if r.walk.inValue() && r.walk.scanner.Err() == nil {
		if start, end := r.walk.scanner.Span(); end-start <= maxRewritten {
			length := int(end - start)
			r.emit(piece[rest : len(piece)-(length-r.held)])
			r.held = length
			return
		}
	}
	r.release()
	r.emit(piece[rest:])
}

// release writes the held bytes unchanged.
func (r *Rewriter) release() {
	r.emit(r.walk.token[:r.held])
	r.held = 0
}

// emit writes b, and before it the comma that is due if members follow.
func (r *Rewriter) emit(b []byte) {
	if r.commaDue {
		next := bytes.TrimLeft(b, " \t\r\n")
		_, _ = r.out.Write(b[:len(b)-len(next)])
		b = next
		if len(b) > 0 {
			r.commaDue = false
			if b[0] != '}' {
				_ = r.out.WriteByte(',')
			}
		}
	}
	_, _ = r.out.Write(b) // Flush returns the error
}

// Close ends the text and writes the held bytes. It returns the error of the
// underlying writer, or says why the text is invalid.
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

// AppendLine appends a JSON text to dst as one line, without a line break at the
// end. Line breaks in valid JSON are always between tokens, so they become spaces.
func AppendLine(dst, text []byte) []byte {
	start := len(dst)
	dst = append(dst, text...)
	for _, lineBreak := range []byte("\r\n") {
		for line := dst[start:]; ; {
			i := bytes.IndexByte(line, lineBreak)
			if i < 0 {
				break
			}
			line[i] = ' '
			line = line[i+1:]
		}
	}
	return dst
}
