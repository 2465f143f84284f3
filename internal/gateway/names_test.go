package gateway

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

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

// both runs a test with clients of each era, for servers of each era.
func both(t *testing.T, configure func(*Config), make func() []*fakeServer,
	test func(t *testing.T, u *testClient, peers []*fakeServer)) {
	for _, client := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		for _, server := range []mcp.Era{mcp.Legacy, mcp.Modern} {
			t.Run(fmt.Sprint("client of era ", client, ", server of ", server), func(t *testing.T) {
				peers := make()
				for _, p := range peers {
					p.eras[server] = true
				}
				u := newGateway(t, configure, peers...).user(t, client)
				if client == mcp.Legacy {
					u.connect()
				}
				test(t, u, peers)
			})
		}
	}
}

func TestCallsReachTheServerThatIsNamed(t *testing.T) {
	tests := []struct{ name, server, tool string }{
		{"a::x", "a", "x"},
		{"b::x", "b", "x"},
		{"a::b::x", "a", "b::x"},
		{"a::", "a", ""},
		{"a::é \"q\" \\", "a", `é "q" \`},
		{"alias::x", "a", "x"},
		{"ab::x", "ab", "x"},
		{"a::x::", "a", "x::"},
	}
	configure := func(c *Config) { c.Servers[0].Aliases = []string{"alias"} }
	both(t, configure, func() []*fakeServer { return []*fakeServer{newPeer("a"), newPeer("b"), newPeer("ab")} },
		func(t *testing.T, u *testClient, peers []*fakeServer) {
			for _, tt := range tests {
				before := map[string]int{}
				for _, p := range peers {
					before[p.name] = p.count("tools/call")
				}
				s := u.call(tt.name)
				for _, p := range peers {
					want := before[p.name]
					if p.name == tt.server {
						want++
					}
					if got := p.count("tools/call"); got != want && tt.tool != "" {
						t.Errorf("%s: %s received %d calls, want %d: %+v", tt.name, p.name, got, want, s)
					}
					if p.name == tt.server && tt.tool != "" {
						calls := p.requests("tools/call")
						if last := calls[len(calls)-1]; last.message.Text(jsonrpc.Name) != tt.tool {
							t.Errorf("%s: got %s", tt.name, last.body)
						}
					}
				}
			}
		})
}

func TestUnknownNames(t *testing.T) {
	bad := []string{`"x"`, `"c::x"`, `"::x"`, `""`, `":x"`, `"a:x"`, `"a__x"`, `"A::x"`, `" a::x"`}
	both(t, nil, func() []*fakeServer { return []*fakeServer{newPeer("a")} },
		func(t *testing.T, u *testClient, peers []*fakeServer) {
			for _, name := range bad {
				for _, method := range []string{"tools/call", "prompts/get"} {
					if u.era == mcp.Modern && name == `""` {
						continue // cannot be sent in headers
					}
					if s := u.ask(method, `{"name":`+name+`}`); s.code() != jsonrpc.CodeInvalidParams || s.status != 200 {
						t.Errorf("%s of %s: got %d %s (A9)", method, name, s.status, s.body)
					}
				}
			}
			for _, method := range []string{"tools/call", "prompts/get"} {
				if peers[0].count(method) != 0 {
					t.Errorf("%s reached the server", method)
				}
			}
			if u.era == mcp.Legacy {
				for _, params := range []string{"", `{}`, `{"name":1}`, `{"name":null}`, `{"name":{}}`, `[]`} {
					if s := u.ask("tools/call", params); s.code() != jsonrpc.CodeInvalidParams {
						t.Errorf("%s: got %d %s (A9)", params, s.status, s.body)
					}
				}
			}
		})
}

func TestSeparators(t *testing.T) {
	configure := func(c *Config) { c.Naming = mcp.Naming{Separator: "__", Longest: 64} }
	both(t, configure, func() []*fakeServer {
		return []*fakeServer{newPeer("a").hasTools("x", "y__z", "y::z"), newPeer("a_b").hasTools("x")}
	}, func(t *testing.T, u *testClient, peers []*fakeServer) {
		want := []string{"a__x", "a__y__z", "a__y::z", "a_b__x"}
		if got := namesIn(t, u.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		for name, tool := range map[string]string{"a__x": "x", "a::x": "x", "a__y__z": "y__z", "a::y__z": "y__z",
			"a__y::z": "y::z", "a::y::z": "y::z"} {
			n := peers[0].count("tools/call")
			s := u.call(name)
			calls := peers[0].requests("tools/call")
			if len(calls) != n+1 || calls[n].message.Text(jsonrpc.Name) != tool {
				t.Errorf("%s: %+v", name, s)
			}
		}
	})
}

func TestShortenedNames(t *testing.T) {
	long := strings.Repeat("tool-", 20)
	originals := []string{long + "1", long + "2", long, "short", strings.Repeat("é", 60)}
	configure := func(c *Config) {
		c.Naming = mcp.Naming{Separator: "__", Longest: 64}
		c.Servers[0].Aliases = []string{"c"}
	}
	both(t, configure, func() []*fakeServer {
		prompts := make([]string, len(originals))
		for i, name := range originals {
			prompts[i] = `{"name":` + string(jsonrpc.Quote(name)) + `}`
		}
		a := newPeer("a").hasTools(originals...).hasList("prompts/list", "prompts", prompts...)
		a.handle("prompts/get", func(w http.ResponseWriter, a *incoming) { a.reply(w, `{"messages":[]}`) })
		return []*fakeServer{a, newPeer("b").hasTools(originals...)}
	}, func(t *testing.T, u *testClient, peers []*fakeServer) {
		shown := namesIn(t, u.ask("tools/list", ""), "tools", "name")
		seen := map[string]bool{}
		for i, name := range shown {
			if len(name) > 64 || seen[name] {
				t.Errorf("%s has %d bytes, is repeated: %t", name, len(name), seen[name])
			}
			seen[name] = true
			p := peers[i/len(originals)]
			n := p.count("tools/call")
			spelled := []string{name, strings.Replace(name, "__", "::", 1)}
			if p.name == "a" {
				spelled = append(spelled, strings.Replace(name, "a__", "c__", 1))
			}
			for _, name := range spelled {
				s := u.call(name)
				calls := p.requests("tools/call")
				if len(calls) != n+1 || calls[n].message.Text(jsonrpc.Name) != originals[i%len(originals)] {
					t.Errorf("%s is not %s: %s", name, originals[i%len(originals)], s.body)
				}
				n = len(calls)
			}
		}
		for i, name := range namesIn(t, u.ask("prompts/list", ""), "prompts", "name") {
			u.ask("prompts/get", `{"name":`+string(jsonrpc.Quote(name))+`}`)
			if got := peers[0].requests("prompts/get"); len(got) != i+1 || got[i].message.Text(jsonrpc.Name) != originals[i] {
				t.Errorf("prompt %s is not %s", name, originals[i])
			}
		}
	})
}

// A client can call a tool from a list that it received before the gateway was started.
func TestShortenedNamesWithoutAList(t *testing.T) {
	name := strings.Repeat("x", 100)
	naming := mcp.Naming{Separator: "__", Longest: 64}
	p := legacyPeer("a").hasTools("other", name)
	u := newGateway(t, func(c *Config) { c.Naming = naming }, p).legacy(t)
	u.call(naming.Join("a", name))
	if call := p.waitFor(t, "tools/call", 1); call.message.Text(jsonrpc.Name) != name {
		t.Errorf("got %s", call.body)
	}
	s := u.call("a__" + strings.Repeat("y", 50) + "_abcdefghij")
	if p.count("tools/call") > 2 {
		t.Errorf("got %+v", s)
	}
}

// A server cannot offer a tool under the shortened name of another tool.
func TestNamesThatLookShortened(t *testing.T) {
	naming := mcp.Naming{Separator: "__", Longest: 64}
	name := strings.Repeat("x", 100)
	lookalike := strings.TrimPrefix(naming.Join("a", name), "a__")
	p := legacyPeer("a").hasTools(lookalike, name)
	u := newGateway(t, func(c *Config) { c.Naming = naming }, p).legacy(t)
	for i, shown := range namesIn(t, u.ask("tools/list", ""), "tools", "name") {
		u.call(shown)
		if call, want := p.waitFor(t, "tools/call", i+1), []string{lookalike,
			name}[i]; call.message.Text(jsonrpc.Name) != want {
			t.Errorf("%s is %s, want %s", shown, call.message.Text(jsonrpc.Name), want)
		}
	}
}

func TestHiddenItems(t *testing.T) {
	configure := func(c *Config) { c.Servers[0].Expose = []string{"read_*", "*_x"} }
	both(t, configure, func() []*fakeServer {
		return []*fakeServer{newPeer("a").hasTools("read_file", "write_file", "delete_x", "read", "Read_file"),
			newPeer("b").hasTools("write_file")}
	}, func(t *testing.T, u *testClient, peers []*fakeServer) {
		want := []string{"a::read_file", "a::delete_x", "b::write_file"}
		if got := namesIn(t, u.ask("tools/list", ""), "tools", "name"); !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		for _, name := range []string{"a::write_file", "a::read", "a::Read_file"} {
			if s := u.call(name); s.code() != jsonrpc.CodeInvalidParams {
				t.Errorf("%s: %s", name, s.body)
			}
		}
		if n := peers[0].count("tools/call"); n != 0 {
			t.Errorf("%d calls reached servers", n)
		}
		for _, name := range want {
			if s := u.call(name); s.code() != 0 {
				t.Errorf("%s: %s", name, s.body)
			}
		}
	})
}

// A hidden tool cannot be called under its shortened name either.
func TestLongNamesThatAreNotExposed(t *testing.T) {
	naming := mcp.Naming{Separator: "__", Longest: 64}
	hidden, shown := "delete_"+strings.Repeat("x", 100), "read_"+strings.Repeat("x", 100)
	p := legacyPeer("a").hasTools(hidden, shown)
	u := newGateway(t, func(c *Config) { c.Naming, c.Servers[0].Expose = naming, []string{"read_*"} }, p).legacy(t)
	if s := u.call(naming.Join("a", hidden)); s.code() == 0 || p.count("tools/call") != 0 {
		t.Errorf("got %s", s.body)
	}
	if s := u.call(naming.Join("a", shown)); s.code() != 0 {
		t.Errorf("got %s", s.body)
	}
}

func TestResourcesAreReadWhereTheyAre(t *testing.T) {
	both(t, nil, func() []*fakeServer {
		a := newPeer("a").hasList("resources/list", "resources", `{"uri":"x://é?a=b&c","name":"é"}`).
			hasList("resources/templates/list", "resourceTemplates", `{"uriTemplate":"x://{a}/{b*}","name":"t"}`)
		a.handle("resources/read", func(w http.ResponseWriter, a *incoming) {
			uri := string(a.message.Literal(jsonrpc.URI))
			a.reply(w, `{"contents":[{"uri":`+uri+`,"text":"t"},{"uri":"x://other","text":"x://other"}]}`)
		})
		return []*fakeServer{a, newPeer("b")}
	}, func(t *testing.T, u *testClient, peers []*fakeServer) {
		uri := namesIn(t, u.ask("resources/list", ""), "resources", "uri")
		if want := mcp.ResourceURI("a", "x://é?a=b&c"); len(uri) != 1 || uri[0] != want {
			t.Fatalf("got %v, want %s (A11)", uri, want)
		}
		template := namesIn(t, u.ask("resources/templates/list", ""), "resourceTemplates", "uriTemplate")
		if len(template) != 1 || !strings.HasSuffix(template[0], "/x://{a}/{b*}") {
			t.Fatalf("got %v (A66)", template)
		}
		place := []byte(`{"server":"a","uri":"x://é?a=b&c"}`)
		for shown, want := range map[string]string{
			uri[0]: "x://é?a=b&c",
			"proxy://resource/" + base64.StdEncoding.EncodeToString(place):      "x://é?a=b&c",
			"proxy://resource/" + base64.URLEncoding.EncodeToString(place):      "x://é?a=b&c",
			"proxy://resource/" + base64.RawStdEncoding.EncodeToString(place):   "x://é?a=b&c",
			strings.NewReplacer("{a}", "1", "{b*}", "2/3").Replace(template[0]): "x://1/2/3",
			mcp.ResourceURI("a", "never://listed"):                              "never://listed",
		} {
			n := peers[0].count("resources/read")
			s := u.ask("resources/read", `{"uri":`+string(jsonrpc.Quote(shown))+`}`)
			calls := peers[0].requests("resources/read")
			if len(calls) != n+1 || calls[n].message.Text(jsonrpc.URI) != want {
				t.Errorf("%s: got %s (A12, R20)", shown, s.body)
				continue
			}
			if !strings.Contains(s.answer, `"uri":"`+mcp.ResourceURI("a", want)+`"`) ||
				!strings.Contains(s.answer, `"uri":"`+mcp.ResourceURI("a", "x://other")+`","text":"x://other"`) {
				t.Errorf("%s: got %s (A12)", shown, s.answer)
			}
		}
		for _, bad := range []string{"x://é", "proxy://resource/", "proxy://resource/!!", "proxy://resource/e30",
			mcp.ResourceURI("c", "x://a"), "proxy://template/c/x", "proxy://template/a", "http://a"} {
			if s := u.ask("resources/read", `{"uri":`+string(jsonrpc.Quote(bad))+`}`); s.code() != jsonrpc.CodeInvalidParams ||
				s.Error.Data.URI != bad {
				t.Errorf("%s: got %s (A13)", bad, s.body)
			}
		}
	})
}

