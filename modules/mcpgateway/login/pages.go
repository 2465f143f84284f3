package login

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"strings"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/oauth"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/seal"
)

// Segment is the path of the pages, below mcp_path. No server can have this name.
const Segment = "oauth"

// Pages serves the pages on which people log in to the servers of a gateway with a browser: a login
// page, and the callback of the authorization server.
//
// The URL of the login page contains a ticket with the server and the account. The ticket is
// sealed, and so is the state of a login in progress. A state is valid once, for 15 minutes, and
// only in the browser that started the login.
type Pages struct {
	Gateway string // identifies the gateway; tickets and states are valid only there
	Path    string // escaped path of the pages, without a trailing slash
	Logger  *zap.Logger

	// Base returns the scheme and host under which the client that sent r reaches the gateway. If r is
	// nil, they are for a browser of the operator.
	Base func(r *http.Request) string

	// Published reports whether authorization servers can fetch the client-ID metadata document at
	// Base.
	Published bool

	// User returns the account of the user that sent r if Caddy has authenticated the user, or "".
	User func(r *http.Request) string

	// Changed is called when the login of an account has changed. shared reports whether all clients
	// use that login.
	Changed func(server, account string, shared bool)

	// ClaimState reports whether no replica has used a state yet, and records its use for the time
	// ttl. It is nil without other replicas.
	ClaimState func(ctx context.Context, state string, ttl time.Duration) (bool, error)

	// Count is called when a login has finished, CountToken after a token request.
	Count      func(server string, err error)
	CountToken func(server, grant string, err error)

	// Probe sends a request without an account to a server, to get its challenge.
	Probe func(ctx context.Context, server string)

	sealer seal.Sealer
	logins map[string]*Login // by server
}

// Paths below Path.
const (
	loginPath    = "/login"
	callbackPath = "/callback"
	documentPath = "/client.json"
)

// NewPages returns the Pages of a gateway. The key seals tickets and states.
func NewPages(p Pages, key []byte) *Pages {
	p.sealer, p.logins = seal.New("mcp login at "+p.Gateway, key), map[string]*Login{}
	return &p
}

// Add adds the login to a server. Its tokens are kept in a folder of the store.
func (p *Pages) Add(server string, o *Config, store oauth.Store, folder string) (*Login, error) {
	config, err := o.config()
	if err != nil {
		return nil, err
	}
	config.Store, config.Folder = store, folder
	config.OnToken = func(grant string, err error) { p.CountToken(server, grant, err) }
	l := &Login{
		server: server, resource: o.Resource, account: o.Account, oauth: oauth.New(config), pages: p,
	}
	if o.isMachine() {
		l.machineGrant = o.Grant
	}
	l.failures, _ = lru.New[string, failure](maxFailures) // the size is positive
	l.begins, _ = lru.New[string, *rate.Limiter](maxFailures)
	p.logins[server] = l
	return l, nil
}

// Reload reloads the login of an account that another replica has changed.
func (p *Pages) Reload(server, account string) {
	if l := p.logins[server]; l != nil {
		l.oauth.Account(account).DropCache()
		l.reset(account)
	}
}

const (
	ticketTime = time.Hour
	stateTime  = 15 * time.Minute
)

// A ticket permits a login to a server.
type ticket struct {
	Server, Account string
	Expires         time.Time
}

// A state is a login in progress.
type state struct {
	ticket
	ID      string
	Browser string // digest of the cookie
	Pending oauth.Pending
}

// loginAddress returns the URL of the login page of a server.
func (p *Pages) loginAddress(base, server, account string) string {
	t := ticket{server, account, time.Now().Add(ticketTime)}
	return base + p.Path + loginPath + "?ticket=" + p.seal("ticket", t)
}

// seal returns v encoded and sealed for a purpose.
func (p *Pages) seal(purpose string, v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // cannot happen: strings and times only
	}
	return p.sealer.Seal(purpose, text)
}

// unseal decodes a text that seal returned for the same purpose.
func (p *Pages) unseal(purpose, sealed string, v any) bool {
	text, ok := p.sealer.Open(purpose, sealed)
	return ok && json.Unmarshal(text, v) == nil
}

