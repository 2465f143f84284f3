package gateway

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// A listKind is one of the lists that servers have.
type listKind = mcp.ListKind

const (
	tools     = mcp.Tools
	prompts   = mcp.Prompts
	resources = mcp.Resources
	templates = mcp.Templates
	tasks     = mcp.Tasks
	skills    = mcp.Skills
	kindCount = skills + 1
)

// kinds say where the lists are found.
var kinds = [kindCount]struct {
	method  string    // that asks for it
	member  string    // of the result, that has it
	needs   abilities // of a server that has one
	changes abilities // of a server that says when it has changed
	notice  string    // by which it says so
	target  mcp.TargetKind
}{
	tools:     {"tools/list", "tools", hasTools, toolsChange, "notifications/tools/list_changed", mcp.Tool},
	prompts:   {"prompts/list", "prompts", hasPrompts, promptsChange, "notifications/prompts/list_changed", mcp.Prompt},
	resources: {"resources/list", "resources", hasResources, resourcesChange, "notifications/resources/list_changed", mcp.Resource},
	templates: {"resources/templates/list", "resourceTemplates", hasResources, resourcesChange, "notifications/resources/list_changed", mcp.Resource},
	tasks:     {"tasks/list", "tasks", hasTasks, 0, "", mcp.Anything},
	// Skills consist of resources.
	skills: {"skills/list", "skills", hasSkills, 0, "notifications/resources/list_changed", mcp.Resource},
}

// kindOf returns the kind of list that a method asks for.
func kindOf(method string) (listKind, bool) {
	for k := range kinds {
		if kinds[k].method == method {
			return listKind(k), true
		}
	}
	return 0, false
}

// A listing is what a server has of a kind, as clients see it. It never changes, and
// clients that see the same share one.
type listing struct {
	key    listKey           // on the shelf; zero if it is not there
	server string            // its name
	joined []byte            // the items, with commas between them
	ends   []int             // where the items end in joined
	names  []string          // as clients see them
	short  map[string]string // the names, without that of the server, of those that were shortened
	params mcp.ParamHeaders  // of tools
	uis    []uiName          // of tools, in the order in which they stand

	focused map[string]string // the original names of tools to which a Focus was added
}

// emptyListing is the listing of a server that has nothing.
var emptyListing = new(listing)

// item returns an item.
func (l *listing) item(i int) []byte { return l.from(i, i+1, nil) }

// from returns the items from one up to another, with commas between them. URIs of UI resources
// that other servers have, too, say which server is meant.
func (l *listing) from(start, end int, shared sharedUIs) []byte {
	if start >= end {
		return nil
	}
	first, last := 0, l.ends[end-1]
	if start > 0 {
		first = l.ends[start-1] + 1
	}
	return jsonspan.Spliced(l.joined[first:last], shared.edits(l, first, last)...)
}

// A freshness says how long and for whom a list is good.
type freshness struct {
	until   time.Time // it is to be asked for again then; zero: when it has changed
	private bool
	ttl     time.Duration // as the server has said
	none    bool          // the server has no such list
}

// cached is a list that is remembered.
type cached struct {
	key     listKey // on the shelf; zero if it has to be asked for
	fresh   freshness
	view    string           // with what was shown of it to the client
	watched bool             // a stream of the server would tell of changes
	changes uint64           // how often the server has said that it has changed
	failure *jsonrpc.Failure // it could not be had; not asked for again for failurePause
	at      time.Time        // when it was asked for
	history listHistory
}

// A listHistory is what is remembered of a list that has to be asked for again.
type listHistory struct {
	key     listKey   // the last that there was
	changed time.Time // when it was seen to be another one than before
	teller  string    // prefix of the link, or replica, by which it was told; "" if it was asked for since
}

// outdated returns what stays of a list that has to be asked for again.
func (c cached) outdated() cached { return cached{changes: c.changes + 1, history: c.history} }

