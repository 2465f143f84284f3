package streamable

import (
	"errors"
	"net/http"
	"os"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// ReadBody reads the body of a POST, of at most limit bytes. The client must keep to
// [httpbody.Pace].
func ReadBody(r *http.Request, limit int64) ([]byte, *jsonrpc.Failure) {
	if httpbody.Encoding(r.Header) != "" {
		return nil, jsonrpc.UnsupportedEncoding()
	}
	if r.ContentLength > limit {
		return nil, jsonrpc.PayloadTooLarge()
	}
	body, err := httpbody.ReadWithin(r, limit, httpbody.Pace)
	_, tooLarge := errors.AsType[*http.MaxBytesError](err)
	switch {
	case tooLarge, int64(len(body)) > limit:
		return nil, jsonrpc.PayloadTooLarge()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, jsonrpc.RequestTimeout()
	case err != nil:
		return nil, jsonrpc.ParseError()
	}
	return body, nil
}

// A Request is what a client asks a server for with an HTTP request.
type Request struct {
	Kind    Kind
	Era     mcp.Era
	Session string // that it belongs to; empty for none, always so in the modern era
}

// A Kind is how a request is answered.
type Kind uint8

const (
	Call         Kind = iota // with the answer of JSON-RPC, after any other messages
	Initialize               // with an answer that begins a session
	Notification             // with status 202
	Answer                   // to a question of the server: with status 202
	Listen                   // with the stream of the session
	End                      // of the session
)

// Inspect finds out what r asks for. m is the message of a POST, as [jsonrpc.Message.ReadRequest]
// has read it. Of a call of the modern era it checks the headers, but not whether
// the server speaks its revision; see [CheckVersion].
func Inspect(r *http.Request, m *jsonrpc.Message) (Request, *jsonrpc.Failure) {
	version := r.Header.Get(mcp.VersionHeader)
	req := Request{Session: r.Header.Get(mcp.SessionHeader)}
	switch r.Method {
	case http.MethodPost:
		return req, req.inspect(r.Header, version, m)
	case http.MethodGet:
		req.Kind = Listen
	case http.MethodDelete:
		req.Kind = End
	default:
		return req, jsonrpc.MethodNotAllowed("POST", "GET", "DELETE")
	}
	if version != "" && !mcp.IsLegacy(version) {
		return req, jsonrpc.MethodNotAllowed("POST") // the modern era has no sessions
	}
	return req, nil
}

// inspect finds out what a POST of m asks for.
func (req *Request) inspect(header http.Header, version string, m *jsonrpc.Message) *jsonrpc.Failure {
	if failure := m.Check(); failure != nil {
		return failure
	}
	if req.Era = mcp.EraOf(version, m); req.Era == mcp.Modern {
		req.Session = ""
	}
	switch {
	case m.IsNotification():
		req.Kind = Notification
	case !m.IsRequest():
		req.Kind = Answer
	case req.Era == mcp.Modern:
		return mcp.CheckModern(header, m)
	case m.Is(jsonrpc.Method, "initialize"):
		req.Kind, req.Session = Initialize, ""
	}
	return nil
}

// CheckVersion refuses a call of the modern era of another revision than ours.
func CheckVersion(m *jsonrpc.Message) *jsonrpc.Failure {
	if m.Is(jsonrpc.ProtocolVersion, mcp.Stateless) {
		return nil
	}
	return jsonrpc.UnsupportedVersion(mcp.Shortened(m.Text(jsonrpc.ProtocolVersion)), mcp.Versions())
}

// CloseAfter has the connection of a stream that a client listens to closed at its end. Another configuration may
// have taken over by then: the server would close the connection anyway, maybe just when the client sends a request.
func CloseAfter(header http.Header, r *http.Request) {
	if r.ProtoMajor == 1 {
		header.Set("Connection", "close")
	}
}
