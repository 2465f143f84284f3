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

// A form asks for the arguments of a tool.
type form struct {
	Fields []field
	Open   bool   // any arguments can be given, as JSON
	Given  string // those, as they were entered
}

// A field of a form is an argument.
type field struct {
	mcpgateway.ToolArgument
	Kind  string // of its element: text, number, boolean, enum or json
	Value string // as it was entered
}

const (
	maxFields = 100 // of a form; a tool with more of them takes one JSON object

	fieldPrefix  = "argument." // begins the names of fields, which others cannot have
	givenName    = "arguments" // of the field for all others
	exampleChars = 100         // that a default is shown with
)

// newForm returns the form for a tool, with the values that were entered.
func newForm(arguments []mcpgateway.ToolArgument, open bool, entered url.Values) form {
	f := form{Open: open || len(arguments) > maxFields, Given: entered.Get(givenName)}
	if len(arguments) > maxFields {
		return f
	}
	for _, a := range arguments {
		field := field{ToolArgument: a, Kind: kindOf(&a)}
		// Forms have the line breaks of RFC 1866, whatever was entered.
		field.Value = strings.ReplaceAll(entered.Get(field.FormName()), "\r\n", "\n")
		f.Fields = append(f.Fields, field)
	}
	return f
}

// kindOf returns the kind of element that asks for an argument.
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

// FormName is the name of the field in what the form sends.
func (f *field) FormName() string { return fieldPrefix + f.Name }

// Step is how far two numbers are apart at least.
func (f *field) Step() string {
	if slices.Contains(f.Types, "number") {
		return "any"
	}
	return "1"
}

// Type says which types the argument may have.
func (f *field) Type() string {
	switch {
	case len(f.Types) > 0:
		return strings.Join(f.Types, " or ")
	case len(f.Enum) > 0:
		return "one of several"
	}
	return "any"
}

// Example is the default, if there is one.
func (f *field) Example() string {
	if len(f.Default) == 0 {
		return ""
	}
	return cut(plain(f.Default), exampleChars)
}

// An option is one of the values that an argument may have.
type option struct {
	Value    string // JSON
	Text     string
	Selected bool
}

// Options are the values of an enumeration.
func (f *field) Options() (options []option) {
	for _, value := range f.Enum {
		options = append(options, option{string(value), plain(value), f.Value == string(value)})
	}
	return options
}

// plain returns JSON in a form to read: a string without its quotes.
func plain(value json.RawMessage) string {
	var text string
	if json.Unmarshal(value, &text) == nil {
		return text
	}
	return string(value)
}

// fill adds what was entered to a call. What was left empty is not sent, unless it is required and may be empty.
func (f *form) fill(call *adminapi.ToolCall) error {
	call.Texts, call.Arguments = map[string]string{}, map[string]json.RawMessage{}
	if given := bytes.TrimSpace([]byte(f.Given)); f.Open && len(given) > 0 {
		if err := json.Unmarshal(given, &call.Arguments); err != nil || call.Arguments == nil {
			return errors.New("arguments: they must be a JSON object")
		}
	}
	for _, field := range f.Fields {
		switch {
		case field.Value == "" && (field.Kind != "text" || !field.Required):
		case field.Kind == "enum", field.Kind == "json" && len(field.Types) == 0:
			if !json.Valid([]byte(field.Value)) {
				return fmt.Errorf("%s: it must be JSON; a text stands in quotes", field.Name)
			}
			call.Arguments[field.Name] = json.RawMessage(field.Value)
		default:
			call.Texts[field.Name] = field.Value
		}
	}
	return nil
}
