package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/bill"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/chat"
)

// padded returns before and after with padding between them, n tokens in total.
func padded(before string, n int, after string) []byte {
	return []byte(before + strings.Repeat("x", n*chat.CharsPerToken-len(before)-len(after)) + after)
}

// tinyRun returns a run of three turns: an opening of 1,000 tokens, replies of 50 tokens,
// and results of 100, 200 and 300.
func tinyRun() run {
	tinyTurn := func(id string, tokens int) turn {
		return turn{
			reply: padded(`,{"role":"assistant","tool_calls":[{"id":"`+id+`","function":{"name":"shell","arguments":"`, 50,
				`"}}]}`),
			results: padded(`,{"role":"tool","tool_call_id":"`+id+`","content":"`, tokens, `"}`),
		}
	}
	return run{
		opening: padded(`{"messages":[{"role":"user","content":"`, 1000, `"}`),
		turns:   []turn{tinyTurn("a", 100), tinyTurn("b", 200), tinyTurn("c", 300)},
		answer:  padded(`,{"role":"assistant","content":"`, 20, `"}`),
	}
}

func billOf(t *testing.T, r run, policy chat.Policy, minimum int) account {
	t.Helper()
	var c chat.Conversation
	sessions := openSessions([]row{{policy: policy}}, minimum)
	if err := play(&c, r, sessions, 0); err != nil {
		t.Fatal(err)
	}
	return sessions[0].account
}

func TestBillOfTinyRun(t *testing.T) {
	masked, err := chat.ParseTemplate("[masked]")
	if err != nil {
		t.Fatal(err)
	}
	const output = 50 + 50 + 50 + 20
	for _, test := range []struct {
		name    string
		policy  chat.Policy
		minimum int
		want    account
		cost    float64
	}{
		{
			name: "each request reads everything sent before",
			want: account{Tokens: bill.Tokens{Read: 1000 + 1150 + 1400, Written: 1000 + 150 + 250 + 350, Output: output}},
			cost: 355 + 2187.5 + 850,
		},
		{
			name:    "a prefix that is too short for the cache is written again",
			minimum: 1001,
			want:    account{Tokens: bill.Tokens{Read: 1150 + 1400, Written: 1000 + 1150 + 250 + 350, Output: output}},
			cost:    255 + 3437.5 + 850,
		},
		{
			// A result has 46 bytes before its content: 11 tokens and a fraction.
			// Masked, it has 56 bytes: 14 tokens.
			name:   "a request that changes the prefix reads up to the masked result",
			policy: chat.Policy{WindowTurns: 1, Template: masked},
			want: account{
				Tokens: bill.Tokens{
					Read:    1000 + (1000 + 50 + 11) + (1000 + 50 + 14 + 50 + 11),
					Written: 1000 + 150 + (3 + 50 + 200) + (3 + 50 + 300),
					Output:  output,
				},
				breaks: 2,
			},
			cost: 318.6 + 2195 + 850,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := billOf(t, tinyRun(), test.policy, test.minimum)
			if got != test.want {
				t.Errorf("bill %+v, want %+v", got, test.want)
			}
			if cost := got.Cost(bill.Prices{Read: .1, Write: 1.25, Output: 5}); cost-test.cost > 1e-6 || test.cost-cost > 1e-6 {
				t.Errorf("cost %g, want %g", cost, test.cost)
			}
		})
	}
}

func TestPolicyThatMasksNothingCostsTheSame(t *testing.T) {
	r := newRun(1, 0, bulky(30))
	none := billOf(t, r, chat.Policy{}, 1024)
	for name, policy := range map[string]chat.Policy{
		"a window as long as the run": {WindowTurns: 30, KeepErrors: chat.ErrorsOn},
		"no result is long enough":    {WindowTurns: 8, MinChars: 70_000},
		"no step pays":                {WindowTurns: 8, ClearAtLeast: 1_000_000},
	} {
		if got := billOf(t, r, policy, 1024); got != none {
			t.Errorf("%s: got %+v, want %+v as without masking", name, got, none)
		}
	}
}

