package mcpstdio

import (
	"context"
	"strconv"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/stdio"
)

func TestStatusAndRestart(t *testing.T) { // A62, A70, A72
	transport, other := provision(t, `,"stop_grace":1000000000`), provision(t, `,"stop_grace":1000000000`)
	defer func() { _, _ = transport.Cleanup(), other.Cleanup() }()
	if asked, err := transport.Check(t.Context(), "alpha:1"); asked || err != nil {
		t.Errorf("before the first request: %t, %v", asked, err)
	}
	if got := transport.Status("alpha:1")[0].State; got != stdio.Idle {
		t.Errorf("state %s, want %s", got, stdio.Idle)
	}
	before, err := strconv.Atoi(call(t, transport, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	if err := transport.Restart(t.Context(), "alpha:1"); err != nil {
		t.Error(err)
	}
	if !transport.Shares(other) {
		t.Error("equal configurations do not share children")
	}
	got := other.Status("alpha:1")[0]
	if got.PID == before || got.State != stdio.Running || got.Restarts != 1 {
		t.Errorf("after the restart of process %d: %+v", before, got)
	}
	if asked, err := other.Check(t.Context(), "alpha:1"); !asked || err != nil {
		t.Errorf("a running child: %t, %v", asked, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := other.Check(ctx, "alpha:1"); err == nil {
		t.Error("a canceled check succeeds")
	}
}

func TestStart(t *testing.T) {
	transport := provision(t, `,"stop_grace":1000000000`)
	defer transport.Cleanup()
	for range 2 {
		if err := transport.Start(t.Context(), "alpha:1"); err != nil {
			t.Fatal(err)
		}
	}
	got := transport.Status("alpha:1")
	if len(got) != 1 || got[0].State != stdio.Running || strconv.Itoa(got[0].PID) != call(t, transport, "pid") {
		t.Errorf("got %+v", got)
	}
}
