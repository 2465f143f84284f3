package jsoncut

import (
	"iter"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// append appends v, cut to limit characters, which must be at least v.hard.
func (w *work) append(dst []byte, v value, limit int) []byte {
	switch {
	case v.chars <= limit:
		return append(dst, w.text[v.start:v.end]...)
	case v.isLine:
		return w.appendText(dst, v.start, v.end, limit)
	case v.node >= 0:
		return w.appendNode(dst, v, limit)
	}
	dst = append(dst, '"')
	start, end, limit := v.start+1, v.end-1, limit-len(`""`)
	switch {
	case v.media:
		dst = w.appendMediaMarker(dst, jsonspan.Count(w.text[start:end]))
	case len(w.hitsIn(start, end)) > 0:
		dst = w.appendLines(dst, start, end, limit)
	default:
		dst = w.appendText(dst, start, end, limit)
	}
	return append(dst, '"')
}

// appendNode appends an object or array that is longer than limit.
func (w *work) appendNode(dst []byte, v value, limit int) []byte {
	n := &w.nodes[v.node]
	count := int(n.count)
	parts := w.parts(v.node)
	open, form, shortest := w.text[n.start], itemForm, len(`0,`)
	media := ""
	if open == '{' {
		form, shortest = memberForm, len(`"":0,`)
		media = w.mediaKey(parts)
	}
	room := limit - len("{}")
	best := w.best(parts, count, v, room/shortest+1)
	for i := range best {
		p := &best[i]
		p.extra = len(",")
		if open == '{' {
			p.extra += utf8.RuneCount(w.text[p.key:p.start])
			if w.text[p.start] == '"' && string(w.text[p.key:p.start-len(":")]) == media {
				p.media, p.most, p.good = true, p.soft, p.soft
			}
		}
	}
	var kept []part
	if open == '{' && len(best) == count && allFit(best, v.within(limit), room) {
		kept = best
	} else {
		kept = w.choose(best, count, form, room)
	}
	dst = append(dst, open)
	dst = w.appendParts(dst, kept, count, form, room)
	return append(dst, w.text[n.end-1])
}

// allFit reports whether all members of an object fit into room, and sets the minimum of
// each to the least that its value needs.
func allFit(members []part, size func(least) int, room int) bool {
	used := -len(",")
	for i := range members {
		p := &members[i]
		p.minimum = size(p.least)
		used += p.minimum + p.extra
	}
	return used <= room
}

// appendLines appends the lines of a string that match the goal best.
func (w *work) appendLines(dst []byte, start, end, limit int) []byte {
	lines, n := w.lines(start, end), 0
	for range lines {
		n++
	}
	best := w.best(lines, n, value{start: start, end: end}, limit/len(`\n`)+1)
	for i := range best {
		best[i].extra = len(`\n`)
	}
	kept := w.choose(best, n, lineForm, limit)
	if len(kept) < 2 {
		return w.appendText(dst, start, end, limit)
	}
	return w.appendParts(dst, kept, n, lineForm, limit)
}

// appendParts appends the kept parts, with markers for the others. n is the number of all parts.
func (w *work) appendParts(dst []byte, kept []part, n int, f form, room int) []byte {
	slices.SortFunc(kept, func(a, b part) int { return a.index - b.index })
	gap := w.gapChars(f, n)
	room += len(f.separator)
	for i, isGap := range gaps(kept, n) {
		if isGap && gap > 0 {
			room -= gap + len(f.separator)
		}
		if i < len(kept) {
			room -= kept[i].extra
		}
	}
	w.share(kept, room)

	first := true
	separate := func() {
		if !first {
			dst = append(dst, f.separator...)
		}
		first = false
	}
	nextIndex, markers := 0, 0
	for i, isGap := range gaps(kept, n) {
		end := n
		if i < len(kept) {
			end = kept[i].index
		}
		if isGap && gap > 0 {
			separate()
			dst = append(dst, f.before...)
			dst = w.appendMarker(dst, end-nextIndex, n, f.unit)
			if markers++; f == memberForm && markers > 1 { // keys must differ
				dst = strconv.AppendInt(append(dst, ' '), int64(markers), 10)
			}
			dst = append(dst, f.after...)
		}
		if i < len(kept) {
			separate()
			p := &kept[i]
			if f == memberForm {
				dst = append(dst, w.text[p.key:p.start]...)
			}
			dst = append(dst, p.short...)
			nextIndex = end + 1
		}
	}
	return dst
}

// gaps reports for each kept part whether parts directly before it are left out, and
// finally whether parts after the last one are. kept is sorted; n is the number of all parts.
func gaps(kept []part, n int) iter.Seq2[int, bool] {
	return func(yield func(int, bool) bool) {
		next := 0
		for i := range kept {
			if !yield(i, kept[i].index > next) {
				return
			}
			next = kept[i].index + 1
		}
		yield(len(kept), n > next)
	}
}

// appendText appends the beginning and the end of a text, with a marker between them.
func (w *work) appendText(dst []byte, start, end, limit int) []byte {
	body := w.text[start:end]
	chars := jsonspan.Count(body)
	room := limit - w.markerChars(chars, textUnit)
	head, tail := headOf(body, room-room/2), tailOf(body, room/2)
	left := chars - jsonspan.Count(head) - jsonspan.Count(tail)
	dst = append(dst, head...)
	dst = w.appendMarker(dst, left, chars, textUnit)
	return append(dst, tail...)
}

// headOf returns the beginning of body, at most n characters of JSON, without splitting an escape.
func headOf(body []byte, n int) []byte {
	end := 0
	for ; n > 0; n-- {
		_, size := utf8.DecodeRune(body[end:])
		end += size
	}
	if start, inside := escapeAround(body, end); inside > start {
		end = start
	}
	return body[:end]
}

// tailOf returns the end of body, at most n characters of JSON, without splitting an escape.
func tailOf(body []byte, n int) []byte {
	start := len(body)
	for ; n > 0; n-- {
		_, size := utf8.DecodeLastRune(body[:start])
		start -= size
	}
	if from, end := escapeAround(body, start); end > from {
		start = end
	}
	return body[start:]
}

// escapeAround returns the start and end of the escape that offset i would split, or i
// twice if it splits none.
func escapeAround(body []byte, i int) (start, end int) {
	for start := i - 1; start >= max(i-5, 0); start-- {
		if body[start] != '\\' {
			continue
		}
		before := start
		for before > 0 && body[before-1] == '\\' {
			before--
		}
		if (start-before)%2 != 0 {
			continue // an escaped backslash
		}
		end := start + 2
		if end-1 < len(body) && body[end-1] == 'u' {
			end = start + 6
		}
		if i < end {
			return start, end
		}
	}
	return i, i
}

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
	chars := w.markerChars(total, f.unit) + len(f.before) + len(f.after)
	if f == memberForm {
		chars += len(" ") + digits(total) // number of the marker
	}
	return chars
}

func digits(n int) int {
	count := 1
	for ; n > 9; n /= 10 {
		count++
	}
	return count
}