// A builder puts a listing together.
type builder struct {
	g      *Gateway
	server *Server
	kind   listKind
	era    mcp.Era // of the session
	filter listFilter

	explain *explainer // nil if there is nothing to explain

	joined bytes.Buffer
	list   *listing
	seen   map[string]bool
	fresh  freshness
	ttls   []time.Duration // of the pages
	cursor string
	items  int // of the server, whether the client sees them or not
}

// add adds a page.
func (b *builder) add(page *mcp.List) *jsonrpc.Failure {
	if !page.HasList(b.kind) {
		return jsonrpc.InvalidResponse(b.server.Name)
	}
	b.cursor = page.Cursor
	if page.TTL >= 0 {
		b.ttls = append(b.ttls, page.TTL)
	}
	if page.Has(jsonrpc.CacheScope) {
		b.fresh.private = b.fresh.private || !page.Is(jsonrpc.CacheScope, "public")
	}
	b.items += len(page.Items)
	for i := range page.Items {
		item := &page.Items[i]
		if item.Kind != b.kind || !item.HasName() {
			continue
		}
		decision := b.decide(item)
		if b.explain != nil {
			b.explain.note(b, item, decision)
		}
		if b.filter.caller.isShown(decision) {
			b.addItem(item)
		}
	}
	return nil
}

// decide decides whether the list has an item.
func (b *builder) decide(item *mcp.Item) acl.Decision {
	decision := b.filter.decide(item)
	switch {
	case b.kind == tools && !b.server.shows(item.Name):
		return acl.Because("not in expose of the server", acl.Deny)
	case !b.filter.caller.isShown(decision):
		return decision
	case b.seen[item.Name]: // clients are confused by servers that list something twice
		return acl.Because("the server lists it more than once", acl.Deny)
	case b.kind == tools:
		if err := b.addParams(item); err != nil {
			return acl.Because("its definition is invalid: "+err.Error(), acl.Deny)
		}
	}
	return decision
}

// addItem adds an item with its name as clients see it.
func (b *builder) addItem(item *mcp.Item) {
	b.seen[item.Name] = true
	if o := b.server.Overrides.of(item.Name); o != nil && b.kind == tools {
		item = o.define(item)
	}
	if b.joined.Len() > 0 {
		b.joined.WriteByte(',')
	}
	shown, raw := b.shown(item.Name), item.Raw
	var edits []jsonspan.Edit
	if shown != item.Name {
		edits = append(edits, item.Rename(shown).Moved(-item.Start))
		if b.kind == skills {
			edits = append(edits, b.renameFiles(raw)...)
		}
	}
	if b.kind == tools {
		if e, ok := b.server.addFocus(item); ok {
			edits = append(edits, e)
			if b.list.focused == nil {
				b.list.focused = map[string]string{}
			}
			b.list.focused[shown] = item.Name
		}
	}
	raw = jsonspan.Spliced(raw, edits...)
	if b.kind == tools {
		b.list.uis = appendUINames(b.list.uis, raw, b.joined.Len())
	}
	b.joined.Write(raw)
	if (b.kind == tools || b.kind == prompts) && b.g.config.Naming.MayBeShort(shown) {
		if b.list.short == nil {
			b.list.short = map[string]string{}
		}
		b.list.short[shown] = b.name(item.Name)
	}
	b.list.ends = append(b.list.ends, b.joined.Len())
	b.list.names = append(b.list.names, shown)
}

// name returns the name of an item for clients, as if there were no other servers.
func (b *builder) name(of string) string {
	if b.kind == tools {
		return b.server.Overrides.shown(of)
	}
	return of
}

// shown returns what clients call an item.
func (b *builder) shown(name string) string { return b.g.shown(b.server.Name, b.kind, b.name(name)) }

