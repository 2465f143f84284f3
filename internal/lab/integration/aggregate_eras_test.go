package integration

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// eraServers are the servers of the gateway in order: children and HTTP servers of the legacy era,
// of the modern era, and of both.
var eraServers = []string{"old", "new", "both", "farold", "farnew", "farboth", "farsse"}

// isModern reports whether the gateway uses the modern era with a server: the server has no other,
// or both the server and the client support it.
func isModern(server string, modernClient bool) bool {
	return strings.HasSuffix(server, "new") || strings.HasSuffix(server, "both") && modernClient
}

// An eraGateway serves servers of all eras.
type eraGateway struct {
	url     string
	journal journal // of the children
	remote  map[string]*mcptest.Remote
}

func newEraGateway(t *testing.T, options ...string) *eraGateway {
	t.Helper()
	e := &eraGateway{journal: newJournal(t), remote: map[string]*mcptest.Remote{
		"farold":  {Name: "farold", Legacy: true},
		"farnew":  {Name: "farnew", Modern: true},
		"farboth": {Name: "farboth", Legacy: true, Modern: true},
		"farsse":  {Name: "farsse", Legacy: true},
	}}
	lines := []string{"separator __",
		block(child("old"), e.journal.env(), "isolation session"),
		block(child("new", "--modern-only"), e.journal.env()),
		block(child("both", "--modern"), e.journal.env(), "isolation session"),
	}
	for _, name := range eraServers[3:] {
		if name == "farsse" {
			lines = append(lines, "server "+name+" http://"+upstream(t, &mcptest.HTTPSSE{Server: e.remote[name]})+"/sse")
		} else {
			lines = append(lines, "server "+name+" http://"+upstream(t, e.remote[name])+"/mcp")
		}
		t.Cleanup(e.remote[name].Close) // before closing the upstream, which waits for it
	}
	e.url = serve(t, gateway(append(lines, options...)...)) + "/mcp"
	return e
}

// uri returns the URI of a resource as its server knows it. proxyURI returns the URI for clients.
func (e *eraGateway) uri(server, name string) string {
	if e.remote[server] == nil {
		return "file://" + server + "/" + name + ".txt"
	}
	return server + ":///" + name
}

func proxyURI(server, uri string) string {
	return "proxy://resource/" + base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"server":%q,"uri":%q}`, server,
		uri))
}

// The client's responses to server requests.
const (
	rootsAnswer  = `{"roots":[{"uri":"file:///mine"}]}`
	sampleAnswer = `{"model":"m","role":"assistant","content":{"type":"text","text":"hi"}}`
	formAnswer   = `{"action":"accept","content":{"name":"me"}}`
)

var clientAnswers = map[string]string{"roots/list": rootsAnswer, "sampling/createMessage": sampleAnswer,
	"elicitation/create": formAnswer}

// serverRequestParams are the params of server requests.
var serverRequestParams = map[string]string{
	"roots/list": `{}`,
	"sampling/createMessage": `{"messages":[{"role":"user","content":{"type":"text","text":"?"}}],` +
		`"maxTokens":12345678901234567}`,
	"elicitation/create": `{"message":"who?","requestedSchema":{"type":"object",` +
		`"properties":{"name":{"type":"string"}}}}`,
}

// forAll runs a test with clients of both eras and all servers.
func (e *eraGateway) forAll(t *testing.T, test func(t *testing.T, c *testClient, server string)) {
	for _, era := range clientEras {
		c := newTestClient(t, e.url, era.modern, fullCapabilities)
		for _, server := range eraServers {
			t.Run(era.name+" and "+server, func(t *testing.T) { test(t, c, server) })
		}
	}
}

func TestAggregateEraLists(t *testing.T) {
	isolate(t)
	e := newEraGateway(t)
	for _, era := range clientEras {
		t.Run(era.name, func(t *testing.T) {
			c := newTestClient(t, e.url, era.modern, fullCapabilities)
			for _, tt := range []struct{ method, member, key string }{
				{"tools/list", "tools", "name"},
				{"prompts/list", "prompts", "name"},
				{"resources/list", "resources", "uri"},
				{"resources/templates/list", "resourceTemplates", "uriTemplate"},
			} {
				got := c.ask(t, tt.method, `{}`)
				var result map[string]json.RawMessage
				var items []map[string]json.RawMessage
				if json.Unmarshal(got.answer.Result, &result) != nil || json.Unmarshal(result[tt.member], &items) != nil {
					t.Fatalf("A7 %s: %s", tt.method, got.answer.Raw)
				}
				var servers []string
				for _, item := range items {
					var name string
					_ = json.Unmarshal(item[tt.key], &name)
					server := ""
					switch tt.key {
					case "name":
						server, _, _ = strings.Cut(name, "__")
					case "uri":
						raw, _ := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(name, "proxy://resource/"))
						var place struct{ Server string }
						_ = json.Unmarshal(raw, &place)
						server = place.Server
					default:
						_, server, _ = strings.Cut(strings.TrimPrefix(name, "proxy://"), "/")
						server, _, _ = strings.Cut(server, "/")
					}
					if len(servers) == 0 || servers[len(servers)-1] != server {
						servers = append(servers, server)
					}
				}
				if !slices.Equal(servers, eraServers) {
					t.Errorf("A18 %s has items of %v", tt.method, servers)
				}
				if modern := string(result["resultType"]) == `"complete"` && result["ttlMs"] != nil &&
					result["cacheScope"] != nil; modern != era.modern {
					t.Errorf("%s: %.300s", tt.method, got.answer.Raw)
				}
			}
			hello := `{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"1"}}`
			method := "initialize"
			if era.modern {
				method, hello = "server/discover", `{}`
			} else {
				c = &testClient{&mcpclient.Client{URL: c.URL, HTTP: streamClient}}
			}
			var result struct {
				ProtocolVersion   string
				SupportedVersions []string
				Capabilities      map[string]map[string]bool
			}
			got := c.ask(t, method, hello)
			_ = json.Unmarshal(got.answer.Result, &result)
			if era.modern != slices.Contains(result.SupportedVersions, "2026-07-28") || !era.modern &&
				result.ProtocolVersion != "2025-06-18" {
				t.Errorf("A5 %s", got.answer.Raw)
			}
			for _, category := range []string{"tools", "prompts", "resources", "completions"} {
				if result.Capabilities[category] == nil {
					t.Errorf("A4 %s is not among %s", category, got.answer.Raw)
				}
			}
			if !result.Capabilities["resources"]["subscribe"] || !result.Capabilities["tools"]["listChanged"] {
				t.Errorf("A4 %s", got.answer.Raw)
			}
		})
	}
	for name, remote := range e.remote {
		for _, m := range append(remote.Seen("tools/list"), remote.Seen("tools/call")...) {
			if modern := m.Header.Get("Mcp-Protocol-Version") == "2026-07-28"; name == "farold" && modern || name == "farnew" &&
				!modern {
				t.Errorf("%s received %v", name, m)
			}
		}
	}
}

func TestAggregateEraCalls(t *testing.T) {
	isolate(t)
	e := newEraGateway(t)
	e.forAll(t, func(t *testing.T, c *testClient, server string) {
		arguments := `{"text":"é\u00e9","n":12345678901234567890, "f":1.0}`
		got := c.ask(t, "tools/call", callOf(server, "echo", arguments, `"unknown":[1]`, `"_meta":{"mine":1e2}`))
		text := got.answer.Text()
		if got.status != 200 || !strings.Contains(text, `"name":"echo","arguments":`+arguments+`,"unknown":[1]`) ||
			!strings.Contains(text, `"mine":1e2`) {
			t.Errorf("A8 %d %s", got.status, got.answer.Raw)
		}
		if modern := strings.Contains(text, "io.modelcontextprotocol/protocolVersion"); modern != isModern(server,
			c.Modern) && isModern(server, c.Modern) {
			t.Errorf("the server received %s", text)
		}
		if modern := strings.Contains(string(got.answer.Result), `"resultType":"complete"`); c.Modern && !modern {
			t.Errorf("the result has no type of the modern era: %s", got.answer.Raw)
		}

		got = c.ask(t, "prompts/get", `{"name":"`+server+`__p","arguments":{"who":"you"}}`)
		if !strings.Contains(string(got.answer.Result), server+" greets you") {
			t.Errorf("A10 %s", got.answer.Raw)
		}

		uri := proxyURI(server, e.uri(server, "data"))
		got = c.ask(t, "resources/read", `{"uri":`+quote(uri)+`}`)
		var read struct{ Contents []struct{ URI, Text string } }
		if json.Unmarshal(got.answer.Result, &read) != nil || len(read.Contents) != 1 || read.Contents[0].Text != "data of "+
			server || read.Contents[0].URI != uri {
			t.Errorf("A12 %s", got.answer.Raw)
		}

		for _, ref := range []string{`{"type":"ref/prompt","name":"` + server + `__p"}`, `{"type":"ref/resource","uri":` +
			quote(uri) + `}`} {
			got = c.ask(t, "completion/complete", `{"ref":`+ref+`,"argument":{"name":"who","value":"x"}}`)
			want := server + "-one"
			if e.remote[server] != nil { // it returns what it received
				want = `\"name\":\"p\"`
				if strings.Contains(ref, "uri") {
					want = `\"uri\":\"` + e.uri(server, "data")
				}
			}
			if !strings.Contains(string(got.answer.Result), want) {
				t.Errorf("A45 %s", got.answer.Raw)
			}
		}
	})
}

