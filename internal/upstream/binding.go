package upstream

import (
	"bytes"
	"net/http"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/seal"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/sse"
)

// At Single, sessions and streams are the server's own. The server cannot tell the clients of the
// gateway apart, so the gateway binds its ids to the client, if the client is identified.

// Kinds of ids.
const (
	boundSession  = "session of one server"
	boundEvent    = "event of one server"
	boundEndpoint = "endpoint of one server"
)

// A binding makes ids of a server valid for one client only.
type binding struct {
	sealer         seal.Sealer
	server, client string // the client is "" if it is not identified
}

// bind returns an id of the server as the client gets it.
func (b binding) bind(kind, id string) string {
	return b.sealer.Bind(id, kind, b.server, b.client)
}

// claim returns the id of the server, and reports whether it is bound to the client.
func (b binding) claim(kind, bound string) (id string, ok bool) {
	return b.sealer.Claim(bound, kind, b.server, b.client)
}

// claimHeader replaces the bound id in a header with the id of the server. It reports false if the
// id is not bound to the client. A missing header is fine.
func (b binding) claimHeader(kind string, header http.Header, name string) bool {
	values := header.Values(name)
	if len(values) != 1 {
		return len(values) == 0 // with several, the server could use any
	}
	id, ok := b.claim(kind, values[0])
	if ok {
		header.Set(name, id)
	}
	return ok
}

// isPersonal reports whether ids are bound at all.
func (b binding) isPersonal() bool { return b.client != "" }

// claimIDs replaces the ids of the session and of the last event with those of the server. It fails
// if they are not the client's.
func (b binding) claimIDs(header http.Header) *jsonrpc.Failure {
	if httpbody.GetHeader(header, "Last-Event-Id") == "" {
		delete(header, "Last-Event-Id") // an empty one has no meaning
	}
	switch {
	case !b.isPersonal():
		return nil
	case !b.claimHeader(boundSession, header, mcp.SessionHeader):
		return jsonrpc.UnknownSession()
	case !b.claimHeader(boundEvent, header, "Last-Event-Id"):
		return jsonrpc.InvalidRequest("Last-Event-ID: not an event of this client")
	}
	return nil
}

// bindSession replaces the id of a new session by the id for the client.
func (b binding) bindSession(header http.Header) {
	if id := httpbody.GetHeader(header, mcp.SessionHeader); id != "" && b.isPersonal() {
		header.Set(mcp.SessionHeader, b.bind(boundSession, id))
	}
}

// bindEvents wraps w if the ids of events must be bound to the client. r is the request to the
// server.
func (b binding) bindEvents(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
	if !b.isPersonal() {
		return w
	}
	r.Header.Del("Accept-Encoding") // the stream is parsed
	return &eventBinder{next: w, binding: b}
}

// binding returns the binding for the server and the caller. It is not for Aggregate, because
// sessions there are the gateway's.
func (x *Exchange) binding() binding {
	return binding{sealer: x.Shared.Sealer, server: x.Server.Name, client: x.Caller.Identity}
}

// An eventBinder binds the ids of events to the client. Everything else passes unchanged.
type eventBinder struct {
	next    http.ResponseWriter
	binding binding

	status   int
	isStream bool // the response is an event stream
	events   sse.Scanner
	line     []byte // incomplete line that may be an id
	notID    bool   // the current line is not an id
	out      []byte
}

// longestEventID is the maximum length of an id line. A longer one is not bound, so the client
// cannot resume after it.
const longestEventID = 4 << 10

func (w *eventBinder) Header() http.Header         { return w.next.Header() }
func (w *eventBinder) Unwrap() http.ResponseWriter { return w.next }

func (w *eventBinder) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
		media := httpbody.TypeOf(w.Header().Get("Content-Type"))
		w.isStream = media == httpbody.EventStream && httpbody.Encoding(w.Header()) == ""
		if w.isStream {
			w.Header().Del("Content-Length")
		}
	}
	w.next.WriteHeader(status)
}

func (w *eventBinder) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if !w.isStream {
		return w.next.Write(p)
	}
	w.out = w.out[:0]
	w.events.Each(p, func(kind sse.Kind, part []byte) {
		if kind == sse.Frame {
			w.frame(part)
		} else {
			w.out = append(w.out, part...)
		}
	})
	if len(w.out) > 0 {
		if _, err := w.next.Write(w.out); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// frame handles the next bytes outside of data. It holds back a line as long as it may be an id.
func (w *eventBinder) frame(p []byte) {
	for _, c := range p {
		ends := c == '\n' || c == '\r'
		if !ends && !w.notID {
			w.line = append(w.line, c)
			w.notID = !mayBeID(w.line) || len(w.line) > longestEventID
			if w.notID {
				w.out, w.line = append(w.out, w.line...), w.line[:0]
			}
			continue
		}
		if ends {
			w.out, w.line = append(w.out, w.boundLine()...), w.line[:0]
			w.notID = false
		}
		w.out = append(w.out, c)
	}
}

// byteOrderMark may precede the first line.
var byteOrderMark = []byte("\ufeff")

// mayBeID reports whether a line, which may be incomplete, may be an id field.
func mayBeID(line []byte) bool {
	if len(line) < len(byteOrderMark) && bytes.HasPrefix(byteOrderMark, line) {
		return true
	}
	name, _, ended := bytes.Cut(bytes.TrimPrefix(line, byteOrderMark), []byte{':'})
	return string(name) == "id" || !ended && bytes.HasPrefix([]byte("id"), name)
}

// boundLine returns the held line with its id bound.
func (w *eventBinder) boundLine() []byte {
	name, value, _ := bytes.Cut(bytes.TrimPrefix(w.line, byteOrderMark), []byte{':'})
	id := bytes.TrimPrefix(value, []byte{' '})
	if string(name) != "id" || len(id) == 0 {
		return w.line
	}
	return append(w.line[:len(w.line)-len(id)], w.binding.bind(boundEvent, string(id))...)
}
