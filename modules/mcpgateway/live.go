package mcpgateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/replaceable"
)

// A live runs a gateway with servers_from. Its Handler, the shell, passes each request on to
// another Handler, which has the servers of the configuration and those of the files. When a file
// changes, live makes a new one and replaces the current one by it, as a reload replaces
// configurations: sessions, streams and children of servers that stay the same go on.
type live struct {
	shell  *Handler
	ctx    caddy.Context
	config []byte // the configuration of the shell

	current atomic.Pointer[Handler]
	end     context.CancelFunc // ends current; nil if there is none
	running bool               // the configuration has started
	serving map[string]string  // digests of the servers of files that current has, by name

	stopPolling context.CancelFunc // nil if nothing polls
	polling     sync.WaitGroup

	mu      sync.Mutex // guards what follows, for the admin API
	files   []*watchedFile
	refused error // why the servers of the files are not those of current; nil if they are
	told    bool  // refused has been logged
}

// pollInterval is how often the files are read. Polling sees changes that notifications of the
// system miss: on network file systems, and behind symbolic links.
const pollInterval = time.Second

// provisionLive sets up a gateway whose servers come from files.
func (h *Handler) provisionLive(ctx caddy.Context) error {
	config, err := json.Marshal(h)
	if err != nil {
		return err
	}
	h.live = &live{shell: h, ctx: ctx, config: config}
	for _, name := range h.ServersFrom {
		path, err := filePath(name)
		if err != nil {
			return fmt.Errorf("servers_from: %q: %w", name, err)
		}
		if slices.ContainsFunc(h.live.files, func(f *watchedFile) bool { return f.path == path }) {
			return fmt.Errorf("servers_from: %s is given twice", path)
		}
		h.live.files = append(h.live.files, &watchedFile{path: path})
	}
	return h.live.open()
}

// open reads the files for the first time. One that is missing may come later.
func (l *live) open() error {
	for _, f := range l.files {
		f.look()
		switch {
		case errors.Is(f.err, fs.ErrNotExist):
			l.report(f)
		case f.err != nil:
			return fmt.Errorf("servers_from: %w", f.err)
		}
	}
	if err := l.apply(); err != nil {
		return fmt.Errorf("servers_from: %w", err)
	}
	return nil
}

// start is called when the configuration has started.
func (l *live) start() {
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

// stop ends the polling, and then the current handler.
func (l *live) stop() {
	if l.stopPolling != nil {
		l.stopPolling()
		l.polling.Wait()
	}
	if l.end != nil {
		l.end()
	}
}

// poll reads the files, and applies changes. A file may be half written, or be missing while
// another one takes its place: an error is reported if the next poll finds the same.
func (l *live) poll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	changed := false
	for _, f := range l.files {
		if f.look() {
			changed = changed || f.err == nil
		} else if f.err != nil && !f.told {
			l.report(f)
		}
	}
	switch {
	case changed:
		l.refused, l.told = l.apply(), false
	case l.refused != nil && !l.told:
		l.told = true
		fileLoads.WithLabelValues(l.shell.Name, "error").Inc()
		l.shell.logger.Error("changed servers refused; the running servers stay",
			zap.Strings("files", l.unused()), zap.Error(l.refused))
	}
}

// report logs why the latest content of a file is not used.
func (l *live) report(f *watchedFile) {
	f.told = true
	if errors.Is(f.err, fs.ErrNotExist) {
		l.shell.logger.Warn("file of servers is missing", zap.String("file", f.path),
			zap.Int("servers_kept", len(f.servers)))
		return
	}
	fileLoads.WithLabelValues(l.shell.Name, "error").Inc()
	l.shell.logger.Error("file of servers not read; its running servers stay",
		zap.String("file", f.path), zap.Error(f.err))
}

// unused returns the files whose latest content is not used.
func (l *live) unused() (paths []string) {
	for _, f := range l.files {
		if !f.used {
			paths = append(paths, f.path)
		}
	}
	return paths
}

// apply makes the servers of the files those of the gateway.
func (l *live) apply() error {
	var config Handler
	if err := json.Unmarshal(l.config, &config); err != nil {
		return err
	}
	config.ServersFrom = nil
	from, err := addServers(&config, l.files)
	if err != nil {
		return err
	}
	digests := map[string]string{}
	for _, s := range config.Servers {
		if from[s.Name] != "" {
			digests[s.Name] = digest(s)
		}
	}
	difference := compareServers(l.serving, digests)
	if l.current.Load() == nil || !difference.empty() {
		if err := l.replace(&config, from); err != nil {
			return err
		}
	}
	l.serving = digests
	l.logApplied(difference)
	return nil
}

// replace makes a handler and has it take the place of the current one, in the order in which Caddy
// replaces a configuration.
func (l *live) replace(config *Handler, from map[string]string) error {
	raw, err := json.Marshal(config)
	if err != nil {
		return err
	}
	ctx, end := replaceable.NewContext(l.ctx)
	ctx.Context = context.WithValue(ctx.Context, shellKey{}, shellOf{l.shell, from})
	module, err := ctx.LoadModuleByID(string(config.CaddyModule().ID), raw)
	if err != nil {
		end()
		return withoutModule(err, config)
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

// logApplied logs what has changed, and what the files have that the gateway does not take over.
func (l *live) logApplied(changes serverChanges) {
	fileLoads.WithLabelValues(l.shell.Name, "ok").Inc()
	for _, f := range l.files {
		if f.used || f.err != nil {
			continue
		}
		f.used, f.loaded = true, time.Now()
		for _, note := range f.notes {
			l.shell.logger.Warn("note on a file of servers", zap.String("file", f.path), zap.String("note", note))
		}
	}
	l.shell.logger.Info("servers of files loaded", zap.Strings("added", changes.added),
		zap.Strings("changed", changes.changed), zap.Strings("removed", changes.removed))
}

// serverChanges are the names of servers that differ.
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

// shellKey is where the context of a handler that a live makes has its shellOf.
type shellKey struct{}

// A shellOf is what a handler that a live makes needs to know.
type shellOf struct {
	shell *Handler
	from  map[string]string // the files that servers come from, by name
}

// findShell notes which live has made the handler. A gateway in the routes of a server has the same
// context, but is not the first module in it.
func (h *Handler) findShell(ctx caddy.Context) {
	of, ok := ctx.Value(shellKey{}).(shellOf)
	if !ok || len(ctx.Modules()) != 1 {
		return
	}
	h.shell = of.shell
	for _, s := range h.Servers {
		if s != nil {
			s.from = of.from[s.Name]
		}
	}
}

// mayGainServers reports whether servers may appear that the configuration does not name. Rules for
// unknown servers are then not refused.
func (h *Handler) mayGainServers() bool { return h.shell != nil || len(h.ServersFrom) > 0 }

// incumbent returns the other handler of the same live that serves now: the one that this handler is
// to replace, or that has replaced it. It is nil if there is none.
func (h *Handler) incumbent() *Handler {
	if h.shell == nil {
		return nil
	}
	if current := h.shell.live.current.Load(); current != h {
		return current
	}
	return nil
}

// withoutModule returns an error of loading a module without the module's name, which others add.
func withoutModule(err error, module caddy.Module) error {
	id := module.CaddyModule().ID
	text := strings.TrimPrefix(err.Error(), fmt.Sprintf("provision %s: ", id))
	return errors.New(strings.TrimPrefix(text, fmt.Sprintf("%s: invalid configuration: ", id)))
}
