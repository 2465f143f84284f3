package chat

import (
	"hash/maphash"
	"slices"
	"sort"
	"sync"
	"time"
	"unsafe"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

// A Memory keeps parsed conversations, so that reading the next request of one takes only the
// time for what is new. The result is the same with and without it. It is for one [Policy],
// because it also keeps which results look like errors.
//
// It holds no content: only positions in a body, hashes of its blocks to find out how much of
// another body is the same, and a [Past]. It is safe for concurrent use.
type Memory struct {
	blockSize int // bytes per hash

	mu            sync.Mutex
	conversations *quota.Cache[*Conversation, struct{}]
}

// Limits. A conversation of 1,000 turns takes about 200 KiB.
const (
	maxRemembered      = 4096
	maxRememberedBytes = 64 << 20
	ownerRemembered    = 64 // each request is compared with all of them
	ownerBytes         = 16 << 20
	memoryTTL          = 2 * time.Hour // longer than most providers cache prompts
)

// blockSize is the size of the blocks of a body. Everything after the last equal block is read
// again.
const blockSize = 16 << 10

// A mark is a position where reading can continue: the state at the end of an element of the list.
// State only grows, except for the end of the last turn.
type mark struct {
	end                          int32 // of the element
	turns, calls, results, texts int32
	ids, names                   int32
	turnEnd                      int32 // of the last turn
	list                         list
	cache                        caching
}

// A Past describes the previous request of a conversation, as a [Memory] keeps it: the progress of
// masking, and its time. The zero value is for an unknown conversation.
type Past struct {
	Progress Progress
	At       time.Time
}

// Past returns what is known about the previous request. It is empty if the conversation was cut or
// changed before the boundary since then.
func (c *Conversation) Past() Past {
	if len(c.turns) < c.past.Progress.turns {
		return Past{}
	}
	return c.past
}

// A tail is the end of the part of a body before the boundary, after its last complete block.
type tail struct {
	start, end int
	hash       uint64
}

// isIn reports whether a body has the same bytes there.
func (t tail) isIn(body []byte) bool {
	return t.end <= len(body) && maphash.Bytes(seed, body[t.start:t.end]) == t.hash
}

// settle records the part of the body before the boundary.
func (c *Conversation) settle(past Past) {
	c.past, c.settled = past, tail{}
	if boundary := past.Progress.now.boundary; boundary > 0 {
		c.settled.end = int(c.turns[boundary-1].end)
	}
	c.settled.start = c.settled.end / int(c.blockSize) * int(c.blockSize)
	c.settled.hash = maphash.Bytes(seed, c.body[c.settled.start:c.settled.end])
}

// NewMemory returns an empty memory. Its usage counts for kind until it is closed.
func NewMemory(kind *quota.Kind) *Memory {
	return &Memory{blockSize: blockSize, conversations: quota.NewCache[*Conversation, struct{}](kind, quota.Limits{
		Entries: maxRemembered, Bytes: maxRememberedBytes,
		OwnerEntries: ownerRemembered, OwnerBytes: ownerBytes,
	}, memoryTTL, nil)}
}

// Close clears the memory, which keeps nothing from then on.
func (m *Memory) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.conversations.Close()
}

// Parse reads the body of a request like [Conversation.Parse]. It continues from the owner's
// conversation that shares the longest beginning with the body.
func (m *Memory) Parse(owner string, body []byte) (*Conversation, error) {
	blocks := hashBlocks(body, m.blockSize)
	c := m.take(owner, body, blocks)
	if c == nil {
		c = &Conversation{blockSize: int32(m.blockSize)}
		c.reset()
	}
	if err := c.parse(body); err != nil {
		return nil, err
	}
	c.blocks = blocks
	return c, nil
}

// Keep stores a conversation, which the caller must not use from then on, and its Past for the next
// request.
func (m *Memory) Keep(owner string, c *Conversation, past Past) {
	c.blocks = c.blocks[:int(c.list.span.end)/m.blockSize] // what follows the list moves with every request
	if len(c.marks) == 0 || int(c.marks[0].end) > len(c.blocks)*m.blockSize {
		return
	}
	c.settle(past)
	c.ids.release()
	c.names.release()
	c.body, c.decoded, c.scratch = nil, nil, nil // everything with content
	m.mu.Lock()
	defer m.mu.Unlock()
	m.conversations.Put(owner, c, struct{}{}, int64(c.bytes()))
}

