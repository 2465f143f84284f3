package streamable

import (
	"errors"
	"net/http"
	"os"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// ReadBody reads the body of a POST, of at most limit bytes. The client must keep the
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

// A Request describes an HTTP request of a client.
type Request struct {
	Kind    Kind
	Era     mcp.Era
	Session string // session id; empty for none, and always in the modern era
}

// A Kind is a kind of request. It decides the form of the response.
type Kind uint8

// Kinds of requests.
const (
	Call         Kind = iota // JSON-RPC response, after any other messages
	Initialize               // response that begins a session
	Notification             // status 202
	Answer                   // response to a server request: status 202
	Listen                   // stream of the session
	End                      // ends the session
)

// Inspect describes r. m is the message of a POST, read by [jsonrpc.Message.ReadRequest]. Inspect
// checks the headers of a modern call, but not the protocol version, see [CheckVersion].
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

// inspect handles a POST of m.
func (req *Request) inspect(header http.Header, version string, m *jsonrpc.Message) *jsonrpc.Failure {
	if failure := m.Check(); failure != nil {
		return failure
	}
	req.Era = mcp.EraOf(version, m)
	if req.Era == mcp.Modern {
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

// CheckVersion refuses a modern call with an unsupported protocol version.
func CheckVersion(m *jsonrpc.Message) *jsonrpc.Failure {
	if m.Is(jsonrpc.ProtocolVersion, mcp.Stateless) {
		return nil
	}
	return jsonrpc.UnsupportedVersion(mcp.Shortened(m.Text(jsonrpc.ProtocolVersion)), mcp.Versions())
}

// CloseAfter closes the connection of a client's stream at the end of the stream. Another
// configuration may be active by then: the server would close the connection anyway, maybe just
// when the client sends a request.
func CloseAfter(header http.Header, r *http.Request) {
	if r.ProtoMajor == 1 {
		header.Set("Connection", "close")
	}
}
