package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// interests are what a client of the modern era listens to.
type interests struct {
	Tools     bool     `json:"toolsListChanged,omitempty"`
	Prompts   bool     `json:"promptsListChanged,omitempty"`
	Resources bool     `json:"resourcesListChanged,omitempty"`
	URIs      []string `json:"resourceSubscriptions,omitempty"`

	of    map[string][]string // the URIs that servers know them by, by server
	shown map[string]string   // what the client calls them, by server and URI
}

// listen opens a stream of the modern era.
func (v *visit) listen() *jsonrpc.Failure {
	wants := new(interests)
	if v.message.Kind(jsonrpc.Notifications) != jsonspan.BeginObject || json.Unmarshal(v.message.Literal(jsonrpc.Notifications), wants) != nil {
		return jsonrpc.InvalidParams("notifications: it is missing, or no object of what to listen to")
	}
	size := int64(0)
	for _, uri := range wants.URIs {
		if size += int64(len(uri)); len(uri) > longestURI {
			return jsonrpc.InvalidParams("resourceSubscriptions: a URI has more than 8 KiB")
		}
	}
	if len(wants.URIs) > maxSubscriptions || !v.g.subscribing.Take(v.client.owner, size) {
		return jsonrpc.InvalidParams("resourceSubscriptions: there are too many")
	}
	defer v.g.subscribing.Give(v.client.owner, size)
	wants.resolve(v)
	if !v.out.AcceptsStream() {
		return notAcceptable()
	}
	v.all(func(_ *Server, l *link) { _ = l.open(v.origin()) })
	agreed := interests{of: map[string][]string{}, shown: wants.shown}
	for _, server := range v.g.rules.seen(v.caller.identity) {
		_, can := v.client.link(server).state()
		mine := wants.at(server.Name, can|toolsChange|promptsChange|resourcesChange) // ours: servers come and go
		agreed.Tools, agreed.Prompts, agreed.Resources = agreed.Tools || mine.Tools, agreed.Prompts || mine.Prompts, agreed.Resources || mine.Resources
		if len(mine.URIs) > 0 {
			agreed.of[server.Name] = mine.URIs
			for _, uri := range mine.URIs {
				agreed.URIs = append(agreed.URIs, wants.shown[server.Name+"\x00"+uri])
			}
		}
	}
	s := v.newStream(&agreed)
	defer s.close()
	if !agreed.nothing() {
		s.await(s.join(func(string) string { return "" }))
	}
	v.out.Event(&streamable.Event{Data: s.tagged(jsonrpc.Notification("notifications/subscriptions/acknowledged",
		slices.Concat([]byte(`{"notifications":`), jsonrpc.Encode(agreed), []byte("}"))))})
	if !agreed.nothing() {
		s.last()
	}
	if v.r.Context().Err() == nil || s.g.Load().exiting() {
		v.out.Answer(http.StatusOK, &streamable.Event{Data: jsonrpc.Answer(v.message.Literal(jsonrpc.ID), slices.Concat(
			[]byte(`{"resultType":"complete","_meta":{"`+mcp.MetaSubscriptionID+`":`), v.message.Literal(jsonrpc.ID), []byte("}}")))})
	}
	return nil
}

func (i interests) nothing() bool {
	return !i.Tools && !i.Prompts && !i.Resources && len(i.URIs) == 0
}

// kinds returns of which lists one hears.
func (i *interests) kinds() (heard []kind) {
	if i.Tools {
		heard = append(heard, tools)
	}
	if i.Prompts {
		heard = append(heard, prompts)
	}
	if i.Resources {
		heard = append(heard, resources, templates)
	}
	return heard
}

// resolve finds out whose resources are meant. Those that the client may not have are
// left out.
func (i *interests) resolve(v *visit) {
	i.of, i.shown = map[string][]string{}, map[string]string{}
	for _, shown := range i.URIs {
		s, uri := v.g.locate(shown)
		if s == nil && v.g.transparent() {
			s, uri = v.g.config.Servers[0], shown
		}
		if s == nil || !v.g.rules.hears(v.caller.identity, s, uri) {
			continue
		}
		i.of[s.Name] = append(i.of[s.Name], uri)
		i.shown[s.Name+"\x00"+uri] = shown
	}
}

