package integration

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"
	"golang.org/x/net/html"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
)

// An authServer is a third-party authorization server, oidc-provider, and an MCP server of
// the official SDK that requires its tokens: peers/authserver.mjs.
type authServer struct {
	Issuer string // URL of the authorization server
	MCP    string // URL of the MCP server
}

// authServers is the process of all authServers, because a process of its own would take a second to
// start for each. It ends with the tests.
var authServers struct {
	sync.Mutex
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

// startAuthServer starts both with settings that peers/authserver.mjs describes.
func startAuthServer(t *testing.T, settings map[string]any) *authServer {
	t.Helper()
	p := &authServers
	p.Lock()
	defer p.Unlock()
	if p.cmd == nil {
		cmd := peer(t, "authserver.mjs")
		cmd = &exec.Cmd{Path: cmd.Path, Args: cmd.Args, Dir: cmd.Dir, Stderr: os.Stderr, Err: cmd.Err} // outlives t
		p.in, p.out = startPiped(t, cmd)
		p.cmd = cmd
	}
	a := &authServer{}
	err := json.NewEncoder(p.in).Encode(settings)
	if err == nil {
		var line []byte
		if line, err = p.out.ReadBytes('\n'); err == nil {
			err = json.Unmarshal(line, a)
		}
	}
	if err != nil {
		t.Fatalf("%s: %v", p.cmd, err)
	}
	return a
}

// line returns the server directive for the gateway's configuration, with an oauth block.
// It trusts the authorization server's loopback address.
func (a *authServer) line(oauth string, lines ...string) string {
	return block("server notes "+a.MCP, block(oauth, append(lines, "trusted_hosts 127.0.0.1")...))
}

// authStats are the statistics of both servers.
type authStats struct {
	Registrations   int
	Logins          int            // by a person
	Grants          map[string]int // tokens issued, by grant type
	RefusedGrants   []string
	Reused          int      // refresh tokens used a second time
	Tokens          []string // all issued tokens
	Revoked         int      // revoked grants
	Requests        int      // to the MCP server
	Unauthorized    int      // answered with 401
	Forbidden       int      // answered with 403
	Calls           map[string]int
	ForeignSessions int
}

func (a *authServer) stats(t *testing.T) (s authStats) {
	t.Helper()
	got := send(t, client, "GET", strings.TrimSuffix(a.MCP, "/mcp")+"/stats", "")
	if err := json.Unmarshal([]byte(got.body), &s); err != nil || got.StatusCode != 200 {
		t.Fatalf("stats: got %d %s, error %v", got.StatusCode, got.body, err)
	}
	return s
}

// post sends a form or JSON to the authorization server, decodes the response and returns its
// status.
func (a *authServer) post(t *testing.T, path, contentType, body string, answer any) int {
	t.Helper()
	got := post(t, a.Issuer+path, body, "Content-Type: "+contentType)
	if err := json.Unmarshal([]byte(got.body), answer); err != nil {
		t.Fatalf("%s: got %d %s, error %v", path, got.StatusCode, got.body, err)
	}
	return got.StatusCode
}

// tokens is a response of the token endpoint.
type tokens struct {
	Access  string `json:"access_token"`
	Refresh string `json:"refresh_token"`
	Scope   string
	Error   string
}

// token sends a form to the token endpoint.
func (a *authServer) token(t *testing.T, form url.Values) (got tokens) {
	t.Helper()
	a.post(t, "/token", "application/x-www-form-urlencoded", form.Encode(), &got)
	return got
}

// login gets tokens for an account, as a standard client does.
func (a *authServer) login(t *testing.T, clientID, account, resource, scope string) tokens {
	t.Helper()
	const redirect = "http://127.0.0.1:1/callback" // no listener
	verifier := strings.Repeat("v", 43)
	challenge := sha256.Sum256([]byte(verifier))
	b := newFormBrowser(t)
	b.stopAt = redirect
	last := b.logIn(t, a.Issuer+"/auth?"+url.Values{
		"client_id": {clientID}, "redirect_uri": {redirect}, "response_type": {"code"}, "scope": {scope},
		"resource": {resource},
		"prompt":   {"consent"}, "code_challenge": {base64URL(challenge[:])}, "code_challenge_method": {"S256"},
	}.Encode(), account)
	if iss := last.url.Query().Get("iss"); iss != a.Issuer {
		t.Fatalf("the login of %s ended at %s: %s", account, last.url, last.text)
	}
	return a.token(t, url.Values{
		"grant_type": {"authorization_code"}, "client_id": {clientID}, "redirect_uri": {redirect}, "resource": {resource},
		"code": {last.url.Query().Get("code")}, "code_verifier": {verifier},
	})
}

// The authorization server and the MCP server behave as the login tests expect: registration,
// PKCE, consent, rotation of refresh tokens, step-up, tokens for one resource only. Their
// statistics count refresh tokens used twice.
func TestAuthorizationServer(t *testing.T) {
	isolate(t)
	a := startAuthServer(t, nil)
	var registered struct {
		ID string `json:"client_id"`
	}
	a.post(t, "/reg", "application/json", `{"redirect_uris":["http://127.0.0.1:1/callback"],`+
		`"token_endpoint_auth_method":"none","grant_types":["authorization_code","refresh_token"]}`, &registered)
	first := a.login(t, registered.ID, "alice", a.MCP, "notes:read offline_access")
	if first.Access == "" || first.Refresh == "" {
		t.Fatalf("got %+v, want an access token and a refresh token", first)
	}

	c := newTestClient(t, a.MCP, false, `{}`, bearer(first.Access))
	call := func(tool string) mcpclient.Response {
		t.Helper()
		return c.Start(t.Context(), "tools/call", `{"name":`+quote(tool)+`,"arguments":{}}`).Finish()
	}
	if got := call("whoami"); got.Text() != "whoami of alice" {
		t.Errorf("whoami: got %d %s", got.Status, got.Body)
	}
	if got := call("write_note"); got.Status != http.StatusForbidden ||
		!strings.Contains(got.Header.Get("WWW-Authenticate"), `scope="notes:read notes:write"`) {
		t.Errorf("write_note: got %d %v, want 403 with the scopes", got.Status, got.Header)
	}
	if got := post(t, a.MCP, rpc("ping", "{}"), acceptBoth); got.StatusCode != 401 || challengeParameter(got,
		"resource_metadata") == "" {
		t.Errorf("without a token: got %d %v, want 401 with the URL of the metadata", got.StatusCode, got.Header)
	}

	refresh := url.Values{"grant_type": {"refresh_token"}, "client_id": {registered.ID}, "refresh_token": {first.Refresh}}
	second := a.token(t, refresh)
	if second.Access == "" || second.Refresh == first.Refresh {
		t.Errorf("refresh: got %+v, want new tokens", second)
	}
	if got := a.stats(t); got.Logins != 1 || got.Registrations != 1 || got.Reused != 0 || got.Calls["alice"] != 1 ||
		!slices.Contains(got.Tokens, second.Refresh) {
		t.Errorf("got %+v", got)
	}
	if again := a.token(t, refresh); again.Error != "invalid_grant" {
		t.Errorf("a second refresh: got %+v, want an error", again)
	}
	got := a.stats(t)
	if want := map[string]int{"authorization_code": 1, "refresh_token": 1}; got.Reused != 1 || got.Revoked == 0 ||
		!maps.Equal(got.Grants, want) {
		t.Errorf("got %+v, want one refresh token used twice", got)
	}
	if got := call("whoami"); got.Status != http.StatusUnauthorized {
		t.Errorf("whoami after the reuse: got %d %s, want 401", got.Status, got.Body)
	}
}

// A browser opens an address and submits every form, until a page has no form. It fills in
// the account name if a form asks for one.
type browser interface {
	logIn(t *testing.T, address, account string) webPage
}

// A webPage is the last page of a login.
type webPage struct {
	status int
	url    *url.URL
	text   string
}

// A formBrowser supports forms, cookies and redirects.
type formBrowser struct {
	client *http.Client
	stopAt string // prefix of redirect targets that are not followed
}

func newFormBrowser(t *testing.T) *formBrowser {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	b := &formBrowser{}
	b.client = &http.Client{Jar: jar, Timeout: patience, CheckRedirect: func(req *http.Request, _ []*http.Request) error {
		if b.stopAt != "" && strings.HasPrefix(req.URL.String(), b.stopAt) {
			return http.ErrUseLastResponse
		}
		return nil
	}}
	return b
}

// open requests an address with GET.
func (b *formBrowser) open(t *testing.T, address string) (webPage, *html.Node) {
	t.Helper()
	return b.do(t, request(t, t.Context(), "GET", address, ""))
}

// do sends a request, follows redirects, and returns the final page with its form.
func (b *formBrowser) do(t *testing.T, req *http.Request) (webPage, *html.Node) {
	t.Helper()
	res, err := b.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	root, err := html.Parse(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	p := webPage{res.StatusCode, res.Request.URL, ""}
	if location, err := res.Location(); err == nil {
		p.url = location
	}
	var text strings.Builder
	var form *html.Node
	for n := range root.Descendants() {
		if n.Type == html.TextNode {
			text.WriteString(n.Data)
		} else if n.Data == "form" {
			form = n
		}
	}
	p.text = strings.Join(strings.Fields(text.String()), " ")
	return p, form
}

// submit submits a form of a page.
func (b *formBrowser) submit(t *testing.T, page webPage, form *html.Node, account string) (webPage, *html.Node) {
	t.Helper()
	fields := url.Values{}
	for n := range form.Descendants() {
		switch name := attribute(n, "name"); {
		case n.Data != "input" || name == "":
		case name == "login":
			fields.Set(name, account)
		default:
			fields.Set(name, attribute(n, "value"))
		}
	}
	action, err := page.url.Parse(attribute(form, "action"))
	if err != nil {
		t.Fatal(err)
	}
	return b.do(t, request(t, t.Context(), "POST", action.String(), fields.Encode(),
		"Content-Type: application/x-www-form-urlencoded", "Origin: "+page.url.Scheme+"://"+page.url.Host))
}

func attribute(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

func (b *formBrowser) logIn(t *testing.T, address, account string) webPage {
	t.Helper()
	page, form := b.open(t, address)
	for range maxForms {
		if form == nil {
			return page
		}
		page, form = b.submit(t, page, form, account)
	}
	t.Fatalf("too many forms, the last at %s: %s", page.url, page.text)
	return webPage{}
}

// maxForms limits the forms of one login.
const maxForms = 5

func (c *chromium) logIn(t *testing.T, address, account string) webPage {
	t.Helper()
	ctx, cancel := context.WithTimeout(c.ctx, patience)
	defer cancel()
	type state struct {
		Location, Text string
		Forms, Names   int
	}
	const look = `({location: location.href, text: document.body.innerText, forms: document.forms.length,
		names: document.querySelectorAll("input[name=login]").length})`
	var now state
	step := chromedp.Navigate(address)
	for range maxForms + 1 {
		response, err := chromedp.RunResponse(ctx, step)
		if err == nil {
			now, err = chromedp.Run(ctx, chromedp.Evaluate[state](look))
		}
		if err == nil && now.Names > 0 {
			_, err = chromedp.Run(ctx, chromedp.SendKeys("input[name=login]", account))
		}
		if err != nil {
			t.Fatalf("Chromium after %s: %v", now.Location, err)
		}
		if now.Forms == 0 {
			last, err := url.Parse(now.Location)
			if err != nil {
				t.Fatal(err)
			}
			return webPage{int(response.Status), last, strings.Join(strings.Fields(now.Text), " ")}
		}
		step = chromedp.Click("form button")
	}
	t.Fatalf("too many forms, the last at %s: %s", now.Location, now.Text)
	return webPage{}
}
