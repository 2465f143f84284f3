package integration

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// newReplayer starts a server whose streams can be resumed. Its event IDs can be guessed, and it
// has no sessions: it does not distinguish clients.
func newReplayer(t *testing.T) *remoteServer {
	t.Helper()
	var mu sync.Mutex
	var results []string
	return serveScript(t, &mcptest.Script{Sessionless: true, Legacy: true, Capabilities: `{"tools":{}}`,
		Handle: func(w http.ResponseWriter, r *mcptest.Received) bool {
			mu.Lock()
			defer mu.Unlock()
			last, err := strconv.Atoi(r.HTTP.Header.Get("Last-Event-Id"))
			switch {
			case r.Method == "GET" && err == nil:
				w.Header().Set("Content-Type", "text/event-stream")
				for i, result := range results[min(last, len(results)):] {
					fmt.Fprintf(w, "id: %d\ndata: %s\n\n", last+i+1, result)
				}
			case r.Method == "tools/call":
				var arguments struct{ Patient string }
				_ = json.Unmarshal([]byte(r.Param("arguments")), &arguments)
				results = append(results, r.Message(mcptest.Text("results of "+arguments.Patient)))
				w.Header().Set("Content-Type", "text/event-stream")
				fmt.Fprintf(w, "id: %d\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\","+
					"\"params\":{\"progressToken\":1,\"progress\":1}}\n\n", len(results)-1)
				fmt.Fprintf(w, "id: %d\ndata: %s\n\n", len(results), results[len(results)-1])
			default:
				return false
			}
			return true
		}})
}

// A client can resume only its own streams.
func TestSecurityStreamsOfOthers(t *testing.T) {
	isolate(t)
	url := serve(t, gateway("separator __", twoTokens(), newReplayer(t).line("up")))
	for _, endpoint := range []string{joinedAt(url), mcpAt(url, "up")} {
		t.Run(strings.TrimPrefix(endpoint, url), func(t *testing.T) {
			tool, guesses := "x", []string{"0", "1"}
			session := map[string][]string{victimToken: nil, thiefToken: nil}
			if endpoint == joinedAt(url) {
				tool, guesses = "up__x", []string{"call:MQ/up/0", "call:MQ/up/1"}
				for token := range session {
					session[token] = []string{sessionHeader(t, endpoint, bearer(token))}
				}
			}
			resumes := func(token, last string) httpResponse {
				t.Helper()
				return send(t, client, "GET", endpoint, "", append(session[token], bearer(token), "Accept: text/event-stream",
					"Last-Event-Id: "+last)...)
			}
			stream := post(t, endpoint, rpc("tools/call", `{"name":"`+tool+`","arguments":{"patient":"victim"},`+
				`"_meta":{"progressToken":1}}`), append(session[victimToken], bearer(victimToken), acceptBoth)...).body
			_, last, _ := strings.Cut(stream, "id: ")
			last, _, _ = strings.Cut(last, "\n")
			if got := resumes(victimToken, last); got.StatusCode != 200 || !strings.Contains(got.body, "results of victim") {
				t.Errorf("the victim resumes after %q and gets %d %s", last, got.StatusCode, got.body)
			}
			for _, last := range append(guesses, last) {
				if got := resumes(thiefToken, last); got.StatusCode != 400 || strings.Contains(got.body, "victim") {
					t.Errorf("the thief resumes after %q and gets %d %s", last, got.StatusCode, got.body)
				}
			}
		})
	}
}

