//go:build linux

package replicas

import (
	"bufio"
	"crypto/rand"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
)

// A cost is a number of Redis commands of the replicas, by kind.
type cost struct{ scripts, reads, messages, others int }

func (c cost) since(before cost) cost {
	return cost{c.scripts - before.scripts, c.reads - before.reads, c.messages - before.messages, c.others - before.others}
}

// A monitor counts Redis commands.
type monitor struct {
	redis *replicastest.Redis

	mu   sync.Mutex
	cost cost
	mark string // last line with an ECHO
}

func newMonitor(t *testing.T, redis *replicastest.Redis) *monitor {
	t.Helper()
	conn, err := net.Dial("tcp", redis.Addr)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(conn, "MONITOR\r\n")
	lines := bufio.NewReader(conn)
	if line, err := lines.ReadString('\n'); line != "+OK\r\n" {
		t.Fatal(line, err)
	}
	m := &monitor{redis: redis}
	var reading sync.WaitGroup
	reading.Go(func() {
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				return
			}
			m.countCommand(line)
		}
	})
	t.Cleanup(func() {
		conn.Close()
		reading.Wait()
	})
	return m
}

var monitored = regexp.MustCompile(`^\+\S+ \[\d+ (\S+)\] "(\w+)"`)

// countCommand counts a command.
func (m *monitor) countCommand(line string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	found := monitored.FindStringSubmatch(line)
	if found == nil || found[1] == "lua" { // run by a script
		return
	}
	switch strings.ToLower(found[2]) {
	case "evalsha":
		m.cost.scripts++
	case "mget":
		m.cost.reads++
	case "publish":
		m.cost.messages++
	case "hello", "client", "select", "ping", "subscribe", "unsubscribe": // management of connections
	case "echo":
		m.mark = line
	case "keys": // from this test
	default:
		m.cost.others++
	}
}

// now returns the commands so far.
func (m *monitor) now(t *testing.T) (c cost) {
	t.Helper()
	mark := rand.Text()
	m.redis.Do("ECHO", mark)
	await.Until(t, "the monitor", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		c = m.cost
		return strings.Contains(m.mark, mark)
	})
	return c
}

