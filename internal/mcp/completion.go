package mcp

import (
	"bytes"
	"errors"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// A Completion is a request to complete an argument of a resource template. The zero value has an
// unknown template.
type Completion struct {
	template string
	argument string
	known    map[string]string // values of other arguments
}

var completionPaths = jsonspan.CompilePaths("params.ref.uri", "params.argument.name", "params.context.arguments")

// maxTemplate is the maximum length of a template that is expanded for each value, in bytes.
const maxTemplate = 8 << 10

// CompletionOf parses a request.
func CompletionOf(request []byte) (c Completion, err error) {
	c.known = map[string]string{}
	var invalid error
	text := func(v jsonspan.Value, data []byte) string {
		if v.Kind != jsonspan.String {
			invalid = errors.New("completion: an argument is not a string")
			return ""
		}
		return string(jsonspan.AppendText(nil, v.Body(data)))
	}
	err = completionPaths.FindExact(request, func(path int, v jsonspan.Value) {
		switch path {
		case 0:
			c.template = text(v, request)
		case 1:
			c.argument = text(v, request)
		case 2:
			object := request[v.Start:v.End]
			if v.Kind != jsonspan.BeginObject {
				return
			}
			for member := range jsonspan.Members(object) {
				c.known[member.Key] = text(member.Value, object)
			}
		}
	})
	if len(c.template) == 0 || len(c.template) > maxTemplate {
		invalid = errors.New("completion: the template is missing or too long")
	}
	return c, errors.Join(err, invalid)
}

// Expand returns the URIs that clients may build from the template with a value of the argument:
// with the value unchanged, and escaped. If another argument is unknown, they end in an expression.
// reached is false if that comes before the argument.
func (c Completion) Expand(value string) (uris []string, reached bool) {
	for _, escape := range []func(string) string{escapeStray, url.PathEscape} {
		var uri string
		uri, reached = c.expand(value, escape)
		uris = append(uris, uri)
	}
	return uris, reached
}

func (c Completion) expand(value string, escape func(string) string) (uri string, reached bool) {
	rest := c.template
	for {
		literal, after, open := strings.Cut(rest, "{")
		uri += literal
		if !open {
			return uri, reached
		}
		expression, after, _ := strings.Cut(after, "}")
		expanded, hasArgument, ok := c.expandExpression(expression, value, escape)
		if !ok {
			return uri + "{x}", reached // the name does not matter
		}
		uri += expanded
		reached = reached || hasArgument
		rest = after
	}
}

// expandExpression expands an expression of RFC 6570 whose variables are all known. hasArgument
// reports whether the argument is one of them.
func (c Completion) expandExpression(
	expression, value string, escape func(string) string,
) (expanded string, hasArgument, ok bool) {
	operator := ""
	if expression != "" && strings.ContainsRune("+#./;?&", rune(expression[0])) {
		operator, expression = expression[:1], expression[1:]
	}
	var values []string
	for name := range strings.SplitSeq(expression, ",") {
		name = strings.TrimSuffix(name, "*")
		text, known := c.known[name]
		if name == c.argument {
			text, known, hasArgument = value, true, true
		}
		if !known {
			return "", false, false // also with a prefix, as in {x:3}
		}
		text = escape(text)
		if strings.Contains(";?&", operator) && operator != "" {
			text = name + "=" + text
		}
		values = append(values, text)
	}
	switch operator {
	case "", "+":
		return strings.Join(values, ","), hasArgument, true
	case "#":
		return "#" + strings.Join(values, ","), hasArgument, true
	case "?":
		return "?" + strings.Join(values, "&"), hasArgument, true
	}
	return operator + strings.Join(values, operator), hasArgument, true
}

// escapeStray escapes characters that a URI cannot contain: braces, and a % that does not begin an
// escape.
func escapeStray(s string) string {
	s = strings.NewReplacer("{", "%7B", "}", "%7D").Replace(s)
	if _, err := url.PathUnescape(s); err != nil {
		return strings.ReplaceAll(s, "%", "%25")
	}
	return s
}

var completedPaths = jsonspan.CompilePaths(
	"result.completion.values.*", "result.completion.values", "result.completion.total",
)

var errCompletion = errors.New("the values of a completion are not a list")

// FilterCompletion returns a response with only the completion values that keep accepts. It reduces
// the total accordingly. All other bytes stay unchanged.
func FilterCompletion(message []byte, keep func(value string) bool) ([]byte, error) {
	var (
		edits   []jsonspan.Edit
		kept    [][]byte
		dropped int
		total   jsonspan.Value
		invalid bool
	)
	err := completedPaths.FindExact(message, func(path int, v jsonspan.Value) {
		switch path {
		case 0:
			if v.Kind == jsonspan.String && keep(string(jsonspan.AppendText(nil, v.Body(message)))) {
				kept = append(kept, message[v.Start:v.End])
			} else {
				dropped++
			}
		case 1:
			invalid = v.Kind != jsonspan.BeginArray
			list := slices.Concat([]byte("["), bytes.Join(kept, []byte(",")), []byte("]"))
			edits = append(edits, jsonspan.Edit{Start: v.Start, End: v.End, New: list})
		case 2:
			total = v
		}
	})
	switch {
	case err != nil:
		return message, err
	case invalid:
		return message, errCompletion
	case dropped == 0:
		return message, nil
	}
	if n, err := strconv.Atoi(string(message[total.Start:total.End])); err == nil {
		left := strconv.AppendInt(nil, int64(max(n-dropped, len(kept))), 10)
		edits = append(edits, jsonspan.Edit{Start: total.Start, End: total.End, New: left})
	}
	return jsonspan.Spliced(message, edits...), nil
}
