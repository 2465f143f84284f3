package integration

import (
	"bufio"
	"compress/gzip"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/caddyrun"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// Tokens of two unrelated clients.
const (
	victimToken = "victim-AbCdEf0123456789"
	thiefToken  = "thief-AbCdEf0123456789"
)

// twoTokens configures the two clients.
func twoTokens() string { return block("auth token", "victim "+victimToken, "thief "+thiefToken) }

// newBarrierServer starts a server that holds calls until size of them are waiting, and then
// answers them in reverse order. So all of them are in flight at the same time.
func newBarrierServer(t *testing.T, size int) *remoteServer {
	t.Helper()
	var mu sync.Mutex
	var waiting []chan struct{}
	server := newLenientServer(t, "echo")
	server.Handle = func(w http.ResponseWriter, r *mcptest.Received) bool {
		if r.Method != "tools/call" {
			return false
		}
		proceed := make(chan struct{})
		mu.Lock()
		if waiting = append(waiting, proceed); len(waiting) == size {
			close(proceed) // each response releases the call before it
		}
		index := len(waiting) - 1
		mu.Unlock()
		select {
		case <-proceed:
		case <-r.HTTP.Context().Done():
			return true
		}
		server.Answer(w, r)
		mu.Lock()
		defer mu.Unlock()
		if index > 0 {
			close(waiting[index-1])
		}
		return true
	}
	return server
}

// All clients use the same request IDs. A shared server's response must not go to another client
// that uses the same ID (CVE-2026-25536).
func TestSecurityIDCollision(t *testing.T) {
	isolate(t)
	const size = 24
	far := newBarrierServer(t, size)
	// A child that answers the second call first, each with its caller's secret.
	kid := scriptedServer(t, "kid", `
		if [ -z "$held" ]; then held=$id; heldSecret=$secret; continue; fi
		say '{"jsonrpc":"2.0","id":'"$id"',"result":{"content":[{"type":"text","text":"'"$secret"'"}]}}'
		say '{"jsonrpc":"2.0","id":'"$held"',"result":{"content":[{"type":"text","text":"'"$heldSecret"'"}]}}'
		held=`)
	url := serve(t, gateway("separator __", twoTokens(), far.line("far"), kid))
	for _, server := range []string{"far", "kid"} {
		var running sync.WaitGroup
		for i := range size {
			way := endpointsOf(url, server)[i%3]
			token := []string{victimToken, thiefToken}[i%2]
			secret := fmt.Sprintf("secret-of-%d-%s", i, server)
			message, headers := rpc("tools/call", `{"name":"echo","arguments":{"text":"`+secret+
				`"},"_meta":{"progressToken":1}}`), []string{bearer(token)}
			switch {
			case way.name == "/mcp" && i%2 == 0: // a modern client
				message, headers = (&testClient{&mcpclient.Client{Modern: true, Capabilities: `{}`, Headers: headers,
					HTTP: streamClient}}).Message("1", "tools/call", callOf(server, "echo", `{"text":"`+secret+`"}`))
			case way.name == "/mcp":
				headers = append(headers, sessionHeader(t, way.url, bearer(token)))
				message = strings.Replace(message, `"echo"`, `"`+server+`__echo"`, 1)
			}
			running.Go(func() {
				req := request(t, t.Context(), "POST", way.url, message, append(headers, acceptBoth)...)
				res, err := streamClient.Do(req)
				if err != nil {
					t.Error(err)
					return
				}
				defer res.Body.Close()
				body, _ := io.ReadAll(res.Body)
				got := answerIn(string(body))
				if !strings.Contains(got, secret+`\"`) && !strings.Contains(got, secret+`"`) || strings.Count(got,
					"secret-of-") != 1 || !strings.Contains(got, `"id":1`) {
					t.Errorf("%s at %s: got %d %s\nwant %s", server, way.name, res.StatusCode, body, secret)
				}
			})
		}
		running.Wait()
	}
	t.Run("A28 a client with the same id cannot cancel a call", func(t *testing.T) {
		journal := newJournal(t)
		url := serve(t, gateway("separator __", twoTokens(), block(child("kid"), journal.env())))
		victim, thief := newTestClient(t, joinedAt(url), false, fullCapabilities, bearer(victimToken)),
			newTestClient(t, joinedAt(url), false, fullCapabilities, bearer(thiefToken))
		call := victim.begin(t, "tools/call", callOf("kid", "hang", `{}`))
		await.Until(t, "the call", func() bool { return len(journal.entries(t, "tools/call")) == 1 })
		for _, id := range []string{call.ID, strings.Trim(call.ID, `"`), "1", "2", "3", `"kid::1"`} {
			cancel := `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `}}`
			thief.post(t, cancel)
			post(t, mcpAt(url, "kid"), cancel, acceptBoth, bearer(thiefToken))
			post(t, rpcAt(url, "kid"), cancel, bearer(thiefToken))
		}
		thief.use(t, "kid", "echo", `{}`) // messages are processed in order
		if ended := journal.entries(t, "cancelled"); len(ended) > 0 {
			t.Errorf("the call was cancelled: %v", ended)
		}
		call.Cancel()
		await.Until(t, "the end of the call", func() bool { return len(journal.entries(t, "cancelled")) == 1 })
	})
}

// lenientRead reads a message like a lenient server and returns what the server would do. It
// ignores the case of keys, like encoding/json, and null characters at the end of keys, like
// the library that replaced it in the SDK.
func lenientRead(body string) string {
	var m struct {
		Method string
		Params struct {
			Name, URI string
			Ref       struct{ Name, URI string }
		}
	}
	_ = json.Unmarshal([]byte(strings.ReplaceAll(body, `\u0000`, "")), &m)
	return strings.Join([]string{m.Method, m.Params.Name, m.Params.URI, m.Params.Ref.Name, m.Params.Ref.URI}, " ")
}

// With two keys that differ only in case or null characters, the gateway could read one and the
// server the other (CVE-2026-27896, GHSA-q382-vc8q-7jhj).
func TestSecurityCaseFoldedKeys(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, "echo", "slow")
	server.Resources = []string{"file:///public/b", "file:///secret/a"}
	url := serve(t, gateway(append(rulesForEve("deny alpha::slow prompt:alpha::insult resource:file:///secret"),
		server.line("alpha"))...))
	legacy := newTestClient(t, joinedAt(url), false, fullCapabilities, bearer(eveToken))
	modern := &testClient{&mcpclient.Client{Modern: true, Capabilities: `{}`, Headers: []string{bearer(eveToken)},
		HTTP: streamClient}}
	folded := func(key string) (keys []string) {
		keys = []string{strings.ToUpper(key), strings.ToUpper(key[:1]) + key[1:], key + `\u0000`, key + `\u0000\u0000`,
			strings.ToUpper(key[:1]) + key[1:] + `\u0000`}
		for letter, other := range map[string]string{"s": `\u017f`, "k": `\u212a`} {
			if strings.Contains(key, letter) {
				keys = append(keys, strings.Replace(key, letter, other, 1))
			}
		}
		return keys
	}
	for _, tt := range []struct{ name, method, key, good, bad string }{
		{"a tool", "tools/call", "name", `"@echo"`, `"@slow"`},
		{"a prompt", "prompts/get", "name", `"@greet"`, `"@insult"`},
		{"a resource", "resources/read", "uri", `"!file:///public/b"`, `"!file:///secret/a"`},
		{"a subscription", "resources/subscribe", "uri", `"!file:///public/b"`, `"!file:///secret/a"`},
		{"a completion", "completion/complete", "ref", `{"type":"ref/prompt","name":"@greet"}`,
			`{"type":"ref/prompt","name":"@insult"}`},
	} {
		t.Run("A54 "+tt.name, func(t *testing.T) {
			attack := func(message string) {
				own := strings.NewReplacer("@", "", "!", "").Replace(message)
				for _, way := range endpointsOf(url, "alpha")[1:] {
					post(t, way.url, own, acceptBoth, bearer(eveToken))
				}
				joined := strings.NewReplacer("@", "alpha__", "!file:///public/b", proxiedURI("alpha", "file:///public/b"),
					"!file:///secret/a", proxiedURI("alpha", "file:///secret/a")).Replace(message)
				post(t, joinedAt(url), joined, append(slices.Clone(legacy.Headers), acceptBoth)...)
				var m mcpclient.Message
				_ = json.Unmarshal([]byte(joined), &m)
				body, headers := modern.Message("1", tt.method, string(m.Params.Raw))
				post(t, joinedAt(url), body, headers...)
				post(t, mcpAt(url, "alpha"), own, append(slices.Clone(headers), acceptBoth)...)
			}
			for _, key := range folded(tt.key) {
				attack(rpc(tt.method, `{"`+tt.key+`":`+tt.good+`,"`+key+`":`+tt.bad+`}`))
				attack(rpc(tt.method, `{"`+key+`":`+tt.bad+`,"`+tt.key+`":`+tt.good+`}`))
				attack(rpc(tt.method, `{"`+key+`":`+tt.bad+`}`))
			}
			for _, key := range folded("params") {
				attack(`{"jsonrpc":"2.0","id":1,"method":` + quote(tt.method) + `,"params":{"` + tt.key + `":` + tt.good + `},"` +
					key + `":{"` + tt.key + `":` + tt.bad + `}}`)
			}
			for _, key := range folded("method") {
				attack(`{"jsonrpc":"2.0","id":1,"method":"ping","` + key + `":` + quote(tt.method) + `,"params":{"` + tt.key +
					`":` + tt.bad + `}}`)
			}
		})
	}
	if server.Count() == 0 {
		t.Error("the server received nothing, want the requests that are allowed")
	}
	for _, r := range server.Received() {
		did := lenientRead(r.Body)
		if strings.Contains(did, "slow") || strings.Contains(did, "insult") || strings.Contains(did, "secret") {
			t.Errorf("the server would do %s", did)
		}
	}
	t.Run("A54 in a list from the server", func(t *testing.T) {
		for _, key := range folded("name") {
			server.Change(func(s *mcptest.Script) {
				s.Replies = map[string]string{"tools/list": `"result":{"tools":[{"name":"echo","` + key +
					`":"slow","inputSchema":{}}]}`}
			})
			for _, way := range endpointsOf(url, "alpha")[1:] {
				if got := post(t, way.url, rpc("tools/list", `{}`), acceptBoth, bearer(eveToken)); strings.Contains(got.body,
					"slow") {
					t.Errorf("%s at %s: %s", key, way.name, got.body)
				}
			}
		}
	})
}

