package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing/fstest"
	"time"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
)

const (
	project  = "caddy-mcp-gateway"
	sumsName = "SHA256SUMS"
)

// shipped are the files and directories next to the binary. The binary is in bin, as after a
// build: the Caddyfile and the commands in the README expect it there.
var shipped = []string{"CHANGELOG.md", "CONTRIBUTING.md", "Caddyfile", "LICENSE", "README.md", "SECURITY.md",
	"caddyfile_examples", "docs", vocabularyLicense, "packaging"}

// vocabularyLicense is the license of the vocabulary for counting tokens.
const vocabularyLicense = "internal/tokens/LICENSE.tiktoken"

// distName returns the name of a file in dist.
func distName(version string, p platform, suffix string) string {
	return project + "_" + version + "_" + p.os + "_" + p.arch + suffix
}

// removeDist creates a directory for a release, or removes an earlier release from it.
func removeDist(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, pattern := range []string{project + "_*", sumsName} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return err
		}
		for _, f := range files {
			if err := os.Remove(f); err != nil {
				return err
			}
		}
	}
	return nil
}

// archive packs a binary and the shipped files: a zip for Windows, otherwise a tar.gz.
func (s *source) archive(name, binary string) error {
	executable, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	isZip := strings.HasSuffix(name, ".zip")
	folder := strings.TrimSuffix(strings.TrimSuffix(filepath.Base(name), ".zip"), ".tar.gz")
	files := newTree(s.time)
	files.add(path.Join(folder, "bin", filepath.Base(binary)), 0o755, executable)
	for _, wanted := range shipped {
		if err := s.copyTo(files, wanted, path.Join(folder, wanted)); err != nil {
			return err
		}
	}
	return writeFile(name, func(w io.Writer) error {
		if isZip {
			z := zip.NewWriter(w)
			if err := z.AddFS(files); err != nil {
				return err
			}
			return z.Close()
		}
		compressed := gzip.NewWriter(w)
		if err := writeTar(compressed, files); err != nil {
			return err
		}
		return compressed.Close()
	})
}

func writeTar(w io.Writer, files tree) error {
	t := tar.NewWriter(w)
	if err := t.AddFS(files); err != nil {
		return err
	}
	return t.Close()
}

// checksums returns lines in the format of `sha256sum -c`.
func checksums(files []string) (string, error) {
	var sums strings.Builder
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(content), filepath.Base(file))
	}
	return sums.String(), nil
}

// A tree has files in memory, to be packed. All of them have the same time and belong to root,
// so that the same content gives the same bytes.
type tree struct {
	fstest.MapFS
	time time.Time
}

func newTree(t time.Time) tree { return tree{fstest.MapFS{}, t} }

func (t tree) add(name string, mode fs.FileMode, content []byte) {
	t.MapFS[name] = &fstest.MapFile{Data: content, Mode: mode, ModTime: t.time}
	for dir := path.Dir(name); dir != "." && t.MapFS[dir] == nil; dir = path.Dir(dir) {
		t.MapFS[dir] = &fstest.MapFile{Mode: fs.ModeDir | 0o755, ModTime: t.time}
	}
}

func (t tree) link(name, target string) { t.add(name, fs.ModeSymlink|0o777, []byte(target)) }

// addOwnedDir adds a directory that belongs to the user of an image.
func (t tree) addOwnedDir(name string) {
	t.add(name, fs.ModeDir|0o700, nil)
	t.MapFS[name].Sys = &tar.Header{Uid: imageUser, Gid: imageUser} // used by tar.FileInfoHeader
}

// deb packs a binary as a Debian package with a systemd unit. Its paths, user and admin socket
// have the name of this project, so that it can be installed next to the caddy package of a
// distribution.
func (s *source) deb(name, work, binary string, p platform) error {
	dir := filepath.Join(work, "deb", p.arch) // nfpm reads files by path
	for _, wanted := range []string{"packaging/deb", "caddyfile_examples"} {
		if err := s.unpack(wanted, filepath.Join(dir, wanted)); err != nil {
			return err
		}
	}
	packaging := func(file string) string { return filepath.Join(dir, "packaging", "deb", file) }

	var contents files.Contents
	add := func(source, destination, kind string, mode os.FileMode) {
		contents = append(contents, &files.Content{Source: source, Destination: destination, Type: kind,
			FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: mode, MTime: s.time}})
	}
	add(binary, "/usr/bin/"+project, files.TypeFile, 0o755)
	add(packaging("Caddyfile"), "/etc/"+project+"/Caddyfile", files.TypeConfigNoReplace, 0o644)
	add(packaging(project+".service"), "/usr/lib/systemd/system/"+project+".service", files.TypeFile, 0o644)
	add(packaging("copyright"), "/usr/share/doc/"+project+"/copyright", files.TypeFile, 0o644)
	for _, file := range slices.Sorted(maps.Keys(s.files)) {
		if example, ok := strings.CutPrefix(file, "caddyfile_examples/"); ok {
			add(filepath.Join(dir, file), "/usr/share/doc/"+project+"/examples/"+example, files.TypeFile, 0o644)
		}
	}

	info := nfpm.WithDefaults(&nfpm.Info{
		Name:          project,
		Arch:          p.arch,
		Platform:      p.os,
		Version:       debVersion(s.version),
		VersionSchema: "none",
		Section:       "httpd",
		Priority:      "optional",
		Maintainer:    project + " maintainers <" + project + "@users.noreply.github.com>",
		Description:   imageTitle + "\n" + imageDescription,
		Homepage:      "https://" + modulePath,
		MTime:         s.time,
		Overridables: nfpm.Overridables{
			Depends:  []string{"adduser", "init-system-helpers (>= 1.54)", "passwd"},
			Suggests: []string{"nodejs", "npm"}, // for servers started with npx
			Contents: contents,
			Scripts: nfpm.Scripts{PostInstall: packaging("postinst"), PreRemove: packaging("prerm"),
				PostRemove: packaging("postrm")},
		},
	})
	if err := nfpm.PrepareForPackager(info, "deb"); err != nil {
		return err
	}
	packager, err := nfpm.Get("deb")
	if err != nil {
		return err
	}
	return writeFile(name, func(w io.Writer) error { return packager.Package(info, w) })
}

// debVersion returns a version that dpkg orders as Go does, such as v1.0.0-rc.1 before v1.0.0.
func debVersion(version string) string {
	release, pre, ok := strings.Cut(strings.TrimPrefix(version, "v"), "-")
	if ok {
		release += "~" + strings.ReplaceAll(pre, "-", ".") // a hyphen would start the package revision
	}
	return release
}
