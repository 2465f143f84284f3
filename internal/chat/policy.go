package chat

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/store"
)

// A Policy says which tool results are masked.
type Policy struct {
	// WindowTurns is how many of the last turns keep their results. 0 or less masks nothing.
	WindowTurns int

	// KeepErrors says which results are kept because they are errors.
	KeepErrors Errors

	// KeepLastPerTool is how many of the last results of each tool are kept, besides those of the
	// window. 0 or less: none.
	KeepLastPerTool int

	// MinChars is the smallest number of characters of a masked result.
	MinChars int

	// ExcludeTools are name patterns of tools whose results are never masked; * matches any
	// characters.
	ExcludeTools []string

	// StepTurns restricts the boundary to multiples of it. 1 or less: any turn.
	StepTurns int

	// ClearAtLeast is how many tokens a step must mask, or [ClearAuto] to mask when it pays at
	// ReadPrice and WritePrice.
	ClearAtLeast int

	// ReadPrice and WritePrice are the prices of a token in the provider's cache and of one that is
	// not, in any unit.
	ReadPrice, WritePrice float64

	// MaxLoss is the share by which [ClearAuto] may raise the bill of a conversation that ends
	// right after a step.
	MaxLoss float64

	// Template is the placeholder of a result. Default: [DefaultTemplate]
	Template Template
}

// ClearAuto derives [Policy.ClearAtLeast] from the prices.
const ClearAuto = -1

// DefaultMaxLoss is small enough to go unnoticed.
const DefaultMaxLoss = 0.05

// Relative prices of a provider that charges a tenth for cached tokens, and a quarter more for
// writing to the cache.
const (
	DefaultReadPrice  = 0.1
	DefaultWritePrice = 1.25
)

// DefaultWindowTurns covers what an agent usually still works with.
const DefaultWindowTurns = 8

// CharsPerToken converts characters to tokens where an estimate is enough.
const CharsPerToken = 4

// MinCached is the smallest prefix in tokens that most providers cache.
const MinCached = 1024

func (p *Policy) template() *Template {
	if p.Template.parts == nil {
		return &DefaultTemplate
	}
	return &p.Template
}

// excludes reports whether results of this tool are never masked.
func (p *Policy) excludes(tool []byte) bool {
	return len(p.ExcludeTools) > 0 && slices.ContainsFunc(p.ExcludeTools, func(pattern string) bool {
		return mcp.MatchName(pattern, string(tool))
	})
}

// A Template is the text of a placeholder.
type Template struct {
	source string
	parts  []part
	uses   [resultID + 1]int // occurrences of each variable
	bytes  int               // JSON length of the text around the variables
	chars  int               // characters of the text around the variables
}

// A part is a variable or a text of a template.
type part struct {
	variable variable
	text     string
	encoded  string // JSON encoding of the text, without quotes
}

type variable uint8

const (
	none variable = iota
	toolCallID
	toolName
	originalChars
	resultID
)

var variables = map[string]variable{
	"tool_call_id":   toolCallID,
	"tool_name":      toolName,
	"original_chars": originalChars,
	"id":             resultID,
}

// DefaultTemplate is the placeholder that T10 specifies.
var DefaultTemplate = must(ParseTemplate("[Observation masquée: résultat d’outil ancien " +
	"(tool_call_id={tool_call_id}, outil={tool_name}, chars={original_chars})]"))

// DefaultTemplateWithID is DefaultTemplate with the id of the original.
var DefaultTemplateWithID = must(ParseTemplate(strings.Replace(DefaultTemplate.source, ")]", ", id={id})]", 1)))

// unknownTool replaces an unknown tool name.
var unknownTool = []byte("inconnu")

func must(t Template, err error) Template {
	if err != nil {
		panic(err)
	}
	return t
}

// ParseTemplate parses a template with the variables {tool_call_id}, {tool_name}, {original_chars}
// and {id}.
func ParseTemplate(source string) (Template, error) {
	if source == "" {
		return Template{}, errors.New("is empty")
	}
	t := Template{source: source}
	for rest := source; rest != ""; {
		brace := strings.IndexAny(rest, "{}")
		if brace < 0 {
			brace = len(rest)
		}
		if brace > 0 {
			text := strings.ToValidUTF8(rest[:brace], "\uFFFD")
			p := part{text: text, encoded: string(jsonspan.AppendBody(nil, text))}
			t.parts = append(t.parts, p)
			t.bytes += len(p.encoded)
			t.chars += utf8.RuneCountInString(text)
			rest = rest[brace:]
			continue
		}
		name, after, closed := strings.Cut(rest[1:], "}")
		if rest[0] == '}' || !closed || strings.Contains(name, "{") {
			return Template{}, fmt.Errorf("%q has an unbalanced brace", source)
		}
		v, known := variables[name]
		if !known {
			return Template{}, fmt.Errorf(
				"unknown variable {%s}; expected {tool_call_id}, {tool_name}, {original_chars} or {id}", name)
		}
		t.parts = append(t.parts, part{variable: v})
		t.uses[v]++
		rest = after
	}
	return t, nil
}

