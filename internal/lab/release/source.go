package main

import (
	"archive/zip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/mod/module"
	"golang.org/x/mod/sumdb/dirhash"
	modzip "golang.org/x/mod/zip"
)

const modulePath = "github.com/caddy-mcp-gateway/caddy-mcp-gateway"

// A source is a commit, packed as a version of the module.
type source struct {
	commit
	proxy string            // directory of a module proxy that has only this version
	files map[string][]byte // files of the module, by path
	sum   string            // checksum of the module, as in go.sum
}

// pack packs a commit into a module proxy below work.
func pack(root, work string, c commit) (*source, error) {
	version, err := module.EscapeVersion(c.version)
	if err != nil {
		return nil, err
	}
	s := &source{commit: c, proxy: filepath.Join(work, "proxy")}
	name := filepath.Join(s.proxy, filepath.FromSlash(modulePath), "@v", version) // without extension
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return nil, err
	}
	archive := name + ".zip"
	if err := writeFile(archive, func(w io.Writer) error {
		return modzip.CreateFromVCS(w, module.Version{Path: modulePath, Version: c.version}, root, c.hash, "")
	}); err != nil {
		return nil, fmt.Errorf("pack commit %s: %w", c.hash, err)
	}
	if s.sum, err = dirhash.HashZip(archive, dirhash.Hash1); err != nil {
		return nil, err
	}
	if s.files, err = unzip(archive, modulePath+"@"+c.version+"/"); err != nil {
		return nil, err
	}
	info, err := json.Marshal(struct {
		Version string
		Time    time.Time
	}{c.version, c.time})
	if err != nil {
		return nil, err
	}
	for ext, content := range map[string][]byte{".info": info, ".mod": s.files["go.mod"]} {
		if err := os.WriteFile(name+ext, content, 0o644); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// unzip reads the files of an archive and removes a prefix from their names.
func unzip(archive, prefix string) (map[string][]byte, error) {
	r, err := zip.OpenReader(archive)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	files := map[string][]byte{}
	for _, f := range r.File {
		content, err := f.Open()
		if err != nil {
			return nil, err
		}
		files[strings.TrimPrefix(f.Name, prefix)], err = io.ReadAll(content)
		content.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return files, nil
}

// copyTo adds a file or a directory of the module to a tree, under another name.
func (s *source) copyTo(files tree, from, to string) error {
	found := false
	for file, content := range s.files {
		if rest, ok := strings.CutPrefix(file, from); ok && (rest == "" || rest[0] == '/') {
			files.add(path.Join(to, rest), 0o644, content)
			found = true
		}
	}
	if !found {
		return fmt.Errorf("commit %s has no %s", s.hash, from)
	}
	return nil
}

// unpack writes a directory of the module to disk.
func (s *source) unpack(from, dir string) error {
	files := newTree(s.time)
	if err := s.copyTo(files, from, "."); err != nil {
		return err
	}
	return os.CopyFS(dir, files)
}

// writeFile writes a file. Without an error, the file is complete.
func writeFile(name string, write func(io.Writer) error) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	if err := write(f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