// addParams notes which arguments of a tool are repeated in headers. It fails if the tool cannot be
// called: over HTTP those of the modern era cannot if that is not well defined.
func (b *builder) addParams(item *mcp.Item) (err error) {
	if bytes.Contains(item.Raw, []byte("x-mcp-header")) {
		if b.list.params == nil {
			b.list.params = mcp.ParamHeaders{}
		}
		err = b.list.params.AddTool(item.Name, item.Raw)
	}
	if b.era == mcp.Legacy || b.server.ChildrenOnly {
		err = nil
	}
	if b.server.noteTool(item.Name, err) {
		b.g.config.Observer.ToolInvalid(b.server.Name, mcp.Shortened(item.Name), err)
	}
	return err
}

var filePaths = jsonspan.CompilePaths("resources.*.uri")

// renameFiles returns the edits that give the files of a skill the URIs that clients have for
// them.
func (b *builder) renameFiles(skill []byte) []jsonspan.Edit {
	return renameAt(filePaths, skill, func(_ int, uri string) string { return b.g.shown(b.server.Name, skills, uri) })
}

// shown returns what clients call something of a server.
func (g *Gateway) shown(server string, k listKind, name string) string {
	if g.transparent() {
		return name
	}
	switch k {
	case resources:
		return mcp.ResourceURI(server, name)
	case templates, skills:
		// Clients make URIs of it: of a template, or of the file of a skill that another one
		// refers to by its path.
		return mcp.TemplateURI(server, name)
	case tasks:
		return server + mcp.Separator + name
	}
	return g.config.Naming.Join(server, name)
}

// done returns the listing.
func (b *builder) done() *listing {
	if len(b.ttls) > 0 {
		b.fresh.ttl = slices.Min(b.ttls)
		b.fresh.until = time.Now().Add(b.fresh.ttl)
	}
	b.list.joined = bytes.Clone(b.joined.Bytes())
	return b.list
}

// size returns about how much memory a listing takes.
func (l *listing) size() int64 {
	size := len(l.joined) + 8*len(l.ends)
	for _, name := range l.names {
		size += 16 + len(name)
	}
	for name, original := range l.short {
		size += 64 + len(name) + len(original)
	}
	for _, ui := range l.uis {
		size += 32 + len(ui.uri)
	}
	size += 32 * len(l.focused)
	return int64(size)
}

// A shelf keeps listings, and each but once: ten thousand clients see the same tools. When
// it is full, the server that has most on it makes room. Listings that are gone are asked
// for again.
type shelf struct {
	mu       sync.Mutex
	listings *quota.Cache[listKey, *listing]
	closed   bool
}

// A listKey stands for what is in a listing, and whose it is.
type listKey [sha256.Size]byte

const (
	// listTime is how long a listing is kept after it was last sent.
	listTime = 10 * time.Minute
	// How many bytes of listings are kept in all, and for each server.
	maxListings, maxListingsOfOne = 256 << 20, 64 << 20
)

var keptListings = quota.NewKind("lists")

func newShelf() *shelf {
	limits := quota.Limits{Bytes: maxListings, OwnerBytes: maxListingsOfOne}
	return &shelf{listings: quota.NewCache[listKey, *listing](keptListings, limits, listTime, nil)}
}

// put keeps a listing of a server. It returns the one that is kept, which is the same.
func (s *shelf) put(server string, l *listing) (listKey, *listing) {
	sum := sha256.New()
	_, _ = sum.Write([]byte(server + "\x00"))
	_, _ = sum.Write(l.joined)
	for _, name := range l.names {
		_, _ = sum.Write([]byte(l.short[name]))
		end := byte(0)
		if l.focused[name] != "" {
			end = 1
		}
		_, _ = sum.Write([]byte{end})
	}
	if l.params != nil {
		_, _ = fmt.Fprint(sum, l.params) // some may be of arguments that clients do not see
	}
	key := listKey(sum.Sum(nil))
	l.key = key
	s.mu.Lock()
	defer s.mu.Unlock()
	if known, ok := s.listings.Get(key); ok {
		l = known
	}
	if !s.closed {
		s.listings.Put(server, key, l, l.size())
	}
	return key, l
}

// get returns the listing with a key, nil if it is no longer kept.
func (s *shelf) get(key listKey) *listing {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, _ := s.listings.Get(key)
	return l
}

