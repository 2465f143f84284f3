package auth

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/storetest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstore"
)

const (
	hmacAlice  = "correct horse battery staple"
	hmacBob    = "hunter2hunter2hunter2"
	hmacConfig = `{"clients":[{"client":"alice","secret":"{env.HMAC_ALICE}"},{"client":"bob@example.com",` +
		`"secret":"{env.HMAC_BOB}"}]}`
)

func hmacSecrets(t testing.TB) {
	t.Helper()
	t.Setenv("HMAC_ALICE", hmacAlice)
	t.Setenv("HMAC_BOB", hmacBob)
}

func hmacClients(t testing.TB) Provider {
	t.Helper()
	hmacSecrets(t)
	provider, _ := mustOpenGuest(t, "hmac", hmacConfig)
	return provider
}

// hmacCall is the content that a client signs.
type hmacCall struct {
	client, secret, timestamp, nonce, method, uri, body string
}

// hmacPing returns a valid call of alice.
func hmacPing(nonce string) hmacCall {
	return hmacCall{"alice", hmacAlice, hmacTime(0), nonce, "POST", "/mcp?a=b%20c",
		`{"jsonrpc":"2.0","id":1,"method":"ping"}`}
}

func hmacTime(from time.Duration) string {
	return strconv.FormatInt(time.Now().Add(from).Unix(), 10)
}

// signature follows the documentation and does not use the provider's code.
func (c hmacCall) signature() string {
	mac := hmac.New(sha256.New, []byte(c.secret))
	fmt.Fprintf(mac, "MCP-HMAC-SHA256\n%s\n%s\n%s\n%s\n%s", c.timestamp, c.nonce, c.method, c.uri, sha256Hex(c.body))
	return hex.EncodeToString(mac.Sum(nil))
}

func (c hmacCall) header() string {
	return fmt.Sprintf("MCP-HMAC-SHA256 client=%s, timestamp=%s, nonce=%s, signature=%s", c.client, c.timestamp, c.nonce,
		c.signature())
}

// request returns the signed call. change functions modify it afterwards.
func (c hmacCall) request(change ...func(*Request)) *Request {
	r := httptest.NewRequest(c.method, "http://localhost"+c.uri, nil)
	r.RequestURI = c.uri
	r.Header.Set("Authorization", c.header())
	request := &Request{Request: r, Body: []byte(c.body)}
	for _, f := range change {
		f(request)
	}
	return request
}

// hmacHeader returns a function that changes the Authorization header.
func hmacHeader(change func(string) string) func(*Request) {
	return func(r *Request) { r.Header.Set("Authorization", change(r.Header.Get("Authorization"))) }
}

func hmacReplace(old, text string) func(*Request) {
	return hmacHeader(func(header string) string { return strings.Replace(header, old, text, 1) })
}

