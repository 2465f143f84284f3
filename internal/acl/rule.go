package acl

import (
	"errors"
	"fmt"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/words"
)

// kinds is a set of kinds of items that servers offer.
type kinds uint8

const (
	tools kinds = 1 << iota
	prompts
	resources

	everything = tools | prompts | resources
)

// A rule is a compiled Rule.
type rule struct {
	Rule
	kinds  kinds
	server string   // pattern with *
	name   string   // pattern with *, for tools and prompts
	prefix location // prefix, for resources
	whole  bool     // the rule selects all items of its kinds

	annotations mcp.Annotations // required of tools
}

// decision returns the decision of the rule. The rules before it may decide instead.
func (c *rule) decision(before ...*rule) Decision {
	return newDecision(c.Action, c, before)
}

// usesAnnotations reports whether the rule selects tools by their annotations.
func (c *rule) usesAnnotations() bool {
	return c.annotations != 0 || c.When != nil && c.When.UsesAnnotations()
}

// names reports whether the rule selects an item of this kind by its name.
func (c *rule) names(kind kinds, server, name string) bool {
	return c.kinds&kind != 0 && mcp.MatchName(c.server, server) && mcp.MatchName(c.name, name)
}

func compileRule(r Rule) (*rule, error) {
	c := &rule{Rule: r}
	kind, annotations, rest := cutKind(r.Pattern)
	c.kinds, c.annotations = kind, annotations
	var err error
	switch {
	case kind == resources:
		err = c.setPrefix(rest)
	case annotations != 0 && rest == "":
		c.server, c.name = "*", "*"
	case kind == 0 && collapseStars(rest) == "*":
		c.kinds, c.server, c.name, c.whole = everything, "*", "*", true
	default:
		err = c.setName(rest)
	}
	if err == nil {
		err = c.restrictToTools()
	}
	if err != nil {
		return nil, fmt.Errorf("pattern %q: %w", r.Pattern, err)
	}
	return c, nil
}

// restrictToTools removes other kinds from a rule that applies only to tools.
func (c *rule) restrictToTools() error {
	if c.annotations != 0 || c.When != nil {
		c.whole = false
	}
	if c.Action != Confirm && c.When == nil {
		return nil
	}
	if c.kinds &= tools; c.kinds == 0 {
		return errors.New("confirm and when are for tools only")
	}
	return nil
}

// cutKind returns the kind and the annotation that a pattern begins with, if any, and the rest. In
// tool::x, tool is a server. An annotation needs no rest.
func cutKind(pattern string) (kinds, mcp.Annotations, string) {
	word, rest, ok := strings.Cut(pattern, ":")
	if ok && strings.HasPrefix(rest, ":") && !strings.HasPrefix(rest, mcp.Separator) {
		return 0, 0, pattern
	}
	if annotation, known := mcp.ParseAnnotation(word); known && (rest != "" || !ok) {
		return tools, annotation, rest
	}
	if !ok {
		return 0, 0, pattern
	}
	switch word {
	case "tool":
		return tools, 0, rest
	case "prompt":
		return prompts, 0, rest
	case "resource":
		return resources, 0, rest
	}
	return 0, 0, pattern
}

// Qualified returns a pattern with the server in it renamed. A pattern without a server stays
// unchanged.
func Qualified(pattern string, rename func(server string) string) string {
	kind, _, rest := cutKind(pattern)
	server, name, ok := strings.Cut(rest, mcp.Separator)
	if !ok || server == "" || kind == resources && strings.ContainsAny(server, ":/") {
		return pattern
	}
	return strings.TrimSuffix(pattern, rest) + rename(server) + mcp.Separator + name
}

// setName reads server::name.
func (c *rule) setName(s string) error {
	server, name, ok := strings.Cut(s, mcp.Separator)
	if !ok {
		return fmt.Errorf("missing %s; write server::* for a whole server, server::tool for a tool, "+
			"resource:prefix for resources%s",
			mcp.Separator, words.DidYouMean(s, mcp.AnnotationNames()))
	}
	if server == "" || name == "" {
		return fmt.Errorf("one side of %s is empty; write * for all", mcp.Separator)
	}
	if kind, _, ok := strings.Cut(server, ":"); ok && c.kinds == 0 {
		return fmt.Errorf("unknown kind %q; use tool, prompt, resource, %s", kind,
			strings.Join(mcp.AnnotationNames(), ", "))
	}
	c.server, c.name = collapseStars(server), collapseStars(name)
	c.whole = c.name == "*"
	switch {
	case c.kinds != 0:
	case c.whole:
		c.kinds = everything
	default:
		c.kinds = tools
	}
	return nil
}

// setPrefix reads a prefix of URIs, with or without a server before it. Text before :: that has a
// colon or slash is part of a URI, not a server.
func (c *rule) setPrefix(s string) (err error) {
	c.server = "*"
	prefix := s
	if server, rest, ok := strings.Cut(s, mcp.Separator); ok && !strings.ContainsAny(server, ":/") {
		if server == "" {
			return fmt.Errorf("no server before %s; write * for all servers", mcp.Separator)
		}
		c.server, prefix = collapseStars(server), rest
	}
	switch {
	case prefix == "":
		return errors.New("no prefix; write * for all resources")
	case collapseStars(prefix) == "*":
		c.whole = true
		return nil
	case strings.Contains(prefix, "*"):
		return errors.New("a prefix cannot contain *; it selects everything below it anyway (write %2A for the character)")
	case strings.ContainsAny(prefix, "{}"):
		return errors.New("a prefix cannot contain variables (write %7B and %7D for the characters)")
	case strings.ContainsAny(prefix, "?#"):
		return errors.New("a prefix cannot contain a query or fragment, which are ignored (write %3F and %23 for the " +
			"characters)")
	}
	if c.prefix, err = locate(prefix); err != nil {
		return fmt.Errorf("prefix: %w", err)
	}
	return nil
}

// collapseStars replaces each run of * by one *, which means the same.
func collapseStars(s string) string {
	for strings.Contains(s, "**") {
		s = strings.ReplaceAll(s, "**", "*")
	}
	return s
}

// selects reports whether a location is below the prefix of the rule. An allow rule compares the
// exact location. A deny rule also compares the other readings that a server might use.
func (c *rule) selects(loc location) bool {
	if c.Action == Allow {
		return isWithin(loc.canonical, c.prefix.canonical)
	}
	for _, reading := range loc.readings {
		if isWithin(reading, c.prefix.readings[0]) {
			return true
		}
	}
	return false
}

// covers reports whether the rule selects every item that another rule selects. It matches the
// pattern of the other rule as if it were a name: only a * matches its *.
func (c *rule) covers(other *rule) bool {
	if c.When != nil || other.kinds&^c.kinds != 0 || c.annotations&^other.annotations != 0 ||
		!mcp.MatchName(c.server, other.server) {
		return false
	}
	if c.whole {
		return true
	}
	if c.kinds == resources {
		return c.selects(other.prefix)
	}
	return mcp.MatchName(c.name, other.name)
}

func (c *rule) String() string {
	text := c.Action.String()
	if c.When == nil || c.Pattern != "*" {
		text += " " + c.Pattern
	}
	if c.When != nil {
		text += " when " + c.When.String()
	}
	return text
}
