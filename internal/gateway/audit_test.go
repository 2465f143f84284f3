package gateway

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
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

// meteredRoutes count the bytes of responses to calls.
type meteredRoutes struct {
	fakeRoutes
	bytes *atomic.Int64
}

func (u meteredRoutes) Serve(w http.ResponseWriter, r *http.Request, account string) error {
	isCall := func(m *jsonrpc.Message) bool { return m.Is(jsonrpc.Method, "tools/call") }
	if r.Header.Get("Last-Event-Id") != "" || isPosted(r, isCall) {
		w = &meteredWriter{w, u.bytes}
	}
	return u.fakeRoutes.Serve(w, r, account)
}

type meteredWriter struct {
	http.ResponseWriter
	bytes *atomic.Int64
}

func (w *meteredWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *meteredWriter) Write(p []byte) (int, error) {
	w.bytes.Add(int64(len(p)))
	return w.ResponseWriter.Write(p)
}

// croppingMask is a Mask that removes long texts.
type croppingMask struct{ originalsMask }

const longText = "much too much"

func (croppingMask) Serve(w http.ResponseWriter, r *http.Request, about upstream.MaskRequest,
	next upstream.Handler) error {
	return next.ServeHTTP(&croppingWriter{w, about}, r)
}

type croppingWriter struct {
	http.ResponseWriter
	about upstream.MaskRequest
}

func (w *croppingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *croppingWriter) Write(p []byte) (int, error) {
	if n := bytes.Count(p, []byte(longText)); n > 0 && w.about.Report != nil {
		w.about.Report.Strings += n
		w.about.Report.Chars += n * len(longText)
		w.about.Report.AddOriginal(fmt.Sprint("obs_", w.about.Report.Strings))
	}
	_, err := w.ResponseWriter.Write(bytes.ReplaceAll(p, []byte(longText), nil))
	return len(p), err
}

// meterTraffic configures a gateway whose first server is masked and metered.
func meterTraffic(sent *atomic.Int64, more ...func(*Config)) func(*Config) {
	return func(c *Config) {
		s := c.Servers[0]
		s.Mask, s.MaskMCP, s.Routes = croppingMask{}, true, meteredRoutes{s.Routes.(fakeRoutes), sent}
		for _, configure := range more {
			configure(c)
		}
	}
}

// checkTraffic checks the traffic of a call. The mask has removed cut long texts from its
// responses.
func checkTraffic(t testing.TB, c inbound.Call, sent *atomic.Int64, cut int) {
	t.Helper()
	bytes := sent.Swap(0)
	if c.Received != bytes || c.Sent != bytes-int64(cut*len(longText)) || bytes == 0 {
		t.Errorf("server sent %d bytes, %d were cut: got %d received, %d sent", bytes, cut*len(longText), c.Received, c.Sent)
	}
	if c.Masked.Strings != cut || c.Masked.Chars != cut*len(longText) || len(c.Masked.Originals) != cut {
		t.Errorf("cut %d texts: got %+v", cut, c.Masked)
	}
}

// answers are functions that respond to a call with a text.
var answers = map[string]func(w http.ResponseWriter, a *incoming, result string){
	"JSON": func(w http.ResponseWriter, a *incoming, result string) { a.reply(w, result) },
	"events": func(w http.ResponseWriter, a *incoming, result string) {
		a.send(w, `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"`+longText+`"}}`)
		a.finish(w, result)
	},
}

func textOf(text string) string {
	return `{"resultType":"complete","content":[{"type":"text","text":` + string(jsonrpc.Quote(text)) + `}]}`
}

