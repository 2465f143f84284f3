package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
)

func TestHowManyLinesMayGo(t *testing.T) {
	for _, test := range []struct {
		name       string
		n          int
		ratio      float64
		keep, want int
	}{
		{"P29: half of 303 lines is 151", 303, 0.5, 0, 151},
		{"P29: a ratio that floating point has a little less of", 10, 0.7, 0, 7},
		{"P30: so many lines are kept at least", 100, 0.9, 40, 60},
		{"P30: a text shorter than that is kept whole", 20, 0.9, 40, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := allowed(test.n, test.ratio, test.keep); got != test.want {
				t.Errorf("got %d, want %d", got, test.want)
			}
		})
	}
}

func TestBaselines(t *testing.T) {
	lines := []string{"package a", "", "// the rate of exchange", "func rate() {", "}", "func exchange() {", "\trate()", "}"}
	for _, test := range []struct {
		name string
		kept []bool
		want string // x for lines that are kept
	}{
		{"head and tail", keepEnds(lines, 3), "xx.....x"},
		{"nothing of head and tail", keepEnds(lines, 0), "........"},
		{"structure before the head", keepStructure(prune.Code, lines, 4), "xx.x.x.."},
		{"not all of the structure", keepStructure(prune.Code, lines, 2), "x..x...."},
		{"errors are the structure of logs", keepStructure(prune.Logs, []string{"a", "b Error", "--- FAIL"}, 2), ".xx"},
		{"headings are the structure of docs", keepStructure(prune.Docs, []string{"a", "# b", "#c"}, 1), ".x."},
		{"words of the goal, the shorter line first", keepMatches("the exchange rate", lines, 2, 0), "..x..x.."},
		{"without a word in common the head", keepMatches("tariff", lines, 2, 0), "xx......"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := strings.Builder{}
			for _, kept := range test.kept {
				if kept {
					got.WriteByte('x')
				} else {
					got.WriteByte('.')
				}
			}
			if got.String() != test.want {
				t.Errorf("got %s, want %s", &got, test.want)
			}
		})
	}
	for _, b := range baselines(1) {
		task := &task.Task{Goal: "the exchange rate", Source: prune.Code}
		kept := b.kept(task, lines, 5)
		if n := len(slices.DeleteFunc(slices.Clone(kept), func(kept bool) bool { return !kept })); n != 5 {
			t.Errorf("%s keeps %d lines of 5", b.name, n)
		}
		if !slices.Equal(kept, b.kept(task, lines, 5)) {
			t.Errorf("%s is not the same twice", b.name)
		}
	}
}

func TestMarkersOfBaselines(t *testing.T) {
	got := render([]string{"a", "b", "c", "d"}, []bool{false, true, false, false})
	want := "⟦PRUNÉ: prune_id=" + handle + " lignes 1-1 (1) raison=hors focus⟧\nb\n⟦PRUNÉ: prune_id=" + handle + " lignes 3-4 (2) raison=hors focus⟧\n"
	if got != want {
		t.Errorf("got %s", got)
	}
	if id := new(prune.Request).ID(); len(id) != len(handle) {
		t.Errorf("%s is not as long as %s", handle, id)
	}
}

// resultOf returns the result of leaving lines start to end out of lines, two ranges at
// most, as it should be.
func resultOf(lines []string, ranges ...int) *prune.Result {
	kept := everything(lines)
	result := &prune.Result{PruneID: handle}
	for i := 0; i < len(ranges); i += 2 {
		start, end := ranges[i], ranges[i+1]
		for n := start; n <= end; n++ {
			kept[n-1] = false
		}
		result.Annotations = append(result.Annotations, prune.Annotation{
			Start: start, End: end, Count: end - start + 1,
			Marker: fmt.Sprintf("⟦PRUNÉ: prune_id=%s lignes %d-%d (%d) raison=hors focus⟧", handle, start, end, end-start+1),
		})
		result.Stats.PrunedLines += end - start + 1
	}
	result.PrunedText = render(lines, kept)
	result.Stats.OriginalLines, result.Stats.KeptLines = len(lines), len(lines)-result.Stats.PrunedLines
	result.Stats.TokensAfter = prune.EstimateTokens(result.PrunedText)
	return result
}

func TestJudge(t *testing.T) {
	lines := []string{"a", "b", "", "d", "e", "f"}
	for _, test := range []struct {
		name   string
		ranges []int
		spoil  func(*prune.Result)
		want   string // in the error
	}{
		{name: "nothing is left out"},
		{name: "two blocks", ranges: []int{1, 1, 3, 4}},
		{name: "P29: more than may be", ranges: []int{1, 2, 4, 6}, want: "5 of 6 lines are left out, 4 may be"},
		{name: "P21: blocks that touch", ranges: []int{1, 1, 2, 2}, want: "annotation of lines 2 to 2"},
		{name: "P21: a block after the end", ranges: []int{5, 6}, spoil: func(r *prune.Result) { r.Annotations[0].End = 7 }, want: "annotation of lines 5 to 7"},
		{name: "P20: a wrong count", ranges: []int{2, 3}, spoil: func(r *prune.Result) { r.Stats.KeptLines++ }, want: "not as in"},
		{name: "P78: tokens that are not those of the answer", ranges: []int{2, 3}, spoil: func(r *prune.Result) { r.Stats.TokensAfter++ }, want: "tokens, not as in"},
		{name: "P55: no pruning", spoil: func(r *prune.Result) { r.Fallback(prune.Timeout) }, want: "fallback: timeout"},
		{name: "P23: a marker that is no line of its own", ranges: []int{2, 3}, spoil: func(r *prune.Result) { r.PrunedText = strings.Replace(r.PrunedText, "⟧\n", "⟧", 1) }, want: "line 2 of the answer"},
		{name: "P28: a line that is not as it was", spoil: func(r *prune.Result) { r.PrunedText = strings.Replace(r.PrunedText, "d", "D", 1) }, want: `line 4 of the answer is "D", want "d"`},
		{name: "P28: a line too many", spoil: func(r *prune.Result) { r.PrunedText += "\n" }, want: "the answer has 7 lines, want 6"},
	} {
		t.Run(test.name, func(t *testing.T) {
			result := resultOf(lines, test.ranges...)
			if test.spoil != nil {
				test.spoil(result)
			}
			kept, err := judge(result, lines, 4)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v", err)
			}
			if len(kept) != len(lines) {
				t.Errorf("%d of %d lines are judged", len(kept), len(lines))
			}
			for i := 0; err == nil && i < len(test.ranges); i++ {
				if kept[test.ranges[i]-1] {
					t.Errorf("line %d counts as kept", test.ranges[i])
				}
			}
		})
	}
}
