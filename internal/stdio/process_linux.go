package stdio

import (
	"math"

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
