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

// What a child has started may have left its process group. It is known by the child's
// pipes, which no other process has, or by its parents, while these live.

// strays are processes that end with the child.
type strays struct {
	pipes  []string // as /proc names them
	marked []int    // file descriptors of processes
	ended  bool     // there will be none any more
}

// findPipes notes what the child's pipes are called.
func (p *process) findPipes() {
	for _, f := range []*os.File{p.stdin, p.stdout, p.stderr} {
		if info, err := f.Stat(); err == nil {
			p.strays.pipes = append(p.strays.pipes, fmt.Sprintf("pipe:[%d]", info.Sys().(*syscall.Stat_t).Ino))
		}
	}
}

// markStrays notes what comes from the child, before it ends and that cannot be seen any
// more.
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
	if p.closeMarked(); p.strays.ended {
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

// killStrays ends what has been marked, and what has the child's pipes.
func (p *process) killStrays() {
	p.mu.Lock()
	for _, fd := range p.strays.marked {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
	p.closeMarked()
	p.strays.ended = true
	p.mu.Unlock()
	const rounds = 10 // of processes that start others
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

// killStray ends a process if one of its standard streams is a pipe of the child.
func (p *process) killStray(pid int) bool {
	if !p.hasPipe(pid) {
		return false
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	// Now its number cannot become another's.
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

// processes returns the numbers of all processes.
func processes() (pids []int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
