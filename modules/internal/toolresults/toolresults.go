// Package toolresults has the originals of the tool results that tool_result_mask has
// masked, for the gateways of the same process that give them back.
package toolresults

import (
	"net/http"
	"net/netip"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/ratelimit"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/store"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/clientrequest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/storepool"
)

// Open returns the store of originals within limits. It must be released.
func Open(ctx caddy.Context, limits store.Limits) (*storepool.Store, error) {
	return storepool.OpenCommon(ctx, kept, limits)
}

// Owner returns whom the tool results in a request to a model belong to: the user that
// Caddy has authenticated, or without one the address. A name that a gateway knows its
// client by is none that a request to a model has.
func Owner(r *http.Request) string {
	if repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer); ok {
		if user, _ := repl.GetString("http.auth.user.id"); user != "" {
			return ofUser(user)
		}
	}
	return ofAddress(clientrequest.Address(r))
}

func ofUser(user string) string { return "user " + user }

// ofAddress returns the owner at an address. An agent on this machine may reach the model
// at ::1 and the gateway at 127.0.0.1, by the same name.
func ofAddress(address string) string {
	network := ratelimit.Address(address)
	if network == localNetwork {
		network = "127.0.0.1"
	}
	return "address " + network
}

// localNetwork is that of ::1, the only address in it.
var localNetwork = ratelimit.Address(netip.IPv6Loopback().String())

// Originals are those of all stores that are open.
type Originals struct{}

// Kept implements [gateway.Originals].
func (Originals) Kept() bool { return len(storepool.All(kept)) > 0 }

// Original returns the result that is kept for a client under a handle: the body of a JSON string.
func (Originals) Original(user, address, handle string) (body []byte, ok bool) {
	for _, p := range Places(user, address) {
		body, first, ok := p.Store.GetFirst(p.Owner, handle)
		if !ok {
			continue
		}
		if first {
			Recovered.WithLabelValues().Inc()
		}
		return body, true
	}
	return nil, false
}

// Places returns where results are kept for a client. A user also finds what belongs to its
// address: without authentication it would.
func Places(user, address string) (places []storepool.Place) {
	for _, s := range storepool.All(kept) {
		places = append(places, storepool.Place{Store: s, Owner: ofAddress(address)})
		if user != "" {
			places = append(places, storepool.Place{Store: s, Owner: ofUser(user)})
		}
	}
	return places
}
