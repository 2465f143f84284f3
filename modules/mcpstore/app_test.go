package mcpstore

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
)

func TestMain(m *testing.M) {
	caddy.RegisterModule(counted{})
	goleak.VerifyTestMain(m)
}

// A counted is an engine that counts in openEngines how many are open.
type counted struct {
	Address string `json:"address,omitempty"`
	File    string `json:"file,omitempty"`
}

var openEngines atomic.Int64

func (counted) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "mcp_store.counted", New: func() caddy.Module { return new(counted) }}
}

func (*counted) Open(*zap.Logger) (replicas.Engine, error) {
	openEngines.Add(1)
	return &countedEngine{replicastest.New()}, nil
}

// Files implements FileReader.
func (c *counted) Files() []string {
	if c.File == "" {
		return nil
	}
	return []string{c.File}
}

type countedEngine struct{ *replicastest.Engine }

func (*countedEngine) Close() { openEngines.Add(-1) }

// loadApp provisions the app. The returned function cleans up, as Caddy does after a reload.
func loadApp(t *testing.T, config string) (*App, func()) {
	t.Helper()
	parent, err := caddy.ProvisionContext(new(caddy.Config))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := caddy.NewContext(parent)
	module, err := ctx.LoadModuleByID("mcp_store", json.RawMessage(config))
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	return module.(*App), cancel
}

const key = `"session_key":"0123456789abcdef0123456789abcdef"`

func TestReloads(t *testing.T) {
	before, endBefore := loadApp(t, `{"engine":{"engine":"counted","address":"a"},`+key+`}`)
	defer endBefore()
	for name, test := range map[string]struct {
		config string
		same   bool
	}{
		"no change":         {`{"engine":{"engine":"counted","address":"a"},` + key + `}`, true},
		"a written default": {`{"engine":{"engine":"counted","address":"a"},"timeout":"500ms",` + key + `}`, true},
		"another address":   {`{"engine":{"engine":"counted","address":"b"},` + key + `}`, false},
		"another key": {`{"engine":{"engine":"counted","address":"a"},` +
			`"session_key":"abcdef0123456789abcdef0123456789"}`, false},
		"another timeout": {`{"engine":{"engine":"counted","address":"a"},"timeout":"1s",` + key + `}`, false},
		"other limits":    {`{"engine":{"engine":"counted","address":"a"},"limits_when_down":"allow",` + key + `}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			after, end := loadApp(t, test.config)
			if (after.store == before.store) != test.same {
				t.Errorf("same store: %t, want %t", !test.same, test.same)
			}
			end()
			if n := openEngines.Load(); n != 1 {
				t.Errorf("%d engines open after the other configuration ended, want 1", n)
			}
		})
	}
	endBefore()
	if n := openEngines.Load(); n != 0 {
		t.Errorf("%d engines open after both configurations ended, want 0", n)
	}
}

// A store is not reused if the value of the placeholder in session_key changed.
func TestReloadWithAnotherSecret(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	config := `{"engine":{"engine":"counted"},"session_key":"{file.` + file + `}"}`
	var apps []*App
	for _, secret := range []string{"a", "b"} {
		if err := os.WriteFile(file, []byte(strings.Repeat(secret, 32)), 0o600); err != nil {
			t.Fatal(err)
		}
		app, end := loadApp(t, config)
		defer end()
		apps = append(apps, app)
	}
	if apps[0].store == apps[1].store {
		t.Error("the store was reused")
	}
}

// A store is not reused if the value of the placeholder in prefix changed.
func TestReloadWithAnotherPrefix(t *testing.T) {
	var apps []*App
	for _, prefix := range []string{"a:", "b:"} {
		t.Setenv("TEST_PREFIX", prefix)
		app, end := loadApp(t, `{"engine":{"engine":"counted"},"prefix":"{env.TEST_PREFIX}",`+key+`}`)
		defer end()
		if app.Prefix != prefix {
			t.Errorf("prefix %q, want %q", app.Prefix, prefix)
		}
		apps = append(apps, app)
	}
	if apps[0].store == apps[1].store {
		t.Error("the store was reused")
	}
}

// A store is not reused if a file of the engine, such as a certificate, changed.
func TestReloadWithAnotherFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ca.pem")
	config := `{"engine":{"engine":"counted","file":"` + file + `"},` + key + `}`
	var apps []*App
	for _, content := range []string{"a", "a", "b"} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		app, end := loadApp(t, config)
		defer end()
		apps = append(apps, app)
	}
	if apps[0].store != apps[1].store || apps[1].store == apps[2].store {
		t.Errorf("same store with the same content: %t; with another content: %t",
			apps[0].store == apps[1].store, apps[1].store == apps[2].store)
	}
}

func TestWithoutSharedStore(t *testing.T) {
	for _, config := range []string{`{}`, `{"engine":{"engine":"memory"}}`, `{"engine":{"engine":"memory"},` + key + `}`} {
		app, end := loadApp(t, config)
		if app.store != nil {
			t.Errorf("%s has a shared store", config)
		}
		end()
	}
}
