package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// inputTool is a modern tool that requires input in several rounds.
func inputTool(rounds int) script {
	return func(w http.ResponseWriter, a *incoming) {
		var state struct{ Round int }
		_ = json.Unmarshal([]byte(a.message.Text(jsonrpc.RequestState)), &state)
		if state.Round == rounds {
			a.reply(w, `{"resultType":"complete","last":`+string(a.message.Literal(jsonrpc.InputResponses))+`}`)
			return
		}
		next := string(jsonrpc.Quote(fmt.Sprintf(`{"round":%d}`, state.Round+1)))
		a.reply(w, fmt.Sprintf(`{"resultType":"input_required","inputRequests":{"k é":{"method":"elicitation/create",`+
			`"params":{"message":"%d","n":12345678901234567890}}},"requestState":%s}`, state.Round, next))
	}
}

func TestInputForModernServers(t *testing.T) {
	p := modernPeer("a").handle("tools/call", inputTool(3))
	u := newGateway(t, nil, p).legacy(t)
	call := u.startRequest("tools/call", `{"name":"a::x","arguments":{`+oddJSON+`},"_meta":{"progressToken":7}}`)
	for i := range 3 {
		q := call.next()
		m := q.parts()
		if !m.IsRequest() || m.Text(jsonrpc.Method) != "elicitation/create" ||
			!strings.Contains(q.data, fmt.Sprintf(`"message":"%d","n":12345678901234567890`, i)) ||
			!strings.Contains(q.data, `"proxy":{"server":"a"}`) {
			t.Errorf("got %s", q.data)
		}
		if s := u.respond(q, fmt.Sprintf(`{"action":"accept","content":{"i":%d,"n":12345678901234567890}}`,
			i)); s.status != http.StatusAccepted {
			t.Errorf("got %d", s.status)
		}
	}
	if e := call.next(); !strings.Contains(e.data,
		`"last":{"k é":{"action":"accept","content":{"i":2,"n":12345678901234567890}}}`) ||
		e.id() != fmt.Sprint(u.last.Load()) {
		t.Errorf("got %s", e.data)
	}
	for i, call := range p.requests("tools/call") {
		if !strings.Contains(call.body, `"arguments":{`+oddJSON+`}`) ||
			string(call.message.Literal(jsonrpc.ProgressToken)) != "7" || call.message.Text(jsonrpc.Name) != "x" {
			t.Errorf("got %s", call.body)
		}
		if call.message.Has(jsonrpc.InputResponses) != (i > 0) || call.message.Has(jsonrpc.RequestState) != (i > 0) {
			t.Errorf("call %d: %s", i, call.body)
		}
	}
	if n := len(p.requests("tools/call")); n != 4 {
		t.Errorf("called %d times", n)
	}
}

// The gateway sends only the state of the current round back.
func TestStateOfOneRoundOnly(t *testing.T) {
	n := 0
	p := modernPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
		switch n++; n {
		case 1:
			a.reply(w, `{"resultType":"input_required","inputRequests":{"k":{"method":"roots/list"}},"requestState":"one"}`)
		case 2:
			if !a.message.Is(jsonrpc.RequestState, "one") {
				t.Errorf("got %s", a.body)
			}
			a.reply(w, `{"resultType":"input_required","inputRequests":{"l":{"method":"roots/list","params":{}}}}`)
		default:
			if a.message.Has(jsonrpc.RequestState) || string(a.message.Literal(jsonrpc.InputResponses)) != `{"l":{"r":2}}` {
				t.Errorf("got %s", a.body)
			}
			a.reply(w, `{"resultType":"complete"}`)
		}
	})
	u := newGateway(t, nil, p).legacy(t)
	call := u.startRequest("tools/call", `{"name":"a::x"}`)
	u.respond(call.nextOf("roots/list"), `{"r":1}`)
	u.respond(call.nextOf("roots/list"), `{"r":2}`)
	if e := call.nextOf(""); !strings.Contains(e.data, `"result"`) {
		t.Errorf("got %s", e.data)
	}
}

func TestSeveralInputsAtOnce(t *testing.T) {
	p := modernPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
		if a.message.Has(jsonrpc.InputResponses) {
			a.reply(w, `{"resultType":"complete","all":`+string(a.message.Literal(jsonrpc.InputResponses))+`}`)
			return
		}
		a.reply(w, `{"resultType":"input_required","inputRequests":{"a":{"method":"roots/list"},`+
			`"b":{"method":"sampling/createMessage","params":{}},"c":{"method":"elicitation/create","params":{}}}}`)
	})
	u := newGateway(t, nil, p).legacy(t)
	call := u.startRequest("tools/call", `{"name":"a::x"}`)
	var questions []received
	for range 3 {
		questions = append(questions, call.next())
	}
	for i := range questions {
		q := questions[2-i]
		u.respond(q, `{"of":"`+q.method()+`"}`)
	}
	if e := call.next(); !strings.Contains(e.data,
		`"all":{"a":{"of":"roots/list"},"b":{"of":"sampling/createMessage"},"c":{"of":"elicitation/create"}}`) {
		t.Errorf("got %s", e.data)
	}
}

