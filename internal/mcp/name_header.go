package mcp

import (
	"encoding/base64"
	"net/http"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

// SetModern sets the headers that repeat what the body of a modern request says,
// and takes away a name that does not belong to it. The message is the one that is
// sent with the headers: after its names have been replaced.
func SetModern(header http.Header, m *jsonrpc.Message, version string) {
	header.Set(VersionHeader, version)
	header.Set(methodHeader, HeaderText(m.Text(jsonrpc.Method)))
	header.Del(nameHeader)
	if field, named := nameOf(m); named {
		if name := m.Text(field); name != "" {
			header.Set(nameHeader, HeaderText(name))
		}
	}
}

// HeaderText returns a text as it can stand in a header: as it is, or as base64 in
// =?base64? and ?= if it is not safe there or could be taken for such.
func HeaderText(text string) string {
	if isSafe(text) {
		return text
	}
	return "=?base64?" + base64.StdEncoding.EncodeToString([]byte(text)) + "?="
}

func isSafe(text string) bool {
	const mark = "=?base64?"
	if len(text) >= len(mark) && strings.EqualFold(text[:len(mark)], mark) && strings.HasSuffix(text, "?=") {
		return false
	}
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' {
			return false
		}
	}
	return strings.Trim(text, " ") == text
}
