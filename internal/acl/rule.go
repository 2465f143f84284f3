package acl

import (
	"errors"
	"fmt"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/words"
)

// kinds are those of what servers offer.
type kinds uint8

const (
	tools kinds = 1 << iota
	prompts
	resources

	everything = tools | prompts | resources
)

// A rule is a Rule that was understood.
type rule struct {
	Rule
	kinds  kinds
	server string   // with *
	name   string   // with *, of tools and prompts
	at     location // of resources
	whole  bool     // all of these kinds that the server has

	annotations mcp.Annotations // that tools must have
}

// decision returns that of the rule on what it selects, unless one before it does.
func (c *rule) decision(before ...*rule) Decision {
	return newDecision(c.Action, c, before)
}

// usesAnnotations reports whether it depends on the annotations of a tool what the rule selects.
func (c *rule) usesAnnotations() bool {
	return c.annotations != 0 || c.When != nil && c.When.UsesAnnotations()
}

// names reports whether the rule is about something of this kind that has a name.
func (c *rule) names(kind kinds, server, name string) bool {
	return c.kinds&kind != 0 && mcp.MatchName(c.server, server) && mcp.MatchName(c.name, name)
}

func compile(r Rule) (rule, error) {
	c := rule{Rule: r}
	kind, annotations, rest := cutKind(r.Pattern)
	c.kinds, c.annotations = kind, annotations
	var err error
	switch {
	case kind == resources:
		err = c.setPrefix(rest)
	case annotations != 0 && rest == "":
		c.server, c.name = "*", "*"
	case kind == 0 && stars(rest) == "*":
		c.kinds, c.server, c.name, c.whole = everything, "*", "*", true
	default:
		err = c.setName(rest)
	}
	if err == nil {
		err = c.restrictToTools()
	}
	if err != nil {
		return rule{}, fmt.Errorf("pattern %q: %w", r.Pattern, err)
	}
	return c, nil
}

// restrictToTools has the rule select no others if it is one that is for tools only.
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

// cutKind returns the kind that a pattern says it selects, if any, and the annotation that it
// names. In tool::x, tool is a server. An annotation may stand alone.
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

// Qualified returns a pattern with the server that it names, if it names one, by the name
// that rename returns for it.
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
		return fmt.Errorf("it has no %s; for all of a server write server::*, for a tool server::tool, for resources resource:prefix%s",
			mcp.Separator, words.DidYouMean(s, mcp.AnnotationNames()))
	}
	if server == "" || name == "" {
		return fmt.Errorf("there is nothing on one side of %s; write * for all", mcp.Separator)
	}
	if kind, _, ok := strings.Cut(server, ":"); ok && c.kinds == 0 {
		return fmt.Errorf("there is no kind %q; there are tool, prompt, resource, %s", kind,
			strings.Join(mcp.AnnotationNames(), ", "))
	}
	c.server, c.name = stars(server), stars(name)
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

// setPrefix reads the prefix of URIs, with or without a server before it. What comes
// before :: is no server if it has a scheme of its own.
func (c *rule) setPrefix(s string) (err error) {
	c.server = "*"
	prefix := s
	if server, rest, ok := strings.Cut(s, mcp.Separator); ok && !strings.ContainsAny(server, ":/") {
		if server == "" {
			return fmt.Errorf("there is nothing before %s; write * for all servers", mcp.Separator)
		}
		c.server, prefix = stars(server), rest
	}
	switch {
	case prefix == "":
		return errors.New("there is no prefix; write * for all")
	case stars(prefix) == "*":
		c.whole = true
		return nil
	case strings.Contains(prefix, "*"):
		return errors.New("a prefix has no * in it, for all below it is selected anyway (%2A is the character)")
	case strings.ContainsAny(prefix, "{}"):
		return errors.New("a prefix has no variables in it (%7B and %7D are the characters)")
	case strings.ContainsAny(prefix, "?#"):
		return errors.New("a prefix has no query and no fragment, for they do not count (%3F and %23 are the characters)")
	}
	if c.at, err = locate(prefix); err != nil {
		return fmt.Errorf("prefix: %w", err)
	}
	return nil
}

// stars makes one * of many in a row, which say the same.
func stars(s string) string {
	for strings.Contains(s, "**") {
		s = strings.ReplaceAll(s, "**", "*")
	}
	return s
}

// selects reports whether what is at a location is below the prefix of the rule. An
// allow rule takes it at its word. A deny rule also selects what a server might take
// for the same.
func (c *rule) selects(at location) bool {
	if c.Action == Allow {
		return within(at.exact, c.at.exact)
	}
	for _, reading := range at.readings {
		if within(reading, c.at.readings[0]) {
			return true
		}
	}
	return false
}

// covers reports whether the rule selects all that another selects. To a pattern with
// *, the * of another is a character like any: only a * takes it.
func (c *rule) covers(other *rule) bool {
	if c.When != nil || other.kinds&^c.kinds != 0 || c.annotations&^other.annotations != 0 ||
		!mcp.MatchName(c.server, other.server) {
		return false
	}
	if c.whole {
		return true
	}
	if c.kinds == resources {
		return c.selects(other.at)
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
