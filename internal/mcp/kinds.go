package mcp

import (
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// ListKinds describe the kinds of lists.
var ListKinds = [ListKindCount]struct {
	Method  string    // method that lists
	Member  string    // member of the result
	Needs   Abilities // capability of servers that have the list
	Changes Abilities // capability of servers that announce changes
	Notice  string    // method of that notification
	Target  TargetKind
}{
	Tools:   {"tools/list", "tools", HasTools, ToolsChange, "notifications/tools/list_changed", Tool},
	Prompts: {"prompts/list", "prompts", HasPrompts, PromptsChange, "notifications/prompts/list_changed", Prompt},
	Resources: {
		"resources/list", "resources", HasResources, ResourcesChange, "notifications/resources/list_changed", Resource,
	},
	Templates: {
		"resources/templates/list", "resourceTemplates", HasResources, ResourcesChange,
		"notifications/resources/list_changed", Resource,
	},
	Tasks: {"tasks/list", "tasks", HasTasks, 0, "", Anything},
	// Skills consist of resources.
	Skills: {"skills/list", "skills", HasSkills, 0, "notifications/resources/list_changed", Resource},
}

// ListKindOf returns the kind of list that a method returns.
func ListKindOf(method string) (ListKind, bool) {
	for k := range ListKinds {
		if ListKinds[k].Method == method {
			return ListKind(k), true
		}
	}
	return 0, false
}

// Abilities are the capabilities of a server that decisions depend on.
type Abilities uint16

// Abilities of servers.
const (
	HasTools Abilities = 1 << iota
	HasPrompts
	HasResources
	HasLogging
	HasCompletions
	HasTasks
	CanSubscribe
	ToolsChange
	PromptsChange
	ResourcesChange
	HasSkills
	NotifiesTasks // sends task notifications on request, with the tasks extension
)

var abilityPaths = jsonspan.CompilePaths("tools", "prompts", "resources", "logging", "completions", "tasks",
	"resources.subscribe", "tools.listChanged", "prompts.listChanged", "resources.listChanged",
	`extensions.io\.modelcontextprotocol/skills`, TasksPath)

// AbilitiesOf parses capabilities. An empty object is a capability, too (A4).
func AbilitiesOf(capabilities []byte) (abilities Abilities) {
	_ = abilityPaths.Find(capabilities, func(path int, v jsonspan.Value) {
		if v.Kind == jsonspan.BeginObject || v.Kind == jsonspan.True {
			abilities |= 1 << path
		}
	})
	return abilities
}

// LongestURI is the maximum length of a URI that is remembered, in bytes.
const LongestURI = 8 << 10
