package gateway

import (
	"crypto/rand"
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

// A client is a session of the legacy era, or all requests of the modern era that seem to come
// from the same client.
type client struct {
	key         string   // in State
	over        [16]byte // in State.over, once it was asked for; guarded by State.mu
	using       int      // by how many; guarded by State.mu
	audience    string   // key of its audience
	fingerprint uint64   // of the request that began the session, see [visit.fingerprint]

	era          mcp.Era
	version      string
	identity     string    // who it is, if that is known
	owner        string    // of what is kept for it
	issued       time.Time // when its session began
	introduction *introduction
	inspection   *upstream.Inspection // by an operator that acts as this client; nil for others

	recalled  atomic.Uint64 // outages of the shared store until its record was read, and 1 more; 0 if it was not
	begunHere atomic.Bool   // servers know, or get to know, that it is ready

	ended atomic.Bool // it has said so
	apart atomic.Bool // it has sent other credentials than its audience: nothing that servers say to it is shared

	mu        sync.Mutex
	links     []*link // in the order of their servers' IDs
	calls     map[string]*inFlight
	questions map[string]question       // that it has been asked, by their ids
	streams   []*stream                 // by which it listens, the latest first: the connections of others may be dead
	level     string                    // of the log messages it wants
	listed    [mcp.ListKindCount]moment // when it has asked for a list
	orders    []order                   // what is to be done because of other replicas, in this order
	ordered   int                       // bytes in orders

	syncing sync.Mutex      // held while it is brought in line with other replicas
	unsaved []sessionChange // that could not be written yet; guarded by syncing

	// plain are the lists of tools that it has got last with all UI resources by their own URIs, by
	// the ID of the server.
	plain map[string]catalog.Key
}

// An introduction is what a client says of itself.
type introduction struct {
	params       []byte // of initialize, in the legacy era
	capabilities []byte
	info         []byte
}

// readIntroduction reads the params of an initialize request.
func readIntroduction(params []byte) *introduction {
	var p struct {
		Capabilities json.RawMessage `json:"capabilities"`
		Info         json.RawMessage `json:"clientInfo"`
	}
	_ = json.Unmarshal(params, &p) // what is wrong is missing
	return introduction{params, p.Capabilities, p.Info}.complete()
}

// complete fills in what the protocol demands.
func (h introduction) complete() *introduction {
	if len(h.capabilities) == 0 || h.capabilities[0] != '{' {
		h.capabilities = []byte("{}")
	}
	if len(h.info) == 0 || h.info[0] != '{' {
		h.info = []byte(`{"name":"unknown","version":"0"}`)
	}
	return &h
}

// size returns how many bytes it has.
func (h *introduction) size() int { return len(h.params) + len(h.capabilities) + len(h.info) }

// shortened returns the params of initialize with no more than is needed: pictures of
// clients come with them.
func (h *introduction) shortened(version string) []byte {
	var info struct {
		Name    string `json:"name"`
		Version string `json:"version"`
	}
	_ = json.Unmarshal(h.info, &info) // what is wrong is missing
	info.Name, info.Version = mcp.Shortened(info.Name), mcp.Shortened(info.Version)
	return jsonrpc.Encode(map[string]any{
		"protocolVersion": version, "capabilities": json.RawMessage(h.capabilities), "clientInfo": info,
	})
}

func newClient(era mcp.Era, version, identity, owner string, h *introduction) *client {
	return &client{era: era, version: version, identity: identity, owner: owner, introduction: h}
}

// joinAudience makes a client of the legacy era one of an audience, whose clients have introduced
// themselves in the same words. They are kept once.
func (c *client) joinAudience(g *Gateway, key string) {
	c.audience = key
	a := g.audience(c)
	c.audience, c.introduction = a.key, a.introduction
}

// size returns about how much memory a client takes that does nothing.
func (c *client) size() int64 {
	size := 1<<10 + c.introduction.size()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.links {
		size += l.size()
	}
	return int64(size)
}

// hasMore reports whether a client has state that its session id does not carry.
func (c *client) hasMore() bool {
	return c.logLevel() != "" || slices.ContainsFunc(c.allLinks(), func(l *link) bool {
		return l.subscriptions.size() > 0 || !l.isCarried()
	})
}

// A moment is a time since the process began, in a third of the memory of a [time.Time]; 0 for
// never.
type moment time.Duration

var processBegan = time.Now()

func momentOf(t time.Time) moment {
	if t.IsZero() {
		return 0
	}
	return moment(t.Sub(processBegan))
}

// gets notes that the client gets a list, and reports whether it is the first of its kind.
func (c *client) gets(k mcp.ListKind) (first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first = c.listed[k] == 0
	c.listed[k] = momentOf(time.Now())
	return first
}

// missed returns the kinds of lists that have changed since the client has got them.
func (c *client) missed(lists *catalog.Cache) (missed []mcp.ListKind) {
	changed := lists.ChangedAt()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range catalog.AnnouncedKinds {
		if got := c.listed[k]; got != 0 && momentOf(changed[k]) > got {
			missed = append(missed, k)
		}
	}
	return missed
}

// linked returns the client's connection to a server, nil if it has none.
func (c *client) linked(server *upstream.Server) *link {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, l := c.findLink(server.ID)
	return l
}

// findLink returns the client's connection to a server, and its index in links. If there is none, it
// returns nil and the index that it would have. The caller holds the lock.
func (c *client) findLink(id string) (at int, l *link) {
	at, found := slices.BinarySearchFunc(c.links, id, func(l *link, id string) int { return strings.Compare(l.id, id) })
	if found {
		l = c.links[at]
	}
	return at, l
}

// link returns the client's connection to a server, which may have to be opened.
func (c *client) link(server *upstream.Server) *link {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, l := c.findLink(server.ID)
	if l == nil {
		l = newLink(c, server)
		c.links = slices.Insert(c.links, at, l)
	}
	return l
}

// allLinks returns the client's connections to servers.
func (c *client) allLinks() []*link {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.links)
}

