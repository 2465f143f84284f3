package stdio

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

func TestCanonicalCapabilities(t *testing.T) {
	for in, want := range map[string]string{
		``:     `{}`,
		`null`: `{}`,
		`5`:    `{}`,
		`{}`:   `{}`,
		"{ \"sampling\" : {\"tools\":{},\"context\":{}},\n\"elicitation\":{} }": `{"elicitation":{},` +
			`"sampling":{"context":{},"tools":{}}}`,
		`{"roots":{"listChanged":true}}`:           `{}`,
		`{"experimental":{"x":[1.50,"<é>",null]}}`: `{"experimental":{"x":[1.50,"<é>",null]}}`,
	} {
		equal(t, in, canonicalCapabilities([]byte(in), false), want)
	}
	equal(t, "with roots", canonicalCapabilities([]byte(`{"sampling":{},"roots":{}}`), true), `{"roots":{},"sampling":{}}`)
}

// declaredCapabilities returns the capabilities that children received in initialize, by PID.
func (p *testPool) declaredCapabilities() map[int]string {
	p.t.Helper()
	told := map[int]string{}
	for _, e := range p.read() {
		var m jsonrpc.Message
		if e.Message != nil && m.Read(e.Message) == nil && m.Is(jsonrpc.Method, "initialize") {
			told[e.PID] = string(m.Literal(jsonrpc.Capabilities))
		}
	}
	return told
}

func TestClientsWithEqualCapabilitiesShareAChild(t *testing.T) {
	for _, tt := range []struct {
		isolation     Isolation
		roots         []string
		sole          bool
		none, all     string // capabilities that the children receive from clients without and with capabilities
		children      int    // total number
		rootsAreOther bool   // clients with roots do not share a child with those without
	}{
		{Shared, nil, false, `{}`, `{"elicitation":{},"sampling":{}}`, 2, false},
		{Shared, []string{"file:///r"}, false, `{"roots":{}}`, `{"roots":{},"elicitation":{},"sampling":{}}`, 2, false},
		{Shared, nil, true, `{}`, `{"elicitation":{},"sampling":{}}`, 3, true},
		{SingleChild, nil, false, allCapabilities, allCapabilities, 1, false},
		{SingleChild, nil, true, `{"elicitation":{"form":{},"url":{}},"roots":{},"sampling":{}}`,
			`{"elicitation":{"form":{},"url":{}},"roots":{},"sampling":{}}`, 1, false},
	} {
		p := newPool(t, "", func(c *Config) { c.Isolation, c.Roots, c.SoleClient = tt.isolation, tt.roots, tt.sole })
		none, all := p.client().initialize(`{}`).pid(), p.client().initialize(`{"sampling":{},"elicitation":{}}`).pid()
		equal(t, "another order of members", p.client().initialize(`{ "elicitation": {}, "sampling": {} }`).pid(), all)
		equal(t, "no capabilities, again", p.client().initialize(`{}`).pid(), none)
		equal(
			t,
			"client with roots shares the child",
			p.client().initialize(`{"roots":{"listChanged":true}}`).pid() == none,
			!tt.rootsAreOther,
		)
		equal(t, "without a session", p.client().pid(), none)
		equal(t, "declared for clients without capabilities", p.declaredCapabilities()[none], tt.none)
		equal(t, "declared for clients with capabilities", p.declaredCapabilities()[all], tt.all)
		equal(t, "started", len(p.started), tt.children)
		equal(t, "status", len(p.Status("alpha:1")), tt.children)
	}
}

func TestModernClientsOfALegacyServer(t *testing.T) {
	p := newPool(t, "")
	pid := func(capabilities string) string {
		meta := `"_meta":` + string(mcp.RequestMeta([]byte(clientInfo), []byte(capabilities), ""))
		return p.client().
			post(request(`1`, "tools/call", `{"name":"pid","arguments":{},`+meta+`}`), "MCP-Protocol-Version",
				mcp.Stateless, "Mcp-Method", "tools/call", "Mcp-Name", "pid").
			text()
	}
	some := pid(`{"sampling":{}}`)
	equal(t, "same capabilities, again", pid(`{ "sampling":{} }`), some)
	equal(t, "a legacy client", fmt.Sprint(p.client().initialize(`{"sampling":{}}`).pid()), some)
	if none := pid(`{}`); none == some {
		t.Errorf("clients with and without capabilities share child %s", none)
	}
	equal(t, "started", len(p.started), 2)
}

// A running child serves requests without a session, whatever capabilities it has.
func TestRequestsWithoutASessionStartNoOtherChild(t *testing.T) {
	p := newPool(t, "")
	pid := p.client().initialize(`{"sampling":{}}`).pid()
	equal(t, "without a session", p.client().pid(), pid)
	if err := p.Check(t.Context(), "alpha:1"); err != nil {
		t.Error(err)
	}
	if err := p.Restart(t.Context(), "alpha:1"); err != nil {
		t.Error(err)
	}
	if again := p.client().pid(); again == pid {
		t.Error("the child was not restarted")
	}
	equal(t, "started", len(p.started), 2)
	equal(t, "status", p.Status("alpha:1")[0].Capabilities, `{"sampling":{}}`)
}

