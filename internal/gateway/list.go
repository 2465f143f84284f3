package gateway

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A lister lists items of a kind, of all servers as one.
type lister struct {
	*aggregateRequest
	kind mcp.ListKind
}

// list answers a list request with a page of the joined lists of all servers (A18).
func (ls lister) list() *jsonrpc.Failure {
	k := ls.kind
	offset, limit, failure := ls.page()
	if failure != nil {
		return failure
	}
	began := time.Now()
	var all []*catalog.List
	fresh := catalog.Freshness{Private: true}
	if k != mcp.Tools || !ls.g.config.Discovery {
		// Clients wait longer for lists than for initialize. Programs that list only once ignore
		// notifications, so with a longer join_timeout they wait longer, too.
		wait := max(firstWait, ls.g.config.JoinTimeout/8)
		all, fresh = ls.all(func() bool { return !ls.client.isNotifiedOf(k) || time.Since(began) < wait })
	}
	if own := ls.g.builtin.list(k, ls.Caller.Identity); own != nil {
		all = append(all, own)
	}
	shared := ls.sharedUIs(all)
	total, size := 0, 0
	for _, l := range all {
		total += len(l.Ends)
		size += len(l.Joined) + 1
	}
	end := total
	if limit > 0 && limit < total-offset {
		end = offset + limit
		size = size/total*limit + 1<<10
	}
	answer := listBuffers.Get().(*[]byte)
	defer func() {
		if cap(*answer) <= maxPooledBuffer {
			listBuffers.Put(answer)
		}
	}()
	isLarge := size > maxPooledBuffer
	if isLarge {
		size = 0 // the items are not copied
	}
	b := append(slices.Grow((*answer)[:0], size+512), `{"jsonrpc":"2.0","id":`...)
	b = append(b, ls.Message.Literal(jsonrpc.ID)...)
	b = append(b, `,"result":{`...)
	if ls.era == mcp.Modern {
		b = append(b, ls.g.info.Members("complete")...)
		b = append(b, ',')
	}
	b = append(b, '"')
	b = append(b, mcp.ListKinds[k].Member...)
	b = append(b, `":[`...)
	var out io.WriteCloser // writes a large answer in parts
	start, isFirst := 0, true
	for _, l := range all {
		items := l.From(min(max(offset-start, 0), len(l.Ends)), min(max(end-start, 0), len(l.Ends)), shared)
		start += len(l.Ends)
		if len(items) == 0 {
			continue
		}
		if !isFirst {
			b = append(b, ',')
		}
		isFirst = false
		if !isLarge {
			b = append(b, items...)
			continue
		}
		if out == nil {
			out = ls.out.Large(new(streamable.Event), false)
		}
		_, _ = out.Write(b) // fails if the client is gone
		_, _ = out.Write(items)
		b = b[:0]
	}
	b = append(b, ']')
	if end < total {
		b = append(b, `,"nextCursor":"`...)
		b = append(b, mcp.Cursor(end)...)
		b = append(b, '"')
	}
	if ls.era == mcp.Modern {
		b = append(b, fresh.Members()...)
	}
	*answer = append(b, "}}"...)
	if out != nil {
		_, _ = out.Write(*answer)
		_ = out.Close()
		return nil
	}
	ls.out.Answer(http.StatusOK, &streamable.Event{Data: *answer})
	return nil
}

// listBuffers are reused: a list of a thousand tools takes hundreds of kilobytes.
var listBuffers = sync.Pool{New: func() any { return new([]byte) }}

// maxPooledBuffer is the largest buffer that is reused.
const maxPooledBuffer = 1 << 20

// page returns the offset and limit of the request; limit is 0 if not given.
func (ls lister) page() (offset, limit int, failure *jsonrpc.Failure) {
	if ls.Message.Has(jsonrpc.Cursor) {
		var err error
		if offset, err = mcp.ParseCursor(ls.Message.Text(jsonrpc.Cursor)); err != nil {
			return 0, 0, jsonrpc.InvalidParams("cursor: invalid").WithStatusOK()
		}
	}
	if ls.Message.Has(jsonrpc.Limit) {
		var err error
		if limit, err = strconv.Atoi(string(ls.Message.Literal(jsonrpc.Limit))); err != nil || limit <= 0 {
			return 0, 0, jsonrpc.InvalidParams("limit: must be a positive integer").WithStatusOK()
		}
	}
	return offset, limit, nil
}

