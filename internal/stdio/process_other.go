//go:build !unix

package stdio

import (
	"os"
	"os/exec"
)

var terminate = os.Kill // there is no TERM on this system

func setProcessGroup(*exec.Cmd) {}

func closeFilesOnExec() {} // this system passes only the standard streams

func (p *process) signal(s os.Signal) { _ = p.cmd.Process.Signal(s) }
