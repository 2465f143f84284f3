package sse

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// fieldsOf returns the fields of each event, by the algorithm of the standard, line by
// line. An event that has not ended is one, too.
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

// The fields of events are those of the standard, in pieces of any size.
func FuzzFields(f *testing.F) {
	for _, stream := range []string{
		"id: 5\nevent: message\nretry: 10\ndata: {}\n\nid\n\n", "id:5\r\nretry: x\r\n\r\nid: a\x00b\r\r", "retry:\nretry: 0\nevent:x\nevent\n\n:id: 3\n",
		"\uFEFFid: 1\ndata: id: 2\n\n", // a field after a byte order mark was lost
		"id: \u0085\nid: \xff\nid:  7\n\n", "id: " + strings.Repeat("7", maxField) + "\nevent: x\n\n", "dataid: 1\ndata\nid: 2\n",
		"\xef\xbbid: 1\n\n",
	} {
		f.Add(stream, uint8(0))
		f.Add(stream, uint8(4))
	}
	f.Fuzz(func(t *testing.T, stream string, size uint8) {
		if strings.HasPrefix(stream, "\xef") && !strings.HasPrefix(stream, "\uFEFF") {
			return // a part of a byte order mark, of which nobody says what it is
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
				t.Fatalf("%q in pieces of %d: event %d says %+v, want %+v", stream, int(size)+1, i, event, w)
			}
		}
	})
}

// An event carries its message and nothing else, whatever the message is.
func FuzzAppendEvent(f *testing.F) {
	for _, message := range []string{`{"id":1}`, "{\r\n\"a\":\r1\n}", "", "data: x\n\nid: 7\n\n", "{\"a\":\"\u2028\\n\"}", "\n", " x "} {
		f.Add([]byte(message), []byte(`{"id":2}`))
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		stream := AppendEvent(AppendEvent(nil, first), second)
		events := parse(string(stream))
		if all, scanned := scan(string(stream), 3); all != string(stream) || !slices.Equal(scanned, events) {
			t.Fatalf("%q is %q, scanned %q", stream, events, scanned)
		}
		if len(events) != 2 {
			t.Fatalf("%q and %q are %q", first, second, stream)
		}
		for i, message := range [][]byte{first, second} {
			want := strings.NewReplacer("\r", " ", "\n", " ").Replace(string(message))
			if events[i] != want {
				t.Fatalf("%q is read as %q", message, events[i])
			}
			if json.Valid(message) && !bytes.Equal(compact(t, message), compact(t, []byte(events[i]))) {
				t.Fatalf("%q says something else than %q", events[i], message)
			}
		}
	})
}

func compact(t *testing.T, text []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := json.Compact(&out, text); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
