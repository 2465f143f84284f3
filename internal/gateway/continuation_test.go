package gateway

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolview"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// newMemoryReplica returns a gateway without a network that shares an engine with others.
func newMemoryReplica(t testing.TB, engine *replicastest.Engine, configure func(*Config),
	peers ...*fakeServer) *testGateway {
	g := serveInMemory(t, newBareGatewayIn(replicastest.Replica(t, engine).Space("gateway"), configure, peers...))
	t.Cleanup(g.close)
	return g
}

// twoReplicas returns two replicas of a gateway.
func twoReplicas(t testing.TB, peers ...*fakeServer) (engine *replicastest.Engine, a, b *testGateway) {
	engine = replicastest.New()
	return engine, newMemoryReplica(t, engine, nil, peers...), newMemoryReplica(t, engine, nil, peers...)
}

// A client may respond to the same or another replica. Neither the client, the server nor the
// counts of calls show a difference.
func TestCallsHeldElsewhere(t *testing.T) {
	p := legacyPeer("a").handle("tools/call", askingTool(5))
	one := newGateway(t, nil, p)
	_, a, b := twoReplicas(t, p)
	ask := func(client func(round int) *testClient) (answers []string) {
		s := client(0).call("a::x")
		for round := 1; ; round++ {
			answers = append(answers, s.answer)
			if !strings.Contains(s.answer, "inputRequests") {
				return answers
			}
			in, key := readInput(t, s)
			u := client(round)
			answers[len(answers)-1] = strings.Replace(s.answer, in.RequestState, "STATE", 1)
			again := u.again("a::x", in, key, fmt.Sprintf(`{"action":"accept","content":{"i":%d}}`, round))
			s = u.post(u.request("1", "tools/call", again))
		}
	}
	counted := func(all ...*testGateway) (counts string) {
		var records []upstream.Record
		var calls []inbound.Call
		for _, g := range all {
			await.Until(t, "the end of requests", func() bool { return g.active.Load() == 0 })
			records = append(records, g.config.Observer.(*recorder).takeRecords()...)
			calls = append(calls, g.config.Observer.(*recorder).takeCalls()...)
		}
		var received, sent int64
		for _, c := range calls {
			counts += c.Outcome + " "
			received, sent = received+c.Received, sent+c.Sent
		}
		if received == 0 || sent == 0 {
			t.Errorf("counted %d and %d bytes", received, sent)
		}
		called := 0
		for _, r := range records {
			if r.ClientMethod == "tools/call" {
				called++
			}
		}
		return fmt.Sprintf("%s: %d requests", counts, called)
	}
	u := one.modern(t)
	want := ask(func(int) *testClient { return u })
	wantCounted := counted(one)
	for _, way := range []string{"ABBBBB", "ABABAB", "AABBAA"} {
		got := ask(func(round int) *testClient {
			if way[round] == 'A' {
				return u.atGateway(a)
			}
			return u.atGateway(b)
		})
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("%s: got\n%s\nwant\n%s", way, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if got := counted(a, b); got != wantCounted {
			t.Errorf("%s: counted %s, want %s", way, got, wantCounted)
		}
	}
	if n := p.count("initialize"); n != 2 {
		t.Errorf("%d sessions began, want none at B", n)
	}
	await.Until(t, "no held calls", func() bool {
		return heldCallsQuota.Usage().Entries == 0 &&
			forwardedCallsQuota.Usage().Entries == 0
	})
}

// Messages before the answer arrive in order, with the progress token of the waiting request.
func TestCallsHeldElsewhereWithNotifications(t *testing.T) {
	const notices = 200
	p := legacyPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
		a.ask(w, "7", "elicitation/create", `{}`)
		for i := range notices {
			a.send(w, fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,`+
				`"progress":%d}}`, a.id(), i))
			a.send(w, fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":%d}}`, i))
		}
		a.finish(w, `{}`)
	})
	_, a, b := twoReplicas(t, p)
	u := a.modern(t)
	in, key := readInput(t, u.call("a::x"))
	u = u.atGateway(b)
	meta := u.meta(`,"progressToken":"mine","io.modelcontextprotocol/logLevel":"info"`)
	params := string(mcp.WithMeta([]byte(u.again("a::x", in, key, "{}")), meta))
	s := u.post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + params + `}`)
	if len(s.events) != 2*notices+1 {
		t.Fatalf("got %d events: %.300s", len(s.events), s.body)
	}
	for i, e := range s.events[:2*notices] {
		want := fmt.Sprintf(`"progressToken":"mine","progress":%d`, i/2)
		if i%2 == 1 {
			want = fmt.Sprintf(`"data":%d`, i/2)
		}
		if !strings.Contains(e.data, want) {
			t.Fatalf("event %d: got %s, want %s", i, e.data, want)
		}
	}
}