// at returns which of the interests concern a server that can do this, with URIs as it
// has them.
func (i *interests) at(server string, can abilities) interests {
	mine := interests{
		Tools:     i.Tools && can&toolsChange != 0,
		Prompts:   i.Prompts && can&promptsChange != 0,
		Resources: i.Resources && can&resourcesChange != 0,
	}
	if can&canSubscribe != 0 {
		mine.URIs = i.of[server]
	}
	return mine
}

// want reports whether a message of a server is one of those that are listened to.
func (i *interests) want(m *jsonrpc.Message, server string) bool {
	switch m.Text(jsonrpc.Method) {
	case kinds[tools].notice:
		return i.Tools
	case kinds[prompts].notice:
		return i.Prompts
	case kinds[resources].notice:
		return i.Resources
	case mcp.MethodUpdated:
		return slices.Contains(i.of[server], m.Text(jsonrpc.URI))
	}
	return false
}

// subscribe subscribes to the resources of a server of the legacy era that the
// stream listens to. What it returns undoes that.
func (s *stream) subscribe(o origin, l *link) (undo func()) {
	_, can := l.state()
	mine := s.wants.at(l.server, can)
	var done []string
	for _, uri := range mine.URIs {
		if _, failure := l.request(o, "resources/subscribe", mcp.URIParams(uri)); failure == nil {
			done = append(done, uri)
		} else {
			o.g.config.Logger.Warn("not subscribed", zap.String("mcp_server", l.server), zap.Error(failure))
		}
	}
	return func() {
		// The client may have left already.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(o.ctx), partingTime)
		defer cancel()
		for _, uri := range done {
			if !l.client.wants(s, l.server, uri) {
				_, _ = l.request(o.within(ctx), "resources/unsubscribe", mcp.URIParams(uri))
			}
		}
	}
}

// wants reports whether another stream of the client listens to a resource.
func (c *client) wants(except *stream, server, uri string) bool {
	return slices.ContainsFunc(c.listening(), func(s *stream) bool {
		return s != except && s.wants != nil && slices.Contains(s.wants.of[server], uri)
	})
}

// hearListen listens to a server of the modern era.
func (s *stream) hearListen(o origin, l *link, can abilities, uri string, begun func()) (again bool) {
	all := s.wants
	switch {
	case uri != "":
		all = &interests{of: map[string][]string{l.server: {uri}}}
	case all == nil:
		all = &interests{Tools: true, Prompts: true, Resources: true}
	}
	mine := all.at(l.server, can)
	if mine.nothing() {
		return false
	}
	params := withMeta(slices.Concat([]byte(`{"notifications":`), jsonrpc.Encode(mine), []byte("}")), l.client.meta(""))
	body := jsonrpc.RequestAs(l.nextID(), mcp.MethodListen, params)
	r, _, _ := l.prepare(o)
	var m jsonrpc.Message
	if m.Read(body) != nil {
		return false
	}
	mcp.SetModern(r.Header, &m, mcp.Stateless)
	httpbody.Post(r, body)
	heard, refused := false, false
	h := &streamable.Reader{OnMessage: func(e *streamable.Event) error {
		m := e.Message
		switch {
		case len(e.Data) == 0:
		case m.IsAnswer():
			refused = m.Has(jsonrpc.Error)
		case m.Is(jsonrpc.Method, "notifications/subscriptions/acknowledged"):
			if !heard {
				heard = true
				l.lists.listen(mine.kinds(), 1)
				begun()
			}
		default:
			l.unsolicited(o).note(m)
			s.deliver(o.g, l, m, "")
		}
		return nil
	}}
	_ = o.g.newExchange(l, h, &m).send(r)
	if heard {
		l.lists.listen(mine.kinds(), -1)
	}
	return !refused
}

