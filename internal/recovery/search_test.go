package recovery

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// numbered returns a text of n lines: "line 1", "line 2" and so on.
func numbered(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "line %d\n", i+1)
	}
	return b.String()
}

func TestPattern(t *testing.T) {
	long := strings.Repeat("x", 1000) + "needle" + strings.Repeat("y", 1000)
	for _, test := range []struct {
		name, text, arguments string
		max                   int
		want, note            string
	}{
		{"a line with context", numbered(9), `"pattern":"5"`, 0,
			"3- line 3\n4- line 4\n5: line 5\n6- line 6\n7- line 7", "[matches: 1; the original has 63 characters]"},
		{"at the beginning", numbered(9), `"pattern":"line 1"`, 0, "1: line 1\n2- line 2\n3- line 3",
			"[matches: 1; the original has 63 characters]"},
		{"at the end, with no line after it", numbered(9), `"pattern":"line 9"`, 0,
			"7- line 7\n8- line 8\n9: line 9", "[matches: 1; the original has 63 characters]"},
		{"at an end without a line break", "a\nb", `"pattern":"b"`, 0, "1- a\n2: b",
			"[matches: 1; the original has 3 characters]"},
		{"without context", numbered(9), `"pattern":"[37]","context_lines":0`, 0, "3: line 3\n--\n7: line 7",
			"[matches: 2; the original has 63 characters]"},
		{"lines next to each other", numbered(9), `"pattern":"[34]","context_lines":0`, 0, "3: line 3\n4: line 4",
			"[matches: 2; the original has 63 characters]"},
		{"contexts that overlap", numbered(9), `"pattern":"[36]"`, 0,
			"1- line 1\n2- line 2\n3: line 3\n4- line 4\n5- line 5\n6: line 6\n7- line 7\n8- line 8",
			"[matches: 2; the original has 63 characters]"},
		{"contexts that touch", numbered(9), `"pattern":"[36]","context_lines":1`, 0,
			"2- line 2\n3: line 3\n4- line 4\n5- line 5\n6: line 6\n7- line 7", "[matches: 2; the original has 63 characters]"},
		{"contexts apart", numbered(9), `"pattern":"[27]","context_lines":1`, 0,
			"1- line 1\n2: line 2\n3- line 3\n--\n6- line 6\n7: line 7\n8- line 8",
			"[matches: 2; the original has 63 characters]"},
		{"a line that matches several times is shown once", "aaa\nb", `"pattern":"a","context_lines":0`, 0, "1: aaa",
			"[matches: 1; the original has 5 characters]"},
		{"no matching line",
			numbered(9), `"pattern":"zzz","end_char":40`, 0, "[no line matches in characters 0 to 40 of 63]", ""},
		{"more matches than requested", numbered(9), `"pattern":"line","context_lines":0,"max_matches":2`, 0,
			"1: line 1\n2: line 2", "[matches: 2; go on with start_char=14; the original has 63 characters]"},
		{"as many matches as requested", numbered(2), `"pattern":"line","context_lines":0,"max_matches":2`, 0,
			"1: line 1\n2: line 2", "[matches: 2; the original has 14 characters]"},
		{"20 by default", numbered(30), `"pattern":"line","context_lines":0`, 0,
			strings.TrimSuffix(regexp.MustCompile(`line (\d+)`).ReplaceAllString(numbered(20), "$1: $0"), "\n"),
			"[matches: 20; go on with start_char=151; the original has 231 characters]"},
		{"200 at most", numbered(300), `"pattern":"line","context_lines":0,"max_matches":999`, 0,
			strings.TrimSuffix(regexp.MustCompile(`line (\d+)`).ReplaceAllString(numbered(200), "$1: $0"), "\n"),
			"[matches: 200; go on with start_char=1692; the original has 2592 characters]"},
		{"from a character on", numbered(9), `"pattern":"line","context_lines":1,"start_char":49`, 0,
			"7- line 7\n8: line 8\n9: line 9", "[matches: 2; the original has 63 characters]"},
		{"up to a character", numbered(9), `"pattern":"line","context_lines":1,"end_char":7`, 0, "1: line 1\n2- line 2",
			"[matches: 1; the original has 63 characters]"},
		{"an empty line after the range", "a\n\nb", `"pattern":"^$","end_char":2`, 0,
			"[no line matches in characters 0 to 2 of 4]", ""},
		{"empty lines", "a\n\nb\n\n", `"pattern":"^$","context_lines":0`, 0, "2: \n--\n4: ",
			"[matches: 2; the original has 6 characters]"},
		{"the end of a line is not the line", "ab\ncd", `"pattern":"$","start_char":2,"context_lines":0`, 0, "2: cd",
			"[matches: 1; the original has 5 characters]"},
		{"part of a line", "abcabc", `"pattern":"^a","start_char":3,"context_lines":0`, 0, "1: abcabc",
			"[matches: 1; the original has 6 characters]"},
		{"other line separators do not end a line", "a\u2028b\rc\vd\u0085e\nf", `"pattern":"b","context_lines":0`, 0,
			"1: a\u2028b\rc\vd\u0085e", "[matches: 1; the original has 11 characters]"},
		{"carriage returns count as line ends",
			"a\rb\rc\nd\r\ne\rf\ng", `"pattern":"e"`, 0, "1- a\rb\rc\n4- d\r\n5: e\rf\n7- g",
			"[matches: 1; the original has 14 characters]"},
		{"carriage returns after a start", "a\rb\rc\nd\r\ne\rf\ng",
			`"pattern":"e","start_char":11,"context_lines":0`, 0, "[no line matches in characters 11 to 14 of 14]", ""},
		{"carriage returns before a start", "a\rb\rc\nd\r\ne\rf\ng", `"pattern":"f","start_char":11,"context_lines":0`,
			0, "5: e\rf", "[matches: 1; the original has 14 characters]"},
		{"a carriage return stays", "a\r\nb\r\n", `"pattern":"b"`, 0, "1- a\r\n2: b\r",
			"[matches: 1; the original has 6 characters]"},
		{"the end of a line before a carriage return", "ab\r\n\r\nb c\r\ncb\r", `"pattern":"b$","context_lines":0`, 0,
			"1: ab\r\n--\n4: cb\r", "[matches: 2; the original has 14 characters]"},
		{"empty lines with carriage returns", "a\r\n\r\nb\r\n", `"pattern":"^$","context_lines":0`, 0, "2: \r",
			"[matches: 1; the original has 8 characters]"},
		{"from a carriage return on", "ab\r\ncb\r\n", `"pattern":"b?$","start_char":2,"context_lines":0`, 0, "2: cb\r",
			"[matches: 1; the original has 8 characters]"},
		{"from a line feed on", "ab\r\ncb\r\n", `"pattern":"b?$","start_char":3,"context_lines":0`, 0, "2: cb\r",
			"[matches: 1; the original has 8 characters]"},
		{"case-insensitive", "Ab\nÉT", `"pattern":"(?i)ét","context_lines":0`, 0, "2: ÉT",
			"[matches: 1; the original has 5 characters]"},
		{"as many lines as fit", numbered(9), `"pattern":"line","context_lines":0`, 25, "1: line 1\n2: line 2",
			"[matches: 2; go on with start_char=14; the original has 63 characters]"},
		{"as much context after a match as fits", numbered(9), `"pattern":"[19]"`, 25, "1: line 1\n2- line 2",
			"[matches: 1; go on with start_char=56; the original has 63 characters]"},
		{"as much context before a match as fits", numbered(9), `"pattern":"9","context_lines":5`, 25,
			"8- line 8\n9: line 9", "[matches: 1; the original has 63 characters]"},
		{"a line as long as the response", "abcdefg", `"pattern":"d"`, 10, "1: abcdefg",
			"[matches: 1; the original has 7 characters]"},
		{"a long line", "before\n" + long + "\nafter", `"pattern":"needle"`, 800, "1- before\n2: [characters 807 to 1213] " +
			long[800:1206] + "\n3- after", "[matches: 1; the original has 2019 characters]"},
		{"a long line among others", long + "\nb\n" + long, `"pattern":"b"`, 800, "1- [characters 0 to 200] " + long[:200] +
			"\n2: b\n3- [characters 2009 to 2209] " + long[:200], "[matches: 1; the original has 4015 characters]"},
		{"all of a long line", strings.Repeat("é", 300) + "!" + strings.Repeat("é", 500) + "!" + strings.Repeat("é", 300),
			`"pattern":"!"`, 900,
			"1: [characters 100 to 501] " + strings.Repeat("é", 200) + "!" + strings.Repeat("é", 200) +
				"\n1: [characters 601 to 1002] " + strings.Repeat("é", 200) + "!" + strings.Repeat("é", 200),
			"[matches: 2; the original has 1102 characters]"},
		{"some of a long line", strings.Repeat("é", 300) + "!" + strings.Repeat("é", 500) + "!" + strings.Repeat("é", 300),
			`"pattern":"!"`, 700, "1: [characters 100 to 501] " + strings.Repeat("é", 200) + "!" + strings.Repeat("é", 200),
			"[matches: 1; go on with start_char=501; the original has 1102 characters]"},
		{"a long line under a very small limit", strings.Repeat("a", 10) + "b", `"pattern":"b"`, 4, "1: b",
			"[matches: 1; the original has 11 characters]"},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := call(t, keeping(quoted(test.text), test.max), `{"id":"`+id+`",`+test.arguments+`}`)
			if a.IsError || a.text() != test.want {
				t.Errorf("got %q\nwant %q", a.text(), test.want)
			}
			if note := a.Content[1:]; len(note) > 0 && note[0].Text != test.note || len(note) == 0 && test.note != "" {
				t.Errorf("note %q, want %q", note, test.note)
			}
			if test.max > 0 && utf8.RuneCountInString(a.text()) > test.max {
				t.Errorf("%d characters, more than %d", utf8.RuneCountInString(a.text()), test.max)
			}
		})
	}
}