func TestTrafficOfCalls(t *testing.T) {
	for form, answer := range answers {
		t.Run(form, func(t *testing.T) {
			var sent atomic.Int64
			cut := map[string]int{"JSON": 1, "events": 2}[form]
			both(t, meterTraffic(&sent), func() []*fakeServer {
				return []*fakeServer{newPeer("a").hasTools("x").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
					answer(w, a, textOf("é "+longText))
				})}
			}, func(t *testing.T, u *testClient, _ []*fakeServer) {
				u.ask("tools/list", "") // is not counted
				u.call("a::x")
				checkTraffic(t, oneCall(t, u.g.audited(t)), &sent, cut)
			})
			for _, header := range []string{"X-Single", "X-Rpc"} {
				t.Run(header, func(t *testing.T) {
					p := legacyPeer("a").handle("tools/call",
						func(w http.ResponseWriter, a *incoming) { answer(w, a, textOf(longText)) })
					p.sessions = false
					u := newGateway(t, meterTraffic(&sent), p).user(t, mcp.Legacy)
					u.header.Set(header, "a")
					if s := u.call("x"); s.Error != nil || strings.Contains(s.answer, longText) {
						t.Errorf("got %s", s.body)
					}
					checkTraffic(t, oneCall(t, u.g.audited(t)), &sent, cut)
				})
			}
		})
	}
}

// Responses of the gateway itself have no traffic from servers.
func TestTrafficOfTheGatewayItself(t *testing.T) {
	u := newGateway(t, func(c *Config) { c.Discovery = true }, legacyPeer("a").hasTools("x")).legacy(t)
	u.use("search_tools", `{"query":"x"}`)
	if got := oneCall(t, u.g.audited(t)); got.Received != 0 || got.Sent != 0 || got.Outcome != upstream.OutcomeOK {
		t.Errorf("got %+v", got)
	}
}

// The server received the call twice and responded to both.
func TestTrafficOfCallInLostSession(t *testing.T) {
	var sent atomic.Int64
	p := legacyPeer("a").hasTools("x")
	p.onUnknownSession = func(w http.ResponseWriter, a *incoming) { a.refuse(w, http.StatusNotFound, -32001, longText) }
	u := newGateway(t, meterTraffic(&sent), p).legacy(t)
	u.call("a::x")
	u.g.audited(t)
	sent.Store(0)
	p.forget()
	u.call("a::x")
	checkTraffic(t, oneCall(t, u.g.audited(t)), &sent, 1)
}

func TestTrafficOfResumedCalls(t *testing.T) {
	for name, era := range bothEras {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var sent atomic.Int64
				p := legacyPeer("a")
				p.cutStream("tools/call", func(c *connection) { c.progress(1) }, func(c *connection) { c.progress(2) },
					func(c *connection) { c.result(textOf(longText)) })
				g := newInMemory(t, meterTraffic(&sent), p)
				defer g.close()
				g.as(t, era).callWithToken()
				if p.resumed() != 2 {
					t.Errorf("resumed %d times", p.resumed())
				}
				checkTraffic(t, oneCall(t, g.audited(t)), &sent, 1)
			})
		})
	}
}

// A call with server requests is one exchange with a legacy server. With a modern server, it is one
// exchange per round.
func TestTrafficOfCallsWithServerRequests(t *testing.T) {
	var sent atomic.Int64
	t.Run("a modern client", func(t *testing.T) {
		u := newGateway(t, meterTraffic(&sent), legacyPeer("a").handle("tools/call", askingTool(2))).modern(t)
		s := u.call("a::x")
		for _, text := range []string{"short", longText} {
			if got := oneCall(t, u.g.audited(t)); got.Received != 0 || got.Sent != 0 {
				t.Errorf("reported before the response: %+v", got)
			}
			in, key := readInput(t, s)
			s = u.retry("a::x", in, key, `{"action":"accept","content":{"a":"`+text+`"}}`)
		}
		checkTraffic(t, oneCall(t, u.g.audited(t)), &sent, 1)
	})
	t.Run("a legacy client", func(t *testing.T) {
		u := newGateway(t, meterTraffic(&sent), modernPeer("a").handle("tools/call", inputTool(2))).legacy(t)
		call := u.startRequest("tools/call", `{"name":"a::x"}`)
		for range 2 {
			u.respond(call.nextOf("elicitation/create"), `{"action":"accept","content":{"a":"`+longText+`"}}`)
		}
		call.waitEnd()
		checkTraffic(t, oneCall(t, u.g.audited(t)), &sent, 1)
	})
	t.Run("a server that does not end its stream", func(t *testing.T) {
		u := newGateway(t, meterTraffic(&sent), legacyPeer("a").
			handle("tools/call", func(w http.ResponseWriter, a *incoming) {
				a.finish(w, textOf(longText))
				<-a.Context().Done()
			})).modern(t)
		u.call("a::x")
		checkTraffic(t, oneCall(t, u.g.audited(t)), &sent, 1)
	})
}

