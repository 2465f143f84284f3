package gateway

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

const (
	// maxPages is how many pages of a list a server may have.
	maxPages = 10_000
	// maxListing is how many bytes the list of a server may have.
	maxListing = 16 << 20
	// failurePause is how long a list is not asked for again that could not be had.
	failurePause = 5 * time.Second
)

// A listCache has the lists of a server as a client knows them.
type listCache struct {
	link *link

	mu        sync.Mutex
	kept      [kindCount]cached
	listeners [kindCount]int // streams by which the server can say that its lists have changed
}

// get returns what the server has of a kind: from memory as long as it is good, else by
// asking. It returns nothing if the server has none.
func (c *listCache) get(o origin, k kind) (*listing, freshness, *jsonrpc.Failure) {
	if list, fresh, ok := c.remembered(o.g, k); ok {
		return list, fresh, nil
	}
	l := c.link
	if failure := l.open(o); failure != nil {
		return nil, freshness{}, failure
	}
	if _, can := l.state(); can&kinds[k].needs == 0 {
		return nothing, freshness{none: true}, nil
	}
	view := o.g.rules.view(l.client.identity)
	c.mu.Lock()
	changes, failed := c.kept[k].changes, c.kept[k].failed
	c.mu.Unlock()
	if time.Since(failed) < failurePause {
		return nil, freshness{}, jsonrpc.ConnectError(l.server)
	}
	fetching, cancel := context.WithTimeout(o.ctx, o.g.config.JoinTimeout)
	defer cancel()
	list, fresh, failure := c.fetch(o.within(fetching), k)
	var key listKey
	if failure == nil && k != tasks { // which are not remembered
		key, list = o.g.shelf.put(l.id, list)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := &c.kept[k]
	switch {
	case failure != nil && o.ctx.Err() == nil:
		kept.failed = time.Now()
	case failure == nil && kept.changes == changes:
		kept.key, kept.fresh, kept.view, kept.failed = key, fresh, view, time.Time{}
	}
	return list, fresh, failure
}

// unchangedTime is how long a list is taken for the same that a server of the legacy era
// says never changes. It may be another server by then.
const unchangedTime = 30 * time.Second

// remembered returns a list that is still good.
func (c *listCache) remembered(g *Gateway, k kind) (*listing, freshness, bool) {
	if !c.link.isOpen() {
		return nil, freshness{}, false
	}
	view := g.rules.view(c.link.client.identity)
	era, can := c.link.state()
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := &c.kept[k]
	if kept.key == (listKey{}) || kept.view != view {
		return nil, freshness{}, false
	}
	// With a listener we would know of a change, or of the end of the server.
	current := c.listeners[k] > 0 && (era == mcp.Legacy || can&kinds[k].changes != 0)
	if !current && !time.Now().Before(kept.fresh.until) {
		return nil, freshness{}, false
	}
	list := g.shelf.get(kept.key)
	return list, kept.fresh, list != nil
}

// known returns the last list that there was, if it is still kept. The client has seen none
// that is newer.
func (c *listCache) known(g *Gateway, k kind) *listing {
	c.mu.Lock()
	defer c.mu.Unlock()
	return g.shelf.get(c.kept[k].key)
}

// changed notes that a list of the server is no longer what it was.
func (c *listCache) changed(notice string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range kinds {
		if kinds[k].notice == notice {
			c.kept[k].changes++
			c.kept[k].key, c.kept[k].failed = listKey{}, time.Time{}
		}
	}
}

// forget forgets lists.
func (c *listCache) forget(lists ...kind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range lists {
		c.kept[k] = cached{changes: c.kept[k].changes + 1}
	}
}

// listen notes that n more streams would tell of changes.
func (c *listCache) listen(lists []kind, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range lists {
		c.listeners[k] += n
		if n > 0 {
			c.kept[k] = cached{changes: c.kept[k].changes + 1} // it may have changed before
		}
	}
}

// hasListener reports whether a stream would tell of changes.
func (c *listCache) hasListener(k kind) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.listeners[k] > 0
}

