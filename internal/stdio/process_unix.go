//go:build unix

package stdio

import (
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

const terminate = syscall.SIGTERM

// setProcessGroup makes a command start as the leader of a process group. Signals then reach its
// own children as well, and those of Caddy's terminal do not.
func setProcessGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}

// closeFilesOnExecIn sets close-on-exec on the files above the standard streams that a directory
// lists.
func closeFilesOnExecIn(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, entry := range entries {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
}

// signal sends a signal to the process group. It is not an error if all processes have ended.
func (p *process) signal(s os.Signal) {
	_ = syscall.Kill(-p.cmd.Process.Pid, s.(syscall.Signal))
}
