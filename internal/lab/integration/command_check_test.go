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

// A commandRun is what came of a command.
type commandRun struct {
	out, complaints string
	status          int
}

// runCommand runs `caddy mcp …`.
func runCommand(t *testing.T, input string, args ...string) commandRun {
	t.Helper()
	cmd := caddy(t, append([]string{"mcp"}, args...)...)
	var out, complaints bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &complaints
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return commandRun{out.String(), complaints.String(), cmd.ProcessState.ExitCode()}
}

// A hungServer is a child process that never says anything.
type hungServer struct{ line, file string }

func newHungServer(t *testing.T) hungServer {
	file := filepath.Join(t.TempDir(), "pid")
	return hungServer{fmt.Sprintf("server hung stdio sh -c %q", "echo $$ > "+file+"; exec sleep 1000"), file}
}

// pid returns its process, 0 if it was not started.
func (h hungServer) pid() int {
	text, _ := os.ReadFile(h.file)
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return pid
}

// TestCommandCheck checks servers that are up, and servers that are down in all ways, at the running
// Caddy and without one.
func TestCommandCheck(t *testing.T) {
	isolate(t)
	hung, journal := newHungServer(t), newJournal(t)
	dead := freeAddress(t)
	up := []string{block("server sample", "mcp_sample"), block(child("kid"), journal.env())}
	down := []string{
		"server dead http://" + dead + "/mcp?key=secret", `server broken stdio sh -c "echo no key >&2; exit 3"`, "server gone stdio /no/such/program",
		hung.line,
	}
	config := inFile(t, site("127.0.0.1:8080", gateway(slices.Concat(up, down, []string{"separator __", "auth token {\nann {env.NOT_SET}\n}"})...)))
	running := inFile(t, site("127.0.0.1:8080", gateway(slices.Concat(up, down, []string{"separator __"})...)))
	served := run(t, running)
	lines := map[string]string{
		"sample": `up in \d+\.\d s +4 tools +0 prompts +0 resources +\d+ tokens`,
		"kid":    `up in \d+\.\d s +\d+ tools +\d+ prompts? +\d+ resources? +[\d,]+ tokens`,
		"dead":   `down: connect: connection refused \(http://` + regexp.QuoteMeta(dead) + `/mcp\)`,
		"broken": `down: exited with status 3 during initialize`,
		"gone":   `down: .*/no/such/program`,
		"hung":   `down: no answer within 3s`,
	}
	for name, where := range map[string][]string{
		"the running Caddy": {"--address", served.moved[":2019"]},
		"a file":            {"--config", config},
	} {
		t.Run(name, func(t *testing.T) {
			all := runCommand(t, "", append([]string{"check", "--timeout", "3s"}, where...)...)
			if all.status != 1 || all.complaints != "" {
				t.Errorf("status %d: %s", all.status, all.complaints)
			}
			for server, line := range lines {
				if !regexp.MustCompile(`(?m)^` + server + ` +` + line).MatchString(all.out) {
					t.Errorf("%s: got\n%s", server, all.out)
				}
			}
			if strings.Contains(all.out, "secret") {
				t.Errorf("a query is printed:\n%s", all.out)
			}
			two := runCommand(t, "", append([]string{"check", "sample", "kid", "--json"}, where...)...)
			var checks []struct {
				Name, Code string
				Up         bool
				Tools      int
				Info       struct{ Name string } `json:"server_info"`
			}
			if err := json.Unmarshal([]byte(two.out), &checks); err != nil || two.status != 0 || len(checks) != 2 ||
				!checks[0].Up || checks[0].Tools != 4 || checks[0].Info.Name != "sample" || !checks[1].Up {
				t.Errorf("status %d, %v: %s%s", two.status, err, two.out, two.complaints)
			}
			none := runCommand(t, "", append([]string{"check", "nope"}, where...)...)
			if none.status != 1 || none.complaints != "Error: there is no server \"nope\", but: sample, kid, dead, broken, gone, hung\n" {
				t.Errorf("status %d: %s", none.status, none.complaints)
			}
		})
	}
	listed := runCommand(t, "", "servers", "--address", served.moved[":2019"])
	for _, line := range []string{
		`sample +handlers`, `kid +\S+ +healthy .* ago`, `dead +http://` + dead + `/mcp `, `broken +sh +unhealthy .*exited with status 3`, `gone +/no/such/program `,
	} {
		if listed.status != 0 || !regexp.MustCompile(`(?m)^`+line).MatchString(listed.out) {
			t.Errorf("%s: got\n%s", line, listed.out)
		}
	}
	served.stop(t)
	for _, e := range journal.entries(t, "start") {
		if processRuns(e.PID) {
			t.Errorf("the child %d is left", e.PID)
		}
	}
	if pid := hung.pid(); pid == 0 || processRuns(pid) {
		t.Errorf("the process %d is left", pid)
	}
}

