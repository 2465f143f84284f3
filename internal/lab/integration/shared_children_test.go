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

// everythingOf configures the reference server as a child.
func everythingOf(t *testing.T, name string, lines ...string) string {
	t.Helper()
	peer(t, "") // skips the test if it is not installed
	return block("server "+name+" stdio node "+nodeModules+"@modelcontextprotocol/server-everything/dist/index.js stdio",
		append(lines, "start_timeout 2m")...)
}

// directTools returns the tools of the reference server without a gateway, by client
// capabilities.
func directTools(t *testing.T, capabilities ...string) map[string][]string {
	t.Helper()
	servers := map[string]*directServer{}
	for _, can := range capabilities {
		servers[can] = startDirect(t, peer(t, "node_modules/@modelcontextprotocol/server-everything/dist/index.js", "stdio"))
	}
	tools := map[string][]string{}
	for can, s := range servers {
		s.initialize(t, can)
		tools[can] = namesOf(t, s.ask(t, "tools/list", `{}`), "")
	}
	return tools
}

// namesOf returns the sorted names with a prefix in a result of tools/list, without the prefix.
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

// pidsOf returns the process IDs of a server's children.
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

// answersAs answers server requests with the name of a client.
func answersAs(self string) mcpclient.Responder {
	return func(method string, _ json.RawMessage) string {
		if method == "elicitation/create" {
			return `{"action":"accept","content":{"name":` + quote(self) + `}}`
		}
		return `{"role":"assistant","model":"m","content":{"type":"text","text":"text from ` + self + `"}}`
	}
}

