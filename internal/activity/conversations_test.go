package activity

import (
	"fmt"
	"testing"
)

func TestConversations(t *testing.T) {
	c := NewConversations()
	c.Add(&Request{Route: "b", BytesBefore: 100, BytesAfter: 100})
	c.Add(&Request{
		Route: "a", Masked: 2, SavedChars: 300, BytesBefore: 1000, BytesAfter: 700, TokensBefore: 250, TokensAfter: 175,
		Moved: true,
		Usage: Usage{Input: 175, Cached: 100, CacheWrite: 75, Output: 9}, Cost: 103.75, CostBefore: 60,
	})
	c.Add(&Request{
		Route: "a", Masked: 2, SavedChars: 300, BytesBefore: 1200, BytesAfter: 900, TokensBefore: 300, TokensAfter: 225,
		Usage: Usage{Input: 225, Cached: 175, CacheWrite: 50, Output: 1}, Cost: 80, CostBefore: 90,
	})
	all := c.Routes()
	if len(all) != 2 || all[0].Route != "a" || all[1].Route != "b" {
		t.Fatalf("got %+v", all)
	}
	a, b := all[0], all[1]
	if len(a.Moves) != 1 || a.Moves[0].At.IsZero() {
		t.Fatalf("got %+v", a.Moves)
	}
	move := a.Moves[0]
	move.At = (Move{}).At
	if want := (Move{Results: 2, SavedChars: 300, Cached: 100, CacheWrite: 75, Input: 175, Cost: 103.75,
		CostBefore: 60}); move != want {
		t.Errorf("got %+v", move)
	}
	a.Moves = nil
	want := Route{
		Route: "a", Requests: 2, Masked: 2, Results: 4, SavedChars: 600, BytesBefore: 2200, BytesAfter: 1600,
		TokensBefore: 550, TokensAfter: 400, Usage: Usage{400, 275, 125, 10}, Cost: 183.75, CostBefore: 150,
	}
	if got := fmt.Sprintf("%+v", a); got != fmt.Sprintf("%+v", want) {
		t.Errorf("got %s", got)
	}
	if b.Requests != 1 || b.Masked != 0 || b.Moves == nil { // Moves is [] in JSON
		t.Errorf("got %+v", b)
	}
}

func TestConversationsHaveLimits(t *testing.T) {
	c := NewConversations()
	for i := range maxRoutes + 10 {
		c.Add(&Request{Route: fmt.Sprint("route ", i)})
	}
	if all := c.Routes(); len(all) != maxRoutes+1 || all[0].Route != "" || all[0].Requests != 10 {
		t.Errorf("%d routes, the first is %+v", len(all), all[0])
	}
	for i := range maxMoves + 10 {
		c.Add(&Request{Route: "route 1", Moved: true, Masked: i})
	}
	for _, route := range c.Routes() {
		if route.Route != "route 1" {
			continue
		}
		if first, last := route.Moves[0], route.Moves[len(route.Moves)-1]; len(route.Moves) != maxMoves ||
			first.Results != maxMoves+9 || last.Results != 10 {
			t.Errorf("%d moves, from %+v to %+v", len(route.Moves), first, last)
		}
	}
}
