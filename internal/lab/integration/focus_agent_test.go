package integration

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// An agentRun is the search of an agent in one file.
type agentRun struct {
	ID    string
	Chars []int // of the response to each call
	Found bool
}

// An agent searches for a fact in each of 50 large files. It finds all of them in at most two calls
// each, and can recover the parts left out.
func TestFocusAgent(t *testing.T) {
	isolate(t)
	dir, err := filepath.EvalSymlinks(t.TempDir()) // as the server sees it
	if err != nil {
		t.Fatal(err)
	}
	type file struct {
		Path string `json:"path"`
		Goal string `json:"goal"`
		Then string `json:"then"`
		Want string `json:"want"`
	}
	var files []file
	texts := haystacks(t)
	if len(texts) != 50 {
		t.Fatalf("got %d texts", len(texts))
	}
	for _, p := range texts {
		path := filepath.Join(dir, p.name)
		if err := os.WriteFile(path, []byte(p.text), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, file{path, p.goal, cmp.Or(p.nextGoal, p.goal), p.want})
	}
	filesystem := nodeModules + "@modelcontextprotocol/server-filesystem/dist/index.js"
	url := serve(t, gateway("separator __", block("mask", "recover on", "json on"), "focus on",
		"server files stdio node "+filesystem+" "+dir))
	for _, era := range []string{"legacy", "modern"} {
		t.Run(era, func(t *testing.T) {
			type outcome struct {
				Focused, Plain  agentRun
				Parts, Resource string
			}
			task := map[string]any{"tool": "files__read_text_file", "files": files}
			runs := runJSON[struct {
				Version string
				ByGoal  bool
				Files   []outcome
			}](t, peer(t, "agent.mjs", joinedAt(url), era), task)
			if (runs.Version == "2026-07-28") != (era == "modern") || len(runs.Files) != len(texts) {
				t.Fatalf("got version %s, %d files", runs.Version, len(runs.Files))
			}
			var atOnce, focused, plain int
			for i, got := range runs.Files {
				p := texts[i]
				for _, run := range []struct {
					name string
					agentRun
					count *int
				}{{"with focus", got.Focused, &focused}, {"without", got.Plain, &plain}} {
					if !run.Found {
						t.Errorf("%s: did not find %q %s, in %v characters", p.name, p.goal, run.name, run.Chars)
						continue
					}
					*run.count++
				}
				if got.Focused.Found && len(got.Focused.Chars) == 1 {
					atOnce++
				}
				if slices.Max(got.Focused.Chars) > 4000+500 { // plus a note
					t.Errorf("%s: got responses with %v characters", p.name, got.Focused.Chars)
				}
				sum := sha256.Sum256([]byte(p.text))
				if want := hex.EncodeToString(sum[:]); got.Parts != want || got.Resource != want {
					t.Errorf("%s: the original has changed", p.name)
				}
			}
			t.Logf("of %d facts: %d found by focus, %d of them in one call; %d found without focus, then by goal: %t",
				len(texts), focused, atOnce, plain, runs.ByGoal)
		})
	}
}