// all returns the lists of all servers, in configuration order. It leaves out servers that
// fail (A22). See [background.collect] for waits.
func (ls lister) all(waits func() bool) ([]*catalog.List, catalog.Freshness) {
	servers := ls.g.visibleServers(ls.Caller.Identity)
	if ls.kind == mcp.Tasks && len(ls.g.config.Clients) > 0 {
		servers = filterServers(servers, func(s *upstream.Server) bool {
			return ls.g.rules.AllowsUnknown(ls.Caller.Identity, s.Name)
		})
	}
	all, fresh := ls.from(servers, waits)
	combined := catalog.Freshness{None: true}
	for i := range all {
		switch {
		case all[i] == nil:
			all[i] = catalog.Empty
			fresh[i] = catalog.Freshness{Private: true} // the server may return at any time
		case fresh[i].None:
			continue
		}
		left := max(0, min(fresh[i].TTL, time.Until(fresh[i].Until)))
		if combined.None || left < combined.TTL {
			combined.TTL = left
		}
		combined.Private = combined.Private || fresh[i].Private
		combined.None = false
	}
	combined.Private = combined.Private || combined.None || len(ls.g.config.Clients) > 0 // the list depends on the client
	return all, combined
}

// from returns the lists of servers, nil for those that failed or are not connected yet. See
// [background.collect] for waits.
func (ls lister) from(servers []*upstream.Server, waits func() bool) (
	[]*catalog.List, []catalog.Freshness,
) {
	all, fresh := make([]*catalog.List, len(servers)), make([]catalog.Freshness, len(servers))
	audience, first := ls.g.audience(ls.client), ls.client.listed.note(ls.kind)
	arrived := make([]bool, len(servers))
	var bg *background // nil until a server must be asked
	for i, s := range servers {
		q := &listQuery{
			scope: ls.scope(), client: ls.client, server: s, kind: ls.kind,
			profile: audience.profile(s.ID), first: first, began: time.Now(),
		}
		var ok bool
		if all[i], fresh[i], ok = q.cachedList(); ok {
			continue
		}
		if bg == nil {
			bg = newBackground(ls.aggregateRequest, len(servers))
			defer bg.requestAnswered()
		}
		q.scope = bg.scope
		bg.Go(func() {
			list, freshness, failure := q.get()
			bg.arrivals <- func() {
				arrived[i] = true
				all[i], fresh[i] = list, freshness
				if failure.IsLoginRequired() && ls.kind == mcp.Tools {
					all[i], fresh[i] = ls.loginTool(s, failure), catalog.Freshness{Private: true}
				}
			}
			if failure == nil {
				ls.g.notify.serverAvailable(s)
			}
		})
	}
	if bg == nil {
		return all, fresh
	}
	bg.collect(ls.ctx, waits)
	for i, s := range servers {
		if all[i] == nil && (!arrived[i] || s.IsUnavailable()) {
			audience.profile(s.ID).noteLeftOut(s)
		}
	}
	bg.collectLate()
	return all, fresh
}

// loginTool returns the list with the login tool of a server, nil if the client cannot log in.
func (ls lister) loginTool(s *upstream.Server, required *jsonrpc.Failure) *catalog.List {
	if len(required.Data.Elicitations) == 0 {
		return nil
	}
	name := ls.g.names.shown(s.Name, mcp.Tools, LoginTool)
	item := jsonrpc.Encode(map[string]any{
		"name":        name,
		"description": "Log in to " + s.Name + ". Its other tools can be used after that.",
		"inputSchema": map[string]any{"type": "object", "properties": map[string]any{}},
	})
	return &catalog.List{Joined: item, Ends: []int{len(item)}, Names: []string{name}}
}

// sharedUIs returns the UI resources that several servers have, so that their URIs must name the
// server. For all other servers it notes that the client knows their UI resources by their own
// URIs.
func (ls lister) sharedUIs(all []*catalog.List) catalog.SharedUIs {
	if ls.kind != mcp.Tools {
		return nil
	}
	shared := ls.g.names.sharedUIs(all)
	for _, l := range all {
		if s := ls.g.servers[l.Server]; s != nil && len(l.UIs) > 0 && !ls.g.names.areUnchanged() && !shared.AreIn(l) {
			ls.client.listed.notePlainUIs(s, l.Key)
		}
	}
	return shared
}

// A builder builds a list from pages.
type builder struct {
	g      *Gateway
	server *upstream.Server
	kind   mcp.ListKind
	era    mcp.Era // of the session
	filter upstream.ListFilter

	explain *explainer // nil unless decisions are recorded

	joined bytes.Buffer
	list   *catalog.List
	seen   map[string]bool
	fresh  catalog.Freshness
	ttls   []time.Duration // of the pages
	cursor string
	last   bool // the page has no cursor
	items  int  // items of the server, including hidden ones
}