func hashBlocks(body []byte, size int) []uint64 {
	blocks := make([]uint64, 0, len(body)/size)
	for block := range slices.Chunk(body[:len(body)/size*size], size) {
		blocks = append(blocks, maphash.Bytes(seed, block))
	}
	return blocks
}

// take removes and returns the conversation that shares the most blocks with a body. It is a
// different one if it shares less than half of its blocks, or not the whole part before the boundary.
func (m *Memory) take(owner string, body []byte, blocks []uint64) *Conversation {
	m.mu.Lock()
	defer m.mu.Unlock()
	var best *Conversation
	most := 0
	for c := range m.conversations.Owned(owner) {
		same := 0
		for same < min(len(blocks), len(c.blocks)) && blocks[same] == c.blocks[same] {
			same++
		}
		settled := same*m.blockSize >= c.settled.start
		if same > most && 2*same >= len(c.blocks) && settled && c.settled.isIn(body) {
			best, most = c, same
		}
	}
	if best == nil {
		return nil
	}
	m.conversations.Remove(best)
	best.rewind(most * m.blockSize)
	return best
}

// rewind prepares c to read a body whose first bytes are the same.
func (c *Conversation) rewind(same int) {
	c.resume = sort.Search(len(c.marks), func(i int) bool { return int(c.marks[i].end) > same })
	if c.resume == 0 {
		c.reset()
		return
	}
	c.restart()
}

// mark records that reading can continue at the end of an element of the list. Only the last one of
// each block is kept.
func (c *Conversation) mark(end int32) {
	if c.blockSize == 0 || c.list.hasGenerated {
		return
	}
	m := mark{
		end:   end,
		turns: int32(len(c.turns)), calls: int32(len(c.calls)),
		results: int32(len(c.results)), texts: int32(len(c.texts)),
		ids: int32(len(c.ids.texts)), names: int32(len(c.names.texts)),
		list: c.list, cache: c.cache,
	}
	if n := len(c.turns); n > 0 {
		m.turnEnd = c.turns[n-1].end
	}
	if n := len(c.marks); n > 0 && c.marks[n-1].end/c.blockSize == end/c.blockSize {
		c.marks[n-1] = m
		return
	}
	c.marks = append(c.marks, m)
}

// knownElements returns where to continue in an array, if it is the list and was read before.
func (p *parser) knownElements(path, _ int) int {
	if p.resume == 0 || !isList(canonicalPath(path)) {
		return 0
	}
	p.marks, p.resume = p.marks[:p.resume], 0
	m := p.marks[len(p.marks)-1]
	p.turns, p.calls = p.turns[:m.turns], p.calls[:m.calls]
	p.results, p.texts = p.results[:m.results], p.texts[:m.texts]
	if m.turns > 0 {
		p.turns[m.turns-1].end = m.turnEnd
	}
	p.ids.restore(int(m.ids), p.decode)
	p.names.restore(int(m.names), p.decode)
	for _, call := range p.calls {
		p.markCalled(call.id)
	}
	p.list = m.list
	p.cache.messages = p.cache.messages || m.cache.messages
	p.cache.hour = p.cache.hour || m.cache.hour
	p.cache.day = p.cache.day || m.cache.day
	p.nextMessage()
	return int(m.end)
}

// bytes returns how much memory c takes.
func (c *Conversation) bytes() int {
	p := &c.parser
	m := &p.message
	return int(unsafe.Sizeof(*c)) + c.ids.bytes() + c.names.bytes() + c.past.Progress.bytes() +
		sizeOf(c.turns) + sizeOf(c.calls) + sizeOf(c.results) + sizeOf(c.texts) + sizeOf(c.marks) + sizeOf(c.blocks) +
		sizeOf(p.called) + sizeOf(p.waiting) + sizeOf(p.queues) + sizeOf(c.idInfos) + sizeOf(c.tools) +
		sizeOf(m.parts) + sizeOf(m.calls) + sizeOf(m.uses) + sizeOf(m.results) + sizeOf(m.tools)
}

func sizeOf[T any](s []T) int {
	var one T
	return cap(s) * int(unsafe.Sizeof(one))
}
