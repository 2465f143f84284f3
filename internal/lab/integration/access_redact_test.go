package integration

import (
	"bufio"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// Keys that must be redacted for eve.
const (
	keyPattern = `redact "sk-[a-z0-9]{8,}"`
	aKey       = "sk-abcdef0123456789"
	redacted   = "[redacted]"
)

// withRedaction returns the lines of a gateway that redacts keys and passwords for eve.
func withRedaction(more ...string) []string {
	return append(rulesForEve(keyPattern, "redact_fields password apiKey"), more...)
}

// A redaction is a response of a server, and what must remain of it.
type redaction struct {
	name, tool string
	response   string // members of the response
	want       []string
	absent     []string
}

// redactions are responses with keys in all places (A56).
var redactions = []redaction{
	{"text", "text", `"result":{"content":[{"type":"text","text":"the key is ` + aKey + `, and again ` + aKey + `!"}]}`,
		[]string{"the key is [redacted], and again [redacted]!"}, []string{aKey}},
	{"a text with escapes", "spelled", `"result":{"content":[{"type":"text",` +
		`"text":"é\u0073k\u002dabcdef\u0030123456789\n"}]}`,
		[]string{redacted}, []string{"abcdef", `abcdef\u0030`}},
	{"nested values", "nested", `"result":{"content":[{"type":"text","text":"x"}],"deep":{"er":[[{"a":"` + aKey +
		`"}],"` + aKey + `",1.0,null]}}`,
		[]string{`[[{"a":"[redacted]"}],"[redacted]",1.0,null]`}, []string{aKey}},
	{"structured content", "structured", `"result":{"content":[],"structuredContent":{"key":"` + aKey +
		`","n":12345678901234567890}}`,
		[]string{`"key":"[redacted]"`, `12345678901234567890`}, []string{aKey}},
	{"keys", "keys", `"result":{"content":[],"structuredContent":{"` + aKey +
		`":{"the \u0073k-abcdef0123456789 of bob":1},"kept":2}}`,
		[]string{`{"[redacted]":{"the [redacted] 2 of bob":1},"kept":2}`}, []string{aKey, "abcdef"}},
	{"a resource in a result", "embedded", `"result":{"content":[{"type":"resource","resource":{"uri":"file:///x",` +
		`"text":"` + aKey + `"}}]}`,
		[]string{redacted}, []string{aKey}},
	{"an error of a tool", "failing", `"result":{"isError":true,"content":[{"type":"text","text":"bad key ` + aKey +
		`"}]}`,
		[]string{"bad key [redacted]", `"isError":true`}, []string{aKey}},
	{"the message of an error", "message", `"error":{"code":-32055,"message":"bad key ` + aKey + `"}`,
		[]string{`"bad key [redacted]"`, "-32055"}, []string{aKey}},
	{"the data of an error", "data", `"error":{"code":-32055,"message":"no","data":{"key":"` + aKey + `","list":["` +
		aKey + `"]}}`,
		[]string{`"key":"[redacted]"`, `["[redacted]"]`, "-32055"}, []string{aKey}},
	{"fields by name", "fields", `"result":{"content":[],"structuredContent":{"user":"bob","password":"hunter2",` +
		`"nested":[{"apiKey":{"a":["private"]}}],"passwords":"kept"}}`,
		[]string{`"user":"bob"`, `"password":"[redacted]"`, `"apiKey":"[redacted]"`, `"passwords":"kept"`},
		[]string{"hunter2", "private"}},
	{"fields in a JSON text", "json", `"result":{"content":[{"type":"text","text":` +
		quote(`{"user":"bob","password":"hunter2"}`) + `}]}`,
		[]string{"bob", redacted}, []string{"hunter2"}},
	{"a prompt", "prompts/get", `"result":{"messages":[{"role":"user","content":{"type":"text","text":"use ` + aKey +
		`"}}]}`,
		[]string{"use [redacted]"}, []string{aKey}},
	{"a resource", "resources/read", `"result":{"contents":[{"uri":"file:///x","text":"` + aKey + `"}]}`,
		[]string{redacted}, []string{aKey}},
	{"a completion", "completion/complete", `"result":{"completion":{"values":["` + aKey + `"]}}`,
		[]string{redacted}, []string{aKey}},
	{"a result without a key", "clean", `"result":{"content":[{"type":"text","text":"sk-short \u00e9 1.0"}],"n":1.50}`,
		[]string{`sk-short \u00e9 1.0`, `1.50`}, []string{redacted}},
}

// request returns the method and params that make the server respond so.
func (r redaction) request(prefix string) (method, params string) {
	switch r.tool {
	case "prompts/get":
		return r.tool, `{"name":"` + prefix + `greet"}`
	case "resources/read":
		uri := "file:///x"
		if prefix != "" {
			uri = proxiedURI(strings.TrimSuffix(prefix, "__"), uri)
		}
		return r.tool, `{"uri":` + quote(uri) + `}`
	case "completion/complete":
		return r.tool, `{"ref":{"type":"ref/prompt","name":"` + prefix + `greet"},"argument":{"name":"x","value":"y"}}`
	}
	return "tools/call", `{"name":"` + prefix + r.tool + `","arguments":{}}`
}

// check fails the test unless the response is redacted.
func (r redaction) check(t *testing.T, got string) {
	t.Helper()
	for _, want := range r.want {
		if !strings.Contains(got, want) {
			t.Errorf("%s is missing in %s", want, got)
		}
	}
	for _, gone := range r.absent {
		if strings.Contains(got, gone) {
			t.Errorf("%s remains in %s", gone, got)
		}
	}
}

// newRespondingServer starts a server with these responses.
func newRespondingServer(t *testing.T, said ...string) *remoteServer {
	t.Helper()
	w := newLenientServer(t)
	w.Replies = map[string]string{}
	for _, r := range redactions {
		w.Replies[r.tool] = r.response
		if !strings.Contains(r.tool, "/") {
			w.Tools = append(w.Tools, r.tool)
		}
	}
	w.Before = said
	return w
}

func TestAccessRedacts(t *testing.T) {
	isolate(t)
	plain, streams := newRespondingServer(t), newRespondingServer(t)
	streams.Events = true
	url := serve(t, gateway(withRedaction(plain.line("plain"), streams.line("streams"))...))
	for _, r := range redactions {
		for _, server := range []string{"plain", "streams"} {
			method, params := r.request("")
			for _, endpoint := range endpointsOf(url, server)[1:] {
				t.Run("A56 "+r.name+" at "+endpoint.name+" of "+server, func(t *testing.T) {
					got := post(t, endpoint.url, rpc(method, params), acceptBoth, bearer(eveToken))
					if got.StatusCode != 200 {
						t.Errorf("%d %s", got.StatusCode, got.body)
					}
					r.check(t, got.body)
					if stream := strings.HasPrefix(got.Header.Get("Content-Type"),
						"text/event-stream"); stream != (server == "streams" && endpoint.name != "/rpc") {
						t.Errorf("Content-Type %s", got.Header.Get("Content-Type"))
					}
					other := answerIn(post(t, endpoint.url, rpc(method, params), acceptBoth, bearer(zoeToken)).body)
					if want := `{"jsonrpc":"2.0","id":1,` + r.response + `}`; strings.TrimSpace(other) != want {
						t.Errorf("A57 another client got %s\nwant %s", other, want)
					}
				})
			}
			for _, era := range clientEras {
				t.Run("A56 "+r.name+" at /mcp of a "+era.name+" of "+server, func(t *testing.T) {
					method, params := r.request(server + "__")
					eve := newTestClient(t, joinedAt(url), era.modern, fullCapabilities, bearer(eveToken))
					r.check(t, eve.ask(t, method, params).answer.Raw)
					zoe := newTestClient(t, joinedAt(url), era.modern, fullCapabilities, bearer(zoeToken))
					if got := zoe.ask(t, method, params).answer.Raw; len(r.absent) > 0 && r.absent[0] != redacted &&
						(!strings.Contains(got, r.absent[0]) || strings.Contains(got, redacted)) {
						t.Errorf("A57 another client got %s", got)
					}
				})
			}
		}
	}
}

// Notifications before the response are redacted (A56).
func TestAccessRedactsNotifications(t *testing.T) {
	isolate(t)
	server := newRespondingServer(t,
		`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"using `+aKey+`"}}`,
		`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":{"password":"hunter2","deep":["`+
			aKey+`"]}}}`)
	url := serve(t, gateway(withRedaction(server.line("alpha"), child("kid", "--modern"))...))
	judge := func(t *testing.T, got string, hidden bool) {
		t.Helper()
		if keys := strings.Contains(got, aKey) || strings.Contains(got, "hunter2"); keys == hidden || strings.Contains(got,
			redacted) != hidden {
			t.Errorf("got %s", got)
		}
	}
	t.Run("A56 at /mcp/{server}", func(t *testing.T) {
		for token, hidden := range map[string]bool{eveToken: true, zoeToken: false} {
			got := post(t, mcpAt(url, "alpha"), rpc("tools/call", `{"name":"text","arguments":{}}`), acceptBoth, bearer(token))
			if n := strings.Count(got.body, "data: "); n != 3 {
				t.Errorf("got %d events: %s", n, got.body)
			}
			judge(t, got.body, hidden)
		}
	})
	for _, era := range clientEras {
		t.Run("A56 at /mcp of a "+era.name, func(t *testing.T) {
			for token, hidden := range map[string]bool{eveToken: true, zoeToken: false} {
				c := newTestClient(t, joinedAt(url), era.modern, fullCapabilities, bearer(token))
				params := callOf("alpha", "text", `{}`)
				if era.modern {
					params = callOf("alpha", "text", `{}`, `"_meta":{"io.modelcontextprotocol/logLevel":"debug"}`)
				}
				got := c.ask(t, "tools/call", params)
				if len(got.events) != 2 {
					t.Fatalf("got %v", got.events)
				}
				for _, m := range append(got.events, got.answer) {
					judge(t, m.Raw, hidden)
				}
			}
		})
		t.Run("A56 of a child at /mcp of a "+era.name, func(t *testing.T) {
			for token, hidden := range map[string]bool{eveToken: true, zoeToken: false} {
				c := newTestClient(t, joinedAt(url), era.modern, fullCapabilities, bearer(token))
				meta := `"_meta":{"progressToken":1}`
				if era.modern {
					meta = `"_meta":{"progressToken":1,"io.modelcontextprotocol/logLevel":"debug"}`
				}
				got := c.ask(t, "tools/call", callOf("kid", "emit", `{"method":"notifications/message",`+
					`"params":{"level":"error","data":"`+aKey+`"}}`, meta))
				for _, m := range got.events {
					judge(t, m.Raw, hidden)
				}
				judge(t, c.ask(t, "tools/call", callOf("kid", "echo", `{"text":"`+aKey+`"}`)).answer.Raw, hidden)
			}
		})
	}
	t.Run("A56 unsolicited", func(t *testing.T) {
		remote := newRemoteServer(t, "tool")
		url := serve(t, gateway(withRedaction(remote.line("far"))...))
		streams := map[*exchange]bool{}
		for token, hidden := range map[string]bool{eveToken: true, zoeToken: false} {
			c := newTestClient(t, joinedAt(url), false, fullCapabilities, bearer(token))
			streams[c.listen(t)] = hidden
		}
		await.Until(t, "the streams", func() bool { return remote.Listeners() == 2 })
		remote.Say(`{"jsonrpc":"2.0","method":"notifications/x","params":{"key":"` + aKey + `","password":"hunter2"}}`)
		remote.Say(`{"jsonrpc":"2.0","id":7,"method":"sampling/createMessage","params":{"messages":[{"role":"user",` +
			`"content":{"type":"text","text":"` + aKey + `"}}],"maxTokens":5}}`)
		for stream, hidden := range streams {
			judge(t, stream.awaitMessage(t, "notifications/x").Raw, hidden)
			judge(t, stream.awaitMessage(t, "sampling/createMessage").Raw, hidden)
		}
	})
	t.Run("A56 unsolicited at /mcp/{server}", func(t *testing.T) {
		remote := newRemoteServer(t, "tool")
		url := serve(t, gateway(withRedaction(remote.line("far"))...))
		endpoint := mcpAt(url, "far")
		streams := map[*exchange]bool{}
		for token, hidden := range map[string]bool{eveToken: true, zoeToken: false} {
			c := newTestClient(t, endpoint, false, fullCapabilities, bearer(token))
			streams[c.listen(t)] = hidden
		}
		await.Until(t, "the streams", func() bool { return remote.Listeners() == 2 })
		remote.Say(`{"jsonrpc":"2.0","method":"notifications/x","params":{"key":"` + aKey + `","password":"hunter2"}}`)
		for stream, hidden := range streams {
			judge(t, stream.awaitMessage(t, "notifications/x").Raw, hidden)
		}
	})
}

// Server requests during a call are redacted like results (A56).
func TestAccessRedactsQuestions(t *testing.T) {
	isolate(t)
	url := serve(t, gateway(withRedaction(child("kid", "--modern"))...))
	for _, era := range clientEras {
		t.Run("A56 "+era.name, func(t *testing.T) {
			for token, hidden := range map[string]bool{eveToken: true, zoeToken: false} {
				c := newTestClient(t, joinedAt(url), era.modern, fullCapabilities, bearer(token))
				params := callOf("kid", "ask", `{"method":"elicitation/create","params":{"message":"is `+aKey+
					` yours?","requestedSchema":{"type":"object","properties":{"name":{"type":"string"}}}}}`)
				d := c.begin(t, "tools/call", params)
				serverRequest := d.next(t)
				if strings.Contains(serverRequest.Raw, aKey) == hidden || strings.Contains(serverRequest.Raw, redacted) != hidden {
					t.Errorf("got server request %s", serverRequest.Raw)
				}
				if era.modern {
					d = c.begin(t, "tools/call", retryParams(params, serverRequest.Input(t),
						func(string) string { return formAnswer }))
				} else {
					c.respond(t, serverRequest, formAnswer)
				}
				if got := d.finish(t).answer; got.Text() != formAnswer {
					t.Errorf("got %s", got.Raw)
				}
			}
		})
	}
}

// Redaction precedes masking: a key across the cut is redacted, and the recovered original does not
// contain it (A56).
func TestAccessRedactsBeforeMasking(t *testing.T) {
	isolate(t)
	// Keys at the end of the head, at the start of the tail, and in the part left out.
	filler := func(n int) string { return strings.Repeat("x ", n/2) }
	long := filler(1990) + aKey + filler(3000) + "middle " + aKey + filler(3000) + aKey + filler(1990)
	server := newLenientServer(t, "read", "structured")
	server.Replies = map[string]string{
		"read": `"result":{"content":[{"type":"text","text":` + quote(long) + `}]}`,
		"structured": `"result":{"content":[],"structuredContent":{"deep":[` + quote(long) + `],"password":` + quote(long) +
			`}}`,
	}
	pieces := []string{"sk-", "abcdef", "0123456789"} // of a key
	clean := func(t *testing.T, what, got string) {
		t.Helper()
		for _, piece := range pieces {
			if index := strings.Index(got, piece); index >= 0 {
				t.Errorf("%s: …%s…", what, got[max(0, index-60):min(len(got), index+60)])
			}
		}
	}
	for name, recover := range map[string]string{"": "mask 4000 2000 2000",
		" with recover on": block("mask 4000 2000 2000", "recover on")} {
		url := serve(t, gateway(withRedaction(recover, server.line("alpha"))...))
		for _, events := range []bool{false, true} {
			server.Events = events
			for _, endpoint := range endpointsOf(url, "alpha")[1:] {
				t.Run(fmt.Sprintf("A56 at %s%s, events: %t", endpoint.name, name, events), func(t *testing.T) {
					for _, tool := range server.Tools {
						got := post(t, endpoint.url, rpc("tools/call", `{"name":"`+tool+`","arguments":{}}`), acceptBoth,
							bearer(eveToken)).body
						if !strings.Contains(got, "KIMI_PROXY_OBSERVATION_MASKED") || !strings.Contains(got, redacted) {
							t.Errorf("not masked, or not redacted: %.300s", got)
						}
						clean(t, tool, got)
						if got := post(t, endpoint.url, rpc("tools/call", `{"name":"`+tool+`","arguments":{}}`), acceptBoth,
							bearer(zoeToken)).body; !strings.Contains(got, "sk-") {
							t.Errorf("A57 another client got %.300s", got)
						}
					}
				})
			}
			for _, era := range clientEras {
				t.Run(fmt.Sprintf("A56 at /mcp of a %s%s, events: %t", era.name, name, events), func(t *testing.T) {
					eve := newTestClient(t, joinedAt(url), era.modern, fullCapabilities, bearer(eveToken))
					zoe := newTestClient(t, joinedAt(url), era.modern, fullCapabilities, bearer(zoeToken))
					for _, tool := range server.Tools {
						got := eve.ask(t, "tools/call", callOf("alpha", tool, `{}`)).answer.Raw
						if !strings.Contains(got, "KIMI_PROXY_OBSERVATION_MASKED") {
							t.Errorf("not masked: %.300s", got)
						}
						clean(t, tool, got)
					}
					if name == "" {
						return
					}
					handle := callMasked(t, eve, "alpha", "read", `{}`)
					for _, arguments := range []string{`{"id":"` + handle + `"}`, `{"id":"` + handle +
						`","start_char":1900,"end_char":4900}`, `{"id":"` + handle + `","pattern":"middle"}`} {
						text := recoverObservation(t, eve, arguments)
						if text.IsError {
							t.Errorf("%s: %+v", arguments, text)
						}
						clean(t, "recovered", text.Content[0].Text)
					}
					whole := eve.ask(t, "resources/read", `{"uri":"proxy://observation/`+handle+`"}`).answer.Raw
					clean(t, "read back", whole)
					if strings.Count(whole, redacted) != 3 || !strings.Contains(whole, "middle "+redacted) {
						t.Errorf("recovered %d × %s", strings.Count(whole, redacted), redacted)
					}
					whole = zoe.ask(t, "resources/read", `{"uri":"proxy://observation/`+callMasked(t, zoe, "alpha", "read", `{}`)+
						`"}`).answer.Raw
					if strings.Count(whole, aKey) != 3 || strings.Contains(whole, redacted) {
						t.Errorf("A57 another client recovered %d × the key", strings.Count(whole, aKey))
					}
				})
			}
		}
	}
}

// Redaction keeps messages valid and numbers unchanged.
func TestAccessRedactsNothingElse(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, "text")
	url := serve(t, gateway(append(rulesForEve(`redact "[a-z]+"`,
		"redact_fields id result error code content type text jsonrpc name"), server.line("alpha"))...))
	server.Replies = map[string]string{"text": `"result":{"content":[{"type":"text","text":"words 12"}],"n":[1.0,-0,` +
		`1e2,true,null]}`}
	for _, endpoint := range endpointsOf(url, "alpha")[1:] {
		t.Run("A56 at "+endpoint.name, func(t *testing.T) {
			got := post(t, endpoint.url, rpc("tools/call", `{"name":"text","arguments":{}}`), bearer(eveToken))
			var m struct {
				JSONRPC string
				ID      json.RawMessage
				Result  json.RawMessage
			}
			if err := json.Unmarshal([]byte(got.body), &m); err != nil || got.StatusCode != 200 || m.JSONRPC != "2.0" ||
				string(m.ID) != "1" || m.Result == nil {
				t.Errorf("%v: %d %s", err, got.StatusCode, got.body)
			}
			if strings.Contains(got.body, "words") || !strings.Contains(got.body, `[1.0,-0,1e2,true,null]`) {
				t.Errorf("got %s, want numbers and no words", got.body)
			}
		})
	}
}

