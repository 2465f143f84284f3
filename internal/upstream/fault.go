package upstream

import (
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// A Fault is why a server did not respond to a request.
type Fault struct {
	Server    string
	Tried     string // method of the request
	Path      string // path of the request to the server, without the query
	Cause     jsonrpc.Cause
	Reason    string   // the cause on one line, for operators
	Stderr    []string // last lines that a child process wrote to stderr, for operators
	Certainty Certainty
	Retry     time.Duration // time until the next attempt; 0 if unknown
}

// A Certainty is how much a fault says about the server.
type Certainty uint8

// Degrees of certainty.
const (
	Certain  Certainty = iota // the server cannot be used
	Doubtful                  // one call failed; others may succeed
	Weak                      // the server refused a request; counts if it has not responded to another
)

// Fault returns why the server did not respond to a request. limit is the timeout that it had.
func (s *Server) Fault(failure *jsonrpc.Failure, tried string, limit time.Duration) *Fault {
	f := &Fault{Server: s.Name, Tried: tried, Cause: failure.Short()}
	if s.Target != nil && !s.ChildrenOnly {
		f.Path = s.Target.Path
	}
	if child, ok := errors.AsType[interface {
		error
		Stderr() []string
	}](failure.Err); ok {
		f.Stderr = child.Stderr()
	}
	f.Reason = mcp.OneLine(s.reason(failure, limit))
	return f
}

// FaultOf returns the fault for an error of the routes of the server.
func (s *Server) FaultOf(err error, tried string) *Fault {
	return s.Fault(jsonrpc.ConnectError(s.Name, causeOf(err)).Because(err), tried, 0)
}

// UnexpectedResponse returns an error for an HTTP response without a JSON-RPC response.
func UnexpectedResponse(status int, contentType string) error {
	return &unexpectedResponse{status, contentType}
}

// reason describes a failure for operators.
func (s *Server) reason(failure *jsonrpc.Failure, limit time.Duration) string {
	if known, ok := errors.AsType[knownCause](failure.Err); ok {
		return known.Error()
	}
	if unexpected, ok := errors.AsType[*unexpectedResponse](failure.Err); ok {
		return unexpected.text(s)
	}
	switch {
	case failure.Data.Symbol == "timeout" && s.ChildrenOnly && failure.Cause == jsonrpc.CauseStarting:
		return fmt.Sprintf("not initialized within %s: the process runs, but has not answered; "+
			"check that it is an MCP server on stdio", limit)
	case failure.Data.Symbol == "timeout":
		return fmt.Sprintf("no response within %s", limit)
	case failure.Data.StatusCode != 0:
		return (&unexpectedResponse{status: failure.Data.StatusCode}).text(s)
	case failure.Err != nil && failure.Data.Symbol == "connect_error":
		return failure.Err.Error()
	}
	return failure.Message
}

// A knownCause is an error with a cause that clients may see.
type knownCause interface {
	error
	Cause() jsonrpc.Cause
}

// causeOf returns the cause that clients see for an error of the routes of a server.
func causeOf(err error) jsonrpc.Cause {
	if known, ok := errors.AsType[knownCause](err); ok {
		return known.Cause()
	}
	if err == nil {
		return jsonrpc.CauseNoRoute
	}
	if errors.Is(err, errAborted) {
		return jsonrpc.CauseLost
	}
	text := err.Error()
	for _, known := range dialCauses {
		if strings.Contains(text, known.text) {
			return known.cause
		}
	}
	return jsonrpc.CauseNoRoute
}

// dialCauses tell connection errors apart by their texts: reverse_proxy wraps dial errors in a type
// that cannot be unwrapped.
var dialCauses = [...]struct {
	text  string
	cause jsonrpc.Cause
}{
	{"dial tcp: lookup ", jsonrpc.CauseNoHost},
	{": connection refused", jsonrpc.CauseRefused},
	{"actively refused", jsonrpc.CauseRefused}, // on Windows
	{"tls: ", jsonrpc.CauseTLS},
	{"x509: ", jsonrpc.CauseTLS},
	{"dial ", jsonrpc.CauseNoRoute},
	{"EOF", jsonrpc.CauseLost},
	{"connection reset", jsonrpc.CauseLost},
	{"broken pipe", jsonrpc.CauseLost},
}

// An unexpectedResponse is an HTTP response without a JSON-RPC response.
type unexpectedResponse struct {
	status      int
	contentType string
}

func (e *unexpectedResponse) Error() string { return e.text(nil) }

// text describes the response of a server. A web page, or a 404, means that the URL is not that of
// an MCP server.
func (e *unexpectedResponse) text(s *Server) string {
	media := ""
	if httpbody.TypeOf(e.contentType) == httpbody.Other {
		media, _, _ = mime.ParseMediaType(e.contentType)
	}
	text := fmt.Sprintf("HTTP %d", e.status)
	if media != "" {
		text += " " + media
	}
	if s != nil && s.URL != "" {
		text += " from " + s.URL
	}
	switch {
	case e.status == http.StatusOK && media == "":
		return text + " without a JSON-RPC response"
	case e.status == http.StatusOK, e.status == http.StatusNotFound, e.status < 500 && strings.HasSuffix(media, "html"):
		if s != nil && s.DefaultPath {
			text += "; set the path in the URL, usually /mcp"
		}
		return string(jsonrpc.CauseNotMCP) + ": " + text
	}
	return text
}

// fault returns why the server did not respond to a client's request. It is nil if that is unknown,
// as when the client canceled or a rule denied the request.
func (x *Exchange) fault() *Fault {
	failure := x.failure
	if failure == nil && x.Outcome != OutcomeCanceled && x.Outcome != OutcomePanic {
		failure = x.receiver.failure()
	}
	if failure == nil || failure.Cause == jsonrpc.CauseTooLarge {
		return nil
	}
	certainty := Certain
	switch failure.Data.Symbol {
	case "connect_error":
		if x.Server.ChildrenOnly && failure.Cause == jsonrpc.CauseEnded {
			return nil // its pool logs that, and knows when it is back
		}
	case "timeout":
		certainty = certaintyOf(x.MethodName())
	case "invalid_json", "invalid_response":
		certainty, failure = certaintyOf(x.MethodName()), failure.Because(x.UnexpectedResponse())
	case "http_error":
		if x.isClientFault(failure.Data.StatusCode) {
			return nil
		}
		certainty = Weak
		if failure.Data.StatusCode >= 500 {
			certainty = certaintyOf(x.MethodName())
		}
		failure = failure.Because(x.UnexpectedResponse())
	default:
		return nil
	}
	f := x.Server.Fault(failure, x.MethodName(), x.Server.Timeout)
	f.Certainty = certainty
	return f
}

// certaintyOf returns how much a missing response to a method says about the server. One tool may
// be slow or broken while others work.
func certaintyOf(method string) Certainty {
	switch {
	case method == "initialize", method == "server/discover", method == "ping", strings.HasSuffix(method, "/list"):
		return Certain
	}
	return Doubtful
}

// failure returns the failure for a response that was forwarded unchanged; nil if it may have a
// JSON-RPC response, or there was none.
func (rr *responseReceiver) failure() *jsonrpc.Failure {
	switch {
	case rr.status >= 400:
		return jsonrpc.HTTPError(rr.x.Server.Name, rr.status)
	case rr.status == http.StatusOK && rr.contentType != nil:
		return jsonrpc.InvalidResponse(rr.x.Server.Name)
	}
	return nil
}

// isClientFault reports whether a working server may refuse a request with this status: because of
// what the client sent, or because its session has ended.
func (x *Exchange) isClientFault(status int) bool {
	switch status {
	case http.StatusBadRequest, http.StatusTooManyRequests:
		return true
	case http.StatusUnauthorized, http.StatusForbidden:
		return x.Server.ForwardAuth
	case http.StatusNotFound:
		return x.Kind != RPC && !x.Message.Is(jsonrpc.Method, "initialize")
	}
	return false
}

// UnexpectedResponse returns an error that describes the response.
func (x *Exchange) UnexpectedResponse() error {
	unexpected := &unexpectedResponse{status: x.receiver.status}
	if x.receiver.contentType != nil {
		unexpected.contentType = *x.receiver.contentType
	}
	return unexpected
}

// NoteFailure records the failure of the last handshake with the server; nil if it succeeded.
func (s *Server) NoteFailure(failure *jsonrpc.Failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastFailure = failure
}

// MissingCause returns why a server is missing from the lists of clients.
func (s *Server) MissingCause() jsonrpc.Cause {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lastFailure == nil {
		return jsonrpc.CauseStarting
	}
	return s.lastFailure.Short()
}