// A client's credentials are only for the gateway. A server that receives them could impersonate
// the client, and a server that receives another server's credentials could impersonate the
// gateway.
func TestSecurityTokenPassthrough(t *testing.T) {
	isolate(t)
	const ownKey = "key-of-alpha-0123456789"
	setenv(t, "SECURITY_ALPHA_KEY", ownKey)
	alpha, beta := newLenientServer(t, "echo"), newLenientServer(t, "echo")
	asking := newLenientServer(t) // requests credentials and redirects clients to another server
	elsewhere := newLenientServer(t)
	asking.Handle = func(w http.ResponseWriter, _ *mcptest.Received) bool {
		w.Header().Set("WWW-Authenticate", `Bearer resource_metadata="http://`+elsewhere.address+
			`/.well-known/oauth-protected-resource"`)
		w.Header().Set("Location", "http://"+elsewhere.address+"/mcp")
		w.WriteHeader([]int{http.StatusUnauthorized, http.StatusTemporaryRedirect,
			http.StatusPermanentRedirect}[asking.Count()%3])
		return true
	}
	journal := newJournal(t)
	issuer := newIssuer(t)
	address := freeAddress(t)
	load(t, site(address, gateway("separator __", twoTokens(), issuer.provider(),
		block("auth hmac", "client signer {env.SECURITY_ALPHA_KEY}"),
		block(alpha.line("alpha"), `request_header Authorization "Bearer {env.SECURITY_ALPHA_KEY}"`), beta.line("beta"),
		asking.line("greedy"), block(child("kid", "--modern"), journal.env()))))
	base := "http://" + address
	jwt := issuer.token("ec", issuer.claims(nil))
	cookie := "session=cookie-of-the-client"
	credentials := map[string][]string{
		victimToken: {bearer(victimToken), "Cookie: " + cookie},
		jwt:         {bearer(jwt), "Cookie: " + cookie},
		thiefToken:  {"Cookie: " + cookie}, // the token is in the message
	}
	// the test must not follow redirects for the gateway
	wary := &http.Client{CheckRedirect: noRedirect, Timeout: patience}
	for secret, headers := range credentials {
		proxy := ""
		if secret == thiefToken {
			proxy = `,"proxy":{"authToken":` + quote(secret) + `,"x":1}`
		}
		for _, server := range []string{"alpha", "beta", "greedy", "kid"} {
			for _, way := range endpointsOf(base, server) {
				params := `{` + echoes + proxy + `}`
				sent := slices.Concat(headers, []string{acceptBoth, "Proxy-Authorization: Bearer " + victimToken})
				if way.name == "/mcp" {
					got := post(t, way.url, rpc("initialize", `{`+initParams+proxy+`}`), sent...)
					sent = append(sent, "Mcp-Session-Id: "+got.Header.Get("Mcp-Session-Id"))
					params = strings.Replace(params, `"echo"`, `"`+server+`__echo"`, 1)
				}
				got := send(t, wary, "POST", way.url, rpc("tools/call", params), sent...)
				if got.StatusCode != 200 && server != "greedy" {
					t.Errorf("%s at %s: %d %s", server, way.name, got.StatusCode, got.body)
				}
				send(t, wary, "POST", way.url, `{"jsonrpc":"2.0","method":"notifications/foo","params":{"a":1`+proxy+`}}`, sent...)
				if way.name != "/rpc" && proxy == "" {
					sendAllHeaders(t, wary, "GET", way.url, "", sent...)
				}
			}
		}
	}
	t.Run("A30 an invented credential", func(t *testing.T) { // CVE-2026-59822
		for _, made := range []string{"sk-1234", victimToken + "x", ownKey, strings.ToUpper(victimToken), "undefined",
			"null", `" or ""="`} {
			for _, server := range []string{"alpha", "greedy"} {
				for _, way := range endpointsOf(base, server) {
					expectRefused(t, post(t, way.url, rpc("tools/list", `{}`), bearer(made), acceptBoth), 401)
				}
			}
		}
	})
	if n := elsewhere.Count(); n > 0 {
		t.Errorf("the gateway followed a redirect: %v", elsewhere.Received())
	}
	read, err := os.ReadFile(string(journal))
	if err != nil {
		t.Fatal(err)
	}
	seen := evidence{}
	seen.add("the child", string(read))
	for name, w := range map[string]*remoteServer{"alpha": alpha, "beta": beta, "greedy": asking} {
		if w.Count() == 0 {
			t.Errorf("%s received no request", name)
		}
		for _, r := range w.Received() {
			seen.add(name, fmt.Sprintln(r.Method, r.HTTP.URL.RequestURI(), r.HTTP.Header, r.Body))
			if want := map[string]string{"alpha": "Bearer " + ownKey}[name]; r.HTTP.Header.Get("Authorization") != want {
				t.Errorf("%s received the Authorization %q", name, r.HTTP.Header.Get("Authorization"))
			}
		}
	}
	for _, found := range seen.search([]plantedSecret{{"token", victimToken, nil}, {"token in params", thiefToken, nil},
		{"JWT", jwt, nil}, {"cookie", cookie, nil}, {"credential of alpha", ownKey, []string{"alpha"}}}) {
		t.Error("A31", found)
	}
}

