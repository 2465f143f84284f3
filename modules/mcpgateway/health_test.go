package mcpgateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/stdio"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstdio"
)

// serverWith returns a server with one handler.
func serverWith(name string, handler caddyhttp.HandlerFunc) *Server {
	target, _ := url.Parse("/rpc?x=1")
	s := &Server{Name: name, id: name, target: target, routes: handler, ForwardAuthHeader: new(bool),
		pins: new(serverPins), streams: serverStreams{scope: new(streamScope)}}
	s.config()
	return s
}

func TestPing(t *testing.T) { // A36
	answer := func(status int, contentType, body string) caddyhttp.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) error {
			if contentType != "" {
				w.Header().Set("Content-Type", contentType)
			}
			w.WriteHeader(status)
			_, err := io.WriteString(w, body)
			return err
		}
	}
	then := func(first caddyhttp.HandlerFunc, err error) caddyhttp.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) error {
			if first != nil {
				_ = first(w, r)
			}
			if err == nil {
				<-r.Context().Done()
				err = r.Context().Err()
			}
			return err
		}
	}
	const (
		jsonType   = "application/json"
		eventsType = "text/event-stream; charset=utf-8"
		result     = `{"jsonrpc":"2.0","id":"gateway-health","result":{}}`
		noMethod   = `{"jsonrpc":"2.0","id":"gateway-health","error":{"code":-32601,"message":"no"}}`
	)
	for _, tt := range []struct {
		name    string
		handler caddyhttp.HandlerFunc
		err     string // part of the error; empty if the server is alive
	}{
		{"a response", answer(200, jsonType, result), ""},
		{"an error", answer(200, jsonType, noMethod), ""},
		{"an error with a status",
			answer(404, jsonType, `{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"no session"}}`), ""},
		{"a response in a stream", answer(200, eventsType, ": hi\n\nevent: message\ndata: "+result+"\n\n"), ""},
		{"a response in a stream that does not end", then(answer(200, eventsType, "data: "+noMethod+"\n\n"), nil), ""},
		{"a response in a stream that breaks off",
			then(answer(400, eventsType, "data: "+noMethod+"\n\n"), errors.New("torn")), ""},
		{"success without a body", answer(202, "", ""), ""},
		{"success with another body", answer(200, "text/plain", "hello"), ""},
		{"a long body", answer(200, "text/plain", strings.Repeat("x", 10*maxPingResponse)), ""},
		{"a refusal without a session", answer(404, "text/plain", "not found"), "refused"},
		{"a refusal without credentials", answer(401, "", ""), "refused"},
		{"a refusal of POST, as in the HTTP+SSE transport", answer(405, "text/plain", "GET only"), "refused"},
		{"a refusal with an empty stream", then(answer(403, eventsType, ": hi\n\n"), nil), "deadline"},
		{"a refusal that breaks off", then(answer(403, "text/plain", "no"), errors.New("torn")), "torn"},
		{"an error status with HTML", answer(503, "text/html", "<html>"), "HTTP 503 text/html"},
		{"an error status with other JSON", answer(500, jsonType, `{"error":"no"}`), "HTTP 500"},
		{"a redirect", answer(307, "", ""), "HTTP 307"},
		{"no connection", then(nil, errors.New("connection refused")), "connection refused"},
		{"a refusal by a handler in front", then(nil, caddyhttp.Error(401, nil)), "HTTP 401"},
		{"no response", then(nil, nil), "deadline"},
		{"a stream without a response", then(answer(200, eventsType, ": hi\n\n"), nil), "deadline"},
		{"a response that breaks off", then(answer(200, jsonType, result[:20]), errors.New("torn")), "torn"},
		{"a panic", func(http.ResponseWriter, *http.Request) error { panic("oh") }, "oh"},
		{"an aborted response", func(http.ResponseWriter, *http.Request) error { panic(http.ErrAbortHandler) },
			"ended before it was complete"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				err := serverWith("a", tt.handler).ping(ctx)
				if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
					t.Errorf("got %v, want %q", err, tt.err)
				}
			})
		})
	}
}

