package integration

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
)

// A commandRun is the outcome of a command.
type commandRun struct {
	stdout, stderr string
	status         int
}

// runCommand runs `caddy mcp …`.
func runCommand(t *testing.T, input string, args ...string) commandRun {
	t.Helper()
	cmd := caddy(t, append([]string{"mcp"}, args...)...)
	var out, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &stderr
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return commandRun{out.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// A hungServer is a child process that never responds.
type hungServer struct{ line, file string }

func newHungServer(t *testing.T) hungServer {
	file := filepath.Join(t.TempDir(), "pid")
	return hungServer{fmt.Sprintf("server hung stdio sh -c %q", "echo $$ > "+file+"; exec sleep 1000"), file}
}

// pid returns its process ID, 0 if it was not started.
func (h hungServer) pid() int {
	text, _ := os.ReadFile(h.file)
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return pid
}

// The check reports servers that are up, and servers that are down for different reasons, with and
// without a running Caddy.
func TestCommandCheck(t *testing.T) {
	isolate(t)
	hung, journal := newHungServer(t), newJournal(t)
	dead := freeAddress(t)
	up := []string{block("server sample", "mcp_sample"), block(child("kid"), journal.env())}
	down := []string{
		"server dead http://" + dead + "/mcp?key=secret", `server broken stdio sh -c "echo no key >&2; exit 3"`,
		"server gone stdio /no/such/program",
		hung.line,
	}
	config := writeCaddyfile(t,
		site("127.0.0.1:8080", gateway(slices.Concat(up, down,
			[]string{"separator __", "auth token {\nann {env.NOT_SET}\n}"})...)))
	running := writeCaddyfile(t, site("127.0.0.1:8080", gateway(slices.Concat(up, down, []string{"separator __"})...)))
	served := run(t, running)
	lines := map[string]string{
		"sample": `up in \d+\.\d s +4 tools +0 prompts +0 resources +\d+ tokens`,
		"kid":    `up in \d+\.\d s +\d+ tools +\d+ prompts? +\d+ resources? +[\d,]+ tokens`,
		"dead":   `down: connect: connection refused \(http://` + regexp.QuoteMeta(dead) + `/mcp\)`,
		"broken": `down: exited with status 3 during initialize`,
		"gone":   `down: .*/no/such/program`,
		"hung":   `down: no response within 3s`,
	}
	for name, target := range map[string][]string{
		"the running Caddy": {"--address", served.addresses[":2019"]},
		"a file":            {"--config", config},
	} {
		t.Run(name, func(t *testing.T) {
			all := runCommand(t, "", append([]string{"check", "--timeout", "3s"}, target...)...)
			if all.status != 1 || all.stderr != "" {
				t.Errorf("status %d: %s", all.status, all.stderr)
			}
			for server, line := range lines {
				if !regexp.MustCompile(`(?m)^` + server + ` +` + line).MatchString(all.stdout) {
					t.Errorf("%s: got\n%s", server, all.stdout)
				}
			}
			if strings.Contains(all.stdout, "secret") {
				t.Errorf("the output contains a query:\n%s", all.stdout)
			}
			two := runCommand(t, "", append([]string{"check", "sample", "kid", "--json"}, target...)...)
			var checks []struct {
				Name, Code string
				Up         bool
				Tools      int
				Info       struct{ Name string } `json:"server_info"`
			}
			if err := json.Unmarshal([]byte(two.stdout), &checks); err != nil || two.status != 0 || len(checks) != 2 ||
				!checks[0].Up || checks[0].Tools != 4 || checks[0].Info.Name != "sample" || !checks[1].Up {
				t.Errorf("status %d, %v: %s%s", two.status, err, two.stdout, two.stderr)
			}
			none := runCommand(t, "", append([]string{"check", "nope"}, target...)...)
			if none.status != 1 || none.stderr != "Error: unknown server \"nope\"; the servers are sample, kid, dead, "+
				"broken, gone, hung\n" {
				t.Errorf("status %d: %s", none.status, none.stderr)
			}
		})
	}
	listed := runCommand(t, "", "servers", "--address", served.addresses[":2019"])
	for _, line := range []string{
		`sample +handlers`, `kid +\S+ +healthy .* ago`, `dead +http://` + dead + `/mcp `,
		`broken +sh +unhealthy .*exited with status 3`, `gone +/no/such/program `,
	} {
		if listed.status != 0 || !regexp.MustCompile(`(?m)^`+line).MatchString(listed.stdout) {
			t.Errorf("%s: got\n%s", line, listed.stdout)
		}
	}
	served.stop(t)
	for _, e := range journal.entries(t, "start") {
		if processRuns(e.PID) {
			t.Errorf("the child %d still runs", e.PID)
		}
	}
	if pid := hung.pid(); pid == 0 || processRuns(pid) {
		t.Errorf("the process %d still runs", pid)
	}
}

// An interrupted check without a running Caddy leaves no child.
func TestCommandCheckInterrupted(t *testing.T) {
	isolate(t)
	hung := newHungServer(t)
	cmd := caddy(t, "mcp", "check", "--config", writeCaddyfile(t, site("127.0.0.1:8080", gateway(hung.line))))
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the child", func() bool { return hung.pid() != 0 })
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("%v: %s", err, &said)
	}
	if processRuns(hung.pid()) {
		t.Errorf("the process %d still runs", hung.pid())
	}
}

// Without a running Caddy, the Caddyfile of the directory is checked.
func TestCommandCheckOfDirectory(t *testing.T) {
	isolate(t)
	file := writeCaddyfile(t, site("127.0.0.1:8080", gateway(block("server sample", "mcp_sample"))))
	for _, tt := range []struct {
		name, dir, out, stderr string
		status                 int
	}{
		{"a Caddyfile", filepath.Dir(file), "sample  up in ", "running the gateways of Caddyfile: no Caddy is running\n", 0},
		{"no Caddyfile", t.TempDir(), "", "Error: no Caddy is running: ", 1},
	} {
		cmd := caddy(t, "mcp", "check")
		cmd.Dir = tt.dir
		cmd.Env = append(cmd.Env, "CADDY_ADMIN="+freeAddress(t))
		var out, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &stderr
		_ = cmd.Run()
		if cmd.ProcessState.ExitCode() != tt.status || !strings.HasPrefix(out.String(), tt.out) ||
			!strings.HasPrefix(stderr.String(), tt.stderr) {
			t.Errorf("%s: %d %s%s", tt.name, cmd.ProcessState.ExitCode(), &out, &stderr)
		}
	}
}

// If files of servers_from yield no server, the check says why.
func TestCommandCheckWithoutServers(t *testing.T) {
	isolate(t)
	folder := t.TempDir()
	file, missing := filepath.Join(folder, "mcp.json"), filepath.Join(folder, "none.json")
	const servers = `{"mcpServers":{"a":{"command":"x","args":["${NOT_SET_IN_TESTS}"]}}}`
	if err := os.WriteFile(file, []byte(servers), 0o600); err != nil {
		t.Fatal(err)
	}
	got := runCommand(t, "", "check", "--config",
		writeCaddyfile(t, site("127.0.0.1:8080", gateway("separator __", "servers_from "+file+" "+missing))))
	want := file + ":1: a: left out, because its command or URL needs environment variables that are not set: " +
		"NOT_SET_IN_TESTS\nnot used: " + missing + ": no such file or directory\n" +
		"Error: no mcp_gateway is running, or it has no servers\n"
	if got.status != 1 || got.stdout != "" || got.stderr != want {
		t.Errorf("%d %s%s", got.status, got.stdout, got.stderr)
	}
}

// The command calls tools as an agent, or directly at the server.
func TestCommandCall(t *testing.T) {
	isolate(t)
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("from a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	config := writeCaddyfile(t, site("127.0.0.1:8080", gateway("separator __", block("mask 400 200 200", "recover on"),
		block("server sample", "mcp_sample"),
		child("kid"), "server dead http://"+freeAddress(t)+"/mcp",
		block("client ann", "allow sample::* kid::echo", "deny kid::*", `redact "s[0-9]cret"`))))
	served := run(t, config)
	private := writeCaddyfile(t, "{\nadmin off\n}\n"+site("127.0.0.1:8080", gateway("separator __", "mask 400 200 200",
		block("server sample", "mcp_sample"), child("kid"))))
	addressArgs := []string{"--address", served.addresses[":2019"]}
	for _, tt := range []struct {
		name, input string
		args        []string
		out, stderr string // regular expressions
		status      int
	}{
		{"masked", "", []string{"sample::read_log", "lines=100"},
			`(?s)\A2026-.*MASKED original_chars=\d+ head=200 tail=200 id=obs_.*next_retry=30s\n\z`, "", 0},
		{"raw", "", []string{"sample__read_log", "lines=100", "--raw"},
			`\A\{"content":\[\{"type":"text","text":"2026.*path=/orders/5676.*\]\}\n\z`, "", 0},
		{"sizes", "", []string{"sample::read_log", "lines=100", "-v"}, `MASKED`,
			`\A[\d,]{6,} bytes from the server, \d{3} after masking, \d+\.\d\d s\n\z`, 0},
		{"JSON", "", []string{"sample::echo", `text:="a b"`}, `\Aa b\n\z`, "", 0},
		{"an object", "", []string{"sample::echo", "--json", `{"text":"x"}`}, `\Ax\n\z`, "", 0},
		{"standard input", `{"text":"typed"}`, []string{"sample::echo", "-"}, `\Atyped\n\z`, "", 0},
		{"a file", "", []string{"sample::echo", "text=@" + text}, `\Afrom a file\n\z`, "", 0},
		{"control characters in a pipe", "", []string{"sample::echo", `text:="\u001b[2J"`}, `\A\x1b\[2J\n\z`, "", 0},
		{"a child", "", []string{"kid::echo", "text=x"}, `x`, "", 0},
		{"a client", "", []string{"sample::echo", "text=a s3cret", "--client", "ann"}, `\Aa \[redacted\]\n\z`, "", 0},
		{"a client, raw", "", []string{"sample::echo", "text=a s3cret", "--client", "ann", "--raw"}, `a s3cret`, "", 0},
		{"a denied client", "", []string{"kid::pid", "--client", "ann"}, `\A\z`, `\AError: .*\(acl_denied\)\n\z`, 1},
		{"an unknown client", "", []string{"kid::pid", "--client", "bob"}, `\A\z`,
			`\AError: unknown client "bob" \(not_found\)\n\z`, 1},
		{"an unknown tool", "", []string{"sample::read_lug"}, `\A\z`, `similar names: sample__read_log`, 1},
		{"an unknown argument", "", []string{"sample::echo", "txt=1"}, `\A\z`, `unknown argument "txt"; the tool has: text`,
			1},
		{"a wrong type", "", []string{"sample::read_log", "lines=x"}, `\A\z`, `lines: "x" is not of type integer`, 1},
		{"a result that is an error", "", []string{"recover_observation", "id=obs_none"}, `\A\z`,
			`Nothing is kept under the id "obs_none"`, 1},
		{"a server that is down", "", []string{"dead::x"}, `\A\z`,
			`\AError: MCP server dead is unavailable: connection refused; the gateway keeps trying \(connect_error\)\n\z`, 1},
		{"a tool with a server request", "", []string{"kid::ask", "--json", `{"method":"elicitation/create"}`}, `\A\z`,
			`the client does not support this request`, 1},
		{"without a running Caddy", "", []string{"kid::echo", "text=x", "--config", private}, `x`,
			`\Arunning the gateways of .*: the admin API is disabled\n\z`, 0},
		{"a failure without a running Caddy", "", []string{"kid::nope", "--config", private}, `\A\z`,
			`unknown tool "kid::nope"`, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			args := append([]string{"call"}, tt.args...)
			if !slices.Contains(args, "--config") {
				args = append(args, addressArgs...)
			}
			got := runCommand(t, tt.input, args...)
			if got.status != tt.status || !regexp.MustCompile(tt.out).MatchString(got.stdout) ||
				!regexp.MustCompile(tt.stderr).MatchString(got.stderr) {
				t.Errorf("status %d:\n%.1000s\n%s", got.status, got.stdout, got.stderr)
			}
			if tt.stderr == "" && tt.status == 0 && got.stderr != "" {
				t.Errorf("got stderr %s", got.stderr)
			}
		})
	}
	logged := served.stop(t)
	for _, part := range []string{`"action":"call","gateway":"","mcp_server":"sample","name":"sample::read_log"`,
		`"outcome":"acl_denied","client":"ann"`} {
		if !strings.Contains(logged, part) {
			t.Errorf("%s is not in the log:\n%s", part, logged)
		}
	}
	if strings.Contains(logged, "s3cret") {
		t.Error("the log contains arguments")
	}
}

