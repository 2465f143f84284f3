package mcpgateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// loginGateway returns a gateway with one server that requires a login.
func loginGateway(t *testing.T, storage, name, mcpPath, server string) *Handler {
	t.Helper()
	ctx, err := caddy.ProvisionContext(&caddy.Config{StorageRaw: json.RawMessage(fmt.Sprintf(`{"module":"file_system",`+
		`"root":%q}`, storage))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := caddy.NewContext(ctx)
	t.Cleanup(cancel)
	module, err := ctx.LoadModuleByID("http.handlers.mcp_gateway", json.RawMessage(fmt.Sprintf(
		`{"name":%q,"mcp_path":%q,"servers":[{"name":%q,"routes":[{}],"oauth":{"account":"per_client",`+
			`"resource":"https://files.example.com/mcp"}}]}`,
		name, mcpPath, server)))
	if err != nil {
		t.Fatal(err)
	}
	return module.(*Handler)
}

// Clients with the same name at different gateways have different logins.
func TestGatewaysOfOneCaddyHaveTheirOwnLogins(t *testing.T) {
	storage := t.TempDir()
	h := loginGateway(t, storage, "one", "/mcp", "files")
	if err := h.logins.store.Store(t.Context(), h.logins.folder("files")+"/key", []byte("login")); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		title, name, path, server string
		shared                    bool
	}{
		{"the same gateway", "one", "/mcp", "files", true},
		{"another name", "two", "/mcp", "files", false},
		{"a name in another case", "One", "/mcp", "files", false},
		{"another path", "one", "/other", "files", false},
		{"another server", "one", "/mcp", "Files", false},
	} {
		t.Run(tt.title, func(t *testing.T) {
			other := loginGateway(t, storage, tt.name, tt.path, tt.server)
			_, err := other.logins.store.Load(t.Context(), other.logins.folder(tt.server)+"/key")
			if errors.Is(err, fs.ErrNotExist) == tt.shared {
				t.Errorf("login of the other gateway: %v", err)
			}
		})
	}
}

func TestLoginPagesAreFoundByTheirPath(t *testing.T) {
	for _, path := range []string{"/mcp", "/m%20c%20p"} {
		h := loginGateway(t, t.TempDir(), "", path, "files")
		for page, status := range map[string]int{"": 404, "login": 400, "client.json": 200} {
			w := httptest.NewRecorder()
			r := httptest.NewRequest(http.MethodGet, pathPrefix(path)+"oauth/"+page, nil)
			r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, new(caddyhttp.Server))
			if err := h.ServeHTTP(w, r, nil); err != nil || w.Code != status {
				t.Errorf("%q below %q: %d, %v", page, path, w.Code, err)
			}
		}
	}
}

// If a server refuses a token, its routes run again from the beginning with a new token.
func TestRoutesRunAgainWithANewToken(t *testing.T) {
	var server *httptest.Server
	server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/.well-known/oauth-protected-resource/mcp":
			fmt.Fprintf(w, `{"resource":"%s/mcp","authorization_servers":["%[1]s"]}`, server.URL)
		case "/.well-known/oauth-authorization-server":
			fmt.Fprintf(w, `{"issuer":"%s","token_endpoint":"%[1]s/token"}`, server.URL)
		case "/token":
			fmt.Fprint(w, `{"access_token":"good","token_type":"Bearer"}`)
		case "/v1/mcp":
			if r.Header.Get("Authorization") != "Bearer good" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			fmt.Fprint(w, `{"jsonrpc":"2.0","id":1,"result":{}}`)
		default:
			t.Errorf("unexpected request for %s", r.URL)
		}
	}))
	t.Cleanup(server.Close)
	h := adaptGateway(t,
		fmt.Sprintf(`{"session_key":"0123456789abcdef0123456789abcdef","servers":[{"name":"files","path":"/mcp",
		"oauth":{"resource":"%s/mcp","grant":"client_credentials","client_id":"me","client_secret":"secret"},
		"routes":[{"group":"a","match":[{"path":["/other"]}],"handle":[%s]},{"group":"a","handle":[{"handler":"rewrite","uri":"/v1{http.request.uri}"},%s]}]}]}`,
			server.URL, staticHandler, proxyTo("", strings.TrimPrefix(server.URL, "http://"))))
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPost, "/api/mcp-gateway/files/rpc",
		strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
	r.Header.Set("Content-Type", "application/json")
	r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, new(caddyhttp.Server))
	if err := h.ServeHTTP(w, r, nil); err != nil || !strings.Contains(w.Body.String(), `"result"`) {
		t.Errorf("%d %s, %v", w.Code, w.Body, err)
	}
}
