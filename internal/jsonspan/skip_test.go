package jsonspan

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// FuzzSkipText checks that skipText stops where readText does.
func FuzzSkipText(f *testing.F) {
	parts := []string{"plain text, and more of it", "\\n", `\"`, `\\`, `\u00e9`, `\ud83d\ude00`, `\ud83d`, "é", "漢", "😀",
		"\xff", "x", `"`, "\n", `\x`, `\u00g0`, "\x7f"}
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var b strings.Builder
		for range random.IntN(60) {
			n := len(parts)
			if random.IntN(3) > 0 {
				n -= 5 // without the quote and the parts after it
			}
			b.WriteString(parts[random.IntN(n)])
		}
		f.Add([]byte(b.String()))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		text = append(text, strings.Repeat("x", 12)+`"`...) // no character is incomplete
		i, _, _, want := readText(text, 0, 0)
		if at, stopped := skipText(text, 0); at != i || stopped != want {
			t.Errorf("%q: got %d at %d, want %d at %d", text, stopped, at, want, i)
		}
		// The result is the same in two pieces.
		for cut := range len(text) {
			var s Scanner
			s.SkipCounting = true
			s.Feed(append([]byte{'"'}, text[:cut]...))
			k := s.Next()
			if k == More {
				s.Feed(text[cut:])
				k = s.Next()
			}
			if _, end := s.Span(); (k == String) != (want == atQuote) || k == String && end != int64(i)+2 {
				t.Fatalf("%q cut at %d: got %d up to %d, want %d", text, cut, k, end, i+2)
			}
		}
	})
}

// BenchmarkText reads long strings with and without counting characters.
func BenchmarkText(b *testing.B) {
	for _, text := range []struct{ name, body string }{
		{"plain", "An observation of no consequence, with nothing to escape. "},
		{"lines", `2026-11-16 18:33:33 INFO path=\"/v1/items\" handled the request\n`},
		{"code", `\tif err != nil {\n\t\treturn fmt.Errorf(\"x: %w\", err)\n\t}\n`},
		{"newlines", `a line of a log that is of some length, and has nothing in it but its end\n`},
		{"accents", "Où est passée la clé à molette ? "},
	} {
		data := []byte(strings.Repeat(text.body, 32<<10/len(text.body)) + `"`)
		b.Run("counted/"+text.name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				readText(data, 0, 0)
			}
		})
		b.Run("skipped/"+text.name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				skipText(data, 0)
			}
		})
	}
}
