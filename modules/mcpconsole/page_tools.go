package mcpconsole

import (
	"cmp"
	"encoding/json"
	"net/url"
	"slices"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

var toolsPage = page{
	pattern: "/tools", name: "tools", title: "Tools",
	show: func(v *visit) (any, error) {
		query := v.r.URL.Query()
		asked := toolFilter{
			Text: query.Get("q"), Gateway: query.Get("gateway"), Server: query.Get("server"), Client: query.Get("client"),
			All: query.Get("all") != "",
		}
		clients, err := clientNames(v, asked.Gateway)
		if err != nil {
			return nil, err
		}
		overview, err := get[adminapi.Overview](v, "/overview")
		if err != nil {
			return nil, err
		}
		listing, err := get[adminapi.ToolListing](v, "/tools?"+
			url.Values{"client": {asked.Client}, "gateway": {asked.Gateway}}.Encode())
		if err != nil {
			return nil, err
		}
		view := newToolsView(&listing, asked)
		view.Clients = clients
		for _, g := range overview.Gateways {
			view.Gateways = append(view.Gateways, g.Name)
		}
		return view, nil
	},
}

// A toolFilter says which tools are shown.
type toolFilter struct {
	Text, Gateway, Server, Client string
	All                           bool // however many there are
}

// A toolsView shows the tools that clients see.
type toolsView struct {
	toolFilter
	Sums                       []toolSum // of all tools, by gateway
	Count                      int       // of all tools
	Found, FoundTokens         int       // that fit the filter
	Tools                      []toolRow
	More                       int // that fit, and are not shown
	Failed                     []adminapi.ToolFailure
	Gateways, Servers, Clients []string // to choose from
}

// A toolSum tells what the tools of a gateway cost.
type toolSum struct {
	Gateway                    string
	Count, Tokens, FocusTokens int
}

// Tools says how many there are.
func (s toolSum) Tools() string { return plural(s.Count, "tool") }

// A toolRow is a tool in the list of all.
type toolRow struct {
	*adminapi.ToolStatus
}

// Page is the path of the page of the tool.
func (r toolRow) Page() string { return toolPath(r.Name) }

// Of says whose tool it is.
func (r toolRow) Of() string { return cmp.Or(r.Server, "the gateway") }

// May says who may use the tool.
func (r toolRow) May() string { return usersOf(r.ToolStatus) }

func toolPath(name string) string { return "/tools/" + url.PathEscape(name) }

// usersOf says who may use a tool.
func usersOf(t *adminapi.ToolStatus) string {
	switch {
	case t.Clients == nil || t.AllClients:
		return "all clients"
	case len(t.Clients) == 0:
		return "no client"
	}
	return strings.Join(t.Clients, ", ")
}

// maxTools is how many tools are shown unless all are asked for.
const maxTools = 200

func newToolsView(listing *adminapi.ToolListing, asked toolFilter) *toolsView {
	view := &toolsView{toolFilter: asked, Count: len(listing.Tools), Failed: listing.Failed}
	words := strings.Fields(strings.ToLower(asked.Text))
	for i := range listing.Tools {
		tool := &listing.Tools[i]
		sum := view.sum(tool.Gateway)
		sum.Count++
		sum.Tokens += tool.Tokens
		sum.FocusTokens += tool.FocusTokens
		if tool.Server != "" && !slices.Contains(view.Servers, tool.Server) {
			view.Servers = append(view.Servers, tool.Server)
		}
		if asked.Server != "" && tool.Server != asked.Server || !hasWords(tool, words) {
			continue
		}
		view.Found++
		view.FoundTokens += tool.Tokens
		if len(view.Tools) == maxTools && !asked.All {
			view.More++
			continue
		}
		view.Tools = append(view.Tools, toolRow{tool})
	}
	slices.Sort(view.Servers)
	return view
}

// sum returns the sum of a gateway.
func (v *toolsView) sum(gateway string) *toolSum {
	for i := range v.Sums {
		if v.Sums[i].Gateway == gateway {
			return &v.Sums[i]
		}
	}
	v.Sums = append(v.Sums, toolSum{Gateway: gateway})
	return &v.Sums[len(v.Sums)-1]
}

// Share says how much of what the tools of its gateway cost a tool does.
func (v *toolsView) Share(r toolRow) string {
	return percent(float64(r.Tokens), float64(v.sum(r.Gateway).Tokens))
}

// Narrowed reports whether not all tools were asked for.
func (v *toolsView) Narrowed() bool { return v.Found < v.Count }

// hasWords reports whether what is known of a tool has all words.
func hasWords(t *adminapi.ToolStatus, words []string) bool {
	text := strings.ToLower(strings.Join([]string{t.Name, t.Original, t.Title, t.Description, t.Server}, "\n"))
	return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(text, word) })
}

