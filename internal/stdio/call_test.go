package stdio

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

// literals are ids and tokens that responses must return unchanged, byte for byte (A28, G4).
var literals = []string{
	`1`, `"1"`, `0`, `-7`, `12345678901234567890`, `9007199254740993`, `1.5`, `1.0`, `1e2`,
	`""`, `"listen:0"`, `"a\u0062\n\"\\ é\ud83d\ude00"`, `null`,
}

func TestIdsAreReturnedUnchanged(t *testing.T) {
	for _, flags := range []string{"", "--result-first"} {
		p := newPool(t, flags)
		sessions := []*client{p.client(), p.client().initialize(`{}`)}
		for _, id := range literals {
			for _, c := range sessions {
				secret := `{"secret":"` + strconv.Itoa(len(id)) + `"}`
				answer := c.post(toolCall(id, "echo", secret)).whole()
				want := fmt.Sprintf(
					`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":%s}]}}`,
					id,
					quote(`{"name":"echo","arguments":`+secret+`}`),
				)
				if flags != "" {
					want = fmt.Sprintf(
						`{"result":{"content":[{"type":"text","text":%s}]},"jsonrpc":"2.0","id":%s}`,
						quote(`{"name":"echo","arguments":`+secret+`}`),
						id,
					)
				}
				equal(t, "answer to "+id, answer, want)
				failure := c.post(request(id, "no/such", `{}`)).whole()
				equal(
					t,
					"error to "+id,
					failure,
					`{"jsonrpc":"2.0","id":`+id+
						`,"error":{"code":-32601,"message":"method not found: no/such"}}`,
				)
			}
		}
	}
}

func TestProgressTokensAreReturnedUnchanged(t *testing.T) {
	p := newPool(t, "")
	for _, token := range literals {
		r := p.client().
			post(request(`5`, "tools/call",
				`{"name":"progress","arguments":{"steps":3},"_meta":{"progressToken":`+token+`,"x":1.0}}`))
		equal(t, "type", r.Header.Get("Content-Type"), "text/event-stream")
		equal(t, "buffering", r.Header.Get("X-Accel-Buffering"), "no")
		for i := range 3 {
			equal(
				t,
				"progress",
				r.next(),
				fmt.Sprintf(
					`{"jsonrpc":"2.0","method":"notifications/progress",`+
						`"params":{"progressToken":%s,"progress":%d,"total":3}}`,
					token,
					i+1,
				),
			)
		}
		equal(t, "answer", r.next(), `{"jsonrpc":"2.0","id":5,"result":{"content":[{"type":"text","text":"done"}]}}`)
		equal(t, "end", r.next(), "")
	}
	equal(t, "dropped", p.dropped, 0)
}

func TestRequestsAreForwardedUnchanged(t *testing.T) {
	const params = `{"name":"echo", "arguments":{"n":12345678901234567890,"f":1.0,"s":"<é\u00e9\/>"},"_meta":{"x":1e2}}`
	tests := []struct{ name, body, want string }{
		{"params are unchanged", request(`1`, "tools/call", params), params},
		{"members in any order", `{"params":` + params + `,"x":1,"method":"tools/call","id":1,"jsonrpc":"2.0"}`, params},
		{"keys with escapes", `{"jsonrpc":"2.0","\u0069d":1,"method":"tools\/call","params":` + params + `}`, params},
		{
			"line breaks between tokens, which become spaces",
			"{\r\n \"jsonrpc\": \"2.0\",\n \"id\": 1,\n \"method\": \"tools/call\",\n \"params\": {\"name\":\n\"echo\"}\n}\n",
			`{"name": "echo"}`,
		},
	}
	for _, framing := range []Framing{Newline, ContentLength} {
		p := newPool(t, "", func(c *Config) { c.Framing = framing })
		for _, tt := range tests {
			t.Run(string(framing)+": "+tt.name, func(t *testing.T) {
				equal(t, "echo", p.client().post(tt.body).text(), tt.want)
			})
		}
	}
}

