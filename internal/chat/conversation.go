// Package chat reads the conversations that agents send to models, and decides which tool results
// in them are old enough to be masked.
//
// It detects and reads these formats:
//
//   - OpenAI chat completions: messages, where an assistant's tool_calls are
//     answered by messages of the role tool; Ollama has the same without ids;
//   - Anthropic messages: messages, where tool_use blocks are answered by
//     tool_result blocks; Bedrock's Converse has toolUse and toolResult;
//   - OpenAI responses: input, where items such as function_call are answered by
//     items such as function_call_output;
//   - Gemini: contents, where functionCall parts are answered by functionResponse
//     parts; Code Assist has them in a request.
//
// A [Conversation] is read once, from raw bytes, and stores only positions in them. Masking it
// yields a [Plan]: edits of these bytes that replace old results. All other bytes stay unchanged.
//
// # Turns
//
// A turn is a message of the assistant with at least one call; in the format of responses,
// consecutive calls up to the first item that is not the model's. A turn ends where the next one
// begins. The results of a call are those with its id, anywhere in the conversation; if several
// turns use an id, it belongs to the last of them. Calls without an id are answered in order.
//
// # The boundary
//
// Results of turns before the boundary are masked, those of the last WindowTurns turns never. The
// position of the boundary is decided turn by turn, in order, from nothing but the conversation up
// to the end of that turn. A turn at which it moves is a step. A step decides once which results
// are masked, and nothing before it changes until the next step. So between steps a conversation
// that grows by a turn is sent as the same bytes as before, plus the new ones. A provider that
// caches prompts by their beginning has to process only the new bytes.
//
// With [ClearAuto] a step masks the old results for which masking pays at the provider's prices,
// and all of them if the provider has nothing cached. The latter does not follow from the
// conversation, so a [Progress] records the decisions so far.
//
// # Memory
//
// A [Memory] avoids reading a conversation again: a request that begins like an earlier one is read
// from where they differ. The result is the same without it. It also keeps the [Past] of a
// conversation, with its Progress.
package chat

