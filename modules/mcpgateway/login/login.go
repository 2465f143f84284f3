package login

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	lru "github.com/hashicorp/golang-lru/v2"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/oauth"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/clientrequest"
)

// A Login is the login of a gateway to one of its servers.
type Login struct {
	server       string
	resource     string
	account      string // Account of [Config]
	machineGrant string // the grant, if no person logs in
	oauth        *oauth.Server
	pages        *Pages
	failures     *lru.Cache[string, failure]       // by account
	begins       *lru.Cache[string, *rate.Limiter] // by account

	announced atomic.Bool // the required login has been logged
}

// Await implements [upstream.Login].
func (l *Login) Await(ctx context.Context, client string) bool {
	account := l.oauth.Account(l.accountOf(client))
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		changed := loginChanges.next()
		l.failures.Remove(l.accountOf(client))
		if !account.LoginRequired(ctx) {
			return true
		}
		select {
		case <-changed:
		case <-ticker.C:
		case <-ctx.Done():
			return false
		}
	}
}

// pollInterval is how often Await checks whether another process has finished the login.
const pollInterval = 2 * time.Second

// accountOf returns the account of a client.
func (l *Login) accountOf(client string) string {
	if l.account == "" {
		return ""
	}
	return client
}

// Serve calls next with an access token. If the server refuses the token and the account can get
// another, Serve calls next again.
func (l *Login) Serve(
	w http.ResponseWriter, r *http.Request, client string, next func(http.ResponseWriter, *http.Request) error,
) error {
	if client == "" && l.account != "" {
		return l.serveUnidentified(w, r, next)
	}
	id := l.accountOf(client)
	account := l.oauth.Account(id)
	token, err := l.token(r, account)
	if err == nil {
		err = l.recentFailure(id, token)
	}
	target := *r.URL
	for tries := 1; err == nil; tries++ {
		*r.URL = target // handlers rewrite it in place
		attempt := &attempt{w: w}
		served := next(attempt, withToken(r, token))
		if !attempt.refused() {
			if attempt.status != 0 && token != "" {
				account.Accepted(r.Context(), token)
			}
			return served
		}
		refused := token
		token, err = account.Rejected(r.Context(), refused, attempt.status, attempt.header.Values("WWW-Authenticate"))
		switch {
		case err == nil && tries == maxTries:
			err = errors.New("the server refuses every token")
		case err == nil && l.account == exchange:
			token, err = l.token(r, account)
		}
		if err != nil && attempt.status == http.StatusUnauthorized &&
			r.Method == http.MethodPost && r.Context().Err() == nil {
			l.failures.Add(id, failure{sha256.Sum256([]byte(refused)), err, time.Now()})
		}
	}
	switch {
	case r.Context().Err() != nil:
		return r.Context().Err()
	case errors.Is(err, oauth.ErrLoginRequired):
		if l.account == "" && l.announced.CompareAndSwap(false, true) {
			l.pages.Logger.Info("MCP server requires a login; run caddy mcp login",
				zap.String("mcp_server", l.server), zap.String("reason", err.Error()))
		}
		failure := jsonrpc.LoginRequired(l.server, l.elicitation(r, client))
		if r.Method == http.MethodGet {
			failure.Status = http.StatusForbidden // 200 would start a stream
		}
		return failure
	}
	return jsonrpc.LoginFailed(l.server, err.Error())
}

// maxTries is how often a request is sent at most: with the current token, with a new one, and once
// more if the new one expires in between.
const maxTries = 3

// token returns the token for a request, or "" if there is none.
func (l *Login) token(r *http.Request, account *oauth.Account) (string, error) {
	if l.account == exchange {
		subject := Subject(r.Context())
		if subject == "" {
			return "", errors.New("the client sent no bearer token to exchange")
		}
		return account.Exchange(r.Context(), subject)
	}
	return account.Token(r.Context())
}

// serveUnidentified calls next, without a token, for a request of an unidentified client, such as a
// health check.
func (l *Login) serveUnidentified(
	w http.ResponseWriter, r *http.Request, next func(http.ResponseWriter, *http.Request) error,
) error {
	attempt := &attempt{w: w}
	err := next(attempt, withToken(r, ""))
	if !attempt.refused() {
		return err
	}
	return jsonrpc.LoginFailed(l.server, fmt.Sprintf("oauth %s requires an authenticated client", l.account))
}

