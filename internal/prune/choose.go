package prune

import (
	"container/heap"
	"context"
	"math"
)

// A unit is kept or removed as a whole: a line, or a fenced block.
type unit struct {
	start, end int     // lines [start, end)
	value      float64 // value of keeping it, positive
	tokens     float64 // cost of keeping it
	must       bool    // it must be kept
	under      int     // unit of the definition or heading that it belongs to, or -1
	bare       bool    // blank or a bracket: its heading need not be kept for it
}

func (u *unit) lines() int { return u.end - u.start }

// A budget limits a choice. Only removable is a hard limit.
type budget struct {
	removable  int     // maximum number of lines to remove
	enough     int     // number of lines to remove, unless that saves no tokens
	tokens     float64 // tokens to keep at most, markers included, unless that saves no tokens
	marker     float64 // tokens of a marker
	mustRemove bool    // remove as many lines as allowed, even if some save no tokens
}

// choose decides which units are kept. Because a removed run leaves a marker, it chooses whole runs
// rather than single lines. It maximizes
//
//	Σ value of kept units − price · (their tokens + one marker per removed run)
//
// with a dynamic program over two states, at the lowest price at which enough is removed. If that
// removes too many lines, it adds a premium for each kept line. What still fits into the budget is
// then restored at the best edges of removed runs.
func choose(ctx context.Context, units []unit, b budget) (kept []bool, err error) {
	p := newProgram(units, b.marker)
	price := smallest(ctx, func(price float64) bool {
		sum := p.run(price, 0)
		return sum.tokens <= b.tokens && sum.removed >= b.enough
	})
	if p.run(price, 0).removed > b.removable {
		premium := smallest(ctx, func(premium float64) bool { return p.run(price, premium).removed <= b.removable })
		// Take the choice just before the one that fits, and restore the rest.
		p.run(price, premium*(1-2*tolerance))
	}
	p.keepHeads(b)
	p.restore(b)
	return p.kept, ctx.Err()
}

// tolerance is the relative precision of a multiplier.
const tolerance = 1e-4

// smallest returns approximately the smallest positive number that satisfies a condition, given
// that all larger numbers satisfy it, too. If there is none, the result is large.
func smallest(ctx context.Context, satisfies func(float64) bool) float64 {
	low, high := 0.0, 1e-4
	for !satisfies(high) && high < 1e6 && ctx.Err() == nil {
		low, high = high, high*8
	}
	for high-low > tolerance*high && ctx.Err() == nil {
		if middle := (low + high) / 2; satisfies(middle) {
			high = middle
		} else {
			low = middle
		}
	}
	return high
}

// A program finds the best choice at given prices.
type program struct {
	units    []unit
	marker   float64
	kept     []bool
	fromKept []uint8 // bits: whether the unit before is kept if this one is kept, or removed
}

func newProgram(units []unit, marker float64) *program {
	n := len(units)
	return &program{units: units, marker: marker, kept: make([]bool, n), fromKept: make([]uint8, n)}
}

const (
	whenKept = 1 << iota
	whenRemoved
)

type total struct {
	removed int // lines
	runs    int // number of removed runs
	tokens  float64
}

// run finds the best choice and returns its totals.
func (p *program) run(price, premium float64) (sum total) {
	keep, remove := 0.0, math.Inf(-1) // best totals so far that end with a kept or removed unit
	for i := range p.units {
		u := &p.units[i]
		var from uint8
		nextKeep, nextRemove := remove, remove
		if keep >= remove {
			nextKeep = keep
			from |= whenKept
		}
		if begun := keep - price*p.marker; begun > remove {
			nextRemove = begun
			from |= whenRemoved
		}
		if u.must {
			nextRemove = math.Inf(-1)
		}
		keep, remove = nextKeep+u.value-price*u.tokens+premium*float64(u.lines()), nextRemove
		p.fromKept[i] = from
	}
	kept := keep >= remove
	for i := len(p.units) - 1; i >= 0; i-- {
		u := &p.units[i]
		p.kept[i] = kept
		if kept {
			sum.tokens += u.tokens
			kept = p.fromKept[i]&whenKept != 0
			continue
		}
		sum.removed += u.lines()
		kept = p.fromKept[i]&whenRemoved != 0
		if kept {
			sum.runs++
		}
	}
	sum.tokens += float64(sum.runs) * p.marker
	return sum
}

