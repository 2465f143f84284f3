package mcpgateway

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/storetest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstore"
)

// Replicas share rates even if their servers differ, as during a gradual change of configurations.
func TestReplicasWithOtherServersShareRates(t *testing.T) { // A63
	server, engine := newRecordingServer(t, nil), replicastest.New()
	before := `{"rates":[{"requests":2,"per":"1h"}],"servers":[` + server.config("a") + `]}`
	after := `{"rates":[{"requests":2,"per":"1h"}],"servers":[` + server.config("a") + `,` + server.config("b") + `]}`
	all := []*Handler{
		replicaGateway(t, engine, mcpstore.App{}, before), replicaGateway(t, engine, mcpstore.App{}, after),
	}
	for i, want := range []int{200, 200, 429, 429} {
		if w := serve(t, all[i%2], newPost("/mcp/a", pingMessage)); w.Code != want {
			t.Errorf("request %d: %d %s, want %d", i, w.Code, w.Body, want)
		}
	}
}

// Gateways with the same key in the shared store are refused.
func TestGatewaysThatShareNeedNames(t *testing.T) {
	server := newRecordingServer(t, nil)
	gateway := func(more string, name string) string { return `{` + more + `"servers":[` + server.config(name) + `]}` }
	for name, test := range map[string]struct {
		first, second string
		refused       bool
	}{
		"one gateway in two sites": {gateway("", "a"), gateway("", "a"), false},
		"no names":                 {gateway("", "a"), gateway("", "b"), true},
		"other rates":              {gateway("", "a"), gateway(`"rates":[{"requests":2,"per":"1h"}],`, "a"), true},
		"one name":                 {gateway("", "a"), gateway(`"name":"b",`, "b"), false},
		"two paths":                {gateway("", "a"), gateway(`"mcp_path":"/tools",`, "b"), false},
		"the same given name":      {gateway(`"name":"a",`, "a"), gateway(`"name":"a",`, "b"), false},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := storetest.Replica(t, replicastest.New(), mcpstore.App{})
			if _, err := ctx.LoadModuleByID("http.handlers.mcp_gateway", json.RawMessage(test.first)); err != nil {
				t.Fatal(err)
			}
			_, err := ctx.LoadModuleByID("http.handlers.mcp_gateway", json.RawMessage(test.second))
			if refused := err != nil; refused != test.refused {
				t.Fatal(err)
			}
			if err != nil &&
				!strings.Contains(err.Error(),
					": name: required with mcp_store, because another gateway has the same mcp_path /mcp") {
				t.Error(err)
			}
		})
	}
}

func TestAdminStore(t *testing.T) {
	a, engine := newAdmin(t), replicastest.New()
	registry.add(replicaGateway(t, engine, mcpstore.App{}, `{"servers":[`+serverOf("a", staticHandler)+`]}`))
	status := func() mcpstore.Status {
		var overview adminapi.Overview
		a.call("GET", "/mcp_gateway/overview", "", &overview)
		if overview.Store == nil {
			t.Fatal("the overview has no store")
		}
		return *overview.Store
	}
	if got, want := status(), (mcpstore.Status{Engine: "test", Up: true}); got != want {
		t.Errorf("got %+v", got)
	}
	var check mcpstore.Check
	if a.call("POST", "/mcp_gateway/store/check", "", &check); !check.Up || check.Engine != "test" || check.Seconds <= 0 ||
		check.Error != "" {
		t.Errorf("got %+v", check)
	}
	if line := a.audited(); line["action"] != "check" || line["name"] != "mcp_store" {
		t.Errorf("logged %v", line)
	}
	engine.Down.Store(true)
	if a.call("POST", "/mcp_gateway/store/check", "", &check); check.Up || check.Error != "connection refused" {
		t.Errorf("while the store is down: got %+v", check)
	}
	const cause = "connection refused"
	if got, want := status(), (mcpstore.Status{Engine: "test", Error: cause, Outages: 1, LastError: cause}); got != want {
		t.Errorf("while the store is down: got %+v", got)
	}
	engine.Down.Store(false)
	again := mcpstore.Status{Engine: "test", Up: true, Outages: 1, LastError: cause}
	await.Until(t, "the store is up", func() bool { return status() == again })
	engine.Full.Store(true)
	if a.call("POST", "/mcp_gateway/store/check", "", &check); !check.Up || !check.Full {
		t.Errorf("while the store is full: got %+v", check)
	}
	again.Full = true
	if got := status(); got != again {
		t.Errorf("while the store is full: got %+v", got)
	}
}

func TestAdminWithoutStore(t *testing.T) {
	a := newAdmin(t, `{"servers":[`+serverOf("a", staticHandler)+`]}`)
	var overview map[string]any
	if a.call("GET", "/mcp_gateway/overview", "", &overview); overview["store"] != nil {
		t.Errorf("got %v", overview["store"])
	}
	if res := a.call("POST", "/mcp_gateway/store/check", "", nil); res.StatusCode != 404 {
		t.Errorf("got %d", res.StatusCode)
	}
}
