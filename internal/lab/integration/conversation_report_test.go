package integration

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// reportedRoute is a route to a model in the admin API.
type reportedRoute struct {
	Route          string
	Requests       int
	MaskedRequests int     `json:"masked_requests"`
	MaskedResults  int     `json:"masked_results"`
	SavedChars     int     `json:"saved_chars"`
	BytesBefore    int     `json:"bytes_before"`
	BytesAfter     int     `json:"bytes_after"`
	TokensBefore   int     `json:"tokens_before"`
	TokensAfter    int     `json:"tokens_after"`
	Cost           float64 `json:"cost_tokens"`
	CostUnmasked   float64 `json:"cost_tokens_unmasked"`
	Usage          map[string]int
	Moves          []struct {
		At            time.Time
		MaskedResults int `json:"masked_results"`
		Cached, Input int
		CacheWrite    int     `json:"cache_write"`
		Cost          float64 `json:"cost_tokens"`
		CostUnmasked  float64 `json:"cost_tokens_unmasked"`
	}
}

// The admin API reports a conversation whose boundary moves twice, by two turns each.
func TestReportedConversations(t *testing.T) {
	isolate(t)
	chat := &mcptest.Chat{Usage: mcptest.Usage{Input: 5000, Cached: 2000, CacheWrite: 1000, Output: 10}}
	address := freeAddress(t)
	config := site(address, conversationMask("window_turns 1", "step_turns 2", "route kimi"), proxy(upstream(t, chat)))
	load(t, config)
	client, url := sequentialClient(t), "http://"+address+"/v1/chat/completions"
	before, after, masked := 0, 0, 0
	for n := range 6 {
		body := turns(n+1, 0, 1000)
		send(t, client, "POST", url, body)
		before, after, masked = before+len(body), after+len(chat.Last().Body), masked+n/2*2
	}
	send(t, client, "GET", url, "") // so that the last request is counted
	load(t, config+site(freeAddress(t), "respond x"))

	var routes []reportedRoute
	got := admin(t, "GET", "/mcp_gateway/conversations", "")
	if err := json.Unmarshal([]byte(got.body), &routes); err != nil || len(routes) != 1 {
		t.Fatalf("%v: %s", err, got.body)
	}
	r := routes[0]
	if r.Route != "kimi" || r.Requests != 6 || r.MaskedRequests != 4 || r.MaskedResults != masked ||
		r.SavedChars < masked*800 {
		t.Errorf("got %s", got.body)
	}
	if r.BytesBefore != before || r.BytesAfter != after || after >= before {
		t.Errorf("%d bytes, %d of them sent: got %s", before, after, got.body)
	}
	if r.TokensAfter != 6*5000 || r.TokensBefore <= r.TokensAfter || r.Usage["input"] != 6*5000 ||
		r.Usage["cached"] != 6*2000 || r.Usage["output"] != 60 {
		t.Errorf("got %s", got.body)
	}
	if len(r.Moves) != 2 || r.Moves[0].MaskedResults != 4 || r.Moves[1].MaskedResults != 2 ||
		r.Moves[0].At.Before(r.Moves[1].At) {
		t.Fatalf("got %s", got.body)
	}
	for _, move := range r.Moves {
		if move.Cached != 2000 || move.Input != 5000 || move.Cost == 0 || move.CostUnmasked == 0 ||
			move.Cost == move.CostUnmasked {
			t.Errorf("got %+v", move)
		}
	}
	if r.Cost <= r.Moves[0].Cost+r.Moves[1].Cost || r.CostUnmasked == 0 {
		t.Errorf("got %s", got.body)
	}
}
