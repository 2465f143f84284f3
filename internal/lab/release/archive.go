package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
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
