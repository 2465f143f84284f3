package integration

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
)

// stdioGreeting is what a client of the command mcp-stdio says first.
const stdioGreeting = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
`

// inFile writes a Caddyfile and returns its path.
func inFile(t *testing.T, caddyfile string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "Caddyfile")
	if err := os.WriteFile(file, []byte(caddyfile), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// messages returns the lines of what a process has printed, which must be messages.
func messages(t *testing.T, printed []byte) (lines []string) {
	t.Helper()
	for line := range strings.Lines(string(printed)) {
		var m struct{ JSONRPC string }
		if err := json.Unmarshal([]byte(line), &m); err != nil || m.JSONRPC != "2.0" {
			t.Errorf("not a message: %s", line)
		}
		lines = append(lines, strings.TrimSuffix(line, "\n"))
	}
	return lines
}

// TestCommandStdio has the built binary serve a gateway on its standard streams (A42).
func TestCommandStdio(t *testing.T) {
	isolate(t)
	// Everything that could reach stdout, and a child that has to be killed.
	journal := newJournal(t)
	everything := inFile(t, block("", "debug", block("log", "output stdout"))+"\n"+site(freeAddress(t), "log {\noutput stdout\n}",
		gateway(block(child("stubborn", "--ignore-term", "--banner"), journal.env(), "stop_grace 100ms"))))
	tests := []struct {
		name  string
		args  []string
		lines string // after the greeting
		want  []string
	}{
		{"the shipped Caddyfile", []string{"--server", "sample"}, rpc("tools/list", `{}`), []string{`"tools"`}},
		{"by names", []string{"--config", "Caddyfile", "--adapter", "caddyfile", "--gateway", "local", "--server", "child"}, rpc("tools/list", `{}`), []string{`"tools"`}},
		{"logs on stdout, and a child that does not end", []string{"--config", everything, "--server", "stubborn"}, toolCall{"pid", `{}`}.request(), []string{`"content"`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cmd := caddy(t, append([]string{"mcp-stdio"}, tt.args...)...)
			cmd.Stdin = strings.NewReader(stdioGreeting + tt.lines + "\n")
			var logged bytes.Buffer
			cmd.Stderr = &logged
			printed, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v\n%s", err, &logged)
			}
			got := messages(t, printed)
			if len(got) != 1+len(tt.want) || !strings.Contains(got[0], `"protocolVersion"`) {
				t.Fatalf("got %d lines: %s\n%s", len(got), printed, &logged)
			}
			for i, want := range tt.want {
				if !strings.Contains(got[1+i], want) {
					t.Errorf("got %s", got[1+i])
				}
			}
		})
	}
	starts := journal.entries(t, "start")
	if len(starts) == 0 {
		t.Error("there was no child")
	}
	for _, e := range starts {
		if processRuns(e.PID) {
			t.Errorf("the child %d is left", e.PID)
		}
	}
}

// A stdioProcess is a `caddy mcp-stdio` whose client is the test.
type stdioProcess struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	lines  *bufio.Reader
	logged bytes.Buffer
}

// startStdio starts `caddy mcp-stdio` with a configuration file, and more arguments.
func startStdio(t *testing.T, config string, args ...string) *stdioProcess {
	t.Helper()
	p := &stdioProcess{cmd: caddy(t, append([]string{"mcp-stdio", "--config", config}, args...)...)}
	p.cmd.Stderr = &p.logged
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.stdin, p.lines = stdin, bufio.NewReader(stdout)
	return p
}

// say sends a message.
func (p *stdioProcess) say(t *testing.T, message string) {
	t.Helper()
	if _, err := io.WriteString(p.stdin, strings.TrimSpace(message)+"\n"); err != nil {
		t.Fatalf("%v\n%s", err, &p.logged)
	}
}

// hear returns the next message with a method, or the next answer if it is empty.
func (p *stdioProcess) hear(t *testing.T, method string) (m mcpclient.Message) {
	t.Helper()
	for {
		line, err := p.lines.ReadString('\n')
		if err != nil {
			t.Fatalf("%v\n%s", err, &p.logged)
		}
		m = mcpclient.Message{Raw: line}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if m.Method == method {
			return m
		}
	}
}

// end closes the input, and returns what the process still says. It must exit by itself.
func (p *stdioProcess) end(t *testing.T) []byte {
	t.Helper()
	if err := p.stdin.Close(); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(p.lines)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("A42 it ended with %v\n%s", err, &p.logged)
	}
	return rest
}

// TestCommandStdioJoined has it serve all servers of a gateway as one (A42).
func TestCommandStdioJoined(t *testing.T) {
	isolate(t)
	journal := newJournal(t)
	config := inFile(t, site(freeAddress(t), gateway(block(child("alpha"), journal.env()), block(child("beta"), journal.env()))))
	p := startStdio(t, config)
	say, hear := p.say, p.hear
	say(t, strings.TrimSpace(strings.Replace(stdioGreeting, `"capabilities":{}`, `"capabilities":{"roots":{}}`, 1)))
	if m := hear(t, ""); m.Result == nil || !strings.Contains(m.Raw, `"protocolVersion":"2025-11-25"`) {
		t.Fatalf("got %s", m)
	}
	say(t, rpc("tools/list", `{}`))
	if m := hear(t, ""); !strings.Contains(m.Raw, `"name":"alpha::echo"`) || !strings.Contains(m.Raw, `"name":"beta::echo"`) {
		t.Errorf("A42 listed %.500s", m)
	}
	for _, server := range []string{"alpha", "beta"} {
		say(t, toolCall{server + "::echo", `{"text":"é"}`}.request())
		if text := toolText(t, hear(t, "").Raw); !strings.Contains(text, `"name":"echo","arguments":{"text":"é"}`) {
			t.Errorf("A42 %s received %s", server, text)
		}
		say(t, toolCall{server + "::ask-roots", `{}`}.request())
		question := hear(t, "roots/list")
		if question.Params.Proxy.Server != server {
			t.Errorf("A27 asked by %s: %s", server, question)
		}
		const roots = `{"roots":[{"uri":"file:///mine"}]}`
		say(t, `{"jsonrpc":"2.0","id":`+string(question.ID)+`,"result":`+roots+`}`)
		if text := toolText(t, hear(t, "").Raw); text != roots {
			t.Errorf("A27 %s was told %s", server, text)
		}
	}
	// What a server says unasked comes by itself.
	say(t, toolCall{"beta::add-tool", `{"name":"more"}`}.request())
	if m := hear(t, "notifications/tools/list_changed"); m.Params.Proxy.Server != "beta" {
		t.Errorf("A26 heard %s", m)
	}
	say(t, toolCall{"alpha::slow", `{"ms":200}`}.request())
	if all := messages(t, p.end(t)); len(all) == 0 || !strings.Contains(all[len(all)-1], "slept") {
		t.Errorf("A42 the call that was still open got %q", all)
	}
	for _, e := range journal.entries(t, "start") {
		if processRuns(e.PID) {
			t.Errorf("A39 the child %d is left", e.PID)
		}
	}
}

// TestCommandStdioTerminated ends it as clients do that are in a hurry (A42).
func TestCommandStdioTerminated(t *testing.T) {
	isolate(t)
	config := inFile(t, site(freeAddress(t), gateway(block(child("asked", "--ignore-term"), "stop_grace 100ms"))))
	cmd := caddy(t, "mcp-stdio", "--config", config, "--server", "asked")
	var logged bytes.Buffer
	cmd.Stderr = &logged
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(stdin, stdioGreeting+toolCall{"pid", `{}`}.request()+"\n"); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(stdout)
	if _, err := lines.ReadString('\n'); err != nil {
		t.Fatalf("%v\n%s", err, &logged)
	}
	line, err := lines.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(toolText(t, line))
	if err != nil || !processRuns(pid) {
		t.Fatalf("pid %d: %v", pid, err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(lines); err != nil || len(rest) > 0 {
		t.Errorf("there is more: %s, %v", rest, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, &logged)
	}
	if processRuns(pid) {
		t.Error("the child is left")
	}
}

// TestCommandStdioInspector has the Inspector start the command, as desktop clients do
// (A42).
func TestCommandStdioInspector(t *testing.T) {
	isolate(t)
	file := inFile(t, site(freeAddress(t), gateway(child("both", "--modern"))))
	servers := filepath.Join(t.TempDir(), "servers.json")
	command, err := json.Marshal(map[string]any{"mcpServers": map[string]any{
		"caddy": map[string]any{"command": binary(t), "args": []string{"mcp-stdio", "--config", file, "--server", "both"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(servers, command, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, era := range []string{"legacy", "modern"} {
		t.Run(era, func(t *testing.T) {
			cmd := peer(t, "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js", "--cli",
				"--config", servers, "--server", "caddy", "--protocol-era", era, "--format", "json", "--quiet",
				"--method", "tools/call", "--tool-name", "echo", "--tool-args-json", `{"text":"é","region":"ü"}`)
			home := t.TempDir()
			cmd.Env = append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_DATA_HOME="+home)
			got := printed[struct{ Result peerResult }](t, cmd, nil).Result.text()
			if !strings.Contains(got, `"text":"é"`) {
				t.Errorf("got %s", got)
			}
		})
	}
}

func TestCommandStdioRefuses(t *testing.T) {
	isolate(t)
	two := gateway(child("a")) + "\n" + strings.Replace(gateway(child("b")), "mcp_gateway {", "mcp_gateway {\nname other", 1)
	tests := []struct {
		name      string
		caddyfile string
		args      []string
		want      string
	}{
		{"a file that is not there", "", []string{"--config", "/nowhere/Caddyfile"}, "/nowhere/Caddyfile"},
		{"a file that is broken", "mcp_gateway {", nil, "Caddyfile"},
		{"no gateway", site(freeAddress(t), "respond hello"), nil, "there is no mcp_gateway"},
		{"several gateways", site(freeAddress(t), two), nil, "--gateway names one of"},
		{"an unknown gateway", site(freeAddress(t), two), []string{"--gateway", "zz"}, "the names are (no name), other"},
		{"an unknown server", site(freeAddress(t), gateway(child("a"))), []string{"--server", "zz"}, "it has a"},
		{"a value that makes no sense", site(freeAddress(t), gateway(child("a"), "request_limit -1")), nil, "request_limit"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			args := tt.args
			if tt.caddyfile != "" {
				args = append([]string{"--config", inFile(t, tt.caddyfile)}, args...)
			}
			cmd := caddy(t, append([]string{"mcp-stdio"}, args...)...)
			cmd.Stdin = strings.NewReader(stdioGreeting)
			var told bytes.Buffer
			cmd.Stderr = &told
			printed, err := cmd.Output()
			if _, failed := errors.AsType[*exec.ExitError](err); !failed {
				t.Errorf("it ended with %v", err)
			}
			if len(printed) > 0 {
				t.Errorf("printed %s", printed)
			}
			if !strings.Contains(told.String(), tt.want) {
				t.Errorf("told %s", &told)
			}
		})
	}
}
