package mcpgateway

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcpjson"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/replaceable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

// A liveGateway runs a gateway with servers_from. Its Handler, the shell, forwards each request to
// a second Handler, which has the servers of the configuration and of the files. When a file
// changes, the liveGateway loads a new second Handler, and replaces the current one as a reload
// replaces a configuration: servers that do not change keep their sessions, streams and child
// processes.
type liveGateway struct {
	shell *Handler
	ctx   caddy.Context

	current        atomic.Pointer[Handler]
	end            context.CancelFunc // ends current; nil if there is none
	running        bool               // the configuration has started
	servingDigests map[string]string  // files and digests of the servers in current that come from files, by name

	stopPolling context.CancelFunc // nil until polling starts
	polling     sync.WaitGroup

	mu       sync.Mutex // guards the fields below, for the admin API
	files    []*watchedFile
	refusal  error // why current does not have the servers of the files; nil if it has them
	reported bool  // refusal has been logged
}

// pollInterval is how often the files are read. Polling finds changes that file notifications miss,
// on network file systems and behind symbolic links.
const pollInterval = time.Second

// open reads the files for the first time. A missing file is not an error: it may appear later.
func (l *liveGateway) open() error {
	files, err := newWatchedFiles(l.shell.ServersFrom)
	if err != nil {
		return err
	}
	l.files = files
	for _, f := range l.files {
		f.read()
		switch {
		case errors.Is(f.err, fs.ErrNotExist):
			l.report(f)
		case f.err != nil:
			return fmt.Errorf("servers_from: %w", f.err)
		}
	}
	// reverse_proxy registers its metrics, which all of them share, in the registry of its context.
	// Only that of the configuration is served.
	if _, err := l.ctx.LoadModuleByID("http.handlers.reverse_proxy", nil); err != nil {
		return err
	}
	if err := l.apply(); err != nil {
		return fmt.Errorf("servers_from: %w", err)
	}
	return nil
}

// start runs once the configuration has started.
func (l *liveGateway) start() {
	l.running = true
	l.current.Load().start()
	ctx, cancel := context.WithCancel(l.ctx)
	l.stopPolling = cancel
	l.polling.Go(func() {
		ticker := time.NewTicker(pollInterval)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				l.poll()
			case <-ctx.Done():
				return
			}
		}
	})
}

// stop ends the polling, then the current handler.
func (l *liveGateway) stop() {
	if l.stopPolling != nil {
		l.stopPolling()
		l.polling.Wait()
	}
	if l.end != nil {
		l.end()
	}
}

// poll reads the files and applies changes. A file may be half written, or missing while it is
// replaced, so an error is reported only if the next poll finds it again.
func (l *liveGateway) poll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	changed := false
	for _, f := range l.files {
		if f.read() {
			changed = changed || f.err == nil
		} else if f.err != nil && !f.reported {
			l.report(f)
		}
	}
	switch {
	case changed:
		l.refusal, l.reported = l.apply(), false
	case l.refusal != nil && !l.reported:
		l.reported = true
		fileLoads.WithLabelValues(l.shell.Name, "error").Inc()
		l.shell.logger.Error("changes of servers files refused; the current servers keep running",
			zap.Strings("files", l.unusedFiles()), zap.Error(l.refusal))
	}
}

// report logs why the latest content of a file is not used.
func (l *liveGateway) report(f *watchedFile) {
	f.reported = true
	if errors.Is(f.err, fs.ErrNotExist) {
		l.shell.logger.Warn("servers file is missing", zap.String("file", f.path),
			zap.Int("servers_kept", len(l.serversOf(f))))
		return
	}
	fileLoads.WithLabelValues(l.shell.Name, "error").Inc()
	l.shell.logger.Error("servers file not loaded; its current servers keep running",
		zap.String("file", f.path), zap.Error(f.err))
}

// serversOf returns the names of the servers from a file that run.
func (l *liveGateway) serversOf(f *watchedFile) []string {
	names := []string{}
	if h := l.current.Load(); h != nil {
		for _, s := range h.Servers {
			if s.file == f.path {
				names = append(names, s.Name)
			}
		}
	}
	return names
}

// unusedFiles returns the files whose latest content is not used.
func (l *liveGateway) unusedFiles() (paths []string) {
	for _, f := range l.files {
		if !f.used {
			paths = append(paths, f.path)
		}
	}
	return paths
}

// apply loads the servers of the files into the gateway, if they have changed.
func (l *liveGateway) apply() error {
	var config Handler
	if err := json.Unmarshal(l.shell.rawConfig, &config); err != nil {
		return err
	}
	config.ServersFrom = nil
	from, err := addServers(&config, l.files)
	if err != nil {
		return err
	}
	digests := map[string]string{}
	for _, s := range config.Servers {
		if s != nil && from[s.Name] != "" { // Provision refuses nil
			digests[s.Name] = from[s.Name] + " " + digest(s)
		}
	}
	difference := compareServers(l.servingDigests, digests)
	if l.current.Load() == nil || !difference.empty() {
		if err := l.replace(&config, from); err != nil {
			return err
		}
	}
	l.servingDigests = digests
	l.logApplied(difference)
	return nil
}

