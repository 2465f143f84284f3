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

// Many clients are asked by several servers at the same time, always with the same ids
// (A23, A24). All answers reach who asked.
func TestQuestionsOfManyServersToManyClients(t *testing.T) {
	const clients = 500
	var wrong atomic.Int64
	quiz := func(p *peer) script {
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
				a.send(w, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"sampling/createMessage","params":{"nonce":"%s %s %d"}}`, i+1, p.name, a.session, i+1))
			}
			for i, answer := range answers {
				want := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{"nonce":"%s %s %d","who":%d}}`, i+1, p.name, a.session, i+1, call.Params.Arguments.Who)
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
	var peers []*peer
	for _, name := range []string{"a", "b", "c"} {
		p := legacyPeer(name)
		peers = append(peers, p.does("tools/call", quiz(p)))
	}
	g := newGateway(t, nil, peers...)
	var all sync.WaitGroup
	for who := range clients {
		u := g.user(t, mcp.Legacy)
		all.Go(func() {
			u.connect()
			servers := []string{peers[who%3].name, peers[(who+1)%3].name}
			talks := map[string]*talk{}
			type question struct {
				received
				server, nonce string
			}
			var questions []question
			for i, server := range servers {
				body := u.request(fmt.Sprint(i+1), "tools/call", fmt.Sprintf(`{"name":"%s::quiz","arguments":{"who":%d}}`, server, who))
				talks[server] = u.open(http.MethodPost, body)
			}
			for server, talk := range talks {
				for range 2 {
					e := talk.nextOf("sampling/createMessage")
					var q struct {
						Params struct {
							Nonce string
							Proxy struct{ Server string }
						}
					}
					if json.Unmarshal([]byte(e.data), &q) != nil || q.Params.Proxy.Server != server {
						t.Errorf("%s asks: %s", server, e.data)
					}
					questions = append(questions, question{e, server, q.Params.Nonce})
				}
			}
			rand.Shuffle(len(questions), func(i, j int) { questions[i], questions[j] = questions[j], questions[i] })
			for _, q := range questions {
				if s := u.answer(q.received, fmt.Sprintf(`{"nonce":%q,"who":%d}`, q.nonce, who)); s.status != http.StatusAccepted {
					t.Errorf("got %d %s", s.status, s.body)
				}
			}
			for server, talk := range talks {
				if e := talk.nextOf(""); !strings.Contains(e.data, fmt.Sprintf(`"result":{"who":%d,"at":%q}`, who, server)) {
					t.Errorf("client %d at %s: got %s", who, server, e.data)
				}
				talk.hangUp()
			}
		})
	}
	all.Wait()
	if n := wrong.Load(); n != 0 {
		t.Errorf("%d answers went astray", n)
	}
}