// add adds a page.
func (b *builder) add(page *mcp.List) *jsonrpc.Failure {
	if !page.HasList(b.kind) {
		return jsonrpc.InvalidResponse(b.server.Name)
	}
	b.cursor = page.Cursor
	// Legacy servers may mean the end by an empty cursor. Since 2026-07-28 it is like any other.
	b.last = !page.HasCursor || page.Cursor == "" && b.era == mcp.Legacy
	if page.TTL >= 0 {
		b.ttls = append(b.ttls, page.TTL)
	}
	if page.Has(jsonrpc.CacheScope) {
		b.fresh.Private = b.fresh.Private || !page.Is(jsonrpc.CacheScope, "public")
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
		if b.filter.Caller.IsShown(decision) {
			b.addItem(item)
		}
	}
	return nil
}

// decide decides whether the client gets an item.
func (b *builder) decide(item *mcp.Item) acl.Decision {
	if b.seen[item.Name] { // duplicates confuse clients
		return upstream.ListedTwice
	}
	decision := b.filter.Decide(item)
	switch {
	case b.kind == mcp.Tools && !b.server.Shows(item.Name):
		return acl.Because("not in the server's expose list", acl.Deny)
	case !b.filter.Caller.IsShown(decision):
		return decision
	case b.kind == mcp.Tools && b.g.builtin.replaces(b.shownName(item.Name)):
		return acl.Because("the gateway has a tool of this name", acl.Deny)
	case b.kind == mcp.Tools:
		if err := b.addParams(item); err != nil {
			return acl.Because("its definition is invalid: "+err.Error(), acl.Deny)
		}
	}
	return decision
}

// addItem adds an item under the name that clients see.
func (b *builder) addItem(item *mcp.Item) {
	b.seen[item.Name] = true
	if o := b.server.Overrides.Of(item.Name); o != nil && b.kind == mcp.Tools {
		item = o.Define(item)
	}
	if b.joined.Len() > 0 {
		b.joined.WriteByte(',')
	}
	shown, raw := b.shownName(item.Name), item.Raw
	var edits []jsonspan.Edit
	if shown != item.Name {
		edits = append(edits, item.Rename(shown).Moved(-item.Start))
		if b.kind == mcp.Skills {
			edits = append(edits, b.renameFiles(raw)...)
		}
	}
	if b.kind == mcp.Tools {
		if e, ok := b.server.AddFocus(item); ok {
			edits = append(edits, e)
			if b.list.Focused == nil {
				b.list.Focused = map[string]string{}
			}
			b.list.Focused[shown] = item.Name
		}
	}
	raw = jsonspan.Spliced(raw, edits...)
	if b.kind == mcp.Tools {
		b.list.UIs = catalog.AppendUIs(b.list.UIs, raw, b.joined.Len())
	}
	b.joined.Write(raw)
	if (b.kind == mcp.Tools || b.kind == mcp.Prompts) && b.g.names.naming.MayBeShort(shown) {
		if b.list.Short == nil {
			b.list.Short = map[string]string{}
		}
		b.list.Short[shown] = b.overriddenName(item.Name)
	}
	b.list.Ends = append(b.list.Ends, b.joined.Len())
	b.list.Names = append(b.list.Names, shown)
}

// overriddenName returns the name of an item after overrides, without the server prefix.
func (b *builder) overriddenName(name string) string {
	if b.kind == mcp.Tools {
		return b.server.Overrides.ClientName(name)
	}
	return name
}

// shownName returns the name of an item that clients see.
func (b *builder) shownName(name string) string {
	return b.g.names.shown(b.server.Name, b.kind, b.overriddenName(name))
}

// addParams notes which arguments of a tool are repeated in headers. It fails if that declaration
// is invalid: such a tool of a modern server cannot be called over HTTP.
func (b *builder) addParams(item *mcp.Item) (err error) {
	if bytes.Contains(item.Raw, []byte("x-mcp-header")) {
		if b.list.Params == nil {
			b.list.Params = mcp.ParamHeaders{}
		}
		err = b.list.Params.AddTool(item.Name, item.Raw)
	}
	if b.era == mcp.Legacy || b.server.ChildrenOnly {
		err = nil
	}
	if b.server.NoteTool(item.Name, err) {
		b.g.config.Observer.ToolInvalid(b.server.Name, mcp.Shortened(item.Name), err)
	}
	return err
}

var filePaths = jsonspan.CompilePaths("resources.*.uri")

