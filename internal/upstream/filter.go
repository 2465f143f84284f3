package upstream

import (
	"bytes"
	"errors"
	"net/http"
	"slices"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
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
	x *Exchange
	r *http.Request // to the server

	// What messages are looked at for, besides what is redacted.
	lists   bool // lists that the client is not shown all of, or not as they are
	updates bool // changes of resources that the client may not know
	values  bool // values that complete the URIs of such resources
	answers bool // questions that the gateway answers
	notices bool // news of tasks of other clients
	states  bool // states of questions of the server

	visible ListFilter // of lists
}

// newFilter returns a filter that writes to w; nil if there is nothing to filter.
func newFilter(x *Exchange, w http.ResponseWriter, r *http.Request) *filter {
	modern := x.IsModern(r) || x.Kind == RPC // which need not say so
	sought := filter{
		x: x, r: r,
		updates: x.Caller.Policy().RestrictsResources(x.Server.Name),
		answers: len(x.Server.Answers) > 0,
		states:  x.SealState != nil,
		notices: x.Caller.Identity != "" && (r.Method == http.MethodGet || x.Message.Is(jsonrpc.Method, mcp.MethodListen)),
	}
	sought.lists, sought.values = sought.showsLists(modern), sought.showsValues()
	// A server of the modern era asks by results.
	whole := sought.lists || sought.values || sought.states || x.Caller.Redactor() != nil || sought.answers && modern
	if !whole && !sought.updates && !sought.answers && !sought.notices {
		return nil
	}
	f := new(sought)
	if f.lists {
		// Handlers on the way to the server may change the headers.
		f.visible = NewListFilter(x.Shared, x.Server, &x.Caller, r.Header)
		f.visible.hides = f.visible.hides || x.MethodName() == "tasks/list" // those of others
	}
	r.Header.Del("Accept-Encoding")
	f.Writer = screen.NewWriter(w, maxScreened, f.take)
	f.EventsOnly = !whole
	if redactor := x.Caller.Redactor(); redactor != nil {
		f.Line = func(line []byte) []byte {
			line, n := redactor.Line(line)
			f.countRedactions(n)
			return line
		}
	}
	return f
}

// IsModern reports whether a request says that it is of the modern era.
func (x *Exchange) IsModern(r *http.Request) bool {
	return httpbody.GetHeader(r.Header, mcp.VersionHeader) == mcp.Stateless || x.Message.Has(jsonrpc.ProtocolVersion)
}

// take returns a message as it goes on, nil if it does not.
func (f *filter) take(message []byte) ([]byte, error) {
	if f.r.Method == http.MethodGet && f.Named(isEndpoint) && f.x.noteEndpoint(message) {
		return message, nil // which is not what the client gets
	}
	// Some servers begin with byte order marks, and some clients ignore them.
	message, err := f.screen(unmarked(message))
	if err != nil && f.x.verdict == nil {
		f.x.verdict = jsonrpc.InvalidResponse(f.x.Server.Name)
	}
	return message, err
}

// showsLists reports whether the answer may be one that a client is not shown all of, or
// not as it is.
func (f *filter) showsLists(modern bool) bool {
	if f.x.answersAny(f.r.Method) {
		return f.x.Kind == Single || f.x.Kind == Aggregate && f.x.Resumed
	}
	switch f.x.MethodName() {
	case "tools/list", "prompts/list", "resources/list", "resources/templates/list", "tasks/list", "skills/list":
		return f.x.Kind != Aggregate || !FiltersAsItReads(&f.x.Caller)
	case "initialize", "server/discover", "resources/directory/read":
		return true
	case "resources/read", "skills/get":
		return modern && f.x.Shared.HasClients // it says who else may have it
	}
	return false
}

// FiltersAsItReads reports whether the aggregate filters the lists for a client as it reads
// them. Lists for clients with a redactor are filtered by the exchange, before they are redacted.
func FiltersAsItReads(c *access.Caller) bool { return c.Redactor() == nil }

