package mcpgateway

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// lister returns a server with tools that some clients may not see. write writes its responses.
func lister(t *testing.T, write func(w http.ResponseWriter, answer string)) *witness {
	return newWitness(t, func(w http.ResponseWriter, _ *http.Request, got witnessed) {
		answer := httptest.NewRecorder()
		switch {
		case got.is("initialize"):
			says(w, got, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}`)
			return
		case got.is("tools/list"):
			says(answer, got, `{"tools":[{"name":"ok","inputSchema":{}},{"name":"secret","inputSchema":{}}]}`)
		default:
			says(w, got, `{}`)
			return
		}
		write(w, answer.Body.String())
	})
}

func TestListsWithAByteOrderMark(t *testing.T) { // A54
	const list = `{"jsonrpc":"2.0","id":7,"method":"tools/list"}`
	for name, write := range map[string]func(w http.ResponseWriter, answer string){
		"a body": func(w http.ResponseWriter, answer string) {
			w.Header().Set("Content-Type", "application/json; charset=utf-8")
			_, _ = io.WriteString(w, "\ufeff"+answer)
		},
		"a body of no type": func(w http.ResponseWriter, answer string) {
			w.Header()["Content-Type"] = nil
			_, _ = io.WriteString(w, "\ufeff"+" "+answer)
		},
		"the data of an event": func(w http.ResponseWriter, answer string) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: "+"\ufeff"+answer+"\n\n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := adaptGateway(t, `{`+denies("a::secret")+`"servers":[`+lister(t, write).line("a")+`]}`)
			for _, path := range append([]string{"/mcp"}, single...) {
				var headers []string
				if path == "/mcp" {
					headers = []string{mcp.SessionHeader, session(t, h)}
				}
				w := serves(t, h, posting(path, list, headers...))
				if strings.Contains(w.Body.String(), "secret") {
					t.Errorf("%s: %d %s", path, w.Code, w.Body)
				}
			}
		})
	}
}

func TestChangedToolsWithAByteOrderMark(t *testing.T) { // A54
	version := "v1"
	server := newWitness(t, func(w http.ResponseWriter, _ *http.Request, got witnessed) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w,
			"\ufeff"+`{"jsonrpc":"2.0","id":7,"result":{"tools":[{"name":"x","description":"`+version+`","inputSchema":{}}]}}`)
	})
	h := storedGateway(t, t.TempDir(), withPins(server.line("a"), true))
	for _, want := range []bool{true, false} {
		w := serves(t, h, posting("/mcp/a", `{"jsonrpc":"2.0","id":7,"method":"tools/list"}`))
		if listed := strings.Contains(w.Body.String(), version); listed != want {
			t.Errorf("%s is listed: %t", version, listed)
		}
		version = "v2"
	}
}

// streaming returns a server whose GET streams send events and end.
func streaming(t *testing.T, events ...string) *witness {
	return newWitness(t, func(w http.ResponseWriter, r *http.Request, got witnessed) {
		if r.Method != http.MethodGet {
			says(w, got, `{}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for _, event := range events {
			_, _ = io.WriteString(w, "data: "+event+"\n\n")
		}
	})
}

// listening returns a request for a stream.
func listening(t *testing.T, path string, headers ...string) *http.Request {
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost"+path, nil)
	r.Header.Set("Accept", "text/event-stream")
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return r
}

// servesInPart returns the response of a gateway, which may be incomplete.
func servesInPart(h *Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	servesTo(w, h, r)
	return w
}

func servesTo(w http.ResponseWriter, h *Handler, r *http.Request) {
	defer func() {
		if reason := recover(); reason != nil && reason != http.ErrAbortHandler {
			panic(reason)
		}
	}()
	_ = h.ServeHTTP(w, prepared(r, w, ""), nil)
}

// A stream is a response that is read while it is written.
type stream struct {
	*httptest.ResponseRecorder
	until string

	mu    sync.Mutex
	heard chan struct{} // closed when until has been received
}

func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := strings.Contains(s.Body.String(), s.until)
	n, err := s.ResponseRecorder.Write(p)
	if !before && strings.Contains(s.Body.String(), s.until) {
		close(s.heard)
	}
	return n, err
}

