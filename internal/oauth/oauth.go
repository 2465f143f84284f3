// Package oauth logs in to protected resources with OAuth 2.1, as the authorization part of the
// Model Context Protocol (2025-11-25 and 2026-07-28) requires of clients. It finds the
// authorization server of a resource, registers a client there, lets users log in, and refreshes
// tokens. Only one process refreshes a token at a time.
//
// Metadata come from servers that may be hostile, so requests go only to public addresses over
// https; see [Config.TrustedHosts].
package oauth

import (
	"context"
	"crypto"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// ErrLoginRequired reports that a user must log in, see [Account.Begin]. Errors that wrap it say
// why.
var ErrLoginRequired = errors.New("login required")

// A Grant is a way to get tokens.
type Grant int

const (
	// AuthorizationCode lets a user log in with a browser.
	AuthorizationCode Grant = iota
	// ClientCredentials uses the configured credentials, without a user.
	ClientCredentials
	// TokenExchange exchanges tokens of callers for tokens of the server, see [Account.Exchange].
	TokenExchange
)

// Config describes a protected resource and how to log in to it.
type Config struct {
	// URL of the protected resource. Its own origin is trusted like TrustedHosts.
	Resource *url.URL

	// The client at the authorization server. An https URL is a client-ID metadata
	// document, used where the authorization server supports that. Default: register.
	ClientID string

	// Secret of ClientID. Default: none.
	ClientSecret string

	// Key of ClientID for private_key_jwt, RSA, ECDSA P-256 or Ed25519. Default: none.
	PrivateKey crypto.Signer

	// With ClientCredentials: returns a JWT that authenticates the client instead of its
	// credentials (RFC 7523), such as that of a workload. Default: none.
	Assertion func() (string, error)

	// The authorization server that ClientID belongs to. Its metadata come from Issuer itself,
	// regardless of the resource. Without it, the credentials above are sent to the authorization
	// server that the resource names: an untrusted resource could name its own. Default: the one
	// that the resource names.
	Issuer string

	// How to get tokens. Default: AuthorizationCode.
	Grant Grant

	// Scopes to request instead of those that the resource requires. Default: those of the
	// resource.
	Scopes []string

	// Hosts of metadata and authorization servers that may have private addresses and use plain
	// http, with or without a port. * matches any characters. Only requests to these hosts use the
	// proxy of the environment (HTTPS_PROXY), because a proxy hides the address that it connects
	// to. Default: only the origin of Resource.
	TrustedHosts []string

	// Name of the client, which authorization servers show to users.
	ClientName string

	// OnToken is called after each request to a token endpoint. Default: nil.
	OnToken func(grant string, err error)

	// Storage of logins and registrations, below Folder. Servers with the same Resource, Store and
	// Folder share their logins. Values are secret, see [Encrypted].
	Store  Store
	Folder string
}

// Format keeps secrets out of formatted text.
func (Config) Format(f fmt.State, _ rune) { fmt.Fprint(f, "oauth.Config") }

// maxAccounts bounds the accounts in memory. The Store has all of them.
const maxAccounts = 10_000

// A Server is a protected resource and its accounts. It is safe for concurrent use, and starts no
// goroutines.
type Server struct {
	config Config
	guard  *guard
	now    func() time.Time

	mu       sync.Mutex
	accounts *simplelru.LRU[string, *Account]
	metadata *simplelru.LRU[string, cachedMetadata] // by issuer

	exchanged        *simplelru.LRU[[sha256.Size]byte, *exchangedToken] // by hash of the caller's token
	exchangedByToken *simplelru.LRU[string, *exchangedToken]            // by the exchanged token
	exchangeTarget   *loginTarget                                       // where tokens are exchanged; nil if unknown
	metadataURL      string                                             // of the resource, from a challenge
}

// New returns a Server. It does not connect to anything.
func New(config Config) *Server {
	return &Server{
		config:           config,
		guard:            newGuard(config.Resource, config.TrustedHosts),
		now:              time.Now,
		accounts:         newLRU[string, *Account](maxAccounts),
		metadata:         newLRU[string, cachedMetadata](maxIssuers),
		exchanged:        newLRU[[sha256.Size]byte, *exchangedToken](maxExchanged),
		exchangedByToken: newLRU[string, *exchangedToken](maxExchanged),
	}
}

func newLRU[K comparable, V any](size int) *simplelru.LRU[K, V] {
	lru, err := simplelru.NewLRU[K, V](size, nil)
	if err != nil {
		panic(err) // the size is positive
	}
	return lru
}

// Format keeps secrets out of formatted text.
func (s *Server) Format(f fmt.State, _ rune) { fmt.Fprint(f, "oauth.Server") }

// resource returns the URL to send for a resource that publishes none.
func (s *Server) resource() string {
	u := *s.config.Resource
	u.Fragment, u.RawFragment, u.User = "", "", nil
	return u.String()
}

// origin returns the origin of the resource.
func (s *Server) origin() string { return origin(s.config.Resource) }

// Account returns the account with an id, or the shared account for "".
func (s *Server) Account(id string) *Account {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, ok := s.accounts.Get(id)
	if !ok {
		key := s.storeKey("logins", s.resource(), strconv.Itoa(int(s.config.Grant)), id)
		a = &Account{server: s, id: id, key: key, lock: make(chan struct{}, 1)}
		s.accounts.Add(id, a)
	}
	return a
}

// An Account is a login at a [Server]. It is safe for concurrent use.
type Account struct {
	server  *Server
	id, key string
	lock    chan struct{} // holds a value while a call changes the login

	mu        sync.Mutex
	cached    login // as last read from the Store
	cachedAt  time.Time
	notStored bool      // cached is newer than the Store
	err       error     // last failure; nil after a success
	failure   error     // why the token could not be refreshed
	retryAt   time.Time // failure is returned until then
}

// Format keeps secrets out of formatted text.
func (a *Account) Format(f fmt.State, _ rune) { fmt.Fprint(f, "oauth.Account") }

// Status describes a login.
type Status struct {
	LoggedIn bool      // there is a token; the server may still reject it
	Issuer   string    // issuer of the authorization server
	Scopes   []string  // requested scopes
	Expires  time.Time // expiry of the access token, which a refresh may extend; zero if unknown
	Err      error     // last failure in this process; nil after a success
}

// Status returns the status of the login.
func (a *Account) Status(ctx context.Context) Status {
	l, err := a.read(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		err = a.err
	}
	return Status{
		LoggedIn: l.usable(a.server.now()) || a.server.renewable(l),
		Issuer:   l.Issuer, Scopes: l.Scopes, Expires: l.Expires, Err: err,
	}
}

// LoginRequired reports whether a user must log in before the server accepts requests: there is no
// login, its token is no longer accepted, or the server requires more scopes.
func (a *Account) LoginRequired(ctx context.Context) bool {
	l, err := a.read(ctx)
	switch {
	case err != nil || l.AccessToken == "" || l.Tried:
		return true
	case l.RefreshToken == "" && !l.usable(a.server.now()):
		return true
	}
	return a.server.config.Scopes == nil && !containsAll(l.Scopes, l.Demand.Scopes)
}

// Logout deletes the tokens, and revokes them if the authorization server supports that (RFC 7009).
// They are deleted even if the revocation fails.
func (a *Account) Logout(ctx context.Context) error {
	if err := a.acquire(ctx); err != nil {
		return err
	}
	defer a.release()
	a.server.forgetExchanged()
	var old login
	_, err := a.update(ctx, func(l *login) error {
		old, *l = *l, login{}
		return nil
	})
	if err != nil || old.AccessToken == "" {
		return err
	}
	if err := a.server.revoke(ctx, old); err != nil {
		return fmt.Errorf("tokens deleted, but not revoked at %s: %w", old.Issuer, err)
	}
	return nil
}

// DropCache drops the cached login, because another process has changed it.
func (a *Account) DropCache() {
	a.server.forgetExchanged()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cachedAt, a.failure, a.notStored = time.Time{}, nil, false // the Store has a newer login
}

// noteResult stores the result of the last request for [Account.Status], unless it was canceled.
func (a *Account) noteResult(err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
}

// pauseRetries makes other calls return a failure for a while instead of trying again. nil ends
// that.
func (a *Account) pauseRetries(failure error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failure, a.retryAt = failure, a.server.now().Add(retryTime)
}

// readCached returns the cached login, whether it is recent, and the failure to return instead of a
// refresh, if there is one.
func (a *Account) readCached() (l login, recent bool, failure error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.server.now()
	if now.Before(a.retryAt) {
		failure = a.failure
	}
	return a.cached, now.Sub(a.cachedAt) < cacheTime, failure
}

// acquire waits for the lock to change the login.
func (a *Account) acquire(ctx context.Context) error {
	select {
	case a.lock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (a *Account) release() { <-a.lock }

// printable makes text of a server safe for errors: bounded, on one line.
func printable(text string) string {
	const limit = 200
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '\u2028' || r == '\u2029' || r >= 0x80 && r < 0xa0 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "\ufffd"))
	if runes := []rune(text); len(runes) > limit {
		text = string(runes[:limit]) + "…"
	}
	return text
}
