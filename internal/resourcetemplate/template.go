package resourcetemplate

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
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
