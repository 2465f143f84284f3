//go:build unix

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/loopback"
)

// A process is a running command with its descendants.
type process struct {
	cmd    *exec.Cmd
	log    string
	exited chan struct{} // closed after exit; err is set then
	err    error
}

// startProcess starts a command in its own process group. Its output goes to a log file, because
// descendants could hold a pipe open.
func startProcess(cmd *exec.Cmd, log string) (*process, error) {
	output, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer output.Close()
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, log: log, exited: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.exited)
	}()
	return p, nil
}

// stop ends the process group: with SIGTERM, and after 5 seconds with SIGKILL.
func (p *process) stop() {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(5 * time.Second):
	}
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.exited
}

// await waits until the process serves the port.
func (p *process) await(ctx context.Context, port int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-p.exited:
			cancel(cmp.Or(p.err, errors.New("the process ended")))
		case <-ctx.Done():
		}
	}()
	if err := loopback.Await(ctx, port); err != nil {
		return p.withLog(err)
	}
	return nil
}

// withLog adds the end of the log to an error.
func (p *process) withLog(err error) error {
	log, _ := os.ReadFile(p.log)
	if len(log) > 4000 {
		log = log[len(log)-4000:]
	}
	return fmt.Errorf("%s: %w\n%s", filepath.Base(p.cmd.Path), err, strings.TrimSpace(string(log)))
}
