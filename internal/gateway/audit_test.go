package gateway

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/redact"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// reported returns the calls reported since the last call, after all requests have ended.
func (g *testGateway) reported(t testing.TB) []inbound.Call {
	t.Helper()
	await.Until(t, "all handlers have returned", func() bool { return g.active.Load() == 0 })
	return g.config.Observer.(*recorder).takeCalls()
}

// audited returns the reported calls that were allowed.
func (g *testGateway) audited(t testing.TB) []inbound.Call {
	t.Helper()
	return slices.DeleteFunc(g.reported(t), func(c inbound.Call) bool { return c.Refused })
}

// oneCall returns the only reported call.
func oneCall(t testing.TB, calls []inbound.Call) inbound.Call {
	t.Helper()
	if len(calls) != 1 {
		t.Fatalf("got %d calls, want 1: %+v", len(calls), calls)
	}
	return calls[0]
}

func TestAuditOfCalls(t *testing.T) {
	proxy := mcp.ResourceURI("a", "r://1")
	tests := []struct {
		name, method, params string
		want                 mcp.Target // empty if the call is not reported
		outcome, arguments   string
	}{
		{"a tool", "tools/call", `{"name":"a::x","arguments":{"n":1}}`,
			mcp.Target{Server: "a", Kind: mcp.Tool, Name: "x"}, "ok", `{"n":1}`},
		{"a tool without arguments", "tools/call", `{"name":"a::x"}`,
			mcp.Target{Server: "a", Kind: mcp.Tool, Name: "x"}, "ok", ""},
		{"a tool by an alias", "tools/call", `{"name":"alias::x"}`,
			mcp.Target{Server: "a", Kind: mcp.Tool, Name: "x"}, "ok", ""},
		{"a tool that fails", "tools/call", `{"name":"b::y"}`,
			mcp.Target{Server: "b", Kind: mcp.Tool, Name: "y"}, "error", ""},
		{"a tool of an unknown server", "tools/call", `{"name":"c::x"}`,
			mcp.Target{Kind: mcp.Tool, Name: "c::x"}, "invalid_params", ""},
		{"a prompt", "prompts/get", `{"name":"a::p","arguments":{"n":"1"}}`,
			mcp.Target{Server: "a", Kind: mcp.Prompt, Name: "p"}, "ok", `{"n":"1"}`},
		{"a resource", "resources/read", `{"uri":"` + proxy + `","arguments":{}}`,
			mcp.Target{Server: "a", Kind: mcp.Resource, Name: "r://1"}, "ok", ""},
		{"a resource by the URI of its server", "resources/read", `{"uri":"r://1"}`,
			mcp.Target{Server: "a", Kind: mcp.Resource, Name: "r://1"}, "ok", ""},
		{"a tool of the gateway", "tools/call", `{"name":"search_tools","arguments":{"query":"x"}}`,
			mcp.Target{Kind: mcp.Tool, Name: "search_tools"}, "ok", `{"query":"x"}`},
		{"a tool by call_tool", "tools/call", `{"name":"call_tool","arguments":{"name":"a::x","arguments":{"n":1}}}`,
			mcp.Target{Server: "a", Kind: mcp.Tool, Name: "x"}, "ok", `{"n":1}`},
		{"an unknown tool by call_tool", "tools/call", `{"name":"call_tool","arguments":{"name":"x"}}`,
			mcp.Target{Kind: mcp.Tool, Name: "call_tool"}, "ok", `{"name":"x"}`},
		{"a tool that is denied", "tools/call", `{"name":"a::denied"}`, mcp.Target{}, "", ""},
		{"a denied tool by call_tool", "tools/call", `{"name":"call_tool","arguments":{"name":"a::denied"}}`,
			mcp.Target{}, "", ""},
		{"a list", "tools/list", `{}`, mcp.Target{}, "", ""},
		{"a completion", "completion/complete",
			`{"ref":{"type":"ref/prompt","name":"a::p"},"argument":{"name":"n","value":""}}`, mcp.Target{}, "", ""},
	}
	configure := func(c *Config) {
		rulesForAll("deny a::denied")(c)
		c.Audit, c.Discovery = inbound.AuditArguments, true
		c.Servers[0].Aliases = []string{"alias"}
	}
	peers := func() []*fakeServer {
		all := guardedPeers()
		reply := func(w http.ResponseWriter, a *incoming) { a.reply(w, `{"resultType":"complete"}`) }
		all[0].handle("prompts/get", reply).handle("resources/read", reply)
		all[1].handle("tools/call", func(w http.ResponseWriter, a *incoming) { a.refuse(w, http.StatusOK, -32099, "no") })
		return all
	}
	both(t, configure, peers, func(t *testing.T, u *testClient, _ []*fakeServer) {
		u.identity = "ann"
		if u.era == mcp.Legacy {
			u.session = ""
			u.connect()
		}
		for _, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				u.g.audited(t)
				u.g.config.Observer.(*recorder).takeDenials()
				u.ask(test.method, test.params)
				calls, denials := u.g.audited(t), u.g.config.Observer.(*recorder).takeDenials()
				if test.want == (mcp.Target{}) {
					if len(calls) > 0 || strings.Contains(test.name, "denied") != (len(denials) == 1) {
						t.Errorf("got %+v, denied %+v", calls, denials)
					}
					return
				}
				got := oneCall(t, calls)
				if got.Target != test.want || got.Outcome != test.outcome || string(got.Arguments) != test.arguments {
					t.Errorf("got %+v, arguments %s", got, got.Arguments)
				}
				if got.Method != test.method || got.Client != "ann" || got.Address != "192.0.2.1" ||
					got.RequestID != fmt.Sprint(u.last.Load()) || got.Duration <= 0 {
					t.Errorf("got %+v", got)
				}
				codes := map[string]int{"error": -32099, "invalid_params": -32602}
				if got.ErrorCode != codes[test.outcome] {
					t.Errorf("got code %d", got.ErrorCode)
				}
			})
		}
	})
}

