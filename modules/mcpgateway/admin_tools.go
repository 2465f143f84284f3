package mcpgateway

import (
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/gateway"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/tokens"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolschema"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/words"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/clientrequest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

// listTools lists the tools that a client sees, or all tools. It contacts the servers. With
// ?why=true it also returns the decision on every item of the servers.
func (c *adminCall) listTools() (any, error) {
	query := c.r.URL.Query()
	client := query.Get("client")
	found, err := c.gatewaysFor(client)
	if err != nil {
		return nil, err
	}
	why, err := strconv.ParseBool(cmp.Or(query.Get("why"), "false"))
	switch {
	case err != nil:
		return nil, invalidRequest(errors.New("why: must be true or false"))
	case why && client == "":
		return nil, invalidRequest(errors.New("why: requires client"))
	}
	all := adminapi.ToolListing{Tools: []adminapi.ToolStatus{}, Failed: []adminapi.ToolFailure{}}
	if why {
		all.Decisions = []adminapi.ItemDecision{}
	}
	r := operatorRequest(c.r.Context())
	for _, g := range found {
		var lists []gateway.ToolList
		if why {
			lists = g.gateway.NewOperator(r, "").Explain(client)
		} else {
			lists = g.gateway.NewOperator(r, client).ListTools()
		}
		for _, list := range lists {
			g.addTools(&all, &list)
		}
	}
	return all, nil
}

// addTools adds the tools of a server to a listing.
func (g adminGateway) addTools(l *adminapi.ToolListing, list *gateway.ToolList) {
	for i := range list.Tools {
		l.Tools = append(l.Tools, g.toolStatus(list.Server, &list.Tools[i]))
	}
	for i := range list.Explained {
		l.Decisions = append(l.Decisions, g.itemDecision(list.Server, &list.Explained[i]))
	}
	if f := list.Failure; f != nil {
		l.Failed = append(l.Failed, adminapi.ToolFailure{
			GatewayID: g.id(), Server: list.Server, Code: f.Data.Symbol, Error: list.Reason,
		})
	}
}

// toolStatus returns the status of a tool.
func (g adminGateway) toolStatus(server string, tool *gateway.Tool) adminapi.ToolStatus {
	count := tokens.Count(string(tool.Definition))
	status := adminapi.ToolStatus{
		GatewayID: g.id(), Server: server, Name: tool.Name, Qualified: tool.Qualified, Original: tool.Original,
		Chars: utf8.RuneCount(tool.Definition), Tokens: count,
		FocusTokens: count - tokens.Count(string(tool.WithoutFocus)),
	}
	status.Title, status.Description = titleAndDescription(tool.Definition)
	if len(g.Clients) > 0 {
		status.Clients = append([]string{}, tool.Clients...)
		status.AllClients = len(tool.Clients) == len(g.Clients)
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
func (g adminGateway) itemDecision(server string, e *gateway.Explanation) adminapi.ItemDecision {
	return adminapi.ItemDecision{
		GatewayID: g.id(), Server: server, Kind: e.Kind, Name: e.Name, Shown: e.Shown,
		Action: e.Decision.Action.String(), Depends: e.Decision.Depends, Rule: e.Decision.Reason(),
		Annotations: e.Annotations.String(),
	}
}

// showTool returns a tool with its definition, and with ?client= the decision for that client. It
// contacts the server.
func (c *adminCall) showTool() (any, error) {
	name, client := c.r.PathValue("tool"), c.r.URL.Query().Get("client")
	g, err := c.gatewayWithTool(name, client)
	if err != nil {
		return nil, err
	}
	if _, known := g.gateway.ServerOf(name); !known {
		return nil, g.unknownServerError(name)
	}
	d := g.gateway.NewOperator(operatorRequest(c.r.Context()), "").Describe(name, client)
	switch {
	case d.Failure != nil:
		return nil, adminErrorf(http.StatusBadGateway, d.Failure.Data.Symbol, "%s", d.Reason)
	case d.Tool == nil && d.HiddenReason != "":
		return nil, notFound("clients do not see tool %q: %s", mcp.Shortened(name), d.HiddenReason)
	case d.Tool == nil:
		return nil, unknownToolError(name, d.Names)
	}
	detail := adminapi.ToolDetail{
		ToolStatus: g.toolStatus(d.Server, d.Tool), Definition: d.Tool.Definition, WithoutFocus: d.Tool.WithoutFocus,
		Annotations: mcp.ReadAnnotations(d.Tool.Definition).String(),
	}
	if d.Explanation != nil {
		decision := g.itemDecision(d.Server, d.Explanation)
		detail.Decision = &decision
	}
	return detail, nil
}

// call calls a tool.
func (c *adminCall) call() (any, error) {
	c.action = "call"
	var wanted adminapi.ToolCall
	if err := c.decode(&wanted, false); err != nil {
		return nil, err
	}
	c.name, c.client = mcp.Shortened(wanted.Tool), mcp.Shortened(wanted.Client)
	if wanted.Tool == "" {
		return nil, invalidRequest(errors.New("tool: missing"))
	}
	if wanted.Raw && wanted.Both {
		return nil, invalidRequest(errors.New("both: not allowed together with raw"))
	}
	timeout, err := readTimeout(wanted.Timeout)
	if err != nil {
		return nil, err
	}
	g, err := c.gatewayWithTool(wanted.Tool, wanted.Client)
	if err != nil {
		return nil, err
	}
	c.gateway = g.Name
	server, known := g.gateway.ServerOf(wanted.Tool)
	if !known {
		return nil, g.unknownServerError(wanted.Tool)
	}
	c.server = server
	o := g.gateway.NewOperator(operatorRequest(c.r.Context()), wanted.Client)
	o.Patience, o.Raw, o.KeepServerResult = timeout, wanted.Raw, wanted.Both
	if s := g.byName[c.server]; s != nil {
		s.upstreams.skipBackoff()
	}
	began := time.Now()
	answer := newCallResponse(func(progress json.RawMessage) {
		if wanted.Progress {
			// Errors mean that the operator has disconnected.
			_ = c.write(http.StatusOK, "application/x-ndjson", adminapi.CallReport{Progress: progress})
			_ = http.NewResponseController(c.w).Flush()
		}
	})
	if err := answer.receive(o, &wanted, clientrequest.Hostname(c.r.RemoteAddr)); err != nil {
		return nil, err
	}
	if err := answer.failure(c.server); err != nil {
		return nil, err
	}
	return adminapi.CallReport{
		Result: answer.result, Raw: o.ServerResult(), Seconds: time.Since(began).Seconds(), Received: o.Received(),
	}, nil
}

// gatewaysFor returns the requested gateways that may serve a client of this name: a client with a
// block, or an anonymous client if auth is not configured. If client is empty, it returns all.
func (c *adminCall) gatewaysFor(client string) ([]adminGateway, error) {
	found, err := c.requested(registry.everywhere())
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, notFound("no mcp_gateway is running")
	}
	seen := map[string]bool{}
	found = slices.DeleteFunc(found, func(g adminGateway) bool {
		serves := client == "" || g.HasRules(client) || client == access.Anonymous && len(g.auth.providers) == 0
		if !serves || seen[fingerprint(g.Handler)] {
			return true
		}
		seen[fingerprint(g.Handler)] = true
		return false
	})
	if len(found) == 0 {
		return nil, notFound("unknown client %q", client)
	}
	return found, nil
}

// gatewayWithTool returns the only gateway that has the server of a tool. If none has it, it
// returns the only gateway. If client is not empty, the gateway must be able to serve that client.
func (c *adminCall) gatewayWithTool(tool, client string) (g adminGateway, err error) {
	found, err := c.gatewaysFor(client)
	if err != nil {
		return g, err
	}
	having := slices.DeleteFunc(slices.Clone(found), func(g adminGateway) bool {
		_, has := g.gateway.ServerOf(tool)
		return !has
	})
	if len(having) > 0 {
		found = having
	}
	if len(found) > 1 {
		return g, ambiguousError(found)
	}
	return found[0], nil
}

// callArguments returns the arguments of a call, with texts converted to the types of the tool. If
// the tool is unknown, texts are strings; if names has the tools of the server, an unknown tool is
// an error.
func callArguments(wanted *adminapi.ToolCall, tool *gateway.Tool, names []string) ([]byte, error) {
	if tool == nil && names != nil {
		return nil, unknownToolError(wanted.Tool, names)
	}
	all := map[string]json.RawMessage{}
	maps.Copy(all, wanted.Arguments)
	var schema toolschema.Schema
	if tool != nil {
		schema = toolschema.ReadFocused(tool.Definition, tool.WithoutFocus)
	}
	for _, name := range slices.Sorted(maps.Keys(wanted.Texts)) {
		value, err := schema.Convert(name, wanted.Texts[name])
		if err != nil {
			return nil, invalidRequest(err)
		}
		all[name] = value
	}
	return json.Marshal(all)
}

// unknownServerError returns the error that the name of a tool does not start with the name of a
// server.
func (g adminGateway) unknownServerError(tool string) error {
	var names []string
	for _, s := range g.Servers {
		names = append(names, s.Name)
	}
	server := tool
	for _, separator := range []string{g.Separator, mcp.Separator} {
		server, _, _ = strings.Cut(server, separator)
	}
	return notFound("unknown tool %q: names are server%stool; %s",
		mcp.Shortened(tool), mcp.Separator, similarNames(server, names, "servers"))
}

// unknownToolError returns the error that a tool does not exist.
func unknownToolError(name string, names []string) error {
	return notFound("unknown tool %q; %s", mcp.Shortened(name), similarNames(name, names, "tools"))
}

// similarNames lists the names that are similar to name or, if none is, all names. what is the word
// for them.
func similarNames(name string, names []string, what string) string {
	if near := words.Nearest(name, names); len(near) > 0 {
		return "similar names: " + strings.Join(near, ", ")
	}
	const most = 20
	if len(names) > most {
		names = append(slices.Clip(names[:most]), "…")
	}
	return what + ": " + strings.Join(names, ", ")
}

// A callResponse receives the response to a call.
type callResponse struct {
	streamable.Reader
	result json.RawMessage
	err    json.RawMessage
}

// newCallResponse returns a callResponse that reports progress.
func newCallResponse(progress func(json.RawMessage)) *callResponse {
	a := new(callResponse)
	a.OnMessage = func(e *streamable.Event) error {
		switch m := e.Message; {
		case m.Is(jsonrpc.Method, "notifications/progress"):
			progress(slices.Clone(m.Literal(jsonrpc.Params)))
		case m.Has(jsonrpc.Result):
			a.result = slices.Clone(m.Literal(jsonrpc.Result))
		case m.Has(jsonrpc.Error):
			a.err = slices.Clone(m.Literal(jsonrpc.Error))
		}
		return nil
	}
	return a
}

// receive calls the tool as the operator, and receives the response.
func (a *callResponse) receive(o *gateway.Operator, wanted *adminapi.ToolCall, address string) error {
	defer func() {
		// An interrupted response panics with ErrAbortHandler.
		if reason := recover(); reason != nil && reason != http.ErrAbortHandler {
			panic(reason)
		}
	}()
	arguments := func(tool *gateway.Tool, names []string) ([]byte, error) { return callArguments(wanted, tool, names) }
	err := o.Call(a, gateway.ToolCall{Name: wanted.Tool, Address: address, Arguments: arguments})
	_ = a.Close() // an unreadable response does not count
	return err
}

// failure returns why there is no result, or nil if there is one.
func (a *callResponse) failure(server string) error {
	switch {
	case a.result != nil:
		return nil
	case a.err == nil:
		f := a.Failure(server)
		return adminErrorf(http.StatusBadGateway, f.Data.Symbol, "%s", f.Message)
	}
	var said struct {
		Code    json.Number `json:"code"`
		Message string      `json:"message"`
		Data    struct {
			Symbol any `json:"code"`
		} `json:"data"`
	}
	_ = json.Unmarshal(a.err, &said) // invalid members are ignored
	symbol, ok := said.Data.Symbol.(string)
	if !ok {
		symbol = "server_error " + said.Code.String()
	}
	message := said.Message
	if symbol == "login_required" {
		message = "login required: caddy mcp login " + server
	}
	return adminErrorf(statusOfCode(symbol, a.Status()), symbol, "%s", message)
}

// statusOfCode returns the status for the error of a call. The gateway sends most errors with
// status 200, so the code decides.
func statusOfCode(symbol string, status int) int {
	switch {
	case status >= 400:
		return status
	case symbol == "invalid_params":
		return http.StatusBadRequest
	case symbol == "login_required":
		return http.StatusConflict
	}
	return http.StatusBadGateway
}
