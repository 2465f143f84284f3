package recovery

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/itchyny/gojq"
)

const shop = `{"items":[{"id":1,"state":"open","tags":["a","b"],"price":1.50,"big":12345678901234567890123},` +
	`{"id":2,"state":"closed","tags":[],"price":2},{"id":3,"state":"open","tags":["b"],"price":0.5}],` +
	`"next":null,"body":"{\"n\": 7}","é":"漢字"}`

func TestQuery(t *testing.T) {
	for _, test := range []struct {
		name, text, query string
		max               int
		want, note        string
	}{
		{"a value", shop, `.next`, 0, "null", "[results: 1]"},
		{"results in lines", shop, `.items[] | select(.state=="open") | {id,price}`, 0, `{"id":1,"price":1.50}` + "\n" +
			`{"id":3,"price":0.5}`, "[results: 2]"},
		{"numbers stay unchanged", shop, `.items[0].big`, 0, `12345678901234567890123`, "[results: 1]"},
		{"numbers beyond 64 bits", shop, `.items[0].big + 1`, 0, `12345678901234567890124`, "[results: 1]"},
		{"strings are JSON", shop, `.["é"], "a\n"`, 0, "\"漢字\"\n\"a\\n\"", "[results: 2]"},
		{"JSON in a string", shop, `.body | fromjson | .n`, 0, "7", "[results: 1]"},
		{"regular expressions", shop, `[.items[].state | test("^O"; "i")]`, 0, "[true,false,true]", "[results: 1]"},
		{"the whole value", `[1, {"b":2,"a":1}]`, `.`, 0, `[1,{"a":1,"b":2}]`, "[results: 1]"},
		{"JSON lines", `{"n":1}` + "\n" + `{"n":2}` + "\n", `map(.n) | add`, 0, "3", "[results: 1]"},
		{"after a byte order mark", "\ufeff" + shop, `.next`, 0, "null", "[results: 1]"},
		{"no results", shop, `.items[] | select(.id > 9)`, 0,
			`[no results; the original is an object with the keys "body", "items", "next", "é"]`, ""},
		{"no results from a list", `[{"a":1},{}]`, `empty`, 0,
			`[no results; the original is an array of 2 items, the first an object with the keys "a"]`, ""},
		{"as many results as fit", `[10,20,30,40]`, `.[]`, 7, "10\n20",
			"[results: the first 2 of 4; for those that follow, ask for [...][2:][] with this query in place of ...]"},
		{"results that fit exactly", `[10,20,30]`, `.[]`, 8, "10\n20\n30", "[results: 3]"},
		{"no smaller result in place of a larger one", `[10,2000000,30]`, `.[]`, 5, "10",
			"[results: the first 1 of 3; for those that follow, ask for [...][1:][] with this query in place of ...]"},
		{"the rest", `[10,20,30,40]`, `[.[]][2:][]`, 7, "30\n40", "[results: 2]"},
		{"the beginning of a result that is too long", `["漢字漢字漢字",1]`, `.[]`, 4, `"漢字漢`,
			"[the beginning of result 1 of 2, which has 8 characters; ask for less, such as its keys, its length or a part]"},
		{"more results than are counted", `1`, `range(1e12)`, 3, "0\n1",
			"[results: the first 2 of 10000 or more; for those that follow, ask for [...][2:][] with this query in place of " +
				"...]"},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := call(t, keeping(quoted(test.text), test.max), fmt.Sprintf(`{"id":%q,"query":"%s"}`, id, quoted(test.query)))
			if a.IsError || a.text() != test.want {
				t.Errorf("got %q\nwant %q", a.text(), test.want)
			}
			if note := a.Content[1:]; len(note) > 0 && note[0].Text != test.note || len(note) == 0 && test.note != "" {
				t.Errorf("note %q, want %q", note, test.note)
			}
		})
	}
}

