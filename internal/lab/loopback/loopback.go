// Package loopback finds and awaits ports of this machine, for programs that start
// servers to measure or to test them.
package loopback

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

var (
	mu    sync.Mutex
	given = map[int]bool{}
)

// FreePorts returns ports that were free a moment ago. The process gets none of them
// twice. They are below those that systems give to connections on their way out: one
// of these might take a port before its server does. And they are above 10080, the last
// of those that browsers, and Node.js, refuse to ask.
func FreePorts(n int) ([]int, error) {
	mu.Lock()
	defer mu.Unlock()
	var ports []int
	for range 1000 + n {
		if len(ports) == n {
			return ports, nil
		}
		port := 10_081 + rand.IntN(20_000)
		if given[port] {
			continue
		}
		if listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			listener.Close()
			given[port] = true
			ports = append(ports, port)
		}
	}
	return nil, errors.New("no free port on 127.0.0.1")
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
