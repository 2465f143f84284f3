package gateway

import (
	"slices"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// An ownerSearch finds the servers of resources by the servers' own URIs, which do not name the
// server. Clients get such URIs from the _meta of tools, from instructions, or from other content
// of servers.
type ownerSearch struct {
	*aggregateRequest
	requested [mcp.ListKindCount]map[*upstream.Server]*catalog.List // lists requested so far
	steps     int                                                   // work spent on matching templates
}

// find returns the server of a resource, nil if no server has it that the client may use. It fails
// if several servers have it.
func (s *ownerSearch) find(uri string) (*upstream.Server, *jsonrpc.Failure) {
	if _, _, err := mcp.ParseURI(uri); err == nil || uri == "" || len(uri) > mcp.LongestURI {
		return nil, nil // invalid, or a URI that names an unknown server
	}
	lookup := ownerLookup{s.g, s.client}
	possible := lookup.possible(uri)
	owners := lookup.subscribed(possible, uri)
	if strings.HasPrefix(uri, mcp.UIScheme) && len(owners) == 0 {
		owners = s.listedBy(possible, mcp.Tools, uri)
	}
	if len(owners) == 0 {
		owners = s.listedBy(possible, mcp.Resources, uri)
	}
	if len(owners) == 0 { // the requests above have connected all servers
		owners = lookup.mentioned(possible, uri)
	}
	if len(owners) == 0 {
		lists := s.lists(mcp.Templates)
		owners = filterServers(possible, func(p *upstream.Server) bool {
			return lists[p] != nil && s.matchesTemplate(lists[p], uri)
		})
	}
	if len(owners) > 1 {
		known := filterServers(owners, func(p *upstream.Server) bool { return s.knowsPlainUI(p, uri) })
		if len(known) != 1 {
			return nil, severalOwners(owners, uri)
		}
		owners = known
	}
	if len(owners) == 0 {
		return nil, nil
	}
	return owners[0], nil
}

// knowsPlainUI reports whether the client got a UI resource of a server under its own URI.
func (s *ownerSearch) knowsPlainUI(server *upstream.Server, uri string) bool {
	list := s.g.shelf.Get(s.client.listed.plainUIList(server))
	return list != nil && list.HasUI(uri)
}

// listedBy returns the servers with a URI in their list of a kind. It uses cached lists only if all
// servers have one. Otherwise the first server to connect could claim the URI of another.
func (s *ownerSearch) listedBy(servers []*upstream.Server, k mcp.ListKind, uri string) (owners []*upstream.Server) {
	unknown := func(p *upstream.Server) bool { return s.client.knownList(s.g, p, k) == nil }
	if !slices.ContainsFunc(servers, unknown) {
		owners = ownerLookup{s.g, s.client}.listed(servers, k, uri)
	}
	if len(owners) == 0 {
		lists := s.lists(k)
		owners = filterServers(servers, func(p *upstream.Server) bool {
			return lists[p] != nil && s.g.names.hasURI(lists[p], k, uri)
		})
	}
	return owners
}

// lists returns the lists of a kind of all servers that the client may see. Servers that do not
// answer within JoinTimeout are missing.
func (s *ownerSearch) lists(k mcp.ListKind) map[*upstream.Server]*catalog.List {
	if s.requested[k] == nil {
		servers := s.g.visibleServers(s.Caller.Identity)
		lists, _ := lister{s.aggregateRequest, k}.from(servers, always)
		s.requested[k] = map[*upstream.Server]*catalog.List{}
		for i, server := range servers {
			s.requested[k][server] = lists[i]
		}
	}
	return s.requested[k]
}

// An ownerLookup finds the servers of a resource by what is known. It sends no requests.
type ownerLookup struct {
	g      *Gateway
	client *client
}

// possible returns the servers that may own a URI: those whose resource the client may read.
func (o ownerLookup) possible(uri string) []*upstream.Server {
	return filterServers(o.g.config.Servers, func(s *upstream.Server) bool {
		return o.g.rules.AllowsSubscription(o.client.identity, s.Name, uri)
	})
}

// known returns the servers that have given the client a URI. It looks at subscriptions, tools,
// resources and instructions, in this order, but not at templates.
func (o ownerLookup) known(uri string) []*upstream.Server {
	servers := o.possible(uri)
	owners := o.subscribed(servers, uri)
	for _, k := range [...]mcp.ListKind{mcp.Tools, mcp.Resources} {
		if len(owners) > 0 {
			return owners
		}
		owners = o.listed(servers, k, uri)
	}
	if len(owners) > 0 {
		return owners
	}
	return o.mentioned(servers, uri)
}

// subscribed returns the servers at which the client has subscribed to a URI.
func (o ownerLookup) subscribed(servers []*upstream.Server, uri string) []*upstream.Server {
	return filterServers(servers, func(s *upstream.Server) bool {
		l := o.client.existingLink(s)
		return l != nil && l.subscriptions.alias(uri) == uri
	})
}

// listed returns the servers with a URI in a cached list.
func (o ownerLookup) listed(servers []*upstream.Server, k mcp.ListKind, uri string) []*upstream.Server {
	return filterServers(servers, func(s *upstream.Server) bool {
		list := o.client.knownList(o.g, s, k)
		return list != nil && o.g.names.hasURI(list, k, uri)
	})
}

// mentioned returns the servers with a URI in their instructions.
func (o ownerLookup) mentioned(servers []*upstream.Server, uri string) []*upstream.Server {
	audience := o.g.audience(o.client)
	return filterServers(servers, func(s *upstream.Server) bool {
		return mcp.IsMentioned(audience.profile(s.ID).lastInfo().mentionedURIs.text(), uri)
	})
}

// filterServers returns the servers for which keep returns true.
func filterServers(servers []*upstream.Server, keep func(*upstream.Server) bool) (filtered []*upstream.Server) {
	for _, s := range servers {
		if keep(s) {
			filtered = append(filtered, s)
		}
	}
	return filtered
}

// matchesTemplate reports whether a URI matches a template in a list, or is one itself, as in
// completion/complete.
func (s *ownerSearch) matchesTemplate(l *catalog.List, uri string) bool {
	tried := 0
	return slices.ContainsFunc(l.Names, func(name string) bool {
		_, template, err := mcp.ParseURI(name)
		if err != nil || tried == maxMatched {
			return false
		}
		if template == uri {
			return true
		}
		tried++
		beginning, _, _ := strings.Cut(template, "{")
		if !strings.HasPrefix(uri, beginning) {
			return false
		}
		s.steps += strings.Count(template, "{") * len(uri)
		return s.steps <= maxSteps && mcp.MatchTemplate(template, uri)
	})
}

// maxMatched limits the templates of a server that are matched with a URI. maxSteps limits the work
// per request: a server can have templates that are expensive to match.
const maxMatched, maxSteps = 1_000, 10_000_000

// severalOwners refuses a URI that several servers have. It names unambiguous URIs.
func severalOwners(owners []*upstream.Server, uri string) *jsonrpc.Failure {
	var uris []string
	for _, s := range owners[:min(len(owners), maxNamed)] {
		uris = append(uris, mcp.UIResourceURI(s.Name, uri)+" for server "+s.Name)
	}
	failure := invalidParams("uri: several servers have this resource; use " + strings.Join(uris, ", "))
	failure.Data.URI = mcp.Shortened(uri)
	return failure
}

// maxNamed limits the servers in that error.
const maxNamed = 8
