package integration

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The reference server answers in event streams and writes result before
// jsonrpc; the official client checks what it gets against its schemas.
func TestOfficialClientAndReferenceServer(t *testing.T) {
	server := peer(t, "node_modules/@modelcontextprotocol/server-everything/dist/index.js", "streamableHttp")
	address := freeAddress(t)
	server.Env = append(os.Environ(), "PORT="+address[strings.LastIndex(address, ":")+1:])
	start(t, server, "listening on port")

	endpoint := serve(t, "\tobservation_mask", proxy(address)) + "/mcp"
	for _, test := range []struct {
		name, message, want string
	}{
		{"a short text", "short é", "Echo: short é"},
		{"a long text", strings.Repeat("é", 10000), "Echo: " + strings.Repeat("é", 1994) +
			"\n... [KIMI_PROXY_OBSERVATION_MASKED original_chars=10006 head=2000 tail=2000] ...\n" + strings.Repeat("é", 2000)},
	} {
		t.Run(test.name, func(t *testing.T) {
			out, err := peer(t, "echo.mjs", endpoint, test.message).Output()
			if err != nil {
				t.Fatalf("%v: %s", err, err.(*exec.ExitError).Stderr)
			}
			var result struct {
				Content []struct{ Type, Text string }
			}
			if err := json.Unmarshal(out, &result); err != nil || len(result.Content) != 1 {
				t.Fatalf("got %q, %v", out, err)
			}
			same(t, result.Content[0].Text, test.want)
		})
	}
}

// peer is a Node.js program of the peers folder.
func peer(t *testing.T, script string, args ...string) *exec.Cmd {
	t.Helper()
	if _, err := os.Stat("peers/node_modules"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("peers are not installed: run make -f xcaddy.mk test, with npm")
		}
		t.Skip("peers are not installed: run make -f xcaddy.mk test, with npm")
	}
	cmd := exec.CommandContext(t.Context(), "node", append([]string{script}, args...)...)
	cmd.Dir = "peers"
	return cmd
}

// start starts a program, waits until it says so on its standard output or
// error, and ends it with the test.
func start(t *testing.T, cmd *exec.Cmd, ready string) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		r.Close()
	})
	w.Close() // so that reading ends with the program
	var said strings.Builder
	for lines := bufio.NewScanner(r); lines.Scan(); {
		said.WriteString(lines.Text() + "\n")
		if strings.Contains(lines.Text(), ready) {
			return
		}
	}
	t.Fatalf("%s ended: %s", cmd, &said)
}
