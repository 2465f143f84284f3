package mcppruner_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/storetest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcppruner"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstore"
)

// Replicas give the same text the same id, and recover texts that another replica pruned.
func TestReplicas(t *testing.T) {
	engine := replicastest.New()
	replica := func() *mcppruner.Handler {
		module, err := storetest.Replica(t, engine, mcpstore.App{}).LoadModuleByID("http.handlers.mcp_pruner", []byte(`{}`))
		if err != nil {
			t.Fatal(err)
		}
		return module.(*mcppruner.Handler)
	}
	recovered := func(h *mcppruner.Handler, client, id string) string {
		a := callTool(t, h, client, "recover_text", `{"prune_id":"`+id+
			`","ranges":[{"start_line":2,"end_line":3}],"include_line_numbers":false}`)
		if a.Error != nil {
			return fmt.Sprint(a.Error.Code, " ", a.Error.Message, " ", string(a.Error.Data))
		}
		var got struct {
			RawText string `json:"raw_text"`
		}
		decodeResult(t, a, &got)
		return got.RawText
	}
	a, b, c := replica(), replica(), replica()
	var text strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&text, "line %d\n", i+1)
	}
	id := prune(t, a, "ann", text.String(), "goal").PruneID
	if got := recovered(b, "ann", id); got != "line 2\nline 3" {
		t.Errorf("recovered %s", got)
	}
	if got, want := recovered(b, "bob", id), `-32004 prune_id_not_found {"code":"prune_id_not_found","prune_id":"`+id+
		`"}`; got != want {
		t.Errorf("another client got %s", got)
	}
	if again := prune(t, b, "ann", text.String(), "goal").PruneID; again != id {
		t.Errorf("id %s, then %s", id, again)
	}

	engine.Down.Store(true)
	pruned := prune(t, a, "ann", text.String(), "another goal")
	if pruned.Stats["used_fallback"] == true || len(pruned.PrunedText) == text.Len() {
		t.Error("nothing is pruned while the store is unavailable")
	}
	if got := recovered(a, "ann", pruned.PruneID); got != "line 2\nline 3" {
		t.Errorf("recovered %s", got)
	}
	if got, want := recovered(c, "ann", pruned.PruneID),
		`-32002 store_unavailable {"code":"store_unavailable","prune_id":"`+pruned.PruneID+`"}`; got != want {
		t.Errorf("another replica, while the store is unavailable: %s", got)
	}
	engine.Down.Store(false)
}
