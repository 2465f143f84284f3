package gateway

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/ratelimit"
)

// loginRoutes require a login for each account.
type loginRoutes struct {
	fakeRoutes
	operatorOnly bool // clients are not offered a login

	mu       sync.Mutex
	accounts map[string]bool
	changed  chan struct{}
}

// newLoginGateway returns a gateway with a server that requires a login.
func newLoginGateway(t *testing.T, p *fakeServer, configure func(*Config)) (*testGateway, *loginRoutes) {
	login := &loginRoutes{fakeRoutes: fakeRoutes{p}, accounts: map[string]bool{}, changed: make(chan struct{})}
	g := newGateway(t, func(c *Config) {
		c.Servers[0].Routes, c.Servers[0].Login = login, login
		if configure != nil {
			configure(c)
		}
	}, p)
	return g, login
}

func (l *loginRoutes) isLoggedIn(account string) (bool, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.accounts[account], l.changed
}

// logIn completes the login of an account.
func (l *loginRoutes) logIn(g *testGateway, account string) {
	l.mu.Lock()
	l.accounts[account] = true
	close(l.changed)
	l.changed = make(chan struct{})
	l.mu.Unlock()
	g.LoginChanged(l.name, account, false)
}

// logOut ends the login of an account.
func (l *loginRoutes) logOut(account string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.accounts, account)
}

func (l *loginRoutes) Serve(w http.ResponseWriter, r *http.Request, account string) error {
	if ok, _ := l.isLoggedIn(account); ok {
		return l.fakeRoutes.Serve(w, r, account)
	}
	_, _ = io.Copy(io.Discard, r.Body)
	if l.operatorOnly {
		return jsonrpc.LoginRequired(l.name, nil)
	}
	return jsonrpc.LoginRequired(l.name, &jsonrpc.URLElicitation{
		Mode: "url", URL: "https://gateway/login?for=" + account, ID: "e1", Message: "Log in to " + l.name + " to go on.",
	})
}

