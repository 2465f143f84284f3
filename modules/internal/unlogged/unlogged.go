// Package unlogged keeps credentials out of the logs of Caddy's reverse_proxy. When a client
// disconnects in mid-response, reverse_proxy logs all headers of the request at level WARN, and at
// level DEBUG also those of the response. Caddy itself hides only Authorization and cookies, but
// servers get keys in any header.
package unlogged

import (
	"net/http"
	"strings"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/unlogged"
)

// loggedHeaders lists the headers whose values are logged.
var loggedHeaders = map[string]bool{
	"Accept": true, "Accept-Encoding": true, "Accept-Language": true,
	"Content-Length": true, "Content-Type": true, "User-Agent": true, "Via": true,
	"Mcp-Method": true, "Mcp-Protocol-Version": true, "Traceparent": true, "X-Request-Id": true,
	"X-Forwarded-For": true, "X-Forwarded-Host": true, "X-Forwarded-Proto": true,
}

var redacted = []string{"REDACTED"}

// A Headers says whether request headers are logged.
type Headers bool

// HeadersFor returns the Headers for a logger. reverse_proxy prepares a log entry for each request,
// but writes it only at level DEBUG or when a client disconnects. Headers are a large part of that
// work, so the entry has them only at level DEBUG.
func HeadersFor(logger *zap.Logger) Headers {
	return Headers(logger.Core().Enabled(zapcore.DebugLevel))
}

// RoundTrip sends a request with a transport of reverse_proxy. Then it removes from r what must not
// be logged; reverse_proxy uses r only for the log by then. RoundTrip also moves the session id
// from the response to the context's [unlogged.Session], if there is one.
func (logged Headers) RoundTrip(
	r *http.Request, transport func(*http.Request) (*http.Response, error),
) (*http.Response, error) {
	if r.Context().Value(caddyhttp.VarsCtxKey) == nil { // a health check of reverse_proxy, which logs no headers
		return transport(r)
	}
	res, err := transport(r.WithContext(r.Context())) // a copy: the transport may still read it after the response arrives
	header := r.Header
	r.Header = nil
	if logged {
		r.Header = loggable(header)
	}
	r.RequestURI, _, _ = strings.Cut(r.RequestURI, "?") // the query may contain keys and sessions
	if err != nil {
		return res, err
	}
	unlogged.Hide(r.Context(), res)
	return res, nil
}

// loggable returns a copy of a header, in which all values that must not be logged are redacted.
func loggable(header http.Header) http.Header {
	logged := make(http.Header, len(header))
	for name, values := range header {
		logged[name] = redacted
		if loggedHeaders[name] {
			logged[name] = values
		}
	}
	return logged
}
