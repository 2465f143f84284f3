package mask

import (
	"bytes"
	"io"
	"slices"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

const (
	// blockSize is how many bytes are read at a time: few enough for the processor's cache, many
	// enough to amortize the overhead.
	blockSize = 16 << 10

	// assumeAfter is how many bytes are held back while jsonrpc may still follow result, where the
	// TypeScript SDK writes it. After that, a response to a JSON-RPC request is assumed to be
	// JSON-RPC.
	assumeAfter = 1 << 20
)

// Variables for tests.
var (
	// window is how many bytes of a text are held back before any of it is written. A text found
	// invalid within them passes unchanged.
	window = 64 << 10

	// holdLimit bounds the bytes held back because it is undecided whether a string is cut: jsonrpc
	// may still follow a result, in a text that responds to no known request, or type may follow data.
	holdLimit = 128 << 20
)

// A Masker masks JSON texts as they arrive and writes them to its destination: JSON-RPC messages or
// arrays of them. All other texts pass unchanged, and so do those that cannot be rewritten safely:
// texts that are not JSON, nested deeper than jsonspan allows, or whose envelope repeats a key. If
// that is found late in a long text, the part already written stays masked and the rest passes
// unchanged. Nothing is lost except what markers replace.
type Masker struct {
	policy Policy
	dst    io.Writer
	scan   jsonspan.Scanner

	hold      bytes.Buffer // received and not yet written
	base      int64        // offset of the first byte held
	begun     bool         // the text has begun
	committed bool         // part of the text has been written
	verbatim  bool         // the rest of the text passes unchanged

	batch   bool    // the text is an array of messages
	msg     message // message being read
	objects []object
	cuts    []cut        // cuts in held strings, not yet made
	marks   []checkpoint // checkpoints in the string that begins at marked
	marked  int64
	eliding bool // its head is written, its middle is being dropped

	stats   Stats
	edits   []jsonspan.Edit // reused by release
	markers []byte          // reused by release
	name    []byte          // reused by text
}

// A message is the JSON-RPC message being read.
type message struct {
	open         bool
	start        int64
	depth        int    // depth of its members
	jsonrpc      bool   // it has "jsonrpc": "2.0", or is assumed to
	replyChecked bool   // Policy.IsReply has been called
	seen         uint16 // bit set of members so far
	member       member // member being read
	members      bool   // the member is a result object, whose members are examined
	describe     bool   // the result describes the server: it is a list or a handshake
	maskable     bool   // the value being read is an observation

	// For the Shortener.
	part       part
	structured span  // position of the structured content
	content    int64 // offset of the end of the content array, or 0
	unheld     bool  // not held back for the Shortener: too long, or with gaps
}

// A part is a member of a result.
type part uint8

const (
	otherPart part = iota
	contentPart
	structuredPart
)

// A span is a range of offsets in a text.
type span struct{ start, end int64 }

func (s span) contains(c *cut) bool { return s.start <= c.start && c.end <= s.end }

type member uint8

const (
	otherMember member = iota
	memberJSONRPC
	memberID
	memberMethod
	memberParams
	memberResult
	memberError
	memberData // of error
)

var partOf = map[string]part{"content": contentPart, "structuredContent": structuredPart}

var memberOf = map[string]member{
	"jsonrpc": memberJSONRPC,
	"id":      memberID,
	"method":  memberMethod,
	"params":  memberParams,
	"result":  memberResult,
	"error":   memberError,
}

// An object is a JSON object in an observation. Its members tell whether its strings are media.
type object struct {
	depth   int // depth of its members
	member  objectMember
	typed   bool  // its type is known
	media   bool  // its type is image or audio
	located bool  // it has a uri, so it is a resource
	app     bool  // its mimeType is that of a UI, which is shown to users
	data    int64 // start of an undecided cut of its data, or 0
	blob    int64 // start of an undecided cut of its blob, or 0
}

type objectMember uint8

const (
	anyMember objectMember = iota
	typeMember
	dataMember
	uriMember
	blobMember
	mimeTypeMember
	textMember
)

// A cut removes the middle of a held string, or replaces a value.
type cut struct {
	start, end int64  // of the string, with its quotes
	head, tail int64  // end of the head, start of the tail
	text       []byte // replacement; nil for a marker
	handle     string // handle of the original
	chars      int    // characters of the string or value
	left       int    // characters left of them
	waiting    bool   // undecided until the rest of the object is read
	saved      bool   // Save has been called if possible
	structured bool   // the string is the structured content as text, which is shortened
}

// A checkpoint is a position between two characters of a string.
type checkpoint struct {
	offset int64
	chars  int
}

// NewMasker returns a Masker that writes to dst.
func NewMasker(dst io.Writer, policy Policy) *Masker {
	m := new(Masker)
	m.Reset(dst, policy)
	return m
}

// Reset resets m and keeps its memory.
func (m *Masker) Reset(dst io.Writer, policy Policy) {
	m.dst, m.policy, m.stats = dst, policy, Stats{}
	m.nextText()
}

// nextText prepares for another text.
func (m *Masker) nextText() {
	m.scan.Reset()
	m.hold.Reset()
	m.base = 0
	m.begun, m.committed, m.verbatim, m.batch, m.eliding = false, false, false, false, false
	m.msg = message{}
	m.setReporting()
	m.objects, m.cuts, m.marks, m.marked = m.objects[:0], m.cuts[:0], m.marks[:0], -1
}

// Verbatim reports whether the rest of the text passes unchanged, whatever it is.
func (m *Masker) Verbatim() bool { return m.verbatim }

// Stats returns what has been masked and written since Reset.
func (m *Masker) Stats() Stats { return m.stats }

// Write masks the next bytes of the text. It fails only if the destination does.
func (m *Masker) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		var err error
		switch {
		case m.verbatim:
			_, err = m.dst.Write(rest)
			rest = nil
		case m.eliding:
			rest, err = m.skipMiddle(rest)
		default:
			b := rest[:min(len(rest), blockSize)]
			rest = rest[len(b):]
			err = m.read(b)
		}
		if err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// Gap passes bytes that are interleaved with the text but not part of it: the framing of an event
// stream. They keep their position. In the text they count as white space.
func (m *Masker) Gap(p []byte) error {
	if m.verbatim || !m.begun {
		_, err := m.dst.Write(p)
		return err
	}
	m.hold.Write(p)
	m.msg.unheld = m.msg.unheld || m.msg.open
	m.scan.Gap(len(p))
	return m.process(m.scan.Next())
}

// End ends the text and writes what is left of it. The next Write begins another text.
func (m *Masker) End() (err error) {
	if !m.verbatim {
		m.scan.Finish()
		err = m.process(m.scan.Next())
	}
	m.nextText()
	return err
}

// Abort ends an incomplete text and writes what is held of it, unmasked.
func (m *Masker) Abort() error {
	err := m.giveUp()
	m.nextText()
	return err
}

func (m *Masker) read(b []byte) error {
	m.begun = true
	m.hold.Write(b)
	m.scan.Feed(b)
	return m.process(m.scan.Next())
}

// process processes tokens as far as the text has arrived, beginning with k.
func (m *Masker) process(k jsonspan.Kind) error {
	for ; ; k = m.scan.Next() {
		safe := true
		switch k {
		case jsonspan.More:
			return m.settle()
		case jsonspan.Done:
			return m.release(m.base + int64(m.hold.Len()))
		case jsonspan.Invalid:
			safe = false
		case jsonspan.Key:
			safe = m.key()
		case jsonspan.String:
			if err := m.stringValue(); err != nil {
				return err
			}
		case jsonspan.BeginArray:
			m.batch = m.batch || m.scan.Depth() == 0
		case jsonspan.BeginObject:
			m.beginObject()
		case jsonspan.EndObject:
			m.endObject()
		case jsonspan.EndArray:
			m.endArray()
		}
		if !safe {
			return m.giveUp()
		}
	}
}

func (m *Masker) beginObject() {
	depth := m.scan.Depth()
	switch {
	case !m.msg.open && (depth == 0 || m.batch && depth == 1):
		start, _ := m.scan.Span()
		m.msg = message{open: true, start: start, depth: depth + 1}
		m.setReporting()
		return
	case m.msg.part == structuredPart && depth == m.msg.depth+1:
		m.msg.structured.start, _ = m.scan.Span()
	case depth == m.msg.depth && m.msg.member == memberResult:
		m.msg.members = true
		m.setReporting()
	}
	if m.msg.maskable && m.policy.KeepMedia {
		m.objects = append(m.objects, object{depth: depth + 1})
	}
}

func (m *Masker) endArray() {
	if m.msg.part == contentPart && m.scan.Depth() == m.msg.depth+1 {
		m.msg.content, _ = m.scan.Span()
	}
}

func (m *Masker) endObject() {
	if n := len(m.objects); n > 0 && m.objects[n-1].depth == m.scan.Depth()+1 {
		o := m.objects[n-1]
		m.objects = m.objects[:n-1]
		m.resolve(&o.data, o.media)
		m.resolve(&o.blob, o.located)
	}
	if m.msg.part == structuredPart && m.scan.Depth() == m.msg.depth+1 {
		_, m.msg.structured.end = m.scan.Span()
	}
	if !m.msg.open || m.scan.Depth() != m.msg.depth-1 {
		return
	}
	if !m.msg.jsonrpc {
		// Not a JSON-RPC message: undo its cuts.
		for len(m.cuts) > 0 && m.cuts[len(m.cuts)-1].start >= m.msg.start {
			m.cuts = m.cuts[:len(m.cuts)-1]
		}
	} else if m.policy.Shorten != nil && !m.msg.unheld {
		m.shorten()
	}
	m.msg = message{}
	m.setReporting()
}

// setReporting makes the scanner report only tokens that matter for the member being read.
func (m *Masker) setReporting() {
	depth := max(m.msg.depth, 1)
	switch {
	case m.msg.maskable && m.policy.KeepMedia:
		m.scan.ReportAll()
		return
	case m.msg.member == memberError, m.msg.members:
		depth++ // some of its members are observations
	}
	m.scan.Report(depth, m.policy.MaxChars)
}

// key records which member follows. It returns false if the envelope repeats a member.
func (m *Masker) key() (safe bool) {
	depth := m.scan.Depth()
	name := m.text()
	switch {
	case !m.msg.open:
		return true
	case depth == m.msg.depth:
		m.msg.member = memberOf[string(name)]
		m.msg.maskable, m.msg.part = m.msg.member == memberResult, otherPart
		m.msg.members = false
		m.setReporting()
		return m.isFirst(m.msg.member)
	case depth == m.msg.depth+1 && m.msg.members:
		m.classifyMember(name)
		if m.msg.maskable {
			m.msg.part = partOf[string(name)]
		} else {
			m.msg.part = otherPart
		}
		m.setReporting()
	case depth == m.msg.depth+1 && m.msg.member == memberError:
		m.msg.maskable = string(name) == "data"
		m.setReporting()
		if m.msg.maskable {
			return m.isFirst(memberData)
		}
	}
	if n := len(m.objects); n > 0 && m.objects[n-1].depth == depth {
		o := &m.objects[n-1]
		switch string(name) {
		case "type":
			o.member = typeMember
		case "data":
			o.member = dataMember
		case "uri":
			o.member = uriMember
		case "blob":
			o.member = blobMember
		case "mimeType":
			o.member = mimeTypeMember
		case "text":
			o.member = textMember
		default:
			o.member = anyMember
		}
	}
	return true
}

// isFirst reports whether the message has this member for the first time.
func (m *Masker) isFirst(name member) bool {
	if name == otherMember {
		return true
	}
	seen := uint16(1) << name
	repeated := m.msg.seen&seen != 0
	m.msg.seen |= seen
	return !repeated
}

// stringValue handles a complete string value.
func (m *Masker) stringValue() error {
	depth := m.scan.Depth()
	if depth == m.msg.depth && m.msg.member == memberJSONRPC {
		m.msg.jsonrpc = string(m.text()) == "2.0"
		return nil
	}
	if !m.msg.maskable {
		return nil
	}
	if m.eliding {
		if err := m.endElision(); err != nil {
			return err
		}
	} else {
		m.addCut()
	}
	if o := m.object(); o != nil {
		switch o.member {
		case typeMember:
			o.typed = true
			kind := string(m.text())
			o.media = kind == "image" || kind == "audio"
			m.resolve(&o.data, o.media)
		case uriMember:
			o.located = true
			m.resolve(&o.blob, true)
		case mimeTypeMember:
			o.app = string(m.text()) == appType
		}
	}
	return nil
}

// addCut adds a cut for the latest string, if it is too long.
func (m *Masker) addCut() {
	chars := m.scan.Chars()
	keep, waiting := m.media()
	if chars <= m.policy.MaxChars || keep {
		return
	}
	start, end := m.scan.Span()
	body := m.bytes(start+1, end-1)
	if m.policy.isMasked(body, chars) {
		return
	}
	m.cuts = append(m.cuts, cut{
		start: start, end: end, chars: chars, waiting: waiting != nil,
		head: start + 1 + int64(jsonspan.Advance(body, m.policy.HeadChars)),
		tail: m.tailStart(),
		left: m.policy.HeadChars + m.policy.TailChars,
	})
	if waiting != nil {
		*waiting = start
	}
}

// object returns the object that has the latest string as a member, if objects are examined.
func (m *Masker) object() *object {
	if n := len(m.objects); n > 0 && m.objects[n-1].depth == m.scan.Depth() {
		return &m.objects[n-1]
	}
	return nil
}

// media reports whether the latest string is media to keep, and where to record the cut if that is
// not known yet.
func (m *Masker) media() (keep bool, waiting *int64) {
	o := m.object()
	switch {
	case o == nil:
	case o.member == dataMember && o.typed:
		return o.media, nil
	case o.member == dataMember:
		return false, &o.data
	case o.member == blobMember && o.located, o.member == textMember && o.app:
		return true, nil
	case o.member == blobMember:
		return false, &o.blob
	}
	return false, nil
}

// appType is the MIME type of MCP Apps UIs.
const appType = "text/html;profile=mcp-app"

// resolve decides about the undecided cut at *start, if there is one: keep removes the cut.
func (m *Masker) resolve(start *int64, keep bool) {
	if *start == 0 {
		return
	}
	for i := len(m.cuts) - 1; i >= 0; i-- { // it is one of the last cuts
		if m.cuts[i].start == *start {
			m.cuts[i].waiting = false
			if keep {
				m.cuts = slices.Delete(m.cuts, i, i+1)
			}
			break
		}
	}
	*start = 0
}

// bytes returns held bytes by their offsets.
func (m *Masker) bytes(start, end int64) []byte {
	return m.hold.Bytes()[start-m.base : end-m.base]
}

// text returns the decoded latest string or key, or nil if it is longer than any relevant name.
func (m *Masker) text() []byte {
	start, end := m.scan.Span()
	if end-start > longestName || start < m.base {
		return nil
	}
	body := m.bytes(start+1, end-1)
	if bytes.IndexByte(body, '\\') < 0 {
		return body
	}
	m.name = jsonspan.AppendText(m.name[:0], body)
	return m.name
}

// longestName is the JSON length of the longest relevant name, fully escaped.
const longestName int64 = 2 + 6*int64(len("structuredContent"))

// tailStart returns the offset of the tail of the latest string.
func (m *Masker) tailStart() int64 {
	start, _ := m.scan.Span()
	from := checkpoint{start + 1, 0}
	skip := m.scan.Chars() - m.policy.TailChars
	if m.marked == start {
		for _, mark := range m.marks {
			if mark.chars > skip {
				break
			}
			from = mark
		}
	}
	return from.offset + int64(jsonspan.Advance(m.bytes(from.offset, m.scan.Bound()), skip-from.chars))
}

// addCheckpoint adds a checkpoint in the string being read.
func (m *Masker) addCheckpoint() {
	if start, _ := m.scan.Span(); m.marked != start {
		m.marked, m.marks = start, m.marks[:0]
	}
	if n := len(m.marks); n > 0 && m.scan.Bound()-m.marks[n-1].offset < step/4 {
		return // the text arrives in small pieces
	}
	m.marks = append(m.marks, checkpoint{m.scan.Bound(), m.scan.Chars()})
}

// settle writes the held bytes as far as they are decided.
func (m *Masker) settle() error {
	inside := m.scan.InString() && m.msg.maskable
	if inside {
		m.addCheckpoint()
	}
	switch {
	case m.policy.Limit > 0 && m.hold.Len() > m.policy.Limit:
		return m.giveUp()
	case m.policy.Limit > 0, !m.committed && m.hold.Len() <= window, m.holdsMessage():
		return nil
	}
	m.assumeJSONRPC()
	if inside && m.willMask() {
		return m.elide()
	}
	if err := m.release(m.releasable()); err != nil {
		return err
	}
	if m.hold.Len() > holdLimit {
		return m.giveUp()
	}
	return nil
}

// holdsMessage reports whether the message is held back for the Shortener. A message that is too
// long passes without it.
func (m *Masker) holdsMessage() bool {
	if m.policy.Shorten == nil || !m.msg.open {
		return false
	}
	m.msg.unheld = m.msg.unheld || m.hold.Len() > m.policy.HoldLimit
	return !m.msg.unheld
}

// assumeJSONRPC treats a long response to a JSON-RPC request as JSON-RPC.
func (m *Masker) assumeJSONRPC() {
	if m.msg.maskable && !m.msg.jsonrpc && !m.msg.replyChecked && m.hold.Len() > assumeAfter && m.policy.IsReply != nil {
		m.msg.replyChecked = true
		m.msg.jsonrpc = m.policy.IsReply()
	}
}

// willMask reports whether the string being read will be masked whatever follows, and everything
// before it is decided.
func (m *Masker) willMask() bool {
	start, end := m.scan.Span()
	keep, waiting := m.media()
	return m.msg.jsonrpc && !keep && waiting == nil && m.releasable() == start &&
		m.scan.Chars()-maxMarker > m.policy.MaxChars &&
		(m.policy.Save == nil && m.policy.Shorten == nil || end-start-1 > int64(m.policy.HoldLimit))
}

// releasable returns the offset up to which the text can be written: the first byte that may still
// change or be needed.
func (m *Masker) releasable() int64 {
	floor := m.base + int64(m.hold.Len())
	if m.scan.InToken() {
		start, end := m.scan.Span()
		keep, _ := m.media()
		if long := end-start > longestName; !long || m.scan.InString() && m.msg.maskable && !keep {
			floor = start
		}
	}
	for i := range m.cuts {
		undecided := m.msg.open && !m.msg.jsonrpc && m.cuts[i].start >= m.msg.start
		if undecided || m.cuts[i].waiting {
			return min(floor, m.cuts[i].start)
		}
	}
	return floor
}

// release writes the held text up to an offset, and makes its cuts.
func (m *Masker) release(upto int64) error {
	n := int(upto - m.base)
	if n == 0 {
		return nil
	}
	m.edits, m.markers = m.edits[:0], m.markers[:0]
	done := 0
	for _, c := range m.cuts {
		if c.end > upto {
			break
		}
		done++
		e := jsonspan.Edit{Start: int(c.head - m.base), End: int(c.tail - m.base), New: c.text}
		if c.text == nil {
			from := len(m.markers)
			m.markers = appendMarker(m.markers, c.chars, m.policy.HeadChars, m.policy.TailChars,
				m.save(&c), m.policy.Hint)
			e.New = m.markers[from:len(m.markers):len(m.markers)]
		}
		m.edits = append(m.edits, e)
		if c.chars > 0 {
			m.stats.add(c.chars - c.left)
		}
	}
	m.cuts = m.cuts[:copy(m.cuts, m.cuts[done:])]
	m.committed = true
	err := jsonspan.Splice(m.dst, m.hold.Bytes()[:n], m.edits)
	m.hold.Next(n)
	m.base = upto
	return err
}

// save saves the string of a cut, if possible, and returns its handle.
func (m *Masker) save(c *cut) (handle string) {
	if !c.saved && m.policy.Save != nil && c.end-c.start-2 <= int64(m.policy.HoldLimit) {
		c.handle = m.policy.Save(m.bytes(c.start+1, c.end-1))
	}
	c.saved = true
	return c.handle
}

// elide writes the head of the string being read and starts to drop its middle.
func (m *Masker) elide() error {
	start, _ := m.scan.Span()
	head := checkpoint{chars: m.policy.HeadChars}
	head.offset = start + 1 + int64(jsonspan.Advance(m.bytes(start+1, m.scan.Bound()), head.chars))
	m.eliding = true
	err := m.release(head.offset)
	// The first checkpoint is always at the first held byte.
	before := 0
	for before < len(m.marks) && m.marks[before].chars <= head.chars {
		before++
	}
	m.marks = slices.Replace(m.marks, 0, before, head)
	m.keepTail(nil)
	return err
}

// step is how many bytes are read at a time of a string whose middle is being dropped. The tail and
// less than a step before it are held.
const step = 4 << 10

// skipMiddle reads on in a string whose middle is being dropped, and holds only what may become the
// tail. It returns the bytes after the string.
func (m *Masker) skipMiddle(p []byte) (rest []byte, err error) {
	for n := 0; n < len(p); {
		b := p[n:min(len(p), n+step)]
		n += len(b)
		m.scan.Feed(b)
		if k := m.scan.Next(); k != jsonspan.More {
			m.keepTail(p[:n])
			return p[n:], m.process(k)
		}
		m.addCheckpoint()
	}
	m.keepTail(p)
	return nil, nil
}

// keepTail drops what can no longer be part of the tail from the held bytes and from p, which
// follows them, and holds the rest.
func (m *Masker) keepTail(p []byte) {
	skip := m.scan.Chars() - m.policy.TailChars
	last := 0
	for last+1 < len(m.marks) && m.marks[last+1].chars <= skip {
		last++
	}
	m.marks = m.marks[:copy(m.marks, m.marks[last:])]
	drop := int(m.marks[0].offset - m.base)
	m.base = m.marks[0].offset
	if held := m.hold.Len(); drop > held {
		m.hold.Reset()
		p = p[drop-held:]
	} else {
		m.hold.Next(drop)
	}
	m.hold.Write(p)
}

// endElision writes the marker of a string whose middle was dropped, and keeps its tail.
func (m *Masker) endElision() error {
	chars := m.scan.Chars()
	tail := m.tailStart()
	m.hold.Next(int(tail - m.base))
	m.base = tail
	m.eliding = false
	m.stats.add(chars - m.policy.HeadChars - m.policy.TailChars)
	m.markers = appendMarker(m.markers[:0], chars, m.policy.HeadChars, m.policy.TailChars, "", "")
	_, err := m.dst.Write(m.markers)
	return err
}

// giveUp lets the rest of the text pass unchanged.
func (m *Masker) giveUp() error {
	m.verbatim = true
	if m.eliding {
		if err := m.endElision(); err != nil {
			return err
		}
	}
	m.cuts = m.cuts[:0]
	return m.release(m.base + int64(m.hold.Len()))
}

// maxPooled is the most memory in bytes that a Masker may keep between uses.
const maxPooled = 256 << 10

// Oversized reports whether m has grown too large to be reused.
func (m *Masker) Oversized() bool { return m.hold.Cap() > maxPooled }
