package integration

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
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
	for i, tt := range []struct {
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
				if i > 0 && compressed != (encoding == "gzip") {
					continue // the first mode has all combinations
				}
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
		skipMissing(t, "peers are not installed: run make -f xcaddy.mk test, with npm")
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

// nodeModules is the path of the npm packages of peers.
const nodeModules = "peers/node_modules/"

// Official clients call official servers through the gateway: child processes, Streamable HTTP and
// HTTP+SSE.
func TestGatewayPeers(t *testing.T) {
	isolate(t)
	everything := nodeModules + "@modelcontextprotocol/server-everything/dist/index.js"
	filesystem := nodeModules + "@modelcontextprotocol/server-filesystem/dist/index.js"
	thinking := nodeModules + "@modelcontextprotocol/server-sequential-thinking/dist/index.js"
	fast := nodeModules + "fast-filesystem-mcp/dist/index.js"
	dir, err := filepath.EvalSymlinks(t.TempDir()) // as servers see it
	if err != nil {
		t.Fatal(err)
	}
	short, long := filepath.Join(dir, "short.txt"), filepath.Join(dir, "long.txt")
	for name, text := range map[string]string{short: "written by the test: é", long: strings.Repeat("é", 5000)} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	url := serve(t, patientGateway(
		block("server everything stdio node "+everything+" stdio", "roots file:///configured", "start_timeout 2m"),
		block("server own stdio node "+everything+" stdio", "isolation session", "start_timeout 2m"),
		block("server one stdio node "+everything+" stdio", "isolation none", "start_timeout 2m"),
		"server streamable http://"+everythingOver(t, "streamableHttp", "listening on port")+"/mcp",
		"server sse http://"+everythingOver(t, "sse", "running on port")+"/sse",
		block("server files stdio node "+filesystem+" "+dir, "mask", "start_timeout 2m"),
		block("server whole stdio node "+filesystem+" "+dir, "mask off", "start_timeout 2m"),
		block("server thinking stdio node "+thinking, "isolation session", "start_timeout 2m"),
		block("server fast stdio node "+fast+" --allow "+dir, "start_timeout 2m"),
		"server reference stdio "+programs()+"/server",
	))
	read := func(tool, path string) toolCall { return toolCall{tool, fmt.Sprintf(`{"path":%q}`, path)} }
	masked := strings.Repeat("é", 2000) + "\n... [KIMI_PROXY_OBSERVATION_MASKED original_chars=5000 head=2000 " +
		"tail=2000] ...\n" + strings.Repeat("é", 2000)
	echo, sum := toolCall{"echo", `{"message":"hé"}`}, toolCall{"get-sum", `{"a":2,"b":40}`}
	slow := toolCall{"trigger-long-running-operation", `{"duration":0.3,"steps":3}`}
	think := toolCall{"sequentialthinking", `{"thought":"hm","thoughtNumber":1,"totalThoughts":3,` +
		`"nextThoughtNeeded":true}`}

	// Without handshake, session or event stream.
	t.Run("rpc", func(t *testing.T) {
		for _, tt := range []struct {
			server string
			call   toolCall
			want   string
		}{
			{"everything", echo, "Echo: hé"},
			{"everything", sum, "The sum of 2 and 40 is 42."},
			{"own", sum, "The sum of 2 and 40 is 42."},
			{"files", read("read_text_file", short), "written by the test: é"},
			{"files", read("read_text_file", long), masked},
			{"whole", read("read_text_file", long), strings.Repeat("é", 5000)},
			{"thinking", think, `"thoughtNumber": 1`},
			{"fast", read("fast_read_file", short), "written by the test: é"},
			{"reference", toolCall{"test_simple_text", `{}`}, "simple text"},
		} {
			t.Run(tt.call.Name+" of "+tt.server, func(t *testing.T) {
				got := post(t, rpcAt(url, tt.server), tt.call.request())
				if text := toolText(t, got.body); got.StatusCode != 200 || !strings.Contains(text, tt.want) {
					t.Errorf("got %d %.300s", got.StatusCode, text)
				}
			})
		}
		t.Run("a server request gets a response", func(t *testing.T) {
			got := post(t, rpcAt(url, "one"), toolCall{"trigger-sampling-request", `{"prompt":"?"}`}.request())
			if text := toolText(t, got.body); !strings.Contains(text, "-32601") {
				t.Errorf("got %d %s", got.StatusCode, text)
			}
		})
	})
	// A shared child requests roots once. Without a connected client it gets the configured ones.
	if text := toolText(t, post(t, rpcAt(url, "everything"),
		toolCall{"get-roots-list", `{}`}.request()).body); !strings.Contains(text, "file:///configured") {
		t.Errorf("roots: %s", text)
	}
	t.Run("raw progress", func(t *testing.T) {
		got := post(t, mcpAt(url, "everything"),
			rpc("tools/call", `{"name":"trigger-long-running-operation","arguments":{"duration":0.3,"steps":3},`+
				`"_meta":{"progressToken":"mine"}}`), "Accept: application/json, text/event-stream")
		events := strings.SplitAfter(got.body, "\n\n")
		if len(events) != 5 {
			t.Fatalf("got %q", got.body)
		}
		for i, event := range events[:3] {
			if !strings.Contains(event, `"progressToken":"mine"`) || !strings.Contains(event, fmt.Sprintf(`"progress":%d`,
				i+1)) {
				t.Errorf("event %d: got %q", i, event)
			}
		}
		if !strings.Contains(events[3], "operation completed") || got.Header.Get("Content-Type") != "text/event-stream" {
			t.Errorf("got %v, last %q", got.Header, events[3])
		}
	})

	type calls []struct {
		call toolCall
		want string // part of its text
	}
	general := calls{{echo, "Echo: hé"}, {sum, "The sum of 2 and 40 is 42."}, {slow, "completed"}}
	// Server requests go to the client that called.
	questions := func(self, root string) calls {
		return calls{
			{toolCall{"trigger-sampling-request", `{"prompt":"why"}`},
				self + " was asked: Resource trigger-sampling-request context: why"},
			{toolCall{"trigger-elicitation-request", `{}`}, "- Name: " + self},
			{toolCall{"get-roots-list", `{}`}, "file:///" + root},
		}
	}
	for _, tt := range []struct {
		name, server, era string
		calls             calls
		asked             calls // by a client that answers server requests
	}{
		{"alone", "everything", "", nil, questions("alone", "configured")}, // the others wait
		{"everything", "everything", "auto", general, nil},
		{"own", "own", "", general, questions("own", "own")},
		{"another", "own", "", nil, questions("another", "another")}, // at the same time
		{"streamable", "streamable", "", general, questions("streamable", "streamable")},
		{"sse", "sse", "legacy", general, questions("sse", "sse")},
		{"files", "files", "", calls{{read("read_text_file", long), masked}, {read("read_text_file", short),
			"written by the test: é"}}, nil},
		{"whole", "whole", "", calls{{read("read_text_file", long), strings.Repeat("é", 5000)}}, nil},
		// the state is per session
		{"thinking", "thinking", "", calls{{think, `"thoughtHistoryLength": 1`}, {think, `"thoughtHistoryLength": 2`}},
			nil},
		{"fast", "fast", "", calls{{read("fast_read_file", short), "written by the test: é"}}, nil},
		{"reference", "reference", "modern", calls{{toolCall{"test_simple_text", `{}`}, "simple text"}}, nil},
	} {
		check := func(t *testing.T, call func(*testing.T, peerCalls) peerOutcome, calls calls) {
			do := peerCalls{endpoint: mcpAt(url, tt.server), sse: tt.server == "sse", self: tt.name, era: tt.era}
			for _, c := range calls {
				do.calls = append(do.calls, c.call)
			}
			outcome := call(t, do)
			if modern := outcome.Version == "2026-07-28"; outcome.Version != "" && modern != (tt.server == "reference") {
				t.Errorf("negotiated %s", outcome.Version)
			}
			for i, c := range calls {
				got := outcome.Calls[i]
				if !slices.Contains(outcome.Tools, c.call.Name) {
					t.Errorf("%s is not in the tools %v", c.call.Name, outcome.Tools)
				}
				if text := got.Result.text(); got.Result.IsError || !strings.Contains(text, c.want) {
					t.Errorf("%s: error %t: %.300q\nwant %.300q", c.call.Name, got.Result.IsError, text, c.want)
				}
				// The SDKs drop progress that arrives with the result.
				if progress := fmt.Sprint(got.Progress); c.call == slow && !strings.HasPrefix("[1 2 3]",
					strings.TrimSuffix(progress, "]")) {
					t.Errorf("progress %s", progress)
				}
			}
		}
		t.Run(tt.name+"/TypeScript SDK", func(t *testing.T) {
			if tt.name != "alone" {
				t.Parallel()
			}
			check(t, callWithTypeScript, slices.Concat(tt.calls, tt.asked))
		})
		if tt.calls != nil {
			t.Run(tt.name+"/Go SDK", func(t *testing.T) {
				t.Parallel()
				check(t, callWithGo, tt.calls)
			})
		}
		if tt.era != "" {
			t.Run(tt.name+"/Inspector", func(t *testing.T) {
				t.Parallel()
				check(t, callWithInspector, tt.calls[:1])
			})
		}
	}
}

// everythingOver starts the reference server over HTTP and returns its address.
func everythingOver(t *testing.T, transport, ready string) string {
	t.Helper()
	server := peer(t, "node_modules/@modelcontextprotocol/server-everything/dist/index.js", transport)
	address := freeAddress(t)
	_, port, _ := net.SplitHostPort(address)
	server.Env = append(os.Environ(), "PORT="+port)
	start(t, server, ready)
	return address
}

// toolCall is a tool call with its arguments as JSON.
type toolCall struct{ Name, Arguments string }

func (c toolCall) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, `{"name":%q,"arguments":%s}`, c.Name, c.Arguments), nil
}

