package mcpgateway

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/resourcetemplate"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/storetest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstore"
)

func init() { caddy.RegisterModule(keptEngine{}) }

// A keptEngine opens the engine of a test, once per replica.
type keptEngine struct {
	Test    string `json:"test"`
	Replica string `json:"replica"`
}

// keptEngines are the engines by test name.
var keptEngines sync.Map

// CaddyModule returns the Caddy module information.
func (keptEngine) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "mcp_store.kept_test", New: func() caddy.Module { return new(keptEngine) }}
}

// Open implements mcpstore.Opener.
func (e *keptEngine) Open(*zap.Logger) (replicas.Engine, error) {
	engine, _ := keptEngines.LoadOrStore(e.Test, replicastest.New())
	return engine.(*replicastest.Engine), nil
}

// engineOf returns the engine of a test.
func engineOf(t *testing.T) *replicastest.Engine {
	engine, _ := keptEngines.LoadOrStore(t.Name(), replicastest.New())
	return engine.(*replicastest.Engine)
}

// loadReplica loads a gateway that shares the engine of the test with other replicas. dir is its
// storage.
func loadReplica(t *testing.T, replica, dir, config string) (h *Handler, unload func()) {
	t.Helper()
	store := fmt.Sprintf(`{"engine":{"engine":"kept_test","test":%q,"replica":%q},`+
		`"session_key":"0123456789abcdef0123456789abcdef","retry":"10ms"}`,
		t.Name(), replica)
	return loadGatewayWith(t, caddy.ModuleMap{"mcp_store": json.RawMessage(store)}, dir, config)
}

// newReplica is like loadReplica, with a new directory.
func newReplica(t *testing.T, replica, config string) *Handler {
	t.Helper()
	h, _ := loadReplica(t, replica, t.TempDir(), config)
	return h
}

// listsWeather reports whether a client at /mcp sees the tool weather.
func listsWeather(t *testing.T, h *Handler) bool {
	t.Helper()
	return strings.Contains(serve(t, h,
		newPost("/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{`+modernMeta+`}}`,
			mcp.VersionHeader, mcp.Stateless, "Mcp-Method", "tools/list")).Body.String(), `weather"`)
}

// The first definition that a replica sees, and an acceptance at one replica, apply to all of them.
func TestPinsOfReplicas(t *testing.T) {
	server := newFickle(t)
	config := withPins(server.config("shared"), true)
	a, b := newReplica(t, "a", config), newReplica(t, "b", config)
	if listed, called := tryTool(t, a, "shared"); !listed || !called {
		t.Fatalf("at first: listed %t, called %t", listed, called)
	}
	pinsB := b.Servers[0].pins
	await.Until(t, "the other replica knows the pin", func() bool { return !pinsB.IsEmpty() })
	server.version.Store(1)
	for name, h := range map[string]*Handler{"a": a, "b": b, "a third": newReplica(t, "c", config)} {
		if listed, called := tryTool(t, h, "shared"); listed || called || listsWeather(t, h) {
			t.Errorf("after the change, at %s: listed %t, called %t", name, listed, called)
		}
	}
	if n, err := (adminGateway{a}).acceptTools(a.Servers[0], "weather", ""); n != 1 || err != nil {
		t.Fatalf("accepted %d, %v", n, err)
	}
	await.Until(t, "the other replica lists the tool", func() bool { return listsWeather(t, b) })
	if listed, called := tryTool(t, b, "shared"); !listed || !called || len(pinsB.Changes()) != 0 {
		t.Errorf("after the acceptance: listed %t, called %t, %v", listed, called, pinsB.Changes())
	}
	for key, value := range engineOf(t).Values() {
		if strings.Contains(key+string(value), "weather") || strings.Contains(key, "shared") {
			t.Errorf("the engine stores plain text: %q: %q", key, value)
		}
	}
}

