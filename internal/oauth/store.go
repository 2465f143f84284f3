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
	"time"
)

// Store keeps values under keys, and locks them across processes. certmagic.Storage has
// these methods.
type Store interface {
	Load(ctx context.Context, key string) ([]byte, error) // fs.ErrNotExist if there is none
	Store(ctx context.Context, key string, value []byte) error
	Delete(ctx context.Context, key string) error
	Lock(ctx context.Context, name string) error
	Unlock(ctx context.Context, name string) error
}

// Encrypted returns a Store that encrypts values with AES-256-GCM. The encryption key is
// derived from key by HKDF. A value is bound to its storage key: it cannot be moved. One
// that cannot be decrypted does not exist, so that a login can take its place.
func Encrypted(s Store, key []byte) Store {
	derived, err := hkdf.Key(sha256.New, key, nil, "oauth store", 32)
	if err != nil {
		panic(err) // the length is right
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

// storeKey returns the key of a value. Parts are hashed: they may have any characters and
// any length.
func (s *Server) storeKey(kind string, parts ...string) string {
	hash := sha256.New()
	for _, part := range parts {
		fmt.Fprintf(hash, "%d %s", len(part), part)
	}
	return path.Join(s.config.Folder, kind, hex.EncodeToString(hash.Sum(nil)))
}

// loadJSON loads a value. The value is zero if there is none, or none that can be read.
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

// storeJSON stores a value, also if the caller of ctx has gone: a rotated refresh token
// that is not stored is a lost login.
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

// A login is what is stored of an account.
type login struct {
	Issuer      string   `json:"issuer,omitempty"`
	Resource    string   `json:"resource,omitempty"` // as it is sent to the issuer
	ClientID    string   `json:"client_id,omitempty"`
	RedirectURL string   `json:"redirect_url,omitempty"`
	Scopes      []string `json:"scopes,omitempty"` // that were asked for

	AccessToken  string    `json:"access_token,omitempty"`
	RefreshToken string    `json:"refresh_token,omitempty"`
	Obtained     time.Time `json:"obtained,omitzero"`
	Expires      time.Time `json:"expires,omitzero"`

	Accepted bool `json:"accepted,omitempty"` // the resource has accepted a token of this login
	Tried    bool `json:"tried,omitempty"`    // what can be done about a 401 for AccessToken has been done

	Demand demand `json:"demand,omitzero"`
}

// A demand is what the resource has said about how to log in to it.
type demand struct {
	Metadata string   `json:"metadata,omitempty"` // URL of the resource's metadata
	Scopes   []string `json:"scopes,omitempty"`   // for the next login
}

func (l login) equal(other login) bool {
	a, _ := json.Marshal(l) // strings, times and booleans only
	b, _ := json.Marshal(other)
	return string(a) == string(b)
}

// read returns the login as the Store has it, or as it could not be stored.
func (a *Account) read(ctx context.Context) (login, error) {
	if l, unsaved := a.unsaved(); unsaved {
		return l, nil
	}
	l, err := loadJSON[login](ctx, a.server.config.Store, a.key)
	config := &a.server.config
	otherClient := config.ClientID != "" && !isDocument(config.ClientID) && l.ClientID != config.ClientID
	otherIssuer := config.Issuer != "" && l.Issuer != config.Issuer
	if otherClient || otherIssuer { // than is configured now
		l = login{Demand: l.Demand}
	}
	return l, err
}

// load reads the login and remembers it. The caller has the turn.
func (a *Account) load(ctx context.Context) (login, error) {
	l, err := a.read(ctx)
	if err == nil {
		_, unsaved := a.unsaved()
		a.know(l, unsaved)
	}
	return l, err
}

// update changes the login by f, alone among all processes, and stores it, also if f
// fails. The caller has the turn.
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
	a.know(l, failure != nil)
	return l, errors.Join(err, failure)
}

func (a *Account) know(l login, unsaved bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.known, a.notStored, a.seen = l, unsaved, a.server.now()
}

func (a *Account) unsaved() (login, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.known, a.notStored
}
