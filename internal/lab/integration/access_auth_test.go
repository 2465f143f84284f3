package integration

import (
	"bytes"
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
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// A namedEndpoint is a URL of a gateway where clients reach a server.
type namedEndpoint struct{ name, url string }

func endpointsOf(url, server string) []namedEndpoint {
	return []namedEndpoint{{"/mcp", joinedAt(url)}, {"/mcp/{server}", mcpAt(url, server)}, {"/rpc", rpcAt(url, server)}}
}

func bearer(token string) string { return "Authorization: Bearer " + token }

// sendAllHeaders sends a request with all headers, even if two have the same name.
func sendAllHeaders(t *testing.T, client *http.Client, method, endpoint, body string, headers ...string) httpResponse {
	t.Helper()
	req := request(t, t.Context(), method, endpoint, body, acceptBoth)
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		req.Header.Add(name, value)
	}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") && method == "GET" {
		return httpResponse{res, ""}
	}
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return httpResponse{res, string(text)}
}

// sessionHeader begins a session with these credentials and returns its session header.
func sessionHeader(t *testing.T, endpoint, credentials string) string {
	t.Helper()
	got := post(t, endpoint, rpc("initialize", `{`+initParams+`}`), acceptBoth, credentials)
	if got.StatusCode != 200 || got.Header.Get("Mcp-Session-Id") == "" {
		t.Fatalf("%d %v %s", got.StatusCode, got.Header, got.body)
	}
	return "Mcp-Session-Id: " + got.Header.Get("Mcp-Session-Id")
}

// refusals are the errors of the gateway by HTTP status.
var refusals = map[int]struct{ symbol, message string }{
	401: {"unauthorized", "Unauthorized"},
	403: {"acl_denied", "Access denied"},
	429: {"rate_limited", "Rate limit exceeded"},
}

// expectRefused fails the test unless the request was refused with this status.
func expectRefused(t *testing.T, got httpResponse, status int) {
	t.Helper()
	f, want := gatewayErrorOf(t, got), refusals[status]
	if f.Status != status || f.Symbol != want.symbol || !strings.Contains(got.body, `"message":`+quote(want.message)) {
		t.Errorf("%d %s\nwant %d %s", got.StatusCode, got.body, status, want.symbol)
	}
}

const (
	echoes     = `"name":"echo","arguments":{"text":"x"}`
	initParams = `"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}`
)

// everyMessage has all kinds of messages that a client can send (A30).
var everyMessage = []struct{ name, method, body string }{
	{"a request", "POST", rpc("tools/call", `{`+echoes+`}`)},
	{"a handshake", "POST", rpc("initialize", `{`+initParams+`}`)},
	{"a request without params", "POST", `{"jsonrpc":"2.0","id":1,"method":"ping"}`},
	{"a notification", "POST", `{"jsonrpc":"2.0","method":"notifications/foo"}`},
	{"a client's response", "POST", `{"jsonrpc":"2.0","id":"q","result":{}}`},
	{"a client's error", "POST", `{"jsonrpc":"2.0","id":"q","error":{"code":-1,"message":"no"}}`},
	{"invalid JSON", "POST", `{`},
	{"a batch", "POST", `[` + rpc("tools/call", `{`+echoes+`}`) + `]`},
	{"a stream", "GET", ""},
	{"the end of a session", "DELETE", ""},
}

func TestAccessByToken(t *testing.T) {
	isolate(t)
	const token, other = "s3-AbCdEf0123456789", "t4-GhIjKl0123456789"
	setenv(t, "ACCESS_TOKEN", token)
	server := newLenientServer(t, "echo")
	// one token by placeholder, one literal
	url := serve(t, gateway("separator __", "auth token {env.ACCESS_TOKEN}", block("client second", "token "+other),
		server.line("alpha")), `respond "next handler"`)

	for _, endpoint := range endpointsOf(url, "alpha") {
		for _, m := range everyMessage {
			t.Run("A30 "+m.name+" without a token at "+endpoint.name, func(t *testing.T) {
				before := server.Count()
				got := sendAllHeaders(t, client, m.method, endpoint.url, m.body)
				expectRefused(t, got, 401)
				if id := gatewayErrorOf(t, got).ID; strings.Contains(m.body, `"id":1`) && m.body[0] == '{' && id != "1" {
					t.Errorf("got id %s", id)
				}
				expectRefused(t, sendAllHeaders(t, client, m.method, endpoint.url, m.body, bearer("wrong")), 401)
				if server.Count() != before {
					t.Error("the server was contacted")
				}
			})
			t.Run("A30 "+m.name+" with a token at "+endpoint.name, func(t *testing.T) {
				for _, good := range []string{token, other} {
					if got := sendAllHeaders(t, client, m.method, endpoint.url, m.body, bearer(good)); got.StatusCode == 401 ||
						got.StatusCode == 403 {
						t.Errorf("%d %s", got.StatusCode, got.body)
					}
				}
			})
		}
		t.Run("A30 no token, wrong token, params.proxy.authToken, Bearer at "+endpoint.name, func(t *testing.T) {
			session := ""
			ask := func(method, params, proxy string, headers ...string) httpResponse {
				t.Helper()
				got := post(t, endpoint.url, rpc(method, `{`+params+proxy+`}`), append(headers, session, acceptBoth)...)
				if method == "initialize" && got.StatusCode == 200 {
					session = "Mcp-Session-Id: " + got.Header.Get("Mcp-Session-Id")
				}
				return got
			}
			inProxy := `,"proxy":{"authToken":"` + token + `"}`
			for _, m := range []struct{ method, params, name string }{{"initialize", initParams, "protocolVersion"},
				{"tools/call", "", "content"}} {
				if m.params == "" {
					m.params = echoes
					if endpoint.name == "/mcp" {
						m.params = strings.Replace(echoes, `"echo"`, `"alpha__echo"`, 1)
					}
				}
				expectRefused(t, ask(m.method, m.params, ""), 401)
				expectRefused(t, ask(m.method, m.params, `,"proxy":{"authToken":"wrong"}`), 401)
				for _, got := range []httpResponse{ask(m.method, m.params, inProxy), ask(m.method, m.params, "", bearer(token)),
					ask(m.method, m.params, inProxy, bearer(token))} {
					if got.StatusCode != 200 || !strings.Contains(got.body, m.name) {
						t.Errorf("%s: %d %s", m.method, got.StatusCode, got.body)
					}
				}
			}
		})
	}
	t.Run("A30 errors do not reveal server names", func(t *testing.T) {
		for _, endpoint := range []string{mcpAt(url, "nope"), rpcAt(url, "nope")} {
			expectRefused(t, post(t, endpoint, rpc("ping", `{}`)), 401)
			if got := gatewayErrorOf(t, post(t, endpoint, rpc("ping", `{}`), bearer(token))); got.Symbol != "unknown_server" {
				t.Errorf("%+v", got)
			}
		}
	})
	t.Run("A30 the modern era", func(t *testing.T) {
		for _, method := range []string{"server/discover", "tools/list", "subscriptions/listen"} {
			body, headers := (&testClient{&mcpclient.Client{Modern: true, Capabilities: `{}`, HTTP: streamClient}}).Message("1",
				method, `{}`)
			expectRefused(t, post(t, joinedAt(url), body, headers...), 401)
			expectRefused(t, post(t, joinedAt(url), body, append(headers, bearer("wrong"))...), 401)
		}
		c := newTestClient(t, joinedAt(url), true, `{}`, bearer(token))
		if got := c.use(t, "alpha", "echo", `{"text":"x"}`); !strings.Contains(got, `"text":"x"`) {
			t.Errorf("got %s, want %s in it", got, `"text":"x"`)
		}
	})
	t.Run("A30 other paths need no token", func(t *testing.T) {
		for _, path := range []string{"/elsewhere", "/.well-known/oauth-protected-resource",
			"/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-authorization-server"} {
			if got := send(t, client, "GET", url+path, ""); got.body != "next handler" {
				t.Errorf("%s: %d %s", path, got.StatusCode, got.body)
			}
		}
	})
}

// badCredentials are credentials that must be refused.
type badCredentials struct {
	name    string
	headers []string
	params  string // additional members of params
	query   string
}

// expectRefusedEverywhere fails the test unless every endpoint refuses the credentials and the
// server receives nothing.
func expectRefusedEverywhere(t *testing.T, client *http.Client, url, requirement string, server *remoteServer,
	all []badCredentials) {
	t.Helper()
	for _, f := range all {
		t.Run(requirement+" "+f.name, func(t *testing.T) {
			before := server.Count()
			for _, endpoint := range endpointsOf(url, "alpha") {
				for _, m := range []struct{ method, params string }{{"tools/call", echoes}, {"initialize", initParams}} {
					expectRefused(t, sendAllHeaders(t, client, "POST", endpoint.url+f.query, rpc(m.method, `{`+m.params+f.params+`}`),
						f.headers...), 401)
				}
				expectRefused(t, sendAllHeaders(t, client, "POST", endpoint.url+f.query,
					`{"jsonrpc":"2.0","method":"notifications/foo","params":{"a":1`+f.params+`}}`, f.headers...), 401)
			}
			if n := server.Count() - before; n > 0 {
				t.Errorf("the server was contacted %d times", n)
			}
		})
	}
}