// waits has a tool that lasts until it is canceled by a notification, as in the legacy
// era, or by hanging up, as in the modern one, or until all are released.
func (p *peer) waits() (canceled func() map[string]bool, release func()) {
	var mu sync.Mutex
	waiting := map[string]chan struct{}{}
	who := map[string]bool{}
	released := make(chan struct{})
	p.does("tools/call", func(w http.ResponseWriter, a *incoming) {
		var call struct {
			Params struct{ Arguments struct{ Who string } }
		}
		_ = json.Unmarshal([]byte(a.body), &call)
		key := a.session + " " + a.id()
		mu.Lock()
		end := waiting[key] // if the cancellation has overtaken it
		if end == nil {
			end = make(chan struct{})
			waiting[key] = end
		}
		mu.Unlock()
		hungUp := a.Context().Done()
		if p.speaks[mcp.Legacy] {
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
		who[call.Params.Arguments.Who] = true
		mu.Unlock()
	})
	p.does("notifications/cancelled", func(w http.ResponseWriter, a *incoming) {
		w.WriteHeader(http.StatusAccepted)
		key := a.session + " " + string(a.message.Literal(jsonrpc.RequestID))
		mu.Lock()
		defer mu.Unlock()
		if waiting[key] == nil {
			waiting[key] = make(chan struct{})
		}
		select {
		case <-waiting[key]: // for the second time
		default:
			close(waiting[key])
		}
	})
	return func() map[string]bool {
		mu.Lock()
		defer mu.Unlock()
		all := map[string]bool{}
		for name := range who {
			all[name] = true
		}
		return all
	}, sync.OnceFunc(func() { close(released) })
}

// Of many calls with the same id only those end that are canceled (A28).
func TestManyCancellations(t *testing.T) {
	for _, client := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		for _, server := range []mcp.Era{mcp.Legacy, mcp.Modern} {
			t.Run(fmt.Sprint("client of era ", client, ", server of ", server), func(t *testing.T) {
				const clients = 400 // half of which cancel
				p, other := newPeer("a"), newPeer("b")
				p.speaks[server], other.speaks[server] = true, true
				canceled, release := p.waits()
				defer release()
				g := newGateway(t, nil, other, p)
				var users [clients]*user
				var talks [clients]*talk
				for i := range users {
					users[i] = g.user(t, client)
					users[i].info = fmt.Sprintf(`{"name":"client-%d","version":"1"}`, i)
					if client == mcp.Legacy {
						users[i].connect()
					}
					body := users[i].request("7", "tools/call", fmt.Sprintf(`{"name":"a::wait","arguments":{"who":"%d"}}`, i))
					talks[i] = users[i].start(http.MethodPost, body)
				}
				p.await(t, "tools/call", clients)
				for i := 0; i < clients; i += 2 {
					if client == mcp.Modern {
						talks[i].hangUp()
					} else if s := users[i].tell("notifications/cancelled", `{"requestId":7,"reason":"r"}`); s.status != http.StatusAccepted {
						t.Errorf("got %d", s.status)
					}
				}
				await.Until(t, "all that were canceled have ended", func() bool { return len(canceled()) == clients/2 })
				for who := range canceled() {
					if i, err := strconv.Atoi(who); err != nil || i%2 == 1 {
						t.Errorf("call %s was canceled", who)
					}
				}
				for i := 0; i < clients; i += 2 {
					talks[i].ended()
				}
				release()
				for i := 1; i < clients; i += 2 {
					if e := talks[i].nextOf(""); !strings.Contains(e.data, `"result":`) {
						t.Errorf("call %d: got %s", i, e.data)
					}
				}
				if n := len(canceled()); n != clients/2 {
					t.Errorf("%d calls were canceled", n)
				}
				if n := other.count("notifications/cancelled"); n != 0 {
					t.Errorf("another server has heard of %d cancellations", n)
				}
			})
		}
	}
}

// Two processes of the same program cannot be told apart, and number their requests
// alike. One that hangs up ends its own call only.
func TestCancellationsOfClientsThatLookTheSame(t *testing.T) {
	p := legacyPeer("a")
	canceled, release := p.waits()
	defer release()
	g := newGateway(t, nil, p)
	var talks [4]*talk
	for i := range talks {
		u := g.modern(t)
		talks[i] = u.start(http.MethodPost, u.request("1", "tools/call", fmt.Sprintf(`{"name":"a::wait","arguments":{"who":"%d"}}`, i)))
	}
	p.await(t, "tools/call", len(talks))
	seen := map[string]bool{}
	for _, call := range p.heard("tools/call") {
		key := call.session + " " + call.id()
		if seen[key] {
			t.Errorf("two calls with the id %s in one session", call.id())
		}
		seen[key] = true
	}
	talks[2].hangUp()
	await.Until(t, "the call has ended", func() bool { return len(canceled()) > 0 })
	release()
	for i, talk := range talks {
		if i == 2 {
			continue
		}
		if e := talk.nextOf(""); !strings.Contains(e.data, `"id":1,`) || !strings.Contains(e.data, `"result":`) {
			t.Errorf("call %d: got %s", i, e.data)
		}
	}
	if got := canceled(); len(got) != 1 || !got["2"] {
		t.Errorf("canceled: %v", got)
	}
}

