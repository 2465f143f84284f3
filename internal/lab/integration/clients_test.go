package integration

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// clientDocument is the page whose recipes these tests follow.
const clientDocument = "docs/clients.md"

// A recipe is the section of the page about one client.
type recipe struct {
	files    []configFile
	commands []command
}

// A configFile is a file that the page tells users to write.
type configFile struct {
	path    string // in the client's home if it begins with ~
	content string
}

// The path of a file is at the end of the sentence before it.
var configFiles = regexp.MustCompile("(?m)`([^`\n]+)`:\n\n^```(?:caddyfile|json|toml|yaml)\n((?s:.*?))^```\n")

func recipeIn(text string) (r recipe) {
	for _, block := range configFiles.FindAllStringSubmatch(text, -1) {
		r.files = append(r.files, configFile{block[1], block[2]})
	}
	r.commands = commandsIn(text)
	return r
}

// section returns the text below a heading, split into the part without tokens and the part about tokens.
func section(t *testing.T, heading string) (plain, token string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../..", clientDocument))
	if err != nil {
		t.Fatal(err)
	}
	_, found, ok := strings.Cut(string(text), "\n## "+heading+"\n")
	if !ok {
		t.Fatalf("%s has no section %s", clientDocument, heading)
	}
	found, _, _ = strings.Cut(found, "\n## ")
	plain, token, _ = strings.Cut(found, "\n### With a token\n")
	return plain, token
}

// withToken returns the recipe for use with a token. A file replaces the part of the other file that begins with the
// same line. Commands replace the file or, without one, the first commands.
func (r recipe) withToken(token recipe) recipe {
	for i, file := range token.files {
		first, _, _ := strings.Cut(file.content, "\n")
		before, _, _ := strings.Cut(r.files[i].content, first)
		token.files[i].content = before + file.content
	}
	if len(token.commands) > 0 && len(r.files) == 0 {
		r.commands = r.commands[1:]
	}
	token.commands = slices.Concat(token.commands, r.commands)
	return token
}

// clientExample runs the example of a client, with the lines about tokens if token is set.
func clientExample(t *testing.T, name string, token bool, env ...string) *caddyProcess {
	t.Helper()
	file := "../../../caddyfile_examples/" + name + ".Caddyfile"
	if token {
		caddyfile, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		commented := regexp.MustCompile(`(?s)\t\t#\tclient .*?\t\t#\t}\n`)
		if !commented.Match(caddyfile) {
			t.Fatalf("%s has no client to uncomment", name)
		}
		file = writeCaddyfile(t, commented.ReplaceAllStringFunc(string(caddyfile), uncomment))
	}
	return run(t, file, append(env, "GATEWAY_TOKEN="+exampleToken)...)
}

// uncomment removes the # from lines that are code.
func uncomment(lines string) string {
	return regexp.MustCompile(`(?m)^(\t*)#\t`).ReplaceAllString(lines, "$1")
}

// write writes the files, with the addresses of the running Caddy, and returns their paths.
func (r recipe) write(t *testing.T, home string, served *caddyProcess) (paths []string) {
	t.Helper()
	for _, file := range r.files {
		path := filepath.Join(home, strings.TrimPrefix(file.path, "~"))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(replaceAddresses(file.content, served)), 0o600); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	return paths
}

// replaceAddresses replaces the ports in a text with the addresses of the running Caddy.
func replaceAddresses(text string, served *caddyProcess) string {
	for port, address := range served.addresses {
		text = strings.ReplaceAll(text, "127.0.0.1"+port, address)
	}
	return text
}

// follow runs the commands of a recipe and compares their output with the page.
func (r recipe) follow(t *testing.T, shell *exec.Cmd, served *caddyProcess) {
	t.Helper()
	got := runCommandsIn(t, shell, served, r.commands)
	for i, c := range r.commands {
		if c.output != "" {
			same(t, strings.TrimSpace(got[i]), strings.TrimSpace(replaceAddresses(c.output, served)))
		}
	}
}

