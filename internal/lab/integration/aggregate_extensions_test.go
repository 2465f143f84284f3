package integration

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
)

// A client uses the tasks and skills of two reference servers at once, over HTTP and as a child
// process. A task belongs to its client and survives a reload.
func TestAggregateExtensions(t *testing.T) {
	isolate(t)
	programs := buildPrograms(t)
	over := freeAddress(t)
	start(t, exec.CommandContext(t.Context(), "sh", "-c", `echo ready; exec "$0" "$@"`, programs+"/server", "-http",
		over), "ready")
	address := freeAddress(t)
	config := func(lines ...string) string {
		return site(address, gateway(append(lines, "separator __", "join_timeout 2m", twoTokens(),
			"server far http://"+over+"/mcp", block("server near stdio "+programs+"/server", "start_timeout 2m"))...))
	}
	restricted := block("client thief", "deny far::*")
	load(t, config(restricted))
	const canTasks = `{"elicitation":{"form":{}},"extensions":{"io.modelcontextprotocol/tasks":{}}}`
	endpoint := joinedAt("http://" + address)
	victim := newTestClient(t, endpoint, true, canTasks, bearer(victimToken))
	thief := newTestClient(t, endpoint, true, canTasks, bearer(thiefToken))
	ask := func(c *testClient, method, params string) string {
		t.Helper()
		got := c.Request(t.Context(), method, params, nil)
		if got.Err != nil {
			t.Fatal(got.Err)
		}
		return got.Body
	}

	if body := ask(victim, "server/discover", ""); !strings.Contains(body, `"io.modelcontextprotocol/tasks":{}`) ||
		!strings.Contains(body, `"directoryRead":true`) {
		t.Errorf("extensions: %s", body)
	}
	tasks := map[string]string{}
	for _, server := range []string{"far", "near"} {
		var begun struct {
			Result struct{ TaskID, ResultType string }
		}
		body := ask(victim, "tools/call", callOf(server, "confirm_delete", `{}`))
		_ = json.Unmarshal([]byte(answerIn(body)), &begun)
		if tasks[server] = begun.Result.TaskID; begun.Result.ResultType != "task" || !strings.HasPrefix(tasks[server],
			server+"::") {
			t.Fatalf("no task: %s", body)
		}
	}
	about := func(server, more string) string { return `{"taskId":` + quote(tasks[server]) + more + `}` }
	for server := range tasks {
		want := "-32602"
		if server == "far" {
			want = "acl_denied" // the server is denied to this client
		}
		if body := ask(thief, "tasks/cancel", about(server, "")); !strings.Contains(body, want) {
			t.Errorf("another client cancels %s: %s", server, body)
		}
	}
	load(t, config(restricted, "mask off")) // a change, so that Caddy reloads
	for server := range tasks {
		if body := ask(thief, "tasks/get", about(server, "")); strings.Contains(body, "status") {
			t.Errorf("another client gets %s after a reload: %s", server, body)
		}
		if body := ask(victim, "tasks/get", about(server, "")); !strings.Contains(body, `"input_required"`) ||
			!strings.Contains(body, quote(tasks[server])) {
			t.Errorf("no server request from the task of %s after a reload: %s", server, body)
		}
		ask(victim, "tasks/update", about(server, `,"inputResponses":{"confirm":{"action":"accept",`+
			`"content":{"confirm":true}}}`))
		await.Until(t, "the end of the task of "+server+"", func() bool {
			return strings.Contains(ask(victim, "tasks/get", about(server, "")), `"deleted"`)
		})
	}

	list := ask(victim, "skills/list", "")
	for _, server := range []string{"far", "near"} {
		root := "proxy://template/" + server + "/skill://fixtures/greeting"
		if !strings.Contains(list, quote(root+"/SKILL.md")) {
			t.Errorf("no skill of %s: %s", server, list)
		}
		if body := ask(victim, "skills/get", `{"uri":`+quote(root+"/SKILL.md")+`}`); !strings.Contains(body,
			quote(root+"/references/names.md")) {
			t.Errorf("skill: %s", body)
		}
		if body := ask(victim, "resources/directory/read", `{"uri":`+quote(root)+`}`); !strings.Contains(body,
			quote(root+"/references")) {
			t.Errorf("skill directory: %s", body)
		}
		if body := ask(victim, "resources/read", `{"uri":`+quote(root+"/references/names.md")+`}`); !strings.Contains(body,
			"# Names") {
			t.Errorf("skill file: %s", body)
		}
	}
	if list := ask(thief, "skills/list", ""); strings.Contains(list, "/far/") || !strings.Contains(list, "/near/") {
		t.Errorf("skills of a client with a denied server: %s", list)
	}
}
