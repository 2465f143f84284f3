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

// An exchangedToken is a token that was exchanged for a token of a caller.
type exchangedToken struct {
	lock chan struct{} // holds a value while a call gets the token

	// Guarded by Server.mu:
	login   login
	failure error     // why there is no token
	retryAt time.Time // failure is returned until then
}

// Exchange exchanges the token of a caller for a token of the server (RFC 8693). The result is
// cached until it expires.
//
// The caller's token is sent to the authorization server that [Config.Issuer] names, or else the
// resource.
func (a *Account) Exchange(ctx context.Context, subjectToken string) (token string, err error) {
	s := a.server
	key := sha256.Sum256([]byte(subjectToken))
	s.mu.Lock()
	entry, ok := s.exchanged.Get(key)
	if !ok {
		entry = &exchangedToken{lock: make(chan struct{}, 1)}
		s.exchanged.Add(key, entry)
	}
	s.mu.Unlock()
	select {
	case entry.lock <- struct{}{}:
		defer func() { <-entry.lock }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	s.mu.Lock()
	l, target, failure, retryAt := entry.login, s.exchangeTarget, entry.failure, entry.retryAt
	s.mu.Unlock()
	switch now := s.now(); {
	case l.fresh(now):
		return l.AccessToken, nil
	case failure != nil && now.Before(retryAt):
		return "", failure // of the call that held the lock before
	}
	if target == nil {
		target, err = s.findExchangeTarget(ctx)
	}
	if err == nil {
		err = s.exchange(ctx, target, subjectToken, &l)
	}
	a.noteResult(err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil || ctx.Err() == nil {
		entry.failure, entry.retryAt = err, s.now().Add(retryTime)
	}
	if err != nil {
		return "", err
	}
	entry.login = l
	s.exchangedByToken.Add(l.AccessToken, entry)
	return l.AccessToken, nil
}

// findExchangeTarget finds out where to exchange tokens, and caches that until a token is rejected.
func (s *Server) findExchangeTarget(ctx context.Context) (*loginTarget, error) {
	s.mu.Lock()
	metadataURL := s.metadataURL
	s.mu.Unlock()
	found, err := s.discover(ctx, metadataURL, "")
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exchangeTarget = &found
	return &found, nil
}

// exchange exchanges the token of a caller.
func (s *Server) exchange(ctx context.Context, target *loginTarget, subjectToken string, l *login) error {
	metadata, err := s.issuerMetadata(ctx, target.Issuer)
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
		"resource":           {target.resource},
		"audience":           {target.resource},
	}
	l.Scopes = s.chooseScopes(*target, l.Demand.Scopes)
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
	if entry, ok := s.exchangedByToken.Get(token); ok {
		entry.login.Tried = false
	}
}

// rejectExchanged drops a token that the server has rejected, and the exchange target. It returns
// why another token would not help.
func (s *Server) rejectExchanged(token string, asked challenge) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exchangeTarget = nil
	if asked.metadata != "" {
		s.metadataURL = asked.metadata
	}
	entry, ok := s.exchangedByToken.Get(token)
	if !ok || entry.login.AccessToken != token {
		return nil
	}
	if asked.err == insufficientScope {
		if err := s.demandScopes(&entry.login, asked.scopes); !errors.Is(err, ErrLoginRequired) {
			return err
		}
	} else if entry.login.Tried {
		return errors.New("the server does not accept exchanged tokens")
	}
	entry.login = login{Demand: entry.login.Demand, Tried: true}
	return nil
}

// forgetExchanged drops all exchanged tokens.
func (s *Server) forgetExchanged() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exchanged.Purge()
	s.exchangedByToken.Purge()
}