// newWorker starts a server with tasks that any client may use. It compresses its responses.
func newWorker(t *testing.T) (server *remoteServer) {
	t.Helper()
	var mu sync.Mutex
	var tasks []string
	server = serveScript(t, &mcptest.Script{
		Sessionless: true, Legacy: true, Tools: []string{"dig"}, Capabilities: `{"tools":{},"tasks":{"list":{},"cancel":{}}}`,
		Handle: func(w http.ResponseWriter, r *mcptest.Received) bool {
			if strings.Contains(r.HTTP.Header.Get("Accept-Encoding"), "gzip") && r.ID != nil {
				w.Header().Set("Content-Encoding", "gzip")
				zipped := gzip.NewWriter(w)
				defer zipped.Close()
				w = zippedWriter{w, zipped}
			}
			mu.Lock()
			defer mu.Unlock()
			var id string
			_ = json.Unmarshal([]byte(r.Param("taskId")), &id)
			list := func(format string) (all []string) {
				for _, id := range tasks {
					all = append(all, fmt.Sprintf(format, id))
				}
				return all
			}
			switch r.Method {
			case "tools/call":
				id = fmt.Sprint("t", len(tasks))
				tasks = append(tasks, id)
				task := `"taskId":"` + id + `","status":"working"}`
				if r.Param("task") == "" { // a modern request
					r.Answer(w, `"result":{"resultType":"task",`+task)
				} else {
					r.Answer(w, `"result":{"task":{`+task+`}`)
				}
			case "tasks/list":
				r.Answer(w, `"result":{"tasks":[`+strings.Join(list(`{"taskId":"%s","status":"working"}`), ",")+`]}`)
			case "tasks/get", "tasks/result", "tasks/cancel", "tasks/update":
				r.Answer(w, `"result":{"taskId":"`+id+`","status":"working"}`)
			case "subscriptions/listen": // every subscriber receives all notifications
				all := list(`{"jsonrpc":"2.0","method":"notifications/tasks","params":{"taskId":"%s","status":"completed",` +
					`"result":{}}}`)
				r.Stream(w, append(all, r.Message(`"result":{}`))...)
			default:
				if r.ID != nil {
					server.Answer(w, r)
				}
				return r.ID != nil
			}
			return true
		},
	})
	return server
}

// A zippedWriter compresses the response body.
type zippedWriter struct {
	http.ResponseWriter
	zipped *gzip.Writer
}

func (w zippedWriter) Write(p []byte) (int, error) { return w.zipped.Write(p) }

// Only the client that created a task may use it, and only while it may use the tool.
func TestSecurityTasksOfOthers(t *testing.T) {
	isolate(t)
	up := newWorker(t)
	seen := func() int {
		return up.Count("tasks/get", "tasks/result", "tasks/cancel", "tasks/update", "subscriptions/listen")
	}
	address := freeAddress(t)
	line := up.line("up")
	load(t, site(address, gateway("separator __", "mask off", twoTokens(), line)))
	url := "http://" + address
	type way struct {
		name, at, tool string
		members        string // further params of a call
	}
	ways := []way{
		{"/mcp", joinedAt(url), "up__dig", `"task":{}`},
		{"/mcp/{server}", mcpAt(url, "up"), "dig", `"task":{}`},
		{"/mcp/{server}, modern", mcpAt(url, "up"), "dig",
			`"_meta":{"io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}`},
		{"/rpc", rpcAt(url, "up"), "dig", `"task":{}`},
	}
	ask := func(t *testing.T, way way, token, method, params string) string {
		t.Helper()
		headers := []string{bearer(token), acceptBoth, connectionClose, "Accept-Encoding: gzip"}
		if way.name == "/mcp" {
			headers = append(headers, sessionHeader(t, way.at, bearer(token)))
		}
		body := post(t, way.at, rpc(method, params), headers...).body
		if method == "subscriptions/listen" {
			return body
		}
		return answerIn(body)
	}
	methods := []string{"tasks/get", "tasks/result", "tasks/cancel", "tasks/update"}
	created := map[string]string{}
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			var got struct {
				Result struct {
					TaskID string `json:"taskId"`
					Task   struct {
						TaskID string `json:"taskId"`
					}
				}
			}
			text := ask(t, way, victimToken, "tools/call", `{"name":"`+way.tool+`","arguments":{},`+way.members+`}`)
			_ = json.Unmarshal([]byte(text), &got)
			id := got.Result.TaskID + got.Result.Task.TaskID
			created[way.name] = id
			if id == "" {
				t.Fatalf("no task: %s", text)
			}
			before := seen()
			for _, method := range methods {
				if text := ask(t, way, thiefToken, method, `{"taskId":"`+id+`"}`); !strings.Contains(text, "-32602") ||
					seen() != before {
					t.Errorf("%s of another's task: %s", method, text)
				}
			}
			for _, method := range methods {
				if text := ask(t, way, victimToken, method, `{"taskId":"`+id+`"}`); !strings.Contains(text, "working") {
					t.Errorf("%s: %s", method, text)
				}
			}
			if text := ask(t, way, thiefToken, "tasks/list", `{}`); !strings.Contains(text, `"tasks":[]`) {
				t.Errorf("tasks/list of another client: %s", text)
			}
			if text := ask(t, way, victimToken, "tasks/list", `{}`); !strings.Contains(text, `"`+id+`"`) {
				t.Errorf("tasks/list: %s", text)
			}
			if way.name == "/mcp" {
				return // /mcp does not subscribe to tasks
			}
			before = seen()
			if text := ask(t, way, thiefToken, "subscriptions/listen", `{"notifications":{"taskIds":["`+id+
				`"]}}`); !strings.Contains(text, "-32602") || seen() != before {
				t.Errorf("the thief subscribed to another's task: %s", text)
			}
			if text := ask(t, way, thiefToken, "subscriptions/listen", `{"notifications":{}}`); strings.Contains(text,
				"taskId") || seen() == before {
				t.Errorf("the thief subscribed: %s", text)
			}
			text = ask(t, way, victimToken, "subscriptions/listen", `{"notifications":{"taskIds":["`+id+`"]}}`)
			// /rpc has no events
			if received := strings.Contains(text, `"`+id+`"`); received != (way.name != "/rpc") || !strings.Contains(text,
				`"result":{}`) {
				t.Errorf("the victim subscribed: %s", text)
			}
		})
	}
	t.Run("after the tool was denied", func(t *testing.T) {
		load(t, site(address, gateway("separator __", twoTokens(), block("client victim", "deny up::dig"), line)))
		for _, way := range ways {
			before := seen()
			if text := ask(t, way, victimToken, "tasks/result", `{"taskId":"`+created[way.name]+`"}`); !strings.Contains(text,
				"error") || seen() != before {
				t.Errorf("%s: %s", way.name, text)
			}
			if text := ask(t, way, victimToken, "tasks/list", `{}`); strings.Contains(text, "working") {
				t.Errorf("%s, tasks/list: %s", way.name, text)
			}
		}
	})
}

