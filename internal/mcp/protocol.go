package mcp

import (
	"slices"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

// An Era is a family of protocol versions.
type Era uint8

const (
	// Legacy is the era with handshakes, sessions and server requests.
	Legacy Era = iota
	// Modern is the stateless era, in which each request identifies its client and version.
	Modern
)

const (
	// Latest is the newest legacy version.
	Latest = "2025-11-25"
	// Stateless is the first modern version.
	Stateless = "2026-07-28"
)

// legacyVersions are the versions with a handshake, oldest first.
var legacyVersions = []string{"2024-11-05", "2025-03-26", "2025-06-18", Latest}

// Versions returns all versions, oldest first.
func Versions() []string { return append(slices.Clone(legacyVersions), Stateless) }

// IsLegacy reports whether a version has a handshake.
func IsLegacy(version string) bool { return slices.Contains(legacyVersions, version) }

// EraOf returns the era of a request: modern if it has a version in _meta, or a version header that
// is not legacy. The method does not matter. Notifications of modern clients may have neither.
func EraOf(versionHeader string, m *jsonrpc.Message) Era {
	if m.Has(jsonrpc.ProtocolVersion) || versionHeader != "" && !IsLegacy(versionHeader) {
		return Modern
	}
	return Legacy
}

// NewestLegacy returns the newest legacy version among versions; "" for none.
func NewestLegacy(versions []string) string {
	for _, version := range slices.Backward(legacyVersions) {
		if slices.Contains(versions, version) {
			return version
		}
	}
	return ""
}

// Negotiate returns the version with which a server responds to a client: the requested one if the
// server supports it, otherwise its own.
func Negotiate(requested, server string) string {
	requestedIndex, serverIndex := slices.Index(legacyVersions, requested), slices.Index(legacyVersions, server)
	if requestedIndex < 0 || serverIndex >= 0 && requestedIndex > serverIndex {
		return server
	}
	return requested
}

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
