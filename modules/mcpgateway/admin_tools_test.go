package mcpgateway

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

func TestAdminToolList(t *testing.T) {
	sample := serverOf("sample", `{"handler":"mcp_sample"}`)
	a := newAdmin(t,
		`{"name":"one","separator":"__","mask":{},"focus":{},"clients":[
			{"name":"ann","rules":[{"action":"allow","patterns":["sample::echo"]}]},
			{"name":"team-*"}],"servers":[`+sample+`,`+serverOf("down", proxyTo("", "127.0.0.1:9"))+`]}`,
		`{"name":"two","mcp_path":"/two","rpc_path":"/rpc","separator":"none","servers":[`+sample+`]}`)
	ofOne := []string{
		"one sample sample__read_log +", "one sample sample__read_image +",
		"one sample sample__list_files +", "one sample sample__echo +",
	}
	ofTwo := []string{"two sample read_log", "two sample read_image", "two sample list_files", "two sample echo"}
	for _, tt := range []struct {
		name, query   string
		tools, failed []string
	}{
		{"all gateways", "", slices.Concat(ofOne, ofTwo), []string{"one down connect_error"}},
		{"one gateway", "?gateway=/two", ofTwo, nil},
		{"a client", "?client=ann", []string{"one sample sample__echo +"}, nil},
		{"a client by a pattern", "?client=team-7&gateway=one", ofOne, []string{"one down connect_error"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got adminapi.ToolListing
			if res := a.call("GET", "/mcp_gateway/tools"+tt.query, "", &got); res.StatusCode != http.StatusOK {
				body, _ := io.ReadAll(res.Body)
				t.Fatalf("got %d %s", res.StatusCode, body)
			}
			var tools, failed []string
			for _, tool := range got.Tools {
				if tool.Server == "" {
					continue // a tool of the gateway itself
				}
				line := tool.Gateway + " " + tool.Server + " " + tool.Name
				if tool.FocusTokens > 0 {
					line += " +"
				}
				tools = append(tools, line)
				if want := "sample::" + strings.TrimPrefix(tool.Name, "sample__"); tool.Qualified != want {
					t.Errorf("got %s, want %s", tool.Qualified, want)
				}
				if tool.Chars < 50 || tool.Tokens < 10 || tool.Tokens > tool.Chars || tool.FocusTokens >= tool.Tokens {
					t.Errorf("%+v", tool)
				}
			}
			for _, f := range got.Failed {
				failed = append(failed, f.Gateway+" "+f.Server+" "+f.Code)
				if f.Error == "" {
					t.Errorf("%+v", f)
				}
			}
			if !slices.Equal(tools, tt.tools) || !slices.Equal(failed, tt.failed) {
				t.Errorf("got %q, failed %q", tools, failed)
			}
		})
	}
	var clients []GatewayClient
	a.call("GET", "/mcp_gateway/clients", "", &clients)
	for _, client := range clients {
		if len(client.Sessions) > 0 || client.Requests > 0 {
			t.Errorf("the request left a client: %+v", client)
		}
	}
	for query, want := range map[string]string{
		"?client=bob": `"bob"`, "?client=ann&gateway=two": `"ann"`, "?gateway=three": `"three"`,
	} {
		var failure struct{ Error, Code string }
		res := a.call("GET", "/mcp_gateway/tools"+query, "", &failure)
		if res.StatusCode != http.StatusNotFound || !strings.Contains(failure.Error, want) {
			t.Errorf("%s: got %d %+v", query, res.StatusCode, failure)
		}
	}
}

