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

	"go.opentelemetry.io/otel/trace"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// newListingServer starts a server with tools that clients may not see. write writes its lists.
func newListingServer(t *testing.T, write func(w http.ResponseWriter, answer string)) *recordingServer {
	return newRecordingServer(t, func(w http.ResponseWriter, _ *http.Request, got receivedRequest) {
		answer := httptest.NewRecorder()
		switch {
		case got.is("initialize"):
			respond(w, got, toolsHandshake)
			return
		case got.is("tools/list"):
			respond(answer, got, `{"tools":[{"name":"ok","inputSchema":{}},{"name":"secret","inputSchema":{}}]}`)
		default:
			respond(w, got, `{}`)
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
		"a body without a type": func(w http.ResponseWriter, answer string) {
			w.Header()["Content-Type"] = nil
			_, _ = io.WriteString(w, "\ufeff"+" "+answer)
		},
		"the data of an event": func(w http.ResponseWriter, answer string) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: "+"\ufeff"+answer+"\n\n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := adaptGateway(t, `{`+denyRules("a::secret")+`"servers":[`+newListingServer(t, write).config("a")+`]}`)
			for _, path := range append([]string{"/mcp"}, single...) {
				var headers []string
				if path == "/mcp" {
					headers = []string{mcp.SessionHeader, startSession(t, h)}
				}
				w := serve(t, h, newPost(path, list, headers...))
				if strings.Contains(w.Body.String(), "secret") {
					t.Errorf("%s: %d %s", path, w.Code, w.Body)
				}
			}
		})
	}
}

func TestChangedToolsWithAByteOrderMark(t *testing.T) { // A54
	version := "v1"
	server := newRecordingServer(t, func(w http.ResponseWriter, _ *http.Request, got receivedRequest) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w,
			"\ufeff"+`{"jsonrpc":"2.0","id":7,"result":{"tools":[{"name":"x","description":"`+version+`","inputSchema":{}}]}}`)
	})
	h := storedGateway(t, t.TempDir(), withPins(server.config("a"), true))
	for _, want := range []bool{true, false} {
		w := serve(t, h, newPost("/mcp/a", `{"jsonrpc":"2.0","id":7,"method":"tools/list"}`))
		if listed := strings.Contains(w.Body.String(), version); listed != want {
			t.Errorf("%s: listed %t, want %t", version, listed, want)
		}
		version = "v2"
	}
}

