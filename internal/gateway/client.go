package gateway

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A client is a legacy session, or all modern requests that seem to come from the same client.
type client struct {
	key         string // key in the clientTable, "" until the session has begun; set under its lock and mu
	refs        int    // number of users; guarded by clientTable.mu
	audience    string // key of the audience
	fingerprint uint64 // of the request that began the session, see [fingerprintOf]

	era          mcp.Era
	version      string
	identity     string    // "" if unknown
	owner        string    // whose quotas the client counts against
	issued       time.Time // when the session began
	introduction *introduction
	inspection   *upstream.Inspection // set for an operator that acts as this client

	record         recordState // exchanged with other replicas
	readyAnnounced atomic.Bool // servers have got notifications/initialized, or are about to

	ended    atomic.Bool // the client has ended the session
	isolated atomic.Bool // sends other credentials than its audience: nothing from servers is shared with others

	calls          activeCalls
	serverRequests serverRequests
	listed         listedItems

	mu      sync.Mutex
	links   []*link   // sorted by server ID
	streams []*stream // newest first: connections of older ones may be dead
	level   string    // log level that the client wants
	hash    [16]byte  // of key, computed when first needed
}

func newClient(era mcp.Era, version, identity, owner string, intro *introduction) *client {
	return &client{era: era, version: version, identity: identity, owner: owner, introduction: intro}
}

// hasKey reports whether the client's session has begun. Servers may still be connecting in the
// background when it begins. What runs there must call hasKey before it reads the key.
func (c *client) hasKey() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.key != ""
}

// keyHash returns the hash of the client's key.
func (c *client) keyHash() [16]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hash == [16]byte{} {
		c.hash = hashKey(c.key)
	}
	return c.hash
}

// hashKey returns the hash of the key of a client.
func hashKey(key string) [16]byte {
	sum := sha256.Sum256([]byte(key))
	return [16]byte(sum[:])
}

// size returns the approximate memory use of an idle client.
func (c *client) size() int64 {
	size := 1<<10 + c.introduction.size()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.links {
		size += l.size()
	}
	return int64(size)
}

// hasUncarriedState reports whether the client has state that its session id does not carry.
func (c *client) hasUncarriedState() bool {
	return c.logLevel() != "" || slices.ContainsFunc(c.allLinks(), func(l *link) bool {
		return l.subscriptions.size() > 0 || !l.session.isCarried()
	})
}

// An uptime is a time since the process started; 0 means never. It takes a third of the memory of a
// [time.Time].
type uptime time.Duration

var processStart = time.Now()

func uptimeOf(t time.Time) uptime {
	if t.IsZero() {
		return 0
	}
	return uptime(t.Sub(processStart))
}

// listedItems are facts about the lists that a client got.
type listedItems struct {
	mu sync.Mutex
	at [mcp.ListKindCount]uptime // when the client last requested each list

	// plainUIs are the last tool lists in which the client got all UI resources under their own
	// URIs, by server ID.
	plainUIs map[string]catalog.Key
}

// note notes that the client gets a list. It reports whether it is the first of its kind.
func (l *listedItems) note(k mcp.ListKind) (first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	first = l.at[k] == 0
	l.at[k] = uptimeOf(time.Now())
	return first
}

// missedChanges returns the kinds of lists that changed after the client got them.
func (l *listedItems) missedChanges(lists *catalog.Cache) (missed []mcp.ListKind) {
	changed := lists.ChangedAt()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range catalog.AnnouncedKinds {
		if got := l.at[k]; got != 0 && uptimeOf(changed[k]) > got {
			missed = append(missed, k)
		}
	}
	return missed
}

// notePlainUIs notes that the client got a tool list in which all UI resources have their own URIs.
func (l *listedItems) notePlainUIs(s *upstream.Server, key catalog.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.plainUIs == nil {
		l.plainUIs = map[string]catalog.Key{}
	}
	l.plainUIs[s.ID] = key
}

// plainUIList returns the tool list in which the client got the UI resources of a server under
// their own URIs. While that list is cached, the client knows them, even if another server starts
// to use the same URI.
func (l *listedItems) plainUIList(s *upstream.Server) catalog.Key {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.plainUIs[s.ID]
}

// existingLink returns the client's link to a server, nil if there is none.
func (c *client) existingLink(server *upstream.Server) *link {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, l := c.findLink(server.ID)
	return l
}

