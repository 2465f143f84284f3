package auth

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

const (
	tokenAlice    = "4f2c90d1a77be3"
	tokenAliceNew = "b81d0a6cc5f29e"
	tokenBob      = "09e6f1d24bb8a3"
	tokenCarol    = "77aa01c3de5f10"
)

// tokenRequest returns a request with Authorization headers and a token in its message.
func tokenRequest(proxyToken string, headers ...string) *Request {
	r := httptest.NewRequest("POST", "/mcp", nil)
	for _, header := range headers {
		r.Header.Add("Authorization", header)
	}
	return &Request{Request: r, ProxyToken: proxyToken}
}

func tokenClients(t *testing.T) Provider {
	t.Helper()
	t.Setenv("TOKEN_ALICE", tokenAlice)
	t.Setenv("TOKEN_BOB", tokenBob)
	provider, _ := mustOpenGuest(t, "token", fmt.Sprintf(`{"tokens":[
		{"token":"{env.TOKEN_ALICE}","client":"alice"},
		{"token":"{env.TOKEN_BOB}"},
		{"token":%q,"client":"alice"},
		{"token":"sha256:%s","client":"carol"}
	]}`, secretFile(t, tokenAliceNew+"\n"), strings.ToUpper(sha256Hex(tokenCarol))))
	return provider
}

func TestTokens(t *testing.T) { // A30, A75
	provider := tokenClients(t)
	tests := []struct {
		name    string
		request *Request
		want    string
	}{
		{"a token in the header", tokenRequest("", "Bearer "+tokenAlice), "alice"},
		{"a token in the message", tokenRequest(tokenAlice), "alice"},
		{"the same token in both", tokenRequest(tokenAlice, "Bearer "+tokenAlice), "alice"},
		{"the old and the new token of a client in both", tokenRequest(tokenAlice, "Bearer "+tokenAliceNew), "alice"},
		{"a token from a file", tokenRequest("", "Bearer "+tokenAliceNew), "alice"},
		{"the token without a client", tokenRequest("", "Bearer "+tokenBob), "default"},
		{"a token configured as a hash", tokenRequest("", "Bearer "+tokenCarol), "carol"},
		{"a scheme in lower case", tokenRequest("", "bearer "+tokenAlice), "alice"},
		{"a scheme in upper case", tokenRequest("", "BEARER "+tokenAlice), "alice"},
		{"several spaces", tokenRequest("", "Bearer   "+tokenAlice+" "), "alice"},
		{"a token in the message and another scheme", tokenRequest(tokenAlice, "Basic YTpi"), "alice"},
		{"no identity without a token", tokenRequest(""), ""},
		{"no identity with an empty header", tokenRequest("", ""), ""},
		{"no identity with Basic",
			tokenRequest("", "Basic "+base64.StdEncoding.EncodeToString([]byte("alice:"+tokenAlice))), ""},
		{"no identity with Digest", tokenRequest("", `Digest username="alice", response="`+tokenAlice+`"`), ""},
		{"no identity with a token without a scheme", tokenRequest("", tokenAlice), ""},
		{"no identity with a scheme that starts with Bearer", tokenRequest("", "BearerX "+tokenAlice), ""},
		{"no identity with a signature", tokenRequest("", "MCP-HMAC-SHA256 client=alice"), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := provider.Authenticate(tt.request); got != tt.want || err != nil {
				t.Errorf("got %q, %v, want %q", got, err, tt.want)
			}
		})
	}
}

