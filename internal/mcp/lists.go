package mcp

import (
	"bytes"
	"slices"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// A ListItem is an item of a list that a server has answered with.
type ListItem struct {
	Kind     TargetKind
	Template bool   // of resources
	Name     string // or URI, or URI template
	Raw      []byte
}

var listPaths = jsonspan.CompilePaths(
	"result.tools.*.name", "result.tools.*", "result.tools",
	"result.prompts.*.name", "result.prompts.*", "result.prompts",
	"result.resources.*.uri", "result.resources.*", "result.resources",
	"result.resourceTemplates.*.uriTemplate", "result.resourceTemplates.*", "result.resourceTemplates",
)

// listKinds are the kinds of items, three listPaths each.
var listKinds = [...]ListItem{{Kind: Tool}, {Kind: Prompt}, {Kind: Resource}, {Kind: Resource, Template: true}}

// FilterLists returns a message with only those items in the lists of its result that
// are to be kept. The rest stays as it is, to the byte; if all items are kept, that is
// all of it. A message that repeats a member, if only in another case, is an error: two
// readers could see different lists in it.
func FilterLists(message []byte, keep func(ListItem) bool) ([]byte, error) {
	var (
		edits   []jsonspan.Edit
		kept    [][]byte
		name    string
		dropped bool
	)
	err := listPaths.FindExact(message, func(path int, v jsonspan.Value) {
		switch path % 3 {
		case 0:
			name = ""
			if v.Kind == jsonspan.String {
				name = string(jsonspan.AppendText(nil, v.Body(message)))
			}
		case 1:
			item := listKinds[path/3]
			item.Name, item.Raw, name = name, message[v.Start:v.End], ""
			if keep(item) {
				kept = append(kept, item.Raw)
			} else {
				dropped = true
			}
		case 2:
			if dropped {
				list := slices.Concat([]byte("["), bytes.Join(kept, []byte(",")), []byte("]"))
				edits = append(edits, jsonspan.Edit{Start: v.Start, End: v.End, New: list})
			}
			kept, dropped = nil, false
		}
	})
	if err != nil || len(edits) == 0 {
		return message, err
	}
	return jsonspan.Spliced(message, edits...), nil
}
