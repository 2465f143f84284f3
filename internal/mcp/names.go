// Package mcp implements the names, headers and messages of the Model Context Protocol.
package mcp

import (
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// Separator separates server and tool names wherever people read or write them: in configuration,
// logs, metrics and the admin API.
const Separator = "::"

// A Pattern selects tools by server::tool. In both parts * stands for any characters, or none.
type Pattern struct {
	server, tool string
}

// ParsePattern parses a Pattern.
func ParsePattern(s string) (Pattern, error) {
	server, tool, ok := strings.Cut(s, Separator)
	if !ok || server == "" || tool == "" {
		return Pattern{}, fmt.Errorf("%q is not of the form server%stool", s, Separator)
	}
	return Pattern{server, tool}, nil
}

// Match reports whether p selects this tool of this server.
func (p Pattern) Match(server, tool string) bool {
	return MatchName(p.server, server) && MatchName(p.tool, tool)
}

// MatchName reports whether a name matches a pattern, in which * stands for any characters, or
// none.
func MatchName(pattern, s string) bool {
	head, rest, star := strings.Cut(pattern, "*")
	if !star {
		return s == pattern
	}
	s, ok := strings.CutPrefix(s, head)
	if !ok {
		return false
	}
	for {
		part, after, more := strings.Cut(rest, "*")
		if !more {
			return strings.HasSuffix(s, part)
		}
		i := strings.Index(s, part)
		if i < 0 {
			return false
		}
		s, rest = s[i+len(part):], after
	}
}

// Naming says how the names of a server and of its tools and prompts are joined.
type Naming struct {
	Separator string // "": one server only, names stay unchanged
	Longest   int    // maximum length of a joined name in bytes; 0 for no limit
}

const (
	digestLength = 10 // length of the digest at the end of a shortened name
	minToolName  = 16 // minimum length that a server name must leave for tool names
	maxSeparator = 8
)

// digestText uses only letters and digits, because hosts refuse many other characters in names.
var digestText = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567")

// Join returns the name of a tool or prompt of a server for clients.
//
// A name that is too long ends in a digest of the full name. So does a name that only looks like
// that: otherwise a server could offer a tool under the shortened name of another. The server name,
// which Check found short enough, is never cut.
func (n Naming) Join(server, name string) string {
	if n.Separator == "" {
		return name
	}
	joined := server + n.Separator + name
	if n.Longest == 0 || len(joined) <= n.Longest && !n.MayBeShort(joined) {
		return joined
	}
	prefix := len(server) + len(n.Separator)
	room := max(n.Longest-digestLength-1, prefix)
	cut := min(room, len(joined))
	for cut > prefix && cut < len(joined) && !utf8.RuneStart(joined[cut]) {
		cut--
	}
	// Fill the space of a cut character, because a shortened name is recognized by its length.
	return joined[:cut] + strings.Repeat("_", room-cut+1) + digest(server, name)
}

func digest(server, name string) string {
	sum := sha256.Sum256([]byte(server + "\x00" + name))
	return digestText.EncodeToString(sum[:])[:digestLength]
}

// MayBeShort reports whether a joined name may be a shortened one. Its tool must then be looked up
// in the server's list: Join of its name returns the same.
func (n Naming) MayBeShort(joined string) bool {
	if n.Separator == "" || n.Longest == 0 || len(joined) != n.Longest || len(joined) <= digestLength {
		return false
	}
	end := joined[len(joined)-digestLength-1:]
	return end[0] == '_' && strings.Trim(end[1:], "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}

// Split returns the server and the tool or prompt of a joined name. It also accepts [Separator].
// Server names contain no separator, so the first one divides; the rest may contain more.
func (n Naming) Split(joined string, known func(server string) bool) (server, name string, ok bool) {
	if n.Separator == "" {
		return "", "", false
	}
	for _, separator := range []string{n.Separator, Separator} {
		if server, name, ok = strings.Cut(joined, separator); ok && known(server) {
			return server, name, true
		}
	}
	return "", "", false
}

// Check returns why a server cannot have this name.
func (n Naming) Check(server string) error {
	if server == "" {
		return errors.New("name is empty")
	}
	for _, separator := range []string{n.Separator, Separator} {
		switch {
		case separator == "":
		case strings.Contains(server, separator):
			return fmt.Errorf("name: %q contains %s, which separates server and tool names", server, separator)
		case strings.Index(server+separator, separator) != len(server):
			return fmt.Errorf("name: %q overlaps with %s, which separates server and tool names: its end is ambiguous",
				server, separator)
		}
	}
	if n.Separator == "" || n.Longest == 0 {
		return nil
	}
	if limit := n.Longest - len(n.Separator) - minToolName; len(server) > limit {
		return fmt.Errorf("name: %q has %d characters, but max_name_length %d leaves room for %d",
			server, len(server), n.Longest, max(limit, 0))
	}
	return nil
}

// CheckSeparator returns why the separator is invalid.
func (n Naming) CheckSeparator() error {
	if n.Separator == "" {
		return nil
	}
	if len(n.Separator) > maxSeparator {
		return fmt.Errorf("separator: %q is longer than %d characters", n.Separator, maxSeparator)
	}
	if n.Separator != Separator && strings.Contains(n.Separator, ":") {
		// Tools can always be called with ::, which would become ambiguous.
		return fmt.Errorf("separator: %q contains a colon, which only %s may", n.Separator, Separator)
	}
	plain := true
	for _, c := range n.Separator {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.ContainsRune("_.:/-", c):
			plain = false
		default:
			return fmt.Errorf("separator: %q contains %q; allowed are letters, digits and _ . : / -", n.Separator, c)
		}
	}
	if plain {
		return fmt.Errorf("separator: %q has only letters and digits, like names: add one of _ . : / -", n.Separator)
	}
	return nil
}

// longestName is the maximum length of names in logs and error messages, in characters. MCP allows
// 128.
const longestName = 256

// Shortened returns a name from a client or server as logs and errors repeat it.
func Shortened(name string) string {
	chars := 0
	for i := range name {
		if chars == longestName {
			return strings.ToValidUTF8(name[:i], "") + "…"
		}
		chars++
	}
	return name
}

// longestLine is the maximum length of an error of a server in logs and in the admin API, in
// characters.
const longestLine = 500

// OneLine returns a text of a server for operators: on one line, shortened, and with control
// characters escaped, because terminals may interpret them.
func OneLine(text string) string {
	text = colors.ReplaceAllString(strings.TrimSpace(text), "")
	var line strings.Builder
	chars := 0
	for _, r := range text {
		chars++
		if chars > longestLine {
			line.WriteString("…")
			break
		}
		switch {
		case r == '\t':
			line.WriteByte(' ')
		case strconv.IsPrint(r):
			line.WriteRune(r)
		default:
			quoted := strconv.QuoteRuneToASCII(r)
			line.WriteString(quoted[1 : len(quoted)-1])
		}
	}
	return line.String()
}

// colors are escape sequences with which programs color their output.
var colors = regexp.MustCompile("\x1b\\[[0-9;]*m")

// A Target is the object of a request, such as a tool.
type Target struct {
	Server string // "" for none in particular
	Kind   TargetKind
	Name   string // name of the tool or prompt, or the URI of the resource at the server
}

// A TargetKind is the kind of a Target.
type TargetKind uint8

// Kinds of targets.
const (
	Anything TargetKind = iota
	Tool
	Prompt
	Resource
	Other // a task, or anything MCP does not define
)

// String returns the name of the kind.
func (k TargetKind) String() string {
	return [...]string{"", "tool", "prompt", "resource", "other"}[k]
}

// HasTarget reports whether requests of a method have a tool, a prompt, a resource or a task as
// their target.
func HasTarget(method string) bool {
	switch method {
	case "tools/call", "prompts/get", "completion/complete",
		"resources/read", "resources/subscribe", "resources/unsubscribe", "resources/directory/read", "skills/get",
		"tasks/get", "tasks/result", "tasks/cancel", "tasks/update":
		return true
	}
	return false
}

// TargetOf returns the target of a message to a server, as the server parses it. ok is false if
// that is ambiguous: a name is not a string, or there are two.
func TargetOf(server string, m *jsonrpc.Message) (target Target, ok bool) {
	named := func(kind TargetKind, f jsonrpc.Field) (Target, bool) {
		return Target{server, kind, m.Text(f)}, m.Kind(f) == jsonspan.String
	}
	method := m.Text(jsonrpc.Method)
	switch method {
	case "tools/call":
		return named(Tool, jsonrpc.Name)
	case "prompts/get":
		return named(Prompt, jsonrpc.Name)
	case "resources/read", "resources/subscribe", "resources/unsubscribe", "resources/directory/read", "skills/get":
		return named(Resource, jsonrpc.URI)
	case "completion/complete":
		switch {
		case m.Has(jsonrpc.RefURI) && m.Has(jsonrpc.RefName):
			return Target{Server: server}, false
		case m.Has(jsonrpc.RefURI):
			return named(Resource, jsonrpc.RefURI)
		}
		return named(Prompt, jsonrpc.RefName)
	}
	_, known := KnownMethod(method)
	notifies := strings.HasPrefix(method, "notifications/") && !m.Has(jsonrpc.ID)
	if m.Has(jsonrpc.Method) && (!known || strings.HasPrefix(method, "tasks/")) && !notifies {
		return Target{Server: server, Kind: Other}, true
	}
	return Target{Server: server}, true
}
