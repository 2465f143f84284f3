package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// listing returns a line for each file of an archive, with everything that must be reproducible.
func listing(t *testing.T, archive string) (lines []string) {
	t.Helper()
	content, err := os.ReadFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	line := func(info os.FileInfo, name string, r io.Reader) {
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, fmt.Sprintf("%s %s %s %q", info.Mode(), info.ModTime().UTC().Format(time.RFC3339), name, b))
	}
	if strings.HasSuffix(archive, ".zip") {
		z, err := zip.NewReader(bytes.NewReader(content), int64(len(content)))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range z.File {
			r, err := f.Open()
			if err != nil {
				t.Fatal(err)
			}
			line(f.FileInfo(), f.Name, r)
		}
		return lines
	}
	compressed, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(compressed); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return lines
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.Gname != "" {
			t.Errorf("%s has an owner", h.Name)
		}
		line(h.FileInfo(), h.Name, r)
	}
}

func TestArchiveIsReproducible(t *testing.T) {
	r := newModule(t)
	// archived packs a fake binary with this modification time.
	archived := func(p platform, suffix, executable string, built time.Time) string {
		s := packModule(t, r)
		binary := filepath.Join(t.TempDir(), executable)
		if err := os.WriteFile(binary, []byte("runs"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(binary, built, built); err != nil {
			t.Fatal(err)
		}
		archive := filepath.Join(t.TempDir(), distName(s.version, p, suffix))
		if err := s.archive(archive, binary); err != nil {
			t.Fatal(err)
		}
		return archive
	}
	tests := []struct {
		platform
		executable, suffix, name string
	}{
		{platform{"linux", "arm64"}, "caddy", ".tar.gz", "caddy-mcp-gateway_v0.9.0_linux_arm64.tar.gz"},
		{platform{"windows", "amd64"}, "caddy.exe", ".zip", "caddy-mcp-gateway_v0.9.0_windows_amd64.zip"},
	}
	for _, tt := range tests {
		t.Run(tt.platform.String(), func(t *testing.T) {
			one := archived(tt.platform, tt.suffix, tt.executable, time.Now())
			other := archived(tt.platform, tt.suffix, tt.executable, time.Now().Add(-time.Hour))
			if filepath.Base(one) != tt.name {
				t.Errorf("named %s, want %s", filepath.Base(one), tt.name)
			}
			folder := strings.TrimSuffix(strings.TrimSuffix(tt.name, ".tar.gz"), ".zip") + "/"
			var want []string
			for _, file := range []string{` ""`, `CHANGELOG.md "changed\n"`, `CONTRIBUTING.md "do\n"`, `Caddyfile "# runs\n"`,
				`LICENSE "any\n"`, `README.md "read\n"`, `SECURITY.md "beware\n"`, `bin/ ""`, "bin/" + tt.executable + ` "runs"`,
				`caddyfile_examples/ ""`, `caddyfile_examples/one.Caddyfile "# one\n"`, `docs/ ""`, `docs/operate.md "operate\n"`,
				`internal/ ""`, `internal/tokens/ ""`, `internal/tokens/LICENSE.tiktoken "theirs\n"`} {
				mode := "-rw-r--r--"
				switch {
				case strings.HasSuffix(file, ` ""`):
					mode = "drwxr-xr-x"
				case strings.HasPrefix(file, "bin/"):
					mode = "-rwxr-xr-x"
				}
				want = append(want, mode+" 2026-02-03T04:05:06Z "+folder+file)
			}
			got := slices.DeleteFunc(listing(t, one),
				func(line string) bool { return strings.Contains(line, folder+"packaging/") })
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			sums, err := checksums([]string{one, other})
			if err != nil {
				t.Fatal(err)
			}
			if lines := strings.Split(sums, "\n"); lines[0] != lines[1] || !strings.HasSuffix(lines[0], "  "+tt.name) {
				t.Errorf("checksums differ:\n%s", sums)
			}
		})
	}
}

func TestArchiveNeedsAllShippedFiles(t *testing.T) {
	r := newModule(t)
	r.git("rm", "-q", "LICENSE")
	r.commit()
	s := packModule(t, r)
	binary := filepath.Join(r.dir, "go.mod") // any file
	if err := s.archive(filepath.Join(t.TempDir(), "a.zip"), binary); err == nil || !strings.HasSuffix(err.Error(),
		"has no LICENSE") {
		t.Errorf("without a license: got error %v", err)
	}
}

func TestRemoveDistLeavesOtherFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "dist")
	if err := removeDist(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"caddy-mcp-gateway_v0.8.0_linux_amd64.tar.gz",
		"caddy-mcp-gateway_v0.8.0_windows_amd64.zip", "SHA256SUMS", "notes.txt"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeDist(dir); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 || left[0].Name() != "notes.txt" {
		t.Errorf("got files %v, want notes.txt: %v", left, err)
	}
}
