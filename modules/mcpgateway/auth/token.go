package auth

import (
	"cmp"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"go.uber.org/zap"
)

func init() {
	caddy.RegisterModule(Token{})
}

// Token identifies clients by bearer tokens that you hand out.
//
// A client sends its token as
//
//	Authorization: Bearer <token>
//
// or, if it cannot set headers, as params.proxy.authToken of each message. If a request
// has both, both must be valid and belong to the same client.
//
// A client needs nothing but its token, so use long random tokens:
//
//	openssl rand -hex 32
//
// Keep them out of the configuration: write {env.NAME} for a token in an environment
// variable, {file./path} for one in a file. A literal token in a Caddyfile, also with {$NAME},
// is replaced by its SHA-256, so that Caddy's stored configuration does not contain it; but a
// short token can be guessed from its hash. JSON accepts sha256:<hex>, too.
//
// To change a token, add the new one to its client, and remove the old one when it is no
// longer used.
type Token struct {
	// Tokens, at least one. Required.
	Tokens []ClientToken `json:"tokens,omitempty"`

	known        []knownToken
	fingerprints fingerprints
}

// ClientToken is a token and its client.
type ClientToken struct {
	// Token: {env.NAME}, {file./path} or sha256:<hex>. Required.
	Token string `json:"token,omitempty"`

	// Name of the client that has the token. A client can have several tokens. Only one
	// token can be without a client. Default: default
	Client string `json:"client,omitempty"`
}

type knownToken struct {
	digest digest
	client string
}

// CaddyModule returns the Caddy module information.
func (Token) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.mcp_gateway.auth.token",
		New: func() caddy.Module { return new(Token) },
	}
}

// Provision reads the tokens.
func (t *Token) Provision(ctx caddy.Context) error {
	if err := t.CheckClients(); err != nil { // before errors repeat their names
		return err
	}
	t.known = make([]knownToken, len(t.Tokens))
	t.fingerprints = fingerprints{}
	for i, token := range t.Tokens {
		sum, length, err := readToken(token.Token)
		if err != nil {
			return fmt.Errorf("client %s: token: %w", token.client(), err)
		}
		t.known[i] = knownToken{sum, token.client()}
		t.fingerprints.add(t.known[i].client, sum[:])
		if length > 0 && length < safeTokenLength {
			ctx.Logger().Warn(shortTokenWarning, zap.String("client", token.client()), zap.Int("characters", length))
		}
	}
	return nil
}

// Validate ensures that each token belongs to one client.
func (t *Token) Validate() error {
	if len(t.Tokens) == 0 {
		return errors.New("tokens: missing")
	}
	clients := make(map[digest]string, len(t.known))
	for _, token := range t.known {
		if client, ok := clients[token.digest]; ok && client != token.client {
			return duplicateTokenError(client, token.client)
		}
		clients[token.digest] = token.client
	}
	return nil
}

// CheckClients validates the names of the clients, and that each token has one client. The tokens
// need not be provisioned.
func (t *Token) CheckClients() error {
	nameless := false
	clients := make(map[string]string, len(t.Tokens))
	for _, token := range t.Tokens {
		if token.Client == "" && nameless {
			return errors.New("only one token can be without a client name")
		}
		nameless = nameless || token.Client == ""
		if strings.ContainsAny(token.Client, "{}") { // perhaps a secret in the wrong place
			return errors.New("the name of a client cannot be a placeholder")
		}
		if err := CheckIdentity(token.client()); err != nil {
			return err
		}
		if client, ok := clients[token.Token]; ok && client != token.client() {
			return duplicateTokenError(client, token.client())
		}
		clients[token.Token] = token.client()
	}
	return nil
}

func duplicateTokenError(one, other string) error {
	return fmt.Errorf("clients %s and %s have the same token", one, other)
}

// client returns the client of a token.
func (t ClientToken) client() string { return cmp.Or(t.Client, "default") }

