package stdio

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// silentTime is how long a child may take to say whether it knows the modern era. Then it is initialized, too:
// servers of the legacy era may not answer what they do not know.
const silentTime = 5 * time.Second

// An asker is a client of the modern era that needs a child.
type asker struct {
	capabilities []byte
	owner        string
}

// noteAsker notes for whom the first child of a server is started.
func (s *server) noteAsker(capabilities []byte, owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asker == nil {
		s.asker = &asker{slices.Clone(capabilities), owner}
	}
}

// awaitEra waits while the first child at a host is being started and it is not known which era it speaks: that child may
// be the one of a client of the legacy era with these capabilities, which then needs no other.
func (p *Pool) awaitEra(ctx context.Context, host string, capabilities []byte, owner string) {
	p.mu.Lock()
	first := p.servers[address{host: host, era: mcp.Modern}]
	p.mu.Unlock()
	if first != nil && first.isFor(capabilities, owner) {
		_, _ = first.ready(ctx) // if it fails, another child is started
	}
}

// isFor reports whether the first child, which is being started, is for a client with these capabilities. It is if no
// other client has asked for it.
func (s *server) isFor(capabilities []byte, owner string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.child != nil || s.starting == nil || s.worked {
		return false
	}
	if s.asker == nil {
		s.asker = &asker{slices.Clone(capabilities), owner}
	}
	return bytes.Equal(s.asker.capabilities, capabilities)
}

// legacyGroup returns the group of the client for which a child was started, if the child is of the legacy era.
func (s *server) legacyGroup() *group {
	s.mu.Lock()
	of := s.asker
	s.mu.Unlock()
	if of == nil {
		of = new(asker)
	}
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	return s.pool.group(s.name, of.capabilities, of.owner)
}

// An answered is the answer to a request of our own.
type answered struct {
	message *jsonrpc.Message
	err     error
}

// requestBeside makes a request in a goroutine.
func (c *child) requestBeside(ctx context.Context, method string, params []byte) <-chan answered {
	answer := make(chan answered, 1)
	c.server.pool.running.Go(func() {
		message, err := c.request(ctx, method, params)
		answer <- answered{message, err}
	})
	return answer
}

// meet finds out in which era a child speaks that was started for clients of the modern one. There is no handshake in
// that. A child that does not know it is initialized, and serves the clients of the legacy era.
func (c *child) meet(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	discovered := c.requestBeside(ctx, "server/discover", []byte("{"+modernMeta+"}"))
	silent := time.NewTimer(c.server.pool.silentTime)
	defer silent.Stop()
	var (
		group       *group
		initialized <-chan answered
	)
	initialize := func() error {
		if group != nil {
			return nil
		}
		if group = c.server.legacyGroup(); c.server.pool.hasServer(address{c.server.at.host, mcp.Legacy, group}) {
			return errLegacyOnly
		}
		initialized = c.requestBeside(ctx, "initialize", c.helloOf(group))
		return nil
	}
	for {
		select {
		case answer := <-discovered:
			switch {
			case answer.err != nil:
				return &greetingError{"server/discover", answer.err}
			case answer.message.Has(jsonrpc.Result):
				c.hello.read(answer.message)
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
			return c.initialized(ctx, answer.message, answer.err)
		}
	}
}

// hasServer reports whether there is a server at an address.
func (p *Pool) hasServer(a address) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.servers[a] != nil
}

// becomeLegacy makes the server the one of a group of clients of the legacy era, because its child does not know the
// modern one. It reports false if the group has a server already.
func (s *server) becomeLegacy(g *group) bool {
	p := s.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	modern, legacy := s.at, address{s.at.host, mcp.Legacy, g}
	if p.closed || p.servers[modern] != s || p.servers[legacy] != nil || p.groups[g.groupKey] != g {
		return false
	}
	other := newServer(p, modern, nil)
	other.err = errLegacyOnly
	p.servers[modern], p.servers[legacy] = other, s
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at.era, s.at.group, s.asker = mcp.Legacy, g, nil
	return true
}
