package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// inputResult is an input-required result.
type inputResult struct {
	ResultType    string
	InputRequests map[string]struct {
		Method string
		Params json.RawMessage
	}
	RequestState string
}

// readInput reads a result with one input request.
func readInput(t testing.TB, s reply) (result inputResult, key string) {
	t.Helper()
	if json.Unmarshal(s.Result, &result) != nil || result.ResultType != "input_required" ||
		len(result.InputRequests) != 1 || result.RequestState == "" {
		t.Fatalf("got %d %s", s.status, s.body)
	}
	for key = range result.InputRequests {
	}
	return result, key
}

// retry repeats a call with a response.
func (u *testClient) retry(name string, input inputResult, key, response string) reply {
	u.t.Helper()
	return u.ask("tools/call", u.again(name, input, key, response))
}

func (u *testClient) again(name string, input inputResult, key, response string) string {
	return fmt.Sprintf(`{"name":%q,"inputResponses":{%q:%s},"requestState":%q}`, name, key, response, input.RequestState)
}

// askingTool is a tool that sends some requests, one after the other.
func askingTool(questions int) script {
	return func(w http.ResponseWriter, a *incoming) {
		var answers []string
		for i := range questions {
			answer := a.ask(w, fmt.Sprint(i), "elicitation/create", fmt.Sprintf(`{"message":"%d","n":12345678901234567890}`, i))
			if answer == "" {
				return
			}
			answers = append(answers, answer)
		}
		a.finish(w, `{"answers":[`+strings.Join(answers, ",")+`]}`)
	}
}

func TestHeldCalls(t *testing.T) {
	p := legacyPeer("a").handle("tools/call", askingTool(3))
	g := newGateway(t, nil, p)
	u := g.modern(t)
	s := u.call("a::x")
	id := "1"
	var all []string
	for i := range 3 {
		in, key := readInput(t, s)
		if q := in.InputRequests[key]; q.Method != "elicitation/create" ||
			string(q.Params) != fmt.Sprintf(`{"message":"%d","n":12345678901234567890}`, i) {
			t.Errorf("got %s", s.Result)
		}
		if !strings.Contains(s.answer, `"id":`+id+`,`) {
			t.Errorf("got %s, want id %s", s.answer, id)
		}
		s = u.retry("a::x", in, key, fmt.Sprintf(`{"action":"accept","content":{"i":%d,"n":12345678901234567890}}`, i))
		id = fmt.Sprint(u.last.Load())
		all = append(all, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{"action":"accept","content":{"i":%d,`+
			`"n":12345678901234567890}}}`, i, i))
		// A call cannot be continued twice.
		if again := u.retry("a::x", in, key, `{}`); again.code() != jsonrpc.CodeInvalidParams {
			t.Errorf("got %s", again.body)
		}
	}
	var result struct{ ResultType string }
	_ = json.Unmarshal(s.Result, &result)
	if result.ResultType != "complete" ||
		!strings.Contains(string(s.Result), `"answers":[`+strings.Join(all, ",")+`]`) {
		t.Errorf("got %s", s.body)
	}
	if n := p.count("tools/call"); n != 1 {
		t.Errorf("called %d times", n)
	}
	g.waiting.mu.Lock()
	defer g.waiting.mu.Unlock()
	if n := len(g.waiting.byKey); n != 0 {
		t.Errorf("%d calls are still held", n)
	}
}

func TestHeldCallsOfOtherMethods(t *testing.T) {
	p := legacyPeer("a").handle("prompts/get", askingTool(1)).handle("resources/read", askingTool(1))
	u := newGateway(t, nil, p).modern(t)
	for method, named := range map[string]string{"prompts/get": `"name":"a::p"`,
		"resources/read": `"uri":"` + mcp.ResourceURI("a", "x://a") + `"`} {
		in, key := readInput(t, u.ask(method, `{`+named+`}`))
		s := u.ask(method, fmt.Sprintf(`{%s,"inputResponses":{%q:{}},"requestState":%q}`, named, key, in.RequestState))
		if !strings.Contains(string(s.Result), `"answers"`) ||
			!strings.Contains(string(s.Result), `"resultType":"complete"`) {
			t.Errorf("%s: got %s", method, s.body)
		}
	}
}