// widen returns a text with zeros after and before each byte, as in UTF-16 or UTF-32.
func widen(text string, after, before int) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		b.WriteString(strings.Repeat("\x00", before) + string(rune(c)) + strings.Repeat("\x00", after))
	}
	return b.String()
}

// Responses are redacted whatever their spelling or type (A56).
func TestAccessRedactsOddAnswers(t *testing.T) {
	isolate(t)
	answer := `{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"the key is ` + aKey + `"}]}}`
	asEvents := `"ctype":"text/event-stream"`
	tests := []struct {
		name, body string
		members    []string
	}{
		{"as plain text", answer, []string{`"ctype":"text/plain"`}},
		{"without a content type", answer, []string{`"ctype":""`}},
		{"with an error status", answer, []string{`"status":400`}},
		{"an error page", "<p>bad key " + aKey + "</p>", []string{`"status":500`, `"ctype":"text/html"`}},
		{"a text", "bad key " + aKey, []string{`"status":404`, `"ctype":"text/plain"`}},
		{"in a batch", "[" + answer + "]", nil},
		{"half a response", answer[:len(answer)-3], nil},
		{"with the id of another request", strings.Replace(answer, `"id":1`, `"id":2`, 1), nil},
		{"chunked", answer, []string{`"chunked":true`}},
		{"compressed, though the gateway did not ask for it", answer, []string{`"encoding":"gzip"`}},
		{"in an event", "data: " + answer + "\n\n", []string{asEvents}},
		{"in an event of several lines", "data: " + strings.ReplaceAll(answer, ",", ",\ndata: ") + "\n\n",
			[]string{asEvents}},
		{"in an event with other line breaks", "id: 1\r\ndata:" + answer + "\r\n\r\n", []string{asEvents}},
		{"in an event with carriage returns", "data:" + answer + "\r\r", []string{asEvents}},
		{"in an event with another name", "event: other\ndata: " + answer + "\n\n", []string{asEvents}},
		{"in an event after a byte order mark", "\ufeffdata: " + answer + "\n\n", []string{asEvents}},
		{"in an unterminated event", "data: " + answer, []string{asEvents}},
		{"in the text of an event", "data: bad key " + aKey + "\n\n", []string{asEvents}},
		{"in a batch in an event", "data: [" + answer + "]\n\n", []string{asEvents}},
		{"in a comment between events", ": " + aKey + "\n\ndata: " + answer + "\n: " + aKey + "\n\n", []string{asEvents}},
		{"in the id of an event", "id: " + aKey + "\ndata: {}\n\nid: " + aKey + "\n\n", []string{asEvents}},
		{"in the name of an event", "event: " + aKey + "\r\ndata: " + answer + "\r\n\r\n", []string{asEvents}},
		{"in an unknown field of an event", aKey + ": " + aKey + "\ndata: " + answer + "\n\n", []string{asEvents}},
		{"in UTF-16", widen(answer, 1, 0), nil},
		{"in UTF-16 with the other byte order", widen(answer, 0, 1),
			[]string{`"ctype":"application/json; charset=utf-16be"`}},
		{"in UTF-32", widen(answer, 3, 0), nil},
		{"in UTF-16 as plain text", widen(answer, 1, 0), []string{`"ctype":"text/plain"`}},
		{"in UTF-16 in an event", "data: " + widen(answer, 1, 0) + "\n\n", []string{asEvents}},
		{"in an event with an error status", "data: " + answer + "\n\n", []string{asEvents, `"status":400`}},
	}
	stub := upstream(t, new(mcptest.Stub))
	url := serve(t, gateway(withRedaction("server alpha http://"+stub+"/mcp")...))
	for _, tt := range tests {
		for _, endpoint := range endpointsOf(url, "alpha")[1:] {
			t.Run("A56 "+tt.name+" at "+endpoint.name, func(t *testing.T) {
				res := open(t, client, "POST", endpoint.url, raw(tt.body, tt.members...), acceptBoth, bearer(eveToken))
				text, _ := io.ReadAll(res.Body) // the body may break off
				got := string(text)
				if unzipped, err := gzip.NewReader(strings.NewReader(got)); err == nil {
					text, _ := io.ReadAll(unzipped)
					got = string(text)
				}
				if strings.Contains(strings.ReplaceAll(got, "\x00", ""), aKey) {
					t.Errorf("%d %v %s", res.StatusCode, res.Header, got)
				}
			})
		}
	}
}

