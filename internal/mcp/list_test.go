package mcp

import (
	"encoding/base64"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolpin"
)

func TestListItems(t *testing.T) {
	const message = `{"id":1,"result":{"nextCursor":"c","tools":[{"name":"\u0061"},{"x":1},{"name":5}, 7 ],` +
		`"cacheScope":"public","ttlMs":60,` +
		`"prompts":[],"resources":[{"name":"n","uri":"a:b"}],"resourceTemplates":[{"uriTemplate":"a:{x}"}],` +
		`"tasks":[{"taskId":"t"}],"skills":[{"uri":"c:d"}],"other":[{"name":"o"}]}}`
	var l List
	if failure := l.Read([]byte(message)); failure != nil {
		t.Fatal(failure)
	}
	var items []string
	for _, item := range l.Items {
		if string(item.Raw) != message[item.Start:item.End()] {
			t.Errorf("item %s is at the position of %s", item.Raw, message[item.Start:item.End()])
		}
		items = append(items, fmt.Sprintf("%d %q %t %s", item.Kind, item.Name, item.HasName(), item.Raw))
	}
	want := []string{`0 "a" true {"name":"\u0061"}`, `0 "" false {"x":1}`, `0 "" false {"name":5}`, `0 "" false 7`,
		`2 "a:b" true {"name":"n","uri":"a:b"}`, `3 "a:{x}" true {"uriTemplate":"a:{x}"}`, `4 "t" true {"taskId":"t"}`,
		`5 "c:d" true {"uri":"c:d"}`}
	if got := strings.Join(items, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("items are\n%s", got)
	}
	if l.Cursor != "c" || l.TTL != 60*time.Millisecond || !l.Is(jsonrpc.CacheScope, "public") {
		t.Errorf("cursor %q, TTL %s", l.Cursor, l.TTL)
	}
	if !l.HasList(Tools) || !l.HasList(Prompts) {
		t.Error("tools or prompts are missing")
	}
	if failure := l.Read([]byte(`{"id":1,"result":{"tools":{"a":{"name":"x"}}}}`)); failure != nil || l.HasList(Tools) ||
		l.HasList(Tasks) || len(l.Items) > 0 || l.Cursor != "" || l.TTL >= 0 {
		t.Errorf("an object was read as a list: %+v, %v", l.Items, failure)
	}
}