// A puppet writes unusual and invalid responses.
func TestResponsesOfAServer(t *testing.T) {
	p := newPuppets(t)
	deep := strings.Repeat("[", 2000) + strings.Repeat("]", 2000)
	invalid := func(message string) string {
		return `{"jsonrpc":"2.0","error":{"code":-32003,"message":"` + message +
			`","data":{"code":"invalid_response","server_name":"alpha"}},"id":"q"}`
	}
	notAnswer := invalid("the MCP server's answer is not a JSON-RPC response")
	tests := []struct{ name, raw, want string }{
		{"the id may be last", `{"result":{},"id":$ID}` + "\n", `{"result":{},"id":"q"}`},
		{"unknown members pass", `{"id":$ID,"x":[1.0],"result":null}` + "\n", `{"id":"q","x":[1.0],"result":null}`},
		{"an id may have a point", `{"id":$ID.0,"result":1}` + "\n", `{"id":"q","result":1}`},
		{"an id may be a string", `{"id":"$ID","result":1}` + "\n", `{"id":"q","result":1}`},
		{"an error may be null", `{"id":$ID,"error":null,"result":{}}` + "\n", `{"id":"q","error":null,"result":{}}`},
		{"without result and error it is not a response", `{"jsonrpc":"2.0","id":$ID}` + "\n", notAnswer},
		{"with repeated members it is not a response", `{"id":$ID,"result":1,"result":2}` + "\n", notAnswer},
		{"nested too deeply it is not a response", `{"id":$ID,"result":` + deep + `}` + "\n", notAnswer},
		{"a truncated object is not a response", `{"id":$ID,"result":{"x":` + "\n", notAnswer},
		{
			"noise and blank lines are skipped",
			"hello\n\n{oops\n[]\n\"x\"\n" + `{"id":$ID,"result":1}` + "\n",
			`{"id":"q","result":1}`,
		},
		{
			"responses to unknown requests are skipped",
			`{"id":999999,"result":0}` + "\n" + `{"id":"1","result":0}` + "\n" +
				`{"id":null,"result":0}` + "\n" + `{"id":-1,"result":0}` + "\n" + `{"result":0}` + "\n" + `{"id":$ID,"result":1}` +
				"\n",
			`{"id":"q","result":1}`,
		},
		{
			"the second response is dropped",
			`{"id":$ID,"result":1}` + "\n" + `{"id":$ID,"result":2}` + "\n",
			`{"id":"q","result":1}`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			equal(t, "answer", p.client().post(say(`"q"`, tt.raw)).whole(), tt.want)
		})
	}
	t.Run("bytes that are not UTF-8 are forwarded with the right length", func(t *testing.T) {
		// encoding/json replaces such bytes, so a shell writes them.
		script := `read -r l; printf 'Content-Length: 84\r\n\r\n%s' '{"jsonrpc":"2.0","id":1,` +
			`"result":{"protocolVersion":"2025-11-25","capabilities":{}}}'; read -r l; ` +
			`read -r l; printf 'Content-Length: 24\r\n\r\n{"id":2,"result":"\377\376\377\376"}'; ` +
			`read -r l; printf '{"id":3,"result":"\377"}\n'; cat`
		p := newPoolOf(t, []string{"sh", "-c", script})
		equal(t, "first", p.client().post(request(`"q"`, "x", `{}`)).whole(), `{"id":"q","result":"`+"\xff\xfe\xff\xfe"+`"}`)
		equal(t, "second", p.client().post(request(`"q"`, "x", `{}`)).whole(), `{"id":"q","result":"`+"\xff"+`"}`)
	})
	p.client().post(say(`1`, `{"id":$ID,"result":1}`+"\n")).whole()
	p.mu.Lock()
	defer p.mu.Unlock()
	equal(t, "dropped", p.dropped, 6)
	equal(t, "noise", p.noise, 7) // four lines of text and three invalid responses
}

func TestLateAndWrongResponsesAreDroppedAndCounted(t *testing.T) { // A38
	p := newPool(t, "")
	equal(t, "response", p.client().call("late", `{"ms":1}`), "in time")
	p.until("the late response is counted", func() bool { return p.dropped == 1 })
	equal(t, "response after one with a wrong id", p.client().call("wrong-id", `{}`), "for you")
	equal(t, "dropped", p.dropped, 2)
}

