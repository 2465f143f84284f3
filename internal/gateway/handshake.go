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

// A handshake is the first request of a client: initialize, or server/discover in the modern era.
type handshake struct{ *aggregateRequest }

// initialize begins a session of the client (A3 to A6). It connects to servers that are not known
// yet. Sessions with other servers begin when they are needed.
func (h handshake) initialize() *jsonrpc.Failure {
	params := h.Message.Literal(jsonrpc.Params)
	switch {
	case h.Message.Kind(jsonrpc.Params) != jsonspan.BeginObject || h.Message.Kind(jsonrpc.Requested) != jsonspan.String:
		return jsonrpc.InvalidParams("protocolVersion: missing or not a string").WithStatusOK()
	case len(params) > maxIntroduction:
		return introductionTooLarge("params: capabilities and clientInfo are larger than 16 KiB")
	}
	version := mcp.Negotiate(h.Message.Text(jsonrpc.Requested), mcp.Latest)
	edits := []jsonspan.Edit{h.Message.Replace(jsonrpc.Requested, jsonrpc.Quote(version))}
	if h.Message.Has(jsonrpc.Proxy) {
		edits = append(edits, withoutProxyParam(&h.Message))
		slices.SortFunc(edits, func(a, b jsonspan.Edit) int { return a.Start - b.Start })
	}
	whole := jsonspan.Spliced(h.Message.Raw, edits...)
	var m jsonrpc.Message
	if failure := m.Read(whole); failure != nil {
		return failure
	}
	intro := readIntroduction(slices.Clone(m.Literal(jsonrpc.Params)))
	h.client = newClient(mcp.Legacy, version, h.Caller.Identity, h.Caller.Owner(), intro)
	h.client.issued = time.Now()
	setAudience(h.client, h.g, h.Request)
	h.g.clients.addRef(h.client)
	if h.g.sealer.sealTicket(h.client.ticket(nil)) == "" {
		return introductionTooLarge("params: capabilities and clientInfo are too large for a session id")
	}
	servers, infos := h.serverInfos(never)
	h.openCarried(servers, infos)
	if h.ctx.Err() != nil {
		h.client.ended.Store(true)
		h.g.running.Go(h.endLinks) // the client will never use these sessions
		return nil
	}
	links := map[string]linkTicket{}
	for _, s := range servers {
		if l := h.client.existingLink(s); l != nil {
			if ticket, ok := l.session.carry(); ok {
				ticket.Server = s.ShortID()
				links[s.Name] = ticket
			}
		}
	}
	id := h.g.sealer.sealTicket(h.client.ticket(links))
	h.client = h.g.clients.get(id, func() *client { return h.client })
	h.g.replicaSync.noteNewSession(h.client)
	h.g.clients.release(h.client) // the reference of the client without a key
	h.Writer.Header().Set(mcp.SessionHeader, id)

	result := map[string]any{
		"protocolVersion": version,
		"capabilities":    h.capabilities(servers, infos),
		"serverInfo":      h.g.info,
	}
	if text := h.instructions(servers, infos); text != "" {
		result["instructions"] = text
	}
	return h.answerResult(jsonrpc.Encode(result))
}

// openCarried opens the sessions that the session id must carry, so that other processes can
// continue them. Child processes belong to this process, so their sessions are not carried.
func (h handshake) openCarried(servers []*upstream.Server, infos []*serverInfo) {
	if !h.g.config.Resumable {
		return
	}
	bg := newBackground(h.aggregateRequest, len(servers))
	defer bg.requestAnswered()
	for i, s := range servers {
		if infos[i] != nil && infos[i].hasSession && !s.ChildrenOnly {
			bg.Go(func() {
				_ = h.client.linkTo(s).open(bg.scope) // opened again on demand if it fails
				bg.arrivals <- func() {}
			})
		}
	}
	bg.collect(h.ctx, never)
}

// endLinks ends the sessions with all servers after the client disconnected.
func (h handshake) endLinks() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(h.ctx), h.g.config.JoinTimeout)
	defer cancel()
	for _, l := range h.client.allLinks() {
		if h.g.linkServer(l) != nil {
			l.end(h.scope().withContext(ctx))
		}
	}
}