// withToken returns a copy of r with a token. r must not change, because requests to other servers
// are derived from it. withToken also copies the set of route groups that have run, because the
// routes may run again.
func withToken(r *http.Request, token string) *http.Request {
	ctx := r.Context()
	if groups, ok := ctx.Value(routeGroups).(map[string]struct{}); ok {
		ctx = context.WithValue(ctx, routeGroups, maps.Clone(groups))
	}
	sent := r.WithContext(ctx)
	sent.Header = r.Header.Clone()
	sent.Header.Del("Authorization")
	if token != "" {
		sent.Header.Set("Authorization", "Bearer "+token)
	}
	if r.GetBody != nil {
		if body, err := r.GetBody(); err == nil {
			sent.Body = body
		}
	}
	return sent
}

// routeGroups is the context key of caddyhttp for groups of routes that have run.
const routeGroups caddy.CtxKey = "route_group"

// subjectKey is the context key of a client's token.
type subjectKey struct{}

// WithSubject returns a context with the token of a client, for token exchange.
func WithSubject(ctx context.Context, token string) context.Context {
	return context.WithValue(ctx, subjectKey{}, token)
}

// Subject returns the token of WithSubject, or "".
func Subject(ctx context.Context) string {
	token, _ := ctx.Value(subjectKey{}).(string)
	return token
}

// Exchanges reports whether the login exchanges the tokens of clients.
func (l *Login) Exchanges() bool { return l.account == exchange }

// elicitation returns a request to the client that sent r to log in, or nil if the client cannot.
// Only clients on this machine can do the operator's login.
func (l *Login) elicitation(r *http.Request, client string) *jsonrpc.URLElicitation {
	if l.account == "" && !isLocal(r) {
		return nil
	}
	address := l.pages.loginAddress(l.pages.Base(r), l.server, l.accountOf(client))
	return &jsonrpc.URLElicitation{
		Mode: "url", URL: address, ID: rand.Text(), Message: "Log in to " + l.server + " to go on.",
	}
}

// isLocal reports whether the client that sent r is on this machine.
func isLocal(r *http.Request) bool {
	return clientrequest.IsLocal(clientrequest.Hostname(clientrequest.Address(r)))
}

// notifyChanged reports that the login of an account has changed.
func (l *Login) notifyChanged(account string) {
	l.reset(account)
	l.pages.Changed(l.server, account, l.account == "")
}

// reset clears the failures of an account, and wakes requests that wait for its login.
func (l *Login) reset(account string) {
	l.failures.Remove(account)
	l.announced.Store(false)
	loginChanges.notify()
}

// A Status is the state of the operator's login.
type Status struct {
	State  string    `json:"state"` // logged_in, required, or the account or grant if the operator does not log in
	URL    string    `json:"-"`     // where to log in, if required
	Issuer string    `json:"issuer,omitempty"`
	Scopes []string  `json:"scopes,omitempty"`
	Until  time.Time `json:"expires,omitzero"` // expiry of the access token, which is refreshed
	Error  string    `json:"error,omitempty"`
}

// Status returns the state of the operator's login.
func (l *Login) Status(ctx context.Context) Status {
	if l.account != "" {
		return Status{State: l.account}
	}
	if l.machineGrant != "" {
		return Status{State: l.machineGrant}
	}
	known := l.oauth.Account("").Status(ctx)
	status := Status{State: "logged_in", Issuer: known.Issuer, Scopes: known.Scopes, Until: known.Expires}
	if known.Err != nil {
		status.Error = known.Err.Error()
	}
	if !known.LoggedIn {
		status.State, status.URL = "required", l.pages.loginAddress(l.pages.Base(nil), l.server, "")
	}
	return status
}

// Logout ends the login of a client, or of the operator if client is "".
func (l *Login) Logout(ctx context.Context, client string) error {
	account := l.accountOf(client)
	switch {
	case l.account != "" && client == "":
		return errors.New("client: missing, but each client has its own login")
	case l.account == "" && client != "":
		return errors.New("client: all clients share one login")
	}
	err := l.oauth.Account(account).Logout(ctx)
	l.pages.Logger.Info("logged out of MCP server",
		zap.String("mcp_server", l.server), zap.String("client", client), zap.Error(err))
	l.notifyChanged(account)
	return err
}

