package mcpgateway

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcpjson"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

// A watchedFile is a file of servers_from.
type watchedFile struct {
	path string
	sum  [sha256.Size]byte // of the latest content

	servers  []*Server // of the latest valid content
	notes    []string  // on the latest valid content
	err      error     // why the latest content is invalid; nil if it is valid
	reported bool      // err has been logged
	used     bool      // the gateway has loaded these servers
	loaded   time.Time // when it loaded them
}

// read reads the file and reports whether its content has changed. If the content is invalid,
// servers does not change.
func (f *watchedFile) read() (changed bool) {
	content, err := readSmallFile(f.path)
	if err != nil {
		err = fmt.Errorf("%s: %w", f.path, err)
		content = []byte("error " + err.Error())
	}
	sum := sha256.Sum256(content)
	if sum == f.sum {
		return false
	}
	f.sum, f.reported, f.used = sum, false, false
	var servers []*Server
	var notes []string
	if err == nil {
		servers, notes, err = readServers(content, f.path)
	}
	f.err = err
	if err == nil {
		f.servers, f.notes = servers, notes
	}
	return true
}

// readSmallFile reads a regular file of up to [mcpjson.MaxSize] bytes.
func readSmallFile(path string) ([]byte, error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file") // reading may never end
	}
	file, err := os.Open(path)
	if failure, ok := errors.AsType[*fs.PathError](err); ok {
		return nil, failure.Err // the caller names the file
	} else if err != nil {
		return nil, err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, mcpjson.MaxSize+1))
	if err == nil && len(content) > mcpjson.MaxSize {
		err = fmt.Errorf("larger than %d bytes", mcpjson.MaxSize)
	}
	return content, err
}

// addServers adds the servers of files to a configuration. It returns the file of each server by
// name.
func addServers(config *Handler, files []*watchedFile) (from map[string]string, err error) {
	const configured = "a server line of mcp_gateway"
	places := map[string]string{}
	for _, s := range config.Servers {
		if s == nil {
			continue // Provision refuses it
		}
		for _, name := range append([]string{s.Name}, s.Aliases...) {
			places[name] = configured
		}
	}
	from = map[string]string{}
	for _, f := range files {
		for _, s := range f.servers {
			if other := places[s.Name]; other != "" {
				return nil, fmt.Errorf("duplicate server %q: it is in %s and in %s", s.Name, other, f.path)
			}
			places[s.Name], from[s.Name] = f.path, f.path
			config.Servers = append(config.Servers, s)
		}
	}
	return from, nil
}

// filePath returns the absolute path of a file. It replaces placeholders and a leading ~.
func filePath(name string) (string, error) {
	path, err := caddy.NewReplacer().ReplaceOrErr(name, true, true)
	if err != nil {
		return "", err
	}
	if rest, ok := strings.CutPrefix(path, "~/"); ok {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", err
		}
		path = filepath.Join(home, rest)
	}
	if path == "" {
		return "", errors.New("empty file name")
	}
	return caddy.FastAbs(path)
}

// parseServersFrom parses file names. A relative one is relative to the folder of the Caddyfile,
// because the running Caddy may have another working directory than the command that adapts the
// Caddyfile.
func parseServersFrom(names *[]string) setting.Line {
	return func(d *caddyfile.Dispenser) error {
		args := d.RemainingArgs()
		if len(args) == 0 {
			return setting.Expected(d, "servers_from", "<files...>")
		}
		for _, name := range args {
			if name == "" {
				return d.Err("servers_from: empty file name")
			}
			if !filepath.IsAbs(name) && !strings.HasPrefix(name, "~/") && !strings.HasPrefix(name, "{") {
				folder, err := caddy.FastAbs(filepath.Dir(d.File()))
				if err != nil {
					return d.WrapErr(err)
				}
				name = filepath.Join(folder, name)
			}
			*names = append(*names, name)
		}
		return nil
	}
}

// AllServers returns the servers of the configuration and of the files in servers_from. Missing
// files are skipped.
func (h *Handler) AllServers() ([]*Server, error) {
	all := slices.Clip(h.Servers)
	for _, name := range h.ServersFrom {
		path, err := filePath(name)
		if err != nil {
			return nil, fmt.Errorf("servers_from: %q: %w", name, err)
		}
		file := &watchedFile{path: path}
		file.read()
		if file.err != nil && !errors.Is(file.err, fs.ErrNotExist) {
			return nil, fmt.Errorf("servers_from: %w", file.err)
		}
		all = append(all, file.servers...)
	}
	return all, nil
}

// fileStatuses returns the state of the files in servers_from.
func (h *Handler) fileStatuses() (all []adminapi.FileStatus) {
	if h.shell == nil {
		return nil
	}
	l := h.shell.live
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.files {
		status := adminapi.FileStatus{
			Gateway: h.Name, Path: h.MCPPath, File: f.path,
			Servers: []string{}, Loaded: f.loaded, Notes: f.notes,
		}
		for _, s := range f.servers {
			status.Servers = append(status.Servers, s.Name)
		}
		if err := cmp.Or(f.err, l.refusal); err != nil && !f.used {
			status.Error = err.Error()
		}
		all = append(all, status)
	}
	return all
}
