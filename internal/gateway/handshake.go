package gateway

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// initialize begins a session, with all servers that can be reached (A3 to A6).
func (q *Request) initialize() *jsonrpc.Failure {
	params := q.message.Literal(jsonrpc.Params)
	switch {
	case q.message.Kind(jsonrpc.Params) != jsonspan.BeginObject || q.message.Kind(jsonrpc.Requested) != jsonspan.String:
		return jsonrpc.InvalidParams("protocolVersion: it is missing, or no string").AsAnswer()
	case len(params) > longestHello:
		return helloTooLarge("params: capabilities and clientInfo")
	}
	version := mcp.Negotiate(q.message.Text(jsonrpc.Requested), mcp.Latest)
	edits := []jsonspan.Edit{q.message.Replace(jsonrpc.Requested, jsonrpc.Quote(version))}
	if q.message.Has(jsonrpc.Proxy) {
		edits = append(edits, q.withoutProxy())
		slices.SortFunc(edits, func(a, b jsonspan.Edit) int { return a.Start - b.Start })
	}
	whole := jsonspan.Spliced(q.message.Raw, edits...)
	var m jsonrpc.Message
	if failure := m.Read(whole); failure != nil {
		return failure
	}
	q.client = newClient(mcp.Legacy, version, q.caller.identity, q.owner(), helloOf(slices.Clone(m.Literal(jsonrpc.Params))))
	q.client.issued = time.Now()
	q.g.keep(q.client)
	if q.g.sealed(q.client.ticket(nil)) == "" {
		return helloTooLarge("params: capabilities and clientInfo, compressed,")
	}
	q.all(func(ctx context.Context, s *Server, l *link) { _ = l.open(ctx, q.g, q.r) }) // who fails is left out, and has been logged
	if q.r.Context().Err() != nil {
		q.g.running.Go(q.leave) // nobody else knows of the sessions that there are by now
		return nil
	}
	links := map[string]linkTicket{}
	for _, s := range q.g.seen(q.caller.identity) {
		if ticket, ok := q.client.link(s).ticket(); ok {
			ticket.Server = s.brief()
			links[s.Name] = ticket
		}
	}
	id := q.g.sealed(q.client.ticket(links))
	q.client = q.g.client(id, func() *client { return q.client })
	q.g.release(q.client) // as the one that had no id yet
	q.w.Header().Set(mcp.SessionHeader, id)

	result := map[string]any{
		"protocolVersion": version,
		"capabilities":    q.capabilities(),
		"serverInfo":      q.g.info(),
	}
	if text := q.instructions(); text != "" {
		result["instructions"] = text
	}
	for _, l := range q.client.allLinks() {
		l.mu.Lock()
		l.about = about{} // which the client never asks for again
		l.mu.Unlock()
	}
	return q.answer(jsonrpc.Encode(result))
}

// leave ends the sessions with all servers of a client that has left.
func (q *Request) leave() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(q.r.Context()), q.g.config.JoinTimeout)
	defer cancel()
	for _, l := range q.client.allLinks() {
		if q.g.of(l) != nil {
			l.end(ctx, q.g, q.r)
		}
	}
}

// discover tells clients of the modern era who we are.
func (q *Request) discover() *jsonrpc.Failure {
	q.all(func(ctx context.Context, s *Server, l *link) { _ = l.open(ctx, q.g, q.r) })
	if q.r.Context().Err() != nil {
		return nil
	}
	versions := mcp.Versions()
	slices.Reverse(versions)
	result := map[string]any{
		"supportedVersions": versions,
		"capabilities":      q.capabilities(),
		"ttlMs":             0,
		"cacheScope":        "private",
	}
	if text := q.instructions(); text != "" {
		result["instructions"] = text
	}
	return q.answer(jsonrpc.Encode(result))
}

// info is who we are.
func (a *Gateway) info() map[string]string {
	return map[string]string{"name": a.config.Name, "version": a.config.Version}
}

