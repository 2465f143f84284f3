package mcp

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net/http"
	"slices"
	"strconv"
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

// ParamHeaders are the arguments of a server's tools that are repeated in headers (x-mcp-header in
// a tool's schema), by tool.
type ParamHeaders map[string][]paramHeader

type paramHeader struct {
	path    []string // path of the argument
	name    string   // name of the header, without paramPrefix
	integer bool     // the argument is an integer
}

// headerKeyword marks a property of a schema whose value is repeated in a header.
const headerKeyword = "x-mcp-header"

// Add adds the tools of a tools/list result, and returns the cursor of the next page, nil for none.
// Tools that AddTool refuses are left out.
func (p ParamHeaders) Add(result []byte) (cursor *string, err error) {
	var list struct {
		Tools []struct {
			Name        string          `json:"name"`
			InputSchema json.RawMessage `json:"inputSchema"`
		} `json:"tools"`
		NextCursor *string `json:"nextCursor"`
	}
	if err := json.Unmarshal(result, &list); err != nil {
		return nil, err
	}
	for _, tool := range list.Tools {
		_ = p.add(tool.Name, tool.InputSchema)
	}
	return list.NextCursor, nil
}

// AddTool adds a tool by its definition. It fails if the tool's x-mcp-header annotations are
// invalid: clients must not use such a tool over HTTP.
func (p ParamHeaders) AddTool(name string, definition []byte) error {
	if !bytes.Contains(definition, []byte(headerKeyword)) {
		return nil
	}
	var tool struct {
		InputSchema json.RawMessage `json:"inputSchema"`
	}
	if err := json.Unmarshal(definition, &tool); err != nil {
		return err
	}
	return p.add(name, tool.InputSchema)
}

func (p ParamHeaders) add(name string, inputSchema []byte) error {
	if !bytes.Contains(inputSchema, []byte(headerKeyword)) {
		return nil
	}
	headers, err := readParamHeaders(inputSchema)
	if len(headers) > 0 {
		p[name] = headers
	}
	return err
}

// readParamHeaders returns the x-mcp-header annotations of a schema. It fails if one is invalid.
func readParamHeaders(inputSchema []byte) ([]paramHeader, error) {
	var found []paramHeader
	if err := findParamHeaders(inputSchema, nil, true, &found); err != nil {
		return nil, err
	}
	slices.SortFunc(found, func(a, b paramHeader) int {
		return cmp.Compare(strings.ToLower(a.name), strings.ToLower(b.name))
	})
	for i := 1; i < len(found); i++ {
		if strings.EqualFold(found[i-1].name, found[i].name) {
			return nil, fmt.Errorf("%s %q is on two properties", headerKeyword, found[i].name)
		}
	}
	return found, nil
}