func TestPingRequest(t *testing.T) { // A36
	var r *http.Request
	var body []byte
	s := serverWith("alpha", func(w http.ResponseWriter, req *http.Request) error {
		r = req
		body, _ = io.ReadAll(req.Body)
		return nil
	})
	_ = s.ping(t.Context())
	if string(body) != `{"jsonrpc":"2.0","id":"gateway-health","method":"ping"}` {
		t.Errorf("got %s", body)
	}
	if r.Method != http.MethodPost || r.RequestURI != "/rpc?x=1" || r.Header.Get("Content-Type") != "application/json" ||
		r.Header.Get("Accept") != "application/json, text/event-stream" {
		t.Errorf("got %s %s %v", r.Method, r.RequestURI, r.Header)
	}
	repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if got := repl.ReplaceAll("{http.mcp.server} {http.mcp.method} {http.mcp.request_id} {http.request.uri}",
		"?"); got != "alpha ping gateway-health /rpc?x=1" {
		t.Errorf("placeholders: %s", got)
	}
}

// A watchedGateway checks its servers every 30 seconds.
type watchedGateway struct {
	healthChecker
	servers []*Server
}

// newWatchedGateway returns a gateway and its log.
func newWatchedGateway(servers ...*Server) (*watchedGateway, *observer.ObservedLogs) {
	core, logs := observer.New(zap.DebugLevel)
	for _, s := range servers {
		s.health.open("", s)
	}
	return &watchedGateway{
		healthChecker: healthChecker{interval: 30 * time.Second, timeout: 5 * time.Second, logger: zap.New(core)},
		servers:       servers,
	}, logs
}

func (g *watchedGateway) startHealth() { g.start(g.servers) }

func (g *watchedGateway) closeRecords() {
	for _, s := range g.servers {
		s.health.close()
	}
}

// healthyGauge returns the gauge of a server, or -1 if it is not set.
func healthyGauge(t *testing.T, server string) float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(mcpstdio.Healthy())
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if m.GetLabel()[0].GetValue() == server {
				return m.GetGauge().GetValue()
			}
		}
	}
	return -1
}

