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
