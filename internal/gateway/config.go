package gateway

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mask"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/ratelimit"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/redact"
)

// A Config describes a gateway.
type Config struct {
	Name, Version string // as clients see the aggregate
	Servers       []*Server
	Naming        mcp.Naming
	Key           []byte        // seals what clients hold for us
	Resumable     bool          // another process with the same Key may go on with sessions
	JoinTimeout   time.Duration // for the handshake with a server, and for each of its lists
	MaxClients    int           // how many idle ones are remembered
	Discovery     bool          // list tools to search tools with, in place of all tools
	Logger        *zap.Logger
	Observer      Observer

	// Generation identifies the Caddy configuration that the gateway is part of.
	Generation any

	// Replaces is the gateway of the same Generation whose clients this one gets; nil for none.
	Replaces *Gateway

	// Exiting is done when Caddy exits. Streams end then. Required, as is the next.
	Exiting context.Context

	// Reauthenticate is done when clients whose secrets the configuration does not have,
	// such as those with certificates, must authenticate again.
	Reauthenticate context.Context

	// Detach returns a context for requests that outlive the handler which has ctx. Derive makes
	// the same of them, but the context holds nothing of the handler, such as its response
	// writer, and is never done. Required.
	Detach func(ctx context.Context) context.Context

	RequestLimit  int64 // bytes of a request
	InFlightLimit int64 // bytes of all requests that are being served
	ResponseLimit int64 // bytes of a response; 0 for no limit

	Auth     Authenticator // nil to let everybody in
	Clients  []*Client
	Limits   []Limit // of each client
	PinTools bool    // withhold tools whose definition has changed
	Audit    Audit
	Record   bool // calls are reported with their arguments and results

	// ReportMissing names servers that cannot be reached in the instructions for clients.
	ReportMissing bool

	NotificationRoutes []NotificationRoute

	// Originals of results that were left out of requests to models; nil for none.
	Originals Originals
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

// An Upstream is the way to a server: a list of Caddy routes.
type Upstream interface {
	// Derive returns a request to the server on behalf of the client that sent r, with r's
	// header and no body. It lives as long as ctx. If logged is set, what handlers add to
	// the access log goes to that of r.
	Derive(ctx context.Context, r *http.Request, logged bool) *http.Request

	// Describe sets the placeholders of a request to the server.
	Describe(r *http.Request, placeholder func(name string) (value any, ok bool))

	// Serve has the routes answer r, on behalf of the client with an account; "" for none. A
	// refusal of a handler is a [StatusError].
	Serve(w http.ResponseWriter, r *http.Request, account string) error
}

// A Login is how the gateway logs in to a server. The [Upstream] sends what it takes; a
// request that needs a login first fails with [jsonrpc.LoginRequired].
type Login interface {
	// Await waits until the login that was required for an account is done. It reports false
	// if it is not when ctx is.
	Await(ctx context.Context, account string) bool
}

// A Handler answers a request.
type Handler interface {
	ServeHTTP(http.ResponseWriter, *http.Request) error
}

// A Mask shortens the results of a server.
type Mask interface {
	// Serve has next answer r, and writes its answer to w, masked.
	Serve(w http.ResponseWriter, r *http.Request, about MaskRequest, next Handler) error

	// Exempts reports whether the result of a request for something is never masked.
	Exempts(about mcp.Target) bool

	// Recovers reports whether originals are kept, and how long a part of one that is read
	// back may be.
	Recovers() (maxChars int, ok bool)

	// Original returns an original that was masked for a client, to the client. Kept returns it to operators, which
	// does not count. Both have what this process keeps.
	Original(client, handle string) (body []byte, about mcp.Target, ok bool)
	Kept(client, handle string) (body []byte, ok bool)
}

// Originals are tool results that were left out of requests to models. Which server they
// are of, if any, is not known. They also reach those that other replicas keep.
type Originals interface {
	// Kept reports whether results are kept at all.
	Kept() bool

	// Original returns the result that is kept for a client under a handle: the body of a
	// JSON string. user is whom a handler in front of the gateway has authenticated.
	Original(user, address, handle string) (body []byte, ok bool)

	// Fetch has Original, and the masks of all servers, find what another replica keeps for a
	// client under a handle. It fails if it cannot be known whether one does.
	Fetch(ctx context.Context, client, user, address, handle string) error
}

// A MaskRequest is a request whose answer is masked.
type MaskRequest struct {
	About  mcp.Target   // what it asks for
	Goal   string       // what the client looks for in the answer; "" if it does not say
	Label  string       // of the client in metrics
	Report *mask.Report // gets what is masked; nil if it is not needed
}

// An Observer counts and logs what happens.
type Observer interface {
	// RequestDone is called at the end of each request to a server, and of each request of a
	// client that was not passed on to just one.
	RequestDone(Record)

	// ServerFailed is called when a handshake with a server, or a list of it, has failed.
	// ServerAnswered is called when a handshake has not.
	ServerFailed(*Fault)
	ServerAnswered(server string)

	// Listed is called when a server has listed what it has of a kind: tools, prompts, resources,
	// or nothing of that.
	Listed(server, kind string, items int)

	// Denied is called for each request that is refused.
	Denied(*Denial)

	// CallDone is called for each call when it has ended, also for those that were refused.
	CallDone(Call)

	// Redacted is called when n parts of a message for a client were redacted.
	Redacted(client string, n int)

	// ToolChanged is called when the definition of a tool is not what it was.
	ToolChanged(server, tool string)

	// ToolInvalid is called when a tool is left out because its definition is invalid.
	ToolInvalid(server, tool string, reason error)

	// ToolHidden is called when clients do not see a tool because an [Override] gives its name to another one.
	ToolHidden(server, tool, by string)

	// ToolMissing is called when a server does not list a tool that has an [Override].
	ToolMissing(server, tool string)

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
		return "HTTP " + strconv.Itoa(e.Status)
	}
	return e.Err.Error()
}

