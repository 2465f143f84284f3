package chat

import (
	"bytes"
	"iter"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/store"
)

// A Plan says how to mask a conversation.
type Plan struct {
	Edits     []jsonspan.Edit // of its body
	Originals []Original      // of the masked results, if the template has their ids

	Turns    int // in the conversation
	Boundary int // the results of that many turns are old
	Results  int // masked
	Chars    int // in these results
	Saved    int // characters; less than none if the results were shorter than what stands in their place

	// Broken reports that what was sent when there was one turn less is now sent
	// otherwise: a provider that remembers prompts by their beginning has to read
	// again from the first result that has changed.
	Broken bool

	// Before is how many bytes of the body were in the request before this one: all
	// but the last reply of the model and what follows it in the list. Shared is how
	// many bytes of what is sent a provider has from that request, which remembers it
	// up to the first result that has changed.
	Before, Shared int

	// Unread counts the old results that cannot be masked, by the reason.
	Unread [unreads]int

	// Grows reports that nothing is masked because what would be sent exceeded the
	// body by more than [MaxGrowth].
	Grows bool
}

// An Original is what a masked result was.
type Original struct {
	ID   string
	Body []byte // of a JSON string, escapes and all; several texts have a line break between them
}

// MaxGrowth is by how many bytes masking may make a body longer. Short results are
// masked, too, so placeholders can be longer than what they stand for; but a body
// made of nothing else must not become many times as large.
const MaxGrowth = 64 << 10

