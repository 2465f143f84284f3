package gateway

import (
	"bytes"
	"slices"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// withoutProxy returns the edit that takes out what is meant for us only (A31).
func (v *visit) withoutProxy() jsonspan.Edit {
	e, _ := jsonspan.Remove(v.Message.Literal(jsonrpc.Params), "proxy")
	return v.Message.Within(jsonrpc.Params, e)
}

// forwardable returns the message of the client as servers may see it, with edits.
func (v *visit) forwardable(edits ...jsonspan.Edit) (jsonrpc.Message, *jsonrpc.Failure) {
	if v.Message.Has(jsonrpc.Proxy) {
		edits = append(edits, v.withoutProxy())
	}
	if len(edits) == 0 {
		return v.Message, nil
	}
	return v.Message.Edited(edits...)
}

// A naming is where answers of servers name something.
type naming struct {
	path string
	kind mcp.ListKind
	use  nameUse
}

// A nameUse is what a client does with a name.
type nameUse uint8

const (
	asLink    nameUse = iota // it may ask for what has the name
	asRequest                // it has asked, and may know it by another name
	asUI                     // it shows what has the name to a person
)

// relatedTask is where a message says to which task it belongs.
const relatedTask = `_meta.io\.modelcontextprotocol/related-task.taskId`

var namings = []naming{
	{"result.contents.*.uri", mcp.Resources, asRequest},
	{"error.data.uri", mcp.Resources, asRequest},
	{"result.content.*.uri", mcp.Resources, asLink},
	{"result.content.*.resource.uri", mcp.Resources, asLink},
	{"result.messages.*.content.uri", mcp.Resources, asLink},
	{"result.messages.*.content.resource.uri", mcp.Resources, asLink},
	{"result.result.content.*.uri", mcp.Resources, asLink}, // of a task that has ended
	{"result.result.content.*.resource.uri", mcp.Resources, asLink},
	{"result.resources.*.uri", mcp.Skills, asLink}, // of a directory
	{"result." + mcp.UIMembers[0], mcp.Resources, asUI},
	{"result." + mcp.UIMembers[1], mcp.Resources, asUI},
	{"result." + mcp.UIMembers[2], mcp.Resources, asUI},
	{"result.skill.uri", mcp.Skills, asLink},
	{"result.skill.resources.*.uri", mcp.Skills, asLink},
	{"result.task.taskId", mcp.Tasks, asLink},
	{"result.taskId", mcp.Tasks, asLink},
	{"result." + relatedTask, mcp.Tasks, asLink},
}

// namingPaths returns the paths of namings, and others after them.
func namingPaths(others ...string) (paths []string) {
	for _, n := range namings {
		paths = append(paths, n.path)
	}
	return append(paths, others...)
}

// The paths of namings, for messages and for answers that are passed on as they arrive.
var (
	namePaths  = jsonrpc.CompilePaths(namingPaths()...)
	largePaths = jsonspan.CompilePaths(namingPaths("id")...)
)

// A foundName is one of a resource or task, as it stands in an answer.
type foundName struct {
	path  int // of namings
	value jsonspan.Value
}

// A nameReader reads messages, and finds the names in them.
type nameReader struct {
	names []foundName // in the message that was read last
}

// parse reads a message for a [streamable.Reader]. A message that repeats a member has no names:
// readers could disagree about what it names.
func (n *nameReader) parse(m *jsonrpc.Message, data []byte) *jsonrpc.Failure {
	n.names = n.names[:0]
	failure, ambiguous := m.ReadWith(data, namePaths, func(path int, v jsonspan.Value) {
		if v.Kind == jsonspan.String {
			n.names = append(n.names, foundName{path, v})
		}
	})
	if failure != nil || ambiguous == jsonspan.ErrDuplicate {
		n.names = n.names[:0]
	}
	return failure
}

// A translator translates between what a server calls things and what its client does.
type translator struct {
	g     *Gateway
	link  *link
	alias uriAlias // of the resource that a call is about
	raw   bool     // names in answers stay as they are
}

func (l *link) translator(g *Gateway) translator { return translator{g: g, link: l} }

// A uriAlias is the URI by which a client has asked for a server's resource: one of a template that
// the gateway hosts, or that of the server itself.
type uriAlias struct{ original, shown string }

// isSet reports whether the client calls the resource by another URI than it would be given.
func (a uriAlias) isSet() bool {
	return a.shown != "" && !strings.HasPrefix(a.shown, "proxy://")
}

// rename returns the edits that give an answer the names that the client knows.
func (t translator) rename(raw []byte, found []foundName) (edits []jsonspan.Edit) {
	for _, f := range found {
		if shown := t.renamed(f.path, raw[f.value.Start:f.value.End]); shown != nil {
			edits = append(edits, jsonspan.Edit{Start: f.value.Start, End: f.value.End, New: shown})
		}
	}
	return edits
}

// renamed returns what a name at one of the namings becomes, nil if it stays.
func (t translator) renamed(path int, literal []byte) []byte {
	if t.raw {
		return nil
	}
	n := namings[path]
	asked := n.use == asRequest && t.alias.shown != "" && jsonspan.TextIs(literal[1:len(literal)-1], t.alias.original)
	switch {
	case asked && t.alias.shown == t.alias.original:
		return nil
	case asked && t.alias.isSet():
		return jsonrpc.Quote(t.alias.shown)
	case t.g.transparent():
		return nil
	}
	text := string(jsonspan.AppendText(nil, literal[1:len(literal)-1]))
	switch {
	case n.use == asUI && t.leadsHere(text):
		return nil
	case !asked && strings.HasPrefix(text, mcp.UIScheme):
		return jsonrpc.Quote(mcp.UIResourceURI(t.link.server, text)) // hosts look at the scheme
	}
	return jsonrpc.Quote(t.g.shown(t.link.server, n.kind, text))
}

// leadsHere reports whether a URI of the server leads to it as it is.
func (t translator) leadsHere(uri string) bool {
	c := t.link.client
	owners := c.givenBy(t.g, t.g.possibleOwners(c.identity, uri), uri)
	return len(owners) == 1 && owners[0].Name == t.link.server
}

// message returns a message that a server sends on its own account as the client gets it:
// with the name of the server (A23, A26), and with ids that lead back to it.
func (t translator) message(m *jsonrpc.Message) []byte {
	if t.g.transparent() {
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
			replace(jsonrpc.TaskID, jsonrpc.Quote(t.g.shown(t.link.server, mcp.Tasks, m.Text(jsonrpc.TaskID))))
		}
	}
	if bytes.Contains(m.Raw, []byte("task")) {
		edits = append(edits, t.noticed(m.Raw)...)
	}
	return jsonspan.Spliced(m.Raw, append(edits, t.tag(m)...)...)
}

