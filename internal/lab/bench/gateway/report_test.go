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
	cases := []callCase{{&kind{figures: closed}, cell{size: kb1, clients: 16}}}
	printCalls(&out, contestants, cases, []map[string]*measure{measures})
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

// TestWatched shows the cells that were measured, with their range, and no others.
func TestWatched(t *testing.T) {
	var b bench
	var out strings.Builder
	if b.printWatched(&out); out.Len() > 0 {
		t.Errorf("nothing was measured: %s", &out)
	}
	b.watch("calls/stateful/1KB/16", joined, 1.1, .8, .9, 1.3, 1)
	b.watch("calls/stateful/1KB/16", "another", 7)
	b.watch(furtherServer, joined, 3.456)
	b.printWatched(&out)
	_, rows, _ := strings.Cut(out.String(), "--:|\n")
	want := "| 1 KB ×16 | mcp_gateway /mcp | 1.00 | 0.80 to 1.30 |\n" +
		"| … for each further server, KB | mcp_gateway /mcp | 3.46 | – |\n\n"
	if rows != want {
		t.Errorf("got %s", &out)
	}
}

// TestWatchedCellsExist holds the names of cells to watch against the cases and contestants.
func TestWatchedCellsExist(t *testing.T) {
	names, ids := map[string]bool{furtherServer: true}, map[string]bool{}
	for i := range kinds {
		for _, cell := range kinds[i].cells {
			names[callCase{&kinds[i], cell}.String()] = true
		}
	}
	for _, c := range idleCases {
		names[c.String()] = true
	}
	for _, n := range joinedServers {
		names[newSession(n)] = true
	}
	for _, c := range new(installed).contestants() {
		ids[c.id()] = true
	}
	for _, cell := range watched {
		if !names[cell.name] {
			t.Errorf("no case is called %s", cell.name)
		}
		for _, id := range cell.contestants {
			if !ids[id] {
				t.Errorf("no contestant is called %s", id)
			}
		}
	}
}

// TestKindsChoose tells which contestants a kind of calls is for.
func TestKindsChoose(t *testing.T) {
	all := new(installed).contestants()
	for i := range kinds {
		k := &kinds[i]
		chosen := all
		if k.contestants != nil {
			chosen = k.contestants(all)
		}
		ids := map[string]bool{}
		for _, c := range chosen {
			if ids[c.id()] {
				t.Errorf("%s has two of %s", k.name, c.id())
			}
			ids[c.id()] = true
		}
		if !ids[baseline] || !ids[joined] || k.contestants != nil && ids[joined+", masked"] {
			t.Errorf("%s has %v", k.name, ids)
		}
		if k.tls && ids["mcp-hub"] || k.guarded && ids["nginx `proxy_pass`"] || k.name == "memory" && len(ids) != 8 {
			t.Errorf("%s has %v", k.name, ids)
		}
	}
}

func TestReadCollections(t *testing.T) {
	const output = `{"level":"error","msg":"gc 1 @"}
gc 7 @1.213s 0%: 0.031+1.5+0.020 ms clock, 0.063+0.21/1.4/0.01+0.041 ms cpu, 7->8->4 MB, 8 MB goal
gc 8 @2.5s 12%: 0.5+22+3.25 ms clock, 1+0/22/0+6.5 ms cpu, 40->61->30 MB, 62 MB goal (forced)
gc 9 @2.6s 12%: 0.5+2`
	c := readCollections(output)
	if want := (collections{2, 3250 * time.Microsecond, 61}); c != want {
		t.Errorf("got %+v, want %+v", c, want)
	}
	if got := c.String(4 * time.Second); got != "0.5, 3.25, 61" {
		t.Errorf("got %s", got)
	}
	if got := readCollections("").String(time.Second); got != none {
		t.Errorf("got %s", got)
	}
}

func TestReadGoroutines(t *testing.T) {
	for line, want := range map[string]int{"goroutine profile: total 42\n": 42, "404 page not found": 0, "": 0} {
		if got := readGoroutines(line); got != want {
			t.Errorf("%q: got %d", line, got)
		}
	}
}

func TestIdleReading(t *testing.T) {
	for _, c := range []struct {
		reading            idleReading
		memory, goroutines string
	}{
		{idleReading{}, none, none},
		{idleReading{kb: 12.34, routines: 2}, "12.3", "2.0"},
		{idleReading{kb: 12.34, reached: 9750}, "12.3 (9,750 reached)", none},
		{idleReading{reached: 17}, none + " (17 reached)", none},
	} {
		if c.reading.memory() != c.memory || c.reading.goroutines() != c.goroutines {
			t.Errorf("%+v: got %s and %s", c.reading, c.reading.memory(), c.reading.goroutines())
		}
	}
}

// TestSetups looks into the files that contestants are set up with.
func TestSetups(t *testing.T) {
	in := new(installed)
	servers := []server{{name: "bench", url: "http://127.0.0.1:9/call/1"}}
	for _, c := range in.contestants() {
		if c.files == nil {
			continue
		}
		for _, s := range []setup{{}, {tls: true}, {guarded: true}, {admin: true}} {
			var text string
			for _, file := range c.files(site{in, s, "/dir", 8080, servers}) {
				text += file
			}
			for part, wanted := range map[string]bool{
				"/dir/" + certFile:    s.tls && c.https,
				token:                 s.guarded && c.guards,
				"/dir/" + adminSocket: s.admin && (c.guards || c.name == baseline),
			} {
				if strings.Contains(text, part) != wanted {
					t.Errorf("%s, %+v: %s is expected to be there: %t\n%s", c.id(), s, part, wanted, text)
				}
			}
		}
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