// TestSharedChildrenListSameTools: servers may offer more tools to clients with more capabilities.
// Clients see the same tools as without a gateway, except for roots: a shared child never gets the
// roots of clients, so the gateway declares the capability only if roots are configured.
func TestSharedChildrenListSameTools(t *testing.T) {
	isolate(t)
	const (
		none  = `{}`
		some  = `{"sampling":{},"elicitation":{"form":{},"url":{}}}`
		roots = `{"roots":{},"elicitation":{"url":{},"form":{}},"sampling":{}}`
	)
	direct := directTools(t, none, some, roots, `{"roots":{}}`)
	if len(direct[none]) >= len(direct[some]) || len(direct[some]) >= len(direct[roots]) {
		t.Fatalf("without a gateway there are %d, %d and %d tools, so the test proves nothing", len(direct[none]),
			len(direct[some]), len(direct[roots]))
	}
	url := serve(t, gateway("separator __", everythingOf(t, "everything"),
		everythingOf(t, "rooted", "roots file:///configured"), everythingOf(t, "one", "isolation none")))
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
			for range 2 { // the second time with running children
				for _, era := range clientEras {
					for endpoint, prefix := range map[string]string{joinedAt(url): tt.server + "__", mcpAt(url, tt.server): ""} {
						for capabilities, want := range tt.sees {
							c := newTestClient(t, endpoint, era.modern, capabilities)
							if got := namesOf(t, c.ask(t, "tools/list", `{}`).answer.Result, prefix); !slices.Equal(got, want) {
								t.Errorf("%s at %s with %s: got %d tools, want %d: %v", era.name, endpoint, capabilities, len(got), len(want),
									got)
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
			// Clients without capabilities start no process.
			post(t, rpcAt(url, tt.server), toolCall{"echo", `{"message":"x"}`}.request())
			control[any](t, "POST", "/servers/"+tt.server+"/restart", "", 200)
			after := pidsOf(t, tt.server)
			if len(after) != tt.children || slices.ContainsFunc(after,
				func(pid int) bool { return slices.Contains(before, pid) }) {
				t.Errorf("after a restart the processes are %v, before %v", after, before)
			}
		})
	}
}

// TestSharedChildrenAskClientsOfAllKinds: servers can send requests to clients with different
// capabilities, also at the same time.
func TestSharedChildrenAskClientsOfAllKinds(t *testing.T) {
	isolate(t)
	url := serve(t, gateway("separator __", everythingOf(t, "everything")))
	kinds := []struct{ capabilities, tool, want string }{
		{`{"sampling":{}}`, "trigger-sampling-request", "text from "},
		{`{"elicitation":{}}`, "trigger-elicitation-request", "- Name: "},
		{`{"sampling":{},"elicitation":{}}`, "trigger-elicitation-request", "- Name: "},
	}
	// An open server request of one child does not block those of other children.
	waiting := newTestClient(t, mcpAt(url, "everything"), false, kinds[0].capabilities)
	open := waiting.begin(t, "tools/call", `{"name":"trigger-sampling-request","arguments":{"prompt":"why"}}`)
	asked := open.awaitMessage(t, "sampling/createMessage")
	for i, kind := range kinds[1:] {
		for endpoint, prefix := range map[string]string{joinedAt(url): "everything__", mcpAt(url, "everything"): ""} {
			for _, era := range clientEras {
				if era.modern && prefix == "" {
					continue // there, only modern servers can send them requests
				}
				self := fmt.Sprintf("%s %d", era.name, i)
				c := newTestClient(t, endpoint, era.modern, kind.capabilities)
				got := c.Request(t.Context(), "tools/call", `{"name":"`+prefix+kind.tool+`","arguments":{}}`, answersAs(self))
				if got.Err != nil || !strings.Contains(got.Raw, kind.want+self) {
					t.Errorf("%s at %s with %s: got %.500s, error %v, want %s%s", era.name, endpoint, kind.capabilities, got.Raw,
						got.Err, kind.want, self)
				}
			}
		}
	}
	waiting.respond(t, asked, answersAs("the first")(asked.Method, nil))
	if got := open.finish(t); !strings.Contains(got.answer.Raw, "text from the first") {
		t.Errorf("got %.500s", got.answer.Raw)
	}
	if pids := pidsOf(t, "everything"); len(pids) != len(kinds) {
		t.Errorf("got processes %v, want %d", pids, len(kinds))
	}
}

// TestSharedChildrenAreFew: however many different capabilities a client declares, it gets a
// limited number of processes.
func TestSharedChildrenAreFew(t *testing.T) {
	isolate(t)
	url := serve(t, gateway(everythingOf(t, "everything")))
	want := directTools(t, `{}`)[`{}`]
	for i := range 12 {
		for _, era := range clientEras {
			c := newTestClient(t, mcpAt(url, "everything"), era.modern, fmt.Sprintf(`{"experimental":{%q:{"n":%d}}}`, era.name,
				i))
			if got := namesOf(t, c.ask(t, "tools/list", `{}`).answer.Result, ""); !slices.Equal(got, want) {
				t.Errorf("got tools %v, want %v", got, want)
			}
		}
	}
	// 4 for the client's address, and 1 for clients without capabilities
	if pids := pidsOf(t, "everything"); len(pids) != 5 {
		t.Errorf("got %d processes, want 5", len(pids))
	}
}

// TestSharedChildrenAskAfterACancellation: after a client cancels a call, other clients can receive
// server requests at once.
func TestSharedChildrenAskAfterACancellation(t *testing.T) {
	isolate(t)
	url := serve(t, gateway("separator __", everythingOf(t, "everything")))
	const can = `{"sampling":{},"elicitation":{}}`
	for name, end := range map[string]func(t *testing.T, c *testClient, d *exchange){
		"cancelled": func(t *testing.T, c *testClient, d *exchange) {
			c.post(t, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+d.ID+`}}`)
		},
		"hung up": func(t *testing.T, _ *testClient, d *exchange) {
			grown := growth(t)
			d.Cancel()
			await.Until(t, "the gateway to notice", func() bool {
				return grown()[`requests_total{gateway="",method="tools/call",outcome="canceled",server="everything"}`] == 1
			})
		},
	} {
		for endpoint, prefix := range map[string]string{joinedAt(url): "everything__", mcpAt(url, "everything"): ""} {
			t.Run(name+" at "+strings.TrimPrefix(endpoint, url), func(t *testing.T) {
				a, b := newTestClient(t, endpoint, false, can), newTestClient(t, endpoint, false, can)
				d := a.begin(t, "tools/call", `{"name":"`+prefix+
					`trigger-long-running-operation","arguments":{"duration":20,"steps":200},"_meta":{"progressToken":1}}`)
				d.awaitMessage(t, "notifications/progress")
				end(t, a, d)
				for _, kind := range []struct{ tool, want string }{{"trigger-elicitation-request", "- Name: b"},
					{"trigger-sampling-request", "text from b"}} {
					got := b.Request(t.Context(), "tools/call", `{"name":"`+prefix+kind.tool+`","arguments":{"prompt":"why"}}`,
						answersAs("b"))
					if got.Err != nil || !strings.Contains(got.Raw, kind.want) {
						t.Errorf("%s: got %.500s, error %v, want %s", kind.tool, got.Raw, got.Err, kind.want)
					}
				}
				d.Cancel()
			})
		}
	}
	if pids := pidsOf(t, "everything"); len(pids) != 1 {
		t.Errorf("got processes %v, want one for clients with equal capabilities", pids)
	}
}
