package main

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/task/local"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
)

func TestScoreOfAnswers(t *testing.T) {
	sample := &task.Task{Text: "one two three four\nfive six seven eight\nnine\n", Relevant: []int{1, 3}}
	var s score
	s.add(sample, answer{kept: []bool{true, false, true}, tokens: 5})
	s.add(sample, answer{kept: []bool{true, false, false}, tokens: 4})
	s.add(sample, answer{kept: []bool{true, true, true}, tokens: 12})
	if s.answers != 3 || s.recall != 2.5 || s.all != 2 || s.grew != 1 {
		t.Errorf("got %+v", s)
	}
	before := float64(prune.EstimateTokens(sample.Text))
	if want := 3 - 21/before; s.saved < want-1e-9 || s.saved > want+1e-9 {
		t.Errorf("saved %g, want %g", s.saved, want)
	}
}

func TestTableOfResults(t *testing.T) {
	r := newResults(settings{ratios: []float64{0.5, 0.9}, minKeep: 2, Sample: local.Sample{Seed: 7}})
	r.add(&task.Task{Goal: "the last line", Source: prune.Docs, Text: strings.Repeat("some words of a line\n", 99) + "the last line\n", Relevant: []int{100}})
	var out bytes.Buffer
	r.print(&out)
	for _, want := range []string{
		"at `max_prune_ratio` 0.5 / 0.9, `min_keep_lines` 2, markers counted",
		"| source | contestant | recall | all kept | tokens saved | grew |\n|---|---|--:|--:|--:|--:|\n| docs | random |",
		"| docs | head + tail | 100 / 100 | 100 / 100 |",
		"| docs | BM25 by words | 100 / 100 | 100 / 100 |",
		"| docs | mcp_pruner | ",
		"\ndocs: 1 tasks of 100 lines on average, ",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "| logs |") {
		t.Errorf("logs have a row without a task:\n%s", &out)
	}
}

func TestAnswersThatMustNotBe(t *testing.T) {
	r := newResults(settings{})
	if err := r.err(); err != nil {
		t.Error(err)
	}
	r.violations = append(r.violations, errors.New("too much is left out"))
	if err := r.err(); err == nil || !strings.Contains(err.Error(), "too much is left out") {
		t.Errorf("got %v", err)
	}
}

func TestImpossibleSettings(t *testing.T) {
	for flag, s := range map[string]settings{
		"-code, -docs and -logs: a number": {Sample: local.Sample{Code: -1}},
		"-code, -docs and -logs: there":    {},
		"-min-keep":                        {minKeep: -1},
	} {
		if err := run(io.Discard, s, ""); err == nil || !strings.Contains(err.Error(), flag) {
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