// One client cannot use up the limit of calls that wait for client input, whatever capabilities
// it declares.
func TestSecurityHeldCallsOfOthers(t *testing.T) {
	isolate(t)
	remote := &mcptest.Remote{Name: "far", Legacy: true}
	t.Cleanup(remote.Close)
	endpoint := joinedAt(serve(t, gateway("separator __", twoTokens(), "server far http://"+upstream(t, remote)+"/mcp")))
	asks := func(token string, i int) mcpclient.Message {
		t.Helper()
		c := newTestClient(t, endpoint, true, fmt.Sprintf(`{"elicitation":{"form":{}},"experimental":{"%d":{}}}`, i),
			bearer(token))
		return c.ask(t, "tools/call", callOf("far", "ask", `{"method":"elicitation/create","params":{"message":"m"}}`)).answer
	}
	held := 0
	for i := range 40 {
		if strings.Contains(asks(thiefToken, i).Raw, "input_required") {
			held++
		}
	}
	if held != 32 {
		t.Errorf("%d calls of one client are held, want 32", held)
	}
	asks(victimToken, 0).Input(t)
}

// An ended session stays ended, even after other clients start sessions.
func TestSecurityEndedSessions(t *testing.T) {
	isolate(t)
	remote := &mcptest.Remote{Name: "far", Legacy: true}
	t.Cleanup(remote.Close)
	endpoint := joinedAt(serve(t, gateway("separator __", twoTokens(), "max_sessions 2", "server far http://"+
		upstream(t, remote)+"/mcp")))
	session := sessionHeader(t, endpoint, bearer(victimToken))
	uses := func() int {
		t.Helper()
		return post(t, endpoint, rpc("tools/list", `{}`), session, bearer(victimToken), acceptBoth).StatusCode
	}
	if got := uses(); got != 200 {
		t.Fatalf("the session: %d", got)
	}
	if got := send(t, client, "DELETE", endpoint, "", session, bearer(victimToken)); got.StatusCode != 204 {
		t.Fatalf("DELETE: got %d %s, want 204", got.StatusCode, got.body)
	}
	for range 4 {
		sessionHeader(t, endpoint, bearer(thiefToken))
	}
	if got := uses(); got != 404 {
		t.Errorf("the ended session: got %d, want 404", got)
	}
}
