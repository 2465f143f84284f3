package mcpgateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcpjson"
)

// A liveTest is a gateway with servers_from in a running configuration. It reads its files only
// when the test calls poll.
type liveTest struct {
	*Handler
	t    *testing.T
	file string
	logs *observer.ObservedLogs
	end  func()
}

// startLive starts a gateway whose servers come from a file with this content, or from a missing
// file if the content is empty.
func startLive(t *testing.T, content, config string) *liveTest {
	t.Helper()
	l := &liveTest{t: t, file: filepath.Join(t.TempDir(), "mcp.json")}
	if content != "" {
		l.write(content)
	}
	if err := l.load(config); err != nil {
		t.Fatal(err)
	}
	core, logs := observer.New(zap.InfoLevel)
	l.logger, l.logs = zap.New(core), logs
	app, err := l.ctx.App("events")
	if err != nil {
		t.Fatal(err)
	}
	if err := app.(*caddyevents.App).Start(); err != nil { // no subscriptions from now on
		t.Fatal(err)
	}
	l.live.running = true
	l.live.current.Load().start()
	return l
}

// load provisions the gateway. more are further files.
func (l *liveTest) load(config string, more ...string) error {
	ctx, err := caddy.ProvisionContext(new(caddy.Config))
	if err != nil {
		return err
	}
	ctx, cancel := caddy.NewContext(ctx)
	l.end = sync.OnceFunc(cancel)
	l.t.Cleanup(l.end)
	members := `"servers_from":` + string(mustJSON(append([]string{l.file}, more...)))
	if config != "" {
		members += "," + config
	}
	module, err := ctx.LoadModuleByID("http.handlers.mcp_gateway", json.RawMessage("{"+members+"}"))
	if err != nil {
		return err
	}
	l.Handler = module.(*Handler)
	return nil
}

func mustJSON(value any) []byte {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return text
}

func (l *liveTest) write(content string) {
	l.t.Helper()
	if err := os.WriteFile(l.file, []byte(content), 0o600); err != nil {
		l.t.Fatal(err)
	}
}

// change writes the file and makes the gateway read it.
func (l *liveTest) change(content string) {
	l.t.Helper()
	l.write(content)
	l.live.poll()
}

// names returns the names of the gateway's servers.
func (l *liveTest) names() (names []string) {
	for _, s := range l.live.current.Load().Servers {
		names = append(names, s.Name)
	}
	return names
}

func (l *liveTest) has(want ...string) {
	l.t.Helper()
	if got := l.names(); !slices.Equal(got, want) {
		l.t.Errorf("servers %v, want %v", got, want)
	}
}

// fileOf returns a file of HTTP servers. The arguments are pairs of name and address.
func fileOf(servers ...string) string {
	all := map[string]any{}
	for i := 0; i+1 < len(servers); i += 2 {
		all[servers[i]] = map[string]string{"url": "http://" + servers[i+1] + "/mcp"}
	}
	return string(mustJSON(map[string]any{"mcpServers": all}))
}

func TestServersOfFiles(t *testing.T) {
	server := newRecordingServer(t, nil)
	l := startLive(t, fileOf("a", server.address), `"servers":[`+server.config("own")+`]`)
	answers := func(server string) bool {
		return serve(t, l.Handler, newPost("/api/mcp-gateway/"+server+"/rpc", aCall)).Code == http.StatusOK
	}
	l.has("own", "a")
	if !answers("own") || !answers("a") {
		t.Error("a server does not respond")
	}
	l.change(fileOf("b", server.address, "c", server.address))
	l.has("own", "b", "c")
	if answers("a") || !answers("b") {
		t.Error("a responds, or b does not")
	}
	line := l.logs.FilterMessage("servers files loaded").All()[0].ContextMap()
	if fmt.Sprint(line["added"], line["removed"]) != "[b c] [a]" {
		t.Errorf("logged %v", line)
	}
	before := l.live.current.Load()
	l.change(" " + fileOf("b", server.address, "c", server.address))
	if l.live.current.Load() != before {
		t.Error("the handler was replaced because of a space")
	}
	l.change(`{"mcpServers":{}}`)
	l.has("own")
}