// showsValues reports whether the answer may have values that complete the URI of a
// resource that the client may not read.
func (f *filter) showsValues() bool {
	return f.x.Caller.Policy().RestrictsResources(f.x.Server.Name) &&
		(f.x.answersAny(f.r.Method) || f.x.MethodName() == "completion/complete" && f.x.Message.Has(jsonrpc.RefURI))
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
		!f.x.Caller.Allows(mcp.Target{Server: f.x.Server.Name, Kind: mcp.Resource, Name: m.Text(jsonrpc.URI)}) {
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
		f.x.Shared.Observer.ToolsSeen(f.x.Server.Name)
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
	redacted, n, err := f.x.Caller.Redactor().Message(message)
	if err != nil {
		return f.leftOut(err)
	}
	f.countRedactions(n)
	return redacted, nil
}

func (f *filter) countRedactions(n int) {
	if n > 0 {
		f.x.Shared.Observer.Redacted(f.x.Caller.Label, n)
	}
}

// leftOut has a message not go on that cannot be looked at. On a stream that a client
// listens to there may be others; what a client waits for is answered with an error.
func (f *filter) leftOut(err error) ([]byte, error) {
	if !f.x.answersAny(f.r.Method) {
		return nil, err
	}
	f.x.Shared.Logger.Warn("message of MCP server left out, because it can be read in several ways",
		zap.String("mcp_server", f.x.Server.Name))
	return nil, nil
}

// A ListFilter decides which items of the lists of a server a client sees.
type ListFilter struct {
	shared *Shared
	server *Server
	Caller *access.Caller
	hides  bool // some items may be hidden
	Done   bool // by the exchange that the list came with

	notes *ToolNotes // where annotations are remembered; nil if no rule is about them
}

// NewListFilter returns a filter of a list that is asked for with these headers.
func NewListFilter(shared *Shared, s *Server, c *access.Caller, header http.Header) ListFilter {
	f := ListFilter{shared: shared, server: s, Caller: c}
	f.hides = shared.PinTools || c.Policy().Restricts(s.Name) || s.Overrides != nil
	if c.Policy().UsesAnnotations() {
		f.notes = shared.ToolNotes(s, c, header)
	}
	return f
}

// Read reads the answer of a server that may have lists, without the characters that hide
// texts from people.
func (f *ListFilter) Read(l *mcp.List, answer []byte) *jsonrpc.Failure {
	failure := l.Read(toolpin.Clean(answer))
	if failure == nil && f.hides {
		failure = l.CheckDecisive()
	}
	return failure
}

// keeps reports whether the client sees an item.
func (f *ListFilter) keeps(item *mcp.Item) bool { return f.Caller.IsShown(f.Decide(item)) }

// Decide decides whether the client sees an item, as a call of it would be decided on.
func (f *ListFilter) Decide(item *mcp.Item) acl.Decision {
	switch {
	case f.Done, item.Kind == mcp.Tasks && f.shared.Tasks.Has(f.Caller, f.server, item.Name):
		return acl.Decision{Action: acl.Allow}
	case item.Kind == mcp.Tasks:
		return acl.Decision{}
	case !toolpin.IsPlainName(item.Name):
		return access.NotPlain
	case f.hides && item.Name == "":
		return acl.Because("it has no name", acl.Deny)
	case item.Kind != mcp.Tools:
		return f.Caller.Listed(f.server.Name, item.Kind, item.Name)
	}
	withheld, hidden := !f.isPinned(item) && f.shared.PinTools, f.isHidden(item.Name)
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
func (f *ListFilter) decideTool(item *mcp.Item) acl.Decision {
	tool := f.Caller.NewTool(f.server.Name, item.Name)
	if f.notes != nil {
		tool.Annotations = f.server.Overrides.Annotations(item.Name, item.Raw)
		if item.Name != everyTool {
			f.notes.put(item.Name, toolNote{annotations: tool.Annotations, changes: f.notes.since})
		}
	}
	return f.Caller.Policy().Tool(&tool)
}

// isPinned reports whether a tool is defined as when it was first seen. A change may be an
// attack: the client has agreed to another tool.
func (f *ListFilter) isPinned(item *mcp.Item) bool {
	changed, news := f.server.Pins.See(item.Name, item.Raw)
	if news {
		f.shared.Observer.ToolChanged(f.server.Name, mcp.Shortened(item.Name))
	}
	return !changed
}

// filtered returns an answer with those items of lists that the client sees. What others may
// be given again becomes private where it can depend on the client.
func (f *filter) filtered(message []byte) ([]byte, error) {
	var l mcp.List
	failure := f.visible.Read(&l, message)
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
	if f.x.Shared.HasClients && l.Has(jsonrpc.CacheScope) {
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
	policy, server := f.x.Caller.Policy(), f.x.Server.Name
	completion, unknown := mcp.CompletionOf(f.x.Message.Raw)
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
	case hides && f.x.arrival.status/100 == 2 && !looksLikeJSON(message) && f.x.Message.IsRequest():
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
		f.x.verdict = jsonrpc.ResponseTooLarge(f.x.Server.Name)
	case errors.Is(err, screen.ErrEncoded):
		f.x.verdict = jsonrpc.InvalidResponse(f.x.Server.Name)
	}
}

// isOfOthers reports whether a server says how a task goes on that is not the client's.
func (f *filter) isOfOthers(m *jsonrpc.Message) bool {
	switch m.Text(jsonrpc.Method) {
	case mcp.MethodTask, "notifications/tasks/status":
		return !f.x.Shared.Tasks.Has(&f.x.Caller, f.x.Server, m.Text(jsonrpc.TaskID))
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

// showOverride returns the edits of a list for a client at one server that show a tool as clients see it.
func (f *filter) showOverride(item *mcp.Item) []jsonspan.Edit {
	o := f.x.Server.Overrides.Of(item.Name)
	if o == nil || item.Kind != mcp.Tools || f.x.Kind == Aggregate || !item.HasName() {
		return f.addFocus(item)
	}
	shown := o.Define(item)
	edits := append(f.addFocus(shown), shown.Rename(o.Name))
	return []jsonspan.Edit{{Start: item.Start, End: item.End(), New: jsonspan.Spliced(shown.Raw, edits...)}}
}

// isHidden reports whether clients do not see a tool because another one has its name, which is told once. It notes
// that the server has the tool.
func (f *ListFilter) isHidden(tool string) bool {
	by, news := f.server.Overrides.See(tool)
	if news {
		f.shared.Observer.ToolHidden(f.server.Name, mcp.Shortened(tool), by.Tool)
	}
	return by != nil
}

// addFocus returns the edit of a list for a client at Single that adds the argument to a tool, and
// notes that the tool has it.
func (f *filter) addFocus(item *mcp.Item) []jsonspan.Edit {
	s := f.x.Server
	if f.x.Kind != Single || item.Kind != mcp.Tools || !item.HasName() {
		return nil
	}
	e, ok := s.AddFocus(item)
	if !ok {
		if s.Focus != nil {
			f.x.Shared.State.focused.forget(s.focusedTool(item.Name))
		}
		return nil
	}
	if !f.x.Shared.State.focused.note(s.Source, s.focusedTool(item.Name), struct{}{}) {
		return nil
	}
	return []jsonspan.Edit{e.Moved(item.Start)}
}

// withSealedState returns an answer of a server that asks for input with the state that the client gets.
// The client takes no other answer for one.
func (x *Exchange) withSealedState(answer []byte) []byte {
	var m jsonrpc.Message
	if m.Read(answer) != nil {
		return answer
	}
	asks, is, err := mcp.ReadInput(&m)
	if !is || err != nil {
		return answer
	}
	result := m.Literal(jsonrpc.Result)
	if edit, ok := jsonspan.Remove(result, "requestState"); ok {
		result = jsonspan.Spliced(result, edit)
	}
	state := slices.Concat([]byte(`"requestState":`), jsonrpc.Quote(x.SealState(asks.State)))
	return jsonspan.Spliced(m.Raw, m.Replace(jsonrpc.Result, jsonspan.Spliced(result, jsonspan.Insert(result, state))))
}
