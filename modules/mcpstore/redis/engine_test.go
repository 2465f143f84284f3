package redis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// openEngine returns an engine with these settings. It is closed when the test ends.
func openEngine(t testing.TB, settings Redis) replicas.Engine {
	t.Helper()
	if err := settings.Provision(caddy.Context{}); err != nil {
		t.Fatal(err)
	}
	e, err := settings.Open(zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

func TestServer(t *testing.T) {
	server := replicastest.StartRedis(t)
	replicastest.TestEngine(t, func() replicas.Engine { return openEngine(t, Redis{URL: "redis://" + server.Addr}) })
}

// wantUnusable checks that an operation fails before or at its deadline, and returns the error.
func wantUnusable(t testing.TB, e replicas.Engine) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := e.Get(ctx, "test:v")
	if err == nil {
		t.Fatal("the engine is usable")
	}
	return err
}

// waitUsable waits until an engine can be used.
func waitUsable(t testing.TB, e replicas.Engine) {
	t.Helper()
	await.Until(t, "the engine is usable", func() bool { return try(t, e) == nil })
}

// try runs an operation of an engine.
func try(t testing.TB, e replicas.Engine) error {
	ctx, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
	defer cancel()
	return e.Set(ctx, "test:v", []byte("1"), time.Hour)
}

func TestServerComesLater(t *testing.T) {
	server := replicastest.StartRedis(t)
	server.Stop()
	e := openEngine(t, Redis{URL: "redis://" + server.Addr})
	if err := wantUnusable(t, e); !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("got %v, want connection refused", err)
	}
	server.Restart()
	waitUsable(t, e)
}

func TestCloseWithoutServer(t *testing.T) {
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(replicastest.FreePort(t)))
	for _, settings := range []Redis{
		{URL: "redis://" + address},
		{URL: "redis://" + address, Cluster: true},
		{URL: "redis://" + address, Sentinel: &Sentinel{Master: "shared"}},
	} {
		e := openEngine(t, settings)
		_ = wantUnusable(t, e)
		e.Close()
		_ = wantUnusable(t, e)
	}
}

// subscribe subscribes to a topic, and returns a counter of its messages.
func subscribe(t *testing.T, e replicas.Engine, topic string) *atomic.Int64 {
	t.Helper()
	return subscribeWithLoss(t, e, topic, func() {})
}

// subscribeWithLoss is like subscribe, but calls lost when messages may have been lost.
func subscribeWithLoss(t *testing.T, e replicas.Engine, topic string, lost func()) *atomic.Int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	received := new(atomic.Int64)
	stop, err := e.Subscribe(ctx, topic, func(message []byte) {
		if message == nil {
			lost()
		} else {
			received.Add(1)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return received
}

// waitForMessage publishes messages until one more is received.
func waitForMessage(t *testing.T, e replicas.Engine, topic string, received *atomic.Int64) {
	t.Helper()
	before := received.Load()
	await.Until(t, "a message is received", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _ = e.Publish(ctx, topic, []byte("1"))
		return received.Load() > before
	})
}

func TestServerRestarts(t *testing.T) {
	server := replicastest.StartRedis(t)
	e := openEngine(t, Redis{URL: "redis://" + server.Addr})
	var lost atomic.Int64
	received := subscribeWithLoss(t, e, "test:{a}", func() { lost.Add(1) })
	waitForMessage(t, e, "test:{a}", received)
	for i := range 3 {
		server.Stop()
		_ = wantUnusable(t, e)
		server.Restart()
		waitUsable(t, e)
		// The server has lost the scripts, so the engine sends them again.
		if swapped, err := e.Swap(t.Context(), "test:s", nil, []byte("1"), 0); !swapped || err != nil {
			t.Errorf("swapped %t, %v", swapped, err)
		}
		waitForMessage(t, e, "test:{a}", received)
		if n := lost.Load(); n != int64(i+1) {
			t.Errorf("%d notices that messages may have been lost, want %d", n, i+1)
		}
	}
}

func TestServerStalls(t *testing.T) {
	server := replicastest.StartRedis(t)
	e := openEngine(t, Redis{URL: "redis://" + server.Addr})
	received := subscribe(t, e, "test:{a}")
	waitUsable(t, e)
	server.Pause()
	defer server.Continue()
	before := runtime.NumGoroutine()
	var all sync.WaitGroup
	for range 4 * maxPending {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if _, err := e.Get(ctx, "test:v"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a stalled server responds: %v", err)
			}
		})
	}
	all.Wait()
	// Connections may have started some goroutines meanwhile.
	if now := runtime.NumGoroutine(); now > before+maxPending+20 {
		t.Errorf("%d goroutines left after %d operations", now-before, 4*maxPending)
	}
	// The engine closes the connections, which ends all pending operations.
	await.Until(t, "nothing is pending", func() bool { return len(e.(*engine).pending) == 0 })
	_ = wantUnusable(t, e)
	server.Continue()
	waitUsable(t, e)
	waitForMessage(t, e, "test:{a}", received)
}

