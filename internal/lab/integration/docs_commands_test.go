package integration

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
)

// A command is a command block of a document, with the documented output.
type command struct {
	typed  string
	output string // empty if not documented
}

// commandBlocks matches a block of commands. A block that directly follows is the output.
var commandBlocks = regexp.MustCompile("(?m)^```sh\n([^`]*)^```\n(?:\n^```\n([^`]*)^```\n)?")

// commands returns the commands of a document. The path is relative to the project.
func commands(t *testing.T, document string) (found []command) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../..", document))
	if err != nil {
		t.Fatal(err)
	}
	found = commandsIn(string(text))
	if blocks := strings.Count(string(text), "```sh\n"); len(found) != blocks {
		t.Fatalf("%s: only %d of %d command blocks were parsed", document, len(found), blocks)
	}
	return found
}

// commandsIn returns the commands in an excerpt of a document.
func commandsIn(text string) (found []command) {
	for _, block := range commandBlocks.FindAllStringSubmatch(text, -1) {
		found = append(found, command{block[1], block[2]})
	}
	return found
}

// runCommands runs commands in order in one shell, in the project's folder, and returns the output
// of each.
func runCommands(t *testing.T, served *caddyProcess, typed []command) []string {
	t.Helper()
	shell := exec.CommandContext(t.Context(), "bash", "-c")
	shell.Dir = "../../.."
	shell.Env = append(os.Environ(), "CADDY_ADMIN="+served.addresses[":2019"]) // the admin address that commands use
	return runCommandsIn(t, shell, served, typed)
}

// runCommandsIn is runCommands with a shell command that is prepared to run with -c.
func runCommandsIn(t *testing.T, shell *exec.Cmd, served *caddyProcess, typed []command) []string {
	t.Helper()
	const end = "-- end of output --"
	var script strings.Builder
	for _, c := range typed {
		script.WriteString(c.typed + "echo; echo '" + end + "'\n")
	}
	calls := replaceAddresses(script.String(), served)
	for port, address := range served.addresses {
		if port != ":2019" { // a shell function in the README takes the other ports as numbers
			calls = strings.ReplaceAll(calls, "tell "+port[1:], "tell "+address[strings.LastIndex(address, ":")+1:])
		}
	}
	shell.Args = append(shell.Args, calls)
	out, err := shell.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return strings.Split(string(out), end)
}

// The commands of these documents run against the binary with the shipped Caddyfile. Their
// output must match the documented output.
func TestDocumentedCalls(t *testing.T) {
	isolate(t)
	for _, document := range []string{"README.md", "docs/mcp_pruner.md", "docs/tool_result_mask.md"} {
		t.Run(document, func(t *testing.T) {
			var typed []command
			for _, c := range commands(t, document) {
				if c.output != "" {
					typed = append(typed, c)
				}
			}
			if len(typed) == 0 {
				t.Fatal("no commands with their output")
			}
			got := runCommands(t, run(t, "../../../Caddyfile"), typed)
			for i, c := range typed {
				same(t, someSeconds.ReplaceAllString(strings.TrimSpace(got[i]), "0.0 s"), strings.TrimSpace(c.output))
			}
		})
	}
}

