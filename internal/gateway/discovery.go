package gateway

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolsearch"
)

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

// An index is made anew when the tools have changed.
type index struct {
	mu    sync.Mutex
	of    []*listing
	tools *toolsearch.Index
}

// search returns an index of tools.
func (x *index) search(of []*listing) *toolsearch.Index {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.tools == nil || !slices.Equal(x.of, of) {
		var all []toolsearch.Tool
		for _, list := range of {
			for i, name := range list.names {
				all = append(all, toolsearch.Tool{Name: name, Raw: list.item(i)})
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
	arguments := c.message.Literal(jsonrpc.Arguments)
	return arguments == nil || json.Unmarshal(arguments, into) == nil
}

// recover answers a call of the tool that returns originals of masked results.
func (c ownCall) recover() *jsonrpc.Failure {
	reader := c.g.own.originals(&c.caller)
	return c.answer(reader.Call(c.message.Literal(jsonrpc.Arguments)))
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
	all, _ := c.listings(tools)
	total := 0
	for _, list := range all {
		total += len(list.names)
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
	all, _ := c.listings(tools)
	for _, list := range all {
		if i := slices.Index(list.names, p.Name); i >= 0 {
			return c.text(string(list.item(i)), false)
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
		return c.callInVain("name must be the name of a tool, and arguments an object.")
	}
	s, name, failure := c.whose(p.Name, tools)
	if failure != nil {
		return c.callInVain("There is no tool " + mcp.Shortened(p.Name) + ". Use search_tools to find one.")
	}
	if p.Arguments == nil {
		p.Arguments = json.RawMessage("{}")
	}
	c.name, c.tool, c.found = name, mcp.Shortened(name), true
	return c.pass(s, mcp.Target{Server: s.Name, Kind: mcp.Tool, Name: name}, []jsonspan.Edit{
		c.message.Replace(jsonrpc.Name, jsonrpc.Quote(name)),
		c.message.Replace(jsonrpc.Arguments, p.Arguments),
	})
}

// callInVain answers a call of call_tool that names no tool.
func (c ownCall) callInVain(why string) *jsonrpc.Failure {
	if failure := c.admit(mcp.Target{Kind: mcp.Tool, Name: callToolName}); failure != nil {
		return failure
	}
	return c.text(why, true)
}
