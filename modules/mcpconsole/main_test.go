package mcpconsole

import (
	"context"
	"fmt"
	"html/template"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	"go.uber.org/goleak"

	_ "github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpsample"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// Caddy and its certificate cache start these once per process.
		goleak.IgnoreAnyFunction("github.com/caddyserver/certmagic.(*Cache).maintainAssets"),
		goleak.IgnoreAnyFunction("github.com/caddyserver/certmagic.keepLockfileFresh"),
		goleak.IgnoreAnyFunction("github.com/golang/glog.(*fileSink).flushDaemon"),
		goleak.IgnoreAnyFunction("go.opencensus.io/stats/view.(*worker).start"))
}

// testChanges returns the changes of the test page. It is nil for no changes.
var testChanges atomic.Pointer[func(*consoleRequest) func() (patch, error)]

func testLive(v *consoleRequest) func() (patch, error) {
	if changes := testChanges.Load(); changes != nil {
		return (*changes)(v)
	}
	return func() (patch, error) { return patch{}, nil }
}

// init adds a page and an action that are independent of the real ones.
func init() {
	template.Must(templates().New("test").Parse(
		`{{template "top" .}}<p id="test">[{{.Request.User}}] {{.Request.ReadOnly}} {{.Data}}</p><form>{{template ` +
			`"token" .}}</form>{{template "bottom" .}}`))
	pages = append(pages, page{
		pattern: "/test/{name}", name: "test", title: "Test",
		show: func(v *consoleRequest) (any, error) {
			if v.r.PathValue("name") == "gone" {
				return get[any](v, "/servers/<b>gone")
			}
			return v.r.URL.Path, nil
		},
		live: testLive,
	})
	actions = append(actions, action{"/test/{server}/refresh", func(v *consoleRequest) (string, error) {
		_, err := post[any](v, "/servers/"+v.r.PathValue("server")+"/refresh", nil)
		return v.Link("/test/done"), err
	}})
}

// load loads a console from its JSON configuration. It is unloaded when the test ends.
func load(t testing.TB, config string) *Handler {
	t.Helper()
	ctx, err := caddy.ProvisionContext(new(caddy.Config))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := caddy.NewContext(ctx)
	t.Cleanup(cancel)
	module, err := ctx.LoadModuleByID("http.handlers.mcp_console", []byte(config))
	if err != nil {
		t.Fatal(err)
	}
	return module.(*Handler)
}

// newRequest returns a request of a local browser. header are pairs of name and value.
func newRequest(method, target string, header ...string) *http.Request {
	r := httptest.NewRequest(method, target, nil)
	r.Host, r.RemoteAddr = "localhost:8080", "127.0.0.1:50000"
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	return r
}

// passed is the status of requests that the console passes to the next handler.
const passed = http.StatusTeapot

// respond returns the console's response to a request. user is the user authenticated by Caddy, ""
// for none. rewritten is the path if an earlier handler rewrites it.
func respond(t testing.TB, h *Handler, r *http.Request, user string, rewritten ...string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	repl := caddy.NewReplacer()
	if user != "" {
		repl.Set("http.auth.user.id", user)
	}
	at := &net.TCPAddr{IP: net.IPv4zero}
	if strings.HasPrefix(r.RemoteAddr, "127.") || strings.HasPrefix(r.RemoteAddr, "[::1]") {
		at.IP = net.IPv4(127, 0, 0, 1)
	}
	r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, at))
	r = caddyhttp.PrepareRequest(r, repl, w, new(caddyhttp.Server))
	for _, path := range rewritten {
		r.URL.Path, r.URL.RawPath = path, ""
	}
	next := caddyhttp.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
		w.WriteHeader(passed)
		return nil
	})
	if err := h.ServeHTTP(w, r, next); err != nil {
		t.Fatal(err)
	}
	return w
}

// A site is a running Caddy in the test process.
type site struct {
	*testing.T
	url, log string
}

// serve runs a site with a gateway and these lines until the test ends.
func serve(t *testing.T, lines string) *site {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = free.Close()
	s := &site{T: t, url: "http://" + free.Addr().String(), log: filepath.Join(t.TempDir(), "log")}
	s.load(lines)
	t.Cleanup(func() {
		if err := caddy.Stop(); err != nil {
			t.Error(err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	return s
}

// load replaces the configuration.
func (s *site) load(lines string) {
	s.Helper()
	adapter := caddyfile.Adapter{ServerType: httpcaddyfile.ServerType{}}
	config, _, err := adapter.Adapt(fmt.Appendf(nil, `{
	admin off
	persist_config off
	log {
		output file %s {
			roll_disabled
		}
		format json
	}
}
%s {
	%s
	mcp_gateway {
		separator __
		server sample {
			mcp_sample
		}
	}
}`, s.log, s.url, lines), nil)
	if err != nil {
		s.Fatal(err)
	}
	if err := caddy.Load(config, false); err != nil {
		s.Fatal(err)
	}
}

// logged returns the log lines that contain a text.
func (s *site) logged(text string) (lines []string) {
	s.Helper()
	log, err := os.ReadFile(s.log)
	if err != nil {
		s.Fatal(err)
	}
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, text) {
			lines = append(lines, line)
		}
	}
	return lines
}
