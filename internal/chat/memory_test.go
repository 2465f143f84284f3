package chat

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

var rememberedTest = quota.NewKind("remembered_test")

// newMemory returns a memory with small blocks, so that short conversations fill some.
func newMemory(t testing.TB, block int) *Memory {
	m := NewMemory(rememberedTest)
	m.blockSize = block
	t.Cleanup(m.Close)
	return m
}

// sameWithMemory reads a body with and without a memory and checks that the results are the
// same. It returns how many turns the memory knew.
func sameWithMemory(t *testing.T, m *Memory, owner string, body []byte, p *Policy) (known int) {
	t.Helper()
	var want Conversation
	wantErr := want.Parse(body)
	raw := slices.Clone(body) // overwritten below, like a buffer that is reused
	got, err := m.Parse(owner, raw)
	if fmt.Sprint(err) != fmt.Sprint(wantErr) {
		t.Errorf("%.2000s: %v, want %v", body, err, wantErr)
	}
	if err != nil {
		return 0
	}
	gotPlan, wantPlan := got.Mask(p), want.Mask(p)
	if !reflect.DeepEqual(gotPlan, wantPlan) {
		t.Errorf("%.2000s\n%s\nwant %s", body, outline(gotPlan), outline(wantPlan))
	}
	sameResult := func(a, b result) bool {
		// These may be set by earlier requests, or are not used.
		a.verdict, a.next, a.oldReplacement, a.shift, a.released = b.verdict, b.next, b.oldReplacement, b.shift, b.released
		return a == b
	}
	for name, same := range map[string]bool{
		"turns":   slices.Equal(got.turns, want.turns),
		"calls":   slices.Equal(got.calls, want.calls),
		"results": slices.EqualFunc(got.results, want.results, sameResult),
		"texts":   slices.Equal(got.texts, want.texts),
		"ids":     slices.EqualFunc(got.ids.texts, want.ids.texts, bytes.Equal),
		"names":   slices.EqualFunc(got.names.texts, want.names.texts, bytes.Equal),
		"list":    got.list == want.list,
	} {
		if !same {
			t.Errorf("%.2000s: %s differ", body, name)
		}
	}
	if !got.past.At.IsZero() {
		known = int(got.past.At.Unix())
	}
	m.Keep(owner, got, Past{At: time.Unix(int64(len(got.turns)), 0)})
	for i := range raw {
		raw[i] = '?'
	}
	return known
}

// prefixes returns a request for each message of a conversation, which ends with it.
func prefixes(body []byte) (all [][]byte) {
	var ends []int
	var list jsonspan.Value
	if paths.Find(body, func(path int, v jsonspan.Value) {
		if isList(path) && v.Kind == jsonspan.BeginArray {
			list = v
		}
		if isList(path - 1) {
			ends = append(ends, v.End)
		}
	}) != nil || list.End == 0 || len(ends) == 0 {
		return [][]byte{body}
	}
	for _, end := range ends {
		all = append(all, slices.Concat(body[:end], body[list.End-1:]))
	}
	return all
}

// A memory does not change how conversations are masked, whether they grow, alternate, or are
// edited, cut or resumed.
func TestMemoryChangesNothing(t *testing.T) {
	var known, requests int
	var mu sync.Mutex
	generate(t, func(t *testing.T, r *rand.Rand, body []byte, p Policy) {
		if r.IntN(4) > 0 { // each conversation makes many requests
			return
		}
		if r.IntN(2) == 0 {
			p.ClearAtLeast, p.ReadPrice, p.WritePrice = []int{ClearAuto, 20}[r.IntN(2)], 0.1, 1.25
		}
		m := newMemory(t, 8<<r.IntN(6))
		others := prefixes(conversation(r, one(r, formats)))
		for _, next := range prefixes(body) {
			switch r.IntN(10) {
			case 0:
				next = next[:r.IntN(len(next)+1)]
			case 1, 2:
				next = slices.Clone(next)
				next[len(next)-1-r.IntN(1+r.IntN(len(next)))] ^= 1 << r.IntN(7)
			case 3:
				sameWithMemory(t, m, "a", others[r.IntN(len(others))], &p)
			case 4:
				sameWithMemory(t, m, "b", next, &p)
			}
			n := sameWithMemory(t, m, "a", next, &p)
			mu.Lock()
			requests++
			if n > 0 {
				known++
			}
			mu.Unlock()
		}
	})
	t.Cleanup(func() {
		t.Logf("%d of %d requests continued earlier ones", known, requests)
		if known < requests/4 {
			t.Error("too few requests continued earlier ones")
		}
	})
}

