package chat

import (
	"bytes"
	"strconv"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

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

func (c *Conversation) nextMessage() {
	m := &c.message // fields are reset one by one: there are thousands of messages
	m.role, m.kind, m.failed, m.notText, m.toolCalls = noWord, noWord, false, false, 0
	m.content, m.id, m.itemID, m.name, m.tool = value{}, value{}, value{}, value{}, value{}
	m.parts, m.calls, m.uses, m.results, m.tools = m.parts[:0], m.calls[:0], m.uses[:0], m.results[:0], m.tools[:0]
	m.texts = int32(len(c.texts))
	c.nextBlock()
}

func (c *Conversation) nextBlock() { c.block = block{texts: int32(len(c.texts))} }

func (c *Conversation) endMessage(v value) {
	m := &c.message
	if v.kind != jsonspan.BeginObject {
		c.list.invalid = true
	}
	if m.toolCalls != jsonspan.BeginArray {
		m.calls = m.calls[:0]
	}
	if m.content.kind != jsonspan.BeginArray {
		m.uses, m.results = m.uses[:0], m.results[:0]
	}
	if m.role != user || len(m.results) == 0 {
		c.texts = c.texts[:m.texts] // these texts do not belong to a result
	}
	switch m.role {
	case assistant:
		c.list.modelSpoke = true
		if len(m.calls)+len(m.uses) > 0 {
			c.beginTurn(v)
			for _, calls := range [...][]call{m.calls, m.uses} {
				for _, call := range calls {
					c.addTurnCall(call)
				}
			}
		}
	case tool:
		c.texts = append(c.texts, m.parts...)
		c.block = block{texts: m.texts, notText: m.notText}
		r := c.newResult(m.id, m.content, false, jsonspan.BeginArray)
		if !m.tool.isText() {
			m.tool = m.name
		}
		c.addAnswer(&r, m.tool)
		c.endTurn(v)
	case user:
		for i := range m.results {
			c.addAnswer(&m.results[i], m.tools[i])
		}
		if len(m.results) > 0 {
			c.endTurn(v)
		}
	}
	if m.kind != noWord && (m.role == assistant && len(m.uses) > 0 || m.role == user && len(m.results) > 0) {
		c.list.format = m.kind
	}
	c.list.othersSpoke = c.list.othersSpoke || m.role != assistant
	c.list.setLast(v, m.role == assistant)
	c.nextMessage()
}

func (c *Conversation) endBlock() {
	m, b := &c.message, &c.block
	isMember := b.kind == noWord && b.content.kind == 0 // Bedrock's format
	isUse, isAnswer := b.call.kind == jsonspan.BeginObject, b.answer.kind == jsonspan.BeginObject
	switch {
	case b.kind == toolUse && b.id.isText():
		m.uses = append(m.uses, c.newCall(b.id, b.name))
		m.kind = toolUse
	case b.kind == toolResult:
		c.addResult(b.useID, b.content, b.failed, jsonspan.BeginArray)
		m.kind = toolUse
	case isMember && isUse && !isAnswer && b.call.id.isText():
		m.uses = append(m.uses, c.newCall(b.call.id, b.call.name))
		m.kind = toolResult
	case isMember && isAnswer && !isUse:
		c.addResult(b.answer.id, b.answer.content, b.answer.failed, jsonspan.BeginArray)
		m.kind = toolResult
	default:
		c.texts = c.texts[:b.texts]
	}
	if b.kind == plainText && b.text.kind == jsonspan.String {
		m.parts = append(m.parts, b.text)
	} else {
		m.notText = true
	}
	c.nextBlock()
}

func (c *Conversation) endContentsPart() {
	b := &c.block
	if b.call.kind == jsonspan.BeginObject {
		c.addCall(b.call.id, b.call.name)
	}
	if b.answer.kind == jsonspan.BeginObject {
		c.addResult(b.answer.id, b.answer.content, b.answer.failed, jsonspan.BeginObject)
	}
	c.nextBlock()
}

// addCall adds a call of a message. It needs no id if its tool has a name.
func (c *Conversation) addCall(id, name value) {
	if call := c.newCall(id, name); call.id != noSymbol || call.tool != noSymbol {
		c.message.calls = append(c.message.calls, call)
	}
}

// addResult adds a result of a message.
func (c *Conversation) addResult(id, content value, failed bool, kind jsonspan.Kind) {
	m := &c.message
	m.results = append(m.results, c.newResult(id, content, failed, kind))
	m.tools = append(m.tools, c.block.answer.name)
}

// newResult returns a result with the texts of the block, if its content is text: a string, or
// parts in a value of this kind.
func (c *Conversation) newResult(id, content value, failed bool, kind jsonspan.Kind) result {
	r := result{id: id, symbol: noSymbol, texts: c.block.texts, failed: failed}
	switch content.kind {
	case jsonspan.String:
		c.texts = append(c.texts[:r.texts], content)
	case kind:
		if c.block.notText {
			r.unread = NotText
		}
	case 0, jsonspan.Null:
		c.texts = c.texts[:r.texts]
	default:
		r.unread = NotText
	}
	if r.unread == NotText {
		c.texts = c.texts[:r.texts]
	}
	r.n = int32(len(c.texts)) - r.texts
	if r.n > 0 {
		r.lead = c.body[c.texts[r.texts].start+1]
	}
	for _, t := range c.texts[r.texts:] {
		r.chars += int(t.chars)
	}
	return r
}

// endPart adds a part of a result: a text of this kind, or shell output.
func (c *Conversation) endPart(kind word) {
	b := &c.block
	p := &b.part
	isText := p.kind == kind && p.text.kind == jsonspan.String
	isShell := p.kind == noWord && p.stdout.mayBeText() && p.stderr.mayBeText() && p.stdout.kind+p.stderr.kind != 0
	switch {
	case isText:
		c.texts = append(c.texts, p.text)
	case isShell:
		for _, text := range [...]value{p.stdout, p.stderr} {
			if text.isText() { // an empty one means no output
				c.texts = append(c.texts, text)
			}
		}
	}
	b.notText = b.notText || !isText
	b.notShell = b.notShell || !isShell
	*p = piece{}
}

// endAnswerPart adds a part of a toolResult.
func (c *Conversation) endAnswerPart() {
	b := &c.block
	p := &b.part
	switch {
	case p.text.kind == jsonspan.String && p.object.kind == 0:
		c.texts = append(c.texts, p.text)
	case p.text.kind == 0 && p.object.kind != 0:
		c.addObject(p.object)
	default:
		b.notText = true
	}
	*p = piece{}
}

// addObject adds a value that is given instead of a text and may be any JSON. If it is an object
// with one string, the string is the text; so is a placeholder. Values without members, such as
// numbers, stay.
func (c *Conversation) addObject(v value) {
	p := &c.block.part
	switch {
	case v.kind == jsonspan.BeginObject && p.members == 1 && p.last.kind == jsonspan.String:
		c.texts = append(c.texts, p.last)
	case v.kind == jsonspan.String:
		c.texts = append(c.texts, v)
	case p.members > 0:
		v.chars = int32(utf8.RuneCount(c.body[v.start:v.end]))
		c.texts = append(c.texts, v)
	}
	*p = piece{}
}

// builtin are the names of tools whose calls have their own kinds of items.
var builtin = [...][]byte{
	localShellCall: []byte("local_shell"),
	shellCall:      []byte("shell"),
	applyPatchCall: []byte("apply_patch"),
	computerCall:   []byte("computer"),
	toolSearchCall: []byte("tool_search"),
}

func (c *Conversation) endItem(v value) {
	m := &c.message
	c.list.format = functionCall
	if v.kind != jsonspan.BeginObject {
		c.list.invalid = true
	}
	if !m.id.isText() && (m.kind == localShellCall || m.kind == localShellCallOutput) {
		m.id = m.itemID
	}
	switch m.kind {
	case functionCall, localShellCall, shellCall, applyPatchCall, computerCall, toolSearchCall:
		if !c.list.open && m.id.isText() {
			c.beginTurn(v)
			c.list.open = true
		}
		c.list.modelSpoke = !c.list.open
		if m.id.isText() {
			call := c.newCall(m.id, m.name)
			if name := builtin[m.kind]; !m.name.isText() && name != nil {
				call.tool = c.names.number(name, value{})
				c.list.hasGenerated = true
			}
			c.calls = append(c.calls, call)
			c.endTurn(v)
		}
	case functionCallOutput, localShellCallOutput, shellCallOutput:
		c.list.open = false
		c.endOutput()
		c.endTurn(v)
	case otherOutput:
		c.list.open = false
		c.results = append(c.results, result{symbol: noSymbol, texts: m.texts, unread: UnknownKind})
	default:
		if m.role == assistant {
			c.list.modelSpoke = true
		} else if m.role != noWord {
			c.list.open = false
		}
	}
	c.list.setLast(v, m.role == assistant || m.role == noWord && !m.kind.isOutput())
	c.nextMessage()
}

// endOutput adds the result of an item.
func (c *Conversation) endOutput() {
	m, b := &c.message, &c.block
	content, failed := b.content, m.failed
	if content.kind == jsonspan.BeginObject && b.text.kind == jsonspan.String {
		content, failed = b.text, failed || b.failed
	}
	if m.kind == shellCallOutput {
		b.notText, failed = b.notShell, failed || b.shellFailed
	}
	r := c.newResult(m.id, content, failed, jsonspan.BeginArray)
	c.addAnswer(&r, value{})
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
func (c *Conversation) newCall(id, name value) call {
	made := call{noSymbol, c.toolSymbol(name)}
	if id.isText() {
		made.id = c.ids.number(c.decode(id), id)
	}
	return made
}

// toolSymbol returns the symbol of a tool name, or noSymbol.
func (c *Conversation) toolSymbol(name value) int32 {
	if !name.isText() || len(c.text(name)) > maxEscape*maxName {
		return noSymbol
	}
	text := c.decode(name)
	if len(text) > maxName {
		return noSymbol
	}
	return c.names.number(text, name)
}

// addTurnCall adds a call. A call without an id gets one from its tool and a number.
func (c *Conversation) addTurnCall(call call) {
	if call.id == noSymbol {
		for int(call.tool) >= len(c.queues) {
			c.queues = append(c.queues, queue{})
		}
		q := &c.queues[call.tool]
		q.generated++
		start := len(c.decoded)
		c.decoded = append(append(c.decoded, c.names.texts[call.tool]...), '#')
		c.decoded = strconv.AppendInt(c.decoded, int64(q.generated), 10)
		call.id = c.ids.number(c.decoded[start:len(c.decoded):len(c.decoded)], value{})
		c.list.hasGenerated = true
		i := int32(len(c.waiting))
		if q.round == c.list.round {
			c.waiting[q.last].next = i
		} else {
			q.round, q.first = c.list.round, i
		}
		q.last = i
		c.waiting = append(c.waiting, waitingCall{id: call.id, next: noCall})
	}
	c.markCalled(call.id)
	c.calls = append(c.calls, call)
}

// markCalled records that a call has an id.
func (c *Conversation) markCalled(id int32) {
	for int(id) >= len(c.called) {
		c.called = append(c.called, false)
	}
	c.called[id] = true
}

// addAnswer adds a result and finds its call: the one with its id, or the first one without an id,
// of the same tool if the result names one.
func (c *Conversation) addAnswer(r *result, tool value) {
	if r.id.isText() {
		r.symbol = c.ids.number(c.decode(r.id), r.id)
	}
	if len(c.waiting) > 0 && (r.symbol == noSymbol || int(r.symbol) >= len(c.called) || !c.called[r.symbol]) {
		if w := c.nextWaiting(tool); w != nil {
			w.answered = true
			r.id, r.symbol = value{}, w.id
		}
	}
	c.results = append(c.results, *r)
}

// nextWaiting returns the first waiting call of a tool, or of any if tool has no name, or nil.
func (c *Conversation) nextWaiting(tool value) *waitingCall {
	first := &c.list.oldest
	if tool.isText() {
		name := c.toolSymbol(tool)
		if name == noSymbol || int(name) >= len(c.queues) || c.queues[name].round != c.list.round {
			return nil
		}
		first = &c.queues[name].first
	}
	for int(*first) < len(c.waiting) {
		w := &c.waiting[*first]
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
func (c *Conversation) word(v value) word {
	if v.kind != jsonspan.String {
		return noWord
	}
	body := c.text(v)
	if v.escaped(body) {
		c.scratch = jsonspan.AppendText(c.scratch[:0], body)
		body = c.scratch
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