// A client with redaction gets no response that only lenient parsers accept (A56).
func TestAccessRedactsLenientJSON(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, "stats")
	server.Replies = map[string]string{"stats": `"result":{"content":[],"structuredContent":{"score":NaN,` +
		`"password":"hunter2","key":"\u0073` + aKey[1:] + `"}}`}
	url := serve(t, gateway(withRedaction(server.line("alpha"))...))
	for _, events := range []bool{false, true} {
		server.Events = events
		for _, endpoint := range endpointsOf(url, "alpha")[1:] {
			t.Run(fmt.Sprintf("A56 at %s, events: %t", endpoint.name, events), func(t *testing.T) {
				got := post(t, endpoint.url, rpc("tools/call", `{"name":"stats","arguments":{}}`), acceptBoth, bearer(eveToken))
				if strings.Contains(got.body, "hunter2") || !strings.Contains(got.body, `"code":"invalid_response"`) {
					t.Errorf("%d %s", got.StatusCode, got.body)
				}
			})
		}
	}
}

// A client with redaction gets no response that it may decode in another way than the gateway did
// (A56).
func TestAccessRedactsOtherCharsets(t *testing.T) {
	isolate(t)
	answer := `{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"the key is ` + aKey + `"}]}}`
	wide := func(unit int, big bool, mark bool) string {
		var out []byte
		for _, c := range map[bool]string{true: "\ufeff", false: ""}[mark] + answer {
			letter := make([]byte, unit)
			if big {
				letter[unit-2], letter[unit-1] = byte(c>>8), byte(c)
			} else {
				letter[0], letter[1] = byte(c), byte(c>>8)
			}
			out = append(out, letter...)
		}
		return string(out)
	}
	inUTF7 := strings.ReplaceAll(answer, aKey,
		"+"+base64.RawStdEncoding.EncodeToString([]byte("\x00"+strings.Join(strings.Split(aKey, ""), "\x00")))+"-")
	type form struct{ name, contentType, body string }
	forms := []form{
		{"UTF-7", "application/json; charset=utf-7", inUTF7}, {"UTF-7 in events", "text/event-stream; charset=utf-7",
			"data: " + inUTF7 + "\n\n"},
		{"an unsupported charset", "application/json; charset=iso-8859-1", answer}, {"invalid UTF-8", "application/json",
			strings.Replace(answer, "the key", "the \xff key", 1)},
	}
	for _, unit := range []int{2, 4} {
		for _, big := range []bool{true, false} {
			for _, mark := range []bool{true, false} {
				name := fmt.Sprintf("UTF-%d, big %t, mark %t", 8*unit, big, mark)
				forms = append(forms, form{name, "application/json", wide(unit, big, mark)},
					form{name + ", said so", fmt.Sprintf("application/json; charset=utf-%d", 8*unit), wide(unit, big, mark)},
					form{name + ", plain", "text/plain", wide(unit, big, mark)}, form{name + ", in an event", "text/event-stream",
						"data: " + wide(unit, big, mark) + "\n\n"})
			}
		}
	}
	for _, f := range forms {
		server := upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", f.contentType)
			_, _ = io.WriteString(w, f.body)
		}))
		url := serve(t, gateway(withRedaction("server alpha http://"+server+"/mcp")...))
		for _, endpoint := range endpointsOf(url, "alpha")[1:] {
			got := post(t, endpoint.url, rpc("tools/call", `{`+echoes+`}`), acceptBoth, bearer(eveToken))
			if read := strings.ReplaceAll(got.body, "\x00", ""); strings.Contains(read, aKey) || strings.Contains(read,
				inUTF7) && strings.Contains(got.Header.Get("Content-Type"), "utf-7") {
				t.Errorf("A56 %s at %s: %d %v %q", f.name, endpoint.name, got.StatusCode, got.Header, got.body)
			}
		}
	}
}

