package recovery

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mask"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
)

const id = "obs_0000000000"

// keeping returns a Reader of one original, given as the body of a JSON string.
func keeping(body string, maxChars int) Reader {
	return Reader{MaxChars: maxChars, Get: func(_ context.Context, handle string) ([]byte, bool, error) {
		if handle != id {
			return nil, false, nil
		}
		return []byte(body), true, nil
	}}
}

// quoted returns text as the body of a JSON string.
func quoted(text string) string {
	b, err := json.Marshal(text)
	if err != nil {
		panic(err)
	}
	return string(b[1 : len(b)-1])
}

type answer struct {
	Content []struct{ Type, Text string }
	IsError bool
	Meta    struct {
		Total   *int `json:"total_chars"`
		Start   *int `json:"start_char"`
		End     *int `json:"end_char"`
		Focused bool `json:"focused"`
		Matches *int `json:"matches"`
		Next    *int `json:"next_start_char"`
	} `json:"_meta"`
}

func (a answer) text() string { return a.Content[0].Text }

func call(t *testing.T, r Reader, arguments string) (a answer) {
	t.Helper()
	result := r.Call(t.Context(), []byte(arguments))
	if err := json.Unmarshal(result, &a); err != nil || len(a.Content) == 0 {
		t.Fatalf("%s: %v", result, err)
	}
	for _, c := range a.Content {
		if c.Type != "text" || c.Text == "" {
			t.Fatalf("content %+v", c)
		}
	}
	return a
}

func TestPart(t *testing.T) {
	const text = "héllo 漢字 😀\r\n\t\"<&>\" \u2028 end"
	for _, test := range []struct {
		name, arguments string
		max             int
		want            string
		next            int // 0 for none
	}{
		{"the whole", `{"id":"` + id + `"}`, 0, text, 0},
		{"the whole, within the limit", `{"id":"` + id + `"}`, 24, text, 0},
		{"as much as the limit allows", `{"id":"` + id + `"}`, 10, "héllo 漢字 😀", 10},
		{"the first character", `{"id":"` + id + `","end_char":1}`, 0, "h", 0},
		{"a wide character", `{"id":"` + id + `","start_char":9,"end_char":10}`, 0, "😀", 0},
		{"from a character on", `{"id":"` + id + `","start_char":19}`, 0, "\u2028 end", 0},
		{"from a character on, as the limit allows", `{"id":"` + id + `","start_char":6}`, 3, "漢字 ", 9},
		{"up to the limit exactly", `{"id":"` + id + `","start_char":6,"end_char":9}`, 3, "漢字 ", 0},
		{"an end after the last character", `{"id":"` + id + `","start_char":21,"end_char":1000}`, 0, "end", 0},
		{"whole numbers in other notations", `{"id":"` + id + `","start_char":0.0,"end_char":1e0}`, 0, "h", 0},
		{"null and empty arguments count as not given", `{"id":"` + id +
			`","start_char":null,"end_char":null,"pattern":"","context_lines":null,"goal":" ","query":"","ratio":null,` +
			`"start_line":null}`, 0, text, 0},
		{"fewer characters than the limit", `{"id":"` + id + `","max_chars":5}`, 10, "héllo", 5},
		{"no more characters than the limit", `{"id":"` + id + `","max_chars":50}`, 5, "héllo", 5},
		{"characters without a limit", `{"id":"` + id + `","max_chars":5}`, 0, "héllo", 5},
		{"a huge end", `{"id":"` + id + `","end_char":1e300}`, 0, text, 0},
		{"an id in the form of the marker", `{"id":" id=` + id + ` ","end_char":1}`, 0, "h", 0},
		{"an id in the form of the resource", `{"id":"proxy://observation/` + id + `","end_char":1}`, 0, "h", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := call(t, keeping(quoted(text), test.max), test.arguments)
			if a.IsError || len(a.Content) != 2 || a.text() != test.want {
				t.Errorf("got %+v, want %q", a, test.want)
			}
			if *a.Meta.Total != 24 || *a.Meta.End-*a.Meta.Start != utf8.RuneCountInString(test.want) {
				t.Errorf("meta %d, %d to %d", *a.Meta.Total, *a.Meta.Start, *a.Meta.End)
			}
			note := fmt.Sprintf("[characters %d to %d of 24]", *a.Meta.Start, *a.Meta.End)
			next := 0
			if a.Meta.Next != nil {
				next = *a.Meta.Next
				note = fmt.Sprintf("[characters %d to %d of 24; go on with start_char=%d]", *a.Meta.Start, *a.Meta.End, next)
			}
			if next != test.next || a.Content[1].Text != note {
				t.Errorf("next %d, want %d; note %q, want %q", next, test.next, a.Content[1].Text, note)
			}
		})
	}
}

