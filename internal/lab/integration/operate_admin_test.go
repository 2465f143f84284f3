package integration

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// control sends a request to the gateway's admin API, checks the status and decodes the response.
func control[T any](t *testing.T, method, path, body string, status int) (answered T) {
	t.Helper()
	got := admin(t, method, "/mcp_gateway"+path, body)
	if got.StatusCode != status {
		t.Fatalf("%s %s: %d %s\nwant %d", method, path, got.StatusCode, got.body, status)
	}
	if got.body == "" {
		return answered
	}
	if contentType := got.Header.Get("Content-Type"); !strings.HasPrefix(contentType, "application/json") {
		t.Errorf("%s %s: Content-Type %q", method, path, contentType)
	}
	if err := json.Unmarshal([]byte(got.body), &answered); err != nil {
		t.Fatalf("%s %s: %v: %s", method, path, err, got.body)
	}
	return answered
}

// doRequest sends a request and reads the response. Unlike post, any goroutine may call it.
func doRequest(client *http.Client, req *http.Request) (status int, body string, err error) {
	res, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	return res.StatusCode, string(raw), err
}

// expectAdminError checks that the admin API refuses a request with this status and an error.
func expectAdminError(t *testing.T, method, path, body string, status int) {
	t.Helper()
	got := control[struct{ Error, Code string }](t, method, path, body, status)
	if got.Error == "" || got.Code == "" {
		t.Errorf("%s %s: got the error %+v", method, path, got)
	}
}

// serverState is a server's status in the admin API.
type serverState struct {
	Gateway      string
	Name         string
	State        string
	LastError    string `json:"last_error"`
	Restarts     int
	ToolsChanged int `json:"tools_changed"`
	Children     []struct {
		PID       int
		State     string
		LastError string `json:"last_error"`
	}
	Upstreams []struct {
		Address string
		Healthy bool
	}
}

// stateOf requests the status of a server.
func stateOf(t *testing.T, server string) serverState {
	t.Helper()
	return control[serverState](t, "GET", "/servers/"+server, "", 200)
}

// pid returns the process ID of the server's only child.
func (s serverState) pid(t *testing.T) int {
	t.Helper()
	if len(s.Children) != 1 {
		t.Fatalf("children: %+v", s)
	}
	return s.Children[0].PID
}

// A logLine is a line of Caddy's log.
type logLine struct {
	Level   string
	Logger  string
	Message string `json:"msg"`

	// Fields of operators' actions.
	Action, Gateway, Name, Outcome string

	// Fields of refused requests and of changed tools.
	Reason, Rule, Client string
	MCPServer            string `json:"mcp_server"` // also of operators' actions
	MCPTool              string `json:"mcp_tool"`
}

// logTo returns global options that make Caddy log to a file.
func logTo(file string, more ...string) string {
	return block("", append(more, block("log", "output file "+file, "format json"))...) + "\n"
}

// linesOfLog returns the log lines of loggers whose name ends with logger.
func linesOfLog(t *testing.T, file, logger string) (found []logLine) {
	t.Helper()
	for _, raw := range linesOf(t, file) {
		var line logLine
		if json.Unmarshal([]byte(raw), &line) == nil && strings.HasSuffix(line.Logger, logger) {
			found = append(found, line)
		}
	}
	return found
}

// membersOf lists all items with a method and returns a member of each item.
func membersOf(t *testing.T, c *testClient, method, kind, member string) (values []string) {
	t.Helper()
	got := c.ask(t, method, `{}`)
	var result map[string]json.RawMessage
	var items []map[string]json.RawMessage
	if json.Unmarshal(got.answer.Result, &result) != nil || json.Unmarshal(result[kind], &items) != nil ||
		result["nextCursor"] != nil {
		t.Fatalf("%s: %d %.500s", method, got.status, got.answer.Raw)
	}
	for _, item := range items {
		var value string
		_ = json.Unmarshal(item[member], &value)
		values = append(values, value)
	}
	return values
}

// templatesOf lists the resource templates.
func templatesOf(t *testing.T, c *testClient) []string {
	t.Helper()
	return membersOf(t, c, "resources/templates/list", "resourceTemplates", "uriTemplate")
}

// read reads a resource and returns its text.
func (c *testClient) read(t *testing.T, uri string) string {
	t.Helper()
	got := c.ask(t, "resources/read", `{"uri":`+quote(uri)+`}`)
	var result struct {
		Contents []struct{ Text, MIMEType string }
	}
	if json.Unmarshal(got.answer.Result, &result) != nil || len(result.Contents) != 1 || got.status != 200 {
		t.Fatalf("%s: %d %.500s", uri, got.status, got.answer.Raw)
	}
	return result.Contents[0].Text
}

