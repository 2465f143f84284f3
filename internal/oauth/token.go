package oauth

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/oauth2"
)

// retryTime is how long a token that could not be refreshed is left alone.
const retryTime = time.Second

// take takes a token that was asked for at a time. The old refresh token stays if no
// other one came.
func (l *login) take(token *oauth2.Token, asked, now time.Time) {
	l.AccessToken, l.Obtained, l.Expires = token.AccessToken, now, time.Time{}
	if token.RefreshToken != "" {
		l.RefreshToken = token.RefreshToken
	}
	if !token.Expiry.IsZero() {
		l.Obtained = asked
		l.Expires = asked.Add(time.Until(token.Expiry))
	}
}

// note remembers whether the last request was a failure.
func (a *Account) note(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
}

// Token returns an access token to send, "" if there is none yet. It refreshes one that is
// about to expire, once at a time, also across processes. While that is under way or fails,
// a token that is still valid goes on being used.
func (a *Account) Token(ctx context.Context) (string, error) {
	if a.server.config.Grant == TokenExchange {
		return "", nil
	}
	a.mu.Lock()
	known, failure, retryAt := a.known, a.err, a.retryAt
	a.mu.Unlock()
	now := a.server.now()
	if known.fresh(now) {
		return known.AccessToken, nil
	}
	if now.Before(retryAt) {
		if known.usable(now) {
			return known.AccessToken, nil
		}
		return "", failure
	}
	select {
	case a.turn <- struct{}{}:
	default:
		if known.usable(now) {
			return known.AccessToken, nil
		}
		if err := a.acquire(ctx); err != nil {
			return "", err
		}
	}
	defer a.release()
	l, err := a.freshen(ctx)
	if now := a.server.now(); err != nil && known.usable(now) && !errors.Is(err, ErrLoginRequired) {
		return known.AccessToken, nil
	}
	return l.AccessToken, err
}

// freshen returns the login of the Store, refreshed if needed. The caller has the turn.
func (a *Account) freshen(ctx context.Context) (login, error) {
	now := a.server.now()
	l, err := a.load(ctx)
	switch {
	case err != nil || l.AccessToken == "" || l.fresh(now):
		return l, err
	case l.RefreshToken == "" && a.server.config.Grant == AuthorizationCode:
		if l.usable(now) {
			return l, nil
		}
		return login{}, fmt.Errorf("%w: the token has expired", ErrLoginRequired)
	}
	l, err = a.update(ctx, func(l *login) error {
		if l.AccessToken == "" || l.fresh(a.server.now()) {
			return nil // another process was faster
		}
		return a.renew(ctx, l)
	})
	a.note(err)
	if err != nil {
		a.mu.Lock()
		a.retryAt = a.server.now().Add(retryTime)
		a.mu.Unlock()
		return login{}, err
	}
	return l, nil
}

// renew gets another access token from the issuer of a login: by its refresh token, or by
// the credentials of the client.
func (a *Account) renew(ctx context.Context, l *login) error {
	s := a.server
	metadata, err := s.issuerMetadata(ctx, l.Issuer)
	if err != nil {
		return err
	}
	c, err := s.knownClient(ctx, metadata, l.ClientID, l.RedirectURL)
	if err != nil {
		return err
	}
	params := url.Values{"resource": {l.Resource}}
	if s.config.Grant == ClientCredentials {
		params.Set("grant_type", "client_credentials")
		if len(l.Scopes) > 0 {
			params.Set("scope", strings.Join(l.Scopes, " "))
		}
	} else {
		params.Set("grant_type", "refresh_token")
		params.Set("refresh_token", l.RefreshToken)
	}
	asked := s.now()
	token, err := s.ask(ctx, metadata, c, params)
	switch {
	case err == nil:
		l.take(token, asked, s.now())
		l.Tried = false
		return nil
	case s.config.Grant == ClientCredentials || !final(err):
		return err
	case answered(err, "invalid_client", "unauthorized_client"):
		if c.key == "" {
			return err // the configuration is wrong, and another login does not help
		}
		err = errors.Join(err, s.forget(ctx, c))
		fallthrough
	case answered(err, "invalid_grant"):
		*l = login{Demand: l.Demand}
	}
	return fmt.Errorf("%w: %w", ErrLoginRequired, err)
}

// Accepted is called when the server has answered a request that had this token with
// anything but 401. A login whose tokens were never accepted is not asked for again and
// again, see [Account.Rejected].
func (a *Account) Accepted(ctx context.Context, token string) {
	if a.server.config.Grant == TokenExchange {
		a.server.acceptExchanged(token)
		return
	}
	a.mu.Lock()
	news := token != "" && a.known.AccessToken == token && (!a.known.Accepted || a.known.Tried)
	a.mu.Unlock()
	if !news || a.acquire(ctx) != nil {
		return
	}
	defer a.release()
	_, err := a.update(ctx, func(l *login) error {
		if l.AccessToken == token {
			l.Accepted, l.Tried = true, false
		}
		return nil
	})
	a.note(err)
}

