package oauth

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"golang.org/x/oauth2"
)

const (
	// retryTime is how long an authorization server that failed is not tried again.
	retryTime = time.Second
	// cacheTime is how long a cached token is used before the Store is read again: another process
	// may have logged out, or logged in as another user.
	cacheTime = 5 * time.Second
)

// fresh reports whether the access token is valid and need not be refreshed yet. A token is
// refreshed half a minute before it expires, a short-lived one after two fifths of its lifetime.
func (l login) fresh(now time.Time) bool {
	return l.validFor(now, min(l.Expires.Sub(l.Obtained)*3/5, 30*time.Second))
}

// usable reports whether the access token is still valid. Servers count in whole seconds, so a
// token may expire up to a second early.
func (l login) usable(now time.Time) bool {
	return l.validFor(now, min(l.Expires.Sub(l.Obtained)/2, time.Second))
}

func (l login) validFor(now time.Time, margin time.Duration) bool {
	return l.AccessToken != "" && (l.Expires.IsZero() || now.Before(l.Expires.Add(-margin)))
}

// setToken sets a token that was requested at a time. x/oauth2 keeps the old refresh token if the
// response has none.
func (l *login) setToken(token *oauth2.Token, requested time.Time) {
	l.AccessToken, l.RefreshToken = token.AccessToken, token.RefreshToken
	l.Obtained, l.Expires = requested, time.Time{}
	if !token.Expiry.IsZero() {
		l.Expires = requested.Add(time.Until(token.Expiry))
	}
}

// renewable reports whether another access token can be obtained without a user.
func (s *Server) renewable(l login) bool {
	return l.AccessToken != "" && (l.RefreshToken != "" || s.config.Grant == ClientCredentials)
}

// Token returns an access token to send, or "" if there is none yet. It refreshes a token that is
// about to expire; only one call and one process does that at a time. Meanwhile, or if the refresh
// fails, a token that is still valid is used. The error wraps [ErrLoginRequired] if the login has
// ended. With [TokenExchange] it returns "".
func (a *Account) Token(ctx context.Context) (string, error) {
	if a.server.config.Grant == TokenExchange {
		return "", nil
	}
	known, recent, failure := a.readCached()
	switch now := a.server.now(); {
	case recent && known.fresh(now), failure != nil && known.usable(now):
		return known.AccessToken, nil
	case failure != nil:
		return "", failure
	}
	select {
	case a.lock <- struct{}{}:
	default: // another call is refreshing the token or reading the Store
		if known.usable(a.server.now()) {
			return known.AccessToken, nil
		}
		if err := a.acquire(ctx); err != nil {
			return "", err
		}
	}
	defer a.release()
	l, err := a.loadFresh(ctx)
	if err != nil && !errors.Is(err, ErrLoginRequired) {
		if known, _, _ := a.readCached(); known.usable(a.server.now()) {
			return known.AccessToken, nil
		}
	}
	return l.AccessToken, err
}

// loadFresh returns the stored login, refreshed if needed. The caller holds the lock.
func (a *Account) loadFresh(ctx context.Context) (login, error) {
	s := a.server
	if _, _, failure := a.readCached(); failure != nil {
		return login{}, failure // of the call that held the lock before
	}
	l, err := a.load(ctx)
	switch now := s.now(); {
	case err != nil:
		return login{}, err
	case l.AccessToken == "", l.fresh(now), l.usable(now) && !s.renewable(l):
		return l, nil
	case !s.renewable(l):
		return login{}, fmt.Errorf("%w: the token has expired", ErrLoginRequired)
	}
	l, err = a.update(ctx, func(l *login) error {
		if l.AccessToken == "" || l.fresh(s.now()) {
			return nil // another process was faster
		}
		return a.renew(ctx, l)
	})
	if err == nil || ctx.Err() == nil {
		a.noteResult(err)
		a.pauseRetries(err)
	}
	if err != nil {
		return login{}, err
	}
	return l, nil
}

// renew gets another access token from the issuer of a login: with its refresh token, or with the
// credentials of the client. It clears a login that the issuer has ended.
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
	params := url.Values{"grant_type": {"refresh_token"}, "refresh_token": {l.RefreshToken}, "resource": {l.Resource}}
	if s.config.Grant == ClientCredentials {
		params = url.Values{"grant_type": {"client_credentials"}, "resource": {l.Resource}}
		if s.config.Assertion != nil {
			assertion, err := s.config.Assertion()
			if err != nil {
				return err
			}
			params.Set("grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer")
			params.Set("assertion", assertion)
		}
		if len(l.Scopes) > 0 {
			params.Set("scope", strings.Join(l.Scopes, " "))
		}
	}
	requested := s.now()
	token, err := s.requestToken(ctx, metadata, c, params)
	switch {
	case err == nil:
		l.setToken(token, requested)
		l.Tried = false
		return nil
	case s.config.Grant == ClientCredentials || !isFinal(err) || isUnknownClient(err) && c.key == "":
		return err // another login does not help
	case hasCode(err, "invalid_grant"), isUnknownClient(err):
		*l = login{Demand: l.Demand}
	}
	return fmt.Errorf("%w: %w", ErrLoginRequired, err)
}
