package gateway

import (
	"bytes"
	"net/http"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolview"
)

// A server that has an argument like the focus argument, such as another gateway, receives it.
func TestFocusOfServer(t *testing.T) {
	focus := toolview.NewFocus("aim")
	decodeURIs := `{"name":"x","inputSchema":{"type":"object","properties":{"a":{}}}}`
	edit, _ := focus.Add([]byte(decodeURIs))
	own := string(jsonspan.Spliced([]byte(decodeURIs), edit))
	p := legacyPeer("a").hasList("tools/list", "tools", decodeURIs).
		handle("tools/call", func(w http.ResponseWriter, a *incoming) {
			a.reply(w, `{"content":[]}`)
		})
	g := newGateway(t, func(c *Config) {
		c.Servers[0].Mask, c.Servers[0].MaskMCP, c.Servers[0].Focus = originalsMask{}, true, focus
	}, p)
	u := g.legacy(t)
	for i, test := range []struct{ tool, want string }{{decodeURIs, `{}`}, {own, `{"aim":"y"}`}, {decodeURIs, `{}`}} {
		p.hasList("tools/list", "tools", test.tool)
		if list := u.ask("tools/list", ""); !bytes.Contains(list.Result, []byte(`"aim":{"type":"string"`)) {
			t.Fatalf("got %s", list.Result)
		}
		u.ask("tools/call", `{"name":"a::x","arguments":{"aim":"y"}}`)
		called := p.waitFor(t, "tools/call", i+1)
		if got := string(called.message.Literal(jsonrpc.Arguments)); got != test.want {
			t.Errorf("%d: the server got %s, want %s", i+1, got, test.want)
		}
	}
}
