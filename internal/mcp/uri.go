package mcp

import (
	"encoding/base64"
	"errors"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

const (
	resourcePrefix    = "proxy://resource/"
	templatePrefix    = "proxy://template/"
	observationPrefix = "proxy://observation/"

	// UIScheme is the scheme of resources that hosts show to people: those of MCP Apps.
	UIScheme = "ui://"
	uiPrefix = UIScheme + "proxy/resource/"

	// ObservationTemplate is the URI template of originals that masks have shortened.
	ObservationTemplate = observationPrefix + "{id}"
)

var (
	errForeignURI = errors.New("the URI is neither of the form " + resourcePrefix + "… nor " + templatePrefix +
		"… nor " + uiPrefix + "…")
	errURIBase64 = errors.New("the part after " + resourcePrefix + " is not base64")
	errURIJSON   = errors.New("the part after " + resourcePrefix + " is not base64 of JSON")
	errURIScheme = errors.New("the part after " + uiPrefix + " does not encode a ui:// URI")
	errURIServer = errors.New("the proxy URI names no server")
	errURIOwn    = errors.New("the proxy URI names no URI of the server")
)

// ResourceURI returns the URI of a resource of a server for clients. It contains everything needed
// to read the resource, also in a session that never listed it.
func ResourceURI(server, uri string) string {
	return string(AppendResourceURI(nil, server, uri))
}

// AppendResourceURI appends to dst what ResourceURI returns.
func AppendResourceURI(dst []byte, server, uri string) []byte {
	return appendServerURI(append(dst, resourcePrefix...), server, uri)
}

// UIResourceURI is ResourceURI for clients that check the scheme: hosts of MCP Apps show only ui://
// resources. Other URIs become the same as with ResourceURI.
func UIResourceURI(server, uri string) string {
	if !strings.HasPrefix(uri, UIScheme) {
		return ResourceURI(server, uri)
	}
	return string(appendServerURI([]byte(uiPrefix), server, uri))
}

// appendServerURI appends the base64 encoding of a server and its URI.
func appendServerURI(dst []byte, server, uri string) []byte {
	var room [512]byte
	object := append(room[:0], `{"server":`...)
	object = appendQuoted(object, server)
	object = append(object, `,"uri":`...)
	object = appendQuoted(object, uri)
	object = append(object, '}')
	return base64.RawURLEncoding.AppendEncode(dst, object)
}

// appendQuoted appends a string as JSON without HTML escapes. URIs rarely need any escapes.
func appendQuoted(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			return append(dst, jsonrpc.Encode(s)...)
		}
	}
	dst = append(dst, '"')
	dst = append(dst, s...)
	return append(dst, '"')
}

// TemplateURI returns the URI template of a server's template for clients. Its variables stay
// unchanged, so an expansion is a prefix and the server's own URI.
func TemplateURI(server, template string) string {
	return templatePrefix + url.PathEscape(server) + "/" + template
}

// ParseURI returns the server and its own URI for a resource URI of clients. It accepts what
// ResourceURI and UIResourceURI return, with any variant of base64, and expansions of a
// TemplateURI.
func ParseURI(proxy string) (server, uri string, err error) {
	if rest, ok := strings.CutPrefix(proxy, templatePrefix); ok {
		server, uri, _ = strings.Cut(rest, "/")
		if server, err = url.PathUnescape(server); err != nil {
			return "", "", errURIServer
		}
	} else if rest, ok := strings.CutPrefix(proxy, resourcePrefix); ok {
		if server, uri, err = parseServerURI(rest); err != nil {
			return "", "", err
		}
	} else if rest, ok := strings.CutPrefix(proxy, uiPrefix); ok {
		if server, uri, err = parseServerURI(rest); err != nil {
			return "", "", err
		}
		if uri != "" && !strings.HasPrefix(uri, UIScheme) {
			return "", "", errURIScheme // hosts let apps read any URI of their scheme
		}
	} else {
		return "", "", errForeignURI
	}
	switch {
	case server == "":
		return "", "", errURIServer
	case uri == "":
		return "", "", errURIOwn
	}
	return server, uri, nil
}

var serverURIPaths = jsonspan.CompilePaths("server", "uri")

// parseServerURI decodes a server and its URI. They are empty if they are missing or not strings.
func parseServerURI(encoded string) (server, uri string, err error) {
	object, err := decodeBase64(encoded)
	if err != nil {
		return "", "", errURIBase64
	}
	var parts [2]string
	err = serverURIPaths.Find(object, func(path int, v jsonspan.Value) {
		if v.Kind == jsonspan.String {
			parts[path] = string(jsonspan.AppendText(nil, v.Body(object)))
		}
	})
	if err != nil || !utf8.Valid(object) {
		return "", "", errURIJSON
	}
	return parts[0], parts[1], nil
}

// decodeBase64 decodes any variant of base64: standard or URL-safe, padded or not.
func decodeBase64(s string) ([]byte, error) {
	if strings.ContainsAny(s, "\r\n") {
		return nil, errors.New("a line break in base64") // decoding would ignore it
	}
	encoding := base64.RawURLEncoding
	if strings.ContainsAny(s, "+/") {
		encoding = base64.RawStdEncoding
	}
	if strings.HasSuffix(s, "=") {
		encoding = encoding.WithPadding(base64.StdPadding)
	}
	return encoding.DecodeString(s)
}

// ObservationURI returns the URI of an original that a mask has shortened.
func ObservationURI(id string) string { return observationPrefix + id }

// ParseObservationURI returns the id in an ObservationURI.
func ParseObservationURI(uri string) (id string, ok bool) {
	if id, ok = strings.CutPrefix(uri, observationPrefix); !ok {
		return "", false
	}
	return id, id != ""
}
