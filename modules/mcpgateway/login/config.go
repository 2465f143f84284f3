// Package login logs an mcp_gateway in to MCP servers with OAuth.
//
// A [Login] belongs to one server. It adds access tokens to requests. If the server requires a
// login, the client gets an error with the URL to log in. [Pages] serves the login pages of a
// gateway.
package login

import (
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/oauth"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
)

// Values of account.
const (
	perClient = "per_client"
	exchange  = "exchange"
)

// Grants without a login by a person.
const (
	clientCredentials = "client_credentials"
	jwtBearer         = "jwt_bearer"
)

// Config configures how the gateway logs in to a server.
type Config struct {
	// Whose login to use. With per_client, each client has its own login and must be authenticated.
	// With exchange, the gateway exchanges the bearer token that the client sent for a token of the
	// server (RFC 8693). Default: one login by the operator, which all clients share
	Account string `json:"account,omitempty"`

	// The client ID at the authorization server. An https URL names a client-ID metadata document,
	// which is used if the authorization server supports it. Default: the gateway's own document, or
	// dynamic registration
	ClientID string `json:"client_id,omitempty"`

	// The secret of the client ID, such as {env.SECRET}. Default: none
	ClientSecret string `json:"client_secret,omitempty"`

	// A PEM file with the private key of the client ID, for private_key_jwt. Default: none
	PrivateKey string `json:"private_key,omitempty"`

	// The scopes to request. Default: the scopes that the server requires
	Scopes []string `json:"scopes,omitempty"`

	// The grant: authorization_code, for which a person logs in; client_credentials; or jwt_bearer,
	// which uses assertion. Default: authorization_code
	Grant string `json:"grant,omitempty"`

	// A file with the JWT for jwt_bearer, such as the token of a Kubernetes service account. It is
	// read for each token request. Default: none
	Assertion string `json:"assertion,omitempty"`

	// The issuer of the authorization server, if not the one that the server names. Default: the one
	// that the server names
	Issuer string `json:"issuer,omitempty"`

	// Hosts of authorization servers and metadata that may use plain HTTP or addresses that are not
	// public. * matches any characters. Default: none
	TrustedHosts []string `json:"trusted_hosts,omitempty"`

	// The URL by which the authorization server knows the MCP server. Default: the URL of the server
	Resource string `json:"resource,omitempty"`
}

// UnmarshalCaddyfile sets up the login from Caddyfile tokens. Syntax:
//
//	oauth [per_client | exchange] {
//		client_id     <id>
//		client_secret <secret>
//		private_key   <file>
//		scopes        <scopes...>
//		grant         authorization_code | client_credentials | jwt_bearer
//		assertion     <file>
//		issuer        <url>
//		trusted_hosts <hosts...>
//		resource      <url>
//	}
func (o *Config) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume "oauth"
	if d.NextArg() {
		o.Account = d.Val()
	}
	if d.NextArg() {
		return setting.Expected(d, "oauth", "[per_client | exchange]")
	}
	return setting.BlockChecked(d, setting.Lines{
		"client_id":     setting.Text(&o.ClientID),
		"client_secret": setting.Secret(&o.ClientSecret),
		"private_key":   setting.Text(&o.PrivateKey),
		"scopes":        setting.List(&o.Scopes),
		"grant":         setting.Text(&o.Grant),
		"assertion":     setting.Text(&o.Assertion),
		"issuer":        setting.Text(&o.Issuer),
		"trusted_hosts": setting.List(&o.TrustedHosts),
		"resource":      setting.Text(&o.Resource),
	}, o.check, "scopes", "trusted_hosts")
}

// check validates the configuration. Its errors start with oauth.
func (o *Config) check() error {
	if err := o.Validate(); err != nil {
		return fmt.Errorf("oauth: %w", err)
	}
	return nil
}