// A check without a running Caddy that is interrupted leaves no child.
func TestCommandCheckInterrupted(t *testing.T) {
	isolate(t)
	hung := newHungServer(t)
	cmd := caddy(t, "mcp", "check", "--config", inFile(t, site("127.0.0.1:8080", gateway(hung.line))))
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
		t.Errorf("the process %d is left", hung.pid())
	}
}

// Without a running Caddy, the Caddyfile of the directory is checked.
func TestCommandCheckOfDirectory(t *testing.T) {
	isolate(t)
	file := inFile(t, site("127.0.0.1:8080", gateway(block("server sample", "mcp_sample"))))
	for _, tt := range []struct {
		name, dir, out, complaints string
		status                     int
	}{
		{"a Caddyfile", filepath.Dir(file), "sample  up in ", "running the gateways of Caddyfile: no Caddy is running\n", 0},
		{"no Caddyfile", t.TempDir(), "", "Error: no Caddy is running: ", 1},
	} {
		cmd := caddy(t, "mcp", "check")
		cmd.Dir = tt.dir
		cmd.Env = append(cmd.Env, "CADDY_ADMIN="+freeAddress(t))
		var out, complaints bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &complaints
		_ = cmd.Run()
		if cmd.ProcessState.ExitCode() != tt.status || !strings.HasPrefix(out.String(), tt.out) || !strings.HasPrefix(complaints.String(), tt.complaints) {
			t.Errorf("%s: %d %s%s", tt.name, cmd.ProcessState.ExitCode(), &out, &complaints)
		}
	}
}