func TestWrongTokens(t *testing.T) { // A30, A75
	provider := tokenClients(t)
	tests := []struct {
		name    string
		request *Request
	}{
		{"another token", tokenRequest("", "Bearer hunter2")},
		{"another token in the message", tokenRequest("hunter2")},
		{"only the scheme", tokenRequest("", "Bearer")},
		{"a space after the scheme", tokenRequest("", "Bearer ")},
		{"the beginning of a token", tokenRequest("", "Bearer "+tokenAlice[:13])},
		{"the end of a token", tokenRequest("", "Bearer "+tokenAlice[1:])},
		{"more than a token", tokenRequest("", "Bearer "+tokenAlice+"0")},
		{"a token in another case", tokenRequest("", "Bearer "+strings.ToUpper(tokenAlice))},
		{"a token with another last letter", tokenRequest("", "Bearer "+tokenAlice[:13]+"4")},
		{"a token in quotes", tokenRequest("", `Bearer "`+tokenAlice+`"`)},
		{"a repeated token", tokenRequest("", "Bearer "+tokenAlice+" "+tokenAlice)},
		{"two tokens with a comma", tokenRequest("", "Bearer "+tokenAlice+", Bearer "+tokenAlice)},
		{"two schemes", tokenRequest("", "Bearer Bearer "+tokenAlice)},
		{"a parameter", tokenRequest("", "Bearer token="+tokenAlice)},
		{"a tab before the token", tokenRequest("", "Bearer \t"+tokenAlice)},
		{"a NUL after the token", tokenRequest("", "Bearer "+tokenAlice+"\x00")},
		{"the hash of a token", tokenRequest("", "Bearer "+sha256Hex(tokenCarol))},
		{"the configured hash of a token", tokenRequest("", "Bearer sha256:"+sha256Hex(tokenCarol))},
		{"the hash of a token in the message", tokenRequest("sha256:" + sha256Hex(tokenCarol))},
		{"the placeholder of a token", tokenRequest("", "Bearer {env.TOKEN_ALICE}")},
		{"the placeholder of a token in the message", tokenRequest("{env.TOKEN_ALICE}")},
		{"the name of a client", tokenRequest("", "Bearer alice")},
		{"a token in base64", tokenRequest("", "Bearer "+base64.StdEncoding.EncodeToString([]byte(tokenAlice)))},
		{"a JWT without a signature", tokenRequest("", "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSJ9.")},
		{"a token with a space in the message", tokenRequest(" " + tokenAlice)},
		{"a token with a newline in the message", tokenRequest(tokenAlice + "\n")},
		{"a scheme in the message", tokenRequest("Bearer " + tokenAlice)},
		{"a very long token", tokenRequest("", "Bearer "+strings.Repeat(tokenAlice, 10_000))},
		{"two good headers", tokenRequest("", "Bearer "+tokenAlice, "Bearer "+tokenAlice)},
		{"a good header and another scheme", tokenRequest("", "Bearer "+tokenAlice, "Basic YTpi")},
		{"another scheme and a good header", tokenRequest("", "Basic YTpi", "Bearer "+tokenAlice)},
		{"two headers and a good message", tokenRequest(tokenAlice, "Basic YTpi", "Basic YTpi")},
		{"a good header and a wrong message", tokenRequest("hunter2", "Bearer "+tokenAlice)},
		{"a wrong header and a good message", tokenRequest(tokenAlice, "Bearer hunter2")},
		{"an empty header and a good message", tokenRequest(tokenAlice, "Bearer ")},
		{"good tokens of two clients", tokenRequest(tokenAlice, "Bearer "+tokenBob)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := provider.Authenticate(tt.request)
			if got != "" || err == nil {
				t.Fatalf("got %q, %v", got, err)
			}
			for _, secret := range []string{"hunter2", tokenAlice, tokenAliceNew, tokenBob, tokenCarol} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("the error contains a token: %v", err)
				}
			}
		})
	}
}

func TestFingerprintsOfTokens(t *testing.T) { // A30, A60
	file := secretFile(t, tokenAliceNew)
	prints := func(alice, bob string) (all, alices, bobs string) {
		t.Setenv("TOKEN_ALICE", alice)
		t.Setenv("TOKEN_BOB", bob)
		provider, _ := mustOpenGuest(t, "token",
			fmt.Sprintf(`{"tokens":[{"token":"{env.TOKEN_ALICE}","client":"alice"},{"token":%q,"client":"alice"},`+
				`{"token":"{env.TOKEN_BOB}","client":"bob"}]}`, file))
		holder := provider.(SecretHolder)
		return holder.FingerprintOf(""), holder.FingerprintOf("alice"), holder.FingerprintOf("bob")
	}
	all, alices, bobs := prints(tokenAlice, tokenBob)
	if alices == bobs || all == alices || strings.Contains(all+alices+bobs, tokenAlice) ||
		strings.Contains(alices, sha256Hex(tokenAlice)) {
		t.Errorf("all %s, alice %s, bob %s", all, alices, bobs)
	}
	if all2, alices2, bobs2 := prints(tokenAlice, tokenBob); all2 != all || alices2 != alices || bobs2 != bobs {
		t.Error("equal tokens have different fingerprints")
	}
	if all2, alices2, bobs2 := prints(tokenAlice, tokenCarol); all2 == all || alices2 != alices || bobs2 == bobs {
		t.Errorf("changed with bob's token: all %t, alice %t, bob %t", all2 != all, alices2 != alices, bobs2 != bobs)
	}
}

func TestTokenChallenges(t *testing.T) { // A30
	provider := tokenClients(t)
	challenger := provider.(Challenger)
	r := httptest.NewRequest("POST", "/mcp", nil)
	if got := challenger.Challenge(r, nil); got != `Bearer realm="mcp"` {
		t.Errorf("got %s", got)
	}
	if got := challenger.Challenge(r, errors.New("wrong")); got != `Bearer realm="mcp", error="invalid_token"` {
		t.Errorf("got %s", got)
	}
	if got := provider.CredentialHeaders(); !slices.Equal(got, []string{"Authorization"}) {
		t.Errorf("got %s", got)
	}
}

