package mcp

import "github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"

// asked is what a client must have declared to be asked something.
var asked = map[string]string{
	"roots/list":             "roots",
	"sampling/createMessage": "sampling",
	"elicitation/create":     "elicitation",
}

var askedPaths = jsonspan.CompilePaths("roots", "sampling", "elicitation")

// CanBeAsked reports whether a client with these capabilities has said that it can
// be asked this by a server. What we do not know of, it may.
func CanBeAsked(capabilities []byte, method string) bool {
	needed, known := asked[method]
	if !known {
		return true
	}
	declared := false
	_ = askedPaths.Find(capabilities, func(path int, v jsonspan.Value) {
		declared = declared || needed == [...]string{"roots", "sampling", "elicitation"}[path] && v.Kind == jsonspan.BeginObject
	})
	return declared
}

var elicitationPaths = jsonspan.CompilePaths("elicitation.url", "elicitation.form")

// elicits returns the modes in which a client with these capabilities has said that it can ask a person.
func elicits(capabilities []byte) (url, form bool) {
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

// CanOpenURLs reports whether a client with these capabilities has said that it can have a
// person open an address.
func CanOpenURLs(capabilities []byte) bool {
	url, _ := elicits(capabilities)
	return url
}

// CanFillForms reports whether a client with these capabilities has said that it can have a person
// answer a question. One that names no mode can.
func CanFillForms(capabilities []byte) bool {
	url, form := elicits(capabilities)
	return form || !url && CanBeAsked(capabilities, "elicitation/create")
}

// TasksExtension is the name of the extension by which calls become tasks.
const TasksExtension = "io.modelcontextprotocol/tasks"

// TasksPath is where capabilities declare that extension.
const TasksPath = `extensions.io\.modelcontextprotocol/tasks`

var tasksPath = jsonspan.CompilePaths(TasksPath)

// KnowsTasks reports whether a client with these capabilities has declared the tasks extension.
func KnowsTasks(capabilities []byte) (declared bool) {
	_ = tasksPath.Find(capabilities, func(_ int, v jsonspan.Value) { declared = v.Kind == jsonspan.BeginObject })
	return declared
}

// IsQuestion reports whether a method is one by which servers ask clients.
func IsQuestion(method string) bool {
	_, known := asked[method]
	return known
}