func TestCallRefuses(t *testing.T) {
	for _, test := range []struct {
		name, arguments, want string
	}{
		{"no arguments", ``, "id is missing: give the one in the marker, which begins with obs_."},
		{"null", `null`, "id is missing: give the one in the marker, which begins with obs_."},
		{"no id", `{"start_char":1}`, "id is missing: give the one in the marker, which begins with obs_."},
		{"an empty id", `{"id":" "}`, "id is missing: give the one in the marker, which begins with obs_."},
		{"an id that is a number", `{"id":7}`, `id must be a string, not "7".`},
		{"an unknown id", `{"id":"obs_x"}`, `Nothing is kept under the id "obs_x".`},
		{"a long unknown id", `{"id":"` + strings.Repeat("x", 500) + `"}`, `Nothing is kept under the id "` +
			strings.Repeat("x", 80) + `…".`},
		{"a list", `[]`, `the arguments must be a JSON object such as {"id":"obs_…"}.`},
		{"invalid JSON", `{`, `the arguments must be a JSON object such as {"id":"obs_…"}.`},
		{"a number as a string", `{"id":"` + id + `","start_char":"5"}`,
			`start_char must be a number, not the string "5": leave out the quotes.`},
		{"an object for a number", `{"id":"` + id + `","end_char":{}}`, `end_char must be a number, not "{}".`},
		{"true for a number", `{"id":"` + id + `","max_matches":true}`, `max_matches must be a number, not "true".`},
		{"half a character", `{"id":"` + id + `","end_char":0.5}`, `end_char must be a whole number, not "0.5".`},
		{"a start before the beginning", `{"id":"` + id + `","start_char":-1}`, `start_char must be at least 0, not "-1".`},
		{"a start far before the beginning", `{"id":"` + id + `","start_char":-1e300}`,
			`start_char must be at least 0, not "-1e300".`},
		{"an end before the start", `{"id":"` + id + `","start_char":5,"end_char":4}`,
			`end_char (4) must be greater than start_char (5).`},
		{"an end at the start", `{"id":"` + id + `","end_char":0}`, `end_char (0) must be greater than start_char (0).`},
		{"a start at the end", `{"id":"` + id + `","start_char":11}`,
			`start_char (11) is at or beyond the end: the original has 11 characters.`},
		{"a start after the end", `{"id":"` + id + `","start_char":12,"end_char":13}`,
			`start_char (12) is at or beyond the end: the original has 11 characters.`},
		{"no matches", `{"id":"` + id + `","pattern":"x","max_matches":0}`, `max_matches must be at least 1, not "0".`},
		{"negative context", `{"id":"` + id + `","pattern":"x","context_lines":-1}`,
			`context_lines must be at least 0, not "-1".`},
		{"a bad pattern", `{"id":"` + id + `","pattern":"a(b"}`,
			`pattern is not a regular expression in RE2 syntax: missing closing ): "a(b".`},
		{"a pattern of another syntax", `{"id":"` + id + `","pattern":"a(?=b)"}`,
			`pattern is not a regular expression in RE2 syntax: invalid or unsupported Perl syntax: "(?=".`},
		{"a pattern that is a number", `{"id":"` + id + `","pattern":404}`, `pattern must be a string, not "404".`},
		{"a long bad pattern", `{"id":"` + id + `","pattern":"(` + strings.Repeat("x", 900) + `"}`,
			`pattern is not a regular expression in RE2 syntax: missing closing ): "(` + strings.Repeat("x", 79) + `…".`},
		{"a pattern too long", `{"id":"` + id + `","pattern":"` + strings.Repeat("é", 1001) + `"}`,
			`pattern has 1001 characters, more than 1000.`},
		{"an argument that does not exist", `{"id":"` + id + `","start":1,"zzz":2}`,
			`unknown argument "start"; expected id, goal, ratio, max_chars, query, pattern, context_lines, max_matches, ` +
				`start_line, end_line, start_char, end_char.`},
		{"a line before the first", `{"id":"` + id + `","start_line":0}`, `start_line must be at least 1, not "0".`},
		{"an end line before the start line", `{"id":"` + id + `","start_line":3,"end_line":2}`,
			`end_line (2) must not be less than start_line (3).`},
		{"a line after the end", `{"id":"` + id + `","start_line":2}`,
			`start_line (2) is beyond the end: the original has 1 lines.`},
		{"a ratio above 1", `{"id":"` + id + `","goal":"x","ratio":1.5}`, `ratio must be a number from 0 to 1, not "1.5".`},
		{"a ratio that is a string", `{"id":"` + id + `","goal":"x","ratio":"0.5"}`,
			`ratio must be a number from 0 to 1, not "0.5".`},
		{"no characters", `{"id":"` + id + `","max_chars":0}`, `max_chars must be at least 1, not "0".`},
		{"a goal too long", `{"id":"` + id + `","goal":"` + strings.Repeat("x", 1001) + `"}`,
			`goal has 1001 characters, more than 1000.`},
		{"a query too long", `{"id":"` + id + `","query":"` + strings.Repeat("x", 1001) + `"}`,
			`query has 1001 characters, more than 1000.`},
		{"a goal and a query", `{"id":"` + id + `","goal":"x","query":"."}`,
			`goal and query cannot be combined: leave one of them out.`},
		{"a goal and a pattern", `{"id":"` + id + `","goal":"x","pattern":"."}`,
			`goal and pattern cannot be combined: leave one of them out.`},
		{"a query and a pattern", `{"id":"` + id + `","query":".","pattern":"."}`,
			`query and pattern cannot be combined: leave one of them out.`},
		{"a query of lines", `{"id":"` + id + `","query":".","end_line":1}`,
			`query and start_line or end_line cannot be combined: leave one of them out.`},
		{"a query of characters", `{"id":"` + id + `","query":".","start_char":1}`,
			`query and start_char or end_char cannot be combined: leave one of them out.`},
		{"lines and characters", `{"id":"` + id + `","start_line":1,"end_char":1}`,
			`start_line or end_line and start_char or end_char cannot be combined: leave one of them out.`},
		{"an argument in another case", `{"ID":"` + id + `"}`,
			"id is missing: give the one in the marker, which begins with obs_."},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := call(t, keeping("hello world", 0), test.arguments)
			if !a.IsError || len(a.Content) != 1 || !strings.HasPrefix(a.text(), test.want) {
				t.Errorf("got %+v, want %q", a, test.want)
			}
		})
	}
}