// 2,000 clients use the same ids and tokens at the same time. No client receives a message of
// another (G22, A24, A29).
func TestEqualIdsOfManyClients(t *testing.T) {
	p := newPool(t, "")
	var clients sync.WaitGroup
	for n := range 2000 {
		clients.Go(func() {
			c := p.client()
			if n%2 == 0 {
				c.initialize(`{}`)
			}
			id := literals[n%4/2] // 1 and "1"
			secret := fmt.Sprintf(`{"name":"echo","arguments":{"secret":"%d"}}`, n)
			equal(t, "id and secret", c.post(request(id, "tools/call", secret)).whole(),
				fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":%s}]}}`, id, quote(secret)))

			// The number of progress notifications identifies the client.
			steps := n%5 + 1
			r := c.post(
				request(
					id,
					"tools/call",
					fmt.Sprintf(`{"name":"progress","arguments":{"steps":%d},`+
						`"_meta":{"progressToken":1}}`, steps),
				),
			)
			for i := range steps {
				equal(
					t,
					"progress",
					r.next(),
					fmt.Sprintf(
						`{"jsonrpc":"2.0","method":"notifications/progress",`+
							`"params":{"progressToken":1,"progress":%d,"total":%d}}`,
						i+1,
						steps,
					),
				)
			}
			equal(t, "answer", r.next(), `{"jsonrpc":"2.0","id":`+id+`,"result":{"content":[{"type":"text","text":"done"}]}}`)
			r.Body.Close()
		})
	}
	clients.Wait()
	equal(t, "dropped", p.dropped, 0)
	equal(t, "children", len(p.started), 1)
	equal(t, "initialized", len(p.received("initialize")), 1)
}

func TestEarlierMessagesMakeTheResponseAStream(t *testing.T) {
	p := newPool(t, "")
	c := p.client()
	r := c.post(toolCall(`1`, "emit", `{}`))
	equal(
		t,
		"log message",
		r.next(),
		`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info",`+
			`"data":"hello"}}`,
	)
	equal(t, "answer", r.next(), `{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"emitted"}]}}`)
	equal(t, "end", r.next(), "")

	r = c.post(toolCall(`1`, "echo", `{}`))
	equal(t, "status", r.StatusCode, http.StatusOK)
	equal(t, "type", r.Header.Get("Content-Type"), "application/json")
	equal(t, "length", r.Header.Get("Content-Length"), strconv.FormatInt(r.ContentLength, 10))
	r.Body.Close()
}

// While calls of two clients are open, a log message could belong to either client, so it is
// dropped.
func TestAmbiguousNotificationsAreDropped(t *testing.T) {
	p := newPool(t, "")
	waiting, leave := context.WithCancel(t.Context())
	left := make(chan struct{})
	c := p.client().initialize(`{}`)
	other := p.client().initialize(`{}`)
	stream := other.listen()
	defer stream.Body.Close()
	go func() {
		defer close(left)
		_, _ = other.with(waiting).do(http.MethodPost, toolCall(`1`, "hang", `{}`))
	}()
	p.inFlightIs(1)
	equal(
		t,
		"response without the log message",
		c.post(toolCall(`2`, "emit", `{}`)).whole(),
		`{"jsonrpc":"2.0","id":2,"result":{"content":[{"type":"text","text":"emitted"}]}}`,
	)
	equal(t, "dropped", p.dropped, 1)
	leave()
	<-left
}

// inFlightIs waits until the shared child has n open calls.
func (p *testPool) inFlightIs(n int) {
	p.t.Helper()
	p.eventually(fmt.Sprintf("%d calls are in flight", n), func() bool {
		s, err := p.sharedServer("alpha:1", nil, "")
		if err != nil {
			return false
		}
		c := s.current()
		if c == nil {
			return false
		}
		c.calls.mu.Lock()
		defer c.calls.mu.Unlock()
		return len(c.calls.waiting) == n
	})
}

func TestDisconnectCancelsTheCall(t *testing.T) { // G25
	check := func(t *testing.T, p *testPool) {
		t.Helper()
		p.client().call("echo", `{}`)
		cancelled := p.received("notifications/cancelled")
		equal(t, "cancellations", len(cancelled), 1)
		contains(t, "with the id that the child received", strings.Join(cancelled, ""), `"requestId":2`)
	}
	t.Run("before the first message", func(t *testing.T) {
		p := newPool(t, "")
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan error)
		go func() {
			_, err := p.client().with(ctx).do(http.MethodPost, toolCall(`"theirs"`, "hang", `{}`))
			left <- err
		}()
		p.eventually("the child receives the call", func() bool { return len(p.received("tools/call")) == 1 })
		leave()
		if err := <-left; err != context.Canceled {
			t.Errorf("got %v", err)
		}
		check(t, p)
		p.eventually("the child cancels the call", func() bool { return p.events("cancelled") == 1 })
	})
	t.Run("in the middle of the stream", func(t *testing.T) {
		p := newPool(t, "")
		r := p.client().initialize(`{"elicitation":{}}`).post(toolCall(`"theirs"`, "ask", `{"method":"elicitation/create"}`))
		contains(t, "server request", r.next(), `"elicitation/create"`)
		r.Body.Close()
		r.Body.Close() // harmless
		check(t, p)
	})
}

