//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package http1

import "syscall"

// canPeek says that a socket can be asked what has arrived, without waiting.
const canPeek = true

// peekAt sets quiet if nothing has arrived at a socket, not even its end.
func (c *conn) peekAt(fd uintptr) {
	var b [1]byte
	_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	c.quiet = err == syscall.EAGAIN
}
