package mcpgateway

import (
	"errors"
	"net"
	"net/http"
	"net/url"
	"slices"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/clientrequest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/pipenet"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/auth"
)

// An authenticator asks the providers of auth for the identity of a client.
type authenticator struct {
	providers   []auth.Provider
	headers     []string // read by the providers
	fingerprint string   // hash of the providers' settings and secrets
}

// load loads the providers of a gateway.
func (a *authenticator) load(ctx caddy.Context, h *Handler) error {
	if len(h.AuthRaw) == 0 {
		return nil
	}
	a.fingerprint = digest(h.AuthRaw)
	modules, err := ctx.LoadModule(h, "AuthRaw")
	if err != nil {
		return err
	}
	for _, module := range modules.([]any) {
		provider := module.(auth.Provider)
		a.providers = append(a.providers, provider)
		if holder, ok := provider.(auth.SecretHolder); ok {
			a.fingerprint += holder.FingerprintOf("")
		}
		for _, name := range provider.CredentialHeaders() {
			a.headers = append(a.headers, http.CanonicalHeaderKey(name))
		}
	}
	return nil
}

// BodyNeeded implements [inbound.Authenticator].
func (a *authenticator) BodyNeeded(r *http.Request) (bytes int64) {
	for _, provider := range a.providers {
		bytes = max(bytes, provider.BodyNeeded(r))
	}
	return bytes
}

// Authenticate implements [inbound.Authenticator]. It asks the providers in order. If the body has
// not been read, it skips the providers that need it.
func (a *authenticator) Authenticate(r *http.Request, bodyRead bool, body []byte, token string) (string, error) {
	request := &auth.Request{Request: r, Body: body, ProxyToken: token}
	var reasons refusals
	for i, provider := range a.providers {
		if !bodyRead && provider.BodyNeeded(r) > 0 {
			continue
		}
		name, err := provider.Authenticate(request)
		if err == nil && name != "" {
			return access.Identity(name, realmOf(provider, name)), nil
		}
		if reasons == nil {
			reasons = make(refusals, len(a.providers))
		}
		reasons[i] = err
	}
	if errors.Join(reasons...) == nil {
		return "", nil
	}
	return "", reasons
}

// refusals holds the error of each provider, or nil if the request had no credentials for it.
type refusals []error

func (e refusals) Error() string   { return errors.Join(e...).Error() }
func (e refusals) Unwrap() []error { return e }

// realmOf distinguishes clients with the same name by the credential that the provider accepted.
func realmOf(provider auth.Provider, client string) string {
	if holder, ok := provider.(auth.SecretHolder); ok {
		return holder.FingerprintOf(client)
	}
	return ""
}

// Challenge implements [inbound.Authenticator].
func (a *authenticator) Challenge(header http.Header, r *http.Request, err error) (status int) {
	if _, unknown := errors.AsType[*auth.UnavailableError](err); unknown {
		return http.StatusServiceUnavailable // new credentials would not help
	}
	refusals, _ := err.(refusals)
	for i, provider := range a.providers {
		var reason error
		if refusals != nil {
			reason = refusals[i]
		}
		if challenger, ok := provider.(auth.Challenger); ok {
			if challenge := challenger.Challenge(r, reason); challenge != "" {
				header.Add("WWW-Authenticate", challenge)
			}
		}
	}
	if _, known := errors.AsType[*auth.ForbiddenError](err); known {
		return http.StatusForbidden
	}
	return http.StatusUnauthorized
}

// CredentialHeaders implements [inbound.Authenticator].
func (a *authenticator) CredentialHeaders() []string { return a.headers }

// Fingerprint implements [inbound.Authenticator].
func (a *authenticator) Fingerprint() string { return a.fingerprint }

// peerOf returns what Caddy knows about the sender of a request.
func peerOf(r *http.Request) inbound.Peer {
	peer := inbound.Peer{Address: clientrequest.Address(r), Path: clientPath(r)}
	if isOperator(r) {
		peer.Trusted = stdioClient
	}
	if repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer); ok {
		peer.User = identity(repl)
	}
	return peer
}

// identity returns the user that Caddy's authentication has set, if any. It replaces a name that is
// not a valid identity: a token of another issuer may contain any text.
func identity(repl *caddy.Replacer) string {
	id, _ := repl.GetString("http.auth.user.id")
	if id != "" && auth.CheckIdentity(id) != nil {
		return "invalid-identity-" + digest(id)
	}
	return id
}

// isOperator reports whether a request comes from the command that started this process.
func isOperator(r *http.Request) bool {
	address, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return address != nil && address.Network() == pipenet.Name
}

// clientPath returns the path of r as the client sent it, before handlers in front stripped a
// prefix.
func clientPath(r *http.Request) string { return clientrequest.URL(r).EscapedPath() }

// describer returns the provider that publishes where clients get credentials, or nil.
func (a *authenticator) describer() auth.Describer {
	for _, provider := range a.providers {
		if describer, ok := provider.(auth.Describer); ok {
			return describer
		}
	}
	return nil
}

// hasProvider reports whether one of the providers is a P.
func hasProvider[P auth.Provider](a *authenticator) bool {
	return slices.ContainsFunc(a.providers, func(provider auth.Provider) bool {
		_, ok := provider.(P)
		return ok
	})
}

// serveMetadata serves the OAuth metadata of a path. It needs no credentials, and pages of any
// origin may read it.
func (a *authenticator) serveMetadata(w http.ResponseWriter, r *http.Request, path string) error {
	if r.Method != http.MethodGet && r.Method != http.MethodHead && r.Method != http.MethodOptions {
		w.Header().Set("Allow", "GET, HEAD, OPTIONS")
		w.WriteHeader(http.StatusMethodNotAllowed)
		return nil
	}
	w.Header().Set("Access-Control-Allow-Origin", "*")
	w.Header().Set("Access-Control-Allow-Headers", "Mcp-Protocol-Version")
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "max-age=300")
	if r.Method == http.MethodOptions {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	path, err := url.PathUnescape(path)
	if err != nil {
		return caddyhttp.Error(http.StatusBadRequest, err)
	}
	_, err = w.Write(a.describer().Metadata(r, path))
	return err
}

// Interface guard
var _ inbound.Authenticator = (*authenticator)(nil)
