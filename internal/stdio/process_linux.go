package stdio

import (
	"math"
	"os"

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

// pipeSize is how many bytes a pipe takes that long messages are read from. It is the most that
// Linux gives to users without privileges, and about as fast as a pipe that takes all of a message.
const pipeSize = 1 << 20

// widen makes a pipe take more, if the system has room for that.
func widen(pipe *os.File) {
	raw, err := pipe.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, pipeSize) })
}
