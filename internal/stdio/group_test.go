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
		equal(t, in, canonical([]byte(in), false), want)
	}
	equal(t, "with roots", canonical([]byte(`{"sampling":{},"roots":{}}`), true), `{"roots":{},"sampling":{}}`)
}

// told returns the capabilities that initialize declared to children, by PID.
func (p *testPool) told() map[int]string {
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

func TestClientsShareAChildIfTheyDeclareTheSame(t *testing.T) {
	for _, tt := range []struct {
		isolation     Isolation
		roots         []string
		sole          bool
		none, all     string // capabilities that the children receive
		children      int    // of all clients
		rootsAreOther bool   // a client with roots shares no child with one without
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
		equal(t, "the order of members", p.client().initialize(`{ "elicitation": {}, "sampling": {} }`).pid(), all)
		equal(t, "no capabilities again", p.client().initialize(`{}`).pid(), none)
		equal(
			t,
			"roots make no difference",
			p.client().initialize(`{"roots":{"listChanged":true}}`).pid() == none,
			!tt.rootsAreOther,
		)
		equal(t, "without a session", p.client().pid(), none)
		equal(t, "capabilities without any declared", p.told()[none], tt.none)
		equal(t, "capabilities with all declared", p.told()[all], tt.all)
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
	equal(t, "the same again", pid(`{ "sampling":{} }`), some)
	equal(t, "a legacy client", fmt.Sprint(p.client().initialize(`{"sampling":{}}`).pid()), some)
	if none := pid(`{}`); none == some {
		t.Errorf("a client without capabilities shares the child of those with some, %s", none)
	}
	equal(t, "started", len(p.started), 2)
}

// TestRequestsWithoutASessionStartNoOtherChild: they are answered by one that runs.
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
		t.Error("it was not restarted")
	}
	equal(t, "started", len(p.started), 2)
	equal(t, "status", p.Status("alpha:1")[0].Capabilities, `{"sampling":{}}`)
}

// TestAClientHearsItsOwnChild: what the child of others says is not for it.
func TestAClientHearsItsOwnChild(t *testing.T) {
	changed := notification("notifications/tools/list_changed", `{}`) + "\n"
	log := notification("notifications/message", `{"level":"info","data":"mine"}`) + "\n"
	p := newPuppets(t)
	a, b := p.client().initialize(`{}`), p.client().initialize(`{"sampling":{}}`)
	first, second := a.listen(), b.listen()
	defer first.Body.Close()
	defer second.Body.Close()
	untold(a, changed)
	untold(b, log+changed) // as the only client of its child
	contains(t, "a", first.next(), "list_changed")
	contains(t, "b", second.next(), "mine")

	// Questions and cancellations stay apart as well.
	hanging := make(chan string)
	go func() { hanging <- a.post(say(`7`, "\n")).whole() }()
	p.eventually("it is called", func() bool {
		return strings.Count(p.client().post(request(`1`, "heard", `{}`)).whole(), `\"say\"`) == 2
	})
	r := b.post(say(`7`, `{"id":"q","method":"sampling/createMessage"}`+"\n"))
	contains(t, "asked while another client has a call", r.next(), "sampling/createMessage")
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
	p.eventually("one has ended", func() bool { return len(p.received("resources/unsubscribe")) == 1 })
	stream := b.listen()
	defer stream.Body.Close()
	b.call("touch", `{"uri":"x:1"}`)
	contains(t, "the other", stream.next(), "resources/updated")
}

// TestCapabilitiesDoNotStartChildrenWithoutEnd: a client gets so many children, all clients
// some more, and then what there is that fits best.
func TestCapabilitiesDoNotStartChildrenWithoutEnd(t *testing.T) {
	p := newPool(t, "")
	begin := func(owner, capabilities string) (pid int) {
		c := p.client()
		return c.with(WithOwner(c.ctx, owner)).initialize(capabilities).pid()
	}
	sampling := begin("one", `{"sampling":{}}`)
	for i := range 20 {
		begin("one", fmt.Sprintf(`{"experimental":{"n":%d}}`, i))
	}
	equal(t, "of one", len(p.started), maxOwnerGroups+1)
	equal(t, "the nearest", begin("one", `{"sampling":{},"elicitation":{"form":{}}}`), sampling)
	none := begin("one", `{"elicitation":{}}`)
	equal(t, "with nothing in common", p.told()[none], `{}`)
	both := begin("two", `{"sampling":{},"elicitation":{}}`)
	for i := range 40 {
		begin(fmt.Sprint("of many", i), fmt.Sprintf(`{"experimental":{"n":%d}}`, i))
	}
	equal(t, "of all", len(p.started), maxGroups+1)
	equal(t, "the nearest of several", begin("three", `{"sampling":{},"elicitation":{},"tasks":{}}`), both)
	equal(t, "what was there", begin("three", `{"sampling":{}}`), sampling)
	p.until(
		"it is logged",
		func() bool {
			return p.logs.FilterMessageSnippet("too many different client capabilities").Len() > 0
		},
	)
}

