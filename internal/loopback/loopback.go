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

// Ports are below the range for outgoing connections, one of which might take a port before its
// server does, and above 10080, the last port that browsers and Node.js block. They are given in
// blocks. A process has a block as long as it listens on the block's lock, a port after all blocks.
const (
	firstPort = 10_081
	blockSize = 100
	blocks    = 200
	firstLock = firstPort + blocks*blockSize
)

var (
	mu     sync.Mutex
	locks  []net.Listener // of the blocks of this process, until it ends
	unused []int          // ports of its last block
)

// FreePorts returns ports on which nothing listens. They belong to this process until it ends: no
// call of FreePorts, in this process or another, returns them again.
func FreePorts(n int) ([]int, error) {
	mu.Lock()
	defer mu.Unlock()
	var ports []int
	for len(ports) < n {
		if len(unused) == 0 {
			if err := takeBlock(); err != nil {
				return nil, err
			}
		}
		port := unused[0]
		unused = unused[1:]
		if listener, err := listen(port); err == nil {
			listener.Close()
			ports = append(ports, port)
		}
	}
	return ports, nil
}

// takeBlock adds the ports of a block that no process has.
func takeBlock() error {
	for _, block := range rand.Perm(blocks) {
		lock, err := listen(firstLock + block)
		if err != nil {
			continue
		}
		locks = append(locks, lock)
		for i := range blockSize {
			unused = append(unused, firstPort+block*blockSize+i)
		}
		return nil
	}
	return errors.New("no free ports on 127.0.0.1")
}

func listen(port int) (net.Listener, error) {
	return net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
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