func FuzzMemory(f *testing.F) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 5))
		for _, format := range formats {
			body := conversation(r, format)
			f.Add(body, body[:len(body)/2], body[len(body)/2:], seed)
		}
	}
	f.Fuzz(func(t *testing.T, first, second, third []byte, seed uint64) {
		p := policy(rand.New(rand.NewPCG(seed, 3)))
		m := newMemory(t, 16)
		n := min(len(first), len(second))
		for _, body := range [][]byte{
			first, slices.Concat(first[:n], second[n:]), second, slices.Concat(second, third), first,
		} {
			sameWithMemory(t, m, "a", body, &p)
		}
	})
}

// FuzzProgress masks arbitrary requests with ClearAuto and a cache that is sometimes cold. The
// output is JSON, and the last turns are not masked.
func FuzzProgress(f *testing.F) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 6))
		for _, format := range formats {
			body := conversation(r, format)
			f.Add(body, conversation(r, format), len(body)/2, seed)
		}
	}
	f.Fuzz(func(t *testing.T, body, other []byte, n int, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 3))
		p := policy(r)
		p.ClearAtLeast, p.ReadPrice, p.WritePrice, p.MaxLoss = ClearAuto, 0.1, 1.25, float64(r.IntN(3))
		m := newMemory(t, 8<<r.IntN(4))
		n = min(max(n, 0), len(body), len(other))
		requests := append(prefixes(body), slices.Concat(body[:n], other[n:]), body, other)
		for range 20 {
			request := requests[r.IntN(len(requests))]
			c, err := m.Parse("a", request)
			if err != nil {
				continue
			}
			past := c.Past()
			plan, progress := c.MaskAfter(&p, &past.Progress, r.IntN(3) == 0)
			var out bytes.Buffer
			if err := jsonspan.Splice(&out, request, plan.Edits); err != nil || !json.Valid(out.Bytes()) {
				t.Fatalf("got %q, %v", out.Bytes(), err)
			}
			if plan.Boundary > max(plan.Turns-p.WindowTurns, 0) || plan.Shared > out.Len() || plan.Shared < 0 {
				t.Fatalf("%+v of %d bytes, with a window of %d turns", plan, out.Len(), p.WindowTurns)
			}
			m.Keep("a", c, Past{Progress: progress, At: time.Unix(1, 0)})
		}
	})
}

// The next request of a conversation is read from the end of the previous one, even if the
// last messages have changed, as with clients that move a cache mark.
func TestMemoryContinues(t *testing.T) {
	turn := func(i int, cached string) string {
		return fmt.Sprintf(`,{"role":"assistant","content":[{"type":"tool_use","id":"t%d","name":"read","input":{}}]}`+
			`,{"role":"user","content":[{"type":"tool_result","tool_use_id":"t%d","content":"%s"%s}]}`,
			i, i, strings.Repeat("x", 1000), cached)
	}
	request := func(turns int) []byte {
		var b bytes.Buffer
		b.WriteString(`{"model":"m","messages":[{"role":"user","content":"Go"}`)
		for i := range turns - 1 {
			b.WriteString(turn(i, ""))
		}
		b.WriteString(turn(turns-1, `,"cache_control":{"type":"ephemeral"}`) + `],"tools":[]}`)
		return b.Bytes()
	}
	m := newMemory(t, blockSize)
	p := Policy{WindowTurns: 8, KeepErrors: ErrorsOn}
	if n := sameWithMemory(t, m, "a", request(100), &p); n != 0 {
		t.Errorf("%d turns of the first request are known", n)
	}
	for turns := 101; turns < 120; turns++ {
		if n := sameWithMemory(t, m, "a", request(turns), &p); n != turns-1 {
			t.Errorf("%d turns are known of a request with %d", n, turns)
		}
	}
	if use := rememberedTest.Usage(); use.Entries != 1 || use.Bytes < 10_000 || use.Bytes > 100_000 {
		t.Errorf("usage of one conversation: %+v", use)
	}
	if n := sameWithMemory(t, m, "b", request(120), &p); n != 0 {
		t.Errorf("%d turns of another owner's conversation are known", n)
	}
	// A different conversation with the same beginning is kept as a second one.
	alike, rest := request(120)[:blockSize+100], request(120)[blockSize+100:]
	other := slices.Concat(alike, bytes.ReplaceAll(rest, []byte("x"), []byte("y")))
	if n := sameWithMemory(t, m, "a", other, &p); n != 0 {
		t.Errorf("%d turns of another conversation are known", n)
	}
	if n := sameWithMemory(t, m, "a", request(120), &p); n != 119 {
		t.Errorf("%d turns are known after another conversation", n)
	}
	m.Close()
	if sameWithMemory(t, m, "a", request(120), &p); rememberedTest.Usage() != (quota.Usage{}) {
		t.Errorf("usage after Close: %+v", rememberedTest.Usage())
	}
}