// Concurrent server requests are sent to the client one after the other.
func TestHeldCallsWithConcurrentServerRequests(t *testing.T) {
	p := legacyPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
		one, two := a.at.expect(a.session, "1"), a.at.expect(a.session, "2")
		a.send(w, `{"jsonrpc":"2.0","id":1,"method":"roots/list"}`)
		a.send(w, `{"jsonrpc":"2.0","id":2,"method":"sampling/createMessage","params":{}}`)
		a.finish(w, `{"one":`+<-one+`,"two":`+<-two+`}`)
	})
	u := newGateway(t, nil, p).modern(t)
	s := u.call("a::x")
	for _, method := range []string{"roots/list", "sampling/createMessage"} {
		in, key := readInput(t, s)
		if in.InputRequests[key].Method != method {
			t.Errorf("got %s", s.body)
		}
		s = u.retry("a::x", in, key, `{"of":"`+method+`"}`)
	}
	if !strings.Contains(s.answer, `"one":{"jsonrpc":"2.0","id":1,"result":{"of":"roots/list"}},"two":{"jsonrpc":"2.0",`+
		`"id":2,"result":{"of":"sampling/createMessage"}}`) {
		t.Errorf("got %s", s.body)
	}
}

func TestHeldCallsWithoutAResponse(t *testing.T) {
	p := legacyPeer("a").handle("tools/call", askingTool(1))
	u := newGateway(t, nil, p).modern(t)
	in, _ := readInput(t, u.call("a::x"))
	s := u.ask("tools/call", fmt.Sprintf(`{"name":"a::x","requestState":%q}`, in.RequestState))
	if !strings.Contains(s.answer, `"answers":[{"jsonrpc":"2.0"`) || !strings.Contains(s.answer, `"error"`) {
		t.Errorf("the server was not notified: %s", s.body)
	}
}

// Messages between server requests reach the client in the response to its waiting request.
func TestHeldCallsWithNotifications(t *testing.T) {
	p := legacyPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
		a.send(w, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":`+
			string(a.message.Literal(jsonrpc.ProgressToken))+`,"progress":1}}`)
		a.send(w, `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"d"}}`)
		a.ask(w, "1", "elicitation/create", `{}`)
		a.send(w, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":`+
			string(a.message.Literal(jsonrpc.ProgressToken))+`,"progress":2}}`)
		a.finish(w, `{"done":true}`)
	})
	u := newGateway(t, nil, p).modern(t)
	call := func(more, params string) reply {
		return u.post(`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"a::x","_meta":` +
			string(u.meta(more)) + params + `}}`)
	}
	s := call(`,"progressToken":"t"`, "")
	if len(s.events) != 2 || s.events[0].method() != "notifications/progress" {
		t.Fatalf("without a level: got %s", s.body)
	}
	in, key := readInput(t, s)
	s = call(`,"progressToken":"t"`, fmt.Sprintf(`,"inputResponses":{%q:{}},"requestState":%q`, key, in.RequestState))
	if len(s.events) != 2 || !strings.Contains(s.events[0].data, `"progress":2`) ||
		!strings.Contains(s.answer, `"done":true`) {
		t.Errorf("got %s", s.body)
	}
	s = call(`,"progressToken":"t","io.modelcontextprotocol/logLevel":"info"`, "")
	if len(s.events) != 3 || s.events[1].method() != "notifications/message" {
		t.Errorf("with a level: got %s", s.body)
	}
	if n := p.count("logging/setLevel"); n != 1 {
		t.Errorf("the level was set %d times", n)
	}
}

