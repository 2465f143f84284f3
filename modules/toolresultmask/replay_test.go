package toolresultmask

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// billOf returns the JSON bill of transcripts.
func billOf(t *testing.T, config string, ttl time.Duration, paths ...string) (report replayJSON) {
	t.Helper()
	var out bytes.Buffer
	if err := newReplay(provision(t, config), ttl).run(paths, nil, &replayJSON{out: &out}); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		t.Fatal(err)
	}
	return report
}

func transcriptOf(t *testing.T, text string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "transcript.json")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestReplay(t *testing.T) {
	long := strings.Repeat("A", 40_000) // 10,000 tokens
	file := transcriptOf(t, turns(long, long, long))
	for _, test := range []struct {
		name, config string
		sent         [2]int // thousands of tokens of the last two requests
		cost         [2]int // thousands of tokens of the last two requests
		moves        int
	}{
		{"a large window", `{"window_turns":9}`, [2]int{20, 30}, [2]int{13, 14}, 0},
		{"off", `{"enabled":false}`, [2]int{20, 30}, [2]int{13, 14}, 0},
		{"larger than the buffer", `{"window_turns":1,"buffer_limit":1000}`, [2]int{20, 30}, [2]int{13, 14}, 0},
		{"a sliding window", `{"window_turns":1}`, [2]int{10, 10}, [2]int{12, 12}, 2},
		{"other prices", `{"window_turns":9,"cache_prices":{"read":0.5,"write":1}}`, [2]int{20, 30}, [2]int{15, 20}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			report := billOf(t, test.config, 0, file)
			if len(report.Transcripts) != 1 || len(report.Transcripts[0].Each) != 3 || report.Total.Moves != test.moves {
				t.Fatalf("%+v", report)
			}
			for i, r := range report.Transcripts[0].Each[1:] {
				if r.Sent/1000 != test.sent[i] || int(r.Cost)/1000 != test.cost[i] || r.Unmasked/10_000 != i+2 {
					t.Errorf("request %d: %+v", i+1, r)
				}
				if r.Read+r.Written != r.Sent {
					t.Errorf("request %d: %+v", i+1, r)
				}
			}
		})
	}
}

// An agent may shorten its conversation, which then has no masked results.
func TestReplayCut(t *testing.T) {
	long := strings.Repeat("A", 8000)
	var lines []string
	for _, n := range []int{20, 40, 60, 3} {
		body := turns(slices.Repeat([]string{long}, n)...)
		lines = append(lines, strings.Replace(body, `[`, `[{"role":"user","content":"Go"},`, 1))
	}
	report := billOf(t, `{"clear_at_least":"auto"}`, 0, transcriptOf(t, strings.Join(lines, "\n")))
	if each := report.Transcripts[0].Each; len(each) != 4 || each[2].Results == 0 || each[3].Results > 0 {
		t.Errorf("%+v", each)
	}
}

// Files that cannot be read are listed. Devices and pipes, which could block, are not opened.
func TestReplayUnread(t *testing.T) {
	good := transcriptOf(t, turns("a", "b"))
	dir := filepath.Dir(good)
	for name, target := range map[string]string{"device.json": os.DevNull, "gone.json": "nowhere", "loop.json": "."} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Skip(err)
		}
	}
	report := billOf(t, `{}`, 0, dir)
	got := map[string]string{}
	for _, file := range report.Unread {
		got[filepath.Base(file.Name)] = file.Reason
	}
	want := map[string]string{
		"device.json": "not a regular file", "gone.json": syscall.ENOENT.Error(), "loop.json": "not a regular file",
	}
	if !maps.Equal(got, want) || len(report.Transcripts) != 1 {
		t.Errorf("%d transcripts, unread %q", len(report.Transcripts), got)
	}
}

func TestReplayStandardInput(t *testing.T) {
	for _, paths := range [][]string{nil, {"-"}} {
		var out bytes.Buffer
		err := newReplay(provision(t, `{}`), 0).run(paths, strings.NewReader(turns("a", "b")), &replayJSON{out: &out})
		var report replayJSON
		if err != nil || json.Unmarshal(out.Bytes(), &report) != nil || len(report.Transcripts) != 1 ||
			report.Transcripts[0].Name != "standard input" {
			t.Errorf("%q: %v, %s", paths, err, &out)
		}
	}
}

// A request later than the ttl reads nothing from the cache.
func TestReplayExpires(t *testing.T) {
	line := func(minute int, role, content string) string {
		return fmt.Sprintf(`{"type":%q,"timestamp":"2026-01-01T00:%02d:00Z","message":{"role":%[1]q,"content":%[3]q}}`+"\n",
			role, minute, content)
	}
	file := transcriptOf(t, line(0, "user", strings.Repeat("A", 40_000))+line(1, "assistant", "a")+
		line(10, "user", "u")+line(11, "assistant", "b"))
	for ttl, read := range map[time.Duration]bool{0: true, 5 * time.Minute: false, 10 * time.Minute: true} {
		report := billOf(t, `{}`, ttl, file)
		if got := report.Transcripts[0].Each[1].Read > 0; got != read {
			t.Errorf("%s: read %t", ttl, got)
		}
	}
}

func TestReplaySummary(t *testing.T) {
	var sum replaySummary
	for _, ratio := range []float64{1.03, .5, 1.1, 1.01} {
		sum.add(billedTranscript{
			Requests: 2, Unmasked: 100, Sent: 80, CostUnmasked: 100, Cost: 100 * ratio, BillRatio: ratio, Moves: 1,
		})
	}
	got := fmt.Sprintf("%d %d %d %.2f %.2f %.2f %.2f %d %d %d",
		sum.Transcripts, sum.Requests, sum.Moves, sum.TokensRatio, sum.BillRatio, sum.Median, sum.Worst,
		sum.Raised, sum.RaisedBy2, sum.RaisedBy5)
	if want := "4 8 4 0.80 0.91 1.02 1.10 3 2 1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