// ServeHTTP serves the pages. The caller has checked the host of r.
func (p *Pages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	header.Set("Content-Security-Policy",
		"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'")
	header.Set("Referrer-Policy", "same-origin") // with no-referrer, browsers send forms without their origin
	header.Set("X-Content-Type-Options", "nosniff")
	var err error
	switch path, method := strings.TrimPrefix(r.URL.EscapedPath(), p.Path), r.Method; {
	case path == documentPath && method == http.MethodGet:
		p.serveDocument(w, r)
	case path == loginPath && method == http.MethodGet:
		err = p.showLogin(w, r)
	case path == loginPath && method == http.MethodPost:
		err = p.beginLogin(w, r)
	case path == callbackPath && method == http.MethodGet:
		err = p.finishLogin(w, r)
	default:
		err = &refusal{http.StatusNotFound, "This page does not exist."}
	}
	if err == nil {
		return
	}
	refused, ok := errors.AsType[*refusal](err)
	if !ok {
		refused = &refusal{http.StatusBadGateway, "The login failed: " + err.Error() + "."}
	}
	p.write(w, refused.status, page{Title: "Login failed", Text: refused.text})
}

// A refusal is an error for the user of the browser.
type refusal struct {
	status int
	text   string
}

func (e *refusal) Error() string { return e.text }

// A page is the content of a page.
type page struct {
	Title, Text string
	Ticket      string // of the form; "" for no form
}