func TestTokenCaddyfile(t *testing.T) { // A30, A75
	hunter2 := "sha256:" + sha256Hex("hunter2hunter2")
	tests := []struct{ name, input, want string }{
		{"a variable", "token {env.TOKEN}", `{"tokens":[{"token":"{env.TOKEN}"}]}`},
		{"a file and a client", "token {file./run/token} alice",
			`{"tokens":[{"token":"{file./run/token}","client":"alice"}]}`},
		{"a plain token", "token hunter2hunter2", `{"tokens":[{"token":"` + hunter2 + `"}]}`},
		{"a hash", "token " + hunter2 + " alice", `{"tokens":[{"token":"` + hunter2 + `","client":"alice"}]}`},
		{
			"a block", "token {\n alice {env.ALICE}\n alice hunter2hunter2\n \"Bob B\" {env.BOB}\n}",
			`{"tokens":[{"token":"{env.ALICE}","client":"alice"},{"token":"` + hunter2 +
				`","client":"alice"},{"token":"{env.BOB}","client":"Bob B"}]}`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var token Token
			if err := token.UnmarshalCaddyfile(caddyfile.NewTestDispenser(tt.input)); err != nil {
				t.Fatal(err)
			}
			if config, err := json.Marshal(token); err != nil || string(config) != tt.want {
				t.Errorf("got %s, %v, want %s", config, err, tt.want)
			}
		})
	}
}

func TestInvalidTokenConfigurations(t *testing.T) { // A30, A75
	t.Setenv("TOKEN_ALICE", "hunter2hunter2")
	t.Setenv("TOKEN_BOB", "hunter2hunter2")
	caddyfiles := []struct{ name, input, want string }{
		{"no token", "token", `expected "auth token <token> [<client>]"`},
		{"an empty block", "token {\n}", `expected "auth token <token> [<client>]"`},
		{"an empty token", `token ""`, "token: empty"},
		{"an empty token in a block", "token {\n alice \"\"\n}", "token: empty"},
		{"a variable in shell syntax", "token $HUNTER2", "is shell syntax; write {env.NAME}"},
		{"a token with a space", `token "hunter 2"`, "only letters"},
		{"too many arguments", "token hunter2 alice hunter2", "a token and a client name"},
		{"a client without a token", "token {\n hunter2\n}", "a client name and its token"},
		{"a client with two tokens on a line", "token {\n alice hunter2 hunter2\n}", "a client name and its token"},
		{"a token and a block", "token hunter2hunter2 {\n alice hunter2\n}", "not both"},
		{"a block in the block", "token {\n alice hunter2hunter2 {\n  hunter2\n }\n}", "a client name and its token"},
		{"a token with text next to a placeholder", "token hunter2{env.TOKEN}", "a single {env.NAME}"},
		{"an unknown placeholder", "token {vault.hunter2}", "a single {env.NAME}"},
	}
	for _, tt := range caddyfiles {
		t.Run(tt.name, func(t *testing.T) {
			err := new(Token).UnmarshalCaddyfile(caddyfile.NewTestDispenser(tt.input))
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("got %v, want … %s …", err, tt.want)
			}
		})
	}
	configs := []struct{ name, config, want string }{
		{"no tokens in JSON", `{}`, "tokens: missing"},
		{"an empty list in JSON", `{"tokens":[]}`, "tokens: missing"},
		{"a plain token in JSON", `{"tokens":[{"token":"hunter2"}]}`,
			"client default: token: a secret does not belong"},
		{"a hash that is too short in JSON", `{"tokens":[{"token":"sha256:hunter2"}]}`,
			"client default: token: a secret does not belong"},
		{"an unset variable", `{"tokens":[{"token":"{env.TOKEN_NOT_SET}"}]}`, "{env.TOKEN_NOT_SET} is empty"},
		{"no token in JSON", `{"tokens":[{"client":"alice"}]}`, "client alice: token: missing"},
		{"two tokens without a client", `{"tokens":[{"token":"{env.TOKEN_ALICE}"},{"token":"{env.TOKEN_BOB}"}]}`,
			"only one token can be without a client name"},
		{
			"the same token for two clients",
			`{"tokens":[{"token":"{env.TOKEN_ALICE}","client":"alice"},{"token":"{env.TOKEN_BOB}","client":"bob"}]}`,
			"clients alice and bob have the same token",
		},
		{
			"the same token with and without a client",
			`{"tokens":[{"token":"{env.TOKEN_ALICE}","client":"alice"},{"token":"{env.TOKEN_BOB}"}]}`,
			"clients alice and default have the same token",
		},
		{"a client with a newline", `{"tokens":[{"token":"{env.TOKEN_ALICE}","client":"hunter2\n"}]}`,
			"the name of the client contains control characters"},
		{"a client that is a placeholder", `{"tokens":[{"token":"{env.TOKEN_ALICE}","client":"{env.TOKEN_BOB}"}]}`,
			"the name of a client cannot be a placeholder"},
		{"a client that is too long",
			`{"tokens":[{"token":"{env.TOKEN_ALICE}","client":"` + strings.Repeat("a", 257) + `"}]}`, "longer than 256"},
		{"an unknown member", `{"tokens":[{"secret":"hunter2"}]}`, "unknown field"},
	}
	for _, tt := range configs {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := openGuest(t, "token", tt.config)
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("got %v, want … %s …", err, tt.want)
			}
		})
	}
}