func TestServerIsFull(t *testing.T) {
	server := replicastest.StartRedis(t)
	e := openEngine(t, Redis{URL: "redis://" + server.Addr})
	ctx := t.Context()
	value := []byte("1")
	for _, key := range []string{"test:0", "test:1"} {
		if err := e.Set(ctx, key, value, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	expect(t, server, "+OK", "CONFIG", "SET", "maxmemory", "1")
	// A full server still accepts ends of sessions, nonces and rates, which are small and needed.
	if err := e.Set(ctx, "test:2", value, time.Hour); err != nil {
		t.Errorf("set: %v", err)
	}
	if swapped, err := e.Swap(ctx, "test:swap", nil, value, time.Hour); !swapped || err != nil {
		t.Errorf("swapped %t, %v", swapped, err)
	}
	err := e.Keep(ctx, replicas.Entry{Owner: "test:o", Key: "test:kept", Value: value, TTL: time.Hour,
		OwnerBytes: 1 << 30})
	if !errors.Is(err, replicas.ErrFull) {
		t.Errorf("keep: got %v, want %v", err, replicas.ErrFull)
	}
	for range 2 {
		if taken, wait, err := e.Spend(ctx,
			[]replicas.Bucket{{Key: "test:b", Rate: 1, Burst: 5, Want: 1}}); len(taken) != 1 || err != nil {
			t.Errorf("spent %v, %s, %v", taken, wait, err)
		}
	}
	if deleted, err := e.Delete(ctx, "test:0"); !deleted || err != nil {
		t.Errorf("deleted %t, %v", deleted, err)
	}
	if swapped, err := e.Swap(ctx, "test:1", value, nil, 0); !swapped || err != nil {
		t.Errorf("removed %t, %v", swapped, err)
	}
}

func TestServerRefuses(t *testing.T) {
	server := replicastest.StartRedis(t, "--user", "limited", "on", ">good-secret", "~*", "&*", "-@all", "+hello",
		"+ping", "+get", "+mget")
	for name, test := range map[string]struct {
		settings Redis
		want     string
	}{
		"wrong password": {Redis{URL: "redis://limited:bad-secret@" + server.Addr}, "WRONGPASS"},
		"unknown user":   {Redis{URL: "redis://" + server.Addr, Username: "other", Password: "bad-secret"}, "WRONGPASS"},
		"no permission":  {Redis{URL: "redis://limited:good-secret@" + server.Addr}, "NOPERM"},
	} {
		t.Run(name, func(t *testing.T) {
			err := try(t, openEngine(t, test.settings))
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
}

// A store stays down if its user may use keys but not channels, and the error says why.
func TestUserWithoutChannels(t *testing.T) {
	user := slices.Concat([]string{"--user", "limited", "on", ">secret"}, strings.Fields(rules), []string{"resetchannels"})
	server := replicastest.StartRedis(t, user...)
	e := openEngine(t, Redis{URL: "redis://limited:secret@" + server.Addr})
	waitUsable(t, e)
	store := replicastest.Replica(t, e)
	const want = "NOPERM this user has no permissions to access one of the channels"
	for range 3 {
		if err := store.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ping: %v", err)
		}
		if err := store.Cause(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("cause %v", err)
		}
	}
	if n := store.Outages(); n != 1 {
		t.Errorf("%d outages, want 1", n)
	}
	expect(t, server, "+OK", "ACL", "SETUSER", "limited", "&test:*")
	await.Until(t, "the store is up", store.Up)
}

func TestServerIsReplica(t *testing.T) {
	server := replicastest.StartRedis(t)
	e := openEngine(t, Redis{URL: "redis://" + server.Addr})
	waitUsable(t, e)
	store := replicastest.Replica(t, e)
	server.Do("REPLICAOF", "127.0.0.1", "1")
	space := store.Space("test")
	if err := space.Set(t.Context(), "o", "n", nil, time.Hour); !errors.Is(err, replicas.ErrUnavailable) ||
		!strings.Contains(err.Error(), "READONLY") {
		t.Errorf("set at a replica: %v", err)
	}
	if store.Up() {
		t.Error("the store is up")
	}
	server.Do("REPLICAOF", "NO", "ONE")
	await.Until(t, "the store is up", store.Up)
	if err := space.Set(t.Context(), "o", "n", nil, time.Hour); err != nil {
		t.Error(err)
	}
}

func TestFailover(t *testing.T) {
	s := startSet(t)
	e := openEngine(t, s.settings())
	received := subscribe(t, e, "test:{a}")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := e.Set(ctx, "test:kept", []byte("1"), time.Hour); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the replica has the value", func() bool {
		return strings.Contains(s.replica.Do("EXISTS", "test:kept"), "1")
	})
	s.master.Stop()
	_ = wantUnusable(t, e)
	waitUsable(t, e)
	waitForMessage(t, e, "test:{a}", received)
	ctx, cancel = context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	values, err := e.Get(ctx, "test:kept")
	if err != nil || fmt.Sprintf("%s", values) != "[1]" {
		t.Errorf("after the failover: %s, %v", values, err)
	}
	// The old master comes back as a replica.
	s.master.Restart()
	waitUsable(t, e)
}

// A relay forwards connections to a server, as the address of a Kubernetes Service does.
type relay struct {
	addr   string
	target atomic.Pointer[replicastest.Redis] // of new connections
	answer func(request []byte) []byte        // answers requests instead of the server; nil for none
}

func startRelay(t *testing.T, target *replicastest.Redis, answer func([]byte) []byte) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{addr: listener.Addr().String(), answer: answer}
	r.target.Store(target)
	var running sync.WaitGroup
	t.Cleanup(func() {
		_ = listener.Close()
		running.Wait()
	})
	running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", r.target.Load().Addr)
			if err != nil {
				_ = client.Close()
				continue
			}
			running.Go(func() {
				defer server.Close()
				r.forward(server, client)
			})
			running.Go(func() {
				defer client.Close()
				_, _ = io.Copy(client, server)
			})
		}
	})
	return r
}

