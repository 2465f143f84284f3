//go:build unix

// Package process runs a command and measures processor time and memory of the process and
// its descendants.
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

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/procfs"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/loopback"
)

// A Process is a running command with its descendants.
type Process struct {
	cmd    *exec.Cmd
	log    *os.File
	ctx    context.Context // ends with the process
	exited chan struct{}
	stop   sync.Once
}

// Start starts a command in its own process group, so that a signal from the terminal does
// not reach it. Its output goes to a file: a descendant could outlive it and hold a pipe open.
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
		cancel(cmp.Or(cmd.Wait(), errors.New("the process ended")))
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

// Explain adds the end of the process's output to an error.
func (p *Process) Explain(err error) error {
	log := p.Output()
	const enough = 2000
	if len(log) > enough {
		log = log[len(log)-enough:]
	}
	return fmt.Errorf("%s: %w\n%s", filepath.Base(p.cmd.Path), err, strings.TrimSpace(log))
}

// Output returns the standard output and error of the process.
func (p *Process) Output() string {
	log, _ := os.ReadFile(p.log.Name())
	return string(log)
}

// PID returns the process id of the command.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Stop ends the process and its descendants. It sends SIGTERM first, because descendants may
// have process groups that only the process can end.
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

// kill ends a process, unless its PID was reused.
func kill(p procfs.Process) {
	if now, ok := procfs.Read(p.PID); ok && now.Started == p.Started {
		_ = syscall.Kill(p.PID, syscall.SIGKILL)
	}
}

// CPU returns the processor time of the process and its descendants, including those that
// have ended.
func (p *Process) CPU() (total time.Duration) {
	for _, one := range procfs.Tree(p.PID()) {
		total += one.CPU
	}
	return total
}

// Memory returns the memory of the process and its descendants.
func (p *Process) Memory() (m procfs.Memory) {
	for _, one := range procfs.Tree(p.PID()) {
		own := one.Memory()
		m.Resident, m.Peak = m.Resident+own.Resident, m.Peak+own.Peak
	}
	return m
}

// Self returns the process without its descendants.
func (p *Process) Self() procfs.Process { return procfs.Tree(p.PID())[0] }
