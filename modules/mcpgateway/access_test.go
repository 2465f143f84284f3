package mcpgateway

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// A witness is a server that remembers what it was sent.
type witness struct {
	address string

	mu  sync.Mutex
	got []witnessed
}

// witnessed is a request as a server has seen it.
type witnessed struct {
	method, uri, body string
	header            http.Header
}

func (w witnessed) is(method string) bool {
	return strings.Contains(w.body, `"method":"`+method+`"`)
}

// newWitness returns a server that answers as it is told to, by default with a result of
// nothing.
func newWitness(t *testing.T, answer func(w http.ResponseWriter, r *http.Request, got witnessed)) *witness {
	t.Helper()
	s := new(witness)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got := witnessed{r.Method, r.URL.RequestURI(), string(body), r.Header.Clone()}
		s.mu.Lock()
		s.got = append(s.got, got)
		s.mu.Unlock()
		if answer != nil {
			answer(w, r, got)
			return
		}
		says(w, got, `{}`)
	}))
	t.Cleanup(func() {
		upstream.CloseClientConnections()
		upstream.Close()
	})
	s.address = upstream.Listener.Addr().String()
	return s
}

// says answers a request with a result, and whatever else with nothing.
func says(w http.ResponseWriter, got witnessed, result string) {
	var m jsonrpc.Message
	if m.Read([]byte(got.body)) != nil || !m.IsRequest() {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(jsonrpc.Answer(m.Literal(jsonrpc.ID), []byte(result)))
}

// saw returns what the server was sent.
func (s *witness) saw() []witnessed {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.got)
}

// line is the server in a configuration.
func (s *witness) line(name string) string { return serverOf(name, proxyTo("", s.address)) }

// posting returns a request that posts a message, with headers in pairs.
func posting(path, message string, headers ...string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "http://localhost"+path, strings.NewReader(message))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return r
}

// serves has a gateway answer a request.
func serves(t *testing.T, h *Handler, r *http.Request) *httptest.ResponseRecorder {
	t.Helper()
	return servesUser(t, h, "", r)
}

// servesUser has a gateway answer a request of somebody whom Caddy has let in.
func servesUser(t *testing.T, h *Handler, user string, r *http.Request) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	if err := h.ServeHTTP(w, prepared(r, w, user), nil); err != nil {
		t.Fatal(err)
	}
	return w
}

// prepared is a request as Caddy has it when it comes to the gateway.
func prepared(r *http.Request, w http.ResponseWriter, user string) *http.Request {
	repl := caddy.NewReplacer()
	r = caddyhttp.PrepareRequest(r, repl, w, new(caddyhttp.Server))
	if user != "" {
		repl.Set("http.auth.user.id", user)
		caddyhttp.SetVar(r.Context(), "tenant", "tenant of "+user)
	}
	return r
}

// single are the ways to the server a alone.
var single = []string{"/mcp/a", "/api/mcp-gateway/a/rpc"}

// session begins one with all servers, and returns the header that names it.
func session(t *testing.T, h *Handler, headers ...string) string {
	t.Helper()
	w := serves(t, h, posting("/mcp", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`, headers...))
	id := w.Header().Get(mcp.SessionHeader)
	if id == "" {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	return id
}

// denies is the part of a configuration that denies everybody something.
func denies(patterns ...string) string {
	text, _ := json.Marshal(patterns)
	return `"clients":[{"name":"*","rules":[{"action":"deny","patterns":` + string(text) + `}]}],`
}

func TestOnlyWhatIsPostedIsAMessage(t *testing.T) { // A54, A55
	server := newWitness(t, nil)
	h := gateway(t, `{`+denies("a::secret")+`"servers":[`+server.line("a")+`]}`)
	for _, method := range []string{http.MethodGet, http.MethodDelete} {
		for _, path := range []string{"/mcp/a", "/mcp"} {
			t.Run(method+" "+path, func(t *testing.T) {
				before := len(server.saw())
				r := posting(path, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"secret"}}`, "Content-Encoding", "identity")
				r.Method = method
				serves(t, h, r)
				for _, got := range server.saw()[before:] {
					if got.body != "" && got.is("tools/call") {
						t.Errorf("the server got %s", got.body)
					}
					if got.method == method && (got.header.Get("Content-Type") != "" || got.header.Get("Content-Encoding") != "") {
						t.Errorf("the server got %v", got.header)
					}
				}
				if path == "/mcp/a" && len(server.saw()) != before+1 {
					t.Error("the server got no request")
				}
			})
		}
	}
}

