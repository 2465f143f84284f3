package mcpgateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/resourcetemplate"
)

// sharedTemplates are the templates that all replicas of a gateway host: one value, which each of them
// follows.
type sharedTemplates struct {
	common *replicas.Space
	stop   func() // ends following

	mu sync.Mutex // held while the templates here are made those of all
}

// maxSharedTemplates is how many bytes they may have together.
const maxSharedTemplates = 4 << 20

// followTemplates takes over the templates of other replicas, from now on. If the store has lost them, it
// gets those that this replica has.
func (h *Handler) followTemplates() {
	if h.store == nil {
		return
	}
	h.templates = &sharedTemplates{common: h.store.Space("templates")}
	h.templates.stop = h.templates.common.Follow(h.sharedPlace(), func(ctx context.Context, _ string) error {
		return h.shareTemplates(ctx, func(*resourcetemplate.Set) error { return nil })
	})
}

// changeTemplates changes the templates of the gateway, at all replicas. The change may be made more than
// once, on a copy of them.
func (h *Handler) changeTemplates(ctx context.Context, change func(*resourcetemplate.Set) error) error {
	if h.templates != nil {
		err := h.shareTemplates(ctx, change)
		if errors.Is(err, replicas.ErrUnavailable) || errors.Is(err, replicas.ErrFull) {
			return adminErrorf(http.StatusServiceUnavailable, "store_unavailable", "nothing is changed: %v", err)
		}
		return err
	}
	if err := change(h.retained.Templates); err != nil {
		return err
	}
	h.gateway.TemplatesChanged()
	return nil
}

// shareTemplates changes the templates of all replicas, and takes them over.
func (h *Handler) shareTemplates(ctx context.Context, change func(*resourcetemplate.Set) error) error {
	t, here := h.templates, h.retained.Templates
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []resourcetemplate.Template
	changed, err := t.common.Change(ctx, h.sharedPlace(), "", func(value []byte) ([]byte, error) {
		all = nil
		if value == nil {
			all = here.All() // which the store may have lost
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
		if all = set.All(); value == nil && len(all) == 0 {
			return nil, nil
		}
		text, err := json.Marshal(all)
		if err == nil && len(text) > maxSharedTemplates {
			err = invalid(fmt.Errorf("text: the templates that replicas share would have more than %d bytes", maxSharedTemplates))
		}
		return text, err
	})
	if err != nil {
		return err
	}
	if changed {
		_ = t.common.Announce(ctx, h.sharedPlace(), "") // they look for themselves, too
	}
	before, _ := json.Marshal(here.All()) // texts only
	if after, _ := json.Marshal(all); bytes.Equal(before, after) {
		return nil
	}
	if err := here.Replace(all); err != nil {
		return err
	}
	h.gateway.TemplatesChanged()
	return nil
}