// Real clients follow the page, without an account. They use a model that calls a tool of the gateway repeatedly. The
// requests at the model show that they used both the gateway and the model proxy.
func TestClients(t *testing.T) {
	isolate(t)
	programs, err := filepath.Abs("clients/node_modules/.bin")
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("CLIENTS") == "" { // takes minutes, and 1.9 GB
		t.Skip("run make -f xcaddy.mk clients")
	}
	const turns = 60 // within 30, masking old results does not pay
	for _, tt := range []struct {
		client, example, upstream string
		first                     []mcptest.ToolCall // calls before it reads the log
		readLog                   mcptest.ToolCall
	}{
		{
			client: "Claude Code", example: "claude_code", upstream: "ANTHROPIC_UPSTREAM",
			first:   []mcptest.ToolCall{{Name: "ToolSearch", Arguments: `{"query":"select:mcp__gateway__sample__read_log"}`}},
			readLog: mcptest.ToolCall{Name: "mcp__gateway__sample__read_log"},
		},
		{
			client: "Codex", example: "codex", upstream: "LLM_UPSTREAM",
			readLog: mcptest.ToolCall{Name: "sample__read_log", Namespace: "mcp__gateway"},
		},
		{
			client: "Cline", example: "cline", upstream: "LLM_UPSTREAM",
			readLog: mcptest.ToolCall{Name: "gateway__sample__read_log"},
		},
		{
			client: "Continue", example: "continue", upstream: "LLM_UPSTREAM",
			readLog: mcptest.ToolCall{Name: "sample__read_log"},
		},
		{
			client: "Qwen Code", example: "qwen_code", upstream: "LLM_UPSTREAM",
			readLog: mcptest.ToolCall{Name: "mcp__gateway__sample__read_log"},
		},
		{
			client: "Gemini CLI", example: "gemini_cli", upstream: "GEMINI_UPSTREAM",
			readLog: mcptest.ToolCall{Name: "mcp_gateway_sample__read_log"},
		},
		{
			client: "opencode", example: "opencode", upstream: "LLM_UPSTREAM",
			readLog: mcptest.ToolCall{Name: "gateway_sample__read_log"},
		},
	} {
		for _, token := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, token %t", tt.client, token), func(t *testing.T) {
				chat := &mcptest.Chat{Calls: slices.Clone(tt.first)}
				for i := range turns {
					call := tt.readLog
					call.Arguments = fmt.Sprintf(`{"lines":%d}`, 2000+i)
					chat.Calls = append(chat.Calls, call)
				}
				served := clientExample(t, tt.example, token, tt.upstream+"="+upstream(t, chat))
				plain, tokenText := section(t, tt.client)
				instructions := recipeIn(plain)
				if token {
					instructions = instructions.withToken(recipeIn(tokenText))
				}
				home := clientHome(t)
				instructions.write(t, home, served)
				shell, cancel := clientShell(t, home, programs)
				defer cancel()
				// Block telemetry and updates.
				shell.Env = append(shell.Env, "HTTPS_PROXY=http://"+freeAddress(t), "NO_PROXY=127.0.0.1")
				instructions.follow(t, shell, served)

				// The last request contains the whole conversation.
				var last string
				for _, request := range chat.Requests() {
					if strings.Contains(request.Body, `"tools"`) {
						last = request.Body
					}
				}
				cut := len(regexp.MustCompile(`original_chars=\d{6} head=2000 tail=2000 id=obs_`).FindAllString(last, -1))
				gone := strings.Count(last, "[Observation masquée: résultat d’outil ancien (")
				if cut < 5 || gone < 5 || cut+gone != turns {
					t.Errorf("of %d results %d are shortened and %d are placeholders: %.2000s", turns, cut, gone, last)
				}

				look, _ := section(t, "See that it works")
				shell, cancel = clientShell(t, home, programs)
				defer cancel()
				got := runCommandsIn(t, shell, served, commandsIn(look))[0]
				for _, want := range []string{
					fmt.Sprintf(`caddy_mcp_masked_strings_total{server="sample"} %d`, turns),
					fmt.Sprintf(`caddy_mcp_requests_total{gateway="local",method="tools/call",outcome="ok",server="sample"} %d`,
						turns),
					"caddy_mcp_tool_results_masked_total ",
				} {
					if !strings.Contains(got, want) {
						t.Errorf("no %s in %s", want, got)
					}
				}
			})
		}
	}
}

