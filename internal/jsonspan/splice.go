package jsonspan

import "io"

// An Edit puts New in the place of the bytes from Start to End.
type Edit struct {
	Start, End int
	New        []byte
}

// Splice writes src to w with the edits made. Edits are in ascending order and
// do not overlap; anything else is a mistake of the caller and panics.
func Splice(w io.Writer, src []byte, edits []Edit) error {
	at := 0
	for _, e := range edits {
		if e.Start != at {
			if _, err := w.Write(src[at:e.Start]); err != nil {
				return err
			}
		}
		if _, err := w.Write(e.New); err != nil {
			return err
		}
		at = e.End
	}
	if at == len(src) {
		return nil
	}
	_, err := w.Write(src[at:])
	return err
}
