package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/tokens"
)

func TestAllowedLines(t *testing.T) {
	for _, test := range []struct {
		name       string
		n          int
		ratio      float64
		keep, want int
	}{
		{"P29: half of 303 lines is 151", 303, 0.5, 0, 151},
		{"P29: a ratio that floating point rounds down", 10, 0.7, 0, 7},
		{"P30: a minimum of lines is kept", 100, 0.9, 40, 60},
		{"P30: a shorter text is kept whole", 20, 0.9, 40, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := allowed(test.n, test.ratio, test.keep); got != test.want {
				t.Errorf("got %d, want %d", got, test.want)
			}
		})
	}
}

// drawn returns an x for each kept line and a dot for each removed one.
func drawn(kept []bool) string {
	var b strings.Builder
	for _, is := range kept {
		if is {
			b.WriteByte('x')
		} else {
			b.WriteByte('.')
		}
	}
	return b.String()
}

// shop is a text of definitions, one of which is about exchange rates.
var shop = func() string {
	var b strings.Builder
	b.WriteString("package shop\n")
	for _, name := range []string{"Order", "ExchangeRate", "Basket", "Refund"} {
		fmt.Fprintf(&b, "\n// %s is called by the clerk of a warehouse.\nfunc %[1]s(a, b int) int {\n", name)
		for i := range 12 {
			fmt.Fprintf(&b, "\ta = transform%d(a+b, shelf[%d], customers[%d].Address)\n", i, i*7, i*3)
		}
		b.WriteString("\treturn a\n}\n")
	}
	return b.String()
}()

func TestBaselines(t *testing.T) {
	text := newText(shop, "fix the rates of exchange", prune.Code)
	exchange := strings.Repeat(".", 18) + strings.Repeat("x", 16) + strings.Repeat(".", 33)
	budget := 0 // room for the definition and two markers
	for i, c := range exchange {
		if c == 'x' {
			budget += text.tokens[i]
		}
	}
	budget += 2*text.marker + 5
	for _, b := range baselines {
		t.Run(b.name, func(t *testing.T) {
			answer := text.fill(budget, b.read(text))
			got := drawn(answer.kept)
			switch b.name {
			case "head + tail":
				n := strings.Count(got, "x")
				if want := strings.Repeat("x", (n+1)/2) + strings.Repeat(".", len(got)-n) + strings.Repeat("x", n/2); n == 0 ||
					got != want {
					t.Errorf("got %s, want %s", got, want)
				}
			default:
				for i := range exchange {
					if exchange[i] == 'x' && strings.TrimSpace(text.lines[i]) != "}" && got[i] != 'x' {
						t.Errorf("line %d is missing: got %s, want %s", i+1, got, exchange)
					}
				}
			}
		})
	}
}

func TestBaselinesAreWithinBudget(t *testing.T) {
	crlf := strings.ReplaceAll(shop, "\n", "\r\n")
	for name, content := range map[string]string{
		"code": shop, "CRLF": crlf, "no line end at the end": strings.TrimSuffix(shop, "\n"),
		"nothing in common": strings.Repeat("lorem ipsum dolor sit amet\n", 80), "blank lines": "a\n" + strings.Repeat("\n",
			90) + "b\n",
	} {
		for _, source := range sources {
			text := newText(content, "fix the rates of exchange", source)
			whole := tokens.Count(content)
			for _, b := range baselines {
				choose := b.read(text)
				for budget := text.marker + 20; budget < whole; budget += 23 {
					a := text.fill(budget, choose)
					rendered := text.render(a.kept)
					if a.tokens > budget || a.tokens != tokens.Count(rendered) || a.runs != strings.Count(rendered, "⟦") {
						t.Errorf("%s as %s, %s: %d tokens and %d runs with a budget of %d: %s", name, source, b.name, a.tokens, a.runs,
							budget, drawn(a.kept))
					}
					if again := text.fill(budget, b.read(text)); drawn(again.kept) != drawn(a.kept) {
						t.Errorf("%s as %s, %s: the second answer differs", name, source, b.name)
					}
				}
				if a := text.fill(whole, choose); strings.Contains(drawn(a.kept), ".") || a.tokens != whole {
					t.Errorf("%s as %s, %s: not all lines are kept, although they fit", name, source, b.name)
				}
			}
		}
	}
}

func TestTextKeepsItsLines(t *testing.T) {
	for _, content := range []string{"a\nb", "a\r\n\r\nb\r\n", "a\rb\n\nc\n", "\n", "é\n"} {
		text := newText(content, "", prune.Code)
		if got := strings.Join(text.lines, ""); got != content || len(text.lines) != prune.CountLines(content) {
			t.Errorf("%q has lines %q", content, text.lines)
		}
		if kept := keepAll(len(text.lines)); text.cost(kept) != tokens.Count(content) || text.render(kept) != content {
			t.Errorf("%q has %d tokens, want %d", content, text.cost(kept), tokens.Count(content))
		}
	}
}

func TestMarkersOfBaselines(t *testing.T) {
	text := newText("a\nb\nc\nd", "", prune.Code)
	got := text.render([]bool{false, true, false, false})
	want := "⟦PRUNÉ: prune_id=" + handle + " lignes 1-1 (1) raison=hors focus⟧\nb\n⟦PRUNÉ: prune_id=" + handle +
		" lignes 3-4 (2) raison=hors focus⟧"
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}

	task := &task.Task{Text: shop, Goal: "the rates of exchange", Source: prune.Code}
	result := pruneTask(task, 0.9, 10)
	if len(result.Annotations) == 0 {
		t.Fatal("nothing was removed")
	}
	for _, a := range result.Annotations {
		want := strings.Replace(strings.Replace(a.Marker, result.PruneID, handle, 1), a.Reason, "hors focus", 1)
		if got := marker(a.Start-1, a.End); got != want {
			t.Errorf("got marker %s, package prune writes %s", got, want)
		}
	}
}

