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

// wanting is a tool of the modern era that wants some inputs, one after the other.
func wanting(rounds int) script {
	return func(w http.ResponseWriter, a *incoming) {
		var state struct{ Round int }
		_ = json.Unmarshal([]byte(a.message.Text(jsonrpc.RequestState)), &state)
		if state.Round == rounds {
			a.reply(w, `{"resultType":"complete","last":`+string(a.message.Literal(jsonrpc.InputResponses))+`}`)
			return
		}
		next := string(jsonrpc.Quote(fmt.Sprintf(`{"round":%d}`, state.Round+1)))
		a.reply(w, fmt.Sprintf(`{"resultType":"input_required","inputRequests":{"k é":{"method":"elicitation/create","params":{"message":"%d","n":12345678901234567890}}},"requestState":%s}`, state.Round, next))
	}
}

func TestInputForServersOfTheModernEra(t *testing.T) {
	p := modernPeer("a").does("tools/call", wanting(3))
	u := newGateway(t, nil, p).legacy(t)
	call := u.begin("tools/call", `{"name":"a::x","arguments":{`+odd+`},"_meta":{"progressToken":7}}`)
	for i := range 3 {
		q := call.next()
		m := q.parts()
		if !m.IsRequest() || m.Text(jsonrpc.Method) != "elicitation/create" || !strings.Contains(q.data, fmt.Sprintf(`"message":"%d","n":12345678901234567890`, i)) || !strings.Contains(q.data, `"proxy":{"server":"a"}`) {
			t.Errorf("got %s", q.data)
		}
		if s := u.answer(q, fmt.Sprintf(`{"action":"accept","content":{"i":%d,"n":12345678901234567890}}`, i)); s.status != http.StatusAccepted {
			t.Errorf("got %d", s.status)
		}
	}
	if e := call.next(); !strings.Contains(e.data, `"last":{"k é":{"action":"accept","content":{"i":2,"n":12345678901234567890}}}`) || e.id() != fmt.Sprint(u.last.Load()) {
		t.Errorf("got %s", e.data)
	}
	for i, call := range p.heard("tools/call") {
		if !strings.Contains(call.body, `"arguments":{`+odd+`}`) || string(call.message.Literal(jsonrpc.ProgressToken)) != "7" || call.message.Text(jsonrpc.Name) != "x" {
			t.Errorf("got %s", call.body)
		}
		if call.message.Has(jsonrpc.InputResponses) != (i > 0) || call.message.Has(jsonrpc.RequestState) != (i > 0) {
			t.Errorf("call %d: %s", i, call.body)
		}
	}
	if n := len(p.heard("tools/call")); n != 4 {
		t.Errorf("called %d times", n)
	}
}

