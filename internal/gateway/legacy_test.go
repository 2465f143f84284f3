package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// inputs is a result that asks for input.
type inputs struct {
	ResultType    string
	InputRequests map[string]struct {
		Method string
		Params json.RawMessage
	}
	RequestState string
}

// wanted reads a result that asks for one input.
func wanted(t testing.TB, s said) (result inputs, key string) {
	t.Helper()
	if json.Unmarshal(s.Result, &result) != nil || result.ResultType != "input_required" || len(result.InputRequests) != 1 || result.RequestState == "" {
		t.Fatalf("got %d %s", s.status, s.body)
	}
	for key = range result.InputRequests {
	}
	return result, key
}

// retry makes a call again with an answer.
func (u *user) retry(name string, in inputs, key, response string) said {
	u.t.Helper()
	return u.ask("tools/call", u.again(name, in, key, response))
}

func (u *user) again(name string, in inputs, key, response string) string {
	return fmt.Sprintf(`{"name":%q,"inputResponses":{%q:%s},"requestState":%q}`, name, key, response, in.RequestState)
}

// asking is a tool that asks some questions, one after the other.
func asking(questions int) script {
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
	p := legacyPeer("a").does("tools/call", asking(3))
	g := newGateway(t, nil, p)
	u := g.modern(t)
	s := u.call("a::x")
	id := "1"
	var all []string
	for i := range 3 {
		in, key := wanted(t, s)
		if q := in.InputRequests[key]; q.Method != "elicitation/create" || string(q.Params) != fmt.Sprintf(`{"message":"%d","n":12345678901234567890}`, i) {
			t.Errorf("got %s", s.Result)
		}
		if !strings.Contains(s.answer, `"id":`+id+`,`) {
			t.Errorf("got %s, want id %s", s.answer, id)
		}
		s = u.retry("a::x", in, key, fmt.Sprintf(`{"action":"accept","content":{"i":%d,"n":12345678901234567890}}`, i))
		id = fmt.Sprint(u.last.Load())
		all = append(all, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{"action":"accept","content":{"i":%d,"n":12345678901234567890}}}`, i, i))
		// A call that has been taken up cannot be taken up again.
		if again := u.retry("a::x", in, key, `{}`); again.code() != jsonrpc.CodeInvalidParams {
			t.Errorf("got %s", again.body)
		}
	}
	var result struct{ ResultType string }
	if _ = json.Unmarshal(s.Result, &result); result.ResultType != "complete" || !strings.Contains(string(s.Result), `"answers":[`+strings.Join(all, ",")+`]`) {
		t.Errorf("got %s", s.body)
	}
	if n := p.count("tools/call"); n != 1 {
		t.Errorf("called %d times", n)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.held) != 0 {
		t.Errorf("%d calls are held", len(g.held))
	}
}

func TestHeldCallsOfOtherMethods(t *testing.T) {
	p := legacyPeer("a").does("prompts/get", asking(1)).does("resources/read", asking(1))
	u := newGateway(t, nil, p).modern(t)
	for method, named := range map[string]string{"prompts/get": `"name":"a::p"`, "resources/read": `"uri":"` + mcp.ResourceURI("a", "x://a") + `"`} {
		in, key := wanted(t, u.ask(method, `{`+named+`}`))
		s := u.ask(method, fmt.Sprintf(`{%s,"inputResponses":{%q:{}},"requestState":%q}`, named, key, in.RequestState))
		if !strings.Contains(string(s.Result), `"answers"`) || !strings.Contains(string(s.Result), `"resultType":"complete"`) {
			t.Errorf("%s: got %s", method, s.body)
		}
	}
}

// Several questions at the same time are asked one after the other.
func TestHeldCallsWithSeveralQuestionsAtOnce(t *testing.T) {
	p := legacyPeer("a").does("tools/call", func(w http.ResponseWriter, a *incoming) {
		one, two := a.at.expect(a.session, "1"), a.at.expect(a.session, "2")
		a.send(w, `{"jsonrpc":"2.0","id":1,"method":"roots/list"}`)
		a.send(w, `{"jsonrpc":"2.0","id":2,"method":"sampling/createMessage","params":{}}`)
		a.finish(w, `{"one":`+<-one+`,"two":`+<-two+`}`)
	})
	u := newGateway(t, nil, p).modern(t)
	s := u.call("a::x")
	for _, method := range []string{"roots/list", "sampling/createMessage"} {
		in, key := wanted(t, s)
		if in.InputRequests[key].Method != method {
			t.Errorf("got %s", s.body)
		}
		s = u.retry("a::x", in, key, `{"of":"`+method+`"}`)
	}
	if !strings.Contains(s.answer, `"one":{"jsonrpc":"2.0","id":1,"result":{"of":"roots/list"}},"two":{"jsonrpc":"2.0","id":2,"result":{"of":"sampling/createMessage"}}`) {
		t.Errorf("got %s", s.body)
	}
}

