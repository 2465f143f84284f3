package auth

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caddyserver/caddy/v2"
)

// openGuest loads a provider as mcp_gateway does. stop unloads it; otherwise it is unloaded when
// the test ends.
func openGuest(t testing.TB, name, config string) (provider Provider, stop func(), err error) {
	t.Helper()
	ctx, err := caddy.ProvisionContext(new(caddy.Config))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := caddy.NewContext(ctx)
	t.Cleanup(cancel)
	loaded, err := ctx.LoadModuleByID("http.handlers.mcp_gateway.auth."+name, json.RawMessage(config))
	if err != nil {
		return nil, cancel, err
	}
	return loaded.(Provider), cancel, nil
}

func mustOpenGuest(t testing.TB, name, config string) (provider Provider, stop func()) {
	t.Helper()
	provider, stop, err := openGuest(t, name, config)
	if err != nil {
		t.Fatal(err)
	}
	return provider, stop
}

func sha256Hex(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func secretFile(t *testing.T, text string) (placeholder string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return "{file." + path + "}"
}

func TestSecretsAreRead(t *testing.T) { // A75
	t.Setenv("SECRET_SET", "hunter2 {env.OTHER}")
	t.Setenv("SECRET_EMPTY", "")
	t.Setenv("SECRET_NEWLINES", "\n\r\n")
	t.Setenv("SECRET_BLANK", "hunter2 ")
	tests := []struct {
		name, text string
		want, err  string
	}{
		{"a variable that contains a placeholder", "{env.SECRET_SET}", "hunter2 {env.OTHER}", ""},
		{"a file", secretFile(t, "hunter2"), "hunter2", ""},
		{"a file with a newline at its end", secretFile(t, "hunter2\n"), "hunter2", ""},
		{"a file with a CRLF at its end", secretFile(t, "hunter2\r\n"), "hunter2", ""},
		{"an unset variable", "{env.SECRET_NOT_SET}", "", "{env.SECRET_NOT_SET} is empty"},
		{"an empty variable", "{env.SECRET_EMPTY}", "", "{env.SECRET_EMPTY} is empty"},
		{"a variable of newlines", "{env.SECRET_NEWLINES}", "", "{env.SECRET_NEWLINES} is empty"},
		{"a variable with a space at its end", "{env.SECRET_BLANK}", "",
			"{env.SECRET_BLANK} begins or ends with white space"},
		{"a missing file", "{file./nonexistent/secret}", "", "{file./nonexistent/secret} is empty"},
		{"an empty file", secretFile(t, "\n"), "", "is empty"},
		{"an empty text", "", "", "missing"},
		{"a secret", "hunter2", "", "write {env.NAME}"},
		{"a secret before a placeholder", "hunter2{env.SECRET_SET}", "", "write {env.NAME}"},
		{"a secret after a placeholder", "{env.SECRET_SET}hunter2", "", "write {env.NAME}"},
		{"two placeholders", "{env.SECRET_SET}{env.SECRET_SET}", "", "write {env.NAME}"},
		{"an unsupported placeholder", "{system.hostname}", "", "write {env.NAME}"},
		{"a placeholder of a request", "{http.request.header.hunter2}", "", "write {env.NAME}"},
		{"a placeholder without a name", "{env.}", "", "write {env.NAME}"},
		{"an unclosed placeholder", "{env.SECRET_SET", "", "write {env.NAME}"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := readSecret(tt.text)
			if tt.err == "" {
				if got != tt.want || err != nil {
					t.Errorf("got %q, %v, want %q", got, err, tt.want)
				}
				return
			}
			if got != "" || err == nil || !strings.Contains(err.Error(), tt.err) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("got %q, %v, want … %s …", got, err, tt.err)
			}
		})
	}
}

