package auth

import (
	"cmp"
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
	"github.com/go-jose/go-jose/v4"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
)

func init() {
	caddy.RegisterModule(JWT{})
}

// MetadataPath is where a host publishes protected resource metadata. The path of the
// resource follows it.
const MetadataPath = "/.well-known/oauth-protected-resource"

// JWT identifies clients by access tokens of an OAuth 2.1 authorization server: signed
// JSON Web Tokens in the header Authorization: Bearer. A claim names the client. Tokens in
// the query or in the body are ignored, and bearer tokens that are not JWTs are left to
// other providers.
//
// A token is valid if one of the allowed algorithms and a key of the issuer signed it, if
// it is from that issuer and for one of the audiences, and if it has not expired.
// Audiences are required: without them, tokens for other services would be valid here.
// A valid token that lacks a scope is forbidden.
//
// Keys are fetched when the first token arrives, after a reload, and when a token names an
// unknown key, at most once a minute. If the issuer cannot be reached, known keys stay
// valid, also across reloads; without keys, no token is.
//
// The header WWW-Authenticate points clients without a valid token to the metadata of
// RFC 9728, which names the authorization server and the resource to request a token for.
// Clients of the Model Context Protocol follow it on their own. The resource is the
// audience on the same host that the URL of the request is at or below, so that the token
// is valid here. Without such an audience, it is the URL itself. Configure the resource if
// clients reach the gateway by another name or by a proxy that terminates TLS.
//
// Keycloak adds an audience to tokens if the client or one of its scopes has an audience
// mapper:
//
//	auth jwt {
//		issuer   https://login.example.com/realms/agents
//		jwks     https://login.example.com/realms/agents/protocol/openid-connect/certs
//		audience https://mcp.example.com/mcp
//		claim    preferred_username
//	}
//
// Issuers of Auth0 end with a slash, and the audience is the identifier of the API:
//
//	auth jwt {
//		issuer   https://example.eu.auth0.com/
//		jwks     https://example.eu.auth0.com/.well-known/jwks.json
//		audience https://mcp.example.com/mcp
//		scopes   mcp:tools
//	}
type JWT struct {
	// Issuer of the tokens: the URL in their iss claim, character by character. Clients
	// request tokens there. Required.
	Issuer string `json:"issuer,omitempty"`

	// Audiences of the gateway. The aud claim of a token must contain one. Required.
	Audience []string `json:"audience,omitempty"`

	// Location of the issuer's keys, a JSON Web Key Set: an https URL, an http URL of
	// this machine, or the path of a file, which is read again when it changes. Required.
	JWKS string `json:"jwks,omitempty"`

	// Allowed signature algorithms: RS256, RS384, RS512, PS256, PS384, PS512, ES256,
	// ES384, ES512 or EdDSA. Default: RS256, ES256 and EdDSA
	Algorithms []string `json:"algorithms,omitempty"`

	// Scopes that a token needs. Its scope or scp claim must contain all of them. Default:
	// none
	Scopes []string `json:"scopes,omitempty"`

	// Claim that names the client, such as client_id or preferred_username. It must be a
	// string. Default: sub
	Claim string `json:"claim,omitempty"`

	// Time after which keys from a URL are fetched again, at least a minute. A key that
	// the issuer withdraws stays valid for that long. Default: 1h
	Refresh caddy.Duration `json:"refresh,omitempty"`

	// URL by which clients know the gateway. Set it if clients reach the gateway by another
	// name, because headers of proxies are not trusted. Default: the audience that the URL
	// of the request is at or below, or that URL
	Resource string `json:"resource,omitempty"`

	// Accepted difference between the clocks of the issuer and the gateway. Default: 30s
	Leeway caddy.Duration `json:"leeway,omitempty"`

	algorithms []jose.SignatureAlgorithm
	keys       *jwks
	logger     *zap.Logger
}