// clientHome returns a folder that may not be empty at the end: some clients leave processes that still write to it
// for a moment.
func clientHome(t *testing.T) string {
	t.Helper()
	home, err := os.MkdirTemp("", "client")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	return home
}

// clientShell returns a shell with its own environment, including a key and a token.
func clientShell(t *testing.T, home string, path ...string) (*exec.Cmd, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	shell := exec.CommandContext(ctx, "bash", "-e", "-c")
	shell.WaitDelay = time.Second // for processes that keep its output open
	shell.Dir = home
	shell.Env = []string{
		"HOME=" + home, "PATH=" + strings.Join(append(path, os.Getenv("PATH")), ":"), "LANG=C.UTF-8", "TERM=dumb",
		"ANTHROPIC_API_KEY=none", "GEMINI_API_KEY=none", "OPENAI_API_KEY=none", "GATEWAY_TOKEN=" + exampleToken,
		"DO_NOT_TRACK=1", "NPM_CONFIG_UPDATE_NOTIFIER=false", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1",
		"CONTINUE_CLI_ENABLE_TELEMETRY=0", "CONTINUE_METRICS_ENABLED=0",
		"OPENCODE_DISABLE_AUTOUPDATE=1", "OPENCODE_DISABLE_MODELS_FETCH=1",
		"CLINE_NO_AUTO_UPDATE=1", "CLINE_SESSION_BACKEND_MODE=local", // else it leaves a process running
	}
	return shell, cancel
}

// The configurations of all clients on the page are valid, even of clients that cannot be installed here: JSON files
// can be parsed, and the example of the client serves every address in its section, with and without a token.
func TestClientConfigurations(t *testing.T) {
	isolate(t)
	for heading, example := range map[string]string{
		"Claude Code": "claude_code", "Codex": "codex", "Cline": "cline", "Continue": "continue",
		"Qwen Code": "qwen_code", "Gemini CLI": "gemini_cli", "opencode": "opencode",
		"Cursor": "cursor", "Inspector": "inspector", "Your own": "cline",
	} {
		for _, token := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, token %t", heading, token), func(t *testing.T) {
				plain, tokenText := section(t, heading)
				text := plain
				if token {
					text = tokenText
				}
				for _, file := range recipeIn(text).files {
					if filepath.Ext(file.path) == ".json" && !json.Valid([]byte(file.content)) {
						t.Errorf("%s is not JSON: %s", file.path, file.content)
					}
				}
				served := clientExample(t, example, token)
				for _, address := range regexp.MustCompile(`http://127\.0\.0\.1:8080(/[a-z0-9/-]*)?`).FindAllString(text, -1) {
					url := replaceAddresses(address, served)
					switch _, path, _ := strings.Cut(url, served.address); {
					case path == "/mcp" || path == "/mcp/":
						got := post(t, strings.TrimSuffix(url, "/"), strings.Split(stdioHandshake, "\n")[0],
							"Accept: application/json, text/event-stream", "Authorization: Bearer "+exampleToken)
						if got.StatusCode != 200 || !strings.Contains(got.body, `"protocolVersion"`) {
							t.Errorf("%s: %d %s", address, got.StatusCode, got.body)
						}
					case path == "/v1" || path == "":
						sendConversation(t, served.address)
					case path == "/api/mcp-gateway/sample/rpc": // the commands call it
					default:
						t.Errorf("unknown address %s", address)
					}
				}
				if token {
					got := post(t, "http://"+served.address+"/mcp", strings.Split(stdioHandshake, "\n")[0])
					if got.StatusCode != 401 {
						t.Errorf("without the token: %d", got.StatusCode)
					}
				}
			})
		}
	}
}