// T32: between steps, requests do not change what was sent before.
func TestSteppedBreaksAtStepsOnly(t *testing.T) {
	var (
		c      chat.Conversation
		breaks []int
	)
	s := session{policy: &chat.Policy{WindowTurns: 8, StepTurns: 16, KeepErrors: chat.ErrorsOn}}
	turns := 0
	for body := range newRun(1, 0, bulky(80)).requests() {
		if err := c.Parse(body); err != nil {
			t.Fatal(err)
		}
		broken, err := s.send(&c, body, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		if broken {
			breaks = append(breaks, turns)
		}
		turns++
	}
	if want := []int{8 + 16, 8 + 32, 8 + 48, 8 + 64}; !slices.Equal(breaks, want) {
		t.Errorf("breaks at turns %v, want %v", breaks, want)
	}
}

// TestRunsAreAsDescribed checks the description of runs in the package comment.
func TestRunsAreAsDescribed(t *testing.T) {
	for _, test := range []struct {
		kind                                               kind
		runs                                               int
		turns, opening, median, mean, large, kept, precise [2]int
	}{
		{recorded[0], 200, [2]int{16, 20}, [2]int{6900, 7300}, [2]int{250, 700}, [2]int{1700, 2500}, [2]int{33, 43},
			[2]int{25, 35}, [2]int{4, 7}},
		{recorded[1], 200, [2]int{17, 21}, [2]int{1200, 1350}, [2]int{180, 280}, [2]int{900, 1300}, [2]int{20, 27},
			[2]int{15, 20}, [2]int{10, 14}},
		{bulky(60), 40, [2]int{60, 60}, [2]int{5500, 5700}, [2]int{1400, 1800}, [2]int{3600, 4600}, [2]int{62, 72},
			[2]int{4, 6}, [2]int{4, 6}},
	} {
		t.Run(test.kind.name, func(t *testing.T) {
			var (
				c                          chat.Conversation
				turns, sizes               []int
				total, large, kept, failed int
			)
			all := chat.Policy{WindowTurns: 1}
			for i := range uint64(test.runs) {
				r := newRun(1, i, test.kind)
				turns = append(turns, len(r.turns))
				between(t, "tokens of tools and instructions", len(r.opening)/chat.CharsPerToken, test.opening)
				var body []byte
				for body = range r.requests() {
				}
				if err := c.Parse(body); err != nil {
					t.Fatal(err)
				}
				old := c.Mask(&all).Results
				for result := range c.Results(&all) {
					sizes = append(sizes, result.Chars)
					total += result.Chars
					if result.Chars >= 800 {
						large++
					}
				}
				kept += old - c.Mask(&chat.Policy{WindowTurns: 1, KeepErrors: chat.ErrorsOn}).Results
				failed += old - c.Mask(&chat.Policy{WindowTurns: 1, KeepErrors: chat.ErrorsPrecise}).Results
			}
			slices.Sort(turns)
			slices.Sort(sizes)
			between(t, "median of the turns", turns[len(turns)/2], test.turns)
			between(t, "median of the results", sizes[len(sizes)/2], test.median)
			between(t, "mean of the results", total/len(sizes), test.mean)
			between(t, "percent of 800 characters and more", 100*large/len(sizes), test.large)
			between(t, "percent that keep_errors on keeps", 100*kept/len(sizes), test.kept)
			between(t, "percent that keep_errors precise keeps", 100*failed/len(sizes), test.precise)
		})
	}
}

func between(t *testing.T, what string, got int, want [2]int) {
	t.Helper()
	if got < want[0] || got > want[1] {
		t.Errorf("%s: %d, want %d to %d", what, got, want[0], want[1])
	}
}

// TestRecommendedPolicies checks that no recommended policy raises the bill of a run by more
// than 5 %, with or without pauses, nor the bill of more than one recorded run in a hundred by
// more than 2 %, and that long runs become cheaper.
func TestRecommendedPolicies(t *testing.T) {
	s := settings{prices: bill.Prices{Read: .1, Write: 1.25}, minimum: chat.MinCached, window: 8, turns: []int{60, 150},
		runs: 50, pauses: 4, seed: 1}
	rows := s.rows()
	atMost := map[string]float64{"patches, 40 turns and more": 1, "bulky, 60 turns": 0.85, "bulky, 150 turns": 0.52}
	raised := make([]int, len(rows))
	for _, k := range s.kinds() {
		outcomes, err := simulate(s, k, rows)
		if err != nil {
			t.Fatal(err)
		}
		for i, row := range rows {
			if !row.recommended {
				continue
			}
			limit, long := atMost[k.name]
			if !long {
				limit = 1.005
				raised[i] += outcomes[i][0].raised2
			}
			for pauses, o := range outcomes[i] {
				if ratio := o.bill / outcomes[0][pauses].bill; o.raised5 > 0 || ratio > limit {
					t.Errorf("%s, %s, pauses %d: bill is %.3f of that without masking, worst %.3f", k.name, row.name, pauses, ratio,
						o.worst)
				}
			}
		}
	}
	for i, row := range rows {
		if raised[i] > len(recorded)*s.runs/100 {
			t.Errorf("%s: %d bills are more than 2 %% higher", row.name, raised[i])
		}
	}
}

func TestReportIsDeterministic(t *testing.T) {
	s := settings{prices: bill.Prices{Read: .1, Write: 1.25, Output: 5}, minimum: 1024, window: 2, turns: []int{3, 6},
		runs: 2, pauses: 4, seed: 7}
	for name, markdown := range map[string]bool{"aligned": false, "markdown": true} {
		t.Run(name, func(t *testing.T) {
			var first, second bytes.Buffer
			for _, out := range []*bytes.Buffer{&first, &second} {
				if err := report(out, s, markdown); err != nil {
					t.Fatal(err)
				}
			}
			if first.String() != second.String() {
				t.Errorf("two reports differ:\n%s%s", &first, &second)
			}
			for _, want := range []string{
				"read 0.1, write 1.25, output 5; window 2 turns; 4% of requests after a pause; seed 7", "patches: 2 runs",
				"bulky, 3 turns: 1 runs", "bulky, 6 turns", "sliding"} {
				if !strings.Contains(first.String(), want) {
					t.Errorf("%q is missing in:\n%s", want, &first)
				}
			}
		})
	}
}

func TestInvalidSettings(t *testing.T) {
	good := settings{prices: bill.Prices{Read: .1, Write: 1.25}, window: 8, turns: []int{1}, runs: 1}
	for flag, spoil := range map[string]func(*settings){
		"-read":   func(s *settings) { s.prices.Read = 2 },
		"-output": func(s *settings) { s.prices.Output = -1 },
		"-window": func(s *settings) { s.window = 0 },
		"-runs":   func(s *settings) { s.runs = 0 },
		"-pauses": func(s *settings) { s.pauses = 101 },
	} {
		bad := good
		spoil(&bad)
		if err := bad.validate(); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s: got error %v", flag, err)
		}
	}
	if err := good.validate(); err != nil {
		t.Error(err)
	}
	for _, list := range []string{"", "20,", "0", "-1", "x"} {
		if err := new(settings).parseTurns(list); err == nil {
			t.Errorf("-turns %q was accepted", list)
		}
	}
}