// withAudit returns a configuration with an audit.
func withAudit(audit inbound.Audit) func(*Config) { return func(c *Config) { c.Audit = audit } }

func TestAuditWithoutArguments(t *testing.T) {
	for _, audit := range []inbound.Audit{inbound.AuditDenied, inbound.AuditAll} {
		u := newGateway(t, withAudit(audit), legacyPeer("a")).legacy(t)
		u.use("a::x", `{"n":1}`)
		if got := oneCall(t, u.g.audited(t)); got.Arguments != nil || got.Content != nil || got.Client != access.Anonymous {
			t.Errorf("got %+v", got)
		}
	}
}

// A call is reported once, even if it is sent to the server several times.
func TestAuditOfCallInLostSession(t *testing.T) {
	p := legacyPeer("a").hasTools("x")
	u := newGateway(t, withAudit(inbound.AuditAll), p).legacy(t)
	u.call("a::x")
	u.g.audited(t)
	p.forget()
	u.call("a::x")
	if n := p.count("tools/call"); n != 3 {
		t.Fatalf("the server got %d calls, want 3", n)
	}
	if got := oneCall(t, u.g.audited(t)); got.Outcome != upstream.OutcomeOK {
		t.Errorf("got %+v", got)
	}
}

// A modern client answers a server request with another request.
func TestAuditOfHeldCalls(t *testing.T) {
	u := newGateway(t, withAudit(inbound.AuditAll), legacyPeer("a").handle("tools/call", askingTool(2))).modern(t)
	s := u.call("a::x")
	for range 2 {
		oneCall(t, u.g.audited(t))
		in, key := readInput(t, s)
		s = u.retry("a::x", in, key, `{"action":"accept"}`)
	}
	if got := oneCall(t, u.g.audited(t)); got.RequestID != "3" || got.Target.Name != "x" {
		t.Errorf("got %+v", got)
	}
}