func TestHeldCallsWithoutAnAnswer(t *testing.T) {
	p := legacyPeer("a").does("tools/call", asking(1))
	u := newGateway(t, nil, p).modern(t)
	in, _ := wanted(t, u.call("a::x"))
	s := u.ask("tools/call", fmt.Sprintf(`{"name":"a::x","requestState":%q}`, in.RequestState))
	if !strings.Contains(s.answer, `"answers":[{"jsonrpc":"2.0"`) || !strings.Contains(s.answer, `"error"`) {
		t.Errorf("the server was not told: %s", s.body)
	}
}

// What comes in between reaches the client in the response to the request that waits.
func TestHeldCallsThatReport(t *testing.T) {
	p := legacyPeer("a").does("tools/call", func(w http.ResponseWriter, a *incoming) {
		a.send(w, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":`+string(a.message.Literal(jsonrpc.ProgressToken))+`,"progress":1}}`)
		a.send(w, `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"d"}}`)
		a.ask(w, "1", "elicitation/create", `{}`)
		a.send(w, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":`+string(a.message.Literal(jsonrpc.ProgressToken))+`,"progress":2}}`)
		a.finish(w, `{"done":true}`)
	})
	u := newGateway(t, nil, p).modern(t)
	call := func(more, params string) said {
		return u.post(`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"a::x","_meta":` + string(u.meta(more)) + params + `}}`)
	}
	s := call(`,"progressToken":"t"`, "")
	if len(s.events) != 2 || s.events[0].method() != "notifications/progress" {
		t.Fatalf("without a level nothing is logged: got %s", s.body)
	}
	in, key := wanted(t, s)
	s = call(`,"progressToken":"t"`, fmt.Sprintf(`,"inputResponses":{%q:{}},"requestState":%q`, key, in.RequestState))
	if len(s.events) != 2 || !strings.Contains(s.events[0].data, `"progress":2`) || !strings.Contains(s.answer, `"done":true`) {
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

// Only the client that was asked can answer, at the server that asks.
func TestHeldCallsOfOthers(t *testing.T) {
	p, q := legacyPeer("a").does("tools/call", asking(1)), legacyPeer("b").does("tools/call", asking(1))
	g := newGateway(t, nil, p, q)
	u := g.modern(t)
	in, key := wanted(t, u.call("a::x"))
	others := map[string]func(*user){
		"of another identity":            func(o *user) { o.identity = "bob" },
		"with other credentials":         func(o *user) { o.header = http.Header{"Authorization": {"Bearer other"}} },
		"with another cookie":            func(o *user) { o.header = http.Header{"Cookie": {"a=b"}} },
		"of another name":                func(o *user) { o.info = `{"name":"other","version":"1"}` },
		"that can be asked other things": func(o *user) { o.can = `{"elicitation":{}}` },
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
		"made up": "abc", "empty": "", "cut": in.RequestState[:20], "sealed for another purpose": g.sealer.Seal("session", []byte("x")), "of nothing": g.sealer.Seal("call", []byte("x")),
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

func TestQuestionsThatAModernClientCannotBeAsked(t *testing.T) {
	p := legacyPeer("a").does("tools/call", func(w http.ResponseWriter, a *incoming) {
		one := a.ask(w, "1", "sampling/createMessage", `{}`)
		two := a.ask(w, "2", "vendor/ask", `{}`)
		a.finish(w, `{"one":`+one+`,"two":`+two+`}`)
	})
	u := newGateway(t, nil, p).modern(t)
	u.can = `{"elicitation":{}}`
	if s := u.call("a::x"); strings.Count(s.answer, `"code":-32601`) != 2 || !strings.Contains(s.answer, `"resultType":"complete"`) {
		t.Errorf("got %s", s.body)
	}
}

// A client that hangs up has canceled its call, also one that it had made again. The
// server is told, with the id that it knows.
func TestHangingUpCancelsAHeldCall(t *testing.T) {
	for _, rounds := range []int{0, 1, 2} {
		t.Run(fmt.Sprint("after ", rounds, " questions"), func(t *testing.T) {
			ended := make(chan struct{})
			p := legacyPeer("a").does("tools/call", func(w http.ResponseWriter, a *incoming) {
				defer close(ended)
				for i := range rounds {
					a.ask(w, fmt.Sprint("10", i), "elicitation/create", `{}`)
				}
				<-a.Context().Done()
			})
			u := newGateway(t, nil, p).modern(t)
			params := `{"name":"a::x"}`
			for range rounds {
				in, key := wanted(t, u.ask("tools/call", params))
				params = u.again("a::x", in, key, `{}`)
			}
			call := u.start(http.MethodPost, u.request(u.nextID(), "tools/call", params))
			p.await(t, "tools/call", 1)
			if rounds > 0 {
				p.await(t, "", rounds) // its answers have come
			}
			call.hangUp()
			<-ended
			canceled := p.await(t, "notifications/cancelled", 1)
			if got, want := string(canceled.message.Literal(jsonrpc.RequestID)), p.heard("tools/call")[0].id(); got != want {
				t.Errorf("%s was canceled, the call is %s", got, want)
			}
		})
	}
}

// In time that is not real: who does not answer in ten minutes has lost the call.
func TestHeldCallsExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan struct{})
		p := legacyPeer("a").does("tools/call", func(w http.ResponseWriter, a *incoming) {
			defer close(ended)
			asking(1)(w, a)
		})
		g := newMemory(t, nil, p)
		defer g.close()
		u := g.modern(t)
		in, key := wanted(t, u.call("a::x"))
		time.Sleep(streamable.QuestionTime - time.Second)
		select {
		case <-ended:
			t.Fatal("it has ended too early")
		default:
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		select {
		case <-ended:
		default:
			t.Fatal("it goes on")
		}
		if s := u.retry("a::x", in, key, `{}`); s.code() != jsonrpc.CodeInvalidParams {
			t.Errorf("got %s", s.body)
		}
		if n := p.count("notifications/cancelled"); n != 1 {
			t.Errorf("the server was told %d times", n)
		}
	})
}

// A server that gives up while its client thinks is no hang.
func TestHeldCallsWhoseServerEnds(t *testing.T) {
	for name, end := range map[string]script{
		"it answers":    func(w http.ResponseWriter, a *incoming) { a.finish(w, `{"anyway":true}`) },
		"it ends":       func(http.ResponseWriter, *incoming) {},
		"it breaks off": func(http.ResponseWriter, *incoming) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			p := legacyPeer("a").does("tools/call", func(w http.ResponseWriter, a *incoming) {
				a.send(w, `{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{}}`)
				end(w, a)
			})
			u := newGateway(t, nil, p).modern(t)
			in, key := wanted(t, u.call("a::x"))
			s := u.retry("a::x", in, key, `{}`)
			if anyway := strings.Contains(s.answer, "anyway"); anyway != (name == "it answers") || !anyway && s.code() == 0 {
				t.Errorf("got %s", s.body)
			}
		})
	}
}

// No more than 1,000 calls are held, and of one client no more than 32, whatever it says of
// itself. The server of another one is told.
func TestTooManyHeldCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := legacyPeer("a").does("tools/call", asking(1))
		g := newMemory(t, nil, p)
		defer g.close()
		refused := func(u *user) {
			t.Helper()
			if s := u.call("a::x"); !strings.Contains(s.answer, `"answers":[{"jsonrpc":"2.0"`) || !strings.Contains(s.answer, "too many") {
				t.Errorf("got %s", s.body)
			}
		}
		var u *user
		for i := range maxHeldCalls {
			if i%maxHeldOfOne == 0 {
				if u != nil {
					refused(u)
					u.info = `{"name":"another","version":"1"}`
					refused(u)
				}
				u = g.modern(t)
				u.identity = fmt.Sprint(i)
			}
			wanted(t, u.call("a::x"))
		}
		refused(u)
		refused(g.modern(t))
		time.Sleep(streamable.QuestionTime + time.Minute)
		wanted(t, u.call("a::x"))
	})
}

