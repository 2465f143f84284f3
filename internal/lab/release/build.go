package main

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"

	"golang.org/x/mod/modfile"
)

const caddyPath = "github.com/caddyserver/caddy/v2"

// A builder runs xcaddy as a user does once the version is published: it gets this module from
// the source's proxy and all others from the configured GOPROXY.
type builder struct {
	source *source
	work   string
	goroot string
	xcaddy string
	caddy  string // version of Caddy
	env    []string
}

func newBuilder(ctx context.Context, s *source, work string) (*builder, error) {
	b := &builder{source: s, work: work}
	mod, err := modfile.ParseLax("go.mod", s.files["go.mod"], nil)
	if err != nil {
		return nil, err
	}
	for _, r := range mod.Require {
		if r.Mod.Path == caddyPath {
			b.caddy = r.Mod.Version
		}
	}
	if b.caddy == "" {
		return nil, fmt.Errorf("go.mod does not require %s", caddyPath)
	}
	if b.xcaddy, err = goCommand(ctx, "tool", "-n", "xcaddy"); err != nil {
		return nil, err
	}
	settings, err := goCommand(ctx, "env", "GOROOT", "GOCACHE", "GOPROXY", "GOSUMDB")
	if err != nil {
		return nil, err
	}
	values := append(strings.Split(settings, "\n"), "", "", "", "")
	b.goroot = values[0]
	b.env = append(environment(os.Environ()),
		"CGO_ENABLED=0",
		"GOENV=off",
		"GOTOOLCHAIN=local",
		"GOFLAGS=-buildvcs=false -modcacherw",
		"GOCACHE="+values[1],
		// An empty module cache: the cache of this machine would keep this module under a
		// version that may have other content the next time.
		"GOMODCACHE="+filepath.Join(work, "modules"),
		"GOPROXY="+fileURL(s.proxy)+","+values[2],
		"GOSUMDB="+values[3],
		"GONOSUMDB="+modulePath,
	)
	return b, nil
}

// environment removes variables that change how Go and xcaddy build.
func environment(all []string) (rest []string) {
	for _, v := range all {
		if name, _, _ := strings.Cut(v, "="); !strings.HasPrefix(name, "GO") && !strings.HasPrefix(name, "CGO_") &&
			!strings.HasPrefix(name, "XCADDY_") && name != "CADDY_VERSION" {
			rest = append(rest, v)
		}
	}
	return rest
}

func fileURL(dir string) string {
	path := filepath.ToSlash(dir)
	if !strings.HasPrefix(path, "/") { // C:/…
		path = "/" + path
	}
	return (&url.URL{Scheme: "file", Path: path}).String()
}

// goCommand returns the output of a go command with the settings of this machine.
func goCommand(ctx context.Context, args ...string) (string, error) {
	out, err := output(exec.CommandContext(ctx, "go", args...))
	return strings.TrimSpace(string(out)), err
}

// build builds the binary for a platform and returns its path.
func (b *builder) build(ctx context.Context, p platform) (string, error) {
	name := "caddy"
	if p.os == "windows" {
		name += ".exe"
	}
	binary := filepath.Join(b.work, p.os, p.arch, name)
	// By default, xcaddy builds with -trimpath and without symbols.
	cmd := exec.CommandContext(ctx, b.xcaddy, "build", b.caddy, "--with", modulePath+"/modules@"+b.source.version,
		"--output", binary)
	cmd.Dir = b.work
	cmd.Env = append(b.env, "GOOS="+p.os, "GOARCH="+p.arch)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("xcaddy: %w\n%s", err, out)
	}
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return "", err
	}
	if info.GoVersion != runtime.Version() {
		return "", fmt.Errorf("built with %s instead of %s", info.GoVersion, runtime.Version())
	}
	return binary, b.source.check(info)
}

// check checks that a binary contains the source, and otherwise only modules that go.sum pins.
// Then later builds give the same binary, even if modules have newer versions.
func (s *source) check(info *debug.BuildInfo) error {
	pinned := map[string]bool{modulePath + " " + s.version + " " + s.sum: true}
	for line := range strings.Lines(string(s.files["go.sum"])) {
		pinned[strings.TrimSpace(line)] = true
	}
	found := false
	for _, m := range info.Deps {
		found = found || m.Path == modulePath
		if m.Replace != nil {
			return fmt.Errorf("%s is replaced by %s", m.Path, m.Replace.Path)
		}
		if !pinned[m.Path+" "+m.Version+" "+m.Sum] {
			return fmt.Errorf("%s %s %s is not pinned by go.sum", m.Path, m.Version, m.Sum)
		}
	}
	if !found {
		return fmt.Errorf("the binary does not contain %s", modulePath)
	}
	return nil
}
