package mcppruner_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcppruner"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/observationmask"
)

func TestUnmarshalCaddyfile(t *testing.T) {
	tests := []struct {
		name, input string
		want        string // the configuration, or a part of the error
	}{
		{"the directive alone", "mcp_pruner", `{}`},
		{"everything", `mcp_pruner {
			max_input_chars 100
			prune_id_ttl 5m
			store_limit 10 1MiB
			backend heuristic
			cache_ttl 10s
			cache_max_entries 5
			origins https://a.test
			origins https://b.test https://c.test
			hosts a.test
		}`, `{"max_input_chars":100,"prune_id_ttl":300000000000,"store_limit":{"entries":10,"bytes":1048576},` +
			`"backend":{"backend":"heuristic"},` +
			`"cache_ttl":10000000000,"cache_max_entries":5,"origins":["https://a.test","https://b.test","https://c.test"],` +
			`"hosts":["a.test"]}`},
		{"an argument", "mcp_pruner x", "takes no arguments"},
		{"an unknown subdirective", "mcp_pruner {\n\tlines 10\n}", "unknown subdirective lines"},
		{"a duplicate subdirective", "mcp_pruner {\n\tcache_ttl 1s\n\tcache_ttl 2s\n}", "cache_ttl is given twice"},
		{"no characters", "mcp_pruner {\n\tmax_input_chars 0\n}", "max_input_chars: 0 is not positive"},
		{"a negative number of characters", "mcp_pruner {\n\tmax_input_chars -1\n}", "max_input_chars: -1 is not positive"},
		{"characters that are not a number", "mcp_pruner {\n\tmax_input_chars many\n}",
			`max_input_chars: "many" is not a whole number`},
		{"a ttl of zero", "mcp_pruner {\n\tprune_id_ttl 0\n}", "prune_id_ttl: 0 is not positive"},
		{"a negative cache ttl", "mcp_pruner {\n\tcache_ttl -1s\n}", "cache_ttl: -1s is not positive"},
		{"no cache entries", "mcp_pruner {\n\tcache_max_entries 0\n}", "cache_max_entries: 0 is not positive"},
		{"a limit without a size", "mcp_pruner {\n\tstore_limit 10\n}", `expected "store_limit <entries> <size>"`},
		{"no entries", "mcp_pruner {\n\tstore_limit 0 1MiB\n}", `store_limit: "0" is not a positive whole number`},
		{"no size", "mcp_pruner {\n\tstore_limit 10 0\n}", `store_limit: "0" is not a size`},
		{"an invalid size", "mcp_pruner {\n\tstore_limit 10 big\n}", `store_limit: "big" is not a size`},
		{"a backend without a name", "mcp_pruner {\n\tbackend\n}", `expected "backend <backend>"`},
		{"an unknown backend", "mcp_pruner {\n\tbackend nothing\n}",
			`unknown backend "nothing"; expected deepinfra, heuristic, rerank`},
		{"an argument of a backend without arguments", "mcp_pruner {\n\tbackend heuristic fast\n}",
			"backend heuristic takes no arguments"},
		{"a block of a backend without settings", "mcp_pruner {\n\tbackend heuristic {\n\t\tfast\n\t}\n}",
			"backend heuristic takes no block"},
		{"no origins", "mcp_pruner {\n\torigins\n}", `expected "origins <origins...>"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := new(mcppruner.Handler)
			err := h.UnmarshalCaddyfile(caddyfile.NewTestDispenser(tt.input))
			got := string(caddyconfig.JSON(h, nil))
			if err != nil {
				got = err.Error()
			}
			if err == nil && got != tt.want || err != nil && !strings.Contains(got, tt.want) {
				t.Errorf("got %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestDirectiveRunsBeforeRespond(t *testing.T) {
	adapter := caddyfile.Adapter{ServerType: httpcaddyfile.ServerType{}}
	config, warnings, err := adapter.Adapt([]byte(":8080 {\n\trespond later\n\tmcp_pruner /pruner/*\n}\n"), nil)
	if err != nil || len(warnings) > 0 {
		t.Fatalf("adapt: %v %v", err, warnings)
	}
	pruner, respond := strings.Index(string(config), `"handler":"mcp_pruner"`), strings.Index(string(config),
		`"handler":"static_response"`)
	if pruner < 0 || pruner > respond {
		t.Errorf("mcp_pruner at %d, respond at %d in %s", pruner, respond, config)
	}
}

func TestInvalidConfigurations(t *testing.T) {
	tests := []struct{ name, config, want string }{
		{"a valid configuration", `{}`, ""},
		{"negative characters", `{"max_input_chars":-1}`, "max_input_chars: -1 is negative"},
		{"a negative ttl", `{"prune_id_ttl":-1}`, "prune_id_ttl: -1ns is negative"},
		{"negative entries", `{"store_limit":{"entries":-1}}`, "store_limit: -1 entries"},
		{"negative bytes", `{"store_limit":{"bytes":-1}}`, "store_limit: -1 bytes"},
		{"a negative cache ttl", `{"cache_ttl":-1}`, "cache_ttl: -1ns is negative"},
		{"negative cache entries", `{"cache_max_entries":-1}`, "cache_max_entries: -1 is negative"},
		{"an unknown backend", `{"backend":{"backend":"nothing"}}`, "backend: "},
		{"a backend without a name", `{"backend":{}}`, "backend: "},
		{"P61: a key", `{"api_key":"sk_secret"}`, `unknown field "api_key"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := refusal(t, tt.config); got == "" && tt.want != "" || !strings.Contains(got, tt.want) {
				t.Errorf("got %q", got)
			}
		})
	}
}

