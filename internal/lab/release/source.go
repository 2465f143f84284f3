package main

import (
	"archive/zip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
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

// A commit is a revision to release with its version.
type commit struct {
	hash    string
	time    time.Time
	version string
}

// findCommit returns a revision of the repository at root. By default it is HEAD, and the
// directory must have no changes, which would be missing from the release.
func findCommit(ctx context.Context, root, revision, version string) (commit, error) {
	if err := checkVersion(version); err != nil {
		return commit{}, err
	}
	if revision == "" {
		changed, err := git(ctx, root, "status", "--porcelain")
		if err != nil {
			return commit{}, err
		}
		if changed != "" {
			return commit{}, fmt.Errorf("these files are not committed:\n%s\ncommit them, or release HEAD without them: "+
				"COMMIT=HEAD", changed)
		}
		revision = "HEAD"
	}
	line, err := git(ctx, root, "log", "-1", "--no-show-signature", "--format=%H %ct", "--end-of-options", revision)
	if err != nil {
		return commit{}, err
	}
	hash, seconds, _ := strings.Cut(line, " ")
	unix, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return commit{}, fmt.Errorf("time of commit %s: %w", revision, err)
	}
	return commit{hash, time.Unix(unix, 0).UTC(), version}, nil
}

// checkVersion returns an error unless this module can have the version.
func checkVersion(version string) error {
	if module.CanonicalVersion(version) != version {
		return fmt.Errorf("version %q is not of the form v1.2.3 or v1.2.3-rc.1", version)
	}
	return module.Check(modulePath, version)
}

// git returns the output of a git command.
func git(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { // set in git hooks
		return strings.HasPrefix(v, "GIT_DIR=") || strings.HasPrefix(v, "GIT_WORK_TREE=") || strings.HasPrefix(v,
			"GIT_INDEX_FILE=")
	})
	out, err := output(cmd)
	return strings.TrimRight(string(out), "\n"), err
}

// output runs a command. Its error includes the command's standard error.
func output(cmd *exec.Cmd) ([]byte, error) {
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(cmd.Args[:min(2, len(cmd.Args))], " "), err)
	}
	return out, nil
}