import (
	"bytes"
	"errors"
	"hash/maphash"
	"math"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// ErrShape is returned for JSON that is not a conversation in a known format.
var ErrShape = errors.New("not a list of messages")

// A Conversation holds the positions of turns, calls and results in the body of a request to a
// model. The zero value is ready to use. It can be reused for one body after another.
type Conversation struct {
	body    []byte
	turns   []turn
	calls   []call
	results []result
	texts   []value // texts of the results
	list    list
	cache   caching
	ids     symbols // ids of calls and results
	names   symbols // names of tools
	decoded []byte  // decoded symbols that have escapes

	parser parser

	// State in a Memory, from one request to the next.
	blockSize int32 // block size, or 0 if not for a Memory
	marks     []mark
	blocks    []uint64 // hashes of the body's blocks
	resume    int      // number of marks that are valid for the body being read
	past      Past
	settled   tail // in the body of past

	// State of masking.
	idInfos []idInfo    // by id
	tools   []toolCount // by tool
	scratch []byte
}

// A value is a jsonspan.Value that takes a third of the memory: a long conversation has thousands
// of them, and they are read more than once.
type value struct {
	start, end, chars int32
	kind              jsonspan.Kind
	unicodeEscapes    bool
}

// MaxBody is the largest request in bytes: positions in a value are 32-bit.
const MaxBody = math.MaxInt32

// A body may have one id or result per itemSize bytes, plus firstItems. A call with its result is
// at least twice that long. A body with more is built to use up memory: each takes several times
// its own size.
const (
	itemSize   = 32
	firstItems = 1024
)

// A turn begins with calls that the model makes at once, and ends before the next turn.
type turn struct {
	start, end int32 // positions in the body
	calls      int32 // number of calls before it
	results    int32 // number of results before it
}

// A result is the result of a tool call.
type result struct {
	id             value // empty if its call has none
	symbol         int32 // symbol of its id, or noSymbol
	texts          int32 // number of texts before its own
	n              int32 // number of its texts; 0 if its content is not text
	next           int32 // next result of the same tool
	shift          int32 // how much longer the body before it would be without masking
	chars          int   // of all its texts
	lead           byte  // first byte of its first text, copied to avoid a memory access
	failed         bool  // marked as an error
	unread         Unread
	verdict        [ErrorsPrecise + 1]verdict
	released       bool        // no longer one of the last of its tool
	replacement    replacement // what is sent instead of it
	oldReplacement replacement // what was sent before the boundary moved
}

// Unread says why an old result cannot be masked.
type Unread uint8

// Reasons why a result cannot be masked.
const (
	readable    Unread = iota
	NotText            // contains an image, or something else that is not text
	NoCall             // has no call
	UnknownKind        // is an item of an unknown kind
	unreads
)

// String returns the metric label of u.
func (u Unread) String() string {
	return [unreads]string{NotText: "not_text", NoCall: "no_call", UnknownKind: "unknown_kind"}[u]
}

// A list describes messages, input or contents as a whole.
type list struct {
	lists, objects int32 // number of these members that are lists, and that are objects
	span           value // the last one that is a list
	format         word  // format of calls and results, if not chat completions
	invalid        bool  // it has elements that are not objects, or too many items
	open           bool  // for input: calls still join the last turn
	modelSpoke     bool  // the model has spoken since the last turn began
	othersSpoke    bool  // others have spoken since the last turn began
	round          int32 // incremented when waiting calls are dropped
	oldest         int32 // index of the oldest waiting call
	hasGenerated   bool  // some ids or names do not occur in the body
	lastIsModels   bool  // the last element is the model's
	reply          int32 // start of the model's last reply, or 0
}

// caching holds the cache settings of a request.
type caching struct {
	opening  bool // tools or the system prompt are marked for caching (Anthropic, Bedrock)
	messages bool // messages are marked for caching
	hour     bool // for an hour
	day      bool // for 24 hours (OpenAI)
}

// Parse reads the body of a request, which must not change while c is used. It returns [ErrShape]
// if the body is not a conversation, and an error of package jsonspan if it is not JSON or repeats
// a relevant key.
func (c *Conversation) Parse(body []byte) error {
	c.reset()
	return c.parse(body)
}

func (c *Conversation) parse(body []byte) error {
	c.body = body
	if len(body) > MaxBody {
		return ErrShape
	}
	if err := paths.Search(body, &c.parser.search); err != nil {
		return err
	}
	if c.list.invalid || c.list.lists != 1 || c.list.objects > 0 {
		return ErrShape
	}
	return nil
}

// Format returns the format of calls and results.
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

// reset clears c and keeps its memory for another body.
func (c *Conversation) reset() {
	c.ids.reset()
	c.names.reset()
	c.marks, c.blocks, c.resume, c.past, c.settled = c.marks[:0], c.blocks[:0], 0, Past{}, tail{}
	c.restart()
}

// restart prepares c to read a body from the beginning. It keeps what a Memory knows about it.
func (c *Conversation) restart() {
	c.turns, c.calls, c.results, c.texts = c.turns[:0], c.calls[:0], c.results[:0], c.texts[:0]
	c.decoded = c.decoded[:0]
	c.list, c.cache = list{round: 1}, caching{}
	c.parser.reset(c)
}

// setLast records whether the next element of the list is the model's.
func (l *list) setLast(v value, models bool) {
	if models && !l.lastIsModels {
		l.reply = v.start
	}
	l.lastIsModels = models
}

// bytesBefore returns how many bytes of a body precede a position of the list in the prompt.
// Members that follow the list in JSON, such as tools, precede it in the prompt.
func (l *list) bytesBefore(body, position int) int {
	if position == 0 {
		return 0
	}
	return position + body - int(l.span.end)
}

// text returns the bytes between the quotes of a string.
func (c *Conversation) text(v value) []byte { return c.body[v.start+1 : v.end-1] }

// escaped reports whether a string has escapes. A string with as many characters as bytes has none.
func (v value) escaped(body []byte) bool {
	return int(v.chars) != len(body) && bytes.IndexByte(body, '\\') >= 0
}

// isText reports whether v is a non-empty string.
func (v value) isText() bool {
	return v.kind == jsonspan.String && v.end-v.start > 2
}

// mayBeText reports whether v is a string or absent.
func (v value) mayBeText() bool { return v.kind == jsonspan.String || v.kind == 0 }

// decode returns the decoded string. It is valid until the next reset.
func (c *Conversation) decode(v value) []byte {
	body := c.text(v)
	if !v.escaped(body) {
		return body
	}
	start := len(c.decoded)
	c.decoded = jsonspan.AppendText(c.decoded, body)
	return c.decoded[start:len(c.decoded):len(c.decoded)] // capped, so that it stays valid if decoded is reallocated
}

// symbols numbers texts: equal texts have the same number, and numbers are dense. It is a hash
// table over the bytes it is given, so that a conversation with a thousand ids needs no
// allocations. A map would copy each of them.
type symbols struct {
	texts     [][]byte
	positions []value // position of the first occurrence of each text
	slots     []int32 // number plus one, or 0
	last      int32   // last result, because lookups often repeat
}

var seed = maphash.MakeSeed()

// number returns the number of a text, which must not change and is at v.
func (s *symbols) number(text []byte, v value) int32 {
	if len(s.texts) > 0 && string(s.texts[s.last]) == string(text) {
		return s.last
	}
	if len(s.slots) < 2*(len(s.texts)+1) {
		s.grow()
	}
	slot := s.slot(text)
	if s.slots[slot] == 0 {
		s.texts, s.positions = append(s.texts, text), append(s.positions, v)
		s.slots[slot] = int32(len(s.texts))
	}
	s.last = s.slots[slot] - 1
	return s.last
}

// slot returns the index of a text, or the free slot for it.
func (s *symbols) slot(text []byte) int {
	mask := len(s.slots) - 1
	i := int(maphash.Bytes(seed, text)) & mask
	for s.slots[i] != 0 && string(s.texts[s.slots[i]-1]) != string(text) {
		i = (i + 1) & mask
	}
	return i
}

func (s *symbols) grow() {
	s.slots = make([]int32, max(64, 2*len(s.slots)))
	for i, text := range s.texts {
		s.slots[s.slot(text)] = int32(i) + 1
	}
}

// bytes returns how much memory the symbols take.
func (s *symbols) bytes() int { return sizeOf(s.texts) + sizeOf(s.positions) + sizeOf(s.slots) }

// reset removes all texts and keeps the memory.
func (s *symbols) reset() {
	clear(s.texts)
	clear(s.slots)
	s.texts, s.positions, s.last = s.texts[:0], s.positions[:0], 0
}

// release drops the texts but not their positions.
func (s *symbols) release() {
	clear(s.texts)
	s.texts, s.last = s.texts[:0], 0
}

// restore restores the first n symbols after release, in a body that has them at the same
// positions.
func (s *symbols) restore(n int, text func(value) []byte) {
	s.positions = s.positions[:n]
	for _, v := range s.positions {
		s.texts = append(s.texts, text(v))
	}
	// Removing the last added texts leaves the slots as they were before.
	for i, number := range s.slots {
		if int(number) > n {
			s.slots[i] = 0
		}
	}
}