// The handler that serves requests has a registry of its own, which nothing fills.
func TestMetricsOfServersOfFiles(t *testing.T) {
	server := newRecordingServer(t, nil)
	l := startLive(t, fileOf("a", server.address), "")
	serve(t, l.Handler, newPost("/api/mcp-gateway/a/rpc", aCall))
	got, err := RequestAdmin[metricsStatus](t.Context(), AdminRequest{Path: "/metrics"})
	if err != nil || got.Totals["requests"] == 0 || len(got.Metrics) == 0 {
		t.Errorf("got %+v, %v", got.Totals, err)
	}
	await.Until(t, "the metrics of reverse_proxy", func() bool { // it sets them in the background
		families, err := l.ctx.GetMetricsRegistry().Gather()
		for _, family := range families {
			if family.GetName() == "caddy_reverse_proxy_upstreams_healthy" {
				return true
			}
		}
		return err != nil
	})
}

func TestErrorsInFilesOfServers(t *testing.T) {
	good := fileOf("a", "127.0.0.1:1")
	for _, tt := range []struct {
		name, content, want string
	}{
		{"an incomplete file", good[:20], "not JSON"},
		{"an empty file", "", "not JSON"},
		{"a duplicate name", fileOf("own", "127.0.0.1:1"),
			`duplicate server "own": it is in a server line of mcp_gateway and in `},
		{"a name that is an alias", fileOf("alias", "127.0.0.1:1"),
			`duplicate server "alias": it is in a server line of mcp_gateway and in `},
		{"a name with the separator", fileOf("a-b", "127.0.0.1:1"), `server "a-b": `},
		{"a file that is too large", good + strings.Repeat(" ", mcpjson.MaxSize), "larger than 1048576 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			own := `"separator":"-","servers":[{"name":"own","aliases":["alias"],"routes":[{"handle":[` + staticHandler + `]}]}]`
			l := startLive(t, good, own)
			before := l.live.current.Load()
			l.change(tt.content)
			if n := l.logs.FilterLevelExact(zap.ErrorLevel).Len(); n != 0 {
				t.Errorf("%d errors for a file that may be incomplete, want 0", n)
			}
			for range 3 {
				l.live.poll()
			}
			errors := l.logs.FilterLevelExact(zap.ErrorLevel).All()
			if len(errors) != 1 || !strings.Contains(fmt.Sprint(errors[0].ContextMap()), tt.want) ||
				!strings.Contains(fmt.Sprint(errors[0].ContextMap()), l.file) {
				t.Errorf("logged %v", errors)
			}
			status := l.live.statuses()
			if len(status) != 1 || !strings.Contains(status[0].Error, tt.want) ||
				!slices.Equal(status[0].Servers, []string{"a"}) {
				t.Errorf("status %+v", status)
			}
			if l.live.current.Load() != before {
				t.Error("the handler was replaced")
			}
			for _, s := range before.Servers {
				if s.streams.scope.Err() != nil {
					t.Errorf("the streams of %s ended", s.Name)
				}
			}
			l.change(fileOf("b", "127.0.0.1:1"))
			l.has("own", "b")
			if status := l.live.statuses(); status[0].Error != "" {
				t.Errorf("status %+v", status)
			}

			l.end()
			l.write(tt.content)
			if err := l.load(own); err == nil || !strings.Contains(err.Error(), tt.want) ||
				!strings.Contains(err.Error(), l.file) &&
					!strings.Contains(tt.content, `"a-b"`) {
				t.Errorf("at the start: %v", err)
			}
		})
	}
}

func TestMissingFilesOfServers(t *testing.T) {
	l := startLive(t, "", "")
	l.has()
	l.change(fileOf("a", "127.0.0.1:1"))
	l.has("a")
	if err := os.Remove(l.file); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		l.live.poll()
	}
	l.has("a")
	if warnings := l.logs.FilterMessage("servers file is missing").All(); len(warnings) != 1 {
		t.Errorf("logged %v", warnings)
	}
	l.change(fileOf("a", "127.0.0.1:1"))
	l.has("a")

	if err := os.Remove(l.file); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(l.file, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		l.live.poll()
	}
	if got := l.live.statuses()[0].Error; !strings.HasSuffix(got, "mcp.json: not a regular file") {
		t.Errorf("a folder: %q", got)
	}
}

func TestNullBesideFilesOfServers(t *testing.T) {
	l := &liveTest{t: t, file: filepath.Join(t.TempDir(), "mcp.json")}
	l.write(fileOf("a", "127.0.0.1:1"))
	if err := l.load(`"servers":[null]`); err == nil || !strings.HasSuffix(err.Error(), "servers[0] is null") {
		t.Error(err)
	}
}