// refuses checks that the gateway refuses a request with this status and error code.
func (c *testClient) refuses(t *testing.T, method, params string, status int, symbol string) {
	t.Helper()
	got := c.ask(t, method, params)
	var data struct{ Code string }
	if got.answer.Error != nil {
		_ = json.Unmarshal(got.answer.Error.Data, &data)
	}
	if got.status != status || data.Code != symbol {
		t.Errorf("%s %s: %d %s\nwant %d %s", method, params, got.status, got.answer.Raw, status, symbol)
	}
}

func TestOperateServers(t *testing.T) {
	isolate(t)
	remote := newRemoteServer(t, "tool")
	url := serve(t, gateway("name ops", block(child("alpha"), "alias first"), child("beta"), remote.line("far")))
	t.Run("A70 all servers, in their order", func(t *testing.T) {
		all := control[[]serverState](t, "GET", "/servers", "", 200)
		var names []string
		for _, s := range all {
			names = append(names, s.Gateway+" "+s.Name)
			if s.State == "" {
				t.Errorf("no state: %+v", s)
			}
		}
		if want := []string{"ops alpha", "ops beta", "ops far"}; !slices.Equal(names, want) {
			t.Fatalf("listed %q\nwant %q", names, want)
		}
		if len(all[2].Children) > 0 || len(all[2].Upstreams) != 1 || all[2].Upstreams[0].Address != remote.address {
			t.Errorf("the server over HTTP: %+v", all[2])
		}
	})
	t.Run("A70 a child that runs, by name and by alias", func(t *testing.T) {
		pid := pidAt(t, mcpAt(url, "alpha"))
		for _, name := range []string{"alpha", "first"} {
			got := stateOf(t, name)
			if got.Name != "alpha" || got.State != "healthy" || got.pid(t) != pid || got.Children[0].State != "running" ||
				got.Restarts != 0 || got.LastError != "" {
				t.Errorf("got %+v", got)
			}
		}
		if got := stateOf(t, "beta"); len(got.Children) > 0 && got.Children[0].PID != 0 {
			t.Errorf("no client has used beta, but it is %+v", got)
		}
	})
	t.Run("A70 a child that has been killed", func(t *testing.T) {
		pid := pidAt(t, mcpAt(url, "alpha"))
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		await.Until(t, "the restart", func() bool {
			got := stateOf(t, "alpha")
			return got.Restarts == 1 && got.LastError != "" && got.pid(t) != 0 && got.pid(t) != pid
		})
	})
	t.Run("A70 a gateway by name", func(t *testing.T) {
		if all := control[[]serverState](t, "GET", "/servers?gateway=ops", "", 200); len(all) != 3 {
			t.Errorf("got %+v", all)
		}
		expectAdminError(t, "GET", "/servers?gateway=unknown", "", 404)
	})
	t.Run("A70 unknown paths and wrong methods", func(t *testing.T) {
		for _, tt := range []struct {
			method, path string
			status       int
		}{
			{"GET", "/servers/zeta", 404},
			{"GET", "/nothing", 404},
			{"POST", "/servers", 405},
			{"DELETE", "/servers/alpha", 405},
			{"GET", "/servers/alpha/restart", 405},
			{"PUT", "/templates", 405},
			{"POST", "/metrics", 405},
		} {
			expectAdminError(t, tt.method, tt.path, "", tt.status)
		}
	})
}

