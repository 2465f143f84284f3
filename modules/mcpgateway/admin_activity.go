package mcpgateway

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/activity"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/replaceable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

func (c *adminCall) overview() (any, error) {
	found, err := c.gateways()
	if err != nil {
		return nil, err
	}
	total, _, _ := activity.Process.Sums(func(string) bool { return true })
	overview := adminapi.Overview{
		Since: activity.Process.Began.UTC(), Gateways: []adminapi.GatewayStatus{},
		Total: total, Recent: activity.Process.Recent(),
	}
	store, err := sharedStore(found)
	if err != nil {
		return nil, err
	}
	overview.Store = store.Status()
	everywhere, err := c.requested(registry.everywhere())
	if err != nil {
		return nil, err
	}
	places := map[string][]int{} // indexes in overview.Gateways
	for _, g := range everywhere {
		status, same := g.status(), places[fingerprint(g.Handler)]
		if len(same) > 0 {
			status.Clients = 0 // they are those of the first
		}
		i := slices.IndexFunc(same, func(i int) bool {
			other := &overview.Gateways[i]
			return other.Admits == status.Admits && other.Record == status.Record
		})
		if i >= 0 {
			other := &overview.Gateways[same[i]]
			other.URLs = append(other.URLs, status.URLs...)
			continue
		}
		places[fingerprint(g.Handler)] = append(same, len(overview.Gateways))
		overview.Gateways = append(overview.Gateways, status)
	}
	return overview, nil
}

// status returns the status of the gateway.
func (g adminGateway) status() adminapi.GatewayStatus {
	status := adminapi.GatewayStatus{
		Name: g.Name, Path: g.MCPPath, URLs: []string{}, Auth: len(g.auth.providers) > 0,
		Record: g.Record, Servers: len(g.Servers),
	}
	if g.place.site != nil {
		status.URLs, status.Admits = g.place.urls(g.paths.below("")), g.place.admission(g.auth.providers)
	}
	for _, s := range g.Servers {
		if state := s.healthState(); !state.Known || state.Healthy {
			status.Up++
		}
	}
	for _, identities := range g.gateway.Sessions() {
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
func (c *adminCall) savings() (any, error) {
	price, err := strconv.ParseFloat(cmp.Or(c.r.URL.Query().Get("price"), "0"), 64)
	if err != nil || !(price >= 0 && price <= adminapi.MaxPrice) {
		return nil, invalidRequest(errors.New("price: must be a number, the price of a million tokens"))
	}
	total, tools, days := activity.Process.Sums(c.records())
	all := adminapi.Savings{
		Since: activity.Process.Began.UTC(), Total: newSaving(total, price),
		Tools: []adminapi.ToolSaving{}, Days: []adminapi.DaySaving{}, Price: price,
	}
	for _, tool := range tools {
		all.Tools = append(all.Tools, adminapi.ToolSaving{Tool: tool.Tool, Saving: newSaving(tool.Sums, price)})
	}
	slices.SortFunc(all.Tools, func(a, b adminapi.ToolSaving) int {
		return cmp.Or(cmp.Compare(b.CutChars, a.CutChars), cmp.Compare(b.Received, a.Received),
			cmp.Compare(a.Server, b.Server), cmp.Compare(a.Name, b.Name))
	})
	for _, day := range days {
		all.Days = append(all.Days, adminapi.DaySaving{Date: day.Date, Saving: newSaving(day.Sums, price)})
	}
	if c.gateway == "" { // conversations do not pass a gateway
		var conversations activity.Sums
		for _, route := range activity.Models.Routes() {
			conversations.Calls += route.Requests
			conversations.Received += route.BytesBefore
			conversations.Sent += route.BytesAfter
			conversations.CutChars += route.SavedChars
		}
		all.Conversations = newSaving(conversations, price)
	}
	return all, nil
}

// maxListedCalls is the maximum of ?limit=.
const maxListedCalls = 1000

// listCalls returns the last calls, latest first. Filters match exactly.
func (c *adminCall) listCalls() (any, error) {
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
			return nil, invalidRequest(fmt.Errorf("%s: must be a number from 0 to %d", number.name, number.max))
		}
		*number.into = n
	}
	fits := func(filter, value string) bool {
		wanted := query.Get(filter)
		return wanted == "" || wanted == value
	}
	requested := c.records()
	calls := activity.Process.Calls(after, int(limit), func(call *activity.Call) bool {
		outcome := query.Get("outcome")
		return requested(call.Gateway) && fits("client", call.Client) &&
			fits("server", call.Server) && fits("tool", call.Name) &&
			(outcome == "" || outcome == call.Outcome || outcome == "failed" && call.Failed())
	})
	for i, call := range calls {
		listed := *call
		listed.Arguments, listed.Result = nil, nil
		calls[i] = &listed
	}
	return calls, nil
}