// jwtAlgorithms lists the supported algorithms. All have public keys: with a shared secret,
// every verifier could issue tokens.
var jwtAlgorithms = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}

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
	j.setDefaults()
	for _, name := range j.Algorithms {
		j.algorithms = append(j.algorithms, jose.SignatureAlgorithm(name))
	}
	if j.keys, err = openJWKS(j.JWKS); err != nil {
		return fmt.Errorf("jwks: %w", err)
	}
	return nil
}

func (j *JWT) setDefaults() {
	if len(j.Algorithms) == 0 {
		j.Algorithms = []string{"RS256", "ES256", "EdDSA"}
	}
	j.Claim = cmp.Or(j.Claim, "sub")
	j.Refresh = cmp.Or(j.Refresh, caddy.Duration(time.Hour))
	j.Leeway = cmp.Or(j.Leeway, caddy.Duration(30*time.Second))
}

// Validate ensures that the configuration makes sense.
func (j *JWT) Validate() error {
	if _, err := parseResource(j.Issuer); err != nil {
		return fmt.Errorf("issuer: %w", err)
	}
	for _, field := range []struct {
		name  string
		texts []string
	}{{"audience", j.Audience}, {"scopes", j.Scopes}, {"jwks", []string{j.JWKS}}, {"claim", []string{j.Claim}}} {
		for _, text := range field.texts {
			if strings.ContainsAny(text, "{}") {
				return fmt.Errorf("%s: %q contains a placeholder, which is not replaced here; use {$NAME} in a Caddyfile",
					field.name, text)
			}
		}
	}
	if len(j.Audience) == 0 {
		return errors.New("audience: missing; without it, tokens for other services would be valid")
	}
	if slices.Contains(j.Audience, "") {
		return errors.New("audience: empty")
	}
	for _, name := range j.Algorithms {
		if !slices.Contains(jwtAlgorithms, name) {
			return fmt.Errorf("algorithms: %q is not one of %s", name, strings.Join(jwtAlgorithms, ", "))
		}
	}
	for _, scope := range j.Scopes {
		if !isScope(scope) {
			return fmt.Errorf("scopes: %q is not a scope", scope)
		}
	}
	if j.Refresh < caddy.Duration(jwksPause) {
		return fmt.Errorf("refresh: %s is less than a minute", time.Duration(j.Refresh))
	}
	if _, err := parseResource(j.Resource); j.Resource != "" && err != nil {
		return fmt.Errorf("resource: %w", err)
	}
	if j.Leeway < 0 {
		return fmt.Errorf("leeway: %s is negative", time.Duration(j.Leeway))
	}
	return nil
}

// parseWebURL parses an http or https URL with a host and without credentials.
func parseWebURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case text == "":
		return nil, errors.New("missing")
	case err != nil || u.Scheme != "https" && u.Scheme != "http":
		return nil, errors.New("not an http or https URL")
	case u.Hostname() == "":
		return nil, errors.New("the URL has no host")
	case u.User != nil:
		return nil, errors.New("the URL contains a user name or a password")
	}
	return u, nil
}

// parseResource parses a web URL without a query and a fragment.
func parseResource(text string) (*url.URL, error) {
	if strings.ContainsAny(text, "?#") {
		return nil, errors.New("the URL has a query or a fragment")
	}
	return parseWebURL(text)
}

// isScope reports whether text is a scope-token of RFC 6749.
func isScope(text string) bool {
	return text != "" && !strings.ContainsFunc(text, func(c rune) bool {
		return c <= ' ' || c >= 0x7f || c == '"' || c == '\\'
	})
}

// Cleanup releases the keys.
func (j *JWT) Cleanup() error { return j.keys.release() }

// Authenticate returns the client that the claim of a valid token names. The error is a
// *ForbiddenError if the token is valid but lacks a scope.
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
	identity, err := j.identity(claims)
	if err != nil {
		return "", err
	}
	if err := j.checkScopes(claims); err != nil {
		return "", err
	}
	return identity, nil
}

