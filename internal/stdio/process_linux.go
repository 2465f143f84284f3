package stdio

import (
	"math"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// keepFiles has no process that is started from now on get an open file of ours but its
// standard streams. Go opens files so that they are kept; those with which Caddy was
// started, such as sockets of a service manager, are not.
func keepFiles() {
	if unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) != nil { // an old kernel
		keepFilesIn("/proc/self/fd")
	}
}

const (
	// widePipe is how many bytes a wide pipe takes: the most that Linux gives to a user without
	// privileges. It gives such a user 64 MiB for all pipes, and very small ones beyond that.
	widePipe = 1 << 20
	// maxWide is how many pipes are wide.
	maxWide = 32
)

// wide counts wide pipes.
var wide atomic.Int32

// widen makes a pipe take more, so that its writer need not wait for its reader, unless there are
// many such pipes. It returns a function to call when the pipe is closed.
func widen(pipe *os.File) (narrow func()) {
	if wide.Add(1) <= maxWide {
		if raw, err := pipe.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, widePipe) })
		}
	}
	return func() { wide.Add(-1) }
}
