//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package http1

import "syscall"

// canPeek says whether a socket can be checked for received bytes without blocking.
const canPeek = true

// peekAt sets quiet if a socket is open and has received nothing.
func (c *conn) peekAt(fd uintptr) {
	var b [1]byte
	_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	c.quiet = err == syscall.EAGAIN
}
