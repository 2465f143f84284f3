// Package procfs reads Linux's /proc: processes, and data about the machine. On other systems
// it finds nothing.
package procfs

import (
	"bufio"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// A Process is a process as it was when it was read.
type Process struct {
	PID     int
	Parent  int
	State   byte          // for example Z, a zombie
	Started string        // start time, which tells processes with the same PID apart
	CPU     time.Duration // processor time, including that of ended children
}

// Read returns a process, if it exists.
func Read(pid int) (Process, bool) {
	stat, _ := os.ReadFile(file(pid, "stat"))
	return parse(string(stat))
}

func file(pid int, name string) string { return filepath.Join("/proc", strconv.Itoa(pid), name) }

// parse parses the file stat of a process. Its second field is a name that may contain spaces
// and parentheses.
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
		p.CPU += time.Duration(ticks) * time.Second / 100 // Linux counts hundredths of a second
	}
	return p, true
}

// byParent returns all processes by the PID of their parent.
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

// Children returns the child processes of a process.
func Children(pid int) []Process { return byParent()[pid] }

// Tree returns a process and its descendants. The process comes first, even if it has ended.
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

// Args returns the command line of a process.
func (p Process) Args() []string {
	line, _ := os.ReadFile(file(p.PID, "cmdline"))
	return strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
}

// Memory is the memory of processes in bytes. Shared pages count for each process.
type Memory struct {
	Resident int
	Peak     int // sum of each process's own peak
}

// Memory returns the memory of one process.
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

// A Machine describes where something was measured.
type Machine struct {
	CPU    string
	Memory int // bytes
	Kernel string
}

// ThisMachine describes this machine.
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

// AvailableMemory returns how many bytes can be allocated without swapping.
func AvailableMemory() int {
	memory, _ := os.ReadFile("/proc/meminfo")
	return kib(string(memory), "MemAvailable:")
}

// Listeners returns the local addresses on which a process listens for TCP connections, as
// Linux writes them, one per socket.
func Listeners(pid int) (addresses []string) {
	inodes := map[string]bool{}
	files, _ := filepath.Glob(file(pid, "fd/*"))
	for _, name := range files {
		target, _ := os.Readlink(name)
		if inode, isSocket := strings.CutPrefix(target, "socket:["); isSocket {
			inodes[strings.TrimSuffix(inode, "]")] = true
		}
	}
	for _, table := range []string{"net/tcp", "net/tcp6"} {
		for _, l := range listeners(file(pid, table)) {
			if inodes[l.inode] {
				addresses = append(addresses, l.address)
			}
		}
	}
	return addresses
}

// A listener is a socket that listens for connections.
type listener struct{ address, inode string }

// listeners reads the listeners of a table of sockets, which come first. It reads small pieces and
// stops at the first other socket: Linux writes the table while it is read, and the whole table
// takes milliseconds.
func listeners(table string) (all []listener) {
	f, err := os.Open(table)
	if err != nil {
		return nil
	}
	defer f.Close()
	const address, state, inode, listening = 1, 3, 9, "0A"
	lines := bufio.NewScanner(f)
	lines.Buffer(make([]byte, 256), 4096)
	lines.Scan() // names of columns
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) <= inode || fields[state] != listening {
			break
		}
		all = append(all, listener{fields[address], fields[inode]})
	}
	return all
}
