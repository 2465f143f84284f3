package mcpgateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/gateway"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/words"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

// call calls a tool.
func (c *adminCall) call() (int, any, error) {
	c.action = "call"
	var wanted adminapi.ToolCall
	if err := c.decode(&wanted, false); err != nil {
		return 0, nil, err
	}
	c.name, c.client = mcp.Shortened(wanted.Tool), mcp.Shortened(wanted.Client)
	if wanted.Tool == "" {
		return 0, nil, invalidRequest(errors.New("tool: missing"))
	}
	if wanted.Raw && wanted.Both {
		return 0, nil, invalidRequest(errors.New("both: not allowed together with raw"))
	}
	timeout, err := readTimeout(wanted.Timeout)
	if err != nil {
		return 0, nil, err
	}
	h, err := c.gatewayWithTool(wanted.Tool, wanted.Client)
	if err != nil {
		return 0, nil, err
	}
	c.gateway = h.Name
	server, known := h.gateway.ServerOf(wanted.Tool)
	if !known {
		return 0, nil, h.unknownServerError(wanted.Tool)
	}
	c.server = server
	o := h.gateway.NewOperator(operatorRequest(c.r.Context()), wanted.Client)
	o.Patience, o.Raw, o.KeepServerResult = timeout, wanted.Raw, wanted.Both
	if s := h.byName[c.server]; s != nil {
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
	address := c.r.RemoteAddr
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = host
	}
	if err := answer.receive(o, &wanted, address); err != nil {
		return 0, nil, err
	}
	if err := answer.failure(c.server); err != nil {
		return 0, nil, err
	}
	return http.StatusOK, adminapi.CallReport{
		Result: answer.result, Raw: o.ServerResult(), Seconds: time.Since(began).Seconds(), Received: o.Received(),
	}, nil
}

// gatewayWithTool returns the only gateway that has the server of a tool. If none has it, it
// returns the only gateway. If client is not empty, the gateway must be able to serve that client.
func (c *adminCall) gatewayWithTool(tool, client string) (*Handler, error) {
	found, err := c.gateways()
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, notFound("no mcp_gateway is running")
	}
	if client != "" {
		found = slices.DeleteFunc(found, func(h *Handler) bool { return !h.mayServe(client) })
		if len(found) == 0 {
			return nil, notFound("unknown client %q", client)
		}
	}
	having := slices.DeleteFunc(slices.Clone(found), func(h *Handler) bool {
		_, has := h.gateway.ServerOf(tool)
		return !has
	})
	if len(having) > 0 {
		found = having
	}
	if len(found) > 1 {
		return nil, ambiguousError(found)
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
	var schema toolSchema
	if tool != nil {
		schema = readToolSchema(tool.Definition)
	}
	for _, name := range slices.Sorted(maps.Keys(wanted.Texts)) {
		value, err := schema.argument(name, wanted.Texts[name])
		if err != nil {
			return nil, invalidRequest(err)
		}
		all[name] = value
	}
	return json.Marshal(all)
}

// unknownServerError returns the error that the name of a tool does not start with the name of a
// server.
func (h *Handler) unknownServerError(tool string) error {
	var names []string
	for _, s := range h.Servers {
		names = append(names, s.Name)
	}
	server := tool
	for _, separator := range []string{h.Separator, mcp.Separator} {
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
	switch {
	case symbol == "login_required":
		message = fmt.Sprintf("login required: caddy mcp login %s", server)
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
