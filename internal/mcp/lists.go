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

var filterPaths = jsonspan.CompilePaths(
	"result.tools.*.name", "result.tools.*", "result.tools",
	"result.prompts.*.name", "result.prompts.*", "result.prompts",
	"result.resources.*.uri", "result.resources.*", "result.resources",
	"result.resourceTemplates.*.uriTemplate", "result.resourceTemplates.*", "result.resourceTemplates",
)

// listKinds are the kinds of items, three filterPaths each.
var listKinds = [...]ListItem{{Kind: Tool}, {Kind: Prompt}, {Kind: Resource}, {Kind: Resource, Template: true}}

// FilterLists returns a message with only those items in the lists of its result that
// are to be kept. The rest stays as it is, to the byte; if all items are kept, that is
// all of it. A message that repeats a member, if only in another case, is an error: two
// readers could see different lists in it.
func FilterLists(message []byte, keep func(ListItem) bool) ([]byte, error) {
	return filter(filterPaths, message, func(list int, name string, raw []byte) bool {
		item := listKinds[list]
		item.Name, item.Raw = name, raw
		return keep(item)
	})
}

// taskPaths are those of a list of tasks.
var taskPaths = jsonspan.CompilePaths("result.tasks.*.taskId", "result.tasks.*", "result.tasks")

// FilterTasks is FilterLists for tasks, by their ids.
func FilterTasks(message []byte, keep func(id string) bool) ([]byte, error) {
	return filter(taskPaths, message, func(_ int, id string, _ []byte) bool { return keep(id) })
}

// filter filters lists of which each has three paths: that of the names of its items, that
// of the items, and its own.
func filter(paths *jsonspan.Paths, message []byte, keep func(list int, name string, raw []byte) bool) ([]byte, error) {
	var (
		edits   []jsonspan.Edit
		kept    [][]byte
		name    string
		dropped bool
	)
	err := paths.FindExact(message, func(path int, v jsonspan.Value) {
		switch path % 3 {
		case 0:
			name = ""
			if v.Kind == jsonspan.String {
				name = string(jsonspan.AppendText(nil, v.Body(message)))
			}
		case 1:
			if raw := message[v.Start:v.End]; keep(path/3, name, raw) {
				kept = append(kept, raw)
			} else {
				dropped = true
			}
			name = ""
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