// findLink returns the client's link to a server and its index in links. If there is none, it
// returns nil and the index to insert it at. The caller holds the lock.
func (c *client) findLink(id string) (i int, l *link) {
	compare := func(l *link, id string) int { return strings.Compare(l.serverID, id) }
	i, found := slices.BinarySearchFunc(c.links, id, compare)
	if found {
		l = c.links[i]
	}
	return i, l
}

// linkTo returns the client's link to a server. A new link is not open yet.
func (c *client) linkTo(server *upstream.Server) *link {
	c.mu.Lock()
	defer c.mu.Unlock()
	i, l := c.findLink(server.ID)
	if l == nil {
		l = newLink(c, server)
		c.links = slices.Insert(c.links, i, l)
	}
	return l
}

// allLinks returns a copy of links.
func (c *client) allLinks() []*link {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.links)
}

// takesEmptyEvents reports whether the client accepts events without data. Older clients fail on
// them.
func (c *client) takesEmptyEvents() bool { return c.version >= mcp.Latest }

// askable reports whether the client can ask a person to confirm calls, and has rules that may
// require it. Operators see what such clients see.
func (c *client) askable(caller *access.Caller) bool {
	return caller.Policy() != nil && (c.inspection != nil || mcp.CanFillForms(c.introduction.capabilities))
}

// initializeParams returns the params of initialize with a protocol version.
func (c *client) initializeParams(version string) []byte {
	params := c.introduction.params
	if c.era == mcp.Modern {
		return slices.Concat([]byte(`{"protocolVersion":"`+version+`","capabilities":`), c.introduction.capabilities,
			[]byte(`,"clientInfo":`), c.introduction.info, []byte("}"))
	}
	for member := range jsonspan.Members(params) {
		if member.Key == "protocolVersion" {
			at := member.Value
			return jsonspan.Spliced(params, jsonspan.Edit{Start: at.Start, End: at.End, New: jsonrpc.Quote(version)})
		}
	}
	return params
}

// legacyVersion returns the legacy protocol version that the client prefers.
func (c *client) legacyVersion() string {
	if c.era == mcp.Legacy {
		return c.version
	}
	return mcp.Latest
}

// logLevel returns the log level that the client has set, "" if none.
func (c *client) logLevel() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.level
}

// openStreams returns the streams of the client, newest first.
func (c *client) openStreams() []*stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.streams)
}

// otherStreamWants reports whether a stream of the client, except one, is subscribed to a resource.
func (c *client) otherStreamWants(except *stream, server, uri string) bool {
	return slices.ContainsFunc(c.openStreams(), func(s *stream) bool {
		return s != except && s.wants != nil && slices.Contains(s.wants.serverURIs[server], uri)
	})
}

// unsubscribe drops all subscriptions of a client that can no longer be notified.
func (c *client) unsubscribe(meter *quota.Meter) {
	for _, l := range c.allLinks() {
		l.subscriptions.close(meter, c.owner)
	}
}

// callerOf returns the caller for a client.
func (g *Gateway) callerOf(c *client) access.Caller {
	caller := g.rules.Caller(c.identity)
	caller.Askable = c.askable(&caller)
	return caller
}

// An introduction is what a client says about itself.
type introduction struct {
	params       []byte // params of initialize; legacy only
	capabilities []byte
	info         []byte
}

// readIntroduction reads the params of initialize.
func readIntroduction(params []byte) *introduction {
	var p struct {
		Capabilities json.RawMessage `json:"capabilities"`
		Info         json.RawMessage `json:"clientInfo"`
	}
	_ = json.Unmarshal(params, &p) // invalid members stay empty
	return introduction{params, p.Capabilities, p.Info}.complete()
}

// complete fills in members that the protocol requires.
func (intro introduction) complete() *introduction {
	if len(intro.capabilities) == 0 || intro.capabilities[0] != '{' {
		intro.capabilities = []byte("{}")
	}
	if len(intro.info) == 0 || intro.info[0] != '{' {
		intro.info = []byte(`{"name":"unknown","version":"0"}`)
	}
	return &intro
}

// size returns the size in bytes.
func (intro *introduction) size() int {
	return len(intro.params) + len(intro.capabilities) + len(intro.info)
}

// minimalParams returns params of initialize without optional data, such as icons.
func (intro *introduction) minimalParams(version string) []byte {
	var info struct {
		Name    string `json:"name"`
		Version string `json:"version"`
	}
	_ = json.Unmarshal(intro.info, &info) // invalid members stay empty
	info.Name, info.Version = mcp.Shortened(info.Name), mcp.Shortened(info.Version)
	return jsonrpc.Encode(map[string]any{
		"protocolVersion": version, "capabilities": json.RawMessage(intro.capabilities), "clientInfo": info,
	})
}