// The commands of docs/access.md: a signed request, and the approval of changed tools, which do
// not exist here.
func TestAccessCommands(t *testing.T) {
	isolate(t)
	for _, name := range []string{"openssl", "curl"} {
		if _, err := exec.LookPath(name); err != nil {
			skipMissing(t, err.Error())
		}
	}
	file := filepath.Join(t.TempDir(), "Caddyfile")
	if err := os.WriteFile(file, []byte(`:8080 {
	bind 127.0.0.1
	mcp_gateway {
		auth hmac {
			client alice {env.ALICE_SECRET}
		}
		server files {
			mcp_sample
		}
	}
}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	secret := "ALICE_SECRET=" + strings.Repeat("s", 32)
	shell := exec.CommandContext(t.Context(), "bash", "-c")
	shell.Env = append(os.Environ(), secret)
	got := runCommandsIn(t, shell, run(t, file, secret), commands(t, "docs/access.md"))
	for i, want := range []string{`"name":"read_log"`, `"code":"not_found"`} {
		if !strings.Contains(got[i], want) {
			t.Errorf("%s is not in %s", want, got[i])
		}
	}
}

// blocksOf returns the code blocks of a language in a document. The path is relative to the
// project.
func blocksOf(t *testing.T, document, language string) (blocks []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../..", document))
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		blocks = append(blocks, block[1])
	}
	if len(blocks) == 0 {
		t.Fatalf("%s has no %s block", document, language)
	}
	return blocks
}

// The commands of docs/operate.md run against the example that the page describes. None may fail.
func TestOperateCommands(t *testing.T) {
	isolate(t)
	typed := commands(t, "docs/operate.md")
	got := runCommands(t, run(t, "../../../caddyfile_examples/mcp_gateway_operate.Caddyfile"), typed)
	for i, c := range typed {
		switch {
		case c.output != "":
			same(t, strings.TrimSpace(got[i]), strings.TrimSpace(c.output))
		case strings.TrimSpace(got[i]) == "" || strings.Contains(got[i], `"error":`):
			t.Errorf("%s\n%s", c.typed, got[i])
		}
	}
}

// TestOperateBehindNginx uses the nginx configuration of docs/operate.md: the gateway accepts
// the public host name, and nginx does not delay events.
func TestOperateBehindNginx(t *testing.T) {
	isolate(t)
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		skipMissing(t, "nginx is not installed")
	}
	served := run(t, writeCaddyfile(t, block(":8080", "bind 127.0.0.1", gateway("separator __", "hosts mcp.example.com",
		child("child")))))
	public, dir := freeAddress(t), t.TempDir()
	location := strings.Replace(blocksOf(t, "docs/operate.md", "nginx")[0], "127.0.0.1:8080", served.address, 1)
	var temporary strings.Builder
	for _, name := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		fmt.Fprintf(&temporary, "%s_temp_path %s;\n", name, filepath.Join(dir, name))
	}
	config := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(config, []byte("daemon off; master_process off; error_log stderr notice; pid "+
		filepath.Join(dir, "pid")+";\nevents {}\nhttp {\naccess_log off;\n"+temporary.String()+
		"server {\nlisten "+public+";\n"+location+"}\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), nginx, "-e", "stderr", "-c", config)
	start(t, cmd, "using the") // last notice before it serves: "using the "epoll" event method"
	await.Until(t, "nginx to listen", func() bool {
		conn, err := net.Dial("tcp", public)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})

	req := request(t, t.Context(), "POST", rpcAt("http://"+public, "child"), rpc("ping", `{}`))
	req.Host = "mcp.example.com"
	if status, body, err := doRequest(client, req); err != nil || status != 200 {
		t.Fatalf("%v: %d %s", err, status, body)
	}
	c := newTestClient(t, joinedAt("http://"+public), false, `{}`)
	stream := c.listenForChanges(t)
	for i := range 5 { // too few to fill a buffer; events sent before the stream is open are lost
		c.ask(t, "tools/call", fmt.Sprintf(`{"name":"child__add-tool","arguments":{"name":"new_%d"}}`, i))
		select {
		case m := <-stream.Messages:
			if m.Method != listChanged {
				t.Errorf("got %s", m.Raw)
			}
			return
		case <-time.After(patience / 5):
		}
	}
	t.Error("no event arrived")
}

// TestOperateState checks the table of docs/operate.md: which state survives a reload, and which
// a restart.
func TestOperateState(t *testing.T) {
	isolate(t)
	file := func(kept, changed string) string {
		return block(":8080", "bind 127.0.0.1", gateway("separator __", "session_key {env.MCP_SESSION_KEY}",
			block("mask 100 40 40", block("recover on", "max_entries "+kept)),
			child("child"), block(child("changed"), "env CHANGED "+changed)))
	}
	key := "MCP_SESSION_KEY=" + strings.Repeat("k", 32)
	before := run(t, writeCaddyfile(t, file("10", "no")), key)
	c := newTestClient(t, "http://"+before.address+"/mcp", false, `{}`)
	read := func(tool, arguments string) string {
		t.Helper()
		return c.ask(t, "tools/call", `{"name":`+quote(tool)+`,"arguments":`+arguments+`}`).answer.Text()
	}
	pid, changing := read("child__pid", `{}`), read("changed__pid", `{}`)
	id := regexp.MustCompile(`obs_\w+`).FindString(read("child__big", `{"n":300}`))
	recovered := func() bool {
		return !strings.HasPrefix(read("recover_observation", `{"id":"`+id+`"}`), "Nothing is kept")
	}
	if id == "" || !recovered() {
		t.Fatalf("the original is not kept: %q", id)
	}
	reload := func(text string) {
		t.Helper()
		ports := strings.NewReplacer(":8080", before.address[strings.LastIndex(before.address, ":"):])
		if err := os.WriteFile(configOf(before), []byte(withAdmin(ports.Replace(text), before.addresses[":2019"])),
			0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := caddy(t, "reload", "--config", configOf(before), "--address",
			before.addresses[":2019"]).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		before.awaitReload(t)
	}

	reload(file("10", "yes"))
	if got := read("child__pid", `{}`); got != pid {
		t.Errorf("another child after a reload: got pid %s, want %s", got, pid)
	}
	if got := read("changed__pid", `{}`); got == changing {
		t.Errorf("the child with another environment was not replaced: pid %s", got)
	}
	if !recovered() {
		t.Error("the original is gone after a reload")
	}
	reload(file("20", "yes"))
	if recovered() {
		t.Error("the original is still there with other limits")
	}
	if id2 := regexp.MustCompile(`obs_\w+`).FindString(read("child__big", `{"n":300}`)); id2 != id || !recovered() {
		t.Errorf("the same result got another id: %s, %s", id, id2)
	}

	before.stop(t)
	after := run(t, writeCaddyfile(t, file("20", "yes")), key)
	c.URL = "http://" + after.address + "/mcp"
	if got := read("child__pid", `{}`); got == pid {
		t.Errorf("the child survived a restart: pid %s", got)
	}
	if recovered() {
		t.Error("the original is still there after a restart")
	}
}
