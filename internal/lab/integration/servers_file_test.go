package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/caddyrun"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

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
					{`{"mcpServers":{"health":{"url":"http://127.0.0.1:1"}}}`, "health is reserved"},
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
