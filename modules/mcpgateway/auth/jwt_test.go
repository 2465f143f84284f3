package auth

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/go-jose/go-jose/v4"
)

const (
	testIssuer   = "https://id.example.com/realms/main"
	testAudience = "https://mcp.example.com/mcp"
	testSubject  = "hunter2" // must not be in any error
)

// signingKeys are shared by all tests, because they take long to generate.
var signingKeys = sync.OnceValue(func() (keys struct {
	rsa, other, weak *rsa.PrivateKey
	p256, p384       *ecdsa.PrivateKey
	ed               ed25519.PrivateKey
}) {
	keys.rsa, _ = rsa.GenerateKey(rand.Reader, 2048)
	keys.other, _ = rsa.GenerateKey(rand.Reader, 2048)
	keys.weak, _ = rsa.GenerateKey(rand.Reader, 1024)
	keys.p256, _ = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	keys.p384, _ = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	_, keys.ed, _ = ed25519.GenerateKey(rand.Reader)
	return keys
})

// publicSet returns the key set that the issuer has in most tests.
func publicSet(t testing.TB) []byte {
	t.Helper()
	keys := signingKeys()
	return encodeSet(t,
		jose.JSONWebKey{Key: keys.rsa.Public(), KeyID: "rsa", Use: "sig"},
		jose.JSONWebKey{Key: keys.rsa.Public(), KeyID: "rsa for PS256", Algorithm: "PS256"},
		jose.JSONWebKey{Key: keys.p256.Public(), KeyID: "p256", Use: "sig", Algorithm: "ES256"},
		jose.JSONWebKey{Key: keys.p384.Public(), KeyID: "p384"},
		jose.JSONWebKey{Key: keys.ed.Public(), KeyID: "ed"},
		jose.JSONWebKey{Key: keys.other.Public(), KeyID: "encryption", Use: "enc"},
		jose.JSONWebKey{Key: keys.weak.Public(), KeyID: "weak"},
		jose.JSONWebKey{Key: keys.other, KeyID: "private"},
		jose.JSONWebKey{Key: []byte("0123456789abcdef0123456789abcdef"), KeyID: "secret"},
	)
}