// A call that goes on leaves room for others.
func TestHeldCallsOneAfterTheOther(t *testing.T) {
	p := legacyPeer("a").does("tools/call", asking(1))
	u := newGateway(t, nil, p).modern(t)
	for range 2 * maxHeldOfOne {
		in, key := wanted(t, u.call("a::x"))
		if s := u.retry("a::x", in, key, "{}"); !strings.Contains(s.answer, `"answers"`) {
			t.Fatalf("got %s", s.body)
		}
	}
}

// What is held ends with us, also if it comes to be held only then.
func TestDestructEndsHeldCalls(t *testing.T) {
	t.Run("calls that wait for their client", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var ended sync.WaitGroup
			p := legacyPeer("a").does("tools/call", func(w http.ResponseWriter, a *incoming) {
				defer ended.Done()
				asking(1)(w, a)
			})
			g := newMemory(t, nil, p)
			defer g.close()
			const calls = 20
			u := g.modern(t)
			ended.Add(calls)
			for range calls {
				wanted(t, u.call("a::x"))
			}
			began := time.Now()
			g.close()
			ended.Wait()
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	})
	t.Run("a call whose server asks only then", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			closing := make(chan struct{})
			p := legacyPeer("a").does("tools/call", func(w http.ResponseWriter, a *incoming) {
				<-closing
				time.Sleep(time.Second)
				asking(1)(w, a)
			})
			g := newMemory(t, nil, p)
			u := g.modern(t)
			call := u.start(http.MethodPost, u.request("1", "tools/call", `{"name":"a::x"}`))
			p.await(t, "tools/call", 1)
			began := time.Now()
			close(closing)
			g.close()
			if took := time.Since(began); took > time.Minute {
				t.Errorf("it took %v", took)
			}
			call.hangUp()
		})
	})
}