func TestInputThatNoClientCanGive(t *testing.T) {
	tests := []struct {
		name   string
		change func(*testClient)
		symbol string
	}{
		{"no declared support", func(u *testClient) { u.capabilities = `{"sampling":{}}` }, "missing_capability"},
		{"no event streams accepted", func(u *testClient) { u.accept = "application/json" }, "missing_capability"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := modernPeer("a").handle("tools/call", inputTool(1))
			u := newGateway(t, nil, p).user(t, mcp.Legacy)
			tt.change(u)
			u.connect()
			if s := u.call("a::x"); s.symbol() != jsonrpc.MissingCapability("a", "").Data.Symbol ||
				s.Error.Code != jsonrpc.MissingCapability("a", "").Code {
				t.Errorf("got %s", s.body)
			}
		})
	}
	t.Run("a refusal", func(t *testing.T) {
		p := modernPeer("a").handle("tools/call", inputTool(1))
		u := newGateway(t, nil, p).legacy(t)
		call := u.startRequest("tools/call", `{"name":"a::x"}`)
		u.post(`{"jsonrpc":"2.0","id":` + call.next().id() + `,"error":{"code":-1,"message":"I will not"}}`)
		if e := call.next(); !strings.Contains(e.data, `"input_refused"`) || !e.isAnswer() {
			t.Errorf("got %s", e.data)
		}
	})
	t.Run("input without end", func(t *testing.T) {
		p := modernPeer("a").handle("tools/call", inputTool(1_000))
		u := newGateway(t, nil, p).legacy(t)
		call := u.startRequest("tools/call", `{"name":"a::x"}`)
		for range 1_000 {
			e := call.next()
			if e.isAnswer() {
				if !strings.Contains(e.data, `"error"`) {
					t.Errorf("got %s", e.data)
				}
				break
			}
			u.respond(e, "{}")
		}
		if n := p.count("tools/call"); n > upstream.MaxRounds {
			t.Errorf("called %d times", n)
		}
	})
	t.Run("a response of another client", func(t *testing.T) {
		p := modernPeer("a").handle("tools/call", inputTool(1))
		g := newGateway(t, nil, p)
		u, other := g.legacy(t), g.legacy(t)
		call := u.startRequest("tools/call", `{"name":"a::x"}`)
		q := call.next()
		other.respond(q, `{"evil":1}`)
		u.respond(q, `{"good":1}`)
		u.respond(q, `{"late":1}`)
		if e := call.next(); !strings.Contains(e.data, `"good"`) {
			t.Errorf("got %s", e.data)
		}
	})
}

func TestLateInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := modernPeer("a").handle("tools/call", inputTool(1))
		g := newInMemory(t, nil, p)
		defer g.close()
		u := g.legacy(t)
		call := u.startRequest("tools/call", `{"name":"a::x"}`)
		q := call.next()
		began := time.Now()
		var end received
		for end = range call.events {
			if end.isAnswer() {
				break
			}
		}
		if took := time.Since(began); took < streamable.ServerRequestTimeout || took > streamable.ServerRequestTimeout+
			time.Minute ||
			!strings.Contains(end.data, `"timeout"`) {
			t.Errorf("took %v: %s", took, end.data)
		}
		u.respond(q, "{}")
		if n := p.count("tools/call"); n != 1 {
			t.Errorf("called %d times", n)
		}
		call.disconnect()
	})
}

// A client can cancel a call that waits for input, or disconnect. No state remains.
func TestInputThatIsCanceled(t *testing.T) {
	for _, hangUp := range []bool{true, false} {
		p := modernPeer("a").handle("tools/call", inputTool(1))
		g := newGateway(t, nil, p)
		u := g.legacy(t)
		call := u.startRequest("tools/call", `{"name":"a::x"}`)
		q := call.next()
		if hangUp {
			call.disconnect()
		} else {
			u.notify("notifications/cancelled", `{"requestId":`+fmt.Sprint(u.last.Load())+`}`)
			call.waitEnd()
		}
		c := g.known()[0]
		await.Until(t, "no pending server request", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return len(c.pending) == 0 && len(c.calls) == 0
		})
		u.respond(q, "{}")
		if n := p.count("tools/call"); n != 1 {
			t.Errorf("called %d times", n)
		}
		if p.count("notifications/cancelled") != 0 {
			t.Error("a modern server received a notification")
		}
	}
}

// Requests of legacy clients have all members that modern servers require.
func TestRequestsToModernServers(t *testing.T) {
	p := modernPeer("a").hasList("tools/list", "tools",
		`{"name":"x","inputSchema":{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"},`+
			`"n":{"type":"integer","x-mcp-header":"N"}}}}`)
	u := newGateway(t, nil, p).legacy(t)
	u.ask("logging/setLevel", `{"level":"warning"}`)
	for params, want := range map[string]string{
		`{"name":"a::x"}`: "",
		`{"name":"a::x","arguments":{"region":"é","n":12345678901234567890}}`: mcp.HeaderText("é"),
		`{"name":"a::x","_meta":{}}`:                  "",
		`{"name":"a::x","_meta":{"progressToken":1}}`: "",
	} {
		n := p.count("tools/call")
		if s := u.ask("tools/call", params); s.code() != 0 {
			t.Fatalf("%s: got %s", params, s.body)
		}
		call := p.requests("tools/call")[n]
		if failure := mcp.CheckModern(call.Header, &call.message); failure != nil {
			t.Errorf("%s: %v", params, failure)
		}
		if got := call.Header.Get("Mcp-Param-Region"); got != want {
			t.Errorf("%s: got %q", params, got)
		}
		if want != "" && call.Header.Get("Mcp-Param-N") != "12345678901234567890" {
			t.Errorf("%s: got %q", params, call.Header.Get("Mcp-Param-N"))
		}
		if !call.message.Is(jsonrpc.LogLevel, "warning") || call.message.Kind(jsonrpc.ClientInfo) != jsonspan.BeginObject ||
			string(call.message.Literal(jsonrpc.ClientCapabilities)) != allCapabilities {
			t.Errorf("%s: got %s", params, call.body)
		}
	}
}