// If replicas first see different definitions, one definition wins. No other pin is lost.
func TestReplicasThatPinAtOnce(t *testing.T) {
	config := withPins(newFickle(t).config("raced"), true)
	all := []*Handler{newReplica(t, "a", config), newReplica(t, "b", config), newReplica(t, "c", config)}
	var saving sync.WaitGroup
	for i, h := range all {
		saving.Go(func() {
			h.Servers[0].pins.Observe("all", fmt.Appendf(nil, `{"description":"%d"}`, i))
			for j := range 20 {
				h.Servers[0].pins.Observe(fmt.Sprint(i, " ", j), []byte(`{}`))
				if err := h.pins.saveNow(h.Servers[0]); err != nil {
					t.Error(err)
				}
			}
		})
	}
	saving.Wait()
	var texts []string
	await.Until(t, "the replicas agree", func() bool {
		texts = nil
		for _, h := range all {
			text, err := h.Servers[0].pins.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			texts = append(texts, string(text))
		}
		return texts[0] == texts[1] && texts[1] == texts[2]
	})
	if n := strings.Count(texts[0], `"tool"`); n != 61 {
		t.Errorf("%d pins, want 61", n)
	}
	shown := 0
	for _, h := range all {
		if !h.Servers[0].pins.Changed("all") {
			shown++
		}
	}
	if shown != 1 {
		t.Errorf("%d replicas show the tool, want 1", shown)
	}
}

// Pins outlive the store: every replica has a copy.
func TestPinsOutliveTheStore(t *testing.T) {
	server, dir := newFickle(t), t.TempDir()
	config := withPins(server.config("lost"), true)
	a, unload := loadReplica(t, "a", dir, config)
	tryTool(t, a, "lost")
	unload()
	engineOf(t).Clear()
	server.version.Store(1)
	a, _ = loadReplica(t, "a again", dir, config)
	for name, h := range map[string]*Handler{"with a copy": a, "without a copy": newReplica(t, "b", config)} {
		if listed, called := tryTool(t, h, "lost"); listed || called {
			t.Errorf("%s: listed %t, called %t", name, listed, called)
		}
	}
}

// While the store is unavailable, a replica with a copy of the pins serves tools. A replica without
// one withholds all tools.
func TestPinsWhileTheStoreIsUnavailable(t *testing.T) {
	server, dir := newFickle(t), t.TempDir()
	config := withPins(server.config("down"), true)
	a, unload := loadReplica(t, "a", dir, config)
	tryTool(t, a, "down")
	unload()
	engine := engineOf(t)
	engine.Down.Store(true)
	a, _ = loadReplica(t, "a again", dir, config)
	if listed, called := tryTool(t, a, "down"); !listed || !called {
		t.Errorf("with a copy: listed %t, called %t", listed, called)
	}
	b := newReplica(t, "b", config)
	if listed, called := tryTool(t, b, "down"); listed || called {
		t.Errorf("without a copy: listed %t, called %t", listed, called)
	}
	server.version.Store(1)
	tryTool(t, a, "down")
	if n, err := (adminGateway{a}).acceptTools(a.Servers[0], "weather", ""); n != 1 || err == nil ||
		!strings.Contains(err.Error(), "shared store is unavailable") {
		t.Errorf("accepted %d, %v", n, err)
	}
	engine.Down.Store(false)
	await.Until(t, "the other replica serves the accepted tool", func() bool {
		listed, called := tryTool(t, b, "down")
		return listed && called
	})
	server.version.Store(0)
	if listed, called := tryTool(t, b, "down"); listed || called {
		t.Errorf("the replaced definition: listed %t, called %t", listed, called)
	}
}

// putAt adds a template to a replica, as the admin API does.
func putAt(t *testing.T, h *Handler, name, text string) error {
	return h.templates.change(t.Context(), func(set *resourcetemplate.Set) error {
		_, err := set.Put(resourcetemplate.Template{Name: name, URITemplate: name + "://{x}", Text: text})
		return err
	})
}

// templatesOf returns the names of the templates that a replica hosts.
func templatesOf(h *Handler) (names []string) {
	for _, template := range h.kept.retained.Templates.All() {
		names = append(names, template.Name)
	}
	return names
}

