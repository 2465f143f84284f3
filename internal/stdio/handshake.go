package stdio

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// A handshake is the result of initialize or server/discover.
type handshake struct {
	answer *jsonrpc.Message
	// Protocol version, as a range of the result.
	version jsonspan.Value
	// Kinds of lists that the server has.
	lists []string
}

var (
	handshakePaths = jsonspan.CompilePaths(
		"protocolVersion", "capabilities.tools", "capabilities.prompts", "capabilities.resources")
	lists = [...]string{"", "tools", "prompts", "resources"}
)

func (h *handshake) read(answer *jsonrpc.Message) {
	h.answer = answer
	_ = handshakePaths.Find(answer.Literal(jsonrpc.Result), func(path int, v jsonspan.Value) {
		if path == 0 {
			h.version = v
		} else {
			h.lists = append(h.lists, lists[path])
		}
	})
}

// A handshaker does the handshake with a child that was just started.
type handshaker struct {
	server *server
	child  *child

	// Set if a child that was started for modern clients is initialized.
	group       *group // its clients if it is a legacy child
	initialized <-chan requestResult
}

// run does the handshake. If it fails, the child has ended when it returns.
func (h *handshaker) run() error {
	s, c := h.server, h.child
	ctx, cancel := context.WithTimeout(context.Background(), s.pool.config.StartTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, c.terminate)
	defer stop()
	go func() {
		select {
		case <-s.stopped:
			cancel()
		case <-ctx.Done():
		}
	}()
	begin := h.initialize
	if s.address.era == mcp.Modern {
		begin = h.discoverEra
	}
	if err := begin(ctx); err != nil {
		// The reader of stdout may not have noticed yet that the process has ended.
		done, died := ctx.Err(), c.hasExited()
		c.kill()
		err = h.failure(err, done, died)
		if s.address.era == mcp.Modern && died {
			err = h.noteEraFailure(err)
		}
		return err
	}
	if !stop() {
		<-c.exited
		return errStopped
	}
	return nil
}

// failure returns why the handshake failed. The child has ended since. died says that it ended by
// itself.
func (h *handshaker) failure(err, ctxErr error, died bool) error {
	c := h.child
	if errors.Is(err, errLegacyOnly) {
		return err
	}
	if ctxErr == context.DeadlineExceeded {
		err = fmt.Errorf("not initialized within %s, its start_timeout", h.server.pool.config.StartTimeout)
		return c.explain(err, jsonrpc.CauseNotStarted)
	}
	if failed, ok := errors.AsType[*handshakeError](err); ok && died && ctxErr == nil {
		return c.explain(c.exitDuring(failed.method), jsonrpc.CauseExited)
	}
	return c.explain(err, jsonrpc.CauseNotStarted)
}

// noteEraFailure handles a child that ended when it got server/discover. Legacy servers may do so
// before they are initialized, but any server may fail once.
func (h *handshaker) noteEraFailure(err error) error {
	h.server.eraFailures++
	if h.server.eraFailures > 1 {
		return errLegacyOnly
	}
	return fmt.Errorf("%w (%w)", err, errAskLegacy)
}

// initialize initializes a legacy child. A child of a single session gets the params of its client,
// a shared one the capabilities of its group.
func (h *handshaker) initialize(ctx context.Context) error {
	params := h.params(h.server.address.group)
	if owner := h.server.owner; owner != nil {
		params = owner.initializeParams
	}
	answer, err := h.child.request(ctx, "initialize", params)
	return h.finish(ctx, answer, err)
}

// params returns the params of initialize for a child of a group, or nil without a group. Roots are
// among the capabilities only if some are configured, or if there is a single client.
func (h *handshaker) params(g *group) []byte {
	if g == nil {
		return nil
	}
	can := []byte(g.capabilities)
	if h.server.hasRoots() && !mcp.AcceptsServerRequest(can, rootsList) {
		can = jsonspan.Spliced(can, jsonspan.Insert(can, []byte(`"roots":{}`)))
	}
	return fmt.Appendf(nil, `{"protocolVersion":"%s","capabilities":%s,"clientInfo":%s}`, mcp.Latest, can, clientInfo)
}

// finish handles the response to initialize.
func (h *handshaker) finish(ctx context.Context, answer *jsonrpc.Message, err error) error {
	if err != nil {
		return &handshakeError{"initialize", err}
	}
	c := h.child
	c.handshake.answer = answer
	if answer.Has(jsonrpc.ErrorCode) {
		// A server that supports only the modern era has no handshake and needs none. If the
		// params came from a client, the error is for that client.
		if answer.ErrorNumber() == jsonrpc.CodeMethodNotFound || answer.IsUnsupportedVersion() || h.server.owner != nil {
			return nil
		}
		return &refusedError{answer}
	}
	c.handshake.read(answer)
	if c.handshake.version.Kind != jsonspan.String {
		return errors.New("initialize: the result has no protocolVersion")
	}
	if err := c.input.send(ctx, jsonrpc.Notification("notifications/initialized", nil)); err != nil {
		return &handshakeError{"initialize", err}
	}
	return nil
}

