package mcpgateway

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsontest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/stdio"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
	_ "github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpsample"
)

// An adminTest is the admin API of the gateways of one test, as Caddy serves it.
type adminTest struct {
	*testing.T
	mux  *http.ServeMux
	logs *observer.ObservedLogs
}

func newAdmin(t *testing.T, configs ...string) *adminTest {
	t.Helper()
	isolateRegistry(t)
	core, logs := observer.New(zap.InfoLevel)
	ctx, cancel := caddy.NewContext(caddy.Context{Context: t.Context()})
	t.Cleanup(cancel)
	api := &adminAPI{logger: zap.New(core)}
	if err := api.Provision(ctx); err != nil {
		t.Fatal(err)
	}
	a := &adminTest{t, http.NewServeMux(), logs}
	for _, route := range api.Routes() {
		a.mux.HandleFunc(route.Pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := route.Handler.ServeHTTP(w, r); err != nil {
				t.Error(err)
			}
		})
	}
	for _, config := range configs {
		h := adaptGateway(t, config)
		h.generation = t // the gateways belong to one configuration
		registry.add(h)
	}
	return a
}

// call sends a request, and decodes the response into answer unless answer is nil.
func (a *adminTest) call(method, path, body string, answer any) *http.Response {
	a.Helper()
	w := httptest.NewRecorder()
	a.mux.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
	res := w.Result()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		a.Fatal(err)
	}
	res.Body = io.NopCloser(bytes.NewReader(data))
	if answer != nil {
		if err := json.Unmarshal(data, answer); err != nil {
			a.Errorf("%s %s: %s: %v", method, path, data, err)
		}
	}
	return res
}

// audited returns the fields of the last log line.
func (a *adminTest) audited() map[string]any {
	a.Helper()
	lines := a.logs.All()
	if len(lines) == 0 || lines[len(lines)-1].Message != "admin action" {
		a.Fatalf("logged %v", lines)
	}
	return lines[len(lines)-1].ContextMap()
}

const (
	staticHandler = `{"handler":"static_response","body":"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}"}`
	gatewayWeb    = `{"name":"one","servers":[{"name":"web","aliases":["www"],"routes":[{"handle":[` + staticHandler +
		`]}]}]}`
	gatewayOther = `{"name":"two","mcp_path":"/two","rpc_path":"/rpc","servers":[{"name":"web","routes":[{"handle":[` +
		staticHandler + `]}]},{"name":"b c","routes":[{}]}]}`
)

// A path selects the gateway without a name, even if gateways with names have the same path.
func TestAdminSelectsGateways(t *testing.T) { // A70
	const unnamed = `{"rpc_path":"/rpc","servers":[{"name":"web","routes":[{"handle":[` + staticHandler + `]}]}]}`
	a := newAdmin(t, gatewayWeb, gatewayOther, unnamed)
	for gateway, want := range map[string]string{"one": "one", "two": "two", "/two": "two", "/mcp": ""} {
		var server adminapi.ServerStatus
		res := a.call("GET", "/mcp_gateway/servers/web?gateway="+gateway, "", &server)
		if res.StatusCode != http.StatusOK || server.Gateway != want {
			t.Errorf("%s: got %d, %+v", gateway, res.StatusCode, server.GatewayID)
		}
	}
	var failure adminapi.Error
	if a.call("GET", "/mcp_gateway/servers/web", "", &failure); failure.Message !=
		`several gateways match; select one with ?gateway=: /mcp (no name), "one" at /mcp, "two" at /two` {
		t.Errorf("got %+v", failure)
	}
}

