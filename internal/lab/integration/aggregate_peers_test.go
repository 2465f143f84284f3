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

// peerRequest is what a client of joined.mjs shall do.
type peerRequest struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
}

// joinedSaw is what a client of an aggregate has got.
type joinedSaw struct {
	Version                              string
	Tools, Prompts, Resources, Templates []string
	Requests                             []struct {
		Result   json.RawMessage
		Error    *struct{ Message string }
		Progress []struct{ Step, Total float64 }
	}
}

// toolName is what model APIs take for the name of a tool (R11).
var toolName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// TestAggregatePeers has the official clients use the official servers as one: as
// child processes, over Streamable HTTP and over HTTP+SSE, of both eras.
func TestAggregatePeers(t *testing.T) {
	isolate(t)
	programs := buildPrograms(t)
	everything := modulesOfNode + "@modelcontextprotocol/server-everything/dist/index.js"
	dir, err := filepath.EvalSymlinks(t.TempDir()) // as servers see it
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "file.txt")
	if err := os.WriteFile(file, []byte("written by the test: é"), 0o600); err != nil {
		t.Fatal(err)
	}
	reference := freeAddress(t)
	start(t, exec.CommandContext(t.Context(), "sh", "-c", `echo ready; exec "$0" "$@"`, programs+"/server", "-http", reference), "ready")
	servers := []string{"everything", "streamable", "sse", "files", "thinking", "reference", "refhttp", "new", "old"}
	url := serve(t, gateway("separator __", "join_timeout 2m", "response_timeout 2m", // the machine may be slow
		block("server everything stdio node "+everything+" stdio", "isolation session", "start_timeout 2m"),
		"server streamable http://"+everythingOver(t, "streamableHttp", "listening on port")+"/mcp",
		"server sse http://"+everythingOver(t, "sse", "running on port")+"/sse",
		"server files stdio node "+modulesOfNode+"@modelcontextprotocol/server-filesystem/dist/index.js "+dir,
		block("server thinking stdio node "+modulesOfNode+"@modelcontextprotocol/server-sequential-thinking/dist/index.js", "isolation session", "start_timeout 2m"),
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
		return peerRequest{"watch", json.RawMessage(`{"uri":` + quote(proxyURI(server, uri)) + `,"touch":` + callOf(server, "touch", `{"uri":`+quote(uri)+`}`) + `}`)}
	}
	type request struct {
		peerRequest
		want  string // a part of the result; "error: " before a part of an error
		times int    // how often it is there, if that matters
	}
	work := func(server string, steps int) request {
		return request{call(server, "trigger-long-running-operation", fmt.Sprintf(`{"duration":0.3,"steps":%d}`, steps)), "completed", 0}
	}
	general := []request{
		{call("everything", "echo", `{"message":"hé"}`), "Echo: hé", 1},
		{call("streamable", "get-sum", `{"a":2,"b":40}`), "The sum of 2 and 40 is 42.", 1},
		{call("sse", "get-sum", `{"a":2,"b":40}`), "The sum of 2 and 40 is 42.", 1},
		{call("sse", "no-such-tool", `{}`), "no-such-tool", 0},
		{follow("sse", "get-resource-links", `{"count":4}`), `"uri":"proxy://resource/`, 4},
		{peerRequest{"prompts/get", json.RawMessage(`{"name":"sse__args-prompt","arguments":{"city":"Paris"}}`)}, "Paris", 0},
		{peerRequest{"completion/complete", json.RawMessage(`{"ref":{"type":"ref/prompt","name":"sse__completable-prompt"},"argument":{"name":"department","value":"E"}}`)}, "Engineering", 0},
		{call("files", "read_text_file", fmt.Sprintf(`{"path":%q}`, file)), "written by the test: é", 0},
		{call("files", "read_text_file", `{"path":"/etc/passwd"}`), "Access denied", 0},
		{call("thinking", "sequentialthinking", `{"thought":"hm","thoughtNumber":1,"totalThoughts":3,"nextThoughtNeeded":true}`), `thoughtHistoryLength`, 0},
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
		{call("nobody", "echo", `{}`), "error: nobody__echo", 0},
		{follow("everything", "get-resource-links", `{"count":4}`), `"uri":"proxy://resource/`, 4},
		{follow("streamable", "get-resource-links", `{"count":4}`), `"uri":"proxy://resource/`, 4},
		{follow("everything", "get-resource-reference", `{"resourceType":"Text","resourceId":7}`), "Resource 7", 0},
		{follow("streamable", "get-resource-reference", `{"resourceType":"Text","resourceId":7}`), "Resource 7", 0},
		{peerRequest{"prompts/get", json.RawMessage(`{"name":"everything__args-prompt","arguments":{"city":"Paris"}}`)}, "Paris", 0},
		{peerRequest{"prompts/get", json.RawMessage(`{"name":"streamable__resource-prompt","arguments":{"resourceType":"Text","resourceId":"3"}}`)}, `"uri":"proxy://resource/`, 1},
		{peerRequest{"prompts/get", json.RawMessage(`{"name":"refhttp__test_prompt_with_arguments","arguments":{"arg1":"x","arg2":"y"}}`)}, "arg1=x arg2=y", 0},
		{peerRequest{"resources/read", json.RawMessage(`{"uri":"` + proxyURI("refhttp", "test://static-text") + `"}`)}, "static text", 1},
		{peerRequest{"resources/read", json.RawMessage(`{"uri":"` + proxyURI("reference", "test://template/123/data") + `"}`)}, "data of 123", 1},
		{peerRequest{"resources/read", json.RawMessage(`{"uri":"` + proxyURI("refhttp", "test://nothing") + `"}`)}, "error: ", 0},
		{peerRequest{"completion/complete", json.RawMessage(`{"ref":{"type":"ref/prompt","name":"everything__completable-prompt"},"argument":{"name":"department","value":"E"}}`)}, "Engineering", 0},
		{peerRequest{"completion/complete", json.RawMessage(`{"ref":{"type":"ref/prompt","name":"refhttp__test_prompt_with_arguments"},"argument":{"name":"arg1","value":"o"}}`)}, `"one","two"`, 0},
	}
	// What servers ask goes to the client that called, whoever else is there.
	questions := func(self string, modern bool) []request {
		asked := []request{
			{call("new", "ask", `{"method":"elicitation/create","params":{"message":"who?","requestedSchema":{"type":"object","properties":{"name":{"type":"string"}}}}}`), self, 0},
			{call("new", "ask-roots", `{}`), "file:///" + self, 0},
			{call("refhttp", "test_input_required_result_elicitation", `{}`), "user_name", 0},
		}
		for _, server := range []string{"everything", "streamable", "sse"} {
			asked = append(asked,
				request{call(server, "trigger-sampling-request", `{"prompt":"why"}`), self + " was asked: Resource trigger-sampling-request context: why", 0},
				request{call(server, "trigger-elicitation-request", `{}`), "- Name: " + self, 0})
		}
		if roots := call("everything", "get-roots-list", `{}`); modern {
			// It asks once, outside of a call maybe, and then nobody can say.
			asked = append(asked, request{roots, "roots", 0})
		} else {
			asked = append(asked, request{roots, "file:///" + self, 0},
				request{call("streamable", "get-roots-list", `{}`), "file:///" + self, 0},
				request{call("sse", "get-roots-list", `{}`), "file:///" + self, 0})
		}
		return asked
	}
	check := func(t *testing.T, saw joinedSaw, requests []request) {
		t.Helper()
		for i, r := range requests {
			got := saw.Requests[i]
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
			// The SDKs drop reports that come with the result. Some add one, without a total, when the server asks the client.
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
	// hasAll checks that each server has its part in a list.
	hasAll := func(t *testing.T, what string, list []string, of func(server string) string, servers ...string) {
		t.Helper()
		for _, server := range servers {
			if !slices.ContainsFunc(list, func(item string) bool { return strings.HasPrefix(item, of(server)) }) {
				t.Errorf("no %s of %s among %v", what, server, list)
			}
		}
	}
	prefix := func(server string) string { return server + "__" }

	for i, tt := range []struct{ era, version string }{
		{"v1", "2025-11-25"}, {"legacy", "2025-11-25"}, {"auto", "2026-07-28"}, {"modern", "2026-07-28"},
	} {
		steps := 3 + i // its own, by which its progress is told from that of others
		t.Run("TypeScript SDK "+tt.era, func(t *testing.T) {
			t.Parallel()
			requests := slices.Concat([]request{work("sse", steps), work("everything", steps), work("streamable", steps)}, general, questions(tt.era, tt.version == "2026-07-28"))
			var do []peerRequest
			for _, r := range requests {
				do = append(do, r.peerRequest)
			}
			saw := printed[joinedSaw](t, peer(t, "joined.mjs", url, tt.era, tt.era), do)
			if saw.Version != tt.version {
				t.Errorf("they have agreed on %q", saw.Version)
			}
			for _, name := range saw.Tools {
				if !toolName.MatchString(name) {
					t.Errorf("R11 a tool is called %q", name)
				}
			}
			hasAll(t, "tool", saw.Tools, prefix, servers...)
			hasAll(t, "prompt", saw.Prompts, prefix, "everything", "streamable", "sse", "reference", "refhttp", "new")
			for _, uri := range saw.Resources {
				if !strings.HasPrefix(uri, "proxy://resource/") {
					t.Errorf("A11 a resource is %q", uri)
				}
			}
			hasAll(t, "template", saw.Templates, func(server string) string { return "proxy://template/" + server + "/" }, "everything", "streamable", "sse", "reference", "refhttp", "new")
			if !slices.Contains(saw.Resources, proxyURI("refhttp", "test://static-text")) {
				t.Errorf("A11 %v", saw.Resources)
			}
			check(t, saw, requests)
		})
		// Who cannot be asked has the other tools, and gets an error where it is.
		if tt.era == "legacy" || tt.era == "auto" {
			continue // one of each era will do
		}
		t.Run("TypeScript SDK "+tt.era+" that cannot be asked", func(t *testing.T) {
			t.Parallel()
			elicit := call("new", "ask", `{"method":"elicitation/create","params":{"message":"who?","requestedSchema":{"type":"object","properties":{"name":{"type":"string"}}}}}`)
			requests := []request{{call("everything", "echo", `{"message":"hé"}`), "Echo: hé", 1}, {elicit, "error: ", 0},
				{call("refhttp", "test_input_required_result_elicitation", `{}`), "error: ", 0}}
			var do []peerRequest
			for _, r := range requests {
				do = append(do, r.peerRequest)
			}
			saw := printed[joinedSaw](t, peer(t, "joined.mjs", url, tt.era, tt.era, "mute"), do)
			if slices.Contains(saw.Tools, "everything__trigger-sampling-request") {
				t.Errorf("a server believes that the client can be asked: %v", saw.Tools)
			}
			check(t, saw, requests)
		})
	}

	texts := []struct {
		call toolCall
		want string
	}{
		{toolCall{"everything__echo", `{"message":"hé"}`}, "Echo: hé"},
		{toolCall{"streamable__get-sum", `{"a":2,"b":40}`}, "The sum of 2 and 40 is 42."},
		{toolCall{"files__read_text_file", fmt.Sprintf(`{"path":%q}`, file)}, "written by the test: é"},
		{toolCall{"thinking__sequentialthinking", `{"thought":"hm","thoughtNumber":1,"totalThoughts":3,"nextThoughtNeeded":true}`}, "thoughtHistoryLength"},
		{toolCall{"refhttp__test_simple_text", `{}`}, "simple text"},
		{toolCall{"new__pid", `{}`}, ""},
	}
	checkTexts := func(t *testing.T, saw peerSaw, n int) {
		t.Helper()
		hasAll(t, "tool", saw.Tools, prefix, servers...)
		for i, tt := range texts[:n] {
			if got := saw.Calls[i].Result; got.IsError || !strings.Contains(got.text(), tt.want) {
				t.Errorf("%s: %s", tt.call.Name, got.text())
			}
		}
	}
	do := peerCalls{endpoint: url}
	for _, tt := range texts {
		do.calls = append(do.calls, tt.call)
	}
	t.Run("Go SDK", func(t *testing.T) {
		saw := callWithGo(programs)(t, do)
		if saw.Version != "2026-07-28" {
			t.Errorf("they have agreed on %q", saw.Version)
		}
		checkTexts(t, saw, len(texts))
	})
	for _, era := range []string{"legacy", "auto", "modern"} {
		t.Run("Inspector "+era, func(t *testing.T) { // one by one: it does not wait for long
			some := do
			some.era, some.calls = era, do.calls[:1]
			checkTexts(t, callWithInspector(t, some), 1)
		})
	}
}
