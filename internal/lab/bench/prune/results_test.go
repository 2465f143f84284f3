package main

import (
	"bytes"
	"io"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task/history"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task/history/historytest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task/local"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/tokens"
)

func TestFiguresOfAnswers(t *testing.T) {
	sample := &task.Task{Text: "one\ntwo\nthree\n", Relevant: []int{1, 3}}
	for _, test := range []struct {
		answer answer
		want   figures
	}{
		{answer{[]bool{true, false, true}, 5, 1}, figures{recall: 1, saved: 0.5, runs: 1, all: 1}},
		{answer{[]bool{true, false, false}, 4, 1}, figures{recall: 0.5, saved: 0.6, runs: 1}},
		{answer{[]bool{true, true, true}, 12, 0}, figures{recall: 1, saved: -0.2, all: 1, grew: 1}},
	} {
		got := figuresOf(sample, test.answer, 10)
		got.saved, test.want.saved = math.Round(got.saved*1e9), math.Round(test.want.saved*1e9)
		if got != test.want {
			t.Errorf("%+v: got %+v, want %+v", test.answer, got, test.want)
		}
	}
}

func TestReport(t *testing.T) {
	last := task.Task{Goal: "the last line", Source: prune.Docs, Text: strings.Repeat("some words of a line\n", 99) +
		"the last line\n", Relevant: []int{100}}
	first, code := last, last
	first.Repository, code.Repository, code.Source = "ann/parser", "bob/parser", prune.Code
	r := measure(settings{ratios: []float64{0.5, 0.9}, minKeep: 2, Sample: local.Sample{Seed: 7}},
		[]task.Task{last, first, code})
	var out bytes.Buffer
	r.print(&out)
	for _, want := range []string{
		"at `max_prune_ratio` 0.5 / 0.9, `min_keep_lines` 2, at equal tokens",
		"\nLocal tasks:\n\n| source | contestant | recall | tokens saved | runs | all kept | grew " +
			"|\n|---|---|--:|--:|--:|--:|--:|\n| docs | head + tail | 100.0 / 100.0 |",
		"\nTasks of repositories:\n\n| source | contestant | recall | tokens saved | runs | all kept | grew " +
			"|\n|---|---|--:|--:|--:|--:|--:|\n| code | head + tail |",
		"| docs | reference | 100.0 / 100.0 | ",
		"| docs | mcp_pruner | 100.0 / 100.0 | ",
		"| all | mcp_pruner | 100.0 / 100.0 | ",
		"| docs | 1 | +0.0 (+0.0 to +0.0) / +0.0 (+0.0 to +0.0) |",
		"| all | 2 | +0.0 (+0.0 to +0.0) / +0.0 (+0.0 to +0.0) |",
		"\n| repository | tasks | mcp_pruner − reference |\n|---|--:|--:|\n| ann/parser | 1 | +0.0 / +0.0 |\n| " +
			"bob/parser | 1 |",
		"\ndocs: 2 tasks of 100 lines on average, ",
		" at most, over 6 answers.\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "| logs |") {
		t.Errorf("logs have a row without a task:\n%s", &out)
	}
	for i := range r.outcomes {
		for ratio, by := range r.outcomes[i].figures {
			for name, f := range by {
				if f.saved < by[prunerName].saved {
					t.Errorf("task %d at %g: %s saves less than %s", i, r.ratios[ratio], name, prunerName)
				}
			}
		}
	}
}

