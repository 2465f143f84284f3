package oauth

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/url"
	"strings"
	"time"
)

// maxExchanged bounds the tokens of [TokenExchange] in memory.
const maxExchanged = 10_000

// exchanged is the token that was got in place of a caller's.
type exchanged struct {
	turn chan struct{} // holds a value while a call gets the token

	// Guarded by Server.mu:
	login   login
	failure error     // why there is no token
	retryAt time.Time // until when failure is good
}

// Exchange returns a token for the server in place of a caller's token (RFC 8693). It is
// kept until it expires.
//
// The resource names the authorization server that the caller's token is sent to, unless
// [Config.Issuer] does.
func (a *Account) Exchange(ctx context.Context, subjectToken string) (token string, err error) {
	s := a.server
	key := sha256.Sum256([]byte(subjectToken))
	s.mu.Lock()
	kept, ok := s.exchanged.Get(key)
	if !ok {
		kept = &exchanged{turn: make(chan struct{}, 1)}
		s.exchanged.Add(key, kept)
	}
	s.mu.Unlock()
	select {
	case kept.turn <- struct{}{}:
		defer func() { <-kept.turn }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	s.mu.Lock()
	l, where, failure, retryAt := kept.login, s.exchangeAt, kept.failure, kept.retryAt
	s.mu.Unlock()
	switch now := s.now(); {
	case l.fresh(now):
		return l.AccessToken, nil
	case failure != nil && now.Before(retryAt):
		return "", failure // of the call that had the turn before
	}
	if where == nil {
		where, err = s.exchangePlace(ctx)
	}
	if err == nil {
		err = s.exchange(ctx, where, subjectToken, &l)
	}
	a.note(err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil || ctx.Err() == nil {
		kept.failure, kept.retryAt = err, s.now().Add(retryTime)
	}
	if err != nil {
		return "", err
	}
	kept.login = l
	s.issued.Add(l.AccessToken, kept)
	return l.AccessToken, nil
}

// exchangePlace finds out where to exchange tokens, and remembers it until a token is refused.
func (s *Server) exchangePlace(ctx context.Context) (*place, error) {
	s.mu.Lock()
	challenged := s.challenged
	s.mu.Unlock()
	found, err := s.discover(ctx, challenged, "")
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exchangeAt = &found
	return &found, nil
}

// exchange gets a token in place of a caller's.
func (s *Server) exchange(ctx context.Context, where *place, subjectToken string, l *login) error {
	metadata, err := s.issuerMetadata(ctx, where.Issuer)
	if err != nil {
		return err
	}
	c, err := s.chooseClient(ctx, metadata, "", "")
	if err != nil {
		return err
	}
	params := url.Values{
		"grant_type":         {"urn:ietf:params:oauth:grant-type:token-exchange"},
		"subject_token":      {subjectToken},
		"subject_token_type": {"urn:ietf:params:oauth:token-type:access_token"},
		"resource":           {where.resource},
		"audience":           {where.resource},
	}
	l.Scopes = s.chooseScopes(*where, l.Demand.Scopes)
	if len(l.Scopes) > 0 {
		params.Set("scope", strings.Join(l.Scopes, " "))
	}
	asked := s.now()
	token, err := s.ask(ctx, metadata, c, params)
	if err != nil {
		return err
	}
	l.take(token, asked)
	return nil
}

// acceptExchanged notes that the server accepts a token.
func (s *Server) acceptExchanged(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if kept, ok := s.issued.Get(token); ok {
		kept.login.Tried = false
	}
}

// rejectExchanged forgets a token that the server refuses, and where it came from. It
// returns why another one would not help.
func (s *Server) rejectExchanged(token string, asked challenge) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exchangeAt = nil
	if asked.metadata != "" {
		s.challenged = asked.metadata
	}
	kept, ok := s.issued.Get(token)
	if !ok || kept.login.AccessToken != token {
		return nil
	}
	if asked.err == insufficientScope {
		if err := s.demandScopes(&kept.login, asked.scopes); !errors.Is(err, ErrLoginRequired) {
			return err
		}
	} else if kept.login.Tried {
		return errors.New("the server does not accept exchanged tokens")
	}
	kept.login = login{Demand: kept.login.Demand, Tried: true}
	return nil
}

// forgetExchanged forgets all exchanged tokens.
func (s *Server) forgetExchanged() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exchanged.Purge()
	s.issued.Purge()
}
