package main

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/load"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/upstream"
)

func TestMain(m *testing.M) {
	upstream.Main()
	os.Exit(m.Run())
}

// TestMeasureCalls measures the server itself under three names: as it is, as a baseline
// that claims to mask, and as a contestant that cannot be started.
func TestMeasureCalls(t *testing.T) {
	for _, modern := range []bool{false, true} {
		stateful, stateless := endpoint{dialect: load.Legacy}, endpoint{dialect: load.Modern}
		b := bench{budget: 40 * time.Millisecond, contestants: []contestant{
			{name: direct, legacy: stateful, modern: stateless},
			{name: baseline, legacy: stateful, modern: stateless},
			{name: "mute", legacy: endpoint{unsupported: "unsupported"}, modern: endpoint{unsupported: "unsupported"}},
		}}
		k := &kind{name: "test", path: upstream.ModernPath, setup: setup{modern: modern}}
		c := callCase{k, cell{size: kb100, clients: 3}}
		f, err := b.startCalls(t.Context(), b.contestants, k, c.size)
		if err != nil {
			t.Fatal(err)
		}
		defer f.stop()
		f.started[1].masked = true // not true, so its responses are wrong from now on
		measures, err := b.measureCalls(t.Context(), f, c, nil)
		if err != nil {
			t.Fatal(err)
		}
		// On a busy machine there may be fewer rounds, each with at least one call per client.
		if m := measures[direct]; len(m.rates) == 0 || len(m.latencies) < 3*len(m.rates) || m.failed > 0 || m.err != nil {
			t.Errorf("%s: %d responses, %d failures, error %v", c, len(m.latencies), m.failed, m.err)
		}
		if m := measures[baseline]; len(m.latencies) > 0 || m.failed < 3*len(m.rates) || !strings.Contains(m.err.Error(),
			"of 100000 characters, not one of 40") {
			t.Errorf("%s: wrong responses: %d counted as right, %d as failures, error %v", c, len(m.latencies), m.failed, m.err)
		}
		if m := measures["mute"]; m.err == nil || len(m.latencies) > 0 {
			t.Errorf("%s: an unsupported contestant was measured: %v", c, m.err)
		}
	}
}

// TestUpstreamOnStdio sends a stdio server what a gateway would.
func TestUpstreamOnStdio(t *testing.T) {
	up, err := upstream.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer up.Stop()
	backend, err := benchServer(up, upstream.CallPath+"10", true)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := exec.CommandContext(ctx, backend.stdio[0], backend.stdio[1:]...)
	cmd.Stdin = strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":"a","method":"tools/list"}
{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"read_log"}}
{"jsonrpc":"2.0","id":3,"method":"prompts/list"}
`)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(lines) != 4 {
		t.Fatalf("got %d lines, want one per request: %q", len(lines), lines)
	}
	for i, part := range []string{`"protocolVersion":"2025-06-18"`, `"name":"read_log"`, `"text":"An observa"`,
		`"code":-32601`} {
		if !strings.Contains(lines[i], part) {
			t.Errorf("%s does not contain %s", lines[i], part)
		}
	}
	if err := load.Verify([]byte(lines[2]), 2, 10); err != nil {
		t.Error(err)
	}
}

// TestContestantIDsAreUnique checks what tables rely on: ids are unique, and every program
// has a version.
func TestContestantIDsAreUnique(t *testing.T) {
	ids := map[string]bool{}
	for _, c := range new(programs).contestants() {
		if ids[c.id()] {
			t.Errorf("duplicate id %s", c.id())
		}
		ids[c.id()] = true
		if c.command != nil && c.version == nil {
			t.Errorf("%s has no version", c.id())
		}
	}
	if !ids[baseline] || !ids[direct] {
		t.Error("no baseline or direct contestant")
	}
}
