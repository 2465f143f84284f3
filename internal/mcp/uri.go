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

// An expansion describes what clients may insert for an expression of RFC 6570: nothing, or a first
// character followed by any but some characters.
type expansion struct {
	first byte   // 0 for any
	never string // characters that cannot follow
}

// expansions are the expansions by operator. Slashes, queries and fragments come only from
// operators that allow them.
var expansions = map[byte]expansion{
	'+': {0, ""},
	'#': {'#', ""},
	'.': {'.', "/?#"},
	'/': {'/', "?#"},
	';': {';', "/?#"},
	'?': {'?', "#"},
	'&': {'&', "#"},
}

// Limits for matching: expressions of a template, and bytes of a URI.
const maxExpressions, longestMatched = 32, 2 << 10

// MatchTemplate reports whether a URI can be expanded from a URI template of RFC 6570. The template
// must begin with the scheme: one that matches all URIs is useless. It takes time linear in the
// length of the URI.
func MatchTemplate(template, uri string) bool {
	beginning, rest, open := strings.Cut(template, "{")
	if !open || len(template) > maxTemplate || len(uri) > longestMatched ||
		!strings.Contains(beginning, ":") || !strings.HasPrefix(uri, beginning) {
		return false
	}
	uri = uri[len(beginning):]
	ends := make([]bool, len(uri)+1) // positions in the URI where the template read so far may end
	ends[0] = true
	for range maxExpressions {
		expression, after, closed := strings.Cut(rest, "}")
		if !closed || expression == "" {
			return false
		}
		e, ok := expansions[expression[0]]
		if !ok {
			e = expansion{0, "/?#"}
		}
		e.extend(ends, uri)
		var literal string
		literal, rest, open = strings.Cut(after, "{")
		for i := len(uri); i >= 0; i-- {
			start := i - len(literal)
			ends[i] = start >= 0 && ends[start] && uri[start:i] == literal
		}
		if !open {
			return ends[len(uri)]
		}
	}
	return false
}

// extend adds the positions that the expression can reach.
func (e expansion) extend(ends []bool, uri string) {
	inside := false
	for i, begins := range ends {
		inside = inside || begins && e.first == 0
		ends[i] = begins || inside
		if i == len(uri) {
			break
		}
		inside = inside && strings.IndexByte(e.never, uri[i]) < 0 || begins && e.first != 0 && uri[i] == e.first
	}
}

// Limits of Mentions: the number of URIs, and the length of each in bytes.
const maxMentions, longestMention = 64, 1 << 10

// Mentions returns the URIs with an authority that occur in a text, one per line. A URI ends at the
// first character that URIs cannot contain. Punctuation at its end is not part of it.
func Mentions(text string) string {
	var found []string
	for len(found) < maxMentions {
		i := strings.Index(text, "://")
		if i < 0 {
			break
		}
		start := i
		for start > 0 && inScheme(text[start-1]) {
			start--
		}
		end := len(text)
		if n := strings.IndexFunc(text[i:], notInURI); n >= 0 {
			end = i + n
		}
		uri := strings.TrimRight(text[start:end], ".,;:!?')]*_")
		if start < i && i+len("://") < start+len(uri) && len(uri) <= longestMention {
			found = append(found, uri)
		}
		text = text[end:]
	}
	return strings.Join(found, "\n")
}

// IsMentioned reports whether a URI is one of those that Mentions returned.
func IsMentioned(mentions, uri string) bool {
	for line := range strings.SplitSeq(mentions, "\n") {
		if line == uri {
			return uri != ""
		}
	}
	return false
}

func inScheme(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("+-.", c) >= 0
}

func notInURI(c rune) bool { return c <= ' ' || c == 0x7f || strings.ContainsRune("\"<>\\^`{|}", c) }
