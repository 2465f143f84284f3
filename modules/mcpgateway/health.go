package mcpgateway

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A health tries the servers of a gateway.
type health struct {
	interval, timeout time.Duration
	logger            *zap.Logger

	cancel  context.CancelFunc
	running sync.WaitGroup
}

// startHealth begins to check the servers, each again and again. It is called once the
// configuration runs: validation must not dial.
func (h *Handler) startHealth() {
	if h.HealthInterval <= 0 || h.health != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	h.health = &health{interval: time.Duration(h.HealthInterval), timeout: time.Duration(h.HealthTimeout), logger: h.logger, cancel: cancel}
	h.openRecords()
	checks := h.health
	for _, s := range h.Servers {
		record := s.health.Load()
		h.health.running.Go(func() { checks.watch(ctx, s, record) })
	}
}

// stopHealth ends what startHealth has begun, and waits for it.
func (h *Handler) stopHealth() {
	if h.health == nil {
		return
	}
	h.health.cancel()
	h.health.running.Wait()
	h.health = nil
}

// watch tries a server until ctx ends: at first soon, then every interval, give or take
// a tenth, lest all are tried at the same moment.
func (h *health) watch(ctx context.Context, s *Server, record *healthRecord) {
	interval := h.interval
	timer := time.NewTimer(rand.N(interval/10 + 1))
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		h.try(ctx, s, record)
		timer.Reset(interval - interval/10 + rand.N(interval/5+1))
	}
}

// try finds out whether a server answers, unless another configuration does so just now.
func (h *health) try(ctx context.Context, s *Server, record *healthRecord) {
	if !record.trying.TryLock() {
		return
	}
	defer record.trying.Unlock()
	timeout := h.timeout
	trial, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	asked, err := s.answers(trial)
	if !asked || ctx.Err() != nil {
		return
	}
	if err != nil && trial.Err() != nil {
		err = fmt.Errorf("no answer within %s", timeout)
	}
	switch {
	case err == nil:
		record.answered(h.logger)
	case errors.Is(err, errRefused):
		record.refused(h.logger)
	default:
		record.failed(h.logger, s.server.FaultOf(err, "ping"))
	}
}

// allChecked reports whether reverse_proxy checks all there is.
func (u *upstreams) allChecked() bool {
	return len(u.checked) > 0 && len(u.checked) == len(u.proxied) && len(u.children) == 0
}

// anyHealthy reports whether one of the upstreams is healthy that reverse_proxy checks.
func (u *upstreams) anyHealthy() bool {
	for _, upstream := range u.checked {
		if upstream.Healthy() {
			return true
		}
	}
	return false
}

var (
	errNoUpstream = errors.New("the health checks of reverse_proxy find no upstream healthy")
	errRefused    = errors.New("the ping is refused")
)

// answers finds out whether a server answers. One of several upstreams is enough. It was
// not asked if it is a child that nobody has needed yet.
func (s *Server) answers(ctx context.Context) (asked bool, err error) {
	switch {
	case len(s.upstreams.children) > 0:
		return s.upstreams.childrenAnswer(ctx)
	case !s.upstreams.allChecked():
		return true, s.ping(ctx)
	case !s.upstreams.anyHealthy():
		return true, errNoUpstream
	}
	return true, nil
}

func (u *upstreams) childrenAnswer(ctx context.Context) (asked bool, err error) {
	var (
		mu       sync.Mutex
		alive    bool
		failures []error
		checks   sync.WaitGroup
	)
	for _, c := range u.children {
		checks.Go(func() {
			tried, err := c.transport.Check(ctx, c.host)
			mu.Lock()
			defer mu.Unlock()
			asked = asked || tried
			alive = alive || tried && err == nil
			if err != nil {
				failures = append(failures, err)
			}
		})
	}
	checks.Wait()
	if alive {
		return asked, nil
	}
	return asked, errors.Join(failures...)
}

// ping has the routes of the server answer a message. Any JSON-RPC answer will do, also that there
// is no session, and so will success without one. A refusal is errRefused: a server that wants
// credentials, or GET as the old HTTP+SSE transport, reads requests.
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
	w := newPong(func() { end.Reset(pongLinger) })
	r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, new(caddyhttp.Server))
	if err = s.server.Probe(w, r); err == nil {
		w.WriteHeader(http.StatusOK) // a handler that writes nothing means that
	}
	_ = w.Close() // what cannot be read is no answer
	failure, _ := errors.AsType[*jsonrpc.Failure](err)
	switch {
	case w.answered:
		return nil
	case failure != nil && strings.HasPrefix(failure.Data.Symbol, "login_"):
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil && w.Status()/100 == 4:
		return errRefused
	case err == nil && w.Status()/100 != 2:
		return upstream.WrongAnswer(w.Status(), w.Header().Get("Content-Type"))
	}
	return err
}

const (
	// maxPong is how much is read of an answer to a ping.
	maxPong = 64 << 10
	// pongLinger is how long a stream may go on after the answer. Most servers end it, and
	// reverse_proxy warns of each stream that the gateway ends.
	pongLinger = time.Second
)

// A pong is the answer to a ping.
type pong struct {
	streamable.Reader
	answered bool
}

// newPong returns a pong that calls done when the answer has come.
func newPong(done func()) *pong {
	p := new(pong)
	p.Limit = maxPong
	p.OnMessage = func(e *streamable.Event) error {
		if e.Message.Has(jsonrpc.Version) && !p.answered {
			p.answered = true
			done()
		}
		return nil
	}
	return p
}

// Write takes the answer. A server that sends more than is read is alive, too.
func (p *pong) Write(b []byte) (int, error) {
	_, _ = p.Reader.Write(b)
	return len(b), nil
}

// Interface guard
var _ http.ResponseWriter = (*pong)(nil)
