package mcpgateway

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

func TestHealthRecord(t *testing.T) { // A36, A70
	fault := func(c upstream.Certainty, reason string) *upstream.Fault {
		return &upstream.Fault{Server: "a", Tried: "tools/call", Reason: reason, Certainty: c}
	}
	type step func(*healthRecord, *zap.Logger)
	fails := func(c upstream.Certainty) step {
		return func(r *healthRecord, log *zap.Logger) { r.failed(log, fault(c, "no")) }
	}
	refuses := func(r *healthRecord, log *zap.Logger) {
		r.failed(log, &upstream.Fault{Server: "a", Reason: "HTTP 401", Cause: jsonrpc.HTTPError("a", 401).Short()})
	}
	answers := (*healthRecord).succeeded
	pingRefused := (*healthRecord).pingRefused
	for _, tt := range []struct {
		name  string
		steps []step
		want  string
	}{
		{"nothing", nil, "unknown"},
		{"an answer", []step{answers}, "healthy"},
		{"a failure", []step{fails(upstream.Certain)}, "unhealthy"},
		{"a failure after an answer", []step{answers, fails(upstream.Certain)}, "unhealthy"},
		{"an answer after a failure", []step{fails(upstream.Certain), answers}, "healthy"},
		{"a call that fails", []step{fails(upstream.Doubtful)}, "unhealthy"},
		{"a call that fails after an answer", []step{answers, fails(upstream.Doubtful)}, "healthy"},
		{"two calls that fail after an answer", []step{answers, fails(upstream.Doubtful), fails(upstream.Doubtful)},
			"unhealthy"},
		{"calls that fail between answers", []step{answers, fails(upstream.Doubtful), answers, fails(upstream.Doubtful)},
			"healthy"},
		{"a refusal", []step{fails(upstream.Weak)}, "unhealthy"},
		{"a refusal after an answer", []step{answers, fails(upstream.Weak), fails(upstream.Weak)}, "healthy"},
		{"a ping that is refused", []step{pingRefused}, "healthy"},
		{"a ping that is refused after no connection", []step{fails(upstream.Certain), pingRefused}, "healthy"},
		{"a ping that is refused as clients are", []step{refuses, pingRefused}, "unhealthy"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &healthRecord{server: "record " + tt.name, hasChildren: true}
			for _, step := range tt.steps {
				step(r, zap.NewNop())
			}
			if got := r.current().name(); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

// Recording a response of a healthy server neither locks nor allocates.
func TestSuccessDoesNotAllocate(t *testing.T) {
	r := &healthRecord{server: "a", hasChildren: true}
	r.succeeded(zap.NewNop())
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := testing.AllocsPerRun(100, func() { r.succeeded(nil) }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func TestFailuresThatRepeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.DebugLevel)
		log, r := zap.New(core), &healthRecord{server: "a", hasChildren: true}
		fail := func(reason string) {
			r.failed(log, &upstream.Fault{Server: "a", Tried: "initialize", Reason: reason, Retry: time.Second,
				Stderr: []string{"x"}})
		}
		for range 10 {
			fail("connection refused")
		}
		fail("host not found")
		fail("host not found")
		time.Sleep(time.Minute)
		fail("host not found")
		r.succeeded(log)
		r.succeeded(log)
		var got []string
		for _, line := range logs.All() {
			fields := line.ContextMap()
			got = append(got, fmt.Sprint(line.Level, " ", line.Message, " ", fields["error"], " ", fields["repeated"], " ",
				fields["after"], " ", fields["retry_in"]))
		}
		want := []string{
			"error MCP server is unavailable connection refused <nil> <nil> 1s",
			"error MCP server is unavailable host not found <nil> <nil> 1s",
			"error MCP server is unavailable host not found 1 <nil> 1s",
			"info MCP server is available again <nil> <nil> 1m0s <nil>",
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

// The gauge of a server stays when another server with the same name is removed.
func TestGaugeOfTwoServers(t *testing.T) { // A52
	open := func(key string) *healthRecord {
		value, _, _ := healthRecords.LoadOrNew(key, func() (caddy.Destructor, error) {
			return &healthRecord{server: "twin"}, nil
		})
		return value.(*healthRecord)
	}
	before, after := open("twin 1"), open("twin 2")
	before.succeeded(zap.NewNop())
	after.succeeded(zap.NewNop())
	_, _ = healthRecords.Delete("twin 1")
	before.failed(zap.NewNop(), &upstream.Fault{Server: "twin"}) // a request from before the reload
	if got := healthyGauge(t, "twin"); got != 1 {
		t.Errorf("gauge %v, want 1", got)
	}
	_, _ = healthRecords.Delete("twin 2")
	if got := healthyGauge(t, "twin"); got != -1 {
		t.Errorf("gauge %v of removed servers", got)
	}
}

// Without health checks, the requests of clients determine the state of servers.
func TestStateFromRequests(t *testing.T) { // A70
	gone := httptest.NewServer(nil)
	gone.Close()
	answers := func(status int, contentType, body string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", contentType)
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		}))
		t.Cleanup(s.Close)
		return s.Listener.Addr().String()
	}
	hangs := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // otherwise the server does not notice a disconnect
		<-r.Context().Done()
	}))
	defer hangs.Close()
	const result = `{"jsonrpc":"2.0","id":1,"result":{"tools":[]}}`
	const plain = `"transport":{"protocol":"http","tls":{}},`
	command := func(words string) string {
		return proxyTo(`,"transport":{"protocol":"mcp_stdio","command":[`+words+`]}`, "child:1")
	}
	locked, page := answers(401, "text/plain", "no"), answers(404, "text/html", "<html>")
	for _, tt := range []struct {
		name, routes, state string
		reason              string // part of last_error
		cause               string // part of the client's error
	}{
		{"up", proxyTo("", answers(200, "application/json", result)), "healthy", "", ""},
		{"error", proxyTo("", answers(200, "application/json",
			`{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}`)), "healthy", "", ""},
		{"refused", proxyTo("", gone.Listener.Addr().String()), "unhealthy", "connect: connection refused",
			"connection refused"},
		{"locked", proxyTo("", locked), "unhealthy", "HTTP 401 text/plain from http://" + locked + "/rpc", "HTTP status 401"},
		{"page", proxyTo("", page), "unhealthy", "not an MCP server: HTTP 404 text/html from http://" + page +
			"/rpc; set the path in the URL, usually /mcp", "HTTP status 404"},
		{"hangs", proxyTo("", hangs.Listener.Addr().String()), "unhealthy", "no response within 50ms",
			"did not answer in time"},
		{"plain", strings.Replace(proxyTo("", page), `"upstreams"`, plain+`"upstreams"`, 1), "unhealthy",
			"tls: first record", "TLS error"},
		{"nohost", proxyTo("", "no-such-host.invalid:80"), "unhealthy", "dial tcp: lookup no-such-host.invalid",
			"host not found"},
		{"nocommand", command(`"no-such-command"`), "unhealthy",
			`exec: "no-such-command": executable file not found in $PATH`, "not started"},
		{"quits", command(`"sh","-c","echo Error: no sk-secret >&2; exit 3"`), "unhealthy",
			"exited with status 3 during initialize: Error: no sk-secret", "exited during the handshake"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			timeout := ""
			if tt.name == "hangs" {
				timeout = `"response_timeout":50000000,`
			}
			a := newAdmin(t, `{`+timeout+`"servers":[`+serverOf(tt.name, tt.routes)+`]}`)
			status := func() (s adminapi.ServerStatus) {
				a.call("GET", "/mcp_gateway/servers/"+tt.name, "", &s)
				return s
			}
			if got := status(); got.State != "unknown" || got.LastError != "" {
				t.Errorf("before a request: %+v", got)
			}
			w := serve(t, registry.all[0], newPost("/api/mcp-gateway/"+tt.name+"/rpc",
				`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
			if body := w.Body.String(); !strings.Contains(body, tt.cause) || strings.Contains(body, "sk-secret") {
				t.Errorf("the client got %s", body)
			}
			got := status()
			if got.State != tt.state || !strings.Contains(got.LastError, tt.reason) ||
				got.FailedAt.IsZero() != (tt.reason == "") {
				t.Errorf("got %+v", got)
			}
			if tt.reason == "" {
				return
			}
			if got.Tried != "tools/list" || got.Failures != 1 {
				t.Errorf("tried %q, %d failures", got.Tried, got.Failures)
			}
			for _, u := range got.Upstreams {
				if u.Healthy {
					t.Errorf("upstream %+v", u)
				}
			}
		})
	}
}

// listTemplates returns the templates that an anonymous client sees.
func listTemplates(t *testing.T, h *Handler) string {
	const list = `{"jsonrpc":"2.0","id":1,"method":"resources/templates/list",` +
		`"params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
		`"io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`
	r := newPost("/mcp", list)
	r.Header.Set("Mcp-Protocol-Version", "2026-07-28")
	r.Header.Set("Mcp-Method", "resources/templates/list")
	var answer struct {
		Result struct {
			Templates []json.RawMessage `json:"resourceTemplates"`
		}
	}
	w := serve(t, h, r)
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
		t.Fatalf("%s: %v", w.Body, err)
	}
	var all []byte
	for _, template := range answer.Result.Templates {
		all = append(all, template...)
	}
	return string(all)
}

func TestTemplatesOfRemovedServers(t *testing.T) { // A67, A69
	server := func(name, more string) string {
		return `{"name":"` + name + `"` + more + `,"routes":[{"handle":[` + staticHandler + `]}]}`
	}
	config := func(servers ...string) string {
		return `{"name":"reloaded","servers":[` + strings.Join(servers, ",") +
			`],"clients":[{"name":"*","rules":[{"action":"deny","patterns":["resource:file:///secret/"]}]}]}`
	}
	a := newAdmin(t, config(server("one", ""), server("two", "")))
	before := registry.current()[0]
	for _, template := range []string{
		`{"name":"text","uriTemplate":"text://{x}","text":"{x}"}`,
		`{"name":"first","uriTemplate":"first://{x}","server":"one","uri":"file:///{x}"}`,
		`{"name":"second","uriTemplate":"second://{x}","server":"two","uri":"file:///srv/{x}"}`,
		`{"name":"hidden","uriTemplate":"hidden://{x}","server":"two","uri":"file:///secret/{x}"}`,
	} {
		if res := a.call("POST", "/mcp_gateway/templates", template, nil); res.StatusCode != http.StatusCreated {
			t.Fatalf("%s: got %d", template, res.StatusCode)
		}
	}
	const first, second, text = `{"uriTemplate":"first://{x}","name":"first"}`,
		`{"uriTemplate":"second://{x}","name":"second"}`, `{"uriTemplate":"text://{x}","name":"text"}`
	for _, tt := range []struct {
		name   string
		h      *Handler
		listed string
	}{
		{"both servers", before, first + second + text},
		{"a removed server", adaptGateway(t, config(server("one", ""))), first + text},
		{"a server that is now an alias", adaptGateway(t, config(server("one", ""), server("three", `,"aliases":["two"]`))),
			first + second + text},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := listTemplates(t, tt.h); got != tt.listed {
				t.Errorf("got %s, want %s", got, tt.listed)
			}
			if got := len(tt.h.kept.retained.Templates.All()); got != 4 {
				t.Errorf("%d templates kept, want 4", got)
			}
		})
	}
	body, _ := io.ReadAll(a.call("GET", "/mcp_gateway/templates", "", nil).Body)
	if got := strings.Count(string(body), `"gateway":"reloaded"`); got != 4 {
		t.Errorf("the admin API shows %s", body)
	}
}
