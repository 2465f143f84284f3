// Package caddyrun runs the built Caddy for tests as an operator would: in a separate
// process, with its own home directory.
package caddyrun

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/procfs"
)

// Binary returns the path of the Caddy binary under test: the environment variable CADDY, or
// bin/caddy.
func Binary() (string, error) {
	path, err := filepath.Abs(cmp.Or(os.Getenv("CADDY"), "../../../bin/caddy"))
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("no built binary (%w); run: make -f xcaddy.mk build", err)
	}
	return path, nil
}

// Command prepares a Caddy command whose files are all in home.
func Command(ctx context.Context, binary, home string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_DATA_HOME="+home)
	return cmd
}

// DefaultGC is an environment variable for a Caddy whose memory is measured: `make test` sets
// another GOGC, for which the heap grows further between collections.
const DefaultGC = "GOGC="

// A Process is a running Caddy.
type Process struct {
	*exec.Cmd
	Exited chan struct{} // closed after the process has exited
	Err    error         // result of Wait, valid once Exited is closed
}

// startTimeout is the timeout for Caddy to serve its configuration.
const startTimeout = 2 * time.Minute

// Start starts a command `caddy run …` and returns when all of its configuration is served.
func Start(cmd *exec.Cmd) (*Process, error) {
	// As with `caddy start`, Caddy connects to --pingback when it serves, and sends what it
	// read from its standard input.
	ready, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, err
	}
	defer ready.Close()
	const word = "serving"
	cmd.Args = append(cmd.Args, "--pingback", ready.Addr().String())
	cmd.Stdin = strings.NewReader(word)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &Process{Cmd: cmd, Exited: make(chan struct{})}
	go func() {
		p.Err = cmd.Wait()
		close(p.Exited)
		ready.Close() // stop awaitWord
	}()
	if err := awaitWord(ready, word); err != nil {
		p.Kill()
		return nil, fmt.Errorf("does not serve: %w", errors.Join(p.Err, err))
	}
	return p, nil
}

// awaitWord waits until Caddy connects and sends the word.
func awaitWord(ready *net.TCPListener, word string) error {
	_ = ready.SetDeadline(time.Now().Add(startTimeout))
	conn, err := ready.Accept()
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(startTimeout))
	received, err := io.ReadAll(conn)
	if err == nil && string(received) != word {
		err = fmt.Errorf("pingback: got %q, want %q", received, word)
	}
	return err
}

// Settled reports whether the last reload is over. While a configuration replaces another,
// both listen on the addresses that they share, and connections that the kernel assigns to
// the old one are lost when it closes.
func (p *Process) Settled() bool {
	for range 2 { // a list that changes while it is read may miss a listener
		listeners := procfs.Listeners(p.Process.Pid)
		n := len(listeners)
		slices.Sort(listeners)
		if len(slices.Compact(listeners)) != n {
			return false
		}
	}
	return true
}

// Stop ends the process as an operator would, with SIGTERM. It kills the process after patience.
func (p *Process) Stop(patience time.Duration) error {
	if err := p.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.Exited:
		return p.Err
	case <-time.After(patience):
		p.Kill()
		return fmt.Errorf("did not exit within %s", patience)
	}
}

// Kill ends the process at once.
func (p *Process) Kill() {
	_ = p.Process.Kill()
	<-p.Exited
}