func TestCompletionsReachTheServerOfTheirReference(t *testing.T) {
	both(t, nil, func() []*fakeServer {
		complete := func(w http.ResponseWriter, a *incoming) { a.reply(w, `{"completion":{"values":["v"]}}`) }
		return []*fakeServer{newPeer("a").handle("completion/complete", complete),
			newPeer("b").handle("completion/complete", complete)}
	}, func(t *testing.T, u *testClient, peers []*fakeServer) {
		for ref, want := range map[string]string{
			`{"type":"ref/prompt","name":"b::p"}`: `{"type":"ref/prompt",` +
				`"name":"p"}`,
			`{"type":"ref/resource","uri":"` + mcp.TemplateURI("b", "x://{a}") +
				`"}`: `{"type":"ref/resource","uri":"x://{a}"}`,
			`{"type":"ref/resource","uri":"` + mcp.ResourceURI("b", "x://r") +
				`", "more":[1.0]}`: `{"type":"ref/resource","uri":"x://r", "more":[1.0]}`,
		} {
			n := peers[1].count("completion/complete")
			s := u.ask("completion/complete", `{"ref":`+ref+`,"argument":{"name":"a","value":"v"}}`)
			calls := peers[1].requests("completion/complete")
			if len(calls) != n+1 || !strings.Contains(calls[n].body, `"ref":`+want+`,"argument":{"name":"a","value":"v"}`) {
				t.Errorf("%s: got %s (A45)", ref, s.body)
			}
		}
		for _, ref := range []string{`{}`, `{"name":"p"}`, `{"name":1}`, `{"uri":"x://a"}`, `null`} {
			if s := u.ask("completion/complete", `{"ref":`+ref+`}`); s.code() != jsonrpc.CodeInvalidParams {
				t.Errorf("%s: got %s", ref, s.body)
			}
		}
		if n := peers[0].count("completion/complete"); n != 0 {
			t.Errorf("the other server got %d requests", n)
		}
	})
}

