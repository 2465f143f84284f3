package gateway

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap/zaptest"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// A call that a person has confirmed can be made at any replica, once.
func TestConfirmationAtAnotherReplica(t *testing.T) {
	engine, p := replicastest.New(), modernPeer("a").hasTools("x")
	a, b := newReplica(t, engine, confirming, p), newReplica(t, engine, confirming, p)
	asked := a.modern(t).asks(callX)
	if n := len(engine.Values()); n != 0 {
		t.Errorf("%d values are kept for a question", n)
	}
	atB := *asked
	atB.u = asked.u.at(b)
	engine.Down.Store(true)
	if s := atB.answer(agreed); s.symbol() != "store_unavailable" || p.count("tools/call") != 0 {
		t.Errorf("while the store is unavailable, after %d calls: %s", p.count("tools/call"), s.body)
	}
	engine.Down.Store(false)
	await.Until(t, "the store", b.State.common.Up)
	if s := atB.answer(agreed); !strings.Contains(s.answer, `"text":"a"`) || p.count("tools/call") != 1 {
		t.Errorf("at the other: %s", s.body)
	}
	for _, again := range []interface{ answer(string) said }{asked, &atB} {
		if s := again.answer(agreed); !strings.Contains(s.body, "it has been used") || p.count("tools/call") != 1 {
			t.Errorf("once more: %s", s.body)
		}
	}
}

func TestConfirmationsOfReplicasExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := replicastest.New()
		a := newConfirmations(replicastest.Replica(t, engine).Space("gateway"))
		defer a.close()
		b := newConfirmations(replicastest.Replica(t, engine).Space("gateway"))
		defer b.close()
		key, used := a.add("ann"), a.add("ann")
		if ok, err := b.take(t.Context(), used); !ok || err != nil {
			t.Errorf("%t, %v", ok, err)
		}
		time.Sleep(streamable.QuestionTime + 2*time.Second)
		for _, key := range []string{key, used} {
			if ok, err := b.take(t.Context(), key); ok || err != nil {
				t.Errorf("after its time: %t, %v", ok, err)
			}
		}
		time.Sleep(streamable.QuestionTime)
		if left := engine.Values(); len(left) != 0 {
			t.Errorf("%d are kept for ever", len(left))
		}
	})
}

// Who has begun a task is known at all replicas.
func TestTasksOfOtherReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := replicastest.New()
		a := newTaskOwners(replicastest.Replica(t, engine).Space("gateway"))
		defer a.close()
		space := replicastest.Replica(t, engine).Space("gateway")
		b := newTaskOwners(space)
		defer b.close()
		s, ann, bob, anonymous := &Server{Name: "a"}, &caller{identity: "ann"}, &caller{identity: "bob"}, &caller{}
		begun := task{identity: "ann", target: mcp.Target{Server: "a", Kind: mcp.Tool, Name: "x"}, annotations: mcp.ReadOnly}
		a.add(taskKey{"a", "1"}, begun)
		b.add(taskKey{"a", "1"}, task{identity: "bob"}) // a task has one owner
		got, known, err := b.get(taskKey{"a", "1"})
		if got.shared = begun.shared; got != begun || !known || err != nil {
			t.Errorf("at the other: %+v, %t, %v", got, known, err)
		}
		is := func(when string, id string, annHas, bobHas, anonymousHas bool) {
			t.Helper()
			for c, want := range map[*caller]bool{ann: annHas, bob: bobHas, anonymous: anonymousHas} {
				if got := b.has(c, s, id); got != want {
					t.Errorf("%s, %q has %q: %t", when, c.identity, id, got)
				}
			}
		}
		is("of another replica", "1", true, false, false)
		is("of an anonymous client", "2", false, false, true)
		operations := engine.Operations.Load()
		is("once more", "1", true, false, false)
		if n := engine.Operations.Load() - operations; n != 0 {
			t.Errorf("%d operations for what is known here", n)
		}
		for range 3 { // the use at one replica is the use at all
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
		time.Sleep(time.Minute) // until it is tried again, and what waits is written
		is("when it is back", "3", true, false, false)
		is("begun while it was unavailable", "4", true, false, false)
		c := newTaskOwners(space)
		defer c.close()
		if _, known, err := c.get(taskKey{"a", "1"}); !known || err != nil {
			t.Errorf("after three days of use: %t, %v", known, err)
		}
	})
}

// A client that begins very many tasks pushes out its own.
func TestTasksOfOtherReplicasAreBounded(t *testing.T) {
	engine := replicastest.New()
	few := func() *taskOwners {
		store := replicas.Open(engine, replicas.Config{
			Key: testKey, Prefix: "test:", Timeout: time.Minute, Retry: time.Second, OwnerBytes: 8 << 10, QueueBytes: 1 << 20,
			Logger: zaptest.NewLogger(t), Observer: unobserved{},
		})
		t.Cleanup(store.Close)
		owners := newTaskOwners(store.Space("gateway"))
		t.Cleanup(owners.close)
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

type unobserved struct{}

func (unobserved) Done(string, replicas.Outcome, time.Duration) {}
func (unobserved) Up(bool)                                      {}
