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

// An opening is what a stream needs of the visit that has opened it. It holds nothing of the
// handler, which may return before the stream ends.
type opening struct {
	g       *Gateway
	request keptRequest // on behalf of which servers are listened to
	caller  access.Caller
	client  *client
	out     *streamable.Writer
	id      []byte // of the request that is answered at the end, if wants is set
	asides  upstream.Asides
}

// open returns the opening of a stream.
func (v *visit) open() opening {
	return opening{g: v.g, request: keepRequest(v.HTTP), caller: v.Caller, client: v.client, out: v.out,
		id: v.Message.Literal(jsonrpc.ID)}
}

// A keptRequest is a request without its body and its context, in less memory. Most streams
// never need it: another one of the audience listens to the servers.
type keptRequest struct {
	method, uri, proto, host, remote string

	url    *url.URL
	tls    *tls.ConnectionState
	header []headerField
}

// A headerField is the values of a header.
type headerField struct {
	name   string
	values []string
}

// keepRequest returns what is kept of a request. It leaves out the session id, which is long:
// requests to servers have others.
func keepRequest(r *http.Request) keptRequest {
	k := keptRequest{method: r.Method, uri: r.RequestURI, proto: r.Proto, host: r.Host, remote: r.RemoteAddr,
		url: r.URL, tls: r.TLS, header: make([]headerField, 0, len(r.Header))}
	for name, values := range r.Header {
		if name != mcp.SessionHeader {
			// Values of all headers may be in one array, which would keep the session id.
			k.header = append(k.header, headerField{name, slices.Clone(values)})
		}
	}
	return k
}

// size returns about how much memory it takes.
func (k *keptRequest) size() int64 {
	size := 1<<9 + len(k.uri) + len(k.host)
	for _, field := range k.header {
		size += fieldSize(field.name, field.values)
	}
	return int64(size)
}

// fieldSize returns how long a header is.
func fieldSize(name string, values []string) int {
	size := len(name)
	for _, value := range values {
		size += len(value)
	}
	return size
}

// in returns the request in a context.
func (k *keptRequest) in(ctx context.Context) *http.Request {
	r := &http.Request{Method: k.method, RequestURI: k.uri, Proto: k.proto, Host: k.host, RemoteAddr: k.remote,
		URL: k.url, TLS: k.tls, Header: make(http.Header, len(k.header)), Body: http.NoBody}
	r.ProtoMajor, r.ProtoMinor, _ = http.ParseHTTPVersion(k.proto)
	for _, field := range k.header {
		r.Header[field.name] = slices.Clone(field.values)
	}
	return r.WithContext(ctx)
}
