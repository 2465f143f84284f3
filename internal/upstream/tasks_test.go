package upstream

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap/zaptest"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
)

func TestTasksHaveOneOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := NewTasks(nil)
		defer all.Close()
		key := taskKey{"a", "1"}
		all.add(key, task{identity: "ann", target: mcp.Target{Name: "x"}})
		all.add(key, task{identity: "bob", target: mcp.Target{Name: "y"}})
		for range 3 { // each use renews the task
			time.Sleep(taskTime - time.Minute)
			if got, ok, _ := all.get(key); !ok || got.identity != "ann" || got.target.Name != "x" {
				t.Errorf("got %+v, %t", got, ok)
			}
		}
		if _, ok, _ := all.get(taskKey{"b", "1"}); ok {
			t.Error("the task is also known at another server")
		}
		for i := range 100_100 { // of another server
			all.add(taskKey{"b", fmt.Sprint(i)}, task{identity: "ann"})
		}
		if _, ok, _ := all.get(key); !ok {
			t.Error("tasks of another server evicted the task")
		}
		time.Sleep(taskTime + time.Minute)
		if _, ok, _ := all.get(key); ok {
			t.Error("the task did not expire")
		}
	})
}

// All replicas know the owner of a task.
func TestTasksOfOtherReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := replicastest.New()
		a := NewTasks(replicastest.Replica(t, engine).Space("gateway"))
		defer a.Close()
		space := replicastest.Replica(t, engine).Space("gateway")
		b := NewTasks(space)
		defer b.Close()
		s, ann, bob, anonymous := &Server{Name: "a"}, &access.Caller{Identity: "ann"}, &access.Caller{Identity: "bob"},
			&access.Caller{}
		begun := task{identity: "ann", target: mcp.Target{Server: "a", Kind: mcp.Tool, Name: "x"}, annotations: mcp.ReadOnly}
		a.add(taskKey{"a", "1"}, begun)
		b.add(taskKey{"a", "1"}, task{identity: "bob"}) // does not change the owner
		got, known, err := b.get(taskKey{"a", "1"})
		got.shared = begun.shared
		if got != begun || !known || err != nil {
			t.Errorf("at the other replica: %+v, %t, %v", got, known, err)
		}
		is := func(when string, id string, annHas, bobHas, anonymousHas bool) {
			t.Helper()
			for c, want := range map[*access.Caller]bool{ann: annHas, bob: bobHas, anonymous: anonymousHas} {
				if got := b.Has(c, s, id); got != want {
					t.Errorf("%s: %q owns %q: %t", when, c.Identity, id, got)
				}
			}
		}
		is("of another replica", "1", true, false, false)
		is("of an anonymous client", "2", false, false, true)
		operations := engine.Operations.Load()
		is("once more", "1", true, false, false)
		if n := engine.Operations.Load() - operations; n != 0 {
			t.Errorf("%d operations for a known task", n)
		}
		for range 3 { // use at one replica counts for all
			time.Sleep(taskTime - time.Minute)
			is("used", "1", true, false, false)
			synctest.Wait()
		}
		a.add(taskKey{"a", "3"}, begun)
		engine.Down.Store(true)
		is("known here, while the store is unavailable", "1", true, false, false)
		is("not known here, while the store is unavailable", "3", false, false, false)
		a.add(taskKey{"a", "4"}, begun)
		engine.Down.Store(false)
		time.Sleep(time.Minute) // waiting writes are retried
		is("when it is back", "3", true, false, false)
		is("begun while it was unavailable", "4", true, false, false)
		c := NewTasks(space)
		defer c.Close()
		if _, known, err := c.get(taskKey{"a", "1"}); !known || err != nil {
			t.Errorf("after three days of use: %t, %v", known, err)
		}
	})
}

// A client that creates too many tasks evicts only its own.
func TestTasksOfOtherReplicasAreLimited(t *testing.T) {
	engine := replicastest.New()
	few := func() *Tasks {
		store := replicas.Open(engine, replicas.Config{
			Key: []byte("a key of these tests"), Prefix: "test:", Timeout: time.Minute, Retry: time.Second, OwnerBytes: 8 << 10,
			QueueBytes: 1 << 20,
			Logger:     zaptest.NewLogger(t), Observer: unobserved{},
		})
		t.Cleanup(store.Close)
		owners := NewTasks(store.Space("gateway"))
		t.Cleanup(owners.Close)
		return owners
	}
	a, b := few(), few()
	a.add(taskKey{"a", "bob's"}, task{identity: "bob"})
	for i := range 200 {
		a.add(taskKey{"a", fmt.Sprint(i)}, task{identity: "ann"})
	}
	for id, want := range map[string]bool{"bob's": true, "0": false, "199": true} {
		if _, known, err := b.get(taskKey{"a", id}); known != want || err != nil {
			t.Errorf("%s is known: %t, %v", id, known, err)
		}
	}
}

// A slowEngine takes a second for each value.
type slowEngine struct{ *replicastest.Engine }

func (e slowEngine) Get(ctx context.Context, keys ...string) ([][]byte, error) {
	time.Sleep(time.Second)
	return e.Engine.Get(ctx, keys...)
}

// Unknown tasks of a list are not looked up one after the other.
func TestTasksOfAListAreLookedUpAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := replicastest.New()
		a := NewTasks(replicastest.Replica(t, engine).Space("gateway"))
		defer a.Close()
		b := NewTasks(replicastest.Replica(t, slowEngine{engine}).Space("gateway"))
		defer b.Close()
		ann := &access.Caller{Identity: "ann"}
		answer := `{"jsonrpc":"2.0","id":1,"result":{"tasks":[{"taskId":"0"}`
		for i := range 100 {
			identity := "ann"
			if i%2 == 1 {
				identity = "bob"
			}
			a.add(taskKey{"a", fmt.Sprint(i)}, task{identity: identity, target: mcp.Target{Server: "a", Kind: mcp.Other}})
			answer += fmt.Sprintf(`,{"taskId":"%d"}`, i)
		}
		f := NewListFilter(&Shared{Tasks: b}, &Server{Name: "a"}, ann, nil)
		began, shown := time.Now(), 0
		var list mcp.List
		if failure := f.Read(&list, []byte(answer+"]}}")); failure != nil {
			t.Fatal(failure)
		}
		for i := range list.Items {
			if f.shows(&list.Items[i]) {
				shown++
			}
		}
		if took := time.Since(began); shown != 51 || took > 10*time.Second {
			t.Errorf("%d tasks are shown after %v", shown, took)
		}
	})
}

// Unknown tasks are looked up in the shared store, so one message can name only so many.
func TestMessagesNameFewTasks(t *testing.T) {
	engine := replicastest.New()
	all := NewTasks(replicastest.Replica(t, engine).Space("gateway"))
	defer all.Close()
	for _, n := range []int{maxListed, maxListed + 1} {
		var p PostedMessage
		message := `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"taskIds":["x"` +
			strings.Repeat(`,"x"`, n-1) + `]}}}`
		if err := p.Message.Read([]byte(message)); err != nil {
			t.Fatal(err)
		}
		before := engine.Operations.Load()
		failure := all.check(&access.Caller{}, &Server{Name: "a"}, &p)
		if operations := engine.Operations.Load() - before; (failure == nil) != (n <= maxListed) || operations > maxListed {
			t.Errorf("%d tasks: %v after %d operations", n, failure, operations)
		}
	}
}

type unobserved struct{}

func (unobserved) Done(string, replicas.Outcome, time.Duration) {}

func (unobserved) Up(bool) {}
