package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// appsCapabilities are the capabilities of an MCP Apps host.
const appsCapabilities = `{"extensions":{"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]}}}`

// exampleApps are the MCP Apps example servers that npm installs into the folder apps.
var exampleApps = []string{"map", "basic-vanillajs", "budget-allocator", "system-monitor", "threejs", "pdf",
	"wiki-explorer", "cohort-heatmap"}

// exampleApp returns the command that starts an example server.
func exampleApp(t *testing.T, name string) []string {
	t.Helper()
	const modules = "apps/node_modules/@modelcontextprotocol/server-"
	if _, err := os.Stat(modules + name); err != nil {
		skipMissing(t, "the example servers are not installed: run make -f xcaddy.mk test, with npm")
	}
	return []string{"node", modules + name + "/dist/index.js", "--stdio"}
}

// A uiTool is a tool with a UI resource.
type uiTool struct {
	Name string
	Meta json.RawMessage `json:"_meta"`
	uri  string
}

// uiTools returns the tools of a result that have a UI.
func uiTools(t *testing.T, result json.RawMessage) (shown []uiTool) {
	t.Helper()
	var list struct{ Tools []uiTool }
	if err := json.Unmarshal(result, &list); err != nil {
		t.Fatalf("%v: %.300s", err, result)
	}
	for _, tool := range list.Tools {
		var meta struct{ UI struct{ ResourceURI string } }
		_ = json.Unmarshal(tool.Meta, &meta)
		if meta.UI.ResourceURI != "" {
			tool.uri = meta.UI.ResourceURI
			shown = append(shown, tool)
		}
	}
	return shown
}

// contentsOf returns the raw contents of a result.
func contentsOf(t *testing.T, result json.RawMessage) string {
	t.Helper()
	var read struct{ Contents json.RawMessage }
	if err := json.Unmarshal(result, &read); err != nil {
		t.Fatalf("%v: %.300s", err, result)
	}
	return string(read.Contents)
}

func readURI(uri string) string { return `{"uri":` + quote(uri) + `}` }

// Hosts of both eras read the UI resources of all example servers through one gateway. They get
// every byte of the servers, even if results are masked.
func TestAppsOfExampleServers(t *testing.T) {
	isolate(t)
	lines := []string{"separator __", "mask"}
	for _, name := range exampleApps {
		lines = append(lines, block("server "+name+" stdio "+strings.Join(exampleApp(t, name), " "), "start_timeout 2m"))
	}
	direct := map[string]*directServer{}
	for _, name := range exampleApps {
		command := exampleApp(t, name)
		direct[name] = startDirect(t, exec.CommandContext(t.Context(), command[0], command[1:]...))
	}
	url := serve(t, patientGateway(lines...))
	var all []exampleUI
	for _, name := range exampleApps {
		all = append(all, uiResources(t, name, direct[name])...)
	}
	for _, era := range clientEras {
		t.Run(era.name, func(t *testing.T) {
			c := newTestClient(t, joinedAt(url), era.modern, appsCapabilities)
			listed := uiTools(t, c.ask(t, "tools/list", `{}`).answer.Result)
			for _, ui := range all {
				i := slices.IndexFunc(listed, func(l uiTool) bool { return l.Name == ui.server+"__"+ui.tool.Name })
				if i < 0 || string(listed[i].Meta) != string(ui.tool.Meta) {
					t.Errorf("%s of %s: got %v, want %s", ui.tool.Name, ui.server, listed, ui.tool.Meta)
					continue
				}
				read := readURI(ui.tool.uri)
				single := newTestClient(t, mcpAt(url, ui.server), era.modern, appsCapabilities)
				for endpoint, got := range map[string]json.RawMessage{
					"/mcp":          c.ask(t, "resources/read", read).answer.Result,
					"/mcp/{server}": single.ask(t, "resources/read", read).answer.Result,
				} {
					same(t, contentsOf(t, got), contentsOf(t, ui.result))
					if !era.modern && string(got) != string(ui.result) {
						t.Errorf("%s at %s: got %d bytes, want %d", ui.tool.uri, endpoint, len(got), len(ui.result))
					}
				}
			}
		})
	}
	t.Run("rpc", func(t *testing.T) {
		for _, ui := range all {
			var answer struct{ Result json.RawMessage }
			_ = json.Unmarshal([]byte(post(t, rpcAt(url, ui.server), rpc("resources/read", readURI(ui.tool.uri))).body), &answer)
			same(t, string(answer.Result), string(ui.result))
		}
	})
}

// An exampleUI is a UI resource of an example server.
type exampleUI struct {
	server string
	tool   uiTool          // tool that names the resource
	result json.RawMessage // result of resources/read
}

