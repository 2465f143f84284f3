//go:build linux

package replicas

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
)

// TestAcross starts something at one replica and continues at another, as can happen behind a
// balancer.
func TestAcross(t *testing.T) {
	redis := replicastest.StartRedis(t)
	w := startReplicas(t, 2, "redis://"+redis.Addr)
	w.servers.legacy.Forgetful = false
	a, b := w.replicas[0], w.replicas[1]
	defer connections.CloseIdleConnections()
	for i, test := range []struct {
		name   string
		modern bool
		run    func(*testing.T, *roamingClient)
	}{
		{"a session ends", false, func(t *testing.T, c *roamingClient) {
			c.useReplica(b).mustCall(t, "legacy__echo", `{"text":"before"}`)
			c.useReplica(a).end(t)
			await.Until(t, "the session to end at the other replica", func() bool {
				return c.useReplica(b).Start(t.Context(), "tools/list", "{}").Finish().Status == http.StatusNotFound
			})
		}},
		{"a list changes", false, func(t *testing.T, c *roamingClient) {
			// A replica subscribes to its children for clients that have streams there. Another session of
			// this client has one.
			other := newRoamingClient(t, c.number, false, a)
			other.mustCall(t, "child__echo", `{}`)
			otherStream := other.listen(t)
			defer otherStream.Cancel()
			other.Start(t.Context(), "tools/list", "{}").Finish()
			stream := c.useReplica(b).listen(t)
			c.Start(t.Context(), "tools/list", "{}").Finish() // otherwise there is no list that can change
			defer stream.Cancel()
			c.useReplica(a).mustCall(t, "child__add-tool", `{"name":"more"}`)
			await.Until(t, "the other replica to notify the client", func() bool {
				select {
				case m := <-stream.Messages:
					return m.Method == "notifications/tools/list_changed"
				case <-time.After(time.Second):
					return false
				}
			})
		}},
		{"a call is cancelled", false, func(t *testing.T, c *roamingClient) {
			x := c.useReplica(a).Start(t.Context(), "tools/call", toolCall("legacy__hang", "{}"))
			defer x.Cancel()
			await.Until(t, "the call", func() bool { return len(w.servers.legacy.Seen("hanging")) > 0 })
			if err := c.useReplica(b).Notify(t.Context(),
				`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+x.ID+`}}`); err != nil {
				t.Fatal(err)
			}
			await.Until(t, "the end of the call", func() bool { return len(w.servers.legacy.Seen("cancelled")) > 0 })
		}},
		{"a request of a child, legacy", false, func(t *testing.T, c *roamingClient) { c.respondAtOther(t, "asker", a, b) }},
		{"a request of a legacy server, legacy", false, func(t *testing.T, c *roamingClient) {
			c.respondAtOther(t, "legacy", a, b)
		}},
		{"a request of a modern server, legacy", false, func(t *testing.T, c *roamingClient) {
			c.respondAtOther(t, "modern", a, b)
		}},
		{"a request of a child, modern", true, func(t *testing.T, c *roamingClient) { c.respondAtOther(t, "asker", a, b) }},
		{"a request of a legacy server, modern", true, func(t *testing.T, c *roamingClient) {
			c.respondAtOther(t, "legacy", a, b)
		}},
		{"a request of a modern server, modern", true, func(t *testing.T, c *roamingClient) {
			c.respondAtOther(t, "modern", a, b)
		}},
		{"an original is recovered immediately", true, func(t *testing.T, c *roamingClient) {
			for i := range 50 {
				got := c.useReplica(a).mustCall(t, "legacy__echo", fmt.Sprintf(`{"text":"%d %s"}`, i, strings.Repeat("long ", 500)))
				c.useReplica(b).mustCall(t, "recover_observation", `{"id":"`+originalID.FindString(got.Raw)+`"}`)
			}
		}},
		{"a large original", true, func(t *testing.T, c *roamingClient) {
			text := strings.Repeat("0123456789", 400_000)
			got := c.useReplica(a).mustCall(t, "legacy__echo", `{"text":"`+text+`"}`)
			read := c.useReplica(b).Start(t.Context(), "resources/read", `{"uri":"proxy://observation/`+
				originalID.FindString(got.Raw)+`"}`).Finish()
			if !strings.Contains(read.Raw, text) {
				t.Errorf("got %d bytes: %.300s", len(read.Raw), read.Raw)
			}
		}},
		{"another client's original", true, func(t *testing.T, c *roamingClient) {
			got := c.useReplica(a).mustCall(t, "legacy__echo", `{"text":"`+strings.Repeat("secret ", 500)+`"}`)
			id := originalID.FindString(got.Raw)
			c.useReplica(b).mustCall(t, "recover_observation", `{"id":"`+id+`"}`)
			other := newRoamingClient(t, 39, true, b)
			if got := other.call(t, "recover_observation", `{"id":"`+id+`"}`); !strings.Contains(got.Raw, `"isError":true`) &&
				got.Error == nil || strings.Contains(got.Raw, "secret") {
				t.Errorf("got %.300s, want an error without the text", got.Raw)
			}
		}},
		{"a hosted template", true, func(t *testing.T, c *roamingClient) {
			res, err := http.Post(a.admin+"/mcp_gateway/templates", "application/json",
				strings.NewReader(`{"gateway":"gateway","name":"runbook","uriTemplate":"runbook://{service}","text":"Ask `+
					`{service}."}`))
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			text, _ := io.ReadAll(res.Body)
			if res.StatusCode != http.StatusCreated {
				t.Fatalf("create the template: %d %s", res.StatusCode, text)
			}
			await.Until(t, "the template at the other replica", func() bool {
				return strings.Contains(c.useReplica(b).Start(t.Context(), "resources/templates/list", "{}").Finish().Raw,
					"runbook")
			})
		}},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, newRoamingClient(t, i, test.modern, a)) })
	}
}

