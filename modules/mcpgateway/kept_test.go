package mcpgateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/resourcetemplate"
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

// Interface guard
var _ mcpstore.Opener = (*keptEngine)(nil)

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
	if n, err := a.acceptTools(a.Servers[0], "weather", ""); n != 1 || err != nil {
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
	if n, err := a.acceptTools(a.Servers[0], "weather", ""); n != 1 || err == nil ||
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
	return h.changeTemplates(t.Context(), func(set *resourcetemplate.Set) error {
		_, err := set.Put(resourcetemplate.Template{Name: name, URITemplate: name + "://{x}", Text: text})
		return err
	})
}

// templatesOf returns the names of the templates that a replica hosts.
func templatesOf(h *Handler) (names []string) {
	for _, template := range h.retained.Templates.All() {
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
		return h.changeTemplates(t.Context(), func(set *resourcetemplate.Set) error {
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
		"a login": {func() { a.loginChanged("files", "", true) }, "notifications/tools/list_changed"},
		"an accepted tool": {func() {
			a.byName["pinned"].pins.Observe("weather", fmt.Appendf(nil, `{"description":"%d"}`, n))
			if n, err := a.acceptTools(a.byName["pinned"], "weather", ""); n != 1 || err != nil {
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
	key := a.loginFolder(a.Servers[0]) + "/key"
	if err := a.loginStore.Store(t.Context(), key, []byte("login")); err != nil {
		t.Fatal(err)
	}
	if got, err := b.loginStore.Load(t.Context(), key); string(got) != "login" || err != nil {
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