// A client does not receive messages of other clients' children.
func TestClientsReceiveMessagesOfTheirOwnChild(t *testing.T) {
	changed := notification("notifications/tools/list_changed", `{}`) + "\n"
	log := notification("notifications/message", `{"level":"info","data":"mine"}`) + "\n"
	p := newPuppets(t)
	a, b := p.client().initialize(`{}`), p.client().initialize(`{"sampling":{}}`)
	first, second := a.listen(), b.listen()
	defer first.Body.Close()
	defer second.Body.Close()
	writeBetweenCalls(a, changed)
	writeBetweenCalls(b, log+changed) // b is the only client of its child
	contains(t, "a", first.next(), "list_changed")
	contains(t, "b", second.next(), "mine")

	// Server requests and cancellations of two children do not mix either.
	hanging := make(chan string)
	go func() { hanging <- a.post(say(`7`, "\n")).whole() }()
	p.eventually("the child receives the call", func() bool {
		return strings.Count(p.client().post(request(`1`, "heard", `{}`)).whole(), `\"say\"`) == 2
	})
	r := b.post(say(`7`, `{"id":"q","method":"sampling/createMessage"}`+"\n"))
	contains(t, "server request during a call of another client", r.next(), "sampling/createMessage")
	r.Body.Close()
	a.post(notification("notifications/cancelled", `{"requestId":7}`))
	equal(t, "canceled", <-hanging, "")
}

func TestSubscriptionsOfOtherChildrenStay(t *testing.T) {
	p := newPool(t, "")
	a, b := p.client().initialize(`{}`), p.client().initialize(`{"sampling":{}}`)
	for _, c := range []*client{a, b} {
		c.post(request(`1`, "resources/subscribe", `{"uri":"x:1"}`)).whole()
	}
	if _, err := a.do(http.MethodDelete, ""); err != nil {
		t.Fatal(err)
	}
	p.eventually("one subscription has ended", func() bool { return len(p.received("resources/unsubscribe")) == 1 })
	stream := b.listen()
	defer stream.Body.Close()
	b.call("touch", `{"uri":"x:1"}`)
	contains(t, "message to the other client", stream.next(), "resources/updated")
}

// The number of children per client and in total is limited. Beyond it, a client gets the running
// child whose capabilities fit best.
func TestChildrenPerCapabilitiesAreLimited(t *testing.T) {
	p := newPool(t, "")
	begin := func(owner, capabilities string) (pid int) {
		c := p.client()
		return c.with(WithOwner(c.ctx, owner)).initialize(capabilities).pid()
	}
	sampling := begin("one", `{"sampling":{}}`)
	for i := range 20 {
		begin("one", fmt.Sprintf(`{"experimental":{"n":%d}}`, i))
	}
	equal(t, "started for one client", len(p.started), maxOwnerGroups+1)
	equal(t, "best fit", begin("one", `{"sampling":{},"elicitation":{"form":{}}}`), sampling)
	none := begin("one", `{"elicitation":{}}`)
	equal(t, "without common capabilities", p.declaredCapabilities()[none], `{}`)
	both := begin("two", `{"sampling":{},"elicitation":{}}`)
	for i := range 40 {
		begin(fmt.Sprint("of many", i), fmt.Sprintf(`{"experimental":{"n":%d}}`, i))
	}
	equal(t, "started in total", len(p.started), maxGroups+1)
	equal(t, "best fit of several", begin("three", `{"sampling":{},"elicitation":{},"tasks":{}}`), both)
	equal(t, "same capabilities", begin("three", `{"sampling":{}}`), sampling)
	p.until(
		"a warning is logged",
		func() bool {
			return p.logs.FilterMessageSnippet("too many different client capabilities").Len() > 0
		},
	)
}