// A roamingClient is a client that can switch between replicas.
type roamingClient struct {
	*mcpclient.Client
	*agent
}

func newRoamingClient(t *testing.T, number int, modern bool, first *caddy) *roamingClient {
	t.Helper()
	client := newClient(number, modern)
	c := &roamingClient{client, &agent{number: number}}
	c.useReplica(first)
	if !modern {
		if _, err := c.Initialize(t.Context(), mcpclient.Legacy); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// useReplica sends the next requests to a replica. No request may be in progress.
func (c *roamingClient) useReplica(replica *caddy) *roamingClient {
	c.URL = replica.url + "/mcp"
	return c
}

// end ends the session.
func (c *roamingClient) end(t *testing.T) {
	t.Helper()
	req, err := mcpclient.NewRequest(t.Context(), http.MethodDelete, c.URL, "", c.Headers...)
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.HTTP.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
}

// call calls a tool that makes no requests to the client.
func (c *roamingClient) call(t *testing.T, tool, arguments string) mcpclient.Response {
	t.Helper()
	got := c.Start(t.Context(), "tools/call", toolCall(tool, arguments)).Finish()
	if got.Err != nil {
		t.Fatal(got.Err)
	}
	return got
}

// mustCall calls a tool that must succeed.
func (c *roamingClient) mustCall(t *testing.T, tool, arguments string) mcpclient.Response {
	t.Helper()
	got := c.call(t, tool, arguments)
	if got.Result == nil || strings.Contains(got.Raw, `"isError":true`) {
		t.Fatalf("%s at %s: got %d %.500s", tool, c.URL, got.Status, got.Body)
	}
	return got
}

// listen opens the GET stream of the session.
func (c *roamingClient) listen(t *testing.T) *mcpclient.Exchange {
	t.Helper()
	x := c.Listen(t.Context())
	<-x.Opened
	if x.Err != nil || x.Status != http.StatusOK {
		t.Fatalf("open the stream: got %d %v", x.Status, x.Err)
	}
	return x
}

// respondAtOther calls a tool at one replica and responds to its requests at another one.
func (c *roamingClient) respondAtOther(t *testing.T, server string, first, second *caddy) {
	t.Helper()
	requests := 0
	params := toolCall(server+"__ask", `{"method":"elicitation/create","params":{"message":"Who?",`+
		`"requestedSchema":{"type":"object","properties":{}}},"times":2}`)
	attempt := params
	var got mcpclient.Response
	for range 3 {
		got = c.Respond(t.Context(), c.useReplica(first).begin(t, attempt),
			func(method string, params json.RawMessage) string {
				requests++
				c.useReplica(second)
				return c.respond(method, string(params))
			})
		if !c.Modern || !strings.Contains(got.Raw, `"input_required"`) {
			break
		}
		requests++
		attempt = got.Input(t).Retry(params, func(method string, params json.RawMessage) string {
			return c.respond(method, string(params))
		})
		first, second = second, first
	}
	want := `[{\"action\":\"accept\",\"content\":{}},{\"action\":\"accept\",\"content\":{}}]`
	if !strings.Contains(got.Raw, want) || requests != 2 {
		t.Errorf("%d requests, want 2; got %d %.500s, error %v", requests, got.Status, got.Body, got.Err)
	}
}

// begin starts a call and returns when its response has started, so that the next request can go to
// another replica.
func (c *roamingClient) begin(t *testing.T, params string) *mcpclient.Exchange {
	t.Helper()
	x := c.Start(t.Context(), "tools/call", params)
	<-x.Opened
	return x
}

// TestSame has agents do the same with one process and with three replicas, and compares the
// responses.
func TestSame(t *testing.T) {
	referenceOf(t)
	redis := replicastest.StartRedis(t)
	c := newAgentGroup(t, startReplicas(t, 3, "redis://"+redis.Addr), 0, maxAgents)
	defer c.close()
	c.work(byLength(60, 200), 0, runOnce)
	c.print(t, "three replicas")
}

// TestUser checks that the Redis user in docs/scale.md has all permissions that are needed.
func TestUser(t *testing.T) {
	referenceOf(t)
	redis := replicastest.StartRedis(t)
	c := newAgentGroup(t, startReplicas(t, 3, "redis://"+redis.Addr, asUser(t, redis)...), 0, faultAgents)
	defer c.close()
	c.work(phaseOperations, 0, runOnce)
	c.print(t, "with its own Redis user")
}

// asUser creates that user, and returns the lines with which replicas use it.
func asUser(t *testing.T, servers ...*replicastest.Redis) (lines []string) {
	t.Helper()
	page, err := os.ReadFile("../../../docs/scale.md")
	if err != nil {
		t.Fatal(err)
	}
	rule := regexp.MustCompile(`(?m)^ACL SETUSER .*$`).FindString(string(page))
	for _, server := range servers {
		expect(t, server, "+OK", strings.Fields(rule)...)
	}
	return []string{"username mcp", "password password"}
}

// TestReference runs one process twice, which shows that records are comparable.
func TestReference(t *testing.T) {
	c := newAgentGroup(t, startSingle(t), 0, faultAgents)
	defer c.close()
	c.work(byLength(60, 200), 0, runOnce)
	c.print(t, "one process, second run")
}

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
