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
	// retryTime is how long an authorization server that failed is left alone.
	retryTime = time.Second
	// lookTime is how long a token is used without a look whether another process has
	// logged out, or logged in as someone else.
	lookTime = 5 * time.Second
)

// fresh reports whether the access token can be used, and need not be refreshed yet. A
// token is refreshed half a minute before it expires, a short one after two fifths of its
// life.
func (l login) fresh(now time.Time) bool {
	return l.validFor(now, min(l.Expires.Sub(l.Obtained)*3/5, 30*time.Second))
}

// usable reports whether the access token is still valid. Servers count in whole seconds,
// so a token may expire up to a second early.
func (l login) usable(now time.Time) bool {
	return l.validFor(now, min(l.Expires.Sub(l.Obtained)/2, time.Second))
}

func (l login) validFor(now time.Time, margin time.Duration) bool {
	return l.AccessToken != "" && (l.Expires.IsZero() || now.Before(l.Expires.Add(-margin)))
}

// take takes a token that was asked for at a time. Its refresh token is the old one if no
// other one came: x/oauth2 sees to that.
func (l *login) take(token *oauth2.Token, asked time.Time) {
	l.AccessToken, l.RefreshToken, l.Obtained, l.Expires = token.AccessToken, token.RefreshToken, asked, time.Time{}
	if !token.Expiry.IsZero() {
		l.Expires = asked.Add(time.Until(token.Expiry))
	}
}

// renewable reports whether another access token can be had without a person.
func (s *Server) renewable(l login) bool {
	return l.AccessToken != "" && (l.RefreshToken != "" || s.config.Grant == ClientCredentials)
}

// Token returns an access token to send, "" if there is none yet. It refreshes one that is
// about to expire, once at a time, also across processes. While that is under way or fails,
// a token that is still valid goes on being used. The error wraps [ErrLoginRequired] if the
// login has ended. With [TokenExchange] it returns "".
func (a *Account) Token(ctx context.Context) (string, error) {
	if a.server.config.Grant == TokenExchange {
		return "", nil
	}
	known, recent, failure := a.remembered()
	switch now := a.server.now(); {
	case recent && known.fresh(now), failure != nil && known.usable(now):
		return known.AccessToken, nil
	case failure != nil:
		return "", failure
	}
	select {
	case a.turn <- struct{}{}:
	default: // another call is refreshing the token, or looks whether there is another one
		if known.usable(a.server.now()) {
			return known.AccessToken, nil
		}
		if err := a.acquire(ctx); err != nil {
			return "", err
		}
	}
	defer a.release()
	l, err := a.freshen(ctx)
	if err != nil && !errors.Is(err, ErrLoginRequired) {
		if known, _, _ := a.remembered(); known.usable(a.server.now()) {
			return known.AccessToken, nil
		}
	}
	return l.AccessToken, err
}

// freshen returns the login of the Store, refreshed if needed. The caller has the turn.
func (a *Account) freshen(ctx context.Context) (login, error) {
	s := a.server
	if _, _, failure := a.remembered(); failure != nil {
		return login{}, failure // of the call that had the turn before
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
		a.note(err)
		a.pause(err)
	}
	if err != nil {
		return login{}, err
	}
	return l, nil
}

// renew gets another access token from the issuer of a login: by its refresh token, or by
// the credentials of the client. It forgets a login that the issuer has ended.
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
	asked := s.now()
	token, err := s.ask(ctx, metadata, c, params)
	switch {
	case err == nil:
		l.take(token, asked)
		l.Tried = false
		return nil
	case s.config.Grant == ClientCredentials || !isFinal(err) || isUnknownClient(err) && c.key == "":
		return err // another login does not help
	case answered(err, "invalid_grant"), isUnknownClient(err):
		*l = login{Demand: l.Demand}
	}
	return fmt.Errorf("%w: %w", ErrLoginRequired, err)
}
