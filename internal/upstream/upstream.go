// Package upstream passes messages on to MCP servers.
//
// An [Exchange] is one HTTP request to a [Server], and its response. The [Routes] of the server
// answer it; below them is Caddy. On its way to the client a response passes
//
//	arrival.go      its limits: time, size, headers
//	binding.go, tasks.go, endpoint.go
//	                ids of sessions, events, tasks and endpoints become the client's own
//	filter.go       what of lists and messages the client may see; answers.go answers in its place
//	the [Mask]      which shortens results
//	passthrough.go, rpc.go, or a streamable.Reader
//	                what the endpoint makes of it
//
// resume.go asks for the rest of a stream that ended before the answer, and httpsse.go is the way
// to servers of the protocol's first revision. A [Fault] says what a failure tells of a server.
//
// The package knows callers and their rules (package access), but not the sessions of clients, nor
// which servers make an aggregate. [Shared] is what all exchanges of a configuration have in common, and
// [State] what outlives it.
package upstream

import (
	"context"
	"net/http"
	"strconv"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mask"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// Routes are the way to a server: those of its block in the Caddyfile.
type Routes interface {
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

// A Login is how the gateway logs in to a server. The [Routes] send what it takes; a
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

// A MaskRequest is a request whose answer is masked.
type MaskRequest struct {
	About  mcp.Target   // what it asks for
	Goal   string       // what the client looks for in the answer; "" if it does not say
	Label  string       // of the client in metrics
	Report *mask.Report // gets what is masked; nil if it is not needed
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

// An EndpointKind is one of the ways in.
type EndpointKind uint8

const (
	Aggregate EndpointKind = iota // all servers as one, over Streamable HTTP
	Single                        // one server, over Streamable HTTP
	RPC                           // one server, by POST of one JSON-RPC message
)
