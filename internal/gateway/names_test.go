package gateway

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// oddJSON has unusual but valid spellings.
const oddJSON = `"z":12345678901234567890.10e+05, "\u0061" :[ 1.0,-0 ,"\/\u00e9\ud83d\ude00é" ] ,	"a":{"b":null},` +
	`"empty":{ }`

// Except for names, requests reach servers unchanged (A8).
func TestRequestsAreUnchanged(t *testing.T) {
	tests := []struct{ name, body, want string }{
		{"a call", `{"jsonrpc":"2.0" , "id":9007199254740993,"method":"tools/call","params":{"arguments":{` + oddJSON +
			`},"name":"a::x", "_meta":{"progressToken":9007199254740995,"k":1.0}},"extra":[1.0]}`,
			`{"jsonrpc":"2.0" , "id":9007199254740993,"method":"tools/call","params":{"arguments":{` + oddJSON +
				`},"name":"x", "_meta":{"progressToken":9007199254740995,"k":1.0}},"extra":[1.0]}`},
		{"a name with escapes", `{"jsonrpc":"2.0","id":"\u0031","method":"tools\/call","params":{"name":"\u0061::\u00e9"}}`,
			`{"jsonrpc":"2.0","id":"\u0031","method":"tools\/call","params":{"name":"é"}}`},
		{"proxy first", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"proxy":{"authToken":"t"},"name":"a::x"}}`,
			`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`},
		{"proxy last", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a::x","proxy":{"authToken":"t"}}}`,
			`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`},
		{"proxy within", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a::x" , "proxy" : "t" ,` +
			` "arguments":{"proxy":1}}}`, ""},
		{"a prompt", `{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"a::p","arguments":{` + oddJSON + `}}}`,
			`{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"p","arguments":{` + oddJSON + `}}}`},
		{"a resource", `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"` +
			mcp.ResourceURI("a", "x://é") + `",` + oddJSON + `}}`,
			`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"x://é",` + oddJSON + `}}`},
		{"a subscription", `{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"` +
			mcp.ResourceURI("a", "x://é") + `",` + oddJSON + `}}`,
			`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"x://é",` + oddJSON + `}}`},
	}
	p := legacyPeer("a")
	u := newGateway(t, nil, p).legacy(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := u.post(tt.body)
			p.mu.Lock()
			got := p.arrivals[len(p.arrivals)-1].body
			p.mu.Unlock()
			if tt.want == "" {
				if strings.Contains(got, `"t"`) || !strings.Contains(got, `"arguments":{"proxy":1}`) ||
					!strings.Contains(got, `"name":"x"`) {
					t.Errorf("got %s", got)
				}
			} else if got != tt.want {
				t.Errorf("got  %s\nwant %s\nanswered %s", got, tt.want, s.body)
			}
		})
	}
}

