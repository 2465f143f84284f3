package gateway

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// initialized returns the number of sessions begun with the server.
func (p *fakeServer) initialized() int { return p.count("initialize") }

// Clients of an audience share the information of servers. A client gets its own session with a
// server when it needs one (A3, A4).
func TestSessionsBeginWhenTheyAreNeeded(t *testing.T) {
	a, b := legacyPeer("a").hasTools("x"), legacyPeer("b").hasTools("y")
	a.instructions, b.instructions = "use a", "use b"
	g := newGateway(t, nil, a, b)
	first := g.legacy(t)
	want := []string{"a::x", "b::y"}
	if got := namesIn(t, first.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, want) {
		t.Fatalf("first client: got %v", got)
	}
	second := g.legacy(t)
	if string(second.hello.Result) != string(first.hello.Result) {
		t.Errorf("got %s, want %s as the first client", second.hello.Result, first.hello.Result)
	}
	if got := namesIn(t, second.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
	second.ask("logging/setLevel", `{"level":"error"}`)
	second.notify("notifications/roots/list_changed", "")
	for _, p := range []*fakeServer{a, b} {
		if p.initialized() != 1 || p.count("tools/list") != 1 || p.count("logging/setLevel") != 0 ||
			p.count("notifications/roots/list_changed") != 0 {
			t.Errorf("%s: the second client has a session: %d, %d lists", p.name, p.initialized(), p.count("tools/list"))
		}
	}
	second.call("a::x")
	second.call("a::x")
	if a.initialized() != 2 || a.count("notifications/initialized") != 2 || b.initialized() != 1 {
		t.Errorf("after calls: %d and %d sessions, %d initialized", a.initialized(), b.initialized(),
			a.count("notifications/initialized"))
	}
	if a.waitFor(t, "logging/setLevel", 1).session != "a-session-2" {
		t.Error("the log level did not reach the new session")
	}
	second.notify("x/anything", "")
	b.waitFor(t, "x/anything", 1)
	if b.initialized() != 2 {
		t.Errorf("got %d sessions with b", b.initialized())
	}
}

// Of concurrent clients, one connects to the servers.
func TestOneClientConnectsForAll(t *testing.T) {
	const clients = 8
	p := legacyPeer("a")
	p.handle("initialize", func(w http.ResponseWriter, a *incoming) {
		time.Sleep(20 * time.Millisecond) // lets the others arrive
		p.initialize(w, a)
	})
	p.handle("tools/list", func(w http.ResponseWriter, a *incoming) {
		time.Sleep(20 * time.Millisecond)
		a.reply(w, `{"tools":[{"name":"x"}]}`)
	})
	g := newGateway(t, nil, p)
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			if got := namesIn(t, g.legacy(t).ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::x"}) {
				t.Errorf("got %v", got)
			}
		})
	}
	all.Wait()
	if p.initialized() > 2 || p.count("tools/list") != 1 { // another client may request the list
		t.Errorf("%d sessions, %d lists", p.initialized(), p.count("tools/list"))
	}
}

// If the client that connects disconnects, another one connects.
func TestConnectingClientDisconnects(t *testing.T) {
	p := legacyPeer("a").hasTools("x")
	blocked := make(chan struct{})
	p.handle("initialize", func(w http.ResponseWriter, a *incoming) {
		if p.initialized() == 1 {
			close(blocked)
			<-a.Context().Done()
			return
		}
		p.initialize(w, a)
	})
	g := newGateway(t, nil, p)
	u := g.user(t, mcp.Legacy)
	leaving := u.start(http.MethodPost, u.request("1", "initialize",
		`{"protocolVersion":"`+u.version+`","capabilities":`+u.capabilities+`,"clientInfo":`+u.info+`}`))
	<-blocked
	done := make(chan *testClient)
	go func() { done <- g.legacy(t) }()
	leaving.disconnect()
	if got := namesIn(t, (<-done).ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::x"}) {
		t.Errorf("got %v", got)
	}
}