// Without a separator there must be one server. A file may leave none.
func TestFilesWithoutServersAndSeparator(t *testing.T) {
	l := startLive(t, fileOf("a", "127.0.0.1:1"), `"separator":"none"`)
	l.change(`{"mcpServers":{}}`)
	l.has("a")
	if got := l.live.statuses()[0].Error; !strings.Contains(got, "requires a single server, but there are 0") {
		t.Errorf("got %q", got)
	}
	l.end()
	if err := l.load(`"separator":"none"`); err == nil || !strings.Contains(err.Error(), "but there are 0") {
		t.Errorf("at the start: %v", err)
	}
}

// A gateway in the routes of a server is replaced with the gateway around it.
func TestGatewaysInRoutesBesideFilesOfServers(t *testing.T) {
	server := newRecordingServer(t, nil)
	inner := `{"handler":"mcp_gateway","name":"inner","servers":[` + server.config("deep") + `]}`
	l := startLive(t, fileOf("a", "127.0.0.1:1"), `"servers":[`+serverOf("own", inner)+`]`)
	started := func() *Handler {
		all := slices.DeleteFunc(registry.current(), func(h *Handler) bool { return h.Name != "inner" })
		if len(all) != 1 {
			t.Fatalf("%d gateways in routes are started, want 1", len(all))
		}
		return all[0]
	}
	before := started()
	l.change(fileOf("b", "127.0.0.1:1"))
	l.has("own", "b")
	after := started()
	if after == before {
		t.Error("the gateway in the routes was not replaced")
	}
	if got := serve(t, after, newPost("/api/mcp-gateway/deep/rpc", aCall)).Code; got != http.StatusOK {
		t.Errorf("status %d", got)
	}
	l.lifetime.exit()
	<-after.Servers[0].streams.scope.Done()
}

// The file may be a symbolic link that is replaced, as in Kubernetes.
func TestFilesOfServersBehindLinks(t *testing.T) {
	l := startLive(t, "", "")
	dir := filepath.Dir(l.file)
	for _, name := range []string{"a", "b"} {
		target := filepath.Join(dir, "version-"+name)
		if err := os.WriteFile(target, []byte(fileOf(name, "127.0.0.1:1")), 0o600); err != nil {
			t.Fatal(err)
		}
		_ = os.Remove(l.file)
		if err := os.Symlink(target, l.file); err != nil {
			t.Fatal(err)
		}
		l.live.poll()
		l.has(name)
	}
}

// Files are independent of each other, except that names must be unique.
func TestTwoFilesOfServers(t *testing.T) {
	dir := t.TempDir()
	l := &liveTest{t: t, file: filepath.Join(dir, "one.json")}
	two := filepath.Join(dir, "two.json")
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(two, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l.write(fileOf("a", "127.0.0.1:1"))
	write(fileOf("b", "127.0.0.1:1"))
	if err := l.load("", two); err != nil {
		t.Fatal(err)
	}
	l.has("a", "b")
	write("{")
	l.change(fileOf("c", "127.0.0.1:1"))
	l.has("c", "b")
	write(fileOf("c", "127.0.0.1:1"))
	l.live.poll()
	l.has("c", "b")
	if want := `duplicate server "c": it is in ` + l.file + ` and in ` + two; l.live.refusal == nil ||
		l.live.refusal.Error() != want {
		t.Errorf("got %v, want %s", l.live.refusal, want)
	}
	l.change(`{"mcpServers":{}}`)
	l.has("c")
	if l.live.refusal != nil {
		t.Error(l.live.refusal)
	}
	if status := l.live.statuses(); len(status[0].Servers) > 0 || !slices.Equal(status[1].Servers, []string{"c"}) {
		t.Errorf("c has moved to the second file: %+v", status)
	}
}

// Rates outlive changes of files, even in a gateway without a name.
func TestRatesOutliveChangesOfFiles(t *testing.T) {
	server := newRecordingServer(t, nil)
	l := startLive(t, fileOf("a", server.address), `"rates":[{"requests":2,"per":"1h"}]`)
	call := func() int { return serve(t, l.Handler, newPost("/api/mcp-gateway/a/rpc", aCall)).Code }
	for _, change := range []string{fileOf("a", server.address, "b", server.address), fileOf("a", server.address)} {
		if got := call(); got != http.StatusOK {
			t.Errorf("status %d, want 200", got)
		}
		l.change(change)
	}
	if got := call(); got != http.StatusTooManyRequests {
		t.Errorf("status %d, want 429", got)
	}
}

// The admin API keeps all gateways of a configuration when the servers of one gateway change.
func TestRegistryAfterChangesOfFiles(t *testing.T) {
	isolateRegistry(t)
	l := startLive(t, fileOf("a", "127.0.0.1:1"), `"name":"live"`)
	sibling := adaptGateway(t, `{"name":"beside","servers":[`+serverOf("b", staticHandler)+`]}`)
	sibling.generation = l.generation
	registry.add(sibling)
	known := func() (names []string) {
		for _, h := range registry.current() {
			names = append(names, h.Name)
			for _, s := range h.Servers {
				names = append(names, s.Name)
			}
		}
		return names
	}
	l.change(fileOf("c", "127.0.0.1:1"))
	if got, want := known(), []string{"beside", "b", "live", "c"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	newer := adaptGateway(t, `{"name":"live","servers":[`+serverOf("b", staticHandler)+`]}`)
	registry.add(newer)
	l.change(fileOf("d", "127.0.0.1:1"))
	if got, want := known(), []string{"live", "b"}; !slices.Equal(got, want) {
		t.Errorf("while the configuration is replaced: got %v, want %v", got, want)
	}
}

// Calls succeed while their handler is replaced.
func TestCallsDuringChangesOfFiles(t *testing.T) {
	server := newRecordingServer(t, nil)
	l := startLive(t, fileOf("a", server.address), "")
	var stop atomic.Bool
	var calls atomic.Int64
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			for !stop.Load() {
				if w := serve(t, l.Handler, newPost("/api/mcp-gateway/a/rpc", aCall)); w.Code != http.StatusOK {
					t.Errorf("%d %s", w.Code, w.Body)
					return
				}
				calls.Add(1)
			}
		})
	}
	for i := range 20 {
		for before := calls.Load(); calls.Load() < before+4 && !t.Failed(); {
			l.live.statuses()
		}
		l.change(fileOf("a", server.address, fmt.Sprint("b", i), server.address))
		l.has("a", fmt.Sprint("b", i))
	}
	stop.Store(true)
	callers.Wait()
}

