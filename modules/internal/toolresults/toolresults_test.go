package toolresults

import (
	"net/http/httptest"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/store"
)

// An original belongs to the user who sent it or, without a user, to the address it came from.
func TestOriginalsBelongToWhoSentThem(t *testing.T) {
	type client struct{ user, address string }
	for _, test := range []struct {
		name         string
		sent, wanted client
		found        bool
	}{
		{"the same address", client{"", "192.0.2.1"}, client{"", "192.0.2.1"}, true},
		{"the same address at another port", client{"", "192.0.2.1:1"}, client{"", "192.0.2.1:2"}, true},
		{"another address", client{"", "192.0.2.1"}, client{"", "192.0.2.2"}, false},
		{"the two loopback addresses of localhost", client{"", "[::1]:1"}, client{"", "127.0.0.1"}, true},
		{"another loopback address", client{"", "127.0.0.1"}, client{"", "127.0.0.2"}, false},
		{"the same user at another address", client{"ann", "192.0.2.1"}, client{"ann", "192.0.2.2"}, true},
		{"another user at the same address", client{"ann", "192.0.2.1"}, client{"bob", "192.0.2.1"}, false},
		{"no user at the same address", client{"ann", "192.0.2.1"}, client{"", "192.0.2.1"}, false},
		{"a user at the address of an anonymous client", client{"", "192.0.2.1"}, client{"ann", "192.0.2.1"}, true},
		{"a user at another address than an anonymous client", client{"", "192.0.2.1"}, client{"ann", "192.0.2.2"}, false},
		{"a user whose name is an address", client{"", "192.0.2.1"}, client{"192.0.2.1", "192.0.2.2"}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, err := Open(caddy.Context{}, store.Limits{Entries: 1, Bytes: 1, TTL: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Release()
			r := httptest.NewRequest("POST", "/", nil)
			r.RemoteAddr = test.sent.address
			repl := caddy.NewReplacer()
			repl.Set("http.auth.user.id", test.sent.user)
			r = caddyhttp.PrepareRequest(r, repl, nil, new(caddyhttp.Server))
			if !s.Put(Owner(r), "obs_0123456789", []byte("A")) {
				t.Fatal("the original was not stored")
			}
			if _, ok := (Originals{}).Original(test.wanted.user, test.wanted.address, "obs_0123456789"); ok != test.found {
				t.Errorf("found %t, want %t", ok, test.found)
			}
		})
	}
}
