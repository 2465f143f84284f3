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

// A Request is what a gateway knows about a request whose response is masked.
type Request struct {
	About  mcp.Target   // target of the request; clients that may use it may recover the originals
	Goal   string       // what the client looks for in the response, or empty
	Label  string       // client label in metrics
	Report *mask.Report // receives what is masked; may be nil
}

// requestKey is the context key of a [Request].
type requestKey struct{}

// With returns r with a Request in its context.
func With(r *http.Request, request *Request) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), requestKey{}, request))
}

// requestOf returns the Request in the context of r, or an empty one.
func requestOf(r *http.Request) *Request {
	if request, ok := r.Context().Value(requestKey{}).(*Request); ok {
		return request
	}
	return &noRequest
}

var noRequest Request

// A shortener cuts the texts of a response to lines or JSON items, instead of to head and tail.
type shortener struct {
	ctx     context.Context
	handler *Handler
	request *Request
	in, out atomic.Int64 // characters before and after cutting to the goal; read by the log
	elapsed time.Duration
}

// shortener returns the shortener of a response, or nil if the request has no goal and texts are
// not cut as JSON.
func (h *Handler) shortener(r *http.Request) *shortener {
	request := requestOf(r)
	if request.Goal == "" && !h.JSON {
		return nil
	}
	return &shortener{ctx: r.Context(), handler: h, request: request}
}

func (s *shortener) cutter(handle string, structured bool) *focus.Cutter {
	return &focus.Cutter{
		Goal: s.request.Goal, MaxChars: s.handler.policy.MaxChars, Handle: handle, Hint: s.handler.hint(),
		Bare: structured,
	}
}

// maxShortening bounds the time spent on the texts of one response, because thousands of texts just
// over the limit would take half a minute. The remaining texts are cut to head and tail. It is a
// variable for tests.
var maxShortening = 4 * time.Second

// Text implements [mask.Shortener].
func (s *shortener) Text(body []byte, handle string, structured bool) []byte {
	if s.elapsed > maxShortening {
		return nil
	}
	defer func(began time.Time) { s.elapsed += time.Since(began) }(time.Now())
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

// count counts characters before and after cutting to the goal.
func (s *shortener) count(before, after int) {
	if s.request.Goal == "" {
		return
	}
	s.in.Add(int64(before))
	s.out.Add(int64(after))
	labels := s.request.labels(s.handler.Server)
	focusedIn.WithLabelValues(labels...).Add(float64(before))
	focusedOut.WithLabelValues(labels...).Add(float64(after))
}

// labels returns the label values of metrics by tool and client.
func (r *Request) labels(server string) []string {
	name := ""
	if r.About.Kind == mcp.Tool {
		name = tools.label(server, r.About.Name)
	}
	return []string{server, name, r.Label}
}

// toolLabels bounds the number of tool names in metrics, because a client can call tools by any
// name.
type toolLabels struct {
	mu    sync.Mutex
	known map[[2]string]bool
}

// maxToolLabels is how many tools have a label of their own.
const maxToolLabels = 2_000

var tools = toolLabels{known: map[[2]string]bool{}}

// label returns the label of a tool: its name, or "other" if there are too many names.
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