// The status of a response arrives even if its body is dropped.
func TestAccessRedactsNoStatus(t *testing.T) {
	isolate(t)
	const latin = "text/html;charset=iso-8859-1"
	for _, tt := range []struct {
		status int
		body   string
	}{{405, "<h1>" + aKey + "</h1>"}, {404, "<h1>" + aKey + "</h1>"}, {503, aKey}, {202, ""}, {202, aKey}, {204, ""},
		{200, ""}} {
		server := upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", latin)
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(tt.status)
			if tt.body != "" {
				_, _ = io.WriteString(w, tt.body)
			}
		}))
		url := serve(t, gateway(withRedaction("server alpha http://"+server+"/mcp")...))
		for _, token := range []string{eveToken, zoeToken} {
			for _, method := range []string{"GET", "POST", "DELETE"} {
				message := ""
				if method == "POST" {
					message = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
				}
				res := open(t, client, method, mcpAt(url, "alpha"), message, acceptBoth, bearer(token))
				body, _ := io.ReadAll(res.Body)
				if res.StatusCode != tt.status || res.Header.Get("Retry-After") != "7" || (token == eveToken || method == "GET") &&
					(len(body) > 0 || strings.Contains(res.Header.Get("Content-Type"), "8859")) {
					t.Errorf("%s of %d %q for %s: %d %v %q", method, tt.status, tt.body, token, res.StatusCode, res.Header, body)
				}
			}
		}
	}
}