// Disconnecting at one replica cancels a call held by another.
func TestCallsHeldElsewhereDisconnect(t *testing.T) {
	for name, begin := range map[string]script{
		"before the response": func(w http.ResponseWriter, a *incoming) {},
		"during the response": func(w http.ResponseWriter, a *incoming) {
			_, _ = io.WriteString(w, `data: {"jsonrpc":"2.0","id":`+a.id()+`,"result":{"text":"`+
				strings.Repeat("x", 2*streamable.MaxHeld))
			_ = http.NewResponseController(w).Flush()
		},
	} {
		t.Run(name, func(t *testing.T) {
			going, ended := make(chan struct{}), make(chan struct{})
			p := legacyPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
				a.ask(w, "7", "elicitation/create", `{}`)
				close(going)
				begin(w, a)
				<-a.Context().Done()
				close(ended)
			})
			_, a, b := twoReplicas(t, p)
			u := a.modern(t)
			in, key := readInput(t, u.call("a::x"))
			u = u.atGateway(b)
			ctx, hangUp := context.WithCancel(t.Context())
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				if response, err := u.do(ctx, http.MethodPost,
					u.request("1", "tools/call", u.again("a::x", in, key, "{}"))); err == nil {
					_, _ = io.ReadFull(response.Body, make([]byte, streamable.MaxHeld))
					<-ctx.Done()
					_ = response.Body.Close()
				}
			}()
			<-going
			hangUp()
			<-ended
			p.waitFor(t, "notifications/cancelled", 1)
			<-gone
		})
	}
}

// Only the client that began a call can continue it, and only with the same call.
func TestCallsHeldElsewhereForOtherClients(t *testing.T) {
	p := legacyPeer("a").handle("tools/call", askingTool(1))
	_, a, b := twoReplicas(t, p)
	u := a.modern(t)
	u.identity = "x"
	in, key := readInput(t, u.call("a::x"))
	here := u.atGateway(b)
	other := u.atGateway(b)
	other.identity = "y"
	if s := other.retry("a::x", in, key, "{}"); s.code() != jsonrpc.CodeInvalidParams {
		t.Errorf("another client: got %s", s.body)
	}
	if s := here.retry("a::y", in, key, "{}"); s.code() != jsonrpc.CodeInvalidParams {
		t.Errorf("another tool: got %s", s.body)
	}
	if s := here.retry("a::x", in, key, "{}"); !strings.Contains(s.answer, `"answers"`) {
		t.Errorf("got %s", s.body)
	}
	if s := here.retry("a::x", in, key, "{}"); s.code() != jsonrpc.CodeInvalidParams {
		t.Errorf("again: got %s", s.body)
	}
}

