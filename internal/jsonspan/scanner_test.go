package jsonspan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"
)

// texts are valid and almost valid JSON, for the tests of the scanner and as seeds
// of the fuzz tests.
var texts = []string{
	``, ` `, `null`, `true`, `false`, `0`, `-0`, `1`, `-1.5e+10`, `12345678901234567890`, `1E400`, `1.0`,
	`""`, `"a"`, `[]`, `{}`, `[1,2,3]`, `{"a":1}`, "\t[ 1 , \n\"x\" ,\r{ \"k\" : null } ] ",
	`{"a":{"b":[{"c":"d"}]},"e":"f"}`, `[[[[]]]]`, `{"":""}`, `{"a":1,"a":2}`,
	`"\"\\\/\b\f\n\r\t"`, `"\u0041\u00e9\u4e2d"`, `"\ud83d\ude00"`, `"\ud83d"`, `"\ude00"`, `"\ud83d\ud83d\ude00"`,
	`"\ud83dx"`, `"\ud83d\n"`, `"\ud83d\u0041"`,
	`"héllo, 世界 😀"`, "\"\xff\"", "\"\xe4\xb8\"", "\"\xf0\x9f\x98\"", "\"\xed\xa0\x80\"",
	"\"\xc0\xaf\xe0\x80\x80\xf5\x80\x80\x80\"", "\"\x7f\"",
	`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"` + strings.Repeat("x", 100) + `"}]}}`,
	strings.Repeat("世界", 40), `"` + strings.Repeat("世界", 40) + `"`, `"` + strings.Repeat("😀", 40) + `"`,
	`"` + strings.Repeat("éü", 40) + `"`, `"` + strings.Repeat("aé世😀", 40) + `"`,
	// not JSON
	`nul`, `nulll`, `tru`, `True`, `+1`, `01`, `1.`, `.5`, `1e`, `1e+`, `-`, `--1`, `1 2`, `[1,]`, `[,1]`, `[1 2]`,
	`{"a"}`, `{"a":}`, `{"a":1,}`, `{,}`, `{a:1}`, `{1:1}`,
	`[`, `{`, `]`, `}`, `[}`, `{]`, `"`, `"\`, `"\x"`, `"\u12"`, `"\u12g4"`, `"\ud83d\u12"`, `"\ud83d\`, "\"\n\"",
	"\"\x00\"", "\xef\xbb\xbf{}", `{"a":1}}`, `[]]`, `'a'`, `{"a":1}x`, "[1]\x00",
	`[-`, `[-A`, `[0.A`, `[10`, `[0e0`, `[[0.A`, `[[0.0.`, `[[0E88`, `[t`, `[fa`, `[f0`, `["`, "[\"\xdd", `[["\x`,
	`[[0,1,]`, `[{0`, `{"`, `{"a":--`, `{"a":t`, `{"a":f`, `{"a":n`, `{"a":1`, `{"a":{}`, `{"a":{"`, `{"a":{"a"d`,
	`[{"a"d`, "{\"\xca\\\"\":", `{"a":{"\q"`,
	`"\uee3d\udd`, `"\ud83d\ud83d\ud"`, `"\ud83d\ud83d\u`, "\"\x97\\nabcdefgh",
	// long strings, read in blocks
	`{"abcdefgh":"ijklmnop"}`, `{"a":"` + strings.Repeat("aéü世界😀😀", 10) + `"}`, `{"a":"` + strings.Repeat("\uFFFD", 10) +
		`"}`, "[\"" + strings.Repeat("x", 70) + "\xc7" + strings.Repeat("x", 70) + `"]`, `["` + strings.Repeat("x", 70) +
		"\x01",
	// long strings with escapes, or bytes that are not UTF-8
	`["\n\"` + strings.Repeat("x", 30) + `\u00e9` + strings.Repeat("x", 40) + `"]`, `["\n\\\\` + strings.Repeat("x", 30) +
		`\ud83d` + strings.Repeat("\xff", 40) + `"]`,
	"{\"a\":\"\xe4\xb8abcdefgh\xc3abcdefgh\xf0\x9fabcdefgh\xe7",
}

