package gateway

import (
	"bytes"
	"errors"
	"net/http"
	"slices"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/screen"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolpin"
)

// A filter looks at messages of a server before they go on to the client: at lists that the
// client may see only a part of; at all messages, if something is to be redacted, or to be
// answered in place of the client. It holds back each message that it looks at. Everything
// else streams.
type filter struct {
	*screen.Writer
	x *exchange
	r *http.Request // to the server

	// What messages are looked at for, besides what is redacted.
	lists   bool // lists that the client is not shown all of, or not as they are
	updates bool // changes of resources that the client may not know
	values  bool // values that complete the URIs of such resources
	answers bool // questions that the gateway answers
	notices bool // news of tasks of other clients
	states  bool // states of questions of the server

	visible listFilter // of lists
}

// newFilter returns a filter that writes to w; nil if there is nothing to filter.
func newFilter(x *exchange, w http.ResponseWriter, r *http.Request) *filter {
	modern := x.isModern(r) || x.kind == RPC // which need not say so
	sought := filter{
		x: x, r: r,
		updates: x.caller.policy().RestrictsResources(x.server.Name),
		answers: len(x.server.Answers) > 0,
		states:  x.sealState != nil,
		notices: x.caller.identity != "" && (r.Method == http.MethodGet || x.message.Is(jsonrpc.Method, mcp.MethodListen)),
	}
	sought.lists, sought.values = sought.showsLists(modern), sought.showsValues()
	// A server of the modern era asks by results.
	whole := sought.lists || sought.values || sought.states || x.caller.redactor() != nil || sought.answers && modern
	if !whole && !sought.updates && !sought.answers && !sought.notices {
		return nil
	}
	f := new(sought)
	if f.lists {
		// Handlers on the way to the server may change the headers.
		f.visible = newListFilter(x.g, x.server, &x.caller, r.Header)
		f.visible.hides = f.visible.hides || x.methodName() == "tasks/list" // those of others
	}
	r.Header.Del("Accept-Encoding")
	f.Writer = screen.NewWriter(w, maxScreened, f.take)
	f.EventsOnly = !whole
	if redactor := x.caller.redactor(); redactor != nil {
		f.Line = func(line []byte) []byte {
			line, n := redactor.Line(line)
			f.countRedactions(n)
			return line
		}
	}
	return f
}

// isModern reports whether a request says that it is of the modern era.
func (x *exchange) isModern(r *http.Request) bool {
	return httpbody.GetHeader(r.Header, mcp.VersionHeader) == mcp.Stateless || x.message.Has(jsonrpc.ProtocolVersion)
}

// take returns a message as it goes on, nil if it does not.
func (f *filter) take(message []byte) ([]byte, error) {
	if f.r.Method == http.MethodGet && f.Named(isEndpoint) && f.x.noteEndpoint(message) {
		return message, nil // which is not what the client gets
	}
	// Some servers begin with byte order marks, and some clients ignore them.
	message, err := f.screen(unmarked(message))
	if err != nil && f.x.verdict == nil {
		f.x.verdict = jsonrpc.InvalidResponse(f.x.server.Name)
	}
	return message, err
}

// showsLists reports whether the answer may be one that a client is not shown all of, or
// not as it is.
func (f *filter) showsLists(modern bool) bool {
	if f.x.answersAny(f.r.Method) {
		return f.x.kind == Single || f.x.kind == Aggregate && f.x.resumed
	}
	switch f.x.methodName() {
	case "tools/list", "prompts/list", "resources/list", "resources/templates/list", "tasks/list", "skills/list":
		return f.x.kind != Aggregate || !filtersAsItReads(&f.x.caller)
	case "initialize", "server/discover", "resources/directory/read":
		return true
	case "resources/read", "skills/get":
		return modern && len(f.x.g.config.Clients) > 0 // it says who else may have it
	}
	return false
}

// filtersAsItReads reports whether the aggregate filters the lists for a client as it reads
// them. What is redacted is filtered before.
func filtersAsItReads(c *caller) bool { return c.redactor() == nil }

// showsValues reports whether the answer may have values that complete the URI of a
// resource that the client may not read.
func (f *filter) showsValues() bool {
	return f.x.caller.policy().RestrictsResources(f.x.server.Name) &&
		(f.x.answersAny(f.r.Method) || f.x.methodName() == "completion/complete" && f.x.message.Has(jsonrpc.RefURI))
}