func TestAccessByWrongTokens(t *testing.T) {
	isolate(t)
	const token = "s3-AbCdEf0123456789"
	setenv(t, "ACCESS_TOKEN", token)
	server := newLenientServer(t, "echo")
	url := serve(t, gateway("auth token {env.ACCESS_TOKEN} alice", "auth token b0b-AbCdEf0123456789 bob",
		server.line("alpha")))
	sum := sha256.Sum256([]byte(token))
	digest := hex.EncodeToString(sum[:])
	proxy := func(members string) string { return `,"proxy":{` + members + `}` }
	expectRefusedEverywhere(t, client, url, "A30", server, []badCredentials{
		{name: "nothing"},
		{name: "another token", headers: []string{bearer("wrong")}},
		{name: "a longer token", headers: []string{bearer(token + "x")}},
		{name: "a shorter token", headers: []string{bearer(token[:len(token)-1])}},
		{name: "the end of the token", headers: []string{bearer(token[1:])}},
		{name: "the token in another case", headers: []string{bearer(strings.ToUpper(token))}},
		{name: "an empty token", headers: []string{"Authorization: Bearer "}},
		{name: "a scheme alone", headers: []string{"Authorization: Bearer"}},
		{name: "the token without a scheme", headers: []string{"Authorization: " + token}},
		{name: "another scheme", headers: []string{"Authorization: Token " + token}},
		{name: "the token as a user", headers: []string{"Authorization: Basic " +
			base64.StdEncoding.EncodeToString([]byte(token+":"))}},
		{name: "the token as a password", headers: []string{"Authorization: Basic " +
			base64.StdEncoding.EncodeToString([]byte("alice:"+token))}},
		{name: "the SHA-256 of the token", headers: []string{bearer(digest)}},
		{name: "the SHA-256 of the token as the configuration has it", headers: []string{bearer("sha256:" + digest)}},
		{name: "the SHA-256 of a literal token",
			headers: []string{bearer(fmt.Sprintf("sha256:%x", sha256.Sum256([]byte("b0b-AbCdEf0123456789"))))}},
		{name: "the token in base64", headers: []string{bearer(base64.StdEncoding.EncodeToString([]byte(token)))}},
		{name: "the token quoted", headers: []string{bearer(`"` + token + `"`)}},
		{name: "the placeholder", headers: []string{bearer("{env.ACCESS_TOKEN}")}},
		{name: "the name of the client", headers: []string{bearer("alice")}},
		{name: "two tokens in a list", headers: []string{bearer(token + ", Bearer wrong")}},
		{name: "two headers, the first one wrong", headers: []string{bearer("wrong"), bearer(token)}},
		{name: "two headers, the second one wrong", headers: []string{bearer(token), bearer("wrong")}},
		{name: "another header", headers: []string{"X-Auth-Token: " + token, "X-Api-Key: " + token, "Cookie: token=" +
			token}},
		{name: "the header for proxies", headers: []string{"Proxy-Authorization: Bearer " + token}},
		{name: "the query", query: "?authToken=" + token + "&access_token=" + token + "&token=" + token},
		{name: "another authToken", params: proxy(`"authToken":"wrong"`)},
		{name: "an empty authToken", params: proxy(`"authToken":""`)},
		{name: "an authToken that is null", params: proxy(`"authToken":null`)},
		{name: "an authToken that is true", params: proxy(`"authToken":true`)},
		{name: "an authToken that is a list", params: proxy(`"authToken":["` + token + `"]`)},
		{name: "an authToken that is an object", params: proxy(`"authToken":{"authToken":"` + token + `"}`)},
		{name: "an authtoken", params: proxy(`"authtoken":"` + token + `","AuthToken":"` + token + `","auth_token":"` +
			token + `"`)},
		{name: "an authToken in params", params: `,"authToken":"` + token + `"`},
		{name: "an authToken in _meta", params: `,"_meta":{"proxy":{"authToken":"` + token + `"}}`},
		{name: "an authToken in arguments", params: `,"x":{"proxy":{"authToken":"` + token + `"}}`},
		{name: "a proxy that is a list", params: `,"proxy":[{"authToken":"` + token + `"}]`},
		{name: "a proxy that is a JSON string", params: `,"proxy":` + quote(`{"authToken":"`+token+`"}`)},
		{name: "an authToken with a blank", params: proxy(`"authToken":" ` + token + `"`)},
		{name: "a wrong header and the right authToken", headers: []string{bearer("wrong")},
			params: proxy(`"authToken":"` + token + `"`)},
		{name: "a wrong authToken and the right header", headers: []string{bearer(token)},
			params: proxy(`"authToken":"wrong"`)},
		{name: "the tokens of two clients", headers: []string{bearer("b0b-AbCdEf0123456789")},
			params: proxy(`"authToken":"` + token + `"`)},
	})
	t.Run("A30 two authTokens are refused", func(t *testing.T) {
		before := server.Count()
		for _, params := range []string{
			`,"proxy":{"authToken":"wrong","authToken":"` + token + `"}`, `,"proxy":{"authToken":"` + token +
				`","authToken":"wrong"}`,
			`,"proxy":{"authToken":"wrong"},"proxy":{"authToken":"` + token + `"}`, `,"proxy":{"authToken":"` + token +
				`"},"proxy":{}`,
		} {
			for _, endpoint := range endpointsOf(url, "alpha") {
				if got := gatewayErrorOf(t, post(t, endpoint.url, rpc("tools/call", `{`+echoes+params+`}`))); got.Status != 400 &&
					got.Status != 401 {
					t.Errorf("%s: %+v", params, got)
				}
			}
		}
		if server.Count() != before {
			t.Error("the server was contacted")
		}
	})
}

// The gateway does not forward its tokens to servers (A31).
func TestAccessTokenIsNotForwarded(t *testing.T) {
	isolate(t)
	const token = "s3-AbCdEf0123456789"
	setenv(t, "ACCESS_TOKEN", token)
	server := newLenientServer(t, "echo")
	url := serve(t, gateway("separator __", "auth token {env.ACCESS_TOKEN}", server.line("alpha")))
	checkReceived := func(t *testing.T, method, want string) {
		t.Helper()
		got := server.params(method)
		if len(got) == 0 {
			t.Fatalf("the server did not receive %s", method)
		}
		if last := got[len(got)-1]; last != want {
			t.Errorf("the server received %s\nwant %s", last, want)
		}
		for _, r := range server.Received() {
			if all := fmt.Sprint(r); strings.Contains(all, token) || r.HTTP.Header.Get("Authorization") != "" {
				t.Errorf("the server received %s", all)
			}
		}
	}
	direct := `"name":"echo","arguments":{"n":1.0, "proxy":{"authToken":"mine"}}`
	for _, endpoint := range endpointsOf(url, "alpha")[1:] {
		for _, tt := range []struct{ name, params, want string }{
			{"alone", `{` + direct + `,"proxy":{"authToken":"` + token + `"}}`, `{` + direct + `}`},
			{"alone and first", `{"proxy":{"authToken":"` + token + `"},` + direct + `}`, `{` + direct + `}`},
			{"first of several", `{` + direct + `,"proxy":{"authToken":"` + token + `","server":"x","n":1.0}}`, `{` + direct +
				`,"proxy":{"server":"x","n":1.0}}`},
			{"last of several", `{"proxy":{"server":"x","n":1.0,"authToken":"` + token + `"},` + direct + `}`,
				`{"proxy":{"server":"x","n":1.0},` + direct + `}`},
			{"in the middle of several", `{` + direct + `,"proxy":{"server":"x","authToken":"` + token + `","n":1.0}}`,
				`{` + direct + `,"proxy":{"server":"x","n":1.0}}`},
			{"with escapes", `{` + direct + `,"pro\u0078y":{"auth\u0054oken":"` + strings.Replace(token, "A", `\u0041`, 1) +
				`"}}`, `{` + direct + `}`},
		} {
			t.Run("A31 a token "+tt.name+" at "+endpoint.name, func(t *testing.T) {
				if got := post(t, endpoint.url, rpc("tools/call", tt.params)); got.StatusCode != 200 {
					t.Fatalf("got %d %s, want 200", got.StatusCode, got.body)
				}
				checkReceived(t, "tools/call", tt.want)
			})
		}
		t.Run("A31 a notification at "+endpoint.name, func(t *testing.T) {
			got := post(t, endpoint.url, `{"jsonrpc":"2.0","method":"notifications/foo","params":{"a":1.0,`+
				`"proxy":{"authToken":"`+token+`"}}}`)
			if got.StatusCode != 202 {
				t.Fatalf("%d %s", got.StatusCode, got.body)
			}
			checkReceived(t, "notifications/foo", `{"a":1.0}`)
		})
		t.Run("A31 params with nothing else at "+endpoint.name, func(t *testing.T) {
			if got := post(t, endpoint.url, rpc("ping", `{"proxy":{"authToken":"`+token+`"}}`)); got.StatusCode != 200 {
				t.Fatalf("got %d %s, want 200", got.StatusCode, got.body)
			}
			checkReceived(t, "ping", `{}`)
		})
		t.Run("A31 a header at "+endpoint.name, func(t *testing.T) {
			if got := post(t, endpoint.url, rpc("tools/call", `{`+direct+`,"proxy":{"server":"x"}}`),
				bearer(token)); got.StatusCode != 200 {
				t.Fatalf("got %d %s, want 200", got.StatusCode, got.body)
			}
			checkReceived(t, "tools/call", `{`+direct+`,"proxy":{"server":"x"}}`)
		})
	}
	t.Run("A31 /mcp removes params.proxy", func(t *testing.T) {
		endpoint := joinedAt(url)
		got := post(t, endpoint, rpc("initialize", `{`+initParams+`,"proxy":{"authToken":"`+token+`","x":1}}`), acceptBoth)
		session := "Mcp-Session-Id: " + got.Header.Get("Mcp-Session-Id")
		if got.StatusCode != 200 {
			t.Fatalf("%d %s", got.StatusCode, got.body)
		}
		for _, m := range server.params("initialize") {
			if strings.Contains(m, `"proxy"`) {
				t.Errorf("A31 initialize: the server received %s", m)
			}
		}
		joined := strings.Replace(direct, `"echo"`, `"alpha__echo"`, 1)
		for _, proxy := range []string{`"authToken":"` + token + `"`, `"server":"x","authToken":"` + token + `","n":1.0`} {
			if got := post(t, endpoint, rpc("tools/call", `{`+joined+`,"proxy":{`+proxy+`}}`), session,
				acceptBoth); got.StatusCode != 200 {
				t.Fatalf("got %d %s, want 200", got.StatusCode, got.body)
			}
			checkReceived(t, "tools/call", `{`+direct+`}`)
			if got := post(t, endpoint, rpc("prompts/get", `{"name":"alpha__greet","proxy":{`+proxy+`}}`), session,
				acceptBoth); got.StatusCode != 200 {
				t.Fatalf("got %d %s, want 200", got.StatusCode, got.body)
			}
			checkReceived(t, "prompts/get", `{"name":"greet"}`)
			before := len(server.params("notifications/foo"))
			if got := post(t, endpoint, `{"jsonrpc":"2.0","method":"notifications/foo","params":{"a":1.0,"proxy":{`+proxy+`}}}`,
				session, acceptBoth); got.StatusCode != 202 {
				t.Fatalf("got %d %s, want 202", got.StatusCode, got.body)
			}
			await.Until(t, "the notification", func() bool { return len(server.params("notifications/foo")) > before })
			checkReceived(t, "notifications/foo", `{"a":1.0}`)
		}
		post(t, endpoint, rpc("tools/call", `{`+joined+`}`), session, acceptBoth, bearer(token))
		checkReceived(t, "tools/call", `{`+direct+`}`)
	})
}

