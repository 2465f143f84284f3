package oauth

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

// Accepted records that the server has answered a request with this token with a status other than
// 401. [Account.Rejected] uses that: a server that has never accepted a token of a login will not
// accept the next one either.
func (a *Account) Accepted(ctx context.Context, token string) {
	if a.server.config.Grant == TokenExchange {
		a.server.acceptExchanged(token)
		return
	}
	known, _, _ := a.readCached()
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
	a.noteResult(err)
}

// Rejected handles a 401 or 403 of the server to a request with this token ("" for none). It
// returns another token for one more attempt, an error that wraps [ErrLoginRequired] if a user must
// log in, or why a login would not help. challenges are the values of WWW-Authenticate.
//
// A login would not help if the current login has requested all scopes that the server requires, or
// if no token of it was ever accepted. The error does not wrap ErrLoginRequired then. Begin is
// possible anyway.
//
// With [TokenExchange] it returns "" without an error if [Account.Exchange] can be called once
// more.
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
	next, err := s.nextStep(&l, token, asked)
	if next != noStep || !l.equal(before) {
		l, err = a.update(ctx, func(l *login) error {
			next, err := s.nextStep(l, token, asked)
			switch next {
			case renewToken:
				return a.renewRefused(ctx, l)
			case obtainToken:
				return a.obtain(ctx, l)
			}
			return err
		})
	}
	a.noteResult(err)
	if err != nil {
		return "", err
	}
	return l.AccessToken, nil
}

// A step is a reaction to a rejected token.
type step int

const (
	noStep step = iota
	renewToken
	obtainToken // with the credentials of the client
)

// nextStep returns how to react to a rejected token. It notes in the login what the server requires
// of the next one.
func (s *Server) nextStep(l *login, token string, asked challenge) (next step, err error) {
	if asked.metadata != "" {
		l.Demand.Metadata = asked.metadata
	}
	now, renewable := s.now(), s.renewable(*l)
	switch {
	case l.AccessToken != token && (l.fresh(now) || l.usable(now) && !renewable):
		return noStep, nil // another call or process has refreshed it
	case renewable && (l.AccessToken != token || !l.usable(now)): // it has expired in the meantime
		return renewToken, nil
	case token == "" || l.AccessToken != token:
		l.Demand.Scopes = asked.scopes
		err = ErrLoginRequired
	case asked.err == insufficientScope:
		err = s.demandScopes(l, asked.scopes)
	case l.Tried:
		return noStep, s.rejectedError(l)
	default:
		return renewToken, nil
	}
	if s.config.Grant == ClientCredentials && errors.Is(err, ErrLoginRequired) {
		return obtainToken, nil
	}
	return noStep, err
}

// demandScopes notes that the next login must request more scopes. It returns [ErrLoginRequired],
// or why a login would not help.
func (s *Server) demandScopes(l *login, demanded []string) error {
	text := printable(strings.Join(demanded, " "))
	switch configured := s.config.Scopes; {
	case configured != nil && !containsAll(configured, demanded):
		return fmt.Errorf("the server requires the scopes %q, which are not configured", text)
	case containsAll(l.Scopes, demanded):
		return fmt.Errorf("the server requires the scopes %q, which the login has already requested", text)
	}
	l.Demand.Scopes = union(l.Scopes, demanded)
	return fmt.Errorf("%w: the server requires the scopes %q", ErrLoginRequired, text)
}

// rejectedError returns the error for a token that the server still rejects after a renewal.
func (s *Server) rejectedError(l *login) error {
	if s.config.Grant == AuthorizationCode && l.Accepted {
		return fmt.Errorf("%w: the server no longer accepts the token", ErrLoginRequired)
	}
	return fmt.Errorf("the server does not accept the tokens of %s", printable(l.Issuer))
}

// renewRefused renews a token that the server has rejected, unless the resource has moved to
// another authorization server: tokens of the old one are not sent there.
func (a *Account) renewRefused(ctx context.Context, l *login) error {
	s := a.server
	found, err := s.discover(ctx, l.Demand.Metadata, l.Issuer)
	if err != nil {
		return err
	}
	if found.Issuer != l.Issuer {
		moved := fmt.Errorf("%w: the authorization server has changed from %s to %s",
			ErrLoginRequired, printable(l.Issuer), printable(found.Issuer))
		*l = login{Demand: l.Demand}
		if s.config.Grant == ClientCredentials {
			return a.obtain(ctx, l)
		}
		return moved
	}
	if !s.renewable(*l) {
		l.Tried = true
		return s.rejectedError(l)
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
	l.Tried = true // a new token that is rejected is not replaced again
	return nil
}

// containsAll reports whether all contains all scopes of some.
func containsAll(all, some []string) bool {
	return !slices.ContainsFunc(some, func(scope string) bool { return !slices.Contains(all, scope) })
}

// union returns the scopes of both, without duplicates.
func union(a, b []string) []string {
	both := slices.Clone(a)
	for _, scope := range b {
		if !slices.Contains(both, scope) {
			both = append(both, scope)
		}
	}
	return both
}

// A challenge is the content of the Bearer challenges in WWW-Authenticate.
type challenge struct {
	metadata string // resource_metadata
	scopes   []string
	err      string // error
}

// insufficientScope is the error of a challenge if the token lacks scopes.
const insufficientScope = "insufficient_scope"

// maxParam bounds the parameters of a challenge. Longer ones are ignored.
const maxParam = 2048

// challengePart matches a parameter of a challenge (RFC 9110, 11.6.1), or else a token, or else a
// quoted string. The groups are: name, quoted value, value; a token has only a name. The parts of
// a token68 are tokens.
var challengePart = regexp.MustCompile("(?s)" +
	"([!#$%&'*+.^_`|~0-9A-Za-z-]+)" +
	`(?:[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|` + "([!#$%&'*+.^_`|~0-9A-Za-z-]+)" + `))?` +
	`|"(?:[^"\\]|\\.)*"?`)

var quotedPair = regexp.MustCompile(`(?s)\\(.)`)

// parseChallenges parses the values of WWW-Authenticate. Each parameter comes from the first Bearer
// challenge that has it. A token that is not the name of a parameter is the scheme of a challenge.
func parseChallenges(values []string) challenge {
	bearer := map[string]string{"resource_metadata": "", "scope": "", "error": ""}
	for _, value := range values {
		scheme := ""
		for _, part := range challengePart.FindAllStringSubmatch(value, -1) {
			name, text := strings.ToLower(part[1]), quotedPair.ReplaceAllString(part[2], "$1")+part[3]
			if len(part[0]) == len(part[1]) {
				scheme = name
			} else if old, wanted := bearer[name]; wanted && old == "" && scheme == "bearer" && len(text) <= maxParam {
				bearer[name] = text
			}
		}
	}
	return challenge{bearer["resource_metadata"], strings.Fields(bearer["scope"]), bearer["error"]}
}
