package chat

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// auto returns a policy that masks when it pays.
func auto() Policy {
	return Policy{WindowTurns: 8, ClearAtLeast: ClearAuto, ReadPrice: DefaultReadPrice, WritePrice: DefaultWritePrice,
		MaxLoss: DefaultMaxLoss}
}

// A provider bills the prefix that a request shares with the previous one at the price of
// reading, and the rest at that of writing.
type provider struct {
	last []byte
	bill float64
}

func (p *provider) send(body []byte, cold bool) {
	common := 0
	for !cold && common < min(len(p.last), len(body)) && p.last[common] == body[common] {
		common++
	}
	if common < minCached {
		common = 0
	}
	p.bill += DefaultReadPrice*float64(common) + DefaultWritePrice*float64(len(body)-common)
	p.last = append(p.last[:0], body...)
}

// work returns the requests of a conversation. The lengths of its results have a lognormal
// distribution, like those of real agents.
func work(r *rand.Rand, turns, median int, spread float64) (requests [][]byte) {
	body := fmt.Appendf(nil, `{"tools":[{"name":"read","description":"%s"}],"messages":[{"role":"user","content":"go"}`,
		strings.Repeat("t", 20_000))
	for turn := range turns {
		requests = append(requests, append(body[:len(body):len(body)], "]}"...))
		size := min(int(float64(median)*math.Exp(spread*r.NormFloat64())), 60_000)
		body = fmt.Appendf(body, `,{"role":"assistant","content":"%s","tool_calls":[{"id":"call_%d",`+
			`"function":{"name":"read"}}]}`,
			strings.Repeat("a", r.IntN(400)), turn)
		body = fmt.Appendf(body, `,{"role":"tool","tool_call_id":"call_%d","content":"%s"}`,
			turn, strings.Repeat("x", size))
	}
	return append(requests, append(body, "]}"...))
}

// At every turn of a conversation, its bill exceeds that without masking by at most MaxLoss.
func TestAutoKeepsWithinMaxLoss(t *testing.T) {
	for _, test := range []struct {
		turns, median int
		spread, loss  float64
		atMost        float64 // of the bill without masking, over all runs
	}{
		{60, 300, 2, 0.05, 1},
		{60, 300, 2, 0, 1},
		{60, 1500, 1.35, 0.05, 0.92},
		{60, 1500, 1.35, 0.15, 0.88},
		{150, 1500, 1.35, 0.05, 0.6},
		{150, 1500, 1.35, 0, 1},
		{100, 6000, 0.3, 0.02, 0.8},
	} {
		p := auto()
		p.MaxLoss = test.loss
		var all, without float64
		for seed := range uint64(5) {
			var masked, unmasked provider
			var progress Progress
			for turn, body := range work(rand.New(rand.NewPCG(seed, 0)), test.turns, test.median, test.spread) {
				var c Conversation
				if err := c.Parse(body); err != nil {
					t.Fatal(err)
				}
				plan := c.Mask(&p)
				var after Plan
				after, progress = c.MaskAfter(&p, &progress, false)
				if !reflect.DeepEqual(after, plan) {
					t.Fatalf("%+v, turn %d: %s; from the beginning %s", test, turn, outline(after), outline(plan))
				}
				var sent bytes.Buffer
				_ = jsonspan.Splice(&sent, body, plan.Edits)
				masked.send(sent.Bytes(), false)
				unmasked.send(body, false)
				if masked.bill > (1+test.loss+0.001)*unmasked.bill {
					t.Fatalf("%+v, seed %d, turn %d: %.3f of the bill without masking",
						test, seed, turn, masked.bill/unmasked.bill)
				}
			}
			all += masked.bill
			without += unmasked.bill
		}
		if all/without > test.atMost {
			t.Errorf("%+v: %.3f of the bill without masking", test, all/without)
		}
	}
}

// shownIn returns a character per result: m if it is masked, or else a period.
func shownIn(c *Conversation, p *Policy) (out string) {
	for r := range c.Results(p) {
		if r.Masked {
			out += "m"
		} else {
			out += "."
		}
	}
	return out
}

func parsed(t *testing.T, body string) *Conversation {
	t.Helper()
	c := new(Conversation)
	if err := c.Parse([]byte(body)); err != nil {
		t.Fatal(err)
	}
	return c
}

