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

// listTools lists the tools that a client sees, or all tools. It contacts the servers. With
// ?why=true it also returns the decision on every item of the servers.
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
		return 0, nil, invalidRequest(errors.New("why: must be true or false"))
	case why && client == "":
		return 0, nil, invalidRequest(errors.New("why: requires client"))
	case client != "":
		found = slices.DeleteFunc(found, func(h *Handler) bool { return !h.mayServe(client) })
		if len(found) == 0 {
			return 0, nil, notFound("unknown client %q", client)
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

// toolStatus returns the status of a tool.
func (h *Handler) toolStatus(server string, tool *gateway.Tool) adminapi.ToolStatus {
	count := tokens.Count(string(tool.Definition))
	status := adminapi.ToolStatus{
		Gateway: h.Name, Path: h.MCPPath, Server: server, Name: tool.Name, Original: tool.Original,
		Chars: utf8.RuneCount(tool.Definition), Tokens: count,
		FocusTokens: count - tokens.Count(string(tool.WithoutFocus)),
	}
	status.Title, status.Description = titleAndDescription(tool.Definition)
	if len(h.Clients) > 0 {
		status.Clients = append([]string{}, tool.Clients...)
		status.AllClients = len(tool.Clients) == len(h.Clients)
	}
	return status
}

// maxDescription limits the characters of a listed description.
const maxDescription = 300

// titleAndDescription returns the title of a tool and the beginning of its description. Values that
// are not strings are ignored.
func titleAndDescription(definition []byte) (title, description string) {
	var tool struct {
		Title       any `json:"title"`
		Description any `json:"description"`
		Annotations any `json:"annotations"`
	}
	_ = json.Unmarshal(definition, &tool) // known to be valid
	title, _ = tool.Title.(string)
	if annotations, ok := tool.Annotations.(map[string]any); ok && title == "" { // the place in older revisions
		title, _ = annotations["title"].(string)
	}
	description, _ = tool.Description.(string)
	if utf8.RuneCountInString(description) > maxDescription {
		description = string([]rune(description)[:maxDescription-1]) + "…"
	}
	return title, description
}

// itemDecision converts a decision on a tool, prompt, resource or template.
func (h *Handler) itemDecision(server string, e *gateway.Explanation) adminapi.ItemDecision {
	return adminapi.ItemDecision{
		Gateway: h.Name, Path: h.MCPPath, Server: server, Kind: e.Kind, Name: e.Name, Shown: e.Shown,
		Action: e.Decision.Action.String(), Depends: e.Decision.Depends, Rule: e.Decision.Reason(),
		Annotations: e.Annotations.String(),
	}
}

// showTool returns a tool with its definition, and with ?client= the decision for that client. It
// contacts the server.
func (c *adminCall) showTool() (int, any, error) {
	name, client := c.r.PathValue("tool"), c.r.URL.Query().Get("client")
	h, err := c.gatewayWithTool(name, client)
	if err != nil {
		return 0, nil, err
	}
	if _, known := h.gateway.ServerOf(name); !known {
		return 0, nil, h.unknownServerError(name)
	}
	d := h.gateway.NewOperator(operatorRequest(c.r.Context()), "").Describe(name, client)
	switch {
	case d.Failure != nil:
		return 0, nil, adminErrorf(http.StatusBadGateway, d.Failure.Data.Symbol, "%s", d.Reason)
	case d.Tool == nil && d.HiddenReason != "":
		return 0, nil, notFound("clients do not see tool %q: %s", mcp.Shortened(name), d.HiddenReason)
	case d.Tool == nil:
		return 0, nil, unknownToolError(name, d.Names)
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

// mayServe reports whether the gateway may serve a client of this name: a client with a block, or
// an anonymous client if auth is not configured.
func (h *Handler) mayServe(client string) bool {
	return h.HasRules(client) || client == access.Anonymous && len(h.auth.providers) == 0
}
