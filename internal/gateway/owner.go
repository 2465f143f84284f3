package gateway

import (
	"slices"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A search finds the servers of resources that a client names by the URIs that these have at their
// servers, which do not say which server that is. The client has them from the _meta of tools, from
// instructions, or from the server itself.
type search struct {
	*visit
	asked [mcp.ListKindCount]map[*upstream.Server]*catalog.List // lists that were asked for
	steps int                                                   // that were made to match URIs with templates
}

// owner returns the server of a resource, nil if there is none that the client may have. A failure
// says that there are several.
func (s *search) owner(uri string) (*upstream.Server, *jsonrpc.Failure) {
	if _, _, err := mcp.ParseURI(uri); err == nil || uri == "" || len(uri) > mcp.LongestURI {
		return nil, nil // or it says which server it means, and there is none of that name
	}
	possible := s.g.possibleOwners(s.Caller.Identity, uri)
	owners := s.client.subscribedAt(possible, uri)
	if strings.HasPrefix(uri, mcp.UIScheme) && len(owners) == 0 {
		owners = s.listedBy(possible, mcp.Tools, uri)
	}
	if len(owners) == 0 {
		owners = s.listedBy(possible, mcp.Resources, uri)
	}
	if len(owners) == 0 { // by now the servers are connected
		owners = s.client.mentionedBy(s.g, possible, uri)
	}
	if len(owners) == 0 {
		lists := s.lists(mcp.Templates)
		owners = filterServers(possible, func(p *upstream.Server) bool { return lists[p] != nil && s.matches(lists[p], uri) })
	}
	if len(owners) > 1 {
		given := filterServers(owners, func(p *upstream.Server) bool { return s.client.gavePlain(s.g, p, uri) })
		if len(given) != 1 {
			return nil, severalOwners(owners, uri)
		}
		owners = given
	}
	if len(owners) == 0 {
		return nil, nil
	}
	return owners[0], nil
}

// listedBy returns which of the servers have a URI in their list of a kind. The lists that are known will
// do if all are: a server that is asked first is not to take a URI from another.
func (s *search) listedBy(servers []*upstream.Server, k mcp.ListKind, uri string) (owners []*upstream.Server) {
	known := func(p *upstream.Server) *catalog.List { return s.client.knownList(s.g, p, k) }
	if !slices.ContainsFunc(servers, func(p *upstream.Server) bool { return known(p) == nil }) {
		owners = filterServers(servers, func(p *upstream.Server) bool { return s.g.hasURI(known(p), k, uri) })
	}
	if len(owners) == 0 {
		lists := s.lists(k)
		owners = filterServers(servers, func(p *upstream.Server) bool {
			return lists[p] != nil && s.g.hasURI(lists[p], k, uri)
		})
	}
	return owners
}

// lists returns the lists of a kind of all servers that the client may know of. Those that cannot
// be had within the time for joining are missing.
func (s *search) lists(k mcp.ListKind) map[*upstream.Server]*catalog.List {
	if s.asked[k] == nil {
		servers := s.g.seen(s.Caller.Identity)
		lists, _ := s.listsOf(servers, k, always)
		s.asked[k] = map[*upstream.Server]*catalog.List{}
		for i, server := range servers {
			s.asked[k][server] = lists[i]
		}
	}
	return s.asked[k]
}

// possibleOwners returns the servers whose resource of a URI a client may have. To the client, a
// resource that it may not have does not exist.
func (g *Gateway) possibleOwners(identity, uri string) []*upstream.Server {
	return filterServers(g.config.Servers, func(s *upstream.Server) bool { return g.rules.Hears(identity, s.Name, uri) })
}

// givenBy returns which of the servers have given the client a URI, as far as that is known without
// asking them. Tools come first: they say what a URI of the scheme ui is for. A template that a URI
// can be made of gives it only if no server has just that.
func (c *client) givenBy(g *Gateway, servers []*upstream.Server, uri string) []*upstream.Server {
	owners := c.subscribedAt(servers, uri)
	for _, k := range [...]mcp.ListKind{mcp.Tools, mcp.Resources} {
		if len(owners) > 0 {
			return owners
		}
		owners = filterServers(servers, func(s *upstream.Server) bool {
			list := c.knownList(g, s, k)
			return list != nil && g.hasURI(list, k, uri)
		})
	}
	if len(owners) > 0 {
		return owners
	}
	return c.mentionedBy(g, servers, uri)
}

// subscribedAt returns at which of the servers the client has subscribed to a URI.
func (c *client) subscribedAt(servers []*upstream.Server, uri string) []*upstream.Server {
	return filterServers(servers, func(s *upstream.Server) bool {
		l := c.linked(s)
		return l != nil && l.subscriptions.alias(uri) == uri
	})
}

// mentionedBy returns which of the servers have a URI in their instructions.
func (c *client) mentionedBy(g *Gateway, servers []*upstream.Server, uri string) []*upstream.Server {
	known := g.audience(c)
	return filterServers(servers, func(s *upstream.Server) bool {
		return mcp.IsMentioned(known.at(s.ID).last().mentioned.text(), uri)
	})
}

// filterServers returns the servers for which keep is true.
func filterServers(servers []*upstream.Server, keep func(*upstream.Server) bool) (kept []*upstream.Server) {
	for _, s := range servers {
		if keep(s) {
			kept = append(kept, s)
		}
	}
	return kept
}

// hasURI reports whether a list of tools or resources names a resource by the URI that it has at its
// server.
func (g *Gateway) hasURI(l *catalog.List, k mcp.ListKind, uri string) bool {
	if k == mcp.Tools {
		return l.HasUI(uri)
	}
	return slices.Contains(l.Names, g.shown(l.Server, mcp.Resources, uri))
}

// matches reports whether a URI can be made of a template in a list, or is one, of which an argument is
// to be completed.
func (s *search) matches(l *catalog.List, uri string) bool {
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

// How many templates of a server are matched with a URI, and how many characters of URIs are matched
// with expressions of templates for one request. A server can have templates that take long.
const maxMatched, maxSteps = 1_000, 10_000_000

// severalOwners refuses a URI that several servers have, and names those that can be used.
func severalOwners(owners []*upstream.Server, uri string) *jsonrpc.Failure {
	var uris []string
	for _, s := range owners[:min(len(owners), maxNamed)] {
		uris = append(uris, mcp.UIResourceURI(s.Name, uri)+" for the one of "+s.Name)
	}
	failure := invalid("uri: several servers have it; use " + strings.Join(uris, ", "))
	failure.Data.URI = mcp.Shortened(uri)
	return failure
}

// maxNamed is how many servers an error names.
const maxNamed = 8
