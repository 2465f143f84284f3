package mcpgateway

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

func TestTasksOfClients(t *testing.T) {
	server := newRecordingServer(t, func(w http.ResponseWriter, _ *http.Request, got receivedRequest) {
		switch {
		case got.is("tools/call"): // the response follows other messages in a stream
			respondEvents(w, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"taskId":"not this"}}`,
				`{"jsonrpc":"2.0","id":2,"result":{"task":{"taskId":"of unknown"}}}`,
				fmt.Sprintf(`{"jsonrpc":"2.0","result":{"task":{"status":"working","taskId":"of %s"}},"id":1}`,
					got.header.Get("X-User")))
		case got.method == http.MethodGet:
			respondEvents(w, `{"jsonrpc":"2.0","id":2,"result":{"task":{"taskId":"of unknown"}}}`,
				`{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{"status":"completed","taskId":"of ann"}}`)
		case got.is("tasks/list"):
			respond(w, got, `{"tasks":[{"taskId":"of ann"},{"taskId":"of bob"},{"taskId":"of "}],"x":1}`)
		default:
			respond(w, got, `{}`)
		}
	})
	h := adaptGateway(t, `{"servers":[`+server.config("a")+`]}`)
	users := []string{"ann", "bob", ""}
	for _, user := range users {
		serveAs(t, h, user,
			newPost("/mcp/a", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","task":{}}}`,
				"X-User", user))
	}
	for _, user := range users {
		received := serveAs(t, h, user, streamRequest(t, "/mcp/a", mcp.VersionHeader, mcp.Latest)).Body.String()
		if strings.Contains(received, "completed") != (user != "bob") { // tasks of anonymous clients are visible to all
			t.Errorf("%q received %s", user, received)
		}
		for _, path := range single {
			list := serveAs(t, h, user, newPost(path, `{"jsonrpc":"2.0","id":2,"method":"tasks/list"}`)).Body.String()
			if want := `{"tasks":[{"taskId":"of ` + user + `"}],"x":1}`; !strings.Contains(list, want) {
				t.Errorf("%q at %s: got %s, want %s", user, path, list, want)
			}
			for _, owner := range append(users, "unknown") {
				before := len(server.requests())
				got := serveAs(t, h, user,
					newPost(path, `{"jsonrpc":"2.0","id":3,"method":"tasks/get","params":{"taskId":"of `+owner+`"}}`))
				may := user == owner || user == "" && owner == "unknown" // a task without an owner
				if reached := len(server.requests()) > before; reached != may || strings.Contains(got.Body.String(),
					"-32602") == may {
					t.Errorf("%q gets the task of %q at %s: %s", user, owner, path, got.Body)
				}
			}
			for ids, may := range map[string]bool{`[]`: true, `["of ` + user + `"]`: true,
				`["of ` + user + `","of ann"]`: user == "ann", `"of ann"`: false, `[{"of":"ann"}]`: false} {
				before := len(server.requests())
				got := serveAs(t, h, user,
					newPost(path,
						`{"jsonrpc":"2.0","id":3,"method":"subscriptions/listen","params":{"notifications":{"taskIds":`+ids+`}}}`))
				if reached := len(server.requests()) > before; reached != may || strings.Contains(got.Body.String(),
					"-32602") == may {
					t.Errorf("%q listens to %s at %s: %s", user, ids, path, got.Body)
				}
			}
			twice := serveAs(t, h, user,
				newPost(path, `{"jsonrpc":"2.0","id":3,"method":"tasks/get","params":{"taskId":"of ann","TaskId":"of bob"}}`))
			if user != "" && !strings.Contains(twice.Body.String(), "error") {
				t.Errorf("%q gets two tasks: %s", user, twice.Body)
			}
		}
	}
	// In the first revision of the protocol, responses come in the GET stream.
	serveAs(t, h, "ann", streamRequest(t, "/mcp/a"))
	got := serveAs(t, h, "ann",
		newPost("/mcp/a", `{"jsonrpc":"2.0","id":3,"method":"tasks/get","params":{"taskId":"of unknown"}}`))
	if strings.Contains(got.Body.String(), "error") {
		t.Errorf("a task of the first revision: %s", got.Body)
	}
}

func TestSkillsOfOneServer(t *testing.T) { // A54, A55
	server := newRecordingServer(t, func(w http.ResponseWriter, _ *http.Request, got receivedRequest) {
		switch {
		case got.is("skills/list"):
			respond(w, got, `{"skills":[{"uri":"skill://secret/a/SKILL.md"},{"uri":"skill://open/a/SKILL.md"}],"x":1}`)
		case got.is("resources/directory/read"):
			respond(w, got, `{"resources":[{"uri":"skill://secret/a/SKILL.md"},{"uri":"skill://open/a/SKILL.md"}],"x":1}`)
		default:
			respond(w, got, `{"skill":{}}`)
		}
	})
	h := adaptGateway(t, `{`+denyRules("resource:a::skill://secret/")+`"servers":[`+server.config("a")+`]}`)
	for _, path := range single {
		for method, want := range map[string]string{
			"skills/list":              `{"skills":[{"uri":"skill://open/a/SKILL.md"}],"x":1}`,
			"resources/directory/read": `{"resources":[{"uri":"skill://open/a/SKILL.md"}],"x":1}`,
			"skills/get":               `{"skill":{}}`,
		} {
			ask := func(uri string) string {
				return serve(t, h,
					newPost(path, `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":{"uri":"`+uri+`"}}`)).Body.String()
			}
			if got := ask("skill://open/a"); !strings.Contains(got, want) {
				t.Errorf("%s at %s: got %s", method, path, got)
			}
			if got := ask("skill://secret/a"); method != "skills/list" && !strings.Contains(got, "acl_denied") {
				t.Errorf("%s at %s: got %s", method, path, got)
			}
		}
	}
}