// forward forwards the requests of a client.
func (r *relay) forward(server, client net.Conn) {
	for buffer := make([]byte, 64<<10); ; {
		n, err := client.Read(buffer)
		if err != nil {
			return
		}
		to, text := server, buffer[:n]
		if r.answer != nil {
			if answer := r.answer(text); answer != nil {
				to, text = client, answer
			}
		}
		if _, err := to.Write(text); err != nil {
			return
		}
	}
}

// An address may lead to another server after a failover, while the former master keeps its
// connections and only refuses writes.
func TestFailoverBehindAnAddress(t *testing.T) {
	before, after := replicastest.StartRedis(t), replicastest.StartRedis(t)
	address := startRelay(t, before, nil)
	e := openEngine(t, Redis{URL: "redis://" + address.addr})
	var lost atomic.Int64
	received := subscribeWithLoss(t, e, "test:{a}", func() { lost.Add(1) })
	for i := range 64 { // uses all connections
		if _, err := e.Get(t.Context(), fmt.Sprintf("test:{%d}", i)); err != nil {
			t.Fatal(err)
		}
	}
	address.target.Store(after)
	before.Do("REPLICAOF", "127.0.0.1", "1") // not of the other one, so that a message shows where the topic is
	waitUsable(t, e)
	for range 64 {
		if err := try(t, e); err != nil {
			t.Fatalf("a connection still leads to the former master: %v", err)
		}
	}
	await.Until(t, "the topic is at the new master", func() bool { return lost.Load() > 0 })
	waitForMessage(t, e, "test:{a}", received)
}

// Values that this version did not write, such as those of a newer one, are replaced. They do not
// make the store unavailable.
func TestForeignValues(t *testing.T) {
	server := replicastest.StartRedis(t)
	e := openEngine(t, Redis{URL: "redis://" + server.Addr})
	ctx := t.Context()
	foreign := func(key, kind string) {
		t.Helper()
		server.Do("DEL", key)
		switch kind {
		case "list":
			expect(t, server, ":1", "RPUSH", key, "1")
		case "hash":
			expect(t, server, ":1", "HSET", key, "", "many")
		default:
			expect(t, server, "+OK", "SET", key, kind)
		}
	}
	bucket := replicas.Bucket{Key: "test:{b}", Rate: 100, Burst: 5, Want: 1}
	for _, kind := range []string{"list", "hash", "", "text", "1 2 3", "nan 1", "-nan 1", "1 nan", "inf", "0 9e17"} {
		foreign(bucket.Key, kind)
		taken, wait, err := e.Spend(ctx, []replicas.Bucket{bucket})
		if taken != nil || wait > 10*time.Millisecond || err != nil {
			t.Errorf("spend with %q: %v, %s, %v", kind, taken, wait, err)
		}
		await.Until(t, "a token after "+kind, func() bool {
			taken, _, err := e.Spend(ctx, []replicas.Bucket{bucket})
			return err == nil && len(taken) == 1
		})
	}
	for _, kind := range []string{"list", "hash"} {
		foreign("test:{v}", kind)
		if values, err := e.Get(ctx, "test:{v}"); err != nil || values[0] != nil {
			t.Errorf("get of a %s: %q, %v", kind, values, err)
		}
		if swapped, err := e.Swap(ctx, "test:{v}", nil, []byte("1"), time.Hour); !swapped || err != nil {
			t.Errorf("swap of a %s: %t, %v", kind, swapped, err)
		}
		foreign("test:{v}", kind)
		if err := e.Set(ctx, "test:{v}", []byte("1"), time.Hour); err != nil {
			t.Errorf("set of a %s: %v", kind, err)
		}
	}
	entry := replicas.Entry{Owner: "test:{o}", Key: "test:{o}k", Value: []byte("1"), TTL: time.Hour, OwnerBytes: 300}
	for _, kind := range []string{"list", "hash", "text"} {
		for _, key := range []string{entry.Key, entry.Owner + ":ends", entry.Owner + ":sizes"} {
			foreign(key, kind)
			for _, name := range []string{"a", "b"} {
				entry.Key = "test:{o}" + name
				if err := e.Keep(ctx, entry); err != nil {
					t.Errorf("keep with a %s at %s: %v", kind, key, err)
				}
			}
			if values, err := e.Get(ctx, "test:{o}a", "test:{o}b"); err != nil || values[0] != nil || values[1] == nil {
				t.Errorf("kept with a %s at %s: %q, %v", kind, key, values, err)
			}
		}
	}
}

