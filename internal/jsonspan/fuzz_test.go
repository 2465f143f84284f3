package jsonspan

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// A walker is the reference for Find and FindExact: it reads the tokens of encoding/json
// and collects the values at paths.
type walker struct {
	*json.Decoder
	text  []byte
	paths [][]string
	exact bool
	found []finding
}

type finding struct {
	path  int
	value string
}

// element is the key of array elements in a place.
const element = "\x00"

// value reads the next value, which is at place.
func (w *walker) value(place []string) error {
	before := w.InputOffset()
	token, err := w.Token()
	if err != nil {
		return err
	}
	start := before + int64(bytes.IndexFunc(w.text[before:], func(c rune) bool {
		return !strings.ContainsRune(" \t\r\n,:", c)
	}))
	if open, container := token.(json.Delim); container {
		if err := w.container(open, place); err != nil {
			return err
		}
	}
	for i, path := range w.paths {
		if leads(path, place) && len(path) == len(place) {
			w.found = append(w.found, finding{i, string(w.text[start:w.InputOffset()])})
		}
	}
	return nil
}

func (w *walker) container(open json.Delim, place []string) error {
	seen := map[string]bool{}
	for w.More() {
		at := append(slices.Clone(place), element)
		if open == '{' {
			token, err := w.Token()
			if err != nil {
				return err
			}
			key := token.(string)
			at[len(place)] = key
			names := w.keys(place)
			switch {
			case slices.Contains(names, key) && seen[key]:
				return ErrDuplicate
			case w.exact && !slices.Contains(names, key) && slices.ContainsFunc(names,
				func(name string) bool { return strings.EqualFold(name, strings.TrimRight(key, "\x00")) }):
				return ErrFolded
			}
			seen[key] = true
		}
		if err := w.value(at); err != nil {
			return err
		}
	}
	_, err := w.Token()
	return err
}

// keys returns the keys that paths name in an object at place.
func (w *walker) keys(place []string) (keys []string) {
	for _, path := range w.paths {
		if leads(path, place) && len(path) > len(place) && path[len(place)] != "*" {
			keys = append(keys, path[len(place)])
		}
	}
	return keys
}

// leads reports whether path leads to or through place.
func leads(path, place []string) bool {
	if len(path) < len(place) {
		return false
	}
	for i := range place {
		if path[i] != "*" && path[i] != place[i] {
			return false
		}
	}
	return true
}

// FuzzFindExact checks that Find reports the same values as a walker, and that FindExact
// refuses keys that differ only in case or trailing null characters.
func FuzzFindExact(f *testing.F) {
	for _, text := range texts {
		f.Add([]byte(text))
	}
	for _, text := range []string{
		`{"method":"m","params":{"name":[1,{"name":2}],"kind":{}},"list":[{"name":"a"},{"name":"b","x":[]},3]}`,
		`{"method":1,"METHOD":2,"params":{"\u006e\u0061me":1,"na\u006de":2}}`, "{\"params\":{\"\u212aind\":1,\"\u017f\":2}}",
		`{"list":{"a":{"name":1},"b":{"Name":2}},"grid":[[1,2],{"a":[3]},"x"]}`, `{"io.x/y":{"a":1},"io":{"x/y":2},"":3}`,
		`[{"method":1,"method":2}]`, `{"params":{"name":1}`,
		`{"\u004dethod":1}`, `{"params":{"name\u0000":1}}`, `{"list":[{"NAME\u0000\u0000":1}]}`,
		`{"params":{"na\u0000me":1,"\u0000":2}}`,
	} {
		f.Add([]byte(text))
	}
	names := []string{"method", "params", "params.name", "params.kind", "list.*.name", "list.*", "grid.*.*", `io\.x/y.a`}
	paths := CompilePaths(names...)
	var split [][]string
	for _, name := range names {
		path := strings.Split(strings.ReplaceAll(name, `\.`, element), ".")
		for i := range path {
			path[i] = strings.ReplaceAll(path[i], element, ".")
		}
		split = append(split, path)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for exact, find := range map[bool]func([]byte, func(int, Value)) error{false: paths.Find, true: paths.FindExact} {
			var found []finding
			err := find(text, func(path int, v Value) {
				found = append(found, finding{path, string(text[v.Start:v.End])})
			})
			if !json.Valid(text) {
				if err == nil {
					t.Fatalf("%q was accepted", text)
				}
				continue
			}
			if errors.Is(err, ErrDepth) {
				continue
			}
			w := walker{Decoder: json.NewDecoder(bytes.NewReader(text)), text: text, paths: split, exact: exact}
			w.UseNumber()
			if want := w.value(nil); !errors.Is(err, want) || (err == nil) != (want == nil) {
				t.Fatalf("%q, exact %t: %v, want %v", text, exact, err, want)
			}
			if err == nil && !slices.Equal(found, w.found) {
				t.Fatalf("%q, exact %t: found %+v, want %+v", text, exact, found, w.found)
			}
		}
	})
}