func TestAdminToolDecisions(t *testing.T) {
	sample := serverOf("sample", `{"handler":"mcp_sample"}`)
	a := newAdmin(t,
		`{"name":"one","separator":"__","clients":[
			{"name":"ann","rules":[{"action":"allow","patterns":["sample::echo","prompt:*::*"]}]},
			{"name":"dan","rules":[{"action":"deny","patterns":["*::echo"],"when":"'x' in arguments"},
				{"action":"confirm","patterns":["*::list_files"],"when":"arguments.depth > 1"}]},
			{"name":"team-*","rules":[{"action":"deny","patterns":["destructive"]}]}],
			"servers":[`+sample+`,`+serverOf("down", proxyTo("", "127.0.0.1:9"))+`]}`,
		`{"name":"two","mcp_path":"/two","rpc_path":"/rpc","separator":"none","servers":[`+sample+`]}`)
	for _, tt := range []struct {
		name, query string
		want        []string // decisions on tools
		tools       int
	}{
		{"a client", "client=ann", []string{
			"one sample read_log  deny default deny", "one sample read_image  deny default deny",
			"one sample list_files  deny default deny", "one sample echo sample__echo allow allow sample::echo",
		}, 1},
		{"a client whose rules depend on arguments", "client=dan", []string{
			"one sample read_log sample__read_log allow default allow",
			"one sample read_image sample__read_image allow default allow",
			"one sample list_files sample__list_files confirm by arguments confirm *::list_files when arguments.depth > 1",
			"one sample echo sample__echo allow by arguments deny *::echo when 'x' in arguments, else default allow",
		}, 4},
		{"a client by a pattern", "client=team-7", []string{
			"one sample read_log sample__read_log allow default allow",
			"one sample read_image sample__read_image allow default allow",
			"one sample list_files sample__list_files allow default allow", "one sample echo sample__echo allow default allow",
		}, 4},
		{"an anonymous client of a gateway without rules", "client=anonymous&gateway=two", []string{
			"two sample read_log read_log allow no rules", "two sample read_image read_image allow no rules",
			"two sample list_files list_files allow no rules", "two sample echo echo allow no rules",
		}, 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got adminapi.ToolListing
			if res := a.call("GET", "/mcp_gateway/tools?why=true&"+tt.query, "", &got); res.StatusCode != http.StatusOK {
				t.Fatalf("got %d", res.StatusCode)
			}
			var decisions []string
			for _, d := range got.Decisions {
				if d.Kind == "tool" {
					action := d.Action
					if d.Depends {
						action += " by arguments"
					}
					decisions = append(decisions, strings.Join([]string{d.Gateway, d.Server, d.Name, d.Shown, action, d.Rule}, " "))
					if d.Annotations != "read_only" {
						t.Errorf("%+v", d)
					}
				}
			}
			if !slices.Equal(decisions, tt.want) || len(got.Tools) != tt.tools {
				t.Errorf("got %q, %+v", decisions, got.Tools)
			}
		})
	}
	for query, want := range map[string]string{
		"?why=true": "why: requires client", "?why=1&client=bob": `unknown client "bob"`,
		"?why=yes&client=ann": "why: must be true or false",
	} {
		var failure struct{ Error, Code string }
		a.call("GET", "/mcp_gateway/tools"+query, "", &failure)
		if failure.Error != want {
			t.Errorf("%s: got %+v", query, failure)
		}
	}
	res := a.call("GET", "/mcp_gateway/tools?why=true", "", nil)
	if res.StatusCode != http.StatusBadRequest {
		t.Errorf("got %d", res.StatusCode)
	}
}

func TestAdminToolListWithoutGateways(t *testing.T) {
	var failure struct{ Error, Code string }
	res := newAdmin(t).call("GET", "/mcp_gateway/tools", "", &failure)
	if res.StatusCode != http.StatusNotFound || failure.Error != "no mcp_gateway is running" {
		t.Errorf("got %d %+v", res.StatusCode, failure)
	}
}

// newToolServer starts a server of an era. tools are its tools as JSON. call responds to calls.
func newToolServer(
	t *testing.T, modern bool, tools string, call func(http.ResponseWriter, receivedRequest),
) *recordingServer {
	return newRecordingServer(t, func(w http.ResponseWriter, _ *http.Request, got receivedRequest) {
		switch {
		case modern && got.is("server/discover"):
			respond(w, got, `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},`+
				`"serverInfo":{"name":"x","version":"1"}}`)
		case got.is("initialize"):
			respond(w, got, toolsHandshake)
		case got.is("tools/list"):
			respond(w, got, `{"resultType":"complete","tools":[`+tools+`]}`)
		case got.is("tools/call"), got.header.Get("Last-Event-Id") != "":
			call(w, got)
		default:
			respond(w, got, `{}`)
		}
	})
}