// expire drops listings that were not sent for a while. It returns how many listings are left.
func (s *shelf) expire() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listings.Expire()
	return s.listings.Len()
}

// close says that nothing more is kept.
func (s *shelf) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.listings.Close()
}

// everyKind are all that are remembered. Of announcedKinds servers say when they have changed.
var (
	everyKind      = []listKind{tools, prompts, resources, templates, skills}
	announcedKinds = []listKind{tools, prompts, resources, templates}
)

// A listCache has the lists of a server as an audience knows them, or a client in its own session.
type listCache struct {
	mu        sync.Mutex
	kept      [kindCount]cached
	listeners [kindCount]int           // streams by which the server can say that its lists have changed
	fetching  [kindCount]chan struct{} // each holds one token: its holder asks for the list
}

// A listQuery is a question for a list of a server, on behalf of a client.
type listQuery struct {
	behalf
	client *client
	server *Server
	kind   listKind
	known  *profile // of the server
	first  bool     // the client has not got such a list yet
	began  time.Time

	explain *explainer // for whom it is decided on the items; nil for the client
}

// newListQuery returns a question for a list.
func (c *client) newListQuery(o behalf, s *Server, k listKind) *listQuery {
	return &listQuery{behalf: o, client: c, server: s, kind: k, known: o.g.profile(c, s.ID), began: time.Now()}
}

// lists returns where the list is remembered.
func (q *listQuery) lists() *listCache { return q.client.lists(q.known, q.server) }

// lists returns the lists of a server as the client gets them.
func (c *client) lists(known *profile, s *Server) *listCache {
	l := c.linked(s)
	if c.apart.Load() {
		l = c.link(s)
	}
	if l != nil {
		if own := l.ownLists(); own != nil {
			return own
		}
	}
	return &known.lists
}

// knownList returns the last list of a server that there was, if it is still kept.
func (c *client) knownList(g *Gateway, s *Server, k listKind) *listing {
	known := g.profile(c, s.ID)
	if list := c.lists(known, s).known(g, k); list != nil || c.apart.Load() {
		return list
	}
	return known.lists.known(g, k)
}

// get returns what the server has of a kind: from memory as long as it is good, else by
// asking. One of several clients asks for all of them. The list is empty if the server has no such list.
func (q *listQuery) get() (*listing, freshness, *jsonrpc.Failure) {
	if list, fresh, ok := q.remembered(); ok {
		return list, fresh, nil
	}
	about, failure := q.known.meet(q.behalf, q.client, q.server)
	asker := q.behalf
	ctx, cancel := context.WithTimeout(q.ctx, q.g.config.JoinTimeout)
	defer cancel()
	q.ctx = ctx
	switch {
	case failure != nil:
		return nil, freshness{}, failure
	case about.can&kinds[q.kind].needs == 0:
		q.g.config.Observer.Listed(q.server.Name, kinds[q.kind].member, 0)
		return emptyListing, freshness{none: true}, nil
	case q.kind == tasks: // which are the client's own
		return q.fetch(q.client.link(q.server))
	}
	c := q.lists()
	select {
	case c.token(q.kind) <- struct{}{}:
		defer func() { <-c.token(q.kind) }()
	case <-ctx.Done():
		return nil, freshness{}, jsonrpc.Timeout(q.server.Name)
	}
	if list, fresh, ok := q.remembered(); ok {
		return list, fresh, nil
	}
	changes, failure := c.before(q.kind, q.began)
	if failure != nil {
		return nil, freshness{}, failure
	}
	view := q.g.rules.view(q.client.identity)
	l := q.known.lender(q.client, q.server)
	list, fresh, failure := q.fetch(l)
	if failure != nil && l.client != q.client { // which may have left
		l = q.client.link(q.server)
		list, fresh, failure = q.fetch(l)
	}
	if failure != nil && failure.Code == jsonrpc.CodeMethodNotFound { // many servers have resources and no templates
		return emptyListing, freshness{none: true}, nil
	}
	if failure != nil {
		if asker.ctx.Err() == nil {
			c.noteFailure(q.kind, failure)
			q.report(l, failure)
		}
		return nil, freshness{}, failure
	}
	era, can := l.state()
	kept := cached{fresh: fresh, view: view, changes: changes, at: time.Now()}
	kept.watched = era == mcp.Legacy || can&kinds[q.kind].changes != 0
	kept.key, list = q.g.shelf.put(q.server.ID, list)
	c.keep(q.kind, kept)
	return list, fresh, nil
}