// For a server that needs a login, the commands say how to log in.
func TestCommandCheckLogin(t *testing.T) {
	isolate(t)
	a := startAuthServer(t, nil)
	g := startGateway(t, t.TempDir(), a.line("oauth"))
	check := runCommand(t, "", "check", "--address", g.admin)
	if check.status != 1 || check.stdout != "notes  login required: caddy mcp login notes\n" {
		t.Errorf("check: %d %s%s", check.status, check.stdout, check.stderr)
	}
	call := runCommand(t, "", "call", "notes::read", "--address", g.admin)
	if call.status != 1 || call.stderr != "Error: login required: caddy mcp login notes (login_required)\n" {
		t.Errorf("call: %d %s%s", call.status, call.stdout, call.stderr)
	}
	listed := runCommand(t, "", "servers", "--address", g.admin)
	if !strings.Contains(listed.stdout, "login required: caddy mcp login notes\n") {
		t.Errorf("servers: %s", listed.stdout)
	}
}

// On a terminal, results cannot send control sequences, and progress is shown.
func TestCommandCallOnTerminal(t *testing.T) {
	isolate(t)
	script, err := exec.LookPath("script")
	if err != nil {
		t.Skip("script, which creates a terminal, is not installed")
	}
	served := run(t, writeCaddyfile(t,
		site("127.0.0.1:8080", gateway("separator __", block("server sample", "mcp_sample"), child("kid")))))
	for _, tt := range []struct{ name, args, want, not string }{
		{"control characters", `sample::echo 'text:="a\u001b[2Jb\tc"'`, `a\x1b[2Jb` + "\tc", "\x1b[2J"},
		{"progress", `kid::progress steps=2`, "progress 1/2", "notifications"},
	} {
		cmd := caddy(t)
		line := fmt.Sprintf("%s mcp call %s --address %s", cmd.Path, tt.args, served.addresses[":2019"])
		terminal := exec.CommandContext(t.Context(), script, "-qec", line, "/dev/null")
		terminal.Env, terminal.Dir = cmd.Env, cmd.Dir
		out, err := terminal.CombinedOutput()
		if err != nil || !strings.Contains(string(out), tt.want) || strings.Contains(string(out), tt.not) {
			t.Errorf("%s: %v: %q", tt.name, err, out)
		}
	}
}

