//go:build unix

package stdio

import (
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

const terminate = syscall.SIGTERM

// ownGroup has a command start as the leader of a process group, so that signals
// reach its children as well, and those of Caddy's terminal do not.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}

// keepFilesIn keeps the files above the standard streams that are listed in a directory.
func keepFilesIn(dir string) {
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

// signal sends a signal to the process and to what it has started. That all of
// them have ended is no error.
func (p *process) signal(s os.Signal) {
	_ = syscall.Kill(-p.cmd.Process.Pid, s.(syscall.Signal))
}
