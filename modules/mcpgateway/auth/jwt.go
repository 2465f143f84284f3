package auth

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/go-jose/go-jose/v4"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/subdirective"
)

func init() {
	caddy.RegisterModule(JWT{})
}

// MetadataPath is where the protected resource metadata of a host is. The path of the
// resource follows it.
const MetadataPath = "/.well-known/oauth-protected-resource"

// JWT knows clients by access tokens of an OAuth 2.1 authorization server: signed JSON
// Web Tokens in the header Authorization: Bearer. Who a client is says one of their
// claims. Tokens in the query or in the body are not looked at, and bearer tokens that
// are not JWTs are left to other providers.
//
// A token is good if it was signed with a key of the issuer by one of the algorithms,
// is from that issuer and for one of the audiences, and has not expired. Audiences are
// required, because without them a token that somebody got for another service would
// be good here as well. One that lacks scopes is good, but forbidden.
//
// The keys are fetched when the first token comes, and again when a token names one
// that is not known, but at most once a minute for that. They outlive configuration
// reloads. If they cannot be fetched any more, those that are known stay good; as long
// as there are none, no token is.
//
// Clients that have no token, or not a good one, are told by the header
// WWW-Authenticate where the metadata of RFC 9728 is, and there at which authorization
// server they get one. Clients of the Model Context Protocol do all of that on their
// own. They ask for a token for the resource that the metadata names, which is the
// audience that the URL of the request is at or below, if there is one on its host, so
// that the token is good here. Otherwise it is that URL itself: behind a proxy that
// speaks TLS for the gateway, or under another name, the resource has to be configured.
//
// With Keycloak, whose tokens are for an audience if a mapper of that kind says so in
// the client or one of its scopes:
//
//	auth jwt {
//		issuer   https://login.example.com/realms/agents
//		jwks     https://login.example.com/realms/agents/protocol/openid-connect/certs
//		audience https://mcp.example.com/mcp
//		claim    preferred_username
//	}
//
// With Auth0, whose issuers end with a slash and whose audience is the identifier of
// the API:
//
//	auth jwt {
//		issuer   https://example.eu.auth0.com/
//		jwks     https://example.eu.auth0.com/.well-known/jwks.json
//		audience https://mcp.example.com/mcp
//		scopes   mcp:tools
//	}
type JWT struct {
	// Who issues the tokens: the URL that they have in iss, to the letter. Clients
	// are sent there for tokens. Required.
	Issuer string `json:"issuer,omitempty"`

	// Whom tokens are for. The aud of each must have one of these. Required.
	Audience []string `json:"audience,omitempty"`

	// Where the keys of the issuer are, as a JSON Web Key Set: a URL of https, or of
	// http on this machine, or the path of a file, which is read again when it
	// changes. Required.
	JWKS string `json:"jwks,omitempty"`

	// How tokens may be signed: RS256, RS384, RS512, PS256, PS384, PS512, ES256,
	// ES384, ES512 or EdDSA. Default: RS256, ES256 and EdDSA
	Algorithms []string `json:"algorithms,omitempty"`

	// What tokens must allow, all of it. They tell it in scope or scp. Default:
	// nothing in particular
	Scopes []string `json:"scopes,omitempty"`

	// The claim that says who the client is, such as client_id or preferred_username.
	// It must be a text. Default: sub
	Claim string `json:"claim,omitempty"`

	// When keys from a URL are fetched again, at least a minute. A key that the issuer
	// has withdrawn is good for that long. Default: 1h
	Refresh caddy.Duration `json:"refresh,omitempty"`

	// The URL that clients know this gateway by. Default: the audience that the URL of
	// the request is at or below, or that URL; what proxies say in headers of their own
	// is not trusted.
	Resource string `json:"resource,omitempty"`

	// How much the clocks of the issuer and of this machine may differ. Default: 30s
	Leeway caddy.Duration `json:"leeway,omitempty"`

	algorithms []jose.SignatureAlgorithm
	keys       *jwks
	logger     *zap.Logger
}

// jwtAlgorithms are those whose keys can be published. A token signed with a secret
// could be made by everybody who can check it.
var jwtAlgorithms = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}

const insufficientScope = "insufficient_scope"

// CaddyModule returns the Caddy module information.
func (JWT) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.mcp_gateway.auth.jwt",
		New: func() caddy.Module { return new(JWT) },
	}
}

// Provision sets up the provider. It fetches nothing.
func (j *JWT) Provision(ctx caddy.Context) (err error) {
	j.logger = ctx.Logger()
	if len(j.Algorithms) == 0 {
		j.Algorithms = []string{"RS256", "ES256", "EdDSA"}
	}
	if j.Claim == "" {
		j.Claim = "sub"
	}
	if j.Refresh == 0 {
		j.Refresh = caddy.Duration(time.Hour)
	}
	if j.Leeway == 0 {
		j.Leeway = caddy.Duration(30 * time.Second)
	}
	for _, name := range j.Algorithms {
		j.algorithms = append(j.algorithms, jose.SignatureAlgorithm(name))
	}
	if j.keys, err = openJWKS(j.JWKS); err != nil {
		return fmt.Errorf("jwks: %w", err)
	}
	return nil
}