// newStreamingServer starts a server whose GET streams send events and end.
func newStreamingServer(t *testing.T, events ...string) *recordingServer {
	return newRecordingServer(t, func(w http.ResponseWriter, r *http.Request, got receivedRequest) {
		if r.Method != http.MethodGet {
			respond(w, got, `{}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for _, event := range events {
			_, _ = io.WriteString(w, "data: "+event+"\n\n")
		}
	})
}

// streamRequest returns a GET request for a stream. headers are pairs of name and value.
func streamRequest(t *testing.T, path string, headers ...string) *http.Request {
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost"+path, nil)
	r.Header.Set("Accept", "text/event-stream")
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return r
}

// servePartial returns the response of a gateway, which may be incomplete.
func servePartial(h *Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	serveTo(w, h, r)
	return w
}

func serveTo(w http.ResponseWriter, h *Handler, r *http.Request) {
	defer func() {
		if reason := recover(); reason != nil && reason != http.ErrAbortHandler {
			panic(reason)
		}
	}()
	_ = h.ServeHTTP(w, prepareRequest(r, w, ""), nil)
}

// A stream is a response whose beginning can be awaited.
type stream struct {
	*httptest.ResponseRecorder
	until string

	mu    sync.Mutex
	found chan struct{} // closed when the response contains until
}

func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := strings.Contains(s.Body.String(), s.until)
	n, err := s.ResponseRecorder.Write(p)
	if !before && strings.Contains(s.Body.String(), s.until) {
		close(s.found)
	}
	return n, err
}

// serveUntil returns the response of a gateway up to a text, and then disconnects.
func serveUntil(t *testing.T, h *Handler, r *http.Request, until string) string {
	t.Helper()
	ctx, hangUp := context.WithCancel(r.Context())
	s := &stream{ResponseRecorder: httptest.NewRecorder(), until: until, found: make(chan struct{})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		serveTo(s, h, r.WithContext(ctx))
	}()
	select {
	case <-s.found:
	case <-ended:
	case <-time.After(await.Patience):
		t.Errorf("timed out waiting for %s", until)
	}
	hangUp()
	<-ended
	return s.Body.String()
}

// boundEvent returns the id of an event as the client of a session gets it at /mcp.
func boundEvent(session, id string) string {
	mac := hmac.New(sha256.New, processKey)
	mac.Write([]byte("event of a session\x00" + session + "\x00" + id))
	return id + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:16])
}

func TestResumedLists(t *testing.T) { // A54
	server := newRecordingServer(t, func(w http.ResponseWriter, r *http.Request, got receivedRequest) {
		switch {
		case r.Method == http.MethodGet:
			respondEvents(w,
				`{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"ok","inputSchema":{}},{"name":"secret","inputSchema":{}}]}}`,
				`{"jsonrpc":"2.0","method":"notifications/after"}`)
			<-r.Context().Done()
		case got.is("initialize"):
			respond(w, got,
				`{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"x",`+
					`"version":"1"}}`)
		default:
			respond(w, got, `{}`)
		}
	})
	h := adaptGateway(t, `{`+denyRules("a::secret")+`"servers":[`+server.config("a")+`]}`)
	for _, tt := range []struct{ path, last string }{
		{"/mcp/a", "L1"}, {"/mcp/a", ""}, {"/mcp", "call:MQ/a/L1"}, {"/mcp", "listen/a/L1"}, {"/mcp", ""},
	} {
		t.Run(tt.last+" at "+tt.path, func(t *testing.T) {
			headers := []string{"Last-Event-Id", tt.last}
			if tt.path == "/mcp" {
				id := startSession(t, h)
				headers = []string{"Last-Event-Id", boundEvent(id, tt.last), mcp.SessionHeader, id}
			}
			got := serveUntil(t, h, streamRequest(t, tt.path, headers...), "notifications/after")
			if strings.Contains(got, "secret") || !strings.Contains(got, "notifications/after") {
				t.Errorf("got %s", got)
			}
		})
	}
}

func TestResumedListsAreCleaned(t *testing.T) { // A54
	server := newStreamingServer(t,
		`{"jsonrpc":"2.0","id":7,"result":{"tools":[{"name":"x","description":"a`+"\u202e"+`b","inputSchema":{}}]}}`)
	h := adaptGateway(t, `{"servers":[`+server.config("a")+`]}`)
	got := serve(t, h, streamRequest(t, "/mcp/a", "Last-Event-Id", "1")).Body.String()
	if strings.Contains(got, "\u202e") || !strings.Contains(got, `"ab"`) {
		t.Errorf("got %q", got)
	}
}

func TestUpdatesOfDeniedResources(t *testing.T) { // A55, A68
	update := func(uri string) string {
		return `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"` + uri + `"}}`
	}
	t.Run("single updates", func(t *testing.T) {
		server := newStreamingServer(t, update("file:///secret/x"), update(`file:///s\u0065cret/y`),
			"\ufeff"+update("file:///secret/z"), update("file:///public/x"))
		h := adaptGateway(t, `{`+denyRules("resource:a::file:///secret/")+`"servers":[`+server.config("a")+`]}`)
		got := serve(t, h, streamRequest(t, "/mcp/a")).Body.String()
		if strings.Contains(got, "cret/") || !strings.Contains(got, "file:///public/x") {
			t.Errorf("got %s", got)
		}
	})
	for name, event := range map[string]string{
		"a batch": `[` + update("file:///secret/x") + `]`,
		"two URIs": `{"jsonrpc":"2.0","method":"notifications/resources/updated",` +
			`"params":{"uri":"file:///public/x","uri":"file:///secret/x"}}`,
		"a URI member in another case": `{"jsonrpc":"2.0","method":"notifications/resources/updated",` +
			`"params":{"uri":"file:///public/x","URI":"file:///secret/x"}}`,
		"a method member in another case": `{"jsonrpc":"2.0","method":"vendor/x",` +
			`"Method":"notifications/resources/updated","params":{"uri":"file:///secret/x"}}`,
		"an escaped slash":  strings.Replace(update("file:///secret/x"), "resources/", `resources\/`, 1),
		"an escaped letter": strings.Replace(update("file:///secret/x"), "updated", `up\u0064ated`, 1),
	} {
		t.Run(name, func(t *testing.T) {
			server := newStreamingServer(t, event)
			h := adaptGateway(t, `{`+denyRules("resource:a::file:///secret/")+`"servers":[`+server.config("a")+`]}`)
			if got := servePartial(h, streamRequest(t, "/mcp/a")).Body.String(); strings.Contains(got, "secret/") {
				t.Errorf("got %s", got)
			}
		})
	}
}

