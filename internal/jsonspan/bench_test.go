package jsonspan

import (
	"fmt"
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