func TestText(t *testing.T) {
	r := keeping(`a\n\ud83d\ude00\ud800\u00e9`+"\xff", 3)
	if got, ok, err := r.Text(t.Context(), id); !ok || err != nil || got != "a\n😀\ufffdé\ufffd" {
		t.Errorf("got %q, %v", got, ok)
	}
	if got, ok, err := r.Text(t.Context(), "obs_x"); ok || err != nil || got != "" {
		t.Errorf("got %q for an unknown handle", got)
	}
}

// If the shared store is unavailable, an original is reported as unavailable, not as unknown.
func TestUnavailable(t *testing.T) {
	r := Reader{Get: func(context.Context, string) ([]byte, bool, error) { return nil, false, errors.New("unavailable") }}
	got := string(r.Call(t.Context(), []byte(`{"id":"`+id+`"}`)))
	for _, want := range []string{`"isError":true`, `"_meta":{"code":"store_unavailable"}`,
		`store that gateways share is unavailable. Try again later`} {
		if !strings.Contains(got, want) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if _, ok, err := r.Text(t.Context(), id); ok || err == nil {
		t.Errorf("got %t, %v", ok, err)
	}
}

// O23: masked text can be recovered, and results with recovered text are not masked again.
func TestMaskedTextIsRecovered(t *testing.T) {
	text := strings.Repeat("é\"漢😀\\\n<b>\u2028 ", 2000)
	kept := map[string][]byte{}
	policy := mask.Policy{MaxChars: 4000, HeadChars: 2000, TailChars: 2000, HoldLimit: 1 << 20,
		Save: func(body []byte) string {
			handle := mask.HandlePrefix + fmt.Sprint(len(kept))
			kept[handle] = bytes.Clone(body)
			return handle
		}}
	apply := func(result []byte) []byte {
		var out bytes.Buffer
		m := mask.NewMasker(&out, policy)
		_, _ = m.Write(slices.Concat([]byte(`{"jsonrpc":"2.0","id":1,"result":`), result, []byte(`}`)))
		_ = m.End()
		return out.Bytes()
	}
	masked := apply([]byte(`{"content":[{"type":"text","text":"` + quoted(text) + `"}]}`))
	found := regexp.MustCompile(`MASKED original_chars=(\d+) head=2000 tail=2000 id=(obs_\w+)\]`).FindSubmatch(masked)
	if found == nil {
		t.Fatalf("%s", masked)
	}
	r := Reader{MaxChars: policy.MaxChars, Get: func(_ context.Context, handle string) ([]byte, bool, error) {
		body, ok := kept[handle]
		return body, ok, nil
	}}
	if got, ok, _ := r.Text(t.Context(), string(found[2])); !ok || got != text {
		t.Error("the resource differs from the original")
	}
	got := follow(t, r, string(found[2]), func(result []byte) {
		if again := apply(result); !bytes.Contains(again, result) {
			t.Errorf("masked again: %s", again)
		}
	})
	if got != text {
		t.Error("the parts differ from the original")
	}
	if fmt.Sprint(utf8.RuneCountInString(text)) != string(found[1]) {
		t.Errorf("%s characters", found[1])
	}
	result := r.Call(t.Context(), fmt.Appendf(nil, `{"id":%q,"pattern":"b","max_matches":200,"context_lines":20}`,
		found[2]))
	if again := apply(result); !bytes.Contains(again, result) {
		t.Errorf("lines masked again: %s", again)
	}
}

// follow reads an original in parts, each from the returned start_char.
func follow(t *testing.T, r Reader, id string, each func(result []byte)) string {
	t.Helper()
	var all strings.Builder
	for start := 0; ; {
		arguments := fmt.Sprintf(`{"id":%q,"start_char":%d}`, id, start)
		each(r.Call(t.Context(), []byte(arguments)))
		a := call(t, r, arguments)
		if a.IsError {
			t.Fatal(a.text())
		}
		all.WriteString(a.text())
		if a.Meta.Next == nil {
			return all.String()
		}
		if *a.Meta.Next <= start {
			t.Fatalf("from %d on to %d", start, *a.Meta.Next)
		}
		start = *a.Meta.Next
	}
}

// pieces are parts of the bodies of JSON strings.
var pieces = []string{"a", "hello ", "é", "漢字", "😀", `\n`, `\r\n`, `\"`, `\\`, `\/`, `\t`, `\u0000`, `\u00e9`,
	`\u2028`, "\u2028", `\ud83d\ude00`, `\ud83d`, `\ude00`, `\ud83d\ud83d\ude00`, "\xff", "\xe6\xbc", "\u0301", "<&>"}

func body(random *rand.Rand, n int) string {
	var b strings.Builder
	for range n {
		b.WriteString(pieces[random.IntN(len(pieces))])
	}
	return b.String()
}

// O23: recovery is exact for every text and limit.
func TestPartsAddUp(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 150 {
		body := body(random, 1+random.IntN(60))
		want := string(jsonspan.AppendText(nil, []byte(body)))
		for _, limit := range []int{0, 1, 2, 7, 1 + random.IntN(40), 1000} {
			r := keeping(body, limit)
			if got := follow(t, r, id, func([]byte) {}); got != want {
				t.Fatalf("%q by %d: got %q, want %q", body, limit, got, want)
			}
		}
		chars := []rune(want)
		start := random.IntN(len(chars))
		end := start + 1 + random.IntN(len(chars)-start)
		a := call(t, keeping(body, 0), fmt.Sprintf(`{"id":%q,"start_char":%d,"end_char":%d}`, id, start, end))
		if want := string(chars[start:end]); a.text() != want || *a.Meta.Total != len(chars) {
			t.Fatalf("%q from %d to %d: got %+v, want %q", body, start, end, a, want)
		}
	}
}

func TestDescriptors(t *testing.T) {
	var tool struct {
		Name, Description string
		InputSchema       struct {
			Properties map[string]struct {
				Type, Description           string
				Maximum, Default, MaxLength float64
			}
			Required []string
		}
	}
	if err := json.Unmarshal(Tool, &tool); err != nil {
		t.Fatal(err)
	}
	properties := tool.InputSchema.Properties
	if tool.Name != ToolName || tool.Description == "" || !slices.Equal(tool.InputSchema.Required, []string{"id"}) ||
		len(properties) != len(names) {
		t.Errorf("%+v", tool)
	}
	for _, name := range names {
		if properties[name].Type == "" || properties[name].Description == "" {
			t.Errorf("%s is not described", name)
		}
	}
	if p := properties["context_lines"]; p.Maximum != maxContext || p.Default != defaultContext {
		t.Errorf("context_lines: %+v", p)
	}
	if p := properties["max_matches"]; p.Maximum != maxMatches || p.Default != defaultMatches {
		t.Errorf("max_matches: %+v", p)
	}
	for name, most := range map[string]float64{"pattern": maxPattern, "goal": maxGoal, "query": maxQuery} {
		if p := properties[name]; p.MaxLength != most {
			t.Errorf("%s: %+v", name, p)
		}
	}
	// The descriptor costs tokens in every conversation.
	if n := utf8.RuneCount(Tool); n > 2540 {
		t.Errorf("the descriptor has %d characters", n)
	}
	var template struct{ URITemplate, Name string }
	if err := json.Unmarshal(Template, &template); err != nil || template.URITemplate != "proxy://observation/{id}" ||
		template.Name == "" {
		t.Errorf("%+v, %v", template, err)
	}
}

func TestLines(t *testing.T) {
	const text = "one\ntwo\r\nthrée\rfour\n\nsix"
	for _, test := range []struct {
		name, arguments string
		max             int
		want, note      string
	}{
		{"all lines", `"start_line":1`, 0, text, "[lines 1 to 6 of 6, characters 0 to 24 of 24]"},
		{"all lines, by their end", `"end_line":6`, 0, text, "[lines 1 to 6 of 6, characters 0 to 24 of 24]"},
		{"one line", `"start_line":2,"end_line":2`, 0, "two\r\n", "[lines 2 to 2 of 6, characters 4 to 9 of 24]"},
		{"lines after a carriage return", `"start_line":4,"end_line":5`, 0, "four\n\n",
			"[lines 4 to 5 of 6, characters 15 to 21 of 24]"},
		{"an end after the last line", `"start_line":6,"end_line":99`, 0, "six",
			"[lines 6 to 6 of 6, characters 21 to 24 of 24]"},
		{"as many characters as fit", `"start_line":2,"end_line":3`, 6, "two\r\nt",
			"[characters 4 to 10 of 24; go on with start_char=10 and end_char=15]"},
		{"as many characters as fit, without an end", `"start_line":2`, 6, "two\r\nt",
			"[characters 4 to 10 of 24; go on with start_char=10]"},
		{"a pattern in a range of lines",
			`"pattern":"o","start_line":1,"end_line":2,"context_lines":0`, 0, "1: one\n2: two\r",
			"[matches: 2; the original has 24 characters]"},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := call(t, keeping(quoted(text), test.max), `{"id":"`+id+`",`+test.arguments+`}`)
			if a.IsError || a.text() != test.want || a.Content[1].Text != test.note {
				t.Errorf("got %+v\nwant %q, %q", a.Content, test.want, test.note)
			}
		})
	}
}

