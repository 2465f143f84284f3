package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
)

// programs builds the programs that tests start, and returns their folder: child, and client and
// server on the official Go SDK.
var programs = sync.OnceValue(func() string {
	dir, err := filepath.Abs("../../../bin/programs")
	if err != nil {
		panic(err)
	}
	cmd := exec.Command("go", "build", "-o", dir+"/", "../child", "../conformance/gosdk/...")
	if out, err := cmd.CombinedOutput(); err != nil {
		panic(fmt.Sprintf("%v: %s", err, out))
	}
	return dir
})

// childProgram returns the path of the child program.
func childProgram() string { return filepath.Join(programs(), "child") }

// child returns a server of a gateway: the child program with these arguments.
func child(name string, args ...string) string {
	return "server " + name + " stdio " + strconv.Quote(childProgram()) + " " +
		strings.Join(append([]string{name}, args...), " ")
}

// A journal is a file in which children record received messages and events.
type journal string

func newJournal(t *testing.T) journal {
	t.Helper()
	return journal(filepath.Join(t.TempDir(), "ds.log"))
}

// env returns the line of a server block that makes its children write the journal.
func (j journal) env() string { return "env DS_LOG " + string(j) }

// An entry is an event or a received message.
type entry struct {
	PID     int
	ID      string
	Event   string
	Message struct{ Method string }
}

// entries returns the entries of an event or a method.
func (j journal) entries(t *testing.T, eventOrMethod string) (found []entry) {
	t.Helper()
	text, err := os.ReadFile(string(j))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		var e entry
		if json.Unmarshal(line, &e) == nil && (e.Event == eventOrMethod || e.Message.Method == eventOrMethod) {
			found = append(found, e)
		}
	}
	return found
}

// use calls a tool and returns the text of its result.
func use(t *testing.T, endpoint, tool, arguments string, headers ...string) string {
	t.Helper()
	return toolText(t, answerIn(post(t, endpoint, toolCall{tool, arguments}.request(),
		append(headers, acceptBoth)...).body))
}

const acceptBoth = mcpclient.Accept

// answerIn returns the response in a body, the last event if it is an event stream.
func answerIn(body string) string {
	if index := strings.LastIndex(body, "data: "); index >= 0 && !strings.HasPrefix(body, "{") {
		return body[index+len("data: "):]
	}
	return body
}

// pidAt returns the ID of the process that responds.
func pidAt(t *testing.T, endpoint string, headers ...string) int {
	t.Helper()
	pid, err := strconv.Atoi(use(t, endpoint, "pid", `{}`, headers...))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// newSession begins a session and returns its session header.
func newSession(t *testing.T, endpoint string) string {
	t.Helper()
	got := post(t, endpoint, rpc("initialize", `{"protocolVersion":"2025-11-25","capabilities":{},`+
		`"clientInfo":{"name":"test","version":"1"}}`), acceptBoth)
	session := "Mcp-Session-Id: " + got.Header.Get("Mcp-Session-Id")
	if got.StatusCode != 200 || session == "Mcp-Session-Id: " {
		t.Fatalf("got %d %v %s", got.StatusCode, got.Header, got.body)
	}
	if got := post(t, endpoint, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, session,
		acceptBoth); got.StatusCode != 202 {
		t.Fatalf("got %d %s, want 202", got.StatusCode, got.body)
	}
	return session
}

// streamClient is an HTTP client without a timeout, for streams and long calls.
var streamClient = &http.Client{Transport: &http.Transport{DisableCompression: true}}

// closingClient is streamClient with a new connection for each request. A stream that outlives its
// configuration closes its connection at the end, and a request just sent on it would be lost.
var closingClient = &http.Client{Transport: &http.Transport{DisableCompression: true, DisableKeepAlives: true}}

// listenTo opens the stream of a session.
func listenTo(t *testing.T, endpoint, session string) *bufio.Reader {
	t.Helper()
	res := open(t, streamClient, "GET", endpoint, "", session, "Accept: text/event-stream")
	if res.StatusCode != 200 {
		t.Fatalf("got %d %v", res.StatusCode, res.Header)
	}
	stream := bufio.NewReader(res.Body)
	nextEvent(t, stream) // a comment
	return stream
}

// beginCall makes a call. The response is read from the channel.
func beginCall(t *testing.T, endpoint, tool, arguments string, headers ...string) <-chan httpResponse {
	t.Helper()
	answers := make(chan httpResponse, 1)
	req := request(t, t.Context(), "POST", endpoint, toolCall{tool, arguments}.request(), append(headers, acceptBoth)...)
	go func() {
		res, err := streamClient.Do(req)
		if err != nil {
			answers <- httpResponse{&http.Response{Status: err.Error()}, ""}
			return
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			res.Status = err.Error()
		}
		answers <- httpResponse{res, string(body)}
	}()
	return answers
}

// serverMetric returns the name of a metric with the label of a server.
func serverMetric(metric, server string) string { return metric + `{server="` + server + `"}` }

// processRuns reports whether a process runs. A zombie does not.
func processRuns(pid int) bool {
	if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
		_, state, _ := strings.Cut(string(stat), ") ")
		return !strings.HasPrefix(state, "Z")
	}
	return syscall.Kill(pid, 0) == nil
}

func TestGatewayStdioNeedsNoSession(t *testing.T) {
	isolate(t)
	journal := newJournal(t)
	url := serve(t, gateway(block(child("plain"), journal.env()), block(child("modern", "--modern"), journal.env())))
	if starts := journal.entries(t, "start"); len(starts) > 0 {
		t.Errorf("started without a request: %v", starts)
	}
	const request = `{"jsonrpc":"2.0","id":12345678901234567890,"method":"tools/call","params":{"name":"echo",` +
		`"arguments":{"n":1.0,"text":"é\u00e9"}}}`
	for _, server := range []string{"plain", "modern"} {
		for _, endpoint := range []string{rpcAt(url, server), mcpAt(url, server)} {
			got := post(t, endpoint, request, acceptBoth)
			if got.StatusCode != 200 || !strings.Contains(got.body, `"id":12345678901234567890`) {
				t.Errorf("got %d %s", got.StatusCode, got.body)
			}
			same(t, toolText(t, got.body), `{"name":"echo","arguments":{"n":1.0,"text":"é\u00e9"}}`)
		}
	}
	if inits := journal.entries(t, "initialize"); len(inits) != 2 {
		t.Errorf("initialized %d times", len(inits))
	}
}

