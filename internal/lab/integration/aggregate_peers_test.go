package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

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
	programs := buildPrograms(t)
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
	start(t, exec.CommandContext(t.Context(), "sh", "-c", `echo ready; exec "$0" "$@"`, programs+"/server", "-http",
		reference), "ready")
	servers := []string{"everything", "streamable", "sse", "files", "thinking", "reference", "refhttp", "new", "old"}
	url := serve(t, gateway("separator __", "join_timeout 2m", "response_timeout 2m", // the machine may be slow
		block("server everything stdio node "+everything+" stdio", "isolation session", "start_timeout 2m"),
		"server streamable http://"+everythingOver(t, "streamableHttp", "listening on port")+"/mcp",
		"server sse http://"+everythingOver(t, "sse", "running on port")+"/sse",
		"server files stdio node "+nodeModules+"@modelcontextprotocol/server-filesystem/dist/index.js "+dir,
		block("server thinking stdio node "+nodeModules+"@modelcontextprotocol/server-sequential-thinking/dist/index.js",
			"isolation session", "start_timeout 2m"),
		block("server reference stdio "+programs+"/server", "isolation session", "start_timeout 2m"),
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
		outcome := callWithGo(programs)(t, calls)
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