// Text that looks like an endpoint URL is redacted (A56).
func TestAccessRedactsAddresses(t *testing.T) {
	isolate(t)
	for _, text := range []string{"data: /x " + aKey, "event: message\ndata: http://x/" + aKey,
		"event: endpoints\ndata: /" + aKey, ": event: endpoint\ndata: /" + aKey, "data: event: endpoint\ndata: /" + aKey} {
		server := upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, text+"\n\nevent: endpoint\ndata: /messages?s="+aKey+"\n\n")
		}))
		url := serve(t, gateway(withRedaction("server alpha http://"+server+"/sse")...))
		res := open(t, client, "GET", mcpAt(url, "alpha"), "", "Accept: text/event-stream", bearer(eveToken))
		body, _ := io.ReadAll(res.Body)
		if got := string(body); strings.Contains(got, aKey) || !strings.Contains(got, redacted) || !strings.Contains(got,
			"data: /mcp/alpha?endpoint=") {
			t.Errorf("A56 %q became %q", text, got)
		}
	}
}

// A client with redaction gets results of any size, and streams without delay (A56).
func TestAccessRedactsStreams(t *testing.T) {
	isolate(t)
	t.Run("A41 A56 nine megabytes", func(t *testing.T) {
		server := newLenientServer(t, "read")
		server.Replies = map[string]string{"read": `"result":{"content":[{"type":"text","text":"` + strings.Repeat("A",
			9<<20) + ` ` + aKey + `"}]}`}
		url := serve(t, gateway(withRedaction("mask off", server.line("alpha"))...))
		check := func(what, got string) {
			t.Helper()
			if len(got) < 9<<20 || strings.Contains(got, aKey) || !strings.Contains(got, redacted) {
				t.Errorf("%s: %d bytes, %.200s", what, len(got), got)
			}
		}
		for _, events := range []bool{false, true} {
			server.Events = events
			for _, endpoint := range endpointsOf(url, "alpha")[1:] {
				check(endpoint.name, post(t, endpoint.url, rpc("tools/call", `{"name":"read","arguments":{}}`), acceptBoth,
					bearer(eveToken)).body)
			}
			for _, era := range clientEras {
				c := newTestClient(t, joinedAt(url), era.modern, fullCapabilities, bearer(eveToken))
				check("/mcp of a "+era.name, c.ask(t, "tools/call", callOf("alpha", "read", `{}`)).answer.Raw)
			}
		}
	})
	t.Run("A56 events one by one", func(t *testing.T) {
		s := newEventSource(t)
		url := serve(t, gateway(withRedaction("server alpha http://"+s.address)...))
		res := open(t, client, "POST", mcpAt(url, "alpha"), rpc("tools/call", `{"name":"read","arguments":{}}`), acceptBoth,
			bearer(eveToken))
		body := bufio.NewReader(res.Body)
		for i := range 3 {
			note := event(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/message","params":{"n":%d.0,"data":"%s"}}`, i,
				aKey))
			s.send(t, note)
			same(t, nextEvent(t, body), strings.ReplaceAll(note, aKey, redacted))
		}
		s.send(t, event(result(`"`+aKey+`"`)))
		same(t, nextEvent(t, body), event(result(`"`+redacted+`"`)))
		close(s.parts)
	})
}

