package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/load"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/upstream"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/procfs"
)

// An idleCase is a number of idle sessions with a number of servers.
type idleCase struct{ servers, sessions int }

func (c idleCase) String() string { return fmt.Sprintf("idle/%d/%d", c.servers, c.sessions) }

// head returns the head of the column.
func (c idleCase) head() string {
	head := thousands(float64(c.sessions)) + " sessions"
	if c.servers > 1 {
		head += fmt.Sprintf(", %d servers", c.servers)
	}
	return head
}

// idleCases are all cases. One process serves all cases with the same number of servers.
var idleCases = []idleCase{{1, 1000}, {1, 10_000}, {10, 1000}, {100, 100}}

// furtherServer is the case for the memory of a session per server after the first.
const furtherServer = "idle/further"

const (
	// idleLimit is how long opening the sessions may take, and idleReserve is the memory
	// in bytes that must stay available.
	idleLimit   = 45 * time.Second
	idleReserve = 4 << 30

	// settle is how long sessions stay idle before memory is measured.
	settle = 2 * time.Second
)

// errOpenFiles is the note for cases that this machine does not have enough file descriptors for.
var errOpenFiles = errors.New("ulimit -Hn allows too few open files for all sessions")

// reportIdle measures the memory of idle sessions, with a new process for each contestant.
func (b *bench) reportIdle(ctx context.Context, w io.Writer) error {
	var cases []idleCase
	memory, goroutines := table{title: "memory per session, KB"}, table{title: "goroutines per session"}
	for _, c := range idleCases {
		if b.selects(c.String()) {
			cases, memory.heads = append(cases, c), append(memory.heads, c.head())
		}
	}
	if len(cases) == 0 {
		return nil
	}
	goroutines.heads = memory.heads
	memory.heads = append(slices.Clone(memory.heads), "each with")
	for i := range b.contestants {
		c := &b.contestants[i]
		switch {
		case c.command == nil:
			continue // no process
		case c.masked:
			continue // same sessions as without a mask
		case c.legacy.dialect == load.Plain:
			memory.addNone(c.id())
			memory.note("%s: no sessions", c.id())
			continue
		}
		var took, routines []string
		kind := noFigure
		for left := cases; len(left) > 0; {
			n := 1
			for n < len(left) && left[n].servers == left[0].servers {
				n++
			}
			found := make([]idleReading, n)
			if left[0].servers == 1 || c.joins && !c.stdio {
				progress("%s: %s", left[0], c.id())
				var err error
				if found, err = b.idle(ctx, c, left[:n], &memory); err != nil {
					return fmt.Errorf("idle: %s: %w", c.id(), err)
				}
			}
			for _, f := range found {
				took, routines = append(took, f.memory()), append(routines, f.goroutines())
				kind = cmp.Or(f.kind, kind)
			}
			left = left[n:]
		}
		memory.add(c.id(), append(took, kind)...)
		if slices.ContainsFunc(routines, func(cell string) bool { return cell != noFigure }) {
			goroutines.add(c.id(), routines...)
		}
		few, many := b.readings[readingKey{"idle/1/1000", c.id()}], b.readings[readingKey{"idle/10/1000", c.id()}]
		if len(few) > 0 && len(many) > 0 {
			b.record(furtherServer, c.id(), (many[0]-few[0])/9)
		}
	}
	fmt.Fprint(w, "### Idle sessions\n\n")
	memory.print(w)
	if len(goroutines.rows) > 0 {
		goroutines.print(w)
	}
	return nil
}

// An idleReading is the cost of an idle session. Unknown figures are 0.
type idleReading struct {
	kb, routines float64
	reached      int // number of sessions, if the case could not open all
	kind         string
}

func (r idleReading) memory() string {
	cell := noFigure
	if r.kb > 0 {
		cell = fmt.Sprintf("%.1f", r.kb)
	}
	if r.reached > 0 {
		cell += fmt.Sprintf(" (%s reached)", thousands(float64(r.reached)))
	}
	return cell
}

func (r idleReading) goroutines() string {
	if r.routines <= 0 {
		return noFigure
	}
	return fmt.Sprintf("%.1f", r.routines)
}

