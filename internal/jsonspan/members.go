package jsonspan

import (
	"bytes"
	"iter"
)

// A Member is a key and a value of an object.
type Member struct {
	Key        string // what the key stands for, without quotes and escapes
	Value      Value
	Start, End int // from the opening quote of the key to the end of the value
}

// Members goes through the members of the object that data is, in order. Offsets
// are those in data. It ends early where data is no object.
func Members(data []byte) iter.Seq[Member] {
	return func(yield func(Member) bool) {
		var v Value
		f, each := finder{data: data}, Search{Found: func(_ int, found Value) { v = found }}
		i := f.space(0)
		for before := byte('{'); i < len(data) && data[i] == before; before = ',' {
			start := f.space(i + 1)
			if start == len(data) || data[start] != '"' {
				return
			}
			if i, _, _ = f.text(start); i < 0 {
				return
			}
			key := data[start+1 : i-1]
			if i = f.space(i); i == len(data) || data[i] != ':' {
				return
			}
			if i = f.value(f.space(i+1), &item, 1, &each); i < 0 {
				return
			}
			var room [64]byte
			if !yield(Member{Key: string(AppendText(room[:0], key)), Value: v, Start: start, End: i}) {
				return
			}
			i = f.space(i)
		}
	}
}

// Elements goes through the elements of the array that data is, as [Members] goes
// through an object.
func Elements(data []byte) iter.Seq[Value] {
	return func(yield func(Value) bool) {
		var v Value
		f, each := finder{data: data}, Search{Found: func(_ int, found Value) { v = found }}
		i := f.space(0)
		for before := byte('['); i < len(data) && data[i] == before; before = ',' {
			if i = f.value(f.space(i+1), &item, 1, &each); i < 0 || !yield(v) {
				return
			}
			i = f.space(i)
		}
	}
}

// item is where each value of a container stands that [Members] or [Elements] goes
// through. No path leads further.
var item node

// Remove returns the Edit that takes the member with this key out of the object
// data, with the one comma that has to go, and whether there is one. Of members that
// repeat the key it is the first. The Edits for two keys of an object can overlap, so
// the first is made before the second is asked for.
func Remove(data []byte, key string) (Edit, bool) {
	var e Edit
	found, before := false, -1
	for m := range Members(data) {
		switch {
		case found:
			e.End = m.Start // the comma after it goes
			return e, true
		case m.Key == key:
			e.Start, e.End, found = m.Start, m.End, true
		default:
			before = m.End
		}
	}
	if found && before >= 0 {
		e.Start = before // the comma before it goes
	}
	return e, found
}

// A Removal takes some members out of an object. [Removal.Next] is called for each member, in order.
type Removal struct {
	edits      []Edit
	some, kept bool
	start, end int // of members to remove, side by side, if there are some
	last       int // the end of the last member that is kept, if there is one
}

// Next says whether the next member of the object is removed.
func (r *Removal) Next(m Member, remove bool) {
	switch {
	case remove && r.some:
		r.end = m.End
	case remove:
		r.some, r.start, r.end = true, m.Start, m.End
	default:
		if r.some {
			r.edits = append(r.edits, Edit{Start: r.start, End: m.Start}) // with the comma after them
		}
		r.some, r.kept, r.last = false, true, m.End
	}
}

// Edits returns the Edits that take the members out, with their commas, and put add last into the object: one or
// more members such as "k":1, or nothing. What stays is not touched.
func (r *Removal) Edits(object, add []byte) []Edit {
	edits, at := r.edits, r.last
	if !r.kept {
		at = bytes.IndexByte(object, '{') + 1
	}
	if len(add) > 0 { // before the Edit that may begin at the same place
		if r.kept {
			add = append([]byte{','}, add...)
		}
		edits = append(edits, Edit{Start: at, End: at, New: add})
	}
	if r.some {
		if r.kept {
			r.start = r.last // the comma before them goes
		}
		edits = append(edits, Edit{Start: r.start, End: r.end})
	}
	return edits
}

// Append returns the Edit that puts member, a key and value such as "k":1, last into
// object, with a comma if that has others.
func Append(object, member []byte) Edit {
	at := bytes.LastIndexByte(object, '}')
	if before := bytes.TrimRight(object[:at], " \t\r\n"); before[len(before)-1] != '{' {
		at, member = len(before), append([]byte{','}, member...)
	}
	return Edit{Start: at, End: at, New: member}
}

// Insert returns the Edit that puts member, a key and value such as "k":1, first
// into object, with a comma if that has others.
func Insert(object, member []byte) Edit {
	at := bytes.IndexByte(object, '{') + 1
	f := finder{data: object}
	if next := f.space(at); next < len(object) && object[next] != '}' {
		member = append(bytes.Clone(member), ',')
	}
	return Edit{Start: at, End: at, New: member}
}
