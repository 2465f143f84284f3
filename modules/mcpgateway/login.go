package mcpgateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/gateway"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/oauth"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/seal"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/clientrequest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/login"
)

// logins are the logins of a gateway to its servers with oauth.
type logins struct {
	scope     string // equal for all gateways that share logins, also on other replicas
	pages     *login.Pages
	store     oauth.Store     // encrypted
	shared    *replicas.Space // shared by all replicas; nil without mcp_store
	stop      func()          // stops following logins of other replicas; nil without mcp_store
	exchanges bool            // a server gets tokens in exchange for those of clients
}

// newLogins returns the logins of a gateway, or nil if no server has oauth.
func newLogins(h *Handler) (*logins, error) {
	if !slices.ContainsFunc(h.Servers, func(s *Server) bool { return s != nil && s.OAuth != nil }) {
		return nil, nil
	}
	key, given, err := sessionKey(h.SessionKey, h.store)
	if err == nil && !given {
		key, err = loginKey(h.ctx)
	}
	if err != nil {
		return nil, err
	}
	l := &logins{scope: h.sharedKey(), store: oauth.Encrypted(h.ctx.Storage(), key)}
	var claim func(context.Context, string, time.Duration) (bool, error)
	if h.store != nil {
		l.shared = h.store.Space("logins")
		l.store = oauth.Shared(l.shared)
		claim = func(ctx context.Context, state string, ttl time.Duration) (bool, error) {
			return l.shared.Swap(ctx, state, "used", replicas.Version{}, []byte{}, ttl)
		}
	}
	l.pages = login.NewPages(login.Pages{
		Gateway:    l.scope,
		Path:       h.paths.below(login.Segment),
		Logger:     h.logger,
		Base:       h.place.base,
		Published:  h.PublicURL != "",
		User:       func(r *http.Request) string { return h.gateway.Account(peerOf(r).User) },
		Changed:    l.changed,
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
	return l, nil
}

// outcomeOf returns the metric label for err.
func outcomeOf(err error) string {
	if err != nil {
		return "failed"
	}
	return "ok"
}

// changed notifies clients that a login has changed. Several handlers may share the login, or a new
// one may have replaced the one of this login.
func (l *logins) changed(server, account string, shared bool) {
	for _, h := range registry.current() {
		if h.sharedKey() == l.scope {
			h.gateway.LoginChanged(server, account, shared)
		}
	}
	if l.shared != nil {
		text, _ := json.Marshal(changedLogin{server, account, shared})     // cannot fail
		_ = l.shared.Announce(context.Background(), l.scope, string(text)) // replicas also poll
	}
}

// A changedLogin is the message between replicas about a changed login.
type changedLogin struct {
	Server, Account string
	Shared          bool
}

// follow notifies the clients of a gateway of logins that change at other replicas.
func (l *logins) follow(g *gateway.Gateway) {
	if l.shared == nil {
		return
	}
	l.stop = l.shared.Follow(l.scope, func(_ context.Context, message string) error {
		var changed changedLogin
		if json.Unmarshal([]byte(message), &changed) == nil {
			l.pages.Reload(changed.Server, changed.Account)
			g.LoginChanged(changed.Server, changed.Account, changed.Shared)
		}
		return nil
	})
}

// close stops following other replicas.
func (l *logins) close() {
	if l.stop != nil {
		l.stop()
	}
}

// add returns the login to a server.
func (l *logins) add(server string, config *login.Config) (*login.Login, error) {
	added, err := l.pages.Add(server, config, l.store, l.folder(server))
	if err != nil {
		return nil, err
	}
	l.exchanges = l.exchanges || added.Exchanges()
	return added, nil
}

// folder returns the folder of the logins to a server in Caddy's storage.
func (l *logins) folder(server string) string {
	return path.Join(loginsFolder, digest([]string{l.scope, server}))
}

// loginsFolder is the folder of all logins in Caddy's storage.
const loginsFolder = "mcp_gateway/oauth"

// loginKey returns the key that encrypts logins if no session_key is set. It is created on first
// use and kept in Caddy's storage.
func loginKey(ctx caddy.Context) ([]byte, error) {
	store, name := ctx.Storage(), path.Join(loginsFolder, "key")
	if err := store.Lock(ctx, name); err != nil {
		return nil, err
	}
	defer store.Unlock(ctx, name) //nolint:errcheck // it expires
	key, err := store.Load(ctx, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		key = seal.NewKey()
		err = store.Store(ctx, name, key)
	case err == nil && len(key) < setting.ShortestKey:
		err = fmt.Errorf("key %s in Caddy's storage is too short", name)
	}
	return key, err
}

// serve serves the login pages.
func (l *logins) serve(w http.ResponseWriter, r *http.Request, policy clientrequest.Policy) error {
	if failure := policy.AdmitHost(r); failure != nil {
		return caddyhttp.Error(failure.Status, failure)
	}
	l.pages.ServeHTTP(w, r)
	return nil
}

// withSubject adds the bearer token of the client to the context of r, if a server has oauth
// exchange. l may be nil.
func (l *logins) withSubject(r *http.Request) *http.Request {
	if l == nil || !l.exchanges {
		return r
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return r
	}
	return r.WithContext(login.WithSubject(r.Context(), strings.TrimSpace(token)))
}

// isOrigin reports whether a URL has only a scheme and a host.
func isOrigin(text string) bool {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil {
		return false
	}
	return strings.Trim(u.Path, "/") == "" && u.RawQuery == "" && u.Fragment == ""
}
