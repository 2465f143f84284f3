package hosted

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// read reads a template. The error names the field that makes no sense.
func read(t Template) (*hosting, error) {
	t.listed = nil // it may be another's
	if err := checkTexts(&t); err != nil {
		return nil, err
	}
	if t.Name == "" {
		return nil, errors.New("name: it is empty")
	}
	address, err := parse(t.URITemplate)
	if err != nil {
		return nil, fmt.Errorf("uriTemplate: %w", err)
	}
	if err := checkScheme(address.prefix()); err != nil {
		return nil, fmt.Errorf("uriTemplate: %w", err)
	}
	t.listed = t.Descriptor()
	h := &hosting{Template: t, address: address}
	switch {
	case t.Server == "" && t.URI != "":
		return nil, errors.New("server: it is missing, and there is a uri")
	case t.Server != "" && t.Text != "":
		return nil, errors.New("text: there is a server, too")
	case t.Server != "":
		h.target, err = readTarget(t.URI, address)
	default:
		err = readText(t.Text, address)
	}
	if err != nil {
		return nil, err
	}
	return h, nil
}

// checkTexts checks what goes for every field.
func checkTexts(t *Template) error {
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
			return fmt.Errorf("%s: it has %d bytes, and may have %d", field.name, len(field.text), field.most)
		case !utf8.ValidString(field.text):
			return fmt.Errorf("%s: it is not UTF-8", field.name)
		}
	}
	return nil
}

// checkScheme checks how a template begins: with a scheme, and not with the one that
// leads to the servers of the gateway.
func checkScheme(prefix string) error {
	scheme, _, ok := strings.Cut(prefix, ":")
	if !ok || !isScheme(scheme) {
		return errors.New("it does not begin with a scheme, such as docs://")
	}
	if strings.EqualFold(scheme, "proxy") {
		return errors.New("proxy:// is the gateway's own")
	}
	return nil
}

func isScheme(s string) bool {
	for i := range len(s) {
		c := s[i] | 0x20
		letter, digit := 'a' <= c && c <= 'z', '0' <= s[i] && s[i] <= '9'
		if !letter && (i == 0 || !digit && !strings.ContainsRune("+-.", rune(s[i]))) {
			return false
		}
	}
	return s != ""
}

// readTarget reads the template of a URI at a server, which can only use what the
// address gives.
func readTarget(uri string, address *pattern) (*pattern, error) {
	if uri == "" {
		return nil, errors.New("uri: it is missing, and there is a server")
	}
	target, err := parse(uri)
	if err != nil {
		return nil, fmt.Errorf("uri: %w", err)
	}
	for _, name := range target.names() {
		if !address.has(name) {
			return nil, fmt.Errorf("uri: {%s} is not in uriTemplate", name)
		}
	}
	return target, nil
}

func readText(text string, address *pattern) error {
	if text == "" {
		return errors.New("text: it is empty, and there is no server")
	}
	uses := 0
	for _, name := range address.names() {
		uses += strings.Count(text, "{"+name+"}") + strings.Count(text, "{+"+name+"}")
	}
	if uses > maxUses {
		return fmt.Errorf("text: it has variables at %d places, and may have them at %d", uses, maxUses)
	}
	return nil
}