// signed makes a result of ours one of the modern era.
func (a *Gateway) signed(resultType string, result []byte) []byte {
	by, as := a.signedBy(), []byte(`"resultType":"`+resultType+`"`)
	for member := range jsonspan.Members(result) {
		if at := member.Value; member.Key == "_meta" && at.Kind == jsonspan.BeginObject {
			return jsonspan.Spliced(result, jsonspan.Insert(result, as), jsonspan.Insert(result[at.Start:at.End], by).Moved(at.Start))
		}
	}
	return jsonspan.Spliced(result, jsonspan.Insert(result, a.signature(resultType)))
}

// signature returns the members that make a result of ours one of the modern era.
func (a *Gateway) signature(resultType string) []byte {
	return slices.Concat([]byte(`"resultType":"`+resultType+`","_meta":{`), a.signedBy(), []byte("}"))
}

// signedBy returns the member of _meta that says who we are.
func (a *Gateway) signedBy() []byte {
	return slices.Concat([]byte(`"io.modelcontextprotocol/serverInfo":`), jsonrpc.Encode(a.info()))
}

// capabilities returns what all servers can do together (A4). As long as one of them
// is missing, there may be tools: clients do not ask again.
func (q *Request) capabilities() map[string]any {
	all := map[string]any{}
	for _, s := range q.g.seen(q.caller.identity) {
		l := q.client.link(s)
		l.mu.Lock()
		ready, raw := l.ready, l.about.capabilities.text()
		l.mu.Unlock()
		var one map[string]any
		if json.Unmarshal([]byte(raw), &one) == nil {
			merge(all, one)
		}
		if !ready && all["tools"] == nil {
			all["tools"] = map[string]any{}
		}
	}
	if q.g.own.list(tools, q.caller.identity) != nil && all["tools"] == nil {
		all["tools"] = map[string]any{}
	}
	if q.g.own.list(templates, q.caller.identity) != nil && all["resources"] == nil {
		all["resources"] = map[string]any{}
	}
	for _, name := range [...]string{"tools", "prompts", "resources"} {
		if category, ok := all[name].(map[string]any); ok {
			category["listChanged"] = true // servers come and go
		}
	}
	return all
}

// merge adds what is in one object to another, all the way down.
func merge(into, from map[string]any) {
	for name, value := range from {
		object, ok := value.(map[string]any)
		if !ok {
			if known, there := into[name].(bool); !there || !known {
				into[name] = value
			}
			continue
		}
		known, ok := into[name].(map[string]any)
		if !ok {
			known = map[string]any{}
			into[name] = known
		}
		merge(known, object)
	}
}

// instructions returns what the servers say of how they are to be used.
func (q *Request) instructions() string {
	var texts []string
	for _, s := range q.g.seen(q.caller.identity) {
		l := q.client.link(s)
		l.mu.Lock()
		text := l.about.instructions.text()
		l.mu.Unlock()
		switch {
		case text == "":
		case q.g.transparent():
			return text
		default:
			texts = append(texts, s.Name+":\n"+text)
		}
	}
	return strings.Join(texts, "\n\n")
}

// setLevel passes on which log messages the client wants, to all who have some (A15).
func (q *Request) setLevel() *jsonrpc.Failure {
	level := q.message.Text(jsonrpc.Level)
	if !slices.Contains(mcp.LogLevels, level) {
		return jsonrpc.InvalidParams("level: it is none of " + strings.Join(mcp.LogLevels, ", ")).AsAnswer()
	}
	q.client.mu.Lock()
	q.client.level = level
	q.client.mu.Unlock()
	q.all(func(ctx context.Context, s *Server, l *link) {
		if era, can := l.state(); era == mcp.Legacy && can&hasLogging != 0 {
			_, _ = l.request(ctx, q.g, q.r, "logging/setLevel", []byte(`{"level":"`+level+`"}`))
		}
	})
	return q.answer([]byte("{}"))
}

// delete ends a session.
func (q *Request) delete() *jsonrpc.Failure {
	q.g.end(q.client)
	for _, s := range q.client.listening() {
		s.end()
	}
	var ending sync.WaitGroup
	for _, l := range q.client.allLinks() { // also to servers that it may not know any more
		ending.Go(func() { l.end(q.r.Context(), q.g, q.r) })
	}
	ending.Wait()
	q.w.WriteHeader(204)
	return nil
}
