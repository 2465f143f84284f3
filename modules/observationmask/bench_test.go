package observationmask

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// BenchmarkServeHTTP serves a small response with and without the handler, and without a network.
func BenchmarkServeHTTP(b *testing.B) {
	h := new(Handler)
	if err := json.Unmarshal([]byte(`{}`), h); err != nil {
		b.Fatal(err)
	}
	ctx, err := caddy.ProvisionContext(new(caddy.Config))
	if err != nil {
		b.Fatal(err)
	}
	if err := h.Provision(ctx); err != nil {
		b.Fatal(err)
	}
	body := []byte(message(strings.Repeat("x", 1000)))
	next := caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.WriteHeader(http.StatusOK)
		_, err := w.Write(body)
		return err
	})
	for _, masked := range []bool{false, true} {
		b.Run("masked="+strconv.FormatBool(masked), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				w := &discard{header: http.Header{}}
				r, _ := http.NewRequest(http.MethodPost, "http://localhost/mcp", strings.NewReader(request))
				r.Header.Set("Content-Type", "application/json")
				r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, new(caddyhttp.Server))
				if masked {
					err = h.ServeHTTP(w, r, next)
				} else {
					err = next.ServeHTTP(w, r)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(int)             {}
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