// A stolen session ID does not give access to the session (CVE-2025-6515, CVE-2026-33946,
// CVE-2026-52869).
func TestSecuritySessionTheft(t *testing.T) {
	isolate(t)
	far := newRemoteServer(t, "tool")
	address, another := freeAddress(t), freeAddress(t)
	lines := []string{"separator __", twoTokens(), far.line("far")}
	load(t, site(address, gateway(append(lines, block(child("own"), "isolation session"), child("shared"),
		"session_key 0123456789-0123456789-0123456789")...))+
		site(another, gateway(append(lines, "name another", "session_key another-0123456789-0123456789-01")...)))
	base := "http://" + address
	victim := newTestClient(t, joinedAt(base), false, fullCapabilities, bearer(victimToken))
	stream := victim.listen(t)
	await.Until(t, "the gateway to listen", func() bool { return far.Listeners() == 1 })
	stolen := victim.Session

	type attempt struct {
		name, at string
		headers  []string
	}
	attempts := []attempt{
		{"by another client", joinedAt(base), []string{stolen, bearer(thiefToken)}},
		{"without credentials", joinedAt(base), []string{stolen}},
		{"before the thief's own", joinedAt(base), []string{stolen, sessionHeader(t, joinedAt(base), bearer(thiefToken)),
			bearer(thiefToken)}},
		{"at another gateway", joinedAt("http://" + another), []string{stolen, bearer(victimToken)}},
	}
	for _, chosen := range []string{"1", "0", "attacker-chosen", "session-1", strings.Repeat("A", 300),
		changeLetter(stolen[len("Mcp-Session-Id: "):], 20), stolen[len("Mcp-Session-Id: "):] + "A"} {
		attempts = append(attempts, attempt{"with a chosen ID: " + chosen[:min(20, len(chosen))], joinedAt(base),
			[]string{"Mcp-Session-Id: " + chosen, bearer(thiefToken)}})
	}
	for _, server := range []string{"far", "own", "shared"} {
		bound := sessionHeader(t, mcpAt(base, server), bearer(victimToken))
		id := strings.TrimPrefix(bound, "Mcp-Session-Id: ")
		attempts = append(attempts, attempt{"of the server " + server, mcpAt(base, server),
			[]string{bound, bearer(thiefToken)}},
			attempt{"of the server " + server + " as the server knows it", mcpAt(base, server),
				[]string{"Mcp-Session-Id: " + id[:max(1, strings.LastIndexByte(id, '.'))], bearer(thiefToken)}},
			attempt{"of the server " + server + " at /rpc", rpcAt(base, server), []string{bound, bearer(thiefToken)}})
	}
	before := len(far.Received("tools/call"))
	for _, a := range attempts {
		t.Run("A57 a session "+a.name, func(t *testing.T) {
			for _, m := range []struct{ method, body string }{
				{"POST", rpc("tools/call", `{"name":"far__tool","arguments":{}}`)},
				{"POST", rpc("tools/call", `{"name":"tool","arguments":{}}`)},
				{"POST", `{"jsonrpc":"2.0","method":"notifications/foo"}`}, {"GET", ""}, {"DELETE", ""},
			} {
				if m.method != "POST" && strings.HasSuffix(a.at, "/rpc") {
					continue
				}
				got := sendAllHeaders(t, client, m.method, a.at, m.body, append(slices.Clone(a.headers), "Last-Event-ID: 1")...)
				if got.StatusCode < 400 {
					t.Errorf("%s %s: %d %s", m.method, m.body, got.StatusCode, got.body)
				}
			}
		})
	}
	if n := len(far.Received("tools/call")) - before; n > 0 {
		t.Errorf("the server was called %d times, want 0", n)
	}
	t.Run("A57 the session and its stream still work for the client", func(t *testing.T) {
		if got := victim.use(t, "far", "tool", `{}`); strings.HasPrefix(got, "not a text") {
			t.Errorf("got %s, want a text", got)
		}
		far.Say(`{"jsonrpc":"2.0","method":"vendor/for-the-victim"}`)
		if m := stream.next(t); m.Method != "vendor/for-the-victim" {
			t.Errorf("received %s", m.Raw)
		}
	})
	t.Run("A57 ids cannot be guessed", func(t *testing.T) {
		seen := map[string]bool{}
		for range 100 {
			id := strings.TrimPrefix(sessionHeader(t, joinedAt("http://"+another), bearer(victimToken)), "Mcp-Session-Id: ")
			for _, part := range []string{id[:16], id[len(id)-16:]} { // the nonce, and the seal
				if seen[part] {
					t.Fatalf("%s occurs twice", part)
				}
				seen[part] = true
			}
		}
	})
	t.Run("A57 a session in a similar header name that some servers accept", func(t *testing.T) { // GHSA-f59h-q822-g45g
		server := newLenientServer(t, "echo")
		url := serve(t, gateway("separator __", twoTokens(), server.line("alpha")))
		for _, way := range endpointsOf(url, "alpha") {
			post(t, way.url, rpc("initialize", `{`+initParams+`}`), "Mcp_Session_Id: stolen", "MCP_Session-ID: stolen",
				acceptBoth, bearer(thiefToken))
		}
		for _, r := range server.Received() {
			for name, values := range r.HTTP.Header {
				if strings.EqualFold(strings.ReplaceAll(name, "_", "-"), "Mcp-Session-Id") && slices.Contains(values, "stolen") {
					t.Errorf("the server received %s %v", name, values)
				}
			}
		}
	})
}