// noticePaths are where messages that servers send on their own account name tasks that they
// belong to, and resources in the results of tasks.
var noticePaths = jsonspan.CompilePaths("params."+relatedTask,
	"params.result.content.*.uri", "params.result.content.*.resource.uri")

// noticed returns the edits that give such a message the names that the client knows.
func (t translator) noticed(message []byte) []jsonspan.Edit {
	return renameAt(noticePaths, message, func(path int, name string) string {
		if path == 0 {
			return t.g.shown(t.link.server, mcp.Tasks, name)
		}
		return t.g.shown(t.link.server, mcp.Resources, name)
	})
}

// renameAt returns the edits that give what stands at paths in a text other names.
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

// question returns a question of ours with the name of the server it is for.
func (t translator) question(m *jsonrpc.Message) []byte {
	if t.g.transparent() {
		return m.Raw
	}
	return jsonspan.Spliced(m.Raw, t.tag(m)...)
}

// tag returns the edits that put the name of the server into the params of a message,
// whatever name the server itself may have put there.
func (t translator) tag(m *jsonrpc.Message) []jsonspan.Edit {
	server := slices.Concat([]byte(`{"server":`), jsonrpc.Quote(t.link.server), []byte("}"))
	switch {
	case m.Has(jsonrpc.Proxy):
		return []jsonspan.Edit{m.Replace(jsonrpc.Proxy, server)}
	case !m.Has(jsonrpc.Params) || m.Kind(jsonrpc.Params) == jsonspan.BeginObject:
		return []jsonspan.Edit{m.Insert(slices.Concat([]byte(`"proxy":`), server))}
	}
	return nil // they are a list
}

// uri returns the URI by which the client knows a resource.
func (t translator) uri(uri string) string {
	if shown := t.link.subscriptions.alias(uri); shown != "" {
		return shown
	}
	return t.g.shown(t.link.server, mcp.Resources, uri)
}

// id returns an id that leads back to an id of the server.
func (t translator) id(literal []byte) []byte {
	if t.g.transparent() {
		return literal
	}
	text := string(literal)
	if s := t.g.of(t.link); t.g.elsewhere != nil && s != nil && t.link.isLocal(s) {
		text = "@" + t.g.elsewhere.space.Replica + "@" + text // of the one that has the session
	}
	return jsonrpc.Quote(t.link.server + mcp.Separator + text)
}

// eventID returns the id of an event for the client: it names the server and the stream, and
// is good in the session of the client only. To a server all clients may be one.
func (t translator) eventID(streamKind, id string) string {
	if id == "" {
		return ""
	}
	return t.g.sealer.Bind(streamKind+"/"+t.link.server+"/"+id, eventOfSession, t.link.client.key)
}

// eventOfSession is the scope of the ids of events at the aggregate.
const eventOfSession = "event of a session"

// The streams that events come in, by whom they can be resumed.
const (
	callStream   = "call"
	listenStream = "listen"
)

