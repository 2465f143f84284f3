package gateway

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// rewritten returns a response with shown names.
func rewritten(g *Gateway, l *link, raw []byte) []byte {
	var m jsonrpc.Message
	var read nameReader
	failure := read.parse(&m, raw)
	if failure != nil {
		return raw
	}
	return jsonspan.Spliced(raw, l.translator(g).rename(raw, read.names)...)
}

// largeResult returns a result that names resources before, between and after long texts.
func largeResult(size int) string {
	var b strings.Builder
	b.WriteString(`{"content":[{"type":"resource_link","uri":"x://first","name":"a"}`)
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, `,{"type":"text","text":%q,"uri2":"x://not"},{"type":"resource",`+
			`"resource":{"uri":"x:\/\/n\u00e9%d","text":"y"}}`, strings.Repeat("text ", 1000), i)
	}
	b.WriteString(`], "n":12345678901234567890123, "structuredContent":{"uri":"x://stays",` +
		`"contents":[{"uri":"x://stays"}]},"_meta":{"k":"v"}}`)
	return b.String()
}

// Large responses are rewritten like small ones.
func TestLargeResponsesAreRewritten(t *testing.T) {
	result := largeResult(3 << 20)
	want := string(rewritten(newBareGateway(nil, newPeer("a")), &link{serverName: "a"},
		[]byte(`{"jsonrpc":"2.0","id":1,"result":`+result+`}`)))
	if !strings.Contains(want, mcp.ResourceURI("a", "x://first")) || strings.Contains(want, `"x://first"`) {
		t.Fatal("the small response is not rewritten")
	}
	send := map[string]func(w http.ResponseWriter, head, text string){
		"JSON": func(w http.ResponseWriter, _, text string) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, text)
		},
		"JSON in small pieces": func(w http.ResponseWriter, _, text string) {
			w.Header().Set("Content-Type", "application/json")
			for text != "" {
				n := min(1021, len(text))
				_, _ = io.WriteString(w, text[:n])
				text = text[n:]
			}
		},
		"an event": func(w http.ResponseWriter, head, text string) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, head+"data: "+text+"\n\n")
		},
		"an event of many lines": func(w http.ResponseWriter, head, text string) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, head+"data: "+strings.ReplaceAll(text, `,{"type"`, ",\r\ndata: {\"type\"")+"\r\n\r\n")
		},
		"after a notification": func(w http.ResponseWriter, head, text string) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{}}\n\n")
			_, _ = io.WriteString(w, head+"data: "+text+"\n\n")
		},
	}
	for name, send := range send {
		for _, pair := range [][2]mcp.Era{{mcp.Legacy, mcp.Legacy}, {mcp.Modern, mcp.Modern}, {mcp.Legacy, mcp.Modern}} {
			t.Run(fmt.Sprint(name, pair), func(t *testing.T) {
				p := newPeer("a")
				p.eras[pair[1]] = true
				p.handle("tools/call", func(w http.ResponseWriter, a *incoming) {
					send(w, "id: 9\n", `{"jsonrpc":"2.0","id":`+a.id()+`,"result":`+result+`}`)
				})
				g := newGateway(t, nil, p)
				u := g.user(t, pair[0])
				if pair[0] == mcp.Legacy {
					u.connect()
				}
				u.last.Store(0)
				s := u.call("a::x")
				if s.broken != nil || strings.ReplaceAll(s.answer, `, {"type"`, `,{"type"`) != want { // line breaks become spaces
					t.Errorf("%v: got %d bytes, want %d: %.200s", s.broken, len(s.answer), len(want), s.answer)
				}
				if n := len(s.events); n > 0 && !strings.HasPrefix(s.events[n-1].last, "call:MQ/a/9.") {
					t.Errorf("got id %q", s.events[n-1].last)
				}
				u.accept = "application/json"
				u.last.Store(0)
				if s := u.call("a::x"); strings.ReplaceAll(s.answer, "\n", "") != want {
					t.Errorf("without event streams: %v: got %d bytes, want %d: %.200s", s.broken, len(s.answer), len(want),
						s.answer)
				}
			})
		}
	}
}

// A client must not accept a truncated response as complete.
func TestTruncatedLargeResponses(t *testing.T) {
	result := largeResult(2 << 20)
	for _, contentType := range []string{"application/json", "text/event-stream"} {
		for name, abort := range map[string]bool{"breaks off": true, "just ends": false} {
			for _, server := range []mcp.Era{mcp.Legacy, mcp.Modern} {
				t.Run(fmt.Sprint(contentType, " ", name, server), func(t *testing.T) {
					p := newPeer("a")
					p.eras[server] = true
					p.handle("tools/call", func(w http.ResponseWriter, a *incoming) {
						w.Header().Set("Content-Type", contentType)
						if contentType != "application/json" {
							_, _ = io.WriteString(w, "data: ")
						}
						_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":`+a.id()+`,"result":`+result[:3<<19])
						if abort {
							panic(http.ErrAbortHandler)
						}
					})
					g := newGateway(t, nil, p)
					u := g.legacy(t)
					if s := u.call("a::x"); s.broken == nil {
						t.Errorf("the client accepted %d bytes as complete", len(s.body))
					}
					if s := u.ask("ping", ""); s.code() != 0 || s.broken != nil {
						t.Errorf("later call: %+v", s)
					}
				})
			}
		}
	}
}