// A canceled call still waits in the queue. The cancellation must follow it: otherwise the child
// would run a call that has no client.
func TestACallThatIsCancelledBeforeItIsSent(t *testing.T) {
	s, c := newTestChild(t)
	c.input.messages, c.input.overflow = make(chan frame), make(chan frame, 1) // the queue is full
	waiting := &call{session: s}
	if failure := waiting.request.Read([]byte(toolCall(`"theirs"`, "hang", `{}`))); failure != nil {
		t.Fatal(failure)
	}
	begun := make(chan error, 1)
	go func() { begun <- c.sendCall(t.Context(), waiting) }()
	await.Until(t, "the call waits", c.calls.busy)
	c.cancel(waiting, "x")
	equal(t, "messages before the call", len(c.input.overflow), 0)
	contains(t, "first", (<-c.input.messages).text(), `"id":1,"method":"tools/call"`)
	if err := <-begun; err != nil {
		t.Error(err)
	}
	contains(t, "then", (<-c.input.overflow).text(), `"notifications/cancelled","params":{"requestId":1,"reason":"x"}`)
	if _, _, last := waiting.inbox.Take(); !last {
		t.Error("the call has no final response")
	}
}

func TestClientsCancelTheirOwnCallsOnly(t *testing.T) { // A28
	p := newPool(t, "")
	clients := []*client{p.client().initialize(`{}`), p.client().initialize(`{}`), p.client()}
	ctx, leave := context.WithCancel(t.Context())
	ends := make(chan int, 3)
	for i, c := range clients {
		go func() {
			res, err := c.with(ctx).do(http.MethodPost, toolCall(`7`, "hang", `{}`))
			if err == nil {
				equal(t, "status", res.StatusCode, http.StatusAccepted)
			}
			ends <- i
		}()
	}
	p.inFlightIs(3)
	for _, body := range []string{
		notification("notifications/cancelled", `{"requestId":"7"}`), // a different id
		notification("notifications/cancelled", `{"requestId":8}`),
		notification("notifications/cancelled", `{}`),
		notification("notifications/cancelled", `{"requestId":7}`),
	} {
		equal(t, "status", clients[1].post(body).StatusCode, http.StatusAccepted)
	}
	equal(t, "ended", <-ends, 1)
	equal(
		t,
		"without a session",
		clients[2].post(notification("notifications/cancelled", `{"requestId":7}`)).StatusCode,
		http.StatusAccepted,
	)
	equal(t, "echo", clients[0].call("echo", `{}`), `{"name":"echo","arguments":{}}`)
	equal(t, "cancellations", len(p.received("notifications/cancelled")), 1)
	p.inFlightIs(2)
	leave()
	<-ends
	<-ends
}

func TestClientNotifications(t *testing.T) { // A27, A28
	p := newPool(t, "")
	c := p.client().initialize(`{}`)
	for _, body := range []string{
		notification("notifications/initialized", `{}`),
		notification("notifications/roots/list_changed", `{}`),
		notification("notifications/foo", `{"x" : 1.0}`),
	} {
		r := c.post(body)
		equal(t, "status", r.StatusCode, http.StatusAccepted)
		equal(t, "body", r.whole(), "")
	}
	c.call("echo", `{}`)
	equal(t, "initialized", len(p.received("notifications/initialized")), 1)
	equal(t, "roots notifications to the shared child", len(p.received("notifications/roots/list_changed")), 0)
	equal(
		t,
		"unknown",
		strings.Join(p.received("notifications/foo"), ""),
		notification("notifications/foo",
			`{"x" : 1.0}`),
	)

	own := newPool(t, "", perSession)
	c = own.client().initialize(`{"roots":{}}`)
	c.post(notification("notifications/roots/list_changed", `{}`))
	c.call("echo", `{}`)
	equal(t, "roots notifications to its own child", len(own.received("notifications/roots/list_changed")), 1)

	idle := newPool(t, "")
	equal(t, "status", idle.client().post(notification("notifications/foo", `{}`)).StatusCode, http.StatusAccepted)
	equal(t, "started", idle.events("start"), 0)
}

