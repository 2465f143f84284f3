package stdio

import (
	"bufio"
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
	src    *bufio.Reader
	max    int  // bytes of the longest message
	byLine bool // the latest message was a line
	lines  bool // all messages are lines
}

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
	return &frameReader{src: bufio.NewReaderSize(r, 64<<10), max: maxMessage}
}

// next returns the next message, in memory of its own. With errNoise it returns a line that
// is not a message, with a *tooLongError nothing. Reading can go on after both. Any other
// error is the end.
func (r *frameReader) next() ([]byte, error) {
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
			return nil, r.skip(nil, line)
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

// line reads up to the end of a line. The pieces of a long one are joined once, at its end:
// a slice that grows would be copied over and over.
func (r *frameReader) line() ([]byte, error) {
	piece, err := r.src.ReadSlice('\n')
	if err != bufio.ErrBufferFull {
		return bytes.Clone(piece), err
	}
	var pieces [][]byte
	size := 0
	for ; err == bufio.ErrBufferFull; piece, err = r.src.ReadSlice('\n') {
		pieces = append(pieces, bytes.Clone(piece))
		if size += len(piece); size > r.max {
			return nil, r.skip(func() ([]byte, bool, error) {
				piece, err := r.src.ReadSlice('\n')
				if err == bufio.ErrBufferFull {
					return piece, true, nil
				}
				return piece, false, err
			}, pieces...)
		}
	}
	return bytes.Join(append(pieces, piece), nil), err
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
		return nil, r.skip(func() ([]byte, bool, error) {
			piece, err := r.src.Peek(min(n, r.src.Size()))
			_, _ = r.src.Discard(len(piece))
			n -= len(piece)
			return piece, n > 0, err
		})
	}
	message := make([]byte, n)
	_, err := io.ReadFull(r.src, message)
	return message, err
}

// skip reads the rest of a message that is too long, to find out its id. Without next there
// is no rest.
func (r *frameReader) skip(next func() (piece []byte, more bool, err error), begin ...[]byte) error {
	skipped := new(tooLongError)
	watcher := skipped.watch()
	for _, piece := range begin {
		_, _ = watcher.Write(piece)
	}
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
