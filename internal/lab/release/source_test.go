package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"
)

// newModule returns a repository with everything that a release needs.
func newModule(t *testing.T) repository {
	t.Helper()
	r := newRepository(t)
	r.write("go.mod", "module "+modulePath+"\n\ngo 1.26.0\n\nrequire "+caddyPath+" v2.11.7\n")
	r.write("go.sum", caddyPath+" v2.11.7 h1:caddy=\n"+caddyPath+" v2.11.7/go.mod h1:mod=\n")
	r.write("modules/modules.go", "package modules\n")
	r.write("internal/nested/go.mod", "module nested\n")
	r.write("Caddyfile", "# runs\n")
	r.write("LICENSE", "any\n")
	r.write(vocabularyLicense, "theirs\n")
	r.write("README.md", "read\n")
	r.write("CHANGELOG.md", "changed\n")
	r.write("CONTRIBUTING.md", "do\n")
	r.write("SECURITY.md", "beware\n")
	r.write("caddyfile_examples/one.Caddyfile", "# one\n")
	r.write("docs/operate.md", "operate\n")
	for _, name := range []string{"deb/Caddyfile", "deb/caddy-mcp-gateway.service", "deb/copyright", "deb/postinst",
		"deb/postrm", "deb/prerm", "image/Caddyfile"} {
		content, err := os.ReadFile("../../../packaging/" + name)
		if err != nil {
			t.Fatal(err)
		}
		r.write("packaging/"+name, string(content))
	}
	r.commit()
	return r
}

func packModule(t *testing.T, r repository) *source {
	t.Helper()
	c, err := findCommit(t.Context(), r.dir, "HEAD", "v0.9.0")
	if err != nil {
		t.Fatal(err)
	}
	s, err := pack(r.dir, t.TempDir(), c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// proxyFiles returns the files of a source's proxy, by path.
func proxyFiles(t *testing.T, s *source) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	names, err := filepath.Glob(filepath.Join(s.proxy, modulePath, "@v", "*"))
	if err != nil || len(names) != 3 {
		t.Fatalf("got %q in the proxy, want 3 files: %v", names, err)
	}
	for _, name := range names {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		relative, _ := filepath.Rel(s.proxy, name)
		files[relative] = content
	}
	return files
}

func TestPackDependsOnlyOnTheCommit(t *testing.T) {
	here := newModule(t)
	there := repository{t, filepath.Join(t.TempDir(), "elsewhere")}
	here.git("clone", "-q", here.dir, there.dir)
	there.write("README.md", "not committed")
	there.write("modules/new.go", "package modules")
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(there.dir, "go.mod"), old, old); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(there.dir, "go.sum"), 0o600); err != nil {
		t.Fatal(err)
	}

	a, b := packModule(t, here), packModule(t, there)
	if a.sum != b.sum {
		t.Errorf("checksums differ: %s and %s", a.sum, b.sum)
	}
	others := proxyFiles(t, b)
	for name, content := range proxyFiles(t, a) {
		if !bytes.Equal(content, others[name]) {
			t.Errorf("%s differs", name)
		}
	}
	if others[filepath.Join(modulePath, "@v", b.version+".zip")] == nil ||
		string(others[filepath.Join(modulePath, "@v", b.version+".mod")]) != string(a.files["go.mod"]) {
		t.Errorf("files of the proxy: %q", others)
	}
	if string(b.files["README.md"]) != "read\n" || b.files["modules/new.go"] != nil ||
		b.files["internal/nested/go.mod"] != nil {
		t.Errorf("wrong files in the module: %q", b.files)
	}
	here.write("README.md", "committed")
	here.commit()
	if c := packModule(t, here); c.sum == a.sum {
		t.Errorf("another commit has the same checksum: %s", c.sum)
	}
}

func TestPackUnknownCommit(t *testing.T) {
	r := newModule(t)
	c, err := findCommit(t.Context(), r.dir, "HEAD", "v0.9.0")
	if err != nil {
		t.Fatal(err)
	}
	c.hash = strings.Repeat("0", len(c.hash))
	if _, err := pack(r.dir, t.TempDir(), c); err == nil || !strings.Contains(err.Error(), c.hash) {
		t.Errorf("a missing commit: got error %v", err)
	}
}

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

func TestCheckBinary(t *testing.T) {
	s := packModule(t, newModule(t))
	ours := debug.Module{Path: modulePath, Version: s.version, Sum: s.sum}
	caddy := debug.Module{Path: caddyPath, Version: "v2.11.7", Sum: "h1:caddy="}
	with := func(m debug.Module, change func(*debug.Module)) debug.Module { change(&m); return m }
	tests := []struct {
		name    string
		deps    []debug.Module
		wantErr string
	}{
		{"pinned modules", []debug.Module{ours, caddy}, ""},
		{"a newer Caddy", []debug.Module{ours, with(caddy, func(m *debug.Module) { m.Version = "v2.11.8" })},
			caddyPath + " v2.11.8 h1:caddy= is not pinned by go.sum"},
		{"a Caddy with other content", []debug.Module{ours, with(caddy, func(m *debug.Module) { m.Sum = "h1:other=" })},
			caddyPath + " v2.11.7 h1:other= is not pinned"},
		{"the sum of a go.mod", []debug.Module{ours, with(caddy, func(m *debug.Module) {
			m.Version, m.Sum = "v2.11.7/go.mod", "h1:mod"
		})}, "is not pinned by go.sum"},
		{"this module with other content", []debug.Module{with(ours, func(m *debug.Module) { m.Sum = "h1:other=" }), caddy},
			modulePath + " " + s.version + " h1:other= is not"},
		{"this module replaced by a directory",
			[]debug.Module{with(ours, func(m *debug.Module) { m.Replace = &debug.Module{Path: "/src"} }), caddy}, modulePath +
				" is replaced by /src"},
		{"without this module", []debug.Module{caddy}, "does not contain " + modulePath},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			info := &debug.BuildInfo{}
			for _, m := range tt.deps {
				info.Deps = append(info.Deps, &m)
			}
			err := s.check(info)
			if (err == nil) != (tt.wantErr == "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("error %v, want %q", err, tt.wantErr)
			}
		})
	}
}

func TestEnvironmentOmitsBuildSettings(t *testing.T) {
	got := environment([]string{"PATH=/bin", "GOFLAGS=-race", "GOAMD64=v3", "CGO_ENABLED=1", "HOME=/h",
		"XCADDY_GO_BUILD_FLAGS=-v", "CADDY_VERSION=v2"})
	if want := []string{"PATH=/bin", "HOME=/h"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestFileURL(t *testing.T) {
	for dir, want := range map[string]string{"/tmp/a b": "file:///tmp/a%20b", "C:/tmp": "file:///C:/tmp"} {
		if got := fileURL(dir); got != want {
			t.Errorf("%s: got %s, want %s", dir, got, want)
		}
	}
}