const (
	markupTool  = `<b>x</b>&"`
	slashedTool = "a/b/../c?d#e%2F"
)

func describedServer(t *testing.T) *recordingServer {
	names, _ := json.Marshal([]string{markupTool, slashedTool})
	markup, slashed, _ := strings.Cut(strings.Trim(string(names), "[]"), ",")
	return newToolServer(t, false, `{"name":"wipe","title":"Wipe","description":"`+strings.Repeat("é", 301)+
		`","inputSchema":{"type":"object","properties":{"disk":{"type":"string"}}},"annotations":{"title":"not this","destructiveHint":true}},
		{"name":"plain","description":"`+strings.Repeat("é", 300)+
		`","inputSchema":{"type":"object"},"annotations":{"title":"Plain","readOnlyHint":true}},
		{"name":"odd","title":7,"description":{},"inputSchema":{"type":"object"},"annotations":[]},
		{"name":"hidden","inputSchema":{"type":"object"}},
		{"name":`+markup+`,"inputSchema":{"type":"object"}},{"name":`+slashed+`,"inputSchema":{"type":"object"}}`, nil)
}

func TestAdminToolDescriptions(t *testing.T) {
	a := newAdmin(t, `{"name":"one","servers":[`+describedServer(t).config("disk")+`]}`)
	var got adminapi.ToolListing
	a.call("GET", "/mcp_gateway/tools", "", &got)
	want := [][2]string{
		{"Wipe", strings.Repeat("é", 299) + "…"}, {"Plain", strings.Repeat("é", 300)}, {}, {}, {}, {},
	}
	var described [][2]string
	for _, tool := range got.Tools {
		described = append(described, [2]string{tool.Title, tool.Description})
	}
	if !slices.Equal(described, want) {
		t.Errorf("got %q", described)
	}
}