func TestQueryRefuses(t *testing.T) {
	defer func(d time.Duration) { queryTime = d }(queryTime)
	queryTime = time.Minute // so that size is the only reason
	const shared = "reduce range(60) as $_ (1; [., .])"
	tooMuch := "query: " + errAllowance.Error()
	for _, test := range []struct{ name, text, query, want string }{
		{"not JSON", "hello", `.`, "The original cannot be queried, as it is not JSON (invalid character 'h' looking for " +
			"beginning of value): use goal,"},
		{"almost JSON", `{"a":1} x`, `.`, "The original cannot be queried"},
		{"a long number", strings.Repeat("9", 1001), `.`,
			"The original cannot be queried, as it is not JSON (a number has more than 1000 digits)"},
		{"too large", strings.Repeat(" ", 4<<20) + "1", `.`,
			"The original is too large for query: it has 4194305 bytes, more than 4194304."},
		{"a syntax error", shop, `.items[] | select(.id =`,
			`query: unexpected EOF after ".items[] | select(.id =". The original is an object with the keys "body"`},
		{"a wrong token", shop, `.items[] } .id`, `query: unexpected token "}" after ".items[] }".`},
		{"an unknown function", shop, `map(frobnicate) | inputs`,
			`query: functions not available here: "frobnicate/0", "inputs/0"; available: IN/1 IN/2 abs/0 `},
		{"a wrong number of arguments", shop, `map(.;.)`, `query: functions not available here: "map/2"; available: `},
		{"an undefined variable", shop, `$x`, `query: variable not defined: $x.`},
		{"a wrong type", shop, `.items.id`, `query: expected an object but got: array (`},
		{"nothing to iterate", shop, `.nothing[]`, `query: cannot iterate over: null.`},
		{"the environment", "1", `$ENV.HOME`, `query: $ENV is not available here.`},
		{"the environment as a function", "1", `env.HOME`, `query: functions not available here: "env/0"`},
		{"other input", "1", `input`, `query: functions not available here: "input/0"`},
		{"internals", "1", `_match("a";"";true)`, `query: functions not available here: "_match/3"`},
		{"internal functions", "1", `_internal_count_all`, `query: functions not available here: "_internal_count_all/0"`},
		{"modules", "1", `import "a" as a; .`, `query: modules are not available here.`},
		{"a function definition", "1", `def f: f; f`, `query: def is not available here`},
		{"a nested function definition", "1", `map(def f: f; f)`, `query: def is not available here`},
		{"an assignment", "1", `.a |= 1`, `query: |= is not available here: a query only reads`},
		{"an assignment in an argument", "[]", `map(.[1e8] = 1)`, `query: = is not available here`},
		{"an assignment in a string", "[]", `"\(.a += 1)"`, `query: += is not available here`},
		{"an assignment in a pattern", "[]", `. as {(.a //= 1): $x} | 1`, `query: //= is not available here`},
		{"a long string", "1", `"a" * 1e9`, `query: strings cannot be multiplied here.`},
		{"a long string the other way round", "1", `1e9 * "a"`, `query: strings cannot be multiplied here.`},
		{"a tree of shared parts", "1", shared, tooMuch},
		{"a tree of shared parts, in a try", "1", "try " + shared + " catch 1", tooMuch},
		{"a tree of shared parts, by pipes", "1", strings.Repeat("[., .] | ", 60) + "sort", tooMuch},
		{"a tree of shared objects", "1", strings.Repeat("{a: ., b: .} | ", 60) + "tojson", tooMuch},
		{"a string that doubles", "1", `reduce range(60) as $_ ("aaaaaaaa"; . + .) | length`, tooMuch},
		{"a string of strings", `"` + strings.Repeat("a", 1<<20) + `"`, `"` + strings.Repeat(`\(.)`, 200) + `" | length`,
			tooMuch},
		{"many long keys", `"` + strings.Repeat("a", 1<<20) + `"`, `[range(1e6) as $i | {(.): $i}]`, tooMuch},
		{"many long paths", strings.Repeat("[", 9000) + strings.Repeat("]", 9000), `[paths] | length`, tooMuch},
		{"repeated HTML escapes", `"` + strings.Repeat("&", 1<<20) + `"`, strings.Repeat("@html | ", 60) + "length", tooMuch},
		{"a large number", "1", `reduce range(60) as $_ (99999999999; . * .)`, "query: a number has more than 1000 digits."},
		{"a large number in a string", `"` + strings.Repeat("9", 4000) + `"`, `tonumber + 1`, "query: tonumber cannot read"},
		{"a large number in JSON in a string", `"[` + strings.Repeat("9", 4000) + `]"`, `fromjson`,
			"query: fromjson needs JSON"},
		{"a difference of long arrays", "[" + strings.Repeat("1,", 999) + "1]", `. - .`, "query: an operand is too large"},
		{"containment of long arrays",
			"[" + strings.Repeat("1,", 999) + "1]", `contains(.)`, "query: an operand is too large"},
		{"a long separator",
			"[" + strings.Repeat("1,", 999) + "1]", `tojson as $s | join($s)`, "query: an operand is too large"},
		{"a long array as an index",
			"[" + strings.Repeat("1,", 999) + "1]", `.[.]`, "query: an operand is too large"},
		{"a long array as an index of a path",
			"[" + strings.Repeat("1,", 999) + "1]", `getpath([.])`, "query: an operand is too large"},
		{"a long array as an argument of nth",
			"[" + strings.Repeat("1,", 999) + "1]", `nth(.)`, "query: an operand is too large"},
		{"a long array as a key of a pattern",
			"[" + strings.Repeat("1,", 999) + "1]", `. as {(.): $x} | $x`, "query: an operand is too large"},
		{"many paths to delete", "[" + strings.Repeat("1,", 999) + "1]", `del(.[])`, "query: an operand is too large"},
		{"a complex pattern", `"` + strings.Repeat("a", 1<<20) + `"`, `test("(a|b|c|d|aa){1,200}z")`,
			"query: the regular expressions take too long"},
		{"a bad pattern", `"a"`, `test("(")`, "query: pattern is not a regular expression in RE2 syntax: missing closing )"},
		{"unknown flags", `"a"`, `test("a"; "q")`, "query: test accepts the flags g, i and s, not \"q\"."},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := call(t, keeping(quoted(test.text), 0), fmt.Sprintf(`{"id":%q,"query":"%s"}`, id, quoted(test.query)))
			if !a.IsError || !strings.HasPrefix(a.text(), test.want) {
				t.Errorf("got %q\nwant %q", a.text(), test.want)
			}
			if n := utf8.RuneCountInString(a.text()); n > 2001 {
				t.Errorf("%d characters", n)
			}
		})
	}
}

