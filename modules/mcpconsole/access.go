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

// An admission decides who may use the console.
type admission struct {
	hosts     clientrequest.Policy
	user      string // a placeholder; "" for none
	providers []auth.Provider
	local     bool // users of this machine need not authenticate
}

// byDefault has it let in users of this machine, and whom Caddy has authenticated.
func (a *admission) byDefault() {
	a.local = true
	a.user = "{http.auth.user.id}"
	a.providers = []auth.Provider{&auth.MTLS{Field: "subject"}}
}

// A refusal is why a request is not let in. Nothing was done for it.
type refusal struct {
	status int
	reason string // for everybody
	err    error  // for the log; nil for nothing more
}

func (f *refusal) log() string {
	if f.err != nil {
		return f.reason + ": " + f.err.Error()
	}
	return f.reason
}

// write tells the user.
func (f *refusal) write(w http.ResponseWriter) {
	if f.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Basic realm="mcp_console", charset="UTF-8"`)
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(f.status)
	_, _ = fmt.Fprintf(w, "The console is not shown: %s.\n", f.reason)
}

// checkPath refuses a path that matchers in front, such as that of forward_auth, take for another one than the console
// does: they resolve these segments, also those that are escaped.
func checkPath(path string) *refusal {
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "." || segment == ".." {
			return &refusal{http.StatusBadRequest, fmt.Sprintf("its path has the segment %q", segment), nil}
		}
	}
	return nil
}

// admit returns who has sent a request, "" for a user of this machine, or why it is refused.
func (a *admission) admit(r *http.Request) (user string, refused *refusal) {
	if failure := a.hosts.AdmitHost(r); failure != nil {
		return "", &refusal{http.StatusForbidden, failure.Message, nil}
	}
	if fromOtherPage(r) {
		return "", &refusal{http.StatusForbidden, "a page of another site has asked for it", nil}
	}
	user, err := a.identify(r)
	if user != "" {
		return user, nil
	}
	if !a.local {
		return "", a.unauthenticated(err)
	}
	if why := remote(r); why != "" {
		return "", &refusal{http.StatusForbidden, why + ", and its user is not authenticated. " +
			"Without authentication the console is only for browsers on the same machine, at localhost. For others, " +
			"have basic_auth in front of mcp_console, client certificates, or auth or user in its block", err}
	}
	return "", nil
}

// unauthenticated refuses a request without credentials that auth or user take. A browser is asked for a password if
// that can be a token.
func (a *admission) unauthenticated(err error) *refusal {
	if _, unknown := errors.AsType[*auth.UnavailableError](err); unknown {
		return &refusal{http.StatusServiceUnavailable, "its credentials cannot be checked now", err}
	}
	status := http.StatusForbidden
	for _, provider := range a.providers {
		if slices.Contains(provider.CredentialHeaders(), "Authorization") {
			status = http.StatusUnauthorized
		}
	}
	return &refusal{status, "its user is not authenticated", err}
}

// identify returns the user who has sent a request or, if that is not known, "" and what is wrong with the credentials.
func (a *admission) identify(r *http.Request) (user string, err error) {
	if repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer); ok && a.user != "" {
		if user = repl.ReplaceAll(a.user, ""); user != "" {
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
			continue // nothing is read for strangers
		}
		user, err := provider.Authenticate(request)
		if err == nil && user != "" {
			return user, nil
		}
		reasons = append(reasons, err)
	}
	return "", errors.Join(reasons...)
}

// withBearer returns a request that has the password, with which browsers answer to status 401, as a bearer token.
func withBearer(r *http.Request) *http.Request {
	_, password, ok := r.BasicAuth()
	if !ok || len(r.Header["Authorization"]) != 1 {
		return r
	}
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+password)
	return r
}

// passedOn are headers by which proxies say for whom they send a request.
var passedOn = []string{
	"Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip", "Cf-Connecting-Ip",
	"True-Client-Ip",
}

// remote returns why a request may not be of a user of this machine, "" if nothing says so. What
// trusted_proxies make of the headers does not count: it is the sender that must be here.
func remote(r *http.Request) string {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	switch {
	case err != nil: // at a Unix socket there is mostly a proxy
		return "it is not known where the request comes from"
	case !peer.Addr().IsLoopback(): // also if it is a mapped one
		return "the request comes from another machine, or by an address other than localhost"
	case !clientrequest.IsLocal((&url.URL{Host: r.Host}).Hostname()):
		return "the request is for another host than localhost"
	case !r.ProtoAtLeast(1, 1): // no browser speaks HTTP/1.0; proxies do, some of which set no header
		return "a proxy has passed the request on"
	}
	for _, name := range passedOn {
		if len(r.Header[name]) > 0 {
			return "a proxy has passed the request on"
		}
	}
	return ""
}

// fromOtherPage reports whether a page of another origin has sent a request, other than by a link that was followed.
func fromOtherPage(r *http.Request) bool {
	if slices.ContainsFunc(r.Header["Origin"], func(origin string) bool { return !isOwn(r, origin) }) {
		return true
	}
	isRead := r.Method == http.MethodGet || r.Method == http.MethodHead
	switch strings.Join(r.Header["Sec-Fetch-Site"], ",") {
	case "", "same-origin":
		return false
	case "none": // by the user, who has typed the address
		return !isRead
	}
	return !isRead || r.Header.Get("Sec-Fetch-Mode") != "navigate" || r.Header.Get("Sec-Fetch-Dest") != "document"
}

// isOwn reports whether an origin is that of the console: the host of the request, with its scheme. A proxy in front
// may have taken TLS off.
func isOwn(r *http.Request, origin string) bool {
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" || !strings.EqualFold(u.Host, r.Host) {
		return false
	}
	return u.Scheme == "https" || u.Scheme == "http" && r.TLS == nil
}