func TestAdminTool(t *testing.T) {
	disk := strings.TrimSuffix(describedServer(t).config("disk"), "}") + `,"expose":["wipe","plain","odd",` +
		`"<*","a/*"],"tools":{"wipe":{"rename":"erase","describe":"Erases a disk.","annotate":{"idempotent":true},` +
		`"hidden_arguments":["disk"]}}}`
	server := describedServer(t)
	const clients = `"clients":[{"name":"ann","rules":[{"action":"allow","patterns":["*::plain"]}]},
		{"name":"dan","rules":[{"action":"confirm","patterns":["destructive"]}]}]`
	a := newAdmin(t,
		`{"name":"one","separator":"__","mask":{"recover":{}},"focus":{},`+clients+`,"servers":[`+disk+`,`+
			server.config("other")+`,`+serverOf("down", proxyTo("", "127.0.0.1:9"))+`]}`,
		`{"name":"two","mcp_path":"/two","rpc_path":"/rpc2","discovery":true,`+clients+`,"servers":[`+serverOf("sample",
			`{"handler":"mcp_sample"}`)+`,`+serverOf("down", proxyTo("", "127.0.0.1:9"))+`]}`,
		`{"name":"three","mcp_path":"/three","rpc_path":"/rpc3","separator":"none","servers":[`+serverOf("sample",
			`{"handler":"mcp_sample"}`)+`]}`)
	for _, tt := range []struct {
		name, tool, query string
		want              string   // gateway, server, name, original name, annotations and decision
		has               []string // parts of the definition
	}{
		{"a renamed tool", "disk__erase", "?gateway=one", "one disk disk__erase wipe destructive idempotent open_world",
			[]string{`"description":"Erases a disk."`, `"focus"`}},
		{"a tool as server::tool", "disk::erase", "?gateway=/mcp",
			"one disk disk__erase wipe destructive idempotent open_world", nil},
		{"a client that does not see the tool", "disk__erase", "?client=ann",
			"one disk disk__erase wipe destructive idempotent open_world: wipe  deny default deny",
			[]string{`"description":"Erases a disk."`}},
		{"a client that must confirm the tool", "disk__erase", "?client=dan",
			"one disk disk__erase wipe destructive idempotent open_world: wipe disk__erase confirm confirm destructive", nil},
		{"a client that sees the tool", "disk__plain", "?client=ann",
			"one disk disk__plain  read_only open_world: plain disk__plain allow allow *::plain", []string{`"title":"Plain"`}},
		{"a name with markup", "disk__" + markupTool, "?gateway=one", "one disk disk__" + markupTool +
			"  destructive open_world", nil},
		{"a name with slashes", "disk__" + slashedTool, "?client=dan",
			"one disk disk__" + slashedTool + "  destructive open_world: " + slashedTool + " disk__" + slashedTool +
				" confirm confirm destructive", nil},
		{"a tool of the gateway", "recover_observation", "?client=ann",
			"one  recover_observation  read_only idempotent: recover_observation recover_observation allow provided by the " +
				"gateway itself", []string{`"inputSchema"`}},
		{"a tool of the gateway without a client", "search_tools", "?gateway=two",
			"two  search_tools  read_only open_world", nil},
		{"a tool that clients must search for", "sample::echo", "?client=ann&gateway=two",
			"two sample sample::echo  read_only: echo  deny default deny", []string{`"name":"sample::echo"`}},
		{"a gateway without a separator", "echo", "?gateway=three", "three sample echo  read_only",
			[]string{`"name":"echo"`}},
		{"server::tool at a gateway without a separator", "sample::echo", "?gateway=three&client=anonymous",
			"three sample echo  read_only: echo echo allow no rules", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got adminapi.ToolDetail
			res := a.call("GET", "/mcp_gateway/tools/"+url.PathEscape(tt.tool)+tt.query, "", &got)
			line := fmt.Sprintf("%s %s %s %s %s", got.Gateway, got.Server, got.Name, got.Original, got.Annotations)
			if d := got.Decision; d != nil {
				line += fmt.Sprintf(": %s %s %s %s", d.Name, d.Shown, d.Action, d.Rule)
				if d.Server != got.Server || d.Kind != "tool" || d.Annotations != got.Annotations || d.Gateway != got.Gateway {
					t.Errorf("%+v", d)
				}
			}
			if res.StatusCode != http.StatusOK || line != tt.want || got.Tokens == 0 {
				t.Errorf("got %d %s", res.StatusCode, line)
			}
			for _, part := range tt.has {
				if !strings.Contains(string(got.Definition), part) {
					t.Errorf("got %s", got.Definition)
				}
			}
		})
	}
	if got := server.requests(); len(got) > 0 {
		t.Errorf("a server without the tool got requests: %v", got)
	}
	for _, tt := range []struct {
		tool, query string
		status      int
		want        string
	}{
		{"disk__eraze", "?gateway=one", 404, `unknown tool "disk__eraze"; similar names: disk__erase`},
		{"disk__wipe", "?client=ann", 404, `unknown tool "disk__wipe"; tools: disk__<b>`},
		{"disk__hidden", "?client=ann", 404, `clients do not see tool "disk__hidden": not in the server's expose list`},
		{"disc__wipe", "?gateway=one", 404, "names are server::tool; similar names: disk"},
		{"disk__erase", "?client=bob", 404, `unknown client "bob"`},
		{"down__x", "?gateway=one", 502, "connection refused"},
		{"sample::echo", "", 409, `several gateways match; select one with ?gateway=: "three" at /three, "two" at /two`},
	} {
		var failure adminapi.Error
		res := a.call("GET", "/mcp_gateway/tools/"+url.PathEscape(tt.tool)+tt.query, "", &failure)
		if res.StatusCode != tt.status || !strings.Contains(failure.Message, tt.want) || tt.status == 502 &&
			failure.Code != "connect_error" {
			t.Errorf("%s: got %d %+v", tt.tool, res.StatusCode, failure)
		}
	}
	var changes []adminapi.ToolChange
	if res := a.call("GET", "/mcp_gateway/tools/changes", "", &changes); res.StatusCode != http.StatusOK {
		t.Errorf("got %d", res.StatusCode)
	}
	if len(a.logs.All()) > 0 {
		t.Errorf("read requests are logged: %v", a.logs.All())
	}
}

