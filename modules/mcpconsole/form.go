package mcpconsole

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

// A form is the input form for the arguments of a tool.
type form struct {
	Fields []field
	Open   bool   // the form accepts further arguments as JSON
	Given  string // further arguments, as entered
}

// A field is the input for one argument.
type field struct {
	mcpgateway.ToolArgument
	Kind  string // text, number, boolean, enum or json
	Value string // as entered
}

const (
	maxFields = 100 // a form for a tool with more arguments has one field, for a JSON object

	fieldPrefix  = "argument." // distinguishes fields from other inputs
	givenName    = "arguments" // name of the input for further arguments
	exampleChars = 100         // maximum length of a shown default
)

// newForm returns the form of a tool, with the entered values.
func newForm(arguments []mcpgateway.ToolArgument, open bool, entered url.Values) form {
	f := form{Open: open || len(arguments) > maxFields, Given: entered.Get(givenName)}
	if len(arguments) > maxFields {
		return f
	}
	for _, a := range arguments {
		field := field{ToolArgument: a, Kind: kindOf(&a)}
		// Browsers send CRLF line breaks, whatever was entered.
		field.Value = strings.ReplaceAll(entered.Get(field.FormName()), "\r\n", "\n")
		f.Fields = append(f.Fields, field)
	}
	return f
}

// kindOf returns the kind of input for an argument.
func kindOf(a *mcpgateway.ToolArgument) string {
	types := slices.DeleteFunc(slices.Clone(a.Types), func(t string) bool { return t == "null" })
	isNumber := func(t string) bool { return t == "number" || t == "integer" }
	switch {
	case len(a.Enum) > 0:
		return "enum"
	case slices.Contains(types, "string"):
		return "text"
	case len(types) == 1 && types[0] == "boolean":
		return "boolean"
	case len(types) > 0 && !slices.ContainsFunc(types, func(t string) bool { return !isNumber(t) }):
		return "number"
	}
	return "json"
}

// FormName returns the name of the field in the form.
func (f *field) FormName() string { return fieldPrefix + f.Name }

// Step returns the step attribute of a number input.
func (f *field) Step() string {
	if slices.Contains(f.Types, "number") {
		return "any"
	}
	return "1"
}

// Type returns the types of the argument as text.
func (f *field) Type() string {
	switch {
	case len(f.Types) > 0:
		return strings.Join(f.Types, " or ")
	case len(f.Enum) > 0:
		return "one of several"
	}
	return "any"
}

// Example returns the default as text, if there is one.
func (f *field) Example() string {
	if len(f.Default) == 0 {
		return ""
	}
	return cut(plain(f.Default), exampleChars)
}

// An option is a value of an enum argument.
type option struct {
	Value    string // JSON
	Text     string
	Selected bool
}

// Options returns the values of an enum argument.
func (f *field) Options() (options []option) {
	for _, value := range f.Enum {
		options = append(options, option{string(value), plain(value), f.Value == string(value)})
	}
	return options
}

// plain returns JSON as text: a string without its quotes.
func plain(value json.RawMessage) string {
	var text string
	if json.Unmarshal(value, &text) == nil {
		return text
	}
	return string(value)
}

// fill adds the entered values to a call. Empty fields are left out, except required texts.
func (f *form) fill(call *adminapi.ToolCall) error {
	call.Texts, call.Arguments = map[string]string{}, map[string]json.RawMessage{}
	if given := bytes.TrimSpace([]byte(f.Given)); f.Open && len(given) > 0 {
		if err := json.Unmarshal(given, &call.Arguments); err != nil || call.Arguments == nil {
			return errors.New("arguments: must be a JSON object")
		}
	}
	for _, field := range f.Fields {
		switch {
		case field.Value == "" && (field.Kind != "text" || !field.Required):
		case field.Kind == "enum", field.Kind == "json" && len(field.Types) == 0:
			if !json.Valid([]byte(field.Value)) {
				return fmt.Errorf("%s: must be JSON; put text in quotes", field.Name)
			}
			call.Arguments[field.Name] = json.RawMessage(field.Value)
		default:
			call.Texts[field.Name] = field.Value
		}
	}
	return nil
}
