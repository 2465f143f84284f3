package mcpgateway

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/activity"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

func (c *adminCall) overview() (int, any, error) {
	found, err := c.gateways()
	if err != nil {
		return 0, nil, err
	}
	total, _, _ := activity.Process.Sums()
	overview := adminapi.Overview{
		Since: activity.Process.Began.UTC(), Gateways: []adminapi.GatewayStatus{},
		Total: total, Recent: activity.Process.Recent(),
	}
	store, err := sharedStore(found)
	if err != nil {
		return 0, nil, err
	}
	overview.Store = store.Status()
	for _, h := range found {
		overview.Gateways = append(overview.Gateways, h.gatewayStatus())
	}
	return http.StatusOK, overview, nil
}

// gatewayStatus returns the status of the gateway.
func (h *Handler) gatewayStatus() adminapi.GatewayStatus {
	status := adminapi.GatewayStatus{
		Name: h.Name, Path: h.MCPPath, URLs: []string{}, Auth: len(h.auth.providers) > 0,
		Record: h.Record, Servers: len(h.Servers),
	}
	if h.site != nil {
		status.URLs, status.Admits = h.urls(), h.admission()
	}
	for _, s := range h.Servers {
		if state := s.healthState(); !state.Known || state.Healthy {
			status.Up++
		}
	}
	for _, identities := range h.gateway.Sessions() {
		for _, sessions := range identities {
			status.Clients += sessions
		}
	}
	return status
}

// charsPerToken is the estimated number of characters per token. Tokens cannot be counted, because
// only the length of cut text is known.
const charsPerToken = 4

// newSaving returns a saving at a price per million tokens.
func newSaving(sums activity.Sums, price float64) adminapi.Saving {
	tokens := sums.CutChars / charsPerToken
	return adminapi.Saving{Sums: sums, Tokens: tokens, Money: float64(tokens) * price / 1e6}
}

// savings returns how much was kept out of contexts, and with ?price= its cost.
func (c *adminCall) savings() (int, any, error) {
	price, err := strconv.ParseFloat(cmp.Or(c.r.URL.Query().Get("price"), "0"), 64)
	if err != nil || !(price >= 0 && price <= 1e6) {
		return 0, nil, invalidRequest(errors.New("price: must be a number, the price of a million tokens"))
	}
	_, tools, days := activity.Process.Sums()
	gateway := c.gatewayName()
	all := adminapi.Savings{
		Since: activity.Process.Began.UTC(), Tools: []adminapi.ToolSaving{}, Days: []adminapi.DaySaving{}, Price: price,
	}
	var total activity.Sums
	for _, tool := range tools {
		if gateway == "" || gateway == tool.Gateway {
			all.Tools = append(all.Tools, adminapi.ToolSaving{Tool: tool.Tool, Saving: newSaving(tool.Sums, price)})
			total.Add(&tool.Sums)
		}
	}
	all.Total = newSaving(total, price)
	slices.SortFunc(all.Tools, func(a, b adminapi.ToolSaving) int {
		return cmp.Or(cmp.Compare(b.CutChars, a.CutChars), cmp.Compare(b.Received, a.Received),
			cmp.Compare(a.Server, b.Server), cmp.Compare(a.Name, b.Name))
	})
	for _, day := range days {
		all.Days = append(all.Days, adminapi.DaySaving{Date: day.Date, Saving: newSaving(day.Sums, price)})
	}
	var conversations activity.Sums
	for _, route := range activity.Models.Routes() {
		conversations.Calls += route.Requests
		conversations.Received += route.BytesBefore
		conversations.Sent += route.BytesAfter
		conversations.CutChars += route.SavedChars
	}
	all.Conversations = newSaving(conversations, price)
	return http.StatusOK, all, nil
}

// maxListedCalls is the maximum of ?limit=.
const maxListedCalls = 1000

// listCalls returns the last calls, latest first. Filters match exactly.
func (c *adminCall) listCalls() (int, any, error) {
	query := c.r.URL.Query()
	after, limit := int64(0), int64(100)
	for _, number := range []struct {
		name string
		into *int64
		max  int64
	}{{"after", &after, 1 << 62}, {"limit", &limit, maxListedCalls}} {
		text := query.Get(number.name)
		if text == "" {
			continue
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 || n > number.max {
			return 0, nil, invalidRequest(fmt.Errorf("%s: must be a number from 0 to %d", number.name, number.max))
		}
		*number.into = n
	}
	fits := func(filter, value string) bool {
		wanted := query.Get(filter)
		return wanted == "" || wanted == value
	}
	gateway := c.gatewayName()
	calls := activity.Process.Calls(after, int(limit), func(call *activity.Call) bool {
		outcome := query.Get("outcome")
		return (gateway == "" || gateway == call.Gateway) && fits("client", call.Client) &&
			fits("server", call.Server) && fits("tool", call.Name) &&
			(outcome == "" || outcome == call.Outcome || outcome == "failed" && call.Failed())
	})
	for i, call := range calls {
		listed := *call
		listed.Arguments, listed.Result = nil, nil
		calls[i] = &listed
	}
	return http.StatusOK, calls, nil
}

// showCall returns a call, with its arguments and result if they are kept.
func (c *adminCall) showCall() (int, any, error) {
	call, err := c.findCall()
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, call, nil
}

// findCall returns the call with the ID in the path.
func (c *adminCall) findCall() (*activity.Call, error) {
	id, err := strconv.ParseInt(c.r.PathValue("id"), 10, 64)
	if err != nil {
		return nil, invalidRequest(errors.New("id: must be a number"))
	}
	call := activity.Process.Call(id)
	if call == nil {
		return nil, notFound("call %d is not kept", id)
	}
	return call, nil
}

// showOriginal returns the original of a text that was cut in the result of a call, while it is
// kept.
func (c *adminCall) showOriginal() (int, any, error) {
	call, err := c.findCall()
	if err != nil {
		return 0, nil, err
	}
	id := c.r.PathValue("original")
	if slices.Contains(call.Originals, id) { // no originals of other calls
		for _, h := range registry.current() {
			if h.Name != call.Gateway {
				continue
			}
			if text, chars, ok := h.gateway.Original(call.Server, call.Identity, id); ok {
				return http.StatusOK, adminapi.Original{ID: id, Chars: chars, Text: text}, nil
			}
		}
	}
	return 0, nil, notFound("original %q of call %d is not kept", id, call.ID)
}

func (c *adminCall) listConversations() (int, any, error) {
	return http.StatusOK, activity.Models.Routes(), nil
}
