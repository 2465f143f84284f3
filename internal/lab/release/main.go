// Command release builds Caddy with this project for each platform and packs it: archives for
// all platforms, Debian packages and container images for Linux.
//
//	go -C internal/lab run ./release -version v1.2.3 [-commit HEAD] [-platforms "linux/amd64 …"] [-out dist]
//
// The binaries are the same as those of a public `xcaddy build --with` of the same version with
// the same Go: xcaddy gets the module from a proxy, not from this directory. They depend only
// on the commit and on Go, and all files have the time of the commit. So another build of the
// same commit gives the same checksums.
package main

import (
	"cmp"
	"context"
	"debug/buildinfo"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"golang.org/x/mod/modfile"
)

const platforms = "linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64"

type options struct {
	version, commit, platforms, out, mirror string
	node                                    bool
}

func main() {
	var opts options
	flag.StringVar(&opts.version, "version", "", "`version` to release, as printed by make version")
	flag.StringVar(&opts.commit, "commit", "",
		"`commit` to release, ignoring uncommitted changes (default HEAD, without uncommitted changes)")
	flag.StringVar(&opts.platforms, "platforms", "", "`list` of systems and architectures (default \""+platforms+"\")")
	flag.StringVar(&opts.out, "out", "../../dist", "`directory` to write to")
	flag.BoolVar(&opts.node, "node", true, "build images with Node.js, which needs npm and mmdebstrap")
	flag.StringVar(&opts.mirror, "mirror", "", "Debian `mirror` for images with Node.js (default that of mmdebstrap)")
	flag.Parse()

	// Canceling the context stops the builds, which must not outlive a signal.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, opts)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, opts options) (err error) {
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %s", flag.Arg(0))
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		return err
	}
	targets, err := parsePlatforms(cmp.Or(opts.platforms, platforms))
	if err != nil {
		return err
	}
	commit, err := findCommit(ctx, root, opts.commit, opts.version)
	if err != nil {
		return err
	}

	// Builds run outside of this directory, so that none of its files can get into them.
	work, err := os.MkdirTemp("", "release")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	source, err := pack(root, work, commit)
	if err != nil {
		return err
	}
	fmt.Printf("%s %s, commit %s, %s\n", commit.version, source.sum, commit.hash, runtime.Version())
	b, err := newBuilder(ctx, source, work)
	if err != nil {
		return err
	}
	if err := removeDist(opts.out); err != nil {
		return err
	}
	// Fetch first, because a pinned version may be gone, and builds take long.
	nodes := map[string]tree{}
	for _, p := range targets {
		if opts.node && p.os == "linux" && nodeArch[p.arch] != "" {
			fmt.Println("fetching Node.js for", p)
			if nodes[p.arch], err = source.nodeLayer(ctx, work, p.arch, opts.mirror); err != nil {
				return fmt.Errorf("fetch Node.js (skip its images with NODE=false): %w", err)
			}
		}
	}
	var made []string
	for _, p := range targets {
		fmt.Println("building", p)
		binary, err := b.build(ctx, p)
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		files, err := b.packAll(opts.out, binary, p, nodes)
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		made = append(made, files...)
	}
	sums, err := checksums(made)
	if err != nil {
		return err
	}
	fmt.Print(sums)
	return os.WriteFile(filepath.Join(opts.out, sumsName), []byte(sums), 0o644)
}

// packAll creates all files of a platform in a directory and returns their paths.
func (b *builder) packAll(dir, binary string, p platform, nodes map[string]tree) (made []string, err error) {
	s := b.source
	file := func(suffix string) string {
		made = append(made, filepath.Join(dir, distName(s.version, p, suffix)))
		return made[len(made)-1]
	}
	if p.os == "windows" {
		err = s.archive(file(".zip"), binary)
	} else {
		err = s.archive(file(".tar.gz"), binary)
	}
	if err != nil || p.os != "linux" {
		return made, err
	}
	if err := s.deb(file(".deb"), b.work, binary, p); err != nil {
		return nil, err
	}
	base, err := s.baseImage(b.goroot)
	if err != nil {
		return nil, err
	}
	if err := s.image(file(".oci.tar"), s.version, binary, p, base); err != nil {
		return nil, err
	}
	if node, ok := nodes[p.arch]; ok {
		err = s.image(file("-node.oci.tar"), s.version+"-node", binary, p, base, node)
	}
	return made, err
}

// A platform is a system and an architecture, as Go names them.
type platform struct{ os, arch string }

func (p platform) String() string { return p.os + "/" + p.arch }

func parsePlatforms(list string) ([]platform, error) {
	var all []platform
	for _, name := range strings.Fields(list) {
		system, arch, ok := strings.Cut(name, "/")
		if !ok || system == "" || arch == "" || strings.ContainsAny(arch, `/\`) {
			return nil, fmt.Errorf("platforms: %q is not of the form linux/amd64", name)
		}
		all = append(all, platform{system, arch})
	}
	return all, nil
}

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
