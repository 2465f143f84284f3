package mcp

import (
	"encoding/base64"
	"maps"
	"net/http"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

// Headers of MCP, in canonical form.
const (
	SessionHeader = "Mcp-Session-Id"
	VersionHeader = "Mcp-Protocol-Version"
	methodHeader  = "Mcp-Method"
	nameHeader    = "Mcp-Name"
	paramPrefix   = "Mcp-Param-"
)

// CheckModern checks that a modern request identifies itself, and that its headers, on which
// proxies decide, agree with its body.
func CheckModern(header http.Header, m *jsonrpc.Message) *jsonrpc.Failure {
	if failure := CheckHeaders(header, m); failure != nil {
		return failure
	}
	version := header.Get(VersionHeader)
	switch {
	case m.Has(jsonrpc.ProtocolVersion) && !m.Is(jsonrpc.ProtocolVersion, version):
		return jsonrpc.HeaderMismatch("MCP-Protocol-Version and the version in _meta differ")
	case !m.Has(jsonrpc.ProtocolVersion):
		return jsonrpc.InvalidParams("_meta has no " + MetaProtocolVersion)
	case !m.Has(jsonrpc.ClientCapabilities):
		return jsonrpc.InvalidParams("_meta has no " + MetaClientCapabilities)
	case header.Get(methodHeader) == "":
		return jsonrpc.HeaderMismatch("Mcp-Method is missing")
	}
	if _, named := nameField(m); named && header.Get(nameHeader) == "" {
		return jsonrpc.HeaderMismatch("Mcp-Name is missing")
	}
	return nil
}

// CheckHeaders checks that the headers of a request that repeat parts of its body agree with it, if
// they are present. In the modern era they must be present, see [CheckModern].
func CheckHeaders(header http.Header, m *jsonrpc.Message) *jsonrpc.Failure {
	for _, name := range []string{VersionHeader, methodHeader, nameHeader} {
		if len(header.Values(name)) > 1 { // a proxy may have read another value
			return jsonrpc.HeaderMismatch(name + " is set more than once")
		}
	}
	if len(header.Values(methodHeader)) > 0 && !m.Is(jsonrpc.Method, header.Get(methodHeader)) {
		return jsonrpc.HeaderMismatch("Mcp-Method and the method differ")
	}
	if field, named := nameField(m); named && len(header.Values(nameHeader)) > 0 {
		name, ok := decodeHeaderText(header.Get(nameHeader))
		if !ok || name == "" || !m.Is(field, name) {
			return jsonrpc.HeaderMismatch("Mcp-Name and the name in the body differ")
		}
	}
	return nil
}

// ClearModern removes the headers of the modern era, for a legacy server.
func ClearModern(header http.Header) {
	maps.DeleteFunc(header, func(name string, _ []string) bool {
		return name == methodHeader || name == nameHeader || strings.HasPrefix(name, paramPrefix)
	})
}

// HasParams reports whether a request repeats arguments in headers.
func HasParams(header http.Header) bool {
	for name := range header {
		if strings.HasPrefix(name, paramPrefix) {
			return true
		}
	}
	return false
}

// nameField returns the field that Mcp-Name repeats.
func nameField(m *jsonrpc.Message) (jsonrpc.Field, bool) {
	isMethod := func(method string) bool { return m.Is(jsonrpc.Method, method) }
	switch {
	case isMethod("tools/call"), isMethod("prompts/get"):
		return jsonrpc.Name, true
	case isMethod("resources/read"):
		return jsonrpc.URI, true
	case isMethod("tasks/get"), isMethod("tasks/update"), isMethod("tasks/cancel"):
		return jsonrpc.TaskID, true
	}
	return 0, false
}

// SetModern sets the headers that repeat the body of a modern request, and removes an Mcp-Name that
// does not belong to it. m is the message as it is sent: after its names have been replaced.
func SetModern(header http.Header, m *jsonrpc.Message, version string) {
	httpbody.SetHeader(header, VersionHeader, version)
	httpbody.SetHeader(header, methodHeader, HeaderText(m.Text(jsonrpc.Method)))
	delete(header, nameHeader)
	if field, named := nameField(m); named {
		if name := m.Text(field); name != "" {
			header[nameHeader] = []string{HeaderText(name)}
		}
	}
}

// SetName updates the Mcp-Name header from the body, if the header is present.
func SetName(header http.Header, m *jsonrpc.Message) {
	if field, named := nameField(m); named && header.Get(nameHeader) != "" {
		header.Set(nameHeader, HeaderText(m.Text(field)))
	}
}

// HeaderText returns a text as a header value: unchanged, or as =?base64?…?= if it is not safe in a
// header or looks like that.
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

// decodeHeaderText decodes a header value, which may be =?base64?…?=.
func decodeHeaderText(value string) (string, bool) {
	encoded, ok := strings.CutPrefix(value, "=?base64?")
	if !ok {
		return value, true
	}
	if encoded, ok = strings.CutSuffix(encoded, "?="); !ok {
		return value, true
	}
	text, err := base64.StdEncoding.DecodeString(encoded)
	return string(text), err == nil
}