// fetch asks for all pages of a list (A21).
func (c *listCache) fetch(o origin, k kind) (*listing, freshness, *jsonrpc.Failure) {
	l := c.link
	era, can := l.state()
	server := o.g.of(l)
	who := o.g.rules.caller(l.client.identity)
	filter := newListFilter(o.g, server, &who)
	filter.done = !filtersAsItReads(&who)
	b := &builder{g: o.g, server: server, kind: k, filter: filter, list: new(listing), seen: map[string]bool{}}
	b.fresh = freshness{private: era == mcp.Legacy, ttl: 0}
	cursors := map[string]bool{}
	var params []byte
	for range maxPages {
		failure := c.requestPage(o, b, params)
		if failure != nil {
			return nil, freshness{}, failure
		}
		switch {
		case b.joined.Len() > maxListing:
			return nil, freshness{}, streamable.TooLarge(l.server, maxListing)
		case b.cursor == "", cursors[b.cursor]: // if it goes round in circles, what has come is all there is
			if era == mcp.Legacy && can&kinds[k].changes == 0 {
				b.fresh.until = time.Now().Add(unchangedTime)
			}
			list := b.done()
			return list, b.fresh, nil
		}
		cursors[b.cursor] = true
		params = slices.Concat([]byte(`{"cursor":`), jsonrpc.Quote(b.cursor), []byte("}"))
	}
	return nil, freshness{}, jsonrpc.InvalidResponse(l.server)
}

// requestPage asks for a page of a list.
func (c *listCache) requestPage(o origin, b *builder, params []byte) *jsonrpc.Failure {
	var page mcp.List
	answer := response{
		parse: func(m *jsonrpc.Message, data []byte) *jsonrpc.Failure {
			failure := b.filter.read(&page, data)
			*m = page.Message
			return failure
		},
		take: func(*jsonrpc.Message) *jsonrpc.Failure { return b.add(&page) },
	}
	failure := c.link.ask(o, kinds[b.kind].method, params, answer)
	if failure == nil && b.kind == tools {
		o.g.config.Observer.ToolsSeen(b.server.Name)
	}
	return failure
}

// listings returns what all servers have of a kind, in their order. Those that fail
// are left out (A22).
func (v *visit) listings(k kind) ([]*listing, freshness) {
	servers := v.g.rules.seen(v.caller.identity)
	if k == tasks && len(v.g.config.Clients) > 0 {
		servers = slices.DeleteFunc(slices.Clone(servers), func(s *Server) bool { return !v.g.rules.allowsUnknown(v.caller.identity, s) })
	}
	all, fresh := make([]*listing, len(servers)), make([]freshness, len(servers))
	var asking errgroup.Group
	asking.SetLimit(maxFanOut)
	for i, s := range servers {
		l := v.client.link(s)
		var ok bool
		if all[i], fresh[i], ok = l.lists.remembered(v.g, k); ok {
			continue
		}
		asking.Go(func() error {
			var failure *jsonrpc.Failure
			all[i], fresh[i], failure = l.lists.get(v.origin(), k)
			if failure != nil && v.r.Context().Err() == nil {
				v.g.config.Logger.Warn("list of MCP server left out", zap.String("mcp_server", s.Name),
					zap.String("mcp_method", kinds[k].method), zap.String("code", failure.Data.Symbol), zap.String("reason", failure.Message))
			}
			return nil
		})
	}
	_ = asking.Wait()
	together := freshness{none: true}
	for i := range all {
		switch {
		case all[i] == nil:
			all[i] = nothing
			fresh[i] = freshness{private: true} // it may come back at any time
		case fresh[i].none:
			continue
		}
		left := max(0, min(fresh[i].ttl, time.Until(fresh[i].until)))
		if together.none || left < together.ttl {
			together.ttl = left
		}
		together.private = together.private || fresh[i].private
		together.none = false
	}
	together.private = together.private || together.none || len(v.g.config.Clients) > 0 // it may depend on who asks
	return all, together
}