func TestAuditOfDisconnectedClients(t *testing.T) {
	both(t, withAudit(inbound.AuditAll), func() []*fakeServer {
		wait := func(_ http.ResponseWriter, a *incoming) { <-a.Context().Done() }
		return []*fakeServer{newPeer("a").handle("tools/call", wait)}
	}, func(t *testing.T, u *testClient, peers []*fakeServer) {
		call := u.start(http.MethodPost, u.request(u.nextID(), "tools/call", `{"name":"a::x"}`))
		peers[0].waitFor(t, "tools/call", 1)
		call.disconnect()
		if got := oneCall(t, u.g.audited(t)); got.Outcome != upstream.OutcomeCanceled {
			t.Errorf("got %+v", got)
		}
	})
}

// panickingRoutes panic on each request.
type panickingRoutes struct{ fakeRoutes }

func (panickingRoutes) Serve(http.ResponseWriter, *http.Request, string) error { panic("a bug") }

func TestAuditAtOneServer(t *testing.T) {
	const call = `{"jsonrpc":"2.0","id":"i","method":"tools/call","params":{"name":"x","arguments":{"n":1}}}`
	tests := []struct {
		name, message string
		want          string // outcome; "" if the call is not reported
	}{
		{"a call", call, "ok"},
		{"a method with an escape", strings.Replace(call, "tools/call", `tools\/call`, 1), "ok"},
		{"a call without an id", strings.Replace(call, `"id":"i",`, "", 1), "ok"},
		{"another method", strings.Replace(call, "tools/call", "tools/list", 1), ""},
		{"a method twice", strings.Replace(call, `"method"`, `"method":"ping","method"`, 1), ""},
		{"a name twice", strings.Replace(call, `"name"`, `"name":"y","name"`, 1), ""},
		{"a server that panics", call, upstream.OutcomePanic},
	}
	for _, kind := range []upstream.EndpointKind{upstream.Single, upstream.RPC} {
		for _, test := range tests {
			t.Run(fmt.Sprint(test.name, ", kind ", kind), func(t *testing.T) {
				p := legacyPeer("a")
				p.sessions = false
				p.handle("tools/call", func(w http.ResponseWriter, a *incoming) {
					a.write(w, http.StatusOK, `{"jsonrpc":"2.0","id":`+cmp.Or(a.id(), "null")+`,"result":{}}`)
				})
				g := newBareGateway(func(c *Config) {
					c.Audit = inbound.AuditArguments
					if test.want == upstream.OutcomePanic {
						c.Servers[0].Routes = panickingRoutes{fakeRoutes{p}}
					}
				}, p)
				defer g.close()
				w := httptest.NewRecorder()
				r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(test.message))
				r.Header.Set("Content-Type", "application/json")
				func() {
					defer func() { _ = recover() }()
					g.NewRequest(w, r, inbound.Endpoint{Kind: kind, Server: "a"}, inbound.Peer{Address: "192.0.2.1"}).Serve()
				}()
				calls := g.config.Observer.(*recorder).takeCalls()
				if test.want == "" {
					if len(calls) > 0 {
						t.Errorf("got %+v", calls)
					}
					if n := p.count("tools/call"); n > 0 {
						t.Error("the server got a call that was not reported")
					}
					return
				}
				got := oneCall(t, calls)
				if got.Outcome != test.want || got.Target != (mcp.Target{Server: "a", Kind: mcp.Tool, Name: "x"}) ||
					string(got.Arguments) != `{"n":1}` {
					t.Errorf("got %+v, arguments %s", got, got.Arguments)
				}
			})
		}
	}
}

