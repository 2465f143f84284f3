package resourcetemplate

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

// A Template describes resources. The content of each is either Text, or that of the resource URI
// of Server.
type Template struct {
	Name        string `json:"name"`
	URITemplate string `json:"uriTemplate"`
	Title       string `json:"title,omitempty"`
	Description string `json:"description,omitempty"`
	MIMEType    string `json:"mimeType,omitempty"`

	// Text is the content. Each {variable} of URITemplate is replaced with its value; other braces
	// are text.
	Text string `json:"text,omitempty"`

	// Server is the server of the resource, and URI the template of its URI there.
	Server string `json:"server,omitempty"`
	URI    string `json:"uri,omitempty"`

	descriptor []byte // set once the template is in a Set
}

// Descriptor returns the item of resources/templates/list. It must not be modified.
func (t *Template) Descriptor() []byte {
	if t.descriptor != nil {
		return t.descriptor
	}
	return jsonrpc.Encode(struct {
		URITemplate string `json:"uriTemplate"`
		Name        string `json:"name"`
		Title       string `json:"title,omitempty"`
		Description string `json:"description,omitempty"`
		MIMEType    string `json:"mimeType,omitempty"`
	}{t.URITemplate, t.Name, t.Title, t.Description, t.MIMEType})
}

// size returns the size of a template, in bytes.
func (t *Template) size() int64 {
	return int64(len(t.Name) + len(t.URITemplate) + len(t.Title) + len(t.Description) + len(t.MIMEType) +
		len(t.Text) + len(t.Server) + len(t.URI))
}

// A compiled template has its URI templates parsed.
type compiled struct {
	Template
	uriPattern *pattern
	target     *pattern // nil if the template has a text
}

// compile validates a template. The error names the invalid field.
func compile(t Template) (*compiled, error) {
	if err := checkLengths(&t); err != nil {
		return nil, err
	}
	if t.Name == "" {
		return nil, errors.New("name: missing")
	}
	address, err := parse(t.URITemplate)
	if err == nil {
		err = checkScheme(address.prefix())
	}
	if err != nil {
		return nil, fmt.Errorf("uriTemplate: %w", err)
	}
	t.descriptor = nil
	t.descriptor = t.Descriptor()
	c := &compiled{Template: t, uriPattern: address}
	switch {
	case t.Server == "" && t.URI != "":
		return nil, errors.New("server: missing, although uri is set")
	case t.Server != "" && t.Text != "":
		return nil, errors.New("text: not allowed together with server")
	case t.Server != "":
		c.target, err = parseTarget(t.URI, address)
	default:
		err = checkText(t.Text, address)
	}
	return c, err
}

func checkLengths(t *Template) error {
	for _, field := range [...]struct {
		name, text string
		most       int
	}{
		{"name", t.Name, 256},
		{"uriTemplate", t.URITemplate, maxURI},
		{"title", t.Title, maxField},
		{"description", t.Description, maxField},
		{"mimeType", t.MIMEType, 256},
		{"text", t.Text, maxText},
		{"server", t.Server, 256},
		{"uri", t.URI, maxURI},
	} {
		switch {
		case len(field.text) > field.most:
			return fmt.Errorf("%s: %d bytes, the limit is %d", field.name, len(field.text), field.most)
		case !utf8.ValidString(field.text):
			return fmt.Errorf("%s: not UTF-8", field.name)
		}
	}
	return nil
}

var scheme = regexp.MustCompile(`\A([A-Za-z][A-Za-z0-9+.-]*):`)

// checkScheme checks that a template begins with a scheme other than proxy:, which the gateway uses
// for resources of its servers.
func checkScheme(prefix string) error {
	found := scheme.FindStringSubmatch(prefix)
	switch {
	case found == nil:
		return errors.New("must begin with a scheme, such as docs://")
	case strings.EqualFold(found[1], "proxy"):
		return errors.New("proxy:// is reserved for the gateway")
	}
	return nil
}

// parseTarget parses the template of a URI at a server. All its variables must occur in the
// address.
func parseTarget(uri string, address *pattern) (*pattern, error) {
	if uri == "" {
		return nil, errors.New("uri: missing, although server is set")
	}
	target, err := parse(uri)
	if err != nil {
		return nil, fmt.Errorf("uri: %w", err)
	}
	for _, v := range target.variables {
		if !address.has(v.name) {
			return nil, fmt.Errorf("uri: {%s} is not in uriTemplate", v.name)
		}
	}
	return target, nil
}

func checkText(text string, address *pattern) error {
	if text == "" {
		return errors.New("text: missing, and no server is set")
	}
	uses := 0
	for _, v := range address.variables {
		uses += strings.Count(text, "{"+v.name+"}") + strings.Count(text, "{+"+v.name+"}")
	}
	if uses > maxUses {
		return fmt.Errorf("text: %d uses of variables, the limit is %d", uses, maxUses)
	}
	return nil
}