// Clients that a server can tell apart get separate answers.
func TestAudiences(t *testing.T) {
	p := legacyPeer("a")
	p.handle("initialize", func(w http.ResponseWriter, a *incoming) {
		p.capabilities = `{"tools":{}}`
		if strings.Contains(a.body, "elicitation") {
			p.capabilities = `{"tools":{},"prompts":{}}`
		}
		p.initialize(w, a)
	})
	g := newGateway(t, nil, p)
	begin := func(change func(*testClient)) string {
		u := g.user(t, mcp.Legacy)
		change(u)
		var result struct{ Capabilities map[string]json.RawMessage }
		_ = json.Unmarshal(u.connect().hello.Result, &result)
		if result.Capabilities["prompts"] != nil {
			return "prompts"
		}
		return ""
	}
	for i, tt := range []struct {
		name     string
		change   func(*testClient)
		want     string
		sessions int
	}{
		{"first client", func(*testClient) {}, "prompts", 1},
		{"same client", func(*testClient) {}, "prompts", 1},
		{"with fewer capabilities", func(u *testClient) { u.capabilities = "{}" }, "", 2},
		{"another identity", func(u *testClient) { u.identity = "ann" }, "prompts", 3},
		{"another account", func(u *testClient) { u.header.Set("X-Api-Key", "1") }, "prompts", 4},
		{"another certificate", func(u *testClient) { u.header.Set("X-Ssl-Client-S-Dn", "CN=ann") }, "prompts", 5},
		{"another group", func(u *testClient) { u.header.Set("Remote-Groups", "admins") }, "prompts", 6},
		{"other tools", func(u *testClient) { u.header.Set("X-Mcp-Toolsets", "all") }, "prompts", 7},
		{"another program", func(u *testClient) { u.info = `{"name":"other","version":"1"}` }, "prompts", 8},
		{"another version", func(u *testClient) { u.version = "2025-03-26" }, "prompts", 9},
		{"a request with another id", func(u *testClient) { u.header.Set("X-Request-Id", "1") }, "prompts", 9},
	} {
		if got := begin(tt.change); got != tt.want || p.initialized() != tt.sessions {
			t.Errorf("%d %s: got %q, %d sessions, want %d", i, tt.name, got, p.initialized(), tt.sessions)
		}
	}
}

// A client that sends other credentials than at the start of its session leaves its audience: its
// lists are not shared, in either direction.
func TestLateCredentials(t *testing.T) {
	p := legacyPeer("a")
	p.handle("tools/list", func(w http.ResponseWriter, a *incoming) {
		more := ""
		if a.Header.Get("Authorization") != "" {
			more = `,{"name":"secret"}`
		}
		a.reply(w, `{"tools":[{"name":"x"}`+more+`]}`)
	})
	g := newGateway(t, nil, p)
	list := func(u *testClient) []string { return namesIn(t, u.ask("tools/list", ""), "tools", "name") }
	all, some := []string{"a::x", "a::secret"}, []string{"a::x"}
	first := g.legacy(t)
	first.header.Set("Authorization", "Bearer s3cret")
	if got := list(first); !slices.Equal(got, all) {
		t.Errorf("with credentials: got %v", got)
	}
	if got := list(g.legacy(t)); !slices.Equal(got, some) {
		t.Errorf("without credentials: got %v", got)
	}
	known := func() *testClient {
		u := g.user(t, mcp.Legacy)
		u.header.Set("Authorization", "Bearer s3cret")
		return u.connect()
	}
	forgetful := known()
	forgetful.header.Del("Authorization")
	if got := list(forgetful); !slices.Equal(got, some) {
		t.Errorf("without its credentials: got %v", got)
	}
	if got := list(known()); !slices.Equal(got, all) {
		t.Errorf("with credentials from the beginning: got %v", got)
	}
	late := g.legacy(t)
	late.header.Set("Authorization", "Bearer s3cret")
	if got := list(late); !slices.Equal(got, all) {
		t.Errorf("with credentials after the list was cached: got %v", got)
	}
}

// In a used session, a server may list other tools.
func TestListsOfUsedSessions(t *testing.T) {
	p := legacyPeer("a")
	var mu sync.Mutex
	enabled := map[string]bool{} // by session
	p.handle("tools/call", func(w http.ResponseWriter, a *incoming) {
		mu.Lock()
		enabled[a.session] = true
		mu.Unlock()
		a.reply(w, `{"content":[]}`)
	})
	p.handle("tools/list", func(w http.ResponseWriter, a *incoming) {
		mu.Lock()
		defer mu.Unlock()
		more := ""
		if enabled[a.session] {
			more = `,{"name":"more"}`
		}
		a.reply(w, `{"tools":[{"name":"enable"}`+more+`]}`)
	})
	p.capabilities = `{"tools":{}}` // without list changes
	g := newGateway(t, nil, p)
	first, second := g.legacy(t), g.legacy(t)
	count := func(u *testClient) int { return len(namesIn(t, u.ask("tools/list", ""), "tools", "name")) }
	if count(first) != 1 || count(second) != 1 || p.count("tools/list") != 1 {
		t.Errorf("%d lists", p.count("tools/list"))
	}
	second.call("a::enable")
	if n := count(second); n != 2 {
		t.Errorf("the client that enabled tools sees %d", n)
	}
	if n := count(first); n != 1 {
		t.Errorf("another client sees %d", n)
	}
	if n := count(g.legacy(t)); n != 1 {
		t.Errorf("a new client sees %d", n)
	}
}

