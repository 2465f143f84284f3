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
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
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