// A prefix of a name or path does not match the name or path (CVE-2025-53110).
func TestSecurityPrefixConfusion(t *testing.T) {
	isolate(t)
	alpha, beta := newLenientServer(t, "b__echo", "beta::echo", "echo", "beta__echo"),
		newLenientServer(t, "echo", "b__echo")
	alpha.Resources = []string{"file:///srv/data/a"}
	address := freeAddress(t)
	load(t, site(address, gateway(append(rulesForEve("allow tool:alpha::* resource:alpha::file:///srv/data"),
		alpha.line("alpha"), block(beta.line("beta"), "alias b"))...)))
	base := "http://" + address
	legacy := newTestClient(t, joinedAt(base), false, fullCapabilities, bearer(eveToken))
	modern := newTestClient(t, joinedAt(base), true, fullCapabilities, bearer(eveToken))
	for _, uri := range []string{
		"file:///srv/data-evil/a", "file:///srv/data2", "file:///srv/data.bak", "file:///srv/data%2Devil",
		"file:///srv/data/../secret", "file:///srv/data/..%2Fsecret", "file:///srv/data/%2e%2e/secret",
		"file:///srv/data/%252e%252e/secret", `file:///srv/data/..\secret`, "file:///srv/data/%5C..%5Csecret",
		"file:///srv/data/./../secret", "file:///srv/data//../../secret", "file:///srv/data/a/../../data-evil",
		"file:///srv", "file:///srv/",
		"FILE:///srv/data-evil", "file://localhost/srv/data-evil", "file://evil.test/srv/data", "file:/srv/data-evil",
		"file:srv/data-evil", "/srv/data", "file:///srv/data\u0000/../secret", "file:///srv/data;/../secret",
		"file:///srv/data?/../secret",
		"http://203.0.113.1/srv/data", "file:///srv/DATA-evil", "proxy://resource/file:///srv/data",
		" file:///srv/data-evil", "file:///srv/data\n/../secret",
	} {
		t.Run("A55 "+uri, func(t *testing.T) {
			for _, method := range []string{"resources/read", "resources/subscribe"} {
				params := `{"uri":` + quote(uri) + `}`
				for _, way := range endpointsOf(base, "alpha")[1:] {
					if got := post(t, way.url, rpc(method, params), acceptBoth, bearer(eveToken)); got.StatusCode < 400 {
						t.Errorf("%s at %s: %d %s", method, way.name, got.StatusCode, got.body)
					}
				}
				for _, proxied := range []string{proxiedURI("alpha", uri), "proxy://template/alpha/" + uri, uri} {
					for _, c := range []*testClient{legacy, modern} {
						if c.Modern && strings.ContainsFunc(proxied, unicode.IsControl) {
							continue // control characters cannot be in a header
						}
						if got := c.ask(t, method, `{"uri":`+quote(proxied)+`}`); got.answer.Error == nil {
							t.Errorf("%s of %s: %s", method, proxied, got.answer.Raw)
						}
					}
				}
			}
		})
	}
	for _, method := range []string{"resources/read", "resources/subscribe"} {
		if got := alpha.params(method); len(got) > 0 {
			t.Errorf("alpha received %s %q", method, got)
		}
	}
	t.Run("A55 paths below the allowed prefix", func(t *testing.T) {
		for _, uri := range []string{"file:///srv/data", "file:///srv/data/", "file:///srv/data/a",
			"file:///srv/data/x/../a"} {
			if got := post(t, rpcAt(base, "alpha"), rpc("resources/read", `{"uri":`+quote(uri)+`}`),
				bearer(eveToken)); got.StatusCode != 200 {
				t.Errorf("%s: got %d %s, want 200", uri, got.StatusCode, got.body)
			}
		}
	})
	t.Run("A53 spellings of another server's name", func(t *testing.T) {
		for _, name := range []string{"beta", "b", "%62eta", "alpha/../beta", "alpha%2f..%2fbeta", "./beta", "/beta",
			"beta/", "beta%2f", "beta%00", "BETA", "%2e%2e/mcp/beta", "alpha/../../mcp/beta", "alpha;beta", "beta?x=alpha",
			"alpha%0d%0abeta", "alpha%252f..%252fbeta"} {
			for _, path := range []string{"/mcp/" + name, "/api/mcp-gateway/" + name + "/rpc", "/api/mcp-gateway/alpha/../" +
				name + "/rpc"} {
				req := request(t, t.Context(), "POST", base, rpc("tools/call", `{`+echoes+`}`), acceptBoth, bearer(eveToken))
				req.URL = &url.URL{Scheme: "http", Host: address, Opaque: path} // sent unchanged
				res, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				res.Body.Close()
			}
		}
	})
	t.Run("A12 spellings of another server's prefix", func(t *testing.T) {
		for _, c := range []*testClient{legacy, modern} {
			for _, name := range []string{"beta__echo", "beta::echo", "b__echo", "b::echo", "BETA__echo", " beta__echo",
				"__beta__echo", "::beta::echo", "alpha__beta::echo", "alpha::beta__echo", "alpha__b__echo", "alpha/../beta__echo",
				"alpha\u0000__echo", "beta__echo__alpha"} {
				if !c.Modern || !strings.ContainsFunc(name, unicode.IsControl) {
					c.ask(t, "tools/call", `{"name":`+quote(name)+`,"arguments":{}}`)
				}
			}
		}
		if got := alpha.params("tools/call"); !slices.ContainsFunc(got,
			func(params string) bool { return strings.Contains(params, `"beta__echo"`) }) {
			t.Errorf("alpha's own tool was not called: %q", got)
		}
	})
	if n := beta.Count(); n > 0 {
		t.Errorf("beta received %v", beta.Received())
	}
	t.Run("A12 ambiguous server names are refused", func(t *testing.T) {
		for _, name := range []string{"alpha__b", "alpha_", "alpha::b"} {
			expectConfigError(t, "text/caddyfile",
				withAdmin(site(freeAddress(t), gateway("separator __", alpha.line("alpha"), beta.line(name))), adminAddress(t)),
				"separates server and tool names")
		}
	})
}

// The proxy removes headers that a client names in Connection. It must not remove headers that
// the operator sets for the server.
func TestSecurityHopByHopHeaders(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, "echo")
	url := serve(t, gateway("separator __", twoTokens(),
		block(server.line("alpha"), `request_header X-User {http.mcp.client}`,
			`request_header Authorization "Bearer of-the-gateway"`)))
	for _, way := range endpointsOf(url, "alpha") {
		body := rpc("tools/call", `{`+echoes+`}`)
		if way.name == "/mcp" {
			body = rpc("initialize", `{`+initParams+`}`)
		}
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(patience))
		_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: x-user, "+
			"Authorization\r\nConnection: close, X-Forwarded-For\r\nX-User: admin\r\n%s\r\nContent-Type: "+
			"application/json\r\n%s\r\nContent-Length: %d\r\n\r\n%s",
			pathOf(t, way.url), bearer(thiefToken), acceptBoth, len(body), body)
		if status, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(status, "200") {
			t.Errorf("%s: %q %v", way.name, status, err)
		}
	}
	for _, r := range server.Received() {
		if r.HTTP.Header.Get("X-User") != "thief" || r.HTTP.Header.Get("Authorization") != "Bearer of-the-gateway" ||
			r.HTTP.Header.Get("X-Forwarded-For") == "" {
			t.Errorf("the server received %v", r.HTTP.Header)
		}
	}
}

