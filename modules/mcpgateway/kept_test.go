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

// keptEngines are the engines by name of the test.
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

// loadReplica loads a gateway that shares the engine of the test with other replicas, and stores
// the rest in a directory.
func loadReplica(t *testing.T, replica, dir, config string) (h *Handler, unload func()) {
	t.Helper()
	store := fmt.Sprintf(`{"engine":{"engine":"kept_test","test":%q,"replica":%q},`+
		`"session_key":"0123456789abcdef0123456789abcdef","retry":"10ms"}`,
		t.Name(), replica)
	return loadGatewayWith(t, caddy.ModuleMap{"mcp_store": json.RawMessage(store)}, dir, config)
}

// newReplica is loadReplica with a new directory.
func newReplica(t *testing.T, replica, config string) *Handler {
	t.Helper()
	h, _ := loadReplica(t, replica, t.TempDir(), config)
	return h
}

// listsWeather reports whether a client at /mcp sees the tool.
func listsWeather(t *testing.T, h *Handler) bool {
	t.Helper()
	return strings.Contains(serves(t, h,
		posting("/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{`+modernMeta+`}}`,
			mcp.VersionHeader, mcp.Stateless, "Mcp-Method", "tools/list")).Body.String(), `weather"`)
}

// The first definition that a replica sees, and an acceptance at one replica, apply to all of them.
func TestPinsOfReplicas(t *testing.T) {
	server := newFickle(t)
	config := withPins(server.line("shared"), true)
	a, b := newReplica(t, "a", config), newReplica(t, "b", config)
	if listed, called := offers(t, a, "shared"); !listed || !called {
		t.Fatalf("at first: listed %t, called %t", listed, called)
	}
	pinsB := b.Servers[0].pins
	await.Until(t, "the other to know", func() bool { return !pinsB.IsEmpty() })
	server.version.Store(1)
	for name, h := range map[string]*Handler{"a": a, "b": b, "a third": newReplica(t, "c", config)} {
		if listed, called := offers(t, h, "shared"); listed || called || listsWeather(t, h) {
			t.Errorf("changed, at %s: listed %t, called %t", name, listed, called)
		}
	}
	if n, err := a.acceptTools(a.Servers[0], "weather", ""); n != 1 || err != nil {
		t.Fatalf("accepted %d, %v", n, err)
	}
	await.Until(t, "it to be listed at the other", func() bool { return listsWeather(t, b) })
	if listed, called := offers(t, b, "shared"); !listed || !called || len(pinsB.Changes()) != 0 {
		t.Errorf("accepted: listed %t, called %t, %v", listed, called, pinsB.Changes())
	}
	for key, value := range engineOf(t).Values() {
		if strings.Contains(key+string(value), "weather") || strings.Contains(key, "shared") {
			t.Errorf("the engine can read %q: %q", key, value)
		}
	}
}

