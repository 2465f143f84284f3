// Package oauth logs in to protected resources with OAuth 2.1, as the authorization part
// of the Model Context Protocol (2025-11-25 and 2026-07-28) asks of clients. It finds the
// authorization server of a resource, registers there, sends people to log in, and keeps
// the tokens fresh, once at a time also across processes.
//
// Metadata come from servers that may be hostile, so requests go to public addresses
// over https only; see [Config.TrustedHosts].
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

// ErrLoginRequired says that a person must log in, see [Account.Begin]. Errors that wrap
// it say why.
var ErrLoginRequired = errors.New("login required")

// A Grant is a way to get tokens.
type Grant int

const (
	// AuthorizationCode lets a person log in with a browser.
	AuthorizationCode Grant = iota
	// ClientCredentials uses the credentials of the configuration, without a person.
	ClientCredentials
	// TokenExchange gives the tokens of callers for tokens of the server, see
	// [Account.Exchange].
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

	// With ClientCredentials: returns a JWT that vouches for the client in place of its
	// credentials (RFC 7523), such as that of a workload. Default: none.
	Assertion func() (string, error)

	// The authorization server that ClientID belongs to. Its metadata come from Issuer
	// itself, whatever the resource says. Without it, the resource names its authorization
	// server, and the credentials above are sent there: a resource that is not trusted with
	// them could name its own. Default: the one that the resource names.
	Issuer string

	// How to get tokens. Default: AuthorizationCode.
	Grant Grant

	// Scopes to ask for, in place of those that the resource asks for.
	Scopes []string

	// Hosts of metadata and authorization servers that may have addresses that are not
	// public, and may use plain http, with or without a port. * matches any characters. Requests to these hosts,
	// and only to these, use the proxy of the environment (HTTPS_PROXY): a proxy hides the
	// address that it connects to. Default: none but the origin of Resource.
	TrustedHosts []string

	// Name of the client, which authorization servers show to people.
	ClientName string

	// Called after each request to a token endpoint. Default: nothing is called.
	OnToken func(grant string, err error)

	// Keeps logins and registrations, below Folder. Servers with the same Resource, Store and
	// Folder share their logins. Values are secret, see [Encrypted].
	Store  Store
	Folder string
}

// Format keeps secrets out of texts.
func (Config) Format(f fmt.State, _ rune) { fmt.Fprint(f, "oauth.Config") }

// maxAccounts bounds the accounts in memory. The Store has all of them.
const maxAccounts = 10_000

// A Server is a protected resource with the accounts at it. It is safe for concurrent
// use, and starts no goroutines.
type Server struct {
	config Config
	guard  *guard
	now    func() time.Time

	mu       sync.Mutex
	accounts *simplelru.LRU[string, *Account]
	metadata *simplelru.LRU[string, cachedMetadata] // by issuer

	exchanged  *simplelru.LRU[[sha256.Size]byte, *exchanged] // by hash of the caller's token
	issued     *simplelru.LRU[string, *exchanged]            // by the token that came for it
	exchangeAt *place                                        // where tokens are exchanged, nil if unknown
	challenged string                                        // where a challenge said that the metadata of the resource are
}

// New returns a Server. It does not connect to anything.
func New(config Config) *Server {
	return &Server{
		config:    config,
		guard:     newGuard(config.Resource, config.TrustedHosts),
		now:       time.Now,
		accounts:  newLRU[string, *Account](maxAccounts),
		metadata:  newLRU[string, cachedMetadata](maxIssuers),
		exchanged: newLRU[[sha256.Size]byte, *exchanged](maxExchanged),
		issued:    newLRU[string, *exchanged](maxExchanged),
	}
}

func newLRU[K comparable, V any](size int) *simplelru.LRU[K, V] {
	lru, err := simplelru.NewLRU[K, V](size, nil)
	if err != nil {
		panic(err) // the size is positive
	}
	return lru
}

// Format keeps secrets out of texts.
func (s *Server) Format(f fmt.State, _ rune) { fmt.Fprint(f, "oauth.Server") }

// resource returns the URL of the resource as it is sent if the resource publishes none.
func (s *Server) resource() string {
	u := *s.config.Resource
	u.Fragment, u.RawFragment, u.User = "", "", nil
	return u.String()
}

// origin returns the origin of the resource.
func (s *Server) origin() string { return origin(s.config.Resource) }

// Account returns the account with this id, "" for the shared one.
func (s *Server) Account(id string) *Account {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, ok := s.accounts.Get(id)
	if !ok {
		key := s.storeKey("logins", s.resource(), strconv.Itoa(int(s.config.Grant)), id)
		a = &Account{server: s, id: id, key: key, turn: make(chan struct{}, 1)}
		s.accounts.Add(id, a)
	}
	return a
}

// An Account is a login at a [Server]. It is safe for concurrent use.
type Account struct {
	server  *Server
	id, key string
	turn    chan struct{} // holds a value while a call changes the login

	mu        sync.Mutex
	known     login     // as last seen in the Store
	seen      time.Time // when that was
	notStored bool      // known is newer than what the Store has
	err       error     // the last failure, nil after a success
	failure   error     // why the token could not be refreshed
	retryAt   time.Time // until when failure is good
}

// Format keeps secrets out of texts.
func (a *Account) Format(f fmt.State, _ rune) { fmt.Fprint(f, "oauth.Account") }

// Status describes a login.
type Status struct {
	LoggedIn bool      // there is a token, which may be refused nevertheless
	Issuer   string    // of the authorization server
	Scopes   []string  // that the login has asked for
	Expires  time.Time // of the access token, zero if it did not say; refresh may prolong it
	Err      error     // the last failure in this process, nil after a success
}

// Status says how the login is.
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

// LoginRequired reports whether a person has to log in before the server answers: there is no
// login, its token is no longer accepted, or the server demands further scopes.
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

// Logout forgets the tokens, and revokes them where the authorization server offers that
// (RFC 7009). They are forgotten even if that fails.
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
		return fmt.Errorf("forgotten, but not revoked at %s: %w", old.Issuer, err)
	}
	return nil
}

// Look has the login looked at before it is used next: another process has changed it.
func (a *Account) Look() {
	a.server.forgetExchanged()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen, a.failure, a.notStored = time.Time{}, nil, false // what is stored is newer
}

// note remembers how the last request went, for [Account.Status], unless the caller has gone.
func (a *Account) note(err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
}

// pause keeps other calls from trying for a while what has failed, if it has.
func (a *Account) pause(failure error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failure, a.retryAt = failure, a.server.now().Add(retryTime)
}

// remembered returns the login as last seen in the Store, whether that was a moment ago, and
// why it should not be refreshed now, if so.
func (a *Account) remembered() (l login, recent bool, failure error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.server.now()
	if now.Before(a.retryAt) {
		failure = a.failure
	}
	return a.known, now.Sub(a.seen) < lookTime, failure
}

// acquire waits for the turn of the caller to change the login.
func (a *Account) acquire(ctx context.Context) error {
	select {
	case a.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (a *Account) release() { <-a.turn }

// printable returns a text of a server that is fit for errors: bounded, on one line.
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
