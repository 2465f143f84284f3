// Package gateway puts many MCP servers behind one endpoint.
//
// A [Gateway] serves three kinds of endpoints. At [upstream.Aggregate], clients see the tools,
// prompts, resources and templates of all servers, under names with the server as prefix. At
// [upstream.Single], one server is served unchanged, over Streamable HTTP. At [upstream.RPC], one
// server answers plain JSON-RPC posts.
//
// # Request path
//
// Package inbound authenticates, reads and admits the requests of clients. Package upstream
// exchanges messages with servers. For [upstream.Aggregate], this package is between them:
//
//	aggregate.go  dispatches requests by method
//	handshake.go, list.go, subscribe.go, oneway.go, call.go
//	              answer the methods; a call is forwarded to one server
//	names.go      finds that server, and translates names and URIs
//	to_legacy.go, to_modern.go
//	              forward to a server of the other era; relay.go to one of the same era
//	link.go       the session of a client with a server; connect.go opens it
//
// config.go has the configuration of a gateway, state.go what outlives it.
//
// # Eras
//
// Clients and servers each speak one of two eras of the protocol, in any combination. If both speak
// the same, messages are passed on. Otherwise to_legacy.go and to_modern.go translate: a request
// that a legacy server sends during a call becomes an input-required result for a modern client,
// and the other way round.
//
// # State
//
// At [upstream.Aggregate], each client has its own sessions with servers, one link each, so its
// ids, progress tokens and subscriptions do not collide with those of other clients. The session id
// of a legacy client carries the sessions of all its links, sealed. Any process with the key can
// continue the session, so a restart loses only caches. A [State] remembers clients. It outlives
// configurations. Replicas keep each other up to date about the clients they share:
//
//	replica_sync.go    topics, messages for streams at other replicas, messages of clients
//	session_record.go  session state that session ids do not carry, and the end of sessions
//	list_changes.go    list-changed notifications
//	continuation.go    held calls that another replica continues
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
	builtin builtins // items of the gateway itself

	cancelExitHook func() bool     // removes the hook that ends streams when Caddy exits
	closing        context.Context // done when the Gateway is closed or Caddy exits
	close          context.CancelFunc
	fingerprint    string // of the server IDs

	// The fields up to succession are guarded by State.mu.
	onlyOne     bool        // the only Gateway of its generation
	removed     bool        // serves no more requests
	replacement *Gateway    // takes over within the generation; nil if there is none
	succession  *succession // shared with its predecessors and successors
	*State
	*Retained
}

// A succession is a sequence of Gateways that replace each other. A stream refers to it, and so to
// the Gateway that serves now, but to none in between.
type succession struct {
	current *Gateway // nil if there is no known successor
}

// New returns a Gateway that continues with the state of an earlier one. The caller must close it.
func New(config Config, state *State, retained *Retained) *Gateway {
	g := &Gateway{
		config:   config,
		ids:      map[string]*upstream.Server{},
		State:    state,
		Retained: retained,
	}
	g.gate = inbound.NewGate(config.Config, config.Observer, aggregate{g}, inbound.Retained{
		Usage: retained.Usage, Confirmations: state.confirmations, Tasks: retained.tasks, Upstream: state.upstream,
	})
	g.servers, g.rules, g.shared, g.info = g.gate.Servers, g.gate.Rules, g.gate.Shared, g.gate.Info
	g.sealer = sealer{g.shared.Sealer}
	for _, s := range config.Servers {
		g.ids[s.ID] = s
		g.fingerprint += s.ID + "\x00"
		s.SideRequests.Max = maxServerSideRequests
		g.shared.Retained.ToolsChanged(s)
		s.Missing.Store(true) // clients of an earlier configuration may not have seen it
	}
	g.builtin = newBuiltins(g)
	g.succession = &succession{g}
	g.closing, g.close = context.WithCancel(config.Exiting)
	state.addGateway(g, config.Replaces)
	g.config.Replaces = nil // lets it be freed
	g.cancelExitHook = context.AfterFunc(config.Exiting, func() { state.endStreams(g) })
	return g
}

// NewRequest returns a request to an endpoint.
func (g *Gateway) NewRequest(
	w http.ResponseWriter, r *http.Request, endpoint inbound.Endpoint, peer inbound.Peer,
) *inbound.Request {
	return g.gate.NewRequest(w, r, endpoint, peer)
}

// Close hands the clients over to the successor of this Gateway on the same State, if there is one.
// Running requests continue.
func (g *Gateway) Close() {
	g.close()
	g.cancelExitHook()
	g.gate.Close()
	g.removeGateway(g)
}

// WaitForSideRequests waits, on exit, for parked streams and for messages still being sent to
// servers, and prevents new ones.
func (g *Gateway) WaitForSideRequests() {
	g.waitForParked()
	for _, s := range g.config.Servers {
		s.SideRequests.Close()
	}
}

// transparent reports whether there is a single server whose names are shown unchanged.
func (g *Gateway) transparent() bool { return g.config.Naming.Separator == "" }

// byID returns the server with an ID, nil if there is none.
func (g *Gateway) byID(id string) *upstream.Server { return g.ids[id] }

// exiting reports whether Caddy exits, so that requests end although their clients are still
// connected.
func (g *Gateway) exiting() bool { return g.config.Exiting != nil && g.config.Exiting.Err() != nil }

// maxServerSideRequests limits the side requests to a server at a time, for all clients.
const maxServerSideRequests = 1024

// viewKey returns a string that changes when a client's view of lists changes.
func (g *Gateway) viewKey(identity string) string {
	view := ""
	if caller := g.rules.Caller(identity); caller.Client != nil {
		view = caller.Client.View
	}
	if g.config.PinTools {
		view += " pinned"
	}
	return view
}

// admissionKey returns a string that changes when a client may no longer be admitted. For
// certificates, JWTs and Caddy's own authentication only a new request can tell, so there it
// changes with each configuration.
func (g *Gateway) admissionKey(identity string) string {
	caller := g.rules.Caller(identity)
	key := caller.Label
	if g.config.Auth != nil {
		key += g.config.Auth.Fingerprint()
	}
	if caller.MustReauthenticate() {
		key += fmt.Sprintf(" %p", g.config.Generation)
	}
	return key
}

// visibleServers returns the servers that a client may see.
func (g *Gateway) visibleServers(identity string) []*upstream.Server {
	if len(g.config.Clients) == 0 {
		return g.config.Servers
	}
	return filterServers(g.config.Servers, func(s *upstream.Server) bool { return g.rules.Sees(identity, s.Name) })
}