var callable = fmt.Sprintf(`{"name":"one","separator":"__","mask":{"max_chars":200,"head_chars":100,`+
	`"tail_chars":100,"recover":{}},"focus":{},"clients":[
	{"name":"ann","rules":[{"action":"allow","patterns":["sample::echo"]}],"redact":["s3cret"]},
	{"name":"slow","rates":[{"requests":1,"per":3600000000000}]}],
	"servers":[{"name":"sample","routes":[{"handle":[{"handler":"mcp_sample"}]}]},{"name":"proxied","routes":[{"handle":[{"handler":"reverse_proxy","upstreams":[{"dial":"alpha:1"}]%s}]}]},{"name":"dead","routes":[{"handle":[`+
	`{"handler":"reverse_proxy","upstreams":[{"dial":"127.0.0.1:9"}]}]}]}]}`, childTransport())

func TestAdminCall(t *testing.T) {
	a := newAdmin(t, callable)
	for _, tt := range []struct {
		name, request string
		status        int
		want          string // in the response
		not           string // not in the response
	}{
		{"a text that is an integer", `{"tool":"sample::read_log","texts":{"lines":"1"}}`, 200, `circuit opened`, "obs_"},
		{"the separator of the gateway", `{"tool":"sample__echo","arguments":{"text":"<b>"}}`, 200, `"text":"<b>"`, ""},
		{"a child process", `{"tool":"proxied__echo","texts":{}}`, 200, `result`, ""},
		{"masked", `{"tool":"sample__read_log","texts":{"lines":"100"}}`, 200, "obs_", ""},
		{"raw", `{"tool":"sample__read_log","texts":{"lines":"100"},"raw":true}`, 200, "path=/orders/5676", "obs_"},
		{"a focus", `{"tool":"sample__read_log","texts":{"lines":"2000","focus":"why do payments fail"}}`, 200, "obs_",
			"unknown"},
		{"a client that may not use the tool", `{"tool":"sample__read_log","client":"ann"}`, 403, `"acl_denied"`, ""},
		{"a client with redaction", `{"tool":"sample__echo","texts":{"text":"a s3cret"},"client":"ann"}`, 200,
			`"text":"a `, "s3cret"},
		{"raw with redaction", `{"tool":"sample__echo","texts":{"text":"a s3cret"},"client":"ann","raw":true}`, 200,
			"s3cret", ""},
		{"a client with a rate", `{"tool":"sample__echo","texts":{"text":"x"},"client":"slow"}`, 200, `"x"`, ""},
		{"a client above its rate", `{"tool":"sample__echo","texts":{"text":"x"},"client":"slow"}`, 429,
			`"rate_limited"`, ""},
		{"an unknown client", `{"tool":"sample__echo","client":"bob"}`, 404, `unknown client \"bob\"`, ""},
		{"a similar name", `{"tool":"sample__read_lag"}`, 404, `similar names: sample__read_log`, ""},
		{"an unknown server", `{"tool":"simple::echo"}`, 404, `names are server::tool; similar names: sample`, ""},
		{"a tool without a server", `{"tool":"xyz"}`, 404, `servers: sample, proxied, dead`, ""},
		{"an unknown argument", `{"tool":"sample__echo","texts":{"txt":"x"}}`, 400,
			`unknown argument \"txt\"; the tool has: text, focus`, ""},
		{"a tool without arguments", `{"tool":"sample__list_files","texts":{"x":"1"}}`, 400, `the tool has: focus`, ""},
		{"a text of a wrong type", `{"tool":"sample__read_log","texts":{"lines":"two"}}`, 400,
			`lines: \"two\" is not of type integer`, ""},
		{"an error of the server", `{"tool":"sample__echo","arguments":{"txt":1}}`, 502, `server_error -32602`, ""},
		{"a tool of the gateway", `{"tool":"recover_observation","texts":{"id":"obs_none"}}`, 200, `isError`, ""},
		{"an unavailable server", `{"tool":"dead__x"}`, 502, `MCP server dead is unavailable: connection refused`, ""},
		{"no tool", `{}`, 400, `tool: missing`, ""},
		{"a timeout that is not a duration", `{"tool":"x","timeout":"soon"}`, 400, `timeout: \"soon\"`, ""},
		{"a wrong type in the request", `{"tool":"x","raw":"yes"}`, 400, `raw: must be true or false`, ""},
		{"arguments that are not an object", `{"tool":"x","arguments":[]}`, 400, `arguments: must be an object`, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			res := a.call("POST", "/mcp_gateway/call", tt.request, nil)
			body, _ := io.ReadAll(res.Body)
			if res.StatusCode != tt.status || !strings.Contains(string(body), tt.want) ||
				tt.not != "" && strings.Contains(string(body), tt.not) {
				t.Errorf("got %d %.600s", res.StatusCode, body)
			}
			if line := a.audited(); line["action"] != "call" {
				t.Errorf("logged %v", line)
			}
		})
	}
}

