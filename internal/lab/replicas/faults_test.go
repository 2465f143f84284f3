//go:build linux

package replicas

import (
	"testing"
	"time"

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
	c := newCrowd(t, w, 0, meetFault)
	defer c.leave()
	over := make(chan struct{})
	go func() {
		defer close(over)
		c.work(4*share, 0, again)
	}()
	for _, replica := range w.replicas {
		c.awaitMore(int64(meetFault*share/4), over)
		c.died.Store(time.Now().UnixNano())
		replica.kill()
		c.awaitMore(int64(meetFault*share/4), over)
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
	w := several(t, 3, set.addresses, "sentinel mymaster")
	c := newCrowd(t, w, 0, meetFault)
	defer c.leave()
	c.work(share, 0, once)
	set.master.Stop()
	c.work(share, 5*time.Second/time.Duration(share), whileAway)
	c.print(t, "while Sentinel fails over")
	w.awaitStore(t)
	c.work(share, 0, once)
	c.print(t, "then")
	strangers := newCrowd(t, w, meetFault, 2*meetFault)
	defer strangers.leave()
	strangers.work(share, 0, once)
	strangers.print(t, "then, agents that were not there before")
}