func TestHealthChecks(t *testing.T) { // A36, A52
	synctest.Test(t, func(t *testing.T) {
		var tries, atOnce atomic.Int32
		var down atomic.Bool
		s := serverWith("tried", func(w http.ResponseWriter, r *http.Request) error {
			if atOnce.Add(1) > 1 {
				t.Error("two checks at once")
			}
			defer atOnce.Add(-1)
			tries.Add(1)
			if down.Load() {
				<-r.Context().Done()
				return r.Context().Err()
			}
			return nil
		})
		h, logs := newWatchedGateway(s)
		if state := s.healthState(); state.name() != "unknown" {
			t.Errorf("before the first check: state %s", state.name())
		}
		h.startHealth()
		h.startHealth() // has no effect
		began := time.Now()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if n := tries.Load(); n < 9 || n > 12 {
			t.Errorf("%d checks in 10 intervals", n)
		}
		if state := s.healthState(); state.name() != "healthy" || !state.Since.Before(began.Add(4*time.Second)) ||
			logs.Len() != 0 {
			t.Errorf("%+v, %d log lines", state, logs.Len())
		}
		if got := healthyGauge(t, "tried"); got != 1 {
			t.Errorf("gauge %v", got)
		}

		down.Store(true)
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		state := s.healthState()
		if state.name() != "unhealthy" || state.LastError != "no response within 5s" || state.Failures < 7 {
			t.Errorf("%+v", state)
		}
		if got := healthyGauge(t, "tried"); got != 0 {
			t.Errorf("gauge %v", got)
		}
		lines := logs.TakeAll() // logged at once, after one minute and after three minutes
		if len(lines) != 3 || lines[0].Message != "MCP server is unavailable" || lines[0].Level != zap.ErrorLevel ||
			lines[0].ContextMap()["repeated"] != nil || lines[2].ContextMap()["repeated"].(int64) < 2 {
			t.Errorf("logged %v", lines)
		}

		down.Store(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		state = s.healthState()
		if state.name() != "healthy" || state.LastError == "" || state.Failures != 0 {
			t.Errorf("%+v", state)
		}
		if logs.FilterMessage("MCP server is available again").FilterLevelExact(zap.InfoLevel).Len() != 1 || logs.Len() != 1 {
			t.Errorf("logged %v", logs.All())
		}
		h.stop()
		h.closeRecords()
		if got := healthyGauge(t, "tried"); got != -1 {
			t.Errorf("gauge %v of a removed server", got)
		}
		h.stop() // has no effect
		h.closeRecords()
	})
}

func TestHealthChecksOff(t *testing.T) { // A36
	synctest.Test(t, func(t *testing.T) {
		h, _ := newWatchedGateway(serverWith("a", func(http.ResponseWriter, *http.Request) error {
			t.Error("the server was checked")
			return nil
		}))
		h.interval = 0
		h.startHealth()
		time.Sleep(time.Hour)
		h.stop()
		h.closeRecords()
	})
}

func TestCanceledHealthCheck(t *testing.T) { // A36
	synctest.Test(t, func(t *testing.T) {
		trying := make(chan struct{})
		s := serverWith("a", func(_ http.ResponseWriter, r *http.Request) error {
			close(trying)
			<-r.Context().Done()
			return r.Context().Err()
		})
		h, logs := newWatchedGateway(s)
		h.startHealth()
		<-trying
		h.stop()
		defer h.closeRecords()
		if s.healthState().Known || logs.Len() > 0 {
			t.Error("a canceled check changed the state or the log")
		}
	})
}

func TestHealthOutlivesReloads(t *testing.T) { // A36, A60
	synctest.Test(t, func(t *testing.T) {
		handle := func(w http.ResponseWriter, r *http.Request) error { return errors.New("down") }
		before, _ := newWatchedGateway(serverWith("a", handle))
		after, logs := newWatchedGateway(serverWith("a", handle), serverWith("b", handle))
		before.startHealth()
		time.Sleep(time.Minute)
		synctest.Wait()
		after.startHealth()
		before.stop()
		before.closeRecords()
		a, b := after.servers[0].healthState(), after.servers[1].healthState()
		if a.name() != "unhealthy" || b.Known {
			t.Errorf("a: %+v, b: %+v", a, b)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if again := after.servers[0].healthState(); again.Since != a.Since || again.Failures <= a.Failures {
			t.Errorf("before %+v, after %+v", a, again)
		}
		for _, line := range logs.All() {
			if known := line.ContextMap()["mcp_server"] == "a"; known != (line.ContextMap()["repeated"] != nil) {
				t.Errorf("logged %v", line)
			}
		}
		after.stop()
		after.closeRecords()
	})
}

func TestOneHealthCheckAtATime(t *testing.T) { // A36
	synctest.Test(t, func(t *testing.T) {
		var atOnce atomic.Int32
		handle := func(_ http.ResponseWriter, r *http.Request) error {
			if atOnce.Add(1) > 1 {
				t.Error("two configurations check the same server at once")
			}
			defer atOnce.Add(-1)
			<-r.Context().Done()
			return r.Context().Err()
		}
		before, _ := newWatchedGateway(serverWith("a", handle))
		after, _ := newWatchedGateway(serverWith("a", handle))
		before.timeout, after.timeout = time.Minute, time.Minute
		before.startHealth()
		after.startHealth()
		time.Sleep(10 * time.Minute)
		before.stop()
		after.stop()
		before.closeRecords()
		after.closeRecords()
	})
}

func TestHealthOfUpstreams(t *testing.T) { // A36
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":-32601,\"message\":\"\"}}\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	defer upstream.Close()
	gone := httptest.NewServer(nil)
	gone.Close()
	private := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", "Bearer")
		http.Error(w, "Unauthorized", http.StatusUnauthorized)
	}))
	defer private.Close()
	address := func(s *httptest.Server) string { return s.Listener.Addr().String() }
	h := adaptGateway(t, fmt.Sprintf(`{"servers":[%s,%s,%s]}`, serverOf("up", proxyTo("", address(upstream))),
		serverOf("down", proxyTo("", address(gone))),
		serverOf("private", proxyTo("", address(private)))))
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	if asked, err := h.Servers[0].checkAlive(ctx); !asked || err != nil {
		t.Errorf("a server that is up: %t, %v", asked, err)
	}
	if asked, err := h.Servers[1].checkAlive(ctx); !asked || err == nil ||
		!strings.HasPrefix(err.Error(), "dial tcp 127.0.0.1:") {
		t.Errorf("a server that is down: %t, %v", asked, err)
	}
	if asked, err := h.Servers[2].checkAlive(ctx); !asked || err != errRefused {
		t.Errorf("a server that requires credentials: %t, %v", asked, err)
	}
}

