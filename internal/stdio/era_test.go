package stdio

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// Clients share a child that is still being started, although its era is not yet known and its
// first client has left.
func TestClientsJoinAChildThatIsBeingStarted(t *testing.T) {
	for _, tt := range []struct{ name, capabilities string }{
		{"without capabilities", `{}`},
		{"with capabilities", `{"sampling":{}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			gate := filepath.Join(t.TempDir(), "gate")
			p := newPool(t, "", func(c *Config) {
				wait := `while [ ! -e "$0" ]; do sleep 0.01; done; exec "$@"`
				c.Command = append([]string{"sh", "-c", wait, gate}, c.Command...)
			})
			var running sync.WaitGroup
			running.Go(func() {
				if err := p.Start(t.Context(), "alpha:1"); err != nil {
					t.Error(err)
				}
			})
			p.until("the child is starting", func() bool { return p.logs.FilterMessage("starting MCP server").Len() == 1 })
			pids := make([]int, 2)
			for i := range pids {
				running.Go(func() { pids[i] = p.client().initialize(tt.capabilities).pid() })
			}
			first, err := p.server(address{host: "alpha:1", era: mcp.Modern})
			if err != nil {
				t.Fatal(err)
			}
			p.eventually("a client waits for the child", func() bool {
				first.mu.Lock()
				defer first.mu.Unlock()
				return first.waiting == 3
			})
			if err := os.WriteFile(gate, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			running.Wait()
			equal(t, "child of the second client", pids[1], pids[0])
			equal(t, "starts", p.logs.FilterMessage("starting MCP server").Len(), 1)
		})
	}
}
