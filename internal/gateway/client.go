package gateway

import (
	"bytes"
	"compress/flate"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"io"
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
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/seal"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A client is a legacy session, or all modern requests that seem to come from the same client.
type client struct {
	key         string   // key in State
	endedKey    [16]byte // key in State.endedSessions, computed when first needed; guarded by State.mu
	refs        int      // number of users; guarded by State.mu
	audience    string   // key of the audience
	fingerprint uint64   // of the request that began the session, see [aggregateRequest.fingerprint]

	era          mcp.Era
	version      string
	identity     string    // "" if unknown
	owner        string    // whose quotas the client counts against
	issued       time.Time // when the session began
	introduction *introduction
	inspection   *upstream.Inspection // set for an operator that acts as this client

	recordRead     atomic.Uint64 // gaps of the replicaSync when the record was last read, plus 1; 0 if it was never read
	readyAnnounced atomic.Bool   // servers have got notifications/initialized, or are about to

	ended    atomic.Bool // the client has ended the session
	isolated atomic.Bool // sends other credentials than its audience: nothing from servers is shared with others

	mu          sync.Mutex
	links       []*link // sorted by server ID
	calls       map[string]*activeCall
	pending     map[string]pendingRequest // requests sent to the client, by id
	streams     []*stream                 // newest first: connections of older ones may be dead
	level       string                    // log level that the client wants
	listedAt    [mcp.ListKindCount]uptime // when the client last requested each list
	queue       []queuedTask              // work caused by other replicas, in order
	queuedBytes int                       // bytes held by queue

	syncing sync.Mutex      // held while state is exchanged with other replicas
	unsaved []sessionChange // changes not written to the store yet; guarded by syncing

	// plainUILists are the last tool lists in which the client got all UI resources under their own
	// URIs, by server ID.
	plainUILists map[string]catalog.Key
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

func newClient(era mcp.Era, version, identity, owner string, intro *introduction) *client {
	return &client{era: era, version: version, identity: identity, owner: owner, introduction: intro}
}

// joinAudience adds a legacy client to an audience. All its clients share one copy of the
// introduction.
func (c *client) joinAudience(g *Gateway, key string) {
	c.audience = key
	a := g.audience(c)
	c.audience, c.introduction = a.key, a.introduction
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
		return l.subscriptions.size() > 0 || !l.isCarried()
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

// noteListed notes that the client gets a list. It reports whether it is the first of its kind.
func (c *client) noteListed(k mcp.ListKind) (first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first = c.listedAt[k] == 0
	c.listedAt[k] = uptimeOf(time.Now())
	return first
}

// missedChanges returns the kinds of lists that changed after the client got them.
func (c *client) missedChanges(lists *catalog.Cache) (missed []mcp.ListKind) {
	changed := lists.ChangedAt()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range catalog.AnnouncedKinds {
		if got := c.listedAt[k]; got != 0 && uptimeOf(changed[k]) > got {
			missed = append(missed, k)
		}
	}
	return missed
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

// An activeCall is a call that a client has made and that is not answered yet.
type activeCall struct {
	upstream.ActiveCall
	link *link
	held atomic.Bool // the gateway holds the call: the server has nothing to cancel

	// id is the id of the request at the server if the call was repeated, nil if it is the client's
	// id.
	id atomic.Pointer[[]byte]
}

// beginCall makes a call cancelable until endCall. If the id is in use, it keeps its first call.
func (c *client) beginCall(id []byte, f *activeCall) (key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key = keyOf(id)
	if c.calls == nil {
		c.calls = map[string]*activeCall{}
	}
	if c.calls[key] == nil {
		c.calls[key] = f
	}
	return key
}

// endCall removes a call that beginCall added.
func (c *client) endCall(key string, f *activeCall) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls[key] == f {
		delete(c.calls, key)
	}
}

// activeCall returns the call with an id, nil if there is none.
func (c *client) activeCall(id []byte) *activeCall {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[keyOf(id)]
}

// keyOf returns the value of a JSON id, independent of escapes.
func keyOf(id []byte) string {
	if len(id) < 2 || id[0] != '"' {
		return string(id)
	}
	return string(jsonspan.AppendText([]byte{'"'}, id[1:len(id)-1]))
}

// takesEmptyEvents reports whether the client accepts events without data. Older clients fail on
// them.
func (c *client) takesEmptyEvents() bool { return c.version >= mcp.Latest }

// supports reports whether the client declared support for a server request.
func (c *client) supports(method string) bool {
	return mcp.AcceptsServerRequest(c.introduction.capabilities, method)
}

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

// meta returns the _meta members of modern requests that describe the client.
func (c *client) meta(level string) []byte {
	return mcp.RequestMeta(c.introduction.info, c.introduction.capabilities, level)
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
		l.subscriptions.removeAll(meter, c.owner)
	}
}

// noteServerRequest notes that the client was sent a request during the call of a reader.
func (c *client) noteServerRequest(id []byte, reader *streamable.Reader) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, there := c.pending[keyOf(id)]; !there && len(c.pending) < maxPendingRequests {
		c.addPending(id, pendingRequest{reader: reader})
		reader.ServerRequestOpened()
	}
}

// addPending adds a request that was sent to the client. The caller holds the lock.
func (c *client) addPending(id []byte, q pendingRequest) {
	if c.pending == nil {
		c.pending = map[string]pendingRequest{}
	}
	c.pending[keyOf(id)] = q
}

// settleServerRequest notes that a server request needs no response anymore.
func (c *client) settleServerRequest(id []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if q := c.pending[keyOf(id)]; q.reader != nil {
		q.reader.ServerRequestClosed()
		delete(c.pending, keyOf(id))
	}
}

// dropServerRequests drops the server requests of a call that has ended.
func (c *client) dropServerRequests(reader *streamable.Reader) {
	if !reader.HasOpenServerRequests() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.pending, func(_ string, q pendingRequest) bool { return q.reader == reader })
}

