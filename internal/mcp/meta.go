package mcp

import (
	"slices"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// Keys of _meta that MCP defines. All begin with MetaPrefix.
const (
	MetaPrefix             = "io.modelcontextprotocol/"
	MetaProtocolVersion    = MetaPrefix + "protocolVersion"
	MetaClientInfo         = MetaPrefix + "clientInfo"
	MetaClientCapabilities = MetaPrefix + "clientCapabilities"
	MetaLogLevel           = MetaPrefix + "logLevel"
	MetaServerInfo         = MetaPrefix + "serverInfo"
	MetaSubscriptionID     = MetaPrefix + "subscriptionId"
)

// RequestMeta returns the _meta of a modern request. info and capabilities of the client are JSON.
// Without a level, the server sends no log messages.
func RequestMeta(info, capabilities []byte, level string) []byte {
	meta := slices.Concat([]byte(`{"`+MetaProtocolVersion+`":"`+Stateless+`","`+MetaClientInfo+`":`), info,
		[]byte(`,"`+MetaClientCapabilities+`":`), capabilities)
	if level != "" {
		meta = slices.Concat(meta, []byte(`,"`+MetaLogLevel+`":`), jsonrpc.Quote(level))
	}
	return append(meta, '}')
}

// URIParams returns the params of a request for a resource.
func URIParams(uri string) []byte {
	return slices.Concat([]byte(`{"uri":`), jsonrpc.Quote(uri), []byte("}"))
}

// WithMeta adds _meta to params without one.
func WithMeta(params, meta []byte) []byte {
	member := slices.Concat([]byte(`"_meta":`), meta)
	if len(params) == 0 {
		return slices.Concat([]byte("{"), member, []byte("}"))
	}
	return jsonspan.Spliced(params, jsonspan.Insert(params, member))
}

// UIMembers are the paths of members of _meta that name the resource that shows results to people:
// in MCP Apps, in its earlier drafts, and in OpenAI's Apps SDK.
var UIMembers = []string{"_meta.ui.resourceUri", "_meta.ui/resourceUri", "_meta.openai/outputTemplate"}

// An Implementation identifies a server to its clients, or a client to servers.
type Implementation struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// AddMembers adds the members that the modern era requires to a result of the server.
func (i Implementation) AddMembers(resultType string, result []byte) []byte {
	for member := range jsonspan.Members(result) {
		if at := member.Value; member.Key == "_meta" && at.Kind == jsonspan.BeginObject {
			return jsonspan.Spliced(result, jsonspan.Insert(result, typeMember(resultType)),
				jsonspan.Insert(result[at.Start:at.End], i.metaMember()).Moved(at.Start))
		}
	}
	return jsonspan.Spliced(result, jsonspan.Insert(result, i.Members(resultType)))
}

// Members returns the members of a modern result: its type and its sender.
func (i Implementation) Members(resultType string) []byte {
	return slices.Concat(typeMember(resultType), []byte(`,"_meta":{`), i.metaMember(), []byte("}"))
}

// metaMember returns the member of _meta that names the sender.
func (i Implementation) metaMember() []byte {
	return slices.Concat([]byte(`"`+MetaServerInfo+`":`), jsonrpc.Encode(i))
}

func typeMember(resultType string) []byte { return []byte(`"resultType":"` + resultType + `"`) }

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