// A pair is a member of an object or an element of an array.
type pair struct{ key, value string }

// pairs returns the members or elements of text, read with encoding/json.
func pairs(t *testing.T, text []byte) (all []pair) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	open, err := d.Token()
	for err == nil && d.More() {
		var key json.Token = ""
		if open == json.Delim('{') {
			key, _ = d.Token()
		}
		var value json.RawMessage
		err = d.Decode(&value)
		all = append(all, pair{key.(string), string(value)})
	}
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return all
}

// FuzzMembers checks that Members and Elements report all members and elements, and that
// adding or removing a member leaves the bytes of the others unchanged.
func FuzzMembers(f *testing.F) {
	for _, text := range texts {
		f.Add([]byte(text), "a")
	}
	for _, text := range []string{`{}`, ` { "a" : 1 , "b" :{"a":2}, "\u0061":[ ] }`, `{"a":1}`, `{"b":1,"a":2}`, "{\n}",
		`[ 1,[2] ,{"a":3}]`, `{"a":1,}`, `{"a" 1}`, `{"x":{`, "{\"\xff\":1}"} {
		f.Add([]byte(text), "a")
	}
	f.Add(bytes.Repeat([]byte("["), DefaultMaxDepth+1), "a")
	f.Add([]byte("{\"\":{\"\xe4"), "a")
	f.Add([]byte("{\"\xc9\xc9\xc9\xc9\xc9\xc9\xc9\xc9\":1"), "a")
	f.Fuzz(func(t *testing.T, text []byte, key string) {
		var members, elements []pair
		for m := range Members(text) {
			if m.Start > m.Value.Start || m.Value.End != m.End || m.End > len(text) {
				t.Fatalf("%q: a member at %+v", text, m)
			}
			members = append(members, pair{m.Key, string(text[m.Value.Start:m.Value.End])})
		}
		for v := range Elements(text) {
			elements = append(elements, pair{"", string(text[v.Start:v.End])})
		}
		trimmed := bytes.TrimLeft(text, " \t\r\n")
		isObject, isArray := bytes.HasPrefix(trimmed, []byte("{")), bytes.HasPrefix(trimmed, []byte("["))
		if !isObject && members != nil || !isArray && elements != nil {
			t.Fatalf("%q has members %q and elements %q", text, members, elements)
		}
		if !json.Valid(text) || bytes.Count(text, []byte("[")) > DefaultMaxDepth/2 || bytes.Count(text,
			[]byte("{")) > DefaultMaxDepth/2 {
			return
		}
		if isArray && !slices.Equal(elements, pairs(t, text)) {
			t.Fatalf("%q has the elements %q", text, elements)
		}
		if !isObject {
			return
		}
		if want := pairs(t, text); !slices.Equal(members, want) {
			t.Fatalf("%q has the members %q, want %q", text, members, want)
		}
		at := slices.IndexFunc(members, func(m pair) bool { return m.key == key })
		e, found := Remove(text, key)
		if found != (at >= 0) {
			t.Fatalf("%q in %q: %t", key, text, found)
		}
		if found {
			without := Spliced(text, e)
			if !json.Valid(without) || !slices.Equal(pairs(t, without), slices.Delete(slices.Clone(members), at, at+1)) {
				t.Fatalf("%q without %q is %q", text, key, without)
			}
		}
		with := Spliced(text, Insert(text, []byte(`"new":[1]`)))
		if !json.Valid(with) || !slices.Equal(pairs(t, with), append([]pair{{"new", "[1]"}}, members...)) {
			t.Fatalf("%q became %q", text, with)
		}
	})
}

