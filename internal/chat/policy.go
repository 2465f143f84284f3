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
	// WindowTurns is how many of the last turns keep their results. With 0 or
	// less nothing is masked at all.
	WindowTurns int

	// KeepErrors says which results are left alone because they are errors.
	KeepErrors Errors

	// KeepLastPerTool is how many results of each tool, counted from the end, are
	// kept beside those of the window. 0 or less: none.
	KeepLastPerTool int

	// MinChars is how many characters a result must have to be masked.
	MinChars int

	// ExcludeTools are patterns of the names of tools whose results are never
	// masked; * stands for any characters.
	ExcludeTools []string

	// StepTurns makes the boundary a multiple of it. 1 or less: any turn.
	StepTurns int

	// ClearAtLeast is how many tokens a step must mask, or [ClearAuto] to mask when it
	// pays at the prices of ReadPrice and WritePrice.
	ClearAtLeast int

	// ReadPrice and WritePrice are what a token costs that the provider has in
	// its cache, and one that it has not, in any unit.
	ReadPrice, WritePrice float64

	// MaxLoss is by how much [ClearAuto] may raise the bill of a conversation, as a
	// share, should that end right after a step.
	MaxLoss float64

	// Template is what stands in the place of a result. Without one it is
	// [DefaultTemplate].
	Template Template
}

// ClearAuto makes [Policy.ClearAtLeast] follow from the prices.
const ClearAuto = -1

// DefaultMaxLoss is little enough that few would notice.
const DefaultMaxLoss = 0.05

// The prices of a provider that asks a tenth for what it has in its cache, and a
// quarter more for what it has to put there.
const (
	DefaultReadPrice  = 0.1
	DefaultWritePrice = 1.25
)

// DefaultWindowTurns is what an agent usually still works with.
const DefaultWindowTurns = 8

// CharsPerToken turns characters into tokens where only their order of magnitude
// matters.
const CharsPerToken = 4

// MinCached is how many tokens a beginning must have for most providers to cache it.
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

// A Template is what stands in the place of a masked result.
type Template struct {
	source string
	parts  []part
	uses   [resultID + 1]int // how often each variable stands in it
	bytes  int               // of what stands around the variables, in JSON
	chars  int               // of the same
}

// A part of a template is a variable or text.
type part struct {
	variable variable
	text     string
	spelling string // how the text stands between the quotes of JSON
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

// DefaultTemplate is the text of T10.
var DefaultTemplate = must(ParseTemplate("[Observation masquée: résultat d’outil ancien " +
	"(tool_call_id={tool_call_id}, outil={tool_name}, chars={original_chars})]"))

// DefaultTemplateWithID is DefaultTemplate with the id by which the original is
// read back.
var DefaultTemplateWithID = must(ParseTemplate(strings.Replace(DefaultTemplate.source, ")]", ", id={id})]", 1)))

// unknownTool is the name of a tool whose name is not known.
var unknownTool = []byte("inconnu")

func must(t Template, err error) Template {
	if err != nil {
		panic(err)
	}
	return t
}

// ParseTemplate reads a template with the variables {tool_call_id}, {tool_name},
// {original_chars} and {id}.
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
			p := part{text: text, spelling: string(jsonspan.AppendBody(nil, text))}
			t.parts = append(t.parts, p)
			t.bytes += len(p.spelling)
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
				"unknown variable {%s}; there are {tool_call_id}, {tool_name}, {original_chars} and {id}", name)
		}
		t.parts = append(t.parts, part{variable: v})
		t.uses[v]++
		rest = after
	}
	return t, nil
}

// String returns what the template was made from.
func (t Template) String() string { return t.source }

// NamesCall reports whether the template says which call it stands for.
func (t Template) NamesCall() bool { return t.uses[toolCallID] > 0 }

// HasID reports whether the template has the id of the original.
func (t Template) HasID() bool { return t.uses[resultID] > 0 }

// A filling is what the variables of a template stand for in one place. The texts
// are as they stand between the quotes of JSON.
type filling struct {
	id, tool           []byte
	idChars, toolChars int
	chars              int
	resultID           string // only where it is appended
}

// append appends the template with its variables filled in.
func (t *Template) append(dst []byte, f filling) []byte {
	for _, p := range t.parts {
		switch p.variable {
		case none:
			dst = append(dst, p.spelling...)
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
	return t.filled(t.bytes, len(f.id), len(f.tool), digits), t.filled(t.chars, f.idChars, f.toolChars, digits)
}

// filled returns how long the template is if what stands around its variables is as long as
// text, and these are as long as the others.
func (t *Template) filled(text, id, tool, digits int) int {
	return text + t.uses[toolCallID]*id + t.uses[toolName]*tool +
		t.uses[originalChars]*digits + t.uses[resultID]*resultIDLen
}

// idPrefix begins the id of a result, as it does those of observation_mask: the same
// tool takes both.
const idPrefix = "obs_"

// resultIDLen is how many characters the id of a result has.
const resultIDLen = len(idPrefix) + store.HandleLen

// maxDigits is how many digits a number of characters may have to be believed.
const maxDigits = 12

// match reports whether text is the template, filled in for this call, and what
// it then says of the length of the original; 0 if it says nothing.
func (t *Template) match(text, id, tool []byte) (chars int, ok bool) {
	if t.uses[originalChars] == 0 {
		return 0, t.is(text, id, tool, nil)
	}
	// The number is where the first one stands, however many digits it has.
	at := text
	for _, p := range t.parts {
		if p.variable == originalChars {
			break
		}
		if at, ok = p.cut(at, id, tool, nil); !ok {
			return 0, false
		}
	}
	for n := 1; n <= min(len(at), maxDigits) && '0' <= at[n-1] && at[n-1] <= '9'; n++ {
		chars = 10*chars + int(at[n-1]-'0')
		if t.is(text, id, tool, at[:n]) {
			return chars, true
		}
	}
	return 0, false
}

// is reports whether text is the template with these values.
func (t *Template) is(text, id, tool, digits []byte) (ok bool) {
	for _, p := range t.parts {
		if text, ok = p.cut(text, id, tool, digits); !ok {
			return false
		}
	}
	return len(text) == 0
}

// cut returns what comes after the part, if text begins with it.
func (p *part) cut(text, id, tool, digits []byte) ([]byte, bool) {
	switch p.variable {
	case toolCallID:
		return bytes.CutPrefix(text, id)
	case toolName:
		return bytes.CutPrefix(text, tool)
	case originalChars:
		return bytes.CutPrefix(text, digits)
	case resultID: // of what, only the original could tell
		return store.CutHandle(text, idPrefix)
	}
	if len(text) < len(p.text) || string(text[:len(p.text)]) != p.text {
		return nil, false
	}
	return text[len(p.text):], true
}
