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

// number returns a setting: what the first of the variables says that says a number,
// or what is configured, or the default; from 1 to most.
func (h *Handler) number(field string, configured, fallback, most int, variables ...string) int {
	n, from := fallback, field
	if configured != 0 {
		n = configured
	}
	for _, name := range variables {
		if said, ok := setting.EnvInt(name); ok {
			n, from = said, name
			break
		}
	}
	clamped, beyond := setting.Clamp(n, 1, most)
	if beyond {
		h.logger.Warn("setting is out of bounds", zap.String("setting", from), zap.Int("value", n), zap.Int("used", clamped))
	}
	return clamped
}

// seconds is number for a time, which variables have in seconds.
func (h *Handler) seconds(field string, configured caddy.Duration, fallback, most int, variable string) caddy.Duration {
	const second = caddy.Duration(time.Second)
	_, said := setting.EnvInt(variable)
	switch used := min(max(configured, second), caddy.Duration(most)*second); {
	case said || configured == 0:
		return caddy.Duration(h.number(field, 0, fallback, most, variable)) * second
	case used != configured:
		h.logger.Warn("setting is out of bounds", zap.String("setting", field), zap.Duration("value", time.Duration(configured)), zap.Duration("used", time.Duration(used)))
		return used
	}
	return configured
}

const backends = "http.handlers.mcp_pruner.backends"

// loadBackend loads the backend that the environment asks for, or that which is
// configured.
func (h *Handler) loadBackend(ctx caddy.Context) error {
	wanted, asked := backendAsked()
	configured, err := h.backendName()
	if err != nil {
		return err
	}
	h.reranker = string(h.BackendRaw) // which does not outlive its loading
	var module any
	if h.BackendRaw != nil { // also if another is used: what is wrong with it is wrong
		if module, err = ctx.LoadModule(h, "BackendRaw"); err != nil {
			return fmt.Errorf("backend: %w", err)
		}
	}
	if module == nil || asked && wanted != configured {
		if _, err := caddy.GetModule(backends + "." + wanted); err != nil {
			return fmt.Errorf("backend: %s is not part of this build", wanted)
		}
		if module, err = ctx.LoadModuleByID(backends+"."+wanted, nil); err != nil {
			return fmt.Errorf("backend %s: %w", wanted, err)
		}
	}
	backend, ok := module.(Backend)
	if !ok {
		return fmt.Errorf("backend: %T is none", module)
	}
	h.backend = backend
	if asked && configured != "" && wanted != configured {
		h.logger.Info("backend of the environment is used", zap.String("backend", wanted), zap.String("configured", configured))
	}
	return nil
}

// backendName is the name of the backend that is configured, if one is.
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

// backendAsked is which backend the environment asks for, if it does.
func backendAsked() (name string, asked bool) {
	switch said := strings.ToLower(setting.EnvText("KIMI_PRUNING_BACKEND")); said {
	case "deepinfra", "cloud":
		return "deepinfra", true
	default:
		return "heuristic", said != ""
	}
}
