package unlogged

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/iotest"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/unlogged"
)

func TestRoundTrip(t *testing.T) {
	failed := errors.New("failed")
	for name, fails := range map[string]error{"a response": nil, "an error": failed} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodPost, "/mcp?key=secret", nil)
			r.Header = http.Header{"X-Key": {"secret"}, "Mcp-Session-Id": {"secret"}, "Accept": {"*/*"}}
			var session unlogged.Session
			r = r.WithContext(session.In(context.WithValue(r.Context(), caddyhttp.VarsCtxKey, map[string]any{})))
			res, err := Headers(true).RoundTrip(r, func(sent *http.Request) (*http.Response, error) {
				if sent.Header.Get("X-Key") != "secret" || sent.Header.Get("Mcp-Session-Id") != "secret" ||
					sent.URL.RawQuery != "key=secret" {
					t.Errorf("sent %v", sent.Header)
				}
				if fails != nil {
					return nil, fails
				}
				return &http.Response{Header: http.Header{"Mcp-Session-Id": {"new"}, "Allow": {"POST"}}}, nil
			})
			if r.Header.Get("X-Key") != "REDACTED" || r.Header.Get("Mcp-Session-Id") != "REDACTED" ||
				r.Header.Get("Accept") != "*/*" || r.RequestURI != "/mcp" {
				t.Errorf("%v at %s would be logged", r.Header, r.RequestURI)
			}
			if !errors.Is(err, fails) {
				t.Fatal(err)
			}
			if fails != nil {
				return
			}
			if res.Header.Get("Mcp-Session-Id") != "" || res.Header.Get("Allow") != "POST" {
				t.Errorf("%v would be logged", res.Header)
			}
			if session.Restore(res.Header); res.Header.Get("Mcp-Session-Id") != "new" {
				t.Errorf("%v", res.Header)
			}
		})
	}
	t.Run("a body that breaks off", func(t *testing.T) {
		for name, leaves := range map[string]bool{"a connected client": false, "a disconnected client": true} {
			ctx, leave := context.WithCancel(context.WithValue(t.Context(), caddyhttp.VarsCtxKey, map[string]any{}))
			defer leave()
			var session unlogged.Session
			r := httptest.NewRequest(http.MethodGet, "/mcp", nil).WithContext(session.In(ctx))
			res, err := Headers(false).RoundTrip(r, func(*http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: http.StatusOK, Header: http.Header{},
					Body: io.NopCloser(iotest.ErrReader(failed))}, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if leaves {
				leave()
			}
			_, err = io.ReadAll(res.Body)
			if (err == nil) != leaves || session.Canceled() != leaves {
				t.Errorf("%s: %v, canceled %t", name, err, session.Canceled())
			}
		}
	})
	t.Run("a health check", func(t *testing.T) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("X-Key", "secret")
		_, _ = Headers(true).RoundTrip(r, func(*http.Request) (*http.Response, error) { return nil, failed })
		if r.Header.Get("X-Key") != "secret" {
			t.Errorf("%v", r.Header)
		}
	})
	t.Run("without headers", func(t *testing.T) {
		r := httptest.NewRequest(http.MethodPost, "/mcp", nil)
		r.Header.Set("Accept", "*/*")
		r = r.WithContext(context.WithValue(r.Context(), caddyhttp.VarsCtxKey, map[string]any{}))
		_, _ = Headers(false).RoundTrip(r, func(sent *http.Request) (*http.Response, error) {
			if sent.Header.Get("Accept") != "*/*" {
				t.Errorf("sent %v", sent.Header)
			}
			return nil, failed
		})
		if len(r.Header) > 0 {
			t.Errorf("%v would be logged", r.Header)
		}
	})
}