// Some clients end lines of event streams at other characters than the standard, so these
// characters are escaped. JSON responses stay unchanged.
func TestEventsHaveNoOtherLineEnds(t *testing.T) {
	const odd = "\u2028data: {}\u0085\u2029"
	large := strings.Repeat("x", streamable.MaxHeld)
	escaped := strings.NewReplacer("\u2028", `\u2028`, "\u0085", `\u0085`, "\u2029", `\u2029`).Replace
	note := func(w http.ResponseWriter, a *incoming) {
		a.sendAs(w, "id: a"+odd+"b\n", `{"jsonrpc":"2.0","method":"notifications/message","params":{"t":"`+odd+`"}}`)
	}
	for name, test := range map[string]struct {
		send func(w http.ResponseWriter, a *incoming)
		want string
	}{
		"JSON":       {func(w http.ResponseWriter, a *incoming) { a.reply(w, `{"t":"`+odd+`"}`) }, odd},
		"large JSON": {func(w http.ResponseWriter, a *incoming) { a.reply(w, `{"t":"`+large+odd+`"}`) }, odd},
		"an event":   {func(w http.ResponseWriter, a *incoming) { note(w, a); a.finish(w, `{"t":"`+odd+`"}`) }, escaped(odd)},
		"a large event": {func(w http.ResponseWriter, a *incoming) {
			note(w, a)
			a.finish(w, `{"t":"`+large+strings.Repeat(odd, 100_000)+`"}`)
		}, escaped(odd)},
	} {
		t.Run(name, func(t *testing.T) {
			u := newGateway(t, nil, legacyPeer("a").handle("tools/call", test.send)).legacy(t)
			s := u.call("a::x")
			if s.broken != nil || !strings.Contains(s.answer, test.want) {
				t.Errorf("%v: got %d bytes that end in %q", s.broken, len(s.answer), s.answer[max(0, len(s.answer)-100):])
			}
			if len(s.events) > 0 && strings.ContainsAny(s.body, "\u2028\u0085\u2029") {
				t.Error("an event has other line ends")
			}
		})
	}
}

// Notifications can be large, too.
func TestLargeNotifications(t *testing.T) {
	note := `{"jsonrpc":"2.0","method":"notifications/message","params":{"t":"` +
		strings.Repeat("x", 2*streamable.MaxHeld) + `"}}`
	p := legacyPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
		a.send(w, note)
		a.finish(w, "{}")
	})
	u := newGateway(t, nil, p).legacy(t)
	if s := u.call("a::x"); len(s.events) != 2 || len(s.events[0].data) < len(note) || string(s.Result) != "{}" {
		t.Errorf("got %d %.300s", s.status, s.body)
	}
}

// A response to another request is ignored, even if it is large.
func TestLargeResponsesToOtherRequests(t *testing.T) {
	p := legacyPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
		a.send(w, `{"jsonrpc":"2.0","id":"another","result":{"t":"`+strings.Repeat("x", streamable.MaxHeld)+`"}}`)
		a.finish(w, `{"mine":true}`)
	})
	g := newGateway(t, nil, p)
	u := g.legacy(t)
	s := u.call("a::x")
	if strings.Contains(s.body, "another") {
		t.Errorf("the response was forwarded: %.200s", s.body)
	}
	if s.Error == nil && string(s.Result) != `{"mine":true}` {
		t.Errorf("got %.200s", s.answer)
	}
}

func TestInvalidResponses(t *testing.T) {
	tests := []struct {
		name        string
		status      int
		contentType string
		body        string // ID stands for the id
		symbol      string // "" for an error of the server
		code        int
	}{
		{"500 and HTML", 500, "text/html", "<h1>", "http_error", 0},
		{"401", 401, "", "", "http_error", 0},
		{"302", 302, "", "", "http_error", 0},
		{"200 and HTML", 200, "text/html", "<h1>", "invalid_json", 0},
		{"200 and no body", 200, "application/json", "", "invalid_response", 0},
		{"a batch", 200, "application/json", `[{"jsonrpc":"2.0","id":ID,"result":{}}]`, "invalid_json", 0},
		{"an error, id null", 200, "application/json", `{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"m"}}`, "",
			-1},
		{"an error without an id", 500, "application/json", `{"jsonrpc":"2.0","error":{"code":-1,"message":"m"}}`, "", -1},
		{"an error", 500, "application/json", `{"jsonrpc":"2.0","id":ID,"error":{"code":-1,"message":"m"}}`, "", -1},
		{"a request instead of a response", 200, "application/json", `{"jsonrpc":"2.0","method":"n"}`, "invalid_response", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := legacyPeer("a").handle("tools/call", func(w http.ResponseWriter, a *incoming) {
				w.Header().Set("Content-Type", tt.contentType)
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, strings.ReplaceAll(tt.body, "ID", a.id()))
			})
			g := newGateway(t, nil, p)
			u := g.legacy(t)
			s := u.call("a::x")
			var m jsonrpc.Message
			if failure := m.Read([]byte(s.answer)); failure != nil || !m.IsResponse() ||
				string(m.Literal(jsonrpc.ID)) != strconv.FormatInt(u.last.Load(), 10) {
				t.Fatalf("got %d %s", s.status, s.body)
			}
			if s.symbol() != tt.symbol || tt.code != 0 && s.code() != tt.code || s.status != 200 {
				t.Errorf("got %d %s", s.status, s.body)
			}
		})
	}
}
