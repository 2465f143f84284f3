package httpsse

import (
	"bytes"
	"errors"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/sse"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// A stream is the http.ResponseWriter for the event stream of a session.
type stream struct {
	session      *session
	header       http.Header
	status       int
	err          error // why reading stopped
	refusal      error // why the response is refused
	refusedBytes int   // bytes of such a response

	events    sse.Scanner
	fields    sse.Fields
	data      []byte // of the current event
	lineEnded bool   // a line of it has ended
}

const (
	// maxMessage is the maximum size of a message, in bytes.
	maxMessage = 64 << 20
	// maxEndpoint is the maximum size of the endpoint event, and of each event before it.
	maxEndpoint = 8 << 10
	// keptBuffer is the largest buffer that is reused for the next message.
	keptBuffer = 64 << 10
	// maxRefusedBody and refusedBodyTime limit how much is read of a response that is not a stream.
	// reverse_proxy would log an error if it was aborted at once.
	maxRefusedBody  = 64 << 10
	refusedBodyTime = time.Second
)

func (w *stream) Header() http.Header { return w.header }

func (w *stream) WriteHeader(status int) {
	if w.status != 0 || status < 200 {
		return
	}
	w.status = status
	switch {
	case IsInconclusive(status):
		w.refuse(jsonrpc.HTTPError(w.session.upstream.Name, status))
	case status != http.StatusOK, httpbody.Encoding(w.header) != "",
		httpbody.TypeOf(w.header.Get("Content-Type")) != httpbody.EventStream:
		w.refuse(ErrNotSupported)
	}
}

// refuse ends the session at the end of the response, or after refusedBodyTime.
func (w *stream) refuse(err error) {
	w.refusal = err
	time.AfterFunc(refusedBodyTime, func() { w.session.end(err) })
}

// IsInconclusive reports whether a status says nothing about the transport of a server.
func IsInconclusive(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired,
		http.StatusRequestTimeout, http.StatusTooManyRequests:
		return true
	}
	return status >= 500
}

// Write parses the next bytes of the stream.
func (w *stream) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if w.refusal != nil {
		w.refusedBytes += len(p)
		if w.refusedBytes > maxRefusedBody {
			w.fail(w.refusal)
		}
		return len(p), w.err
	}
	w.events.Each(p, w.addPart)
	return len(p), w.err
}

// FlushError does nothing: messages are delivered as they come.
func (w *stream) FlushError() error { return w.err }

func (w *stream) fail(err error) {
	if w.err == nil {
		w.err = err
		w.session.end(err)
	}
}

func (w *stream) addPart(kind sse.Kind, part []byte) {
	if w.err != nil {
		return
	}
	switch kind {
	case sse.Data:
		if w.lineEnded && len(w.data) > 0 {
			w.data = append(w.data, '\n')
		}
		w.lineEnded = false
		w.data = append(w.data, part...)
		if len(w.data) > w.limit() {
			w.tooLarge()
		}
	case sse.Frame:
		w.lineEnded = true
		w.fields.Read(part)
	case sse.Dispatch:
		w.dispatch()
		w.fields.Reset()
		w.data = w.data[:0]
		if cap(w.data) > keptBuffer {
			w.data = nil
		}
	}
}

// limit returns the maximum size of the current event.
func (w *stream) limit() int {
	if w.session.endpoint == nil {
		return maxEndpoint
	}
	return maxMessage
}

func (w *stream) tooLarge() {
	if w.session.endpoint == nil {
		w.fail(ErrNotSupported)
		return
	}
	w.fail(streamable.TooLarge(w.session.upstream.Name, maxMessage))
}

// dispatch handles an event. The first endpoint event counts; before it there are no messages.
func (w *stream) dispatch() {
	s := w.session
	switch event := (&streamable.Event{Type: w.fields.Type, Data: w.data}); {
	case w.fields.Type == "endpoint" && s.endpoint == nil:
		endpoint, err := s.upstream.resolve(string(bytes.TrimSpace(w.data)), s.opening.Host)
		if err != nil {
			failure := jsonrpc.InvalidResponse(s.upstream.Name)
			failure.Message = err.Error()
			w.fail(failure)
			return
		}
		s.endpoint, s.opening = endpoint, nil
		close(s.endpointKnown)
	case event.HasMessage() && s.endpoint != nil:
		m := new(jsonrpc.Message)
		if m.Read(bytes.Clone(w.data)) == nil { // valid messages may follow an invalid one
			s.receive(m)
		}
	}
}

var (
	errEndpointInvalid = errors.New("the MCP server announced an invalid endpoint URL")
	errEndpointHost    = errors.New("the MCP server announced an endpoint at another host, which is not allowed")
)

// resolve returns the endpoint that a server has announced. host is the host of the request. Only
// the path and the query of the URL are used, and a URL at another host is refused.
func (u *Upstream) resolve(address, host string) (*url.URL, error) {
	ref, err := url.Parse(address)
	if err != nil || address == "" || ref.Opaque != "" || ref.User != nil {
		return nil, errEndpointInvalid
	}
	if ref.Scheme != "" && ref.Scheme != "http" && ref.Scheme != "https" {
		return nil, errEndpointInvalid
	}
	isAt := func(host string) bool { return sameHost(ref, host) }
	if ref.Host != "" && !isAt(host) && !slices.ContainsFunc(u.Hosts, isAt) {
		return nil, errEndpointHost
	}
	endpoint := u.Target.ResolveReference(ref)
	return &url.URL{Path: endpoint.Path, RawPath: endpoint.RawPath, RawQuery: endpoint.RawQuery}, nil
}

// sameHost reports whether a URL is at a host, which may have a port. All local names are equal,
// because servers do not know by which one they are reached.
func sameHost(u *url.URL, host string) bool {
	name, port, err := net.SplitHostPort(host)
	if err != nil {
		name, port = host, ""
	}
	own := u.Port()
	for _, p := range []*string{&own, &port} {
		if *p == "" {
			*p = "80"
			if u.Scheme == "https" {
				*p = "443"
			}
		}
	}
	return own == port && (strings.EqualFold(u.Hostname(), name) || isLocal(u.Hostname()) && isLocal(name))
}

func isLocal(name string) bool {
	ip := net.ParseIP(name)
	return name == "localhost" || ip != nil && (ip.IsLoopback() || ip.IsUnspecified())
}

// Interface guard
var _ http.ResponseWriter = (*stream)(nil)
