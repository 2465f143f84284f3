package integration

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// nodeModules is the path of the npm packages of peers.
const nodeModules = "peers/node_modules/"

// Official clients call official servers through the gateway: child processes, Streamable HTTP and
// HTTP+SSE.
func TestGatewayPeers(t *testing.T) {
	isolate(t)
	programs := buildPrograms(t)
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

	url := serve(t, gateway(
		block("server everything stdio node "+everything+" stdio", "roots file:///configured"),
		block("server own stdio node "+everything+" stdio", "isolation session"),
		block("server one stdio node "+everything+" stdio", "isolation none"),
		"server streamable http://"+everythingOver(t, "streamableHttp", "listening on port")+"/mcp",
		"server sse http://"+everythingOver(t, "sse", "running on port")+"/sse",
		block("server files stdio node "+filesystem+" "+dir, "mask"),
		block("server whole stdio node "+filesystem+" "+dir, "mask off"),
		block("server thinking stdio node "+thinking, "isolation session"),
		"server fast stdio node "+fast+" --allow "+dir,
		"server reference stdio "+programs+"/server",
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
		{"streamable", "streamable", "auto", general, questions("streamable", "streamable")},
		{"sse", "sse", "legacy", general, questions("sse", "sse")},
		{"files", "files", "legacy", calls{{read("read_text_file", long), masked}, {read("read_text_file", short),
			"written by the test: é"}}, nil},
		{"whole", "whole", "", calls{{read("read_text_file", long), strings.Repeat("é", 5000)}}, nil},
		// the state is per session
		{"thinking", "thinking", "legacy", calls{{think, `"thoughtHistoryLength": 1`}, {think, `"thoughtHistoryLength": 2`}},
			nil},
		{"fast", "fast", "legacy", calls{{read("fast_read_file", short), "written by the test: é"}}, nil},
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
				check(t, callWithGo(programs), tt.calls)
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
func callWithGo(programs string) func(*testing.T, peerCalls) peerOutcome {
	return func(t *testing.T, calls peerCalls) peerOutcome {
		t.Helper()
		var args []string
		if calls.sse {
			args = append(args, "-sse")
		}
		return runJSON[peerOutcome](t, exec.CommandContext(t.Context(), filepath.Join(programs, "client"),
			append(args, calls.endpoint)...), calls.calls)
	}
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

// buildPrograms builds the client and the server on the official Go SDK and returns their folder.
func buildPrograms(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", dir+"/",
		"../conformance/gosdk/...").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return dir
}
