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
	Edits     []jsonspan.Edit // changes to the body
	Originals []Original      // originals of masked results, if the template has ids

	Turns    int // number of turns
	Boundary int // number of turns whose results are old
	Results  int // number of masked results
	Chars    int // characters in these results
	Saved    int // characters saved; negative if the placeholders are longer than the results

	// Broken reports that the request changes a result that the request of the previous turn has
	// sent. A provider that caches prompts by their beginning has to process it again from there
	// on.
	Broken bool

	// Before is how many bytes of the body were in the previous request: all but the last reply of
	// the model and what follows it in the list. Shared is how many bytes of the masked body a
	// provider can have cached from that request, up to the first changed result.
	Before, Shared int

	// Unread counts the old results that cannot be masked, by reason.
	Unread [unreads]int

	// Grows reports that nothing is masked because the body would grow by more than [MaxGrowth].
	Grows bool
}

// An Original is the content of a masked result.
type Original struct {
	ID   string
	Body []byte // raw JSON string body, with escapes; several texts are joined with line breaks
}

// MaxGrowth is the maximum number of bytes by which masking may make a body longer. Short results
// are masked too, so placeholders can be longer than results, but a body with many short results
// must not become many times as large.
const MaxGrowth = 64 << 10

// A state is a position of the boundary.
type state struct {
	boundary int   // results of turns before this one are masked
	step     int   // number of turns when it moved there
	move     int32 // number of the move, with [ClearAuto]
}

// An idInfo holds what is known about an id.
type idInfo struct {
	turn int32 // last turn that uses it, or noTurn
	tool int32 // symbol, or noSymbol
	kept bool  // by KeepLastPerTool
}

const noTurn = -1

// A toolCount counts the results of a tool.
type toolCount struct {
	excluded     bool
	results      int32
	oldest, last int32 // indexes of the first and last result that KeepLastPerTool keeps
}

// ellipsis replaces every text of a result but the first. Providers reject empty texts.
var ellipsis = []byte("…")

// A placeholder that replaces an object is wrapped in an object.
const (
	beginObject = `{"output":"`
	endObject   = `"}`
)

var ellipsisObject = []byte(beginObject + "…" + endObject)

// room returns how long the text of a placeholder for v can be without making the body longer.
func (v value) room() int {
	if v.kind == jsonspan.String {
		return int(v.end - v.start - 2)
	}
	return int(v.end-v.start) - len(beginObject) - len(endObject)
}

// A masking applies a policy to a conversation.
type masking struct {
	*Conversation
	policy *Policy
}

// Mask decides which results are masked. The decision depends only on the conversation and the
// policy. The plan is valid while the body is.
func (c *Conversation) Mask(p *Policy) Plan {
	plan, _ := c.MaskAfter(p, &Progress{}, false)
	return plan
}

// MaskAfter is Mask for a conversation that continues one masked before, from its progress prior.
// cold says that the provider has nothing of it cached, so that masking is free. Both matter only
// with [ClearAuto]. If prior has more turns than the conversation, the conversation has been cut,
// and prior is ignored.
func (c *Conversation) MaskAfter(p *Policy, prior *Progress, cold bool) (Plan, Progress) {
	if prior.turns > len(c.turns) {
		prior = new(Progress)
	}
	for i := range c.results {
		c.results[i].replacement = itself
	}
	plan := Plan{Turns: len(c.turns), Before: c.list.bytesBefore(len(c.body), int(c.list.reply))}
	plan.Shared = plan.Before
	if p.WindowTurns <= 0 {
		return plan, Progress{}
	}
	m := masking{c, p}
	now, before, progress := m.fold(prior, cold)
	if now.step == 0 {
		return plan, progress
	}
	plan.Boundary = now.boundary

	// Unless the cache is cold, only the first request of a turn can differ from the previous
	// request, and only before that turn.
	sentResults := 0
	if prior.turns > 0 && now.move > before.move || prior.turns == 0 && now.step == len(c.turns) && !c.list.modelSpoke {
		sentResults = int(c.turns[now.step-1].results)
		m.choose(before, progress.moves)
		for i := range sentResults {
			c.results[i].oldReplacement = c.results[i].replacement
		}
	}
	plan.Grows = m.choose(now, progress.moves)
	size, texts, changed := 0, 0, int(c.list.reply)
	for i := range c.results {
		r := &c.results[i]
		if i < sentResults && r.replacement != r.oldReplacement && !plan.Broken {
			plan.Broken = true
			changed = min(changed, int(c.texts[r.texts].start)+1)
		}
		if r.replacement == itself {
			plan.Unread[m.unread(i, now)]++
			continue
		}
		bytes, chars := p.template().size(m.filling(r))
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
		plan.Edits, plan.Originals = m.edits(size, texts, plan.Results)
	}
	plan.Shared = c.list.bytesBefore(len(c.body), changed)
	for _, e := range plan.Edits {
		if e.End <= changed {
			plan.Shared += len(e.New) - (e.End - e.Start)
		}
	}
	plan.Unread[readable] = 0
	return plan, progress
}

