package mcpgateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

const (
	aCall      = `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"x"}}`
	modernMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
		`"io.modelcontextprotocol/clientInfo":{"name":"x","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`
	modernCall = `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"x",` + modernMeta + `}}`

	answersRoots  = `"answers":[{"method":"roots/list","roots":["file:///x"]}],`
	dropsSampling = `"answers":[{"method":"sampling/*","action":"drop"}],`
	asksForRoots  = `{"jsonrpc":"2.0","id":99,"method":"roots/list"}`
)

// respondEvents responds with events.
func respondEvents(w http.ResponseWriter, events ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, event := range events {
		_, _ = io.WriteString(w, "data: "+event+"\n\n")
	}
	_ = http.NewResponseController(w).Flush()
}

// receive receives a value, or fails the test after await.Patience.
func receive[T any](t *testing.T, what string, c <-chan T) (got T) {
	t.Helper()
	select {
	case got = <-c:
	case <-time.After(await.Patience):
		t.Errorf("timed out waiting: %s", what)
	}
	return got
}

// newAskingServer starts a server that sends roots/list during each call.
func newAskingServer(t *testing.T) *recordingServer {
	answered := make(chan struct{}, 1)
	return newRecordingServer(t, func(w http.ResponseWriter, _ *http.Request, got receivedRequest) {
		switch {
		case got.is("initialize"):
			respond(w, got, toolsHandshake)
		case got.is("tools/call"):
			respondEvents(w, asksForRoots)
			receive(t, "the answer", answered)
			var call struct{ ID json.RawMessage }
			_ = json.Unmarshal([]byte(got.body), &call)
			respondEvents(w, `{"jsonrpc":"2.0","id":`+string(call.ID)+`,"result":{"content":[]}}`)
		case strings.Contains(got.body, `"roots":[`):
			w.WriteHeader(http.StatusAccepted)
			answered <- struct{}{}
		default:
			respond(w, got, `{}`)
		}
	})
}

// changingRoutes returns routes that change each request. They use placeholders, and show if they
// run twice for one request.
func changingRoutes(address string) string {
	return `{"handler":"rewrite","uri":"/v2{http.request.uri}"},{"handler":"headers",` +
		`"request":{"add":{"X-Added":["1"]}}},` +
		proxyTo(`,"headers":{"request":{"set":{"X-Server":["{http.mcp.server}"],"X-Client":["{http.mcp.client}"],`+
			`"X-User":["{http.auth.user.id}"],"X-Tenant":["{http.vars.tenant}"]}}}`, address)
}

// routeChanges returns the changes of changingRoutes in a request.
func (w receivedRequest) routeChanges() string {
	return fmt.Sprint(w.uri, w.header["X-Added"], w.header["X-Server"], w.header["X-Client"], w.header["X-User"],
		w.header["X-Tenant"])
}

const asBob = "/v2/rpc[1] [a] [bob] [bob] [tenant of bob]"

func TestAnswersPassTheRoutesOfTheServer(t *testing.T) { // A59
	server := newAskingServer(t)
	h := adaptGateway(t,
		`{"servers":[{"name":"a",`+answersRoots+`"routes":[{"handle":[`+changingRoutes(server.address)+`]}]}]}`)
	for _, path := range append([]string{"/mcp"}, single...) {
		t.Run(path, func(t *testing.T) {
			message, headers := aCall, []string(nil)
			if path == "/mcp" {
				w := serveAs(t, h, "bob",
					newPost("/mcp",
						`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},`+
							`"clientInfo":{"name":"x","version":"1"}}}`))
				message, headers = strings.Replace(aCall, `"x"`, `"a::x"`, 1),
					[]string{mcp.SessionHeader, w.Header().Get(mcp.SessionHeader)}
			}
			before := len(server.requests())
			w := serveAs(t, h, "bob", newPost(path, message, headers...))
			if got := w.Body.String(); !strings.Contains(got, `"content":[]`) || strings.Contains(got, "roots/list") {
				t.Errorf("%d %s", w.Code, got)
			}
			all := server.requests()[before:]
			if !slices.ContainsFunc(all, func(got receivedRequest) bool { return strings.Contains(got.body, "file:///x") }) {
				t.Fatalf("the server got %+v", all)
			}
			for _, got := range all {
				if got.routeChanges() != asBob {
					t.Errorf("%s passed the routes as %s, want %s", got.body, got.routeChanges(), asBob)
				}
			}
		})
	}
}

