package chat

import (
	"slices"
	"time"
	"unsafe"
)

// A Progress holds the decisions of masking a conversation up to a request, from which the next
// request continues. The zero value is for a new conversation, and for policies without
// [ClearAuto].
type Progress struct {
	turns           int // number of turns
	nextExamination int // number of turns at which candidates are examined next
	now             state
	moves           []int32 // by result: the move that masked it, or 0

	// Cost of all requests so far, masked and unmasked, in characters times prices.
	masked, unmasked float64
}

// bytes returns how much memory p takes.
func (p *Progress) bytes() int { return int(unsafe.Sizeof(*p)) + sizeOf(p.moves) }

// expectedTurns estimates how many turns follow after a number of turns. Agents may end at any
// time: of recorded runs with 20 turns, half go on for 7 to 30 more, and a tenth end within two. So
// the estimate is low: a fifth of the turns so far, at most 8. If masking takes longer to pay off,
// waiting is better: it pays off sooner when more results are old.
func expectedTurns(turns int) float64 { return min(0.2*float64(turns), 8) }

// minCached is the smallest prefix in characters that most providers cache.
const minCached = MinCached * CharsPerToken

// examinedPerTurn is how many candidates are examined per turn, on average. With more candidates,
// some turns skip the examination, so that a request with many thousands of results does not
// examine all of them at every turn.
const examinedPerTurn = 128

// A candidate is an old result that could be masked.
type candidate struct {
	result int
	at     int // position in the masked body
	saved  int // characters saved by masking it
}

// A ledger goes through a conversation turn by turn and masks old results where that pays.
//
// Masking a result that was sent before makes the provider process everything after it as new.
// With s characters from the first such result to the end of the last request, of which m are
// masked, that costs write·(s-m) now instead of read·s, and every later request is cheaper by
// read·m. Beginning with an earlier result masks more and writes more. The ledger takes the best
// beginning, if it pays off within [expectedTurns], and if the bill stays within Policy.MaxLoss of
// the unmasked bill even if this request is the last.
//
// All numbers are characters. A result that is already masked counts with its original length, so
// that decisions about a masked conversation are the same.
type ledger struct {
	account
	Progress
	head       int         // characters outside the messages, such as tools
	candidates []candidate // in the order of the conversation when examined
	cleared    int         // characters saved by masked results
	clearedBy  sums        // cleared by result
}

// foldAuto is fold for [ClearAuto]. It continues from a progress and returns the new one. If the
// cache is cold, the whole request is written to it anyway, so masking is free.
func (m masking) foldAuto(prior *Progress, cold bool) (now, before state, progress Progress) {
	if len(m.turns) == 0 {
		return state{}, state{}, Progress{}
	}
	m.resetIDs()
	l := &ledger{account: account{masking: m}, Progress: *prior}
	l.onOld = l.addOld
	l.moves = make([]int32, max(len(m.results), len(prior.moves)))
	copy(l.moves, prior.moves)
	l.clearedBy = make(sums, len(l.moves)+1)
	l.head = len(m.body) - int(m.list.span.end-m.list.span.start)
	length := l.lengthUpTo(-1) // of an unmasked request
	if prior.turns == 0 {
		l.unmasked = m.policy.WritePrice * float64(length)
		l.masked = l.unmasked
	}
	before = prior.now
	step := max(m.policy.StepTurns, 1)
	for turns := 1; turns <= len(m.turns); turns++ {
		l.addTurn(turns - 1)
		sent := length
		length = l.lengthUpTo(turns - 1)
		cold := cold && turns == len(m.turns)
		if turns <= prior.turns && !cold {
			continue
		}
		boundary := max(turns-m.policy.WindowTurns, 0) / step * step
		l.advance(boundary)
		l.turns = turns
		l.charge(sent, length-sent, cold)
		if turns < l.nextExamination && !cold {
			continue
		}
		if first, cost := l.best(sent-l.cleared, cold); first >= 0 {
			if prior.turns == 0 {
				before = l.now
			}
			l.now = state{boundary: boundary, step: turns, move: l.now.move + 1}
			l.masked += cost
			l.clear(first)
		}
		l.nextExamination = turns + len(l.candidates)/examinedPerTurn
	}
	return l.now, before, l.Progress
}

// charge adds the cost of a request with repeated and added characters.
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

// lengthUpTo returns the length of an unmasked request up to the end of a turn, or before the first
// turn if turn is -1.
func (l *ledger) lengthUpTo(turn int) int {
	start := int(l.list.span.start)
	if turn < 0 {
		return l.head + int(l.Conversation.turns[0].start) - start
	}
	return l.head + int(l.Conversation.turns[turn].end) - start + l.shift
}

// addOld makes an old result a candidate, or counts it as masked if it already is.
func (l *ledger) addOld(i int) {
	r := &l.results[i]
	id := l.idOf(r)
	if id == nil || !r.released || l.judge(r, id) == keep {
		return
	}
	saved := l.savings(i)
	if l.moves[i] != 0 {
		l.cleared += saved
		l.clearedBy.add(i, saved)
		return
	}
	if saved <= 0 {
		return
	}
	at := l.head + int(l.texts[r.texts].start-l.list.span.start) + int(r.shift) - l.clearedBy.before(i)
	l.candidates = append(l.candidates, candidate{i, at, saved})
}

// savings returns how many characters masking a result saves.
func (l *ledger) savings(i int) int {
	r := &l.results[i]
	chars, _ := l.originalLen(r, l.idOf(r))
	_, placeholder := l.policy.template().size(l.filling(r))
	return chars - placeholder - int(r.n-1)
}

// best returns the candidate to begin with, or -1 to mask none, and the additional cost of this
// request. sent is the length of the previous request.
func (l *ledger) best(sent int, cold bool) (first int, cost float64) {
	inOrder := func(a, b candidate) int { return a.result - b.result }
	if !slices.IsSortedFunc(l.candidates, inOrder) { // a tool has released an earlier result
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
			anew := sent - l.stillCached(c.at)
			price += (p.WritePrice - p.ReadPrice) * float64(anew)
		}
		gain := expectedTurns(l.turns)*p.ReadPrice*float64(saved) - price
		if gain > best && (price <= 0 || l.masked+price <= limit) {
			first, cost, best = i, price, gain
		}
	}
	return first, cost
}

// stillCached returns how much of a request is still cached if it changes at a position. Requests
// with cache marks have them at the end of the fixed part and in the last messages, so everything
// between the fixed part and the change is processed again.
func (l *ledger) stillCached(position int) int {
	switch cache := l.cache; {
	case cache.messages && cache.opening:
		position = l.head
	case cache.messages:
		position = 0
	}
	if position < minCached {
		return 0
	}
	return position
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

// sums is a Fenwick tree: prefix sums in logarithmic time.
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

// Uncached reports whether the request is in Anthropic's format and does not ask to cache its
// messages.
func (c *Conversation) Uncached() bool { return c.list.format == toolUse && !c.cache.messages }

// CacheTTL returns how long the provider caches the request, as far as is known: 5 minutes if it
// has cache marks, as requests to Anthropic do, or an hour or a day if it asks for that. Providers
// without marks promise less, but may cache it for an hour.
func (c *Conversation) CacheTTL() time.Duration {
	switch {
	case c.cache.day:
		return 24 * time.Hour
	case c.cache.messages && !c.cache.hour:
		return 5 * time.Minute
	}
	return time.Hour
}