// A pattern is a URI template of RFC 6570 with two kinds of expressions: {name} matches one segment
// of a path, {+name} one or more. A value is never empty and never contains ? or #.
//
// Matching takes time linear in the length of the URI. Escaped slashes stay escaped, so a segment
// stays one segment.
type pattern struct {
	variables []variable
	tail      string // literal after the last variable
	regexp    *regexp.Regexp
}

type variable struct {
	literal string // literal before the variable
	name    string
	slashes bool // {+name}
}

// A value is the value of a variable in a URI.
type value struct {
	raw     string // as in the URI
	decoded string
}

const maxVariables = 32

var expressions = regexp.MustCompile(`\{(\+?)([A-Za-z0-9_][A-Za-z0-9_.]*)\}`)

func parse(template string) (*pattern, error) {
	literals := expressions.ReplaceAllLiteralString(template, "")
	if i := strings.IndexFunc(literals, notInURIs); i >= 0 {
		return nil, fmt.Errorf("%q is not allowed in a URI; write variables as {name} or {+name}", literals[i])
	}
	var (
		p   pattern
		re  strings.Builder
		end int
	)
	for _, at := range expressions.FindAllStringSubmatchIndex(template, maxVariables+1) {
		v := variable{literal: template[end:at[0]], name: template[at[4]:at[5]], slashes: at[2] < at[3]}
		end = at[1]
		switch {
		case p.has(v.name):
			return nil, fmt.Errorf("duplicate variable {%s}", v.name)
		case len(p.variables) == maxVariables:
			return nil, fmt.Errorf("more than %d variables", maxVariables)
		case len(p.variables) > 0 && v.literal == "":
			return nil, fmt.Errorf("no literal before {%s} separates it from the previous variable", v.name)
		}
		p.variables = append(p.variables, v)
		re.WriteString(regexp.QuoteMeta(v.literal))
		if v.slashes {
			re.WriteString(`([^?#]+)`)
		} else {
			re.WriteString(`([^/?#]+)`)
		}
	}
	p.tail = template[end:]
	var err error
	p.regexp, err = regexp.Compile(`\A` + re.String() + regexp.QuoteMeta(p.tail) + `\z`)
	return &p, err
}

func notInURIs(c rune) bool {
	return c <= ' ' || c == 0x7f || strings.ContainsRune(`"<>\{}`, c)
}

// prefix returns the literal at the beginning of the pattern.
func (p *pattern) prefix() string {
	if len(p.variables) == 0 {
		return p.tail
	}
	return p.variables[0].literal
}

func (p *pattern) has(name string) bool {
	return slices.ContainsFunc(p.variables, func(v variable) bool { return v.name == name })
}

// match returns the values of the variables in a URI.
func (p *pattern) match(uri string) (map[string]value, bool) {
	if !strings.HasPrefix(uri, p.prefix()) {
		return nil, false
	}
	found := p.regexp.FindStringSubmatch(uri)
	if found == nil {
		return nil, false
	}
	values := map[string]value{}
	for i, v := range p.variables {
		decoded, ok := decode(found[i+1])
		if !ok {
			return nil, false
		}
		values[v.name] = value{found[i+1], decoded}
	}
	return values, true
}

// expand returns the URI for these values. The value of {name} stays one segment.
func (p *pattern) expand(values map[string]value) string {
	var uri strings.Builder
	for _, v := range p.variables {
		uri.WriteString(v.literal)
		if v.slashes {
			uri.WriteString(values[v.name].raw)
		} else {
			uri.WriteString(escape(values[v.name].decoded))
		}
	}
	return uri.String() + p.tail
}

// maxEscapes is how often a value may be escaped.
const maxEscapes = 3

// decode unescapes a value. It refuses values that are not plain text, and those with a "." or ".."
// segment, however often these are escaped.
func decode(raw string) (string, bool) {
	decoded, err := url.PathUnescape(raw)
	if err != nil || !utf8.ValidString(decoded) || strings.ContainsFunc(decoded, unicode.IsControl) {
		return "", false
	}
	text := decoded
	for range maxEscapes {
		if hasDotSegment(text) {
			return "", false
		}
		next, err := url.PathUnescape(text)
		if err != nil || next == text {
			return decoded, true
		}
		text = next
	}
	return "", false
}

// hasDotSegment reports whether a path has a "." or ".." segment.
func hasDotSegment(path string) bool {
	for segment := range strings.FieldsFuncSeq(path, func(c rune) bool { return c == '/' || c == '\\' }) {
		if segment == "." || segment == ".." {
			return true
		}
	}
	return false
}

// escape escapes all but unreserved characters.
func escape(text string) string {
	return strings.ReplaceAll(url.QueryEscape(text), "+", "%20")
}