// Matching of client input against patterns of rules, redaction and templates never takes
// exponential time (CVE-2026-0621).
func TestSecurityBacktracking(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, "echo")
	stars := strings.Repeat("*a", 40)
	url := serve(t, gateway(append(rulesForEve("deny alpha::"+stars+"b prompt:alpha::"+stars+"b",
		`redact "(a+)+$" "(a|aa)+b" "(.*)*x"`), "rate alpha::"+stars+"b 1/1m", "name patterns",
		block(server.line("alpha"), "expose "+stars+"c echo"))...))
	if got := admin(t, "POST", "/mcp_gateway/templates?gateway=patterns",
		`{"name":"many","uriTemplate":"many://{a}-{b}-{c}-{d}-{e}-{f}-{g}-{h}-end","text":"x"}`); got.StatusCode >= 300 {
		t.Fatalf("got %d %s", got.StatusCode, got.body)
	}
	long := strings.Repeat("a", 100_000)
	c := newTestClient(t, joinedAt(url), false, fullCapabilities, bearer(eveToken))
	for _, params := range []string{`{"name":"echo","arguments":{"text":"` + long + `"}}`, `{"name":"` + long +
		`","arguments":{}}`} {
		for _, way := range endpointsOf(url, "alpha")[1:] {
			post(t, way.url, rpc("tools/call", params), acceptBoth, bearer(eveToken)) // must respond before the client's timeout
		}
		c.ask(t, "tools/call", strings.Replace(params, `"name":"`, `"name":"alpha__`, 1))
	}
	for _, uri := range []string{"many://" + long[:8000], "many://" + strings.Repeat("a-", 4000) + "en",
		proxiedURI("alpha", "file:///"+long), "file:///" + strings.Repeat("a/../", 20_000), "file:///" +
			strings.Repeat("%25", 20_000) + "2e"} {
		c.ask(t, "resources/read", `{"uri":`+quote(uri)+`}`)
		post(t, mcpAt(url, "alpha"), rpc("resources/read", `{"uri":`+quote(uri)+`}`), acceptBoth, bearer(eveToken))
	}
	if n := len(server.params("tools/call")); n == 0 {
		t.Error("the server was not called")
	}
}

// Unauthenticated requests are cheap: the gateway reads only as much of a body as may contain
// credentials, and does not wait forever.
func TestSecurityBodiesOfStrangers(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, "echo")
	setenv(t, "STRANGERS_SECRET", "secret-AbCdEf0123456789")
	caddy := run(t, writeCaddyfile(t, block(":8080", "bind 127.0.0.1",
		gateway("auth token s3-AbCdEf0123456789 carol", block("auth hmac", "client dave {env.STRANGERS_SECRET}"),
			"in_flight_limit 64MiB", server.line("alpha")))), caddyrun.DefaultGC)
	base := "http://" + caddy.address
	before := peakMemory(t, caddy.Process.Pid)
	const length, connections = 10 << 20, 60
	var sent sync.WaitGroup
	signed := signedHeader("dave", "another-secret-0123456789", "POST", "/mcp", "")
	for i := range connections {
		conn, err := net.Dial("tcp", caddy.address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		credentials := []string{"X-None: none", bearer("wrong-AbCdEf0123456789"), signed}[i%3]
		_, _ = fmt.Fprintf(conn, "POST /mcp HTTP/1.1\r\nHost: %s\r\nContent-Type: "+
			"application/json\r\n%s\r\nContent-Length: %d\r\n\r\n", caddy.address, credentials, length)
		// Send everything, although Caddy may close the connection earlier.
		sent.Go(func() { _, _ = conn.Write(make([]byte, length-200)) })
	}
	sent.Wait()
	got := sendAllHeaders(t, client, "POST", rpcAt(base, "alpha"), rpc("tools/call", `{`+echoes+`}`),
		bearer("s3-AbCdEf0123456789"))
	if got.StatusCode != 200 {
		t.Errorf("a client with valid credentials: got %d %s, want 200", got.StatusCode, got.body)
	}
	if grown := peakMemory(t, caddy.Process.Pid) - before; grown > 64<<10 && !hasRaceDetector(t) {
		t.Errorf("the process grew by %d KiB, want at most 64 MiB", grown)
	}
}

// Large requests of one client use at most half of in_flight_limit, and other clients are still
// served.
func TestSecurityBytesInFlight(t *testing.T) {
	isolate(t)
	server := newBarrierServer(t, 1_000) // never reached: no call gets a response
	caddy := run(t, writeCaddyfile(t, block(":8080", "bind 127.0.0.1",
		gateway("in_flight_limit 64MiB", block("auth token", "alice "+victimToken, "eve "+thiefToken),
			server.line("alpha")))), caddyrun.DefaultGC)
	base := "http://" + caddy.address
	before := peakMemory(t, caddy.Process.Pid)
	large := rpc("tools/call", `{"name":"echo","arguments":{"text":"`+strings.Repeat("x", 5<<20)+`"}}`)
	refused := make(chan httpResponse, 64)
	for range cap(refused) {
		go func() {
			req := request(t, t.Context(), "POST", mcpAt(base, "alpha"), large, acceptBoth, bearer(thiefToken))
			if res, err := streamClient.Do(req); err == nil {
				text, _ := io.ReadAll(res.Body)
				res.Body.Close()
				refused <- httpResponse{res, string(text)}
			}
		}()
	}
	for range cap(refused) - 6 { // half of the limit is enough for 6 of them
		select {
		case got := <-refused:
			if f := gatewayErrorOf(t, got); f.Status != 503 || f.Symbol != "busy" || got.Header.Get("Retry-After") == "" {
				t.Fatalf("got %d %v %s", got.StatusCode, got.Header, got.body)
			}
		case <-time.After(patience):
			t.Fatal("too few were refused")
		}
	}
	await.Until(t, "the calls within the limit", func() bool { return server.Count("tools/call") == 6 })
	if got := sendAllHeaders(t, client, "POST", mcpAt(base, "alpha"),
		rpc("tools/list", `{"pad":"`+strings.Repeat("x", 1<<20)+`"}`), bearer(victimToken)); got.StatusCode != 200 {
		t.Errorf("another client: got %d %s, want 200", got.StatusCode, got.body)
	}
	if grown := peakMemory(t, caddy.Process.Pid) - before; grown > 128<<10 && !hasRaceDetector(t) {
		t.Errorf("the process grew by %d KiB, want at most 128 MiB", grown)
	}
}

// newReplayer starts a server whose streams can be resumed. Its event IDs can be guessed, and it
// has no sessions: it does not distinguish clients.
func newReplayer(t *testing.T) *remoteServer {
	t.Helper()
	var mu sync.Mutex
	var results []string
	return serveScript(t, &mcptest.Script{Sessionless: true, Legacy: true, Capabilities: `{"tools":{}}`,
		Handle: func(w http.ResponseWriter, r *mcptest.Received) bool {
			mu.Lock()
			defer mu.Unlock()
			last, err := strconv.Atoi(r.HTTP.Header.Get("Last-Event-Id"))
			switch {
			case r.Method == "GET" && err == nil:
				w.Header().Set("Content-Type", "text/event-stream")
				for i, result := range results[min(last, len(results)):] {
					fmt.Fprintf(w, "id: %d\ndata: %s\n\n", last+i+1, result)
				}
			case r.Method == "tools/call":
				var arguments struct{ Patient string }
				_ = json.Unmarshal([]byte(r.Param("arguments")), &arguments)
				results = append(results, r.Message(mcptest.Text("results of "+arguments.Patient)))
				w.Header().Set("Content-Type", "text/event-stream")
				fmt.Fprintf(w, "id: %d\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\","+
					"\"params\":{\"progressToken\":1,\"progress\":1}}\n\n", len(results)-1)
				fmt.Fprintf(w, "id: %d\ndata: %s\n\n", len(results), results[len(results)-1])
			default:
				return false
			}
			return true
		}})
}

