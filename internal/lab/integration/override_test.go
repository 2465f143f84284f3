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

// deleteTool is a tool of which clients do not see all, and removeTool is how they see it.
const (
	deleteTool = `{"name":"delete_file","description":"old","inputSchema":{"type":"object","properties":{` +
		`"path":{"type":"string"},"root":{"type":"string"},"debug":{"type":"boolean"}},"required":["path","root"]}}`
	removeTool = `{"name":"remove_file","inputSchema":{"type":"object","properties":{` +
		`"path":{"type":"string"}},"required":["path"]},"description":"Removes one file for good.",` +
		`"title":"Remove a file","annotations":{"readOnlyHint":false,"destructiveHint":true}}`
	coveredTool = `{"name":"remove_file","description":"another","inputSchema":{"type":"object"}}`
)

// removing is the block of deleteTool in a server.
var removing = block("tool delete_file", "rename remove_file", `describe "Removes one file for good."`,
	`annotate title "Remove a file"`, "annotate destructive on", "arguments fixed root {env.OVERRIDE_ROOT}",
	"arguments hidden debug")

// overridden returns a line of a server with a block.
func overridden(server string, lines ...string) string {
	if before, ok := strings.CutSuffix(server, "\n}"); ok {
		return before + "\n" + strings.Join(lines, "\n") + "\n}"
	}
	return block(server, lines...)
}

// overrideWays are all ways to a tool: those of focusWays, and by plain POST.
func overrideWays(url, searched string) []focusWay {
	ways := focusWays(url, searched)
	plain := ways[1]
	plain.name, plain.at = "rpc", func(server string) string { return rpcAt(url, server) }
	return append(ways, plain)
}

// A caller calls a tool by one of the ways.
type caller struct {
	way    focusWay
	client *speaker // nil by plain POST
	url    string
}

func newCaller(t *testing.T, way focusWay, server string, modern bool) caller {
	t.Helper()
	if way.name == "rpc" {
		return caller{way: way, url: way.at(server)}
	}
	return caller{way: way, client: newSpeaker(t, way.at(server), modern, `{}`)}
}

// ask makes a request.
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
	return c.ask(t, "tools/call", c.way.call(c.way.shown(server, tool), arguments))
}

// names returns those of the tools of a server.
func (c caller) names(t *testing.T, server string) (names []string) {
	t.Helper()
	var list struct{ Tools []struct{ Name string } }
	got := c.ask(t, "tools/list", `{}`)
	if err := json.Unmarshal(got.Result, &list); err != nil {
		t.Fatalf("%v: %s", err, got.Raw)
	}
	for _, tool := range list.Tools {
		if name, ok := strings.CutPrefix(tool.Name, c.way.shown(server, "")); ok {
			names = append(names, name)
		}
	}
	return names
}

