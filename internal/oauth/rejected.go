package oauth

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// Accepted is called when the server has answered a request that had this token with
// anything but 401. [Account.Rejected] needs to know: a server that has never accepted a
// token of a login will not accept those of the next.
func (a *Account) Accepted(ctx context.Context, token string) {
	if a.server.config.Grant == TokenExchange {
		a.server.acceptExchanged(token)
		return
	}
	known, _, _ := a.remembered()
	if known.AccessToken != token || token == "" || known.Accepted && !known.Tried || a.acquire(ctx) != nil {
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
// are the values of WWW-Authenticate.
//
// A person is not asked in vain: if the login in use has asked for all the scopes that the
// server demands, or no token of it was ever accepted, the error says so and does not wrap
// ErrLoginRequired. Begin is possible nevertheless.
//
// With [TokenExchange] it returns "" without an error if [Account.Exchange] can be called
// once more.
func (a *Account) Rejected(ctx context.Context, token string, status int, challenges []string) (string, error) {
	s := a.server
	asked := parseChallenges(challenges)
	if status == http.StatusForbidden && asked.err != insufficientScope {
		return "", errors.New("forbidden by the server")
	}
	if s.config.Grant == TokenExchange {
		return "", s.rejectExchanged(token, asked)
	}
	if err := a.acquire(ctx); err != nil {
		return "", err
	}
	defer a.release()
	l, err := a.load(ctx)
	if err != nil {
		return "", err
	}
	before := l
	next, err := s.judge(&l, token, asked)
	if next != nothing || !l.equal(before) {
		l, err = a.update(ctx, func(l *login) error {
			next, err := s.judge(l, token, asked)
			switch next {
			case renewToken:
				return a.renewRefused(ctx, l)
			case obtainToken:
				return a.obtain(ctx, l)
			}
			return err
		})
	}
	a.note(err)
	if err != nil {
		return "", err
	}
	return l.AccessToken, nil
}

// A step is what to do next about a token that was refused.
type step int

const (
	nothing step = iota
	renewToken
	obtainToken // with the credentials of the client
)

// judge says what to do about a token that was refused. It notes in the login what the
// server demands of the next one.
func (s *Server) judge(l *login, token string, asked challenge) (next step, err error) {
	if asked.metadata != "" {
		l.Demand.Metadata = asked.metadata
	}
	now, renewable := s.now(), s.renewable(*l)
	switch {
	case l.AccessToken != token && (l.fresh(now) || l.usable(now) && !renewable):
		return nothing, nil // another call or process has got it
	case renewable && (l.AccessToken != token || !l.usable(now)): // it has expired on the way
		return renewToken, nil
	case token == "" || l.AccessToken != token:
		l.Demand.Scopes = asked.scopes
		err = ErrLoginRequired
	case asked.err == insufficientScope:
		err = s.demandScopes(l, asked.scopes)
	case l.Tried:
		return nothing, s.refused(l)
	default:
		return renewToken, nil
	}
	if s.config.Grant == ClientCredentials && errors.Is(err, ErrLoginRequired) {
		return obtainToken, nil
	}
	return nothing, err
}

// demandScopes notes that the next login is to ask for more scopes, and returns why that
// would not help, or [ErrLoginRequired].
func (s *Server) demandScopes(l *login, demanded []string) error {
	text := printable(strings.Join(demanded, " "))
	switch configured := s.config.Scopes; {
	case configured != nil && !containsAll(configured, demanded):
		return fmt.Errorf("the server demands the scopes %q, which are not among those configured", text)
	case containsAll(l.Scopes, demanded):
		return fmt.Errorf("the server demands the scopes %q, which the login has asked for", text)
	}
	l.Demand.Scopes = union(l.Scopes, demanded)
	return fmt.Errorf("%w: the server demands the scopes %q", ErrLoginRequired, text)
}

// refused returns the error for a token that the server refuses, if all has been tried.
func (s *Server) refused(l *login) error {
	if s.config.Grant == AuthorizationCode && l.Accepted {
		return fmt.Errorf("%w: the server no longer accepts the token", ErrLoginRequired)
	}
	return fmt.Errorf("the server does not accept the tokens of %s", printable(l.Issuer))
}

// renewRefused renews a token that the server refuses, unless the resource has moved to
// another authorization server: nothing of the old one is used there.
func (a *Account) renewRefused(ctx context.Context, l *login) error {
	s := a.server
	found, err := s.discover(ctx, l.Demand.Metadata, l.Issuer)
	if err != nil {
		return err
	}
	if found.Issuer != l.Issuer {
		moved := fmt.Errorf("%w: the authorization server has changed from %s to %s", ErrLoginRequired, printable(l.Issuer), printable(found.Issuer))
		*l = login{Demand: l.Demand}
		if s.config.Grant == ClientCredentials {
			return a.obtain(ctx, l)
		}
		return moved
	}
	if !s.renewable(*l) {
		l.Tried = true
		return s.refused(l)
	}
	if err := a.renew(ctx, l); err != nil {
		return err
	}
	l.Tried = true
	return nil
}

// obtain gets a token with the credentials of the client.
func (a *Account) obtain(ctx context.Context, l *login) error {
	s := a.server
	found, err := s.discover(ctx, l.Demand.Metadata, l.Issuer)
	if err != nil {
		return err
	}
	c, err := s.chooseClient(ctx, found.serverMetadata, "", "")
	if err != nil {
		return err
	}
	next := login{
		Issuer: found.Issuer, Resource: found.resource, ClientID: c.ID,
		Scopes: s.chooseScopes(found, l.Demand.Scopes), Demand: l.Demand,
	}
	if err := a.renew(ctx, &next); err != nil {
		return err
	}
	*l = next
	l.Tried = true // a new token that is refused is not replaced again
	return nil
}

// containsAll reports whether all scopes of some are in all.
func containsAll(all, some []string) bool {
	return !slices.ContainsFunc(some, func(scope string) bool { return !slices.Contains(all, scope) })
}

// union returns the scopes of both.
func union(a, b []string) []string {
	both := slices.Clone(a)
	for _, scope := range b {
		if !slices.Contains(both, scope) {
			both = append(both, scope)
		}
	}
	return both
}
