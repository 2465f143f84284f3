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

// saysInEvents responds with events.
func saysInEvents(w http.ResponseWriter, events ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, event := range events {
		_, _ = io.WriteString(w, "data: "+event+"\n\n")
	}
	_ = http.NewResponseController(w).Flush()
}

// waits waits for a value that must arrive.
func waits[T any](t *testing.T, what string, c <-chan T) (got T) {
	t.Helper()
	select {
	case got = <-c:
	case <-time.After(await.Patience):
		t.Errorf("waited in vain: %s", what)
	}
	return got
}

// askedIn returns a server that sends roots/list during each call.
func askedIn(t *testing.T) *witness {
	answered := make(chan struct{}, 1)
	return newWitness(t, func(w http.ResponseWriter, _ *http.Request, got witnessed) {
		switch {
		case got.is("initialize"):
			says(w, got, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}`)
		case got.is("tools/call"):
			saysInEvents(w, asksForRoots)
			waits(t, "the answer", answered)
			var call struct{ ID json.RawMessage }
			_ = json.Unmarshal([]byte(got.body), &call)
			saysInEvents(w, `{"jsonrpc":"2.0","id":`+string(call.ID)+`,"result":{"content":[]}}`)
		case strings.Contains(got.body, `"roots":[`):
			w.WriteHeader(http.StatusAccepted)
			answered <- struct{}{}
		default:
			says(w, got, `{}`)
		}
	})
}

// onTheWay returns routes that change each request: with placeholders, and with changes that must
// not happen twice.
func onTheWay(address string) string {
	return `{"handler":"rewrite","uri":"/v2{http.request.uri}"},{"handler":"headers",` +
		`"request":{"add":{"X-Added":["1"]}}},` +
		proxyTo(`,"headers":{"request":{"set":{"X-Server":["{http.mcp.server}"],"X-Client":["{http.mcp.client}"],`+
			`"X-User":["{http.auth.user.id}"],"X-Tenant":["{http.vars.tenant}"]}}}`, address)
}

// passed returns what onTheWay changed in a request.
func (w witnessed) passed() string {
	return fmt.Sprint(w.uri, w.header["X-Added"], w.header["X-Server"], w.header["X-Client"], w.header["X-User"],
		w.header["X-Tenant"])
}

const asBob = "/v2/rpc[1] [a] [bob] [bob] [tenant of bob]"

func TestAnswersPassTheRoutesOfTheServer(t *testing.T) { // A59
	server := askedIn(t)
	h := adaptGateway(t, `{"servers":[{"name":"a",`+answersRoots+`"routes":[{"handle":[`+onTheWay(server.address)+`]}]}]}`)
	for _, path := range append([]string{"/mcp"}, single...) {
		t.Run(path, func(t *testing.T) {
			message, headers := aCall, []string(nil)
			if path == "/mcp" {
				w := servesUser(t, h, "bob",
					posting("/mcp",
						`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},`+
							`"clientInfo":{"name":"x","version":"1"}}}`))
				message, headers = strings.Replace(aCall, `"x"`, `"a::x"`, 1),
					[]string{mcp.SessionHeader, w.Header().Get(mcp.SessionHeader)}
			}
			before := len(server.saw())
			w := servesUser(t, h, "bob", posting(path, message, headers...))
			if got := w.Body.String(); !strings.Contains(got, `"content":[]`) || strings.Contains(got, "roots/list") {
				t.Errorf("%d %s", w.Code, got)
			}
			all := server.saw()[before:]
			if !slices.ContainsFunc(all, func(got witnessed) bool { return strings.Contains(got.body, "file:///x") }) {
				t.Fatalf("the server got %+v", all)
			}
			for _, got := range all {
				if got.passed() != asBob {
					t.Errorf("%s came by %s", got.body, got.passed())
				}
			}
		})
	}
}

func TestQuestionsWithoutEnd(t *testing.T) { // A59
	release := make(chan struct{})
	var received atomic.Int32
	server := newWitness(t, func(w http.ResponseWriter, r *http.Request, got witnessed) {
		if !got.is("tools/call") {
			received.Add(1)
			<-release // it subscribes to nothing
			return
		}
		for i := range 1000 {
			saysInEvents(w, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"sampling/createMessage"}`, i))
		}
		saysInEvents(w, `{"jsonrpc":"2.0","id":7,"result":{"content":[]}}`)
	})
	h := adaptGateway(t,
		`{"servers":[{"name":"a",`+dropsSampling+`"routes":[{"handle":[`+proxyTo("", server.address)+`]}]}]}`)
	for _, path := range single {
		done := make(chan string, 1)
		go func() { done <- servesInPart(h, posting(path, aCall)).Body.String() }()
		if got := waits(t, "the answer at "+path, done); !strings.Contains(got, `"content":[]`) ||
			strings.Contains(got, "sampling") {
			t.Errorf("%s: %.300s", path, got)
		}
	}
	close(release)
	h.gateway.WaitForSideRequests()
	if n := received.Load(); n == 0 || n > int32(len(single))*64 {
		t.Errorf("the server received %d responses at the same time", n)
	}
}

