//go:build unix

package stdio

import (
	"os"
	"os/exec"
	"syscall"
)

const terminate = syscall.SIGTERM

// ownGroup has a command start as the leader of a process group, so that signals
// reach its children as well, and those of Caddy's terminal do not.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}

// signal sends a signal to the process and to what it has started. That all of
// them have ended is no error.
func (p *process) signal(s os.Signal) {
	_ = syscall.Kill(-p.cmd.Process.Pid, s.(syscall.Signal))
}