// BodyNeeded implements Provider.
func (*JWT) BodyNeeded(*http.Request) int64 { return 0 }

// CredentialHeaders implements Provider.
func (*JWT) CredentialHeaders() []string { return []string{"Authorization"} }

// Challenge implements Challenger by RFC 6750 and RFC 9728.
func (j *JWT) Challenge(r *http.Request, err error) string {
	challenge := "Bearer resource_metadata=" + quoted(j.metadataURL(r))
	if _, ok := errors.AsType[*ForbiddenError](err); ok {
		challenge += `, error="insufficient_scope", error_description="the token lacks a scope"`
	} else if err != nil {
		challenge += `, error="invalid_token", error_description=` + quoted(describe(err))
	}
	if len(j.Scopes) > 0 {
		challenge += ", scope=" + quoted(strings.Join(j.Scopes, " "))
	}
	return challenge
}

// describe returns the part of an error that is meant for the client.
func describe(err error) string {
	if fault, ok := errors.AsType[tokenFault](err); ok {
		return string(fault)
	}
	return "the token is invalid"
}

// quoted returns text as a quoted-string of an HTTP header.
func quoted(text string) string {
	text = strings.Map(func(c rune) rune {
		if c < ' ' || c >= 0x7f {
			return '?'
		}
		return c
	}, text)
	return `"` + strings.NewReplacer(`"`, `\"`, `\`, `\\`).Replace(text) + `"`
}

// metadataURL returns the URL of the metadata for the resource of a request: the resource
// with MetadataPath between its host and its path. If the resource is an audience, the URL
// has the path of the request, because the gateway may not serve the paths above.
func (j *JWT) metadataURL(r *http.Request) string {
	path := originalRequest(r).URL.Path
	u, err := url.Parse(j.resource(r, path))
	if err != nil {
		u = &url.URL{}
	}
	if j.Resource != "" {
		path = u.Path
	}
	metadata := url.URL{Scheme: u.Scheme, Host: u.Host, Path: MetadataPath}
	if path != "/" {
		metadata.Path += path
	}
	return metadata.String()
}

// resource returns the URL by which clients know a path of the gateway.
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

// audienceOf returns the nearest audience that is a URL at or above the given one, on the
// same host, or "". An https audience matches an http request, because a proxy may
// terminate TLS.
func (j *JWT) audienceOf(request url.URL) (nearest string) {
	longest := -1
	for _, audience := range j.Audience {
		u, err := parseResource(audience)
		if err != nil || u.Scheme != request.Scheme && u.Scheme != "https" || !strings.EqualFold(u.Host, request.Host) {
			continue
		}
		above := strings.TrimSuffix(u.Path, "/")
		if len(above) > longest && strings.HasPrefix(strings.TrimSuffix(request.Path, "/")+"/", above+"/") {
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
		return nil // strings can always be encoded
	}
	return text
}

// UnmarshalCaddyfile sets up the provider from Caddyfile tokens. Syntax:
//
//	auth jwt {
//		issuer     <url>
//		audience   <audiences...>
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
		return d.Errf("auth jwt takes a block and no arguments")
	}
	return setting.BlockChecked(d, setting.Lines{
		"issuer":     setting.Text(&j.Issuer),
		"audience":   setting.List(&j.Audience, "audiences"),
		"jwks":       setting.Text(&j.JWKS),
		"algorithms": setting.List(&j.Algorithms, "names"),
		"scopes":     setting.List(&j.Scopes, "scopes"),
		"claim":      setting.Text(&j.Claim),
		"refresh":    setting.Duration(&j.Refresh),
		"resource":   setting.Text(&j.Resource),
		"leeway":     setting.Duration(&j.Leeway),
	}, j.check)
}

// check validates a provider whose defaults are not set.
func (j *JWT) check() error {
	withDefaults := *j
	withDefaults.setDefaults()
	if err := withDefaults.Validate(); err != nil {
		return fmt.Errorf("auth jwt: %w", err)
	}
	return nil
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