func TestAggregateEraProgress(t *testing.T) {
	isolate(t)
	e := newEraGateway(t)
	e.forAll(t, func(t *testing.T, c *testClient, server string) {
		for _, token := range []string{`"mine"`, `12345678901234567890`} {
			got := c.ask(t, "tools/call", callOf(server, "progress", `{"steps":3}`, `"_meta":{"progressToken":`+token+`}`))
			if len(got.events) != 3 {
				t.Fatalf("A28 %v before %s", got.events, got.answer.Raw)
			}
			for i, m := range got.events {
				if m.Method != "notifications/progress" || string(m.Params.ProgressToken) != token ||
					m.Params.Progress != float64(i+1) || m.Params.Proxy.Server != server {
					t.Errorf("A26 event %d is %s", i, m.Raw)
				}
			}
			if got.answer.Text() != "done" {
				t.Errorf("got %s, want the text done", got.answer.Raw)
			}
		}
		if got := c.ask(t, "tools/call", callOf(server, "progress", `{"steps":3}`)); len(got.events) > 0 {
			t.Errorf("got %v without a progress token", got.events)
		}
	})
}

// Progress has the token of the request whose response carries it.
func TestAggregateEraProgressOfResumedCall(t *testing.T) {
	isolate(t)
	e := newEraGateway(t)
	e.forAll(t, func(t *testing.T, c *testClient, server string) {
		if e.remote[server] == nil {
			return // it sends no progress when it requests input
		}
		const mine, next = `"_meta":{"progressToken":"mine"}`, `"_meta":{"progressToken":"next"}`
		params := callOf(server, "progress", `{"steps":2,"ask":"roots/list"}`, mine)
		d := c.begin(t, "tools/call", params)
		var got []string
		note := func(m mcpclient.Message) mcpclient.Message {
			for m.Method == "notifications/progress" {
				got = append(got, fmt.Sprint(string(m.Params.ProgressToken), m.Params.Progress))
				m = d.next(t)
			}
			return m
		}
		m := note(d.next(t))
		want := `["mine"1 "mine"2 "mine"3 "mine"4]`
		if c.Modern {
			d = c.begin(t, "tools/call", retryParams(strings.Replace(params, mine, next, 1), m.Input(t),
				func(string) string { return rootsAnswer }))
			want = `["mine"1 "mine"2 "next"3 "next"4]`
		} else {
			c.respond(t, m, rootsAnswer)
		}
		if m = note(d.next(t)); m.Text() != "done" || fmt.Sprint(got) != want {
			t.Errorf("A28 %v before %s", got, m.Raw)
		}
		if !c.Modern {
			return
		}
		d, got = c.begin(t, "tools/call", params), nil
		m = note(d.next(t))
		d = c.begin(t, "tools/call", retryParams(strings.Replace(params, ","+mine, "", 1), m.Input(t),
			func(string) string { return rootsAnswer }))
		if m = note(d.next(t)); m.Text() != "done" || len(got) != 2 {
			t.Errorf("A28 progress without a token: %v before %s", got, m.Raw)
		}
	})
}

func TestAggregateEraErrors(t *testing.T) {
	isolate(t)
	e := newEraGateway(t)
	e.forAll(t, func(t *testing.T, c *testClient, server string) {
		got := c.ask(t, "tools/call", callOf(server, "no-such-tool", `{}`))
		if got.answer.Error == nil || got.answer.Error.Code != -32602 ||
			got.answer.Error.Message != "Unknown tool: no-such-tool" {
			t.Errorf("A9 %s", got.answer.Raw)
		}
		got = c.ask(t, "prompts/get", `{"name":"`+server+`__none"}`)
		if got.answer.Error == nil || got.answer.Error.Code != -32602 || got.answer.Error.Message != "Unknown prompt: none" {
			t.Errorf("A10 %s", got.answer.Raw)
		}
		got = c.ask(t, "resources/read", `{"uri":`+quote(proxyURI(server, "file://absent/x.txt"))+`}`)
		code := -32002
		if isModern(server, c.Modern) {
			code = -32602
		}
		if got.answer.Error == nil || got.answer.Error.Code != code && got.answer.Error.Code != -32602 ||
			got.answer.Error.Message != "Resource not found" {
			t.Errorf("A12 %s", got.answer.Raw)
		}
		if e.remote[server] == nil {
			return
		}
		got = c.ask(t, "tools/call", callOf(server, "fail", `{"code":-31999,"message":"né",`+
			`"data":{"n":12345678901234567890,"why":["x"]}}`))
		if f := got.answer.Error; got.status != 200 || f == nil || f.Code != -31999 || f.Message != "né" ||
			string(f.Data) != `{"n":12345678901234567890,"why":["x"]}` {
			t.Errorf("G6 %d %s", got.status, got.answer.Raw)
		}
	})
}

// requestingCall returns the params of a call in which the server sends a request to the client.
func requestingCall(server, method string) string {
	return callOf(server, "ask", `{"method":`+quote(method)+`,"params":`+serverRequestParams[method]+`}`)
}

// membersOfObject returns the members of a JSON object, without braces.
func membersOfObject(object string) string { return object[1 : len(object)-1] }

// isAnswer reports whether the text of a server contains the client's response.
func isAnswer(text, answer string) bool { return text == answer || text == "["+answer+"]" }

func TestAggregateEraQuestions(t *testing.T) {
	isolate(t)
	e := newEraGateway(t)
	e.forAll(t, func(t *testing.T, c *testClient, server string) {
		for method, answer := range clientAnswers {
			params := requestingCall(server, method)
			d := c.begin(t, "tools/call", params)
			first := d.next(t)
			if c.Modern {
				input := first.Input(t)
				if len(input.InputRequests) != 1 {
					t.Fatalf("%s", first.Raw)
				}
				for _, q := range input.InputRequests {
					if q.Method != method || !strings.Contains(string(q.Params), membersOfObject(serverRequestParams[method])) {
						t.Errorf("got server request %s", first.Raw)
					}
				}
				if isModern(server, true) && e.remote[server] == nil && input.RequestState != server+" asked "+method {
					t.Errorf("got state %q, want the state of the server", input.RequestState)
				}
				first = c.ask(t, "tools/call", retryParams(params, input, func(string) string { return answer })).answer
			} else {
				if first.Method != method || first.Params.Proxy.Server != server || !strings.Contains(first.Raw,
					membersOfObject(serverRequestParams[method])) {
					t.Fatalf("A23 %s", first.Raw)
				}
				c.respond(t, first, answer)
				first = d.finish(t).answer
			}
			if !isAnswer(first.Text(), answer) {
				t.Errorf("A23 the server received %s\nwant %s", first.Raw, answer)
			}
		}
	})
	// A legacy server gets one call, even if the modern client retries it.
	if calls := e.remote["farold"].Seen("tools/call"); len(calls) != 2*len(clientAnswers) {
		t.Errorf("got %d calls: %v", len(calls), calls)
	}
}

