package aggregate

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
func (t *turn) initialize() *jsonrpc.Failure {
	params := t.m.Literal(jsonrpc.Params)
	switch {
	case t.m.Kind(jsonrpc.Params) != jsonspan.BeginObject || t.m.Kind(jsonrpc.Requested) != jsonspan.String:
		return jsonrpc.InvalidParams("protocolVersion: it is missing, or no string").AsAnswer()
	case len(params) > longestHello:
		return helloTooLarge("params: capabilities and clientInfo")
	}
	version := mcp.Negotiate(t.m.Text(jsonrpc.Requested), mcp.Latest)
	edits := []jsonspan.Edit{t.m.Replace(jsonrpc.Requested, jsonrpc.Quote(version))}
	if t.m.Has(jsonrpc.Proxy) {
		edits = append(edits, t.withoutProxy())
		slices.SortFunc(edits, func(a, b jsonspan.Edit) int { return a.Start - b.Start })
	}
	whole := jsonspan.Spliced(t.m.Raw, edits...)
	var m jsonrpc.Message
	if failure := m.Read(whole); failure != nil {
		return failure
	}
	t.client = newClient(mcp.Legacy, version, t.who, helloOf(slices.Clone(m.Literal(jsonrpc.Params))))
	t.client.issued = time.Now()
	t.a.keep(t.client)
	if t.a.sealed(t.client.ticket(nil)) == "" {
		return helloTooLarge("params: capabilities and clientInfo, compressed,")
	}
	t.all(func(ctx context.Context, s *Server, l *link) { _ = l.open(ctx, t.a, t.r) }) // who fails is left out, and has been logged
	if t.r.Context().Err() != nil {
		t.a.running.Go(t.leave) // nobody else knows of the sessions that there are by now
		return nil
	}
	links := map[string]linkTicket{}
	for _, s := range t.a.seen(t.who.Identity) {
		if ticket, ok := t.client.link(s).ticket(); ok {
			ticket.Server = s.brief()
			links[s.Name] = ticket
		}
	}
	id := t.a.sealed(t.client.ticket(links))
	t.client = t.a.client(id, func() *client { return t.client })
	t.a.release(t.client) // as the one that had no id yet
	t.w.Header().Set(mcp.SessionHeader, id)

	result := map[string]any{
		"protocolVersion": version,
		"capabilities":    t.capabilities(),
		"serverInfo":      t.a.info(),
	}
	if text := t.instructions(); text != "" {
		result["instructions"] = text
	}
	for _, l := range t.client.allLinks() {
		l.mu.Lock()
		l.about = about{} // which the client never asks for again
		l.mu.Unlock()
	}
	return t.answer(encoded(result))
}

// leave ends the sessions with all servers of a client that has left.
func (t *turn) leave() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.r.Context()), t.a.config.JoinTimeout)
	defer cancel()
	for _, l := range t.client.allLinks() {
		if t.a.of(l) != nil {
			l.end(ctx, t.a, t.r)
		}
	}
}

// discover tells clients of the modern era who we are.
func (t *turn) discover() *jsonrpc.Failure {
	t.all(func(ctx context.Context, s *Server, l *link) { _ = l.open(ctx, t.a, t.r) })
	if t.r.Context().Err() != nil {
		return nil
	}
	versions := mcp.Versions()
	slices.Reverse(versions)
	result := map[string]any{
		"supportedVersions": versions,
		"capabilities":      t.capabilities(),
		"ttlMs":             0,
		"cacheScope":        "private",
	}
	if text := t.instructions(); text != "" {
		result["instructions"] = text
	}
	return t.answer(encoded(result))
}

// info is who we are.
func (a *Aggregate) info() map[string]string {
	return map[string]string{"name": a.config.Name, "version": a.config.Version}
}

// signed makes a result of ours one of the modern era.
func (a *Aggregate) signed(resultType string, result []byte) []byte {
	by, as := a.signedBy(), []byte(`"resultType":"`+resultType+`"`)
	for member := range jsonspan.Members(result) {
		if at := member.Value; member.Key == "_meta" && at.Kind == jsonspan.BeginObject {
			return jsonspan.Spliced(result, jsonspan.Insert(result, as), jsonspan.Insert(result[at.Start:at.End], by).Moved(at.Start))
		}
	}
	return jsonspan.Spliced(result, jsonspan.Insert(result, a.signature(resultType)))
}

// signature returns the members that make a result of ours one of the modern era.
func (a *Aggregate) signature(resultType string) []byte {
	return slices.Concat([]byte(`"resultType":"`+resultType+`","_meta":{`), a.signedBy(), []byte("}"))
}

// signedBy returns the member of _meta that says who we are.
func (a *Aggregate) signedBy() []byte {
	return slices.Concat([]byte(`"io.modelcontextprotocol/serverInfo":`), encoded(a.info()))
}

// capabilities returns what all servers can do together (A4). As long as one of them
// is missing, there may be tools: clients do not ask again.
func (t *turn) capabilities() map[string]any {
	all := map[string]any{}
	for _, s := range t.a.seen(t.who.Identity) {
		l := t.client.link(s)
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
	if t.a.own(tools, t.who.Identity) != nil && all["tools"] == nil {
		all["tools"] = map[string]any{}
	}
	if t.a.own(templates, t.who.Identity) != nil && all["resources"] == nil {
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
func (t *turn) instructions() string {
	var texts []string
	for _, s := range t.a.seen(t.who.Identity) {
		l := t.client.link(s)
		l.mu.Lock()
		text := l.about.instructions.text()
		l.mu.Unlock()
		switch {
		case text == "":
		case t.a.transparent():
			return text
		default:
			texts = append(texts, s.Name+":\n"+text)
		}
	}
	return strings.Join(texts, "\n\n")
}

// encoded returns a value as JSON, which it can always be.
func encoded(value any) []byte {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return text
}

// setLevel passes on which log messages the client wants, to all who have some (A15).
func (t *turn) setLevel() *jsonrpc.Failure {
	level := t.m.Text(jsonrpc.Level)
	if !slices.Contains(mcp.LogLevels, level) {
		return jsonrpc.InvalidParams("level: it is none of " + strings.Join(mcp.LogLevels, ", ")).AsAnswer()
	}
	t.client.mu.Lock()
	t.client.level = level
	t.client.mu.Unlock()
	t.all(func(ctx context.Context, s *Server, l *link) {
		if era, can := l.state(); era == mcp.Legacy && can&hasLogging != 0 {
			_, _ = l.request(ctx, t.a, t.r, "logging/setLevel", []byte(`{"level":"`+level+`"}`))
		}
	})
	return t.answer([]byte("{}"))
}

// delete ends a session.
func (t *turn) delete() *jsonrpc.Failure {
	t.a.end(t.client)
	for _, s := range t.client.listening() {
		s.end()
	}
	var ending sync.WaitGroup
	for _, l := range t.client.allLinks() { // also to servers that it may not know any more
		ending.Go(func() { l.end(t.r.Context(), t.a, t.r) })
	}
	ending.Wait()
	t.w.WriteHeader(204)
	return nil
}