// An owner with many conversations does not evict those of others, and its own are limited.
func TestMemoryIsBounded(t *testing.T) {
	m := newMemory(t, 64)
	p := Policy{WindowTurns: 8}
	conversation := func(name string) []byte {
		return fmt.Appendf(nil, `{"messages":[{"role":"user","content":"%s%s"},{"role":"user","content":""}]}`,
			name, strings.Repeat("x", 200))
	}
	sameWithMemory(t, m, "b", conversation("b"), &p)
	for i := range 3 * ownerRemembered {
		sameWithMemory(t, m, "a", conversation(fmt.Sprint("a", i)), &p)
	}
	for owner, want := range map[string]int{"a": ownerRemembered, "b": 1} {
		kept := 0
		for range m.conversations.Owned(owner) {
			kept++
		}
		if kept != want {
			t.Errorf("%d conversations of %s are kept, want %d", kept, owner, want)
		}
	}
}

// Concurrent requests of the same conversation and of others do not affect each other.
func TestMemoryOfRequestsAtOnce(t *testing.T) {
	m := newMemory(t, 64)
	p := Policy{WindowTurns: 2, KeepErrors: ErrorsOn}
	r := rand.New(rand.NewPCG(7, 7))
	var wg sync.WaitGroup
	for range 4 {
		all := prefixes(conversation(r, one(r, formats)))
		for range 2 {
			wg.Go(func() {
				for _, body := range all {
					sameWithMemory(t, m, "a", body, &p)
				}
			})
		}
	}
	wg.Wait()
}

// A conversation that grows is masked as if read from its beginning, except that results masked
// for a cold cache stay masked. If it was cut, or its masked part changed, it has no past.
func TestMemoryKnowsThePast(t *testing.T) {
	m := NewMemory(quota.NewKind("past_of_a_test"))
	defer m.Close()
	p := auto()
	requests := work(rand.New(rand.NewPCG(1, 0)), 80, 3000, 1)
	ask := func(body []byte, cold bool) (plan Plan, past Past) {
		t.Helper()
		c, err := m.Parse("a", body)
		if err != nil {
			t.Fatal(err)
		}
		past = c.Past()
		plan, progress := c.MaskAfter(&p, &past.Progress, cold)
		m.Keep("a", c, Past{progress, time.Unix(int64(plan.Turns), 0)})
		return plan, past
	}
	masked := 0
	for turn, body := range requests {
		plan, past := ask(body, false)
		if want := parsed(t, string(body)).Mask(&p); !reflect.DeepEqual(plan, want) {
			t.Fatalf("turn %d: %s, from the beginning %s", turn, outline(plan), outline(want))
		}
		if turn > 20 && past.At != time.Unix(int64(turn-1), 0) {
			t.Fatalf("turn %d: the last request came at %v", turn, past.At)
		}
		masked = max(masked, plan.Results)
	}
	if masked == 0 {
		t.Fatal("nothing was masked")
	}

	last := requests[len(requests)-1]
	cold, _ := ask(last, true)
	if again, _ := ask(last, false); again.Results != cold.Results || cold.Results <= masked {
		t.Errorf("%d results masked before the cache was cold, then %d, then %d", masked, cold.Results, again.Results)
	}
	if _, past := ask(requests[len(requests)-20], false); !past.At.IsZero() {
		t.Error("a conversation that was cut has a past")
	}
	ask(last, true)
	changed := bytes.Replace(last, []byte("xxx"), []byte("yyy"), 1)
	if _, past := ask(changed, false); !past.At.IsZero() {
		t.Error("a conversation that was changed has a past")
	}
}