// Except for resource URIs, responses reach clients unchanged (A8, A12).
func TestResponsesAreUnchanged(t *testing.T) {
	proxied := func(uri string) string { return mcp.ResourceURI("a", uri) }
	tests := []struct{ name, answer, want string }{ // ID stands for the id
		{"odd spelling", `{"result":{` + oddJSON + `,"content":[]},"id" : ID ,"jsonrpc":"2.0","extra":{"uri":"x://a"}}`, ""},
		{"an error", `{"jsonrpc":"2.0","id":ID,"error":{"code":-32099,"message":"m","data":{` + oddJSON + `}}}`, ""},
		{"an error that names a resource", `{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"message":"m",` +
			`"data":{"uri":"x://a"}}}`,
			`{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"message":"m","data":{"uri":"` + proxied("x://a") + `"}}}`},
		{"contents", `{"jsonrpc":"2.0","id":ID,"result":{"contents":[{"uri":"x:\/\/a", "text":"x:\/\/a"},{"blob":"",` +
			`"uri":"x://\u00e9"}]}}`,
			`{"jsonrpc":"2.0","id":ID,"result":{"contents":[{"uri":"` + proxied("x://a") +
				`", "text":"x:\/\/a"},{"blob":"","uri":"` + proxied("x://é") + `"}]}}`},
		{"links and embedded resources", `{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"resource_link",` +
			`"uri":"x://a"},{"type":"resource","resource":{"uri":"x://b"}},{"type":"text","text":"\"uri\":\"x://c\""}],` +
			`"structuredContent":{"uri":"x://d"}}}`,
			`{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"resource_link","uri":"` + proxied("x://a") +
				`"},{"type":"resource","resource":{"uri":"` + proxied("x://b") +
				`"}},{"type":"text","text":"\"uri\":\"x://c\""}],"structuredContent":{"uri":"x://d"}}}`},
		{"messages of prompts", `{"jsonrpc":"2.0","id":ID,"result":{"messages":[{"role":"user",` +
			`"content":{"type":"resource","resource":{"uri":"x://a"}}},{"content":{"type":"resource_link","uri":"x://b"}}]}}`,
			`{"jsonrpc":"2.0","id":ID,"result":{"messages":[{"role":"user","content":{"type":"resource","resource":{"uri":"` +
				proxied("x://a") + `"}}},{"content":{"type":"resource_link","uri":"` + proxied("x://b") + `"}}]}}`},
		{"values that are not strings", `{"jsonrpc":"2.0","id":ID,"result":{"contents":[{"uri":1},{"uri":null},` +
			`{"uri":{"uri":"x://a"}}],"content":{"uri":"x://a"}}}`, ""},
		{"a result that is not an object", `{"jsonrpc":"2.0","id":ID,"result":[{"uri":"x://a"}]}`, ""},
		{"surrounding white space", "\n{\"jsonrpc\":\"2.0\",\r\n \"id\":ID,\n\t\"result\":{\"a\" : 1}}\n", ""},
	}
	for _, stream := range []bool{false, true} {
		for _, tt := range tests {
			t.Run(fmt.Sprint(tt.name, ", streamed: ", stream), func(t *testing.T) {
				p := legacyPeer("a")
				p.handle("tools/call", func(w http.ResponseWriter, a *incoming) {
					answer := strings.ReplaceAll(tt.answer, "ID", a.id())
					if !stream {
						a.write(w, 200, answer)
						return
					}
					a.send(w, `{"jsonrpc":"2.0","method":"notifications/message"}`)
					a.send(w, strings.NewReplacer("\r\n", "\ndata: ", "\n", "\ndata: ").Replace(answer))
				})
				u := newGateway(t, nil, p).legacy(t)
				s := u.call("a::x")
				want := tt.want
				if want == "" {
					want = tt.answer
				}
				want = strings.ReplaceAll(want, "ID", fmt.Sprint(u.last.Load()))
				got := s.answer
				if stream {
					got, want = strings.Join(strings.Fields(got), " "), strings.Join(strings.Fields(want), " ")
				}
				if got != want {
					t.Errorf("got  %q\nwant %q", got, want)
				}
			})
		}
	}
}

// With one server and no prefix, messages pass unchanged.
func TestTransparentMessagesAreUnchanged(t *testing.T) {
	configure := func(c *Config) { c.Naming = mcp.Naming{} }
	methods := map[string]string{
		"tools/call":            `{"name":"a::x","arguments":{` + oddJSON + `}}`,
		"prompts/get":           `{"name":"p","arguments":{` + oddJSON + `}}`,
		"resources/read":        `{"uri":"x:\/\/a",` + oddJSON + `}`,
		"resources/subscribe":   `{"uri":"x:\/\/a",` + oddJSON + `}`,
		"completion/complete":   `{"ref":{"type":"ref/prompt","name":"p"},` + oddJSON + `}`,
		"tasks/get":             `{"taskId":"\u0074",` + oddJSON + `}`,
		"tasks/result":          `{"taskId":"t"}`,
		"vendor/method":         `{` + oddJSON + `}`,
		"resources/unsubscribe": `{"uri":"x://a"}`,
	}
	result := `{` + oddJSON + `,"contents":[{"uri":"x://a"}],"content":[{"uri":"x://a"}],"task":{"taskId":"t"}}`
	note := `{"method":"notifications/resources/updated","jsonrpc":"2.0","params":{"uri":"x:\/\/a",` + oddJSON + `}}`
	question := `{"jsonrpc":"2.0","method":"sampling\/createMessage","id":1.0e2,"params":{` + oddJSON + `}}`
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		for method, params := range methods {
			if era == mcp.Modern && strings.HasSuffix(method, "subscribe") {
				continue
			}
			t.Run(fmt.Sprint(method, ", era ", era), func(t *testing.T) {
				p := newPeer("a")
				p.eras[era] = true
				p.handle(method, func(w http.ResponseWriter, a *incoming) {
					a.send(w, note)
					if era == mcp.Legacy {
						a.send(w, question)
					}
					a.finish(w, result)
				})
				u := newGateway(t, configure, p).user(t, era)
				if era == mcp.Legacy {
					u.connect()
				}
				body := u.request("9007199254740993", method, params)
				s := u.post(body)
				if got := p.waitFor(t, method, 1).body; got != body {
					t.Errorf("the server got  %s\nwant            %s", got, body)
				}
				want := []string{note, question, `{"jsonrpc":"2.0","id":9007199254740993,"result":` + result + `}`}
				if era == mcp.Modern {
					want = append(want[:1], want[2])
				}
				if len(s.events) != len(want) {
					t.Fatalf("got %s", s.body)
				}
				for i, e := range s.events {
					if e.data != want[i] {
						t.Errorf("the client got %s\nwant           %s", e.data, want[i])
					}
				}
			})
		}
	}
	t.Run("responses, notifications and lists", func(t *testing.T) {
		item := `{"description":"d\u00e9","name":"a::x" , ` + oddJSON + `}`
		p := legacyPeer("a").hasList("tools/list", "tools", item)
		u := newGateway(t, configure, p).legacy(t)
		for _, body := range []string{
			`{"jsonrpc":"2.0","id":1.0e2,"result":{` + oddJSON + `}}`,
			`{"jsonrpc":"2.0","error":{"code":-1,"message":"m"},"id":"\u0061"}`,
			`{"jsonrpc":"2.0","method":"notifications/vendor","params":{` + oddJSON + `}}`,
			`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"\u0061",` + oddJSON + `}}`,
			`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`,
		} {
			if s := u.post(body); s.status != http.StatusAccepted {
				t.Errorf("got %+v", s)
			}
			p.mu.Lock()
			got := p.arrivals[len(p.arrivals)-1].body
			p.mu.Unlock()
			if got != body {
				t.Errorf("got  %s\nwant %s", got, body)
			}
		}
		if s := u.ask("tools/list", ""); string(s.Result) != `{"tools":[`+item+`]}` {
			t.Errorf("got %s", s.Result)
		}
	})
}

