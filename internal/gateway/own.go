package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mask"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/recovery"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolsearch"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// ownItems is what the gateway itself has for clients of the aggregate: tools to find other
// tools with, originals of what was masked, and the templates that the admin API has it
// host.
type ownItems struct {
	g        *Gateway
	masked   []*upstream.Server // whose masks keep originals
	maxChars int                // of a part of an original
}

func newOwn(g *Gateway) ownItems {
	o := ownItems{g: g}
	for _, s := range g.config.Servers {
		if s.Mask == nil || !s.MaskMCP {
			continue
		}
		if maxChars, ok := s.Mask.Recovers(); ok {
			o.masked = append(o.masked, s)
			if o.maxChars == 0 || maxChars < o.maxChars {
				o.maxChars = maxChars
			}
		}
	}
	if o.maxChars == 0 {
		o.maxChars = mask.DefaultMaxChars
	}
	return o
}

// recovers reports whether there are originals to give back.
func (o *ownItems) recovers() bool {
	return len(o.masked) > 0 || o.g.config.Originals != nil && o.g.config.Originals.Kept()
}

// list returns what the gateway itself has of a kind for a client, nil for nothing.
func (o *ownItems) list(k mcp.ListKind, identity string) *catalog.List {
	var items [][]byte
	switch k {
	case mcp.Tools:
		if o.g.config.Discovery {
			items = append(items, searchTools, describeTool, callTool)
		}
		if o.recovers() {
			items = append(items, recovery.Tool)
		}
	case mcp.Templates:
		items = o.templates(identity)
	}
	if len(items) == 0 {
		return nil
	}
	list := new(catalog.List)
	for i, item := range items {
		if i > 0 {
			list.Joined = append(list.Joined, ',')
		}
		list.Joined = append(list.Joined, item...)
		list.Ends = append(list.Ends, len(list.Joined))
	}
	return list
}

// tool returns what answers a call of a tool of the gateway itself, nil if there is none of
// this name.
func (o *ownItems) tool(name string) func(ownCall) *jsonrpc.Failure {
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
	if name == recovery.ToolName && o.recovers() {
		return ownCall.recover
	}
	return nil
}

// originals returns a reader of the originals that a client may have, by the rules of now.
func (o *ownItems) originals(q *inbound.Request) recovery.Reader {
	c, elsewhere := &q.Caller, o.g.config.Originals
	get := func(ctx context.Context, handle string) ([]byte, bool, error) {
		body, target, ok := o.kept(c, handle)
		if !ok && elsewhere != nil {
			if err := elsewhere.Fetch(ctx, c.Name, c.User, c.Address, handle); err != nil {
				return nil, false, err
			}
			body, target, ok = o.kept(c, handle)
		}
		if target.Server != "" && (q.LearnAnnotations(target) != nil || !c.Allows(target) || o.g.gate.Withheld(target)) {
			ok = false
		}
		if !ok {
			return nil, false, nil
		}
		return c.Redactor().Body(body), true, nil
	}
	return recovery.Reader{Client: c.Owner(), MaxChars: o.maxChars, Get: get}
}

// kept returns an original that is kept here for a client, and what it had asked for if a server has answered that.
func (o *ownItems) kept(c *access.Caller, handle string) (body []byte, target mcp.Target, ok bool) {
	for _, s := range o.masked {
		if body, target, ok = s.Mask.Original(c.Name, handle); ok {
			target.Server = s.Name
			return body, target, true
		}
	}
	if o.g.config.Originals != nil {
		body, ok = o.g.config.Originals.Original(c.User, c.Address, handle)
	}
	return body, mcp.Target{}, ok
}

// templates returns the resource templates of the gateway itself that a client sees (A67).
// A template that leads to a resource of a server is seen by clients that see that (A69).
// Those of a server that a reload has removed wait for it to come back.
func (o *ownItems) templates(identity string) (all [][]byte) {
	if o.recovers() {
		all = append(all, recovery.Template)
	}
	who := o.g.rules.Caller(identity)
	for _, t := range o.g.Templates.All() {
		uri, server := t.URITemplate, ""
		if t.Server != "" {
			s := o.g.servers[t.Server]
			if s == nil {
				continue
			}
			uri, server = t.URI, s.Name
		}
		if who.IsShown(who.Listed(server, mcp.Templates, uri)) {
			all = append(all, t.Descriptor())
		}
	}
	return all
}

// reader returns what returns the result of reading a resource of the gateway itself, nil if the URI is not that of
// one. The result is nil if there is nothing left to read.
func (o *ownItems) reader(uri string) func(context.Context, *inbound.Request) (result []byte, err error) {
	if handle, ok := mcp.ParseObservationURI(uri); ok && o.recovers() {
		return func(ctx context.Context, q *inbound.Request) ([]byte, error) {
			text, ok, err := o.originals(q).Text(ctx, handle)
			if !ok {
				return nil, err
			}
			return contents(uri, "text/plain", text), nil
		}
	}
	t, text, ok := o.g.Templates.Match(uri)
	if !ok || t.Server != "" {
		return nil
	}
	return func(context.Context, *inbound.Request) ([]byte, error) { return contents(uri, t.MIMEType, text), nil }
}