func TestTokenFromCaddyfile(t *testing.T) { // A30, A75
	tests := []struct{ name, text, want string }{
		{"a token is hashed", "hunter2", "sha256:" + sha256Hex("hunter2")},
		{"a hash stays", "sha256:" + sha256Hex("hunter2"), "sha256:" + sha256Hex("hunter2")},
		{"a text with the prefix of a hash is hashed", "sha256:hunter2", "sha256:" + sha256Hex("sha256:hunter2")},
		{"a variable stays", "{env.TOKEN}", "{env.TOKEN}"},
		{"a file stays", "{file./run/token}", "{file./run/token}"},
		{"an invalid placeholder stays", "a{env.TOKEN}", "a{env.TOKEN}"},
		{"an empty text stays", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := TokenFromCaddyfile(tt.text); got != tt.want || TokenFromCaddyfile(got) != got {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestCheckIdentity(t *testing.T) { // A75
	tests := []struct {
		name, identity string
		sane           bool
	}{
		{"a name", "alice", true},
		{"a subject", "CN=alice,O=Example Inc", true},
		{"another script", "アリス", true},
		{"256 characters of several bytes", strings.Repeat("ü", 256), true},
		{"an empty name", "", false},
		{"257 characters", strings.Repeat("ü", 257), false},
		{"not UTF-8", "ali\xffce", false},
		{"a newline", "alice\nbob", false},
		{"a NUL", "alice\x00", false},
		{"an escape sequence", "\x1b[31malice", false},
		{"a control character beyond ASCII", "alice\u0085", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := CheckIdentity(tt.identity); (err == nil) != tt.sane {
				t.Errorf("got %v", err)
			}
		})
	}
}

// A request is accepted only if the named client has signed it as documented.
func FuzzSignatures(f *testing.F) { // A77
	hmacSecrets(f)
	provider, _ := mustOpenGuest(f, "hmac", strings.TrimSuffix(hmacConfig, "}")+`,"max_nonces":1000000000}`)
	body := hmacPing("").body
	const scheme = "MCP-HMAC-SHA256 "
	f.Add(uint(0), uint(0), "", body)
	f.Add(uint(len(scheme)), uint(len("client=alice")), `client="alice"`, body)
	f.Add(uint(len(scheme)), uint(len("client=alice")), "client=bob@example.com", body)
	f.Add(uint(len(scheme)), uint(0), "client=bob@example.com, ", body)
	f.Add(uint(0), uint(3), "mcp", body)
	f.Add(uint(1<<20), uint(0), ", x=y", body)
	f.Add(uint(1<<20), uint(0), "\t ", body)
	f.Add(uint(0), uint(0), "", body+" ")
	f.Add(uint(60), uint(2), "00", body)
	// without the scheme
	f.Add(uint(0), uint(len(scheme)), "", body)
	// without the client
	f.Add(uint(len(scheme)), uint(len("client=alice, ")), "", body)
	// an unknown client
	f.Add(uint(len(scheme)), uint(len("client=alice")), "client=mallory", body)
	// a malformed timestamp
	f.Add(uint(len(scheme+"client=alice, timestamp=")), uint(0), "x", body)
	// an old timestamp
	f.Add(uint(len(scheme+"client=alice, timestamp=")), uint(1), "", body)
	// a malformed nonce
	f.Add(uint(len(scheme+"client=alice, timestamp=1234567890, nonce=")), uint(1), "!", body)
	// an unknown parameter
	f.Add(uint(len(scheme+"client=alice, timestamp=1234567890, nonce=fuzzed-1, signat")), uint(0), "x", body)
	// a malformed signature
	f.Add(uint(1<<20), uint(0), "x", body)
	var used atomic.Int64
	f.Fuzz(func(t *testing.T, start, cut uint, put, sent string) {
		call := hmacPing(fmt.Sprintf("fuzzed-%d", used.Add(1)))
		good := call.header()
		start = min(start, uint(len(good)))
		cut = min(cut, uint(len(good))-start)
		header := good[:start] + put + good[start+cut:]
		request := call.request(hmacHeader(func(string) string { return header }))
		request.Body = []byte(sent)
		got, err := provider.Authenticate(request)
		if header == good && sent == call.body && (got != "alice" || err != nil) {
			t.Fatalf("%q: %q, %v", header, got, err)
		}
		if got == "" {
			return
		}
		given, parameters, _ := strings.Cut(header, " ")
		said := map[string]string{}
		for parameter := range strings.SplitSeq(parameters, ",") {
			name, value, _ := strings.Cut(strings.Trim(parameter, " \t"), "=")
			said[name] = strings.TrimSuffix(strings.TrimPrefix(value, `"`), `"`)
		}
		signed := hmacCall{said["client"], hmacAlice, said["timestamp"], said["nonce"], call.method, call.uri, sent}
		if got != "alice" || err != nil || len(said) != 4 || said["client"] != "alice" ||
			!strings.EqualFold(given+" ", scheme) || !strings.EqualFold(said["signature"], signed.signature()) {
			t.Fatalf("%q with %q is accepted as %q, %v", header, sent, got, err)
		}
	})
}

// The client is the owner of the token in the header or in the message. If there are two tokens,
// they must have the same owner.
func FuzzBearer(f *testing.F) { // A30, A75
	f.Setenv("TOKEN_ALICE", tokenAlice)
	f.Setenv("TOKEN_BOB", tokenBob)
	provider, _ := mustOpenGuest(f, "token",
		fmt.Sprintf(`{"tokens":[{"token":"{env.TOKEN_ALICE}","client":"alice"},{"token":"{env.TOKEN_BOB}"},`+
			`{"token":"sha256:%s","client":"carol"}]}`, sha256Hex(tokenCarol)))
	clients := map[string]string{tokenAlice: "alice", tokenBob: "default", tokenCarol: "carol"}
	for _, header := range []string{"Bearer " + tokenAlice, "bearer   " + tokenCarol + " ", "Bearer",
		"Bearer\t" + tokenAlice, "Basic " + tokenAlice, tokenAlice, "", "Bearer " + tokenAlice + " x",
		"Bearer sha256:" + sha256Hex(tokenCarol)} {
		for _, inMessage := range []string{"", tokenAlice, tokenBob, "x"} {
			f.Add(header, inMessage)
		}
	}
	f.Fuzz(func(t *testing.T, header, inMessage string) {
		got, err := provider.Authenticate(tokenRequest(inMessage, header))
		scheme, bearer, _ := strings.Cut(header, " ")
		want, refused := "", false
		if strings.EqualFold(scheme, "bearer") {
			want = clients[strings.Trim(bearer, " ")]
			refused = want == ""
		}
		if inMessage != "" {
			other := clients[inMessage]
			refused = refused || other == "" || want != "" && want != other
			want = other
		}
		if refused {
			want = ""
		}
		if got != want || (err != nil) != refused {
			t.Fatalf("%q and %q: %q, %v, want %q", header, inMessage, got, err, want)
		}
		if err != nil && (len(inMessage) > 6 && strings.Contains(err.Error(), inMessage) ||
			len(header) > 6 && strings.Contains(err.Error(), header)) {
			t.Fatalf("%q and %q: the error contains a token: %v", header, inMessage, err)
		}
	})
}
