package upstream

import (
	"maps"
	"net/http"
	"slices"
	"strings"
)

// CredentialHeaders are headers with which clients authenticate.
var CredentialHeaders = headerSet(
	"Authorization", "Cookie", "Proxy-Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key", "X-Auth-Token",
	"X-Access-Token",
)

// OverridingHeaders are headers with which a client could change the path, method, charset or
// protocol of a request. Some frameworks trust them, because proxies set them.
var OverridingHeaders = headerSet(
	"Upgrade", "Accept-Charset",
	"X-Original-Url", "X-Original-Uri", "X-Original-Method", "X-Rewrite-Url", "X-Rewrite-Uri",
	"X-Http-Method-Override", "X-Http-Method", "X-Method-Override",
	"X-Forwarded-Uri", "X-Forwarded-Path", "X-Forwarded-Prefix", "X-Forwarded-Method",
)

// DropHeaders removes the headers of a set. Many servers treat an underscore in a name as a hyphen,
// so such names are removed, too.
func DropHeaders(header http.Header, set map[string]bool) {
	maps.DeleteFunc(header, func(name string, _ []string) bool {
		return set[name] ||
			strings.IndexByte(name, '_') >= 0 && set[http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))]
	})
}

// headerSet returns a set of headers. The names must be canonical, as in http.Header.
func headerSet(names ...string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	return set
}

// DropHopByHop removes the headers that Connection names. reverse_proxy does so as well, but only
// after the handlers of the server's block have set theirs, which a client could then remove.
func DropHopByHop(header http.Header) {
	for _, names := range header["Connection"] {
		for name := range strings.SplitSeq(names, ",") {
			header.Del(strings.TrimSpace(name))
		}
	}
	delete(header, "Connection")
}

// HeaderNames appends the names of headers for which match returns true, sorted.
func HeaderNames(names []string, header http.Header, match func(name string) bool) []string {
	for name := range header {
		if match(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// MayVaryLists reports whether the tools that a server lists may depend on a header. Headers of a
// single request do not count.
func MayVaryLists(name string) bool {
	return !perRequestHeaders[name] && !hasPrefixFold(name, "mcp-") && !hasPrefixFold(name, "sec-") &&
		!hasPrefixFold(name, "x-b3-") && !hasPrefixFold(name, "x-datadog-")
}

// perRequestHeaders are headers that differ between requests of the same client: they describe the
// message, or are for tracing.
var perRequestHeaders = headerSet(
	"Accept", "Accept-Encoding", "Cache-Control", "Connection", "Content-Encoding", "Content-Length", "Content-Type",
	"Date", "Expect", "Idempotency-Key", "If-Modified-Since", "If-None-Match", "Keep-Alive", "Last-Event-Id", "Origin",
	"Pragma", "Priority", "Referer", "Te", "Transfer-Encoding", "B3", "Baggage", "Cf-Ray", "Request-Id", "Sentry-Trace",
	"Traceparent", "Tracestate", "X-Amzn-Trace-Id", "X-Cloud-Trace-Context", "X-Correlation-Id", "X-Request-Id",
)

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// identifyingParts are parts of the names of headers that identify the client, by first letter.
// Other headers, such as those of proxies and tracing, differ from request to request.
var identifyingParts = func() (byLetter ['z' + 1][]string) {
	for _, part := range []string{
		"auth", "cookie", "credential", "key", "passw", "secret", "session", "token", "jwt",
		"user", "account", "customer", "email", "identity", "org", "principal", "project", "role", "subject", "team",
		"tenant", "workspace",
		"cert", "client-dn", "client-id", "device", "group", "scope", "ssl",
		"x-mcp-", // some servers let clients choose tools with such a header
	} {
		byLetter[part[0]] = append(byLetter[part[0]], part)
	}
	return byLetter
}()

// IsIdentifying reports whether a header identifies the client.
func IsIdentifying(name string) bool {
	switch {
	case perRequestHeaders[name], hasPrefixFold(name, "mcp-"), hasPrefixFold(name, "sec-"),
		strings.EqualFold(name, "user-agent"), strings.EqualFold(name, "idempotency-key"):
		return false
	}
	for i := range len(name) {
		first := name[i] | 0x20 // lower case, if it is a letter
		if first >= byte(len(identifyingParts)) {
			continue
		}
		if slices.ContainsFunc(identifyingParts[first], func(part string) bool { return hasPrefixFold(name[i:], part) }) {
			return true
		}
	}
	return false
}
