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

// fileChild is a child process as a file has it.
func fileChild(t *testing.T, j journal, args ...string) fileServer {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return fileServer{Command: self, Args: append([]string{"ds"}, args...), Env: map[string]string{"DS_LOG": string(j)}}
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

// overwrite writes into the file.
func (f serversFile) overwrite(t *testing.T, text string) {
	t.Helper()
	if err := os.WriteFile(string(f), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (f serversFile) line() string { return "servers_from " + string(f) }

// A fileState is what the admin API tells of a file.
type fileState struct {
	Gateway, File string
	Servers       []string
	Error         string
}

// fails waits until the admin API tells why the file is not used.
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

// serverNames returns the servers of all gateways.
func serverNames(t *testing.T) (names []string) {
	t.Helper()
	for _, s := range control[[]serverState](t, "GET", "/servers", "", 200) {
		names = append(names, s.Name)
	}
	return names
}

// Clients, their streams and calls go on while servers of a file come, change and go.
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
			with := func(name string, added fileServer) map[string]fileServer {
				more := map[string]fileServer{name: added}
				for name, s := range servers {
					more[name] = s
				}
				return more
			}
			file := newServersFile(t, servers)
			url := serve(t, gateway("name live", "separator __", file.line(), block(child("line"), journal.env())))
			c := newSpeaker(t, joinedAt(url), era.modern, canAll)
			stream := c.listens(t)
			alone := newSpeaker(t, mcpAt(url, "kept"), era.modern, canAll).listens(t)
			passing := newSpeaker(t, mcpAt(url, "far"), era.modern, canAll).listens(t)
			pid, linePID := c.use(t, "kept", "pid", `{}`), c.use(t, "line", "pid", `{}`)
			await.Until(t, "the stream of the far server", func() bool {
				return len(remote.Seen("stream"))+len(remote.Seen("subscriptions/listen")) > 0
			})
			var more atomic.Int32
			goesOn := func(t *testing.T) {
				t.Helper()
				if again := c.use(t, "kept", "pid", `{}`); again != pid {
					t.Errorf("%s has become %s", pid, again)
				}
				if again := c.use(t, "line", "pid", `{}`); again != linePID {
					t.Errorf("%s has become %s", linePID, again)
				}
				c.use(t, "kept", "add-tool", fmt.Sprintf(`{"name":"more-%d"}`, more.Add(1)))
				alone.hears(t, listChanged)
				c.use(t, "far", "change", `{}`)
				passing.hears(t, listChanged)
				for m := stream.hears(t, listChanged); m.Params.Proxy.Server != "far"; m = stream.hears(t, listChanged) {
				}
				if n := len(remote.Seen("initialize")); n > 2 { // one of each client
					t.Errorf("the far server was initialized %d times", n)
				}
			}
			hearsOfChange := func(t *testing.T) {
				t.Helper()
				for m := stream.hears(t, listChanged); m.Params.Proxy.Server != ""; m = stream.hears(t, listChanged) {
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
				c.callsOutlast(t, journal, 3000, func() {
					file.write(t, with("new", fileChild(t, others, "new")))
					hearsOfChange(t)
				})
				if got := toolsOf(t, c); !slices.Contains(got, "new__pid") || !slices.Contains(got, "kept__pid") || !slices.Contains(got, "far__echo") {
					t.Errorf("listed %v", got)
				}
				goesOn(t)
			})
			t.Run("a server is changed", func(t *testing.T) {
				before := c.use(t, "new", "pid", `{}`)
				file.write(t, with("new", fileChild(t, others, "new", "--modern")))
				hearsOfChange(t)
				if after := c.use(t, "new", "pid", `{}`); after == before {
					t.Errorf("%s goes on", before)
				}
				goesOn(t)
			})
			t.Run("content with an error changes nothing", func(t *testing.T) {
				for _, broken := range []struct{ text, want string }{
					{`{"mcpServers":{"new":`, "not JSON"},
					{``, "not JSON"},
					{`{"mcpServers":{"line":{"url":"http://127.0.0.1:1"}}}`, `server "line": the name is in a server line of mcp_gateway and in ` + string(file)},
					{`{"mcpServers":{"health":{"url":"http://127.0.0.1:1"}}}`, "health is where probes ask"},
				} {
					file.overwrite(t, broken.text)
					file.fails(t, broken.want)
				}
				if got := toolsOf(t, c); !slices.Contains(got, "new__pid") {
					t.Errorf("listed %v", got)
				}
				goesOn(t)
			})
			t.Run("a file that disappears keeps its servers", func(t *testing.T) {
				if err := os.Remove(string(file)); err != nil {
					t.Fatal(err)
				}
				file.fails(t, "no such file")
				goesOn(t)
			})
			t.Run("a server is removed", func(t *testing.T) {
				file.write(t, servers)
				hearsOfChange(t)
				if got := toolsOf(t, c); slices.Contains(got, "new__pid") || !slices.Contains(got, "kept__pid") {
					t.Errorf("listed %v", got)
				}
				if got := c.ask(t, "tools/call", callOf("new", "pid", `{}`)); got.answer.Error == nil || got.answer.Error.Code != -32602 {
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
			t.Run("a reload goes on with the same servers", func(t *testing.T) {
				load(t, strings.Replace(site(strings.TrimPrefix(url, "http://"),
					gateway("name live", "separator __", file.line(), block(child("line"), journal.env()))), "bind", "log\nbind", 1))
				goesOn(t)
				file.write(t, with("new", fileChild(t, others, "new")))
				hearsOfChange(t)
				goesOn(t)
			})
			t.Run("an empty object removes all", func(t *testing.T) {
				file.write(t, map[string]fileServer{})
				hearsOfChange(t)
				alone.ended(t)
				passing.ended(t)
				if got := serverNames(t); !slices.Equal(got, []string{"line"}) {
					t.Errorf("servers %v", got)
				}
				if again := c.use(t, "line", "pid", `{}`); again != linePID {
					t.Errorf("%s has become %s", linePID, again)
				}
			})
		})
	}
	counted := metrics(t)
	for _, outcome := range []string{"ok", "error"} {
		if sample := `servers_file_loads_total{gateway="live",outcome="` + outcome + `"}`; counted[sample] == 0 {
			t.Errorf("%s is missing", sample)
		}
	}
}

// A gateway may begin without servers, and get them when the file appears. Its rules and metrics
// apply to them.
func TestServersFileAppears(t *testing.T) {
	isolate(t)
	journal := newJournal(t)
	file := serversFile(filepath.Join(t.TempDir(), "mcp.json"))
	url := serve(t, gateway("separator __", file.line(), "route_notifications notifications/x late",
		block("client anonymous", "allow late::pid", "deny later::*")))
	c := joinAll(t, url, canAll)
	c.listen()
	if got := c.list("tools/list", "name"); len(got) != 0 {
		t.Errorf("listed %s", got)
	}
	file.write(t, map[string]fileServer{"late": fileChild(t, journal, "late")})
	c.hears(listChanged, 1)
	if tools := c.list("tools/list", "name"); len(tools) != 1 || !c.has("late__pid") {
		t.Errorf("listed %s", tools)
	}
	c.use("late__pid", `{}`)
	if n := metrics(t)[`upstream_healthy{server="late"}`]; n != 1 {
		t.Errorf("upstream_healthy of the server: %v", n)
	}
	if out, err := caddy(t, "mcp", "tools", "--address", adminAddress(t)).CombinedOutput(); err != nil || !strings.Contains(string(out), "late__pid") {
		t.Errorf("caddy mcp tools: %v: %s", err, out)
	}
}

// When Caddy exits, streams end that were opened before a change, and so do children that came later.
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
	var streams []*dialogue
	listen := func(at string) {
		c := newSpeaker(t, at, false, canAll)
		streams = append(streams, c.listens(t))
	}
	listen(joinedAt(url))
	listen(mcpAt(url, "first"))
	c := newSpeaker(t, joinedAt(url), false, canAll)
	file.write(t, map[string]fileServer{"first": fileChild(t, journal, "first"), "second": fileChild(t, journal, "second")})
	await.Until(t, "the second server", func() bool { return slices.Contains(toolsOf(t, c), "second__pid") })
	c.use(t, "first", "pid", `{}`)
	c.use(t, "second", "pid", `{}`)
	listen(mcpAt(url, "second"))
	served.stop(t)
	for _, stream := range streams {
		stream.ended(t)
	}
	for _, e := range journal.entries(t, "start") {
		if processRuns(e.PID) {
			t.Errorf("the child %d runs", e.PID)
		}
	}
}

// Calls succeed and streams stay open while servers beside theirs come and go, however clients authenticate.
func TestServersFileChangesUnderLoad(t *testing.T) {
	isolate(t)
	ways := map[string]func(t *testing.T, line string) (connect func(modern bool) *speaker){
		"without credentials": func(t *testing.T, line string) func(bool) *speaker {
			url := serve(t, gateway("separator __", line))
			return func(modern bool) *speaker { return newSpeaker(t, joinedAt(url), modern, canAll) }
		},
		"with a JWT": func(t *testing.T, line string) func(bool) *speaker {
			issuer := newIssuer(t)
			url := serve(t, gateway("separator __", issuer.lines(), line))
			token := bearer(issuer.token("ec", issuer.claims(nil)))
			return func(modern bool) *speaker { return newSpeaker(t, joinedAt(url), modern, canAll, token) }
		},
		"with a certificate": func(t *testing.T, line string) func(bool) *speaker {
			trusted := newAuthority(t, "trusted")
			s, lines := newTLSSite(t, trusted, "require_and_verify")
			load(t, block("", "auto_https disable_redirects")+"\n"+site(s.address, lines, gateway("separator __", "auth mtls", line)))
			alice := s.as(t, trusted.client(t, "alice"))
			alice.Timeout = 0 // streams last
			return func(modern bool) *speaker { return newSpeakerBy(t, alice, joinedAt(s.url), modern, canAll) }
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
				stream := watcher.listens(t)
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
					stream.hears(t, listChanged)
					await.Until(t, "the change", func() bool { return slices.Contains(toolsOf(t, watcher), "other__pid") == (round%2 == 0) })
					before := calls.Load()
					await.Until(t, "more calls", func() bool { return calls.Load() > before+20 || t.Failed() })
				}
			})
		}
	}
}