// unreadable are messages of which nobody can know what they are about.
var unreadable = map[string]string{
	"a tool in a list":         `"method":"tools/call","params":{"name":["secret"]}`,
	"a tool in an object":      `"method":"tools/call","params":{"name":{"name":"secret"}}`,
	"a tool that is null":      `"method":"tools/call","params":{"name":null}`,
	"a tool without a name":    `"method":"tools/call","params":{"arguments":{"name":"secret"}}`,
	"a tool by its place":      `"method":"tools/call","params":["secret",{}]`,
	"a prompt in a list":       `"method":"prompts/get","params":{"name":["secret"]}`,
	"a resource in a list":     `"method":"resources/read","params":{"uri":["file:///secret/x"]}`,
	"two references":           `"method":"completion/complete","params":{"ref":{"type":"ref/prompt","name":"secret","uri":"file:///public/x"},"argument":{"name":"a","value":""}}`,
	"two references, one null": `"method":"completion/complete","params":{"ref":{"type":"ref/prompt","name":"secret","uri":null},"argument":{"name":"a","value":""}}`,
	"a reference in a list":    `"method":"completion/complete","params":{"ref":{"type":"ref/prompt","name":["secret"]},"argument":{"name":"a","value":""}}`,
}

func TestWhatNobodyCanKnowIsNotPassedOn(t *testing.T) { // A54, A55, A64
	for name, guard := range map[string]string{
		"rules":     denies("a::secret", "prompt:a::secret", "resource:a::file:///secret/"),
		"a rate":    `"rates":[{"tools":"a::secret","requests":1,"per":"1h"}],`,
		"pin_tools": `"pin_tools":true,`,
	} {
		server := newWitness(t, nil)
		h := storedGateway(t, t.TempDir(), `{`+guard+`"servers":[`+server.line("a")+`]}`)
		for what, message := range unreadable {
			for _, path := range single {
				t.Run(name+": "+what+" at "+path, func(t *testing.T) {
					w := serves(t, h, posting(path, `{"jsonrpc":"2.0","id":1,`+message+`}`))
					if w.Code < 400 || len(server.saw()) > 0 {
						t.Errorf("%d %s; the server got %+v", w.Code, w.Body, server.saw())
					}
				})
			}
		}
	}
	t.Run("nothing", func(t *testing.T) {
		server := newWitness(t, nil)
		h := gateway(t, `{"servers":[`+server.line("a")+`]}`)
		for what, message := range unreadable {
			if w := serves(t, h, posting("/mcp/a", `{"jsonrpc":"2.0","id":1,`+message+`}`)); w.Code != http.StatusOK {
				t.Errorf("%s: %d %s", what, w.Code, w.Body)
			}
		}
	})
}

// lookAlikes are messages that a server which ignores case, or takes the last of several,
// reads otherwise.
var lookAlikes = map[string]string{
	"a name":      `"method":"tools/call","params":{"name":"ok","Name":"secret"}`,
	"params":      `"method":"tools/call","params":{"name":"ok"},"Params":{"name":"secret"}`,
	"a method":    `"method":"ping","Method":"tools/call","params":{"name":"secret"}`,
	"a URI":       `"method":"resources/read","params":{"uri":"file:///public/x","URI":"file:///secret/x"}`,
	"a reference": `"method":"completion/complete","params":{"ref":{"type":"ref/prompt","name":"ok"},"Ref":{"type":"ref/prompt","name":"secret"},"argument":{"name":"a","value":""}}`,
	"a second":    `"method":"completion/complete","params":{"ref":{"type":"ref/prompt","name":"ok"},"ref":{"type":"ref/prompt","name":"secret"},"argument":{"name":"a","value":""}}`,
	"its name":    `"method":"completion/complete","params":{"ref":{"type":"ref/prompt","name":"ok","NAME":"secret"},"argument":{"name":"a","value":""}}`,
}

func TestNamesInOtherLettersAreNotPassedOn(t *testing.T) { // A54, A55
	server := newWitness(t, nil)
	h := gateway(t, `{`+denies("a::secret", "prompt:a::secret", "resource:a::file:///secret/")+`"servers":[`+server.line("a")+`]}`)
	for what, message := range lookAlikes {
		for _, path := range single {
			t.Run(what+" at "+path, func(t *testing.T) {
				w := serves(t, h, posting(path, `{"jsonrpc":"2.0","id":1,`+message+`}`))
				if w.Code != http.StatusBadRequest || len(server.saw()) > 0 {
					t.Errorf("%d %s; the server got %+v", w.Code, w.Body, server.saw())
				}
			})
		}
	}
}

