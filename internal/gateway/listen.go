package gateway

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// listen answers subscriptions/listen of a modern client.
func (req *aggregateRequest) listen() *jsonrpc.Failure {
	wants, failure := readInterests(&req.Message)
	if failure != nil {
		return failure
	}
	size := wants.size()
	if len(wants.URIs)+len(wants.Tasks) > maxSubscriptions || !req.g.subscriptionMeter.Take(req.client.owner, size) {
		return jsonrpc.InvalidParams("resourceSubscriptions, taskIds: too many entries")
	}
	var s *stream
	defer func() {
		switch {
		case s == nil:
			req.g.subscriptionMeter.Give(req.client.owner, size)
		case !req.IsParked():
			s.close() // returns the quota, too
		}
	}()
	wants.resolve(req)
	if !req.out.AcceptsStream() {
		return notAcceptable()
	}
	req.KeepID()
	servers, infos := req.serverInfos(func() bool { return len(wants.URIs)+len(wants.Tasks) > 0 })
	agreed := &listenRequest{interests: wants.agreed(servers, infos), id: req.Message.Literal(jsonrpc.ID), size: size}
	s = req.newStream(agreed)
	if !agreed.isEmpty() {
		s.listenToAll("", "")
	}
	req.out.Event(&streamable.Event{Data: agreed.acknowledgement()})
	if !agreed.isEmpty() {
		if s.park(req.Request) {
			return nil
		}
		s.keepOpen()
	}
	s.answerListen()
	return nil
}

// interests are what a modern client listens to.
type interests struct {
	Tools     bool     `json:"toolsListChanged,omitempty"`
	Prompts   bool     `json:"promptsListChanged,omitempty"`
	Resources bool     `json:"resourcesListChanged,omitempty"`
	URIs      []string `json:"resourceSubscriptions,omitempty"`
	Tasks     []string `json:"taskIds,omitempty"`

	serverURIs  map[string][]string // the servers' URIs of the resources, by server
	shownURIs   map[string]string   // the client's URIs, by server and server's URI
	serverTasks map[string][]string // the servers' ids of the tasks, by server
}

// readInterests reads the interests in a listen request.
func readInterests(m *jsonrpc.Message) (*interests, *jsonrpc.Failure) {
	wants := new(interests)
	if m.Kind(jsonrpc.Notifications) != jsonspan.BeginObject ||
		json.Unmarshal(m.Literal(jsonrpc.Notifications), wants) != nil {
		return nil, jsonrpc.InvalidParams("notifications: missing or not a valid object")
	}
	if len(wants.Tasks) > 0 && !mcp.SupportsTasks(m.Literal(jsonrpc.ClientCapabilities)) {
		return nil, jsonrpc.MissingExtension(mcp.TasksExtension)
	}
	for _, name := range slices.Concat(wants.URIs, wants.Tasks) {
		if len(name) > mcp.LongestURI {
			return nil, jsonrpc.InvalidParams("resourceSubscriptions, taskIds: an entry is longer than 8 KiB")
		}
	}
	return wants, nil
}

func (i interests) isEmpty() bool {
	return !i.Tools && !i.Prompts && !i.Resources && len(i.URIs) == 0 && len(i.Tasks) == 0
}

// size returns the bytes to count for subscriptions.
func (i *interests) size() (bytes int64) {
	for _, name := range slices.Concat(i.URIs, i.Tasks) {
		bytes += int64(len(name))
	}
	return bytes
}

// kinds returns the lists whose changes are wanted.
func (i *interests) kinds() (kinds []mcp.ListKind) {
	if i.Tools {
		kinds = append(kinds, mcp.Tools)
	}
	if i.Prompts {
		kinds = append(kinds, mcp.Prompts)
	}
	if i.Resources {
		kinds = append(kinds, mcp.Resources, mcp.Templates)
	}
	return kinds
}

