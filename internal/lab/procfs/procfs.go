// Package procfs reads what Linux tells of processes, and of the machine. Elsewhere it
// finds nothing.
package procfs

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// A Process is one as it was when it was read.
type Process struct {
	PID     int
	Parent  int
	State   byte          // Z is one that has ended, and nobody has asked how
	Started string        // when, by which it is known again
	CPU     time.Duration // its own, and that of children which have ended
}

// Read returns a process, if there is one.
func Read(pid int) (Process, bool) {
	stat, _ := os.ReadFile(file(pid, "stat"))
	return parse(string(stat))
}

func file(pid int, name string) string { return filepath.Join("/proc", strconv.Itoa(pid), name) }

// parse reads the file stat of a process. Its second field is a name, which can have
// spaces and parentheses in it.
func parse(stat string) (p Process, ok bool) {
	before, _, _ := strings.Cut(stat, " ")
	end := strings.LastIndexByte(stat, ')')
	if end < 0 {
		return p, false
	}
	fields := strings.Fields(stat[end+1:])
	if len(fields) < 20 {
		return p, false
	}
	p.PID, _ = strconv.Atoi(before)
	p.State = fields[0][0]
	p.Parent, _ = strconv.Atoi(fields[1])
	p.Started = fields[19]
	for _, field := range fields[11:15] { // utime, stime, cutime, cstime
		ticks, _ := strconv.Atoi(field)
		p.CPU += time.Duration(ticks) * time.Second / 100 // Linux counts hundredths
	}
	return p, true
}

// byParent returns all processes by those that they come from.
func byParent() map[int][]Process {
	found := map[int][]Process{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range stats {
		stat, _ := os.ReadFile(name)
		if p, ok := parse(string(stat)); ok {
			found[p.Parent] = append(found[p.Parent], p)
		}
	}
	return found
}

// Children returns the processes that a process has started.
func Children(pid int) []Process { return byParent()[pid] }

// Tree returns a process and all that come from it, or what is known of them.
func Tree(pid int) []Process {
	root, _ := Read(pid)
	root.PID = pid
	found := byParent()
	tree := []Process{root}
	for i := 0; i < len(tree); i++ {
		tree = append(tree, found[tree[i].PID]...)
	}
	return tree
}

// Args returns the command that a process was started by.
func (p Process) Args() []string {
	line, _ := os.ReadFile(file(p.PID, "cmdline"))
	return strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
}

// Memory is what processes have of the machine's memory, in bytes. What they share
// counts for each of them.
type Memory struct {
	Resident int
	Peak     int // of each process, at whatever time
}

// Memory returns that of the one process.
func (p Process) Memory() Memory {
	status, _ := os.ReadFile(file(p.PID, "status"))
	return Memory{kib(string(status), "VmRSS:"), kib(string(status), "VmHWM:")}
}

// kib returns the figure of a line such as "VmRSS:  123 kB", in bytes.
func kib(status, name string) int {
	_, after, _ := strings.Cut(status, name)
	figure, _, _ := strings.Cut(strings.TrimSpace(after), " ")
	n, _ := strconv.Atoi(figure)
	return n << 10
}

// A Machine is where something was measured.
type Machine struct {
	CPU    string
	Memory int // bytes
	Kernel string
}

// ThisMachine returns what Linux tells of it.
func ThisMachine() (m Machine) {
	m.CPU = "unknown processor"
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		if name, model, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "model name" {
			m.CPU = strings.TrimSpace(model)
			break
		}
	}
	memory, _ := os.ReadFile("/proc/meminfo")
	m.Memory = kib(string(memory), "MemTotal:")
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	m.Kernel = strings.TrimSpace(string(kernel))
	return m
}

// AvailableMemory returns how many bytes could be taken without swapping.
func AvailableMemory() int {
	memory, _ := os.ReadFile("/proc/meminfo")
	return kib(string(memory), "MemAvailable:")
}

// Listeners returns the local addresses at which a process listens for TCP connections,
// as Linux writes them, one for each of its sockets.
func Listeners(pid int) (addresses []string) {
	inodes := map[string]bool{}
	files, _ := filepath.Glob(file(pid, "fd/*"))
	for _, name := range files {
		target, _ := os.Readlink(name)
		if inode, isSocket := strings.CutPrefix(target, "socket:["); isSocket {
			inodes[strings.TrimSuffix(inode, "]")] = true
		}
	}
	const address, state, inode, listening = 1, 3, 9, "0A"
	for _, table := range []string{"net/tcp", "net/tcp6"} {
		text, _ := os.ReadFile(file(pid, table))
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			if len(fields) > inode && fields[state] == listening && inodes[fields[inode]] {
				addresses = append(addresses, fields[address])
			}
		}
	}
	return addresses
}
