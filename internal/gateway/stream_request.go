package gateway

import (
	"context"
	"crypto/tls"
	"net/http"
	"net/url"
	"slices"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A streamRequest is what a stream keeps of the request that opened it. It holds nothing of the
// handler, which may return before the stream ends.
type streamRequest struct {
	g            *Gateway
	request      savedRequest // for requests to servers
	caller       access.Caller
	client       *client
	out          *streamable.Writer
	id           []byte // id of the listen request, answered at the end, if wants is set
	sideRequests upstream.SideRequests
}

// newStreamRequest returns the streamRequest of the request.
func (req *aggregateRequest) newStreamRequest() streamRequest {
	return streamRequest{g: req.g, request: saveRequest(req.HTTP), caller: req.Caller, client: req.client, out: req.out,
		id: req.Message.Literal(jsonrpc.ID)}
}

// A savedRequest is a request without body and context, in less memory. Most streams never use it,
// because another stream of the audience listens.
type savedRequest struct {
	method, uri, proto, host, remote string

	url    *url.URL
	tls    *tls.ConnectionState
	header []headerField
}

// A headerField is a header and its values.
type headerField struct {
	name   string
	values []string
}

// saveRequest returns the savedRequest of r. It leaves out the session id, which is long and not
// sent to servers.
func saveRequest(r *http.Request) savedRequest {
	saved := savedRequest{method: r.Method, uri: r.RequestURI, proto: r.Proto, host: r.Host, remote: r.RemoteAddr,
		url: r.URL, tls: r.TLS, header: make([]headerField, 0, len(r.Header))}
	for name, values := range r.Header {
		if name != mcp.SessionHeader {
			// Clone: all values may share one array, which would keep the session id in memory.
			saved.header = append(saved.header, headerField{name, slices.Clone(values)})
		}
	}
	return saved
}

// size returns the approximate memory use.
func (s *savedRequest) size() int64 {
	size := 1<<9 + len(s.uri) + len(s.host)
	for _, field := range s.header {
		size += fieldSize(field.name, field.values)
	}
	return int64(size)
}

// fieldSize returns the bytes of a header.
func fieldSize(name string, values []string) int {
	size := len(name)
	for _, value := range values {
		size += len(value)
	}
	return size
}

// withContext returns the request with a context.
func (s *savedRequest) withContext(ctx context.Context) *http.Request {
	r := &http.Request{Method: s.method, RequestURI: s.uri, Proto: s.proto, Host: s.host, RemoteAddr: s.remote,
		URL: s.url, TLS: s.tls, Header: make(http.Header, len(s.header)), Body: http.NoBody}
	r.ProtoMajor, r.ProtoMinor, _ = http.ParseHTTPVersion(s.proto)
	for _, field := range s.header {
		r.Header[field.name] = slices.Clone(field.values)
	}
	return r.WithContext(ctx)
}