// Except for names, the descriptors of servers are unchanged (A7).
func TestDescriptorsAreUnchanged(t *testing.T) {
	before, after := `{"description":"d\u00e9", "name" : `, ` ,`+oddJSON+
		`,"inputSchema":{"name":"stays","properties":{"name":{"type":"string"}}}}`
	p := legacyPeer("a").hasList("tools/list", "tools", "\n"+before+`"\u0078"`+after+"\n", before+`"y::z"`+after,
		`{"noname":1}`, `1`, `null`, before+`"x"`+after).
		hasList("resources/list", "resources", `{"name":"n" ,"uri":"x:\/\/a",`+oddJSON+`}`)
	u := newGateway(t, nil, p).legacy(t)
	want := `{"tools":[` + before + `"a::x"` + after + `,` + before + `"a::y::z"` + after + `]}`
	if s := u.ask("tools/list", ""); string(s.Result) != want {
		t.Errorf("got  %s\nwant %s", s.Result, want)
	}
	want = `{"resources":[{"name":"n" ,"uri":"` + mcp.ResourceURI("a", "x://a") + `",` + oddJSON + `}]}`
	if s := u.ask("resources/list", ""); string(s.Result) != want {
		t.Errorf("got  %s\nwant %s", s.Result, want)
	}
}

// Servers do not receive data that is meant for the gateway (A21, A31, R21).
func TestServersDoNotGetDataOfTheGateway(t *testing.T) {
	both(t, nil, func() []*fakeServer {
		return []*fakeServer{newPeer("a").hasTools("x", "y"), newPeer("b").hasTools("x")}
	}, func(t *testing.T, u *testClient, peers []*fakeServer) {
		const ours = `"proxy":{"authToken":"secret"}`
		for _, method := range []string{"tools/list", "prompts/list", "resources/list", "resources/templates/list"} {
			s := u.ask(method, `{"limit":1,"cursor":"`+mcp.Cursor(1)+`",`+ours+`}`)
			if s.code() != 0 {
				t.Errorf("%s: got %s", method, s.body)
			}
		}
		u.ask("tools/call", `{"name":"a::x",`+ours+`}`)
		u.ask("prompts/get", `{`+ours+`,"name":"a::x"}`)
		u.ask("resources/read", `{`+ours+`,"uri":"`+mcp.ResourceURI("a", "x://a")+`"}`)
		u.ask("completion/complete", `{`+ours+`,"ref":{"name":"a::p"}}`)
		if u.era == mcp.Legacy {
			u.ask("initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"n","version":"1"},`+
				ours+`}`)
			u.ask("resources/subscribe", `{`+ours+`,"uri":"`+mcp.ResourceURI("a", "x://a")+`"}`)
			u.ask("logging/setLevel", `{`+ours+`,"level":"info"}`)
			u.notify("notifications/vendor", `{`+ours+`,"a":1}`)
			u.notify("notifications/cancelled", `{`+ours+`,"requestId":1}`)
			u.notify("notifications/progress", `{`+ours+`,"progressToken":"a::1"}`)
		}
		for _, p := range peers {
			p.mu.Lock()
			for _, a := range p.arrivals {
				if strings.Contains(a.body, "proxy") || strings.Contains(a.body, "secret") || strings.Contains(a.body, "limit") ||
					a.message.Has(jsonrpc.Cursor) {
					t.Errorf("%s got %s", p.name, a.body)
				}
			}
			p.mu.Unlock()
		}
		if peers[0].count("tools/call") != 1 || peers[0].count("prompts/get") != 1 || peers[0].count("resources/read") != 1 {
			t.Error("not all requests reached the servers")
		}
	})
}