func TestOperateRestart(t *testing.T) {
	isolate(t)
	alpha, remote := newJournal(t), newRemoteServer(t, "tool")
	file := filepath.Join(t.TempDir(), "caddy.log")
	address := freeAddress(t)
	load(t, logTo(file)+site(address, gateway("name ops", block(child("alpha"), alpha.env(), "timeout 10m"),
		child("beta"), remote.line("far"))))
	url := "http://" + address
	c := newListeningClient(t, url, everyCapability)
	before, beta := c.use("alpha::pid", `{}`), c.use("beta::pid", `{}`)

	t.Run("A62 A72 a new process, and the other child keeps running", func(t *testing.T) {
		c := c.withTest(t)
		calls := len(alpha.entries(t, "tools/call"))
		waiting := c.beginCall("alpha::hang", `{}`)
		await.Until(t, "the call", func() bool { return len(alpha.entries(t, "tools/call")) > calls })
		notified := len(c.receivedMessages(listChanged))
		restarted := control[serverState](t, "POST", "/servers/alpha/restart", "", 200)
		after := c.use("alpha::pid", `{}`)
		if fmt.Sprint(restarted.pid(t)) != after || after == before {
			t.Errorf("pid was %s, is %s; the admin API says %+v", before, after, restarted)
		}
		if again := c.use("beta::pid", `{}`); again != beta {
			t.Errorf("pid of beta was %s, is %s", beta, again)
		}
		if got := c.await(waiting); got.Error == nil {
			t.Errorf("A37 the call in flight: %v %d %s", got.Err, got.Status, got.Body)
		}
		c.awaitMessages(listChanged, notified+1)
		if starts := alpha.entries(t, "start"); len(starts) != 2 || processRuns(starts[0].PID) {
			t.Errorf("started %v", starts)
		}
	})
	t.Run("A37 the new process gets the same initialize", func(t *testing.T) {
		inits := alpha.messages(t, "initialize")
		if len(inits) != 2 || string(inits[0].Params) != string(inits[1].Params) {
			t.Errorf("initialized %v", inits)
		}
		if got := len(alpha.entries(t, "notifications/initialized")); got != 2 {
			t.Errorf("got %d notifications/initialized", got)
		}
	})
	t.Run("A72 an unknown server", func(t *testing.T) { expectAdminError(t, "POST", "/servers/zeta/restart", "", 404) })
	t.Run("A72 a server that is not a child process", func(t *testing.T) {
		expectAdminError(t, "POST", "/servers/far/restart", "", 409)
		if got := c.withTest(t).use("far::tool", `{"a":1}`); !strings.Contains(got, `{"a":1}`) {
			t.Errorf("got %s, want %s in it", got, `{"a":1}`)
		}
	})
	t.Run("A74 each action writes one log line", func(t *testing.T) {
		control[json.RawMessage](t, "GET", "/servers", "", 200) // reading is not an action
		var got []string
		for _, line := range linesOfLog(t, file, "admin.api.mcp_gateway") {
			if line.Logger != "admin.api.mcp_gateway" || line.Level != "info" {
				t.Errorf("got %+v", line)
			}
			got = append(got, line.Action+" "+line.MCPServer+" "+line.Outcome)
		}
		if want := []string{"restart alpha ok", "restart zeta not_found", "restart far no_child_process"}; !slices.Equal(got,
			want) {
			t.Errorf("logged %q\nwant %q", got, want)
		}
	})
}

// Sessions with their own child continue with another.
func TestOperateRestartsChildrenOfSessions(t *testing.T) {
	isolate(t)
	journal := newJournal(t)
	url := serve(t, gateway("separator __", block(child("own"), journal.env(), "isolation session")))
	var clients []*testClient
	var before []string
	for range 2 {
		c := newTestClient(t, joinedAt(url), false, fullCapabilities)
		clients, before = append(clients, c), append(before, c.use(t, "own", "pid", `{}`))
	}
	control[serverState](t, "POST", "/servers/own/restart", "", 200)
	var after []string
	for _, c := range clients {
		after = append(after, c.use(t, "own", "pid", `{}`))
	}
	if slices.Contains(before, after[0]) || slices.Contains(before, after[1]) || after[0] == after[1] {
		t.Errorf("A62 pids were %v, are %v", before, after)
	}
	for _, e := range journal.entries(t, "start")[:2] {
		await.Until(t, "the end of the old child", func() bool { return !processRuns(e.PID) })
	}
}

// A call during a restart gets exactly one response.
func TestOperateRestartsUnderLoad(t *testing.T) {
	isolate(t)
	const restarts = 10
	journal := newJournal(t)
	url := serve(t, gateway(block(child("busy"), journal.env(), "timeout 10m")))
	endpoint := mcpAt(url, "busy")
	pidAt(t, endpoint)
	var stop atomic.Bool
	var results, failures, number atomic.Int64
	var waiting sync.WaitGroup
	for range 8 {
		waiting.Go(func() {
			for !stop.Load() {
				id := fmt.Sprintf("call %d", number.Add(1))
				status, body, err := doRequest(streamClient, request(t, t.Context(), "POST", endpoint,
					`{"jsonrpc":"2.0","id":"`+id+`","method":"tools/call","params":{"name":"slow","arguments":{"ms":5}}}`, acceptBoth))
				var got struct {
					ID            string
					Result, Error json.RawMessage
				}
				if err != nil || json.Unmarshal([]byte(answerIn(body)), &got) != nil || got.ID != id ||
					(got.Result == nil) == (got.Error == nil) {
					t.Errorf("%s: %v %d %s", id, err, status, body)
					return
				}
				if got.Result != nil {
					results.Add(1)
				} else {
					failures.Add(1)
				}
			}
		})
	}
	for range restarts {
		done := results.Load()
		await.Until(t, "calls to be answered", func() bool { return results.Load() > done+20 })
		before := stateOf(t, "busy").pid(t)
		if got := control[serverState](t, "POST", "/servers/busy/restart", "", 200); got.pid(t) == before || got.pid(t) == 0 {
			t.Errorf("A62 pid was %d, now %+v", before, got)
		}
	}
	stop.Store(true)
	waiting.Wait()
	t.Logf("%d results, %d errors", results.Load(), failures.Load())
	starts := journal.entries(t, "start")
	if len(starts) != restarts+1 {
		t.Errorf("A62 started %d times", len(starts))
	}
	for _, e := range starts[:len(starts)-1] {
		await.Until(t, "the end of the old child", func() bool { return !processRuns(e.PID) })
	}
}

