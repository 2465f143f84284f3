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

// TestMeasureCalls measures the server itself, and one that is believed to be the
// baseline, and to mask.
func TestMeasureCalls(t *testing.T) {
	for _, modern := range []bool{false, true} {
		stateful, stateless := door{dialect: load.Legacy}, door{dialect: load.Modern}
		b := bench{budget: 40 * time.Millisecond, contestants: []contestant{
			{name: direct, legacy: stateful, modern: stateless},
			{name: baseline, legacy: stateful, modern: stateless},
			{name: "mute", legacy: door{lacks: "it does not speak"}, modern: door{lacks: "it does not speak"}},
		}}
		k := &kind{name: "test", path: upstream.ModernPath, setup: setup{modern: modern}}
		c := callCase{k, cell{size: kb100, clients: 3}}
		f, err := b.startCalls(t.Context(), b.contestants, k, c.size)
		if err != nil {
			t.Fatal(err)
		}
		defer f.stop()
		f.started[1].masked = true // which it is not: its answers are wrong from now on
		measures, err := b.measureCalls(t.Context(), f, c, nil)
		if err != nil {
			t.Fatal(err)
		}
		// On a busy machine there may be fewer rounds, each with a call of each client at least.
		if m := measures[direct]; len(m.rates) == 0 || len(m.latencies) < 3*len(m.rates) || m.failed > 0 || m.err != nil {
			t.Errorf("%s: %d answers, %d failures, %v", c, len(m.latencies), m.failed, m.err)
		}
		if m := measures[baseline]; len(m.latencies) > 0 || m.failed < 3*len(m.rates) || !strings.Contains(m.err.Error(), "of 100000 characters, not one of 40") {
			t.Errorf("%s: wrong answers are taken for %d right ones, %d failures, %v", c, len(m.latencies), m.failed, m.err)
		}
		if m := measures["mute"]; m.err == nil || len(m.latencies) > 0 {
			t.Errorf("%s: one that does not speak has answered: %v", c, m.err)
		}
	}
}

// TestUpstreamOnStdio asks a child what a bridge would.
func TestUpstreamOnStdio(t *testing.T) {
	up, err := upstream.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer up.Stop()
	behind, err := benchServer(up, upstream.CallPath+"10", true)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := exec.CommandContext(ctx, behind.stdio[0], behind.stdio[1:]...)
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
		t.Fatalf("%d lines, not one for each request: %q", len(lines), lines)
	}
	for i, part := range []string{`"protocolVersion":"2025-06-18"`, `"name":"read_log"`, `"text":"An observa"`, `"code":-32601`} {
		if !strings.Contains(lines[i], part) {
			t.Errorf("%s has no %s", lines[i], part)
		}
	}
	if err := load.Verify([]byte(lines[2]), 2, 10); err != nil {
		t.Error(err)
	}
}

// TestContestantsAreToldApart holds what the tables rely on: an id is of one contestant,
// and all that are run can say of which version they are.
func TestContestantsAreToldApart(t *testing.T) {
	ids := map[string]bool{}
	for _, c := range new(installed).contestants() {
		if ids[c.id()] {
			t.Errorf("there are two of %s", c.id())
		}
		ids[c.id()] = true
		if c.command != nil && c.version == nil {
			t.Errorf("%s has no version", c.id())
		}
	}
	if !ids[baseline] || !ids[direct] {
		t.Error("there is no baseline")
	}
}