// A client can resume only its own streams.
func TestSecurityStreamsOfOthers(t *testing.T) {
	isolate(t)
	url := serve(t, gateway("separator __", twoTokens(), newReplayer(t).line("up")))
	for _, endpoint := range []string{joinedAt(url), mcpAt(url, "up")} {
		t.Run(strings.TrimPrefix(endpoint, url), func(t *testing.T) {
			tool, guesses := "x", []string{"0", "1"}
			session := map[string][]string{victimToken: nil, thiefToken: nil}
			if endpoint == joinedAt(url) {
				tool, guesses = "up__x", []string{"call:MQ/up/0", "call:MQ/up/1"}
				for token := range session {
					session[token] = []string{sessionHeader(t, endpoint, bearer(token))}
				}
			}
			resumes := func(token, last string) httpResponse {
				t.Helper()
				return send(t, client, "GET", endpoint, "", append(session[token], bearer(token), "Accept: text/event-stream",
					"Last-Event-Id: "+last)...)
			}
			stream := post(t, endpoint, rpc("tools/call", `{"name":"`+tool+`","arguments":{"patient":"victim"},`+
				`"_meta":{"progressToken":1}}`), append(session[victimToken], bearer(victimToken), acceptBoth)...).body
			_, last, _ := strings.Cut(stream, "id: ")
			last, _, _ = strings.Cut(last, "\n")
			if got := resumes(victimToken, last); got.StatusCode != 200 || !strings.Contains(got.body, "results of victim") {
				t.Errorf("the victim resumes after %q and gets %d %s", last, got.StatusCode, got.body)
			}
			for _, last := range append(guesses, last) {
				if got := resumes(thiefToken, last); got.StatusCode != 400 || strings.Contains(got.body, "victim") {
					t.Errorf("the thief resumes after %q and gets %d %s", last, got.StatusCode, got.body)
				}
			}
		})
	}
}

// newWorker starts a server with tasks that any client may use. It compresses its responses.
func newWorker(t *testing.T) (server *remoteServer) {
	t.Helper()
	var mu sync.Mutex
	var tasks []string
	server = serveScript(t, &mcptest.Script{
		Sessionless: true, Legacy: true, Tools: []string{"dig"}, Capabilities: `{"tools":{},"tasks":{"list":{},"cancel":{}}}`,
		Handle: func(w http.ResponseWriter, r *mcptest.Received) bool {
			if strings.Contains(r.HTTP.Header.Get("Accept-Encoding"), "gzip") && r.ID != nil {
				w.Header().Set("Content-Encoding", "gzip")
				zipped := gzip.NewWriter(w)
				defer zipped.Close()
				w = zippedWriter{w, zipped}
			}
			mu.Lock()
			defer mu.Unlock()
			var id string
			_ = json.Unmarshal([]byte(r.Param("taskId")), &id)
			list := func(format string) (all []string) {
				for _, id := range tasks {
					all = append(all, fmt.Sprintf(format, id))
				}
				return all
			}
			switch r.Method {
			case "tools/call":
				id = fmt.Sprint("t", len(tasks))
				tasks = append(tasks, id)
				task := `"taskId":"` + id + `","status":"working"}`
				if r.Param("task") == "" { // a modern request
					r.Answer(w, `"result":{"resultType":"task",`+task)
				} else {
					r.Answer(w, `"result":{"task":{`+task+`}`)
				}
			case "tasks/list":
				r.Answer(w, `"result":{"tasks":[`+strings.Join(list(`{"taskId":"%s","status":"working"}`), ",")+`]}`)
			case "tasks/get", "tasks/result", "tasks/cancel", "tasks/update":
				r.Answer(w, `"result":{"taskId":"`+id+`","status":"working"}`)
			case "subscriptions/listen": // every subscriber receives all notifications
				all := list(`{"jsonrpc":"2.0","method":"notifications/tasks","params":{"taskId":"%s","status":"completed",` +
					`"result":{}}}`)
				r.Stream(w, append(all, r.Message(`"result":{}`))...)
			default:
				if r.ID != nil {
					server.Answer(w, r)
				}
				return r.ID != nil
			}
			return true
		},
	})
	return server
}

// A zippedWriter compresses the response body.
type zippedWriter struct {
	http.ResponseWriter
	zipped *gzip.Writer
}

func (w zippedWriter) Write(p []byte) (int, error) { return w.zipped.Write(p) }

// Only the client that created a task may use it, and only while it may use the tool.
func TestSecurityTasksOfOthers(t *testing.T) {
	isolate(t)
	up := newWorker(t)
	seen := func() int {
		return up.Count("tasks/get", "tasks/result", "tasks/cancel", "tasks/update", "subscriptions/listen")
	}
	address := freeAddress(t)
	line := up.line("up")
	load(t, site(address, gateway("separator __", "mask off", twoTokens(), line)))
	url := "http://" + address
	type way struct {
		name, at, tool string
		members        string // further params of a call
	}
	ways := []way{
		{"/mcp", joinedAt(url), "up__dig", `"task":{}`},
		{"/mcp/{server}", mcpAt(url, "up"), "dig", `"task":{}`},
		{"/mcp/{server}, modern", mcpAt(url, "up"), "dig",
			`"_meta":{"io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}`},
		{"/rpc", rpcAt(url, "up"), "dig", `"task":{}`},
	}
	ask := func(t *testing.T, way way, token, method, params string) string {
		t.Helper()
		headers := []string{bearer(token), acceptBoth, connectionClose, "Accept-Encoding: gzip"}
		if way.name == "/mcp" {
			headers = append(headers, sessionHeader(t, way.at, bearer(token)))
		}
		body := post(t, way.at, rpc(method, params), headers...).body
		if method == "subscriptions/listen" {
			return body
		}
		return answerIn(body)
	}
	methods := []string{"tasks/get", "tasks/result", "tasks/cancel", "tasks/update"}
	created := map[string]string{}
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			var got struct {
				Result struct {
					TaskID string `json:"taskId"`
					Task   struct {
						TaskID string `json:"taskId"`
					}
				}
			}
			text := ask(t, way, victimToken, "tools/call", `{"name":"`+way.tool+`","arguments":{},`+way.members+`}`)
			_ = json.Unmarshal([]byte(text), &got)
			id := got.Result.TaskID + got.Result.Task.TaskID
			created[way.name] = id
			if id == "" {
				t.Fatalf("no task: %s", text)
			}
			before := seen()
			for _, method := range methods {
				if text := ask(t, way, thiefToken, method, `{"taskId":"`+id+`"}`); !strings.Contains(text, "-32602") ||
					seen() != before {
					t.Errorf("%s of another's task: %s", method, text)
				}
			}
			for _, method := range methods {
				if text := ask(t, way, victimToken, method, `{"taskId":"`+id+`"}`); !strings.Contains(text, "working") {
					t.Errorf("%s: %s", method, text)
				}
			}
			if text := ask(t, way, thiefToken, "tasks/list", `{}`); !strings.Contains(text, `"tasks":[]`) {
				t.Errorf("tasks/list of another client: %s", text)
			}
			if text := ask(t, way, victimToken, "tasks/list", `{}`); !strings.Contains(text, `"`+id+`"`) {
				t.Errorf("tasks/list: %s", text)
			}
			if way.name == "/mcp" {
				return // /mcp does not subscribe to tasks
			}
			before = seen()
			if text := ask(t, way, thiefToken, "subscriptions/listen", `{"notifications":{"taskIds":["`+id+
				`"]}}`); !strings.Contains(text, "-32602") || seen() != before {
				t.Errorf("the thief subscribed to another's task: %s", text)
			}
			if text := ask(t, way, thiefToken, "subscriptions/listen", `{"notifications":{}}`); strings.Contains(text,
				"taskId") || seen() == before {
				t.Errorf("the thief subscribed: %s", text)
			}
			text = ask(t, way, victimToken, "subscriptions/listen", `{"notifications":{"taskIds":["`+id+`"]}}`)
			// /rpc has no events
			if received := strings.Contains(text, `"`+id+`"`); received != (way.name != "/rpc") || !strings.Contains(text,
				`"result":{}`) {
				t.Errorf("the victim subscribed: %s", text)
			}
		})
	}
	t.Run("after the tool was denied", func(t *testing.T) {
		load(t, site(address, gateway("separator __", twoTokens(), block("client victim", "deny up::dig"), line)))
		for _, way := range ways {
			before := seen()
			if text := ask(t, way, victimToken, "tasks/result", `{"taskId":"`+created[way.name]+`"}`); !strings.Contains(text,
				"error") || seen() != before {
				t.Errorf("%s: %s", way.name, text)
			}
			if text := ask(t, way, victimToken, "tasks/list", `{}`); strings.Contains(text, "working") {
				t.Errorf("%s, tasks/list: %s", way.name, text)
			}
		}
	})
}

