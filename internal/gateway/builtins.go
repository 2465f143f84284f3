package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
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

// builtins are the tools, resources and templates of the gateway itself at the aggregate endpoint:
// tools for discovery, originals of masked results, and the templates set by the admin API.
type builtins struct {
	g        *Gateway
	masked   []*upstream.Server // servers whose masks keep originals
	maxChars int                // longest part of an original that is returned at once
}

func newBuiltins(g *Gateway) builtins {
	b := builtins{g: g}
	for _, s := range g.config.Servers {
		if s.Mask == nil || !s.MaskMCP {
			continue
		}
		if maxChars, ok := s.Mask.Recovers(); ok {
			b.masked = append(b.masked, s)
			if b.maxChars == 0 || maxChars < b.maxChars {
				b.maxChars = maxChars
			}
		}
	}
	if b.maxChars == 0 {
		b.maxChars = mask.DefaultMaxChars
	}
	return b
}

// recovers reports whether there are originals to recover.
func (b *builtins) recovers() bool {
	return len(b.masked) > 0 || b.g.config.Originals != nil && b.g.config.Originals.Kept()
}

// list returns the items of a kind for a client, nil if there are none.
func (b *builtins) list(k mcp.ListKind, identity string) *catalog.List {
	var items [][]byte
	switch k {
	case mcp.Tools:
		if b.g.config.Discovery {
			items = append(items, searchTools, describeTool, callTool)
		}
		if b.recovers() {
			items = append(items, recovery.Tool)
		}
	case mcp.Templates:
		items = b.templates(identity)
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

// tool returns the function that answers a call of a tool, nil if the gateway has no tool of this
// name.
func (b *builtins) tool(name string) func(builtinCall) *jsonrpc.Failure {
	if b.g.config.Discovery {
		switch name {
		case "search_tools":
			return builtinCall.searchTools
		case "describe_tool":
			return builtinCall.describeTool
		case callToolName:
			return builtinCall.callNamedTool
		}
	}
	if name == recovery.ToolName && b.recovers() {
		return builtinCall.recover
	}
	return nil
}

// replaces reports whether the gateway lists a tool of its own under the name of a server's tool, as
// with another gateway as the only server and without a separator. With discovery, call_tool reaches
// the server's.
func (b *builtins) replaces(name string) bool { return !b.g.config.Discovery && b.tool(name) != nil }

// originals returns a reader of the originals that a client may read. It applies the current rules.
func (b *builtins) originals(q *inbound.Request) recovery.Reader {
	c, shared := &q.Caller, b.g.config.Originals
	get := func(ctx context.Context, handle string) ([]byte, bool, error) {
		body, target, ok := b.storedOriginal(c, handle)
		if !ok && shared != nil {
			if err := shared.Fetch(ctx, c.Name, c.User, c.Address, handle); err != nil {
				return nil, false, err
			}
			body, target, ok = b.storedOriginal(c, handle)
		}
		if target.Server != "" && (q.LearnAnnotations(target) != nil || !c.Allows(target) || b.g.gate.Withheld(target)) {
			ok = false
		}
		if !ok {
			return nil, false, nil
		}
		return c.Redactor().Body(body), true, nil
	}
	return recovery.Reader{Client: c.Owner(), MaxChars: b.maxChars, Get: get}
}

// storedOriginal returns an original that this replica stores for a client. It is the result of a
// call of target, which is empty if the server is unknown.
func (b *builtins) storedOriginal(c *access.Caller, handle string) (body []byte, target mcp.Target, ok bool) {
	for _, s := range b.masked {
		if body, target, ok = s.Mask.Original(c.Name, handle); ok {
			target.Server = s.Name
			return body, target, true
		}
	}
	if b.g.config.Originals != nil {
		body, ok = b.g.config.Originals.Original(c.User, c.Address, handle)
	}
	return body, mcp.Target{}, ok
}

// templates returns the resource templates that a client sees (A67). A template for a resource of a
// server is shown to clients that see that resource (A69). If a reload removed the server, the
// template is hidden until the server is back.
func (b *builtins) templates(identity string) (all [][]byte) {
	if b.recovers() {
		all = append(all, recovery.Template)
	}
	caller := b.g.rules.Caller(identity)
	for _, t := range b.g.Templates.All() {
		uri, server := t.URITemplate, ""
		if t.Server != "" {
			s := b.g.servers[t.Server]
			if s == nil {
				continue
			}
			uri, server = t.URI, s.Name
		}
		if caller.IsShown(caller.DecideListed(server, mcp.Templates, uri)) {
			all = append(all, t.Descriptor())
		}
	}
	return all
}

// resourceReader returns a function that reads a resource of the gateway, nil if the URI is not
// one. That function returns nil if the resource has expired.
func (b *builtins) resourceReader(uri string) func(context.Context, *inbound.Request) (result []byte, err error) {
	if handle, ok := mcp.ParseObservationURI(uri); ok && b.recovers() {
		return func(ctx context.Context, q *inbound.Request) ([]byte, error) {
			originals := b.originals(q)
			get := originals.Get
			originals.Get = func(ctx context.Context, handle string) ([]byte, bool, error) {
				body, ok, err := get(ctx, handle)
				if ok && !q.HoldMore(copiesOfOriginal*int64(len(body))) {
					return nil, false, errBusy
				}
				return body, ok, err
			}
			text, ok, err := originals.Text(ctx, handle)
			if !ok {
				return nil, err
			}
			return contents(uri, "text/plain", text), nil
		}
	}
	t, text, ok := b.g.Templates.Match(uri)
	if !ok || t.Server != "" {
		return nil
	}
	return func(context.Context, *inbound.Request) ([]byte, error) { return contents(uri, t.MIMEType, text), nil }
}

// copiesOfOriginal is how many copies of an original a response with it takes, until the client has
// read it.
const copiesOfOriginal = 3

var errBusy = errors.New("the client has not read earlier responses")

// contents returns a result of resources/read.
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

// Tools for discovery. Hundreds of tool definitions would fill the context window. With these
// three, the model loads only the definitions it needs.
var (
	searchTools = []byte(`{"name":"search_tools","description":"Search the tools that are available. ` +
		`Returns the names of those that fit best, with a line about each. ` +
		`Use describe_tool for the parameters of one and call_tool to call it.",` +
		`"inputSchema":{"type":"object","properties":{` +
		`"query":{"type":"string","description":"What the tool should do, in a few words."},` +
		`"limit":{"type":"integer","minimum":1,"maximum":50,"default":10}},"required":["query"]},` +
		`"annotations":{"readOnlyHint":true}}`)

	describeTool = []byte(`{"name":"describe_tool","description":"Show the whole definition of a tool: ` +
		`what it does and the JSON schema of its arguments.",` +
		`"inputSchema":{"type":"object","properties":{` +
		`"name":{"type":"string","description":"A name as search_tools returns it."}},"required":["name"]},` +
		`"annotations":{"readOnlyHint":true}}`)

	callTool = []byte(`{"name":"call_tool","description":"Call a tool that was found by search_tools. ` +
		`The result is that of the tool.",` +
		`"inputSchema":{"type":"object","properties":{` +
		`"name":{"type":"string","description":"A name as search_tools returns it."},` +
		`"arguments":{"type":"object",` +
		`"description":"The arguments of the tool, by its schema as describe_tool shows it."}},` +
		`"required":["name"]}}`)
)

// callToolName is the tool that calls another tool.
const callToolName = "call_tool"

// A builtinCall is a call of a tool of the gateway itself.
type builtinCall struct{ *call }

// answerText answers with a text result.
func (c builtinCall) answerText(text string, isError bool) *jsonrpc.Failure {
	type content struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	return c.answerResult(jsonrpc.Encode(struct {
		Content []content `json:"content"`
		IsError bool      `json:"isError,omitempty"`
	}{[]content{{"text", text}}, isError}))
}

// arguments decodes the arguments of the call. It reports false if they are invalid.
func (c builtinCall) arguments(into any) bool {
	arguments := c.Message.Literal(jsonrpc.Arguments)
	return arguments == nil || json.Unmarshal(arguments, into) == nil
}

// recover answers the tool that returns originals of masked results.
func (c builtinCall) recover() *jsonrpc.Failure {
	reader := c.g.builtin.originals(c.Request)
	return c.answerResult(reader.Call(c.ctx, c.Message.Literal(jsonrpc.Arguments)))
}

// searchTools answers search_tools.
func (c builtinCall) searchTools() *jsonrpc.Failure {
	var p struct {
		Query string  `json:"query"`
		Limit float64 `json:"limit"` // 5.0 is a whole number, too
	}
	if !c.arguments(&p) || p.Limit != math.Trunc(p.Limit) {
		return c.answerText("query must be a string and limit a whole number.", true)
	}
	all, _ := lister{c.aggregateRequest, mcp.Tools}.all(always)
	total := 0
	for _, list := range all {
		total += len(list.Names)
	}
	hits := c.g.index.forLists(all).Search(p.Query, int(max(0, min(p.Limit, math.MaxInt32))))
	if len(hits) == 0 {
		return c.answerText(fmt.Sprintf("None of the %d tools fits. Try other words.", total), false)
	}
	var b strings.Builder
	for _, hit := range hits {
		b.WriteString(hit.Name)
		if hit.Summary != "" {
			b.WriteString(": " + hit.Summary)
		}
		b.WriteByte('\n')
	}
	return c.answerText(strings.TrimSuffix(b.String(), "\n"), false)
}

// describeTool answers describe_tool.
func (c builtinCall) describeTool() *jsonrpc.Failure {
	var p struct {
		Name string `json:"name"`
	}
	if !c.arguments(&p) || p.Name == "" {
		return c.answerText("name must be the name of a tool.", true)
	}
	tools := lister{c.aggregateRequest, mcp.Tools}
	all, _ := tools.all(always)
	shared := tools.sharedUIs(all)
	for _, list := range all {
		if i := slices.Index(list.Names, p.Name); i >= 0 {
			return c.answerText(string(list.From(i, i+1, shared)), false)
		}
	}
	return c.answerText("Unknown tool "+mcp.Shortened(p.Name)+". Use search_tools to find one.", true)
}

// callNamedTool answers call_tool: it forwards the call to the named tool.
func (c builtinCall) callNamedTool() *jsonrpc.Failure {
	var p struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	}
	if !c.arguments(&p) || p.Name == "" {
		return c.answerUnknown("name must be the name of a tool, and arguments an object.")
	}
	if p.Arguments == nil || string(p.Arguments) == "null" { // models like to fill in everything
		p.Arguments = json.RawMessage("{}")
	}
	s, name, failure := c.locateNamed(p.Name, mcp.Tools)
	if failure != nil {
		return c.answerUnknown("Unknown tool " + mcp.Shortened(p.Name) + ". Use search_tools to find one.")
	}
	c.name, c.Tool, c.viaCallTool = name, mcp.Shortened(name), true
	return c.forward(s, mcp.Target{Server: s.Name, Kind: mcp.Tool, Name: name}, []jsonspan.Edit{
		c.Message.Replace(jsonrpc.Name, jsonrpc.Quote(name)),
		c.Message.Replace(jsonrpc.Arguments, p.Arguments),
	})
}

// answerUnknown answers call_tool if it does not name a known tool.
func (c builtinCall) answerUnknown(why string) *jsonrpc.Failure {
	if failure := c.Admit(mcp.Target{Kind: mcp.Tool, Name: callToolName}); failure != nil {
		return failure
	}
	return c.answerText(why, true)
}

// An index has the search indexes of the lists that clients searched last. Clients with other rules
// have other lists.
type index struct {
	mu     sync.Mutex
	latest []searchIndex // the last one used first
}

// A searchIndex is the search index of some lists.
type searchIndex struct {
	lists []*catalog.List
	bytes int // of the lists
	tools *toolsearch.Index
}

// Limits of the search indexes that are kept besides the latest.
const (
	maxIndexes      = 8
	maxIndexedBytes = 16 << 20
)

// forLists returns the search index of the tools in lists.
func (x *index) forLists(lists []*catalog.List) *toolsearch.Index {
	x.mu.Lock()
	defer x.mu.Unlock()
	i := slices.IndexFunc(x.latest, func(known searchIndex) bool { return slices.Equal(known.lists, lists) })
	var found searchIndex
	if i >= 0 {
		found = x.latest[i]
		x.latest = slices.Delete(x.latest, i, i+1)
	} else {
		var all []toolsearch.Tool
		for _, list := range lists {
			for i, name := range list.Names {
				all = append(all, toolsearch.Tool{Name: name, Raw: list.Item(i)})
			}
			found.bytes += len(list.Joined)
		}
		found.lists, found.tools = lists, toolsearch.New(all)
	}
	kept, bytes := []searchIndex{found}, found.bytes
	for _, other := range x.latest {
		if bytes += other.bytes; len(kept) == maxIndexes || bytes > maxIndexedBytes {
			break
		}
		kept = append(kept, other)
	}
	x.latest = kept
	return found.tools
}

// clear drops the indexes, so that expired lists can be freed.
func (x *index) clear() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.latest = nil
}