// A response with too few values is an error.
func TestMissingValues(t *testing.T) {
	address := startRelay(t, replicastest.StartRedis(t), func(request []byte) []byte {
		if bytes.Contains(request, []byte("MGET")) {
			return []byte("*0\r\n")
		}
		return nil
	})
	e := openEngine(t, Redis{URL: "redis://" + address.addr})
	waitUsable(t, e)
	if values, err := e.Get(t.Context(), "test:v"); err == nil {
		t.Errorf("got %q", values)
	}
}

// A response that breaks the protocol ends its connection, and not the process.
func TestBrokenProtocol(t *testing.T) {
	answer := new(atomic.Pointer[string])
	address := startRelay(t, replicastest.StartRedis(t), func(request []byte) []byte {
		if bytes.Contains(request, []byte("MGET")) {
			if text := answer.Load(); text != nil {
				return []byte(*text)
			}
		}
		return nil
	})
	e := openEngine(t, Redis{URL: "redis://" + address.addr})
	received := subscribe(t, e, "test:{a}")
	for _, text := range []string{
		"*1\r\n$-1\r\n*1\r\n$-1\r\n", // a response too many
		"_\r\n_\r\n",
		"+PONG\r\n+PONG\r\n",
		"-ERR max number of clients reached\r\n-ERR Protocol error\r\n",
		">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n",
		">3\r\n+ssubscribe\r\n$1\r\na\r\n:1\r\n",
		"*-5\r\n",
		"%-1\r\n",
		"$-2\r\n",
		"$99999999999\r\n",
		"$9223372036854775807\r\n",
		"%9223372036854775807\r\n",
		"*1000000000\r\n",
		"$?\r\n;-2\r\n",
		strings.Repeat("*1\r\n", 1<<16),
		strings.Repeat("*99999\r\n*0\r\n", 1<<10),
		"+" + strings.Repeat("a", 1<<20),
	} {
		waitUsable(t, e)
		answer.Store(&text)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		values, err := e.Get(ctx, "test:none")
		cancel()
		answer.Store(nil)
		if (err == nil) != (len(values) == 1 && values[0] == nil) { // the first of two responses may be in order
			t.Errorf("%.40q: got %q, %v", text, values, err)
		}
	}
	waitUsable(t, e)
	waitForMessage(t, e, "test:{a}", received)
}

// A server that runs a slow script refuses both UNSUBSCRIBE and the PING that follows it.
func TestUnsubscribeWhileBusy(t *testing.T) {
	server := replicastest.StartRedis(t, "--lua-time-limit", "1")
	e := openEngine(t, Redis{URL: "redis://" + server.Addr})
	stop, err := e.Subscribe(t.Context(), "test:{a}", func([]byte) {})
	if err != nil {
		t.Fatal(err)
	}
	topic := e.(*engine).topics["test:{a}"]
	script, err := net.Dial("tcp", server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer script.Close()
	if _, err := io.WriteString(script, "EVAL 'while true do end' 0\r\n"); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the server is busy", func() bool { return strings.HasPrefix(server.Do("PING"), "-BUSY") })
	stop()
	<-topic.ended
	expect(t, server, "+OK", "SCRIPT", "KILL")
	waitUsable(t, e)
	waitForMessage(t, e, "test:{b}", subscribe(t, e, "test:{b}"))
}