// The commented lines of client examples work when uncommented.
func TestClientExamplesUncommented(t *testing.T) {
	isolate(t)
	setenv(t, "GATEWAY_TOKEN", exampleToken)
	for _, name := range []string{"claude_code", "claude_desktop", "cline", "codex", "continue", "cursor", "gemini_cli",
		"inspector", "opencode", "qwen_code"} {
		t.Run(name, func(t *testing.T) {
			caddyfile, err := os.ReadFile("../../../caddyfile_examples/" + name + ".Caddyfile")
			if err != nil {
				t.Fatal(err)
			}
			// The comment above the first block says how to run it.
			head, rest, _ := strings.Cut(string(caddyfile), "\n\n")
			config := head + "\n\n" + uncomment(rest)
			for _, want := range []string{"server files stdio npx -y", "client "} {
				if !strings.Contains(config, "\t\t"+want) {
					t.Errorf("missing %s", want)
				}
			}
			if _, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(config), nil); err != nil ||
				len(warnings) > 0 {
				t.Errorf("%v %v\n%s", err, warnings, config)
			}
		})
	}
}

// The Inspector, built on the official SDK, reads the configuration of Claude Desktop, starts its command, and calls
// a tool (A42).
func TestClaudeDesktop(t *testing.T) {
	isolate(t)
	plain, _ := section(t, "Claude Desktop")
	instructions := recipeIn(plain)
	if len(instructions.files) != 1 {
		t.Fatalf("got %d files", len(instructions.files))
	}
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	instructions.files[0].content = strings.ReplaceAll(instructions.files[0].content, "/path/to/", root+"/")
	binary(t) // the command starts it
	home := clientHome(t)
	config := instructions.write(t, home, &caddyProcess{})[0]
	for _, tt := range []struct{ tool, arguments, want string }{
		{"sample__echo", `{"text":"é"}`, "é"},
		{"sample__read_log", `{"lines":2000}`, "KIMI_PROXY_OBSERVATION_MASKED original_chars=215459 head=2000 tail=2000 " +
			"id=obs_"},
		{"pruner__health", `{}`, "heuristic"},
	} {
		t.Run(tt.tool, func(t *testing.T) {
			cmd := peer(t, "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js", "--cli",
				"--config", config, "--server", "gateway", "--format", "json", "--quiet",
				"--method", "tools/call", "--tool-name", tt.tool, "--tool-args-json", tt.arguments)
			cmd.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH")} // nearly empty, as in Claude Desktop
			if got := runJSON[struct{ Result peerResult }](t, cmd, nil).Result.text(); !strings.Contains(got, tt.want) {
				t.Errorf("got %.300s", got)
			}
		})
	}
}

// The Inspector follows the page.
func TestInspectorRecipe(t *testing.T) {
	isolate(t)
	for _, token := range []bool{false, true} {
		t.Run(fmt.Sprintf("token %t", token), func(t *testing.T) {
			dir := peer(t, "").Dir // npx finds the Inspector here
			plain, tokenText := section(t, "Inspector")
			instructions := recipeIn(plain)
			if token {
				instructions = recipeIn(tokenText)
			}
			shell, cancel := clientShell(t, clientHome(t))
			defer cancel()
			shell.Dir = dir
			instructions.follow(t, shell, clientExample(t, "inspector", token))
		})
	}
}

// The program of the page works with the official SDK, and so does its curl command.
func TestOwnClientRecipe(t *testing.T) {
	isolate(t)
	served := clientExample(t, "cline", false)
	text, _ := section(t, "Your own")
	program := regexp.MustCompile("(?m)^```js\n([^`]*)^```\n").FindStringSubmatch(text)
	if program == nil {
		t.Fatal("the page has no program")
	}
	out, err := peer(t, "--input-type=module", "--eval", replaceAddresses(program[1], served)).CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "hello" {
		t.Errorf("%v: %s", err, out)
	}
	instructions := recipeIn(text)
	shell, cancel := clientShell(t, clientHome(t))
	defer cancel()
	instructions.follow(t, shell, served)
	if len(instructions.commands) == 0 {
		t.Error("the page has no commands")
	}
}