func TestTwoReferencesAtAllServers(t *testing.T) { // A45, A55
	server := newWitness(t, nil)
	for name, config := range map[string]string{
		"joined": `{` + denies("resource:a::file:///secret/") + `"servers":[` + server.line("a") + `]}`,
		"as one": `{"separator":"none",` + denies("resource:a::file:///secret/") + `"servers":[` + server.line("a") + `]}`,
	} {
		t.Run(name, func(t *testing.T) {
			h := gateway(t, config)
			id := session(t, h)
			w := serves(t, h, posting("/mcp", `{"jsonrpc":"2.0","id":2,"method":"completion/complete","params":{"ref":{"type":"ref/resource","name":"a::p","uri":"file:///secret/{x}"},"argument":{"name":"x","value":""}}}`, mcp.SessionHeader, id))
			if !strings.Contains(w.Body.String(), `"error"`) || slices.ContainsFunc(server.saw(), func(got witnessed) bool { return got.is("completion/complete") }) {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		})
	}
}

func TestListeningToOneServer(t *testing.T) { // A55, A68
	server := newWitness(t, nil)
	h := gateway(t, `{`+denies("resource:a::file:///secret/")+`"servers":[`+server.line("a")+`]}`)
	for _, tt := range []struct {
		name, wants string
		status      int
	}{
		{"what may be heard", `{"resourceSubscriptions":["file:///public/x"],"toolsListChanged":true}`, 200},
		{"nothing in particular", `{}`, 200},
		{"what is denied", `{"resourceSubscriptions":["file:///secret/x"]}`, 403},
		{"what is denied among others", `{"resourceSubscriptions":["file:///public/x","file:///secret/x"]}`, 403},
		{"what is denied, escaped", `{"resourceSubscri\u0070tions":["file:///secr\u0065t/x"]}`, 403},
		{"what is denied, in other letters", `{"ResourceSubscriptions":["file:///secret/x"]}`, 403},
		{"what is denied, before others in other letters", `{"resourceSubscriptions":["file:///secret/x"],"ResourceSubscriptions":["file:///public/x"]}`, 400},
		{"what is denied, twice", `{"resourceSubscriptions":["file:///secret/x"],"resourceSubscriptions":["file:///public/x"]}`, 400},
		{"a text", `{"resourceSubscriptions":"file:///secret/x"}`, 400},
		{"a list of lists", `{"resourceSubscriptions":[["file:///secret/x"]]}`, 400},
		{"a list", `[{"resourceSubscriptions":["file:///secret/x"]}]`, 400},
	} {
		for _, path := range single {
			t.Run(tt.name+" at "+path, func(t *testing.T) {
				before := len(server.saw())
				w := serves(t, h, posting(path, `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":`+tt.wants+`}}`))
				if heard := len(server.saw()) > before; w.Code/100 != tt.status/100 || heard != (tt.status == 200) {
					t.Errorf("%d %s; the server was asked: %t", w.Code, w.Body, heard)
				}
			})
		}
	}
}

func TestRulesByAnAlias(t *testing.T) { // A54, A55, A64
	server := newWitness(t, nil)
	h := gateway(t, `{`+denies("uno::secret", "prompt:uno::secret", "resource:uno::file:///secret/")+
		`"rates":[{"tools":"uno::seldom","requests":1,"per":"1h"}],
		"servers":[{"name":"a","aliases":["uno"],"routes":[{"handle":[`+proxyTo("", server.address)+`]}]}]}`)
	for _, path := range append([]string{"/mcp/uno", "/api/mcp-gateway/uno/rpc"}, single...) {
		for method, params := range map[string]string{
			"tools/call": `{"name":"secret"}`, "prompts/get": `{"name":"secret"}`, "resources/read": `{"uri":"file:///secret/x"}`,
		} {
			if w := serves(t, h, posting(path, `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":`+params+`}`)); w.Code != http.StatusForbidden {
				t.Errorf("%s at %s: %d %s", method, path, w.Code, w.Body)
			}
		}
	}
	var codes []int
	for _, path := range []string{"/mcp/uno", "/mcp/a"} {
		codes = append(codes, serves(t, h, posting(path, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"seldom"}}`)).Code)
	}
	if !slices.Equal(codes, []int{200, 429}) {
		t.Errorf("a tool within its rate, then beyond it: %v", codes)
	}
	core, logs := observer.New(zap.WarnLevel)
	h.logger = zap.New(core)
	for _, pattern := range []string{"a::x", "uno::x", "*::x", "resource:file:///x"} {
		h.qualified(pattern, "eve")
	}
	if logs.Len() > 0 {
		t.Errorf("logged %v", logs.All())
	}
	if h.qualified("typo::x", "eve"); logs.Len() != 1 || logs.All()[0].ContextMap()["pattern"] != "typo::x" || logs.All()[0].ContextMap()["client"] != "eve" {
		t.Errorf("of a server that there is not nobody is told: %v", logs.All())
	}
}

func TestWhatTheProtocolDoesNotKnow(t *testing.T) { // A53, A54
	server := newWitness(t, nil)
	config := func(rules string) *Handler {
		return gateway(t, `{"clients":[{"name":"*",`+rules+`}],"servers":[`+server.line("a")+`]}`)
	}
	for _, tt := range []struct {
		name, rules string
		want        bool
	}{
		{"who may use one tool", `"rules":[{"action":"allow","patterns":["a::ok"]}]`, false},
		{"who may use everything of the server", `"rules":[{"action":"allow","patterns":["a::*"]}]`, true},
		{"who may not use one tool", `"rules":[{"action":"deny","patterns":["a::secret"]}]`, true},
		{"who has no rules", `"redact":["x"]`, true},
	} {
		h := config(tt.rules)
		for _, method := range []string{"admin/deleteEverything", "tasks/result", "tasks/list", "tasks/get", `t\u0061sks/cancel`} {
			for _, id := range []string{`"id":1,`, ``} {
				for _, path := range single {
					t.Run(fmt.Sprint(tt.name, ": ", id, method, " at ", path), func(t *testing.T) {
						before := len(server.saw())
						w := serves(t, h, posting(path, `{"jsonrpc":"2.0",`+id+`"method":"`+method+`","params":{"taskId":"of-somebody-else"}}`))
						if got := len(server.saw()) > before; got != tt.want || !got && w.Code != http.StatusForbidden {
							t.Errorf("the server was asked: %t, %d %s", got, w.Code, w.Body)
						}
					})
				}
			}
		}
	}
}

func TestWhatTheProtocolDoesNotKnowAtAllServers(t *testing.T) { // A53, A54, A58
	server := newWitness(t, nil)
	h := gateway(t, `{"clients":[{"name":"*","rules":[{"action":"allow","patterns":["a::ok"]}]}],"servers":[`+server.line("a")+`]}`)
	id := session(t, h)
	for _, message := range []string{
		`{"jsonrpc":"2.0","method":"admin/deleteEverything","params":{}}`,
		`{"jsonrpc":"2.0","id":5,"method":"admin/deleteEverything","params":{}}`,
		`{"jsonrpc":"2.0","method":"tools/call","params":{"name":"secret"}}`,
		`{"jsonrpc":"2.0","method":"tasks/cancel","params":{"taskId":"a::1"}}`,
		`{"jsonrpc":"2.0","id":6,"method":"tasks/cancel","params":{"taskId":"a::1"}}`,
	} {
		serves(t, h, posting("/mcp", message, mcp.SessionHeader, id))
	}
	serves(t, h, posting("/mcp", `{"jsonrpc":"2.0","method":"notifications/vendor"}`, mcp.SessionHeader, id))
	heard := false
	for _, got := range server.saw() {
		for _, method := range []string{"admin/deleteEverything", "tools/call", "tasks/cancel"} {
			if got.is(method) {
				t.Errorf("the server got %s", got.body)
			}
		}
		heard = heard || got.is("notifications/vendor")
	}
	if !heard {
		t.Error("the server has not heard a notification")
	}
}

func TestAClientIsOneHoweverItProvesIt(t *testing.T) { // A75, A77
	server := newWitness(t, func(w http.ResponseWriter, _ *http.Request, got witnessed) {
		switch {
		case got.header.Get(mcp.VersionHeader) == mcp.Stateless:
			w.WriteHeader(http.StatusBadRequest)
		case got.is("initialize"):
			w.Header().Set(mcp.SessionHeader, "of the server")
			says(w, got, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}`)
		default:
			says(w, got, `{"content":[]}`)
		}
	})
	t.Setenv("FIRST_TOKEN", "first-AbCdEf0123456789")
	t.Setenv("SECOND_TOKEN", "second-AbCdEf0123456789")
	for name, tt := range map[string]struct {
		forward string
		want    int
	}{"which the server is not told": {"false", 1}, "which the server is told": {"true", 2}} {
		t.Run(name, func(t *testing.T) {
			h := gateway(t, `{"forward_auth_header":`+tt.forward+`,"auth":[{"provider":"token","tokens":[{"token":"{env.FIRST_TOKEN}","client":"ann"},{"token":"{env.SECOND_TOKEN}","client":"ann"}]}],
				"servers":[`+server.line("a")+`]}`)
			before := len(server.saw())
			for _, token := range []string{"first", "second", "first", "second"} {
				w := serves(t, h, posting("/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a::x","arguments":{},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"x","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`,
					"Authorization", "Bearer "+token+"-AbCdEf0123456789", mcp.VersionHeader, mcp.Stateless, "Mcp-Method", "tools/call", "Mcp-Name", "a::x"))
				if w.Code != http.StatusOK {
					t.Fatalf("%d %s", w.Code, w.Body)
				}
			}
			met := 0
			for _, got := range server.saw()[before:] {
				if got.is("initialize") {
					met++
				}
			}
			if met != tt.want {
				t.Errorf("the server was met %d times", met)
			}
		})
	}
}