// A failed restart is reported, and the server can be restarted again.
func TestOperateFailedRestarts(t *testing.T) {
	isolate(t)
	flag := filepath.Join(t.TempDir(), "flag")
	set := func() {
		t.Helper()
		if err := os.WriteFile(flag, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	set()
	_, command, _ := strings.Cut(child("moody"), " stdio ")
	url := serve(t, gateway(block("server moody stdio sh -c `test -e "+flag+" && exec "+command+"`", "start_timeout 10s")))
	pidAt(t, mcpAt(url, "moody"))
	if err := os.Remove(flag); err != nil {
		t.Fatal(err)
	}
	expectAdminError(t, "POST", "/servers/moody/restart", "", 502)
	await.Until(t, "A70 the error", func() bool {
		got := stateOf(t, "moody")
		return got.State != "healthy" && got.LastError != ""
	})
	set()
	await.Until(t, "A62 the restart", func() bool {
		return admin(t, "POST", "/mcp_gateway/servers/moody/restart", "").StatusCode == 200
	})
	pidAt(t, mcpAt(url, "moody"))
}

// With several gateways, the request must say which one it means.
func TestOperateSeveralGateways(t *testing.T) {
	isolate(t)
	one, two := freeAddress(t), freeAddress(t)
	load(t, site(one, gateway("name one", child("alpha"), child("only")))+site(two, gateway("name two", child("alpha"))))
	pid := pidAt(t, mcpAt("http://"+two, "alpha"))
	if all := control[[]serverState](t, "GET", "/servers", "", 200); len(all) != 3 {
		t.Errorf("A70 got %+v", all)
	}
	if all := control[[]serverState](t, "GET", "/servers?gateway=two", "", 200); len(all) != 1 || all[0].Gateway != "two" {
		t.Errorf("A70 got %+v", all)
	}
	expectAdminError(t, "POST", "/servers/alpha/restart", "", 409)
	expectAdminError(t, "POST", "/templates", `{"name":"x","uriTemplate":"a://{b}","text":"{b}"}`, 409)
	expectAdminError(t, "POST", "/servers/only/restart?gateway=two", "", 404)
	control[serverState](t, "GET", "/servers/only", "", 200)
	if got := control[serverState](t, "POST", "/servers/alpha/restart?gateway=two", "", 200); got.Gateway != "two" ||
		got.pid(t) == pid {
		t.Errorf("A62 got %+v", got)
	}
	control[json.RawMessage](t, "POST", "/templates?gateway=one", `{"name":"x","uriTemplate":"a://{b}","text":"{b}"}`, 201)
	if got := newTestClient(t, joinedAt("http://"+one), false, `{}`).read(t, "a://c"); got != "c" {
		t.Errorf("A67 read %q", got)
	}
	if got := templatesOf(t, newTestClient(t, joinedAt("http://"+two), false, `{}`)); slices.Contains(got, "a://{b}") {
		t.Errorf("A67 the other gateway has it, too: %v", got)
	}
}

// The admin API reports the same metrics as Caddy's metrics endpoint.
func TestOperateMetrics(t *testing.T) {
	isolate(t)
	url := serve(t, gateway("name all", child("alpha"), "server down http://127.0.0.1:1"))
	ask := sequentialSession(t, url)
	for _, message := range []string{
		toolCall{"alpha::pid", `{}`}.request(), toolCall{"alpha::pid", `{}`}.request(),
		toolCall{"alpha::nope", `{}`}.request(),
		toolCall{"down::tool", `{}`}.request(), rpc("made/up", `{}`),
	} {
		ask("POST", message)
	}
	pid := pidAt(t, mcpAt(url, "alpha"))
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the restart", func() bool { now := stateOf(t, "alpha").pid(t); return now != 0 && now != pid })
	await.Until(t, "the restart to be counted", func() bool {
		now := metrics(t)
		return now[serverMetric("upstream_restarts_total", "alpha")] == 1 &&
			now[serverMetric("upstream_healthy", "alpha")] == 1
	})
	ask("PUT", "") // all earlier requests are counted by now

	type counted struct {
		Gateway, Server, Method, Outcome string
		Count                            float64
	}
	type numbers struct {
		Totals   map[string]float64
		Requests []counted
		Metrics  []struct {
			Name   string
			Labels map[string]string
			Value  *float64
		}
	}
	var got numbers
	var samples map[string]float64
	total := func(metric string) (sum float64) {
		for name, n := range samples {
			if strings.HasPrefix(name, metric+"{") {
				sum += n
			}
		}
		return sum
	}
	var requests float64
	await.Until(t, "no requests to the server that is down", func() bool {
		samples = metrics(t)
		requests = total("requests_total")
		got = control[numbers](t, "GET", "/metrics", "", 200)
		samples = metrics(t)
		return total("requests_total") == requests
	})
	restarts := total("upstream_restarts_total")
	t.Run("A71 totals", func(t *testing.T) {
		if got.Totals["requests"] != requests || requests == 0 {
			t.Errorf("got %v requests, want %v", got.Totals["requests"], requests)
		}
		if got.Totals["restarts"] != restarts || restarts == 0 {
			t.Errorf("got %v restarts, want %v", got.Totals["restarts"], restarts)
		}
		if errors := got.Totals["errors"]; errors < 3 || errors >= requests {
			t.Errorf("%v errors among %v requests", errors, requests)
		}
	})
	t.Run("A71 requests by server, method and outcome", func(t *testing.T) {
		sum := 0.0
		seen := map[string]float64{}
		for _, r := range got.Requests {
			sum += r.Count
			name := fmt.Sprintf(`requests_total{gateway=%q,method=%q,outcome=%q,server=%q}`, r.Gateway, r.Method, r.Outcome,
				r.Server)
			if samples[name] != r.Count {
				t.Errorf("%+v, but %v at /metrics", r, samples[name])
			}
			if r.Gateway == "all" {
				seen[r.Server+" "+r.Method+" "+r.Outcome] = r.Count
			}
		}
		if sum != requests {
			t.Errorf("they add up to %v, want %v", sum, requests)
		}
		for _, want := range []string{"alpha tools/call ok", "alpha tools/call error", "down tools/call connect_error",
			" other method_not_found"} {
			if seen[want] == 0 {
				t.Errorf("no %q in %v", want, seen)
			}
		}
	})
	t.Run("A52 A71 the gauge of a child", func(t *testing.T) {
		for _, m := range got.Metrics {
			if m.Name == "caddy_mcp_upstream_healthy" && m.Labels["server"] == "alpha" {
				if m.Value == nil || *m.Value != samples[serverMetric("upstream_healthy", "alpha")] {
					t.Errorf("%+v, but %v at /metrics", m, samples[serverMetric("upstream_healthy", "alpha")])
				}
				return
			}
		}
		t.Error("no gauge of alpha")
	})
}

// A server gets a new tool and sends no notification.
func TestOperateRefresh(t *testing.T) {
	isolate(t)
	remote := newRemoteServer(t, "first")
	url := serve(t, gateway("name ops", "separator __", child("alpha", "--caps-empty"), remote.line("far")))
	for _, era := range clientEras {
		t.Run("A73 "+era.name, func(t *testing.T) {
			c := newTestClient(t, joinedAt(url), era.modern, fullCapabilities)
			stream := c.listenForChanges(t)
			fresh := "fresh-" + strings.Fields(era.name)[0]
			toolNames(t, c)
			c.use(t, "alpha", "add-tool", `{"name":"`+fresh+`","quiet":true}`)
			if got := control[struct{ Clients int }](t, "POST", "/servers/alpha/refresh", "", 200); got.Clients == 0 {
				t.Errorf("got %+v", got)
			}
			stream.awaitMessage(t, listChanged)
			if got := toolNames(t, c); !slices.Contains(got, "alpha__"+fresh) || !slices.Contains(got, "far__first") {
				t.Errorf("listed %v", got)
			}
			if got := c.use(t, "alpha", fresh, `{}`); got != fresh {
				t.Errorf("got %s, want the name of the tool", got)
			}
		})
	}
	t.Run("A73 a server over HTTP", func(t *testing.T) {
		c := newTestClient(t, joinedAt(url), false, `{}`)
		stream := c.listenForChanges(t)
		toolNames(t, c)
		remote.Change(func(s *mcptest.Script) { s.Tools = append(s.Tools, "second") })
		control[struct{}](t, "POST", "/servers/far/refresh", "", 200)
		stream.awaitMessage(t, listChanged)
		if got := toolNames(t, c); !slices.Contains(got, "far__second") {
			t.Errorf("listed %v", got)
		}
	})
	t.Run("A73 an unknown server", func(t *testing.T) { expectAdminError(t, "POST", "/servers/zeta/refresh", "", 404) })
}

func TestOperateIsNotForThePublic(t *testing.T) {
	isolate(t)
	url := serve(t, gateway("name ops", child("alpha")), `respond "next handler" 404`)
	pid := pidAt(t, mcpAt(url, "alpha"))
	t.Run("A74 the public listener does not serve the admin API", func(t *testing.T) {
		for _, tt := range []struct{ method, path string }{
			{"GET", "/servers"}, {"GET", "/servers/alpha"}, {"POST", "/servers/alpha/restart"},
			{"POST", "/servers/alpha/refresh"},
			{"POST", "/servers/alpha/accept"}, {"GET", "/tools"}, {"GET", "/tools/changes"}, {"GET", "/clients"},
			{"GET", "/metrics"},
			{"GET", "/templates"}, {"POST", "/templates"}, {"DELETE", "/templates/x"},
		} {
			got := send(t, client, tt.method, url+"/mcp_gateway"+tt.path, "{}")
			if got.StatusCode != 404 || got.body != "next handler" {
				t.Errorf("%s %s: %d %s", tt.method, tt.path, got.StatusCode, got.body)
			}
		}
		if again := pidAt(t, mcpAt(url, "alpha")); again != pid {
			t.Errorf("pid was %d, is %d", pid, again)
		}
	})
	t.Run("A74 admin off disables it", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "Caddyfile")
		config := "{\n\tadmin off\n}\n" + block("http://:8080", gateway("health_interval 1s", child("alpha")))
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		running := run(t, file)
		pidAt(t, mcpAt("http://"+running.address, "alpha"))
		if got := listenersOf(t, running.Process.Pid); got != 1 {
			t.Errorf("Caddy listens on %d addresses, want 1", got)
		}
		if got := send(t, client, "GET", "http://"+running.address+"/mcp_gateway/servers", ""); got.StatusCode != 404 ||
			strings.Contains(got.body, "alpha") {
			t.Errorf("got %d %s", got.StatusCode, got.body)
		}
	})
}

