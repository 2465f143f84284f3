package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpsample"
)

// The clients of the rules example can do what it says.
func TestExampleOfRules(t *testing.T) {
	isolate(t)
	exampleSecrets(t)
	served := run(t, "../../../caddyfile_examples/mcp_gateway_rules.Caddyfile")
	typed := []command{
		{"bin/caddy mcp tools --client reader | grep -o 'sample__[a-z_]*'\n",
			"sample__read_log\nsample__list_files\nsample__ping"},
		{"bin/caddy mcp tools --client agent --why sample::read_image | grep -o 'read_image.*'\n",
			"read_image  confirm  confirm destructive"},
		{"bin/caddy mcp call sample::ping --client agent\n", "pong"},
		{"bin/caddy mcp call sample::read_log lines=1 --client agent | wc -l\n", "1"},
		{"bin/caddy mcp call sample::read_log lines=10001 --client agent || true\n", "Error: Access denied (acl_denied)"},
		{"bin/caddy mcp call sample::echo --client agent 2>&1 | grep -o 'unknown tool' || true\n", "unknown tool"},
	}
	for i, got := range runCommands(t, served, typed)[:len(typed)] {
		same(t, strings.TrimSpace(got), typed[i].output)
	}
	if log := served.stop(t); strings.Count(log, `"msg":"call"`) < 2 || !strings.Contains(log, `"mcp_tool":"echo"`) {
		t.Errorf("calls are missing in the audit log: %s", log)
	}
}

// shippedFiles returns the Caddyfiles for users: the one at the root and every example.
func shippedFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("../../../caddyfile_examples/*.Caddyfile")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	return append(files, "../../../Caddyfile")
}

// withFreePorts replaces the ports of a shipped Caddyfile (8080 and following, and 8006 of the
// pruner) with free ones, and returns the new address of each.
func withFreePorts(t *testing.T, caddyfile string) (moved string, addresses map[string]string) {
	t.Helper()
	addresses = map[string]string{}
	moved = movePorts(t, caddyfile, addresses)
	if addresses[":8080"] == "" && addresses[":8006"] == "" {
		t.Fatal("the file uses neither port 8080 nor 8006")
	}
	return moved, addresses
}

// movePorts does the same with known addresses, and adds new ones to them.
func movePorts(t *testing.T, caddyfile string, addresses map[string]string) string {
	t.Helper()
	return regexp.MustCompile(`:80(?:06|[89]\d)\b`).ReplaceAllStringFunc(caddyfile, func(port string) string {
		if addresses[port] == "" {
			addresses[port] = freeAddress(t)
		}
		return strings.TrimPrefix(addresses[port], "127.0.0.1")
	})
}

// callReadLog calls for 2000 log lines and expects the masked result of the sample server.
func callReadLog(t *testing.T, url string) {
	t.Helper()
	call := rpc("tools/call", `{"name":"read_log","arguments":{"lines":2000}}`)
	text := toolText(t, post(t, "http://"+upstream(t, mcpsample.NewServer()), call).body)
	want := text[:2000] + fmt.Sprintf("\n... [KIMI_PROXY_OBSERVATION_MASKED original_chars=%d head=2000 tail=2000] ...\n",
		len(text)) + text[len(text)-2000:]

	handle := regexp.MustCompile(` id=obs_[A-Za-z0-9]{10}]` + regexp.QuoteMeta(hint))
	for _, accept := range []string{"application/json", "application/json, text/event-stream"} {
		got := post(t, url, call, "Accept: "+accept, "Authorization: Bearer "+exampleToken).body
		data := strings.TrimPrefix(got, "event: message\ndata: ")
		same(t, handle.ReplaceAllString(toolText(t, data), "]"), want)
	}
}

