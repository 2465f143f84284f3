package auth

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
)

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