// If the cache is cold, all old results are masked, even without a new turn. They stay masked
// when the cache is warm again.
func TestColdCache(t *testing.T) {
	p := auto()
	turns := make([]toolTurn, 12)
	for i := range turns {
		turns[i] = toolTurn{"read", strings.Repeat("x", 2000)}
	}
	body := grown(turns)
	c := parsed(t, body)
	plan, progress := c.MaskAfter(&p, &Progress{}, false)
	if plan.Results > 0 {
		t.Fatalf("%d results masked although that costs more than it saves", plan.Results)
	}
	talk := strings.TrimSuffix(body, "]}") + `,{"role":"assistant","content":"Done."},{"role":"user","content":"Go on."}]}`
	c = parsed(t, talk)
	if plan, _ := c.MaskAfter(&p, &progress, false); plan.Results > 0 || plan.Broken {
		t.Errorf("warm: %s", outline(plan))
	}
	plan, progress = c.MaskAfter(&p, &progress, true)
	if got := shownIn(c, &p); got != "mmmm........" || !plan.Broken {
		t.Errorf("cold: %s, broken %t", got, plan.Broken)
	}
	plan, progress = c.MaskAfter(&p, &progress, false)
	if got := shownIn(c, &p); got != "mmmm........" || plan.Broken {
		t.Errorf("sent again: %s, broken %t", got, plan.Broken)
	}
	c = parsed(t, strings.TrimSuffix(talk, "]}")+
		`,{"role":"assistant","tool_calls":[{"id":"call_12","function":{"name":"read"}}]}`+
		`,{"role":"tool","tool_call_id":"call_12","content":"y"}]}`)
	plan, _ = c.MaskAfter(&p, &progress, false)
	if got := shownIn(c, &p); got != "mmmm........." || plan.Broken {
		t.Errorf("a turn later: %s, broken %t", got, plan.Broken)
	}
}

// A conversation that has been cut is masked like a new one.
func TestMaskAfterCut(t *testing.T) {
	p := auto()
	turns := make([]toolTurn, 60)
	for i := range turns {
		turns[i] = toolTurn{"read", strings.Repeat("x", 8000)}
	}
	plan, progress := parsed(t, grown(turns)).MaskAfter(&p, &Progress{}, false)
	if plan.Results == 0 {
		t.Fatal("nothing is masked")
	}
	for _, n := range []int{0, 1, 59} {
		c := parsed(t, grown(turns[:n]))
		want := c.Mask(&p)
		if got, _ := c.MaskAfter(&p, &progress, false); !reflect.DeepEqual(got, want) {
			t.Errorf("cut to %d turns: %d results masked, want %d", n, got.Results, want.Results)
		}
	}
}

// If one huge result follows many short ones, only the huge one is masked: the part before it
// stays cached.
func TestAutoBeginsWhereItPays(t *testing.T) {
	p := auto()
	var turns []toolTurn
	for range 30 {
		turns = append(turns, toolTurn{"read", strings.Repeat("x", 300)})
	}
	turns = append(turns, toolTurn{"read", strings.Repeat("x", 50_000)})
	for range 9 {
		turns = append(turns, toolTurn{"read", strings.Repeat("x", 300)})
	}
	opening := `{"tools":"` + strings.Repeat("t", minCached) + `",`
	c := parsed(t, strings.Replace(grown(turns), "{", opening, 1))
	c.Mask(&p)
	if got, want := shownIn(c, &p), strings.Repeat(".", 30)+"m"+strings.Repeat(".", 9); got != want {
		t.Errorf("masked %s, want %s", got, want)
	}
}

