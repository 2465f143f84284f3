package chat

import (
	"bytes"
	"errors"
	"math"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// ErrShape is met by JSON that is none of the conversations this package knows.
var ErrShape = errors.New("not a list of messages")

// A Conversation is where the turns, calls and results stand in the body of a
// request to a model. The zero value is ready for use, and can be used for one
// body after the other.
type Conversation struct {
	body    []byte
	turns   []turn
	calls   []call
	results []result
	texts   []value // of the results
	cache   caching
	ids     symbols // of calls and results
	names   symbols // of tools
	spelled []value // how each of these is spelled
	decoded []byte  // what symbols with escapes stand for

	// While it is read.
	list    list
	message message
	block   block
	found   func(path int, v jsonspan.Value)

	// While it is masked.
	known   []known // of each id
	tools   []tally // of each tool
	scratch []byte
}

// A value is a jsonspan.Value that takes a third of its room: a long conversation
// has thousands of them, and they are looked at more than once.
type value struct {
	start, end, chars int32
	kind              jsonspan.Kind
	numbered          bool
}

// MaxBody is how many bytes a request may have: what the numbers of a value can
// tell.
const MaxBody = math.MaxInt32

// A turn is what the model asks for at once, and what follows up to the next turn.
type turn struct {
	start, end int32 // in the body
	calls      int32 // how many calls come before it
	results    int32 // how many results come before it
}

// A call is the model's request to run a tool.
type call struct {
	id   int32 // a symbol
	tool int32 // a symbol, or noSymbol
}

// A result is what a tool has answered.
type result struct {
	id      value
	symbol  int32 // of its id, or noSymbol
	texts   int32 // how many texts come before its own
	n       int32 // how many it has: none if its content is something else
	next    int32 // the next result of the same tool
	shift   int32 // by how much the body before it was longer, before it was masked
	chars   int   // of all its texts
	failed  bool  // it says itself that it is an error
	verdict [ErrorsPrecise + 1]verdict
	loose   bool  // it is none of the last of its tool any more
	shown   shown // what is sent of it
	before  shown // what was sent of it before the boundary moved
}

const noSymbol = -1

// A list is what is known of messages or input as a whole.
type list struct {
	messages, input jsonspan.Kind // of these members
	span            value         // the one that is a list
	strange         bool          // it has elements that are no objects
	open            bool          // of input: calls still join the last turn
	spoke           bool          // the model has spoken since the last turn began
	speaks          bool          // what came last is the model's
	reply           int32         // where its last reply begins, or 0
}

// caching is what a request says of the cache, as those of Anthropic do.
type caching struct {
	blocks   bool // it has blocks of tools, so it is a request of Anthropic's
	opening  bool // tools or the system prompt are marked to be cached
	messages bool // messages are
	hour     bool // for an hour
}

// A message is an element of messages or input.
type message struct {
	role, kind word
	toolCalls  jsonspan.Kind
	content    value
	id, name   value
	calls      []call   // of tool_calls
	uses       []call   // of tool_use blocks
	results    []result // of tool_result blocks
	texts      int32    // how many texts there were before it
}

// A block is an element of content or tool_calls, or what an item of input has
// as its output.
type block struct {
	kind      word
	failed    bool
	strange   bool // its content has parts that are no texts
	id, useID value
	name      value
	content   value
	partKind  word
	partText  value
	texts     int32 // how many texts there were before it
}

// The places that matter, in the order of the paths.
const (
	inMessages = iota
	inMessage
	inRole
	inContent
	inToolCallID
	inToolCalls
	inToolCall
	inToolCallsID
	inFunctionName
	inBlock
	inBlockType
	inBlockID
	inBlockName
	inToolUseID
	inIsError
	inBlockContent
	inBlockPart
	inBlockPartType
	inBlockPartText
	inInput
	inItem
	inItemType
	inItemRole
	inItemCallID
	inItemName
	inOutput
	inOutputPart
	inOutputPartType
	inOutputPartText
	inCacheControl
	inCacheTTL
	inSystemCacheControl
	inSystemCacheTTL
	inToolsCacheControl
	inToolsCacheTTL
	inBlockCacheControl
	inBlockCacheTTL
)

var paths = jsonspan.CompilePaths(
	"messages",
	"messages.*",
	"messages.*.role",
	"messages.*.content",
	"messages.*.tool_call_id",
	"messages.*.tool_calls",
	"messages.*.tool_calls.*",
	"messages.*.tool_calls.*.id",
	"messages.*.tool_calls.*.function.name",
	"messages.*.content.*",
	"messages.*.content.*.type",
	"messages.*.content.*.id",
	"messages.*.content.*.name",
	"messages.*.content.*.tool_use_id",
	"messages.*.content.*.is_error",
	"messages.*.content.*.content",
	"messages.*.content.*.content.*",
	"messages.*.content.*.content.*.type",
	"messages.*.content.*.content.*.text",
	"input",
	"input.*",
	"input.*.type",
	"input.*.role",
	"input.*.call_id",
	"input.*.name",
	"input.*.output",
	"input.*.output.*",
	"input.*.output.*.type",
	"input.*.output.*.text",
	"cache_control",
	"cache_control.ttl",
	"system.*.cache_control",
	"system.*.cache_control.ttl",
	"tools.*.cache_control",
	"tools.*.cache_control.ttl",
	"messages.*.content.*.cache_control",
	"messages.*.content.*.cache_control.ttl",
)

// A word is one of those that matter here.
type word uint8

const (
	noWord word = iota // not even a string
	otherWord
	assistant
	user
	tool
	plainText
	inputText
	toolUse
	toolResult
	functionCall
	functionCallOutput
	otherOutput // of another kind of call
)

// Parse reads the body of a request, which must stay as it is while c is used.
// It fails with [ErrShape] if that is no conversation, and with an error of
// package jsonspan if it is not JSON or repeats a key that matters.
func (c *Conversation) Parse(body []byte) error {
	c.reset()
	c.body = body
	if len(body) > MaxBody {
		return ErrShape
	}
	if c.found == nil {
		c.found = c.read
	}
	if err := paths.Find(body, c.found); err != nil {
		return err
	}
	if c.list.strange || c.list.messages == jsonspan.BeginObject || c.list.input == jsonspan.BeginObject ||
		(c.list.messages == jsonspan.BeginArray) == (c.list.input == jsonspan.BeginArray) {
		return ErrShape
	}
	return nil
}

// Release forgets the body, so that c can be kept for another one.
func (c *Conversation) Release() {
	c.reset()
	c.body = nil
}

// Oversized reports whether c has grown so much that it is better not kept.
func (c *Conversation) Oversized() bool {
	m := &c.message
	things := cap(c.turns) + cap(c.calls) + cap(c.results) + cap(c.texts) + cap(c.spelled) + cap(c.known) + cap(c.tools) +
		cap(m.calls) + cap(m.uses) + cap(m.results) + c.ids.cap() + c.names.cap()
	return things > 1<<16 || cap(c.decoded)+cap(c.scratch) > 1<<20
}

func (c *Conversation) reset() {
	c.turns, c.calls, c.results, c.texts = c.turns[:0], c.calls[:0], c.results[:0], c.texts[:0]
	c.ids.reset()
	c.names.reset()
	c.spelled, c.decoded = c.spelled[:0], c.decoded[:0]
	c.list, c.cache = list{}, caching{}
	c.nextMessage()
}

func (c *Conversation) nextMessage() {
	m := &c.message // not replaced as a whole: there are thousands
	m.role, m.kind, m.toolCalls = noWord, noWord, 0
	m.content, m.id, m.name = value{}, value{}, value{}
	m.calls, m.uses, m.results = m.calls[:0], m.uses[:0], m.results[:0]
	m.texts = int32(len(c.texts))
	c.nextBlock()
}

func (c *Conversation) nextBlock() { c.block = block{texts: int32(len(c.texts))} }

// follow notes whether what comes next in the list is the model's.
func (l *list) follow(v value, models bool) {
	if models && !l.speaks {
		l.reply = v.start
	}
	l.speaks = models
}

// before returns how many bytes of a body are in front of a place in the list, in the
// order of the prompt: what follows the list, such as tools, is in front of it.
func (l *list) before(body, place int) int {
	if place == 0 {
		return 0
	}
	return place + body - int(l.span.end)
}

// read takes what has been found. What is inside something comes before it.
func (c *Conversation) read(path int, found jsonspan.Value) {
	v := value{int32(found.Start), int32(found.End), int32(found.Chars), found.Kind, found.Numbered}
	m, b := &c.message, &c.block
	switch path {
	case inMessages:
		c.list.messages = v.kind
		if v.kind == jsonspan.BeginArray {
			c.list.span = v
		}
	case inMessage:
		c.endMessage(v)
	case inRole, inItemRole:
		m.role = c.word(v)
	case inContent:
		m.content = v
	case inToolCallID, inItemCallID:
		m.id = v
	case inToolCalls:
		m.toolCalls = v.kind

	case inToolCall:
		if b.id.isText() {
			m.calls = append(m.calls, c.call(b.id, b.name))
		}
		c.nextBlock()
	case inBlock:
		c.endBlock()
	case inBlockType:
		b.kind = c.word(v)
	case inToolCallsID, inBlockID:
		b.id = v
	case inFunctionName, inBlockName:
		b.name = v
	case inToolUseID:
		b.useID = v
	case inIsError:
		b.failed = v.kind == jsonspan.True
	case inBlockContent, inOutput:
		b.content = v

	case inBlockPart:
		c.endPart(plainText)
	case inOutputPart:
		c.endPart(inputText)
	case inBlockPartType, inOutputPartType:
		b.partKind = c.word(v)
	case inBlockPartText, inOutputPartText:
		b.partText = v

	case inInput:
		c.list.input = v.kind
		if v.kind == jsonspan.BeginArray {
			c.list.span = v
		}
	case inItem:
		c.endItem(v)
	case inItemType:
		m.kind = c.word(v)
	case inItemName:
		m.name = v

	case inCacheControl, inBlockCacheControl:
		c.cache.messages = c.cache.messages || v.kind == jsonspan.BeginObject
	case inSystemCacheControl, inToolsCacheControl:
		c.cache.opening = c.cache.opening || v.kind == jsonspan.BeginObject
	case inCacheTTL, inSystemCacheTTL, inToolsCacheTTL, inBlockCacheTTL:
		c.cache.hour = c.cache.hour || v.kind == jsonspan.String && jsonspan.TextIs(c.text(v), "1h")
	}
}

// endPart takes a part of a result, whose texts are of this kind.
func (c *Conversation) endPart(kind word) {
	b := &c.block
	if b.partKind == kind && b.partText.kind == jsonspan.String {
		c.texts = append(c.texts, b.partText)
	} else {
		b.strange = true
	}
	b.partKind, b.partText = noWord, value{}
}

func (c *Conversation) endBlock() {
	m, b := &c.message, &c.block
	switch {
	case b.kind == toolUse && b.id.isText():
		c.cache.blocks = true
		m.uses = append(m.uses, c.call(b.id, b.name))
	case b.kind == toolResult:
		m.results = append(m.results, c.result(b.useID, b.content))
	default:
		c.texts = c.texts[:b.texts]
	}
	c.nextBlock()
}

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
	c.list.follow(v, m.role == assistant)
	switch m.role {
	case assistant:
		c.list.spoke = true
		if len(m.calls)+len(m.uses) > 0 {
			c.beginTurn(v)
			c.calls = append(append(c.calls, m.calls...), m.uses...)
		}
	case tool:
		c.block = block{texts: m.texts, strange: true} // a list is none of its results, even of texts
		c.results = append(c.results, c.result(m.id, m.content))
		c.endTurn(v)
	case user:
		if len(m.results) > 0 {
			c.results = append(c.results, m.results...)
			c.endTurn(v)
		}
	}
	c.nextMessage()
}