// A new group replaces one that was unused for a while. Unused groups end later.
func TestGroupsThatAreNotUsedEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(Config{SessionTTL: time.Hour, MaxSessions: 100, Isolation: Shared, Logger: zap.NewNop}, nil)
		defer p.Close()
		begin := func(capabilities string) *session {
			s := p.sessions.open(message(t, request(`1`, "initialize", `{"capabilities":`+capabilities+`}`)), "alpha:1", "one")
			if _, err := p.server(address{"alpha:1", mcp.Legacy, s.group}); err != nil {
				t.Fatal(err)
			}
			return s
		}
		groups := func() string {
			p.mu.Lock()
			defer p.mu.Unlock()
			equal(t, "servers", len(p.servers), len(p.groups.byKey))
			return fmt.Sprint(len(p.groups.byKey))
		}
		var sessions []*session
		for i := range maxOwnerGroups {
			sessions = append(sessions, begin(fmt.Sprintf(`{"x":{"n":%d}}`, i)))
		}
		sessions[1].end()
		equal(t, "with no group unused for long enough", begin(`{"y":{}}`).group.capabilities, noCapabilities)
		time.Sleep(abandonedTime)
		equal(t, "replaces an unused group", begin(`{"y":{}}`).group.capabilities, `{"y":{}}`)
		equal(t, "groups", groups(), fmt.Sprint(maxOwnerGroups+1))
		equal(t, "with all groups in use", begin(`{"z":{}}`).group.capabilities, noCapabilities)
		sessions[0].end()
		time.Sleep(2 * time.Hour)
		equal(t, "groups with sessions", groups(), fmt.Sprint(maxOwnerGroups))
		for _, s := range p.sessions.byID {
			s.end()
		}
		time.Sleep(2 * time.Hour)
		equal(t, "groups in the end", groups(), "0") // none of their children has ever run
	})
}

// Unused children end, except the last one.
func TestLastChildKeepsRunning(t *testing.T) {
	p := newPool(t, "", func(c *Config) { c.SessionTTL = 20 * time.Millisecond })
	first := p.client().initialize(`{"sampling":{}}`).pid()
	p.client().initialize(`{"elicitation":{}}`).pid()
	p.until("one child has ended", func() bool { return len(p.exited) == 1 })
	p.eventually("the sessions have expired", func() bool {
		p.Pool.mu.Lock()
		defer p.Pool.mu.Unlock()
		return len(p.sessions.byID) == 0 && len(p.groups.byKey) == 1
	})
	pid := p.client().pid()
	equal(t, "the other child runs", pid != p.exited[0] && (pid == first || pid == p.started[1]), true)
	equal(t, "started", len(p.started), 2)
}

// If a server refuses capabilities, the client gets the error and the server stays healthy.
func TestCapabilitiesThatAServerRefuses(t *testing.T) {
	script := `read -r hello
		case "$hello" in *bad*) echo '{"jsonrpc":"2.0","id":1,"error":{"code":-5,"message":"not these"}}';; *) echo '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}';; esac
		while read -r line; do id=${line#*'"id":'}; case "$line" in *'"id"'*) printf '{"jsonrpc":"2.0","id":%s,"result":{}}\n' "${id%%,*}";; esac; done`
	p := newPoolOf(t, []string{"sh", "-c", script})
	bad := request(`"i"`, "initialize", `{"protocolVersion":"2025-11-25","capabilities":{"bad":{}}}`)
	equal(
		t,
		"answer",
		p.client().post(bad).whole(),
		`{"jsonrpc":"2.0","id":"i","error":{"code":-5,"message":"not these"}}`,
	)
	equal(t, "sessions", len(p.sessions.byID), 0)
	contains(t, "response to another client", p.client().post(request(`1`, "x", `{}`)).whole(), `"result"`)
	if err := p.Check(t.Context(), "alpha:1"); err != nil {
		t.Errorf("Check: %v", err)
	}
	if asked, err := p.CheckStarted(t.Context(), "alpha:1"); !asked || err != nil {
		t.Errorf("CheckStarted: asked %t, error %v", asked, err)
	}
	if err := p.Restart(t.Context(), "alpha:1"); err != nil {
		t.Errorf("Restart: %v", err)
	}
}

// The end of a child does not affect the children of other groups.
func TestChildrenOfGroupsRestartAlone(t *testing.T) {
	p := newPool(t, "")
	a, b := p.client().initialize(`{}`), p.client().initialize(`{"sampling":{}}`)
	first, second := a.pid(), b.pid()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	calls := len(p.received("tools/call"))
	go func() { _, _ = a.with(ctx).do(http.MethodPost, toolCall(`1`, "hang", `{}`)) }()
	p.eventually("the child receives the call", func() bool { return len(p.received("tools/call")) > calls })
	_ = syscall.Kill(second, syscall.SIGKILL)
	p.until("the child has restarted", func() bool { return p.restarts == 1 })
	equal(t, "child of the other group", a.pid(), first)
	if b.pid() == second {
		t.Error("the child was not replaced")
	}
}

// Groups keep the capabilities of their clients, which must not be large.
func TestLargeCapabilities(t *testing.T) {
	p := newPool(t, "")
	large := `{"experimental":{"x":"` + strings.Repeat("x", maxIntroduction) + `"}}`
	meta := strings.Replace(modernMetaMember, `clientCapabilities":{}`, `clientCapabilities":`+large, 1)
	const want = `{"jsonrpc":"2.0","error":{"code":-32602,"message":"clientCapabilities: too large"`
	answer := p.client().post(request(`1`, "tools/call", `{"name":"pid","arguments":{},`+meta+`}`),
		"MCP-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", "pid").whole()
	if !strings.HasPrefix(answer, want) {
		t.Errorf("got %s", answer)
	}
}