// Lines are counted as in the pruner, whose markers contain line numbers.
func TestLinesAreThoseOfThePruner(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	pieces := []string{"a", "é", "\n", "\r", "\r\n", "\u2028", "\f"}
	for range 500 {
		var b strings.Builder
		b.WriteString("x")
		for range random.IntN(20) {
			b.WriteString(pieces[random.IntN(len(pieces))])
		}
		text := b.String()
		lines := prune.Lines(text)
		first := 1 + random.IntN(len(lines))
		last := first + random.IntN(len(lines)-first+1)
		a := call(t, keeping(quoted(text), 0), fmt.Sprintf(`{"id":%q,"start_line":%d,"end_line":%d}`, id, first, last))
		if got, want := prune.Lines(a.text()), lines[first-1:last]; fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
			t.Fatalf("%q, lines %d to %d: got %q, want %q", text, first, last, got, want)
		}
		if a := call(t, keeping(quoted(text), 0), fmt.Sprintf(`{"id":%q,"start_line":%d}`, id, len(lines)+1)); !a.IsError {
			t.Fatalf("%q has a line %d: %q", text, len(lines)+1, a.text())
		}
	}
}

func TestGoal(t *testing.T) {
	var all []string
	for i := 1; i <= 300; i++ {
		line := fmt.Sprintf("2026-01-01 INFO request %d served", i)
		if i == 120 {
			line = "2026-01-01 ERROR payment declined by the bank"
		}
		all = append(all, line)
	}
	log, crlf := strings.Join(all, "\n"), strings.Join(all, "\r\n")
	records := `{"records":[` + strings.Repeat(`{"note":"nothing"},`, 300) + `{"note":"payment declined by the bank"}` +
		strings.Repeat(`,{"note":"nothing"}`, 300) + `]}`
	const found, missing = "payment declined by the bank", "not cut by goal"
	for _, test := range []struct {
		name, original, arguments string
		max                       int
		want                      []string // in the text and the note
	}{
		{"lines", log, ``, 600, []string{"120│ 2026-01-01 ERROR " + found, "[lines 1-", "left out]",
			"use start_line and end_line]"}},
		{"fewer characters", log, `,"max_chars":300`, 600, []string{found, "[lines 1-"}},
		{"fewer lines", log, `,"ratio":0.99`, 6000, []string{found, "[lines 1-"}},
		{"in a range of lines",
			log, `,"start_line":100,"end_line":200`, 600, []string{"120│ 2026-01-01 ERROR " + found, "[lines 100-",
				"-200 left out]"}},
		{"in a range of characters", log, fmt.Sprintf(`,"start_char":%d`, len(strings.Join(all[:99], "\n"))+1), 600,
			[]string{"120│ 2026-01-01 ERROR " + found, "[lines 100-", "-300 left out]"}},
		{"from the second half of a line end", crlf, fmt.Sprintf(`,"start_char":%d`, strings.Index(crlf, "\n")), 600,
			[]string{"120│ 2026-01-01 ERROR " + found, "-300 left out]"}},
		{"everything, if there is no limit", log, ``, 0, []string{"request 1 served", "request 300 served"}},
		{"items", records, ``, 600, []string{`{"note":"` + found + `"}`, "items left out", "use query]"}},
		{"a line cannot be cut", strings.Repeat("a", 1000), ``, 100, []string{missing, "go on with start_char=100"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := call(t, keeping(quoted(test.original), test.max), `{"id":"`+id+`","goal":"why was the payment declined"`+
				test.arguments+`}`)
			got := a.text() + "\n" + a.Content[1].Text
			for _, want := range test.want {
				if !strings.Contains(got, want) {
					t.Errorf("%q is missing in\n%s", want, got)
				}
			}
			if limit := test.max; limit > 0 && utf8.RuneCountInString(a.text()) > limit {
				t.Errorf("%d characters", utf8.RuneCountInString(a.text()))
			}
			if a.IsError || a.Meta.Focused == strings.Contains(got, missing) {
				t.Errorf("%+v", a)
			}
		})
	}
}

