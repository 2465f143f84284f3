package mcpconsole

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/clientrequest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/auth"
)

// An admission decides which users may use the console.
type admission struct {
	hosts     clientrequest.Policy
	user      string // placeholder whose value is the user; empty for none
	providers []auth.Provider
	local     bool // local users need not authenticate
}

// setDefaults admits local users and users authenticated by Caddy.
func (a *admission) setDefaults() {
	a.local = true
	a.user = "{http.auth.user.id}"
	a.providers = []auth.Provider{&auth.MTLS{Field: "subject"}}
}

// A refusal says why a request is rejected.
type refusal struct {
	status int
	reason string // for the response
	err    error  // for the log; may be nil
}

// log returns the reason for the log.
func (f *refusal) log() string {
	if f.err != nil {
		return f.reason + ": " + f.err.Error()
	}
	return f.reason
}

// write writes the response.
func (f *refusal) write(w http.ResponseWriter) {
	if f.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Basic realm="mcp_console", charset="UTF-8"`)
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(f.status)
	_, _ = fmt.Fprintf(w, "Access denied: %s.\n", f.reason)
}

// checkPath rejects a path with dot segments, escaped ones included. Matchers in front, such as
// that of forward_auth, resolve them and would see another path than the console.
func checkPath(path string) *refusal {
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "." || segment == ".." {
			return &refusal{http.StatusBadRequest, fmt.Sprintf("the path has the segment %q", segment), nil}
		}
	}
	return nil
}

// admit returns the user who sent a request, "" for a local user, or a refusal.
func (a *admission) admit(r *http.Request) (user string, refused *refusal) {
	if failure := a.hosts.AdmitHost(r); failure != nil {
		return "", &refusal{http.StatusForbidden, failure.Message, nil}
	}
	if fromOtherPage(r) {
		return "", &refusal{http.StatusForbidden, "the request comes from a page of another site", nil}
	}
	user, err := a.identify(r)
	if user != "" {
		return user, nil
	}
	if !a.local {
		return "", a.unauthenticated(err)
	}
	if why := remoteReason(r); why != "" {
		return "", &refusal{http.StatusForbidden, why + ", and the user is not authenticated. " +
			"Without authentication the console serves only browsers on the same machine, at localhost. For others, " +
			"put basic_auth in front of mcp_console, use client certificates, or set auth or user in its block", err}
	}
	return "", nil
}

// unauthenticated returns the refusal of a request without valid credentials. With status 401 the
// browser asks for a password, if a provider takes it as a token.
func (a *admission) unauthenticated(err error) *refusal {
	if _, unknown := errors.AsType[*auth.UnavailableError](err); unknown {
		return &refusal{http.StatusServiceUnavailable, "the credentials cannot be checked now", err}
	}
	status := http.StatusForbidden
	for _, provider := range a.providers {
		if slices.Contains(provider.CredentialHeaders(), "Authorization") {
			status = http.StatusUnauthorized
		}
	}
	return &refusal{status, "the user is not authenticated", err}
}

// identify returns the user who sent a request, or "" and the errors of the credentials.
func (a *admission) identify(r *http.Request) (user string, err error) {
	if repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer); ok && a.user != "" {
		user = repl.ReplaceAll(a.user, "")
		if user != "" {
			if err := auth.CheckIdentity(user); err != nil {
				return "", err
			}
			return user, nil
		}
	}
	request := &auth.Request{Request: withBearer(r)}
	var reasons []error
	for _, provider := range a.providers {
		if r.Method == http.MethodPost && provider.BodyNeeded(request.Request) > 0 {
			continue // do not read bodies of unauthenticated clients
		}
		user, err := provider.Authenticate(request)
		if err == nil && user != "" {
			return user, nil
		}
		reasons = append(reasons, err)
	}
	return "", errors.Join(reasons...)
}

// withBearer returns the request with its basic auth password, which browsers send after status
// 401, as a bearer token.
func withBearer(r *http.Request) *http.Request {
	_, password, ok := r.BasicAuth()
	if !ok || len(r.Header["Authorization"]) != 1 {
		return r
	}
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+password)
	return r
}

// proxyHeaders lists headers that proxies add.
var proxyHeaders = []string{
	"Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip", "Cf-Connecting-Ip",
	"True-Client-Ip",
}

// remoteReason returns why a request may not come from a local user, or "". It ignores
// trusted_proxies: the connection itself must be local.
func remoteReason(r *http.Request) string {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	switch {
	case err != nil: // a Unix socket: most clients are proxies
		return "the sender of the request is unknown"
	case !peer.Addr().IsLoopback(): // also mapped addresses
		return "the request comes from another machine, or from an address other than localhost"
	case !clientrequest.IsLocal((&url.URL{Host: r.Host}).Hostname()):
		return "the request is for a host other than localhost"
	case !r.ProtoAtLeast(1, 1): // browsers do not use HTTP/1.0; some proxies do, without these headers
		return "a proxy forwarded the request"
	}
	for _, name := range proxyHeaders {
		if len(r.Header[name]) > 0 {
			return "a proxy forwarded the request"
		}
	}
	return ""
}

// fromOtherPage reports whether a page of another origin sent a request. Links do not count.
func fromOtherPage(r *http.Request) bool {
	if slices.ContainsFunc(r.Header["Origin"], func(origin string) bool { return !isSameOrigin(r, origin) }) {
		return true
	}
	isRead := r.Method == http.MethodGet || r.Method == http.MethodHead
	switch strings.Join(r.Header["Sec-Fetch-Site"], ",") {
	case "", "same-origin":
		return false
	case "none": // the user typed the address
		return !isRead
	}
	return !isRead || r.Header.Get("Sec-Fetch-Mode") != "navigate" || r.Header.Get("Sec-Fetch-Dest") != "document"
}

// isSameOrigin reports whether an origin is the console's: the host of the request and its scheme.
// A proxy in front may have terminated TLS.
func isSameOrigin(r *http.Request, origin string) bool {
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" || !strings.EqualFold(u.Host, r.Host) {
		return false
	}
	return u.Scheme == "https" || u.Scheme == "http" && r.TLS == nil
}