// A handshakeError says why a request of the handshake has no response.
type handshakeError struct {
	method string
	err    error
}

func (e *handshakeError) Error() string { return e.method + ": " + e.err.Error() }
func (e *handshakeError) Unwrap() error { return e.err }

// A refusedError is an error response to initialize.
type refusedError struct{ answer *jsonrpc.Message }

func (e *refusedError) Error() string {
	return "initialize: " + string(e.answer.Literal(jsonrpc.Error))
}

// discoverTime is how long a child may take to answer server/discover. After it the child is
// initialized as well, because legacy servers may not answer unknown methods.
const discoverTime = 5 * time.Second

// discoverEra finds out the era of a child that was started for modern clients. The modern era
// has no handshake. A legacy child is initialized, and serves the clients of its group.
func (h *handshaker) discoverEra(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	discovered := h.request(ctx, "server/discover", []byte("{"+modernMeta+"}"))
	silent := time.NewTimer(h.server.pool.discoverTime)
	defer silent.Stop()
	for {
		select {
		case answer := <-discovered:
			switch {
			case answer.err != nil:
				return &handshakeError{"server/discover", answer.err}
			case answer.message.Has(jsonrpc.Result):
				h.child.handshake.read(answer.message)
				return nil
			}
			discovered = nil
			if err := h.tryLegacy(ctx); err != nil {
				return err
			}
		case <-silent.C:
			if err := h.tryLegacy(ctx); err != nil {
				return err
			}
		case answer := <-h.initialized:
			if answer.err == nil && !h.server.becomeLegacy(h.group) {
				return errLegacyOnly
			}
			return h.finish(ctx, answer.message, answer.err)
		}
	}
}

// tryLegacy begins to initialize the child, unless it has done so, or the clients for which it
// would be initialized have another one.
func (h *handshaker) tryLegacy(ctx context.Context) error {
	if h.group != nil {
		return nil
	}
	h.group = h.legacyGroup()
	if h.server.pool.hasServer(address{h.server.address.host, mcp.Legacy, h.group}) {
		return errLegacyOnly
	}
	h.initialized = h.request(ctx, "initialize", h.params(h.group))
	return nil
}

// legacyGroup returns the group of the requester, for a child of the legacy era.
func (h *handshaker) legacyGroup() *group {
	s := h.server
	s.mu.Lock()
	r := s.requester
	s.mu.Unlock()
	if r == nil {
		r = new(requester)
	}
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	return s.pool.groups.of(s.name, r.capabilities, r.owner)
}

// A requestResult is the response to a request of the pool itself.
type requestResult struct {
	message *jsonrpc.Message
	err     error
}

// request makes a request in a goroutine.
func (h *handshaker) request(ctx context.Context, method string, params []byte) <-chan requestResult {
	answer := make(chan requestResult, 1)
	h.server.pool.running.Go(func() {
		message, err := h.child.request(ctx, method, params)
		answer <- requestResult{message, err}
	})
	return answer
}

// A requester is the client for which a child of unknown era is started.
type requester struct {
	capabilities []byte
	owner        string
}

// noteRequester notes for which client the first child of a server is started.
func (s *server) noteRequester(capabilities []byte, owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.requester == nil {
		s.requester = &requester{slices.Clone(capabilities), owner}
	}
}

// isStartingFor reports whether the first child is starting for a client with these
// capabilities. If no client has requested it yet, this one becomes its requester.
func (s *server) isStartingFor(capabilities []byte, owner string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.child != nil || s.starting == nil || s.wasReady {
		return false
	}
	if s.requester == nil {
		s.requester = &requester{slices.Clone(capabilities), owner}
	}
	return bytes.Equal(s.requester.capabilities, capabilities)
}

// becomeLegacy moves the server to a group of legacy clients, because its child does not
// support the modern era. It reports false if the group already has a server.
func (s *server) becomeLegacy(g *group) bool {
	p := s.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	modern, legacy := s.address, address{s.address.host, mcp.Legacy, g}
	if p.closed || p.servers[modern] != s || p.servers[legacy] != nil || p.groups.byKey[g.groupKey] != g {
		return false
	}
	other := newServer(p, modern, nil)
	other.err = errLegacyOnly
	p.servers[modern], p.servers[legacy] = other, s
	s.mu.Lock()
	defer s.mu.Unlock()
	s.address.era, s.address.group, s.requester = mcp.Legacy, g, nil
	return true
}

// awaitEra waits while the first child at a host is starting and its era is unknown. The client may
// be able to use that child and then needs no other.
func (s *session) awaitEra(ctx context.Context, host string) {
	s.pool.mu.Lock()
	first := s.pool.servers[address{host: host, era: mcp.Modern}]
	s.pool.mu.Unlock()
	if first != nil && first.isStartingFor(s.capabilities, s.owner) {
		_, _ = first.ready(ctx) // if it fails, another child is started
	}
}
