package chat

import (
	"slices"
	"time"
	"unsafe"
)

// A Progress is how masking has gone in a conversation up to a request, for the next
// request of it to go on from there. The zero value is that of a conversation not seen
// before; for policies without [ClearAuto] it is always that.
type Progress struct {
	turns int // that it has come to
	look  int // with so many turns the candidates are looked at next
	now   state
	moves []int32 // of each result: the move that masked it, or 0

	// What all requests so far have cost, masked and unmasked, in characters times prices.
	masked, unmasked float64
}

// bytes returns how much memory p takes.
func (p *Progress) bytes() int { return int(unsafe.Sizeof(*p)) + sizeOf(p.moves) }

// expectedTurns estimates how many turns are still to come after so many. Agents end their
// work at any time: of recorded runs that have come to 20 turns, half go on for 7 to 30, and
// a tenth end within two. So little is counted on: a fifth as many as there have been. Nor
// is it ever wise to count on many, for what takes long to pay will pay sooner if more has
// become old meanwhile.
func expectedTurns(turns int) float64 { return min(0.2*float64(turns), 8) }

// minCached is how many characters a beginning must have for most providers to cache it.
const minCached = MinCached * CharsPerToken

// looks is how many candidates are looked at with each turn, on average. Where more wait,
// most turns do not look: who sends many thousands at once must not have each of them
// looked at with every turn.
const looks = 128

// A candidate is an old result that could be masked.
type candidate struct {
	result int
	at     int // where it stands in what is sent
	saved  int // characters, if it is masked
}

// A ledger goes through a conversation turn by turn and masks old results where that pays.
//
// To mask a result that has been sent makes the provider read everything from there on as
// new: with s characters from the first such result to the end of the last request, of which
// the masked ones are m, that costs write·(s-m) now instead of read·s, and every later request
// is cheaper by read·m. Which of the old results to begin with is free: from an earlier one on
// more is masked, and more is written anew. The ledger takes the best, if it
// pays within [expectedTurns], and if the bill stays within Policy.MaxLoss of the bill
// without masking even if this request should be the last.
//
// All numbers are characters. A result that is masked already counts as what it was, so
// that what is masked again is masked alike.
type ledger struct {
	account
	Progress
	head       int         // characters outside the messages: tools and the like
	candidates []candidate // in the order of the conversation, once they are looked at
	cleared    int         // characters that masked results save
	clearedBy  sums        // the same, by result
}

// foldAuto is fold for [ClearAuto]. It goes on from a progress, and returns the one it has
// come to. If the cache is cold, the request is written anew as a whole, and masking costs
// nothing.
func (c *Conversation) foldAuto(p *Policy, so *Progress, cold bool) (now, before state, progress Progress) {
	if len(c.turns) == 0 {
		return state{}, state{}, Progress{}
	}
	c.forget(p)
	l := &ledger{account: account{c: c, policy: p}, Progress: *so}
	l.take = l.add
	l.moves = make([]int32, max(len(c.results), len(so.moves)))
	copy(l.moves, so.moves)
	l.clearedBy = make(sums, len(l.moves)+1)
	l.head = len(c.body) - int(c.list.span.end-c.list.span.start)
	length := l.end(-1) // of a request, unmasked
	if so.turns == 0 {
		l.unmasked = p.WritePrice * float64(length)
		l.masked = l.unmasked
	}
	before = so.now
	step := max(p.StepTurns, 1)
	for turns := 1; turns <= len(c.turns); turns++ {
		l.enter(turns - 1)
		sent := length
		length = l.end(turns - 1)
		cold := cold && turns == len(c.turns)
		if turns <= so.turns && !cold {
			continue
		}
		boundary := max(turns-p.WindowTurns, 0) / step * step
		l.age(boundary)
		l.turns = turns
		l.charge(sent, length-sent, cold)
		if turns < l.look && !cold {
			continue
		}
		if first, cost := l.best(sent-l.cleared, cold); first >= 0 {
			if so.turns == 0 {
				before = l.now
			}
			l.now = state{boundary: boundary, step: turns, move: l.now.move + 1}
			l.masked += cost
			l.clear(first)
		}
		l.look = turns + len(l.candidates)/looks
	}
	return l.now, before, l.Progress
}