func TestTasksReachTheirServer(t *testing.T) {
	p := legacyPeer("a")
	p.capabilities = `{"tools":{},"tasks":{}}`
	p.hasList("tasks/list", "tasks", `{"taskId":"t::1","status":"working"}`)
	p.handle("tools/call", func(w http.ResponseWriter,
		a *incoming) {
		a.reply(w, `{"task":{"taskId":"t::1","status":"working"}}`)
	})
	p.handle("tasks/get", func(w http.ResponseWriter, a *incoming) { a.reply(w, `{"taskId":"t::1","status":"working"}`) })
	u := newGateway(t, nil, legacyPeer("b"), p).legacy(t)
	if s := u.call("a::x"); string(s.Result) != `{"task":{"taskId":"a::t::1","status":"working"}}` {
		t.Errorf("got %s", s.body)
	}
	if got := namesIn(t, u.ask("tasks/list", ""), "tasks", "taskId"); len(got) != 1 || got[0] != "a::t::1" {
		t.Errorf("got %v", got)
	}
	if s := u.ask("tasks/get", `{"taskId":"a::t::1"}`); string(s.Result) != `{"taskId":"a::t::1","status":"working"}` {
		t.Errorf("got %s", s.body)
	}
	if call := p.waitFor(t, "tasks/get", 1); call.message.Text(jsonrpc.TaskID) != "t::1" {
		t.Errorf("got %s", call.body)
	}
	if s := u.ask("tasks/get", `{"taskId":"t"}`); s.code() != jsonrpc.CodeInvalidParams {
		t.Errorf("got %s", s.body)
	}
}