// uiResources returns the UI resources of a server, read without a gateway.
func uiResources(t *testing.T, name string, s *directServer) (uis []exampleUI) {
	t.Helper()
	s.initialize(t, appsCapabilities)
	for _, tool := range uiTools(t, s.ask(t, "tools/list", `{}`)) {
		whole := s.ask(t, "resources/read", readURI(tool.uri))
		if contents := contentsOf(t, whole); len(contents) < 100_000 || !strings.Contains(contents, tool.uri) {
			t.Errorf("%s without a gateway: %d bytes, %.100s", tool.uri, len(contents), contents)
		}
		uis = append(uis, exampleUI{name, tool, whole})
	}
	if len(uis) == 0 {
		t.Errorf("no tool of %s has a UI", name)
	}
	return uis
}

// newAppServer starts a server of both eras whose tool has a UI resource. The resource contains the
// name of the server.
func newAppServer(t *testing.T, name, uri string) *remoteServer {
	t.Helper()
	s := serveScript(t, &mcptest.Script{Tools: []string{
		`{"name":"show","inputSchema":{"type":"object"},"_meta":{"ui":{"resourceUri":` + quote(uri) + `},"ui/resourceUri":` +
			quote(uri) + `}}`,
	}})
	s.Change(func(script *mcptest.Script) {
		script.Handle = func(w http.ResponseWriter, r *mcptest.Received) bool {
			if r.Method == "resources/read" {
				r.Answer(w, `"result":{"contents":[{"uri":`+r.Param("uri")+`,"mimeType":"text/html;profile=mcp-app","text":"<h1>`+
					name+`</h1>"}]}`)
				return true
			}
			return false
		}
	})
	return s
}

// expectApp fails the test unless a resource is from this server and has the requested URI.
func expectApp(t *testing.T, c *testClient, uri, name string) {
	t.Helper()
	got := c.ask(t, "resources/read", readURI(uri)).answer
	if !strings.Contains(got.Raw, `"uri":`+quote(uri)) || !strings.Contains(got.Raw, "<h1>"+name+"</h1>") {
		t.Errorf("%s: got %s, want the resource of %s", uri, got.Raw, name)
	}
}

func TestAppsWithTheSameURIStayApart(t *testing.T) {
	isolate(t)
	const uri = "ui://app/view.html"
	lines := []string{"separator __", newAppServer(t, "one", uri).line("one"), newAppServer(t, "two", uri).line("two"),
		newAppServer(t, "three", "ui://three").line("three")}
	for _, example := range []string{"maps", "more"} { // both run the same program
		lines = append(lines, block("server "+example+" stdio "+strings.Join(exampleApp(t, "map"), " "), "start_timeout 2m"))
	}
	url := serve(t, patientGateway(lines...))
	for _, era := range clientEras {
		t.Run(era.name, func(t *testing.T) {
			c := newTestClient(t, joinedAt(url), era.modern, appsCapabilities)
			uris := map[string]string{}
			for _, tool := range uiTools(t, c.ask(t, "tools/list", `{}`).answer.Result) {
				if strings.HasPrefix(tool.uri, "ui://") {
					name, _, _ := strings.Cut(tool.Name, "__")
					uris[name] = tool.uri
				}
			}
			if len(uris) != 5 || uris["one"] == uris["two"] || uris["one"] == uri || uris["maps"] == uris["more"] ||
				uris["three"] != "ui://three" {
				t.Fatalf("got %v", uris)
			}
			other := newTestClient(t, joinedAt(url), era.modern, `{}`) // any client can read the listed URIs
			for _, name := range []string{"one", "two", "three"} {
				expectApp(t, c, uris[name], name)
				expectApp(t, other, uris[name], name)
			}
			for _, name := range []string{"maps", "more"} {
				if got := c.ask(t, "resources/read", readURI(uris[name])).answer; len(got.Raw) < 100_000 ||
					!strings.Contains(got.Raw[:1000]+got.Raw[len(got.Raw)-1000:], uris[name]) {
					t.Errorf("%s: got %.300s", uris[name], got.Raw)
				}
			}
			got := c.ask(t, "resources/read", readURI(uri)).answer
			if got.Error == nil || got.Error.Code != -32602 || !strings.Contains(got.Error.Message, uris["one"]) ||
				!strings.Contains(got.Error.Message, uris["two"]) {
				t.Errorf("the shared URI: got %s", got.Raw)
			}
		})
	}
}