// room returns how many tokens of a budget are left, and how many lines may still be kept.
func (p *program) room(b budget) (tokens float64, lines int) {
	tokens, lines = b.tokens, -b.enough
	for i := range p.units {
		if p.kept[i] {
			tokens -= p.units[i].tokens
			continue
		}
		lines += p.units[i].lines()
		if i == 0 || p.kept[i-1] {
			tokens -= b.marker
		}
	}
	return tokens, lines
}

// keepHeads keeps the headings and definitions of kept lines, as far as they fit and take at most a
// twentieth of all tokens, which leaves the rest for relevant lines.
func (p *program) keepHeads(b budget) {
	left, lines := p.room(b)
	left = min(left, b.tokens/20)
	for i := range p.units {
		head := p.units[i].under
		if !p.kept[i] || p.units[i].bare || head < 0 || p.kept[head] {
			continue
		}
		cost := p.units[head].tokens - b.marker
		for _, neighbor := range [...]int{head - 1, head + 1} {
			if neighbor >= 0 && neighbor < len(p.kept) && !p.kept[neighbor] {
				cost += b.marker
			}
		}
		if cost <= left && lines >= p.units[head].lines() {
			p.kept[head] = true
			left -= cost
			lines -= p.units[head].lines()
		}
	}
}

// restore keeps the best edges of removed runs until no more lines are removed than allowed, and
// continues while tokens are left and enough lines stay removed. Unless the budget is exact, it
// then keeps removed runs that are no longer than their marker.
func (p *program) restore(b budget) {
	removed, left := 0, b.tokens
	edges := edges{units: p.units}
	for i := range p.units {
		if p.kept[i] {
			left -= p.units[i].tokens
			continue
		}
		removed += p.units[i].lines()
		first, last := i == 0 || p.kept[i-1], i+1 == len(p.units) || p.kept[i+1]
		if first {
			left -= b.marker
		}
		if first || last {
			edges.order = append(edges.order, i)
		}
	}
	heap.Init(&edges)
	for edges.Len() > 0 {
		i := heap.Pop(&edges).(int)
		u := &p.units[i]
		if p.kept[i] || removed <= b.removable && (u.tokens > left || removed-u.lines() < b.enough) {
			continue
		}
		p.kept[i] = true
		removed -= u.lines()
		left -= u.tokens
		if i > 0 && !p.kept[i-1] {
			heap.Push(&edges, i-1)
		}
		if i+1 < len(p.units) && !p.kept[i+1] {
			heap.Push(&edges, i+1)
		}
	}
	if !b.mustRemove {
		p.keepShortRuns()
	}
}

// keepShortRuns keeps removed runs that have no more tokens than their marker.
func (p *program) keepShortRuns() {
	for start := 0; start < len(p.units); start++ {
		if p.kept[start] {
			continue
		}
		end, tokens := start, 0.0
		for ; end < len(p.units) && !p.kept[end]; end++ {
			tokens += p.units[end].tokens
		}
		if tokens <= p.marker {
			for i := start; i < end; i++ {
				p.kept[i] = true
			}
		}
		start = end
	}
}

// edges is a heap of units at the edges of removed runs, the best first.
type edges struct {
	units []unit
	order []int
}

// worth returns the value of unit i relative to its cost.
func (e *edges) worth(i int) float64 {
	u := &e.units[i]
	return u.value / (u.tokens + float64(u.lines()))
}

func (e *edges) Len() int { return len(e.order) }

func (e *edges) Less(i, j int) bool {
	a, b := e.order[i], e.order[j]
	if va, vb := e.worth(a), e.worth(b); va != vb {
		return va > vb
	}
	return a < b
}

func (e *edges) Swap(i, j int) { e.order[i], e.order[j] = e.order[j], e.order[i] }
func (e *edges) Push(x any)    { e.order = append(e.order, x.(int)) }

func (e *edges) Pop() any {
	last := len(e.order) - 1
	i := e.order[last]
	e.order = e.order[:last]
	return i
}