// Prompts and resources can send server requests, too.
func TestAggregateEraQuestionsOfOthers(t *testing.T) {
	isolate(t)
	e := newEraGateway(t)
	e.forAll(t, func(t *testing.T, c *testClient, server string) {
		if e.remote[server] == nil {
			return // its prompts and resources send no server requests
		}
		for method, params := range map[string]string{
			"prompts/get":    `{"name":"` + server + `__p","arguments":{"ask":"yes"}}`,
			"resources/read": `{"uri":` + quote(proxyURI(server, server+":///asking")) + `}`,
		} {
			d := c.begin(t, method, params)
			first := d.next(t)
			if c.Modern {
				first = c.ask(t, method, retryParams(params, first.Input(t), func(string) string { return rootsAnswer })).answer
			} else {
				if first.Method != "roots/list" {
					t.Fatalf("%s", first.Raw)
				}
				c.respond(t, first, rootsAnswer)
				first = d.finish(t).answer
			}
			if !strings.Contains(first.Raw, `file:///mine`) {
				t.Errorf("%s: %s", method, first.Raw)
			}
		}
	})
}

// A server sends three server requests in one call, one after the other. In another call it sends
// two at once, which the client answers in reverse order.
func TestAggregateEraSeveralQuestions(t *testing.T) {
	isolate(t)
	const form = `{"action":"accept","content":{"n":%d}}`
	e := newEraGateway(t)
	e.forAll(t, func(t *testing.T, c *testClient, server string) {
		if e.remote[server] == nil {
			return // it sends one request
		}
		before := len(e.remote[server].Seen("tools/call"))

		params := callOf(server, "ask", `{"method":"elicitation/create","params":{"message":"m"},"times":3}`)
		d := c.begin(t, "tools/call", params)
		var want []string
		for n := range 3 {
			answer := fmt.Sprintf(form, n)
			want = append(want, answer)
			m := d.next(t)
			if c.Modern {
				d = c.begin(t, "tools/call", retryParams(params, m.Input(t), func(string) string { return answer }))
			} else {
				c.respond(t, m, answer)
			}
		}
		if m := d.next(t); m.Text() != "["+strings.Join(want, ",")+"]" {
			t.Errorf("sequential requests: %s", m.Raw)
		}

		params = callOf(server, "ask-all", `{"methods":["roots/list","sampling/createMessage"]}`)
		d = c.begin(t, "tools/call", params)
		m := d.next(t)
		if c.Modern { // in one round or in two
			for rounds := 0; rounds < 2 && strings.Contains(m.Raw, "input_required"); rounds++ {
				d = c.begin(t, "tools/call", retryParams(params, m.Input(t),
					func(method string) string { return clientAnswers[method] }))
				m = d.next(t)
			}
		} else {
			other := d.next(t) // before the first is answered
			for _, q := range []mcpclient.Message{other, m} {
				c.respond(t, q, clientAnswers[q.Method])
			}
			m = d.next(t)
		}
		if m.Text() != "["+rootsAnswer+","+sampleAnswer+"]" {
			t.Errorf("concurrent requests: %s", m.Raw)
		}
		if calls := len(e.remote[server].Seen("tools/call")) - before; !isModern(server, c.Modern) && calls != 2 {
			t.Errorf("the server received %d calls", calls)
		}
	})
}

func TestAggregateEraRefusedQuestions(t *testing.T) {
	isolate(t)
	e := newEraGateway(t)
	c := newTestClient(t, e.url, false, fullCapabilities)
	for _, server := range eraServers {
		t.Run(server, func(t *testing.T) {
			d := c.begin(t, "tools/call", requestingCall(server, "sampling/createMessage"))
			q := d.next(t)
			c.post(t, `{"jsonrpc":"2.0","id":`+string(q.ID)+`,"error":{"code":-1,"message":"the user says no","data":{"x":1}}}`)
			got := d.finish(t).answer
			if !strings.Contains(got.Raw, "the user says no") {
				t.Errorf("A23 %s", got.Raw)
			}
		})
	}
}

// If the client lacks a capability, it or the server gets an error.
func TestAggregateEraMissingCapability(t *testing.T) {
	isolate(t)
	e := newEraGateway(t)
	for _, era := range clientEras {
		for _, capabilities := range []string{`{}`, `{"roots":{}}`} {
			c := newTestClient(t, e.url, era.modern, capabilities)
			for _, server := range eraServers {
				t.Run(era.name+" with "+capabilities+" and "+server, func(t *testing.T) {
					for _, method := range []string{"sampling/createMessage", "elicitation/create"} {
						got := c.ask(t, "tools/call", requestingCall(server, method)).answer
						switch {
						case era.modern && isModern(server, true): // the server decides
						case got.Error != nil:
							if got.Error.Code != -32021 && got.Error.Code != -32601 || got.Error.Message == "" {
								t.Errorf("A25 %s", got.Raw)
							}
						case !strings.Contains(string(got.Result), `"isError":true`) || !strings.Contains(got.Text(), `"message":"`):
							t.Errorf("A25 %s", got.Raw)
						}
					}
				})
			}
		}
	}
}

// A legacy client that accepts no event stream cannot get server requests during a call.
func TestAggregateEraNoEventStream(t *testing.T) {
	isolate(t)
	e := newEraGateway(t)
	c := newTestClient(t, e.url, false, fullCapabilities)
	for _, server := range eraServers {
		t.Run(server, func(t *testing.T) {
			got := c.ask(t, "tools/call", requestingCall(server, "sampling/createMessage"), "Accept: application/json").answer
			if got.Error == nil && !strings.Contains(string(got.Result), `"isError":true`) {
				t.Errorf("A25 %s", got.Raw)
			}
			if got := c.ask(t, "tools/call", callOf(server, "progress", `{"steps":2}`, `"_meta":{"progressToken":1}`),
				"Accept: application/json"); got.answer.Text() != "done" || len(got.events) > 0 {
				t.Errorf("%v %s", got.events, got.answer.Raw)
			}
		})
	}
}

// beginHangingCall begins a call that does not end, and waits until the server has received it.
// ended counts the calls that the server has seen cancelled.
func (e *eraGateway) beginHangingCall(t *testing.T, c *testClient, server string) (d *exchange, ended func() int) {
	t.Helper()
	if remote := e.remote[server]; remote != nil {
		before, gone := len(remote.Seen("hanging")), len(remote.Seen("cancelled"))+len(remote.Seen("hung up"))
		d = c.begin(t, "tools/call", callOf(server, "hang", `{}`))
		await.Until(t, "the call", func() bool { return len(remote.Seen("hanging")) > before })
		return d, func() int { return len(remote.Seen("cancelled")) + len(remote.Seen("hung up")) - gone }
	}
	count := func(event string) (n int) {
		for _, entry := range e.journal.entries(t, event) {
			if entry.ID == server {
				n++
			}
		}
		return n
	}
	before, gone := count("tools/call"), count("cancelled")
	d = c.begin(t, "tools/call", callOf(server, "hang", `{}`))
	await.Until(t, "the call", func() bool { return count("tools/call") > before })
	return d, func() int { return count("cancelled") - gone }
}

