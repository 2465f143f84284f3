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

// A handshake is a request by which a client gets to know the gateway: initialize, or
// server/discover in the modern era.
type handshake struct{ *visit }

// initialize begins a session, with all servers that can be reached (A3 to A6).
func (v handshake) initialize() *jsonrpc.Failure {
	params := v.message.Literal(jsonrpc.Params)
	switch {
	case v.message.Kind(jsonrpc.Params) != jsonspan.BeginObject || v.message.Kind(jsonrpc.Requested) != jsonspan.String:
		return jsonrpc.InvalidParams("protocolVersion: it is missing, or no string").AsAnswer()
	case len(params) > longestIntroduction:
		return introductionTooLarge("params: capabilities and clientInfo")
	}
	version := mcp.Negotiate(v.message.Text(jsonrpc.Requested), mcp.Latest)
	edits := []jsonspan.Edit{v.message.Replace(jsonrpc.Requested, jsonrpc.Quote(version))}
	if v.message.Has(jsonrpc.Proxy) {
		edits = append(edits, v.withoutProxy())
		slices.SortFunc(edits, func(a, b jsonspan.Edit) int { return a.Start - b.Start })
	}
	whole := jsonspan.Spliced(v.message.Raw, edits...)
	var m jsonrpc.Message
	if failure := m.Read(whole); failure != nil {
		return failure
	}
	v.client = newClient(mcp.Legacy, version, v.caller.identity, v.caller.owner(), readIntroduction(slices.Clone(m.Literal(jsonrpc.Params))))
	v.client.issued = time.Now()
	v.g.keep(v.client)
	if v.g.sealer.sealTicket(v.client.ticket(nil)) == "" {
		return introductionTooLarge("params: capabilities and clientInfo, compressed,")
	}
	v.all(func(_ *Server, l *link) { _ = l.open(v.behalf()) }) // servers that fail are left out, and logged
	if v.r.Context().Err() != nil {
		v.g.running.Go(v.leave) // the client does not know the sessions that exist by now
		return nil
	}
	links := map[string]linkTicket{}
	for _, s := range v.g.rules.seen(v.caller.identity) {
		if ticket, ok := v.client.link(s).ticket(); ok {
			ticket.Server = s.shortID()
			links[s.Name] = ticket
		}
	}
	id := v.g.sealer.sealTicket(v.client.ticket(links))
	v.client = v.g.client(id, func() *client { return v.client })
	v.g.release(v.client) // as the one that had no id yet
	v.w.Header().Set(mcp.SessionHeader, id)

	result := map[string]any{
		"protocolVersion": version,
		"capabilities":    v.capabilities(),
		"serverInfo":      v.g.info,
	}
	if text := v.instructions(); text != "" {
		result["instructions"] = text
	}
	for _, l := range v.client.allLinks() {
		l.mu.Lock()
		l.about = description{} // which the client never asks for again
		l.mu.Unlock()
	}
	return v.answer(jsonrpc.Encode(result))
}

// leave ends the sessions with all servers of a client that has left.
func (v handshake) leave() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(v.r.Context()), v.g.config.JoinTimeout)
	defer cancel()
	for _, l := range v.client.allLinks() {
		if v.g.of(l) != nil {
			l.end(v.behalf().within(ctx))
		}
	}
}

// discover answers server/discover.
func (v handshake) discover() *jsonrpc.Failure {
	v.all(func(_ *Server, l *link) { _ = l.open(v.behalf()) })
	if v.r.Context().Err() != nil {
		return nil
	}
	versions := mcp.Versions()
	slices.Reverse(versions)
	result := map[string]any{
		"supportedVersions": versions,
		"capabilities":      v.capabilities(),
		"ttlMs":             0,
		"cacheScope":        "private",
	}
	if text := v.instructions(); text != "" {
		result["instructions"] = text
	}
	return v.answer(jsonrpc.Encode(result))
}

// capabilities returns what all servers can do together (A4). As long as one of them
// is missing, there may be tools: clients do not ask again.
func (v handshake) capabilities() map[string]any {
	all := map[string]any{}
	for _, s := range v.g.rules.seen(v.caller.identity) {
		l := v.client.link(s)
		l.mu.Lock()
		ready, raw := l.ready, l.about.capabilities.text()
		l.mu.Unlock()
		var one map[string]any
		if json.Unmarshal([]byte(raw), &one) == nil {
			merge(all, one)
		}
		missing := []string{"tools"}
		switch {
		case ready:
			missing = nil
		case s.Login != nil:
			missing = []string{"tools", "prompts", "resources"}
		}
		for _, name := range missing {
			if all[name] == nil {
				all[name] = map[string]any{}
			}
		}
	}
	if v.era == mcp.Modern {
		delete(all, "tasks") // as servers of the legacy era have them; those of this era are an extension
	}
	if v.g.own.list(tools, v.caller.identity) != nil && all["tools"] == nil {
		all["tools"] = map[string]any{}
	}
	if v.g.own.list(templates, v.caller.identity) != nil && all["resources"] == nil {
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
func (v handshake) instructions() string {
	var texts []string
	for _, s := range v.g.rules.seen(v.caller.identity) {
		l := v.client.link(s)
		l.mu.Lock()
		text := l.about.instructions.text()
		l.mu.Unlock()
		switch {
		case text == "":
		case v.g.transparent():
			return text
		default:
			texts = append(texts, s.Name+":\n"+text)
		}
	}
	return strings.Join(texts, "\n\n")
}

// setLevel passes on which log messages the client wants, to all servers that log (A15).
func (v *visit) setLevel() *jsonrpc.Failure {
	level := v.message.Text(jsonrpc.Level)
	if !slices.Contains(mcp.LogLevels, level) {
		return jsonrpc.InvalidParams("level: it is none of " + strings.Join(mcp.LogLevels, ", ")).AsAnswer()
	}
	v.client.mu.Lock()
	v.client.level = level
	v.client.mu.Unlock()
	v.all(func(_ *Server, l *link) {
		if era, can := l.state(); era == mcp.Legacy && can&hasLogging != 0 {
			_, _ = l.request(v.behalf(), "logging/setLevel", []byte(`{"level":"`+level+`"}`))
		}
	})
	return v.answer([]byte("{}"))
}

// delete ends a session.
func (v *visit) delete() *jsonrpc.Failure {
	v.g.end(v.client)
	for _, s := range v.client.listening() {
		s.end()
	}
	var ending sync.WaitGroup
	for _, l := range v.client.allLinks() { // also to servers that it may not see anymore
		ending.Go(func() { l.end(v.behalf()) })
	}
	ending.Wait()
	v.w.WriteHeader(204)
	return nil
}