func TestCancellationsOfNothing(t *testing.T) {
	p := legacyPeer("a")
	u := newGateway(t, nil, p).legacy(t)
	u.call("a::x")
	for _, params := range []string{`{"requestId":2}`, `{"requestId":"2"}`, `{}`, ``, `[]`, `{"requestId":null}`} {
		if s := u.tell("notifications/cancelled", params); s.status != http.StatusAccepted {
			t.Errorf("%s: got %d", params, s.status)
		}
	}
	if n := p.count("notifications/cancelled"); n != 0 {
		t.Errorf("%d were passed on", n)
	}
}

// Each server gets one notifications/initialized, and all others once each (A3, A27,
// A28, R23).
func TestNotificationsOfClients(t *testing.T) {
	a, b, modern := legacyPeer("a"), legacyPeer("b"), modernPeer("c")
	u := newGateway(t, nil, a, b, modern).legacy(t)
	u.tell("notifications/initialized", "")
	u.call("a::x")
	u.tell("notifications/roots/list_changed", "")
	u.tell("notifications/vendor/x", `{"requestId":7,"n":1.0}`)
	u.tell("notifications/progress", `{"progressToken":"b::7","progress":0.5}`)
	u.tell("notifications/progress", `{"progressToken":"b::\"t\"","progress":0.5}`)
	for _, token := range []string{`7`, `"7"`, `"z::7"`, `"b::"`, `"b::{}"`, `"b::x"`} {
		u.tell("notifications/progress", `{"progressToken":`+token+`,"progress":0.5}`)
	}
	for _, p := range []*peer{a, b} {
		for _, method := range []string{"notifications/initialized", "notifications/roots/list_changed", "notifications/vendor/x"} {
			if n := p.count(method); n != 1 {
				t.Errorf("%s has heard %d × %s", p.name, n, method)
			}
		}
		if got := p.heard("notifications/vendor/x")[0].body; got != `{"jsonrpc":"2.0","method":"notifications/vendor/x","params":{"requestId":7,"n":1.0}}` {
			t.Errorf("got %s", got)
		}
	}
	if n := a.count("notifications/progress"); n != 0 {
		t.Errorf("a has heard of progress %d times", n)
	}
	progress := b.heard("notifications/progress")
	if len(progress) != 2 || string(progress[0].message.Literal(jsonrpc.Progress)) != "7" || string(progress[1].message.Literal(jsonrpc.Progress)) != `"t"` {
		t.Errorf("b has heard of progress %d times", len(progress))
	}
}