// A signature is the key of a client and the parts of a request that it signs.
type signature struct {
	client, secret     string
	timestamp          time.Time
	nonce              string
	method, path, body string
}

// header returns the Authorization header of the request.
func (s signature) header() string {
	sum := sha256.Sum256([]byte(s.body))
	timestamp := strconv.FormatInt(s.timestamp.Unix(), 10)
	mac := hmac.New(sha256.New, []byte(s.secret))
	_, _ = io.WriteString(mac, strings.Join([]string{"MCP-HMAC-SHA256", timestamp, s.nonce, s.method, s.path,
		hex.EncodeToString(sum[:])}, "\n"))
	return "Authorization: MCP-HMAC-SHA256 client=" + s.client + ", timestamp=" + timestamp + ", nonce=" + s.nonce +
		", signature=" + hex.EncodeToString(mac.Sum(nil))
}

// signedHeader returns the Authorization header of a request sent now.
func signedHeader(client, secret, method, path, body string) string {
	return signature{client, secret, time.Now(), rand.Text(), method, path, body}.header()
}

func pathOf(t *testing.T, endpoint string) string {
	t.Helper()
	u, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	return u.RequestURI()
}

const (
	aliceSecret = "alice-hmac-0123456789abcdef"
	bobSecret   = "bob-hmac-0123456789abcdef"
)

// hmacAuth is the auth provider for signed requests.
var hmacAuth = block("auth hmac", "client alice {env.ALICE_SECRET}", "client bob {env.BOB_SECRET}", "window 5m")

func TestAccessBySignature(t *testing.T) {
	isolate(t)
	setenv(t, "ALICE_SECRET", aliceSecret)
	setenv(t, "BOB_SECRET", bobSecret)
	server := newLenientServer(t, "echo")
	address := freeAddress(t)
	config := site(address, gateway("separator __", hmacAuth, block(server.line("alpha"), serverPlaceholders...)))
	load(t, config)
	url := "http://" + address
	body := rpc("tools/call", `{`+echoes+`}`)

	for _, endpoint := range endpointsOf(url, "alpha") {
		path := pathOf(t, endpoint.url)
		t.Run("A77 signed messages at "+endpoint.name, func(t *testing.T) {
			for _, m := range everyMessage {
				if got := sendAllHeaders(t, client, m.method, endpoint.url, m.body, signedHeader("alice", aliceSecret, m.method,
					path, m.body)); got.StatusCode == 401 {
					t.Errorf("%s: %d %s", m.name, got.StatusCode, got.body)
				}
				expectRefused(t, sendAllHeaders(t, client, m.method, endpoint.url, m.body), 401)
			}
		})
		t.Run("A77 a replayed request at "+endpoint.name, func(t *testing.T) {
			header := signedHeader("alice", aliceSecret, "POST", path, body)
			if got := post(t, endpoint.url, body, header); got.StatusCode == 401 {
				t.Fatalf("%d %s", got.StatusCode, got.body)
			}
			before := server.Count()
			for range 3 {
				expectRefused(t, post(t, endpoint.url, body, header), 401)
			}
			if server.Count() != before {
				t.Error("the server was contacted")
			}
		})
	}
	rpcURL := rpcAt(url, "alpha")
	t.Run("A77 the signer is the client", func(t *testing.T) {
		for name, secret := range map[string]string{"alice": aliceSecret, "bob": bobSecret} {
			header := signedHeader(name, secret, "POST", pathOf(t, rpcURL), body)
			if got := post(t, rpcURL, body, header); got.StatusCode != 200 {
				t.Fatalf("got %d %s, want 200", got.StatusCode, got.body)
			}
			all := server.Received()
			if last := all[len(all)-1].HTTP.Header; last.Get("X-Client") != name || last.Get("Authorization") != "" {
				t.Errorf("the server received %v", last)
			}
		}
	})
	t.Run("A77 a replayed request after a reload", func(t *testing.T) {
		header := signedHeader("alice", aliceSecret, "POST", pathOf(t, rpcURL), body)
		if got := post(t, rpcURL, body, header); got.StatusCode != 200 {
			t.Fatalf("got %d %s, want 200", got.StatusCode, got.body)
		}
		before := server.Count()
		load(t, config+site(freeAddress(t), "respond x"))
		expectRefused(t, post(t, rpcURL, body, header), 401)
		load(t, site(address, gateway("separator __", "name other", "mask off", hmacAuth,
			block(server.line("alpha"), serverPlaceholders...))))
		expectRefused(t, post(t, rpcURL, body, header), 401)
		if server.Count() != before {
			t.Error("the server was contacted")
		}
		if got := post(t, rpcURL, body, signedHeader("alice", aliceSecret, "POST", pathOf(t, rpcURL),
			body)); got.StatusCode != 200 {
			t.Errorf("got %d %s, want 200", got.StatusCode, got.body)
		}
	})
}

func TestAccessByWrongSignatures(t *testing.T) {
	isolate(t)
	setenv(t, "ALICE_SECRET", aliceSecret)
	setenv(t, "BOB_SECRET", bobSecret)
	server := newLenientServer(t, "echo")
	url := serve(t, gateway(hmacAuth, server.line("alpha")))
	body := rpc("tools/call", `{`+echoes+`}`)
	tests := []struct {
		name   string
		signed func(*signature)           // changes what is signed
		sent   func(header string) string // changes what is sent
	}{
		{"nothing", nil, func(string) string { return "" }},
		{"another secret", func(s *signature) { s.secret += "x" }, nil},
		{"an empty secret", func(s *signature) { s.secret = "" }, nil},
		{"the secret of another client", func(s *signature) { s.secret = bobSecret }, nil},
		{"an unknown client", func(s *signature) { s.client = "mallory" }, nil},
		{"the signature of another body", func(s *signature) { s.body += " " }, nil},
		{"the signature of an empty body", func(s *signature) { s.body = "" }, nil},
		{"the signature of another path", func(s *signature) { s.path += "/x" }, nil},
		{"the signature of a query", func(s *signature) { s.path += "?" }, nil},
		{"the signature of another method", func(s *signature) { s.method = "GET" }, nil},
		{"a time before the window", func(s *signature) { s.timestamp = s.timestamp.Add(-6 * time.Minute) }, nil},
		{"a time after the window", func(s *signature) { s.timestamp = s.timestamp.Add(6 * time.Minute) }, nil},
		{"a time in milliseconds", func(s *signature) { s.timestamp = time.Unix(s.timestamp.UnixMilli(), 0) }, nil},
		{"no nonce", func(s *signature) { s.nonce = "" }, nil},
		{"a short nonce", func(s *signature) { s.nonce = "abc" }, nil},
		{"another time than the signed one", func(s *signature) { s.timestamp = s.timestamp.Add(-10 * time.Second) },
			func(header string) string {
				return regexp.MustCompile(`timestamp=\d+`).ReplaceAllString(header, fmt.Sprint("timestamp=", time.Now().Unix()))
			}},
		{"another nonce than the signed one", nil, func(header string) string {
			return regexp.MustCompile(`nonce=\w+`).ReplaceAllString(header, "nonce="+rand.Text())
		}},
		{"half of the signature", nil, func(header string) string { return header[:len(header)-32] }},
		{"no signature", nil, func(header string) string { return header[:strings.Index(header, ", signature=")] }},
		{"another scheme", nil, func(header string) string {
			return strings.Replace(header, "MCP-HMAC-SHA256 ", "Bearer ", 1)
		}},
		{"the secret itself", nil, func(string) string { return bearer(aliceSecret) }},
		{"two clients", func(s *signature) { s.secret = bobSecret }, func(header string) string {
			return header + ", client=bob"
		}},
	}
	for _, tt := range tests {
		t.Run("A77 "+tt.name, func(t *testing.T) {
			before := server.Count()
			for _, endpoint := range endpointsOf(url, "alpha") {
				s := signature{"alice", aliceSecret, time.Now(), rand.Text(), "POST", pathOf(t, endpoint.url), body}
				if tt.signed != nil {
					tt.signed(&s)
				}
				header := s.header()
				if tt.sent != nil {
					header = tt.sent(header)
				}
				expectRefused(t, post(t, endpoint.url, body, header), 401)
			}
			if server.Count() != before {
				t.Error("the server was contacted")
			}
		})
	}
}

