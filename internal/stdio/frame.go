package stdio

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// A Framing is how messages are told apart on a child's stdin. What it writes is
// read in either way.
type Framing string

const (
	// Newline ends each message with a line feed, as MCP has it.
	Newline Framing = "newline"
	// ContentLength puts a header with its length before each message, as LSP has it.
	ContentLength Framing = "content-length"
)

// A frame is a message as it goes to a child, in pieces that are written one after the
// other, so that a large one need not be put together.
type frame [][]byte

func (f frame) len() (n int) {
	for _, piece := range f {
		n += len(piece)
	}
	return n
}

// newFrame returns the frame of a message that will not be changed.
func newFrame(message []byte, framing Framing) frame { return spliced(message, nil, framing) }

// spliced returns the frame of a message with edits made. The bytes of the message are
// shared, unless it has line breaks that must go.
func spliced(message []byte, edits []jsonspan.Edit, framing Framing) frame {
	f := make(frame, 1, 2*len(edits)+3)
	at := 0
	for _, e := range edits {
		f = append(f, message[at:e.Start], e.New)
		at = e.End
	}
	f = append(f, message[at:])
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

// A frameReader reads what a child writes.
type frameReader struct {
	src     *bufio.Reader
	max     int    // bytes of the longest message
	message []byte // one that did not fit into src
	byLine  bool   // the latest message was a line
	lines   bool   // all messages are lines
}

// A lost message is one that is passed over. If it has an id, somebody waits: a call
// for its answer, or the child for one if it was a request.
type lost struct {
	id      []byte
	request bool
}

// A tooLongError says that a message was passed over because of its length.
type tooLongError struct{ lost }

func (tooLongError) Error() string { return "message too long" }

// errNoise says that a line is no message.
var errNoise = errors.New("not a message")

func newFrameReader(r io.Reader, maxMessage int) *frameReader {
	return &frameReader{src: bufio.NewReaderSize(r, 64<<10), max: maxMessage}
}

// next returns the next message, good until the next call. With errNoise it
// returns a line that is none, with a *tooLongError nothing; reading can go on after
// both. Any other error is the end.
func (r *frameReader) next() ([]byte, error) {
	const sensible = 1 << 20 // what is kept between messages
	if cap(r.message) > sensible {
		r.message = nil
	}
	for {
		line, err := r.line()
		if err != nil && (err != io.EOF || len(line) == 0) {
			return nil, err
		}
		line = bytes.TrimPrefix(bytes.TrimSpace(line), byteOrderMark)
		r.byLine = true
		switch {
		case len(line) == 0:
			continue
		case line[0] == '{' && len(line) > r.max:
			return nil, r.skip(line, nil)
		case line[0] == '{':
			return line, nil
		}
		if n, ok := contentLength(line); ok && !r.lines && n <= maxExcess*r.max {
			r.byLine = false
			return r.body(n)
		}
		return line, errNoise
	}
}

// byteOrderMark is what some programs begin their output with.
var byteOrderMark = []byte("\ufeff")

// maxExcess is how many times the longest message one may have that is passed over by
// its length. Beyond it, a header is text that somebody has printed: with it, all
// answers to come would be passed over.
const maxExcess = 4

// settle says that the latest message was one of JSON-RPC. If it was a line, so are
// those to come, and what looks like a header is none.
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

// line reads up to the end of a line.
func (r *frameReader) line() ([]byte, error) {
	line, err := r.src.ReadSlice('\n')
	if err != bufio.ErrBufferFull {
		return line, err
	}
	r.message = r.message[:0]
	for {
		if cap(r.message)-len(r.message) < len(line) {
			// append alone would copy a line of megabytes five times over.
			r.message = slices.Grow(r.message, max(len(line), len(r.message)))
		}
		r.message = append(r.message, line...)
		if err != bufio.ErrBufferFull {
			return r.message, err
		}
		if len(r.message) > r.max {
			return nil, r.skip(r.message, func() ([]byte, bool, error) {
				piece, err := r.src.ReadSlice('\n')
				if err == bufio.ErrBufferFull {
					return piece, true, nil
				}
				return piece, false, err
			})
		}
		line, err = r.src.ReadSlice('\n')
	}
}

// body reads a message of a stated length, after the rest of its header.
func (r *frameReader) body(n int) ([]byte, error) {
	for {
		line, err := r.src.ReadSlice('\n')
		if err != nil {
			return nil, err
		}
		if len(bytes.TrimSpace(line)) == 0 {
			break
		}
	}
	if n > r.max {
		return nil, r.skip(nil, func() ([]byte, bool, error) {
			piece, err := r.src.Peek(min(n, r.src.Size()))
			_, _ = r.src.Discard(len(piece))
			n -= len(piece)
			return piece, n > 0, err
		})
	}
	if cap(r.message) < n {
		r.message = make([]byte, n)
	}
	r.message = r.message[:n]
	_, err := io.ReadFull(r.src, r.message)
	return r.message, err
}

// skip reads the rest of a message that is too long, to find out who waits for it.
// Without next there is no rest.
func (r *frameReader) skip(begin []byte, next func() (piece []byte, more bool, err error)) error {
	skipped := new(tooLongError)
	watcher := skipped.watch()
	_, _ = watcher.Write(begin)
	r.message = nil
	for more := next != nil; more; {
		var piece []byte
		var err error
		piece, more, err = next()
		_, _ = watcher.Write(piece)
		if err != nil {
			return err
		}
	}
	return skipped
}

var idPaths = jsonspan.CompilePaths("id", "method")

// watch finds out who waits for a message that passes by.
func (l *lost) watch() *jsonspan.Watcher {
	return idPaths.Watch(func(path int, _ jsonspan.Kind, literal []byte) {
		if path == 0 {
			l.id = bytes.Clone(literal)
		} else {
			l.request = true
		}
	})
}