// String returns the source of the template.
func (t Template) String() string { return t.source }

// NamesCall reports whether the template contains {tool_call_id}.
func (t Template) NamesCall() bool { return t.uses[toolCallID] > 0 }

// HasID reports whether the template contains {id}.
func (t Template) HasID() bool { return t.uses[resultID] > 0 }

// A filling holds the values of a template's variables. Texts are JSON-encoded, without quotes.
type filling struct {
	id, tool           []byte
	idChars, toolChars int
	chars              int
	resultID           string // only for append
}

// append appends the template with its variables replaced.
func (t *Template) append(dst []byte, f filling) []byte {
	for _, p := range t.parts {
		switch p.variable {
		case none:
			dst = append(dst, p.encoded...)
		case toolCallID:
			dst = append(dst, f.id...)
		case toolName:
			dst = append(dst, f.tool...)
		case originalChars:
			dst = strconv.AppendInt(dst, int64(f.chars), 10)
		case resultID:
			dst = append(dst, f.resultID...)
		}
	}
	return dst
}

// size returns how many bytes and characters append appends.
func (t *Template) size(f filling) (bytes, chars int) {
	digits := 1
	for n := f.chars; n >= 10; n /= 10 {
		digits++
	}
	return t.filledLen(t.bytes, len(f.id), len(f.tool), digits), t.filledLen(t.chars, f.idChars, f.toolChars, digits)
}

// filledLen returns the length of the template, given the lengths of the text around its variables
// and of their values.
func (t *Template) filledLen(text, id, tool, digits int) int {
	return text + t.uses[toolCallID]*id + t.uses[toolName]*tool +
		t.uses[originalChars]*digits + t.uses[resultID]*resultIDLen
}

// idPrefix begins the id of a result, as those of observation_mask: the same tool takes both.
const idPrefix = "obs_"

// resultIDLen is the length of a result's id.
const resultIDLen = len(idPrefix) + store.HandleLen

// maxDigits bounds the digits of a plausible number of characters.
const maxDigits = 12

// match reports whether text is the template, filled in for this call. It also returns the length
// of the original in characters, 0 if the template does not have it.
func (t *Template) match(text, id, tool []byte) (chars int, ok bool) {
	if t.uses[originalChars] == 0 {
		return 0, t.equals(text, id, tool, nil)
	}
	// The number begins at its first occurrence. Try all lengths.
	rest := text
	for _, p := range t.parts {
		if p.variable == originalChars {
			break
		}
		rest, ok = p.cut(rest, id, tool, nil)
		if !ok {
			return 0, false
		}
	}
	for n := 1; n <= min(len(rest), maxDigits) && '0' <= rest[n-1] && rest[n-1] <= '9'; n++ {
		chars = 10*chars + int(rest[n-1]-'0')
		if t.equals(text, id, tool, rest[:n]) {
			return chars, true
		}
	}
	return 0, false
}

// equals reports whether text is the template with these values.
func (t *Template) equals(text, id, tool, digits []byte) (ok bool) {
	for _, p := range t.parts {
		text, ok = p.cut(text, id, tool, digits)
		if !ok {
			return false
		}
	}
	return len(text) == 0
}

// cut removes the part from the beginning of text, if text begins with it.
func (p *part) cut(text, id, tool, digits []byte) ([]byte, bool) {
	switch p.variable {
	case toolCallID:
		return bytes.CutPrefix(text, id)
	case toolName:
		return bytes.CutPrefix(text, tool)
	case originalChars:
		return bytes.CutPrefix(text, digits)
	case resultID: // any id: it cannot be checked without the original
		return store.CutHandle(text, idPrefix)
	}
	if len(text) < len(p.text) || string(text[:len(p.text)]) != p.text {
		return nil, false
	}
	return text[len(p.text):], true
}
