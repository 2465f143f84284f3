package jsonspan

import (
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
