package mcpgateway

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/resourcetemplate"
)

// sharedTemplates are the resource templates that all replicas of a gateway host. They are one
// value in the shared store.
type sharedTemplates struct {
	shared *replicas.Space
	stop   func() // stops following

	mu sync.Mutex // held while local templates are synchronized
}

// maxSharedTemplates is the maximum size of the value in bytes.
const maxSharedTemplates = 4 << 20

// followTemplates applies the shared templates whenever another replica changes them. If the store
// has lost them, it stores those of this replica.
func (h *Handler) followTemplates() {
	if h.store == nil {
		return
	}
	h.templates = &sharedTemplates{shared: h.store.Space("templates")}
	h.templates.stop = h.templates.shared.Follow(h.sharedKey(), func(ctx context.Context, _ string) error {
		return h.shareTemplates(ctx, func(*resourcetemplate.Set) error { return nil })
	})
}

// changeTemplates changes the templates of the gateway on all replicas. change may run more than
// once, each time on a copy.
func (h *Handler) changeTemplates(ctx context.Context, change func(*resourcetemplate.Set) error) error {
	if h.templates != nil {
		err := h.shareTemplates(ctx, change)
		if errors.Is(err, replicas.ErrUnavailable) || errors.Is(err, replicas.ErrFull) {
			return adminErrorf(http.StatusServiceUnavailable, "store_unavailable", "templates not changed: %v", err)
		}
		return err
	}
	if err := change(h.retained.Templates); err != nil {
		return err
	}
	h.gateway.TemplatesChanged()
	return nil
}

// shareTemplates changes the shared templates, and applies the result here.
func (h *Handler) shareTemplates(ctx context.Context, change func(*resourcetemplate.Set) error) error {
	t, here := h.templates, h.retained.Templates
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []resourcetemplate.Template
	changed, err := t.shared.Change(ctx, h.sharedKey(), "", func(value []byte) ([]byte, error) {
		all = nil
		if value == nil {
			all = here.All() // the store may have lost them
		} else if err := json.Unmarshal(value, &all); err != nil {
			return nil, fmt.Errorf("templates in the shared store: %w", err)
		}
		set := resourcetemplate.New()
		defer set.Close()
		if err := set.Replace(all); err != nil {
			return nil, err
		}
		if err := change(set); err != nil {
			return nil, err
		}
		all = set.All()
		if value == nil && len(all) == 0 {
			return nil, nil
		}
		text, err := json.Marshal(all)
		if err == nil && len(text) > maxSharedTemplates {
			err = invalidRequest(fmt.Errorf("text: shared templates would exceed %d bytes", maxSharedTemplates))
		}
		return text, err
	})
	if err != nil {
		return err
	}
	if changed {
		_ = t.shared.Announce(ctx, h.sharedKey(), "") // replicas also poll
	}
	before, _ := json.Marshal(here.All()) // cannot fail
	if after, _ := json.Marshal(all); bytes.Equal(before, after) {
		return nil
	}
	if err := here.Replace(all); err != nil {
		return err
	}
	h.gateway.TemplatesChanged()
	return nil
}

// A gatewayTemplate is a resource template that a gateway hosts.
type gatewayTemplate struct {
	Gateway string `json:"gateway,omitempty"`
	resourcetemplate.Template
}

func (c *adminCall) listTemplates() (int, any, error) {
	found, err := c.gateways()
	if err != nil {
		return 0, nil, err
	}
	all := []gatewayTemplate{}
	for _, h := range found {
		for _, t := range h.retained.Templates.All() {
			all = append(all, gatewayTemplate{h.Name, t})
		}
	}
	return http.StatusOK, all, nil
}

func (c *adminCall) putTemplate() (int, any, error) {
	c.action = "put_template"
	var body gatewayTemplate
	if err := c.decode(&body, false); err != nil {
		return 0, nil, err
	}
	c.gateway, c.server, c.name = cmp.Or(body.Gateway, c.gateway), body.Server, body.Name
	h, err := c.oneGateway("gateway", func(*Handler) bool { return true })
	if err != nil {
		return 0, nil, err
	}
	if s := h.byName[body.Server]; s != nil {
		body.Server = s.Name
	} else if body.Server != "" {
		return 0, nil, adminErrorf(http.StatusBadRequest, "invalid_request", "server: unknown server %q", body.Server)
	}
	created := false
	if err := h.changeTemplates(c.r.Context(), func(set *resourcetemplate.Set) (err error) {
		if created, err = set.Put(body.Template); err != nil {
			return invalidRequest(err)
		}
		return nil
	}); err != nil {
		return 0, nil, err
	}
	body.Gateway = h.Name
	if created {
		return http.StatusCreated, body, nil
	}
	return http.StatusOK, body, nil
}

func (c *adminCall) deleteTemplate() (int, any, error) {
	c.action, c.name = "delete_template", c.r.PathValue("name")
	h, err := c.oneGateway(fmt.Sprintf("template %q", c.name), func(h *Handler) bool {
		return h.retained.Templates.Has(c.name)
	})
	if err != nil {
		return 0, nil, err
	}
	if err := h.changeTemplates(c.r.Context(), func(set *resourcetemplate.Set) error {
		if !set.Delete(c.name) { // deleted by another request
			return notFound("template %q not found", c.name)
		}
		return nil
	}); err != nil {
		return 0, nil, err
	}
	return http.StatusNoContent, nil, nil
}