// Only the client that received a server request can respond to it, at the server that sent it.
func TestHeldCallsOfOthers(t *testing.T) {
	p, q := legacyPeer("a").handle("tools/call", askingTool(1)), legacyPeer("b").handle("tools/call", askingTool(1))
	g := newGateway(t, nil, p, q)
	u := g.modern(t)
	in, key := readInput(t, u.call("a::x"))
	others := map[string]func(*testClient){
		"of another identity": func(o *testClient) { o.identity = "bob" },
		"with other credentials": func(o *testClient) {
			o.header = http.Header{"Authorization": {"Bearer other"}}
		},
		"with another cookie":                 func(o *testClient) { o.header = http.Header{"Cookie": {"a=b"}} },
		"of another name":                     func(o *testClient) { o.info = `{"name":"other","version":"1"}` },
		"that supports other server requests": func(o *testClient) { o.capabilities = `{"elicitation":{}}` },
	}
	for name, change := range others {
		other := g.modern(t)
		change(other)
		if s := other.retry("a::x", in, key, `{}`); s.code() != jsonrpc.CodeInvalidParams {
			t.Errorf("a client %s: %s", name, s.body)
		}
	}
	if s := u.retry("b::x", in, key, `{}`); s.code() != jsonrpc.CodeInvalidParams {
		t.Errorf("at another server: %s", s.body)
	}
	for name, state := range map[string]string{
		"invented": "abc", "empty": "", "truncated": in.RequestState[:20],
		"sealed for another purpose": g.sealer.Seal("session", []byte("x")), "nothing": g.sealer.Seal("call", []byte("x")),
	} {
		forged := in
		forged.RequestState = state
		if s := u.retry("a::x", forged, key, `{}`); s.code() != jsonrpc.CodeInvalidParams {
			t.Errorf("a state that is %s: %s", name, s.body)
		}
	}
	if s := u.ask("tools/call", `{"name":"a::x","requestState":1}`); s.code() != jsonrpc.CodeInvalidParams {
		t.Errorf("got %s", s.body)
	}
	if s := u.retry("a::x", in, key, `{"mine":1}`); !strings.Contains(s.answer, `"mine":1`) {
		t.Errorf("got %s", s.body)
	}
	if n := p.count("tools/call") + q.count("tools/call"); n != 1 {
		t.Errorf("called %d times", n)
	}
}

func TestUnsupportedServerRequestsToModernClients(t *testing.T) {
	p := legacyPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
		one := a.ask(w, "1", "sampling/createMessage", `{}`)
		two := a.ask(w, "2", "vendor/ask", `{}`)
		a.finish(w, `{"one":`+one+`,"two":`+two+`}`)
	})
	u := newGateway(t, nil, p).modern(t)
	u.capabilities = `{"elicitation":{}}`
	if s := u.call("a::x"); strings.Count(s.answer, `"code":-32601`) != 2 ||
		!strings.Contains(s.answer, `"resultType":"complete"`) {
		t.Errorf("got %s", s.body)
	}
}

// Disconnecting cancels a held call, even a continued one. The server gets a cancellation with its
// own id.
func TestDisconnectCancelsAHeldCall(t *testing.T) {
	for _, rounds := range []int{0, 1, 2} {
		t.Run(fmt.Sprint("after ", rounds, " server requests"), func(t *testing.T) {
			ended := make(chan struct{})
			p := legacyPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
				defer close(ended)
				for i := range rounds {
					a.ask(w, fmt.Sprint("10", i), "elicitation/create", `{}`)
				}
				<-a.Context().Done()
			})
			u := newGateway(t, nil, p).modern(t)
			params := `{"name":"a::x"}`
			for range rounds {
				in, key := readInput(t, u.ask("tools/call", params))
				params = u.again("a::x", in, key, `{}`)
			}
			call := u.start(http.MethodPost, u.request(u.nextID(), "tools/call", params))
			p.waitFor(t, "tools/call", 1)
			if rounds > 0 {
				p.waitFor(t, "", rounds) // its responses have arrived
			}
			call.disconnect()
			<-ended
			canceled := p.waitFor(t, "notifications/cancelled", 1)
			if got, want := string(canceled.message.Literal(jsonrpc.RequestID)), p.requests("tools/call")[0].id(); got != want {
				t.Errorf("canceled %s, want %s", got, want)
			}
		})
	}
}

