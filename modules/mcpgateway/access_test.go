package mcpgateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/pipenet"
)

// A recordingServer is an MCP server that records its requests.
type recordingServer struct {
	address string

	mu  sync.Mutex
	got []receivedRequest
}

// A receivedRequest is a request as a server received it.
type receivedRequest struct {
	method, uri, body string
	header            http.Header
}

func (w receivedRequest) is(method string) bool {
	return strings.Contains(w.body, `"method":"`+method+`"`)
}

// newRecordingServer starts a server that responds with answer, by default with an empty result.
func newRecordingServer(
	t *testing.T, answer func(w http.ResponseWriter, r *http.Request, got receivedRequest),
) *recordingServer {
	t.Helper()
	s := new(recordingServer)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got := receivedRequest{r.Method, r.URL.RequestURI(), string(body), r.Header.Clone()}
		s.mu.Lock()
		s.got = append(s.got, got)
		s.mu.Unlock()
		if answer != nil {
			answer(w, r, got)
			return
		}
		respond(w, got, `{}`)
	}))
	t.Cleanup(func() {
		upstream.CloseClientConnections()
		upstream.Close()
	})
	s.address = upstream.Listener.Addr().String()
	return s
}

// toolsHandshake is the result of initialize from a server that has tools.
const toolsHandshake = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},` +
	`"serverInfo":{"name":"x","version":"1"}}`

// respond responds to a request with a result, and to other messages with an empty body.
func respond(w http.ResponseWriter, got receivedRequest, result string) {
	var m jsonrpc.Message
	if m.Read([]byte(got.body)) != nil || !m.IsRequest() {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(jsonrpc.ResultResponse(m.Literal(jsonrpc.ID), []byte(result)))
}

// requests returns the requests that the server received.
func (s *recordingServer) requests() []receivedRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.got)
}

// config returns the server for a configuration.
func (s *recordingServer) config(name string) string { return serverOf(name, proxyTo("", s.address)) }

// newPost returns a POST request with a message. headers are pairs of name and value.
func newPost(path, message string, headers ...string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "http://localhost"+path, strings.NewReader(message))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return r
}

// serve returns the response of a gateway to a request.
func serve(t *testing.T, h *Handler, r *http.Request) *httptest.ResponseRecorder {
	t.Helper()
	return serveAs(t, h, "", r)
}

// serveAs returns the response of a gateway to a request of a user authenticated by Caddy.
func serveAs(t *testing.T, h *Handler, user string, r *http.Request) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	if err := h.ServeHTTP(w, prepareRequest(r, w, user), nil); err != nil {
		t.Fatal(err)
	}
	return w
}

// prepareRequest returns a request as the gateway gets it from Caddy.
func prepareRequest(r *http.Request, w http.ResponseWriter, user string) *http.Request {
	repl := caddy.NewReplacer()
	r = caddyhttp.PrepareRequest(r, repl, w, new(caddyhttp.Server))
	if user != "" {
		repl.Set("http.auth.user.id", user)
		caddyhttp.SetVar(r.Context(), "tenant", "tenant of "+user)
	}
	return r
}

// single lists the endpoints of server a.
var single = []string{"/mcp/a", "/api/mcp-gateway/a/rpc"}

// startSession starts a session at /mcp and returns its header value.
func startSession(t *testing.T, h *Handler, headers ...string) string {
	t.Helper()
	w := serve(t, h,
		newPost("/mcp",
			`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},`+
				`"clientInfo":{"name":"x","version":"1"}}}`, headers...))
	id := w.Header().Get(mcp.SessionHeader)
	if id == "" {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	return id
}

// denyRules returns the part of a configuration that denies patterns to all clients.
func denyRules(patterns ...string) string {
	text, _ := json.Marshal(patterns)
	return `"clients":[{"name":"*","rules":[{"action":"deny","patterns":` + string(text) + `}]}],`
}

func TestBodiesOfGETAndDELETE(t *testing.T) { // A54, A55
	server := newRecordingServer(t, nil)
	h := adaptGateway(t, `{`+denyRules("a::secret")+`"servers":[`+server.config("a")+`]}`)
	for _, method := range []string{http.MethodGet, http.MethodDelete} {
		for _, path := range []string{"/mcp/a", "/mcp"} {
			t.Run(method+" "+path, func(t *testing.T) {
				before := len(server.requests())
				r := newPost(path, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"secret"}}`,
					"Content-Encoding", "identity")
				r.Method = method
				serve(t, h, r)
				for _, got := range server.requests()[before:] {
					if got.body != "" && got.is("tools/call") {
						t.Errorf("the server got %s", got.body)
					}
					if got.method == method && (got.header.Get("Content-Type") != "" || got.header.Get("Content-Encoding") != "") {
						t.Errorf("the server got %v", got.header)
					}
				}
				if path == "/mcp/a" && len(server.requests()) != before+1 {
					t.Error("the server got no request")
				}
			})
		}
	}
}

// unreadable are messages with an ambiguous target.
var unreadable = map[string]string{
	"a tool in a list":      `"method":"tools/call","params":{"name":["secret"]}`,
	"a tool in an object":   `"method":"tools/call","params":{"name":{"name":"secret"}}`,
	"a tool that is null":   `"method":"tools/call","params":{"name":null}`,
	"a tool without a name": `"method":"tools/call","params":{"arguments":{"name":"secret"}}`,
	"a tool by position":    `"method":"tools/call","params":["secret",{}]`,
	"a prompt in a list":    `"method":"prompts/get","params":{"name":["secret"]}`,
	"a resource in a list":  `"method":"resources/read","params":{"uri":["file:///secret/x"]}`,
	"two references": `"method":"completion/complete","params":{"ref":{"type":"ref/prompt","name":"secret",` +
		`"uri":"file:///public/x"},"argument":{"name":"a","value":""}}`,
	"two references, one null": `"method":"completion/complete","params":{"ref":{"type":"ref/prompt","name":"secret",` +
		`"uri":null},"argument":{"name":"a","value":""}}`,
	"a reference in a list": `"method":"completion/complete","params":{"ref":{"type":"ref/prompt",` +
		`"name":["secret"]},"argument":{"name":"a","value":""}}`,
}