// hears returns the response of a gateway up to a text.
func hears(t *testing.T, h *Handler, r *http.Request, until string) string {
	t.Helper()
	ctx, hangUp := context.WithCancel(r.Context())
	s := &stream{ResponseRecorder: httptest.NewRecorder(), until: until, heard: make(chan struct{})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		servesTo(s, h, r.WithContext(ctx))
	}()
	select {
	case <-s.heard:
	case <-ended:
	case <-time.After(await.Patience):
		t.Errorf("waited in vain for %s", until)
	}
	hangUp()
	<-ended
	return s.Body.String()
}

// boundEvent returns the ID of an event as the client of a session gets it at /mcp.
func boundEvent(session, id string) string {
	mac := hmac.New(sha256.New, processKey)
	mac.Write([]byte("event of a session\x00" + session + "\x00" + id))
	return id + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:16])
}

func TestListsThatAreResumed(t *testing.T) { // A54
	server := newWitness(t, func(w http.ResponseWriter, r *http.Request, got witnessed) {
		switch {
		case r.Method == http.MethodGet:
			saysInEvents(w,
				`{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"ok","inputSchema":{}},{"name":"secret","inputSchema":{}}]}}`,
				`{"jsonrpc":"2.0","method":"notifications/after"}`)
			<-r.Context().Done()
		case got.is("initialize"):
			says(w, got,
				`{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"x",`+
					`"version":"1"}}`)
		default:
			says(w, got, `{}`)
		}
	})
	h := adaptGateway(t, `{`+denies("a::secret")+`"servers":[`+server.line("a")+`]}`)
	for _, tt := range []struct{ path, last string }{
		{"/mcp/a", "L1"}, {"/mcp/a", ""}, {"/mcp", "call:MQ/a/L1"}, {"/mcp", "listen/a/L1"}, {"/mcp", ""},
	} {
		t.Run(tt.last+" at "+tt.path, func(t *testing.T) {
			headers := []string{"Last-Event-Id", tt.last}
			if tt.path == "/mcp" {
				id := session(t, h)
				headers = []string{"Last-Event-Id", boundEvent(id, tt.last), mcp.SessionHeader, id}
			}
			if got := hears(t, h, listening(t, tt.path, headers...), "notifications/after"); strings.Contains(got, "secret") ||
				!strings.Contains(got, "notifications/after") {
				t.Errorf("got %s", got)
			}
		})
	}
}

func TestWhatIsResumedIsCleaned(t *testing.T) { // A54
	server := streaming(t,
		`{"jsonrpc":"2.0","id":7,"result":{"tools":[{"name":"x","description":"a`+"\u202e"+`b","inputSchema":{}}]}}`)
	h := adaptGateway(t, `{"servers":[`+server.line("a")+`]}`)
	got := serves(t, h, listening(t, "/mcp/a", "Last-Event-Id", "1")).Body.String()
	if strings.Contains(got, "\u202e") || !strings.Contains(got, `"ab"`) {
		t.Errorf("got %q", got)
	}
}