func encodeSet(t testing.TB, keys ...jose.JSONWebKey) []byte {
	t.Helper()
	text, err := json.Marshal(jose.JSONWebKeySet{Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// goodClaims returns the claims of a valid token with changes. It removes claims changed to nil.
func goodClaims(changes map[string]any) map[string]any {
	now := time.Now()
	claims := map[string]any{
		"iss": testIssuer, "aud": testAudience, "sub": testSubject, "scope": "openid mcp:tools mcp:read",
		"exp": now.Add(time.Hour).Unix(), "iat": now.Unix(), "nbf": now.Unix(),
	}
	maps.Copy(claims, changes)
	maps.DeleteFunc(claims, func(_ string, value any) bool { return value == nil })
	return claims
}

// tokenHeader holds header fields of a token.
type tokenHeader = map[jose.HeaderKey]any

// sign returns a signed token.
func sign(
	t testing.TB, alg jose.SignatureAlgorithm, key any, kid string, header tokenHeader, claims map[string]any,
) string {
	t.Helper()
	payload, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	return signText(t, alg, key, kid, header, payload)
}

func signText(
	t testing.TB, alg jose.SignatureAlgorithm, key any, kid string, header tokenHeader, payload []byte,
) string {
	t.Helper()
	options := &jose.SignerOptions{ExtraHeaders: header}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: jose.JSONWebKey{Key: key, KeyID: kid}}, options)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// goodToken returns a valid token with some claims changed.
func goodToken(t testing.TB, changes map[string]any) string {
	t.Helper()
	return sign(t, jose.RS256, signingKeys().rsa, "rsa", nil, goodClaims(changes))
}

// forge returns a token from its parts, valid or not.
func forge(header string, claims map[string]any, signature func(input []byte) []byte) string {
	payload, _ := json.Marshal(claims)
	encode := base64.RawURLEncoding.EncodeToString
	input := encode([]byte(header)) + "." + encode(payload)
	return input + "." + encode(signature([]byte(input)))
}

// loadJWT loads the provider as mcp_gateway does.
func loadJWT(t testing.TB, config string) (*JWT, error) {
	t.Helper()
	ctx, err := caddy.ProvisionContext(new(caddy.Config))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := caddy.NewContext(ctx)
	t.Cleanup(cancel)
	loaded, err := ctx.LoadModuleByID("http.handlers.mcp_gateway.auth.jwt", json.RawMessage(config))
	if err != nil {
		return nil, err
	}
	return loaded.(*JWT), nil
}

// newJWT returns a provider for the issuer, with more members in its configuration.
func newJWT(t testing.TB, jwks, members string) *JWT {
	t.Helper()
	provider, err := loadJWT(t,
		fmt.Sprintf(`{"issuer":%q,"audience":["another",%q],"jwks":%q%s}`, testIssuer, testAudience, jwks, members))
	if err != nil {
		t.Fatal(err)
	}
	return provider
}

// authenticate authenticates a request with these Authorization headers.
func authenticate(ctx context.Context, provider *JWT, headers ...string) (string, error) {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "http://mcp.example.com/mcp", nil)
	r.Header["Authorization"] = headers
	return provider.Authenticate(&Request{Request: r})
}

func TestTokensThatAreGood(t *testing.T) { // A76
	keys, server := signingKeys(), serveKeys(t, publicSet(t))
	everything := `,"algorithms":["RS256","PS256","ES256","ES384","EdDSA"]`
	tests := []struct {
		name, members string
		alg           jose.SignatureAlgorithm
		key           any
		kid           string
		header        tokenHeader
		claims        map[string]any
		want          string
	}{
		{name: "RS256", alg: jose.RS256, key: keys.rsa, kid: "rsa"},
		{name: "ES256", alg: jose.ES256, key: keys.p256, kid: "p256"},
		{name: "EdDSA", alg: jose.EdDSA, key: keys.ed, kid: "ed"},
		{name: "PS256 if allowed", members: everything, alg: jose.PS256, key: keys.rsa, kid: "rsa for PS256"},
		{name: "ES384 if allowed", members: everything, alg: jose.ES384, key: keys.p384, kid: "p384"},
		{name: "the type JWT", alg: jose.RS256, key: keys.rsa, kid: "rsa", header: tokenHeader{"typ": "JWT"}},
		{name: "the type of access tokens", alg: jose.RS256, key: keys.rsa, kid: "rsa", header: tokenHeader{"typ": "at+jwt"}},
		{name: "the long name of the type of access tokens", alg: jose.RS256, key: keys.rsa, kid: "rsa",
			header: tokenHeader{"typ": "application/AT+JWT"}},
		{name: "a token without a key ID", alg: jose.ES256, key: keys.p256},
		{name: "several audiences", alg: jose.RS256, key: keys.rsa, kid: "rsa",
			claims: map[string]any{"aud": []string{"account", testAudience}}},
		{name: "the other audience", alg: jose.RS256, key: keys.rsa, kid: "rsa", claims: map[string]any{"aud": "another"}},
		{name: "expired within the leeway", alg: jose.RS256, key: keys.rsa, kid: "rsa",
			claims: map[string]any{"exp": time.Now().Add(-10 * time.Second).Unix()}},
		{name: "not valid yet within the leeway", alg: jose.RS256, key: keys.rsa, kid: "rsa",
			claims: map[string]any{"nbf": time.Now().Add(10 * time.Second).Unix()}},
		{name: "only an expiry time", alg: jose.RS256, key: keys.rsa, kid: "rsa",
			claims: map[string]any{"nbf": nil, "iat": nil}},
		{name: "an expiry time with a fraction", alg: jose.RS256, key: keys.rsa, kid: "rsa",
			claims: map[string]any{"exp": float64(time.Now().Add(time.Hour).Unix()) + 0.5}},
		{name: "another claim", members: `,"claim":"azp"`, alg: jose.RS256, key: keys.rsa, kid: "rsa",
			claims: map[string]any{"azp": "agent", "sub": 7}, want: "agent"},
		{name: "scopes as a string", members: `,"scopes":["mcp:tools","mcp:read"]`, alg: jose.RS256, key: keys.rsa,
			kid: "rsa"},
		{name: "scopes as a list", members: `,"scopes":["b"]`, alg: jose.RS256, key: keys.rsa, kid: "rsa",
			claims: map[string]any{"scope": []string{"a", "b"}}},
		{name: "scopes of Entra", members: `,"scopes":["b"]`, alg: jose.RS256, key: keys.rsa, kid: "rsa",
			claims: map[string]any{"scope": nil, "scp": "a b"}},
		{name: "scopes of Okta", members: `,"scopes":["b"]`, alg: jose.RS256, key: keys.rsa, kid: "rsa",
			claims: map[string]any{"scope": nil, "scp": []string{"a", "b"}}},
		{name: "invalid scopes that are not required", alg: jose.RS256, key: keys.rsa, kid: "rsa",
			claims: map[string]any{"scope": 7}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want := tt.want
			if want == "" {
				want = testSubject
			}
			token := sign(t, tt.alg, tt.key, tt.kid, tt.header, goodClaims(tt.claims))
			for _, scheme := range []string{"Bearer ", "bearer "} {
				got, err := authenticate(t.Context(), newJWT(t, server.URL, tt.members), scheme+token)
				if got != want || err != nil {
					t.Errorf("%sgot %q, %v, want %q", scheme, got, err, want)
				}
			}
		})
	}
}

