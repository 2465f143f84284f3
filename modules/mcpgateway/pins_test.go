package mcpgateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	_ "github.com/caddyserver/caddy/v2/modules/filestorage"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolpin"
)

// storedGateway returns a gateway with its storage in dir.
func storedGateway(t *testing.T, dir, config string) *Handler {
	t.Helper()
	h, _ := loadGateway(t, dir, config)
	return h
}

// loadGateway is like storedGateway, but the gateway can be unloaded.
func loadGateway(t *testing.T, dir, config string) (h *Handler, unload func()) {
	t.Helper()
	return loadGatewayWith(t, nil, dir, config)
}

// loadGatewayWith is like loadGateway, with other apps.
func loadGatewayWith(t *testing.T, apps caddy.ModuleMap, dir, config string) (h *Handler, unload func()) {
	t.Helper()
	storage, _ := json.Marshal(map[string]string{"module": "file_system", "root": dir})
	ctx, err := caddy.ProvisionContext(&caddy.Config{StorageRaw: storage, AppsRaw: apps})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := caddy.NewContext(ctx)
	t.Cleanup(cancel)
	module, err := ctx.LoadModuleByID("http.handlers.mcp_gateway", json.RawMessage(config))
	if err != nil {
		t.Fatal(err)
	}
	h = module.(*Handler)
	t.Cleanup(func() {
		for _, s := range h.Servers {
			s.savingPins.Wait() // before the directory is removed
		}
	})
	return h, cancel
}

// A fickle is a server with one tool, whose definition depends on version.
type fickle struct {
	*recordingServer
	version atomic.Int32
}

func newFickle(t *testing.T) *fickle {
	f := new(fickle)
	f.recordingServer = newRecordingServer(t, func(w http.ResponseWriter, _ *http.Request, got receivedRequest) {
		description := [...]string{"Tells the weather.", "Tells the weather, and more."}[f.version.Load()]
		switch {
		case got.is("server/discover"):
			respond(w, got,
				`{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},`+
					`"serverInfo":{"name":"x","version":"1"}}`)
		case got.is("tools/list"):
			respond(w, got, `{"tools":[{"name":"weather","description":"`+description+`","inputSchema":{"type":"object"}}]}`)
		default:
			respond(w, got, `{"content":[]}`)
		}
	})
	return f
}

func withPins(server string, pin bool) string {
	if pin {
		return `{"pin_tools":true,"servers":[` + server + `]}`
	}
	return `{"servers":[` + server + `]}`
}