// resolve finds the servers of the resources and tasks. It drops those that the client may not use.
func (i *interests) resolve(req *aggregateRequest) {
	i.serverURIs, i.shownURIs, i.serverTasks = map[string][]string{}, map[string]string{}, map[string][]string{}
	asked := map[*upstream.Server][]string{}
	for _, shown := range i.Tasks {
		s, id := req.g.names.task(shown)
		if s != nil && req.g.rules.AllowsUnknown(req.Caller.Identity, s.Name) {
			asked[s] = append(asked[s], id)
		}
	}
	for s, ids := range asked {
		for n, has := range req.g.tasks.HasEach(&req.Caller, s, ids) {
			if has {
				i.serverTasks[s.Name] = append(i.serverTasks[s.Name], ids[n])
			}
		}
	}
	search := ownerSearch{aggregateRequest: req}
	for _, shown := range i.URIs {
		s, uri := req.g.names.resource(shown)
		switch {
		case s != nil:
		case req.g.names.areUnchanged():
			s, uri = req.g.names.only, shown
		default:
			s, _ = search.find(shown)
			uri = shown
		}
		if s == nil || !req.g.rules.AllowsSubscription(req.Caller.Identity, s.Name, uri) {
			continue
		}
		i.serverURIs[s.Name] = append(i.serverURIs[s.Name], uri)
		i.shownURIs[s.Name+"\x00"+uri] = shown
	}
}

// forServer returns the interests that apply to a server with these abilities, with the server's
// URIs.
func (i *interests) forServer(server string, can mcp.Abilities) interests {
	subset := interests{
		Tools:     i.Tools && can&mcp.ToolsChange != 0,
		Prompts:   i.Prompts && can&mcp.PromptsChange != 0,
		Resources: i.Resources && can&mcp.ResourcesChange != 0,
	}
	if can&mcp.CanSubscribe != 0 {
		subset.URIs = i.serverURIs[server]
	}
	if can&mcp.NotifiesTasks != 0 {
		subset.Tasks = i.serverTasks[server]
	}
	return subset
}

// agreed returns the interests that servers support.
func (i *interests) agreed(servers []*upstream.Server, infos []*serverInfo) interests {
	agreed := interests{serverURIs: map[string][]string{}, shownURIs: i.shownURIs, serverTasks: map[string][]string{}}
	for n, server := range servers {
		// The gateway itself sends list-changed notifications, because servers come and go.
		subset := i.forServer(server.Name, infos[n].abilities()|mcp.ToolsChange|mcp.PromptsChange|mcp.ResourcesChange)
		agreed.Tools = agreed.Tools || subset.Tools
		agreed.Prompts = agreed.Prompts || subset.Prompts
		agreed.Resources = agreed.Resources || subset.Resources
		if len(subset.URIs) > 0 {
			agreed.serverURIs[server.Name] = subset.URIs
			for _, uri := range subset.URIs {
				agreed.URIs = append(agreed.URIs, i.shownURIs[server.Name+"\x00"+uri])
			}
		}
		if len(subset.Tasks) > 0 {
			agreed.serverTasks[server.Name] = subset.Tasks
			agreed.Tasks = append(agreed.Tasks, subset.Tasks...) // subject to the server's agreement
		}
	}
	return agreed
}

// wantsNotice reports whether the client wants a list-changed notification.
func (i *interests) wantsNotice(notice string) bool {
	switch notice {
	case mcp.ListKinds[mcp.Tools].Notice:
		return i.Tools
	case mcp.ListKinds[mcp.Prompts].Notice:
		return i.Prompts
	case mcp.ListKinds[mcp.Resources].Notice:
		return i.Resources
	}
	return false
}

// wantsMessage reports whether the client wants a message of a server.
func (i *interests) wantsMessage(m *jsonrpc.Message, server string) bool {
	switch m.Text(jsonrpc.Method) {
	case mcp.MethodUpdated:
		return slices.Contains(i.serverURIs[server], m.Text(jsonrpc.URI))
	case mcp.MethodTask:
		return slices.Contains(i.serverTasks[server], m.Text(jsonrpc.TaskID))
	}
	return i.wantsNotice(m.Text(jsonrpc.Method))
}

// A listenRequest is a subscriptions/listen request that a stream answers. It is nil for the stream
// of a legacy client, which gets everything.
type listenRequest struct {
	interests
	id   []byte
	size int64 // bytes counted for subscriptions

	mu    sync.Mutex
	tasks []string // tasks whose updates servers have agreed to send
}

// wantsChanges reports whether the client wants list-changed notifications and a server may send
// them. info is nil if unknown.
func (lr *listenRequest) wantsChanges(info *serverInfo) bool {
	if info != nil && info.can&(mcp.ToolsChange|mcp.PromptsChange|mcp.ResourcesChange) == 0 {
		return false
	}
	return lr == nil || lr.Tools || lr.Prompts || lr.Resources
}