// `caddy mcp servers` says which servers have not been tried yet.
func TestUntriedServers(t *testing.T) {
	isolate(t)
	url := serve(t, gateway(child("alpha")))
	const hint = "idle and unknown servers have not been used yet; caddy mcp check connects to them"
	hinted := func() bool {
		out, err := caddy(t, "mcp", "servers", "--address", adminAddress(t)).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.Contains(string(out), hint)
	}
	if !hinted() {
		t.Error("no hint before the first call")
	}
	pidAt(t, mcpAt(url, "alpha"))
	if hinted() {
		t.Error("hint after a call")
	}
}

var (
	someSeconds = regexp.MustCompile(`\d+\.\d+ s`)
	someAge     = regexp.MustCompile(`\d+[smhd] ago`)
	someID      = regexp.MustCompile(`obs_\w+`)
)

// The commands in docs/mcp_gateway.md work with the shipped Caddyfile.
func TestGatewayCommands(t *testing.T) {
	isolate(t)
	served := run(t, "../../../Caddyfile")
	typed := commands(t, "docs/mcp_gateway.md")
	shell := exec.CommandContext(t.Context(), "bash", "-c")
	shell.Dir, shell.Env = "../../..", append(caddy(t).Env, "CADDY_ADMIN="+served.addresses[":2019"])
	got := runCommandsIn(t, shell, served, typed)
	normal := func(text string) string {
		text = someID.ReplaceAllString(someAge.ReplaceAllString(someSeconds.ReplaceAllString(text, "1.0 s"), "1s ago"),
			"obs_1")
		var lines []string // in any order
		for line := range strings.Lines(strings.TrimSpace(text)) {
			lines = append(lines, strings.Join(strings.Fields(line), " "))
		}
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	for i, c := range typed {
		if c.output == "" {
			t.Errorf("%s: the page does not show the output", c.typed)
		}
		same(t, normal(got[i]), normal(c.output))
	}
}

// The command lists the tools of a running Caddy, with a reachable server and an unreachable one.
func TestCommandTools(t *testing.T) {
	isolate(t)
	sample := block("server sample", "mcp_sample")
	gone := "server gone " + "http://" + freeAddress(t) + "/mcp"
	ann := block("client ann", "allow sample::read_*")
	all := []string{"sample__read_log", "sample__read_image", "sample__list_files", "sample__echo"}
	for _, tt := range []struct {
		name    string
		lines   []string
		args    []string
		want    []string // tools of the server
		focused bool
		gone    bool // the unreachable server is named
	}{
		{"all", []string{sample, gone}, nil, all, false, true},
		{"with focus", []string{"mask", "focus on", sample, gone}, nil, all, true, true},
		{"a client", []string{ann, sample, gone}, []string{"--client", "ann"}, all[:2], false, false},
		{"a client, with focus", []string{"mask", "focus on", ann, sample, gone}, []string{"--client", "ann"},
			all[:2], true, false},
		{"the operator, if a client has rules", []string{ann, sample, gone}, nil, all, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			served := run(t, writeCaddyfile(t, site("127.0.0.1:8080", gateway(append(tt.lines, "separator __")...))))
			cmd := caddy(t, slices.Concat([]string{"mcp", "tools", "--address", served.addresses[":2019"]}, tt.args)...)
			var out, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &stderr
			err := cmd.Run()
			var names []string
			for line := range strings.Lines(out.String()) {
				if fields := strings.Fields(line); fields[0] == "sample" {
					names = append(names, fields[1])
				}
			}
			if err != nil || !slices.Equal(names, tt.want) {
				t.Errorf("%v: %s%s", err, &out, &stderr)
			}
			if named := strings.Contains(stderr.String(), "gone is not listed: connect_error"); named != tt.gone {
				t.Errorf("stderr: %s", &stderr)
			}
			checkTokens(t, out.String(), len(tt.want), tt.focused)
			if restricted := strings.Contains(tt.name, "the operator"); restricted != strings.Contains(out.String(),
				"clients") ||
				restricted && !regexp.MustCompile(`read_log +\d+ +all\n(?s:.*)echo +\d+ +none\n`).MatchString(out.String()) {
				t.Errorf("clients: %s", &out)
			}

			clients := send(t, client, "GET", "http://"+served.addresses[":2019"]+"/mcp_gateway/clients", "").body
			if strings.Contains(clients, `"sessions"`) || strings.Contains(clients, "last_seen") {
				t.Errorf("the command counts as a client: %s", clients)
			}
		})
	}
	t.Run("an unknown client", func(t *testing.T) {
		served := run(t, writeCaddyfile(t, site("127.0.0.1:8080", gateway(ann, sample))))
		toolsFail(t, `unknown client "bob"`, "--client", "bob", "--address", served.addresses[":2019"])
		toolsFail(t, `unknown gateway "none"`, "--gateway", "none", "--address", served.addresses[":2019"])
		served.stop(t)
		toolsFail(t, "refused", "--address", served.addresses[":2019"])
	})
	t.Run("no gateway", func(t *testing.T) {
		served := run(t, writeCaddyfile(t, site("127.0.0.1:8080", "respond hello")))
		toolsFail(t, "no mcp_gateway is running", "--address", served.addresses[":2019"])
	})
}