// takeResponse passes a response of the client to the call that waits for it. It reports whether
// this replica knows the request, and whether the gateway itself sent it.
func (c *client) takeResponse(id []byte, m *jsonrpc.Message) (known, own bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	pending, known := c.pending[keyOf(id)]
	delete(c.pending, keyOf(id))
	switch {
	case pending.reader != nil:
		pending.reader.ServerRequestClosed()
		return true, false // for the server
	case known:
		answer := *m
		answer.Raw = append([]byte(nil), m.Raw...)
		pending.response <- &answer // buffered, does not block
	}
	return known, known
}

// expectResponse returns an id for a request of the gateway, and the channel for the response.
func (c *client) expectResponse(l *link) (id []byte, answer <-chan *jsonrpc.Message, forget func()) {
	id = jsonrpc.Quote(l.serverName + mcp.Separator + rand.Text())
	responses := make(chan *jsonrpc.Message, 1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addPending(id, pendingRequest{response: responses})
	return id, responses, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.pending, keyOf(id))
	}
}

// takesServerRequests reports whether the client supports any server request.
func (c *client) takesServerRequests() bool {
	return slices.ContainsFunc([]string{"roots/list", "sampling/createMessage", "elicitation/create"}, c.supports)
}

// A pendingRequest is a request that was sent to a client. One of its fields is set.
type pendingRequest struct {
	reader   *streamable.Reader      // of the call during which a server sent the request
	response chan<- *jsonrpc.Message // receives the response to a request of the gateway
}

// maxPendingRequests limits the server requests that are tracked per client.
const maxPendingRequests = 1_000

// introductionTooLarge refuses a client whose introduction exceeds a limit.
func introductionTooLarge(message string) *jsonrpc.Failure {
	failure := jsonrpc.PayloadTooLarge()
	failure.Message = message
	return failure
}

const (
	// maxSessionID is the longest session id. Clients limit the size of headers; for Node.js, all
	// of them must fit in 16 KiB.
	maxSessionID = 6 << 10
	// maxIntroduction is the largest introduction.
	maxIntroduction = 16 << 10
	// maxTicket limits the decompressed size of a ticket. Only holders of the key can make one, so
	// this is a second line of defense.
	maxTicket = 1 << 20
)

// callerOf returns the caller for a client.
func (g *Gateway) callerOf(c *client) access.Caller {
	caller := g.rules.Caller(c.identity)
	caller.Askable = c.askable(&caller)
	return caller
}

// A ticket is the content of a session id: all that a process needs to continue the session.
type ticket struct {
	Identity   string                `json:"i,omitempty"`
	Address    string                `json:"a,omitempty"` // address of an anonymous client
	Issued     int64                 `json:"t"`           // Unix time in seconds
	Version    string                `json:"v"`
	InitParams json.RawMessage       `json:"h"` // params of initialize
	Links      map[string]linkTicket `json:"l,omitempty"`
}

// ticket returns the ticket of the client's session.
func (c *client) ticket(links map[string]linkTicket) ticket {
	t := ticket{
		Identity: c.identity, Issued: c.issued.Unix(), Version: c.version, InitParams: c.introduction.params, Links: links,
	}
	if c.identity == "" {
		t.Address = strings.TrimPrefix(c.owner, "@")
	}
	return t
}

// A linkTicket is what a process needs to continue the session with one server.
type linkTicket struct {
	Server  string        `json:"i,omitempty"` // short ID of the server
	Era     mcp.Era       `json:"e,omitempty"`
	Version string        `json:"v,omitempty"`
	Session string        `json:"s,omitempty"`
	Can     mcp.Abilities `json:"c,omitempty"`
}

// A sealer seals tickets. Only processes with the key can open them.
type sealer struct{ seal.Sealer }

