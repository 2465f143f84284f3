package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/load"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/process"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/upstream"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/loopback"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/procfs"
)

// A running is a contestant that has been started and has answered.
type running struct {
	*contestant
	process  *process.Process // nil if it has none
	endpoint string
	dialect  load.Dialect
	token    string // that clients show, or none
	dir      string
}

// open opens a session.
func (r *running) open(ctx context.Context) (*load.Client, error) {
	return load.Open(ctx, r.endpoint, r.dialect, r.token)
}

// An attempt is what a client does at a contestant.
type attempt func(context.Context, *load.Client) error

// start starts a contestant and waits until a client can try out what it wants to do. If
// try is nil, it waits only until the port is served.
func (c *contestant) start(
	ctx context.Context, in *installed, servers []server, s setup, try attempt,
) (_ *running, err error) {
	door := c.door(s)
	if door.lacks != "" {
		return nil, errors.New(door.lacks)
	}
	r := &running{contestant: c, dialect: door.dialect}
	if s.guarded {
		r.token = token
	}
	defer func() {
		if err != nil {
			r.stop()
		}
	}()
	at, err := url.Parse(servers[0].url)
	if err != nil {
		return nil, err
	}
	if door.path != "" {
		at.Path = door.path
	}
	if c.command != nil {
		if _, err := c.version(); err != nil {
			return nil, err
		}
		ports, err := loopback.FreePorts(1)
		if err != nil {
			return nil, err
		}
		at.Host = fmt.Sprintf("127.0.0.1:%d", ports[0])
		if s.tls {
			at.Scheme = "https"
		}
		if err := r.run(ctx, site{in, s, "", ports[0], servers}); err != nil {
			return nil, err
		}
	}
	r.endpoint = at.String()
	if try == nil {
		return r, nil
	}
	return r, r.awaitAnswer(ctx, try)
}

// run runs the command of a contestant until its port is served.
func (r *running) run(ctx context.Context, s site) (err error) {
	if r.dir, err = os.MkdirTemp("", "bench-gateway-"); err != nil {
		return err
	}
	s.dir = r.dir
	files := map[string]string{}
	if r.files != nil {
		files = r.files(s)
	}
	if s.tls {
		if files[certFile], files[keyFile], err = selfSigned(); err != nil {
			return err
		}
	}
	for name, text := range files {
		if err := os.WriteFile(s.file(name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	argv := r.command(s)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "NODE_ENV=production", "HOME=" + s.dir, "XDG_DATA_HOME=" + s.dir, "XDG_CONFIG_HOME=" + s.dir, "XDG_STATE_HOME=" + s.dir}
	cmd.Env = append(cmd.Env, r.env...)
	if r.process, err = process.Start(cmd); err != nil {
		return err
	}
	return r.process.Await(ctx, s.port)
}

// awaitAnswer waits until what is measured works: some serve their port before that.
func (r *running) awaitAnswer(ctx context.Context, try attempt) error {
	const limit = 45 * time.Second // with huge results, and others that start at the same time
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer in %s", limit))
	defer cancel()
	for {
		client, err := r.open(ctx)
		if err == nil {
			err = try(ctx, client)
			client.Close(ctx)
		}
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			if errors.Is(err, ctx.Err()) {
				err = context.Cause(ctx)
			}
			if r.process != nil {
				err = r.process.Explain(err)
			}
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (r *running) stop() {
	if r.process != nil {
		r.process.Stop()
	}
	if r.dir != "" {
		_ = os.RemoveAll(r.dir)
	}
}

// cpu returns the processor time a contestant has taken, none if it has no process.
func (r *running) cpu() time.Duration {
	if r.process == nil {
		return 0
	}
	return r.process.CPU()
}

// output returns what a contestant has written to its standard output and error.
func (r *running) output() string {
	if r.process == nil {
		return ""
	}
	return r.process.Output()
}

func (r *running) memory() (m procfs.Memory) {
	if r.process != nil {
		m = r.process.Memory()
	}
	return m
}

// A field is the contestants of a case that could be started, and why others could not.
type field struct {
	upstream *upstream.Server
	started  []*running // in the order of the contestants
	absent   map[string]error
}

// startField starts contestants with one server of that path each.
func (b *bench) startField(
	ctx context.Context, contestants []contestant, path string, s setup, try func(*contestant) attempt,
) (*field, error) {
	up, err := upstream.Start(ctx)
	if err != nil {
		return nil, err
	}
	f := &field{upstream: up, absent: map[string]error{}}
	started := make([]*running, len(contestants))
	failures := make([]error, len(contestants))
	_, _ = load.Each(len(contestants), 4, func(i int) error {
		c := &contestants[i]
		behind, err := benchServer(up, path, c.stdio)
		if err == nil {
			started[i], err = c.start(ctx, &b.installed, []server{behind}, s, try(c))
		}
		failures[i] = err
		return nil
	})
	for i, err := range failures {
		if err != nil {
			f.absent[contestants[i].id()] = err
		} else {
			f.started = append(f.started, started[i])
		}
	}
	if err := ctx.Err(); err != nil {
		f.stop()
		return nil, err
	}
	return f, nil
}

// stop ends all contestants, and their server after them.
func (f *field) stop() {
	load.HTTP.CloseIdleConnections()
	var wg sync.WaitGroup
	for _, r := range f.started {
		wg.Go(r.stop)
	}
	wg.Wait()
	f.upstream.Stop()
}