// A malformed request gets a client error at all endpoints, and does not reach a server.
func TestGatewayStdioMalformedRequests(t *testing.T) {
	isolate(t)
	j := newJournal(t)
	url := serve(t, gateway(block(child("kid"), j.env())))
	post(t, rpcAt(url, "kid"), rpc("tools/list", `{}`))
	for _, body := range []string{
		`{"id":1,"method":"tools/list"}`, `{"jsonrpc":"1.0","id":1,"method":"tools/list"}`,
		`{"jsonrpc":2,"id":1,"method":"tools/list"}`, `{"jsonrpc":"2.0","id":1}`, `{"jsonrpc":"2.0","id":1,"method":7}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":7}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":"x"}`, `{"jsonrpc":"2.0","id":99,"result":{}}`,
		`{"jsonrpc":"2.0"}`, `{}`,
	} {
		for _, endpoint := range endpointsOf(url, "kid")[1:] {
			got := gatewayErrorOf(t, post(t, endpoint.url, body, acceptBoth))
			if got.Status != 400 || got.Symbol != "invalid_request" || got.Code != -32600 {
				t.Errorf("%s at %s: %+v", body, endpoint.name, got)
			}
		}
	}
}

func TestGatewayStdioLog(t *testing.T) {
	isolate(t)
	file := filepath.Join(t.TempDir(), "caddy.log")
	address := freeAddress(t)
	load(t, block("", block("log", "output file "+file, "format json"))+"\n"+
		site(address, gateway(child("loud", "--banner"))))
	endpoint := mcpAt("http://"+address, "loud")
	pid := pidAt(t, endpoint)
	grown := growth(t)

	// log returns the log lines about the output of the child.
	type line struct {
		Level   string
		Logger  string
		Message string `json:"msg"`
		Server  string `json:"mcp_server"`
		PID     int
		Line    string
	}
	log := func(message, text string) (found []line) {
		for _, raw := range linesOf(t, file) {
			var l line
			if json.Unmarshal([]byte(raw), &l) == nil && l.Message == message && l.Line == text {
				found = append(found, l)
			}
		}
		return found
	}
	for _, tt := range []struct{ name, tool, text, message, level string }{
		{"A35 stderr", "stderr", "something to say", "stderr", "info"},
		{"A35 noise on stdout", "noise", "{this is no JSON", "line on stdout is not a message", "warn"},
		{"A35 a banner", "", "DS loud is starting, and says so on stdout", "line on stdout is not a message", "warn"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.tool != "" {
				got := post(t, endpoint, toolCall{tt.tool, `{"lines":1,"text":` + quote(tt.text) + `}`}.request())
				same(t, got.body, result(`{"content":[{"type":"text","text":"written"}]}`))
			}
			await.Until(t, "the line", func() bool { return len(log(tt.message, tt.text)) > 0 })
			want := line{tt.level, "http.reverse_proxy.transport.mcp_stdio", tt.message, "loud", pid, tt.text}
			if got := log(tt.message, tt.text)[0]; got != want {
				t.Errorf("logged %+v\nwant %+v", got, want)
			}
		})
	}
	t.Run("A35 much noise is counted, not logged", func(t *testing.T) {
		use(t, endpoint, "noise", `{"lines":5000,"text":"again and again"}`)
		await.Until(t, "the count", func() bool { return grown()[serverMetric("stdio_noise_total", "loud")] == 5001 })
		if n := len(log("line on stdout is not a message", "again and again")); n == 0 || n > 20 {
			t.Errorf("got %d lines", n)
		}
	})
}

func TestGatewayStdioDeath(t *testing.T) {
	isolate(t)
	journal := newJournal(t)
	// If a call did not end with the child, the client would time out.
	url := serve(t, gateway(block(child("mortal"), journal.env(), "timeout 10m")))
	session := newSession(t, mcpAt(url, "mortal"))
	stream := listenTo(t, mcpAt(url, "mortal"), session)
	for _, endpoint := range []string{rpcAt(url, "mortal"), mcpAt(url, "mortal")} {
		pid := pidAt(t, endpoint)
		if healthy := metrics(t)[serverMetric("upstream_healthy", "mortal")]; healthy != 1 {
			t.Errorf("healthy: %v", healthy)
		}
		grown := growth(t)
		calls := len(journal.entries(t, "tools/call"))
		waiting := beginCall(t, endpoint, "hang", `{}`)
		await.Until(t, "the call", func() bool { return len(journal.entries(t, "tools/call")) > calls })
		got := post(t, endpoint, `{"jsonrpc":"2.0","id":"d\u0069e","method":"tools/call","params":{"name":"die",`+
			`"arguments":{"code":3}}}`, acceptBoth)
		if f := gatewayErrorOf(t, got); f != (gatewayError{502, -32002, "connect_error", `"d\u0069e"`, "mortal", 0}) {
			t.Errorf("A37 got %+v", f)
		}
		if f := gatewayErrorOf(t, <-waiting); f != (gatewayError{502, -32002, "connect_error", `1`, "mortal", 0}) {
			t.Errorf("A37 the other call: %+v", f)
		}
		await.Until(t, "the gauge", func() bool { // the gauge may be up again already
			return metrics(t)[serverMetric("upstream_healthy", "mortal")] == 0 ||
				grown()[serverMetric("upstream_restarts_total", "mortal")] > 0
		})

		again := pidAt(t, endpoint)
		if again == pid {
			t.Error("A37 the killed child has responded")
		}
		if got := grown()[serverMetric("upstream_restarts_total", "mortal")]; got != 1 {
			t.Errorf("got %v restarts", got)
		}
		if healthy := metrics(t)[serverMetric("upstream_healthy", "mortal")]; healthy != 1 {
			t.Errorf("healthy: %v", healthy)
		}
		if syscall.Kill(pid, 0) == nil {
			t.Error("a zombie remains")
		}
		// Sessions and their streams survive it.
		if got := pidAt(t, mcpAt(url, "mortal"), session); got != again {
			t.Errorf("got process %d in the session, want %d", got, again)
		}
		if got := nextEvent(t, stream); !strings.Contains(got, "/list_changed") {
			t.Errorf("A37 got event %q", got)
		}
	}
}

