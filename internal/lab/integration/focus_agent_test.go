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

// An agentLook is what an agent saw in a file.
type agentLook struct {
	ID    string
	Chars []int // of the answer to each call
	Found bool
}

// TestFocusAgent has an agent look for a fact in each of 50 large files. It finds all of them in at
// most two calls each, and reads back what it was not shown.
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
		t.Fatalf("%d texts", len(texts))
	}
	for _, p := range texts {
		path := filepath.Join(dir, p.name)
		if err := os.WriteFile(path, []byte(p.text), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, file{path, p.goal, cmp.Or(p.then, p.goal), p.want})
	}
	filesystem := modulesOfNode + "@modelcontextprotocol/server-filesystem/dist/index.js"
	url := serve(t, gateway("separator __", block("mask", "recover on", "json on"), "focus on",
		"server files stdio node "+filesystem+" "+dir))
	for _, era := range []string{"legacy", "modern"} {
		t.Run(era, func(t *testing.T) {
			type outcome struct {
				Focused, Plain  agentLook
				Parts, Resource string
			}
			task := map[string]any{"tool": "files__read_text_file", "files": files}
			saw := printed[struct {
				Version string
				ByGoal  bool
				Files   []outcome
			}](t, peer(t, "agent.mjs", joinedAt(url), era), task)
			if (saw.Version == "2026-07-28") != (era == "modern") || len(saw.Files) != len(texts) {
				t.Fatalf("version %s, %d files", saw.Version, len(saw.Files))
			}
			var atOnce, focused, plain int
			for i, got := range saw.Files {
				p := texts[i]
				for _, look := range []struct {
					name string
					agentLook
					count *int
				}{{"with focus", got.Focused, &focused}, {"without", got.Plain, &plain}} {
					if !look.Found {
						t.Errorf("%s: %q is not found %s, in %v characters", p.name, p.goal, look.name, look.Chars)
						continue
					}
					*look.count++
				}
				if got.Focused.Found && len(got.Focused.Chars) == 1 {
					atOnce++
				}
				if slices.Max(got.Focused.Chars) > 4000+500 { // and a note
					t.Errorf("%s: answers have %v characters", p.name, got.Focused.Chars)
				}
				sum := sha256.Sum256([]byte(p.text))
				if want := hex.EncodeToString(sum[:]); got.Parts != want || got.Resource != want {
					t.Errorf("%s: the original has become another", p.name)
				}
			}
			t.Logf("of %d facts: %d found by focus, %d of them in one call; %d found without focus, then by goal: %t",
				len(texts), focused, atOnce, plain, saw.ByGoal)
		})
	}
}
