package loopback

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
)

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