// Fake time: the info of a server expires. It also becomes invalid when the server fails or
// changes.
func TestServerInfoExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := legacyPeer("a").hasTools("x")
		g := newInMemory(t, nil, p)
		defer g.close()
		first := g.legacy(t)
		first.ask("tools/list", "")
		newcomer := func() []string { return namesIn(t, g.legacy(t).ask("tools/list", ""), "tools", "name") }
		asked := func(sessions, lists int) {
			t.Helper()
			if p.initialized() != sessions || p.count("tools/list") != lists {
				t.Errorf("%d sessions and %d lists, want %d and %d", p.initialized(), p.count("tools/list"), sessions, lists)
			}
		}
		newcomer()
		asked(1, 1)
		time.Sleep(time.Second)
		first.ask("tools/list", "") // so that it is notified of changes
		asked(1, 2)
		time.Sleep(catalog.UnchangedTime)
		newcomer()
		asked(2, 3)
		p.hasTools("y")
		p.forget() // like a restart
		if got := newcomer(); !slices.Equal(got, []string{"a::x"}) {
			t.Errorf("before the gateway notices: %v", got)
		}
		first.call("a::x")
		if got := newcomer(); !slices.Equal(got, []string{"a::y"}) {
			t.Errorf("after the gateway noticed: %v", got)
		}
		p.down.Store(true)
		first.call("a::x")
		time.Sleep(catalog.UnchangedTime)
		if got := newcomer(); len(got) != 0 {
			t.Errorf("server down: %v", got)
		}
		p.down.Store(false)
		time.Sleep(time.Minute)
		if got := newcomer(); !slices.Equal(got, []string{"a::y"}) {
			t.Errorf("server back: %v", got)
		}
	})
}

// The session id must carry sessions that another process may continue, so these begin at once.
func TestSessionsInSessionIDs(t *testing.T) {
	with, without, child := legacyPeer("a"), legacyPeer("b"), legacyPeer("c")
	without.sessions = false
	resumable := func(c *Config) { c.Resumable, c.Servers[2].ChildrenOnly = true, true }
	g := newGateway(t, resumable, with, without, child)
	g.legacy(t)
	second := g.legacy(t)
	if with.initialized() != 2 || without.initialized() != 1 || child.initialized() != 1 {
		t.Errorf("got %d, %d and %d sessions", with.initialized(), without.initialized(), child.initialized())
	}
	elsewhere := second.atGateway(newGateway(t, resumable, with, without, child))
	elsewhere.call("a::x")
	if got := with.waitFor(t, "tools/call", 1); got.session != "a-session-2" {
		t.Errorf("another process called in %s", got.session)
	}
	for _, name := range []string{"b::x", "c::x"} {
		if s := elsewhere.call(name); s.Error != nil {
			t.Errorf("%s: %s", name, s.body)
		}
	}
}

// Fake time: a session with a server that the session id does not carry stays as long as the client
// may return.
func TestSessionsOutsideOfSessionIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := legacyPeer("a")
		g := newInMemory(t, nil, p)
		defer g.close()
		g.legacy(t)
		u := g.legacy(t)
		u.call("a::x")
		time.Sleep(2 * idleTime)
		u.call("a::x")
		if got := p.requests("tools/call"); got[0].session != got[1].session {
			t.Errorf("called in %s, then in %s", got[0].session, got[1].session)
		}
	})
}

// A refresh by an operator also applies to clients without a session.
func TestRefreshOfAudiences(t *testing.T) {
	p := legacyPeer("a").hasTools("x")
	g := newGateway(t, nil, p)
	g.legacy(t).ask("tools/list", "")
	p.hasTools("y")
	g.Refresh("a")
	if got := namesIn(t, g.legacy(t).ask("tools/list", ""), "tools", "name"); !slices.Equal(got, []string{"a::y"}) {
		t.Errorf("got %v", got)
	}
	await.Until(t, "the audience is remembered", func() bool { return audiencesQuota.Usage().Entries > 0 })
}

