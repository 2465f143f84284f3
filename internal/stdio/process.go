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
	exited chan struct{} // closed when it has ended

	mu     sync.Mutex
	strays strays

	after func(time.Duration) <-chan time.Time // time.After, unless a test needs another
}

// startProcess starts a command, without a shell, in a process group of its own.
func startProcess(command, env []string, dir string) (_ *process, err error) {
	p := &process{cmd: exec.Command(command[0], command[1:]...), exited: make(chan struct{}), after: time.After}
	p.cmd.Env, p.cmd.Dir = env, dir
	ownGroup(p.cmd)

	// With files of our own there is nothing to copy: exec has no goroutines, and
	// reads can be given up when a grandchild keeps the other end open.
	var theirs []*os.File
	defer func() {
		for _, f := range theirs {
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
	stdin, ours, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	theirs, p.stdin, p.cmd.Stdin = append(theirs, stdin), ours, stdin
	ours, stdout, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	theirs, p.stdout, p.cmd.Stdout = append(theirs, stdout), ours, stdout
	ours, stderr, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	theirs, p.stderr, p.cmd.Stderr = append(theirs, stderr), ours, stderr

	keepFiles()
	if err := p.cmd.Start(); err != nil {
		if info, missing := os.Stat(dir); dir != "" && (missing != nil || !info.IsDir()) {
			return nil, fmt.Errorf("dir: %s is not a directory", dir) // exec names the command
		}
		return nil, err
	}
	p.findPipes()
	go p.wait()
	return p, nil
}

// drainTime is how long after the end of a process what it wrote may still be read,
// if something that has left its group keeps the pipes open.
const drainTime = time.Second

// wait waits for the end of the process, and sees to it that it is the end of
// everything it has started.
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

// lastWords is how long a process may take to end after TERM.
const lastWords = time.Second

// stop ends the process: it closes stdin, which is how MCP says goodbye, sends TERM
// if that was not heard within the grace, and KILL if that was not heard either. It
// returns when the process has ended.
func (p *process) stop(grace time.Duration) {
	p.markStrays()
	p.stdin.Close()
	if p.endsWithin(grace) {
		return
	}
	p.signal(terminate)
	if p.endsWithin(lastWords) {
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
	if !p.hasExited() { // else its number may be another's by now
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

// cause says how an ended process ended.
func (p *process) cause() error {
	if status := p.cmd.ProcessState.ExitCode(); status >= 0 {
		return fmt.Errorf("exited with status %d", status)
	}
	return fmt.Errorf("ended by %s", p.cmd.ProcessState) // such as "signal: killed"
}
