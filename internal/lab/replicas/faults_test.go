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

// phaseOperations is the number of operations of each agent in one phase of a test.
var phaseOperations = byLength(12, 40)

// TestReplicasAreKilled kills one replica after the other while agents work. Operations in progress
// at a killed replica fail, and succeed when repeated.
func TestReplicasAreKilled(t *testing.T) {
	referenceOf(t)
	redis := replicastest.StartRedis(t)
	w := startReplicas(t, 3, "redis://"+redis.Addr)
	c := newAgentGroup(t, w, 0, byLength(faultAgents, maxAgents))
	defer c.close()
	over := make(chan struct{})
	go func() {
		defer close(over)
		c.work(4*phaseOperations, 0, runWithRetries)
	}()
	for _, replica := range w.replicas {
		c.awaitMore(int64(len(c.agents)*phaseOperations/4), over)
		c.killedAt.Store(time.Now().UnixNano())
		replica.kill()
		c.awaitMore(int64(len(c.agents)*phaseOperations/4), over)
		replica.start(t)
		replica.awaitStore(t)
	}
	<-over
	c.print(t, "while replicas are killed")
	c.work(phaseOperations, 0, runOnce)
	c.print(t, "afterwards")
}

// TestRedisFails makes Redis unavailable for a while. Meanwhile operations end as
// [operation.outageRecord] says, or as usual; afterwards all end as usual.
func TestRedisFails(t *testing.T) {
	for _, f := range []struct {
		name  string
		args  []string // arguments of redis-server
		begin func(*replicastest.Redis)
		end   func(*replicastest.Redis)
	}{
		{"restarts empty", nil, (*replicastest.Redis).Stop, (*replicastest.Redis).Restart},
		{"restarts with its data", []string{"--appendonly", "yes", "--appendfsync", "always"}, (*replicastest.Redis).Stop,
			(*replicastest.Redis).Restart},
		{"stalls for 5 s", nil, (*replicastest.Redis).Pause, (*replicastest.Redis).Continue},
	} {
		t.Run(f.name, func(t *testing.T) {
			parallel(t)
			referenceOf(t)
			redis := replicastest.StartRedis(t, f.args...)
			defer redis.Continue() // a paused process cannot be ended
			w := startReplicas(t, 3, "redis://"+redis.Addr)
			c := newAgentGroup(t, w, 0, faultAgents)
			defer c.close()
			c.work(phaseOperations, 0, runOnce)
			f.begin(redis)
			c.work(phaseOperations, 5*time.Second/time.Duration(phaseOperations), runDuringOutage)
			f.end(redis)
			c.print(t, "while Redis "+f.name)
			w.awaitStore(t)
			c.work(phaseOperations, 0, runOnce)
			c.print(t, "afterwards")
			newAgents := newAgentGroup(t, w, faultAgents, 2*faultAgents)
			defer newAgents.close()
			newAgents.work(phaseOperations, 0, runOnce)
			newAgents.print(t, "afterwards, new agents")
		})
	}
}

// TestSentinelFailsOver has Redis Sentinel replace a master that no longer responds.
func TestSentinelFailsOver(t *testing.T) {
	parallel(t)
	referenceOf(t)
	set := startSentinels(t)
	testFailover(t, startReplicas(t, 3, set.addresses, append(asUser(t, set.servers...), "sentinel mymaster")...),
		set.master, "Sentinel fails over")
}

// TestClusterFailsOver has a Redis Cluster replace one of its masters.
func TestClusterFailsOver(t *testing.T) {
	parallel(t)
	referenceOf(t)
	set := startCluster(t)
	// With this key, replicas check whether the store is available.
	testFailover(t, startReplicas(t, 3, set.addresses, append(asUser(t, set.nodes...), "cluster on")...),
		set.masterOf(t, "caddy-mcp:{ping}"), "a Cluster fails over")
}

// testFailover stops a Redis master that has a replica.
func testFailover(t *testing.T, w *deployment, master *replicastest.Redis, name string) {
	t.Helper()
	c := newAgentGroup(t, w, 0, faultAgents)
	defer c.close()
	c.work(phaseOperations, 0, runOnce)
	master.Stop()
	c.work(phaseOperations, 5*time.Second/time.Duration(phaseOperations), runDuringOutage)
	c.print(t, "while "+name)
	w.awaitStore(t)
	c.work(phaseOperations, 0, runOnce)
	c.print(t, "afterwards")
	newAgents := newAgentGroup(t, w, faultAgents, 2*faultAgents)
	defer newAgents.close()
	newAgents.work(phaseOperations, 0, runOnce)
	newAgents.print(t, "afterwards, new agents")
}