// onCall returns a function that serves requests about the call with the ID in the path.
func onCall(serve func(*adminCall, *activity.Call) (any, error)) adminFunc {
	return func(c *adminCall) (any, error) {
		id, err := strconv.ParseInt(c.r.PathValue("id"), 10, 64)
		if err != nil {
			return nil, invalidRequest(errors.New("id: must be a number"))
		}
		call := activity.Process.Call(id)
		if call == nil {
			return nil, notFound("call %d is not kept", id)
		}
		return serve(c, call)
	}
}

// showCall returns a call, with its arguments and result if they are kept.
func (*adminCall) showCall(call *activity.Call) (any, error) { return call, nil }

// showOriginal returns the original of a text that was cut in the result of a call, while it is
// kept.
func (c *adminCall) showOriginal(call *activity.Call) (any, error) {
	id := c.r.PathValue("original")
	if slices.Contains(call.Originals, id) { // no originals of other calls
		for _, h := range registry.current() {
			if h.Name != call.Gateway {
				continue
			}
			if text, chars, ok := h.gateway.Original(call.Server, call.Identity, id); ok {
				return adminapi.Original{ID: id, Chars: chars, Text: text}, nil
			}
		}
	}
	return nil, notFound("original %q of call %d is not kept", id, call.ID)
}

func listConversations(*adminCall) (any, error) {
	return activity.Models.Routes(), nil
}

// A metricsStatus holds all metrics of these modules.
type metricsStatus struct {
	// Sums of all counters by name. errors is the sum of failed requests.
	Totals   map[string]float64 `json:"totals"`
	Requests []requestCount     `json:"requests"`
	Metrics  []metric           `json:"metrics"`
}

// A requestCount is the number of requests with the same labels.
type requestCount struct {
	Gateway string  `json:"gateway"`
	Server  string  `json:"server"`
	Method  string  `json:"method"`
	Outcome string  `json:"outcome"`
	Count   float64 `json:"count"`
}

// A metric is the value of a counter or gauge, or the count and sum of a histogram.
type metric struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels,omitempty"`
	Value  *float64          `json:"value,omitempty"`
	Count  *uint64           `json:"count,omitempty"`
	Sum    *float64          `json:"sum,omitempty"`
}

const metricsPrefix = "caddy_mcp_"

// showMetrics returns the metrics of all modules of this project. Counters live as long as the
// process, but only the registry of the running configuration has all of them.
func (c *adminCall) showMetrics() (any, error) {
	ctx := c.api.ctx
	if h := registry.newest(); h != nil {
		ctx = h.ctx
	}
	status := metricsStatus{
		Totals:   map[string]float64{"requests": 0, "errors": 0, "denied": 0, "restarts": 0, "masked_chars": 0},
		Requests: []requestCount{}, Metrics: []metric{},
	}
	families, err := replaceable.Registry(ctx).Gather()
	if err != nil {
		return nil, err
	}
	for _, family := range families {
		if !strings.HasPrefix(family.GetName(), metricsPrefix) {
			continue
		}
		for _, one := range family.GetMetric() {
			m := metric{Name: family.GetName(), Labels: map[string]string{}}
			for _, label := range one.GetLabel() {
				m.Labels[label.GetName()] = label.GetValue()
			}
			switch {
			case one.GetCounter() != nil:
				value := one.GetCounter().GetValue()
				m.Value = &value
				status.count(m, value)
			case one.GetGauge() != nil:
				value := one.GetGauge().GetValue()
				m.Value = &value
			case one.GetHistogram() != nil:
				count, sum := one.GetHistogram().GetSampleCount(), one.GetHistogram().GetSampleSum()
				m.Count, m.Sum = &count, &sum
			}
			status.Metrics = append(status.Metrics, m)
		}
	}
	return status, nil
}

// count adds a counter to the totals.
func (s *metricsStatus) count(m metric, value float64) {
	name := strings.TrimSuffix(strings.TrimPrefix(m.Name, metricsPrefix), "_total")
	switch name {
	case "requests":
		outcome := m.Labels["outcome"]
		s.Requests = append(s.Requests,
			requestCount{m.Labels["gateway"], m.Labels["server"], m.Labels["method"], outcome, value})
		if outcome != upstream.OutcomeOK && outcome != upstream.OutcomeCanceled {
			s.Totals["errors"] += value
		}
	case "upstream_restarts":
		name = "restarts"
	}
	s.Totals[name] += value
}
