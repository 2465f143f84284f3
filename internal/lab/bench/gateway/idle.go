package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/load"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/upstream"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/procfs"
)

// idleSessions is how many there are when memory is looked at.
var idleSessions = []int{1000, 10_000}

const (
	// idleLimit is how long it may take to open sessions, and idleReserve how much memory
	// must be left to others meanwhile.
	idleLimit   = 45 * time.Second
	idleReserve = 4 << 30

	// settle is how long sessions are left alone before memory is looked at.
	settle = 2 * time.Second
)

// errOpenFiles says that nobody could have had more sessions on this machine.
var errOpenFiles = errors.New("ulimit -Hn allows too few open files for all sessions")

// reportIdle tells what sessions take that do nothing, in a fresh process of each
// contestant.
func (b *bench) reportIdle(ctx context.Context, w io.Writer) error {
	var counts []int
	t := table{title: "memory per session, KB"}
	for _, n := range idleSessions {
		if b.cases.MatchString(fmt.Sprintf("idle/%d", n)) {
			counts, t.heads = append(counts, n), append(t.heads, thousands(float64(n))+" sessions")
		}
	}
	if len(counts) == 0 {
		return nil
	}
	fmt.Fprint(w, "### Idle sessions\n\n")
	t.heads = append(t.heads, "each with")
	for i := range b.contestants {
		c := &b.contestants[i]
		switch {
		case c.command == nil:
			continue // it has no memory of its own
		case c.masked:
			continue // sessions are the same as those without
		case c.legacy.dialect == load.Plain:
			t.addNone(c.id())
			t.note("%s: it has no sessions", c.id())
			continue
		}
		progress("idle: %s", c.id())
		if err := b.idle(ctx, c, counts, &t); err != nil {
			return fmt.Errorf("idle: %s: %w", c.id(), err)
		}
	}
	t.print(w)
	return nil
}

// idle adds the row of a contestant.
func (b *bench) idle(ctx context.Context, c *contestant, counts []int, t *table) error {
	up, err := upstream.Start(ctx)
	if err != nil {
		return err
	}
	defer up.Stop()
	behind, err := benchServer(up, upstream.ListenPath, c.stdio)
	if err != nil {
		return err
	}
	r, err := c.start(ctx, &b.installed, []server{behind}, false, func(ctx context.Context, client *load.Client) error {
		return client.Call(ctx, c.toolOf("bench", upstream.Tool), upstream.Small)
	})
	if err != nil {
		t.addNone(c.id())
		t.note("%s: %s", c.id(), firstLine(err))
		return ctx.Err()
	}
	defer r.stop()
	defer load.HTTP.CloseIdleConnections()
	var s sessions
	defer s.close()
	if err := s.open(ctx, r, 16); err != nil { // what the first take is not what all take
		t.addNone(c.id())
		t.note("%s: %s", c.id(), firstLine(err))
		return ctx.Err()
	}
	before, warm := r.memory().Resident, s.len()
	var cells []string
	for _, n := range counts {
		var failure error
		if most := (b.openFiles - 500) / 2; n > most { // a connection in, and one out
			n, failure = most, errOpenFiles
		}
		failure = cmp.Or(s.open(ctx, r, n), failure)
		select {
		case <-time.After(settle):
		case <-ctx.Done():
			return ctx.Err()
		}
		cell := none
		if more := s.len() - warm; more > 0 {
			if took := float64(r.memory().Resident - before); took > 0 { // else it has died meanwhile
				cell = fmt.Sprintf("%.1f", took/float64(more)/1000)
			}
		}
		if failure != nil {
			cell += fmt.Sprintf(" (%s reached)", thousands(float64(s.len())))
			if errors.Is(failure, errOpenFiles) {
				t.note("%s: there may be %d", failure, b.openFiles)
			} else {
				t.note("%s: %s", c.id(), firstLine(failure))
			}
		}
		cells = append(cells, cell)
		if failure != nil {
			break
		}
	}
	for len(cells) < len(counts) {
		cells = append(cells, none)
	}
	t.add(c.id(), append(cells, s.kind())...)
	return nil
}

// sessions are open, each with a stream if the contestant lets it.
type sessions struct {
	mu      sync.Mutex
	clients []*load.Client
	streams []net.Conn
	silent  atomic.Bool // there are no streams
}

func (s *sessions) len() int { return len(s.clients) }

func (s *sessions) kind() string {
	if s.silent.Load() {
		return "a handshake"
	}
	return "a stream"
}

// open opens more sessions until there are n, or says why there are fewer.
func (s *sessions) open(ctx context.Context, r *running, n int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, idleLimit, fmt.Errorf("no more could be opened in %s", idleLimit))
	defer cancel()
	_, err := load.Each(n-s.len(), 16, func(int) error {
		if procfs.AvailableMemory() < idleReserve {
			return fmt.Errorf("less than %s MiB of memory are left", mebibytes(idleReserve))
		}
		client, err := load.Open(ctx, r.endpoint, r.dialect)
		if err != nil {
			return err
		}
		var stream net.Conn
		if r.dialect == load.Legacy {
			stream, err = load.Listen(ctx, r.endpoint, client.Session())
			if errors.Is(err, load.ErrNoStream) {
				s.silent.Store(true)
			} else if err != nil {
				return err
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.clients = append(s.clients, client)
		if stream != nil {
			s.streams = append(s.streams, stream)
		}
		return nil
	})
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return err
}

// close leaves it to the contestant's end to end the sessions.
func (s *sessions) close() {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	closeClients(ended, s.clients)
	for _, stream := range s.streams {
		_ = stream.Close()
	}
}