// caddy mcp-stdio serves the servers of a file, too.
func TestServersFileOverStdio(t *testing.T) {
	isolate(t)
	journal := newJournal(t)
	file := newServersFile(t, map[string]fileServer{"files": fileChild(t, journal, "files")})
	config := filepath.Join(filepath.Dir(string(file)), "Caddyfile")
	// The file is beside the Caddyfile.
	if err := os.WriteFile(config, []byte(site(freeAddress(t), gateway("separator __", "servers_from mcp.json"))), 0o600); err != nil {
		t.Fatal(err)
	}
	for server, want := range map[string]string{"": `"files__pid"`, "files": `"pid"`} {
		cmd := caddy(t, "mcp-stdio", "--config", config, "--server", server)
		over := startDirectly(t, cmd)
		over.initialize(t, `{}`)
		if got := over.ask(t, "tools/list", `{}`); !strings.Contains(string(got), want) {
			t.Errorf("server %q: %s is not listed", server, want)
		}
		over.in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("server %q: %v", server, err)
		}
	}
	cmd := caddy(t, "mcp-stdio", "--config", config, "--server", "nope")
	if text, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(text), `no server \"nope\"; it has files`) &&
		!strings.Contains(string(text), `no server "nope"; it has files`) {
		t.Errorf("got %v %s", err, text)
	}
}