func TestCacheScope(t *testing.T) { // A57
	server := newRecordingServer(t, func(w http.ResponseWriter, _ *http.Request, got receivedRequest) {
		respond(w, got, `{"resultType":"complete","tools":[],"contents":[],"ttlMs":600000,"cacheScope":"public"}`)
	})
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
		`"io.modelcontextprotocol/clientInfo":{"name":"x","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`
	for _, tt := range []struct {
		name, clients, user string
		public              bool
	}{
		{"no rules", ``, "ann", true},
		{"a client with rules",
			`"clients":[{"name":"ann","rules":[{"action":"deny","patterns":["a::secret"]}]}],`, "ann", false},
		{"a client without rules, while others have rules",
			`"clients":[{"name":"ann","rules":[{"action":"deny","patterns":["a::secret"]}]}],`, "bob", false},
		{"an anonymous client, while others have rules", `"clients":[{"name":"ann","redact":["x"]}],`, "", false},
	} {
		h := adaptGateway(t, `{`+tt.clients+`"servers":[`+server.config("a")+`]}`)
		for method, name := range map[string]string{"tools/list": "", "resources/read": "file:///x"} {
			for _, path := range single {
				t.Run(tt.name+": "+method+" at "+path, func(t *testing.T) {
					w := serveAs(t, h, tt.user,
						newPost(path, `{"jsonrpc":"2.0","id":7,"method":"`+method+`","params":{"uri":"file:///x",`+meta+`}}`,
							mcp.VersionHeader, mcp.Stateless, "Mcp-Method", method, "Mcp-Name", name))
					if public := strings.Contains(w.Body.String(), `"cacheScope":"public"`); public != tt.public {
						t.Errorf("%d %s", w.Code, w.Body)
					}
				})
			}
		}
	}
}