// An attempt receives the response to a request with a token. It discards a response that requires
// another token, and forwards all others.
type attempt struct {
	w      http.ResponseWriter
	header http.Header
	status int // 0 until known
}

// refused reports whether the response requires another token.
func (a *attempt) refused() bool {
	switch a.status {
	case http.StatusUnauthorized:
		return true
	case http.StatusForbidden:
		return strings.Contains(strings.Join(a.header.Values("WWW-Authenticate"), ","), "insufficient_scope")
	}
	return false
}

// Header returns the header of w once the response is forwarded. Until then, and if the response is
// discarded, it returns a header of its own.
func (a *attempt) Header() http.Header {
	switch {
	case a.status != 0 && !a.refused():
		return a.w.Header()
	case a.header == nil:
		a.header = a.w.Header().Clone()
	}
	if a.header == nil {
		a.header = http.Header{}
	}
	return a.header
}

func (a *attempt) WriteHeader(status int) {
	if status < 200 {
		a.w.WriteHeader(status)
		return
	}
	if a.status != 0 {
		return
	}
	header := a.Header()
	a.status = status
	if a.refused() {
		return
	}
	sent := a.w.Header()
	clear(sent)
	maps.Copy(sent, header)
	a.w.WriteHeader(status)
}

func (a *attempt) Write(p []byte) (int, error) {
	if a.status == 0 {
		a.WriteHeader(http.StatusOK)
	}
	if a.refused() {
		return len(p), nil
	}
	return a.w.Write(p)
}

func (a *attempt) FlushError() error {
	if a.status == 0 {
		a.WriteHeader(http.StatusOK)
	}
	if a.refused() {
		return nil
	}
	return http.NewResponseController(a.w).Flush()
}

// Unwrap returns the underlying writer, for http.ResponseController.
func (a *attempt) Unwrap() http.ResponseWriter { return a.w }

// ReadFrom keeps io.Copy from using the ReadFrom of the underlying writer.
func (a *attempt) ReadFrom(r io.Reader) (int64, error) { return io.Copy(struct{ io.Writer }{a}, r) }

// A failure says why the server refused a token. While it is recent, the gateway does not send the
// same token to the server again.
type failure struct {
	token [sha256.Size]byte
	err   error
	time  time.Time
}

const (
	// failurePause is how long a failure counts as recent.
	failurePause = 5 * time.Second
	// maxFailures is the maximum number of accounts with a failure, or with begun logins.
	maxFailures = 10_000
)

// An account may begin maxBegins logins at once, and then one per beginPause. Each sends requests to
// the server and its authorization server, and may register a client that is stored. The rates of
// clients do not apply to the login pages.
const (
	maxBegins  = 10
	beginPause = time.Minute
)

// mayBegin reports whether an account may begin another login now.
func (l *Login) mayBegin(account string) bool {
	limiter, ok := l.begins.Get(account)
	if !ok {
		limiter = rate.NewLimiter(rate.Every(beginPause), maxBegins)
		if other, known, _ := l.begins.PeekOrAdd(account, limiter); known {
			limiter = other
		}
	}
	return limiter.Allow()
}

// recentFailure returns the recent failure of an account with a token, or nil.
func (l *Login) recentFailure(account, token string) error {
	known, ok := l.failures.Get(account)
	if ok && time.Since(known.time) < failurePause && known.token == sha256.Sum256([]byte(token)) {
		return known.err
	}
	return nil
}

// usedStates holds the IDs of the states of finished logins in this process.
var usedStates, _ = lru.New[string, struct{}](maxStates) // the size is positive

// maxStates limits the number of IDs. If an ID is dropped, the authorization server still accepts
// the code only once.
const maxStates = 100_000

// loginChanges wakes requests that wait for a login, when a login in this process changes.
var loginChanges = &signal{pending: make(chan struct{})}

// A signal wakes any number of waiting goroutines.
type signal struct {
	mu      sync.Mutex
	pending chan struct{}
}

// next returns a channel that is closed at the next change.
func (s *signal) next() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pending
}

// notify closes the channel of next.
func (s *signal) notify() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.pending)
	s.pending = make(chan struct{})
}

// Interface guards
var (
	_ http.ResponseWriter = (*attempt)(nil)
	_ io.ReaderFrom       = (*attempt)(nil)
)
