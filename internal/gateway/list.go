package gateway

import (
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// listings returns what all servers have of a kind, in their order. Those that fail
// are left out (A22). The client waits as [visit.gather] says.
func (v *visit) listings(k mcp.ListKind, waits func() bool) ([]*catalog.List, catalog.Freshness) {
	servers := v.g.seen(v.Caller.Identity)
	if k == mcp.Tasks && len(v.g.config.Clients) > 0 {
		servers = filterServers(servers, func(s *upstream.Server) bool {
			return v.g.rules.AllowsUnknown(v.Caller.Identity, s.Name)
		})
	}
	all, fresh := v.listsOf(servers, k, waits)
	together := catalog.Freshness{None: true}
	for i := range all {
		switch {
		case all[i] == nil:
			all[i] = catalog.Empty
			fresh[i] = catalog.Freshness{Private: true} // it may come back at any time
		case fresh[i].None:
			continue
		}
		left := max(0, min(fresh[i].TTL, time.Until(fresh[i].Until)))
		if together.None || left < together.TTL {
			together.TTL = left
		}
		together.Private = together.Private || fresh[i].Private
		together.None = false
	}
	together.Private = together.Private || together.None || len(v.g.config.Clients) > 0 // it may depend on who asks
	return all, together
}

// listsOf returns the lists of servers. Those that cannot be had, or not yet, are nil. The client waits as
// [visit.gather] says.
func (v *visit) listsOf(servers []*upstream.Server, k mcp.ListKind, waits func() bool) (
	[]*catalog.List, []catalog.Freshness,
) {
	all, fresh := make([]*catalog.List, len(servers)), make([]catalog.Freshness, len(servers))
	known, first := v.g.audience(v.client), v.client.gets(k)
	arrivals := make(chan func(), len(servers))
	arrived := make([]bool, len(servers))
	var aside *side
	asked := 0
	for i, s := range servers {
		q := &listQuery{
			behalf: v.behalf(), client: v.client, server: s, kind: k, known: known.at(s.ID), first: first, began: time.Now(),
		}
		var ok bool
		if all[i], fresh[i], ok = q.remembered(); ok {
			continue
		}
		if aside == nil {
			aside = v.beside()
			defer aside.leave()
		}
		q.behalf = aside.behalf
		asked++
		aside.Go(func() {
			list, good, failure := q.get()
			arrivals <- func() {
				arrived[i] = true
				if all[i], fresh[i] = list, good; failure.IsLoginRequired() && k == mcp.Tools {
					all[i], fresh[i] = v.g.loginListing(s, failure), catalog.Freshness{Private: true}
				}
			}
			if failure == nil {
				v.g.came(s)
			}
		})
	}
	if asked == 0 {
		return all, fresh
	}
	v.gather(aside, asked, arrivals, waits)
	for i, s := range servers {
		if all[i] == nil && (!arrived[i] || s.IsOut()) {
			v.leaveOut(s, known.at(s.ID))
		}
	}
	takeAll(arrivals)
	return all, fresh
}

// A lister answers a request for a list.
type lister struct {
	*visit
	kind mcp.ListKind
}

// list answers with a page of what all servers have of a kind (A18).
func (v lister) list() *jsonrpc.Failure {
	k := v.kind
	offset, limit, failure := v.page()
	if failure != nil {
		return failure
	}
	began := time.Now()
	var all []*catalog.List
	fresh := catalog.Freshness{Private: true}
	if k != mcp.Tools || !v.g.config.Discovery {
		all, fresh = v.listings(k, func() bool { return !v.client.hears(k) || time.Since(began) < v.g.listWait() })
	}
	if own := v.g.own.list(k, v.Caller.Identity); own != nil {
		all = append(all, own)
	}
	shared := v.sharedUIs(k, all)
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
	answer := borrowAnswer(size)
	defer giveBackAnswer(answer)
	b := append(*answer, `{"jsonrpc":"2.0","id":`...)
	b = append(b, v.Message.Literal(jsonrpc.ID)...)
	b = append(b, `,"result":{`...)
	if v.era == mcp.Modern {
		b = append(b, v.g.info.Members("complete")...)
		b = append(b, ',')
	}
	b = append(b, '"')
	b = append(b, mcp.ListKinds[k].Member...)
	b = append(b, `":[`...)
	at := 0
	for _, l := range all {
		items := l.From(min(max(offset-at, 0), len(l.Ends)), min(max(end-at, 0), len(l.Ends)), shared)
		if at += len(l.Ends); len(items) == 0 {
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
		b = append(b, fresh.Members()...)
	}
	*answer = append(b, "}}"...)
	v.out.Answer(http.StatusOK, &streamable.Event{Data: *answer})
	return nil
}

// answerBuffers are kept between lists: those of a thousand tools have hundreds of kilobytes.
var answerBuffers = sync.Pool{New: func() any { return new([]byte) }}

// maxKept is how large an answer may be to be kept.
const maxKept = 1 << 20

func borrowAnswer(size int) *[]byte {
	b := answerBuffers.Get().(*[]byte)
	*b = slices.Grow((*b)[:0], size+512)
	return b
}

func giveBackAnswer(b *[]byte) {
	if cap(*b) <= maxKept {
		answerBuffers.Put(b)
	}
}

// page returns which items are asked for.
func (v lister) page() (offset, limit int, failure *jsonrpc.Failure) {
	if v.Message.Has(jsonrpc.Cursor) {
		var err error
		if offset, err = mcp.ParseCursor(v.Message.Text(jsonrpc.Cursor)); err != nil {
			return 0, 0, jsonrpc.InvalidParams("cursor: it is none of this server").AsAnswer()
		}
	}
	if v.Message.Has(jsonrpc.Limit) {
		var err error
		if limit, err = strconv.Atoi(string(v.Message.Literal(jsonrpc.Limit))); err != nil || limit <= 0 {
			return 0, 0, jsonrpc.InvalidParams("limit: it is no positive whole number").AsAnswer()
		}
	}
	return offset, limit, nil
}
