package mcpgateway

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/backoff"
)

// Values of start.
const (
	startLazy  = "lazy"  // start a server when a client needs it
	startEager = "eager" // start a server when the configuration runs
)

// maxStarting limits how many servers start at the same time. Each may be a program that is
// downloaded first.
const maxStarting = 4

// startPause is the pause before a failed start is retried.
var startPause = backoff.Exponential{First: time.Second, Max: 30 * time.Second}

// A starter starts the eager servers of a gateway.
type starter struct {
	cancel  context.CancelFunc
	running sync.WaitGroup
	slots   chan struct{} // semaphore of maxStarting
	keys    []string      // keys in startRecords
}

// A startRecord records whether an eager server has been started. It outlives reloads that do not
// change the server.
type startRecord struct{ done atomic.Bool }

// startRecords are the records in use, by gateway and server.
var startRecords = caddy.NewUsagePool()

// Destruct implements caddy.Destructor.
func (*startRecord) Destruct() error { return nil }

// startServers starts the eager servers in the background. It is called when the configuration has
// started, because validation must not start anything.
func (h *Handler) startServers() {
	if h.starter != nil {
		return
	}
	ctx, cancel := context.WithCancel(h.exiting)
	h.starter = &starter{cancel: cancel, slots: make(chan struct{}, maxStarting)}
	for _, s := range h.Servers {
		if s.Start != startEager {
			continue
		}
		key := h.reloadKey() + "\x00" + s.id
		value, _, _ := startRecords.LoadOrNew(key, func() (caddy.Destructor, error) { return new(startRecord), nil })
		h.starter.keys = append(h.starter.keys, key)
		record := value.(*startRecord)
		if record.done.Load() && len(s.upstreams.children) == 0 {
			continue
		}
		h.starter.running.Go(func() { h.startServer(ctx, s, record) })
	}
}

// stopStarting stops startServers and waits for it.
func (h *Handler) stopStarting() {
	if h.starter == nil {
		return
	}
	h.starter.cancel()
	h.starter.running.Wait()
	for _, key := range h.starter.keys {
		_, _ = startRecords.Delete(key)
	}
	h.starter = nil
}

// startServer tries to start a server until it succeeds or ctx is done.
func (h *Handler) startServer(ctx context.Context, s *Server, record *startRecord) {
	for failures := 0; ctx.Err() == nil; failures++ {
		select {
		case h.starter.slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		began := time.Now()
		err := h.tryStart(ctx, s)
		<-h.starter.slots
		if err == nil {
			record.done.Store(true)
			if len(s.upstreams.children) == 0 { // child processes log their start themselves
				h.logger.Info("MCP server is up", zap.String("mcp_server", s.Name), zap.Duration("duration", time.Since(began)))
			}
			return
		}
		if record := s.health.Load(); record != nil && len(s.upstreams.children) > 0 && ctx.Err() == nil {
			record.failed(h.logger, s.server.FaultOf(err, "initialize"))
		}
		if !backoff.Sleep(ctx, startPause.Pause(failures)) {
			return
		}
	}
}

// tryStart starts the child processes of a server, or connects to an HTTP server. It fails if that
// takes longer than join_timeout, but a child process continues to start.
func (h *Handler) tryStart(ctx context.Context, s *Server) error {
	if len(s.upstreams.children) > 0 {
		return s.upstreams.startChildren(ctx, time.Duration(h.JoinTimeout))
	}
	o := h.gateway.NewOperator(operatorRequest(ctx), "")
	o.Patience = time.Duration(h.JoinTimeout)
	if failure := o.Check(s.Name).Failure; failure != nil && failure.Data.Symbol != "login_required" {
		return failure
	}
	return nil
}

// startChildren starts the child processes in order, and waits up to timeout for each.
func (u *upstreams) startChildren(ctx context.Context, timeout time.Duration) error {
	var failures []error
	for _, c := range u.children {
		waiting, cancel := context.WithTimeout(ctx, timeout)
		if err := c.transport.Start(waiting, c.host); err != nil {
			failures = append(failures, err)
		}
		cancel()
	}
	return errors.Join(failures...)
}

func validateStart(start string) error {
	if start != "" && start != startLazy && start != startEager {
		return fmt.Errorf("start: %q must be eager or lazy", start)
	}
	return nil
}

// Interface guard
var _ caddy.Destructor = (*startRecord)(nil)
