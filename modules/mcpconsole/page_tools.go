package mcpconsole

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolschema"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

var toolsPage = page{
	pattern: "/tools", name: "tools", title: "Tools",
	show: func(v *consoleRequest) (any, error) {
		query := v.r.URL.Query()
		filter := toolFilter{
			Text: query.Get("q"), Gateway: query.Get("gateway"), Server: query.Get("server"), Client: query.Get("client"),
			All: query.Get("all") != "",
		}
		clients, err := clientNames(v, filter.Gateway)
		if err != nil {
			return nil, err
		}
		overview, err := get[adminapi.Overview](v, "/overview")
		if err != nil {
			return nil, err
		}
		listing, err := get[adminapi.ToolListing](v, "/tools?"+
			url.Values{"client": {filter.Client}, "gateway": {filter.Gateway}}.Encode())
		if err != nil {
			return nil, err
		}
		view := newToolsView(&listing, filter)
		view.Clients = clients
		for _, g := range overview.Gateways {
			if !slices.Contains(view.Gateways, g.Label()) {
				view.Gateways = append(view.Gateways, g.Label())
			}
		}
		return view, nil
	},
}

// A toolFilter selects the tools to show.
type toolFilter struct {
	Text, Gateway, Server, Client string
	All                           bool // without the limit
}

// A toolsView is the data of the tools page.
type toolsView struct {
	toolFilter
	Sums                       []toolSum // by gateway, of all tools
	Count                      int       // number of all tools
	Found, FoundTokens         int       // matching tools and their tokens
	Tools                      []toolRow
	More                       int // matching tools not shown
	Failed                     []adminapi.ToolFailure
	Gateways, Servers, Clients []string // options of the filter
}

// A toolSum is the cost of a gateway's tools.
type toolSum struct {
	Gateway                    string
	Count, Tokens, FocusTokens int
}

// Tools returns the number of tools as text.
func (s toolSum) Tools() string { return plural(s.Count, "tool") }

// A toolRow is a tool in the list.
type toolRow struct {
	*adminapi.ToolStatus
}

// Page returns the path of the tool's page.
func (r toolRow) Page() string { return toolPath(r.Name) }

// Owner returns the server of the tool.
func (r toolRow) Owner() string { return cmp.Or(r.Server, "the gateway") }

// Users returns which clients may use the tool.
func (r toolRow) Users() string { return allowedClients(r.ToolStatus) }

func toolPath(name string) string { return "/tools/" + url.PathEscape(name) }

// allowedClients returns which clients may use a tool, as text.
func allowedClients(t *adminapi.ToolStatus) string {
	switch {
	case t.Clients == nil || t.AllClients:
		return "all clients"
	case len(t.Clients) == 0:
		return "no client"
	}
	return strings.Join(t.Clients, ", ")
}

// maxTools is how many tools are shown by default.
const maxTools = 200

func newToolsView(listing *adminapi.ToolListing, filter toolFilter) *toolsView {
	view := &toolsView{toolFilter: filter, Count: len(listing.Tools), Failed: listing.Failed}
	words := strings.Fields(strings.ToLower(filter.Text))
	for i := range listing.Tools {
		tool := &listing.Tools[i]
		sum := view.sum(tool.Label())
		sum.Count++
		sum.Tokens += tool.Tokens
		sum.FocusTokens += tool.FocusTokens
		if tool.Server != "" && !slices.Contains(view.Servers, tool.Server) {
			view.Servers = append(view.Servers, tool.Server)
		}
		if filter.Server != "" && tool.Server != filter.Server || !hasWords(tool, words) {
			continue
		}
		view.Found++
		view.FoundTokens += tool.Tokens
		if len(view.Tools) == maxTools && !filter.All {
			view.More++
			continue
		}
		view.Tools = append(view.Tools, toolRow{tool})
	}
	slices.Sort(view.Servers)
	return view
}

// sum returns the sum of a gateway, which it adds if missing.
func (v *toolsView) sum(gateway string) *toolSum {
	for i := range v.Sums {
		if v.Sums[i].Gateway == gateway {
			return &v.Sums[i]
		}
	}
	v.Sums = append(v.Sums, toolSum{Gateway: gateway})
	return &v.Sums[len(v.Sums)-1]
}

// Share returns a tool's share of the tokens of its gateway's tools.
func (v *toolsView) Share(r toolRow) string {
	return percent(float64(r.Tokens), float64(v.sum(r.Label()).Tokens))
}

// Narrowed reports whether the filter excludes tools.
func (v *toolsView) Narrowed() bool { return v.Found < v.Count }

// hasWords reports whether the names, title, description and server of a tool contain all words.
func hasWords(t *adminapi.ToolStatus, words []string) bool {
	text := strings.ToLower(strings.Join([]string{t.Name, t.Original, t.Title, t.Description, t.Server}, "\n"))
	return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(text, word) })
}

// clientNames returns the names of the clients of a gateway, or of all, without the operator.
func clientNames(v *consoleRequest, gateway string) (names []string, err error) {
	clients, err := get[[]mcpgateway.GatewayClient](v, "/clients?gateway="+url.QueryEscape(gateway))
	for _, client := range clients {
		if client.Name != access.OperatorLabel && !slices.Contains(names, client.Name) {
			names = append(names, client.Name)
		}
	}
	return names, err
}

