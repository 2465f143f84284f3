package mcphttp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// Caddy and its certificate cache start these once per process.
		goleak.IgnoreAnyFunction("github.com/caddyserver/certmagic.(*Cache).maintainAssets"),
		goleak.IgnoreAnyFunction("github.com/golang/glog.(*fileSink).flushDaemon"),
		goleak.IgnoreAnyFunction("go.opencensus.io/stats/view.(*worker).start"))
}

// standard is Caddy's transport, with which mcp_http must agree.
const standard = "http"

// A proxy is a reverse_proxy with a transport.
type proxy struct {
	*reverseproxy.Handler
	cancel context.CancelFunc
}

func newProxy(t testing.TB, protocol, settings, more string, upstreams ...string) proxy {
	t.Helper()
	var dials []string
	for _, upstream := range upstreams {
		dials = append(dials, fmt.Sprintf(`{"dial":%q}`, upstream))
	}
	config := fmt.Sprintf(`{"transport":{"protocol":%q%s},"upstreams":[%s]%s}`, protocol, settings,
		strings.Join(dials, ","), more)
	ctx, err := caddy.ProvisionContext(new(caddy.Config))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := caddy.NewContext(ctx)
	handler, err := ctx.LoadModuleByID("http.handlers.reverse_proxy", json.RawMessage(config))
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(cancel)
	return proxy{handler.(*reverseproxy.Handler), cancel}
}

// serve sends a request through the proxy.
func (p proxy) serve(r *http.Request) (*httptest.ResponseRecorder, error) {
	w := httptest.NewRecorder()
	r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, new(caddyhttp.Server))
	caddyhttp.SetVar(r.Context(), caddyhttp.ClientIPVarKey, "127.0.0.1")
	caddyhttp.SetVar(r.Context(), caddyhttp.TrustedProxyVarKey, false)
	err := p.ServeHTTP(w, r, caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error { return nil }))
	return w, err
}

func post(t testing.TB, body string) *http.Request {
	// Hide the type of the body: in a server, it is not known to be in memory.
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://gateway.example.com/mcp",
		struct{ io.Reader }{strings.NewReader(body)})
	r.ContentLength = int64(len(body))
	return r
}

// TestOptions sends a POST through the transport http and through mcp_http, which must behave alike
// with each setting that concerns plain HTTP.
func TestOptions(t *testing.T) {
	for _, tt := range []struct {
		name     string
		settings string
		serve    http.HandlerFunc
		want     string
	}{
		{"no settings", ``, nil, `200 hello host=gateway.example.com gzip`},
		{"compression off", `,"compression":false`, nil, `200 hello host=gateway.example.com`},
		{"a header timeout", `,"response_header_timeout":50000000`, hang, `504`},
		{"a read timeout", `,"read_timeout":50000000`, hang, `504`},
		{"a header that is too large", `,"max_response_header_size":100`, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X", strings.Repeat("x", 200))
		}, `502`},
		{"no keep-alive", `,"keep_alive":{"enabled":false}`, nil, `200 hello host=gateway.example.com gzip`},
		{"a connection limit", `,"max_conns_per_host":1`, nil, `200 hello host=gateway.example.com gzip`},
		{"small buffers", `,"read_buffer_size":16,"write_buffer_size":16`, nil, `200 hello host=gateway.example.com gzip`},
		{"h2c", `,"versions":["h2c","2"]`, nil, `200 hello host=gateway.example.com gzip`},
		{"an error from the server", ``, func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "no", http.StatusTeapot)
		}, "418 no\n"},
		{"a server that closes the connection", ``, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
			`502`},
	} {
		for _, protocol := range []string{standard, Name} {
			t.Run(tt.name+"/"+protocol, func(t *testing.T) {
				serve := tt.serve
				if serve == nil {
					serve = describe
				}
				server := httptest.NewUnstartedServer(serve)
				server.Config.Protocols = new(http.Protocols)
				server.Config.Protocols.SetHTTP1(true)
				server.Config.Protocols.SetUnencryptedHTTP2(true)
				server.Start()
				defer server.Close()
				p := newProxy(t, protocol, tt.settings, "", server.Listener.Addr().String())
				defer p.cancel()
				if got := outcome(p.serve(post(t, "hello"))); got != tt.want {
					t.Errorf("\n got %s\nwant %s", got, tt.want)
				}
			})
		}
	}
}

func hang(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

func describe(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	fmt.Fprintf(w, "%s host=%s %s", body, r.Host, r.Header.Get("Accept-Encoding"))
}

func outcome(w *httptest.ResponseRecorder, err error) string {
	if refusal, ok := errors.AsType[caddyhttp.HandlerError](err); ok {
		return fmt.Sprint(refusal.StatusCode)
	}
	if err != nil {
		return err.Error()
	}
	return strings.TrimSuffix(fmt.Sprintf("%d %s", w.Code, w.Body), " ")
}

// TestRetry checks that reverse_proxy sends a POST to the next upstream if it cannot connect to the
// first. That is safe because nothing was sent. reverse_proxy recognizes it by the type of the
// error.
func TestRetry(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(describe))
	defer server.Close()
	dead := httptest.NewServer(nil)
	dead.Close()
	p := newProxy(t, Name, "", `,"load_balancing":{"selection_policy":{"policy":"round_robin"},"retries":3}`,
		dead.Listener.Addr().String(), server.Listener.Addr().String())
	defer p.cancel()
	for range 4 {
		if got := outcome(p.serve(post(t, "hello"))); got != "200 hello host=gateway.example.com gzip" {
			t.Error(got)
		}
	}
}

