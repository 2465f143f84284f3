package mcp

import (
	"encoding/base64"
	"maps"
	"net/http"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

// Headers of the protocol, in the form that http.Header has them.
const (
	SessionHeader = "Mcp-Session-Id"
	VersionHeader = "Mcp-Protocol-Version"
	methodHeader  = "Mcp-Method"
	nameHeader    = "Mcp-Name"
	paramPrefix   = "Mcp-Param-"
)

// CheckModern checks a request of the modern era: that it says who it is, and that
// its headers, which proxies decide upon, say the same as its body.
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
		return jsonrpc.HeaderMismatch("Mcp-Method and the method differ")
	}
	if _, named := nameOf(m); named && header.Get(nameHeader) == "" {
		return jsonrpc.HeaderMismatch("Mcp-Name and the name in the body differ")
	}
	return nil
}

// CheckHeaders checks that the headers of a request that repeat parts of its body, as
// far as they are there, say the same. In the modern era they have to be there, see
// [CheckModern].
func CheckHeaders(header http.Header, m *jsonrpc.Message) *jsonrpc.Failure {
	for _, name := range []string{VersionHeader, methodHeader, nameHeader} {
		if len(header.Values(name)) > 1 { // of which a proxy may have read the other
			return jsonrpc.HeaderMismatch(name + " is there more than once")
		}
	}
	if len(header.Values(methodHeader)) > 0 && !m.Is(jsonrpc.Method, header.Get(methodHeader)) {
		return jsonrpc.HeaderMismatch("Mcp-Method and the method differ")
	}
	if field, named := nameOf(m); named && len(header.Values(nameHeader)) > 0 {
		name, ok := headerText(header.Get(nameHeader))
		if !ok || name == "" || !m.Is(field, name) {
			return jsonrpc.HeaderMismatch("Mcp-Name and the name in the body differ")
		}
	}
	return nil
}

// ClearModern takes the headers of the modern era off a request that goes to a
// server of the legacy era.
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

// nameOf returns which member of a request Mcp-Name repeats.
func nameOf(m *jsonrpc.Message) (jsonrpc.Field, bool) {
	is := func(method string) bool { return m.Is(jsonrpc.Method, method) }
	switch {
	case is("tools/call"), is("prompts/get"):
		return jsonrpc.Name, true
	case is("resources/read"):
		return jsonrpc.URI, true
	case is("tasks/get"), is("tasks/update"), is("tasks/cancel"):
		return jsonrpc.TaskID, true
	}
	return 0, false
}

// SetModern sets the headers that repeat what the body of a modern request says,
// and takes away a name that does not belong to it. The message is the one that is
// sent with the headers: after its names have been replaced.
func SetModern(header http.Header, m *jsonrpc.Message, version string) {
	httpbody.SetHeader(header, VersionHeader, version)
	httpbody.SetHeader(header, methodHeader, HeaderText(m.Text(jsonrpc.Method)))
	delete(header, nameHeader)
	if field, named := nameOf(m); named {
		if name := m.Text(field); name != "" {
			header[nameHeader] = []string{HeaderText(name)}
		}
	}
}

// SetName makes the header that repeats a name in the body say what the body says, if the header is there.
func SetName(header http.Header, m *jsonrpc.Message) {
	if field, named := nameOf(m); named && header.Get(nameHeader) != "" {
		header.Set(nameHeader, HeaderText(m.Text(field)))
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

// headerText returns what the value of a header says. What is not safe in a header
// comes as base64 in =?base64? and ?=.
func headerText(value string) (string, bool) {
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
