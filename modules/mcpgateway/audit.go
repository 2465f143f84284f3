package mcpgateway

import (
	"fmt"
	"sync"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

const auditDenied = "denied" // the default

// audits maps the values of audit.
var audits = map[string]inbound.Audit{
	auditDenied: inbound.AuditDenied, "all": inbound.AuditAll, "arguments": inbound.AuditArguments,
}

func validateAudit(audit string) error {
	if _, known := audits[audit]; !known {
		return fmt.Errorf("audit: %q must be denied, all or arguments", audit)
	}
	return nil
}

// auditMu is held while an audit line is written. zap takes the time of a line before it writes
// the line, and several gateways share a log, so without the lock lines could be out of order.
var auditMu sync.Mutex

// audit writes a line to the audit log of the configuration that runs now. A call may end after a
// reload, when Caddy has closed the log of its own configuration.
func (h *Handler) audit(level zapcore.Level, message string, fields ...zap.Field) {
	auditMu.Lock()
	defer auditMu.Unlock()
	logger := h.auditLogger
	if newest := registry.newest(); newest != nil {
		logger = newest.auditLogger
	}
	logger.Log(level, message, fields...)
}

// register adds the handler to the registry. From then on, no audit line goes to the log of an
// earlier handler.
func (h *Handler) register() {
	auditMu.Lock()
	defer auditMu.Unlock()
	registry.add(h)
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
