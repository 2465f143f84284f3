//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package http1

// canPeek says whether a socket can be checked for received bytes without blocking. On this
// platform it cannot, so the standard transport, which reads each connection in a goroutine, sends
// all requests.
const canPeek = false

func (*conn) peekAt(uintptr) {}
