package chat

import (
	"bytes"
	"errors"
	"math"
	"strconv"
	"unicode/utf8"

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
	decoded []byte  // what symbols with escapes stand for

	// While it is read.
	list    list
	message message
	block   block
	called  []bool    // of each id: a call has it
	waiting []waiting // the calls without an id that results may answer
	queues  []queue   // of these calls, one of each tool
	search  jsonspan.Search

	// In a Memory, from one request to the next.
	every   int32 // the size of a block, or 0 if it is not for a Memory
	marks   []mark
	blocks  []uint64 // hashes of the body
	resume  int      // how many of the marks are good for the body that is read
	past    Past
	resumed int32 // how many turns were known

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
	id      value // none if its call has none
	symbol  int32 // of its id, or noSymbol
	texts   int32 // how many texts come before its own
	n       int32 // how many it has: none if its content is something else
	next    int32 // the next result of the same tool
	shift   int32 // by how much the body before it was longer, before it was masked
	chars   int   // of all its texts
	lead    byte  // of its first text, which itself would have to be fetched from memory
	failed  bool  // it says itself that it is an error
	unread  Unread
	verdict [ErrorsPrecise + 1]verdict
	loose   bool  // it is none of the last of its tool any more
	shown   shown // what is sent of it
	before  shown // what was sent of it before the boundary moved
}

// Unread is why an old result cannot be masked.
type Unread uint8

const (
	readable    Unread = iota
	NotText            // it is or has an image, or something else that is no text
	NoCall             // no call belongs to it
	UnknownKind        // it is an item of a kind that this package does not know
	unreads
)

// String returns a word for it.
func (u Unread) String() string {
	return [unreads]string{NotText: "not_text", NoCall: "no_call", UnknownKind: "unknown_kind"}[u]
}

const noSymbol = -1

// A list is what is known of messages, input or contents as a whole.
type list struct {
	lists, objects int32 // how many of these members are lists, and how many objects
	span           value // the last one that is a list
	format         word  // what the calls and results are, if not those of chat completions
	strange        bool  // it has elements that are no objects
	open           bool  // of input: calls still join the last turn
	spoke          bool  // the model has spoken since the last turn began
	heard          bool  // others have spoken since
	round          int32 // counts how often the calls that wait were forgotten
	oldest         int32 // of the calls that wait
	made           bool  // there are ids or names that stand nowhere in the body
	speaks         bool  // what came last is the model's
	reply          int32 // where its last reply begins, or 0
}

// caching is what a request says of the cache, as those of Anthropic do.
type caching struct {
	opening  bool // tools or the system prompt are marked to be cached
	messages bool // messages are
	hour     bool // for an hour
}

// A waiting call has no id: results that have none, or one that no call has, answer
// such calls in their order.
type waiting struct {
	id       int32 // a symbol, made of the name of its tool and a number
	next     int32 // the next one of the same tool
	answered bool
}

// A queue has the calls of a tool that wait.
type queue struct {
	round       int32 // the one that first and last are of
	first, last int32
	made        int32 // how many calls of this tool had no id so far
}

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

// The places that matter, in the order of the paths.
const (
	inMessages = iota
	inMessage
	inRole
	inContent
	inToolCallID
	inToolName
	inMessageName
	inToolCalls
	inToolCall
	inToolCallsID
	inFunctionName
	inBlock
	inBlockType
	inBlockText
	inBlockID
	inBlockName
	inToolUseID
	inIsError
	inBlockContent
	inBlockPart
	inBlockPartType
	inBlockPartText
	inUse
	inUseID
	inUseName
	inAnswer
	inAnswerID
	inAnswerStatus
	inAnswerContent
	inAnswerPart
	inAnswerPartText
	inAnswerPartJSON
	inAnswerPartJSONMember
	inInput
	inItem
	inItemType
	inItemRole
	inItemCallID
	inItemID
	inItemName
	inItemStatus
	inOutput
	inOutputContent
	inOutputSuccess
	inOutputPart
	inOutputPartType
	inOutputPartText
	inStdout
	inStderr
	inOutcome
	inExitCode
	inCacheControl
	inCacheTTL
	inSystemCacheControl
	inSystemCacheTTL
	inToolsCacheControl
	inToolsCacheTTL
	inBlockCacheControl
	inBlockCacheTTL
	inContents
	inContentsMessage
	inContentsRole
	inParts
	inPart
	inCall
	inCallID
	inCallName
	inResponse
	inResponseID
	inResponseName
	inResponseParts
	inResponseObject
	inResponseError
	inResponseMember
	unwrapped // how many there are; those of Code Assist follow
)