func (e *StatusError) Unwrap() error { return e.Err }

// A Denial is a request that was refused.
type Denial struct {
	Client  string // its name, [Anonymous] or [OperatorLabel]
	Label   string // of the client in metrics
	Address string // of its machine
	Method  string
	Target  mcp.Target
	Code    string // why, as error.data.code says
	Rule    string // of the client that decided, if one has
	Reason  error  // more of it, for logs only; may be nil
}

// A NotificationRoute says to which servers a notification of a client is passed on.
type NotificationRoute struct {
	Method  string // in which * stands for any characters
	Servers []string
}

// An Answer says what happens to a message that a server sends on its own account: a question
// such as roots/list, or a notification.
type Answer struct {
	Method string // in which * stands for any characters
	Action AnswerAction
	Result []byte // of the question, if Action is AnswerHere
}

// An AnswerAction is what happens to such a message.
type AnswerAction uint8

const (
	Deliver    AnswerAction = iota // it is passed on to the client
	Drop                           // it is not; a question is refused
	AnswerHere                     // the gateway answers it
)

// A Peer is what Caddy knows of the sender of a request.
type Peer struct {
	User    string // as a handler in front of the gateway has authenticated it
	Trusted string // identity of the command that has started this process; "" for others
	Address string // of its machine
	Path    string // of the request, as the client has sent it

	// Inherited is what [Upstream.Derive] finds at [InheritedKey] in the context of requests
	// that are derived from this one, at Aggregate.
	Inherited any
}

// An EndpointKind is one of the ways in.
type EndpointKind uint8

const (
	Aggregate EndpointKind = iota // all servers as one, over Streamable HTTP
	Single                        // one server, over Streamable HTTP
	RPC                           // one server, by POST of one JSON-RPC message
)

// An Endpoint is where a request comes in.
type Endpoint struct {
	Kind   EndpointKind
	Server string // name or alias; "" at the aggregate
}

// A Client says what a client may do.
type Client struct {
	Name     string           // in which * stands for any characters
	Match    []string         // other names by which it is known
	Policy   *acl.Policy      // nil to allow everything
	Redactor *redact.Redactor // nil to redact nothing
	Limits   []Limit
	View     string // changes with what the client is shown
}

// isPattern reports whether the rules are for several clients.
func (c *Client) isPattern() bool { return strings.Contains(c.Name, "*") }

// A Limit limits how often a client may make requests.
type Limit struct {
	pattern *mcp.Pattern // nil for all requests
	own     ratelimit.Limit
	aside   ratelimit.Limit // for messages that surround requests
}

// asideFactor is how many other messages come with each request: handshakes, notifications,
// answers to questions, streams. They have a budget of their own, so that a client which
// comes back after a cut has as many requests as others.
const asideFactor = 10

// NewLimit returns a Limit on calls of the tools that a pattern selects, or on all requests if
// it is nil.
func NewLimit(l ratelimit.Limit, pattern *mcp.Pattern) Limit {
	aside := l
	aside.Key, aside.N, aside.Burst = l.Key+" aside", asideFactor*l.N, asideFactor*l.Burst
	return Limit{pattern, l, aside}
}