// original returns the resource of a server that a URI of a hosted template is an alias of, or
// the template that a hosted template itself stands for.
func (o *ownItems) original(uri string) (*upstream.Server, string) {
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

// The tools by which a client finds and calls all others. Hundreds of definitions
// take more of a context window than the work itself; these three take what is
// needed, when it is.
var (
	searchTools = []byte(`{"name":"search_tools","description":"Search the tools that are available. Returns the names of those that fit best, with a line about each. Use describe_tool for the parameters of one and call_tool to call it.","inputSchema":{"type":"object","properties":{"query":{"type":"string","description":"What the tool should do, in a few words."},"limit":{"type":"integer","minimum":1,"maximum":50,"default":10}},"required":["query"]},"annotations":{"readOnlyHint":true}}`)

	describeTool = []byte(`{"name":"describe_tool","description":"Show the whole definition of a tool: what it does and the JSON schema of its arguments.","inputSchema":{"type":"object","properties":{"name":{"type":"string","description":"A name as search_tools returns it."}},"required":["name"]},"annotations":{"readOnlyHint":true}}`)

	callTool = []byte(`{"name":"call_tool","description":"Call a tool that was found by search_tools. The result is that of the tool.","inputSchema":{"type":"object","properties":{"name":{"type":"string","description":"A name as search_tools returns it."},"arguments":{"type":"object","description":"The arguments of the tool, by its schema as describe_tool shows it."}},"required":["name"]}}`)
)

// callToolName is the one of them whose calls are those of another tool.
const callToolName = "call_tool"

// An ownCall is a call of a tool of the gateway itself.
type ownCall struct{ *call }

// text answers the call of a tool with a text.
func (c ownCall) text(text string, isError bool) *jsonrpc.Failure {
	type content struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	return c.answer(jsonrpc.Encode(struct {
		Content []content `json:"content"`
		IsError bool      `json:"isError,omitempty"`
	}{[]content{{"text", text}}, isError}))
}

// arguments reads the arguments of a call.
func (c ownCall) arguments(into any) bool {
	arguments := c.Message.Literal(jsonrpc.Arguments)
	return arguments == nil || json.Unmarshal(arguments, into) == nil
}

// recover answers a call of the tool that returns originals of masked results.
func (c ownCall) recover() *jsonrpc.Failure {
	reader := c.g.own.originals(c.Request)
	return c.answer(reader.Call(c.ctx, c.Message.Literal(jsonrpc.Arguments)))
}

// searchTools answers a call of search_tools.
func (c ownCall) searchTools() *jsonrpc.Failure {
	var p struct {
		Query string `json:"query"`
		Limit int    `json:"limit"`
	}
	if !c.arguments(&p) {
		return c.text("query must be a string and limit a whole number.", true)
	}
	all, _ := c.listings(mcp.Tools, always)
	total := 0
	for _, list := range all {
		total += len(list.Names)
	}
	hits := c.g.index.search(all).Search(p.Query, p.Limit)
	if len(hits) == 0 {
		return c.text(fmt.Sprintf("None of the %d tools fits. Try other words.", total), false)
	}
	var b strings.Builder
	for _, hit := range hits {
		b.WriteString(hit.Name)
		if hit.Summary != "" {
			b.WriteString(": " + hit.Summary)
		}
		b.WriteByte('\n')
	}
	return c.text(strings.TrimSuffix(b.String(), "\n"), false)
}

// describeTool answers a call of describe_tool.
func (c ownCall) describeTool() *jsonrpc.Failure {
	var p struct {
		Name string `json:"name"`
	}
	if !c.arguments(&p) || p.Name == "" {
		return c.text("name must be the name of a tool.", true)
	}
	all, _ := c.listings(mcp.Tools, always)
	shared := c.sharedUIs(mcp.Tools, all)
	for _, list := range all {
		if i := slices.Index(list.Names, p.Name); i >= 0 {
			return c.text(string(list.From(i, i+1, shared)), false)
		}
	}
	return c.text("There is no tool "+mcp.Shortened(p.Name)+". Use search_tools to find one.", true)
}

// callFound answers a call of call_tool: it is passed on as the call of the tool.
func (c ownCall) callFound() *jsonrpc.Failure {
	var p struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	}
	if !c.arguments(&p) || p.Name == "" {
		return c.callUnknown("name must be the name of a tool, and arguments an object.")
	}
	s, name, failure := c.locateNamed(p.Name, mcp.Tools)
	if failure != nil {
		return c.callUnknown("There is no tool " + mcp.Shortened(p.Name) + ". Use search_tools to find one.")
	}
	if p.Arguments == nil {
		p.Arguments = json.RawMessage("{}")
	}
	c.name, c.Tool, c.found = name, mcp.Shortened(name), true
	return c.pass(s, mcp.Target{Server: s.Name, Kind: mcp.Tool, Name: name}, []jsonspan.Edit{
		c.Message.Replace(jsonrpc.Name, jsonrpc.Quote(name)),
		c.Message.Replace(jsonrpc.Arguments, p.Arguments),
	})
}

// callUnknown answers a call of call_tool that names no tool.
func (c ownCall) callUnknown(why string) *jsonrpc.Failure {
	if failure := c.Admit(mcp.Target{Kind: mcp.Tool, Name: callToolName}); failure != nil {
		return failure
	}
	return c.text(why, true)
}

// An index is made anew when the tools have changed.
type index struct {
	mu    sync.Mutex
	of    []*catalog.List
	tools *toolsearch.Index
}

// search returns an index of tools.
func (x *index) search(of []*catalog.List) *toolsearch.Index {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.tools == nil || !slices.Equal(x.of, of) {
		var all []toolsearch.Tool
		for _, list := range of {
			for i, name := range list.Names {
				all = append(all, toolsearch.Tool{Name: name, Raw: list.Item(i)})
			}
		}
		x.of, x.tools = of, toolsearch.New(all)
	}
	return x.tools
}

// clear forgets the index, as its lists are.
func (x *index) clear() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.of, x.tools = nil, nil
}
