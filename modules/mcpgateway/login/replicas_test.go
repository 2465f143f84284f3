package login

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/oauth"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
)

// replicate makes three replicas serve the pages of a site in turn.
func (s *site) replicate(t *testing.T, engine replicas.Engine) (logins []*Login) {
	t.Helper()
	for range 3 {
		store := replicastest.Replica(t, engine)
		space := store.Space("logins")
		pages := *s.pages
		pages.ClaimState = func(ctx context.Context, state string, ttl time.Duration) (bool, error) {
			return space.Swap(ctx, state, "used", replicas.Version{}, []byte{}, ttl)
		}
		replica := NewPages(pages, []byte(testKey))
		l, err := replica.Add("files", &Config{Resource: s.URL + "/server", TrustedHosts: []string{"127.0.0.1"}},
			oauth.Shared(space), "files")
		if err != nil {
			t.Fatal(err)
		}
		s.replicas, logins = append(s.replicas, replica), append(logins, l)
	}
	s.login = logins[0]
	return logins
}

// Each request of a login may reach another replica.
func TestLoginAtThreeReplicas(t *testing.T) {
	s, engine := newSite(t, Config{}), replicastest.New()
	logins := s.replicate(t, engine)
	address, b := s.loginAddress(t, ""), newBrowser()
	var callback string
	b.CheckRedirect = func(r *http.Request, _ []*http.Request) error {
		if strings.HasSuffix(r.URL.Path, callbackPath) {
			callback = r.URL.String()
			return http.ErrUseLastResponse
		}
		return nil
	}
	status, page := b.open(t, get(address))
	if status != http.StatusOK {
		t.Fatalf("login page: %d %s", status, page)
	}
	if b.open(t, submit(address, page)); callback == "" {
		t.Fatal("the authorization server did not redirect the browser")
	}
	if status, page = b.open(t, get(callback)); status != http.StatusOK || !strings.Contains(page, "Logged in to files") {
		t.Fatalf("after the login: %d %s", status, page)
	}
	if n := s.requests.Load(); n != 3 {
		t.Errorf("%d requests to replicas, want 3", n)
	}
	for i, l := range logins {
		s.replicas[i].Reload("files", "")
		s.login = l
		if w, err := s.call(""); err != nil || w.Body.String() != "hello" {
			t.Errorf("replica %d: %v, %q", i, err, w.Body)
		}
	}
	usedStates = stateSet{} // as in another process
	if status, page = b.open(t, get(callback)); status != http.StatusBadRequest ||
		!strings.Contains(page, "already finished") {
		t.Errorf("a second callback at another replica: %d %s", status, page)
	}
	usedStates = stateSet{}
	engine.Down.Store(true)
	if status, page = b.open(t, get(callback)); status != http.StatusServiceUnavailable ||
		!strings.Contains(page, "shared store is unavailable") {
		t.Errorf("while the store is unavailable: %d %s", status, page)
	}
}

// A call that waits at one replica continues after a login at another replica.
func TestAwaitALoginAtAnotherReplica(t *testing.T) {
	s := newSite(t, Config{})
	logins := s.replicate(t, replicastest.New())
	address, b := s.loginAddress(t, ""), newBrowser()
	done := make(chan bool, 1)
	go func() { done <- logins[1].Await(t.Context(), "") }()
	_, page := b.open(t, get(address))
	if _, page = b.open(t, submit(address, page)); !strings.Contains(page, "Logged in to files") {
		t.Fatal(page)
	}
	var ok bool
	await.Until(t, "the call continues", func() bool {
		select {
		case ok = <-done:
			return true
		default:
			return false
		}
	})
	if !ok {
		t.Error("Await did not report the login")
	}
}