var (
	toolRow  = regexp.MustCompile(`(?m)^(sample|-) +\S+ +(\d+)(?: +(\d+))?(?: +(?:all|none))?$`)
	toolSums = regexp.MustCompile(`(?m)^(\d+) tools?: ([\d,]+) tokens(?:, of which focus ([\d,]+))?\n\z`)
)

// checkTokens checks the token columns, and their sums in the last line.
func checkTokens(t *testing.T, out string, tools int, focused bool) {
	t.Helper()
	rows, sums := toolRow.FindAllStringSubmatch(out, -1), toolSums.FindStringSubmatch(out)
	if len(rows) < tools || sums == nil || !strings.HasPrefix(strings.Join(strings.Fields(out), " "),
		"server name tokens ") ||
		(sums[3] != "") != focused {
		t.Fatalf("got %s", out)
	}
	tokens, focus := 0, 0
	for _, row := range rows {
		var ofRow, ofFocus int
		if _, err := fmt.Sscan(row[2]+" "+cmp.Or(row[3], "0"), &ofRow, &ofFocus); err != nil {
			t.Fatal(err)
		}
		if ofRow < 20 || (ofFocus > 0) != (focused && row[1] == "sample") || ofFocus > 40 {
			t.Errorf("%s", row[0])
		}
		tokens, focus = tokens+ofRow, focus+ofFocus
	}
	want := fmt.Sprint(len(rows), tokens, focus)
	if got := strings.ReplaceAll(strings.Join(append(sums[1:3], cmp.Or(sums[3], "0")), " "), ",", ""); got != want {
		t.Errorf("got sums %s, want %s:\n%s", got, want, out)
	}
}

