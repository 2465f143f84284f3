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

// stdioHandshake has the first messages of a client of the mcp-stdio command.
const stdioHandshake = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
`

// writeCaddyfile writes a Caddyfile and returns its path.
func writeCaddyfile(t *testing.T, caddyfile string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "Caddyfile")
	if err := os.WriteFile(file, []byte(caddyfile), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// messageLines returns the lines that a process printed, which must be JSON-RPC messages.
func messageLines(t *testing.T, printed []byte) (lines []string) {
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

// The built binary serves a gateway on its standard streams (A42).
func TestCommandStdio(t *testing.T) {
	isolate(t)
	// Everything that could write to stdout, and a child that must be killed.
	journal := newJournal(t)
	everything := writeCaddyfile(t, block("", "debug", block("log", "output stdout"))+"\n"+site(freeAddress(t),
		"log {\noutput stdout\n}",
		gateway(block(child("stubborn", "--ignore-term", "--banner"), journal.env(), "stop_grace 100ms"))))
	tests := []struct {
		name  string
		args  []string
		lines string // after the handshake
		want  []string
	}{
		{"the shipped Caddyfile", []string{"--server", "sample"}, rpc("tools/list", `{}`), []string{`"tools"`}},
		{"by names", []string{"--config", "Caddyfile", "--adapter", "caddyfile", "--gateway", "local", "--server", "child"},
			rpc("tools/list", `{}`), []string{`"tools"`}},
		{"logs on stdout, and a child that does not end", []string{"--config", everything, "--server", "stubborn"},
			toolCall{"pid", `{}`}.request(), []string{`"content"`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cmd := caddy(t, append([]string{"mcp-stdio"}, tt.args...)...)
			cmd.Stdin = strings.NewReader(stdioHandshake + tt.lines + "\n")
			var logged bytes.Buffer
			cmd.Stderr = &logged
			printed, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v\n%s", err, &logged)
			}
			got := messageLines(t, printed)
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
			t.Errorf("the child %d still runs", e.PID)
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

// startStdio starts `caddy mcp-stdio` with a configuration file and more arguments.
func startStdio(t *testing.T, config string, args ...string) *stdioProcess {
	t.Helper()
	p := &stdioProcess{cmd: caddy(t, append([]string{"mcp-stdio", "--config", config}, args...)...)}
	p.cmd.Stderr = &p.logged
	p.stdin, p.lines = startPiped(t, p.cmd)
	return p
}

func (p *stdioProcess) send(t *testing.T, message string) {
	t.Helper()
	if _, err := io.WriteString(p.stdin, strings.TrimSpace(message)+"\n"); err != nil {
		t.Fatalf("%v\n%s", err, &p.logged)
	}
}

// receive returns the next message with a method, or the next response if method is empty.
func (p *stdioProcess) receive(t *testing.T, method string) (m mcpclient.Message) {
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

// close closes stdin and returns the remaining output. The process must exit by itself.
func (p *stdioProcess) close(t *testing.T) []byte {
	t.Helper()
	if err := p.stdin.Close(); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(p.lines)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("A42 it exited with %v\n%s", err, &p.logged)
	}
	return rest
}

// The command serves all servers of a gateway as one (A42).
func TestCommandStdioJoined(t *testing.T) {
	isolate(t)
	journal := newJournal(t)
	config := writeCaddyfile(t, site(freeAddress(t), gateway(block(child("alpha"), journal.env()),
		block(child("beta"), journal.env()))))
	p := startStdio(t, config)
	send, receive := p.send, p.receive
	send(t, strings.TrimSpace(strings.Replace(stdioHandshake, `"capabilities":{}`, `"capabilities":{"roots":{}}`, 1)))
	if m := receive(t, ""); m.Result == nil || !strings.Contains(m.Raw, `"protocolVersion":"2025-11-25"`) {
		t.Fatalf("got %s", m)
	}
	send(t, rpc("tools/list", `{}`))
	if m := receive(t, ""); !strings.Contains(m.Raw, `"name":"alpha::echo"`) || !strings.Contains(m.Raw,
		`"name":"beta::echo"`) {
		t.Errorf("A42 listed %.500s", m)
	}
	for _, server := range []string{"alpha", "beta"} {
		send(t, toolCall{server + "::echo", `{"text":"é"}`}.request())
		if text := toolText(t, receive(t, "").Raw); !strings.Contains(text, `"name":"echo","arguments":{"text":"é"}`) {
			t.Errorf("A42 %s received %s", server, text)
		}
		send(t, toolCall{server + "::ask-roots", `{}`}.request())
		serverRequest := receive(t, "roots/list")
		if serverRequest.Params.Proxy.Server != server {
			t.Errorf("A27 server request of %s: %s", server, serverRequest)
		}
		const roots = `{"roots":[{"uri":"file:///mine"}]}`
		send(t, `{"jsonrpc":"2.0","id":`+string(serverRequest.ID)+`,"result":`+roots+`}`)
		if text := toolText(t, receive(t, "").Raw); text != roots {
			t.Errorf("A27 %s received %s", server, text)
		}
	}
	// Unsolicited messages of servers arrive, too.
	send(t, toolCall{"beta::add-tool", `{"name":"more"}`}.request())
	if m := receive(t, "notifications/tools/list_changed"); m.Params.Proxy.Server != "beta" {
		t.Errorf("A26 got %s", m)
	}
	send(t, toolCall{"alpha::slow", `{"ms":200}`}.request())
	if all := messageLines(t, p.close(t)); len(all) == 0 || !strings.Contains(all[len(all)-1], "slept") {
		t.Errorf("A42 the open call got %q", all)
	}
	for _, e := range journal.entries(t, "start") {
		if processRuns(e.PID) {
			t.Errorf("A39 the child %d still runs", e.PID)
		}
	}
}

// SIGTERM stops the command and its children, as impatient clients do (A42).
func TestCommandStdioTerminated(t *testing.T) {
	isolate(t)
	config := writeCaddyfile(t, site(freeAddress(t), gateway(block(child("asked", "--ignore-term"), "stop_grace 100ms"))))
	cmd := caddy(t, "mcp-stdio", "--config", config, "--server", "asked")
	var logged bytes.Buffer
	cmd.Stderr = &logged
	stdin, lines := startPiped(t, cmd)
	if _, err := io.WriteString(stdin, stdioHandshake+toolCall{"pid", `{}`}.request()+"\n"); err != nil {
		t.Fatal(err)
	}
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
		t.Errorf("more output: %s, %v", rest, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, &logged)
	}
	if processRuns(pid) {
		t.Error("the child still runs")
	}
}

// The Inspector starts the command like desktop clients do (A42).
func TestCommandStdioInspector(t *testing.T) {
	isolate(t)
	file := writeCaddyfile(t, site(freeAddress(t), gateway(child("both", "--modern"))))
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
			got := runJSON[struct{ Result peerResult }](t, cmd, nil).Result.text()
			if !strings.Contains(got, `"text":"é"`) {
				t.Errorf("got %s", got)
			}
		})
	}
}

func TestCommandStdioRefuses(t *testing.T) {
	isolate(t)
	two := gateway(child("a")) + "\n" + strings.Replace(gateway(child("b")), "mcp_gateway {", "mcp_gateway {\nname other",
		1)
	tests := []struct {
		name      string
		caddyfile string
		args      []string
		want      string
	}{
		{"a missing file", "", []string{"--config", "/nowhere/Caddyfile"}, "/nowhere/Caddyfile"},
		{"an invalid file", "mcp_gateway {", nil, "Caddyfile"},
		{"no gateway", site(freeAddress(t), "respond hello"), nil, "no mcp_gateway configured"},
		{"several gateways", site(freeAddress(t), two), nil, "set --gateway to one of"},
		{"an unknown gateway", site(freeAddress(t), two), []string{"--gateway", "zz"}, "the names are /mcp, other"},
		{"an unknown server", site(freeAddress(t), gateway(child("a"))), []string{"--server", "zz"}, "it has a"},
		{"an invalid value", site(freeAddress(t), gateway(child("a"), "request_limit -1")), nil, "request_limit"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			args := tt.args
			if tt.caddyfile != "" {
				args = append([]string{"--config", writeCaddyfile(t, tt.caddyfile)}, args...)
			}
			cmd := caddy(t, append([]string{"mcp-stdio"}, args...)...)
			cmd.Stdin = strings.NewReader(stdioHandshake)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			printed, err := cmd.Output()
			if _, failed := errors.AsType[*exec.ExitError](err); !failed {
				t.Errorf("it exited with %v", err)
			}
			if len(printed) > 0 {
				t.Errorf("printed %s", printed)
			}
			if !strings.Contains(stderr.String(), tt.want) {
				t.Errorf("got stderr %s", &stderr)
			}
		})
	}
}
