package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// nodeArch maps the architectures of images with Node.js to Node.js's names.
var nodeArch = map[string]string{"amd64": "x64", "arm64": "arm64"}

// applets are the busybox programs that npx and its scripts call.
var applets = strings.Fields("sh env basename cat chmod cp cut dirname echo expr find grep head hostname id kill " +
	"ls mkdir mktemp mv ps pwd readlink rm sed sleep sort tail test touch tr uname wc which xargs")

// nodeLayer returns the files of Node.js, npm and the Debian packages that they need, for an
// architecture in nodeArch.
//
// Node.js and npm are npm packages: a lockfile pins their content, the registry keeps every
// version, and they have no dependencies. Debian's npm would need more than 300 packages.
// Node.js needs glibc and libstdc++, which only Debian has: four libraries and busybox, pinned
// by version. Debian's mirrors have only the current version; older ones are in its snapshot
// archive.
func (s *source) nodeLayer(ctx context.Context, work, arch, mirror string) (tree, error) {
	files := newTree(s.time)
	libraries, err := s.debian(ctx, arch, mirror)
	if err != nil {
		return tree{}, err
	}
	if err := addLibraries(files, libraries); err != nil {
		return tree{}, fmt.Errorf("mmdebstrap: %w", err)
	}
	for _, name := range applets {
		files.link("usr/bin/"+name, "busybox")
	}
	for _, dir := range []string{"bin", "lib", "lib64"} {
		if files.MapFS["usr/"+dir] != nil {
			files.link(dir, "usr/"+dir)
		}
	}

	dir := filepath.Join(work, "node", arch)
	if err := s.unpack("packaging/image/node", dir); err != nil {
		return tree{}, err
	}
	npm := exec.CommandContext(ctx, "npm", "ci", "--os=linux", "--cpu="+nodeArch[arch], "--ignore-scripts",
		"--no-bin-links", "--no-audit", "--no-fund", "--loglevel=error")
	npm.Dir = dir
	if _, err := output(npm); err != nil {
		return tree{}, err
	}
	node := filepath.Join(dir, "node_modules", "node-linux-"+nodeArch[arch])
	for from, to := range map[string]string{
		filepath.Join(node, "bin", "node"):        "usr/bin/node",
		filepath.Join(node, "LICENSE"):            "usr/share/doc/nodejs/LICENSE",
		filepath.Join(dir, "node_modules", "npm"): "usr/lib/node_modules/npm",
	} {
		if err := addFolder(files, to, from); err != nil {
			return tree{}, err
		}
	}
	files.link("usr/bin/npm", "../lib/node_modules/npm/bin/npm-cli.js")
	files.link("usr/bin/npx", "../lib/node_modules/npm/bin/npx-cli.js")
	return files, nil
}

// debian returns the files of the pinned Debian packages as a tar archive.
func (s *source) debian(ctx context.Context, arch, mirror string) ([]byte, error) {
	const list = "packaging/image/node/debian-packages.txt"
	var lines []string
	for line := range strings.Lines(string(s.files[list])) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	if len(lines) < 2 {
		return nil, fmt.Errorf("commit %s has no packages in %s", s.hash, list)
	}
	args := []string{"--quiet", "--mode=chrootless", "--variant=extract", "--format=tar", "--architectures=" + arch,
		"--include=" + strings.Join(lines[1:], ","), lines[0], "-"}
	if mirror != "" {
		args = append(args, mirror)
	}
	return output(exec.CommandContext(ctx, "mmdebstrap", args...))
}

// addLibraries adds the files of Debian packages that a program needs at run time, and their
// licenses.
func addLibraries(files tree, archive []byte) error {
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := path.Clean(h.Name)
		switch ok, _ := path.Match("usr/share/doc/*/copyright", name); {
		case strings.HasPrefix(name, "usr/lib") && !strings.Contains(name, "/gconv/"), name == "usr/bin/busybox", ok:
		default:
			continue
		}
		switch h.Typeflag {
		case tar.TypeReg:
			content, err := io.ReadAll(r)
			if err != nil {
				return err
			}
			files.add(name, fs.FileMode(h.Mode&0o755), content)
		case tar.TypeSymlink:
			files.link(name, h.Linkname)
		}
	}
}
