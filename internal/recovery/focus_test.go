package recovery

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
)

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
	log := strings.Join(all, "\n")
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