func (c *Conversation) endItem(v value) {
	m := &c.message
	if v.kind != jsonspan.BeginObject {
		c.list.strange = true
	}
	c.list.follow(v, m.role == assistant || m.role == noWord && m.kind != functionCallOutput && m.kind != otherOutput)
	switch {
	case m.kind == functionCall:
		if !c.list.open && m.id.isText() {
			c.beginTurn(v)
			c.list.open = true
		}
		c.list.spoke = !c.list.open
		if m.id.isText() {
			c.calls = append(c.calls, c.call(m.id, m.name))
			c.endTurn(v)
		}
	case m.kind == functionCallOutput:
		c.list.open = false
		c.results = append(c.results, c.result(m.id, c.block.content))
		c.endTurn(v)
	case m.role == assistant:
		c.list.spoke = true
	case m.role != noWord, m.kind == otherOutput:
		c.list.open = false
	}
	c.nextMessage()
}

// result makes a result of the texts that the block has, if its content is of
// texts at all.
func (c *Conversation) result(id, content value) result {
	r := result{id: id, symbol: noSymbol, texts: c.block.texts, failed: c.block.failed}
	if id.isText() {
		r.symbol = c.ids.number(c.decode(id))
	}
	if content.kind == jsonspan.String {
		c.texts = append(c.texts[:r.texts], content)
	} else if content.kind != jsonspan.BeginArray || c.block.strange {
		c.texts = c.texts[:r.texts]
	}
	r.n = int32(len(c.texts)) - r.texts
	for _, t := range c.texts[r.texts:] {
		r.chars += int(t.chars)
	}
	return r
}