// unread returns why an old result cannot be masked, or readable.
func (m masking) unread(i int, s state) Unread {
	r := &m.results[i]
	id := m.idOf(r)
	switch {
	case i >= m.resultsUpTo(s.step):
	case id == nil && i < m.resultsUpTo(s.boundary) && r.unread == UnknownKind:
		return UnknownKind
	case id == nil && i < m.resultsUpTo(s.boundary) && (r.unread != readable || r.n > 0):
		return NoCall
	case id != nil && int(id.turn) < s.boundary && !id.kept && (id.tool == noSymbol || !m.tools[id.tool].excluded):
		return r.unread
	}
	return readable
}

// choose decides which results are replaced in a state. Only results up to its step matter, as when
// the boundary moved there. If moves is not nil, only results masked by a move are masked. If the
// body would grow too much, nothing is masked.
func (m masking) choose(s state, moves []int32) (grows bool) {
	m.resetIDs()
	for t := range s.step {
		m.addCalls(t)
	}
	end := m.resultsUpTo(s.step)
	if m.policy.KeepLastPerTool > 0 {
		m.keepLast(end)
	}
	growth := 0
	for i := range m.results {
		r := &m.results[i]
		r.replacement = itself
		if moves != nil && (moves[i] == 0 || moves[i] > s.move) {
			continue
		}
		id := m.idOf(r)
		if i < end && id != nil && int(id.turn) < s.boundary && !id.kept && m.judge(r, id) == mask {
			r.replacement = placeholder
			if m.policy.template().uses[toolName] > 0 {
				r.replacement += replacement(id.tool - noSymbol)
			}
			growth += m.growth(r)
		}
	}
	if growth <= MaxGrowth {
		return false
	}
	for i := range m.results {
		m.results[i].replacement = itself
	}
	return true
}

// growth returns by how many bytes masking a result makes the body longer.
func (m masking) growth(r *result) int {
	bytes, _ := m.policy.template().size(m.filling(r))
	bytes += int(r.n-1) * len(ellipsis)
	for _, t := range m.texts[r.texts : r.texts+r.n] {
		bytes -= t.room()
	}
	return bytes
}

// A replacement identifies the text that is sent for a result: the result itself, or a placeholder.
// If placeholders name the tool, each tool has its own value.
type replacement int32

const (
	itself replacement = iota
	placeholder
)

// fold goes through the turns and moves the boundary where possible and allowed. It returns the
// last two states. A decision about a turn does not depend on later turns.
func (m masking) fold(prior *Progress, cold bool) (now, before state, progress Progress) {
	if m.policy.ClearAtLeast == ClearAuto {
		return m.foldAuto(prior, cold)
	}
	now, before = m.foldSteps()
	return now, before, Progress{}
}

// foldSteps is fold for a boundary that moves in steps, or when that masks enough.
func (m masking) foldSteps() (now, before state) {
	a := account{masking: m}
	if m.policy.ClearAtLeast > 0 {
		m.resetIDs()
		a.onOld = a.countOld
	}
	every := max(m.policy.StepTurns, 1)
	for turns := 1; turns <= len(m.turns); turns++ {
		if m.policy.ClearAtLeast > 0 {
			a.addTurn(turns - 1)
		}
		window := turns - m.policy.WindowTurns // start of the window
		if window < now.boundary+every {
			continue
		}
		boundary := window / every * every
		if m.policy.ClearAtLeast > 0 && !a.pays(boundary) {
			continue
		}
		now, before = state{boundary: boundary, step: turns}, now
	}
	return now, before
}

// An account adds up the characters that a step would mask. It takes the age of a result from its
// position, and its tool from the calls before it; only the step takes into account that an id is
// used again. A result that is already masked counts with its original length, so that decisions
// about a masked conversation are the same.
type account struct {
	masking
	onOld func(result int) // receives a result that is old and not one of the last of its tool
	old   int              // results before the boundary
	shift int              // how much longer the body would be without masking
	chars int              // characters that a step would mask
}

