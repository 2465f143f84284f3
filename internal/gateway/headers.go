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

// dropHeaders takes off a request the headers of a set. To many servers an underscore in
// a name is a hyphen.
func dropHeaders(header http.Header, set map[string]bool) {
	maps.DeleteFunc(header, func(name string, _ []string) bool {
		return set[name] || strings.IndexByte(name, '_') >= 0 && set[http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))]
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

// dropHopByHop removes the headers that Connection names. reverse_proxy does so as well, but
// after the handlers of the server's block have set theirs, which a client could then remove.
func dropHopByHop(header http.Header) {
	for _, names := range header["Connection"] {
		for name := range strings.SplitSeq(names, ",") {
			header.Del(strings.TrimSpace(name))
		}
	}
	delete(header, "Connection")
}
