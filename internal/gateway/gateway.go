// Package gateway puts many MCP servers behind one endpoint.
//
// A [Gateway] serves three kinds of endpoints. At [upstream.Aggregate] all servers are one: a
// client sees their tools, prompts, resources and templates under names with a prefix each. At
// [upstream.Single] one server is served as it is, over Streamable HTTP. At [upstream.RPC] one
// server answers plain JSON-RPC posts.
//
// # One direction
//
// Package inbound authenticates, reads and admits a request of a client, and package upstream
// passes it on to a server. This package is between them at [upstream.Aggregate]:
//
//	aggregate.go  which method answers the request
//	handshake.go, list.go, subscribe.go, notify.go, call.go
//	              these methods; a call is passed on to one server
//	route.go      which server that is, and the names that things have there
//	legacy.go, modern.go
//	              translate between eras; relay.go passes on within one
//	link.go       the session of a client with a server, opened by connect.go
//
// state.go has what outlives a configuration, config.go what a configuration consists of.
//
// # Eras
//
// Clients and servers each speak one of two eras of the protocol, in any combination. Where
// both speak the same, messages pass. Where they do not, legacy.go and modern.go translate:
// questions that a server asks during a call become results that ask for input, and the
// other way round.
//
// # State
//
// At [upstream.Aggregate] each client has connections of its own to the servers, a link each: its
// ids, progress tokens and subscriptions cannot meet those of others. The session id that a
// client of the legacy era holds carries the sessions of all its links, sealed. Any process
// with the key can go on with it, so a restart loses nothing but caches. What is remembered of
// clients is a [State], which outlives configurations. Replicas tell each other what concerns
// clients that they share:
//
//	elsewhere.go  how they do, messages for streams elsewhere, and notices of clients
//	recall.go     what their ids do not carry of sessions, and that they have ended
//	news.go       changes of lists
package gateway

import (
	"context"
	"fmt"
	"net/http"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A Gateway serves the endpoints of one configuration.
type Gateway struct {
	config  Config
	info    mcp.Implementation
	servers map[string]*upstream.Server // by name and alias
	ids     map[string]*upstream.Server // by ID
	rules   *access.Rules
	sealer  sealer
	gate    *inbound.Gate
	shared  *upstream.Shared
	own     ownItems // what the gateway has itself

	unfollow    func() bool     // stops streams from ending when Caddy exits
	closing     context.Context // done when the Gateway is closed, or Caddy exits
	close       context.CancelFunc
	fingerprint string // of all servers
	// Guarded by State.mu.
	alone bool     // of its generation
	left  bool     // it serves no more requests
	heir  *Gateway // that replaces it in its generation; nil if none does
	place *place   // shared by all Gateways that succeed each other
	*State
	*Retained
}

// A place is where Gateways succeed each other. A stream holds the place it was opened at,
// and thereby the Gateway that serves now, but none in between.
type place struct {
	current *Gateway // nil if there is no known successor
}

// New returns a Gateway that goes on with what an earlier one has left in state and
// retained. It has to be closed.
func New(config Config, state *State, retained *Retained) *Gateway {
	g := &Gateway{
		config:   config,
		ids:      map[string]*upstream.Server{},
		State:    state,
		Retained: retained,
	}
	g.gate = inbound.NewGate(config.Config, config.Observer, aggregate{g}, inbound.Kept{
		Usage: retained.Usage, Confirmations: state.confirmations, Tasks: retained.tasks, Upstream: state.upstream,
	})
	g.servers, g.rules, g.shared, g.info = g.gate.Servers, g.gate.Rules, g.gate.Shared, g.gate.Info
	g.sealer = sealer{g.shared.Sealer}
	for _, s := range config.Servers {
		g.ids[s.ID] = s
		g.fingerprint += s.ID + "\x00"
		s.Asides.Max = maxServerAsides
		g.shared.State.ToolsChanged(s)
		s.Missing.Store(true) // clients of an earlier configuration may have been answered without it
	}
	g.own = newOwn(g)
	g.place = &place{g}
	g.closing, g.close = context.WithCancel(config.Exiting)
	state.join(g, config.Replaces)
	g.config.Replaces = nil // it is not kept in memory
	g.unfollow = context.AfterFunc(config.Exiting, func() { state.endStreams(g) })
	return g
}

// NewRequest returns a request that came in at an endpoint, to be served.
func (g *Gateway) NewRequest(
	w http.ResponseWriter, r *http.Request, to inbound.Endpoint, from inbound.Peer,
) *inbound.Request {
	return g.gate.NewRequest(w, r, to, from)
}

// Close hands the clients over to the Gateway that succeeds this one on the same State, if
// there is one. Requests that are being served are served to their end.
func (g *Gateway) Close() {
	g.close()
	g.unfollow()
	g.gate.Close()
	g.leave(g)
}

// WaitForSideRequests waits, on exit, for streams that end without a handler and for messages
// that are still being sent to servers, and sends no more.
func (g *Gateway) WaitForSideRequests() {
	g.waitForParked()
	for _, s := range g.config.Servers {
		s.Asides.Close()
	}
}

// transparent reports whether there is one server, which is shown as it is.
func (g *Gateway) transparent() bool { return g.config.Naming.Separator == "" }

// byID returns the server with an ID, nil if there is none.
func (g *Gateway) byID(id string) *upstream.Server { return g.ids[id] }

// exiting reports whether requests end because Caddy exits, and their clients are still
// there.
func (g *Gateway) exiting() bool { return g.config.Exiting != nil && g.config.Exiting.Err() != nil }

// maxServerAsides is how many messages a server is sent besides requests at the same time, for
// all clients.
const maxServerAsides = 1024

// view returns a text that changes with what a client is shown of lists.
func (g *Gateway) view(identity string) string {
	view := ""
	if who := g.rules.Caller(identity); who.Client != nil {
		view = who.Client.View
	}
	if g.config.PinTools {
		view += " pinned"
	}
	return view
}

// standing returns a text that changes with what lets a client in. Only a new request can
// show whether a certificate, a JWT or Caddy's own authentication still does, so for those it
// changes with each configuration.
func (g *Gateway) standing(identity string) string {
	who := g.rules.Caller(identity)
	standing := who.Label
	if g.config.Auth != nil {
		standing += g.config.Auth.Fingerprint()
	}
	if who.IsVolatile() {
		standing += fmt.Sprintf(" %p", g.config.Generation)
	}
	return standing
}

// seen returns the servers that a client may know of.
func (g *Gateway) seen(identity string) []*upstream.Server {
	if len(g.config.Clients) == 0 {
		return g.config.Servers
	}
	return filterServers(g.config.Servers, func(s *upstream.Server) bool { return g.rules.Sees(identity, s.Name) })
}
