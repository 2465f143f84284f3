package mcpgateway

import (
	"net/http"
	"slices"
	"strconv"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/hosted"
)

// A gatewayTemplate is a resource template that a gateway hosts.
type gatewayTemplate struct {
	Gateway string `json:"gateway,omitempty"`
	hosted.Template
}

func (c *adminCall) listTemplates() (int, any, error) {
	found, err := c.gateways()
	if err != nil {
		return 0, nil, err
	}
	all := []gatewayTemplate{}
	for _, h := range found {
		for _, t := range h.templates.All() {
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
	c.gateway, c.server, c.name = body.Gateway, body.Server, body.Name
	if body.Gateway == "" {
		body.Gateway = c.r.URL.Query().Get("gateway")
	}
	found, err := gatewaysNamed(body.Gateway)
	if err != nil {
		return 0, nil, err
	}
	h, err := only(found, "gateway")
	if err != nil {
		return 0, nil, err
	}
	c.gateway = h.Name
	if s := h.byName[body.Server]; s != nil {
		body.Server = s.Name
	} else if body.Server != "" {
		return 0, nil, adminErrorf(http.StatusBadRequest, "invalid_request", "server: there is no %q", body.Server)
	}
	created, err := h.templates.Put(body.Template)
	if err != nil {
		return 0, nil, invalid(err)
	}
	h.joined.TemplatesChanged()
	body.Gateway = h.Name
	if created {
		return http.StatusCreated, body, nil
	}
	return http.StatusOK, body, nil
}

func (c *adminCall) deleteTemplate() (int, any, error) {
	c.action, c.name = "delete_template", c.r.PathValue("name")
	all, err := c.gateways()
	if err != nil {
		return 0, nil, err
	}
	var having []*Handler
	for _, h := range all {
		if slices.ContainsFunc(h.templates.All(), func(t hosted.Template) bool { return t.Name == c.name }) {
			having = append(having, h)
		}
	}
	h, err := only(having, "template "+quoted(c.name))
	if err != nil {
		return 0, nil, err
	}
	c.gateway = h.Name
	if !h.templates.Delete(c.name) {
		return 0, nil, notFound("there is no template %q", c.name)
	}
	h.joined.TemplatesChanged()
	return http.StatusNoContent, nil, nil
}

func quoted(name string) string { return strconv.Quote(name) }
