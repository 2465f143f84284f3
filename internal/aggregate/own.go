package aggregate

import (
	"encoding/json"
	"slices"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

// own returns what the gateway itself has of a kind for a client, nil for nothing.
func (a *Aggregate) own(k kind, identity string) *listing {
	var items [][]byte
	switch k {
	case tools:
		if a.config.Discovery {
			items = append(items, searchTools, describeTool, callTool)
		}
		for _, tool := range a.config.Tools {
			items = append(items, tool.Descriptor)
		}
	case templates:
		if a.config.Templates != nil {
			items = a.config.Templates(identity)
		}
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

// ownTool returns what answers the call of a tool of the gateway itself.
func (a *Aggregate) ownTool(name string) func(*turn) *jsonrpc.Failure {
	if a.config.Discovery {
		switch name {
		case "search_tools":
			return (*turn).searchTools
		case "describe_tool":
			return (*turn).describeTool
		case callToolName:
			return (*turn).callFound
		}
	}
	i := slices.IndexFunc(a.config.Tools, func(tool Tool) bool { return tool.Name == name })
	if i < 0 {
		return nil
	}
	return func(t *turn) *jsonrpc.Failure {
		return t.answer(a.config.Tools[i].Call(t.r, t.m.Literal(jsonrpc.Arguments)))
	}
}

// text answers the call of a tool with a text.
func (t *turn) text(text string, isError bool) *jsonrpc.Failure {
	type content struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	return t.answer(encoded(struct {
		Content []content `json:"content"`
		IsError bool      `json:"isError,omitempty"`
	}{[]content{{"text", text}}, isError}))
}

// arguments reads the arguments of a call.
func (t *turn) arguments(into any) bool {
	arguments := t.m.Literal(jsonrpc.Arguments)
	return arguments == nil || json.Unmarshal(arguments, into) == nil
}
