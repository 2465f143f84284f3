// Package upstream forwards messages to MCP servers.
//
// An [Exchange] is one HTTP request to a [Server] with its response. The [Routes] of the server
// handle it; below them is Caddy. A response passes, on its way to the client, through
//
//	receiver.go     limits of size, headers and time
//	binding.go, tasks.go, httpsse.go
//	                binds the ids of sessions, events, tasks and endpoints to the client
//	filter.go       removes list items and messages the client may not see;
//	                answers.go answers server requests instead of the client
//	the [Mask]      shortens results
//	passthrough.go, rpc.go, or a streamable.Reader
//	                writes it in the form of the endpoint
//
// resume.go requests the rest of a stream that ended before its response, and httpsse.go reaches
// servers that use HTTP+SSE, the transport of 2024-11-05. A [Fault] describes why a server failed.
//
// The package knows callers and their rules (package access). It does not know client sessions, nor
// which servers form an aggregate. [Shared] is common to all exchanges of a configuration.
// [Retained] is kept over configuration reloads.
package upstream

import (
	"context"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpsse"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mask"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/seal"
)

// Routes are the Caddy routes of a server: those of its block in the Caddyfile.
type Routes interface {
	// Derive returns a request to the server on behalf of the client that sent r, with r's header
	// and no body. Its context is ctx. If logged is set, fields that handlers add to the access log
	// go to the log entry of r.
	Derive(ctx context.Context, r *http.Request, logged bool) *http.Request

	// Describe sets the placeholders of a request to the server.
	Describe(r *http.Request, placeholder func(name string) (value any, ok bool))

	// Serve runs the routes for r, on behalf of the client with an account; "" for none. If a
	// handler refuses the request, the error is a [StatusError].
	Serve(w http.ResponseWriter, r *http.Request, account string) error
}

// A Login logs the gateway in to a server. The [Routes] send its credentials. A request that needs
// a login first fails with [jsonrpc.LoginRequired].
type Login interface {
	// Await waits until the login for an account is done. It reports false if ctx ends first.
	Await(ctx context.Context, account string) bool
}

// A Handler serves a request.
type Handler interface {
	ServeHTTP(http.ResponseWriter, *http.Request) error
}

// A Mask shortens the results of a server.
type Mask interface {
	// Serve lets next serve r, and writes the masked response to w.
	Serve(w http.ResponseWriter, r *http.Request, about MaskRequest, next Handler) error

	// Exempts reports whether results for a target are never masked.
	Exempts(about mcp.Target) bool

	// Recovers reports whether originals are kept, and how many characters of one can be read at
	// once.
	Recovers() (maxChars int, ok bool)

	// Original returns an original to the client it was masked for. Kept returns it to operators,
	// and does not count as a use. Both know only originals kept by this process.
	Original(client, handle string) (body []byte, about mcp.Target, ok bool)
	Kept(client, handle string) (body []byte, ok bool)
}

// A MaskRequest describes a request whose response is masked.
type MaskRequest struct {
	About  mcp.Target   // target of the request
	Goal   string       // what the client looks for in the response; "" if unknown
	Label  string       // label of the client in metrics
	Report *mask.Report // filled with what was masked; nil if not needed
}

// A StatusError is the refusal of a request by a handler in front of the server.
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

// An Answer says what happens to an unsolicited message from a server: a server request such as
// roots/list, or a notification.
type Answer struct {
	Method string // pattern in which * stands for any characters
	Action AnswerAction
	Result []byte // result of the server request, if Action is Respond
}

// An AnswerAction is what happens to such a message.
type AnswerAction uint8

// Actions of an Answer.
const (
	Deliver AnswerAction = iota // forward it to the client
	Drop                        // drop it; a server request gets an error
	Respond                     // the gateway responds
)

// Shared is common to all exchanges of a gateway.
type Shared struct {
	Logger   *zap.Logger
	Observer Observer

	JoinTimeout   time.Duration // timeout of the handshake with a server, and of each of its lists
	ResponseLimit int64         // in bytes; 0 for no limit
	PinTools      bool          // withhold tools whose definition has changed
	HasClients    bool          // clients have rules, so responses may depend on the client

	// Exiting is done when Caddy exits.
	Exiting context.Context

	// Reauthenticate is done when clients without secrets in the configuration must authenticate
	// again.
	Reauthenticate context.Context

	Private  map[string]bool // headers that servers do not get: credentials and overrides
	Sealer   seal.Sealer     // seals ids and states that clients hold
	Tasks    *Tasks
	Retained *Retained
}

// A Retained has facts about servers that are retained over configuration reloads.
type Retained struct {
	focused     *toolCache[struct{}] // by the name of the focus argument
	annotations *toolCache[toolNote] // by the identity of the client, and its headers
	changes     atomic.Uint64        // number of tool changes of all servers
	httpSSE     *httpsse.Pool        // sessions with servers that use HTTP+SSE
}

// NewRetained returns an empty Retained. The caller must close it.
func NewRetained() *Retained {
	return &Retained{
		focused:     newToolCache[struct{}](focusQuota, focusLimits, focusTime),
		annotations: newToolCache[toolNote](annotationsQuota, annotationLimits, annotationTime),
		httpSSE:     httpsse.NewPool(),
	}
}

// Close drops everything, and ends the HTTP+SSE sessions.
func (r *Retained) Close() {
	r.focused.close()
	r.annotations.close()
	r.httpSSE.Close()
}

// An Observer counts and logs events of exchanges.
type Observer interface {
	// RequestDone is called at the end of each request to a server, and of each request of a client
	// that was not forwarded to exactly one server.
	RequestDone(Record)

	// Redacted is called when n parts of a message for a client were redacted.
	Redacted(client string, n int)

	// ToolChanged is called when the definition of a tool differs from its pin.
	ToolChanged(server, tool string)

	// ToolHidden is called when a tool is hidden because a [toolview.Override] gives its name to
	// another tool. renamed is the server's name of that tool.
	ToolHidden(server, tool, renamed string)

	// ToolsSeen is called after a list of tools was read whose definitions are pinned.
	ToolsSeen(server string)
}

// EndRemovedSessions ends the HTTP+SSE sessions with servers for which exists returns false.
func (r *Retained) EndRemovedSessions(exists func(server string) bool) { r.httpSSE.Keep(exists) }

// EndHTTPSSE ends a session with a server that uses HTTP+SSE.
func (r *Retained) EndHTTPSSE(session string) { r.httpSSE.End(session) }
