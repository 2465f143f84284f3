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

	// UIScheme begins the URIs of resources that hosts show to people: those of MCP Apps.
	UIScheme = "ui://"
	uiPrefix = UIScheme + "proxy/resource/"

	// ObservationTemplate is the template of the URIs of what masks left out.
	ObservationTemplate = observationPrefix + "{id}"
)

var (
	errForeignURI = errors.New("the URI is neither of the form " + resourcePrefix + "… nor " + templatePrefix +
		"… nor " + uiPrefix + "…")
	errURIBase64 = errors.New("what follows " + resourcePrefix + " is not base64")
	errURIJSON   = errors.New("what follows " + resourcePrefix + " is not base64 of JSON")
	errURIScheme = errors.New("what follows " + uiPrefix + " does not stand for a URI of the scheme ui")
	errURIServer = errors.New("the proxy URI does not say which server it means")
	errURIOwn    = errors.New("the proxy URI does not say which URI of the server it means")
)

// ResourceURI returns the URI under which clients know a resource of a server. It
// says all that is needed to read the resource, also in a session that never
// listed it.
func ResourceURI(server, uri string) string {
	return string(AppendResourceURI(nil, server, uri))
}

// AppendResourceURI appends to dst what ResourceURI returns.
func AppendResourceURI(dst []byte, server, uri string) []byte {
	return appendPlace(append(dst, resourcePrefix...), server, uri)
}

// UIResourceURI is ResourceURI for clients that look at the scheme: hosts of MCP Apps show
// nothing but ui://. Other URIs become what they become everywhere.
func UIResourceURI(server, uri string) string {
	if !strings.HasPrefix(uri, UIScheme) {
		return ResourceURI(server, uri)
	}
	return string(appendPlace([]byte(uiPrefix), server, uri))
}

// appendPlace appends base64 of a server and its URI.
func appendPlace(dst []byte, server, uri string) []byte {
	var room [512]byte
	place := append(room[:0], `{"server":`...)
	place = appendQuoted(place, server)
	place = append(place, `,"uri":`...)
	place = appendQuoted(place, uri)
	place = append(place, '}')
	return base64.RawURLEncoding.AppendEncode(dst, place)
}

// appendQuoted appends a string as JSON without escapes for HTML. URIs hardly ever
// need any.
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

// TemplateURI returns the template under which clients know a template of a
// server. Its variables stay as they are, so what a client makes of it is a prefix
// and the server's own URI.
func TemplateURI(server, template string) string {
	return templatePrefix + url.PathEscape(server) + "/" + template
}

// ParseURI returns whose resource a URI for clients stands for, and the URI it has
// there. It takes what ResourceURI and UIResourceURI return, with any flavour of base64, and
// what clients make of a TemplateURI.
func ParseURI(proxy string) (server, uri string, err error) {
	if rest, ok := strings.CutPrefix(proxy, templatePrefix); ok {
		server, uri, _ = strings.Cut(rest, "/")
		if server, err = url.PathUnescape(server); err != nil {
			return "", "", errURIServer
		}
	} else if rest, ok := strings.CutPrefix(proxy, resourcePrefix); ok {
		if server, uri, err = parsePlace(rest); err != nil {
			return "", "", err
		}
	} else if rest, ok := strings.CutPrefix(proxy, uiPrefix); ok {
		if server, uri, err = parsePlace(rest); err != nil {
			return "", "", err
		}
		if uri != "" && !strings.HasPrefix(uri, UIScheme) {
			return "", "", errURIScheme // hosts let apps read what their scheme says
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

var placePaths = jsonspan.CompilePaths("server", "uri")

// parsePlace reads the server and its URI of base64. They are empty if they are
// missing or not strings.
func parsePlace(encoded string) (server, uri string, err error) {
	place, err := decodeBase64(encoded)
	if err != nil {
		return "", "", errURIBase64
	}
	var parts [2]string
	err = placePaths.Find(place, func(path int, v jsonspan.Value) {
		if v.Kind == jsonspan.String {
			parts[path] = string(jsonspan.AppendText(nil, v.Body(place)))
		}
	})
	if err != nil || !utf8.Valid(place) {
		return "", "", errURIJSON
	}
	return parts[0], parts[1], nil
}

// decodeBase64 decodes base64 of any flavour: standard or URL-safe, padded or not.
func decodeBase64(s string) ([]byte, error) {
	if strings.ContainsAny(s, "\r\n") {
		return nil, errors.New("a line break in base64") // which decoding would ignore
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

// ObservationURI returns the URI of what a mask left out.
func ObservationURI(id string) string { return observationPrefix + id }

// ParseObservationURI returns what an ObservationURI was made of.
func ParseObservationURI(uri string) (id string, ok bool) {
	if id, ok = strings.CutPrefix(uri, observationPrefix); !ok {
		return "", false
	}
	return id, id != ""
}
