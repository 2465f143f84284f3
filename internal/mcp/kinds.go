package mcp

import (
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// ListKinds say where lists are found.
var ListKinds = [ListKindCount]struct {
	Method  string    // that asks for it
	Member  string    // of the result, that has it
	Needs   Abilities // of a server that has one
	Changes Abilities // of a server that says when it has changed
	Notice  string    // by which it says so
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

// ListKindOf returns the kind of list that a method asks for.
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
	TellsOfTasks // of the tasks extension, if it is asked to
)

var abilityPaths = jsonspan.CompilePaths("tools", "prompts", "resources", "logging", "completions", "tasks",
	"resources.subscribe", "tools.listChanged", "prompts.listChanged", "resources.listChanged",
	`extensions.io\.modelcontextprotocol/skills`, TasksPath)

// AbilitiesOf reads capabilities. An empty object is a capability, too (A4).
func AbilitiesOf(capabilities []byte) (can Abilities) {
	_ = abilityPaths.Find(capabilities, func(path int, v jsonspan.Value) {
		if v.Kind == jsonspan.BeginObject || v.Kind == jsonspan.True {
			can |= 1 << path
		}
	})
	return can
}

// LongestURI is how long a URI may be that is remembered.
const LongestURI = 8 << 10