// listenersOf counts the TCP addresses on which a process listens.
func listenersOf(t *testing.T, pid int) (n int) {
	t.Helper()
	ours := map[string]bool{}
	for _, fd := range openFiles(t, pid) {
		if inode, ok := strings.CutPrefix(fd, "socket:["); ok {
			ours[strings.TrimSuffix(inode, "]")] = true
		}
	}
	for _, table := range []string{"tcp", "tcp6"} {
		f, err := os.Open(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if err != nil {
			t.Skip("not Linux")
		}
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			const state, inode, listening = 3, 9, "0A"
			if fields := strings.Fields(lines.Text()); len(fields) > inode && fields[state] == listening && ours[fields[inode]] {
				n++
			}
		}
	}
	return n
}

// openFiles returns the targets of a process's file descriptors.
func openFiles(t *testing.T, pid int) (files []string) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Skip("not Linux")
	}
	for _, entry := range entries {
		if file, err := os.Readlink(filepath.Join(dir, entry.Name())); err == nil {
			files = append(files, file)
		}
	}
	return files
}

func TestOperateTemplates(t *testing.T) {
	isolate(t)
	alpha := newJournal(t)
	remote := &mcptest.Remote{Name: "far", Legacy: true, Modern: true}
	file := filepath.Join(t.TempDir(), "caddy.log")
	address := freeAddress(t)
	config := logTo(file) + site(address, gateway("name ops", "separator __", block(child("alpha"), alpha.env()),
		"server far http://"+upstream(t, remote)+"/mcp"))
	t.Cleanup(remote.Close)
	load(t, config)

	const (
		note = `{"name":"note","uriTemplate":"notes://{who}/{what}","title":"A note","description":"Notes.",` +
			`"mimeType":"text/markdown","text":"For {who}: {what}, {unknown} and {}"}`
		window       = `{"name":"window","uriTemplate":"docs://{name}","server":"alpha","uri":"file://alpha/{name}.txt"}`
		remoteWindow = `{"name":"far","uriTemplate":"far-docs://{id}","server":"far","uri":"far:///{id}"}`
	)
	type template struct{ Gateway, Name, URITemplate, Text, Server, URI string }
	for _, body := range []string{note, window, remoteWindow} {
		if got := control[template](t, "POST", "/templates", body, 201); got.Gateway != "ops" || got.Name == "" ||
			got.URITemplate == "" {
			t.Errorf("A67 created %+v", got)
		}
	}
	check := func(t *testing.T) {
		t.Helper()
		for _, era := range clientEras {
			t.Run(era.name, func(t *testing.T) {
				c := newTestClient(t, joinedAt("http://"+address), era.modern, fullCapabilities)
				got := templatesOf(t, c)
				for _, want := range []string{"notes://{who}/{what}", "docs://{name}", "far-docs://{id}"} {
					if n := len(slices.DeleteFunc(slices.Clone(got), func(s string) bool { return s != want })); n != 1 {
						t.Errorf("%s is listed %d times in %q", want, n, got)
					}
				}
				if got := c.read(t, "notes://ann/a%20b%C3%A9"); got != "For ann: a bé, {unknown} and {}" {
					t.Errorf("read %q", got)
				}
				if got := c.read(t, "docs://data"); got != "data of alpha" {
					t.Errorf("read %q", got)
				}
				if got := c.read(t, "far-docs://x"); got != "x of far" {
					t.Errorf("read %q", got)
				}
				if seen := alpha.messages(t, "resources/read"); len(seen) == 0 ||
					seen[len(seen)-1].Param("uri") != `"file://alpha/data.txt"` {
					t.Errorf("alpha received %v", seen)
				}
			})
		}
	}
	t.Run("A67 listed and readable", check)
	t.Run("A67 all created templates are listed", func(t *testing.T) {
		all := control[[]template](t, "GET", "/templates", "", 200)
		var names []string
		for _, one := range all {
			names = append(names, one.Name)
		}
		slices.Sort(names)
		if want := []string{"far", "note", "window"}; !slices.Equal(names, want) {
			t.Errorf("got %+v", all)
		}
	})
	t.Run("A67 after a reload", func(t *testing.T) {
		load(t, config+site(freeAddress(t), "respond x"))
		check(t)
	})
	t.Run("A67 replaced", func(t *testing.T) {
		control[template](t, "POST", "/templates", strings.Replace(note, "For {who}", "To {who}", 1), 200)
		c := newTestClient(t, joinedAt("http://"+address), false, `{}`)
		if got := c.read(t, "notes://ann/x"); !strings.HasPrefix(got, "To ann: x") {
			t.Errorf("read %q", got)
		}
	})
	t.Run("A67 any name can be deleted", func(t *testing.T) {
		for _, name := range []string{"a/b c", "é?x=1#y", "%2F"} {
			control[template](t, "POST", "/templates", `{"name":`+quote(name)+`,"uriTemplate":"any://{x}","text":"{x}"}`, 201)
			control[struct{}](t, "DELETE", "/templates/"+url.PathEscape(name), "", 204)
		}
	})
	t.Run("A67 invalid templates", func(t *testing.T) {
		for _, body := range []string{
			``, `{`, `[]`, `{"name":"x"}`, `{"uriTemplate":"a://b","text":"x"}`, `{"name":"x","uriTemplate":"a://b"}`,
			`{"name":"x","uriTemplate":"no scheme","text":"x"}`, `{"name":"x","uriTemplate":"proxy://resource/{x}","text":"x"}`,
			`{"name":"x","uriTemplate":"a://{","text":"x"}`,
			`{"name":"x","uriTemplate":"a://{y}","server":"zeta","uri":"b://{y}"}`,
			`{"name":"x","uriTemplate":"a://{y}","server":"alpha","uri":"b://{z}"}`,
			`{"name":"x","uriTemplate":"a://{y}","text":"x","unknown":1}`,
		} {
			expectAdminError(t, "POST", "/templates", body, 400)
		}
	})
	t.Run("A67 deleted", func(t *testing.T) {
		for _, name := range []string{"note", "window", "far"} {
			control[struct{}](t, "DELETE", "/templates/"+name, "", 204)
			expectAdminError(t, "DELETE", "/templates/"+name, "", 404)
		}
		for _, era := range clientEras {
			c := newTestClient(t, joinedAt("http://"+address), era.modern, fullCapabilities)
			if got := templatesOf(t, c); slices.ContainsFunc(got,
				func(s string) bool { return !strings.HasPrefix(s, "proxy://") }) {
				t.Errorf("listed %q", got)
			}
			for _, uri := range []string{"notes://ann/x", "docs://data"} {
				if got := c.ask(t, "resources/read", `{"uri":`+quote(uri)+`}`); got.answer.Error == nil {
					t.Errorf("%s: %s", uri, got.answer.Raw)
				}
			}
		}
		if all := control[[]template](t, "GET", "/templates", "", 200); len(all) != 0 {
			t.Errorf("got %+v", all)
		}
	})
	t.Run("A74 each action writes one log line", func(t *testing.T) {
		counts := map[string]int{}
		for _, line := range linesOfLog(t, file, "admin.api.mcp_gateway") {
			counts[line.Action+" "+line.Name+" "+line.Outcome]++
		}
		for want, n := range map[string]int{"put_template note ok": 2, "put_template window ok": 1,
			"delete_template note ok": 1, "delete_template note not_found": 1} {
			if counts[want] != n {
				t.Errorf("%q is logged %d times, want %d: %v", want, counts[want], n, counts)
			}
		}
	})
}