// report tells why the server has not listed what it has. If the session could not be opened, that
// has been told.
func (q *listQuery) report(l *link, failure *jsonrpc.Failure) {
	switch {
	case !l.isOpen() || isLoginRequired(failure):
	case failure.Data.Symbol == "server_error":
		q.g.config.Logger.Warn("list of MCP server left out", zap.String("mcp_server", q.server.Name),
			zap.String("mcp_method", kinds[q.kind].method), zap.String("reason", mcp.OneLine(failure.Message)))
	default:
		q.g.config.Observer.ServerFailed(q.server.fault(failure, kinds[q.kind].method, q.g.config.JoinTimeout))
	}
}

// remembered returns a list that is still good.
func (q *listQuery) remembered() (*listing, freshness, bool) {
	c, view := q.lists(), q.g.rules.view(q.client.identity)
	if q.server.isOut() {
		return nil, freshness{}, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := &c.kept[q.kind]
	if kept.key == (listKey{}) || kept.view != view {
		return nil, freshness{}, false
	}
	switch now := time.Now(); {
	case c.listeners[q.kind] > 0 && kept.watched: // we would know of a change, or of the end of the server
	case now.Before(kept.fresh.until):
	case !kept.at.Before(q.began): // another client has just asked
	case q.first && now.Sub(kept.at) < unchangedTime: // a client that asks again wants to know of changes
	default:
		return nil, freshness{}, false
	}
	list := q.g.shelf.get(kept.key)
	return list, kept.fresh, list != nil
}

// token returns the channel whose token allows to ask the server for a list.
func (c *listCache) token(k listKind) chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fetching[k] == nil {
		c.fetching[k] = make(chan struct{}, 1)
	}
	return c.fetching[k]
}

// before returns how often a list has changed before it is asked for. It fails if it could not be had
// a short time ago, or since the question began.
func (c *listCache) before(k listKind, began time.Time) (changes uint64, _ *jsonrpc.Failure) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := &c.kept[k]
	f := kept.failure
	if f != nil && (!kept.at.Before(began) || time.Since(kept.at) < failurePause && !isLoginRequired(f)) {
		return 0, f
	}
	kept.history.teller = ""
	return kept.changes, nil
}

// noteFailure notes that a list could not be had.
func (c *listCache) noteFailure(k listKind, failure *jsonrpc.Failure) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept[k].failure, c.kept[k].at = failure, time.Now()
}

// keep remembers a list, unless it has changed while it was asked for.
func (c *listCache) keep(k listKind, list cached) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.kept[k].history
	list.history = before
	if list.history.key = list.key; before.key != (listKey{}) && before.key != list.key {
		list.history.changed = time.Now()
	}
	if c.kept[k].changes == list.changes {
		c.kept[k] = list
	}
}

// changedAt returns when each list was last seen to change.
func (c *listCache) changedAt() (times [kindCount]time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range c.kept {
		times[k] = c.kept[k].history.changed
	}
	return times
}

// seen returns the kinds of lists that there were, with the last of each.
func (c *listCache) seen() (last map[listKind]listKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last = map[listKind]listKey{}
	for _, k := range announcedKinds {
		if key := c.kept[k].history.key; key != (listKey{}) {
			last[k] = key
		}
	}
	return last
}

// known returns the last list that there was, if it is still kept. No client has seen one that is
// newer.
func (c *listCache) known(g *Gateway, k listKind) *listing {
	c.mu.Lock()
	defer c.mu.Unlock()
	return g.shelf.get(c.kept[k].key)
}