// Several auth providers work together (A75).
func TestAccessByTwoProviders(t *testing.T) {
	isolate(t)
	setenv(t, "ALICE_SECRET", aliceSecret)
	setenv(t, "BOB_SECRET", bobSecret)
	const token = "s3-AbCdEf0123456789"
	server := newLenientServer(t, "echo")
	url := serve(t, gateway("separator __", "auth token "+token+" carol", hmacAuth,
		block(server.line("alpha"), serverPlaceholders...)))
	body := rpc("tools/call", `{`+echoes+`}`)
	for _, endpoint := range endpointsOf(url, "alpha") {
		path := pathOf(t, endpoint.url)
		t.Run("A75 either is accepted at "+endpoint.name, func(t *testing.T) {
			for name, header := range map[string]string{"carol": bearer(token), "alice": signedHeader("alice", aliceSecret,
				"POST", path, body)} {
				if got := post(t, endpoint.url, body, header); got.StatusCode == 401 {
					t.Errorf("%s: %d %s", name, got.StatusCode, got.body)
				}
				all := server.Received()
				if endpoint.name == "/mcp" {
					continue // the request needs a session
				}
				if len(all) == 0 || all[len(all)-1].HTTP.Header.Get("X-Client") != name {
					t.Errorf("the server received another client than %s", name)
				}
			}
		})
		t.Run("A75 no credentials are refused at "+endpoint.name, func(t *testing.T) {
			before := server.Count()
			for _, header := range []string{"", bearer("wrong"), signedHeader("alice", bobSecret, "POST", path, body),
				signedHeader("carol", token, "POST", path, body), bearer(aliceSecret)} {
				expectRefused(t, post(t, endpoint.url, body, header), 401)
			}
			if server.Count() != before {
				t.Error("the server was contacted")
			}
		})
	}
}

// An issuer stands in for an authorization server. It only serves keys.
type issuer struct {
	url  string
	keys map[string]crypto.Signer // by key ID
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rs, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	i := &issuer{keys: map[string]crypto.Signer{"ec": ec, "ed": ed, "rs": rs}}
	point, err := ec.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	keys := fmt.Sprintf(`{"keys":[{"kty":"EC","crv":"P-256","kid":"ec","use":"sig","x":%q,"y":%q},{"kty":"OKP",`+
		`"crv":"Ed25519","kid":"ed","x":%q},{"kty":"RSA","kid":"rs","n":%q,"e":"AQAB"}]}`,
		base64URL(point[1:33]), base64URL(point[33:]), base64URL(ed.Public().(ed25519.PublicKey)), base64URL(rs.N.Bytes()))
	i.url = "http://" + upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, keys)
	}))
	return i
}

func base64URL(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// provider returns the auth provider that trusts the issuer.
func (i *issuer) provider(more ...string) string {
	return block("auth jwt", append([]string{"issuer " + i.url, "audience https://mcp.test/mcp", "jwks " + i.url +
		"/keys"}, more...)...)
}

// claims returns the claims of a valid token, changed by others. A nil value removes a claim.
func (i *issuer) claims(others map[string]any) string {
	claims := map[string]any{
		"iss": i.url, "aud": "https://mcp.test/mcp", "sub": "robot", "scope": "mcp:tools mcp:other",
		"iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix(),
	}
	maps.Copy(claims, others)
	maps.DeleteFunc(claims, func(_ string, value any) bool { return value == nil })
	text, _ := json.Marshal(claims)
	return string(text)
}

// token signs claims with the key of this ID.
func (i *issuer) token(key, claims string) string {
	alg := map[string]string{"ec": "ES256", "ed": "EdDSA", "rs": "RS256"}[key]
	return signJWT(`{"alg":"`+alg+`","typ":"at+jwt","kid":"`+key+`"}`, claims, i.keys[key])
}

func signJWT(header, claims string, key crypto.Signer) string {
	signed := base64URL([]byte(header)) + "." + base64URL([]byte(claims))
	sum := sha256.Sum256([]byte(signed))
	var signature []byte
	var err error
	switch key := key.(type) {
	case *ecdsa.PrivateKey:
		var r, s *big.Int
		if r, s, err = ecdsa.Sign(rand.Reader, key, sum[:]); err == nil {
			signature = append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
		}
	case ed25519.PrivateKey:
		signature = ed25519.Sign(key, []byte(signed))
	case *rsa.PrivateKey:
		signature, err = rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:])
	}
	if err != nil {
		panic(err) // test keys can sign
	}
	return signed + "." + base64URL(signature)
}

// challengeParameter returns a parameter of the WWW-Authenticate header.
func challengeParameter(got httpResponse, parameter string) string {
	for _, challenge := range got.Header.Values("WWW-Authenticate") {
		if m := regexp.MustCompile(parameter + `="([^"]*)"`).FindStringSubmatch(challenge); m != nil &&
			strings.HasPrefix(challenge, "Bearer ") {
			return m[1]
		}
	}
	return ""
}

func TestAccessByJWT(t *testing.T) {
	isolate(t)
	issuer, server := newIssuer(t), newLenientServer(t, "echo")
	url := serve(t, gateway("separator __", issuer.provider("scopes mcp:tools"),
		block(server.line("alpha"), serverPlaceholders...)))
	body := rpc("tools/call", `{`+echoes+`}`)
	t.Run("A76 a good token of each kind", func(t *testing.T) {
		for key := range issuer.keys {
			if got := post(t, rpcAt(url, "alpha"), body, bearer(issuer.token(key, issuer.claims(nil)))); got.StatusCode != 200 {
				t.Errorf("%s: got %d %s, want 200", key, got.StatusCode, got.body)
			}
			all := server.Received()
			if last := all[len(all)-1].HTTP.Header; last.Get("X-Client") != "robot" || last.Get("Authorization") != "" {
				t.Errorf("%s: the server received %v", key, last)
			}
		}
	})
	t.Run("A76 several audiences, and scopes as a list", func(t *testing.T) {
		for _, others := range []map[string]any{{"aud": []string{"x", "https://mcp.test/mcp"}},
			{"scope": nil, "scp": []string{"mcp:tools"}}} {
			if got := post(t, rpcAt(url, "alpha"), body,
				bearer(issuer.token("ec", issuer.claims(others)))); got.StatusCode != 200 {
				t.Errorf("%v: got %d %s, want 200", others, got.StatusCode, got.body)
			}
		}
	})
	for _, endpoint := range endpointsOf(url, "alpha") {
		t.Run("A76 good, expired, wrong audience at "+endpoint.name, func(t *testing.T) {
			for _, m := range everyMessage {
				for token, refused := range map[string]bool{
					issuer.token("ec", issuer.claims(nil)):                                                                    false,
					issuer.token("ec", issuer.claims(map[string]any{"exp": time.Now().Add(-time.Hour).Unix()})):               true,
					issuer.token("ec", issuer.claims(map[string]any{"aud": "https://other.test"})):                            true,
					issuer.token("ec", issuer.claims(map[string]any{"exp": time.Now().Add(-time.Hour).Unix(), "scope": "x"})): true,
				} {
					got := sendAllHeaders(t, client, m.method, endpoint.url, m.body, bearer(token))
					if refused {
						expectRefused(t, got, 401)
					} else if got.StatusCode == 401 || got.StatusCode == 403 {
						t.Errorf("%s: %d %s", m.name, got.StatusCode, got.body)
					}
				}
			}
		})
		t.Run("A76 the challenge names the resource metadata at "+endpoint.name, func(t *testing.T) {
			got := post(t, endpoint.url, body)
			expectRefused(t, got, 401)
			metadata := challengeParameter(got, "resource_metadata")
			if want := url + "/.well-known/oauth-protected-resource" + pathOf(t, endpoint.url); metadata != want {
				t.Fatalf("WWW-Authenticate: %q\nwant %s", got.Header.Values("WWW-Authenticate"), want)
			}
			described := send(t, client, "GET", metadata, "")
			var about struct {
				Resource string
				Servers  []string `json:"authorization_servers"`
				Scopes   []string `json:"scopes_supported"`
			}
			if err := json.Unmarshal([]byte(described.body), &about); err != nil || described.StatusCode != 200 ||
				described.Header.Get("Content-Type") != "application/json" {
				t.Fatalf("%v: %d %v %s", err, described.StatusCode, described.Header, described.body)
			}
			if about.Resource != endpoint.url || !slices.Equal(about.Servers, []string{issuer.url}) ||
				!slices.Contains(about.Scopes, "mcp:tools") {
				t.Errorf("%+v", about)
			}
		})
		t.Run("A76 insufficient scope at "+endpoint.name, func(t *testing.T) {
			before := server.Count()
			got := post(t, endpoint.url, body, bearer(issuer.token("ec", issuer.claims(map[string]any{"scope": "mcp:other"}))))
			expectRefused(t, got, 403)
			if challengeParameter(got, "error") != "insufficient_scope" || !strings.Contains(challengeParameter(got, "scope"),
				"mcp:tools") || challengeParameter(got, "resource_metadata") == "" {
				t.Errorf("WWW-Authenticate: %q", got.Header.Values("WWW-Authenticate"))
			}
			if server.Count() != before {
				t.Error("the server was contacted")
			}
		})
	}
	t.Run("A76 metadata for clients that ignore the path", func(t *testing.T) {
		for _, path := range []string{"/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp"} {
			got := send(t, client, "GET", url+path, "")
			if got.StatusCode != 200 || !strings.Contains(got.body, quote(url+"/mcp")) || !strings.Contains(got.body,
				quote(issuer.url)) {
				t.Errorf("%s: %d %s", path, got.StatusCode, got.body)
			}
		}
		if got := send(t, client, "GET", url+"/.well-known/oauth-protected-resource/elsewhere",
			""); strings.Contains(got.body, issuer.url) {
			t.Errorf("%d %s", got.StatusCode, got.body)
		}
	})
}