func TestRequestsThatAreRefused(t *testing.T) {
	p := newPool(t, "", func(c *Config) { c.MaxMessage = 1000 })
	tests := []struct {
		name, method, body string
		headers            []string
		status             int
		want               string
	}{
		{"not JSON", "POST", `{"id":1`, nil, 400, `"code":-32700`},
		{"an empty body", "POST", ``, nil, 400, `"code":-32700`},
		{"not UTF-8", "POST", "{\"id\":1,\"method\":\"\xff\"}", nil, 400, `"code":-32700`},
		{"a batch", "POST", `[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, nil, 400, `"code":-32600`},
		{"repeated members", "POST", `{"id":1,"method":"ping","id":2}`, nil, 400, `"id":null`},
		{"an invalid id", "POST", `{"id":{},"method":"ping"}`, nil, 400, `"code":-32600`},
		{"too long", "POST", request(`1`, "ping", quote(strings.Repeat("x", 1000))), nil, 413, `"payload_too_large"`},
		{"a response to an unknown request", "POST", `{"jsonrpc":"2.0","id":1,"result":{}}`, nil, 400, `"id":1`},
		{"an unknown session", "POST", request(`5`, "ping", `{}`), []string{"Mcp-Session-Id", "x"}, 404, `"id":5`},
		{"a GET without a session", "GET", "", nil, 405, `"invalid_request"`},
		{"a GET of an unknown session", "GET", "", []string{"Mcp-Session-Id", "x"}, 404, `"unknown_session"`},
		{"a DELETE without a session", "DELETE", "", nil, 405, `"invalid_request"`},
		{"a DELETE of an unknown session", "DELETE", "", []string{"Mcp-Session-Id", "x"}, 404, `"unknown_session"`},
		{"a modern GET", "GET", "", []string{"MCP-Protocol-Version", "2026-07-28"}, 405, `"invalid_request"`},
		{"a modern DELETE", "DELETE", "", []string{"MCP-Protocol-Version", "2026-07-28"}, 405, `"invalid_request"`},
		{"another method", "PUT", "{}", nil, 405, `"invalid_request"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res, err := p.client().do(tt.method, tt.body, tt.headers...)
			if err != nil {
				t.Fatal(err)
			}
			r := newReply(t, res)
			equal(t, "status", r.StatusCode, tt.status)
			contains(t, "body", r.whole(), tt.want)
			equal(t, "Allow", res.Header.Get("Allow") != "", tt.status == 405)
		})
	}
	equal(t, "started", p.events("start"), 0)
	equal(t, "in flight", len(p.inFlight.byHost), 0)
}

func TestClientsThatDoNotAcceptStreams(t *testing.T) {
	p := newPool(t, "", perSession)
	c := p.client().initialize(`{"roots":{}}`)
	for tool, want := range map[string]string{"emit": "emitted", "ask-roots": `\"roots\":[]`} {
		r := c.post(toolCall(`1`, tool, `{}`), "Accept", "application/json")
		equal(t, tool, r.Header.Get("Content-Type"), "application/json")
		contains(t, tool, r.whole(), want)
	}
}

// Large messages of the gateway itself to a child neither use the slots of large calls nor block
// later messages.
func TestLargeMessagesOfTheGateway(t *testing.T) {
	p := newPuppets(t)
	c := p.client()
	id := `"` + strings.Repeat("x", 2*largeMessage) + `"`
	for range 3 * maxLarge {
		c.post(say(`1`, `{"jsonrpc":"2.0","id":`+id+`,"method":"ping"}`+"\n"+`{"id":$ID,"result":1}`+"\n")).whole()
		contains(t, "received", c.post(request(`2`, "heard", `{}`)).whole(), `xxx\",\"result\":{}`)
	}
}

// If more calls are abandoned than are remembered, a message of the child may belong to any of them.
func TestAbandonedCallsThatAreDropped(t *testing.T) {
	table := &callTable{waiting: map[uint64]*call{}}
	table.abandoned = abandonedCalls{table: table}
	victim, other := &session{id: "victim"}, &session{id: "other"}
	begin := func(s *session) *call {
		c := &call{session: s}
		_ = c.request.Read(jsonrpc.Request(1, "tools/call", nil))
		if err := table.register(c); err != nil {
			t.Fatal(err)
		}
		return c
	}
	table.abandon(begin(victim))
	begin(other)
	for range maxAbandonedCalls {
		table.abandon(begin(other))
	}
	table.noteRead()
	if found, ambiguous := table.infer(); found != nil || !ambiguous {
		t.Errorf("a message that may belong to the call of the victim goes to the session %s", found.session.id)
	}
}
