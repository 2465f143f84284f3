package integration

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
)

// everythingOf is the line of a server that is the reference server.
func everythingOf(t *testing.T, name string, lines ...string) string {
	t.Helper()
	peer(t, "") // which must be installed
	return block("server "+name+" stdio node "+modulesOfNode+"@modelcontextprotocol/server-everything/dist/index.js stdio", append(lines, "start_timeout 2m")...)
}

// directTools asks the reference server itself which tools it has for clients, by their
// capabilities.
func directTools(t *testing.T, capabilities ...string) map[string][]string {
	t.Helper()
	servers := map[string]*directServer{}
	for _, can := range capabilities {
		servers[can] = startDirectly(t, peer(t, "node_modules/@modelcontextprotocol/server-everything/dist/index.js", "stdio"))
	}
	tools := map[string][]string{}
	for can, s := range servers {
		s.initialize(t, can)
		tools[can] = namesOf(t, s.ask(t, "tools/list", `{}`), "")
	}
	return tools
}

// namesOf returns the names with a prefix in a result of tools/list, sorted and without it.
func namesOf(t *testing.T, result json.RawMessage, prefix string) (names []string) {
	t.Helper()
	var list struct {
		Tools      []struct{ Name string }
		NextCursor string
	}
	if err := json.Unmarshal(result, &list); err != nil || len(list.Tools) == 0 || list.NextCursor != "" {
		t.Fatalf("got %.300s, error %v, want all tools", result, err)
	}
	for _, tool := range list.Tools {
		if name, has := strings.CutPrefix(tool.Name, prefix); has {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// pidsOf returns the processes that run for a server.
func pidsOf(t *testing.T, server string) (pids []int) {
	t.Helper()
	for _, c := range stateOf(t, server).Children {
		if c.PID != 0 {
			pids = append(pids, c.PID)
		}
	}
	slices.Sort(pids)
	return pids
}

// answersAs answers what servers ask a client.
func answersAs(self string) mcpclient.Answerer {
	return func(method string, _ json.RawMessage) string {
		if method == "elicitation/create" {
			return `{"action":"accept","content":{"name":` + quote(self) + `}}`
		}
		return `{"role":"assistant","model":"m","content":{"type":"text","text":"said by ` + self + `"}}`
	}
}

// TestSharedChildrenShowWhatTheyWouldDirectly: servers may have more tools for clients that
// can do more. Clients see the same as without a gateway. Roots
// are an exception: a shared child does not get those of clients, so it is told of them only
// if some are configured.
func TestSharedChildrenShowWhatTheyWouldDirectly(t *testing.T) {
	isolate(t)
	const (
		none  = `{}`
		some  = `{"sampling":{},"elicitation":{"form":{},"url":{}}}`
		roots = `{"roots":{},"elicitation":{"url":{},"form":{}},"sampling":{}}`
	)
	direct := directTools(t, none, some, roots, `{"roots":{}}`)
	if len(direct[none]) >= len(direct[some]) || len(direct[some]) >= len(direct[roots]) {
		t.Fatalf("directly there are %d, %d and %d tools, so nothing is to be seen", len(direct[none]), len(direct[some]), len(direct[roots]))
	}
	url := serve(t, gateway("separator __", everythingOf(t, "everything"), everythingOf(t, "rooted", "roots file:///configured"), everythingOf(t, "one", "isolation none")))
	for _, tt := range []struct {
		server   string
		sees     map[string][]string
		children int
	}{
		{"everything", map[string][]string{none: direct[none], some: direct[some], roots: direct[some]}, 2},
		{"rooted", map[string][]string{none: direct[`{"roots":{}}`], some: direct[roots], roots: direct[roots]}, 2},
		{"one", map[string][]string{none: direct[some], some: direct[some], roots: direct[some]}, 1},
	} {
		t.Run(tt.server, func(t *testing.T) {
			var before []int
			for range 2 { // the second time by children that run
				for _, era := range clientEras {
					for at, prefix := range map[string]string{joinedAt(url): tt.server + "__", mcpAt(url, tt.server): ""} {
						for capabilities, want := range tt.sees {
							c := newSpeaker(t, at, era.modern, capabilities)
							if got := namesOf(t, c.ask(t, "tools/list", `{}`).answer.Result, prefix); !slices.Equal(got, want) {
								t.Errorf("%s at %s with %s: got %d tools, want %d: %v", era.name, at, capabilities, len(got), len(want), got)
							}
						}
					}
				}
				pids := pidsOf(t, tt.server)
				if len(pids) != tt.children || before != nil && !slices.Equal(pids, before) {
					t.Errorf("got processes %v, before %v, want the same %d", pids, before, tt.children)
				}
				before = pids
			}
			// Clients that declare nothing start no process.
			post(t, rpcAt(url, tt.server), toolCall{"echo", `{"message":"x"}`}.request())
			control[any](t, "POST", "/servers/"+tt.server+"/restart", "", 200)
			after := pidsOf(t, tt.server)
			if len(after) != tt.children || slices.ContainsFunc(after, func(pid int) bool { return slices.Contains(before, pid) }) {
				t.Errorf("after a restart there are %v, before %v", after, before)
			}
		})
	}
}

// TestSharedChildrenAskClientsOfAllKinds: also at the same time.
func TestSharedChildrenAskClientsOfAllKinds(t *testing.T) {
	isolate(t)
	url := serve(t, gateway("separator __", everythingOf(t, "everything")))
	kinds := []struct{ capabilities, tool, want string }{
		{`{"sampling":{}}`, "trigger-sampling-request", "said by "},
		{`{"elicitation":{}}`, "trigger-elicitation-request", "- Name: "},
		{`{"sampling":{},"elicitation":{}}`, "trigger-elicitation-request", "- Name: "},
	}
	// A question that is open at one child keeps no other from asking.
	waiting := newSpeaker(t, mcpAt(url, "everything"), false, kinds[0].capabilities)
	open := waiting.begin(t, "tools/call", `{"name":"trigger-sampling-request","arguments":{"prompt":"why"}}`)
	asked := open.hears(t, "sampling/createMessage")
	for i, kind := range kinds[1:] {
		for at, prefix := range map[string]string{joinedAt(url): "everything__", mcpAt(url, "everything"): ""} {
			for _, era := range clientEras {
				if era.modern && prefix == "" {
					continue // there they can be asked by servers of their era
				}
				self := fmt.Sprintf("%s %d", era.name, i)
				c := newSpeaker(t, at, era.modern, kind.capabilities)
				got := c.Ask(t.Context(), "tools/call", `{"name":"`+prefix+kind.tool+`","arguments":{}}`, answersAs(self))
				if got.Err != nil || !strings.Contains(got.Raw, kind.want+self) {
					t.Errorf("%s at %s with %s: got %.500s, error %v, want %s%s", era.name, at, kind.capabilities, got.Raw, got.Err, kind.want, self)
				}
			}
		}
	}
	waiting.replyTo(t, asked, answersAs("the first")(asked.Method, nil))
	if got := open.finish(t); !strings.Contains(got.answer.Raw, "said by the first") {
		t.Errorf("got %.500s", got.answer.Raw)
	}
	if pids := pidsOf(t, "everything"); len(pids) != len(kinds) {
		t.Errorf("got processes %v, want %d", pids, len(kinds))
	}
}

// TestSharedChildrenAreFew: a client can declare whatever it wants, and gets some processes
// for that, not as many as it wants.
func TestSharedChildrenAreFew(t *testing.T) {
	isolate(t)
	url := serve(t, gateway(everythingOf(t, "everything")))
	want := directTools(t, `{}`)[`{}`]
	for i := range 12 {
		for _, era := range clientEras {
			c := newSpeaker(t, mcpAt(url, "everything"), era.modern, fmt.Sprintf(`{"experimental":{%q:{"n":%d}}}`, era.name, i))
			if got := namesOf(t, c.ask(t, "tools/list", `{}`).answer.Result, ""); !slices.Equal(got, want) {
				t.Errorf("got tools %v, want %v", got, want)
			}
		}
	}
	if pids := pidsOf(t, "everything"); len(pids) != 5 { // 4 of an address, and that of those who declare nothing
		t.Errorf("got %d processes, want 5", len(pids))
	}
}

// TestSharedChildrenAskAfterACancellation: when a client has given up a call, others are
// asked at once.
func TestSharedChildrenAskAfterACancellation(t *testing.T) {
	isolate(t)
	url := serve(t, gateway("separator __", everythingOf(t, "everything")))
	const can = `{"sampling":{},"elicitation":{}}`
	for name, end := range map[string]func(t *testing.T, c *speaker, d *dialogue){
		"cancelled": func(t *testing.T, c *speaker, d *dialogue) {
			c.say(t, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+d.ID+`}}`)
		},
		"hung up": func(t *testing.T, _ *speaker, d *dialogue) {
			grown := growth(t)
			d.HangUp()
			await.Until(t, "the gateway has noticed", func() bool {
				return grown()[`requests_total{gateway="",method="tools/call",outcome="canceled",server="everything"}`] == 1
			})
		},
	} {
		for at, prefix := range map[string]string{joinedAt(url): "everything__", mcpAt(url, "everything"): ""} {
			t.Run(name+" at "+strings.TrimPrefix(at, url), func(t *testing.T) {
				a, b := newSpeaker(t, at, false, can), newSpeaker(t, at, false, can)
				d := a.begin(t, "tools/call", `{"name":"`+prefix+`trigger-long-running-operation","arguments":{"duration":20,"steps":200},"_meta":{"progressToken":1}}`)
				d.hears(t, "notifications/progress")
				end(t, a, d)
				for _, kind := range []struct{ tool, want string }{{"trigger-elicitation-request", "- Name: b"}, {"trigger-sampling-request", "said by b"}} {
					got := b.Ask(t.Context(), "tools/call", `{"name":"`+prefix+kind.tool+`","arguments":{"prompt":"why"}}`, answersAs("b"))
					if got.Err != nil || !strings.Contains(got.Raw, kind.want) {
						t.Errorf("%s: got %.500s, error %v, want %s", kind.tool, got.Raw, got.Err, kind.want)
					}
				}
				d.HangUp()
			})
		}
	}
	if pids := pidsOf(t, "everything"); len(pids) != 1 {
		t.Errorf("got processes %v, want one for clients of equal capabilities", pids)
	}
}