// resultOf returns a valid result that removes up to two ranges of lines.
func resultOf(lines []string, ranges ...int) *prune.Result {
	kept := keepAll(len(lines))
	result := &prune.Result{PruneID: handle}
	for i := 0; i < len(ranges); i += 2 {
		start, end := ranges[i], ranges[i+1]
		for n := start; n <= end; n++ {
			kept[n-1] = false
		}
		result.Annotations = append(result.Annotations, prune.Annotation{
			Start: start, End: end, Count: end - start + 1,
			Marker: marker(start-1, end),
		})
		result.Stats.PrunedLines += end - start + 1
	}
	result.PrunedText = newText(strings.Join(lines, "\n")+"\n", "", prune.Code).render(kept)
	result.Stats.OriginalLines, result.Stats.KeptLines = len(lines), len(lines)-result.Stats.PrunedLines
	result.Stats.TokensAfter = tokens.Count(result.PrunedText)
	return result
}

func TestCheckResult(t *testing.T) {
	lines := []string{"a", "b", "", "d", "e", "f"}
	for _, test := range []struct {
		name   string
		ranges []int
		spoil  func(*prune.Result)
		want   string // in the error
	}{
		{name: "nothing removed"},
		{name: "two blocks", ranges: []int{1, 1, 3, 4}},
		{name: "P29: more than allowed", ranges: []int{1, 2, 4, 6}, want: "removed 5 of 6 lines, at most 4 allowed"},
		{name: "P21: adjacent blocks", ranges: []int{1, 1, 2, 2}, want: "annotation of lines 2 to 2"},
		{name: "P21: a block after the end", ranges: []int{5, 6}, spoil: func(r *prune.Result) { r.Annotations[0].End = 7 },
			want: "annotation of lines 5 to 7"},
		{name: "P20: a wrong count", ranges: []int{2, 3}, spoil: func(r *prune.Result) { r.Stats.KeptLines++ },
			want: "but the statistics are"},
		{name: "P78: a wrong number of tokens", ranges: []int{2, 3}, spoil: func(r *prune.Result) { r.Stats.TokensAfter++ },
			want: "tokens, but the statistics are"},
		{name: "P55: no pruning", spoil: func(r *prune.Result) { r.Fallback(prune.Timeout) }, want: "fallback: timeout"},
		{name: "P23: a marker that is not on its own line", ranges: []int{2, 3}, spoil: func(r *prune.Result) {
			r.PrunedText = strings.Replace(r.PrunedText, "⟧\n", "⟧", 1)
			r.Stats.TokensAfter = tokens.Count(r.PrunedText)
		}, want: "line 2 of the answer"},
		{name: "P28: a changed line", spoil: func(r *prune.Result) {
			r.PrunedText = strings.Replace(r.PrunedText, "d", "D", 1)
		}, want: `line 4 of the answer is "D", want "d"`},
		{name: "P28: a line too many", spoil: func(r *prune.Result) { r.PrunedText += "\n" },
			want: "the answer has 7 lines, want 6"},
	} {
		t.Run(test.name, func(t *testing.T) {
			result := resultOf(lines, test.ranges...)
			if test.spoil != nil {
				test.spoil(result)
			}
			kept, err := checkResult(result, lines, 4)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got error %v, want %q", err, test.want)
			}
			if len(kept) != len(lines) {
				t.Errorf("judged %d of %d lines", len(kept), len(lines))
			}
			for i := 0; err == nil && i < len(test.ranges); i++ {
				if kept[test.ranges[i]-1] {
					t.Errorf("line %d counts as kept", test.ranges[i])
				}
			}
		})
	}
}

func TestBlocks(t *testing.T) {
	for _, test := range []struct {
		name   string
		source prune.Source
		text   string // lines, each after a letter for its block and * if it names the block
	}{
		{"functions with their comments, and lines outside of functions", prune.Code, `
a  import "os"
b  
c  // Open opens.
c* func Open() {
c  	x()
c  
c  	y()
c  }
c  
d* func Close() {
d  	z()
d  }`},
		{"methods in a class", prune.Code, `
a* class Shop:
a      open = True
b      @cached
b*     def sell(self):
b          pass
b  
c*     def buy(self):
c          pass`},
		{"functions with heads of several lines", prune.Code, `
a  int
b* sum(int a,
b      int b)
b  {
b  #ifdef X
b  	if (a) {
b  		call(a);
b  	}
b  #endif
b  }
c  int x = call(1);`},
		{"sections, but not comments in fences", prune.Docs, `
a  An introduction
b* # First
b  
b  ` + "```" + `sh
b  # not a heading
b  ` + "```" + `
c* Second
c  ------
c  words`},
		{"records of logs", prune.Logs, `
a  INFO start
b  ERROR panic
b    at main.go:1
c  INFO end`},
	} {
		t.Run(test.name, func(t *testing.T) {
			lines := strings.Split(strings.TrimPrefix(test.text, "\n"), "\n")
			var content []string
			for _, line := range lines {
				content = append(content, line[min(3, len(line)):])
			}
			blocks, heads := newText(strings.Join(content, "\n"), "", test.source).blocks()
			letters := map[int]rune{}
			for i, line := range lines {
				letter, ok := letters[blocks[i]]
				if !ok {
					letter = 'a' + rune(len(letters))
					letters[blocks[i]] = letter
				}
				name := " "
				if heads[i] == i {
					name = "*"
				}
				if got := fmt.Sprintf("%c%s", letter, name); got != line[:2] {
					t.Errorf("line %d, %q: got %s", i+1, line, got)
				}
			}
		})
	}
}