func TestQuestionsThatCannotBeRead(t *testing.T) { // A59
	var event atomic.Value
	server := newWitness(t, func(w http.ResponseWriter, _ *http.Request, got witnessed) {
		if !got.is("tools/call") {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		saysInEvents(w, event.Load().(string), `{"jsonrpc":"2.0","id":7,"result":{"content":[]}}`)
	})
	h := adaptGateway(t,
		`{"servers":[{"name":"a",`+dropsSampling+`"routes":[{"handle":[`+proxyTo("", server.address)+`]}]}]}`)
	for _, tt := range []struct{ name, event string }{
		{"as it should be", `{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{}}`},
		{"escaped", `{"jsonrpc":"2.0","id":1,"m\u0065thod":"s\u0061mpling/createMessage","params":{}}`},
		{"after a byte order mark", "\ufeff" + `{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{}}`},
		{"in a batch", `[{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{}}]`},
		{"with two methods", `{"jsonrpc":"2.0","id":1,"method":"x","method":"sampling/createMessage","params":{}}`},
		{"with an id in a list", `{"jsonrpc":"2.0","id":[1],"method":"sampling/createMessage","params":{}}`},
		{"with a method in other letters", `{"jsonrpc":"2.0","id":1,"Method":"sampling/createMessage","params":{}}`},
		{"with two methods, one in other letters",
			`{"jsonrpc":"2.0","id":1,"method":"x","METHOD":"sampling/createMessage","params":{}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			event.Store(tt.event)
			for _, path := range single {
				if got := servesInPart(h, posting(path, aCall)).Body.String(); strings.Contains(got, "createMessage") {
					t.Errorf("%s: %s", path, got)
				}
			}
		})
	}
}

// inputRequests are server requests of the modern era, to be dropped.
var inputRequests = map[string]string{
	"as it should be": `{"k":{"method":"sampling/createMessage","params":{}}}`,
	"beside another": `{"l":{"method":"elicitation/create"},"k":{"method":"sampling/createMessage",` +
		`"params":{}}}`,
	"with a method in other letters": `{"k":{"method":"sampling/createMessage","Method":"foo","params":{}}}`,
	"only in other letters":          `{"k":{"Method":"sampling/createMessage","params":{}}}`,
	"with two methods":               `{"k":{"method":"sampling/createMessage","method":"foo","params":{}}}`,
	"with a key that is there twice": `{"k":{"method":"sampling/createMessage","params":{}},"k":{"method":"foo"}}`,
	"before others in other letters": `{"k":{"method":"sampling/createMessage","params":{}}},` +
		`"InputRequests":{"k":{"method":"foo"}}`,
	"before none in other letters":   `{"k":{"method":"sampling/createMessage","params":{}}},"InputRequests":7`,
	"beside what is no question":     `{"k":{"method":"sampling/createMessage","params":{}},"l":7}`,
	"beside a question of no method": `{"k":{"method":"sampling/createMessage","params":{}},"l":{}}`,
	"there twice": `{"k":{"method":"sampling/createMessage","params":{}}},` +
		`"inputRequests":{"k":{"method":"foo"}}`,
	"with a method that is no string": `{"k":{"method":["sampling/createMessage"],"params":{}}}`,
	"in a list":                       `[{"method":"sampling/createMessage","params":{}}]`,
}

func TestInputThatIsNotAskedFor(t *testing.T) { // A59
	var requests atomic.Value
	var other atomic.Bool
	server := newWitness(t, func(w http.ResponseWriter, _ *http.Request, got witnessed) {
		kind := mcp.InputRequired
		if other.Load() {
			kind = "complete"
		}
		says(w, got, `{"resultType":"`+kind+`","inputRequests":`+requests.Load().(string)+`}`)
	})
	h := adaptGateway(t,
		`{"servers":[{"name":"a",`+dropsSampling+`"routes":[{"handle":[`+proxyTo("", server.address)+`]}]}]}`)
	for name, asks := range inputRequests {
		t.Run(name, func(t *testing.T) {
			requests.Store(asks)
			for _, path := range single {
				for _, headers := range [][]string{nil,
					{mcp.VersionHeader, mcp.Stateless, "Mcp-Method", "tools/call", "Mcp-Name", "x"}} {
					w := servesInPart(h, posting(path, modernCall, headers...))
					if got := w.Body.String(); strings.Contains(got, "createMessage") && strings.Contains(got, "inputRequests") ||
						!strings.Contains(got, `"error"`) {
						t.Errorf("%s %v: %s", path, headers, got)
					}
				}
			}
		})
	}
	t.Run("by a result of another type, in other letters", func(t *testing.T) {
		requests.Store(inputRequests["as it should be"] + `,"ResultType":"input_required"`)
		other.Store(true)
		defer other.Store(false)
		for _, path := range single {
			if got := servesInPart(h, posting(path, modernCall)).Body.String(); strings.Contains(got, "createMessage") {
				t.Errorf("%s: %s", path, got)
			}
		}
	})
	t.Run("a server request that no rule drops", func(t *testing.T) {
		requests.Store(`{"k":{"method":"elicitation/create","params":{}}}`)
		for _, path := range single {
			if got := serves(t, h, posting(path, modernCall)).Body.String(); !strings.Contains(got, "elicitation/create") {
				t.Errorf("%s: %s", path, got)
			}
		}
	})
}

func TestCallsThatAreMadeAgain(t *testing.T) { // A59
	const result = `{"resultType":"complete","content":[{"type":"text","text":"done"}]}`
	server := newWitness(t, func(w http.ResponseWriter, _ *http.Request, got witnessed) {
		switch {
		case !strings.Contains(got.body, "inputResponses"):
			says(w, got, `{"resultType":"input_required","inputRequests":{"k":{"method":"roots/list"}},"requestState":"s"}`)
		case strings.Contains(got.body, `"name":"long"`):
			says(w, got, strings.Replace(result, "done", strings.Repeat("x", 5000), 1))
		default:
			says(w, got, result)
		}
	})
	h := adaptGateway(t, `{"response_limit":1000,"servers":[{"name":"a","mask":{"max_chars":0},`+answersRoots+
		`"routes":[{"handle":[`+onTheWay(server.address)+`]}]}]}`)
	for _, path := range single {
		for name, headers := range map[string][]string{
			"says the version in a header": {mcp.VersionHeader, mcp.Stateless, "Mcp-Method", "tools/call", "Mcp-Name", "x"},
			"says it in the message only":  nil,
		} {
			t.Run("a client that "+name+" at "+path, func(t *testing.T) {
				before := len(server.saw())
				w := servesUser(t, h, "bob", posting(path, modernCall, headers...))
				if !strings.Contains(w.Body.String(), `"done"`) {
					t.Errorf("%d %s", w.Code, w.Body)
				}
				all := server.saw()[before:]
				if len(all) != 2 {
					t.Fatalf("the server got %+v", all)
				}
				for _, got := range all {
					if got.passed() != asBob {
						t.Errorf("%s came by %s", got.body, got.passed())
					}
				}
				if again := all[1].body; !strings.Contains(again, `"requestState":"s"`) ||
					!strings.Contains(again, `"roots":[{"uri":"file:///x"}]`) {
					t.Errorf("made again as %s", again)
				}
			})
		}
		t.Run("an answer that is too long at "+path, func(t *testing.T) {
			w := servesUser(t, h, "bob", posting(path, strings.Replace(modernCall, `"name":"x"`, `"name":"long"`, 1)))
			if got := w.Body.String(); strings.Contains(got, "xxx") || !strings.Contains(got, `"error"`) {
				t.Errorf("%d %.300s", w.Code, got)
			}
		})
	}
	t.Run("a client that says nothing of it at /rpc", func(t *testing.T) {
		if got := serves(t, h, posting("/api/mcp-gateway/a/rpc", aCall)).Body.String(); !strings.Contains(got, `"done"`) {
			t.Errorf("got %s", got)
		}
	})
}

func TestWhatIsDroppedIsStillKnownHere(t *testing.T) { // A37, A59, A60
	var version atomic.Int32
	say := make(chan string)
	server := newWitness(t, func(w http.ResponseWriter, r *http.Request, got witnessed) {
		switch {
		case r.Method == http.MethodGet:
			saysInEvents(w)
			for {
				select {
				case event := <-say:
					saysInEvents(w, event)
				case <-r.Context().Done():
					return
				}
			}
		case got.is("initialize"):
			says(w, got,
				`{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"x",`+
					`"version":"1"}}`)
		case got.is("tools/list"):
			says(w, got, fmt.Sprintf(`{"tools":[{"name":"v%d","inputSchema":{}}]}`, version.Load()))
		default:
			says(w, got, `{}`)
		}
	})
	h := adaptGateway(t,
		`{"servers":[{"name":"a","answers":[{"method":"notifications/*","action":"drop"}],"routes":[{"handle":[`+
			proxyTo("", server.address)+`]}]}]}`)
	id := session(t, h)
	ctx, hangUp := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		servesInPart(h, listening(t, "/mcp", mcp.SessionHeader, id).WithContext(ctx))
	}()
	defer func() {
		hangUp()
		<-ended
	}()
	list := func() string {
		return serves(t, h,
			posting("/mcp", `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`, mcp.SessionHeader, id)).Body.String()
	}
	await.Until(t, "the list is remembered", func() bool {
		before := len(server.saw())
		list()
		return len(server.saw()) == before
	})
	if got := list(); !strings.Contains(got, "a::v0") {
		t.Fatalf("got %s", got)
	}
	version.Store(1)
	waitsToSend(t, "the stream", say, `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
	await.Until(t, "the new list", func() bool { return strings.Contains(list(), "a::v1") })
}

// waitsToSend sends a message that must be received.
func waitsToSend(t *testing.T, what string, to chan<- string, message string) {
	t.Helper()
	select {
	case to <- message:
	case <-time.After(await.Patience):
		t.Fatalf("waited in vain: %s", what)
	}
}

func TestAnswersToTheFirstRevision(t *testing.T) { // A59
	answered := make(chan string, 1)
	server := newWitness(t, func(w http.ResponseWriter, r *http.Request, got witnessed) {
		if r.Method == http.MethodGet {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "event: endpoint\ndata: /messages?sid=1\n\n")
			saysInEvents(w, asksForRoots)
			answered <- waits(t, "the answer", answered) // the server and the test both wait for it
			return
		}
		w.WriteHeader(http.StatusAccepted)
		answered <- got.method + " " + got.uri + " " + got.body
	})
	h := adaptGateway(t,
		`{"servers":[{"name":"a","path":"/sse",`+answersRoots+`"routes":[{"handle":[`+proxyTo("", server.address)+`]}]}]}`)
	w := serves(t, h, listening(t, "/mcp/a", mcp.VersionHeader, "2025-06-18"))
	if got := w.Body.String(); strings.Contains(got, "roots/list") || !strings.Contains(got, "event: endpoint") {
		t.Errorf("got %s", got)
	}
	if got := waits(t, "the answer", answered); !strings.HasPrefix(got, "POST /messages?sid=1 {") ||
		!strings.Contains(got, "file:///x") {
		t.Errorf("answered %s", got)
	}
}

func TestSettingsThatMakeNoSense(t *testing.T) { // A36, A58, A59
	server := serverOf("a", staticHandler)
	for _, tt := range []struct{ name, config, err string }{
		{"tries without a pause", `"health_interval":1,"servers":[` + server + `]`,
			"health_interval: 1ns is shorter than 100ms"},
		{"a notification that goes where it belongs",
			`"notification_routes":[{"method":"notifications/cancelled","servers":["a"]}],"servers":[` + server + `]`,
			"notifications/cancelled cannot be routed"},
		{"a greeting that is routed",
			`"notification_routes":[{"method":"notifications/initialized","servers":["a"]}],"servers":[` + server + `]`,
			"notifications/initialized cannot be routed"},
		{"progress that is routed",
			`"notification_routes":[{"method":"notifications/progress","servers":["a"]}],"servers":[` + server + `]`,
			"notifications/progress cannot be routed"},
		{"a root that is no URI",
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

func TestRestartsWhoseCallerHasLeft(t *testing.T) { // A62, A72
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
		t.Errorf("it was not done one after the other: %+v", got.Children)
	}
}

func TestAnswersToCallsThatAreMadeAgain(t *testing.T) { // A59
	const asks = `{"resultType":"input_required","inputRequests":{"k":{"method":"roots/list"}},"requestState":"s"}`
	for _, tt := range []struct{ name, answer, want string }{
		{"as it is", `{"resultType":"complete","content":[]}`, `"content":[]`},
		{"that asks in other letters",
			`{"resultType":"complete","ResultType":"input_required","inputRequests":{"s":{"method":"sampling/createMessage"}}}`,
			`"error"`},
		{"that asks by a member in other letters",
			`{"resultType":"input_required","inputRequests":{},"InputRequests":{"s":{"method":"sampling/createMessage"}}}`,
			`"error"`},
		{"that asks for what is dropped",
			`{"resultType":"input_required","inputRequests":{"s":{"method":"sampling/createMessage"}}}`, `"error"`},
	} {
		for _, mark := range []string{"", "\ufeff", "\ufeff\ufeff"} {
			server := newWitness(t, func(w http.ResponseWriter, _ *http.Request, got witnessed) {
				if !strings.Contains(got.body, "inputResponses") {
					says(w, got, asks)
					return
				}
				answer := httptest.NewRecorder()
				says(answer, got, tt.answer)
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, mark+answer.Body.String())
			})
			h := adaptGateway(t,
				`{"servers":[{"name":"a","answers":[{"method":"roots/list","roots":["file:///x"]},{"method":"sampling/*",`+
					`"action":"drop"}],"routes":[{"handle":[`+proxyTo("", server.address)+`]}]}]}`)
			for _, path := range single {
				t.Run(fmt.Sprintf("%s, %d marks before it, at %s", tt.name, len(mark)/3, path), func(t *testing.T) {
					w := serves(t, h,
						posting(path, modernCall, mcp.VersionHeader, mcp.Stateless, "Mcp-Method", "tools/call", "Mcp-Name", "x"))
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
	all := make(chan struct{}) // closed when all answers are there
	var answers atomic.Int32
	server := newWitness(t, func(w http.ResponseWriter, r *http.Request, got witnessed) {
		if got.is("tools/call") {
			saysInEvents(w, asksForRoots)
		} else if answers.Add(1) == clients {
			close(all)
		}
		select {
		case <-all:
		case <-r.Context().Done():
			return
		}
		if got.is("tools/call") {
			saysInEvents(w, `{"jsonrpc":"2.0","id":7,"result":{"content":[]}}`)
		}
	})
	h := adaptGateway(t,
		`{"servers":[{"name":"a",`+answersRoots+`"routes":[{"handle":[`+proxyTo("", server.address)+`]}]}]}`)
	ctx, hangUp := context.WithCancel(t.Context())
	defer hangUp()
	done := make(chan string, clients)
	for range clients {
		go func() { done <- servesInPart(h, posting("/mcp/a", aCall).WithContext(ctx)).Body.String() }()
	}
	if waits(t, "the answers to all questions", all); t.Failed() {
		return
	}
	for range clients {
		if got := waits(t, "a call", done); !strings.Contains(got, `"content":[]`) {
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
	asks := func(h *Handler) string {
		return serves(t, h,
			posting("/api/mcp-gateway/a/rpc",
				`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ask-roots","arguments":{}}}`)).Body.String()
	}
	one, _ := begin("one", answersRoots)
	alone := asks(one)
	if !strings.Contains(alone, "file:///x") {
		t.Fatalf("alone: %s", alone)
	}
	if begin("two", ""); asks(one) != alone {
		t.Errorf("beside one that answers nothing: %s", asks(one))
	}
	_, unload := begin("three", `"answers":[{"method":"*","action":"drop"}],`)
	if unload(); asks(one) != alone {
		t.Errorf("after one that drops everything: %s", asks(one))
	}
}

func TestAnswersThatTheServerRefuses(t *testing.T) { // A59
	server := newWitness(t, func(w http.ResponseWriter, _ *http.Request, got witnessed) {
		if got.is("tools/call") {
			saysInEvents(w, asksForRoots, `{"jsonrpc":"2.0","id":7,"result":{"content":[]}}`)
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
	serves(t, h, posting("/mcp/a", aCall))
	h.gateway.WaitForSideRequests()
	if got := logs.FilterMessage("response to MCP server not delivered").All(); len(got) != 1 ||
		got[0].ContextMap()["mcp_server"] != "a" {
		t.Errorf("logged %v", logs.All())
	}
}
