package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/bench/load"
)

// turn returns the result of a turn of one second.
func turn(calls, failed int) load.Result {
	r := load.Result{Failed: failed, Elapsed: time.Second}
	for i := range calls {
		r.Latencies = append(r.Latencies, time.Duration(i+1)*time.Millisecond)
	}
	if failed > 0 {
		r.Err = errors.New("a response to another request")
	}
	return r
}

func TestCallTables(t *testing.T) {
	measures := map[string]*measure{
		baseline: {}, "fast": {}, "flaky": {}, "broken": {},
		"absent": {err: errors.New("not installed\nmore text")},
	}
	// After the first round, the machine is half as fast, for all contestants.
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
	cases := []callCase{{&kind{figures: closedLoopFigures}, cell{size: kb1, clients: 16}}}
	printCalls(&out, contestants, cases, []map[string]*measure{measures})
	for _, line := range []string{
		"| size of results × clients | 1 KB ×16 |",
		"| " + baseline + " | 1.00 |",
		"| fast | 2.00 |",
		"| flaky | 0.50 (100 failed) |", // and not 1.00
		"| broken | – |",
		"| absent | – |",
		"| " + baseline + ", calls/s | 50 |",
		"- flaky, 1 KB ×16: 100 of 200 calls failed: a response to another request",
		"- broken, 1 KB ×16: 200 of 200 calls failed: a response to another request",
		"- absent: not installed",
		"| " + baseline + " | 34.0, 98.0 |",            // ms
		"| " + baseline + " | 10 |",                    // µs
		"| fast | 15 |",                                // µs
		"| flaky | 10 (100 failed) |",                  // µs, of all calls
		"| fast | 1,500 |", "| " + baseline + " | – |", // MiB
	} {
		if !strings.Contains(out.String(), line+"\n") {
			t.Errorf("missing line %s", line)
		}
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

// TestPrintWatched prints only measured cells, with their range.
func TestPrintWatched(t *testing.T) {
	var b bench
	var out strings.Builder
	b.printWatched(&out)
	if out.Len() > 0 {
		t.Errorf("printed without any figures: %s", &out)
	}
	b.record("calls/stateful/1KB/16", joined, 1.1, .8, .9, 1.3, 1)
	b.record("calls/stateful/1KB/16", "another", 7)
	b.record(furtherServer, joined, 3.456)
	b.printWatched(&out)
	_, rows, _ := strings.Cut(out.String(), "--:|\n")
	want := "| 1 KB ×16 | mcp_gateway /mcp | 1.00 | 0.80 to 1.30 |\n" +
		"| … for each further server, KB | mcp_gateway /mcp | 3.46 | – |\n\n"
	if rows != want {
		t.Errorf("got %s, want rows %s", &out, want)
	}
}

// TestWatchedCellsExist checks that the cells to watch name existing cases and contestants.
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
	for _, c := range new(programs).contestants() {
		ids[c.id()] = true
	}
	for _, cell := range watchedCells {
		if !names[cell.name] {
			t.Errorf("unknown case %s", cell.name)
		}
		for _, id := range cell.contestants {
			if !ids[id] {
				t.Errorf("unknown contestant %s", id)
			}
		}
	}
}

// TestKindsSelectContestants checks which contestants each kind of calls selects.
func TestKindsSelectContestants(t *testing.T) {
	all := new(programs).contestants()
	for i := range kinds {
		k := &kinds[i]
		chosen := all
		if k.contestants != nil {
			chosen = k.contestants(all)
		}
		ids := map[string]bool{}
		for _, c := range chosen {
			if ids[c.id()] {
				t.Errorf("%s: duplicate id %s", k.name, c.id())
			}
			ids[c.id()] = true
		}
		if !ids[baseline] || !ids[joined] || k.contestants != nil && ids[joined+", masked"] {
			t.Errorf("%s: got %v", k.name, ids)
		}
		if k.tls && ids["mcp-hub"] || k.guarded && ids["nginx `proxy_pass`"] || k.name == "memory" && len(ids) != 8 {
			t.Errorf("%s: got %v", k.name, ids)
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
		t.Errorf("got %s, want 0.5, 3.25, 61", got)
	}
	if got := readCollections("").String(time.Second); got != noFigure {
		t.Errorf("got %s, want %s", got, noFigure)
	}
}

func TestReadGoroutines(t *testing.T) {
	for line, want := range map[string]int{"goroutine profile: total 42\n": 42, "404 page not found": 0, "": 0} {
		if got := readGoroutines(line); got != want {
			t.Errorf("%q: got %d, want %d", line, got, want)
		}
	}
}

func TestIdleReading(t *testing.T) {
	for _, c := range []struct {
		reading            idleReading
		memory, goroutines string
	}{
		{idleReading{}, noFigure, noFigure},
		{idleReading{kb: 12.34, routines: 2}, "12.3", "2.0"},
		{idleReading{kb: 12.34, reached: 9750}, "12.3 (9,750 reached)", noFigure},
		{idleReading{reached: 17}, noFigure + " (17 reached)", noFigure},
	} {
		if c.reading.memory() != c.memory || c.reading.goroutines() != c.goroutines {
			t.Errorf("%+v: got %s and %s, want %s and %s", c.reading, c.reading.memory(), c.reading.goroutines(), c.memory,
				c.goroutines)
		}
	}
}

// TestSetups checks the configuration files of contestants.
func TestSetups(t *testing.T) {
	programs := new(programs)
	servers := []server{{name: "bench", url: "http://127.0.0.1:9/call/1"}}
	for _, c := range programs.contestants() {
		if c.files == nil {
			continue
		}
		for _, s := range []setup{{}, {tls: true}, {guarded: true}, {admin: true}} {
			var text string
			for _, file := range c.files(site{programs, s, "/dir", 8080, servers}) {
				text += file
			}
			for part, wanted := range map[string]bool{
				"/dir/" + certFile:    s.tls && c.https,
				token:                 s.guarded && c.guards,
				"/dir/" + adminSocket: s.admin && (c.guards || c.name == baseline),
			} {
				if strings.Contains(text, part) != wanted {
					t.Errorf("%s, %+v: want %s in the files: %t\n%s", c.id(), s, part, wanted, text)
				}
			}
		}
	}
}

func TestCheckPace(t *testing.T) {
	for _, c := range []struct {
		name     string
		fewer    *measure
		clients  int
		measured bool
	}{
		{"no earlier measure", nil, 64, true},
		{"earlier measure without figures", &measure{}, 64, true},
		{"fast enough", &measure{pace: 20}, 64, true},
		{"too slow", &measure{pace: 10}, 64, false},
		{"too slow with fewer clients", &measure{pace: 10, err: tooSlow{64, 10}}, 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := checkPace(c.fewer, c.clients); (err == nil) != c.measured {
				t.Errorf("got %v, want measured: %t", err, c.measured)
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

func TestReplaceReport(t *testing.T) {
	const document = "before\n" + reportBegins + "\nold\n" + reportEnds + "\nafter\n"
	want := "before\n" + reportBegins + "\n\nnew\n\n" + reportEnds + "\nafter\n"
	once, err := replaceReport([]byte(document), []byte("\nnew\n\n"))
	if err != nil || string(once) != want {
		t.Errorf("got %q, %v", once, err)
	}
	if twice, err := replaceReport(once, []byte("new")); err != nil || string(twice) != want {
		t.Errorf("the second time: got %q, %v", twice, err)
	}
	if _, err := replaceReport([]byte("before "+reportEnds+reportBegins), nil); err == nil {
		t.Error("no error for a document without the two comments in order")
	}
}