// screen returns a message of the server as it goes on, nil if it does not.
func (f *filter) screen(message []byte) ([]byte, error) {
	var m jsonrpc.Message // read only where its kind matters
	if (f.answers || f.updates || f.notices) && looksLikeJSON(message) && m.ReadExact(message) != nil {
		return f.leftOut(errUnreadable) // by us, but perhaps not by the client
	}
	if f.answers {
		answers := answerer{f.x, f.r}
		if answers.answered(&m) {
			return nil, nil
		}
		var err error
		if message, err = answers.resolved(message); err != nil {
			return nil, err
		}
	}
	if f.updates && m.Is(jsonrpc.Method, mcp.MethodUpdated) &&
		!f.x.caller.allows(mcp.Target{Server: f.x.server.Name, Kind: mcp.Resource, Name: m.Text(jsonrpc.URI)}) {
		return nil, nil
	}
	if f.notices && f.isOfOthers(&m) {
		return nil, nil
	}
	if f.lists {
		var err error
		if message, err = f.filtered(message); err != nil {
			return f.leftOut(err)
		}
		f.x.g.config.Observer.ToolsSeen(f.x.server.Name)
	}
	if f.values {
		var err error
		if message, err = f.completed(message); err != nil {
			return f.leftOut(err)
		}
	}
	if f.states {
		message = f.x.withSealedState(message)
	}
	redacted, n, err := f.x.caller.redactor().Message(message)
	if err != nil {
		return f.leftOut(err)
	}
	f.countRedactions(n)
	return redacted, nil
}

func (f *filter) countRedactions(n int) {
	if n > 0 {
		f.x.g.config.Observer.Redacted(f.x.caller.label, n)
	}
}

// leftOut has a message not go on that cannot be looked at. On a stream that a client
// listens to there may be others; what a client waits for is answered with an error.
func (f *filter) leftOut(err error) ([]byte, error) {
	if !f.x.answersAny(f.r.Method) {
		return nil, err
	}
	f.x.g.config.Logger.Warn("message of MCP server left out, because it can be read in several ways", zap.String("mcp_server", f.x.server.Name))
	return nil, nil
}

// A listFilter decides which items of the lists of a server a client sees.
type listFilter struct {
	g      *Gateway
	server *Server
	caller *caller
	hides  bool // some items may be hidden
	done   bool // by the exchange that the list came with

	notes   *toolNotes // where annotations are remembered; nil if no rule is about them
	changes uint64     // the last of the server's tools before it was asked
}