func TestSignatures(t *testing.T) { // A77
	tests := []struct {
		name string
		call func(*hmacCall)
		sent func(*Request)
		want string
	}{
		{name: "a message", want: "alice"},
		{name: "another client", call: func(c *hmacCall) { c.client, c.secret = "bob@example.com", hmacBob },
			want: "bob@example.com"},
		{name: "a stream without a body", call: func(c *hmacCall) { c.method, c.body = "GET", "" }, want: "alice"},
		{name: "the end of a session without a body", call: func(c *hmacCall) { c.method, c.body = "DELETE", "" },
			want: "alice"},
		{name: "a path with escapes", call: func(c *hmacCall) { c.uri = "/a%2Fb/ü?x=%zz" }, want: "alice"},
		{name: "the shortest nonce", call: func(c *hmacCall) { c.nonce = "aZ09-_aZ" }, want: "alice"},
		{name: "the longest nonce", call: func(c *hmacCall) { c.nonce = strings.Repeat("n", 64) }, want: "alice"},
		{name: "the oldest timestamp", call: func(c *hmacCall) { c.timestamp = hmacTime(-5 * time.Minute) }, want: "alice"},
		{name: "the newest timestamp", call: func(c *hmacCall) { c.timestamp = hmacTime(5 * time.Minute) }, want: "alice"},
		{name: "a scheme in lower case", sent: hmacReplace("MCP-HMAC-SHA256", "mcp-hmac-sha256"), want: "alice"},
		{name: "a signature in upper case", sent: hmacHeader(func(header string) string {
			at := strings.Index(header, "signature=") + len("signature=")
			return header[:at] + strings.ToUpper(header[at:])
		}), want: "alice"},
		{name: "another order without spaces", sent: hmacHeader(func(header string) string {
			parameters := strings.Split(strings.TrimPrefix(header, "MCP-HMAC-SHA256 "), ", ")
			slices.Reverse(parameters)
			return "MCP-HMAC-SHA256 " + strings.Join(parameters, ",")
		}), want: "alice"},
		{name: "quotes", sent: hmacHeader(regexpReplacer(`=([^,]+)`, `="$1"`)), want: "alice"},
		{name: "an absolute request URI", sent: func(r *Request) { r.RequestURI = "http://localhost" + r.RequestURI },
			want: "alice"},
		{name: "no identity without a header", sent: func(r *Request) { r.Header.Del("Authorization") }},
		{name: "no identity with a token", sent: hmacReplace("MCP-HMAC-SHA256", "Bearer")},
		{name: "no identity with another version", sent: hmacReplace("MCP-HMAC-SHA256", "MCP-HMAC-SHA512")},
		{name: "no identity with a token in the message",
			sent: func(r *Request) { r.Header.Del("Authorization"); r.ProxyToken = hmacAlice }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			provider := hmacClients(t)
			synctest.Test(t, func(t *testing.T) {
				call := hmacPing("nonce-01")
				if tt.call != nil {
					tt.call(&call)
				}
				r := call.request()
				if tt.sent != nil {
					tt.sent(r)
				}
				if got, err := provider.Authenticate(r); got != tt.want || err != nil {
					t.Errorf("got %q, %v, want %q", got, err, tt.want)
				}
			})
		})
	}
}

func regexpReplacer(expr, text string) func(string) string {
	re := regexp.MustCompile(expr)
	return func(s string) string { return re.ReplaceAllString(s, text) }
}