// Clients read files with their own tools. Each request of a client is compared with what reached
// the model: old results are placeholders, a provider would accept the conversation, and every
// other byte is unchanged.
func TestClientsMasked(t *testing.T) {
	isolate(t)
	if os.Getenv("CLIENTS") == "" {
		t.Skip("run make -f xcaddy.mk clients")
	}
	programs, err := filepath.Abs("clients/node_modules/.bin")
	if err != nil {
		t.Fatal(err)
	}
	const files, lines, window = 14, 250, 4
	for _, tt := range []struct {
		client, example, upstream string
		tool, arguments           string // format strings with the path of a file
	}{
		{"Claude Code", "claude_code", "ANTHROPIC_UPSTREAM", "Read", `{"file_path":%q}`},
		{"Codex", "codex", "LLM_UPSTREAM", "exec_command", `{"cmd":"cat %s"}`},
		{"Qwen Code", "qwen_code", "LLM_UPSTREAM", "read_file", `{"file_path":%q}`},
		{"Gemini CLI", "gemini_cli", "GEMINI_UPSTREAM", "read_file", `{"file_path":%q}`},
		{"opencode", "opencode", "LLM_UPSTREAM", "read", `{"filePath":%q}`},
	} {
		for _, policy := range []struct {
			name   string
			lines  []string
			slides bool // each result that leaves the window is masked at once
		}{
			{"sliding", []string{"window_turns 4"}, true},
			// With these prices masking pays off within few turns.
			{"auto", []string{"window_turns 4", "clear_at_least auto", "cache_prices 0.5 1", "max_loss 20%",
				"min_mask_chars 800"}, false},
		} {
			t.Run(tt.client+", "+policy.name, func(t *testing.T) {
				home := clientHome(t)
				chat := new(mcptest.Chat)
				for i := range files {
					path := filepath.Join(home, fmt.Sprintf("chapter%02d.txt", i+1))
					line := fmt.Sprintf("chapter %d, line %%d: the quick brown fox jumps over the lazy dog", i+1)
					if err := os.WriteFile(path, []byte(withLines(lines, line, nil)), 0o600); err != nil {
						t.Fatal(err)
					}
					chat.Calls = append(chat.Calls, mcptest.ToolCall{Name: tt.tool, Arguments: fmt.Sprintf(tt.arguments, path)})
				}
				served := run(t, withMask(t, tt.example, policy.lines...), tt.upstream+"="+upstream(t, chat))
				tap := newTap(served.address)
				served.addresses[":8080"] = upstream(t, tap)

				plain, _ := section(t, tt.client)
				instructions := recipeIn(plain)
				instructions.write(t, home, served)
				shell, cancel := clientShell(t, home, programs)
				defer cancel()
				// Block updates and telemetry.
				shell.Env = append(shell.Env, "HTTPS_PROXY=http://"+freeAddress(t), "NO_PROXY=127.0.0.1")
				out := runCommandsIn(t, shell, served, instructions.commands)
				if last := out[len(instructions.commands)-1]; !slices.Contains(strings.Fields(last), "ok") {
					t.Errorf("the client does not show the last message of the model: %s", last)
				}

				var uses []toolUse // of the longest request; others are for a title, for example
				total := 0
				for _, request := range chat.Requests() {
					sent := tap.sent(t, request)
					found, masked := maskedUses(t, sent, request.Body)
					if old := max(0, len(found)-window); masked > old || masked < old && policy.slides {
						t.Errorf("%d of %d results are masked", masked, len(found))
					}
					total += masked
					if len(found) > len(uses) {
						uses = found
						t.Logf("%d calls, %d results masked: %d of %d bytes", len(found), masked, len(request.Body), len(sent))
					}
				}
				if len(uses) != files {
					t.Fatalf("got %d results in the longest request", len(uses))
				}
				for i, use := range uses {
					if use.tool != tt.tool || !strings.Contains(use.text, fmt.Sprintf("chapter %d, line %d:", i+1, lines)) {
						t.Errorf("call %d of %s: got result %q", i+1, use.tool, use.text)
					}
				}
				if count := metricOf(t, served, "tool_results_masked_total"); count != total || total == 0 {
					t.Errorf("%d results are masked, but %d counted", total, count)
				}
			})
		}
	}
}

