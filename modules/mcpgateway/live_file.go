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

// A watchedFile is a file that servers come from.
type watchedFile struct {
	path string
	sum  [sha256.Size]byte // of what was found there last

	servers []*Server // of the latest content that could be read
	notes   []string  // on that content
	err     error     // why what was found last cannot be read; nil if it can
	told    bool      // err has been logged
	used    bool      // the gateway has these servers
	loaded  time.Time // when it got them
}

// look reads the file, and reports whether what it finds is new. Servers stay if it cannot be read.
func (f *watchedFile) look() (changed bool) {
	content, err := readSmallFile(f.path)
	if err != nil {
		err = fmt.Errorf("%s: %w", f.path, err)
		content = []byte("error " + err.Error())
	}
	sum := sha256.Sum256(content)
	if sum == f.sum {
		return false
	}
	f.sum, f.told, f.used = sum, false, false
	var servers []*Server
	var notes []string
	if err == nil {
		servers, notes, err = readServers(content, f.path)
	}
	if f.err = err; err == nil {
		f.servers, f.notes = servers, notes
	}
	return true
}

// readSmallFile returns the content of a file.
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

// addServers adds the servers of files to a configuration. It returns which file each is from, by the
// name of the server.
func addServers(config *Handler, files []*watchedFile) (from map[string]string, err error) {
	const configured = "a server line of mcp_gateway"
	places := map[string]string{}
	for _, s := range config.Servers {
		if s == nil {
			continue // which Provision refuses
		}
		for _, name := range append([]string{s.Name}, s.Aliases...) {
			places[name] = configured
		}
	}
	from = map[string]string{}
	for _, f := range files {
		for _, s := range f.servers {
			if other := places[s.Name]; other != "" {
				return nil, fmt.Errorf("server %q: the name is in %s and in %s", s.Name, other, f.path)
			}
			places[s.Name], from[s.Name] = f.path, f.path
			config.Servers = append(config.Servers, s)
		}
	}
	return from, nil
}

// filePath returns the path of a file of servers: placeholders are replaced, and ~ is the home folder.
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
		return "", errors.New("the name is empty")
	}
	return caddy.FastAbs(path)
}

// parseServersFrom reads names of files. A relative one is relative to the folder of the Caddyfile: the
// Caddy that runs may have another working directory than the command that reads the Caddyfile.
func parseServersFrom(names *[]string) setting.Line {
	return func(d *caddyfile.Dispenser) error {
		args := d.RemainingArgs()
		if len(args) == 0 {
			return setting.Expected(d, "servers_from", "<files...>")
		}
		for _, name := range args {
			if name == "" {
				return d.Err("servers_from: the name of a file is empty")
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

// AllServers returns the servers of the configuration, and of the files that servers_from names. One that is missing may
// come later.
func (h *Handler) AllServers() ([]*Server, error) {
	all := slices.Clip(h.Servers)
	for _, name := range h.ServersFrom {
		path, err := filePath(name)
		if err != nil {
			return nil, fmt.Errorf("servers_from: %q: %w", name, err)
		}
		file := &watchedFile{path: path}
		file.look()
		if file.err != nil && !errors.Is(file.err, fs.ErrNotExist) {
			return nil, fmt.Errorf("servers_from: %w", file.err)
		}
		all = append(all, file.servers...)
	}
	return all, nil
}

// fileStatuses returns how the files of a gateway are.
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
		if err := cmp.Or(f.err, l.refused); err != nil && !f.used {
			status.Error = err.Error()
		}
		all = append(all, status)
	}
	return all
}
