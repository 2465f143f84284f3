package sse

import (
	"strings"
	"testing"
)

func TestFields(t *testing.T) {
	long := strings.Repeat("x", maxField)
	for _, tt := range []struct {
		name, stream string
		want         Fields
	}{
		{"none", "data: {}\n\n", Fields{}},
		{"an id", "id: 5\ndata: {}\n\n", Fields{ID: "5", HasID: true}},
		{"an id without a space", "id:5\n\n", Fields{ID: "5", HasID: true}},
		{"an id that is empty", "id\n\n", Fields{HasID: true}},
		{"the last of two ids", "id: 5\nid: 6\n\n", Fields{ID: "6", HasID: true}},
		{"lines that end with CR", "id: 5\revent: message\rretry: 3\rdata: {}\r\r", Fields{ID: "5", HasID: true,
			Type: "message", Retry: "3"}},
		{"lines that end with CR and LF", "id: 5\r\nretry: 30\r\n\r\n", Fields{ID: "5", HasID: true, Retry: "30"}},
		{"an id with a control character", "id: 5\x00\nid2: 1\n\n", Fields{}},
		{"a retry that is not a number", "retry: soon\n\n", Fields{}},
		{"a retry that is negative", "retry: -1\n\n", Fields{}},
		{"a retry that is empty", "retry:\n\n", Fields{}},
		{"a comment", ": id: 5\n\n", Fields{}},
		{"a comment that is very long, then an id", ":" + long + "\nid: 5\n\n", Fields{ID: "5", HasID: true}},
		{"an id that is too long", "id: " + long + "\n\n", Fields{}},
		{"an id in the data", "data: id: 5\n\n", Fields{}},
	} {
		for size := 1; size <= len(tt.stream); size = size*2 + 1 {
			var s Scanner
			var f Fields
			for rest := tt.stream; rest != ""; {
				piece := rest[:min(size, len(rest))]
				rest = rest[len(piece):]
				s.Each([]byte(piece), func(kind Kind, part []byte) {
					if kind == Frame {
						f.Read(part)
					}
				})
			}
			got := f
			got.line = nil
			if got.ID != tt.want.ID || got.HasID != tt.want.HasID || got.Type != tt.want.Type || got.Retry != tt.want.Retry {
				t.Errorf("%s, in pieces of %d: got %+v", tt.name, size, got)
			}
		}
	}
}
