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

// allLists returns the lists of all servers, in configuration order. It leaves out servers that
// fail (A22). See [aggregateRequest.collect] for waits.
func (req *aggregateRequest) allLists(k mcp.ListKind, waits func() bool) ([]*catalog.List, catalog.Freshness) {
	servers := req.g.visibleServers(req.Caller.Identity)
	if k == mcp.Tasks && len(req.g.config.Clients) > 0 {
		servers = filterServers(servers, func(s *upstream.Server) bool {
			return req.g.rules.AllowsUnknown(req.Caller.Identity, s.Name)
		})
	}
	all, fresh := req.listsFrom(servers, k, waits)
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
	combined.Private = combined.Private || combined.None || len(req.g.config.Clients) > 0 // the list depends on the client
	return all, combined
}

// listsFrom returns the lists of servers, nil for those that failed or are not connected yet. See
// [aggregateRequest.collect] for waits.
func (req *aggregateRequest) listsFrom(servers []*upstream.Server, k mcp.ListKind, waits func() bool) (
	[]*catalog.List, []catalog.Freshness,
) {
	all, fresh := make([]*catalog.List, len(servers)), make([]catalog.Freshness, len(servers))
	audience, first := req.g.audience(req.client), req.client.noteListed(k)
	arrivals := make(chan func(), len(servers))
	arrived := make([]bool, len(servers))
	var bg *background
	requested := 0
	for i, s := range servers {
		q := &listQuery{
			scope: req.scope(), client: req.client, server: s, kind: k,
			profile: audience.profile(s.ID), first: first, began: time.Now(),
		}
		var ok bool
		if all[i], fresh[i], ok = q.cachedList(); ok {
			continue
		}
		if bg == nil {
			bg = req.newBackground()
			defer bg.requestAnswered()
		}
		q.scope = bg.scope
		requested++
		bg.Go(func() {
			list, freshness, failure := q.get()
			arrivals <- func() {
				arrived[i] = true
				all[i], fresh[i] = list, freshness
				if failure.IsLoginRequired() && k == mcp.Tools {
					all[i], fresh[i] = req.g.loginToolList(s, failure), catalog.Freshness{Private: true}
				}
			}
			if failure == nil {
				req.g.serverAvailable(s)
			}
		})
	}
	if requested == 0 {
		return all, fresh
	}
	req.collect(bg, requested, arrivals, waits)
	for i, s := range servers {
		if all[i] == nil && (!arrived[i] || s.IsUnavailable()) {
			req.noteLeftOut(s, audience.profile(s.ID))
		}
	}
	drainArrivals(arrivals)
	return all, fresh
}

// A lister answers a list request.
type lister struct {
	*aggregateRequest
	kind mcp.ListKind
}

// list answers with a page of the joined lists of all servers (A18).
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
		all, fresh = ls.allLists(k, func() bool { return !ls.client.isNotifiedOf(k) || time.Since(began) < ls.g.listWait() })
	}
	if own := ls.g.builtin.list(k, ls.Caller.Identity); own != nil {
		all = append(all, own)
	}
	shared := ls.sharedUIs(k, all)
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
	answer := borrowBuffer(size)
	defer returnBuffer(answer)
	b := append(*answer, `{"jsonrpc":"2.0","id":`...)
	b = append(b, ls.Message.Literal(jsonrpc.ID)...)
	b = append(b, `,"result":{`...)
	if ls.era == mcp.Modern {
		b = append(b, ls.g.info.Members("complete")...)
		b = append(b, ',')
	}
	b = append(b, '"')
	b = append(b, mcp.ListKinds[k].Member...)
	b = append(b, `":[`...)
	start := 0
	for _, l := range all {
		items := l.From(min(max(offset-start, 0), len(l.Ends)), min(max(end-start, 0), len(l.Ends)), shared)
		start += len(l.Ends)
		if len(items) == 0 {
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
	if ls.era == mcp.Modern {
		b = append(b, fresh.Members()...)
	}
	*answer = append(b, "}}"...)
	ls.out.Answer(http.StatusOK, &streamable.Event{Data: *answer})
	return nil
}

// listBuffers are reused: a list of a thousand tools takes hundreds of kilobytes.
var listBuffers = sync.Pool{New: func() any { return new([]byte) }}

// maxPooledBuffer is the largest buffer that is reused.
const maxPooledBuffer = 1 << 20

func borrowBuffer(size int) *[]byte {
	b := listBuffers.Get().(*[]byte)
	*b = slices.Grow((*b)[:0], size+512)
	return b
}

func returnBuffer(b *[]byte) {
	if cap(*b) <= maxPooledBuffer {
		listBuffers.Put(b)
	}
}

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