// scan feeds text to a scanner in pieces of the given size and returns the scanner's
// events, one per line, and its error.
func scan(text []byte, piece int) (string, error) {
	var s Scanner
	var out strings.Builder
	for rest := text; ; {
		switch k := s.Next(); k {
		case Invalid:
			return out.String(), s.Err()
		case Done:
			return out.String(), nil
		case More:
			if len(rest) == 0 {
				s.Finish()
				continue
			}
			n := min(piece, len(rest))
			s.Feed(rest[:n])
			rest = rest[n:]
		default:
			start, end := s.Span()
			fmt.Fprintf(&out, "%d at %d: %q", k, s.Depth(), text[start:end])
			if k == String || k == Key {
				fmt.Fprintf(&out, " %d characters", s.Chars())
			}
			out.WriteByte('\n')
		}
	}
}

func TestScannerAcceptsWhatEncodingJSONAccepts(t *testing.T) {
	for _, text := range texts {
		if _, err := scan([]byte(text), len(text)+1); (err == nil) != json.Valid([]byte(text)) {
			t.Errorf("%q: %v, encoding/json says %v", text, err, json.Valid([]byte(text)))
		}
	}
}

func TestScannerReportsTheSameInAnyDivision(t *testing.T) {
	for _, text := range texts {
		want, wantErr := scan([]byte(text), len(text)+1)
		for piece := 1; piece <= min(len(text), 17); piece++ {
			got, gotErr := scan([]byte(text), piece)
			if fmt.Sprint(gotErr) != fmt.Sprint(wantErr) {
				t.Errorf("%q in pieces of %d: %v, in one: %v", text, piece, gotErr, wantErr)
			}
			if got != want {
				t.Errorf("%q in pieces of %d:\n%s\nin one:\n%s", text, piece, got, want)
			}
		}
	}
}

func TestScannerReportsTokens(t *testing.T) {
	got, err := scan([]byte(` {"a" : [1, "h\u00e9", true,{}], "b":null}`), 3)
	want := fmt.Sprintf(`%d at 0: "{"
%d at 1: "\"a\"" 1 characters
%d at 1: "["
%d at 2: "1"
%d at 2: "\"h\\u00e9\"" 2 characters
%d at 2: "true"
%d at 2: "{"
%d at 2: "}"
%d at 1: "]"
%d at 1: "\"b\"" 1 characters
%d at 1: "null"
%d at 0: "}"
`, BeginObject, Key, BeginArray, Number, String, True, BeginObject, EndObject, EndArray, Key, Null, EndObject)
	if err != nil || got != want {
		t.Errorf("got %v\n%s\nwant\n%s", err, got, want)
	}
}

func TestScannerErrors(t *testing.T) {
	deep := strings.Repeat("[", DefaultMaxDepth)
	for _, test := range []struct {
		name, text string
		err        error
		offset     int64
	}{
		{"a truncated text", `{"a":`, io.ErrUnexpectedEOF, 5},
		{"an empty text", ``, io.ErrUnexpectedEOF, 0},
		{"a wrong byte", `[1,x]`, ErrSyntax, 3},
		{"a control character in a string", "[\"a\nb\"]", ErrSyntax, 3},
		{"more after the end", `{} {`, ErrSyntax, 3},
		{"one level too deep", deep + "[", ErrDepth, DefaultMaxDepth},
		{"just deep enough", deep + strings.Repeat("]", DefaultMaxDepth), nil, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := scan([]byte(test.text), 4)
			if !errors.Is(err, test.err) {
				t.Fatalf("got %v, want %v", err, test.err)
			}
			var e *Error
			if errors.As(err, &e) && e.Offset != test.offset {
				t.Errorf("at %d, want %d", e.Offset, test.offset)
			}
		})
	}
}

