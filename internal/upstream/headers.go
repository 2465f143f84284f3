package upstream

import (
	"maps"
	"net/http"
	"slices"
	"strings"
)

// CredentialHeaders are the headers by which clients authenticate.
var CredentialHeaders = headerSet(
	"Authorization", "Cookie", "Proxy-Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key", "X-Auth-Token",
	"X-Access-Token",
)

// OverridingHeaders are the headers by which a client could have a server take a request for
// another one: of another path, method, charset or protocol. Frameworks believe some of
// them, because proxies set them.
var OverridingHeaders = headerSet(
	"Upgrade", "Accept-Charset",
	"X-Original-Url", "X-Original-Uri", "X-Original-Method", "X-Rewrite-Url", "X-Rewrite-Uri",
	"X-Http-Method-Override", "X-Http-Method", "X-Method-Override",
	"X-Forwarded-Uri", "X-Forwarded-Path", "X-Forwarded-Prefix", "X-Forwarded-Method",
)

// DropHeaders takes off a request the headers of a set. To many servers an underscore in
// a name is a hyphen.
func DropHeaders(header http.Header, set map[string]bool) {
	maps.DeleteFunc(header, func(name string, _ []string) bool {
		return set[name] ||
			strings.IndexByte(name, '_') >= 0 && set[http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))]
	})
}

// headerSet returns a set of headers, whose names have to be as http.Header has them.
func headerSet(names ...string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	return set
}

// DropHopByHop removes the headers that Connection names. reverse_proxy does so as well, but
// after the handlers of the server's block have set theirs, which a client could then remove.
func DropHopByHop(header http.Header) {
	for _, names := range header["Connection"] {
		for name := range strings.SplitSeq(names, ",") {
			header.Del(strings.TrimSpace(name))
		}
	}
	delete(header, "Connection")
}

// HeaderNames appends the names of headers that fit, in order.
func HeaderNames(names []string, header http.Header, fits func(name string) bool) []string {
	for name := range header {
		if fits(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// MayChoose reports whether a server may choose by a header what it shows to a client: by any but those
// that belong to a single request.
func MayChoose(name string) bool {
	return !ofOneRequest[name] && !hasPrefixFold(name, "mcp-") && !hasPrefixFold(name, "sec-") &&
		!hasPrefixFold(name, "x-b3-") && !hasPrefixFold(name, "x-datadog-")
}

// ofOneRequest are headers that differ between requests of the same client: they describe the message,
// or are for tracing.
var ofOneRequest = headerSet(
	"Accept", "Accept-Encoding", "Cache-Control", "Connection", "Content-Encoding", "Content-Length", "Content-Type", "Date",
	"Expect", "Idempotency-Key", "If-Modified-Since", "If-None-Match", "Keep-Alive", "Last-Event-Id", "Origin", "Pragma",
	"Priority", "Referer", "Te", "Transfer-Encoding", "B3", "Baggage", "Cf-Ray", "Request-Id", "Sentry-Trace", "Traceparent",
	"Tracestate", "X-Amzn-Trace-Id", "X-Cloud-Trace-Context", "X-Correlation-Id", "X-Request-Id",
)

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// identifying are the parts of names of headers that say who sends them, by their first letter.
// Others differ from request to request, as those do that proxies and tracing add.
var identifying = func() (byLetter ['z' + 1][]string) {
	for _, part := range []string{
		"auth", "cookie", "credential", "key", "passw", "secret", "session", "token", "jwt",
		"user", "account", "customer", "email", "identity", "org", "principal", "project", "role", "subject", "team",
		"tenant", "workspace",
		"cert", "client-dn", "client-id", "device", "group", "scope", "ssl",
		"x-mcp-", // some servers have clients choose tools by such a header
	} {
		byLetter[part[0]] = append(byLetter[part[0]], part)
	}
	return byLetter
}()

// IsIdentifying reports whether a header says who sends it.
func IsIdentifying(name string) bool {
	switch {
	case ofOneRequest[name], hasPrefixFold(name, "mcp-"), hasPrefixFold(name, "sec-"),
		strings.EqualFold(name, "user-agent"), strings.EqualFold(name, "idempotency-key"):
		return false
	}
	for i := range len(name) {
		first := name[i] | 0x20 // of a letter, in lower case
		if first >= byte(len(identifying)) {
			continue
		}
		if slices.ContainsFunc(identifying[first], func(part string) bool { return hasPrefixFold(name[i:], part) }) {
			return true
		}
	}
	return false
}
