package loopback

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
)

// Several blocks of ports are needed, and no other process can take them.
func TestFreePorts(t *testing.T) {
	ports, err := FreePorts(2*blockSize + 1)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for _, port := range ports {
		if seen[port] {
			t.Errorf("port %d is returned twice", port)
		}
		seen[port] = true
		if lock, err := listen(firstLock + (port-firstPort)/blockSize); err == nil {
			t.Errorf("another process can take the block of port %d", port)
			lock.Close()
		}
	}
}

func TestAwait(t *testing.T) {
	ports, err := FreePorts(2)
	if err != nil || ports[0] == ports[1] {
		t.Fatal(ports, err)
	}
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", ports[0]))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if err := Await(t.Context(), ports[0]); err != nil {
		t.Error(err)
	}
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	if err := Await(ctx, ports[1]); !errors.Is(err, gone) {
		t.Errorf("got %v, want %v", err, gone)
	}
}