// A single step, which cannot be interrupted, does not take much more memory than the allowance.
func TestQueryMemory(t *testing.T) {
	defer func(d time.Duration) { queryTime = d }(queryTime)
	queryTime = time.Minute // so that size is the only reason
	tooMuch := "query: " + errAllowance.Error()
	for _, test := range []struct{ name, unit, query, want string }{
		{"many pieces", "a", `.+. | .+. | .+. | .+. | split("")`, tooMuch},
		{"many pieces by division", "ab", `.+. | .+. | .+. | .+. | . / "a"`, tooMuch},
		{"many objects", "{},", `.+. | .+. | .+. | "[" + . + "0]" | fromjson`, tooMuch},
		{"many arrays", "[],", `.+. | .+. | .+. | "[" + . + "0]" | fromjson`, tooMuch},
		{"many values in a row", "1 ", `.+. | .+. | .+. | fromjson`, "query: fromjson needs JSON"},
		{"a long text that is not a number", "[],", `.+. | .+. | .+. | "[" + . + "0]" | tonumber`,
			"query: tonumber cannot read"},
		{"long escapes", "\x7f", `.+. | .+. | .+. | .+. | tojson`, tooMuch},
		{"long escapes in HTML", "'", `.+. | .+. | .+. | .+. | @html`, tooMuch},
		{"long escapes in a string", "\x7f", `"` + strings.Repeat(`\([.])`, 15) + `"`, tooMuch},
		{"long escapes in a string with a format", "'", `@html "` + strings.Repeat(`\(.)`, 15) + `"`, tooMuch},
	} {
		t.Run(test.name, func(t *testing.T) {
			original := keeping(quoted(`"`+strings.Repeat(test.unit, (4<<20-10)/len(test.unit))+`"`), 0)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			a := call(t, original, fmt.Sprintf(`{"id":%q,"query":"%s"}`, id, quoted(test.query)))
			runtime.ReadMemStats(&after)
			if !a.IsError || !strings.HasPrefix(a.text(), test.want) {
				t.Errorf("got %q\nwant %q", a.text(), test.want)
			}
			mib := (after.TotalAlloc - before.TotalAlloc) >> 20
			if mib > 6*allowance>>20 {
				t.Errorf("the query takes %d MiB", mib)
			}
		})
	}
}

