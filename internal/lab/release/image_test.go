package main

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"encoding/json"
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

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// untar reads a tar archive.
func untar(t *testing.T, r io.Reader) (headers map[string]*tar.Header, contents map[string][]byte) {
	t.Helper()
	headers, contents = map[string]*tar.Header{}, map[string][]byte{}
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return headers, contents
		}
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(h.Name, "/")
		if headers[name] != nil {
			t.Errorf("duplicate entry %s", name)
		}
		headers[name] = h
		if contents[name], err = io.ReadAll(archive); err != nil {
			t.Fatal(err)
		}
	}
}

// buildImage creates an image with a fake binary and returns its path.
func buildImage(t *testing.T, s *source, more ...tree) string {
	t.Helper()
	goroot, err := goCommand(t.Context(), "env", "GOROOT")
	if err != nil {
		t.Fatal(err)
	}
	base, err := s.baseImage(goroot)
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(t.TempDir(), "caddy")
	if err := os.WriteFile(binary, []byte("runs"), 0o600); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "image.oci.tar")
	if err := s.image(name, "v0.9.0-test", binary, platform{"linux", "arm64"},
		append([]tree{base}, more...)...); err != nil {
		t.Fatal(err)
	}
	return name
}

// openImage reads an image as an OCI layout.
func openImage(t *testing.T, name string) v1.Image {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	headers, contents := untar(t, f)
	dir := t.TempDir()
	for name, h := range headers {
		if h.Typeflag != tar.TypeReg {
			continue
		}
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, contents[name], 0o600); err != nil {
			t.Fatal(err)
		}
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 || manifest.Manifests[0].MediaType != types.OCIManifestSchema1 {
		t.Fatalf("index %v: %v", manifest, err)
	}
	img, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(img); err != nil {
		t.Fatal(err)
	}
	return img
}

func TestImageConfig(t *testing.T) {
	s := packModule(t, newModule(t))
	name := buildImage(t, s)
	got, err := openImage(t, name).ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if got.OS != "linux" || got.Architecture != "arm64" || !got.Created.Equal(s.time) || len(got.RootFS.DiffIDs) != 2 {
		t.Errorf("got %+v", got)
	}
	c := got.Config
	for what, pair := range map[string][2]any{
		"user":        {c.User, "65532:65532"},
		"entry point": {c.Entrypoint, []string{"/usr/bin/caddy"}},
		"command":     {c.Cmd, []string{"run", "--config", "/etc/caddy/Caddyfile"}},
		"folder":      {c.WorkingDir, "/srv"},
		"ports":       {c.ExposedPorts, map[string]struct{}{"8080/tcp": {}}},
		"volumes":     {c.Volumes, map[string]struct{}{"/config": {}, "/data": {}}},
		"health": {c.Healthcheck.Test, []string{"CMD", "/usr/bin/caddy", "mcp-health", "--config",
			"/etc/caddy/Caddyfile"}},
		"version":  {c.Labels["org.opencontainers.image.version"], "v0.9.0"},
		"revision": {c.Labels["org.opencontainers.image.revision"], s.hash},
		"source":   {c.Labels["org.opencontainers.image.source"], "https://" + modulePath},
		"license":  {c.Labels["org.opencontainers.image.licenses"], "Apache-2.0"},
	} {
		if !reflect.DeepEqual(pair[0], pair[1]) {
			t.Errorf("%s: got %v, want %v", what, pair[0], pair[1])
		}
	}
	// Docker before version 25 reads manifest.json instead of index.json.
	docker, err := tarball.ImageFromPath(name, nil)
	if err != nil {
		t.Fatal(err)
	}
	if old, err := docker.ConfigFile(); err != nil || !reflect.DeepEqual(old.Config, c) {
		t.Errorf("in manifest.json: %+v: %v", old, err)
	}
	manifest, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(name) })
	if err != nil || len(manifest) != 1 || !slices.Equal(manifest[0].RepoTags, []string{"caddy-mcp-gateway:v0.9.0-test"}) {
		t.Errorf("manifest.json %v: %v", manifest, err)
	}
}

