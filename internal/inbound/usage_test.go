package inbound

import "testing"

func TestTalliesAllocateNothing(t *testing.T) {
	k := new(Usage)
	k.Tally("ann")
	if n := testing.AllocsPerRun(100, func() { k.Tally("ann").Requests.Add(1) }); n > 0 {
		t.Errorf("got %v allocations, want none", n)
	}
}
