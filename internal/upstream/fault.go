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

// A Fault is why a server did not answer a request.
type Fault struct {
	Server    string
	Tried     string // method of the request
	Path      string // where the server was asked, without the query
	Cause     jsonrpc.Cause
	Reason    string   // the cause on one line, for operators
	Stderr    []string // last lines that a child process wrote there, for operators
	Certainty Certainty
	Retry     time.Duration // until the next attempt; 0 if that is not known
}

// A Certainty is how much a fault says of the server.
type Certainty uint8

const (
	Certain  Certainty = iota // the server cannot be used
	Doubtful                  // a call failed; others may not
	Weak                      // the server refuses a request; that counts if it has answered no other
)

// Fault returns why the server did not answer a request. limit is how long it had.
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

// FaultOf returns why the server did not answer a request of the routes themselves.
func (s *Server) FaultOf(err error, tried string) *Fault {
	return s.Fault(jsonrpc.ConnectError(s.Name, causeOf(err)).Because(err), tried, 0)
}

// WrongAnswer returns an error that describes a response without a JSON-RPC answer.
func WrongAnswer(status int, contentType string) error { return &wrongAnswer{status, contentType} }

// reason returns what went wrong, for operators.
func (s *Server) reason(failure *jsonrpc.Failure, limit time.Duration) string {
	if known, ok := errors.AsType[knownCause](failure.Err); ok {
		return known.Error()
	}
	if wrong, ok := errors.AsType[*wrongAnswer](failure.Err); ok {
		return wrong.text(s)
	}
	switch {
	case failure.Data.Symbol == "timeout" && s.ChildrenOnly && failure.Cause == jsonrpc.CauseStarting:
		return fmt.Sprintf("not initialized within %s; it runs, but has not answered: is it an MCP server on stdio?",
			limit)
	case failure.Data.Symbol == "timeout":
		return fmt.Sprintf("no answer within %s", limit)
	case failure.Data.StatusCode != 0:
		return (&wrongAnswer{status: failure.Data.StatusCode}).text(s)
	case failure.Err != nil && failure.Data.Symbol == "connect_error":
		return failure.Err.Error()
	}
	return failure.Message
}

// A knownCause is an error that says itself what clients may be told of it.
type knownCause interface {
	error
	Cause() jsonrpc.Cause
}

// causeOf returns what clients may be told of an error of the routes of a server.
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

// dialCauses tell errors of connections apart by their texts: reverse_proxy wraps those of dialing in a
// type that does not let them be unwrapped.
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

// A wrongAnswer is a response that has no JSON-RPC answer.
type wrongAnswer struct {
	status      int
	contentType string
}

func (e *wrongAnswer) Error() string { return e.text(nil) }

// text describes the response of a server. A page, or nothing at all at the path, means that
// something else answers there.
func (e *wrongAnswer) text(s *Server) string {
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
		return text + " without a JSON-RPC answer"
	case e.status == http.StatusOK, e.status == http.StatusNotFound, e.status < 500 && strings.HasSuffix(media, "html"):
		if s != nil && s.DefaultPath {
			text += "; set the path in the URL, it is mostly /mcp"
		}
		return string(jsonrpc.CauseNotMCP) + ": " + text
	}
	return text
}

// contact reports what the end of a request of a client says of the server: that it has answered, or
// why not. Both are unset if it says nothing: the client has canceled it, a rule has refused it.
func (x *Exchange) contact(httpMethod string) (answered bool, _ *Fault) {
	if httpMethod != http.MethodPost || !x.Message.IsRequest() || x.Own || x.Left {
		return false, nil
	}
	if x.answered {
		return true, nil
	}
	failure := x.verdict
	if failure == nil {
		failure = x.wrongResponse()
	}
	if failure == nil || failure.Cause == jsonrpc.CauseTooLarge {
		return false, nil
	}
	certainty := Certain
	switch failure.Data.Symbol {
	case "connect_error":
		if x.Server.ChildrenOnly && failure.Cause == jsonrpc.CauseEnded {
			return false, nil // its pool logs that, and knows when it is back
		}
	case "timeout":
		certainty = x.certainty()
	case "invalid_json", "invalid_response":
		certainty, failure = x.certainty(), failure.Because(x.WrongAnswer())
	case "http_error":
		if x.isClientsFault(failure.Data.StatusCode) {
			return false, nil
		}
		if certainty = Weak; failure.Data.StatusCode >= 500 {
			certainty = x.certainty()
		}
		failure = failure.Because(x.WrongAnswer())
	default:
		return false, nil
	}
	f := x.Server.Fault(failure, x.MethodName(), x.Server.Timeout)
	f.Certainty = certainty
	return false, f
}

// certainty returns how much it says of the server that it did not answer. A tool may be slow or
// broken, and others not.
func (x *Exchange) certainty() Certainty {
	switch method := x.MethodName(); {
	case method == "initialize", method == "server/discover", method == "ping", strings.HasSuffix(method, "/list"):
		return Certain
	}
	return Doubtful
}

// wrongResponse returns what is wrong with a response that was passed on as it is; nil if it may
// have an answer, or has ended otherwise.
func (x *Exchange) wrongResponse() *jsonrpc.Failure {
	switch status := x.arrival.status; {
	case x.Outcome == OutcomeCanceled, x.Outcome == OutcomePanic, status == 0:
		return nil
	case status >= 400:
		return jsonrpc.HTTPError(x.Server.Name, status)
	case status == http.StatusOK && x.arrival.contentType != nil:
		return jsonrpc.InvalidResponse(x.Server.Name)
	}
	return nil
}

// isClientsFault reports whether a server that works may refuse a request with this status: for what
// the client has sent, or because its session has ended.
func (x *Exchange) isClientsFault(status int) bool {
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

// WrongAnswer describes the response.
func (x *Exchange) WrongAnswer() error {
	wrong := &wrongAnswer{status: x.arrival.status}
	if x.arrival.contentType != nil {
		wrong.contentType = *x.arrival.contentType
	}
	return wrong
}

// NoteFailure notes why the last handshake with the server failed; nil if it did not.
func (s *Server) NoteFailure(failure *jsonrpc.Failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastFailure = failure
}

// MissingCause returns why a server that a client does not see is not there.
func (s *Server) MissingCause() jsonrpc.Cause {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lastFailure == nil {
		return jsonrpc.CauseStarting
	}
	return s.lastFailure.Short()
}
