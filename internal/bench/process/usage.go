//go:build unix

package process

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A One is a process as Linux tells of it.
type One struct {
	PID     int
	parent  int
	started string        // when, by which it is known again
	CPU     time.Duration // its own, and that of children which have ended
}

// read reads the file stat of a process. Its second field is a name, which can have
// spaces and parentheses in it.
func read(stat string) (one One, ok bool) {
	before, _, _ := strings.Cut(stat, " ")
	end := strings.LastIndexByte(stat, ')')
	if end < 0 {
		return one, false
	}
	fields := strings.Fields(stat[end+1:])
	if len(fields) < 20 {
		return one, false
	}
	one.PID, _ = strconv.Atoi(before)
	one.parent, _ = strconv.Atoi(fields[1])
	one.started = fields[19]
	for _, field := range fields[11:15] { // utime, stime, cutime, cstime
		ticks, _ := strconv.Atoi(field)
		one.CPU += time.Duration(ticks) * time.Second / 100 // Linux counts hundredths
	}
	return one, true
}

// Tree returns a process and all that come from it, or what is known of them.
func Tree(pid int) []One {
	root := One{PID: pid}
	byParent := map[int][]One{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		stat, _ := os.ReadFile(file)
		if one, ok := read(string(stat)); ok {
			byParent[one.parent] = append(byParent[one.parent], one)
			if one.PID == pid {
				root = one
			}
		}
	}
	tree := []One{root}
	for i := 0; i < len(tree); i++ {
		tree = append(tree, byParent[tree[i].PID]...)
	}
	return tree
}

// kill ends a process, if it is still the one that it was.
func (o One) kill() {
	stat, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(o.PID), "stat"))
	if now, ok := read(string(stat)); ok && now.started == o.started {
		_ = syscall.Kill(o.PID, syscall.SIGKILL)
	}
}

// CPU returns the processor time that a process and all that come from it have taken,
// also those that have ended.
func (p *Process) CPU() (total time.Duration) {
	for _, one := range Tree(p.PID()) {
		total += one.CPU
	}
	return total
}

// Memory is what processes have of the machine's memory, in bytes. What they share
// counts for each of them.
type Memory struct {
	Resident int
	Peak     int // of each process, at whatever time
}

// Memory returns that of a process and all that come from it.
func (p *Process) Memory() (m Memory) {
	for _, one := range Tree(p.PID()) {
		own := one.Memory()
		m.Resident, m.Peak = m.Resident+own.Resident, m.Peak+own.Peak
	}
	return m
}

// Memory returns that of the one process.
func (o One) Memory() Memory {
	status, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(o.PID), "status"))
	return Memory{kib(string(status), "VmRSS:"), kib(string(status), "VmHWM:")}
}

// Self returns the process without those that come from it.
func (p *Process) Self() One { return Tree(p.PID())[0] }

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