// renameFiles returns the edits that replace the URIs of the files of a skill by those that clients
// see.
func (b *builder) renameFiles(skill []byte) []jsonspan.Edit {
	return renameAt(filePaths, skill, func(_ int, uri string) string {
		return b.g.names.shown(b.server.Name, mcp.Skills, uri)
	})
}

// finish returns the list.
func (b *builder) finish() *catalog.List {
	if len(b.ttls) > 0 {
		b.fresh.TTL = slices.Min(b.ttls)
		b.fresh.Until = time.Now().Add(b.fresh.TTL)
	}
	b.list.Joined = bytes.Clone(b.joined.Bytes())
	return b.list
}

// A listQuery requests a list of a server for a client.
type listQuery struct {
	scope
	client  *client
	server  *upstream.Server
	kind    mcp.ListKind
	profile *profile // profile of the server
	first   bool     // the client has not got this kind of list before
	began   time.Time

	explain *explainer // records decisions for another client; nil for none
}

// newListQuery returns a query for a list.
func (c *client) newListQuery(sc scope, s *upstream.Server, k mcp.ListKind) *listQuery {
	return &listQuery{scope: sc, client: c, server: s, kind: k, profile: sc.g.profile(c, s.ID), began: time.Now()}
}

// lists returns the cache for the list.
func (q *listQuery) lists() *catalog.Cache { return q.client.lists(q.profile, q.server) }

// lists returns the cache with the lists that the client sees: its own or those of its audience.
func (c *client) lists(p *profile, s *upstream.Server) *catalog.Cache {
	l := c.existingLink(s)
	if c.isolated.Load() {
		l = c.linkTo(s)
	}
	if l != nil {
		if own := l.ownLists(); own != nil {
			return own
		}
	}
	return &p.lists
}

// knownList returns a cached list, nil if there is none or it is outdated.
func (c *client) knownList(g *Gateway, s *upstream.Server, k mcp.ListKind) *catalog.List {
	p := g.profile(c, s.ID)
	if list := c.lists(p, s).Current(g.shelf, k); list != nil || c.isolated.Load() {
		return list
	}
	return p.lists.Current(g.shelf, k)
}

// get returns the list from the cache, or requests it. If several clients need it, one sends the
// request. The list is empty if the server has no such list.
func (q *listQuery) get() (*catalog.List, catalog.Freshness, *jsonrpc.Failure) {
	if list, fresh, ok := q.cachedList(); ok {
		return list, fresh, nil
	}
	info, failure := q.profile.getInfo(q.scope, q.client, q.server)
	outer := q.scope
	ctx, cancel := context.WithTimeout(q.ctx, q.g.config.JoinTimeout)
	defer cancel()
	q.ctx = ctx
	switch {
	case failure != nil:
		return nil, catalog.Freshness{}, failure
	case info.can&mcp.ListKinds[q.kind].Needs == 0:
		q.g.config.Observer.Listed(q.server.Name, mcp.ListKinds[q.kind].Member, 0)
		return catalog.Empty, catalog.Freshness{None: true}, nil
	case q.kind == mcp.Tasks: // never shared between clients
		return q.fetch(q.client.linkTo(q.server))
	}
	c := q.lists()
	select {
	case c.Token(q.kind) <- struct{}{}:
		defer func() { <-c.Token(q.kind) }()
	case <-ctx.Done():
		return nil, catalog.Freshness{}, jsonrpc.Timeout(q.server.Name)
	}
	if list, fresh, ok := q.cachedList(); ok {
		return list, fresh, nil
	}
	changes, failure := c.BeginFetch(q.kind, q.began)
	if failure != nil {
		return nil, catalog.Freshness{}, failure
	}
	view := q.g.viewKey(q.client.identity)
	l := q.profile.listLink(q.client, q.server)
	list, fresh, failure := q.fetch(l)
	if failure != nil && l.client != q.client { // the other client may have disconnected
		l = q.client.linkTo(q.server)
		list, fresh, failure = q.fetch(l)
	}
	if failure != nil && failure.Code == jsonrpc.CodeMethodNotFound { // many servers have resources but no templates
		return catalog.Empty, catalog.Freshness{None: true}, nil
	}
	if failure != nil {
		if outer.ctx.Err() == nil {
			c.NoteFailure(q.kind, failure)
			q.report(l, failure)
		}
		return nil, catalog.Freshness{}, failure
	}
	session := l.session.current()
	cached := catalog.Cached{Fresh: fresh, View: view, Changes: changes, At: time.Now()}
	cached.Watched = session.Era == mcp.Legacy || session.Can&mcp.ListKinds[q.kind].Changes != 0
	cached.Key, list = q.g.shelf.Put(q.server.ID, list)
	c.Keep(q.kind, cached)
	return list, fresh, nil
}

