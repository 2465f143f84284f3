package mcppruner

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// run runs a command with input as its standard input.
func run(c command, input string) (out, summary string, err error) {
	var o, e strings.Builder
	c.options.Timeout = time.Minute
	err = c.run(strings.NewReader(input), &o, &e)
	return o.String(), e.String(), err
}

func TestPruneCommand(t *testing.T) {
	var b strings.Builder
	for i := range 400 {
		fmt.Fprintf(&b, "some more words that stand in the line %d\n", i+1)
	}
	text := b.String()
	dir := t.TempDir()
	for _, name := range []string{"a.go", "a.LOG", "a.md", "a"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name          string
		source, file  string
		plain, number bool
		want          string // the detected type
	}{
		{"standard input", "", "", false, false, "code"},
		{"standard input as -", "", "-", false, false, "code"},
		{"standard input with a type", "logs", "", false, false, "logs"},
		{"code", "", "a.go", false, false, "code"},
		{"a log", "", "a.LOG", false, false, "logs"},
		{"a document", "", "a.md", false, false, "docs"},
		{"a file without an extension", "", "a", false, false, "code"},
		{"a document extension with type code", "code", "a.md", false, false, "code"},
		{"without markers", "", "", true, false, "code"},
		{"with numbers", "", "", false, true, "code"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := command{goal: "g", source: tt.source}
			c.options.MaxPruneRatio, c.options.IncludeMarkers, c.options.AnnotateLines = 0.7, !tt.plain, tt.number
			input := ""
			switch tt.file {
			case "":
				input = text
			case "-":
				input, c.files = text, []string{"-"}
			default:
				c.files = []string{filepath.Join(dir, tt.file)}
			}
			out, summary, err := run(c, input)
			if err != nil {
				t.Fatal(err)
			}
			if !regexp.MustCompile(`^` + tt.want +
				`: \d+ of 400 lines kept, [\d,]+ → [\d,]+ tokens \(\d+ % saved\), \d+ ms\n$`).MatchString(summary) {
				t.Errorf("got summary %q", summary)
			}
			if len(out) >= len(text) || strings.Contains(out, "⟦PRUNÉ: ") == tt.plain ||
				regexp.MustCompile(`(?m)^\d+│ some`).MatchString(out) != tt.number {
				t.Errorf("got %.300q", out)
			}
			marker := regexp.MustCompile(`(?m)^⟦PRUNÉ: lignes \d+-\d+ \(\d+\) raison=[^⟧]+⟧$`)
			if marker.MatchString(out) == tt.plain || strings.Contains(out, "prn_") {
				t.Errorf("markers of %.300q", out)
			}
		})
	}
	t.Run("a ratio of 0", func(t *testing.T) {
		if out, _, err := run(command{goal: "g"}, text); err != nil || out != text {
			t.Errorf("got %.100q, %v", out, err)
		}
	})
}

func TestPruneCommandRefuses(t *testing.T) {
	tests := []struct {
		name string
		c    command
		want string
	}{
		{"no goal", command{}, "--goal"},
		{"a blank goal", command{goal: " "}, "--goal"},
		{"an unknown type", command{goal: "g", source: "yaml"}, `--type: "yaml"`},
		{"two files", command{goal: "g", files: []string{"a", "b"}}, "one file"},
		{"a missing file", command{goal: "g", files: []string{"nowhere"}}, "nowhere"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if out, _, err := run(tt.c, ""); err == nil || !strings.Contains(err.Error(), tt.want) || out != "" {
				t.Errorf("got %q, %v", out, err)
			}
		})
	}
	for _, ratio := range []float64{-0.1, 1.5, math.NaN()} {
		c := command{goal: "g"}
		c.options.MaxPruneRatio = ratio
		if _, _, err := run(c, ""); err == nil || !strings.Contains(err.Error(), "--ratio") {
			t.Errorf("ratio %v: %v", ratio, err)
		}
	}
	c := command{goal: "g"}
	c.options.MinKeepLines = -1
	if _, _, err := run(c, ""); err == nil || !strings.Contains(err.Error(), "--min-keep") {
		t.Error(err)
	}
}
