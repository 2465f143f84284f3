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

// audits are the values of the setting audit.
var audits = map[string]inbound.Audit{
	auditDenied: inbound.AuditDenied, "all": inbound.AuditAll, "arguments": inbound.AuditArguments,
}

// validateAudit ensures that it is known what is logged.
func validateAudit(audit string) error {
	if _, known := audits[audit]; !known {
		return fmt.Errorf("audit: %q must be denied, all or arguments", audit)
	}
	return nil
}

// auditing is held while a line of the audit log is written. zap takes the time of a line before it writes it, and
// gateways write to the same logs. So their lines are in the order of their times.
var auditing sync.Mutex

// audit writes a line to the audit log. After a reload that is the log of the configuration that runs now: Caddy may
// close those of the one before, and calls can end later.
func (h *Handler) audit(level zapcore.Level, message string, fields ...zap.Field) {
	auditing.Lock()
	defer auditing.Unlock()
	logger := h.auditLogger
	if newest := registry.newest(); newest != nil {
		logger = newest.auditLogger
	}
	logger.Log(level, message, fields...)
}

// register makes the handler one that serves. No line is written to the audit log of the handlers before it from then
// on.
func (h *Handler) register() {
	auditing.Lock()
	defer auditing.Unlock()
	registry.add(h)
}

// targetField returns the name of the field of a call that says what was called.
func targetField(kind mcp.TargetKind) string {
	switch kind {
	case mcp.Prompt:
		return "mcp_prompt"
	case mcp.Resource:
		return "mcp_resource"
	}
	return "mcp_tool"
}