// A call that is resumed on another stream is redacted like the call (A56).
func TestAccessRedactsResumedCalls(t *testing.T) {
	isolate(t)
	broken := make(chan struct{}, 10)
	odd := newOddServer(t, func(w http.ResponseWriter, m *mcptest.Received) {
		switch m.Method {
		case "tools/list":
			m.Answer(w, `"result":{"tools":[{"name":"read","inputSchema":{"type":"object"}}]}`)
		case "tools/call":
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "id: first\nretry: 10\ndata: \n\nid: second\n"+
				event(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"before `+aKey+`"}}`))
			broken <- struct{}{} // the stream breaks off: the client, or the gateway at /mcp, must resume
		default: // GET
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "id: third\n"+
				event(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"after `+aKey+`"}}`)+
				"id: fourth\n"+event(`{"jsonrpc":"2.0","id":1,`+mcptest.Text("an answer with "+aKey)+`}`))
		}
	})
	url := serve(t, gateway(withRedaction(odd.line("alpha"))...))
	for token, hidden := range map[string]bool{eveToken: true, zoeToken: false} {
		for _, endpoint := range []string{mcpAt(url, "alpha"), joinedAt(url)} {
			t.Run(fmt.Sprintf("A56 at %s, redacted: %t", pathOf(t, endpoint), hidden), func(t *testing.T) {
				name, session := "read", "X-Session: none"
				if endpoint == joinedAt(url) {
					got := post(t, endpoint, rpc("initialize", `{`+initParams+`}`), acceptBoth, bearer(token))
					name, session = "alpha__read", "Mcp-Session-Id: "+got.Header.Get("Mcp-Session-Id")
				}
				res := open(t, client, "POST", endpoint, rpc("tools/call", `{"name":"`+name+`","arguments":{}}`), acceptBoth,
					session, bearer(token))
				text, _ := io.ReadAll(res.Body)
				wait(t, broken, "the call")
				last := ""
				for line := range strings.Lines(string(text)) {
					if id, ok := strings.CutPrefix(line, "id: "); ok {
						last = strings.TrimSpace(id)
					}
				}
				resumed := open(t, client, "GET", endpoint, "", "Accept: text/event-stream", session, "Last-Event-Id: "+last,
					bearer(token))
				body := bufio.NewReader(resumed.Body)
				var again string
				for !strings.Contains(again, "after ") {
					again += nextEvent(t, body)
				}
				if endpoint == joinedAt(url) && !strings.Contains(string(text), "an answer with") {
					t.Errorf("got %s", text)
				}
				for _, got := range []string{string(text), again} {
					if strings.Contains(got, aKey) == hidden || strings.Contains(got, redacted) != hidden {
						t.Errorf("got %s", got)
					}
				}
			})
		}
	}
}