// changed notes that the server has said that a list is no longer what it was: by a link of this prefix, or to another
// replica. It reports whether that is news: a server says it in all sessions.
func (c *listCache) changed(notice, by string) (news bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range kinds {
		if kinds[k].notice == notice {
			teller := c.kept[k].history.teller
			news = news || teller == "" || teller == by
			c.kept[k] = c.kept[k].outdated()
			c.kept[k].history.changed, c.kept[k].history.teller = time.Now(), by
		}
	}
	return news
}

// forget forgets lists.
func (c *listCache) forget(lists ...listKind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range lists {
		c.kept[k] = c.kept[k].outdated()
	}
}

// listen notes that n more streams would tell of changes.
func (c *listCache) listen(lists []listKind, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range lists {
		if n > 0 && c.listeners[k] == 0 {
			c.kept[k] = c.kept[k].outdated() // it may have changed before
		}
		c.listeners[k] += n
	}
}

// hasListener reports whether a stream would tell of changes.
func (c *listCache) hasListener(k listKind) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.listeners[k] > 0
}

// fetch asks for all pages of a list (A21), in the session of a link.
func (q *listQuery) fetch(l *link) (*listing, freshness, *jsonrpc.Failure) {
	if failure := l.open(q.behalf); failure != nil {
		return nil, freshness{}, failure
	}
	era, can := l.state()
	who := q.g.rules.callerOf(q.client)
	done := !filtersAsItReads(&who)
	if q.explain != nil {
		who = q.explain.client
	}
	filter := newListFilter(q.g, q.server, &who, q.r.Header)
	filter.done = done
	b := &builder{
		g: q.g, server: q.server, kind: q.kind, era: era, filter: filter, explain: q.explain,
		list: &listing{server: q.server.Name}, seen: map[string]bool{}, fresh: freshness{private: era == mcp.Legacy},
	}
	cursors := map[string]bool{}
	var params []byte
	for range maxPages {
		failure := l.requestPage(q.behalf, b, params)
		if failure != nil {
			return nil, freshness{}, failure
		}
		switch {
		case b.joined.Len() > maxListing || b.explain.full():
			return nil, freshness{}, streamable.TooLarge(l.server, maxListing)
		case b.cursor == "", cursors[b.cursor]: // if it goes round in circles, what has come is all there is
			if era == mcp.Legacy && can&kinds[q.kind].changes == 0 {
				b.fresh.until = time.Now().Add(unchangedTime)
			}
			list := b.done()
			if q.kind == tools {
				q.server.Overrides.tellMissing(q.server.Name, q.g.config.Observer)
			}
			q.g.config.Observer.Listed(q.server.Name, kinds[q.kind].member, b.items)
			return list, b.fresh, nil
		}
		cursors[b.cursor] = true
		params = slices.Concat([]byte(`{"cursor":`), jsonrpc.Quote(b.cursor), []byte("}"))
	}
	return nil, freshness{}, jsonrpc.InvalidResponse(l.server)
}

// requestPage asks for a page of a list.
func (l *link) requestPage(o behalf, b *builder, params []byte) *jsonrpc.Failure {
	var page mcp.List
	answer := response{
		parse: func(m *jsonrpc.Message, data []byte) *jsonrpc.Failure {
			failure := b.filter.read(&page, data)
			*m = page.Message
			return failure
		},
		take: func(*jsonrpc.Message) *jsonrpc.Failure { return b.add(&page) },
	}
	failure := l.ask(o, kinds[b.kind].method, params, answer)
	if failure == nil && b.kind == tools {
		o.g.config.Observer.ToolsSeen(b.server.Name)
	}
	return failure
}

const (
	// maxPages is how many pages of a list a server may have.
	maxPages = 10_000
	// maxListing is how many bytes the list of a server may have.
	maxListing = 16 << 20
	// failurePause is how long a list is not asked for again that could not be had.
	failurePause = 5 * time.Second
)
