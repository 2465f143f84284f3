package mcpgateway

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/stdio"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstdio"
)

// A healthRecord is what is known of the health of a server, from requests of clients and from
// health checks alike. It outlives reloads that leave the server as it is.
type healthRecord struct {
	server   string
	children bool        // the gauge counts its processes
	trying   sync.Mutex  // held while a health check tries the server
	fine     atomic.Bool // it is healthy, and no call has failed since the last answer

	mu     sync.Mutex
	state  healthState
	doubts int // calls in a row that have failed, while it is healthy
	logged loggedFault
	items  map[string]int // how many tools, prompts and resources it has, as far as that is known
	gauge  bool           // the gauge has it
	closed bool
}

// healthRecords are the records in use, by gateway and server.
var healthRecords = caddy.NewUsagePool()

// Destruct implements caddy.Destructor. Another server may have the same name.
func (r *healthRecord) Destruct() error {
	r.mu.Lock()
	r.closed = true
	told := r.gauge
	r.mu.Unlock()
	if !told {
		return nil
	}
	mcpstdio.Healthy().DeleteLabelValues(r.server)
	healthRecords.Range(func(_, value any) bool {
		if other := value.(*healthRecord); other.server == r.server {
			other.mu.Lock()
			defer other.mu.Unlock()
			if other.gauge {
				other.tell()
			}
		}
		return true
	})
	return nil
}

// A healthState is whether a server answers.
type healthState struct {
	Known     bool // it has been tried
	Healthy   bool
	Doubtful  bool          // it is only known that calls in a row were not answered
	LastError string        // why it did not answer the last time that it did not
	FailedAt  time.Time     // when that was
	Tried     string        // the method that it did not answer
	Path      string        // where it was asked
	Cause     jsonrpc.Cause // the same in words from a fixed set
	Since     time.Time     // when it began or ceased to answer
	Failures  int           // in a row
}

// name returns the state as the admin API has it.
func (s healthState) name() string {
	switch {
	case !s.Known:
		return adminapi.StateUnknown
	case s.Healthy:
		return adminapi.StateHealthy
	}
	return adminapi.StateUnhealthy
}

// openRecords gets the records of all servers.
func (h *Handler) openRecords() {
	if h.recordKeys != nil {
		return
	}
	for _, s := range h.Servers {
		key := h.Name + "\x00" + s.id
		value, _, _ := healthRecords.LoadOrNew(key, func() (caddy.Destructor, error) {
			return &healthRecord{server: s.Name, children: len(s.upstreams.children) > 0}, nil
		})
		h.recordKeys = append(h.recordKeys, key)
		s.health.Store(value.(*healthRecord))
	}
}

// closeRecords gives them back.
func (h *Handler) closeRecords() {
	for _, key := range h.recordKeys {
		_, _ = healthRecords.Delete(key)
	}
	h.recordKeys = nil
}

// maxDoubts is how many calls in a row may fail without making a server unhealthy: a tool may be
// slow or broken, and others not.
const maxDoubts = 1

// failed notes that a server did not answer.
func (r *healthRecord) failed(log *zap.Logger, f *upstream.Fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	healthy := r.state.Known && r.state.Healthy
	switch {
	case healthy && f.Certainty == upstream.Weak:
		return
	case healthy && f.Certainty == upstream.Doubtful:
		r.fine.Store(false)
		if r.doubts++; r.doubts <= maxDoubts {
			if pass, repeated := r.logged.pass(f.Reason, time.Now()); pass {
				log.Warn("MCP server did not answer a request", faultFields(f, repeated)...)
			}
			return
		}
	}
	now := time.Now()
	s := &r.state
	if !s.Known || s.Healthy {
		s.Known, s.Healthy, s.Doubtful, s.Since = true, false, true, now
		r.logged = loggedFault{}
		r.fine.Store(false)
		r.tell()
	}
	s.Doubtful = s.Doubtful && f.Certainty == upstream.Doubtful
	s.Failures++
	s.LastError, s.FailedAt, s.Tried, s.Path, s.Cause = f.Reason, now, f.Tried, f.Path, f.Cause
	if pass, repeated := r.logged.pass(f.Reason, now); pass {
		log.Error("MCP server is unavailable", faultFields(f, repeated)...)
	}
}

// answered notes that a server has answered.
func (r *healthRecord) answered(log *zap.Logger) {
	if r.fine.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	s := &r.state
	if s.Known && !s.Healthy {
		log.Info("MCP server is available again", zap.String("mcp_server", r.server),
			zap.Duration("after", now.Sub(s.Since)), zap.Int("failures", s.Failures))
		r.logged = loggedFault{}
	}
	if !s.Healthy {
		s.Known, s.Healthy, s.Since, s.Failures = true, true, now, 0
		r.tell()
	}
	r.doubts = 0
	r.fine.Store(true)
}

