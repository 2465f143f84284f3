package jsonspan

import (
	"io"
	"slices"
)

// An Edit puts New in the place of the bytes from Start to End.
type Edit struct {
	Start, End int
	New        []byte
}

// Splice writes src to w with the edits made. Edits are in ascending order and
// do not overlap; anything else is a mistake of the caller and panics.
func Splice(w io.Writer, src []byte, edits []Edit) error {
	_, err := NewReader(src, edits).WriteTo(w)
	return err
}

// A Reader reads a text with edits made, without ever putting it together: what
// is not edited is never copied but to the reader's caller.
type Reader struct {
	src   []byte
	edits []Edit
	next  []byte // what comes before anything else
	at    int    // the place in src after next
}

// NewReader returns a Reader. The edits are as for [Splice], and neither they nor
// src may change while it is used.
func NewReader(src []byte, edits []Edit) *Reader { return &Reader{src: src, edits: edits} }

// Len returns how many bytes are left to read.
func (r *Reader) Len() int {
	n := len(r.next) + len(r.src) - r.at
	for _, e := range r.edits {
		n += len(e.New) - (e.End - e.Start)
	}
	return n
}

// advance makes next the next bytes, if there are any.
func (r *Reader) advance() bool {
	for len(r.next) == 0 {
		switch {
		case len(r.edits) == 0 && r.at == len(r.src):
			return false
		case len(r.edits) == 0:
			r.next, r.at = r.src[r.at:], len(r.src)
		case r.edits[0].Start != r.at:
			r.next, r.at = r.src[r.at:r.edits[0].Start], r.edits[0].Start
		default:
			r.next, r.at, r.edits = r.edits[0].New, r.edits[0].End, r.edits[1:]
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

// Spliced returns a text with edits made, which may come in any order and are put in
// order. Edits that overlap are a mistake of the caller and panic.
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

// Moved returns an edit of a part of a text as one of the whole text.
func (e Edit) Moved(by int) Edit {
	e.Start += by
	e.End += by
	return e
}
