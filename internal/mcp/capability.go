package mcp

import "github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"

// neededCapability has the capability that clients must declare to get a server request, by method.
var neededCapability = map[string]string{
	"roots/list":             "roots",
	"sampling/createMessage": "sampling",
	"elicitation/create":     "elicitation",
}

var capabilityPaths = jsonspan.CompilePaths("roots", "sampling", "elicitation")

// AcceptsServerRequest reports whether a client with these capabilities accepts a server request
// with this method. Methods that need no known capability are accepted.
func AcceptsServerRequest(capabilities []byte, method string) bool {
	needed, known := neededCapability[method]
	if !known {
		return true
	}
	declared := false
	_ = capabilityPaths.Find(capabilities, func(path int, v jsonspan.Value) {
		names := [...]string{"roots", "sampling", "elicitation"}
		declared = declared || needed == names[path] && v.Kind == jsonspan.BeginObject
	})
	return declared
}

var elicitationPaths = jsonspan.CompilePaths("elicitation.url", "elicitation.form")

// elicitationModes returns the elicitation modes that a client with these capabilities supports.
func elicitationModes(capabilities []byte) (url, form bool) {
	_ = elicitationPaths.Find(capabilities, func(path int, v jsonspan.Value) {
		declared := v.Kind == jsonspan.BeginObject
		if path == 0 {
			url = declared
		} else {
			form = declared
		}
	})
	return url, form
}

// CanOpenURLs reports whether a client with these capabilities can ask its user to open a URL.
func CanOpenURLs(capabilities []byte) bool {
	url, _ := elicitationModes(capabilities)
	return url
}

// CanFillForms reports whether a client with these capabilities can ask its user to fill in a form.
// A client that declares elicitation without a mode can.
func CanFillForms(capabilities []byte) bool {
	url, form := elicitationModes(capabilities)
	return form || !url && AcceptsServerRequest(capabilities, "elicitation/create")
}

// TasksExtension is the name of the tasks extension.
const TasksExtension = "io.modelcontextprotocol/tasks"

// TasksPath is the path of that extension in capabilities.
const TasksPath = `extensions.io\.modelcontextprotocol/tasks`

var tasksPath = jsonspan.CompilePaths(TasksPath)

// SupportsTasks reports whether a client with these capabilities supports the tasks extension.
func SupportsTasks(capabilities []byte) (declared bool) {
	_ = tasksPath.Find(capabilities, func(_ int, v jsonspan.Value) { declared = v.Kind == jsonspan.BeginObject })
	return declared
}

// IsServerRequest reports whether a method is that of a server request.
func IsServerRequest(method string) bool {
	_, known := neededCapability[method]
	return known
}
