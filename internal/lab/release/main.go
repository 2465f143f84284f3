// Command release builds Caddy with this project in it for each platform and packs it:
// archives for all of them, and Debian packages and container images for Linux.
//
//	go -C internal/lab run ./release -version v1.2.3 [-commit HEAD] [-platforms "linux/amd64 …"] [-out dist]
//
// The binaries are those that a public `xcaddy build --with` of the same version, with
// the same Go, makes: xcaddy takes the module from a proxy, not from this folder. They
// depend on the commit and on Go only, and all files have the time of the commit. So
// another build of the same commit has the same checksums.
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
	flag.StringVar(&opts.version, "version", "", "the `version`, which `make version` prints")
	flag.StringVar(&opts.commit, "commit", "", "the `commit` to release, whatever this folder has (default HEAD, if nothing has changed since)")
	flag.StringVar(&opts.platforms, "platforms", "", "the `systems` and architectures (default \""+platforms+"\")")
	flag.StringVar(&opts.out, "out", "../../dist", "the `folder` to write to")
	flag.BoolVar(&opts.node, "node", true, "make the images with Node.js, which needs npm and mmdebstrap")
	flag.StringVar(&opts.mirror, "mirror", "", "the Debian `mirror` of the images with Node.js (default that of mmdebstrap)")
	flag.Parse()

	// The context stops the builds, which a signal must not leave behind.
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

	// Builds are made away from this folder, where nothing of it can get into them.
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
	// First of all, because a pinned version may be gone, and builds take long.
	nodes := map[string]tree{}
	for _, p := range targets {
		if opts.node && p.os == "linux" && nodeArch[p.arch] != "" {
			fmt.Println("fetching Node.js for", p)
			if nodes[p.arch], err = source.nodeLayer(ctx, work, p.arch, opts.mirror); err != nil {
				return fmt.Errorf("the image with Node.js, which NODE=false leaves out: %w", err)
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

// packAll makes all files of a platform in a folder and returns their paths.
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

// A platform is a system and an architecture, in the words of Go.
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