func TestLocalResponses(t *testing.T) {
	a, b := legacyPeer("a"), legacyPeer("b")
	b.capabilities = `{"tools":{},"prompts":{}}`
	u := newGateway(t, nil, a, b).legacy(t)
	if s := u.ask("ping", ""); string(s.Result) != "{}" {
		t.Errorf("got %s (A16)", s.body)
	}
	if s := u.ask("no/such", ""); s.code() != jsonrpc.CodeMethodNotFound || s.status != 200 {
		t.Errorf("got %d %s (A17)", s.status, s.body)
	}
	if s := u.ask("logging/setLevel", `{"level":"warning"}`); string(s.Result) != "{}" {
		t.Errorf("got %s (A15)", s.body)
	}
	if a.count("logging/setLevel") != 1 || b.count("logging/setLevel") != 0 {
		t.Errorf("got %d and %d (A15)", a.count("logging/setLevel"), b.count("logging/setLevel"))
	}
	for _, params := range []string{"", `{}`, `{"level":"loud"}`, `{"level":1}`} {
		if s := u.ask("logging/setLevel", params); s.code() != jsonrpc.CodeInvalidParams {
			t.Errorf("%s: got %s (A15)", params, s.body)
		}
	}
	m := newGateway(t, nil, modernPeer("a")).modern(t)
	for _, method := range []string{"ping", "initialize", "logging/setLevel", "resources/subscribe", "no/such"} {
		if s := m.ask(method, `{"protocolVersion":"2025-11-25"}`); s.code() != jsonrpc.CodeMethodNotFound || s.status != 404 {
			t.Errorf("%s: got %d %s", method, s.status, s.body)
		}
	}
}

