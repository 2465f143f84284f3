package integration

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/caddyrun"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/procfs"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// gatewayIn returns the path of the gateway in a JSON configuration.
func gatewayIn(value any, path string) string {
	switch v := value.(type) {
	case map[string]any:
		if v["handler"] == "mcp_gateway" {
			return path
		}
		for key, member := range v {
			if found := gatewayIn(member, path+"/"+key); found != "" {
				return found
			}
		}
	case []any:
		for i, item := range v {
			if found := gatewayIn(item, fmt.Sprintf("%s/%d", path, i)); found != "" {
				return found
			}
		}
	}
	return ""
}

// serverIn returns the JSON of the last server of a gateway in a Caddyfile.
func serverIn(t *testing.T, caddyfile string) string {
	t.Helper()
	got := admin(t, "POST", "/adapt", caddyfile, "Content-Type: text/caddyfile")
	var adapted struct{ Result json.RawMessage }
	var config any
	if err := json.Unmarshal([]byte(got.body), &adapted); err != nil || got.StatusCode != 200 {
		t.Fatalf("%v: %d %s", err, got.StatusCode, got.body)
	}
	if err := json.Unmarshal(adapted.Result, &config); err != nil {
		t.Fatal(err)
	}
	for key := range strings.SplitSeq(strings.TrimPrefix(gatewayIn(config, ""), "/")+"/servers", "/") {
		if i, err := strconv.Atoi(key); err == nil {
			config = config.([]any)[i]
		} else {
			config = config.(map[string]any)[key]
		}
	}
	servers := config.([]any)
	encoded, err := json.Marshal(servers[len(servers)-1])
	if err != nil {
		t.Fatal(err)
	}
	return string(encoded)
}

// configure changes a part of the running configuration.
func configure(t *testing.T, method, path, value string) {
	t.Helper()
	if got := admin(t, method, "/config"+path, value); got.StatusCode != 200 {
		t.Fatalf("%s %s: got %d %s, want 200", method, path, got.StatusCode, got.body)
	}
}

// Servers are added and removed through Caddy's config API.
func TestOperateAddsServersByTheConfigAPI(t *testing.T) {
	isolate(t)
	kept, added, far := newJournal(t), newJournal(t), newRemoteServer(t, "tool")
	address := freeAddress(t)
	own := func(more ...string) string {
		return site(address, gateway(append([]string{"name api", "separator __", block(child("kept"), kept.env()),
			far.line("far")}, more...)...))
	}
	load(t, own())
	var config any
	if err := json.Unmarshal([]byte(admin(t, "GET", "/config/", "").body), &config); err != nil {
		t.Fatal(err)
	}
	servers := gatewayIn(config, "") + "/servers"
	extra := serverIn(t, own(block(child("extra"), added.env())))

	endpoint := joinedAt("http://" + address)
	clients := map[string]*testClient{}
	streams := map[string]*exchange{}
	for _, era := range clientEras {
		c := newTestClient(t, endpoint, era.modern, fullCapabilities, connectionClose)
		clients[era.name], streams[era.name] = c, c.listenForChanges(t)
	}
	pid := clients["legacy client"].use(t, "kept", "pid", `{}`)
	modernPID := clients["modern client"].use(t, "kept", "pid", `{}`) // may be another child, for this era
	goesOn := func(t *testing.T) {
		t.Helper()
		if got := clients["legacy client"].use(t, "kept", "pid", `{}`); got != pid {
			t.Errorf("A60 pid was %s, is %s", pid, got)
		}
		if got := clients["modern client"].use(t, "kept", "pid", `{}`); got != modernPID {
			t.Errorf("A60 pid was %s, is %s", modernPID, got)
		}
		for name, c := range clients {
			if got := c.use(t, "far", "tool", `{"a":1}`); !strings.Contains(got, `{"a":1}`) {
				t.Errorf("%s: %s", name, got)
			}
		}
	}
	marks := 0
	hearsOfReload := func(t *testing.T, stream *exchange) { // skips notifications about one server's changes
		t.Helper()
		for m := stream.awaitMessage(t, listChanged); m.Params.Proxy.Server != ""; m = stream.awaitMessage(t, listChanged) {
		}
	}
	for range 2 {
		t.Run("A60 a server is added", func(t *testing.T) {
			configure(t, "PUT", servers+"/1", extra)
			for name, stream := range streams {
				hearsOfReload(t, stream)
				if got := toolNames(t, clients[name]); !slices.Contains(got, "extra__pid") || !slices.Contains(got, "kept__pid") ||
					!slices.Contains(got, "far__tool") {
					t.Errorf("%s: listed %v", name, got)
				}
				if got := clients[name].use(t, "extra", "slow", `{"ms":1}`); got != "slept" {
					t.Errorf("%s: %s", name, got)
				}
			}
			if all := control[[]serverState](t, "GET", "/servers", "", 200); len(all) != 3 || all[1].Name != "extra" {
				t.Errorf("A70 %+v", all)
			}
			goesOn(t)
		})
		t.Run("A61 invalid configurations change nothing", func(t *testing.T) {
			for _, broken := range []string{extra, `{"name":"a::b"}`, `{"name":"x","nonsense":1}`, `{`, `"x"`} {
				if got := admin(t, "PUT", "/config"+servers+"/0", broken); got.StatusCode/100 == 2 || !strings.Contains(got.body,
					`"error"`) {
					t.Errorf("%s: %d %s", broken, got.StatusCode, got.body)
				}
			}
			for name, stream := range streams {
				marks++ // the next notification must be this one
				clients[name].use(t, "kept", "add-tool", fmt.Sprintf(`{"name":"mark-%d"}`, marks))
				if m := stream.awaitMessage(t, listChanged); m.Params.Proxy.Server != "kept" {
					t.Errorf("%s received %s", name, m.Raw)
				}
				if got := clients[name].use(t, "extra", "slow", `{"ms":1}`); got != "slept" {
					t.Errorf("%s: %s", name, got)
				}
			}
			goesOn(t)
		})
		t.Run("A60 the server is removed", func(t *testing.T) {
			configure(t, "DELETE", servers+"/1", "")
			for name, stream := range streams {
				hearsOfReload(t, stream)
				if got := toolNames(t, clients[name]); slices.Contains(got, "extra__pid") || !slices.Contains(got, "kept__pid") {
					t.Errorf("%s: listed %v", name, got)
				}
				if got := clients[name].ask(t, "tools/call", callOf("extra", "pid", `{}`)); got.answer.Error == nil {
					t.Errorf("%s: %s", name, got.answer.Raw)
				}
			}
			goesOn(t)
			await.Until(t, "A39 the end of its children", func() bool {
				return !slices.ContainsFunc(added.entries(t, "start"), func(e entry) bool { return processRuns(e.PID) })
			})
		})
	}
	if n := far.Count("initialize"); n > 2 { // one for each client
		t.Errorf("A60 the server over HTTP was initialized %d times, want at most 2", n)
	}
}

