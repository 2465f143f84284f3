package integration

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
)

// A gateway with its own client credentials needs no login by a person.
func TestOAuthClientCredentials(t *testing.T) {
	isolate(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	point, err := key.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	jwk := map[string]any{"kty": "EC", "crv": "P-256", "x": base64URL(point[1:33]), "y": base64URL(point[33:])}
	const secret = "s3cret-AbCdEf0123456789-AbCdEf0123456789"
	secretFile := filepath.Join(t.TempDir(), "secret") // Caddy itself logs the configuration at debug level
	if err := os.WriteFile(secretFile, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		line   string
		client map[string]any // registration at the authorization server
	}{
		"by secret": {"client_secret {file." + secretFile + "}", map[string]any{"client_secret": secret}},
		"by key": {"private_key " + file, map[string]any{"jwks": map[string]any{"keys": []any{jwk}},
			"token_endpoint_auth_method": "private_key_jwt", "token_endpoint_auth_signing_alg": "ES256"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tt.client["client_id"], tt.client["grant_types"], tt.client["redirect_uris"], tt.client["response_types"] = "robot",
				[]string{"client_credentials"}, []string{}, []string{}
			a := startAuthServer(t, map[string]any{"accessTokenSeconds": 2, "registration": false, "clients": []any{tt.client}})
			g := startGateway(t, t.TempDir(), a.line("oauth", "grant client_credentials", "client_id robot", tt.line))
			c := g.join(t)
			awaitTools(t, c, accountTools("robot")...)
			await.Until(t, "new tokens", func() bool {
				expectResult(t, c, "whoami", "robot")
				return a.stats(t).Grants["client_credentials"] >= 3
			})
			if logged := g.stop(t); strings.Contains(logged, secret) {
				t.Error("the log contains the secret")
			}
		})
	}
}

// The gateway exchanges the caller's token for a token for the server, at the identity
// provider that both use.
func TestOAuthTokenExchange(t *testing.T) {
	isolate(t)
	const (
		audience = "https://mcp.test/mcp"
		secret   = "s3cret-AbCdEf0123456789-AbCdEf0123456789"
	)
	a := startAuthServer(t, map[string]any{"audience": audience, "clients": []any{
		map[string]any{"client_id": "agent", "token_endpoint_auth_method": "none",
			"redirect_uris": []string{"http://127.0.0.1:1/callback"}},
		map[string]any{"client_id": "gateway", "client_secret": secret, "redirect_uris": []string{},
			"response_types": []string{},
			"grant_types":    []string{"urn:ietf:params:oauth:grant-type:token-exchange"}},
	}})
	g := startGateway(t, t.TempDir(),
		block("auth jwt", "issuer "+a.Issuer, "audience "+audience, "jwks "+a.Issuer+"/jwks"),
		a.line("oauth exchange", "client_id gateway", "client_secret "+secret))
	for _, account := range []string{"alice", "bob"} {
		theirs := a.login(t, "agent", account, audience, "gateway")
		c := g.join(t, bearer(theirs.Access))
		awaitTools(t, c, accountTools(account)...)
		for range 3 {
			expectResult(t, c, "whoami", account)
		}
	}
	if got := a.stats(t); got.Grants["urn:ietf:params:oauth:grant-type:token-exchange"] != 2 ||
		got.ForeignSessions != 0 || len(got.RefusedGrants) != 0 {
		t.Errorf("the authorization server saw %+v, want one token exchange per client", got)
	}
}
