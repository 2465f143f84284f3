// Package mcp implements the names, headers and messages of the Model Context Protocol.
package mcp

import (
	"fmt"
	"strings"
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