func TestAggregateEraCancellation(t *testing.T) {
	isolate(t)
	e := newEraGateway(t)
	e.forAll(t, func(t *testing.T, c *testClient, server string) {
		kept, keptEnded := e.beginHangingCall(t, c, server)
		d, ended := e.beginHangingCall(t, c, server)
		if c.Modern {
			// In the modern era the gateway accepts this notification but ignores it.
			c.post(t, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+d.ID+`}}`)
			d.Cancel()
		} else {
			c.post(t, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+d.ID+`,"reason":"enough"}}`)
		}
		await.Until(t, "the end of the call at the server", func() bool { return ended() > 0 })
		if !c.Modern {
			d.awaitEnd(t)
		}
		if n := keptEnded(); n != 1 {
			t.Errorf("A28 %d calls have ended, want 1", n)
		}
		if remote := e.remote[server]; remote != nil {
			want := "hung up"
			if !isModern(server, c.Modern) {
				want = "cancelled"
			}
			if len(remote.Seen(want)) == 0 {
				t.Errorf("A28 no call was %s", want)
			}
		}
		select {
		case m, ok := <-kept.Messages:
			t.Errorf("A28 the other call got %v %t", m, ok)
		default:
		}
		kept.Cancel()
		if !c.Modern { // a closed connection does not cancel a legacy call
			c.post(t, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+kept.ID+`}}`)
		}
		kept.awaitEnd(t)
	})
	for _, m := range e.remote["farnew"].Seen("notifications/cancelled") {
		t.Errorf("a modern server received %s", m.Body)
	}
}

// A call that waited for a response of the client is cancelled with the id that its server knows.
func TestAggregateEraCancelsResumedCall(t *testing.T) {
	isolate(t)
	e := newEraGateway(t)
	c := newTestClient(t, e.url, true, fullCapabilities)
	remote := e.remote["farold"]
	params := callOf("farold", "hang", `{"ask":"roots/list"}`)
	input := c.ask(t, "tools/call", params).answer.Input(t)
	d := c.begin(t, "tools/call", retryParams(params, input, func(string) string { return rootsAnswer }))
	await.Until(t, "the call to continue", func() bool { return len(remote.Seen("hanging")) > 0 })
	d.Cancel()
	await.Until(t, "the cancellation", func() bool { return len(remote.Seen("cancelled")) > 0 })
	if calls := remote.Seen("tools/call"); len(calls) != 1 || calls[0].ID != remote.Seen("cancelled")[0].ID {
		t.Errorf("%v", calls)
	}
}

// Only the client that got a server request can answer it, and only once. (Modern clients.)
func TestAggregateEraHeldCallsAreTheirOwners(t *testing.T) {
	isolate(t)
	e := newEraGateway(t)
	alice := newTestClient(t, e.url, true, fullCapabilities, "Authorization: Bearer alice")
	bob := newTestClient(t, e.url, true, fullCapabilities, "Authorization: Bearer bob")
	anonymous := newTestClient(t, e.url, true, fullCapabilities)
	for _, server := range []string{"old", "farold"} {
		t.Run(server, func(t *testing.T) {
			params := requestingCall(server, "elicitation/create")
			input := alice.ask(t, "tools/call", params).answer.Input(t)
			again := retryParams(params, input, func(string) string { return formAnswer })
			for name, other := range map[string]*testClient{"bob": bob, "an anonymous client": anonymous} {
				if got := other.ask(t, "tools/call", again).answer; got.Error == nil || got.Error.Code != -32602 {
					t.Errorf("%s got %s", name, got.Raw)
				}
			}
			for name, state := range map[string]string{
				"a forged state": input.RequestState[:len(input.RequestState)-4] + "AAAA",
				"an empty state": "",
				"another state":  "not ours",
			} {
				forged := strings.Replace(again, quote(input.RequestState), quote(state), 1)
				if got := alice.ask(t, "tools/call", forged).answer; got.Error == nil || got.Error.Code != -32602 {
					t.Errorf("%s: %s", name, got.Raw)
				}
			}
			other := map[string]string{"old": "farold", "farold": "old"}[server]
			if got := alice.ask(t, "tools/call", strings.Replace(again, server+"__", other+"__", 1)).answer; got.Error == nil {
				t.Errorf("on another server: %s", got.Raw)
			}
			if got := alice.ask(t, "tools/call", again).answer; !isAnswer(got.Text(), formAnswer) {
				t.Errorf("the owner got %s", got.Raw)
			}
			if got := alice.ask(t, "tools/call", again).answer; got.Error == nil || got.Error.Code != -32602 {
				t.Errorf("second answer: %s", got.Raw)
			}
		})
	}
	if calls := e.remote["farold"].Seen("tools/call"); len(calls) != 1 {
		t.Errorf("got %d calls", len(calls))
	}
}

// One legacy server requests input from many modern clients at once, with the same ids in all
// sessions.
func TestAggregateEraManyHeldCalls(t *testing.T) {
	isolate(t)
	e := newEraGateway(t)
	const clients = 20
	params := callOf("farold", "ask", `{"method":"elicitation/create","params":{"message":"m"},"times":2}`)
	testClients, inputs := make([]*testClient, clients), make([]mcpclient.Input, clients)
	for i := range clients {
		testClients[i] = newTestClient(t, e.url, true, fullCapabilities, fmt.Sprint("Authorization: Bearer ", i))
		inputs[i] = testClients[i].ask(t, "tools/call", params).answer.Input(t)
	}
	answer := func(i int) func(string) string {
		return func(string) string { return fmt.Sprintf(`{"action":"accept","content":{"name":"%d"}}`, i) }
	}
	for i := range clients {
		i := clients - 1 - i
		inputs[i] = testClients[i].ask(t, "tools/call", retryParams(params, inputs[i], answer(i))).answer.Input(t)
	}
	for i := range clients {
		got := testClients[i].ask(t, "tools/call", retryParams(params, inputs[i], answer(i))).answer
		if want := "[" + answer(i)("") + "," + answer(i)("") + "]"; got.Text() != want {
			t.Errorf("client %d: %s", i, got.Raw)
		}
	}
	if calls := e.remote["farold"].Seen("tools/call"); len(calls) != clients {
		t.Errorf("got %d calls", len(calls))
	}
}

// changingCall returns a call that makes the server send tools/list_changed.
func (e *eraGateway) changingCall(server string) (tool, arguments string) {
	if e.remote[server] == nil {
		return "add-tool", `{"name":"more"}`
	}
	return "change", `{}`
}

func TestAggregateEraListen(t *testing.T) {
	isolate(t)
	e := newEraGateway(t)
	c := newTestClient(t, e.url, true, fullCapabilities)
	var uris []string
	for _, server := range eraServers {
		uris = append(uris, proxyURI(server, e.uri(server, "data")))
	}
	wanted, _ := json.Marshal(uris)
	d := c.begin(t, "subscriptions/listen", `{"notifications":{"toolsListChanged":true,"resourceSubscriptions":`+
		string(wanted)+`}}`)
	tagged := func(m mcpclient.Message) bool {
		return string(m.Params.Meta["io.modelcontextprotocol/subscriptionId"]) == d.ID
	}
	first := d.next(t)
	if first.Method != "notifications/subscriptions/acknowledged" || !tagged(first) ||
		!strings.Contains(string(first.Params.Notifications), `"toolsListChanged":true`) || !strings.Contains(first.Raw,
		uris[0]) {
		t.Fatalf("the first message is %s", first.Raw)
	}
	for _, server := range eraServers {
		t.Run(server, func(t *testing.T) {
			// next returns the next message from this server. Servers may have sent list_changed late, so
			// others are skipped.
			next := func() mcpclient.Message {
				for {
					if m := d.next(t); m.Params.Proxy.Server == server {
						return m
					}
				}
			}
			tool, arguments := e.changingCall(server)
			c.use(t, server, tool, arguments)
			if m := next(); m.Method != "notifications/tools/list_changed" || !tagged(m) {
				t.Errorf("got %s, want list_changed with the subscription id", m.Raw)
			}
			c.use(t, server, "touch", `{"uri":`+quote(e.uri(server, "other"))+`}`)
			c.use(t, server, "touch", `{"uri":`+quote(e.uri(server, "data"))+`}`)
			if m := next(); m.Method != "notifications/resources/updated" || m.Params.URI != proxyURI(server,
				e.uri(server, "data")) || !tagged(m) {
				t.Errorf("A68 %s", m.Raw)
			}
		})
	}

	// Another client subscribes to less.
	other := newTestClient(t, e.url, true, fullCapabilities, "Authorization: Bearer other")
	less := other.begin(t, "subscriptions/listen", `{"notifications":{"resourceSubscriptions":[`+quote(uris[4])+`]}}`)
	if m := less.next(t); m.Method != "notifications/subscriptions/acknowledged" || strings.Contains(m.Raw,
		"toolsListChanged") || !strings.Contains(m.Raw, uris[4]) {
		t.Fatalf("%s", m.Raw)
	}
	for _, server := range eraServers[3:] {
		c.use(t, server, "change", `{}`)
		c.use(t, server, "touch", `{"uri":`+quote(e.uri(server, "data"))+`}`)
	}
	if m := less.next(t); m.Method != "notifications/resources/updated" || m.Params.URI != uris[4] ||
		string(m.Params.Meta["io.modelcontextprotocol/subscriptionId"]) != less.ID {
		t.Errorf("A68 %s", m.Raw)
	}
	less.Cancel()
	d.Cancel()
	await.Until(t, "the subscriptions to end", func() bool { return len(e.remote["farnew"].Seen("hung up")) >= 2 })
}