// Many candidates are examined less often, and in the same turns whether or not the
// conversation is known.
func TestAutoExaminesLessOften(t *testing.T) {
	p := auto()
	p.KeepLastPerTool = 2
	var turns []toolTurn
	var progress Progress
	rare, moves := 0, 0
	for i := range 460 {
		turn := toolTurn{fmt.Sprint("tool", i%40), strings.Repeat("x", 150)}
		if i%150 > 140 {
			turn.content = strings.Repeat("x", 15_000)
		}
		turns = append(turns, turn)
		if i < 300 {
			continue
		}
		body := grown(turns)
		plan := parsed(t, body).Mask(&p)
		var after Plan
		after, progress = parsed(t, body).MaskAfter(&p, &progress, false)
		if !reflect.DeepEqual(after, plan) {
			t.Fatalf("turn %d: %d results from the turn before, %d from the beginning", i, after.Results, plan.Results)
		}
		rare = max(rare, progress.nextExamination-progress.turns)
		if plan.Broken {
			moves++
		}
	}
	if rare < 2 || moves == 0 {
		t.Errorf("the longest pause between examinations is %d turns, results were masked %d times", rare, moves)
	}
}

// Requests in Anthropic's format mark what is cached. If messages change, at most the part
// before the messages stays cached, and nothing if that has no mark.
func TestBreakpoints(t *testing.T) {
	p := auto()
	p.MaxLoss = 1
	request := func(turns int, system, last string) string {
		var b strings.Builder
		fmt.Fprintf(&b, `{"system":[{"type":"text","text":"%s"%s}],"messages":[{"role":"user","content":"go"}`,
			strings.Repeat("s", 20_000), system)
		for i := range turns {
			mark := ""
			if i == turns-1 {
				mark = last
			}
			fmt.Fprintf(&b, `,{"role":"assistant","content":[{"type":"tool_use","id":"t%d","name":"read"}]}`, i)
			fmt.Fprintf(&b, `,{"role":"user","content":[{"type":"tool_result","tool_use_id":"t%d","content":"%s"%s}]}`,
				i, strings.Repeat("x", 3000), mark)
		}
		return b.String() + `]}`
	}
	const mark, hour = `,"cache_control":{"type":"ephemeral"}`, `,"cache_control":{"type":"ephemeral","ttl":"1h"}`
	first := func(system, last string) int { // turn after which something is masked
		for turns := 1; turns < 100; turns++ {
			c := parsed(t, request(turns, system, last))
			if plan, _ := c.MaskAfter(&p, &Progress{}, c.Uncached()); plan.Results > 0 {
				return turns
			}
		}
		return 0
	}
	neither, opening, both, messages := first("", ""), first(mark, ""), first(mark, mark), first("", mark)
	if neither != 9 || opening != 9 {
		t.Errorf("without marks on messages masking is free from turn 9 on, but begins at %d and %d", neither, opening)
	}
	if both <= 9 || messages <= both {
		t.Errorf("masking begins at turn %d with marks on both, and at %d with marks on messages only", both, messages)
	}
	// Bedrock marks with blocks.
	for mark, want := range map[string]struct {
		ttl   time.Duration
		cache caching
	}{
		"":                                   {time.Hour, caching{}},
		`,{"cachePoint":{"type":"default"}}`: {5 * time.Minute, caching{opening: true, messages: true}},
		`,{"cachePoint":{"type":"default","ttl":"1h"}}`: {time.Hour, caching{opening: true, messages: true, hour: true}},
	} {
		c := parsed(t, `{"system":[{"text":"s"}`+mark+`],"messages":[{"role":"user","content":[{"text":"go"}`+mark+`]}]}`)
		if c.CacheTTL() != want.ttl || c.cache != want.cache {
			t.Errorf("Converse with %q: %+v for %s, want %+v", mark, c.cache, c.CacheTTL(), want)
		}
	}
	for want, c := range map[time.Duration]*Conversation{
		5 * time.Minute: parsed(t, request(1, mark, mark)), time.Hour: parsed(t, request(1, mark, hour)),
	} {
		if got := c.CacheTTL(); got != want {
			t.Errorf("cached for %s, want %s", got, want)
		}
	}
	for retention, want := range map[string]time.Duration{"24h": 24 * time.Hour, "in_memory": time.Hour} {
		c := parsed(t, `{"prompt_cache_retention":"`+retention+`","input":[{"role":"user","content":"go"}]}`)
		if got := c.CacheTTL(); got != want {
			t.Errorf("retention %s: cached for %s, want %s", retention, got, want)
		}
	}
	if parsed(t, grown([]toolTurn{{"read", "x"}})).Uncached() {
		t.Error("chat completions are taken for Anthropic's format")
	}
}