// withMask returns an example with other lines for its tool_result_mask.
func withMask(t *testing.T, example string, lines ...string) string {
	t.Helper()
	caddyfile, err := os.ReadFile("../../../caddyfile_examples/" + example + ".Caddyfile")
	if err != nil {
		t.Fatal(err)
	}
	mask := regexp.MustCompile(`(?s)(\ttool_result_mask [^{]*\{\n).*?(\n\t+\})`)
	if !mask.Match(caddyfile) {
		t.Fatalf("%s has no tool_result_mask", example)
	}
	return writeCaddyfile(t, mask.ReplaceAllString(string(caddyfile), "${1}"+strings.Join(lines, "\n")+"${2}"))
}

// A tap is a proxy between a client and Caddy. It numbers requests and keeps their bodies.
type tap struct {
	*httputil.ReverseProxy
	mu     sync.Mutex
	bodies []string
}

const tapHeader = "Tap-Number"

func newTap(address string) *tap {
	return &tap{ReverseProxy: &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: "http", Host: address})
	}}}
}

func (p *tap) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	p.mu.Lock()
	r.Header.Set(tapHeader, strconv.Itoa(len(p.bodies)))
	p.bodies = append(p.bodies, string(body))
	p.mu.Unlock()
	p.ReverseProxy.ServeHTTP(w, r)
}

// sent returns the body that the client sent, for a request that arrived at the model.
func (p *tap) sent(t *testing.T, arrived mcptest.Request) string {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	n, err := strconv.Atoi(arrived.Headers.Get(tapHeader))
	if err != nil || n >= len(p.bodies) {
		t.Fatalf("%s %s did not pass the tap: %v", arrived.Method, arrived.Path, err)
	}
	return p.bodies[n]
}

// maskedUses returns the calls of a request with their unmasked results, and how many of these
// became placeholders. Only the first ones may be masked, and nothing else may differ.
func maskedUses(t *testing.T, sent, got string) (uses []toolUse, masked int) {
	t.Helper()
	uses, err := toolUses(sent)
	if err != nil {
		t.Fatalf("sent: %v", err)
	}
	arrived, err := toolUses(got)
	if err != nil {
		t.Fatalf("arrived: %v", err)
	}
	if len(arrived) != len(uses) {
		t.Fatalf("%d of %d results arrived", len(arrived), len(uses))
	}
	want := sent
	for i, use := range uses {
		if arrived[i].text == use.text {
			continue
		}
		if i != masked {
			t.Errorf("result %d is masked, but not %d", i+1, masked+1)
		}
		masked++
		if strings.Count(want, use.quoted) != 1 {
			t.Fatalf("%q is sent more than once", use.text)
		}
		want = strings.Replace(want, use.quoted, quote(placeholder(use.id, use.tool, utf8.RuneCountInString(use.text))), 1)
	}
	same(t, got, want)
	return uses, masked
}

// A toolUse is a tool call with its result.
type toolUse struct {
	id, tool string
	text     string // of the result
	quoted   string // text as JSON in the request, with quotes
}

// A wirePart is a message, a part of one or an item, in any format.
type wirePart struct {
	Type, Role string
	ID, Name   string
	CallID     string `json:"call_id"`
	ToolCallID string `json:"tool_call_id"`
	ToolUseID  string `json:"tool_use_id"`
	ToolCalls  []struct {
		ID       string
		Function struct{ Name string }
	} `json:"tool_calls"`
	Content, Output  json.RawMessage
	Parts            []wirePart
	FunctionCall     *struct{ ID, Name string }
	FunctionResponse *struct {
		ID, Name string
		Response json.RawMessage
	}
}