func TestAccessByWrongJWTs(t *testing.T) {
	isolate(t)
	issuer, stranger, server := newIssuer(t), newIssuer(t), newLenientServer(t, "echo")
	url := serve(t, gateway(issuer.provider(), server.line("alpha")))
	good := issuer.token("ec", issuer.claims(nil))
	header, payload, signature := func() (string, string, string) {
		parts := strings.Split(good, ".")
		return parts[0], parts[1], parts[2]
	}()
	ed := issuer.keys["ed"].Public().(ed25519.PublicKey)
	hs256 := func(key []byte) string {
		signed := base64URL([]byte(`{"alg":"HS256","kid":"ed"}`)) + "." + payload
		mac := hmac.New(sha256.New, key)
		_, _ = io.WriteString(mac, signed)
		return signed + "." + base64URL(mac.Sum(nil))
	}
	claiming := func(others map[string]any) []string {
		return []string{bearer(issuer.token("ec", issuer.claims(others)))}
	}
	point, err := stranger.keys["ec"].(*ecdsa.PrivateKey).PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	expectRefusedEverywhere(t, client, url, "A76", server, []badCredentials{
		{name: "nothing"},
		{name: "expired", headers: claiming(map[string]any{"exp": time.Now().Add(-time.Hour).Unix()})},
		{name: "without an expiry", headers: claiming(map[string]any{"exp": nil})},
		{name: "not valid yet", headers: claiming(map[string]any{"nbf": time.Now().Add(time.Hour).Unix()})},
		{name: "for another audience", headers: claiming(map[string]any{"aud": "https://mcp.test/mcp/"})},
		{name: "without an audience", headers: claiming(map[string]any{"aud": nil})},
		{name: "from another issuer", headers: claiming(map[string]any{"iss": issuer.url + "/"})},
		{name: "without an issuer", headers: claiming(map[string]any{"iss": nil})},
		{name: "without a subject", headers: claiming(map[string]any{"sub": nil})},
		{name: "with an empty subject", headers: claiming(map[string]any{"sub": ""})},
		{name: "with a number as subject", headers: claiming(map[string]any{"sub": 5})},
		{name: "signed with another key",
			headers: []string{bearer(signJWT(`{"alg":"ES256","kid":"ec"}`, issuer.claims(nil), stranger.keys["ec"]))}},
		{name: "with an unknown key ID",
			headers: []string{bearer(signJWT(`{"alg":"ES256","kid":"zz"}`, issuer.claims(nil), stranger.keys["ec"]))}},
		{name: "with its own key", headers: []string{bearer(signJWT(fmt.Sprintf(`{"alg":"ES256","jwk":{"kty":"EC",`+
			`"crv":"P-256","x":%q,"y":%q}}`, base64URL(point[1:33]), base64URL(point[33:])), issuer.claims(nil),
			stranger.keys["ec"]))}},
		{name: "with a key URL", headers: []string{bearer(signJWT(`{"alg":"ES256","kid":"ec","jku":"`+stranger.url+`/keys"}`,
			issuer.claims(nil), stranger.keys["ec"]))}},
		{name: "not signed", headers: []string{bearer(base64URL([]byte(`{"alg":"none"}`)) + "." + payload + ".")}},
		{name: "with no signature", headers: []string{bearer(header + "." + payload + ".")}},
		{name: "signed with the public key", headers: []string{bearer(hs256(ed))}},
		{name: "with claims changed after signing",
			headers: []string{bearer(header + "." + base64URL([]byte(issuer.claims(map[string]any{"sub": "admin"}))) + "." +
				signature)}},
		{name: "with another signature",
			headers: []string{bearer(header + "." + payload + "." + changeLetter(signature, 3))}},
		{name: "with a critical extension",
			headers: []string{bearer(signJWT(`{"alg":"ES256","kid":"ec","crit":["x"],"x":1}`, issuer.claims(nil),
				issuer.keys["ec"]))}},
		{name: "with a disallowed algorithm",
			headers: []string{bearer(signJWT(`{"alg":"PS256","kid":"rs"}`, issuer.claims(nil), issuer.keys["rs"]))}},
		{name: "with claims that are not an object",
			headers: []string{bearer(signJWT(`{"alg":"ES256","kid":"ec"}`, `[]`, issuer.keys["ec"]))}},
		{name: "not a JWT", headers: []string{bearer("a.b.c")}},
		{name: "in the query", query: "?access_token=" + good},
		{name: "as a password", headers: []string{"Authorization: Basic " +
			base64.StdEncoding.EncodeToString([]byte("robot:"+good))}},
		{name: "two of them", headers: []string{bearer("a.b.c"), bearer(good)}},
	})
	if got := post(t, rpcAt(url, "alpha"), rpc("tools/call", `{`+echoes+`}`), bearer(good)); got.StatusCode != 200 {
		t.Errorf("A76 a valid token: got %d %s, want 200", got.StatusCode, got.body)
	}
}

// An authority issues certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// newAuthority creates an authority with a self-signed certificate.
func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := new(authority)
	template := &x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign}
	issued := a.issue(t, template)
	a.certificate, a.key = issued.Leaf, issued.PrivateKey.(*ecdsa.PrivateKey)
	return a
}

// issue signs a certificate. It is valid today unless the template has other dates.
func (a *authority) issue(t *testing.T, template *x509.Certificate) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<60))
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = serial
	if template.NotAfter.IsZero() {
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	}
	parent, signer := a.certificate, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// clientCertificate issues a certificate for a client.