// Validate ensures that the configuration makes sense.
func (o *Config) Validate() error {
	switch {
	case o.Account != "" && o.Account != perClient && o.Account != exchange:
		return fmt.Errorf("%q must be per_client or exchange", o.Account)
	case o.Grant != "" && o.Grant != "authorization_code" && !o.isMachine():
		return fmt.Errorf("grant: %q must be authorization_code, client_credentials or jwt_bearer", o.Grant)
	case o.isMachine() && o.Account != "":
		return fmt.Errorf("grant: %s is for the gateway itself and excludes %s", o.Grant, o.Account)
	case (o.Grant == jwtBearer) != (o.Assertion != ""):
		return errors.New("grant: jwt_bearer needs assertion, and other grants do not allow it")
	case o.Grant == jwtBearer && o.ClientID == "":
		return errors.New("grant: jwt_bearer needs client_id")
	case o.Grant == clientCredentials && (o.ClientID == "" || o.ClientSecret == "" && o.PrivateKey == ""):
		return errors.New("grant: client_credentials needs client_id, and client_secret or private_key")
	case o.Account == exchange && o.ClientID == "":
		return errors.New("exchange needs client_id")
	case o.ClientSecret != "" && o.ClientID == "":
		return errors.New("client_secret needs client_id")
	case o.PrivateKey != "" && o.ClientID == "":
		return errors.New("private_key needs client_id")
	case o.ClientSecret != "" && o.PrivateKey != "":
		return errors.New("client_secret and private_key exclude each other")
	}
	if o.Issuer != "" {
		if u, err := url.Parse(o.Issuer); err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
			return fmt.Errorf("issuer: %q is not a URL", o.Issuer)
		}
	}
	return nil
}

// isMachine reports whether the gateway logs in without a person.
func (o *Config) isMachine() bool { return o.Grant == clientCredentials || o.Grant == jwtBearer }

// config converts the configuration for internal/oauth.
func (o *Config) config() (oauth.Config, error) {
	resource, err := url.Parse(o.Resource)
	switch {
	case o.Resource == "":
		return oauth.Config{}, errors.New("resource: missing; only a server with a URL has a default")
	case err != nil || resource.Host == "" || resource.Fragment != "" ||
		resource.Scheme != "https" && resource.Scheme != "http":
		return oauth.Config{}, fmt.Errorf("resource: %q is not an http or https URL", o.Resource)
	}
	config := oauth.Config{
		Resource: resource, ClientID: o.ClientID, Scopes: o.Scopes, Issuer: o.Issuer, TrustedHosts: o.TrustedHosts,
		ClientName: clientName,
	}
	repl := caddy.NewReplacer()
	if config.ClientID, err = repl.ReplaceOrErr(o.ClientID, true, true); err != nil {
		return oauth.Config{}, fmt.Errorf("client_id: %w", err)
	}
	if config.ClientSecret, err = repl.ReplaceOrErr(o.ClientSecret, true, true); err != nil {
		return oauth.Config{}, fmt.Errorf("client_secret: %w", err)
	}
	if o.PrivateKey != "" {
		if config.PrivateKey, err = readKey(o.PrivateKey); err != nil {
			return oauth.Config{}, fmt.Errorf("private_key: %w", err)
		}
	}
	if o.Assertion != "" {
		config.Assertion = func() (string, error) {
			text, err := os.ReadFile(o.Assertion)
			if err != nil {
				return "", fmt.Errorf("assertion: %w", err)
			}
			return strings.TrimSpace(string(text)), nil
		}
	}
	switch {
	case o.isMachine():
		config.Grant = oauth.ClientCredentials
	case o.Account == exchange:
		config.Grant = oauth.TokenExchange
	}
	return config, nil
}

// readKey reads a private key from a PEM file.
func readKey(file string) (crypto.Signer, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("%s has no PEM block", file)
	}
	var key any
	switch {
	case strings.HasPrefix(block.Type, "RSA "):
		key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	case strings.HasPrefix(block.Type, "EC "):
		key, err = x509.ParseECPrivateKey(block.Bytes)
	default:
		key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("%s: a key of type %T cannot sign", file, key)
	}
	return signer, nil
}

// Interface guard
var _ caddyfile.Unmarshaler = (*Config)(nil)
