package mcpconsole

import (
	"bufio"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/replaceable"
)

// setChanges makes the test page return changes until the test ends.
func setChanges(t *testing.T, live func(*consoleRequest) func() (patch, error)) {
	testChanges.Store(&live)
	t.Cleanup(func() { testChanges.Store(nil) })
}

// stream returns the whole stream of the test page.
func stream(h *Handler, ctx context.Context) string {
	w := httptest.NewRecorder()
	h.newRequest(w, newRequest(http.MethodGet, "/console/live/test").WithContext(ctx)).stream(&page{name: "test",
		live: testLive})
	return w.Body.String()
}

// A stream sends changes within a second, and comments while nothing changes, for an hour.
func TestStream(t *testing.T) {
	setChanges(t, func(*consoleRequest) func() (patch, error) {
		calls := 0
		return func() (patch, error) {
			switch calls++; calls {
			case 1:
				return patch{Text: map[string]string{"a": "1\n</script>"}}, nil
			case 3:
				return patch{Reload: true}, nil
			}
			return patch{}, nil
		}
	})
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		got := stream(&Handler{Path: "/console", stopping: t.Context(), logger: zap.NewNop()}, t.Context())
		events, silence, _ := strings.Cut(got, ":\n\n")
		if events != "retry: 2000\n\ndata: {\"text\":{\"a\":\"1\\n\\u003c/script\\u003e\"}}\n\ndata: {\"reload\":true}\n\n" {
			t.Errorf("got %q", events)
		}
		if comments := strings.Count(silence, ":\n\n") + 1; comments < 3600/16 || comments > 3600/15 {
			t.Errorf("got %d comments", comments)
		}
		if lasted := time.Since(began); lasted != streamLifetime {
			t.Errorf("the stream lasted %s, want %s", lasted, streamLifetime)
		}
	})
}

// A stream ends if its page cannot be read. The browser reconnects later.
func TestStreamWithAnError(t *testing.T) {
	h := load(t, `{}`)
	setChanges(t, func(*consoleRequest) func() (patch, error) {
		return func() (patch, error) { return patch{}, errors.New("gone") }
	})
	if got := stream(h, t.Context()); got != "retry: 2000\n\n" {
		t.Errorf("got %q", got)
	}
}

// A listener is a browser with an open stream.
type listener struct {
	res   *http.Response
	lines *bufio.Scanner
}

func (s *site) listen(ctx context.Context) listener {
	s.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/console/live/test", nil)
	if err != nil {
		s.Fatal(err)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = res.Body.Close() })
	return listener{res, bufio.NewScanner(res.Body)}
}

// A stream and its context end when the configuration is replaced. The browser then reconnects.
func TestStreamEndsWithTheConfiguration(t *testing.T) {
	var ended atomic.Int32
	setChanges(t, func(v *consoleRequest) func() (patch, error) {
		context.AfterFunc(v.r.Context(), func() { ended.Add(1) })
		return func() (patch, error) { return patch{}, nil }
	})
	s := serve(t, "mcp_console")
	first := s.listen(t.Context())
	if !first.lines.Scan() || first.lines.Text() != "retry: 2000" {
		t.Fatalf("got %d %q", first.res.StatusCode, first.lines.Text())
	}
	s.load("mcp_console {\n\tprice 3\n}")
	for first.lines.Scan() {
	}
	if err := first.lines.Err(); err != nil {
		t.Errorf("the stream was cut off: %v", err)
	}
	second := s.listen(t.Context())
	if !second.lines.Scan() {
		t.Fatal("no stream after a reload")
	}
	await.Until(t, "the end of the first stream", func() bool { return ended.Load() == 1 })
}

// A console in the routes of a server can be loaded while the configuration runs: a gateway with
// servers_from loads its servers again when a file changes.
func TestConsoleOfAServer(t *testing.T) {
	ctx, err := caddy.ProvisionContext(new(caddy.Config))
	if err != nil {
		t.Fatal(err)
	}
	app, err := ctx.App("events")
	if err != nil {
		t.Fatal(err)
	}
	if err := app.(*caddyevents.App).Start(); err != nil { // no subscriptions from now on
		t.Fatal(err)
	}
	inner, end := replaceable.NewContext(ctx)
	defer end()
	module, err := inner.LoadModuleByID("http.handlers.mcp_console", []byte("{}"))
	if err != nil {
		t.Fatal(err)
	}
	if w := respond(t, module.(*Handler), newRequest(http.MethodGet, "/console/test/page"), ""); w.Code != http.StatusOK {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
}

// The number of streams is limited. A stream that ends makes room for another.
func TestStreamsAreBounded(t *testing.T) {
	s := serve(t, "mcp_console")
	ctx, leave := context.WithCancel(t.Context())
	for range 8 {
		if l := s.listen(ctx); l.res.StatusCode != http.StatusOK {
			t.Fatalf("got %d", l.res.StatusCode)
		}
	}
	l := s.listen(t.Context())
	if l.res.StatusCode != http.StatusServiceUnavailable || l.res.Header.Get("Retry-After") == "" {
		t.Errorf("got %d %v", l.res.StatusCode, l.res.Header)
	}
	leave()
	await.Until(t, "room for another stream", func() bool {
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		return s.listen(ctx).res.StatusCode == http.StatusOK
	})
}

// A stream outlives the timeouts of the HTTP server.
func TestStreamOutlivesTimeouts(t *testing.T) {
	h := load(t, `{}`)
	var calls atomic.Int32
	setChanges(t, func(*consoleRequest) func() (patch, error) {
		return func() (patch, error) {
			calls.Add(1)
			return patch{Reload: true}, nil
		}
	})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.newRequest(w, r).stream(&page{name: "test", live: testLive})
	}))
	server.Config.ReadTimeout, server.Config.WriteTimeout = 100*time.Millisecond, 100*time.Millisecond
	server.Start()
	defer server.Close()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	lines := bufio.NewScanner(res.Body)
	for events := 0; events < 3; {
		if !lines.Scan() {
			t.Fatalf("the stream ended after %d events: %v", events, lines.Err())
		}
		if strings.HasPrefix(lines.Text(), "data: ") {
			events++
		}
	}
}