func (c *Conversation) beginTurn(v value) {
	c.turns = append(c.turns, turn{start: v.start, end: v.end, calls: int32(len(c.calls)), results: int32(len(c.results))})
	c.list.spoke = false
}

// endTurn notes that the last turn reaches at least to the end of v. What people
// say after its results is none of it: it comes later, and must not undo what was
// decided when the results came.
func (c *Conversation) endTurn(v value) {
	if n := len(c.turns); n > 0 {
		c.turns[n-1].end = v.end
	}
}

// word returns which word a value is.
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
	case "text":
		return plainText
	case "input_text":
		return inputText
	case "tool_use":
		return toolUse
	case "tool_result":
		return toolResult
	case "function_call", "custom_tool_call": // whose input is free text, as of Codex
		return functionCall
	case "function_call_output", "custom_tool_call_output":
		return functionCallOutput
	}
	if bytes.HasSuffix(body, []byte("_output")) {
		return otherOutput
	}
	return otherWord
}

// text returns what stands between the quotes of a string.
func (c *Conversation) text(v value) []byte { return c.body[v.start+1 : v.end-1] }

// escaped reports whether a string has escapes. One of as many characters as bytes
// has none.
func (v value) escaped(body []byte) bool {
	return int(v.chars) != len(body) && bytes.IndexByte(body, '\\') >= 0
}