func TestTokensThatAreNotGood(t *testing.T) { // A76
	keys, server := signingKeys(), serveKeys(t, publicSet(t))
	provider := newJWT(t, server.URL, `,"scopes":["mcp:tools"]`)
	with := func(name string, value any) string { return "Bearer " + goodToken(t, map[string]any{name: value}) }
	signed := func(alg jose.SignatureAlgorithm, key any, kid string, header tokenHeader) string {
		return "Bearer " + sign(t, alg, key, kid, header, goodClaims(nil))
	}
	der, err := x509.MarshalPKIXPublicKey(keys.rsa.Public())
	if err != nil {
		t.Fatal(err)
	}
	hmacWith := func(secret []byte) func([]byte) []byte {
		return func(input []byte) []byte {
			mac := hmac.New(sha256.New, secret)
			mac.Write(input)
			return mac.Sum(nil)
		}
	}
	rsaSignature := func(input []byte) []byte {
		sum := sha256.Sum256(input)
		signature, _ := rsa.SignPKCS1v15(nil, keys.rsa, crypto.SHA256, sum[:])
		return signature
	}
	encrypter, err := jose.NewEncrypter(jose.A128GCM, jose.Recipient{Algorithm: jose.RSA_OAEP, Key: keys.rsa.Public()},
		nil)
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := encrypter.Encrypt([]byte(goodToken(t, nil)))
	if err != nil {
		t.Fatal(err)
	}
	encrypted, err := sealed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	good := goodToken(t, nil)
	head, rest, _ := strings.Cut(good, ".")
	payload, signature, _ := strings.Cut(rest, ".")
	encode := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	decoded, _ := base64.RawURLEncoding.DecodeString(payload)
	soon := time.Now().Add(10 * time.Minute).Unix()

	const forbidden = "insufficient_scope"
	tests := []struct{ name, authorization, want string }{
		{"expired", with("exp", time.Now().Add(-time.Minute).Unix()), string(faultExpired)},
		{"expired long ago", with("exp", 0), string(faultExpired)},
		{"no expiry time", with("exp", nil), string(faultNoExpiry)},
		{"an expiry time that is a string", with("exp", "2099-01-01"), string(faultForm)},
		{"an expiry time that is null", with("exp", json.RawMessage("null")), string(faultNoExpiry)},
		{"an expiry time out of range", with("exp", json.RawMessage("1e300")), string(faultForm)},
		{"not valid yet", with("nbf", soon), string(faultNotYet)},
		{"a start time that is a string", with("nbf", "0"), string(faultForm)},
		{"issued in the future", with("iat", soon), string(faultFuture)},
		{"another issuer", with("iss", "https://evil.example.com"), string(faultIssuer)},
		{"an issuer with an extra slash", with("iss", testIssuer+"/"), string(faultIssuer)},
		{"an issuer in another case", with("iss", strings.ToUpper(testIssuer)), string(faultIssuer)},
		{"no issuer", with("iss", nil), string(faultIssuer)},
		{"a list of issuers", with("iss", []string{testIssuer}), string(faultForm)},
		{"another audience", with("aud", "account"), string(faultAudience)},
		{"an audience with the same beginning", with("aud", testAudience+"/x"), string(faultAudience)},
		{"no audience", with("aud", nil), string(faultAudience)},
		{"an empty list of audiences", with("aud", []string{}), string(faultAudience)},
		{"a list of audiences with a number", with("aud", []any{testAudience, 7}), string(faultForm)},
		{"no subject", with("sub", nil), "the claim sub of the token is missing or not a string"},
		{"a subject that is a number", with("sub", 7), "the claim sub of the token is missing or not a string"},
		{"a subject that is null", with("sub", json.RawMessage("null")), "claim sub: "},
		{"an empty subject", with("sub", ""), "claim sub: "},
		{"a subject with a line break", with("sub", "hunter2\nadmin"), "claim sub: "},
		{"a subject that is too long", with("sub", strings.Repeat("x", 257)), "claim sub: "},
		{"a missing scope", with("scope", "mcp:read mcp:toolsmith"), forbidden},
		{"no scopes", with("scope", nil), forbidden},
		{"an empty scope and one in scp", "Bearer " + goodToken(t, map[string]any{"scope": "", "scp": "mcp:tools"}),
			forbidden},
		{"scopes that are a number", with("scope", 7), string(faultScope)},
		{"scopes that are a list with a number", with("scope", []any{"mcp:tools", 7}), string(faultScope)},
		{"the algorithm none without a signature",
			"Bearer " + forge(`{"alg":"none"}`, goodClaims(nil), func([]byte) []byte { return nil }), string(faultAlgorithm)},
		{"the algorithm none in another case", "Bearer " + forge(`{"alg":"nOnE","kid":"rsa"}`, goodClaims(nil), rsaSignature),
			string(faultAlgorithm)},
		{"no algorithm", "Bearer " + forge(`{"kid":"rsa"}`, goodClaims(nil), rsaSignature), string(faultAlgorithm)},
		{"an algorithm that is a number", "Bearer " + forge(`{"alg":256,"kid":"rsa"}`, goodClaims(nil), rsaSignature),
			string(faultAlgorithm)},
		{"HS256 with the public key as the secret",
			"Bearer " + forge(`{"alg":"HS256","kid":"rsa"}`, goodClaims(nil), hmacWith(der)), string(faultAlgorithm)},
		{"HS256 with a secret from the key set",
			"Bearer " + forge(`{"alg":"HS256","kid":"secret"}`, goodClaims(nil),
				hmacWith([]byte("0123456789abcdef0123456789abcdef"))), string(faultAlgorithm)},
		{"RS256 in the header with an HMAC", "Bearer " + forge(`{"alg":"RS256","kid":"rsa"}`, goodClaims(nil), hmacWith(der)),
			string(faultSignature)},
		{"a disallowed algorithm", signed(jose.RS512, keys.rsa, "rsa", nil), string(faultAlgorithm)},
		{"an algorithm that the key does not allow", signed(jose.RS256, keys.rsa, "rsa for PS256", nil),
			string(faultSignature)},
		{"ES256 in the header of RS256", "Bearer " + forge(`{"alg":"ES256","kid":"rsa"}`, goodClaims(nil), rsaSignature),
			string(faultSignature)},
		{"a key of another type", signed(jose.RS256, keys.rsa, "p256", nil), string(faultSignature)},
		{"a key of another curve", "Bearer " + forge(`{"alg":"ES256","kid":"p384"}`, goodClaims(nil), rsaSignature),
			string(faultSignature)},
		{"another key with the ID of a known one", signed(jose.RS256, keys.other, "rsa", nil), string(faultSignature)},
		{"an unknown key", signed(jose.RS256, keys.other, "other", nil), string(faultKey)},
		{"an unknown key without an ID", signed(jose.RS256, keys.other, "", nil), string(faultKey)},
		{"a key for encryption", signed(jose.RS256, keys.other, "encryption", nil), string(faultKey)},
		{"a private key in the set", signed(jose.RS256, keys.other, "private", nil), string(faultKey)},
		{"a weak key", signed(jose.RS256, keys.weak, "weak", nil), string(faultKey)},
		{"a key in the token", signed(jose.RS256, keys.other, "mine",
			tokenHeader{"jwk": jose.JSONWebKey{Key: keys.other.Public(), KeyID: "mine"}}), string(faultOwnKey)},
		{"the URL of a key in the token", signed(jose.RS256, keys.other, "mine", tokenHeader{"jku": server.URL}),
			string(faultOwnKey)},
		{"the type of logout tokens", signed(jose.RS256, keys.rsa, "rsa", tokenHeader{"typ": "logout+jwt"}),
			string(faultType)},
		{"a type that is a number", signed(jose.RS256, keys.rsa, "rsa", tokenHeader{"typ": 7}), string(faultType)},
		{"a critical extension", signed(jose.RS256, keys.rsa, "rsa", tokenHeader{"crit": []string{"exp"}, "exp": 1}),
			string(faultCritical)},
		{"a critical extension that libraries know",
			signed(jose.RS256, keys.rsa, "rsa", tokenHeader{"crit": []string{"b64"}, "b64": true}), string(faultCritical)},
		{"an empty list of critical extensions", signed(jose.RS256, keys.rsa, "rsa", tokenHeader{"crit": []string{}}),
			string(faultCritical)},
		{"an encrypted token", "Bearer " + encrypted, string(faultEncrypted)},
		{"no signature", "Bearer " + head + "." + payload + ".", string(faultSignature)},
		{"a truncated signature", "Bearer " + good[:len(good)-6], string(faultSignature)},
		{"a signature truncated within a byte", "Bearer " + good[:len(good)-1], string(faultForm)},
		{"another encoding of the signature", "Bearer " + good[:len(good)-1] + string(good[len(good)-1]+1),
			string(faultForm)},
		{"a padded signature", "Bearer " + good + "==", string(faultForm)},
		{"another payload", "Bearer " + head + "." + encode(strings.Replace(string(decoded), "mcp:read", "mcp:root", 1)) +
			"." + signature, string(faultSignature)},
		{"another header", "Bearer " + encode(`{"alg":"RS256","kid":"rsa","typ":"JWT"}`) + "." + payload + "." + signature,
			string(faultSignature)},
		{"another signature", "Bearer " + head + "." + payload + "." + strings.Repeat("A", len(signature)),
			string(faultSignature)},
		{"a header that is not JSON", "Bearer " + encode("hunter2") + "." + payload + "." + signature, string(faultForm)},
		{"a header with a duplicate member",
			"Bearer " + forge(`{"alg":"none","alg":"RS256","kid":"rsa"}`, goodClaims(nil), rsaSignature), string(faultForm)},
		{"claims that are not JSON", "Bearer " + signText(t, jose.RS256, keys.rsa, "rsa", nil, []byte("hunter2")),
			string(faultForm)},
		{"claims that are a list", "Bearer " + signText(t, jose.RS256, keys.rsa, "rsa", nil, []byte("[]")),
			string(faultForm)},
		{"claims that are null", "Bearer " + signText(t, jose.RS256, keys.rsa, "rsa", nil, []byte("null")),
			string(faultIssuer)},
		{"claims that are not UTF-8", "Bearer " + signText(t, jose.RS256, keys.rsa, "rsa", nil, []byte("{\"sub\":\"\xff\"}")),
			string(faultForm)},
		{"a duplicate claim", "Bearer " + signText(t, jose.RS256, keys.rsa, "rsa", nil,
			[]byte(strings.Replace(string(decoded), "{", `{"sub":"admin",`, 1))), string(faultForm)},
		{"a claim in another case", "Bearer " + signText(t, jose.RS256, keys.rsa, "rsa", nil,
			[]byte(strings.Replace(string(decoded), `"exp"`, `"EXP"`, 1))), string(faultNoExpiry)},
		{"a token that is too long", with("filler", strings.Repeat("x", 16<<10)), string(faultLength)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := authenticate(t.Context(), provider, tt.authorization)
			if got != "" || err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("got %q, %v, want %s", got, err, tt.want)
			}
			if _, ok := errors.AsType[*ForbiddenError](err); ok != (tt.want == forbidden) {
				t.Errorf("ForbiddenError %t, want %t", ok, !ok)
			}
			for _, secret := range append(strings.Split(tt.authorization, "."), "hunter2", "evil", "admin") {
				if len(secret) > 3 && strings.Contains(err.Error(), secret) {
					t.Errorf("the error contains %s: %v", secret, err)
				}
			}
		})
	}
	t.Run("two tokens", func(t *testing.T) {
		if got, err := authenticate(t.Context(), provider, "Bearer "+good, "Bearer "+good); got != "" || err == nil {
			t.Errorf("got %q, %v", got, err)
		}
	})
	t.Run("the valid token", func(t *testing.T) {
		if got, err := authenticate(t.Context(), provider, "Bearer "+good); got != testSubject || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
	})
}