// A state is how far masking has got.
type state struct {
	boundary int   // results of turns before this one are masked
	step     int   // it moved there when there were so many turns
	move     int32 // which move this was, with [ClearAuto]
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

// Objects stand in the place of objects, with a placeholder in them.
const (
	beginObject = `{"output":"`
	endObject   = `"}`
)

var moreObject = []byte(beginObject + "…" + endObject)

// room returns how many bytes of the body the text in the place of v may take before
// the body grows.
func (v value) room() int {
	if v.kind == jsonspan.String {
		return int(v.end - v.start - 2)
	}
	return int(v.end-v.start) - len(beginObject) - len(endObject)
}

// Mask decides which results are masked. For the same conversation it always
// decides the same. The plan is good as long as the body is.
func (c *Conversation) Mask(p *Policy) Plan {
	plan, _ := c.MaskAfter(p, &Progress{}, false)
	return plan
}

// MaskAfter is Mask for a conversation that begins with one that has been masked before, and
// goes on from how that went. Cold says that the provider has nothing of it in its cache, so
// that every result can be masked at no cost. Both matter only with [ClearAuto]. From a
// conversation with more turns nothing goes on: this one has been cut.
func (c *Conversation) MaskAfter(p *Policy, so *Progress, cold bool) (Plan, Progress) {
	if so.turns > len(c.turns) {
		so = new(Progress)
	}
	for i := range c.results {
		c.results[i].shown = itself
	}
	plan := Plan{Turns: len(c.turns), Before: c.list.before(len(c.body), int(c.list.reply))}
	plan.Shared = plan.Before
	if p.WindowTurns <= 0 {
		return plan, Progress{}
	}
	now, before, progress := c.fold(p, so, cold)
	if now.step == 0 {
		return plan, progress
	}
	plan.Boundary = now.boundary

	// Only the first request of a turn can differ from what was sent before, and
	// only in what came before that turn. Unless the cache is cold.
	sent := 0
	if so.turns > 0 && now.move > before.move || so.turns == 0 && now.step == len(c.turns) && !c.list.spoke {
		sent = int(c.turns[now.step-1].results)
		c.choose(before, p, progress.moves)
		for i := range sent {
			c.results[i].before = c.results[i].shown
		}
	}
	plan.Grows = c.choose(now, p, progress.moves)
	size, texts, changed := 0, 0, int(c.list.reply)
	for i := range c.results {
		r := &c.results[i]
		if i < sent && r.shown != r.before && !plan.Broken {
			plan.Broken = true
			changed = min(changed, int(c.texts[r.texts].start)+1)
		}
		if r.shown == itself {
			plan.Unread[c.unread(i, now)]++
			continue
		}
		bytes, chars := p.template().size(c.filling(r))
		size += bytes
		if c.texts[r.texts].kind != jsonspan.String {
			size += len(beginObject) + len(endObject)
		}
		texts += int(r.n)
		plan.Results++
		plan.Chars += r.chars
		plan.Saved += r.chars - chars - int(r.n-1)
	}
	if plan.Results > 0 {
		plan.Edits, plan.Originals = c.edits(p, size, texts, plan.Results)
	}
	plan.Shared = c.list.before(len(c.body), changed)
	for _, e := range plan.Edits {
		if e.End <= changed {
			plan.Shared += len(e.New) - (e.End - e.Start)
		}
	}
	plan.Unread[readable] = 0
	return plan, progress
}

// unread returns why a result cannot be masked, if it is old and there is a reason.
func (c *Conversation) unread(i int, s state) Unread {
	r := &c.results[i]
	id := c.idOf(r)
	switch {
	case i >= c.resultsUpTo(s.step):
	case id == nil && i < c.resultsUpTo(s.boundary) && r.unread == UnknownKind:
		return UnknownKind
	case id == nil && i < c.resultsUpTo(s.boundary) && (r.unread != readable || r.n > 0):
		return NoCall
	case id != nil && int(id.turn) < s.boundary && !id.kept && (id.tool == noSymbol || !c.tools[id.tool].excluded):
		return r.unread
	}
	return readable
}

// choose decides what is shown of each result in a state. What has come after its
// step does not matter: it is as it was when the boundary moved there. If there are
// moves, only what these have masked is. If the body would grow too much, all results
// are shown themselves.
func (c *Conversation) choose(s state, p *Policy, moves []int32) (grows bool) {
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
		if moves != nil && (moves[i] == 0 || moves[i] > s.move) {
			continue
		}
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
		bytes -= t.room()
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
func (c *Conversation) fold(p *Policy, so *Progress, cold bool) (now, before state, progress Progress) {
	if p.ClearAtLeast == ClearAuto {
		return c.foldAuto(p, so, cold)
	}
	now, before = c.foldSteps(p)
	return now, before, Progress{}
}

// foldSteps is fold for a boundary that moves by steps, or when that masks enough.
func (c *Conversation) foldSteps(p *Policy) (now, before state) {
	a := account{c: c, policy: p}
	if p.ClearAtLeast > 0 {
		c.forget(p)
		a.take = a.count
	}
	every := max(p.StepTurns, 1)
	for turns := 1; turns <= len(c.turns); turns++ {
		if p.ClearAtLeast > 0 {
			a.enter(turns - 1)
		}
		window := turns - p.WindowTurns // where it begins
		if window < now.boundary+every {
			continue
		}
		boundary := window / every * every
		if p.ClearAtLeast > 0 && !a.pays(boundary) {
			continue
		}
		now, before = state{boundary: boundary, step: turns}, now
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
	take   func(result int) // takes one that is old, and none of the last of its tool
	old    int              // results before the boundary
	shift  int              // by how much the body was longer, before it was masked
	chars  int              // that a step would mask
}

// enter takes the calls and results of a turn.
func (a *account) enter(t int) {
	c := a.c
	c.learn(t)
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
		r.shift = int32(a.shift)
		if r.n > 0 {
			chars, _ := c.original(r, id, a.policy)
			a.shift += chars
			for _, t := range c.texts[r.texts : r.texts+r.n] {
				a.shift -= t.room()
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
		a.take(loose)
	}
}

// age takes all results before the boundary.
func (a *account) age(boundary int) {
	for end := a.c.resultsUpTo(boundary); a.old < end; a.old++ {
		a.take(a.old)
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

// pays reports whether moving the boundary masks as much as it must. If so, the
// account begins anew.
func (a *account) pays(boundary int) bool {
	a.age(boundary)
	if a.chars/CharsPerToken < a.policy.ClearAtLeast {
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
	if r.chars < p.MinChars || c.keepsError(r, p.KeepErrors) {
		return keep
	}
	return mask
}

// original returns how many characters a result had before it was masked, and
// whether it is. If it is and does not say, it had none.
func (c *Conversation) original(r *result, id *known, p *Policy) (chars int, already bool) {
	first := c.texts[r.texts]
	if first.kind != jsonspan.String {
		return r.chars, false
	}
	body := c.text(first)
	for _, t := range [...]*Template{p.template(), &DefaultTemplate, &DefaultTemplateWithID} {
		if chars, already = c.standsFor(t, body, r, id); already {
			return chars, true
		}
	}
	return r.chars, false
}

// standsFor reports whether a text is the template, filled in for this result.
func (c *Conversation) standsFor(t *Template, body []byte, r *result, id *known) (chars int, ok bool) {
	// Most texts are something else, and that is soon seen.
	if start := t.parts[0].text; start != "" && len(body) > 0 && r.lead != start[0] && r.lead != '\\' {
		return 0, false
	}
	tool, symbol := unknownTool, c.ids.texts[r.symbol]
	if id.tool != noSymbol {
		tool = c.names.texts[id.tool]
	}
	if len(body) > maxEscape*t.filled(t.bytes, len(symbol), len(tool), maxDigits) {
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
	f := filling{tool: unknownTool, toolChars: len(unknownTool), chars: r.chars}
	if r.id.kind == 0 { // its call has none, but a number
		text := c.ids.texts[r.symbol]
		c.scratch = jsonspan.AppendBody(c.scratch[:0], string(text))
		f.id, f.idChars = c.scratch, utf8.RuneCount(text)
	} else {
		f.id, f.idChars = c.text(r.id), int(r.id.chars)
	}
	if id.tool != noSymbol {
		name := c.names.spelled[id.tool]
		if name.kind == 0 { // of a builtin tool: it is plain
			f.tool = c.names.texts[id.tool]
			f.toolChars = len(f.tool)
		} else {
			f.tool, f.toolChars = c.text(name), int(name.chars)
		}
	}
	return f
}

// identify returns what a result is, with its id. That follows from the call and the
// content alone: if it were another after a restart or on another machine, so would be
// the prompt, and the provider had to read it again.
func (c *Conversation) identify(r *result) Original {
	var texts [][]byte
	for _, t := range c.texts[r.texts : r.texts+r.n] {
		text := c.text(t)
		if t.kind != jsonspan.String {
			text = jsonspan.AppendBody(nil, string(c.body[t.start:t.end]))
		}
		texts = append(texts, text)
	}
	body := texts[0]
	if len(texts) > 1 {
		body = bytes.Join(texts, []byte(`\n`))
	}
	return Original{store.ContentHandle(idPrefix, c.ids.texts[r.symbol], body), body}
}

// edits makes the edits of so many results to mask, which need so many bytes and
// have so many texts.
func (c *Conversation) edits(p *Policy, size, texts, results int) (edits []jsonspan.Edit, originals []Original) {
	edits = make([]jsonspan.Edit, 0, texts)
	if p.template().HasID() {
		originals = make([]Original, 0, results)
	}
	room := make([]byte, 0, size)
	for i := range c.results {
		r := &c.results[i]
		if r.shown == itself {
			continue
		}
		filling := c.filling(r)
		if originals != nil {
			original := c.identify(r)
			originals, filling.resultID = append(originals, original), original.ID
		}
		for i, t := range c.texts[r.texts : r.texts+r.n] {
			e := jsonspan.Edit{Start: int(t.start) + 1, End: int(t.end) - 1, New: more}
			isObject := t.kind != jsonspan.String
			if isObject {
				e = jsonspan.Edit{Start: int(t.start), End: int(t.end), New: moreObject}
			}
			if i == 0 {
				start := len(room)
				if isObject {
					room = append(room, beginObject...)
				}
				room = p.template().append(room, filling)
				if isObject {
					room = append(room, endObject...)
				}
				e.New = room[start:]
			}
			edits = append(edits, e)
			if n := len(edits); i > 0 && e.Start < edits[n-2].Start { // standard error may come first
				edits[n-2], edits[n-1] = e, edits[n-2]
			}
		}
	}
	return edits, originals
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
