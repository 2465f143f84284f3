package gateway

import (
	"slices"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// withoutProxy returns the edit that takes out what is meant for us only (A31).
func (p *posted) withoutProxy() jsonspan.Edit {
	e, _ := jsonspan.Remove(p.message.Literal(jsonrpc.Params), "proxy")
	return p.message.Within(jsonrpc.Params, e)
}

// forwardable returns the message of the client as servers may see it, with edits.
func (p *posted) forwardable(edits ...jsonspan.Edit) (jsonrpc.Message, *jsonrpc.Failure) {
	if p.message.Has(jsonrpc.Proxy) {
		edits = append(edits, p.withoutProxy())
	}
	if len(edits) == 0 {
		return p.message, nil
	}
	return p.message.Edited(edits...)
}

// namings are where answers of servers name resources and tasks.
var namings = []string{
	"result.contents.*.uri",
	"result.content.*.uri", "result.content.*.resource.uri",
	"result.messages.*.content.uri", "result.messages.*.content.resource.uri",
	"error.data.uri",
	"result.task.taskId", "result.taskId",
}

const firstTaskPath = 6

// The paths of namings, for messages and for answers that are passed on as they arrive.
var (
	namePaths  = jsonrpc.CompilePaths(namings...)
	largePaths = jsonspan.CompilePaths(namings...)
)

// A name is one of a resource or task, as it stands in an answer.
type name struct {
	path  int // of namings
	value jsonspan.Value
}

// readNames reads a message, and finds the names in it. It reuses the room of names. A message
// that repeats a member has none: readers could disagree about what it names.
func readNames(m *jsonrpc.Message, data []byte, names []name) (*jsonrpc.Failure, []name) {
	names = names[:0]
	failure, ambiguous := m.ReadWith(data, namePaths, func(path int, v jsonspan.Value) {
		if v.Kind == jsonspan.String {
			names = append(names, name{path, v})
		}
	})
	if failure != nil || ambiguous == jsonspan.ErrDuplicate {
		names = names[:0]
	}
	return failure, names
}

// renames returns the edits that give an answer the names that the client knows.
func (c *call) renames(raw []byte, names []name) (edits []jsonspan.Edit) {
	for _, n := range names {
		if shown := c.renamed(n.path, raw[n.value.Start:n.value.End]); shown != nil {
			edits = append(edits, jsonspan.Edit{Start: n.value.Start, End: n.value.End, New: shown})
		}
	}
	return edits
}

// renamed returns what a name at one of the namings becomes, nil if it stays.
func (c *call) renamed(path int, literal []byte) []byte {
	switch {
	case path == 0 && c.led.elsewhere() && jsonspan.TextIs(literal[1:len(literal)-1], c.led.original):
		return jsonrpc.Quote(c.led.shown)
	case c.g.transparent():
		return nil
	}
	name := string(jsonspan.AppendText(nil, literal[1:len(literal)-1]))
	if path >= firstTaskPath {
		return jsonrpc.Quote(c.g.shown(c.link.server, tasks, name))
	}
	return jsonrpc.Quote(c.g.shown(c.link.server, resources, name))
}

// led is the way from a resource of the gateway itself to that of a server: what the
// server calls it, and what the client does.
type led struct{ original, shown string }

// elsewhere reports whether the client calls the resource by a URI that the server's own
// is not made of.
func (l led) elsewhere() bool {
	return l.shown != "" && l.shown != l.original && !strings.HasPrefix(l.shown, "proxy://")
}

// translated returns a message that a server sends on its own account as the client
// gets it: with the name of the server (A23, A26), and with ids that lead back to it.
func (l *link) translated(a *Gateway, m *jsonrpc.Message) []byte {
	if a.transparent() {
		if uri := m.Text(jsonrpc.URI); m.Is(jsonrpc.Method, mcp.MethodUpdated) && l.shownAs(a, uri) != uri {
			return jsonspan.Spliced(m.Raw, m.Replace(jsonrpc.URI, jsonrpc.Quote(l.shownAs(a, uri))))
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
		replace(jsonrpc.ID, l.shown(a, m.Literal(jsonrpc.ID)))
		replace(jsonrpc.ProgressToken, l.shown(a, m.Literal(jsonrpc.ProgressToken)))
	}
	switch {
	case m.Is(jsonrpc.Method, "notifications/cancelled"):
		replace(jsonrpc.RequestID, l.shown(a, m.Literal(jsonrpc.RequestID)))
	case m.Is(jsonrpc.Method, mcp.MethodUpdated) && m.Kind(jsonrpc.URI) == jsonspan.String:
		replace(jsonrpc.URI, jsonrpc.Quote(l.shownAs(a, m.Text(jsonrpc.URI))))
	case m.Is(jsonrpc.Method, "notifications/tasks/status") && m.Kind(jsonrpc.TaskID) == jsonspan.String:
		replace(jsonrpc.TaskID, jsonrpc.Quote(a.shown(l.server, tasks, m.Text(jsonrpc.TaskID))))
	}
	return jsonspan.Spliced(m.Raw, append(edits, l.named(m)...)...)
}

// shownAs returns the URI by which the client knows a resource.
func (l *link) shownAs(a *Gateway, uri string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if shown := l.windows[uri]; shown != "" {
		return shown
	}
	return a.shown(l.server, resources, uri)
}

// named returns the edits that put the name of the server into the params of a message,
// whatever name the server itself may have put there.
func (l *link) named(m *jsonrpc.Message) []jsonspan.Edit {
	server := slices.Concat([]byte(`{"server":`), jsonrpc.Quote(l.server), []byte("}"))
	switch {
	case m.Has(jsonrpc.Proxy):
		return []jsonspan.Edit{m.Replace(jsonrpc.Proxy, server)}
	case !m.Has(jsonrpc.Params) || m.Kind(jsonrpc.Params) == jsonspan.BeginObject:
		return []jsonspan.Edit{m.Insert(slices.Concat([]byte(`"proxy":`), server))}
	}
	return nil // they are a list
}

// shown returns an id that leads back to an id of the server.
func (l *link) shown(a *Gateway, literal []byte) []byte {
	if a.transparent() {
		return literal
	}
	return jsonrpc.Quote(l.server + mcp.Separator + string(literal))
}
