// Package clientrequest identifies the client of a request, and rejects requests of untrusted web
// pages.
package clientrequest

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

// Address returns the client's address, determined with Caddy's trusted_proxies.
func Address(r *http.Request) string {
	address, _ := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
	if address == "" {
		return r.RemoteAddr
	}
	return address
}

// URL returns the URL of r as the client sent it, before handlers in front changed it.
func URL(r *http.Request) *url.URL {
	original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request)
	if ok && original.URL != nil {
		return original.URL
	}
	return r.URL
}

// Identity returns the client of a request, as authenticated by the gateway or else by Caddy. It is
// empty for an unauthenticated request.
func Identity(r *http.Request) string {
	repl, _ := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if repl == nil {
		return ""
	}
	if id, _ := repl.GetString("http.mcp.client"); id != "" {
		return id
	}
	id, _ := repl.GetString("http.auth.user.id")
	return id
}

// wildcard in a list of origins or hosts matches all of them.
const wildcard = "*"

// A Policy rejects requests of untrusted web pages.
//
// A page of any origin can make the browser send requests, even to servers that listen only on
// the user's machine. It sends them to the server's address, which the Origin header reveals, or
// to a name of its own that resolves to that address (DNS rebinding), which the Host header
// reveals.
type Policy struct {
	Directive string   // directive that configures the lists, for messages
	Origins   []string // allowed besides local ones
	Hosts     []string // allowed besides local ones; empty allows all, except at a loopback address
}

// Validate checks the origins and hosts.
func (p Policy) Validate() error {
	for _, origin := range p.Origins {
		u, err := url.Parse(origin)
		switch {
		case origin == wildcard, origin == "null":
		case err != nil || u.Scheme == "" || u.Host == "" || u.Opaque != "":
			return fmt.Errorf("origins: %q is not an origin such as https://app.example.com", origin)
		case u.Path != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil:
			return fmt.Errorf("origins: %q is more than a scheme, a host and a port; write %s://%s",
				origin, u.Scheme, u.Host)
		case strings.Contains(u.Host, "*"):
			return fmt.Errorf("origins: %q contains a *; write whole origins, or * alone for all", origin)
		}
	}
	for _, host := range p.Hosts {
		switch {
		case host == wildcard:
		case host == "" || strings.ContainsAny(host, "/@?# "):
			return fmt.Errorf("hosts: %q is not a host such as mcp.example.com", host)
		case strings.Contains(host, "*"):
			return fmt.Errorf("hosts: %q contains a *; write whole names, or * alone for all", host)
		}
	}
	return nil
}

// Admit checks the Origin and Host of a request. It returns why the request is rejected, or nil.
func (p Policy) Admit(r *http.Request) *jsonrpc.Failure {
	if failure := p.admitOrigin(r); failure != nil {
		return failure
	}
	return p.AdmitHost(r)
}

// AdmitProbe is Admit for probes of load balancers and Kubernetes. It allows any IP address as the
// host, because probes use the gateway's address. DNS rebinding needs a name, so it is still
// rejected.
func (p Policy) AdmitProbe(r *http.Request) *jsonrpc.Failure {
	if failure := p.admitOrigin(r); failure != nil {
		return failure
	}
	if _, err := netip.ParseAddr(Hostname(r.Host)); err == nil {
		return nil
	}
	return p.AdmitHost(r)
}

func (p Policy) admitOrigin(r *http.Request) *jsonrpc.Failure {
	origins := r.Header["Origin"]
	for _, origin := range origins {
		if !p.allowsOrigin(origin) {
			return jsonrpc.ForbiddenOrigin("requests from this Origin are not allowed; add it to origins of " +
				p.Directive)
		}
	}
	if len(origins) == 0 && isCrossSite(r) && !slices.Contains(p.Origins, wildcard) {
		return jsonrpc.ForbiddenOrigin("requests from pages of other sites need an Origin header; see origins of " +
			p.Directive)
	}
	return nil
}

// AdmitHost checks only the Host header, not the origin. It returns why a request is rejected, or
// nil.
func (p Policy) AdmitHost(r *http.Request) *jsonrpc.Failure {
	if (len(p.Hosts) > 0 || isOnLoopback(r)) && !p.allowsHost(r.Host) {
		return jsonrpc.ForbiddenHost("requests for this Host are not allowed; add it to hosts of " + p.Directive)
	}
	return nil
}

// isCrossSite reports whether Sec-Fetch-Site says that a page of another origin sent r. Browsers
// send that header even if they send no Origin, as for images and links.
func isCrossSite(r *http.Request) bool {
	return slices.ContainsFunc(r.Header["Sec-Fetch-Site"], func(site string) bool {
		return site != "none" && site != "same-origin"
	})
}

func (p Policy) allowsOrigin(origin string) bool {
	if slices.ContainsFunc(p.Origins, func(allowed string) bool {
		return allowed == wildcard || strings.EqualFold(allowed, origin)
	}) {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && IsLocal(u.Hostname())
}

func (p Policy) allowsHost(host string) bool {
	name := Hostname(host)
	return IsLocal(name) || slices.ContainsFunc(p.Hosts, func(allowed string) bool {
		return allowed == wildcard || strings.EqualFold(allowed, name) || strings.EqualFold(allowed, host)
	})
}

// Hostname returns a host or an address without its port.
func Hostname(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.TrimSuffix(strings.Trim(host, "[]"), ".")
}

// IsLocal reports whether a host is localhost or a loopback address.
func IsLocal(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

// isOnLoopback reports whether r arrived at a loopback address.
func isOnLoopback(r *http.Request) bool {
	switch addr := r.Context().Value(http.LocalAddrContextKey).(type) {
	case *net.TCPAddr:
		return addr.IP.IsLoopback()
	case *net.UDPAddr:
		return addr.IP.IsLoopback()
	}
	return false
}
