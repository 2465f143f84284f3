//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package http1

// canPeek says whether a socket can be checked for received bytes without blocking. Here it cannot, so
// the standard transport, which has a waiting goroutine, sends all requests.
const canPeek = false

func (*conn) peekAt(uintptr) {}