func TestWrongSignatures(t *testing.T) { // A77
	const parameters, missing = "each once", "is missing"
	const wrong = "the signature is wrong, or the client is unknown"
	tests := []struct {
		name string
		call func(*hmacCall)
		sent func(*Request)
		want string
	}{
		{name: "another client's secret", call: func(c *hmacCall) { c.secret = hmacBob }, want: wrong},
		{name: "no secret", call: func(c *hmacCall) { c.secret = "" }, want: wrong},
		{name: "the placeholder of the secret", call: func(c *hmacCall) { c.secret = "{env.HMAC_ALICE}" }, want: wrong},
		{name: "an unknown client", call: func(c *hmacCall) { c.client = "mallory" }, want: wrong},
		{name: "no client", call: func(c *hmacCall) { c.client = "" }, want: wrong},
		{name: "no client and no secret", call: func(c *hmacCall) { c.client, c.secret = "", "" }, want: wrong},
		{name: "a client in another case", call: func(c *hmacCall) { c.client = "Alice" }, want: wrong},
		{name: "the name of another client", sent: hmacReplace("alice", "bob@example.com"), want: wrong},
		{name: "another body", sent: func(r *Request) { r.Body[0] = '[' }, want: wrong},
		{name: "a longer body", sent: func(r *Request) { r.Body = append(r.Body, '\n') }, want: wrong},
		{name: "no body", sent: func(r *Request) { r.Body = nil }, want: wrong},
		{name: "a body added to an empty one", call: func(c *hmacCall) { c.body = "" },
			sent: func(r *Request) { r.Body = []byte("{}") }, want: wrong},
		{name: "another method", sent: func(r *Request) { r.Method = "DELETE" }, want: wrong},
		{name: "a method in lower case", sent: func(r *Request) { r.Method = "post" }, want: wrong},
		{name: "another path", sent: func(r *Request) { r.RequestURI = "/mcp/alpha?a=b%20c" }, want: wrong},
		{name: "another query", sent: func(r *Request) { r.RequestURI = "/mcp?a=b" }, want: wrong},
		{name: "no query", sent: func(r *Request) { r.RequestURI = "/mcp" }, want: wrong},
		{name: "the query in another form", sent: func(r *Request) { r.RequestURI = "/mcp?a=b+c" }, want: wrong},
		{name: "another timestamp", sent: func(r *Request) { hmacReplace(hmacTime(0), hmacTime(time.Second))(r) },
			want: wrong},
		{name: "the timestamp in another form", sent: hmacReplace("timestamp=", "timestamp=0"), want: wrong},
		{name: "another nonce", sent: hmacReplace("nonce-01", "nonce-02"), want: wrong},
		{name: "a digit added to the nonce", call: func(c *hmacCall) { c.nonce = "12345678" },
			sent: hmacReplace("12345678", "123456780"), want: wrong},
		{name: "another signature", sent: hmacHeader(regexpReplacer(`signature=.{64}`, "signature="+strings.Repeat("0", 64))),
			want: wrong},
		{name: "the hash of the body",
			sent: hmacHeader(regexpReplacer(`signature=.{64}`, "signature="+sha256Hex(hmacPing("").body))), want: wrong},
		{name: "no signature", sent: hmacHeader(regexpReplacer(`signature=.*`, "signature=")), want: "not a SHA-256"},
		{name: "a part of the signature", sent: hmacHeader(func(header string) string { return header[:len(header)-2] }),
			want: "not a SHA-256"},
		{name: "a signature with an odd number of digits",
			sent: hmacHeader(func(header string) string { return header[:len(header)-1] }), want: "not a SHA-256"},
		{name: "a signature that is too long", sent: hmacHeader(func(header string) string { return header + "00" }),
			want: "not a SHA-256"},
		{name: "a signature that is not hex", sent: hmacHeader(regexpReplacer(`signature=..`, "signature=zz")),
			want: "not a SHA-256"},
		{name: "an unclosed quote", sent: hmacHeader(regexpReplacer(`signature=`, `signature="`)),
			want: "not a SHA-256"},
		{name: "a timestamp a second too old", call: func(c *hmacCall) { c.timestamp = hmacTime(-301 * time.Second) },
			want: "from the current time"},
		{name: "a timestamp a second too new", call: func(c *hmacCall) { c.timestamp = hmacTime(301 * time.Second) },
			want: "from the current time"},
		{name: "the timestamp 0", call: func(c *hmacCall) { c.timestamp = "0" }, want: "from the current time"},
		{name: "a timestamp in milliseconds", call: func(c *hmacCall) { c.timestamp = hmacTime(0) + "000" },
			want: "from the current time"},
		{name: "a timestamp too large for int64", call: func(c *hmacCall) { c.timestamp = strings.Repeat("9", 30) },
			want: "not a number of seconds"},
		{name: "a negative timestamp", call: func(c *hmacCall) { c.timestamp = "-" + hmacTime(0) },
			want: "not a number of seconds"},
		{name: "a timestamp with a sign", call: func(c *hmacCall) { c.timestamp = "+" + hmacTime(0) },
			want: "not a number of seconds"},
		{name: "a timestamp with a fraction", call: func(c *hmacCall) { c.timestamp = hmacTime(0) + ".0" },
			want: "not a number of seconds"},
		{name: "a date", call: func(c *hmacCall) { c.timestamp = "2000-01-01T00:00:00Z" }, want: "not a number of seconds"},
		{name: "no timestamp", call: func(c *hmacCall) { c.timestamp = "" }, want: "not a number of seconds"},
		{name: "a nonce that is too short", call: func(c *hmacCall) { c.nonce = "1234567" }, want: "the nonce is not"},
		{name: "a nonce that is too long", call: func(c *hmacCall) { c.nonce = strings.Repeat("n", 65) },
			want: "the nonce is not"},
		{name: "a nonce with other characters", call: func(c *hmacCall) { c.nonce = "nonce 01" }, want: "the nonce is not"},
		{name: "no nonce", call: func(c *hmacCall) { c.nonce = "" }, want: "the nonce is not"},
		{name: "no nonce parameter", sent: hmacHeader(regexpReplacer(`nonce=[^,]*, `, "")), want: missing},
		{name: "no client parameter", sent: hmacHeader(regexpReplacer(`client=[^,]*, `, "")), want: missing},
		{name: "a duplicate nonce", sent: hmacReplace("nonce=", "nonce=nonce-00, nonce="), want: parameters},
		{name: "a duplicate client", sent: hmacReplace("client=", "client=bob@example.com, client="), want: parameters},
		{name: "an unknown parameter", sent: hmacReplace("client=", "realm=mcp, client="), want: parameters},
		{name: "an unknown parameter at the end",
			sent: hmacHeader(func(header string) string { return header + ", realm=mcp" }), want: parameters},
		{name: "a comma at the end", sent: hmacHeader(func(header string) string { return header + "," }), want: parameters},
		{name: "no commas", sent: hmacHeader(func(header string) string { return strings.ReplaceAll(header, ",", "") }),
			want: missing},
		{name: "only the scheme", sent: hmacHeader(func(string) string { return "MCP-HMAC-SHA256" }), want: parameters},
		{name: "a thousand commas",
			sent: hmacHeader(func(string) string { return "MCP-HMAC-SHA256 " + strings.Repeat(",", 1000) }), want: parameters},
		{name: "two headers", sent: func(r *Request) { r.Header.Add("Authorization", r.Header.Get("Authorization")) },
			want: "several"},
		{name: "a header of another scheme before it", sent: func(r *Request) {
			r.Header["Authorization"] = []string{"Basic YTpi", r.Header.Get("Authorization")}
		}, want: "several"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			provider := hmacClients(t)
			synctest.Test(t, func(t *testing.T) {
				call := hmacPing("nonce-01")
				if tt.call != nil {
					tt.call(&call)
				}
				r := call.request()
				if tt.sent != nil {
					tt.sent(r)
				}
				got, err := provider.Authenticate(r)
				if got != "" || err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Fatalf("got %q, %v, want … %s …", got, err, tt.want)
				}
				if text := err.Error(); strings.Contains(text, hmacAlice) || strings.Contains(text, hmacBob) ||
					strings.Contains(text, call.signature()) {
					t.Errorf("the error contains a secret: %v", err)
				}
				// A client cannot use up the nonces of another client.
				for _, nonce := range []string{"nonce-01", "nonce-02"} {
					if _, err := provider.Authenticate(hmacPing(nonce).request()); err != nil {
						t.Errorf("%s of a refused request was used up: %v", nonce, err)
					}
				}
			})
		})
	}
}