// Rejected is called when the server has answered a request that had this token ("" for
// none) with 401 or 403. It returns another token to try once more with, an error that
// wraps [ErrLoginRequired] if a person must log in, or why that is impossible. challenges
// are the values of WWW-Authenticate. With [TokenExchange] it returns "" without an error
// if [Account.Exchange] can be called once more.
func (a *Account) Rejected(ctx context.Context, token string, status int, challenges []string) (string, error) {
	asked := parseChallenges(challenges)
	if status == http.StatusForbidden && asked.err != insufficientScope {
		return "", errors.New("forbidden by the server")
	}
	if a.server.config.Grant == TokenExchange {
		return "", a.server.rejectExchanged(token)
	}
	if err := a.acquire(ctx); err != nil {
		return "", err
	}
	defer a.release()
	l, err := a.load(ctx)
	if err != nil {
		return "", err
	}
	again := l
	err = a.reconsider(ctx, &again, token, asked, false)
	if errors.Is(err, errNeedsUpdate) || !again.equal(l) {
		again, err = a.update(ctx, func(l *login) error { return a.reconsider(ctx, l, token, asked, true) })
	}
	if err != nil {
		a.note(err)
		return "", err
	}
	return again.AccessToken, nil
}

// errNeedsUpdate says that the login can be changed only with the lock of the Store.
var errNeedsUpdate = errors.New("needs the lock")

// reconsider changes a login after the server has refused a token. It is called twice:
// first without the lock of the Store, which is enough for most of the answers.
func (a *Account) reconsider(ctx context.Context, l *login, token string, asked challenge, locked bool) error {
	s := a.server
	if asked.metadata != "" {
		l.Demand.Metadata = asked.metadata
	}
	switch {
	case l.AccessToken != token && l.usable(s.now()):
		return nil // another call or process has got it
	case asked.err == insufficientScope:
		return a.stepUp(ctx, l, asked.scopes, locked)
	case token == "" || l.AccessToken != token:
		l.Demand.Scopes = asked.scopes
		return a.startOver(ctx, l, fmt.Errorf("%w", ErrLoginRequired), locked)
	case l.Tried:
		return a.refused(l)
	case !locked:
		return errNeedsUpdate
	}
	l.Tried = true
	found, err := s.discover(ctx, l.Demand.Metadata, l.Issuer)
	if err != nil {
		l.Tried = false
		return err
	}
	if found.Issuer != l.Issuer {
		reason := fmt.Errorf("%w: the authorization server is %s now, no longer %s", ErrLoginRequired, printable(found.Issuer), printable(l.Issuer))
		*l = login{Demand: l.Demand}
		return a.startOver(ctx, l, reason, locked)
	}
	if l.RefreshToken == "" && s.config.Grant == AuthorizationCode {
		return a.refused(l)
	}
	err = a.renew(ctx, l)
	l.Tried = err == nil
	return err
}

// refused returns what is left to do about a token that the server refuses.
func (a *Account) refused(l *login) error {
	if a.server.config.Grant == AuthorizationCode && l.Accepted {
		return fmt.Errorf("%w: the server no longer accepts the token", ErrLoginRequired)
	}
	return fmt.Errorf("the server refuses a new token of %s", printable(l.Issuer))
}

// stepUp asks for more scopes, unless the login in use has asked for all of them.
func (a *Account) stepUp(ctx context.Context, l *login, demanded []string, locked bool) error {
	configured := a.server.config.Scopes
	text := printable(strings.Join(demanded, " "))
	switch {
	case configured != nil && !containsAll(configured, demanded):
		return fmt.Errorf("the server demands the scopes %q, which are not among the configured ones", text)
	case containsAll(l.Scopes, demanded):
		return fmt.Errorf("the server demands the scopes %q, for which the login has asked", text)
	}
	l.Demand.Scopes = union(l.Scopes, demanded)
	return a.startOver(ctx, l, fmt.Errorf("%w: the server demands the scopes %q", ErrLoginRequired, text), locked)
}

func containsAll(all, some []string) bool {
	return !slices.ContainsFunc(some, func(scope string) bool { return !slices.Contains(all, scope) })
}

// startOver returns reason if a person must log in, and gets a token if the credentials of
// the client are enough.
func (a *Account) startOver(ctx context.Context, l *login, reason error, locked bool) error {
	s := a.server
	if s.config.Grant == AuthorizationCode {
		return reason
	}
	if !locked {
		return errNeedsUpdate
	}
	found, err := s.discover(ctx, l.Demand.Metadata, l.Issuer)
	if err != nil {
		return err
	}
	c, err := s.chooseClient(ctx, found.serverMetadata, "", "")
	if err != nil {
		return err
	}
	next := login{Issuer: found.Issuer, Resource: found.resource, ClientID: c.ID, Scopes: s.chooseScopes(found, l.Demand.Scopes), Demand: l.Demand}
	if err := a.renew(ctx, &next); err != nil {
		return err
	}
	next.Tried = true
	*l = next
	return nil
}