// Caddy applies changes of the watched file, if they are valid.
func TestOperateWatchesTheFile(t *testing.T) {
	isolate(t)
	journal := newJournal(t)
	file := filepath.Join(t.TempDir(), "Caddyfile")
	write := func(lines ...string) {
		t.Helper()
		config := block("http://:8080", gateway(append([]string{"separator __", block(child("kept"), journal.env())},
			lines...)...))
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write()
	running := startWatched(t, file)
	endpoint := joinedAt("http://" + running.address)
	rewrite := func(lines ...string) { // writes the file that Caddy watches
		t.Helper()
		write(lines...)
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		moved := strings.ReplaceAll(string(text), ":8080", strings.TrimPrefix(running.address, "127.0.0.1"))
		if err := os.WriteFile(running.config, []byte(withAdmin(moved, running.addresses[":2019"])), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := newTestClient(t, endpoint, false, fullCapabilities, connectionClose)
	stream := c.listenForChanges(t)
	pid := c.use(t, "kept", "pid", `{}`)
	t.Run("A61 one more server", func(t *testing.T) {
		rewrite(block(child("more"), journal.env()))
		stream.awaitMessage(t, listChanged)
		running.awaitReload(t)
		if got := c.use(t, "more", "slow", `{"ms":1}`); got != "slept" {
			t.Errorf("got %q, want %q", got, "slept")
		}
	})
	t.Run("A61 an invalid file", func(t *testing.T) {
		rewrite(block(child("more"), journal.env()), block("client someone", "token {env.NOT_SET_ANYWHERE}"))
		await.Until(t, "the error in the log", func() bool {
			return strings.Contains(running.logged(), "applying latest "+
				"config")
		})
		if got := c.use(t, "more", "slow", `{"ms":1}`); got != "slept" {
			t.Errorf("got %q, want %q", got, "slept")
		}
	})
	t.Run("A61 a valid file again", func(t *testing.T) {
		rewrite()
		stream.awaitMessage(t, listChanged)
		running.awaitReload(t)
		if got := toolNames(t, c); slices.Contains(got, "more__pid") {
			t.Errorf("listed %v", got)
		}
	})
	if again := c.use(t, "kept", "pid", `{}`); again != pid {
		t.Errorf("A60 pid was %s, is %s", pid, again)
	}
}

// A watchedCaddy is a Caddy process that watches its configuration file.
type watchedCaddy struct {
	*caddyProcess
	config, log string
}

func (w *watchedCaddy) logged() string {
	text, _ := os.ReadFile(w.log)
	return string(text)
}

// startWatched serves a Caddyfile on other ports with caddy run --watch.
func startWatched(t *testing.T, file string) *watchedCaddy {
	t.Helper()
	caddyfile, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	moved, addresses := withFreePorts(t, string(caddyfile))
	addresses[":2019"] = freeAddress(t)
	dir := t.TempDir()
	w := &watchedCaddy{config: filepath.Join(dir, "Caddyfile"), log: filepath.Join(dir, "log")}
	if err := os.WriteFile(w.config, []byte(withAdmin(moved, addresses[":2019"])), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(w.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := caddy(t, "run", "--watch", "--config", w.config)
	cmd.Stderr = log
	w.caddyProcess = startCaddy(t, cmd)
	w.address, w.addresses = addresses[":8080"], addresses
	return w
}

// A loadGenerator generates load with concurrent requests, and records the responses.
type loadGenerator struct {
	t         *testing.T
	url       string
	session   string
	keepAlive *http.Client // reuses connections
	fresh     *http.Client // opens a connection for each request
	turn      chan struct{}
	waiting   sync.WaitGroup
	skipped   atomic.Int64 // requests not sent because too many were in flight

	mu       sync.Mutex
	sent     map[string]int  // by kind
	lost     map[string]int  // requests without a response, by kind
	unknown  map[string]bool // IDs of calls without a response
	answered map[string]bool
	wrong    []string
}

func newLoadGenerator(t *testing.T, url string) *loadGenerator {
	b := &loadGenerator{t: t, url: url, turn: make(chan struct{}, 200),
		sent: map[string]int{}, lost: map[string]int{}, unknown: map[string]bool{}, answered: map[string]bool{}}
	b.keepAlive = &http.Client{Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 50},
		Timeout: 2 * patience}
	b.fresh = &http.Client{Transport: &http.Transport{DisableCompression: true, DisableKeepAlives: true},
		Timeout: 2 * patience}
	b.session = newSession(t, joinedAt(url))
	return b
}

// run starts a call every 2 ms without waiting for earlier calls, and half as many requests
// to another handler, until done is closed.
func (b *loadGenerator) run(done <-chan struct{}) {
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for i := 0; ; i++ {
		select {
		case <-done:
			b.waiting.Wait()
			return
		case <-ticker.C:
		}
		client, how := b.keepAlive, "kept"
		if i/4%2 == 0 {
			client, how = b.fresh, "fresh"
		}
		b.start(func() { b.call(client, how, i) })
		if i%2 == 0 {
			b.start(func() { b.plain(client, how) })
		}
	}
}

func (b *loadGenerator) start(do func()) {
	select {
	case b.turn <- struct{}{}:
		b.waiting.Go(func() {
			defer func() { <-b.turn }()
			do()
		})
	default:
		b.skipped.Add(1)
	}
}

// calls returns the number of finished calls.
func (b *loadGenerator) calls() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sent["call kept"] + b.sent["call fresh"]
}

// call calls a tool of one of the two servers, at the aggregate endpoint or the server's own.
func (b *loadGenerator) call(client *http.Client, how string, i int) {
	server := []string{"near", "far"}[i%2]
	endpoint, tool, session := rpcAt(b.url, server), "slow", ""
	if i/2%2 == 0 {
		endpoint, tool, session = joinedAt(b.url), server+"__slow", b.session
	}
	id := fmt.Sprintf("%s-%d", server, i)
	message := fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"method":"tools/call","params":{"name":%q,"arguments":{"call":%q,`+
		`"ms":%d}}}`, id, tool, id, i%7*3)
	status, body, err := b.post(client, endpoint, message, session)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sent["call "+how]++
	var got struct {
		ID     string
		Result struct{ Content []struct{ Text string } }
	}
	switch {
	case err != nil:
		b.lost["call "+how]++
		b.unknown[id] = true
	case status != 200 || json.Unmarshal([]byte(answerIn(body)), &got) != nil || got.ID != id ||
		len(got.Result.Content) != 1 || got.Result.Content[0].Text != "slept":
		b.wrong = append(b.wrong, fmt.Sprintf("%s: %d %.300s", id, status, body))
	default:
		b.answered[id] = true
	}
}

// plain sends a request that the gateway does not handle.
func (b *loadGenerator) plain(client *http.Client, how string) {
	status, body, err := b.post(client, b.url+"/plain", `{}`)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sent["plain "+how]++
	switch {
	case err != nil:
		b.lost["plain "+how]++
	case status != 200 || body != "plain":
		b.wrong = append(b.wrong, fmt.Sprintf("plain: %d %.300s", status, body))
	}
}

func (b *loadGenerator) post(client *http.Client, endpoint, message string, headers ...string) (status int,
	body string, err error) {
	return doRequest(client, request(b.t, b.t.Context(), "POST", endpoint, message, append(headers, acceptBoth)...))
}

// processState is the resource usage of a process.
type processState struct {
	goroutines, files int
	children          []int
	profile           string
}

// inspectProcess returns the resource usage of a running Caddy.
func inspectProcess(t *testing.T, r *caddyProcess) (s processState) {
	t.Helper()
	s.profile = send(t, client, "GET", "http://"+r.addresses[":2019"]+"/debug/pprof/goroutine?debug=1", "",
		connectionClose).body
	if _, err := fmt.Sscanf(s.profile, "goroutine profile: total %d", &s.goroutines); err != nil {
		t.Fatalf("%v: %.100s", err, s.profile)
	}
	s.files = len(openFiles(t, r.Process.Pid))
	for _, child := range procfs.Children(r.Process.Pid) {
		s.children = append(s.children, child.PID)
	}
	slices.Sort(s.children)
	return s
}

// argumentsOf returns the arguments of a call under load.
func argumentsOf(call *mcptest.Received) (arguments struct {
	Call string
	MS   int
}) {
	_ = json.Unmarshal([]byte(call.Param("arguments")), &arguments)
	return arguments
}

// sleepInCall implements the tool slow of the HTTP server under load.
func sleepInCall(w http.ResponseWriter, r *mcptest.Received) bool {
	if r.Tool() != "slow" {
		return false
	}
	time.Sleep(time.Duration(argumentsOf(r).MS) * time.Millisecond) // simulates work
	r.Answer(w, mcptest.Text("slept"))
	return true
}

// Under load, the configuration is reloaded 60 times, or MCP_RELOADS times (the requirement is
// 300).
func TestOperateReloadsUnderLoad(t *testing.T) {
	isolate(t)
	reloads, err := strconv.Atoi(cmp.Or(os.Getenv("MCP_RELOADS"), "60"))
	if err != nil {
		t.Fatal(err)
	}
	journal := newJournal(t)
	far := &mcptest.Script{Sessionless: true, Legacy: true, Capabilities: `{"tools":{}}`, Tools: []string{"echo", "slow"},
		Handle: sleepInCall}
	upstream := httptest.NewServer(far)
	t.Cleanup(upstream.Close)
	caddyfile := func(max int) string {
		return block("http://:8080", `respond /plain plain`, gateway("name load", "separator __", "health_interval 1s",
			"health_timeout 30s",
			fmt.Sprintf("mask %d 2000 2000", max), fmt.Sprintf("rate %d/1s burst %d", 100_000+max, 100_000), "pin_tools on",
			block(child("near"), journal.env()), "server far "+upstream.URL+"/mcp"))
	}
	file := filepath.Join(t.TempDir(), "Caddyfile")
	if err := os.WriteFile(file, []byte(caddyfile(4000)), 0o600); err != nil {
		t.Fatal(err)
	}
	running := run(t, file)
	reload := func(max int, headers ...string) {
		config := withAdmin(strings.ReplaceAll(caddyfile(max), ":8080", strings.TrimPrefix(running.address, "127.0.0.1")),
			running.addresses[":2019"])
		if got := askAdmin(t, running.addresses[":2019"], "POST", "/load", config,
			append(headers, "Content-Type: text/caddyfile")...); got.StatusCode != 200 {
			t.Fatalf("not loaded: got %d %s, want 200", got.StatusCode, got.body)
		}
	}
	url := "http://" + running.address
	b := newLoadGenerator(t, url)
	for i := range 8 { // each kind of call once
		b.call(b.fresh, "fresh", 1_000_000+i)
	}
	reload(4001)
	client.CloseIdleConnections()
	before := inspectProcess(t, running)

	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		b.run(done)
	}()
	began := time.Now()
	for i := range reloads {
		switch i % 5 {
		case 3: // unchanged: Caddy skips the reload
			reload(4000 + (i-1)%5)
		case 4: // unchanged, but the reload is forced
			reload(4000+(i-2)%5, "Cache-Control: must-revalidate")
		default:
			reload(4000 + i%5)
		}
		enough := b.calls() + 50
		await.Until(t, "calls between reloads", func() bool { return b.calls() >= enough })
	}
	took := time.Since(began)
	close(done)
	wait(t, ended, "the end of all calls")
	reload(4001)

	ran := map[string]int{}
	for _, m := range journal.messages(t, "tools/call") {
		var id string
		var arguments struct{ Call string }
		_ = json.Unmarshal([]byte(m.Param("arguments")), &arguments)
		if id = arguments.Call; id != "" {
			ran[id]++
		}
	}
	for _, call := range far.Received("tools/call") {
		ran[argumentsOf(call).Call]++
	}
	t.Logf("%d reloads in %.1f s; sent %v, %.0f calls/s; lost %v; answered %d; skipped %d", reloads, took.Seconds(),
		b.sent,
		float64(b.calls())/took.Seconds(), b.lost, len(b.answered), b.skipped.Load())

	t.Run("A60 every response is correct", func(t *testing.T) {
		for _, wrong := range b.wrong[:min(len(b.wrong), 10)] {
			t.Error(wrong)
		}
		if len(b.wrong) > 10 {
			t.Errorf("%d wrong responses in total", len(b.wrong))
		}
	})
	t.Run("A60 every call that ran got a response", func(t *testing.T) {
		cut, twice := 0, 0
		for id := range b.unknown {
			if ran[id] > 0 {
				cut++
			}
		}
		for _, n := range ran {
			if n > 1 {
				twice++
			}
		}
		if cut > 0 || twice > 0 {
			t.Errorf("%d calls ran without a response, %d ran twice", cut, twice)
		}
		for id := range b.answered {
			if ran[id] == 0 {
				t.Errorf("%s got a response but did not run", id)
			}
		}
	})
	for _, how := range []string{"fresh", "kept"} {
		t.Run("G27 calls on "+how+" connections are lost no more often than other requests", func(t *testing.T) {
			calls, plain := b.sent["call "+how], b.sent["plain "+how]
			if calls == 0 || plain == 0 {
				t.Fatalf("sent %v", b.sent)
			}
			// The expected number, with a margin for chance.
			expected := float64(b.lost["plain "+how]) * float64(calls) / float64(plain)
			if most := expected + 4*math.Sqrt(expected+1) + 3; float64(b.lost["call "+how]) > most {
				t.Errorf("lost %d of %d calls, but %d of %d other requests", b.lost["call "+how], calls, b.lost["plain "+how],
					plain)
			}
		})
	}
	t.Run("A39 no leaks", func(t *testing.T) {
		b.keepAlive.CloseIdleConnections()
		client.CloseIdleConnections()
		upstream.CloseClientConnections() // reverse_proxy keeps some for two minutes, even after a reload
		var after processState
		defer func() {
			t.Logf("before and after: %d and %d goroutines, %d and %d files, children %v and %v",
				before.goroutines, after.goroutines, before.files, after.files, before.children, after.children)
			if t.Failed() {
				t.Log(after.profile)
			}
		}()
		await.Until(t, "goroutines, files and children as before", func() bool {
			after = inspectProcess(t, running)
			return after.goroutines <= before.goroutines+6 && after.files <= before.files+3 && slices.Equal(after.children,
				before.children)
		})
	})
	if logged := running.stop(t); strings.Contains(logged, `"level":"panic"`) || strings.Contains(logged, "panicked") {
		t.Errorf("the log has panics")
	}
}

// connectionClose goes with requests between reloads. A reload closes idle connections, maybe just
// when a client uses one again.
const connectionClose = "Connection: close"

const listChanged = "notifications/tools/list_changed"

// expectCallsSurvive makes a change while the client has two calls in flight, and expects both
// results. One call takes some milliseconds, the other waits for the answer to a server request.
func (c *testClient) expectCallsSurvive(t *testing.T, journal journal, milliseconds int, change func()) {
	t.Helper()
	params := callOf("far", "ask", `{"method":"roots/list","params":{}}`)
	d := c.begin(t, "tools/call", params)
	serverRequest := d.next(t)
	seen := len(journal.entries(t, "tools/call"))
	slow := c.begin(t, "tools/call", callOf("kept", "slow", fmt.Sprintf(`{"ms":%d}`, milliseconds)))
	await.Until(t, "the call", func() bool { return len(journal.entries(t, "tools/call")) > seen })
	change()
	if got := slow.finish(t).answer.Text(); got != "slept" {
		t.Errorf("got %q, want %q", got, "slept")
	}
	if c.Modern {
		d = c.begin(t, "tools/call", retryParams(params, serverRequest.Input(t), func(string) string { return rootsAnswer }))
	} else {
		c.respond(t, serverRequest, rootsAnswer)
	}
	if got := d.finish(t).answer; !isAnswer(got.Text(), rootsAnswer) {
		t.Errorf("got %s", got.Raw)
	}
}

// Clients, their streams and their calls survive reloads (A60).
func TestAggregateReloadsUnderClients(t *testing.T) {
	isolate(t)
	journal := newJournal(t)
	added := block(child("new"), journal.env())
	for _, era := range clientEras {
		t.Run(era.name, func(t *testing.T) {
			remote := &mcptest.Remote{Name: "far", Legacy: true, Modern: true}
			far := "server far http://" + upstream(t, remote) + "/mcp"
			t.Cleanup(remote.Close)
			address := freeAddress(t)
			config := func(more ...string) string {
				return site(address, gateway(append([]string{"separator __", block(child("kept", "--modern"), journal.env()), far},
					more...)...))
			}
			load(t, config())
			c := newTestClient(t, joinedAt("http://"+address), era.modern, fullCapabilities, connectionClose)
			stream := c.listenForChanges(t)
			pid := c.use(t, "kept", "pid", `{}`)
			// A stream subscribes to all servers when it begins, but does not wait long for them.
			await.Until(t, "the stream of the remote server", func() bool {
				return len(remote.Seen("stream"))+len(remote.Seen("subscriptions/listen")) > 0
			})
			goesOn := func(t *testing.T) {
				t.Helper()
				if again := c.use(t, "kept", "pid", `{}`); again != pid {
					t.Errorf("%s became %s", pid, again)
				}
				c.use(t, "far", "change", `{}`)
				if m := stream.awaitMessage(t, listChanged); m.Params.Proxy.Server != "far" {
					t.Errorf("got %s", m.Raw)
				}
				if n := len(remote.Seen("initialize")); n > 1 {
					t.Errorf("the remote server was initialized %d times", n)
				}
			}
			t.Run("A60 nothing changes for the servers", func(t *testing.T) {
				load(t, config()+site(freeAddress(t), "respond x"))
				stream.expectSilence(t)
				goesOn(t)
			})
			t.Run("A60 a call in flight completes", func(t *testing.T) {
				c.expectCallsSurvive(t, journal, 300, func() { load(t, config()+site(freeAddress(t), "respond y")) })
				goesOn(t)
			})
			t.Run("A60 a server is added", func(t *testing.T) {
				load(t, config(added))
				stream.awaitMessage(t, listChanged)
				if got := toolNames(t, c); !slices.Contains(got, "new__pid") || !slices.Contains(got, "kept__pid") ||
					!slices.Contains(got, "far__echo") {
					t.Errorf("listed %v", got)
				}
				c.use(t, "new", "add-tool", `{"name":"more"}`)
				for m := stream.awaitMessage(t, listChanged); m.Params.Proxy.Server != "new"; m = stream.awaitMessage(t,
					listChanged) {
				}
				goesOn(t)
			})
			t.Run("A61 a broken configuration changes nothing", func(t *testing.T) {
				for _, broken := range []string{config("server new http://127.0.0.1:1", "server new http://127.0.0.1:1"),
					config() + "\n{", site(address, gateway())} {
					expectConfigError(t, "text/caddyfile", withAdmin(broken, adminAddress(t)), "")
				}
				stream.expectSilence(t)
				if got := toolNames(t, c); !slices.Contains(got, "new__pid") {
					t.Errorf("listed %v", got)
				}
				goesOn(t)
			})
			t.Run("A60 a server is removed", func(t *testing.T) {
				load(t, config())
				stream.awaitMessage(t, listChanged)
				if got := toolNames(t, c); slices.Contains(got, "new__pid") || !slices.Contains(got, "kept__pid") {
					t.Errorf("listed %v", got)
				}
				if got := c.ask(t, "tools/call", callOf("new", "pid", `{}`)); got.answer.Error == nil ||
					got.answer.Error.Code != -32602 {
					t.Errorf("got %s", got.answer.Raw)
				}
				goesOn(t)
			})
			t.Run("A60 many reloads in a row", func(t *testing.T) {
				for range 5 {
					load(t, config(added))
					load(t, config())
				}
				await.Until(t, "the list", func() bool { return !slices.Contains(toolNames(t, c), "new__pid") })
				for len(stream.Messages) > 0 {
					stream.next(t)
				}
				goesOn(t)
			})
			t.Run("A60 the gateway is removed", func(t *testing.T) {
				load(t, site(address, "respond x"))
				stream.awaitEnd(t)
			})
		})
	}
	t.Run("A39 no child remains", func(t *testing.T) {
		await.Until(t, "the end of the children", func() bool {
			return !slices.ContainsFunc(journal.entries(t, "start"), func(e entry) bool { return processRuns(e.PID) })
		})
	})
}

// A namedServer is an HTTP server whose tool and notifications contain its name. Its clients have
// their own credentials.
type namedServer struct {
	*remoteServer
	name string
}

func newNamedServer(t *testing.T, name string) *namedServer {
	t.Helper()
	return &namedServer{newRemoteServer(t, "tool_of_"+name), name}
}

// foreignCredentials returns the credentials received from clients of other servers.
func (s *namedServer) foreignCredentials() (all []string) {
	for _, r := range s.Received() {
		if credentials := r.HTTP.Header.Get("Authorization"); credentials != "Bearer of-"+s.name {
			all = append(all, credentials)
		}
	}
	return all
}

// A namedListener is a client that listens to a namedServer.
type namedListener struct {
	server *namedServer
	client *testClient
	stream *exchange
}

// awaitOwnMessage waits for a notification from the client's own server, and expects none from
// others. If a reload ended the stream, the client opens it again.
func (l *namedListener) awaitOwnMessage(t *testing.T) {
	t.Helper()
	own := "vendor/" + l.server.name
	await.Until(t, "a stream of "+l.server.name, func() bool {
		l.server.Say(`{"jsonrpc":"2.0","method":"` + own + `"}`)
		for {
			select {
			case m, ok := <-l.stream.Messages:
				switch {
				case !ok:
					l.stream = l.client.listen(t)
					return false
				case m.Method == own:
					return true
				case strings.HasPrefix(m.Method, "vendor/"):
					t.Errorf("the client of %s received %s", l.server.name, m.Raw)
				}
			default:
				return false
			}
		}
	})
}

// Two unnamed gateways on two sites are independent: their clients get no messages from servers of
// the other, and servers no credentials of its clients.
func TestAggregateReloadsOfTwoGateways(t *testing.T) {
	isolate(t)
	one, two := newNamedServer(t, "one"), newNamedServer(t, "two")
	addresses := map[*namedServer]string{one: freeAddress(t), two: freeAddress(t)}
	config := func(moreOfOne, moreOfTwo string) string {
		return site(addresses[one], gateway("separator __", "forward_auth_header on", one.line("shared"), moreOfOne)) +
			site(addresses[two], gateway("separator __", "forward_auth_header on", two.line("shared"), moreOfTwo))
	}
	load(t, config("", ""))
	var listeners []*namedListener
	for _, s := range []*namedServer{one, two} {
		l := &namedListener{server: s, client: newTestClient(t, joinedAt("http://"+addresses[s]), false, `{}`,
			connectionClose, "Authorization: Bearer of-"+s.name)}
		l.stream = l.client.listen(t)
		listeners = append(listeners, l)
		await.Until(t, "the stream", func() bool { return s.Listeners() == 1 })
	}
	extra := func(name string) string { return "server " + name + " http://127.0.0.1:1" }
	steps := []struct {
		name, config string
		lasts        bool // the streams survive, too
	}{
		{"nothing changes", config("", "") + site(freeAddress(t), "respond x"), true},
		{"nothing changes again", config("", ""), true},
		{"sites in another order", site(addresses[two], gateway("separator __", "forward_auth_header on",
			two.line("shared"))) + site(addresses[one], gateway("separator __", "forward_auth_header on", one.line("shared"))),
			true},
		{"the first gets a server", config(extra("more"), ""), false},
		{"both change", config("", extra("other")), false},
		{"both change again", config(extra("x"), extra("y")), false},
	}
	for _, step := range steps {
		t.Run("A60 "+step.name, func(t *testing.T) {
			load(t, step.config)
			for _, l := range listeners {
				if !step.lasts {
					l.awaitOwnMessage(t)
					continue
				}
				l.server.Say(`{"jsonrpc":"2.0","method":"vendor/` + l.server.name + `"}`)
				if m := l.stream.next(t); m.Method != "vendor/"+l.server.name {
					t.Errorf("the client of %s received %s", l.server.name, m.Raw)
				}
			}
			for _, l := range listeners {
				if got := toolNames(t, l.client); !slices.Equal(got, []string{"shared__tool_of_" + l.server.name}) {
					t.Errorf("the client of %s sees %v", l.server.name, got)
				}
				if got := l.server.foreignCredentials(); len(got) > 0 {
					t.Errorf("%s received the credentials %q", l.server.name, got)
				}
			}
		})
	}
	t.Run("A60 one is removed", func(t *testing.T) {
		load(t, site(addresses[two], gateway("separator __", "forward_auth_header on", two.line("shared"), extra("y"))))
		listeners[0].stream.awaitEnd(t)
		l := listeners[1]
		if got := toolNames(t, l.client); !slices.Equal(got, []string{"shared__tool_of_two"}) {
			t.Errorf("got %v", got)
		}
		for _, l := range listeners {
			if got := l.server.foreignCredentials(); len(got) > 0 {
				t.Errorf("%s received the credentials %q", l.server.name, got)
			}
		}
	})
}

// Old configurations release their memory and connections to servers, even under open streams.
func TestAggregateReloadsLeaveNothingBehind(t *testing.T) {
	isolate(t)
	address := freeAddress(t)
	lines := []string{"separator __"}
	for i := range 8 {
		remote := &mcptest.Remote{Name: fmt.Sprint("far", i), Legacy: true}
		t.Cleanup(remote.Close)
		lines = append(lines, fmt.Sprintf("server far%d http://%s/mcp", i, upstream(t, remote)))
	}
	config := func(servers int) string { return site(address, gateway(lines[:1+servers]...)) }
	load(t, config(2))
	for range 10 {
		newTestClient(t, joinedAt("http://"+address), false, `{}`, connectionClose).listenForChanges(t)
	}
	r := caddyOf(t).caddy
	files := func() int { return len(openFiles(t, r.Process.Pid)) }
	t.Run("connections", func(t *testing.T) {
		before := files()
		for range 15 {
			load(t, config(8))
			load(t, config(2))
		}
		await.Until(t, "connections to servers to close", func() bool { return files() < before+20 })
	})
	t.Run("memory", func(t *testing.T) {
		more := func(i int) string { return config(2) + site(freeAddress(t), fmt.Sprintf("respond %d", i)) }
		for i := range 10 {
			load(t, more(i))
		}
		before := memoryInUse(t)
		for i := range 150 {
			load(t, more(i))
		}
		await.Until(t, "configurations to be collected", func() bool { return memoryInUse(t) <= before+2 })
	})
}

// A serversFile is a file with an mcpServers object.
type serversFile string

func newServersFile(t *testing.T, servers map[string]fileServer) serversFile {
	t.Helper()
	f := serversFile(filepath.Join(t.TempDir(), "mcp.json"))
	f.write(t, servers)
	return f
}

type fileServer struct {
	Command string            `json:"command,omitempty"`
	Args    []string          `json:"args,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	URL     string            `json:"url,omitempty"`
}

// fileChild returns a child process as an entry of a file.
func fileChild(t *testing.T, j journal, args ...string) fileServer {
	t.Helper()
	return fileServer{Command: childProgram(), Args: args, Env: map[string]string{"DS_LOG": string(j)}}
}

// write replaces the file, as most editors do.
func (f serversFile) write(t *testing.T, servers map[string]fileServer) {
	t.Helper()
	text, err := json.Marshal(map[string]any{"mcpServers": servers})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(string(f)+".new", text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(string(f)+".new", string(f)); err != nil {
		t.Fatal(err)
	}
}

// overwrite replaces the content of the file in place.
func (f serversFile) overwrite(t *testing.T, text string) {
	t.Helper()
	if err := os.WriteFile(string(f), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (f serversFile) line() string { return "servers_from " + string(f) }

// A fileState is the status of a file in the admin API.
type fileState struct {
	Gateway, File string
	Servers       []string
	Error         string
}

// fails waits until the admin API reports this error for the file.
func (f serversFile) fails(t *testing.T, want string) {
	t.Helper()
	var all []fileState
	if !await.Within(patience, func() bool {
		all = control[[]fileState](t, "GET", "/files", "", 200)
		return len(all) == 1 && all[0].File == string(f) && strings.Contains(all[0].Error, want)
	}) {
		t.Errorf("got %+v, want the error %q", all, want)
	}
}

// serverNames returns the names of the servers of all gateways.
func serverNames(t *testing.T) (names []string) {
	t.Helper()
	for _, s := range control[[]serverState](t, "GET", "/servers", "", 200) {
		names = append(names, s.Name)
	}
	return names
}

// Clients, streams and calls continue while servers of a file are added, changed and removed.
func TestServersFileChangesUnderClients(t *testing.T) {
	isolate(t)
	journal, others := newJournal(t), newJournal(t)
	for _, era := range clientEras {
		t.Run(era.name, func(t *testing.T) {
			remote := &mcptest.Remote{Name: "far", Legacy: true, Modern: true}
			address := upstream(t, remote)
			t.Cleanup(remote.Close)
			servers := map[string]fileServer{
				"kept": fileChild(t, journal, "kept", "--modern"),
				"far":  {URL: "http://" + address + "/mcp"},
			}
			withServer := func(name string, added fileServer) map[string]fileServer {
				more := map[string]fileServer{name: added}
				for name, s := range servers {
					more[name] = s
				}
				return more
			}
			file := newServersFile(t, servers)
			url := serve(t, gateway("name live", "separator __", file.line(), block(child("line"), journal.env())))
			c := newTestClient(t, joinedAt(url), era.modern, fullCapabilities)
			stream := c.listenForChanges(t)
			alone := newTestClient(t, mcpAt(url, "kept"), era.modern, fullCapabilities).listenForChanges(t)
			passing := newTestClient(t, mcpAt(url, "far"), era.modern, fullCapabilities).listenForChanges(t)
			pid, linePID := c.use(t, "kept", "pid", `{}`), c.use(t, "line", "pid", `{}`)
			await.Until(t, "the stream of the remote server", func() bool {
				return len(remote.Seen("stream"))+len(remote.Seen("subscriptions/listen")) > 0
			})
			var more atomic.Int32
			goesOn := func(t *testing.T) {
				t.Helper()
				if again := c.use(t, "kept", "pid", `{}`); again != pid {
					t.Errorf("pid was %s, is %s", pid, again)
				}
				if again := c.use(t, "line", "pid", `{}`); again != linePID {
					t.Errorf("pid was %s, is %s", linePID, again)
				}
				c.use(t, "kept", "add-tool", fmt.Sprintf(`{"name":"more-%d"}`, more.Add(1)))
				alone.awaitMessage(t, listChanged)
				c.use(t, "far", "change", `{}`)
				passing.awaitMessage(t, listChanged)
				for m := stream.awaitMessage(t, listChanged); m.Params.Proxy.Server != "far"; m = stream.awaitMessage(t,
					listChanged) {
				}
				if n := len(remote.Seen("initialize")); n > 2 { // one for each client
					t.Errorf("the remote server was initialized %d times, want at most 2", n)
				}
			}
			hearsOfChange := func(t *testing.T) {
				t.Helper()
				for m := stream.awaitMessage(t, listChanged); m.Params.Proxy.Server != ""; m = stream.awaitMessage(t, listChanged) {
				}
			}
			t.Run("the admin API names the file", func(t *testing.T) {
				for name, want := range map[string]string{"kept": string(file), "line": ""} {
					got := control[struct{ From string }](t, "GET", "/servers/"+name, "", 200)
					if got.From != want {
						t.Errorf("%s: from %q, want %q", name, got.From, want)
					}
				}
			})
			t.Run("a server is added while a call is in flight", func(t *testing.T) {
				c.expectCallsSurvive(t, journal, 3000, func() {
					file.write(t, withServer("new", fileChild(t, others, "new")))
					hearsOfChange(t)
				})
				if got := toolNames(t, c); !slices.Contains(got, "new__pid") || !slices.Contains(got, "kept__pid") ||
					!slices.Contains(got, "far__echo") {
					t.Errorf("listed %v", got)
				}
				goesOn(t)
			})
			t.Run("a server is changed", func(t *testing.T) {
				before := c.use(t, "new", "pid", `{}`)
				file.write(t, withServer("new", fileChild(t, others, "new", "--modern")))
				hearsOfChange(t)
				if after := c.use(t, "new", "pid", `{}`); after == before {
					t.Errorf("the process %s was not replaced", before)
				}
				goesOn(t)
			})
			t.Run("invalid content changes nothing", func(t *testing.T) {
				for _, broken := range []struct{ text, want string }{
					{`{"mcpServers":{"new":`, "not JSON"},
					{``, "not JSON"},
					{`{"mcpServers":{"line":{"url":"http://127.0.0.1:1"}}}`,
						`duplicate server "line": it is in a server line of mcp_gateway and in ` + string(file)},
					{`{"mcpServers":{"new":{"url":"http://127.0.0.1:99999"}}}`, "no valid port"},
				} {
					file.overwrite(t, broken.text)
					file.fails(t, broken.want)
				}
				if got := toolNames(t, c); !slices.Contains(got, "new__pid") {
					t.Errorf("listed %v", got)
				}
				goesOn(t)
			})
			t.Run("deleting the file keeps its servers", func(t *testing.T) {
				if err := os.Remove(string(file)); err != nil {
					t.Fatal(err)
				}
				file.fails(t, "no such file")
				goesOn(t)
			})
			t.Run("a server is removed", func(t *testing.T) {
				file.write(t, servers)
				hearsOfChange(t)
				if got := toolNames(t, c); slices.Contains(got, "new__pid") || !slices.Contains(got, "kept__pid") {
					t.Errorf("listed %v", got)
				}
				if got := c.ask(t, "tools/call", callOf("new", "pid", `{}`)); got.answer.Error == nil ||
					got.answer.Error.Code != -32602 {
					t.Errorf("got %s", got.answer.Raw)
				}
				if all := control[[]fileState](t, "GET", "/files", "", 200); all[0].Error != "" {
					t.Errorf("the file has the error %s", all[0].Error)
				}
				goesOn(t)
				await.Until(t, "the end of its children", func() bool {
					return !slices.ContainsFunc(others.entries(t, "start"), func(e entry) bool { return processRuns(e.PID) })
				})
			})
			t.Run("a reload keeps the same servers", func(t *testing.T) {
				load(t, strings.Replace(site(strings.TrimPrefix(url, "http://"),
					gateway("name live", "separator __", file.line(), block(child("line"), journal.env()))), "bind", "log\nbind", 1))
				goesOn(t)
				file.write(t, withServer("new", fileChild(t, others, "new")))
				hearsOfChange(t)
				goesOn(t)
			})
			t.Run("an empty object removes all servers", func(t *testing.T) {
				file.write(t, map[string]fileServer{})
				hearsOfChange(t)
				alone.awaitEnd(t)
				passing.awaitEnd(t)
				if got := serverNames(t); !slices.Equal(got, []string{"line"}) {
					t.Errorf("servers %v", got)
				}
				if again := c.use(t, "line", "pid", `{}`); again != linePID {
					t.Errorf("pid was %s, is %s", linePID, again)
				}
			})
		})
	}
	counted := metrics(t)
	for _, outcome := range []string{"ok", "error"} {
		if sample := `servers_file_loads_total{gateway="live",outcome="` + outcome + `"}`; counted[sample] == 0 {
			t.Errorf("the metric %s is missing", sample)
		}
	}
}

// A gateway may start without servers, and get them when the file appears. Its rules and metrics
// apply to them.
func TestServersFileAppears(t *testing.T) {
	isolate(t)
	journal := newJournal(t)
	file := serversFile(filepath.Join(t.TempDir(), "mcp.json"))
	url := serve(t, gateway("separator __", file.line(), "route_notifications notifications/x late",
		block("client anonymous", "allow late::pid", "deny later::*")))
	c := newListeningClient(t, url, fullCapabilities)
	c.listen()
	if got := c.list("tools/list", "name"); len(got) != 0 {
		t.Errorf("listed %s", got)
	}
	file.write(t, map[string]fileServer{"late": fileChild(t, journal, "late")})
	c.awaitMessages(listChanged, 1)
	if tools := c.list("tools/list", "name"); len(tools) != 1 || !c.listsTool("late__pid") {
		t.Errorf("listed %s", tools)
	}
	c.use("late__pid", `{}`)
	if n := metrics(t)[`upstream_healthy{server="late"}`]; n != 1 {
		t.Errorf("upstream_healthy of the server: %v", n)
	}
	if out, err := caddy(t, "mcp", "tools", "--address", adminAddress(t)).CombinedOutput(); err != nil ||
		!strings.Contains(string(out), "late__pid") {
		t.Errorf("caddy mcp tools: %v: %s", err, out)
	}
}

// When Caddy exits, streams opened before a change end, and children started after it end, too.
func TestServersFileAtExit(t *testing.T) {
	isolate(t)
	journal := newJournal(t)
	file := newServersFile(t, map[string]fileServer{"first": fileChild(t, journal, "first")})
	address, home := freeAddress(t), t.TempDir()
	config := filepath.Join(home, "Caddyfile")
	text := "{\nadmin off\n}\n" + site(address, gateway("separator __", file.line()))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	served := startCaddy(t, caddyrun.Command(t.Context(), binary(t), home, "run", "--config", config))
	url := "http://" + address
	var streams []*exchange
	listen := func(endpoint string) {
		c := newTestClient(t, endpoint, false, fullCapabilities)
		streams = append(streams, c.listenForChanges(t))
	}
	listen(joinedAt(url))
	listen(mcpAt(url, "first"))
	c := newTestClient(t, joinedAt(url), false, fullCapabilities)
	file.write(t, map[string]fileServer{"first": fileChild(t, journal, "first"), "second": fileChild(t, journal,
		"second")})
	await.Until(t, "the second server", func() bool { return slices.Contains(toolNames(t, c), "second__pid") })
	c.use(t, "first", "pid", `{}`)
	c.use(t, "second", "pid", `{}`)
	listen(mcpAt(url, "second"))
	served.stop(t)
	for _, stream := range streams {
		stream.awaitEnd(t)
	}
	for _, e := range journal.entries(t, "start") {
		if processRuns(e.PID) {
			t.Errorf("the child %d still runs", e.PID)
		}
	}
}

// Calls succeed and streams stay open while other servers are added and removed, however clients
// authenticate.
func TestServersFileChangesUnderLoad(t *testing.T) {
	isolate(t)
	ways := map[string]func(t *testing.T, line string) (connect func(modern bool) *testClient){
		"without credentials": func(t *testing.T, line string) func(bool) *testClient {
			url := serve(t, gateway("separator __", line))
			return func(modern bool) *testClient { return newTestClient(t, joinedAt(url), modern, fullCapabilities) }
		},
		"with a JWT": func(t *testing.T, line string) func(bool) *testClient {
			issuer := newIssuer(t)
			url := serve(t, gateway("separator __", issuer.provider(), line))
			token := bearer(issuer.token("ec", issuer.claims(nil)))
			return func(modern bool) *testClient { return newTestClient(t, joinedAt(url), modern, fullCapabilities, token) }
		},
		"with a certificate": func(t *testing.T, line string) func(bool) *testClient {
			trusted := newAuthority(t, "trusted")
			s, lines := newTLSSite(t, trusted, "require_and_verify")
			load(t, block("", "auto_https disable_redirects")+"\n"+site(s.address, lines, gateway("separator __", "auth mtls",
				line)))
			alice := s.clientWith(t, trusted.clientCertificate(t, "alice"))
			alice.Timeout = 0 // streams stay open
			return func(modern bool) *testClient {
				return newTestClientWith(t, alice, joinedAt(s.url), modern, fullCapabilities)
			}
		},
	}
	for name, way := range ways {
		for _, era := range clientEras {
			t.Run(era.name+" "+name, func(t *testing.T) {
				journal := newJournal(t)
				kept := fileChild(t, journal, "kept", "--modern")
				file := newServersFile(t, map[string]fileServer{"kept": kept})
				connect := way(t, file.line())
				watcher := connect(era.modern)
				stream := watcher.listenForChanges(t)
				pid := watcher.use(t, "kept", "pid", `{}`)
				var callers sync.WaitGroup
				var stop atomic.Bool
				var calls atomic.Int64
				defer callers.Wait()
				defer stop.Store(true)
				for range 4 {
					c := connect(era.modern)
					callers.Go(func() {
						for !stop.Load() && !t.Failed() {
							if got := c.ask(t, "tools/call", callOf("kept", "pid", `{}`)).answer; got.Error != nil || got.Text() != pid {
								t.Errorf("got %s", got.Raw)
							}
							calls.Add(1)
							time.Sleep(5 * time.Millisecond)
						}
					})
				}
				for round := range 4 {
					servers := map[string]fileServer{"kept": kept}
					if round%2 == 0 {
						servers["other"] = fileChild(t, journal, "other")
					}
					file.write(t, servers)
					stream.awaitMessage(t, listChanged)
					await.Until(t, "the change", func() bool {
						return slices.Contains(toolNames(t, watcher), "other__pid") == (round%2 == 0)
					})
					before := calls.Load()
					await.Until(t, "more calls", func() bool { return calls.Load() > before+20 || t.Failed() })
				}
			})
		}
	}
}

// caddy mcp-stdio also serves the servers of a file.
func TestServersFileOverStdio(t *testing.T) {
	isolate(t)
	journal := newJournal(t)
	file := newServersFile(t, map[string]fileServer{"files": fileChild(t, journal, "files")})
	config := filepath.Join(filepath.Dir(string(file)), "Caddyfile")
	// The path is relative to the Caddyfile.
	if err := os.WriteFile(config, []byte(site(freeAddress(t), gateway("separator __", "servers_from mcp.json"))),
		0o600); err != nil {
		t.Fatal(err)
	}
	for server, want := range map[string]string{"": `"files__pid"`, "files": `"pid"`} {
		cmd := caddy(t, "mcp-stdio", "--config", config, "--server", server)
		direct := startDirect(t, cmd)
		direct.initialize(t, `{}`)
		if got := direct.ask(t, "tools/list", `{}`); !strings.Contains(string(got), want) {
			t.Errorf("server %q: %s is not listed", server, want)
		}
		direct.in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("server %q: %v", server, err)
		}
	}
	cmd := caddy(t, "mcp-stdio", "--config", config, "--server", "nope")
	if text, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(text),
		`no server \"nope\"; it has files`) &&
		!strings.Contains(string(text), `no server "nope"; it has files`) {
		t.Errorf("got %v %s", err, text)
	}
}