func TestReportLeavesOutButValidates(t *testing.T) {
	run := func(text string) (kinds []Kind) {
		var s Scanner
		s.Report(1, 4)
		s.Feed([]byte(text))
		s.Finish()
		for {
			k := s.Next()
			kinds = append(kinds, k)
			if k == Done || k == Invalid {
				return kinds
			}
		}
	}
	got := run(`{"a":["abcd","abcde",[1]],"b":"x"}`)
	want := []Kind{BeginObject, Key, BeginArray, String, EndArray, Key, String, EndObject, Done}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := run(`{"a":[[1,]]}`); got[len(got)-1] != Invalid {
		t.Errorf("an error in a token that is not reported was missed: %v", got)
	}
}

func TestGapIsWhiteSpaceThatCounts(t *testing.T) {
	for _, test := range []struct {
		name        string
		head, tail  string
		ok          bool
		start, last int64 // the span of the token after the gap
	}{
		{"between tokens", `[`, `"a"]`, true, 6, 9},
		{"after a number", `[1`, `,2]`, true, 8, 9},
		{"inside a string", `["a`, `b"]`, false, 0, 0},
		{"inside a literal", `[tr`, `ue]`, false, 0, 0},
		{"inside a number that cannot end there", `[1.`, `5]`, false, 0, 0},
		{"inside a number that can end there", `[1`, `5]`, false, 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			var s Scanner
			s.Feed([]byte(test.head))
			for s.Next() != More {
			}
			s.Gap(5)
			s.Feed([]byte(test.tail))
			s.Finish()
			var start, end int64
			values := 0
			k := s.Next()
			for ; k != Done && k != Invalid; k = s.Next() {
				if k == String || k == Number {
					start, end = s.Span()
					values++
				}
			}
			if test.ok && values != strings.Count(test.head+test.tail, ",")+1 {
				t.Errorf("%d values reported", values)
			}
			if (k == Done) != test.ok {
				t.Fatalf("got %v, %v", k, s.Err())
			}
			if start != test.start && test.ok || end != test.last && test.ok {
				t.Errorf("token at %d-%d, want %d-%d", start, end, test.start, test.last)
			}
		})
	}
}

func TestBoundNeverSplitsACharacter(t *testing.T) {
	body := `aé世😀\n\u00e9\ud83d\ude00\ud83dz\ude00` + "\xff\xe4\xb8z"
	text := []byte(`"` + body + `"`)
	bounds := map[int64]int{}
	for i, chars := 0, 0; i <= len(body); chars++ {
		bounds[int64(i)+1] = chars
		if i == len(body) {
			break
		}
		i += Advance([]byte(body)[i:], 1)
	}
	for piece := 1; piece < len(text); piece++ {
		var s Scanner
		for rest := text; len(rest) > 0; {
			n := min(piece, len(rest))
			s.Feed(rest[:n])
			rest = rest[n:]
			if s.Next() == More && s.InString() {
				if chars, ok := bounds[s.Bound()]; !ok || chars != s.Chars() {
					t.Fatalf("pieces of %d: %d characters before byte %d, want one of %v", piece, s.Chars(), s.Bound(), bounds)
				}
			}
		}
	}
}

// decoded returns a string literal decoded with encoding/json.
func decoded(t *testing.T, literal []byte) string {
	t.Helper()
	var s string
	if err := json.Unmarshal(literal, &s); err != nil {
		t.Fatalf("%q: %v", literal, err)
	}
	return s
}

