package jsonspan

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func members(text string) (all []string) {
	for m := range Members([]byte(text)) {
		all = append(all, fmt.Sprintf("%s is %d %s in %s", m.Key, m.Value.Kind, text[m.Value.Start:m.Value.End],
			text[m.Start:m.End]))
	}
	return all
}

func TestMembers(t *testing.T) {
	for _, test := range []struct {
		name, text string
		want       []string
	}{
		{"members of every kind", `{"a":1,"b":"x","c":[2],"d":{"a":3},"e":null}`, []string{`a is 9 1 in "a":1`,
			`b is 8 "x" in "b":"x"`, `c is 5 [2] in "c":[2]`, `d is 3 {"a":3} in "d":{"a":3}`, `e is 12 null in "e":null`}},
		{"white space around members",
			" {\n\"a\" : 1 ,\t\"b\" :\r2 } ", []string{`a is 9 1 in "a" : 1`, "b is 9 2 in \"b\" :\r2"}},
		{"keys with escapes", `{"na\u006de":1,"":2,"\ud83d\ude00\n":3}`, []string{`name is 9 1 in "na\u006de":1`,
			` is 9 2 in "":2`, "😀\n is 9 3 in \"\\ud83d\\ude00\\n\":3"}},
		{"repeated keys", `{"a":1,"a":2}`, []string{`a is 9 1 in "a":1`, `a is 9 2 in "a":2`}},
		{"an empty object", ` { } `, nil},
		{"an array", `[{"a":1}]`, nil},
		{"a string", `"{\"a\":1}"`, nil},
		{"an empty text", ``, nil},
		{"up to an error", `{"a":1,"b":tru,"c":2}`, []string{`a is 9 1 in "a":1`}},
		{"up to a missing colon", `{"a":1,"b"}`, []string{`a is 9 1 in "a":1`}},
		{"up to a missing key", `{"a":1,}`, []string{`a is 9 1 in "a":1`}},
		{"up to a missing comma", `{"a":1 "b":2}`, []string{`a is 9 1 in "a":1`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := members(test.text); !slices.Equal(got, test.want) {
				t.Errorf("got %q\nwant %q", got, test.want)
			}
		})
	}
}

func TestElements(t *testing.T) {
	for _, test := range []struct {
		name, text string
		want       []string
	}{
		{"elements of every kind", `[1,"x",[2],{"a":3},null]`, []string{`1`, `"x"`, `[2]`, `{"a":3}`, `null`}},
		{"white space around elements", " [\n1 ,\t[ ] ,\r\"\" ] ", []string{`1`, `[ ]`, `""`}},
		{"an empty array", ` [ ] `, nil},
		{"an object", `{"a":[1]}`, nil},
		{"a blank text", ` `, nil},
		{"up to an error", `[1,[2}]`, []string{`1`}},
		{"up to a missing element", `[1,]`, []string{`1`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			for v := range Elements([]byte(test.text)) {
				got = append(got, test.text[v.Start:v.End])
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got %q\nwant %q", got, test.want)
			}
		})
	}
	for v := range Elements([]byte(`["\u0061b",1]`)) {
		if v.Kind != String || v.Chars != 2 || !v.HasUnicodeEscapes {
			t.Errorf("%+v", v)
		}
		break
	}
	for m := range Members([]byte(`{"a":1,"b":2}`)) {
		if m.Key != "a" {
			t.Errorf("%+v", m)
		}
		break
	}
}

