//go:build unix && !linux

package stdio

import "os"

// keepFiles has no process that is started from now on get an open file of ours but its
// standard streams. Go opens files so that they are kept; those with which Caddy was
// started are not.
func keepFiles() { keepFilesIn("/dev/fd") }

func widen(*os.File) (narrow func()) { return func() {} } // pipes grow by themselves here