// Whichever way a client comes, it sees the tool as the operator says, and the server gets what the operator says.
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
	for _, way := range overrideWays("http://"+addresses[0], "http://"+addresses[1]) {
		for _, era := range clientEras {
			for name, s := range map[string]*remoteServer{"far": far, "old": old} {
				passes := way.name == "rpc" || way.name == "single" && era.modern // requests as they are
				if passes && name == "old" || way.name == "rpc" && era.modern {
					continue
				}
				t.Run(way.name+", "+era.name+", "+name, func(t *testing.T) {
					c := newCaller(t, way, name, era.modern)
					before := s.Count("tools/call")
					c.callOverridden(t, name)
					for _, r := range s.Received("tools/call")[before:] {
						gotOriginal(t, r, name == "far")
					}
					if n := s.Count("tools/call") - before; n != 4 {
						t.Errorf("the server got %d calls, want 4", n)
					}
					c.seesOverridden(t, name)
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
		t.Errorf("hidden tools are logged %d times", hidden)
	}
}

// plainTool is a tool that takes anything.
func plainTool(name string) string {
	return `{"name":` + quote(name) + `,"inputSchema":{"type":"object"}}`
}

// callOverridden makes four calls that the server gets, and others that it does not.
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
	if !strings.Contains(strings.ToLower(got), "there is no tool ") || !strings.Contains(got, "delete_file") {
		t.Errorf("by its own name: got %s", got)
	}
}

// gotOriginal fails the test unless a server got one of the calls of callOverridden as it should.
func gotOriginal(t *testing.T, r *mcptest.Received, placeholder bool) {
	t.Helper()
	want := `delete_file {"path":"a","root":"/srv"}`
	if r.Tool() == "b" {
		want = `b {}`
	}
	if got := r.Tool() + " " + r.Param("arguments"); got != want {
		t.Errorf("the server got %s, want %s", got, want)
	}
	if header := r.HTTP.Header.Get("Mcp-Name"); header != "" && header != r.Tool() {
		t.Errorf("the server got the header %s for %s", header, r.Tool())
	}
	if header := r.HTTP.Header.Get("X-Tool"); placeholder && header != r.Tool() {
		t.Errorf("the placeholder is %s for %s", header, r.Tool())
	}
}

// seesOverridden fails the test unless the client sees the tools as it should.
func (c caller) seesOverridden(t *testing.T, server string) {
	t.Helper()
	want := strings.Replace(removeTool, "remove_file", c.way.shown(server, "remove_file"), 1)
	if c.way.find {
		if got := c.way.descriptor(t, c.client, server, "remove_file"); got != want {
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

// Rules, rates, expose, pins, metrics and logs know the tool by the name that the server has for it.
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
	at := func(kind, token string) caller {
		way := focusWays("http://"+address, "")[map[string]int{"joined": 0, "single": 1}[kind]]
		return caller{way: way, client: newSpeaker(t, way.at("far"), false, `{}`, "Authorization: Bearer "+token)}
	}
	for _, kind := range []string{"joined", "single"} {
		ann := at(kind, "token-of-ann")
		if got := ann.names(t, "far"); !slices.Equal(got, []string{"read"}) {
			t.Errorf("%s: ann sees %v", kind, got)
		}
		if got := ann.use(t, "far", "remove_file", `{"path":"a"}`); got.Error == nil || s.Count("tools/call") > 0 {
			t.Errorf("%s: ann gets %s", kind, got.Raw)
		}
	}
	denied := linesOfLog(t, file, "audit")
	if len(denied) != 2 || denied[0].MCPTool != "delete_file" || denied[1].MCPTool != "delete_file" {
		t.Errorf("logged %+v", denied)
	}
	bob := at("joined", "token-of-bob")
	if got := bob.names(t, "far"); !slices.Equal(got, []string{"remove_file"}) {
		t.Errorf("bob sees %v", got)
	}
	if got := bob.use(t, "far", "remove_file", `{"path":"a"}`); got.Error != nil {
		t.Errorf("bob gets %s", got.Raw)
	}
	got := at("single", "token-of-bob").use(t, "far", "remove_file", `{"path":"a"}`)
	if got.Error == nil || s.Count("tools/call") != 1 {
		t.Errorf("bob gets %s in spite of the rate", got.Raw)
	}
	// Another override is not another definition, and clients that listen are told of it.
	modern := newSpeaker(t, joinedAt("http://"+address), true, `{}`, "Authorization: Bearer token-of-bob")
	modern.ask(t, "tools/list", `{}`)
	listening := modern.listens(t)
	load(t, config(block("tool delete_file", "rename erase_file", "arguments hidden root")))
	listening.hears(t, "notifications/tools/list_changed")
	bob = at("joined", "token-of-bob")
	if got := bob.names(t, "far"); !slices.Equal(got, []string{"erase_file"}) || len(changes(t)) > 0 {
		t.Errorf("bob sees %v, changed: %v", got, changes(t))
	}
	s.Change(func(s *mcptest.Script) {
		s.Tools[0] = strings.Replace(deleteTool, `"root":{`, `"root":{"title":"x",`, 1)
	})
	bob = at("joined", "token-of-bob")
	if got := at("single", "token-of-bob").names(t, "far"); len(got) > 0 {
		t.Errorf("bob sees %v", got)
	}
	if got := changes(t); !slices.Equal(got, []string{"pinned far delete_file"}) {
		t.Errorf("changed: %v", got)
	}
	if got := bob.use(t, "far", "erase_file", `{}`); got.Error == nil {
		t.Errorf("bob gets %s", got.Raw)
	}
}

// The argument that the gateway adds, and those that it takes away, are those of one schema.
func TestOverrideAndFocus(t *testing.T) {
	isolate(t)
	setenv(t, "OVERRIDE_ROOT", "/srv")
	s := logServer(t, deleteTool, `{"name":"tail","inputSchema":{"type":"object","properties":{"focus":{},"n":{}}}}`)
	url := serve(t, gateway("separator __", block("mask", "recover on"), "focus on",
		overridden(s.line("far"), removing, block("tool tail", "rename last", "arguments fixed focus mine"))))
	for _, era := range clientEras {
		for _, way := range focusWays(url, "")[:2] {
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
				isFocused(t, c.use(t, "far", "remove_file", goalArguments).Text())
				hasGot(t, s, before, `{"path":"a","root":"/srv"}`)
				before = s.Count("tools/call")
				isHeadAndTail(t, c.use(t, "far", "last", goalArguments).Text())
				hasGot(t, s, before, `{"path":"a","focus":"mine"}`)
			})
		}
	}
}

// The commands of Caddy go the same way as clients.
func TestOverrideByCommands(t *testing.T) {
	isolate(t)
	sample := block("server sample", "mcp_sample",
		block("tool echo", "rename say", "arguments fixed text fixed", `describe "Says it."`))
	config := inFile(t, site("127.0.0.1:8080", gateway("separator __", sample)))
	served := run(t, config)
	output := func(args ...string) string {
		t.Helper()
		out, err := caddy(t, append(args, "--address", served.moved[":2019"])...).CombinedOutput()
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
	if got := output("mcp", "call", "sample::echo"); !strings.Contains(got, "there is no tool") {
		t.Errorf("call by its own name: %s", got)
	}
	output("mcp", "check", "sample")
	listed := send(t, client, "GET", "http://"+served.moved[":2019"]+"/mcp_gateway/tools", "").body
	if !strings.Contains(listed, `"original":"echo"`) || strings.Count(listed, `"original"`) != 1 {
		t.Errorf("the admin API lists %s", listed)
	}
	served.stop(t)

	p := startStdio(t, config)
	p.say(t, stdioGreeting)
	p.hear(t, "")
	p.say(t, rpc("tools/list", `{}`))
	if got := p.hear(t, "").Raw; !strings.Contains(got, `"sample__say"`) || strings.Contains(got, `"sample__echo"`) {
		t.Errorf("mcp-stdio: %s", got)
	}
	p.say(t, toolCall{"sample__say", `{"text":"other"}`}.request())
	if got := toolText(t, p.hear(t, "").Raw); !strings.Contains(got, "fixed") {
		t.Errorf("mcp-stdio: %s", got)
	}
	p.end(t)
}

// A server of npm takes the arguments that clients do not see, and none of those that they send in their place.
func TestOverrideOfFilesystemServer(t *testing.T) {
	isolate(t)
	peer(t, "unused")                              // skips the test where none are installed
	dir, err := filepath.EvalSymlinks(t.TempDir()) // as servers see it
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"a.txt": "of a", "b.txt": "of b"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	url := serve(t, gateway("separator __", "join_timeout 2m", "response_timeout 2m",
		block("server files stdio node "+modulesOfNode+"@modelcontextprotocol/server-filesystem/dist/index.js "+dir,
			"start_timeout 2m",
			block("tool read_text_file", "rename read_notes", "arguments fixed path "+filepath.Join(dir, "a.txt")))))
	for _, way := range overrideWays(url, "")[:2] {
		for _, era := range clientEras {
			if way.name == "single" && era.modern {
				continue // requests pass as they are
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
