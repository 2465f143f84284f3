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

// Where a client talks to one server, sessions and streams are the server's. The server cannot
// tell our clients apart, so the ids that it gives are bound to the client, if that is
// identified.

// What an id identifies.
const (
	sessionOfServer  = "session of one server"
	eventOfServer    = "event of one server"
	endpointOfServer = "endpoint of one server"
)

// A binding makes ids of a server good for one client only.
type binding struct {
	sealer         seal.Sealer
	server, client string
}

// bind returns an id of the server as the client gets it.
func (b binding) bind(kind, id string) string {
	return b.sealer.Bind(id, kind, b.server, b.client)
}

// claim returns the id that was bound, and whether it is the client's.
func (b binding) claim(kind, bound string) (id string, ok bool) {
	return b.sealer.Claim(bound, kind, b.server, b.client)
}

// claimHeader gives a header the id that was bound. It reports whether that is the client's,
// or there is none.
func (b binding) claimHeader(kind string, header http.Header, name string) bool {
	values := header.Values(name)
	if len(values) != 1 {
		return len(values) == 0 // the server could take either
	}
	id, ok := b.claim(kind, values[0])
	if ok {
		header.Set(name, id)
	}
	return ok
}

func (x *Exchange) binding() binding {
	return binding{x.Shared.Sealer, x.Server.Name, x.Caller.Identity}
}

// claim has a request name the session, and the event after which a stream is to go on, as
// the server knows them. It refuses those of other clients, and tasks, too.
func (x *Exchange) claim(header http.Header) *jsonrpc.Failure {
	if httpbody.GetHeader(header, "Last-Event-Id") == "" {
		delete(header, "Last-Event-Id") // an empty one has no meaning
	}
	if failure := x.claimTasks(); failure != nil {
		return failure
	}
	switch {
	case !x.bindsSessions():
		return nil
	case !x.binding().claimHeader(sessionOfServer, header, mcp.SessionHeader):
		return jsonrpc.UnknownSession()
	case !x.binding().claimHeader(eventOfServer, header, "Last-Event-Id"):
		return jsonrpc.InvalidRequest("Last-Event-ID: not an event of this client")
	}
	return nil
}

// bindsSessions reports whether sessions are good for the client only.
func (x *Exchange) bindsSessions() bool {
	return x.Kind != Aggregate && x.Caller.Identity != ""
}

// bound returns w as what is written to if something of the answer is to be good for the
// client only, or w itself.
func (x *Exchange) bound(r *http.Request, w http.ResponseWriter) http.ResponseWriter {
	w = x.watchTasks(r, w)
	if !x.bindsSessions() || x.Kind != Single {
		return w
	}
	r.Header.Del("Accept-Encoding") // the stream is read
	return &eventBinder{next: w, binding: x.binding()}
}

// An eventBinder binds the ids of events to the client. All else passes as it is.
type eventBinder struct {
	next    http.ResponseWriter
	binding binding

	status   int
	isStream bool // of events
	events   sse.Scanner
	line     []byte // a line that has not ended, and may be an id
	passing  bool   // the line is none
	out      []byte
}

// longestEventID is how long the line of an id may be. A longer one cannot be resumed from.
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

// frame takes the next bytes of lines, without the data in them. It holds back a line as
// long as it may be an id.
func (w *eventBinder) frame(p []byte) {
	for _, c := range p {
		ends := c == '\n' || c == '\r'
		if !ends && !w.passing {
			w.line = append(w.line, c)
			w.passing = !mayBeID(w.line) || len(w.line) > longestEventID
			if w.passing {
				w.out, w.line = append(w.out, w.line...), w.line[:0]
			}
			continue
		}
		if ends {
			w.out, w.line = append(w.out, w.bound()...), w.line[:0]
			w.passing = false
		}
		w.out = append(w.out, c)
	}
}

// byteOrderMark may stand before the first line.
var byteOrderMark = []byte("\ufeff")

// mayBeID reports whether a line may be the field id, as far as it goes.
func mayBeID(line []byte) bool {
	if len(line) < len(byteOrderMark) && bytes.HasPrefix(byteOrderMark, line) {
		return true
	}
	name, _, ended := bytes.Cut(bytes.TrimPrefix(line, byteOrderMark), []byte{':'})
	return string(name) == "id" || !ended && bytes.HasPrefix([]byte("id"), name)
}

// bound returns the line that is held back, with the id in it bound.
func (w *eventBinder) bound() []byte {
	name, value, _ := bytes.Cut(bytes.TrimPrefix(w.line, byteOrderMark), []byte{':'})
	id := bytes.TrimPrefix(value, []byte{' '})
	if string(name) != "id" || len(id) == 0 {
		return w.line
	}
	return append(w.line[:len(w.line)-len(id)], w.binding.bind(eventOfServer, string(id))...)
}

// Interface guard
var _ http.ResponseWriter = (*eventBinder)(nil)
