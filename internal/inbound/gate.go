// Package inbound authenticates, reads and admits requests of clients, and forwards those for one
// server.
//
// A [Request] enters at a [Gate]. Its stages are in one file each:
//
//	request.go    the order of the stages
//	identify.go   identify the client, by credentials or by the body; read the message, within
//	              limits
//	admit.go      check rules, pinned tools and rate limits
//	elicitation.go
//	              ask the user of the client, if a rule requires that
//	audit.go      report the call
//
// An [upstream.Exchange] then forwards a request for one server (single.go). A request for all
// servers goes to the [Aggregate], which calls the later stages itself, once it knows the target.
package inbound

import (
	"context"
	"maps"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/seal"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A Config configures a Gate.
type Config struct {
	Name, Version string // of the aggregate
	Servers       []*upstream.Server
	Key           []byte // seals ids and states that clients hold
	Logger        *zap.Logger

	JoinTimeout time.Duration // timeout of the handshake with a server, and of each of its lists

	RequestLimit  int64 // bytes of a request
	InFlightLimit int64 // bytes of all requests in progress
	ResponseLimit int64 // bytes of a response; 0 for no limit

	Auth     Authenticator // nil to allow all clients
	Clients  []*access.Client
	Limits   []access.Limit // for each client
	PinTools bool           // withhold tools whose definition has changed
	Audit    Audit
	Record   bool // report calls with their arguments and results

	// Exiting is done when Caddy exits. Streams end then. Required.
	Exiting context.Context

	// Reauthenticate is done when clients without secrets in the configuration, such as those with
	// certificates, must authenticate again. Required.
	Reauthenticate context.Context
}

// An Authenticator identifies clients.
type Authenticator interface {
	// BodyNeeded returns how many bytes of the body of a POST are needed to identify the client: 0
	// if the headers are enough.
	BodyNeeded(r *http.Request) int64

	// Authenticate returns the identity of the client. body and token, the params.proxy.authToken
	// of the message, are set once the body was read. Before that, only credentials that need no
	// body are checked.
	Authenticate(r *http.Request, bodyRead bool, body []byte, token string) (identity string, err error)

	// Challenge adds headers to the response that say how to authenticate, after Authenticate
	// failed with err. It returns the status.
	Challenge(header http.Header, r *http.Request, err error) (status int)

	// CredentialHeaders returns the headers in which clients send credentials.
	CredentialHeaders() []string

	// Fingerprint returns a hash of the credentials that are accepted.
	Fingerprint() string
}

// An Observer counts and logs requests.
type Observer interface {
	upstream.Observer

	// Denied is called for each denied request.
	Denied(*Denial)

	// CallDone is called at the end of each call, also of denied ones.
	CallDone(Call)
}

// A Denial is a request that was denied.
type Denial struct {
	Client      string // its name, [access.Anonymous] or [access.OperatorLabel]
	ClientLabel string // label of the client in metrics
	Address     string // IP address of the client
	Method      string
	Target      mcp.Target
	Code        string // reason, as in error.data.code
	Rule        string // rule that decided; "" if none did
	Reason      error  // details for logs; may be nil
}

// A Peer is what Caddy knows about the sender of a request.
type Peer struct {
	User    string // user authenticated by a handler in front of the gateway
	Trusted string // identity of the command that started this process; "" for others
	Address string // IP address
	Path    string // path of the request as the client sent it

	// Inherited is the value that [upstream.Routes.Derive] finds under [InheritedKey] in the
	// context of requests derived from this one, at Aggregate.
	Inherited any
}

// An Endpoint is the endpoint of a request.
type Endpoint struct {
	Kind   upstream.EndpointKind
	Server string // name or alias; "" at Aggregate
}

// An Aggregate serves all servers as one.
type Aggregate interface {
	// Serve serves a request to the aggregate. If it returns a failure, the caller sends that.
	Serve(*Request) *jsonrpc.Failure

	// ListTools lists the tools of a server for the client that sent r.
	ListTools(r *http.Request, identity string, s *upstream.Server) (*catalog.List, *jsonrpc.Failure)
}

// A Gate handles the requests to a gateway.
type Gate struct {
	Servers map[string]*upstream.Server // by name and alias
	Rules   *access.Rules
	Shared  *upstream.Shared
	Info    mcp.Implementation // of the aggregate

	config       Config
	observer     Observer
	aggregate    Aggregate
	bodies       *quota.Meter
	unidentified *quota.Meter    // bodies of clients that are not identified yet
	credentials  map[string]bool // headers with which clients authenticate
	forwardsAuth bool            // to at least one server
	retained     Retained
}

// Retained is state that is retained over configuration reloads.
type Retained struct {
	Usage         *Usage
	Confirmations *Confirmations
	Tasks         *upstream.Tasks
	Upstream      *upstream.Retained
}

// NewGate returns the gate of a gateway. The caller must close it.
func NewGate(config Config, observer Observer, aggregate Aggregate, retained Retained) *Gate {
	g := &Gate{
		Servers: map[string]*upstream.Server{}, Rules: access.NewRules(config.Clients, config.Limits),
		config: config, observer: observer, aggregate: aggregate,
		Info:        mcp.Implementation{Name: config.Name, Version: config.Version},
		credentials: maps.Clone(upstream.CredentialHeaders), retained: retained,
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
		Private: private, Sealer: seal.New("mcp session id", config.Key), Tasks: retained.Tasks, Retained: retained.Upstream,
	}
	for _, s := range config.Servers {
		for _, name := range append([]string{s.Name}, s.Aliases...) {
			g.Servers[name] = s
		}
		g.forwardsAuth = g.forwardsAuth || s.ForwardAuth
	}
	return g
}

// Close releases the meters. No requests may follow.
func (g *Gate) Close() {
	g.bodies.Close()
	g.unidentified.Close()
}
