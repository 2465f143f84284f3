package login

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/oauth"
)

// A Login is the login of a gateway at one of its servers.
type Login struct {
	server   string
	resource string
	kind     string // of account, see [Config]
	machine  string // the grant, if no person logs in
	oauth    *oauth.Server
	pages    *Pages
	failures failures // of accounts, a moment ago

	announced atomic.Bool // the operator was told that a login is required
}

// Await implements [gateway.Login]. The login may be finished in another process, so it also
// looks from time to time.
func (l *Login) Await(ctx context.Context, client string) bool {
	account := l.oauth.Account(l.accountOf(client))
	ticker := time.NewTicker(lookInterval)
	defer ticker.Stop()
	for {
		changed := loginChanges.next()
		l.failures.forget(l.accountOf(client))
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

const lookInterval = 2 * time.Second

// accountOf returns the account that is used for a client.
func (l *Login) accountOf(client string) string {
	if l.kind == "" {
		return ""
	}
	return client
}

// Serve has next answer r with an access token. If the server refuses the token, and there is
// a better one, next is called again.
func (l *Login) Serve(w http.ResponseWriter, r *http.Request, client string, next func(http.ResponseWriter, *http.Request) error) error {
	if client == "" && l.kind != "" {
		return l.serveUnidentified(w, r, next)
	}
	id := l.accountOf(client)
	account := l.oauth.Account(id)
	token, err := l.token(r, account)
	if err == nil {
		err = l.failures.recent(id, token)
	}
	target := *r.URL
	for tries := 1; err == nil; tries++ {
		*r.URL = target // handlers rewrite it in place
		attempt := &attempt{to: w}
		if served := next(attempt, withToken(r, token)); !attempt.refused() {
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
		case err == nil && l.kind == exchange:
			token, err = l.token(r, account)
		}
		if err != nil && attempt.status == http.StatusUnauthorized && r.Method == http.MethodPost && r.Context().Err() == nil {
			l.failures.note(id, refused, err)
		}
	}
	switch {
	case r.Context().Err() != nil:
		return r.Context().Err()
	case errors.Is(err, oauth.ErrLoginRequired):
		if l.kind == "" && l.announced.CompareAndSwap(false, true) {
			l.pages.Logger.Info("MCP server wants a login; see caddy mcp login", zap.String("mcp_server", l.server), zap.String("reason", err.Error()))
		}
		failure := jsonrpc.LoginRequired(l.server, l.ask(r, client))
		if r.Method == http.MethodGet {
			failure.Status = http.StatusForbidden // a success would be a stream
		}
		return failure
	}
	return jsonrpc.LoginFailed(l.server, err.Error())
}

// maxTries is how often a request is sent: with the token there is, with a better one, and once
// more if that has expired on the way.
const maxTries = 3

// token returns the token that a request is sent with; "" if there is none.
func (l *Login) token(r *http.Request, account *oauth.Account) (string, error) {
	if l.kind == exchange {
		subject := Subject(r.Context())
		if subject == "" {
			return "", errors.New("the client has sent no bearer token to exchange")
		}
		return account.Exchange(r.Context(), subject)
	}
	return account.Token(r.Context())
}

// serveUnidentified has next answer a request that has no account, such as a health check.
func (l *Login) serveUnidentified(w http.ResponseWriter, r *http.Request, next func(http.ResponseWriter, *http.Request) error) error {
	attempt := &attempt{to: w}
	if err := next(attempt, withToken(r, "")); !attempt.refused() {
		return err
	}
	return jsonrpc.LoginFailed(l.server, fmt.Sprintf("oauth %s needs a client that is identified", l.kind))
}

// withToken returns r with a token. The header of r itself stays as it is: other servers get
// requests made from it. Routes run anew, so those of a group are not taken for having run.
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

// routeGroups is where caddyhttp keeps which groups of routes have run.
const routeGroups caddy.CtxKey = "route_group"

// subjectKey is where the token of a client is found in a context.
type subjectKey struct{}

// WithSubject returns a context that has the token of a client, to be exchanged.
func WithSubject(ctx context.Context, token string) context.Context {
	return context.WithValue(ctx, subjectKey{}, token)
}

// Subject returns the token that WithSubject has added, or "".
func Subject(ctx context.Context) string {
	token, _ := ctx.Value(subjectKey{}).(string)
	return token
}

// Exchanges reports whether the tokens of clients are exchanged.
func (l *Login) Exchanges() bool { return l.kind == exchange }

// ask returns how the client that sent r can log in; nil if it cannot. The login of the
// operator is for clients on this machine only.
func (l *Login) ask(r *http.Request, client string) *jsonrpc.URLElicitation {
	if l.kind == "" && !l.pages.IsLocal(r) {
		return nil
	}
	address := l.pages.loginAddress(l.pages.Base(r), l.server, l.accountOf(client))
	return &jsonrpc.URLElicitation{Mode: "url", URL: address, ID: rand.Text(), Message: "Log in to " + l.server + " to go on."}
}

// finished is called when the login of an account has changed.
func (l *Login) finished(account string) {
	l.look(account)
	l.pages.Changed(l.server, account, l.kind == "")
}

// look has what is remembered of an account forgotten, and wakes those who wait for its login.
func (l *Login) look(account string) {
	l.failures.forget(account)
	l.announced.Store(false)
	loginChanges.announce()
}

// A Status is how the login of the operator is.
type Status struct {
	State  string    `json:"state"` // logged_in, required; or how the gateway logs in without the operator
	URL    string    `json:"-"`     // where to log in, if that is required
	Issuer string    `json:"issuer,omitempty"`
	Scopes []string  `json:"scopes,omitempty"`
	Until  time.Time `json:"expires,omitzero"` // of the access token, which is refreshed
	Error  string    `json:"error,omitempty"`
}

// Status returns how the login of the operator is.
func (l *Login) Status(ctx context.Context) Status {
	if l.kind != "" {
		return Status{State: l.kind}
	}
	if l.machine != "" {
		return Status{State: l.machine}
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

// Logout ends the login of a client; "" for that of the operator.
func (l *Login) Logout(ctx context.Context, client string) error {
	account := l.accountOf(client)
	switch {
	case l.kind != "" && client == "":
		return errors.New("client: missing, and each client has its own login")
	case l.kind == "" && client != "":
		return errors.New("client: all clients share one login")
	}
	err := l.oauth.Account(account).Logout(ctx)
	l.pages.Logger.Info("logged out of MCP server", zap.String("mcp_server", l.server), zap.String("client", client), zap.Error(err))
	l.finished(account)
	return err
}