func TestAggregateEraStream(t *testing.T) {
	isolate(t)
	e := newEraGateway(t)
	c := newTestClient(t, e.url, false, fullCapabilities)
	subscribe := func(t *testing.T, method, server string) {
		t.Helper()
		if got := c.ask(t, method, `{"uri":`+quote(proxyURI(server, e.uri(server, "data")))+`}`).answer; got.Error != nil {
			t.Fatalf("A68 %s", got.Raw)
		}
	}
	for _, server := range eraServers[:4] {
		subscribe(t, "resources/subscribe", server)
	}
	d := c.listen(t)
	// Wait until the stream carries notifications of all servers.
	for _, server := range eraServers {
		await.Until(t, "the stream to "+server, func() bool {
			tool, arguments := e.changingCall(server)
			c.use(t, server, tool, arguments)
			for {
				select {
				case m := <-d.Messages:
					if m.Params.Proxy.Server == server {
						return true
					}
				case <-time.After(100 * time.Millisecond):
					return false
				}
			}
		})
	}
	for _, server := range eraServers[4:] {
		subscribe(t, "resources/subscribe", server) // while the stream is open
	}
	next := func(t *testing.T, server string) mcpclient.Message {
		for {
			if m := d.next(t); m.Params.Proxy.Server == server && m.Method != "notifications/tools/list_changed" {
				return m
			}
		}
	}
	for _, server := range eraServers {
		t.Run(server, func(t *testing.T) {
			c.use(t, server, "touch", `{"uri":`+quote(e.uri(server, "other"))+`}`)
			c.use(t, server, "touch", `{"uri":`+quote(e.uri(server, "data"))+`}`)
			if m := next(t, server); m.Method != "notifications/resources/updated" || m.Params.URI != proxyURI(server,
				e.uri(server, "data")) {
				t.Errorf("A68 %s", m.Raw)
			}
			// Eventually there are no more updates.
			subscribe(t, "resources/unsubscribe", server)
			await.Until(t, "the end of the subscription", func() bool {
				c.use(t, server, "touch", `{"uri":`+quote(e.uri(server, "data"))+`}`)
				tool, arguments := e.changingCall(server)
				c.use(t, server, tool, arguments)
				received := false
				for {
					m := d.next(t)
					received = received || m.Params.Proxy.Server == server && m.Method == "notifications/resources/updated"
					if m.Params.Proxy.Server == server && m.Method == "notifications/tools/list_changed" {
						return !received
					}
				}
			})
		})
	}
}

// A subscription is active once its response has arrived.
func TestAggregateEraSubscriptionIsSoon(t *testing.T) {
	isolate(t)
	e := newEraGateway(t)
	c := newTestClient(t, e.url, false, fullCapabilities)
	d := c.listen(t)
	for _, server := range eraServers {
		await.Until(t, "the stream to "+server, func() bool {
			tool, arguments := e.changingCall(server)
			c.use(t, server, tool, arguments)
			for {
				select {
				case m := <-d.Messages:
					if m.Params.Proxy.Server == server {
						return true
					}
				case <-time.After(100 * time.Millisecond):
					return false
				}
			}
		})
	}
	for _, server := range eraServers {
		t.Run(server, func(t *testing.T) {
			for i := range 5 {
				name := fmt.Sprint("data", i)
				c.ask(t, "resources/subscribe", `{"uri":`+quote(proxyURI(server, e.uri(server, name)))+`}`)
				c.use(t, server, "touch", `{"uri":`+quote(e.uri(server, name))+`}`)
				m := d.next(t)
				for m.Method != "notifications/resources/updated" {
					m = d.next(t)
				}
				if m.Params.URI != proxyURI(server, e.uri(server, name)) {
					t.Errorf("A68 %s", m.Raw)
				}
			}
		})
	}
}

func TestAggregateEraModernRules(t *testing.T) {
	isolate(t)
	e := newEraGateway(t)
	c := newTestClient(t, e.url, true, fullCapabilities)
	body, headers := c.Message("7", "tools/call", callOf("farnew", "echo", `{}`))
	// with returns the headers of the request, with others replaced.
	with := func(others ...string) []string { return append(slices.Clone(headers), others...) }
	without := func(name string) []string {
		return slices.DeleteFunc(slices.Clone(headers), func(h string) bool { return strings.HasPrefix(h, name+":") })
	}
	list, listHeaders := c.Message("7", "tools/list", `{}`)
	future := strings.ReplaceAll(list, "2026-07-28", "2099-01-01")
	read, readHeaders := c.Message("7", "resources/read", `{"uri":`+quote(proxyURI("farnew", "farnew:///data"))+`}`)
	for _, tt := range []struct {
		name, body string
		headers    []string
		status     int
		code       int
	}{
		{"a valid request", body, headers, 200, 0},
		{"a name in base64", body, with("Mcp-Name: =?base64?" + base64.StdEncoding.EncodeToString([]byte("farnew__echo")) +
			"?="), 200, 0},
		{"another name", body, with("Mcp-Name: farnew__hang"), 400, -32020},
		{"the server's own tool name", body, with("Mcp-Name: echo"), 400, -32020},
		{"no name", body, without("Mcp-Name"), 400, -32020},
		{"another method", body, with("Mcp-Method: tools/list"), 400, -32020},
		{"no method", body, without("Mcp-Method"), 400, -32020},
		{"another version", body, with("Mcp-Protocol-Version: 2025-11-25"), 400, -32020},
		{"another URI", read, append(slices.Clone(readHeaders), "Mcp-Name: farnew:///data"), 400, -32020},
		{"the URI", read, readHeaders, 200, 0},
		{"no _meta", `{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{}}`, listHeaders, 400, -32602},
		{"no params", `{"jsonrpc":"2.0","id":7,"method":"tools/list"}`, listHeaders, 400, -32602},
		{"no capabilities", strings.Replace(list, "clientCapabilities", "somethingElse", 1), listHeaders, 400, -32602},
		{"an unknown version", future, append(slices.Clone(listHeaders), "Mcp-Protocol-Version: 2099-01-01"), 400, -32022},
		{"an unknown method", strings.Replace(list, "tools/list", "no/such", 1), append(slices.Clone(listHeaders),
			"Mcp-Method: no/such"), 404, -32601},
		{"initialize", strings.Replace(list, "tools/list", "initialize", 1), append(slices.Clone(listHeaders),
			"Mcp-Method: initialize"), 404, -32601},
		{"ping", strings.Replace(list, "tools/list", "ping", 1), append(slices.Clone(listHeaders), "Mcp-Method: ping"), 404,
			-32601},
		{"logging/setLevel", strings.Replace(list, "tools/list", "logging/setLevel", 1), append(slices.Clone(listHeaders),
			"Mcp-Method: logging/setLevel"), 404, -32601},
		{"resources/subscribe", strings.Replace(list, "tools/list", "resources/subscribe", 1),
			append(slices.Clone(listHeaders), "Mcp-Method: resources/subscribe"), 404, -32601},
		{"an unneeded session", list, append(slices.Clone(listHeaders), "Mcp-Session-Id: unknown"), 200, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := post(t, e.url, tt.body, tt.headers...)
			m := mcpclient.Parse(answerIn(got.body))
			code := 0
			if m.Error != nil {
				code = m.Error.Code
			}
			if got.StatusCode != tt.status || code != tt.code || string(m.ID) != "7" || got.Header.Get("Mcp-Session-Id") != "" {
				t.Errorf("%d %v %s", got.StatusCode, got.Header, got.body)
			}
			if tt.code == -32022 {
				var data struct {
					Supported []string
					Requested string
				}
				_ = json.Unmarshal(m.Error.Data, &data)
				if !slices.Contains(data.Supported, "2026-07-28") || data.Requested != "2099-01-01" {
					t.Errorf("got %s, want the supported and the requested version", got.body)
				}
			}
		})
	}
	for _, method := range []string{"GET", "DELETE"} {
		if got := send(t, client, method, e.url, "", "Mcp-Protocol-Version: 2026-07-28",
			"Accept: text/event-stream"); got.StatusCode != 405 || got.Header.Get("Allow") != "POST" {
			t.Errorf("%s: %d %v %s", method, got.StatusCode, got.Header, got.body)
		}
	}
	if got := send(t, client, "GET", e.url, "", "Accept: text/event-stream"); got.StatusCode != 405 {
		t.Errorf("a GET outside of a session: got %d %s, want 405", got.StatusCode, got.body)
	}
	c.post(t, `{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`)
}