// Only the token itself is valid, and no input causes a panic. Inputs are derived from the valid
// token, because each process of a fuzz run has its own keys.
func FuzzTokens(f *testing.F) { // A76
	path := filepath.Join(f.TempDir(), "keys.json")
	if err := os.WriteFile(path, publicSet(f), 0o600); err != nil {
		f.Fatal(err)
	}
	provider := newJWT(f, path, "")
	good := goodToken(f, map[string]any{"exp": time.Now().Add(24 * time.Hour).Unix()})
	whole := uint(len(good))
	f.Add(uint(0), uint(0), "")
	f.Add(whole, uint(0), "=")
	f.Add(whole-1, uint(1), "B")
	f.Add(uint(0), whole,
		sign(f, jose.RS256, signingKeys().other, "", tokenHeader{"typ": "JWT", "crit": []string{"b64"}}, goodClaims(nil)))
	f.Add(uint(0), whole, forge(`{"alg":"none"}`, goodClaims(nil), func([]byte) []byte { return nil }))
	f.Add(uint(0), whole, "eyJhbGciOiJSUzI1NiJ9.e30.AA")
	f.Add(uint(0), whole, "a.b.c.d.e")
	f.Add(whole/2, uint(0), " ")
	f.Add(whole-10, uint(1), "0") // this or the next input changes the signature
	f.Add(whole-10, uint(1), "1")
	f.Add(uint(6), uint(4), "")
	f.Fuzz(func(t *testing.T, start, cut uint, put string) {
		start %= whole + 1
		cut = min(cut, whole-start)
		token := good[:start] + put + good[start+cut:]
		got, err := authenticate(t.Context(), provider, "Bearer "+token)
		if isGood := strings.Trim(token, " ") == good; (got == testSubject) != isGood || got != "" && err != nil {
			t.Errorf("got %q, %v", got, err)
		}
	})
}

