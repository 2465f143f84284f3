//go:build linux

package replicas

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
)

// share is a part of what agents do.
var share = more(12, 40)

// TestReplicasAreKilled kills one replica after the other while agents are at work. What was in flight at a
// dead one fails, and is right when it is repeated.
func TestReplicasAreKilled(t *testing.T) {
	referenceOf(t)
	redis := replicastest.StartRedis(t)
	w := several(t, 3, "redis://"+redis.Addr)
	c := newCrowd(t, w, 0, more(meetFault, maxAgents))
	defer c.leave()
	over := make(chan struct{})
	go func() {
		defer close(over)
		c.work(4*share, 0, again)
	}()
	for _, replica := range w.replicas {
		c.awaitMore(int64(len(c.agents)*share/4), over)
		c.died.Store(time.Now().UnixNano())
		replica.kill()
		c.awaitMore(int64(len(c.agents)*share/4), over)
		replica.start(t)
		replica.awaitStore(t)
	}
	<-over
	c.print(t, "while replicas are killed")
	c.work(share, 0, once)
	c.print(t, "then")
}

// TestRedisFails takes Redis away for a while. What becomes of operations meanwhile is theirs to say
// ([operation.away]); everything else is as ever, and after it so is everything.
func TestRedisFails(t *testing.T) {
	for _, f := range []struct {
		name  string
		args  []string // of redis-server
		begin func(*replicastest.Redis)
		end   func(*replicastest.Redis)
	}{
		{"restarts empty", nil, (*replicastest.Redis).Stop, (*replicastest.Redis).Restart},
		{"restarts with what it had", []string{"--appendonly", "yes", "--appendfsync", "always"}, (*replicastest.Redis).Stop, (*replicastest.Redis).Restart},
		{"stalls for 5 s", nil, (*replicastest.Redis).Pause, (*replicastest.Redis).Continue},
	} {
		t.Run(f.name, func(t *testing.T) {
			referenceOf(t)
			redis := replicastest.StartRedis(t, f.args...)
			defer redis.Continue() // or it could not be ended
			w := several(t, 3, "redis://"+redis.Addr)
			c := newCrowd(t, w, 0, meetFault)
			defer c.leave()
			c.work(share, 0, once)
			f.begin(redis)
			c.work(share, 5*time.Second/time.Duration(share), whileAway)
			f.end(redis)
			c.print(t, "while Redis "+f.name)
			w.awaitStore(t)
			c.work(share, 0, once)
			c.print(t, "then")
			strangers := newCrowd(t, w, meetFault, 2*meetFault)
			defer strangers.leave()
			strangers.work(share, 0, once)
			strangers.print(t, "then, agents that were not there before")
		})
	}
}

// TestSentinelFailsOver has Redis Sentinel replace a master that does not answer any longer.
func TestSentinelFailsOver(t *testing.T) {
	referenceOf(t)
	set := startSentinels(t)
	failsOver(t, several(t, 3, set.addresses, append(asUser(t, set.servers...), "sentinel mymaster")...), set.master, "Sentinel fails over")
}

// TestClusterFailsOver has a Redis Cluster replace one of its masters.
func TestClusterFailsOver(t *testing.T) {
	referenceOf(t)
	set := startCluster(t)
	// By this key replicas see whether they can use the store.
	failsOver(t, several(t, 3, set.addresses, append(asUser(t, set.nodes...), "cluster on")...), set.masterOf(t, "caddy-mcp:{ping}"), "a Cluster fails over")
}

// failsOver ends the master of a Redis that has another in its place.
func failsOver(t *testing.T, w *world, master *replicastest.Redis, name string) {
	t.Helper()
	c := newCrowd(t, w, 0, meetFault)
	defer c.leave()
	c.work(share, 0, once)
	master.Stop()
	c.work(share, 5*time.Second/time.Duration(share), whileAway)
	c.print(t, "while "+name)
	w.awaitStore(t)
	c.work(share, 0, once)
	c.print(t, "then")
	strangers := newCrowd(t, w, meetFault, 2*meetFault)
	defer strangers.leave()
	strangers.work(share, 0, once)
	strangers.print(t, "then, agents that were not there before")
}

