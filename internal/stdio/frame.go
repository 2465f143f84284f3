package stdio

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"strconv"
	"strings"
	"sync"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// A Framing separates the messages on a child's stdin. Its stdout is read in either framing.
type Framing string

const (
	// Newline ends each message with a line feed, as in MCP.
	Newline Framing = "newline"
	// ContentLength puts a header with its length before each message, as in LSP.
	ContentLength Framing = "content-length"
)

// A frame is a message in pieces, so that a large one can be edited without a copy.
type frame [][]byte

func (f frame) len() (n int) {
	for _, piece := range f {
		n += len(piece)
	}
	return n
}

// appendEdited appends a message with edits applied. It shares the bytes of the message.
func appendEdited(f frame, message []byte, edits []jsonspan.Edit) frame {
	at := 0
	for _, e := range edits {
		f = append(f, message[at:e.Start], e.New)
		at = e.End
	}
	return append(f, message[at:])
}

// newFrame returns a message as it is sent to a child. It shares the bytes of the message.
func newFrame(message []byte, framing Framing) frame { return editedFrame(message, nil, framing) }

// editedFrame returns a message with edits applied, as it is sent to a child. It shares the
// bytes of the message, unless line breaks must be removed.
func editedFrame(message []byte, edits []jsonspan.Edit, framing Framing) frame {
	f := appendEdited(make(frame, 1, 2*len(edits)+3), message, edits)
	if framing == ContentLength {
		f[0] = fmt.Appendf(nil, "Content-Length: %d\r\n\r\n", f.len())
		return f
	}
	for i, piece := range f {
		if bytes.ContainsAny(piece, "\r\n") {
			f[i] = jsonspan.AppendLine(make([]byte, 0, len(piece)), piece)
		}
	}
	return append(f, newline)
}

var newline = []byte("\n")

// A frameReader reads the messages that a child writes.
type frameReader struct {
	src         io.Reader
	max         int    // bytes of the longest message
	onLong      func() // called when a message does not fit into a block
	lastWasLine bool   // the latest message was a line
	linesOnly   bool   // all messages are lines

	block      *block
	start, end int   // range of the block that was read and not returned yet
	err        error // error of the latest read
	expected   int   // likely size of the next long message: a little more than the latest one
}

const (
	// minRead is the smallest size of a block to read into.
	minRead = 64 << 10
	// maxIdle is how many bytes a reader keeps while its child is silent.
	maxIdle = 1 << 20
	// maxPadding is how many bytes a line may have more than its message.
	maxPadding = 64 << 10
)

// A skippedMessage is a message that is not read. If it is a response, the call with its id
// waits for it. If it is a request, the child waits for a response.
type skippedMessage struct {
	id        []byte
	isRequest bool
}

// A tooLongError reports that a message was skipped because of its length.
type tooLongError struct{ skippedMessage }

func (tooLongError) Error() string { return "message too long" }

// errNoise reports that a line is not a message.
var errNoise = errors.New("not a message")

func newFrameReader(r io.Reader, maxMessage int) *frameReader {
	return &frameReader{src: r, max: maxMessage, onLong: func() {}, block: newBlock(minRead)}
}

// next returns the next message in memory of its own, which is part of the block if that is
// not nil. With errNoise it returns a line that is not a message, valid until the next call;
// with a *tooLongError it returns nothing. Reading can go on after both. Any other error is final.
func (r *frameReader) next() ([]byte, *block, error) {
	for {
		line, joined, err := r.readLine()
		if err != nil && (err != io.EOF || len(line) == 0) {
			return nil, nil, err
		}
		line = bytes.TrimPrefix(bytes.TrimSpace(line), byteOrderMark)
		r.lastWasLine = true
		switch {
		case len(line) == 0:
			continue
		case line[0] == '{' && len(line) > r.max:
			return nil, nil, r.skip([][]byte{line}, false, nil)
		case line[0] == '{':
			message, block := r.ownMemory(line, joined)
			return message, block, nil
		}
		if n, ok := contentLength(line); ok && !r.linesOnly && n <= maxExcess*r.max {
			r.lastWasLine = false
			return r.readBody(n)
		}
		return line, nil, errNoise
	}
}