func TestCredentialsOfOtherProviders(t *testing.T) { // A76
	server := serveKeys(t, publicSet(t))
	provider, good := newJWT(t, server.URL, ""), goodToken(t, nil)
	tests := []struct {
		name    string
		headers []string
	}{
		{"no header", nil},
		{"an empty header", []string{""}},
		{"only the scheme", []string{"Bearer"}},
		{"a static token", []string{"Bearer sk-hunter2"}},
		{"a static token with a dot", []string{"Bearer one.two"}},
		{"a static token with three dots", []string{"Bearer one.two.three.four"}},
		{"a static token with four dots", []string{"Bearer one.two.three.four.five"}},
		{"dots", []string{"Bearer .."}},
		{"a token with another character", []string{"Bearer " + good + "~"}},
		{"two tokens in one header", []string{"Bearer " + good + ", Bearer " + good}},
		{"a token of another scheme", []string{"Basic " + good}},
		{"a token bound to a key", []string{"DPoP " + good}},
		{"a token without a scheme", []string{good}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := authenticate(t.Context(), provider, tt.headers...); got != "" || err != nil {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
	t.Run("tokens elsewhere", func(t *testing.T) {
		r := httptest.NewRequest(http.MethodPost, "/mcp?access_token="+good, nil)
		r.Header.Set("X-Access-Token", good)
		r.AddCookie(&http.Cookie{Name: "access_token", Value: good})
		if got, err := provider.Authenticate(&Request{Request: r, Body: []byte("access_token=" + good),
			ProxyToken: good}); got != "" || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
	})
	if n := server.count(); n != 0 {
		t.Errorf("%d fetches, want 0", n)
	}
}

func TestResourceIsTheAudience(t *testing.T) { // A76
	server := serveKeys(t, publicSet(t))
	for _, tt := range []struct {
		name, audience, url string
		resource, metadata  string // metadata without the well-known path
	}{
		{"the URL of the request", `"https://mcp.example.com/mcp"`, "https://mcp.example.com/mcp",
			"https://mcp.example.com/mcp",
			"https://mcp.example.com"},
		{"a parent of the URL", `"https://mcp.example.com/mcp"`, "https://mcp.example.com/mcp/docs",
			"https://mcp.example.com/mcp",
			"https://mcp.example.com"},
		{"a URL that ends with a slash", `"https://mcp.example.com/mcp/"`, "https://mcp.example.com/mcp",
			"https://mcp.example.com/mcp/", "https://mcp.example.com"},
		{"a whole host", `"https://mcp.example.com"`, "https://mcp.example.com/mcp/docs", "https://mcp.example.com",
			"https://mcp.example.com"},
		{"the nearest of several",
			`"mcp","https://mcp.example.com","https://mcp.example.com/mcp/docs","https://mcp.example.com/mcp"`,
			"https://mcp.example.com/mcp/docs/x", "https://mcp.example.com/mcp/docs", "https://mcp.example.com"},
		{"a host in another case", `"https://MCP.example.com/mcp"`, "https://mcp.example.com/mcp",
			"https://MCP.example.com/mcp", "https://MCP.example.com"},
		{"https behind a proxy that terminates TLS", `"https://mcp.example.com/mcp"`, "http://mcp.example.com/mcp/docs",
			"https://mcp.example.com/mcp", "https://mcp.example.com"},
		{"a URL without TLS", `"http://mcp.example.com/mcp"`, "https://mcp.example.com/mcp", "https://mcp.example.com/mcp",
			"https://mcp.example.com"},
		{"another host", `"https://other.example.com/mcp"`, "https://mcp.example.com/mcp", "https://mcp.example.com/mcp",
			"https://mcp.example.com"},
		{"another port", `"https://mcp.example.com:8443/mcp"`, "https://mcp.example.com/mcp", "https://mcp.example.com/mcp",
			"https://mcp.example.com"},
		{"a path with the same beginning", `"https://mcp.example.com/mcp"`, "https://mcp.example.com/mcp2",
			"https://mcp.example.com/mcp2", "https://mcp.example.com"},
		{"a child of the URL", `"https://mcp.example.com/mcp/docs"`, "https://mcp.example.com/mcp",
			"https://mcp.example.com/mcp",
			"https://mcp.example.com"},
		{"a URL with a query", `"https://mcp.example.com/mcp?a=b"`, "https://mcp.example.com/mcp/docs",
			"https://mcp.example.com/mcp/docs", "https://mcp.example.com"},
		{"not a URL", `"mcp"`, "https://mcp.example.com/mcp", "https://mcp.example.com/mcp", "https://mcp.example.com"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			provider, err := loadJWT(t,
				fmt.Sprintf(`{"issuer":%q,"audience":[%s],"jwks":%q}`, testIssuer, tt.audience, server.URL))
			if err != nil {
				t.Fatal(err)
			}
			r := httptest.NewRequest(http.MethodPost, tt.url, nil)
			r.TLS = nil
			if strings.HasPrefix(tt.url, "https:") {
				r.TLS = new(tls.ConnectionState)
			}
			var metadata struct{ Resource string }
			if err := json.Unmarshal(provider.Metadata(r, r.URL.Path), &metadata); err != nil ||
				metadata.Resource != tt.resource {
				t.Errorf("resource %q, want %q, error %v", metadata.Resource, tt.resource, err)
			}
			if got, want := provider.Challenge(r, nil),
				`Bearer resource_metadata="`+tt.metadata+MetadataPath+r.URL.Path+`"`; got != want {
				t.Errorf("challenge\ngot  %s\nwant %s", got, want)
			}
		})
	}
}

func TestChallengesAndMetadata(t *testing.T) { // A76
	server := serveKeys(t, publicSet(t))
	plain, scoped := newJWT(t, server.URL, ""), newJWT(t, server.URL, `,"scopes":["mcp:tools","mcp:read"]`)
	named := newJWT(t, server.URL, `,"resource":"https://mcp.example.com/public/mcp"`)
	root := newJWT(t, server.URL, `,"resource":"https://mcp.example.com/"`)
	const at = "/.well-known/oauth-protected-resource"
	tests := []struct {
		name                string
		provider            *JWT
		url, original       string
		tls                 bool
		err                 error
		challenge, metadata string
	}{
		{
			name: "no token", provider: plain, url: "http://localhost:8080/mcp",
			challenge: `Bearer resource_metadata="http://localhost:8080` + at + `/mcp"`,
			metadata: `{"resource":"http://localhost:8080/mcp","authorization_servers":["` + testIssuer +
				`"],"bearer_methods_supported":["header"]}`,
		},
		{
			name: "TLS", provider: plain, url: "https://mcp.example.com/mcp", tls: true,
			challenge: `Bearer resource_metadata="https://mcp.example.com` + at + `/mcp"`,
			metadata: `{"resource":"https://mcp.example.com/mcp","authorization_servers":["` + testIssuer +
				`"],"bearer_methods_supported":["header"]}`,
		},
		{
			name: "at the root", provider: plain, url: "http://localhost/",
			challenge: `Bearer resource_metadata="http://localhost` + at + `"`,
			metadata: `{"resource":"http://localhost","authorization_servers":["` + testIssuer +
				`"],"bearer_methods_supported":["header"]}`,
		},
		{
			name: "at a rewritten path", provider: plain, url: "http://localhost/inner", original: "/outer/mcp?x=1",
			challenge: `Bearer resource_metadata="http://localhost` + at + `/outer/mcp"`,
			metadata: `{"resource":"http://localhost/inner","authorization_servers":["` + testIssuer +
				`"],"bearer_methods_supported":["header"]}`,
		},
		{
			name: "at a path with quotes and spaces", provider: plain, url: `http://localhost/a%22%20b%5c`,
			challenge: `Bearer resource_metadata="http://localhost` + at + `/a%22%20b%5C"`,
			metadata: `{"resource":"http://localhost/a%22%20b%5C","authorization_servers":["` + testIssuer +
				`"],"bearer_methods_supported":["header"]}`,
		},
		{
			name: "scopes", provider: scoped, url: "http://localhost/mcp",
			challenge: `Bearer resource_metadata="http://localhost` + at + `/mcp", scope="mcp:tools mcp:read"`,
			metadata: `{"resource":"http://localhost/mcp","authorization_servers":["` + testIssuer +
				`"],"scopes_supported":["mcp:tools","mcp:read"],"bearer_methods_supported":["header"]}`,
		},
		{
			name: "a missing scope", provider: scoped, url: "http://localhost/mcp",
			err: &ForbiddenError{Reason: "insufficient_scope"},
			challenge: `Bearer resource_metadata="http://localhost` + at +
				`/mcp", error="insufficient_scope", error_description="the token lacks a scope", scope="mcp:tools mcp:read"`,
		},
		{
			name: "an invalid token", provider: plain, url: "http://localhost/mcp", err: faultExpired,
			challenge: `Bearer resource_metadata="http://localhost` + at +
				`/mcp", error="invalid_token", error_description="the token has expired"`,
		},
		{
			name: "an internal error", provider: plain, url: "http://localhost/mcp", err: errors.New("hunter2"),
			challenge: `Bearer resource_metadata="http://localhost` + at +
				`/mcp", error="invalid_token", error_description="the token is invalid"`,
		},
		{
			name: "a configured resource", provider: named, url: "http://10.0.0.1:8080/mcp",
			challenge: `Bearer resource_metadata="https://mcp.example.com` + at + `/public/mcp"`,
			metadata: `{"resource":"https://mcp.example.com/public/mcp","authorization_servers":["` + testIssuer +
				`"],"bearer_methods_supported":["header"]}`,
		},
		{
			name: "a resource that is a whole host", provider: root, url: "http://10.0.0.1:8080/mcp",
			challenge: `Bearer resource_metadata="https://mcp.example.com` + at + `"`,
			metadata: `{"resource":"https://mcp.example.com/","authorization_servers":["` + testIssuer +
				`"],"bearer_methods_supported":["header"]}`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodPost, tt.url, nil)
			r.Header.Set("X-Forwarded-Proto", "https")
			r.Header.Set("X-Forwarded-Host", "evil.example.com")
			r.TLS = nil
			if tt.tls {
				r.TLS = new(tls.ConnectionState)
			}
			if tt.original != "" {
				original := httptest.NewRequest(http.MethodPost, tt.original, nil)
				r = r.WithContext(context.WithValue(r.Context(), caddyhttp.OriginalRequestCtxKey, *original))
			}
			if got := tt.provider.Challenge(r, tt.err); got != tt.challenge {
				t.Errorf("challenge\ngot  %s\nwant %s", got, tt.challenge)
			}
			if got := string(tt.provider.Metadata(r, r.URL.Path)); tt.metadata != "" && got != tt.metadata {
				t.Errorf("metadata\ngot  %s\nwant %s", got, tt.metadata)
			}
		})
	}
	if got := plain.CredentialHeaders(); !reflect.DeepEqual(got, []string{"Authorization"}) {
		t.Errorf("headers %q", got)
	}
	if n := server.count(); n != 0 {
		t.Errorf("%d fetches, want 0", n)
	}
}

