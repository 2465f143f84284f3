package mcp

import (
	"slices"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

// The keys of _meta that the protocol defines. All begin with MetaPrefix.
const (
	MetaPrefix             = "io.modelcontextprotocol/"
	MetaProtocolVersion    = MetaPrefix + "protocolVersion"
	MetaClientInfo         = MetaPrefix + "clientInfo"
	MetaClientCapabilities = MetaPrefix + "clientCapabilities"
	MetaLogLevel           = MetaPrefix + "logLevel"
	MetaServerInfo         = MetaPrefix + "serverInfo"
	MetaSubscriptionID     = MetaPrefix + "subscriptionId"
)

// RequestMeta returns the _meta of a modern request. The client's info and capabilities
// are JSON. Without a level, the server sends no log messages.
func RequestMeta(info, capabilities []byte, level string) []byte {
	meta := slices.Concat([]byte(`{"`+MetaProtocolVersion+`":"`+Stateless+`","`+MetaClientInfo+`":`), info,
		[]byte(`,"`+MetaClientCapabilities+`":`), capabilities)
	if level != "" {
		meta = slices.Concat(meta, []byte(`,"`+MetaLogLevel+`":`), jsonrpc.Quote(level))
	}
	return append(meta, '}')
}

// URIParams returns the params of a request that names a resource.
func URIParams(uri string) []byte {
	return slices.Concat([]byte(`{"uri":`), jsonrpc.Quote(uri), []byte("}"))
}