func TestSignatureOfRewrittenRequest(t *testing.T) { // A77
	provider := hmacClients(t)
	call := hmacPing("nonce-01")
	r := call.request(func(r *Request) {
		r.Request = caddyhttp.PrepareRequest(r.Request, caddy.NewReplacer(), nil, nil)
		r.URL.Path, r.URL.RawQuery, r.RequestURI, r.Method = "/rewritten", "", "/rewritten", "GET"
	})
	if got, err := provider.Authenticate(r); got != "alice" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	call.nonce, call.uri = "nonce-02", "/rewritten"
	r = call.request(func(r *Request) {
		r.RequestURI = "/mcp"
		r.Request = caddyhttp.PrepareRequest(r.Request, caddy.NewReplacer(), nil, nil)
		r.RequestURI = "/rewritten"
	})
	if got, err := provider.Authenticate(r); got != "" || err == nil {
		t.Errorf("got %q, %v for a rewritten URI", got, err)
	}
}

func TestNoncesAreKeptUntilTheyExpire(t *testing.T) { // A77
	for _, ahead := range []time.Duration{-5 * time.Minute, -time.Second, 0, time.Second, 5 * time.Minute} {
		t.Run(ahead.String(), func(t *testing.T) {
			provider := hmacClients(t)
			synctest.Test(t, func(t *testing.T) {
				call := hmacPing("nonce-01")
				call.timestamp = hmacTime(ahead)
				if _, err := provider.Authenticate(call.request()); err != nil {
					t.Fatal(err)
				}
				good := time.Now().Add(ahead + 5*time.Minute)
				for time.Now().Before(good.Add(20 * time.Minute)) {
					got, err := provider.Authenticate(call.request())
					want := "the nonce has been used"
					if time.Now().After(good) {
						want = "from the current time"
					}
					if got != "" || err == nil || !strings.Contains(err.Error(), want) {
						t.Fatalf("got %q, %v, want … %s …", got, err, want)
					}
					time.Sleep(30 * time.Second) // in fake time
				}
				// The nonce can be used again with a new timestamp.
				call.timestamp = hmacTime(0)
				if got, err := provider.Authenticate(call.request()); got != "alice" || err != nil {
					t.Errorf("got %q, %v", got, err)
				}
			})
		})
	}
}

func TestNoncesArePerClient(t *testing.T) { // A77
	provider := hmacClients(t)
	bob := hmacPing("nonce-01")
	bob.client, bob.secret = "bob@example.com", hmacBob
	for _, call := range []hmacCall{hmacPing("nonce-01"), bob} {
		if got, err := provider.Authenticate(call.request()); got != call.client || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
	}
}

