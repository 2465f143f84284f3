package oauth

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/backoff"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
)

// Store stores values under keys, and locks them across processes. certmagic.Storage implements it.
type Store interface {
	Load(ctx context.Context, key string) ([]byte, error) // fs.ErrNotExist for a missing key
	Store(ctx context.Context, key string, value []byte) error
	Delete(ctx context.Context, key string) error
	Lock(ctx context.Context, name string) error
	Unlock(ctx context.Context, name string) error
}

// Encrypted returns a Store that encrypts values with AES-256-GCM. The encryption key is derived
// from key with HKDF. A value is bound to its storage key and cannot be moved. A value that cannot
// be decrypted counts as missing, so that a new login can replace it.
func Encrypted(s Store, key []byte) Store {
	derived, err := hkdf.Key(sha256.New, key, nil, "oauth store", 32)
	if err != nil {
		panic(err) // only fails for a wrong length
	}
	block, err := aes.NewCipher(derived)
	if err != nil {
		panic(err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err)
	}
	return encrypted{s, aead}
}

type encrypted struct {
	inner Store
	aead  cipher.AEAD
}

func (e encrypted) Load(ctx context.Context, key string) ([]byte, error) {
	sealed, err := e.inner.Load(ctx, key)
	if err != nil {
		return nil, err
	}
	value, err := e.aead.Open(nil, nil, sealed, []byte(key))
	if err != nil {
		return nil, fmt.Errorf("%s: encrypted with another key, or damaged: %w", key, fs.ErrNotExist)
	}
	return value, nil
}

func (e encrypted) Store(ctx context.Context, key string, value []byte) error {
	return e.inner.Store(ctx, key, e.aead.Seal(nil, nil, value, []byte(key)))
}

func (e encrypted) Delete(ctx context.Context, key string) error  { return e.inner.Delete(ctx, key) }
func (e encrypted) Lock(ctx context.Context, name string) error   { return e.inner.Lock(ctx, name) }
func (e encrypted) Unlock(ctx context.Context, name string) error { return e.inner.Unlock(ctx, name) }

// storeKey returns the key of a value. It hashes the parts, which may have any characters and
// length.
func (s *Server) storeKey(kind string, parts ...string) string {
	hash := sha256.New()
	for _, part := range parts {
		fmt.Fprintf(hash, "%d %s", len(part), part)
	}
	return path.Join(s.config.Folder, kind, hex.EncodeToString(hash.Sum(nil)))
}

// loadJSON loads a value. It returns the zero value if there is none, or if it is not valid JSON.
func loadJSON[T any](ctx context.Context, s Store, key string) (value T, err error) {
	raw, err := s.Load(ctx, key)
	if errors.Is(err, fs.ErrNotExist) {
		return value, nil
	}
	if err != nil {
		return value, fmt.Errorf("load from storage: %w", err)
	}
	if json.Unmarshal(raw, &value) != nil {
		var zero T
		return zero, nil
	}
	return value, nil
}

// storeJSON stores a value, even if ctx is canceled: without a rotated refresh token the login is
// lost.
func storeJSON(ctx context.Context, s Store, key string, value any) error {
	raw, err := json.Marshal(value)
	if err == nil {
		err = s.Store(context.WithoutCancel(ctx), key, raw)
	}
	if err != nil {
		return fmt.Errorf("write to storage: %w", err)
	}
	return nil
}

// A login is the stored state of an account.
type login struct {
	Issuer      string   `json:"issuer,omitempty"`
	Resource    string   `json:"resource,omitempty"` // as sent to the issuer
	ClientID    string   `json:"client_id,omitempty"`
	RedirectURL string   `json:"redirect_url,omitempty"`
	Scopes      []string `json:"scopes,omitempty"` // requested scopes

	AccessToken  string    `json:"access_token,omitempty"`
	RefreshToken string    `json:"refresh_token,omitempty"`
	Obtained     time.Time `json:"obtained,omitzero"`
	Expires      time.Time `json:"expires,omitzero"`

	Accepted bool `json:"accepted,omitempty"` // the resource has accepted a token of this login
	Tried    bool `json:"tried,omitempty"`    // renewing AccessToken after a 401 has been tried

	Demand demand `json:"demand,omitzero"`
}