func TestListEdits(t *testing.T) {
	for _, test := range []struct{ name, message, want string }{
		{"a list without hidden items keeps its white space", `{"result": {"tools" : [ {"name":"a"} , {"name":"b"} ]}}`,
			`{"result": {"tools" : [ {"name":"x_a"} , {"name":"x_b"} ]}}`},
		{"the first item", `{"result":{"tools":[ {"name":"s"} , {"name":"a"},{"name":"b"}]}}`,
			`{"result":{"tools":[ {"name":"x_a"},{"name":"x_b"}]}}`},
		{"the last two items", `{"result":{"tools":[{"name":"a"} ,{"name":"s"}, {"name":"s2"} ]}}`,
			`{"result":{"tools":[{"name":"x_a"} ]}}`},
		{"the first two and the last", `{"result":{"tools":[{"name":"s"},{"name":"s"},{"name":"a"},{"name":"s"}]}}`,
			`{"result":{"tools":[{"name":"x_a"}]}}`},
		{"all items", `{"result":{"tools":[{"name":"s"}, {"name":"s"}],"prompts":[{"name":"p"}]}}`,
			`{"result":{"tools":[],"prompts":[{"name":"x_p"}]}}`},
		{"in two lists", `{"result":{"tools":[{"name":"a"},{"name":"s"}],"prompts":[{"name":"s"},{"name":"p"}]}}`,
			`{"result":{"tools":[{"name":"x_a"}],"prompts":[{"name":"x_p"}]}}`},
		{"a list that is an object is removed", `{"result":{"tools":{"a":{"name":"a"}},"prompts":[{"name":"p"}]}}`,
			`{"result":{"tools":[],"prompts":[{"name":"x_p"}]}}`},
		{"other members stay", `{"result":{"tools":"s","structuredContent":{"tools":[{"name":"s"}]}}}`, ""},
		{"with an edit of a field", `{"result":{"cacheScope":"public","tools":[{"name":"s"}]}}`,
			`{"result":{"cacheScope":"private","tools":[]}}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			var l List
			if failure := l.Read([]byte(test.message)); failure != nil {
				t.Fatal(failure)
			}
			var renames []jsonspan.Edit
			edits := l.Filter(func(item *Item) bool {
				if secret(item.Name) {
					return false
				}
				renames = append(renames, item.Rename("x_"+item.Name))
				return true
			})
			if l.Has(jsonrpc.CacheScope) {
				edits = append(edits, l.Replace(jsonrpc.CacheScope, []byte(`"private"`)))
			}
			if test.want == "" {
				test.want = test.message
			}
			if got := jsonspan.Spliced(l.Raw, append(edits, renames...)...); string(got) != test.want {
				t.Errorf("got %s\nwant %s", got, test.want)
			}
		})
	}
}

func TestAmbiguousLists(t *testing.T) {
	for _, test := range []struct {
		name, message  string
		repeats, folds bool
	}{
		{"a repeated list", `{"result":{"tools":[],"tools":[{"name":"s"}]}}`, true, false},
		{"a repeated name", `{"result":{"tools":[{"name":"a","name":"s"}]}}`, true, false},
		{"a repeated result", `{"result":{},"result":{}}`, true, false},
		{"a list in another case", `{"result":{"Tools":[{"name":"s"}]}}`, false, true},
		{"a name in another case", `{"result":{"tools":[{"name":"a","NAME":"s"}]}}`, false, true},
		{"a result in another case", `{"result":{},"Result":{}}`, false, true},
		{"other repeated members", `{"result":{"a":1,"a":2,"tools":[{"x":1,"x":2,"X":3}]}}`, false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			var l List
			failure := l.Read([]byte(test.message))
			if repeats := failure != nil; repeats != test.repeats || repeats && (len(l.Items) > 0 || l.Has(jsonrpc.Result)) {
				t.Fatalf("got %v with items %v", failure, l.Items)
			}
			if folds := failure == nil && l.CheckDecisive() != nil; folds != test.folds {
				t.Errorf("refused because of case: %t", folds)
			}
		})
	}
}

// BenchmarkList measures the processing of a page of a list in the gateway: cleaned, filtered,
// private, renamed.
func BenchmarkList(b *testing.B) {
	var text strings.Builder
	text.WriteString(`{"jsonrpc":"2.0","id":17,"result":{"cacheScope":"public","ttlMs":60000,"tools":[`)
	for i := range 100 {
		if i > 0 {
			text.WriteByte(',')
		}
		fmt.Fprintf(&text, `{"name":"tool_%d","title":"Tool %d","description":"Reads a file.\nUse it for \"small\" files,`+
			` and tool_%d for others.",`+
			`"inputSchema":{"type":"object","properties":{"path":{"type":"string","description":"Where the file is"},`+
			`"limit":{"type":"integer","minimum":1}},"required":["path"]}}`, i, i, i+1)
	}
	text.WriteString(`]}}`)
	data := []byte(text.String())
	keep := func(name string) bool { return name != "tool_7" && name != "tool_50" }
	check := func(ok bool) {
		if !ok {
			b.Fatal("not read")
		}
	}
	for _, way := range []struct {
		name string
		run  func() (items int)
	}{
		{"List", func() (items int) {
			var l List
			check(l.Read(toolpin.Clean(data)) == nil && l.CheckDecisive() == nil)
			edits := l.Filter(func(item *Item) bool {
				kept := toolpin.IsPlainName(item.Name) && keep(item.Name)
				if kept {
					items++
				}
				return kept
			})
			edits = append(edits, l.Replace(jsonrpc.CacheScope, []byte(`"private"`)))
			check(len(jsonspan.Spliced(l.Raw, edits...)) > 0)
			return items
		}},
		{"only Clean", func() int {
			check(len(toolpin.Clean(data)) == len(data))
			return 98
		}},
		{"only Read", func() int {
			check(new(jsonrpc.Message).Read(data) == nil)
			return 98
		}},
	} {
		b.Run(way.name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				check(way.run() == 98)
			}
		})
	}
}

func TestFilterLists(t *testing.T) {
	hidden := map[string]bool{"secret": true, "file:///secret": true, "file:///secret/{x}": true}
	keep := func(item *Item) bool { return !hidden[item.Name] }
	for _, test := range []struct{ name, message, want string }{
		{"a list without hidden items stays unchanged", `{"result": {"tools" : [ {"name":"a"} , {"name":"b"} ]}}`, ""},
		{"a hidden tool is removed",
			`{"result":{"tools":[{"name":"a"}, {"x":1,"name":"secret"},{"name":"b"}],"nextCursor":"1"}}`,
			`{"result":{"tools":[{"name":"a"},{"name":"b"}],"nextCursor":"1"}}`},
		{"a name with escapes is the name", `{"result":{"tools":[{"name":"secre\u0074"}]}}`, `{"result":{"tools":[]}}`},
		{"prompts are filtered", `{"result":{"prompts":[{"name":"secret"},{"name":"p"}]}}`,
			`{"result":{"prompts":[{"name":"p"}]}}`},
		{"resources are filtered by URI",
			`{"result":{"resources":[{"name":"secret","uri":"file:///a"},{"name":"a","uri":"file:///secret"}]}}`,
			`{"result":{"resources":[{"name":"secret","uri":"file:///a"}]}}`},
		{"templates are filtered by URI template",
			`{"result":{"resourceTemplates":[{"uriTemplate":"file:///secret/{x}","name":"t"}]}}`,
			`{"result":{"resourceTemplates":[]}}`},
		{"a later list is filtered by its own names", `{"result":{"tools":[{"name":"secret"}],"prompts":[{"name":"p"}]}}`,
			`{"result":{"tools":[],"prompts":[{"name":"p"}]}}`},
		{"an item without a name after a hidden item", `{"result":{"tools":[{"name":"secret"},{}]}}`,
			`{"result":{"tools":[{}]}}`},
		{"an object instead of a list becomes empty", `{"result":{"tools":{"name":"secret"}}}`, `{"result":{"tools":[]}}`},
		{"nested members stay", `{"result":{"structuredContent":{"tools":[{"name":"secret"}]}}}`,
			""},
		{"errors stay", `{"error":{"code":1}}`, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.want == "" {
				test.want = test.message
			}
			got, err := filterLists([]byte(test.message), keep)
			if err != nil || string(got) != test.want {
				t.Errorf("got %s, %v\nwant %s", got, err, test.want)
			}
		})
	}
	t.Run("a repeated list is an error", func(t *testing.T) {
		if _, err := filterLists([]byte(`{"result":{"tools":[],"tools":[{"name":"secret"}]}}`), keep); err == nil {
			t.Error("no error")
		}
	})
}

func TestCursor(t *testing.T) { // A19
	if got := Cursor(2); got != "eyJvZmZzZXQiOjJ9" {
		t.Errorf("got %s", got)
	}
	for _, offset := range []int{0, 1, 2, 10, 12345, math.MaxInt} {
		if got, err := ParseCursor(Cursor(offset)); got != offset || err != nil {
			t.Errorf("%d became %d, %v", offset, got, err)
		}
	}
}

func TestParseCursor(t *testing.T) { // A19, A20, R20
	encode := base64.RawURLEncoding.EncodeToString
	// The base64 of this text has + or -, / or _, and padding.
	const odd = `{"offset":7,"x":"~~~???>>>"}`
	tests := []struct {
		name   string
		cursor string
		want   int // -1: an error
	}{
		{"the first offset", encode([]byte(`{"offset":0}`)), 0},
		{"white space", encode([]byte(` { "offset" : 3 } `)), 3},
		{"URL-safe", base64.RawURLEncoding.EncodeToString([]byte(odd)), 7},
		{"URL-safe and padded", base64.URLEncoding.EncodeToString([]byte(odd)), 7},
		{"standard", base64.RawStdEncoding.EncodeToString([]byte(odd)), 7},
		{"standard and padded", base64.StdEncoding.EncodeToString([]byte(odd)), 7},

		{"empty", "", -1},
		{"not base64", "!", -1},
		{"a line break", Cursor(2) + "\n", -1},
		{"a number that is not encoded", "12", -1},
		{"not JSON", encode([]byte(`offset`)), -1},
		{"not an object", encode([]byte(`2`)), -1},
		{"an array", encode([]byte(`[2]`)), -1},
		{"null", encode([]byte(`null`)), -1},
		{"no offset", encode([]byte(`{}`)), -1},
		{"a nested offset", encode([]byte(`{"x":{"offset":2}}`)), -1},
		{"a fraction", encode([]byte(`{"offset":1.5}`)), -1},
		{"an exponent", encode([]byte(`{"offset":1e2}`)), -1},
		{"a string", encode([]byte(`{"offset":"2"}`)), -1},
		{"an offset that is null", encode([]byte(`{"offset":null}`)), -1},
		{"an object", encode([]byte(`{"offset":{}}`)), -1},
		{"a negative offset", encode([]byte(`{"offset":-1}`)), -1},
		{"more than the maximum int", encode([]byte(`{"offset":9223372036854775808}`)), -1},
		{"many digits", encode([]byte(`{"offset":100000000000000000000000000}`)), -1},
		{"a leading zero", encode([]byte(`{"offset":02}`)), -1},
		{"two offsets", encode([]byte(`{"offset":1,"offset":2}`)), -1},
		{"text after it", encode([]byte(`{"offset":1}{"offset":1}`)), -1},
		{"truncated", encode([]byte(`{"offset":1`)), -1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseCursor(tt.cursor)
			if want := max(tt.want, 0); got != want || (err != nil) != (tt.want < 0) {
				t.Errorf("got %d, %v", got, err)
			}
		})
	}
}

