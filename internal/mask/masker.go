package mask

import (
	"bytes"
	"io"
	"slices"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

const (
	// block is how much is read at a time: small enough to stay in the
	// processor's cache, large enough for the rest not to matter.
	block = 16 << 10

	// assumeAfter is how much is held back in the hope of jsonrpc behind result,
	// where the TypeScript SDK writes it. After that, what answers a JSON-RPC
	// request is taken for JSON-RPC.
	assumeAfter = 1 << 20
)

// Variables only so that tests can make them small.
var (
	// window is how much of a text is held back before any of it is written. A
	// text that turns out broken before that passes untouched.
	window = 64 << 10

	// holdLimit bounds what is held back because of strings that cannot be judged
	// yet: with jsonrpc behind result in what answers no request, or type behind
	// data.
	holdLimit = 128 << 20
)

// A Masker masks JSON texts as they arrive and writes them to its destination:
// JSON-RPC messages or arrays of them. All other texts pass unchanged, and so do
// those that cannot be rewritten safely: texts that are not JSON, nested deeper
// than jsonspan allows, or whose envelope repeats a key. If that comes to light
// late in a long text, what has been written by then stays masked and the rest
// passes as it is; nothing ever gets lost but what a marker stands for.
type Masker struct {
	policy Policy
	dst    io.Writer
	scan   jsonspan.Scanner

	hold      bytes.Buffer // what has arrived and is not yet written
	base      int64        // offset in the text of the first byte held
	begun     bool         // the text has had its first byte
	committed bool         // some of the text has been written
	verbatim  bool         // the rest of the text passes as it is

	batch   bool    // the text is an array of messages
	msg     message // the message being read
	objects []object
	cuts    []cut        // in held strings, not yet made
	marks   []checkpoint // in the string that begins at marked
	marked  int64
	eliding bool // its head is written, its middle is being dropped

	stats   Stats
	edits   []jsonspan.Edit // for release
	markers []byte          // for release
	name    []byte          // for text
}

// A message is a JSON-RPC message, as far as it has been read.
type message struct {
	open     bool
	start    int64
	depth    int    // of its members
	jsonrpc  bool   // it says "jsonrpc": "2.0", or must be assumed to
	asked    bool   // Policy.Reply has been asked whether it must
	seen     uint16 // members it has had
	member   member // the one being read
	members  bool   // it is a result, and an object: its members are looked at
	describe bool   // the result describes the server
	maskable bool   // it is an observation

	// What a Shortener needs to know of its result.
	part       part
	structured span  // its structured content
	content    int64 // where its content ends; 0 if it has none
	passing    bool  // the message is too long to be held back, or not in one piece
}

// A part is one of the members of a result.
type part uint8

const (
	otherPart part = iota
	contentPart
	structuredPart
)

// A span is where something stands in a text.
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

// An object inside an observation, looked at to tell media from text.
type object struct {
	depth   int // of its members
	member  objectMember
	typed   bool // its type is known
	media   bool // and is image or audio
	located bool // it has a uri: a resource
	app     bool // its mimeType is that of a UI, which is shown to people
	data    int64
	blob    int64 // where a cut waits to be confirmed, or 0
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

// A cut takes the middle out of a string that is still held, or puts something in its place.
type cut struct {
	start, end int64  // of the string, with its quotes
	head, tail int64  // where the head ends and where the tail begins
	text       []byte // between them; nil for a marker
	handle     string // under which the string is kept
	chars      int
	left       int  // of chars
	waiting    bool // for the rest of the object to tell what the string is
	saved      bool // if it could be
	structured bool // it is the text of the structured content, and that is cut
}

// A checkpoint is a place between two characters of a string.
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

// Reset makes m as good as new, but for the memory it has.
func (m *Masker) Reset(dst io.Writer, policy Policy) {
	m.dst, m.policy, m.stats = dst, policy, Stats{}
	m.next()
}

// next prepares for another text.
func (m *Masker) next() {
	m.scan.Reset()
	m.hold.Reset()
	m.base = 0
	m.begun, m.committed, m.verbatim, m.batch, m.eliding = false, false, false, false, false
	m.msg = message{}
	m.report()
	m.objects, m.cuts, m.marks, m.marked = m.objects[:0], m.cuts[:0], m.marks[:0], -1
}

// Verbatim reports whether the rest of the text passes as it is, whatever it is.
func (m *Masker) Verbatim() bool { return m.verbatim }

// Stats returns what has been masked and written since Reset.
func (m *Masker) Stats() Stats { return m.stats }

// Write takes the next bytes of the text. It fails only if the destination does.
func (m *Masker) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		var err error
		switch {
		case m.verbatim:
			_, err = m.dst.Write(rest)
			rest = nil
		case m.eliding:
			rest, err = m.pass(rest)
		default:
			b := rest[:min(len(rest), block)]
			rest = rest[len(b):]
			err = m.read(b)
		}
		if err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// Gap takes bytes that are carried along with the text but are none of it: the
// framing of an event stream. They stay where they are. To the text they are
// white space.
func (m *Masker) Gap(p []byte) error {
	if m.verbatim || !m.begun {
		_, err := m.dst.Write(p)
		return err
	}
	m.hold.Write(p)
	m.msg.passing = m.msg.passing || m.msg.open
	m.scan.Gap(len(p))
	return m.follow(m.scan.Next())
}

// End says that the text is complete and writes what is left of it. The next
// Write begins another text.
func (m *Masker) End() (err error) {
	if !m.verbatim {
		m.scan.Finish()
		err = m.follow(m.scan.Next())
	}
	m.next()
	return err
}

// Abort says that the text will not be completed and writes what is held of it
// as it arrived.
func (m *Masker) Abort() error {
	err := m.giveUp()
	m.next()
	return err
}

func (m *Masker) read(b []byte) error {
	m.begun = true
	m.hold.Write(b)
	m.scan.Feed(b)
	return m.follow(m.scan.Next())
}

// follow follows the text from one token on as far as it has arrived.
func (m *Masker) follow(k jsonspan.Kind) error {
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
			if err := m.str(); err != nil {
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
		m.report()
		return
	case m.msg.part == structuredPart && depth == m.msg.depth+1:
		m.msg.structured.start, _ = m.scan.Span()
	case depth == m.msg.depth && m.msg.member == memberResult:
		m.msg.members = true
		m.report()
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
		// Not a message after all: its strings stay.
		for len(m.cuts) > 0 && m.cuts[len(m.cuts)-1].start >= m.msg.start {
			m.cuts = m.cuts[:len(m.cuts)-1]
		}
	} else if m.policy.Shorten != nil && !m.msg.passing {
		m.shorten()
	}
	m.msg = message{}
	m.report()
}

// report has the scanner report what matters here and pass over the rest.
func (m *Masker) report() {
	depth := max(m.msg.depth, 1)
	switch {
	case m.msg.maskable && m.policy.KeepMedia:
		m.scan.ReportAll()
		return
	case m.msg.member == memberError, m.msg.members:
		depth++ // some of its members are observations, others are not
	}
	m.scan.Report(depth, m.policy.MaxChars)
}

// key notes which member follows. It returns false if the envelope repeats one.
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
		m.report()
		return m.first(m.msg.member)
	case depth == m.msg.depth+1 && m.msg.members:
		if m.judge(name); m.msg.maskable {
			m.msg.part = partOf[string(name)]
		} else {
			m.msg.part = otherPart
		}
		m.report()
	case depth == m.msg.depth+1 && m.msg.member == memberError:
		m.msg.maskable = string(name) == "data"
		m.report()
		if m.msg.maskable {
			return m.first(memberData)
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

// first reports whether the message has this member for the first time.
func (m *Masker) first(is member) bool {
	if is == otherMember {
		return true
	}
	seen := uint16(1) << is
	repeated := m.msg.seen&seen != 0
	m.msg.seen |= seen
	return !repeated
}

// str handles a string value that is complete.
func (m *Masker) str() error {
	depth := m.scan.Depth()
	if depth == m.msg.depth && m.msg.member == memberJSONRPC {
		m.msg.jsonrpc = string(m.text()) == "2.0"
		return nil
	}
	if !m.msg.maskable {
		return nil
	}
	if m.eliding {
		if err := m.elided(); err != nil {
			return err
		}
	} else {
		m.cut()
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

// cut notes that the latest string is to be cut, if it is.
func (m *Masker) cut() {
	chars := m.scan.Chars()
	keep, waiting := m.media()
	if chars <= m.policy.MaxChars || keep {
		return
	}
	start, end := m.scan.Span()
	body := m.bytes(start+1, end-1)
	if m.policy.masked(body, chars) {
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

// object returns the object that the latest string is a member of, if objects
// are looked at.
func (m *Masker) object() *object {
	if n := len(m.objects); n > 0 && m.objects[n-1].depth == m.scan.Depth() {
		return &m.objects[n-1]
	}
	return nil
}

// media tells whether the latest string is media to be kept, and where to note
// the cut if that is not known yet.
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

// appType is the type of the resources of MCP Apps.
const appType = "text/html;profile=mcp-app"

// resolve decides about the cut that waits at *start.
func (m *Masker) resolve(start *int64, keep bool) {
	if *start == 0 {
		return
	}
	for i := len(m.cuts) - 1; i >= 0; i-- { // it is among the latest
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

// bytes returns what is held from one offset of the text to another.
func (m *Masker) bytes(start, end int64) []byte {
	return m.hold.Bytes()[start-m.base : end-m.base]
}

// text returns what the latest string or key stands for if it is short enough to
// be any name of ours.
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

// longestName is what the longest name takes if all of it is escaped.
const longestName int64 = 2 + 6*int64(len("structuredContent"))

// tailStart returns where the tail of the latest string begins.
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

// mark notes how far the string being read has come.
func (m *Masker) mark() {
	if start, _ := m.scan.Span(); m.marked != start {
		m.marked, m.marks = start, m.marks[:0]
	}
	if n := len(m.marks); n > 0 && m.scan.Bound()-m.marks[n-1].offset < step/4 {
		return // the text comes in small pieces
	}
	m.marks = append(m.marks, checkpoint{m.scan.Bound(), m.scan.Chars()})
}

// settle writes what can be written of what has arrived.
func (m *Masker) settle() error {
	inside := m.scan.InString() && m.msg.maskable
	if inside {
		m.mark()
	}
	switch {
	case m.policy.Limit > 0 && m.hold.Len() > m.policy.Limit:
		return m.giveUp()
	case m.policy.Limit > 0, !m.committed && m.hold.Len() <= window, m.holds():
		return nil
	}
	m.assume()
	if inside && m.certain() {
		return m.elide()
	}
	if err := m.release(m.floor()); err != nil {
		return err
	}
	if m.hold.Len() > holdLimit {
		return m.giveUp()
	}
	return nil
}

// holds reports whether the message is held back for the Shortener. One that is too long for
// that passes without it.
func (m *Masker) holds() bool {
	if m.policy.Shorten == nil || !m.msg.open {
		return false
	}
	m.msg.passing = m.msg.passing || m.hold.Len() > m.policy.HoldLimit
	return !m.msg.passing
}

// assume takes a long answer to a JSON-RPC request for what it must be.
func (m *Masker) assume() {
	if m.msg.maskable && !m.msg.jsonrpc && !m.msg.asked && m.hold.Len() > assumeAfter && m.policy.Reply != nil {
		m.msg.asked = true
		m.msg.jsonrpc = m.policy.Reply()
	}
}

// certain reports whether the string being read will be masked whatever follows,
// and nothing before it is undecided.
func (m *Masker) certain() bool {
	start, end := m.scan.Span()
	keep, waiting := m.media()
	return m.msg.jsonrpc && !keep && waiting == nil && m.floor() == start &&
		m.scan.Chars()-maxMarker > m.policy.MaxChars &&
		(m.policy.Save == nil && m.policy.Shorten == nil || end-start-1 > int64(m.policy.HoldLimit))
}

// floor returns up to where the text can be written: up to the first byte that
// something still to come may change or that is yet to be looked at.
func (m *Masker) floor() int64 {
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

// release writes the text up to an offset with the cuts made in it.
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
			m.markers = appendMarker(m.markers, c.chars, m.policy.HeadChars, m.policy.TailChars, m.save(&c), m.policy.Hint)
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

// save keeps the string of a cut, and returns its handle if it could.
func (m *Masker) save(c *cut) (handle string) {
	if !c.saved && m.policy.Save != nil && c.end-c.start-2 <= int64(m.policy.HoldLimit) {
		c.handle = m.policy.Save(m.bytes(c.start+1, c.end-1))
	}
	c.saved = true
	return c.handle
}

// elide writes the head of the string being read.
func (m *Masker) elide() error {
	start, _ := m.scan.Span()
	head := checkpoint{chars: m.policy.HeadChars}
	head.offset = start + 1 + int64(jsonspan.Advance(m.bytes(start+1, m.scan.Bound()), head.chars))
	m.eliding = true
	err := m.release(head.offset)
	// The first checkpoint is always where the bytes held begin.
	before := 0
	for before < len(m.marks) && m.marks[before].chars <= head.chars {
		before++
	}
	m.marks = slices.Replace(m.marks, 0, before, head)
	m.keepTail(nil)
	return err
}

// step is how much is read at a time of a string whose middle is being dropped.
// What is kept of it is the tail and less than a step before that.
const step = 4 << 10

// pass reads on in a string whose middle is being dropped. Of p, nothing but what
// may become the tail is held. It returns what comes after the string.
func (m *Masker) pass(p []byte) (rest []byte, err error) {
	for n := 0; n < len(p); {
		b := p[n:min(len(p), n+step)]
		n += len(b)
		m.scan.Feed(b)
		if k := m.scan.Next(); k != jsonspan.More {
			m.keepTail(p[:n])
			return p[n:], m.follow(k)
		}
		m.mark()
	}
	m.keepTail(p)
	return nil, nil
}

// keepTail forgets what can no longer become the tail of the string being read,
// of what is held and of p, which follows it.
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

// elided puts the marker and leaves the tail of a string whose middle was
// dropped.
func (m *Masker) elided() error {
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

// giveUp lets the text pass from here on as it is.
func (m *Masker) giveUp() error {
	m.verbatim = true
	if m.eliding {
		if err := m.elided(); err != nil {
			return err
		}
	}
	m.cuts = m.cuts[:0]
	return m.release(m.base + int64(m.hold.Len()))
}

// maxPooled is the most memory a Masker may keep between two uses.
const maxPooled = 256 << 10

// Oversized reports whether m has grown too large to be kept for another use.
func (m *Masker) Oversized() bool { return m.hold.Cap() > maxPooled }