// FuzzReader checks that a Reader returns the same bytes as edits applied by copying,
// regardless of the sizes of reads.
func FuzzReader(f *testing.F) {
	f.Add([]byte(`{"a":1,"b":[2,3]}`), []byte{5, 1, 3, 0, 0, 2}, uint8(0))
	f.Add([]byte("abc"), []byte{0, 3, 0}, uint8(2))
	f.Add([]byte{}, []byte{0, 0, 5, 0, 0, 5}, uint8(1))
	f.Add([]byte("abc"), []byte{}, uint8(0))
	f.Fuzz(func(t *testing.T, src, plan []byte, size uint8) {
		src, plan = src[:min(len(src), 1000)], plan[:min(len(plan), 30)] // short enough to read byte by byte
		// Three bytes make an edit: bytes to skip, bytes to remove, bytes to insert.
		var edits []Edit
		var want []byte
		at := 0
		for step := range slices.Chunk(plan, 3) {
			if len(step) < 3 {
				break
			}
			start := min(at+int(step[0]), len(src))
			e := Edit{start, min(start+int(step[1]), len(src)), bytes.Repeat([]byte{'x'}, int(step[2]))}
			want = append(append(want, src[at:e.Start]...), e.New...)
			edits, at = append(edits, e), e.End
		}
		want = append(want, src[at:]...)
		r := NewReader(src, edits)
		if r.Len() != len(want) {
			t.Fatalf("%d bytes are left, want %d", r.Len(), len(want))
		}
		var got []byte
		for piece := make([]byte, int(size)+1); ; {
			n, err := r.Read(piece)
			got = append(got, piece[:n]...)
			if r.Len() != len(want)-len(got) {
				t.Fatalf("after %d of %d bytes %d are left", len(got), len(want), r.Len())
			}
			if err == io.EOF {
				break
			}
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("read %q, want %q", got, want)
		}
		moved := make([]Edit, len(edits))
		for i, e := range edits {
			moved[i] = e.Moved(2)
		}
		if spliced := Spliced(append([]byte("ab"), src...), moved...); string(spliced) != "ab"+string(want) {
			t.Fatalf("moved: %q, want %q", spliced, want)
		}
	})
}

// FuzzAppendLine checks that a text on one line has the same value and length.
func FuzzAppendLine(f *testing.F) {
	for _, text := range texts {
		f.Add([]byte(text))
	}
	f.Add([]byte("{\r\n\t\"a\" :\n[1,\r2]}\n"))
	f.Add([]byte("{\"a\":\"\u2028\u0085\\n\"}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		before := bytes.Clone(text)
		line := AppendLine([]byte("\r\n"), text)
		if !bytes.Equal(text, before) || !bytes.HasPrefix(line, []byte("\r\n")) {
			t.Fatalf("%q became %q before %q", before, text, line)
		}
		line = line[2:]
		if len(line) != len(text) || bytes.ContainsAny(line, "\r\n") {
			t.Fatalf("%q on one line is %q", text, line)
		}
		if json.Valid(text) && !reflect.DeepEqual(decode(t, line), decode(t, text)) {
			t.Fatalf("%q does not have the same value as %q", line, text)
		}
	})
}