// Repeated searches from the returned start_char show all matching lines, under every limit.
func TestPatternsContinue(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	words := []string{"a", "b", "é", "漢", " ", "\n", "\n", "\r\n", "\u2028", "needle"}
	number := regexp.MustCompile(`(?m)^(\d+): `)
	for range 400 {
		var b strings.Builder
		for range 1 + random.IntN(120) {
			b.WriteString(words[random.IntN(len(words))])
		}
		text := b.String()
		want := map[string]bool{}
		for i, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
			if strings.Contains(line, "needle") {
				want[fmt.Sprint(i+1)] = true
			}
		}
		limit := []int{0, 8, 20, 40, 130, 400}[random.IntN(6)]
		context, matches := random.IntN(4), 1+random.IntN(3)
		r, got := keeping(quoted(text), limit), map[string]bool{}
		for start := 0; ; {
			a := call(t, r, fmt.Sprintf(`{"id":%q,"pattern":"needle","start_char":%d,"context_lines":%d,"max_matches":%d}`, id,
				start, context, matches))
			if a.IsError {
				t.Fatal(a.text())
			}
			if *a.Meta.Matches > 0 {
				if limit > 0 && utf8.RuneCountInString(a.text()) > limit {
					t.Fatalf("%q within %d: %q", text, limit, a.text())
				}
				for _, m := range number.FindAllStringSubmatch(a.text(), -1) {
					got[m[1]] = true
				}
			}
			if a.Meta.Next == nil {
				break
			}
			if *a.Meta.Next <= start {
				t.Fatalf("%q within %d: from %d on to %d", text, limit, start, *a.Meta.Next)
			}
			start = *a.Meta.Next
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("%q within %d: lines %v, want %v", text, limit, got, want)
		}
	}
}