func TestOperateDeniedTemplates(t *testing.T) {
	isolate(t)
	alpha, beta := newJournal(t), newJournal(t)
	far := &mcptest.Remote{Name: "far", Legacy: true, Modern: true}
	file := filepath.Join(t.TempDir(), "caddy.log")
	address := freeAddress(t)
	load(t, logTo(file)+site(address, gateway("name ops", "separator __", block(child("alpha"), alpha.env()),
		block(child("beta"), beta.env()),
		"server far http://"+upstream(t, far)+"/mcp",
		block("client guest", "token guest-0123456789abcdef",
			"deny resource:private:// resource:far::far:///secret/ resource:beta::file://beta/"),
		block("client owner", "token owner-0123456789abcdef"))))
	t.Cleanup(far.Close)
	for _, body := range []string{
		`{"name":"private","uriTemplate":"private://{what}","text":"{what} is private"}`,
		`{"name":"window","uriTemplate":"window://{name}","server":"far","uri":"far:///secret/{name}"}`,
		`{"name":"wide","uriTemplate":"wide://{+path}","server":"far","uri":"far:///{+path}"}`,
		`{"name":"open","uriTemplate":"open://{name}","server":"alpha","uri":"file://alpha/open-{name}.txt"}`,
	} {
		control[json.RawMessage](t, "POST", "/templates", body, 201)
	}
	reads := func(t *testing.T) int {
		return len(alpha.entries(t, "resources/read")) + len(beta.entries(t, "resources/read")) +
			len(far.Seen("resources/read"))
	}
	for _, era := range clientEras {
		t.Run(era.name, func(t *testing.T) {
			endpoint := joinedAt("http://" + address)
			owner := newTestClient(t, endpoint, era.modern, `{}`, "Authorization: Bearer owner-0123456789abcdef")
			guest := newTestClient(t, endpoint, era.modern, `{}`, "Authorization: Bearer guest-0123456789abcdef")
			t.Run("A69 A57 an allowed client sees all", func(t *testing.T) {
				got := strings.Join(templatesOf(t, owner), " ")
				for _, want := range []string{"private://{what}", "window://{name}", "open://{name}", "/beta/"} {
					if !strings.Contains(got, want) {
						t.Errorf("%s is not in %s", want, got)
					}
				}
				if got := owner.read(t, "private://x") + ", " +
					owner.read(t, "window://x"); got != "x is private, secret/x of far" {
					t.Errorf("read %q", got)
				}
			})
			t.Run("A69 absent", func(t *testing.T) {
				got := strings.Join(templatesOf(t, guest), " ")
				for _, denied := range []string{"private://", "window://", "/beta/"} {
					if strings.Contains(got, denied) {
						t.Errorf("%s is in %s", denied, got)
					}
				}
				if !strings.Contains(got, "open://{name}") || guest.read(t, "open://x") != "open-x of alpha" {
					t.Errorf("the allowed template: %s", got)
				}
			})
			for _, uri := range []string{
				"private://x", "window://x", "wide://secret/x", "wide://%73ecret/x",
				proxiedURI("far", "far:///secret/x"), proxiedURI("beta", "file://beta/data.txt"),
			} {
				t.Run("A69 refused with one line: "+uri, func(t *testing.T) {
					asked, before := reads(t), len(linesOfLog(t, file, ".audit"))
					guest.refuses(t, "resources/read", `{"uri":`+quote(uri)+`}`, 403, "acl_denied")
					if reads(t) != asked {
						t.Error("A55 the server received the request")
					}
					lines := linesOfLog(t, file, ".audit")[before:]
					if len(lines) != 1 || lines[0].Message != "access denied" || lines[0].Reason != "acl_denied" ||
						lines[0].Client != "guest" {
						t.Errorf("logged %+v", lines)
					}
				})
			}
		})
	}
	t.Run("A69 counted for the client", func(t *testing.T) {
		for _, c := range control[[]struct {
			Name     string
			Denied   float64
			Sessions map[string]int
		}](t, "GET", "/clients", "", 200) {
			if c.Name == "guest" {
				if c.Denied < 12 || c.Sessions["guest"] == 0 {
					t.Errorf("got %+v", c)
				}
				return
			}
		}
		t.Error("no client guest")
	})
}