// parseArguments reads the same values as encoding/json and math/big, or returns an error of
// limited length.
func FuzzArguments(f *testing.F) {
	for _, arguments := range []string{
		`{"id":"obs_1"}`, `{"id":" proxy://observation/obs_1 ","start_char":1e2,"end_char":200.0}`,
		`{"id":"id=x","pattern":"a+(b|c)*","context_lines":99,"max_matches":0}`, `{"id":7}`, `{"id":"x","start_char":-1}`,
		`{"id":"x","start_char":1.5}`, `{"id":"x","start_char":"5"}`, `{"id":"x","end_char":1e400,"pattern":null}`,
		`{"id":"x","pattern":"("}`, `{"id":"x","pattern":"a+"}`, `{"id":"x","other":1}`, `[]`, ``, `null`,
		`{"id":"x","start_char":9223372036854775808}`, `{"ID":"x"}`,
		`{"id":"x","goal":"a b","ratio":0.5,"max_chars":100,"start_line":2,"end_line":3e0}`,
		`{"id":"x","query":".a","pattern":""}`, `{"id":"x","goal":"a","query":"b"}`,
		`{"id":"x","start_line":1,"start_char":1}`, `{"id":"x","ratio":2}`,
	} {
		f.Add([]byte(arguments))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := parseArguments(data)
		if err != nil {
			if text := err.Error(); text == "" || len(text) > 1000 {
				t.Fatalf("%q: %q", data, text)
			}
			return
		}
		var given map[string]json.RawMessage
		if err := json.Unmarshal(data, &given); err != nil {
			t.Fatalf("%q was read as %+v", data, a)
		}
		var id, pattern string
		_ = json.Unmarshal(given["pattern"], &pattern)
		if json.Unmarshal(given["id"], &id) != nil || a.id == "" || !strings.Contains(id, a.id) {
			t.Fatalf("%q: id %q", data, a.id)
		}
		if (a.pattern != nil) != (pattern != "") || a.pattern != nil && (a.pattern.String() != pattern ||
			utf8.RuneCountInString(pattern) > maxPattern || a.steps <= 0) {
			t.Fatalf("%q has the pattern %v of %d steps", data, a.pattern, a.steps)
		}
		for name, number := range map[string]struct{ got, otherwise, most int }{
			"max_chars": {a.maxChars, 0, 1 << 53}, "start_line": {a.firstLine, 0, 1 << 53}, "end_line": {a.endLine, 0, 1 << 53},
			"start_char": {a.start, 0, 1 << 53}, "end_char": {a.end, -1, 1 << 53}, "context_lines": {a.context, defaultContext,
				maxContext}, "max_matches": {a.matches, defaultMatches, maxMatches},
		} {
			literal, has := given[name]
			if !has || string(literal) == "null" {
				if number.got != number.otherwise {
					t.Fatalf("%q: %s is %d", data, name, number.got)
				}
				continue
			}
			want, ok := new(big.Float).SetPrec(2000).SetString(string(literal))
			if !ok || want.Sign() < 0 {
				t.Fatalf("%q: %s is %d", data, name, number.got)
			}
			if most := big.NewFloat(float64(number.most)); want.Cmp(most) >= 0 {
				if number.got < number.most {
					t.Fatalf("%q: %s is %d", data, name, number.got)
				}
			} else if n, accuracy := want.Int64(); accuracy != big.Exact && len(literal) < 20 || n != int64(number.got) &&
				accuracy == big.Exact {
				t.Fatalf("%q: %s is %d", data, name, number.got)
			}
		}
		if !(0 <= a.ratio && a.ratio <= 1) || a.goal != "" && (a.query != "" || pattern != "") || a.query != "" &&
			pattern != "" || a.endLine > 0 && a.endLine < a.firstLine {
			t.Fatalf("%q is read as %+v", data, a)
		}
		if a.end >= 0 && a.end <= a.start {
			t.Fatalf("%q: from %d to %d", data, a.start, a.end)
		}
		for name, value := range given {
			if !slices.Contains(names, name) && string(value) != "null" {
				t.Fatalf("%q has the argument %s", data, name)
			}
		}
	})
}