func TestHealthChecksOfReverseProxy(t *testing.T) { // A36
	var mu sync.Mutex
	var methods []string
	provisioned := make(chan struct{}) // reverse_proxy checks upstreams even earlier
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		<-provisioned
		mu.Lock()
		defer mu.Unlock()
		methods = append(methods, r.Method)
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer upstream.Close()
	const active = `,"health_checks":{"active":{"uri":"/","interval":3600000000000}}`
	s := adaptGateway(t, `{"servers":[`+serverOf("a", proxyTo(active, upstream.Listener.Addr().String()))+`]}`).Servers[0]
	close(provisioned)
	await.Until(t, "the upstream is unhealthy", func() bool { return !s.upstreams.checked[0].Healthy() })
	if asked, err := s.checkAlive(t.Context()); !asked || !errors.Is(err, errNoUpstream) {
		t.Errorf("got %t, %v", asked, err)
	}
	if got := s.healthState().name(); got != "unhealthy" {
		t.Errorf("state %s, want unhealthy", got)
	}
	mu.Lock()
	defer mu.Unlock()
	if strings.Join(methods, " ") != "GET" {
		t.Errorf("got requests %s, want GET", methods)
	}
}

func TestHealthOfChildren(t *testing.T) { // A36, A37
	h := adaptGateway(t, `{"servers":[`+serverOf("alpha", proxyTo(childTransport("--hang-ping"), "alpha:1"))+`]}`)
	checks := &healthChecker{timeout: 50 * time.Millisecond, logger: zap.NewNop()}
	s, record := h.Servers[0], new(healthRecord)
	s.health.Store(record)
	checks.checkOnce(t.Context(), s, record)
	child := s.upstreams.children[0]
	status := child.pool.Status("alpha:1")[0]
	if status.State != stdio.Idle || s.healthState().Known {
		t.Errorf("before the first request: child %s, server %s", status.State, s.healthState().name())
	}
	if err := child.pool.Restart(t.Context(), "alpha:1"); err != nil {
		t.Fatal(err)
	}
	checks.checkOnce(t.Context(), s, record)
	if got := s.healthState(); got.name() != "unhealthy" || got.LastError != "no response within 50ms" {
		t.Errorf("a child that does not respond: %+v", got)
	}
	await.Until(t, "the child is restarted", func() bool {
		status = child.pool.Status("alpha:1")[0]
		return status.Restarts == 1
	})
	if status.LastError != "ended by signal: killed" {
		t.Errorf("%+v", status)
	}
}

// probeHealth returns the status and body of a health probe.
func probeHealth(t *testing.T, h *Handler, method, host string, headers ...string) (int, string) {
	t.Helper()
	r := httptest.NewRequest(method, "http://"+host+"/mcp/health", nil)
	for i := 0; i+1 < len(headers) && headers[i] != ""; i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := serve(t, h, r)
	return w.Code, strings.TrimSpace(w.Body.String())
}

