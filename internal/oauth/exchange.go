package oauth

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/url"
	"strings"
)

// maxExchanged bounds the tokens of [TokenExchange] in memory.
const maxExchanged = 10_000

// tokenTypeAccess is the type of access tokens (RFC 8693).
const tokenTypeAccess = "urn:ietf:params:oauth:token-type:access_token"

// exchanged is a token that was got in place of another.
type exchanged struct {
	login login
}

// Exchange returns a token for the server in place of a caller's token (RFC 8693). It is
// kept until it expires.
func (a *Account) Exchange(ctx context.Context, subjectToken string) (token string, err error) {
	defer func() { a.note(err) }()
	s := a.server
	key := sha256.Sum256([]byte(subjectToken))
	s.mu.Lock()
	kept, ok := s.exchanged.Get(key)
	s.mu.Unlock()
	if ok && kept.login.fresh(s.now()) {
		return kept.login.AccessToken, nil
	}
	found, err := s.discover(ctx, "", "")
	if err != nil {
		return "", err
	}
	c, err := s.chooseClient(ctx, found.serverMetadata, "", "")
	if err != nil {
		return "", err
	}
	params := url.Values{
		"grant_type": {"urn:ietf:params:oauth:grant-type:token-exchange"}, "subject_token": {subjectToken},
		"subject_token_type": {tokenTypeAccess}, "resource": {found.resource}, "audience": {found.resource},
	}
	if scopes := s.chooseScopes(found, nil); len(scopes) > 0 {
		params.Set("scope", strings.Join(scopes, " "))
	}
	asked := s.now()
	answer, err := s.ask(ctx, found.serverMetadata, c, params)
	if err != nil {
		return "", err
	}
	next := &exchanged{}
	next.login.take(answer, asked, s.now())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exchanged.Add(key, next)
	return next.login.AccessToken, nil
}

func (s *Server) acceptExchanged(string) {}

func (s *Server) rejectExchanged(string) error { return errors.New("the server refuses the token") }
