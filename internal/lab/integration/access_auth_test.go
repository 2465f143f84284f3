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

// A wayIn is a door of a gateway, by which a server is reached.
type wayIn struct{ name, at string }

func waysIn(url, server string) []wayIn {
	return []wayIn{{"/mcp", joinedAt(url)}, {"/mcp/{server}", mcpAt(url, server)}, {"/rpc", rpcAt(url, server)}}
}

func bearer(token string) string { return "Authorization: Bearer " + token }

// present sends a request with all of these headers, also if two have the same name.
func present(t *testing.T, client *http.Client, method, at, body string, headers ...string) answer {
	t.Helper()
	req := request(t, t.Context(), method, at, body, acceptBoth)
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
		return answer{res, ""}
	}
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{res, string(text)}
}

// sessionAt begins a session with these credentials, and returns the header that names it.
func sessionAt(t *testing.T, at, credentials string) string {
	t.Helper()
	got := post(t, at, rpc("initialize", `{`+initParams+`}`), acceptBoth, credentials)
	if got.StatusCode != 200 || got.Header.Get("Mcp-Session-Id") == "" {
		t.Fatalf("%d %v %s", got.StatusCode, got.Header, got.body)
	}
	return "Mcp-Session-Id: " + got.Header.Get("Mcp-Session-Id")
}

// refusals are what the gateway says to those whom it refuses.
var refusals = map[int]struct{ symbol, message string }{
	401: {"unauthorized", "Unauthorized"},
	403: {"acl_denied", "Access denied"},
	429: {"rate_limited", "Rate limit exceeded"},
}

// isRefused wants a request to be refused with this status.
func isRefused(t *testing.T, got answer, status int) {
	t.Helper()
	f, want := failureOf(t, got), refusals[status]
	if f.Status != status || f.Symbol != want.symbol || !strings.Contains(got.body, `"message":`+quote(want.message)) {
		t.Errorf("%d %s\nwant %d %s", got.StatusCode, got.body, status, want.symbol)
	}
}

const (
	echoes     = `"name":"echo","arguments":{"text":"x"}`
	initParams = `"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}`
)

// Everything that a client can send (A30).
var everyMessage = []struct{ name, method, body string }{
	{"a request", "POST", rpc("tools/call", `{`+echoes+`}`)},
	{"a handshake", "POST", rpc("initialize", `{`+initParams+`}`)},
	{"a request without params", "POST", `{"jsonrpc":"2.0","id":1,"method":"ping"}`},
	{"a notification", "POST", `{"jsonrpc":"2.0","method":"notifications/foo"}`},
	{"a client's reply", "POST", `{"jsonrpc":"2.0","id":"q","result":{}}`},
	{"a client's error", "POST", `{"jsonrpc":"2.0","id":"q","error":{"code":-1,"message":"no"}}`},
	{"what is no JSON", "POST", `{`},
	{"a batch", "POST", `[` + rpc("tools/call", `{`+echoes+`}`) + `]`},
	{"a stream", "GET", ""},
	{"the end of a session", "DELETE", ""},
}

func TestAccessByToken(t *testing.T) {
	isolate(t)
	const token, other = "s3-AbCdEf0123456789", "t4-GhIjKl0123456789"
	setenv(t, "ACCESS_TOKEN", token)
	server := newLenientServer(t, "echo")
	url := serve(t, gateway("separator __", "auth token {env.ACCESS_TOKEN}", block("client second", "token "+other), server.line("alpha")), `respond "next handler"`) // one by placeholder, one written out

	for _, way := range waysIn(url, "alpha") {
		for _, m := range everyMessage {
			t.Run("A30 "+m.name+" without a token at "+way.name, func(t *testing.T) {
				before := server.Count()
				got := present(t, client, m.method, way.at, m.body)
				isRefused(t, got, 401)
				if id := failureOf(t, got).ID; strings.Contains(m.body, `"id":1`) && m.body[0] == '{' && id != "1" {
					t.Errorf("the id has become %s", id)
				}
				isRefused(t, present(t, client, m.method, way.at, m.body, bearer("wrong")), 401)
				if server.Count() != before {
					t.Error("the server was contacted")
				}
			})
			t.Run("A30 "+m.name+" with a token at "+way.name, func(t *testing.T) {
				for _, good := range []string{token, other} {
					if got := present(t, client, m.method, way.at, m.body, bearer(good)); got.StatusCode == 401 || got.StatusCode == 403 {
						t.Errorf("%d %s", got.StatusCode, got.body)
					}
				}
			})
		}
		t.Run("A30 none, wrong, params.proxy.authToken, Bearer at "+way.name, func(t *testing.T) {
			session := ""
			ask := func(method, params, proxy string, headers ...string) answer {
				t.Helper()
				got := post(t, way.at, rpc(method, `{`+params+proxy+`}`), append(headers, session, acceptBoth)...)
				if method == "initialize" && got.StatusCode == 200 {
					session = "Mcp-Session-Id: " + got.Header.Get("Mcp-Session-Id")
				}
				return got
			}
			inProxy := `,"proxy":{"authToken":"` + token + `"}`
			for _, m := range []struct{ method, params, name string }{{"initialize", initParams, "protocolVersion"}, {"tools/call", "", "content"}} {
				if m.params == "" {
					m.params = echoes
					if way.name == "/mcp" {
						m.params = strings.Replace(echoes, `"echo"`, `"alpha__echo"`, 1)
					}
				}
				isRefused(t, ask(m.method, m.params, ""), 401)
				isRefused(t, ask(m.method, m.params, `,"proxy":{"authToken":"wrong"}`), 401)
				for _, got := range []answer{ask(m.method, m.params, inProxy), ask(m.method, m.params, "", bearer(token)), ask(m.method, m.params, inProxy, bearer(token))} {
					if got.StatusCode != 200 || !strings.Contains(got.body, m.name) {
						t.Errorf("%s: %d %s", m.method, got.StatusCode, got.body)
					}
				}
			}
		})
	}
	t.Run("A30 strangers are not told which servers there are", func(t *testing.T) {
		for _, at := range []string{mcpAt(url, "nope"), rpcAt(url, "nope")} {
			isRefused(t, post(t, at, rpc("ping", `{}`)), 401)
			if got := failureOf(t, post(t, at, rpc("ping", `{}`), bearer(token))); got.Symbol != "unknown_server" {
				t.Errorf("%+v", got)
			}
		}
	})
	t.Run("A30 the modern era", func(t *testing.T) {
		for _, method := range []string{"server/discover", "tools/list", "subscriptions/listen"} {
			body, headers := (&speaker{&mcpclient.Client{Modern: true, Capabilities: `{}`, HTTP: lasting}}).Message("1", method, `{}`)
			isRefused(t, post(t, joinedAt(url), body, headers...), 401)
			isRefused(t, post(t, joinedAt(url), body, append(headers, bearer("wrong"))...), 401)
		}
		c := newSpeaker(t, joinedAt(url), true, `{}`, bearer(token))
		if got := c.use(t, "alpha", "echo", `{"text":"x"}`); !strings.Contains(got, `"text":"x"`) {
			t.Errorf("got %s, want %s in it", got, `"text":"x"`)
		}
	})
	t.Run("A30 what is not the gateway's is not guarded", func(t *testing.T) {
		for _, path := range []string{"/elsewhere", "/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-authorization-server"} {
			if got := send(t, client, "GET", url+path, ""); got.body != "next handler" {
				t.Errorf("%s: %d %s", path, got.StatusCode, got.body)
			}
		}
	})
}

// forged are credentials that are good for nothing.
type forged struct {
	name    string
	headers []string
	params  string // members of params besides the others
	query   string
}

