// Package clientrequest tells which client a request comes from, and refuses requests of
// web pages that must not send any.
package clientrequest

import (
	"net/http"
	"net/url"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// Address returns where a request comes from, as Caddy's trusted_proxies say.
func Address(r *http.Request) string {
	address, _ := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
	if address == "" {
		return r.RemoteAddr
	}
	return address
}

// URL returns the address of r as the client has sent it, whatever handlers in front have made of it.
func URL(r *http.Request) *url.URL {
	if original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok && original.URL != nil {
		return original.URL
	}
	return r.URL
}

// Identity returns the client of a request, as authenticated by the gateway or else by
// Caddy. It is empty for a request that was not authenticated.
func Identity(r *http.Request) string {
	repl, _ := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if repl == nil {
		return ""
	}
	if id, _ := repl.GetString("http.mcp.client"); id != "" {
		return id
	}
	id, _ := repl.GetString("http.auth.user.id")
	return id
}