// A lister answers a request for a list.
type lister struct {
	*visit
	kind kind
}

// list answers with a page of what all servers have of a kind (A18).
func (v lister) list() *jsonrpc.Failure {
	k := v.kind
	offset, limit, failure := v.page()
	if failure != nil {
		return failure
	}
	var all []*listing
	fresh := freshness{private: true}
	if k != tools || !v.g.config.Discovery {
		all, fresh = v.listings(k)
	}
	if own := v.g.own.list(k, v.caller.identity); own != nil {
		all = append(all, own)
	}
	total, size := 0, 0
	for _, l := range all {
		total += len(l.ends)
		size += len(l.joined) + 1
	}
	end := total
	if limit > 0 && limit < total-offset {
		end = offset + limit
		size = size/total*limit + 1<<10
	}
	answer := borrowAnswer(size)
	defer giveBackAnswer(answer)
	b := append(*answer, `{"jsonrpc":"2.0","id":`...)
	b = append(b, v.message.Literal(jsonrpc.ID)...)
	b = append(b, `,"result":{`...)
	if v.era == mcp.Modern {
		b = append(b, v.g.info.members("complete")...)
		b = append(b, ',')
	}
	b = append(b, '"')
	b = append(b, kinds[k].member...)
	b = append(b, `":[`...)
	at := 0
	for _, l := range all {
		items := l.from(min(max(offset-at, 0), len(l.ends)), min(max(end-at, 0), len(l.ends)))
		if at += len(l.ends); len(items) == 0 {
			continue
		}
		if b[len(b)-1] != '[' {
			b = append(b, ',')
		}
		b = append(b, items...)
	}
	b = append(b, ']')
	if end < total {
		b = append(b, `,"nextCursor":"`...)
		b = append(b, mcp.Cursor(end)...)
		b = append(b, '"')
	}
	if v.era == mcp.Modern {
		b = append(b, fresh.members()...)
	}
	*answer = append(b, "}}"...)
	v.out.Answer(http.StatusOK, &streamable.Event{Data: *answer})
	return nil
}

// members returns what a result of the modern era says of how long it is good.
func (f freshness) members() []byte {
	scope := "public"
	if f.private {
		scope = "private"
	}
	return fmt.Appendf(nil, `,"ttlMs":%d,"cacheScope":%q`, f.ttl.Milliseconds(), scope)
}

// answers are kept between lists: those of a thousand tools have hundreds of kilobytes.
var answers = sync.Pool{New: func() any { return new([]byte) }}

// maxKept is how large an answer may be to be kept.
const maxKept = 1 << 20

func borrowAnswer(size int) *[]byte {
	b := answers.Get().(*[]byte)
	*b = slices.Grow((*b)[:0], size+512)
	return b
}

func giveBackAnswer(b *[]byte) {
	if cap(*b) <= maxKept {
		answers.Put(b)
	}
}

// page returns which items are asked for.
func (v lister) page() (offset, limit int, failure *jsonrpc.Failure) {
	if v.message.Has(jsonrpc.Cursor) {
		var err error
		if offset, err = mcp.ParseCursor(v.message.Text(jsonrpc.Cursor)); err != nil {
			return 0, 0, jsonrpc.InvalidParams("cursor: it is none of this server").AsAnswer()
		}
	}
	if v.message.Has(jsonrpc.Limit) {
		var err error
		if limit, err = strconv.Atoi(string(v.message.Literal(jsonrpc.Limit))); err != nil || limit <= 0 {
			return 0, 0, jsonrpc.InvalidParams("limit: it is no positive whole number").AsAnswer()
		}
	}
	return offset, limit, nil
}
