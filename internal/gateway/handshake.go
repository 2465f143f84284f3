package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A handshake is a request by which a client gets to know the gateway: initialize, or
// server/discover in the modern era.
type handshake struct{ *visit }

// initialize begins a session (A3 to A6). A server that is not known yet is asked what it is, which
// begins a session with it. Other sessions begin when they are needed.
func (v handshake) initialize() *jsonrpc.Failure {
	params := v.Message.Literal(jsonrpc.Params)
	switch {
	case v.Message.Kind(jsonrpc.Params) != jsonspan.BeginObject || v.Message.Kind(jsonrpc.Requested) != jsonspan.String:
		return jsonrpc.InvalidParams("protocolVersion: it is missing, or no string").AsAnswer()
	case len(params) > longestIntroduction:
		return introductionTooLarge("params: capabilities and clientInfo")
	}
	version := mcp.Negotiate(v.Message.Text(jsonrpc.Requested), mcp.Latest)
	edits := []jsonspan.Edit{v.Message.Replace(jsonrpc.Requested, jsonrpc.Quote(version))}
	if v.Message.Has(jsonrpc.Proxy) {
		edits = append(edits, v.withoutProxy())
		slices.SortFunc(edits, func(a, b jsonspan.Edit) int { return a.Start - b.Start })
	}
	whole := jsonspan.Spliced(v.Message.Raw, edits...)
	var m jsonrpc.Message
	if failure := m.Read(whole); failure != nil {
		return failure
	}
	said := readIntroduction(slices.Clone(m.Literal(jsonrpc.Params)))
	v.client = newClient(mcp.Legacy, version, v.Caller.Identity, v.Caller.Owner(), said)
	v.client.issued = time.Now()
	v.begin(v.client)
	v.g.keep(v.client)
	if v.g.sealer.sealTicket(v.client.ticket(nil)) == "" {
		return introductionTooLarge("params: capabilities and clientInfo, compressed,")
	}
	servers, met := v.meet(never)
	v.openCarried(servers, met)
	if v.ctx.Err() != nil {
		v.client.ended.Store(true)
		v.g.running.Go(v.leave) // the client does not know the sessions that exist by now
		return nil
	}
	links := map[string]linkTicket{}
	for _, s := range servers {
		if l := v.client.linked(s); l != nil {
			if ticket, ok := l.carry(); ok {
				ticket.Server = s.ShortID()
				links[s.Name] = ticket
			}
		}
	}
	id := v.g.sealer.sealTicket(v.client.ticket(links))
	v.client = v.g.client(id, func() *client { return v.client })
	v.g.elsewhere.begun(v.client)
	v.g.release(v.client) // as the one that had no id yet
	v.Writer.Header().Set(mcp.SessionHeader, id)

	result := map[string]any{
		"protocolVersion": version,
		"capabilities":    v.capabilities(servers, met),
		"serverInfo":      v.g.info,
	}
	if text := v.instructions(servers, met); text != "" {
		result["instructions"] = text
	}
	return v.answer(jsonrpc.Encode(result))
}

// openCarried opens the sessions that have to be in the session id of the client, if others may
// have to go on with them. A child process is known to this process alone.
func (v handshake) openCarried(servers []*upstream.Server, met []*about) {
	if !v.g.config.Resumable {
		return
	}
	arrivals := make(chan func(), len(servers))
	aside := v.beside()
	defer aside.leave()
	opening := 0
	for i, s := range servers {
		if met[i] != nil && met[i].session && !s.ChildrenOnly {
			opening++
			aside.Go(func() {
				_ = v.client.link(s).open(aside.behalf) // it is tried again when it is needed
				arrivals <- func() {}
			})
		}
	}
	v.gather(aside, opening, arrivals, never)
}

// leave ends the sessions with all servers of a client that has left.
func (v handshake) leave() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(v.ctx), v.g.config.JoinTimeout)
	defer cancel()
	for _, l := range v.client.allLinks() {
		if v.g.of(l) != nil {
			l.end(v.behalf().within(ctx))
		}
	}
}

