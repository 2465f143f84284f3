package jsonspan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func find(paths *Paths, text string) (found []string, err error) {
	err = paths.Find([]byte(text), func(path int, v Value) {
		found = append(found, fmt.Sprintf("%d=%s", path, text[v.Start:v.End]))
	})
	return found, err
}

func TestFind(t *testing.T) {
	envelope := []string{"id", "method", "params.name", "params", "result.tools.*.name", "result.tools.*.tags.*",
		`params._meta.a\.b/c`}
	for _, test := range []struct {
		name, text string
		want       []string
		err        error
	}{
		{"values in the order in which they end", `{"id":1,"method":"m","params":{"x":[1],"name":"n"}}`,
			[]string{`0=1`, `1="m"`, `2="n"`, `3={"x":[1],"name":"n"}`}, nil},
		{"elements", `{"result":{"tools":[{"name":"a"},{"tags":["x",[2]],"name":"b"},7]}}`,
			[]string{`4="a"`, `5="x"`, `5=[2]`, `4="b"`}, nil},
		{"members under a star", `{"result":{"tools":{"k":{"name":"a"}}}}`, []string{`4="a"`}, nil},
		{"literals to the byte", `{"id":12345678901234567890.00}`, []string{`0=12345678901234567890.00`}, nil},
		{"keys with escapes", `{"\u0069d":"1","ID":2,"id ":3}`, []string{`0="1"`}, nil},
		{"the same key at another level", `{"a":{"id":1,"method":2},"id":3}`, []string{`0=3`}, nil},
		{"another kind of value on a path", `{"params":["name"],"result":{"tools":"name"}}`, []string{`3=["name"]`}, nil},
		{"a key with a dot in it", `{"params":{"_meta":{"a":{"b/c":1},"a.b/c":2}}}`,
			[]string{`6=2`, `3={"_meta":{"a":{"b/c":1},"a.b/c":2}}`}, nil},
		{"no match", `[{"id":1}]`, nil, nil},
		{"a repeated key", `{"id":1,"x":0,"id":2}`, []string{`0=1`}, ErrDuplicate},
		{"a key repeated with an escape", `{"id":1,"i\u0064":2}`, []string{`0=1`}, ErrDuplicate},
		{"a repeated key outside of the paths", `{"x":1,"x":2,"id":3}`, []string{`0=3`}, nil},
		{"the same key in two elements", `{"result":{"tools":[{"name":1},{"name":2}]}}`, []string{`4=1`, `4=2`}, nil},
		{"a truncated text", `{"id":1,"method":"m`, []string{`0=1`}, io.ErrUnexpectedEOF},
		{"invalid JSON", `{"id":1,}`, []string{`0=1`}, ErrSyntax},
		{"invalid JSON outside of the paths", `{"id":1,"x":[{]}`, []string{`0=1`}, ErrSyntax},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := find(CompilePaths(envelope...), test.text)
			if !reflect.DeepEqual(got, test.want) || !errors.Is(err, test.err) {
				t.Errorf("got %q, %v\nwant %q, %v", got, err, test.want, test.err)
			}
		})
	}
}

// A key next to * selects that member, and * the others, in Find and in a Watcher.
func TestKeysNextToAStar(t *testing.T) {
	paths := CompilePaths("a.*", "a.b", "a.b.c", "*.b")
	for text, want := range map[string][]string{
		`{"a":{"x":1,"b":2}}`:       {`0=1`, `1=2`},
		`{"a":{"b":{"c":3,"x":4}}}`: {`2=3`, `1={"c":3,"x":4}`},
		`{"a":[{"b":1},5]}`:         {`0={"b":1}`, `0=5`},
		`{"x":{"b":6,"c":7}}`:       {`3=6`},
		`[{"b":8},{"a":{"b":9}}]`:   {`3=8`},
	} {
		if got, err := find(paths, text); !reflect.DeepEqual(got, want) || err != nil {
			t.Errorf("%s: got %q, %v, want %q", text, got, err, want)
		}
		var watched, scalars []string
		w := paths.Watch(func(path int, k Kind, literal []byte) {
			if k != Key {
				watched = append(watched, fmt.Sprintf("%d=%s", path, literal))
			}
		})
		_, _ = w.Write([]byte(text))
		for _, found := range want {
			if !strings.HasSuffix(found, "}") {
				scalars = append(scalars, found)
			}
		}
		if !reflect.DeepEqual(watched, scalars) {
			t.Errorf("%s: watched %q, want %q", text, watched, scalars)
		}
	}
	if _, err := find(paths, `{"a":{"b":1,"b":2}}`); !errors.Is(err, ErrDuplicate) {
		t.Errorf("a repeated key: %v", err)
	}
}