// Progress comes with the token that the client gave (A8, A28).
func TestProgressOfCalls(t *testing.T) {
	both(t, nil, func() []*peer {
		p := newPeer("a")
		p.does("tools/call", func(w http.ResponseWriter, a *incoming) {
			for i := range 3 {
				a.send(w, fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d}}`, a.message.Literal(jsonrpc.ProgressToken), i))
			}
			a.finish(w, "{}")
		})
		return []*peer{p, newPeer("b")}
	}, func(t *testing.T, u *user, _ []*peer) {
		for _, token := range []string{`9007199254740993`, `"t"`, `0`} {
			meta := `"_meta":{"progressToken":` + token + `}`
			body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a::x",` + meta + `}}`
			if u.era == mcp.Modern {
				body = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a::x","_meta":` + string(u.meta(`,"progressToken":`+token)) + `}}`
			}
			s := u.post(body)
			if len(s.events) != 4 {
				t.Fatalf("got %s", s.body)
			}
			for i, e := range s.events[:3] {
				m := e.parts()
				if string(m.Literal(jsonrpc.Progress)) != token || !strings.Contains(e.data, fmt.Sprintf(`"progress":%d`, i)) || !strings.Contains(e.data, `"proxy":{"server":"a"}`) {
					t.Errorf("got %s", e.data)
				}
			}
		}
	})
}

// A server never waits for an answer that nobody can give (A25).
func TestQuestionsThatNobodyCanAnswer(t *testing.T) {
	ask := func(w http.ResponseWriter, a *incoming) {
		answer := a.ask(w, `"q"`, "elicitation/create", `{"message":"?"}`)
		a.finish(w, `{"answer":`+string(jsonrpc.Quote(answer))+`}`)
	}
	for name, change := range map[string]func(*user){
		"it has not said that it can": func(u *user) { u.can = `{"sampling":{}}` },
		"it takes no event streams":   func(u *user) { u.accept = "application/json" },
	} {
		t.Run(name, func(t *testing.T) {
			p := legacyPeer("a").does("tools/call", ask)
			u := newGateway(t, nil, p).user(t, mcp.Legacy)
			change(u)
			u.connect()
			s := u.call("a::x")
			if !strings.Contains(s.answer, `\"error\"`) || !strings.Contains(s.answer, `-32601`) || strings.Contains(s.body, "elicitation/create\"") {
				t.Errorf("got %s", s.body)
			}
		})
	}
	t.Run("it listens to nothing", func(t *testing.T) {
		p := legacyPeer("a").does("tools/list", func(w http.ResponseWriter, a *incoming) {
			a.ask(w, "1", "roots/list", "{}")
			a.finish(w, `{"tools":[{"name":"x"}]}`)
		})
		u := newGateway(t, nil, p).legacy(t)
		if got := names(t, u.ask("tools/list", ""), "tools", "name"); len(got) != 1 {
			t.Errorf("got %v", got)
		}
	})
	t.Run("it listens, and is asked while a list is made", func(t *testing.T) {
		p := legacyPeer("a").does("tools/list", func(w http.ResponseWriter, a *incoming) {
			if answer := a.ask(w, "1", "roots/list", "{}"); !strings.Contains(answer, `"result":{"roots":[]}`) {
				t.Errorf("got %s", answer)
			}
			a.finish(w, `{"tools":[{"name":"x"}]}`)
		})
		p.listens()
		u := newGateway(t, nil, p).legacy(t)
		stream := u.listen()
		list := u.start(http.MethodPost, u.request("1", "tools/list", ""))
		u.answer(stream.nextOf("roots/list"), `{"roots":[]}`)
		if e := list.nextOf(""); !strings.Contains(e.data, `"a::x"`) {
			t.Errorf("got %s", e.data)
		}
	})
	t.Run("by another client", func(t *testing.T) {
		p := legacyPeer("a").does("tools/call", ask)
		g := newGateway(t, nil, p)
		u, other := g.legacy(t), g.legacy(t)
		call := u.begin("tools/call", `{"name":"a::x"}`)
		q := call.nextOf("elicitation/create")
		other.answer(q, `{"action":"evil"}`)
		u.answer(q, `{"action":"accept"}`)
		if e := call.nextOf(""); !strings.Contains(e.data, "accept") || strings.Contains(e.data, "evil") {
			t.Errorf("got %s", e.data)
		}
	})
}

// A slow call delays no other (A29).
func TestSlowCallsDelayNoOthers(t *testing.T) {
	both(t, nil, func() []*peer { return []*peer{newPeer("a"), newPeer("b")} }, func(t *testing.T, u *user, peers []*peer) {
		release := make(chan struct{})
		peers[0].does("tools/call", func(w http.ResponseWriter, a *incoming) {
			if a.message.Text(jsonrpc.Name) == "slow" {
				<-release
			}
			a.reply(w, `{}`)
		})
		slow := u.start(http.MethodPost, u.request(`"slow"`, "tools/call", `{"name":"a::slow"}`))
		peers[0].await(t, "tools/call", 1)
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