// A child that cannot be started is not restarted in a tight loop.
func TestGatewayStdioFailsToStart(t *testing.T) {
	isolate(t)
	journal := newJournal(t)
	url := serve(t, gateway(
		block(child("hopeless", "--exit-at-start", "1"), journal.env()),
		block(child("mute", "--hang-init"), "start_timeout 300ms")))
	for range 2 {
		var calls []<-chan httpResponse
		for range 20 {
			calls = append(calls, beginCall(t, rpcAt(url, "hopeless"), "pid", `{}`))
		}
		for _, call := range calls {
			if f := gatewayErrorOf(t, <-call); f != (gatewayError{502, -32002, "connect_error", `1`, "hopeless", 0}) {
				t.Errorf("A37 got %+v", f)
			}
		}
	}
	if starts := journal.entries(t, "start"); len(starts) > 20 { // of 40 calls; 2 unless the machine is very slow
		t.Errorf("A37 started %d times", len(starts))
	}
	if f := gatewayErrorOf(t, post(t, mcpAt(url, "mute"), rpc("tools/list", `{}`))); f != (gatewayError{502, -32002,
		"connect_error", `1`, "mute", 0}) {
		t.Errorf("A37 got %+v", f)
	}
}

func TestGatewayStdioSilence(t *testing.T) {
	isolate(t)
	journal := newJournal(t)
	url := serve(t, gateway(block(child("silent"), journal.env(), "timeout 2s")))
	for i, endpoint := range []string{rpcAt(url, "silent"), mcpAt(url, "silent")} {
		pid := pidAt(t, endpoint)
		waiting := beginCall(t, endpoint, "hang", `{}`)
		if got := use(t, endpoint, "slow", `{"ms":100}`); got != "slept" {
			t.Errorf("A38 another call got %q", got)
		}
		if f := gatewayErrorOf(t, <-waiting); f != (gatewayError{502, -32002, "timeout", `1`, "silent", 0}) {
			t.Errorf("A38 got %+v", f)
		}
		await.Until(t, "the cancellation", func() bool { return len(journal.entries(t, "cancelled")) == i+1 })
		if again := pidAt(t, endpoint); again != pid {
			t.Errorf("A38 %d became %d", pid, again)
		}
		if got := use(t, endpoint, "late", `{"ms":50}`); got != "in time" {
			t.Errorf("A38 got %q", got)
		}
	}
	grown := growth(t)
	use(t, rpcAt(url, "silent"), "late", `{"ms":1}`)
	if got := use(t, rpcAt(url, "silent"), "wrong-id", `{}`); got != "for you" {
		t.Errorf("got %q", got)
	}
	await.Until(t, "late responses to be dropped",
		func() bool { return grown()[serverMetric("stdio_dropped_total", "silent")] >= 2 })
}

func TestGatewayStdioClientLeaves(t *testing.T) {
	isolate(t)
	journal := newJournal(t)
	url := serve(t, gateway(block(child("left"), journal.env())))
	for i, endpoint := range []string{rpcAt(url, "left"), mcpAt(url, "left")} {
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan struct{})
		go func() {
			defer close(left)
			if res, err := streamClient.Do(request(t, ctx, "POST", endpoint, toolCall{"hang", `{}`}.request(),
				acceptBoth)); err == nil {
				res.Body.Close()
			}
		}()
		await.Until(t, "the call", func() bool { return len(journal.entries(t, "tools/call")) == i+1 })
		leave()
		<-left
		await.Until(t, "the end of the call", func() bool { return len(journal.entries(t, "cancelled")) == i+1 })
	}
}

func TestGatewayStdioEnvironment(t *testing.T) {
	isolate(t)
	const secret = "s3cr3t-of-the-test"
	setenv(t, "STDIO_TEST_SECRET", secret)
	setenv(t, "STDIO_TEST_FLAG", "--banner")
	setenv(t, "STDIO_TEST_OTHER", "not for children")
	journal := newJournal(t)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	url := serve(t, gateway(
		block(child("environment", "{env.STDIO_TEST_FLAG}"), journal.env(), "env KEY {env.STDIO_TEST_SECRET}",
			`env EMPTY ""`, `env ODD "a b $HOME * ;=x"`, "dir "+dir),
		block(child("unheard", `"--no-such-flag; touch $HOME/x && echo *"`), journal.env(), "start_timeout 2s"),
	))
	endpoint := rpcAt(url, "environment")
	var got map[string]string
	if err := json.Unmarshal([]byte(use(t, endpoint, "env", `{}`)), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"KEY": secret, "EMPTY": "", "ODD": "a b $HOME * ;=x", "DS_LOG": string(journal),
		"PATH": os.Getenv("PATH"), "HOME": caddyOf(t).home}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("A40 got environment %v\nwant %v", got, want)
	}
	if got := use(t, endpoint, "cwd", `{}`); got != dir {
		t.Errorf("got working directory %s", got)
	}
	if config := admin(t, "GET", "/config/", "").body; strings.Contains(config, secret) || !strings.Contains(config,
		"{env.STDIO_TEST_SECRET}") {
		t.Errorf("A40 got configuration %s", config)
	}
	// No shell is involved, and a command that cannot run is an error of the gateway.
	if f := gatewayErrorOf(t, post(t, rpcAt(url, "unheard"), rpc("tools/list", `{}`))); f != (gatewayError{502, -32002,
		"connect_error", "1", "unheard", 0}) {
		t.Errorf("A40 got %+v", f)
	}
}