func TestListsWithOtherBytesInFront(t *testing.T) { // A54
	for name, before := range map[string]string{
		"two marks":             "\ufeff\ufeff",
		"marks and white space": "\ufeff \n\ufeff\t",
		"a comment":             "/**/",
		"a NUL":                 "\x00",
		"a vertical tab":        "\x0b",
		"another space":         "\u00a0",
		"a script guard":        ")]}'\n",
	} {
		for _, kind := range []string{"application/json", ""} {
			for _, status := range []int{http.StatusOK, http.StatusCreated} {
				server := newListingServer(t, func(w http.ResponseWriter, answer string) {
					w.Header()["Content-Type"] = []string{kind}
					w.WriteHeader(status)
					_, _ = io.WriteString(w, before+answer)
				})
				h := adaptGateway(t, `{`+denyRules("a::secret")+`"servers":[`+server.config("a")+`]}`)
				for _, path := range single {
					t.Run(fmt.Sprintf("%s before the list, as %q with %d at %s", name, kind, status, path), func(t *testing.T) {
						w := serve(t, h, newPost(path, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
						if strings.Contains(w.Body.String(), "secret") {
							t.Errorf("%d %q", w.Code, w.Body)
						}
					})
				}
			}
		}
	}
}

func TestToolsWithoutAName(t *testing.T) { // A54
	server := newRecordingServer(t, func(w http.ResponseWriter, _ *http.Request, got receivedRequest) {
		respond(w, got,
			`{"tools":[{"name":"ok"},{"name":["secret"]},{"name":null,"title":"secret"},{"title":"secret"},"secret",`+
				`["secret"]]}`)
	})
	h := adaptGateway(t, `{`+denyRules("a::secret")+`"servers":[`+server.config("a")+`]}`)
	for _, path := range single {
		w := serve(t, h, newPost(path, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
		if got := w.Body.String(); strings.Contains(got, "secret") || !strings.Contains(got, `"ok"`) {
			t.Errorf("%s: %d %s", path, w.Code, got)
		}
	}
}

// oddities are messages that only servers may send, or that are ambiguous.
var oddities = map[string]string{
	"a vendor notification": `{"jsonrpc":"2.0","method":"notifications/vendor","params":{"Name":"x",` +
		`"URI":"y"}}`,
	"a notification with an extra member": `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info",` +
		`"Level":"INFO","data":"x"}}`,
	"a batch":       `[{"jsonrpc":"2.0","method":"notifications/message","params":{}}]`,
	"an invalid id": `{"jsonrpc":"2.0","id":{},"method":"x"}`,
	"broken JSON":   `{broken`,
}

func TestStreamsGoOnAfterOddMessages(t *testing.T) { // A55, A59
	for name, guard := range map[string]string{
		"a rule for tools":     denyRules("a::secret"),
		"a rule for resources": denyRules("resource:a::file:///secret/"),
	} {
		for what, odd := range oddities {
			t.Run(name+": "+what, func(t *testing.T) {
				server := newStreamingServer(t, odd,
					`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"second"}}`)
				h := adaptGateway(t, `{`+guard+`"servers":[`+server.config("a")+`]}`)
				if got := servePartial(h, streamRequest(t, "/mcp/a")).Body.String(); !strings.Contains(got, "second") {
					t.Errorf("got %q", got)
				}
			})
		}
	}
}

func TestCallsGoOnAfterOddMessages(t *testing.T) { // A54, A55
	const vendor = `{"jsonrpc":"2.0","method":"notifications/vendor","params":{"Name":"x","Level":1}}`
	server := newRecordingServer(t, func(w http.ResponseWriter, _ *http.Request, got receivedRequest) {
		switch {
		case got.is("initialize"):
			respond(w, got, toolsHandshake)
		case got.is("tools/call"):
			answer := httptest.NewRecorder()
			respond(answer, got, `{"content":[]}`)
			respondEvents(w, vendor, answer.Body.String())
		default:
			respond(w, got, `{"tools":[{"name":"x","inputSchema":{}}]}`)
		}
	})
	for _, pattern := range []string{"a::secret", "resource:a::file:///secret/"} {
		h := adaptGateway(t, `{`+denyRules(pattern)+`"servers":[`+server.config("a")+`]}`)
		for _, path := range append([]string{"/mcp"}, single...) {
			t.Run(pattern+" at "+path, func(t *testing.T) {
				call, headers := aCall, []string(nil)
				if path == "/mcp" {
					call, headers = strings.Replace(aCall, `"x"`, `"a::x"`, 1), []string{mcp.SessionHeader, startSession(t, h)}
				}
				if got := servePartial(h, newPost(path, call, headers...)).Body.String(); !strings.Contains(got, `"content":[]`) {
					t.Errorf("got %s", got)
				}
			})
		}
	}
	t.Run("rules for tools do not concern results of calls", func(t *testing.T) {
		server := newRecordingServer(t, func(w http.ResponseWriter, _ *http.Request, _ receivedRequest) {
			respondEvents(w, `[{"jsonrpc":"2.0","id":7,"result":{"content":[]}}]`)
		})
		h := adaptGateway(t, `{`+denyRules("a::secret")+`"servers":[`+server.config("a")+`]}`)
		if got := servePartial(h, newPost("/mcp/a", aCall)).Body.String(); !strings.Contains(got, `"content":[]`) {
			t.Errorf("got %s", got)
		}
	})
	t.Run("an ambiguous response is refused", func(t *testing.T) {
		server := newRecordingServer(t, func(w http.ResponseWriter, _ *http.Request, _ receivedRequest) {
			respondEvents(w, `{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"x"}}`,
				`{"jsonrpc":"2.0","id":7,"result":{"content":[]},"result":{}}`)
		})
		h := adaptGateway(t, `{`+denyRules("resource:a::file:///secret/")+`"servers":[`+server.config("a")+`]}`)
		got := serve(t, h, newPost("/mcp/a", aCall)).Body.String()
		if !strings.Contains(got, "invalid_response") || !strings.Contains(got, `"id":7`) ||
			strings.Contains(got, `"content"`) {
			t.Errorf("got %s", got)
		}
	})
}

func TestCursorsAndStatesAreNotRedacted(t *testing.T) { // A56
	const state = "0123456789abcdef0123456789abcdef"
	server := newRecordingServer(t, func(w http.ResponseWriter, r *http.Request, got receivedRequest) {
		switch {
		case r.Method == http.MethodGet:
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "event: endpoint\ndata: /messages?session_id="+state+"\n\n")
		case got.is("tools/list"):
			respond(w, got, `{"tools":[{"name":"x","description":"`+state+`"}],"nextCursor":"`+state+`"}`)
		default:
			respond(w, got, `{"resultType":"input_required","requestState":"`+state+
				`","inputRequests":{"e":{"method":"elicitation/create","params":{"message":"`+state+`"}}}}`)
		}
	})
	h := adaptGateway(t, `{"clients":[{"name":"*","redact":["[0-9a-f]{32}"]}],"servers":[`+server.config("a")+`]}`)
	for message, member := range map[string]string{`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`: "nextCursor",
		modernCall: "requestState"} {
		got := serve(t, h, newPost("/mcp/a", message, mcp.VersionHeader, mcp.Stateless)).Body.String()
		if !strings.Contains(got, `"`+member+`":"`+state+`"`) || strings.Count(got, state) != 1 {
			t.Errorf("%s: got %s", member, got)
		}
	}
	_, endpoint, _ := strings.Cut(servePartial(h, streamRequest(t, "/mcp/a")).Body.String(), "data: ")
	serve(t, h, newPost(strings.TrimSpace(endpoint), `{"jsonrpc":"2.0","id":1,"method":"ping"}`))
	if all := server.requests(); !strings.HasSuffix(all[len(all)-1].uri, "session_id="+state) {
		t.Errorf("the client posted to %s", all[len(all)-1].uri)
	}
}

func TestEndpointsAreBoundToClients(t *testing.T) { // A30, A57
	server := newRecordingServer(t, func(w http.ResponseWriter, r *http.Request, _ receivedRequest) {
		if r.Method == http.MethodGet {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "event: endpoint\ndata: /messages?session_id=anns\n\n")
			return
		}
		w.WriteHeader(http.StatusAccepted)
	})
	h := adaptGateway(t, `{"servers":[`+server.config("a")+`]}`)
	_, endpoint, _ := strings.Cut(serveAs(t, h, "ann", streamRequest(t, "/mcp/a")).Body.String(), "data: ")
	endpoint = strings.TrimSpace(endpoint)
	for user, want := range map[string]bool{"ann": true, "bob": false, "": false} {
		before := len(server.requests())
		w := serveAs(t, h, user, newPost(endpoint, aCall))
		if got := len(server.requests()) > before; got != want {
			t.Errorf("%q reached the session of ann: %t, %d %s", user, got, w.Code, w.Body)
		}
	}
}

// withSpan returns a request that belongs to a trace.
func withSpan(r *http.Request) *http.Request {
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2},
		TraceFlags: trace.FlagsSampled})
	return r.WithContext(trace.ContextWithSpanContext(r.Context(), span))
}

