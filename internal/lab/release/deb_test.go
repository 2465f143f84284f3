package main

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

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