// The depth limit also counts the containers that paths lead through.
func TestFindAtTheLimitOfDepth(t *testing.T) {
	paths := CompilePaths("a.*.b")
	for _, test := range []struct {
		open, close string
		deep        int
	}{{`{"a":[{"b":`, `}]}`, 3}, {`{"x":`, `}`, 1}, {``, ``, 0}} {
		for depth, want := range map[int]error{DefaultMaxDepth: nil, DefaultMaxDepth + 1: ErrDepth} {
			n := depth - test.deep
			_, err := find(paths, test.open+strings.Repeat("[", n)+strings.Repeat("]", n)+test.close)
			if !errors.Is(err, want) {
				t.Errorf("%d in %s: %v, want %v", depth, test.open, err, want)
			}
		}
	}
}

func TestCompilePathsRefuses(t *testing.T) {
	for _, paths := range [][]string{{""}, {"a."}, {"a", "a"}, {"a.*", "a.*"}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%q was compiled", paths)
				}
			}()
			CompilePaths(paths...)
		}()
	}
}

func TestSplice(t *testing.T) {
	src := []byte(`{"a":1,"b":[2,3]}`)
	var out bytes.Buffer
	err := Splice(&out, src, []Edit{{5, 6, []byte(`"x"`)}, {12, 12, []byte("0,")}, {14, 16, []byte("4]")}})
	if want := `{"a":"x","b":[0,2,4]}`; err != nil || out.String() != want {
		t.Errorf("got %s, %v, want %s", out.String(), err, want)
	}
	out.Reset()
	if err := Splice(&out, src, nil); err != nil || !bytes.Equal(out.Bytes(), src) {
		t.Errorf("without edits: %s, %v", out.String(), err)
	}
	defer func() {
		if recover() == nil {
			t.Error("edits out of order were accepted")
		}
	}()
	_ = Splice(io.Discard, src, []Edit{{5, 6, nil}, {0, 1, nil}})
}

// A Reader returns what Splice writes, in reads of any size.
func TestReader(t *testing.T) {
	src := []byte(`{"a":1,"b":[2,3]}`)
	edits := []Edit{{5, 6, []byte(`"x"`)}, {12, 12, []byte("0,")}, {12, 13, nil}, {14, 16, []byte("4]")}}
	const want = `{"a":"x","b":[0,,4]}`
	for size := range len(want) + 2 {
		r := NewReader(src, edits)
		if r.Len() != len(want) {
			t.Fatalf("length %d, want %d", r.Len(), len(want))
		}
		got, err := make([]byte, 0, 4*len(want)), error(nil)
		for n := 0; err == nil; got = got[:len(got)+n] {
			n, err = r.Read(got[len(got) : len(got)+size+1])
		}
		if string(got) != want || err != io.EOF || r.Len() != 0 {
			t.Errorf("read %q by %d, %v, %d left", got, size+1, err, r.Len())
		}
	}
	r := NewReader(src, edits)
	var head [7]byte
	_, _ = io.ReadFull(r, head[:])
	var rest bytes.Buffer
	if n, err := r.WriteTo(&rest); string(head[:])+rest.String() != want || n != int64(rest.Len()) || err != nil {
		t.Errorf("read %q, then wrote %q: %d, %v", head, &rest, n, err)
	}
}

func decode(t *testing.T, text []byte) (v any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return v
}