// request returns the JSON-RPC request with id 1 that makes the call.
func (c toolCall) request() string {
	return rpc("tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, c.Name, c.Arguments))
}

// peerCalls are the calls of a client.
type peerCalls struct {
	endpoint string
	sse      bool   // over HTTP+SSE
	self     string // its name in answers to server requests
	era      string // era that it tries first
	calls    []toolCall
}

// peerOutcome is the output of a client.
type peerOutcome struct {
	Version string // of the protocol; empty if unknown
	Tools   []string
	Calls   []struct {
		Result   peerResult
		Progress []float64
	}
}

type peerResult struct {
	IsError bool
	Content []struct{ Text string }
}

// text returns the joined texts of a result.
func (r peerResult) text() string {
	var texts []string
	for _, part := range r.Content {
		texts = append(texts, part.Text)
	}
	return strings.Join(texts, "\n")
}

// callWithTypeScript makes the calls with the official TypeScript SDK.
func callWithTypeScript(t *testing.T, calls peerCalls) (outcome peerOutcome) {
	t.Helper()
	transport := "http"
	if calls.sse {
		transport = "sse"
	}
	return runJSON[peerOutcome](t, peer(t, "call.mjs", calls.endpoint, transport, calls.self), calls.calls)
}

// callWithGo makes the calls with the official Go SDK.
func callWithGo(t *testing.T, calls peerCalls) peerOutcome {
	t.Helper()
	var args []string
	if calls.sse {
		args = append(args, "-sse")
	}
	return runJSON[peerOutcome](t, exec.CommandContext(t.Context(), filepath.Join(programs(), "client"),
		append(args, calls.endpoint)...), calls.calls)
}

// callWithInspector makes the calls with the command line of the Inspector.
func callWithInspector(t *testing.T, calls peerCalls) (outcome peerOutcome) {
	t.Helper()
	inspector := func(args ...string) *exec.Cmd {
		transport := "http"
		if calls.sse {
			transport = "sse"
		}
		cmd := peer(t, "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js",
			append([]string{"--cli", calls.endpoint, "--transport", transport, "--protocol-era", calls.era, "--format", "json",
				"--quiet"}, args...)...)
		cmd.Env = append(os.Environ(), "HOME="+t.TempDir()) // where it stores a catalog
		return cmd
	}
	type listed struct {
		Result struct{ Tools []struct{ Name string } }
	}
	for _, tool := range runJSON[listed](t, inspector("--method", "tools/list"), nil).Result.Tools {
		outcome.Tools = append(outcome.Tools, tool.Name)
	}
	for _, call := range calls.calls {
		type called struct {
			Result   peerResult
			Progress []float64
		}
		outcome.Calls = append(outcome.Calls, runJSON[called](t, inspector("--method", "tools/call", "--tool-name",
			call.Name, "--tool-args-json", call.Arguments), nil))
	}
	return outcome
}

// runJSON runs a program with a JSON value as input and returns its JSON output.
func runJSON[T any](t *testing.T, cmd *exec.Cmd, input any) (value T) {
	t.Helper()
	in, err := json.Marshal(input)
	if err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	cmd.Stdin, cmd.Stderr = strings.NewReader(string(in)), &stderr
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, &value)
	}
	if err != nil {
		t.Fatalf("%v: %.2000s%.2000s", err, &stderr, out)
	}
	return value
}