// locateNamed returns the server that has something, and what it is called there.
func (c *call) locateNamed(shown string, k mcp.ListKind) (*upstream.Server, string, *jsonrpc.Failure) {
	s, name := c.g.config.Servers[0], shown
	if !c.g.transparent() {
		server, rest, ok := c.g.config.Naming.Split(shown, func(server string) bool { return c.g.servers[server] != nil })
		if !ok {
			kind := strings.TrimSuffix(mcp.ListKinds[k].Member, "s")
			return nil, "", invalid("name: there is no " + kind + " " + mcp.Shortened(shown))
		}
		if s, name = c.g.servers[server], rest; !c.sees(s) {
			if k == mcp.Tools {
				name = s.Overrides.Original(name)
			}
			return s, name, nil // Admit refuses it, and no list is needed
		}
		shown = s.Name + c.g.config.Naming.Separator + rest // however it was spelled
		if c.g.config.Naming.MayBeShort(shown) {
			// Its original is known from the list that it was read in.
			list, _, failure := c.client.newListQuery(c.visit.behalf(), s, k).get()
			if failure != nil {
				return nil, "", failure.AsAnswer()
			}
			if original, ok := list.Short[shown]; ok {
				name = original
			}
		}
	}
	if k == mcp.Tools {
		o, ok := s.Overrides.Called(name)
		if !ok && !c.isLoginTool(s, mcp.Target{Server: s.Name, Kind: mcp.Tool, Name: name}) {
			return nil, "", inbound.UnknownTool(shown)
		}
		if c.Override = o; o != nil {
			name = o.Tool
		}
	}
	if k == mcp.Tools && !s.Shows(name) {
		return nil, "", inbound.UnknownTool(shown)
	}
	if k == mcp.Tools {
		if failure := checkTool(s, shown, name); failure != nil {
			return nil, "", failure
		}
	}
	return s, name, nil
}

// checkTool refuses a tool whose definition is known to be invalid.
func checkTool(s *upstream.Server, shown, name string) *jsonrpc.Failure {
	if err := s.InvalidTool(name); err != nil {
		return invalid("name: the definition of tool " + mcp.Shortened(shown) + " is invalid: " + err.Error())
	}
	return nil
}

// findResource returns whose resource a request is for, which one it is there, and the edits
// that give the request that URI.
func (c *call) findResource(f jsonrpc.Field) (*upstream.Server, mcp.Target, []jsonspan.Edit, *jsonrpc.Failure) {
	given := c.Message.Text(f)
	s, uri := c.g.locate(given)
	if s == nil && !c.g.transparent() && c.Message.Kind(f) == jsonspan.String {
		// Servers may have to be asked for it, so the client must be let in first.
		if failure := c.Admit(mcp.Target{}); failure != nil {
			return nil, mcp.Target{}, nil, failure
		}
		var failure *jsonrpc.Failure
		if s, failure = (&search{visit: c.visit}).owner(given); failure != nil {
			return nil, mcp.Target{}, nil, failure
		}
		uri = given
	}
	switch {
	case c.g.transparent() && s == nil:
		s := c.g.config.Servers[0]
		return s, mcp.Target{Server: s.Name, Kind: mcp.Resource, Name: given}, nil, nil
	case c.Message.Kind(f) != jsonspan.String:
		return nil, mcp.Target{}, nil, invalid("uri: it is missing, or no string")
	case s == nil:
		return nil, mcp.Target{}, nil, c.noResource("uri: it is none of this server")
	}
	c.alias = uriAlias{uri, given}
	target := mcp.Target{Server: s.Name, Kind: mcp.Resource, Name: uri}
	if uri == given {
		return s, target, nil, nil
	}
	return s, target, []jsonspan.Edit{c.Message.Replace(f, jsonrpc.Quote(uri))}, nil
}

// locate returns the server that has a resource which clients know by a URI, and the URI
// it has there.
func (g *Gateway) locate(shown string) (*upstream.Server, string) {
	if !g.transparent() {
		if server, uri, err := mcp.ParseURI(shown); err == nil {
			return g.servers[server], uri
		}
	}
	return g.own.original(shown)
}

// locateTask returns the server that works on a task which clients know by an id, and the id
// it has there.
func (g *Gateway) locateTask(shown string) (*upstream.Server, string) {
	if g.transparent() {
		return g.config.Servers[0], shown
	}
	server, id, _ := strings.Cut(shown, mcp.Separator)
	return g.servers[server], id
}

var relatedPaths = jsonspan.CompilePaths("params."+relatedTask, "result."+relatedTask)

// relatedTask returns the edit that gives a message of a client to a server the id which the
// server has for the task that the message belongs to.
func (g *Gateway) relatedTask(message []byte, server string) []jsonspan.Edit {
	if g.transparent() || !bytes.Contains(message, []byte("related-task")) {
		return nil
	}
	return renameAt(relatedPaths, message, func(_ int, id string) string {
		return strings.TrimPrefix(id, server+mcp.Separator) // which a task of the client itself does not have
	})
}

// noResource says that there is no such resource.
func (c *call) noResource(message string) *jsonrpc.Failure {
	failure := invalid(message)
	failure.Data.URI = mcp.Shortened(c.Message.Text(jsonrpc.URI))
	return failure
}
