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

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/gateway"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/resourcetemplate"
)

// hostedTemplates are the resource templates that a gateway hosts. With mcp_store, its replicas
// share them as one value in the store.
type hostedTemplates struct {
	gateway *gateway.Gateway
	here    *resourcetemplate.Set

	shared *replicas.Space // nil without mcp_store
	key    string          // in shared
	stop   func()          // stops following; nil without mcp_store

	mu sync.Mutex // held while here is synchronized with shared
}

// maxSharedTemplates is the maximum size of the value in bytes.
const maxSharedTemplates = 4 << 20

// newHostedTemplates returns the templates of a gateway. It applies the shared templates whenever
// another replica changes them. If the store has lost them, it stores those of this replica.
func newHostedTemplates(h *Handler) *hostedTemplates {
	t := &hostedTemplates{gateway: h.gateway, here: h.kept.retained.Templates, key: h.sharedKey()}
	if h.store != nil {
		t.shared = h.store.Space("templates")
		t.stop = t.shared.Follow(t.key, func(ctx context.Context, _ string) error {
			return t.share(ctx, func(*resourcetemplate.Set) error { return nil })
		})
	}
	return t
}

// close stops following other replicas.
func (t *hostedTemplates) close() {
	if t.stop != nil {
		t.stop()
	}
}

// change changes the templates on all replicas. change may run more than once, each time on a copy.
func (t *hostedTemplates) change(ctx context.Context, change func(*resourcetemplate.Set) error) error {
	if t.shared != nil {
		err := t.share(ctx, change)
		if errors.Is(err, replicas.ErrUnavailable) || errors.Is(err, replicas.ErrFull) {
			return adminErrorf(http.StatusServiceUnavailable, "store_unavailable", "templates not changed: %v", err)
		}
		return err
	}
	if err := change(t.here); err != nil {
		return err
	}
	t.gateway.TemplatesChanged()
	return nil
}

// share changes the shared templates, and applies the result here.
func (t *hostedTemplates) share(ctx context.Context, change func(*resourcetemplate.Set) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []resourcetemplate.Template
	changed, err := t.shared.Change(ctx, t.key, "", func(value []byte) ([]byte, error) {
		all = nil
		if value == nil {
			all = t.here.All() // the store may have lost them
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
		_ = t.shared.Announce(ctx, t.key, "") // replicas also poll
	}
	before, _ := json.Marshal(t.here.All()) // cannot fail
	if after, _ := json.Marshal(all); bytes.Equal(before, after) {
		return nil
	}
	if err := t.here.Replace(all); err != nil {
		return err
	}
	t.gateway.TemplatesChanged()
	return nil
}

// A gatewayTemplate is a resource template that a gateway hosts.
type gatewayTemplate struct {
	Gateway string `json:"gateway,omitempty"`
	resourcetemplate.Template
}

// listTemplates returns the templates that the gateway hosts.
func (g adminGateway) listTemplates() (all []gatewayTemplate) {
	for _, t := range g.templates.here.All() {
		all = append(all, gatewayTemplate{g.Name, t})
	}
	return all
}

func (c *adminCall) putTemplate() (any, error) {
	c.action = "put_template"
	var body gatewayTemplate
	if err := c.decode(&body, false); err != nil {
		return nil, err
	}
	c.gateway, c.server, c.name = cmp.Or(body.Gateway, c.gateway), body.Server, body.Name
	g, err := c.oneGateway("gateway", func(adminGateway) bool { return true })
	if err != nil {
		return nil, err
	}
	if s := g.byName[body.Server]; s != nil {
		body.Server = s.Name
	} else if body.Server != "" {
		return nil, adminErrorf(http.StatusBadRequest, "invalid_request", "server: unknown server %q", body.Server)
	}
	created := false
	if err := g.templates.change(c.r.Context(), func(set *resourcetemplate.Set) (err error) {
		if created, err = set.Put(body.Template); err != nil {
			return invalidRequest(err)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	body.Gateway = g.Name
	if created {
		c.status = http.StatusCreated
	}
	return body, nil
}

func (c *adminCall) deleteTemplate() (any, error) {
	c.action, c.name = "delete_template", c.r.PathValue("name")
	g, err := c.oneGateway(fmt.Sprintf("template %q", c.name), func(g adminGateway) bool {
		return g.templates.here.Has(c.name)
	})
	if err != nil {
		return nil, err
	}
	if err := g.templates.change(c.r.Context(), func(set *resourcetemplate.Set) error {
		if !set.Delete(c.name) { // deleted by another request
			return notFound("template %q not found", c.name)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	c.status = http.StatusNoContent
	return nil, nil
}