func TestReadAnnotations(t *testing.T) {
	for _, test := range []struct {
		name, tool string
		want       Annotations
	}{
		{"none", `{"name":"x"}`, Destructive | OpenWorld},
		{"an empty object", `{"annotations":{}}`, Destructive | OpenWorld},
		{"read-only", `{"annotations":{"readOnlyHint":true}}`, ReadOnly | OpenWorld},
		{"read-only and destructive", `{"annotations":{"destructiveHint":true,"readOnlyHint":true}}`, ReadOnly | OpenWorld},
		{"the opposite of the defaults", `{"annotations":{"readOnlyHint":true,"idempotentHint":true,"openWorldHint":false}}`,
			ReadOnly | Idempotent},
		{"not destructive", `{"annotations":{"destructiveHint":false}}`, OpenWorld},
		{"escaped", `{"annotations":{"readOnly\u0048int":true}}`, ReadOnly | OpenWorld},
		{"a string", `{"annotations":{"readOnlyHint":"true"}}`, Unannotated},
		{"null", `{"annotations":{"destructiveHint":null}}`, Unannotated},
		{"another case", `{"annotations":{"ReadOnlyHint":true}}`, Unannotated},
		{"a hint twice", `{"annotations":{"readOnlyHint":true,"readOnlyHint":true}}`, Unannotated},
		{"annotations twice", `{"annotations":{"readOnlyHint":true},"annotations":{"readOnlyHint":true}}`, Unannotated},
		{"not an object", `{"annotations":[{"readOnlyHint":true}]}`, Unannotated},
		{"elsewhere", `{"_meta":{"annotations":{"readOnlyHint":true}},"readOnlyHint":true}`, Unannotated},
	} {
		if got := ReadAnnotations([]byte(test.tool)); got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}
