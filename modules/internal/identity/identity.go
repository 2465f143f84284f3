// Package identity tells clients apart.
package identity

import (
	"net/http"

	"github.com/caddyserver/caddy/v2"
)

// Of is whom a request comes from: who the gateway or Caddy's authentication says it
// is, or nobody in particular.
func Of(r *http.Request) string {
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