func TestQuotedText(t *testing.T) { // A76
	if got, want := quoted("a\"b\\c\r\nX: é"), `"a\"b\\c??X: ?"`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestJWTCaddyfile(t *testing.T) { // A76
	tests := []struct {
		name, input string
		want        JWT
		json        string
	}{
		{
			"the required settings", "jwt {\n issuer https://id.example.com/\n audience mcp\n jwks /etc/keys.json\n}",
			JWT{Issuer: "https://id.example.com/", Audience: []string{"mcp"}, JWKS: "/etc/keys.json"},
			`{"issuer":"https://id.example.com/","audience":["mcp"],"jwks":"/etc/keys.json"}`,
		},
		{
			"everything", `jwt {
				issuer     https://id.example.com
				audience   mcp https://mcp.example.com/mcp
				jwks       https://id.example.com/keys
				algorithms PS256 ES384
				scopes     mcp:tools mcp:read
				claim      client_id
				refresh    2h
				resource   https://mcp.example.com/mcp
				leeway     1m
			}`,
			JWT{
				Issuer: "https://id.example.com", Audience: []string{"mcp", "https://mcp.example.com/mcp"},
				JWKS:       "https://id.example.com/keys",
				Algorithms: []string{"PS256", "ES384"}, Scopes: []string{"mcp:tools", "mcp:read"}, Claim: "client_id",
				Refresh: caddy.Duration(2 * time.Hour), Resource: "https://mcp.example.com/mcp",
				Leeway: caddy.Duration(time.Minute),
			},
			`{"issuer":"https://id.example.com","audience":["mcp","https://mcp.example.com/mcp"],` +
				`"jwks":"https://id.example.com/keys","algorithms":["PS256","ES384"],` +
				`"scopes":["mcp:tools","mcp:read"],"claim":"client_id","refresh":7200000000000,` +
				`"resource":"https://mcp.example.com/mcp","leeway":60000000000}`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got JWT
			if err := got.UnmarshalCaddyfile(caddyfile.NewTestDispenser(tt.input)); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
			if config, err := json.Marshal(got); err != nil || string(config) != tt.json {
				t.Errorf("got %s, %v, want %s", config, err, tt.json)
			}
		})
	}
}

