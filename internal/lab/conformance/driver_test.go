//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// A fakeGateway requests logins and serves the login pages. Its authorization server is a
// separate server.
type fakeGateway struct {
	modern         bool
	requiredLogins int    // logins before its tool succeeds; the first is needed to list it
	callbackError  string // error of the callback, or ""

	url, authorization string
	answers            chan json.RawMessage // responses to requests on streams

	mu     sync.Mutex
	logins int
}

func startFakeGateway(t *testing.T, g *fakeGateway) *fakeGateway {
	t.Helper()
	serve := func(h http.Handler) string {
		s := httptest.NewServer(h)
		t.Cleanup(func() {
			s.CloseClientConnections() // otherwise Close waits for streams
			s.Close()
		})
		return s.URL
	}
	g.answers = make(chan json.RawMessage, 1)
	g.authorization = serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.FormValue("redirect_uri")+"?code=c&state="+r.FormValue("state"), http.StatusFound)
	}))
	mux := http.NewServeMux()
	mux.Handle("/mcp", &mcptest.Script{Handle: g.handle})
	mux.HandleFunc("GET /mcp/oauth/login", func(w http.ResponseWriter, r *http.Request) {
		http.SetCookie(w, &http.Cookie{Name: "login", Value: r.FormValue("ticket"), Path: "/mcp/oauth", HttpOnly: true})
		fmt.Fprintf(w, `<!doctype html><title>Login</title><meta charset=utf-8><p>A &amp; B<br>
			<form method="post"><input type="hidden" name="ticket" value="%s"><button>Log in</button></form>`,
			r.FormValue("ticket"))
	})
	mux.HandleFunc("POST /mcp/oauth/login", func(w http.ResponseWriter, r *http.Request) {
		cookie, err := r.Cookie("login")
		if err != nil || cookie.Value != r.PostFormValue("ticket") || r.Header.Get("Origin") != "http://"+r.Host {
			http.Error(w, "not the form of the login page", http.StatusForbidden)
			return
		}
		query := url.Values{"state": {cookie.Value}, "redirect_uri": {g.url + "/mcp/oauth/callback"}}
		http.Redirect(w, r, g.authorization+"/authorize?"+query.Encode(), http.StatusSeeOther)
	})
	mux.HandleFunc("GET /mcp/oauth/callback", func(w http.ResponseWriter, r *http.Request) {
		cookie, err := r.Cookie("login")
		if err != nil || cookie.Value != r.FormValue("state") || r.Header.Get("Origin") != "" {
			http.Error(w, "not the browser that started the login", http.StatusForbidden)
			return
		}
		if g.callbackError != "" {
			http.Error(w, g.callbackError, http.StatusBadRequest)
			return
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		g.logins++
	})
	g.url = serve(mux)
	return g
}

// loggedIn returns the number of logins.
func (g *fakeGateway) loggedIn() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.logins
}

// handle serves the requests that depend on logins.
func (g *fakeGateway) handle(w http.ResponseWriter, r *mcptest.Received) bool {
	before := g.loggedIn()
	question := fmt.Sprintf(`"method":"elicitation/create","params":{"mode":"url","url":"%s/mcp/oauth/login?ticket=%d"}`,
		g.url, before)
	switch r.Method {
	case "answer":
		g.answers <- r.Result
		w.WriteHeader(http.StatusAccepted)
		return true
	case "tools/list":
		tool := "test-tool"
		if before == 0 {
			tool = "login"
		}
		r.Answer(w, fmt.Sprintf(`"result":{"resultType":"complete","tools":[{"name":%q,"inputSchema":{"type":"object"}}]}`,
			prefix+tool))
		return true
	case "tools/call":
		wants := g.requiredLogins
		if r.Tool() == prefix+"login" {
			wants = 1
		}
		switch answers := r.Param("inputResponses"); {
		case before >= wants && answers == "":
			r.Answer(w, mcptest.Text("done"))
		case answers != "":
			r.Answer(w, g.outcome(answers))
		case g.modern:
			r.Answer(w, `"result":{"resultType":"input_required","inputRequests":{"login":{`+question+`}}}`)
		default:
			r.Stream(w, `{"jsonrpc":"2.0","id":1,`+question+`}`)
			r.Stream(w, r.Message(g.outcome(string(<-g.answers))))
		}
		return true
	}
	return false
}