// toolsFail runs the command, which must exit with status 1 and this error.
func toolsFail(t *testing.T, why string, args ...string) {
	t.Helper()
	cmd := caddy(t, append([]string{"mcp", "tools"}, args...)...)
	out, err := cmd.CombinedOutput()
	if err == nil || cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), why) {
		t.Errorf("%q: %v: %s", args, err, out)
	}
}

// The command reports whether Caddy runs.
func TestCommandHealth(t *testing.T) {
	isolate(t)
	config := writeCaddyfile(t, site("127.0.0.1:8080", gateway(block("server sample", "mcp_sample"))))
	served := run(t, config)
	ask := func() (string, error) {
		out, err := caddy(t, "mcp-health", "--address", served.addresses[":2019"]).CombinedOutput()
		return string(out), err
	}
	if out, err := ask(); err != nil || out != "sample unknown\n" {
		t.Errorf("running: %v: %s", err, out)
	}
	served.stop(t)
	if out, err := ask(); err == nil || !strings.Contains(out, "refused") {
		t.Errorf("stopped: %v: %s", err, out)
	}
}

// clientFile writes an MCP client's configuration file and returns its path.
func clientFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// caddy mcp import prints the output shown in docs/mcp_json.md for the file shown there.
func TestImportCommand(t *testing.T) {
	isolate(t)
	file := clientFile(t, "servers.json", blocksOf(t, "docs/mcp_json.md", "json")[0])
	for _, c := range commands(t, "docs/mcp_json.md") {
		if c.output == "" {
			continue // TestClientFileIsServed
		}
		cmd := caddy(t, strings.Fields(strings.Replace(c.typed, "servers.json", file, 1))[1:]...)
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		same(t, string(out), c.output)
	}
	out, err := caddy(t, "mcp", "import", clientFile(t, "x.json", "{\n\"mcpServers\": {\n\"a\": 1}}")).CombinedOutput()
	if err == nil || !strings.Contains(string(out), `x.json:3: server "a" is not a JSON object`) {
		t.Errorf("%v: %s", err, out)
	}
	cmd := caddy(t, "mcp", "import", "-", "--name", "mine", "--secrets")
	cmd.Stdin = strings.NewReader(`{"mcpServers":{"a":{"command":"x","env":{"API_KEY":"s3cret"}}}}`)
	out, err = cmd.Output()
	if err != nil || !strings.Contains(string(out), "name mine\n") || !strings.Contains(string(out),
		"env API_KEY s3cret\n") {
		t.Errorf("%v: %s", err, out)
	}
	if got := runCommand(t, "{}", "import", "-"); got.status != 1 ||
		!strings.HasPrefix(got.stderr, "Error: standard input:1: no list of servers") {
		t.Errorf("got %+v", got)
	}
}

