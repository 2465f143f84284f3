// Package toolresults stores the originals of tool results that tool_result_mask has masked.
// Gateways of the same process return them.
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

// Open returns the store of originals within limits. The caller must release it.
func Open(ctx caddy.Context, limits store.Limits) (*storepool.Store, error) {
	return storepool.OpenShared(ctx, kind, limits)
}

// Owner returns the owner of the tool results in a request to a model: the user authenticated by
// Caddy, or else the address. Gateway identities do not count, because requests to models do not
// have them.
func Owner(r *http.Request) string {
	if repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer); ok {
		if user, _ := repl.GetString("http.auth.user.id"); user != "" {
			return userOwner(user)
		}
	}
	return addressOwner(clientrequest.Address(r))
}

func userOwner(user string) string { return "user " + user }

// addressOwner returns the owner for an address. All loopback addresses are one owner: an agent may
// reach the model at ::1 and the gateway at 127.0.0.1, both as localhost.
func addressOwner(address string) string {
	network := ratelimit.Address(address)
	if network == localNetwork {
		network = "127.0.0.1"
	}
	return "address " + network
}

// localNetwork is the network of ::1, its only address.
var localNetwork = ratelimit.Address(netip.IPv6Loopback().String())

// Originals gives access to the originals of all open stores.
type Originals struct{}

// Kept implements [gateway.Originals].
func (Originals) Kept() bool { return len(storepool.All(kind)) > 0 }

// Original returns a client's original by its handle: the body of a JSON string.
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

// Places returns where results of a client are kept: under its address and, if it is authenticated,
// also under the user.
func Places(user, address string) (places []storepool.Place) {
	for _, s := range storepool.All(kind) {
		places = append(places, storepool.Place{Store: s, Owner: addressOwner(address)})
		if user != "" {
			places = append(places, storepool.Place{Store: s, Owner: userOwner(user)})
		}
	}
	return places
}
