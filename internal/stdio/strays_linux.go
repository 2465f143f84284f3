package stdio

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Processes that a child has started may have left its process group. They can be found by the
// child's pipes, which no other process has, or by their parents while these live.

// strays are processes that must end with the child.
type strays struct {
	pipes  []string // names in /proc
	marked []int    // pidfds
	ended  bool     // killStrays has run
}

// findPipes notes the names of the child's pipes.
func (p *process) findPipes() {
	for _, f := range []*os.File{p.stdin, p.stdout, p.stderr} {
		if info, err := f.Stat(); err == nil {
			p.strays.pipes = append(p.strays.pipes, fmt.Sprintf("pipe:[%d]", info.Sys().(*syscall.Stat_t).Ino))
		}
	}
}

// markStrays notes the descendants of the child while it lives; afterwards their parents are
// unknown.
func (p *process) markStrays() {
	parents := map[int]int{}
	for _, pid := range processes() {
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		// The name before may contain spaces and parentheses.
		if fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]); len(fields) > 1 {
			parents[pid], _ = strconv.Atoi(string(fields[1]))
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closeMarked()
	if p.strays.ended {
		return
	}
	for pid := range parents {
		for parent := parents[pid]; parent > 1; parent = parents[parent] {
			if parent != p.cmd.Process.Pid {
				continue
			}
			if fd, err := unix.PidfdOpen(pid, 0); err == nil {
				p.strays.marked = append(p.strays.marked, fd)
			}
			break
		}
	}
}

// killStrays kills the marked processes and those that have the child's pipes.
func (p *process) killStrays() {
	p.mu.Lock()
	for _, fd := range p.strays.marked {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
	p.closeMarked()
	p.strays.ended = true
	p.mu.Unlock()
	const rounds = 10 // processes may start others meanwhile
	for range rounds {
		found := false
		for _, pid := range processes() {
			found = p.killStray(pid) || found
		}
		if !found {
			return
		}
	}
}

func (p *process) closeMarked() {
	for _, fd := range p.strays.marked {
		_ = unix.Close(fd)
	}
	p.strays.marked = nil
}

// killStray kills a process if one of its standard streams is a pipe of the child.
func (p *process) killStray(pid int) bool {
	if !p.hasPipe(pid) {
		return false
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	// The pidfd is open, so the PID cannot be reused now.
	return p.hasPipe(pid) && unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil
}

func (p *process) hasPipe(pid int) bool {
	if pid == os.Getpid() {
		return false
	}
	for stream := range 3 {
		target, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, stream))
		for _, pipe := range p.strays.pipes {
			if target == pipe {
				return true
			}
		}
	}
	return false
}

// processes returns the PIDs of all processes.
func processes() (pids []int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
