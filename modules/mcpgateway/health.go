package mcpgateway

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/stdio"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstdio"
)

// A healthChecker runs the health checks of a gateway.
type healthChecker struct {
	interval, timeout time.Duration
	logger            *zap.Logger

	cancel  context.CancelFunc // nil unless running
	running sync.WaitGroup
}

// start starts to check servers periodically, if an interval is set. It is called when the
// configuration has started, because validation must not dial.
func (h *healthChecker) start(servers []*Server) {
	if h.interval <= 0 || h.cancel != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	h.cancel = cancel
	for _, s := range servers {
		record := s.health.Load()
		h.running.Go(func() { h.watch(ctx, s, record) })
	}
}

// stop stops the health checks and waits for them. h may be nil.
func (h *healthChecker) stop() {
	if h == nil || h.cancel == nil {
		return
	}
	h.cancel()
	h.running.Wait()
	h.cancel = nil
}

// watch checks a server until ctx is done: first soon, then at every interval. A jitter of 10%
// spreads the checks of all servers.
func (h *healthChecker) watch(ctx context.Context, s *Server, record *healthRecord) {
	interval := h.interval
	timer := time.NewTimer(rand.N(interval/10 + 1))
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		h.checkOnce(ctx, s, record)
		timer.Reset(interval - interval/10 + rand.N(interval/5+1))
	}
}

// checkOnce checks a server once, unless another configuration is checking it.
func (h *healthChecker) checkOnce(ctx context.Context, s *Server, record *healthRecord) {
	if !record.checking.TryLock() {
		return
	}
	defer record.checking.Unlock()
	timeout := h.timeout
	trial, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	attempted, err := s.checkAlive(trial)
	if !attempted || ctx.Err() != nil {
		return
	}
	if err != nil && trial.Err() != nil {
		err = fmt.Errorf("no response within %s", timeout)
	}
	switch {
	case err == nil:
		record.succeeded(h.logger)
	case errors.Is(err, errRefused):
		record.pingRefused(h.logger)
	default:
		record.failed(h.logger, s.server.FaultOf(err, "ping"))
	}
}

// allChecked reports whether reverse_proxy checks the health of all upstreams.
func (u *upstreams) allChecked() bool {
	return len(u.checked) > 0 && len(u.checked) == len(u.proxied) && len(u.children) == 0
}

// anyHealthy reports whether reverse_proxy finds any upstream healthy.
func (u *upstreams) anyHealthy() bool {
	return slices.ContainsFunc(u.checked, (*reverseproxy.Upstream).Healthy)
}

var (
	errNoUpstream = errors.New("the health checks of reverse_proxy find no healthy upstream")
	errRefused    = errors.New("ping refused")
)

// checkAlive checks whether any upstream of the server responds. attempted is false if the server
// is a child process that has not been started yet.
func (s *Server) checkAlive(ctx context.Context) (attempted bool, err error) {
	switch {
	case len(s.upstreams.children) > 0:
		return s.upstreams.checkChildren(ctx)
	case !s.upstreams.allChecked():
		return true, s.ping(ctx)
	case !s.upstreams.anyHealthy():
		return true, errNoUpstream
	}
	return true, nil
}

func (u *upstreams) checkChildren(ctx context.Context) (attempted bool, err error) {
	var (
		mu       sync.Mutex
		alive    bool
		failures []error
		checks   sync.WaitGroup
	)
	for _, c := range u.children {
		checks.Go(func() {
			childAttempted, err := c.pool.CheckStarted(ctx, c.host)
			mu.Lock()
			defer mu.Unlock()
			attempted = attempted || childAttempted
			alive = alive || childAttempted && err == nil
			if err != nil {
				failures = append(failures, err)
			}
		})
	}
	checks.Wait()
	if alive {
		return attempted, nil
	}
	return attempted, errors.Join(failures...)
}