func TestGatewayStdioFraming(t *testing.T) {
	isolate(t)
	const size = 9 << 20
	tests := []struct {
		name string
		args []string
		line string
	}{
		{"newline", nil, "framing newline"},
		{"content-length", []string{"--framing", "content-length"}, "framing content-length"},
		{"mixed", []string{"--framing", "content-length"}, "framing newline"},
	}
	servers := []string{"response_timeout 10s", block(child("narrow"), "max_line 1MiB", "mask off")}
	for _, tt := range tests {
		servers = append(servers, block(child(tt.name, tt.args...), tt.line, "mask off"))
	}
	url := serve(t, gateway(servers...))
	for _, tt := range tests {
		t.Run("A41 "+tt.name, func(t *testing.T) {
			if text := use(t, mcpAt(url, tt.name), "big", fmt.Sprintf(`{"n":%d}`, size)); text != strings.Repeat("x", size) {
				t.Errorf("%d bytes, %.100s", len(text), text)
			}
			params := `{"name":"echo","arguments":{"text":"` + strings.Repeat("y", size) + `"}}`
			same(t, toolText(t, post(t, rpcAt(url, tt.name), rpc("tools/call", params)).body), params)
		})
	}
	t.Run("A41 a line that is too long fails only its call", func(t *testing.T) {
		endpoint := rpcAt(url, "narrow")
		pid := pidAt(t, endpoint)
		waiting := beginCall(t, endpoint, "slow", `{"ms":300}`)
		if f := gatewayErrorOf(t, post(t, endpoint, toolCall{"big", `{"n":2000000}`}.request())); f != (gatewayError{502,
			-32003, "invalid_response", "1", "narrow", 0}) {
			t.Errorf("got %+v", f)
		}
		if got := toolText(t, (<-waiting).body); got != "slept" {
			t.Errorf("the other call got %q", got)
		}
		if again := pidAt(t, endpoint); again != pid {
			t.Errorf("%d became %d", pid, again)
		}
	})
}

// stdioProxy returns the long form of a server: a reverse_proxy with the transport.
func stdioProxy(name, upstreams string, args, transport []string, lines ...string) string {
	_, command, _ := strings.Cut(child(name, args...), " stdio ")
	return block("server "+name, block("reverse_proxy "+upstreams,
		append(lines, block("transport mcp_stdio "+command, transport...))...))
}

func TestGatewayStdioPool(t *testing.T) {
	isolate(t)
	url := serve(t, gateway(
		stdioProxy("alpha", "alpha:1-3", nil, nil, "lb_policy round_robin"),
		stdioProxy("beta", "beta:1-3", nil, []string{"isolation session"}, "lb_policy round_robin"),
	))
	pids := func(server string, headers ...string) map[int]int {
		pids := map[int]int{}
		for range 6 {
			pids[pidAt(t, mcpAt(url, server), headers...)]++
		}
		return pids
	}
	if got := pids("alpha"); len(got) != 3 {
		t.Errorf("without a session: %v", got)
	}
	session := newSession(t, mcpAt(url, "alpha"))
	if got := pids("alpha", session); len(got) != 3 {
		t.Errorf("in a session: %v", got)
	}
	listenTo(t, mcpAt(url, "alpha"), session)

	one, two := newSession(t, mcpAt(url, "beta")), newSession(t, mcpAt(url, "beta"))
	pid := pidAt(t, mcpAt(url, "beta"), one)
	if ones, twos := pids("beta", one), pids("beta", two); len(ones) != 1 || len(twos) != 1 ||
		fmt.Sprint(ones) == fmt.Sprint(twos) {
		t.Errorf("in sessions with isolated children: %v and %v", ones, twos)
	}
	if got := send(t, client, "DELETE", mcpAt(url, "beta"), "", one); got.StatusCode != 204 {
		t.Errorf("got %d %s, want 204", got.StatusCode, got.body)
	}
	if got := post(t, mcpAt(url, "beta"), toolCall{"pid", `{}`}.request(), one, acceptBoth); got.StatusCode != 404 {
		t.Errorf("an ended session: got %d %s, want 404", got.StatusCode, got.body)
	}
	await.Until(t, "the end of its child", func() bool { return syscall.Kill(pid, 0) != nil })
}

func TestGatewayStdioHealthChecks(t *testing.T) {
	isolate(t)
	journals := map[string]journal{}
	var servers []string
	timeouts := map[string]string{"well": "10s", "deaf": "10s", "hung": "200ms"}
	for name, args := range map[string][]string{"well": nil, "deaf": {"--no-ping"}, "hung": {"--hang-ping"}} {
		journals[name] = newJournal(t)
		servers = append(servers, stdioProxy(name, name+":1", args, []string{journals[name].env()}, "health_uri /",
			"health_interval 100ms", "health_timeout "+timeouts[name]))
	}
	url := serve(t, gateway(servers...))
	grown := growth(t)
	for _, name := range []string{"well", "deaf"} {
		await.Until(t, "pings of "+name, func() bool { return len(journals[name].entries(t, "ping")) >= 5 })
		if starts := journals[name].entries(t, "start"); len(starts) != 1 {
			t.Errorf("A36 %s started %d times", name, len(starts))
		}
		pidAt(t, rpcAt(url, name))
	}
	await.Until(t, "two restarts", func() bool { return len(journals["hung"].entries(t, "start")) >= 3 })
	first := journals["hung"].entries(t, "start")[0].PID
	if syscall.Kill(first, 0) == nil {
		t.Error("A36 the first child has not exited")
	}
	if got := grown()[serverMetric("upstream_restarts_total", "hung")]; got == 0 {
		t.Error("A36 no restart was counted")
	}
}