// A gateway in two sites may admit other clients in each. Its servers are the same.
func TestAdminGatewayInTwoSites(t *testing.T) { // A70
	site := func(more string) string { return `{` + more + `"servers":[` + serverOf("web", staticHandler) + `]}` }
	a := newAdmin(t, site(""), site(`"clients":[{"name":"ann","rules":[{"action":"deny","patterns":["web::x"]}]}],`+
		`"auth":[{"provider":"token","tokens":[{"token":"sha256:`+strings.Repeat("0", 64)+`","client":"ann"}]}],`), site(""))
	for i, h := range registry.all {
		h.place.site = &caddyhttp.Server{Listen: []string{fmt.Sprint("127.0.0.1:", 8080+i)}}
	}
	var overview adminapi.Overview
	a.call("GET", "/mcp_gateway/overview", "", &overview)
	var got []string
	for _, g := range overview.Gateways {
		got = append(got, fmt.Sprint(g.URLs, g.Admits))
	}
	want := []string{"[http://127.0.0.1:8080/mcp http://127.0.0.1:8082/mcp]anyone on this machine",
		"[http://127.0.0.1:8081/mcp]token, 1 client"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	var servers []adminapi.ServerStatus
	if a.call("GET", "/mcp_gateway/servers", "", &servers); len(servers) != 1 {
		t.Errorf("got %d servers", len(servers))
	}
	var clients []GatewayClient
	if a.call("GET", "/mcp_gateway/clients", "", &clients); len(clients) != 1 || len(clients[0].Rules) != 1 {
		t.Errorf("got %+v", clients)
	}
	for client, status := range map[string]int{"ann": 200, "anonymous": 200, "": 200, "bob": 404} {
		if res := a.call("GET", "/mcp_gateway/tools?client="+client, "", nil); res.StatusCode != status {
			t.Errorf("%s: got %d", client, res.StatusCode)
		}
	}
}

func TestAdminRefusals(t *testing.T) { // A70, A72
	a := newAdmin(t, gatewayWeb, gatewayOther)
	for _, tt := range []struct {
		name, method, path, body string
		status                   int
		code, message            string
	}{
		{"an unknown server", "GET", "/mcp_gateway/servers/none", "", 404, "not_found", `"none"`},
		{"the restart of an unknown server", "POST", "/mcp_gateway/servers/none/restart", "", 404, "not_found", `"none"`},
		{"an unknown gateway", "GET", "/mcp_gateway/servers?gateway=three", "", 404, "not_found", `"three"`},
		{"a server of two gateways", "GET", "/mcp_gateway/servers/web", "", 409, "ambiguous", `"one" at /mcp, "two" at /two`},
		{"the restart of a server of two gateways", "POST", "/mcp_gateway/servers/web/restart", "", 409, "ambiguous",
			"?gateway="},
		{"the restart of a server without children", "POST", "/mcp_gateway/servers/web/restart?gateway=one", "", 409,
			"no_child_process", "has no child process"},
		{"a restart by GET", "GET", "/mcp_gateway/servers/web/restart", "", 405, "method_not_allowed", "GET"},
		{"a change of the index", "POST", "/mcp_gateway", "", 405, "method_not_allowed", "POST"},
		{"an unsupported method", "PUT", "/mcp_gateway/templates", "", 405, "method_not_allowed", "PUT"},
		{"an unknown path", "GET", "/mcp_gateway/nothing", "", 404, "not_found", "/mcp_gateway/nothing"},
		{"a tool that has not changed", "POST", "/mcp_gateway/servers/b%20c/accept", `{"tool":"nope"}`, 404, "not_found",
			"nope"},
		{"an acceptance with an unknown member", "POST", "/mcp_gateway/servers/b%20c/accept", `{"tools":["x"]}`, 400,
			"invalid_request", `unknown member "tools"`},
		{"an acceptance that is null", "POST", "/mcp_gateway/servers/b%20c/accept", `null`, 400,
			"invalid_request", "the request must be a JSON object"},
		{"an acceptance with seen and no tool", "POST", "/mcp_gateway/servers/b%20c/accept", `{"seen":"0"}`, 400,
			"invalid_request", "tool: missing"},
		{"an acceptance with an empty seen", "POST", "/mcp_gateway/servers/b%20c/accept", `{"tool":"x","seen":""}`, 400,
			"invalid_request", "seen: empty"},
		{"an acceptance with seen as an object", "POST", "/mcp_gateway/servers/b%20c/accept", `{"tool":"x","seen":{}}`, 400,
			"invalid_request", "seen: must be a string, got object"},
		{"a template for two gateways", "POST", "/mcp_gateway/templates", `{"name":"a","uriTemplate":"a:b","text":"x"}`, 409,
			"ambiguous", "several gateways"},
		{"an invalid template", "POST", "/mcp_gateway/templates?gateway=one",
			`{"name":"a","uriTemplate":"a:{?b}","text":"x"}`, 400, "invalid_request", "uriTemplate"},
		{"a template for an unknown gateway", "POST", "/mcp_gateway/templates", `{"gateway":"three","name":"a"}`, 404,
			"not_found", "three"},
		{"a template of an unknown server", "POST", "/mcp_gateway/templates",
			`{"gateway":"one","name":"a","uriTemplate":"a:b","server":"x","uri":"c:d"}`, 400, "invalid_request", "server"},
		{"a template with an unknown field", "POST", "/mcp_gateway/templates", `{"gateway":"one","nam":"a"}`, 400,
			"invalid_request", "nam"},
		{"a template that is not JSON", "POST", "/mcp_gateway/templates", `{x}`, 400, "invalid_request",
			"the request is not JSON: invalid character"},
		{"an incomplete template", "POST", "/mcp_gateway/templates", `{"name":`, 400, "invalid_request",
			"the JSON object of the request is incomplete"},
		{"a template that is a list", "POST", "/mcp_gateway/templates", `[{}]`, 400, "invalid_request",
			"the request must be a JSON object"},
		{"a name that is not a string", "POST", "/mcp_gateway/templates", `{"name":[]}`, 400, "invalid_request",
			"name: must be a string, got array"},
		{"a gateway that is not a string", "POST", "/mcp_gateway/templates", `{"gateway":7}`, 400, "invalid_request",
			"gateway: must be a string, got number"},
		{"no template", "POST", "/mcp_gateway/templates", ``, 400, "invalid_request", "the request must be a JSON object"},
		{"two templates", "POST", "/mcp_gateway/templates", `{} {}`, 400, "invalid_request", "unexpected data after"},
		{"a template that is too large", "POST", "/mcp_gateway/templates", `"` + strings.Repeat("x", adminapi.MaxBody) + `"`,
			413, "payload_too_large", "2097152"},
		{"an unknown template", "DELETE", "/mcp_gateway/templates/none", "", 404, "not_found", `"none"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var failure struct{ Error, Code string }
			before := a.logs.Len()
			res := a.call(tt.method, tt.path, tt.body, &failure)
			if res.StatusCode != tt.status || failure.Code != tt.code || !strings.Contains(failure.Error, tt.message) {
				t.Errorf("got %d %+v", res.StatusCode, failure)
			}
			if strings.Contains(failure.Error, "json:") || strings.Contains(failure.Error, "Go ") ||
				strings.Contains(failure.Error, "struct") {
				t.Errorf("%q mentions Go", failure.Error)
			}
			if res.Header.Get("Content-Type") != "application/json" {
				t.Errorf("Content-Type %s", res.Header.Get("Content-Type"))
			}
			if (res.Header.Get("Allow") != "") != (tt.status == 405) {
				t.Errorf("Allow: %s", res.Header.Get("Allow"))
			}
			switch tried := tt.method != "GET" && tt.status != 405; {
			case !tried && a.logs.Len() > before:
				t.Errorf("logged %v", a.audited())
			case tried && a.audited()["outcome"] != tt.code:
				t.Errorf("logged %v", a.audited())
			}
		})
	}
}

func TestAdminServers(t *testing.T) { // A70
	a := newAdmin(t, gatewayWeb, gatewayOther)
	var all []adminapi.ServerStatus
	a.call("GET", "/mcp_gateway/servers", "", &all)
	var names []string
	for _, s := range all {
		names = append(names, s.Gateway+" "+s.Path+" "+s.Name+" "+s.State)
	}
	if got := strings.Join(names, ", "); got != "one /mcp web unknown, two /two web unknown, two /two b c unknown" {
		t.Errorf("got %s", got)
	}
	for path, want := range map[string]string{"?gateway=two": "two", "?gateway=/mcp": "one"} {
		all = nil
		if a.call("GET", "/mcp_gateway/servers"+path, "", &all); len(all) == 0 || all[0].Gateway != want {
			t.Errorf("%s: got %+v", path, all)
		}
	}
	for path, want := range map[string]string{"www": "web", "b%20c": "b c", "web?gateway=two": "web"} {
		var one adminapi.ServerStatus
		if res := a.call("GET", "/mcp_gateway/servers/"+path, "", &one); res.StatusCode != 200 || one.Name != want {
			t.Errorf("%s: got %d %+v", path, res.StatusCode, one)
		}
	}
	body, _ := io.ReadAll(a.call("GET", "/mcp_gateway/servers/www", "", nil).Body)
	if want := `{"gateway":"one","mcp_path":"/mcp","name":"web","aliases":["www"],"state":"unknown","restarts":0,` +
		`"sessions":0,"tools_changed":0}`; strings.TrimSpace(string(body)) != want {
		t.Errorf("got %s\nwant %s", body, want)
	}
	if a.logs.Len() > 0 {
		t.Error("a read request is logged")
	}
}

func TestAdminIndex(t *testing.T) { // A70
	a := newAdmin(t, gatewayWeb)
	for _, path := range []string{"/mcp_gateway", "/mcp_gateway/"} {
		var routes []struct{ Method, Path, Description string }
		res := a.call("GET", path, "", &routes)
		if res.StatusCode != http.StatusOK || len(routes) != len(adminRoutes()) {
			t.Errorf("%s: got %d %+v", path, res.StatusCode, routes)
		}
		for _, route := range routes {
			if route.Description == "" {
				t.Errorf("%+v", route)
			}
			target := strings.NewReplacer("{server}", "web", "{name}", "none").Replace(route.Path)
			if res := a.call(route.Method, target, "", nil); res.StatusCode == http.StatusMethodNotAllowed {
				t.Errorf("%s %s: got %d", route.Method, target, res.StatusCode)
			}
		}
	}
}

func TestAdminHead(t *testing.T) { // A70
	a := newAdmin(t, gatewayWeb)
	server := httptest.NewServer(a.mux)
	defer server.Close()
	for path, want := range map[string]int{"": 200, "/servers": 200, "/servers/web": 200, "/servers/none": 404,
		"/metrics": 200, "/servers/web/restart": 405} {
		res, err := http.Head(server.URL + "/mcp_gateway" + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != want || res.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: got %d %v", path, res.StatusCode, res.Header)
		}
	}
	if got := a.call("POST", "/mcp_gateway/servers", "", nil).Header.Get("Allow"); got != "GET, HEAD" {
		t.Errorf("Allow %s, want GET, HEAD", got)
	}
}

func TestAdminUnnamedGateways(t *testing.T) { // A70
	a := newAdmin(t, `{"servers":[`+serverOf("a", staticHandler)+`]}`, `{"servers":[`+serverOf("b", staticHandler)+`]}`)
	for _, name := range []string{"a", "b"} {
		if res := a.call("GET", "/mcp_gateway/servers/"+name, "", nil); res.StatusCode != http.StatusOK {
			t.Errorf("%s: got %d", name, res.StatusCode)
		}
	}
	var failure struct{ Error, Code string }
	res := a.call("POST", "/mcp_gateway/templates", `{"name":"a","uriTemplate":"a:b","text":"x"}`, &failure)
	if res.StatusCode != http.StatusConflict || !strings.Contains(failure.Error, "a name of its own") {
		t.Errorf("got %d %+v", res.StatusCode, failure)
	}
}

func TestAdminWithoutGateways(t *testing.T) {
	a := newAdmin(t)
	for _, path := range []string{"servers", "templates", "tools/changes", "clients"} {
		body, _ := io.ReadAll(a.call("GET", "/mcp_gateway/"+path, "", nil).Body)
		if strings.TrimSpace(string(body)) != "[]" {
			t.Errorf("%s: got %s", path, body)
		}
	}
	if res := a.call("POST", "/mcp_gateway/templates", `{"name":"a","uriTemplate":"a:b","text":"x"}`,
		nil); res.StatusCode != 404 {
		t.Errorf("got %d", res.StatusCode)
	}
}

func TestAdminUpstreams(t *testing.T) { // A70
	a := newAdmin(t, `{"servers":[`+serverOf("web", proxyTo("", "127.0.0.1:9"))+`]}`)
	var one adminapi.ServerStatus
	a.call("GET", "/mcp_gateway/servers/web", "", &one)
	if want := []adminapi.UpstreamStatus{{Address: "127.0.0.1:9",
		Healthy: true}}; fmt.Sprint(one.Upstreams) != fmt.Sprint(want) {
		t.Errorf("got %+v", one)
	}
}

func TestAdminRestart(t *testing.T) { // A70, A72, A74
	a := newAdmin(t, `{"name":"one","servers":[`+serverOf("alpha", proxyTo(childTransport(), "alpha:1"))+`]}`)
	show := func() (one adminapi.ServerStatus) {
		a.call("GET", "/mcp_gateway/servers/alpha", "", &one)
		return one
	}
	if got := show(); got.State != "unknown" || got.Children[0].State != stdio.Idle ||
		got.Children[0].Address != "alpha:1" {
		t.Errorf("before the first request: %+v", got)
	}
	var first, second adminapi.ServerStatus
	a.call("POST", "/mcp_gateway/servers/alpha/restart", "", &first)
	res := a.call("POST", "/mcp_gateway/servers/alpha/restart", "", &second)
	if res.StatusCode != http.StatusOK || len(first.Children) != 1 || len(second.Children) != 1 {
		t.Fatalf("got %d %+v, then %+v", res.StatusCode, first, second)
	}
	if second.Children[0].PID == first.Children[0].PID || second.Restarts != 1 || second.State != "healthy" {
		t.Errorf("first %+v, then %+v", first, second)
	}
	if got := show(); got.Children[0].PID != second.Children[0].PID {
		t.Errorf("got %+v", got)
	}
	for field, want := range map[string]any{"action": "restart", "gateway": "one", "mcp_server": "alpha", "name": "",
		"outcome": "ok", "remote_addr": "192.0.2.1:1234"} {
		if got := a.audited()[field]; got != want {
			t.Errorf("logged %s %v, want %v", field, got, want)
		}
	}
}

func TestAdminRestartThatFails(t *testing.T) { // A72
	a := newAdmin(t, `{"servers":[`+serverOf("alpha", proxyTo(childTransport("--exit-at-start", "3"), "alpha:1"))+`]}`)
	var failure struct{ Error, Code string }
	res := a.call("POST", "/mcp_gateway/servers/alpha/restart", "", &failure)
	if res.StatusCode != http.StatusBadGateway || failure.Code != "restart_failed" ||
		!strings.Contains(failure.Error, "exited with status 3") {
		t.Errorf("got %d %+v", res.StatusCode, failure)
	}
	var one adminapi.ServerStatus
	a.call("GET", "/mcp_gateway/servers/alpha", "", &one)
	if one.State != "unhealthy" || !strings.Contains(one.LastError, "exited with status 3") ||
		one.Children[0].State != stdio.Stopped {
		t.Errorf("got %+v", one)
	}
}

func TestAdminTools(t *testing.T) { // A70, A73, A74
	a := newAdmin(t, gatewayWeb)
	h := registry.current()[0]
	for _, tool := range []string{"x", "y", "z"} {
		h.byName["web"].pins.Observe(tool, []byte(`{"name":"`+tool+`","description":"good"}`))
		h.byName["web"].pins.Observe(tool, []byte(`{"name":"`+tool+`","description":"evil"}`))
	}
	var changes []adminapi.ToolChange
	a.call("GET", "/mcp_gateway/tools/changes", "", &changes)
	if len(changes) != 3 || changes[0].Gateway != "one" || changes[0].Server != "web" || changes[0].Tool != "x" ||
		changes[0].Pinned == changes[0].Seen {
		t.Fatalf("got %+v", changes)
	}
	if c := changes[0]; string(c.Before) != `{"name":"x","description":"good"}` ||
		string(c.After) != `{"name":"x","description":"evil"}` || len(c.Seen) != 32 {
		t.Errorf("before %s, after %s, seen %s", c.Before, c.After, c.Seen)
	}
	var one adminapi.ServerStatus
	if a.call("GET", "/mcp_gateway/servers/web", "", &one); one.ToolsChanged != 3 {
		t.Errorf("got %+v", one)
	}
	for _, tt := range []struct {
		body, tool string
		accepted   int
	}{{`{"tool":"y"}`, "y", 1}, {"", "", 2}, {"{}", "", 0}} {
		var got struct{ Accepted int }
		res := a.call("POST", "/mcp_gateway/servers/www/accept", tt.body, &got)
		if res.StatusCode != http.StatusOK || got.Accepted != tt.accepted {
			t.Errorf("%s: got %d %+v", tt.body, res.StatusCode, got)
		}
		if line := a.audited(); line["action"] != "accept" || line["mcp_server"] != "web" || line["name"] != tt.tool {
			t.Errorf("logged %v", line)
		}
	}
	body, _ := io.ReadAll(a.call("POST", "/mcp_gateway/servers/web/refresh", "", nil).Body)
	if strings.TrimSpace(string(body)) != `{"clients":0}` || a.audited()["action"] != "refresh" {
		t.Errorf("got %s", body)
	}
}

func TestAdminAcceptsSeenChange(t *testing.T) { // A73, A74
	a := newAdmin(t, gatewayWeb)
	pins := registry.current()[0].byName["web"].pins
	see := func(description string) { pins.Observe("x", []byte(`{"name":"x","description":"`+description+`"}`)) }
	review := func() string {
		var changes []adminapi.ToolChange
		if a.call("GET", "/mcp_gateway/tools/changes", "", &changes); len(changes) != 1 {
			t.Fatalf("got %+v", changes)
		}
		return changes[0].Seen
	}
	accept := func(seen string, status int, code string) {
		t.Helper()
		var answer struct{ Error, Code string }
		res := a.call("POST", "/mcp_gateway/servers/web/accept", `{"tool":"x","seen":"`+seen+`"}`, &answer)
		if res.StatusCode != status || answer.Code != code {
			t.Errorf("got %d %+v", res.StatusCode, answer)
		}
		if line := a.audited(); line["name"] != "x" || line["outcome"] != cmp.Or(code, "ok") {
			t.Errorf("logged %v", line)
		}
	}
	see("good")
	see("better")
	seen := review()
	see("evil")
	accept(seen, http.StatusConflict, "changed_again")
	if !pins.Changed("x") {
		t.Error("a change that the operator has not seen is accepted")
	}
	see("better")
	accept(seen, http.StatusOK, "")
	if pins.Changed("x") {
		t.Error("the change that the operator has seen is not accepted")
	}
	accept(seen, http.StatusNotFound, "not_found")
	accept("5f0c9a3e1b7d42688c1e0f9d3a6b2c74", http.StatusNotFound, "not_found")
}

func TestAdminClients(t *testing.T) { // A70
	a := newAdmin(t,
		`{"name":"clients","clients":[{"name":"*"},{"name":"bob"}],"servers":[`+serverOf("web", staticHandler)+`]}`)
	h := registry.current()[0]
	for _, who := range []string{"", "", "ann", "bob"} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("POST", "http://localhost/mcp", strings.NewReader(
			`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},`+
				`"clientInfo":{"name":"x","version":"1"}}}`))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		repl := caddy.NewReplacer()
		repl.Set("http.auth.user.id", who)
		if err := h.ServeHTTP(w, caddyhttp.PrepareRequest(r, repl, w, new(caddyhttp.Server)), nil); err != nil ||
			w.Code != http.StatusOK {
			t.Fatalf("%d %v %s", w.Code, err, w.Body)
		}
	}
	var clients []GatewayClient
	a.call("GET", "/mcp_gateway/clients", "", &clients)
	got := map[string]map[string]int{}
	for _, client := range clients {
		got[client.Name] = client.Sessions
	}
	if fmt.Sprint(got) != "map[*:map[ann:1 anonymous:2] bob:map[bob:1]]" {
		t.Errorf("got %v", got)
	}
}

func TestAdminTemplates(t *testing.T) { // A67, A74
	a := newAdmin(t, gatewayWeb)
	for i, status := range []int{http.StatusCreated, http.StatusOK} {
		var got gatewayTemplate
		res := a.call("POST", "/mcp_gateway/templates",
			fmt.Sprintf(`{"name":"a/b","uriTemplate":"hi://{x}","text":"hi {x} %d","mimeType":"text/plain"}`, i), &got)
		if res.StatusCode != status || got.Gateway != "one" || got.Text != fmt.Sprintf("hi {x} %d", i) {
			t.Errorf("got %d %+v", res.StatusCode, got)
		}
		if line := a.audited(); line["action"] != "put_template" || line["name"] != "a/b" || line["gateway"] != "one" {
			t.Errorf("logged %v", line)
		}
	}
	a.call("POST", "/mcp_gateway/templates",
		`{"name":"window","uriTemplate":"docs://{x}","server":"www","uri":"file:///{x}"}`, nil)
	body, _ := io.ReadAll(a.call("GET", "/mcp_gateway/templates", "", nil).Body)
	want := `[{"gateway":"one","name":"a/b","uriTemplate":"hi://{x}","mimeType":"text/plain","text":"hi {x} 1"},` +
		`{"gateway":"one","name":"window","uriTemplate":"docs://{x}","server":"web","uri":"file:///{x}"}]`
	if strings.TrimSpace(string(body)) != want {
		t.Errorf("got %s\nwant %s", body, want)
	}
	for _, status := range []int{http.StatusNoContent, http.StatusNotFound} {
		if res := a.call("DELETE", "/mcp_gateway/templates/a%2Fb", "", nil); res.StatusCode != status {
			t.Errorf("got %d, want %d", res.StatusCode, status)
		}
		if line := a.audited(); line["action"] != "delete_template" || line["name"] != "a/b" {
			t.Errorf("logged %v", line)
		}
	}
}

func TestAdminMetrics(t *testing.T) { // A71
	a := newAdmin(t, gatewayWeb)
	requests.WithLabelValues("one", "web", "tools/call", "ok").Add(3)
	requests.WithLabelValues("one", "web", "tools/call", "timeout").Add(2)
	requests.WithLabelValues("one", "web", "tools/call", "canceled").Inc()
	durations.WithLabelValues("one", "web", "tools/call").Observe(2)
	defer requests.DeletePartialMatch(map[string]string{"gateway": "one"})
	defer durations.DeletePartialMatch(map[string]string{"gateway": "one"})
	var got metricsStatus
	a.call("GET", "/mcp_gateway/metrics", "", &got)
	if got.Totals["requests"] < 6 || got.Totals["errors"] < 2 {
		t.Errorf("totals: %v", got.Totals)
	}
	for _, name := range []string{"denied", "restarts", "masked_chars"} {
		if _, there := got.Totals[name]; !there {
			t.Errorf("no total %s", name)
		}
	}
	found := map[string]float64{}
	for _, r := range got.Requests {
		if r.Gateway == "one" && r.Server == "web" && r.Method == "tools/call" {
			found[r.Outcome] = r.Count
		}
	}
	if fmt.Sprint(found) != "map[canceled:1 ok:3 timeout:2]" {
		t.Errorf("requests: %v", found)
	}
	for _, m := range got.Metrics {
		if !strings.HasPrefix(m.Name, "caddy_mcp_") {
			t.Errorf("unexpected metric %s", m.Name)
		}
		if m.Name == "caddy_mcp_request_duration_seconds" && m.Labels["gateway"] == "one" && m.Labels["server"] == "web" &&
			(*m.Count != 1 || *m.Sum != 2) {
			t.Errorf("%+v", m)
		}
	}
}

func TestCurrentGateways(t *testing.T) { // A61
	var g gateways
	handler := func(generation int, path string) *Handler {
		return &Handler{Name: "one", MCPPath: path, generation: generation}
	}
	before, other, again := handler(1, "/mcp"), handler(1, "/a"), handler(1, "/mcp")
	after := handler(2, "/mcp")
	is := func(what string, want ...*Handler) {
		t.Helper()
		if got := g.current(); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	is("no gateways")
	g.add(before)
	g.add(other)
	is("two gateways", other, before)
	g.add(again)
	is("a gateway in two sites", other, before)
	g.add(after)
	is("another configuration", after)
	for _, h := range []*Handler{before, other, again, again} {
		g.remove(h)
	}
	is("after the old configuration ended", after)
	if g.newest() != after {
		t.Error("newest returns another gateway")
	}
}

// The admin API accepts a body if and only if encoding/json decodes it to an object with these
// members, all of them strings. Errors do not mention Go types.
func FuzzAdminBody(f *testing.F) { // A70, A72
	for _, body := range []string{
		`{"name":"a","uriTemplate":"a:{b}","text":"x"}`, `{"gateway":"one","server":"s","uri":"c:d"}`, `{"name":7}`,
		`{"nam":"a"}`, `{"name":"a"}{}`, `{"name":"a"`, `[]`, `null`, ``, ` {} `, `{"name":null}`, `{"NAME":"a"}`,
		`{"name":{"a":1}}`, "{\"name\":\"\xff\"}", `{"name":"a","name":"b"}`, `{"name":"a"} x`, `{name}`,
		`[f`, // the oracle looped forever on an array that is not JSON
	} {
		f.Add(body, true)
		f.Add(body, false)
	}
	names := []string{"gateway", "name", "uriTemplate", "title", "description", "mimeType", "text", "server", "uri"}
	f.Fuzz(func(t *testing.T, body string, optional bool) {
		c := &adminCall{r: httptest.NewRequest(http.MethodPost, "/mcp_gateway/templates", strings.NewReader(body))}
		var template gatewayTemplate
		err := c.decode(&template, optional)
		var object map[string]any
		isObject := json.Unmarshal([]byte(body), &object) == nil && object != nil
		want := isObject || optional && strings.TrimSpace(body) == ""
		exact := !jsontest.Repeats([]byte(body))
		for name, value := range object {
			_, isText := value.(string)
			want = want && (isText || value == nil) &&
				slices.ContainsFunc(names, func(one string) bool { return strings.EqualFold(one, name) })
			exact = exact && slices.Contains(names, name)
		}
		if (err == nil) != want {
			t.Fatalf("%q: %v, want it accepted: %t", body, err, want)
		}
		if err == nil {
			got := []string{template.Gateway, template.Name, template.URITemplate, template.Title, template.Description,
				template.MIMEType, template.Text, template.Server, template.URI}
			for i, name := range names {
				if said, _ := object[name].(string); exact && got[i] != said {
					t.Fatalf("%q: %s %q, want %q", body, name, got[i], said)
				}
			}
			return
		}
		var failure *adminapi.Error
		if !errors.As(err, &failure) || failure.Status != http.StatusBadRequest || failure.Message == "" ||
			failure.Code != "invalid_request" {
			t.Fatalf("%q: %#v", body, err)
		}
		for _, word := range []string{"json:", "Go ", "struct", "unmarshal"} {
			if strings.Contains(failure.Message, word) && !strings.Contains(body, word) {
				t.Fatalf("%q: %s", body, failure.Message)
			}
		}
	})
}

// listTemplates returns the templates that an anonymous client sees.
func listTemplates(t *testing.T, h *Handler) string {
	const list = `{"jsonrpc":"2.0","id":1,"method":"resources/templates/list",` +
		`"params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
		`"io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`
	r := newPost("/mcp", list)
	r.Header.Set("Mcp-Protocol-Version", "2026-07-28")
	r.Header.Set("Mcp-Method", "resources/templates/list")
	var answer struct {
		Result struct {
			Templates []json.RawMessage `json:"resourceTemplates"`
		}
	}
	w := serve(t, h, r)
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
		t.Fatalf("%s: %v", w.Body, err)
	}
	var all []byte
	for _, template := range answer.Result.Templates {
		all = append(all, template...)
	}
	return string(all)
}

func TestTemplatesOfRemovedServers(t *testing.T) { // A67, A69
	server := func(name, more string) string {
		return `{"name":"` + name + `"` + more + `,"routes":[{"handle":[` + staticHandler + `]}]}`
	}
	config := func(servers ...string) string {
		return `{"name":"reloaded","servers":[` + strings.Join(servers, ",") +
			`],"clients":[{"name":"*","rules":[{"action":"deny","patterns":["resource:file:///secret/"]}]}]}`
	}
	a := newAdmin(t, config(server("one", ""), server("two", "")))
	before := registry.current()[0]
	for _, template := range []string{
		`{"name":"text","uriTemplate":"text://{x}","text":"{x}"}`,
		`{"name":"first","uriTemplate":"first://{x}","server":"one","uri":"file:///{x}"}`,
		`{"name":"second","uriTemplate":"second://{x}","server":"two","uri":"file:///srv/{x}"}`,
		`{"name":"hidden","uriTemplate":"hidden://{x}","server":"two","uri":"file:///secret/{x}"}`,
	} {
		if res := a.call("POST", "/mcp_gateway/templates", template, nil); res.StatusCode != http.StatusCreated {
			t.Fatalf("%s: got %d", template, res.StatusCode)
		}
	}
	const first, second, text = `{"uriTemplate":"first://{x}","name":"first"}`,
		`{"uriTemplate":"second://{x}","name":"second"}`, `{"uriTemplate":"text://{x}","name":"text"}`
	for _, tt := range []struct {
		name   string
		h      *Handler
		listed string
	}{
		{"both servers", before, first + second + text},
		{"a removed server", adaptGateway(t, config(server("one", ""))), first + text},
		{"a server that is now an alias", adaptGateway(t, config(server("one", ""), server("three", `,"aliases":["two"]`))),
			first + second + text},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := listTemplates(t, tt.h); got != tt.listed {
				t.Errorf("got %s, want %s", got, tt.listed)
			}
			if got := len(tt.h.kept.retained.Templates.All()); got != 4 {
				t.Errorf("%d templates kept, want 4", got)
			}
		})
	}
	body, _ := io.ReadAll(a.call("GET", "/mcp_gateway/templates", "", nil).Body)
	if got := strings.Count(string(body), `"gateway":"reloaded"`); got != 4 {
		t.Errorf("the admin API shows %s", body)
	}
}
