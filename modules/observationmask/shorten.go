package observationmask

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/focus"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mask"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// A Request is what a gateway knows of a request whose answer is masked.
type Request struct {
	About  mcp.Target   // what it asks for; who may use that may have again what is masked
	Goal   string       // what the client looks for in the answer; "" if it does not say
	Label  string       // of the client in metrics
	Report *mask.Report // gets what is masked; nil if it is not needed
}

// requestKey is where a context has a [Request].
type requestKey struct{}

// With returns r with what a gateway knows of it.
func With(r *http.Request, request *Request) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), requestKey{}, request))
}

// requestOf returns what is known of a request, which may be nothing.
func requestOf(r *http.Request) *Request {
	if request, ok := r.Context().Value(requestKey{}).(*Request); ok {
		return request
	}
	return &nothingKnown
}

// nothingKnown is of requests of which nothing is known.
var nothingKnown Request

// A shortener cuts the texts of a response by their lines, or as JSON.
type shortener struct {
	ctx     context.Context
	handler *Handler
	request *Request
	in, out atomic.Int64 // characters of what was cut to the goal; read by the log
	spent   time.Duration
}

// shortener returns what cuts the response to a request; nil if that has no goal and is not cut as
// JSON.
func (h *Handler) shortener(r *http.Request) *shortener {
	request := requestOf(r)
	if request.Goal == "" && !h.JSON {
		return nil
	}
	return &shortener{ctx: r.Context(), handler: h, request: request}
}

func (s *shortener) cutter(handle string, structured bool) *focus.Cutter {
	return &focus.Cutter{
		Goal: s.request.Goal, MaxChars: s.handler.policy.MaxChars, Handle: handle, Hint: s.handler.hint(), Bare: structured,
	}
}

// maxSpent is how long the texts of a response may take. Those that follow are cut to head and tail:
// thousands that are just too long would take half a minute. It is a variable only so that tests can
// make it short.
var maxSpent = 4 * time.Second

// Text implements [mask.Shortener].
func (s *shortener) Text(body []byte, handle string, structured bool) []byte {
	if s.spent > maxSpent {
		return nil
	}
	defer func(began time.Time) { s.spent += time.Since(began) }(time.Now())
	text, form := s.cutter(handle, structured).Cut(s.ctx, jsonspan.Text(body))
	if form == focus.Uncut {
		return nil
	}
	short := jsonspan.AppendBody(nil, text)
	s.count(jsonspan.Count(body), jsonspan.Count(short))
	return short
}

// Structured implements [mask.Shortener].
func (s *shortener) Structured(value []byte) []byte {
	short, ok := s.cutter("", true).Value(s.ctx, value)
	if !ok {
		return nil
	}
	s.count(jsonspan.Count(value), jsonspan.Count(short))
	return short
}

// Note implements [mask.Shortener].
func (s *shortener) Note(value []byte, handle string) string {
	return s.cutter(handle, true).Note(value)
}

// count counts what was cut to the goal.
func (s *shortener) count(in, out int) {
	if s.request.Goal == "" {
		return
	}
	s.in.Add(int64(in))
	s.out.Add(int64(out))
	labels := s.request.labels(s.handler.Server)
	focusedIn.WithLabelValues(labels...).Add(float64(in))
	focusedOut.WithLabelValues(labels...).Add(float64(out))
}

// labels returns the values of the labels of metrics by tool and client.
func (r *Request) labels(server string) []string {
	name := ""
	if r.About.Kind == mcp.Tool {
		name = tools.label(server, r.About.Name)
	}
	return []string{server, name, r.Label}
}

// toolLabels are the tools that metrics tell apart. A client can call tools by any name.
type toolLabels struct {
	mu    sync.Mutex
	known map[[2]string]bool
}

// maxToolLabels is how many tools metrics tell apart.
const maxToolLabels = 2_000

var tools = toolLabels{known: map[[2]string]bool{}}

// label returns the label of a tool.
func (t *toolLabels) label(server, tool string) string {
	tool = mcp.Shortened(tool)
	key := [2]string{server, tool}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.known[key] && len(t.known) >= maxToolLabels {
		return "other"
	}
	t.known[key] = true
	return tool
}

// Interface guard
var _ mask.Shortener = (*shortener)(nil)
