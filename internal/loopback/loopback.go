// Package loopback finds and awaits ports of this machine, for programs that start
// servers to measure or to test them.
package loopback

import (
	"context"
	"fmt"
	"net"
	"time"
)

// FreePorts returns ports that were free a moment ago, no two the same.
func FreePorts(n int) ([]int, error) {
	ports := make([]int, n)
	for i := range ports {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer listener.Close() // not before all are found, or two may be one
		ports[i] = listener.Addr().(*net.TCPAddr).Port
	}
	return ports, nil
}

// Await waits until a port is served, for 15 seconds at most. If it is not, the
// error is the cause of the context's end.
func Await(ctx context.Context, port int) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	for {
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("port %d is not served: %w", port, context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
}
