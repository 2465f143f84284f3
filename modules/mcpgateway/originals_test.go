package mcpgateway

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/storetest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstore"
)

// replicaOf returns a gateway that shares an engine.
func replicaOf(t *testing.T, engine *replicastest.Engine, config string) *Handler {
	t.Helper()
	module, err := storetest.Replica(t, engine, mcpstore.App{}).LoadModuleByID("http.handlers.mcp_gateway",
		json.RawMessage(config))
	if err != nil {
		t.Fatal(err)
	}
	return module.(*Handler)
}

// asks sends a request to /mcp and returns the response.
func (a *agentTest) asks(method, name, params string) string {
	headers, meta := []string{mcp.SessionHeader, a.session}, ""
	if a.modern {
		headers = []string{mcp.VersionHeader, mcp.Stateless, "Mcp-Method", method, "Mcp-Name", name}
		meta = `,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
			`"io.modelcontextprotocol/clientInfo":{"name":"x","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`
	}
	return servesUser(a.T, a.h, a.name,
		posting(a.path, fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":%q,"params":{%s%s}}`, method, params, meta),
			headers...)).Body.String()
}

// A client can recover an original from another replica, with the tool and as a resource. If the
// store is unavailable, it gets an error that says so.
func TestOriginalsAtAnotherReplica(t *testing.T) {
	for _, era := range []string{"/mcp", "/mcp, modern"} {
		t.Run(era, func(t *testing.T) {
			engine := replicastest.New()
			a, b := replicaOf(t, engine, active("")), replicaOf(t, engine, active(""))
			masked := func(lines int) string {
				t.Helper()
				said := agents(t, a, "ann")[era].call("read_log", fmt.Sprintf(`{"lines":%d}`, lines)).Body.String()
				id := regexp.MustCompile(`id=(obs_\w{10})\]`).FindStringSubmatch(said)
				if id == nil {
					t.Fatalf("not cut: %s", said)
				}
				return id[1]
			}
			asks := func(h *Handler, name, id string) (byTool, asResource string) {
				uri := "proxy://observation/" + id
				agent := agents(t, h, name)[era]
				return agent.asks("tools/call", "recover_observation",
						`"name":"recover_observation","arguments":{"id":"`+id+`","start_line":40,"end_line":40}`),
					agent.asks("resources/read", uri, `"uri":"`+uri+`"`)
			}
			id := masked(100)
			wantTool, wantResource := asks(a, "ann", id)
			if !strings.Contains(wantTool, "lines 40 to 40 of") || !strings.Contains(wantResource, `"contents"`) {
				t.Fatalf("where it was cut: %s, %.300s", wantTool, wantResource)
			}
			if tool, resource := asks(b, "bob", id); !strings.Contains(tool, "Nothing is kept under the id") ||
				!strings.Contains(resource, "unknown or expired") {
				t.Errorf("another client got %s, %.300s", tool, resource)
			}
			if tool, resource := asks(b, "ann", id); tool != wantTool || resource != wantResource {
				t.Errorf("got %s, %.300s\nwant %s, %.300s", tool, resource, wantTool, wantResource)
			}
			engine.Clear()
			if tool, _ := asks(replicaOf(t, engine, active("")), "ann", id); tool != wantTool {
				t.Errorf("when it was lost: got %s\nwant %s", tool, wantTool)
			}

			engine.Down.Store(true)
			id = masked(101)
			if tool, resource := asks(a, "ann", id); !strings.Contains(tool, "lines 40 to 40 of") ||
				!strings.Contains(resource, `"contents"`) {
				t.Errorf("without what is shared, where it was cut: %s, %.300s", tool, resource)
			}
			if tool, resource := asks(b, "ann", id); !strings.Contains(tool, `"code":"store_unavailable"}`) ||
				!strings.Contains(tool, `"isError":true`) || !strings.Contains(resource, `"code":"store_unavailable"`) {
				t.Errorf("without what is shared: %s, %s", tool, resource)
			}
		})
	}
}