// toolUses parses the calls and results of a request. It is as strict as providers for a model that
// makes one call at a time: the next message or item must be the result, with the same id and some
// text.
func toolUses(body string) (uses []toolUse, err error) {
	var request struct{ Messages, Input, Contents []wirePart }
	if err := json.Unmarshal([]byte(body), &request); err != nil {
		return nil, err
	}
	open := false
	call := func(id, tool string) error {
		if open || id == "" || tool == "" {
			return fmt.Errorf("call %q of %q", id, tool)
		}
		open = true
		uses = append(uses, toolUse{id: id, tool: tool})
		return nil
	}
	result := func(id, tool string, content json.RawMessage) error {
		last := len(uses) - 1
		if !open || uses[last].id != id || tool != "" && uses[last].tool != tool {
			return fmt.Errorf("result of %q, which is not an open call", id)
		}
		open = false
		return uses[last].setText(content)
	}
	var read func(p wirePart) error
	read = func(p wirePart) error {
		switch {
		case p.Type == "tool_use":
			return call(p.ID, p.Name)
		case p.Type == "function_call":
			return call(p.CallID, p.Name)
		case p.FunctionCall != nil:
			return call(p.FunctionCall.ID, p.FunctionCall.Name)
		case p.Role == "tool", p.Type == "tool_result", p.Type == "function_call_output":
			return result(cmp.Or(p.ToolCallID, p.ToolUseID, p.CallID), "", slices.Concat(p.Content, p.Output))
		case p.FunctionResponse != nil:
			return result(p.FunctionResponse.ID, p.FunctionResponse.Name, p.FunctionResponse.Response)
		}
		parts := p.Parts
		if bytes.HasPrefix(p.Content, []byte("[")) {
			if err := json.Unmarshal(p.Content, &parts); err != nil {
				return err
			}
		}
		for _, part := range parts {
			if err := read(part); err != nil {
				return err
			}
		}
		for _, c := range p.ToolCalls {
			if err := call(c.ID, c.Function.Name); err != nil {
				return err
			}
		}
		return nil
	}
	for i, message := range slices.Concat(request.Messages, request.Input, request.Contents) {
		before := open
		if err := read(message); err != nil {
			return nil, fmt.Errorf("message %d: %w", i, err)
		}
		if before && open {
			return nil, fmt.Errorf("message %d comes before the result of %q", i, uses[len(uses)-1].id)
		}
	}
	if open {
		return nil, fmt.Errorf("%q has no result", uses[len(uses)-1].id)
	}
	return uses, nil
}

// setText sets the only text of a result: a string, a part in a list, or a member of an object as
// in Gemini's format.
func (u *toolUse) setText(content json.RawMessage) error {
	var parts []struct {
		Type string
		Text json.RawMessage
	}
	var response map[string]json.RawMessage
	spelled := content
	switch {
	case json.Unmarshal(content, &parts) == nil && len(parts) == 1 && parts[0].Type == "text":
		spelled = parts[0].Text
	case json.Unmarshal(content, &response) == nil && len(response) == 1:
		spelled = response["output"]
	}
	u.quoted = string(spelled)
	if err := json.Unmarshal(spelled, &u.text); err != nil {
		return fmt.Errorf("result of %q: %w", u.id, err)
	}
	if u.text == "" {
		return errors.New("empty result of " + u.id)
	}
	return nil
}

// metricOf returns a counter of a process, 0 if it has not counted yet.
func metricOf(t *testing.T, served *caddyProcess, name string) int {
	t.Helper()
	metrics := askAdmin(t, served.addresses[":2019"], "GET", "/metrics", "").body
	found := regexp.MustCompile(`(?m)^caddy_mcp_` + name + ` (\d+)$`).FindStringSubmatch(metrics)
	if found == nil {
		return 0
	}
	n, err := strconv.Atoi(found[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}
