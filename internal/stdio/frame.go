package stdio

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// A Framing is how messages are separated on a child's stdin. Its stdout is read in either
// framing.
type Framing string

const (
	// Newline ends each message with a line feed, as in MCP.
	Newline Framing = "newline"
	// ContentLength puts a header with its length before each message, as in LSP.
	ContentLength Framing = "content-length"
)

// A frame is a message in pieces, so that a large one is edited without a copy.
type frame [][]byte

func (f frame) len() (n int) {
	for _, piece := range f {
		n += len(piece)
	}
	return n
}

// edited returns a message with edits made. It shares the bytes of the message.
func edited(message []byte, edits []jsonspan.Edit) frame {
	return appendEdited(make(frame, 0, 2*len(edits)+1), message, edits)
}

func appendEdited(f frame, message []byte, edits []jsonspan.Edit) frame {
	at := 0
	for _, e := range edits {
		f = append(f, message[at:e.Start], e.New)
		at = e.End
	}
	return append(f, message[at:])
}

// newFrame returns a message as it goes to a child. It shares the bytes of the message.
func newFrame(message []byte, framing Framing) frame { return spliced(message, nil, framing) }

// spliced returns a message with edits made, as it goes to a child. It shares the bytes of
// the message, unless line breaks must go.
func spliced(message []byte, edits []jsonspan.Edit, framing Framing) frame {
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
	src    io.Reader
	max    int    // bytes of the longest message
	long   func() // called when a message does not fit into a block
	byLine bool   // the latest message was a line
	lines  bool   // all messages are lines

	block      *block
	start, end int   // of what was read into the block and not returned yet
	err        error // that came with it
	usual      int   // bytes of the latest long message, and some more: the next one may be like it
}

const (
	// minRead is the size of the smallest block that is read into.
	minRead = 64 << 10
	// maxIdle is how many bytes a reader keeps while its child is silent.
	maxIdle = 1 << 20
	// blanks is how much longer than a message a line may be.
	blanks = 64 << 10
)

// A lost message is one that is skipped. If it has an id, a call waits for it or, if it is
// a request, the child waits for an answer.
type lost struct {
	id      []byte
	request bool
}

// A tooLongError says that a message was skipped because of its length.
type tooLongError struct{ lost }

func (tooLongError) Error() string { return "message too long" }

// errNoise says that a line is not a message.
var errNoise = errors.New("not a message")

func newFrameReader(r io.Reader, maxMessage int) *frameReader {
	return &frameReader{src: r, max: maxMessage, long: func() {}, block: newBlock(minRead)}
}

// next returns the next message, in memory of its own, which is a part of the block if there is
// one. With errNoise it returns a line that is not a message, which is there until it is called
// again, with a *tooLongError nothing. Reading can go on after both. Any other error is the end.
func (r *frameReader) next() ([]byte, *block, error) {
	for {
		line, joined, err := r.line()
		if err != nil && (err != io.EOF || len(line) == 0) {
			return nil, nil, err
		}
		line = bytes.TrimPrefix(bytes.TrimSpace(line), byteOrderMark)
		r.byLine = true
		switch {
		case len(line) == 0:
			continue
		case line[0] == '{' && len(line) > r.max:
			return nil, nil, r.skip([][]byte{line}, false, nil)
		case line[0] == '{':
			message, block := r.own(line, joined)
			return message, block, nil
		}
		if n, ok := contentLength(line); ok && !r.lines && n <= maxExcess*r.max {
			r.byLine = false
			return r.body(n)
		}
		return line, nil, errNoise
	}
}

// Some programs begin their output with a byte order mark.
var byteOrderMark = []byte("\ufeff")

// maxExcess is how many times the longest message a Content-Length may be. Beyond it, a
// header is taken for text: skipping so much would skip all answers to come.
const maxExcess = 4

// settle says that the latest message was valid. If it was a line, so are all later ones,
// and text that looks like a header is not one.
func (r *frameReader) settle() { r.lines = r.lines || r.byLine }

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

// line reads up to the end of a line, which is there until more is read. A line that is longer
// than a block is in one of its own.
func (r *frameReader) line() (_ []byte, joined *block, _ error) {
	var begin []*block // of the line, if it is longer than a block
	size := 0          // bytes in them
	for searched := 0; ; {
		data := r.unread()
		end := bytes.IndexByte(data[searched:], '\n')
		if end >= 0 {
			data = data[:searched+end+1]
		}
		if size+len(data) > r.max+blanks {
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
		if len(data) == len(r.block.bytes) && len(data) >= r.usual {
			r.long()
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

// join returns a line whose beginning is in blocks. Its parts are joined once, at its end, because
// a block that grows would be copied over and over.
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

// body reads a message of a stated length, after the rest of its header.
func (r *frameReader) body(n int) ([]byte, *block, error) {
	for {
		line, _, err := r.line()
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
	message, block := r.own(r.take(n), nil)
	return message, block, nil
}

// unread returns what was read and not taken.
func (r *frameReader) unread() []byte { return r.block.bytes[r.start:r.end] }

// take returns the next bytes, which are there until more is read.
func (r *frameReader) take(n int) []byte {
	taken := r.unread()[:n]
	r.start += n
	return taken
}

// fill reads until so many bytes are there.
func (r *frameReader) fill(n int) error {
	if r.start == r.end {
		r.start, r.end = 0, 0
		if len(r.block.bytes) > maxIdle {
			r.replace(min(r.usual, maxIdle))
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

// makeRoom makes room for more in the block, or gets a larger one: for n bytes, or for as many as
// the next message is likely to have.
func (r *frameReader) makeRoom(n int) {
	switch size := len(r.block.bytes); {
	case r.end < size && n <= size-r.start:
	case r.start > 0 && n <= size:
		r.end = copy(r.block.bytes, r.unread())
		r.start = 0
	default:
		r.long()
		r.replace(max(n, r.usual))
	}
}

// replace moves what is unread to another block, and frees the one that it was in.
func (r *frameReader) replace(size int) {
	old := r.detach(size)
	old.free()
}

// detach moves what is unread to another block, and returns the one that it was in.
func (r *frameReader) detach(size int) (old *block) {
	old, unread := r.block, r.unread()
	r.block = newBlock(max(size, len(unread), minRead))
	r.start, r.end = 0, copy(r.block.bytes, unread)
	return old
}

// own gives a message that was taken memory of its own, if it has none. Most long messages stay
// where they are, and what follows them moves.
func (r *frameReader) own(message []byte, joined *block) ([]byte, *block) {
	size := len(message)
	if size > minRead/2 {
		r.usual = min(size+size/8, largest)
	}
	switch {
	case size <= smallest/2: // the garbage collector is as good
		return bytes.Clone(message), nil
	case joined != nil:
		return message, joined
	case size > len(r.block.bytes)/2:
		return message, r.detach(min(r.usual, maxIdle))
	}
	b := newBlock(size)
	return b.bytes[:copy(b.bytes, message)], b
}

// skip finds out the id of a message that is too long. If more follows its beginning, rest says
// how much of the bytes that come next belongs to it, and whether there is still more.
func (r *frameReader) skip(begin [][]byte, more bool, rest func([]byte) (n int, more bool)) error {
	skipped := new(tooLongError)
	watcher := skipped.watch()
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

// watch returns what to write the message to.
func (l *lost) watch() *jsonspan.Watcher {
	return idPaths.Watch(func(path int, _ jsonspan.Kind, literal []byte) {
		if path == 0 {
			l.id = bytes.Clone(literal)
		} else {
			l.request = true
		}
	})
}
