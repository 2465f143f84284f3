package jsonspan

import (
	"bytes"
	"iter"
)

// A Member is a key and a value of an object.
type Member struct {
	Key        string // decoded, without quotes
	Value      Value
	Start, End int // from the opening quote of the key to the end of the value
}

// Members iterates over the members of the object in data, in order. Offsets are
// relative to data. The iteration stops where data is not a valid object.
func Members(data []byte) iter.Seq[Member] {
	return func(yield func(Member) bool) {
		var v Value
		f, each := finder{data: data}, Search{Found: func(_ int, found Value) { v = found }}
		i := f.skipSpace(0)
		for before := byte('{'); i < len(data) && data[i] == before; before = ',' {
			start := f.skipSpace(i + 1)
			if start == len(data) || data[start] != '"' {
				return
			}
			if i, _, _ = f.text(start); i < 0 {
				return
			}
			key := data[start+1 : i-1]
			if i = f.skipSpace(i); i == len(data) || data[i] != ':' {
				return
			}
			if i = f.value(f.skipSpace(i+1), &anyItem, 1, &each); i < 0 {
				return
			}
			var room [64]byte
			if !yield(Member{Key: string(AppendText(room[:0], key)), Value: v, Start: start, End: i}) {
				return
			}
			i = f.skipSpace(i)
		}
	}
}

// Elements iterates over the elements of the array in data, in order. Offsets are
// relative to data. The iteration stops where data is not a valid array.
func Elements(data []byte) iter.Seq[Value] {
	return func(yield func(Value) bool) {
		var v Value
		f, each := finder{data: data}, Search{Found: func(_ int, found Value) { v = found }}
		i := f.skipSpace(0)
		for before := byte('['); i < len(data) && data[i] == before; before = ',' {
			if i = f.value(f.skipSpace(i+1), &anyItem, 1, &each); i < 0 || !yield(v) {
				return
			}
			i = f.skipSpace(i)
		}
	}
}

// anyItem is the node of each value that [Members] and [Elements] report. It has no
// children, because the values inside are not reported.
var anyItem node

// Remove returns the Edit that removes the member with this key, and one comma, from
// the object data. It reports whether there is such a member. If the key is repeated,
// it removes the first one. The Edits for two keys of an object can overlap: apply
// the first before calling Remove for the second.
func Remove(data []byte, key string) (Edit, bool) {
	var e Edit
	found, before := false, -1
	for m := range Members(data) {
		switch {
		case found:
			e.End = m.Start // removes the comma after it
			return e, true
		case m.Key == key:
			e.Start, e.End, found = m.Start, m.End, true
		default:
			before = m.End
		}
	}
	if found && before >= 0 {
		e.Start = before // removes the comma before it
	}
	return e, found
}

// A Removal removes some members of an object. Call [Removal.Visit] for each member, in order.
type Removal struct {
	edits      []Edit
	removing   bool // start and end are set
	hasKept    bool // keptEnd is set
	start, end int  // adjacent members to remove, not yet in edits
	keptEnd    int  // end of the last member that is kept
}

// Visit tells r the next member of the object, and whether to remove it.
func (r *Removal) Visit(m Member, remove bool) {
	switch {
	case remove && r.removing:
		r.end = m.End
	case remove:
		r.removing, r.start, r.end = true, m.Start, m.End
	default:
		if r.removing {
			r.edits = append(r.edits, Edit{Start: r.start, End: m.Start}) // includes the comma after them
		}
		r.removing, r.hasKept, r.keptEnd = false, true, m.End
	}
}

// Edits returns the Edits that remove the members, with their commas, and append
// add to the object: one or more members such as "k":1, or nothing. The members
// that are kept do not change.
func (r *Removal) Edits(object, add []byte) []Edit {
	edits, at := r.edits, r.keptEnd
	if !r.hasKept {
		at = bytes.IndexByte(object, '{') + 1
	}
	if len(add) > 0 { // must precede the Edit below, which may begin at the same offset
		if r.hasKept {
			add = append([]byte{','}, add...)
		}
		edits = append(edits, Edit{Start: at, End: at, New: add})
	}
	if r.removing {
		if r.hasKept {
			r.start = r.keptEnd // removes the comma before them
		}
		edits = append(edits, Edit{Start: r.start, End: r.end})
	}
	return edits
}

// Append returns the Edit that adds member, such as "k":1, at the end of object,
// with a comma if object is not empty.
func Append(object, member []byte) Edit {
	at := bytes.LastIndexByte(object, '}')
	if before := bytes.TrimRight(object[:at], " \t\r\n"); before[len(before)-1] != '{' {
		at, member = len(before), append([]byte{','}, member...)
	}
	return Edit{Start: at, End: at, New: member}
}

// Insert returns the Edit that adds member, such as "k":1, at the beginning of
// object, with a comma if object is not empty.
func Insert(object, member []byte) Edit {
	at := bytes.IndexByte(object, '{') + 1
	f := finder{data: object}
	if next := f.skipSpace(at); next < len(object) && object[next] != '}' {
		member = append(bytes.Clone(member), ',')
	}
	return Edit{Start: at, End: at, New: member}
}