func TestReadinessOfChildren(t *testing.T) {
	child := func(name string, flags ...string) string {
		return serverOf(name, proxyTo(childTransport(flags...), name+":1"))
	}
	missing := `,"transport":{"protocol":"mcp_stdio","command":["/nonexistent/server"]}`
	optional := strings.Replace(serverOf("extra", proxyTo(missing, "extra:1")), `{`, `{"optional":true,`, 1)
	h := adaptGateway(t, `{"servers":[`+child("good")+`,`+serverOf("bad", proxyTo(missing, "bad:1"))+`,`+optional+`]}`)

	call := func(server string) {
		serve(t, h, newPost("/api/mcp-gateway/"+server+"/rpc", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
	}
	if status, body := probeHealth(t, h, "GET", "localhost"); status != 200 || body != `{"status":"ready"}` {
		t.Errorf("before the first request: %d %s", status, body)
	}
	if word, up := h.byName["good"].readiness(); word != "idle" || !up {
		t.Errorf("after the probe: %s %t, want idle", word, up)
	}
	call("good")
	call("extra")
	if word, up := h.byName["good"].readiness(); word != "running" || !up {
		t.Errorf("a running server: %s %t", word, up)
	}
	if word, up := h.byName["extra"].readiness(); up {
		t.Errorf("a server that cannot start: %s", word)
	}
	if status, body := probeHealth(t, h, "GET", "localhost"); status != 200 {
		t.Errorf("while an optional server is down: %d %s", status, body)
	}
	call("bad")
	status, body := probeHealth(t, h, "GET", "localhost")
	if status != 503 || body != `{"status":"not ready","servers":{"bad":"stopped"}}` &&
		body != `{"status":"not ready","servers":{"bad":"waiting"}}` {
		t.Errorf("while a server is down: %d %s", status, body)
	}
}

// A gateway is not ready while a server starts.
func TestReadinessWhileStarting(t *testing.T) {
	listens := `,"transport":{"protocol":"mcp_stdio","command":["sh","-c","cat >/dev/null"],"start_timeout":600000000000}`
	h := adaptGateway(t, `{"servers":[`+serverOf("slow", proxyTo(listens, "slow:1"))+`]}`)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r := newPost("/api/mcp-gateway/slow/rpc", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
		serve(t, h, r.WithContext(ctx))
	}()
	defer func() { cancel(); <-done }()
	await.Until(t, "the server starts", func() bool {
		word, up := h.byName["slow"].readiness()
		return word == "starting" && !up
	})
	if status, body := probeHealth(t, h, "GET", "localhost"); status != 503 ||
		body != `{"status":"not ready","servers":{"slow":"starting"}}` {
		t.Errorf("%d %s", status, body)
	}
}

func TestReadinessOfHTTPServers(t *testing.T) {
	h := adaptGateway(t, `{"servers":[`+serverOf("remote", proxyTo("", "127.0.0.1:1"))+`]}`)
	s := h.byName["remote"]
	if word, up := s.readiness(); word != "idle" || !up {
		t.Errorf("before the first check: %s %t", word, up)
	}
	record := s.health.Load()
	record.failed(zap.NewNop(), &upstream.Fault{Server: "remote", Reason: "connection refused"})
	if status, body := probeHealth(t, h, "GET", "localhost"); status != 503 ||
		body != `{"status":"not ready","servers":{"remote":"unhealthy"}}` {
		t.Errorf("after a failed check: %d %s", status, body)
	}
	record.succeeded(zap.NewNop())
	if word, up := s.readiness(); word != "healthy" || !up {
		t.Errorf("after a successful check: %s %t", word, up)
	}
}

func TestReadinessRefuses(t *testing.T) {
	h := adaptGateway(t, `{"hosts":["mcp.test"],"servers":[`+serverOf("a", proxyTo("", "127.0.0.1:1"))+`]}`)
	for _, tt := range []struct {
		name, method, host, header, value string
		status                            int
	}{
		{"the address of a pod", "GET", "10.0.0.7:8080", "", "", 200},
		{"an IPv6 address", "HEAD", "[fd00::7]:8080", "", "", 200},
		{"a name of the gateway", "GET", "mcp.test", "", "", 200},
		{"a foreign host", "GET", "evil.test", "", "", 403},
		{"a page of another site", "GET", "10.0.0.7", "Origin", "https://evil.test", 403},
		{"an image in a page of another site", "GET", "10.0.0.7", "Sec-Fetch-Site", "cross-site", 403},
		{"another method", "POST", "localhost", "", "", 405},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if status, body := probeHealth(t, h, tt.method, tt.host, tt.header, tt.value); status != tt.status {
				t.Errorf("%d %s", status, body)
			}
		})
	}
}

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