// TestCost counts the Redis commands of calls, as documented in docs/scale.md.
func TestCost(t *testing.T) {
	redis := replicastest.StartRedis(t)
	m := newMonitor(t, redis)
	w := startReplicas(t, 2, "redis://"+redis.Addr)
	w.servers.legacy.Forgetful = false
	a, b := w.replicas[0], w.replicas[1]
	defer connections.CloseIdleConnections()
	const times = 10
	masking := len(allServers) + 1 // servers with a mask, including asker
	legacy, modern := newRoamingClient(t, 0, false, a), newRoamingClient(t, 1, true, a)
	both := []*roamingClient{legacy, modern}
	signer := &mcpclient.Client{Modern: true, Capabilities: "{}"}
	signed := func(t *testing.T) string {
		t.Helper()
		body, headers := signer.Message(`"1"`, "tools/call", toolCall("modern__echo", `{"text":"x"}`))
		headers = append(headers, sign(0, "/signed/mcp", body))
		for _, want := range []int{http.StatusOK, http.StatusUnauthorized} {
			if got := post(a.url+"/signed/mcp", body, headers...); got.Status != want {
				t.Fatalf("%d %s %v, want %d", got.Status, got.Body, got.Err, want)
			}
		}
		return body
	}
	var handles []string
	cut := func(t *testing.T, n int) {
		t.Helper()
		got := modern.useReplica(a).mustCall(t, "modern__echo", fmt.Sprintf(`{"text":"%d %s"}`, len(handles),
			strings.Repeat("x", n)))
		handles = append(handles, originalID.FindString(got.Raw))
	}
	recover := func(t *testing.T, replica *caddy, handle string) {
		t.Helper()
		modern.useReplica(replica).mustCall(t, "recover_observation", `{"id":"`+handle+`"}`)
	}
	// Make scripts, sessions, lists and connections available first.
	for _, replica := range w.replicas {
		for _, c := range both {
			c.useReplica(replica).mustCall(t, "modern__echo", `{"text":"x"}`)
		}
	}
	signed(t)
	newRoamingClient(t, 2, false, a).end(t)
	newRoamingClient(t, 2, true, a).call(t, "modern__fail", `{"code":-32050,"message":"failed"}`)
	cut(t, 10_000)
	await.Until(t, "the original", func() bool { return redis.Do("KEYS", "*:ends") != "*0" })

	for _, test := range []struct {
		name string
		run  func(*testing.T)
		want cost
	}{
		{"calls, lists, resources and prompts", func(t *testing.T) {
			for range times {
				for _, c := range both {
					for _, replica := range w.replicas {
						c.useReplica(replica).mustCall(t, "legacy__echo", `{"text":"x"}`)
						c.Start(t.Context(), "tools/list", "{}").Finish()
						c.Start(t.Context(), "resources/read", `{"uri":`+quote(resourceAlias("modern", "modern:///data"))+`}`).Finish()
						c.Start(t.Context(), "prompts/get", `{"name":"legacy__p","arguments":{"who":"x"}}`).Finish()
					}
				}
			}
		}, cost{}},
		{"an original", func(t *testing.T) {
			for range times {
				cut(t, 10_000)
			}
		}, cost{scripts: times}},
		{"an original, recovered at the same replica", func(t *testing.T) { recover(t, a, handles[times]) }, cost{}},
		{"an original, recovered at another replica", func(t *testing.T) { recover(t, b, handles[times]) },
			cost{reads: masking}},
		{"an original, recovered there again", func(t *testing.T) { recover(t, b, handles[times]) }, cost{}},
		{"an original of 600,000 bytes", func(t *testing.T) { cut(t, 600_000) }, cost{scripts: 3}},
		{"a rate", func(t *testing.T) {
			c := newRoamingClient(t, 3, true, a)
			for i := range smallRate {
				c.useReplica(w.replicas[i%2]).call(t, "modern__fail", `{"code":-32050,"message":"failed"}`)
			}
		}, cost{scripts: smallRate}},
		{"a signed request, and a replay at the same replica", func(t *testing.T) { signed(t) }, cost{scripts: 1}},
		{"a session starts", func(t *testing.T) { legacy = newRoamingClient(t, 4, false, a) }, cost{}},
		{"a session, used at another replica", func(t *testing.T) {
			for range times {
				legacy.useReplica(b).mustCall(t, "legacy__echo", `{"text":"x"}`)
			}
		}, cost{reads: 1}},
		{"a session sets a log level", func(t *testing.T) {
			legacy.useReplica(b).Start(t.Context(), "logging/setLevel", `{"level":"debug"}`).Finish()
		}, cost{scripts: 2, reads: 1, messages: 1}},
		{"a session subscribes", func(t *testing.T) {
			if got := legacy.useReplica(b).Start(t.Context(), "resources/subscribe",
				`{"uri":`+quote(resourceAlias("modern", "modern:///data"))+`}`).Finish(); got.Result == nil {
				t.Error(got.Body)
			}
		}, cost{scripts: 2, reads: 1, messages: 2}},
		{"a call is cancelled at another replica", func(t *testing.T) {
			x := legacy.useReplica(a).Start(t.Context(), "tools/call", toolCall("legacy__hang", "{}"))
			defer x.Cancel()
			await.Until(t, "the call", func() bool { return len(w.servers.legacy.Seen("hanging")) > 0 })
			if err := legacy.useReplica(b).Notify(t.Context(),
				`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+x.ID+`}}`); err != nil {
				t.Fatal(err)
			}
			await.Until(t, "the end of the call", func() bool { return len(w.servers.legacy.Seen("cancelled")) > 0 })
		}, cost{messages: 1}},
		{"two server requests, answered at another replica, legacy",
			func(t *testing.T) { legacy.respondAtOther(t, "modern", a, b) }, cost{messages: 2}},
		{"a session ends", func(t *testing.T) { legacy.useReplica(b).end(t) }, cost{scripts: 2, messages: 1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := m.now(t)
			test.run(t)
			// some commands are delayed
			await.Within(await.Patience/30, func() bool { return m.now(t).since(before) == test.want })
			if got := m.now(t).since(before); got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

// TestCallsWithoutStore checks that calls that do not need the store do not use it, so that an
// unresponsive Redis does not delay them.
func TestCallsWithoutStore(t *testing.T) {
	redis := replicastest.StartRedis(t)
	w := startReplicas(t, 1, "redis://"+redis.Addr)
	defer connections.CloseIdleConnections()
	legacy, modern := newRoamingClient(t, 0, false, w.replicas[0]), newRoamingClient(t, 1, true, w.replicas[0])
	call := func() {
		for _, c := range []*roamingClient{legacy, modern} {
			c.mustCall(t, "legacy__echo", `{"text":"x"}`)
			c.mustCall(t, "child__echo", `{"text":"x"}`)
		}
	}
	call()
	before := w.replicas[0].sum(t, "caddy_mcp_store_operations_total")
	redis.Pause()
	defer redis.Continue()
	for range 50 {
		call()
	}
	if tried := w.replicas[0].sum(t, "caddy_mcp_store_operations_total") - before; tried != 0 {
		t.Errorf("the store was used %v times, want 0", tried)
	}
}