// everyWay has credentials refused at every door, with the server untouched.
func everyWay(t *testing.T, client *http.Client, url, requirement string, server *remoteServer, all []forged) {
	t.Helper()
	for _, f := range all {
		t.Run(requirement+" "+f.name, func(t *testing.T) {
			before := server.Count()
			for _, way := range waysIn(url, "alpha") {
				for _, m := range []struct{ method, params string }{{"tools/call", echoes}, {"initialize", initParams}} {
					isRefused(t, present(t, client, "POST", way.at+f.query, rpc(m.method, `{`+m.params+f.params+`}`), f.headers...), 401)
				}
				isRefused(t, present(t, client, "POST", way.at+f.query, `{"jsonrpc":"2.0","method":"notifications/foo","params":{"a":1`+f.params+`}}`, f.headers...), 401)
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
	url := serve(t, gateway("auth token {env.ACCESS_TOKEN} alice", "auth token b0b-AbCdEf0123456789 bob", server.line("alpha")))
	sum := sha256.Sum256([]byte(token))
	digest := hex.EncodeToString(sum[:])
	proxy := func(members string) string { return `,"proxy":{` + members + `}` }
	everyWay(t, client, url, "A30", server, []forged{
		{name: "nothing"},
		{name: "another token", headers: []string{bearer("wrong")}},
		{name: "a longer token", headers: []string{bearer(token + "x")}},
		{name: "a shorter token", headers: []string{bearer(token[:len(token)-1])}},
		{name: "the end of the token", headers: []string{bearer(token[1:])}},
		{name: "the token in other letters", headers: []string{bearer(strings.ToUpper(token))}},
		{name: "an empty token", headers: []string{"Authorization: Bearer "}},
		{name: "a scheme alone", headers: []string{"Authorization: Bearer"}},
		{name: "the token without a scheme", headers: []string{"Authorization: " + token}},
		{name: "another scheme", headers: []string{"Authorization: Token " + token}},
		{name: "the token as a user", headers: []string{"Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(token+":"))}},
		{name: "the token as a password", headers: []string{"Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("alice:"+token))}},
		{name: "the SHA-256 of the token", headers: []string{bearer(digest)}},
		{name: "the SHA-256 of the token as the configuration has it", headers: []string{bearer("sha256:" + digest)}},
		{name: "the SHA-256 of a token that is written out", headers: []string{bearer(fmt.Sprintf("sha256:%x", sha256.Sum256([]byte("b0b-AbCdEf0123456789"))))}},
		{name: "the token in base64", headers: []string{bearer(base64.StdEncoding.EncodeToString([]byte(token)))}},
		{name: "the token quoted", headers: []string{bearer(`"` + token + `"`)}},
		{name: "the placeholder", headers: []string{bearer("{env.ACCESS_TOKEN}")}},
		{name: "the name of the client", headers: []string{bearer("alice")}},
		{name: "two tokens in a list", headers: []string{bearer(token + ", Bearer wrong")}},
		{name: "two headers, the first one wrong", headers: []string{bearer("wrong"), bearer(token)}},
		{name: "two headers, the second one wrong", headers: []string{bearer(token), bearer("wrong")}},
		{name: "another header", headers: []string{"X-Auth-Token: " + token, "X-Api-Key: " + token, "Cookie: token=" + token}},
		{name: "the header for proxies", headers: []string{"Proxy-Authorization: Bearer " + token}},
		{name: "the query", query: "?authToken=" + token + "&access_token=" + token + "&token=" + token},
		{name: "another authToken", params: proxy(`"authToken":"wrong"`)},
		{name: "an empty authToken", params: proxy(`"authToken":""`)},
		{name: "an authToken that is null", params: proxy(`"authToken":null`)},
		{name: "an authToken that is true", params: proxy(`"authToken":true`)},
		{name: "an authToken that is a list", params: proxy(`"authToken":["` + token + `"]`)},
		{name: "an authToken that is an object", params: proxy(`"authToken":{"authToken":"` + token + `"}`)},
		{name: "an authtoken", params: proxy(`"authtoken":"` + token + `","AuthToken":"` + token + `","auth_token":"` + token + `"`)},
		{name: "an authToken in params", params: `,"authToken":"` + token + `"`},
		{name: "an authToken in _meta", params: `,"_meta":{"proxy":{"authToken":"` + token + `"}}`},
		{name: "an authToken in arguments", params: `,"x":{"proxy":{"authToken":"` + token + `"}}`},
		{name: "a proxy that is a list", params: `,"proxy":[{"authToken":"` + token + `"}]`},
		{name: "a proxy that is JSON in a text", params: `,"proxy":` + quote(`{"authToken":"`+token+`"}`)},
		{name: "an authToken with a blank", params: proxy(`"authToken":" ` + token + `"`)},
		{name: "a wrong header beside the right authToken", headers: []string{bearer("wrong")}, params: proxy(`"authToken":"` + token + `"`)},
		{name: "a wrong authToken beside the right header", headers: []string{bearer(token)}, params: proxy(`"authToken":"wrong"`)},
		{name: "the tokens of two clients", headers: []string{bearer("b0b-AbCdEf0123456789")}, params: proxy(`"authToken":"` + token + `"`)},
	})
	t.Run("A30 of two authTokens none counts", func(t *testing.T) {
		before := server.Count()
		for _, params := range []string{
			`,"proxy":{"authToken":"wrong","authToken":"` + token + `"}`, `,"proxy":{"authToken":"` + token + `","authToken":"wrong"}`,
			`,"proxy":{"authToken":"wrong"},"proxy":{"authToken":"` + token + `"}`, `,"proxy":{"authToken":"` + token + `"},"proxy":{}`,
		} {
			for _, way := range waysIn(url, "alpha") {
				if got := failureOf(t, post(t, way.at, rpc("tools/call", `{`+echoes+params+`}`))); got.Status != 400 && got.Status != 401 {
					t.Errorf("%s: %+v", params, got)
				}
			}
		}
		if server.Count() != before {
			t.Error("the server was contacted")
		}
	})
}

// The token is for the gateway alone (A31).
func TestAccessTokenStaysHere(t *testing.T) {
	isolate(t)
	const token = "s3-AbCdEf0123456789"
	setenv(t, "ACCESS_TOKEN", token)
	server := newLenientServer(t, "echo")
	url := serve(t, gateway("separator __", "auth token {env.ACCESS_TOKEN}", server.line("alpha")))
	sees := func(t *testing.T, method, want string) {
		t.Helper()
		got := server.params(method)
		if len(got) == 0 {
			t.Fatalf("the server has not seen %s", method)
		}
		if last := got[len(got)-1]; last != want {
			t.Errorf("the server has seen %s\nwant %s", last, want)
		}
		for _, r := range server.Received() {
			if all := fmt.Sprint(r); strings.Contains(all, token) || r.HTTP.Header.Get("Authorization") != "" {
				t.Errorf("the server has seen %s", all)
			}
		}
	}
	direct := `"name":"echo","arguments":{"n":1.0, "proxy":{"authToken":"mine"}}`
	for _, way := range waysIn(url, "alpha")[1:] {
		for _, tt := range []struct{ name, params, want string }{
			{"alone", `{` + direct + `,"proxy":{"authToken":"` + token + `"}}`, `{` + direct + `}`},
			{"alone and first", `{"proxy":{"authToken":"` + token + `"},` + direct + `}`, `{` + direct + `}`},
			{"first of several", `{` + direct + `,"proxy":{"authToken":"` + token + `","server":"x","n":1.0}}`, `{` + direct + `,"proxy":{"server":"x","n":1.0}}`},
			{"last of several", `{"proxy":{"server":"x","n":1.0,"authToken":"` + token + `"},` + direct + `}`, `{"proxy":{"server":"x","n":1.0},` + direct + `}`},
			{"amid several", `{` + direct + `,"proxy":{"server":"x","authToken":"` + token + `","n":1.0}}`, `{` + direct + `,"proxy":{"server":"x","n":1.0}}`},
			{"spelled otherwise", `{` + direct + `,"pro\u0078y":{"auth\u0054oken":"` + strings.Replace(token, "A", `\u0041`, 1) + `"}}`, `{` + direct + `}`},
		} {
			t.Run("A31 a token "+tt.name+" at "+way.name, func(t *testing.T) {
				if got := post(t, way.at, rpc("tools/call", tt.params)); got.StatusCode != 200 {
					t.Fatalf("got %d %s, want 200", got.StatusCode, got.body)
				}
				sees(t, "tools/call", tt.want)
			})
		}
		t.Run("A31 a notification at "+way.name, func(t *testing.T) {
			got := post(t, way.at, `{"jsonrpc":"2.0","method":"notifications/foo","params":{"a":1.0,"proxy":{"authToken":"`+token+`"}}}`)
			if got.StatusCode != 202 {
				t.Fatalf("%d %s", got.StatusCode, got.body)
			}
			sees(t, "notifications/foo", `{"a":1.0}`)
		})
		t.Run("A31 params of nothing else at "+way.name, func(t *testing.T) {
			if got := post(t, way.at, rpc("ping", `{"proxy":{"authToken":"`+token+`"}}`)); got.StatusCode != 200 {
				t.Fatalf("got %d %s, want 200", got.StatusCode, got.body)
			}
			sees(t, "ping", `{}`)
		})
		t.Run("A31 a header at "+way.name, func(t *testing.T) {
			if got := post(t, way.at, rpc("tools/call", `{`+direct+`,"proxy":{"server":"x"}}`), bearer(token)); got.StatusCode != 200 {
				t.Fatalf("got %d %s, want 200", got.StatusCode, got.body)
			}
			sees(t, "tools/call", `{`+direct+`,"proxy":{"server":"x"}}`)
		})
	}
	t.Run("A31 at /mcp there is no proxy left", func(t *testing.T) {
		at := joinedAt(url)
		got := post(t, at, rpc("initialize", `{`+initParams+`,"proxy":{"authToken":"`+token+`","x":1}}`), acceptBoth)
		session := "Mcp-Session-Id: " + got.Header.Get("Mcp-Session-Id")
		if got.StatusCode != 200 {
			t.Fatalf("%d %s", got.StatusCode, got.body)
		}
		for _, m := range server.params("initialize") {
			if strings.Contains(m, `"proxy"`) {
				t.Errorf("A31 initialize: the server has seen %s", m)
			}
		}
		joined := strings.Replace(direct, `"echo"`, `"alpha__echo"`, 1)
		for _, proxy := range []string{`"authToken":"` + token + `"`, `"server":"x","authToken":"` + token + `","n":1.0`} {
			if got := post(t, at, rpc("tools/call", `{`+joined+`,"proxy":{`+proxy+`}}`), session, acceptBoth); got.StatusCode != 200 {
				t.Fatalf("got %d %s, want 200", got.StatusCode, got.body)
			}
			sees(t, "tools/call", `{`+direct+`}`)
			if got := post(t, at, rpc("prompts/get", `{"name":"alpha__greet","proxy":{`+proxy+`}}`), session, acceptBoth); got.StatusCode != 200 {
				t.Fatalf("got %d %s, want 200", got.StatusCode, got.body)
			}
			sees(t, "prompts/get", `{"name":"greet"}`)
			before := len(server.params("notifications/foo"))
			if got := post(t, at, `{"jsonrpc":"2.0","method":"notifications/foo","params":{"a":1.0,"proxy":{`+proxy+`}}}`, session, acceptBoth); got.StatusCode != 202 {
				t.Fatalf("got %d %s, want 202", got.StatusCode, got.body)
			}
			await.Until(t, "the notification", func() bool { return len(server.params("notifications/foo")) > before })
			sees(t, "notifications/foo", `{"a":1.0}`)
		}
		post(t, at, rpc("tools/call", `{`+joined+`}`), session, acceptBoth, bearer(token))
		sees(t, "tools/call", `{`+direct+`}`)
	})
}

// A signature is what a client signs a request with, and what it signs.
type signature struct {
	client, secret     string
	at                 time.Time
	nonce              string
	method, path, body string
}

// header is the Authorization header of the request.
func (s signature) header() string {
	sum := sha256.Sum256([]byte(s.body))
	timestamp := strconv.FormatInt(s.at.Unix(), 10)
	mac := hmac.New(sha256.New, []byte(s.secret))
	_, _ = io.WriteString(mac, strings.Join([]string{"MCP-HMAC-SHA256", timestamp, s.nonce, s.method, s.path, hex.EncodeToString(sum[:])}, "\n"))
	return "Authorization: MCP-HMAC-SHA256 client=" + s.client + ", timestamp=" + timestamp + ", nonce=" + s.nonce + ", signature=" + hex.EncodeToString(mac.Sum(nil))
}

// signedBy is the header of a request that is sent now.
func signedBy(client, secret, method, path, body string) string {
	return signature{client, secret, time.Now(), rand.Text(), method, path, body}.header()
}

func pathOf(t *testing.T, at string) string {
	t.Helper()
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	return u.RequestURI()
}

const (
	aliceSecret = "alice-hmac-0123456789abcdef"
	bobSecret   = "bob-hmac-0123456789abcdef"
)

// signing is the provider of those who sign.
var signing = block("auth hmac", "client alice {env.ALICE_SECRET}", "client bob {env.BOB_SECRET}", "window 5m")

func TestAccessBySignature(t *testing.T) {
	isolate(t)
	setenv(t, "ALICE_SECRET", aliceSecret)
	setenv(t, "BOB_SECRET", bobSecret)
	server := newLenientServer(t, "echo")
	address := freeAddress(t)
	config := site(address, gateway("separator __", signing, block(server.line("alpha"), told...)))
	load(t, config)
	url := "http://" + address
	body := rpc("tools/call", `{`+echoes+`}`)

	for _, way := range waysIn(url, "alpha") {
		path := pathOf(t, way.at)
		t.Run("A77 everything that is signed at "+way.name, func(t *testing.T) {
			for _, m := range everyMessage {
				if got := present(t, client, m.method, way.at, m.body, signedBy("alice", aliceSecret, m.method, path, m.body)); got.StatusCode == 401 {
					t.Errorf("%s: %d %s", m.name, got.StatusCode, got.body)
				}
				isRefused(t, present(t, client, m.method, way.at, m.body), 401)
			}
		})
		t.Run("A77 a request that is sent again at "+way.name, func(t *testing.T) {
			header := signedBy("alice", aliceSecret, "POST", path, body)
			if got := post(t, way.at, body, header); got.StatusCode == 401 {
				t.Fatalf("%d %s", got.StatusCode, got.body)
			}
			before := server.Count()
			for range 3 {
				isRefused(t, post(t, way.at, body, header), 401)
			}
			if server.Count() != before {
				t.Error("the server was contacted")
			}
		})
	}
	at := rpcAt(url, "alpha")
	t.Run("A77 the client is who signs", func(t *testing.T) {
		for who, secret := range map[string]string{"alice": aliceSecret, "bob": bobSecret} {
			header := signedBy(who, secret, "POST", pathOf(t, at), body)
			if got := post(t, at, body, header); got.StatusCode != 200 {
				t.Fatalf("got %d %s, want 200", got.StatusCode, got.body)
			}
			all := server.Received()
			if last := all[len(all)-1].HTTP.Header; last.Get("X-Client") != who || last.Get("Authorization") != "" {
				t.Errorf("the server saw %v", last)
			}
		}
	})
	t.Run("A77 a request that is sent again after a reload", func(t *testing.T) {
		header := signedBy("alice", aliceSecret, "POST", pathOf(t, at), body)
		if got := post(t, at, body, header); got.StatusCode != 200 {
			t.Fatalf("got %d %s, want 200", got.StatusCode, got.body)
		}
		before := server.Count()
		load(t, config+site(freeAddress(t), "respond x"))
		isRefused(t, post(t, at, body, header), 401)
		load(t, site(address, gateway("separator __", "name other", "mask off", signing, block(server.line("alpha"), told...))))
		isRefused(t, post(t, at, body, header), 401)
		if server.Count() != before {
			t.Error("the server was contacted")
		}
		if got := post(t, at, body, signedBy("alice", aliceSecret, "POST", pathOf(t, at), body)); got.StatusCode != 200 {
			t.Errorf("got %d %s, want 200", got.StatusCode, got.body)
		}
	})
}

func TestAccessByWrongSignatures(t *testing.T) {
	isolate(t)
	setenv(t, "ALICE_SECRET", aliceSecret)
	setenv(t, "BOB_SECRET", bobSecret)
	server := newLenientServer(t, "echo")
	url := serve(t, gateway(signing, server.line("alpha")))
	body := rpc("tools/call", `{`+echoes+`}`)
	tests := []struct {
		name   string
		signed func(*signature)           // what is wrong with what is signed
		sent   func(header string) string // and with what is sent
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
		{"a time before the window", func(s *signature) { s.at = s.at.Add(-6 * time.Minute) }, nil},
		{"a time after the window", func(s *signature) { s.at = s.at.Add(6 * time.Minute) }, nil},
		{"a time in milliseconds", func(s *signature) { s.at = time.Unix(s.at.UnixMilli(), 0) }, nil},
		{"no nonce", func(s *signature) { s.nonce = "" }, nil},
		{"a short nonce", func(s *signature) { s.nonce = "abc" }, nil},
		{"another time than the signed one", func(s *signature) { s.at = s.at.Add(-10 * time.Second) }, func(header string) string {
			return regexp.MustCompile(`timestamp=\d+`).ReplaceAllString(header, fmt.Sprint("timestamp=", time.Now().Unix()))
		}},
		{"another nonce than the signed one", nil, func(header string) string {
			return regexp.MustCompile(`nonce=\w+`).ReplaceAllString(header, "nonce="+rand.Text())
		}},
		{"half of the signature", nil, func(header string) string { return header[:len(header)-32] }},
		{"no signature", nil, func(header string) string { return header[:strings.Index(header, ", signature=")] }},
		{"another scheme", nil, func(header string) string { return strings.Replace(header, "MCP-HMAC-SHA256 ", "Bearer ", 1) }},
		{"the secret itself", nil, func(string) string { return bearer(aliceSecret) }},
		{"two clients", func(s *signature) { s.secret = bobSecret }, func(header string) string { return header + ", client=bob" }},
	}
	for _, tt := range tests {
		t.Run("A77 "+tt.name, func(t *testing.T) {
			before := server.Count()
			for _, way := range waysIn(url, "alpha") {
				s := signature{"alice", aliceSecret, time.Now(), rand.Text(), "POST", pathOf(t, way.at), body}
				if tt.signed != nil {
					tt.signed(&s)
				}
				header := s.header()
				if tt.sent != nil {
					header = tt.sent(header)
				}
				isRefused(t, post(t, way.at, body, header), 401)
			}
			if server.Count() != before {
				t.Error("the server was contacted")
			}
		})
	}
}

// Several providers stand side by side (A75).
func TestAccessByTwoProviders(t *testing.T) {
	isolate(t)
	setenv(t, "ALICE_SECRET", aliceSecret)
	setenv(t, "BOB_SECRET", bobSecret)
	const token = "s3-AbCdEf0123456789"
	server := newLenientServer(t, "echo")
	url := serve(t, gateway("separator __", "auth token "+token+" carol", signing, block(server.line("alpha"), told...)))
	body := rpc("tools/call", `{`+echoes+`}`)
	for _, way := range waysIn(url, "alpha") {
		path := pathOf(t, way.at)
		t.Run("A75 either is accepted at "+way.name, func(t *testing.T) {
			for who, header := range map[string]string{"carol": bearer(token), "alice": signedBy("alice", aliceSecret, "POST", path, body)} {
				if got := post(t, way.at, body, header); got.StatusCode == 401 {
					t.Errorf("%s: %d %s", who, got.StatusCode, got.body)
				}
				all := server.Received()
				if way.name == "/mcp" {
					continue // it takes a session to get further
				}
				if len(all) == 0 || all[len(all)-1].HTTP.Header.Get("X-Client") != who {
					t.Errorf("%s is not who the server was told", who)
				}
			}
		})
		t.Run("A75 neither is refused at "+way.name, func(t *testing.T) {
			before := server.Count()
			for _, header := range []string{"", bearer("wrong"), signedBy("alice", bobSecret, "POST", path, body), signedBy("carol", token, "POST", path, body), bearer(aliceSecret)} {
				isRefused(t, post(t, way.at, body, header), 401)
			}
			if server.Count() != before {
				t.Error("the server was contacted")
			}
		})
	}
}

// An issuer is an authorization server, as far as its keys go.
type issuer struct {
	url  string
	keys map[string]crypto.Signer // by their id
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
	keys := fmt.Sprintf(`{"keys":[{"kty":"EC","crv":"P-256","kid":"ec","use":"sig","x":%q,"y":%q},{"kty":"OKP","crv":"Ed25519","kid":"ed","x":%q},{"kty":"RSA","kid":"rs","n":%q,"e":"AQAB"}]}`,
		encoded(point[1:33]), encoded(point[33:]), encoded(ed.Public().(ed25519.PublicKey)), encoded(rs.N.Bytes()))
	i.url = "http://" + upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, keys)
	}))
	return i
}

func encoded(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// lines are the provider that trusts it.
func (i *issuer) lines(more ...string) string {
	return block("auth jwt", append([]string{"issuer " + i.url, "audience https://mcp.test/mcp", "jwks " + i.url + "/keys"}, more...)...)
}

// claims are those of a good token, with others in their place; nil for none.
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

// token signs claims with one of the keys.
func (i *issuer) token(key, claims string) string {
	alg := map[string]string{"ec": "ES256", "ed": "EdDSA", "rs": "RS256"}[key]
	return signJWT(`{"alg":"`+alg+`","typ":"at+jwt","kid":"`+key+`"}`, claims, i.keys[key])
}

func signJWT(header, claims string, key crypto.Signer) string {
	signed := encoded([]byte(header)) + "." + encoded([]byte(claims))
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
		panic(err) // keys of tests can sign
	}
	return signed + "." + encoded(signature)
}

// challenged returns a parameter of a challenge.
func challenged(got answer, parameter string) string {
	for _, challenge := range got.Header.Values("WWW-Authenticate") {
		if m := regexp.MustCompile(parameter + `="([^"]*)"`).FindStringSubmatch(challenge); m != nil && strings.HasPrefix(challenge, "Bearer ") {
			return m[1]
		}
	}
	return ""
}

func TestAccessByJWT(t *testing.T) {
	isolate(t)
	issuer, server := newIssuer(t), newLenientServer(t, "echo")
	url := serve(t, gateway("separator __", issuer.lines("scopes mcp:tools"), block(server.line("alpha"), told...)))
	body := rpc("tools/call", `{`+echoes+`}`)
	t.Run("A76 a good token of each kind", func(t *testing.T) {
		for key := range issuer.keys {
			if got := post(t, rpcAt(url, "alpha"), body, bearer(issuer.token(key, issuer.claims(nil)))); got.StatusCode != 200 {
				t.Errorf("%s: got %d %s, want 200", key, got.StatusCode, got.body)
			}
			all := server.Received()
			if last := all[len(all)-1].HTTP.Header; last.Get("X-Client") != "robot" || last.Get("Authorization") != "" {
				t.Errorf("%s: the server saw %v", key, last)
			}
		}
	})
	t.Run("A76 several audiences, and scopes as a list", func(t *testing.T) {
		for _, others := range []map[string]any{{"aud": []string{"x", "https://mcp.test/mcp"}}, {"scope": nil, "scp": []string{"mcp:tools"}}} {
			if got := post(t, rpcAt(url, "alpha"), body, bearer(issuer.token("ec", issuer.claims(others)))); got.StatusCode != 200 {
				t.Errorf("%v: got %d %s, want 200", others, got.StatusCode, got.body)
			}
		}
	})
	for _, way := range waysIn(url, "alpha") {
		t.Run("A76 good, expired, wrong audience at "+way.name, func(t *testing.T) {
			for _, m := range everyMessage {
				for token, refused := range map[string]bool{
					issuer.token("ec", issuer.claims(nil)):                                                                    false,
					issuer.token("ec", issuer.claims(map[string]any{"exp": time.Now().Add(-time.Hour).Unix()})):               true,
					issuer.token("ec", issuer.claims(map[string]any{"aud": "https://other.test"})):                            true,
					issuer.token("ec", issuer.claims(map[string]any{"exp": time.Now().Add(-time.Hour).Unix(), "scope": "x"})): true,
				} {
					got := present(t, client, m.method, way.at, m.body, bearer(token))
					if refused {
						isRefused(t, got, 401)
					} else if got.StatusCode == 401 || got.StatusCode == 403 {
						t.Errorf("%s: %d %s", m.name, got.StatusCode, got.body)
					}
				}
			}
		})
		t.Run("A76 who has no token is told where to get one at "+way.name, func(t *testing.T) {
			got := post(t, way.at, body)
			isRefused(t, got, 401)
			metadata := challenged(got, "resource_metadata")
			if want := url + "/.well-known/oauth-protected-resource" + pathOf(t, way.at); metadata != want {
				t.Fatalf("WWW-Authenticate: %q\nwant %s", got.Header.Values("WWW-Authenticate"), want)
			}
			described := send(t, client, "GET", metadata, "")
			var about struct {
				Resource string
				Servers  []string `json:"authorization_servers"`
				Scopes   []string `json:"scopes_supported"`
			}
			if err := json.Unmarshal([]byte(described.body), &about); err != nil || described.StatusCode != 200 || described.Header.Get("Content-Type") != "application/json" {
				t.Fatalf("%v: %d %v %s", err, described.StatusCode, described.Header, described.body)
			}
			if about.Resource != way.at || !slices.Equal(about.Servers, []string{issuer.url}) || !slices.Contains(about.Scopes, "mcp:tools") {
				t.Errorf("%+v", about)
			}
		})
		t.Run("A76 insufficient scope at "+way.name, func(t *testing.T) {
			before := server.Count()
			got := post(t, way.at, body, bearer(issuer.token("ec", issuer.claims(map[string]any{"scope": "mcp:other"}))))
			isRefused(t, got, 403)
			if challenged(got, "error") != "insufficient_scope" || !strings.Contains(challenged(got, "scope"), "mcp:tools") || challenged(got, "resource_metadata") == "" {
				t.Errorf("WWW-Authenticate: %q", got.Header.Values("WWW-Authenticate"))
			}
			if server.Count() != before {
				t.Error("the server was contacted")
			}
		})
	}
	t.Run("A76 clients that know no path", func(t *testing.T) {
		for _, path := range []string{"/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp"} {
			got := send(t, client, "GET", url+path, "")
			if got.StatusCode != 200 || !strings.Contains(got.body, quote(url+"/mcp")) || !strings.Contains(got.body, quote(issuer.url)) {
				t.Errorf("%s: %d %s", path, got.StatusCode, got.body)
			}
		}
		if got := send(t, client, "GET", url+"/.well-known/oauth-protected-resource/elsewhere", ""); strings.Contains(got.body, issuer.url) {
			t.Errorf("%d %s", got.StatusCode, got.body)
		}
	})
}

func TestAccessByWrongJWTs(t *testing.T) {
	isolate(t)
	issuer, stranger, server := newIssuer(t), newIssuer(t), newLenientServer(t, "echo")
	url := serve(t, gateway(issuer.lines(), server.line("alpha")))
	good := issuer.token("ec", issuer.claims(nil))
	header, payload, signature := func() (string, string, string) {
		parts := strings.Split(good, ".")
		return parts[0], parts[1], parts[2]
	}()
	ed := issuer.keys["ed"].Public().(ed25519.PublicKey)
	hs256 := func(key []byte) string {
		signed := encoded([]byte(`{"alg":"HS256","kid":"ed"}`)) + "." + payload
		mac := hmac.New(sha256.New, key)
		_, _ = io.WriteString(mac, signed)
		return signed + "." + encoded(mac.Sum(nil))
	}
	claiming := func(others map[string]any) []string {
		return []string{bearer(issuer.token("ec", issuer.claims(others)))}
	}
	point, err := stranger.keys["ec"].(*ecdsa.PrivateKey).PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	everyWay(t, client, url, "A76", server, []forged{
		{name: "nothing"},
		{name: "expired", headers: claiming(map[string]any{"exp": time.Now().Add(-time.Hour).Unix()})},
		{name: "never to expire", headers: claiming(map[string]any{"exp": nil})},
		{name: "not good yet", headers: claiming(map[string]any{"nbf": time.Now().Add(time.Hour).Unix()})},
		{name: "for another audience", headers: claiming(map[string]any{"aud": "https://mcp.test/mcp/"})},
		{name: "for no audience", headers: claiming(map[string]any{"aud": nil})},
		{name: "of another issuer", headers: claiming(map[string]any{"iss": issuer.url + "/"})},
		{name: "of no issuer", headers: claiming(map[string]any{"iss": nil})},
		{name: "about nobody", headers: claiming(map[string]any{"sub": nil})},
		{name: "about an empty name", headers: claiming(map[string]any{"sub": ""})},
		{name: "about a number", headers: claiming(map[string]any{"sub": 5})},
		{name: "of another key", headers: []string{bearer(signJWT(`{"alg":"ES256","kid":"ec"}`, issuer.claims(nil), stranger.keys["ec"]))}},
		{name: "of an unknown key", headers: []string{bearer(signJWT(`{"alg":"ES256","kid":"zz"}`, issuer.claims(nil), stranger.keys["ec"]))}},
		{name: "with its own key", headers: []string{bearer(signJWT(fmt.Sprintf(`{"alg":"ES256","jwk":{"kty":"EC","crv":"P-256","x":%q,"y":%q}}`, encoded(point[1:33]), encoded(point[33:])), issuer.claims(nil), stranger.keys["ec"]))}},
		{name: "with an address of keys", headers: []string{bearer(signJWT(`{"alg":"ES256","kid":"ec","jku":"`+stranger.url+`/keys"}`, issuer.claims(nil), stranger.keys["ec"]))}},
		{name: "not signed", headers: []string{bearer(encoded([]byte(`{"alg":"none"}`)) + "." + payload + ".")}},
		{name: "with no signature", headers: []string{bearer(header + "." + payload + ".")}},
		{name: "signed with the public key", headers: []string{bearer(hs256(ed))}},
		{name: "with other claims than signed", headers: []string{bearer(header + "." + encoded([]byte(issuer.claims(map[string]any{"sub": "admin"}))) + "." + signature)}},
		{name: "with another signature", headers: []string{bearer(header + "." + payload + "." + flipped(signature, 3))}},
		{name: "with extensions that must be understood", headers: []string{bearer(signJWT(`{"alg":"ES256","kid":"ec","crit":["x"],"x":1}`, issuer.claims(nil), issuer.keys["ec"]))}},
		{name: "of an algorithm that is not allowed", headers: []string{bearer(signJWT(`{"alg":"PS256","kid":"rs"}`, issuer.claims(nil), issuer.keys["rs"]))}},
		{name: "of claims that are no object", headers: []string{bearer(signJWT(`{"alg":"ES256","kid":"ec"}`, `[]`, issuer.keys["ec"]))}},
		{name: "what is no token", headers: []string{bearer("a.b.c")}},
		{name: "in the query", query: "?access_token=" + good},
		{name: "as a password", headers: []string{"Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("robot:"+good))}},
		{name: "two of them", headers: []string{bearer("a.b.c"), bearer(good)}},
	})
	if got := post(t, rpcAt(url, "alpha"), rpc("tools/call", `{`+echoes+`}`), bearer(good)); got.StatusCode != 200 {
		t.Errorf("A76 the good one: got %d %s, want 200", got.StatusCode, got.body)
	}
}

// An authority issues certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// newAuthority issues its own certificate.
func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := new(authority)
	template := &x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	issued := a.issue(t, template)
	a.certificate, a.key = issued.Leaf, issued.PrivateKey.(*ecdsa.PrivateKey)
	return a
}

// issue issues a certificate, which is good today unless it says otherwise.
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

// client issues a certificate for a client.
func (a *authority) client(t *testing.T, name string) tls.Certificate {
	t.Helper()
	return a.issue(t, &x509.Certificate{Subject: pkix.Name{CommonName: name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
}

// inPEM writes a certificate and its key, and returns their files.
func inPEM(t *testing.T, c tls.Certificate) (certificate, key string) {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certificate, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{certificate: {Type: "CERTIFICATE", Bytes: c.Certificate[0]}, key: {Type: "PRIVATE KEY", Bytes: der}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certificate, key
}

// A tlsSite is a site whose clients may have certificates.
type tlsSite struct {
	url     string
	address string
	server  *x509.CertPool
	own     tls.Certificate
}

// newTLSSite returns a site with a certificate of an authority, and the lines of its Caddyfile that have it take
// certificates of clients.
func newTLSSite(t *testing.T, trusted *authority, mode string) (s *tlsSite, lines string) {
	t.Helper()
	s = &tlsSite{address: freeAddress(t), server: x509.NewCertPool()}
	s.own = trusted.issue(t, &x509.Certificate{Subject: pkix.Name{CommonName: "localhost"},
		DNSNames: []string{"localhost"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	certificate, key := inPEM(t, s.own)
	pool, _ := inPEM(t, tls.Certificate{Certificate: [][]byte{trusted.certificate.Raw}, PrivateKey: trusted.key})
	s.server.AddCert(trusted.certificate)
	_, port, _ := net.SplitHostPort(s.address)
	s.url = "https://localhost:" + port
	return s, block("tls "+certificate+" "+key, block("client_auth", "mode "+mode, "trust_pool file "+pool))
}

// as is a client with a certificate, which it sends even if nobody has asked for one of
// its authority.
func (s *tlsSite) as(t *testing.T, certificates ...tls.Certificate) *http.Client {
	t.Helper()
	config := &tls.Config{RootCAs: s.server, ServerName: "localhost"}
	if len(certificates) > 0 {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &certificates[0], nil }
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
	namesake := newAuthority(t, "trusted") // by its name the same
	server := newLenientServer(t, "echo")
	modes := []string{"require_and_verify", "verify_if_given", "require", "request"}
	sites := map[string]*tlsSite{}
	var config strings.Builder
	config.WriteString(block("", "auto_https disable_redirects") + "\n")
	for _, mode := range modes {
		s, lines := newTLSSite(t, trusted, mode)
		sites[mode] = s
		config.WriteString(site(s.address, lines,
			gateway("separator __", "name "+mode, "auth mtls", "auth token s3-AbCdEf0123456789 carol", block("client alice", "deny alpha::other"), block(server.line("alpha"), told...))))
	}
	plain := freeAddress(t)
	config.WriteString(site(plain, gateway("auth mtls", server.line("alpha"))))
	load(t, config.String())
	body := rpc("tools/call", `{`+echoes+`}`)

	for _, mode := range modes[:2] {
		s := sites[mode]
		t.Run("A78 a good certificate with "+mode, func(t *testing.T) {
			for _, who := range []string{"alice", "Bob Jones"} {
				c := s.as(t, trusted.client(t, who))
				for _, way := range waysIn(s.url, "alpha") {
					for _, m := range everyMessage {
						if got := present(t, c, m.method, way.at, m.body); got.StatusCode == 401 {
							t.Errorf("%s at %s: %d %s", m.name, way.name, got.StatusCode, got.body)
						}
					}
				}
				if got := present(t, c, "POST", rpcAt(s.url, "alpha"), body); got.StatusCode != 200 {
					t.Fatalf("got %d %s, want 200", got.StatusCode, got.body)
				}
				all := server.Received()
				if last := all[len(all)-1].HTTP.Header; last.Get("X-Client") != who {
					t.Errorf("A78 the tenant is %q, want %q", last.Get("X-Client"), who)
				}
			}
		})
		t.Run("A78 A57 the rules of the client apply with "+mode, func(t *testing.T) {
			other := rpc("tools/call", `{"name":"other","arguments":{}}`)
			isRefused(t, present(t, s.as(t, trusted.client(t, "alice")), "POST", rpcAt(s.url, "alpha"), other), 403)
			if got := present(t, s.as(t, trusted.client(t, "bob")), "POST", rpcAt(s.url, "alpha"), other); got.StatusCode != 200 {
				t.Errorf("got %d %s, want 200", got.StatusCode, got.body)
			}
		})
	}
	t.Run("A75 A78 without a certificate a token will do", func(t *testing.T) {
		if got := present(t, sites["verify_if_given"].as(t), "POST", rpcAt(sites["verify_if_given"].url, "alpha"), body, bearer("s3-AbCdEf0123456789")); got.StatusCode != 200 {
			t.Errorf("got %d %s, want 200", got.StatusCode, got.body)
		}
	})

	usage := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	alice := pkix.Name{CommonName: "alice"}
	self := new(authority).issue(t, &x509.Certificate{Subject: alice, ExtKeyUsage: usage})
	leaf := trusted.client(t, "leaf")
	byLeaf := (&authority{leaf.Leaf, leaf.PrivateKey.(*ecdsa.PrivateKey)}).client(t, "alice")
	byLeaf.Certificate = append(byLeaf.Certificate, leaf.Certificate[0])
	chained := foreign.client(t, "alice")
	chained.Certificate = append(chained.Certificate, foreign.certificate.Raw)
	bad := map[string]tls.Certificate{
		"of another authority":                    foreign.client(t, "alice"),
		"of an authority of the same name":        namesake.client(t, "alice"),
		"of nobody but itself":                    self,
		"of a client that is no authority":        byLeaf,
		"that has expired":                        trusted.issue(t, &x509.Certificate{Subject: alice, ExtKeyUsage: usage, NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(-24 * time.Hour)}),
		"that is not good yet":                    trusted.issue(t, &x509.Certificate{Subject: alice, ExtKeyUsage: usage, NotBefore: time.Now().Add(24 * time.Hour), NotAfter: time.Now().Add(48 * time.Hour)}),
		"for servers only":                        trusted.issue(t, &x509.Certificate{Subject: alice, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}),
		"of the server":                           sites[modes[0]].own,
		"of another authority with its own chain": chained,
	}
	for name, certificate := range bad {
		for _, mode := range modes[:2] {
			t.Run("A78 a certificate "+name+" with "+mode, func(t *testing.T) {
				before := server.Count()
				c := sites[mode].as(t, certificate)
				for _, way := range waysIn(sites[mode].url, "alpha") {
					res, err := c.Do(request(t, t.Context(), "POST", way.at, body)) // the connection is refused
					if err == nil {
						res.Body.Close()
						t.Errorf("%s: %d", way.name, res.StatusCode)
					}
				}
				if server.Count() != before {
					t.Error("the server was contacted")
				}
			})
		}
		for _, mode := range modes[2:] { // which let in everybody
			t.Run("A78 a certificate "+name+" that nobody has verified, with "+mode, func(t *testing.T) {
				before := server.Count()
				c := sites[mode].as(t, certificate)
				for _, way := range waysIn(sites[mode].url, "alpha") {
					isRefused(t, present(t, c, "POST", way.at, body), 401)
				}
				if server.Count() != before {
					t.Error("the server was contacted")
				}
			})
		}
	}
	for name, subject := range map[string]string{"no name": "", "a control character": "\x00operator", "a line break": "alice\nbob", "a name that is too long": strings.Repeat("x", 1000)} {
		t.Run("A78 a good certificate with "+name, func(t *testing.T) {
			before := server.Count()
			for _, mode := range modes[:2] {
				c := sites[mode].as(t, trusted.client(t, subject))
				for _, way := range waysIn(sites[mode].url, "alpha") {
					isRefused(t, present(t, c, "POST", way.at, body), 401)
				}
			}
			if server.Count() != before {
				t.Error("the server was contacted")
			}
		})
	}
	t.Run("A78 no certificate", func(t *testing.T) {
		before := server.Count()
		if res, err := sites["require_and_verify"].as(t).Do(request(t, t.Context(), "POST", rpcAt(sites["require_and_verify"].url, "alpha"), body)); err == nil {
			res.Body.Close()
			t.Errorf("%d", res.StatusCode)
		}
		for _, mode := range []string{"verify_if_given", "request"} {
			for _, way := range waysIn(sites[mode].url, "alpha") {
				isRefused(t, present(t, sites[mode].as(t), "POST", way.at, body), 401)
			}
		}
		if server.Count() != before {
			t.Error("the server was contacted")
		}
	})
	t.Run("A78 a certificate in a header", func(t *testing.T) {
		before := server.Count()
		good := trusted.client(t, "alice")
		inHeader := encoded(good.Certificate[0])
		for _, header := range []string{"X-Client-Cert: " + inHeader, "X-Forwarded-Client-Cert: Subject=\"CN=alice\";Cert=" + inHeader, "X-Ssl-Client-S-Dn: CN=alice", "Client-Cert: :" + base64.StdEncoding.EncodeToString(good.Certificate[0]) + ":"} {
			for _, way := range waysIn("http://"+plain, "alpha") {
				isRefused(t, present(t, client, "POST", way.at, body, header), 401)
			}
		}
		if server.Count() != before {
			t.Error("the server was contacted")
		}
	})
}

// A user of Caddy's own authentication is let in as the client whose match names it.
func TestAccessByUsersOfCaddy(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, "echo", "other")
	team := block("client team", "match alice", "deny alpha::other")
	body, other := rpc("tools/call", `{`+echoes+`}`), rpc("tools/call", `{"name":"other","arguments":{}}`)
	for name, provider := range map[string]string{"without a provider": "", "beside a provider": "auth token s3-AbCdEf0123456789 carol"} {
		t.Run("A57 A75 "+name, func(t *testing.T) {
			url := serve(t, accounts, gateway("separator __", provider, team, block(server.line("alpha"), told...)))
			for _, at := range []string{rpcAt(url, "alpha"), mcpAt(url, "alpha")} {
				if got := post(t, at, body, as("alice")); got.StatusCode != 200 {
					t.Fatalf("got %d %s, want 200", got.StatusCode, got.body)
				}
				all := server.Received()
				if last := all[len(all)-1].HTTP.Header; last.Get("X-Client") != "team" || last.Get("Authorization") != "" {
					t.Errorf("the server saw %v", last)
				}
				isRefused(t, post(t, at, other, as("alice")), 403)
				got := post(t, at, other, as("bob")) // whom no client matches
				switch {
				case provider != "":
					isRefused(t, got, 401)
				case got.StatusCode != 200:
					t.Errorf("%d %s", got.StatusCode, got.body)
				}
				before := server.Count()
				if got := post(t, at, body); got.StatusCode != 401 {
					t.Errorf("got %d %s, want 401", got.StatusCode, got.body)
				}
				if server.Count() != before {
					t.Error("the server was contacted")
				}
			}
			c := newSpeaker(t, joinedAt(url), false, `{}`, as("alice"))
			if got := toolsOf(t, c); !slices.Equal(got, []string{"alpha__echo"}) {
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
	url := serve(t, gateway("separator __", block("auth token", "one "+one, "two "+two), child("kid"), server.line("alpha")))
	at := joinedAt(url)
	c := newSpeaker(t, at, false, `{}`, bearer(one))
	before := server.Count()
	thief := &speaker{&mcpclient.Client{URL: at, Headers: append(slices.Clone(c.Headers), bearer(two)), HTTP: lasting}}
	for _, m := range []struct{ name, method, body string }{
		{"a request", "POST", rpc("tools/call", `{"name":"alpha__echo","arguments":{}}`)},
		{"a list", "POST", rpc("tools/list", `{}`)},
		{"what is answered here", "POST", rpc("ping", `{}`)},
		{"a notification", "POST", `{"jsonrpc":"2.0","method":"notifications/foo"}`},
		{"a client's reply", "POST", `{"jsonrpc":"2.0","id":"q","result":{}}`},
		{"a stream", "GET", ""},
		{"the end of the session", "DELETE", ""},
	} {
		t.Run("A57 "+m.name, func(t *testing.T) {
			got := failureOf(t, send(t, client, m.method, at, m.body, append(thief.Headers, acceptBoth)...))
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

// The credentials of clients stay here unless they are asked for; those of servers are
// for them alone.
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
		{"A31 by default nothing is passed on", nil, nil, ""},
		{"A31 nor with off", []string{"forward_auth_header off"}, nil, ""},
		{"the gateway passes it on", []string{"forward_auth_header on"}, nil, "Bearer " + token},
		{"one server gets it", nil, []string{"forward_auth_header on"}, "Bearer " + token},
		{"one server does not get it", []string{"forward_auth_header on"}, []string{"forward_auth_header off"}, ""},
		{"a credential of the server's own", nil, []string{`request_header Authorization "Bearer {env.UPSTREAM_KEY}"`}, "Bearer " + key},
		{"a credential of the server's own beside that of the client", []string{"forward_auth_header on"}, []string{`request_header Authorization "Bearer {env.UPSTREAM_KEY}"`}, "Bearer " + key},
	}
	for _, tt := range tests {
		for _, provider := range []string{"auth token " + token, ""} {
			name := tt.name
			if provider == "" {
				name += ", with no provider"
			}
			t.Run(name, func(t *testing.T) {
				server, beside := newLenientServer(t, "echo"), newLenientServer(t, "echo")
				url := serve(t, gateway(slices.Concat([]string{"separator __", provider}, tt.gateway, []string{block(server.line("alpha"), tt.server...), beside.line("beside")})...))
				for _, at := range []string{rpcAt(url, "alpha"), mcpAt(url, "alpha")} {
					if got := post(t, at, rpc("tools/call", `{`+echoes+`}`), bearer(token)); got.StatusCode != 200 {
						t.Fatalf("got %d %s, want 200", got.StatusCode, got.body)
					}
				}
				session := sessionAt(t, mcpAt(url, "alpha"), bearer(token))
				for _, method := range []string{"GET", "DELETE"} {
					present(t, client, method, mcpAt(url, "alpha"), "", session, bearer(token))
					if last := server.Received()[server.Count()-1]; last.HTTP.Method != method {
						t.Errorf("the server did not get %s but %+v", method, last)
					}
				}
				for _, era := range clientEras {
					c := newSpeaker(t, joinedAt(url), era.modern, `{}`, bearer(token))
					c.use(t, "alpha", "echo", `{}`)
					toolsOf(t, c)
					c.say(t, `{"jsonrpc":"2.0","method":"notifications/foo"}`)
				}
				for _, r := range server.Received() {
					if got := r.HTTP.Header.Get("Authorization"); got != tt.want {
						t.Errorf("%s %.100s came with %q, want %q", r.Method, r.Body, got, tt.want)
					}
				}
				wantBeside := ""
				if slices.Contains(tt.gateway, "forward_auth_header on") {
					wantBeside = "Bearer " + token
				}
				for _, r := range beside.Received() {
					if got := r.HTTP.Header.Get("Authorization"); got != wantBeside {
						t.Errorf("the other server: %s %.100s came with %q, want %q", r.Method, r.Body, got, wantBeside)
					}
				}
			})
		}
	}
	t.Run("A31 a credential of the server's own without one of the client", func(t *testing.T) {
		server := newLenientServer(t, "echo")
		url := serve(t, gateway(block(server.line("alpha"), `request_header Authorization "Bearer {env.UPSTREAM_KEY}"`)))
		for _, at := range []string{rpcAt(url, "alpha"), mcpAt(url, "alpha")} {
			post(t, at, rpc("tools/call", `{`+echoes+`}`))
		}
		newSpeaker(t, joinedAt(url), false, `{}`)
		for _, r := range server.Received() {
			if got := r.HTTP.Header.Get("Authorization"); got != "Bearer "+key {
				t.Errorf("%s %.100s came with %q", r.Method, r.Body, got)
			}
		}
	})
}

// TestAccessOfTheCommand has whoever starts the command be let in.
func TestAccessOfTheCommand(t *testing.T) {
	isolate(t)
	config := inFile(t, site(freeAddress(t), gateway("separator __", "auth token {env.STDIO_TOKEN} carol",
		block("client carol", "deny alpha::slow beta::*"), block("client *", "deny alpha::echo"), child("alpha"), child("beta"))))
	lines := rpc("tools/list", `{}`) + "\n" + toolCall{"alpha__slow", `{}`}.request() + "\n"
	for _, tt := range []struct {
		name          string
		args          []string
		listed, hides []string
		denied        bool
	}{
		{"A30 no credentials are needed, and no rules apply", nil, []string{"alpha__slow", "alpha__echo", "beta__echo"}, nil, false},
		{"A57 the rules of a client", []string{"--client", "carol"}, []string{"alpha__echo"}, []string{"alpha__slow", "beta__"}, true},
		{"A57 the rules of others", []string{"--client", "somebody"}, []string{"alpha__slow", "beta__echo"}, []string{"alpha__echo"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cmd := caddy(t, append([]string{"mcp-stdio", "--config", config}, tt.args...)...)
			cmd.Env = append(cmd.Env, "STDIO_TOKEN=stdio-AbCdEf0123456789")
			cmd.Stdin = strings.NewReader(stdioGreeting + lines)
			var logged bytes.Buffer
			cmd.Stderr = &logged
			printed, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v\n%s", err, &logged)
			}
			var list, call string
			for _, m := range messages(t, printed) {
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
			if denied := strings.Contains(call, "acl_denied"); denied != tt.denied || !denied && !strings.Contains(call, "slept") {
				t.Errorf("the call got %s", call)
			}
		})
	}
}

// What a server has asked one client no other can answer.
func TestAccessToCallsOfOthers(t *testing.T) {
	isolate(t)
	const one, two = "one-AbCdEf0123456789", "two-AbCdEf0123456789"
	remote := &mcptest.Remote{Name: "far", Legacy: true}
	url := serve(t, gateway("separator __", block("auth token", "one "+one, "two "+two), block(child("kid"), "isolation session"), "server far http://"+upstream(t, remote)+"/mcp"))
	t.Cleanup(remote.Close)
	for server, tool := range map[string]string{"kid": "ask-roots", "far": "ask"} {
		t.Run("A57 a modern client of a legacy server: "+server, func(t *testing.T) {
			owner, thief := newSpeaker(t, joinedAt(url), true, canAll, bearer(one)), newSpeaker(t, joinedAt(url), true, canAll, bearer(two))
			params := callOf(server, tool, `{"method":"roots/list","params":{}}`)
			again := retried(params, owner.ask(t, "tools/call", params).answer.Input(t), func(string) string { return rootsAnswer })
			if got := thief.ask(t, "tools/call", again); got.answer.Error == nil {
				t.Errorf("another client got %s", got.answer.Raw)
			}
			if got := owner.ask(t, "tools/call", again).answer; !reached(got.Text(), rootsAnswer) {
				t.Errorf("its own client got %s", got.Raw)
			}
		})
		t.Run("A57 a legacy client: "+server, func(t *testing.T) {
			owner, thief := newSpeaker(t, joinedAt(url), false, canAll, bearer(one)), newSpeaker(t, joinedAt(url), false, canAll, bearer(two))
			d := owner.begin(t, "tools/call", callOf(server, tool, `{"method":"roots/list","params":{}}`))
			question := d.next(t)
			forged := `{"jsonrpc":"2.0","id":` + string(question.ID) + `,"result":{"roots":[{"uri":"file:///forged"}]}}`
			post(t, thief.URL, forged, append(slices.Clone(thief.Headers), acceptBoth)...) // whatever it is told
			owner.replyTo(t, question, rootsAnswer)
			if got := d.finish(t).answer; !reached(got.Text(), rootsAnswer) {
				t.Errorf("its own client got %s", got.Raw)
			}
		})
	}
}

// A session of one server belongs to its client as well.
func TestAccessToSessionsOfOneServer(t *testing.T) {
	isolate(t)
	const one, two = "one-AbCdEf0123456789", "two-AbCdEf0123456789"
	remote := newLenientServer(t, "slow")
	remote.Replies = map[string]string{"slow": `"result":{"content":[{"type":"text","text":"slept"}]}`}
	url := serve(t, gateway(block("auth token", "one "+one, "two "+two), child("shared"), block(child("own"), "isolation session"), remote.line("remote")))
	for _, server := range []string{"shared", "own", "remote"} {
		at := mcpAt(url, server)
		session := sessionAt(t, at, bearer(one))
		before := remote.Count()
		for _, m := range []struct{ method, body string }{
			{"POST", rpc("tools/call", `{"name":"slow","arguments":{}}`)}, {"POST", `{"jsonrpc":"2.0","method":"notifications/foo"}`}, {"GET", ""}, {"DELETE", ""},
		} {
			t.Run("A57 "+m.method+" of a session of "+server, func(t *testing.T) {
				got := present(t, client, m.method, at, m.body, session, bearer(two))
				if f := failureOf(t, got); f.Status != 404 || f.Symbol != "unknown_session" {
					t.Errorf("%+v", f)
				}
			})
		}
		t.Run("A57 its own session of "+server, func(t *testing.T) {
			if remote.Count() != before {
				t.Error("the server was contacted")
			}
			if got := use(t, at, "slow", `{"ms":0}`, session, bearer(one)); got != "slept" {
				t.Errorf("got %s", got)
			}
			if got := present(t, client, "DELETE", at, "", session, bearer(one)); got.StatusCode != 204 && got.StatusCode != 200 {
				t.Errorf("%d %s", got.StatusCode, got.body)
			}
		})
	}
	t.Run("A57 the server knows its session by its own id", func(t *testing.T) {
		for _, r := range remote.Received() {
			if id := r.HTTP.Header.Get("Mcp-Session-Id"); id != "" && !strings.HasPrefix(id, "session-") {
				t.Errorf("%s %s came with the session %s", r.Method, r.Body, id)
			}
		}
	})
}

// A token that is taken away is good for nothing any more, whatever was begun with it.
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
	c := newSpeaker(t, joinedAt(url), false, canAll, closes, bearer(one))
	other := newSpeaker(t, joinedAt(url), false, canAll, closes, bearer(two))
	stream := c.listen(t)
	await.Until(t, "the stream", func() bool {
		return slices.ContainsFunc(server.Received(), func(r *mcptest.Received) bool { return r.Method == "GET" })
	})
	load(t, config("two "+two))
	before := server.Count()
	t.Run("A30 a request of its session", func(t *testing.T) {
		isRefused(t, present(t, client, "POST", joinedAt(url), rpc("tools/call", callOf("alpha", "echo", `{}`)), c.Headers...), 401)
		isRefused(t, present(t, client, "GET", joinedAt(url), "", c.Headers...), 401)
		if server.Count() != before {
			t.Error("the server was contacted")
		}
	})
	t.Run("A30 its stream", func(t *testing.T) { stream.ended(t) })
	t.Run("A60 the other client goes on", func(t *testing.T) {
		may(t, "a call", other.ask(t, "tools/call", callOf("alpha", "echo", `{}`)))
	})
	t.Run("A30 it is given back", func(t *testing.T) {
		load(t, config("one "+one, "two "+two))
		may(t, "a call", c.ask(t, "tools/call", callOf("alpha", "echo", `{}`)))
	})
}

// Only a new request can show whether a certificate, a JWT or Caddy's own authentication
// still lets a client in. So a reload ends the streams of such clients, and they are asked
// again.
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
	certificate, key := inPEM(t, trusted.issue(t, &x509.Certificate{Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}))
	authority := func(a *authority) string {
		file, _ := inPEM(t, tls.Certificate{Certificate: [][]byte{a.certificate.Raw}, PrivateKey: a.key})
		return file
	}
	pool := copied("pool.pem", authority(trusted))
	issuer := newIssuer(t)
	keys := present(t, client, "GET", issuer.url+"/keys", "").body
	jwks := write("keys.json", keys)

	plain, secure := freeAddress(t), &tlsSite{address: freeAddress(t), server: x509.NewCertPool()}
	secure.server.AddCert(trusted.certificate)
	_, port, _ := net.SplitHostPort(secure.address)
	secure.url = "https://localhost:" + port
	config := func(users, reload string) string {
		// Each gateway has its own path, so that one site has them all.
		gatewayAt := func(path string, lines ...string) string {
			return gateway(append(lines, "mcp_path "+path, "rpc_path /rpc"+path, "name "+path[1:], server.line("alpha"))...)
		}
		return block("", "auto_https disable_redirects") + "\n" +
			site(plain, "header X-Reload "+reload,
				block("handle /user*", users, gatewayAt("/user")),
				block("handle /jwt*", gatewayAt("/jwt", block("auth jwt", "issuer "+issuer.url, "audience https://mcp.test/mcp", "jwks "+jwks))),
				block("handle /token*", gatewayAt("/token", "auth token s3-AbCdEf0123456789 carol"))) +
			site(secure.address, block("tls "+certificate+" "+key, block("client_auth", "mode require_and_verify", "trust_pool file "+pool)), gatewayAt("/cert", "auth mtls"))
	}
	load(t, config(accounts, "0"))

	type opened struct {
		at      string
		client  *http.Client
		headers []string
		ends    chan struct{}
	}
	open := func(t *testing.T, client *http.Client, at, credentials string) *opened {
		t.Helper()
		o := &opened{at: at, client: client, ends: make(chan struct{})}
		if credentials != "" {
			o.headers = append(o.headers, credentials)
		}
		got := present(t, client, "POST", at, rpc("initialize", `{`+initParams+`}`), o.headers...)
		if got.StatusCode != 200 {
			t.Fatalf("%s: %d %s", at, got.StatusCode, got.body)
		}
		o.headers = append(o.headers, "Mcp-Session-Id: "+got.Header.Get("Mcp-Session-Id"))
		req := request(t, t.Context(), "GET", at, "", append(o.headers, "Accept: text/event-stream")...)
		patient := *client
		patient.Timeout = 0
		res, err := patient.Do(req)
		if err != nil || res.StatusCode != 200 {
			t.Fatalf("%s: %v %v", at, res, err)
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
		cert := secure.as(t, trusted.client(t, "alice"))
		streams := map[string][]*opened{}
		for _, way := range []string{"", "/alpha"} {
			streams["a user of Caddy"] = append(streams["a user of Caddy"], open(t, client, "http://"+plain+"/user"+way, as("bob")))
			streams["a JWT"] = append(streams["a JWT"], open(t, client, "http://"+plain+"/jwt"+way, jwt))
			streams["a certificate"] = append(streams["a certificate"], open(t, cert, secure.url+"/cert"+way, ""))
			streams["a token"] = append(streams["a token"], open(t, client, "http://"+plain+"/token"+way, bearer("s3-AbCdEf0123456789")))
		}
		return streams
	}
	streams := all(t)
	// bob is no user any more, the key of the JWT is gone, and another authority is trusted.
	_, without, _ := strings.Cut(keys, `"kid":"ed"`)
	write("keys.json", `{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"ed"`+without)
	copied("pool.pem", authority(other))
	load(t, config("basic_auth {\n\talice $2a$04$Mwcw1rR64pgwbiW5Tnqmaur6pR8BJ4BfcsKZCWFO7NWCKWFxsVLTq\n}", "1"))
	for name, opened := range streams {
		t.Run("A30 "+name, func(t *testing.T) {
			for _, o := range opened {
				if name == "a token" { // which is the same
					select {
					case <-o.ends:
						t.Errorf("%s: the stream has ended", o.at)
					default:
					}
					continue
				}
				select {
				case <-o.ends:
				case <-time.After(patience):
					t.Errorf("%s: the stream goes on", o.at)
				}
				if name != "a certificate" { // which gets no connection any more
					if got := present(t, o.client, "POST", o.at, rpc("tools/list", `{}`), o.headers...); got.StatusCode != 401 {
						t.Errorf("%s: got %d %s, want 401", o.at, got.StatusCode, got.body)
					}
				}
			}
		})
	}
}