func TestUpdatesOfWhatMayNotBeKnown(t *testing.T) { // A55, A68
	update := func(uri string) string {
		return `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"` + uri + `"}}`
	}
	t.Run("one by one", func(t *testing.T) {
		server := streaming(t, update("file:///secret/x"), update(`file:///s\u0065cret/y`),
			"\ufeff"+update("file:///secret/z"), update("file:///public/x"))
		h := adaptGateway(t, `{`+denies("resource:a::file:///secret/")+`"servers":[`+server.line("a")+`]}`)
		got := serves(t, h, listening(t, "/mcp/a")).Body.String()
		if strings.Contains(got, "cret/") || !strings.Contains(got, "file:///public/x") {
			t.Errorf("got %s", got)
		}
	})
	for name, event := range map[string]string{
		"in a batch": `[` + update("file:///secret/x") + `]`,
		"with two URIs": `{"jsonrpc":"2.0","method":"notifications/resources/updated",` +
			`"params":{"uri":"file:///public/x","uri":"file:///secret/x"}}`,
		"with a URI in other letters": `{"jsonrpc":"2.0","method":"notifications/resources/updated",` +
			`"params":{"uri":"file:///public/x","URI":"file:///secret/x"}}`,
		"as a method in other letters": `{"jsonrpc":"2.0","method":"vendor/x","Method":"notifications/resources/updated",` +
			`"params":{"uri":"file:///secret/x"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			h := adaptGateway(t, `{`+denies("resource:a::file:///secret/")+`"servers":[`+streaming(t, event).line("a")+`]}`)
			if got := servesInPart(h, listening(t, "/mcp/a")).Body.String(); strings.Contains(got, "secret/") {
				t.Errorf("got %s", got)
			}
		})
	}
}

func TestWhoElseMayHaveAResult(t *testing.T) { // A57
	server := newWitness(t, func(w http.ResponseWriter, _ *http.Request, got witnessed) {
		says(w, got, `{"resultType":"complete","tools":[],"contents":[],"ttlMs":600000,"cacheScope":"public"}`)
	})
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
		`"io.modelcontextprotocol/clientInfo":{"name":"x","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`
	for _, tt := range []struct {
		name, clients, user string
		public              bool
	}{
		{"no client has rules", ``, "ann", true},
		{"a client with rules",
			`"clients":[{"name":"ann","rules":[{"action":"deny","patterns":["a::secret"]}]}],`, "ann", false},
		{"a client without rules, where others have rules",
			`"clients":[{"name":"ann","rules":[{"action":"deny","patterns":["a::secret"]}]}],`, "bob", false},
		{"an anonymous client, where others have rules", `"clients":[{"name":"ann","redact":["x"]}],`, "", false},
	} {
		h := adaptGateway(t, `{`+tt.clients+`"servers":[`+server.line("a")+`]}`)
		for method, name := range map[string]string{"tools/list": "", "resources/read": "file:///x"} {
			for _, path := range single {
				t.Run(tt.name+": "+method+" at "+path, func(t *testing.T) {
					w := servesUser(t, h, tt.user,
						posting(path, `{"jsonrpc":"2.0","id":7,"method":"`+method+`","params":{"uri":"file:///x",`+meta+`}}`,
							mcp.VersionHeader, mcp.Stateless, "Mcp-Method", method, "Mcp-Name", name))
					if public := strings.Contains(w.Body.String(), `"cacheScope":"public"`); public != tt.public {
						t.Errorf("%d %s", w.Code, w.Body)
					}
				})
			}
		}
	}
}

func TestListsThatOnlySomeCanRead(t *testing.T) { // A54
	for name, before := range map[string]string{
		"two marks":             "\ufeff\ufeff",
		"marks and white space": "\ufeff \n\ufeff\t",
		"a comment":             "/**/",
		"a NUL":                 "\x00",
		"a vertical tab":        "\x0b",
		"another space":         "\u00a0",
		"a guard of scripts":    ")]}'\n",
	} {
		for _, kind := range []string{"application/json", ""} {
			for _, status := range []int{http.StatusOK, http.StatusCreated} {
				server := lister(t, func(w http.ResponseWriter, answer string) {
					w.Header()["Content-Type"] = []string{kind}
					w.WriteHeader(status)
					_, _ = io.WriteString(w, before+answer)
				})
				h := adaptGateway(t, `{`+denies("a::secret")+`"servers":[`+server.line("a")+`]}`)
				for _, path := range single {
					t.Run(fmt.Sprintf("%s before it, as %q with %d at %s", name, kind, status, path), func(t *testing.T) {
						if w := serves(t, h,
							posting(path, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)); strings.Contains(w.Body.String(), "secret") {
							t.Errorf("%d %q", w.Code, w.Body)
						}
					})
				}
			}
		}
	}
}

func TestToolsWithoutAName(t *testing.T) { // A54
	server := newWitness(t, func(w http.ResponseWriter, _ *http.Request, got witnessed) {
		says(w, got,
			`{"tools":[{"name":"ok"},{"name":["secret"]},{"name":null,"title":"secret"},{"title":"secret"},"secret",`+
				`["secret"]]}`)
	})
	h := adaptGateway(t, `{`+denies("a::secret")+`"servers":[`+server.line("a")+`]}`)
	for _, path := range single {
		w := serves(t, h, posting(path, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
		if got := w.Body.String(); strings.Contains(got, "secret") || !strings.Contains(got, `"ok"`) {
			t.Errorf("%s: %d %s", path, w.Code, got)
		}
	}
}

// oddities are messages that only servers may send, or that are ambiguous.
var oddities = map[string]string{
	"a notification of their own": `{"jsonrpc":"2.0","method":"notifications/vendor","params":{"Name":"x",` +
		`"URI":"y"}}`,
	"a notification with a member more": `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info",` +
		`"Level":"INFO","data":"x"}}`,
	"a batch":       `[{"jsonrpc":"2.0","method":"notifications/message","params":{}}]`,
	"an invalid id": `{"jsonrpc":"2.0","id":{},"method":"x"}`,
	"broken JSON":   `{broken`,
}

func TestStreamsGoOnAfterOddMessages(t *testing.T) { // A55, A59
	for name, guard := range map[string]string{
		"a rule for tools":     denies("a::secret"),
		"a rule for resources": denies("resource:a::file:///secret/"),
	} {
		for what, odd := range oddities {
			t.Run(name+": "+what, func(t *testing.T) {
				server := streaming(t, odd,
					`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"second"}}`)
				h := adaptGateway(t, `{`+guard+`"servers":[`+server.line("a")+`]}`)
				if got := servesInPart(h, listening(t, "/mcp/a")).Body.String(); !strings.Contains(got, "second") {
					t.Errorf("got %q", got)
				}
			})
		}
	}
}

func TestCallsGoOnAfterOddMessages(t *testing.T) { // A54, A55
	const vendor = `{"jsonrpc":"2.0","method":"notifications/vendor","params":{"Name":"x","Level":1}}`
	server := newWitness(t, func(w http.ResponseWriter, _ *http.Request, got witnessed) {
		switch {
		case got.is("initialize"):
			says(w, got, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}`)
		case got.is("tools/call"):
			answer := httptest.NewRecorder()
			says(answer, got, `{"content":[]}`)
			saysInEvents(w, vendor, answer.Body.String())
		default:
			says(w, got, `{"tools":[{"name":"x","inputSchema":{}}]}`)
		}
	})
	for _, pattern := range []string{"a::secret", "resource:a::file:///secret/"} {
		h := adaptGateway(t, `{`+denies(pattern)+`"servers":[`+server.line("a")+`]}`)
		for _, path := range append([]string{"/mcp"}, single...) {
			t.Run(pattern+" at "+path, func(t *testing.T) {
				call, headers := aCall, []string(nil)
				if path == "/mcp" {
					call, headers = strings.Replace(aCall, `"x"`, `"a::x"`, 1), []string{mcp.SessionHeader, session(t, h)}
				}
				if got := servesInPart(h, posting(path, call, headers...)).Body.String(); !strings.Contains(got, `"content":[]`) {
					t.Errorf("got %s", got)
				}
			})
		}
	}
	t.Run("rules for tools look at no answer to a call", func(t *testing.T) {
		server := newWitness(t, func(w http.ResponseWriter, _ *http.Request, _ witnessed) {
			saysInEvents(w, `[{"jsonrpc":"2.0","id":7,"result":{"content":[]}}]`)
		})
		h := adaptGateway(t, `{`+denies("a::secret")+`"servers":[`+server.line("a")+`]}`)
		if got := servesInPart(h, posting("/mcp/a", aCall)).Body.String(); !strings.Contains(got, `"content":[]`) {
			t.Errorf("got %s", got)
		}
	})
	t.Run("an answer that cannot be looked at is refused", func(t *testing.T) {
		server := newWitness(t, func(w http.ResponseWriter, _ *http.Request, _ witnessed) {
			saysInEvents(w, `{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"x"}}`,
				`{"jsonrpc":"2.0","id":7,"result":{"content":[]},"result":{}}`)
		})
		h := adaptGateway(t, `{`+denies("resource:a::file:///secret/")+`"servers":[`+server.line("a")+`]}`)
		got := serves(t, h, posting("/mcp/a", aCall)).Body.String()
		if !strings.Contains(got, "invalid_response") || !strings.Contains(got, `"id":7`) ||
			strings.Contains(got, `"content"`) {
			t.Errorf("got %s", got)
		}
	})
}

func TestWhatClientsSendBackIsNotRedacted(t *testing.T) { // A56
	const state = "0123456789abcdef0123456789abcdef"
	server := newWitness(t, func(w http.ResponseWriter, r *http.Request, got witnessed) {
		switch {
		case r.Method == http.MethodGet:
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "event: endpoint\ndata: /messages?session_id="+state+"\n\n")
		case got.is("tools/list"):
			says(w, got, `{"tools":[{"name":"x","description":"`+state+`"}],"nextCursor":"`+state+`"}`)
		default:
			says(w, got, `{"resultType":"input_required","requestState":"`+state+
				`","inputRequests":{"e":{"method":"elicitation/create","params":{"message":"`+state+`"}}}}`)
		}
	})
	h := adaptGateway(t, `{"clients":[{"name":"*","redact":["[0-9a-f]{32}"]}],"servers":[`+server.line("a")+`]}`)
	for message, member := range map[string]string{`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`: "nextCursor",
		modernCall: "requestState"} {
		got := serves(t, h, posting("/mcp/a", message, mcp.VersionHeader, mcp.Stateless)).Body.String()
		if !strings.Contains(got, `"`+member+`":"`+state+`"`) || strings.Count(got, state) != 1 {
			t.Errorf("%s: got %s", member, got)
		}
	}
	_, endpoint, _ := strings.Cut(servesInPart(h, listening(t, "/mcp/a")).Body.String(), "data: ")
	serves(t, h, posting(strings.TrimSpace(endpoint), `{"jsonrpc":"2.0","id":1,"method":"ping"}`))
	if all := server.saw(); !strings.HasSuffix(all[len(all)-1].uri, "session_id="+state) {
		t.Errorf("the client posts to %s", all[len(all)-1].uri)
	}
}

func TestEndpointsAreOfOneClient(t *testing.T) { // A30, A57
	server := newWitness(t, func(w http.ResponseWriter, r *http.Request, _ witnessed) {
		if r.Method == http.MethodGet {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "event: endpoint\ndata: /messages?session_id=anns\n\n")
			return
		}
		w.WriteHeader(http.StatusAccepted)
	})
	h := adaptGateway(t, `{"servers":[`+server.line("a")+`]}`)
	_, endpoint, _ := strings.Cut(servesUser(t, h, "ann", listening(t, "/mcp/a")).Body.String(), "data: ")
	endpoint = strings.TrimSpace(endpoint)
	for user, want := range map[string]bool{"ann": true, "bob": false, "": false} {
		before := len(server.saw())
		w := servesUser(t, h, user, posting(endpoint, aCall))
		if got := len(server.saw()) > before; got != want {
			t.Errorf("%q reaches the session of ann: %t, %d %s", user, got, w.Code, w.Body)
		}
	}
}
