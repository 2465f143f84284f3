package gateway

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// Many clients receive requests of several servers at the same time, all with the same ids (A23,
// A24). All responses reach the right server.
func TestServerRequestsToManyClients(t *testing.T) {
	const clients = 500
	var wrong atomic.Int64
	quiz := func(p *fakeServer) script {
		return func(w http.ResponseWriter, a *incoming) {
			var call struct {
				Params struct{ Arguments struct{ Who int } }
			}
			_ = json.Unmarshal([]byte(a.body), &call)
			var answers [2]<-chan string
			for i := range answers {
				answers[i] = p.expect(a.session, fmt.Sprint(i+1))
			}
			for i := range answers {
				a.send(w, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"sampling/createMessage","params":{"nonce":"%s %s %d"}}`,
					i+1, p.name, a.session, i+1))
			}
			for i, answer := range answers {
				want := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{"nonce":"%s %s %d","who":%d}}`, i+1, p.name, a.session, i+1,
					call.Params.Arguments.Who)
				select {
				case got := <-answer:
					if got != want {
						wrong.Add(1)
						t.Errorf("got %s, want %s", got, want)
					}
				case <-a.Context().Done():
					wrong.Add(1)
				}
			}
			a.finish(w, fmt.Sprintf(`{"who":%d,"at":%q}`, call.Params.Arguments.Who, p.name))
		}
	}
	var peers []*fakeServer
	for _, name := range []string{"a", "b", "c"} {
		p := legacyPeer(name)
		peers = append(peers, p.handle("tools/call", quiz(p)))
	}
	g := newGateway(t, nil, peers...)
	var all sync.WaitGroup
	for caller := range clients {
		u := g.user(t, mcp.Legacy)
		all.Go(func() {
			u.connect()
			servers := []string{peers[caller%3].name, peers[(caller+1)%3].name}
			calls := map[string]*liveReply{}
			type question struct {
				received
				server, nonce string
			}
			var questions []question
			for i, server := range servers {
				body := u.request(fmt.Sprint(i+1), "tools/call",
					fmt.Sprintf(`{"name":"%s::quiz","arguments":{"who":%d}}`, server, caller))
				calls[server] = u.open(http.MethodPost, body)
			}
			for server, live := range calls {
				for range 2 {
					e := live.nextOf("sampling/createMessage")
					var q struct {
						Params struct {
							Nonce string
							Proxy struct{ Server string }
						}
					}
					if json.Unmarshal([]byte(e.data), &q) != nil || q.Params.Proxy.Server != server {
						t.Errorf("%s sent %s", server, e.data)
					}
					questions = append(questions, question{e, server, q.Params.Nonce})
				}
			}
			rand.Shuffle(len(questions), func(i, j int) { questions[i], questions[j] = questions[j], questions[i] })
			for _, q := range questions {
				s := u.respond(q.received, fmt.Sprintf(`{"nonce":%q,"who":%d}`, q.nonce, caller))
				if s.status != http.StatusAccepted {
					t.Errorf("got %d %s", s.status, s.body)
				}
			}
			for server, live := range calls {
				if e := live.nextOf(""); !strings.Contains(e.data, fmt.Sprintf(`"result":{"who":%d,"at":%q}`, caller, server)) {
					t.Errorf("client %d at %s: got %s", caller, server, e.data)
				}
				live.disconnect()
			}
		})
	}
	all.Wait()
	if n := wrong.Load(); n != 0 {
		t.Errorf("%d responses reached the wrong server", n)
	}
}