// Streams to a server end with the server, no matter in which handler they were opened.
func TestStreamsAfterChangesOfFiles(t *testing.T) {
	l := startLive(t, fileOf("a", "127.0.0.1:1", "b", "127.0.0.1:1"), "")
	first := l.live.current.Load().Servers
	l.change(fileOf("a", "127.0.0.1:1"))
	l.change(fileOf("a", "127.0.0.1:1", "c", "127.0.0.1:1"))
	if a := l.live.current.Load().Servers[0]; a.streams.scope != first[0].streams.scope || a.streams.scope.Err() != nil {
		t.Error("the streams of a kept server ended")
	}
	if first[1].streams.scope.Err() == nil {
		t.Error("the streams of a removed server did not end")
	}
	l.change(`{"mcpServers":{}}`)
	if first[0].streams.scope.Err() == nil {
		t.Error("the streams of a removed server did not end")
	}
}

func TestPathsOfFilesOfServers(t *testing.T) {
	t.Setenv("HOME", "/home/someone")
	t.Setenv("SERVERS_DIR", "/srv")
	for _, tt := range []struct{ name, parsed, path string }{
		{"/etc/mcp.json", "/etc/mcp.json", "/etc/mcp.json"},
		{"mcp.json", "/etc/caddy/mcp.json", "/etc/caddy/mcp.json"},
		{"../mcp.json", "/etc/mcp.json", "/etc/mcp.json"},
		{"~/mcp.json", "~/mcp.json", "/home/someone/mcp.json"},
		{"{env.SERVERS_DIR}/mcp.json", "{env.SERVERS_DIR}/mcp.json", "/srv/mcp.json"},
	} {
		var names []string
		d := caddyfile.NewDispenser([]caddyfile.Token{
			{File: "/etc/caddy/Caddyfile", Line: 1, Text: "servers_from"},
			{File: "/etc/caddy/Caddyfile", Line: 1, Text: tt.name},
		})
		d.Next()
		if err := parseServersFrom(&names)(d); err != nil || !slices.Equal(names, []string{tt.parsed}) {
			t.Errorf("%s: parsed %q, %v", tt.name, names, err)
		}
		if path, err := filePath(tt.parsed); path != tt.path || err != nil {
			t.Errorf("%s: path %q, %v", tt.name, path, err)
		}
	}
	if _, err := filePath("{env.SERVERS_NOWHERE}/mcp.json"); err == nil ||
		!strings.Contains(err.Error(), "SERVERS_NOWHERE") {
		t.Errorf("an unset variable: %v", err)
	}
}
