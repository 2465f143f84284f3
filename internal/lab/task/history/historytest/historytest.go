// Package historytest creates git repositories for tests.
package historytest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A Repository is a git repository of a test.
type Repository struct {
	t         *testing.T
	Directory string
}

// New creates an empty repository with this name. It skips the test without git.
func New(t *testing.T, name string) *Repository {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed")
	}
	h := &Repository{t, filepath.Join(t.TempDir(), name)}
	if err := os.Mkdir(h.Directory, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GIT_CONFIG_GLOBAL", os.DevNull)
	t.Setenv("GIT_CONFIG_NOSYSTEM", "1")
	for _, role := range []string{"AUTHOR", "COMMITTER"} {
		t.Setenv("GIT_"+role+"_NAME", "Test")
		t.Setenv("GIT_"+role+"_EMAIL", "test@example.com")
		t.Setenv("GIT_"+role+"_DATE", "2026-01-01T00:00:00Z")
	}
	h.Git("init", "-q")
	return h
}

// Git runs a git command in the repository and returns its output.
func (h *Repository) Git(arguments ...string) (out string) {
	h.t.Helper()
	command := exec.Command("git", append([]string{"-C", h.Directory}, arguments...)...)
	all, err := command.CombinedOutput()
	if err != nil {
		h.t.Fatalf("git %s: %v\n%s", strings.Join(arguments, " "), err, all)
	}
	return string(all)
}

// Head returns the hash of the last commit.
func (h *Repository) Head() string { return strings.TrimSpace(h.Git("rev-parse", "HEAD")) }

// Commit writes files and commits them.
func (h *Repository) Commit(subject string, files map[string]string) {
	h.t.Helper()
	for name, text := range files {
		path := filepath.Join(h.Directory, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			h.t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			h.t.Fatal(err)
		}
	}
	h.Git("add", "-A")
	h.Git("commit", "-q", "-m", subject)
}

// Numbered returns a text of n numbered lines. The lines in other have a different text.
func Numbered(n int, other ...int) string {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		if slices.Contains(other, i) {
			b.WriteString("other ")
		}
		fmt.Fprintf(&b, "line %d\n", i)
	}
	return b.String()
}
