package mcpgateway

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/aggregate"
)

// offered returns the templates that anonymous clients see.
func offered(h *Handler) string {
	var config aggregate.Config
	h.offerTemplates(&config)
	return string(bytes.Join(config.Templates(""), nil))
}

func TestTemplatesOfAServerThatIsGone(t *testing.T) { // A67, A69
	server := func(name, more string) string {
		return `{"name":"` + name + `"` + more + `,"routes":[{"handle":[` + staticHandler + `]}]}`
	}
	config := func(servers ...string) string {
		return `{"name":"reloaded","servers":[` + strings.Join(servers, ",") + `],"clients":[{"name":"*","rules":[{"action":"deny","patterns":["resource:file:///secret/"]}]}]}`
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
	const first, second, text = `{"uriTemplate":"first://{x}","name":"first"}`, `{"uriTemplate":"second://{x}","name":"second"}`, `{"uriTemplate":"text://{x}","name":"text"}`
	for _, tt := range []struct {
		name   string
		h      *Handler
		listed string
		server string // that second:// leads to
	}{
		{"it is there", before, first + second + text, "two"},
		{"it is gone", gateway(t, config(server("one", ""))), first + text, ""},
		{"its name is an alias now", gateway(t, config(server("one", ""), server("three", `,"aliases":["two"]`))), first + second + text, "three"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := offered(tt.h); got != tt.listed {
				t.Errorf("listed %s", got)
			}
			server, uri, ok := tt.h.lead("second://a")
			if server != tt.server || ok != (tt.server != "") || ok && uri != "file:///srv/a" {
				t.Errorf("it leads to %q of %q, %t", uri, server, ok)
			}
			if server, _, ok := tt.h.lead("text://a"); ok {
				t.Errorf("a text leads to %q", server)
			}
			if got := len(tt.h.templates.All()); got != 4 {
				t.Errorf("%d are left", got)
			}
		})
	}
	body, _ := io.ReadAll(a.call("GET", "/mcp_gateway/templates", "", nil).Body)
	if got := strings.Count(string(body), `"gateway":"reloaded"`); got != 4 {
		t.Errorf("the admin API shows %s", body)
	}
}