// Validate ensures that the configuration makes sense.
func (j *JWT) Validate() error {
	if err := checkWebURL(j.Issuer); err != nil {
		return fmt.Errorf("issuer: %w", err)
	}
	for _, text := range slices.Concat(j.Audience, j.Scopes, []string{j.JWKS, j.Claim}) {
		if strings.ContainsAny(text, "{}") {
			return fmt.Errorf("%q has a placeholder, which is not replaced there; in a Caddyfile {$NAME} is, when it is read", text)
		}
	}
	if len(j.Audience) == 0 {
		return errors.New("audience: missing; without it, tokens for other services would be good here")
	}
	if slices.Contains(j.Audience, "") {
		return errors.New("audience: one is empty")
	}
	if _, err := parseJWKSAddress(j.JWKS); err != nil {
		return fmt.Errorf("jwks: %w", err)
	}
	if err := checkAlgorithms(j.Algorithms); err != nil {
		return fmt.Errorf("algorithms: %w", err)
	}
	for _, scope := range j.Scopes {
		if !isScope(scope) {
			return fmt.Errorf("scopes: %q cannot be one", scope)
		}
	}
	if j.Refresh != 0 && j.Refresh < caddy.Duration(jwksPause) {
		return fmt.Errorf("refresh: %s is less than a minute", time.Duration(j.Refresh))
	}
	if err := checkWebURL(j.Resource); j.Resource != "" && err != nil {
		return fmt.Errorf("resource: %w", err)
	}
	if j.Leeway < 0 {
		return fmt.Errorf("leeway: %s is negative", time.Duration(j.Leeway))
	}
	return nil
}

func checkWebURL(text string) error {
	if text == "" {
		return errors.New("missing")
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "https" && u.Scheme != "http":
		return errors.New("not a URL of https or http")
	case u.Hostname() == "":
		return errors.New("it has no host")
	case u.User != nil:
		return errors.New("it has a user or a password")
	case strings.ContainsAny(text, "?#"):
		return errors.New("it has a query or a fragment")
	}
	return nil
}

func checkAlgorithms(names []string) error {
	for _, name := range names {
		if name == "none" || strings.HasPrefix(name, "HS") {
			return fmt.Errorf("%s: everybody could sign such tokens who can check them", name)
		}
		if !slices.Contains(jwtAlgorithms, name) {
			return fmt.Errorf("%q is not one of %s", name, strings.Join(jwtAlgorithms, ", "))
		}
	}
	return nil
}

// isScope reports whether a text is a scope-token of RFC 6749.
func isScope(text string) bool {
	return text != "" && !strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c >= 0x7f || c == '"' || c == '\\' })
}

// Cleanup gives the keys back.
func (j *JWT) Cleanup() error { return j.keys.release() }

// Authenticate returns what the claim of a good token says. The error is a
// *ForbiddenError if the token is good but lacks a scope.
func (j *JWT) Authenticate(r *Request) (string, error) {
	token, ok, err := credentialsOf(r.Request, "Bearer")
	if err != nil {
		return "", err
	}
	if !ok || !looksLikeJWT(token) {
		return "", nil
	}
	claims, err := j.verify(r.Context(), token)
	if err != nil {
		return "", err
	}
	identity, err := claims.identity(j.Claim)
	if err != nil {
		return "", err
	}
	if err := j.checkScopes(claims); err != nil {
		return "", err
	}
	return identity, nil
}

func (j *JWT) checkScopes(claims claimSet) error {
	if len(j.Scopes) == 0 {
		return nil
	}
	granted, err := claims.scopes()
	if err != nil {
		return err
	}
	for _, scope := range j.Scopes {
		if !slices.Contains(granted, scope) {
			return &ForbiddenError{Reason: insufficientScope}
		}
	}
	return nil
}

// BodyNeeded implements Provider.
func (*JWT) BodyNeeded(*http.Request) int64 { return 0 }

// CredentialHeaders implements Provider.
func (*JWT) CredentialHeaders() []string { return []string{"Authorization"} }

// Challenge implements Challenger, in the words of RFC 6750 and RFC 9728.
func (j *JWT) Challenge(r *http.Request, err error) string {
	challenge := "Bearer resource_metadata=" + quoted(j.metadataURL(r))
	if forbidden, ok := errors.AsType[*ForbiddenError](err); ok {
		if forbidden.Reason == insufficientScope {
			challenge += `, error="insufficient_scope", error_description="the token lacks a scope"`
		}
	} else if err != nil {
		challenge += `, error="invalid_token", error_description=` + quoted(describe(err))
	}
	if len(j.Scopes) > 0 {
		challenge += ", scope=" + quoted(strings.Join(j.Scopes, " "))
	}
	return challenge
}