// One client cannot use up the limit of calls that wait for client input, whatever capabilities
// it declares.
func TestSecurityHeldCallsOfOthers(t *testing.T) {
	isolate(t)
	remote := &mcptest.Remote{Name: "far", Legacy: true}
	t.Cleanup(remote.Close)
	endpoint := joinedAt(serve(t, gateway("separator __", twoTokens(), "server far http://"+upstream(t, remote)+"/mcp")))
	asks := func(token string, i int) mcpclient.Message {
		t.Helper()
		c := newTestClient(t, endpoint, true, fmt.Sprintf(`{"elicitation":{"form":{}},"experimental":{"%d":{}}}`, i),
			bearer(token))
		return c.ask(t, "tools/call", callOf("far", "ask", `{"method":"elicitation/create","params":{"message":"m"}}`)).answer
	}
	held := 0
	for i := range 40 {
		if strings.Contains(asks(thiefToken, i).Raw, "input_required") {
			held++
		}
	}
	if held != 32 {
		t.Errorf("%d calls of one client are held, want 32", held)
	}
	asks(victimToken, 0).Input(t)
}

// An ended session stays ended, even after other clients start sessions.
func TestSecurityEndedSessions(t *testing.T) {
	isolate(t)
	remote := &mcptest.Remote{Name: "far", Legacy: true}
	t.Cleanup(remote.Close)
	endpoint := joinedAt(serve(t, gateway("separator __", twoTokens(), "max_sessions 2", "server far http://"+
		upstream(t, remote)+"/mcp")))
	session := sessionHeader(t, endpoint, bearer(victimToken))
	uses := func() int {
		t.Helper()
		return post(t, endpoint, rpc("tools/list", `{}`), session, bearer(victimToken), acceptBoth).StatusCode
	}
	if got := uses(); got != 200 {
		t.Fatalf("the session: %d", got)
	}
	if got := send(t, client, "DELETE", endpoint, "", session, bearer(victimToken)); got.StatusCode != 204 {
		t.Fatalf("DELETE: got %d %s, want 204", got.StatusCode, got.body)
	}
	for range 4 {
		sessionHeader(t, endpoint, bearer(thiefToken))
	}
	if got := uses(); got != 404 {
		t.Errorf("the ended session: got %d, want 404", got)
	}
}

// expressServer starts the server of peers/express.mjs. The function returns the tool names and
// methods as Express parsed them.
func expressServer(t *testing.T) (address string, seen func() (names, methods []string)) {
	t.Helper()
	address = freeAddress(t)
	start(t, peer(t, "express.mjs", address[strings.LastIndexByte(address, ':')+1:]), "listening on port")
	return address, func() (names, methods []string) {
		t.Helper()
		var all []struct{ Method, Name string }
		if err := json.Unmarshal([]byte(send(t, client, "GET", "http://"+address+"/seen", "").body), &all); err != nil {
			t.Fatal(err)
		}
		for _, m := range all {
			names, methods = append(names, m.Name), append(methods, m.Method)
		}
		return names, methods
	}
}