// Notifications and requests of servers carry the name of the server (A23, A26) and ids that
// identify it.
func TestMessagesOfServersCarryTheirName(t *testing.T) {
	tests := []struct{ name, message, want string }{
		{"with params", `{"jsonrpc":"2.0","method":"notifications/message","params":{` + oddJSON + `}}`,
			`"proxy":{"server":"a"}`},
		{"without params", `{"jsonrpc":"2.0","method":"notifications/message"}`, `"params":{"proxy":{"server":"a"}}`},
		{"with empty params", `{"jsonrpc":"2.0","method":"notifications/message","params":{ }}`, `"proxy":{"server":"a"}`},
		{"a request without params", `{"jsonrpc":"2.0","id":1,"method":"roots/list"}`, `"params":{"proxy":{"server":"a"}}`},
		{"updates", `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"x://a"}}`,
			`"uri":"` + mcp.ResourceURI("a", "x://a") + `"`},
		{"cancellations", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`,
			`"requestId":"a::7"`},
		{"progress", `{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{"_meta":{"progressToken":"t"}}}`,
			`"progressToken":"a::\"t\""`},
		{"an unknown method", `{"jsonrpc":"2.0","method":"vendor/x","params":{"uri":"x://a"}}`, `"uri":"x://a"`},
	}
	p := legacyPeer("a")
	u := newGateway(t, nil, legacyPeer("b"), p).legacy(t)
	for _, tt := range tests {
		p.handle("tools/call", func(w http.ResponseWriter, a *incoming) {
			a.send(w, tt.message)
			a.finish(w, "{}")
		})
		s := u.call("a::x")
		if len(s.events) != 2 || !strings.Contains(s.events[0].data, tt.want) ||
			!strings.Contains(s.events[0].data, `"proxy":{"server":"a"}`) {
			t.Errorf("%s: got %s", tt.name, s.body)
		} else if m := s.events[0].parts(); m.Text(jsonrpc.Method) == "" {
			t.Errorf("%s: got %s", tt.name, s.body)
		}
		if strings.Contains(tt.message, oddJSON) && !strings.Contains(s.body, oddJSON) {
			t.Errorf("%s: got %s", tt.name, s.body)
		}
	}
}

// Servers do not receive headers that are meant for the gateway.
func TestHeadersThatServersGet(t *testing.T) {
	p := legacyPeer("a")
	g := newGateway(t, nil, p)
	u := g.user(t, mcp.Legacy)
	u.header = http.Header{"Authorization": {"Bearer x"}, "Last-Event-Id": {u.event("call:MQ/a/1")},
		"Accept-Encoding": {"gzip"}}
	u.connect()
	u.call("a::x")
	call := p.waitFor(t, "tools/call", 1)
	for name, want := range map[string]string{
		"Mcp-Session-Id": "a-session-1", "Mcp-Protocol-Version": mcp.Latest, "Authorization": "Bearer x", "Last-Event-Id": "",
		"Accept-Encoding": "",
		"Accept":          "application/json, text/event-stream", "Content-Type": "application/json",
		"Content-Length": fmt.Sprint(len(call.body)),
	} {
		if got := call.Header.Get(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if call.ContentLength != int64(len(call.body)) {
		t.Errorf("got %d", call.ContentLength)
	}
	if again, err := call.GetBody(); err != nil {
		t.Error(err)
	} else if text, _ := io.ReadAll(again); string(text) != call.body {
		t.Errorf("got %s", text)
	}
	if got := p.requests("initialize")[0].Header.Get("Mcp-Session-Id"); got != "" {
		t.Errorf("got %q", got)
	}
}
