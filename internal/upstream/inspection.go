package upstream

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// An Inspection makes exchanges visible to an operator. Exchanges of clients have none: methods
// that are called for all exchanges accept a nil receiver.
type Inspection struct {
	// Patience is how long a server may take to connect and to list. If set, servers in an outage
	// are tried, too. Default: the JoinTimeout
	Patience time.Duration

	// Raw returns results of the server unchanged: not masked, not redacted, with its own URIs.
	Raw bool

	// KeepServerResult keeps the server's own result of a call, too, see [Inspection.ServerResult].
	KeepServerResult bool

	mu       sync.Mutex
	calling  bool
	captured capturedResponse // response to the call, if KeepServerResult is set
	server   ServerDescription
}

// A ServerDescription is how a server describes itself.
type ServerDescription struct {
	Protocol      string // protocol version
	Name, Version string
}

// BeginCall announces the operator's tools/call. From here on, timeouts are those of clients.
func (o *Inspection) BeginCall() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calling, o.Patience = true, 0
}

// WantsRaw reports whether results of the server pass unchanged.
func (o *Inspection) WantsRaw() bool { return o != nil && o.Raw }

// Timeout returns Patience: 0 for clients, and for the call itself.
func (o *Inspection) Timeout() time.Duration {
	if o == nil {
		return 0
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.Patience
}

// counts reports whether the exchange is recorded.
func (o *Inspection) counts(x *Exchange) bool {
	if o == nil {
		return true
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.isCall(x)
}

// isCall reports whether an exchange is the operator's call. o.mu must be held.
func (o *Inspection) isCall(x *Exchange) bool {
	return o.calling && x.Message.Is(jsonrpc.Method, "tools/call")
}

// Server returns the description of the last server.
func (o *Inspection) Server() ServerDescription {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.server
}

// NoteServer records the description of a server from its handshake.
func (o *Inspection) NoteServer(version string, result []byte) {
	if o == nil {
		return
	}
	type info struct{ Name, Version string }
	var body struct {
		Info info `json:"serverInfo"`
		Meta struct {
			Info info `json:"io.modelcontextprotocol/serverInfo"`
		} `json:"_meta"`
	}
	_ = json.Unmarshal(result, &body) // invalid members stay empty
	server := cmp.Or(body.Info, body.Meta.Info)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.server = ServerDescription{version, mcp.Shortened(server.Name), mcp.Shortened(server.Version)}
}

// A capturedResponse is a copy of the server's response to a call, before any change. If the
// request was repeated because a session or a stream was lost, it is the last response.
type capturedResponse struct {
	contentType, encoding string
	body                  []byte // its beginning
	size                  int64  // of the whole body
}

// maxCaptured limits the bytes of a response that are copied, and the bytes of the decoded response
// that are shown.
const maxCaptured = 1 << 20

// ServerResult returns the result of the call as the server sent it, as JSON: not masked, not
// redacted, with its own URIs. For a response that is too long it is the beginning, as a string. It
// is nil if the gateway itself responded, the call failed, or KeepServerResult is not set.
func (o *Inspection) ServerResult() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.captured.result()
}

// noteHeader records the header of a response. o may be nil.
func (o *Inspection) noteHeader(x *Exchange, header http.Header) {
	if o == nil || !o.KeepServerResult {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.isCall(x) {
		o.captured = capturedResponse{
			contentType: httpbody.GetHeader(header, "Content-Type"), encoding: httpbody.Encoding(header),
		}
	}
}

// noteBody records the next bytes of a response. o may be nil.
func (o *Inspection) noteBody(x *Exchange, p []byte) {
	if o == nil || !o.KeepServerResult {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.isCall(x) {
		o.captured.size += int64(len(p))
		o.captured.body = append(o.captured.body, p[:min(len(p), maxCaptured-len(o.captured.body))]...)
	}
}

// result returns the result in the response, or the beginning of a response that is too long.
func (c *capturedResponse) result() (result []byte) {
	body, whole := c.decoded()
	if !whole {
		for r, size := utf8.DecodeLastRune(body); r == utf8.RuneError && size == 1; r, size = utf8.DecodeLastRune(body) {
			body = body[:len(body)-1]
		}
		return jsonrpc.Quote(fmt.Sprintf("%s… (%d bytes)", body, c.size))
	}
	reader := streamable.Reader{OnMessage: func(e *streamable.Event) error {
		if len(e.Data) > 0 && e.Message.Has(jsonrpc.Result) {
			result = slices.Clone(e.Message.Literal(jsonrpc.Result))
		}
		return nil
	}}
	reader.Header().Set("Content-Type", c.contentType)
	_, _ = reader.Write(body) // an unreadable body has no result
	_ = reader.Close()
	return result
}

// decoded returns the decoded copy, and whether it is complete.
func (c *capturedResponse) decoded() (body []byte, whole bool) {
	whole = int64(len(c.body)) == c.size
	if c.encoding == "" {
		return c.body, whole
	}
	r, err := httpbody.NewReader(c.encoding, bytes.NewReader(c.body))
	if err != nil || r == nil { // the gateway could not read it either
		return nil, true
	}
	defer r.Close()
	body, err = io.ReadAll(io.LimitReader(r, maxCaptured+1))
	if len(body) > maxCaptured {
		return body[:maxCaptured], false
	}
	return body, whole && err == nil
}
