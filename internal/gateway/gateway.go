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
//	request.go    dispatches requests by method; clients.go finds the client of each
//	handshake.go, list.go, subscriptions.go, oneway.go, call.go
//	              answer the methods; a call is forwarded to one server
//	names.go      finds that server, and translates names and URIs; owners.go finds it by
//	              a URI that does not name it
//	prompt.go     asks the client for a confirmation, a login or input
//	relay.go      forwards to a server of the same era, eras.go to one of the other
//	link.go       a client's link to a server; connect.go opens its session, the state of
//	              which is in server_session.go
//
// state.go has what outlives a gateway.
//
// # Eras
//
// Clients and servers each speak one of two eras of the protocol, in any combination. If both speak
// the same, messages are passed on. Otherwise eras.go translates: a request that a legacy server
// sends during a call becomes an input-required result for a modern client, and the other way
// round.
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
//	session_record.go  session state that session ids do not carry
//	session_end.go     ends of sessions, for other replicas
//	list_changes.go    list-changed notifications, here and at other replicas
//	continuation.go    held calls that another replica continues
package gateway

import (
	"context"
	"fmt"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A Gateway serves the endpoints of one configuration.
type Gateway struct {
	config  Config
	info    mcp.Implementation
	servers map[string]*upstream.Server // by name and alias
	names   names
	byID    map[string]*upstream.Server
	rules   *access.Rules
	sealer  sealer
	gate    *inbound.Gate
	shared  *upstream.Shared
	builtin builtins // items of the gateway itself
	notify  notifier

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

// latest returns the Gateway that serves now: g or its successor.
func (g *Gateway) latest() *Gateway {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.removed && g.succession.current != nil {
		g = g.succession.current
	}
	return g
}

// New returns a Gateway that continues with the state of an earlier one. The caller must close it.
func New(config Config, state *State, retained *Retained) *Gateway {
	g := &Gateway{
		config:   config,
		byID:     map[string]*upstream.Server{},
		State:    state,
		Retained: retained,
	}
	g.gate = inbound.NewGate(config.Config, config.Observer, aggregate{g}, inbound.Retained{
		Usage: retained.Usage, Confirmations: state.confirmations, Tasks: retained.tasks, Upstream: state.upstream,
	})
	g.servers, g.rules, g.shared, g.info = g.gate.Servers, g.gate.Rules, g.gate.Shared, g.gate.Info
	g.names = names{naming: config.Naming, servers: g.servers, templates: retained.Templates}
	if config.Naming.Separator == "" && len(config.Servers) > 0 { // without servers, the gateway never serves
		g.names.only = config.Servers[0]
	}
	g.sealer = sealer{g.shared.Sealer}
	for _, s := range config.Servers {
		g.byID[s.ID] = s
		g.fingerprint += s.ID + "\x00"
		s.SideRequests.Max = maxServerSideRequests
		g.shared.Retained.ToolsChanged(s)
		s.Missing.Store(true) // clients of an earlier configuration may not have seen it
	}
	g.builtin, g.notify = newBuiltins(g), notifier{g}
	g.succession = &succession{g}
	g.closing, g.close = context.WithCancel(config.Exiting)
	state.addGateway(g, config.Replaces)
	g.config.Replaces = nil // lets it be freed
	g.cancelExitHook = context.AfterFunc(config.Exiting, func() {
		for _, s := range state.streams.of(g) {
			s.end()
		}
	})
	return g
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
	g.parked.drain()
	for _, s := range g.config.Servers {
		s.SideRequests.Close()
	}
}

// exiting reports whether Caddy exits, so that requests end although their clients are still
// connected.
func (g *Gateway) exiting() bool { return g.config.Exiting.Err() != nil }

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
	if !g.config.Discovery && g.builtin.recovers() {
		view += " recovers"
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

// A Config describes a gateway.
type Config struct {
	inbound.Config
	Naming     mcp.Naming
	Resumable  bool // other processes with the same Key may continue sessions
	MaxClients int  // idle clients that are remembered
	Discovery  bool // list the tools for discovery instead of all tools
	Observer   Observer

	// Generation identifies the Caddy configuration that the gateway is part of.
	Generation any

	// Replaces is the gateway of the same Generation whose clients this one takes over; nil for
	// none.
	Replaces *Gateway

	// Detach returns a context for requests that outlive the handler of ctx. Derive accepts it like
	// ctx. It is never done, and holds nothing of the handler, such as its response writer.
	// Required.
	Detach func(ctx context.Context) context.Context

	// ReportMissing adds the names of unreachable servers to the instructions for clients.
	ReportMissing bool

	NotificationRoutes []NotificationRoute

	// Originals of results that were removed from requests to models; nil for none.
	Originals Originals
}

// Originals are tool results that were removed from requests to models. The server that they came
// from is unknown. Results kept by other replicas are found, too.
type Originals interface {
	// Kept reports whether originals are stored.
	Kept() bool

	// Original returns the result stored for a client under a handle, as the body of a JSON string.
	// user is the user that a handler before the gateway authenticated.
	Original(user, address, handle string) (body []byte, ok bool)

	// Fetch loads a result from other replicas, so that Original and the masks of all servers find
	// it. It fails if the shared store is unavailable.
	Fetch(ctx context.Context, client, user, address, handle string) error
}

// A NotificationRoute selects the servers that get a notification of a client.
type NotificationRoute struct {
	Method  string // pattern: * matches any characters
	Servers []string
}

// An Observer counts and logs events.
type Observer interface {
	inbound.Observer

	// ServerFailed is called when a handshake or a list request fails. ServerAnswered is called
	// when a handshake succeeds.
	ServerFailed(*upstream.Fault)
	ServerAnswered(server string)

	// Listed is called when a server has listed its items of a kind, such as tools or prompts.
	Listed(server, kind string, items int)

	// ToolInvalid is called when a tool is hidden because its definition is invalid.
	ToolInvalid(server, tool string, reason error)

	// ToolMissing is called when a server does not list a tool that has a [toolview.Override].
	ToolMissing(server, tool string)
}

// Sessions returns the number of remembered client sessions, by metrics label and client name.
func (g *Gateway) Sessions() map[string]map[string]int {
	sessions := map[string]map[string]int{}
	for _, c := range g.clients.all() {
		if c.ended.Load() {
			continue
		}
		caller := g.rules.Caller(c.identity)
		name := access.NameOf(c.identity)
		switch name {
		case "":
			name = access.Anonymous
		case access.OperatorIdentity:
			name = caller.Label
		}
		if sessions[caller.Label] == nil {
			sessions[caller.Label] = map[string]int{}
		}
		sessions[caller.Label][name]++
	}
	return sessions
}

// Links returns the number of open sessions with each server, by server name. It counts sessions of
// the aggregate endpoint only.
func (g *Gateway) Links() map[string]int {
	open := map[string]int{}
	for _, c := range g.clients.all() {
		for _, l := range c.allLinks() {
			if s := g.linkServer(l); s != nil && l.session.isOpen() {
				open[s.Name]++
			}
		}
	}
	return open
}

// Original returns the original of a text that was masked for a client, and its length in
// characters. Current redaction rules apply. It reports false if the original is unknown or
// expired.
func (g *Gateway) Original(server, client, handle string) (text string, chars int, ok bool) {
	s := g.servers[server]
	if s == nil || s.Mask == nil {
		return "", 0, false
	}
	body, ok := s.Mask.Kept(client, handle)
	if !ok {
		return "", 0, false
	}
	caller := g.rules.Caller(client)
	text = jsonspan.Text(caller.Redactor().Body(body))
	return text, utf8.RuneCountInString(text), true
}
