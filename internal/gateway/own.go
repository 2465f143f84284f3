package gateway

import (
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/recovery"
)

// own is what the gateway itself has for clients of the aggregate: tools to find other
// tools with, originals of what was masked, and the templates that the admin API has it
// host.
type own struct {
	g        *Gateway
	masked   []*Server // whose masks keep originals
	maxChars int       // of a part of an original
}

func newOwn(g *Gateway) own {
	o := own{g: g}
	for _, s := range g.config.Servers {
		if s.Mask == nil || !s.MaskAggregate {
			continue
		}
		if maxChars, ok := s.Mask.Recovers(); ok {
			o.masked = append(o.masked, s)
			if o.maxChars == 0 || maxChars < o.maxChars {
				o.maxChars = maxChars
			}
		}
	}
	return o
}

// list returns what the gateway itself has of a kind for a client, nil for nothing.
func (o *own) list(k kind, identity string) *listing {
	var items [][]byte
	switch k {
	case tools:
		if o.g.config.Discovery {
			items = append(items, searchTools, describeTool, callTool)
		}
		if len(o.masked) > 0 {
			items = append(items, recovery.Tool)
		}
	case templates:
		items = o.templates(identity)
	}
	if len(items) == 0 {
		return nil
	}
	list := new(listing)
	for i, item := range items {
		if i > 0 {
			list.joined = append(list.joined, ',')
		}
		list.joined = append(list.joined, item...)
		list.ends = append(list.ends, len(list.joined))
	}
	return list
}

// tool returns what answers a call of a tool of the gateway itself, nil if there is none of
// this name.
func (o *own) tool(name string) func(ownCall) *jsonrpc.Failure {
	if o.g.config.Discovery {
		switch name {
		case "search_tools":
			return ownCall.searchTools
		case "describe_tool":
			return ownCall.describeTool
		case callToolName:
			return ownCall.callFound
		}
	}
	if name == recovery.ToolName && len(o.masked) > 0 {
		return ownCall.recover
	}
	return nil
}

// originals returns a reader of the originals that a client may have, by the rules of now.
func (o *own) originals(c *caller) recovery.Reader {
	return recovery.Reader{MaxChars: o.maxChars, Get: func(handle string) ([]byte, bool) {
		for _, s := range o.masked {
			body, target, ok := s.Mask.Original(c.name, handle)
			if !ok {
				continue
			}
			if target.Server = s.Name; !c.allows(target) || o.g.withheld(target) {
				return nil, false
			}
			return c.redactor().Body(body), true
		}
		return nil, false
	}}
}

// templates returns the resource templates of the gateway itself that a client sees (A67).
// A template that leads to a resource of a server is seen by clients that see that (A69).
// Those of a server that a reload has removed wait for it to come back.
func (o *own) templates(identity string) (all [][]byte) {
	if len(o.masked) > 0 {
		all = append(all, recovery.Template)
	}
	who := o.g.rules.caller(identity)
	for _, t := range o.g.Templates.All() {
		uri, server := t.URITemplate, ""
		if t.Server != "" {
			s := o.g.servers[t.Server]
			if s == nil {
				continue
			}
			uri, server = t.URI, s.Name
		}
		if who.sees(server, mcp.Templates, uri) {
			all = append(all, t.Descriptor())
		}
	}
	return all
}

// read returns the result of reading a resource of the gateway itself, nil if there is none,
// and whether the URI is that of one.
func (o *own) read(c *caller, uri string) (result []byte, ours bool) {
	if handle, ok := mcp.ParseObservationURI(uri); ok && len(o.masked) > 0 {
		reader := o.originals(c)
		text, ok := reader.Text(handle)
		if !ok {
			return nil, true
		}
		return contents(uri, "text/plain", text), true
	}
	t, text, ok := o.g.Templates.Match(uri)
	if !ok || t.Server != "" {
		return nil, false
	}
	return contents(uri, t.MIMEType, text), true
}

// original returns the resource of a server that a URI of a hosted template is an alias of, or
// the template that a hosted template itself stands for.
func (o *own) original(uri string) (*Server, string) {
	t, original, ok := o.g.Templates.Match(uri)
	if strings.Contains(uri, "{") {
		t, original, ok = o.g.Templates.Find(uri)
	}
	if !ok {
		return nil, ""
	}
	return o.g.servers[t.Server], original // by an alias, perhaps
}

// contents returns the result of a resources/read.
func contents(uri, mimeType, text string) []byte {
	type content struct {
		URI      string `json:"uri"`
		MIMEType string `json:"mimeType,omitempty"`
		Text     string `json:"text"`
	}
	return jsonrpc.Encode(struct {
		Contents []content `json:"contents"`
	}{[]content{{uri, mimeType, text}}})
}
