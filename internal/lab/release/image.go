package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

const (
	imageTitle       = "Caddy with an MCP gateway"
	imageDescription = "Serves many MCP servers as one, and shortens tool results before they reach an agent or its model."
	imageUser        = 65532 // as in other images without a shell
	imageConfig      = "/etc/caddy/Caddyfile"
)

// image writes an image with the layers of a base and, above them, a binary.
func (s *source) image(name, tag, binary string, p platform, base ...tree) error {
	executable, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	caddy := newTree(s.time)
	caddy.add("usr/bin/caddy", 0o755, executable)

	created := v1.Time{Time: s.time}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if img, err = mutate.ConfigFile(img, &v1.ConfigFile{
		OS:           p.os,
		Architecture: p.arch,
		Created:      created,
		RootFS:       v1.RootFS{Type: "layers"},
		Config: v1.Config{
			// numeric, so that Kubernetes can check that it is not root
			User: fmt.Sprintf("%d:%d", imageUser, imageUser),
			Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/home/caddy", "XDG_CONFIG_HOME=/config",
				"XDG_DATA_HOME=/data"},
			Entrypoint:   []string{"/usr/bin/caddy"},
			Cmd:          []string{"run", "--config", imageConfig},
			WorkingDir:   "/srv",
			ExposedPorts: map[string]struct{}{"8080/tcp": {}},
			Volumes:      map[string]struct{}{"/config": {}, "/data": {}},
			// Not in the OCI specification, but Docker uses it in an OCI configuration, too.
			Healthcheck: &v1.HealthConfig{
				Test:        []string{"CMD", "/usr/bin/caddy", "mcp-health", "--config", imageConfig},
				Interval:    30 * time.Second,
				Timeout:     5 * time.Second,
				StartPeriod: 10 * time.Second,
				Retries:     3,
			},
			Labels: map[string]string{
				"org.opencontainers.image.created":     s.time.Format(time.RFC3339),
				"org.opencontainers.image.description": imageDescription,
				"org.opencontainers.image.licenses":    "Apache-2.0",
				"org.opencontainers.image.revision":    s.hash,
				"org.opencontainers.image.source":      "https://" + modulePath,
				"org.opencontainers.image.title":       imageTitle,
				"org.opencontainers.image.version":     s.version,
			},
		},
	}); err != nil {
		return err
	}
	for _, files := range append(base, caddy) {
		var content bytes.Buffer
		if err := writeTar(&content, files); err != nil {
			return err
		}
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser,
			error) {
			return io.NopCloser(bytes.NewReader(content.Bytes())), nil
		},
			tarball.WithMediaType(types.OCILayer))
		if err != nil {
			return err
		}
		if img, err = mutate.Append(img, mutate.Addendum{Layer: layer, History: v1.History{Created: created,
			CreatedBy: project + " release"}}); err != nil {
			return err
		}
	}
	return s.writeImage(name, project+":"+tag, img)
}

// writeImage writes an OCI archive. It includes a manifest.json, so that Docker before version
// 25 can load it.
func (s *source) writeImage(name, tag string, img v1.Image) error {
	dir := name + ".d"
	defer os.RemoveAll(dir)
	index, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	if err := index.AppendImage(img, layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          "docker.io/library/" + tag,
		"org.opencontainers.image.ref.name": tag,
	})); err != nil {
		return err
	}
	manifest, err := img.Manifest()
	if err != nil {
		return err
	}
	blob := func(d v1.Descriptor) string { return "blobs/" + d.Digest.Algorithm + "/" + d.Digest.Hex }
	var layers []string
	for _, layer := range manifest.Layers {
		layers = append(layers, blob(layer))
	}
	docker, err := json.Marshal([]tarball.Descriptor{{Config: blob(manifest.Config), RepoTags: []string{tag},
		Layers: layers}})
	if err != nil {
		return err
	}
	files := newTree(s.time)
	files.add("manifest.json", 0o644, docker)
	if err := addFolder(files, "", dir); err != nil {
		return err
	}
	return writeFile(name, func(w io.Writer) error { return writeTar(w, files) })
}

// addFolder adds a file on disk, or the files of a directory, with mode 0755 or 0644.
func addFolder(files tree, name, dir string) error {
	return filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if info.Mode()&0o111 != 0 {
			mode = 0o755
		}
		relative, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		files.add(path.Join(name, filepath.ToSlash(relative)), mode, content)
		return nil
	})
}

// baseImage returns the files below Caddy. There is no base image: certificates come from the
// Go module that Caddy uses, time zones from the distribution of Go. Both are pinned. Caddy
// needs neither, but its child processes do.
func (s *source) baseImage(goroot string) (tree, error) {
	files := newTree(s.time)
	id := strconv.Itoa(imageUser)
	files.add("etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/sbin/nologin\ncaddy:x:"+id+":"+id+
		":caddy:/home/caddy:/sbin/nologin\n"))
	files.add("etc/group", 0o644, []byte("root:x:0:\ncaddy:x:"+id+":\n"))
	files.add("etc/hosts", 0o644, []byte("127.0.0.1\tlocalhost\n::1\tlocalhost\n")) // Docker and Kubernetes replace it
	files.add("etc/nsswitch.conf", 0o644, []byte("hosts: files dns\n"))
	files.add("tmp", fs.ModeDir|fs.ModeSticky|0o777, nil)
	for _, dir := range []string{"config", "data", "home/caddy", "srv"} {
		files.addOwnedDir(dir)
	}
	const documents = "/usr/share/doc/" + project + "/"
	for from, to := range map[string]string{
		"packaging/image/Caddyfile": imageConfig, "LICENSE": documents + "LICENSE", vocabularyLicense: documents +
			path.Base(vocabularyLicense),
	} {
		if err := s.copyTo(files, from, to[1:]); err != nil {
			return tree{}, err
		}
	}

	var certificates bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue // a PEM file cannot express the constraint
		}
		if err := pem.Encode(&certificates, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return tree{}, err
		}
	}
	files.add("etc/ssl/certs/ca-certificates.crt", 0o644, certificates.Bytes())

	zones, err := unzip(filepath.Join(goroot, "lib", "time", "zoneinfo.zip"), "")
	if err != nil {
		return tree{}, err
	}
	for _, zone := range slices.Sorted(maps.Keys(zones)) {
		if !strings.HasSuffix(zone, "/") {
			files.add("usr/share/zoneinfo/"+zone, 0o644, zones[zone])
		}
	}
	return files, nil
}

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