// describe returns what a client may know of an error.
func describe(err error) string {
	if fault, ok := errors.AsType[tokenFault](err); ok {
		return string(fault)
	}
	return "the token is not good"
}

// quoted returns a text as a quoted-string of an HTTP header.
func quoted(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range text {
		switch {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteRune(c)
		case c < ' ' || c >= 0x7f:
			b.WriteByte('?')
		default:
			b.WriteRune(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// metadataURL returns where the metadata of the resource is that a request is for:
// between its host and its path. That of an audience is told at the path of the request,
// as the gateway need not be asked for what is above it.
func (j *JWT) metadataURL(r *http.Request) string {
	asked := r.URL
	if original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok && original.URL != nil {
		asked = original.URL
	}
	u, err := url.Parse(j.resource(r, asked.Path))
	if err != nil {
		u = &url.URL{}
	}
	if j.Resource == "" {
		u.Path = asked.Path
	}
	metadata := url.URL{Scheme: u.Scheme, Host: u.Host, Path: MetadataPath}
	if u.Path != "/" {
		metadata.Path += u.Path
	}
	return metadata.String()
}

// resource returns the URL that clients know a path of the gateway by.
func (j *JWT) resource(r *http.Request, path string) string {
	if j.Resource != "" {
		return j.Resource
	}
	u := url.URL{Scheme: "http", Host: r.Host, Path: path}
	if r.TLS != nil {
		u.Scheme = "https"
	}
	if audience := j.audienceOf(u); audience != "" {
		return audience
	}
	if path == "/" {
		u.Path = ""
	}
	return u.String()
}

// audienceOf returns the audience that is a URL of the same host, at or above this one,
// or "". Of several it is the nearest. It may be of https where the request is not,
// because another proxy speaks TLS for the gateway.
func (j *JWT) audienceOf(asked url.URL) (nearest string) {
	longest := -1
	for _, audience := range j.Audience {
		u, err := url.Parse(audience)
		if err != nil || checkWebURL(audience) != nil || u.Scheme != asked.Scheme && u.Scheme != "https" || !strings.EqualFold(u.Host, asked.Host) {
			continue
		}
		above := strings.TrimSuffix(u.Path, "/")
		if len(above) > longest && strings.HasPrefix(strings.TrimSuffix(asked.Path, "/")+"/", above+"/") {
			nearest, longest = audience, len(above)
		}
	}
	return nearest
}

// Metadata implements Describer.
func (j *JWT) Metadata(r *http.Request, path string) []byte {
	text, err := json.Marshal(struct {
		Resource string   `json:"resource"`
		Servers  []string `json:"authorization_servers"`
		Scopes   []string `json:"scopes_supported,omitempty"`
		Methods  []string `json:"bearer_methods_supported"`
	}{j.resource(r, path), []string{j.Issuer}, j.Scopes, []string{"header"}})
	if err != nil {
		return nil // texts can always be encoded
	}
	return text
}

// UnmarshalCaddyfile sets up the provider from Caddyfile tokens. Syntax:
//
//	auth jwt {
//		issuer     <url>
//		audience   <texts...>
//		jwks       <url | file path>
//		algorithms <names...>
//		scopes     <scopes...>
//		claim      <name>
//		refresh    <duration>
//		resource   <url>
//		leeway     <duration>
//	}
func (j *JWT) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume provider name
	if d.NextArg() {
		return d.Errf("auth jwt takes no arguments, only a block")
	}
	seen := map[string]bool{}
	for d.NextBlock(0) {
		if err := subdirective.Once(d, seen); err != nil {
			return err
		}
		if err := j.unmarshalLine(d); err != nil {
			return err
		}
	}
	if err := j.Validate(); err != nil {
		return d.Errf("auth jwt: %w", err)
	}
	return nil
}

func (j *JWT) unmarshalLine(d *caddyfile.Dispenser) (err error) {
	switch name := d.Val(); name {
	case "issuer":
		j.Issuer, err = subdirective.Text(d)
	case "audience":
		err = subdirective.List(d, &j.Audience)
	case "jwks":
		j.JWKS, err = subdirective.Text(d)
	case "algorithms":
		err = subdirective.List(d, &j.Algorithms)
	case "scopes":
		err = subdirective.List(d, &j.Scopes)
	case "claim":
		j.Claim, err = subdirective.Text(d)
	case "refresh":
		j.Refresh, err = subdirective.Duration(d)
	case "resource":
		j.Resource, err = subdirective.Text(d)
	case "leeway":
		j.Leeway, err = subdirective.Duration(d)
	default:
		err = d.Errf("unknown subdirective %s", name)
	}
	return err
}

// Interface guards
var (
	_ Provider              = (*JWT)(nil)
	_ Challenger            = (*JWT)(nil)
	_ Describer             = (*JWT)(nil)
	_ caddy.Provisioner     = (*JWT)(nil)
	_ caddy.Validator       = (*JWT)(nil)
	_ caddy.CleanerUpper    = (*JWT)(nil)
	_ caddyfile.Unmarshaler = (*JWT)(nil)
)
