package sse

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// scan feeds stream in pieces of the given size. It returns all bytes as they were returned, and
// the data of each event, its lines joined by LF.
func scan(stream string, piece int) (all string, events []string) {
	var s Scanner
	var out, data bytes.Buffer
	lines, fresh := 0, false
	for rest := stream; ; {
		kind, p := s.Next()
		out.Write(p)
		switch kind {
		case More:
			if rest == "" {
				return out.String(), events
			}
			n := min(piece, len(rest))
			s.Feed([]byte(rest[:n]))
			rest = rest[n:]
		case Frame:
			fresh = true
		case Data:
			if fresh && lines > 0 {
				data.WriteByte('\n')
			}
			fresh = false
			lines++
			data.Write(p)
		case Dispatch:
			events = append(events, data.String())
			data.Reset()
			lines, fresh = 0, false
		}
	}
}

func TestScanner(t *testing.T) {
	for _, test := range []struct {
		name, stream string
		events       []string
	}{
		{"an event", "data: hello\n\n", []string{"hello"}},
		{"no space after the colon", "data:hello\n\n", []string{"hello"}},
		{"only one space is framing", "data:  hello\n\n", []string{" hello"}},
		{"other fields around it", "event: message\nid: 7\ndata: x\nretry: 5\n\n", []string{"x"}},
		{"several lines", "data: {\ndata: }\n\n", []string{"{\n}"}},
		{"other fields between the lines", "data: a\nid: 1\ndata: b\n\n", []string{"a\nb"}},
		{"CR", "data: a\rdata: b\r\rdata: c\r\r", []string{"a\nb", "c"}},
		{"CRLF", "data: a\r\ndata: b\r\n\r\ndata: c\r\n\r\n", []string{"a\nb", "c"}},
		{"mixed", "data: a\n\r\ndata: b\r\n\n", []string{"a", "b"}},
		{"comments", ": ping\n\n:\n\ndata: x\n\n", []string{"", "", "x"}},
		{"names that only begin like data", "dat: 1\ndatabase: 2\nd\ndata\n data: 3\nDATA: 4\n\n", []string{""}},
		{"a colon in the data", "data: data: x\n\n", []string{"data: x"}},
		{"a byte order mark", "\uFEFFdata: x\n\n", []string{"x"}},
		{"an incomplete byte order mark", "\xef\xbbdata: x\n\n", []string{"x"}},
		{"a byte order mark elsewhere", "\n\uFEFFdata: x\n\n", []string{"", ""}},
		{"an unfinished event", "data: x\n", nil},
		{"an empty stream", "", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			for piece := 1; piece <= len(test.stream)+1; piece++ {
				all, events := scan(test.stream, piece)
				if all != test.stream {
					t.Errorf("in pieces of %d: returned %q", piece, all)
				}
				if fmt.Sprintf("%q", events) != fmt.Sprintf("%q", test.events) {
					t.Errorf("in pieces of %d: got %q, want %q", piece, events, test.events)
				}
			}
		})
	}
}

// Lines that end with CR must not each search for an LF to the end of the bytes.
func BenchmarkCRLines(b *testing.B) {
	stream := []byte(strings.Repeat("a\r", 256<<10))
	b.SetBytes(int64(len(stream)))
	for b.Loop() {
		var s Scanner
		s.Feed(stream)
		for kind, _ := s.Next(); kind != More; kind, _ = s.Next() {
		}
	}
}

// parse is the algorithm of the standard, line by line.
func parse(stream string) (events []string) {
	for _, b := range []byte("\uFEFF") { // or a part of it: no field begins like that
		if stream == "" || stream[0] != b {
			break
		}
		stream = stream[1:]
	}
	stream = strings.ReplaceAll(strings.ReplaceAll(stream, "\r\n", "\n"), "\r", "\n")
	lines := strings.Split(stream, "\n")
	var data []string
	for _, line := range lines[:len(lines)-1] {
		if line == "" {
			events = append(events, strings.Join(data, "\n"))
			data = nil
			continue
		}
		if value, ok := strings.CutPrefix(line, "data:"); ok {
			if value = strings.TrimPrefix(value, " "); value != "" {
				data = append(data, value) // empty lines are white space in JSON
			}
		}
	}
	return events
}

func FuzzScanner(f *testing.F) {
	f.Add("event: message\ndata: {\"a\":1}\n\n", uint8(3))
	f.Add("data: a\r\ndata: b\r\n\r\n: c\r\r", uint8(1))
	f.Add("datadata: x\ndata\n\n", uint8(2))
	f.Add("\xefid: 1\r\r\r", uint8(8))
	f.Fuzz(func(t *testing.T, stream string, piece uint8) {
		all, events := scan(stream, int(piece)+1)
		if all != stream {
			t.Fatalf("%q was returned as %q", stream, all)
		}
		// A trailing CR may be the first half of a line end.
		if want := parse(stream); fmt.Sprintf("%q", events) != fmt.Sprintf("%q", want) {
			t.Fatalf("%q: got %q, want %q", stream, events, want)
		}
	})
}
