package toolpin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func TestEqualDefinitions(t *testing.T) {
	for _, test := range []struct{ name, a, b string }{
		{"in another order", `{"name":"a","inputSchema":{"type":"object","x":1}}`,
			`{"inputSchema":{"x":1,"type":"object"},"name":"a"}`},
		{"with other white space", `{"name":"a","icons":[1,2]}`, " {\n\t\"name\" : \"a\",\r\n\"icons\": [ 1 , 2 ] } "},
		{"with other escapes", `{"description":"é/\n😀"}`, `{"descri\u0070tion":"\u00e9\/\u000a\ud83d\uDE00"}`},
		{"with metadata in another order", `{"name":"a","_meta":{"ui":{"resourceUri":"ui://a"},"at":1}}`,
			`{"_meta":{"at":1,"ui":{"resourceUri":"ui://a"}},"name":"a"}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			if digestOf([]byte(test.a)) != digestOf([]byte(test.b)) {
				t.Errorf("%s and %s have different digests", test.a, test.b)
			}
		})
	}
}

func TestDifferentDefinitions(t *testing.T) {
	long := `{"name":"` + strings.Repeat("a", maxRead) + `"`
	for _, test := range []struct{ name, a, b string }{
		{"another description", `{"description":"a"}`, `{"description":"b"}`},
		{"hidden characters", `{"description":"a"}`, `{"description":"a\u200b"}`},
		{"an additional member", `{"name":"a"}`, `{"name":"a","title":"a"}`},
		{"another annotation", `{"annotations":{"readOnlyHint":true}}`, `{"annotations":{"readOnlyHint":false}}`},
		{"another icon", `{"icons":[{"src":"a"}]}`, `{"icons":[{"src":"b"}]}`},
		{"elements in another order", `{"required":["a","b"]}`, `{"required":["b","a"]}`},
		{"a number written in another way", `{"minimum":1}`, `{"minimum":1.0}`},
		{"a number and a string", `{"default":1}`, `{"default":"1"}`},
		{"a literal and a string", `{"default":null}`, `{"default":"null"}`},
		{"an empty array and an empty object", `{"x":[]}`, `{"x":{}}`},
		{"the same values elsewhere", `{"a":{"b":1},"c":{}}`, `{"a":{},"c":{"b":1}}`},
		{"a key and a value exchanged", `{"a":"b"}`, `{"b":"a"}`},
		{"elements in one array or two", `[["a"],["b"]]`, `[["a","b"],[]]`},
		{"other metadata", `{"name":"a","_meta":{"ui":{"resourceUri":"ui://a"}}}`,
			`{"name":"a","_meta":{"ui":{"resourceUri":"ui://b"}}}`},
		{"metadata and none", `{"name":"a","_meta":{}}`, `{"name":"a"}`},
		{"a parameter called _meta", `{"inputSchema":{"properties":{"_meta":{}}}}`, `{"inputSchema":{"properties":{}}}`},
		{"another lone surrogate", `{"title":"\ud800"}`, `{"title":"\ud801"}`},
		{"another lone surrogate in a key", `{"\ud800":1}`, `{"\ud801":1}`},
		{"another byte that is not UTF-8", "{\"title\":\"\xff\"}", "{\"title\":\"\xfe\"}"},
		{"a key twice, in another order", `{"a":1,"a":2}`, `{"a":2,"a":1}`},
		{"a key twice, or once", `{"a":1,"a":1}`, `{"a":1}`},
		{"invalid JSON", `{"a":1`, `{"a": 1`},
		{"empty and blank", ``, ` `},
		{"definitions too long to parse", long + `}`, long + ` }`},
	} {
		t.Run(test.name, func(t *testing.T) {
			if digestOf([]byte(test.a)) == digestOf([]byte(test.b)) {
				t.Errorf("%s and %s have the same digest", test.a, test.b)
			}
		})
	}
}

// FuzzDefinition compares the digests of two texts with their values in encoding/json.
func FuzzDefinition(f *testing.F) {
	f.Add([]byte(`{"name":"a","icons":[1,{}],"x":null}`), []byte(`{"icons":[1, {}],"x":null,"n\u0061me":"a"}`))
	f.Add([]byte(`{"a":[1,[2]],"_meta":1}`), []byte(`{"a":[[1],2],"_meta":2}`))
	f.Add([]byte(`[true,false,"\ud800"]`), []byte(`[true,false,"\ud801"]`))
	f.Add([]byte(`{"a":1,"a":2}`), []byte(`{"a":1`))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		if !json.Valid(a) || !json.Valid(b) {
			if digestOf(a) == digestOf(b) && !bytes.Equal(a, b) {
				t.Errorf("%q and %q have the same digest", a, b)
			}
			return
		}
		said, saidToo := decode(t, a), decode(t, b)
		if digestOf(a) == digestOf(b) && !reflect.DeepEqual(said, saidToo) {
			t.Errorf("%q and %q have the same digest", a, b)
		}
		// Text that encoding/json has written does not repeat keys.
		rewritten, err := json.Marshal(said)
		if err != nil {
			t.Fatal(err)
		}
		var indented bytes.Buffer
		if err := json.Indent(&indented, rewritten, " ", "\t"); err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(rewritten, []byte(`\ufffd`)) && digestOf(rewritten) != digestOf(indented.Bytes()) {
			t.Errorf("%q and %q have different digests", rewritten, indented.Bytes())
		}
	})
}

func decode(t *testing.T, raw []byte) (v any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	if object, ok := v.(map[string]any); ok {
		delete(object, "_meta")
	}
	return v
}

func BenchmarkDefine(b *testing.B) {
	raw := descriptor(1, "Reads a file of the project and returns its lines, each with its number.")
	b.SetBytes(int64(len(raw)))
	b.ReportAllocs()
	for b.Loop() {
		digestOf(raw)
	}
}

// descriptor returns a typical descriptor of a tool.
func descriptor(i int, description string) []byte {
	return fmt.Appendf(
		nil,
		`{"name":"tool_%d","title":"Read file","description":%q,"inputSchema":{"type":"object",`+
			`"properties":{"path":{"type":"string","description":"The file to read, relative to the root of the project."},`+
			`"start":{"type":"integer","minimum":1},"end":{"type":"integer","minimum":1}},"required":["path"],`+
			`"additionalProperties":false},"annotations":{"readOnlyHint":true,"openWorldHint":false}}`,
		i,
		description,
	)
}