// peerRequest is a request that joined.mjs makes.
type peerRequest struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
}

// joinedResult is the output of joined.mjs.
type joinedResult struct {
	Version                              string
	Tools, Prompts, Resources, Templates []string
	Requests                             []struct {
		Result   json.RawMessage
		Error    *struct{ Message string }
		Progress []struct{ Step, Total float64 }
	}
}

// toolName matches the tool names that model APIs accept (R11).
var toolName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// Official clients use official servers through one gateway: child processes, Streamable HTTP and
// HTTP+SSE, of both eras.
func TestAggregatePeers(t *testing.T) {
	isolate(t)
	everything := nodeModules + "@modelcontextprotocol/server-everything/dist/index.js"
	dir, err := filepath.EvalSymlinks(t.TempDir()) // as servers see it
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "file.txt")
	if err := os.WriteFile(file, []byte("written by the test: é"), 0o600); err != nil {
		t.Fatal(err)
	}
	reference := freeAddress(t)
	start(t, exec.CommandContext(t.Context(), "sh", "-c", `echo ready; exec "$0" "$@"`, programs()+"/server", "-http",
		reference), "ready")
	servers := []string{"everything", "streamable", "sse", "files", "thinking", "reference", "refhttp", "new", "old"}
	url := serve(t, patientGateway("separator __",
		block("server everything stdio node "+everything+" stdio", "isolation session", "start_timeout 2m"),
		"server streamable http://"+everythingOver(t, "streamableHttp", "listening on port")+"/mcp",
		"server sse http://"+everythingOver(t, "sse", "running on port")+"/sse",
		block("server files stdio node "+nodeModules+"@modelcontextprotocol/server-filesystem/dist/index.js "+dir,
			"start_timeout 2m"),
		block("server thinking stdio node "+nodeModules+"@modelcontextprotocol/server-sequential-thinking/dist/index.js",
			"isolation session", "start_timeout 2m"),
		block("server reference stdio "+programs()+"/server", "isolation session", "start_timeout 2m"),
		"server refhttp http://"+reference+"/mcp",
		child("new", "--modern-only"),
		block(child("old"), "isolation session"),
	)) + "/mcp"

	call := func(server, tool, arguments string) peerRequest {
		return peerRequest{"tools/call", json.RawMessage(callOf(server, tool, arguments))}
	}
	follow := func(server, tool, arguments string) peerRequest {
		return peerRequest{"follow", json.RawMessage(callOf(server, tool, arguments))}
	}
	watch := func(server string) peerRequest {
		uri := "file://" + server + "/data.txt"
		return peerRequest{"watch", json.RawMessage(`{"uri":` + quote(proxyURI(server, uri)) + `,"touch":` +
			callOf(server, "touch", `{"uri":`+quote(uri)+`}`) + `}`)}
	}
	type request struct {
		peerRequest
		want  string // part of the result; "error: " precedes part of an error
		times int    // number of occurrences; 0 if it does not matter
	}
	work := func(server string, steps int) request {
		return request{call(server, "trigger-long-running-operation", fmt.Sprintf(`{"duration":0.3,"steps":%d}`, steps)),
			"completed", 0}
	}
	general := []request{
		{call("everything", "echo", `{"message":"hé"}`), "Echo: hé", 1},
		{call("streamable", "get-sum", `{"a":2,"b":40}`), "The sum of 2 and 40 is 42.", 1},
		{call("sse", "get-sum", `{"a":2,"b":40}`), "The sum of 2 and 40 is 42.", 1},
		{call("sse", "no-such-tool", `{}`), "no-such-tool", 0},
		{follow("sse", "get-resource-links", `{"count":4}`), `"uri":"proxy://resource/`, 4},
		{peerRequest{"prompts/get", json.RawMessage(`{"name":"sse__args-prompt","arguments":{"city":"Paris"}}`)}, "Paris", 0},
		{peerRequest{"completion/complete", json.RawMessage(`{"ref":{"type":"ref/prompt",` +
			`"name":"sse__completable-prompt"},"argument":{"name":"department","value":"E"}}`)}, "Engineering", 0},
		{call("files", "read_text_file", fmt.Sprintf(`{"path":%q}`, file)), "written by the test: é", 0},
		{call("files", "read_text_file", `{"path":"/etc/passwd"}`), "Access denied", 0},
		{call("thinking", "sequentialthinking",
			`{"thought":"hm","thoughtNumber":1,"totalThoughts":3,"nextThoughtNeeded":true}`), `thoughtHistoryLength`, 0},
		{call("reference", "test_simple_text", `{}`), "simple text", 1},
		{call("refhttp", "test_simple_text", `{}`), "simple text", 1},
		{call("refhttp", "test_tool_with_progress", `{}`), "three steps done", 1},
		{call("refhttp", "test_reconnection", `{}`), "still there", 1},
		{watch("new"), `{"heard":["` + proxyURI("new", "file://new/data.txt") + `"]}`, 1},
		{watch("old"), `{"heard":["` + proxyURI("old", "file://old/data.txt") + `"]}`, 1},
		{call("refhttp", "test_x_mcp_header", `{"region":"eu-west"}`), `eu-west`, 1},
		{call("reference", "test_x_mcp_header", `{"region":"é"}`), `é`, 1},
		{call("new", "echo", `{"region":"eu-west"}`), `eu-west`, 1},
		{call("new", "no-such-tool", `{}`), "error: Unknown tool: no-such-tool", 0},
		{call("absent", "echo", `{}`), "error: absent__echo", 0},
		{follow("everything", "get-resource-links", `{"count":4}`), `"uri":"proxy://resource/`, 4},
		{follow("streamable", "get-resource-links", `{"count":4}`), `"uri":"proxy://resource/`, 4},
		{follow("everything", "get-resource-reference", `{"resourceType":"Text","resourceId":7}`), "Resource 7", 0},
		{follow("streamable", "get-resource-reference", `{"resourceType":"Text","resourceId":7}`), "Resource 7", 0},
		{peerRequest{"prompts/get", json.RawMessage(`{"name":"everything__args-prompt","arguments":{"city":"Paris"}}`)},
			"Paris", 0},
		{peerRequest{"prompts/get", json.RawMessage(`{"name":"streamable__resource-prompt",` +
			`"arguments":{"resourceType":"Text","resourceId":"3"}}`)}, `"uri":"proxy://resource/`, 1},
		{peerRequest{"prompts/get", json.RawMessage(`{"name":"refhttp__test_prompt_with_arguments",` +
			`"arguments":{"arg1":"x","arg2":"y"}}`)}, "arg1=x arg2=y", 0},
		{peerRequest{"resources/read", json.RawMessage(`{"uri":"` + proxyURI("refhttp", "test://static-text") + `"}`)},
			"static text", 1},
		{peerRequest{"resources/read", json.RawMessage(`{"uri":"` + proxyURI("reference", "test://template/123/data") +
			`"}`)}, "data of 123", 1},
		{peerRequest{"resources/read", json.RawMessage(`{"uri":"` + proxyURI("refhttp", "test://nothing") + `"}`)},
			"error: ", 0},
		{peerRequest{"completion/complete", json.RawMessage(`{"ref":{"type":"ref/prompt",` +
			`"name":"everything__completable-prompt"},"argument":{"name":"department","value":"E"}}`)}, "Engineering", 0},
		{peerRequest{"completion/complete", json.RawMessage(`{"ref":{"type":"ref/prompt",` +
			`"name":"refhttp__test_prompt_with_arguments"},"argument":{"name":"arg1","value":"o"}}`)}, `"one","two"`, 0},
	}
	// Server requests go to the client that called, even if others are connected.
	questions := func(self string, modern bool) []request {
		asked := []request{
			{call("new", "ask", `{"method":"elicitation/create","params":{"message":"who?",`+
				`"requestedSchema":{"type":"object","properties":{"name":{"type":"string"}}}}}`), self, 0},
			{call("new", "ask-roots", `{}`), "file:///" + self, 0},
			{call("refhttp", "test_input_required_result_elicitation", `{}`), "user_name", 0},
		}
		for _, server := range []string{"everything", "streamable", "sse"} {
			asked = append(asked,
				request{call(server, "trigger-sampling-request", `{"prompt":"why"}`),
					self + " was asked: Resource trigger-sampling-request context: why", 0},
				request{call(server, "trigger-elicitation-request", `{}`), "- Name: " + self, 0})
		}
		roots := call("everything", "get-roots-list", `{}`)
		if modern {
			// The server requests roots once, maybe outside of a call, so the result may not have them.
			asked = append(asked, request{roots, "roots", 0})
		} else {
			asked = append(asked, request{roots, "file:///" + self, 0},
				request{call("streamable", "get-roots-list", `{}`), "file:///" + self, 0},
				request{call("sse", "get-roots-list", `{}`), "file:///" + self, 0})
		}
		return asked
	}
	check := func(t *testing.T, outcome joinedResult, requests []request) {
		t.Helper()
		for i, r := range requests {
			got := outcome.Requests[i]
			switch want, failed := strings.CutPrefix(r.want, "error: "); {
			case failed:
				if got.Error == nil || !strings.Contains(got.Error.Message, want) {
					t.Errorf("%s: %s\nwant the error %s", r.Params, got.Result, want)
				}
			case got.Error != nil:
				t.Errorf("%s: %s\nwant %s", r.Params, got.Error.Message, want)
			case r.times > 0 && strings.Count(string(got.Result), want) != r.times, !strings.Contains(string(got.Result), want):
				t.Errorf("%s: %.1000s\nwant %s", r.Params, got.Result, want)
			}
			// The SDKs drop progress that arrives with the result. Some add one, without a total, for a
			// server request.
			if !strings.Contains(string(r.Params), "long-running") {
				continue
			}
			step := 0.0
			for _, p := range got.Progress {
				if p.Total == 0 {
					continue
				}
				if p.Step <= step || p.Step > p.Total || !strings.Contains(string(r.Params), fmt.Sprintf(`"steps":%v}`, p.Total)) {
					t.Errorf("%s: progress %v", r.Params, got.Progress)
					break
				}
				step = p.Step
			}
		}
	}
	// hasAll checks that each server contributes to a list.
	hasAll := func(t *testing.T, what string, list []string, prefixOf func(server string) string, servers ...string) {
		t.Helper()
		for _, server := range servers {
			if !slices.ContainsFunc(list, func(item string) bool { return strings.HasPrefix(item, prefixOf(server)) }) {
				t.Errorf("no %s of %s in %v", what, server, list)
			}
		}
	}
	prefix := func(server string) string { return server + "__" }

	for i, tt := range []struct{ era, version string }{
		{"v1", "2025-11-25"}, {"legacy", "2025-11-25"}, {"auto", "2026-07-28"}, {"modern", "2026-07-28"},
	} {
		steps := 3 + i // unique, to tell its progress from that of other clients
		t.Run("TypeScript SDK "+tt.era, func(t *testing.T) {
			t.Parallel()
			requests := slices.Concat([]request{work("sse", steps), work("everything", steps), work("streamable", steps)},
				general, questions(tt.era, tt.version == "2026-07-28"))
			var do []peerRequest
			for _, r := range requests {
				do = append(do, r.peerRequest)
			}
			outcome := runJSON[joinedResult](t, peer(t, "joined.mjs", url, tt.era, tt.era), do)
			if outcome.Version != tt.version {
				t.Errorf("negotiated %q", outcome.Version)
			}
			for _, name := range outcome.Tools {
				if !toolName.MatchString(name) {
					t.Errorf("R11 invalid tool name %q", name)
				}
			}
			hasAll(t, "tool", outcome.Tools, prefix, servers...)
			hasAll(t, "prompt", outcome.Prompts, prefix, "everything", "streamable", "sse", "reference", "refhttp", "new")
			for _, uri := range outcome.Resources {
				if !strings.HasPrefix(uri, "proxy://resource/") {
					t.Errorf("A11 invalid resource URI %q", uri)
				}
			}
			hasAll(t, "template", outcome.Templates, func(server string) string { return "proxy://template/" + server + "/" },
				"everything", "streamable", "sse", "reference", "refhttp", "new")
			if !slices.Contains(outcome.Resources, proxyURI("refhttp", "test://static-text")) {
				t.Errorf("A11 %v", outcome.Resources)
			}
			check(t, outcome, requests)
		})
		// A client without capabilities can use all tools, and gets an error where a server requests
		// input.
		if tt.era == "legacy" || tt.era == "auto" {
			continue // one of each era is enough
		}
		t.Run("TypeScript SDK "+tt.era+" without capabilities", func(t *testing.T) {
			t.Parallel()
			elicit := call("new", "ask", `{"method":"elicitation/create","params":{"message":"who?",`+
				`"requestedSchema":{"type":"object","properties":{"name":{"type":"string"}}}}}`)
			requests := []request{{call("everything", "echo", `{"message":"hé"}`), "Echo: hé", 1}, {elicit, "error: ", 0},
				{call("refhttp", "test_input_required_result_elicitation", `{}`), "error: ", 0}}
			var do []peerRequest
			for _, r := range requests {
				do = append(do, r.peerRequest)
			}
			outcome := runJSON[joinedResult](t, peer(t, "joined.mjs", url, tt.era, tt.era, "mute"), do)
			if slices.Contains(outcome.Tools, "everything__trigger-sampling-request") {
				t.Errorf("a server assumes capabilities of the client: %v", outcome.Tools)
			}
			check(t, outcome, requests)
		})
	}

	texts := []struct {
		call toolCall
		want string
	}{
		{toolCall{"everything__echo", `{"message":"hé"}`}, "Echo: hé"},
		{toolCall{"streamable__get-sum", `{"a":2,"b":40}`}, "The sum of 2 and 40 is 42."},
		{toolCall{"files__read_text_file", fmt.Sprintf(`{"path":%q}`, file)}, "written by the test: é"},
		{toolCall{"thinking__sequentialthinking",
			`{"thought":"hm","thoughtNumber":1,"totalThoughts":3,"nextThoughtNeeded":true}`}, "thoughtHistoryLength"},
		{toolCall{"refhttp__test_simple_text", `{}`}, "simple text"},
		{toolCall{"new__pid", `{}`}, ""},
	}
	checkTexts := func(t *testing.T, outcome peerOutcome, n int) {
		t.Helper()
		hasAll(t, "tool", outcome.Tools, prefix, servers...)
		for i, tt := range texts[:n] {
			if got := outcome.Calls[i].Result; got.IsError || !strings.Contains(got.text(), tt.want) {
				t.Errorf("%s: %s", tt.call.Name, got.text())
			}
		}
	}
	calls := peerCalls{endpoint: url}
	for _, tt := range texts {
		calls.calls = append(calls.calls, tt.call)
	}
	t.Run("Go SDK", func(t *testing.T) {
		outcome := callWithGo(t, calls)
		if outcome.Version != "2026-07-28" {
			t.Errorf("negotiated %q", outcome.Version)
		}
		checkTexts(t, outcome, len(texts))
	})
	for _, era := range []string{"legacy", "auto", "modern"} {
		t.Run("Inspector "+era, func(t *testing.T) { // one at a time: it has a short timeout
			some := calls
			some.era, some.calls = era, calls.calls[:1]
			checkTexts(t, callWithInspector(t, some), 1)
		})
	}
}
