package integration

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// The reference server responds with event streams and writes result before jsonrpc. The
// official client validates responses against its schemas.
func TestOfficialClientAndReferenceServer(t *testing.T) {
	isolate(t)
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

// TestOfficialModelClients sends requests of the official model SDKs through the mask to a
// model API (T1, T26, T36).
func TestOfficialModelClients(t *testing.T) {
	isolate(t)
	for _, tt := range []struct {
		mode, script, base string
		format             chatFormat
	}{
		{"chat", "openai.mjs", "/v1", chatFormats[0]},
		{"chat-stream", "openai.mjs", "/v1", chatFormats[0]},
		{"responses", "openai.mjs", "/v1", chatFormats[2]},
		{"responses-stream", "openai.mjs", "/v1", chatFormats[2]},
		{"messages", "anthropic.mjs", "", chatFormats[1]},
		{"messages-stream", "anthropic.mjs", "", chatFormats[1]},
	} {
		for _, encoding := range []string{"plain", "gzip"} {
			for _, compressed := range []bool{false, true} {
				t.Run(fmt.Sprintf("T36 %s, %s request, response compressed %t", tt.mode, encoding, compressed), func(t *testing.T) {
					chat := &mcptest.Chat{Compress: compressed}
					url := serve(t, windowOfOne, proxy(upstream(t, chat)))
					grown := growth(t)
					cmd := peer(t, tt.script, url+tt.base, tt.mode, encoding)
					cmd.Stdin = strings.NewReader(tt.format.sent)
					out, err := cmd.Output()
					if err != nil {
						t.Fatalf("%v: %s", err, err.(*exec.ExitError).Stderr)
					}
					var output struct {
						Text  string
						Usage struct {
							Prompt     int `json:"prompt_tokens"`
							Completion int `json:"completion_tokens"`
							Input      int `json:"input_tokens"`
							Read       int `json:"cache_read_input_tokens"`
							Written    int `json:"cache_creation_input_tokens"`
							Output     int `json:"output_tokens"`
						}
					}
					if err := json.Unmarshal(out, &output); err != nil {
						t.Fatalf("got %q, %v", out, err)
					}
					u := output.Usage
					if output.Text != "ok" || u.Prompt+u.Input+u.Read+u.Written != 1000 || u.Completion+u.Output != 20 {
						t.Errorf("the client got %s", out)
					}
					last := chat.Last()
					if last.Path != tt.format.path || last.Headers.Get("Content-Length") != strconv.Itoa(len(last.Body)) ||
						last.Headers.Get("Content-Encoding") != "" {
						t.Errorf("the model received %s with %v", last.Path, last.Headers)
					}
					// The client encodes the request itself, so compare the decoded JSON.
					var got, want map[string]any
					if err := json.Unmarshal([]byte(last.Body), &got); err != nil {
						t.Fatal(err)
					}
					_ = json.Unmarshal([]byte(tt.format.masked), &want)
					for _, list := range []string{"messages", "input"} {
						if !reflect.DeepEqual(got[list], want[list]) {
							t.Errorf("%s was received as %.2000v\nwant %.2000v", list, got[list], want[list])
						}
					}
					if got := grown()["tool_results_masked_total"]; got != 1 {
						t.Errorf("%v results masked, want 1", got)
					}
				})
			}
		}
	}
}

// peer returns a command for a Node.js program in the peers folder. It skips the test if the
// peers are not installed.
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

// start starts a program and waits until its standard output or error contains ready. The
// program is killed at the end of the test.
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
	w.Close() // reading ends when the program exits
	var output strings.Builder
	for lines := bufio.NewScanner(r); lines.Scan(); {
		output.WriteString(lines.Text() + "\n")
		if strings.Contains(lines.Text(), ready) {
			return
		}
	}
	t.Fatalf("%s ended: %s", cmd, &output)
}
