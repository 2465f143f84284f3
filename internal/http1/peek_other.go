//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package http1

// canPeek says that a socket cannot be asked what has arrived, without waiting. The standard
// transport, which has a goroutine that waits, sends everything.
const canPeek = false

func (*conn) peekAt(uintptr) {}
