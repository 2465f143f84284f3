package jsonspan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// mark replaces values of odd length with a description of them.
func mark(path int, k Kind, literal []byte) []byte {
	switch {
	case len(literal)%2 == 0:
		return nil
	case k == BeginObject:
		return fmt.Appendf(nil, `{"path %d":0,`, path)
	case k == BeginArray:
		return fmt.Appendf(nil, `[%d,`, path)
	}
	return fmt.Appendf(nil, `<%d %d %s>`, path, k, literal)
}

// marks returns the edits that mark makes for the values at the paths. For containers it
// edits the beginning, with a comma before the first member if an object has any.
func marks(paths *Paths, text []byte) (edits []Edit, err error) {
	err = paths.Find(text, func(path int, v Value) {
		end := v.End
		if v.Kind == BeginObject || v.Kind == BeginArray {
			end = v.Start + 1
		}
		with := mark(path, v.Kind, text[v.Start:end])
		if object, comma := bytes.CutSuffix(with, []byte(",")); comma && v.Kind == BeginObject {
			with = object
			if first := v.End - len(bytes.TrimLeft(text[end:v.End], " \t\r\n")); text[first] != '}' {
				edits = append(edits, Edit{first, first, []byte(",")})
			}
		}
		if with != nil && end-v.Start <= maxRewritten {
			edits = append(edits, Edit{v.Start, end, with})
		}
	})
	slices.SortFunc(edits, func(a, b Edit) int { return a.Start - b.Start })
	return edits, err
}

// rewrite writes pieces to r and returns the output.
func rewrite(r *Rewriter, pieces ...string) (string, error) {
	var out strings.Builder
	r.Reset(&out)
	for _, piece := range pieces {
		// Copy each piece: the bytes around it must not matter.
		b := []byte(piece)
		if n, err := r.Write(b); n != len(b) || err != nil {
			return out.String(), fmt.Errorf("wrote %d of %d: %w", n, len(b), err)
		}
		clear(b)
	}
	err := r.Close()
	return out.String(), err
}

var rewrittenPaths = []string{"id", "result.content.*.uri", "result.content.*.resource.uri", "result.names.*",
	"result.grid.*.*", "params", "params.name"}

func TestRewrite(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"a string", `{"id":"abc","method":"m"}`, `{"id":<0 8 "abc">,"method":"m"}`},
		{"a number", `{"id":123,"method":"m"}`, `{"id":<0 9 123>,"method":"m"}`},
		{"a number before white space", "{\"id\":-1.5e7\n}", "{\"id\":-1.5e7\n}"},
		{"a literal", `{"id":false}`, `{"id":<0 11 false>}`},
		{"values that stay", `{"id":"ab" , "params": null }`, `{"id":"ab" , "params": null }`},
		{"elements", `{"result":{"content":[{"uri":"a"},{"type":"x","uri":"b"},7]}}`,
			`{"result":{"content":[{"uri":<1 8 "a">},{"type":"x","uri":<1 8 "b">},7]}}`},
		{"nested arrays", `{"result":{"grid":[[1,22],3,[[4],5,{"x":6}]]}}`,
			`{"result":{"grid":[[<4 9 1>,22],3,[[4,4],<4 9 5>,{"path 4":0,"x":6}]]}}`},
		{"members under a star", `{"result":{"names":{"k":1,"l":{"k":1}}}}`,
			`{"result":{"names":{"k":<3 9 1>,"l":{"path 3":0,"k":1}}}}`},
		{"keys with escapes", `{"\u0069d":1,"params":{"na\u006de":2,"nam":3}}`,
			`{"\u0069d":<0 9 1>,"params":{"path 5":0,"na\u006de":<6 9 2>,"nam":3}}`},
		{"a container and a value in it", `{"params":{"name":"x","n":{"name":1}}}`,
			`{"params":{"path 5":0,"name":<6 8 "x">,"n":{"name":1}}}`},
		{"repeated keys", `{"id":1,"x":[],"id":2,"i\u0064":3}`,
			`{"id":<0 9 1>,"x":[],"id":<0 9 2>,"i\u0064":<0 9 3>}`},
		{"the same key at another level", `{"x":{"id":1},"y":[{"id":1}],"result":{"id":1}}`,
			`{"x":{"id":1},"y":[{"id":1}],"result":{"id":1}}`},
		{"another kind of value on a path", `{"params":["name"],"result":{"content":{"a":1},"grid":7}}`,
			`{"params":[5,"name"],"result":{"content":{"a":1},"grid":7}}`},
		{"characters of several bytes", `{"id":"é世😀\ud83d\ude00."}`, `{"id":"é世😀\ud83d\ude00."}`},
		{"a long string before the value",
			`{"x":"` + strings.Repeat("y", 90) + `","id":1}`, `{"x":"` + strings.Repeat("y", 90) +
				`","id":<0 9 1>}`},
		{"a number alone", ` 12 `, ` 12 `},
		{"a number at the end", `12`, `12`},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := CompilePaths(rewrittenPaths...).Rewrite(io.Discard, mark)
			text := test.text
			check := func(pieces ...string) {
				if got, err := rewrite(r, pieces...); got != test.want || err != nil {
					t.Fatalf("%q: %v\n got %s\nwant %s", pieces, err, got, test.want)
				}
			}
			check(text)
			check(strings.Split(text, "")...)
			for i := range len(text) + 1 {
				check(text[:i], text[i:])
				for j := i; j <= len(text); j++ {
					check(text[:i], text[i:j], text[j:])
				}
			}
		})
	}
}

