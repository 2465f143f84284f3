package chat

import (
	"bytes"
	"strconv"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// A parser reads the body of a conversation, which it extends value by value.
type parser struct {
	*Conversation
	message message
	block   block
	called  []bool        // by id: a call has it
	waiting []waitingCall // calls without an id that results may answer
	queues  []queue       // waiting calls by tool
	search  jsonspan.Search
}

// reset prepares p to read a body of c from the beginning.
func (p *parser) reset(c *Conversation) {
	p.Conversation = c
	if p.search.Found == nil {
		p.search = jsonspan.Search{Found: p.read, KnownElementsEnd: p.knownElements}
	}
	p.called, p.waiting, p.queues = p.called[:0], p.waiting[:0], p.queues[:0]
	p.nextMessage()
}

// A message is an element of messages, input or contents.
type message struct {
	role, kind word
	failed     bool
	notText    bool // its content has blocks that are not texts
	toolCalls  jsonspan.Kind
	content    value
	id, itemID value
	name, tool value
	parts      []value  // texts of its content
	calls      []call   // from tool_calls or functionCall parts
	uses       []call   // from tool_use blocks
	results    []result // from tool_result blocks or functionResponse parts
	tools      []value  // tool names of the results, where given
	texts      int32    // number of texts before it
}

// A block is an element of content, parts or tool_calls, or the output of an item of input.
type block struct {
	kind        word
	failed      bool
	notText     bool // its content has parts that are not texts
	notShell    bool // its content has parts that are not shell output
	shellFailed bool // a shell command failed
	id, useID   value
	name        value
	custom      value // name of a custom tool, whose input is free text
	content     value
	text        value
	call        member // toolUse or functionCall
	answer      member // toolResult or functionResponse
	part        piece
	texts       int32 // number of texts before it
}

// A member is an object in a block that holds a call or a result.
type member struct {
	kind     jsonspan.Kind
	failed   bool
	id, name value
	content  value
}

// A piece is a part of a result, which may be a text.
type piece struct {
	kind    word
	text    value
	stdout  value
	stderr  value
	object  value
	members int32 // number of members of this object
	last    value // last of these members
}

func (p *parser) nextMessage() {
	m := &p.message // fields are reset one by one: there are thousands of messages
	m.role, m.kind, m.failed, m.notText, m.toolCalls = noWord, noWord, false, false, 0
	m.content, m.id, m.itemID, m.name, m.tool = value{}, value{}, value{}, value{}, value{}
	m.parts, m.calls, m.uses, m.results, m.tools = m.parts[:0], m.calls[:0], m.uses[:0], m.results[:0], m.tools[:0]
	m.texts = int32(len(p.texts))
	p.nextBlock()
}

func (p *parser) nextBlock() { p.block = block{texts: int32(len(p.texts))} }

func (p *parser) endMessage(v value) {
	m := &p.message
	if v.kind != jsonspan.BeginObject {
		p.list.invalid = true
	}
	if m.toolCalls != jsonspan.BeginArray {
		m.calls = m.calls[:0]
	}
	if m.content.kind != jsonspan.BeginArray {
		m.uses, m.results = m.uses[:0], m.results[:0]
	}
	if m.role != user || len(m.results) == 0 {
		p.texts = p.texts[:m.texts] // these texts do not belong to a result
	}
	switch m.role {
	case assistant:
		p.list.modelSpoke = true
		if len(m.calls)+len(m.uses) > 0 {
			p.beginTurn(v)
			for _, calls := range [...][]call{m.calls, m.uses} {
				for _, call := range calls {
					p.addTurnCall(call)
				}
			}
		}
	case tool:
		p.texts = append(p.texts, m.parts...)
		p.block = block{texts: m.texts, notText: m.notText}
		r := p.newResult(m.id, m.content, false, jsonspan.BeginArray)
		if !m.tool.isText() {
			m.tool = m.name
		}
		p.addAnswer(&r, m.tool)
		p.endTurn(v)
	case user:
		for i := range m.results {
			p.addAnswer(&m.results[i], m.tools[i])
		}
		if len(m.results) > 0 {
			p.endTurn(v)
		}
	}
	if m.kind != noWord && (m.role == assistant && len(m.uses) > 0 || m.role == user && len(m.results) > 0) {
		p.list.format = m.kind
	}
	p.list.othersSpoke = p.list.othersSpoke || m.role != assistant
	p.list.setLast(v, m.role == assistant)
	p.nextMessage()
}

func (p *parser) endBlock() {
	m, b := &p.message, &p.block
	isMember := b.kind == noWord && b.content.kind == 0 // Bedrock's format
	isUse, isAnswer := b.call.kind == jsonspan.BeginObject, b.answer.kind == jsonspan.BeginObject
	switch {
	case b.kind == toolUse && b.id.isText():
		m.uses = append(m.uses, p.newCall(b.id, b.name))
		m.kind = toolUse
	case b.kind == toolResult:
		p.addResult(b.useID, b.content, b.failed, jsonspan.BeginArray)
		m.kind = toolUse
	case isMember && isUse && !isAnswer && b.call.id.isText():
		m.uses = append(m.uses, p.newCall(b.call.id, b.call.name))
		m.kind = toolResult
	case isMember && isAnswer && !isUse:
		p.addResult(b.answer.id, b.answer.content, b.answer.failed, jsonspan.BeginArray)
		m.kind = toolResult
	default:
		p.texts = p.texts[:b.texts]
	}
	if b.kind == plainText && b.text.kind == jsonspan.String {
		m.parts = append(m.parts, b.text)
	} else {
		m.notText = true
	}
	p.nextBlock()
}

func (p *parser) endContentsPart() {
	b := &p.block
	if b.call.kind == jsonspan.BeginObject {
		p.addCall(b.call.id, b.call.name)
	}
	if b.answer.kind == jsonspan.BeginObject {
		p.addResult(b.answer.id, b.answer.content, b.answer.failed, jsonspan.BeginObject)
	}
	p.nextBlock()
}

// addCall adds a call of a message. It needs no id if its tool has a name.
func (p *parser) addCall(id, name value) {
	if call := p.newCall(id, name); call.id != noSymbol || call.tool != noSymbol {
		p.message.calls = append(p.message.calls, call)
	}
}

// addResult adds a result of a message.
func (p *parser) addResult(id, content value, failed bool, kind jsonspan.Kind) {
	m := &p.message
	m.results = append(m.results, p.newResult(id, content, failed, kind))
	m.tools = append(m.tools, p.block.answer.name)
}

// newResult returns a result with the texts of the block, if its content is text: a string, or
// parts in a value of this kind.
func (p *parser) newResult(id, content value, failed bool, kind jsonspan.Kind) result {
	r := result{id: id, symbol: noSymbol, texts: p.block.texts, failed: failed}
	switch content.kind {
	case jsonspan.String:
		p.texts = append(p.texts[:r.texts], content)
	case kind:
		if p.block.notText {
			r.unread = NotText
		}
	case 0, jsonspan.Null:
		p.texts = p.texts[:r.texts]
	default:
		r.unread = NotText
	}
	if r.unread == NotText {
		p.texts = p.texts[:r.texts]
	}
	r.n = int32(len(p.texts)) - r.texts
	if r.n > 0 {
		r.lead = p.body[p.texts[r.texts].start+1]
	}
	for _, t := range p.texts[r.texts:] {
		r.chars += int(t.chars)
	}
	return r
}

// endPart adds a part of a result: a text of this kind, or shell output.
func (p *parser) endPart(kind word) {
	b := &p.block
	part := &b.part
	isText := part.kind == kind && part.text.kind == jsonspan.String
	hasOutput := part.stdout.kind+part.stderr.kind != 0
	isShell := part.kind == noWord && hasOutput && part.stdout.mayBeText() && part.stderr.mayBeText()
	switch {
	case isText:
		p.texts = append(p.texts, part.text)
	case isShell:
		for _, text := range [...]value{part.stdout, part.stderr} {
			if text.isText() { // an empty one means no output
				p.texts = append(p.texts, text)
			}
		}
	}
	b.notText = b.notText || !isText
	b.notShell = b.notShell || !isShell
	*part = piece{}
}

// endAnswerPart adds a part of a toolResult.
func (p *parser) endAnswerPart() {
	b := &p.block
	part := &b.part
	switch {
	case part.text.kind == jsonspan.String && part.object.kind == 0:
		p.texts = append(p.texts, part.text)
	case part.text.kind == 0 && part.object.kind != 0:
		p.addObject(part.object)
	default:
		b.notText = true
	}
	*part = piece{}
}

// addObject adds a value that is given instead of a text and may be any JSON. If it is an object
// with one string, the string is the text; so is a placeholder. Values without members, such as
// numbers, stay.
func (p *parser) addObject(v value) {
	part := &p.block.part
	switch {
	case v.kind == jsonspan.BeginObject && part.members == 1 && part.last.kind == jsonspan.String:
		p.texts = append(p.texts, part.last)
	case v.kind == jsonspan.String:
		p.texts = append(p.texts, v)
	case part.members > 0:
		v.chars = int32(utf8.RuneCount(p.body[v.start:v.end]))
		p.texts = append(p.texts, v)
	}
	*part = piece{}
}

func (p *parser) beginTurn(v value) {
	p.turns = append(p.turns, turn{
		start: v.start, end: v.end, calls: int32(len(p.calls)), results: int32(len(p.results)),
	})
	p.list.modelSpoke = false
	if p.list.othersSpoke { // earlier calls are answered, or never will be
		p.list.othersSpoke = false
		p.waiting, p.list.oldest = p.waiting[:0], 0
		p.list.round++
	}
}

// endTurn extends the last turn to the end of v. User messages after its results do not belong to
// it: they come later, and must not undo a decision made when the results came.
func (p *parser) endTurn(v value) {
	if n := len(p.turns); n > 0 {
		p.turns[n-1].end = v.end
	}
}

// builtin are the names of tools whose calls have their own kinds of items.
var builtin = [...][]byte{
	localShellCall: []byte("local_shell"),
	shellCall:      []byte("shell"),
	applyPatchCall: []byte("apply_patch"),
	computerCall:   []byte("computer"),
	toolSearchCall: []byte("tool_search"),
}

func (p *parser) endItem(v value) {
	m := &p.message
	p.list.format = functionCall
	if v.kind != jsonspan.BeginObject {
		p.list.invalid = true
	}
	if !m.id.isText() && (m.kind == localShellCall || m.kind == localShellCallOutput) {
		m.id = m.itemID
	}
	switch m.kind {
	case functionCall, localShellCall, shellCall, applyPatchCall, computerCall, toolSearchCall:
		if !p.list.open && m.id.isText() {
			p.beginTurn(v)
			p.list.open = true
		}
		p.list.modelSpoke = !p.list.open
		if m.id.isText() {
			call := p.newCall(m.id, m.name)
			if name := builtin[m.kind]; !m.name.isText() && name != nil {
				call.tool = p.names.number(name, value{})
				p.list.hasGenerated = true
			}
			p.calls = append(p.calls, call)
			p.endTurn(v)
		}
	case functionCallOutput, localShellCallOutput, shellCallOutput:
		p.list.open = false
		p.endOutput()
		p.endTurn(v)
	case otherOutput:
		p.list.open = false
		p.results = append(p.results, result{symbol: noSymbol, texts: m.texts, unread: UnknownKind})
	default:
		if m.role == assistant {
			p.list.modelSpoke = true
		} else if m.role != noWord {
			p.list.open = false
		}
	}
	p.list.setLast(v, m.role == assistant || m.role == noWord && !m.kind.isOutput())
	p.nextMessage()
}

// endOutput adds the result of an item.
func (p *parser) endOutput() {
	m, b := &p.message, &p.block
	content, failed := b.content, m.failed
	if content.kind == jsonspan.BeginObject && b.text.kind == jsonspan.String {
		content, failed = b.text, failed || b.failed
	}
	if m.kind == shellCallOutput {
		b.notText, failed = b.notShell, failed || b.shellFailed
	}
	r := p.newResult(m.id, content, failed, jsonspan.BeginArray)
	p.addAnswer(&r, value{})
}

// A call is the model's request to run a tool.
type call struct {
	id   int32 // a symbol
	tool int32 // a symbol, or noSymbol
}

const noSymbol = -1

// A waitingCall call has no id. Results without an id, or with an id that no call has, answer such
// calls in order.
type waitingCall struct {
	id       int32 // symbol, generated from the name of its tool and a number
	next     int32 // next one of the same tool
	answered bool
}

// A queue holds the waiting calls of a tool.
type queue struct {
	round       int32 // round that first and last belong to
	first, last int32
	generated   int32 // number of calls of this tool without an id so far
}

const noCall = -1

// maxName is the longest tool name in bytes. Providers allow 64 to 128; a longer one would make
// placeholders longer than results.
const maxName = 256

// maxEscape is the largest JSON encoding of a byte, as in \u0001.
const maxEscape = 6

// newCall returns a call, which may have no id, and whose tool may have no name.
func (p *parser) newCall(id, name value) call {
	made := call{noSymbol, p.toolSymbol(name)}
	if id.isText() {
		made.id = p.ids.number(p.decode(id), id)
	}
	return made
}

// toolSymbol returns the symbol of a tool name, or noSymbol.
func (p *parser) toolSymbol(name value) int32 {
	if !name.isText() || len(p.text(name)) > maxEscape*maxName {
		return noSymbol
	}
	text := p.decode(name)
	if len(text) > maxName {
		return noSymbol
	}
	return p.names.number(text, name)
}

// addTurnCall adds a call. A call without an id gets one from its tool and a number.
func (p *parser) addTurnCall(call call) {
	if call.id == noSymbol {
		for int(call.tool) >= len(p.queues) {
			p.queues = append(p.queues, queue{})
		}
		q := &p.queues[call.tool]
		q.generated++
		start := len(p.decoded)
		p.decoded = append(append(p.decoded, p.names.texts[call.tool]...), '#')
		p.decoded = strconv.AppendInt(p.decoded, int64(q.generated), 10)
		call.id = p.ids.number(p.decoded[start:len(p.decoded):len(p.decoded)], value{})
		p.list.hasGenerated = true
		i := int32(len(p.waiting))
		if q.round == p.list.round {
			p.waiting[q.last].next = i
		} else {
			q.round, q.first = p.list.round, i
		}
		q.last = i
		p.waiting = append(p.waiting, waitingCall{id: call.id, next: noCall})
	}
	p.markCalled(call.id)
	p.calls = append(p.calls, call)
}

// markCalled records that a call has an id.
func (p *parser) markCalled(id int32) {
	for int(id) >= len(p.called) {
		p.called = append(p.called, false)
	}
	p.called[id] = true
}

// addAnswer adds a result and finds its call: the one with its id, or the first one without an id,
// of the same tool if the result names one.
func (p *parser) addAnswer(r *result, tool value) {
	if r.id.isText() {
		r.symbol = p.ids.number(p.decode(r.id), r.id)
	}
	if len(p.waiting) > 0 && (r.symbol == noSymbol || int(r.symbol) >= len(p.called) || !p.called[r.symbol]) {
		if w := p.nextWaiting(tool); w != nil {
			w.answered = true
			r.id, r.symbol = value{}, w.id
		}
	}
	p.results = append(p.results, *r)
}

// nextWaiting returns the first waiting call of a tool, or of any if tool has no name, or nil.
func (p *parser) nextWaiting(tool value) *waitingCall {
	first := &p.list.oldest
	if tool.isText() {
		name := p.toolSymbol(tool)
		if name == noSymbol || int(name) >= len(p.queues) || p.queues[name].round != p.list.round {
			return nil
		}
		first = &p.queues[name].first
	}
	for int(*first) < len(p.waiting) {
		w := &p.waiting[*first]
		if !w.answered {
			return w
		}
		if !tool.isText() {
			*first++
		} else if w.next == noCall {
			return nil
		} else {
			*first = w.next
		}
	}
	return nil
}

// A word is a string with a meaning in a conversation.
type word uint8

const (
	noWord word = iota // not a string
	otherWord
	assistant
	user
	tool
	model
	function
	plainText
	inputText
	toolUse
	toolResult
	functionCall
	localShellCall
	shellCall
	applyPatchCall
	computerCall
	toolSearchCall
	functionCallOutput
	localShellCallOutput
	shellCallOutput
	otherOutput // of an unsupported kind of call
	failedStatus
	errorStatus
	timeoutOutcome
)

// isOutput reports whether an item is the output of a tool.
func (w word) isOutput() bool {
	return w == functionCallOutput || w == localShellCallOutput || w == shellCallOutput || w == otherOutput
}

// word returns the word of a value.
func (p *parser) word(v value) word {
	if v.kind != jsonspan.String {
		return noWord
	}
	body := p.text(v)
	if v.escaped(body) {
		p.scratch = jsonspan.AppendText(p.scratch[:0], body)
		body = p.scratch
	}
	switch string(body) {
	case "assistant":
		return assistant
	case "tool":
		return tool
	case "user":
		return user
	case "model":
		return model
	case "function":
		return function
	case "text":
		return plainText
	case "input_text":
		return inputText
	case "tool_use":
		return toolUse
	case "tool_result":
		return toolResult
	case "function_call", "custom_tool_call": // the latter has free text as input, as from Codex
		return functionCall
	case "local_shell_call":
		return localShellCall
	case "shell_call":
		return shellCall
	case "apply_patch_call":
		return applyPatchCall
	case "computer_call":
		return computerCall
	case "tool_search_call":
		return toolSearchCall
	case "function_call_output", "custom_tool_call_output", "apply_patch_call_output", "computer_call_output",
		"mcp_tool_call_output", "tool_search_output":
		return functionCallOutput
	case "local_shell_call_output":
		return localShellCallOutput
	case "shell_call_output":
		return shellCallOutput
	case "failed":
		return failedStatus
	case "error":
		return errorStatus
	case "timeout":
		return timeoutOutcome
	}
	if bytes.HasSuffix(body, []byte("_output")) {
		return otherOutput
	}
	return otherWord
}