// findParamHeaders finds the annotations in a schema. They are allowed only below "properties", so
// reachable is false below all other keywords.
func findParamHeaders(schema []byte, path []string, reachable bool, found *[]paramHeader) error {
	var members map[string]json.RawMessage
	if !bytes.Contains(schema, []byte(headerKeyword)) || json.Unmarshal(schema, &members) != nil {
		return nil // a schema may be just true
	}
	if len(path) > maxSchemaDepth {
		return fmt.Errorf("%s: the schema has more than %d levels", headerKeyword, maxSchemaDepth)
	}
	if annotation, ok := members[headerKeyword]; ok {
		header, err := readParamHeader(annotation, members["type"], path, reachable)
		if err != nil {
			return fmt.Errorf("%s of %s: %w", headerKeyword, cmp.Or(strings.Join(path, "."), "the schema itself"), err)
		}
		*found = append(*found, header)
	}
	below := func(schema []byte, step string, reachable bool) error {
		return findParamHeaders(schema, append(path[:len(path):len(path)], step), reachable, found)
	}
	for _, keyword := range slices.Sorted(maps.Keys(members)) {
		var err error
		switch {
		case slices.Contains(schemaMaps, keyword):
			var schemas map[string]json.RawMessage
			_ = json.Unmarshal(members[keyword], &schemas) // other values contain no schemas
			for _, name := range slices.Sorted(maps.Keys(schemas)) {
				err = cmp.Or(err, below(schemas[name], name, reachable && keyword == "properties"))
			}
		case slices.Contains(schemaLists, keyword):
			var schemas []json.RawMessage
			if json.Unmarshal(members[keyword], &schemas) != nil {
				schemas = []json.RawMessage{members[keyword]}
			}
			for _, schema := range schemas {
				err = cmp.Or(err, below(schema, keyword, false))
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// maxSchemaDepth is the maximum depth of a schema with annotations. Each level is parsed once more.
const maxSchemaDepth = 64

// JSON Schema keywords whose values are schemas by name, and those whose values are one schema or a
// list of them.
var (
	schemaMaps  = []string{"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"}
	schemaLists = []string{
		"items", "prefixItems", "additionalItems", "contains", "unevaluatedItems",
		"additionalProperties", "unevaluatedProperties", "propertyNames",
		"allOf", "anyOf", "oneOf", "not", "if", "then", "else",
	}
)

// readParamHeader reads the annotation of a property.
func readParamHeader(annotation, schemaType []byte, path []string, reachable bool) (paramHeader, error) {
	var name, valueType string
	switch {
	case !reachable || len(path) == 0:
		return paramHeader{}, errors.New("only properties below \"properties\" can have it")
	case json.Unmarshal(annotation, &name) != nil || !isToken(name):
		return paramHeader{}, errors.New("not a valid header name")
	case json.Unmarshal(schemaType, &valueType) != nil ||
		!slices.Contains([]string{"string", "integer", "boolean"}, valueType):
		return paramHeader{}, errors.New("the type of the property is not string, integer or boolean")
	}
	return paramHeader{path, name, valueType == "integer"}, nil
}

// isToken reports whether a name is a valid header name.
func isToken(name string) bool {
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0:
		default:
			return false
		}
	}
	return name != ""
}

// Set sets the headers that repeat the arguments of a tools/call, and removes all others of their
// kind.
func (p ParamHeaders) Set(header http.Header, m *jsonrpc.Message) {
	maps.DeleteFunc(header, func(name string, _ []string) bool {
		return len(name) >= len(paramPrefix) && strings.EqualFold(name[:len(paramPrefix)], paramPrefix)
	})
	if !m.Is(jsonrpc.Method, "tools/call") {
		return
	}
	given := newArguments(m)
	for _, h := range p[m.Text(jsonrpc.Name)] {
		if value, repeated := given.text(h.path); repeated {
			header.Set(paramPrefix+h.name, HeaderText(value))
		}
	}
}

// SetOnly sets the headers that repeat arguments for which match returns true, and leaves all
// others unchanged.
func (p ParamHeaders) SetOnly(header http.Header, m *jsonrpc.Message, match func(argument string) bool) {
	given := newArguments(m)
	for _, h := range p[m.Text(jsonrpc.Name)] {
		if !match(h.path[0]) {
			continue
		}
		header.Del(paramPrefix + h.name)
		if value, repeated := given.text(h.path); repeated {
			header.Set(paramPrefix+h.name, HeaderText(value))
		}
	}
}

// Check checks that the headers of a tools/call repeat its arguments.
func (p ParamHeaders) Check(header http.Header, m *jsonrpc.Message) *jsonrpc.Failure {
	given := newArguments(m)
	for _, h := range p[m.Text(jsonrpc.Name)] {
		value, repeated := given.text(h.path)
		values := header.Values(paramPrefix + h.name)
		if !repeated && len(values) == 0 {
			continue
		}
		text, ok := decodeHeaderText(header.Get(paramPrefix + h.name))
		if !ok || len(values) != 1 || !repeated || text != value && !(h.integer && sameNumber(text, value)) {
			return jsonrpc.HeaderMismatch(
				fmt.Sprintf("%s%s and the argument %s differ", paramPrefix, h.name, strings.Join(h.path, ".")))
		}
	}
	return nil
}

// arguments are the arguments of a tools/call. Each object is parsed once, regardless of the number
// of headers that repeat its members: there may be very many of both.
type arguments struct {
	raw     []byte
	members map[string]json.RawMessage // of raw; nil until read, and if raw is not an object
	read    bool
	objects map[string]*arguments // nested objects by name
}

func newArguments(m *jsonrpc.Message) *arguments {
	return &arguments{raw: m.Literal(jsonrpc.Arguments)}
}

// member returns the value of a member; nil if it is missing.
func (a *arguments) member(name string) *arguments {
	if !a.read {
		a.read, a.objects = true, map[string]*arguments{}
		_ = json.Unmarshal(a.raw, &a.members) // stays empty if raw is not an object
	}
	raw, ok := a.members[name]
	if below := a.objects[name]; below != nil || !ok {
		return below
	}
	a.objects[name] = &arguments{raw: raw}
	return a.objects[name]
}

// text returns an argument of a simple type as a header value.
func (a *arguments) text(path []string) (string, bool) {
	for _, name := range path {
		if a = a.member(name); a == nil {
			return "", false
		}
	}
	var value any
	decoder := json.NewDecoder(bytes.NewReader(a.raw))
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
		return decimal(v.String()), true
	}
	return "", false
}

// decimal returns a whole number in decimal notation: 4.2e1 is 42. Other numbers stay unchanged.
func decimal(number string) string {
	if whole, ok := wholeNumber(number); ok {
		return whole.String()
	}
	return number
}

// sameNumber reports whether two texts are the same whole number, such as 42 and 42.0.
func sameNumber(a, b string) bool {
	x, ok := wholeNumber(a)
	y, same := wholeNumber(b)
	return ok && same && x.Cmp(y) == 0
}

// wholeNumber parses a whole number. Its size is limited to what all JSON implementations can
// represent.
func wholeNumber(number string) (*big.Int, bool) {
	const digits = 32
	if f, err := strconv.ParseFloat(number, 64); len(number) > digits || err != nil || f >= 1e16 || f <= -1e16 {
		return nil, false
	}
	r, ok := new(big.Rat).SetString(number)
	if !ok || !r.IsInt() {
		return nil, false
	}
	return r.Num(), true
}
