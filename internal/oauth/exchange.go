package oauth

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/url"
	"strings"
	"time"
)

// maxExchanged bounds the exchanged tokens in memory.
const maxExchanged = 10_000

// exchanged is a token that was exchanged for a token of a caller.
type exchanged struct {
	lock chan struct{} // holds a value while a call gets the token

	// Guarded by Server.mu:
	login   login
	failure error     // why there is no token
	retryAt time.Time // until when failure is returned
}

// Exchange exchanges the token of a caller for a token of the server (RFC 8693). The result is cached
// until it expires.
//
// The caller's token is sent to the authorization server that [Config.Issuer] names, or else the
// resource.
func (a *Account) Exchange(ctx context.Context, subjectToken string) (token string, err error) {
	s := a.server
	key := sha256.Sum256([]byte(subjectToken))
	s.mu.Lock()
	kept, ok := s.exchanged.Get(key)
	if !ok {
		kept = &exchanged{lock: make(chan struct{}, 1)}
		s.exchanged.Add(key, kept)
	}
	s.mu.Unlock()
	select {
	case kept.lock <- struct{}{}:
		defer func() { <-kept.lock }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	s.mu.Lock()
	l, where, failure, retryAt := kept.login, s.exchangeTarget, kept.failure, kept.retryAt
	s.mu.Unlock()
	switch now := s.now(); {
	case l.fresh(now):
		return l.AccessToken, nil
	case failure != nil && now.Before(retryAt):
		return "", failure // of the call that held the lock before
	}
	if where == nil {
		where, err = s.findExchangeTarget(ctx)
	}
	if err == nil {
		err = s.exchange(ctx, where, subjectToken, &l)
	}
	a.noteResult(err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil || ctx.Err() == nil {
		kept.failure, kept.retryAt = err, s.now().Add(retryTime)
	}
	if err != nil {
		return "", err
	}
	kept.login = l
	s.exchangedByToken.Add(l.AccessToken, kept)
	return l.AccessToken, nil
}

// findExchangeTarget finds out where to exchange tokens, and caches that until a token is rejected.
func (s *Server) findExchangeTarget(ctx context.Context) (*loginTarget, error) {
	s.mu.Lock()
	challenged := s.metadataURL
	s.mu.Unlock()
	found, err := s.discover(ctx, challenged, "")
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exchangeTarget = &found
	return &found, nil
}

// exchange exchanges the token of a caller.
func (s *Server) exchange(ctx context.Context, where *loginTarget, subjectToken string, l *login) error {
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
	requested := s.now()
	token, err := s.requestToken(ctx, metadata, c, params)
	if err != nil {
		return err
	}
	l.setToken(token, requested)
	return nil
}

// acceptExchanged notes that the server accepts a token.
func (s *Server) acceptExchanged(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if kept, ok := s.exchangedByToken.Get(token); ok {
		kept.login.Tried = false
	}
}

// rejectExchanged drops a token that the server has rejected, and the exchange target. It returns why
// another token would not help.
func (s *Server) rejectExchanged(token string, asked challenge) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exchangeTarget = nil
	if asked.metadata != "" {
		s.metadataURL = asked.metadata
	}
	kept, ok := s.exchangedByToken.Get(token)
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

// forgetExchanged drops all exchanged tokens.
func (s *Server) forgetExchanged() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exchanged.Purge()
	s.exchangedByToken.Purge()
}