// TestHost checks the Host header, and that X-Forwarded-Host contains the Host of the client.
func TestHost(t *testing.T) {
	serve := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s", r.Host, r.Header.Get("X-Forwarded-Host"))
	})
	plain, secure := httptest.NewServer(serve), httptest.NewTLSServer(serve)
	defer plain.Close()
	defer secure.Close()
	for _, tt := range []struct {
		name, settings string
		server         *httptest.Server
		want           string
	}{
		{"the Host of the client", ``, plain, "200 gateway.example.com gateway.example.com"},
		{"a configured Host", `,"host":"mcp.example.com"`, plain, "200 mcp.example.com gateway.example.com"},
		{"with TLS", `,"tls":{"insecure_skip_verify":true}`, secure, "200 " + secure.Listener.Addr().String() +
			" gateway.example.com"},
		{"a configured Host with TLS", `,"host":"mcp.example.com","tls":{"insecure_skip_verify":true}`, secure,
			"200 mcp.example.com gateway.example.com"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newProxy(t, Name, tt.settings, "", tt.server.Listener.Addr().String())
			defer p.cancel()
			if got := outcome(p.serve(post(t, "hello"))); got != tt.want {
				t.Errorf("\n got %s\nwant %s", got, tt.want)
			}
		})
	}
}

// TestConnections checks that connections over TCP and Unix sockets are reused, and closed when the
// configuration ends.
func TestConnections(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			address := "127.0.0.1:0"
			if network == "unix" {
				address = filepath.Join(t.TempDir(), "s")
			}
			listener, err := net.Listen(network, address)
			if err != nil {
				t.Fatal(err)
			}
			var opened, open atomic.Int32
			server := &http.Server{Handler: http.HandlerFunc(describe), ConnState: func(_ net.Conn, state http.ConnState) {
				switch state {
				case http.StateNew:
					opened.Add(1)
					open.Add(1)
				case http.StateClosed:
					open.Add(-1)
				}
			}}
			go server.Serve(listener)
			defer server.Close()
			upstream := listener.Addr().String()
			if network == "unix" {
				upstream = "unix/" + upstream
			}
			p := newProxy(t, Name, "", "", upstream)
			if p.Transport.(*Transport).fast == nil {
				t.Error("the transport http serves all requests")
			}
			for range 5 {
				if got := outcome(p.serve(post(t, "hello"))); got != "200 hello host=gateway.example.com gzip" {
					t.Error(got)
				}
			}
			if n := opened.Load(); n != 1 {
				t.Errorf("%d connections for five requests, want 1", n)
			}
			p.cancel()
			for deadline := time.Now().Add(10 * time.Second); open.Load() > 0; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("a connection is left open")
				}
			}
		})
	}
}

// TestCaddyfile checks that mcp_http accepts the settings of the transport http.
func TestCaddyfile(t *testing.T) {
	var got Transport
	if err := got.UnmarshalCaddyfile(caddyfile.NewTestDispenser("mcp_http {\n dial_timeout 5s\n compression off\n " +
		"versions 1.1\n}")); err != nil {
		t.Fatal(err)
	}
	if got.DialTimeout != caddy.Duration(5*time.Second) || got.Compression == nil || *got.Compression ||
		len(got.Versions) != 1 {
		t.Errorf("%+v", got.HTTPTransport)
	}
	if err := new(Transport).UnmarshalCaddyfile(caddyfile.NewTestDispenser("mcp_http {\n frobnicate\n}")); err == nil {
		t.Error("an unknown setting is accepted")
	}
}

// TestForwardProxy checks that requests go through a configured proxy.
func TestForwardProxy(t *testing.T) {
	var requested atomic.Value
	forward := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requested.Store(r.URL.Host)
		describe(w, r)
	}))
	defer forward.Close()
	address, err := url.Parse(forward.URL)
	if err != nil {
		t.Fatal(err)
	}
	p := newProxy(t, Name, fmt.Sprintf(`,"network_proxy":{"from":"url","url":%q}`, address), "", "mcp.example.com:80")
	defer p.cancel()
	if got := outcome(p.serve(post(t, "hello"))); !strings.HasPrefix(got, "200 hello ") || requested.Load() == nil {
		t.Error(got, requested.Load())
	}
}

// BenchmarkProxy sends a small call through reverse_proxy, with Caddy's transport http and with
// mcp_http.
func BenchmarkProxy(b *testing.B) {
	result := []byte(strings.Repeat("x", 1024))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(result) }))
	defer server.Close()
	for _, protocol := range []string{standard, Name} {
		b.Run(protocol, func(b *testing.B) {
			p := newProxy(b, protocol, "", "", server.Listener.Addr().String())
			defer p.cancel()
			b.ReportAllocs()
			for b.Loop() {
				if w, err := p.serve(post(b, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)); err != nil ||
					w.Body.Len() != len(result) {
					b.Fatal(err)
				}
			}
		})
	}
}
