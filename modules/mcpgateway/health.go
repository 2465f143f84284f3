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
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/stdio"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
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

// Interface guard
var _ http.ResponseWriter = (*pingResponse)(nil)