func TestImageFiles(t *testing.T) {
	s := packModule(t, newModule(t))
	node := newTree(s.time)
	node.add("usr/bin/node", 0o755, []byte("node"))
	node.link("usr/bin/npx", "../lib/npx.js")
	layers, err := openImage(t, buildImage(t, s, node)).Layers()
	if err != nil || len(layers) != 3 {
		t.Fatalf("got %d layers, want 3: %v", len(layers), err)
	}
	var headers []map[string]*tar.Header
	var contents []map[string][]byte
	for _, layer := range layers {
		r, err := layer.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		h, c := untar(t, r)
		for name, header := range h {
			if !header.ModTime.Equal(s.time) {
				t.Errorf("%s has time %s", name, header.ModTime)
			}
		}
		headers, contents = append(headers, h), append(contents, c)
	}
	for i, want := range []map[string]string{
		{"etc": "drwxr-xr-x 0 0", "etc/hosts": "-rw-r--r-- 0 0", "etc/caddy/Caddyfile": "-rw-r--r-- 0 0",
			"tmp": "dtrwxrwxrwx 0 0", "data": "drwx------ 65532 65532",
			"config": "drwx------ 65532 65532", "home/caddy": "drwx------ 65532 65532", "srv": "drwx------ 65532 65532",
			"home": "drwxr-xr-x 0 0"},
		{"usr/bin/node": "-rwxr-xr-x 0 0", "usr/bin/npx": "Lrwxrwxrwx 0 0"},
		{"usr/bin/caddy": "-rwxr-xr-x 0 0"},
	} {
		for name, want := range want {
			h := headers[i][name]
			if h == nil {
				t.Errorf("no %s in layer %d", name, i)
			} else if got := fmt.Sprint(h.FileInfo().Mode(), " ", h.Uid, " ", h.Gid); got != want {
				t.Errorf("%s: got %s, want %s", name, got, want)
			}
		}
	}
	base := contents[0]
	if pool := x509.NewCertPool(); !pool.AppendCertsFromPEM(base["etc/ssl/certs/ca-certificates.crt"]) ||
		bytes.Count(base["etc/ssl/certs/ca-certificates.crt"], []byte("BEGIN CERTIFICATE")) < 100 {
		t.Error("too few certificates")
	}
	if _, err := time.LoadLocationFromTZData("Europe/Paris", base["usr/share/zoneinfo/Europe/Paris"]); err != nil {
		t.Error(err)
	}
	if !strings.Contains(string(base["etc/passwd"]), "\ncaddy:x:65532:65532:caddy:/home/caddy:") {
		t.Errorf("passwd: %s", base["etc/passwd"])
	}
	if h := headers[1]["usr/bin/npx"]; h.Linkname != "../lib/npx.js" {
		t.Errorf("got a link to %s", h.Linkname)
	}
	if string(contents[2]["usr/bin/caddy"]) != "runs" {
		t.Errorf("the binary has %q", contents[2]["usr/bin/caddy"])
	}
}

func TestImageIsReproducible(t *testing.T) {
	r := newModule(t)
	one, other := buildImage(t, packModule(t, r)), buildImage(t, packModule(t, r))
	sums, err := checksums([]string{one, other})
	if lines := strings.Split(sums, "\n"); err != nil || lines[0] != lines[1] {
		t.Errorf("images differ (%v):\n%s", err, sums)
	}
}

func TestAddLibraries(t *testing.T) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, h := range []tar.Header{
		{Name: "./usr/lib/x/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "./usr/lib/x/libc.so.6", Typeflag: tar.TypeReg, Mode: 0o755, Size: 1},
		{Name: "./usr/lib64/ld.so", Typeflag: tar.TypeSymlink, Linkname: "../lib/x/ld.so"},
		{Name: "./usr/lib/x/gconv/A.so", Typeflag: tar.TypeReg, Size: 1},
		{Name: "./usr/bin/busybox", Typeflag: tar.TypeReg, Mode: 0o4755, Size: 1},
		{Name: "./usr/bin/other", Typeflag: tar.TypeReg, Size: 1},
		{Name: "./usr/share/doc/libc6/copyright", Typeflag: tar.TypeReg, Mode: 0o644, Size: 1},
		{Name: "./usr/share/doc/libc6/changelog.gz", Typeflag: tar.TypeReg, Size: 1},
		{Name: "./dev/null", Typeflag: tar.TypeChar},
	} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, h.Size)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	files := newTree(time.Unix(0, 0))
	if err := addLibraries(files, archive.Bytes()); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for name, file := range files.MapFS {
		if !file.Mode.IsDir() {
			got[name] = file.Mode.String()
		}
	}
	want := map[string]string{"usr/lib/x/libc.so.6": "-rwxr-xr-x", "usr/lib64/ld.so": "Lrwxrwxrwx",
		"usr/bin/busybox": "-rwxr-xr-x", "usr/share/doc/libc6/copyright": "-rw-r--r--"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestNodeIsPinned checks that the lockfile pins content for every architecture and names no
// registry.
func TestNodeIsPinned(t *testing.T) {
	text, err := os.ReadFile("../../../packaging/image/node/package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	var lock struct {
		Packages map[string]struct {
			Integrity, Resolved string
			InBundle            bool
		}
	}
	if err := json.Unmarshal(text, &lock); err != nil {
		t.Fatal(err)
	}
	for name, p := range lock.Packages {
		if name != "" && !p.InBundle && p.Integrity == "" || p.Resolved != "" {
			t.Errorf("%s is not pinned, or names a registry: %+v", name, p)
		}
	}
	for _, arch := range nodeArch {
		if _, ok := lock.Packages["node_modules/node-linux-"+arch]; !ok {
			t.Errorf("no Node.js for %s", arch)
		}
	}
}
