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