// Authenticate implements Provider.
func (t *Token) Authenticate(r *Request) (string, error) {
	bearer, ok, err := credentialsOf(r.Request, "Bearer")
	if err != nil {
		return "", err
	}
	if !ok && r.ProxyToken == "" {
		return "", nil
	}
	if !ok {
		return t.client(r.ProxyToken)
	}
	client, err := t.client(bearer)
	if err != nil || r.ProxyToken == "" {
		return client, err
	}
	other, err := t.client(r.ProxyToken)
	if err != nil {
		return "", err
	}
	if other != client {
		return "", errors.New("the tokens in the header and in the message belong to different clients")
	}
	return client, nil
}

// client returns the client of a token. It always compares the digest with all others, each
// in constant time, so that timing reveals nothing about the tokens.
func (t *Token) client(token string) (string, error) {
	sum := sha256.Sum256([]byte(token))
	found := -1
	for i := range t.known {
		equal := subtle.ConstantTimeCompare(sum[:], t.known[i].digest[:])
		found = subtle.ConstantTimeSelect(equal, i, found)
	}
	if found < 0 {
		return "", errors.New("the token is unknown")
	}
	return t.known[found].client, nil
}

// Clients returns the number of clients with a token.
func (t *Token) Clients() int { return len(t.fingerprints) - 1 } // "" is the fingerprint of all

// maxTokenMessage limits the size of a message that contains a token.
const maxTokenMessage = 64 << 10

// BodyNeeded implements Provider: the message may contain a token.
func (*Token) BodyNeeded(r *http.Request) int64 {
	if _, ok, err := credentialsOf(r, "Bearer"); ok || err != nil {
		return 0
	}
	return maxTokenMessage
}

// FingerprintOf implements SecretHolder.
func (t *Token) FingerprintOf(client string) string { return t.fingerprints[client] }

// CredentialHeaders implements Provider.
func (*Token) CredentialHeaders() []string { return []string{"Authorization"} }

// Challenge implements Challenger by RFC 6750.
func (*Token) Challenge(_ *http.Request, err error) string {
	if err != nil {
		return `Bearer realm="mcp", error="invalid_token"`
	}
	return `Bearer realm="mcp"`
}

// UnmarshalCaddyfile sets up the provider from Caddyfile tokens. Syntax:
//
//	auth token <token> [<client>]
//	auth token {
//		<client> <token>
//	}
//
// Errors do not repeat arguments that may be tokens.
func (t *Token) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume provider name
	args := d.RemainingArgs()
	if len(args) > 2 {
		return d.Errf("auth token takes a token and a client name, or a block of them")
	}
	if len(args) > 0 {
		args = append(args, "") // the client is optional
		if err := t.add(d, args[0], args[1]); err != nil {
			return err
		}
	}
	inline := len(t.Tokens) > 0
	for d.NextBlock(0) {
		if inline {
			return d.Errf("auth token takes a token or a block of them, not both")
		}
		client := d.Val()
		args := d.RemainingArgs()
		if len(args) != 1 || client == "" {
			return d.Errf("auth token: each line of the block must be a client name and its token")
		}
		if err := t.add(d, args[0], client); err != nil {
			return err
		}
	}
	if len(t.Tokens) == 0 {
		return d.Errf("auth token: expected \"auth token <token> [<client>]\"")
	}
	return nil
}

func (t *Token) add(d *caddyfile.Dispenser, token, client string) error {
	if err := CheckToken(token); err != nil {
		return d.Errf("auth token: %w", err)
	}
	WarnShortToken(d, token, cmp.Or(client, "default"))
	t.Tokens = append(t.Tokens, ClientToken{Token: TokenFromCaddyfile(token), Client: client})
	return nil
}

// Interface guards
var (
	_ Provider              = (*Token)(nil)
	_ SecretHolder          = (*Token)(nil)
	_ Challenger            = (*Token)(nil)
	_ caddy.Provisioner     = (*Token)(nil)
	_ caddy.Validator       = (*Token)(nil)
	_ caddyfile.Unmarshaler = (*Token)(nil)
)
