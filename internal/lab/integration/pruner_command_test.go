package integration

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// pruneCommand runs `caddy prune` and returns its standard output, standard error and exit code.
func pruneCommand(t *testing.T, input string, args ...string) (out, messages string, code int) {
	t.Helper()
	cmd := caddy(t, append([]string{"prune"}, args...)...)
	// the command ignores these
	cmd.Env = append(cmd.Env, "KIMI_PRUNING_BACKEND=deepinfra", "DEEPINFRA_ENDPOINT_URL=http://127.0.0.1:1/")
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	return stdout.String(), stderr.String(), code
}

func TestPruneCommand(t *testing.T) {
	isolate(t)
	text := withLines(400, "some words in line %d", map[int]string{123: "the fluxcapacitor is here"})
	dir := t.TempDir()
	file := func(name string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	goal := []string{"--goal", "where is the fluxcapacitor"}
	statistics := regexp.MustCompile(`^(code|logs|docs): [\d,]+ of 400 lines kept, [\d,]+ → [\d,]+ tokens \(\d+ % ` +
		`saved\), \d+ ms\n$`)
	tests := []struct {
		name, input string
		args        []string
		source      string // the detected source type
	}{
		{"standard input", text, goal, "code"},
		{"standard input by name", text, append(goal, "-"), "code"},
		{"standard input of a type", text, append(goal, "--type", "logs"), "logs"},
		{"a file of code", "", append(goal, file("a.go")), "code"},
		{"a log", "", append(goal, file("a.log")), "logs"},
		{"a document", "", append(goal, file("a.md")), "docs"},
		{"a document with another type", "", append(goal, "--type", "code", file("b.md")), "code"},
		{"a little", text, append(goal, "--ratio", "0.1"), "code"},
		{"many lines kept", text, append(goal, "--min-keep", "350"), "code"},
		{"no markers", text, append(goal, "--no-markers"), "code"},
		{"numbers", text, append(goal, "--numbers"), "code"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out, messages, code := pruneCommand(t, tt.input, tt.args...)
			found := statistics.FindStringSubmatch(messages)
			if code != 0 || found == nil || found[1] != tt.source {
				t.Fatalf("exit code %d: %s", code, messages)
			}
			args := strings.Join(tt.args, " ")
			if strings.Contains(out, "prune_id=") || strings.Contains(out, "⟦PRUNÉ: lignes ") == strings.Contains(args,
				"--no-markers") || strings.Contains(out, "123│ the flux") != strings.Contains(args, "--numbers") {
				t.Errorf("%.500s", out)
			}
			removed := 400
			for line := range strings.Lines(out) {
				if !strings.HasPrefix(line, "⟦") {
					removed--
				}
			}
			most := map[string]int{"a little": 40, "many lines kept": 50}[tt.name]
			if most == 0 {
				most = 280 // 0.7 of them
			}
			if removed == 0 || removed > most || !strings.Contains(out, "the fluxcapacitor is here\n") {
				t.Errorf("%d of 400 lines were removed", removed)
			}
		})
	}
	t.Run("empty input", func(t *testing.T) {
		if out, messages, code := pruneCommand(t, "", goal...); code != 0 || out != "" || !strings.Contains(messages,
			"0 of 0 lines kept") {
			t.Errorf("%d %q %q", code, out, messages)
		}
	})
	t.Run("unchanged", func(t *testing.T) {
		odd := "a\r\nb\rc\n\xff\xfe\x00\nd"
		if out, messages, code := pruneCommand(t, odd, append(goal, "--ratio", "0")...); code != 0 || out != odd {
			t.Errorf("%d %q %q", code, out, messages)
		}
	})
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"no goal", nil, "--goal"},
		{"a blank goal", []string{"--goal", " "}, "--goal"},
		{"an unknown type", append(goal, "--type", "yaml"), "yaml"},
		{"a ratio above 1", append(goal, "--ratio", "1.5"), "--ratio"},
		{"a ratio below 0", append(goal, "--ratio=-0.1"), "--ratio"},
		{"a ratio in words", append(goal, "--ratio", "half"), "ratio"},
		{"a ratio that is not a number", append(goal, "--ratio", "NaN"), "--ratio"},
		{"a negative number of lines", append(goal, "--min-keep=-1"), "--min-keep"},
		{"half a line", append(goal, "--min-keep", "1.5"), "min-keep"},
		{"an unknown flag", append(goal, "--lines", "5"), "lines"},
		{"two files", append(goal, "a", "b"), "one file"},
		{"a missing file", append(goal, filepath.Join(dir, "nowhere.go")), "nowhere.go"},
		{"a folder", append(goal, dir), filepath.Base(dir)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, messages, code := pruneCommand(t, text, tt.args...)
			if code == 0 || out != "" || !strings.Contains(messages, tt.want) {
				t.Errorf("exit code %d, printed %.100q, messages %q", code, out, messages)
			}
		})
	}
}