// outcome returns the result of a call that requested a login and got this response.
func (g *fakeGateway) outcome(answer string) string {
	if !strings.Contains(answer, `"accept"`) {
		return `"result":{"isError":true,"content":[]}`
	}
	return mcptest.Text("done")
}

func TestDriverLogsIn(t *testing.T) {
	for _, tt := range []struct {
		name    string
		wants   int
		refuses string
		logins  int
		err     string // or ""
	}{
		{"once", 1, "", 1, ""},
		{"again for a tool", 2, "", 2, ""},
		{"refused", 1, "the issuer is another", 0, "the issuer is another"},
	} {
		for _, era := range eras {
			t.Run(tt.name+", "+era, func(t *testing.T) {
				g := startFakeGateway(t, &fakeGateway{modern: era == modern, requiredLogins: tt.wants, callbackError: tt.refuses})
				err := newDriver(testCase{scenario: "auth/scope-step-up"}, g.url+"/mcp", era).run(t.Context())
				if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
					t.Errorf("got error %v, want %q", err, tt.err)
				}
				if got := g.loggedIn(); got != tt.logins {
					t.Errorf("got %d logins, want %d", got, tt.logins)
				}
			})
		}
	}
}

func TestBrowserNeedsOneForm(t *testing.T) {
	for html, want := range map[string]string{
		`<p>Not found`:               "got 0 forms",
		`<form></form><form></form>`: "got 2 forms",
		`<form action="/elsewhere">`: "want POST",
		`<form method=post>`:         "",
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, html) }))
		err := newBrowser().login(t.Context(), s.URL)
		s.Close()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want %q", html, err, want)
		}
	}
}

func TestCaddyfile(t *testing.T) {
	dir := t.TempDir()
	key := filepath.Join(dir, "private_key")
	for _, tt := range []struct {
		test testCase
		want []string // options of the oauth block, or nil
	}{
		{testCase{scenario: "tools_call"}, nil},
		{testCase{scenario: "auth/metadata-default"}, []string{}},
		{testCase{scenario: "auth/pre-registration", ClientID: "id", ClientSecret: "secret"},
			[]string{`client_id "id"`, `client_secret "secret"`}},
		{testCase{scenario: "auth/client-credentials-jwt", ClientID: "id", PrivateKey: "key"},
			[]string{`client_id "id"`, `private_key "` + key + `"`, `grant "client_credentials"`}},
		{testCase{scenario: "auth/wif-jwt-bearer", ClientID: "id", Assertion: "jwt"},
			[]string{`client_id "id"`, `assertion "` + filepath.Join(dir, "assertion") + `"`, `grant "jwt_bearer"`}},
	} {
		got, err := tt.test.caddyfile(driverOptions{port: 1, dir: dir}, "http://localhost:2/mcp")
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		if _, block, found := strings.Cut(got, "oauth {"); found {
			block, _, _ = strings.Cut(block, "}")
			lines = strings.Split(strings.ReplaceAll(strings.TrimSpace(block), "\t", ""), "\n")[1:]
		}
		if !reflect.DeepEqual(lines, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.test.scenario, lines, tt.want)
		}
	}
	if text, err := os.ReadFile(key); string(text) != "key" {
		t.Errorf("got private key %q, error %v, want key", text, err)
	}
}

func TestExample(t *testing.T) {
	got, _ := json.Marshal(example(json.RawMessage(`{"type":"object","properties":{
		"s":{"type":"string"},"n":{"type":"number"},"i":{"type":"integer","default":30},"b":{"type":"boolean"},
		"e":{"type":"string","enum":["x","y"]},"a":{"type":"array"},"o":{"type":"object"},"any":true}}`)))
	if want := `{"a":[],"any":null,"b":true,"e":"x","i":30,"n":1,"o":{},"s":"text"}`; string(got) != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