// charge adds what a request costs that repeats so many characters and adds others.
func (l *ledger) charge(repeated, added int, cold bool) {
	price := func(repeated int) float64 {
		read := l.policy.ReadPrice
		if cold || repeated < minCached {
			read = l.policy.WritePrice
		}
		return read*float64(repeated) + l.policy.WritePrice*float64(added)
	}
	l.unmasked += price(repeated)
	l.masked += price(repeated - l.cleared)
}

// end returns how many characters a request has up to the end of a turn, unmasked, or
// without any turn.
func (l *ledger) end(turn int) int {
	start := int(l.c.list.span.start)
	if turn < 0 {
		return l.head + int(l.c.turns[0].start) - start
	}
	return l.head + int(l.c.turns[turn].end) - start + l.shift
}

// add takes an old result.
func (l *ledger) add(i int) {
	r := &l.c.results[i]
	id := l.c.idOf(r)
	if id == nil || !r.loose || l.c.judge(r, id, l.policy) == keep {
		return
	}
	saved := l.saved(i)
	if l.moves[i] != 0 {
		l.cleared += saved
		l.clearedBy.add(i, saved)
		return
	}
	if saved <= 0 {
		return
	}
	at := l.head + int(l.c.texts[r.texts].start-l.c.list.span.start) + int(r.shift) - l.clearedBy.before(i)
	l.candidates = append(l.candidates, candidate{i, at, saved})
}

// saved returns how many characters masking a result saves.
func (l *ledger) saved(i int) int {
	r := &l.c.results[i]
	chars, _ := l.c.original(r, l.c.idOf(r), l.policy)
	_, placeholder := l.policy.template().size(l.c.filling(r))
	return chars - placeholder - int(r.n-1)
}

// best returns with which candidate to begin, or -1 to mask none, and what that
// costs beside what the request costs anyway. The last request had sent characters.
func (l *ledger) best(sent int, cold bool) (first int, cost float64) {
	inOrder := func(a, b candidate) int { return a.result - b.result }
	if !slices.IsSortedFunc(l.candidates, inOrder) { // a tool has let go of an earlier one
		slices.SortFunc(l.candidates, inOrder)
	}
	p := l.policy
	limit := (1 + p.MaxLoss) * l.unmasked
	first = -1
	best, saved := 0.0, 0
	for i, c := range slices.Backward(l.candidates) {
		saved += c.saved
		price := -p.WritePrice * float64(saved)
		if !cold && sent >= minCached {
			anew := sent - l.readable(c.at)
			price += (p.WritePrice - p.ReadPrice) * float64(anew)
		}
		gain := expectedTurns(l.turns)*p.ReadPrice*float64(saved) - price
		if gain > best && (price <= 0 || l.masked+price <= limit) {
			first, cost, best = i, price, gain
		}
	}
	return first, cost
}

// readable returns how much the provider still has in its cache of a request that changes
// at a place. Where requests mark what to cache, they mark the end of what is fixed
// and the last messages: what comes before a change in between is read anew, too.
func (l *ledger) readable(at int) int {
	switch cache := l.c.cache; {
	case cache.messages && cache.opening:
		at = l.head
	case cache.messages:
		at = 0
	}
	if at < minCached {
		return 0
	}
	return at
}

// clear masks a candidate and all after it.
func (l *ledger) clear(first int) {
	for _, c := range l.candidates[first:] {
		l.moves[c.result] = l.now.move
		l.cleared += c.saved
		l.clearedBy.add(c.result, c.saved)
	}
	l.candidates = l.candidates[:first]
}

// sums adds up numbers before a place, in a time that grows with the logarithm of how many
// there are: the element i has the sum of as many as the last bit of i says.
type sums []int

func (s sums) add(i, n int) {
	for i++; i < len(s); i += i & -i {
		s[i] += n
	}
}

func (s sums) before(i int) (sum int) {
	for ; i > 0; i -= i & -i {
		sum += s[i]
	}
	return sum
}

// Uncached reports whether the request is one of Anthropic's that does not ask for its
// messages to be cached.
func (c *Conversation) Uncached() bool { return c.list.format == toolUse && !c.cache.messages }

// CacheTTL returns how long the provider caches the request, as far as is known: what it
// marks for 5 minutes, or an hour if it asks for that, as Anthropic has it. Providers that
// need no marks promise less, but may keep it for an hour.
func (c *Conversation) CacheTTL() time.Duration {
	if c.cache.messages && !c.cache.hour {
		return 5 * time.Minute
	}
	return time.Hour
}
