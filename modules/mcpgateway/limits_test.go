package mcpgateway

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/storetest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstore"
)

// replicaGateway returns a replica of a gateway that uses an engine.
func replicaGateway(t *testing.T, engine *replicastest.Engine, store mcpstore.App, config string) *Handler {
	t.Helper()
	module, err := storetest.Replica(t, engine, store).LoadModuleByID("http.handlers.mcp_gateway", json.RawMessage(config))
	if err != nil {
		t.Fatal(err)
	}
	return module.(*Handler)
}

const pingMessage = `{"jsonrpc":"2.0","id":1,"method":"ping"}`

func TestReplicasShareRates(t *testing.T) { // A32, A63
	server, engine := newRecordingServer(t, nil), replicastest.New()
	config := `{"rates":[{"requests":2,"per":"1h"}],"servers":[` + server.config("a") + `]}`
	var all []*Handler
	for range 3 {
		all = append(all, replicaGateway(t, engine, mcpstore.App{}, config))
	}
	for i, want := range []int{200, 200, 429, 429, 429} {
		w := serve(t, all[i%3], newPost("/mcp/a", pingMessage))
		if w.Code != want || want == 429 && w.Header().Get("Retry-After") != "1800" {
			t.Errorf("request %d: %d %v %s, want %d", i, w.Code, w.Header(), w.Body, want)
		}
	}
}

func TestReplicasShareGuesses(t *testing.T) { // R14
	t.Setenv("SECRET_TOKEN", "right-AbCdEf0123456789")
	server, engine := newRecordingServer(t, nil), replicastest.New()
	config := `{"rates":[{"requests":2,"per":"1h"}],"auth":[{"provider":"token",` +
		`"tokens":[{"token":"{env.SECRET_TOKEN}","client":"ann"}]}],"servers":[` +
		server.config("a") + `]}`
	first, second := replicaGateway(t, engine, mcpstore.App{}, config), replicaGateway(t, engine, mcpstore.App{}, config)
	for i, h := range []*Handler{first, second} {
		if w := serve(t, h, newPost("/mcp/a", pingMessage)); w.Code != 401 {
			t.Errorf("guess %d: %d %s", i, w.Code, w.Body)
		}
	}
	for i, h := range []*Handler{first, second} {
		r := newPost("/mcp/a", "{}")
		r.Body, r.ContentLength = io.NopCloser(unreadBody{t}), 100
		if w := serve(t, h, r); w.Code != 429 {
			t.Errorf("guess %d above the rate: %d %s", i, w.Code, w.Body)
		}
	}
	engine.Down.Store(true)
	r := newPost("/mcp/a", "{}")
	r.Body, r.ContentLength = io.NopCloser(unreadBody{t}), 100
	wantUnchecked(t, first, r, "rate limits cannot be checked")
}

// wantUnchecked checks that the gateway refuses a request because the store is unavailable.
func wantUnchecked(t *testing.T, h *Handler, r *http.Request, message string) {
	t.Helper()
	denied := &h.retained.Usage.Tally(access.Anonymous).Denied
	before := denied.Load()
	w := serve(t, h, r)
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "1" ||
		w.Header()["Www-Authenticate"] != nil ||
		!strings.Contains(w.Body.String(), `"code":-32002,"message":"`+message) ||
		!strings.Contains(w.Body.String(), `"code":"store_unavailable"`) {
		t.Errorf("got %d %v %s", w.Code, w.Header(), w.Body)
	}
	if n := denied.Load() - before; n != 1 {
		t.Errorf("counted %d denials, want 1", n)
	}
}

func TestRatesWithoutTheStore(t *testing.T) { // A32
	server := newRecordingServer(t, nil)
	limited := `{"rates":[{"tools":"a::x","requests":1,"per":"1h"}],"servers":[` + server.config("a") + `]}`
	call := func() *http.Request {
		return newPost("/mcp/a", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`)
	}
	t.Run("refuse", func(t *testing.T) {
		engine := replicastest.New()
		h := replicaGateway(t, engine, mcpstore.App{}, limited)
		engine.Down.Store(true)
		before := len(server.requests())
		wantUnchecked(t, h, call(), "rate limits cannot be checked")
		if n := len(server.requests()) - before; n != 0 {
			t.Errorf("the server got %d requests, want 0", n)
		}
		if w := serve(t, h, newPost("/mcp/a", pingMessage)); w.Code != 200 {
			t.Errorf("a request without a limit: %d %s", w.Code, w.Body)
		}
	})
	t.Run("allow", func(t *testing.T) {
		engine := replicastest.New()
		engine.Down.Store(true)
		for range 2 { // each replica has its own limit
			h := replicaGateway(t, engine, mcpstore.App{LimitsWhenDown: "allow"}, limited)
			for _, want := range []int{200, 429} {
				if w := serve(t, h, call()); w.Code != want {
					t.Errorf("%d %s, want %d", w.Code, w.Body, want)
				}
			}
		}
	})
}

func TestSignaturesWithoutTheStore(t *testing.T) { // A77
	const secret = "correct horse battery staple"
	t.Setenv("HMAC_SECRET", secret)
	server, engine := newRecordingServer(t, nil), replicastest.New()
	h := replicaGateway(t, engine, mcpstore.App{LimitsWhenDown: "allow"}, // does not apply to signatures
		`{"rates":[{"requests":1,"per":"1h"}],"auth":[{"provider":"hmac","clients":[{"client":"ann",`+
			`"secret":"{env.HMAC_SECRET}"}]}],"servers":[`+server.config("a")+`]}`)
	sum, at := sha256.Sum256([]byte(pingMessage)), time.Now().Unix()
	mac := hmac.New(sha256.New, []byte(secret))
	fmt.Fprintf(mac, "MCP-HMAC-SHA256\n%d\nnonce-of-store\nPOST\n/mcp/a\n%x", at, sum)
	signature := fmt.Sprintf("MCP-HMAC-SHA256 client=ann, timestamp=%d, nonce=nonce-of-store, signature=%s", at,
		hex.EncodeToString(mac.Sum(nil)))
	signed := func() *http.Request {
		r := newPost("/mcp/a", pingMessage, "Authorization", signature)
		r.RequestURI = "/mcp/a"
		return r
	}
	engine.Down.Store(true)
	for range 3 { // the requests do not count as guesses, of which the address has one
		wantUnchecked(t, h, signed(), "the credentials cannot be checked")
	}
	engine.Down.Store(false)
	for deadline := time.Now().Add(10 * time.Second); !h.store.Up() &&
		time.Now().Before(deadline); time.Sleep(time.Millisecond) {
	}
	for _, want := range []int{200, 401} {
		if w := serve(t, h, signed()); w.Code != want {
			t.Errorf("afterwards: %d %s, want %d", w.Code, w.Body, want)
		}
	}
}