// Find accepts the same texts as encoding/json, except repeated keys, for any paths.
func FuzzFind(f *testing.F) {
	for _, text := range texts {
		f.Add([]byte(text))
	}
	f.Add([]byte(`{"a":{"b":[1,"\u0061",true,{"c":null}],"d":-0.5e-3},"e":[{"f":"\\ud83d\\ude00"}]}`))
	f.Add([]byte("[\"\xea\",\"\xea\","))
	all := []*Paths{CompilePaths("a"), CompilePaths("a.b.*.c", "e.*.f"), CompilePaths("*"), CompilePaths("*.*.*")}
	f.Fuzz(func(t *testing.T, text []byte) {
		for i, paths := range all {
			err := paths.Find(text, func(_ int, v Value) {
				if v.Kind == String && (v.Chars != Count(v.Body(text)) || v.HasUnicodeEscapes != hasUnicode(v.Body(text))) {
					t.Errorf("%s: %d characters, Unicode escapes %t", text[v.Start:v.End], v.Chars, v.HasUnicodeEscapes)
				}
				if !json.Valid(text[v.Start:v.End]) {
					t.Errorf("found %q", text[v.Start:v.End])
				}
			})
			if errors.Is(err, ErrDuplicate) || errors.Is(err, ErrDepth) {
				continue
			}
			if (err == nil) != json.Valid(text) {
				t.Errorf("paths %d: %v", i, err)
			}
		}
	})
}

func hasUnicode(body []byte) bool {
	for len(body) > 0 {
		i := bytes.IndexByte(body, '\\')
		if i < 0 {
			break
		}
		if body[i+1] == 'u' {
			return true
		}
		body = body[i+2:]
	}
	return false
}

// A Watcher finds the same values as Find, in pieces of any size, except containers and values
// of more than 256 bytes.
func FuzzWatcher(f *testing.F) {
	for _, text := range texts {
		f.Add([]byte(text), 1)
		f.Add([]byte(text), 200)
	}
	long := strings.Repeat("x", maxWatched)
	for size := 1; size < 8; size++ {
		f.Add([]byte(`{"a":{"b":[1.5,"\u0061",true,{"c":null},12,"`+long+`"],"`+long+
			`":1,"d":-0.5e-3},"\u0065":[{"f":"\\ud83d"}]}`), size)
	}
	paths := CompilePaths("a.b.*", "a.d", "a.b.*.c", "e.*.f")
	f.Fuzz(func(t *testing.T, text []byte, size int) {
		var want, got []string
		err := paths.Find(text, func(path int, v Value) {
			if v.Kind != BeginObject && v.Kind != BeginArray && v.End-v.Start <= maxWatched {
				want = append(want, fmt.Sprint(path, v.Kind, string(text[v.Start:v.End])))
			}
		})
		if err != nil || size < 1 {
			return
		}
		w := paths.Watch(func(path int, k Kind, literal []byte) {
			if k == Key {
				return
			}
			got = append(got, fmt.Sprint(path, k, string(literal)))
		})
		for range 2 {
			got = nil
			for rest := text; len(rest) > 0; {
				n := min(size, len(rest))
				_, _ = w.Write(rest[:n])
				rest = rest[n:]
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got %q\nwant %q", got, want)
			}
			w.Reset()
		}
	})
}

// Splice replaces values and changes nothing around them.
func FuzzSplice(f *testing.F) {
	for _, text := range texts {
		f.Add([]byte(text))
	}
	f.Add([]byte(`{"x":{"a":[1,{"a":2}],"b":3},"a":"y"}`))
	paths := CompilePaths("a", "x.a")
	f.Fuzz(func(t *testing.T, text []byte) {
		var edits []Edit
		err := paths.Find(text, func(_ int, v Value) {
			edits = append(edits, Edit{v.Start, v.End, []byte(`"replaced"`)})
		})
		if err != nil {
			return
		}
		var out bytes.Buffer
		if err := Splice(&out, text, edits); err != nil {
			t.Fatal(err)
		}
		before, after := decode(t, text), decode(t, out.Bytes())
		if top, ok := before.(map[string]any); ok {
			for _, m := range []any{top, top["x"]} {
				if m, ok := m.(map[string]any); ok {
					if _, ok := m["a"]; ok {
						m["a"] = "replaced"
					}
				}
			}
		}
		if !reflect.DeepEqual(before, after) {
			t.Fatalf("got %q from %q", out.Bytes(), text)
		}
	})
}