// Large responses of clients and servers are forwarded completely.
func TestLargeCallsHeldElsewhere(t *testing.T) {
	text := strings.Repeat("0123456789", 500_000)
	for name, answer := range map[string]func(w http.ResponseWriter, a *incoming, end string){
		"whole":  func(w http.ResponseWriter, a *incoming, begin string) { a.send(w, begin+`"}}`) },
		"broken": func(w http.ResponseWriter, a *incoming, begin string) { a.send(w, begin); panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			p := legacyPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
				if got := a.ask(w, "7", "elicitation/create", `{}`); !strings.Contains(got, text) {
					t.Errorf("the server got %d bytes", len(got))
				}
				answer(w, a, `{"jsonrpc":"2.0","id":`+a.id()+`,"result":{"text":"`+text)
			})
			_, a, b := twoReplicas(t, p)
			u := a.modern(t)
			in, key := readInput(t, u.call("a::x"))
			u = u.atGateway(b)
			s := u.post(u.request("1", "tools/call", u.again("a::x", in, key, `{"text":"`+text+`"}`)))
			want := `{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","text":"` + text + `"}}`
			switch {
			case name == "whole" && (s.answer != want || s.broken != nil):
				t.Errorf("got %d bytes, %v: %.200s", len(s.answer), s.broken, s.answer)
			case name == "broken" && s.broken == nil:
				t.Errorf("the response is complete: %.200s", s.body)
			}
		})
	}
}

func TestManyCallsHeldElsewhere(t *testing.T) {
	p := legacyPeer("a").handle("tools/call", askingTool(2))
	_, a, b := twoReplicas(t, p)
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			u := a.modern(t)
			u.identity = fmt.Sprint(i) // so that request ids of the server do not collide
			s := u.call("a::x")
			for round := range 2 {
				in, key := readInput(t, s)
				s = u.atGateway(b).retry("a::x", in, key, fmt.Sprintf(`{"content":"%d.%d"}`, i, round))
			}
			if !strings.Contains(s.answer, fmt.Sprintf(`"%d.0"`, i)) || !strings.Contains(s.answer, fmt.Sprintf(`"%d.1"`, i)) {
				t.Errorf("got %s", s.body)
			}
		})
	}
	all.Wait()
}

// A client can continue 100 calls at other replicas at a time. Further calls stay held.
func TestForwardedCallsAreBounded(t *testing.T) {
	_, a, b := twoReplicas(t, legacyPeer("a").handle("tools/call", askingTool(1)))
	u := a.modern(t)
	u.identity = "x"
	in, key := readInput(t, u.call("a::x"))
	for _, g := range []*testGateway{b, a} {
		for range forwardLimits.OwnerEntries {
			if !g.continuations.meter.Take("x", 1) {
				t.Fatal("the quota is already used")
			}
		}
		if s := u.atGateway(b).retry("a::x", in, key, "{}"); s.symbol() != "busy" {
			t.Errorf("got %s", s.body)
		}
		other := a.modern(t)
		other.identity = "y"
		in, key := readInput(t, other.call("a::x"))
		if s := other.atGateway(b).retry("a::x", in, key, "{}"); !strings.Contains(s.answer, `"answers"`) {
			t.Errorf("another client: got %s", s.body)
		}
		for range forwardLimits.OwnerEntries {
			g.continuations.meter.Give("x", 1)
		}
	}
	if s := u.atGateway(b).retry("a::x", in, key, "{}"); !strings.Contains(s.answer, `"answers"`) {
		t.Errorf("got %s", s.body)
	}
}

// A call held by a replica that has ended counts as expired.
func TestCallsHeldByDeadReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b := twoReplicas(t, legacyPeer("a").handle("tools/call", askingTool(1)))
		u := a.modern(t)
		in, key := readInput(t, u.call("a::x"))
		a.continuations.peers.Close()
		began := time.Now()
		if s := u.atGateway(b).retry("a::x", in, key, "{}"); s.code() != jsonrpc.CodeInvalidParams ||
			!strings.Contains(s.body, "requestState") {
			t.Errorf("got %s", s.body)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// While the store is unavailable, the client gets an error and can continue later. It does not
// notice short outages.
func TestCallsHeldElsewhereWithoutStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running sync.WaitGroup
		defer running.Wait()
		working := make(chan struct{})
		p := legacyPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
			a.ask(w, "7", "elicitation/create", `{}`)
			close(working)
			time.Sleep(time.Second)
			a.finish(w, `{"done":true}`)
		})
		engine, a, b := twoReplicas(t, p)
		u := a.modern(t)
		in, key := readInput(t, u.call("a::x"))
		engine.Down.Store(true)
		if s := u.atGateway(b).retry("a::x", in, key, "{}"); s.symbol() != "store_unavailable" ||
			s.status != http.StatusServiceUnavailable {
			t.Errorf("got %d %s", s.status, s.body)
		}
		engine.Down.Store(false)
		time.Sleep(time.Minute)
		running.Go(func() {
			<-working
			engine.Stalled.Store(true)
			time.Sleep(5 * time.Second)
			engine.Stalled.Store(false)
		})
		if s := u.atGateway(b).retry("a::x", in, key, "{}"); !strings.Contains(s.answer, `"done":true`) {
			t.Errorf("got %s", s.body)
		}
	})
}

