package sse

import (
	"strings"
	"testing"
)

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
