package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
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
