package sse

import (
	"slices"
	"strings"
	"testing"
	"unicode"
)

// fieldsOf returns the fields of each event, by the algorithm of the standard, line by line. An
// incomplete event counts, too.
func fieldsOf(stream string) []Fields {
	stream = strings.TrimPrefix(stream, "\uFEFF")
	stream = strings.ReplaceAll(strings.ReplaceAll(stream, "\r\n", "\n"), "\r", "\n")
	all := []Fields{{}}
	lines := strings.Split(stream, "\n")
	for _, line := range lines[:len(lines)-1] {
		event := &all[len(all)-1]
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "":
			all = append(all, Fields{})
		case len(line) > maxField:
		case name == "id" && !strings.ContainsFunc(value, unicode.IsControl):
			event.ID, event.HasID = value, true
		case name == "event":
			event.Type = value
		case name == "retry" && value != "" && strings.Trim(value, "0123456789") == "":
			event.Retry = value
		}
	}
	return all
}

// Fields are read as the standard defines, in pieces of any size.
func FuzzFields(f *testing.F) {
	for _, stream := range []string{
		"id: 5\nevent: message\nretry: 10\ndata: {}\n\nid\n\n", "id:5\r\nretry: x\r\n\r\nid: a\x00b\r\r",
		"retry:\nretry: 0\nevent:x\nevent\n\n:id: 3\n",
		"\uFEFFid: 1\ndata: id: 2\n\n", // a field after a byte order mark was lost
		"id: \u0085\nid: \xff\nid:  7\n\n", "id: " + strings.Repeat("7", maxField) +
			"\nevent: x\n\n", "dataid: 1\ndata\nid: 2\n",
		"\xef\xbbid: 1\n\n",
	} {
		f.Add(stream, uint8(0))
		f.Add(stream, uint8(4))
	}
	f.Fuzz(func(t *testing.T, stream string, size uint8) {
		if strings.HasPrefix(stream, "\xef") && !strings.HasPrefix(stream, "\uFEFF") {
			return // incomplete byte order mark: undefined
		}
		got := []Fields{{}}
		var s Scanner
		for piece := range slices.Chunk([]byte(stream), int(size)+1) {
			s.Each(piece, func(kind Kind, part []byte) {
				switch event := &got[len(got)-1]; kind {
				case Frame:
					event.Read(part)
				case Dispatch:
					next := *event
					next.Reset()
					got = append(got, next)
				}
			})
		}
		// A CR at the end may be the first half of a line end.
		want := fieldsOf(stream)
		if len(got) != len(want) {
			t.Fatalf("%q has %d events, want %d", stream, len(got), len(want))
		}
		for i, event := range got {
			event.line = nil
			if w := want[i]; event.ID != w.ID || event.HasID != w.HasID || event.Type != w.Type || event.Retry != w.Retry {
				t.Fatalf("%q in pieces of %d: event %d is %+v, want %+v", stream, int(size)+1, i, event, w)
			}
		}
	})
}