// discover answers server/discover.
func (v handshake) discover() *jsonrpc.Failure {
	servers, met := v.meet(never)
	if v.ctx.Err() != nil {
		return nil
	}
	versions := mcp.Versions()
	slices.Reverse(versions)
	result := map[string]any{
		"supportedVersions": versions,
		"capabilities":      v.capabilities(servers, met),
		"ttlMs":             0,
		"cacheScope":        "private",
	}
	if text := v.instructions(servers, met); text != "" {
		result["instructions"] = text
	}
	return v.answer(jsonrpc.Encode(result))
}

// capabilities returns what all servers can do together (A4). As long as one of them
// is missing, it may have lists of all kinds: clients do not ask again, and a list may be empty.
func (v handshake) capabilities(servers []*upstream.Server, met []*about) map[string]any {
	all := map[string]any{}
	for i := range servers {
		if met[i] == nil {
			merge(all, map[string]any{"tools": map[string]any{}, "prompts": map[string]any{}, "resources": map[string]any{}})
			continue
		}
		var one map[string]any
		if json.Unmarshal([]byte(met[i].capabilities.text()), &one) == nil {
			merge(all, one)
		}
	}
	if v.era == mcp.Modern {
		delete(all, "tasks") // as servers of the legacy era have them; those of this era are an extension
	}
	if v.g.own.list(mcp.Tools, v.Caller.Identity) != nil && all["tools"] == nil {
		all["tools"] = map[string]any{}
	}
	if v.g.own.list(mcp.Templates, v.Caller.Identity) != nil && all["resources"] == nil {
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

// instructions returns what the servers say of how they are to be used, and which of them are missing.
func (v handshake) instructions(servers []*upstream.Server, met []*about) string {
	var texts []string
	for i, s := range servers {
		switch {
		case met[i] == nil || met[i].instructions.text() == "":
		case v.g.transparent():
			return met[i].instructions.text()
		default:
			texts = append(texts, s.Name+":\n"+met[i].instructions.text())
		}
	}
	if text := v.missingText(servers, met); text != "" {
		texts = append(texts, text)
	}
	return strings.Join(texts, "\n\n")
}

// setLevel passes on which log messages the client wants, to all servers that log (A15).
func (v *visit) setLevel() *jsonrpc.Failure {
	level := v.Message.Text(jsonrpc.Level)
	if !slices.Contains(mcp.LogLevels, level) {
		return jsonrpc.InvalidParams("level: it is none of " + strings.Join(mcp.LogLevels, ", ")).AsAnswer()
	}
	v.client.mu.Lock()
	v.client.level = level
	v.client.mu.Unlock()
	v.linked(func(_ *upstream.Server, l *link) { // others get to know it when their sessions begin
		if era, can := l.state(); era == mcp.Legacy && can&mcp.HasLogging != 0 {
			l.use()
			_, _ = l.request(v.behalf(), "logging/setLevel", []byte(`{"level":"`+level+`"}`))
		}
	})
	if v.g.elsewhere != nil {
		v.g.elsewhere.change(v.ctx, v.client, sessionChange{Level: level, Told: v.g.told(v.client.allLinks()...)})
	}
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
	v.endElsewhere()
	ending.Wait()
	v.Writer.WriteHeader(204)
	return nil
}

// maxMissing is how many servers are named that a client does not see.
const maxMissing = 20

// missingText tells a client which servers it does not see.
func (v handshake) missingText(servers []*upstream.Server, met []*about) string {
	if !v.g.config.ReportMissing {
		return ""
	}
	var names []string
	for i, s := range servers {
		if cause := s.MissingCause(); met[i] == nil && cause != jsonrpc.CauseLogin {
			names = append(names, fmt.Sprintf("%s (%s)", s.Name, cause))
		}
	}
	if len(names) == 0 {
		return ""
	}
	if more := len(names) - maxMissing; more > 0 {
		names = append(names[:maxMissing], fmt.Sprintf("and %d more", more))
	}
	return "Unavailable servers: " + strings.Join(names, ", ") + ". Their tools are missing until they are back."
}