// TestGroupsThatAreNotUsedEnd: their place is taken after a while, and later they end.
func TestGroupsThatAreNotUsedEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(Config{SessionTTL: time.Hour, MaxSessions: 100, Isolation: Shared, Logger: zap.NewNop}, nil)
		defer p.Close()
		begin := func(capabilities string) *session {
			s := p.open(message(t, request(`1`, "initialize", `{"capabilities":`+capabilities+`}`)), "alpha:1", "one")
			if _, err := p.server(address{"alpha:1", mcp.Legacy, s.group}); err != nil {
				t.Fatal(err)
			}
			return s
		}
		groups := func() string {
			p.mu.Lock()
			defer p.mu.Unlock()
			equal(t, "servers", len(p.servers), len(p.groups))
			return fmt.Sprint(len(p.groups))
		}
		var sessions []*session
		for i := range maxOwnerGroups {
			sessions = append(sessions, begin(fmt.Sprintf(`{"x":{"n":%d}}`, i)))
		}
		p.end(sessions[1])
		equal(t, "just used", begin(`{"y":{}}`).group.capabilities, noCapabilities)
		time.Sleep(abandonedTime)
		equal(t, "room", begin(`{"y":{}}`).group.capabilities, `{"y":{}}`)
		equal(t, "groups", groups(), fmt.Sprint(maxOwnerGroups+1))
		equal(t, "no more", begin(`{"z":{}}`).group.capabilities, noCapabilities)
		p.end(sessions[0])
		time.Sleep(2 * time.Hour)
		equal(t, "groups with sessions", groups(), fmt.Sprint(maxOwnerGroups))
		for _, s := range p.sessions {
			p.end(s)
		}
		time.Sleep(2 * time.Hour)
		equal(t, "groups in the end", groups(), "0") // none of their children has ever run
	})
}

// TestTheLastChildStays: others end when they are not used.
func TestTheLastChildStays(t *testing.T) {
	p := newPool(t, "", func(c *Config) { c.SessionTTL = 20 * time.Millisecond })
	first := p.client().initialize(`{"sampling":{}}`).pid()
	p.client().initialize(`{"elicitation":{}}`).pid()
	p.until("one has ended", func() bool { return len(p.exited) == 1 })
	p.eventually("its sessions have expired", func() bool {
		p.Pool.mu.Lock()
		defer p.Pool.mu.Unlock()
		return len(p.sessions) == 0 && len(p.groups) == 1
	})
	pid := p.client().pid()
	equal(t, "the other is there", pid != p.exited[0] && (pid == first || pid == p.started[1]), true)
	equal(t, "started", len(p.started), 2)
}

// TestCapabilitiesThatAServerRefuses: the client gets the error, and the server stays healthy.
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
	equal(t, "sessions", len(p.sessions), 0)
	contains(t, "others", p.client().post(request(`1`, "x", `{}`)).whole(), `"result"`)
	if err := p.Check(t.Context(), "alpha:1"); err != nil {
		t.Errorf("checked: %v", err)
	}
	if asked, err := p.CheckStarted(t.Context(), "alpha:1"); !asked || err != nil {
		t.Errorf("alive: asked %t, error %v", asked, err)
	}
	if err := p.Restart(t.Context(), "alpha:1"); err != nil {
		t.Errorf("restarted: %v", err)
	}
}

// TestChildrenOfGroupsRestartAlone: the death of one is nothing to the others.
func TestChildrenOfGroupsRestartAlone(t *testing.T) {
	p := newPool(t, "")
	a, b := p.client().initialize(`{}`), p.client().initialize(`{"sampling":{}}`)
	first, second := a.pid(), b.pid()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	calls := len(p.received("tools/call"))
	go func() { _, _ = a.with(ctx).do(http.MethodPost, toolCall(`1`, "hang", `{}`)) }()
	p.eventually("it is called", func() bool { return len(p.received("tools/call")) > calls })
	_ = syscall.Kill(second, syscall.SIGKILL)
	p.until("it is back", func() bool { return p.again == 1 })
	equal(t, "the other is the same", a.pid(), first)
	if b.pid() == second {
		t.Error("it is the same")
	}
}