// idle measures a contestant in cases that have the same servers and a growing number of
// sessions.
func (b *bench) idle(ctx context.Context, c *contestant, cases []idleCase, t *table) ([]idleReading, error) {
	found := make([]idleReading, len(cases))
	servers := cases[0].servers
	up, err := upstream.Start(ctx)
	if err != nil {
		return nil, err
	}
	defer up.Stop()
	backends, err := namedServers(up, upstream.ListenPath, servers, c.stdio)
	if err != nil {
		return nil, err
	}
	call := func(ctx context.Context, client *load.Client) error {
		return client.Call(ctx, c.toolOf("bench", upstream.Tool), upstream.SmallChars)
	}
	r, err := c.start(ctx, &b.programs, backends, setup{admin: true}, call)
	if err != nil {
		t.note("%s: %s", c.id(), firstLine(err))
		return found, ctx.Err()
	}
	defer r.stop()
	defer load.HTTP.CloseIdleConnections()
	var s sessions
	defer s.close()
	if err := s.open(ctx, r, 16); err != nil { // the first sessions take more memory than later ones
		t.note("%s: %s", c.id(), firstLine(err))
		return found, ctx.Err()
	}
	before, warm := r.memory().Resident, s.len()
	running := r.goroutines()
	for i, idle := range cases {
		n := idle.sessions
		var failure error
		if most := (b.openFiles - 500) / (1 + servers); n > most { // one connection from the client, one to each server
			n, failure = most, errOpenFiles
		}
		failure = cmp.Or(s.open(ctx, r, n), failure)
		select {
		case <-time.After(settle):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		found[i].kind = s.kind()
		if more := float64(s.len() - warm); more > 0 {
			if took := float64(r.memory().Resident - before); took > 0 { // else the process has died
				found[i].kb = took / more / 1000
			}
			if running > 0 {
				found[i].routines = float64(r.goroutines()-running) / more
			}
		}
		if failure != nil {
			found[i].reached = s.len()
			if errors.Is(failure, errOpenFiles) {
				t.note("%s: the limit is %d", failure, b.openFiles)
			} else {
				t.note("%s: %s", c.id(), firstLine(failure))
			}
			break
		}
		if found[i].kb > 0 {
			b.record(idle.String(), c.id(), found[i].kb)
		}
	}
	return found, nil
}

// goroutines returns the number of goroutines of a Caddy with the admin API enabled, or 0.
func (r *instance) goroutines() int {
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(r.dir, adminSocket))
		}}}
	resp, err := client.Get("http://127.0.0.1/debug/pprof/goroutine?debug=1")
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	first, _ := bufio.NewReader(resp.Body).ReadString('\n')
	return readGoroutines(first)
}

// readGoroutines parses the first line of a goroutine profile.
func readGoroutines(line string) (n int) {
	if _, err := fmt.Sscanf(line, "goroutine profile: total %d", &n); err != nil {
		return 0
	}
	return n
}

// sessions are open sessions, each with a stream if the contestant supports it.
type sessions struct {
	mu      sync.Mutex
	clients []*load.Client
	streams []net.Conn
	silent  atomic.Bool // sessions have no stream
}

func (s *sessions) len() int { return len(s.clients) }

func (s *sessions) kind() string {
	if s.silent.Load() {
		return "a handshake"
	}
	return "a stream"
}

// open opens sessions until there are n, or returns why it cannot.
func (s *sessions) open(ctx context.Context, r *instance, n int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, idleLimit, fmt.Errorf("could not open more in %s", idleLimit))
	defer cancel()
	_, err := load.Each(n-s.len(), 16, func(int) error {
		if procfs.AvailableMemory() < idleReserve {
			return fmt.Errorf("less than %s MiB of memory are left", mebibytes(idleReserve))
		}
		client, err := r.open(ctx)
		if err != nil {
			return err
		}
		var stream net.Conn
		if r.dialect == load.Legacy {
			stream, err = load.Listen(ctx, r.endpoint, client.Header())
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

// close closes connections without ending the sessions, which end with the contestant.
func (s *sessions) close() {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	closeClients(ended, s.clients)
	for _, stream := range s.streams {
		_ = stream.Close()
	}
}
