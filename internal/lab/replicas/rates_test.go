//go:build linux

package replicas

import (
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
)

// TestRates has one client use up its rate at three replicas.
func TestRates(t *testing.T) {
	redis := replicastest.StartRedis(t)
	w := startReplicas(t, 3, "redis://"+redis.Addr)
	defer connections.CloseIdleConnections()
	client := &mcpclient.Client{Modern: true, Capabilities: "{}"}
	body, headers := client.Message(`"1"`, "tools/call", toolCall("modern__echo", `{"text":"x"}`))
	headers = append(headers, "Authorization: Bearer "+agentToken(0))
	// flood makes concurrent calls until enough are refused, and returns how many succeeded.
	flood := func(url string, isEnough func(refused int64) bool) (passed int64) {
		var good, refused atomic.Int64
		var running sync.WaitGroup
		for range atOnce {
			running.Go(func() {
				for !isEnough(refused.Load()) {
					switch got := post(url, body, headers...); {
					case got.Err == nil && got.Status == http.StatusOK:
						good.Add(1)
					case got.Err == nil && got.Status == http.StatusTooManyRequests:
						refused.Add(1)
					default:
						t.Errorf("got %d %s %v, want 200 or 429", got.Status, got.Body, got.Err)
						return
					}
				}
			})
		}
		running.Wait()
		return good.Load()
	}
	t.Run("without refill", func(t *testing.T) {
		passed := flood(w.url+"/still/mcp", func(refused int64) bool { return refused > stillRate })
		t.Logf("%d of %d passed", passed, stillRate)
		if passed > stillRate || passed < stillRate*99/100 {
			t.Errorf("%d passed, want at most %d and at least 99 %% of it", passed, stillRate)
		}
	})
	t.Run("with refill", func(t *testing.T) {
		began := time.Now()
		end := began.Add(time.Duration(byLength(3, 20)) * time.Second)
		passed := flood(w.url+"/flowing/mcp", func(int64) bool { return time.Now().After(end) })
		// When calls passed at the start and at the end of that time is known only to within one call.
		most := flowingRate + flowingRate*time.Since(began).Seconds()
		least := flowingRate + flowingRate*end.Sub(began).Seconds() - float64(atOnce)
		t.Logf("%d passed in %s, expected %.0f to %.0f", passed, time.Since(began), least, most)
		if float64(passed) > most*1.01 || float64(passed) < least*0.99 {
			t.Errorf("%d passed, want %.0f to %.0f", passed, least, most)
		}
	})
}

// TestNonces replays signed requests. Each is valid once.
func TestNonces(t *testing.T) {
	redis := replicastest.StartRedis(t)
	w := startReplicas(t, 3, "redis://"+redis.Addr)
	defer connections.CloseIdleConnections()
	client := &mcpclient.Client{Modern: true, Capabilities: "{}"}
	body, headers := client.Message(`"1"`, "tools/call", toolCall("modern__echo", `{"text":"x"}`))
	requests, replays := byLength(20, 100), byLength(50, 100)
	accepted := make([]atomic.Int64, requests)
	slots := make(chan struct{}, atOnce)
	var running sync.WaitGroup
	for i := range requests {
		signature := sign(i%maxAgents, "/signed/mcp", body)
		for range replays {
			slots <- struct{}{}
			running.Go(func() {
				defer func() { <-slots }()
				switch got := post(w.url+"/signed/mcp", body, append(headers[:len(headers):len(headers)], signature)...); {
				case got.Err == nil && got.Status == http.StatusOK:
					accepted[i].Add(1)
				case got.Err != nil || got.Status != http.StatusUnauthorized:
					t.Errorf("got %d %s %v, want 200 or 401", got.Status, got.Body, got.Err)
				}
			})
		}
	}
	running.Wait()
	for i := range accepted {
		if n := accepted[i].Load(); n != 1 {
			t.Errorf("request %d was accepted %d times, want once", i, n)
		}
	}
	t.Logf("%d requests, each sent %d times", requests, replays)
}
