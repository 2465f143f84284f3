package sse

import "github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"

// AppendEvent appends the event that carries a message, which is JSON. It is on one
// line whatever the message: there are clients that read no others.
func AppendEvent(dst, message []byte) []byte {
	dst = append(dst, "event: message\ndata: "...)
	dst = jsonspan.AppendLine(dst, message)
	return append(dst, "\n\n"...)
}
