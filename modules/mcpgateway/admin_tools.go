package mcpgateway

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/gateway"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/tokens"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

// listTools asks the servers for their tools: those that one client sees, or all. With ?why=true it also tells what
// is decided for the client on all that the servers have.
func (c *adminCall) listTools() (int, any, error) {
	found, err := c.gateways()
	if err != nil {
		return 0, nil, err
	}
	if len(found) == 0 {
		return 0, nil, notFound("no mcp_gateway is running")
	}
	query := c.r.URL.Query()
	client := query.Get("client")
	why, err := strconv.ParseBool(cmp.Or(query.Get("why"), "false"))
	switch {
	case err != nil:
		return 0, nil, invalid(errors.New("why: it must be true or false"))
	case why && client == "":
		return 0, nil, invalid(errors.New("why: it needs a client"))
	case client != "":
		found = slices.DeleteFunc(found, func(h *Handler) bool { return !h.mayServe(client) })
		if len(found) == 0 {
			return 0, nil, notFound("there is no client %q", client)
		}
	}
	all := adminapi.ToolListing{Tools: []adminapi.ToolStatus{}, Failed: []adminapi.ToolFailure{}}
	if why {
		all.Decisions = []adminapi.ItemDecision{}
	}
	r := operatorRequest(c.r.Context())
	for _, h := range found {
		var lists []gateway.ToolList
		if why {
			lists = h.gateway.NewOperator(r, "").Explain(client)
		} else {
			lists = h.gateway.NewOperator(r, client).ListTools()
		}
		for _, list := range lists {
			h.addTools(&all, &list)
		}
	}
	return http.StatusOK, all, nil
}

// addTools adds the tools of a server to a listing.
func (h *Handler) addTools(l *adminapi.ToolListing, list *gateway.ToolList) {
	for i := range list.Tools {
		l.Tools = append(l.Tools, h.toolStatus(list.Server, &list.Tools[i]))
	}
	for i := range list.Explained {
		l.Decisions = append(l.Decisions, h.itemDecision(list.Server, &list.Explained[i]))
	}
	if f := list.Failure; f != nil {
		l.Failed = append(l.Failed, adminapi.ToolFailure{
			Gateway: h.Name, Path: h.MCPPath, Server: list.Server, Code: f.Data.Symbol, Error: list.Reason,
		})
	}
}

// toolStatus tells of a tool of a server.
func (h *Handler) toolStatus(server string, tool *gateway.Tool) adminapi.ToolStatus {
	count := tokens.Count(string(tool.Definition))
	status := adminapi.ToolStatus{
		Gateway: h.Name, Path: h.MCPPath, Server: server, Name: tool.Name, Original: tool.Original,
		Chars: utf8.RuneCount(tool.Definition), Tokens: count,
		FocusTokens: count - tokens.Count(string(tool.WithoutFocus)),
	}
	status.Title, status.Description = describedAs(tool.Definition)
	if len(h.Clients) > 0 {
		status.Clients = append([]string{}, tool.Clients...)
		status.AllClients = len(tool.Clients) == len(h.Clients)
	}
	return status
}

// maxDescription is how many characters of a description are listed.
const maxDescription = 300

// describedAs returns the title of a tool, and the beginning of its description. What is no text is missing.
func describedAs(definition []byte) (title, description string) {
	var tool struct {
		Title       any `json:"title"`
		Description any `json:"description"`
		Annotations any `json:"annotations"`
	}
	_ = json.Unmarshal(definition, &tool) // which was read before
	title, _ = tool.Title.(string)
	if annotations, ok := tool.Annotations.(map[string]any); ok && title == "" { // where it was once
		title, _ = annotations["title"].(string)
	}
	description, _ = tool.Description.(string)
	if utf8.RuneCountInString(description) > maxDescription {
		description = string([]rune(description)[:maxDescription-1]) + "…"
	}
	return title, description
}

// itemDecision tells what was decided on something that a server has.
func (h *Handler) itemDecision(server string, e *gateway.Explanation) adminapi.ItemDecision {
	return adminapi.ItemDecision{
		Gateway: h.Name, Path: h.MCPPath, Server: server, Kind: e.Kind, Name: e.Name, Shown: e.Shown,
		Action: e.Decision.Action.String(), Depends: e.Decision.Depends, Rule: e.Decision.Reason(),
		Annotations: e.Annotations.String(),
	}
}

// showTool asks the server of a tool for all that there is to know of it, and with ?client= tells what is decided on
// it for this client.
func (c *adminCall) showTool() (int, any, error) {
	name, client := c.r.PathValue("tool"), c.r.URL.Query().Get("client")
	h, err := c.gatewayOf(name, client)
	if err != nil {
		return 0, nil, err
	}
	if _, known := h.gateway.ServerOf(name); !known {
		return 0, nil, h.noServerOf(name)
	}
	d := h.gateway.NewOperator(operatorRequest(c.r.Context()), "").Describe(name, client)
	switch {
	case d.Failure != nil:
		return 0, nil, adminErrorf(http.StatusBadGateway, d.Failure.Data.Symbol, "%s", d.Reason)
	case d.Tool == nil && d.Why != "":
		return 0, nil, notFound("clients do not see the tool %q: %s", mcp.Shortened(name), d.Why)
	case d.Tool == nil:
		return 0, nil, noTool(name, d.Names)
	}
	detail := adminapi.ToolDetail{
		ToolStatus: h.toolStatus(d.Server, d.Tool), Definition: d.Tool.Definition,
		Annotations: mcp.ReadAnnotations(d.Tool.Definition).String(),
	}
	if d.Explanation != nil {
		decision := h.itemDecision(d.Server, d.Explanation)
		detail.Decision = &decision
	}
	return http.StatusOK, detail, nil
}

// mayServe reports whether the gateway may have a client of this name: one with rules, or one that it does not know.
func (h *Handler) mayServe(client string) bool {
	return h.HasRules(client) || client == access.Anonymous && len(h.auth.providers) == 0
}
