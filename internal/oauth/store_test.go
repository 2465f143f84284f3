package oauth

import (
	"bytes"
	"errors"
	"io/fs"
	"strings"
	"testing"
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