func TestNoncesAreBounded(t *testing.T) { // A77
	hmacSecrets(t)
	provider, _ := mustOpenGuest(t, "hmac", strings.TrimSuffix(hmacConfig, "}")+`,"max_nonces":3,"window":"1m"}`)
	synctest.Test(t, func(t *testing.T) {
		send := func(call hmacCall) error {
			_, err := provider.Authenticate(call.request())
			return err
		}
		for i := range 3 {
			if err := send(hmacPing(fmt.Sprintf("nonce-0%d", i))); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		for range 10 {
			if err := send(hmacPing("nonce-03")); err == nil || !strings.Contains(err.Error(), "max_nonces") {
				t.Fatalf("one nonce too many: got %v", err)
			}
		}
		if err := send(hmacPing("nonce-00")); err == nil || !strings.Contains(err.Error(), "used before") {
			t.Errorf("the oldest nonce: got %v", err)
		}
		bob := hmacPing("nonce-03")
		bob.client, bob.secret = "bob@example.com", hmacBob
		if err := send(bob); err != nil {
			t.Errorf("another client: %v", err)
		}
		time.Sleep(2*time.Minute - 2*time.Second) // 2m1s after the first nonce
		if err := send(hmacPing("nonce-03")); err != nil {
			t.Errorf("after the oldest nonce expired: %v", err)
		}
		if n := provider.(*HMAC).known["alice"].nonces.arrivals.Len(); n != 3 {
			t.Errorf("%d nonces kept, want 3", n)
		}
	})
}

func TestNoncesOutliveReloads(t *testing.T) { // A77
	hmacSecrets(t)
	call := hmacPing("nonce-01")
	sent := func(provider Provider) bool {
		_, err := provider.Authenticate(call.request())
		return err == nil
	}
	first, stopFirst := mustOpenGuest(t, "hmac", hmacConfig)
	if !sent(first) {
		t.Fatal("the request is refused")
	}
	if _, _, err := openGuest(t, "hmac", strings.TrimSuffix(hmacConfig, "}")+`,"max_nonces":-1}`); err == nil {
		t.Fatal("a negative max_nonces is accepted")
	}
	second, stopSecond := mustOpenGuest(t, "hmac", hmacConfig)
	stopFirst()
	if sent(second) {
		t.Error("a reload lost the nonces")
	}
	// A signature with an old secret is invalid.
	t.Setenv("HMAC_ALICE", "another secret of alice")
	third, stopThird := mustOpenGuest(t, "hmac", hmacConfig)
	stopSecond()
	if sent(third) {
		t.Error("the old secret is accepted")
	}
	stopThird()
	nonceSets.Range(func(key, _ any) bool {
		t.Errorf("the nonces of %s are still kept", key.(nonceSetKey).client)
		return true
	})
	t.Setenv("HMAC_ALICE", hmacAlice)
	if fourth, _ := mustOpenGuest(t, "hmac", hmacConfig); !sent(fourth) {
		t.Error("the nonces of a stopped provider are still kept")
	}
}

func TestReplayAfterWindowIsWidened(t *testing.T) { // A77
	hmacSecrets(t)
	narrow, _ := mustOpenGuest(t, "hmac", strings.TrimSuffix(hmacConfig, "}")+`,"window":"1m"}`)
	wide, _ := mustOpenGuest(t, "hmac", strings.TrimSuffix(hmacConfig, "}")+`,"window":"1h"}`)
	synctest.Test(t, func(t *testing.T) {
		old, recent := hmacPing("nonce-01"), hmacPing("nonce-02")
		if _, err := narrow.Authenticate(old.request()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Minute)
		recent.timestamp = hmacTime(0)
		if _, err := narrow.Authenticate(recent.request()); err != nil { // drops the nonce of old
			t.Fatal(err)
		}
		for _, call := range []hmacCall{old, recent} {
			if got, err := wide.Authenticate(call.request()); got != "" || err == nil {
				t.Errorf("the second time: got %q, %v", got, err)
			}
		}
		late := hmacPing("nonce-03")
		time.Sleep(30 * time.Minute)
		if got, err := wide.Authenticate(late.request()); got != "alice" || err != nil {
			t.Errorf("within the wider window: got %q, %v", got, err)
		}
	})
}

func TestRequestIsAcceptedOnce(t *testing.T) { // A77
	provider := hmacClients(t)
	call := hmacPing("nonce-01")
	var taken atomic.Int32
	var group sync.WaitGroup
	start := make(chan struct{})
	for range 50 {
		group.Go(func() {
			r := call.request()
			<-start
			if got, err := provider.Authenticate(r); got == "alice" && err == nil {
				taken.Add(1)
			}
		})
	}
	close(start)
	group.Wait()
	if n := taken.Load(); n != 1 {
		t.Errorf("accepted %d times, want 1", n)
	}
}

func TestProvidersIgnoreOtherCredentials(t *testing.T) { // A75
	mtls, _ := mustOpenGuest(t, "mtls", `{}`)
	providers := []Provider{tokenClients(t), hmacClients(t), mtls}
	bob := hmacPing("nonce-01")
	bob.client, bob.secret = "bob@example.com", hmacBob
	tests := []struct {
		name    string
		request *Request
		want    []string
	}{
		{"a token", tokenRequest("", "Bearer "+tokenAlice), []string{"alice", "", ""}},
		{"a token in the message", tokenRequest(tokenAlice), []string{"alice", "", ""}},
		{"a signature", bob.request(), []string{"", "bob@example.com", ""}},
		{"a signature and a token in the message",
			hmacPing("nonce-02").request(func(r *Request) { r.ProxyToken = tokenCarol }), []string{"carol", "alice", ""}},
		{"no credentials", tokenRequest(""), []string{"", "", ""}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for i, provider := range providers {
				if got, err := provider.Authenticate(tt.request); got != tt.want[i] || err != nil {
					t.Errorf("%T: got %q, %v, want %q", provider, got, err, tt.want[i])
				}
			}
		})
	}
}