// sendConversation sends the sample conversation to the stub model, which returns how much reached
// it, and expects a good part to be masked.
func sendConversation(t *testing.T, address string) {
	t.Helper()
	conversation, err := os.ReadFile("../../../caddyfile_examples/conversation.json")
	if err != nil {
		t.Fatal(err)
	}
	got := post(t, "http://"+address+"/v1/chat/completions", string(conversation)).body
	var reached int
	if _, err := fmt.Sscanf(got, "%d bytes have reached the model", &reached); err != nil {
		t.Fatalf("%v: %q", err, got)
	}
	if reached < 1000 || reached > len(conversation)*2/3 {
		t.Errorf("%d bytes of %d have reached the model", reached, len(conversation))
	}
}

// pruneLog prunes a log, and recovers the removed lines.
func pruneLog(t *testing.T, endpoint string) {
	t.Helper()
	got := pruneText(t, endpoint, prunable{text: withLines(1000, "INFO request %d served",
		map[int]string{400: "ERROR x"}), source: "logs"})
	if len(got.Annotations) == 0 {
		t.Fatalf("nothing was pruned: %+v %v", got.Stats, got.Warnings)
	}
	first := got.Annotations[0].Start
	if line := recoverLines(t, endpoint, got.PruneID, false, first,
		first).Text; line != fmt.Sprintf("INFO request %d served", first) {
		t.Errorf("line %d: got %q", first, line)
	}
}

// toolText returns the text of the result of a tool call.
func toolText(t *testing.T, message string) string {
	t.Helper()
	var response struct {
		Result struct {
			Content []struct{ Text string }
		}
	}
	if err := json.Unmarshal([]byte(message), &response); err != nil || len(response.Result.Content) != 1 {
		t.Fatalf("%v: %.300s", err, message)
	}
	return response.Result.Content[0].Text
}

// exampleToken is the token of clients in the examples.
const exampleToken = "a-token-that-is-good-for-the-examples"

// exampleSecrets sets the environment variables that the examples use.
func exampleSecrets(t *testing.T) {
	t.Helper()
	setenv(t, "CLINE_TOKEN", exampleToken)
	setenv(t, "CI_TOKEN", exampleToken+"-of-another-client")
	setenv(t, "READER_TOKEN", exampleToken+"-reader")
	setenv(t, "AGENT_TOKEN", exampleToken)
	setenv(t, "MCP_TOKEN", exampleToken)
	setenv(t, "MCP_SESSION_KEY", exampleToken)
	setenv(t, "OPERATOR_TOKEN", exampleToken+"-operator")
}

func TestShippedCaddyfiles(t *testing.T) {
	isolate(t)
	exampleSecrets(t)
	for _, file := range shippedFiles(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			caddyfile, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			_, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt(caddyfile, map[string]any{"filename": file})
			if err != nil || len(warnings) > 0 {
				t.Fatalf("adapt: %v %v", err, warnings)
			}
			moved, addresses := withFreePorts(t, string(caddyfile))
			load(t, moved)
			if strings.Contains(string(caddyfile), "\tmcp_sample") {
				path := "/mcp"
				if strings.Contains(string(caddyfile), "\tmcp_gateway") {
					path += "/sample"
				}
				callReadLog(t, "http://"+addresses[":8080"]+path)
			}
			if strings.Contains(string(caddyfile), "\tmcp_pruner") {
				endpoint := "http://" + addresses[":8006"] + "/rpc"
				if strings.Contains(string(caddyfile), "\tmcp_gateway") {
					endpoint = rpcAt("http://"+addresses[":8080"], "pruner")
				}
				pruneLog(t, endpoint)
			}
			if strings.Contains(string(caddyfile), "\ttool_result_mask ") {
				sendConversation(t, addresses[":8080"])
			}
			if strings.Contains(string(caddyfile), "metrics /metrics") {
				metrics := send(t, client, "GET", "http://"+addresses[":8082"]+"/metrics", "").body
				if !strings.Contains(metrics, "caddy_mcp_masked_chars_total{server=\"sample\"} ") {
					t.Errorf("no masked characters in the metrics:\n%s", metrics)
				}
			}
		})
	}
}