// report logs why the server did not return the list. Failures to connect have been logged already.
func (q *listQuery) report(l *link, failure *jsonrpc.Failure) {
	switch {
	case !l.session.isOpen() || failure.IsLoginRequired():
	case failure.Data.Symbol == "server_error":
		q.g.config.Logger.Warn("list of MCP server left out", zap.String("mcp_server", q.server.Name),
			zap.String("mcp_method", mcp.ListKinds[q.kind].Method), zap.String("reason", mcp.OneLine(failure.Message)))
	default:
		q.g.config.Observer.ServerFailed(q.server.Fault(failure, mcp.ListKinds[q.kind].Method, q.g.config.JoinTimeout))
	}
}

// cachedList returns a cached list that is still valid.
func (q *listQuery) cachedList() (*catalog.List, catalog.Freshness, bool) {
	if q.server.IsUnavailable() {
		return nil, catalog.Freshness{}, false
	}
	key, fresh, ok := q.lists().Valid(q.kind, q.g.viewKey(q.client.identity), q.began, q.first)
	if !ok {
		return nil, catalog.Freshness{}, false
	}
	list := q.g.shelf.Get(key)
	return list, fresh, list != nil
}

// fetch requests all pages of a list (A21), with the session of a link.
func (q *listQuery) fetch(l *link) (*catalog.List, catalog.Freshness, *jsonrpc.Failure) {
	if failure := l.open(q.scope); failure != nil {
		return nil, catalog.Freshness{}, failure
	}
	session := l.session.current()
	caller := q.g.callerOf(q.client)
	done := !upstream.FiltersWhileReading(&caller)
	if q.explain != nil {
		caller = q.explain.client
	}
	filter := upstream.NewListFilter(q.g.shared, q.server, &caller, q.r.Header)
	filter.Done = done
	b := &builder{
		g: q.g, server: q.server, kind: q.kind, era: session.Era, filter: filter, explain: q.explain,
		list: &catalog.List{Server: q.server.Name}, seen: map[string]bool{},
		fresh: catalog.Freshness{Private: session.Era == mcp.Legacy},
	}
	cursors := map[string]bool{}
	var params []byte
	for range maxPages {
		failure := b.requestPage(q.scope, l, params)
		if failure != nil {
			return nil, catalog.Freshness{}, failure
		}
		switch {
		case b.joined.Len() > maxListing || b.explain.full():
			return nil, catalog.Freshness{}, streamable.TooLarge(l.serverName, maxListing)
		case b.last, cursors[b.cursor]: // a repeated cursor ends the list
			if session.Era == mcp.Legacy && session.Can&mcp.ListKinds[q.kind].Changes == 0 {
				b.fresh.Until = time.Now().Add(catalog.UnchangedTime)
			}
			list := b.finish()
			if q.kind == mcp.Tools {
				for _, tool := range q.server.Overrides.Missing() {
					q.g.config.Observer.ToolMissing(q.server.Name, tool)
				}
			}
			q.g.config.Observer.Listed(q.server.Name, mcp.ListKinds[q.kind].Member, b.items)
			return list, b.fresh, nil
		}
		cursors[b.cursor] = true
		params = slices.Concat([]byte(`{"cursor":`), jsonrpc.Quote(b.cursor), []byte("}"))
	}
	failure := jsonrpc.ResponseTooLarge(l.serverName)
	failure.Message += ": more than " + strconv.Itoa(maxPages) + " pages"
	return nil, catalog.Freshness{}, failure
}

// requestPage requests one page and adds it.
func (b *builder) requestPage(sc scope, l *link, params []byte) *jsonrpc.Failure {
	var page mcp.List
	answer := responseHandler{
		parse: func(m *jsonrpc.Message, data []byte) *jsonrpc.Failure {
			failure := b.filter.Read(&page, data)
			*m = page.Message
			return failure
		},
		handle: func(*jsonrpc.Message) *jsonrpc.Failure { return b.add(&page) },
	}
	failure := l.sendRequest(sc, mcp.ListKinds[b.kind].Method, params, answer)
	if failure == nil && b.kind == mcp.Tools {
		sc.g.config.Observer.ToolsSeen(b.server.Name)
	}
	return failure
}

const (
	// maxPages limits the pages of a list.
	maxPages = 10_000
	// maxListing limits the bytes of a list.
	maxListing = 16 << 20
)
