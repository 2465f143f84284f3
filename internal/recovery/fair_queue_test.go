package recovery

import (
	"slices"
	"testing"
	"testing/synctest"
)

// A client with many queries delays another client by one query only.
func TestClientsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newFairQueue()
		var order []string
		done := all.wait(t.Context(), "a")
		for _, client := range []string{"a", "a", "b", "a"} {
			go func() {
				done := all.wait(t.Context(), client)
				order = append(order, client)
				done()
			}()
			synctest.Wait()
		}
		done()
		synctest.Wait()
		if want := []string{"b", "a", "a", "a"}; !slices.Equal(order, want) {
			t.Errorf("got %v, want %v", order, want)
		}
		if len(all.clients) != 0 {
			t.Errorf("%d clients are remembered", len(all.clients))
		}
	})
}

func TestWaitTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newFairQueue()
		done := all.wait(t.Context(), "a")
		for _, client := range []string{"a", "b"} {
			if all.wait(t.Context(), client) != nil {
				t.Errorf("%s has a turn during that of a", client)
			}
		}
		done()
		if done = all.wait(t.Context(), "b"); done == nil {
			t.Fatal("no turn")
		}
		done()
		if len(all.clients) != 0 {
			t.Errorf("%d clients are remembered", len(all.clients))
		}
	})
}