// If replicas first see different definitions, one of them is withheld, and nothing else is lost.
func TestReplicasThatPinAtOnce(t *testing.T) {
	config := withPins(newFickle(t).line("raced"), true)
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
	await.Until(t, "them to agree", func() bool {
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
		t.Errorf("%d are pinned", n)
	}
	shown := 0
	for _, h := range all {
		if !h.Servers[0].pins.Changed("all") {
			shown++
		}
	}
	if shown != 1 {
		t.Errorf("%d definitions of one tool are shown", shown)
	}
}

// Pins outlive the store: every replica has a copy.
func TestPinsOutliveTheStore(t *testing.T) {
	server, dir := newFickle(t), t.TempDir()
	config := withPins(server.line("lost"), true)
	a, unload := loadReplica(t, "a", dir, config)
	offers(t, a, "lost")
	unload()
	engineOf(t).Clear()
	server.version.Store(1)
	a, _ = loadReplica(t, "a again", dir, config)
	for name, h := range map[string]*Handler{"the one with a copy": a, "one that has none": newReplica(t, "b", config)} {
		if listed, called := offers(t, h, "lost"); listed || called {
			t.Errorf("%s: listed %t, called %t", name, listed, called)
		}
	}
}

// A replica that does not know the pins withholds all tools until it does. A replica with a copy
// serves.
func TestPinsWhileTheStoreIsUnavailable(t *testing.T) {
	server, dir := newFickle(t), t.TempDir()
	config := withPins(server.line("down"), true)
	a, unload := loadReplica(t, "a", dir, config)
	offers(t, a, "down")
	unload()
	engine := engineOf(t)
	engine.Down.Store(true)
	a, _ = loadReplica(t, "a again", dir, config)
	if listed, called := offers(t, a, "down"); !listed || !called {
		t.Errorf("with a copy: listed %t, called %t", listed, called)
	}
	b := newReplica(t, "b", config)
	if listed, called := offers(t, b, "down"); listed || called {
		t.Errorf("without a copy: listed %t, called %t", listed, called)
	}
	server.version.Store(1)
	offers(t, a, "down")
	if n, err := a.acceptTools(a.Servers[0], "weather", ""); n != 1 || err == nil ||
		!strings.Contains(err.Error(), "shared store is unavailable") {
		t.Errorf("accepted %d, %v", n, err)
	}
	engine.Down.Store(false)
	await.Until(t, "the other to serve what was accepted", func() bool {
		listed, called := offers(t, b, "down")
		return listed && called
	})
	server.version.Store(0)
	if listed, called := offers(t, b, "down"); listed || called {
		t.Errorf("what was replaced: listed %t, called %t", listed, called)
	}
}

// putAt adds a template at a replica, as the admin API does.
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

// All replicas host a template that one of them gets.
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
	for name, h := range map[string]*Handler{"a": a, "b": b, "one that is new": newReplica(t, "c", config)} {
		await.Until(t, "the templates at "+name, func() bool { return slices.Equal(templatesOf(h), all) })
	}
	if got := offered(t, b); strings.Count(got, "uriTemplate") != 10 {
		t.Errorf("clients see %s", got)
	}
	remove := func(h *Handler, name string) error {
		return h.changeTemplates(t.Context(), func(set *resourcetemplate.Set) error {
			if !set.Delete(name) {
				return notFound("it is not there")
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
		await.Until(t, "none to be left at "+name, func() bool { return len(templatesOf(h)) == 0 })
	}
	if err := putAt(t, a, "large", strings.Repeat("x", 1<<20)); err != nil {
		t.Error(err)
	}
	for i := range 4 {
		if err := putAt(t, b, fmt.Sprint("larger", i), strings.Repeat("x", 1<<20)); (err != nil) != (i > 1) {
			t.Errorf("number %d: %v", i, err)
		}
	}
}

// A change that cannot be shared is refused. Replicas restore the templates that the store has
// lost.
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
			t.Errorf("%s: %v, there are %q", fault, refused, templatesOf(a))
		}
		is.Store(false)
		await.Until(t, "the store", a.store.Up)
	}
	engine.Clear()
	if err := putAt(t, a, "new", "x"); err != nil {
		t.Error(err)
	}
	if got := templatesOf(newReplica(t, "b", config)); !slices.Equal(got, []string{"kept", "new"}) {
		t.Errorf("another replica has %q", got)
	}
}

// Clients of one replica are notified of changes at another.
func TestChangesAtAnotherReplicaAreTold(t *testing.T) {
	config := `{"pin_tools":true,"servers":[` + newFickle(t).line("pinned") +
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
		"a tool that is accepted": {func() {
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
			stream := listening(t, "/mcp", mcp.SessionHeader, session(t, b))
			go func() { heard <- hears(t, b, stream, tt.told) }()
			await.Until(t, tt.told, func() bool {
				n++
				tt.change() // until the client listens
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

// Replicas share logins, and need only the key of the store.
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
		t.Errorf("something is in Caddy's storage: %v", err)
	}
}

// Other replicas learn of changed lists of child processes, even while no client listens to them.
func TestChildrenAreWatched(t *testing.T) {
	h := newReplica(t, "a", `{"separator":"__","servers":[`+serverOf("alpha", proxyTo(childTransport(), "alpha:1"))+`]}`)
	h.start()
	in := session(t, h)
	call := func(tool, arguments string) {
		t.Helper()
		w := serves(t, h,
			posting("/mcp",
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
		t.Errorf("%d operations for a call", n)
	}
	call("add-tool", `{"name":"t"}`)
	await.Until(t, "a store operation", func() bool { return engineOf(t).Operations.Load() > before })
}