func (l *loginRoutes) Await(ctx context.Context, account string) bool {
	for {
		ok, changed := l.isLoggedIn(account)
		if ok {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// opensURLs are the capabilities of a client that can open URLs.
const opensURLs = `{"elicitation":{"url":{}}}`

func TestLoginToolBeforeTheLogin(t *testing.T) {
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		p := legacyPeer("a").hasTools("x")
		g, login := newLoginGateway(t, p, nil)
		u := g.user(t, era)
		u.identity = "ann"
		if era == mcp.Legacy {
			u.connect()
			if !strings.Contains(u.hello.answer, `"prompts":{"listChanged":true}`) {
				t.Errorf("capabilities before the login: %s", u.hello.answer)
			}
		}
		if got := namesIn(t, u.ask("tools/list", `{}`), "tools", "name"); !slices.Equal(got, []string{"a::login"}) {
			t.Errorf("before the login: %q", got)
		}
		login.logIn(g, "ann")
		if got := namesIn(t, u.ask("tools/list", `{}`), "tools", "name"); !slices.Equal(got, []string{"a::x"}) {
			t.Errorf("after the login: %q", got)
		}
		if s := u.call("a::login"); !strings.Contains(s.answer, "Logged in to a") || strings.Contains(s.answer, "isError") {
			t.Errorf("login tool after the login: %s", s.body)
		}
	}
}

func TestLoginOfTheOperatorIsNotOffered(t *testing.T) {
	p := legacyPeer("a").hasTools("x")
	g, login := newLoginGateway(t, p, nil)
	login.operatorOnly = true
	u := g.legacy(t)
	if got := namesIn(t, u.ask("tools/list", `{}`), "tools", "name"); len(got) != 0 {
		t.Errorf("listed: %q", got)
	}
	s := u.call("a::x")
	if s.symbol() != "login_required" || s.code() != -32042 || strings.Contains(s.body, "elicitations") ||
		!strings.Contains(s.body, "operator") {
		t.Errorf("got %s", s.body)
	}
}

func TestClientWithoutElicitationGetsTheURL(t *testing.T) {
	p := legacyPeer("a").hasTools("x").hasList("prompts/list", "prompts", `{"name":"p"}`)
	g, login := newLoginGateway(t, p, nil)
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		u := g.user(t, era)
		u.identity, u.capabilities = "ann", `{}`
		if era == mcp.Legacy {
			u.connect()
		}
		for _, tool := range []string{"a::login", "a::x"} {
			if s := u.call(tool); !strings.Contains(s.answer, "https://gateway/login?for=ann") ||
				!strings.Contains(s.answer, `"isError":true`) {
				t.Errorf("%s: %s", tool, s.body)
			}
		}
		s := u.ask("prompts/get", `{"name":"a::p"}`)
		if s.code() != -32042 || !strings.Contains(s.body,
			`"elicitations":[{"mode":"url","message":"Log in to a to go on.","url":"https://gateway/login?for=ann",`+
				`"elicitationId":"e1"}]`) {
			t.Errorf("prompt: %s", s.body)
		}
	}
	if n := p.count("initialize"); n != 0 {
		t.Errorf("the server got %d requests without a login", n)
	}
	login.logIn(g, "ann")
}

func TestLegacyClientLogsInDuringACall(t *testing.T) {
	p := legacyPeer("a").hasTools("x")
	g, login := newLoginGateway(t, p, nil)
	u := g.user(t, mcp.Legacy)
	u.identity, u.capabilities = "ann", opensURLs
	u.connect()
	listening := u.listen()
	call := u.startRequest("tools/call", `{"name":"a::x","arguments":{}}`)
	question := call.nextOf("elicitation/create")
	for _, part := range []string{`"mode":"url"`, `"url":"https://gateway/login?for=ann"`, `"elicitationId":"e1"`} {
		if !strings.Contains(question.data, part) {
			t.Errorf("the server request lacks %s: %s", part, question.data)
		}
	}
	u.respond(question, `{"action":"accept"}`)
	login.logIn(g, "ann")
	if done := call.nextOf("notifications/elicitation/complete"); !strings.Contains(done.data, `"e1"`) {
		t.Errorf("got %s", done.data)
	}
	if answer := call.nextOf(""); !strings.Contains(answer.data, `"text":"a"`) {
		t.Errorf("the call did not continue: %s", answer.data)
	}
	listening.nextOf("notifications/tools/list_changed")
}

// A call that waits for a login has not reached the server, so the gateway cancels it itself.
func TestCallThatWaitsForALoginCanBeCanceled(t *testing.T) {
	g, login := newLoginGateway(t, legacyPeer("a").hasTools("x"), nil)
	u := g.user(t, mcp.Legacy)
	u.identity, u.capabilities = "ann", opensURLs
	u.connect()
	login.logIn(g, "ann")
	u.call("a::x") // so that the server is known to be legacy
	login.logOut("ann")
	for _, answered := range []bool{false, true} {
		id := u.nextID()
		call := u.open(http.MethodPost, u.request(id, "tools/call", `{"name":"a::x","arguments":{}}`))
		question := call.nextOf("elicitation/create")
		if answered {
			u.respond(question, `{"action":"accept"}`)
		}
		u.notify("notifications/cancelled", `{"requestId":`+id+`}`)
		call.nextOf("")
	}
}

func TestLoginCanBeDeclined(t *testing.T) {
	p := legacyPeer("a").hasTools("x")
	g, _ := newLoginGateway(t, p, nil)
	u := g.user(t, mcp.Legacy)
	u.identity, u.capabilities = "ann", opensURLs
	u.connect()
	call := u.startRequest("tools/call", `{"name":"a::x","arguments":{}}`)
	u.respond(call.nextOf("elicitation/create"), `{"action":"decline"}`)
	if answer := call.nextOf(""); !strings.Contains(answer.data, "input_refused") {
		t.Errorf("got %s", answer.data)
	}

	m := g.user(t, mcp.Modern)
	m.identity, m.capabilities = "ann", opensURLs
	state := requestState(t, m.call("a::x"))
	s := m.ask("tools/call", `{"name":"a::x","arguments":{},"requestState":`+state+
		`,"inputResponses":{"login":{"action":"cancel"}}}`)
	if s.symbol() != "input_refused" {
		t.Errorf("got %s", s.body)
	}
}

// requestState returns the state of an input-required result.
func requestState(t *testing.T, s reply) string {
	t.Helper()
	var answer struct {
		Result struct {
			ResultType   string          `json:"resultType"`
			RequestState json.RawMessage `json:"requestState"`
			Requests     map[string]struct {
				Method string
				Params jsonrpc.URLElicitation
			} `json:"inputRequests"`
		}
	}
	if err := json.Unmarshal([]byte(s.answer), &answer); err != nil {
		t.Fatal(err)
	}
	result := answer.Result
	if asked := result.Requests["login"]; result.ResultType != "input_required" || asked.Method != "elicitation/create" ||
		asked.Params.URL == "" {
		t.Fatalf("no request for a login: %s", s.body)
	}
	return string(result.RequestState)
}

func TestModernClientLogsInByAResult(t *testing.T) {
	for _, p := range []*fakeServer{legacyPeer("a"), modernPeer("a")} {
		p.hasTools("x")
		g, login := newLoginGateway(t, p, nil)
		u := g.user(t, mcp.Modern)
		u.identity, u.capabilities = "ann", opensURLs
		state := requestState(t, u.call("a::x"))
		again := u.start(http.MethodPost, u.request(u.nextID(), "tools/call",
			`{"name":"a::x","requestState":`+state+`,"inputResponses":{"login":{"action":"accept"}}}`))
		login.logIn(g, "ann")
		if answer := again.nextOf(""); !strings.Contains(answer.data, `"text":"a"`) {
			t.Errorf("the call did not continue: %s", answer.data)
		}
		for _, sent := range p.requests("tools/call") {
			if strings.Contains(sent.body, "requestState") || strings.Contains(sent.body, "inputResponses") {
				t.Errorf("the server got the response to the gateway's request: %s", sent.body)
			}
		}
	}
}

func TestStateOfALoginCountsForItsCallOnly(t *testing.T) {
	p := legacyPeer("a").hasTools("x", "y")
	g, login := newLoginGateway(t, p, nil)
	ann, bob := g.user(t, mcp.Modern), g.user(t, mcp.Modern)
	ann.identity, ann.capabilities = "ann", opensURLs
	bob.identity, bob.capabilities = "bob", opensURLs
	state := requestState(t, ann.call("a::x"))
	login.logIn(g, "ann")
	login.logIn(g, "bob")
	for name, s := range map[string]reply{
		"another client": bob.ask("tools/call", `{"name":"a::x","requestState":`+state+
			`,"inputResponses":{"login":{"action":"accept"}}}`),
		"another tool": ann.ask("tools/call", `{"name":"a::y","requestState":`+state+
			`,"inputResponses":{"login":{"action":"accept"}}}`),
	} {
		if s.symbol() != "invalid_params" {
			t.Errorf("%s: %s", name, s.body)
		}
	}
}

// A server may require input of its own, and another login after that. The client's response to the
// server is not lost.
func TestLoginKeepsInputOfTheServer(t *testing.T) {
	p := modernPeer("a").hasTools("x")
	p.handle("tools/call", func(w http.ResponseWriter, a *incoming) {
		if a.message.Is(jsonrpc.RequestState, "s1") {
			a.reply(w, `{"resultType":"complete","content":[{"type":"text","text":"done"}]}`)
			return
		}
		a.reply(w, `{"resultType":"input_required","requestState":"s1","inputRequests":{"k":{"method":"roots/list",`+
			`"params":{}}}}`)
	})
	g, login := newLoginGateway(t, p, nil)
	u := g.user(t, mcp.Modern)
	u.identity, u.capabilities = "ann", `{"elicitation":{"url":{}},"roots":{}}`
	login.logIn(g, "ann")
	if s := u.call("a::x"); !strings.Contains(s.answer, `"requestState":"s1"`) {
		t.Fatalf("got %s", s.body)
	}
	login.mu.Lock()
	login.accounts["ann"] = false
	login.mu.Unlock()
	state := requestState(t, u.ask("tools/call",
		`{"name":"a::x","requestState":"s1","inputResponses":{"k":{"roots":[]}}}`))
	again := u.start(http.MethodPost, u.request(u.nextID(), "tools/call",
		`{"name":"a::x","requestState":`+state+`,"inputResponses":{"login":{"action":"accept"}}}`))
	login.logIn(g, "ann")
	if answer := again.nextOf(""); !strings.Contains(answer.data, `"text":"done"`) {
		t.Errorf("got %s", answer.data)
	}
	calls := p.requests("tools/call")
	if last := calls[len(calls)-1].body; !strings.Contains(last, `"inputResponses":{"k":{"roots":[]}}`) {
		t.Errorf("the server got %s", last)
	}
}

func TestLoginCountsForOneAccount(t *testing.T) {
	p := legacyPeer("a").hasTools("x")
	g, login := newLoginGateway(t, p, nil)
	ann, bob := g.user(t, mcp.Legacy), g.user(t, mcp.Legacy)
	ann.identity, bob.identity = "ann", "bob"
	ann.capabilities, bob.capabilities = `{}`, `{}`
	ann.connect()
	bob.connect()
	login.logIn(g, "ann")
	if s := ann.call("a::x"); !strings.Contains(s.answer, `"text":"a"`) {
		t.Errorf("ann: %s", s.body)
	}
	if s := bob.call("a::x"); !strings.Contains(s.answer, "for=bob") {
		t.Errorf("bob: %s", s.body)
	}
}

// A session with a server belongs to the account that started it.
func TestSessionEndsWithItsLogin(t *testing.T) {
	p := legacyPeer("a").hasTools("x")
	g, login := newLoginGateway(t, p, nil)
	u := g.user(t, mcp.Legacy)
	u.identity = "ann"
	login.logIn(g, "ann")
	u.connect()
	u.call("a::x")
	before := p.count("initialize")
	login.logIn(g, "ann") // possibly at the server as another user
	if s := u.call("a::x"); s.code() != 0 {
		t.Fatalf("got %s", s.body)
	}
	if n := p.count("initialize") - before; n != 1 {
		t.Errorf("got %d new sessions after the login", n)
	}
}

// The login tool is allowed without a rule.
func TestLoginToolNeedsNoRule(t *testing.T) {
	p := legacyPeer("a").hasTools("x", "y")
	g, _ := newLoginGateway(t, p, func(c *Config) {
		c.Clients = []*access.Client{{Name: "ann", Policy: rulesOf("allow a::x", "deny a::*")},
			{Name: "*", Policy: rulesOf("deny a::*")}}
	})
	ann, eve := g.user(t, mcp.Modern), g.user(t, mcp.Modern)
	ann.identity, eve.identity = "ann", "eve"
	if s := ann.call("a::login"); !strings.Contains(s.answer, "https://gateway/login") {
		t.Errorf("client with an allowed tool: %s", s.body)
	}
	if s := ann.call("a::y"); s.symbol() != "acl_denied" {
		t.Errorf("denied tool: %s", s.body)
	}
	if s := eve.call("a::login"); s.symbol() != "acl_denied" {
		t.Errorf("client without the server: %s", s.body)
	}
}

// Rules for annotations are applied after the login, because the server requires it for its tool
// list.
func TestLoginBeforeAnnotations(t *testing.T) {
	for tool, want := range map[string]string{"read": `"text":"a"`, "write": "acl_denied"} {
		for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
			p := legacyPeer("a").hasAnnotatedTools()
			g, login := newLoginGateway(t, p, rulesForAll("deny destructive"))
			u := g.user(t, era)
			u.identity, u.capabilities = "ann", opensURLs
			var call *liveReply
			if era == mcp.Legacy {
				u.connect()
				call = u.startRequest("tools/call", `{"name":"a::`+tool+`"}`)
				u.respond(call.nextOf("elicitation/create"), `{"action":"accept"}`)
			} else {
				state := requestState(t, u.call("a::"+tool))
				call = u.start(http.MethodPost, u.request(u.nextID(), "tools/call",
					`{"name":"a::`+tool+`","requestState":`+state+`,"inputResponses":{"login":{"action":"accept"}}}`))
			}
			login.logIn(g, "ann")
			if answer := call.nextOf(""); !strings.Contains(answer.data, want) {
				t.Errorf("%s: got %s, want %s", tool, answer.data, want)
			}
			if n := p.count("tools/call"); n != strings.Count(tool, "read") {
				t.Errorf("%s: the server got %d calls", tool, n)
			}
		}
	}
}