// ping sends a message through the routes of the server. Any JSON-RPC response shows that the
// server is alive, even an error about a missing session, and so does a success without a body. For
// a status of 4xx, ping returns errRefused: a server that requires credentials, or GET as in the
// HTTP+SSE transport, does read requests.
func (s *Server) ping(ctx context.Context) error {
	answered, cancel := context.WithCancel(ctx)
	defer cancel()
	end := time.AfterFunc(math.MaxInt64, cancel)
	defer end.Stop()
	r, err := http.NewRequestWithContext(answered, http.MethodPost, "http://localhost", nil)
	if err != nil {
		return err
	}
	r.Header.Set("Accept", "application/json, text/event-stream")
	w := newPingResponse(func() { end.Reset(pingLinger) })
	r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, new(caddyhttp.Server))
	if err = s.server.Probe(w, r); err == nil {
		w.WriteHeader(http.StatusOK) // the status of a handler that writes nothing
	}
	_ = w.Close() // an unreadable response does not count
	failure, _ := errors.AsType[*jsonrpc.Failure](err)
	switch {
	case w.responded:
		return nil
	case failure != nil && strings.HasPrefix(failure.Data.Symbol, "login_"):
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil && w.Status()/100 == 4:
		return errRefused
	case err == nil && w.Status()/100 != 2:
		return upstream.UnexpectedResponse(w.Status(), w.Header().Get("Content-Type"))
	}
	return err
}

const (
	// maxPingResponse limits how many bytes of a response are read.
	maxPingResponse = 64 << 10
	// pingLinger is how long a stream may stay open after the response. Most servers close it,
	// and reverse_proxy warns of each stream that the gateway closes.
	pingLinger = time.Second
)

// A pingResponse receives the response to a ping.
type pingResponse struct {
	streamable.Reader
	responded bool
}

// newPingResponse returns a pingResponse that calls done at the first response.
func newPingResponse(done func()) *pingResponse {
	p := new(pingResponse)
	p.Limit = maxPingResponse
	p.OnMessage = func(e *streamable.Event) error {
		if e.Message.Has(jsonrpc.Version) && !p.responded {
			p.responded = true
			done()
		}
		return nil
	}
	return p
}

// Write reads the response and ignores errors: a server that sends more than maxPingResponse is
// alive.
func (p *pingResponse) Write(b []byte) (int, error) {
	_, _ = p.Reader.Write(b)
	return len(b), nil
}

// healthSegment is the path of health probes below mcp_path. No server can have this name.
const healthSegment = "health"

// A readinessReport is the response to a probe. It has no error messages, because it needs no
// credentials.
type readinessReport struct {
	Status  string            `json:"status"`
	Servers map[string]string `json:"servers,omitempty"` // states of servers that are down
}

// serveReadiness responds to probes with whether all servers that are not optional are up. It
// contacts no server.
func (h *Handler) serveReadiness(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		w.WriteHeader(http.StatusMethodNotAllowed)
		return nil
	}
	if failure := h.originPolicy().AdmitProbe(r); failure != nil {
		return writeJSON(w, failure.Status, readinessReport{Status: failure.Message})
	}
	down := map[string]string{}
	for _, s := range h.Servers {
		if word, up := s.readiness(); !up && !s.Optional {
			down[s.Name] = word
		}
	}
	if len(down) > 0 {
		return writeJSON(w, http.StatusServiceUnavailable, readinessReport{"not ready", down})
	}
	return writeJSON(w, http.StatusOK, readinessReport{Status: "ready"})
}

// readiness returns the state of a server, and whether it is up. It is up if its last request or
// check succeeded. A server that has not been used yet is idle and counts as up, because a probe
// must not start it.
func (s *Server) readiness() (word string, up bool) {
	if len(s.upstreams.children) > 0 {
		return s.upstreams.childrenReadiness()
	}
	switch state := s.healthState(); {
	case !state.Known:
		return string(stdio.Idle), true
	default:
		// Calls that time out do not count: clients choose what they call, and while load balancers
		// send no requests, no call could succeed again.
		return state.name(), state.Healthy || state.Doubtful
	}
}

// childrenReadiness is readiness for a server with child processes. It is up if one of them runs.
// Processes of single sessions do not count.
func (u *upstreams) childrenReadiness() (word string, up bool) {
	word, up = string(stdio.Idle), true
	for _, child := range u.children {
		for _, status := range child.pool.Status(child.host) {
			switch {
			case status.Session, status.State == stdio.Idle:
			case status.State == stdio.Running:
				return string(status.State), true
			default:
				word, up = string(status.State), false
			}
		}
	}
	return word, up
}

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

// Interface guards
var (
	_ http.ResponseWriter = (*pingResponse)(nil)
	_ caddy.Destructor    = (*healthRecord)(nil)
)