// A trace does not change the meaning of a message, not even of an odd one.
func TestTracesOfOddMessages(t *testing.T) { // A54
	server := newRecordingServer(t, func(w http.ResponseWriter, _ *http.Request, got receivedRequest) {
		if got.is("initialize") {
			respond(w, got, toolsHandshake)
			return
		}
		respond(w, got, `{"tools":[{"name":"ok","inputSchema":{}},{"name":"secret","inputSchema":{}}]}`)
	})
	h := adaptGateway(t,
		`{`+denyRules("a::secret")+`"servers":[`+server.config("a")+`,`+serverOf("dead", proxyTo("", "127.0.0.1:1"))+`]}`)
	for _, tt := range []struct {
		name, params string
		told         bool // the server gets the trace
	}{
		{"no params", ``, true},
		{"params", `,"params":{}`, true},
		{"params that are null", `,"params":null`, true},
		{"params that are a list", `,"params":[1]`, false},
		{"params that are a string", `,"params":"x"`, false},
		{"meta", `,"params":{"_meta":{}}`, true},
		{"meta with another member", `,"params":{"_meta":{"x":1}}`, true},
		{"meta that is null", `,"params":{"_meta":null}`, true},
		{"meta that is a list", `,"params":{"_meta":[]}`, true},
		{"a trace that is null", `,"params":{"_meta":{"traceparent":null}}`, false},
	} {
		message := `{"jsonrpc":"2.0","id":7,"method":"tools/list"` + tt.params + `}`
		for _, path := range append([]string{"/mcp"}, single...) {
			t.Run(tt.name+" at "+path, func(t *testing.T) {
				var headers []string
				if path == "/mcp" {
					headers = []string{mcp.SessionHeader, startSession(t, h)}
				}
				before := len(server.requests())
				w := serve(t, h, withSpan(newPost(path, message, headers...)))
				if got := w.Body.String(); strings.Contains(got, "secret") || !strings.Contains(got, `"id":7`) {
					t.Errorf("got %s", got)
				}
				if path == "/mcp" {
					return // the gateway sends its own requests
				}
				var m jsonrpc.Message
				all := server.requests()[before:]
				if len(all) != 1 || m.ReadRequest([]byte(all[0].body)) != nil {
					t.Fatalf("the server got %+v", all)
				}
				if told := strings.HasPrefix(m.Text(jsonrpc.Traceparent), "00-01"); told != tt.told ||
					!m.Is(jsonrpc.Method, "tools/list") {
					t.Errorf("the server got %s", all[0].body)
				}
			})
		}
		for _, path := range []string{"/mcp/dead", "/api/mcp-gateway/dead/rpc"} {
			t.Run(tt.name+" at "+path, func(t *testing.T) {
				if w := serve(t, h, withSpan(newPost(path, message))); !strings.Contains(w.Body.String(), `"id":7`) {
					t.Errorf("%d %s", w.Code, w.Body)
				}
			})
		}
	}
}
