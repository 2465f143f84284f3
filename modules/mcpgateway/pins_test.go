package mcpgateway

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	_ "github.com/caddyserver/caddy/v2/modules/filestorage"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolpin"
)

// storedGateway is a gateway that keeps what it has to in a directory.
func storedGateway(t *testing.T, dir, config string) *Handler {
	t.Helper()
	h, _ := loadGateway(t, dir, config)
	return h
}

// loadGateway is storedGateway that can be unloaded.
func loadGateway(t *testing.T, dir, config string) (h *Handler, unload func()) {
	t.Helper()
	storage, _ := json.Marshal(map[string]string{"module": "file_system", "root": dir})
	ctx, err := caddy.ProvisionContext(&caddy.Config{StorageRaw: storage})
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
			s.asides.Wait() // before the directory goes
		}
	})
	return h, cancel
}

// A fickle server has one tool, which can become another.
type fickle struct {
	*witness
	version atomic.Int32
}

func newFickle(t *testing.T) *fickle {
	f := new(fickle)
	f.witness = newWitness(t, func(w http.ResponseWriter, _ *http.Request, got witnessed) {
		description := [...]string{"Tells the weather.", "Tells the weather, and more."}[f.version.Load()]
		if got.is("tools/list") {
			says(w, got, `{"tools":[{"name":"weather","description":"`+description+`","inputSchema":{"type":"object"}}]}`)
			return
		}
		says(w, got, `{"content":[]}`)
	})
	return f
}

func withPins(server string, pin bool) string {
	if pin {
		return `{"pin_tools":true,"servers":[` + server + `]}`
	}
	return `{"servers":[` + server + `]}`
}

// offers reports whether a gateway lists the tool of a server, and has it called. What
// is pinned by that has been saved.
func offers(t *testing.T, h *Handler, server string) (listed, called bool) {
	t.Helper()
	list := serves(t, h, posting("/mcp/"+server, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
	h.byName[server].asides.Wait()
	call := serves(t, h, posting("/mcp/"+server, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"weather"}}`))
	return strings.Contains(list.Body.String(), `"weather"`), call.Code == http.StatusOK
}

// anotherProcess forgets what is remembered in this one.
func anotherProcess(t *testing.T) {
	before := pinnings
	pinnings = caddy.NewUsagePool()
	t.Cleanup(func() { pinnings = before })
}

func TestProcessesDoNotOverwriteEachOthersPins(t *testing.T) { // A54
	dir := t.TempDir()
	one, two := newFickle(t), newFickle(t)
	first := storedGateway(t, dir, withPins(one.line("one"), true))
	anotherProcess(t)
	second := storedGateway(t, dir, withPins(two.line("two"), true))
	offers(t, first, "one")
	if listed, called := offers(t, second, "two"); !listed || !called { // which is saved last
		t.Fatalf("listed %t, called %t", listed, called)
	}
	one.version.Store(1)
	anotherProcess(t)
	if listed, called := offers(t, storedGateway(t, dir, withPins(one.line("one"), true)), "one"); listed || called {
		t.Errorf("it has changed: listed %t, called %t", listed, called)
	}
}

func TestPinsThatAReloadSwitchesOn(t *testing.T) { // A54, A60
	dir := t.TempDir()
	server := newFickle(t)
	before, unload := loadGateway(t, dir, withPins(server.line("reloaded"), true))
	offers(t, before, "reloaded")
	unload()
	server.version.Store(1)
	without, unload := loadGateway(t, dir, withPins(server.line("reloaded"), false))
	if listed, called := offers(t, without, "reloaded"); !listed || !called {
		t.Errorf("while nothing is withheld: listed %t, called %t", listed, called)
	}
	with := storedGateway(t, dir, withPins(server.line("reloaded"), true))
	unload()
	if listed, called := offers(t, with, "reloaded"); listed || called {
		t.Errorf("it is not what it was: listed %t, called %t", listed, called)
	}
	if got := with.byName["reloaded"].pins.Changes(); !slices.ContainsFunc(got, func(c toolpin.Change) bool { return c.Tool == "weather" }) {
		t.Errorf("operators are told of %+v", got)
	}
	server.version.Store(0)
	if listed, called := offers(t, with, "reloaded"); !listed || !called {
		t.Errorf("as it was: listed %t, called %t", listed, called)
	}
}

func TestListsDoNotWaitForTheStorage(t *testing.T) { // A54
	h := storedGateway(t, t.TempDir(), withPins(newFickle(t).line("slow"), true))
	server := h.Servers[0]
	server.pins.mu.Lock() // as whoever saves them has it
	done := make(chan bool, 6)
	for range cap(done) {
		go func() {
			w := httptest.NewRecorder()
			servesTo(w, h, posting("/mcp/slow", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
			done <- strings.Contains(w.Body.String(), `"weather"`)
		}()
	}
	for range cap(done) {
		if !waits(t, "a list", done) {
			t.Error("the tool is not listed")
			break
		}
	}
	server.pins.pause.Store(new(time.Now().Add(time.Hour))) // and could not
	server.pins.mu.Unlock()
	server.asides.Wait()
	offers(t, h, "slow")
	if server.pins.saved.Load() == server.pins.Version() {
		t.Error("it is not left alone")
	}
	server.pins.pause.Store(nil)
	if offers(t, h, "slow"); server.pins.saved.Load() != server.pins.Version() {
		t.Error("it is left alone for ever")
	}
}

// A listener is told of events.
type listener chan caddy.Event

func (l listener) Handle(_ context.Context, event caddy.Event) error {
	l <- event
	return nil
}

func TestChangedToolsAreTold(t *testing.T) { // A54
	server := newFickle(t)
	h := storedGateway(t, t.TempDir(), withPins(server.line("telling"), true))
	told := make(listener, 4)
	if err := h.events.On("mcp_tool_changed", told); err != nil {
		t.Fatal(err)
	}
	offers(t, h, "telling")
	server.version.Store(1)
	offers(t, h, "telling")
	offers(t, h, "telling")
	if len(told) != 1 {
		t.Fatalf("told %d times", len(told))
	}
	if got := (<-told).Data; got["server"] != "telling" || got["tool"] != "weather" {
		t.Errorf("told %v", got)
	}
}
