// Package origin refuses what a web page may have sent that should not be able to.
package origin

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

// anyOf in a list of origins or hosts stands for all of them.
const anyOf = "*"

// A Policy says where requests may come from.
//
// A page of any origin can have the browser of its reader send requests, also to
// servers that only listen on the reader's own machine: by their address, which
// the Origin gives away, or by a name of its own that it makes resolve to that
// address (DNS rebinding), which the Host gives away.
type Policy struct {
	Directive string   // which has the two lists below, for people
	Origins   []string // that may be, besides local ones
	Hosts     []string // that we go by, besides local ones; empty for any, except at a loopback address
}

// Admit returns why a request is refused, or nil.
func (p Policy) Admit(r *http.Request) *jsonrpc.Failure {
	origins := r.Header["Origin"]
	for _, origin := range origins {
		if !p.allowsOrigin(origin) {
			return jsonrpc.ForbiddenOrigin("requests of this Origin are not allowed; add it to origins of " + p.Directive)
		}
	}
	if len(origins) == 0 && fromOtherSite(r) && !slices.Contains(p.Origins, anyOf) {
		return jsonrpc.ForbiddenOrigin("requests of pages of other sites are not allowed without an Origin; see origins of " + p.Directive)
	}
	if (len(p.Hosts) > 0 || onLoopback(r)) && !p.allowsHost(r.Host) {
		return jsonrpc.ForbiddenHost("requests for this Host are not allowed; add it to hosts of " + p.Directive)
	}
	return nil
}

// fromOtherSite reports whether the browser says that a page of another origin has sent
// r. It says so also where it sends no Origin: for images, links and the like.
func fromOtherSite(r *http.Request) bool {
	return slices.ContainsFunc(r.Header["Sec-Fetch-Site"], func(site string) bool {
		return site != "none" && site != "same-origin"
	})
}

func (p Policy) allowsOrigin(origin string) bool {
	if slices.ContainsFunc(p.Origins, func(allowed string) bool { return allowed == anyOf || strings.EqualFold(allowed, origin) }) {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && IsLocal(u.Hostname())
}

func (p Policy) allowsHost(host string) bool {
	name := host
	if n, _, err := net.SplitHostPort(host); err == nil {
		name = n
	}
	name = strings.TrimSuffix(strings.Trim(name, "[]"), ".")
	return IsLocal(name) || slices.ContainsFunc(p.Hosts, func(allowed string) bool {
		return allowed == anyOf || strings.EqualFold(allowed, name) || strings.EqualFold(allowed, host)
	})
}

// IsLocal reports whether a host is the machine itself, whoever asks.
func IsLocal(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

// onLoopback reports whether r came in at a loopback address.
func onLoopback(r *http.Request) bool {
	switch addr := r.Context().Value(http.LocalAddrContextKey).(type) {
	case *net.TCPAddr:
		return addr.IP.IsLoopback()
	case *net.UDPAddr:
		return addr.IP.IsLoopback()
	}
	return false
}
