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

// A healthRecord is the known health of a server, from client requests and from health checks. It
// outlives reloads that do not change the server.
type healthRecord struct {
	server      string
	hasChildren bool        // the server has child processes, which set the gauge themselves
	checking    sync.Mutex  // held during a health check
	isHealthy   atomic.Bool // state.Healthy, and no call has failed since the last response

	mu          sync.Mutex
	state       healthState
	failedCalls int // consecutive failed calls while healthy
	logged      loggedFault
	items       map[string]int // number of tools, prompts and resources, as far as known
	hasGauge    bool           // the gauge is set
	closed      bool
}

// healthRecords are the records in use, by gateway and server.
var healthRecords = caddy.NewUsagePool()

// Destruct implements caddy.Destructor. It deletes the gauge, and sets it again if a server of the
// same name is in use.
func (r *healthRecord) Destruct() error {
	r.mu.Lock()
	r.closed = true
	hadGauge := r.hasGauge
	r.mu.Unlock()
	if !hadGauge {
		return nil
	}
	mcpstdio.Healthy().DeleteLabelValues(r.server)
	healthRecords.Range(func(_, value any) bool {
		if other := value.(*healthRecord); other.server == r.server {
			other.mu.Lock()
			defer other.mu.Unlock()
			if other.hasGauge {
				other.setGauge()
			}
		}
		return true
	})
	return nil
}

// A healthState says whether a server responds.
type healthState struct {
	Known     bool // the server has been contacted
	Healthy   bool
	Doubtful  bool          // unhealthy, but only because consecutive calls timed out
	LastError string        // error of the last failure
	FailedAt  time.Time     // time of the last failure
	Tried     string        // method of the last failure
	Path      string        // path of the last failure
	Cause     jsonrpc.Cause // kind of the last failure
	Since     time.Time     // time when Healthy last changed
	Failures  int           // consecutive failures
}

// name returns the state for the admin API.
func (s healthState) name() string {
	switch {
	case !s.Known:
		return adminapi.StateUnknown
	case s.Healthy:
		return adminapi.StateHealthy
	}
	return adminapi.StateUnhealthy
}

// serverHealth is the use of a healthRecord by a server. The pointer is nil until it is open, and
// remains when it is closed.
type serverHealth struct {
	atomic.Pointer[healthRecord]
	key string // in healthRecords; empty unless open
}

// open acquires the record of a server.
func (h *serverHealth) open(gateway string, s *Server) {
	h.key = gateway + "\x00" + s.id
	value, _ := healthRecords.LoadOrStore(h.key,
		&healthRecord{server: s.Name, hasChildren: len(s.upstreams.children) > 0})
	h.Store(value.(*healthRecord))
}

// close releases the record.
func (h *serverHealth) close() {
	if h.key != "" {
		_, _ = healthRecords.Delete(h.key)
		h.key = ""
	}
}

// maxFailedCalls is how many consecutive calls may fail before a server counts as unhealthy,
// because a single tool may be slow or broken.
const maxFailedCalls = 1

// failed records that the server did not respond.
func (r *healthRecord) failed(log *zap.Logger, f *upstream.Fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	healthy := r.state.Known && r.state.Healthy
	switch {
	case healthy && f.Certainty == upstream.Weak:
		return
	case healthy && f.Certainty == upstream.Doubtful:
		r.isHealthy.Store(false)
		r.failedCalls++
		if r.failedCalls <= maxFailedCalls {
			if due, repeated := r.logged.shouldLog(f.Reason, time.Now()); due {
				log.Warn("MCP server did not respond to a request", faultFields(f, repeated)...)
			}
			return
		}
	}
	now := time.Now()
	s := &r.state
	if !s.Known || s.Healthy {
		s.Known, s.Healthy, s.Doubtful, s.Since = true, false, true, now
		r.logged = loggedFault{}
		r.isHealthy.Store(false)
		r.setGauge()
	}
	s.Doubtful = s.Doubtful && f.Certainty == upstream.Doubtful
	s.Failures++
	s.LastError, s.FailedAt, s.Tried, s.Path, s.Cause = f.Reason, now, f.Tried, f.Path, f.Cause
	if due, repeated := r.logged.shouldLog(f.Reason, now); due {
		log.Error("MCP server is unavailable", faultFields(f, repeated)...)
	}
}

// succeeded records that the server responded.
func (r *healthRecord) succeeded(log *zap.Logger) {
	if r.isHealthy.Load() {
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
		r.setGauge()
	}
	r.failedCalls = 0
	r.isHealthy.Store(true)
}

// pingRefused records that the server refused a ping. It reads requests, so it is healthy, unless
// it also refuses the requests of clients.
func (r *healthRecord) pingRefused(log *zap.Logger) {
	r.mu.Lock()
	s := r.state
	r.mu.Unlock()
	refusesClients := s.Known && !s.Healthy && s.Cause.IsHTTP()
	if !refusesClients {
		r.succeeded(log)
	}
}

// listed records how many items of a kind the server has.
func (r *healthRecord) listed(log *zap.Logger, kind string, items int) {
	r.succeeded(log)
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

// count returns the number of items of a kind, or nil if it is unknown.
func (r *healthRecord) count(kind string) *int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n, known := r.items[kind]; known {
		return &n
	}
	return nil
}

func (r *healthRecord) current() healthState {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state
}

// setGauge sets the gauge, unless the server has child processes, which set it themselves. The
// caller holds r.mu.
func (r *healthRecord) setGauge() {
	if r.hasChildren || r.closed {
		return
	}
	r.hasGauge = true
	value := 0.0
	if r.state.Healthy {
		value = 1
	}
	mcpstdio.Healthy().WithLabelValues(r.server).Set(value)
}

// A loggedFault limits how often the same failure is logged.
type loggedFault struct {
	reason    string
	notBefore time.Time     // the failure is not logged again before this time
	pause     time.Duration // current pause between log lines
	repeated  int           // failures not logged since the last log line
}

// First and maximum pause before the same failure is logged again.
const firstLogPause, maxLogPause = time.Minute, time.Hour

// shouldLog reports whether a log line about a failure is due, and how many failures were not
// logged since the last line.
func (l *loggedFault) shouldLog(reason string, now time.Time) (due bool, repeated int) {
	if reason != l.reason {
		*l = loggedFault{reason: reason, pause: firstLogPause, notBefore: now.Add(firstLogPause)}
		return true, 0
	}
	if now.Before(l.notBefore) {
		l.repeated++
		return false, 0
	}
	repeated = l.repeated
	l.pause = min(2*l.pause, maxLogPause)
	l.notBefore, l.repeated = now.Add(l.pause), 0
	return true, repeated
}

// faultFields returns the log fields of a fault.
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

// healthState returns the health of a server: from requests and health checks, from the state of
// its child processes, or from the health checks of reverse_proxy.
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

// childState combines the state known from requests with the state of the child processes. A child
// that was started after the last failure counts as healthy.
func (u *upstreams) childState(state healthState) healthState {
	running, down := false, false
	var failed stdio.Status // the latest failure
	for _, c := range u.children {
		for _, status := range c.pool.Status(c.host) {
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