func (a *authority) clientCertificate(t *testing.T, name string) tls.Certificate {
	t.Helper()
	return a.issue(t, &x509.Certificate{Subject: pkix.Name{CommonName: name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
}

// writePEM writes a certificate and its key to files and returns their paths.
func writePEM(t *testing.T, c tls.Certificate) (certificate, key string) {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certificate, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{certificate: {Type: "CERTIFICATE", Bytes: c.Certificate[0]},
		key: {Type: "PRIVATE KEY", Bytes: der}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certificate, key
}

// A tlsSite is a site that may require client certificates.
type tlsSite struct {
	url     string
	address string
	server  *x509.CertPool
	own     tls.Certificate
}

// newTLSSite returns a site with a certificate from an authority, and the lines of its Caddyfile
// that make it accept client certificates.
func newTLSSite(t *testing.T, trusted *authority, mode string) (s *tlsSite, lines string) {
	t.Helper()
	s = &tlsSite{address: freeAddress(t), server: x509.NewCertPool()}
	s.own = trusted.issue(t, &x509.Certificate{Subject: pkix.Name{CommonName: "localhost"},
		DNSNames: []string{"localhost"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	certificate, key := writePEM(t, s.own)
	pool, _ := writePEM(t, tls.Certificate{Certificate: [][]byte{trusted.certificate.Raw}, PrivateKey: trusted.key})
	s.server.AddCert(trusted.certificate)
	_, port, _ := net.SplitHostPort(s.address)
	s.url = "https://localhost:" + port
	return s, block("tls "+certificate+" "+key, block("client_auth", "mode "+mode, "trust_pool file "+pool))
}

// clientWith returns a client that sends a certificate even if the server did not ask for one from
// its authority.
func (s *tlsSite) clientWith(t *testing.T, certificates ...tls.Certificate) *http.Client {
	t.Helper()
	config := &tls.Config{RootCAs: s.server, ServerName: "localhost"}
	if len(certificates) > 0 {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &certificates[0], nil
		}
	}
	var dialer net.Dialer
	transport := &http.Transport{DisableCompression: true, TLSClientConfig: config}
	transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return dialer.DialContext(ctx, network, s.address)
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience}
}

func TestAccessByCertificate(t *testing.T) {
	isolate(t)
	trusted, foreign := newAuthority(t, "trusted"), newAuthority(t, "foreign")
	namesake := newAuthority(t, "trusted") // same name, other key
	server := newLenientServer(t, "echo")
	modes := []string{"require_and_verify", "verify_if_given", "require", "request"}
	sites := map[string]*tlsSite{}
	var config strings.Builder
	config.WriteString(block("", "auto_https disable_redirects") + "\n")
	for _, mode := range modes {
		s, lines := newTLSSite(t, trusted, mode)
		sites[mode] = s
		config.WriteString(site(s.address, lines,
			gateway("separator __", "name "+mode, "auth mtls", "auth token s3-AbCdEf0123456789 carol",
				block("client alice", "deny alpha::other"), block(server.line("alpha"), serverPlaceholders...))))
	}
	plain := freeAddress(t)
	config.WriteString(site(plain, gateway("auth mtls", server.line("alpha"))))
	load(t, config.String())
	body := rpc("tools/call", `{`+echoes+`}`)

	for _, mode := range modes[:2] {
		s := sites[mode]
		t.Run("A78 a good certificate with "+mode, func(t *testing.T) {
			for _, name := range []string{"alice", "Bob Jones"} {
				c := s.clientWith(t, trusted.clientCertificate(t, name))
				for _, endpoint := range endpointsOf(s.url, "alpha") {
					for _, m := range everyMessage {
						if got := sendAllHeaders(t, c, m.method, endpoint.url, m.body); got.StatusCode == 401 {
							t.Errorf("%s at %s: %d %s", m.name, endpoint.name, got.StatusCode, got.body)
						}
					}
				}
				if got := sendAllHeaders(t, c, "POST", rpcAt(s.url, "alpha"), body); got.StatusCode != 200 {
					t.Fatalf("got %d %s, want 200", got.StatusCode, got.body)
				}
				all := server.Received()
				if last := all[len(all)-1].HTTP.Header; last.Get("X-Client") != name {
					t.Errorf("A78 got client %q, want %q", last.Get("X-Client"), name)
				}
			}
		})
		t.Run("A78 A57 the rules of the client apply with "+mode, func(t *testing.T) {
			other := rpc("tools/call", `{"name":"other","arguments":{}}`)
			expectRefused(t, sendAllHeaders(t, s.clientWith(t, trusted.clientCertificate(t, "alice")), "POST",
				rpcAt(s.url, "alpha"), other), 403)
			if got := sendAllHeaders(t, s.clientWith(t, trusted.clientCertificate(t, "bob")), "POST", rpcAt(s.url, "alpha"),
				other); got.StatusCode != 200 {
				t.Errorf("got %d %s, want 200", got.StatusCode, got.body)
			}
		})
	}
	t.Run("A75 A78 a token works without a certificate", func(t *testing.T) {
		if got := sendAllHeaders(t, sites["verify_if_given"].clientWith(t), "POST", rpcAt(sites["verify_if_given"].url,
			"alpha"), body, bearer("s3-AbCdEf0123456789")); got.StatusCode != 200 {
			t.Errorf("got %d %s, want 200", got.StatusCode, got.body)
		}
	})

	usage := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	alice := pkix.Name{CommonName: "alice"}
	self := new(authority).issue(t, &x509.Certificate{Subject: alice, ExtKeyUsage: usage})
	leaf := trusted.clientCertificate(t, "leaf")
	byLeaf := (&authority{leaf.Leaf, leaf.PrivateKey.(*ecdsa.PrivateKey)}).clientCertificate(t, "alice")
	byLeaf.Certificate = append(byLeaf.Certificate, leaf.Certificate[0])
	chained := foreign.clientCertificate(t, "alice")
	chained.Certificate = append(chained.Certificate, foreign.certificate.Raw)
	bad := map[string]tls.Certificate{
		"of another authority":             foreign.clientCertificate(t, "alice"),
		"of an authority of the same name": namesake.clientCertificate(t, "alice"),
		"self-signed":                      self,
		"signed by a client certificate":   byLeaf,
		"that has expired": trusted.issue(t, &x509.Certificate{Subject: alice, ExtKeyUsage: usage,
			NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(-24 * time.Hour)}),
		"that is not valid yet": trusted.issue(t, &x509.Certificate{Subject: alice, ExtKeyUsage: usage,
			NotBefore: time.Now().Add(24 * time.Hour), NotAfter: time.Now().Add(48 * time.Hour)}),
		"for servers only": trusted.issue(t, &x509.Certificate{Subject: alice,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}),
		"of the server": sites[modes[0]].own,
		"of another authority with its own chain": chained,
	}
	for name, certificate := range bad {
		for _, mode := range modes[:2] {
			t.Run("A78 a certificate "+name+" with "+mode, func(t *testing.T) {
				before := server.Count()
				c := sites[mode].clientWith(t, certificate)
				for _, endpoint := range endpointsOf(sites[mode].url, "alpha") {
					res, err := c.Do(request(t, t.Context(), "POST", endpoint.url, body)) // the TLS handshake fails
					if err == nil {
						res.Body.Close()
						t.Errorf("%s: %d", endpoint.name, res.StatusCode)
					}
				}
				if server.Count() != before {
					t.Error("the server was contacted")
				}
			})
		}
		for _, mode := range modes[2:] { // these accept any certificate
			t.Run("A78 a certificate "+name+" unverified, with "+mode, func(t *testing.T) {
				before := server.Count()
				c := sites[mode].clientWith(t, certificate)
				for _, endpoint := range endpointsOf(sites[mode].url, "alpha") {
					expectRefused(t, sendAllHeaders(t, c, "POST", endpoint.url, body), 401)
				}
				if server.Count() != before {
					t.Error("the server was contacted")
				}
			})
		}
	}
	for name, subject := range map[string]string{"no name": "", "a control character": "\x00operator",
		"a line break": "alice\nbob", "a name that is too long": strings.Repeat("x", 1000)} {
		t.Run("A78 a good certificate with "+name, func(t *testing.T) {
			before := server.Count()
			for _, mode := range modes[:2] {
				c := sites[mode].clientWith(t, trusted.clientCertificate(t, subject))
				for _, endpoint := range endpointsOf(sites[mode].url, "alpha") {
					expectRefused(t, sendAllHeaders(t, c, "POST", endpoint.url, body), 401)
				}
			}
			if server.Count() != before {
				t.Error("the server was contacted")
			}
		})
	}
	t.Run("A78 no certificate", func(t *testing.T) {
		before := server.Count()
		if res, err := sites["require_and_verify"].clientWith(t).Do(request(t, t.Context(), "POST",
			rpcAt(sites["require_and_verify"].url, "alpha"), body)); err == nil {
			res.Body.Close()
			t.Errorf("%d", res.StatusCode)
		}
		for _, mode := range []string{"verify_if_given", "request"} {
			for _, endpoint := range endpointsOf(sites[mode].url, "alpha") {
				expectRefused(t, sendAllHeaders(t, sites[mode].clientWith(t), "POST", endpoint.url, body), 401)
			}
		}
		if server.Count() != before {
			t.Error("the server was contacted")
		}
	})
	t.Run("A78 a certificate in a header", func(t *testing.T) {
		before := server.Count()
		good := trusted.clientCertificate(t, "alice")
		inHeader := base64URL(good.Certificate[0])
		for _, header := range []string{"X-Client-Cert: " + inHeader, "X-Forwarded-Client-Cert: Subject=\"CN=alice\";Cert=" +
			inHeader, "X-Ssl-Client-S-Dn: CN=alice", "Client-Cert: :" + base64.StdEncoding.EncodeToString(good.Certificate[0]) +
			":"} {
			for _, endpoint := range endpointsOf("http://"+plain, "alpha") {
				expectRefused(t, sendAllHeaders(t, client, "POST", endpoint.url, body, header), 401)
			}
		}
		if server.Count() != before {
			t.Error("the server was contacted")
		}
	})
}

// Users authenticated by Caddy become the client that matches them.
func TestAccessByUsersOfCaddy(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, "echo", "other")
	team := block("client team", "match alice", "deny alpha::other")
	body, other := rpc("tools/call", `{`+echoes+`}`), rpc("tools/call", `{"name":"other","arguments":{}}`)
	for name, provider := range map[string]string{"without a provider": "",
		"with a provider": "auth token s3-AbCdEf0123456789 carol"} {
		t.Run("A57 A75 "+name, func(t *testing.T) {
			url := serve(t, basicAuthAccounts, gateway("separator __", provider, team,
				block(server.line("alpha"), serverPlaceholders...)))
			for _, endpoint := range []string{rpcAt(url, "alpha"), mcpAt(url, "alpha")} {
				if got := post(t, endpoint, body, basicAuthHeader("alice")); got.StatusCode != 200 {
					t.Fatalf("got %d %s, want 200", got.StatusCode, got.body)
				}
				all := server.Received()
				if last := all[len(all)-1].HTTP.Header; last.Get("X-Client") != "team" || last.Get("Authorization") != "" {
					t.Errorf("the server received %v", last)
				}
				expectRefused(t, post(t, endpoint, other, basicAuthHeader("alice")), 403)
				got := post(t, endpoint, other, basicAuthHeader("bob")) // no client matches bob
				switch {
				case provider != "":
					expectRefused(t, got, 401)
				case got.StatusCode != 200:
					t.Errorf("%d %s", got.StatusCode, got.body)
				}
				before := server.Count()
				if got := post(t, endpoint, body); got.StatusCode != 401 {
					t.Errorf("got %d %s, want 401", got.StatusCode, got.body)
				}
				if server.Count() != before {
					t.Error("the server was contacted")
				}
			}
			c := newTestClient(t, joinedAt(url), false, `{}`, basicAuthHeader("alice"))
			if got := toolNames(t, c); !slices.Equal(got, []string{"alpha__echo"}) {
				t.Errorf("listed %v", got)
			}
		})
	}
}

// A session belongs to the client that began it.
func TestAccessToSessionsOfOthers(t *testing.T) {
	isolate(t)
	const one, two = "one-AbCdEf0123456789", "two-AbCdEf0123456789"
	server := newLenientServer(t, "echo")
	url := serve(t, gateway("separator __", block("auth token", "one "+one, "two "+two), child("kid"),
		server.line("alpha")))
	endpoint := joinedAt(url)
	c := newTestClient(t, endpoint, false, `{}`, bearer(one))
	before := server.Count()
	thief := &testClient{&mcpclient.Client{URL: endpoint, Headers: append(slices.Clone(c.Headers), bearer(two)),
		HTTP: streamClient}}
	for _, m := range []struct{ name, method, body string }{
		{"a request", "POST", rpc("tools/call", `{"name":"alpha__echo","arguments":{}}`)},
		{"a list", "POST", rpc("tools/list", `{}`)},
		{"a request that the gateway answers", "POST", rpc("ping", `{}`)},
		{"a notification", "POST", `{"jsonrpc":"2.0","method":"notifications/foo"}`},
		{"a client's response", "POST", `{"jsonrpc":"2.0","id":"q","result":{}}`},
		{"a stream", "GET", ""},
		{"the end of the session", "DELETE", ""},
	} {
		t.Run("A57 "+m.name, func(t *testing.T) {
			got := gatewayErrorOf(t, send(t, client, m.method, endpoint, m.body, append(thief.Headers, acceptBoth)...))
			if got.Status != 404 || got.Symbol != "unknown_session" {
				t.Errorf("%+v", got)
			}
		})
	}
	if server.Count() != before {
		t.Error("the server was contacted")
	}
	if got := c.use(t, "alpha", "echo", `{}`); got == "" || strings.HasPrefix(got, "not a text") {
		t.Errorf("the session of its client: %s", got)
	}
}

// Client credentials are not forwarded unless configured. Credentials of a server go to that server
// only.
func TestAccessForwardedCredentials(t *testing.T) {
	isolate(t)
	const token, key = "s3-AbCdEf0123456789", "upstream-key-0123456789"
	setenv(t, "UPSTREAM_KEY", key)
	tests := []struct {
		name    string
		gateway []string
		server  []string
		want    string
	}{
		{"A31 credentials are not forwarded by default", nil, nil, ""},
		{"A31 off forwards nothing", []string{"forward_auth_header off"}, nil, ""},
		{"the gateway forwards them", []string{"forward_auth_header on"}, nil, "Bearer " + token},
		{"one server gets them", nil, []string{"forward_auth_header on"}, "Bearer " + token},
		{"one server does not get them", []string{"forward_auth_header on"}, []string{"forward_auth_header off"}, ""},
		{"credentials of the server", nil, []string{`request_header Authorization "Bearer {env.UPSTREAM_KEY}"`},
			"Bearer " + key},
		{"credentials of the server replace those of the client", []string{"forward_auth_header on"},
			[]string{`request_header Authorization "Bearer {env.UPSTREAM_KEY}"`}, "Bearer " + key},
	}
	for _, tt := range tests {
		for _, provider := range []string{"auth token " + token, ""} {
			name := tt.name
			if provider == "" {
				name += ", without auth"
			}
			t.Run(name, func(t *testing.T) {
				server, other := newLenientServer(t, "echo"), newLenientServer(t, "echo")
				url := serve(t, gateway(slices.Concat([]string{"separator __", provider}, tt.gateway,
					[]string{block(server.line("alpha"), tt.server...), other.line("other")})...))
				for _, endpoint := range []string{rpcAt(url, "alpha"), mcpAt(url, "alpha")} {
					if got := post(t, endpoint, rpc("tools/call", `{`+echoes+`}`), bearer(token)); got.StatusCode != 200 {
						t.Fatalf("got %d %s, want 200", got.StatusCode, got.body)
					}
				}
				session := sessionHeader(t, mcpAt(url, "alpha"), bearer(token))
				for _, method := range []string{"GET", "DELETE"} {
					sendAllHeaders(t, client, method, mcpAt(url, "alpha"), "", session, bearer(token))
					if last := server.Received()[server.Count()-1]; last.HTTP.Method != method {
						t.Errorf("the server did not receive %s but %+v", method, last)
					}
				}
				for _, era := range clientEras {
					c := newTestClient(t, joinedAt(url), era.modern, `{}`, bearer(token))
					c.use(t, "alpha", "echo", `{}`)
					toolNames(t, c)
					c.post(t, `{"jsonrpc":"2.0","method":"notifications/foo"}`)
				}
				for _, r := range server.Received() {
					if got := r.HTTP.Header.Get("Authorization"); got != tt.want {
						t.Errorf("%s %.100s came with %q, want %q", r.Method, r.Body, got, tt.want)
					}
				}
				wantOther := ""
				if slices.Contains(tt.gateway, "forward_auth_header on") {
					wantOther = "Bearer " + token
				}
				for _, r := range other.Received() {
					if got := r.HTTP.Header.Get("Authorization"); got != wantOther {
						t.Errorf("other server: %s %.100s came with %q, want %q", r.Method, r.Body, got, wantOther)
					}
				}
			})
		}
	}
	t.Run("A31 credentials of the server without client credentials", func(t *testing.T) {
		server := newLenientServer(t, "echo")
		url := serve(t, gateway(block(server.line("alpha"), `request_header Authorization "Bearer {env.UPSTREAM_KEY}"`)))
		for _, endpoint := range []string{rpcAt(url, "alpha"), mcpAt(url, "alpha")} {
			post(t, endpoint, rpc("tools/call", `{`+echoes+`}`))
		}
		newTestClient(t, joinedAt(url), false, `{}`)
		for _, r := range server.Received() {
			if got := r.HTTP.Header.Get("Authorization"); got != "Bearer "+key {
				t.Errorf("%s %.100s came with %q", r.Method, r.Body, got)
			}
		}
	})
}

// The user who starts the command needs no credentials.
func TestAccessOfTheCommand(t *testing.T) {
	isolate(t)
	config := writeCaddyfile(t, site(freeAddress(t), gateway("separator __", "auth token {env.STDIO_TOKEN} carol",
		block("client carol", "deny alpha::slow beta::*"), block("client *", "deny alpha::echo"), child("alpha"),
		child("beta"))))
	lines := rpc("tools/list", `{}`) + "\n" + toolCall{"alpha__slow", `{}`}.request() + "\n"
	for _, tt := range []struct {
		name          string
		args          []string
		listed, hides []string
		denied        bool
	}{
		{"A30 without credentials no rules apply", nil, []string{"alpha__slow", "alpha__echo", "beta__echo"}, nil, false},
		{"A57 the rules of a client", []string{"--client", "carol"}, []string{"alpha__echo"},
			[]string{"alpha__slow", "beta__"}, true},
		{"A57 the rules of client *", []string{"--client", "unknown"}, []string{"alpha__slow", "beta__echo"},
			[]string{"alpha__echo"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cmd := caddy(t, append([]string{"mcp-stdio", "--config", config}, tt.args...)...)
			cmd.Env = append(cmd.Env, "STDIO_TOKEN=stdio-AbCdEf0123456789")
			cmd.Stdin = strings.NewReader(stdioHandshake + lines)
			var logged bytes.Buffer
			cmd.Stderr = &logged
			printed, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v\n%s", err, &logged)
			}
			var list, call string
			for _, m := range messageLines(t, printed) {
				switch {
				case strings.Contains(m, `"tools":[`):
					list = m
				case !strings.Contains(m, `"protocolVersion"`) && !strings.Contains(m, `"method"`):
					call = m
				}
			}
			for _, name := range tt.listed {
				if !strings.Contains(list, quote(name)) {
					t.Errorf("%s is missing in %.300s", name, list)
				}
			}
			for _, name := range tt.hides {
				if strings.Contains(list, `"`+name) {
					t.Errorf("%s is listed", name)
				}
			}
			if denied := strings.Contains(call, "acl_denied"); denied != tt.denied || !denied && !strings.Contains(call,
				"slept") {
				t.Errorf("the call got %s", call)
			}
		})
	}
}

// No other client can answer a server request.
func TestAccessToCallsOfOthers(t *testing.T) {
	isolate(t)
	const one, two = "one-AbCdEf0123456789", "two-AbCdEf0123456789"
	remote := &mcptest.Remote{Name: "far", Legacy: true}
	url := serve(t, gateway("separator __", block("auth token", "one "+one, "two "+two),
		block(child("kid"), "isolation session"), "server far http://"+upstream(t, remote)+"/mcp"))
	t.Cleanup(remote.Close)
	for server, tool := range map[string]string{"kid": "ask-roots", "far": "ask"} {
		t.Run("A57 a modern client of a legacy server: "+server, func(t *testing.T) {
			owner, thief := newTestClient(t, joinedAt(url), true, fullCapabilities, bearer(one)),
				newTestClient(t, joinedAt(url), true, fullCapabilities, bearer(two))
			params := callOf(server, tool, `{"method":"roots/list","params":{}}`)
			again := retryParams(params, owner.ask(t, "tools/call", params).answer.Input(t),
				func(string) string { return rootsAnswer })
			if got := thief.ask(t, "tools/call", again); got.answer.Error == nil {
				t.Errorf("another client got %s", got.answer.Raw)
			}
			if got := owner.ask(t, "tools/call", again).answer; !isAnswer(got.Text(), rootsAnswer) {
				t.Errorf("its own client got %s", got.Raw)
			}
		})
		t.Run("A57 a legacy client: "+server, func(t *testing.T) {
			owner, thief := newTestClient(t, joinedAt(url), false, fullCapabilities, bearer(one)),
				newTestClient(t, joinedAt(url), false, fullCapabilities, bearer(two))
			d := owner.begin(t, "tools/call", callOf(server, tool, `{"method":"roots/list","params":{}}`))
			serverRequest := d.next(t)
			forged := `{"jsonrpc":"2.0","id":` + string(serverRequest.ID) + `,"result":{"roots":[{"uri":"file:///forged"}]}}`
			post(t, thief.URL, forged, append(slices.Clone(thief.Headers), acceptBoth)...) // with any response
			owner.respond(t, serverRequest, rootsAnswer)
			if got := d.finish(t).answer; !isAnswer(got.Text(), rootsAnswer) {
				t.Errorf("its own client got %s", got.Raw)
			}
		})
	}
}

// A session at the endpoint of one server also belongs to its client.
func TestAccessToSessionsOfOneServer(t *testing.T) {
	isolate(t)
	const one, two = "one-AbCdEf0123456789", "two-AbCdEf0123456789"
	remote := newLenientServer(t, "slow")
	remote.Replies = map[string]string{"slow": `"result":{"content":[{"type":"text","text":"slept"}]}`}
	url := serve(t, gateway(block("auth token", "one "+one, "two "+two), child("shared"),
		block(child("own"), "isolation session"), remote.line("remote")))
	for _, server := range []string{"shared", "own", "remote"} {
		endpoint := mcpAt(url, server)
		session := sessionHeader(t, endpoint, bearer(one))
		before := remote.Count()
		for _, m := range []struct{ method, body string }{
			{"POST", rpc("tools/call", `{"name":"slow","arguments":{}}`)},
			{"POST", `{"jsonrpc":"2.0","method":"notifications/foo"}`}, {"GET", ""}, {"DELETE", ""},
		} {
			t.Run("A57 "+m.method+" of a session of "+server, func(t *testing.T) {
				got := sendAllHeaders(t, client, m.method, endpoint, m.body, session, bearer(two))
				if f := gatewayErrorOf(t, got); f.Status != 404 || f.Symbol != "unknown_session" {
					t.Errorf("%+v", f)
				}
			})
		}
		t.Run("A57 the client's own session of "+server, func(t *testing.T) {
			if remote.Count() != before {
				t.Error("the server was contacted")
			}
			if got := use(t, endpoint, "slow", `{"ms":0}`, session, bearer(one)); got != "slept" {
				t.Errorf("got %s", got)
			}
			if got := sendAllHeaders(t, client, "DELETE", endpoint, "", session, bearer(one)); got.StatusCode != 204 &&
				got.StatusCode != 200 {
				t.Errorf("%d %s", got.StatusCode, got.body)
			}
		})
	}
	t.Run("A57 the server gets its own session id", func(t *testing.T) {
		for _, r := range remote.Received() {
			if id := r.HTTP.Header.Get("Mcp-Session-Id"); id != "" && !strings.HasPrefix(id, "session-") {
				t.Errorf("%s %s came with the session %s", r.Method, r.Body, id)
			}
		}
	})
}

// A removed token stops working at once, also for its sessions and streams.
func TestAccessTakenAway(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, "echo")
	address := freeAddress(t)
	config := func(tokens ...string) string {
		return site(address, gateway("separator __", block("auth token", tokens...), server.line("alpha")))
	}
	const one, two = "one-AbCdEf0123456789", "two-AbCdEf0123456789"
	load(t, config("one "+one, "two "+two))
	url := "http://" + address
	c := newTestClient(t, joinedAt(url), false, fullCapabilities, connectionClose, bearer(one))
	other := newTestClient(t, joinedAt(url), false, fullCapabilities, connectionClose, bearer(two))
	stream := c.listen(t)
	await.Until(t, "the stream", func() bool {
		return slices.ContainsFunc(server.Received(), func(r *mcptest.Received) bool { return r.Method == "GET" })
	})
	load(t, config("two "+two))
	before := server.Count()
	t.Run("A30 a request of its session", func(t *testing.T) {
		expectRefused(t, sendAllHeaders(t, client, "POST", joinedAt(url), rpc("tools/call", callOf("alpha", "echo", `{}`)),
			c.Headers...), 401)
		expectRefused(t, sendAllHeaders(t, client, "GET", joinedAt(url), "", c.Headers...), 401)
		if server.Count() != before {
			t.Error("the server was contacted")
		}
	})
	t.Run("A30 its stream", func(t *testing.T) { stream.awaitEnd(t) })
	t.Run("A60 the other client goes on", func(t *testing.T) {
		expectAllowed(t, "a call", other.ask(t, "tools/call", callOf("alpha", "echo", `{}`)))
	})
	t.Run("A30 the token works again", func(t *testing.T) {
		load(t, config("one "+one, "two "+two))
		expectAllowed(t, "a call", c.ask(t, "tools/call", callOf("alpha", "echo", `{}`)))
	})
}

// Only a new request can show whether a certificate, a JWT or Caddy's own authentication still
// admits a client. So a reload ends the streams of such clients, and they must authenticate again.
func TestAccessIsProvedAgainAfterReloads(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, "echo")
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	copied := func(name, from string) string {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		return write(name, string(text))
	}
	trusted, other := newAuthority(t, "trusted"), newAuthority(t, "other")
	certificate, key := writePEM(t, trusted.issue(t, &x509.Certificate{Subject: pkix.Name{CommonName: "localhost"},
		DNSNames: []string{"localhost"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}))
	authority := func(a *authority) string {
		file, _ := writePEM(t, tls.Certificate{Certificate: [][]byte{a.certificate.Raw}, PrivateKey: a.key})
		return file
	}
	pool := copied("pool.pem", authority(trusted))
	issuer := newIssuer(t)
	keys := sendAllHeaders(t, client, "GET", issuer.url+"/keys", "").body
	jwks := write("keys.json", keys)

	plain, secure := freeAddress(t), &tlsSite{address: freeAddress(t), server: x509.NewCertPool()}
	secure.server.AddCert(trusted.certificate)
	_, port, _ := net.SplitHostPort(secure.address)
	secure.url = "https://localhost:" + port
	config := func(users, reload string) string {
		// Each gateway has its own path, so all of them fit into one site.
		gatewayAt := func(path string, lines ...string) string {
			return gateway(append(lines, "mcp_path "+path, "rpc_path /rpc"+path, "name "+path[1:], server.line("alpha"))...)
		}
		return block("", "auto_https disable_redirects") + "\n" +
			site(plain, "header X-Reload "+reload,
				block("handle /user*", users, gatewayAt("/user")),
				block("handle /jwt*", gatewayAt("/jwt", block("auth jwt", "issuer "+issuer.url, "audience https://mcp.test/mcp",
					"jwks "+jwks))),
				block("handle /token*", gatewayAt("/token", "auth token s3-AbCdEf0123456789 carol"))) +
			site(secure.address, block("tls "+certificate+" "+key, block("client_auth", "mode require_and_verify",
				"trust_pool file "+pool)), gatewayAt("/cert", "auth mtls"))
	}
	load(t, config(basicAuthAccounts, "0"))

	type opened struct {
		endpoint string
		client   *http.Client
		headers  []string
		ends     chan struct{}
	}
	open := func(t *testing.T, client *http.Client, endpoint, credentials string) *opened {
		t.Helper()
		o := &opened{endpoint: endpoint, client: client, ends: make(chan struct{})}
		if credentials != "" {
			o.headers = append(o.headers, credentials)
		}
		got := sendAllHeaders(t, client, "POST", endpoint, rpc("initialize", `{`+initParams+`}`), o.headers...)
		if got.StatusCode != 200 {
			t.Fatalf("%s: %d %s", endpoint, got.StatusCode, got.body)
		}
		o.headers = append(o.headers, "Mcp-Session-Id: "+got.Header.Get("Mcp-Session-Id"))
		req := request(t, t.Context(), "GET", endpoint, "", append(o.headers, "Accept: text/event-stream")...)
		patient := *client
		patient.Timeout = 0
		res, err := patient.Do(req)
		if err != nil || res.StatusCode != 200 {
			t.Fatalf("%s: %v %v", endpoint, res, err)
		}
		go func() {
			defer close(o.ends)
			defer res.Body.Close()
			_, _ = io.Copy(io.Discard, res.Body)
		}()
		return o
	}
	jwt := bearer(issuer.token("ec", issuer.claims(nil)))
	all := func(t *testing.T) map[string][]*opened {
		cert := secure.clientWith(t, trusted.clientCertificate(t, "alice"))
		streams := map[string][]*opened{}
		for _, endpoint := range []string{"", "/alpha"} {
			streams["a user of Caddy"] = append(streams["a user of Caddy"], open(t, client, "http://"+plain+"/user"+endpoint,
				basicAuthHeader("bob")))
			streams["a JWT"] = append(streams["a JWT"], open(t, client, "http://"+plain+"/jwt"+endpoint, jwt))
			streams["a certificate"] = append(streams["a certificate"], open(t, cert, secure.url+"/cert"+endpoint, ""))
			streams["a token"] = append(streams["a token"], open(t, client, "http://"+plain+"/token"+endpoint,
				bearer("s3-AbCdEf0123456789")))
		}
		return streams
	}
	streams := all(t)
	// The user bob and the key of the JWT are gone, and another authority is trusted.
	_, without, _ := strings.Cut(keys, `"kid":"ed"`)
	write("keys.json", `{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"ed"`+without)
	copied("pool.pem", authority(other))
	load(t, config("basic_auth {\n\talice $2a$04$Mwcw1rR64pgwbiW5Tnqmaur6pR8BJ4BfcsKZCWFO7NWCKWFxsVLTq\n}", "1"))
	for name, opened := range streams {
		t.Run("A30 "+name, func(t *testing.T) {
			for _, o := range opened {
				if name == "a token" { // the token is unchanged
					select {
					case <-o.ends:
						t.Errorf("%s: the stream has ended", o.endpoint)
					default:
					}
					continue
				}
				select {
				case <-o.ends:
				case <-time.After(patience):
					t.Errorf("%s: the stream goes on", o.endpoint)
				}
				if name != "a certificate" { // a certificate gets no connection
					if got := sendAllHeaders(t, o.client, "POST", o.endpoint, rpc("tools/list", `{}`),
						o.headers...); got.StatusCode != 401 {
						t.Errorf("%s: got %d %s, want 401", o.endpoint, got.StatusCode, got.body)
					}
				}
			}
		})
	}
}