// supports reports whether the client declared support for a server request.
func (intro *introduction) supports(method string) bool {
	return mcp.AcceptsServerRequest(intro.capabilities, method)
}

// supportsAny reports whether the client declared support for any server request.
func (intro *introduction) supportsAny() bool {
	return slices.ContainsFunc([]string{"roots/list", "sampling/createMessage", "elicitation/create"}, intro.supports)
}

// meta returns the _meta members of modern requests that describe the client.
func (intro *introduction) meta(level string) []byte {
	return mcp.RequestMeta(intro.info, intro.capabilities, level)
}

// introductionTooLarge refuses a client whose introduction exceeds a limit.
func introductionTooLarge(message string) *jsonrpc.Failure {
	failure := jsonrpc.PayloadTooLarge()
	failure.Message = message
	return failure
}

// activeCalls are the calls of a client that can be canceled.
type activeCalls struct {
	mu   sync.Mutex
	byID map[string]*call
}

// begin adds a call until end. If the id is in use, it keeps its first call.
func (a *activeCalls) begin(id []byte, c *call) (key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	key = keyOf(id)
	if a.byID == nil {
		a.byID = map[string]*call{}
	}
	if a.byID[key] == nil {
		a.byID[key] = c
	}
	return key
}

// end removes a call that begin added.
func (a *activeCalls) end(key string, c *call) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byID[key] == c {
		delete(a.byID, key)
	}
}

// get returns the call with an id, nil if there is none.
func (a *activeCalls) get(id []byte) *call {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.byID[keyOf(id)]
}

// any returns one of the calls, nil if there are none.
func (a *activeCalls) any() *call {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, call := range a.byID {
		return call
	}
	return nil
}

// serverRequests are the requests that a client has been sent and not answered yet.
type serverRequests struct {
	mu   sync.Mutex
	byID map[string]serverRequest
}

// A serverRequest is a request that was sent to a client. One of its fields is set.
type serverRequest struct {
	reader   *streamable.Reader      // of the call during which a server sent the request
	response chan<- *jsonrpc.Message // receives the response to a request of the gateway
}

// maxServerRequests limits the server requests that are tracked per client.
const maxServerRequests = 1_000

// note notes that the client was sent a request during the call of a reader.
func (q *serverRequests) note(id []byte, reader *streamable.Reader) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, there := q.byID[keyOf(id)]; !there && len(q.byID) < maxServerRequests {
		q.add(id, serverRequest{reader: reader})
		reader.ServerRequestOpened()
	}
}

// add adds a request. The caller holds the lock.
func (q *serverRequests) add(id []byte, request serverRequest) {
	if q.byID == nil {
		q.byID = map[string]serverRequest{}
	}
	q.byID[keyOf(id)] = request
}

// settle notes that a server request needs no response anymore.
func (q *serverRequests) settle(id []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if request := q.byID[keyOf(id)]; request.reader != nil {
		request.reader.ServerRequestClosed()
		delete(q.byID, keyOf(id))
	}
}

// dropOf drops the server requests of a call that has ended.
func (q *serverRequests) dropOf(reader *streamable.Reader) {
	if !reader.HasOpenServerRequests() {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	maps.DeleteFunc(q.byID, func(_ string, request serverRequest) bool { return request.reader == reader })
}

// take passes a response of the client to the call that waits for it. It reports whether this
// replica knows the request, and whether the gateway itself sent it.
func (q *serverRequests) take(id []byte, m *jsonrpc.Message) (known, own bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	request, known := q.byID[keyOf(id)]
	delete(q.byID, keyOf(id))
	switch {
	case request.reader != nil:
		request.reader.ServerRequestClosed()
		return true, false // for the server
	case known:
		answer := *m
		answer.Raw = append([]byte(nil), m.Raw...)
		request.response <- &answer // buffered, does not block
	}
	return known, known
}

// expect returns an id for a request of the gateway about a server, and the channel for the
// response.
func (q *serverRequests) expect(server string) (id []byte, answer <-chan *jsonrpc.Message, forget func()) {
	id = jsonrpc.Quote(server + mcp.Separator + rand.Text())
	responses := make(chan *jsonrpc.Message, 1)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.add(id, serverRequest{response: responses})
	return id, responses, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		delete(q.byID, keyOf(id))
	}
}

// keyOf returns the value of a JSON id, independent of escapes.
func keyOf(id []byte) string {
	if len(id) < 2 || id[0] != '"' {
		return string(id)
	}
	return string(jsonspan.AppendText([]byte{'"'}, id[1:len(id)-1]))
}