func TestGatewayStdioReloads(t *testing.T) {
	isolate(t)
	journal, address := newJournal(t), freeAddress(t)
	url := "http://" + address
	endpoint := mcpAt(url, "kept")
	config := func(more ...string) string {
		return site(address, gateway(append([]string{block(child("kept"), journal.env())}, more...)...))
	}
	load(t, config())
	pid, session := pidAt(t, endpoint), newSession(t, endpoint)
	stream := listenTo(t, endpoint, session)

	t.Run("G27 an unchanged server continues", func(t *testing.T) {
		calls := len(journal.entries(t, "tools/call"))
		waiting := beginCall(t, endpoint, "slow", `{"ms":500}`, session)
		await.Until(t, "the call", func() bool { return len(journal.entries(t, "tools/call")) > calls })
		load(t, config("server other http://127.0.0.1:1"))
		if again := pidAt(t, endpoint); again != pid {
			t.Errorf("%d became %d", pid, again)
		}
		if got := <-waiting; toolText(t, answerIn(got.body)) != "slept" {
			t.Errorf("the call in flight got %s %s", got.Status, got.body)
		}
		use(t, endpoint, "add-tool", `{"name":"new"}`, session)
		if got := nextEvent(t, stream); !strings.Contains(got, "notifications/tools/list_changed") {
			t.Errorf("got event %q", got)
		}
		if again := pidAt(t, endpoint, session); again != pid {
			t.Errorf("in the session %d became %d", pid, again)
		}
	})

	occupied, lost := listen(t), newJournal(t)
	for name, bad := range map[string]string{
		"G27 a load that fails to provision": config() + site(freeAddress(t), gateway("server a http://127.0.0.1:1",
			"server a http://127.0.0.1:1")),
		"G27 a load that fails to start": config() + site(occupied.Addr().String(),
			gateway("server a http://127.0.0.1:1")),
	} {
		t.Run(name, func(t *testing.T) {
			bad += site(freeAddress(t), gateway(
				block(child("lost"), lost.env()),
				stdioProxy("checked", "checked:1", nil, []string{lost.env()}, "health_uri /", "health_interval 10s")))
			if got := admin(t, "POST", "/load", withAdmin(bad, adminAddress(t)),
				"Content-Type: text/caddyfile"); got.StatusCode == 200 {
				t.Fatal("the configuration was loaded")
			}
			if again := pidAt(t, endpoint, session); again != pid {
				t.Errorf("%d became %d", pid, again)
			}
			use(t, endpoint, "add-tool", `{"name":"newer"}`, session)
			if got := nextEvent(t, stream); !strings.Contains(got, "notifications/tools/list_changed") {
				t.Errorf("got event %q", got)
			}
		})
	}

	t.Run("G27 a changed server completes its calls", func(t *testing.T) {
		calls := len(journal.entries(t, "tools/call"))
		waiting := beginCall(t, endpoint, "slow", `{"ms":500}`, session)
		await.Until(t, "the call", func() bool { return len(journal.entries(t, "tools/call")) > calls })
		load(t, site(address, gateway(block(child("kept"), journal.env(), "env CHANGED yes"))))
		if again := pidAt(t, endpoint); again == pid {
			t.Errorf("the process is still %d", pid)
		}
		if got := <-waiting; toolText(t, answerIn(got.body)) != "slept" {
			t.Errorf("the call in flight got %s %s", got.Status, got.body)
		}
		if rest, err := io.ReadAll(stream); len(rest) > 0 || err != nil {
			t.Errorf("the stream ends with %q, %v", rest, err)
		}
		if got := post(t, endpoint, toolCall{"pid", `{}`}.request(), session, acceptBoth); got.StatusCode != 404 {
			t.Errorf("the session of the old child: got %d %s, want 404", got.StatusCode, got.body)
		}
		await.Until(t, "the end of the old child", func() bool { return syscall.Kill(pid, 0) != nil })
	})
	t.Run("G27 a load that fails leaves no child", func(t *testing.T) {
		for _, e := range lost.entries(t, "start") {
			if e.ID == "lost" {
				t.Error("a child was started without a request")
			}
			// Health checks begin before a load has failed. Their children are stopped.
			await.Until(t, "the end of a child", func() bool { return syscall.Kill(e.PID, 0) != nil })
		}
	})
}

// 200 configurations, each with a server that the next one lacks, leave nothing behind.
func TestGatewayStdioReloadsLeaveNothing(t *testing.T) {
	isolate(t)
	journal, address := newJournal(t), freeAddress(t)
	goroutines := func() (all, ours int) {
		for stack := range strings.SplitSeq(admin(t, "GET", "/debug/pprof/goroutine?debug=2", "").body, "\n\n") {
			all++
			if strings.Contains(stack, "github.com/caddy-mcp-gateway/caddy-mcp-gateway/") {
				ours++
			}
		}
		return all, ours
	}
	load(t, site(address, "respond x"))
	before, _ := goroutines()

	endpointOf := func(server string) string { return rpcAt("http://"+address, server) }
	var pid int
	for i := range 200 {
		load(t, site(address, gateway(block(child("stays"), journal.env()), block(child("changes"), journal.env(),
			fmt.Sprintf("env I %d", i)))))
		if i%20 != 0 {
			continue
		}
		pidAt(t, endpointOf("changes"))
		if again := pidAt(t, endpointOf("stays")); pid != 0 && again != pid {
			t.Fatalf("%d became %d", pid, again)
		} else {
			pid = again
		}
	}
	load(t, site(address, "respond x"))
	await.Until(t, "the end of our goroutines", func() bool { _, ours := goroutines(); return ours == 0 })
	starts := journal.entries(t, "start")
	if len(starts) != 11 {
		t.Errorf("%d children were started", len(starts))
	}
	for _, e := range starts {
		if syscall.Kill(e.PID, 0) == nil {
			t.Errorf("%d still runs", e.PID)
		}
	}
	await.Until(t, "the end of other goroutines", func() bool {
		client.CloseIdleConnections()
		now, _ := goroutines()
		return now < before+20
	})
}

// Children stop with their servers, even if others have the same command, and their calls complete.
func TestGatewayStdioServersThatGo(t *testing.T) {
	isolate(t)
	const grown = 8
	for _, test := range []struct {
		name    string
		servers []string // successive configurations
		used    string   // servers of the last one
		want    int      // number of children at the end
	}{
		{"renamed", []string{"alpha:1", "beta:1", "gamma:1", "delta:1", "epsilon:1", "zeta:1"}, "zeta", 1},
		{"scaled down", []string{fmt.Sprintf("tools:1-%d", grown), "tools:1-2"}, "tools", 2},
		{"removed", []string{"stays:1 goes:1", "stays:1"}, "stays", 1},
		{"replaced by others", []string{"a:1 b:1-2", "c:1-2 d:1"}, "c d", 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			journal, address := newJournal(t), freeAddress(t)
			endpointOf := func(server string) string { return mcpAt("http://"+address, server) }
			var waiting []<-chan httpResponse
			for i, servers := range test.servers {
				var proxies, names []string
				for server := range strings.FieldsSeq(servers) {
					name, _, _ := strings.Cut(server, ":")
					names = append(names, name)
					// The arguments are the same, because they belong to the transport.
					proxies = append(proxies, strings.Replace(stdioProxy("same", server, nil, []string{journal.env()},
						"lb_policy round_robin"), "same", name, 1))
				}
				load(t, site(address, gateway(proxies...)))
				for _, name := range names {
					for range grown { // so that each child gets a call
						pidAt(t, endpointOf(name))
					}
					if i < len(test.servers)-1 {
						calls := len(journal.entries(t, "tools/call"))
						waiting = append(waiting, beginCall(t, endpointOf(name), "slow", `{"ms":300}`))
						await.Until(t, "the call", func() bool { return len(journal.entries(t, "tools/call")) > calls })
					}
				}
			}
			for _, call := range waiting {
				if got := <-call; toolText(t, answerIn(got.body)) != "slept" {
					t.Errorf("a call in flight got %s %s", got.Status, got.body)
				}
			}
			runs := func() (n int) {
				for _, e := range journal.entries(t, "start") {
					if processRuns(e.PID) {
						n++
					}
				}
				return n
			}
			await.Until(t, "the end of the children of removed servers", func() bool { return runs() == test.want })
			for _, name := range strings.Fields(test.used) {
				pidAt(t, endpointOf(name))
			}
			if n := runs(); n != test.want {
				t.Errorf("got %d children", n)
			}
		})
	}
}