func TestAmbiguousTargetsAreRefused(t *testing.T) { // A54, A55, A64
	for name, guard := range map[string]string{
		"rules":     denyRules("a::secret", "prompt:a::secret", "resource:a::file:///secret/"),
		"a rate":    `"rates":[{"tools":"a::secret","requests":1,"per":"1h"}],`,
		"pin_tools": `"pin_tools":true,`,
	} {
		server := newRecordingServer(t, nil)
		h := storedGateway(t, t.TempDir(), `{`+guard+`"servers":[`+server.config("a")+`]}`)
		for what, message := range unreadable {
			for _, path := range single {
				t.Run(name+": "+what+" at "+path, func(t *testing.T) {
					w := serve(t, h, newPost(path, `{"jsonrpc":"2.0","id":1,`+message+`}`))
					if w.Code < 400 || len(server.requests()) > 0 {
						t.Errorf("%d %s; the server got %+v", w.Code, w.Body, server.requests())
					}
				})
			}
		}
	}
	t.Run("nothing that depends on the target", func(t *testing.T) {
		server := newRecordingServer(t, nil)
		h := adaptGateway(t, `{"servers":[`+server.config("a")+`]}`)
		for what, message := range unreadable {
			if w := serve(t, h, newPost("/mcp/a", `{"jsonrpc":"2.0","id":1,`+message+`}`)); w.Code != http.StatusOK {
				t.Errorf("%s: %d %s", what, w.Code, w.Body)
			}
		}
	})
}

// lookAlikes are messages that a server reads differently if it ignores case, or takes the last of
// several members.
var lookAlikes = map[string]string{
	"a name":   `"method":"tools/call","params":{"name":"ok","Name":"secret"}`,
	"params":   `"method":"tools/call","params":{"name":"ok"},"Params":{"name":"secret"}`,
	"a method": `"method":"ping","Method":"tools/call","params":{"name":"secret"}`,
	"a URI":    `"method":"resources/read","params":{"uri":"file:///public/x","URI":"file:///secret/x"}`,
	"a reference": `"method":"completion/complete","params":{"ref":{"type":"ref/prompt","name":"ok"},` +
		`"Ref":{"type":"ref/prompt","name":"secret"},"argument":{"name":"a","value":""}}`,
	"a second reference": `"method":"completion/complete","params":{"ref":{"type":"ref/prompt","name":"ok"},` +
		`"ref":{"type":"ref/prompt","name":"secret"},"argument":{"name":"a","value":""}}`,
	"the name of a reference": `"method":"completion/complete","params":{` +
		`"ref":{"type":"ref/prompt","name":"ok","NAME":"secret"},"argument":{"name":"a","value":""}}`,
}

func TestMembersInAnotherCaseAreRefused(t *testing.T) { // A54, A55
	server := newRecordingServer(t, nil)
	h := adaptGateway(t,
		`{`+denyRules("a::secret", "prompt:a::secret", "resource:a::file:///secret/")+`"servers":[`+server.config("a")+`]}`)
	for what, message := range lookAlikes {
		for _, path := range single {
			t.Run(what+" at "+path, func(t *testing.T) {
				w := serve(t, h, newPost(path, `{"jsonrpc":"2.0","id":1,`+message+`}`))
				if w.Code != http.StatusBadRequest || len(server.requests()) > 0 {
					t.Errorf("%d %s; the server got %+v", w.Code, w.Body, server.requests())
				}
			})
		}
	}
}

