package gateway

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// listings returns what all servers have of a kind, in their order. Those that fail
// are left out (A22). The client waits as [visit.gather] says.
func (v *visit) listings(k listKind, waits func() bool) ([]*listing, freshness) {
	servers := v.g.rules.seen(v.caller.identity)
	if k == tasks && len(v.g.config.Clients) > 0 {
		servers = slices.DeleteFunc(slices.Clone(servers), func(s *Server) bool { return !v.g.rules.allowsUnknown(v.caller.identity, s) })
	}
	all, fresh := v.listsOf(servers, k, waits)
	together := freshness{none: true}
	for i := range all {
		switch {
		case all[i] == nil:
			all[i] = emptyListing
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

// listsOf returns the lists of servers. Those that cannot be had, or not yet, are nil. The client waits as
// [visit.gather] says.
func (v *visit) listsOf(servers []*Server, k listKind, waits func() bool) ([]*listing, []freshness) {
	all, fresh := make([]*listing, len(servers)), make([]freshness, len(servers))
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
				if all[i], fresh[i] = list, good; isLoginRequired(failure) && k == tools {
					all[i], fresh[i] = v.g.loginListing(s, failure), freshness{private: true}
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
		if all[i] == nil && (!arrived[i] || s.isOut()) {
			v.leaveOut(s, known.at(s.ID))
		}
	}
	takeAll(arrivals)
	return all, fresh
}

// A lister answers a request for a list.
type lister struct {
	*visit
	kind listKind
}

// list answers with a page of what all servers have of a kind (A18).
func (v lister) list() *jsonrpc.Failure {
	k := v.kind
	offset, limit, failure := v.page()
	if failure != nil {
		return failure
	}
	began := time.Now()
	var all []*listing
	fresh := freshness{private: true}
	if k != tools || !v.g.config.Discovery {
		all, fresh = v.listings(k, func() bool { return !v.client.hears(k) || time.Since(began) < v.g.listWait() })
	}
	if own := v.g.own.list(k, v.caller.identity); own != nil {
		all = append(all, own)
	}
	shared := v.sharedUIs(k, all)
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
		items := l.from(min(max(offset-at, 0), len(l.ends)), min(max(end-at, 0), len(l.ends)), shared)
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