func TestOriginsAndHosts(t *testing.T) {
	const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	tests := []struct {
		name         string
		config       string
		origin, host string
		refused      bool
	}{
		{"a local request", `{}`, "", "127.0.0.1:8006", false},
		{"a local page", `{}`, "http://localhost:3000", "localhost", false},
		{"a page of another site", `{}`, "https://evil.test", "127.0.0.1", true},
		{"an allowed page", `{"origins":["https://app.test"]}`, "https://app.test", "127.0.0.1", false},
		{"a foreign host", `{}`, "", "evil.test", true},
		{"an allowed host", `{"hosts":["mcp.test"]}`, "", "mcp.test", false},
	}
	for _, tt := range tests {
		for _, path := range []string{"/rpc", "/mcp"} {
			t.Run(tt.name+" at "+path, func(t *testing.T) {
				h, _ := load(t, tt.config)
				w := serve(t, h, "", fromPage(path, ping, tt.origin, tt.host))
				if refused := w.Code == http.StatusForbidden; refused != tt.refused {
					t.Errorf("got %d %s", w.Code, w.Body)
				}
				if tt.refused && !strings.Contains(w.Body.String(), "of mcp_pruner") {
					t.Errorf("the error does not name the directive: %s", w.Body)
				}
			})
		}
	}
	t.Run("health from any page", func(t *testing.T) {
		h, _ := load(t, `{}`)
		r := fromPage("/health", "", "https://evil.test", "evil.test")
		r.Method = http.MethodGet
		if w := serve(t, h, "", r); w.Code != http.StatusOK {
			t.Errorf("got %d", w.Code)
		}
	})
	t.Run("a request that a gateway has checked", func(t *testing.T) {
		h, _ := load(t, `{}`)
		w, repl := httptest.NewRecorder(), caddy.NewReplacer()
		repl.Set("http.mcp.server", "pruner")
		repl.Set("http.mcp.request_id", "1")
		r := caddyhttp.PrepareRequest(fromPage("/rpc", ping, "https://evil.test", "evil.test"), repl, w,
			new(caddyhttp.Server))
		if err := h.ServeHTTP(w, r, nil); err != nil || w.Code != http.StatusOK {
			t.Errorf("got %d %v", w.Code, err)
		}
	})
	t.Run("a request that only a mask has seen", func(t *testing.T) {
		h, _ := load(t, `{}`)
		ctx, cancel := caddy.NewContext(caddy.Context{Context: t.Context()})
		defer cancel()
		mask := &observationmask.Handler{Server: "pruner"}
		if err := mask.Provision(ctx); err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		r := caddyhttp.PrepareRequest(fromPage("/rpc", ping, "https://evil.test", "evil.test"), caddy.NewReplacer(), w,
			new(caddyhttp.Server))
		err := mask.ServeHTTP(w, r,
			caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error { return h.ServeHTTP(w, r, nil) }))
		if err != nil || w.Code != http.StatusForbidden {
			t.Errorf("got %d %v", w.Code, err)
		}
	})
}

// fromPage returns a request of a page to a loopback address.
func fromPage(path, message, origin, host string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(message))
	r.Host = host
	if origin != "" {
		r.Header.Set("Origin", origin)
	}
	return r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey,
		net.Addr(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})))
}