// addWaitingTool adds a tool that runs until release is called or the call is canceled: by a
// notification (legacy) or by disconnecting (modern).
func (p *fakeServer) addWaitingTool() (canceled func() map[string]bool, release func()) {
	var mu sync.Mutex
	waiting := map[string]chan struct{}{}
	caller := map[string]bool{}
	released := make(chan struct{})
	p.handle("tools/call", func(w http.ResponseWriter, a *incoming) {
		var call struct {
			Params struct{ Arguments struct{ Who string } }
		}
		_ = json.Unmarshal([]byte(a.body), &call)
		key := a.session + " " + a.id()
		mu.Lock()
		end := waiting[key] // set if the cancellation arrived first
		if end == nil {
			end = make(chan struct{})
			waiting[key] = end
		}
		mu.Unlock()
		hungUp := a.Context().Done()
		if p.eras[mcp.Legacy] {
			hungUp = nil
		}
		select {
		case <-end:
		case <-hungUp:
		case <-released:
			a.finish(w, "{}")
			return
		}
		mu.Lock()
		caller[call.Params.Arguments.Who] = true
		mu.Unlock()
	})
	p.handle("notifications/cancelled", func(w http.ResponseWriter, a *incoming) {
		w.WriteHeader(http.StatusAccepted)
		key := a.session + " " + string(a.message.Literal(jsonrpc.RequestID))
		mu.Lock()
		defer mu.Unlock()
		if waiting[key] == nil {
			waiting[key] = make(chan struct{})
		}
		select {
		case <-waiting[key]: // canceled twice
		default:
			close(waiting[key])
		}
	})
	return func() map[string]bool {
		mu.Lock()
		defer mu.Unlock()
		all := map[string]bool{}
		for name := range caller {
			all[name] = true
		}
		return all
	}, sync.OnceFunc(func() { close(released) })
}

// Of many calls with the same id, only those that were canceled end (A28).
func TestManyCancellations(t *testing.T) {
	for _, client := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		for _, server := range []mcp.Era{mcp.Legacy, mcp.Modern} {
			t.Run(fmt.Sprint("client of era ", client, ", server of ", server), func(t *testing.T) {
				const clients = 400 // half of them cancel
				p, other := newPeer("a"), newPeer("b")
				p.eras[server], other.eras[server] = true, true
				canceled, release := p.addWaitingTool()
				defer release()
				g := newGateway(t, nil, other, p)
				var users [clients]*testClient
				var calls [clients]*liveReply
				for i := range users {
					users[i] = g.user(t, client)
					users[i].info = fmt.Sprintf(`{"name":"client-%d","version":"1"}`, i)
					if client == mcp.Legacy {
						users[i].connect()
					}
					body := users[i].request("7", "tools/call", fmt.Sprintf(`{"name":"a::wait","arguments":{"who":"%d"}}`, i))
					calls[i] = users[i].start(http.MethodPost, body)
				}
				p.waitFor(t, "tools/call", clients)
				for i := 0; i < clients; i += 2 {
					if client == mcp.Modern {
						calls[i].disconnect()
					} else if s := users[i].notify("notifications/cancelled", `{"requestId":7,"reason":"r"}`); s.status !=
						http.StatusAccepted {
						t.Errorf("got %d", s.status)
					}
				}
				await.Until(t, "all canceled calls have ended", func() bool { return len(canceled()) == clients/2 })
				for caller := range canceled() {
					if i, err := strconv.Atoi(caller); err != nil || i%2 == 1 {
						t.Errorf("call %s was canceled", caller)
					}
				}
				for i := 0; i < clients; i += 2 {
					calls[i].waitEnd()
				}
				release()
				for i := 1; i < clients; i += 2 {
					if e := calls[i].nextOf(""); !strings.Contains(e.data, `"result":`) {
						t.Errorf("call %d: got %s", i, e.data)
					}
				}
				if n := len(canceled()); n != clients/2 {
					t.Errorf("%d calls were canceled", n)
				}
				if n := other.count("notifications/cancelled"); n != 0 {
					t.Errorf("another server received %d cancellations", n)
				}
			})
		}
	}
}

// Two processes of the same program look the same and use the same ids. If one disconnects, only
// its own call ends.
func TestCancellationsOfIdenticalClients(t *testing.T) {
	p := legacyPeer("a")
	canceled, release := p.addWaitingTool()
	defer release()
	g := newGateway(t, nil, p)
	var calls [4]*liveReply
	for i := range calls {
		u := g.modern(t)
		calls[i] = u.start(http.MethodPost, u.request("1", "tools/call",
			fmt.Sprintf(`{"name":"a::wait","arguments":{"who":"%d"}}`, i)))
	}
	p.waitFor(t, "tools/call", len(calls))
	seen := map[string]bool{}
	for _, call := range p.requests("tools/call") {
		key := call.session + " " + call.id()
		if seen[key] {
			t.Errorf("two calls with the id %s in one session", call.id())
		}
		seen[key] = true
	}
	calls[2].disconnect()
	await.Until(t, "the call has ended", func() bool { return len(canceled()) > 0 })
	release()
	for i, live := range calls {
		if i == 2 {
			continue
		}
		if e := live.nextOf(""); !strings.Contains(e.data, `"id":1,`) || !strings.Contains(e.data, `"result":`) {
			t.Errorf("call %d: got %s", i, e.data)
		}
	}
	if got := canceled(); len(got) != 1 || !got["2"] {
		t.Errorf("canceled: %v", got)
	}
}