// A search that continues after a known element reports the same values and error as a
// full search from there on.
func TestSearchAfterKnownElements(t *testing.T) {
	paths := CompilePaths("a", "a.*", "a.*.b", "a.*.c", "a.*.c.*", "d", "e")
	for _, text := range []string{
		`{"d":1,"a":[{"b":1},{"c":[2,3]} , 4],"e":5}`, `{"a":[[],{}],"d":6,"d":7}`, `{"a":[1,2],"a":[3]}`,
		`{"a":[1,2`, `{"a":[1,2,`, `{"a":[1,2,]}`, `{"a":[1,2}`, `{"a":[1,2]`, `{"a":[1,{"b":1,"b":2}]}`, `{"a":[1 2]}`,
	} {
		var all []string
		var ends, counts []int // ends of elements, and how many values were found up to there
		err := paths.Find([]byte(text), func(path int, v Value) {
			all = append(all, fmt.Sprintf("%d=%s", path, text[v.Start:v.End]))
			if path == 1 {
				ends, counts = append(ends, v.End), append(counts, len(all))
			}
		})
		for i, end := range ends {
			var got []string
			asked := 0
			errAfter := paths.Search([]byte(text), &Search{
				Found: func(path int, v Value) { got = append(got, fmt.Sprintf("%d=%s", path, text[v.Start:v.End])) },
				KnownElementsEnd: func(path, start int) int {
					if asked++; path != 0 || asked > 1 {
						return 0
					}
					return end
				},
			})
			before := len(all) // values before the array
			for k, v := range all {
				if !strings.HasPrefix(v, "5=") && !strings.HasPrefix(v, "6=") {
					before = k
					break
				}
			}
			want := append(slices.Clone(all[:before]), all[counts[i]:]...)
			if !slices.Equal(got, want) || fmt.Sprint(errAfter) != fmt.Sprint(err) {
				t.Errorf("%s after %d: %q, %v\nwant %q, %v", text, end, got, errAfter, want, err)
			}
		}
	}
}

func TestFindExactRefusesLookAlikes(t *testing.T) {
	paths := CompilePaths("method", "params", "params.name", "params.kind", "list.*.name")
	for _, test := range []struct {
		name, text string
		want       error
	}{
		{"exact keys", `{"method":1,"params":{"name":2,"other":3}}`, nil},
		{"another case", `{"Method":1}`, ErrFolded},
		{"next to the key itself", `{"method":1,"METHOD":2}`, ErrFolded},
		{"in a nested object", `{"params":{"nAme":1}}`, ErrFolded},
		{"in a list", `{"list":[{"name":1,"NAME":2}]}`, ErrFolded},
		{"with a numeric escape", `{"\u004dethod":1}`, ErrFolded},
		{"the Kelvin sign", "{\"params\":{\"\u212aind\":1}}", ErrFolded},
		{"a null character at the end", `{"params":{"name":1,"name\u0000":2}}`, ErrFolded},
		{"several null characters and another case", `{"METHOD\u0000\u0000":1}`, ErrFolded},
		{"a null character elsewhere", `{"na\u0000me":1,"\u0000":2}`, nil},
		{"outside the paths", `{"params":{"other":{"Name":1}}}`, nil},
		{"another key", `{"methods":1,"param":2,"":3}`, nil},
		{"a repeated key", `{"method":1,"method":2}`, ErrDuplicate},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := paths.FindExact([]byte(test.text), func(int, Value) {}); !errors.Is(err, test.want) {
				t.Errorf("got %v", err)
			}
			if err := paths.Find([]byte(test.text), func(int, Value) {}); errors.Is(err, ErrFolded) {
				t.Errorf("Find: %v", err)
			}
		})
	}
}

func TestSearchReportsLookAlikes(t *testing.T) {
	paths := CompilePaths("method", "params.name", "params.kind")
	for _, test := range []struct {
		name, text string
		want       []int
	}{
		{"exact keys", `{"method":1,"params":{"name":2}}`, nil},
		{"another case", `{"METHOD":1,"params":{"Kind":1,"name":2}}`, []int{0, 2}},
		{"a key that paths lead through", `{"Params":{"Name":1}}`, []int{-1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var folded []int
			err := paths.Search([]byte(test.text), &Search{Found: func(int, Value) {},
				Folded: func(path int) { folded = append(folded, path) }})
			if err != nil || !slices.Equal(folded, test.want) {
				t.Errorf("got %v, %v", folded, err)
			}
		})
	}
}