func TestTwoReferencesAtAllServers(t *testing.T) { // A45, A55
	server := newRecordingServer(t, nil)
	for name, config := range map[string]string{
		"joined": `{` + denyRules("resource:a::file:///secret/") + `"servers":[` + server.config("a") + `]}`,
		"as one": `{"separator":"none",` + denyRules("resource:a::file:///secret/") + `"servers":[` +
			server.config("a") + `]}`,
	} {
		t.Run(name, func(t *testing.T) {
			h := adaptGateway(t, config)
			id := startSession(t, h)
			w := serve(t, h,
				newPost("/mcp",
					`{"jsonrpc":"2.0","id":2,"method":"completion/complete","params":{"ref":{"type":"ref/resource","name":"a::p",`+
						`"uri":"file:///secret/{x}"},"argument":{"name":"x","value":""}}}`, mcp.SessionHeader, id))
			if !strings.Contains(w.Body.String(), `"error"`) ||
				slices.ContainsFunc(server.requests(), func(got receivedRequest) bool { return got.is("completion/complete") }) {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		})
	}
}

func TestListeningToOneServer(t *testing.T) { // A55, A68
	server := newRecordingServer(t, nil)
	h := adaptGateway(t, `{`+denyRules("resource:a::file:///secret/")+`"servers":[`+server.config("a")+`]}`)
	for _, tt := range []struct {
		name, wants string
		status      int
	}{
		{"an allowed resource", `{"resourceSubscriptions":["file:///public/x"],"toolsListChanged":true}`, 200},
		{"no resources", `{}`, 200},
		{"a denied resource", `{"resourceSubscriptions":["file:///secret/x"]}`, 403},
		{"a denied resource among others", `{"resourceSubscriptions":["file:///public/x","file:///secret/x"]}`, 403},
		{"a denied resource, escaped", `{"resourceSubscri\u0070tions":["file:///secr\u0065t/x"]}`, 403},
		{"a denied resource in a member in another case", `{"ResourceSubscriptions":["file:///secret/x"]}`, 403},
		{"a denied resource before a member in another case",
			`{"resourceSubscriptions":["file:///secret/x"],"ResourceSubscriptions":["file:///public/x"]}`, 400},
		{"a denied resource in a duplicate member",
			`{"resourceSubscriptions":["file:///secret/x"],"resourceSubscriptions":["file:///public/x"]}`, 400},
		{"a string", `{"resourceSubscriptions":"file:///secret/x"}`, 400},
		{"a list of lists", `{"resourceSubscriptions":[["file:///secret/x"]]}`, 400},
		{"a list", `[{"resourceSubscriptions":["file:///secret/x"]}]`, 400},
	} {
		for _, path := range single {
			t.Run(tt.name+" at "+path, func(t *testing.T) {
				before := len(server.requests())
				w := serve(t, h,
					newPost(path,
						`{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":`+tt.wants+`}}`))
				if got := len(server.requests()) > before; w.Code/100 != tt.status/100 || got != (tt.status == 200) {
					t.Errorf("%d %s; the server got the request: %t", w.Code, w.Body, got)
				}
			})
		}
	}
}

func TestRulesByAnAlias(t *testing.T) { // A54, A55, A64
	server := newRecordingServer(t, nil)
	h := adaptGateway(t, `{`+denyRules("uno::secret", "prompt:uno::secret", "resource:uno::file:///secret/")+
		`"rates":[{"tools":"uno::seldom","requests":1,"per":"1h"}],
		"servers":[{"name":"a","aliases":["uno"],"routes":[{"handle":[`+proxyTo("", server.address)+`]}]}]}`)
	for _, path := range append([]string{"/mcp/uno", "/api/mcp-gateway/uno/rpc"}, single...) {
		for method, params := range map[string]string{
			"tools/call": `{"name":"secret"}`, "prompts/get": `{"name":"secret"}`,
			"resources/read": `{"uri":"file:///secret/x"}`,
		} {
			if w := serve(t, h,
				newPost(path,
					`{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":`+params+`}`)); w.Code != http.StatusForbidden {
				t.Errorf("%s at %s: %d %s", method, path, w.Code, w.Body)
			}
		}
	}
	var codes []int
	for _, path := range []string{"/mcp/uno", "/mcp/a"} {
		codes = append(codes,
			serve(t, h, newPost(path, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"seldom"}}`)).Code)
	}
	if !slices.Equal(codes, []int{200, 429}) {
		t.Errorf("a call within the rate and one above it: %v", codes)
	}
	for _, pattern := range []string{"a::x", "uno::x", "*::x", "resource:file:///x"} {
		if _, unknown := h.serverNames().qualified(pattern); unknown != "" {
			t.Errorf("%s refers to an unknown server", pattern)
		}
	}
	if _, unknown := h.serverNames().qualified("typo::x"); unknown != "typo" {
		t.Error("typo::x refers to a known server")
	}
}

func TestUnknownMethods(t *testing.T) { // A53, A54
	server := newRecordingServer(t, nil)
	config := func(rules string) *Handler {
		return adaptGateway(t, `{"clients":[{"name":"*",`+rules+`}],"servers":[`+server.config("a")+`]}`)
	}
	for _, tt := range []struct {
		name, rules string
		want        bool
	}{
		{"a client that may use one tool", `"rules":[{"action":"allow","patterns":["a::ok"]}]`, false},
		{"a client that may use the whole server", `"rules":[{"action":"allow","patterns":["a::*"]}]`, true},
		{"a client that may not use one tool", `"rules":[{"action":"deny","patterns":["a::secret"]}]`, true},
		{"a client without rules", `"redact":["x"]`, true},
	} {
		h := config(tt.rules)
		for _, method := range []string{"admin/deleteEverything", "tasks/result", "tasks/list", "tasks/get",
			`t\u0061sks/cancel`} {
			for _, id := range []string{`"id":1,`, ``} {
				for _, path := range single {
					t.Run(fmt.Sprint(tt.name, ": ", id, method, " at ", path), func(t *testing.T) {
						before := len(server.requests())
						w := serve(t, h,
							newPost(path, `{"jsonrpc":"2.0",`+id+`"method":"`+method+`","params":{"taskId":"of-another-client"}}`))
						if got := len(server.requests()) > before; got != tt.want || !got && w.Code != http.StatusForbidden {
							t.Errorf("the server got the request: %t, %d %s", got, w.Code, w.Body)
						}
					})
				}
			}
		}
	}
}

func TestUnknownMethodsAtAggregate(t *testing.T) { // A53, A54, A58
	server := newRecordingServer(t, nil)
	h := adaptGateway(t,
		`{"clients":[{"name":"*","rules":[{"action":"allow","patterns":["a::ok"]}]}],"servers":[`+server.config("a")+`]}`)
	id := startSession(t, h)
	for _, message := range []string{
		`{"jsonrpc":"2.0","method":"admin/deleteEverything","params":{}}`,
		`{"jsonrpc":"2.0","id":5,"method":"admin/deleteEverything","params":{}}`,
		`{"jsonrpc":"2.0","method":"tools/call","params":{"name":"secret"}}`,
		`{"jsonrpc":"2.0","method":"tasks/cancel","params":{"taskId":"a::1"}}`,
		`{"jsonrpc":"2.0","id":6,"method":"tasks/cancel","params":{"taskId":"a::1"}}`,
	} {
		serve(t, h, newPost("/mcp", message, mcp.SessionHeader, id))
	}
	serve(t, h, newPost("/mcp", `{"jsonrpc":"2.0","method":"notifications/vendor"}`, mcp.SessionHeader, id))
	heard := false
	for _, got := range server.requests() {
		for _, method := range []string{"admin/deleteEverything", "tools/call", "tasks/cancel"} {
			if got.is(method) {
				t.Errorf("the server got %s", got.body)
			}
		}
		heard = heard || got.is("notifications/vendor")
	}
	if !heard {
		t.Error("the server did not get the notification")
	}
}

func TestTokensOfOneClientShareASession(t *testing.T) { // A75, A77
	server := newRecordingServer(t, func(w http.ResponseWriter, _ *http.Request, got receivedRequest) {
		switch {
		case got.header.Get(mcp.VersionHeader) == mcp.Stateless:
			w.WriteHeader(http.StatusBadRequest)
		case got.is("initialize"):
			w.Header().Set(mcp.SessionHeader, "of the server")
			respond(w, got, toolsHandshake)
		default:
			respond(w, got, `{"content":[]}`)
		}
	})
	t.Setenv("FIRST_TOKEN", "first-AbCdEf0123456789")
	t.Setenv("SECOND_TOKEN", "second-AbCdEf0123456789")
	for name, tt := range map[string]struct {
		forward string
		want    int
	}{"not forwarded to the server": {"false", 1}, "forwarded to the server": {"true", 2}} {
		t.Run(name, func(t *testing.T) {
			h := adaptGateway(t, `{"forward_auth_header":`+tt.forward+
				`,"auth":[{"provider":"token","tokens":[{"token":"{env.FIRST_TOKEN}","client":"ann"},`+
				`{"token":"{env.SECOND_TOKEN}","client":"ann"}]}],
				"servers":[`+server.config("a")+`]}`)
			before := len(server.requests())
			for _, token := range []string{"first", "second", "first", "second"} {
				w := serve(t, h,
					newPost("/mcp",
						`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a::x","arguments":{},`+
							`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",`+
							`"io.modelcontextprotocol/clientInfo":{"name":"x","version":"1"},`+
							`"io.modelcontextprotocol/clientCapabilities":{}}}}`,
						"Authorization", "Bearer "+token+"-AbCdEf0123456789", mcp.VersionHeader, mcp.Stateless, "Mcp-Method",
						"tools/call",
						"Mcp-Name", "a::x"))
				if w.Code != http.StatusOK {
					t.Fatalf("%d %s", w.Code, w.Body)
				}
			}
			met := 0
			for _, got := range server.requests()[before:] {
				if got.is("initialize") {
					met++
				}
			}
			if met != tt.want {
				t.Errorf("the server was initialized %d times, want %d", met, tt.want)
			}
		})
	}
}