func TestQueryTimesOut(t *testing.T) {
	usual := queryTime
	defer func() { queryTime = usual }()
	queryTime = 10 * time.Millisecond
	for _, query := range []string{`last(range(1e12))`, `reduce range(1e12) as $x (0; $x)`,
		`[range(1e12) | select(. < 0)]`, `first(range(1e12) | select(. < 0))`} {
		a := call(t, keeping("1", 0), fmt.Sprintf(`{"id":%q,"query":"%s"}`, id, query))
		if !a.IsError || !strings.HasPrefix(a.text(), "query: it takes more than 10ms: make it simpler") {
			t.Errorf("%s: %q", query, a.text())
		}
	}
	queryTime = usual
	defer queries.wait(t.Context(), "another client")()
	queryTime = 10 * time.Millisecond
	if a := call(t, keeping("1", 0), `{"id":"`+id+`","query":"."}`); !a.IsError || !strings.HasPrefix(a.text(),
		"Too many queries at once") {
		t.Errorf("%+v", a)
	}
}

// A rewritten query gives the same results as the original query, and respects every limit.
func TestRewrittenQueriesGiveTheSameResults(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	queries := []string{
		`.`, `..`, `.items`, `.items[]`, `.items[0]`, `.items[-1]`, `.items[1:]`, `.items[:-1]`, `.items[0,1]`,
		`.items[].tags[]?`, `.["items"]`, `."é"`, `."é\(1)"?`, `.items | length, (map(.id) | add), map(.price)`,
		`.items | map(select(.price > 1) | .id)`, `.items | sort_by(.price, -.id) | map(.id)`,
		`.items | group_by(.state) | map({state: .[0].state, n: length})`, `.items | unique_by(.state) | length`,
		`.items | min_by(.price), max_by(.price)`, `keys`, `keys[]`,
		`to_entries[] | select(.value == null) | .key`, `with_entries(select(.key | startswith("n")))`,
		`.items[0] | del(.tags, .big)`, `del(.items[] | select(.state == "open"))`, `del(.items[0,1].tags)`,
		`del(.items[.items | length - 1])`, `del(first(.items[]))`, `del(..|.tags?)`,
		`.items[0] | to_entries | from_entries`, `[paths]`, `[paths(type == "number")]`, `[path(..)] | length`,
		`path(.items[0].tags)`, `getpath(["items",0,"id"])`, `[limit(2; .items[].id)]`, `first(.items[].id)`,
		`[.items[] | .id, .state]`, `.items[] as {id: $i, tags: [$t]} | {$i, t: ($t // "none")}`,
		`.items as [$a, $b] | $a.id - $b.id`, `reduce .items[] as $x (0; . + $x.price)`,
		`[foreach .items[] as $x (0; . + $x.id; [$x.id, .])]`, `"\(.items | length) items, \(.next)"`,
		`@json "x=\(.next)"`, `.items[0].tags | @csv, @tsv, join("-")`, `@base64 "\(.body)"`, `.body | fromjson`,
		`.body | fromjson | .n * 2 / 7 % 3`, `if .next then 1 elif .items then 2 else 3 end`,
		`try error("x") catch .`, `.items[] | (.nope // "d")`, `[.items[] | .tags | contains(["b"])]`,
		`[.items[].tags | IN(["b"], [])]`, `any(.items[]; .id == 3), all(.items[]; .id < 3)`,
		`[.items[].price | tostring, tojson, floor]`, `.items[0].tags - ["a"]`, `{a: 1} * {b: {c: 2}}`,
		`{a: (1, 2), b: (3, 4)}`, `{"a\(1)": 2, (.next | type): 3, "é"}`, `[.[] | type]`, `map_values(type)`,
		`[..] | length`, `[.. | numbers]`, `.items | map(.tags) | add | unique`, `.items | flatten | length`,
		`.items | reverse | .[0].id`, `[range(0; 10; 3)]`, `(1, 2) - (10, 20)`, `(1, 2) + (10, 20)`,
		`label $out | .items[] | if .id == 2 then ., break $out else .id end`, `.items[0].price | -. , -(1)`,
		`[.items[] | has("big")]`, `["a", "b"] | in({"0": 1})?`, `.items | nth(1).id`,
		`isempty(empty), isempty(1)`, `"a,b" / ",", ("a,b" | split(","))`,
		`("a-b", "c") / ("-", "b"), (1, 2) / (4, 8)`, `"a" / 1`, `"a" | split(1)`, `[.items[].id / 2]`,
		`.items[0] | .id / (.price * 2)`, `@html "<\("<", [1])>", @sh "\("a b", 1)"`, `"\([.items[].tags])"`,
		`[1, 2, 1] | .[[1]], getpath([0])`, `[["a"]] | .[["a"]], (path(getpath([0, 0])))`, `"[1] 2" | fromjson`,
		`[.[]?] | length`,
		`"abc" | test("B"; "i"), test("z")`, `"12" | tonumber + 1`, `1 as $x | [$x, $x + 1] as [$a, $b] | $a + $b`,
		`null | not`, `"  a " | trim | ascii_upcase | ltrimstr("A")`, `.items[0].big`, `[1,[2]] | getpath([1,0])`,
		`0 | todate | fromdate`, `[3, 1, 2] | sort, min, max, (first, last)`,
	}
	for _, query := range queries {
		var want []string
		plain, err := gojq.Parse(query)
		if err != nil {
			t.Fatal(query, err)
		}
		value, _, err := decodeJSON(shop)
		if err != nil {
			t.Fatal(err)
		}
		var failed error
		for results := plain.Run(value); ; {
			v, ok := results.Next()
			if !ok {
				break
			}
			if failed, _ = v.(error); failed != nil {
				break
			}
			text, err := gojq.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, string(text))
		}
		arguments := fmt.Sprintf(`{"id":%q,"query":"%s"}`, id, quoted(query))
		a := call(t, keeping(quoted(shop), 0), arguments)
		if a.IsError != (failed != nil) || !a.IsError && len(want) > 0 && a.text() != strings.Join(want, "\n") {
			t.Errorf("%s gives %q\nwant %q, %v", query, a.text(), want, failed)
		}
		limit := 1 + random.IntN(100)
		a = call(t, keeping(quoted(shop), limit), arguments)
		if n := utf8.RuneCountInString(a.text()); n > limit+1 { // an error ends with a full stop
			t.Errorf("%s gives %d characters, not %d: %q", query, n, limit, a.text())
		}
	}
}