// Headers that repeat arguments are forwarded, added for clients that do not send them, and removed
// for servers that do not use them.
func TestAggregateEraParamHeaders(t *testing.T) {
	isolate(t)
	e := newEraGateway(t)
	e.forAll(t, func(t *testing.T, c *testClient, server string) {
		for region, header := range map[string]string{"eu-west": "eu-west", "é ": "=?base64?w6kg?="} {
			arguments := `{"region":` + quote(region) + `}`
			var headers []string
			if c.Modern {
				headers = []string{"Mcp-Param-Region: " + header}
			}
			got := c.ask(t, "tools/call", callOf(server, "echo", arguments), headers...)
			if got.status != 200 || !strings.Contains(got.answer.Text(), arguments) {
				t.Fatalf("%d %s", got.status, got.answer.Raw)
			}
			remote := e.remote[server]
			if remote == nil {
				continue
			}
			calls := remote.Seen("tools/call")
			last := calls[len(calls)-1].Header
			if modern := isModern(server, c.Modern); modern && (last.Get("Mcp-Param-Region") != header ||
				last.Get("Mcp-Name") != "echo" || last.Get("Mcp-Method") != "tools/call") ||
				!modern && (last.Get("Mcp-Param-Region") != "" || last.Get("Mcp-Name") != "") || modern &&
				last.Get("Mcp-Session-Id") != "" {
				t.Errorf("the server received %v", last)
			}
		}
		if c.Modern && isModern(server, true) {
			got := c.ask(t, "tools/call", callOf(server, "echo", `{"region":"eu"}`), "Mcp-Param-Region: us")
			if got.answer.Error == nil || got.answer.Error.Code != -32020 || got.status != 400 {
				t.Errorf("%d %s", got.status, got.answer.Raw)
			}
		}
	})
}

// newInvalidServer starts a server of 2026-07-28 with a valid tool and a tool whose x-mcp-header is
// not a valid header name.
func newInvalidServer(t *testing.T) *remoteServer {
	t.Helper()
	remote := newLenientServer(t, "good")
	remote.Replies = map[string]string{
		"server/discover": `"result":{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}`,
		"tools/list": `"result":{"tools":[{"name":"good","inputSchema":{"type":"object"}},` +
			`{"name":"bad","inputSchema":{"type":"object","properties":{"a":{"type":"string","x-mcp-header":"not a token"}}}}]}`,
	}
	return remote
}

// Tools with invalid annotations of a modern server are hidden and counted.
func TestAggregateEraInvalidTools(t *testing.T) {
	isolate(t)
	url := serve(t, gateway("separator __", newInvalidServer(t).line("alpha")))
	grown := growth(t)
	for _, era := range clientEras {
		c := newTestClient(t, joinedAt(url), era.modern, `{}`)
		if got := c.ask(t, "tools/list", `{}`).answer.Raw; strings.Contains(got, `__bad"`) || !strings.Contains(got,
			`__good"`) {
			t.Errorf("%s: got %s", era.name, got)
		}
		got := c.ask(t, "tools/call", callOf("alpha", "bad", `{"a":"b"}`)).answer
		if got.Error == nil || got.Error.Code != -32602 || !strings.Contains(got.Raw,
			"x-mcp-header of a: not a valid header name") {
			t.Errorf("%s: got %s", era.name, got.Raw)
		}
	}
	if n := grown()[serverMetric("invalid_tools_total", "alpha")]; n != 1 {
		t.Errorf("counted %v tools, want 1", n)
	}
}

// Resources and resource links in tool results can be read by the URIs in the result.
func TestAggregateEraResourceLinks(t *testing.T) {
	isolate(t)
	e := newEraGateway(t)
	e.forAll(t, func(t *testing.T, c *testClient, server string) {
		if e.remote[server] == nil {
			return // it has no links
		}
		got := c.ask(t, "tools/call", callOf(server, "link", `{}`)).answer
		var result struct {
			Content []struct {
				URI      string
				Resource struct{ URI, Text string }
			}
		}
		uri := proxyURI(server, server+":///data")
		if json.Unmarshal(got.Result, &result) != nil || len(result.Content) != 2 || result.Content[0].URI != uri ||
			result.Content[1].Resource.URI != uri {
			t.Fatalf("A12 %s", got.Raw)
		}
		if got := c.ask(t, "resources/read", `{"uri":`+quote(uri)+`}`).answer; !strings.Contains(got.Raw, "data of "+server) {
			t.Errorf("got %s, want the resource of the server", got.Raw)
		}
	})
}

// If a server has lost its session, the gateway initializes again and makes the call once.
func TestAggregateEraForgottenSession(t *testing.T) {
	isolate(t)
	e := newEraGateway(t)
	e.forAll(t, func(t *testing.T, c *testClient, server string) {
		remote := e.remote[server]
		if remote == nil {
			return // it has no sessions to lose
		}
		c.use(t, server, "echo", `{}`)
		remote.Forget()
		if got := c.use(t, server, "echo", `{"again":true}`); !strings.Contains(got, `"again":true`) {
			t.Errorf("got %s, want %s in it", got, `"again":true`)
		}
		remote.Forget()
		params := requestingCall(server, "roots/list")
		d := c.begin(t, "tools/call", params)
		m := d.next(t)
		if c.Modern {
			m = c.ask(t, "tools/call", retryParams(params, m.Input(t), func(string) string { return rootsAnswer })).answer
		} else {
			c.respond(t, m, rootsAnswer)
			m = d.finish(t).answer
		}
		if !isAnswer(m.Text(), rootsAnswer) {
			t.Errorf("got %s, want the answer to reach the server", m.Raw)
		}
	})
}

// Log messages reach the clients that ask for them; modern clients ask in the request.
func TestAggregateEraLogs(t *testing.T) {
	isolate(t)
	e := newEraGateway(t)
	e.forAll(t, func(t *testing.T, c *testClient, server string) {
		if e.remote[server] != nil {
			return // it has no logs
		}
		if !c.Modern {
			if got := c.ask(t, "logging/setLevel", `{"level":"debug"}`).answer; string(got.Result) != "{}" {
				t.Errorf("A15 %s", got.Raw)
			}
		} else if got := c.ask(t, "tools/call", callOf(server, "emit", `{}`)); len(got.events) > 0 {
			t.Errorf("got %s without asking for logs", got.events[0].Raw)
		}
		params := callOf(server, "emit", `{}`)
		if c.Modern {
			params = callOf(server, "emit", `{}`, `"_meta":{"io.modelcontextprotocol/logLevel":"debug"}`)
		}
		got := c.ask(t, "tools/call", params)
		if len(got.events) != 1 || got.events[0].Method != "notifications/message" ||
			string(got.events[0].Params.Data) != `"hello"` || got.events[0].Params.Proxy.Server != server {
			t.Errorf("A26 %v before %s", got.events, got.answer.Raw)
		}
	})
}