// TestCommandCall calls tools as an agent does, and as the server answers.
func TestCommandCall(t *testing.T) {
	isolate(t)
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("from a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	config := inFile(t, site("127.0.0.1:8080", gateway("separator __", block("mask 400 200 200", "recover on"), block("server sample", "mcp_sample"),
		child("kid"), "server dead http://"+freeAddress(t)+"/mcp",
		block("client ann", "allow sample::* kid::echo", "deny kid::*", `redact "s[0-9]cret"`))))
	served := run(t, config)
	private := inFile(t, "{\nadmin off\n}\n"+site("127.0.0.1:8080", gateway("separator __", "mask 400 200 200", block("server sample", "mcp_sample"), child("kid"))))
	at := []string{"--address", served.moved[":2019"]}
	for _, tt := range []struct {
		name, input     string
		args            []string
		out, complaints string // regular expressions
		status          int
	}{
		{"masked", "", []string{"sample::read_log", "lines=100"}, `(?s)\A2026-.*MASKED original_chars=\d+ head=200 tail=200 id=obs_.*next_retry=30s\n\z`, "", 0},
		{"raw", "", []string{"sample__read_log", "lines=100", "--raw"}, `\A\{"content":\[\{"type":"text","text":"2026.*path=/orders/5676.*\]\}\n\z`, "", 0},
		{"sizes", "", []string{"sample::read_log", "lines=100", "-v"}, `MASKED`, `\A[\d,]{6,} bytes from the server, \d{3} after masking, \d+\.\d\d s\n\z`, 0},
		{"JSON", "", []string{"sample::echo", `text:="a b"`}, `\Aa b\n\z`, "", 0},
		{"an object", "", []string{"sample::echo", "--json", `{"text":"x"}`}, `\Ax\n\z`, "", 0},
		{"standard input", `{"text":"typed"}`, []string{"sample::echo", "-"}, `\Atyped\n\z`, "", 0},
		{"a file", "", []string{"sample::echo", "text=@" + text}, `\Afrom a file\n\z`, "", 0},
		{"control characters in a pipe", "", []string{"sample::echo", `text:="\u001b[2J"`}, `\A\x1b\[2J\n\z`, "", 0},
		{"a child", "", []string{"kid::echo", "text=x"}, `x`, "", 0},
		{"a client", "", []string{"sample::echo", "text=a s3cret", "--client", "ann"}, `\Aa \[redacted\]\n\z`, "", 0},
		{"a client, raw", "", []string{"sample::echo", "text=a s3cret", "--client", "ann", "--raw"}, `a s3cret`, "", 0},
		{"a client that may not", "", []string{"kid::pid", "--client", "ann"}, `\A\z`, `\AError: .*\(acl_denied\)\n\z`, 1},
		{"an unknown client", "", []string{"kid::pid", "--client", "bob"}, `\A\z`, `\AError: there is no client "bob" \(not_found\)\n\z`, 1},
		{"an unknown tool", "", []string{"sample::read_lug"}, `\A\z`, `similar names: sample__read_log`, 1},
		{"an unknown argument", "", []string{"sample::echo", "txt=1"}, `\A\z`, `there is no argument "txt"; the tool has: text`, 1},
		{"a wrong type", "", []string{"sample::read_log", "lines=x"}, `\A\z`, `lines: "x" is not of the type integer`, 1},
		{"a result that is an error", "", []string{"recover_observation", "id=obs_none"}, `\A\z`, `Nothing is kept under the id "obs_none"`, 1},
		{"a server that is down", "", []string{"dead::x"}, `\A\z`, `\AError: MCP server dead is unavailable: connection refused; it is tried again \(connect_error\)\n\z`, 1},
		{"a tool that asks", "", []string{"kid::ask", "--json", `{"method":"elicitation/create"}`}, `\A\z`, `the client cannot be asked this`, 1},
		{"without a running Caddy", "", []string{"kid::echo", "text=x", "--config", private}, `x`, `\Arunning the gateways of .*: it has no admin API\n\z`, 0},
		{"a failure without a running Caddy", "", []string{"kid::nope", "--config", private}, `\A\z`, `there is no tool "kid::nope"`, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			args := append([]string{"call"}, tt.args...)
			if !slices.Contains(args, "--config") {
				args = append(args, at...)
			}
			got := runCommand(t, tt.input, args...)
			if got.status != tt.status || !regexp.MustCompile(tt.out).MatchString(got.out) || !regexp.MustCompile(tt.complaints).MatchString(got.complaints) {
				t.Errorf("status %d:\n%.1000s\n%s", got.status, got.out, got.complaints)
			}
			if tt.complaints == "" && tt.status == 0 && got.complaints != "" {
				t.Errorf("it complains: %s", got.complaints)
			}
		})
	}
	logged := served.stop(t)
	for _, part := range []string{`"action":"call","gateway":"","mcp_server":"sample","name":"sample::read_log"`, `"outcome":"acl_denied","client":"ann"`} {
		if !strings.Contains(logged, part) {
			t.Errorf("%s is not in the log:\n%s", part, logged)
		}
	}
	if strings.Contains(logged, "s3cret") {
		t.Error("arguments are in the log")
	}
}

