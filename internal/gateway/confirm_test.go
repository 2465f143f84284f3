package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/ratelimit"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolview"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// confirmRule requires confirmation of the tool x of the server a.
func confirmRule(c *Config) {
	c.Clients = []*access.Client{{Name: "*", Policy: rulesOf("confirm a::x"), View: "confirming"}}
}

const agreed, declined = `{"action":"accept","content":{}}`, `{"action":"decline"}`

// A confirmCall is a call that waits for confirmation.
type confirmCall struct {
	u       *testClient
	params  string // params of the call
	message string // text for the person

	call     *liveReply // legacy
	question received   // the server request in call

	in inputResult // modern
}

// askConfirmation makes a call that requires confirmation.
func (u *testClient) askConfirmation(params string) *confirmCall {
	u.t.Helper()
	a := &confirmCall{u: u, params: params}
	var raw json.RawMessage
	if u.era == mcp.Legacy {
		a.call = u.startRequest("tools/call", params)
		a.question = a.call.nextOf("elicitation/create")
		m := a.question.parts()
		raw = m.Literal(jsonrpc.Params)
	} else {
		in, key := readInput(u.t, u.ask("tools/call", params))
		if key != "confirm" || in.InputRequests[key].Method != "elicitation/create" {
			u.t.Fatalf("got request %s %s", key, in.InputRequests[key].Method)
		}
		a.in, raw = in, in.InputRequests[key].Params
	}
	var form struct {
		Message         string
		RequestedSchema struct {
			Type       string
			Properties map[string]any
		}
		Mode string
	}
	if err := json.Unmarshal(raw, &form); err != nil {
		u.t.Fatal(err)
	}
	if form.RequestedSchema.Type != "object" || form.RequestedSchema.Properties == nil || form.Mode != "" {
		u.t.Errorf("invalid schema for clients: %s", raw)
	}
	a.message = form.Message
	return a
}

// answer sends the person's response and returns the result of the call.
func (a *confirmCall) answer(response string) reply {
	a.u.t.Helper()
	if a.u.era == mcp.Modern {
		return a.u.ask("tools/call", a.again(a.params, response))
	}
	a.u.respond(a.question, response)
	s := reply{answer: a.call.nextOf("").data}
	s.body = s.answer
	_ = json.Unmarshal([]byte(s.answer), &s)
	return s
}

// again returns the params of the repeated call with a response.
func (a *confirmCall) again(params, response string) string {
	return withInput(params, a.in.RequestState, "confirm", response)
}

// withInput returns the params of a repeated call.
func withInput(params, state, key, response string) string {
	return strings.TrimSuffix(params, "}") +
		fmt.Sprintf(`,"inputResponses":{%q:%s},"requestState":%q}`, key, response, state)
}

const (
	argumentsX = `{"path":"/tmp/n","deep":[1,{"k":12345678901234567890}]}`
	callX      = `{"name":"a::x","arguments":` + argumentsX + `}`
)

func peersWithX() []*fakeServer { return []*fakeServer{newPeer("a").hasTools("x", "y")} }

