package oauth

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
)

// replica returns a Server of a replica.
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
		t.Errorf("nothing: %v", err)
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

// A login at one replica is one at all: begun here, finished there, and ended at once everywhere.
func TestLoginOfReplicas(t *testing.T) {
	w, engine := newWorld(t), replicastest.New()
	a, b, c := w.replica(engine).Account("ann"), w.replica(engine).Account("ann"), w.replica(engine).Account("ann")
	for _, account := range []*Account{a, b, c} { // nothing, for a moment
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
	c.DropCache() // replica b has changed the login
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

// While the store is unavailable, a token that is good goes on being used. Then calls fail, and say why.
func TestTokenWhileTheStoreIsUnavailable(t *testing.T) {
	w, engine := newWorld(t), replicastest.New()
	s := w.replica(engine)
	a := s.Account("")
	w.login(a)
	token := w.token(a)
	w.issuer.requests()
	engine.Down.Store(true)
	w.wait(time.Minute) // it is time to look for another login
	if got := w.token(a); got != token {
		t.Errorf("token %q, want %q", got, token)
	}
	if _, err := s.Account("ann").Token(t.Context()); !errors.Is(err, replicas.ErrUnavailable) {
		t.Errorf("of an account that is not known: %v", err)
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
