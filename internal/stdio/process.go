package stdio

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"
)

// A process is a running child.
type process struct {
	cmd    *exec.Cmd
	stdin  *os.File
	stdout *os.File
	stderr *os.File
	exited chan struct{} // closed when the process has ended

	mu     sync.Mutex
	strays strays

	after func(time.Duration) <-chan time.Time // time.After, except in tests
}

// startProcess starts a command, without a shell, in its own process group.
func startProcess(command, env []string, dir string) (_ *process, err error) {
	p := &process{cmd: exec.Command(command[0], command[1:]...), exited: make(chan struct{}), after: time.After}
	p.cmd.Env, p.cmd.Dir = env, dir
	setProcessGroup(p.cmd)

	// With its own pipes there is nothing to copy: exec starts no goroutines, and reads can be
	// abandoned when a grandchild keeps the other end open.
	var childEnds []*os.File
	defer func() {
		for _, f := range childEnds {
			f.Close()
		}
		if err != nil {
			for _, f := range []*os.File{p.stdin, p.stdout, p.stderr} {
				if f != nil {
					f.Close()
				}
			}
		}
	}()
	stdin, parentEnd, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	childEnds, p.stdin, p.cmd.Stdin = append(childEnds, stdin), parentEnd, stdin
	parentEnd, stdout, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	childEnds, p.stdout, p.cmd.Stdout = append(childEnds, stdout), parentEnd, stdout
	parentEnd, stderr, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	childEnds, p.stderr, p.cmd.Stderr = append(childEnds, stderr), parentEnd, stderr

	closeFilesOnExec()
	if err := p.cmd.Start(); err != nil {
		if info, missing := os.Stat(dir); dir != "" && (missing != nil || !info.IsDir()) {
			return nil, fmt.Errorf("dir: %s is not a directory", dir) // exec would blame the command
		}
		return nil, err
	}
	p.findPipes()
	go p.wait()
	return p, nil
}

// drainTime is how long the output of an ended process may still be read, if a process that has
// left its group keeps the pipes open.
const drainTime = time.Second

// wait waits for the end of the process and kills the processes that it has started.
func (p *process) wait() {
	_ = p.cmd.Wait()
	p.signal(os.Kill)
	p.killStrays()
	deadline := time.Now().Add(drainTime)
	_ = p.stdout.SetReadDeadline(deadline)
	_ = p.stderr.SetReadDeadline(deadline)
	p.stdin.Close()
	close(p.exited)
}

// termGrace is how long a process may take to end after TERM.
const termGrace = time.Second

// stop ends the process. It closes stdin, which is how MCP ends a session. It sends TERM if the
// process still runs after the grace, and KILL after termGrace. It returns when the process has
// ended.
func (p *process) stop(grace time.Duration) {
	p.markStrays()
	p.stdin.Close()
	if p.endsWithin(grace) {
		return
	}
	p.signal(terminate)
	if p.endsWithin(termGrace) {
		return
	}
	p.kill()
}

// kill ends the process at once and returns when it has ended.
func (p *process) kill() {
	p.terminate()
	<-p.exited
}

// terminate kills the process without waiting for its end.
func (p *process) terminate() {
	if !p.hasExited() { // the system may have reused its PID otherwise
		p.markStrays()
		p.signal(os.Kill)
	}
}

func (p *process) hasExited() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

func (p *process) endsWithin(d time.Duration) bool {
	select {
	case <-p.exited:
		return true
	case <-p.after(d):
		return false
	}
}

// cause returns the exit status of an ended process, or the signal that ended it, as an error.
func (p *process) cause() error {
	if status := p.cmd.ProcessState.ExitCode(); status >= 0 {
		return fmt.Errorf("exited with status %d", status)
	}
	return fmt.Errorf("ended by %s", p.cmd.ProcessState) // such as "signal: killed"
}
