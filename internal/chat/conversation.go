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
	list    list
	cache   caching
	ids     symbols // of calls and results
	names   symbols // of tools
	decoded []byte  // what symbols with escapes stand for

	// While it is read.
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

// itemSize is how many bytes of a body each id and each result take at least, but for the
// first ones: a call with its result has twice as many. A body that has more of them is made
// to take memory, of which they need several times their own size.
const (
	itemSize   = 32
	firstItems = 1024
)

// A turn is what the model asks for at once, and what follows up to the next turn.
type turn struct {
	start, end int32 // in the body
	calls      int32 // how many calls come before it
	results    int32 // how many results come before it
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

// A list is what is known of messages, input or contents as a whole.
type list struct {
	lists, objects int32 // how many of these members are lists, and how many objects
	span           value // the last one that is a list
	format         word  // what the calls and results are, if not those of chat completions
	strange        bool  // it has elements that are no objects, or too much in them
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

// reset forgets everything, and keeps the room for another body.
func (c *Conversation) reset() {
	c.ids.reset()
	c.names.reset()
	c.marks, c.blocks, c.resume, c.past, c.resumed = c.marks[:0], c.blocks[:0], 0, Past{}, 0
	c.restart()
}

// restart prepares c to be read from the beginning of a body. What a Memory knows of it stays.
func (c *Conversation) restart() {
	c.turns, c.calls, c.results, c.texts = c.turns[:0], c.calls[:0], c.results[:0], c.texts[:0]
	c.called, c.waiting, c.queues = c.called[:0], c.waiting[:0], c.queues[:0]
	c.decoded = c.decoded[:0]
	c.list, c.cache = list{round: 1}, caching{}
	c.nextMessage()
}

// isCrowded reports whether the body has more ids and results than conversations have.
func (c *Conversation) isCrowded() bool {
	return len(c.ids.texts)+len(c.results)+len(c.message.results) > firstItems+len(c.body)/itemSize
}

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