// discover answers server/discover.
func (h handshake) discover() *jsonrpc.Failure {
	servers, infos := h.serverInfos(never)
	if h.ctx.Err() != nil {
		return nil
	}
	versions := mcp.Versions()
	slices.Reverse(versions)
	result := map[string]any{
		"supportedVersions": versions,
		"capabilities":      h.capabilities(servers, infos),
		"ttlMs":             0,
		"cacheScope":        "private",
	}
	if text := h.instructions(servers, infos); text != "" {
		result["instructions"] = text
	}
	return h.answerResult(jsonrpc.Encode(result))
}

// capabilities returns the union of the capabilities of all servers (A4). A missing server may have
// any lists, and clients ask for capabilities only once, so it counts as having all of them.
func (h handshake) capabilities(servers []*upstream.Server, infos []*serverInfo) map[string]any {
	all := map[string]any{}
	for i := range servers {
		if infos[i] == nil {
			merge(all, map[string]any{"tools": map[string]any{}, "prompts": map[string]any{}, "resources": map[string]any{}})
			continue
		}
		var one map[string]any
		if json.Unmarshal([]byte(infos[i].capabilities.text()), &one) == nil {
			merge(all, one)
		}
	}
	if h.era == mcp.Modern {
		delete(all, "tasks") // the tasks of legacy servers; modern tasks are an extension
	}
	if h.g.builtin.list(mcp.Tools, h.Caller.Identity) != nil && all["tools"] == nil {
		all["tools"] = map[string]any{}
	}
	if h.g.builtin.list(mcp.Templates, h.Caller.Identity) != nil && all["resources"] == nil {
		all["resources"] = map[string]any{}
	}
	for _, name := range [...]string{"tools", "prompts", "resources"} {
		if category, ok := all[name].(map[string]any); ok {
			category["listChanged"] = true // servers come and go
		}
	}
	return all
}

// merge adds one object to another, recursively.
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

// instructions returns the instructions of all servers, and the names of missing servers.
func (h handshake) instructions(servers []*upstream.Server, infos []*serverInfo) string {
	var texts []string
	for i, s := range servers {
		switch {
		case infos[i] == nil || infos[i].instructions.text() == "":
		case h.g.names.areUnchanged():
			return infos[i].instructions.text()
		default:
			texts = append(texts, s.Name+":\n"+infos[i].instructions.text())
		}
	}
	if text := h.missingText(servers, infos); text != "" {
		texts = append(texts, text)
	}
	return strings.Join(texts, "\n\n")
}

// setLevel answers logging/setLevel. It forwards the level to all servers that log (A15).
func (req *aggregateRequest) setLevel() *jsonrpc.Failure {
	level := req.Message.Text(jsonrpc.Level)
	if !slices.Contains(mcp.LogLevels, level) {
		return jsonrpc.InvalidParams("level: must be one of " + strings.Join(mcp.LogLevels, ", ")).WithStatusOK()
	}
	req.client.mu.Lock()
	req.client.level = level
	req.client.mu.Unlock()
	req.forEachOpenLink(func(_ *upstream.Server, l *link) { // other servers get the level when their sessions begin
		if server := l.session.current(); server.Era == mcp.Legacy && server.Can&mcp.HasLogging != 0 {
			l.session.markUsed()
			_ = l.request(req.scope(), "logging/setLevel", []byte(`{"level":"`+level+`"}`))
		}
	})
	if req.g.replicaSync != nil {
		sessions := req.g.sharedSessions(req.client.allLinks()...)
		req.g.replicaSync.shareChange(req.ctx, req.client, sessionChange{Level: level, Told: sessions})
	}
	return req.answerResult([]byte("{}"))
}

// delete ends a session.
func (req *aggregateRequest) delete() *jsonrpc.Failure {
	req.g.endedSessions.end(req.client)
	for _, s := range req.client.openStreams() {
		s.end()
	}
	var ending sync.WaitGroup
	for _, l := range req.client.allLinks() { // including servers that the client may no longer see
		ending.Go(func() { l.end(req.scope()) })
	}
	req.g.replicaSync.shareEnd(req.ctx, req.client, req.HTTP)
	ending.Wait()
	req.Writer.WriteHeader(204)
	return nil
}

// maxMissing limits the server names in missingText.
const maxMissing = 20

// missingText returns a text that names the servers that are missing.
func (h handshake) missingText(servers []*upstream.Server, infos []*serverInfo) string {
	if !h.g.config.ReportMissing {
		return ""
	}
	var names []string
	for i, s := range servers {
		if cause := s.MissingCause(); infos[i] == nil && cause != jsonrpc.CauseLogin {
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
