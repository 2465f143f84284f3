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

// replicaOf returns a gateway that uses an engine.
func replicaOf(t *testing.T, engine *replicastest.Engine, config string) *Handler {
	t.Helper()
	module, err := storetest.Replica(t, engine, mcpstore.App{}).LoadModuleByID("http.handlers.mcp_gateway",
		json.RawMessage(config))
	if err != nil {
		t.Fatal(err)
	}
	return module.(*Handler)
}

// request sends a request to /mcp and returns the response.
func (a *agentTest) request(method, name, params string) string {
	headers, meta := []string{mcp.SessionHeader, a.session}, ""
	if a.modern {
		headers = []string{mcp.VersionHeader, mcp.Stateless, "Mcp-Method", method, "Mcp-Name", name}
		meta = `,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
			`"io.modelcontextprotocol/clientInfo":{"name":"x","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`
	}
	return serveAs(a.T, a.h, a.name,
		newPost(a.path, fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":%q,"params":{%s%s}}`, method, params, meta),
			headers...)).Body.String()
}

// A client can recover an original at another replica, with the tool and as a resource. If the
// store is unavailable, the error says so.
func TestOriginalsAtAnotherReplica(t *testing.T) {
	for _, era := range []string{"/mcp", "/mcp, modern"} {
		t.Run(era, func(t *testing.T) {
			engine := replicastest.New()
			a, b := replicaOf(t, engine, activeConfig("")), replicaOf(t, engine, activeConfig(""))
			masked := func(lines int) string {
				t.Helper()
				said := agents(t, a, "ann")[era].call("read_log", fmt.Sprintf(`{"lines":%d}`, lines)).Body.String()
				id := regexp.MustCompile(`id=(obs_\w{10})\]`).FindStringSubmatch(said)
				if id == nil {
					t.Fatalf("the result was not masked: %s", said)
				}
				return id[1]
			}
			recoverBoth := func(h *Handler, name, id string) (byTool, asResource string) {
				uri := "proxy://observation/" + id
				agent := agents(t, h, name)[era]
				return agent.request("tools/call", "recover_observation",
						`"name":"recover_observation","arguments":{"id":"`+id+`","start_line":40,"end_line":40}`),
					agent.request("resources/read", uri, `"uri":"`+uri+`"`)
			}
			id := masked(100)
			wantTool, wantResource := recoverBoth(a, "ann", id)
			if !strings.Contains(wantTool, "lines 40 to 40 of") || !strings.Contains(wantResource, `"contents"`) {
				t.Fatalf("at the same replica: %s, %.300s", wantTool, wantResource)
			}
			if tool, resource := recoverBoth(b, "bob", id); !strings.Contains(tool, "Nothing is kept under the id") ||
				!strings.Contains(resource, "unknown or expired") {
				t.Errorf("another client got %s, %.300s", tool, resource)
			}
			if tool, resource := recoverBoth(b, "ann", id); tool != wantTool || resource != wantResource {
				t.Errorf("got %s, %.300s\nwant %s, %.300s", tool, resource, wantTool, wantResource)
			}
			engine.Clear()
			if tool, _ := recoverBoth(replicaOf(t, engine, activeConfig("")), "ann", id); tool != wantTool {
				t.Errorf("after the store lost the original: got %s\nwant %s", tool, wantTool)
			}

			engine.Down.Store(true)
			id = masked(101)
			if tool, resource := recoverBoth(a, "ann", id); !strings.Contains(tool, "lines 40 to 40 of") ||
				!strings.Contains(resource, `"contents"`) {
				t.Errorf("while the store is down, at the same replica: %s, %.300s", tool, resource)
			}
			if tool, resource := recoverBoth(b, "ann", id); !strings.Contains(tool, `"code":"store_unavailable"}`) ||
				!strings.Contains(tool, `"isError":true`) || !strings.Contains(resource, `"code":"store_unavailable"`) {
				t.Errorf("while the store is down: %s, %s", tool, resource)
			}
		})
	}
}
