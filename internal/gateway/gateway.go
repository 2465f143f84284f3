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
//	decode.go     read the message, within limits
//	identify.go   find out who the client is
//	admit.go      decide whether it may do this: rules, pinned tools, rates
//	route.go      find the server, and the name it has there
//	call.go       pass it on; or list.go, subscribe.go, notify.go
//	exchange.go   one HTTP request to a server, and its response
//	filter.go     what of the response the client may see
//	passthrough.go, rpc.go or call.go write the answer
//
// A [Request] is the client's side of that, an exchange the server's.
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
// with the key can go on with it, so a restart or another replica loses nothing but caches.
// What is remembered of clients is a [State], which outlives configurations.
package gateway

import (
	"context"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

// A Config describes a gateway.
type Config struct {
	Name, Version string // as clients see the aggregate
	Servers       []*Server
	Naming        mcp.Naming
	Key           []byte        // seals what clients hold for us
	JoinTimeout   time.Duration // for the handshake with a server, and for each of its lists
	MaxClients    int           // how many idle ones are remembered
	Discovery     bool          // list tools to search tools with, in place of all tools
	Logger        *zap.Logger
	Observer      Observer

	// Generation identifies the Caddy configuration that the gateway is part of.
	Generation any

	// Exiting is done when Caddy exits. Streams end then.
	Exiting context.Context

	// Reauthenticate is done when clients whose secrets the configuration does not have,
	// such as those with certificates, must authenticate again.
	Reauthenticate context.Context

	RequestLimit  int64 // bytes of a request
	InFlightLimit int64 // bytes of all requests that are being served
	ResponseLimit int64 // bytes of a response; 0 for no limit

	Auth     Authenticator // nil to let everybody in
	Clients  []*Client
	Limits   []Limit // of each client
	PinTools bool    // withhold tools whose definition has changed

	NotificationRoutes []NotificationRoute
}

// An Authenticator finds out who clients are.
type Authenticator interface {
	// BodyNeeded returns how many bytes of the body of a POST must be read to identify its
	// sender: 0 if the headers decide.
	BodyNeeded(r *http.Request) int64

	// Authenticate returns the identity of the sender. body and token, the
	// params.proxy.authToken of the message, are set once the body was read. Before that,
	// only credentials that need no body are looked at.
	Authenticate(r *http.Request, bodyRead bool, body []byte, token string) (identity string, err error)

	// Challenge adds to the header of a response how the sender, whom Authenticate refused
	// with this error, can authenticate. It returns the status.
	Challenge(header http.Header, r *http.Request, err error) (status int)

	// CredentialHeaders returns the headers in which clients send credentials.
	CredentialHeaders() []string

	// Fingerprint changes with who is let in.
	Fingerprint() string
}

// An Upstream is the way to a server: a list of Caddy routes.
type Upstream interface {
	// Derive returns a request to the server on behalf of the client that sent r, with r's
	// header and no body. It lives as long as ctx. If logged is set, what handlers add to
	// the access log goes to that of r.
	Derive(ctx context.Context, r *http.Request, logged bool) *http.Request

	// Describe sets the placeholders of a request to the server.
	Describe(r *http.Request, placeholder func(name string) (value any, ok bool))

	// Serve has the routes answer r. A refusal of a handler is a [StatusError].
	Serve(w http.ResponseWriter, r *http.Request) error
}

// A Handler answers a request.
type Handler interface {
	ServeHTTP(http.ResponseWriter, *http.Request) error
}

// A Mask shortens the results of a server.
type Mask interface {
	// Serve has next answer r, and writes its answer to w, masked. about is what r asks for.
	Serve(w http.ResponseWriter, r *http.Request, about mcp.Target, next Handler) error

	// Recovers reports whether originals are kept, and how long a part of one that is read
	// back may be.
	Recovers() (maxChars int, ok bool)

	// Original returns an original that was masked for a client.
	Original(client, handle string) (body []byte, about mcp.Target, ok bool)
}

// An Observer is told what happens.
type Observer interface {
	// RequestDone is called at the end of each request to a server, and of each request of a
	// client that was not passed on to just one.
	RequestDone(*Record)

	// Denied is called for each request that is refused.
	Denied(*Denial)

	// Redacted is called when n parts of a message for a client were redacted.
	Redacted(client string, n int)

	// ToolChanged is called when the definition of a tool is not what it was.
	ToolChanged(server, tool string)

	// ToolsSeen is called after a list of tools was read, whose definitions are pinned.
	ToolsSeen(server string)
}

// A StatusError is the refusal of a request by a handler on the way to the server.
type StatusError struct {
	Status int
	Err    error
}

func (e *StatusError) Error() string {
	if e.Err == nil {
		return http.StatusText(e.Status)
	}
	return e.Err.Error()
}

func (e *StatusError) Unwrap() error { return e.Err }

// A Gateway serves the endpoints of one configuration.
type Gateway struct {
	config  Config
	info    serverInfo
	servers map[string]*Server // by name and alias
	ids     map[string]*Server // by ID
	rules   rules
	sealer  sealer
	own     own // what the gateway has itself
	bodies  *quota.Meter
	unknown *quota.Meter // bodies of senders that are not identified yet

	credentials  []string // headers of Auth
	forwardsAuth bool     // to a server at least

	fingerprint string // of all servers
	// Guarded by State.mu.
	alone bool   // of its generation
	left  bool   // it serves no more requests
	place *place // shared by all Gateways that succeed each other
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
	g.rules = newRules(&g.config)
	g.bodies, g.unknown = bodyMeters(&config)
	if config.Auth != nil {
		g.credentials = config.Auth.CredentialHeaders()
	}
	for _, s := range config.Servers {
		for _, name := range append([]string{s.Name}, s.Aliases...) {
			g.servers[name] = s
		}
		g.ids[s.ID] = s
		g.fingerprint += s.ID + "\x00"
		g.forwardsAuth = g.forwardsAuth || s.ForwardAuth
		s.asides.Max = maxServerAsides
	}
	g.own = newOwn(g)
	g.place = &place{g}
	state.join(g)
	return g
}

// Close hands the clients over to the Gateway that succeeds this one on the same State, if
// there is one. Requests that are being served are served to their end.
func (g *Gateway) Close() {
	g.bodies.Close()
	g.unknown.Close()
	g.leave(g)
}

// WaitForSideRequests waits for messages that are still being sent to servers, and sends no
// more.
func (g *Gateway) WaitForSideRequests() {
	for _, s := range g.config.Servers {
		s.asides.Close()
	}
}

// transparent reports whether there is one server, which is shown as it is.
func (g *Gateway) transparent() bool { return g.config.Naming.Separator == "" }

// byID returns the server with an ID, nil if there is none.
func (g *Gateway) byID(id string) *Server { return g.ids[id] }

// of returns the server that a link is to. Another one may have its name by now.
func (g *Gateway) of(l *link) *Server { return g.ids[l.id] }

// exiting reports whether requests end because Caddy exits, and their clients are still
// there.
func (g *Gateway) exiting() bool { return g.config.Exiting != nil && g.config.Exiting.Err() != nil }

// maxServerAsides is how many messages a server is sent besides requests at the same time, for
// all clients.
const maxServerAsides = 1024
