package mcpgateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/oauth"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/seal"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/clientrequest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/login"
)

// openPages sets up the login pages if a server has oauth.
func (h *Handler) openPages() error {
	if !slices.ContainsFunc(h.Servers, func(s *Server) bool { return s != nil && s.OAuth != nil }) {
		return nil
	}
	key, err := h.loginKey()
	if err != nil {
		return err
	}
	h.loginStore = oauth.Encrypted(h.ctx.Storage(), key)
	var claim func(context.Context, string, time.Duration) (bool, error)
	if h.store != nil {
		h.logins = h.store.Space("logins")
		h.loginStore = oauth.Shared(h.logins)
		claim = func(ctx context.Context, state string, ttl time.Duration) (bool, error) {
			return h.logins.Swap(ctx, state, "used", replicas.Version{}, []byte{}, ttl)
		}
	}
	h.pages = login.NewPages(login.Pages{
		Gateway:    h.loginScope(),
		Path:       h.paths.below(login.Segment),
		Logger:     h.logger,
		Base:       h.place.base,
		Published:  h.PublicURL != "",
		IsLocal:    isLocal,
		User:       func(r *http.Request) string { return h.gateway.Account(peerOf(r).User) },
		Changed:    h.loginChanged,
		ClaimState: claim,
		Count:      func(server string, err error) { loginCount.WithLabelValues(server, outcomeOf(err)).Inc() },
		CountToken: func(server, grant string, err error) {
			tokenRequests.WithLabelValues(server, grant, outcomeOf(err)).Inc()
		},
		Probe: func(ctx context.Context, server string) {
			ctx, cancel := context.WithTimeout(ctx, time.Duration(h.HealthTimeout))
			defer cancel()
			_ = h.byName[server].ping(ctx) // only the challenge of the server matters
		},
	}, key)
	return nil
}

// outcomeOf returns the metric label for err.
func outcomeOf(err error) string {
	if err != nil {
		return "failed"
	}
	return "ok"
}

// loginScope returns a text that is equal for all gateways that share logins, also on other
// replicas.
func (h *Handler) loginScope() string { return h.Name + "\x00" + h.MCPPath }

// loginChanged notifies clients that a login has changed. Other handlers may share the login, or
// have replaced this one.
func (h *Handler) loginChanged(server, account string, shared bool) {
	for _, other := range registry.current() {
		if other.loginScope() == h.loginScope() {
			other.gateway.LoginChanged(server, account, shared)
		}
	}
	if h.logins != nil {
		text, _ := json.Marshal(changedLogin{server, account, shared})            // cannot fail
		_ = h.logins.Announce(context.Background(), h.loginScope(), string(text)) // replicas also poll
	}
}

// A changedLogin is the message between replicas about a changed login.
type changedLogin struct {
	Server, Account string
	Shared          bool
}

// followLogins notifies clients of logins that change at other replicas.
func (h *Handler) followLogins() {
	if h.logins == nil {
		return
	}
	h.stopLogins = h.logins.Follow(h.loginScope(), func(_ context.Context, message string) error {
		var changed changedLogin
		if json.Unmarshal([]byte(message), &changed) == nil {
			h.pages.Reload(changed.Server, changed.Account)
			h.gateway.LoginChanged(changed.Server, changed.Account, changed.Shared)
		}
		return nil
	})
}

// newLogin returns the login to a server.
func (h *Handler) newLogin(s *Server) (*login.Login, error) {
	return h.pages.Add(s.Name, s.OAuth, h.loginStore, h.loginFolder(s))
}

// loginFolder returns the folder of the logins to a server in Caddy's storage.
func (h *Handler) loginFolder(s *Server) string {
	return path.Join(loginsFolder, digest([]string{h.loginScope(), s.Name}))
}

// loginsFolder is the folder of all logins in Caddy's storage.
const loginsFolder = "mcp_gateway/oauth"

// loginKey returns the key that encrypts logins: session_key, or a key that is created on first use
// and kept in Caddy's storage.
func (h *Handler) loginKey() ([]byte, error) {
	if key, given, err := h.sessionKey(); given || err != nil {
		return key, err
	}
	store, name := h.ctx.Storage(), path.Join(loginsFolder, "key")
	if err := store.Lock(h.ctx, name); err != nil {
		return nil, err
	}
	defer store.Unlock(h.ctx, name) //nolint:errcheck // it expires
	key, err := store.Load(h.ctx, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		key = seal.NewKey()
		err = store.Store(h.ctx, name, key)
	case err == nil && len(key) < setting.ShortestKey:
		err = fmt.Errorf("key %s in Caddy's storage is too short", name)
	}
	return key, err
}

// servePages serves the login pages.
func (h *Handler) servePages(w http.ResponseWriter, r *http.Request) error {
	if failure := h.originPolicy().AdmitHost(r); failure != nil {
		return caddyhttp.Error(failure.Status, failure)
	}
	h.pages.ServeHTTP(w, r)
	return nil
}

// withSubject adds the bearer token of the client to the context of r, if a server has oauth
// exchange.
func (h *Handler) withSubject(r *http.Request) *http.Request {
	if !slices.ContainsFunc(h.Servers, func(s *Server) bool { return s.login != nil && s.login.Exchanges() }) {
		return r
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return r
	}
	return r.WithContext(login.WithSubject(r.Context(), strings.TrimSpace(token)))
}

// isLocal reports whether the client that sent r is on this machine.
func isLocal(r *http.Request) bool {
	address := clientrequest.Address(r)
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = host
	}
	ip, err := netip.ParseAddr(address)
	return err == nil && ip.Unmap().IsLoopback()
}

// isOrigin reports whether a URL has only a scheme and a host.
func isOrigin(text string) bool {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil {
		return false
	}
	return strings.Trim(u.Path, "/") == "" && u.RawQuery == "" && u.Fragment == ""
}
