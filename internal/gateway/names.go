package gateway

import (
	"bytes"
	"slices"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/resourcetemplate"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// names translates between the names of items at their servers and the names that clients see.
type names struct {
	naming  mcp.Naming
	servers map[string]*upstream.Server // by name and alias
	only    *upstream.Server            // the single server, if its names are shown unchanged; else nil

	templates *resourcetemplate.Set // hosted templates
}

// areUnchanged reports whether there is a single server whose names are shown unchanged.
func (n *names) areUnchanged() bool { return n.only != nil }

// shown returns the name that clients see for an item of a server.
func (n *names) shown(server string, k mcp.ListKind, name string) string {
	if n.areUnchanged() {
		return name
	}
	switch k {
	case mcp.Resources:
		return mcp.ResourceURI(server, name)
	case mcp.Templates, mcp.Skills:
		// Clients build URIs from it: by expanding a template, or by resolving the relative path of
		// a file in a skill.
		return mcp.TemplateURI(server, name)
	case mcp.Tasks:
		return server + mcp.Separator + name
	}
	return n.naming.Join(server, name)
}

// resource returns the server of a resource and its URI there. shown is the URI that clients use:
// one with the name of the server, one of a hosted template, or such a template itself.
func (n *names) resource(shown string) (*upstream.Server, string) {
	if server, uri, err := mcp.ParseURI(shown); err == nil && !n.areUnchanged() {
		return n.servers[server], uri
	}
	t, original, ok := n.templates.Match(shown)
	if strings.Contains(shown, "{") {
		t, original, ok = n.templates.Find(shown)
	}
	if !ok {
		return nil, ""
	}
	return n.servers[t.Server], original // t.Server may be an alias
}

// task returns the server of a task and its id there. shown is the id that clients use.
func (n *names) task(shown string) (*upstream.Server, string) {
	if n.areUnchanged() {
		return n.only, shown
	}
	server, id, _ := strings.Cut(shown, mcp.Separator)
	return n.servers[server], id
}

var relatedPaths = jsonspan.CompilePaths("params."+relatedTask, "result."+relatedTask)

// relatedTaskEdits returns the edits that set the server's id of the related task in a message of a
// client.
func (n *names) relatedTaskEdits(message []byte, server string) []jsonspan.Edit {
	if n.areUnchanged() || !bytes.Contains(message, []byte("related-task")) {
		return nil
	}
	return renameAt(relatedPaths, message, func(_ int, id string) string {
		return strings.TrimPrefix(id, server+mcp.Separator) // ids of the client's own tasks have no such prefix
	})
}

// tool returns the server of a tool, nil if there is none, and the name without the server.
func (n *names) tool(shown string) (_ *upstream.Server, rest string) {
	if n.areUnchanged() {
		return n.only, strings.TrimPrefix(shown, n.only.Name+mcp.Separator)
	}
	server, rest, _ := n.split(shown)
	return n.servers[server], rest
}

// shownTool returns the canonical name of a tool that clients see. rest is the name without the
// server.
func (n *names) shownTool(s *upstream.Server, rest string) string {
	if n.areUnchanged() {
		return rest
	}
	return s.Name + n.naming.Separator + rest
}

// split splits the name of a tool or prompt into the server and its name there.
func (n *names) split(shown string) (server, name string, ok bool) {
	return n.naming.Split(shown, func(server string) bool { return n.servers[server] != nil })
}

// toolTarget returns the target of a tool for rules. shown is the name that clients see.
func (n *names) toolTarget(list *catalog.List, s *upstream.Server, shown string) mcp.Target {
	target := mcp.Target{Kind: mcp.Tool, Name: shown}
	if s == nil {
		return target
	}
	target.Server = s.Name
	if original, ok := list.Short[shown]; ok {
		target.Name = original
	} else if _, name, ok := n.naming.Split(shown, func(server string) bool { return server == s.Name }); ok {
		target.Name = name
	}
	target.Name = s.Overrides.ServerName(target.Name)
	return target
}

// hasURI reports whether a list of tools or resources has a resource with this URI.
func (n *names) hasURI(l *catalog.List, k mcp.ListKind, uri string) bool {
	if k == mcp.Tools {
		return l.HasUI(uri)
	}
	return slices.Contains(l.Names, n.shown(l.Server, mcp.Resources, uri))
}

// withoutProxyParam returns the edit that removes the proxy member, which is for the gateway only
// (A31).
func withoutProxyParam(m *jsonrpc.Message) jsonspan.Edit {
	e, _ := jsonspan.Remove(m.Literal(jsonrpc.Params), "proxy")
	return m.Within(jsonrpc.Params, e)
}

// messageForServer returns the message of the client as servers get it, with edits.
func (req *aggregateRequest) messageForServer(edits ...jsonspan.Edit) (jsonrpc.Message, *jsonrpc.Failure) {
	if req.Message.Has(jsonrpc.Proxy) {
		edits = append(edits, withoutProxyParam(&req.Message))
	}
	if len(edits) == 0 {
		return req.Message, nil
	}
	return req.Message.Edited(edits...)
}

// sharedUIs returns the UI resources that occur in the tool lists of several servers.
func (n *names) sharedUIs(all []*catalog.List) catalog.SharedUIs {
	if n.areUnchanged() || !slices.ContainsFunc(all, func(l *catalog.List) bool { return len(l.UIs) > 0 }) {
		return nil
	}
	return catalog.FindSharedUIs(all)
}

// A naming is a place in responses of servers that has a name or URI.
type naming struct {
	path string
	kind mcp.ListKind
	use  nameUse
}

// A nameUse is how a client uses a name.
type nameUse uint8

const (
	asLink    nameUse = iota // the client may request the item
	asRequest                // the client has requested the item, perhaps by an alias
	asUI                     // the client shows the item to a person
)

// relatedTask is the path of the task that a message belongs to.
const relatedTask = `_meta.io\.modelcontextprotocol/related-task.taskId`

var namings = []naming{
	{"result.contents.*.uri", mcp.Resources, asRequest},
	{"error.data.uri", mcp.Resources, asRequest},
	{"result.content.*.uri", mcp.Resources, asLink},
	{"result.content.*.resource.uri", mcp.Resources, asLink},
	{"result.messages.*.content.uri", mcp.Resources, asLink},
	{"result.messages.*.content.resource.uri", mcp.Resources, asLink},
	{"result.result.content.*.uri", mcp.Resources, asLink}, // result of a finished task
	{"result.result.content.*.resource.uri", mcp.Resources, asLink},
	{"result.resources.*.uri", mcp.Skills, asLink}, // a directory
	{"result." + mcp.UIMembers[0], mcp.Resources, asUI},
	{"result." + mcp.UIMembers[1], mcp.Resources, asUI},
	{"result." + mcp.UIMembers[2], mcp.Resources, asUI},
	{"result.skill.uri", mcp.Skills, asLink},
	{"result.skill.resources.*.uri", mcp.Skills, asLink},
	{"result.task.taskId", mcp.Tasks, asLink},
	{"result.taskId", mcp.Tasks, asLink},
	{"result." + relatedTask, mcp.Tasks, asLink},
}

// namingPaths returns the paths of namings, followed by others.
func namingPaths(others ...string) (paths []string) {
	for _, n := range namings {
		paths = append(paths, n.path)
	}
	return append(paths, others...)
}

// Paths of namings, for complete messages and for responses that are streamed.
var (
	namePaths  = jsonrpc.CompilePaths(namingPaths()...)
	largePaths = jsonspan.CompilePaths(namingPaths("id")...)
)

// A translator translates names between a server and its client.
type translator struct {
	g     *Gateway
	link  *link
	alias uriAlias // of the resource that the call requested
	raw   bool     // keep names in responses unchanged
}

func (l *link) translator(g *Gateway) translator { return translator{g: g, link: l} }

// A uriAlias is the URI by which a client requested a resource: the URI of a hosted template, or
// the server's own URI.
type uriAlias struct{ original, shown string }

// isSet reports whether the client uses another URI than the gateway's URI for the resource.
func (a uriAlias) isSet() bool {
	return a.shown != "" && !strings.HasPrefix(a.shown, "proxy://")
}

// rename returns the edits that replace names in a response, found at namePaths, by those that the
// client knows.
func (t translator) rename(raw []byte, found []jsonrpc.FoundString) (edits []jsonspan.Edit) {
	for _, f := range found {
		if shown := t.replacement(f.Path, raw[f.Value.Start:f.Value.End]); shown != nil {
			edits = append(edits, jsonspan.Edit{Start: f.Value.Start, End: f.Value.End, New: shown})
		}
	}
	return edits
}

// replacement returns the replacement of a name, nil if it stays. path is an index in namings.
func (t translator) replacement(path int, literal []byte) []byte {
	if t.raw {
		return nil
	}
	n := namings[path]
	isRequested := n.use == asRequest && t.alias.shown != "" &&
		jsonspan.TextIs(literal[1:len(literal)-1], t.alias.original)
	switch {
	case isRequested && t.alias.shown == t.alias.original:
		return nil
	case isRequested && t.alias.isSet():
		return jsonrpc.Quote(t.alias.shown)
	case t.g.names.areUnchanged():
		return nil
	}
	text := string(jsonspan.AppendText(nil, literal[1:len(literal)-1]))
	switch {
	case n.use == asUI && t.isUnambiguous(text):
		return nil
	case !isRequested && strings.HasPrefix(text, mcp.UIScheme):
		return jsonrpc.Quote(mcp.UIResourceURI(t.link.serverName, text)) // hosts check the ui scheme
	}
	return jsonrpc.Quote(t.g.names.shown(t.link.serverName, n.kind, text))
}

// isUnambiguous reports whether a URI identifies this server without its name.
func (t translator) isUnambiguous(uri string) bool {
	owners := ownerLookup{t.g, t.link.client}.known(uri)
	return len(owners) == 1 && owners[0].Name == t.link.serverName
}

// message returns a notification or request of a server as the client gets it: with the name of the
// server (A23, A26), and with ids that identify the server.
func (t translator) message(m *jsonrpc.Message) []byte {
	if t.g.names.areUnchanged() {
		if uri := m.Text(jsonrpc.URI); m.Is(jsonrpc.Method, mcp.MethodUpdated) && t.uri(uri) != uri {
			return jsonspan.Spliced(m.Raw, m.Replace(jsonrpc.URI, jsonrpc.Quote(t.uri(uri))))
		}
		return m.Raw
	}
	var edits []jsonspan.Edit
	replace := func(f jsonrpc.Field, literal []byte) {
		if m.Has(f) {
			edits = append(edits, m.Replace(f, literal))
		}
	}
	if m.IsRequest() {
		replace(jsonrpc.ID, t.id(m.Literal(jsonrpc.ID)))
		replace(jsonrpc.ProgressToken, t.id(m.Literal(jsonrpc.ProgressToken)))
	}
	switch {
	case m.Is(jsonrpc.Method, "notifications/cancelled"):
		replace(jsonrpc.RequestID, t.id(m.Literal(jsonrpc.RequestID)))
	case m.Is(jsonrpc.Method, mcp.MethodUpdated) && m.Kind(jsonrpc.URI) == jsonspan.String:
		replace(jsonrpc.URI, jsonrpc.Quote(t.uri(m.Text(jsonrpc.URI))))
	case m.Is(jsonrpc.Method, mcp.MethodTask), m.Is(jsonrpc.Method, "notifications/tasks/status"):
		if m.Kind(jsonrpc.TaskID) == jsonspan.String {
			replace(jsonrpc.TaskID, jsonrpc.Quote(t.g.names.shown(t.link.serverName, mcp.Tasks, m.Text(jsonrpc.TaskID))))
		}
	}
	if bytes.Contains(m.Raw, []byte("task")) {
		edits = append(edits, t.renameTasks(m.Raw)...)
	}
	return jsonspan.Spliced(m.Raw, append(edits, t.tag(m)...)...)
}

// noticePaths are the places in notifications and requests of servers that name related tasks, and
// resources in the results of tasks.
var noticePaths = jsonspan.CompilePaths("params."+relatedTask,
	"params.result.content.*.uri", "params.result.content.*.resource.uri")

// renameTasks returns the edits that replace the names at noticePaths by those that the client
// knows.
func (t translator) renameTasks(message []byte) []jsonspan.Edit {
	return renameAt(noticePaths, message, func(path int, name string) string {
		if path == 0 {
			return t.g.names.shown(t.link.serverName, mcp.Tasks, name)
		}
		return t.g.names.shown(t.link.serverName, mcp.Resources, name)
	})
}

// renameAt returns the edits that replace the strings at paths.
func renameAt(paths *jsonspan.Paths, text []byte, rename func(path int, name string) string) (edits []jsonspan.Edit) {
	_ = paths.Find(text, func(path int, v jsonspan.Value) {
		if v.Kind != jsonspan.String {
			return
		}
		name := string(jsonspan.AppendText(nil, v.Body(text)))
		if renamed := rename(path, name); renamed != name {
			edits = append(edits, jsonspan.Edit{Start: v.Start, End: v.End, New: jsonrpc.Quote(renamed)})
		}
	})
	return edits
}

// gatewayRequest returns a request of the gateway, with the name of the server that it is about.
func (t translator) gatewayRequest(m *jsonrpc.Message) []byte {
	if t.g.names.areUnchanged() {
		return m.Raw
	}
	return jsonspan.Spliced(m.Raw, t.tag(m)...)
}

// tag returns the edits that put the name of the server into the params of a message. They replace
// a name that the server set itself.
func (t translator) tag(m *jsonrpc.Message) []jsonspan.Edit {
	server := slices.Concat([]byte(`{"server":`), jsonrpc.Quote(t.link.serverName), []byte("}"))
	switch {
	case m.Has(jsonrpc.Proxy):
		return []jsonspan.Edit{m.Replace(jsonrpc.Proxy, server)}
	case !m.Has(jsonrpc.Params) || m.Kind(jsonrpc.Params) == jsonspan.BeginObject:
		return []jsonspan.Edit{m.Insert(slices.Concat([]byte(`"proxy":`), server))}
	}
	return nil // params is an array
}

// uri returns the URI by which the client knows a resource.
func (t translator) uri(uri string) string {
	if shown := t.link.subscriptions.alias(uri); shown != "" {
		return shown
	}
	return t.g.names.shown(t.link.serverName, mcp.Resources, uri)
}

// id returns an id for the client from which parseOrigin finds the server and its id.
func (t translator) id(literal []byte) []byte {
	if t.g.names.areUnchanged() {
		return literal
	}
	text := string(literal)
	if s := t.g.linkServer(t.link); t.g.replicaSync != nil && s != nil && t.link.isLocal(s) {
		text = "@" + t.g.replicaSync.bus.space.Replica + "@" + text // the replica that has the session
	}
	return jsonrpc.Quote(t.link.serverName + mcp.Separator + text)
}

// eventID returns an event id for the client. It names the stream and the server, and is valid in
// the client's session only: a server may not tell clients apart, so its ids protect no stream.
func (t translator) eventID(streamKind, id string) string {
	if id == "" {
		return ""
	}
	return t.g.sealer.Bind(streamKind+"/"+t.link.serverName+"/"+id, eventOfSession, t.link.client.key)
}

// eventOfSession is the scope of sealed event ids at the aggregate endpoint.
const eventOfSession = "event of a session"

// Kinds of streams in event ids.
const (
	callStream   = "call"
	listenStream = "listen"
)

// locateNamed returns the server of an item and the item's name there.
func (c *call) locateNamed(shown string, k mcp.ListKind) (*upstream.Server, string, *jsonrpc.Failure) {
	s, name := c.g.names.only, shown
	if !c.g.names.areUnchanged() {
		server, rest, ok := c.g.names.split(shown)
		if !ok {
			kind := strings.TrimSuffix(mcp.ListKinds[k].Member, "s")
			return nil, "", invalidParams("name: unknown " + kind + " " + mcp.Shortened(shown))
		}
		if s, name = c.g.servers[server], rest; !c.sees(s) {
			if k == mcp.Tools {
				name = s.Overrides.ServerName(name)
			}
			return s, name, nil // Admit refuses the call; no list is needed
		}
		shown = s.Name + c.g.names.naming.Separator + rest // canonical spelling
		if c.g.names.naming.MayBeShort(shown) {
			// The list maps shortened names to full names.
			list, _, failure := c.client.newListQuery(c.aggregateRequest.scope(), s, k).get()
			if failure != nil {
				return nil, "", failure.WithStatusOK()
			}
			if original, ok := list.Short[shown]; ok {
				name = original
			}
		}
	}
	if k != mcp.Tools {
		return s, name, nil
	}
	o, ok := s.Overrides.ByClientName(name)
	if !ok && !(prompter{c}).isLoginTool(s, mcp.Target{Server: s.Name, Kind: mcp.Tool, Name: name}) {
		return nil, "", inbound.UnknownTool(shown)
	}
	c.Override = o
	if o != nil {
		name = o.Tool
	}
	if !s.Shows(name) {
		return nil, "", inbound.UnknownTool(shown)
	}
	return s, name, checkTool(s, shown, name)
}

// checkTool refuses a tool whose definition is known to be invalid.
func checkTool(s *upstream.Server, shown, name string) *jsonrpc.Failure {
	if err := s.InvalidTool(name); err != nil {
		return invalidParams("name: the definition of tool " + mcp.Shortened(shown) + " is invalid: " + err.Error())
	}
	return nil
}

// findResource returns the server and the target of a request for a resource, and the edits that
// set the server's URI.
func (c *call) findResource(f jsonrpc.Field) (*upstream.Server, mcp.Target, []jsonspan.Edit, *jsonrpc.Failure) {
	shown := c.Message.Text(f)
	s, uri := c.g.names.resource(shown)
	if s == nil && !c.g.names.areUnchanged() && c.Message.Kind(f) == jsonspan.String {
		// The search may send requests to servers, so admit the client first.
		if failure := c.Admit(mcp.Target{}); failure != nil {
			return nil, mcp.Target{}, nil, failure
		}
		var failure *jsonrpc.Failure
		if s, failure = (&ownerSearch{aggregateRequest: c.aggregateRequest}).find(shown); failure != nil {
			return nil, mcp.Target{}, nil, failure
		}
		uri = shown
	}
	switch {
	case c.g.names.areUnchanged() && s == nil:
		s := c.g.names.only
		return s, mcp.Target{Server: s.Name, Kind: mcp.Resource, Name: shown}, nil, nil
	case c.Message.Kind(f) != jsonspan.String:
		return nil, mcp.Target{}, nil, invalidParams("uri: missing or not a string")
	case s == nil:
		return nil, mcp.Target{}, nil, unknownResource(c.Message.Text(jsonrpc.URI), "uri: unknown resource")
	}
	c.alias = uriAlias{uri, shown}
	target := mcp.Target{Server: s.Name, Kind: mcp.Resource, Name: uri}
	if uri == shown {
		return s, target, nil, nil
	}
	return s, target, []jsonspan.Edit{c.Message.Replace(f, jsonrpc.Quote(uri))}, nil
}

// unknownResource returns the error for an unknown resource.
func unknownResource(uri, message string) *jsonrpc.Failure {
	failure := invalidParams(message)
	failure.Data.URI = mcp.Shortened(uri)
	return failure
}
