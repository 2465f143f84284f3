package upstream

import (
	"bytes"
	"errors"
	"net/http"
	"slices"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/screen"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolpin"
)

// A filter changes messages of a server before they reach the client: it removes list items that
// the client may not see, redacts, and answers server requests. It buffers each message that it
// reads. Everything else streams.
type filter struct {
	*screen.Writer
	x *Exchange
	r *http.Request // to the server

	// Parts of messages that the filter reads, in addition to redaction.
	lists       bool // lists of which the client sees only a part, or a changed form
	updates     bool // updates of resources that the client may not read
	completions bool // completion values of URIs of such resources
	answers     bool // server requests that the gateway answers
	taskNotices bool // notifications about tasks of other clients
	states      bool // states of server requests

	listFilter ListFilter // filter of lists
}

// newFilter returns a filter that writes to w; nil if the response needs none.
func newFilter(x *Exchange, w http.ResponseWriter, r *http.Request) *filter {
	modern := x.IsModern(r) || x.Kind == RPC // RPC requests need not name their version
	draft := filter{
		x: x, r: r,
		updates: x.Caller.Policy().RestrictsResources(x.Server.Name),
		answers: len(x.Server.Answers) > 0,
		states:  x.SealState != nil,
		taskNotices: x.Caller.Identity != "" &&
			(r.Method == http.MethodGet || x.Message.Is(jsonrpc.Method, mcp.MethodListen)),
	}
	draft.lists = draft.mayHaveLists(modern)
	draft.completions = draft.updates && draft.mayHaveCompletions()
	// A modern server sends its requests in results.
	whole := draft.lists || draft.completions || draft.states || x.Caller.Redactor() != nil || draft.answers && modern
	if !whole && !draft.updates && !draft.answers && !draft.taskNotices {
		return nil
	}
	f := new(draft)
	if f.lists {
		// The routes may change the headers, so the filter is made before they run.
		f.listFilter = NewListFilter(x.Shared, x.Server, &x.Caller, r.Header)
		f.listFilter.mayHide = f.listFilter.mayHide || x.MethodName() == "tasks/list" // hides tasks of other clients
	}
	r.Header.Del("Accept-Encoding")
	f.Writer = screen.NewWriter(w, maxFiltered, f.onMessage)
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

// onMessage returns a message as the client gets it; nil to drop it.
func (f *filter) onMessage(message []byte) ([]byte, error) {
	if f.r.Method == http.MethodGet && f.EventNamed(isEndpointEvent) && f.noteEndpoint(message) {
		return message, nil // a later step replaces it
	}
	// Some servers send a byte order mark first, and some clients ignore it.
	message, err := f.filterMessage(withoutByteOrderMark(message))
	if err != nil && f.x.failure == nil {
		f.x.failure = jsonrpc.InvalidResponse(f.x.Server.Name)
	}
	return message, err
}

// mayHaveLists reports whether the response may have a list that must be filtered or changed.
func (f *filter) mayHaveLists(modern bool) bool {
	if f.x.answersAnyRequest(f.r.Method) {
		return f.x.Kind == Single || f.x.Kind == Aggregate && f.x.Resumed
	}
	switch f.x.MethodName() {
	case "tools/list", "prompts/list", "resources/list", "resources/templates/list", "tasks/list", "skills/list":
		return f.x.Kind != Aggregate || !FiltersWhileReading(&f.x.Caller)
	case "initialize", "server/discover", "resources/directory/read":
		return true
	case "resources/read", "skills/get":
		return modern && f.x.Shared.HasClients // CacheScope may be public
	}
	return false
}

// FiltersWhileReading reports whether the aggregate filters lists for a client while it reads them.
// If the client has a redactor, the exchange filters them instead, before redaction.
func FiltersWhileReading(c *access.Caller) bool { return c.Redactor() == nil }

// mayHaveCompletions reports whether the response may have completion values for the URI of a
// resource.
func (f *filter) mayHaveCompletions() bool {
	return f.x.answersAnyRequest(f.r.Method) ||
		f.x.MethodName() == "completion/complete" && f.x.Message.Has(jsonrpc.RefURI)
}

// filterMessage returns a message of the server as the client gets it; nil to drop it.
func (f *filter) filterMessage(message []byte) ([]byte, error) {
	var m jsonrpc.Message // read only if its kind matters
	// The gateway parses each message at Aggregate; its exchanges only look for updates.
	read := f.answers || f.taskNotices || f.updates && (f.x.Kind != Aggregate || mayBeUpdate(message))
	if read && looksLikeJSON(message) && m.ReadExact(message) != nil {
		return f.drop(errUnreadable) // unreadable to the gateway, but perhaps not to the client
	}
	if f.answers {
		answers := answerer{f.x, f.r}
		if answers.handle(&m) {
			return nil, nil
		}
		var err error
		if message, err = answers.resolveInput(message); err != nil {
			return nil, err
		}
	}
	if f.updates && m.Is(jsonrpc.Method, mcp.MethodUpdated) &&
		!f.x.Caller.Allows(mcp.Target{Server: f.x.Server.Name, Kind: mcp.Resource, Name: m.Text(jsonrpc.URI)}) {
		return nil, nil
	}
	if f.taskNotices && f.isOtherClientsTask(&m) {
		return nil, nil
	}
	if f.lists {
		var err error
		if message, err = f.filterLists(message); err != nil {
			return f.drop(err)
		}
		f.x.Shared.Observer.ToolsSeen(f.x.Server.Name)
	}
	if f.completions {
		var err error
		if message, err = f.filterCompletion(message); err != nil {
			return f.drop(err)
		}
	}
	if f.states {
		message = f.sealState(message)
	}
	redacted, n, err := f.x.Caller.Redactor().Message(message)
	if err != nil {
		return f.drop(err)
	}
	f.countRedactions(n)
	return redacted, nil
}

// mayBeUpdate reports whether a message could be read as an update of a resource. Its method has
// that name in plain text, or with a slash or other characters escaped.
func mayBeUpdate(message []byte) bool {
	return bytes.Contains(message, []byte("resources/updated")) || bytes.Contains(message, []byte(`\/`)) ||
		bytes.Contains(message, []byte(`\u`))
}

func (f *filter) countRedactions(n int) {
	if n > 0 {
		f.x.Shared.Observer.Redacted(f.x.Caller.Label, n)
	}
}

// drop drops a message that cannot be read. On a stream that a client opened to listen, later
// messages still pass; a response that a client waits for becomes an error.
func (f *filter) drop(err error) ([]byte, error) {
	if !f.x.answersAnyRequest(f.r.Method) {
		return nil, err
	}
	f.x.Shared.Logger.Warn("ambiguous message from MCP server dropped", zap.String("mcp_server", f.x.Server.Name))
	return nil, nil
}

// A ListFilter decides which items of a server's lists a client sees.
type ListFilter struct {
	shared  *Shared
	server  *Server
	Caller  *access.Caller
	mayHide bool // some items may be hidden
	Done    bool // the exchange of the list has filtered it

	notes *ToolNotes      // cache of annotations; nil if no rule depends on them
	tasks map[string]bool // tasks of the list that the client may use
	tools map[string]bool // tools of the list that were decided
}

// NewListFilter returns a filter for a list requested with these headers.
func NewListFilter(shared *Shared, s *Server, c *access.Caller, header http.Header) ListFilter {
	f := ListFilter{shared: shared, server: s, Caller: c}
	f.mayHide = shared.PinTools || c.Policy().Restricts(s.Name) || s.Overrides != nil
	if c.Policy().UsesAnnotations() {
		f.notes = shared.ToolNotes(s, c, header)
	}
	return f
}

// Read reads a response that may have lists. It removes characters that hide texts from people.
func (f *ListFilter) Read(l *mcp.List, answer []byte) *jsonrpc.Failure {
	failure := l.Read(toolpin.Clean(answer))
	if failure == nil && f.mayHide {
		failure = l.CheckDecisive()
	}
	if failure == nil && l.HasList(mcp.Tasks) && !f.Done {
		f.findTasks(l)
	}
	f.tools = nil
	return failure
}

// findTasks finds out which tasks of a list the client may use.
func (f *ListFilter) findTasks(l *mcp.List) {
	var ids []string
	for _, item := range l.Items {
		if item.Kind == mcp.Tasks {
			ids = append(ids, item.Name)
		}
	}
	f.tasks = make(map[string]bool, len(ids))
	for i, has := range f.shared.Tasks.HasEach(f.Caller, f.server, ids) {
		f.tasks[ids[i]] = has
	}
}

// shows reports whether the client sees an item.
func (f *ListFilter) shows(item *mcp.Item) bool { return f.Caller.IsShown(f.Decide(item)) }

// Decide decides whether the client sees an item. A call of the item gets the same decision.
func (f *ListFilter) Decide(item *mcp.Item) acl.Decision {
	switch {
	case f.Done, item.Kind == mcp.Tasks && f.tasks[item.Name]:
		return acl.Decision{Action: acl.Allow}
	case item.Kind == mcp.Tasks:
		return acl.Decision{}
	case !toolpin.IsPlainName(item.Name):
		return access.NotPlain
	case f.mayHide && item.Name == "":
		return acl.Because("it has no name", acl.Deny)
	case item.Kind != mcp.Tools:
		return f.Caller.DecideListed(f.server.Name, item.Kind, item.Name)
	case f.isRepeated(item):
		return ListedTwice
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

// ListedTwice is the decision on an item whose name an earlier one of the list has.
var ListedTwice = acl.Because("the server lists it more than once", acl.Deny)

// isRepeated reports whether an earlier tool of the list has the same name. Clients see the first
// one, so only that is compared with the pin.
func (f *ListFilter) isRepeated(tool *mcp.Item) bool {
	if !tool.HasName() {
		return false
	}
	if f.tools == nil {
		f.tools = map[string]bool{}
	}
	repeated := f.tools[tool.Name]
	f.tools[tool.Name] = true
	return repeated
}

// decideTool decides on a tool, and caches its annotations.
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

// isPinned reports whether the definition of a tool equals its pin. A change may be an attack: the
// client approved another definition.
func (f *ListFilter) isPinned(item *mcp.Item) bool {
	changed, isNew := f.server.Pins.Observe(item.Name, item.Raw)
	if isNew {
		f.shared.Observer.ToolChanged(f.server.Name, mcp.Shortened(item.Name))
	}
	return !changed
}

// filterLists returns a response with the list items that the client sees. Its cache scope becomes
// private if it can depend on the client.
func (f *filter) filterLists(message []byte) ([]byte, error) {
	var l mcp.List
	failure := f.listFilter.Read(&l, message)
	if failure != nil {
		return f.checkFiltered(l.Raw, nil, failure, f.listFilter.mayHide)
	}
	var added []jsonspan.Edit
	edits := l.Filter(func(item *mcp.Item) bool {
		if !f.listFilter.shows(item) {
			return false
		}
		added = append(added, f.showOverride(item)...)
		return true
	})
	edits = append(edits, added...)
	if f.x.Shared.HasClients && l.Has(jsonrpc.CacheScope) {
		edits = append(edits, l.Replace(jsonrpc.CacheScope, []byte(`"private"`)))
	}
	return f.checkFiltered(l.Raw, jsonspan.Spliced(l.Raw, edits...), nil, f.listFilter.mayHide)
}

// maxValues is how many values of a completion are read. MCP allows 100.
const maxValues = 1000

// filterCompletion returns a response with only those completion values that lead to resources the
// client may read. If the values of other arguments are unknown, the client must be allowed to read
// all resources they could lead to. The template is unknown if the client resumes a response; then
// no value passes.
func (f *filter) filterCompletion(message []byte) ([]byte, error) {
	policy, server := f.x.Caller.Policy(), f.x.Server.Name
	completion, unknown := mcp.CompletionOf(f.x.Message.Raw)
	left := maxValues
	filtered, err := mcp.FilterCompletion(message, func(value string) bool {
		left--
		if unknown != nil || left < 0 {
			return false
		}
		uris, reached := completion.Expand(value)
		return !slices.ContainsFunc(uris, func(uri string) bool {
			if reached {
				return policy.Template(server, uri).Action != acl.Allow
			}
			return !policy.AllowsAllURIs(server, uri)
		})
	})
	return f.checkFiltered(message, filtered, err, true)
}

// checkFiltered returns a filtered message. A message that cannot be read passes only if the client
// may see everything, or if no client could find a message in it.
func (f *filter) checkFiltered(message, filtered []byte, err error, mayHide bool) ([]byte, error) {
	switch {
	case mayHide && bytes.HasPrefix(bytes.TrimSpace(message), []byte("[")):
		return nil, errUnreadable // a batch
	case mayHide && f.x.receiver.status/100 == 2 && !looksLikeJSON(message) && f.x.Message.IsRequest():
		return nil, errUnreadable // lenient clients may read it
	case err == nil:
		return filtered, nil
	case mayHide && looksLikeJSON(message):
		return nil, err
	}
	return message, nil
}

// noteError records the failure for a message that the filter could not read.
func (f *filter) noteError() {
	switch err := f.Err(); {
	case f.x.failure != nil:
	case errors.Is(err, screen.ErrTooLarge):
		f.x.failure = jsonrpc.ResponseTooLarge(f.x.Server.Name)
	case errors.Is(err, screen.ErrEncoded):
		f.x.failure = jsonrpc.InvalidResponse(f.x.Server.Name)
	}
}

// isOtherClientsTask reports whether a message is about a task of another client.
func (f *filter) isOtherClientsTask(m *jsonrpc.Message) bool {
	switch m.Text(jsonrpc.Method) {
	case mcp.MethodTask, "notifications/tasks/status":
		return !f.x.Shared.Tasks.Has(&f.x.Caller, f.x.Server, m.Text(jsonrpc.TaskID))
	}
	return false
}

// withoutByteOrderMark returns a message without leading byte order marks.
func withoutByteOrderMark(message []byte) []byte {
	const mark = "\ufeff"
	text := bytes.TrimLeft(message, mark+" \t\r\n")
	if !bytes.Contains(message[:len(message)-len(text)], []byte(mark)) {
		return message
	}
	return text
}

// looksLikeJSON reports whether a body starts like a JSON object or array.
func looksLikeJSON(body []byte) bool {
	body = bytes.TrimSpace(body)
	return len(body) > 0 && (body[0] == '{' || body[0] == '[')
}

var errUnreadable = errors.New("message cannot be parsed")

// maxFiltered is the maximum size of a filtered message, in bytes.
const maxFiltered = 64 << 20

// showOverride returns the edits that apply an override to a tool in a list, for a client at Single
// or RPC.
func (f *filter) showOverride(item *mcp.Item) []jsonspan.Edit {
	o := f.x.Server.Overrides.Of(item.Name)
	if o == nil || item.Kind != mcp.Tools || f.x.Kind == Aggregate || !item.HasName() {
		return f.addFocus(item)
	}
	shown := o.Define(item)
	edits := append(f.addFocus(shown), shown.Rename(o.Name))
	return []jsonspan.Edit{{Start: item.Start, End: item.End(), New: jsonspan.Spliced(shown.Raw, edits...)}}
}

// isHidden reports whether a tool is hidden because an override gives its name to another tool, and
// reports that once to the Observer. It records that the server has the tool.
func (f *ListFilter) isHidden(tool string) bool {
	by, isNew := f.server.Overrides.NoteListed(tool)
	if isNew {
		f.shared.Observer.ToolHidden(f.server.Name, mcp.Shortened(tool), by.Tool)
	}
	return by != nil
}

// addFocus returns the edit that adds the focus argument to a tool in a list, for a client at
// Single. It records that the tool has the argument.
func (f *filter) addFocus(item *mcp.Item) []jsonspan.Edit {
	s := f.x.Server
	if f.x.Kind != Single || item.Kind != mcp.Tools || !item.HasName() {
		return nil
	}
	e, ok := s.AddFocus(item)
	if !ok {
		if s.Focus != nil {
			f.x.Shared.Retained.focused.remove(s.focusedTool(item.Name))
		}
		return nil
	}
	if !f.x.Shared.Retained.focused.store(s.Source, s.focusedTool(item.Name), struct{}{}) {
		return nil
	}
	return []jsonspan.Edit{e.Moved(item.Start)}
}

// sealState replaces the state in a result that asks for input. Clients accept no other state.
func (f *filter) sealState(answer []byte) []byte {
	var m jsonrpc.Message
	if m.Read(answer) != nil {
		return answer
	}
	input, ok, err := mcp.ReadInput(&m)
	if !ok || err != nil {
		return answer
	}
	result := m.Literal(jsonrpc.Result)
	if edit, ok := jsonspan.Remove(result, "requestState"); ok {
		result = jsonspan.Spliced(result, edit)
	}
	state := slices.Concat([]byte(`"requestState":`), jsonrpc.Quote(f.x.SealState(input.State)))
	return jsonspan.Spliced(m.Raw, m.Replace(jsonrpc.Result, jsonspan.Spliced(result, jsonspan.Insert(result, state))))
}