func splice(t *testing.T, text string, e Edit) string {
	t.Helper()
	var out strings.Builder
	if err := Splice(&out, []byte(text), []Edit{e}); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestRemove(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"the first", `{"k":1,"b":2}`, `{"b":2}`},
		{"a member between others", `{"a":0, "k":1, "b":2}`, `{"a":0, "b":2}`},
		{"the last", `{"a":0 , "k":1 }`, `{"a":0 }`},
		{"the only member", ` { "k":[1,{}] } `, ` {  } `},
		{"a key with an escape", `{"a":0,"\u006b":"\"},{"}`, `{"a":0}`},
		{"the first of two equal keys", `{"k":1,"k":2}`, `{"k":2}`},
		{"a nested member", `{"a":{"k":1}}`, ``},
		{"an empty object", `{}`, ``},
		{"an array", `["k"]`, ``},
	} {
		t.Run(test.name, func(t *testing.T) {
			e, ok := Remove([]byte(test.text), "k")
			if ok != (test.want != "") {
				t.Fatalf("%+v, %t", e, ok)
			}
			if !ok {
				return
			}
			if got := splice(t, test.text, e); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestRemoval(t *testing.T) {
	for _, test := range []struct{ name, text, want, with string }{
		{"all members", ` { "k":1 , "k" : 2 } `, ` {  } `, ` {"n":1  } `},
		{"the first", `{"k":1, "a":2}`, `{"a":2}`, `{"a":2,"n":1}`},
		{"members between others", `{"a":0, "k":1,"\u006b":{}, "b":2 }`, `{"a":0, "b":2 }`, `{"a":0, "b":2,"n":1 }`},
		{"the last", `{"a":0 , "k":1 }`, `{"a":0 }`, `{"a":0,"n":1 }`},
		{"in several places", `{"k":1,"a":0,"k":1,"b":0,"k":1,"k":2}`, `{"a":0,"b":0}`, `{"a":0,"b":0,"n":1}`},
		{"no such member", `{ "a":{"k":1} }`, `{ "a":{"k":1} }`, `{ "a":{"k":1},"n":1 }`},
		{"an empty object", ` { }`, ` { }`, ` {"n":1 }`},
	} {
		t.Run(test.name, func(t *testing.T) {
			var r Removal
			for m := range Members([]byte(test.text)) {
				r.Visit(m, m.Key == "k")
			}
			with := r
			if got := string(Spliced([]byte(test.text), r.Edits([]byte(test.text), nil)...)); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
			if got := string(Spliced([]byte(test.text), with.Edits([]byte(test.text), []byte(`"n":1`))...)); got != test.with {
				t.Errorf("with a new member: got %s, want %s", got, test.with)
			}
		})
	}
}

func TestInsert(t *testing.T) {
	member := []byte(`"k":"v" `)[:7]
	for text, want := range map[string]string{
		`{}`:             `{"k":"v"}`,
		` { } `:          ` {"k":"v" } `,
		`{"a":1}`:        `{"k":"v","a":1}`,
		" {\n\"a\":{}} ": " {\"k\":\"v\",\n\"a\":{}} ",
	} {
		if got := splice(t, text, Insert([]byte(text), member)); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if got := string(member[:8]); got != `"k":"v" ` {
		t.Errorf("wrote after the member: %s", got)
	}
}

func TestAppend(t *testing.T) {
	member := []byte(`"k":"v" `)[:7]
	for text, want := range map[string]string{
		`{}`:               `{"k":"v"}`,
		` { } `:            ` { "k":"v"} `,
		`{"a":"}"}`:        `{"a":"}","k":"v"}`,
		" {\n\"a\":{}\n} ": " {\n\"a\":{},\"k\":\"v\"\n} ",
	} {
		if got := splice(t, text, Append([]byte(text), member)); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if got := string(member[:8]); got != `"k":"v" ` {
		t.Errorf("wrote after the member: %s", got)
	}
}

// Members and Elements report the same values as encoding/json, and adding or removing a
// member changes nothing else.
func TestMembersAreThoseOfEncodingJSON(t *testing.T) {
	g := generator{rand.New(rand.NewPCG(3, 4))}
	for range 2000 {
		text := string(g.append(nil, 3))
		var elements []any
		for v := range Elements([]byte(text)) {
			elements = append(elements, decode(t, []byte(text[v.Start:v.End])))
		}
		object := map[string]any{}
		for m := range Members([]byte(text)) {
			object[m.Key] = decode(t, []byte(text[m.Value.Start:m.Value.End]))
			if !json.Valid([]byte("{" + text[m.Start:m.End] + "}")) {
				t.Errorf("member %s", text[m.Start:m.End])
			}
		}
		switch want := decode(t, []byte(text)).(type) {
		case []any:
			if len(object) > 0 || len(want)+len(elements) > 0 && !reflect.DeepEqual(elements, want) {
				t.Errorf("%s: %v, %v", text, object, elements)
			}
		case map[string]any:
			if len(elements) > 0 || !reflect.DeepEqual(object, want) {
				t.Fatalf("%s: %v, %v", text, object, elements)
			}
			for key, value := range want {
				e, ok := Remove([]byte(text), key)
				without := splice(t, text, e)
				delete(want, key)
				if got := decode(t, []byte(without)); !ok || !reflect.DeepEqual(got, any(want)) {
					t.Errorf("%s without %s is %s", text, key, without)
				}
				want[key] = value
			}
			want["new"] = json.Number("1")
			with := splice(t, text, Insert([]byte(text), []byte(`"new":1`)))
			if got := decode(t, []byte(with)); !reflect.DeepEqual(got, any(want)) {
				t.Errorf("%s with a new member is %s", text, with)
			}
		default:
			if len(object)+len(elements) > 0 {
				t.Errorf("%s: %v, %v", text, object, elements)
			}
		}
	}
}
