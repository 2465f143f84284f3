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
	"time"
)

const (
	project  = "caddy-mcp-gateway"
	sumsName = "SHA256SUMS"
)

// shipped are the files and folders that go with the binary. It stands in bin, as it
// does after a build: there the Caddyfile and the commands of the README look for it.
var shipped = []string{"CHANGELOG.md", "CONTRIBUTING.md", "Caddyfile", "LICENSE", "README.md", "SECURITY.md", "caddyfile_examples", "docs"}

func archiveName(version string, p platform) string {
	ext := ".tar.gz"
	if p.os == "windows" {
		ext = ".zip"
	}
	return project + "_" + version + "_" + p.os + "_" + p.arch + ext
}

// removeArchives makes a folder for archives, without those of another release.
func removeArchives(dir string) error {
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

// archive packs a binary and what goes with it. The same content makes the same bytes.
func (s *source) archive(name, binary string) error {
	executable, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	files := map[string][]byte{}
	for _, wanted := range shipped {
		found := false
		for file, content := range s.files {
			if file == wanted || strings.HasPrefix(file, wanted+"/") {
				files[file], found = content, true
			}
		}
		if !found {
			return fmt.Errorf("commit %s has no %s", s.hash, wanted)
		}
	}
	runs := "bin/" + filepath.Base(binary)
	files[runs] = executable

	isZip := strings.HasSuffix(name, ".zip")
	folder := strings.TrimSuffix(strings.TrimSuffix(filepath.Base(name), ".zip"), ".tar.gz")
	return writeFile(name, func(w io.Writer) error {
		var a archiver
		if isZip {
			a = zipArchive{zip.NewWriter(w)}
		} else {
			compressed := gzip.NewWriter(w)
			a = tarArchive{tar.NewWriter(compressed), compressed}
		}
		for _, file := range slices.Sorted(maps.Keys(files)) {
			mode := fs.FileMode(0o644)
			if file == runs {
				mode = 0o755
			}
			if err := a.add(path.Join(folder, file), mode, s.time, files[file]); err != nil {
				return err
			}
		}
		return a.Close()
	})
}

type archiver interface {
	add(name string, mode fs.FileMode, modified time.Time, content []byte) error
	io.Closer
}

type tarArchive struct {
	*tar.Writer
	compressed *gzip.Writer
}

func (t tarArchive) add(name string, mode fs.FileMode, modified time.Time, content []byte) error {
	err := t.WriteHeader(&tar.Header{Name: name, Mode: int64(mode), ModTime: modified, Size: int64(len(content))})
	if err != nil {
		return err
	}
	_, err = t.Write(content)
	return err
}

func (t tarArchive) Close() error {
	if err := t.Writer.Close(); err != nil {
		return err
	}
	return t.compressed.Close()
}

type zipArchive struct{ *zip.Writer }

func (z zipArchive) add(name string, mode fs.FileMode, modified time.Time, content []byte) error {
	header := &zip.FileHeader{Name: name, Method: zip.Deflate, Modified: modified}
	header.SetMode(mode)
	w, err := z.CreateHeader(header)
	if err != nil {
		return err
	}
	_, err = w.Write(content)
	return err
}

// checksums returns what `sha256sum -c` reads.
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
