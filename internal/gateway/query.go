package gateway

import (
	"bytes"
	"context"
	"slices"
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

// A builder puts a list together.
type builder struct {
	g      *Gateway
	server *upstream.Server
	kind   mcp.ListKind
	era    mcp.Era // of the session
	filter upstream.ListFilter

	explain *explainer // nil if there is nothing to explain

	joined bytes.Buffer
	list   *catalog.List
	seen   map[string]bool
	fresh  catalog.Freshness
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

// decide decides whether the list has an item.
func (b *builder) decide(item *mcp.Item) acl.Decision {
	decision := b.filter.Decide(item)
	switch {
	case b.kind == mcp.Tools && !b.server.Shows(item.Name):
		return acl.Because("not in expose of the server", acl.Deny)
	case !b.filter.Caller.IsShown(decision):
		return decision
	case b.seen[item.Name]: // clients are confused by servers that list something twice
		return acl.Because("the server lists it more than once", acl.Deny)
	case b.kind == mcp.Tools:
		if err := b.addParams(item); err != nil {
			return acl.Because("its definition is invalid: "+err.Error(), acl.Deny)
		}
	}
	return decision
}

// addItem adds an item with its name as clients see it.
func (b *builder) addItem(item *mcp.Item) {
	b.seen[item.Name] = true
	if o := b.server.Overrides.Of(item.Name); o != nil && b.kind == mcp.Tools {
		item = o.Define(item)
	}
	if b.joined.Len() > 0 {
		b.joined.WriteByte(',')
	}
	shown, raw := b.shown(item.Name), item.Raw
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
	if (b.kind == mcp.Tools || b.kind == mcp.Prompts) && b.g.config.Naming.MayBeShort(shown) {
		if b.list.Short == nil {
			b.list.Short = map[string]string{}
		}
		b.list.Short[shown] = b.name(item.Name)
	}
	b.list.Ends = append(b.list.Ends, b.joined.Len())
	b.list.Names = append(b.list.Names, shown)
}

// name returns the name of an item for clients, as if there were no other servers.
func (b *builder) name(of string) string {
	if b.kind == mcp.Tools {
		return b.server.Overrides.Shown(of)
	}
	return of
}

// shown returns what clients call an item.
func (b *builder) shown(name string) string { return b.g.shown(b.server.Name, b.kind, b.name(name)) }

// addParams notes which arguments of a tool are repeated in headers. It fails if the tool cannot be
// called: over HTTP those of the modern era cannot if that is not well defined.
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

// renameFiles returns the edits that give the files of a skill the URIs that clients have for
// them.
func (b *builder) renameFiles(skill []byte) []jsonspan.Edit {
	return renameAt(filePaths, skill, func(_ int, uri string) string { return b.g.shown(b.server.Name, mcp.Skills, uri) })
}

// shown returns what clients call something of a server.
func (g *Gateway) shown(server string, k mcp.ListKind, name string) string {
	if g.transparent() {
		return name
	}
	switch k {
	case mcp.Resources:
		return mcp.ResourceURI(server, name)
	case mcp.Templates, mcp.Skills:
		// Clients make URIs of it: of a template, or of the file of a skill that another one
		// refers to by its path.
		return mcp.TemplateURI(server, name)
	case mcp.Tasks:
		return server + mcp.Separator + name
	}
	return g.config.Naming.Join(server, name)
}

// done returns the list.
func (b *builder) done() *catalog.List {
	if len(b.ttls) > 0 {
		b.fresh.TTL = slices.Min(b.ttls)
		b.fresh.Until = time.Now().Add(b.fresh.TTL)
	}
	b.list.Joined = bytes.Clone(b.joined.Bytes())
	return b.list
}

// A listQuery is a question for a list of a server, on behalf of a client.
type listQuery struct {
	behalf
	client *client
	server *upstream.Server
	kind   mcp.ListKind
	known  *profile // of the server
	first  bool     // the client has not got such a list yet
	began  time.Time

	explain *explainer // for whom it is decided on the items; nil for the client
}

// newListQuery returns a question for a list.
func (c *client) newListQuery(o behalf, s *upstream.Server, k mcp.ListKind) *listQuery {
	return &listQuery{behalf: o, client: c, server: s, kind: k, known: o.g.profile(c, s.ID), began: time.Now()}
}

// lists returns where the list is remembered.
func (q *listQuery) lists() *catalog.Cache { return q.client.lists(q.known, q.server) }

// lists returns the lists of a server as the client gets them.
func (c *client) lists(known *profile, s *upstream.Server) *catalog.Cache {
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

// knownList returns the current list of a server; nil if it is not known, or has to be asked for again.
func (c *client) knownList(g *Gateway, s *upstream.Server, k mcp.ListKind) *catalog.List {
	known := g.profile(c, s.ID)
	if list := c.lists(known, s).Known(g.shelf, k); list != nil || c.apart.Load() {
		return list
	}
	return known.lists.Known(g.shelf, k)
}

// get returns what the server has of a kind: from memory as long as it is good, else by
// asking. One of several clients asks for all of them. The list is empty if the server has no such list.
func (q *listQuery) get() (*catalog.List, catalog.Freshness, *jsonrpc.Failure) {
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
		return nil, catalog.Freshness{}, failure
	case about.can&mcp.ListKinds[q.kind].Needs == 0:
		q.g.config.Observer.Listed(q.server.Name, mcp.ListKinds[q.kind].Member, 0)
		return catalog.Empty, catalog.Freshness{None: true}, nil
	case q.kind == mcp.Tasks: // which are the client's own
		return q.fetch(q.client.link(q.server))
	}
	c := q.lists()
	select {
	case c.Token(q.kind) <- struct{}{}:
		defer func() { <-c.Token(q.kind) }()
	case <-ctx.Done():
		return nil, catalog.Freshness{}, jsonrpc.Timeout(q.server.Name)
	}
	if list, fresh, ok := q.remembered(); ok {
		return list, fresh, nil
	}
	changes, failure := c.Before(q.kind, q.began)
	if failure != nil {
		return nil, catalog.Freshness{}, failure
	}
	view := q.g.view(q.client.identity)
	l := q.known.lender(q.client, q.server)
	list, fresh, failure := q.fetch(l)
	if failure != nil && l.client != q.client { // which may have left
		l = q.client.link(q.server)
		list, fresh, failure = q.fetch(l)
	}
	if failure != nil && failure.Code == jsonrpc.CodeMethodNotFound { // many servers have resources and no templates
		return catalog.Empty, catalog.Freshness{None: true}, nil
	}
	if failure != nil {
		if asker.ctx.Err() == nil {
			c.NoteFailure(q.kind, failure)
			q.report(l, failure)
		}
		return nil, catalog.Freshness{}, failure
	}
	era, can := l.state()
	kept := catalog.Cached{Fresh: fresh, View: view, Changes: changes, At: time.Now()}
	kept.Watched = era == mcp.Legacy || can&mcp.ListKinds[q.kind].Changes != 0
	kept.Key, list = q.g.shelf.Put(q.server.ID, list)
	c.Keep(q.kind, kept)
	return list, fresh, nil
}

// report tells why the server has not listed what it has. If the session could not be opened, that
// has been told.
func (q *listQuery) report(l *link, failure *jsonrpc.Failure) {
	switch {
	case !l.isOpen() || failure.IsLoginRequired():
	case failure.Data.Symbol == "server_error":
		q.g.config.Logger.Warn("list of MCP server left out", zap.String("mcp_server", q.server.Name),
			zap.String("mcp_method", mcp.ListKinds[q.kind].Method), zap.String("reason", mcp.OneLine(failure.Message)))
	default:
		q.g.config.Observer.ServerFailed(q.server.Fault(failure, mcp.ListKinds[q.kind].Method, q.g.config.JoinTimeout))
	}
}

// remembered returns a list that is still good.
func (q *listQuery) remembered() (*catalog.List, catalog.Freshness, bool) {
	if q.server.IsOut() {
		return nil, catalog.Freshness{}, false
	}
	key, fresh, ok := q.lists().Good(q.kind, q.g.view(q.client.identity), q.began, q.first)
	if !ok {
		return nil, catalog.Freshness{}, false
	}
	list := q.g.shelf.Get(key)
	return list, fresh, list != nil
}

// fetch asks for all pages of a list (A21), in the session of a link.
func (q *listQuery) fetch(l *link) (*catalog.List, catalog.Freshness, *jsonrpc.Failure) {
	if failure := l.open(q.behalf); failure != nil {
		return nil, catalog.Freshness{}, failure
	}
	era, can := l.state()
	who := q.g.callerOf(q.client)
	done := !upstream.FiltersAsItReads(&who)
	if q.explain != nil {
		who = q.explain.client
	}
	filter := upstream.NewListFilter(q.g.shared, q.server, &who, q.r.Header)
	filter.Done = done
	b := &builder{
		g: q.g, server: q.server, kind: q.kind, era: era, filter: filter, explain: q.explain,
		list: &catalog.List{Server: q.server.Name}, seen: map[string]bool{},
		fresh: catalog.Freshness{Private: era == mcp.Legacy},
	}
	cursors := map[string]bool{}
	var params []byte
	for range maxPages {
		failure := l.requestPage(q.behalf, b, params)
		if failure != nil {
			return nil, catalog.Freshness{}, failure
		}
		switch {
		case b.joined.Len() > maxListing || b.explain.full():
			return nil, catalog.Freshness{}, streamable.TooLarge(l.server, maxListing)
		case b.cursor == "", cursors[b.cursor]: // if it goes round in circles, what has come is all there is
			if era == mcp.Legacy && can&mcp.ListKinds[q.kind].Changes == 0 {
				b.fresh.Until = time.Now().Add(catalog.UnchangedTime)
			}
			list := b.done()
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
	return nil, catalog.Freshness{}, jsonrpc.InvalidResponse(l.server)
}

// requestPage asks for a page of a list.
func (l *link) requestPage(o behalf, b *builder, params []byte) *jsonrpc.Failure {
	var page mcp.List
	answer := response{
		parse: func(m *jsonrpc.Message, data []byte) *jsonrpc.Failure {
			failure := b.filter.Read(&page, data)
			*m = page.Message
			return failure
		},
		take: func(*jsonrpc.Message) *jsonrpc.Failure { return b.add(&page) },
	}
	failure := l.ask(o, mcp.ListKinds[b.kind].Method, params, answer)
	if failure == nil && b.kind == mcp.Tools {
		o.g.config.Observer.ToolsSeen(b.server.Name)
	}
	return failure
}

const (
	// maxPages is how many pages of a list a server may have.
	maxPages = 10_000
	// maxListing is how many bytes the list of a server may have.
	maxListing = 16 << 20
)