var pageTemplate = template.Must(template.New("").Parse(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{{.Title}}</title>
<style>
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 34rem; margin: 15vh auto; padding: 0 1rem }
body { overflow-wrap: anywhere }
button { font: inherit; padding: .5rem 1.25rem }
</style>
</head>
<body>
<h1>{{.Title}}</h1>
<p>{{.Text}}</p>
{{- if .Ticket}}
<form method="post">
<input type="hidden" name="ticket" value="{{.Ticket}}"><button type="submit" autofocus>Continue</button>
</form>
{{- end}}
</body>
</html>
`))

func (p *Pages) write(w http.ResponseWriter, status int, content page) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_ = pageTemplate.Execute(w, content) // fails if the browser disconnects
}

// browserCookie returns the cookie that identifies the browser of a login, without a value. With
// https, other hosts of the same domain cannot set it.
func (p *Pages) browserCookie(r *http.Request) *http.Cookie {
	c := &http.Cookie{
		Name: "mcp_login", Path: p.Path + "/", MaxAge: int(ticketTime.Seconds()),
		HttpOnly: true, SameSite: http.SameSiteLaxMode,
	}
	if strings.HasPrefix(p.Base(r), "https:") {
		c.Name, c.Path, c.Secure = "__Host-mcp_login", "/", true
	}
	return c
}

// openTicket returns the ticket of a request and its login.
func (p *Pages) openTicket(r *http.Request, sealed string) (t ticket, l *Login, _ error) {
	if !p.unseal("ticket", sealed, &t) || time.Now().After(t.Expires) {
		return t, nil, &refusal{http.StatusBadRequest, "This address is invalid or has expired. Request a new one."}
	}
	if l = p.logins[t.Server]; l == nil {
		return t, nil, &refusal{http.StatusNotFound, "The gateway no longer has the server " + t.Server + "."}
	}
	return t, l, p.checkUser(r, t)
}

// checkUser refuses a user other than the client that started the login.
func (p *Pages) checkUser(r *http.Request, t ticket) error {
	if user := p.User(r); user != "" && t.Account != "" && user != t.Account {
		return &refusal{http.StatusForbidden, fmt.Sprintf("This login was started by %q, but you are %q.", t.Account, user)}
	}
	return nil
}

// showLogin shows the login page.
func (p *Pages) showLogin(w http.ResponseWriter, r *http.Request) error {
	sealed := r.URL.Query().Get("ticket")
	t, l, err := p.openTicket(r, sealed)
	if err != nil {
		return err
	}
	cookie := p.browserCookie(r)
	cookie.Value = rand.Text()
	if known, err := r.Cookie(cookie.Name); err == nil { // another login of this browser may be in progress
		cookie.Value = known.Value
	}
	http.SetCookie(w, cookie)
	text := fmt.Sprintf("The MCP gateway at %s logs in to the server %q, at %s.", p.Base(r), t.Server, l.resource)
	if t.Account == "" {
		text += " All clients of the gateway will use this login."
	} else {
		text += fmt.Sprintf(" Only its client %q will use this login. "+
			"Continue only if this is you and you requested it.", t.Account)
	}
	p.write(w, http.StatusOK, page{Title: "Log in to " + t.Server, Text: text, Ticket: sealed})
	return nil
}

// maxForm is the maximum size of the form of the login page.
const maxForm = 64 << 10

// beginLogin redirects the browser to the authorization server.
func (p *Pages) beginLogin(w http.ResponseWriter, r *http.Request) error {
	origin := r.Header.Get("Origin")
	if origin != "" && origin != p.Base(r) || r.Header.Get("Sec-Fetch-Site") == "cross-site" {
		return &refusal{http.StatusForbidden, "A page of another site sent this request."}
	}
	form, err := httpbody.ReadWithin(r, maxForm, httpbody.Pace)
	if err != nil {
		return &refusal{http.StatusBadRequest, "The form could not be read."}
	}
	values, _ := url.ParseQuery(string(form)) // without the ticket, it is refused
	t, l, err := p.openTicket(r, values.Get("ticket"))
	if err != nil {
		return err
	}
	cookie, err := r.Cookie(p.browserCookie(r).Name)
	if err != nil {
		return &refusal{http.StatusBadRequest,
			"The browser did not keep the cookie of this page. Allow cookies, and open the address again."}
	}
	if !l.mayBegin(t.Account) {
		return &refusal{http.StatusTooManyRequests, "Too many logins were started. Wait a minute, and start again."}
	}
	if t.Account == "" {
		p.Probe(r.Context(), t.Server)
	}
	begun := state{
		ticket: ticket{t.Server, t.Account, time.Now().Add(stateTime)},
		ID:     rand.Text(), Browser: digest(cookie.Value),
	}
	base, document := p.Base(r), ""
	if p.Published {
		document = base + p.Path + documentPath
	}
	address, err := l.oauth.Account(t.Account).Begin(r.Context(), base+p.Path+callbackPath, document,
		func(pending *oauth.Pending) string {
			begun.Pending = *pending
			return p.seal("state", begun)
		})
	if err != nil {
		p.Logger.Warn("cannot start login to MCP server", zap.String("mcp_server", t.Server), zap.Error(err))
		return err
	}
	http.Redirect(w, r, address, http.StatusSeeOther)
	return nil
}

// finishLogin handles the callback of the authorization server.
func (p *Pages) finishLogin(w http.ResponseWriter, r *http.Request) error {
	var s state
	query := r.URL.Query()
	if !p.unseal("state", query.Get("state"), &s) || time.Now().After(s.Expires) {
		return &refusal{http.StatusBadRequest, "This login is unknown, or took too long. Start again."}
	}
	l := p.logins[s.Server]
	if l == nil {
		return &refusal{http.StatusNotFound, "The gateway no longer has the server " + s.Server + "."}
	}
	cookie, err := r.Cookie(p.browserCookie(r).Name)
	if err != nil || subtle.ConstantTimeCompare([]byte(digest(cookie.Value)), []byte(s.Browser)) != 1 {
		return &refusal{http.StatusForbidden, "This login was started in another browser."}
	}
	if err := p.checkUser(r, s.ticket); err != nil {
		return err
	}
	used, _ := usedStates.ContainsOrAdd(s.ID, struct{}{})
	first := !used
	if first && p.ClaimState != nil {
		if first, err = p.ClaimState(r.Context(), s.ID, stateTime); err != nil {
			return &refusal{http.StatusServiceUnavailable, "The login cannot be finished: " + err.Error() + ". Start again."}
		}
	}
	if !first {
		return &refusal{http.StatusBadRequest, "This login is already finished."}
	}
	logger := p.Logger.With(zap.String("mcp_server", s.Server), zap.String("client", s.Account))
	err = l.oauth.Account(s.Account).Finish(r.Context(), &s.Pending, query)
	p.Count(s.Server, err)
	if err != nil {
		logger.Warn("login to MCP server failed", zap.Error(err))
		return &refusal{http.StatusBadRequest, "The login failed: " + err.Error() + "."}
	}
	logger.Info("logged in to MCP server", zap.String("issuer", s.Pending.Issuer))
	l.notifyChanged(s.Account)
	p.write(w, http.StatusOK, page{Title: "Logged in to " + s.Server, Text: "You can close this window."})
	return nil
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// serveDocument serves the client-ID metadata document.
func (p *Pages) serveDocument(w http.ResponseWriter, r *http.Request) {
	base := p.Base(r)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "max-age=300")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"client_id":                  base + p.Path + documentPath,
		"client_name":                clientName,
		"client_uri":                 base,
		"redirect_uris":              []string{base + p.Path + callbackPath},
		"grant_types":                []string{"authorization_code", "refresh_token"},
		"response_types":             []string{"code"},
		"token_endpoint_auth_method": "none",
	})
}

// clientName is the name of the gateway at authorization servers.
const clientName = "caddy-mcp-gateway"

// Interface guard
var _ http.Handler = (*Pages)(nil)
