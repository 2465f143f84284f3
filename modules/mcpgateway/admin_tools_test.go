package mcpgateway

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

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
