package main

import (
	"bytes"
	"os"
	"path/filepath"
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
