package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// deleteTool is the definition of a tool at its server, and removeTool is the overridden definition
// that clients see.
const (
	deleteTool = `{"name":"delete_file","description":"old","inputSchema":{"type":"object","properties":{` +
		`"path":{"type":"string"},"root":{"type":"string"},"debug":{"type":"boolean"}},"required":["path","root"]}}`
	removeTool = `{"name":"remove_file","inputSchema":{"type":"object","properties":{` +
		`"path":{"type":"string"}},"required":["path"]},"description":"Removes one file for good.",` +
		`"title":"Remove a file","annotations":{"readOnlyHint":false,"destructiveHint":true}}`
	coveredTool = `{"name":"remove_file","description":"another","inputSchema":{"type":"object"}}`
)

// removing is the block that overrides deleteTool.
var removing = block("tool delete_file", "rename remove_file", `describe "Removes one file for good."`,
	`annotate title "Remove a file"`, "annotate destructive on", "arguments fixed root {env.OVERRIDE_ROOT}",
	"arguments hidden debug")

// overridden adds lines to the block of a server.
func overridden(server string, lines ...string) string {
	if before, ok := strings.CutSuffix(server, "\n}"); ok {
		return before + "\n" + strings.Join(lines, "\n") + "\n}"
	}
	return block(server, lines...)
}

// overrideEndpoints returns all ways to call a tool: those of toolEndpoints, and the plain RPC
// endpoint.
func overrideEndpoints(url, searched string) []toolEndpoint {
	ways := toolEndpoints(url, searched)
	plain := ways[1]
	plain.name, plain.url = "rpc", func(server string) string { return rpcAt(url, server) }
	return append(ways, plain)
}

// A caller calls tools in one of these ways.
type caller struct {
	endpoint toolEndpoint
	client   *testClient // nil at the plain RPC endpoint
	url      string
}

func newCaller(t *testing.T, way toolEndpoint, server string, modern bool) caller {
	t.Helper()
	if way.name == "rpc" {
		return caller{endpoint: way, url: way.url(server)}
	}
	return caller{endpoint: way, client: newTestClient(t, way.url(server), modern, `{}`)}
}

// ask sends a request.
func (c caller) ask(t *testing.T, method, params string) mcpclient.Message {
	t.Helper()
	if c.client == nil {
		return mcpclient.Parse(answerIn(post(t, c.url, rpc(method, params), acceptBoth).body))
	}
	return c.client.ask(t, method, params).answer
}

// use calls a tool.
func (c caller) use(t *testing.T, server, tool, arguments string) mcpclient.Message {
	t.Helper()
	return c.ask(t, "tools/call", c.endpoint.call(c.endpoint.alias(server, tool), arguments))
}

// names returns the names of a server's tools.
func (c caller) names(t *testing.T, server string) (names []string) {
	t.Helper()
	var list struct{ Tools []struct{ Name string } }
	got := c.ask(t, "tools/list", `{}`)
	if err := json.Unmarshal(got.Result, &list); err != nil {
		t.Fatalf("%v: %s", err, got.Raw)
	}
	for _, tool := range list.Tools {
		if name, ok := strings.CutPrefix(tool.Name, c.endpoint.alias(server, "")); ok {
			names = append(names, name)
		}
	}
	return names
}