// Server requests outside of a call reach a legacy client on its stream. A modern client gets them
// in the response to its call, or the server gets an error.
func TestAggregateEraRequestsOutsideOfCalls(t *testing.T) {
	isolate(t)
	e := newEraGateway(t, "response_timeout 10s") // less than patience
	params := callOf("farold", "ask", `{"method":"roots/list","aside":true}`)
	remote := e.remote["farold"]
	t.Run("legacy client", func(t *testing.T) {
		c := newTestClient(t, e.url, false, fullCapabilities)
		stream := c.listen(t)
		await.Until(t, "the stream", func() bool { return len(remote.Seen("stream")) == 1 })
		d := c.begin(t, "tools/call", params)
		q := stream.next(t)
		for q.Method != "roots/list" {
			q = stream.next(t)
		}
		c.respond(t, q, rootsAnswer)
		if got := d.finish(t).answer; !isAnswer(got.Text(), rootsAnswer) {
			t.Errorf("A23 got %s, want the answer to reach the server", got.Raw)
		}
	})
	t.Run("legacy client without capabilities", func(t *testing.T) {
		c := newTestClient(t, e.url, false, `{}`)
		c.listen(t)
		await.Until(t, "the stream", func() bool { return len(remote.Seen("stream")) == 2 })
		if got := c.ask(t, "tools/call", params).answer; !strings.Contains(got.Raw, `"isError":true`) {
			t.Errorf("A25 %s", got.Raw)
		}
	})
	for _, listens := range []bool{true, false} {
		t.Run(fmt.Sprintf("modern client, listening: %t", listens), func(t *testing.T) {
			c := newTestClient(t, e.url, true, fullCapabilities, fmt.Sprint("Authorization: Bearer ", listens))
			if listens {
				c.begin(t, "subscriptions/listen", `{"notifications":{"toolsListChanged":true}}`).next(t)
				await.Until(t, "the stream", func() bool { return len(remote.Seen("stream")) == 3 })
			}
			input := c.ask(t, "tools/call", params).answer.Input(t)
			got := c.ask(t, "tools/call", retryParams(params, input, func(string) string { return rootsAnswer })).answer
			if !isAnswer(got.Text(), rootsAnswer) {
				t.Errorf("A25 got %s, want the answer to reach the server", got.Raw)
			}
		})
	}
}

// A client may take longer than response_timeout to answer a server request.
func TestAggregateEraSlowAnswers(t *testing.T) {
	isolate(t)
	e := newEraGateway(t, "response_timeout 2s")
	for _, era := range clientEras {
		for _, server := range eraServers {
			t.Run(era.name+" and "+server, func(t *testing.T) {
				t.Parallel()
				c := newTestClient(t, e.url, era.modern, fullCapabilities, "Authorization: Bearer "+server)
				await.Until(t, "the server to be ready", func() bool {
					return strings.Contains(c.ask(t, "tools/call", callOf(server, "echo", `{}`)).answer.Text(), "echo")
				})
				params := requestingCall(server, "elicitation/create")
				d := c.begin(t, "tools/call", params)
				m := d.next(t)
				// A later call times out before the server request is answered.
				if got := c.ask(t, "tools/call", callOf(server, "hang", `{}`)).answer; got.Error == nil ||
					got.Error.Symbol() != "timeout" {
					t.Fatalf("a hanging call: got %s, want a timeout", got.Raw)
				}
				if c.Modern {
					m = c.ask(t, "tools/call", retryParams(params, m.Input(t), func(string) string { return formAnswer })).answer
				} else {
					c.respond(t, m, formAnswer)
					m = d.finish(t).answer
				}
				if !isAnswer(m.Text(), formAnswer) {
					t.Errorf("got %s, want the answer to reach the server", m.Raw)
				}
			})
		}
	}
}

// A client that retries a call without the answers gets an error, and so does the server.
func TestAggregateEraMissingAnswers(t *testing.T) {
	isolate(t)
	e := newEraGateway(t)
	c := newTestClient(t, e.url, true, fullCapabilities)
	for _, server := range []string{"old", "farold"} {
		for _, responses := range []string{`{}`, `{"other":{}}`, `[]`, `null`, `"x"`} {
			t.Run(responses+" for "+server, func(t *testing.T) {
				params := requestingCall(server, "elicitation/create")
				input := c.ask(t, "tools/call", params).answer.Input(t)
				again := strings.TrimSuffix(params, "}") + `,"inputResponses":` + responses + `,"requestState":` +
					quote(input.RequestState) + `}`
				got := c.ask(t, "tools/call", again).answer
				var result struct{ IsError bool }
				if err := json.Unmarshal(got.Result, &result); err != nil || !result.IsError || !strings.Contains(got.Text(),
					`"code":-32603`) {
					t.Errorf("got %s, want a result saying that the server got error -32603", got.Raw)
				}
			})
		}
	}
}

// Modern clients get server requests without an event stream.
func TestAggregateEraInputAsJSON(t *testing.T) {
	isolate(t)
	e := newEraGateway(t)
	c := newTestClient(t, e.url, true, fullCapabilities)
	for _, server := range eraServers {
		t.Run(server, func(t *testing.T) {
			params := requestingCall(server, "elicitation/create")
			input := c.ask(t, "tools/call", params, "Accept: application/json").answer.Input(t)
			got := c.ask(t, "tools/call", retryParams(params, input, func(string) string { return formAnswer }),
				"Accept: application/json")
			if !isAnswer(got.answer.Text(), formAnswer) || !strings.HasPrefix(got.header.Get("Content-Type"),
				"application/json") {
				t.Errorf("%v %s", got.header, got.answer.Raw)
			}
		})
	}
}

// A server is replaced by one of another era while clients are connected.
func TestAggregateEraUpgrades(t *testing.T) {
	isolate(t)
	for _, era := range clientEras {
		for _, tt := range []struct {
			name           string
			from           string
			legacy, modern bool
		}{
			{"from legacy to modern", "farold", false, true},
			{"from modern to legacy", "farnew", true, false},
			{"from legacy to both", "farold", true, true},
			{"from both to legacy", "farboth", true, false},
			{"from both to modern", "farboth", false, true},
		} {
			t.Run(era.name+" "+tt.name, func(t *testing.T) {
				e := newEraGateway(t)
				c := newTestClient(t, e.url, era.modern, fullCapabilities)
				c.use(t, tt.from, "echo", `{}`)
				e.remote[tt.from].Become(tt.legacy, tt.modern)
				await.Until(t, "a new handshake", func() bool {
					return strings.Contains(c.ask(t, "tools/call", callOf(tt.from, "echo", `{"again":1}`)).answer.Text(), `"again":1`)
				})
			})
		}
	}
}

// Sessions and calls belong to the authenticated client.
func TestAggregateEraIdentity(t *testing.T) {
	isolate(t)
	// Each password is the user name, hashed at the lowest cost.
	const users = "alice $2a$04$fjs1/hlX7Zc6F.1b9exT9eJ6sQYrHAPCHGq.hTFG4HUDX9R5lfrgK\nbob " +
		"$2a$04$4UH.3JhiN43X1DTFbIExqezm4mVoxin0b7IG8XFXWApDB3hKtPP7e"
	remote := &mcptest.Remote{Name: "farold", Legacy: true}
	endpoint := serve(t, block("basic_auth", users),
		gateway("separator __", "server farold http://"+upstream(t, remote)+"/mcp")) + "/mcp"
	t.Cleanup(remote.Close)
	basic := func(name string) string {
		return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(name+":"+name))
	}
	params := requestingCall("farold", "elicitation/create")

	alice, bob := newTestClient(t, endpoint, true, fullCapabilities, basic("alice")), newTestClient(t, endpoint, true,
		fullCapabilities, basic("bob"))
	input := alice.ask(t, "tools/call", params).answer.Input(t)
	again := retryParams(params, input, func(string) string { return formAnswer })
	if got := bob.ask(t, "tools/call", again).answer; got.Error == nil || got.Error.Code != -32602 {
		t.Errorf("bob got %s", got.Raw)
	}
	if got := alice.ask(t, "tools/call", again).answer; !isAnswer(got.Text(), formAnswer) {
		t.Errorf("alice got %s", got.Raw)
	}

	alice, bob = newTestClient(t, endpoint, false, fullCapabilities, basic("alice")), newTestClient(t, endpoint, false,
		fullCapabilities, basic("bob"))
	d := alice.begin(t, "tools/call", params)
	q := d.next(t)
	thief := &testClient{&mcpclient.Client{URL: endpoint, Headers: append(slices.Clone(alice.Headers), basic("bob")),
		HTTP: streamClient}}
	if got := thief.ask(t, "tools/list", `{}`); got.status != 404 || got.answer.Error == nil {
		t.Errorf("bob got %d %s", got.status, got.answer.Raw)
	}
	bob.post(t, `{"jsonrpc":"2.0","id":`+string(q.ID)+`,"result":{"action":"decline"}}`) // not a server request to bob
	bob.post(t, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+d.ID+`}}`)
	alice.respond(t, q, formAnswer)
	if got := d.finish(t).answer; !isAnswer(got.Text(), formAnswer) {
		t.Errorf("alice got %s", got.Raw)
	}
}