// newListFilter returns a filter of a list that is asked for with these headers.
func newListFilter(g *Gateway, s *Server, c *caller, header http.Header) listFilter {
	f := listFilter{g: g, server: s, caller: c, changes: s.toolChanges.Load()}
	f.hides = g.config.PinTools || c.policy().Restricts(s.Name) || s.Overrides != nil
	if c.policy().UsesAnnotations() {
		f.notes = g.toolNotes(s, c, header)
	}
	return f
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
func (f *listFilter) keeps(item *mcp.Item) bool { return f.caller.isShown(f.decide(item)) }

// decide decides whether the client sees an item, as a call of it would be decided on.
func (f *listFilter) decide(item *mcp.Item) acl.Decision {
	switch {
	case f.done, item.Kind == mcp.Tasks && f.g.taskOwners.has(f.caller, f.server, item.Name):
		return acl.Decision{Action: acl.Allow}
	case item.Kind == mcp.Tasks:
		return acl.Decision{}
	case !toolpin.IsPlainName(item.Name):
		return notPlain
	case f.hides && item.Name == "":
		return acl.Because("it has no name", acl.Deny)
	case item.Kind != mcp.Tools:
		return f.caller.listed(f.server.Name, item.Kind, item.Name)
	}
	withheld, hidden := !f.isPinned(item) && f.g.config.PinTools, f.isHidden(item.Name)
	decision := f.decideTool(item)
	if withheld && decision.Action != acl.Deny {
		return acl.Because("its definition has changed (pin_tools)", acl.Deny)
	}
	if decision.Action != acl.Deny && hidden {
		return acl.Because("another tool is renamed to its name", acl.Deny)
	}
	return decision
}

// decideTool decides on a tool, and remembers its annotations.
func (f *listFilter) decideTool(item *mcp.Item) acl.Decision {
	tool := f.caller.newTool(f.server.Name, item.Name)
	if f.notes != nil {
		tool.Annotations = f.server.annotations(item.Name, item.Raw)
		if item.Name != everyTool {
			f.notes.put(item.Name, toolNote{annotations: tool.Annotations, changes: f.changes})
		}
	}
	return f.caller.policy().Tool(&tool)
}

// notPlain is the decision on a name that a person does not see all of.
var notPlain = acl.Because("its name has hidden characters", acl.Deny)

// isPinned reports whether a tool is defined as when it was first seen. A change may be an
// attack: the client has agreed to another tool.
func (f *listFilter) isPinned(item *mcp.Item) bool {
	changed, news := f.server.Pins.See(item.Name, item.Raw)
	if news {
		f.g.config.Observer.ToolChanged(f.server.Name, mcp.Shortened(item.Name))
	}
	return !changed
}

// filtered returns an answer with those items of lists that the client sees. What others may
// be given again becomes private where it can depend on the client.
func (f *filter) filtered(message []byte) ([]byte, error) {
	var l mcp.List
	failure := f.visible.read(&l, message)
	if failure != nil {
		return f.passable(l.Raw, nil, failure, f.visible.hides)
	}
	var added []jsonspan.Edit
	edits := l.Filter(func(item *mcp.Item) bool {
		if !f.visible.keeps(item) {
			return false
		}
		added = append(added, f.showOverride(item)...)
		return true
	})
	edits = append(edits, added...)
	if len(f.x.g.config.Clients) > 0 && l.Has(jsonrpc.CacheScope) {
		edits = append(edits, l.Replace(jsonrpc.CacheScope, []byte(`"private"`)))
	}
	return f.passable(l.Raw, jsonspan.Spliced(l.Raw, edits...), nil, f.visible.hides)
}

// maxValues is how many values of a completion are looked at. The protocol allows 100.
const maxValues = 1000

// completed returns an answer with those values only that complete the URIs of resources
// which the client may read. If other arguments come first that are not known, it may have
// to be all of them. The template of an answer that a client resumes is not known.
func (f *filter) completed(message []byte) ([]byte, error) {
	policy, server := f.x.caller.policy(), f.x.server.Name
	completion, unknown := mcp.CompletionOf(f.x.message.Raw)
	left := maxValues
	filtered, err := mcp.FilterCompletion(message, func(value string) bool {
		if left--; unknown != nil || left < 0 {
			return false
		}
		uris, reached := completion.Expand(value)
		return !slices.ContainsFunc(uris, func(uri string) bool {
			if reached {
				return policy.Template(server, uri).Action != acl.Allow
			}
			return !policy.Everything(server, uri)
		})
	})
	return f.passable(message, filtered, err, true)
}

// passable returns a message that was filtered. One that cannot be read is passed on only
// if there is nothing to hide, or if no reader finds a message in it.
func (f *filter) passable(message, filtered []byte, err error, hides bool) ([]byte, error) {
	switch {
	case hides && bytes.HasPrefix(bytes.TrimSpace(message), []byte("[")):
		return nil, errUnreadable // a batch
	case hides && f.x.arrival.status/100 == 2 && !looksLikeJSON(message) && f.x.message.IsRequest():
		return nil, errUnreadable // to us, but there are lenient readers
	case err == nil:
		return filtered, nil
	case hides && looksLikeJSON(message):
		return nil, err
	}
	return message, nil
}

// notFiltered says what is wrong with a message that cannot be looked at.
func (f *filter) notFiltered() {
	switch err := f.Err(); {
	case f.x.verdict != nil:
	case errors.Is(err, screen.ErrTooLarge):
		f.x.verdict = jsonrpc.ResponseTooLarge(f.x.server.Name)
	case errors.Is(err, screen.ErrEncoded):
		f.x.verdict = jsonrpc.InvalidResponse(f.x.server.Name)
	}
}

// isOfOthers reports whether a server says how a task goes on that is not the client's.
func (f *filter) isOfOthers(m *jsonrpc.Message) bool {
	switch m.Text(jsonrpc.Method) {
	case mcp.MethodTask, "notifications/tasks/status":
		return !f.x.g.taskOwners.has(&f.x.caller, f.x.server, m.Text(jsonrpc.TaskID))
	}
	return false
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

// looksLikeJSON reports whether a body is a message, or several, as far as one can see.
func looksLikeJSON(body []byte) bool {
	body = bytes.TrimSpace(body)
	return len(body) > 0 && (body[0] == '{' || body[0] == '[')
}

var errUnreadable = errors.New("the message cannot be looked at")

// maxScreened is how large a message may be that is filtered.
const maxScreened = 64 << 20