// bodyAuth is an Authenticator that needs the body.
type bodyAuth struct{ headerAuth }

func (bodyAuth) BodyNeeded(*http.Request) int64 { return 1 << 20 }

func TestRefusedCalls(t *testing.T) {
	const arguments = `{"n":1}`
	denied := inbound.Call{
		Client: "ann", Identity: "ann", Owner: access.Identity("ann", "a secret of it"), Outcome: "acl_denied",
		Rule:   "deny a::denied",
		Target: mcp.Target{Server: "a", Kind: mcp.Tool, Name: "denied"},
	}
	g := newGateway(t, func(c *Config) {
		rulesForAll("deny a::denied")(c)
		c.Auth, c.Record = bodyAuth{}, true
	}, modernPeer("a"))
	for _, test := range []struct {
		name, header, identity, tool string
		want                         inbound.Call
	}{
		{"by a rule", "", "ann", "a::denied", denied},
		{"by a rule at one server", "X-Single", "ann", "denied", denied},
		{"by a rule at /rpc", "X-Rpc", "ann", "denied", denied},
		{"without credentials", "", "", "a::x", inbound.Call{
			Client: access.Anonymous, Outcome: "unauthorized", Target: mcp.Target{Kind: mcp.Tool, Name: "a::x"},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			u := g.user(t, mcp.Modern)
			u.identity = test.identity
			if test.header != "" {
				u.header.Set(test.header, "a")
			}
			s := u.use(test.tool, arguments)
			got := oneCall(t, g.reported(t))
			switch kept := got.Content; {
			case test.identity == "":
				if kept != nil {
					t.Errorf("recorded for an unknown client: %s, %s", kept.Arguments, kept.Result)
				}
			case kept == nil || string(kept.Arguments) != arguments ||
				!strings.Contains(s.answer, `"error":`+string(kept.Result)):
				t.Errorf("response %s, recorded %+v", s.body, kept)
			}
			if !got.Refused || got.Duration <= 0 || got.Received != 0 || got.RequestID != "1" || got.Method != "tools/call" {
				t.Errorf("got %+v", got)
			}
			got = inbound.Call{
				Client: got.Client, Identity: got.Identity, Owner: got.Owner, Outcome: got.Outcome, Rule: got.Rule,
				Target: got.Target,
			}
			if fmt.Sprint(got) != fmt.Sprint(test.want) {
				t.Errorf("got  %+v\nwant %+v", got, test.want)
			}
		})
	}
}

// A request that is refused because of its headers does not count as a call.
func TestRefusedRequestsWithoutABody(t *testing.T) {
	g := newGateway(t, func(c *Config) { c.Auth = headerAuth{} }, modernPeer("a"))
	g.user(t, mcp.Modern).call("a::x")
	if calls := g.reported(t); len(calls) > 0 {
		t.Errorf("got %+v", calls)
	}
}

func TestOwnersOfCalls(t *testing.T) {
	g := newGateway(t, nil, modernPeer("a"))
	for identity, want := range map[string]string{"": "@192.0.2.1", "ann": "ann"} {
		u := g.user(t, mcp.Modern)
		u.identity = identity
		u.call("a::x")
		if got := oneCall(t, g.reported(t)); got.Owner != want || got.Identity != identity {
			t.Errorf("%q: got %+v", identity, got)
		}
	}
}

// recordCalls configures a gateway that records calls.
func recordCalls(c *Config) { c.Record = true }

// checkContent checks that the recorded result of a call is the one that the client received.
func checkContent(t testing.TB, c inbound.Call, s reply, arguments string) {
	t.Helper()
	want := s.Result
	if want == nil {
		var answer struct{ Error json.RawMessage }
		_ = json.Unmarshal([]byte(s.answer), &answer)
		want = answer.Error
	}
	if c.Content == nil || want == nil || string(c.Content.Arguments) != arguments ||
		string(c.Content.Result) != string(want) {
		t.Errorf("response %s, recorded %+v", s.body, c.Content)
	}
}

