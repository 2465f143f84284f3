package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/bill"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/chat"
)

// padded returns before and after with as much between them as makes n tokens.
func padded(before string, n int, after string) []byte {
	return []byte(before + strings.Repeat("x", n*chat.CharsPerToken-len(before)-len(after)) + after)
}

// tinyRun has three turns: 1,000 tokens to begin with, replies of 50 tokens, and
// results of 100, 200 and 300.
func tinyRun() run {
	tinyTurn := func(id string, tokens int) turn {
		return turn{
			reply:   padded(`,{"role":"assistant","tool_calls":[{"id":"`+id+`","function":{"name":"shell","arguments":"`, 50, `"}}]}`),
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
	sessions := openSessions([]chat.Policy{policy}, minimum)
	if err := play(&c, r, sessions); err != nil {
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
			name: "each request reads all that was sent before",
			want: account{Tokens: bill.Tokens{Read: 1000 + 1150 + 1400, Written: 1000 + 150 + 250 + 350, Output: output}},
			cost: 355 + 2187.5 + 850,
		},
		{
			name:    "a beginning that is too short for the cache is written again",
			minimum: 1001,
			want:    account{Tokens: bill.Tokens{Read: 1150 + 1400, Written: 1000 + 1150 + 250 + 350, Output: output}},
			cost:    255 + 3437.5 + 850,
		},
		{
			// A result has 46 bytes before its content, which are 11 tokens and a bit.
			// Masked it is 56 bytes, which are 14.
			name:   "a request that breaks the prefix reads up to the result that is masked",
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
	r := newRun(1, 0, 30)
	none := billOf(t, r, chat.Policy{}, 1024)
	for name, policy := range map[string]chat.Policy{
		"a window as long as the run": {WindowTurns: 30, KeepErrors: chat.ErrorsOn},
		"no result is long enough":    {WindowTurns: 8, MinChars: maxResult + 100},
		"no step pays":                {WindowTurns: 8, ClearAtLeast: 1_000_000},
	} {
		if got := billOf(t, r, policy, 1024); got != none {
			t.Errorf("%s: %+v, without masking %+v", name, got, none)
		}
	}
}

// T32: between steps, what was sent stays as it was.
func TestSteppedBreaksAtStepsOnly(t *testing.T) {
	var (
		c      chat.Conversation
		breaks []int
	)
	s := session{policy: &chat.Policy{WindowTurns: 8, StepTurns: 16, KeepErrors: chat.ErrorsOn}}
	turns := 0
	for body := range newRun(1, 0, 80).requests() {
		if err := c.Parse(body); err != nil {
			t.Fatal(err)
		}
		broken, err := s.send(&c, body)
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

// What the comment of the package says of the runs.
func TestRunsAreAsDescribed(t *testing.T) {
	var (
		c       chat.Conversation
		sizes   []int
		replies []int
		total   int
		growth  int
	)
	const runs, turns = 40, 150
	for i := range uint64(runs) {
		r := newRun(1, i, turns)
		var body []byte
		for body = range r.requests() {
		}
		if err := c.Parse(body); err != nil {
			t.Fatal(err)
		}
		if got := c.Mask(&chat.Policy{}).Turns; got != turns {
			t.Fatalf("run %d has %d turns", i, got)
		}
		for result := range c.Results(&chat.Policy{}) {
			sizes = append(sizes, result.Chars)
			total += result.Chars
		}
		for _, turn := range r.turns {
			replies = append(replies, bytes.Index(turn.reply, []byte(`","tool_calls"`))-len(`,{"role":"assistant","content":"`))
		}
		growth += len(body) - len(r.opening)
		between(t, "tokens of tools and system prompt", len(r.opening)/chat.CharsPerToken, 5900, 6200)
	}
	slices.Sort(sizes)
	slices.Sort(replies)
	between(t, "median of the results", sizes[len(sizes)/2], 1350, 1650)
	between(t, "mean of the results", total/len(sizes), 3600, 4400)
	between(t, "longest result", sizes[len(sizes)-1], 50_000, maxResult+20)
	between(t, "calls in a hundred turns", 100*len(sizes)/(runs*turns), 125, 135)
	between(t, "median of the texts", replies[len(replies)/2]/chat.CharsPerToken, 38, 42)
	between(t, "tokens added per turn", growth/(runs*turns)/chat.CharsPerToken, 1350, 1650)
}

func between(t *testing.T, what string, got, low, high int) {
	t.Helper()
	if got < low || got > high {
		t.Errorf("%s: %d, want %d to %d", what, got, low, high)
	}
}

// One in twenty results looks like an error, and no other does.
func TestErrorsAreKept(t *testing.T) {
	var (
		c               chat.Conversation
		results, masked int
	)
	for i := range uint64(40) {
		var body []byte
		for body = range newRun(1, i, 150).requests() {
		}
		if err := c.Parse(body); err != nil {
			t.Fatal(err)
		}
		all := c.Mask(&chat.Policy{WindowTurns: 1}).Results
		results += all
		masked += c.Mask(&chat.Policy{WindowTurns: 1, KeepErrors: chat.ErrorsOn}).Results
	}
	between(t, "errors in ten thousand results", 10_000*(results-masked)/results, 450, 550)
}

func TestReportIsDeterministic(t *testing.T) {
	s := settings{prices: bill.Prices{Read: .1, Write: 1.25, Output: 5}, minimum: 1024, window: 2, turns: []int{3, 6}, runs: 2, seed: 7}
	for name, markdown := range map[string]bool{"aligned": false, "markdown": true} {
		t.Run(name, func(t *testing.T) {
			var first, second bytes.Buffer
			for _, out := range []*bytes.Buffer{&first, &second} {
				if err := report(out, s, markdown); err != nil {
					t.Fatal(err)
				}
			}
			if first.String() != second.String() {
				t.Errorf("not the same:\n%s%s", &first, &second)
			}
			for _, want := range []string{"read 0.1, write 1.25, output 5; window 2 turns; 2 runs of each length, seed 7", "3 turns: cost", "6 turns: cost", "sliding"} {
				if !strings.Contains(first.String(), want) {
					t.Errorf("%q is missing in:\n%s", want, &first)
				}
			}
		})
	}
}

func TestImpossibleSettings(t *testing.T) {
	good := settings{prices: bill.Prices{Read: .1, Write: 1.25}, window: 8, turns: []int{1}, runs: 1}
	for flag, spoil := range map[string]func(*settings){
		"-read":   func(s *settings) { s.prices.Read = 2 },
		"-output": func(s *settings) { s.prices.Output = -1 },
		"-window": func(s *settings) { s.window = 0 },
		"-runs":   func(s *settings) { s.runs = 0 },
	} {
		bad := good
		spoil(&bad)
		if err := bad.validate(); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s: got %v", flag, err)
		}
	}
	if err := good.validate(); err != nil {
		t.Error(err)
	}
	for _, list := range []string{"", "20,", "0", "-1", "x"} {
		if err := new(settings).parseTurns(list); err == nil {
			t.Errorf("-turns %q was taken", list)
		}
	}
}
