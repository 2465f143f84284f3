package mcpgateway

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
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
		{"all", "", slices.Concat(ofOne, ofTwo), []string{"one down connect_error"}},
		{"one gateway", "?gateway=/two", ofTwo, nil},
		{"a client", "?client=ann", []string{"one sample sample__echo +"}, nil},
		{"a client by a pattern", "?client=team-7&gateway=one", ofOne, []string{"one down connect_error"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got toolListing
			if res := a.call("GET", "/mcp_gateway/tools"+tt.query, "", &got); res.StatusCode != http.StatusOK {
				body, _ := io.ReadAll(res.Body)
				t.Fatalf("got %d %s", res.StatusCode, body)
			}
			var tools, failed []string
			for _, tool := range got.Tools {
				if tool.Server == "" {
					continue // of the gateway itself
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
	var clients []gatewayClient
	a.call("GET", "/mcp_gateway/clients", "", &clients)
	for _, client := range clients {
		if len(client.Sessions) > 0 || client.Requests > 0 {
			t.Errorf("a client is left: %+v", client)
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
			"one sample read_log sample__read_log allow default allow", "one sample read_image sample__read_image allow default allow",
			"one sample list_files sample__list_files allow default allow", "one sample echo sample__echo allow default allow",
		}, 4},
		{"a client that is not known, of a gateway without rules", "client=anonymous&gateway=two", []string{
			"two sample read_log read_log allow no rules", "two sample read_image read_image allow no rules",
			"two sample list_files list_files allow no rules", "two sample echo echo allow no rules",
		}, 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got toolListing
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
		"?why=true": "why: it needs a client", "?why=1&client=bob": `there is no client "bob"`,
		"?why=yes&client=ann": "why: it must be true or false",
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

func TestAdminToolListOfNoGateway(t *testing.T) {
	var failure struct{ Error, Code string }
	res := newAdmin(t).call("GET", "/mcp_gateway/tools", "", &failure)
	if res.StatusCode != http.StatusNotFound || failure.Error != "no mcp_gateway is running" {
		t.Errorf("got %d %+v", res.StatusCode, failure)
	}
}