func TestGuessesAreLimited(t *testing.T) { // A30, A65, R14
	t.Setenv("SECRET_TOKEN", "right-AbCdEf0123456789")
	server := newWitness(t, nil)
	h := gateway(t, `{"rates":[{"requests":3,"per":"1h"}],"auth":[{"provider":"token","tokens":[{"token":"{env.SECRET_TOKEN}","client":"ann"}]}],"servers":[`+server.line("a")+`]}`)
	for i := range 5 {
		w := serves(t, h, posting("/mcp/a", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, "Authorization", fmt.Sprintf("Bearer wrong-%d", i)))
		want := http.StatusUnauthorized
		if i >= 3 {
			want = http.StatusTooManyRequests
		}
		if w.Code != want || (w.Header().Get("Retry-After") != "") != (i >= 3) {
			t.Errorf("guess %d: %d %v", i, w.Code, w.Header())
		}
	}
	if w := serves(t, h, posting("/mcp/a", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, "Authorization", "Bearer right-AbCdEf0123456789")); w.Code != http.StatusOK {
		t.Errorf("who knows it: %d %s", w.Code, w.Body)
	}
}

// unwanted is a body that nobody may wait for.
type unwanted struct{ t *testing.T }

func (u unwanted) Read([]byte) (int, error) { u.t.Error("the body is read"); return 0, io.EOF }

