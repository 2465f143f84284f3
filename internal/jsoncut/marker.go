package jsoncut

import "strconv"

// A form says how parts that are kept are put together, and how those between them that
// are left out are marked.
type form struct {
	separator     string
	before, after string // around a marker
	unit          string // what is counted in it
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

// appendMarker appends the marker of parts that were left out of so many.
func (w *work) appendMarker(dst []byte, left, of int, unit string) []byte {
	dst = append(dst, markerStart...)
	dst = strconv.AppendInt(dst, int64(left), 10)
	dst = append(dst, markerOf...)
	dst = strconv.AppendInt(dst, int64(of), 10)
	dst = append(dst, ' ')
	dst = append(dst, unit...)
	return w.endMarker(dst)
}

// appendMediaMarker appends the marker of media of so many characters.
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

// markerChars returns how many characters a marker has at most.
func (w *work) markerChars(of int, unit string) int {
	return len(markerStart+markerOf+" "+markerWord+markerEnd) + len(unit) + 2*digits(of) + w.noteChars
}

// textMarkerChars returns how many characters the marker of a text or of media has at
// most.
func (w *work) textMarkerChars(of int) int {
	media := len(markerStart+mediaUnits+markerWord+markerEnd) + digits(of) + w.noteChars
	return max(media, w.markerChars(of, textUnit))
}

// gapChars returns how many characters a marker in the place of parts has at most.
func (w *work) gapChars(f form, of int) int {
	if w.Bare && f != lineForm {
		return 0
	}
	return w.markerChars(of, f.unit) + len(f.before) + len(f.after)
}

func digits(n int) int {
	count := 1
	for ; n > 9; n /= 10 {
		count++
	}
	return count
}