var toolPage = page{
	pattern: "/tools/{tool}", name: "tool", title: "Tool",
	show: func(v *consoleRequest) (any, error) {
		query := v.r.URL.Query()
		// Do not fill in other values from the URL: another site may have linked to it.
		return newToolView(v, url.Values{"gateway": query["gateway"], "client": query["client"]})
	},
}

// A toolView is the data of a tool's page.
type toolView struct {
	*adminapi.ToolDetail
	Description string // unshortened
	Arguments   []toolschema.Argument
	Schema      string // input schema
	Output      string // output schema, or empty
	Clients     []string
	Client      string // client whose decision is shown, and as which the tool is called
	Form        form
	Risky       bool // not marked read-only, or marked destructive
	Tried       *trial
}

// newToolView returns the tool that a request names, with a form that has the entered values.
func newToolView(v *consoleRequest, entered url.Values) (*toolView, error) {
	gateway, client := entered.Get("gateway"), entered.Get("client")
	clients, err := clientNames(v, gateway)
	if err != nil {
		return nil, err
	}
	detail, err := get[adminapi.ToolDetail](v, toolPath(v.r.PathValue("tool"))+
		"?"+url.Values{"client": {client}, "gateway": {gateway}}.Encode())
	if err != nil {
		return nil, err
	}
	return buildToolView(&detail, clients, client, entered), nil
}

func buildToolView(detail *adminapi.ToolDetail, clients []string, client string, entered url.Values) *toolView {
	var definition struct {
		Description  string          `json:"description"`
		InputSchema  json.RawMessage `json:"inputSchema"`
		OutputSchema json.RawMessage `json:"outputSchema"`
	}
	_ = json.Unmarshal(detail.Definition, &definition) // members of another type are left out
	arguments, open := toolschema.ReadArguments(detail.Definition, detail.WithoutFocus)
	return &toolView{
		ToolDetail: detail, Description: definition.Description, Arguments: arguments,
		Schema: indented(definition.InputSchema), Output: indented(definition.OutputSchema),
		Clients: clients, Client: client, Form: newForm(arguments, open, entered), Risky: isRisky(detail.Annotations),
	}
}

func (v *toolView) title() string { return v.Name }

// Page returns the path of the page.
func (v *toolView) Page() string { return toolPath(v.Name) }

// Shown returns the arguments, at most as many as a form has fields.
func (v *toolView) Shown() []field {
	return newForm(v.Arguments[:min(len(v.Arguments), maxFields)], false, nil).Fields
}

// Users returns which clients may use the tool.
func (v *toolView) Users() string { return allowedClients(&v.ToolStatus) }

// isRisky reports whether a tool with these annotations may change something.
func isRisky(annotations string) bool {
	words := strings.Fields(annotations)
	return !slices.Contains(words, "read_only") || slices.Contains(words, "destructive")
}

// callAction calls a tool and shows its page again with the result.
var callAction = action{toolPage.pattern, func(v *consoleRequest) (string, error) {
	tried := toolPage
	tried.show = func(v *consoleRequest) (any, error) {
		view, err := newToolView(v, v.r.PostForm)
		if err == nil {
			view.Tried = view.try(v)
		}
		return view, err
	}
	v.show(&tried)
	return "", nil
}}

// try calls the tool with the entered values.
func (v *toolView) try(request *consoleRequest) *trial {
	if v.Risky && request.r.PostFormValue("sure") == "" {
		return &trial{Error: "Confirm that you are sure: the tool may change something."}
	}
	call := adminapi.ToolCall{Tool: v.Name, Client: v.Client, Both: true}
	if err := v.Form.fill(&call); err != nil {
		return &trial{Error: err.Error()}
	}
	report, err := post[adminapi.CallReport](request, "/call?gateway="+url.QueryEscape(v.Label()), call)
	if err != nil {
		return &trial{Error: err.Error()}
	}
	return &trial{Seconds: report.Seconds, Panes: []pane{
		newPane("As the agent gets it", report.Result), newPane("As the server sent it", report.Raw),
	}}
}

// A trial is the result of a call from the console.
type trial struct {
	Error   string // why there is no result, or empty
	Seconds float64
	Panes   []pane
}

// Cut reports whether the agent gets less than the server sent.
func (t *trial) Cut() bool { return len(t.Panes) == 2 && t.Panes[0].Bytes < t.Panes[1].Bytes }

// A form is the input form for the arguments of a tool.
type form struct {
	Fields []field
	Open   bool   // the form accepts further arguments as JSON
	Given  string // further arguments, as entered
}

// A field is the input for one argument.
type field struct {
	toolschema.Argument
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
func newForm(arguments []toolschema.Argument, open bool, entered url.Values) form {
	f := form{Open: open || len(arguments) > maxFields, Given: entered.Get(givenName)}
	if len(arguments) > maxFields {
		return f
	}
	for _, a := range arguments {
		field := field{Argument: a, Kind: kindOf(&a)}
		// Browsers send CRLF line breaks, whatever was entered.
		field.Value = strings.ReplaceAll(entered.Get(field.FormName()), "\r\n", "\n")
		f.Fields = append(f.Fields, field)
	}
	return f
}

// kindOf returns the kind of input for an argument.
func kindOf(a *toolschema.Argument) string {
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
