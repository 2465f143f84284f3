package gateway

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

func TestTasksHaveOneOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newTaskOwners(nil)
		defer all.close()
		key := taskKey{"a", "1"}
		all.add(key, task{identity: "ann", target: mcp.Target{Name: "x"}})
		all.add(key, task{identity: "bob", target: mcp.Target{Name: "y"}})
		for range 3 { // each of which renews it
			time.Sleep(taskTime - time.Minute)
			if got, ok, _ := all.get(key); !ok || got.identity != "ann" || got.target.Name != "x" {
				t.Errorf("got %+v, %t", got, ok)
			}
		}
		if _, ok, _ := all.get(taskKey{"b", "1"}); ok {
			t.Error("it is one of another server, too")
		}
		for i := range 100_100 { // that another server says it has begun
			all.add(taskKey{"b", fmt.Sprint(i)}, task{identity: "ann"})
		}
		if _, ok, _ := all.get(key); !ok {
			t.Error("another server has pushed it out")
		}
		time.Sleep(taskTime + time.Minute)
		if _, ok, _ := all.get(key); ok {
			t.Error("it is remembered for ever")
		}
	})
}