// A client can read a resource by each URI that its server names, and by no other. A denied
// resource looks like an unknown one.
func TestResourcesByTheirOwnURIs(t *testing.T) {
	isolate(t)
	secret, open, hidden := newAppServer(t, "secret", "ui://secret"), newAppServer(t, "open", "ui://open"),
		newAppServer(t, "hidden", "ui://hidden")
	open.Change(func(s *mcptest.Script) {
		s.Resources, s.Templates = []string{"docs://listed"}, []string{"docs://made/{+path}"}
		reply := s.Handle
		s.Handle = func(w http.ResponseWriter, r *mcptest.Received) bool {
			const capabilities = `"capabilities":{"tools":{},"resources":{}},"instructions":"Begin with docs://intro, please."`
			switch r.Method {
			case "initialize":
				r.Answer(w, `"result":{"protocolVersion":"2025-11-25","serverInfo":{"name":"open","version":"1"},`+capabilities+`}`)
			case "server/discover":
				r.Answer(w, `"result":{"resultType":"complete","supportedVersions":["2026-07-28"],"ttlMs":0,`+
					`"cacheScope":"private",`+capabilities+`}`)
			default:
				return reply(w, r)
			}
			return true
		}
	})
	url := serve(t, gateway(append(rulesForEve("deny hidden::* resource:secret::ui://secret"), secret.line("secret"),
		open.line("open"), hidden.line("hidden"))...))
	for _, era := range clientEras {
		t.Run(era.name, func(t *testing.T) {
			zoe := newTestClient(t, joinedAt(url), era.modern, appsCapabilities, bearer(zoeToken))
			for uri, name := range map[string]string{"ui://secret": "secret", "ui://hidden": "hidden", "ui://open": "open",
				"docs://intro": "open", "docs://listed": "open", "docs://made/of/this": "open"} {
				expectApp(t, zoe, uri, name)
			}
			eve := newTestClient(t, joinedAt(url), era.modern, appsCapabilities, bearer(eveToken))
			before := secret.Count("resources/read") + hidden.Count()
			expectApp(t, eve, "ui://open", "open")
			eve.ask(t, "tools/list", `{}`)
			unknown := eve.ask(t, "resources/read", readURI("ui://unknown"))
			if unknown.answer.Error == nil || unknown.answer.Error.Code != -32602 {
				t.Errorf("got %s", unknown.answer.Raw)
			}
			for _, uri := range []string{"ui://secret", "ui://hidden"} {
				got := eve.ask(t, "resources/read", readURI(uri))
				if got.status != unknown.status || got.answer.Error == nil ||
					got.answer.Error.Message != unknown.answer.Error.Message ||
					strings.ReplaceAll(string(got.answer.Error.Data), uri, "ui://unknown") != string(unknown.answer.Error.Data) {
					t.Errorf("%s: %d %s\nwant %d %s", uri, got.status, got.answer.Raw, unknown.status, unknown.answer.Raw)
				}
			}
			if n := secret.Count("resources/read") + hidden.Count() - before; n != 0 {
				t.Errorf("the servers received %d requests", n)
			}
		})
	}
}

// Extensions pass in both directions: servers learn which clients show UIs, and clients which
// servers have some.
func TestExtensionsPassBothWays(t *testing.T) {
	isolate(t)
	const ours = `"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]}`
	for _, era := range clientEras {
		for _, legacyServer := range []bool{true, false} {
			t.Run(fmt.Sprint(era.name, ", legacy server ", legacyServer), func(t *testing.T) {
				remote := serveScript(t, &mcptest.Script{Legacy: legacyServer,
					Capabilities: `{"tools":{},"extensions":{"io.modelcontextprotocol/ui":{"x":[1]}}}`})
				other := serveScript(t, &mcptest.Script{Capabilities: `{"tools":{},"extensions":{"com.example/other":{}}}`})
				own := newJournal(t)
				url := serve(t, gateway(remote.line("remote"), other.line("other"), block(child("own"), own.env(),
					"isolation session")))
				c := newTestClient(t, joinedAt(url), era.modern, appsCapabilities)
				hello := c.ask(t, "server/discover", `{}`).answer
				if !era.modern {
					got, err := c.Initialize(t.Context(), "2025-11-25")
					if err != nil {
						t.Fatal(err)
					}
					hello = got.Message
				}
				if !strings.Contains(hello.Raw, `"extensions":{"com.example/other":{},"io.modelcontextprotocol/ui":{"x":[1]}}`) {
					t.Errorf("the client received %s", hello.Raw)
				}
				for name, received := range map[string]func() []*mcptest.Received{
					"remote": func() []*mcptest.Received { return remote.Received("initialize", "server/discover") },
					"own": func() []*mcptest.Received {
						return slices.Concat(own.messages(t, "initialize"), own.messages(t, "server/discover"))
					},
				} {
					await.Until(t, name+" to receive the extension", func() bool { // the gateway does not wait for a slow child
						all := received()
						return len(all) > 0 && strings.Contains(all[len(all)-1].Body, ours)
					})
				}
			})
		}
	}
}

// A client uses the tasks and skills of two reference servers at once, over HTTP and as a child
// process. A task belongs to its client and survives a reload.
func TestAggregateExtensions(t *testing.T) {
	isolate(t)
	over := freeAddress(t)
	start(t, exec.CommandContext(t.Context(), "sh", "-c", `echo ready; exec "$0" "$@"`, programs()+"/server", "-http",
		over), "ready")
	address := freeAddress(t)
	config := func(lines ...string) string {
		return site(address, patientGateway(append(lines, "separator __", twoTokens(),
			"server far http://"+over+"/mcp", block("server near stdio "+programs()+"/server", "start_timeout 2m"))...))
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
