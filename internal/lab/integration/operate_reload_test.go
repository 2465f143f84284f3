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
