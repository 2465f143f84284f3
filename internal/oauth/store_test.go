package oauth

import (
	"bytes"
	"errors"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
)

func TestEncrypted(t *testing.T) {
	inner := newMemory()
	s := Encrypted(inner, []byte("key"))
	if err := s.Store(t.Context(), "oauth/a", []byte("secret")); err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(inner.values["oauth/a"], []byte("secret")) {
		t.Error("stored in plain text")
	}
	if got, err := Encrypted(inner, []byte("key")).Load(t.Context(), "oauth/a"); err != nil || string(got) != "secret" {
		t.Errorf("%q, %v", got, err)
	}
	inner.values["oauth/b"] = inner.values["oauth/a"]
	damaged := bytes.Clone(inner.values["oauth/a"])
	damaged[len(damaged)-1] ^= 1
	inner.values["oauth/c"] = damaged
	for name, load := range map[string]func() ([]byte, error){
		"another key":     func() ([]byte, error) { return Encrypted(inner, []byte("other")).Load(t.Context(), "oauth/a") },
		"a moved value":   func() ([]byte, error) { return s.Load(t.Context(), "oauth/b") },
		"a damaged value": func() ([]byte, error) { return s.Load(t.Context(), "oauth/c") },
		"no value":        func() ([]byte, error) { return s.Load(t.Context(), "oauth/d") },
	} {
		if value, err := load(); !errors.Is(err, fs.ErrNotExist) || value != nil {
			t.Errorf("%s: %q, %v", name, value, err)
		}
	}
	if err := s.Lock(t.Context(), "oauth/a"); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Unlock(t.Context(), "oauth/a"), s.Delete(t.Context(), "oauth/a")); err != nil ||
		inner.values["oauth/a"] != nil {
		t.Errorf("not deleted: %v", err)
	}
}

// A new login replaces one that can no longer be decrypted.
func TestUnreadableLogin(t *testing.T) {
	w := newWorld(t)
	w.config.Store = Encrypted(w.store, []byte("key"))
	w.loggedIn()
	for key, value := range w.store.values {
		if strings.Contains(string(value), "access") || strings.ContainsAny(key, ":") {
			t.Errorf("%s: %q", key, value)
		}
	}
	w.config.Store = Encrypted(w.store, []byte("other"))
	a := w.server().Account("")
	if got := w.token(a); got != "" {
		t.Errorf("token %q", got)
	}
	w.login(a)
	for _, key := range w.store.keys("logins") {
		w.store.values[key] = []byte("{")
	}
	w.config.Store = w.store
	a = w.server().Account("")
	if got := w.token(a); got != "" {
		t.Errorf("token %q", got)
	}
	w.login(a)
	if got := w.token(a); got != w.current() {
		t.Errorf("token %q, want %q", got, w.current())
	}
}

// Keys differ even if their parts are equal when joined.
func TestStoreKeys(t *testing.T) {
	s := New(Config{Resource: mustParse("https://a")})
	if s.storeKey("a", "b", "c") == s.storeKey("a", "bc", "") ||
		s.storeKey("a", "1", "2 34") == s.storeKey("a", "1", "2",
			"34") {
		t.Error("equal keys")
	}
}

// replica returns a Server that shares its logins with other replicas.
func (w *world) replica(engine replicas.Engine) *Server {
	w.config.Store = Shared(replicastest.Replica(w.t, engine).Space("logins"))
	return w.server()
}

func TestShared(t *testing.T) {
	engine := replicastest.New()
	a, b := Shared(
		replicastest.Replica(t, engine).Space("logins"),
	),
		Shared(
			replicastest.Replica(t, engine).Space("logins"),
		)
	if _, err := a.Load(t.Context(), "oauth/a"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("empty store: %v", err)
	}
	for _, value := range []string{"secret", "another secret"} {
		if err := a.Store(t.Context(), "oauth/a", []byte(value)); err != nil {
			t.Fatal(err)
		}
		if got, err := b.Load(t.Context(), "oauth/a"); string(got) != value || err != nil {
			t.Errorf("%q, %v", got, err)
		}
	}
	for key, value := range engine.Values() {
		if strings.Contains(key+string(value), "oauth") || strings.Contains(string(value), "secret") {
			t.Errorf("the engine can read %q: %q", key, value)
		}
	}
	if err := b.Delete(t.Context(), "oauth/a"); err != nil {
		t.Error(err)
	}
	if _, err := a.Load(t.Context(), "oauth/a"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("deleted: %v", err)
	}
	engine.Down.Store(true)
	if _, err := a.Load(t.Context(), "oauth/a"); !errors.Is(err, replicas.ErrUnavailable) {
		t.Errorf("unavailable: %v", err)
	}
}

// A login at one replica counts at all. It starts here, is completed at another replica, and ends
// everywhere at once.
func TestLoginIsSharedByReplicas(t *testing.T) {
	w, engine := newWorld(t), replicastest.New()
	a, b, c := w.replica(engine).Account("ann"), w.replica(engine).Account("ann"), w.replica(engine).Account("ann")
	for _, account := range []*Account{a, b, c} { // caches the missing login
		if got := w.token(account); got != "" {
			t.Fatalf("token %q", got)
		}
	}
	address, err := w.begin(a)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Finish(t.Context(), w.pending, w.issuer.authorize(t, address)); err != nil {
		t.Fatal(err)
	}
	c.DropCache() // as after a change by replica b
	if got := w.token(c); got != w.current() || got == "" {
		t.Errorf("token %q, want %q", got, w.current())
	}
	if err := c.Logout(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.DropCache()
	if got := w.token(b); got != "" {
		t.Errorf("after the logout: token %q", got)
	}
}

// While the store is unavailable, a valid token is still used. After that, calls fail with the
// reason.
func TestTokenWhileTheStoreIsUnavailable(t *testing.T) {
	w, engine := newWorld(t), replicastest.New()
	s := w.replica(engine)
	a := s.Account("")
	w.login(a)
	token := w.token(a)
	w.issuer.requests()
	engine.Down.Store(true)
	w.wait(time.Minute) // the cached login is checked again
	if got := w.token(a); got != token {
		t.Errorf("token %q, want %q", got, token)
	}
	if _, err := s.Account("ann").Token(t.Context()); !errors.Is(err, replicas.ErrUnavailable) {
		t.Errorf("unknown account: %v", err)
	}
	w.wait(2 * time.Hour)
	_, err := a.Token(t.Context())
	wantError(t, err, "the shared store is unavailable")
	if n := len(w.issuer.requests()); n != 0 {
		t.Errorf("%d refreshes without a lock", n)
	}
	engine.Down.Store(false)
	await.Until(t, "another token", func() bool {
		w.wait(retryTime)
		got, err := a.Token(t.Context())
		return err == nil && got == w.current() && got != token
	})
}