// Decoded as UTF-7, these are different messages: the second names another tool, the third has
// another method.
const (
	callsDelete = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"delete_file","arguments":{}}}`
	hidesDelete = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{},` +
		`"x":"+ACIALAAi-name+ACIAOgAi-delete+AF8-file+ACIALAAi-y+ACIAOgAi-"}}`
	hidesToolList = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{},` +
		`"x":"+ACIAfQAsACIAbQBlAHQAaABvAGQAIgA6ACIAdABvAG8AbABzAC8AbABpAHMAdAAiACwAIgBwAGEAcgBhAG0AcwAiADoAewAiAHkAIgA6ACI-"}}`
)

// The gateway checks the same message that the server reads, whatever encoding the client declares.
// Express decodes bodies in the charset of the Content-Type.
func TestSecurityOneReading(t *testing.T) {
	isolate(t)
	address, seen := expressServer(t)
	direct := post(t, "http://"+address+"/mcp", hidesDelete, acceptBoth, "Content-Type: application/json; charset=utf-7")
	if names, _ := seen(); direct.StatusCode != 200 || !slices.Equal(names, []string{"delete_file"}) {
		t.Fatalf("Express does not decode UTF-7, so the test proves nothing: %d %s", direct.StatusCode, direct.body)
	}
	url := serve(t, gateway(append(rulesForEve("deny files::delete_*"), "server files http://"+address+"/mcp")...))
	for _, way := range endpointsOf(url, "files") {
		headers := []string{acceptBoth, bearer(eveToken)}
		before, _ := seen()
		if way.name == "/mcp" {
			headers = append(headers, sessionHeader(t, way.url, bearer(eveToken)))
		}
		for _, body := range []string{hidesDelete, hidesToolList} {
			for _, contentType := range []string{
				"application/json; charset=utf-7", `application/json;CHARSET="Utf-7"`, "application/json; charset=utf-7-imap",
				"application/json; charset=utf-16le",
				"text/plain; charset=utf-7", "application/x-www-form-urlencoded; charset=utf-7",
				"application/json; charset=utf-7; x", "application/json; charset*=utf-8''utf-7",
				"application/json; charset=utf-8; charset=utf-7",
			} {
				got := post(t, way.url, body, append(headers, "Content-Type: "+contentType)...)
				if f := gatewayErrorOf(t, got); f.Status != 415 || f.Symbol != "invalid_request" || !strings.Contains(got.body,
					"charset") {
					t.Errorf("%s %s: %d %s", way.name, contentType, got.StatusCode, got.body)
				}
			}
			for _, contentType := range []string{
				"application/json; charset=utf-8", "application/json;charset=UTF8", "application/json",
				"application/x-www-form-urlencoded", "text/plain", "", "none",
			} {
				req := request(t, t.Context(), "POST", way.url, body, headers...)
				req.Header["Content-Type"] = []string{contentType}
				if contentType == "none" {
					req.Header.Del("Content-Type")
				}
				res, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				res.Body.Close()
				if res.StatusCode >= 500 {
					t.Errorf("%s %q: %d", way.name, contentType, res.StatusCode)
				}
			}
			req := request(t, t.Context(), "POST", way.url, body, headers...)
			req.Header["Content-Type"] = []string{"application/json", "application/json; charset=utf-7"}
			res, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if res.StatusCode != 415 {
				t.Errorf("%s, two Content-Types: got %d, want 415", way.name, res.StatusCode)
			}
		}
		names, methods := seen()
		names, methods = names[len(before):], methods[len(before):]
		// /mcp itself lists tools
		if slices.Contains(names, "delete_file") || slices.Contains(methods, "tools/list") && way.name != "/mcp" ||
			len(names) == 0 {
			t.Errorf("%s: Express read the methods %q and the tools %q", way.name, methods, names)
		}
		if way.name == "/mcp" {
			continue
		}
		if got := gatewayErrorOf(t, post(t, way.url, callsDelete, headers...)); got.Status != 403 {
			t.Errorf("%s: %+v", way.name, got)
		}
	}
}

// Headers that contradict the message could make a server, or a proxy in front of it, do something
// else than the gateway has allowed.
func TestSecurityContradictingHeaders(t *testing.T) {
	isolate(t)
	w := newLenientServer(t, "echo", "delete_file")
	url := serve(t, gateway(append(rulesForEve("deny files::delete_*"), w.line("files"))...))
	call := rpc("tools/call", `{"name":"echo","arguments":{}}`)
	for _, way := range endpointsOf(url, "files")[1:] {
		for _, headers := range [][]string{
			{"Mcp-Name: delete_file"}, {"Mcp-Method: tools/list"}, {"Mcp-Method: tools/call", "Mcp-Name: delete_file"},
			{"Mcp-Method: tools/call", "Mcp-Name: =?base64?ZGVsZXRlX2ZpbGU=?="},
		} {
			before := w.Count()
			got := post(t, way.url, call, append(headers, acceptBoth, bearer(eveToken))...)
			if f := gatewayErrorOf(t, got); f.Status != 400 || f.Symbol != "header_mismatch" || w.Count() != before {
				t.Errorf("%s %q: %d %s", way.name, headers, got.StatusCode, got.body)
			}
		}
		for _, headers := range [][]string{nil, {"Mcp-Method: tools/call", "Mcp-Name: echo"},
			{"Mcp-Name: =?base64?ZWNobw==?="}} {
			if got := post(t, way.url, call, append(headers, acceptBoth, bearer(eveToken))...); got.StatusCode != 200 {
				t.Errorf("%s %q: got %d %s, want 200", way.name, headers, got.StatusCode, got.body)
			}
		}
	}
}

// A client cannot override the path, the method or the charset of a request to a server.
func TestSecurityOverridingHeaders(t *testing.T) {
	isolate(t)
	w := newLenientServer(t, "echo")
	url := serve(t, gateway("separator __", block("client eve", "token "+eveToken), w.line("files")))
	overrides := map[string]string{
		"X-Original-Url": "/admin", "X-Rewrite-Url": "/admin", "X-Http-Method-Override": "DELETE", "X-Http-Method": "DELETE",
		"X-Method-Override": "DELETE", "Accept-Charset": "utf-16",
		"X-Original-Uri": "/admin", "X-Original-Method": "DELETE", "X-Forwarded-Uri": "/admin",
		"X-Forwarded-Prefix": "/admin", "X-Forwarded-Path": "/admin", "X-Forwarded-Method": "DELETE",
		"X_original_url": "/admin", "X_http_method_override": "DELETE",
		"X-Api-Key": "of the client", "Api-Key": "of the client", "X-Goog-Api-Key": "of the client",
		"Proxy-Authorization": "Bearer x", "X_api_key": "of the client",
	}
	for _, way := range endpointsOf(url, "files") {
		before := w.Count()
		headers := []string{acceptBoth, bearer(eveToken), "X-Tenant: mine"}
		for name, value := range overrides {
			headers = append(headers, name+": "+value)
		}
		if way.name == "/mcp" {
			post(t, way.url, rpc("initialize", `{`+initParams+`}`), headers...)
		} else {
			post(t, way.url, rpc("tools/call", `{`+echoes+`}`), headers...)
			send(t, &http.Client{Timeout: patience}, "DELETE", mcpAt(url, "files"), "", headers...)
		}
		for _, r := range w.Received()[before:] {
			for name := range r.HTTP.Header {
				if overrides[name] != "" {
					t.Errorf("%s: the server received %s: %s", way.name, name, r.HTTP.Header.Get(name))
				}
			}
			if r.HTTP.Header.Get("X-Tenant") != "mine" {
				t.Errorf("%s: the server received %v", way.name, r.HTTP.Header)
			}
		}
		if w.Count() == before {
			t.Errorf("%s: the server received no request", way.name)
		}
	}
}

// HTTP/3 requests are checked like those over TCP. Requests in early data, before the handshake is
// complete, are refused: they can be replayed.
func TestSecurityHTTP3(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, "echo")
	authority := newAuthority(t, "trusted")
	certificate, key := writePEM(t, authority.issue(t, &x509.Certificate{Subject: pkix.Name{CommonName: "localhost"},
		DNSNames: []string{"localhost"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}))
	address := freeAddress(t)
	load(t, block("", "auto_https disable_redirects")+"\n"+
		site(address, "tls "+certificate+" "+key, gateway(twoTokens(), block("client thief", "deny alpha::echo"),
			server.line("alpha"))))
	_, port, _ := net.SplitHostPort(address)
	url := "https://localhost:" + port

	roots := x509.NewCertPool()
	roots.AddCert(authority.certificate)
	transport := &http3.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "localhost",
			ClientSessionCache: tls.NewLRUClientSessionCache(8)},
		QUICConfig: &quic.Config{TokenStore: quic.NewLRUTokenStore(1, 1)},
	}
	t.Cleanup(func() { transport.Close() })
	h3 := &http.Client{Transport: transport, Timeout: patience}
	call := rpc("tools/call", `{`+echoes+`}`)
	if got := sendAllHeaders(t, h3, "POST", mcpAt(url, "alpha"), call, bearer(victimToken)); got.StatusCode != 200 ||
		got.ProtoMajor != 3 {
		t.Fatalf("%s %d %s", got.Proto, got.StatusCode, got.body)
	}
	before := server.Count()
	for _, way := range endpointsOf(url, "alpha") {
		expectRefused(t, sendAllHeaders(t, h3, "POST", way.url, call), 401)
		if f := gatewayErrorOf(t, sendAllHeaders(t, h3, "POST", way.url, call, bearer(victimToken),
			"Origin: https://evil.example")); f.Symbol != "forbidden_origin" {
			t.Errorf("%s: %+v", way.name, f)
		}
		if f := gatewayErrorOf(t, sendAllHeaders(t, h3, "POST", way.url, call, bearer(victimToken),
			"Content-Type: application/json; charset=utf-7")); f.Status != 415 {
			t.Errorf("%s: %+v", way.name, f)
		}
	}
	expectRefused(t, sendAllHeaders(t, h3, "POST", mcpAt(url, "alpha"), call, bearer(thiefToken)), 403)
	if server.Count() != before {
		t.Error("the server received a request")
	}

	// A new connection sends its first request in early data, if possible.
	await.Until(t, "a request in early data", func() bool {
		transport.CloseIdleConnections()
		before := server.Count()
		req := request(t, t.Context(), http3.MethodGet0RTT, mcpAt(url, "alpha"), "", "Accept: text/event-stream",
			bearer(victimToken))
		res, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusTooEarly {
			return false
		}
		text, _ := io.ReadAll(res.Body)
		if !strings.Contains(string(text), `"invalid_request"`) || server.Count() != before {
			t.Errorf("%s; the server received %d requests", text, server.Count()-before)
		}
		return true
	})
}