func TestFingerprintsOfSecrets(t *testing.T) { // A60, A77
	before := hmacClients(t).(SecretHolder)
	same := hmacClients(t).(SecretHolder)
	t.Setenv("HMAC_BOB", hmacBob+"!")
	provider, _ := mustOpenGuest(t, "hmac", hmacConfig)
	after := provider.(SecretHolder)
	for client, want := range map[string]bool{"": true, "alice": false, "bob@example.com": true} {
		if before.FingerprintOf(client) == "" || before.FingerprintOf(client) != same.FingerprintOf(client) {
			t.Errorf("%q: equal secrets have different fingerprints", client)
		}
		if got := before.FingerprintOf(client) != after.FingerprintOf(client); got != want {
			t.Errorf("%q: fingerprint changed %t, want %t", client, got, want)
		}
	}
}

func TestHMACChallenge(t *testing.T) { // A77
	provider := hmacClients(t)
	if got := provider.(Challenger).Challenge(nil, nil); got != `MCP-HMAC-SHA256 realm="mcp"` {
		t.Errorf("got %s", got)
	}
	if got := provider.CredentialHeaders(); !slices.Equal(got, []string{"Authorization"}) {
		t.Errorf("got %s", got)
	}
}

func TestHMACCaddyfile(t *testing.T) { // A77
	input := "hmac {\n client alice {env.ALICE}\n client bob@example.com {file./run/bob}\n window 30s\n max_nonces 5\n}"
	want := `{"clients":[{"client":"alice","secret":"{env.ALICE}"},{"client":"bob@example.com",` +
		`"secret":"{file./run/bob}"}],"window":30000000000,"max_nonces":5}`
	var h HMAC
	if err := h.UnmarshalCaddyfile(caddyfile.NewTestDispenser(input)); err != nil {
		t.Fatal(err)
	}
	if config, err := json.Marshal(h); err != nil || string(config) != want {
		t.Errorf("got %s, %v, want %s", config, err, want)
	}
}

