package mcpgateway

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

func TestSessionsOfOneServer(t *testing.T) { // A30, A57
	const id = "of the server.1"
	server := newRecordingServer(t, func(w http.ResponseWriter, _ *http.Request, got receivedRequest) {
		if got.is("initialize") {
			w.Header().Set(mcp.SessionHeader, id)
		}
		respond(w, got, `{}`)
	})
	h := adaptGateway(t, `{"servers":[`+server.config("a")+`,`+server.config("b")+`]}`)
	begin := func(user string) string {
		return serveAs(t, h, user,
			newPost("/mcp/a", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`)).Header().Get(mcp.SessionHeader)
	}
	anns, anonymous := begin("ann"), begin("")
	if anonymous != id || anns == id || !strings.HasPrefix(anns, id+".") {
		t.Fatalf("ann got %q, an anonymous client %q", anns, anonymous)
	}
	const ping = `{"jsonrpc":"2.0","id":2,"method":"ping"}`
	for _, tt := range []struct {
		name, user, path, session string
		good                      bool
	}{
		{"the client's own session", "ann", "/mcp/a", anns, true},
		{"a session of an anonymous client", "", "/mcp/a", anonymous, true},
		{"a session of another client", "bob", "/mcp/a", anns, false},
		{"the server's id", "ann", "/mcp/a", id, false},
		{"the server's id from another client", "bob", "/mcp/a", id, false},
		{"the server's id at an endpoint without sessions", "bob", "/api/mcp-gateway/a/rpc", id, false},
		{"a session of another server", "ann", "/mcp/b", anns, false},
		{"an invalid id", "ann", "/mcp/a", ".", false},
		{"a truncated id", "ann", "/mcp/a", anns[:len(anns)-1], false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := len(server.requests())
			w := serveAs(t, h, tt.user, newPost(tt.path, ping, mcp.SessionHeader, tt.session))
			named := slices.ContainsFunc(server.requests()[before:],
				func(got receivedRequest) bool { return got.header.Get(mcp.SessionHeader) != "" })
			switch {
			case tt.good && (w.Code != http.StatusOK || server.requests()[before].header.Get(mcp.SessionHeader) != id):
				t.Errorf("%d %s; the server got %+v", w.Code, w.Body, server.requests()[before:])
			case !tt.good && named:
				t.Errorf("%d %s; the request reached the server with a session", w.Code, w.Body)
			case !tt.good && tt.path != "/api/mcp-gateway/a/rpc" && !strings.Contains(w.Body.String(), "unknown_session"):
				t.Errorf("%d %s", w.Code, w.Body)
			}
		})
	}
}

func TestTwoSessionsInOneRequest(t *testing.T) { // A30, A57
	server := newRecordingServer(t, func(w http.ResponseWriter, _ *http.Request, got receivedRequest) {
		w.Header().Set(mcp.SessionHeader, "of the server")
		respond(w, got, `{}`)
	})
	h := adaptGateway(t, `{"servers":[`+server.config("a")+`]}`)
	bobs := serveAs(t, h, "bob",
		newPost("/mcp/a", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`)).Header().Get(mcp.SessionHeader)
	for name, sessions := range map[string][]string{
		"an empty one and another client's": {"", "victim"},
		"another client's and an empty one": {"victim", ""},
		"the client's own and another":      {bobs, "victim"},
		"the client's own twice":            {bobs, bobs},
		"an empty one":                      {""},
	} {
		for _, path := range single {
			t.Run(name+" at "+path, func(t *testing.T) {
				before := len(server.requests())
				r := newPost(path, `{"jsonrpc":"2.0","id":2,"method":"ping"}`)
				r.Header[mcp.SessionHeader] = sessions
				w := serveAs(t, h, "bob", r)
				if all := server.requests()[before:]; len(all) > 0 || w.Code != http.StatusNotFound {
					t.Errorf("%d %s; the server got %+v", w.Code, w.Body, all)
				}
			})
		}
	}
}

// Event ids are valid only for the client that got them.
func TestEventsOfOneServer(t *testing.T) { // A30, A57
	const stream = "id: 5/\u00e9.x\ndata: {}\n\n" + ": id: comment\n\n" +
		"event: message\r\nid:6\r\ndata: id: data\r\n\r\n" + "id\ndata: {}\n\n" + "idle: 7\rid: 8\rretry: 3\r\r"
	server := newRecordingServer(t, func(w http.ResponseWriter, r *http.Request, _ receivedRequest) {
		w.Header().Set("Content-Type", "text/event-stream")
		rest := stream
		if r.Header.Get("X-Mark") != "" {
			rest = "\ufeffid: 9\n" + stream
		}
		for rest != "" {
			piece := rest[:min(len(rest), 3)]
			rest = rest[len(piece):]
			_, _ = w.Write([]byte(piece))
		}
	})
	h := adaptGateway(t, `{"mask":{"max_chars":0},"servers":[`+server.config("a")+`,`+server.config("b")+`]}`)
	if got := serveAs(t, h, "", streamRequest(t, "/mcp/a")).Body.String(); got != stream {
		t.Errorf("an anonymous client got %q", got)
	}
	ids := regexp.MustCompile(`(?m)^(\x{FEFF}?id: ?)(5/\x{e9}\.x|6|8|9)\.([\w-]{22})`)
	bound := serveAs(t, h, "ann", streamRequest(t, "/mcp/a")).Body.String()
	if got := strings.ReplaceAll(ids.ReplaceAllString(strings.ReplaceAll(bound, "\r", "\n"), "$1$2"), "\n",
		""); got != strings.NewReplacer("\r", "", "\n", "").Replace(stream) {
		t.Errorf("ann got %q", bound)
	}
	if n := len(ids.FindAllString(strings.ReplaceAll(bound, "\r", "\n"), -1)); n != 3 {
		t.Errorf("%d bound ids, want 3: %q", n, bound)
	}
	if got := serveAs(t, h, "ann", streamRequest(t, "/mcp/a", "X-Mark", "yes")).Body.String(); !ids.MatchString(got) ||
		!strings.HasPrefix(got, "\ufeffid: 9.") {
		t.Errorf("after a byte order mark: %q", got)
	}
	serveAs(t, h, "ann", newPost("/mcp/a", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, "Accept-Encoding", "zstd"))
	if all := server.requests(); all[len(all)-1].header.Get("Accept-Encoding") == "zstd" {
		t.Error("the server may compress events, so that their ids are not bound")
	}
	anns := strings.TrimPrefix(ids.FindString(bound), "id: ")
	for _, tt := range []struct {
		name, user, path, last string
		want                   string // received by the server
		status                 int
	}{
		{"the client's own event", "ann", "/mcp/a", anns, "5/\u00e9.x", 200},
		{"no event", "ann", "/mcp/a", "", "", 200},
		{"an event of an anonymous client", "", "/mcp/a", "5", "5", 200},
		{"an event of another client", "bob", "/mcp/a", anns, "", 400},
		{"the server's id", "ann", "/mcp/a", "5/\u00e9.x", "", 400},
		{"the server's id from another client", "bob", "/mcp/a", "0", "", 400},
		{"an event of another server", "ann", "/mcp/b", anns, "", 400},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := len(server.requests())
			w := serveAs(t, h, tt.user, streamRequest(t, tt.path, "Last-Event-Id", tt.last))
			if w.Code != tt.status {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			for _, got := range server.requests()[before:] {
				if last := got.header.Get("Last-Event-Id"); last != tt.want || tt.status != 200 {
					t.Errorf("the server got %q", last)
				}
			}
		})
	}
}

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