func TestPersonConfirmsACall(t *testing.T) {
	for name, tt := range map[string]struct {
		configure func(*Config)
		params    string
	}{
		"several servers": {confirmRule, callX},
		"transparent": {func(c *Config) { confirmRule(c); c.Naming = mcp.Naming{} },
			strings.Replace(callX, "a::", "", 1)},
		"by call_tool": {func(c *Config) { confirmRule(c); c.Discovery = true },
			`{"name":"call_tool","arguments":` + callX + `}`},
		"as a task": {confirmRule, strings.TrimSuffix(callX, "}") + `,"task":{"ttl":1000}}`},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, tt.configure, peersWithX, func(t *testing.T, u *testClient, peers []*fakeServer) {
				a := u.askConfirmation(tt.params)
				if n := peers[0].count("tools/call"); n != 0 {
					t.Fatalf("the server got %d calls before the confirmation", n)
				}
				for _, part := range []string{"\nServer: a\n", "\nTool: x\n", "\n  \"path\": \"/tmp/n\",\n", "1234567890"} {
					if !strings.Contains(a.message, part) {
						t.Errorf("the message lacks %q: %s", part, a.message)
					}
				}
				if s := a.answer(agreed); !strings.Contains(s.answer, `"text":"a"`) {
					t.Fatalf("got %s", s.body)
				}
				calls := peers[0].requests("tools/call")
				if len(calls) != 1 {
					t.Fatalf("the server got %d calls", len(calls))
				}
				if got := calls[0].message; string(got.Literal(jsonrpc.Arguments)) != argumentsX ||
					!got.Is(jsonrpc.Name, "x") || got.Has(jsonrpc.RequestState) || got.Has(jsonrpc.InputResponses) {
					t.Errorf("the server got %s", got.Raw)
				}
				if denials := u.g.config.Observer.(*recorder).takeDenials(); len(denials) != 0 {
					t.Errorf("denied: %+v", denials)
				}
			})
		})
	}
}

func TestOtherToolsAreNotConfirmed(t *testing.T) {
	both(t, confirmRule, peersWithX, func(t *testing.T, u *testClient, _ []*fakeServer) {
		if s := u.call("a::y"); !strings.Contains(s.answer, `"text":"a"`) {
			t.Errorf("got %s", s.body)
		}
	})
}