func checkStrings(t *testing.T, text []byte) {
	t.Helper()
	var s Scanner
	s.MaxDepth = 10000 // the limit of encoding/json
	s.Feed(text)
	s.Finish()
	for {
		k := s.Next()
		switch k {
		case Done, Invalid:
			return
		case String, Key:
			start, end := s.Span()
			body, want := text[start+1:end-1], ""
			if !json.Valid(text[start:end]) {
				t.Fatalf("%q is not a string", text[start:end])
			}
			want = decoded(t, text[start:end])
			chars := utf8.RuneCountInString(want)
			if s.Chars() != chars || Count(body) != chars {
				t.Fatalf("%q: %d characters by the scanner, %d counted, want %d", body, s.Chars(), Count(body), chars)
			}
			if got := string(AppendText(nil, body)); got != want {
				t.Fatalf("%q: text %q, want %q", body, got, want)
			}
			if bytes.IndexByte(body, '\\') >= 0 && !TextIs(body, want) {
				t.Fatalf("%q is not %q", body, want)
			}
			short := AppendBody(nil, want)
			if string(AppendText(nil, short)) != want || utf8.Valid(body) && len(short) > len(body) {
				t.Fatalf("%q: re-encoded as %q", body, short)
			}
			half := chars / 2
			n := Advance(body, half)
			if Count(body[:n]) != half || Count(body[n:]) != chars-half {
				t.Fatalf("%q: half of %d characters is %q", body, chars, body[:n])
			}
		}
	}
}

func TestCharactersAreThoseOfEncodingJSON(t *testing.T) {
	for _, text := range texts {
		checkStrings(t, []byte(text))
	}
}

// Long strings are read in words and blocks. Special characters must be found at every
// offset.
func TestSpecialCharactersAtEveryPlaceOfALongString(t *testing.T) {
	for name, around := range map[string]string{
		"plain":   strings.Repeat("abcdefghij", 20),
		"escaped": strings.Repeat(`abc\n\"d\u00e9\\`, 12),
		"wide":    strings.Repeat("漢字é😀", 20),
	} {
		for _, special := range []string{
			"\n", "\x00", "\x1f", "\x7f", `"`, `\`, `\x`, `\n`, `\"`, `\\`, `\u0041`, `\u00`, `\u004g`, `\ud83d`,
			`\ud83d\ude00`, `\ude00`,
			"é", "漢", "😀", "\uFFFD", "\xff", "\x80", "\xe4\xb8", "\xe4a\x80", "\xe4\xb8a", "\xf0\x9fa\x80", "\xed\xa0\x80",
			"\xe0\x80\x80", "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xc1\xbf",
		} {
			for at := 0; at <= len(around); at++ {
				text := []byte(`"` + around[:at] + special + around[at:] + `"`)
				whole, err := scan(text, len(text))
				if (err == nil) != json.Valid(text) {
					t.Fatalf("%s, %q at %d: %v, encoding/json says %v", name, special, at, err, json.Valid(text))
				}
				if pieces, err2 := scan(text, 1+at%70); pieces != whole || fmt.Sprint(err) != fmt.Sprint(err2) {
					t.Fatalf("%s, %q at %d: in pieces %v, in one %v", name, special, at, err2, err)
				}
				checkStrings(t, text)
			}
		}
	}
}

func FuzzScanner(f *testing.F) {
	for i, text := range texts {
		f.Add([]byte(text), uint8(i))
		f.Add([]byte(text), uint8(6))
		f.Add([]byte(text), uint8(255))
	}
	f.Fuzz(func(t *testing.T, text []byte, piece uint8) {
		whole, err := scan(text, len(text)+1)
		if errors.Is(err, ErrDepth) {
			return
		}
		if (err == nil) != json.Valid(text) {
			t.Fatalf("%q: %v, encoding/json says %v", text, err, json.Valid(text))
		}
		pieces, err2 := scan(text, int(piece)+1)
		if whole != pieces || fmt.Sprint(err) != fmt.Sprint(err2) {
			t.Fatalf("%q in pieces of %d: %v\n%s\nin one: %v\n%s", text, int(piece)+1, err2, pieces, err, whole)
		}
		checkStrings(t, text)
	})
}

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