func TestAuditOfOperators(t *testing.T) {
	for _, as := range []string{"", "ann"} {
		g := newGateway(t, withAudit(inbound.AuditAll), legacyPeer("a").hasTools("x"))
		o := g.NewOperator(httptest.NewRequest(http.MethodPost, "/mcp", nil), as)
		call := ToolCall{Name: "a::x", Address: "192.0.2.9", Arguments: func(*Tool, []string) ([]byte, error) {
			return []byte(`{}`), nil
		}}
		if err := o.Call(httptest.NewRecorder(), call); err != nil {
			t.Fatal(err)
		}
		got := oneCall(t, g.audited(t))
		if got.Client != "operator" || got.Address != "192.0.2.9" || got.Target.Name != "x" {
			t.Errorf("as %q: got %+v", as, got)
		}
	}
}

func TestAuditRedactsArguments(t *testing.T) {
	redactor, err := redact.New([]string{`sk-[a-z]+`, `§`}, []string{"password", "id", "taskId"})
	if err != nil {
		t.Fatal(err)
	}
	configure := func(c *Config) {
		c.Audit = inbound.AuditArguments
		c.Clients = []*access.Client{{Name: "*", Redactor: redactor}}
	}
	tests := []struct{ name, arguments, want string }{
		{"nothing to redact", `{"a":1}`, `{"a":1}`},
		{"a value", `{"a":"my sk-abc"}`, `{"a":"my [redacted]"}`},
		{"a value with escapes", `{"a":"s\u006b-abc"}`, `{"a":"[redacted]"}`},
		{"a key", `{"sk-abc":1}`, `{"[redacted]":1}`},
		{"a field", `{"b":[{"password":{"x":1}}]}`, `{"b":[{"password":"[redacted]"}]}`},
		{"a field that messages also have", `{"id":"a","taskId":"b"}`, `{"id":"[redacted]","taskId":"[redacted]"}`},
		{"JSON in a string", `{"a":"{\"password\":\"x\"}"}`, `{"a":"{\"password\":\"[redacted]\"}"}`},
		{"not an object", `["sk-abc"]`, `["[redacted]"]`},
		{"too large to redact", `{"a":"` + strings.Repeat("§", 4_000) + `"}`, `"not readable"`},
	}
	u := newGateway(t, configure, legacyPeer("a")).legacy(t)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			u.g.audited(t)
			u.use("a::x", test.arguments)
			if got := oneCall(t, u.g.audited(t)); string(got.Arguments) != test.want {
				t.Errorf("got %s", got.Arguments)
			}
		})
	}
	u.ask("resources/read", `{"uri":"`+mcp.ResourceURI("a", "r://sk-abc")+`"}`)
	if got := oneCall(t, u.g.audited(t)); got.Target.Name != "r://[redacted]" {
		t.Errorf("got %s", got.Target.Name)
	}
}

func TestAuditLimitsArguments(t *testing.T) {
	u := newGateway(t, withAudit(inbound.AuditArguments), legacyPeer("a")).legacy(t)
	const maxAudited = 16 << 10
	for _, size := range []int{maxAudited, maxAudited + 1, maxAudited + 2, 1 << 20} {
		const frame = `{"a":""}`
		arguments := `{"a":"` + strings.Repeat("é", (size-len(frame))/2) + strings.Repeat("a", size%2) + `"}`
		u.use("a::x", arguments)
		got := oneCall(t, u.g.audited(t)).Arguments
		if !utf8.Valid(got) || !json.Valid(got) {
			t.Fatalf("%d bytes: not JSON: %.100q", size, got)
		}
		if size == maxAudited {
			if string(got) != arguments {
				t.Errorf("%d bytes: got %.100s", size, got)
			}
			continue
		}
		var text string
		if err := json.Unmarshal(got, &text); err != nil {
			t.Fatal(err)
		}
		head, ok := strings.CutSuffix(text, fmt.Sprintf("… (%d bytes)", len(arguments)))
		if !ok || !strings.HasPrefix(arguments, head) || len(head) > maxAudited || len(head) < maxAudited-utf8.UTFMax {
			t.Errorf("%d bytes: got %d: %.50s … %s", size, len(head), text, text[len(text)-30:])
		}
	}
}