// Clients of all legacy revisions work with all servers.
func TestAggregateEraRevisions(t *testing.T) {
	isolate(t)
	e := newEraGateway(t)
	for _, version := range []string{"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2099-01-01"} {
		t.Run(version, func(t *testing.T) {
			c := &testClient{&mcpclient.Client{URL: e.url, Capabilities: fullCapabilities, HTTP: streamClient}}
			got := c.ask(t, "initialize", `{"protocolVersion":"`+version+`","capabilities":`+fullCapabilities+
				`,"clientInfo":{"name":"test","version":"1"}}`)
			agreed := version
			if version > "2026" {
				agreed = "2025-11-25"
			}
			if !strings.Contains(string(got.answer.Result), `"protocolVersion":"`+agreed+`"`) {
				t.Fatalf("A5 %s", got.answer.Raw)
			}
			c.Headers = []string{"Mcp-Session-Id: " + got.header.Get("Mcp-Session-Id")} // some clients send no version
			c.post(t, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
			for _, server := range eraServers {
				if got := c.use(t, server, "echo", `{"n":1}`); !strings.Contains(got, `{"n":1}`) {
					t.Errorf("%s: %s", server, got)
				}
			}
			if version < "2025-06-18" {
				return
			}
			c.Headers = append(c.Headers, "Mcp-Protocol-Version: "+agreed)
			for _, server := range eraServers {
				if got := c.use(t, server, "echo", `{"n":2}`); !strings.Contains(got, `{"n":2}`) {
					t.Errorf("%s: %s", server, got)
				}
			}
		})
	}
}

// Only clients of 2025-11-25 get an empty event at the start of a stream.
func TestAggregateEraPriming(t *testing.T) {
	isolate(t)
	remote := &mcptest.Remote{Name: "primes", Legacy: true, Primes: true}
	endpoint := serve(t, gateway("separator __", "server primes http://"+upstream(t, remote)+"/mcp")) + "/mcp"
	t.Cleanup(remote.Close)
	for _, version := range []string{"2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"} {
		t.Run(version, func(t *testing.T) {
			c := &testClient{&mcpclient.Client{URL: endpoint, Modern: version == "2026-07-28", Capabilities: fullCapabilities,
				HTTP: streamClient}}
			if !c.Modern {
				got := c.ask(t, "initialize", `{"protocolVersion":"`+version+
					`","capabilities":{},"clientInfo":{"name":"test","version":"1"}}`)
				c.Headers = []string{"Mcp-Session-Id: " + got.header.Get("Mcp-Session-Id")}
			}
			body, headers := c.Message(`7`, "tools/call", callOf("primes", "progress", `{"steps":1}`,
				`"_meta":{"progressToken":1}`))
			got := post(t, endpoint, body, headers...)
			if !strings.Contains(got.body, `"done"`) || !strings.Contains(got.body, "notifications/progress") {
				t.Fatalf("%d %s", got.StatusCode, got.body)
			}
			if primed := strings.Contains(got.body, "data: \n") || strings.Contains(got.body, "data:\n"); primed &&
				version != "2025-11-25" {
				t.Errorf("got stream %q", got.body)
			}
		})
	}
}

// Modern clients without identity have calls in flight with equal ids. A legacy server gets
// distinct ids.
func TestAggregateEraEqualIDs(t *testing.T) {
	isolate(t)
	e := newEraGateway(t)
	one, two := newTestClient(t, e.url, true, fullCapabilities), newTestClient(t, e.url, true, fullCapabilities)
	for _, server := range []string{"old", "farold"} {
		t.Run(server, func(t *testing.T) {
			kept, ended := e.beginHangingCall(t, one, server)
			left, _ := e.beginHangingCall(t, two, server)
			if kept.ID != left.ID {
				t.Fatalf("got ids %s and %s, want equal ids", kept.ID, left.ID)
			}
			left.Cancel()
			await.Until(t, "the end of the call", func() bool { return ended() > 0 })
			if n := ended(); n != 1 {
				t.Errorf("A28 %d calls have ended, want 1", n)
			}
			if server == "farold" {
				calls := map[string]bool{}
				for _, m := range e.remote[server].Seen("tools/call") {
					calls[m.Session+m.ID] = true
				}
				if len(calls) != 2 {
					t.Errorf("the server got equal ids: %v", calls)
				}
				if hanging := e.remote[server].Seen("hanging"); e.remote[server].Seen("cancelled")[0].ID != hanging[1].ID {
					t.Errorf("A28 the other client's call has ended: %v", hanging)
				}
			}
			kept.Cancel()
			await.Until(t, "the end of the other call", func() bool { return ended() == 2 })
		})
	}
}

// A server may exit while its request waits for the client.
func TestAggregateEraHeldCallsEnd(t *testing.T) {
	isolate(t)
	e := newEraGateway(t)
	c := newTestClient(t, e.url, true, fullCapabilities)
	again := func(params string, input mcpclient.Input) string {
		return retryParams(params, input, func(string) string { return formAnswer })
	}
	t.Run("the server exits", func(t *testing.T) {
		params := requestingCall("old", "elicitation/create")
		input := c.ask(t, "tools/call", params).answer.Input(t)
		if got := c.ask(t, "tools/call", callOf("old", "die", `{}`)).answer; got.Error == nil {
			t.Errorf("got %s, want an error", got.Raw)
		}
		if got := c.ask(t, "tools/call", again(params, input)).answer; got.Error == nil {
			t.Errorf("got %s, want an error", got.Raw)
		}
		await.Until(t, "the server to restart", func() bool {
			return strings.Contains(c.ask(t, "tools/call", callOf("old", "echo", `{}`)).answer.Raw, `echo`)
		})
	})
	t.Run("the session ends", func(t *testing.T) {
		params := requestingCall("farold", "elicitation/create")
		input := c.ask(t, "tools/call", params).answer.Input(t)
		e.remote["farold"].Forget()
		if got := c.ask(t, "tools/call", again(params, input)).answer; got.Error == nil {
			t.Errorf("got %s, want an error", got.Raw)
		}
		if got := c.use(t, "farold", "echo", `{"n":1}`); !strings.Contains(got, `{"n":1}`) {
			t.Errorf("got %s, want %s in it", got, `{"n":1}`)
		}
	})
	t.Run("the configuration is reloaded", func(t *testing.T) {
		params := requestingCall("farold", "elicitation/create")
		input := c.ask(t, "tools/call", params).answer.Input(t)
		config := admin(t, "GET", "/config/", "").body
		changed := strings.Replace(config, `"separator":"__"`, `"separator":"__","max_name_length":63`, 1)
		if got := admin(t, "POST", "/load", changed); changed == config || got.StatusCode != 200 {
			t.Fatalf("%d %s", got.StatusCode, got.body)
		}
		if got := c.ask(t, "tools/call", again(params, input)).answer; got.Error == nil && !isAnswer(got.Text(), formAnswer) {
			t.Errorf("got %s, want the answer to reach the server", got.Raw)
		}
	})
}
