package stdio

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// discoverTime is how long a child may take to answer server/discover. After it the child is
// initialized as well, because legacy servers may not answer unknown methods.
const discoverTime = 5 * time.Second

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

// awaitEra waits while the first child at a host is starting and its era is unknown. A legacy
// client with these capabilities may be able to use that child and then needs no other.
func (p *Pool) awaitEra(ctx context.Context, host string, capabilities []byte, owner string) {
	p.mu.Lock()
	first := p.servers[address{host: host, era: mcp.Modern}]
	p.mu.Unlock()
	if first != nil && first.isStartingFor(capabilities, owner) {
		_, _ = first.ready(ctx) // if it fails, another child is started
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

// legacyGroup returns the group of the requester, for a child of the legacy era.
func (s *server) legacyGroup() *group {
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

// requestAsync makes a request in a goroutine.
func (c *child) requestAsync(ctx context.Context, method string, params []byte) <-chan requestResult {
	answer := make(chan requestResult, 1)
	c.server.pool.running.Go(func() {
		message, err := c.request(ctx, method, params)
		answer <- requestResult{message, err}
	})
	return answer
}

// discoverEra finds out the era of a child that was started for modern clients. The modern era
// has no handshake. A legacy child is initialized, and serves the clients of its group.
func (c *child) discoverEra(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	discovered := c.requestAsync(ctx, "server/discover", []byte("{"+modernMeta+"}"))
	silent := time.NewTimer(c.server.pool.discoverTime)
	defer silent.Stop()
	var (
		group       *group
		initialized <-chan requestResult
	)
	initialize := func() error {
		if group != nil {
			return nil
		}
		group = c.server.legacyGroup()
		if c.server.pool.hasServer(address{c.server.address.host, mcp.Legacy, group}) {
			return errLegacyOnly
		}
		initialized = c.requestAsync(ctx, "initialize", c.initializeParams(group))
		return nil
	}
	for {
		select {
		case answer := <-discovered:
			switch {
			case answer.err != nil:
				return &handshakeError{"server/discover", answer.err}
			case answer.message.Has(jsonrpc.Result):
				c.handshake.read(answer.message)
				return nil
			}
			discovered = nil
			if err := initialize(); err != nil {
				return err
			}
		case <-silent.C:
			if err := initialize(); err != nil {
				return err
			}
		case answer := <-initialized:
			if answer.err == nil && !c.server.becomeLegacy(group) {
				return errLegacyOnly
			}
			return c.handleInitialized(ctx, answer.message, answer.err)
		}
	}
}

// hasServer reports whether there is a server at an address.
func (p *Pool) hasServer(a address) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.servers[a] != nil
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