func TestEndlessServerRequests(t *testing.T) { // A59
	release := make(chan struct{})
	var received atomic.Int32
	server := newRecordingServer(t, func(w http.ResponseWriter, r *http.Request, got receivedRequest) {
		if !got.is("tools/call") {
			received.Add(1)
			<-release // the server does not respond to other messages
			return
		}
		for i := range 1000 {
			respondEvents(w, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"sampling/createMessage"}`, i))
		}
		respondEvents(w, `{"jsonrpc":"2.0","id":7,"result":{"content":[]}}`)
	})
	h := adaptGateway(t,
		`{"servers":[{"name":"a",`+dropsSampling+`"routes":[{"handle":[`+proxyTo("", server.address)+`]}]}]}`)
	for _, path := range single {
		done := make(chan string, 1)
		go func() { done <- servePartial(h, newPost(path, aCall)).Body.String() }()
		if got := receive(t, "the answer at "+path, done); !strings.Contains(got, `"content":[]`) ||
			strings.Contains(got, "sampling") {
			t.Errorf("%s: %.300s", path, got)
		}
	}
	close(release)
	h.gateway.WaitForSideRequests()
	if n := received.Load(); n == 0 || n > int32(len(single))*64 {
		t.Errorf("the server received %d responses at once", n)
	}
}

func TestAmbiguousServerRequests(t *testing.T) { // A59
	var event atomic.Value
	server := newRecordingServer(t, func(w http.ResponseWriter, _ *http.Request, got receivedRequest) {
		if !got.is("tools/call") {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		respondEvents(w, event.Load().(string), `{"jsonrpc":"2.0","id":7,"result":{"content":[]}}`)
	})
	h := adaptGateway(t,
		`{"servers":[{"name":"a",`+dropsSampling+`"routes":[{"handle":[`+proxyTo("", server.address)+`]}]}]}`)
	for _, tt := range []struct{ name, event string }{
		{"a valid request", `{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{}}`},
		{"escapes", `{"jsonrpc":"2.0","id":1,"m\u0065thod":"s\u0061mpling/createMessage","params":{}}`},
		{"a byte order mark", "\ufeff" + `{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{}}`},
		{"a batch", `[{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{}}]`},
		{"two methods", `{"jsonrpc":"2.0","id":1,"method":"x","method":"sampling/createMessage","params":{}}`},
		{"an id that is a list", `{"jsonrpc":"2.0","id":[1],"method":"sampling/createMessage","params":{}}`},
		{"a method member in another case", `{"jsonrpc":"2.0","id":1,"Method":"sampling/createMessage","params":{}}`},
		{"two method members, one in another case",
			`{"jsonrpc":"2.0","id":1,"method":"x","METHOD":"sampling/createMessage","params":{}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			event.Store(tt.event)
			for _, path := range single {
				if got := servePartial(h, newPost(path, aCall)).Body.String(); strings.Contains(got, "createMessage") {
					t.Errorf("%s: %s", path, got)
				}
			}
		})
	}
}

// inputRequests are server requests of the modern era that the gateway must not forward.
var inputRequests = map[string]string{
	"as it should be": `{"k":{"method":"sampling/createMessage","params":{}}}`,
	"with another request": `{"l":{"method":"elicitation/create"},"k":{"method":"sampling/createMessage",` +
		`"params":{}}}`,
	"with a method in another case": `{"k":{"method":"sampling/createMessage","Method":"foo","params":{}}}`,
	"only in another case":          `{"k":{"Method":"sampling/createMessage","params":{}}}`,
	"with two methods":              `{"k":{"method":"sampling/createMessage","method":"foo","params":{}}}`,
	"with a duplicate key":          `{"k":{"method":"sampling/createMessage","params":{}},"k":{"method":"foo"}}`,
	"before others in another case": `{"k":{"method":"sampling/createMessage","params":{}}},` +
		`"InputRequests":{"k":{"method":"foo"}}`,
	"before a number in another case": `{"k":{"method":"sampling/createMessage","params":{}}},"InputRequests":7`,
	"with a number":                   `{"k":{"method":"sampling/createMessage","params":{}},"l":7}`,
	"with a request without a method": `{"k":{"method":"sampling/createMessage","params":{}},"l":{}}`,
	"given twice": `{"k":{"method":"sampling/createMessage","params":{}}},` +
		`"inputRequests":{"k":{"method":"foo"}}`,
	"with a method that is not a string": `{"k":{"method":["sampling/createMessage"],"params":{}}}`,
	"in a list":                          `[{"method":"sampling/createMessage","params":{}}]`,
}

func TestDroppedInputRequests(t *testing.T) { // A59
	var requests atomic.Value
	var other atomic.Bool
	server := newRecordingServer(t, func(w http.ResponseWriter, _ *http.Request, got receivedRequest) {
		kind := mcp.InputRequired
		if other.Load() {
			kind = "complete"
		}
		respond(w, got, `{"resultType":"`+kind+`","inputRequests":`+requests.Load().(string)+`}`)
	})
	h := adaptGateway(t,
		`{"servers":[{"name":"a",`+dropsSampling+`"routes":[{"handle":[`+proxyTo("", server.address)+`]}]}]}`)
	for name, asks := range inputRequests {
		t.Run(name, func(t *testing.T) {
			requests.Store(asks)
			for _, path := range single {
				for _, headers := range [][]string{nil,
					{mcp.VersionHeader, mcp.Stateless, "Mcp-Method", "tools/call", "Mcp-Name", "x"}} {
					w := servePartial(h, newPost(path, modernCall, headers...))
					if got := w.Body.String(); strings.Contains(got, "createMessage") && strings.Contains(got, "inputRequests") ||
						!strings.Contains(got, `"error"`) {
						t.Errorf("%s %v: %s", path, headers, got)
					}
				}
			}
		})
	}
	t.Run("a result type in another case", func(t *testing.T) {
		requests.Store(inputRequests["as it should be"] + `,"ResultType":"input_required"`)
		other.Store(true)
		defer other.Store(false)
		for _, path := range single {
			if got := servePartial(h, newPost(path, modernCall)).Body.String(); strings.Contains(got, "createMessage") {
				t.Errorf("%s: %s", path, got)
			}
		}
	})
	t.Run("a server request that no rule drops", func(t *testing.T) {
		requests.Store(`{"k":{"method":"elicitation/create","params":{}}}`)
		for _, path := range single {
			if got := serve(t, h, newPost(path, modernCall)).Body.String(); !strings.Contains(got, "elicitation/create") {
				t.Errorf("%s: %s", path, got)
			}
		}
	})
}

func TestRepeatedCalls(t *testing.T) { // A59
	const result = `{"resultType":"complete","content":[{"type":"text","text":"done"}]}`
	server := newRecordingServer(t, func(w http.ResponseWriter, _ *http.Request, got receivedRequest) {
		switch {
		case !strings.Contains(got.body, "inputResponses"):
			respond(w, got, `{"resultType":"input_required","inputRequests":{"k":{"method":"roots/list"}},"requestState":"s"}`)
		case strings.Contains(got.body, `"name":"long"`):
			respond(w, got, strings.Replace(result, "done", strings.Repeat("x", 5000), 1))
		default:
			respond(w, got, result)
		}
	})
	h := adaptGateway(t, `{"response_limit":1000,"servers":[{"name":"a","mask":{"max_chars":0},`+answersRoots+
		`"routes":[{"handle":[`+changingRoutes(server.address)+`]}]}]}`)
	for _, path := range single {
		for name, headers := range map[string][]string{
			"has the version in a header": {mcp.VersionHeader, mcp.Stateless, "Mcp-Method", "tools/call", "Mcp-Name", "x"},
			"has it in the message only":  nil,
		} {
			t.Run("a client that "+name+" at "+path, func(t *testing.T) {
				before := len(server.requests())
				w := serveAs(t, h, "bob", newPost(path, modernCall, headers...))
				if !strings.Contains(w.Body.String(), `"done"`) {
					t.Errorf("%d %s", w.Code, w.Body)
				}
				all := server.requests()[before:]
				if len(all) != 2 {
					t.Fatalf("the server got %+v", all)
				}
				for _, got := range all {
					if got.routeChanges() != asBob {
						t.Errorf("%s passed the routes as %s, want %s", got.body, got.routeChanges(), asBob)
					}
				}
				if again := all[1].body; !strings.Contains(again, `"requestState":"s"`) ||
					!strings.Contains(again, `"roots":[{"uri":"file:///x"}]`) {
					t.Errorf("repeated as %s", again)
				}
			})
		}
		t.Run("a response that is too long at "+path, func(t *testing.T) {
			w := serveAs(t, h, "bob", newPost(path, strings.Replace(modernCall, `"name":"x"`, `"name":"long"`, 1)))
			if got := w.Body.String(); strings.Contains(got, "xxx") || !strings.Contains(got, `"error"`) {
				t.Errorf("%d %.300s", w.Code, got)
			}
		})
	}
	t.Run("a message without the version at /rpc", func(t *testing.T) {
		if got := serve(t, h, newPost("/api/mcp-gateway/a/rpc", aCall)).Body.String(); !strings.Contains(got, `"done"`) {
			t.Errorf("got %s", got)
		}
	})
}

func TestDroppedNotificationsInvalidateLists(t *testing.T) { // A37, A59, A60
	var version atomic.Int32
	say := make(chan string)
	server := newRecordingServer(t, func(w http.ResponseWriter, r *http.Request, got receivedRequest) {
		switch {
		case r.Method == http.MethodGet:
			respondEvents(w)
			for {
				select {
				case event := <-say:
					respondEvents(w, event)
				case <-r.Context().Done():
					return
				}
			}
		case got.is("initialize"):
			respond(w, got,
				`{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"x",`+
					`"version":"1"}}`)
		case got.is("tools/list"):
			respond(w, got, fmt.Sprintf(`{"tools":[{"name":"v%d","inputSchema":{}}]}`, version.Load()))
		default:
			respond(w, got, `{}`)
		}
	})
	h := adaptGateway(t,
		`{"servers":[{"name":"a","answers":[{"method":"notifications/*","action":"drop"}],"routes":[{"handle":[`+
			proxyTo("", server.address)+`]}]}]}`)
	id := startSession(t, h)
	ctx, hangUp := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		servePartial(h, streamRequest(t, "/mcp", mcp.SessionHeader, id).WithContext(ctx))
	}()
	defer func() {
		hangUp()
		<-ended
	}()
	list := func() string {
		return serve(t, h,
			newPost("/mcp", `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`, mcp.SessionHeader, id)).Body.String()
	}
	await.Until(t, "the list is cached", func() bool {
		before := len(server.requests())
		list()
		return len(server.requests()) == before
	})
	if got := list(); !strings.Contains(got, "a::v0") {
		t.Fatalf("got %s", got)
	}
	version.Store(1)
	sendTo(t, "the stream", say, `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
	await.Until(t, "the new list", func() bool { return strings.Contains(list(), "a::v1") })
}

// sendTo sends a message, or fails the test after await.Patience.
func sendTo(t *testing.T, what string, to chan<- string, message string) {
	t.Helper()
	select {
	case to <- message:
	case <-time.After(await.Patience):
		t.Fatalf("timed out waiting: %s", what)
	}
}

func TestAnswersToTheFirstRevision(t *testing.T) { // A59
	answered := make(chan string, 1)
	server := newRecordingServer(t, func(w http.ResponseWriter, r *http.Request, got receivedRequest) {
		if r.Method == http.MethodGet {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "event: endpoint\ndata: /messages?sid=1\n\n")
			respondEvents(w, asksForRoots)
			answered <- receive(t, "the answer", answered) // passes it on to the test
			return
		}
		w.WriteHeader(http.StatusAccepted)
		answered <- got.method + " " + got.uri + " " + got.body
	})
	h := adaptGateway(t,
		`{"servers":[{"name":"a","path":"/sse",`+answersRoots+`"routes":[{"handle":[`+proxyTo("", server.address)+`]}]}]}`)
	w := serve(t, h, streamRequest(t, "/mcp/a", mcp.VersionHeader, "2025-06-18"))
	if got := w.Body.String(); strings.Contains(got, "roots/list") || !strings.Contains(got, "event: endpoint") {
		t.Errorf("got %s", got)
	}
	if got := receive(t, "the answer", answered); !strings.HasPrefix(got, "POST /messages?sid=1 {") ||
		!strings.Contains(got, "file:///x") {
		t.Errorf("got response %s", got)
	}
}

func TestInvalidSettings(t *testing.T) { // A36, A58, A59
	server := serverOf("a", staticHandler)
	for _, tt := range []struct{ name, config, err string }{
		{"a health interval that is too short", `"health_interval":1,"servers":[` + server + `]`,
			"health_interval: 1ns is shorter than 100ms"},
		{"a cancellation in a route",
			`"notification_routes":[{"method":"notifications/cancelled","servers":["a"]}],"servers":[` + server + `]`,
			"notifications/cancelled cannot be routed"},
		{"a handshake in a route",
			`"notification_routes":[{"method":"notifications/initialized","servers":["a"]}],"servers":[` + server + `]`,
			"notifications/initialized cannot be routed"},
		{"progress in a route",
			`"notification_routes":[{"method":"notifications/progress","servers":["a"]}],"servers":[` + server + `]`,
			"notifications/progress cannot be routed"},
		{"a root that is not a URI",
			`"servers":[{"name":"a","answers":[{"method":"roots/list","roots":["not a uri"]}],"routes":[{"handle":[` +
				staticHandler + `]}]}]`, `roots: "not a uri" is not a URI`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, err := caddy.ProvisionContext(new(caddy.Config))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := caddy.NewContext(ctx)
			defer cancel()
			if _, err = ctx.LoadModuleByID("http.handlers.mcp_gateway", json.RawMessage(`{`+tt.config+`}`)); err == nil ||
				!strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestRestartAfterDisconnect(t *testing.T) { // A62, A72
	a := newAdmin(t, `{"name":"left","servers":[`+serverOf("alpha",
		proxyTo(childTransport("--init-delay", "0.1"), "alpha:1", "alpha:2"))+`]}`)
	ctx, leave := context.WithCancel(t.Context())
	leave()
	w := httptest.NewRecorder()
	a.mux.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "POST", "/mcp_gateway/servers/alpha/restart", nil))
	var got adminapi.ServerStatus
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if len(got.Children) != 2 ||
		slices.ContainsFunc(got.Children, func(c adminapi.ChildStatus) bool { return c.PID == 0 }) {
		t.Errorf("not all children were restarted: %+v", got.Children)
	}
}

func TestResultsOfRepeatedCalls(t *testing.T) { // A59
	const asks = `{"resultType":"input_required","inputRequests":{"k":{"method":"roots/list"}},"requestState":"s"}`
	for _, tt := range []struct{ name, answer, want string }{
		{"a result", `{"resultType":"complete","content":[]}`, `"content":[]`},
		{"a result type in another case",
			`{"resultType":"complete","ResultType":"input_required","inputRequests":{"s":{"method":"sampling/createMessage"}}}`,
			`"error"`},
		{"input requests in another case",
			`{"resultType":"input_required","inputRequests":{},"InputRequests":{"s":{"method":"sampling/createMessage"}}}`,
			`"error"`},
		{"a dropped input request",
			`{"resultType":"input_required","inputRequests":{"s":{"method":"sampling/createMessage"}}}`, `"error"`},
	} {
		for _, mark := range []string{"", "\ufeff", "\ufeff\ufeff"} {
			server := newRecordingServer(t, func(w http.ResponseWriter, _ *http.Request, got receivedRequest) {
				if !strings.Contains(got.body, "inputResponses") {
					respond(w, got, asks)
					return
				}
				answer := httptest.NewRecorder()
				respond(answer, got, tt.answer)
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, mark+answer.Body.String())
			})
			h := adaptGateway(t,
				`{"servers":[{"name":"a","answers":[{"method":"roots/list","roots":["file:///x"]},{"method":"sampling/*",`+
					`"action":"drop"}],"routes":[{"handle":[`+proxyTo("", server.address)+`]}]}]}`)
			for _, path := range single {
				t.Run(fmt.Sprintf("%s after %d marks at %s", tt.name, len(mark)/3, path), func(t *testing.T) {
					w := serve(t, h,
						newPost(path, modernCall, mcp.VersionHeader, mcp.Stateless, "Mcp-Method", "tools/call", "Mcp-Name", "x"))
					if got := w.Body.String(); !strings.Contains(got, tt.want) || strings.Contains(got, `"sampling/createMessage"}`) {
						t.Errorf("%d %s", w.Code, got)
					}
				})
			}
		}
	}
}

func TestManyClientsAreAskedAtOnce(t *testing.T) { // A59
	const clients = 100
	all := make(chan struct{}) // closed when all responses have arrived
	var answers atomic.Int32
	server := newRecordingServer(t, func(w http.ResponseWriter, r *http.Request, got receivedRequest) {
		if got.is("tools/call") {
			respondEvents(w, asksForRoots)
		} else if answers.Add(1) == clients {
			close(all)
		}
		select {
		case <-all:
		case <-r.Context().Done():
			return
		}
		if got.is("tools/call") {
			respondEvents(w, `{"jsonrpc":"2.0","id":7,"result":{"content":[]}}`)
		}
	})
	h := adaptGateway(t,
		`{"servers":[{"name":"a",`+answersRoots+`"routes":[{"handle":[`+proxyTo("", server.address)+`]}]}]}`)
	ctx, hangUp := context.WithCancel(t.Context())
	defer hangUp()
	done := make(chan string, clients)
	for range clients {
		go func() { done <- servePartial(h, newPost("/mcp/a", aCall).WithContext(ctx)).Body.String() }()
	}
	if receive(t, "the responses to all server requests", all); t.Failed() {
		return
	}
	for range clients {
		if got := receive(t, "a call", done); !strings.Contains(got, `"content":[]`) {
			t.Errorf("got %s", got)
		}
	}
	h.gateway.WaitForSideRequests()
}

func TestGatewaysThatShareAChildAnswerForThemselves(t *testing.T) { // A59
	child := proxyTo(childTransport(), "alpha:1")
	begin := func(name, answers string) (h *Handler, unload func()) {
		h, unload = loadGateway(t, t.TempDir(),
			`{"name":"`+name+`","servers":[{"name":"a",`+answers+`"routes":[{"handle":[`+child+`]}]}]}`)
		h.Servers[0].answerChildren()
		return h, unload
	}
	askRoots := func(h *Handler) string {
		return serve(t, h,
			newPost("/api/mcp-gateway/a/rpc",
				`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ask-roots","arguments":{}}}`)).Body.String()
	}
	one, _ := begin("one", answersRoots)
	alone := askRoots(one)
	if !strings.Contains(alone, "file:///x") {
		t.Fatalf("alone: %s", alone)
	}
	if begin("two", ""); askRoots(one) != alone {
		t.Errorf("with a gateway that answers nothing: %s", askRoots(one))
	}
	_, unload := begin("three", `"answers":[{"method":"*","action":"drop"}],`)
	if unload(); askRoots(one) != alone {
		t.Errorf("after a gateway that drops everything: %s", askRoots(one))
	}
}

func TestUndeliveredAnswers(t *testing.T) { // A59
	server := newRecordingServer(t, func(w http.ResponseWriter, _ *http.Request, got receivedRequest) {
		if got.is("tools/call") {
			respondEvents(w, asksForRoots, `{"jsonrpc":"2.0","id":7,"result":{"content":[]}}`)
			return
		}
		w.WriteHeader(http.StatusInternalServerError)
	})
	h := adaptGateway(t,
		`{"servers":[{"name":"a",`+answersRoots+`"routes":[{"handle":[`+proxyTo("", server.address)+`]}]}]}`)
	core, logs := observer.New(zap.WarnLevel)
	h.logger = zap.New(core)
	if err := errors.Join(h.closeGateway(), h.newGateway()); err != nil {
		t.Fatal(err)
	}
	serve(t, h, newPost("/mcp/a", aCall))
	h.gateway.WaitForSideRequests()
	if got := logs.FilterMessage("response to MCP server not delivered").All(); len(got) != 1 ||
		got[0].ContextMap()["mcp_server"] != "a" {
		t.Errorf("logged %v", logs.All())
	}
}
