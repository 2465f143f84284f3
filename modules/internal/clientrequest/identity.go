// Package clientrequest tells which client a request comes from, and refuses requests of
// web pages that must not send any.
package clientrequest

import (
	"net/http"

	"github.com/caddyserver/caddy/v2"
)

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
