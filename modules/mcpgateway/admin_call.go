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
		return 0, nil, invalid(errors.New("tool: it is missing"))
	}
	if wanted.Raw && wanted.Both {
		return 0, nil, invalid(errors.New("both: it cannot be given together with raw"))
	}
	patience, err := readPatience(wanted.Timeout)
	if err != nil {
		return 0, nil, err
	}
	h, err := c.gatewayOf(wanted.Tool, wanted.Client)
	if err != nil {
		return 0, nil, err
	}
	c.gateway = h.Name
	server, known := h.gateway.ServerOf(wanted.Tool)
	if !known {
		return 0, nil, h.noServerOf(wanted.Tool)
	}
	c.server = server
	o := h.gateway.NewOperator(operatorRequest(c.r.Context()), wanted.Client)
	o.Patience, o.Raw, o.Both = patience, wanted.Raw, wanted.Both
	if s := h.byName[c.server]; s != nil {
		s.upstreams.hurry()
	}
	began := time.Now()
	answer := newCallAnswer(func(progress json.RawMessage) {
		if wanted.Progress {
			// The operator may have left.
			_ = c.write(http.StatusOK, "application/x-ndjson", adminapi.CallReport{Progress: progress})
			_ = http.NewResponseController(c.w).Flush()
		}
	})
	address := c.r.RemoteAddr
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = host
	}
	if err := answer.from(o, &wanted, address); err != nil {
		return 0, nil, err
	}
	if err := answer.failure(c.server); err != nil {
		return 0, nil, err
	}
	return http.StatusOK, adminapi.CallReport{
		Result: answer.result, Raw: o.Sent(), Seconds: time.Since(began).Seconds(), Received: o.Received(),
	}, nil
}

// gatewayOf returns the gateway whose tool is meant, as a client uses it if one is named.
func (c *adminCall) gatewayOf(tool, client string) (*Handler, error) {
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
			return nil, notFound("there is no client %q", client)
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
		return nil, ambiguous(found)
	}
	return found[0], nil
}

// argumentsOf returns the arguments of a call for its tool. If that is not known, all texts are strings.
func argumentsOf(wanted *adminapi.ToolCall, tool *gateway.Tool, names []string) ([]byte, error) {
	if tool == nil && names != nil {
		return nil, noTool(wanted.Tool, names)
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
			return nil, invalid(err)
		}
		all[name] = value
	}
	return json.Marshal(all)
}

// noServerOf says that the name of a tool does not begin with that of a server, and which ones there are.
func (h *Handler) noServerOf(tool string) error {
	var names []string
	for _, s := range h.Servers {
		names = append(names, s.Name)
	}
	server := tool
	for _, separator := range []string{h.Separator, mcp.Separator} {
		server, _, _ = strings.Cut(server, separator)
	}
	return notFound("there is no tool %q: names are server%stool; %s",
		mcp.Shortened(tool), mcp.Separator, similar(server, names, "servers"))
}

// noTool says that there is no such tool, and which ones have similar names.
func noTool(name string, names []string) error {
	return notFound("there is no tool %q; %s", mcp.Shortened(name), similar(name, names, "tools"))
}

// similar says which of some names are similar to one or, if none is, which there are.
func similar(name string, names []string, what string) string {
	if near := words.Nearest(name, names); len(near) > 0 {
		return "similar names: " + strings.Join(near, ", ")
	}
	const most = 20
	if len(names) > most {
		names = append(slices.Clip(names[:most]), "…")
	}
	return what + ": " + strings.Join(names, ", ")
}

// A callAnswer receives the answer to a call.
type callAnswer struct {
	streamable.Reader
	result json.RawMessage
	err    json.RawMessage
}

// newCallAnswer returns a callAnswer that reports progress.
func newCallAnswer(progress func(json.RawMessage)) *callAnswer {
	a := new(callAnswer)
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

// from has an operator call a tool.
func (a *callAnswer) from(o *gateway.Operator, wanted *adminapi.ToolCall, address string) error {
	defer func() {
		if reason := recover(); reason != nil && reason != http.ErrAbortHandler { // which a torn answer causes
			panic(reason)
		}
	}()
	arguments := func(tool *gateway.Tool, names []string) ([]byte, error) { return argumentsOf(wanted, tool, names) }
	err := o.Call(a, gateway.ToolCall{Name: wanted.Tool, Address: address, Arguments: arguments})
	_ = a.Close() // what cannot be read is no answer
	return err
}

// failure returns why there is no result, nil if there is one.
func (a *callAnswer) failure(server string) error {
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
	_ = json.Unmarshal(a.err, &said) // what is wrong is missing
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

// statusOfCode returns the status of an error of a call. Most come with status 200 to clients.
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