// isText reports whether v is a string and not empty.
func (v value) isText() bool {
	return v.kind == jsonspan.String && v.end-v.start > 2
}

// maxName is how many bytes the name of a tool may have, in UTF-8. Providers allow 64
// to 128; a longer one, repeated in the place of each result, is not a placeholder.
const maxName = 256

// maxEscape is how many bytes a byte of a string takes at most in JSON: \u0001.
const maxEscape = 6

// call makes a call, whose tool may have no name.
func (c *Conversation) call(id, name value) call {
	tool := int32(noSymbol)
	if name.isText() && len(c.text(name)) <= maxEscape*maxName {
		if text := c.decode(name); len(text) <= maxName {
			tool = c.names.number(text)
			if int(tool) == len(c.spelled) {
				c.spelled = append(c.spelled, name)
			}
		}
	}
	return call{c.ids.number(c.decode(id)), tool}
}

// decode returns what a string stands for. It is good until the next reset.
func (c *Conversation) decode(v value) []byte {
	body := c.text(v)
	if !v.escaped(body) {
		return body
	}
	start := len(c.decoded)
	c.decoded = jsonspan.AppendText(c.decoded, body)
	return c.decoded[start:len(c.decoded):len(c.decoded)] // stays, even if decoded grows into other memory
}