// Fake time: a client that does not respond within ten minutes loses the call.
func TestHeldCallsExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan struct{})
		p := legacyPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
			defer close(ended)
			askingTool(1)(w, a)
		})
		g := newInMemory(t, nil, p)
		defer g.close()
		u := g.modern(t)
		in, key := readInput(t, u.call("a::x"))
		time.Sleep(streamable.ServerRequestTimeout - time.Second)
		select {
		case <-ended:
			t.Fatal("the call ended too early")
		default:
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		select {
		case <-ended:
		default:
			t.Fatal("the call did not end")
		}
		if s := u.retry("a::x", in, key, `{}`); s.code() != jsonrpc.CodeInvalidParams {
			t.Errorf("got %s", s.body)
		}
		if n := p.count("notifications/cancelled"); n != 1 {
			t.Errorf("the server was notified %d times", n)
		}
	})
}

// A server that ends the call while the client has not responded yet does not block it.
func TestHeldCallsWhoseServerEnds(t *testing.T) {
	for name, end := range map[string]script{
		"response": func(w http.ResponseWriter, a *incoming) { a.finish(w, `{"anyway":true}`) },
		"end":      func(http.ResponseWriter, *incoming) {},
		"abort":    func(http.ResponseWriter, *incoming) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			p := legacyPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
				a.send(w, `{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{}}`)
				end(w, a)
			})
			u := newGateway(t, nil, p).modern(t)
			in, key := readInput(t, u.call("a::x"))
			s := u.retry("a::x", in, key, `{}`)
			if anyway := strings.Contains(s.answer, "anyway"); anyway != (name == "response") || !anyway && s.code() == 0 {
				t.Errorf("got %s", s.body)
			}
		})
	}
}

// At most 1,000 calls are held, and 32 of one client, whatever name it claims. Beyond that, the
// server gets an error.
func TestTooManyHeldCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := legacyPeer("a").handle("tools/call", askingTool(1))
		g := newInMemory(t, nil, p)
		defer g.close()
		refused := func(u *testClient) {
			t.Helper()
			if s := u.call("a::x"); !strings.Contains(s.answer, `"answers":[{"jsonrpc":"2.0"`) ||
				!strings.Contains(s.answer, "too many") {
				t.Errorf("got %s", s.body)
			}
		}
		var u *testClient
		for i := range maxHeldCalls {
			if i%maxOwnerHeldCalls == 0 {
				if u != nil {
					refused(u)
					u.info = `{"name":"another","version":"1"}`
					refused(u)
				}
				u = g.modern(t)
				u.identity = fmt.Sprint(i)
			}
			readInput(t, u.call("a::x"))
		}
		refused(u)
		refused(g.modern(t))
		time.Sleep(streamable.ServerRequestTimeout + time.Minute)
		readInput(t, u.call("a::x"))
	})
}

// A held call that continues frees its place.
func TestHeldCallsFreeTheirPlace(t *testing.T) {
	p := legacyPeer("a").handle("tools/call", askingTool(1))
	u := newGateway(t, nil, p).modern(t)
	for range 2 * maxOwnerHeldCalls {
		in, key := readInput(t, u.call("a::x"))
		if s := u.retry("a::x", in, key, "{}"); !strings.Contains(s.answer, `"answers"`) {
			t.Fatalf("got %s", s.body)
		}
	}
}

