//go:build unix

package process

import (
	"syscall"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/procfs"
)

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