// A modern client is identified by certain headers, in any spelling.
func TestIdentifyingNames(t *testing.T) {
	header := http.Header{}
	for _, name := range []string{
		// identifying
		"X-Tenant-Id", "Authorization", "Cookie", "X-API-KEY", "x_user_id", "My-Org", "X-Jwt", "Client-Cert",
		"X-Ssl-Client-S-Dn", "X-Forwarded-Groups", "X-MCP-Readonly",
		// not identifying
		"Accept", "Content-Length", "User-Agent", "Idempotency-Key", "MCP-SESSION-ID", "Sec-Ch-Ua-Token", "X-Request-Id",
		"Use-R", "_", "A",
	} {
		header[name] = []string{"value"}
	}
	want := []string{"Authorization", "Client-Cert", "Cookie", "My-Org", "X-API-KEY", "X-Forwarded-Groups", "X-Jwt",
		"X-MCP-Readonly", "X-Ssl-Client-S-Dn",
		"X-Tenant-Id", "x_user_id"}
	if got := upstream.HeaderNames(nil, header, upstream.IsIdentifying); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A server may choose its tools by any header that does not differ in each request.
func TestHeadersThatMayChooseTools(t *testing.T) {
	header := http.Header{}
	for _, name := range []string{
		"Authorization", "X-Plan", "User-Agent", "Accept-Language", "X-Forwarded-For",
		"Accept", "Content-Type", "Content-Length", "Mcp-Session-Id", "Mcp-Protocol-Version", "Last-Event-Id",
		"Sec-Fetch-Mode",
		"Traceparent", "X-Request-Id", "X-B3-Spanid",
	} {
		header.Set(name, "value")
	}
	want := []string{"Accept-Language", "Authorization", "User-Agent", "X-Forwarded-For", "X-Plan"}
	if got := upstream.HeaderNames(nil, header, upstream.MayVaryLists); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The fingerprint depends on the headers, but not on their order.
func TestFingerprint(t *testing.T) {
	fingerprintOf := func(identity, address string, header http.Header) uint64 {
		q := &inbound.Request{HTTP: &http.Request{Header: header}, Caller: access.Caller{Identity: identity},
			Peer: inbound.Peer{Address: address}}
		return fingerprintOf(q)
	}
	began := fingerprintOf("ann", "192.0.2.1", http.Header{"X-A": {"1", "2"}, "X-B": {"3"}})
	for name, test := range map[string]struct {
		identity, address string
		header            http.Header
		same              bool
	}{
		"no change":       {"ann", "192.0.2.1", http.Header{"X-B": {"3"}, "X-A": {"1", "2"}}, true},
		"another address": {"ann", "192.0.2.2", http.Header{"X-A": {"1", "2"}, "X-B": {"3"}}, true},
		"a header of one request": {"ann", "192.0.2.1", http.Header{"X-A": {"1", "2"}, "X-B": {"3"}, "Accept": {"*/*"}},
			true},
		"unidentified":                {"", "192.0.2.1", http.Header{"X-A": {"1", "2"}, "X-B": {"3"}}, false},
		"an added header":             {"ann", "192.0.2.1", http.Header{"X-A": {"1", "2"}, "X-B": {"3"}, "X-C": {""}}, false},
		"a missing header":            {"ann", "192.0.2.1", http.Header{"X-A": {"1", "2"}}, false},
		"another value":               {"ann", "192.0.2.1", http.Header{"X-A": {"1", "2"}, "X-B": {"4"}}, false},
		"values in another order":     {"ann", "192.0.2.1", http.Header{"X-A": {"2", "1"}, "X-B": {"3"}}, false},
		"values of different headers": {"ann", "192.0.2.1", http.Header{"X-A": {"3", "2"}, "X-B": {"1"}}, false},
	} {
		if got := fingerprintOf(test.identity, test.address, test.header); (got == began) != test.same {
			t.Errorf("%s: same = %v, want %v", name, got == began, test.same)
		}
	}
	if fingerprintOf("", "192.0.2.1", nil) == fingerprintOf("", "192.0.2.2", nil) {
		t.Error("unidentified clients of two addresses have the same fingerprint")
	}
}