// subscribe notes that the client wants to know of changes of a resource, or does not
// any more (A68).
func (c *call) subscribe(on bool) *jsonrpc.Failure {
	s, target, edits, failure := c.findResource(jsonrpc.URI)
	if failure == nil {
		failure = c.admit(target)
	}
	if failure != nil {
		return failure
	}
	l := c.client.link(s)
	if failure := l.open(c.origin()); failure != nil {
		return c.failed(failure)
	}
	uri, shown := target.Name, ""
	if c.alias.isSet() {
		shown = c.alias.shown
	}
	era, _ := l.state()
	limit := maxSubscriptions
	if era == mcp.Modern {
		limit = maxListeners
	}
	added := false
	switch {
	case len(uri) > longestURI || len(shown) > longestURI:
		return invalid("uri: it has more than 8 KiB")
	case !on:
		l.subscriptions.remove(c.g.subscribing, c.client.owner, uri)
	default:
		var ok bool
		if added, ok = l.subscriptions.add(c.g.subscribing, c.client.owner, uri, shown, limit); !ok {
			return invalid("uri: there are too many subscriptions")
		}
	}
	if era == mcp.Legacy {
		failure := c.pass(s, target, edits)
		if added && (failure != nil || c.errorCode != 0) {
			l.subscriptions.remove(c.g.subscribing, c.client.owner, uri) // which the server has not agreed to
		}
		return failure
	}
	c.server = s
	for _, listening := range c.client.listening() {
		if !on {
			listening.stop(earKey{s.ID, uri})
			continue
		}
		// The answer tells the client that it will hear of changes from now on.
		begun := make(chan struct{})
		listening.listenTo(earKey{s.ID, uri}, "", sync.OnceFunc(func() { close(begun) }))
		listening.await(begun)
	}
	return c.answer([]byte("{}"))
}

// stop listens no longer to something.
func (s *stream) stop(key earKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.ears[key]; e != nil {
		e.stop()
		delete(s.ears, key)
	}
}

// To how many resources of a server a client can subscribe: of a server of the modern
// era each takes a stream.
const maxSubscriptions, maxListeners = 1_000, 64

// longestURI is how long the URI of a subscription may be.
const longestURI = 8 << 10

// subscriptionLimits are for all servers and clients of a gateway.
var subscriptionLimits = quota.Limits{Entries: 100_000, Bytes: 64 << 20, OwnerEntries: 10_000, OwnerBytes: 8 << 20}

var keptSubscriptions = quota.NewKind("subscriptions")

// subscriptions are the resources of a server that a client has subscribed to. A server of the
// modern era has no such request, and one of the legacy era may have to be asked again.
type subscriptions struct {
	mu      sync.Mutex
	uris    []string          // sorted
	aliases map[string]string // what the client calls those that it has subscribed to by another URI
}

// add notes a subscription, made by an alias if that is not empty, unless there are as many
// as the limit. It reports whether it was not there before, and whether it is now.
func (s *subscriptions) add(meter *quota.Meter, owner, uri, alias string, limit int) (added, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, there := slices.BinarySearch(s.uris, uri)
	switch {
	case there && (alias == "" || alias == s.aliases[uri]):
		return false, true
	case there: // by another URI
		s.drop(meter, owner, i)
	}
	if len(s.uris) == limit || !meter.Take(owner, int64(len(uri)+len(alias))) {
		return false, false
	}
	s.uris = slices.Insert(s.uris, i, uri)
	if alias != "" {
		if s.aliases == nil {
			s.aliases = map[string]string{}
		}
		s.aliases[uri] = alias
	}
	return !there, true
}

// remove notes that a subscription has ended.
func (s *subscriptions) remove(meter *quota.Meter, owner, uri string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, there := slices.BinarySearch(s.uris, uri); there {
		s.drop(meter, owner, i)
	}
}

// removeAll notes that all subscriptions have ended.
func (s *subscriptions) removeAll(meter *quota.Meter, owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.uris) > 0 {
		s.drop(meter, owner, len(s.uris)-1)
	}
}

// drop removes a subscription. The caller holds the lock.
func (s *subscriptions) drop(meter *quota.Meter, owner string, i int) {
	uri := s.uris[i]
	meter.Give(owner, int64(len(uri)+len(s.aliases[uri])))
	s.uris = slices.Delete(s.uris, i, i+1)
	delete(s.aliases, uri)
}

// has reports whether the client has subscribed to a resource.
func (s *subscriptions) has(uri string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, there := slices.BinarySearch(s.uris, uri)
	return there
}

// all returns the URIs of all of them.
func (s *subscriptions) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.uris)
}

// alias returns what the client calls a resource, if it has subscribed to it by another URI.
func (s *subscriptions) alias(uri string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.aliases[uri]
}

// size returns about how much memory they take.
func (s *subscriptions) size() (bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, uri := range s.uris {
		bytes += len(uri) + len(s.aliases[uri])
	}
	return bytes
}

// unsubscribe ends all subscriptions of a client that nothing can be sent to anymore.
func (c *client) unsubscribe(meter *quota.Meter) {
	for _, l := range c.allLinks() {
		l.subscriptions.removeAll(meter, c.owner)
	}
}