func TestGuessesAreLimited(t *testing.T) { // A30, A65, R14
	t.Setenv("SECRET_TOKEN", "right-AbCdEf0123456789")
	server := newRecordingServer(t, nil)
	h := adaptGateway(t,
		`{"rates":[{"requests":3,"per":"1h"}],"auth":[{"provider":"token","tokens":[{"token":"{env.SECRET_TOKEN}",`+
			`"client":"ann"}]}],"servers":[`+server.config("a")+`]}`)
	for i := range 5 {
		w := serve(t, h,
			newPost("/mcp/a", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, "Authorization",
				fmt.Sprintf("Bearer wrong-%d", i)))
		want := http.StatusUnauthorized
		if i >= 3 {
			want = http.StatusTooManyRequests
		}
		if w.Code != want || (w.Header().Get("Retry-After") != "") != (i >= 3) {
			t.Errorf("guess %d: %d %v", i, w.Code, w.Header())
		}
	}
	if w := serve(t, h, newPost("/mcp/a", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, "Authorization",
		"Bearer right-AbCdEf0123456789")); w.Code != http.StatusOK {
		t.Errorf("the valid token: %d %s", w.Code, w.Body)
	}
}

// An unreadBody is a body that must not be read.
type unreadBody struct{ t *testing.T }

func (u unreadBody) Read([]byte) (int, error) { u.t.Error("the body was read"); return 0, io.EOF }

func TestWhoIsNotLetInIsNotReadEither(t *testing.T) { // A30
	t.Setenv("SECRET_TOKEN", "right-AbCdEf0123456789")
	server := newRecordingServer(t, nil)
	signature := func(at time.Time) string {
		return fmt.Sprintf(`MCP-HMAC-SHA256 client=ann, timestamp=%d, nonce=abcdefgh, signature=%064d`, at.Unix(), 0)
	}
	const (
		token = `{"provider":"token","tokens":[{"token":"{env.SECRET_TOKEN}","client":"ann"}]}`
		hmac  = `{"provider":"hmac","clients":[{"client":"ann","secret":"{env.SECRET_TOKEN}"}]}`
	)
	for _, tt := range []struct {
		name, provider, credentials string
		length                      int64
		want                        int
	}{
		{"no certificate", `{"provider":"mtls"}`, "", 9_000_000, 401},
		{"a wrong token", token, "Bearer wrong", 9_000_000, 401},
		{"a wrong token and a small body", token, "Bearer wrong", 100, 401},
		{"no token and a body too long to contain one", token, "", 65_537, 401},
		{"another scheme", hmac, "Bearer right-AbCdEf0123456789", 100, 401},
		{"no signature", hmac, "", 100, 401},
		{"an incomplete signature", hmac, "MCP-HMAC-SHA256 client=ann", 100, 401},
		{"an old signature", hmac, signature(time.Now().Add(-time.Hour)), 100, 401},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := adaptGateway(t, `{"auth":[`+tt.provider+`],"servers":[`+server.config("a")+`]}`)
			for _, path := range append([]string{"/mcp"}, single...) {
				r := newPost(path, "", "Authorization", tt.credentials)
				if tt.credentials == "" {
					r.Header.Del("Authorization")
				}
				r.Body, r.ContentLength = io.NopCloser(unreadBody{t}), tt.length
				if w := serve(t, h, r); w.Code != tt.want {
					t.Errorf("%s: %d %s", path, w.Code, w.Body)
				}
			}
		})
	}
	t.Run("received bytes count, announced bytes do not", func(t *testing.T) {
		h := adaptGateway(t,
			`{"request_limit":1000000,"in_flight_limit":1000000,"auth":[`+hmac+`],"servers":[`+server.config("a")+`]}`)
		stranger := func(address string, body io.Reader) *http.Request {
			r := newPost("/mcp/a", "", "Authorization", signature(time.Now()))
			r.RemoteAddr = address + ":1234"
			r.Body, r.ContentLength = io.NopCloser(body), 1_000_000
			return r
		}
		slow, sender := io.Pipe()
		done := make(chan int, 1)
		go func() { done <- serve(t, h, stranger("192.0.2.1", slow)).Code }()
		_, _ = sender.Write([]byte(" "))
		if w := serve(t, h, stranger("192.0.2.2", &spaceBody{400_000})); w.Code != 401 {
			t.Errorf("during a request that has sent little: %d %s", w.Code, w.Body)
		}
		_, _ = sender.Write(make([]byte, 600_000))
		_, _ = sender.Write([]byte(" ")) // returns once the previous bytes are counted
		if w := serve(t, h, stranger("192.0.2.2", &spaceBody{400_000})); w.Code != 503 {
			t.Errorf("during a request that has sent much: %d %s", w.Code, w.Body)
		}
		sender.Close()
		if code := <-done; code != 401 {
			t.Errorf("status %d, want 401", code)
		}
		if w := serve(t, h, stranger("192.0.2.2", &spaceBody{400_000})); w.Code != 401 {
			t.Errorf("after that request: %d %s", w.Code, w.Body)
		}
	})
	t.Run("an address with too many guesses", func(t *testing.T) {
		h := adaptGateway(t,
			`{"name":"guesses","rates":[{"requests":1,"per":"1h"}],"auth":[`+token+`],"servers":[`+server.config("a")+`]}`)
		for i, want := range []int{401, 429} {
			r := newPost("/mcp/a", "{}")
			if i > 0 {
				r.Body, r.ContentLength = io.NopCloser(unreadBody{t}), 100
			}
			if w := serve(t, h, r); w.Code != want {
				t.Errorf("%d %s, want %d", w.Code, w.Body, want)
			}
		}
	})
}