// TestPartition separates one replica from Redis only. It refuses what any replica refuses without
// Redis ([operation.outageRecord]); the others lack its originals ([runDuringPartition]) and
// nothing else.
func TestPartition(t *testing.T) {
	type form struct {
		name string
		end  func(*relay)
	}
	forms := []form{{"held data arrives later", (*relay).resume}, {"connections are closed", (*relay).cut}}
	for _, f := range forms[:byLength(1, 2)] {
		t.Run(f.name, func(t *testing.T) {
			parallel(t)
			referenceOf(t)
			redis := replicastest.StartRedis(t)
			link := newRelay(t, redis.Addr, 0)
			w := startReplicasAt(t, []string{"redis://" + link.addr, "redis://" + redis.Addr, "redis://" + redis.Addr})
			separated, others := w.replicas[0], w.balance(t, w.replicas[1:]...)
			atAll := newAgentGroup(t, w, 0, faultAgents)
			defer atAll.close()
			atOthers := newAgentGroup(t, others, faultAgents, 2*faultAgents)
			defer atOthers.close()
			atAll.work(phaseOperations, 0, runOnce)
			link.hold()
			var both sync.WaitGroup
			both.Go(func() { atAll.work(phaseOperations, 5*time.Second/time.Duration(phaseOperations), runDuringPartition) })
			both.Go(func() { atOthers.work(phaseOperations, 5*time.Second/time.Duration(phaseOperations), runOnce) })
			both.Wait()
			atAll.print(t, "while one replica is separated")
			atOthers.print(t, "meanwhile, agents at the other replicas")
			if got := separated.metric(t, "caddy_mcp_store_up"); got != "0" {
				t.Errorf("caddy_mcp_store_up of the separated replica is %s, want 0", got)
			}
			for _, replica := range others.replicas {
				if got := replica.metric(t, "caddy_mcp_store_up"); got != "1" {
					t.Errorf("caddy_mcp_store_up of another replica is %s, want 1", got)
				}
			}
			f.end(link)
			w.awaitStore(t)
			atAll.work(phaseOperations, 0, runOnce)
			atAll.print(t, "afterwards")
			newAgents := newAgentGroup(t, w, 2*faultAgents, 3*faultAgents)
			defer newAgents.close()
			newAgents.work(phaseOperations, 0, runOnce)
			newAgents.print(t, "afterwards, new agents")
		})
	}
}

// TestPartitionOfIdleReplica separates an idle replica from Redis. With its next request, it learns
// what the others have published meanwhile.
func TestPartitionOfIdleReplica(t *testing.T) {
	parallel(t)
	redis := replicastest.StartRedis(t)
	link := newRelay(t, redis.Addr, 0)
	w := startReplicasAt(t, []string{"redis://" + link.addr, "redis://" + redis.Addr})
	separated, other := w.replicas[0], w.replicas[1]
	defer connections.CloseIdleConnections()
	c := newRoamingClient(t, 0, false, separated)
	c.mustCall(t, "legacy__echo", `{"text":"before"}`)
	link.hold()
	c.useReplica(other).end(t)
	link.cut()
	await.Until(t, "the session to end at the separated replica", func() bool {
		return c.useReplica(separated).Start(t.Context(), "tools/list", "{}").Finish().Status == http.StatusNotFound
	})
}

// TestRedisIsFull has a Redis without free memory. Replicas keep their originals, but cannot share
// them. Everything else is as usual, and afterwards this is, too.
func TestRedisIsFull(t *testing.T) {
	parallel(t)
	referenceOf(t)
	redis := replicastest.StartRedis(t)
	all := startReplicas(t, 4, "redis://"+redis.Addr)
	w, late := all.balance(t, all.replicas[:3]...), all.replicas[3] // restarted below, without any state
	c := newAgentGroup(t, w, 0, faultAgents)
	defer c.close()
	c.work(phaseOperations, 0, runOnce)
	expect(t, redis, "+OK", "CONFIG", "SET", "maxmemory", "1")
	c.work(phaseOperations, 0, runWhileFull)
	c.print(t, "while Redis is full")
	for _, replica := range w.replicas {
		if got := replica.metric(t, "caddy_mcp_store_up"); got != "1" {
			t.Errorf("caddy_mcp_store_up with a full store is %s, want 1", got)
		}
		if got := replica.metric(t, `caddy_mcp_store_operations_total{operation="keep",outcome="full"}`); got == "" {
			t.Error("the metrics do not show that the store is full")
		}
		if !replica.store(t).Full {
			t.Error("the overview does not show that the store is full")
		}
		replica.logged(t, "shared store is full")
	}
	ending := newRoamingClient(t, 0, false, w.replicas[0])
	ending.useReplica(w.replicas[1]).mustCall(t, "legacy__echo", `{"text":"before"}`)
	ending.useReplica(w.replicas[0]).end(t)
	await.Until(t, "the session to end at the other replica", func() bool {
		return ending.useReplica(w.replicas[1]).Start(t.Context(), "tools/list", "{}").Finish().Status == http.StatusNotFound
	})
	late.kill()
	late.start(t)
	if got := ending.useReplica(late).Start(t.Context(), "tools/list", "{}").Finish(); got.Status != http.StatusNotFound {
		t.Errorf("at a restarted replica: got %d %s %v, want 404", got.Status, got.Body, got.Err)
	}
	expect(t, redis, "+OK", "CONFIG", "SET", "maxmemory", "0")
	c.work(phaseOperations, 0, runOnce)
	c.print(t, "afterwards")
}

// TestRedisIsSlow delays all data from and to Redis.
func TestRedisIsSlow(t *testing.T) {
	parallel(t)
	referenceOf(t)
	redis := replicastest.StartRedis(t)
	var stores []string
	for range 3 {
		stores = append(stores, "redis://"+newRelay(t, redis.Addr, 100*time.Millisecond).addr)
	}
	c := newAgentGroup(t, startReplicasAt(t, stores), 0, faultAgents)
	defer c.close()
	c.work(phaseOperations/2, 0, runOnce) // all agents together run every operation
	c.print(t, "while Redis is slow")
}