// Invalid texts are forwarded unchanged from the error on, however they are divided.
func TestRewriteOfInvalidTexts(t *testing.T) {
	paths := CompilePaths("id", "a.*")
	same := paths.Rewrite(io.Discard, func(int, Kind, []byte) []byte { return nil })
	broken := append([]string{
		`{"id":"abc`, `{"id":"ab\x","id":"abc"}`, "{\"id\":\"a\nb\"}", `{"id":tru3}`, `{"id":-}`, `{"id":1.}`,
		`{"id":1e+"x"}`, `{"id":12`, `{"id":"\ud83d\u12"}`,
		`{"a":[1,"x\`, `{"a":[1,"x]}`, `{"a":[1}`, `{"a":{"id"`, `{"a":{"id":`, `{"i\d":1}`, `{"id" 1}`,
	}, texts...)
	for _, text := range broken {
		if len(text) > 200 {
			text = text[len(text)-200:] // short, because all divisions are tested
		}
		want := json.Valid([]byte(text))
		for i := range len(text) + 1 {
			for j := i; j <= len(text); j++ {
				got, err := rewrite(same, text[:i], text[i:j], text[j:])
				if got != text || (err == nil) != want {
					t.Fatalf("%q and %q and %q: %q, %v", text[:i], text[i:j], text[j:], got, err)
				}
			}
		}
	}
	marked := paths.Rewrite(io.Discard, mark)
	for _, test := range []struct {
		text, want string
		err        error
	}{
		{`{"id":1,"id":2]"id":3}`, `{"id":<0 9 1>,"id":<0 9 2>]"id":3}`, ErrSyntax},
		{`{"id":1x`, `{"id":<0 9 1>x`, ErrSyntax},
		{`{"id":1,"id":"x\y","id":3}`, `{"id":<0 9 1>,"id":"x\y","id":3}`, ErrSyntax},
		{`{"id":1,"id":3`, `{"id":<0 9 1>,"id":3`, io.ErrUnexpectedEOF},
		{`{"a":` + strings.Repeat("[", DefaultMaxDepth) + `1`, `{"a":[[1,` + strings.Repeat("[", DefaultMaxDepth-2) + `1`,
			ErrDepth},
	} {
		for i := range len(test.text) + 1 {
			if got, err := rewrite(marked, test.text[:i], test.text[i:]); got != test.want || !errors.Is(err, test.err) {
				t.Fatalf("%q and %q: %q, %v", test.text[:i], test.text[i:], got, err)
			}
		}
	}
}

// A value of 64 KiB is replaced and a longer one is not, however they are divided.
func TestRewriteHoldsNoMoreThan64KiB(t *testing.T) {
	for _, test := range []struct{ name, open, fill, close string }{
		{"string", `"`, "x", `"`},
		{"number", "1", "0", ""},
	} {
		for _, size := range []int{maxRewritten - 1, maxRewritten, maxRewritten + 1, 3 * maxRewritten} {
			value := test.open + strings.Repeat(test.fill, size-len(test.open+test.close)) + test.close
			text := `{"x":` + value + `,"id":` + value + `,"id":1}`
			want := `{"x":` + value + `,"id":` + value + `,"id":new}`
			if size <= maxRewritten {
				want = `{"x":` + value + `,"id":new,"id":new}`
			}
			r := CompilePaths("id").Rewrite(io.Discard, func(_ int, _ Kind, literal []byte) []byte {
				if l := string(literal); l != value && l != "1" {
					t.Errorf("replaced %d bytes", len(l))
				}
				return []byte("new")
			})
			start := strings.Index(text, `"id":`) + len(`"id":`)
			for _, cuts := range [][]int{{}, {start}, {start + 1}, {start + size - 1}, {start + size},
				{start + 1, start + maxRewritten - 1}, {start + 1, start + maxRewritten}, {start + 1, start + size - 1},
				{start + 1, start + size}} {
				var pieces []string
				rest := text
				for i := len(cuts) - 1; i >= 0; i-- {
					pieces = append(pieces, rest[cuts[i]:])
					rest = rest[:cuts[i]]
				}
				pieces = append(pieces, rest)
				slices.Reverse(pieces)
				if got, err := rewrite(r, pieces...); got != want || err != nil {
					t.Errorf("a %s of %d bytes, cut at %d: got %d bytes, %v, want %d", test.name, size, cuts, len(got), err, len(want))
				}
				if kept := cap(r.walk.token); kept > 2*maxRewritten {
					t.Errorf("a %s of %d bytes: %d kept", test.name, size, kept)
				}
			}
		}
	}
}

// A Rewriter holds only an unfinished token at one of the paths.
func TestRewriteHoldsOnlyUnfinishedTokens(t *testing.T) {
	text := `{"key":"value","id":"abc","n":12,"a":{"id":"abc"},"id":12}`
	held := map[int]string{} // by number of bytes written
	for _, value := range []string{`"id":"abc","n"`, `"id":12}`} {
		start := strings.Index(text, value) + len(`"id":`)
		end := start + strings.IndexAny(text[start:], ",}")
		if text[end-1] == '"' {
			end-- // a string ends with its quote, a number only with the next byte
		}
		for i := start + 1; i <= end; i++ {
			held[i] = text[start:i]
		}
	}
	var out strings.Builder
	r := CompilePaths("id").Rewrite(&out, func(int, Kind, []byte) []byte { return nil })
	for i := range text {
		_, _ = io.WriteString(r, text[i:i+1])
		if got := out.String() + held[i+1]; got != text[:i+1] {
			t.Errorf("after %q: %q", text[:i+1], out.String())
		}
	}
}

// A generator makes random JSON with keys of the paths and others, without repeated keys
// in one object.
type generator struct{ *rand.Rand }

func (g generator) append(b []byte, depth int) []byte {
	space := func() {
		if g.IntN(6) == 0 {
			b = append(b, " \n\t\r"[g.IntN(4)])
		}
	}
	space()
	kind := g.IntN(10)
	if depth == 0 {
		kind = 5 + kind%5
	}
	switch kind {
	case 0, 1, 2:
		b = append(b, '{')
		keys := []string{`"a"`, `"b"`, `"\u0063"`, `"d"`, `"e\n"`, `"ab"`}
		g.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
		for i, key := range keys[:g.IntN(len(keys)+1)] {
			if i > 0 {
				b = append(b, ',')
			}
			space()
			b = append(b, key...)
			space()
			b = append(b, ':')
			b = g.append(b, depth-1)
		}
		space()
		b = append(b, '}')
	case 3, 4:
		b = append(b, '[')
		for i := range g.IntN(5) {
			if i > 0 {
				b = append(b, ',')
			}
			b = g.append(b, depth-1)
		}
		space()
		b = append(b, ']')
	default:
		values := []string{`""`, `"abc"`, `"é世😀\ud83d\ude00\"\\"`, `0`, `-1.5e+3`, `12`, `true`, `false`, `null`}
		b = append(b, values[g.IntN(len(values))]...)
	}
	space()
	return b
}

// Rewriting in pieces gives the same output as Find and Splice.
func TestRewriteIsFindAndSplice(t *testing.T) {
	g := generator{rand.New(rand.NewPCG(1, 2))}
	sets := [][]string{{"a"}, {"a", "a.b", "a.b.c"}, {"*.*"}, {"*", "*.a", "*.a.*"}, {"a.*.b", "c.*", "b.*.*.*", "d.c"}}
	edited := 0
	for range 3000 {
		text := string(g.append(nil, 6))
		paths := CompilePaths(sets[g.IntN(len(sets))]...)
		edits, err := marks(paths, []byte(text))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		edited += len(edits)
		var want strings.Builder
		if err := Splice(&want, []byte(text), edits); err != nil {
			t.Fatal(err)
		}
		r := paths.Rewrite(io.Discard, mark)
		for _, most := range []int{1, 3, 20, len(text)} {
			var pieces []string
			for rest := text; len(rest) > 0; {
				n := min(1+g.IntN(most), len(rest))
				pieces = append(pieces, rest[:n])
				rest = rest[n:]
			}
			if got, err := rewrite(r, pieces...); got != want.String() || err != nil {
				t.Fatalf("%q: %v\n got %s\nwant %s", pieces, err, got, want.String())
			}
		}
	}
	if edited < 1000 {
		t.Errorf("only %d values were replaced", edited)
	}
}

// A writes counts writes and bytes, and fails when no writes are left.
type writes struct {
	left, bytes int
}

var errWrite = errors.New("gone")

func (w *writes) Write(p []byte) (int, error) {
	if w.left--; w.left < 0 {
		return 0, errWrite
	}
	w.bytes += len(p)
	return len(p), nil
}

func TestRewriteWritesRunsAtOnce(t *testing.T) {
	text := passingText(1 << 20)
	w := &writes{left: 1}
	r := CompilePaths("result.content.*.uri").Rewrite(w, func(int, Kind, []byte) []byte { return nil })
	if n, err := r.Write(text); n != len(text) || err != nil || w.bytes != len(text) {
		t.Errorf("%d of %d, %v", w.bytes, n, err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	// Short runs and replacements are combined into few writes.
	w = &writes{left: len(text)}
	r = CompilePaths("*.*").Rewrite(w, func(int, Kind, []byte) []byte { return []byte("0") })
	_, _ = io.WriteString(r, "["+strings.Repeat("[1,2,3],", 1000))
	if w.bytes != 8001 || len(text)-w.left > 3 {
		t.Errorf("%d writes for %d bytes", len(text)-w.left, w.bytes)
	}
}

func TestRewriteKeepsTheErrorOfItsWriter(t *testing.T) {
	r := CompilePaths("id").Rewrite(&writes{left: 1}, func(int, Kind, []byte) []byte { return []byte("0") })
	if n, err := io.WriteString(r, `{"id":`); n != 6 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	for range 2 {
		if n, err := io.WriteString(r, `1,"x":2`); n != 0 || err != errWrite {
			t.Errorf("%d, %v", n, err)
		}
	}
	if err := r.Close(); err != errWrite {
		t.Error(err)
	}
	r.Reset(&writes{left: 1})
	if _, err := io.WriteString(r, `{"id":"held`); err != nil {
		t.Error(err)
	}
	if err := r.Close(); err != errWrite {
		t.Errorf("held bytes: %v", err)
	}
	var out strings.Builder
	r.Reset(&out)
	if _, err := io.WriteString(r, `{"id":1}`); err != nil || r.Close() != nil || out.String() != `{"id":0}` {
		t.Errorf("after Reset: %q, %v", out.String(), err)
	}
}

// Without replacements the output equals the input, in pieces of any size. With
// replacements it is the same in pieces as at once, and the same as with Splice.
func FuzzRewrite(f *testing.F) {
	for _, text := range texts {
		f.Add([]byte(text), 1)
		f.Add([]byte(text), 200)
	}
	for size := 1; size < 8; size++ {
		f.Add([]byte(`{"a":{"b":[1.5,"\u0061",true,{"c":null},12],"d":-0.5e-3},"\u0065":[{"f":"\\ud83d"}]}`), size)
	}
	paths := CompilePaths("a", "a.b.*", "a.d", "a.b.*.c", "e.*.f")
	same := paths.Rewrite(io.Discard, func(int, Kind, []byte) []byte { return nil })
	marked := paths.Rewrite(io.Discard, mark)
	f.Fuzz(func(t *testing.T, text []byte, size int) {
		if size < 1 {
			return
		}
		var pieces []string
		for piece := range slices.Chunk(text, size) {
			pieces = append(pieces, string(piece))
		}
		got, err := rewrite(same, pieces...)
		if got != string(text) || err == nil != json.Valid(text) && !errors.Is(err, ErrDepth) {
			t.Errorf("%q became %q, %v", text, got, err)
		}
		want, _ := rewrite(marked, string(text))
		if got, _ := rewrite(marked, pieces...); got != want {
			t.Errorf("got %q\nwant %q", got, want)
		}
		// Rewrite replaces the values that Find finds, and the beginnings of containers.
		edits, err := marks(paths, text)
		if spliced := Spliced(text, edits...); err == nil && string(spliced) != want {
			t.Errorf("%q became %q, but with Find and Splice %q", text, want, spliced)
		}
	})
}

// passingText returns a result with size bytes of content, half in small members and
// half in text.
func passingText(size int) []byte {
	var b bytes.Buffer
	b.WriteString(`{"jsonrpc":"2.0","id":1,"result":{"content":[`)
	for i := 0; b.Len() < size-400; i++ {
		fmt.Fprintf(&b, `{"type":"resource_link","uri":"file:///item/%d","size":%d,"annotations":{"audience":["user"],`+
			`"priority":0.5}},`, i, i)
		fmt.Fprintf(&b, `{"type":"text","text":"%s"},`, strings.Repeat(`line\n`, 20))
	}
	fmt.Fprintf(&b, `{"type":"text","text":"%s"}]}}`, strings.Repeat("x", max(size-b.Len()-28, 0)))
	return b.Bytes()
}

func BenchmarkRewrite(b *testing.B) {
	text := passingText(1 << 20)
	long := []byte(`{"result":{"content":[{"type":"text","text":"` + strings.Repeat("x", 1<<20) + `"}]}}`)
	for _, bench := range []struct {
		name string
		text []byte
		size int
		with []byte
	}{
		{"unchanged", text, len(text), nil},
		{"unchanged/32KiB", text, 32 << 10, nil},
		{"unchanged/text", long, 32 << 10, nil},
		{"replaced/32KiB", text, 32 << 10, []byte(`"other:///item"`)},
	} {
		b.Run(bench.name, func(b *testing.B) {
			r := CompilePaths("result.content.*.uri").Rewrite(io.Discard, func(int, Kind, []byte) []byte { return bench.with })
			b.SetBytes(int64(len(bench.text)))
			b.ReportAllocs()
			for b.Loop() {
				r.Reset(io.Discard)
				for piece := range slices.Chunk(bench.text, bench.size) {
					_, _ = r.Write(piece)
				}
				if err := r.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