// TestPartition separates one replica from Redis, and from nothing else. It refuses what any replica
// refuses while Redis is away ([operation.away]); the others lack what it has ([whileApart]), and nothing else.
func TestPartition(t *testing.T) {
	type form struct {
		name string
		end  func(*relay)
	}
	forms := []form{{"what got stuck goes on", (*relay).resume}, {"connections are closed", (*relay).cut}}
	for _, f := range forms[:more(1, 2)] {
		t.Run(f.name, func(t *testing.T) {
			referenceOf(t)
			redis := replicastest.StartRedis(t)
			way := newRelay(t, redis.Addr, 0)
			w := severalBy(t, []string{"redis://" + way.addr, "redis://" + redis.Addr, "redis://" + redis.Addr})
			separated, others := w.replicas[0], w.balance(t, w.replicas[1:]...)
			everywhere := newCrowd(t, w, 0, meetFault)
			defer everywhere.leave()
			elsewhere := newCrowd(t, others, meetFault, 2*meetFault)
			defer elsewhere.leave()
			everywhere.work(share, 0, once)
			way.hold()
			var both sync.WaitGroup
			both.Go(func() { everywhere.work(share, 5*time.Second/time.Duration(share), whileApart) })
			both.Go(func() { elsewhere.work(share, 5*time.Second/time.Duration(share), once) })
			both.Wait()
			everywhere.print(t, "while one replica is separated")
			elsewhere.print(t, "meanwhile, agents of the others")
			if got := separated.metric(t, "caddy_mcp_store_up"); got != "0" {
				t.Errorf("the separated one has a store: %s", got)
			}
			for _, replica := range others.replicas {
				if got := replica.metric(t, "caddy_mcp_store_up"); got != "1" {
					t.Errorf("another one has no store: %s", got)
				}
			}
			f.end(way)
			w.awaitStore(t)
			everywhere.work(share, 0, once)
			everywhere.print(t, "then")
			strangers := newCrowd(t, w, 2*meetFault, 3*meetFault)
			defer strangers.leave()
			strangers.work(share, 0, once)
			strangers.print(t, "then, agents that were not there before")
		})
	}
}

// TestPartitionIsNotNoticed separates a replica that has nothing to do from Redis. What the others have told
// meanwhile it finds out when it has something to do.
func TestPartitionIsNotNoticed(t *testing.T) {
	redis := replicastest.StartRedis(t)
	way := newRelay(t, redis.Addr, 0)
	w := severalBy(t, []string{"redis://" + way.addr, "redis://" + redis.Addr})
	separated, other := w.replicas[0], w.replicas[1]
	defer connections.CloseIdleConnections()
	c := newTraveller(t, 0, false, separated)
	c.mustCall(t, "legacy__echo", `{"text":"before"}`)
	way.hold()
	c.at(other).end(t)
	way.cut()
	await.Until(t, "the session to be over at the separated replica", func() bool {
		return c.at(separated).Begin(t.Context(), "tools/list", "{}").Finish().Status == http.StatusNotFound
	})
}

// TestRedisIsFull has Redis keep nothing more. Replicas keep what they have cut, and cannot give it to others;
// everything else is as ever, and after it so is this.
func TestRedisIsFull(t *testing.T) {
	referenceOf(t)
	redis := replicastest.StartRedis(t)
	all := several(t, 4, "redis://"+redis.Addr)
	w, late := all.balance(t, all.replicas[:3]...), all.replicas[3] // which has nothing that others lack
	c := newCrowd(t, w, 0, meetFault)
	defer c.leave()
	c.work(share, 0, once)
	expect(t, redis, "+OK", "CONFIG", "SET", "maxmemory", "1")
	c.work(share, 0, whileFull)
	c.print(t, "while Redis is full")
	for _, replica := range w.replicas {
		if got := replica.metric(t, "caddy_mcp_store_up"); got != "1" {
			t.Errorf("a store that is full is up: %s", got)
		}
		if got := replica.metric(t, `caddy_mcp_store_operations_total{operation="keep",outcome="full"}`); got == "" {
			t.Error("the metrics do not say that it is full")
		}
		if !replica.store(t).Full {
			t.Error("the overview does not say that it is full")
		}
		replica.logged(t, "shared store is full")
	}
	ending := newTraveller(t, 0, false, w.replicas[0])
	ending.at(w.replicas[1]).mustCall(t, "legacy__echo", `{"text":"before"}`)
	ending.at(w.replicas[0]).end(t)
	await.Until(t, "the session to be over at the other replica", func() bool {
		return ending.at(w.replicas[1]).Begin(t.Context(), "tools/list", "{}").Finish().Status == http.StatusNotFound
	})
	late.kill()
	late.start(t)
	if got := ending.at(late).Begin(t.Context(), "tools/list", "{}").Finish(); got.Status != http.StatusNotFound {
		t.Errorf("at a replica that has started since: %d %s %v", got.Status, got.Body, got.Err)
	}
	expect(t, redis, "+OK", "CONFIG", "SET", "maxmemory", "0")
	c.work(share, 0, once)
	c.print(t, "then")
}

// TestRedisIsSlow has all that Redis says and is told come late.
func TestRedisIsSlow(t *testing.T) {
	referenceOf(t)
	redis := replicastest.StartRedis(t)
	var stores []string
	for range 3 {
		stores = append(stores, "redis://"+newRelay(t, redis.Addr, 100*time.Millisecond).addr)
	}
	c := newCrowd(t, severalBy(t, stores), 0, meetFault)
	defer c.leave()
	c.work(share/2, 0, once) // by all agents together, everything
	c.print(t, "while Redis is slow")
}
