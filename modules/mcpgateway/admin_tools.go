package mcpgateway

import (
	"cmp"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/gateway"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
)

// A toolListing has the tools that a client sees.
type toolListing struct {
	Tools     []toolStatus   `json:"tools"`
	Decisions []itemDecision `json:"decisions,omitzero"` // on all that servers have; only if they are asked for
	Failed    []toolFailure  `json:"failed"`
}

// An itemDecision tells what a client may do with something that a server has, and why.
type itemDecision struct {
	Gateway     string `json:"gateway"`
	Path        string `json:"mcp_path"` // of the gateway
	Server      string `json:"server"`
	Kind        string `json:"kind"`                  // tool, prompt, resource or template
	Name        string `json:"name"`                  // as the server has it
	Shown       string `json:"shown,omitempty"`       // as the client sees it; empty if it does not
	Action      string `json:"action"`                // allow, confirm or deny
	Depends     bool   `json:"depends,omitempty"`     // on the arguments of the call: with others it may differ
	Rule        string `json:"rule"`                  // that decided, or why none has
	Annotations string `json:"annotations,omitempty"` // of a tool, as rules name them
}

// A toolStatus tells of a tool, and what its definition costs in the context of a model.
type toolStatus struct {
	Gateway     string `json:"gateway"`
	Path        string `json:"mcp_path"`           // of the gateway
	Server      string `json:"server,omitempty"`   // empty for the tools of the gateway itself
	Name        string `json:"name"`               // as clients see it
	Original    string `json:"original,omitempty"` // its name at the server, if clients see another one
	Chars       int    `json:"chars"`
	Tokens      int    `json:"tokens"`       // estimated
	FocusTokens int    `json:"focus_tokens"` // those of them that the focus argument adds

	// Clients are the names of the client blocks that may call it; null if the gateway has none.
	Clients []string `json:"clients"`
	// AllClients is whether these are all that the gateway has.
	AllClients bool `json:"all_clients,omitempty"`
}

// A toolFailure tells why the tools of a server are not listed.
type toolFailure struct {
	Gateway string `json:"gateway"`
	Path    string `json:"mcp_path"` // of the gateway
	Server  string `json:"server"`
	Code    string `json:"code"`
	Error   string `json:"error"`
}

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
	all := toolListing{Tools: []toolStatus{}, Failed: []toolFailure{}}
	if why {
		all.Decisions = []itemDecision{}
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
			all.add(h, &list)
		}
	}
	return http.StatusOK, all, nil
}

// add adds the tools of a server.
func (l *toolListing) add(h *Handler, list *gateway.ToolList) {
	for _, tool := range list.Tools {
		tokens := prune.EstimateTokens(string(tool.Definition))
		status := toolStatus{
			Gateway: h.Name, Path: h.MCPPath, Server: list.Server, Name: tool.Name, Original: tool.Original,
			Chars: utf8.RuneCount(tool.Definition), Tokens: tokens,
			FocusTokens: tokens - prune.EstimateTokens(string(tool.WithoutFocus)),
		}
		if len(h.Clients) > 0 {
			status.Clients = append([]string{}, tool.Clients...)
			status.AllClients = len(tool.Clients) == len(h.Clients)
		}
		l.Tools = append(l.Tools, status)
	}
	for i := range list.Explained {
		e := &list.Explained[i]
		l.Decisions = append(l.Decisions, itemDecision{
			Gateway: h.Name, Path: h.MCPPath, Server: list.Server, Kind: e.Kind, Name: e.Name, Shown: e.Shown,
			Action: e.Decision.Action.String(), Depends: e.Decision.Depends, Rule: e.Decision.Reason(),
			Annotations: e.Annotations.String(),
		})
	}
	if f := list.Failure; f != nil {
		l.Failed = append(l.Failed, toolFailure{h.Name, h.MCPPath, list.Server, f.Data.Symbol, list.Reason})
	}
}

// mayServe reports whether the gateway may have a client of this name: one with rules, or one that it does not know.
func (h *Handler) mayServe(client string) bool {
	return hasRules(h.Clients, client) || client == gateway.Anonymous && len(h.auth.providers) == 0
}

// hasRules reports whether one of the clients has this name, or a pattern that fits.
func hasRules(clients []*Client, name string) bool {
	return slices.ContainsFunc(clients, func(c *Client) bool {
		return c != nil && (name == c.Name || slices.Contains(c.Match, name) || mcp.MatchName(c.Name, name))
	})
}
