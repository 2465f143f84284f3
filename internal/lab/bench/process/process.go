//go:build unix

// Package process runs what is measured, and tells what it takes: processor time and
// memory of a process and of all that it has started itself.
package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/loopback"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/procfs"
)

// A Process is a running command and what it has started.
type Process struct {
	cmd    *exec.Cmd
	log    *os.File
	ctx    context.Context // ends with the process
	exited chan struct{}
	stop   sync.Once
}

// Start starts a command in a process group of its own, so that a signal from the
// terminal reaches nobody but the one who started it. Its output goes to a file: what it
// has started could outlive it and hold a pipe open.
func Start(cmd *exec.Cmd) (*Process, error) {
	log, err := os.CreateTemp("", "bench-*.log")
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		_ = log.Close()
		_ = os.Remove(log.Name())
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	p := &Process{cmd: cmd, log: log, ctx: ctx, exited: make(chan struct{})}
	go func() {
		cancel(cmp.Or(cmd.Wait(), errors.New("it has ended")))
		close(p.exited)
	}()
	return p, nil
}

// Await waits until the process serves a port.
func (p *Process) Await(ctx context.Context, port int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(p.ctx, func() { cancel(context.Cause(p.ctx)) })()
	if err := loopback.Await(ctx, port); err != nil {
		return p.Explain(err)
	}
	return nil
}

// Explain adds the end of what the process has said to an error.
func (p *Process) Explain(err error) error {
	log := p.Output()
	const enough = 2000
	if len(log) > enough {
		log = log[len(log)-enough:]
	}
	return fmt.Errorf("%s: %w\n%s", filepath.Base(p.cmd.Path), err, strings.TrimSpace(log))
}

// Output returns what the process has written to standard output and error.
func (p *Process) Output() string {
	log, _ := os.ReadFile(p.log.Name())
	return string(log)
}

// PID returns the id of the process itself.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Stop ends the process and all that it has started: politely at first, for children may
// have groups of their own that only it knows how to end.
func (p *Process) Stop() { p.stop.Do(p.end) }

func (p *Process) end() {
	rest := procfs.Tree(p.PID())
	_ = syscall.Kill(-p.PID(), syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(3 * time.Second):
	}
	_ = syscall.Kill(-p.PID(), syscall.SIGKILL)
	<-p.exited
	for _, child := range rest[1:] {
		kill(child)
	}
	_ = p.log.Close()
	_ = os.Remove(p.log.Name())
}