func TestInvalidHMACConfigurations(t *testing.T) { // A77
	hmacSecrets(t)
	t.Setenv("HMAC_SHORT", "hunter2hunter21")
	caddyfiles := []struct{ name, input, want string }{
		{"no block", "hmac", "needs at least one client"},
		{"no client", "hmac {\n window 5m\n}", "needs at least one client"},
		{"an argument", "hmac hunter2", "no arguments"},
		{"a plain secret", "hmac {\n client alice hunter2hunter2hunter2\n}", "write {env.NAME}"},
		{"a secret next to a placeholder", "hmac {\n client alice hunter2{env.ALICE}\n}", "write {env.NAME}"},
		{"a client without a secret", "hmac {\n client hunter2\n}", `expected "client <name> <secret>"`},
		{"a client with two secrets", "hmac {\n client alice hunter2 hunter2\n}", `expected "client <name> <secret>"`},
		{"a secret instead of the client", "hmac {\n client {env.ALICE} alice\n}", "write {env.NAME}"},
		{"a window of zero", "hmac {\n client alice {env.ALICE}\n window 0\n}", "not positive"},
		{"a duplicate window", "hmac {\n client alice {env.ALICE}\n window 1m\n window 1m\n}", "window is given twice"},
		{"no nonces", "hmac {\n client alice {env.ALICE}\n max_nonces 0\n}", "not positive"},
		{"an unknown subdirective", "hmac {\n secret hunter2\n}", "unknown subdirective secret"},
	}
	for _, tt := range caddyfiles {
		t.Run(tt.name, func(t *testing.T) {
			err := new(HMAC).UnmarshalCaddyfile(caddyfile.NewTestDispenser(tt.input))
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("got %v, want … %s …", err, tt.want)
			}
		})
	}
	const alice = `{"client":"alice","secret":"{env.HMAC_ALICE}"}`
	configs := []struct{ name, config, want string }{
		{"no clients in JSON", `{}`, "clients: missing"},
		{"a plain secret in JSON", `{"clients":[{"client":"alice","secret":"hunter2hunter2hunter2"}]}`,
			"client alice: secret: a secret does not belong"},
		{"the hash of a secret in JSON", `{"clients":[{"client":"alice","secret":"sha256:` + sha256Hex("hunter2") + `"}]}`,
			"client alice: secret: a secret does not belong"},
		{"no secret in JSON", `{"clients":[{"client":"alice"}]}`, "client alice: secret: missing"},
		{"a secret that is too short", `{"clients":[{"client":"alice","secret":"{env.HMAC_SHORT}"}]}`,
			"client alice: secret: {env.HMAC_SHORT} has less than 16 bytes"},
		{"a variable that is not set", `{"clients":[{"client":"alice","secret":"{env.HMAC_NOT_SET}"}]}`,
			"{env.HMAC_NOT_SET} is empty"},
		{"no client in JSON", `{"clients":[{"secret":"{env.HMAC_ALICE}"}]}`, "the name of the client is empty"},
		{"a client with a comma in JSON", `{"clients":[{"client":"a,b","secret":"{env.HMAC_ALICE}"}]}`,
			"characters other than letters"},
		{"a client that is too long in JSON",
			`{"clients":[{"client":"` + strings.Repeat("a", 257) + `","secret":"{env.HMAC_ALICE}"}]}`, "longer than 256"},
		{"a duplicate client", `{"clients":[` + alice + `,{"client":"alice","secret":"{env.HMAC_BOB}"}]}`,
			"client alice is given twice"},
		{"the same secret for two clients", `{"clients":[` + alice + `,{"client":"bob","secret":"{env.HMAC_ALICE}"}]}`,
			"clients alice and bob have the same secret"},
		{"a window that is too short", `{"clients":[` + alice + `],"window":"999ms"}`, "window: 999ms is not from 1s to 24h"},
		{"a window that is too long", `{"clients":[` + alice + `],"window":"25h"}`, "window: 25h0m0s is not from 1s to 24h"},
		{"a negative window", `{"clients":[` + alice + `],"window":-1}`, "window: -1ns is not from 1s to 24h"},
		{"a negative max_nonces", `{"clients":[` + alice + `],"max_nonces":-1}`, "max_nonces: -1 is negative"},
	}
	for _, tt := range configs {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := openGuest(t, "hmac", tt.config)
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("got %v, want … %s …", err, tt.want)
			}
			nonceSets.Range(func(key, _ any) bool {
				t.Errorf("the nonces of %s are still kept", key.(nonceSetKey).client)
				return true
			})
		})
	}
}

// hmacReplica returns a provider with its own nonces, as in another process.
func hmacReplica(t *testing.T, engine replicas.Engine) *HMAC {
	t.Helper()
	hmacSecrets(t)
	ctx := storetest.Replica(t, engine, mcpstore.App{})
	module, err := ctx.LoadModuleByID(string(HMAC{}.CaddyModule().ID), json.RawMessage(hmacConfig))
	if err != nil {
		t.Fatal(err)
	}
	h := module.(*HMAC)
	for name, client := range h.known { // providers in one process share nonces
		nonces := newNonceSet(client.nonces.key)
		t.Cleanup(func() { _ = nonces.Destruct() })
		h.known[name] = hmacClient{client.secret, nonces}
	}
	return h
}