// An inFlight is a call that a client has made, until it is answered.
type inFlight struct {
	upstream.Flight
	link *link
	held atomic.Bool // by the gateway: the server has nothing to cancel

	// id is the one by which the server knows a call that was made again; nil for the client's
	// own.
	id atomic.Pointer[[]byte]
}

// begin notes a call under a key, so that it can be canceled until it ends. Ids that are in use
// already belong to the call that was there first.
func (c *client) begin(id []byte, f *inFlight) (key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key = keyOf(id)
	if c.calls == nil {
		c.calls = map[string]*inFlight{}
	}
	if c.calls[key] == nil {
		c.calls[key] = f
	}
	return key
}

// end forgets a call that was begun under a key.
func (c *client) end(key string, f *inFlight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls[key] == f {
		delete(c.calls, key)
	}
}

// inFlight returns the call with this id.
func (c *client) inFlight(id []byte) *inFlight {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[keyOf(id)]
}

// keyOf returns what an id says, however it is spelled.
func keyOf(id []byte) string {
	if len(id) < 2 || id[0] != '"' {
		return string(id)
	}
	return string(jsonspan.AppendText([]byte{'"'}, id[1:len(id)-1]))
}

// takesEmptyEvents reports whether the client knows events without data. Older ones fail on them.
func (c *client) takesEmptyEvents() bool { return c.version >= mcp.Latest }

// can reports whether the client can be asked this.
func (c *client) can(method string) bool { return mcp.CanBeAsked(c.introduction.capabilities, method) }

// askable reports whether the person at the client can be asked to confirm calls, if there are rules that may
// want it. An operator is shown what a client is shown that can be asked.
func (c *client) askable(who *access.Caller) bool {
	return who.Policy() != nil && (c.inspection != nil || mcp.CanFillForms(c.introduction.capabilities))
}

// initializeParams returns the params of initialize, with a version of the protocol.
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

// legacyVersion returns the version of the legacy era that the client would like to speak.
func (c *client) legacyVersion() string {
	if c.era == mcp.Legacy {
		return c.version
	}
	return mcp.Latest
}

// meta returns what a request of the modern era says of the client.
func (c *client) meta(level string) []byte {
	return mcp.RequestMeta(c.introduction.info, c.introduction.capabilities, level)
}