func FuzzQuery(f *testing.F) {
	for _, query := range []string{`.items[] | select(.id > 1)`, `reduce .[] as $x (0; . + 1)`, `{a: .b, "c\(1)": [..]}`,
		`.a.b[1:2]?`, `def f: 1; f`, `. as [$a, {b: $c}] ?// $a | $a`} {
		f.Add(query)
	}
	f.Fuzz(func(t *testing.T, query string) {
		defer func(d time.Duration) { queryTime = d }(queryTime)
		queryTime = 100 * time.Millisecond
		arguments, err := json.Marshal(map[string]string{"id": id, "query": query})
		if err != nil {
			t.Fatal(err)
		}
		a := call(t, keeping(quoted(shop), 500), string(arguments))
		if n := utf8.RuneCountInString(a.text()); n > 501 {
			t.Errorf("%q gives %d characters", query, n)
		}
	})
}

// A client with many queries delays another client by one query only.
func TestClientsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newFairQueue(1)
		var order []string
		done := all.wait(t.Context(), "a")
		for _, client := range []string{"a", "a", "b", "a"} {
			go func() {
				done := all.wait(t.Context(), client)
				order = append(order, client)
				done()
			}()
			synctest.Wait()
		}
		done()
		synctest.Wait()
		if want := []string{"b", "a", "a", "a"}; !slices.Equal(order, want) {
			t.Errorf("got %v, want %v", order, want)
		}
		if len(all.clients) != 0 {
			t.Errorf("%d clients are remembered", len(all.clients))
		}
	})
}

func TestWaitTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newFairQueue(1)
		done := all.wait(t.Context(), "a")
		for _, client := range []string{"a", "b"} {
			if all.wait(t.Context(), client) != nil {
				t.Errorf("%s has a turn during that of a", client)
			}
		}
		done()
		if done = all.wait(t.Context(), "b"); done == nil {
			t.Fatal("no turn")
		}
		done()
		if len(all.clients) != 0 {
			t.Errorf("%d clients are remembered", len(all.clients))
		}
	})
}
