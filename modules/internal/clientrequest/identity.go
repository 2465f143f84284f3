// Package clientrequest identifies the client of a request, and rejects requests of untrusted web
// pages.
package clientrequest

import (
	"net/http"
	"net/url"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// Address returns the client's address, determined with Caddy's trusted_proxies.
func Address(r *http.Request) string {
	address, _ := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
	if address == "" {
		return r.RemoteAddr
	}
	return address
}

// URL returns the URL of r as the client sent it, before handlers in front changed it.
func URL(r *http.Request) *url.URL {
	original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request)
	if ok && original.URL != nil {
		return original.URL
	}
	return r.URL
}

// Identity returns the client of a request, as authenticated by the gateway or else by Caddy. It is
// empty for an unauthenticated request.
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