// tryTool reports whether a gateway lists the tool of a server and forwards calls of it. It waits
// until the pins are saved.
func tryTool(t *testing.T, h *Handler, server string) (listed, called bool) {
	t.Helper()
	list := serve(t, h, newPost("/mcp/"+server, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
	h.byName[server].savingPins.Wait()
	call := serve(t, h,
		newPost("/mcp/"+server, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"weather"}}`))
	return strings.Contains(list.Body.String(), `"weather"`), call.Code == http.StatusOK
}

// anotherProcess replaces the state of the process, as if another process were used.
func anotherProcess(t *testing.T) {
	before := pinPool
	pinPool = caddy.NewUsagePool()
	t.Cleanup(func() { pinPool = before })
}

func TestProcessesDoNotOverwriteEachOthersPins(t *testing.T) { // A54
	dir := t.TempDir()
	one, two := newFickle(t), newFickle(t)
	first := storedGateway(t, dir, withPins(one.config("one"), true))
	anotherProcess(t)
	second := storedGateway(t, dir, withPins(two.config("two"), true))
	tryTool(t, first, "one")
	if listed, called := tryTool(t, second, "two"); !listed || !called { // saves its pins last
		t.Fatalf("listed %t, called %t", listed, called)
	}
	one.version.Store(1)
	anotherProcess(t)
	if listed, called := tryTool(t, storedGateway(t, dir, withPins(one.config("one"), true)), "one"); listed || called {
		t.Errorf("a changed tool: listed %t, called %t", listed, called)
	}
}

func TestPinsEnabledByReload(t *testing.T) { // A54, A60
	dir := t.TempDir()
	server := newFickle(t)
	before, unload := loadGateway(t, dir, withPins(server.config("reloaded"), true))
	tryTool(t, before, "reloaded")
	unload()
	server.version.Store(1)
	without, unload := loadGateway(t, dir, withPins(server.config("reloaded"), false))
	if listed, called := tryTool(t, without, "reloaded"); !listed || !called {
		t.Errorf("without pin_tools: listed %t, called %t", listed, called)
	}
	with := storedGateway(t, dir, withPins(server.config("reloaded"), true))
	unload()
	if listed, called := tryTool(t, with, "reloaded"); listed || called {
		t.Errorf("the changed tool: listed %t, called %t", listed, called)
	}
	if got := with.byName["reloaded"].pins.Changes(); !slices.ContainsFunc(got,
		func(c toolpin.Change) bool { return c.Tool == "weather" }) {
		t.Errorf("changes %+v", got)
	}
	server.version.Store(0)
	if listed, called := tryTool(t, with, "reloaded"); !listed || !called {
		t.Errorf("the original tool: listed %t, called %t", listed, called)
	}
}

// Only the first of several tools with the same name counts. The others are not listed.
func TestToolsListedTwice(t *testing.T) { // A54
	const tool = `{"name":"weather","description":"%s","inputSchema":{"type":"object"}}`
	var second atomic.Pointer[string]
	server := newRecordingServer(t, func(w http.ResponseWriter, _ *http.Request, got receivedRequest) {
		switch {
		case got.is("server/discover"):
			respond(w, got, `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},`+
				`"serverInfo":{"name":"x","version":"1"}}`)
		case got.is("tools/list"):
			respond(w, got, `{"tools":[`+fmt.Sprintf(tool, "one")+`,`+fmt.Sprintf(tool, *second.Load())+`]}`)
		default:
			respond(w, got, `{"content":[]}`)
		}
	})
	for _, pin := range []bool{true, false} {
		h := storedGateway(t, t.TempDir(), withPins(server.config(fmt.Sprint("twice", pin)), pin))
		for _, description := range []string{"one", "another", "yet another"} {
			second.Store(&description)
			if listed, called := tryTool(t, h, h.Servers[0].Name); !listed || !called {
				t.Errorf("pin %t, %s: listed %t, called %t", pin, description, listed, called)
			}
			list := serve(t, h, newPost("/mcp/"+h.Servers[0].Name, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)).Body
			if strings.Count(list.String(), `"weather"`) != 1 {
				t.Errorf("pin %t, %s: listed %s", pin, description, list)
			}
		}
		if changes := h.Servers[0].pins.Changes(); len(changes) > 0 {
			t.Errorf("pin %t: changes %+v", pin, changes)
		}
	}
}

func TestListsDoNotWaitForTheStorage(t *testing.T) { // A54
	h := storedGateway(t, t.TempDir(), withPins(newFickle(t).config("slow"), true))
	server := h.Servers[0]
	server.pins.mu.Lock() // as during a save
	done := make(chan bool, 6)
	for range cap(done) {
		go func() {
			w := httptest.NewRecorder()
			serveTo(w, h, newPost("/mcp/slow", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
			done <- strings.Contains(w.Body.String(), `"weather"`)
		}()
	}
	for range cap(done) {
		if !receive(t, "a list", done) {
			t.Error("the tool is not listed")
			break
		}
	}
	server.pins.pause.Store(new(time.Now().Add(time.Hour))) // as after a failed save
	server.pins.mu.Unlock()
	server.savingPins.Wait()
	tryTool(t, h, "slow")
	if server.pins.saved.Load() == server.pins.Version() {
		t.Error("the pins were saved during the pause")
	}
	server.pins.pause.Store(nil)
	if tryTool(t, h, "slow"); server.pins.saved.Load() != server.pins.Version() {
		t.Error("the pins were not saved after the pause")
	}
}

// fill makes the storage fail, as a full disk does, until free is called.
func fill(t *testing.T, dir string) (free func()) {
	t.Helper()
	at := filepath.Join(dir, "mcp_gateway")
	if err := os.WriteFile(at, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(at); err != nil {
			t.Fatal(err)
		}
	}
}

// Pins that could not be saved are saved when Caddy stops. The next process then detects a change.
func TestPinsAreSavedOnStop(t *testing.T) { // A54
	dir := t.TempDir()
	server := newFickle(t)
	h, unload := loadGateway(t, dir, withPins(server.config("stopped"), true))
	free := fill(t, dir)
	if listed, called := tryTool(t, h, "stopped"); !listed || !called {
		t.Errorf("with a full disk: listed %t, called %t", listed, called)
	}
	free()
	unload()
	server.version.Store(1)
	anotherProcess(t)
	h = storedGateway(t, dir, withPins(server.config("stopped"), true))
	if listed, called := tryTool(t, h, "stopped"); listed || called {
		t.Errorf("a changed tool: listed %t, called %t", listed, called)
	}
}

// A failed save is retried, even if no client requests a list.
func TestPinsAreSavedLater(t *testing.T) { // A54
	dir := t.TempDir()
	h := storedGateway(t, dir, withPins(newFickle(t).config("later"), true))
	pins := h.Servers[0].pins
	free := fill(t, dir)
	pins.Observe("weather", []byte(`{}`))
	if err := h.pins.saveUnsaved(h.Servers[0]); err == nil || h.Servers[0].retryPins == nil || !pins.paused() {
		t.Fatalf("with a full disk: %v", err)
	}
	free()
	pins.pause.Store(nil)
	h.Servers[0].retryPins.Reset(0) // do not wait for the timer
	await.Until(t, "the pins are saved", func() bool { return pins.saved.Load() == pins.Version() })
}

// A reload does not end the retries: the new configuration retries, too.
func TestPinsAreSavedAfterAReload(t *testing.T) { // A54, A60
	dir := t.TempDir()
	config := withPins(newFickle(t).config("retried"), true)
	before, unload := loadGateway(t, dir, config)
	free := fill(t, dir)
	tryTool(t, before, "retried")
	after := storedGateway(t, dir, config)
	after.start()
	server := after.Servers[0]
	server.savingPins.Wait()
	unload()
	free()
	if server.retryPins == nil || !server.retryPins.Reset(0) { // do not wait for the timer
		t.Fatal("the new gateway does not retry")
	}
	await.Until(t, "the pins are saved", func() bool { return server.pins.saved.Load() == server.pins.Version() })
}

// An operator who accepts a tool gets an error if the acceptance cannot be saved.
func TestAcceptThatIsNotSaved(t *testing.T) { // A54
	dir := t.TempDir()
	h := storedGateway(t, dir, withPins(newFickle(t).config("accepted"), true))
	server := h.Servers[0]
	server.pins.Observe("weather", []byte(`{}`))
	server.pins.Observe("weather", []byte(`{"title":"x"}`))
	free := fill(t, dir)
	if n, err := (adminGateway{h}).acceptTools(server, "weather", ""); n != 1 || !errors.Is(err, errNotSaved) {
		t.Errorf("with a full disk: %d, %v", n, err)
	}
	free()
	server.pins.Observe("weather", []byte(`{"title":"y"}`))
	if n, err := (adminGateway{h}).acceptTools(server, "weather", ""); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

// If pins cannot be read, the gateway withholds all tools of the server until an operator accepts
// them. It keeps the unreadable file.
func TestBrokenPins(t *testing.T) { // A54
	for name, broken := range map[string]string{"truncated": `{"format":2,"tools":[{"tool":"wea`, "empty": "",
		"another format": `{"format":9}`} {
		t.Run(name, func(t *testing.T) {
			anotherProcess(t)
			dir := t.TempDir()
			server := newFickle(t)
			h, unload := loadGateway(t, dir, withPins(server.config("broken"), true))
			tryTool(t, h, "broken")
			unload()
			file := filepath.Join(dir, h.Servers[0].pins.key)
			if err := os.WriteFile(file, []byte(broken), 0o600); err != nil {
				t.Fatal(err)
			}
			anotherProcess(t)
			h, unload = loadGateway(t, dir, withPins(server.config("broken"), true))
			if listed, called := tryTool(t, h, "broken"); listed || called {
				t.Errorf("listed %t, called %t", listed, called)
			}
			if got := (adminGateway{h}).listChanges(); len(got) != 1 || !got[0].Lost {
				t.Errorf("changes %+v", got)
			}
			if text, err := os.ReadFile(file); string(text) != broken || err != nil {
				t.Errorf("the file was replaced by %s, %v", text, err)
			}
			if n, err := (adminGateway{h}).acceptTools(h.Servers[0], "", ""); n != 1 || err != nil {
				t.Errorf("accepted %d, %v", n, err)
			}
			if listed, called := tryTool(t, h, "broken"); !listed || !called {
				t.Errorf("after the acceptance: listed %t, called %t", listed, called)
			}
			if text, err := os.ReadFile(file + ".broken"); string(text) != broken || err != nil {
				t.Errorf("kept %s, %v", text, err)
			}
			unload()
			server.version.Store(1)
			anotherProcess(t)
			h = storedGateway(t, dir, withPins(server.config("broken"), true))
			if listed, called := tryTool(t, h, "broken"); listed || called {
				t.Errorf("a changed tool: listed %t, called %t", listed, called)
			}
		})
	}
}

// A listener receives Caddy events.
type listener chan caddy.Event

func (l listener) Handle(_ context.Context, event caddy.Event) error {
	l <- event
	return nil
}

func TestToolChangedEvent(t *testing.T) { // A54
	server := newFickle(t)
	h := storedGateway(t, t.TempDir(), withPins(server.config("telling"), true))
	told := make(listener, 4)
	if err := h.events.On("mcp_tool_changed", told); err != nil {
		t.Fatal(err)
	}
	tryTool(t, h, "telling")
	server.version.Store(1)
	tryTool(t, h, "telling")
	tryTool(t, h, "telling")
	if len(told) != 1 {
		t.Fatalf("got %d events, want 1", len(told))
	}
	if got := (<-told).Data; got["server"] != "telling" || got["tool"] != "weather" {
		t.Errorf("got event %v", got)
	}
}