var paths = func() *jsonspan.Paths {
	paths := []string{
		"messages",
		"messages.*",
		"messages.*.role",
		"messages.*.content",
		"messages.*.tool_call_id",
		"messages.*.tool_name",
		"messages.*.name",
		"messages.*.tool_calls",
		"messages.*.tool_calls.*",
		"messages.*.tool_calls.*.id",
		"messages.*.tool_calls.*.function.name",
		"messages.*.content.*",
		"messages.*.content.*.type",
		"messages.*.content.*.text",
		"messages.*.content.*.id",
		"messages.*.content.*.name",
		"messages.*.content.*.tool_use_id",
		"messages.*.content.*.is_error",
		"messages.*.content.*.content",
		"messages.*.content.*.content.*",
		"messages.*.content.*.content.*.type",
		"messages.*.content.*.content.*.text",
		"messages.*.content.*.toolUse",
		"messages.*.content.*.toolUse.toolUseId",
		"messages.*.content.*.toolUse.name",
		"messages.*.content.*.toolResult",
		"messages.*.content.*.toolResult.toolUseId",
		"messages.*.content.*.toolResult.status",
		"messages.*.content.*.toolResult.content",
		"messages.*.content.*.toolResult.content.*",
		"messages.*.content.*.toolResult.content.*.text",
		"messages.*.content.*.toolResult.content.*.json",
		"messages.*.content.*.toolResult.content.*.json.*",
		"input",
		"input.*",
		"input.*.type",
		"input.*.role",
		"input.*.call_id",
		"input.*.id",
		"input.*.name",
		"input.*.status",
		"input.*.output",
		"input.*.output.content",
		"input.*.output.success",
		"input.*.output.*",
		"input.*.output.*.type",
		"input.*.output.*.text",
		"input.*.output.*.stdout",
		"input.*.output.*.stderr",
		"input.*.output.*.outcome.type",
		"input.*.output.*.outcome.exit_code",
		"cache_control",
		"cache_control.ttl",
		"system.*.cache_control",
		"system.*.cache_control.ttl",
		"tools.*.cache_control",
		"tools.*.cache_control.ttl",
		"messages.*.content.*.cache_control",
		"messages.*.content.*.cache_control.ttl",
		"contents",
		"contents.*",
		"contents.*.role",
		"contents.*.parts",
		"contents.*.parts.*",
		"contents.*.parts.*.functionCall",
		"contents.*.parts.*.functionCall.id",
		"contents.*.parts.*.functionCall.name",
		"contents.*.parts.*.functionResponse",
		"contents.*.parts.*.functionResponse.id",
		"contents.*.parts.*.functionResponse.name",
		"contents.*.parts.*.functionResponse.parts.*",
		"contents.*.parts.*.functionResponse.response",
		"contents.*.parts.*.functionResponse.response.error",
		"contents.*.parts.*.functionResponse.response.*",
	}
	for _, path := range paths[inContents:] { // as Code Assist has them
		paths = append(paths, "request."+path)
	}
	return jsonspan.CompilePaths(paths...)
}()

// A word is one of those that matter here.
type word uint8

const (
	noWord word = iota // not even a string
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
	otherOutput // of another kind of call
	failedStatus
	errorStatus
	timeoutOutcome
)

// builtin are the names of tools whose calls are items of a kind of their own.
var builtin = [...][]byte{
	localShellCall: []byte("local_shell"),
	shellCall:      []byte("shell"),
	applyPatchCall: []byte("apply_patch"),
	computerCall:   []byte("computer"),
	toolSearchCall: []byte("tool_search"),
}

// isOutput reports whether an item is what a tool has answered.
func (w word) isOutput() bool {
	return w == functionCallOutput || w == localShellCallOutput || w == shellCallOutput || w == otherOutput
}

// Parse reads the body of a request, which must stay as it is while c is used.
// It fails with [ErrShape] if that is no conversation, and with an error of
// package jsonspan if it is not JSON or repeats a key that matters.
func (c *Conversation) Parse(body []byte) error {
	c.reset()
	return c.parse(body)
}

func (c *Conversation) parse(body []byte) error {
	c.body = body
	if len(body) > MaxBody {
		return ErrShape
	}
	if c.search.Found == nil {
		c.search = jsonspan.Search{Found: c.read, Elements: c.knownElements}
	}
	if err := paths.Search(body, &c.search); err != nil {
		return err
	}
	if c.list.strange || c.list.lists != 1 || c.list.objects > 0 {
		return ErrShape
	}
	return nil
}

