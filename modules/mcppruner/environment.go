package mcppruner

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
)

// intSetting returns the value of an integer setting, clamped to 1..most: that of the first of
// variables that is a whole number, else the configured value, else the fallback.
func (h *Handler) intSetting(field string, configured, fallback, most int, variables ...string) int {
	n, from := fallback, field
	if configured != 0 {
		n = configured
	}
	for _, name := range variables {
		if value, ok := setting.EnvInt(name); ok {
			n, from = value, name
			break
		}
	}
	clamped, beyond := setting.Clamp(n, 1, most)
	if beyond {
		h.logger.Warn("setting is out of bounds",
			zap.String("setting", from), zap.Int("value", n), zap.Int("used", clamped))
	}
	return clamped
}

// secondsSetting is intSetting for a duration. The variable, the fallback and most are in seconds.
func (h *Handler) secondsSetting(field string, configured caddy.Duration, fallback, most int,
	variable string) caddy.Duration {
	const second = caddy.Duration(time.Second)
	_, inEnv := setting.EnvInt(variable)
	switch used := min(max(configured, second), caddy.Duration(most)*second); {
	case inEnv || configured == 0:
		return caddy.Duration(h.intSetting(field, 0, fallback, most, variable)) * second
	case used != configured:
		h.logger.Warn("setting is out of bounds", zap.String("setting", field),
			zap.Duration("value", time.Duration(configured)), zap.Duration("used", time.Duration(used)))
		return used
	}
	return configured
}

const backends = "http.handlers.mcp_pruner.backends"

// loadBackend loads the backend that the environment names, else the configured one.
func (h *Handler) loadBackend(ctx caddy.Context) error {
	wanted, inEnv := backendFromEnv()
	configured, err := h.backendName()
	if err != nil {
		return err
	}
	h.backendConfig = string(h.BackendRaw) // LoadModule clears BackendRaw
	var module any
	if h.BackendRaw != nil { // even if the environment overrides it, to report its errors
		if module, err = ctx.LoadModule(h, "BackendRaw"); err != nil {
			return fmt.Errorf("backend: %w", err)
		}
	}
	if module == nil || inEnv && wanted != configured {
		if _, err := caddy.GetModule(backends + "." + wanted); err != nil {
			return fmt.Errorf("backend: %s is not part of this build", wanted)
		}
		if module, err = ctx.LoadModuleByID(backends+"."+wanted, nil); err != nil {
			return fmt.Errorf("backend %s: %w", wanted, err)
		}
	}
	backend, ok := module.(Backend)
	if !ok {
		return fmt.Errorf("backend: %T is not a backend of mcp_pruner", module)
	}
	h.backend = backend
	if inEnv && configured != "" && wanted != configured {
		h.logger.Info("using the backend that the environment names",
			zap.String("backend", wanted), zap.String("configured", configured))
	}
	return nil
}

// backendName returns the name of the configured backend, or "".
func (h *Handler) backendName() (string, error) {
	if string(h.BackendRaw) == "null" {
		h.BackendRaw = nil
	}
	if h.BackendRaw == nil {
		return "", nil
	}
	var inline struct {
		Backend string `json:"backend"`
	}
	if err := json.Unmarshal(h.BackendRaw, &inline); err != nil {
		return "", fmt.Errorf("backend: %w", err)
	}
	return inline.Backend, nil
}

// backendFromEnv returns the backend that KIMI_PRUNING_BACKEND selects. inEnv reports whether that
// variable is set.
func backendFromEnv() (name string, inEnv bool) {
	switch value := strings.ToLower(setting.EnvText("KIMI_PRUNING_BACKEND")); value {
	case "deepinfra", "cloud":
		return "deepinfra", true
	default:
		return "heuristic", value != ""
	}
}
