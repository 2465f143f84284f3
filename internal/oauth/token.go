package oauth

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
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

// An endpointError is an error response of the token endpoint.
type endpointError struct {
	host        string
	status      int
	code        string // such as invalid_grant
	description string
}

func (e *endpointError) Error() string {
	text := fmt.Sprintf("%s: status %d", e.host, e.status)
	if e.code != "" {
		text += ": " + e.code
	}
	if e.description != "" {
		text += ": " + e.description
	}
	return text
}

// hasCode reports whether err is an error response with this code.
func hasCode(err error, code string) bool {
	answer, ok := errors.AsType[*endpointError](err)
	return ok && answer.code == code
}

// isUnknownClient reports whether err means that the credentials of the client are wrong.
func isUnknownClient(err error) bool {
	return hasCode(err, "invalid_client") || hasCode(err, "unauthorized_client")
}

// isFinal reports whether err is a response that stays the same if the request is repeated.
func isFinal(err error) bool {
	answer, ok := errors.AsType[*endpointError](err)
	if !ok || answer.status >= 500 || answer.status == http.StatusTooManyRequests {
		return false
	}
	switch answer.code {
	case "", "temporarily_unavailable", "server_error", "slow_down":
		return false
	}
	return true
}

// requestToken sends a grant to the token endpoint. It goes on if ctx is canceled, because the
// response may be the only copy of a rotated refresh token.
func (s *Server) requestToken(
	ctx context.Context, metadata *serverMetadata, c client, params url.Values,
) (_ *oauth2.Token, err error) {
	if grant := params.Get("grant_type"); s.config.OnToken != nil && grant != "" { // a revocation has none
		defer func() { s.config.OnToken(grant, err) }()
	}
	endpoint, err := s.guard.parse(metadata.TokenEndpoint)
	if err != nil {
		return nil, err
	}
	config := clientcredentials.Config{
		ClientID: c.ID, TokenURL: metadata.TokenEndpoint, EndpointParams: params, AuthStyle: oauth2.AuthStyleInParams,
	}
	switch c.Method {
	case methodBasic:
		config.ClientSecret, config.AuthStyle = c.Secret, oauth2.AuthStyleInHeader
	case methodPost:
		config.ClientSecret = c.Secret
	case methodJWT:
		assertion, err := s.assertion(metadata.Issuer, c.ID)
		if err != nil {
			return nil, fmt.Errorf("private_key: %w", err)
		}
		params.Set("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer")
		params.Set("client_assertion", assertion)
	}
	token, err := config.Token(context.WithValue(context.WithoutCancel(ctx), oauth2.HTTPClient, s.guard.client))
	if err != nil {
		s.dropMetadata(metadata.Issuer) // the endpoint may have moved
		err = tokenError(endpoint.Host, err, c.Secret, params)
		if isUnknownClient(err) {
			err = errors.Join(err, s.forgetClient(ctx, c))
		}
		return nil, err
	}
	if !strings.EqualFold(token.TokenType, "Bearer") {
		return nil, fmt.Errorf("%s: token_type is %q, not Bearer", endpoint.Host, printable(token.TokenType))
	}
	if strings.ContainsFunc(token.AccessToken, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, fmt.Errorf("%s: access_token has characters that cannot be sent", endpoint.Host)
	}
	return token, nil
}

// errNoToken reports that a successful response has no token.
var errNoToken = errors.New("the response has no token")

// tokenError returns an error of the token endpoint without secrets, which some servers repeat.
func tokenError(host string, err error, secret string, params url.Values) error {
	if failed, ok := errors.AsType[*url.Error](err); ok {
		return hideURL(host, failed)
	}
	refused, ok := errors.AsType[*oauth2.RetrieveError](err)
	if !ok {
		return fmt.Errorf("%s: %w", host, errNoToken)
	}
	var pairs []string
	for _, value := range []string{
		secret, params.Get("code"), params.Get("code_verifier"), params.Get("refresh_token"),
		params.Get("subject_token"), params.Get("client_assertion"), params.Get("assertion"), params.Get("token"),
	} {
		if value != "" {
			pairs = append(pairs, value, "…")
		}
	}
	scrub := strings.NewReplacer(pairs...)
	return &endpointError{
		host:        host,
		status:      refused.Response.StatusCode,
		code:        printable(scrub.Replace(refused.ErrorCode)),
		description: printable(scrub.Replace(refused.ErrorDescription)),
	}
}

// assertion returns a JWT that authenticates a client (RFC 7523).
func (s *Server) assertion(issuer, id string) (string, error) {
	var algorithm jose.SignatureAlgorithm
	switch key := s.config.PrivateKey.(type) {
	case *rsa.PrivateKey:
		algorithm = jose.RS256
	case ed25519.PrivateKey:
		algorithm = jose.EdDSA
	case *ecdsa.PrivateKey:
		if key.Curve == elliptic.P256() {
			algorithm = jose.ES256
		}
	}
	if algorithm == "" {
		return "", errors.New("the key is not RSA, ECDSA P-256 or Ed25519")
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: s.config.PrivateKey},
		(&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		return "", err
	}
	return jwt.Signed(signer).Claims(jwt.Claims{
		Issuer: id, Subject: id, Audience: jwt.Audience{issuer}, ID: rand.Text(),
		IssuedAt: jwt.NewNumericDate(s.now()), Expiry: jwt.NewNumericDate(s.now().Add(5 * time.Minute)),
	}).Serialize()
}

// revoke revokes the tokens of a login (RFC 7009), if the authorization server supports that.
func (s *Server) revoke(ctx context.Context, l login) error {
	metadata, err := s.issuerMetadata(ctx, l.Issuer)
	if err != nil || metadata.RevocationEndpoint == "" {
		return err
	}
	c, err := s.knownClient(ctx, metadata, l.ClientID, l.RedirectURL)
	if err != nil {
		return err
	}
	params := url.Values{"grant_type": nil, "token": {l.AccessToken}, "token_type_hint": {"access_token"}}
	if l.RefreshToken != "" {
		params = url.Values{"grant_type": nil, "token": {l.RefreshToken}, "token_type_hint": {"refresh_token"}}
	}
	revocation := *metadata
	revocation.TokenEndpoint = metadata.RevocationEndpoint
	if _, err := s.requestToken(ctx, &revocation, c, params); !errors.Is(err, errNoToken) {
		return err
	}
	return nil
}

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
	case failure == nil || !now.Before(retryAt): // request a token
	case l.usable(now):
		return l.AccessToken, nil
	default:
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
	switch {
	case err != nil && entry.login.usable(s.now()):
		return entry.login.AccessToken, nil
	case err != nil:
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