// logLevel returns which log messages the client wants, if it has said.
func (c *client) logLevel() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.level
}

// listening returns the streams by which the client listens, the latest first.
func (c *client) listening() []*stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.streams)
}

// wants reports whether another stream of the client listens to a resource.
func (c *client) wants(except *stream, server, uri string) bool {
	return slices.ContainsFunc(c.listening(), func(s *stream) bool {
		return s != except && s.wants != nil && slices.Contains(s.wants.of[server], uri)
	})
}

// unsubscribe ends all subscriptions of a client that nothing can be sent to anymore.
func (c *client) unsubscribe(meter *quota.Meter) {
	for _, l := range c.allLinks() {
		l.subscriptions.removeAll(meter, c.owner)
	}
}

// noteQuestion notes that the client has been asked something.
func (c *client) noteQuestion(id []byte, h *streamable.Reader) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, there := c.questions[keyOf(id)]; !there && len(c.questions) < maxQuestions {
		c.addQuestion(id, question{hearing: h})
		h.QuestionAsked()
	}
}

// addQuestion adds a question that the client has been asked. The caller holds the lock.
func (c *client) addQuestion(id []byte, q question) {
	if c.questions == nil {
		c.questions = map[string]question{}
	}
	c.questions[keyOf(id)] = q
}

// questionSettled notes that a question needs no answer anymore.
func (c *client) questionSettled(id []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if q := c.questions[keyOf(id)]; q.hearing != nil {
		q.hearing.QuestionAnswered()
		delete(c.questions, keyOf(id))
	}
}

// dropQuestions forgets the questions of a call that has ended.
func (c *client) dropQuestions(h *streamable.Reader) {
	if !h.HasQuestions() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.questions, func(_ string, q question) bool { return q.hearing == h })
}

// takeReply hands an answer of the client to the call that waits for it. It reports whether there is one here, and
// whether the question was one of the gateway.
func (c *client) takeReply(id []byte, m *jsonrpc.Message) (asked, ours bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, asked := c.questions[keyOf(id)]
	delete(c.questions, keyOf(id))
	switch {
	case n.hearing != nil:
		n.hearing.QuestionAnswered()
		return true, false // it is the server's
	case asked:
		answer := *m
		answer.Raw = append([]byte(nil), m.Raw...)
		n.answer <- &answer // there is room for it
	}
	return asked, asked
}

// expectAnswer returns an id for a question of the gateway, and the channel for its answer.
func (c *client) expectAnswer(l *link) (id []byte, answer <-chan *jsonrpc.Message, forget func()) {
	id = jsonrpc.Quote(l.server + mcp.Separator + rand.Text())
	coming := make(chan *jsonrpc.Message, 1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addQuestion(id, question{answer: coming})
	return id, coming, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.questions, keyOf(id))
	}
}

// canBeAsked reports whether the client can be asked anything.
func (c *client) canBeAsked() bool {
	return slices.ContainsFunc([]string{"roots/list", "sampling/createMessage", "elicitation/create"}, c.can)
}

// A question is one that a client has been asked.
type question struct {
	hearing *streamable.Reader      // the call that waits for the answer; or
	answer  chan<- *jsonrpc.Message // where the answer is wanted
}

// maxQuestions is how many questions of its calls a client is known to have open.
const maxQuestions = 1_000

// introductionTooLarge refuses a client that has too much to say of itself, and names where.
func introductionTooLarge(where string) *jsonrpc.Failure {
	failure := jsonrpc.PayloadTooLarge()
	failure.Message = where + " have more than 16 KiB"
	return failure
}

const (
	// longestSession is how long session ids may be. Clients have limits on the
	// headers they take, Node.js 16 KiB for all of them.
	longestSession = 6 << 10
	// longestIntroduction is how large the params of initialize may be.
	longestIntroduction = 16 << 10
	// largestTicket is how large a ticket may be. Who has no key cannot make one,
	// but a limit is cheap.
	largestTicket = 1 << 20
)

// callerOf returns a client as a caller.
func (g *Gateway) callerOf(c *client) access.Caller {
	who := g.rules.Caller(c.identity)
	who.Askable = c.askable(&who)
	return who
}
