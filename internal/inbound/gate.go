// Package inbound authenticates, reads and admits requests of clients, and passes on those for one
// server.
//
// A [Request] comes in at a [Gate]. Its stages are a file each:
//
//	serve.go      the stages, in their order
//	identify.go   who the client is: credentials, or what the body says
//	decode.go     read the message, within limits
//	admit.go      may it do this: rules, pinned tools, rates
//	confirm.go, question.go
//	              ask the person at the client, if a rule wants that
//	audit.go, tracing.go
//	              report what was done
//
// A request to one server is then passed on by an [upstream.Exchange] (single.go). One to all servers is for
// the [Aggregate], which asks for the later stages itself, once it knows what the request is
// about.
package inbound

import (
	"context"
	"iter"
	"maps"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/seal"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A Config says what all requests to a gateway have in common.
type Config struct {
	Name, Version string // as clients see the aggregate
	Servers       []*upstream.Server
	Key           []byte // seals what clients hold for us
	Logger        *zap.Logger

	JoinTimeout time.Duration // for the handshake with a server, and for each of its lists

	RequestLimit  int64 // bytes of a request
	InFlightLimit int64 // bytes of all requests that are being served
	ResponseLimit int64 // bytes of a response; 0 for no limit

	Auth     Authenticator // nil to let everybody in
	Clients  []*access.Client
	Limits   []access.Limit // of each client
	PinTools bool           // withhold tools whose definition has changed
	Audit    Audit
	Record   bool // calls are reported with their arguments and results

	// Exiting is done when Caddy exits. Streams end then. Required, as is the next.
	Exiting context.Context

	// Reauthenticate is done when clients whose secrets the configuration does not have,
	// such as those with certificates, must authenticate again.
	Reauthenticate context.Context
}

// An Authenticator identifies clients.
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

// An Observer counts and logs what becomes of requests.
type Observer interface {
	upstream.Observer

	// Denied is called for each request that is refused.
	Denied(*Denial)

	// CallDone is called for each call when it has ended, also for those that were refused.
	CallDone(Call)
}

// A Denial is a request that was refused.
type Denial struct {
	Client  string // its name, [access.Anonymous] or [access.OperatorLabel]
	Label   string // of the client in metrics
	Address string // of its machine
	Method  string
	Target  mcp.Target
	Code    string // why, as error.data.code says
	Rule    string // of the client that decided, if one has
	Reason  error  // more of it, for logs only; may be nil
}

// A Peer is what Caddy knows of the sender of a request.
type Peer struct {
	User    string // as a handler in front of the gateway has authenticated it
	Trusted string // identity of the command that has started this process; "" for others
	Address string // of its machine
	Path    string // of the request, as the client has sent it

	// Inherited is what [upstream.Routes.Derive] finds at [InheritedKey] in the context of requests
	// that are derived from this one, at Aggregate.
	Inherited any
}

// An Endpoint is where a request comes in.
type Endpoint struct {
	Kind   upstream.EndpointKind
	Server string // name or alias; "" at the aggregate
}

// An Aggregate makes all servers one.
type Aggregate interface {
	// Serve answers a request to the aggregate. What it returns is to be answered in place of that.
	Serve(*Request) *jsonrpc.Failure

	// ListTools asks a server for its tools, as it shows them to the client with an identity that has sent r. It
	// returns the names of those that clients were told take the argument of a [toolview.Focus].
	ListTools(r *http.Request, identity string, s *upstream.Server) (focused iter.Seq[string], _ *jsonrpc.Failure)
}

// A Gate is where requests to a gateway come in.
type Gate struct {
	Servers map[string]*upstream.Server // by name and alias
	Rules   *access.Rules
	Shared  *upstream.Shared
	Info    mcp.Implementation // as clients see the aggregate

	config       Config
	observer     Observer
	aggregate    Aggregate
	bodies       *quota.Meter
	unidentified *quota.Meter    // bodies of senders that are not identified yet
	credentials  map[string]bool // headers by which clients authenticate
	forwardsAuth bool            // to a server at least
	kept         Kept
}

// Kept is what outlives a configuration.
type Kept struct {
	Usage         *Usage
	Confirmations *Confirmations
	Tasks         *upstream.Tasks
	Upstream      *upstream.State
}

// NewGate returns the gate of a gateway, which has to be closed.
func NewGate(config Config, observer Observer, aggregate Aggregate, kept Kept) *Gate {
	g := &Gate{
		Servers: map[string]*upstream.Server{}, Rules: access.NewRules(config.Clients, config.Limits),
		config: config, observer: observer, aggregate: aggregate,
		Info:        mcp.Implementation{Name: config.Name, Version: config.Version},
		credentials: maps.Clone(upstream.CredentialHeaders), kept: kept,
	}
	g.bodies, g.unidentified = bodyMeters(&config)
	if config.Auth != nil {
		for _, name := range config.Auth.CredentialHeaders() {
			g.credentials[http.CanonicalHeaderKey(name)] = true
		}
	}
	private := maps.Clone(g.credentials)
	maps.Copy(private, upstream.OverridingHeaders)
	g.Shared = &upstream.Shared{
		Logger: config.Logger, Observer: observer,
		JoinTimeout: config.JoinTimeout, ResponseLimit: config.ResponseLimit,
		PinTools: config.PinTools, HasClients: len(config.Clients) > 0,
		Exiting: config.Exiting, Reauthenticate: config.Reauthenticate,
		Private: private, Sealer: seal.New("mcp session id", config.Key), Tasks: kept.Tasks, State: kept.Upstream,
	}
	for _, s := range config.Servers {
		for _, name := range append([]string{s.Name}, s.Aliases...) {
			g.Servers[name] = s
		}
		g.forwardsAuth = g.forwardsAuth || s.ForwardAuth
	}
	return g
}

// Close says that no more requests come.
func (g *Gate) Close() {
	g.bodies.Close()
	g.unidentified.Close()
}