// clientNames returns the names of the clients of a gateway, or of all, whose rules can be asked for.
func clientNames(v *visit, of string) (names []string, err error) {
	clients, err := get[[]mcpgateway.GatewayClient](v, "/clients?gateway="+url.QueryEscape(of))
	for _, client := range clients {
		if client.Name != access.OperatorLabel && !slices.Contains(names, client.Name) {
			names = append(names, client.Name)
		}
	}
	return names, err
}

var toolPage = page{
	pattern: "/tools/{tool}", name: "tool", title: "Tool",
	show: func(v *visit) (any, error) {
		query := v.r.URL.Query()
		// An address fills in nothing else: a page of another site may have made it up.
		return newToolView(v, url.Values{"gateway": query["gateway"], "client": query["client"]})
	},
}

// A toolView shows a tool.
type toolView struct {
	*adminapi.ToolDetail
	Description string // all of it
	Arguments   []mcpgateway.ToolArgument
	Schema      string // of the arguments
	Output      string // schema of the result; empty if there is none
	Clients     []string
	Client      string // whose decision is shown, and who is to call it
	Form        form
	Risky       bool // it does not say that it only reads
	Tried       *trial
}

// newToolView returns the tool that a visit is about, with a form that has the values that were entered.
func newToolView(v *visit, entered url.Values) (*toolView, error) {
	of, client := entered.Get("gateway"), entered.Get("client")
	clients, err := clientNames(v, of)
	if err != nil {
		return nil, err
	}
	detail, err := get[adminapi.ToolDetail](v, toolPath(v.r.PathValue("tool"))+
		"?"+url.Values{"client": {client}, "gateway": {of}}.Encode())
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
	_ = json.Unmarshal(detail.Definition, &definition) // what is of another type is missing
	arguments, open := mcpgateway.ReadToolArguments(detail.Definition)
	return &toolView{
		ToolDetail: detail, Description: definition.Description, Arguments: arguments,
		Schema: indented(definition.InputSchema), Output: indented(definition.OutputSchema),
		Clients: clients, Client: client, Form: newForm(arguments, open, entered), Risky: isRisky(detail.Annotations),
	}
}

func (v *toolView) title() string { return v.Name }

// Page is the path of the page.
func (v *toolView) Page() string { return toolPath(v.Name) }

// Shown are the arguments, at most as many as a form has fields.
func (v *toolView) Shown() []field {
	return newForm(v.Arguments[:min(len(v.Arguments), maxFields)], false, nil).Fields
}

// May says who may use the tool.
func (v *toolView) May() string { return usersOf(&v.ToolStatus) }

// isRisky reports whether a tool with some annotations may change something.
func isRisky(annotations string) bool {
	words := strings.Fields(annotations)
	return !slices.Contains(words, "read_only") || slices.Contains(words, "destructive")
}

// callAction calls a tool, and shows its page again with what came of it.
var callAction = action{toolPage.pattern, func(v *visit) (string, error) {
	tried := toolPage
	tried.show = func(v *visit) (any, error) {
		view, err := newToolView(v, v.r.PostForm)
		if err == nil {
			view.Tried = view.try(v)
		}
		return view, err
	}
	v.show(&tried)
	return "", nil
}}

// try calls the tool with what was entered in the form.
func (v *toolView) try(at *visit) *trial {
	if v.Risky && at.r.PostFormValue("sure") == "" {
		return &trial{Error: "Tick that you are sure: the tool may change something."}
	}
	call := adminapi.ToolCall{Tool: v.Name, Client: v.Client, Both: true}
	if err := v.Form.fill(&call); err != nil {
		return &trial{Error: err.Error()}
	}
	report, err := post[adminapi.CallReport](at, "/call?gateway="+url.QueryEscape(v.Gateway), call)
	if err != nil {
		return &trial{Error: err.Error()}
	}
	return &trial{Seconds: report.Seconds, Panes: []pane{
		newPane("As the agent gets it", report.Result), newPane("As the server sent it", report.Raw),
	}}
}

// A trial is what came of a call.
type trial struct {
	Error   string // why there is no result; empty if there is one
	Seconds float64
	Panes   []pane
}

// Cut reports whether the agent gets less than what the server sent.
func (t *trial) Cut() bool { return len(t.Panes) == 2 && t.Panes[0].Bytes < t.Panes[1].Bytes }