// An answer that is too large to be held reaches the client as it comes, and is the
// same as if it had been held.
func TestHeldCallsWithLargeAnswers(t *testing.T) {
	text := strings.Repeat("x", 2*streamable.MaxHeld)
	result := `{"content":[{"type":"resource_link","uri":"file:///a"},{"type":"text","text":"` + text + `"}]}`
	want := `"result":{"resultType":"complete","content":[{"type":"resource_link","uri":"` +
		mcp.ResourceURI("a", "file:///a") + `"},{"type":"text","text":"` + text + `"}]}}`
	for _, tt := range []struct {
		name   string
		answer script
		want   string // with the id of the request in the place of ID; none if it breaks off
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
		{"the result says its type", func(w http.ResponseWriter, a *incoming) {
			a.write(w, 200, `{"jsonrpc":"2.0","id":`+a.id()+`,"result":{"resultType":"complete","text":"`+text+`"}}`)
		}, `{"jsonrpc":"2.0","id":ID,"result":{"resultType":"complete","text":"` + text + `"}}`},
		{"a status that says the session is not known, by who knows the request", func(w http.ResponseWriter, a *incoming) {
			a.write(w, 404, `{"jsonrpc":"2.0","id":`+a.id()+`,"error":{"code":-5,"message":"`+text+`"}}`)
		}, `{"jsonrpc":"2.0","id":ID,"error":{"code":-5,"message":"` + text + `"}}`},
		{"an error", func(w http.ResponseWriter, a *incoming) {
			a.write(w, 200, `{"jsonrpc":"2.0","id":`+a.id()+`,"error":{"code":-5,"message":"`+text+`"}}`)
		}, `{"jsonrpc":"2.0","id":ID,"error":{"code":-5,"message":"` + text + `"}}`},
		{"it breaks off", func(w http.ResponseWriter, a *incoming) {
			a.write(w, 200, `{"jsonrpc":"2.0","id":`+a.id()+`,"result":{"text":"`+text)
		}, ""},
		{"the connection breaks off", func(w http.ResponseWriter, a *incoming) {
			a.write(w, 200, `{"jsonrpc":"2.0","id":`+a.id()+`,"result":{"text":"`+text)
			panic(http.ErrAbortHandler)
		}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := legacyPeer("a").does("tools/call", tt.answer)
			u := newGateway(t, nil, p, legacyPeer("b")).modern(t)
			s := u.post(u.request(`"mine"`, "tools/call", `{"name":"a::x"}`))
			if n := p.count("tools/call"); n != 1 {
				t.Errorf("it was called %d times", n)
			}
			switch want := strings.Replace(tt.want, "ID", `"mine"`, 1); {
			case want == "" && s.broken == nil:
				t.Errorf("it does not break off: %.100s", s.body)
			case want != "" && (s.answer != want || s.broken != nil):
				t.Errorf("got %d bytes, %v: %.200s … %.100s", len(s.answer), s.broken, s.answer, s.answer[max(len(s.answer)-100, 0):])
			}
		})
	}
}

// Of an answer that is too large to be held the client has something before the
// server has said all of it, and who hangs up then cancels the call.
func TestLargeAnswersOfHeldCallsComeAtOnce(t *testing.T) {
	ended := make(chan struct{})
	p := legacyPeer("a").does("tools/call", func(w http.ResponseWriter, a *incoming) {
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
	p.await(t, "notifications/cancelled", 1)
}

// A server that asks while its large answer is on the way is told that nobody can be
// asked any more: it does not have to wait for a client that reads slowly.
func TestQuestionsDuringALargeAnswer(t *testing.T) {
	p := legacyPeer("a")
	say := p.listens()
	refused := make(chan struct{})
	p.does("tools/call", func(w http.ResponseWriter, a *incoming) {
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
	if answer := p.await(t, "", 1); !answer.message.Has(jsonrpc.Error) || answer.id() != "77" {
		t.Errorf("the server was answered %s", answer.message.Raw)
	}
	close(refused)
	if rest, err := io.ReadAll(response.Body); err != nil || !strings.HasSuffix(string(rest), `x"}}`) {
		t.Errorf("the answer ends with %q, %v", rest[max(len(rest)-20, 0):], err)
	}
}
