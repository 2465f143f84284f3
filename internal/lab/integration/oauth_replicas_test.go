package integration

import (
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
)

// startReplica starts a gateway with its own home directory that shares a Redis with others.
func startReplica(t *testing.T, redis *replicastest.Redis, lines ...string) *oauthGateway {
	t.Helper()
	g := newGateway(t, t.TempDir())
	g.options = []string{block("mcp_store redis redis://"+redis.Addr, sessionKey, "timeout 2s")}
	g.start(t, append(lines, "name replicas")...)
	return g
}

// A roundRobin is a round-robin proxy: each page of a login comes from another gateway than the
// page before.
type roundRobin struct {
	url string

	mu      sync.Mutex
	targets []*url.URL
	count   atomic.Int64
}

func newRoundRobin(t *testing.T) *roundRobin {
	t.Helper()
	s := &roundRobin{}
	server := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		s.mu.Lock()
		defer s.mu.Unlock()
		r.SetURL(s.targets[int(s.count.Add(1))%len(s.targets)])
		r.SetXForwarded()
		r.Out.Host = r.In.Host
	}})
	t.Cleanup(server.Close)
	s.url = strings.Replace(server.URL, "127.0.0.1", "localhost", 1)
	return s
}

func (s *roundRobin) add(t *testing.T, g *oauthGateway) {
	t.Helper()
	u, err := url.Parse(g.url)
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.targets = append(s.targets, u)
}

// A login whose pages come from three replicas is valid on all of them. They refresh its tokens one
// after the other.
func TestOAuthAcrossReplicas(t *testing.T) {
	isolate(t)
	redis := replicastest.StartRedis(t)
	a := startAuthServer(t, fleeting)
	front := newRoundRobin(t)
	var all []*oauthGateway
	for range 3 {
		g := startReplica(t, redis, "public_url "+front.url, a.line("oauth"))
		front.add(t, g)
		all = append(all, g)
	}
	address := expectLoginRequest(t, all[0].join(t), "whoami")
	expectLoggedIn(t, newFormBrowser(t).logIn(t, address, "alice"))
	if n := front.count.Load(); n < int64(len(all)) {
		t.Errorf("%d requests reached the gateways, want at least one each", n)
	}
	var running sync.WaitGroup
	for _, g := range all {
		c := g.join(t)
		awaitTools(t, c, accountTools("alice")...)
		running.Go(func() { callSteadily(t, c, 100, 12) })
	}
	running.Wait()
	expectRefreshes(t, a)
	if got := a.stats(t); got.Registrations != 1 {
		t.Errorf("%d registrations", got.Registrations)
	}

	// A logout on one replica takes effect on all.
	if out, err := all[1].command(t, "logout").CombinedOutput(); err != nil {
		t.Errorf("caddy mcp logout: %v: %s", err, out)
	}
	for _, g := range all {
		await.Until(t, "the login to be gone", func() bool { return g.status(t).Login.State != "logged_in" })
	}
}

// Tool descriptions approved on one replica are approved on all, also on a replica that starts
// later.
func TestPinsAcrossReplicas(t *testing.T) {
	isolate(t)
	redis := replicastest.StartRedis(t)
	far := newRemoteServer(t, "steady", "fickle")
	lines := []string{"pin_tools on", far.line("far")}
	first, second := startReplica(t, redis, lines...), startReplica(t, redis, lines...)
	whole, less := []string{"far__steady", "far__fickle"}, []string{"far__steady"}
	sees := func(g *oauthGateway, want []string) {
		t.Helper()
		c := newTestClient(t, joinedAt(g.url), false, `{}`)
		await.Until(t, strings.Join(want, " "), func() bool { return slices.Equal(toolNames(t, c), want) })
		if slices.Equal(want, less) {
			c.refuses(t, "tools/call", callOf("far", "fickle", `{}`), 403, "tool_changed")
		}
	}
	admin := func(g *oauthGateway, action string) {
		t.Helper()
		if got := askAdmin(t, g.admin, "POST", "/mcp_gateway/servers/far/"+action, ""); got.StatusCode != 200 {
			t.Errorf("%s: %d %s", action, got.StatusCode, got.body)
		}
	}
	change := func(description string) {
		far.Change(func(s *mcptest.Script) {
			s.Tools[1] = `{"name":"fickle","description":"` + description + `","inputSchema":{"type":"object"}}`
		})
	}
	sees(first, whole)
	sees(second, whole)
	change("It does more.")
	admin(first, "refresh")
	sees(first, less)
	sees(second, less)
	admin(second, "accept")
	sees(second, whole)
	sees(first, whole)
	change("It does still more.")
	third := startReplica(t, redis, lines...)
	sees(third, less)
	admin(third, "accept")
	for _, g := range []*oauthGateway{first, second, third} {
		admin(g, "refresh")
		sees(g, whole)
	}
}