// A state is not sent back that the server has not given this time.
func TestStatesOfOneRoundOnly(t *testing.T) {
	n := 0
	p := modernPeer("a").does("tools/call", func(w http.ResponseWriter, a *incoming) {
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
	call := u.begin("tools/call", `{"name":"a::x"}`)
	u.answer(call.nextOf("roots/list"), `{"r":1}`)
	u.answer(call.nextOf("roots/list"), `{"r":2}`)
	if e := call.nextOf(""); !strings.Contains(e.data, `"result"`) {
		t.Errorf("got %s", e.data)
	}
}

func TestSeveralInputsAtOnce(t *testing.T) {
	p := modernPeer("a").does("tools/call", func(w http.ResponseWriter, a *incoming) {
		if a.message.Has(jsonrpc.InputResponses) {
			a.reply(w, `{"resultType":"complete","all":`+string(a.message.Literal(jsonrpc.InputResponses))+`}`)
			return
		}
		a.reply(w, `{"resultType":"input_required","inputRequests":{"a":{"method":"roots/list"},"b":{"method":"sampling/createMessage","params":{}},"c":{"method":"elicitation/create","params":{}}}}`)
	})
	u := newGateway(t, nil, p).legacy(t)
	call := u.begin("tools/call", `{"name":"a::x"}`)
	var questions []received
	for range 3 {
		questions = append(questions, call.next())
	}
	for i := range questions {
		q := questions[2-i]
		u.answer(q, `{"of":"`+q.method()+`"}`)
	}
	if e := call.next(); !strings.Contains(e.data, `"all":{"a":{"of":"roots/list"},"b":{"of":"sampling/createMessage"},"c":{"of":"elicitation/create"}}`) {
		t.Errorf("got %s", e.data)
	}
}

func TestInputThatNobodyCanGive(t *testing.T) {
	tests := []struct {
		name   string
		change func(*user)
		symbol string
	}{
		{"it has not said that it can", func(u *user) { u.can = `{"sampling":{}}` }, "missing_capability"},
		{"it takes no event streams", func(u *user) { u.accept = "application/json" }, "missing_capability"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := modernPeer("a").does("tools/call", wanting(1))
			u := newGateway(t, nil, p).user(t, mcp.Legacy)
			tt.change(u)
			u.connect()
			if s := u.call("a::x"); s.symbol() != jsonrpc.MissingCapability("a", "").Data.Symbol || s.Error.Code != jsonrpc.MissingCapability("a", "").Code {
				t.Errorf("got %s", s.body)
			}
		})
	}
	t.Run("it refuses", func(t *testing.T) {
		p := modernPeer("a").does("tools/call", wanting(1))
		u := newGateway(t, nil, p).legacy(t)
		call := u.begin("tools/call", `{"name":"a::x"}`)
		u.post(`{"jsonrpc":"2.0","id":` + call.next().id() + `,"error":{"code":-1,"message":"I will not"}}`)
		if e := call.next(); !strings.Contains(e.data, `"input_refused"`) || !e.isAnswer() {
			t.Errorf("got %s", e.data)
		}
	})
	t.Run("the server asks without end", func(t *testing.T) {
		p := modernPeer("a").does("tools/call", wanting(1_000))
		u := newGateway(t, nil, p).legacy(t)
		call := u.begin("tools/call", `{"name":"a::x"}`)
		for range 1_000 {
			e := call.next()
			if e.isAnswer() {
				if !strings.Contains(e.data, `"error"`) {
					t.Errorf("got %s", e.data)
				}
				break
			}
			u.answer(e, "{}")
		}
		if n := p.count("tools/call"); n > upstream.MaxRounds {
			t.Errorf("called %d times", n)
		}
	})
	t.Run("another client answers", func(t *testing.T) {
		p := modernPeer("a").does("tools/call", wanting(1))
		g := newGateway(t, nil, p)
		u, other := g.legacy(t), g.legacy(t)
		call := u.begin("tools/call", `{"name":"a::x"}`)
		q := call.next()
		other.answer(q, `{"evil":1}`)
		u.answer(q, `{"good":1}`)
		u.answer(q, `{"late":1}`)
		if e := call.next(); !strings.Contains(e.data, `"good"`) {
			t.Errorf("got %s", e.data)
		}
	})
}

func TestInputThatComesTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := modernPeer("a").does("tools/call", wanting(1))
		g := newMemory(t, nil, p)
		defer g.close()
		u := g.legacy(t)
		call := u.begin("tools/call", `{"name":"a::x"}`)
		q := call.next()
		began := time.Now()
		var end received
		for end = range call.events {
			if end.isAnswer() {
				break
			}
		}
		if took := time.Since(began); took < streamable.QuestionTime || took > streamable.QuestionTime+time.Minute || !strings.Contains(end.data, `"timeout"`) {
			t.Errorf("after %v: %s", took, end.data)
		}
		u.answer(q, "{}")
		if n := p.count("tools/call"); n != 1 {
			t.Errorf("called %d times", n)
		}
		call.hangUp()
	})
}

// To cancel or to hang up ends a call that waits for input, and nothing stays behind.
func TestInputThatIsCanceled(t *testing.T) {
	for _, hangUp := range []bool{true, false} {
		p := modernPeer("a").does("tools/call", wanting(1))
		g := newGateway(t, nil, p)
		u := g.legacy(t)
		call := u.begin("tools/call", `{"name":"a::x"}`)
		q := call.next()
		if hangUp {
			call.hangUp()
		} else {
			u.tell("notifications/cancelled", `{"requestId":`+fmt.Sprint(u.last.Load())+`}`)
			call.ended()
		}
		c := g.known()[0]
		await.Until(t, "no answer to be expected", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return len(c.questions) == 0 && len(c.calls) == 0
		})
		u.answer(q, "{}")
		if n := p.count("tools/call"); n != 1 {
			t.Errorf("called %d times", n)
		}
		if p.count("notifications/cancelled") != 0 {
			t.Error("a server of the modern era was told by a notification")
		}
	}
}

// Requests of clients of the legacy era say all that servers of the modern era want.
func TestRequestsToServersOfTheModernEra(t *testing.T) {
	p := modernPeer("a").has("tools/list", "tools", `{"name":"x","inputSchema":{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"},"n":{"type":"integer","x-mcp-header":"N"}}}}`)
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
		call := p.heard("tools/call")[n]
		if failure := mcp.CheckModern(call.Header, &call.message); failure != nil {
			t.Errorf("%s: %v", params, failure)
		}
		if got := call.Header.Get("Mcp-Param-Region"); got != want {
			t.Errorf("%s: got %q", params, got)
		}
		if want != "" && call.Header.Get("Mcp-Param-N") != "12345678901234567890" {
			t.Errorf("%s: got %q", params, call.Header.Get("Mcp-Param-N"))
		}
		if !call.message.Is(jsonrpc.LogLevel, "warning") || call.message.Kind(jsonrpc.ClientInfo) != jsonspan.BeginObject || string(call.message.Literal(jsonrpc.ClientCapabilities)) != asksAll {
			t.Errorf("%s: got %s", params, call.body)
		}
	}
}