// Held calls end with the State, even those that are held during its end.
func TestDestructEndsHeldCalls(t *testing.T) {
	t.Run("calls that wait for their client", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var ended sync.WaitGroup
			p := legacyPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
				defer ended.Done()
				askingTool(1)(w, a)
			})
			g := newInMemory(t, nil, p)
			defer g.close()
			const calls = 20
			u := g.modern(t)
			ended.Add(calls)
			for range calls {
				readInput(t, u.call("a::x"))
			}
			began := time.Now()
			g.close()
			ended.Wait()
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("took %v", took)
			}
		})
	})
	t.Run("a call with a server request during the end", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			closing := make(chan struct{})
			p := legacyPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
				<-closing
				time.Sleep(time.Second)
				askingTool(1)(w, a)
			})
			g := newInMemory(t, nil, p)
			u := g.modern(t)
			call := u.start(http.MethodPost, u.request("1", "tools/call", `{"name":"a::x"}`))
			p.waitFor(t, "tools/call", 1)
			began := time.Now()
			close(closing)
			g.close()
			if took := time.Since(began); took > time.Minute {
				t.Errorf("took %v", took)
			}
			call.disconnect()
		})
	})
}

// A large response is streamed to the client, with the same content as a small one.
func TestHeldCallsWithLargeResponses(t *testing.T) {
	text := strings.Repeat("x", 2*streamable.MaxHeld)
	result := `{"content":[{"type":"resource_link","uri":"file:///a"},{"type":"text","text":"` + text + `"}]}`
	want := `"result":{"resultType":"complete","content":[{"type":"resource_link","uri":"` +
		mcp.ResourceURI("a", "file:///a") + `"},{"type":"text","text":"` + text + `"}]}}`
	for _, tt := range []struct {
		name   string
		answer script
		want   string // with ID for the id of the request; "" for an incomplete response
	}{
		{"the id comes first", func(w http.ResponseWriter, a *incoming) {
			a.write(w, 200, `{"jsonrpc":"2.0","id":`+a.id()+`,"result":`+result+`}`)
		}, `{"jsonrpc":"2.0","id":ID,` + want},
		{"the id comes last", func(w http.ResponseWriter, a *incoming) {
			a.write(w, 200, `{"result":{"text":"`+text+`"},"id":`+a.id()+`,"jsonrpc":"2.0"}`)
		}, `{"result":{"resultType":"complete","text":"` + text + `"},"id":ID,"jsonrpc":"2.0"}`},
		{"an event", func(w http.ResponseWriter, a *incoming) { a.finish(w, result) }, `{"jsonrpc":"2.0","id":ID,` + want},
		{"the result is empty", func(w http.ResponseWriter, a *incoming) {
			a.write(w, 200, `{"jsonrpc":"2.0","id":`+a.id()+`,"result":{ },"x":"`+text+`"}`)
		}, `{"jsonrpc":"2.0","id":ID,"result":{"resultType":"complete" },"x":"` + text + `"}`},
		{"the result has a resultType", func(w http.ResponseWriter, a *incoming) {
			a.write(w, 200, `{"jsonrpc":"2.0","id":`+a.id()+`,"result":{"resultType":"complete","text":"`+text+`"}}`)
		}, `{"jsonrpc":"2.0","id":ID,"result":{"resultType":"complete","text":"` + text + `"}}`},
		{"status 404 with the id of the request", func(w http.ResponseWriter, a *incoming) {
			a.write(w, 404, `{"jsonrpc":"2.0","id":`+a.id()+`,"error":{"code":-5,"message":"`+text+`"}}`)
		}, `{"jsonrpc":"2.0","id":ID,"error":{"code":-5,"message":"` + text + `"}}`},
		{"an error", func(w http.ResponseWriter, a *incoming) {
			a.write(w, 200, `{"jsonrpc":"2.0","id":`+a.id()+`,"error":{"code":-5,"message":"`+text+`"}}`)
		}, `{"jsonrpc":"2.0","id":ID,"error":{"code":-5,"message":"` + text + `"}}`},
		{"an aborted body", func(w http.ResponseWriter, a *incoming) {
			a.write(w, 200, `{"jsonrpc":"2.0","id":`+a.id()+`,"result":{"text":"`+text)
		}, ""},
		{"an aborted connection", func(w http.ResponseWriter, a *incoming) {
			a.write(w, 200, `{"jsonrpc":"2.0","id":`+a.id()+`,"result":{"text":"`+text)
			panic(http.ErrAbortHandler)
		}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := legacyPeer("a").handle("tools/call", tt.answer)
			u := newGateway(t, nil, p, legacyPeer("b")).modern(t)
			s := u.post(u.request(`"mine"`, "tools/call", `{"name":"a::x"}`))
			if n := p.count("tools/call"); n != 1 {
				t.Errorf("called %d times", n)
			}
			switch want := strings.Replace(tt.want, "ID", `"mine"`, 1); {
			case want == "" && s.broken == nil:
				t.Errorf("the response is complete: %.100s", s.body)
			case want != "" && (s.answer != want || s.broken != nil):
				t.Errorf("got %d bytes, %v: %.200s … %.100s", len(s.answer), s.broken, s.answer,
					s.answer[max(len(s.answer)-100, 0):])
			}
		})
	}
}