// Originals stored before a redaction rule are recovered with it applied (A56).
func TestAccessRedactsWhatWasKept(t *testing.T) {
	isolate(t)
	at := 5000 // position of the key
	long := strings.Repeat("x ", at/2) + aKey + strings.Repeat(" y", 3000)
	server := newLenientServer(t, "read")
	server.Replies = map[string]string{"read": `"result":{"content":[{"type":"text","text":` + quote(long) + `}]}`}
	address := freeAddress(t)
	config := func(rules ...string) string {
		return site(address, gateway(append(rulesForEve(rules...), block("mask 4000 2000 2000", "recover on"),
			server.line("alpha"))...))
	}
	for _, era := range clientEras {
		load(t, config())
		c := newTestClient(t, joinedAt("http://"+address), era.modern, fullCapabilities, connectionClose, bearer(eveToken))
		handle := callMasked(t, c, "alpha", "read", `{}`)
		if r := recoverObservation(t, c, `{"id":"`+handle+`","pattern":"sk-"}`); !strings.Contains(r.Content[0].Text, aKey) {
			t.Fatalf("the key is not in: %v", r)
		}
		load(t, config(keyPattern))
		for _, arguments := range []string{
			``, `,"start_char":4990`, `,"pattern":"sk-"`, `,"pattern":"abcdef"`, `,"pattern":"0123456789"`,
			fmt.Sprintf(`,"start_char":%d,"end_char":%d`, at, at+6), fmt.Sprintf(`,"start_char":%d,"end_char":%d`, at+3, at+15),
			fmt.Sprintf(`,"start_char":%d`, at+6),
		} {
			t.Run("A56 "+era.name+" "+arguments, func(t *testing.T) {
				for _, content := range recoverObservation(t, c, `{"id":"`+handle+`"`+arguments+`}`).Content {
					if strings.Contains(content.Text, "sk-a") || strings.Contains(content.Text, "cdef01") ||
						strings.Contains(content.Text, "56789") {
						index := max(0, strings.IndexAny(content.Text, "sk0123456789")-20)
						t.Errorf("recovered …%.100s…", content.Text[index:])
					}
				}
			})
		}
		t.Run("A56 "+era.name+" as a resource", func(t *testing.T) {
			if got := c.ask(t, "resources/read", `{"uri":"proxy://observation/`+handle+`"}`).answer.Raw; strings.Contains(got,
				aKey) {
				t.Error("the key was recovered")
			}
		})
	}
}
