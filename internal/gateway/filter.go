package gateway

import (
	"bytes"
	"errors"
	"net/http"
	"slices"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/screen"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolpin"
)

// Some of what servers say is looked at before it reaches anybody else: lists, which the
// client may see a part of only; all of it, if something is to be redacted or to be
// answered in the place of the client. It is held message by message. Everything else
// streams.

// maxScreened is how large a message may be that is looked at.
const maxScreened = 64 << 20

// filtered returns w as what is looked at is written to, or w itself.
func (x *exchange) filtered(w http.ResponseWriter, r *http.Request) (http.ResponseWriter, *screen.Writer) {
	modern := r.Header.Get(mcp.VersionHeader) == mcp.Stateless || x.message.Has(jsonrpc.ProtocolVersion) || x.kind == RPC // which need not say so
	answers := len(x.server.Answers) > 0
	look := looking{
		lists:   x.showsLists(r, modern),
		updates: x.caller.policy().RestrictsResources(x.server.Name),
		values:  x.showsValues(r),
		answers: answers,
		notices: x.caller.identity != "" && (r.Method == http.MethodGet || x.message.Is(jsonrpc.Method, mcp.MethodListen)),
	}
	// A server of the modern era asks by results.
	whole := look.lists || look.values || x.caller.redactor() != nil || answers && modern
	if !whole && !look.updates && !look.answers && !look.notices {
		return w, nil
	}
	r.Header.Del("Accept-Encoding")
	var s *screen.Writer
	s = screen.NewWriter(w, maxScreened, func(message []byte) ([]byte, error) {
		if r.Method == http.MethodGet && s.Named(isEndpoint) && x.noteEndpoint(message) {
			return message, nil // which is not what the client gets
		}
		// Some servers begin with this, and some clients ignore it.
		message, err := x.screen(r, unmarked(message), look)
		if err != nil && x.verdict == nil {
			x.verdict = jsonrpc.InvalidResponse(x.server.Name)
		}
		return message, err
	})
	s.EventsOnly = !whole
	if redactor := x.caller.redactor(); redactor != nil {
		s.Line = func(line []byte) []byte {
			line, n := redactor.Line(line)
			x.countRedactions(n)
			return line
		}
	}
	return s, s
}

// unmarked returns a message without the byte order marks that it begins with.
func unmarked(message []byte) []byte {
	const mark = "\ufeff"
	text := bytes.TrimLeft(message, mark+" \t\r\n")
	if !bytes.Contains(message[:len(message)-len(text)], []byte(mark)) {
		return message
	}
	return text
}

// looking is what messages of a server are looked at for, beside what is redacted.
type looking struct {
	lists   bool // that a client is not shown all of, or not as they are
	updates bool // of resources that the client may not know
	values  bool // that complete the URIs of such resources
	answers bool // what is not for the client at all
	notices bool // of how such go on
}

// showsLists reports whether the answer may be one that a client is not shown all of, or
// not as it is.
func (x *exchange) showsLists(r *http.Request, modern bool) bool {
	if r.Method == http.MethodGet { // in which answers are resumed
		return x.kind == Single || x.kind == Aggregate && x.resumed
	}
	switch x.methodName() {
	case "tools/list", "prompts/list", "resources/list", "resources/templates/list", "tasks/list":
		return x.kind != Aggregate || !filtersAsItReads(&x.caller)
	case "initialize", "server/discover":
		return true
	case "resources/read":
		return modern && len(x.g.config.Clients) > 0 // it says who else may have it
	}
	return false
}

// filtersAsItReads reports whether the aggregate filters the lists for a client as it reads
// them. What is redacted is filtered before.
func filtersAsItReads(c *caller) bool { return c.redactor() == nil }

// showsValues reports whether the answer may have values that complete the URI of a
// resource that the client may not read.
func (x *exchange) showsValues(r *http.Request) bool {
	return x.caller.policy().RestrictsResources(x.server.Name) &&
		(r.Method == http.MethodGet || x.methodName() == "completion/complete" && x.message.Has(jsonrpc.RefURI))
}

// screen returns a message of the server as it goes on, nil if it does not.
func (x *exchange) screen(r *http.Request, message []byte, look looking) ([]byte, error) {
	var m jsonrpc.Message
	if looksLikeJSON(message) && m.ReadExact(message) != nil && (look.answers || look.updates || look.notices) {
		return x.leftOut(r, errUnreadable) // by us, but perhaps not by the client
	}
	if look.answers {
		if x.answered(r, &m) {
			return nil, nil
		}
		var err error
		if message, err = x.resolved(r, message); err != nil {
			return nil, err
		}
	}
	if look.updates && m.Is(jsonrpc.Method, mcp.MethodUpdated) &&
		!x.caller.allows(mcp.Target{Server: x.server.Name, Kind: mcp.Resource, Name: m.Text(jsonrpc.URI)}) {
		return nil, nil
	}
	if look.notices && x.isOfOthers(&m) {
		return nil, nil
	}
	if look.lists {
		var err error
		if message, err = x.visible(message); err != nil {
			return x.leftOut(r, err)
		}
		x.g.config.Observer.ToolsSeen(x.server.Name)
	}
	if look.values {
		var err error
		if message, err = x.completed(message); err != nil {
			return x.leftOut(r, err)
		}
	}
	redacted, n, err := x.caller.redactor().Message(message)
	if err != nil {
		return x.leftOut(r, err)
	}
	x.countRedactions(n)
	return redacted, nil
}