func TestWhoIsNotLetInIsNotReadEither(t *testing.T) { // A30
	server := newWitness(t, nil)
	h := gateway(t, `{"auth":[{"provider":"mtls"}],"servers":[`+server.line("a")+`]}`)
	for _, path := range append([]string{"/mcp"}, single...) {
		r := posting(path, "")
		r.Body, r.ContentLength = io.NopCloser(unwanted{t}), 9_000_000
		if w := serves(t, h, r); w.Code != http.StatusUnauthorized {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

func TestCredentialsOfClientsStayHere(t *testing.T) { // A31
	server := newWitness(t, nil)
	for _, tt := range []struct {
		name, config, server string
		forwarded            bool
	}{
		{"by default", "", "", false},
		{"all servers get them", `"forward_auth_header":true,`, "", true},
		{"this server gets them", "", `,"forward_auth_header":true`, true},
		{"this server does not", `"forward_auth_header":true,`, `,"forward_auth_header":false`, false},
	} {
		h := gateway(t, `{`+tt.config+`"servers":[{"name":"a","routes":[{"handle":[`+proxyTo("", server.address)+`]}]`+tt.server+`}]}`)
		for _, path := range append([]string{"/mcp"}, single...) {
			t.Run(tt.name+" at "+path, func(t *testing.T) {
				before := len(server.saw())
				serves(t, h, posting(path, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`,
					"Authorization", "Bearer mine", "Cookie", "session=mine"))
				all := server.saw()[before:]
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

func TestNobodyElseIsTheOperator(t *testing.T) { // A30, A57
	server := newWitness(t, nil)
	h := gateway(t, `{`+denies("*")+`"rates":[{"requests":1000,"per":"1h"}],"servers":[`+server.line("a")+`]}`)
	for _, user := range []string{operator, "a\nb", strings.Repeat("x", 100_000)} {
		for _, path := range single {
			if w := servesUser(t, h, user, posting(path, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`)); w.Code != http.StatusForbidden {
				t.Errorf("%.20q at %s: %d %s", user, path, w.Code, w.Body)
			}
		}
		repl := caddy.NewReplacer()
		repl.Set("http.auth.user.id", user)
		if got := identity(repl); len(got) > 1000 || got == user || strings.ContainsAny(got, "\x00\n") {
			t.Errorf("%.20q is %.40q", user, got)
		}
	}
}

func TestTheCommandKnowsItsClients(t *testing.T) { // A42, A57
	const caddyfile = ":80 {\nmcp_gateway {\nserver sample http://127.0.0.1:1\nclient cline {\nmatch line\ndeny sample::*\n}\n%s}\n}"
	for _, tt := range []struct{ name, client, more, err string }{
		{"nobody in particular", "", "", ""},
		{"a client", "cline", "", ""},
		{"a client by another name", "line", "", ""},
		{"a client that there is not", "clnie", "", `no client "clnie", but: cline`},
		{"one of others", "clnie", "client c* {\ndeny sample::x\n}\n", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := stdioConfig(adapted(t, fmt.Sprintf(caddyfile, tt.more)), "", "", tt.client)
			if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestWhatAClientIsShownChanges(t *testing.T) { // A56, A57, A60
	view := func(t *testing.T, more string) string {
		return storedGateway(t, t.TempDir(), `{`+more+`"servers":[`+serverOf("a", staticHandler)+`]}`).view("ann")
	}
	views := map[string]string{}
	for name, more := range map[string]string{
		"nothing":       ``,
		"a rule":        denies("a::x"),
		"another rule":  denies("a::y"),
		"a pattern":     `"clients":[{"name":"ann","redact":["sk-[a-z]+"]}],`,
		"another":       `"clients":[{"name":"ann","redact":["sk-[0-9]+"]}],`,
		"a field":       `"clients":[{"name":"ann","redact_fields":["sk-[a-z]+"]}],`,
		"pinned tools":  `"pin_tools":true,`,
		"pinned, ruled": `"pin_tools":true,` + denies("a::x"),
	} {
		got := view(t, more)
		if got != view(t, more) {
			t.Errorf("%s: the same is another", name)
		}
		if other, there := views[got]; there {
			t.Errorf("%s is the same as %s", name, other)
		}
		views[got] = name
	}
}

func TestGatewaysWithoutANameShareNothing(t *testing.T) { // A63, A67
	config := func(server string) string {
		return `{"rates":[{"requests":1,"per":"1h"}],"servers":[` + serverOf(server, staticHandler) + `]}`
	}
	one, other := gateway(t, config("twin-one")), gateway(t, config("twin-other"))
	call := func(h *Handler, server string) int {
		return serves(t, h, posting("/mcp/"+server, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`)).Code
	}
	if got := []int{call(one, "twin-one"), call(one, "twin-one"), call(other, "twin-other")}; !slices.Equal(got, []int{200, 429, 200}) {
		t.Errorf("got %v", got)
	}
	if again := gateway(t, config("twin-one")); call(again, "twin-one") != 429 {
		t.Error("what was used is forgotten with a reload")
	}
}

func TestAConfigurationThatFailsLeavesNothing(t *testing.T) { // A61
	for range 3 {
		ctx, err := caddy.ProvisionContext(new(caddy.Config))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := caddy.NewContext(ctx)
		_, err = ctx.LoadModuleByID("http.handlers.mcp_gateway", json.RawMessage(`{"name":"fails","session_key":"short","servers":[`+serverOf("fails", staticHandler)+`]}`))
		if err == nil {
			t.Fatal("it is loaded")
		}
		cancel()
	}
	if n, _ := memories.References("fails\x00/mcp"); n > 0 {
		t.Errorf("what it remembers is in use %d times", n)
	}
	pinnings.Range(func(key, _ any) bool {
		if strings.HasPrefix(key.(string), "fails\x00") {
			t.Errorf("the tools of %q are remembered", key)
		}
		return true
	})
}

func TestTalliesAllocateNothing(t *testing.T) {
	m := new(memory)
	m.tally("ann")
	if n := testing.AllocsPerRun(100, func() { m.tally("ann").requests.Add(1) }); n > 0 {
		t.Errorf("%v times", n)
	}
}
