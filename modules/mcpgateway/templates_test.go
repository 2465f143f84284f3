package mcpgateway

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

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
