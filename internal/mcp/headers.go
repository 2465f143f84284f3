package mcp

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"

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
	switch method := m.Text(jsonrpc.Method); {
	case method == "tools/call" || method == "prompts/get":
		return jsonrpc.Name, true
	case method == "resources/read":
		return jsonrpc.URI, true
	case strings.HasPrefix(method, "tasks/"):
		return jsonrpc.TaskID, true
	}
	return 0, false
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

// ParamHeaders says which arguments of a server's tools are repeated in headers
// (x-mcp-header in a tool's schema), by tool.
type ParamHeaders map[string][]paramHeader

type paramHeader struct {
	path []string // of the argument
	name string   // of the header
}

// A schema is as much of a JSON schema as matters here.
type schema struct {
	Header     string                     `json:"x-mcp-header"`
	Properties map[string]json.RawMessage `json:"properties"`
}

// Add adds the tools of the result of a tools/list, and returns where the list goes
// on.
func (p ParamHeaders) Add(result []byte) (cursor string, err error) {
	var list struct {
		Tools []struct {
			Name        string          `json:"name"`
			InputSchema json.RawMessage `json:"inputSchema"`
		} `json:"tools"`
		NextCursor string `json:"nextCursor"`
	}
	if err := json.Unmarshal(result, &list); err != nil {
		return "", err
	}
	for _, tool := range list.Tools {
		p.add(tool.Name, tool.InputSchema)
	}
	return list.NextCursor, nil
}

// AddTool adds a tool by its definition.
func (p ParamHeaders) AddTool(name string, definition []byte) {
	if !bytes.Contains(definition, []byte("x-mcp-header")) {
		return
	}
	var tool struct {
		InputSchema json.RawMessage `json:"inputSchema"`
	}
	if json.Unmarshal(definition, &tool) == nil {
		p.add(name, tool.InputSchema)
	}
}

// add adds a tool with this schema. Clients leave out a tool whose schema is wrong.
func (p ParamHeaders) add(name string, inputSchema []byte) {
	var s schema
	if !bytes.Contains(inputSchema, []byte("x-mcp-header")) || json.Unmarshal(inputSchema, &s) != nil {
		return
	}
	if headers := s.headers(nil, nil); headers != nil {
		p[name] = headers
	}
}

func (s schema) headers(path []string, found []paramHeader) []paramHeader {
	for name, raw := range s.Properties {
		var property schema
		if json.Unmarshal(raw, &property) != nil {
			continue // it may be no more than true
		}
		at := append(path[:len(path):len(path)], name)
		if property.Header != "" {
			found = append(found, paramHeader{at, property.Header})
		}
		found = property.headers(at, found)
	}
	return found
}

// Check checks that the headers of a tools/call repeat its arguments.
func (p ParamHeaders) Check(header http.Header, m *jsonrpc.Message) *jsonrpc.Failure {
	for _, h := range p[m.Text(jsonrpc.Name)] {
		value, repeated := argument(m.Literal(jsonrpc.Arguments), h.path)
		values := header.Values(paramPrefix + h.name)
		if !repeated && len(values) == 0 {
			continue
		}
		text, ok := headerText(header.Get(paramPrefix + h.name))
		if !ok || len(values) != 1 || !repeated || text != value {
			return jsonrpc.HeaderMismatch(fmt.Sprintf("%s%s and the argument %s differ", paramPrefix, h.name, strings.Join(h.path, ".")))
		}
	}
	return nil
}

// argument returns an argument of a simple type as a header has it.
func argument(arguments []byte, path []string) (string, bool) {
	for _, name := range path {
		var object map[string]json.RawMessage
		if json.Unmarshal(arguments, &object) != nil {
			return "", false
		}
		arguments = object[name]
	}
	var value any
	decoder := json.NewDecoder(bytes.NewReader(arguments))
	decoder.UseNumber()
	if decoder.Decode(&value) != nil {
		return "", false
	}
	switch v := value.(type) {
	case string:
		return v, true
	case bool:
		return strconv.FormatBool(v), true
	case json.Number:
		return v.String(), true
	}
	return "", false
}
