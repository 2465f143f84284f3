package jsonspan

import (
	"fmt"
	"io"
	"strings"
	"testing"
)

func BenchmarkScanner(b *testing.B) {
	var small strings.Builder
	for i := range 40000 {
		if i > 0 {
			small.WriteByte(',')
		}
		fmt.Fprintf(&small, `{"id":%d,"name":"item number %d","ok":true}`, i, i)
	}
	for _, text := range []struct{ name, body string }{
		{"ascii", `"` + strings.Repeat("abcdefgh", 1<<17) + `"`},
		{"cjk", `"` + strings.Repeat("漢字仮名交じり文。", 1<<15) + `"`},
		{"emoji", `"` + strings.Repeat("😀🎉", 1<<17) + `"`},
		{"accents", `"` + strings.Repeat("Où est passée la clé à molette ? ", 1<<15) + `"`},
		{"escapes", `"` + strings.Repeat(`\tif err != nil {\n\t\treturn fmt.Errorf(\"x: %w\", err)\n\t}\n`, 1<<14) + `"`},
		{"small", "[" + small.String() + "]"},
	} {
		b.Run(text.name, func(b *testing.B) {
			data := []byte(text.body)
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			var s Scanner
			for b.Loop() {
				s.Reset()
				s.Report(0, 4000)
				s.Feed(data)
				s.Finish()
				for k := s.Next(); k != Done; k = s.Next() {
					if k == Invalid {
						b.Fatal(s.Err())
					}
				}
			}
		})
	}
}

// BenchmarkPassing reads a large response in pieces of the size that reverse_proxy writes.
func BenchmarkPassing(b *testing.B) {
	paths := CompilePaths("id", "result.content.*.uri", "result.content.*.resource.uri", "error.code")
	for _, text := range []struct{ name, line string }{
		{"plain", "An observation of no consequence, with nothing to escape. "},
		{"lines", `2026-11-16 18:33:33 INFO path=\"/v1/items\" handled the request\n`},
		{"cjk", "漢字仮名交じり文。"},
	} {
		data := []byte(`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"` + strings.Repeat(text.line,
			5<<20/len(text.line)) + `"}]}}`)
		rewriter := paths.Rewrite(io.Discard, func(int, Kind, []byte) []byte { return nil })
		watcher := paths.Watch(func(int, Kind, []byte) {})
		for _, reader := range []struct {
			name string
			io.Writer
			reset func()
		}{
			{"Rewriter", rewriter, func() { rewriter.Reset(io.Discard) }},
			{"Watcher", watcher, watcher.Reset},
		} {
			b.Run(reader.name+"/"+text.name, func(b *testing.B) {
				b.SetBytes(int64(len(data)))
				b.ReportAllocs()
				for b.Loop() {
					reader.reset()
					for rest := data; len(rest) > 0; {
						n := min(32<<10, len(rest))
						_, _ = reader.Write(rest[:n])
						rest = rest[n:]
					}
				}
			})
		}
	}
}