func (x *exchange) countRedactions(n int) {
	if n > 0 {
		x.g.config.Observer.Redacted(x.caller.label, n)
	}
}

// leftOut has a message not go on that cannot be looked at. On a stream that a client
// listens to there may be others; what a client waits for is answered with an error.
func (x *exchange) leftOut(r *http.Request, err error) ([]byte, error) {
	if r.Method != http.MethodGet {
		return nil, err
	}
	x.g.config.Logger.Warn("message of MCP server left out, because it can be read in several ways", zap.String("mcp_server", x.server.Name))
	return nil, nil
}

// looksLikeJSON reports whether a body is a message, or several, as far as one can see.
func looksLikeJSON(body []byte) bool {
	body = bytes.TrimSpace(body)
	return len(body) > 0 && (body[0] == '{' || body[0] == '[')
}

// A listFilter decides which items of the lists of a server a client sees.
type listFilter struct {
	g      *Gateway
	server *Server
	caller *caller
	hides  bool // some items may be hidden
	done   bool // by the exchange that the list came with
}

func (g *Gateway) listFilter(s *Server, c *caller) listFilter {
	return listFilter{g: g, server: s, caller: c, hides: g.config.PinTools || c.policy().Restricts(s.Name)}
}

// read reads the answer of a server that may have lists, without the characters that hide
// texts from people.
func (f *listFilter) read(l *mcp.List, answer []byte) *jsonrpc.Failure {
	failure := l.Read(toolpin.Clean(answer))
	if failure == nil && f.hides {
		failure = l.CheckDecisive()
	}
	return failure
}

// keeps reports whether the client sees an item.
func (f *listFilter) keeps(item *mcp.Item) bool {
	if f.done {
		return true
	}
	if item.Kind == mcp.Tasks {
		return f.g.hasTask(f.caller, f.server, item.Name)
	}
	if !toolpin.IsPlainName(item.Name) || f.hides && item.Name == "" {
		return false
	}
	if item.Kind == mcp.Tools && !f.isPinned(item) && f.g.config.PinTools {
		return false
	}
	return f.caller.sees(f.server.Name, item.Kind, item.Name)
}

// isPinned reports whether a tool is defined as when it was first seen. A change may be an
// attack: the client has agreed to another tool.
func (f *listFilter) isPinned(item *mcp.Item) bool {
	changed, news := f.server.Pins.See(item.Name, item.Raw)
	if news {
		f.g.config.Observer.ToolChanged(f.server.Name, mcp.Shortened(item.Name))
	}
	return !changed
}

// visible returns an answer with those items of lists that the client sees. What others may
// be given again becomes private where it can depend on the client.
func (x *exchange) visible(message []byte) ([]byte, error) {
	filter := x.g.listFilter(x.server, &x.caller)
	filter.hides = filter.hides || x.methodName() == "tasks/list" // those of others
	var l mcp.List
	failure := filter.read(&l, message)
	if failure != nil {
		return x.passable(l.Raw, nil, failure, filter.hides)
	}
	edits := l.Filter(filter.keeps)
	if len(x.g.config.Clients) > 0 && l.Has(jsonrpc.CacheScope) {
		edits = append(edits, l.Replace(jsonrpc.CacheScope, []byte(`"private"`)))
	}
	return x.passable(l.Raw, jsonspan.Spliced(l.Raw, edits...), nil, filter.hides)
}

// maxValues is how many values of a completion are looked at. The protocol allows 100.
const maxValues = 1000

// completed returns an answer with those values only that complete the URIs of resources
// which the client may read. If other arguments come first that are not known, it may have
// to be all of them. The template of an answer that is resumed is not known.
func (x *exchange) completed(message []byte) ([]byte, error) {
	policy, server := x.caller.policy(), x.server.Name
	completion, unknown := mcp.CompletionOf(x.message.Raw)
	left := maxValues
	filtered, err := mcp.FilterCompletion(message, func(value string) bool {
		if left--; unknown != nil || left < 0 {
			return false
		}
		uris, reached := completion.Expand(value)
		allowed := policy.Everything
		if reached {
			allowed = policy.Template
		}
		return !slices.ContainsFunc(uris, func(uri string) bool { return !allowed(server, uri) })
	})
	return x.passable(message, filtered, err, true)
}

// passable returns a message that was filtered. One that cannot be read is passed on only
// if there is nothing to hide, or if nobody else can read a message in it.
func (x *exchange) passable(message, filtered []byte, err error, hides bool) ([]byte, error) {
	switch {
	case hides && bytes.HasPrefix(bytes.TrimSpace(message), []byte("[")):
		return nil, errUnreadable // a batch
	case hides && x.arrival.status/100 == 2 && !looksLikeJSON(message) && x.message.IsRequest():
		return nil, errUnreadable // to us, but there are lenient readers
	case err == nil:
		return filtered, nil
	case hides && looksLikeJSON(message):
		return nil, err
	}
	return message, nil
}

var errUnreadable = errors.New("the message cannot be looked at")

// notFiltered says what is wrong with a message that cannot be looked at.
func (x *exchange) notFiltered(err error) {
	switch {
	case x.verdict != nil:
	case errors.Is(err, screen.ErrTooLarge):
		x.verdict = jsonrpc.ResponseTooLarge(x.server.Name)
	case errors.Is(err, screen.ErrEncoded):
		x.verdict = jsonrpc.InvalidResponse(x.server.Name)
	}
}