// A server that wants a login says how to log in.
func TestCommandCheckLogin(t *testing.T) {
	isolate(t)
	a := startAuthServer(t, nil)
	g := startGateway(t, t.TempDir(), a.line("oauth"))
	check := runCommand(t, "", "check", "--address", g.admin)
	if check.status != 1 || check.out != "notes  login required: caddy mcp login notes\n" {
		t.Errorf("check: %d %s%s", check.status, check.out, check.complaints)
	}
	call := runCommand(t, "", "call", "notes::read", "--address", g.admin)
	if call.status != 1 || call.complaints != "Error: login required: caddy mcp login notes (login_required)\n" {
		t.Errorf("call: %d %s%s", call.status, call.out, call.complaints)
	}
	listed := runCommand(t, "", "servers", "--address", g.admin)
	if !strings.Contains(listed.out, "login required: caddy mcp login notes\n") {
		t.Errorf("servers: %s", listed.out)
	}
}

// On a terminal, a result cannot control it, and progress is shown.
func TestCommandCallOnTerminal(t *testing.T) {
	isolate(t)
	script, err := exec.LookPath("script")
	if err != nil {
		t.Skip("there is no script, which makes a terminal")
	}
	served := run(t, inFile(t, site("127.0.0.1:8080", gateway("separator __", block("server sample", "mcp_sample"), child("kid")))))
	for _, tt := range []struct{ name, args, want, not string }{
		{"control characters", `sample::echo 'text:="a\u001b[2Jb\tc"'`, `a\x1b[2Jb` + "\tc", "\x1b[2J"},
		{"progress", `kid::progress steps=2`, "progress 1/2", "notifications"},
	} {
		cmd := caddy(t)
		line := fmt.Sprintf("%s mcp call %s --address %s", cmd.Path, tt.args, served.moved[":2019"])
		terminal := exec.CommandContext(t.Context(), script, "-qec", line, "/dev/null")
		terminal.Env, terminal.Dir = cmd.Env, cmd.Dir
		out, err := terminal.CombinedOutput()
		if err != nil || !strings.Contains(string(out), tt.want) || strings.Contains(string(out), tt.not) {
			t.Errorf("%s: %v: %q", tt.name, err, out)
		}
	}
}

// caddy mcp servers says of which servers nothing is known yet.
func TestServersThatWereNotTried(t *testing.T) {
	isolate(t)
	url := serve(t, gateway(child("alpha")))
	const hint = "idle and unknown servers were not tried yet; caddy mcp check tries them"
	hinted := func() bool {
		out, err := caddy(t, "mcp", "servers", "--address", adminAddress(t)).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.Contains(string(out), hint)
	}
	if !hinted() {
		t.Error("before the first call there is no hint")
	}
	pidAt(t, mcpAt(url, "alpha"))
	if hinted() {
		t.Error("there is a hint after a call")
	}
}

var (
	someSeconds = regexp.MustCompile(`\d+\.\d+ s`)
	someAge     = regexp.MustCompile(`\d+[smhd] ago`)
	someID      = regexp.MustCompile(`obs_\w+`)
)

// TestGatewayCommands types what docs/mcp_gateway.md tells people to type, with the shipped Caddyfile.
func TestGatewayCommands(t *testing.T) {
	isolate(t)
	served := run(t, "../../../Caddyfile")
	typed := commands(t, "docs/mcp_gateway.md")
	shell := exec.CommandContext(t.Context(), "bash", "-c")
	shell.Dir, shell.Env = "../../..", append(caddy(t).Env, "CADDY_ADMIN="+served.moved[":2019"])
	got := typeInto(t, shell, served, typed)
	normal := func(text string) string {
		text = someID.ReplaceAllString(someAge.ReplaceAllString(someSeconds.ReplaceAllString(text, "1.0 s"), "1s ago"), "obs_1")
		var lines []string // which come in any order
		for line := range strings.Lines(strings.TrimSpace(text)) {
			lines = append(lines, strings.Join(strings.Fields(line), " "))
		}
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	for i, c := range typed {
		if c.output == "" {
			t.Errorf("%s: the page does not say what comes out", c.typed)
		}
		same(t, normal(got[i]), normal(c.output))
	}
}