// A server may have a login tool of its own, to which its limits apply.
func TestLimitsOfAServersOwnLoginTool(t *testing.T) {
	pattern, err := mcp.ParsePattern("a::login")
	if err != nil {
		t.Fatal(err)
	}
	g, login := newLoginGateway(t, legacyPeer("a").hasTools("login"), func(c *Config) {
		c.Limits = []access.Limit{access.NewLimit(ratelimit.Limit{Key: "test", N: 1, Per: time.Hour}, &pattern)}
	})
	login.logIn(g, "ann")
	for _, wants := range []string{"", "rate_limited"} {
		ann := g.user(t, mcp.Legacy)
		ann.identity = "ann"
		if s := ann.connect().call("a::login"); s.symbol() != wants {
			t.Errorf("wants %q: %s", wants, s.body)
		}
	}
}

// A failed login does not determine the era of a server.
func TestFailedLoginDoesNotDetermineTheEra(t *testing.T) {
	p := modernPeer("a").hasTools("x")
	g := newGateway(t, func(c *Config) { c.Servers[0].Routes = failingLoginRoutes{fakeRoutes{p}} }, p)
	s := g.modern(t).call("a::x")
	if s.symbol() != "login_failed" {
		t.Errorf("got %s", s.body)
	}
}

// failingLoginRoutes fail with login_failed.
type failingLoginRoutes struct{ fakeRoutes }

func (f failingLoginRoutes) Serve(w http.ResponseWriter, r *http.Request, _ string) error {
	if r.Header.Get(mcp.VersionHeader) != mcp.Stateless {
		return f.fakeRoutes.Serve(w, r, "")
	}
	return jsonrpc.LoginFailed(f.name, "no")
}
