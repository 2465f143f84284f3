package mcp

import "strings"

// MethodUpdated is the notification that a resource has changed.
const MethodUpdated = "notifications/resources/updated"

// MethodTask is the notification about the state of a task, of the tasks extension.
const MethodTask = "notifications/tasks"

// KnownMethod returns a method if MCP defines it, in any version or official extension. Metric
// labels use only such names, because clients can invent any number of others.
func KnownMethod(name string) (method string, ok bool) {
	method, ok = methods[name]
	return method, ok
}

var methods = func() map[string]string {
	all := map[string]string{}
	for _, name := range []string{
		"initialize", "ping", "server/discover",
		"tools/list", "tools/call",
		"prompts/list", "prompts/get",
		"resources/list", "resources/templates/list", "resources/read", "resources/subscribe", "resources/unsubscribe",
		"resources/directory/read", "skills/list", "skills/get",
		"completion/complete", "logging/setLevel",
		MethodListen,
		"tasks/get", "tasks/list", "tasks/result", "tasks/update", "tasks/cancel",
		"sampling/createMessage", "elicitation/create", "roots/list",
		"notifications/initialized", "notifications/cancelled", "notifications/progress", "notifications/message",
		"notifications/roots/list_changed", "notifications/tools/list_changed", "notifications/prompts/list_changed",
		"notifications/resources/list_changed", MethodUpdated,
		"notifications/elicitation/complete", MethodTask, "notifications/tasks/status",
	} {
		all[name] = name
	}
	return all
}()

// Describes reports whether results of a method describe a server: its handshake and its lists.
func Describes(method string) bool {
	switch method {
	case "initialize", "server/discover", "resources/directory/read":
		return true
	}
	return strings.HasSuffix(method, "/list")
}

// LogLevels are the levels of log messages, least severe first.
var LogLevels = []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// MethodListen is the request whose response is a long-lived stream, of the modern era.
const MethodListen = "subscriptions/listen"
