package auth

import (
	"cmp"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

func init() {
	caddy.RegisterModule(Token{})
}

// Token knows clients by tokens that you hand out to them.
//
// A client sends its token as
//
//	Authorization: Bearer <token>
//
// or, if it cannot set headers, as params.proxy.authToken of each message. If a request
// has both, both must be good and of the same client.
//
// Whoever has a token is let in, so make them long and leave them to chance:
//
//	openssl rand -hex 32
//
// and do not put them into the configuration: write {env.NAME} for one in an environment
// variable, {file./path} for one in a file. A token that stands in a Caddyfile, also by
// {$NAME}, is replaced with its SHA-256, so that the configuration which Caddy keeps and
// shows does not have it. One that is short can be found from that. JSON can have
// the SHA-256 too, as sha256:<hex>.
//
// To change a token give its client the new one beside the old one, and take that
// away when it is no longer used.
type Token struct {
	// The tokens, one at least. Required.
	Tokens []ClientToken `json:"tokens,omitempty"`

	known  []knownToken
	prints map[string]string // of the tokens of each client, and of all
}

// ClientToken is a token and whose it is.
type ClientToken struct {
	// The token: {env.NAME}, {file./path} or sha256:<hex>. Required.
	Token string `json:"token,omitempty"`

	// The client that has it. A client can have several. Only one token can go
	// without. Default: default
	Client string `json:"client,omitempty"`
}

const defaultTokenClient = "default"

// A knownToken is a token as requests are compared with it.
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
func (t *Token) Provision(caddy.Context) error {
	t.known = make([]knownToken, len(t.Tokens))
	for i, token := range t.Tokens {
		sum, err := readToken(token.Token)
		if err != nil {
			return fmt.Errorf("tokens[%d].token: %w", i, err)
		}
		t.known[i] = knownToken{sum, cmp.Or(token.Client, defaultTokenClient)}
	}
	t.prints = fingerprints(func(add func(client string, secret []byte)) {
		for _, token := range t.known {
			add(token.client, token.digest[:])
		}
	})
	return nil
}

// Validate ensures that each token is of one client.
func (t *Token) Validate() error {
	if len(t.Tokens) == 0 {
		return errors.New("tokens: there are none, so nobody could get in")
	}
	nameless := false
	clients := make(map[digest]string, len(t.known))
	for i, token := range t.known {
		if t.Tokens[i].Client == "" && nameless {
			return fmt.Errorf("tokens[%d].client: missing: only one token can go without", i)
		}
		nameless = nameless || t.Tokens[i].Client == ""
		if err := checkClientName(token.client); err != nil {
			return fmt.Errorf("tokens[%d].client: %w", i, err)
		}
		if client, ok := clients[token.digest]; ok && client != token.client {
			return fmt.Errorf("tokens[%d].token: another client has the same", i)
		}
		clients[token.digest] = token.client
	}
	return nil
}

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
		return "", errors.New("the tokens of the header and of the message are of different clients")
	}
	return client, nil
}

// client returns whose a token is. How long that takes does not depend on which of the
// tokens it is or how much it has in common with one: only digests are compared, each
// in constant time, and always with all.
func (t *Token) client(token string) (string, error) {
	sum := sha256.Sum256([]byte(token))
	found := -1
	for i := range t.known {
		equal := subtle.ConstantTimeCompare(sum[:], t.known[i].digest[:])
		found = subtle.ConstantTimeSelect(equal, i, found)
	}
	if found < 0 {
		return "", errors.New("the token is not one that is known")
	}
	return t.known[found].client, nil
}

// maxTokenMessage is how many bytes a message with a token in it may have.
const maxTokenMessage = 64 << 10

// BodyNeeded implements Provider: a token may be in the message.
func (*Token) BodyNeeded(r *http.Request) int64 {
	if _, ok, err := credentialsOf(r, "Bearer"); ok || err != nil {
		return 0
	}
	return maxTokenMessage
}

// FingerprintOf implements SecretHolder.
func (t *Token) FingerprintOf(client string) string { return t.prints[client] }

// CredentialHeaders implements Provider.
func (*Token) CredentialHeaders() []string { return []string{"Authorization"} }

// Challenge implements Challenger, in the words of RFC 6750.
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
// Its errors repeat nothing that may be a token.
func (t *Token) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume provider name

	switch args := d.RemainingArgs(); len(args) {
	case 0:
	case 1:
		args = append(args, "")
		fallthrough
	case 2:
		if err := t.addFromCaddyfile(d, args[0], args[1]); err != nil {
			return err
		}
	default:
		return d.Errf("auth token: it takes a token and the name of its client, or a block of them")
	}

	inline := len(t.Tokens) > 0
	for d.NextBlock(0) {
		if inline {
			return d.Errf("auth token: it takes a token or a block of them, not both")
		}
		client := d.Val()
		args := d.RemainingArgs()
		if len(args) != 1 || client == "" {
			return d.Errf("auth token: each line of the block is the name of a client and its token")
		}
		if err := t.addFromCaddyfile(d, args[0], client); err != nil {
			return err
		}
	}
	if len(t.Tokens) == 0 {
		return d.Errf("auth token: there is no token")
	}
	return nil
}

func (t *Token) addFromCaddyfile(d *caddyfile.Dispenser, token, client string) error {
	if err := CheckToken(token); err != nil {
		return d.Errf("auth token: the token: %w", err)
	}
	if client != "" {
		if err := checkClientName(client); err != nil {
			return d.Errf("auth token: the client: %w", err)
		}
	}
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
