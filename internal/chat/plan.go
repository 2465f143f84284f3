package chat

import (
	"bytes"
	"iter"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// A Plan says how to mask a conversation.
type Plan struct {
	Edits []jsonspan.Edit // of its body

	Turns    int // in the conversation
	Boundary int // the results of that many turns are old
	Results  int // masked
	Chars    int // in these results
	Saved    int // characters; less than none if the results were shorter than what stands in their place

	// Broken reports that what was sent when there was one turn less is now sent
	// otherwise: a provider that remembers prompts by their beginning has to read
	// again from the first result that has changed.
	Broken bool

	// Grows reports that nothing is masked because what would be sent exceeded the
	// body by more than [MaxGrowth].
	Grows bool
}

// MaxGrowth is by how many bytes masking may make a body longer. Short results are
// masked, too, so placeholders can be longer than what they stand for; but a body
// made of nothing else must not become many times as large.
const MaxGrowth = 64 << 10

// A state is how far masking has got.
type state struct {
	boundary int // results of turns before this one are masked
	step     int // it moved there when there were so many turns
}

// known is what is known of an id.
type known struct {
	turn int32 // the last that uses it, or noTurn
	tool int32 // a symbol, or noSymbol
	kept bool  // by KeepLastPerTool
}

const noTurn = -1

// A tally counts the results of a tool.
type tally struct {
	excluded     bool
	results      int32
	oldest, last int32 // of those that KeepLastPerTool keeps
}

// more stands in the place of every text of a result but the first. Providers
// refuse empty texts.
var more = []byte("…")

// Mask decides which results are masked. For the same conversation it always
// decides the same. The plan is good as long as the body is.
func (c *Conversation) Mask(p *Policy) Plan {
	for i := range c.results {
		c.results[i].shown = itself
	}
	plan := Plan{Turns: len(c.turns)}
	if p.WindowTurns <= 0 {
		return plan
	}
	now, before := c.fold(p)
	if now.step == 0 {
		return plan
	}
	plan.Boundary = now.boundary

	// Only the first request of a turn can differ from what was sent before, and
	// only in what came before that turn.
	sent := 0
	if now.step == len(c.turns) && !c.list.spoke {
		sent = int(c.turns[now.step-1].results)
		c.choose(before, p)
		for i := range sent {
			c.results[i].before = c.results[i].shown
		}
	}
	plan.Grows = c.choose(now, p)
	size, texts := 0, 0
	for i := range c.results {
		r := &c.results[i]
		plan.Broken = plan.Broken || i < sent && r.shown != r.before
		if r.shown == itself {
			continue
		}
		bytes, chars := p.template().size(c.filling(r))
		size += bytes
		texts += int(r.n)
		plan.Results++
		plan.Chars += r.chars
		plan.Saved += r.chars - chars - int(r.n-1)
	}
	if plan.Results > 0 {
		plan.Edits = c.edits(p, size, texts)
	}
	return plan
}

// choose decides what is shown of each result in a state. What has come after its
// step does not matter: it is as it was when the boundary moved there. If the body
// would grow too much, all results are shown themselves.
func (c *Conversation) choose(s state, p *Policy) (grows bool) {
	c.forget(p)
	for t := range s.step {
		c.learn(t)
	}
	end := c.resultsUpTo(s.step)
	if p.KeepLastPerTool > 0 {
		c.keepLast(end, p)
	}
	growth := 0
	for i := range c.results {
		r := &c.results[i]
		r.shown = itself
		if id := c.idOf(r); i < end && id != nil && int(id.turn) < s.boundary && !id.kept && c.judge(r, id, p) == mask {
			r.shown = placeholder
			if p.template().uses[toolName] > 0 {
				r.shown += shown(id.tool - noSymbol)
			}
			growth += c.growth(r, p)
		}
	}
	if growth <= MaxGrowth {
		return false
	}
	for i := range c.results {
		c.results[i].shown = itself
	}
	return true
}

// growth returns by how many bytes the body is longer if a result is masked.
func (c *Conversation) growth(r *result, p *Policy) int {
	bytes, _ := p.template().size(c.filling(r))
	bytes += int(r.n-1) * len(more)
	for _, t := range c.texts[r.texts : r.texts+r.n] {
		bytes -= int(t.end - t.start - 2)
	}
	return bytes
}

// shown is what is sent of a result: itself, or a placeholder. If that names the
// tool, each tool has its own.
type shown int32

const (
	itself shown = iota
	placeholder
)

// fold goes through the turns and moves the boundary where it can and may. It
// returns where it is, and where it was before. What it decides about a turn
// depends on nothing that follows it.
func (c *Conversation) fold(p *Policy) (now, before state) {
	if p.ClearAtLeast != 0 {
		c.forget(p)
	}
	a := account{c: c, policy: p}
	every := max(p.StepTurns, 1)
	for turns := 1; turns <= len(c.turns); turns++ {
		if p.ClearAtLeast != 0 {
			a.enter(turns - 1)
		}
		window := turns - p.WindowTurns // where it begins
		if window < now.boundary+every {
			continue
		}
		boundary := window / every * every
		if p.ClearAtLeast != 0 && !a.pays(boundary, turns) {
			continue
		}
		now, before = state{boundary, turns}, now
	}
	return now, before
}

// An account adds up what a step would mask. It takes the age of a result from
// where it stands, and its tool from the calls before it: what becomes of ids
// that are used again is left to the step. A result that is masked already counts
// as what it was, so that what is masked again is masked alike.
type account struct {
	c      *Conversation
	policy *Policy
	chars  int // that a step would mask
	old    int // results before the boundary
	shift  int // by how much the body was longer, before it was masked
}

// enter takes the calls and results of a turn.
func (a *account) enter(t int) {
	c := a.c
	c.learn(t)
	c.turns[t].shift = a.shift
	first := 0
	if t > 0 {
		first = int(c.turns[t].results)
	}
	for i := first; i < c.resultsUpTo(t+1); i++ {
		r := &c.results[i]
		id := c.idOf(r)
		if id == nil {
			continue
		}
		if r.n > 0 {
			chars, _ := c.original(r, id, a.policy)
			a.shift += chars
			for _, t := range c.texts[r.texts : r.texts+r.n] {
				a.shift -= int(t.end - t.start - 2)
			}
		}
		if r.loose = a.policy.KeepLastPerTool <= 0 || id.tool == noSymbol; !r.loose {
			a.follow(&c.tools[id.tool], i)
		}
	}
}

// follow adds a result to the last of its tool, and lets go of the first of them
// if there are too many.
func (a *account) follow(tool *tally, i int) {
	results := a.c.results
	if tool.results == 0 {
		tool.oldest = int32(i)
	} else {
		results[tool.last].next = int32(i)
	}
	tool.last = int32(i)
	tool.results++
	if int(tool.results) <= a.policy.KeepLastPerTool {
		return
	}
	loose := int(tool.oldest)
	results[loose].loose = true
	tool.oldest = results[loose].next
	if loose < a.old {
		a.count(loose)
	}
}

// count adds a result that is before the boundary.
func (a *account) count(i int) {
	r := &a.c.results[i]
	id := a.c.idOf(r)
	if id == nil || !r.loose {
		return
	}
	if a.c.judge(r, id, a.policy) != keep {
		chars, _ := a.c.original(r, id, a.policy)
		a.chars += chars
	}
}

// pays reports whether it pays to move the boundary now that there are so many
// turns. If so, the account begins anew.
func (a *account) pays(boundary, turns int) bool {
	for end := a.c.resultsUpTo(boundary); a.old < end; a.old++ {
		a.count(a.old)
	}
	tokens := func(from int) float64 { // from a turn to the end of the last one
		chars := int(a.c.turns[turns-1].end-a.c.turns[from].start) + a.shift - a.c.turns[from].shift
		return float64(max(chars, 0)) / CharsPerToken
	}
	need := a.policy.payingTokens(tokens(boundary), tokens(0)/float64(turns))
	if float64(a.chars)/CharsPerToken < need {
		return false
	}
	a.chars = 0
	return true
}

// forget makes all ids unknown, and the results of all tools uncounted.
func (c *Conversation) forget(p *Policy) {
	c.known = c.known[:0]
	for range c.ids.texts {
		c.known = append(c.known, known{turn: noTurn, tool: noSymbol})
	}
	c.tools = c.tools[:0]
	for _, name := range c.names.texts {
		c.tools = append(c.tools, tally{excluded: p.excludes(name)})
	}
}

// learn takes the calls of a turn.
func (c *Conversation) learn(t int) {
	end := int32(len(c.calls))
	if t+1 < len(c.turns) {
		end = c.turns[t+1].calls
	}
	for _, call := range c.calls[c.turns[t].calls:end] {
		id := &c.known[call.id]
		id.turn = int32(t)
		if call.tool != noSymbol {
			id.tool = call.tool
		}
	}
}

// idOf returns what is known of the id of a result, or nil.
func (c *Conversation) idOf(r *result) *known {
	if r.symbol == noSymbol || c.known[r.symbol].turn == noTurn {
		return nil
	}
	return &c.known[r.symbol]
}

// resultsUpTo returns how many results there are in so many turns.
func (c *Conversation) resultsUpTo(turns int) int {
	if turns < len(c.turns) {
		return int(c.turns[turns].results)
	}
	return len(c.results)
}

// keepLast marks the ids of the last results of each tool, up to a result.
func (c *Conversation) keepLast(end int, p *Policy) {
	for i := end - 1; i >= 0; i-- {
		id := c.idOf(&c.results[i])
		if id == nil || id.tool == noSymbol {
			continue
		}
		tool := &c.tools[id.tool]
		if tool.results++; int(tool.results) <= p.KeepLastPerTool {
			id.kept = true
		}
	}
}

// What is to be done with an old result.
type judgment uint8

const (
	keep   judgment = iota
	mask            // it
	masked          // it is already
)

// judge decides about an old result.
func (c *Conversation) judge(r *result, id *known, p *Policy) judgment {
	if r.n == 0 || id.tool != noSymbol && c.tools[id.tool].excluded {
		return keep
	}
	if _, already := c.original(r, id, p); already {
		return masked
	}
	if r.chars < p.MinChars || p.KeepErrors && c.looksLikeError(r) {
		return keep
	}
	return mask
}

// original returns how many characters a result had before it was masked, and
// whether it is. If it is and does not say, it had none.
func (c *Conversation) original(r *result, id *known, p *Policy) (chars int, already bool) {
	body := c.text(c.texts[r.texts])
	t := p.template()
	chars, already = c.standsFor(t, body, r, id)
	if !already && t != &DefaultTemplate {
		t = &DefaultTemplate
		chars, already = c.standsFor(t, body, r, id)
	}
	if !already {
		chars = r.chars
	}
	return chars, already
}

// standsFor reports whether a text is the template, filled in for this result.
func (c *Conversation) standsFor(t *Template, body []byte, r *result, id *known) (chars int, ok bool) {
	// Most texts are something else, and that is soon seen.
	if start := t.parts[0].text; start != "" && len(body) > 0 && body[0] != start[0] && body[0] != '\\' {
		return 0, false
	}
	tool, symbol := unknownTool, c.ids.texts[r.symbol]
	if id.tool != noSymbol {
		tool = c.names.texts[id.tool]
	}
	if longest := t.bytes + t.uses[toolCallID]*len(symbol) + t.uses[toolName]*len(tool) + t.uses[originalChars]*maxDigits; len(body) > 6*longest {
		return 0, false
	}
	if bytes.IndexByte(body, '\\') >= 0 {
		c.scratch = jsonspan.AppendText(c.scratch[:0], body)
		body = c.scratch
	}
	return t.match(body, symbol, tool)
}

func (c *Conversation) filling(r *result) filling {
	id := c.idOf(r)
	f := filling{id: c.text(r.id), idChars: int(r.id.chars), tool: unknownTool, toolChars: len(unknownTool), chars: r.chars}
	if id.tool != noSymbol {
		name := c.spelled[id.tool]
		f.tool, f.toolChars = c.text(name), int(name.chars)
	}
	return f
}

// edits makes the edits of the results to mask, which need so many bytes and
// have so many texts.
func (c *Conversation) edits(p *Policy, size, texts int) []jsonspan.Edit {
	edits := make([]jsonspan.Edit, 0, texts)
	room := make([]byte, 0, size)
	for i := range c.results {
		r := &c.results[i]
		if r.shown == itself {
			continue
		}
		start := len(room)
		room = p.template().append(room, c.filling(r))
		text := room[start:]
		for _, t := range c.texts[r.texts : r.texts+r.n] {
			edits = append(edits, jsonspan.Edit{Start: int(t.start) + 1, End: int(t.end) - 1, New: text})
			text = more
		}
	}
	return edits
}

// A Result is a tool result of a conversation, as the last plan has it.
type Result struct {
	Tool   string // empty if it is not known
	Chars  int
	Masked bool
}

// Results returns the results that belong to a call, in their order, after Mask.
func (c *Conversation) Results(p *Policy) iter.Seq[Result] {
	return func(yield func(Result) bool) {
		c.forget(p)
		for t := range c.turns {
			c.learn(t)
		}
		for i := range c.results {
			id := c.idOf(&c.results[i])
			if id == nil {
				continue
			}
			r := Result{Chars: c.results[i].chars, Masked: c.results[i].shown != itself}
			if id.tool != noSymbol {
				r.Tool = string(c.names.texts[id.tool])
			}
			if !yield(r) {
				return
			}
		}
	}
}
