package gateway

import (
	"encoding/hex"
	"slices"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A listNews is which lists of servers have changed, by the ID of the server and the notification that tells of it.
type listNews map[string]map[string]*newsOf

// A newsOf is whom a change concerns: those who were told, and all that servers cannot tell from them.
type newsOf struct {
	Sessions  []string `json:",omitempty"` // hashes of their ids
	Audiences []string `json:",omitempty"` // their keys, in hex
	All       bool     `json:",omitempty"` // there are too many of them
}

const (
	// newsPause is how long news that follow others wait for more.
	newsPause = 20 * time.Millisecond
	// maxConcerned is how many sessions and audiences news name.
	maxConcerned = 1_000
)

// add adds that a server has told a client of a change.
func (n listNews) add(server, notice, session, audience string) {
	if n[server] == nil {
		n[server] = map[string]*newsOf{}
	}
	of := n[server][notice]
	if of == nil {
		of = new(newsOf)
		n[server][notice] = of
	}
	if session != "" && !slices.Contains(of.Sessions, session) {
		of.Sessions = append(of.Sessions, session)
	}
	if !slices.Contains(of.Audiences, audience) {
		of.Audiences = append(of.Audiences, audience)
	}
	if of.All = of.All || len(of.Sessions) > maxConcerned || len(of.Audiences) > maxConcerned; of.All {
		of.Sessions, of.Audiences = nil, nil
	}
}

// listsChanged tells other replicas that a server has told clients of a change, by their links. The first that comes is
// told when listsChanged returns, so that a client does not get the old list there. What follows soon is told together.
func (e *elsewhere) listsChanged(notice string, links ...*link) {
	if e == nil {
		return
	}
	links = slices.DeleteFunc(links, func(l *link) bool { return l.client.inspection != nil })
	if len(links) == 0 {
		return
	}
	sessions := make([]string, len(links))
	for i, l := range links {
		if l.client.key != "" {
			hash := e.overKey(l.client)
			sessions[i] = hex.EncodeToString(hash[:])
		}
	}
	addTo := func(news listNews) {
		for i, l := range links {
			news.add(l.id, notice, sessions[i], hex.EncodeToString([]byte(l.client.audience)))
		}
	}
	e.mu.Lock()
	if e.told != nil {
		if e.news == nil {
			e.news = listNews{}
		}
		addTo(e.news)
		e.mu.Unlock()
		return
	}
	e.told = time.AfterFunc(newsPause, e.tellNews)
	e.mu.Unlock()
	first := listNews{}
	addTo(first)
	e.tell(everywhere, dispatch{Lists: first})
}

// ChildChanged tells other replicas that a child process of a server has said that a list has changed, in
// sessions that no stream is read of. It does not block.
func (g *Gateway) ChildChanged(server, notice string, unread []string) {
	s := g.servers[server]
	if g.elsewhere == nil || s == nil || len(unread) == 0 {
		return
	}
	concerned := setOf(unread)
	var links []*link
	for _, c := range g.clients() {
		if l := c.linked(s); l != nil && concerned[l.sessionID()] {
			links = append(links, l)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(links) > 0 && !g.ended {
		g.running.Go(func() { g.elsewhere.listsChanged(notice, links...) })
	}
}

// tellNews tells what has been added since the last time.
func (e *elsewhere) tellNews() {
	e.mu.Lock()
	news := e.news
	if e.news = nil; news == nil || e.ctx.Err() != nil {
		e.told = nil
		e.mu.Unlock()
		return
	}
	e.told.Reset(newsPause)
	e.mu.Unlock()
	e.tell(everywhere, dispatch{Lists: news})
}

// takeLists takes what another replica tells of lists.
func (e *elsewhere) takeLists(from string, news listNews) {
	for server, changes := range news {
		for notice, of := range changes {
			for _, g := range e.gateways() {
				if s := g.byID(server); s != nil && of != nil {
					g.changedElsewhere(s, notice, of, "replica "+from)
				}
			}
		}
	}
}

// changedElsewhere does what the server would have caused by telling the clients here that a list has changed.
func (g *Gateway) changedElsewhere(s *upstream.Server, notice string, of *newsOf, teller string) {
	if notice == mcp.ListKinds[mcp.Tools].Notice {
		g.shared.State.ToolsChanged(s)
	}
	sessions, audiences := setOf(of.Sessions), setOf(of.Audiences)
	for _, c := range g.clients() {
		l := c.linked(s)
		if l == nil {
			continue
		}
		if hash := g.overKey(c); of.All || sessions[hex.EncodeToString(hash[:])] {
			if own := l.ownLists(); own != nil {
				own.Changed(notice, teller)
			}
		}
	}
	var concerned []string
	g.audiences.each(func(a *audience) {
		if (of.All || audiences[hex.EncodeToString([]byte(a.key))]) && a.at(s.ID).lists.Changed(notice, teller) {
			concerned = append(concerned, a.key)
		}
	})
	var m jsonrpc.Message
	if m.Read(jsonrpc.Notification(notice, nil)) != nil {
		return
	}
	for _, audience := range concerned {
		listeners := g.followers(audience, s.ID)
		if s.ChildrenOnly { // the child process that has told is another one than the others listen to
			listeners = g.listenersOf(audience, s.ID)
		}
		for _, stream := range listeners {
			stream.later(func() { stream.deliver(g, newLink(stream.visit.client, s), &m, "") })
		}
	}
}

func setOf(all []string) map[string]bool {
	set := make(map[string]bool, len(all))
	for _, one := range all {
		set[one] = true
	}
	return set
}

// refreshed tells other replicas that a server is to be asked again.
func (e *elsewhere) refreshed(s *upstream.Server) {
	if e != nil {
		e.tell(everywhere, dispatch{Refresh: s.ID})
	}
}

// takeRefresh has a server asked again, as another replica does.
func (e *elsewhere) takeRefresh(server string) {
	for _, g := range e.gateways() {
		if s := g.byID(server); s != nil {
			g.forgetLists(s)
		}
	}
}