func TestRecordedCalls(t *testing.T) {
	fail := func(w http.ResponseWriter, a *incoming, _ string) { a.refuse(w, http.StatusOK, -32099, "no") }
	forms := map[string]func(http.ResponseWriter, *incoming, string){
		"JSON": answers["JSON"], "events": answers["events"], "an error": fail,
		"an event of several lines": func(w http.ResponseWriter, a *incoming, result string) {
			a.send(w, "{\"jsonrpc\":\"2.0\",\ndata: \"id\":"+a.id()+",\ndata:\"result\":"+result+"}")
		},
		"an event after the response": func(w http.ResponseWriter, a *incoming, result string) {
			a.finish(w, result)
			a.send(w, `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"late"}}`)
		},
	}
	for form, answer := range forms {
		t.Run(form, func(t *testing.T) {
			tool := func(w http.ResponseWriter, a *incoming) { answer(w, a, textOf("é <b> "+longText)) }
			configure := meterTraffic(new(atomic.Int64), recordCalls)
			both(t, configure, func() []*fakeServer { return []*fakeServer{newPeer("a").handle("tools/call", tool)} },
				func(t *testing.T, u *testClient, _ []*fakeServer) {
					s := u.use("a::x", `{"n":1}`)
					checkContent(t, oneCall(t, u.g.audited(t)), s, `{"n":1}`)
				})
			for _, header := range []string{"X-Single", "X-Rpc"} {
				t.Run(header, func(t *testing.T) {
					p := legacyPeer("a").handle("tools/call", tool)
					p.sessions = false
					u := newGateway(t, configure, p).user(t, mcp.Legacy)
					u.header.Set(header, "a")
					s := u.use("x", `{"n":1}`)
					checkContent(t, oneCall(t, u.g.audited(t)), s, `{"n":1}`)
				})
			}
		})
	}
}

// Responses of the gateway itself are recorded, too.
func TestRecordedResponsesOfTheGateway(t *testing.T) {
	both(t, func(c *Config) { c.Discovery, c.Record = true, true }, func() []*fakeServer {
		return []*fakeServer{newPeer("a").handle("tools/call",
			func(w http.ResponseWriter, _ *incoming) { w.WriteHeader(http.StatusBadGateway) })}
	}, func(t *testing.T, u *testClient, _ []*fakeServer) {
		for _, tool := range []string{"search_tools", "a::fails", "none::x"} {
			s := u.use(tool, `{"query":"x"}`)
			checkContent(t, oneCall(t, u.g.audited(t)), s, `{"query":"x"}`)
		}
	})
}

func TestRecordedCallsAreRedacted(t *testing.T) {
	redactor, err := redact.New([]string{`sk-[a-z]+`}, []string{"password"})
	if err != nil {
		t.Fatal(err)
	}
	both(t, func(c *Config) { c.Record, c.Clients = true, []*access.Client{{Name: "*", Redactor: redactor}} },
		func() []*fakeServer {
			return []*fakeServer{newPeer("a").handle("tools/call",
				func(w http.ResponseWriter, a *incoming) { a.reply(w, textOf("sk-abc")) })}
		}, func(t *testing.T, u *testClient, _ []*fakeServer) {
			s := u.use("a::x", `{"password":"abc","n":"sk-abc"}`)
			checkContent(t, oneCall(t, u.g.audited(t)), s, `{"password":"[redacted]","n":"[redacted]"}`)
			if strings.Contains(s.body, "sk-abc") {
				t.Errorf("got %s", s.body)
			}
			refused := u.ask("resources/read", `{"uri":"x://sk-abc"}`) // by the gateway itself, with the URI
			got := oneCall(t, u.g.audited(t))
			if !strings.Contains(refused.body, "sk-abc") || got.Content == nil ||
				!strings.Contains(string(got.Content.Result), "[redacted]") {
				t.Errorf("of %s, recorded %+v", refused.body, got.Content)
			}
		})
}

