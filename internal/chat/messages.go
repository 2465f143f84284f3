package chat

import (
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// A message is an element of messages, input or contents.
type message struct {
	role, kind word
	failed     bool
	odd        bool // its content has blocks that are no texts
	toolCalls  jsonspan.Kind
	content    value
	id, itemID value
	name, tool value
	parts      []value  // the texts of its content
	calls      []call   // of tool_calls or functionCall parts
	uses       []call   // of tool_use blocks
	results    []result // of tool_result blocks or functionResponse parts
	tools      []value  // the names of the tools that these are of, where they tell
	texts      int32    // how many texts there were before it
}

// A block is an element of content, parts or tool_calls, or what an item of input has
// as its output.
type block struct {
	kind      word
	failed    bool
	odd       bool // its content has parts that are no texts
	oddShell  bool // its content has parts that are not what a shell has written
	exitCode  bool // some shell has failed
	id, useID value
	name      value
	content   value
	text      value
	call      member // toolUse or functionCall
	answer    member // toolResult or functionResponse
	part      piece
	texts     int32 // how many texts there were before it
}

// A member is an object in a block that has a call or a result.
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
	members int32 // of this object
	last    value // of these members
}

func (c *Conversation) nextMessage() {
	m := &c.message // not replaced as a whole: there are thousands
	m.role, m.kind, m.failed, m.odd, m.toolCalls = noWord, noWord, false, false, 0
	m.content, m.id, m.itemID, m.name, m.tool = value{}, value{}, value{}, value{}, value{}
	m.parts, m.calls, m.uses, m.results, m.tools = m.parts[:0], m.calls[:0], m.uses[:0], m.results[:0], m.tools[:0]
	m.texts = int32(len(c.texts))
	c.nextBlock()
}

func (c *Conversation) nextBlock() { c.block = block{texts: int32(len(c.texts))} }

func (c *Conversation) endMessage(v value) {
	m := &c.message
	if v.kind != jsonspan.BeginObject {
		c.list.strange = true
	}
	if m.toolCalls != jsonspan.BeginArray {
		m.calls = m.calls[:0]
	}
	if m.content.kind != jsonspan.BeginArray {
		m.uses, m.results = m.uses[:0], m.results[:0]
	}
	if m.role != user || len(m.results) == 0 {
		c.texts = c.texts[:m.texts] // whatever they are of, it is no result
	}
	switch m.role {
	case assistant:
		c.list.spoke = true
		if len(m.calls)+len(m.uses) > 0 {
			c.beginTurn(v)
			for _, calls := range [...][]call{m.calls, m.uses} {
				for _, call := range calls {
					c.take(call)
				}
			}
		}
	case tool:
		c.texts = append(c.texts, m.parts...)
		c.block = block{texts: m.texts, odd: m.odd}
		r := c.result(m.id, m.content, false, jsonspan.BeginArray)
		if !m.tool.isText() {
			m.tool = m.name
		}
		c.answer(&r, m.tool)
		c.endTurn(v)
	case user:
		for i := range m.results {
			c.answer(&m.results[i], m.tools[i])
		}
		if len(m.results) > 0 {
			c.endTurn(v)
		}
	}
	if m.kind != noWord && (m.role == assistant && len(m.uses) > 0 || m.role == user && len(m.results) > 0) {
		c.list.format = m.kind
	}
	c.list.heard = c.list.heard || m.role != assistant
	c.list.follow(v, m.role == assistant)
	c.nextMessage()
}

func (c *Conversation) endBlock() {
	m, b := &c.message, &c.block
	isMember := b.kind == noWord && b.content.kind == 0 // as Bedrock has them
	isUse, isAnswer := b.call.kind == jsonspan.BeginObject, b.answer.kind == jsonspan.BeginObject
	switch {
	case b.kind == toolUse && b.id.isText():
		m.uses = append(m.uses, c.call(b.id, b.name))
		m.kind = toolUse
	case b.kind == toolResult:
		c.addResult(b.useID, b.content, b.failed, jsonspan.BeginArray)
		m.kind = toolUse
	case isMember && isUse && !isAnswer && b.call.id.isText():
		m.uses = append(m.uses, c.call(b.call.id, b.call.name))
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
		m.odd = true
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

// addCall takes a call of a message. It needs no id if its tool has a name.
func (c *Conversation) addCall(id, name value) {
	if call := c.call(id, name); call.id != noSymbol || call.tool != noSymbol {
		c.message.calls = append(c.message.calls, call)
	}
}

// addResult takes a result in a message.
func (c *Conversation) addResult(id, content value, failed bool, kind jsonspan.Kind) {
	m := &c.message
	m.results = append(m.results, c.result(id, content, failed, kind))
	m.tools = append(m.tools, c.block.answer.name)
}

// result makes a result of the texts that the block has, if its content is of texts at
// all: a string, or what has parts and is of this kind.
func (c *Conversation) result(id, content value, failed bool, kind jsonspan.Kind) result {
	r := result{id: id, symbol: noSymbol, texts: c.block.texts, failed: failed}
	switch content.kind {
	case jsonspan.String:
		c.texts = append(c.texts[:r.texts], content)
	case kind:
		if c.block.odd {
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

// endPart takes a part of a result, whose texts are of this kind, or what a shell has
// written.
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
			if text.isText() { // an empty one says that there was nothing
				c.texts = append(c.texts, text)
			}
		}
	}
	b.odd = b.odd || !isText
	b.oddShell = b.oddShell || !isShell
	*p = piece{}
}

// endAnswerPart takes a part of a toolResult.
func (c *Conversation) endAnswerPart() {
	b := &c.block
	p := &b.part
	switch {
	case p.text.kind == jsonspan.String && p.object.kind == 0:
		c.texts = append(c.texts, p.text)
	case p.text.kind == 0 && p.object.kind != 0:
		c.addObject(p.object)
	default:
		b.odd = true
	}
	*p = piece{}
}

// addObject takes what stands in the place of a text and may be any JSON. If it is an
// object of one string, that is the text: so is what stands in the place of a masked
// one. Numbers and the like stay.
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
