// Package gateway puts many MCP servers behind one endpoint.
//
// A [Gateway] serves three kinds of endpoints. At [Aggregate] all servers are one: a client
// sees their tools, prompts, resources and templates under names with a prefix each. At
// [Single] one server is served as it is, over Streamable HTTP. At [RPC] one server answers
// plain JSON-RPC posts.
//
// # One direction
//
// A request of a client takes the same way at all of them, one file a stage:
//
//	serve.go      the stages of a request, in their order
//	identify.go   who the client is: credentials, or what the body says
//	decode.go     read the message, within limits
//	admit.go      may it do this: rules, pinned tools, rates
//	aggregate.go  which method of the aggregate answers it
//	handshake.go, list.go, subscribe.go, notify.go, call.go
//	              these methods; a call is passed on to one server
//	route.go      which server that is, and the names that things have there
//	legacy.go, modern.go
//	              translate between eras; relay.go passes on within one
//	link.go       the session of a client with a server; connect.go opens it, and httpsse.go one
//	              with a server of HTTP+SSE
//	exchange.go   one HTTP request to a server, and its response
//	arrival.go, filter.go
//	              the limits of a response, and what of it the client may see
//	passthrough.go, rpc.go
//	              make of the response what the endpoint answers
//
// A [Request] is the client's side of that, an exchange the server's. state.go has what
// outlives a configuration, config.go what a configuration consists of.
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
// At [Aggregate] each client has connections of its own to the servers, a link each: its
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
	"maps"
	"net/http"
	"slices"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

// A Gateway serves the endpoints of one configuration.
type Gateway struct {
	config       Config
	info         serverInfo
	servers      map[string]*Server // by name and alias
	ids          map[string]*Server // by ID
	rules        rules
	sealer       sealer
	own          ownItems // what the gateway has itself
	bodies       *quota.Meter
	unidentified *quota.Meter // bodies of senders that are not identified yet

	credentials  map[string]bool // headers by which clients authenticate
	private      map[string]bool // headers that servers do not get: credentials and overrides
	forwardsAuth bool            // to a server at least

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
		info:     serverInfo{config.Name, config.Version},
		servers:  map[string]*Server{},
		ids:      map[string]*Server{},
		sealer:   newSealer(config.Key),
		State:    state,
		Retained: retained,
	}
	g.rules = newRules(g)
	g.bodies, g.unidentified = bodyMeters(&config)
	g.credentials = credentials
	if config.Auth != nil {
		g.credentials = maps.Clone(credentials)
		for _, name := range config.Auth.CredentialHeaders() {
			g.credentials[http.CanonicalHeaderKey(name)] = true
		}
	}
	g.private = maps.Clone(g.credentials)
	maps.Copy(g.private, overrides)
	for _, s := range config.Servers {
		for _, name := range append([]string{s.Name}, s.Aliases...) {
			g.servers[name] = s
		}
		g.ids[s.ID] = s
		g.fingerprint += s.ID + "\x00"
		g.forwardsAuth = g.forwardsAuth || s.ForwardAuth
		s.asides.Max = maxServerAsides
		g.toolsChanged(s)
		s.missing.Store(true) // clients of an earlier configuration may have been answered without it
	}
	g.own = newOwn(g)
	g.place = &place{g}
	g.closing, g.close = context.WithCancel(config.Exiting)
	state.join(g, config.Replaces)
	g.config.Replaces = nil // it is not kept in memory
	g.unfollow = context.AfterFunc(config.Exiting, func() { state.endStreams(g) })
	return g
}

// Close hands the clients over to the Gateway that succeeds this one on the same State, if
// there is one. Requests that are being served are served to their end.
func (g *Gateway) Close() {
	g.close()
	g.unfollow()
	g.bodies.Close()
	g.unidentified.Close()
	g.leave(g)
}

// WaitForSideRequests waits, on exit, for streams that end without a handler and for messages
// that are still being sent to servers, and sends no more.
func (g *Gateway) WaitForSideRequests() {
	g.waitForParked()
	for _, s := range g.config.Servers {
		s.asides.Close()
	}
}

// transparent reports whether there is one server, which is shown as it is.
func (g *Gateway) transparent() bool { return g.config.Naming.Separator == "" }

// byID returns the server with an ID, nil if there is none.
func (g *Gateway) byID(id string) *Server { return g.ids[id] }

// exiting reports whether requests end because Caddy exits, and their clients are still
// there.
func (g *Gateway) exiting() bool { return g.config.Exiting != nil && g.config.Exiting.Err() != nil }

// maxServerAsides is how many messages a server is sent besides requests at the same time, for
// all clients.
const maxServerAsides = 1024

// A serverInfo identifies the gateway to clients of the aggregate.
type serverInfo struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// sign returns a result of the gateway itself with the members that the modern era wants.
func (i serverInfo) sign(resultType string, result []byte) []byte {
	for member := range jsonspan.Members(result) {
		if at := member.Value; member.Key == "_meta" && at.Kind == jsonspan.BeginObject {
			return jsonspan.Spliced(result, jsonspan.Insert(result, typeMember(resultType)),
				jsonspan.Insert(result[at.Start:at.End], i.metaMember()).Moved(at.Start))
		}
	}
	return jsonspan.Spliced(result, jsonspan.Insert(result, i.members(resultType)))
}

// members returns the members of a result of the modern era: its type and its sender.
func (i serverInfo) members(resultType string) []byte {
	return slices.Concat(typeMember(resultType), []byte(`,"_meta":{`), i.metaMember(), []byte("}"))
}

// metaMember returns the member of _meta that names the sender.
func (i serverInfo) metaMember() []byte {
	return slices.Concat([]byte(`"`+mcp.MetaServerInfo+`":`), jsonrpc.Encode(i))
}

func typeMember(resultType string) []byte { return []byte(`"resultType":"` + resultType + `"`) }
