package mcpgateway

import (
	"encoding/json"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/activity"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/gateway"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A reporter reports events of a gateway to metrics, logs and Caddy events.
type reporter struct {
	*Handler
	metrics *requestMetricsCache
}

// A requestLabels holds the metric labels of a finished request. The number of combinations is
// limited, so all of them can be cached.
type requestLabels struct{ server, method, outcome string }

// requestMetricsCache caches metrics by their labels. A lookup in Prometheus takes longer.
type requestMetricsCache struct {
	mu    sync.RWMutex
	known map[requestLabels]*requestMetrics
}

type requestMetrics struct {
	count    prometheus.Counter
	duration prometheus.Observer
	health   *healthRecord // of the server; nil without a server
}

// metricsOf returns the metrics for the labels.
func (o reporter) metricsOf(labels requestLabels) *requestMetrics {
	cache := o.metrics
	cache.mu.RLock()
	m := cache.known[labels]
	cache.mu.RUnlock()
	if m != nil {
		return m
	}
	m = &requestMetrics{
		count:    requests.WithLabelValues(o.Name, labels.server, labels.method, labels.outcome),
		duration: durations.WithLabelValues(o.Name, labels.server, labels.method),
		health:   o.healthRecordOf(labels.server),
	}
	cache.mu.Lock()
	defer cache.mu.Unlock()
	cache.known[labels] = m
	return m
}

// RequestDone implements [gateway.Observer].
func (o reporter) RequestDone(r upstream.Record) {
	metrics := o.metricsOf(requestLabels{r.Server, r.Method, r.Outcome})
	metrics.count.Inc()
	metrics.duration.Observe(r.Duration.Seconds())
	switch {
	case metrics.health == nil:
	case r.Answered:
		metrics.health.succeeded(o.logger)
	case r.Fault != nil:
		metrics.health.failed(o.logger, r.Fault)
	}
	if c := o.logger.Check(zapcore.DebugLevel, "request to MCP server"); c != nil {
		c.Write(zap.String("mcp_server", r.Server), zap.String("mcp_method", r.ClientMethod), zap.String("mcp_tool", r.Tool),
			zap.String("outcome", r.Outcome), zap.Int("mcp_error_code", r.ErrorCode), zap.Duration("duration", r.Duration))
	}
}

// healthRecordOf returns the health record of a server, or nil if the server is unknown.
func (o reporter) healthRecordOf(server string) *healthRecord {
	if s := o.byName[server]; s != nil {
		return s.health.Load()
	}
	return nil
}

// ServerFailed implements [gateway.Observer].
func (o reporter) ServerFailed(f *upstream.Fault) {
	if record := o.healthRecordOf(f.Server); record != nil {
		record.failed(o.logger, f)
	}
}

// ServerAnswered implements [gateway.Observer].
func (o reporter) ServerAnswered(server string) {
	if record := o.healthRecordOf(server); record != nil {
		record.succeeded(o.logger)
	}
}

// Listed implements [gateway.Observer].
func (o reporter) Listed(server, kind string, items int) {
	if record := o.healthRecordOf(server); record != nil {
		record.listed(o.logger, kind, items)
	}
}

// Denied implements [gateway.Observer]. It writes one log line.
func (o reporter) Denied(d *inbound.Denial) {
	target := "mcp_tool" // also for a prompt
	if d.Target.Kind == mcp.Resource {
		target = "mcp_resource"
	}
	denials.WithLabelValues(d.ClientLabel, d.Code).Inc()
	rule := zap.Skip()
	if d.Rule != "" {
		rule = zap.String("rule", d.Rule)
	}
	o.audit(zap.WarnLevel, "access denied",
		zap.String("reason", d.Code), rule, zap.String("client", d.Client), zap.String("client_ip", d.Address),
		zap.String("mcp_server", d.Target.Server), zap.String("mcp_method", d.Method),
		zap.String(target, mcp.Shortened(d.Target.Name)), zap.Error(d.Reason))
	o.events.Emit(o.ctx, "mcp_access_denied", map[string]any{
		"gateway": o.Name, "reason": d.Code, "client": d.Client, "client_ip": d.Address,
		"server": d.Target.Server, "method": d.Method, "name": mcp.Shortened(d.Target.Name),
	})
}

// CallDone implements [gateway.Observer]. It keeps the call for the admin API and, depending on
// audit, logs it.
func (o reporter) CallDone(c inbound.Call) {
	o.keepCall(&c)
	if o.Audit == auditDenied || c.Refused {
		return
	}
	fields := append(make([]zap.Field, 0, 14),
		zap.String("client", c.Client), zap.String("client_ip", c.Address),
		zap.String("mcp_server", c.Target.Server), zap.String("mcp_method", c.Method),
		zap.String(targetField(c.Target.Kind), c.Target.Name), zap.String("request_id", c.RequestID),
		zap.String("outcome", c.Outcome))
	if c.ErrorCode != 0 {
		fields = append(fields, zap.Int("mcp_error_code", c.ErrorCode))
	}
	fields = append(fields, zap.Duration("duration", c.Duration))
	if c.Rule != "" {
		fields = append(fields, zap.String("rule", c.Rule))
	}
	if c.Confirmed {
		fields = append(fields, zap.Bool("confirmed", true))
	}
	if c.Arguments != nil {
		fields = append(fields, zap.Reflect("arguments", json.RawMessage(c.Arguments)))
	}
	o.audit(zap.InfoLevel, "call", fields...)
}

// keepCall keeps a call for the admin API.
func (o reporter) keepCall(c *inbound.Call) {
	kept := &activity.Call{
		Gateway: o.Name, Client: mcp.Shortened(c.Client), Address: c.Address, Server: c.Target.Server, Method: c.Method,
		Name: c.Target.Name, RequestID: c.RequestID, Outcome: c.Outcome, ErrorCode: c.ErrorCode, Rule: mcp.Shortened(c.Rule),
		Confirmed: c.Confirmed, Seconds: c.Duration.Seconds(), Received: c.Received, Sent: c.Sent,
		CutTexts: c.Masked.Strings, CutChars: c.Masked.Chars, Originals: c.Masked.Originals,
		Identity: c.Identity, Owner: c.Owner,
	}
	if c.Content != nil {
		kept.HasContent, kept.Arguments, kept.Result = true, c.Content.Arguments, c.Content.Result
	}
	activity.Process.Add(kept)
}

// Redacted implements [gateway.Observer].
func (reporter) Redacted(client string, n int) {
	redactions.WithLabelValues(client).Add(float64(n))
}

// ToolChanged implements [gateway.Observer].
func (o reporter) ToolChanged(server, tool string) {
	toolChanges.WithLabelValues(server).Inc()
	o.logger.Warn("definition of tool has changed", zap.String("mcp_server", server),
		zap.String("mcp_tool", tool), zap.Bool("withheld", o.PinTools))
	o.events.Emit(o.ctx, "mcp_tool_changed", map[string]any{"gateway": o.Name, "server": server, "tool": tool})
}

// ToolInvalid implements [gateway.Observer].
func (o reporter) ToolInvalid(server, tool string, reason error) {
	invalidTools.WithLabelValues(server).Inc()
	o.logger.Warn("tool left out, because its definition is invalid",
		zap.String("mcp_server", server), zap.String("mcp_tool", tool), zap.Error(reason))
}

// ToolHidden implements [gateway.Observer].
func (o reporter) ToolHidden(server, tool, renamed string) {
	o.logger.Warn("tool hidden, because another tool is renamed to its name",
		zap.String("mcp_server", server), zap.String("mcp_tool", tool), zap.String("renamed", renamed))
}

// ToolMissing implements [gateway.Observer].
func (o reporter) ToolMissing(server, tool string) {
	o.logger.Warn("tool with an override is not listed by its server",
		zap.String("mcp_server", server), zap.String("mcp_tool", tool))
}

// ToolsSeen implements [gateway.Observer].
func (o reporter) ToolsSeen(server string) { o.pins.save(o.byName[server]) }

const auditDenied = "denied" // the default

// audits maps the values of audit.
var audits = map[string]inbound.Audit{
	auditDenied: inbound.AuditDenied, "all": inbound.AuditAll, "arguments": inbound.AuditArguments,
}

// auditMu is held while an audit line is written. zap takes the time of a line before it writes
// the line, and several gateways share a log, so without the lock lines could be out of order.
var auditMu sync.Mutex

// audit writes a line to the audit log of the configuration that runs now. A call may end after a
// reload, when Caddy has closed the log of its own configuration.
func (o reporter) audit(level zapcore.Level, message string, fields ...zap.Field) {
	auditMu.Lock()
	defer auditMu.Unlock()
	logger := o.auditLogger
	if newest := registry.newest(); newest != nil {
		logger = newest.auditLogger
	}
	logger.Log(level, message, fields...)
}

// targetField returns the log field for the target of a call.
func targetField(kind mcp.TargetKind) string {
	switch kind {
	case mcp.Prompt:
		return "mcp_prompt"
	case mcp.Resource:
		return "mcp_resource"
	}
	return "mcp_tool"
}

// Interface guard
var _ gateway.Observer = reporter{}