func TestGatewayStdioManyClients(t *testing.T) {
	isolate(t)
	const clients, connections = 2000, 200
	url := serve(t, gateway(child("crowded")))
	endpoint := mcpAt(url, "crowded")
	transport := &http.Transport{DisableCompression: true, MaxConnsPerHost: connections, MaxIdleConnsPerHost: connections}
	defer transport.CloseIdleConnections()
	crowd := &http.Client{Transport: transport, Timeout: 6 * patience}
	ask := func(message string, headers ...string) (httpResponse, error) {
		res, err := crowd.Do(request(t, t.Context(), "POST", endpoint, message, append(headers, acceptBoth)...))
		if err != nil {
			return httpResponse{}, err
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		return httpResponse{res, string(body)}, err
	}
	var waiting sync.WaitGroup
	turn := make(chan struct{}, connections)
	for i := range clients {
		turn <- struct{}{}
		waiting.Go(func() {
			defer func() { <-turn }()
			hello, err := ask(rpc("initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x",`+
				`"version":"1"}}`))
			if err != nil || hello.StatusCode != 200 {
				t.Errorf("client %d: %v %v", i, err, hello)
				return
			}
			session := "Mcp-Session-Id: " + hello.Header.Get("Mcp-Session-Id")
			params := fmt.Sprintf(`{"name":"echo","arguments":{"client":%d}}`, i)
			got, err := ask(rpc("tools/call", params), session)
			if want := result(`{"content":[{"type":"text","text":` + quote(params) + `}]}`); err != nil || got.body != want {
				t.Errorf("client %d: %v %s", i, err, got.body)
			}
			params = fmt.Sprintf(`{"name":"progress","arguments":{"steps":2},"_meta":{"progressToken":%d}}`, i)
			got, err = ask(rpc("tools/call", params), session)
			if token := fmt.Sprintf(`"progressToken":%d,`, i); err != nil || strings.Count(got.body, token) != 2 ||
				strings.Count(got.body, "data: ") != 3 {
				t.Errorf("client %d: %v %s", i, err, got.body)
			}
		})
	}
	waiting.Wait()
}

// Each caller of a killed child gets its own response.
func TestGatewayStdioKilledUnderLoad(t *testing.T) {
	isolate(t)
	const kills = 20
	journal := newJournal(t)
	url := serve(t, gateway(block(child("killed"), journal.env())))
	endpoint := mcpAt(url, "killed")
	pidAt(t, endpoint)
	grown := growth(t)

	var stop atomic.Bool
	var results, failures, number atomic.Int64
	var waiting sync.WaitGroup
	for range 8 {
		waiting.Go(func() {
			for !stop.Load() {
				id := number.Add(1)
				message := fmt.Sprintf(`{"jsonrpc":"2.0","id":"call %d","method":"tools/call","params":{"name":"slow",`+
					`"arguments":{"ms":5}}}`, id)
				res, err := streamClient.Do(request(t, t.Context(), "POST", endpoint, message, acceptBoth))
				if err != nil {
					t.Errorf("call %d: %v", id, err)
					return
				}
				body, err := io.ReadAll(res.Body)
				res.Body.Close()
				var got struct {
					ID            string
					Result, Error json.RawMessage
				}
				if err == nil {
					err = json.Unmarshal(body, &got)
				}
				switch {
				case err != nil || got.ID != fmt.Sprintf("call %d", id) || (got.Result == nil) == (got.Error == nil):
					t.Errorf("call %d: %v %d %s", id, err, res.StatusCode, body)
				case got.Result != nil:
					results.Add(1)
				default:
					failures.Add(1)
				}
			}
		})
	}
	var pids []int
	for range kills {
		starts := journal.entries(t, "start")
		pids = append(pids, starts[len(starts)-1].PID)
		done := results.Load()
		await.Until(t, "responses", func() bool { return results.Load() > done+20 })
		if err := syscall.Kill(pids[len(pids)-1], syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		await.Until(t, "another child", func() bool { return len(journal.entries(t, "start")) > len(starts) })
		done = results.Load()
		await.Until(t, "responses again", func() bool { return results.Load() > done })
	}
	stop.Store(true)
	waiting.Wait()
	t.Logf("%d results, %d errors", results.Load(), failures.Load())
	if failures.Load() == 0 {
		t.Error("no call failed")
	}
	for _, pid := range pids {
		if syscall.Kill(pid, 0) == nil {
			t.Errorf("%d still runs", pid)
		}
	}
	if got := grown()[serverMetric("upstream_restarts_total", "killed")]; got != kills {
		t.Errorf("got %v restarts", got)
	}
}

// A39: no child outlives Caddy for long, whatever it does.
func TestGatewayStdioEndsWithCaddy(t *testing.T) {
	isolate(t)
	for _, how := range []string{"TERM", "caddy stop"} {
		t.Run("A39 "+how, func(t *testing.T) {
			journal := newJournal(t)
			file := filepath.Join(t.TempDir(), "Caddyfile")
			config := block("http://:8080", gateway(
				block(child("polite"), journal.env(), "stop_grace 1s"),
				block(child("stubborn", "--ignore-term"), journal.env(), "stop_grace 1s"),
				block(child("own", "--ignore-term"), journal.env(), "stop_grace 1s", "isolation session")))
			if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
				t.Fatal(err)
			}
			running := run(t, file)
			var pids []int
			for _, server := range []string{"polite", "stubborn", "own"} {
				endpoint := mcpAt("http://"+running.address, server)
				session := newSession(t, endpoint)
				listenTo(t, endpoint, session)
				pids = append(pids, pidAt(t, endpoint, session))
				for _, stubborn := range []string{"false", "true"} {
					pid, err := strconv.Atoi(use(t, endpoint, "spawn", `{"stubborn":`+stubborn+`}`, session))
					if err != nil {
						t.Fatal(err)
					}
					pids = append(pids, pid)
				}
			}
			t.Cleanup(func() { // if the test has failed
				for _, pid := range pids {
					if processRuns(pid) {
						_ = syscall.Kill(pid, syscall.SIGKILL)
					}
				}
			})
			if how == "TERM" {
				running.stop(t)
			} else {
				stop := caddy(t, "stop", "--address", running.addresses[":2019"])
				if out, err := stop.CombinedOutput(); err != nil {
					t.Errorf("%v\n%s", err, out)
				}
				wait(t, running.exited, "the end of the process")
			}
			for _, pid := range pids {
				if processRuns(pid) {
					t.Errorf("%d of %v still runs", pid, pids)
				}
			}
			for _, e := range journal.entries(t, "start") {
				if processRuns(e.PID) {
					t.Errorf("%s, process %d, still runs", e.ID, e.PID)
				}
			}
		})
	}
}

// A call that becomes idle after it began to stream ends with an error, even if keep-alives
// continue.
func TestGatewayStdioSilenceInAStream(t *testing.T) { // A38
	isolate(t)
	url := serve(t, block("mcp_gateway", block(child("alpha"), "timeout 3s", "isolation session")))
	endpoint := url + "/mcp/alpha"
	got := post(t, endpoint, rpc("initialize", `{"protocolVersion":"2025-11-25","capabilities":{"sampling":{}},`+
		`"clientInfo":{"name":"test","version":"1"}}`), acceptBoth)
	session := "Mcp-Session-Id: " + got.Header.Get("Mcp-Session-Id")
	body := post(t, endpoint, toolCall{"ask", `{"method":"sampling/createMessage"}`}.request(), acceptBoth, session).body
	if !strings.Contains(body, "sampling/createMessage") {
		t.Errorf("no server request: %s", body)
	}
	if answer := answerIn(body); !strings.Contains(answer, `"code":"timeout"`) || !strings.Contains(answer, `"id":1`) {
		t.Errorf("got response %s", answer)
	}
	if got := use(t, endpoint, "slow", `{"ms":1}`, session); got != "slept" {
		t.Errorf("next call: %s", got)
	}
}

// everythingOf configures the reference server as a child.
func everythingOf(t *testing.T, name string, lines ...string) string {
	t.Helper()
	peer(t, "") // skips the test if it is not installed
	return block("server "+name+" stdio node "+nodeModules+"@modelcontextprotocol/server-everything/dist/index.js stdio",
		append(lines, "start_timeout 2m")...)
}

// directTools returns the tools of the reference server without a gateway, by client
// capabilities.
func directTools(t *testing.T, capabilities ...string) map[string][]string {
	t.Helper()
	servers := map[string]*directServer{}
	for _, can := range capabilities {
		servers[can] = startDirect(t, peer(t, "node_modules/@modelcontextprotocol/server-everything/dist/index.js", "stdio"))
	}
	tools := map[string][]string{}
	for can, s := range servers {
		s.initialize(t, can)
		tools[can] = namesOf(t, s.ask(t, "tools/list", `{}`), "")
	}
	return tools
}

// namesOf returns the sorted names with a prefix in a result of tools/list, without the prefix.
func namesOf(t *testing.T, result json.RawMessage, prefix string) (names []string) {
	t.Helper()
	var list struct {
		Tools      []struct{ Name string }
		NextCursor string
	}
	if err := json.Unmarshal(result, &list); err != nil || len(list.Tools) == 0 || list.NextCursor != "" {
		t.Fatalf("got %.300s, error %v, want all tools", result, err)
	}
	for _, tool := range list.Tools {
		if name, has := strings.CutPrefix(tool.Name, prefix); has {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// pidsOf returns the process IDs of a server's children.
func pidsOf(t *testing.T, server string) (pids []int) {
	t.Helper()
	for _, c := range stateOf(t, server).Children {
		if c.PID != 0 {
			pids = append(pids, c.PID)
		}
	}
	slices.Sort(pids)
	return pids
}

// answersAs answers server requests with the name of a client.
func answersAs(self string) mcpclient.Responder {
	return func(method string, _ json.RawMessage) string {
		if method == "elicitation/create" {
			return `{"action":"accept","content":{"name":` + quote(self) + `}}`
		}
		return `{"role":"assistant","model":"m","content":{"type":"text","text":"text from ` + self + `"}}`
	}
}

// TestSharedChildrenListSameTools: servers may offer more tools to clients with more capabilities.
// Clients see the same tools as without a gateway, except for roots: a shared child never gets the
// roots of clients, so the gateway declares the capability only if roots are configured.
func TestSharedChildrenListSameTools(t *testing.T) {
	isolate(t)
	const (
		none  = `{}`
		some  = `{"sampling":{},"elicitation":{"form":{},"url":{}}}`
		roots = `{"roots":{},"elicitation":{"url":{},"form":{}},"sampling":{}}`
	)
	direct := directTools(t, none, some, roots, `{"roots":{}}`)
	if len(direct[none]) >= len(direct[some]) || len(direct[some]) >= len(direct[roots]) {
		t.Fatalf("without a gateway there are %d, %d and %d tools, so the test proves nothing", len(direct[none]),
			len(direct[some]), len(direct[roots]))
	}
	url := serve(t, patientGateway("separator __", everythingOf(t, "everything"),
		everythingOf(t, "rooted", "roots file:///configured"), everythingOf(t, "one", "isolation none")))
	for _, tt := range []struct {
		server   string
		sees     map[string][]string
		children int
	}{
		{"everything", map[string][]string{none: direct[none], some: direct[some], roots: direct[some]}, 2},
		{"rooted", map[string][]string{none: direct[`{"roots":{}}`], some: direct[roots], roots: direct[roots]}, 2},
		{"one", map[string][]string{none: direct[some], some: direct[some], roots: direct[some]}, 1},
	} {
		t.Run(tt.server, func(t *testing.T) {
			var before []int
			for range 2 { // the second time with running children
				for _, era := range clientEras {
					for endpoint, prefix := range map[string]string{joinedAt(url): tt.server + "__", mcpAt(url, tt.server): ""} {
						for capabilities, want := range tt.sees {
							c := newTestClient(t, endpoint, era.modern, capabilities)
							if got := namesOf(t, c.ask(t, "tools/list", `{}`).answer.Result, prefix); !slices.Equal(got, want) {
								t.Errorf("%s at %s with %s: got %d tools, want %d: %v", era.name, endpoint, capabilities, len(got), len(want),
									got)
							}
						}
					}
				}
				pids := pidsOf(t, tt.server)
				if len(pids) != tt.children || before != nil && !slices.Equal(pids, before) {
					t.Errorf("got processes %v, before %v, want the same %d", pids, before, tt.children)
				}
				before = pids
			}
			// Clients without capabilities start no process.
			post(t, rpcAt(url, tt.server), toolCall{"echo", `{"message":"x"}`}.request())
			control[any](t, "POST", "/servers/"+tt.server+"/restart", "", 200)
			after := pidsOf(t, tt.server)
			if len(after) != tt.children || slices.ContainsFunc(after,
				func(pid int) bool { return slices.Contains(before, pid) }) {
				t.Errorf("after a restart the processes are %v, before %v", after, before)
			}
		})
	}
}

// TestSharedChildrenAskClientsOfAllKinds: servers can send requests to clients with different
// capabilities, also at the same time.
func TestSharedChildrenAskClientsOfAllKinds(t *testing.T) {
	isolate(t)
	url := serve(t, patientGateway("separator __", everythingOf(t, "everything")))
	kinds := []struct{ capabilities, tool, want string }{
		{`{"sampling":{}}`, "trigger-sampling-request", "text from "},
		{`{"elicitation":{}}`, "trigger-elicitation-request", "- Name: "},
		{`{"sampling":{},"elicitation":{}}`, "trigger-elicitation-request", "- Name: "},
	}
	// An open server request of one child does not block those of other children.
	waiting := newTestClient(t, mcpAt(url, "everything"), false, kinds[0].capabilities)
	open := waiting.begin(t, "tools/call", `{"name":"trigger-sampling-request","arguments":{"prompt":"why"}}`)
	asked := open.awaitMessage(t, "sampling/createMessage")
	for i, kind := range kinds[1:] {
		for endpoint, prefix := range map[string]string{joinedAt(url): "everything__", mcpAt(url, "everything"): ""} {
			for _, era := range clientEras {
				if era.modern && prefix == "" {
					continue // there, only modern servers can send them requests
				}
				self := fmt.Sprintf("%s %d", era.name, i)
				c := newTestClient(t, endpoint, era.modern, kind.capabilities)
				got := c.Request(t.Context(), "tools/call", `{"name":"`+prefix+kind.tool+`","arguments":{}}`, answersAs(self))
				if got.Err != nil || !strings.Contains(got.Raw, kind.want+self) {
					t.Errorf("%s at %s with %s: got %.500s, error %v, want %s%s", era.name, endpoint, kind.capabilities, got.Raw,
						got.Err, kind.want, self)
				}
			}
		}
	}
	waiting.respond(t, asked, answersAs("the first")(asked.Method, nil))
	if got := open.finish(t); !strings.Contains(got.answer.Raw, "text from the first") {
		t.Errorf("got %.500s", got.answer.Raw)
	}
	if pids := pidsOf(t, "everything"); len(pids) != len(kinds) {
		t.Errorf("got processes %v, want %d", pids, len(kinds))
	}
}

// TestSharedChildrenAreFew: however many different capabilities a client declares, it gets a
// limited number of processes.
func TestSharedChildrenAreFew(t *testing.T) {
	isolate(t)
	url := serve(t, patientGateway(everythingOf(t, "everything")))
	want := directTools(t, `{}`)[`{}`]
	for i := range 12 {
		for _, era := range clientEras {
			c := newTestClient(t, mcpAt(url, "everything"), era.modern, fmt.Sprintf(`{"experimental":{%q:{"n":%d}}}`, era.name,
				i))
			if got := namesOf(t, c.ask(t, "tools/list", `{}`).answer.Result, ""); !slices.Equal(got, want) {
				t.Errorf("got tools %v, want %v", got, want)
			}
		}
	}
	// 4 for the client's address, and 1 for clients without capabilities
	if pids := pidsOf(t, "everything"); len(pids) != 5 {
		t.Errorf("got %d processes, want 5", len(pids))
	}
}

// TestSharedChildrenAskAfterACancellation: after a client cancels a call, other clients can receive
// server requests at once.
func TestSharedChildrenAskAfterACancellation(t *testing.T) {
	isolate(t)
	url := serve(t, patientGateway("separator __", everythingOf(t, "everything")))
	const can = `{"sampling":{},"elicitation":{}}`
	for name, end := range map[string]func(t *testing.T, c *testClient, d *exchange){
		"cancelled": func(t *testing.T, c *testClient, d *exchange) {
			c.post(t, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+d.ID+`}}`)
		},
		"hung up": func(t *testing.T, _ *testClient, d *exchange) {
			grown := growth(t)
			d.Cancel()
			await.Until(t, "the gateway to notice", func() bool {
				return grown()[`requests_total{gateway="",method="tools/call",outcome="canceled",server="everything"}`] == 1
			})
		},
	} {
		for endpoint, prefix := range map[string]string{joinedAt(url): "everything__", mcpAt(url, "everything"): ""} {
			t.Run(name+" at "+strings.TrimPrefix(endpoint, url), func(t *testing.T) {
				a, b := newTestClient(t, endpoint, false, can), newTestClient(t, endpoint, false, can)
				d := a.begin(t, "tools/call", `{"name":"`+prefix+
					`trigger-long-running-operation","arguments":{"duration":20,"steps":200},"_meta":{"progressToken":1}}`)
				d.awaitMessage(t, "notifications/progress")
				end(t, a, d)
				for _, kind := range []struct{ tool, want string }{{"trigger-elicitation-request", "- Name: b"},
					{"trigger-sampling-request", "text from b"}} {
					got := b.Request(t.Context(), "tools/call", `{"name":"`+prefix+kind.tool+`","arguments":{"prompt":"why"}}`,
						answersAs("b"))
					if got.Err != nil || !strings.Contains(got.Raw, kind.want) {
						t.Errorf("%s: got %.500s, error %v, want %s", kind.tool, got.Raw, got.Err, kind.want)
					}
				}
				d.Cancel()
			})
		}
	}
	if pids := pidsOf(t, "everything"); len(pids) != 1 {
		t.Errorf("got processes %v, want one for clients with equal capabilities", pids)
	}
}
