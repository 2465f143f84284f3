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

// streams bounds the number of live pages, over all consoles of the process.
var streams = quota.NewMeter(quota.NewKind("console_streams"), quota.Limits{Entries: 64, OwnerEntries: 8})

const (
	streamInterval     = time.Second      // how often a page is checked for changes
	streamKeepAlive    = 15 * time.Second // interval of keep-alive comments
	streamLifetime     = time.Hour        // then the stream ends; browsers reconnect and authenticate again
	streamWriteTimeout = 10 * time.Second // for one event
)

// stream sends the changes of a page as server-sent events. It ends when the user leaves or the
// configuration stops.
func (v *consoleRequest) stream(p *page) {
	header := v.w.Header()
	header.Set("X-Accel-Buffering", "no")
	if v.r.Method == http.MethodHead {
		header.Set("Content-Type", "text/event-stream")
		return
	}
	owner := cmp.Or(v.User, "@"+ratelimit.Address(clientrequest.Address(v.r)))
	if !streams.Take(owner, 0) {
		header.Set("Retry-After", "10")
		v.fail(httpError(http.StatusServiceUnavailable, "too many live pages are open"))
		return
	}
	defer streams.Give(owner, 0)
	ctx, end := context.WithTimeout(v.r.Context(), streamLifetime)
	defer end()
	defer context.AfterFunc(v.h.stopping, end)()
	v.r = v.r.WithContext(ctx)
	header.Set("Content-Type", "text/event-stream")
	if err := v.follow(p); err != nil && ctx.Err() == nil {
		v.h.logger.Info("live page ended", zap.String("page", p.name), zap.Error(err))
	}
}

// follow writes the changes of a page until the context of the request ends.
func (v *consoleRequest) follow(p *page) error {
	out := http.NewResponseController(v.w)
	_ = out.SetReadDeadline(time.Time{}) // the request has been read
	defer func() { _ = out.SetWriteDeadline(time.Time{}) }()
	write := func(event string) error {
		_ = out.SetWriteDeadline(time.Now().Add(streamWriteTimeout)) // replaces the server's timeout for the whole response
		if _, err := v.w.Write([]byte(event)); err != nil {
			return err
		}
		return out.Flush()
	}
	if err := write("retry: 2000\n\n"); err != nil {
		return err
	}
	changes := p.live(v)
	ticker := time.NewTicker(streamInterval)
	defer ticker.Stop()
	for written := time.Now(); ; {
		event := ""
		change, err := changes()
		if err != nil {
			return err
		}
		if !change.isEmpty() {
			encoded, err := json.Marshal(change) // has no line breaks
			if err != nil {
				return err
			}
			event = "data: " + string(encoded) + "\n\n"
		} else if time.Since(written) >= streamKeepAlive {
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
