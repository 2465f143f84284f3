package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/load"
)

// turn is a turn of so many calls in a second.
func turn(calls, failed int) load.Result {
	r := load.Result{Failed: failed, Elapsed: time.Second}
	for i := range calls {
		r.Latencies = append(r.Latencies, time.Duration(i+1)*time.Millisecond)
	}
	if failed > 0 {
		r.Err = errors.New("an answer to another request")
	}
	return r
}

func TestCallTables(t *testing.T) {
	measures := map[string]*measure{
		baseline: {}, "fast": {}, "flaky": {}, "broken": {},
		"absent": {err: errors.New("it is not installed\nmore of that")},
	}
	// The machine is twice as slow after the first round, for all.
	for round, pace := range []int{100, 50, 50} {
		measures[baseline].add(turn(pace, 0), time.Duration(pace)*10*time.Microsecond)
		measures["fast"].add(turn(2*pace, 0), time.Duration(pace)*30*time.Microsecond)
		measures["flaky"].add(turn(pace/2, pace/2), time.Duration(pace)*10*time.Microsecond)
		measures["broken"].add(turn(0, pace), time.Millisecond)
		compare(measures, round)
	}
	measures["fast"].peak = 1500 << 20
	var contestants []contestant
	for _, name := range []string{baseline, "fast", "flaky", "broken", "absent"} {
		contestants = append(contestants, contestant{name: name})
	}
	var out strings.Builder
	printCalls(&out, contestants, []callCase{{&kind{figures: closed}, cell{size: kb1, clients: 16}}}, []map[string]*measure{measures})
	for _, line := range []string{
		"| size of results × clients | 1 KB ×16 |",
		"| " + baseline + " | 1.00 |",
		"| fast | 2.00 |",
		"| flaky | 0.50 (100 failed) |", // and not 1.00
		"| broken | – |",
		"| absent | – |",
		"| " + baseline + ", calls/s | 50 |",
		"- flaky, 1 KB ×16: 100 of 200 calls failed: an answer to another request",
		"- broken, 1 KB ×16: 200 of 200 calls failed: an answer to another request",
		"- absent: it is not installed",
		"| " + baseline + " | 34.0, 98.0 |",            // ms
		"| " + baseline + " | 10 |",                    // µs
		"| fast | 15 |",                                // µs
		"| flaky | 10 (100 failed) |",                  // µs, of all calls
		"| fast | 1,500 |", "| " + baseline + " | – |", // MiB
	} {
		if !strings.Contains(out.String(), line+"\n") {
			t.Errorf("there is no %s", line)
		}
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

func TestImpatient(t *testing.T) {
	for _, c := range []struct {
		name    string
		fewer   *measure
		clients int
		waits   bool
	}{
		{"nothing is known", nil, 64, true},
		{"it was not measured", &measure{}, 64, true},
		{"it answers in time", &measure{pace: 20}, 64, true},
		{"it does not", &measure{pace: 10}, 64, false},
		{"it did not with fewer", &measure{pace: 10, err: tooSlow{64, 10}}, 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := impatient(c.fewer, c.clients); (err == nil) != c.waits {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestThousands(t *testing.T) {
	for f, want := range map[float64]string{0: "0", 999.4: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := thousands(f); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestReplaced(t *testing.T) {
	const document = "before\n" + reportBegins + "\nold\n" + reportEnds + "\nafter\n"
	want := "before\n" + reportBegins + "\n\nnew\n\n" + reportEnds + "\nafter\n"
	once, err := replaced([]byte(document), []byte("\nnew\n\n"))
	if err != nil || string(once) != want {
		t.Errorf("got %q, %v", once, err)
	}
	if twice, err := replaced(once, []byte("new")); err != nil || string(twice) != want {
		t.Errorf("the second time got %q, %v", twice, err)
	}
	if _, err := replaced([]byte("before "+reportEnds+reportBegins), nil); err == nil {
		t.Error("a document without a place was written to")
	}
}