// What was masked after a pause stays masked, wherever the blocks of the body end. So it does if the
// calls have no ids, if other members follow the list, and if another conversation begins alike.
func TestPauseIsRemembered(t *testing.T) {
	long, x := strings.Repeat("s", 40_000), strings.Repeat("x", 900)
	type format struct{ begin, turn, end string }
	for name, f := range map[string]format{
		"ids": {
			`{"messages":[{"role":"system","content":"` + long + `"}`,
			`,{"role":"assistant","tool_calls":[{"id":"c%[1]d","function":{"name":"read","arguments":"{}"}}]}` +
				`,{"role":"tool","tool_call_id":"c%[1]d","content":"%[1]d` + x + `"}`,
			`]}`,
		},
		"no ids": {
			`{"contents":[{"role":"user","parts":[{"text":"` + long + `"}]}`,
			`,{"role":"model","parts":[{"functionCall":{"name":"read","args":{}}}]}` +
				`,{"role":"user","parts":[{"functionResponse":{"name":"read","response":{"output":"%d` + x + `"}}}]}`,
			`]}`,
		},
		"built-in tools": {
			`{"input":[{"role":"user","content":"` + long + `"}`,
			`,{"type":"shell_call","call_id":"c%[1]d","action":{}}` +
				`,{"type":"shell_call_output","call_id":"c%[1]d","output":[{"stdout":"%[1]d` + x + `","stderr":""}]}`,
			`]}`,
		},
		"tools at the end": {
			`{"messages":[{"role":"user","content":"` + long + `"}`,
			`,{"role":"assistant","content":[{"type":"tool_use","id":"c%[1]d","name":"read","input":{}}]}` +
				`,{"role":"user","content":[{"type":"tool_result","tool_use_id":"c%[1]d","content":"%[1]d` + x + `"}]}`,
			`],"tools":[{"name":"read","description":"` + long + long + long + `"}]}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMemory(t, blockSize)
			p := auto()
			p.ReadPrice = 0.001 // without a pause, masking does not pay
			body := func(turns int) []byte {
				b := []byte(f.begin)
				for i := range turns {
					b = fmt.Appendf(b, f.turn, i)
				}
				return append(b, f.end...)
			}
			ask := func(body []byte, cold bool) (sent []byte, known bool) {
				t.Helper()
				c, err := m.Parse("a", body)
				if err != nil {
					t.Fatal(err)
				}
				past := c.Past()
				plan, progress := c.MaskAfter(&p, &past.Progress, cold)
				sent = jsonspan.Spliced(body, plan.Edits...)
				m.Keep("a", c, Past{progress, time.Unix(1, 0)})
				return sent, !past.At.IsZero()
			}
			for turns := 10; turns < 60; turns++ {
				ask(body(turns-1), false)
				cold, known := ask(body(turns), true)
				if !known {
					t.Fatalf("turn %d: the previous request is not known", turns)
				}
				if bytes.Equal(cold, body(turns)) {
					t.Fatalf("turn %d: nothing is masked after a pause", turns)
				}
				ask([]byte(f.begin+f.end), false)
				next, _ := ask(body(turns+1), false)
				if same := bytes.TrimSuffix(cold, []byte(f.end)); !bytes.HasPrefix(next, same) {
					t.Fatalf("turn %d: what was masked after a pause has changed", turns)
				}
				m.Close()
				m = newMemory(t, blockSize)
			}
		})
	}
}