// A spaceBody is a body of spaces.
type spaceBody struct {
	left int
}

func (u *spaceBody) Read(p []byte) (int, error) {
	n := min(len(p), u.left)
	if n == 0 {
		return 0, io.EOF
	}
	for i := range p[:n] {
		p[i] = ' '
	}
	u.left -= n
	return n, nil
}

func TestBytesOfRequestsAreLimited(t *testing.T) { // G24
	var waiting, answer = make(chan struct{}, 8), make(chan struct{})
	server := newRecordingServer(t, func(w http.ResponseWriter, _ *http.Request, got receivedRequest) {
		if got.is("tools/call") {
			waiting <- struct{}{}
			<-answer
		}
		respond(w, got, `{}`)
	})
	h := adaptGateway(t, `{"request_limit":1000000,"in_flight_limit":2000000,"servers":[`+server.config("a")+`]}`)
	call := func(size int) *http.Request {
		return newPost("/mcp/a", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":{"a":"`+
			strings.Repeat("x", size)+`"}}}`)
	}
	done := make(chan int, 1)
	go func() { done <- serve(t, h, call(900_000)).Code }()
	receive(t, "the first call", waiting)
	t.Run("one client may use half", func(t *testing.T) {
		for name, r := range map[string]*http.Request{"known length": call(200_000), "unknown length": call(200_000)} {
			if name != "known length" {
				r.ContentLength, r.Body = -1, io.NopCloser(&spaceBody{200_000})
			}
			if w := serve(t, h, r); w.Code != 503 || w.Header().Get("Retry-After") == "" ||
				!strings.Contains(w.Body.String(), `"busy"`) {
				t.Errorf("%s: %d %v %s", name, w.Code, w.Header(), w.Body)
			}
		}
	})
	t.Run("a small request", func(t *testing.T) {
		if w := serve(t, h, newPost("/mcp/a", `{"jsonrpc":"2.0","id":1,"method":"ping"}`)); w.Code != 200 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
	t.Run("another address", func(t *testing.T) {
		r := newPost("/mcp/a", `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"`+strings.Repeat("x", 500_000)+`"}}`)
		r.RemoteAddr = "192.0.2.77:1234"
		if w := serve(t, h, r); w.Code != 200 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
	close(answer)
	if code := <-done; code != 200 {
		t.Errorf("the first call: %d", code)
	}
	if w := serve(t, h, call(900_000)); w.Code != 200 {
		t.Errorf("after the first call: %d %s", w.Code, w.Body)
	}
}

func TestCredentialsOfClientsStayHere(t *testing.T) { // A31
	server := newRecordingServer(t, nil)
	for _, tt := range []struct {
		name, config, server string
		forwarded            bool
	}{
		{"by default", "", "", false},
		{"all servers get them", `"forward_auth_header":true,`, "", true},
		{"this server gets them", "", `,"forward_auth_header":true`, true},
		{"this server does not", `"forward_auth_header":true,`, `,"forward_auth_header":false`, false},
	} {
		h := adaptGateway(t,
			`{`+tt.config+`"servers":[{"name":"a","routes":[{"handle":[`+proxyTo("", server.address)+`]}]`+tt.server+`}]}`)
		for _, path := range append([]string{"/mcp"}, single...) {
			t.Run(tt.name+" at "+path, func(t *testing.T) {
				before := len(server.requests())
				serve(t, h,
					newPost(path,
						`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},`+
							`"clientInfo":{"name":"`+tt.name+`","version":"1"}}}`,
						"Authorization", "Bearer mine", "Cookie", "session=mine"))
				all := server.requests()[before:]
				if len(all) == 0 {
					t.Fatal("the server got nothing")
				}
				for _, got := range all {
					for _, name := range []string{"Authorization", "Cookie"} {
						if has := got.header.Get(name) != ""; has != tt.forwarded {
							t.Errorf("the server got %s: %q", name, got.header[name])
						}
					}
				}
			})
		}
	}
}

func TestOperatorIdentityIsReserved(t *testing.T) { // A30, A57
	server := newRecordingServer(t, nil)
	h := adaptGateway(t, `{`+denyRules("*")+`"rates":[{"requests":1000,"per":"1h"}],"servers":[`+server.config("a")+`]}`)
	for _, user := range []string{access.OperatorIdentity, "a\nb", strings.Repeat("x", 100_000)} {
		for _, path := range single {
			if w := serveAs(t, h, user,
				newPost(path,
					`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`)); w.Code != http.StatusForbidden {
				t.Errorf("%.20q at %s: %d %s", user, path, w.Code, w.Body)
			}
		}
		repl := caddy.NewReplacer()
		repl.Set("http.auth.user.id", user)
		if got := identity(repl); len(got) > 1000 || got == user || strings.ContainsAny(got, "\x00\n") {
			t.Errorf("%.20q: got identity %.40q", user, got)
		}
	}
}

func TestViewsOfClients(t *testing.T) { // A56, A57, A60
	view := func(t *testing.T, more string) string {
		h := adaptGateway(t, `{`+more+`"servers":[`+serverOf("a", staticHandler)+`]}`)
		clients, err := accessCompiler{h.serverNames(), h.logger}.clients(h.Clients)
		if err != nil || len(clients) != 1 {
			t.Fatalf("got %d clients, %v", len(clients), err)
		}
		return clients[0].View
	}
	views := map[string]string{}
	for name, more := range map[string]string{
		"a rule":          denyRules("a::x"),
		"another rule":    denyRules("a::y"),
		"a pattern":       `"clients":[{"name":"ann","redact":["sk-[a-z]+"]}],`,
		"another pattern": `"clients":[{"name":"ann","redact":["sk-[0-9]+"]}],`,
		"a field":         `"clients":[{"name":"ann","redact_fields":["sk-[a-z]+"]}],`,
	} {
		got := view(t, more)
		if got != view(t, more) {
			t.Errorf("%s: the view of the same configuration differs", name)
		}
		if other, there := views[got]; there {
			t.Errorf("%s has the same view as %s", name, other)
		}
		views[got] = name
	}
}

func TestGatewaysWithoutANameShareNothing(t *testing.T) { // A63, A67
	config := func(server string) string {
		return `{"rates":[{"requests":1,"per":"1h"}],"servers":[` + serverOf(server, staticHandler) + `]}`
	}
	one, other := adaptGateway(t, config("twin-one")), adaptGateway(t, config("twin-other"))
	call := func(h *Handler, server string) int {
		return serve(t, h,
			newPost("/mcp/"+server, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`)).Code
	}
	if got := []int{call(one, "twin-one"), call(one, "twin-one"), call(other, "twin-other")}; !slices.Equal(got,
		[]int{200, 429, 200}) {
		t.Errorf("got %v", got)
	}
	if again := adaptGateway(t, config("twin-one")); call(again, "twin-one") != 429 {
		t.Error("a reload resets the rate")
	}
}

func TestFailedConfigurationIsCleanedUp(t *testing.T) { // A61
	for range 3 {
		ctx, err := caddy.ProvisionContext(new(caddy.Config))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := caddy.NewContext(ctx)
		_, err = ctx.LoadModuleByID("http.handlers.mcp_gateway",
			json.RawMessage(`{"name":"fails","session_key":"short","servers":[`+serverOf("fails", staticHandler)+`]}`))
		if err == nil {
			t.Fatal("the configuration is accepted")
		}
		cancel()
	}
	if n, _ := retainedPool.References("fails\x00/mcp"); n > 0 {
		t.Errorf("%d references to the retained state", n)
	}
	pinPool.Range(func(key, _ any) bool {
		if strings.HasPrefix(key.(string), "fails\x00") {
			t.Errorf("the pins of %q are kept", key)
		}
		return true
	})
}

func TestMethodsThatAreNotStrings(t *testing.T) { // A54, A64
	server := newRecordingServer(t, nil)
	for name, guard := range map[string]string{"no rules": "", "rules": denyRules("a::secret")} {
		h := adaptGateway(t, `{`+guard+`"servers":[`+server.config("a")+`]}`)
		for _, method := range []string{`["tools/call"]`, `["tools/list"]`, `{"x":"tools/call"}`, `null`, `5`} {
			for _, path := range append([]string{"/mcp"}, single...) {
				t.Run(name+": "+method+" at "+path, func(t *testing.T) {
					w := serve(t, h, newPost(path, `{"jsonrpc":"2.0","id":1,"method":`+method+`,"params":{"name":"secret"}}`))
					if w.Code != http.StatusBadRequest || len(server.requests()) > 0 {
						t.Errorf("%d %s; the server got %+v", w.Code, w.Body, server.requests())
					}
				})
			}
		}
	}
}

func TestMembersInAnotherCaseThatPass(t *testing.T) { // A35, A54
	t.Setenv("LETTERS_TOKEN", "letters-AbCdEf0123456789")
	const withAuth = `"auth":[{"provider":"token","tokens":[{"token":"{env.LETTERS_TOKEN}","client":"ann"}]}],`
	for _, tt := range []struct {
		name, guard, message string
		passes               bool
	}{
		{"a vendor method", "", `"method":"Users.Get","params":{"Name":"x","URI":"y","Level":1}`, true},
		{"a tool", "", `"method":"tools/call","params":{"name":"x","Name":"y"}`, true},
		{"a response", "", `"result":{"ResultType":"x","CacheScope":1}`, true},
		{"a vendor method with rules", denyRules("a::secret"),
			`"method":"Users.Get","params":{"Name":"x"}`, true},
		{"a vendor method with authentication", withAuth, `"method":"Users.Get","params":{"Name":"x"}`,
			true},
		{"a tool with rules", denyRules("a::secret"), `"method":"tools/call","params":{"name":"x","Name":"secret"}`,
			false},
		{"a tool with authentication", withAuth, `"method":"tools/call","params":{"name":"x","Name":"y"}`, false},
		{"a token with authentication", withAuth, `"method":"Users.Get","params":{"proxy":{"AuthToken":"mine"}}`, false},
		{"the method with rules", denyRules("a::secret"),
			`"method":"Users.Get","Method":"tools/call","params":{"name":"secret"}`, false},
	} {
		server := newRecordingServer(t, nil)
		h := adaptGateway(t, `{`+tt.guard+`"servers":[`+server.config("a")+`]}`)
		for _, path := range single {
			t.Run(tt.name+" at "+path, func(t *testing.T) {
				before := len(server.requests())
				w := serve(t, h,
					newPost(path, `{"jsonrpc":"2.0","id":1,`+tt.message+`}`, "Authorization", "Bearer letters-AbCdEf0123456789"))
				if passed := len(server.requests()) > before; passed != tt.passes || !passed && w.Code != http.StatusBadRequest {
					t.Errorf("the server got the message: %t, %d %s", passed, w.Code, w.Body)
				}
			})
		}
	}
}

func TestTasksAtAllServers(t *testing.T) { // A53, A54
	server := newRecordingServer(t, func(w http.ResponseWriter, _ *http.Request, got receivedRequest) {
		if got.is("initialize") {
			respond(w, got,
				`{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"tasks":{"list":{}}},"serverInfo":{"name":"x",`+
					`"version":"1"}}`)
			return
		}
		respond(w, got, `{"tasks":[{"taskId":"of-another-client","status":"completed"}]}`)
	})
	for pattern, want := range map[string]bool{"a::ok": false, "a::*": true} {
		h := adaptGateway(t, `{"clients":[{"name":"*","rules":[{"action":"allow","patterns":["`+pattern+`"]}]}],"servers":[`+
			server.config("a")+`]}`)
		w := serve(t, h,
			newPost("/mcp", `{"jsonrpc":"2.0","id":2,"method":"tasks/list","params":{}}`, mcp.SessionHeader,
				startSession(t, h)))
		if got := strings.Contains(w.Body.String(), "of-another-client"); got != want {
			t.Errorf("a client that may use %s: %d %s", pattern, w.Code, w.Body)
		}
	}
}

func TestRequestsNamedLikeNotifications(t *testing.T) { // A53, A54, A63
	server := newRecordingServer(t, nil)
	for _, tt := range []struct {
		name, guard, id string
		want            []int
	}{
		{"a notification without a right", `"clients":[{"name":"*","rules":[{"action":"allow","patterns":["a::ok"]}]}],`, ``,
			[]int{200, 200}},
		{"a request without a right", `"clients":[{"name":"*","rules":[{"action":"allow","patterns":["a::ok"]}]}],`,
			`"id":1,`,
			[]int{403, 403}},
		{"notifications with a rate", `"rates":[{"requests":1,"per":"1h"}],`, ``, []int{200, 200}},
		{"requests with a rate", `"rates":[{"requests":1,"per":"1h"}],`, `"id":1,`, []int{200, 429}},
	} {
		for _, path := range single {
			t.Run(tt.name+" at "+path, func(t *testing.T) {
				h := adaptGateway(t, `{"name":"`+t.Name()+`",`+tt.guard+`"servers":[`+server.config("a")+`]}`)
				for i, want := range tt.want {
					w := serve(t, h, newPost(path, `{"jsonrpc":"2.0",`+tt.id+`"method":"notifications/send"}`))
					if w.Code != want && (want != 200 || w.Code/100 != 2) {
						t.Errorf("request %d: %d %s", i+1, w.Code, w.Body)
					}
				}
			})
		}
	}
}

func TestReplacedSecrets(t *testing.T) { // A30, A60
	const old, other = "old-AbCdEf0123456789", "new-AbCdEf0123456789"
	file := filepath.Join(t.TempDir(), "secret")
	t.Setenv("REPLACED_SECRET", old)
	write := func(secret string) {
		t.Setenv("REPLACED_SECRET", secret)
		if err := os.WriteFile(file, []byte(secret), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, provider := range map[string]string{
		"a token of the environment": `{"provider":"token","tokens":[{"token":"{env.REPLACED_SECRET}","client":"ann"}]}`,
		"a token of a file":          `{"provider":"token","tokens":[{"token":"{file.` + file + `}","client":"ann"}]}`,
		"a signing secret":           `{"provider":"hmac","clients":[{"client":"ann","secret":"{env.REPLACED_SECRET}"}]}`,
		"a signing secret of a file": `{"provider":"hmac","clients":[{"client":"ann","secret":"{file.` + file + `}"}]}`,
		"a token of the second provider": `{"provider":"mtls"},{"provider":"token",` +
			`"tokens":[{"token":"{env.REPLACED_SECRET}","client":"ann"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			loaded := func(secret string) *Handler {
				write(secret)
				return adaptGateway(t, `{"auth":[`+provider+`],"servers":[`+serverOf("a", staticHandler)+`]}`)
			}
			before, same, after := loaded(old), loaded(old), loaded(other)
			realm := func(h *Handler) string {
				return realmOf(h.auth.providers[len(h.auth.providers)-1], "ann")
			}
			if before.auth.fingerprint != same.auth.fingerprint || realm(before) != realm(same) {
				t.Error("equal secrets have different fingerprints or realms")
			}
			if before.auth.fingerprint == after.auth.fingerprint || realm(before) == realm(after) {
				t.Error("different secrets have the same fingerprint or realm")
			}
			if strings.Contains(before.auth.fingerprint, old) {
				t.Error("the fingerprint contains the secret")
			}
		})
	}
}

func TestStreamsEndWithTheirServers(t *testing.T) { // A30, A60
	t.Setenv("STREAMS_TOKEN", "streams-AbCdEf0123456789")
	const (
		withAuth = `"auth":[{"provider":"token","tokens":[{"token":"{env.STREAMS_TOKEN}","client":"ann"}]}],`
		servers  = `"servers":[{"name":"a","routes":[{"handle":[` + staticHandler + `]}]},{"name":"b","routes":[{"handle":[` +
			staticHandler + `]}]}]`
	)
	for _, tt := range []struct {
		name string
		next []string // gateways of the next configuration
		ends []string
	}{
		{"no change", []string{`{"name":"g",` + servers + `}`}, nil},
		{"a removed server", []string{`{"name":"g","servers":[` + serverOf("b", staticHandler) + `]}`}, []string{"a"}},
		{"a changed server",
			[]string{strings.Replace(`{"name":"g",`+servers+`}`, `"name":"a"`, `"name":"a","path":"/v2"`, 1)}, []string{"a"}},
		{"a new server",
			[]string{strings.Replace(`{"name":"g",`+servers+`}`, `"servers":[`, `"servers":[`+serverOf("c", staticHandler)+`,`,
				1)}, nil},
		{"a removed gateway", []string{`{"name":"another",` + servers + `}`}, []string{"a", "b"}},
		{"no gateways", nil, []string{"a", "b"}},
		{"changed authentication", []string{`{"name":"g",` + withAuth + servers + `}`}, []string{"a", "b"}},
		{"changed rules", []string{`{"name":"g",` + denyRules("a::secret") + servers + `}`}, []string{"a", "b"}},
		{"a new gateway", []string{`{"name":"another",` + servers + `}`, `{"name":"g",` + servers + `}`}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// The two gateways belong to the same configuration.
			h, sibling := adaptGateway(t, `{"name":"g",`+servers+`}`), adaptGateway(t, `{"name":"g",`+servers+`}`)
			for _, config := range tt.next {
				adaptGateway(t, config)
			}
			for _, s := range slices.Concat(h.Servers, sibling.Servers) {
				_ = s.streams.close()
			}
			var ended []string
			for _, s := range h.Servers {
				if s.streams.scope.Err() != nil {
					ended = append(ended, s.Name)
				}
			}
			if !slices.Equal(ended, tt.ends) {
				t.Errorf("streams of %v ended, want %v", ended, tt.ends)
			}
		})
	}
}

func TestRequestsOfEndedStreamsReturn(t *testing.T) { // A60
	hung := make(chan struct{}, 1)
	server := newRecordingServer(t, func(w http.ResponseWriter, r *http.Request, _ receivedRequest) {
		respondEvents(w, `{"jsonrpc":"2.0","method":"notifications/message"}`)
		hung <- struct{}{}
		<-r.Context().Done()
	})
	h := adaptGateway(t, `{"servers":[`+server.config("a")+`]}`)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		servePartial(h, streamRequest(t, "/mcp/a"))
	}()
	receive(t, "the stream", hung)
	h.Servers[0].streams.scope.end()
	receive(t, "its end", ended)
}

func TestClientsOfOneNameInTwoGateways(t *testing.T) { // A30, A57
	t.Setenv("SITE_A", "site-a-AbCdEf0123456789")
	t.Setenv("SITE_B", "site-b-AbCdEf0123456789")
	var sessions atomic.Int32
	server := newRecordingServer(t, func(w http.ResponseWriter, _ *http.Request, got receivedRequest) {
		switch {
		case got.is("server/discover"):
			w.WriteHeader(http.StatusNotFound)
		case got.is("initialize"):
			w.Header().Set(mcp.SessionHeader, fmt.Sprint("session-", sessions.Add(1)))
			respond(w, got, toolsHandshake)
		default:
			respond(w, got, `{"content":[{"type":"text","text":"in `+got.header.Get(mcp.SessionHeader)+`"}]}`)
		}
	})
	site := func(name string) *Handler {
		return adaptGateway(t, `{"auth":[{"provider":"token","tokens":[{"token":"{env.SITE_`+strings.ToUpper(name)+
			`}"}]}],"servers":[`+server.config("a")+`]}`)
	}
	one, other := site("a"), site("b")
	by := func(name string) []string {
		return []string{"Authorization", "Bearer site-" + name + "-AbCdEf0123456789"}
	}
	call := func(h *Handler, name string) string {
		w := serve(t, h, newPost("/mcp", strings.Replace(modernCall, `"name":"x"`, `"name":"a::x","arguments":{}`, 1),
			append(by(name), mcp.VersionHeader, mcp.Stateless, "Mcp-Method", "tools/call", "Mcp-Name", "a::x")...))
		_, in, _ := strings.Cut(w.Body.String(), `"text":"in `)
		in, _, _ = strings.Cut(in, `"`)
		return in
	}
	if a, b := call(one, "a"), call(other, "b"); a == "" || b == "" || a == b {
		t.Errorf("sessions %q and %q of the server, want two different ones", a, b)
	}
	if a, again := call(one, "a"), call(site("a"), "a"); a != again {
		t.Errorf("session %q of the server, after a reload %q", a, again)
	}
	for _, path := range []string{"/mcp", "/mcp/a"} {
		begun := serve(t, one,
			newPost(path,
				`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},`+
					`"clientInfo":{"name":"x","version":"1"}}}`, by("a")...))
		id := begun.Header().Get(mcp.SessionHeader)
		ping := func(h *Handler, name string) int {
			return serve(t, h,
				newPost(path, `{"jsonrpc":"2.0","id":2,"method":"ping"}`, append(by(name), mcp.SessionHeader, id)...)).Code
		}
		if own, others := ping(one, "a"), ping(other, "b"); own != http.StatusOK || others != http.StatusNotFound {
			t.Errorf("%s: session %q: status %d at its gateway, %d at the other", path, id, own, others)
		}
	}
}

func TestInvalidClientNames(t *testing.T) { // A57
	for name, client := range map[string]string{
		"a placeholder in a name": `{"name":"{env.WHO}","rules":[{"action":"deny","patterns":["*"]}]}`,
		"a placeholder in match":  `{"name":"ann","match":["bob","{http.auth.user.id}"]}`,
		"a pattern with match":    `{"name":"ann*","match":["bob"]}`,
	} {
		t.Run(name, func(t *testing.T) {
			ctx, err := caddy.ProvisionContext(new(caddy.Config))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := caddy.NewContext(ctx)
			defer cancel()
			_, err = ctx.LoadModuleByID("http.handlers.mcp_gateway",
				json.RawMessage(`{"clients":[`+client+`],"servers":[`+serverOf("a", staticHandler)+`]}`))
			if err == nil || !strings.Contains(err.Error(), "match") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestAnswersOfAServerByItsAlias(t *testing.T) { // A59
	const caddyfile = ":80 {\nmcp_gateway {\nserver a http://127.0.0.1:1 {\nalias uno\n}\nanswer %s roots/list " +
		"drop\nmcp_path /mcp\n}\n}"
	for _, name := range []string{"a", "uno"} {
		config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(fmt.Sprintf(caddyfile, name)), nil)
		if err != nil || !strings.Contains(string(config), `"answers":[{"action":"drop","method":"roots/list"}]`) {
			t.Errorf("%s: %s, %v", name, config, err)
		}
	}
	_, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(fmt.Sprintf(caddyfile, "duo")),
		map[string]any{"filename": "Caddyfile"})
	if err == nil || !strings.Contains(err.Error(), "unknown server duo") || !strings.Contains(err.Error(), ":6") {
		t.Errorf("got %v", err)
	}
}

func TestRatesOfAnonymousClients(t *testing.T) { // A65, R14
	h := adaptGateway(t, `{"rates":[{"requests":1,"per":"1h"}],"servers":[`+serverOf("a", staticHandler)+`]}`)
	from := func(address string) int {
		r := newPost("/mcp/a", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`)
		r.RemoteAddr = address
		return serve(t, h, r).Code
	}
	got := []int{from("192.0.2.1:1"), from("192.0.2.1:2"), from("192.0.2.2:1"), from("[2001:db8::1]:1"),
		from("[2001:db8::2]:1")}
	if !slices.Equal(got, []int{200, 429, 200, 200, 429}) {
		t.Errorf("got %v", got)
	}
}

// A listenerAddr is the address on which caddy mcp stdio listens.
type listenerAddr struct{}

func (listenerAddr) Network() string { return pipenet.Name }
func (listenerAddr) String() string  { return pipenet.Host }

func TestOperatorHasNoRate(t *testing.T) { // A42, A65
	before := stdioClient
	stdioClient = access.OperatorIdentity
	t.Cleanup(func() { stdioClient = before })
	h := adaptGateway(t,
		`{"name":"operated","rates":[{"requests":1,"per":"1h"}],"servers":[`+serverOf("a", staticHandler)+`]}`)
	for i := range 3 {
		r := newPost("/mcp/a", aCall)
		r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, listenerAddr{}))
		if w := serve(t, h, r); w.Code != http.StatusOK {
			t.Errorf("request %d: %d %s", i+1, w.Code, w.Body)
		}
	}
}