// Format returns how the calls and results of the conversation are written.
func (c *Conversation) Format() string {
	switch c.list.format {
	case toolUse:
		return "messages"
	case toolResult:
		return "converse"
	case functionCall:
		return "responses"
	case model:
		return "gemini"
	}
	return "chat"
}

func (c *Conversation) reset() {
	c.turns, c.calls, c.results, c.texts = c.turns[:0], c.calls[:0], c.results[:0], c.texts[:0]
	c.ids.reset()
	c.names.reset()
	c.decoded = c.decoded[:0]
	c.called, c.waiting, c.queues = c.called[:0], c.waiting[:0], c.queues[:0]
	c.marks, c.blocks, c.resume, c.past, c.resumed = c.marks[:0], c.blocks[:0], 0, Past{}, 0
	c.list, c.cache = list{round: 1}, caching{}
	c.nextMessage()
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
	if path >= unwrapped {
		path -= unwrapped - inContents
	}
	switch path {
	case inMessages, inInput, inContents:
		switch v.kind {
		case jsonspan.BeginArray:
			c.list.lists++
			c.list.span = v
		case jsonspan.BeginObject:
			c.list.objects++
		}
	case inMessage:
		c.endMessage(v)
	case inRole, inItemRole:
		m.role = c.word(v)
	case inContent:
		m.content = v
	case inToolCallID, inItemCallID:
		m.id = v
	case inToolName:
		m.tool = v
	case inMessageName, inItemName:
		m.name = v
	case inToolCalls:
		m.toolCalls = v.kind

	case inToolCall:
		c.addCall(b.id, b.name)
		c.nextBlock()
	case inBlock:
		c.endBlock()
	case inBlockType:
		b.kind = c.word(v)
	case inBlockText:
		b.text = v
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
		b.part.kind = c.word(v)
	case inBlockPartText, inOutputPartText, inAnswerPartText:
		b.part.text = v
	case inStdout:
		b.part.stdout = v
	case inStderr:
		b.part.stderr = v

	case inUse, inCall:
		b.call.kind = v.kind
	case inUseID, inCallID:
		b.call.id = v
	case inUseName, inCallName:
		b.call.name = v
	case inAnswer, inResponse:
		b.answer.kind = v.kind
	case inAnswerID, inResponseID:
		b.answer.id = v
	case inResponseName:
		b.answer.name = v
	case inAnswerStatus:
		b.answer.failed = c.word(v) == errorStatus
	case inAnswerContent:
		b.answer.content = v
	case inAnswerPart:
		c.endAnswerPart()
	case inAnswerPartJSON:
		b.part.object = v
	case inAnswerPartJSONMember, inResponseMember:
		b.part.members++
		b.part.last = v

	case inItem:
		c.endItem(v)
	case inItemType:
		m.kind = c.word(v)
	case inItemID:
		m.itemID = v
	case inItemStatus:
		m.failed = c.word(v) == failedStatus
	case inOutputContent:
		b.text = v
	case inOutputSuccess:
		b.failed = v.kind == jsonspan.False
	case inOutcome:
		b.exitCode = b.exitCode || c.word(v) == timeoutOutcome
	case inExitCode:
		b.exitCode = b.exitCode || v.kind == jsonspan.Number && string(c.body[v.start:v.end]) != "0"

	case inCacheControl, inBlockCacheControl:
		c.cache.messages = c.cache.messages || v.kind == jsonspan.BeginObject
	case inSystemCacheControl, inToolsCacheControl:
		c.cache.opening = c.cache.opening || v.kind == jsonspan.BeginObject
	case inCacheTTL, inSystemCacheTTL, inToolsCacheTTL, inBlockCacheTTL:
		c.cache.hour = c.cache.hour || v.kind == jsonspan.String && jsonspan.TextIs(c.text(v), "1h")

	case inContentsMessage:
		c.list.format = model
		c.endMessage(v)
	case inContentsRole:
		switch c.word(v) {
		case model:
			m.role = assistant
		case user, function:
			m.role = user
		}
	case inParts:
		m.content, m.toolCalls = v, v.kind
	case inPart:
		c.endContentsPart()
	case inResponseParts:
		b.odd = true
	case inResponseObject:
		b.answer.content = v
		c.addObject(v)
	case inResponseError:
		b.part.members++
		b.part.last = v
		b.answer.failed = v.kind != jsonspan.Null
	}
	if isList(path - 1) {
		c.mark(v.end)
	}
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

// take takes a call, and numbers it among those of its tool if it has no id.
func (c *Conversation) take(call call) {
	if call.id == noSymbol {
		for int(call.tool) >= len(c.queues) {
			c.queues = append(c.queues, queue{})
		}
		q := &c.queues[call.tool]
		q.made++
		start := len(c.decoded)
		c.decoded = append(append(c.decoded, c.names.texts[call.tool]...), '#')
		c.decoded = strconv.AppendInt(c.decoded, int64(q.made), 10)
		call.id = c.ids.number(c.decoded[start:len(c.decoded):len(c.decoded)], value{})
		c.list.made = true
		i := int32(len(c.waiting))
		if q.round == c.list.round {
			c.waiting[q.last].next = i
		} else {
			q.round, q.first = c.list.round, i
		}
		q.last = i
		c.waiting = append(c.waiting, waiting{id: call.id, next: noCall})
	}
	c.noteCalled(call.id)
	c.calls = append(c.calls, call)
}

// noteCalled notes that a call has an id.
func (c *Conversation) noteCalled(id int32) {
	for int(id) >= len(c.called) {
		c.called = append(c.called, false)
	}
	c.called[id] = true
}

const noCall = -1

// answer takes a result, and finds its call: the one that has its id, or the first one
// without an id, of the tool it names if it names one.
func (c *Conversation) answer(r *result, tool value) {
	if r.id.isText() {
		r.symbol = c.ids.number(c.decode(r.id), r.id)
	}
	if len(c.waiting) > 0 && (r.symbol == noSymbol || int(r.symbol) >= len(c.called) || !c.called[r.symbol]) {
		if w := c.next(tool); w != nil {
			w.answered = true
			r.id, r.symbol = value{}, w.id
		}
	}
	c.results = append(c.results, *r)
}

// next returns the first call that waits for a result of this tool, or of any if it has
// no name, or nil.
func (c *Conversation) next(tool value) *waiting {
	first := &c.list.oldest
	if tool.isText() {
		name := c.tool(tool)
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

func (c *Conversation) endItem(v value) {
	m := &c.message
	c.list.format = functionCall
	if v.kind != jsonspan.BeginObject {
		c.list.strange = true
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
		c.list.spoke = !c.list.open
		if m.id.isText() {
			call := c.call(m.id, m.name)
			if name := builtin[m.kind]; !m.name.isText() && name != nil {
				call.tool = c.names.number(name, value{})
				c.list.made = true
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
			c.list.spoke = true
		} else if m.role != noWord {
			c.list.open = false
		}
	}
	c.list.follow(v, m.role == assistant || m.role == noWord && !m.kind.isOutput())
	c.nextMessage()
}

// endOutput takes the result that an item is.
func (c *Conversation) endOutput() {
	m, b := &c.message, &c.block
	content, failed := b.content, m.failed
	if content.kind == jsonspan.BeginObject && b.text.kind == jsonspan.String {
		content, failed = b.text, failed || b.failed
	}
	if m.kind == shellCallOutput {
		b.odd, failed = b.oddShell, failed || b.exitCode
	}
	r := c.result(m.id, content, failed, jsonspan.BeginArray)
	c.answer(&r, value{})
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

func (c *Conversation) beginTurn(v value) {
	c.turns = append(c.turns, turn{start: v.start, end: v.end, calls: int32(len(c.calls)), results: int32(len(c.results))})
	c.list.spoke = false
	if c.list.heard { // what came before it is answered, or never will be
		c.list.heard = false
		c.waiting, c.list.oldest = c.waiting[:0], 0
		c.list.round++
	}
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
	case "function_call", "custom_tool_call": // whose input is free text, as of Codex
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

// mayBeText reports whether v is a string or nothing.
func (v value) mayBeText() bool { return v.kind == jsonspan.String || v.kind == 0 }

// maxName is how many bytes the name of a tool may have, in UTF-8. Providers allow 64
// to 128; a longer one, repeated in the place of each result, is not a placeholder.
const maxName = 256

// maxEscape is how many bytes a byte of a string takes at most in JSON: \u0001.
const maxEscape = 6

// call makes a call, which may have no id, and whose tool may have no name.
func (c *Conversation) call(id, name value) call {
	made := call{noSymbol, c.tool(name)}
	if id.isText() {
		made.id = c.ids.number(c.decode(id), id)
	}
	return made
}

// tool returns the symbol of a tool of this name, or noSymbol.
func (c *Conversation) tool(name value) int32 {
	if !name.isText() || len(c.text(name)) > maxEscape*maxName {
		return noSymbol
	}
	text := c.decode(name)
	if len(text) > maxName {
		return noSymbol
	}
	return c.names.number(text, name)
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