// The client gets the start of a large response before the server has sent all of it. Disconnecting
// then cancels the call.
func TestLargeResponsesOfHeldCallsAreStreamed(t *testing.T) {
	ended := make(chan struct{})
	p := legacyPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
		defer close(ended)
		a.write(w, 200, `{"jsonrpc":"2.0","id":`+a.id()+`,"result":{"text":"`+strings.Repeat("x", 2*streamable.MaxHeld))
		_ = http.NewResponseController(w).Flush()
		<-a.Context().Done()
	})
	u := newGateway(t, nil, p).modern(t)
	ctx, hangUp := context.WithCancel(t.Context())
	response, err := u.do(ctx, http.MethodPost, u.request("1", "tools/call", `{"name":"a::x"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if n, err := io.ReadFull(response.Body, make([]byte, streamable.MaxHeld)); err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	hangUp()
	<-ended
	p.waitFor(t, "notifications/cancelled", 1)
}

// A server request during a large response is refused at once, so that the server does not wait for
// a client that reads slowly.
func TestServerRequestsDuringALargeResponse(t *testing.T) {
	p := legacyPeer("a")
	say := p.keepStreams()
	refused := make(chan struct{})
	p.handle("tools/call", func(w http.ResponseWriter, a *incoming) {
		a.write(w, 200, `{"jsonrpc":"2.0","id":`+a.id()+`,"result":{"text":"`+strings.Repeat("x", 2*streamable.MaxHeld))
		_ = http.NewResponseController(w).Flush()
		select {
		case <-refused:
		case <-a.Context().Done():
		}
		_, _ = io.WriteString(w, `"}}`)
	})
	u := newGateway(t, nil, p).modern(t)
	response, err := u.do(t.Context(), http.MethodPost, u.request("1", "tools/call", `{"name":"a::x"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if _, err := io.ReadFull(response.Body, make([]byte, streamable.MaxHeld)); err != nil {
		t.Fatal(err)
	}
	say(`{"jsonrpc":"2.0","id":77,"method":"elicitation/create","params":{}}`)
	if answer := p.waitFor(t, "", 1); !answer.message.Has(jsonrpc.Error) || answer.id() != "77" {
		t.Errorf("the server got the response %s", answer.message.Raw)
	}
	close(refused)
	if rest, err := io.ReadAll(response.Body); err != nil || !strings.HasSuffix(string(rest), `x"}}`) {
		t.Errorf("the response ends with %q, %v", rest[max(len(rest)-20, 0):], err)
	}
}

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
		await.Until(t, "no pending server request", func() bool { return !c.hasServerRequest() && c.calls.any() == nil })
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

// A held call that waits for its client takes no messages. The stream of the session must not wait
// for it.
func TestStreamOfASessionWithAWaitingCall(t *testing.T) {
	p := legacyPeer("a").hasTools("x").handle("tools/call", askingTool(1))
	p.sessions = true
	say := p.keepStreams()
	g := newGateway(t, nil, p)
	u := g.modern(t)
	u.ask("tools/list", "{}")
	listening := u.open(http.MethodPost, u.request(`"listen"`, mcp.MethodListen,
		`{"notifications":{"toolsListChanged":true}}`))
	stream := p.waitFor(t, "GET", 1)
	in, key := readInput(t, u.call("a::x"))
	pong := p.expect(stream.session, "77")
	say(`{"jsonrpc":"2.0","id":76,"method":"elicitation/create","params":{"message":"?","requestedSchema":{}}}`)
	say(`{"jsonrpc":"2.0","id":77,"method":"ping"}`)
	<-pong
	listening.cancel()
	g.parked.drain() // as on exit
	u.retry("a::x", in, key, `{"action":"accept"}`)
}

// While a call is in progress, another one finds that the server has lost the session, and opens a
// side stream for the next session. The earlier side stream ends, too.
func TestSideStreamOfALostSession(t *testing.T) {
	p := legacyPeer("a").hasTools("slow", "fast")
	p.sessions = true
	p.keepStreams()
	release := make(chan struct{})
	p.handle("tools/call", func(w http.ResponseWriter, a *incoming) {
		if p.count("tools/call") == 1 {
			<-release
		}
		a.reply(w, `{"content":[]}`)
	})
	g := newGateway(t, nil, p)
	u := g.modern(t)
	slow := u.start(http.MethodPost, u.request(u.nextID(), "tools/call", `{"name":"a::slow","arguments":{}}`))
	p.waitFor(t, "tools/call", 1)
	first := p.waitFor(t, "GET", 1)
	p.forget()
	if s := u.call("a::fast"); s.code() != 0 {
		t.Fatalf("got %s", s.body)
	}
	if second := p.waitFor(t, "GET", 2); first.session == second.session {
		t.Fatal("the session was not lost")
	}
	close(release)
	slow.nextOf("")
	ending := func() (all int) {
		g.sideStreams.mu.Lock()
		defer g.sideStreams.mu.Unlock()
		for s := range g.sideStreams.open {
			if s.idle.Stop() {
				s.idle.Reset(sideStreamTime)
				all++
			}
		}
		return all
	}
	await.Until(t, "timers of both side streams", func() bool { return ending() == 2 })
}

// A response writer can fail before the context calls its functions.
func TestLargeResponseOfAHeldCallToAClientThatLeaves(t *testing.T) {
	ctx := canceledContext{context.Background()}
	out := streamable.NewWriter(failingWriter{http.Header{}}, http.Header{})
	c := legacyRelay{&call{ctx: ctx, aggregateRequest: &aggregateRequest{Request: new(inbound.Request), out: out}}}
	from, to := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		piece := []byte(`{"jsonrpc":"2.0","id":1,"result":{"a":"`)
		for _, err := to.Write(piece); err == nil; _, err = to.Write(piece) {
			piece = bytes.Repeat([]byte("x"), 32<<10)
		}
	}()
	if c.streamLarge(&largeResponse{heldReader: from, id: []byte("1")}) {
		t.Error("the response is reported as complete")
	}
	<-done
}

// A canceledContext has an error, but has not called the functions of AfterFunc yet.
type canceledContext struct{ context.Context }

func (canceledContext) Err() error { return context.Canceled }

// A failingWriter is a connection that the client has closed.
type failingWriter struct{ header http.Header }

func (w failingWriter) Header() http.Header     { return w.header }
func (failingWriter) WriteHeader(int)           {}
func (failingWriter) Write([]byte) (int, error) { return 0, net.ErrClosed }
