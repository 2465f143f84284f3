package mcpgateway

import (
	"net/http"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

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
func (c *adminCall) showMetrics() (int, any, error) {
	ctx := c.api.ctx
	if h := registry.newest(); h != nil {
		ctx = h.ctx
	}
	status := metricsStatus{
		Totals:   map[string]float64{"requests": 0, "errors": 0, "denied": 0, "restarts": 0, "masked_chars": 0},
		Requests: []requestCount{}, Metrics: []metric{},
	}
	families, err := ctx.GetMetricsRegistry().Gather()
	if err != nil {
		return 0, nil, err
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
	return http.StatusOK, status, nil
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