func TestAdminCallInTheLog(t *testing.T) {
	a := newAdmin(t, callable)
	a.call("POST", "/mcp_gateway/call", `{"tool":"sample::echo","texts":{"text":"hidden"},"client":"ann"}`, nil)
	line := a.audited()
	if line["mcp_server"] != "sample" || line["name"] != "sample::echo" || line["client"] != "ann" ||
		line["outcome"] != "ok" || line["gateway"] != "one" {
		t.Errorf("logged %v", line)
	}
}

// Another call can recover the original that a masked result names.
func TestAdminCallRecovers(t *testing.T) {
	a := newAdmin(t, callable)
	var masked adminapi.CallReport
	a.call("POST", "/mcp_gateway/call", `{"tool":"sample__read_log"}`, &masked)
	text := string(masked.Result)
	at := strings.Index(text, "obs_")
	if at < 0 || masked.Received < 100_000 || len(text) > 2_000 {
		t.Fatalf("received %d: %.300s", masked.Received, text)
	}
	id := text[at : at+strings.IndexFunc(text[at:]+" ", func(r rune) bool { return strings.ContainsRune(` "\]),.`, r) })]
	res := a.call("POST", "/mcp_gateway/call",
		`{"tool":"recover_observation","texts":{"id":"`+id+`","pattern":"circuit opened"}}`, nil)
	body, _ := io.ReadAll(res.Body)
	if res.StatusCode != http.StatusOK || !strings.Contains(string(body), "circuit opened") ||
		strings.Contains(string(body), "isError\":true") {
		t.Errorf("%s: got %d %.400s", id, res.StatusCode, body)
	}
}

func TestAdminCheck(t *testing.T) {
	child := func(name, flags string) string {
		command, _ := json.Marshal([]string{os.Args[0], "ds", name})
		return `{"name":"` + name + `","routes":[{"handle":[{"handler":"reverse_proxy","upstreams":[{"dial":"` + name +
			`:1"}],` +
			`"transport":{"protocol":"mcp_stdio","command":` + string(command) + `,"stop_grace":1000000000` + flags + `}}]}]}`
	}
	a := newAdmin(t, `{"name":"g","servers":[`+serverOf("sample", `{"handler":"mcp_sample"}`)+`,`+
		serverOf("dead", proxyTo("", "127.0.0.1:9"))+`,`+child("alpha", "")+`,`+
		`{"name":"gone","routes":[{"handle":[{"handler":"reverse_proxy","upstreams":[{"dial":"gone:1"}],`+
		`"transport":{"protocol":"mcp_stdio","command":["/no/such/program"]}}]}]},`+
		`{"name":"hung","routes":[{"handle":[{"handler":"reverse_proxy","upstreams":[{"dial":"hung:1"}],`+
		`"transport":{"protocol":"mcp_stdio","command":["sh","-c","cat >/dev/null"],"stop_grace":100000000}}]}]}]}`)
	for range 2 { // earlier failures do not matter
		for _, tt := range []struct {
			name, server, body string
			up                 bool
			tools              int
			code, err          string
		}{
			{"handlers", "sample", "", true, 4, "", ""},
			{"a child process", "alpha", "", true, -1, "", ""},
			{"a dead port", "dead", "", false, 0, "connect_error", "connect: connection refused"},
			{"a missing program", "gone", "", false, 0, "connect_error", "/no/such/program"},
			{"a silent program", "hung", `{"timeout":"200ms"}`, false, 0, "timeout", "no response within 200ms"},
		} {
			var got adminapi.ServerCheck
			res := a.call("POST", "/mcp_gateway/servers/"+tt.server+"/check", tt.body, &got)
			if res.StatusCode != http.StatusOK || got.Up != tt.up || got.Code != tt.code ||
				!strings.Contains(got.Error, tt.err) ||
				tt.tools >= 0 && got.Tools != tt.tools {
				t.Errorf("%s: got %d %+v", tt.name, res.StatusCode, got)
			}
			if tt.up && (got.Protocol == "" || got.Info == nil || got.Info.Name == "" || got.Tools > 0 && got.Tokens < 10) {
				t.Errorf("%s: got %+v", tt.name, got)
			}
		}
	}
	var failure struct{ Error, Code string }
	if a.call("POST", "/mcp_gateway/servers/sample/check", `{"timeout":"-1s"}`,
		&failure); failure.Code != "invalid_request" {
		t.Errorf("a negative timeout: %+v", failure)
	}
}

