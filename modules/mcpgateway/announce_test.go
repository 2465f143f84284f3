package mcpgateway

import (
	"testing"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
)

func TestAnnouncementIsReleasedOnce(t *testing.T) {
	place := &placement{site: &caddyhttp.Server{Listen: []string{":8080"}}}
	before, after := &Handler{place: place, logger: zap.NewNop()}, &Handler{place: place, logger: zap.NewNop()}
	before.announcer.announce(before)
	after.announcer.announce(after)
	key := after.announcer.key
	defer after.announcer.stop()
	before.announcer.stop()
	before.announcer.stop()
	if n, _ := announcements.References(key); n != 1 {
		t.Errorf("%d references, want that of the other gateway", n)
	}
}