func TestReplicasAcceptARequestOnce(t *testing.T) { // A77
	engine := replicastest.New()
	var all []*HMAC
	for range 3 {
		all = append(all, hmacReplica(t, engine))
	}
	for i := range 100 {
		call := hmacPing(fmt.Sprintf("nonce-%03d", i))
		var taken, used atomic.Int32
		var group sync.WaitGroup
		for g := range 12 {
			group.Go(func() {
				switch _, err := all[g%len(all)].Authenticate(call.request()); {
				case err == nil:
					taken.Add(1)
				case errors.Is(err, errNonceUsed):
					used.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		group.Wait()
		if taken.Load() != 1 || used.Load() != 11 {
			t.Fatalf("accepted %d times, refused %d times", taken.Load(), used.Load())
		}
	}
	restarted := hmacReplica(t, engine)
	if _, err := restarted.Authenticate(hmacPing("nonce-000").request()); !errors.Is(err, errNonceUsed) {
		t.Errorf("after a restart: %v", err)
	}
	bob := hmacPing("nonce-000") // nonces are per client
	bob.client, bob.secret = "bob@example.com", hmacBob
	if got, err := restarted.Authenticate(bob.request()); got != bob.client || err != nil {
		t.Errorf("another client: %q, %v", got, err)
	}
}

// The clocks of replicas may differ by a window. A replica whose clock is five minutes behind
// accepts a request until ten minutes after its timestamp, as if its window were ten minutes.
func TestClocksOfReplicasDiffer(t *testing.T) { // A77
	const window = 5 * time.Minute
	for name, off := range map[string]time.Duration{"behind": -window, "right": 0, "ahead": window} {
		t.Run("a client whose clock is "+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := replicastest.New()
				right, behind := hmacReplica(t, engine), hmacReplica(t, engine)
				behind.Window *= 2
				call := hmacPing("nonce-01")
				call.timestamp = hmacTime(off)
				if _, err := right.Authenticate(call.request()); err != nil {
					t.Fatal(err)
				}
				for rest := off + 2*window; rest > 0; rest -= time.Minute {
					if _, err := behind.Authenticate(call.request()); !errors.Is(err, errNonceUsed) {
						t.Fatalf("%s before the request is too old: %v", rest, err)
					}
					behind = hmacReplica(t, engine) // knows no nonces
					behind.Window *= 2
					time.Sleep(time.Minute)
				}
				time.Sleep(time.Second)
				if n := len(engine.Values()); n != 0 {
					t.Errorf("the store still has %d values", n)
				}
			})
		})
	}
}

func TestNoncesWithoutTheStore(t *testing.T) { // A77
	for name, fail := range map[string]func(*replicastest.Engine) *atomic.Bool{
		"down":    func(e *replicastest.Engine) *atomic.Bool { return &e.Down },
		"stalled": func(e *replicastest.Engine) *atomic.Bool { return &e.Stalled },
		"full":    func(e *replicastest.Engine) *atomic.Bool { return &e.Full },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := replicastest.New()
				first, second := hmacReplica(t, engine), hmacReplica(t, engine)
				call, used := hmacPing("nonce-01"), hmacPing("nonce-00")
				if _, err := first.Authenticate(used.request()); err != nil {
					t.Fatal(err)
				}
				fail(engine).Store(true)
				for _, h := range []*HMAC{first, first, second} {
					got, err := h.Authenticate(call.request())
					if _, unknown := errors.AsType[*UnavailableError](err); got != "" || !unknown {
						t.Errorf("got %q, %v", got, err)
					}
				}
				if _, err := first.Authenticate(used.request()); !errors.Is(err, errNonceUsed) {
					t.Errorf("a nonce known to the replica: %v", err)
				}
				fail(engine).Store(false)
				time.Sleep(time.Second) // until the replica retries the store
				if got, err := first.Authenticate(call.request()); got != "alice" || err != nil {
					t.Errorf("afterwards: %q, %v", got, err)
				}
				if _, err := second.Authenticate(call.request()); !errors.Is(err, errNonceUsed) {
					t.Errorf("afterwards, again: %v", err)
				}
			})
		})
	}
}