func TestModernHeaders(t *testing.T) {
	p := modernPeer("a")
	g := newGateway(t, nil, p)
	u := g.modern(t)
	body := u.request("1", "tools/call", `{"name":"a::é"}`)
	if s := u.post(body); s.code() != 0 {
		t.Errorf("got %s", s.body)
	}
	if got := p.waitFor(t, "tools/call", 1).Header.Get("Mcp-Name"); got != mcp.HeaderText("é") {
		t.Errorf("got %q", got)
	}
	for name, change := range map[string]func(http.Header){
		"another name":    func(h http.Header) { h.Set("Mcp-Name", "a::x") },
		"the plain name":  func(h http.Header) { h.Set("Mcp-Name", mcp.HeaderText("é")) },
		"no name":         func(h http.Header) { h.Del("Mcp-Name") },
		"another method":  func(h http.Header) { h.Set("Mcp-Method", "tools/list") },
		"another version": func(h http.Header) { h.Set("Mcp-Protocol-Version", "2025-11-25") },
	} {
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, g.url, strings.NewReader(body))
		var m jsonrpc.Message
		_ = m.Read([]byte(body))
		mcp.SetModern(r.Header, &m, mcp.Stateless)
		change(r.Header)
		response, err := g.transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		var answer bytes.Buffer
		_, _ = answer.ReadFrom(response.Body)
		response.Body.Close()
		if response.StatusCode != 400 || !strings.Contains(answer.String(), "-32020") {
			t.Errorf("%s: got %d %s", name, response.StatusCode, answer.String())
		}
	}
	if n := p.count("tools/call"); n != 1 {
		t.Errorf("%d calls reached servers", n)
	}
}

func TestServersGetRequestsOfTheirEra(t *testing.T) {
	a, b, c := legacyPeer("a"), modernPeer("b"), newPeer("c")
	c.eras = [2]bool{true, true}
	g := newGateway(t, nil, a, b, c)
	for era, u := range map[mcp.Era]*testClient{mcp.Legacy: g.legacy(t), mcp.Modern: g.modern(t)} {
		for _, p := range []*fakeServer{a, b, c} {
			n := p.count("tools/call")
			if s := u.call(p.name + "::x"); s.code() != 0 || !strings.Contains(s.answer, `"text":"`+p.name+`"`) {
				t.Errorf("client of era %d, server %s: %+v", era, p.name, s)
				continue
			}
			call := p.requests("tools/call")[n]
			modern := call.Header.Get(mcp.VersionHeader) == mcp.Stateless
			if want := p == b || p == c && era == mcp.Modern; modern != want {
				t.Errorf("client of era %d, server %s: modern requests: %t", era, p.name, modern)
			}
			if !modern && (call.session == "" || call.Header.Get("Mcp-Method") != "") {
				t.Errorf("got %v", call.Header)
			}
			if modern && call.session != "" {
				t.Errorf("got %v", call.Header)
			}
		}
	}
}

// An unreachable server does not reveal its era.
func TestUnreachableServersGetTheEraOfTheClient(t *testing.T) {
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		p := newPeer("a")
		p.eras = [2]bool{true, true}
		p.down.Store(true)
		a := newBareGateway(nil, p)
		s := a.servers["a"]
		connect := func() *client {
			c := newClient(era, mcp.Latest, "", "", readIntroduction([]byte(`{"protocolVersion":"2025-11-25"}`)))
			r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://a/", http.NoBody)
			_ = c.linkTo(s).open(scope{ctx: t.Context(), g: a, r: r})
			return c
		}
		connect()
		p.down.Store(false)
		s.NoteAttempt(time.Now(), nil)
		if got := connect().linkTo(s).session.current().Era; got != era {
			t.Errorf("client of era %d: got %d", era, got)
		}
	}
}
