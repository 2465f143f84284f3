package replicas_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
)

// lossy is an engine that loses some messages but reports them as received.
type lossy struct {
	*replicastest.Engine
	mu     sync.Mutex
	random *rand.Rand
	share  float64
}

func (e *lossy) Publish(ctx context.Context, topic string, message []byte) (bool, error) {
	e.mu.Lock()
	lost := e.random.Float64() < e.share
	e.mu.Unlock()
	if lost {
		return true, nil
	}
	return e.Engine.Publish(ctx, topic, message)
}

// newPeers returns the connections of a new replica.
func newPeers(t *testing.T, engine replicas.Engine, accept func(*replicas.Conn)) (l *replicas.Peers, replica string) {
	space := replicastest.Replica(t, engine).Space("test")
	l = space.Peers("lines", accept)
	t.Cleanup(l.Close)
	return l, space.Replica
}

func refuses(c *replicas.Conn) { _ = c.Close() }

// echo returns a handler that sends size bytes back.
func echo(size int) func(*replicas.Conn) {
	return func(c *replicas.Conn) { _, _ = io.CopyN(c, c, int64(size)) }
}

func TestConns(t *testing.T) {
	for name, share := range map[string]float64{"all arrives": 0, "some is lost": 0.2} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := &lossy{Engine: replicastest.New(), random: rand.New(rand.NewPCG(1, 2)), share: share}
				text := make([]byte, 1<<20)
				for i := range text {
					text[i] = byte(rand.Int())
				}
				here, _ := newPeers(t, engine, refuses)
				there, replica := newPeers(t, engine, echo(len(text)))
				there.Listen()
				var all sync.WaitGroup
				for range 4 {
					all.Go(func() {
						c := here.Dial(replica)
						defer c.Close()
						all.Go(func() {
							if _, err := c.Write(text); err != nil {
								t.Errorf("written: %v", err)
							}
						})
						if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, text) {
							t.Errorf("got %d bytes, %v", len(got), err)
						}
					})
				}
				all.Wait()
			})
		})
	}
}

// A peer that does not read blocks the writer. The number of unread bytes is limited.
func TestConnWindowIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := replicastest.New()
		here, _ := newPeers(t, engine, refuses)
		var written int
		there, replica := newPeers(t, engine, func(c *replicas.Conn) {
			for piece := make([]byte, 1<<10); ; {
				if _, err := c.Write(piece); err != nil {
					return
				}
				written += len(piece)
			}
		})
		there.Listen()
		c := here.Dial(replica)
		_, _ = c.Write([]byte("go"))
		time.Sleep(time.Hour)
		synctest.Wait()
		if written > 2*replicas.ConnBytes {
			t.Errorf("%d bytes were written", written)
		}
		if _, err := io.ReadFull(c, make([]byte, 4<<20)); err != nil {
			t.Error(err)
		}
		_ = c.Close()
	})
}

func TestConnEnds(t *testing.T) {
	run := func(name string, accept func(*replicas.Conn), test func(t *testing.T, engine *replicastest.Engine,
		there *replicas.Peers, c *replicas.Conn)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := replicastest.New()
				here, _ := newPeers(t, engine, refuses)
				there, replica := newPeers(t, engine, accept)
				if name != "no listeners" {
					there.Listen()
				}
				c := here.Dial(replica)
				defer c.Close()
				_, _ = c.Write([]byte("x"))
				test(t, engine, there, c)
			})
		})
	}
	wait := func(c *replicas.Conn) { _, _ = io.CopyN(c, c, 1); <-c.Context().Done() }
	want := func(t *testing.T, c *replicas.Conn, want error) {
		t.Helper()
		if n, err := io.Copy(io.Discard, c); !errors.Is(err, want) {
			t.Errorf("got %d bytes, %v, want %v", n, err, want)
		}
	}
	run("no listeners", wait, func(t *testing.T, _ *replicastest.Engine, _ *replicas.Peers, c *replicas.Conn) {
		want(t, c, replicas.ErrNoReplica)
	})
	run("the other side ends", wait, func(t *testing.T, _ *replicastest.Engine, there *replicas.Peers, c *replicas.Conn) {
		_, _ = c.Read(make([]byte, 1))
		go there.Close()
		want(t, c, replicas.ErrLost)
	})
	gone := make(chan struct{})
	run("this side ends", func(c *replicas.Conn) { wait(c); close(gone) },
		func(t *testing.T, _ *replicastest.Engine, _ *replicas.Peers, c *replicas.Conn) {
			_, _ = c.Read(make([]byte, 1))
			_ = c.Close()
			<-gone
		})
	run(
		"the other side refuses",
		refuses,
		func(t *testing.T, _ *replicastest.Engine, _ *replicas.Peers,
			c *replicas.Conn) {
			want(t, c, replicas.ErrLost)
		},
	)
	run(
		"the store fails for long",
		wait,
		func(t *testing.T, engine *replicastest.Engine, _ *replicas.Peers,
			c *replicas.Conn) {
			_, _ = c.Read(make([]byte, 1))
			engine.Down.Store(true)
			want(t, c, replicas.ErrUnavailable)
			engine.Down.Store(false)
		},
	)
	run("the store stalls", func(c *replicas.Conn) { time.Sleep(6 * time.Second); _, _ = c.Write([]byte("abc")) },
		func(t *testing.T, engine *replicastest.Engine, _ *replicas.Peers, c *replicas.Conn) {
			time.Sleep(5 * time.Second)
			engine.Stalled.Store(true)
			time.AfterFunc(5*time.Second, func() { engine.Stalled.Store(false) })
			if got, err := io.ReadAll(c); string(got) != "abc" || err != nil {
				t.Errorf("got %q, %v", got, err)
			}
		})
	run("nothing is said for long", func(c *replicas.Conn) { time.Sleep(time.Hour); _, _ = c.Write([]byte("abc")) },
		func(t *testing.T, _ *replicastest.Engine, _ *replicas.Peers, c *replicas.Conn) {
			if got, err := io.ReadAll(c); string(got) != "abc" || err != nil {
				t.Errorf("got %q, %v", got, err)
			}
		})
}

// A replica that does not respond may still run, and may have received everything.
func TestConnWithSilentReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := &lossy{Engine: replicastest.New(), random: rand.New(rand.NewPCG(1, 2)), share: 1}
		here, _ := newPeers(t, engine, refuses)
		c := here.Dial("other")
		defer c.Close()
		_, _ = c.Write([]byte("x"))
		if _, err := io.Copy(io.Discard, c); !errors.Is(err, replicas.ErrLost) || errors.Is(err, replicas.ErrNoReplica) {
			t.Errorf("got %v", err)
		}
	})
}

// A replica that starts during an outage of the store can be reached after it.
func TestListenAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := replicastest.New()
		here, _ := newPeers(t, engine, refuses)
		there, replica := newPeers(t, engine, echo(3))
		engine.Down.Store(true)
		there.Listen()
		c := here.Dial(replica)
		defer c.Close()
		_, _ = c.Write([]byte("abc"))
		time.Sleep(5 * time.Second)
		engine.Down.Store(false)
		if got, err := io.ReadAll(c); string(got) != "abc" || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
	})
}

// The engine of these tests works like Redis.
func TestInMemoryEngine(t *testing.T) {
	engine := replicastest.New()
	replicastest.TestEngine(t, func() replicas.Engine { return engine })
}
