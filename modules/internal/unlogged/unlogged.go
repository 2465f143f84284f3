// Package unlogged keeps credentials out of what Caddy's reverse_proxy logs. That is all
// headers of a request, at level WARN whenever a client hangs up in mid-answer, and at
// level DEBUG those of the response as well. Caddy itself hides Authorization and cookies
// only, but servers are given keys in any header.
package unlogged

import (
	"net/http"
	"strings"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/unlogged"
)

// shown are the headers whose values are logged.
var shown = map[string]bool{
	"Accept": true, "Accept-Encoding": true, "Accept-Language": true, "Content-Length": true, "Content-Type": true, "User-Agent": true, "Via": true,
	"Mcp-Method": true, "Mcp-Protocol-Version": true, "Traceparent": true, "X-Request-Id": true,
	"X-Forwarded-For": true, "X-Forwarded-Host": true, "X-Forwarded-Proto": true,
}

var redacted = []string{"REDACTED"}

// A Headers is what of the headers of requests may be logged.
type Headers bool

// HeadersFor returns what a logger needs. reverse_proxy prepares a line for each request, and
// writes it at level DEBUG, or if a client hangs up. Headers are a large part of that work, so
// they are in the line only if it is written for each request.
func HeadersFor(logger *zap.Logger) Headers {
	return Headers(logger.Core().Enabled(zapcore.DebugLevel))
}

// RoundTrip makes a request by a transport of a reverse_proxy. When it returns, r is as it
// may be logged: reverse_proxy has no other use for it then. The id of a session is taken
// out of the response if there is a [unlogged.Session] to keep it, which also knows of a client that leaves.
func (logged Headers) RoundTrip(
	r *http.Request, transport func(*http.Request) (*http.Response, error),
) (*http.Response, error) {
	if r.Context().Value(caddyhttp.VarsCtxKey) == nil { // a health check of reverse_proxy's own, which logs no headers
		return transport(r)
	}
	res, err := transport(r.WithContext(r.Context())) // which may still read its request when the response is there
	header := r.Header
	r.Header = nil
	if logged {
		r.Header = loggable(header)
	}
	r.RequestURI, _, _ = strings.Cut(r.RequestURI, "?") // where keys and sessions can be, too
	if err != nil {
		return res, err
	}
	unlogged.Hide(r.Context(), res)
	return res, nil
}

// loggable returns a header with the values that are logged.
func loggable(header http.Header) http.Header {
	logged := make(http.Header, len(header))
	for name, values := range header {
		if logged[name] = redacted; shown[name] {
			logged[name] = values
		}
	}
	return logged
}
