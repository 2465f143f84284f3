package mcpgateway

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

func TestTasksHaveOneOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newTasks()
		defer all.close()
		key := taskKey{"a", "1"}
		all.add(key, task{"ann", mcp.Target{Name: "x"}})
		all.add(key, task{"bob", mcp.Target{Name: "y"}})
		for range 3 { // each of which renews it
			time.Sleep(taskTime - time.Minute)
			if got, ok := all.get(key); !ok || got.identity != "ann" || got.target.Name != "x" {
				t.Errorf("got %+v, %t", got, ok)
			}
		}
		if _, ok := all.get(taskKey{"b", "1"}); ok {
			t.Error("it is one of another server, too")
		}
		for i := range 100_100 { // that another server says it has begun
			all.add(taskKey{"b", fmt.Sprint(i)}, task{"ann", mcp.Target{}})
		}
		if _, ok := all.get(key); !ok {
			t.Error("another server has pushed it out")
		}
		time.Sleep(taskTime + time.Minute)
		if _, ok := all.get(key); ok {
			t.Error("it is remembered for ever")
		}
	})
}

func TestTasksOfClients(t *testing.T) {
	server := newWitness(t, func(w http.ResponseWriter, _ *http.Request, got witnessed) {
		switch {
		case got.is("tools/call"): // in a stream, after something else
			saysInEvents(w, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"taskId":"not this"}}`,
				`{"jsonrpc":"2.0","id":2,"result":{"task":{"taskId":"of nobody"}}}`,
				fmt.Sprintf(`{"jsonrpc":"2.0","result":{"task":{"status":"working","taskId":"of %s"}},"id":1}`, got.header.Get("X-User")))
		case got.method == http.MethodGet:
			saysInEvents(w, `{"jsonrpc":"2.0","id":2,"result":{"task":{"taskId":"of nobody"}}}`,
				`{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{"status":"completed","taskId":"of ann"}}`)
		case got.is("tasks/list"):
			says(w, got, `{"tasks":[{"taskId":"of ann"},{"taskId":"of bob"},{"taskId":"of "}],"x":1}`)
		default:
			says(w, got, `{}`)
		}
	})
	h := gateway(t, `{"servers":[`+server.line("a")+`]}`)
	users := []string{"ann", "bob", ""}
	for _, user := range users {
		servesUser(t, h, user, posting("/mcp/a", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","task":{}}}`, "X-User", user))
	}
	for _, user := range users {
		heard := servesUser(t, h, user, listening(t, "/mcp/a", mcp.VersionHeader, mcp.Latest)).Body.String()
		if strings.Contains(heard, "completed") != (user != "bob") { // of those whom nobody knows, nothing is hidden
			t.Errorf("%q hears %s", user, heard)
		}
		for _, path := range single {
			list := servesUser(t, h, user, posting(path, `{"jsonrpc":"2.0","id":2,"method":"tasks/list"}`)).Body.String()
			if want := `{"tasks":[{"taskId":"of ` + user + `"}],"x":1}`; !strings.Contains(list, want) {
				t.Errorf("%q at %s sees %s, not %s", user, path, list, want)
			}
			for _, owner := range append(users, "nobody") {
				before := len(server.saw())
				got := servesUser(t, h, user, posting(path, `{"jsonrpc":"2.0","id":3,"method":"tasks/get","params":{"taskId":"of `+owner+`"}}`))
				may := user == owner || user == "" && owner == "nobody" // of whom nothing is known
				if reached := len(server.saw()) > before; reached != may || strings.Contains(got.Body.String(), "-32602") == may {
					t.Errorf("%q asks for the task of %q at %s: %s", user, owner, path, got.Body)
				}
			}
			for ids, may := range map[string]bool{`[]`: true, `["of ` + user + `"]`: true, `["of ` + user + `","of ann"]`: user == "ann", `"of ann"`: false, `[{"of":"ann"}]`: false} {
				before := len(server.saw())
				got := servesUser(t, h, user, posting(path, `{"jsonrpc":"2.0","id":3,"method":"subscriptions/listen","params":{"notifications":{"taskIds":`+ids+`}}}`))
				if reached := len(server.saw()) > before; reached != may || strings.Contains(got.Body.String(), "-32602") == may {
					t.Errorf("%q listens to %s at %s: %s", user, ids, path, got.Body)
				}
			}
			twice := servesUser(t, h, user, posting(path, `{"jsonrpc":"2.0","id":3,"method":"tasks/get","params":{"taskId":"of ann","TaskId":"of bob"}}`))
			if user != "" && !strings.Contains(twice.Body.String(), "error") {
				t.Errorf("%q names two tasks: %s", user, twice.Body)
			}
		}
	}
	// Of the first revision of the protocol, answers come in the stream that is listened to.
	servesUser(t, h, "ann", listening(t, "/mcp/a"))
	if got := servesUser(t, h, "ann", posting("/mcp/a", `{"jsonrpc":"2.0","id":3,"method":"tasks/get","params":{"taskId":"of nobody"}}`)); strings.Contains(got.Body.String(), "error") {
		t.Errorf("a task of the first revision: %s", got.Body)
	}
}