// Both results come from one call, because a tool may have effects.
func TestAdminCallBoth(t *testing.T) {
	const tool = `{"name":"x","inputSchema":{"type":"object"}}`
	long := strings.Repeat("a s3cret line\\n", 100)
	result := `{"resultType":"complete","content":[{"type":"text","text":"` + long + `"}]}`
	answer := func(got receivedRequest) string {
		var call struct{ ID json.RawMessage }
		_ = json.Unmarshal([]byte(got.body), &call)
		return `{"jsonrpc":"2.0","id":` + string(call.ID) + `,"result":` + result + `}`
	}
	plain := func(w http.ResponseWriter, got receivedRequest) { respond(w, got, result) }
	var begun receivedRequest
	for _, tt := range []struct {
		name   string
		modern bool
		call   func(http.ResponseWriter, receivedRequest)
	}{
		{"legacy", false, plain},
		{"modern", true, plain},
		{"events", false, func(w http.ResponseWriter, got receivedRequest) {
			respondEvents(w, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`,
				answer(got))
		}},
		{"compressed", true, func(w http.ResponseWriter, got receivedRequest) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Encoding", "gzip")
			zipped := gzip.NewWriter(w)
			_, _ = io.WriteString(zipped, answer(got))
			_ = zipped.Close()
		}},
		{"a resumed stream", false, func(w http.ResponseWriter, got receivedRequest) {
			if got.method == http.MethodPost {
				begun = got
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w,
					"id: 1\nretry: 1\ndata: "+
						`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`+
						"\n\ndata: {\"torn")
				return
			}
			respondEvents(w, answer(begun))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server := newToolServer(t, tt.modern, tool, tt.call)
			a := newAdmin(t,
				`{"name":"one","mask":{"max_chars":200,"head_chars":50,"tail_chars":50,"recover":{}},"clients":[{"name":"ann",`+
					`"redact":["s3cret"]}],`+
					`"servers":[{"name":"box","tools":{"x":{"rename":"y"}},"routes":[{"handle":[`+proxyTo("", server.address)+`]}]}]}`)
			var got adminapi.CallReport
			res := a.call("POST", "/mcp_gateway/call", `{"tool":"box::y","client":"ann","both":true}`, &got)
			if res.StatusCode != http.StatusOK || string(got.Raw) != result || got.Received == 0 {
				t.Errorf("got %d, raw %.300s", res.StatusCode, got.Raw)
			}
			if text := string(got.Result); !strings.Contains(text, "obs_") || strings.Contains(text, "s3cret") ||
				len(text) > 1000 {
				t.Errorf("got %.1200s", text)
			}
			calls := 0
			for _, got := range server.requests() {
				if got.is("tools/call") {
					calls++
				}
			}
			if calls != 1 {
				t.Errorf("the tool was called %d times, want 1", calls)
			}
			var alone adminapi.CallReport
			if a.call("POST", "/mcp_gateway/call", `{"tool":"box::y"}`, &alone); alone.Raw != nil || alone.Result == nil {
				t.Errorf("without both: raw %.300s", alone.Raw)
			}
		})
	}
}

func TestAdminCallBothKinds(t *testing.T) {
	a := newAdmin(t, callable)
	for _, tt := range []struct {
		name, request string
		status        int
		raw, want     string // prefix of raw, and another part of the response
	}{
		{"handlers with a focus",
			`{"tool":"sample__read_log","texts":{"lines":"2000","focus":"why do payments fail"},"both":true}`, 200,
			`{"content":[{"type":"text","text":"2026-`, "obs_"},
		{"a child process", `{"tool":"proxied__echo","texts":{"text":"x"},"both":true}`, 200, `{"`, "result"},
		{"a tool of the gateway", `{"tool":"recover_observation","texts":{"id":"obs_none"},"both":true}`, 200, ``, "isError"},
		{"an error of the server", `{"tool":"sample__echo","arguments":{"txt":1},"both":true}`, 502, ``,
			"server_error -32602"},
		{"raw and both", `{"tool":"sample__echo","raw":true,"both":true}`, 400, ``, "both: not allowed together with raw"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got adminapi.CallReport
			res := a.call("POST", "/mcp_gateway/call", tt.request, &got)
			body, _ := io.ReadAll(res.Body)
			if res.StatusCode != tt.status || !strings.HasPrefix(string(got.Raw), tt.raw) ||
				(got.Raw == nil) != (tt.raw == "") ||
				!strings.Contains(string(body), tt.want) || strings.Contains(string(got.Raw), "obs_") {
				t.Errorf("got %d, raw %.300s of %.1000s", res.StatusCode, got.Raw, body)
			}
		})
	}
}

// The copy of a long response is limited. The result is not.
func TestAdminCallBothLong(t *testing.T) {
	const chars = 3 << 20
	long := strings.Repeat("é", chars/2)
	for _, compressed := range []bool{false, true} {
		server := newToolServer(t, false, `{"name":"x","inputSchema":{"type":"object"}}`,
			func(w http.ResponseWriter, got receivedRequest) {
				if compressed {
					w.Header().Set("Content-Encoding", "gzip")
					zipped := gzip.NewWriter(w)
					defer zipped.Close()
					w = zippedResponse{w, zipped}
				}
				respond(w, got, `{"content":[{"type":"text","text":"x`+long+`"}]}`)
			})
		a := newAdmin(t, `{"name":"one","mask":{},"servers":[`+server.config("box")+`]}`)
		var got adminapi.CallReport
		a.call("POST", "/mcp_gateway/call", `{"tool":"box::x","both":true}`, &got)
		var raw string
		if err := json.Unmarshal(got.Raw, &raw); err != nil {
			t.Fatal(err)
		}
		end := fmt.Sprintf("é… (%d bytes)", got.Received)
		if !strings.HasPrefix(raw, `{"jsonrpc":"2.0"`) || !strings.HasSuffix(raw, end) || len(raw) > 1<<20+len(end) ||
			len(raw) < 1<<20 {
			t.Errorf("compressed %t: %d bytes, %.100s, %s", compressed, len(raw), raw, raw[len(raw)-50:])
		}
		if got.Result == nil || !compressed && got.Received < chars {
			t.Errorf("compressed %t: received %d, result %.100s", compressed, got.Received, got.Result)
		}
	}
}

// A zippedResponse compresses its body.
type zippedResponse struct {
	http.ResponseWriter
	to io.Writer
}

func (z zippedResponse) Write(p []byte) (int, error) { return z.to.Write(p) }

// With HTTP+SSE, the response to a call comes in another stream.
func TestAdminCallBothOverHTTPSSE(t *testing.T) {
	remote := &mcptest.Remote{Name: "far", Legacy: true}
	server := httptest.NewServer(&mcptest.HTTPSSE{Server: remote})
	t.Cleanup(func() {
		remote.Close()
		server.CloseClientConnections()
		server.Close()
	})
	a := newAdmin(t, `{"name":"one","servers":[{"name":"far","path":"/sse","routes":[{"handle":[`+
		proxyTo("", server.Listener.Addr().String())+`]}]}]}`)
	var got adminapi.CallReport
	res := a.call("POST", "/mcp_gateway/call", `{"tool":"far::echo","arguments":{},"both":true}`, &got)
	if res.StatusCode != http.StatusOK || got.Raw == nil || string(got.Raw) != string(got.Result) ||
		len(remote.Seen("tools/call")) != 1 {
		t.Errorf("got %d, raw %s, result %s after %d calls", res.StatusCode, got.Raw, got.Result,
			len(remote.Seen("tools/call")))
	}
}