// A demand is what the resource requires of a login.
type demand struct {
	Metadata string   `json:"metadata,omitempty"` // URL of the resource's metadata
	Scopes   []string `json:"scopes,omitempty"`   // for the next login
}

func (l login) equal(other login) bool {
	a, _ := json.Marshal(l) // strings, times and booleans only
	b, _ := json.Marshal(other)
	return string(a) == string(b)
}

// read returns the stored login, or the cached one if that could not be stored.
func (a *Account) read(ctx context.Context) (login, error) {
	if l, unsaved := a.unsaved(); unsaved {
		return l, nil
	}
	l, err := loadJSON[login](ctx, a.server.config.Store, a.key)
	config := &a.server.config
	otherClient := config.ClientID != "" && !isDocument(config.ClientID) && l.ClientID != config.ClientID
	otherIssuer := config.Issuer != "" && l.Issuer != config.Issuer
	if otherClient || otherIssuer { // the configuration has changed
		l = login{Demand: l.Demand}
	}
	return l, err
}

// load reads the login and caches it. The caller holds the lock.
func (a *Account) load(ctx context.Context) (login, error) {
	l, err := a.read(ctx)
	if err == nil {
		_, unsaved := a.unsaved()
		a.setCached(l, unsaved)
	}
	return l, err
}

// update changes the login with f while no other process can, and stores it, even if f fails. The
// caller holds the lock.
func (a *Account) update(ctx context.Context, f func(*login) error) (login, error) {
	store := a.server.config.Store
	if err := store.Lock(ctx, a.key); err != nil {
		return login{}, fmt.Errorf("lock login: %w", err)
	}
	defer func() { _ = store.Unlock(context.WithoutCancel(ctx), a.key) }()
	l, err := a.load(ctx)
	if err != nil {
		return login{}, err
	}
	before := l
	err = f(&l)
	if _, unsaved := a.unsaved(); !unsaved && l.equal(before) {
		return l, err
	}
	var failure error
	if l.equal(login{}) {
		failure = store.Delete(context.WithoutCancel(ctx), a.key)
	} else {
		failure = storeJSON(ctx, store, a.key, l)
	}
	a.setCached(l, failure != nil)
	return l, errors.Join(err, failure)
}

func (a *Account) setCached(l login, unsaved bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cached, a.notStored, a.cachedAt = l, unsaved, a.server.now()
}

func (a *Account) unsaved() (login, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.cached, a.notStored
}

// Shared returns a Store in the shared store of replicas, which encrypts values itself.
func Shared(space *replicas.Space) Store {
	return &shared{space: space, unlocks: map[string]func(){}}
}

type shared struct {
	space *replicas.Space

	mu      sync.Mutex
	unlocks map[string]func() // functions that unlock held locks, by name
}

func (s *shared) Load(ctx context.Context, key string) ([]byte, error) {
	value, _, err := s.space.Get(ctx, key, "")
	if err == nil && value == nil {
		err = fmt.Errorf("%s: %w", key, fs.ErrNotExist)
	}
	return value, err
}

const (
	// storeTime is how long Store retries while the shared store is unavailable. The lock is held
	// for longer. If a token is not stored, other replicas use the old one again.
	storeTime = 10 * time.Second
	// storePause is the pause between two attempts.
	storePause = 250 * time.Millisecond
)

func (s *shared) Store(ctx context.Context, key string, value []byte) error {
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	for {
		_, err := s.space.Change(ctx, key, "", func([]byte) ([]byte, error) { return value, nil })
		if !errors.Is(err, replicas.ErrUnavailable) || !backoff.Sleep(ctx, storePause) {
			return err
		}
	}
}

func (s *shared) Delete(ctx context.Context, key string) error {
	_, err := s.space.Delete(ctx, key, "")
	return err
}

func (s *shared) Lock(ctx context.Context, name string) error {
	unlock, err := s.space.Lock(ctx, name)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unlocks[name] = unlock
	return nil
}

func (s *shared) Unlock(_ context.Context, name string) error {
	s.mu.Lock()
	unlock := s.unlocks[name]
	delete(s.unlocks, name)
	s.mu.Unlock()
	if unlock != nil {
		unlock()
	}
	return nil
}
