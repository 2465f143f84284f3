package jsoncut

import "strconv"

// A form says how kept parts are joined, and how the parts left out between them are marked.
type form struct {
	separator     string
	before, after string // around a marker
	unit          string // what the marker counts
}

var (
	itemForm   = form{separator: ",", before: `"`, after: `"`, unit: "items"}
	memberForm = form{separator: ",", before: `"`, after: `":null`, unit: "members"}
	lineForm   = form{separator: `\n`, unit: "lines"}
)

// The parts of a marker.
const (
	markerStart = "... ["
	markerOf    = " of "
	markerWord  = " left out"
	markerEnd   = "] ..."
	textUnit    = "characters"
	mediaUnits  = " characters of media"
)

// appendMarker appends the marker for left parts of total that were left out.
func (w *work) appendMarker(dst []byte, left, total int, unit string) []byte {
	dst = append(dst, markerStart...)
	dst = strconv.AppendInt(dst, int64(left), 10)
	dst = append(dst, markerOf...)
	dst = strconv.AppendInt(dst, int64(total), 10)
	dst = append(dst, ' ')
	dst = append(dst, unit...)
	return w.endMarker(dst)
}

// appendMediaMarker appends the marker for media with this number of characters.
func (w *work) appendMediaMarker(dst []byte, chars int) []byte {
	dst = append(dst, markerStart...)
	dst = strconv.AppendInt(dst, int64(chars), 10)
	dst = append(dst, mediaUnits...)
	return w.endMarker(dst)
}

func (w *work) endMarker(dst []byte) []byte {
	dst = append(dst, markerWord...)
	dst = append(dst, w.note...)
	return append(dst, markerEnd...)
}

// markerChars returns the maximum length of a marker for parts of total, in characters.
func (w *work) markerChars(total int, unit string) int {
	return len(markerStart+markerOf+" "+markerWord+markerEnd) + len(unit) + 2*digits(total) + w.noteChars
}

// textMarkerChars returns the maximum length of the marker for a text or media, in
// characters.
func (w *work) textMarkerChars(total int) int {
	media := len(markerStart+mediaUnits+markerWord+markerEnd) + digits(total) + w.noteChars
	return max(media, w.markerChars(total, textUnit))
}

// gapChars returns the maximum length of the marker for parts left out, or 0 without
// markers.
func (w *work) gapChars(f form, total int) int {
	if w.Bare && f != lineForm {
		return 0
	}
	return w.markerChars(total, f.unit) + len(f.before) + len(f.after)
}

func digits(n int) int {
	count := 1
	for ; n > 9; n /= 10 {
		count++
	}
	return count
}
