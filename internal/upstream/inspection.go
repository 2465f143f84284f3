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

// An Inspection is how an operator looks at exchanges that are made for it. Clients have none: all methods that are
// called for any client may have a nil receiver.
type Inspection struct {
	// Patience is how long a server may take to connect and to list. If it is given, servers that
	// could not be reached a short time ago are tried as well. Default: the JoinTimeout
	Patience time.Duration

	// Raw is whether results are those of the server: not masked, not redacted, with its own URIs.
	Raw bool

	// Both is whether a call also has the result of the server, see [Inspection.Sent].
	Both bool

	mu      sync.Mutex
	calling bool
	sent    sent // the answer to a call, if Both are wanted
	about   ServerDescription
}

// A ServerDescription is what a server says of itself.
type ServerDescription struct {
	Protocol      string // version of the protocol
	Name, Version string
}

// BeginCall notes that the next tools/call is the one of the operator. From here on it is as for any client.
func (o *Inspection) BeginCall() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calling, o.Patience = true, 0
}

// WantsRaw reports whether results are those of the server.
func (o *Inspection) WantsRaw() bool { return o != nil && o.Raw }

// Timeout returns the Patience: 0 for clients, and for the call itself.
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

// isCall reports whether an exchange is the call. o.mu must be held.
func (o *Inspection) isCall(x *Exchange) bool {
	return o.calling && x.Message.Is(jsonrpc.Method, "tools/call")
}

// Server returns what the last server has said of itself.
func (o *Inspection) Server() ServerDescription {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.about
}

// NoteServer notes what a server has said of itself in a handshake.
func (o *Inspection) NoteServer(version string, result []byte) {
	if o == nil {
		return
	}
	type info struct{ Name, Version string }
	var said struct {
		Info info `json:"serverInfo"`
		Meta struct {
			Info info `json:"io.modelcontextprotocol/serverInfo"`
		} `json:"_meta"`
	}
	_ = json.Unmarshal(result, &said) // what is wrong is missing
	is := cmp.Or(said.Info, said.Meta.Info)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.about = ServerDescription{version, mcp.Shortened(is.Name), mcp.Shortened(is.Version)}
}

// sent is a copy of what a server has answered to a call, before anything was done to it. If the server is asked more
// than once, because a session or a stream is lost, it is the last answer.
type sent struct {
	contentType, encoding string
	body                  []byte // its beginning
	size                  int64  // of all of it
}

// maxSent is how much of an answer is copied, and how much of it is shown when it is decoded.
const maxSent = 1 << 20

// Sent returns the result of a call as the server has sent it, as JSON: not masked, not redacted, with its own URIs. Of
// an answer that is too long it is the beginning, as a string. It is nil if there is none: the gateway itself has
// answered, or the call has failed, or Both were not wanted.
func (o *Inspection) Sent() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sent.result()
}

// noteHeader notes that a server begins to answer. As other methods that are called for any client, it may have a nil
// receiver.
func (o *Inspection) noteHeader(x *Exchange, header http.Header) {
	if o == nil || !o.Both {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.isCall(x) {
		o.sent = sent{
			contentType: httpbody.GetHeader(header, "Content-Type"), encoding: httpbody.Encoding(header),
		}
	}
}

// noteBody notes the next bytes of an answer.
func (o *Inspection) noteBody(x *Exchange, p []byte) {
	if o == nil || !o.Both {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.isCall(x) {
		o.sent.size += int64(len(p))
		o.sent.body = append(o.sent.body, p[:min(len(p), maxSent-len(o.sent.body))]...)
	}
}

// result returns the result in the answer, or the beginning of an answer that is too long.
func (s *sent) result() (result []byte) {
	body, whole := s.decoded()
	if !whole {
		for r, size := utf8.DecodeLastRune(body); r == utf8.RuneError && size == 1; r, size = utf8.DecodeLastRune(body) {
			body = body[:len(body)-1]
		}
		return jsonrpc.Quote(fmt.Sprintf("%s… (%d bytes)", body, s.size))
	}
	reader := streamable.Reader{OnMessage: func(e *streamable.Event) error {
		if len(e.Data) > 0 && e.Message.Has(jsonrpc.Result) {
			result = slices.Clone(e.Message.Literal(jsonrpc.Result))
		}
		return nil
	}}
	reader.Header().Set("Content-Type", s.contentType)
	_, _ = reader.Write(body) // what cannot be read is no result
	_ = reader.Close()
	return result
}

// decoded returns what was copied without its encoding, and whether that is all.
func (s *sent) decoded() (body []byte, whole bool) {
	if whole = int64(len(s.body)) == s.size; s.encoding == "" {
		return s.body, whole
	}
	r, err := httpbody.NewReader(s.encoding, bytes.NewReader(s.body))
	if err != nil || r == nil { // nor could the gateway read it
		return nil, true
	}
	defer r.Close()
	body, err = io.ReadAll(io.LimitReader(r, maxSent+1))
	if len(body) > maxSent {
		return body[:maxSent], false
	}
	return body, whole && err == nil
}