// A template that is added to one replica is hosted by all.
func TestTemplatesOfReplicas(t *testing.T) {
	const config = `{"name":"templates","servers":[{"name":"a","routes":[{"handle":[` + staticHandler + `]}]}]}`
	a, b := newReplica(t, "a", config), newReplica(t, "b", config)
	var putting sync.WaitGroup
	for i := range 5 {
		for name, h := range map[string]*Handler{"a": a, "b": b} {
			putting.Go(func() {
				if err := putAt(t, h, fmt.Sprint(name, i), "x"); err != nil {
					t.Error(err)
				}
			})
		}
	}
	putting.Wait()
	all := []string{"a0", "a1", "a2", "a3", "a4", "b0", "b1", "b2", "b3", "b4"}
	for name, h := range map[string]*Handler{"a": a, "b": b, "a new replica": newReplica(t, "c", config)} {
		await.Until(t, "the templates at "+name, func() bool { return slices.Equal(templatesOf(h), all) })
	}
	if got := listTemplates(t, b); strings.Count(got, "uriTemplate") != 10 {
		t.Errorf("clients see %s", got)
	}
	remove := func(h *Handler, name string) error {
		return h.templates.change(t.Context(), func(set *resourcetemplate.Set) error {
			if !set.Delete(name) {
				return notFound("no such template")
			}
			return nil
		})
	}
	for i, name := range all {
		if err := remove([]*Handler{a, b}[i%2], name); err != nil {
			t.Error(err)
		}
	}
	for name, h := range map[string]*Handler{"a": a, "b": b} {
		await.Until(t, "no templates at "+name, func() bool { return len(templatesOf(h)) == 0 })
	}
	if err := putAt(t, a, "large", strings.Repeat("x", 1<<20)); err != nil {
		t.Error(err)
	}
	for i := range 4 {
		if err := putAt(t, b, fmt.Sprint("larger", i), strings.Repeat("x", 1<<20)); (err != nil) != (i > 1) {
			t.Errorf("template %d: %v", i, err)
		}
	}
}

// Changes are refused while they cannot be shared. Replicas restore templates that the store lost.
func TestTemplatesWhileTheStoreIsUnavailable(t *testing.T) {
	const config = `{"name":"kept templates","servers":[{"name":"a","routes":[{"handle":[` + staticHandler + `]}]}]}`
	a, engine := newReplica(t, "a", config), engineOf(t)
	if err := putAt(t, a, "kept", "x"); err != nil {
		t.Fatal(err)
	}
	for fault, is := range map[string]*atomic.Bool{"down": &engine.Down, "full": &engine.Full} {
		is.Store(true)
		refused, ok := errors.AsType[*adminapi.Error](putAt(t, a, "lost", "x"))
		if !ok || refused.Status != http.StatusServiceUnavailable || !slices.Equal(templatesOf(a), []string{"kept"}) {
			t.Errorf("%s: %v, templates %q", fault, refused, templatesOf(a))
		}
		is.Store(false)
		await.Until(t, "the store is up", a.store.Up)
	}
	engine.Clear()
	if err := putAt(t, a, "new", "x"); err != nil {
		t.Error(err)
	}
	if got := templatesOf(newReplica(t, "b", config)); !slices.Equal(got, []string{"kept", "new"}) {
		t.Errorf("another replica has %q", got)
	}
}