// A client uses the servers of a file: through the imported Caddyfile, the config adapter, and
// stdio.
func TestClientFileIsServed(t *testing.T) {
	isolate(t)
	received := make(chan string, 100)
	remote := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		received <- r.Header.Get("X-Key")
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"jsonrpc":"2.0","id":1,"result":{}}`))
	}))
	t.Cleanup(remote.Close)
	file := clientFile(t, ".mcp.json", `{
		// part of the binary
		"mcpServers": {
			"my sample": {"command": `+quote(binary(t))+`, "args": ["mcp-sample"], "env": {"A": "{env.B}"}},
			"remote": {"type": "http", "url": "`+remote.URL+`/mcp", "headers": {"X-Key": "{env.HOME} ${KEY_OF_TEST}"}},
		},
	}`)
	const key = "KEY_OF_TEST=k3y"
	check := func(t *testing.T, url string) {
		c := newLegacyClient(t, url, "{}")
		same(t, c.use("my-sample__echo", `{"text":"hello"}`), "hello")
		for len(received) > 0 {
			<-received
		}
		if got := post(t, rpcAt(url, "remote"), rpc("ping", "{}")); got.StatusCode != http.StatusOK {
			t.Errorf("got %d: %s", got.StatusCode, got.body)
		}
		same(t, <-received, "{env.HOME} k3y")
	}
	t.Run("import", func(t *testing.T) {
		out, err := caddy(t, "mcp", "import", file).Output()
		if err != nil {
			t.Fatal(err)
		}
		check(t, "http://"+run(t, writeCaddyfile(t, string(out)), key).address)
	})
	t.Run("adapter", func(t *testing.T) {
		cmd := caddy(t, "adapt", "--adapter", "mcp", "--config", file)
		cmd.Env = append(cmd.Env, key)
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		// Serve the adapted configuration on another port.
		address := freeAddress(t)
		config := strings.Replace(string(out), "127.0.0.1:8080", address, 1)
		config = `{"admin":{"disabled":true},` + strings.TrimPrefix(config, "{")
		served := caddy(t, "run", "--config", clientFile(t, "config.json", config))
		served.Env = append(served.Env, key)
		startCaddy(t, served)
		check(t, "http://"+address)
	})
	t.Run("stdio", func(t *testing.T) {
		cmd := caddy(t, "mcp-stdio", "--adapter", "mcp", "--config", file, "--server", "my-sample")
		cmd.Stdin = strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"initialize",` +
			`"params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}` + "\n")
		out, err := cmd.Output()
		if err != nil || !strings.Contains(string(out), `"serverInfo"`) {
			t.Errorf("%v: %s", err, out)
		}
	})
}