// refused notes that a server has refused a ping. It reads requests, so it is healthy, unless the
// requests of clients are refused, too.
func (r *healthRecord) refused(log *zap.Logger) {
	r.mu.Lock()
	s := r.state
	r.mu.Unlock()
	if refuses := s.Known && !s.Healthy && s.Cause.IsOfHTTP(); !refuses {
		r.answered(log)
	}
}

// listed notes how many items of a kind a server has.
func (r *healthRecord) listed(log *zap.Logger, kind string, items int) {
	r.answered(log)
	r.mu.Lock()
	defer r.mu.Unlock()
	_, known := r.items["tools"]
	switch kind {
	case "tools", "prompts", "resources":
		if r.items == nil {
			r.items = map[string]int{}
		}
		r.items[kind] = items
	}
	if kind != "tools" || known {
		return
	}
	fields := []zap.Field{zap.String("mcp_server", r.server)}
	for _, kind := range [...]string{"tools", "prompts", "resources"} {
		if n, known := r.items[kind]; known {
			fields = append(fields, zap.Int(kind, n))
		}
	}
	log.Info("MCP server joined", fields...)
}

// count returns how many items of a kind the server has; nil if that is not known.
func (r *healthRecord) count(kind string) *int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n, known := r.items[kind]; known {
		return &n
	}
	return nil
}

// current returns the state.
func (r *healthRecord) current() healthState {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state
}

// tell tells the gauge. Child processes are counted where they are started. The caller holds the lock.
func (r *healthRecord) tell() {
	if r.children || r.closed {
		return
	}
	r.gauge = true
	value := 0.0
	if r.state.Healthy {
		value = 1
	}
	mcpstdio.Healthy().WithLabelValues(r.server).Set(value)
}

// A loggedFault is what was logged last of a server that does not answer.
type loggedFault struct {
	reason   string
	next     time.Time     // not logged again before that
	pause    time.Duration // until then
	repeated int           // times that it was not logged
}

// How long a failure that is the same is not logged again, at first and at most.
const firstRepeat, lastRepeat = time.Minute, time.Hour

// pass reports whether a failure is to be logged, and how often it was not since the last time.
func (l *loggedFault) pass(reason string, now time.Time) (pass bool, repeated int) {
	if reason != l.reason {
		*l = loggedFault{reason: reason, pause: firstRepeat, next: now.Add(firstRepeat)}
		return true, 0
	}
	if now.Before(l.next) {
		l.repeated++
		return false, 0
	}
	repeated = l.repeated
	l.pause = min(2*l.pause, lastRepeat)
	l.next, l.repeated = now.Add(l.pause), 0
	return true, repeated
}

// faultFields returns a fault as logs have it.
func faultFields(f *upstream.Fault, repeated int) []zap.Field {
	fields := []zap.Field{zap.String("mcp_server", f.Server), zap.String("error", f.Reason), zap.String("tried", f.Tried)}
	if f.Path != "" {
		fields = append(fields, zap.String("path", f.Path))
	}
	if len(f.Stderr) > 0 {
		fields = append(fields, zap.Strings("stderr", f.Stderr))
	}
	if f.Retry > 0 {
		fields = append(fields, zap.Duration("retry_in", f.Retry))
	}
	if repeated > 0 {
		fields = append(fields, zap.Int("repeated", repeated))
	}
	return fields
}

// healthState returns what is known of the health of a server: from requests and health checks, from its
// child processes themselves, or from the health checks of reverse_proxy.
func (s *Server) healthState() healthState {
	var state healthState
	if record := s.health.Load(); record != nil {
		state = record.current()
	}
	switch checked := s.upstreams.allChecked(); {
	case len(s.upstreams.children) > 0:
		return s.upstreams.childState(state)
	case checked && !s.upstreams.anyHealthy() && (state.Healthy || !state.Known):
		return healthState{Known: true, LastError: errNoUpstream.Error()}
	case checked && !state.Known:
		return healthState{Known: true, Healthy: true}
	}
	return state
}

// childState returns the state of a server whose processes are known, by what requests tell of it. One
// that was started after the last failure is healthy.
func (u *upstreams) childState(state healthState) healthState {
	running, down := false, false
	var failed stdio.Status // the latest
	for _, c := range u.children {
		for _, status := range c.transport.Status(c.host) {
			switch status.State {
			case stdio.Running:
				running = running || !state.Known || state.Healthy || status.Since.After(state.FailedAt)
			case stdio.Waiting, stdio.Stopped, stdio.Silent:
				down = true
			}
			if status.LastError != "" && status.FailedAt.After(failed.FailedAt) {
				failed = status
			}
		}
	}
	if failed.LastError != "" && (state.LastError == "" || state.Healthy) {
		state.LastError, state.FailedAt, state.Tried = failed.LastError, failed.FailedAt, ""
	}
	switch {
	case running:
		state.Known, state.Healthy, state.Failures = true, true, 0
	case down:
		state.Known, state.Healthy = true, false
	}
	return state
}

// Interface guard
var _ caddy.Destructor = (*healthRecord)(nil)
