package stdio

import (
	"math"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// closeFilesOnExec keeps child processes from inheriting open files other than their standard
// streams. Go sets close-on-exec on files that it opens, but not on those that Caddy inherited,
// such as sockets of a service manager.
func closeFilesOnExec() {
	if unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) != nil { // an old kernel
		closeFilesOnExecIn("/proc/self/fd")
	}
}

const (
	// widePipe is the capacity of a wide pipe in bytes: the most that Linux allows users without
	// privileges. They get 64 MiB for all pipes, and very small pipes beyond that.
	widePipe = 1 << 20
	// maxWide is the maximum number of wide pipes.
	maxWide = 32
)

// wide counts wide pipes.
var wide atomic.Int32

// widen enlarges a pipe, so that its writer waits less for its reader, unless there are maxWide
// such pipes. The caller calls release when the pipe is closed.
func widen(pipe *os.File) (release func()) {
	if wide.Add(1) <= maxWide {
		if raw, err := pipe.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, widePipe) })
		}
	}
	return func() { wide.Add(-1) }
}
