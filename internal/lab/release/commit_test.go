package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// makeVersion returns the output of `make version` in a directory.
func makeVersion(t *testing.T, dir string, settings ...string) string {
	t.Helper()
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip(err)
	}
	makefile, err := filepath.Abs("../../../xcaddy.mk")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "make", append([]string{"-f", makefile, "version"}, settings...)...)
	cmd.Dir = dir
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "MAKE") || strings.HasPrefix(v, "MFLAGS=")
	})
	out, err := output(cmd)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(string(out), "\n")
}

// A repository is a git repository in a temporary directory.
type repository struct {
	t   *testing.T
	dir string
}

func newRepository(t *testing.T) repository {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip(err)
	}
	for name, value := range map[string]string{
		"GIT_CONFIG_GLOBAL": os.DevNull, "GIT_CONFIG_SYSTEM": os.DevNull,
		"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.com", "GIT_AUTHOR_DATE": "2026-01-02T03:04:05Z",
		"GIT_COMMITTER_NAME": "c", "GIT_COMMITTER_EMAIL": "c@example.com", "GIT_COMMITTER_DATE": "2026-02-03T06:05:06+02:00",
	} {
		t.Setenv(name, value)
	}
	r := repository{t, t.TempDir()}
	r.git("init", "-q")
	return r
}

func (r repository) git(args ...string) string {
	r.t.Helper()
	out, err := git(r.t.Context(), r.dir, args...)
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

func (r repository) write(name, content string) {
	r.t.Helper()
	file := filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

// commit commits all files and returns the abbreviated hash.
func (r repository) commit() string {
	r.t.Helper()
	r.git("add", "-A")
	r.git("commit", "-q", "--allow-empty", "-m", "x")
	return r.git("rev-parse", "--short=12", "HEAD")
}

func TestVersionOfCommit(t *testing.T) {
	tests := []struct {
		name         string
		before, tags []string // tags of the commit before, and of this one
		want         string   // the hash follows a hyphen at the end
	}{
		{"without tags, a pseudo-version", nil, nil, "v0.0.0-20260203040506-"},
		{"a tag", nil, []string{"v0.9.0"}, "v0.9.0"},
		{"a tag of a release candidate", nil, []string{"v0.9.0-rc.1"}, "v0.9.0-rc.1"},
		{"the highest of several", nil, []string{"v0.9.0", "v0.10.0", "v0.10.0-rc.1"}, "v0.10.0"},
		{"after a tag, higher than the tag", []string{"v0.9.0"}, nil, "v0.9.1-0.20260203040506-"},
		{"after a release candidate, lower than the release", []string{"v0.9.0-rc.1"}, nil, "v0.9.0-rc.1.0.20260203040506-"},
		{"its own tag has precedence", []string{"v0.9.0"}, []string{"v0.8.1"}, "v0.8.1"},
		{"tags that are not versions of this module", nil, []string{"v1", "v2.0.0", "v0.9.0+build", "version", "0.9.0"},
			"v0.0.0-20260203040506-"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRepository(t)
			r.commit()
			for _, tag := range tt.before {
				r.git("tag", tag)
			}
			hash := r.commit()
			for _, tag := range tt.tags {
				r.git("tag", "-a", "-m", "x", tag)
			}
			want := tt.want
			if strings.HasSuffix(want, "-") {
				want += hash
			}
			if got := makeVersion(t, r.dir); got != want || checkVersion(got) != nil {
				t.Errorf("got %s, want %s", got, want)
			}
			r.commit()
			if got := makeVersion(t, r.dir, "COMMIT=HEAD~1"); got != want {
				t.Errorf("as an older commit: got %s, want %s", got, want)
			}
			if got := makeVersion(t, r.dir, "VERSION=v1.2.3"); got != "v1.2.3" {
				t.Errorf("got %s, want v1.2.3", got)
			}
		})
	}
}

func TestUncommittedChanges(t *testing.T) {
	for name, change := range map[string]func(repository){
		"a changed file": func(r repository) { r.write("file", "changed") },
		"a new file":     func(r repository) { r.write("new", "") },
		"a staged file":  func(r repository) { r.write("new", ""); r.git("add", "new") },
		"a missing file": func(r repository) { _ = os.Remove(filepath.Join(r.dir, "file")) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRepository(t)
			r.write("file", "")
			r.write(".gitignore", "dist/\n")
			r.commit()
			r.git("tag", "v0.9.0")
			r.write("dist/archive", "")
			if got := makeVersion(t, r.dir); got != "v0.9.0" {
				t.Fatalf("before the change: got %s", got)
			}
			change(r)
			if got := makeVersion(t, r.dir); got != "v0.9.0-dirty" || checkVersion(got) != nil {
				t.Errorf("got %s, want v0.9.0-dirty", got)
			}
			if got := makeVersion(t, r.dir, "COMMIT=HEAD"); got != "v0.9.0" {
				t.Errorf("HEAD: got %s, want v0.9.0", got)
			}
			if c, err := findCommit(t.Context(), r.dir, "", "v0.9.0"); err == nil || !strings.Contains(err.Error(),
				"not committed:\n"+r.git("status", "--porcelain")) {
				t.Errorf("got %v, error %v, want one that lists the changes", c, err)
			}
			if _, err := findCommit(t.Context(), r.dir, "HEAD", "v0.9.0"); err != nil {
				t.Errorf("HEAD: %v", err)
			}
		})
	}
}

