package gateway

import (
	"maps"
	"net/http"
	"strings"
)

// credentials are the headers by which clients authenticate.
var credentials = headerSet("Authorization", "Cookie", "Proxy-Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key", "X-Auth-Token", "X-Access-Token")

// overrides are the headers by which a client could have a server take a request for
// another one: of another path, method, charset or protocol. Frameworks believe some of
// them, because proxies set them.
var overrides = headerSet(
	"Upgrade", "Accept-Charset",
	"X-Original-Url", "X-Original-Uri", "X-Original-Method", "X-Rewrite-Url", "X-Rewrite-Uri",
	"X-Http-Method-Override", "X-Http-Method", "X-Method-Override",
	"X-Forwarded-Uri", "X-Forwarded-Path", "X-Forwarded-Prefix", "X-Forwarded-Method",
)

// stripOverrides takes off a request what the gateway has decided itself.
func stripOverrides(header http.Header) { dropHeaders(header, overrides) }

// answerHeaders are the headers of a server's answer that clients get, besides those of
// MCP and of rate limits, see passesHeader. All servers are one origin with one
// credential, so nothing is among them by which a server could send a client elsewhere,
// have it keep or forget something, or change what its browser may do there.
var answerHeaders = headerSet(
	"Content-Type", "Content-Length", "Content-Encoding", "Content-Language", "Content-Digest", "Repr-Digest", "Etag", "Last-Modified",
	"Cache-Control", "Expires", "Age", "Vary", "Via", "Allow", "Retry-After", "X-Accel-Buffering",
	"X-Request-Id", "X-Correlation-Id", "Request-Id", "Traceparent", "Tracestate", "Traceresponse", "Server-Timing",
)

// passesHeader reports whether clients get a header of the server's answer.
func (a *arrival) passesHeader(name string) bool {
	switch {
	case answerHeaders[name], strings.HasPrefix(name, "Mcp-"), strings.HasPrefix(name, "Ratelimit"), strings.HasPrefix(name, "X-Ratelimit-"):
		return true
	case name == "Www-Authenticate":
		return a.x.server.ForwardAuth // else its clients cannot log in there
	}
	return false
}

// dropHeaders takes off a request the headers of a set. To many servers an underscore in
// a name is a hyphen.
func dropHeaders(header http.Header, set map[string]bool) {
	maps.DeleteFunc(header, func(name string, _ []string) bool {
		return set[name] || strings.IndexByte(name, '_') >= 0 && set[http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))]
	})
}

func headerSet(names ...string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	return set
}