// At every endpoint, the client sees the overridden tool, and the server receives the original name
// and the fixed arguments.
func TestOverrideInEveryWay(t *testing.T) {
	isolate(t)
	setenv(t, "OVERRIDE_ROOT", "/srv")
	tools := []string{deleteTool, coveredTool, plainTool("a"), plainTool("b")}
	far, old := newLenientServer(t, tools...), newLenientServer(t, tools...)
	old.Legacy, old.Sessions = true, true
	swap := block("tool a", "rename b") + "\n" + block("tool b", "rename a")
	file, accesses := filepath.Join(t.TempDir(), "caddy.log"), filepath.Join(t.TempDir(), "access.log")
	lines := []string{
		"separator __", overridden(old.line("old"), removing, swap),
		overridden(far.line("far"), removing, swap, "request_header X-Tool {http.mcp.tool}"),
	}
	addresses := []string{freeAddress(t), freeAddress(t)}
	load(t, logTo(file)+site(addresses[0], block("log", "output file "+accesses), gateway(lines...))+
		site(addresses[1], gateway(append(lines, "discovery on")...)))
	for _, way := range overrideEndpoints("http://"+addresses[0], "http://"+addresses[1]) {
		for _, era := range clientEras {
			for name, s := range map[string]*remoteServer{"far": far, "old": old} {
				passes := way.name == "rpc" || way.name == "single" && era.modern // requests pass unchanged
				if passes && name == "old" || way.name == "rpc" && era.modern {
					continue
				}
				t.Run(way.name+", "+era.name+", "+name, func(t *testing.T) {
					c := newCaller(t, way, name, era.modern)
					before := s.Count("tools/call")
					c.callOverridden(t, name)
					for _, r := range s.Received("tools/call")[before:] {
						expectOriginal(t, r, name == "far")
					}
					if n := s.Count("tools/call") - before; n != 4 {
						t.Errorf("the server received %d calls, want 4", n)
					}
					c.expectOverridden(t, name)
				})
			}
		}
	}
	log := strings.Join(linesOf(t, accesses), "\n")
	if strings.Contains(log, `"mcp_tool":"remove_file"`) || !strings.Contains(log, `"mcp_tool":"delete_file"`) {
		t.Errorf("logged %.2000s", log)
	}
	hidden := 0
	for _, line := range linesOfLog(t, file, "mcp_gateway") {
		if line.Message == "tool hidden, because another tool is renamed to its name" {
			hidden++
			if line.MCPTool != "remove_file" {
				t.Errorf("logged %+v", line)
			}
		}
	}
	if hidden != 4 { // once for each of two servers in two gateways
		t.Errorf("hidden tools are logged %d times, want 4", hidden)
	}
}

// plainTool returns the definition of a tool without described arguments.
func plainTool(name string) string {
	return `{"name":` + quote(name) + `,"inputSchema":{"type":"object"}}`
}

// callOverridden makes four calls that reach the server, and others that do not.
func (c caller) callOverridden(t *testing.T, server string) {
	t.Helper()
	for _, arguments := range []string{
		`{"path":"a"}`, `{"root":"/etc","path":"a","debug":true}`, `{"path":"a","r\u006fot":{},"ROOT":"/"}`,
	} {
		if got := c.use(t, server, "remove_file", arguments); got.Error != nil {
			t.Errorf("got %s", got.Raw)
		}
	}
	c.use(t, server, "a", `{}`)
	for _, wrong := range []string{`["root"]`, `"root"`} {
		got := c.use(t, server, "remove_file", wrong)
		if got.Error == nil || !strings.Contains(got.Error.Message, "arguments: not an object") {
			t.Errorf("arguments %s: got %s", wrong, got.Raw)
		}
	}
	got := c.use(t, server, "delete_file", `{"path":"a"}`).Raw
	if !strings.Contains(strings.ToLower(got), "unknown tool ") || !strings.Contains(got, "delete_file") {
		t.Errorf("by its original name: got %s", got)
	}
}

// expectOriginal checks that a server received a call of callOverridden with the original name and
// arguments.
func expectOriginal(t *testing.T, r *mcptest.Received, placeholder bool) {
	t.Helper()
	want := `delete_file {"path":"a","root":"/srv"}`
	if r.Tool() == "b" {
		want = `b {}`
	}
	if got := r.Tool() + " " + r.Param("arguments"); got != want {
		t.Errorf("the server received %s, want %s", got, want)
	}
	if header := r.HTTP.Header.Get("Mcp-Name"); header != "" && header != r.Tool() {
		t.Errorf("the server received the header %s for %s", header, r.Tool())
	}
	if header := r.HTTP.Header.Get("X-Tool"); placeholder && header != r.Tool() {
		t.Errorf("the placeholder is %s, want %s", header, r.Tool())
	}
}

// expectOverridden checks that the client sees the overridden tools.
func (c caller) expectOverridden(t *testing.T, server string) {
	t.Helper()
	want := strings.Replace(removeTool, "remove_file", c.endpoint.alias(server, "remove_file"), 1)
	if c.endpoint.searched {
		if got := c.endpoint.descriptor(t, c.client, server, "remove_file"); got != want {
			t.Errorf("described as %s\nwant %s", got, want)
		}
		return
	}
	if got := c.names(t, server); !slices.Equal(got, []string{"remove_file", "b", "a"}) {
		t.Errorf("listed %v", got)
	}
	if got := c.ask(t, "tools/list", `{}`).Raw; !strings.Contains(got, want) {
		t.Errorf("listed %s\nwant %s", got, want)
	}
}

