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

func TestAdminToolListOfNoGateway(t *testing.T) {
	var failure struct{ Error, Code string }
	res := newAdmin(t).call("GET", "/mcp_gateway/tools", "", &failure)
	if res.StatusCode != http.StatusNotFound || failure.Error != "no mcp_gateway is running" {
		t.Errorf("got %d %+v", res.StatusCode, failure)
	}
}