// sealTicket returns the session id that carries t. If it is too long, it leaves out the sessions
// with servers: this process knows them, and others can begin new ones. Then it shortens the
// introduction. It returns "" if even that is too long.
func (s sealer) sealTicket(t ticket) (id string) {
	if id = s.Seal("session", encodeTicket(t)); len(id) > maxSessionID {
		t.Links = nil
		id = s.Seal("session", encodeTicket(t))
	}
	if len(id) > maxSessionID {
		t.InitParams = readIntroduction(t.InitParams).minimalParams(t.Version)
		id = s.Seal("session", encodeTicket(t))
	}
	if len(id) > maxSessionID {
		return ""
	}
	return id
}

// openTicket returns the ticket in a session id.
func (s sealer) openTicket(id string) (t ticket, ok bool) {
	plain, ok := s.Open("session", id)
	if !ok {
		return ticket{}, false
	}
	if !bytes.HasPrefix(plain, []byte("{")) {
		var err error
		if plain, err = io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(plain)), maxTicket)); err != nil {
			return ticket{}, false
		}
	}
	ok = json.Unmarshal(plain, &t) == nil
	return t, ok
}

// smallTicket is the size in bytes up to which tickets are not compressed. Compression takes longer
// than the rest of a handshake, and most of a megabyte of memory.
const smallTicket = 512

// encodeTicket encodes a ticket as JSON, compressed if it is large. The first byte tells which:
// compressed data starts with a block that is not the last, so its lowest bit is 0. In a brace it
// is 1.
func encodeTicket(t ticket) []byte {
	text, _ := json.Marshal(t) // cannot fail: strings, numbers and valid JSON
	if len(text) <= smallTicket {
		return text
	}
	var b bytes.Buffer
	w := flateWriters.Get().(*flate.Writer)
	defer flateWriters.Put(w)
	w.Reset(&b)
	_, _ = w.Write(text)
	_ = w.Close()
	return b.Bytes()
}

// flateWriters are reused: each takes most of a megabyte.
var flateWriters = sync.Pool{New: func() any {
	w, _ := flate.NewWriter(nil, flate.DefaultCompression) // fails for invalid levels only
	return w
}}

// sessionTime is the lifetime of a session. A replica that has not learned about the end of a
// session accepts its id until then.
const sessionTime = 7 * 24 * time.Hour

// endedSessions are the sessions that ended before sessionTime. It is guarded by State.mu.
type endedSessions struct {
	ids *quota.Cache[[16]byte, endedSession] // by hash of the session id

	// cutoffs are for owners with too many ended sessions: all sessions of the owner that began up
	// to this time count as ended.
	cutoffs map[string]time.Time
}

// An endedSession is a session that has ended.
type endedSession struct {
	owner  string
	issued time.Time
}

const (
	maxEndedSessions = 100_000 // 30 MB
	maxEndedOwners   = 1_000
)

var endedSessionsQuota = quota.NewKind("ended_sessions")

func newEndedSessions() endedSessions {
	ended := endedSessions{cutoffs: map[string]time.Time{}}
	onEvict := func(_ [16]byte, s endedSession) {
		if time.Since(s.issued) < sessionTime && ended.cutoffs[s.owner].Before(s.issued) {
			ended.cutoffs[s.owner] = s.issued
		}
	}
	ended.ids = quota.NewCache(endedSessionsQuota, quota.Limits{Entries: maxEndedSessions}, sessionTime, onEvict)
	return ended
}

// add adds a session that has ended.
func (ended *endedSessions) add(key [16]byte, s endedSession) {
	ended.ids.Put(s.owner, key, s, 0)
	if len(ended.cutoffs) > maxEndedOwners {
		ended.forgetOldest()
	}
}

// forgetOldest makes room for another owner. The forgotten owner can use its own ended sessions
// again until they expire. The alternative would be to end sessions of other owners.
func (ended *endedSessions) forgetOldest() {
	var oldest string
	for owner, until := range ended.cutoffs {
		if oldest == "" || until.Before(ended.cutoffs[oldest]) {
			oldest = owner
		}
	}
	delete(ended.cutoffs, oldest)
}

// endedKey returns the key of a session in endedSessions. The caller holds State.mu.
func endedKey(c *client) [16]byte {
	if c.endedKey == [16]byte{} {
		c.endedKey = endedKeyOf(c.key)
	}
	return c.endedKey
}

// endedKey returns the key of a session in endedSessions.
func (s *State) endedKey(c *client) [16]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return endedKey(c)
}

// endedKeyOf returns the key for a session id.
func endedKeyOf(id string) [16]byte {
	sum := sha256.Sum256([]byte(id))
	return [16]byte(sum[:])
}

// restore adds the links of a ticket to a client.
func (c *client) restore(tickets map[string]linkTicket, servers []*upstream.Server) *client {
	for _, s := range servers {
		t, ok := tickets[s.Name]
		if !ok || t.Server != s.ShortID() {
			continue
		}
		l := c.linkTo(s)
		l.ready, l.initialized, l.carried, l.used = true, true, true, true
		l.era, l.version, l.session, l.can = t.Era, t.Version, t.Session, t.Can
	}
	return c
}