// byteOrderMark precedes the output of some programs.
var byteOrderMark = []byte("\ufeff")

// maxExcess limits a Content-Length to a multiple of the longest message. A header beyond it
// is taken for text, because skipping so much would skip all responses to come.
const maxExcess = 4

// noteValid notes that the latest message was valid. If it was a line, so are all later ones,
// and text that looks like a header is not one.
func (r *frameReader) noteValid() { r.linesOnly = r.linesOnly || r.lastWasLine }

// contentLength returns the length that a header states.
func contentLength(line []byte) (n int, ok bool) {
	const longest = 64
	if len(line) > longest {
		return 0, false
	}
	name, value, _ := strings.Cut(string(line), ":")
	n, err := strconv.Atoi(strings.TrimSpace(value))
	return n, strings.EqualFold(name, "Content-Length") && err == nil && n >= 0
}

// readLine reads up to the end of a line. The result is valid until more is read. A line longer
// than a block is returned in a block of its own.
func (r *frameReader) readLine() (_ []byte, joined *block, _ error) {
	var begin []*block // blocks before the current one, if the line is longer than a block
	size := 0          // bytes in them
	for searched := 0; ; {
		data := r.unread()
		end := bytes.IndexByte(data[searched:], '\n')
		if end >= 0 {
			data = data[:searched+end+1]
		}
		if size+len(data) > r.max+maxPadding {
			begun := append(contents(begin), r.take(len(data)))
			return nil, nil, r.skip(begun, end < 0, func(data []byte) (n int, more bool) {
				if end := bytes.IndexByte(data, '\n'); end >= 0 {
					return end + 1, false
				}
				return len(data), true
			})
		}
		if end >= 0 {
			line, joined := join(begin, r.take(len(data)))
			return line, joined, nil
		}
		searched = len(data)
		if len(data) == len(r.block.bytes) && len(data) >= r.expected {
			r.onLong()
			begin, size, searched = append(begin, r.block), size+len(data), 0
			r.block, r.start, r.end = newBlock(min(size, maxIdle)), 0, 0
		}
		if err := r.fill(r.end - r.start + 1); err != nil {
			line, joined := join(begin, r.take(r.end-r.start))
			return line, joined, err
		}
	}
}

// contents returns the bytes of blocks.
func contents(blocks []*block) (all [][]byte) {
	for _, b := range blocks {
		all = append(all, b.bytes)
	}
	return all
}

// join returns a line whose beginning is in blocks. Its parts are joined once, at the end,
// because growing a block would copy it over and over.
func join(begin []*block, end []byte) (line []byte, joined *block) {
	if begin == nil {
		return end, nil
	}
	parts := append(contents(begin), end)
	joined = newBlock(frame(parts).len())
	line = joined.bytes[:0]
	for _, part := range parts {
		line = append(line, part...)
	}
	for _, b := range begin {
		b.free()
	}
	return line, joined
}

// readBody reads the rest of a header and a message of a stated length.
func (r *frameReader) readBody(n int) ([]byte, *block, error) {
	for {
		line, _, err := r.readLine()
		if err != nil {
			return nil, nil, err
		}
		if len(bytes.TrimSpace(line)) == 0 {
			break
		}
	}
	if n > r.max {
		return nil, nil, r.skip(nil, true, func(data []byte) (_ int, more bool) {
			part := min(n, len(data))
			n -= part
			return part, n > 0
		})
	}
	if err := r.fill(n); err != nil {
		return nil, nil, err
	}
	message, block := r.ownMemory(r.take(n), nil)
	return message, block, nil
}

// unread returns the bytes that were read and not taken.
func (r *frameReader) unread() []byte { return r.block.bytes[r.start:r.end] }

// take returns the next n bytes. They are valid until more is read.
func (r *frameReader) take(n int) []byte {
	taken := r.unread()[:n]
	r.start += n
	return taken
}

// fill reads until n bytes are unread.
func (r *frameReader) fill(n int) error {
	if r.start == r.end {
		r.start, r.end = 0, 0
		if len(r.block.bytes) > maxIdle {
			r.replace(min(r.expected, maxIdle))
		}
	}
	for r.end-r.start < n {
		if r.err != nil {
			return r.err
		}
		r.makeRoom(n)
		var more int
		more, r.err = r.src.Read(r.block.bytes[r.end:])
		r.end += more
	}
	return nil
}

