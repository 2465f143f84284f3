package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
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

func lookPath(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skip(err)
	}
}

func commandOutput(t *testing.T, program string, args ...string) []byte {
	t.Helper()
	out, err := output(exec.CommandContext(t.Context(), program, args...))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// buildDeb packs a fake binary with this modification time.
func buildDeb(t *testing.T, s *source, built time.Time) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "caddy")
	if err := os.WriteFile(binary, []byte("runs"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(binary, built, built); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "package.deb")
	if err := s.deb(name, t.TempDir(), binary, platform{"linux", "arm64"}); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestDeb(t *testing.T) {
	lookPath(t, "dpkg-deb")
	s := packModule(t, newModule(t))
	name := buildDeb(t, s, time.Now())
	for field, want := range map[string]string{
		"Package": "caddy-mcp-gateway", "Version": "0.9.0", "Architecture": "arm64", "Section": "httpd",
		"Depends": "adduser, init-system-helpers (>= 1.54), passwd", "Conflicts": "", "Replaces": "", "Provides": "",
	} {
		if got := strings.TrimSpace(string(commandOutput(t, "dpkg-deb", "--field", name, field))); got != want {
			t.Errorf("%s: got %q, want %q", field, got, want)
		}
	}

	_, control := untar(t, bytes.NewReader(commandOutput(t, "dpkg-deb", "--ctrl-tarfile", name)))
	if got := strings.TrimSpace(string(control["./conffiles"])); got != "/etc/caddy-mcp-gateway/Caddyfile" {
		t.Errorf("got conffiles %q", got)
	}
	for _, script := range []string{"postinst", "prerm", "postrm"} {
		if !bytes.Equal(control["./"+script], s.files["packaging/deb/"+script]) {
			t.Errorf("got %s %q", script, control["./"+script])
		}
	}

	headers, _ := untar(t, bytes.NewReader(commandOutput(t, "dpkg-deb", "--fsys-tarfile", name)))
	modes := map[string]string{}
	for name, h := range headers {
		if h.Uid != 0 || h.Gid != 0 || !h.ModTime.Equal(s.time) {
			t.Errorf("%s: owner %d:%d, time %s", name, h.Uid, h.Gid, h.ModTime)
		}
		if !h.FileInfo().IsDir() {
			modes[name] = h.FileInfo().Mode().String()
		}
	}
	want := map[string]string{
		"./usr/bin/caddy-mcp-gateway":                              "-rwxr-xr-x",
		"./etc/caddy-mcp-gateway/Caddyfile":                        "-rw-r--r--",
		"./usr/lib/systemd/system/caddy-mcp-gateway.service":       "-rw-r--r--",
		"./usr/share/doc/caddy-mcp-gateway/copyright":              "-rw-r--r--",
		"./usr/share/doc/caddy-mcp-gateway/examples/one.Caddyfile": "-rw-r--r--",
	}
	if !maps.Equal(modes, want) {
		t.Errorf("got %v, want %v", modes, want)
	}

	other := buildDeb(t, s, time.Now().Add(-time.Hour))
	sums, err := checksums([]string{name, other})
	if lines := strings.Split(sums, "\n"); err != nil || lines[0] != lines[1] {
		t.Errorf("packages differ (%v):\n%s", err, sums)
	}
}

func TestDebVersionOrder(t *testing.T) {
	lookPath(t, "dpkg")
	versions := []string{
		"v0.0.0-20260203040506-0123456789ab", "v0.9.0-rc.1", "v0.9.0-rc.1.0.20260203040506-0123456789ab", "v0.9.0-rc.2",
		"v0.9.0",
		"v0.9.1-0.20260203040506-0123456789ab", "v0.9.1", "v0.10.0",
	}
	for i, v := range versions[1:] {
		commandOutput(t, "dpkg", "--compare-versions", debVersion(versions[i]), "lt", debVersion(v))
		commandOutput(t, "dpkg", "--validate-version", debVersion(v))
	}
}

func TestMaintainerScriptsParse(t *testing.T) {
	lookPath(t, "sh")
	for _, script := range []string{"postinst", "prerm", "postrm"} {
		commandOutput(t, "sh", "-n", "../../../packaging/deb/"+script)
	}
}

func TestUnitIsValid(t *testing.T) {
	lookPath(t, "systemd-analyze")
	text, err := os.ReadFile("../../../packaging/deb/caddy-mcp-gateway.service")
	if err != nil {
		t.Fatal(err)
	}
	executable, err := os.Executable() // verify checks that the program exists
	if err != nil {
		t.Fatal(err)
	}
	unit := filepath.Join(t.TempDir(), "caddy-mcp-gateway.service")
	if err := os.WriteFile(unit, bytes.ReplaceAll(text, []byte("/usr/bin/caddy-mcp-gateway"), []byte(executable)),
		0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", "--recursive-errors=no",
		unit).CombinedOutput()
	if strings.Contains(string(out), "unrecognized option") {
		t.Skip("systemd-analyze is too old")
	}
	faults := slices.DeleteFunc(strings.Split(string(out), "\n"),
		func(line string) bool { return !strings.Contains(line, "caddy-mcp-gateway.service") })
	if len(faults) > 0 { // only of this unit; others on the machine may have faults, too
		t.Errorf("%v: %s", err, faults)
	}
}
