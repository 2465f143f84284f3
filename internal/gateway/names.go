package gateway

import (
	"slices"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// withoutProxy returns the edit that takes out what is meant for us only (A31).
func (q *Request) withoutProxy() jsonspan.Edit {
	at := q.message.Replace(jsonrpc.Params, nil)
	e, _ := jsonspan.Remove(q.message.Literal(jsonrpc.Params), "proxy")
	return e.Moved(at.Start)
}

// forwardable returns the message of the client as servers may see it.
func (q *Request) forwardable(edits ...jsonspan.Edit) []byte {
	if q.message.Has(jsonrpc.Proxy) {
		edits = append(edits, q.withoutProxy())
	}
	return jsonspan.Spliced(q.message.Raw, edits...)
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

var answerPaths = jsonspan.CompilePaths(namings...)

// renamed returns what stands for a literal at one of the answerPaths.
func (l *link) renamed(a *Gateway, path int, literal []byte) []byte {
	name := string(jsonspan.AppendText(nil, literal[1:len(literal)-1]))
	if path >= firstTaskPath {
		return jsonrpc.Quote(a.shown(l.server, tasks, name))
	}
	return jsonrpc.Quote(a.shown(l.server, resources, name))
}

// renamed returns what stands for a literal at one of the namings in an answer that is
// passed on as it comes, nil for itself.
func (q *Request) renamed(l *link, path int, literal []byte) []byte {
	switch {
	case path == 0 && q.led.elsewhere() && jsonspan.TextIs(literal[1:len(literal)-1], q.led.original):
		return jsonrpc.Quote(q.led.shown)
	case q.g.transparent():
		return nil
	}
	return l.renamed(q.g, path, literal)
}

// rewritten returns an answer with what it names under the names that clients know
// it by.
func (l *link) rewritten(a *Gateway, raw []byte) []byte {
	if a.transparent() {
		return raw
	}
	var edits []jsonspan.Edit
	err := answerPaths.Find(raw, func(path int, v jsonspan.Value) {
		if v.Kind == jsonspan.String {
			edits = append(edits, jsonspan.Edit{Start: v.Start, End: v.End, New: l.renamed(a, path, raw[v.Start:v.End])})
		}
	})
	if err != nil {
		return raw // it repeats a member: nobody knows which one counts
	}
	return jsonspan.Spliced(raw, edits...)
}

// led is the way from a resource of the gateway itself to that of a server: what the
// server calls it, and what the client does.
type led struct{ original, shown string }

// elsewhere reports whether the client calls the resource by a URI that the server's own
// is not made of.
func (l led) elsewhere() bool {
	return l.shown != "" && l.shown != l.original && !strings.HasPrefix(l.shown, "proxy://")
}

// back returns an answer with the resource that the client has asked for under the URI
// that it was asked for by.
func (l led) back(a *Gateway, server string, raw []byte) []byte {
	if !l.elsewhere() {
		return raw
	}
	known := a.shown(server, resources, l.original)
	var edits []jsonspan.Edit
	err := contentPaths.Find(raw, func(_ int, v jsonspan.Value) {
		if v.Kind == jsonspan.String && jsonspan.TextIs(v.Body(raw), known) {
			edits = append(edits, jsonspan.Edit{Start: v.Start, End: v.End, New: jsonrpc.Quote(l.shown)})
		}
	})
	if err != nil {
		return raw
	}
	return jsonspan.Spliced(raw, edits...)
}

// contentPaths are where an answer names the resource that was asked for.
var contentPaths = jsonspan.CompilePaths("result.contents.*.uri")

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