func TestCancellationsOfUnknownRequests(t *testing.T) {
	p := legacyPeer("a")
	u := newGateway(t, nil, p).legacy(t)
	u.call("a::x")
	for _, params := range []string{`{"requestId":2}`, `{"requestId":"2"}`, `{}`, ``, `[]`, `{"requestId":null}`} {
		if s := u.notify("notifications/cancelled", params); s.status != http.StatusAccepted {
			t.Errorf("%s: got %d", params, s.status)
		}
	}
	if n := p.count("notifications/cancelled"); n != 0 {
		t.Errorf("%d notifications reached the server", n)
	}
}

// Each server gets notifications/initialized once, and all others once each (A3, A27, A28, R23).
func TestNotificationsOfClients(t *testing.T) {
	a, b, modern := legacyPeer("a"), legacyPeer("b"), modernPeer("c")
	u := newGateway(t, nil, a, b, modern).legacy(t)
	u.notify("notifications/initialized", "")
	u.call("a::x")
	u.notify("notifications/roots/list_changed", "")
	u.notify("notifications/vendor/x", `{"requestId":7,"n":1.0}`)
	u.notify("notifications/progress", `{"progressToken":"b::7","progress":0.5}`)
	u.notify("notifications/progress", `{"progressToken":"b::\"t\"","progress":0.5}`)
	for _, token := range []string{`7`, `"7"`, `"z::7"`, `"b::"`, `"b::{}"`, `"b::x"`} {
		u.notify("notifications/progress", `{"progressToken":`+token+`,"progress":0.5}`)
	}
	for _, p := range []*fakeServer{a, b} {
		for _, method := range []string{"notifications/initialized", "notifications/roots/list_changed",
			"notifications/vendor/x"} {
			if n := p.count(method); n != 1 {
				t.Errorf("%s received %d × %s", p.name, n, method)
			}
		}
		if got := p.requests("notifications/vendor/x")[0].body; got != `{"jsonrpc":"2.0",`+
			`"method":"notifications/vendor/x","params":{"requestId":7,"n":1.0}}` {
			t.Errorf("got %s", got)
		}
	}
	if n := a.count("notifications/progress"); n != 0 {
		t.Errorf("a received progress %d times", n)
	}
	progress := b.requests("notifications/progress")
	if len(progress) != 2 || string(progress[0].message.Literal(jsonrpc.Progress)) != "7" ||
		string(progress[1].message.Literal(jsonrpc.Progress)) != `"t"` {
		t.Errorf("b received progress %d times", len(progress))
	}
}

