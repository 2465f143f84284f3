package streamable

import (
	"bytes"
	"net"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// An Event is a message in an event stream.
type Event struct {
	ID    string // resumes the stream after this event
	Retry string // milliseconds to wait before resuming
	Type  string // default: "message"
	Data  []byte // empty in an event that only sets ID or Retry

	// Message is Data, parsed. A Writer ignores it.
	Message *jsonrpc.Message
}

// HasMessage reports whether the event carries a message.
func (e *Event) HasMessage() bool {
	return len(e.Data) > 0 && (e.Type == "" || e.Type == "message")
}

// Buffers returns the bytes of the event with data instead of Data. data is one JSON text in any
// number of pieces. It is copied only if it has line breaks, because some clients read only one
// line of data.
func (e *Event) Buffers(data ...[]byte) net.Buffers {
	buffers := append(make(net.Buffers, 0, len(data)+2), e.head())
	for _, piece := range data {
		buffers = append(buffers, oneLine(piece))
	}
	return append(buffers, eventEnd)
}

var eventEnd = []byte("\n\n")

// head returns the lines before the data, and the beginning of the data line.
func (e *Event) head() []byte {
	var head []byte
	if e.ID != "" {
		head = append(append(append(head, "id: "...), e.ID...), '\n')
	}
	if e.Retry != "" {
		head = append(append(append(head, "retry: "...), e.Retry...), '\n')
	}
	if e.Type != "" {
		head = append(append(append(head, "event: "...), e.Type...), '\n')
	}
	return append(head, "data: "...)
}

// oneLine returns a part of a JSON text without line breaks, which occur only between tokens.
func oneLine(p []byte) []byte {
	if bytes.IndexByte(p, '\n') < 0 && bytes.IndexByte(p, '\r') < 0 {
		return p
	}
	return jsonspan.AppendLine(nil, p)
}

// Comment is sent on a silent stream every KeepAlive, because proxies close idle connections.
var Comment = []byte(":\n\n")

// KeepAlive is how long a stream may be silent.
const KeepAlive = 15 * time.Second