// Clients of one replica are notified of changes at another replica.
func TestNotificationsAcrossReplicas(t *testing.T) {
	config := `{"pin_tools":true,"servers":[` + newFickle(t).config("pinned") +
		`,{"name":"files","routes":[{"handle":[` + staticHandler +
		`]}],"oauth":{"resource":"https://files.example.com/mcp"}}]}`
	a, b := newReplica(t, "a", config), newReplica(t, "b", config)
	a.byName["pinned"].pins.Observe("weather", []byte(`{}`))
	b.byName["pinned"].pins.Observe("weather", []byte(`{}`))
	n := 0
	for name, tt := range map[string]struct {
		change func()
		told   string
	}{
		"a login": {func() { a.logins.changed("files", "", true) }, "notifications/tools/list_changed"},
		"an accepted tool": {func() {
			a.byName["pinned"].pins.Observe("weather", fmt.Appendf(nil, `{"description":"%d"}`, n))
			if n, err := (adminGateway{a}).acceptTools(a.byName["pinned"], "weather", ""); n != 1 || err != nil {
				t.Errorf("accepted %d, %v", n, err)
			}
		}, "notifications/tools/list_changed"},
		"a template": {func() {
			if err := putAt(t, a, "told", fmt.Sprint(n)); err != nil {
				t.Error(err)
			}
		}, "notifications/resources/list_changed"},
	} {
		t.Run(name, func(t *testing.T) {
			heard := make(chan string, 1)
			stream := streamRequest(t, "/mcp", mcp.SessionHeader, startSession(t, b))
			go func() { heard <- serveUntil(t, b, stream, tt.told) }()
			await.Until(t, tt.told, func() bool {
				n++
				tt.change() // repeated until the client listens
				select {
				case got := <-heard:
					return strings.Contains(got, tt.told)
				default:
					return false
				}
			})
		})
	}
}

// Replicas share logins through the store, with no key but the store's.
func TestLoginsOfReplicas(t *testing.T) {
	const config = `{"servers":[{"name":"files","routes":[{}],"oauth":{"resource":"https://files.example.com/mcp"}}]}`
	dir := t.TempDir()
	a, _ := loadReplica(t, "a", dir, config)
	b := newReplica(t, "b", config)
	key := a.logins.folder("files") + "/key"
	if err := a.logins.store.Store(t.Context(), key, []byte("login")); err != nil {
		t.Fatal(err)
	}
	if got, err := b.logins.store.Load(t.Context(), key); string(got) != "login" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := os.Stat(filepath.Join(dir, loginsFolder)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Caddy's storage has logins: %v", err)
	}
}