func TestCallThatIsNotConfirmed(t *testing.T) {
	for name, response := range map[string]string{
		"declined": declined, "canceled": `{"action":"cancel"}`, "no action": `{}`, "another action": `{"action":"accepted"}`,
		"not an object": `["accept"]`, "null": `null`, "in content": `{"action":"decline","content":{"action":"accept"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			both(t, confirmRule, peersWithX, func(t *testing.T, u *testClient, peers []*fakeServer) {
				s := u.askConfirmation(callX).answer(response)
				u.wasRefused(&s, peers[0], "confirmation_declined")
			})
		})
	}
	t.Run("an error", func(t *testing.T) {
		p := legacyPeer("a").hasTools("x")
		u := newGateway(t, confirmRule, p).legacy(t)
		a := u.askConfirmation(callX)
		u.post(`{"jsonrpc":"2.0","id":` + a.question.id() + `,"error":{"code":-1,"message":"no window"}}`)
		s := reply{answer: a.call.nextOf("").data}
		_ = json.Unmarshal([]byte(s.answer), &s)
		u.wasRefused(&s, p, "confirmation_declined")
	})
}

// wasRefused checks that a call failed with a code, was denied once, and did not reach the server.
func (u *testClient) wasRefused(s *reply, p *fakeServer, code string) {
	u.t.Helper()
	if s.symbol() != code || s.Error.Data.ServerName != "a" || s.status != 0 && s.status != http.StatusOK {
		u.t.Errorf("got %d %s", s.status, s.answer)
	}
	denials := u.g.config.Observer.(*recorder).takeDenials()
	x := mcp.Target{Server: "a", Kind: mcp.Tool, Name: "x"}
	if len(denials) != 1 || denials[0].Code != code || denials[0].Target != x {
		u.t.Errorf("denied: %+v", denials)
	}
	if n := p.count("tools/call"); n != 0 {
		u.t.Errorf("the server got %d calls", n)
	}
}

func TestLateConfirmation(t *testing.T) {
	t.Run("legacy", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := legacyPeer("a").hasTools("x")
			g := newInMemory(t, confirmRule, p)
			defer g.close()
			u := g.legacy(t)
			a := u.askConfirmation(callX)
			began := time.Now()
			var s reply
			for e := range a.call.events {
				if e.isAnswer() {
					_ = json.Unmarshal([]byte(e.data), &s)
					break
				}
			}
			if took := time.Since(began); took != streamable.ServerRequestTimeout {
				t.Errorf("took %v", took)
			}
			u.respond(a.question, agreed)
			u.wasRefused(&s, p, "timeout")
			a.call.disconnect()
		})
	})
	t.Run("modern", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := modernPeer("a").hasTools("x")
			g := newInMemory(t, confirmRule, p)
			defer g.close()
			a := g.modern(t).askConfirmation(callX)
			time.Sleep(streamable.ServerRequestTimeout)
			if s := a.answer(agreed); s.symbol() != "invalid_params" || p.count("tools/call") != 0 {
				t.Errorf("got %s", s.body)
			}
		})
	})
}

// A client can cancel a call that waits for confirmation, or disconnect. No state remains.
func TestCallThatIsCanceledBeforeItIsConfirmed(t *testing.T) {
	for _, p := range []*fakeServer{legacyPeer("a"), modernPeer("a")} {
		for _, known := range []bool{false, true} { // whether the client has a session with the server
			for _, hangUp := range []bool{true, false} {
				p.hasTools("x", "y")
				g := newGateway(t, confirmRule, p)
				u := g.legacy(t)
				if known {
					u.call("a::y")
				}
				before := p.count("tools/call")
				g.config.Observer.(*recorder).takeRecords()
				a := u.askConfirmation(callX)
				if hangUp {
					a.call.disconnect()
				} else {
					u.notify("notifications/cancelled", `{"requestId":`+fmt.Sprint(u.last.Load())+`}`)
					a.call.waitEnd()
				}
				c := g.known()[0]
				await.Until(t, "no pending server request", func() bool { return !c.hasServerRequest() && c.calls.any() == nil })
				u.respond(a.question, agreed)
				if n := p.count("tools/call") - before; n != 0 || p.count("notifications/cancelled") != 0 {
					t.Errorf("the server got %d calls and %d cancellations", n, p.count("notifications/cancelled"))
				}
				if denials := g.config.Observer.(*recorder).takeDenials(); len(denials) != 0 {
					t.Errorf("denied: %+v", denials)
				}
				await.Until(t, "the call is canceled", func() bool {
					return slices.ContainsFunc(g.config.Observer.(*recorder).takeRecords(), func(r upstream.Record) bool {
						return r.ClientMethod == "tools/call" && r.Outcome == upstream.OutcomeCanceled
					})
				})
			}
		}
	}
}

func TestConfirmationCountsForItsCallOnly(t *testing.T) {
	p := modernPeer("a").hasTools("x", "z")
	g := newGateway(t, func(c *Config) {
		c.Clients = []*access.Client{{Name: "*", Policy: rulesOf("confirm a::*")}}
	}, p)
	ann, bob := g.modern(t), g.modern(t)
	ann.identity, bob.identity = "ann", "bob"
	a := ann.askConfirmation(callX)
	other := strings.Replace(callX, "/tmp/n", "/tmp/m", 1)
	for name, s := range map[string]reply{
		"another client":   bob.ask("tools/call", a.again(callX, agreed)),
		"another tool":     ann.ask("tools/call", a.again(strings.Replace(callX, "x", "z", 1), agreed)),
		"another argument": ann.ask("tools/call", a.again(other, agreed)),
		"no arguments":     ann.ask("tools/call", a.again(`{"name":"a::x"}`, agreed)),
	} {
		if s.symbol() != "invalid_params" || !strings.Contains(s.body, "belongs to another request") {
			t.Errorf("%s: %s", name, s.body)
		}
	}
	if n := p.count("tools/call"); n != 0 {
		t.Fatalf("the server got %d calls", n)
	}
	if s := a.answer(agreed); !strings.Contains(s.answer, `"text":"a"`) {
		t.Fatalf("got %s", s.body)
	}
	for range 3 {
		if s := a.answer(agreed); s.symbol() != "invalid_params" {
			t.Errorf("a replay: %s", s.body)
		}
	}
	a = ann.askConfirmation(callX)
	a.answer(declined)
	if s := a.answer(agreed); s.symbol() != "invalid_params" {
		t.Errorf("after a declined confirmation: %s", s.body)
	}
	a = ann.askConfirmation(callX)
	restarted := newGateway(t, confirmRule, p)
	u := restarted.modern(t)
	u.identity = "ann"
	if s := u.ask("tools/call", a.again(callX, agreed)); s.symbol() != "invalid_params" {
		t.Errorf("in another process: %s", s.body)
	}
	if n := p.count("tools/call"); n != 1 {
		t.Errorf("the server got %d calls", n)
	}
}

func TestToolsToConfirmNeedElicitation(t *testing.T) {
	for can, shown := range map[string]bool{
		`{"elicitation":{}}`: true, `{"elicitation":{"form":{}}}`: true, `{"elicitation":{"form":{},"url":{}}}`: true,
		`{}`: false, `{"elicitation":{"url":{}}}`: false, `{"sampling":{},"roots":{}}`: false, `{"elicitation":null}`: false,
	} {
		for name, era := range bothEras {
			t.Run(name+" "+can, func(t *testing.T) {
				p := legacyPeer("a").hasTools("x", "y")
				u := newGateway(t, confirmRule, p).user(t, era)
				u.capabilities = can
				if era == mcp.Legacy {
					u.connect()
				}
				want := []string{"a::y"}
				if shown {
					want = []string{"a::x", "a::y"}
				}
				if got := namesIn(t, u.ask("tools/list", `{}`), "tools", "name"); !slices.Equal(got, want) {
					t.Errorf("listed: %q", got)
				}
				if shown {
					u.askConfirmation(callX)
					return
				}
				if s := u.ask("tools/call", callX); s.symbol() != "confirmation_required" || s.status != http.StatusForbidden {
					t.Errorf("got %d %s", s.status, s.body)
				}
				if p.count("tools/call") != 0 {
					t.Error("the server got the call")
				}
			})
		}
	}
	t.Run("a client that does not accept event streams", func(t *testing.T) {
		p := legacyPeer("a").hasTools("x")
		u := newGateway(t, confirmRule, p).legacy(t)
		u.accept = "application/json"
		if s := u.ask("tools/call", callX); s.symbol() != "confirmation_required" || p.count("tools/call") != 0 {
			t.Errorf("got %s", s.body)
		}
	})
	t.Run("an operator", func(t *testing.T) {
		p := legacyPeer("a").hasTools("x", "y")
		g := newGateway(t, confirmRule, p)
		if got := listTools(g, "ann"); !slices.Equal(got, []string{"a a::x", "a a::y"}) {
			t.Errorf("listed: %q", got)
		}
		w := httptest.NewRecorder()
		err := g.NewOperator(httptest.NewRequest(http.MethodPost, "/mcp", nil), "ann").Call(w, ToolCall{
			Name: "a::x", Arguments: func(*Tool, []string) ([]byte, error) { return []byte("{}"), nil },
		})
		if err != nil || !strings.Contains(w.Body.String(), "confirmation_required") || p.count("tools/call") != 0 {
			t.Errorf("%v, %s", err, w.Body)
		}
	})
}

// At a single-server endpoint, sessions belong to the server, so the gateway can ask only with a
// result.
func TestConfirmationAtOneServer(t *testing.T) {
	single := strings.Replace(callX, "a::", "", 1)
	for name, era := range bothEras {
		for kind, header := range map[string]string{"single": "X-Single", "rpc": "X-Rpc"} {
			t.Run(name+" "+kind, func(t *testing.T) {
				p := modernPeer("a").hasTools("x", "y")
				p.eras[mcp.Legacy], p.sessions = true, kind == "single"
				g := newGateway(t, confirmRule, p)
				u := g.user(t, era)
				u.header.Set(header, "a")
				if era == mcp.Legacy && kind == "single" {
					u.connect()
				}
				listed := namesIn(t, u.ask("tools/list", `{}`), "tools", "name")
				if era == mcp.Modern && kind == "single" {
					if !slices.Equal(listed, []string{"x", "y"}) {
						t.Errorf("listed: %q", listed)
					}
					a := u.askConfirmation(single)
					if p.count("tools/call") != 0 {
						t.Fatal("the server got the call")
					}
					if s := a.answer(agreed); !strings.Contains(s.answer, `"text":"a"`) {
						t.Errorf("got %s", s.body)
					}
					if s := a.answer(agreed); s.symbol() != "invalid_params" {
						t.Errorf("a replay: %s", s.body)
					}
					without := strings.Replace(u.request("7", "tools/call", single), `"id":7,`, "", 1)
					if s := u.post(without); s.symbol() != "confirmation_required" {
						t.Errorf("a call without an id: %s", s.body)
					}
					if calls := p.requests("tools/call"); len(calls) != 1 || strings.Contains(calls[0].body, "requestState") {
						t.Errorf("the server got %d calls", len(calls))
					}
					p.forgetCalls()
					g.config.Observer.(*recorder).takeDenials()
					s := u.askConfirmation(single).answer(declined)
					u.wasRefused(&s, p, "confirmation_declined")
					return
				}
				if !slices.Equal(listed, []string{"y"}) {
					t.Errorf("listed: %q", listed)
				}
				s := u.ask("tools/call", single)
				if s.symbol() != "confirmation_required" || !strings.Contains(s.Error.Message, "/mcp") {
					t.Errorf("got %s", s.body)
				}
				if p.count("tools/call") != 0 {
					t.Error("the server got the call")
				}
			})
		}
	}
}

// forgetCalls drops the recorded requests.
func (p *fakeServer) forgetCalls() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.arrivals = nil
}

// The client first confirms the call, and then logs in.
func TestConfirmationBeforeALogin(t *testing.T) {
	for _, p := range []*fakeServer{legacyPeer("a"), modernPeer("a")} {
		for name, era := range bothEras {
			t.Run(name, func(t *testing.T) {
				p.hasTools("x").forgetCalls()
				g, login := newLoginGateway(t, p, confirmRule)
				u := g.user(t, era)
				u.identity, u.capabilities = "ann", `{"elicitation":{"url":{},"form":{}}}`
				if era == mcp.Legacy {
					u.connect()
				}
				a := u.askConfirmation(callX)
				if era == mcp.Legacy {
					u.respond(a.question, agreed)
					u.respond(a.call.nextOf("elicitation/create"), `{"action":"accept"}`)
					login.logIn(g, "ann")
					for {
						e := a.call.next()
						if e.method() == "elicitation/create" {
							t.Fatal("got a second confirmation")
						}
						if e.isAnswer() {
							break
						}
					}
				} else {
					in, key := readInput(t, a.answer(agreed))
					if key != "login" {
						t.Fatalf("got request %s", key)
					}
					params := withInput(callX, in.RequestState, key, `{"action":"accept"}`)
					if s := u.ask("tools/call", strings.Replace(params, "/tmp/n", "/tmp/m", 1)); s.symbol() != "invalid_params" {
						t.Errorf("with another argument: %s", s.body)
					}
					again := u.start(http.MethodPost, u.request(u.nextID(), "tools/call", params))
					login.logIn(g, "ann")
					if answer := again.nextOf(""); !strings.Contains(answer.data, `"text":"a"`) {
						t.Errorf("got %s", answer.data)
					}
					if s := u.ask("tools/call", params); s.symbol() != "invalid_params" {
						t.Errorf("a replay of the login: %s", s.body)
					}
				}
				if n := p.count("tools/call"); n != 1 {
					t.Errorf("the server got %d calls", n)
				}
			})
		}
	}
}

// A modern server asks for input of its own, in several rounds.
func TestConfirmedCallWithInput(t *testing.T) {
	const rounds = 3
	for name, params := range map[string]string{"": callX, "a": strings.Replace(callX, "a::", "", 1)} {
		t.Run("modern client at "+name, func(t *testing.T) {
			p := modernPeer("a").hasTools("x").handle("tools/call", inputTool(rounds))
			g := newGateway(t, confirmRule, p)
			u := g.modern(t)
			u.header.Set("X-Single", name)
			s := u.askConfirmation(params).answer(agreed)
			for i := range rounds {
				in, key := readInput(t, s)
				if key != "k é" {
					t.Fatalf("got request %s", key)
				}
				next := withInput(params, in.RequestState, key, fmt.Sprintf(`{"action":"accept","i":%d}`, i))
				if s := u.ask("tools/call", strings.Replace(next, "/tmp/n", "/tmp/m", 1)); s.symbol() != "invalid_params" {
					t.Errorf("with another argument: %s", s.body)
				}
				s = u.ask("tools/call", next)
				if s := u.ask("tools/call", next); s.symbol() != "invalid_params" {
					t.Errorf("a replay: %s", s.body)
				}
				last := p.requests("tools/call")[i+1].message
				if got := last.Text(jsonrpc.RequestState); got != fmt.Sprintf(`{"round":%d}`, i+1) {
					t.Errorf("the server got the state %s", got)
				}
			}
			n := p.count("tools/call")
			if !strings.Contains(string(s.Result), `"last":{"k é":{"action":"accept","i":2}}`) || n != rounds+1 {
				t.Errorf("after %d calls: %s", n, s.body)
			}
			// A state of the server is not a confirmation.
			a := u.askConfirmation(withInput(params, `{"round":3}`, "k é", `{"mine":1}`))
			if p.count("tools/call") != rounds+1 {
				t.Error("the server got the call")
			}
			s = u.ask("tools/call", a.again(params, agreed))
			if !strings.Contains(string(s.Result), `"last":{"k é":{"mine":1}}`) {
				t.Errorf("the earlier response of the client is lost: %s", s.body)
			}
		})
	}
	t.Run("without a state", func(t *testing.T) {
		p := modernPeer("a").hasTools("x").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
			if a.message.Has(jsonrpc.InputResponses) {
				a.reply(w, fmt.Sprintf(`{"resultType":"complete","state":%t}`, a.message.Has(jsonrpc.RequestState)))
				return
			}
			a.reply(w, `{"resultType":"input_required","inputRequests":{"k":{"method":"roots/list"}}}`)
		})
		u := newGateway(t, confirmRule, p).modern(t)
		in, key := readInput(t, u.askConfirmation(callX).answer(agreed))
		s := u.ask("tools/call", withInput(callX, in.RequestState, key, `{"roots":[]}`))
		if !strings.Contains(s.answer, `"state":false`) {
			t.Errorf("got %s", s.body)
		}
	})
	t.Run("legacy client", func(t *testing.T) {
		p := modernPeer("a").hasTools("x").handle("tools/call", inputTool(rounds))
		a := newGateway(t, confirmRule, p).legacy(t).askConfirmation(callX)
		a.u.respond(a.question, agreed)
		for i := range rounds {
			q := a.call.nextOf("elicitation/create")
			if !strings.Contains(q.data, fmt.Sprintf(`"message":"%d"`, i)) {
				t.Fatalf("got request %s", q.data)
			}
			a.u.respond(q, `{"action":"accept"}`)
		}
		if e := a.call.next(); !e.isAnswer() || !strings.Contains(e.data, `"last"`) || p.count("tools/call") != rounds+1 {
			t.Errorf("after %d calls: %s", p.count("tools/call"), e.data)
		}
	})
}

// A legacy server sends a request to a modern client: the call continues without another
// confirmation.
func TestConfirmedCallThatIsHeld(t *testing.T) {
	p := legacyPeer("a").hasTools("x").handle("tools/call", askingTool(2))
	u := newGateway(t, confirmRule, p).modern(t)
	s := u.askConfirmation(callX).answer(agreed)
	for range 2 {
		in, key := readInput(t, s)
		next := withInput(callX, in.RequestState, key, `{"action":"accept","content":{}}`)
		if s := u.ask("tools/call", strings.Replace(next, "/tmp/n", "/tmp/m", 1)); s.symbol() != "invalid_params" {
			t.Errorf("with another argument: %s", s.body)
		}
		s = u.ask("tools/call", next)
	}
	if !strings.Contains(string(s.Result), `"answers"`) || p.count("tools/call") != 1 {
		t.Errorf("after %d calls: %s", p.count("tools/call"), s.body)
	}
}

// If the server lost its session, the client does not have to confirm again.
func TestConfirmedCallInALostSession(t *testing.T) {
	for name, era := range bothEras {
		t.Run(name, func(t *testing.T) {
			p := legacyPeer("a").hasTools("x", "y")
			u := newGateway(t, confirmRule, p).as(t, era)
			u.call("a::y")
			p.forgetCalls()
			a := u.askConfirmation(callX)
			p.forget()
			if s := a.answer(agreed); !strings.Contains(s.answer, `"text":"a"`) {
				t.Fatalf("got %s", s.body)
			}
			if n := p.count("tools/call"); n != 2 || p.count("initialize") != 1 { // the first in the lost session
				t.Errorf("the server got %d calls", n)
			}
		})
	}
}

// A waiting call keeps the rules of its configuration. The response counts in the next
// configuration.
func TestConfirmationOutlivesAReload(t *testing.T) {
	for name, era := range bothEras {
		t.Run(name, func(t *testing.T) {
			p := legacyPeer("a").hasTools("x")
			g := newGateway(t, confirmRule, p)
			a := g.as(t, era).askConfirmation(callX)
			g.replace(confirmRule, p)
			if s := a.answer(agreed); !strings.Contains(s.answer, `"text":"a"`) || p.count("tools/call") != 1 {
				t.Errorf("after %d calls: %s", p.count("tools/call"), s.body)
			}
			a = g.as(t, era).askConfirmation(callX)
			g.replace(func(c *Config) { c.Clients = []*access.Client{{Name: "*", Policy: rulesOf("deny a::x")}} }, p)
			s := a.answer(agreed)
			if want := map[mcp.Era]string{mcp.Legacy: "", mcp.Modern: "acl_denied"}[era]; s.symbol() != want {
				t.Errorf("got %s", s.body)
			}
		})
	}
}

// The person sees what the server gets, without the focus argument.
func TestConfirmationWithoutFocus(t *testing.T) {
	both(t, func(c *Config) {
		confirmRule(c)
		c.Servers[0].Mask, c.Servers[0].MaskMCP, c.Servers[0].Focus = originalsMask{}, true, toolview.NewFocus("aim")
	}, peersWithX, func(t *testing.T, u *testClient, peers []*fakeServer) {
		u.ask("tools/list", `{}`)
		a := u.askConfirmation(`{"name":"a::x","arguments":{"aim":"reasons","path":"p"}}`)
		if strings.Contains(a.message, "aim") || !strings.Contains(a.message, `"path": "p"`) {
			t.Errorf("got message %s", a.message)
		}
		a.answer(agreed)
		if got := peers[0].waitFor(t, "tools/call", 1).message; string(got.Literal(jsonrpc.Arguments)) != `{"path":"p"}` {
			t.Errorf("the server got %s", got.Raw)
		}
	})
}

// A server may have a tool with the name of the login tool.
func TestConfirmationOfAServersOwnLoginTool(t *testing.T) {
	p := legacyPeer("a").hasTools("login")
	g, login := newLoginGateway(t, p, func(c *Config) {
		c.Clients = []*access.Client{{Name: "*", Policy: rulesOf("confirm a::login")}}
	})
	login.logIn(g, "ann")
	for _, era := range bothEras {
		p.forgetCalls()
		u := g.user(t, era)
		u.identity = "ann"
		if era == mcp.Legacy {
			u.connect()
		}
		a := u.askConfirmation(`{"name":"a::login","arguments":{}}`)
		if p.count("tools/call") != 0 {
			t.Error("the server got the call")
		}
		if s := a.answer(agreed); !strings.Contains(s.answer, `"text":"a"`) || p.count("tools/call") != 1 {
			t.Errorf("after %d calls: %s", p.count("tools/call"), s.body)
		}
	}
}

// Rate limits apply to the requests that carry responses.
func TestConfirmedCallsAreRateLimited(t *testing.T) {
	p := modernPeer("a").hasTools("x")
	u := newGateway(t, func(c *Config) {
		confirmRule(c)
		c.Limits = []access.Limit{access.NewLimit(ratelimit.Limit{Key: "test", N: 1, Per: time.Hour}, nil)}
	}, p).modern(t)
	if s := u.askConfirmation(callX).answer(agreed); s.symbol() != "rate_limited" || p.count("tools/call") != 0 {
		t.Errorf("got %s", s.body)
	}
}

// The number of calls that wait for a client is limited.
func TestCallsWaitingForConfirmationAreLimited(t *testing.T) {
	p := legacyPeer("a").hasTools("x")
	g := newGateway(t, confirmRule, p)
	u := g.legacy(t)
	var waiting []*confirmCall
	for range maxOwnerHeldCalls {
		waiting = append(waiting, u.askConfirmation(callX))
	}
	s := g.legacy(t).ask("tools/call", callX)
	if s.symbol() != "busy" || s.status != http.StatusServiceUnavailable || p.count("tools/call") != 0 {
		t.Errorf("another session of the client: %d %s", s.status, s.body)
	}
	waiting[0].answer(declined)
	owner := g.known()[0].owner
	await.Until(t, "room for another call", func() bool { return g.waiting.meter.Fits(owner, int64(len(callX))) })
	waiting[0] = u.askConfirmation(callX)
	for _, a := range waiting {
		a.call.disconnect()
	}
	await.Until(t, "no waiting calls", func() bool { return g.waiting.meter.Fits(owner, heldCallLimits.OwnerBytes) })
}

// A confirmed call can be made at any replica, once.
func TestConfirmationAtAnotherReplica(t *testing.T) {
	engine, p := replicastest.New(), modernPeer("a").hasTools("x")
	a, b := newReplica(t, engine, confirmRule, p), newReplica(t, engine, confirmRule, p)
	asked := a.modern(t).askConfirmation(callX)
	if n := len(engine.Values()); n != 0 {
		t.Errorf("%d values are stored for a confirmation", n)
	}
	atB := *asked
	atB.u = asked.u.atGateway(b)
	engine.Down.Store(true)
	if s := atB.answer(agreed); s.symbol() != "store_unavailable" || p.count("tools/call") != 0 {
		t.Errorf("while the store is unavailable, after %d calls: %s", p.count("tools/call"), s.body)
	}
	engine.Down.Store(false)
	await.Until(t, "the store is available", b.continuations.space.Up)
	if s := atB.answer(agreed); !strings.Contains(s.answer, `"text":"a"`) || p.count("tools/call") != 1 {
		t.Errorf("at the other replica: %s", s.body)
	}
	for _, again := range []interface{ answer(string) reply }{asked, &atB} {
		if s := again.answer(agreed); !strings.Contains(s.body, "already used") || p.count("tools/call") != 1 {
			t.Errorf("again: %s", s.body)
		}
	}
}