func TestVersionWithoutHistory(t *testing.T) {
	r := newRepository(t)
	r.write("sources/go.mod", "")
	r.commit()
	hash := r.commit()
	r.git("tag", "v0.9.0", "HEAD~1")
	shallow := filepath.Join(t.TempDir(), "shallow")
	r.git("clone", "-q", "--depth", "1", "--no-tags", "file://"+r.dir, shallow)

	for name, tt := range map[string]struct{ dir, want string }{
		"not a repository":                  {t.TempDir(), "v0.0.0-unknown"},
		"a directory in another repository": {filepath.Join(r.dir, "sources"), "v0.0.0-unknown"},
		"a shallow clone without the tag":   {shallow, "v0.0.0-20260203040506-" + hash},
	} {
		t.Run(name, func(t *testing.T) {
			if got := makeVersion(t, tt.dir); got != tt.want || checkVersion(got) != nil {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestFindCommit(t *testing.T) {
	r := newRepository(t)
	hash := r.commit()
	c, err := findCommit(t.Context(), r.dir, "", "v0.9.0")
	if err != nil || !strings.HasPrefix(c.hash, hash) || c.version != "v0.9.0" ||
		!c.time.Equal(time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)) {
		t.Errorf("got %v: %v", c, err)
	}
	if c, err := findCommit(t.Context(), r.dir, "nowhere", "v0.9.0"); err == nil || !strings.Contains(err.Error(),
		"nowhere") {
		t.Errorf("an unknown commit: got %v, error %v", c, err)
	}
	if c, err := findCommit(t.Context(), r.dir, "", ""); err == nil {
		t.Errorf("no error without a version: got %v", c)
	}
}

func TestCheckVersion(t *testing.T) {
	for version, want := range map[string]bool{
		"v0.9.0": true, "v1.2.3-rc.1": true, "v0.0.0-20260203040506-0123456789ab": true, "v0.0.0-unknown": true,
		"0.9.0": false, "v0.9": false, "v2.0.0": false, "v0.9.0+build": false, "latest": false, "v0.9.0/../..": false,
	} {
		if err := checkVersion(version); (err == nil) != want || err != nil && !strings.Contains(err.Error(), version) {
			t.Errorf("%s: got error %v, want valid: %t", version, err, want)
		}
	}
}

func TestParsePlatforms(t *testing.T) {
	for list, want := range map[string]int{platforms: 6, "linux/amd64": 1, "linux": 0, "linux/": 0, "/amd64": 0,
		"linux/arm/7": 0} {
		if got, err := parsePlatforms(list); len(got) != want || (err != nil) != (want == 0) {
			t.Errorf("%s: got %v, error %v, want %d platforms", list, got, err, want)
		}
	}
}