func TestJWTDefaults(t *testing.T) { // A76
	provider := newJWT(t, "https://id.example.com/keys", "")
	if got, want := strings.Join(provider.Algorithms, " "), "RS256 ES256 EdDSA"; got != want {
		t.Errorf("algorithms %s, want %s", got, want)
	}
	if provider.Claim != "sub" || provider.Refresh != caddy.Duration(time.Hour) ||
		provider.Leeway != caddy.Duration(30*time.Second) {
		t.Errorf("got %+v", provider)
	}
}

func TestInvalidJWTConfigurations(t *testing.T) { // A76
	const issuer, audience, keys = " issuer https://id.example.com\n", " audience mcp\n",
		" jwks https://id.example.com/keys\n"
	const all = issuer + audience + keys
	caddyfiles := []struct{ name, input, want string }{
		{"an argument", "jwt https://id.example.com", "no arguments"},
		{"an audience without a value", "jwt {\n" + issuer + " audience\n" + keys + "}",
			`expected "audience <audiences...>"`},
		{"an empty claim", "jwt {\n" + all + " claim \"\"\n}", "claim is empty"},
		{"a refresh that is not a duration", "jwt {\n" + all + " refresh often\n}", "refresh: "},
		{"a leeway of zero", "jwt {\n" + all + " leeway 0s\n}", "leeway: 0s is not positive"},
		{"a duplicate subdirective", "jwt {\n" + all + issuer + "}", "issuer is given twice"},
		{"a duplicate list", "jwt {\n" + all + audience + "}", "audience is given twice"},
		{"an unknown subdirective", "jwt {\n" + all + " secret hunter2\n}", "unknown subdirective secret"},
	}
	for _, tt := range caddyfiles {
		t.Run(tt.name, func(t *testing.T) {
			err := new(JWT).UnmarshalCaddyfile(caddyfile.NewTestDispenser(tt.input))
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("got %v, want … %s …", err, tt.want)
			}
		})
	}
	with := func(changes string) string { // duplicate members replace the first
		return `{"issuer":"https://id.example.com","audience":["mcp"],"jwks":"https://id.example.com/keys",` + changes + `}`
	}
	configs := []struct{ name, config, want string }{
		{"an empty configuration", `{}`, "jwks: missing"},
		{"no issuer", with(`"issuer":""`), "issuer: missing"},
		{"no audience", with(`"audience":[]`), "audience: missing"},
		{"an issuer that is not a URL", with(`"issuer":"example"`), "issuer: not an http or https URL"},
		{"an issuer with a query", with(`"issuer":"https://id.example.com?x"`), "issuer: the URL has a query"},
		{"an issuer without a host", with(`"issuer":"https:///x"`), "issuer: the URL has no host"},
		{"an issuer with a password", with(`"issuer":"https://me:hunter2@id.example.com"`),
			"issuer: the URL contains a user name"},
		{"an empty audience", with(`"audience":[""]`), "audience: empty"},
		{"a placeholder", with(`"audience":["{env.AUDIENCE}"]`), "contains a placeholder"},
		{"keys from another host without TLS", with(`"jwks":"http://id.example.com/keys"`),
			"jwks: keys must be fetched with https"},
		{"keys without TLS from a host that begins with 127.0.0.1", with(`"jwks":"http://127.0.0.1.example.com/keys"`),
			"jwks: keys must be fetched with https"},
		{"keys with another scheme", with(`"jwks":"ftp://id.example.com/keys"`), "jwks: not an http or https URL"},
		{"keys with a password", with(`"jwks":"https://me:hunter2@id.example.com/keys"`),
			"jwks: the URL contains a user name"},
		{"keys without a host", with(`"jwks":"https:///keys"`), "jwks: the URL has no host"},
		{"keys at an invalid URL", with(`"jwks":"https://[/keys"`), "jwks: not an http or https URL"},
		{"the algorithm none", with(`"algorithms":["RS256","none"]`), `algorithms: "none" is not one of RS256`},
		{"an algorithm with a shared secret", with(`"algorithms":["HS256"]`), `algorithms: "HS256" is not one of RS256`},
		{"an algorithm in lower case", with(`"algorithms":["rs256"]`), `algorithms: "rs256" is not one of RS256`},
		{"a scope with a space", with(`"scopes":["a b"]`), `scopes: "a b" is not a scope`},
		{"a scope with a quote", with(`"scopes":["a\"b"]`), "scopes: "},
		{"a short refresh", with(`"refresh":"1s"`), "refresh: 1s is less than a minute"},
		{"a negative refresh", with(`"refresh":-1`), "refresh: -1ns is less than a minute"},
		{"a resource that is not a URL", with(`"resource":"mcp"`), "resource: not an http or https URL"},
		{"a resource with a fragment", with(`"resource":"https://a/#b"`), "resource: the URL has a query or a fragment"},
		{"a negative leeway", with(`"leeway":-1`), "leeway: -1ns is negative"},
		{"an unknown member", with(`"secret":"x"`), "unknown field"},
	}
	for _, tt := range configs {
		t.Run(tt.name, func(t *testing.T) {
			_, err := loadJWT(t, tt.config)
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("got %v, want … %s …", err, tt.want)
			}
		})
	}
}