func TestInvalidAnswers(t *testing.T) {
	r := &results{settings: settings{ratios: []float64{0.5}}}
	if err := r.err(); err != nil {
		t.Error(err)
	}
	sample := &task.Task{Goal: "g", Source: prune.Code, Text: shop, Relevant: []int{1}}
	for _, test := range []struct {
		name         string
		before, want int // error of the reported saving, in tokens and in points
	}{
		{"an exact saving", 0, 0},
		{"a saving off by less than a point", 5, 0},
		{"a saving off by 15 points", 300, 15},
	} {
		result := resultOf(prune.Lines(shop), 2, 30)
		result.Stats.TokensBefore = tokens.Count(shop) + test.before
		o := r.compare(sample, []*prune.Result{result})
		if got := int(math.Round(100 * o.savingErrors[0])); test.want > 0 && got != test.want ||
			(len(o.errs) > 0) != (test.want > 0) {
			t.Errorf("%s: %d points, errors %v", test.name, got, o.errs)
		}
		r.outcomes = []outcome{o}
	}
	if err := r.err(); err == nil || !strings.Contains(err.Error(), "the reported saving is off by 14.9") {
		t.Errorf("got %v", err)
	}
}

func TestInterval(t *testing.T) {
	groups := [][]float64{{0.1, 0.3, -0.1, 0.2}, {0.5, 0.4}, {-0.3}}
	bounds := func(seed uint64, groups [][]float64) [2]float64 {
		low, high := interval(groups, rand.New(rand.NewPCG(seed, 4)))
		return [2]float64{low, high}
	}
	if a, b := bounds(1, groups), bounds(1, groups); a != b {
		t.Errorf("the second time: got %v, want %v", b, a)
	}
	if got := bounds(1, groups); got[0] >= mean(slices.Concat(groups...)) || got[1] <= mean(slices.Concat(groups...)) {
		t.Errorf("the mean is not in %v", got)
	}
	// Repositories that differ give a wider interval than as many tasks of one.
	alike, apart := [][]float64{{0, 1, 0, 1, 0, 1, 0, 1}}, [][]float64{{0, 0, 0, 0}, {1, 1, 1, 1}}
	if one, two := bounds(1, alike), bounds(1, apart); two != [2]float64{0, 1} || one[1]-one[0] >= 1 {
		t.Errorf("one group: %v, two groups: %v", one, two)
	}
}

func TestTasksOfRepositories(t *testing.T) {
	h := historytest.New(t, "sample")
	h.Commit("Begin with all of it", map[string]string{"a.md": historytest.Numbered(100)})
	h.Commit("Say something else there", map[string]string{"a.md": historytest.Numbered(100, 7)})
	clones, sample := filepath.Split(h.Directory)
	s := settings{clones: clones, measured: []history.Repository{{Name: sample, Commit: h.Head()}},
		own: []string{h.Directory}, per: 5}
	tasks, err := s.tasks()
	if err != nil || len(tasks) != 2 || tasks[0].Repository != "sample" || !strings.HasSuffix(tasks[1].Repository,
		"/sample") {
		t.Errorf("got %d tasks, error %v", len(tasks), err)
	}

	learned := filepath.Join(t.TempDir(), filepath.FromSlash(history.Learned()[0].Name))
	s.own = []string{learned}
	if _, err := s.tasks(); err == nil || !strings.Contains(err.Error(), learned+": the weights are trained on") {
		t.Errorf("got error %v", err)
	}
}

func TestInvalidSettings(t *testing.T) {
	for flag, s := range map[string]settings{
		"-code, -docs and -logs: must":     {Sample: local.Sample{Code: -1}, per: 1},
		"-code, -docs and -logs: no tasks": {per: 1},
		"-min-keep":                        {minKeep: -1, per: 1},
		"-per":                             {},
		"-clones: missing":                 {clones: "missing", measured: history.Measured(), per: 1},
	} {
		if err := run(io.Discard, s); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s: got %v", flag, err)
		}
	}
	for _, list := range []string{"", "0.5,", "0", "1.1", "NaN", "x"} {
		if err := new(settings).parseRatios(list); err == nil || !strings.Contains(err.Error(), "-ratios") {
			t.Errorf("-ratios %q: got %v", list, err)
		}
	}
	var s settings
	if err := s.parseRatios("0.5, 1"); err != nil || len(s.ratios) != 2 {
		t.Errorf("got %v, %v", s.ratios, err)
	}
}
