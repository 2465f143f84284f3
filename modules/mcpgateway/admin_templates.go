package mcpgateway

import (
	"cmp"
	"fmt"
	"net/http"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/resourcetemplate"
)

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
