// Package loopback finds free ports of this machine and waits until they are served, for
// programs that start servers to test or measure them.
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
	mu   sync.Mutex
	used = map[int]bool{}
)

// FreePorts returns ports that were free a moment ago. A process gets each port only once.
// They are below the range for outgoing connections, one of which might take the port before
// its server does, and above 10080, the last port that browsers and Node.js block.
func FreePorts(n int) ([]int, error) {
	mu.Lock()
	defer mu.Unlock()
	var ports []int
	for range 1000 + n {
		if len(ports) == n {
			return ports, nil
		}
		port := 10_081 + rand.IntN(20_000)
		if used[port] {
			continue
		}
		if listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			listener.Close()
			used[port] = true
			ports = append(ports, port)
		}
	}
	return nil, errors.New("no free port on 127.0.0.1")
}

// Await waits until a port is served, for up to 15 seconds. Its error wraps the cause of the
// context's end.
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