// Other replicas learn of changed lists of child processes, even while no client listens.
func TestChildrenAreWatched(t *testing.T) {
	h := newReplica(t, "a", `{"separator":"__","servers":[`+serverOf("alpha", proxyTo(childTransport(), "alpha:1"))+`]}`)
	h.start()
	in := startSession(t, h)
	call := func(tool, arguments string) {
		t.Helper()
		w := serve(t, h,
			newPost("/mcp",
				`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"alpha__`+tool+`","arguments":`+arguments+`}}`,
				mcp.SessionHeader, in))
		if !strings.Contains(w.Body.String(), `"content"`) {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	call("echo", "{}")
	before := engineOf(t).Operations.Load()
	call("echo", "{}")
	if n := engineOf(t).Operations.Load() - before; n != 0 {
		t.Errorf("%d store operations for a call, want 0", n)
	}
	call("add-tool", `{"name":"t"}`)
	await.Until(t, "a store operation", func() bool { return engineOf(t).Operations.Load() > before })
}

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
	denied := &h.kept.retained.Usage.Tally(access.Anonymous).Denied
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

// replicaOf returns a gateway that uses an engine.
func replicaOf(t *testing.T, engine *replicastest.Engine, config string) *Handler {
	t.Helper()
	module, err := storetest.Replica(t, engine, mcpstore.App{}).LoadModuleByID("http.handlers.mcp_gateway",
		json.RawMessage(config))
	if err != nil {
		t.Fatal(err)
	}
	return module.(*Handler)
}

// request sends a request to /mcp and returns the response.
func (a *agentTest) request(method, name, params string) string {
	headers, meta := []string{mcp.SessionHeader, a.session}, ""
	if a.modern {
		headers = []string{mcp.VersionHeader, mcp.Stateless, "Mcp-Method", method, "Mcp-Name", name}
		meta = `,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
			`"io.modelcontextprotocol/clientInfo":{"name":"x","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`
	}
	return serveAs(a.T, a.h, a.name,
		newPost(a.path, fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":%q,"params":{%s%s}}`, method, params, meta),
			headers...)).Body.String()
}

// A client can recover an original at another replica, with the tool and as a resource. If the
// store is unavailable, the error says so.
func TestOriginalsAtAnotherReplica(t *testing.T) {
	for _, era := range []string{"/mcp", "/mcp, modern"} {
		t.Run(era, func(t *testing.T) {
			engine := replicastest.New()
			a, b := replicaOf(t, engine, activeConfig("")), replicaOf(t, engine, activeConfig(""))
			masked := func(lines int) string {
				t.Helper()
				said := agents(t, a, "ann")[era].call("read_log", fmt.Sprintf(`{"lines":%d}`, lines)).Body.String()
				id := regexp.MustCompile(`id=(obs_\w{10})\]`).FindStringSubmatch(said)
				if id == nil {
					t.Fatalf("the result was not masked: %s", said)
				}
				return id[1]
			}
			recoverBoth := func(h *Handler, name, id string) (byTool, asResource string) {
				uri := "proxy://observation/" + id
				agent := agents(t, h, name)[era]
				return agent.request("tools/call", "recover_observation",
						`"name":"recover_observation","arguments":{"id":"`+id+`","start_line":40,"end_line":40}`),
					agent.request("resources/read", uri, `"uri":"`+uri+`"`)
			}
			id := masked(100)
			wantTool, wantResource := recoverBoth(a, "ann", id)
			if !strings.Contains(wantTool, "lines 40 to 40 of") || !strings.Contains(wantResource, `"contents"`) {
				t.Fatalf("at the same replica: %s, %.300s", wantTool, wantResource)
			}
			if tool, resource := recoverBoth(b, "bob", id); !strings.Contains(tool, "Nothing is kept under the id") ||
				!strings.Contains(resource, "unknown or expired") {
				t.Errorf("another client got %s, %.300s", tool, resource)
			}
			if tool, resource := recoverBoth(b, "ann", id); tool != wantTool || resource != wantResource {
				t.Errorf("got %s, %.300s\nwant %s, %.300s", tool, resource, wantTool, wantResource)
			}
			engine.Clear()
			if tool, _ := recoverBoth(replicaOf(t, engine, activeConfig("")), "ann", id); tool != wantTool {
				t.Errorf("after the store lost the original: got %s\nwant %s", tool, wantTool)
			}

			engine.Down.Store(true)
			id = masked(101)
			if tool, resource := recoverBoth(a, "ann", id); !strings.Contains(tool, "lines 40 to 40 of") ||
				!strings.Contains(resource, `"contents"`) {
				t.Errorf("while the store is down, at the same replica: %s, %.300s", tool, resource)
			}
			if tool, resource := recoverBoth(b, "ann", id); !strings.Contains(tool, `"code":"store_unavailable"}`) ||
				!strings.Contains(tool, `"isError":true`) || !strings.Contains(resource, `"code":"store_unavailable"`) {
				t.Errorf("while the store is down: %s, %s", tool, resource)
			}
		})
	}
}

// Replicas share rates even if their servers differ, as during a gradual change of configurations.
func TestReplicasWithOtherServersShareRates(t *testing.T) { // A63
	server, engine := newRecordingServer(t, nil), replicastest.New()
	before := `{"rates":[{"requests":2,"per":"1h"}],"servers":[` + server.config("a") + `]}`
	after := `{"rates":[{"requests":2,"per":"1h"}],"servers":[` + server.config("a") + `,` + server.config("b") + `]}`
	all := []*Handler{
		replicaGateway(t, engine, mcpstore.App{}, before), replicaGateway(t, engine, mcpstore.App{}, after),
	}
	for i, want := range []int{200, 200, 429, 429} {
		if w := serve(t, all[i%2], newPost("/mcp/a", pingMessage)); w.Code != want {
			t.Errorf("request %d: %d %s, want %d", i, w.Code, w.Body, want)
		}
	}
}

// Gateways with the same key in the shared store are refused.
func TestGatewaysThatShareNeedNames(t *testing.T) {
	server := newRecordingServer(t, nil)
	gateway := func(more string, name string) string { return `{` + more + `"servers":[` + server.config(name) + `]}` }
	for name, test := range map[string]struct {
		first, second string
		refused       bool
	}{
		"one gateway in two sites": {gateway("", "a"), gateway("", "a"), false},
		"no names":                 {gateway("", "a"), gateway("", "b"), true},
		"other rates":              {gateway("", "a"), gateway(`"rates":[{"requests":2,"per":"1h"}],`, "a"), true},
		"one name":                 {gateway("", "a"), gateway(`"name":"b",`, "b"), false},
		"two paths":                {gateway("", "a"), gateway(`"mcp_path":"/tools",`, "b"), false},
		"the same given name":      {gateway(`"name":"a",`, "a"), gateway(`"name":"a",`, "b"), false},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := storetest.Replica(t, replicastest.New(), mcpstore.App{})
			if _, err := ctx.LoadModuleByID("http.handlers.mcp_gateway", json.RawMessage(test.first)); err != nil {
				t.Fatal(err)
			}
			_, err := ctx.LoadModuleByID("http.handlers.mcp_gateway", json.RawMessage(test.second))
			if refused := err != nil; refused != test.refused {
				t.Fatal(err)
			}
			if err != nil &&
				!strings.Contains(err.Error(),
					": name: required with mcp_store, because another gateway has the same mcp_path /mcp") {
				t.Error(err)
			}
		})
	}
}

func TestAdminStore(t *testing.T) {
	a, engine := newAdmin(t), replicastest.New()
	registry.add(replicaGateway(t, engine, mcpstore.App{}, `{"servers":[`+serverOf("a", staticHandler)+`]}`))
	status := func() mcpstore.Status {
		var overview adminapi.Overview
		a.call("GET", "/mcp_gateway/overview", "", &overview)
		if overview.Store == nil {
			t.Fatal("the overview has no store")
		}
		return *overview.Store
	}
	if got, want := status(), (mcpstore.Status{Engine: "test", Up: true}); got != want {
		t.Errorf("got %+v", got)
	}
	var check mcpstore.Check
	if a.call("POST", "/mcp_gateway/store/check", "", &check); !check.Up || check.Engine != "test" || check.Seconds <= 0 ||
		check.Error != "" {
		t.Errorf("got %+v", check)
	}
	if line := a.audited(); line["action"] != "check" || line["name"] != "mcp_store" {
		t.Errorf("logged %v", line)
	}
	engine.Down.Store(true)
	if a.call("POST", "/mcp_gateway/store/check", "", &check); check.Up || check.Error != "connection refused" {
		t.Errorf("while the store is down: got %+v", check)
	}
	const cause = "connection refused"
	if got, want := status(), (mcpstore.Status{Engine: "test", Error: cause, Outages: 1, LastError: cause}); got != want {
		t.Errorf("while the store is down: got %+v", got)
	}
	engine.Down.Store(false)
	again := mcpstore.Status{Engine: "test", Up: true, Outages: 1, LastError: cause}
	await.Until(t, "the store is up", func() bool { return status() == again })
	engine.Full.Store(true)
	if a.call("POST", "/mcp_gateway/store/check", "", &check); !check.Up || !check.Full {
		t.Errorf("while the store is full: got %+v", check)
	}
	again.Full = true
	if got := status(); got != again {
		t.Errorf("while the store is full: got %+v", got)
	}
}

func TestAdminWithoutStore(t *testing.T) {
	a := newAdmin(t, `{"servers":[`+serverOf("a", staticHandler)+`]}`)
	var overview map[string]any
	if a.call("GET", "/mcp_gateway/overview", "", &overview); overview["store"] != nil {
		t.Errorf("got %v", overview["store"])
	}
	if res := a.call("POST", "/mcp_gateway/store/check", "", nil); res.StatusCode != 404 {
		t.Errorf("got %d", res.StatusCode)
	}
}

// Interface guard
var _ mcpstore.Opener = (*keptEngine)(nil)
