package gateway

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// Between modern clients and servers, input-required results pass unchanged.
func TestInputBetweenModernPeersIsUnchanged(t *testing.T) {
	result := `{"resultType":"input_required","inputRequests":{"k":{"method":"elicitation/create","params":{` + oddJSON +
		`}}},"requestState":"\u0061\/opaque"}`
	p := modernPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
		if a.message.Has(jsonrpc.RequestState) {
			a.reply(w, `{"resultType":"complete"}`)
			return
		}
		a.reply(w, result)
	})
	u := newGateway(t, nil, p).modern(t)
	s := u.call("a::x")
	if string(s.Result) != result {
		t.Errorf("got %s", s.Result)
	}
	again := `"inputResponses":{"k":{` + oddJSON + `}},"requestState":"\u0061\/opaque"`
	if s := u.ask("tools/call", `{"name":"a::x",`+again+`}`); s.code() != 0 {
		t.Errorf("got %s", s.body)
	}
	if got := p.waitFor(t, "tools/call", 2).body; !strings.Contains(got, again) {
		t.Errorf("got %s", got)
	}
}

// In the modern era, errors have HTTP statuses.
func TestStatusOfErrors(t *testing.T) {
	for _, tt := range []struct{ status, code int }{{404, -32601}, {400, -32602}, {400, -32020}, {400, -32021},
		{200, -32602}, {200, -1}} {
		p := newPeer("a").handle("tools/call", func(w http.ResponseWriter,
			a *incoming) {
			a.refuse(w, tt.status, tt.code, "m")
		})
		p.eras[mcp.Modern] = true
		g := newGateway(t, nil, p)
		s := g.modern(t).call("a::x")
		if s.code() != tt.code || tt.status != 200 && s.status != tt.status {
			t.Errorf("%v: got %d %s", tt, s.status, s.body)
		}
		if s := g.legacy(t).call("a::x"); s.code() != tt.code || s.status != 200 {
			t.Errorf("%v: legacy client: got %d %s", tt, s.status, s.body)
		}
	}
}

// A request gets one response, even if the server sends several.
func TestServersThatRespondTwice(t *testing.T) {
	both(t, nil, func() []*fakeServer {
		return []*fakeServer{newPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
			a.send(w, fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,`+
				`"progress":1}}`, a.message.Literal(jsonrpc.ProgressToken)))
			a.finish(w, `{"n":1}`)
			a.finish(w, `{"n":2}`)
			a.send(w, `{"jsonrpc":"2.0","id":`+a.id()+`,"error":{"code":-1,"message":"m"}}`)
		})}
	}, func(t *testing.T, u *testClient, _ []*fakeServer) {
		meta := `{"progressToken":"t"}`
		if u.era == mcp.Modern {
			meta = string(u.meta(`,"progressToken":"t"`))
		}
		s := u.post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a::x","_meta":` + meta + `}}`)
		answers := 0
		for _, e := range s.events {
			if e.isAnswer() {
				answers++
			}
		}
		if answers != 1 || !strings.Contains(s.answer, `"n":1`) {
			t.Errorf("got %s", s.body)
		}
	})
}

// After a server lost its session, the gateway repeats what the client has set.
func TestStateIsRepeatedAfterALostSession(t *testing.T) {
	p := legacyPeer("a")
	u := newGateway(t, nil, p).legacy(t)
	u.ask("resources/subscribe", `{"uri":"`+mcp.ResourceURI("a", "x://a")+`"}`)
	u.ask("resources/subscribe", `{"uri":"`+mcp.ResourceURI("a", "x://b")+`"}`)
	u.ask("resources/unsubscribe", `{"uri":"`+mcp.ResourceURI("a", "x://b")+`"}`)
	u.ask("logging/setLevel", `{"level":"debug"}`)
	p.forget()
	if s := u.call("a::x"); s.code() != 0 {
		t.Errorf("got %s", s.body)
	}
	if all := p.requests("resources/subscribe"); len(all) != 3 || all[2].message.Text(jsonrpc.URI) != "x://a" ||
		all[2].session != "a-session-2" {
		t.Errorf("subscribed %d times", len(all))
	}
	if all := p.requests("logging/setLevel"); len(all) != 2 || all[1].session != "a-session-2" ||
		all[1].message.Text(jsonrpc.Level) != "debug" {
		t.Errorf("the level was set %d times", len(all))
	}
}

// A call that is canceled during a new handshake ends, too.
func TestCancellationDuringAHandshake(t *testing.T) {
	p := legacyPeer("a")
	g := newGateway(t, nil, p)
	u := g.legacy(t)
	p.forget()
	p.handle("initialize", func(_ http.ResponseWriter, a *incoming) { <-a.Context().Done() })
	call := u.start(http.MethodPost, u.request("7", "tools/call", `{"name":"a::x"}`))
	p.waitFor(t, "initialize", 2)
	call.disconnect()
	await.Until(t, "the call has ended", func() bool {
		c := g.known()[0]
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.calls) == 0
	})
	p.mu.Lock()
	delete(p.on, "initialize")
	p.mu.Unlock()
	if s := u.call("a::x"); s.code() != 0 {
		t.Errorf("later call: %s", s.body)
	}
}

// A client that reuses the id of a running call does not affect other clients.
func TestReusedIDs(t *testing.T) {
	p := legacyPeer("a")
	canceled, release := p.addWaitingTool()
	defer release()
	u := newGateway(t, nil, p).legacy(t)
	one := u.start(http.MethodPost, u.request(`"\u0031"`, "tools/call", `{"name":"a::wait","arguments":{"who":"one"}}`))
	p.waitFor(t, "tools/call", 1)
	two := u.start(http.MethodPost, u.request(`1`, "tools/call", `{"name":"a::wait","arguments":{"who":"two"}}`))
	p.waitFor(t, "tools/call", 2)
	u.notify("notifications/cancelled", `{"requestId":1}`)
	await.Until(t, "the call is canceled", func() bool { return len(canceled()) == 1 })
	if !canceled()["two"] {
		t.Errorf("got %v", canceled())
	}
	two.waitEnd()
	release()
	if e := one.nextOf(""); !strings.Contains(e.data, `"result"`) || e.id() != `"\u0031"` {
		t.Errorf("got %s", e.data)
	}
}
