package mcpconsole

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/ratelimit"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/clientrequest"
)

// streams are the pages that are kept up to date, of all consoles of the process.
var streams = quota.NewMeter(quota.NewKind("console_streams"), quota.Limits{Entries: 64, OwnerEntries: 8})

const (
	streamEvery = time.Second      // how often a page is looked at
	streamQuiet = 15 * time.Second // after which proxies and browsers hear that the stream is still there
	streamTime  = time.Hour        // after which it ends. Browsers come back, and are asked again who they are
	streamWrite = 10 * time.Second // how long a browser may take to read
)

// stream keeps a page up to date, by server-sent events: each is what has changed on it. It ends when the user leaves
// or the configuration stops.
func (v *visit) stream(p *page) {
	header := v.w.Header()
	header.Set("X-Accel-Buffering", "no")
	if v.r.Method == http.MethodHead {
		header.Set("Content-Type", "text/event-stream")
		return
	}
	owner := cmp.Or(v.User, "@"+ratelimit.Address(clientrequest.Address(v.r)))
	if !streams.Take(owner, 0) {
		header.Set("Retry-After", "10")
		v.fail(refused(http.StatusServiceUnavailable, "too many pages are kept up to date"))
		return
	}
	defer streams.Give(owner, 0)
	ctx, end := context.WithTimeout(v.r.Context(), streamTime)
	defer end()
	defer context.AfterFunc(v.h.stopping, end)()
	v.r = v.r.WithContext(ctx)
	header.Set("Content-Type", "text/event-stream")
	if err := v.follow(p); err != nil && ctx.Err() == nil {
		v.h.logger.Info("page is no longer kept up to date", zap.String("page", p.name), zap.Error(err))
	}
}

// follow writes what changes on a page until the context of the request ends.
func (v *visit) follow(p *page) error {
	out := http.NewResponseController(v.w)
	_ = out.SetReadDeadline(time.Time{}) // of the request, which has been read
	defer func() { _ = out.SetWriteDeadline(time.Time{}) }()
	write := func(event string) error {
		_ = out.SetWriteDeadline(time.Now().Add(streamWrite)) // in place of the server's for the whole answer
		if _, err := v.w.Write([]byte(event)); err != nil {
			return err
		}
		return out.Flush()
	}
	if err := write("retry: 2000\n\n"); err != nil {
		return err
	}
	changes := p.live(v)
	ticker := time.NewTicker(streamEvery)
	defer ticker.Stop()
	for written := time.Now(); ; {
		event := ""
		change, err := changes()
		if err != nil {
			return err
		}
		if !change.isEmpty() {
			encoded, err := json.Marshal(change) // without line breaks
			if err != nil {
				return err
			}
			event = "data: " + string(encoded) + "\n\n"
		} else if time.Since(written) >= streamQuiet {
			event = ":\n\n"
		}
		if event != "" {
			if err := write(event); err != nil {
				return err
			}
			written = time.Now()
		}
		select {
		case <-v.r.Context().Done():
			return nil
		case <-ticker.C:
		}
	}
}

// isEmpty reports whether nothing has changed.
func (p *patch) isEmpty() bool {
	return len(p.Text) == 0 && len(p.Set) == 0 && len(p.Rows) == 0 && !p.Reload
}