// noteAgreedTasks notes the tasks in a server's acknowledgement.
func (lr *listenRequest) noteAgreedTasks(g *Gateway, l *link, m *jsonrpc.Message) {
	var ids []string
	if lr == nil || !m.Has(jsonrpc.TaskIDs) || json.Unmarshal(m.Literal(jsonrpc.TaskIDs), &ids) != nil {
		return
	}
	lr.mu.Lock()
	defer lr.mu.Unlock()
	for _, id := range ids {
		shown := g.names.shown(l.serverName, mcp.Tasks, id)
		if slices.Contains(lr.serverTasks[l.serverName], id) && !slices.Contains(lr.tasks, shown) {
			lr.tasks = append(lr.tasks, shown)
		}
	}
}

const methodAcknowledged = "notifications/subscriptions/acknowledged"

// acknowledgement returns the notification that begins the stream. Its tasks are those that servers
// have agreed to up to now.
func (lr *listenRequest) acknowledgement() []byte {
	agreed := lr.interests
	lr.mu.Lock()
	agreed.Tasks = slices.Clone(lr.tasks)
	lr.mu.Unlock()
	params := slices.Concat([]byte(`{"notifications":`), jsonrpc.Encode(agreed), []byte("}"))
	return lr.withID(jsonrpc.Notification(methodAcknowledged, params))
}

// withID returns a message with the id of the request.
func (lr *listenRequest) withID(raw []byte) []byte {
	var m jsonrpc.Message
	if m.Read(raw) != nil {
		return raw
	}
	if m.Has(jsonrpc.SubscriptionID) {
		return jsonspan.Spliced(raw, m.Replace(jsonrpc.SubscriptionID, lr.id))
	}
	return jsonspan.Spliced(raw, m.InsertMeta(slices.Concat([]byte(`"`+mcp.MetaSubscriptionID+`":`), lr.id)))
}

// result returns the response to the request.
func (lr *listenRequest) result() []byte {
	return jsonrpc.ResultResponse(lr.id, slices.Concat(
		[]byte(`{"resultType":"complete","_meta":{"`+mcp.MetaSubscriptionID+`":`), lr.id, []byte("}}")))
}

// answerListen sends the result of subscriptions/listen, unless the client disconnected.
func (s *stream) answerListen() {
	if !s.hasClientLeft() {
		s.req.out.Answer(http.StatusOK, &streamable.Event{Data: s.wants.result()})
	}
}

// get answers GET: it opens the stream of a legacy session.
func (req *aggregateRequest) get() *jsonrpc.Failure {
	if !req.out.AcceptsStream() {
		return notAcceptable()
	}
	kind, server, last := "", "", ""
	if bound := req.HTTP.Header.Get("Last-Event-Id"); bound != "" {
		id, ok := req.g.sealer.Claim(bound, eventOfSession, req.client.key)
		if !ok {
			id = bound
		}
		kind, id, _ = strings.Cut(id, "/")
		server, last, _ = strings.Cut(id, "/")
		switch isCallStream := strings.HasPrefix(kind, callStream); {
		case isCallStream && ok:
			return req.resumeCall(kind, server, last)
		case isCallStream:
			return unknownEventID()
		case !ok:
			server = "" // start a new stream instead of resuming
		}
	}
	s := req.newStream(nil)
	defer func() {
		if !req.IsParked() {
			s.close()
		}
	}()
	s.subscribeToReplicas()
	s.listenToAll(server, last)
	req.out.Begin()
	if !s.park(req.Request) {
		s.keepOpen()
	}
	return nil
}

// listenInStreams makes the streams of the client listen to a new session. It waits until they do,
// at most joinWait: a call may cause server requests in such a stream.
func (l *link) listenInStreams(sc scope) {
	server := sc.g.linkServer(l)
	if server == nil {
		return
	}
	for _, s := range l.client.openStreams() {
		if s.wants != nil || s.work.listensTo(l.serverID) || !s.g.Load().rules.Sees(l.client.identity, server.Name) {
			continue
		}
		s.join(func(onStarted func()) { s.listenToServer(server, "", onStarted) })
	}
}