// Rules, rates, expose, pins, metrics and logs use the tool's original name.
func TestOverrideOriginalName(t *testing.T) {
	isolate(t)
	setenv(t, "OVERRIDE_ROOT", "/srv")
	s := newLenientServer(t, deleteTool, plainTool("read"))
	file := filepath.Join(t.TempDir(), "caddy.log")
	address := freeAddress(t)
	config := func(lines ...string) string {
		return logTo(file, storedIn(t.TempDir())) + site(address, gateway(append([]string{
			"separator __", "pin_tools on", overridden(s.line("far"), append(lines, "expose delete_* read")...),
			block("client ann", "token token-of-ann", "deny far::delete_file"),
			block("client bob", "token token-of-bob", "allow far::delete_file", "rate far::delete_file 1/1h"),
		}, "name pinned")...))
	}
	load(t, config(removing))
	connect := func(kind, token string) caller {
		way := toolEndpoints("http://"+address, "")[map[string]int{"joined": 0, "single": 1}[kind]]
		return caller{endpoint: way, client: newTestClient(t, way.url("far"), false, `{}`, "Authorization: Bearer "+token)}
	}
	for _, kind := range []string{"joined", "single"} {
		ann := connect(kind, "token-of-ann")
		if got := ann.names(t, "far"); !slices.Equal(got, []string{"read"}) {
			t.Errorf("%s: ann sees %v, want only read", kind, got)
		}
		if got := ann.use(t, "far", "remove_file", `{"path":"a"}`); got.Error == nil || s.Count("tools/call") > 0 {
			t.Errorf("%s: ann got %s", kind, got.Raw)
		}
	}
	denied := linesOfLog(t, file, "audit")
	if len(denied) != 2 || denied[0].MCPTool != "delete_file" || denied[1].MCPTool != "delete_file" {
		t.Errorf("logged %+v", denied)
	}
	bob := connect("joined", "token-of-bob")
	if got := bob.names(t, "far"); !slices.Equal(got, []string{"remove_file"}) {
		t.Errorf("bob sees %v", got)
	}
	if got := bob.use(t, "far", "remove_file", `{"path":"a"}`); got.Error != nil {
		t.Errorf("bob got %s", got.Raw)
	}
	got := connect("single", "token-of-bob").use(t, "far", "remove_file", `{"path":"a"}`)
	if got.Error == nil || s.Count("tools/call") != 1 {
		t.Errorf("bob got %s in spite of the rate limit", got.Raw)
	}
	// Another override does not change the pinned definition. Listening clients are notified of it.
	modern := newTestClient(t, joinedAt("http://"+address), true, `{}`, "Authorization: Bearer token-of-bob")
	modern.ask(t, "tools/list", `{}`)
	listening := modern.listenForChanges(t)
	load(t, config(block("tool delete_file", "rename erase_file", "arguments hidden root")))
	listening.awaitMessage(t, "notifications/tools/list_changed")
	bob = connect("joined", "token-of-bob")
	if got := bob.names(t, "far"); !slices.Equal(got, []string{"erase_file"}) || len(changes(t)) > 0 {
		t.Errorf("bob sees %v, changed: %v", got, changes(t))
	}
	s.Change(func(s *mcptest.Script) {
		s.Tools[0] = strings.Replace(deleteTool, `"root":{`, `"root":{"title":"x",`, 1)
	})
	bob = connect("joined", "token-of-bob")
	if got := connect("single", "token-of-bob").names(t, "far"); len(got) > 0 {
		t.Errorf("bob sees %v", got)
	}
	if got := changes(t); !slices.Equal(got, []string{"pinned far delete_file"}) {
		t.Errorf("changed: %v", got)
	}
	if got := bob.use(t, "far", "erase_file", `{}`); got.Error == nil {
		t.Errorf("bob got %s", got.Raw)
	}
}