// makeRoom makes room in the block, or gets a larger block: for n bytes, or for the expected
// size of the next message.
func (r *frameReader) makeRoom(n int) {
	switch size := len(r.block.bytes); {
	case r.end < size && n <= size-r.start:
	case r.start > 0 && n <= size:
		r.end = copy(r.block.bytes, r.unread())
		r.start = 0
	default:
		r.onLong()
		r.replace(max(n, r.expected))
	}
}

// replace moves the unread bytes to another block and frees the old one.
func (r *frameReader) replace(size int) {
	old := r.detach(size)
	old.free()
}

// detach moves the unread bytes to another block and returns the old one.
func (r *frameReader) detach(size int) (old *block) {
	old, unread := r.block, r.unread()
	r.block = newBlock(max(size, len(unread), minRead))
	r.start, r.end = 0, copy(r.block.bytes, unread)
	return old
}

// ownMemory moves a message that was taken to memory of its own. Most long messages keep the
// block, and the bytes after them move.
func (r *frameReader) ownMemory(message []byte, joined *block) ([]byte, *block) {
	size := len(message)
	if size > minRead/2 {
		r.expected = min(size+size/8, largest)
	}
	switch {
	case size <= smallest/2: // the garbage collector is as good
		return bytes.Clone(message), nil
	case joined != nil:
		return message, joined
	case size > len(r.block.bytes)/2:
		return message, r.detach(min(r.expected, maxIdle))
	}
	b := newBlock(size)
	return b.bytes[:copy(b.bytes, message)], b
}

// skip reads the id of a message that is too long. If more follows its beginning, rest returns
// how many of the next bytes belong to it, and whether there are still more.
func (r *frameReader) skip(begin [][]byte, more bool, rest func([]byte) (n int, more bool)) error {
	skipped := new(tooLongError)
	watcher := skipped.idWatcher()
	for _, piece := range begin {
		_, _ = watcher.Write(piece)
	}
	for more {
		if err := r.fill(1); err != nil {
			return err
		}
		var n int
		n, more = rest(r.unread())
		_, _ = watcher.Write(r.take(n))
	}
	return skipped
}

var idPaths = jsonspan.CompilePaths("id", "method")

// idWatcher returns a writer for the message that sets the fields.
func (l *skippedMessage) idWatcher() *jsonspan.Watcher {
	return idPaths.Watch(func(path int, _ jsonspan.Kind, literal []byte) {
		if path == 0 {
			l.id = bytes.Clone(literal)
		} else {
			l.isRequest = true
		}
	})
}

// A block is memory for a message. Blocks are reused, because fresh memory for each response
// would keep the garbage collector busy: a response can have megabytes.
type block struct{ bytes []byte }

const (
	smallest = 512     // bytes of the smallest block
	largest  = 8 << 20 // bytes of the largest block that is reused
)

// blocks are the free blocks by size. There are four sizes from each power of two to the next,
// so a block is at most a quarter larger than needed.
var blocks [60]sync.Pool

// sizeClass returns the size of blocks for a number of bytes, and their index in blocks.
func sizeClass(bytes int) (class, size int) {
	bytes = max(bytes, smallest)
	power := bits.Len(uint(bytes - 1))
	quarter := 1 << (power - 3) // a quarter of the power of two below
	quarters := (bytes + quarter - 1) / quarter
	return 4*(power-bits.Len(smallest-1)) + quarters - 5, quarters * quarter
}

// newBlock returns a block of at least this many bytes. Its content is undefined.
func newBlock(bytes int) *block {
	if bytes > largest {
		return &block{make([]byte, bytes)}
	}
	class, size := sizeClass(bytes)
	if b, ok := blocks[class].Get().(*block); ok {
		return b
	}
	return &block{make([]byte, size)}
}

// free makes a block available again. A block that is not freed is left to the garbage
// collector.
func (b *block) free() {
	if b != nil && len(b.bytes) <= largest {
		class, _ := sizeClass(len(b.bytes))
		blocks[class].Put(b)
	}
}