// addTurn adds the calls and results of a turn.
func (a *account) addTurn(t int) {
	a.addCalls(t)
	first := 0
	if t > 0 {
		first = int(a.turns[t].results)
	}
	for i := first; i < a.resultsUpTo(t+1); i++ {
		r := &a.results[i]
		id := a.idOf(r)
		if id == nil {
			continue
		}
		r.shift = int32(a.shift)
		if r.n > 0 {
			chars, _ := a.originalLen(r, id)
			a.shift += chars
			for _, t := range a.texts[r.texts : r.texts+r.n] {
				a.shift -= t.room()
			}
		}
		r.released = a.policy.KeepLastPerTool <= 0 || id.tool == noSymbol
		if !r.released {
			a.addToTool(&a.tools[id.tool], i)
		}
	}
}

// addToTool adds a result to the last ones of its tool, and removes the first of them if there are
// too many.
func (a *account) addToTool(tool *toolCount, i int) {
	results := a.results
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
	released := int(tool.oldest)
	results[released].released = true
	tool.oldest = results[released].next
	if released < a.old {
		a.onOld(released)
	}
}

// advance passes results that are before the boundary now to onOld.
func (a *account) advance(boundary int) {
	for end := a.resultsUpTo(boundary); a.old < end; a.old++ {
		a.onOld(a.old)
	}
}

// countOld adds the characters of an old result.
func (a *account) countOld(i int) {
	r := &a.results[i]
	id := a.idOf(r)
	if id == nil || !r.released {
		return
	}
	if a.judge(r, id) != keep {
		chars, _ := a.originalLen(r, id)
		a.chars += chars
	}
}

// pays reports whether moving the boundary masks enough. If so, the account starts from 0.
func (a *account) pays(boundary int) bool {
	a.advance(boundary)
	if a.chars/CharsPerToken < a.policy.ClearAtLeast {
		return false
	}
	a.chars = 0
	return true
}

// resetIDs resets what is known about ids and tools.
func (m masking) resetIDs() {
	m.idInfos = m.idInfos[:0]
	for range m.ids.texts {
		m.idInfos = append(m.idInfos, idInfo{turn: noTurn, tool: noSymbol})
	}
	m.tools = m.tools[:0]
	for _, name := range m.names.texts {
		m.tools = append(m.tools, toolCount{excluded: m.policy.excludes(name)})
	}
}

// addCalls adds the calls of a turn.
func (m masking) addCalls(t int) {
	end := int32(len(m.calls))
	if t+1 < len(m.turns) {
		end = m.turns[t+1].calls
	}
	for _, call := range m.calls[m.turns[t].calls:end] {
		id := &m.idInfos[call.id]
		id.turn = int32(t)
		if call.tool != noSymbol {
			id.tool = call.tool
		}
	}
}

// idOf returns what is known about the id of a result, or nil.
func (m masking) idOf(r *result) *idInfo {
	if r.symbol == noSymbol || m.idInfos[r.symbol].turn == noTurn {
		return nil
	}
	return &m.idInfos[r.symbol]
}

// resultsUpTo returns the number of results in the first turns.
func (c *Conversation) resultsUpTo(turns int) int {
	if turns < len(c.turns) {
		return int(c.turns[turns].results)
	}
	return len(c.results)
}

// keepLast marks the ids of the last results of each tool, among the first end results.
func (m masking) keepLast(end int) {
	for i := end - 1; i >= 0; i-- {
		id := m.idOf(&m.results[i])
		if id == nil || id.tool == noSymbol {
			continue
		}
		tool := &m.tools[id.tool]
		tool.results++
		if int(tool.results) <= m.policy.KeepLastPerTool {
			id.kept = true
		}
	}
}

// A judgment is the decision about an old result.
type judgment uint8

const (
	keep   judgment = iota
	mask            // to be masked
	masked          // already masked
)

// judge decides about an old result.
func (m masking) judge(r *result, id *idInfo) judgment {
	if r.n == 0 || id.tool != noSymbol && m.tools[id.tool].excluded {
		return keep
	}
	if _, already := m.originalLen(r, id); already {
		return masked
	}
	if r.chars < m.policy.MinChars || m.keepsError(r, m.policy.KeepErrors) {
		return keep
	}
	return mask
}

// originalLen returns the length of a result before it was masked, and whether it is masked. The
// length is 0 if the placeholder does not have it.
func (m masking) originalLen(r *result, id *idInfo) (chars int, already bool) {
	first := m.texts[r.texts]
	if first.kind != jsonspan.String {
		return r.chars, false
	}
	body := m.text(first)
	for _, t := range [...]*Template{m.policy.template(), &DefaultTemplate, &DefaultTemplateWithID} {
		chars, already = m.isPlaceholder(t, body, r, id)
		if already {
			return chars, true
		}
	}
	return r.chars, false
}