func TestSearchIsBounded(t *testing.T) {
	defer func(n int) { maxWork = n }(maxWork)
	maxWork = 1 << 20
	complex := strings.Repeat(`.{0,1000}`, 10)
	r := keeping(strings.Repeat("abc ", 1000), 4000)
	a := call(t, r, `{"id":"`+id+`","pattern":"`+complex+`"}`)
	if !a.IsError || !strings.HasPrefix(a.text(), "pattern is too complex") {
		t.Errorf("%+v", a)
	}
	if a := call(t, r, `{"id":"`+id+`","pattern":"`+complex+`","end_char":10}`); a.IsError {
		t.Errorf("part of the text: %+v", a)
	}
	// Each match of this pattern scans to the end of the text for a z.
	a = call(t, keeping(strings.Repeat("a", 100_000), 90_000), `{"id":"`+id+`","pattern":"a(.*z)?","max_matches":200}`)
	if a.IsError || a.Meta.Next == nil || *a.Meta.Matches < 1 || *a.Meta.Matches > 100 {
		t.Errorf("%+v", a.Content)
	}
}

// A client searches one large original at a time, so that it cannot take all processors and memory.
// Small originals, and ranges of characters, do not wait.
func TestSearchesTakeTurns(t *testing.T) {
	defer func(d time.Duration) { queryTime = d }(queryTime)
	defer searches.wait(t.Context(), "")()
	queryTime = 10 * time.Millisecond
	small, large := strings.Repeat(`line\n`, 1<<12), strings.Repeat(`line\n`, 1<<17)
	for _, arguments := range []string{
		`"pattern":"i"`, `"goal":"line"`, `"start_line":2`, `"end_line":2`, `"start_line":2,"pattern":"i"`,
	} {
		arguments = `{"id":"` + id + `",` + arguments + `}`
		if a := call(t, keeping(large, 100), arguments); !a.IsError ||
			!strings.HasPrefix(a.text(), "Too many searches at once") {
			t.Errorf("%s: %+v", arguments, a)
		}
		if a := call(t, keeping(small, 100), arguments); a.IsError {
			t.Errorf("%s in a small original: %+v", arguments, a)
		}
	}
	if a := call(t, keeping(small, 100), `{"id":"`+id+`","pattern":"[a-d]{1000}"}`); !a.IsError ||
		!strings.HasPrefix(a.text(), "Too many searches at once") {
		t.Errorf("a complex pattern: %+v", a)
	}
	if a := call(t, keeping(large, 100), `{"id":"`+id+`","start_char":600000}`); a.IsError {
		t.Errorf("a range of characters: %+v", a)
	}
	if cap(searches.running) == 1 {
		return
	}
	other := keeping(large, 100)
	other.Client = "another client"
	if a := call(t, other, `{"id":"`+id+`","pattern":"i"}`); a.IsError {
		t.Errorf("another client: %+v", a)
	}
}