// Of content over 64 KiB, the beginning is recorded as a string, even if it is streamed.
func TestRecordedCallsAreLimited(t *testing.T) {
	for _, size := range []int{upstream.MaxRecorded, upstream.MaxRecorded + 1, upstream.MaxRecorded + 2, 3 << 20} {
		const frame = `{"content":""}`
		result := `{"content":"` + strings.Repeat("é", (size-len(frame))/2) + strings.Repeat("a", size%2) + `"}`
		for form, answer := range answers {
			for _, header := range []string{"", "X-Single", "X-Rpc"} {
				t.Run(fmt.Sprint(size, " bytes, ", form, " ", header), func(t *testing.T) {
					p := legacyPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) { answer(w, a, result) })
					p.sessions = header == ""
					u, tool := newGateway(t, recordCalls, p).user(t, mcp.Legacy), "x"
					if header != "" {
						u.header.Set(header, "a")
					} else {
						u.connect()
						tool = "a::x"
					}
					if s := u.use(tool, result); string(s.Result) != result {
						t.Fatalf("got %.200s", s.body)
					}
					kept := oneCall(t, u.g.audited(t)).Content
					for _, got := range [][]byte{kept.Arguments, kept.Result} {
						if size == upstream.MaxRecorded {
							if string(got) != result {
								t.Errorf("got %.100s", got)
							}
							continue
						}
						var text string
						if err := json.Unmarshal(got, &text); err != nil || !utf8.Valid(got) {
							t.Fatalf("%v: %.100q", err, got)
						}
						head, ok := strings.CutSuffix(text, fmt.Sprintf("… (%d bytes)", len(result)))
						if !ok || !strings.HasPrefix(result, head) || len(head) > upstream.MaxRecorded ||
							len(head) < upstream.MaxRecorded-utf8.UTFMax {
							t.Errorf("got %d: %.50s … %s", len(head), text, text[len(text)-30:])
						}
					}
				})
			}
		}
	}
}

// Raw results that operators request without redaction are not recorded.
func TestRecordedCallsOfOperators(t *testing.T) {
	redactor, err := redact.New([]string{`sk-[a-z]+`}, nil)
	if err != nil {
		t.Fatal(err)
	}
	decodeURIs, redacting := []*access.Client{{Name: "ann"}}, []*access.Client{{Name: "ann", Redactor: redactor}}
	for _, test := range []struct {
		name    string
		clients []*access.Client
		as      string
		raw     bool
		kept    bool
	}{
		{"without redaction", decodeURIs, "", false, true},
		{"raw", decodeURIs, "", true, false},
		{"without a client", redacting, "", false, false},
		{"as a client", redacting, "ann", false, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := legacyPeer("a").hasTools("x").handle("tools/call",
				func(w http.ResponseWriter, a *incoming) { a.reply(w, textOf(longText)) })
			g := newGateway(t, func(c *Config) {
				c.Record, c.Clients = true, test.clients
				c.Servers[0].Mask, c.Servers[0].MaskMCP = croppingMask{}, true
			}, p)
			o := g.NewOperator(httptest.NewRequest(http.MethodPost, "/mcp", nil), test.as)
			o.Raw = test.raw
			w := httptest.NewRecorder()
			if err := o.Call(w, ToolCall{Name: "a::x",
				Arguments: func(*Tool, []string) ([]byte, error) { return []byte(`{}`), nil }}); err != nil {
				t.Fatal(err)
			}
			got := oneCall(t, g.audited(t))
			if (got.Content != nil) != test.kept || (len(got.Masked.Originals) > 0) != test.kept {
				t.Errorf("got %+v", got)
			}
			if got.Client != access.OperatorLabel || got.Received == 0 || (got.Masked.Strings == 0) != test.raw {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestLinks(t *testing.T) {
	both(t, nil, func() []*fakeServer { return []*fakeServer{newPeer("a").hasTools("x"), newPeer("b")} },
		func(t *testing.T, u *testClient, _ []*fakeServer) {
			u.call("a::x")
			if got := u.g.Links(); got["a"] != 1 {
				t.Errorf("got %v", got)
			}
			if u.era == mcp.Legacy {
				if _, err := u.do(t.Context(), http.MethodDelete, ""); err != nil {
					t.Fatal(err)
				}
				await.Until(t, "the sessions have ended", func() bool { return u.g.Links()["a"] == 0 })
			}
		})
}