// isPlaceholder reports whether a text is the template, filled in for this result.
func (m masking) isPlaceholder(t *Template, body []byte, r *result, id *idInfo) (chars int, ok bool) {
	// A quick check that rules out most texts.
	if start := t.parts[0].text; start != "" && len(body) > 0 && r.lead != start[0] && r.lead != '\\' {
		return 0, false
	}
	tool, symbol := unknownTool, m.ids.texts[r.symbol]
	if id.tool != noSymbol {
		tool = m.names.texts[id.tool]
	}
	if len(body) > maxEscape*t.filledLen(t.bytes, len(symbol), len(tool), maxDigits) {
		return 0, false
	}
	if bytes.IndexByte(body, '\\') >= 0 {
		m.scratch = jsonspan.AppendText(m.scratch[:0], body)
		body = m.scratch
	}
	return t.match(body, symbol, tool)
}

func (m masking) filling(r *result) filling {
	id := m.idOf(r)
	f := filling{tool: unknownTool, toolChars: len(unknownTool), chars: r.chars}
	if r.id.kind == 0 { // its call has no id, but a generated one
		text := m.ids.texts[r.symbol]
		m.scratch = jsonspan.AppendBody(m.scratch[:0], string(text))
		f.id, f.idChars = m.scratch, utf8.RuneCount(text)
	} else {
		f.id, f.idChars = m.text(r.id), int(r.id.chars)
	}
	if id.tool != noSymbol {
		name := m.names.positions[id.tool]
		if name.kind == 0 { // a builtin tool, whose name needs no escapes
			f.tool = m.names.texts[id.tool]
			f.toolChars = len(f.tool)
		} else {
			f.tool, f.toolChars = m.text(name), int(name.chars)
		}
	}
	return f
}

// originalOf returns the original of a result with its id. The id depends only on the call and the
// content: if it changed after a restart or on another machine, so would the prompt, and the
// provider would have to process it again.
func (m masking) originalOf(r *result) Original {
	var texts [][]byte
	for _, t := range m.texts[r.texts : r.texts+r.n] {
		text := m.text(t)
		if t.kind != jsonspan.String {
			text = jsonspan.AppendBody(nil, string(m.body[t.start:t.end]))
		}
		texts = append(texts, text)
	}
	body := texts[0]
	if len(texts) > 1 {
		body = bytes.Join(texts, []byte(`\n`))
	}
	return Original{store.ContentHandle(idPrefix, m.ids.texts[r.symbol], body), body}
}

// edits returns the edits that mask results. size, texts and results are capacities: the bytes of
// placeholders, the number of texts and of results.
func (m masking) edits(size, texts, results int) (edits []jsonspan.Edit, originals []Original) {
	edits = make([]jsonspan.Edit, 0, texts)
	if m.policy.template().HasID() {
		originals = make([]Original, 0, results)
	}
	buf := make([]byte, 0, size)
	for i := range m.results {
		r := &m.results[i]
		if r.replacement == itself {
			continue
		}
		filling := m.filling(r)
		if originals != nil {
			original := m.originalOf(r)
			originals, filling.resultID = append(originals, original), original.ID
		}
		for i, t := range m.texts[r.texts : r.texts+r.n] {
			e := jsonspan.Edit{Start: int(t.start) + 1, End: int(t.end) - 1, New: ellipsis}
			isObject := t.kind != jsonspan.String
			if isObject {
				e = jsonspan.Edit{Start: int(t.start), End: int(t.end), New: ellipsisObject}
			}
			if i == 0 {
				start := len(buf)
				if isObject {
					buf = append(buf, beginObject...)
				}
				buf = m.policy.template().append(buf, filling)
				if isObject {
					buf = append(buf, endObject...)
				}
				e.New = buf[start:]
			}
			edits = append(edits, e)
			if n := len(edits); i > 0 && e.Start < edits[n-2].Start { // standard error may come first
				edits[n-2], edits[n-1] = e, edits[n-2]
			}
		}
	}
	return edits, originals
}

// A Result is a tool result of a conversation, according to the last plan.
type Result struct {
	Tool   string // empty if unknown
	Chars  int
	Masked bool
}

// Results returns the results that have a call, in order. Call Mask first.
func (c *Conversation) Results(p *Policy) iter.Seq[Result] {
	return func(yield func(Result) bool) {
		m := masking{c, p}
		m.resetIDs()
		for t := range c.turns {
			m.addCalls(t)
		}
		for i := range c.results {
			id := m.idOf(&c.results[i])
			if id == nil {
				continue
			}
			r := Result{Chars: c.results[i].chars, Masked: c.results[i].replacement != itself}
			if id.tool != noSymbol {
				r.Tool = string(c.names.texts[id.tool])
			}
			if !yield(r) {
				return
			}
		}
	}
}