// Overrides and the focus argument apply to the same schema.
func TestOverrideAndFocus(t *testing.T) {
	isolate(t)
	setenv(t, "OVERRIDE_ROOT", "/srv")
	s := logServer(t, deleteTool, `{"name":"tail","inputSchema":{"type":"object","properties":{"focus":{},"n":{}}}}`)
	url := serve(t, gateway("separator __", block("mask", "recover on"), "focus on",
		overridden(s.line("far"), removing, block("tool tail", "rename last", "arguments fixed focus mine"))))
	for _, era := range clientEras {
		for _, way := range toolEndpoints(url, "")[:2] {
			t.Run(way.name+", "+era.name, func(t *testing.T) {
				c := newCaller(t, way, "far", era.modern)
				want := `"path":{"type":"string"},` + focusArgument("focus") + `}`
				if got := way.descriptor(t, c.client, "far", "remove_file"); !strings.Contains(got, want) {
					t.Errorf("defined as %s", got)
				}
				if got := way.descriptor(t, c.client, "far", "last"); strings.Contains(got, "focus") {
					t.Errorf("defined as %s", got)
				}
				before := s.Count("tools/call")
				expectFocused(t, c.use(t, "far", "remove_file", goalArguments).Text())
				expectReceived(t, s, before, `{"path":"a","root":"/srv"}`)
				before = s.Count("tools/call")
				expectHeadAndTail(t, c.use(t, "far", "last", goalArguments).Text())
				expectReceived(t, s, before, `{"path":"a","focus":"mine"}`)
			})
		}
	}
}

// Caddy's commands see the overridden tools, too.
func TestOverrideByCommands(t *testing.T) {
	isolate(t)
	sample := block("server sample", "mcp_sample",
		block("tool echo", "rename say", "arguments fixed text fixed", `describe "Says it."`))
	config := writeCaddyfile(t, site("127.0.0.1:8080", gateway("separator __", sample)))
	served := run(t, config)
	output := func(args ...string) string {
		t.Helper()
		out, err := caddy(t, append(args, "--address", served.addresses[":2019"])...).CombinedOutput()
		if err != nil && !strings.Contains(strings.Join(args, " "), "echo") {
			t.Errorf("%v: %v: %s", args, err, out)
		}
		return string(out)
	}
	if got := output("mcp", "tools"); !strings.Contains(got, "sample__say") || strings.Contains(got, "sample__echo") {
		t.Errorf("tools: %s", got)
	}
	for _, flags := range [][]string{{}, {"--raw"}} {
		got := output(append([]string{"mcp", "call", "sample::say", "--json", `{"text":"other"}`}, flags...)...)
		if !strings.Contains(got, "fixed") || strings.Contains(got, "other") {
			t.Errorf("call %v: %s", flags, got)
		}
	}
	if got := output("mcp", "call", "sample::echo"); !strings.Contains(got, "unknown tool") {
		t.Errorf("call by the original name: %s", got)
	}
	output("mcp", "check", "sample")
	listed := send(t, client, "GET", "http://"+served.addresses[":2019"]+"/mcp_gateway/tools", "").body
	if !strings.Contains(listed, `"original":"echo"`) || strings.Count(listed, `"original"`) != 1 {
		t.Errorf("the admin API lists %s", listed)
	}
	served.stop(t)

	p := startStdio(t, config)
	p.send(t, stdioHandshake)
	p.receive(t, "")
	p.send(t, rpc("tools/list", `{}`))
	if got := p.receive(t, "").Raw; !strings.Contains(got, `"sample__say"`) || strings.Contains(got, `"sample__echo"`) {
		t.Errorf("mcp-stdio: %s", got)
	}
	p.send(t, toolCall{"sample__say", `{"text":"other"}`}.request())
	if got := toolText(t, p.receive(t, "").Raw); !strings.Contains(got, "fixed") {
		t.Errorf("mcp-stdio: %s", got)
	}
	p.close(t)
}

// A server from npm receives the fixed argument, whatever value clients send for it.
func TestOverrideOfFilesystemServer(t *testing.T) {
	isolate(t)
	peer(t, "unused")                              // skips the test if the Node.js peers are not installed
	dir, err := filepath.EvalSymlinks(t.TempDir()) // the server resolves links, too
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"a.txt": "of a", "b.txt": "of b"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	url := serve(t, patientGateway("separator __",
		block("server files stdio node "+nodeModules+"@modelcontextprotocol/server-filesystem/dist/index.js "+dir,
			"start_timeout 2m",
			block("tool read_text_file", "rename read_notes", "arguments fixed path "+filepath.Join(dir, "a.txt")))))
	for _, way := range overrideEndpoints(url, "")[:2] {
		for _, era := range clientEras {
			if way.name == "single" && era.modern {
				continue // requests pass unchanged
			}
			c := newCaller(t, way, "files", era.modern)
			for _, arguments := range []string{`{}`, `{"path":` + quote(filepath.Join(dir, "b.txt")) + `}`} {
				if got := c.use(t, "files", "read_notes", arguments).Text(); got != "of a" {
					t.Errorf("%s, %s: got %s", way.name, era.name, got)
				}
			}
		}
	}
}
