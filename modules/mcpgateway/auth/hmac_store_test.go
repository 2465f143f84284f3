package auth

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/storetest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstore"
)

// hmacReplica returns a provider with its own nonces, as in another process.
func hmacReplica(t *testing.T, engine replicas.Engine) *HMAC {
	t.Helper()
	hmacSecrets(t)
	ctx := storetest.Replica(t, engine, mcpstore.App{})
	module, err := ctx.LoadModuleByID(string(HMAC{}.CaddyModule().ID), json.RawMessage(hmacConfig))
	if err != nil {
		t.Fatal(err)
	}
	h := module.(*HMAC)
	for name, client := range h.known { // providers in one process share nonces
		nonces := newNonceSet(client.nonces.key)
		t.Cleanup(func() { _ = nonces.Destruct() })
		h.known[name] = hmacClient{client.secret, nonces}
	}
	return h
}

func TestReplicasAcceptARequestOnce(t *testing.T) { // A77
	engine := replicastest.New()
	var all []*HMAC
	for range 3 {
		all = append(all, hmacReplica(t, engine))
	}
	for i := range 100 {
		call := hmacPing(fmt.Sprintf("nonce-%03d", i))
		var taken, used atomic.Int32
		var group sync.WaitGroup
		for g := range 12 {
			group.Go(func() {
				switch _, err := all[g%len(all)].Authenticate(call.request()); {
				case err == nil:
					taken.Add(1)
				case errors.Is(err, errNonceUsed):
					used.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		group.Wait()
		if taken.Load() != 1 || used.Load() != 11 {
			t.Fatalf("accepted %d times, refused %d times", taken.Load(), used.Load())
		}
	}
	restarted := hmacReplica(t, engine)
	if _, err := restarted.Authenticate(hmacPing("nonce-000").request()); !errors.Is(err, errNonceUsed) {
		t.Errorf("after a restart: %v", err)
	}
	bob := hmacPing("nonce-000") // nonces are per client
	bob.client, bob.secret = "bob@example.com", hmacBob
	if got, err := restarted.Authenticate(bob.request()); got != bob.client || err != nil {
		t.Errorf("another client: %q, %v", got, err)
	}
}

// The clocks of replicas may differ by a window. A replica whose clock is five minutes behind
// accepts a request until ten minutes after its timestamp, as if its window were ten minutes.
func TestClocksOfReplicasDiffer(t *testing.T) { // A77
	const window = 5 * time.Minute
	for name, off := range map[string]time.Duration{"behind": -window, "right": 0, "ahead": window} {
		t.Run("a client whose clock is "+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := replicastest.New()
				right, behind := hmacReplica(t, engine), hmacReplica(t, engine)
				behind.Window *= 2
				call := hmacPing("nonce-01")
				call.timestamp = hmacTime(off)
				if _, err := right.Authenticate(call.request()); err != nil {
					t.Fatal(err)
				}
				for rest := off + 2*window; rest > 0; rest -= time.Minute {
					if _, err := behind.Authenticate(call.request()); !errors.Is(err, errNonceUsed) {
						t.Fatalf("%s before the request is too old: %v", rest, err)
					}
					behind = hmacReplica(t, engine) // knows no nonces
					behind.Window *= 2
					time.Sleep(time.Minute)
				}
				time.Sleep(time.Second)
				if n := len(engine.Values()); n != 0 {
					t.Errorf("the store still has %d values", n)
				}
			})
		})
	}
}

func TestNoncesWithoutTheStore(t *testing.T) { // A77
	for name, fail := range map[string]func(*replicastest.Engine) *atomic.Bool{
		"down":    func(e *replicastest.Engine) *atomic.Bool { return &e.Down },
		"stalled": func(e *replicastest.Engine) *atomic.Bool { return &e.Stalled },
		"full":    func(e *replicastest.Engine) *atomic.Bool { return &e.Full },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := replicastest.New()
				first, second := hmacReplica(t, engine), hmacReplica(t, engine)
				call, used := hmacPing("nonce-01"), hmacPing("nonce-00")
				if _, err := first.Authenticate(used.request()); err != nil {
					t.Fatal(err)
				}
				fail(engine).Store(true)
				for _, h := range []*HMAC{first, first, second} {
					got, err := h.Authenticate(call.request())
					if _, unknown := errors.AsType[*UnavailableError](err); got != "" || !unknown {
						t.Errorf("got %q, %v", got, err)
					}
				}
				if _, err := first.Authenticate(used.request()); !errors.Is(err, errNonceUsed) {
					t.Errorf("a nonce known to the replica: %v", err)
				}
				fail(engine).Store(false)
				time.Sleep(time.Second) // until the replica retries the store
				if got, err := first.Authenticate(call.request()); got != "alice" || err != nil {
					t.Errorf("afterwards: %q, %v", got, err)
				}
				if _, err := second.Authenticate(call.request()); !errors.Is(err, errNonceUsed) {
					t.Errorf("afterwards, again: %v", err)
				}
			})
		})
	}
}