// Progress has the token that the client set (A8, A28).
func TestProgressOfCalls(t *testing.T) {
	both(t, nil, func() []*fakeServer {
		p := newPeer("a")
		p.handle("tools/call", func(w http.ResponseWriter, a *incoming) {
			for i := range 3 {
				a.send(w, fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,`+
					`"progress":%d}}`, a.message.Literal(jsonrpc.ProgressToken), i))
			}
			a.finish(w, "{}")
		})
		return []*fakeServer{p, newPeer("b")}
	}, func(t *testing.T, u *testClient, _ []*fakeServer) {
		for _, token := range []string{`9007199254740993`, `"t"`, `0`} {
			meta := `"_meta":{"progressToken":` + token + `}`
			body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a::x",` + meta + `}}`
			if u.era == mcp.Modern {
				body = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a::x","_meta":` +
					string(u.meta(`,"progressToken":`+token)) + `}}`
			}
			s := u.post(body)
			if len(s.events) != 4 {
				t.Fatalf("got %s", s.body)
			}
			for i, e := range s.events[:3] {
				m := e.parts()
				if string(m.Literal(jsonrpc.Progress)) != token || !strings.Contains(e.data, fmt.Sprintf(`"progress":%d`, i)) ||
					!strings.Contains(e.data, `"proxy":{"server":"a"}`) {
					t.Errorf("got %s", e.data)
				}
			}
		}
	})
}

// A server does not wait for a response that no client can give (A25).
func TestServerRequestsThatNoClientCanAnswer(t *testing.T) {
	ask := func(w http.ResponseWriter, a *incoming) {
		answer := a.ask(w, `"q"`, "elicitation/create", `{"message":"?"}`)
		a.finish(w, `{"answer":`+string(jsonrpc.Quote(answer))+`}`)
	}
	for name, change := range map[string]func(*testClient){
		"no declared support":       func(u *testClient) { u.capabilities = `{"sampling":{}}` },
		"no event streams accepted": func(u *testClient) { u.accept = "application/json" },
	} {
		t.Run(name, func(t *testing.T) {
			p := legacyPeer("a").handle("tools/call", ask)
			u := newGateway(t, nil, p).user(t, mcp.Legacy)
			change(u)
			u.connect()
			s := u.call("a::x")
			if !strings.Contains(s.answer, `\"error\"`) || !strings.Contains(s.answer, `-32601`) ||
				strings.Contains(s.body, "elicitation/create\"") {
				t.Errorf("got %s", s.body)
			}
		})
	}
	t.Run("no stream", func(t *testing.T) {
		p := legacyPeer("a").handle("tools/list", func(w http.ResponseWriter, a *incoming) {
			a.ask(w, "1", "roots/list", "{}")
			a.finish(w, `{"tools":[{"name":"x"}]}`)
		})
		u := newGateway(t, nil, p).legacy(t)
		if got := namesIn(t, u.ask("tools/list", ""), "tools", "name"); len(got) != 1 {
			t.Errorf("got %v", got)
		}
	})
	t.Run("a server request during a list request", func(t *testing.T) {
		p := legacyPeer("a").handle("tools/list", func(w http.ResponseWriter, a *incoming) {
			if answer := a.ask(w, "1", "roots/list", "{}"); !strings.Contains(answer, `"result":{"roots":[]}`) {
				t.Errorf("got %s", answer)
			}
			a.finish(w, `{"tools":[{"name":"x"}]}`)
		})
		p.keepStreams()
		u := newGateway(t, nil, p).legacy(t)
		stream := u.listen()
		list := u.start(http.MethodPost, u.request("1", "tools/list", ""))
		u.respond(stream.nextOf("roots/list"), `{"roots":[]}`)
		if e := list.nextOf(""); !strings.Contains(e.data, `"a::x"`) {
			t.Errorf("got %s", e.data)
		}
	})
	t.Run("a response of another client", func(t *testing.T) {
		p := legacyPeer("a").handle("tools/call", ask)
		g := newGateway(t, nil, p)
		u, other := g.legacy(t), g.legacy(t)
		call := u.startRequest("tools/call", `{"name":"a::x"}`)
		q := call.nextOf("elicitation/create")
		other.respond(q, `{"action":"evil"}`)
		u.respond(q, `{"action":"accept"}`)
		if e := call.nextOf(""); !strings.Contains(e.data, "accept") || strings.Contains(e.data, "evil") {
			t.Errorf("got %s", e.data)
		}
	})
}

// A slow call does not delay others (A29).
func TestSlowCallsDelayNoOthers(t *testing.T) {
	both(t, nil, func() []*fakeServer { return []*fakeServer{newPeer("a"), newPeer("b")} },
		func(t *testing.T, u *testClient, peers []*fakeServer) {
			release := make(chan struct{})
			peers[0].handle("tools/call", func(w http.ResponseWriter, a *incoming) {
				if a.message.Text(jsonrpc.Name) == "slow" {
					<-release
				}
				a.reply(w, `{}`)
			})
			slow := u.start(http.MethodPost, u.request(`"slow"`, "tools/call", `{"name":"a::slow"}`))
			peers[0].waitFor(t, "tools/call", 1)
			for _, name := range []string{"a::x", "b::x"} {
				if s := u.call(name); s.code() != 0 {
					t.Errorf("got %s", s.body)
				}
			}
			u.ask("tools/list", "")
			close(release)
			if e := slow.nextOf(""); !strings.Contains(e.data, `"id":"slow"`) {
				t.Errorf("got %s", e.data)
			}
		})
}
