package sse

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode"
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

// pythonLines splits lines like Python's str.splitlines.
func pythonLines(s string) []string {
	s = strings.ReplaceAll(s, "\r\n", "\n")
	return strings.FieldsFunc(s, func(r rune) bool {
		return strings.ContainsRune("\n\r\v\f\x1c\x1d\x1e\u0085\u2028\u2029",
			r)
	})
}

// Readers that end lines at other characters see the same lines and messages.
func TestBreaks(t *testing.T) {
	for _, stream := range []string{
		"x\u2028event: endpoint\u2028data: /mcp/other\n\n", ": a\vb\fc\x1cd\x1de\x1ef\u0085g\u2028h\u2029i\n",
		"id: \u00e9\u2026\u2019\u20ac\n\ndata: {}\n\n",
		"data: {\"a\":\"\u2028\u2028data: {}\\\\\u0085\\\\\\n\"}\n\n", "data: \xe2\x80\n\n",
		"data: \xc2\xe2\x80\xe2\xa8\n\n", "\u2028",
	} {
		for size := 1; size <= len(stream); size++ {
			var b Breaks
			var out []byte
			for piece := range slices.Chunk([]byte(stream), size) {
				out = append(out, b.Escape(piece)...)
			}
			got := string(out)
			standard := strings.FieldsFunc(got, func(r rune) bool { return r == '\n' || r == '\r' })
			if !slices.Equal(pythonLines(got), standard) {
				t.Errorf("in pieces of %d %q became %q", size, stream, got)
			}
			if text, ok := strings.CutPrefix(stream, "data: {"); ok && strings.Contains(text, "\u2028") {
				var was, is any
				if json.Unmarshal([]byte("{"+text), &was) != nil || json.Unmarshal([]byte(strings.TrimPrefix(got, "data: ")),
					&is) != nil || was.(map[string]any)["a"] != is.(map[string]any)["a"] {
					t.Errorf("in pieces of %d %q became %q", size, stream, got)
				}
			}
			if !slices.ContainsFunc(breaks, func(c string) bool { return strings.Contains(stream, c) }) && got != stream {
				t.Errorf("in pieces of %d %q became %q", size, stream, got)
			}
		}
	}
}

// An ordinary stream allocates no memory.
func TestBreaksAllocate(t *testing.T) {
	ordinary := []byte("event: message\ndata: {\"text\":\"caf\u00e9 \u2026\"}\n\n")
	var b Breaks
	if n := testing.AllocsPerRun(100, func() { b.Escape(ordinary) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

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

func BenchmarkEscape(b *testing.B) {
	for _, text := range []struct{ name, line string }{
		{"plain", "An observation of no consequence, with nothing to escape. "},
		{"cjk", "漢字仮名交じり文。"},
		{"accents", "Où est passée la clé à molette ? “Là” — dit-on… "},
	} {
		b.Run(text.name, func(b *testing.B) {
			data := []byte(strings.Repeat(text.line, 32<<10/len(text.line)))
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			var breaks Breaks
			for b.Loop() {
				breaks.Escape(data)
			}
		})
	}
}

func BenchmarkScanner(b *testing.B) {
	data := []byte("event: message\ndata: " + strings.Repeat("An observation of no consequence. ", 30) + "\n\n")
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	var s Scanner
	for b.Loop() {
		s.Each(data, func(Kind, []byte) {})
	}
}