// A replica that stops cancels the calls that it continues for other replicas.
func TestDestructEndsForwardedCalls(t *testing.T) {
	going := make(chan struct{})
	p := legacyPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
		a.ask(w, "7", "elicitation/create", `{}`)
		close(going)
		<-a.Context().Done()
	})
	_, a, b := twoReplicas(t, p)
	u := a.modern(t)
	in, key := readInput(t, u.call("a::x"))
	answer := make(chan reply)
	go func() { answer <- u.atGateway(b).retry("a::x", in, key, "{}") }()
	<-going
	a.continuations.peers.Close()
	if s := <-answer; s.symbol() != "connect_error" {
		t.Errorf("got %s", s.body)
	}
	p.waitFor(t, "notifications/cancelled", 1)
}

// A replica that has not listed the tools of a server answers calls like one that has.
func TestCallsWithoutList(t *testing.T) {
	long := strings.Repeat("long", 20)
	tools := []string{
		`{"name":"x","inputSchema":{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"}}}}`,
		`{"name":"` + long + `","inputSchema":{"type":"object"}}`, invalidTool,
	}
	calls := map[string]string{
		"an argument without its header": `{"name":"a::x","arguments":{"region":"eu"}}`,
		"a focus":                        `{"name":"a::x","arguments":{"aim":"y"}}`,
		"an invalid definition":          `{"name":"a::bad","arguments":{}}`,
		"a long name":                    "",
		"an unknown tool":                `{"name":"a::none","arguments":{}}`,
	}
	for what, params := range calls {
		for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
			for name, newPeer := range map[string]func(string) *fakeServer{"legacy": legacyPeer, "modern": modernPeer} {
				for _, to := range []string{"", "a"} {
					if to != "" && (era == mcp.Legacy || name == "legacy") {
						continue // the session belongs to the server
					}
					t.Run(fmt.Sprintf("%s, %v to %s %s", what, era, name, to), func(t *testing.T) {
						p := newPeer("a").hasList("tools/list", "tools", tools...)
						p.handle("tools/call", func(w http.ResponseWriter, a *incoming) {
							a.reply(w, `{"resultType":"complete","name":`+string(a.message.Literal(jsonrpc.Name))+`,"arguments":`+
								string(a.message.Literal(jsonrpc.Arguments))+`,"region":"`+a.Header.Get("Mcp-Param-Region")+`"}`)
						})
						configure := func(c *Config) {
							c.Naming.Longest = 64
							c.Servers[0].Mask, c.Servers[0].MaskMCP, c.Servers[0].Focus = originalsMask{}, true, toolview.NewFocus("aim")
						}
						engine := replicastest.New()
						a, b := newMemoryReplica(t, engine, configure, p), newMemoryReplica(t, engine, configure, p)
						u := a.user(t, era)
						params := params
						if to != "" {
							u.header.Set("X-Single", to)
							params = strings.Replace(params, "a::", "", 1)
						}
						if era == mcp.Legacy {
							u.connect()
						}
						listed := namesIn(t, u.ask("tools/list", ""), "tools", "name")
						if params == "" {
							params = fmt.Sprintf(`{"name":%q,"arguments":{}}`, listed[1])
						}
						there := u.atGateway(b)
						got, want := there.post(there.request("1", "tools/call", params)), u.post(u.request("1", "tools/call", params))
						if got.answer != want.answer || got.status != want.status || want.answer == "" {
							t.Errorf("got  %d %s\nwant %d %s", got.status, got.answer, want.status, want.answer)
						}
					})
				}
			}
		}
	}
}