// replace loads a new handler and replaces the current one, in the order in which Caddy replaces a
// configuration.
func (l *liveGateway) replace(config *Handler, from map[string]string) error {
	raw, err := json.Marshal(config)
	if err != nil {
		return err
	}
	ctx, end := replaceable.NewContext(l.ctx)
	ctx.Context = context.WithValue(ctx.Context, shellKey{}, shellInfo{l.shell, from})
	module, err := ctx.LoadModuleByID(string(config.CaddyModule().ID), raw)
	if err != nil {
		end()
		return trimModule(err, config)
	}
	next, endOld := module.(*Handler), l.end
	l.current.Store(next)
	l.end = end
	if l.running {
		next.start()
	}
	if endOld != nil {
		endOld()
	}
	return nil
}

// logApplied logs the changes, and notes on settings in the files that the gateway ignores.
func (l *liveGateway) logApplied(changes serverChanges) {
	fileLoads.WithLabelValues(l.shell.Name, "ok").Inc()
	for _, f := range l.files {
		if f.used || f.err != nil {
			continue
		}
		f.used, f.loaded = true, time.Now()
		for _, note := range f.notes {
			l.shell.logger.Warn("note on a servers file", zap.String("file", f.path), zap.String("note", note))
		}
	}
	l.shell.logger.Info("servers files loaded", zap.Strings("added", changes.added),
		zap.Strings("changed", changes.changed), zap.Strings("removed", changes.removed))
}

// serverChanges holds the names of servers that were added, changed and removed.
type serverChanges struct{ added, changed, removed []string }

func (c *serverChanges) empty() bool { return len(c.added)+len(c.changed)+len(c.removed) == 0 }

// compareServers compares servers by their digests.
func compareServers(before, after map[string]string) (changes serverChanges) {
	for _, name := range slices.Sorted(maps.Keys(after)) {
		switch sum, known := before[name]; {
		case !known:
			changes.added = append(changes.added, name)
		case sum != after[name]:
			changes.changed = append(changes.changed, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if _, stays := after[name]; !stays {
			changes.removed = append(changes.removed, name)
		}
	}
	return changes
}

// shellKey is the context key of a shellInfo.
type shellKey struct{}

// A shellInfo tells a handler which shell it belongs to. Gateways in the routes of its servers have
// the same context.
type shellInfo struct {
	shell *Handler
	from  map[string]string // files of servers, by server name
}

// setFiles sets the files of servers.
func (i shellInfo) setFiles(servers []*Server) {
	for _, s := range servers {
		if s != nil {
			s.file = i.from[s.Name]
		}
	}
}

// addNested makes a gateway in the routes of a server start with the handler around it, and exit
// with the shell. It cannot subscribe to these events once the configuration runs.
func (i shellInfo) addNested(ctx caddy.Context, h *Handler) {
	outer := ctx.Modules()[0].(*Handler)
	outer.nested = append(outer.nested, h)
	h.lifetime.exiting = i.shell.lifetime.exiting
}

// serversMayChange reports whether the gateway has servers_from, so that servers may be added
// later. Rules may then name unknown servers.
func (h *Handler) serversMayChange() bool { return h.shell != nil || len(h.ServersFrom) > 0 }

// currentSibling returns the current handler of the same liveGateway if that is not h: the handler
// that h will replace, or the one that has replaced h. Otherwise it returns nil.
func (h *Handler) currentSibling() *Handler {
	if h.shell == nil {
		return nil
	}
	if current := h.shell.live.current.Load(); current != h {
		return current
	}
	return nil
}

// trimModule removes the name of the module from an error, because callers add it.
func trimModule(err error, module caddy.Module) error {
	id := module.CaddyModule().ID
	text := strings.TrimPrefix(err.Error(), fmt.Sprintf("provision %s: ", id))
	return errors.New(strings.TrimPrefix(text, fmt.Sprintf("%s: invalid configuration: ", id)))
}

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

// newWatchedFiles returns the files of servers_from, not yet read.
func newWatchedFiles(names []string) (files []*watchedFile, err error) {
	for _, name := range names {
		path, err := filePath(name)
		if err != nil {
			return nil, fmt.Errorf("servers_from: %q: %w", name, err)
		}
		if slices.ContainsFunc(files, func(f *watchedFile) bool { return f.path == path }) {
			return nil, fmt.Errorf("servers_from: %s is given twice", path)
		}
		files = append(files, &watchedFile{path: path})
	}
	return files, nil
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
// files are skipped. A duplicate server is an error.
func (h *Handler) AllServers() ([]*Server, error) {
	files, err := newWatchedFiles(h.ServersFrom)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		f.read()
		if f.err != nil && !errors.Is(f.err, fs.ErrNotExist) {
			return nil, fmt.Errorf("servers_from: %w", f.err)
		}
	}
	all := &Handler{Servers: slices.Clip(h.Servers)}
	if _, err := addServers(all, files); err != nil {
		return nil, fmt.Errorf("servers_from: %w", err)
	}
	return all.Servers, nil
}

// statuses returns the state of the files.
func (l *liveGateway) statuses() (all []adminapi.FileStatus) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.current.Load()
	for _, f := range l.files {
		status := adminapi.FileStatus{
			GatewayID: adminGateway{h}.id(), File: f.path,
			Servers: l.serversOf(f), Loaded: f.loaded, Notes: f.notes,
		}
		if err := cmp.Or(f.err, l.refusal); err != nil && !f.used {
			status.Error = err.Error()
		}
		all = append(all, status)
	}
	return all
}
